"""`agent_tool`: an agent as a tool of another one, or of itself.

Each call runs one turn on a *clone* of the agent: its model, tools, hooks,
params and templates, and a history of its own. The turn is an ordinary turn,
so all of the contract holds for it; what is here joins it to the turn around it:

* A cancel reaches it like any tool, and its own session says so.
* Its events come to the observers of the turn around it as `NestedEvent`.
* How it ended, what it used and where it is kept is in the ``meta`` of the
  call's result, also when the call was cut. So sums are read off the results,
  and no turn is counted twice.
* It is kept in the journal of the turn around it, as a session whose id follows
  from the call's idempotency key. After a crash the same call finds the same
  session, and goes on with the turn that it holds.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeGuard, Unpack, cast

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.nested as nested
import trio_runner._core.records as r
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
from trio_runner._core.convert import describe_error
from trio_runner._core.errors import InvalidArgumentsError, JournalError, TurnSuspendedError
from trio_runner._core.validity import has_content
from trio_runner._shell.context import CallContext, CutTurn, running_call
from trio_runner._shell.ki import call_sync_unprotected
from trio_runner._shell.last_turn import LastTurn
from trio_runner._shell.tools import as_tool
from trio_runner.abc import Journal, JournalSession, Limiter, NeedsApproval, Tool, ToolContext

if TYPE_CHECKING:
    from trio_runner._shell.agent import ToolAgent

_log: Final = logging.getLogger("trio_runner")

#: Makes the input of a child's turn from the arguments of its call.
PromptMaker = Callable[[v.JSONObject], str | v.Message]

_MESSAGE_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "description": "What to ask, with all that is needed to answer it.",
        }
    },
    "required": ["message"],
}
_ANSWERED: Final = (v.EndReason.ANSWERED, v.EndReason.PASSED_THROUGH)


@attrs.frozen
class AgentTool(Tool):
    """A tool that asks an agent; made by `agent_tool`.

    Attributes:
      child: the agent whose clones answer.
    """

    child: ToolAgent = attrs.field(kw_only=True)

    def offering_response_mode(self) -> AgentTool:
        """The same tool, with the argument that chooses what becomes of the answer."""
        return attrs.evolve(self, input_schema=nested.offering_response_mode(self.input_schema))


class _CallOptions(TypedDict, total=False):
    """What may be said of any tool."""

    title: str | None
    timeout: float | None
    sequential: bool
    limiter: Limiter | None
    needs_approval: NeedsApproval


class AgentToolOptions(_CallOptions, total=False):
    """The options of `agent_tool`.

    Attributes:
      input_schema: JSON Schema of the arguments (default: one argument, ``message``).
      prompt: makes the child's input of the arguments (default: ``message``, or
        with an ``input_schema`` all arguments as JSON).
      max_depth: how deep turns may be nested for this tool to run (default 8); 1: only in a
        turn that is in no tool itself. A deeper call is answered with an error.
      title: for people.
      timeout: seconds for each call, from when it really starts.
      sequential: a barrier in its batch: runs alone.
      limiter: shared by every tool that has it; a call lends its slot to the calls below it.
      needs_approval: whether its calls need consent; see `trio_runner.abc.NeedsApproval`.
      meta: yours; kept with the tool.
    """

    input_schema: Mapping[str, Any] | None
    prompt: PromptMaker | None
    max_depth: int
    meta: Mapping[str, Any] | None


def agent_tool(
    child: ToolAgent,
    name: str | None = None,
    description: str | None = None,
    *,
    input_schema: Mapping[str, Any] | None = None,
    prompt: PromptMaker | None = None,
    max_depth: int = 8,
    meta: Mapping[str, Any] | None = None,
    **options: Unpack[_CallOptions],
) -> Tool:
    """Make a tool that asks an agent. `ToolAgent.add_agent_tool` adds one.

    Each call runs a turn on a clone of ``child`` (`ToolAgent.clone`), so calls may run side by
    side, and while ``child`` is busy itself. Its answer is the result; any other end of its
    turn is an error result that names the end reason. The result's
    ``meta["agent_turn"]`` says which agent and session it was, how it ended and what it used.

    Args:
      child: the agent; it may be the one that gets the tool.
      name: what the model calls it (default: ``agent__NAME``).
      description: for the model.
      input_schema, prompt, max_depth, meta, options: see `AgentToolOptions`.

    Raises:
      TypeError, ValueError: a setting that cannot work, at once.
    """
    if not is_agent(child):
        raise TypeError(f"child is {child!r}; expected a ToolAgent")
    if type(max_depth) is not int or max_depth < 1:
        raise ValueError(f"max_depth is {max_depth!r}; expected a whole number, 1 or more")
    if prompt is not None and not callable(prompt):
        raise TypeError(f"prompt is {prompt!r}; expected a function of the arguments")
    schema = _MESSAGE_SCHEMA if input_schema is None else input_schema
    maker = prompt or (_message_of if input_schema is None else _json_of)
    if description is None:
        description = f"Ask the agent {child.name!r}. It does not see this conversation."
    own_mode = nested.RESPONSE_MODE in (schema.get("properties") or {})
    return AgentTool(
        nested.agent_tool_name(child.name) if name is None else name,
        description,
        schema,
        _Asker(child, maker, max_depth, own_mode),
        idempotent=True,
        meta=dict(meta or {}),
        child=child,
        **options,
    )


def is_agent(each: object) -> TypeGuard[ToolAgent]:
    """Whether it is an agent that can be a tool."""
    return hasattr(each, "conversation") and callable(getattr(each, "clone", None))


def as_any_tool(each: object) -> Tool:
    """A tool of whatever may be one: also of an agent.

    Raises:
      TypeError: it is none.
    """
    return agent_tool(each) if is_agent(each) else as_tool(each)


def _message_of(arguments: v.JSONObject) -> str:
    message = arguments.get("message")
    if type(message) is not str or not message.strip():
        raise InvalidArgumentsError(f"message is {message!r}; expected the text to ask")
    return message


def _json_of(arguments: v.JSONObject) -> str:
    return json.dumps(arguments, ensure_ascii=False)


@attrs.frozen(eq=False)
class _Asker:
    """Runs the calls of one `AgentTool`. Strictly private.

    Attributes:
      fn: makes the child's input of the arguments.
      has_own_mode: the argument ``response_mode`` is the child's own.
    """

    child: ToolAgent
    fn: PromptMaker
    max_depth: int
    has_own_mode: bool

    @trio.lowlevel.enable_ki_protection
    async def __call__(self, arguments: v.JSONObject, context: ToolContext) -> v.ToolResult:
        """Run one call. Checkpoint: always; if cancelled, the child's turn is interrupted."""
        around = running_call()
        depth = 1 if around is None else around.turn.depth + 1
        mode = None if self.has_own_mode else _take_mode(arguments)
        call = _NestedCall(self.child, around, context, mode, self._input(arguments, context))
        if depth > self.max_depth:
            await trio.lowlevel.checkpoint()
            return call.refused(
                f"it would run {depth} turns deep, and {self.max_depth} are allowed (max_depth)"
            )
        return await call.run()

    def _input(self, arguments: v.JSONObject, context: ToolContext) -> v.Message:
        """The child's input; it says which call asks, so that a call that runs again knows it."""
        asked_by = {
            "key": context.idempotency_key,
            "arguments_hash": r.arguments_hash(cast("v.JSONObject", context.arguments)),
        }
        said = call_sync_unprotected(self.fn, arguments)
        message = v.Message.user(said) if isinstance(said, str) else said
        if not has_content(message.content):
            raise InvalidArgumentsError("there is nothing to ask in the arguments")
        return attrs.evolve(message, meta={**message.meta, nested.ASKED_BY: asked_by})


