"""What you implement: models, tools, toolsets, journals, observers.

Everything here is a protocol or a small frozen value; the library's own
implementations use nothing that is not on this page. Words: a *turn* is one
user input to its end, a *step* is one reply and its batch, *commit* means
making records durable. The contract C1-C9 is ``docs/explanation/contract.md``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

import attrs

import trio_runner._core.approval as approval
import trio_runner._core.events as events
import trio_runner._core.params as params_
import trio_runner._core.records as records_
import trio_runner._core.structured as structured
import trio_runner._core.values as v
from trio_runner._core.compaction_plan import CompactionReason
from trio_runner._core.planning import PlannedToolCall

# --- the model side -------------------------------------------------------------


class DeltaSink(Protocol):
    """Takes the pieces of a reply while it streams."""

    def __call__(self, text: str) -> None:
        """Pass ``text`` on to the observers. Never blocks, never raises."""
        ...


@attrs.frozen
class ModelRequest:
    """One question to the model.

    Attributes:
      delta: the messages the model side does not have yet; the tail of ``history``.
        Empty when a paused reply is sent back. A stateful provider sends just these.
      history: all messages to send, templates first, ``delta`` included: a
        read-only view that costs nothing to make and never changes.
      tools: what the model may call.
      params: the turn's resolved settings.
      instruction: the system prompt, or None.
      output: what the reply must be if it is an answer; None: anything. Set only for a
        model that says ``supports_structured_output``.
    """

    delta: Sequence[v.Message]
    history: Sequence[v.Message]
    tools: Sequence[Tool]
    params: params_.RequestParams
    instruction: str | None = None
    output: structured.OutputFormat | None = None


class Model(Protocol):
    """Asks a model once.

    More attributes are read if they are there. ``supports_structured_output``: True
    when it takes ``ModelRequest.output``; otherwise the loop puts the schema into the
    instruction. ``structured_policy``: what ``"auto"`` means for it (default ``"always"``).
    ``context_window``: how many tokens it takes, by which `Compaction` sees when it is due.
    ``name``: under which `trio_runner.limits` looks for its price.
    """

    async def reply(self, request: ModelRequest, emit: DeltaSink) -> v.Message:
        """Return the assistant message that answers ``request``.

        Tool calls (`ToolCall.from_model`) may have their arguments as text, and
        missing or repeated ids; the runner normalises them. Cancellation must be let through, and
        must close the provider's stream. An error leaves the turn bare.
        """
        ...


@attrs.frozen
class SummaryRequest:
    """What a summary is to tell.

    Attributes:
      messages: those that it takes the place of, whole steps only; an older summary
        comes first and is to be told again.
      reason: "after_turn", "mid_turn" or "on_demand".
      target_tokens: what the summary should have at most.
    """

    messages: Sequence[v.Message]
    reason: CompactionReason
    target_tokens: int


class Summarizer(Protocol):
    """Writes the summary that takes the place of the oldest part of a history."""

    async def summarise(self, request: SummaryRequest) -> v.Message | str:
        """Return the summary: text, or a plain message of the user or the assistant.

        Nothing is held while it runs, and it is cut after `Compaction.timeout`
        seconds. What it raises is reported, and the history stays as it is.
        Cancellation must be let through.
        """
        ...


# --- tools ----------------------------------------------------------------------


class ToolContext(Protocol):
    """What a running tool can know and say about its call.

    A function tool gets one for a parameter annotated ``ToolContext`` (the
    model does not see it); `trio_runner.current_tool_context` finds it without
    a parameter.
    """

    @property
    def call_id(self) -> str:
        """The id of the call, unique within the history."""
        ...

    @property
    def name(self) -> str:
        """The name of the tool."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of this call: a copy, made before the tool got them."""
        ...

    @property
    def idempotency_key(self) -> str:
        """``session/turn:step:call``: the same whenever this very call is run again.

        Also in another process, when the session is kept.
        """
        ...

    @property
    def began(self) -> float:
        """When the call was begun, on trio's clock."""
        ...

    @property
    def attempt(self) -> int:
        """1, or more when the call is run again after a crash, which cut the earlier attempts."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether the turn goes on after an interruption or a crash."""
        ...

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell the observers how far the call is. Never blocks; may be called from its thread."""
        ...

    def emit(self, value: object) -> None:
        """Tell the observers a value of your own. Never blocks; may be called from its thread."""
        ...

    def attach(self, *content: v.ContentBlock) -> None:
        """Send media to the model in a marked user message after the results."""
        ...

    def claim_start(self) -> bool:
        """Say, from the worker thread, that a ``threaded`` tool begins now.

        False means that the call was given up before it began: do nothing.
        Tools that are not ``threaded`` never call this.
        """
        ...


#: A tool name that every provider takes.
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _check_name(_: object, __: object, value: object) -> None:
    if type(value) is not str or not TOOL_NAME.fullmatch(value):
        raise ValueError(
            f"tool name {value!r} is not one providers take; expected 1 to 64 characters "
            "of A-Z, a-z, 0-9, _ and -"
        )


def _check_timeout(_: object, __: object, value: object) -> None:
    params_.check_seconds("timeout", value, optional=True)


#: Whether calls need consent: all or none of them, or those that a function says it of,
#: which is given the planned call (``planned.tool`` is what it means, ``planned.call.arguments``
#: a copy) and must not block. Where it raises, the call needs consent.
NeedsApproval: TypeAlias = bool | Callable[[PlannedToolCall["Tool"]], bool]


def check_rule(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse what is no `NeedsApproval`; an attrs validator."""
    if type(value) is not bool and (not callable(value) or inspect.iscoroutinefunction(value)):
        raise TypeError(
            f"{attribute.name} is {value!r}; expected True, False or a plain function of the "
            "planned call (who decides is the agent's approver, which may be async)"
        )


