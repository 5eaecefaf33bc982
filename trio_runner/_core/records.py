"""The records of a session: one frozen value per durable fact.

A session is the append-only list of its records; what it means is decided in
one place, `trio_runner._core.fold`. A record holds values only, never a live
object. ``turn`` counts the turns of the session from 1, ``step`` the model
calls of the turn from 0.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal, TypeAlias

import attrs

import trio_runner._core.values as v
from trio_runner._core.quick import ByFields


@attrs.frozen(eq=False, repr=False)
class SessionOpened(ByFields):
    """The first record of a session; ``agent`` is the name of the agent that opened it."""

    agent: str


@attrs.frozen(eq=False, repr=False)
class TurnStarted(ByFields):
    """A turn began with ``input``; ``resumed`` marks one that goes on after its end or a crash."""

    turn: int
    input: tuple[v.Message, ...]
    resumed: bool = False


@attrs.frozen(eq=False, repr=False)
class ModelFinished(ByFields):
    """A reply arrived; the message is normalised.

    Attributes:
      cap: the turn's ``max_iterations`` when the reply met it, else None.
    """

    turn: int
    step: int
    message: v.Message
    cap: int | None = None


@attrs.frozen(eq=False, repr=False)
class ToolStarted(ByFields):
    """A call may run from here on; durable before the tool function is called.

    Attributes:
      name: of the tool, which may be spelled otherwise in the call.
      arguments_hash: SHA-256 of the canonical JSON of the arguments, in hex.
      key: the idempotency key, ``turn:step:call``.
    """

    turn: int
    step: int
    call_id: str
    name: str
    arguments_hash: str
    key: str
    idempotent: bool = False
    attempt: int = 1


@attrs.frozen(eq=False, repr=False)
class ToolFinished(ByFields):
    """A call has its result.

    Attributes:
      attached: messages with media of this call; they go behind all results of the step.
    """

    turn: int
    step: int
    result: v.ToolResult
    attached: tuple[v.Message, ...] = ()


@attrs.frozen(eq=False, repr=False)
class InputAdded(ByFields):
    """Messages were added to the running turn; they go after any open results."""

    turn: int
    messages: tuple[v.Message, ...]


#: What a call waits for: consent, or its result, which the application gives.
WaitsFor: TypeAlias = Literal["approval", "external"]


@attrs.frozen(eq=False, repr=False)
class CallHeld(ByFields):
    """An open call waits for a word, on it with these arguments."""

    turn: int
    step: int
    call_id: str
    waits_for: WaitsFor
    arguments_hash: str


@attrs.frozen(eq=False, repr=False)
class CallApproved(ByFields):
    """An open call may run, with these arguments: edits come before it."""

    turn: int
    step: int
    call_id: str
    arguments_hash: str


@attrs.frozen(eq=False, repr=False)
class CallEdited(ByFields):
    """Somebody edited the arguments of an open call; it runs with these."""

    turn: int
    step: int
    call_id: str
    arguments: v.JSONObject


@attrs.frozen(eq=False, repr=False)
class AnswerRefused(ByFields):
    """The answer was not what was asked for; the model is told so by these messages."""

    turn: int
    messages: tuple[v.Message, ...]


@attrs.frozen(eq=False, repr=False)
class PassedThrough(ByFields):
    """The results of the last step became the answer; no model gave ``message``."""

    turn: int
    message: v.Message


@attrs.frozen(eq=False, repr=False)
class HistoryReplaced(ByFields):
    """The history was replaced as a whole (an edit, a load, a repair, a clear)."""

    messages: tuple[v.Message, ...]


@attrs.frozen(eq=False, repr=False)
class Compacted(ByFields):
    """A summary took the place of the oldest messages behind the templates.

    Attributes:
      before: how many messages the history had, templates included.
      upto: the index of the first message that stays as it was.
      kept: messages in front of it that stay too, behind the summary, as ranges of indices
        ``(start, stop)`` in order: the input of the turn that runs, for instance.
    """

    before: int
    upto: int
    summary: v.Message
    kept: tuple[tuple[int, int], ...] = ()


@attrs.frozen(eq=False, repr=False)
class Trimmed(ByFields):
    """Whole tool steps were taken out of the history.

    Attributes:
      before: how many messages the history had, templates included.
      dropped: the messages that went, as ranges of indices ``(start, stop)`` in order.
    """

    before: int
    dropped: tuple[tuple[int, int], ...]


@attrs.frozen(eq=False, repr=False)
class TurnEnded(ByFields):
    """The turn is over; one that is suspended goes on later with its open calls."""

    turn: int
    end_reason: v.EndReason


#: What happens in a turn that runs.
InTurn: TypeAlias = (
    ModelFinished
    | ToolStarted
    | ToolFinished
    | InputAdded
    | CallHeld
    | CallEdited
    | CallApproved
    | AnswerRefused
    | PassedThrough
    | TurnEnded
)
Record: TypeAlias = SessionOpened | TurnStarted | InTurn | HistoryReplaced | Compacted | Trimmed


_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def canonical_json(arguments: v.JSONObject) -> str:
    """The one JSON text of ``arguments``: ASCII, keys in order, no blanks."""
    return _canonical(arguments)


def arguments_hash(arguments: v.JSONObject) -> str:
    """SHA-256 of the canonical JSON of ``arguments``, in hex."""
    return hashlib.sha256(_canonical(arguments).encode("ascii")).hexdigest()