def _take_mode(arguments: v.JSONObject) -> str | None:
    mode = arguments.pop(nested.RESPONSE_MODE, None)
    match mode:
        case None | nested.POSTPROCESS | nested.PASSTHROUGH:
            return mode
        case _:
            raise InvalidArgumentsError(
                f"{nested.RESPONSE_MODE} is {mode!r}; expected {nested.POSTPROCESS!r} or "
                f"{nested.PASSTHROUGH!r}"
            )


class _NestedCall:
    """One call: a turn on a clone of the child, and the result that comes of it.

    Args:
      around: the running call; None when the tool was called by hand, outside of a turn.
      prompt: the input of its turn; it says which call asks.
    """

    def __init__(
        self,
        child: ToolAgent,
        around: CallContext | None,
        context: ToolContext,
        mode: str | None,
        prompt: v.Message,
    ) -> None:
        self._around: Final = around
        self._prompt: Final = prompt
        self._attempt: Final = context.attempt
        self._mode: Final = mode
        journal = None
        if around is not None:
            # As durable as the record that this call has started.
            journal = around.turn.journal
            if journal is None:
                journal = child.config.journal
        if journal is None:
            self._session: str | None = None
        else:
            self._session = nested.nested_session_id(context.idempotency_key)
            journal = _InTime.of(journal, child.config.commit_timeout)
        self._clone: Final = child.clone(
            journal=journal,
            session=self._session,
            grace=None if around is None else min(around.turn.grace, child.config.grace),
        )
        #: How many turns the session had that are none of this call's, and what their summaries
        #: took; None until a turn is begun: then only one that a crash cut is this call's.
        self._others: tuple[int, v.Usage] | None = None

    async def run(self) -> v.ToolResult:
        """Ask the clone, inside its block. Errors of the child are results."""
        result: v.ToolResult | None = None
        try:
            async with self._clone:
                result = await self._ask()
        except Exception as error:  # noqa: BLE001  the tool border: whatever the child ends with
            if result is None:
                # The model reads what it was; where it came from is for whoever runs this.
                _log.warning("agent %r failed as a tool", self._clone.name, exc_info=error)
                return self._failed(error)
            # It has answered; what its close raises must not take that away.
            if self._around is not None:
                self._around.suppressed(error)
        except BaseException as error:
            self._leave_note()
            result = self._answer()
            cut_alone = all(leaving.is_cancellation(leaf) for leaf in leaving.leaves(error))
            if result is None or self._around is None or not cut_alone:
                raise
            # It had answered before it was cut, and what finished is kept; the cancel is
            # still there, and the turn around meets it at its next checkpoint.
        assert result is not None
        return result

    def refused(self, why: str) -> v.ToolResult:
        """The answer to a call for which no turn is run."""
        return self._result(f"{self._not_asked('was not asked')}: {why}.", is_error=True)

    async def _ask(self) -> v.ToolResult:
        clone, around = self._clone, self._around
        observers = ()
        if around is not None and around.is_heard:
            observers = (_Relay(around, clone.name),)
        if self._has_begun:
            # The call runs again after a crash, and its turn is there: go on with it.
            if clone.can_resume:
                try:
                    await clone.resume(observers=observers)
                except TurnSuspendedError:
                    pass  # it waits as it did: it has ended, and not with an answer
        else:
            if clone.conversation.turns:
                # Whatever had this id before, this call begins anew.
                clone.deny_pending("the conversation was begun anew")
                clone.clear()
            self._others = clone.conversation.turns, clone.usage.summaries
            await clone.generate(self._prompt, observers=observers)
        answer = self._answer()
        return self._failed(None) if answer is None else answer

    @property
    def _has_begun(self) -> bool:
        """Whether the newest turn of the session is the one that this call began."""
        if self._others is None:
            return self._attempt > 1 and _asks(self._clone, self._prompt)
        return self._clone.conversation.turns > self._others[0]

    @property
    def _last_turn(self) -> LastTurn | None:
        """How the turn that this call began has ended; None: it did not begin, or not end."""
        return self._clone.last_turn if self._has_begun else None

    def _not_asked(self, what: str) -> str:
        said = f"Agent {self._clone.name!r} {what}"
        if self._attempt > 1:
            return f"{said} again, and it is not known what came of it before the process ended"
        return said

    def _answer(self) -> v.ToolResult | None:
        """The result of a turn that has answered; None of any other."""
        last = self._last_turn
        if last is None or last.end_reason not in _ANSWERED:
            return None
        message = _last_reply(last.messages)
        return None if message is None else self._result(message.content, is_error=False)

    def _failed(self, error: Exception | None) -> v.ToolResult:
        """What became of a turn without an answer, or that raised behind it."""
        last, name = self._last_turn, self._clone.name
        if last is None:
            what = self._not_asked("could not be asked")
        elif last.end_reason in _ANSWERED:
            what = f"Agent {name!r} has answered, and what follows its answer failed"
        else:
            what = f"Agent {name!r} gave no answer: its turn ended {last.end_reason.value}"
        if error is not None:
            what = f"{what}. {describe_error(error)}"
        message = None if last is None else _last_reply(last.messages)
        if message is not None and message.text.strip():
            what = f"{what}\nThe last that it said: {message.text}"
        return self._result(what, is_error=True)

    def _result(self, content: str | tuple[v.ContentBlock, ...], *, is_error: bool) -> v.ToolResult:
        status = v.CallStatus.ERROR if is_error else v.CallStatus.OK
        return v.ToolResult(content=content, status=status, meta=self._meta())

    def _meta(self) -> dict[str, Any]:
        last, usage = self._last_turn, v.Usage()
        if last is not None:
            usage = last.total_usage + self._summaries()
        end_reason = None if last is None else last.end_reason
        return nested.AgentTurn(
            agent=self._clone.name,
            session=self._session,
            end_reason=end_reason,
            usage=usage,
            response_mode=self._mode,
        ).as_meta()

    def _summaries(self) -> v.Usage:
        """What the summaries took that were written in the turn."""
        usage = self._clone.usage.summaries
        if self._others is None:
            return usage
        pairs = zip(attrs.astuple(usage), attrs.astuple(self._others[1]), strict=True)
        return v.Usage(*[now - before for now, before in pairs])

    def _leave_note(self) -> None:
        """The call is cut: its answer, which is made elsewhere, says what this turn was."""
        conversation = self._clone.conversation
        if self._around is not None and self._has_begun:
            began = conversation.grace_deadline - self._clone.config.grace
            spent = trio.current_time() - began if began > -math.inf else 0.0
            self._around.cut = CutTurn(self._meta(), spent)