@attrs.frozen
class Tool:
    """One tool: what the model is told, and the function that runs it.

    Attributes:
      name: as the model calls it: 1 to 64 characters of ``A-Za-z0-9_-``.
      description: for the model.
      input_schema: JSON Schema of the arguments, an object.
      call: ``await call(arguments, context)``. The arguments are a copy it may
        change. What it returns is converted to a `ToolResult`; what it raises
        becomes an error result, but for `FatalToolError`, which ends the turn.
      timeout: seconds from when the call really starts; None: the turn's ``tool_timeout``.
      sequential: a barrier: earlier calls of the batch finish first, it runs
        alone, then the rest.
      idempotent: may be run again with the same key after a crash.
      limiter: shared by every tool that has it, over all turns and batches.
      bare_name: the name without a server's prefix, accepted when unique.
      threaded: the call begins in a worker thread and says so by
        `ToolContext.claim_start`; until then it counts as not started.
      needs_approval: whether its calls run only when the agent's approver, or
        `ToolAgent.resume` later, says so; see `NeedsApproval`.
      external: nothing here runs it: the turn is suspended until the application
        gives the result to `ToolAgent.resume`. See `trio_runner.external_tool`.
    """

    name: str = attrs.field(validator=_check_name)
    description: str
    input_schema: Mapping[str, Any]
    call: Callable[[v.JSONObject, ToolContext], Awaitable[object]]
    title: str | None = None
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None
    timeout: float | None = attrs.field(default=None, validator=_check_timeout)
    sequential: bool = False
    idempotent: bool = False
    limiter: Limiter | None = None
    bare_name: str | None = None
    threaded: bool = False
    meta: Mapping[str, Any] = attrs.field(factory=v.empty_object)
    needs_approval: NeedsApproval = attrs.field(default=False, validator=check_rule)
    external: bool = False

    def __attrs_post_init__(self) -> None:
        if self.external and self.needs_approval is not False:
            raise ValueError(
                f"tool {self.name!r} is external, so nothing here runs it and nobody can approve "
                "it; the application gives its result, or Deny"
            )


class Limiter(Protocol):
    """The part of `trio.CapacityLimiter` that is used."""

    async def acquire_on_behalf_of(self, borrower: Any) -> None:
        """Wait for a slot."""
        ...

    def release_on_behalf_of(self, borrower: Any) -> None:
        """Give the slot back."""
        ...


class Toolset(Protocol):
    """A source of tools that lives in ``async with``, such as an MCP server.

    The agent enters it once and leaves it once, however many tasks use the
    agent. Leaving must be bounded and must end calls in flight.
    """

    @property
    def name(self) -> str:
        """Names it in messages."""
        ...

    async def list_tools(self) -> Sequence[Tool]:
        """The tools as they are now; the same object while nothing has changed.

        Asked before each model call, so it should be quick.
        """
        ...

    async def __aenter__(self) -> Self:
        """Connect."""
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None:
        """Close, within a bound."""
        ...


# --- who may run what -----------------------------------------------------------


