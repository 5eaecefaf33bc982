"""What observers are told: one frozen value per kind of event.

``number`` grows by one with each event of a runner, so a reader can tell
order and gaps; ``turn`` is the turn's number within its conversation. Events
are built only when somebody listens. Finishing order exists here only:
history, requests and the journal keep the order of the request.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

import trio_runner._core.values as v


@attrs.frozen
class TurnStarted:
    """A turn took the agent; ``input`` are its first messages (none when resumed)."""

    number: int
    turn: int
    input: tuple[v.Message, ...]
    resumed: bool = False


@attrs.frozen
class ModelCallStarted:
    """The model is about to be asked; ``step`` counts model calls of the turn from 0."""

    number: int
    turn: int
    step: int


@attrs.frozen
class ModelCallFinished:
    """The reply is in; it was normalised and recorded before this was emitted."""

    number: int
    turn: int
    step: int
    message: v.Message
    duration: float


@attrs.frozen
class TextDelta:
    """A piece of the reply while it streams; the whole reply follows in any case."""

    number: int
    turn: int
    step: int
    text: str


@attrs.frozen
class BatchPlanned:
    """The calls of one reply, in the order of the request, before any runs."""

    number: int
    turn: int
    step: int
    calls: tuple[v.ToolCall, ...]


@attrs.frozen
class CallStarted:
    """A tool function is about to be called."""

    number: int
    turn: int
    step: int
    call: v.ToolCall


@attrs.frozen
class CallProgress:
    """A running tool reported progress; ``total`` is None when unknown."""

    number: int
    turn: int
    step: int
    call_id: str
    progress: float
    total: float | None = None
    message: str | None = None


@attrs.frozen
class CallEmitted:
    """A running tool emitted a value of its own (`ToolContext.emit`)."""

    number: int
    turn: int
    step: int
    call_id: str
    value: object


@attrs.frozen
class CallFinished:
    """A call has its result, whatever its status; ``result.duration`` is in seconds."""

    number: int
    turn: int
    step: int
    result: v.ToolResult


@attrs.frozen
class Committed:
    """Everything recorded so far is durable."""

    number: int
    turn: int


@attrs.frozen
class CommitFailed:
    """A commit failed or was given up; ``error`` says which."""

    number: int
    turn: int
    error: Exception


@attrs.frozen
class ErrorSuppressed:
    """An error that lost to another one on the way out (contract C7)."""

    number: int
    turn: int
    error: BaseException


@attrs.frozen
class TurnInterrupted:
    """The turn was stopped; ``results`` are the answers its open calls got."""

    number: int
    turn: int
    end_reason: v.EndReason
    results: tuple[v.ToolResult, ...]


@attrs.frozen
class TurnEnded:
    """The last event of a turn."""

    number: int
    turn: int
    end_reason: v.EndReason


Event: TypeAlias = (
    TurnStarted
    | ModelCallStarted
    | ModelCallFinished
    | TextDelta
    | BatchPlanned
    | CallStarted
    | CallProgress
    | CallEmitted
    | CallFinished
    | Committed
    | CommitFailed
    | ErrorSuppressed
    | TurnInterrupted
    | TurnEnded
)
