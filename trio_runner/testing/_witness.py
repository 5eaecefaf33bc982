"""`Witness`: stands around an agent's model, tools, journal, hooks and observers, and notes facts.

What may live here: wrappers that change nothing, keep a `Ledger`, and let
calls pass the seams of a sweep. What the facts mean is ``contract.py``.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, cast

import attrs
import trio

import trio_runner._core.errors as errors
import trio_runner._core.events as events
import trio_runner._core.records as records_
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
import trio_runner.abc as abc
from trio_runner._core.validity import history_problems
from trio_runner._shell.hooks import ToolRunnerHooks, merge_hooks
from trio_runner._shell.loop_agent import Planned
from trio_runner._shell.runner import ToolRunner
from trio_runner.testing._faults import SweepError
from trio_runner.testing._scripted import request_problems
from trio_runner.testing._seams import Seam, hang
from trio_runner.testing.contract import Ledger

T = TypeVar("T")
#: An agent's own way to run a planned call.
CallTool: TypeAlias = Callable[[Planned, abc.ToolContext], Awaitable[v.ToolResult]]

_LOG: Final = logging.getLogger("trio_runner")
_FORMATTER: Final = logging.Formatter()
#: Records of finished work.
_WORK: Final = (records_.ModelFinished, records_.ToolFinished)
#: The seams whose errors must be told somewhere; a tool's error is its result.
_TOLD_SEAMS: Final = ("journal", "commit", "model", "hook", "observer")


def check_log() -> None:
    """Make sure that what the library logs can be heard: `Witness.listen` depends on it.

    Raises:
      SweepError: the log is switched off.
    """
    if _LOG.isEnabledFor(logging.WARNING):
        return
    if _LOG.disabled:
        why = "its `disabled` is set (logging.config does that, and pytest's --log-disable)"
    elif _LOG.manager.disable >= logging.WARNING:
        why = f"logging.disable({_LOG.manager.disable}) was called"
    else:
        why = f"its level is {logging.getLevelName(_LOG.getEffectiveLevel())}"
    raise SweepError(
        f"the log 'trio_runner' is switched off: {why}. An error that the library can only log "
        "would look lost (C7); switch it on, and let handlers keep it quiet"
    )


class Witness:
    """Notes what really happens in one turn.

    Wrap what an agent is made of, run a turn, and give the ledger to
    `trio_runner.testing.contract.check_contract`. A witness serves one run;
    `seams` are those of a sweep's case.
    """

    def __init__(self) -> None:
        self.ledger: Ledger = Ledger()
        names = ("journal", "commit", "model", "hook", "observer", "tool")
        self._seams = {name: Seam() for name in names}
        self._tickets: list[abc.CommitTicket] = []
        #: Those that hold more than the opening of the session.
        self._of_turn: list[abc.CommitTicket] = []
        #: Those that hold a reply or a tool's result.
        self._work: list[abc.CommitTicket] = []
        #: The timeout of a tool that was called and has one of its own, in seconds.
        self.tool_timeout: float | None = None
        self._listener = _Listener(self.ledger.told)

    @property
    def seams(self) -> Mapping[str, Seam]:
        """For `Case.seams`."""
        return MappingProxyType(self._seams)

    @property
    def journal_failed(self) -> bool:
        """Whether the journal was made to fail by a planned fault."""
        return self._seams["journal"].failed or self._seams["commit"].failed

    # --- what is wrapped --------------------------------------------------------

    def model(self, model: abc.Model) -> abc.Model:
        """A model that notes what it is asked, and when."""
        return _Model(self, model)

    def tool(self, tool: abc.Tool) -> abc.Tool:
        """A tool that notes that it was entered, what it returned, and that it was left."""
        return attrs.evolve(tool, call=functools.partial(self._call, tool))

    def journal(self, journal: abc.Journal) -> abc.Journal:
        """A journal whose commits are known to the ledger."""
        return _Journal(self, journal)

    def hooks(self, hooks: ToolRunnerHooks | None = None) -> ToolRunnerHooks:
        """Hooks at all five points, in front of the given ones; each call passes the seam."""
        first = ToolRunnerHooks(
            before_llm_call=self._hook,
            after_llm_call=self._hook,
            before_tool_call=self._hook,
            after_tool_call=self._hook,
            after_turn_complete=self._hook,
        )
        return merge_hooks(first, hooks)

    def observer(self) -> abc.Observer:
        """An observer that notes the errors that observers are told of."""
        return _Observer(self)

    # --- noted by the driver of the turn ----------------------------------------

    def listen(self) -> None:
        """Note the errors that the library logs, until `stop`."""
        _LOG.addFilter(self._listener)

    def stop(self) -> None:
        """Note no more, and take stock: what was planted, and which commits failed."""
        _LOG.removeFilter(self._listener)
        self.ledger.planted = [error for name in _TOLD_SEAMS for error in self._seams[name].raised]
        self.ledger.failed_commits = sum(ticket.error is not None for ticket in self._tickets)

    def left(self) -> None:
        """The turn has been left: note how many commits are open."""
        self.ledger.open_at_leaving = self.open_commits()

    def all_left(self) -> None:
        """The agent has been left: note when, and listen no more."""
        _LOG.removeFilter(self._listener)
        self.ledger.left_at = trio.current_time()

    def hand_out(self, message: v.Message) -> None:
        """The library gave a message away: note it, and what is not durable by then."""
        self._depends("a message was handed out")
        self.ledger.hand_out(message)

    def open_commits(self) -> int:
        """How many commits of the turn have no outcome yet."""
        return sum(not ticket.done for ticket in self._of_turn)

    def _depends(self, what: str) -> None:
        count = sum(not ticket.done for ticket in self._work)
        if count and not self.journal_failed:
            self.ledger.ahead.append(f"{what} while {count} commits of finished work were open")

    # --- used by the wrappers ---------------------------------------------------

    async def ask(self, model: abc.Model, request: abc.ModelRequest, emit: abc.DeltaSink) -> Any:
        """One model call."""
        self.ledger.begins("a model call")
        self._depends("a model call began")
        problems = request_problems(tuple(request.history), tuple(request.delta))
        self.ledger.bad_histories += [f"a request: {problem}" for problem in problems]
        try:
            await self._seams["model"].call()
            return await model.reply(request, emit)
        except Exception:
            self.ledger.stops()
            raise

    async def _hook(self, runner: ToolRunner, _subject: object) -> None:
        for name, messages in (
            ("runner.history", runner.history),
            ("runner.turn_messages", runner.turn_messages),
        ):
            problems = history_problems(messages)
            self.ledger.bad_histories += [f"{name} in a hook: {problem}" for problem in problems]
        try:
            await self._seams["hook"].call()
        except Exception:
            self.ledger.stops()
            raise

    async def _call(
        self, tool: abc.Tool, arguments: v.JSONObject, context: abc.ToolContext
    ) -> object:
        return await self._watched(
            tool, context, lambda seen: tool.call(arguments, seen), context.call_id
        )

    async def call_tool(
        self, call_tool: CallTool, planned: Planned, context: abc.ToolContext
    ) -> v.ToolResult:
        """One call of an agent, with all that its ``call_tool`` does."""
        tool = planned.tool
        assert tool is not None
        return await self._watched(
            tool, context, lambda seen: call_tool(planned, seen), context.call_id
        )

    async def _watched(
        self,
        tool: abc.Tool,
        context: abc.ToolContext,
        fn: Callable[[abc.ToolContext], Awaitable[T]],
        call_id: str,
    ) -> T:
        ledger = self.ledger
        if tool.timeout is not None:
            self.tool_timeout = tool.timeout
        if not tool.threaded:
            self.entered(call_id)
        else:
            entered = functools.partial(self.entered, call_id)
            context = cast("abc.ToolContext", _ThreadedContext(context, entered))
        try:
            if not tool.threaded:  # what runs in a thread awaits no foreign loop
                await self._seams["tool"].call()
            value = await fn(context)
        except BaseException as error:
            self._raised(call_id, error)
            raise
        else:
            ledger.returned[call_id] = value
            return value
        finally:
            ledger.leaves(call_id)

    def _raised(self, call_id: str, error: BaseException) -> None:
        leaves = list(leaving.leaves(error))
        if any(isinstance(leaf, leaving.EXITS) for leaf in leaves):
            return
        cancelled = any(isinstance(leaf, trio.Cancelled) for leaf in leaves)
        if cancelled and trio.current_effective_deadline() == -math.inf:
            return  # the caller's cancel, or that of the call's own scope
        self.ledger.raised[call_id] = error
        if any(isinstance(leaf, errors.FatalToolError) for leaf in leaves):
            self.ledger.stops()

    def entered(self, call_id: str) -> None:
        """A tool begins."""
        self.ledger.begins(f"tool call {call_id}")
        self.ledger.entered.add(call_id)

    # --- used by the wrappers of the journal ------------------------------------

    def follow(
        self, ticket: abc.CommitTicket, records: Sequence[records_.Record]
    ) -> abc.CommitTicket:
        """Keep an eye on a commit."""
        self._tickets.append(ticket)
        if any(type(record) is not records_.SessionOpened for record in records):
            self._of_turn.append(ticket)
        if any(type(record) in _WORK for record in records):
            self._work.append(ticket)
        return ticket


class _Model:
    def __init__(self, witness: Witness, model: abc.Model) -> None:
        self._witness = witness
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)  # what else a model may say of itself

    async def reply(self, request: abc.ModelRequest, emit: abc.DeltaSink) -> v.Message:
        return await self._witness.ask(self._model, request, emit)


class _ThreadedContext:
    """The context of a call that begins in a worker thread: notes when it does."""

    def __init__(self, context: abc.ToolContext, entered: Callable[[], None]) -> None:
        self._context = context
        self._entered = entered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def claim_start(self) -> bool:
        claimed = self._context.claim_start()
        if claimed:
            self._entered()
        return claimed


class _Observer:
    def __init__(self, witness: Witness) -> None:
        self._told = witness.ledger.told
        self._seam = witness.seams["observer"]

    def on_event(self, event: events.Event) -> None:
        match event:
            case events.ErrorSuppressed() | events.CommitFailed():
                self._told.append(event.error)
            case _:
                pass
        self._seam.call_nowait()


class _Listener(logging.Filter):
    """Notes the exceptions that log records carry, and leaves the records only their text.

    Handlers may keep records, pytest's do; with an exception, or with what the
    message is made of, each would keep the whole run.
    """

    def __init__(self, told: list[BaseException]) -> None:
        super().__init__()
        self._told = told

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._told.append(record.exc_info[1])
            record.exc_text = _FORMATTER.formatException(record.exc_info)
            record.exc_info = None
        arguments = record.args if isinstance(record.args, tuple) else ()
        self._told += [each for each in arguments if isinstance(each, BaseException)]
        record.msg, record.args = record.getMessage(), None
        return True


class _Journal:
    def __init__(self, witness: Witness, journal: abc.Journal) -> None:
        self._witness = witness
        self._journal = journal

    async def open(self, session_id: str) -> abc.JournalSession:
        await self._witness.seams["journal"].call()
        return _Session(self._witness, await self._journal.open(session_id))


class _Session:
    def __init__(self, witness: Witness, session: abc.JournalSession) -> None:
        self._witness = witness
        self._session = session
        #: The commit that is the last to have an outcome.
        self._last: abc.CommitTicket | None = None
        #: The newest commit that fails; until it has failed, all behind it fail with it.
        self._failing: _Ticket | None = None
        self._hangs = False
        witness.ledger.open_sessions += 1
        witness.ledger.opened_sessions += 1

    @property
    def records(self) -> Sequence[records_.Record]:
        return self._session.records

    def append(self, records: Sequence[records_.Record]) -> abc.CommitTicket:
        ticket = self._append(records)
        self._last = ticket
        return self._witness.follow(ticket, records)

    def _append(self, records: Sequence[records_.Record]) -> abc.CommitTicket:
        seams = self._witness.seams
        # What comes behind a commit that never ends never ends either.
        self._hangs = self._hangs or not seams["journal"].call_nowait()
        if self._hangs:
            return _Ticket(None, self._last)
        if self._failing is not None and not self._failing.done:
            return _Ticket(self._failing.outcome, self._failing)
        try:
            seams["commit"].call_nowait()
        except Exception as error:  # noqa: BLE001  it is the outcome of the ticket
            self._failing = _Ticket(error, self._last)
            return self._failing
        return self._session.append(records)

    async def aclose(self) -> None:
        self._witness.ledger.open_sessions -= 1
        # A close that fails or hangs does not get as far as the session.
        await self._witness.seams["journal"].call()
        await self._session.aclose()


@attrs.frozen
class _Ticket:
    """A commit that fails, when those before it are done, or that never ends."""

    outcome: Exception | None
    before: abc.CommitTicket | None

    @property
    def done(self) -> bool:
        return self.outcome is not None and (self.before is None or self.before.done)

    @property
    def error(self) -> Exception | None:
        return self.outcome if self.done else None

    async def wait(self) -> None:
        if self.before is not None:
            await self.before.wait()
        if self.outcome is None:
            await hang()
        await trio.lowlevel.checkpoint()
