"""What observers are told: one frozen value per kind of event.

``number`` grows by one with each event of a runner, so a reader can tell
order and gaps; ``turn`` is the turn's number within its conversation. Events
are built only when somebody listens. Finishing order exists here only:
history, requests and the journal keep the order of the request.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

import trio_runner._core.values as v
from trio_runner._core.approval import PendingCall
from trio_runner._core.limits import LimitReached
from trio_runner._core.quick import ByFields


@attrs.frozen(eq=False, repr=False)
class TurnStarted(ByFields):
    """A turn took the agent; ``input`` are its first messages (none when resumed)."""

    number: int
    turn: int
    input: tuple[v.Message, ...]
    resumed: bool = False


@attrs.frozen(eq=False, repr=False)
class ModelCallStarted(ByFields):
    """The model is about to be asked; ``step`` counts model calls of the turn from 0."""

    number: int
    turn: int
    step: int


@attrs.frozen(eq=False, repr=False)
class ModelCallFinished(ByFields):
    """The reply is in; it was normalised and recorded before this was emitted."""

    number: int
    turn: int
    step: int
    message: v.Message
    duration: float


@attrs.frozen(eq=False, repr=False)
class TextDelta(ByFields):
    """A piece of the reply while it streams; the whole reply follows in any case."""

    number: int
    turn: int
    step: int
    text: str


@attrs.frozen(eq=False, repr=False)
class AnswerRefused(ByFields):
    """An answer will not do; ``messages`` send it back to the model (none at the cap)."""

    number: int
    turn: int
    step: int
    messages: tuple[v.Message, ...]


@attrs.frozen(eq=False, repr=False)
class BatchPlanned(ByFields):
    """The calls of one reply, in the order of the request, before any runs."""

    number: int
    turn: int
    step: int
    calls: tuple[v.ToolCall, ...]


@attrs.frozen(eq=False, repr=False)
class ApprovalRequested(ByFields):
    """The approver is asked about a call; ``arguments`` are what it would run with."""

    number: int
    turn: int
    step: int
    call: v.ToolCall
    arguments: v.JSONObject


@attrs.frozen(eq=False, repr=False)
class ApprovalDecided(ByFields):
    """Somebody decided on a call that needs consent.

    Attributes:
      verdict: what was said.
      arguments: edited ones that it runs with; None: it runs as it stands, or not at all.
      reason: why it was denied.
    """

    number: int
    turn: int
    step: int
    call_id: str
    verdict: Literal["approved", "denied", "deferred"]
    arguments: v.JSONObject | None = None
    reason: str | None = None


@attrs.frozen(eq=False, repr=False)
class ApprovalFailed(ByFields):
    """An approver, or a rule of who needs consent, raised; the call does not run unasked."""

    number: int
    turn: int
    step: int
    call_id: str
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class CallStarted(ByFields):
    """A tool function is about to be called; ``attempt`` is above 1 after a crash only."""

    number: int
    turn: int
    step: int
    call: v.ToolCall
    attempt: int = 1


@attrs.frozen(eq=False, repr=False)
class CallProgress(ByFields):
    """A running tool reported progress; ``total`` is None when unknown."""

    number: int
    turn: int
    step: int
    call_id: str
    progress: float
    total: float | None = None
    message: str | None = None


@attrs.frozen(eq=False, repr=False)
class CallEmitted(ByFields):
    """A running tool emitted a value of its own (`ToolContext.emit`)."""

    number: int
    turn: int
    step: int
    call_id: str
    value: object


@attrs.frozen(eq=False, repr=False)
class CallFinished(ByFields):
    """A call has its result, whatever its status; ``result.duration`` is in seconds."""

    number: int
    turn: int
    step: int
    result: v.ToolResult


@attrs.frozen(eq=False, repr=False)
class PassedThrough(ByFields):
    """The results of the last batch became the turn's answer; no model was asked again."""

    number: int
    turn: int
    message: v.Message


@attrs.frozen(eq=False, repr=False)
class Committed(ByFields):
    """Everything recorded so far is durable."""

    number: int
    turn: int


@attrs.frozen(eq=False, repr=False)
class CommitFailed(ByFields):
    """A commit failed or was given up; ``error`` says which."""

    number: int
    turn: int
    error: Exception


@attrs.frozen(eq=False, repr=False)
class CompactionStarted(ByFields):
    """A summary of ``messages`` messages is about to be asked for.

    Attributes:
      reason: "after_turn", "mid_turn" (before a follow-up call) or "on_demand".
      tokens: about how many the context has.
    """

    number: int
    turn: int
    reason: str
    messages: int
    tokens: int


@attrs.frozen(eq=False, repr=False)
class Compacted(ByFields):
    """A summary took the place of ``replaced`` messages of the history, and was recorded.

    Attributes:
      messages_before, messages_after: how many the history had and has.
      tokens_before, tokens_after: about how many the context had and has.
    """

    number: int
    turn: int
    reason: str
    replaced: int
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    summary: v.Message


@attrs.frozen(eq=False, repr=False)
class CompactionFailed(ByFields):
    """No summary came, or none that fits; the history is unchanged and the turn goes on."""

    number: int
    turn: int
    reason: str
    error: Exception


@attrs.frozen(eq=False, repr=False)
class ErrorSuppressed(ByFields):
    """An error that lost to another one on the way out (contract C7)."""

    number: int
    turn: int
    error: BaseException


@attrs.frozen(eq=False, repr=False)
class LimitHit(ByFields):
    """A limit was reached: the turn ends by it, and asks the model no more."""

    number: int
    turn: int
    limit: LimitReached


@attrs.frozen(eq=False, repr=False)
class TurnInterrupted(ByFields):
    """The turn was stopped; ``results`` are the answers its open calls got."""

    number: int
    turn: int
    end_reason: v.EndReason
    results: tuple[v.ToolResult, ...]


@attrs.frozen(eq=False, repr=False)
class TurnSuspended(ByFields):
    """The turn waits for a word on these calls, by ``agent.resume(decisions=...)``."""

    number: int
    turn: int
    step: int
    pending: tuple[PendingCall, ...]


@attrs.frozen(eq=False, repr=False)
class TurnEnded(ByFields):
    """The last event of a turn."""

    number: int
    turn: int
    end_reason: v.EndReason


@attrs.frozen(eq=False, repr=False)
class NestedEvent(ByFields):
    """Something happened in the turn of an agent that runs as a tool of this turn.

    Attributes:
      call_id: the call of this turn in which it happened, however deep below.
      agent: the name of the agent whose event it is.
      depth: 1 for an agent that this turn called, 2 for one that such an agent called, ….
      event: the event, with the numbers of its own turn; never a `NestedEvent` itself.
    """

    number: int
    turn: int
    step: int
    call_id: str
    agent: str
    depth: int
    event: Event


Event: TypeAlias = (
    TurnStarted
    | ModelCallStarted
    | ModelCallFinished
    | TextDelta
    | AnswerRefused
    | BatchPlanned
    | ApprovalRequested
    | ApprovalDecided
    | ApprovalFailed
    | CallStarted
    | CallProgress
    | CallEmitted
    | CallFinished
    | PassedThrough
    | Committed
    | CommitFailed
    | CompactionStarted
    | Compacted
    | CompactionFailed
    | ErrorSuppressed
    | LimitHit
    | TurnInterrupted
    | TurnSuspended
    | TurnEnded
    | NestedEvent
)