class _InTime:
    """A journal whose sessions are opened within ``timeout`` seconds, or not at all.

    Whoever enters an agent sees that its store hangs; nobody sees it of one that is a tool.
    """

    def __init__(self, journal: Journal, timeout: float) -> None:
        self._journal: Final = journal
        self._timeout: Final = timeout

    @classmethod
    def of(cls, journal: Journal, timeout: float) -> _InTime:
        """The same for ``journal``, which may be such a one already."""
        match journal:
            case _InTime():
                return cls(journal._journal, timeout)
            case _:
                return cls(journal, timeout)

    async def open(self, session_id: str) -> JournalSession:
        with trio.move_on_after(self._timeout):
            return await self._journal.open(session_id)
        raise JournalError(
            f"session {session_id!r} was not open after {self._timeout:g} s (commit_timeout); "
            "its store hangs. Nothing was run"
        )


class _Relay:
    """Passes what happens in the child's turn on to the observers of the turn around it."""

    def __init__(self, around: CallContext, agent: str) -> None:
        self._around = around
        self._agent = agent

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.NestedEvent():
                self._around.tell_nested(event.agent, event.depth + 1, event.event)
            case _:
                self._around.tell_nested(self._agent, 1, event)


def _asks(clone: ToolAgent, prompt: v.Message) -> bool:
    """Whether the newest turn of the clone's session is the one that this very call began."""
    newest = clone.conversation.newest
    if newest is None or not newest.messages:
        return False
    asked_by = newest.messages[0].meta.get(nested.ASKED_BY)
    return asked_by is not None and asked_by == prompt.meta[nested.ASKED_BY]


def _last_reply(messages: tuple[v.Message, ...]) -> v.Message | None:
    return next((message for message in reversed(messages) if message.role == "assistant"), None)