@attrs.frozen(kw_only=True)
class ApprovalRequest:
    """What an approver is asked: may this call run?

    Attributes:
      call: as the model made it.
      tool: what its name means.
      arguments: what it would run with: a copy.
      arguments_hash: SHA-256 of their canonical JSON, in hex.
      turn, step: where in the conversation it stands.
    """

    call: v.ToolCall
    tool: Tool
    arguments: Mapping[str, Any]
    arguments_hash: str
    turn: int
    step: int


#: Decides on calls that need consent. Each is asked about in a task of its own, several at
#: once, while other calls run. When it raises, the call is denied and the turn goes on. A
#: cancel must be let through.
Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[approval.Decision]]


# --- the journal ----------------------------------------------------------------


class CommitTicket(Protocol):
    """Stands for the commit of one append.

    The tickets of a session finish in the order of their appends. When one
    fails, every later one that is not done fails with it: what is stored is
    always a prefix of what was appended, and what failed may be appended anew.

    ``done`` and ``error`` change in the thread of the loop alone: between two steps of its
    tasks, or while somebody looks or appends. A store that works in another thread hands
    its outcomes over (`trio.lowlevel.TrioToken.run_sync_soon`). Otherwise a failure could
    come between a look at the tickets and the append that follows: the newer records would
    be stored in the place of those that failed, which come behind them then. So an append
    that is made after the store failed and before the ticket says so is a later one, and fails
    with it.
    """

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, or failed with ``error``."""
        ...

    @property
    def error(self) -> Exception | None:
        """Why the commit failed; None while open or when durable."""
        ...

    async def wait(self) -> None:
        """Wait until ``done``; does not raise ``error``. A checkpoint.

        May be cancelled and called again; a cancel changes nothing about the commit.
        """
        ...


class JournalSession(Protocol):
    """One session, open for writing. It has one writer at a time."""

    @property
    def records(self) -> Sequence[records_.Record]:
        """What is stored: durable records, in order."""
        ...

    def append(self, records: Sequence[records_.Record]) -> CommitTicket:
        """Take ``records`` as one commit: all of them become durable, or none. No checkpoint.

        They are numbered by their place in the session; ``records`` is not used
        after the call. What it raises counts as a commit that failed: it is
        reported, and the records come again in front of the next append.

        Raises:
          JournalError: the session was closed.
        """
        ...

    async def aclose(self) -> None:
        """Give the session up after what was appended is settled; the caller bounds the wait.

        When cancelled, the session is free all the same: mark it closed first,
        then wait. What is open may still land.
        """
        ...


class Journal(Protocol):
    """Keeps sessions."""

    async def open(self, session_id: str) -> JournalSession:
        """Open a session for writing, making it when it is new.

        Raises:
          JournalError: the session is open for writing already (one writer at a
            time is the journal's to see to), or cannot be read.
        """
        ...


# --- after a crash --------------------------------------------------------------


@attrs.frozen(kw_only=True)
class UnknownCall:
    """A call that had started when its process ended: whether it took effect is not known.

    Attributes:
      call: as the history holds it.
      tool: what its name means now; None when it means nothing.
      attempt: how many times it was started so far.
      idempotency_key: what its tool was given each time, and would be given again.
      obstacle: why it cannot run again, whoever asks for it; None when it can.
      default: what becomes of it without a policy: ``"rerun"`` for an idempotent
        tool, as long as there is no obstacle, else ``"unknown"``.
    """

    call: v.ToolCall
    tool: Tool | None
    attempt: int
    idempotency_key: str
    obstacle: str | None
    default: Literal["rerun", "unknown"]


#: What a policy says of a call: ``"rerun"`` runs it again with the same key, as its next
#: attempt; ``"unknown"`` answers it ``unknown_after_crash``; a result is what the caller
#: found out, and becomes the answer.
UnknownVerdict: TypeAlias = Literal["rerun", "unknown"] | v.ToolResult

#: Asked by ``resume(unknown=...)`` about each such call, before anything is changed: when it
#: raises or is cancelled, the turn can be resumed once more.
UnknownPolicy: TypeAlias = Callable[[UnknownCall], Awaitable[UnknownVerdict]]


# --- observers ------------------------------------------------------------------


class Observer(Protocol):
    """Is told what happens, in the order it happens; may only look."""

    def on_event(self, event: events.Event) -> None:
        """Take one event. Must not block. An exception is logged and counted, never raised."""
        ...
