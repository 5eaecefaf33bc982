"""`SessionPlay`: plays plans on a real agent, and keeps the ledger of it.

What may live here: the model, the tools, the observer and the caller of a
planned session. What they do is in the plans; what is wrong is the ledger's to say.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, assert_never

import attrs
import trio

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.testing.strategies as plans
from trio_runner._core.compaction import is_summary
from trio_runner.testing._outcome import Case, Outcome, holds
from trio_runner.testing._session_ledger import (
    CallTruth,
    SessionLedger,
    marks_of,
    number_of,
    valid,
)
from trio_runner.testing._session_model import PlayedModel, PlayedSummarizer

SESSION: Final = "session"
#: Seconds after which a visit is cancelled: some tools end in no other way.
_LONG: Final = 50.0

#: What may leave a turn, beside cancels and Ctrl-C: what was planned, and what it leads to.
_EXPECTED: Final = (
    tr.TrioRunnerError,
    trio.TooSlowError,
    ConnectionError,
    LookupError,
    tr.FatalToolError,
    RuntimeError,  # stands for a StopAsyncIteration
)


class SessionPlay:
    """One session on one journal, and the agents that open it one after the other.

    Args:
      journal: where the session is.
      healthy: whether the journal keeps everything it is given.
      compaction: when the agents compact the session by themselves.
    """

    def __init__(
        self,
        journal: tr.Journal,
        *,
        healthy: bool = True,
        durability: tr.Durability = "best_effort",
        grace: float = 5.0,
        compaction: tr.Compaction | None = None,
    ) -> None:
        self.ledger: SessionLedger = SessionLedger()
        self.ledger.healthy = healthy
        self.journal = journal
        self._durability: tr.Durability = durability
        self._grace = grace
        self._compaction = compaction
        self._model = PlayedModel(self.ledger)
        self._notes = PlayedSummarizer(self.ledger)
        limiter = trio.CapacityLimiter(1)
        self._tools = [
            self._tool("work"),
            self._tool("alone", sequential=True),
            self._tool("bounded", timeout=0.5),
            self._tool("limited", limiter=limiter),
            tr.tool(self._plain, name="plain"),
        ]
        #: The mark of the input of the turn that is about to begin.
        self._input = ""
        self._aside = False
        #: What was wrong when an operation had ended.
        self._problems: list[str] = []
        #: Commits that failed because the power was cut.
        self._lost_to_crashes = 0
        self.agent: tr.ToolAgent
        self.new_agent()

    def new_agent(self) -> None:
        """Forget the agent, as a process does that ends; a new one opens the same session."""
        #: Whether the agent has opened the session yet.
        self._opened = False
        self.agent = tr.ToolAgent(
            "session",
            model=self._model,
            tools=self._tools,
            journal=self.journal,
            session=SESSION,
            observers=[self],
            grace=self._grace,
            durability=self._durability,
            compaction=self._compaction,
            summarizer=self._notes,
        )

    # --- the tools and the observer -----------------------------------------------

    def _tool(self, name: str, **options: Any) -> tr.Tool:
        async def act(arguments: tr.JSONObject, context: tr.ToolContext) -> object:
            number = arguments.get("number")
            if type(number) is not int or number not in self.ledger.calls:
                return "not planned"
            truth = self.ledger.entered(number, context.idempotency_key)
            try:
                value = await _behaviour(truth).act(context)
            except Exception as error:
                # A group that holds a cancel is no error of its own.
                truth.raised = not holds(error, (trio.Cancelled,))
                raise
            else:
                truth.value, truth.returned = value, True
                return value
            finally:
                truth.left = True

        return tr.Tool(name, "", {"type": "object"}, act, **options)

    def _plain(self, number: int) -> Any:
        """A sync function."""
        if number not in self.ledger.calls:
            return "not planned"
        truth = self.ledger.entered(number, tr.current_tool_context().idempotency_key)
        truth.left = True
        try:
            value = _at_once(_behaviour(truth))
        except Exception:
            truth.raised = True
            raise
        truth.value, truth.returned = value, True
        return value

    def on_event(self, event: ev.Event) -> None:
        """What an observer sees is valid at every event."""
        ledger = self.ledger
        ledger.problems += valid("the history an observer sees", self.agent.history)
        match event:
            case ev.TurnStarted(resumed=False):
                ledger.turn_begins(self._input, aside=self._aside)
            case ev.Compacted(summary=summary) if not ledger.dead:
                place = self.agent.history.index(summary)
                kept = self.agent.history[place + 1 :]
                ledger.history_was_compacted(self._notes.gone, kept, summary.text)
            case _:
                pass

    # --- a visit --------------------------------------------------------------------

    def visit(self, steps: Sequence[plans.SessionStep]) -> Case:
        """Open the agent, do ``steps``, and leave it: a case for `replay`."""
        self._problems = []
        return Case(
            functools.partial(self._visit, steps),
            functools.partial(self._check, steps),
            leaves_within=self._grace + 2 * LONGEST_CLEANUP,
        )

    async def _visit(self, steps: Sequence[plans.SessionStep]) -> None:
        self.ledger.dead = False
        with trio.move_on_after(_LONG):
            self.ledger.session_was_reopened()
            async with self.agent:
                self._opened = True
                self._compare("as it opens")
                for step in steps:
                    await self._do(step)
                    self._compare(f"after {type(step).__name__}")
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _do(self, step: plans.SessionStep) -> None:
        agent, ledger = self.agent, self.ledger
        match step:
            case plans.TurnPlan():
                await self._expecting(functools.partial(self._turn, step))
            case plans.ResumePlan():
                last = agent.last_turn
                if ledger.aside and last is not None:
                    # An answered turn without history is not what is gone on with.
                    ledger.aside = last.end_reason is not tr.EndReason.ANSWERED
                ledger.turn_items = None
                self._model.replies = iter(step.replies)
                await self._expecting(agent.resume)
            case plans.LoadPlan():
                self._load(step.messages)
            case plans.CutPlan():
                history = agent.history
                first = step.first % (len(history) + 1)
                last = len(history) if step.size is None else first + step.size
                self._load(history[first:last])
            case plans.CompactPlan():
                self._compact(step)
            case plans.TrimPlan():
                self._trim(step)
            case plans.ClearPlan():
                ledger.history_was_replaced()
                ledger.turn_items = None
                agent.clear()
            case _:
                assert_never(step)

    async def _expecting(self, async_fn: Callable[[], Awaitable[object]]) -> None:
        """Take note of an error that nobody planned."""
        try:
            await async_fn()
        except Exception as error:  # noqa: BLE001  it is judged here, not swallowed
            leaves = [link for link in _leaves(error) if not isinstance(link, _EXPECTED)]
            if leaves or isinstance(error, tr.InternalError | tr.BusyError):
                self._problems.append(f"C7: an error of nobody left: {error!r}")

    def _load(self, messages: tuple[tr.Message, ...]) -> None:
        self.ledger.history_was_replaced(messages)
        self.ledger.turn_items = None
        self.agent.load_history(messages)
        given = (
            *[message for message in messages if message.template],
            *[message for message in messages if not message.template],
        )
        if not list(valid("", given)) and self.agent.history != given:
            self._problems.append(f"C2: {given} was loaded, and is now {self.agent.history}")

    def _compact(self, plan: plans.CompactPlan) -> None:
        agent, before = self.agent, self.agent.history
        at = None if plan.at is None else plan.at % (len(before) + 1)
        try:
            cut = agent.choose_cut(keep=plan.keep, at=at)
        except tr.HistoryError as error:
            if at is None or _begins_a_step(before, at):
                self._problems.append(f"a cut of {before} by {plan} was refused: {error}")
            return
        if cut is None:
            return
        mark = self.ledger.new_mark("note")
        agent.replace_with_summary(cut, mark)
        gone, kept = before[cut.start : cut.stop], before[cut.stop :]
        self.ledger.history_was_compacted(gone, kept, mark)
        summary = agent.history[cut.start]
        if agent.history != (*before[: cut.start], summary, *kept) or summary.text != mark:
            self._problems.append(f"{before} was cut by {plan}, and is now {agent.history}")

    def _trim(self, plan: plans.TrimPlan) -> None:
        before = self.agent.history
        count = self.agent.trim(keep=plan.keep)
        stayed = {id(message) for message in self.agent.history}
        gone = [message for message in before if id(message) not in stayed]
        self.ledger.history_was_trimmed(gone)
        spoken = [each for each in marks_of(gone) if not each.startswith("re")]
        if len(gone) != count or spoken:
            self._problems.append(f"{plan} took {count}, with {spoken}, of {before}: {gone}")

    # --- a turn -----------------------------------------------------------------------

    async def _turn(self, plan: plans.TurnPlan) -> None:
        ledger = self.ledger
        self._input = ledger.new_mark("in")
        self._aside = plan.params is not None and plan.params.use_history is False
        self._model.replies = iter(plan.replies)
        hooks = self._hooks(plan)
        if plan.drive == "generate":
            message = await self.agent.generate(self._input, params=plan.params, hooks=hooks)
            self._handed_out(message)
            return
        runner = self.agent.turn(self._input, params=plan.params, hooks=hooks)
        if plan.drive == "until_done":
            self._handed_out(await runner.until_done())
            return
        async with runner:
            await self._iterate(runner, plan)

    async def _iterate(self, runner: tr.ToolRunner, plan: plans.TurnPlan) -> None:
        count = 0
        while True:
            message = None
            timeout = LONGER if plan.step_timeout is None else plan.step_timeout
            try:
                with trio.move_on_after(timeout):
                    message = await anext(runner)
            except StopAsyncIteration:
                return
            if message is None:
                continue  # the turn was interrupted; the next step says so
            count += 1
            self._handed_out(message)
            if count == plan.notes_after and not runner.is_done:
                self._note(runner)
            if count == plan.cancels_after and message.tool_calls:
                self._cancel(runner, message.tool_calls[0])
            if count == plan.stops_after:
                return

    def _note(self, runner: tr.ToolRunner) -> None:
        mark = self.ledger.new_mark("note")
        runner.append_messages(mark)
        self.ledger.said(mark)

    def _cancel(self, runner: tr.ToolRunner, call: tr.ToolCall) -> None:
        truth = self.ledger.calls.get(number_of(call) or -1)
        if runner.cancel_call(call.id) and truth is not None:
            truth.stopped = True

    def _handed_out(self, message: tr.Message) -> None:
        self.ledger.handed_out.append((message, repr(message)))

    def _hooks(self, plan: plans.TurnPlan) -> tr.ToolRunnerHooks:
        """The planned hooks, each with a look at what it sees."""
        return plans.make_hooks(
            {point: _Watched(each, self.ledger) for point, each in plan.hooks.items()}
        )

    # --- what must hold -----------------------------------------------------------------

    def _compare(self, when: str) -> None:
        """Compare the agent with the ledger."""
        agent, ledger = self.agent, self.ledger
        if ledger.dead or not self._opened:
            return
        last = agent.last_turn
        messages = last.messages if last is not None else ()
        found = [
            *valid("the history", agent.history),
            *valid("last_turn", messages),
            *ledger.disagreements("the history", agent.history),
            *(ledger.turn_disagreements(messages) if last is not None else ()),
            *ledger.changed_values(),
        ]
        self._problems += [f"{problem} ({when})" for problem in found]

    def _check(self, steps: Sequence[plans.SessionStep], outcome: Outcome) -> Iterator[str]:
        del steps
        ledger = self.ledger
        if not ledger.dead and outcome.broken is None:
            self._compare("at the end")
        yield from self._problems
        problems, ledger.problems = ledger.problems, []
        yield from problems
        if outcome.raised_a(Exception) and ledger.healthy:
            yield f"C7: an error left the agent's block: {outcome.raised!r}"
        for number, truth in ledger.calls.items():
            if truth.entered and not truth.left:
                yield f"C5: the tool of call {number} is still running: {truth.plan}"
        if self.agent.conversation.is_busy:
            yield "C5: the agent was not freed"
        if not ledger.dead and self._opened and outcome.broken is None:
            yield from self._check_stored()

    def _check_stored(self) -> Iterator[str]:
        ledger = self.ledger
        if type(self.journal) is not tr.MemoryJournal or not ledger.healthy:
            return
        statistics = self.journal.statistics()
        lost = statistics.failures - self._lost_to_crashes
        if statistics.open_tickets or lost:
            yield f"C6: commits are open or lost when the agent is left: {statistics}"
        try:
            state = tr.fold(self.journal.stored(SESSION))
        except tr.RecordError as error:
            yield f"C2: the session does not open: {error}"
            return
        if state.messages != self.agent.history:
            yield f"memory and session differ: {self.agent.history} and {state.messages}"
        whole = tr.full_history(self.journal.stored(SESSION))
        yield from valid("the full history", whole)
        rest = iter(whole)
        if not all(message in rest for message in state.messages if not is_summary(message)):
            yield f"C3: not all of {state.messages} is in the full history {whole}"
        ledger.session_was_closed(self.agent.history)

    # --- crashes ------------------------------------------------------------------------

    def cut_the_power(self) -> None:
        """End the process, as far as the session can tell: what is not durable is gone.

        What the old agent still does, it does to nobody. The next visit opens a new one.
        """
        self.ledger.power_was_cut()
        self.ledger.dead = True
        if type(self.journal) is tr.MemoryJournal:
            self.journal.crash()
            self._lost_to_crashes = self.journal.statistics().failures


#: Seconds; longer than any turn takes, and shorter than for ever.
LONGER: Final = 1000.0
#: Seconds that the cleanup of a planned tool takes at most.
LONGEST_CLEANUP: Final = 1.0


@attrs.frozen
class _Watched:
    """A hook behaviour, and what must hold where it is called."""

    behaviour: plans.HookBehaviour
    ledger: SessionLedger

    async def act(self, runner: tr.ToolRunner, subject: object) -> None:
        """As the behaviour."""
        self.ledger.problems += [
            *valid("the history a hook sees", runner.history),
            *valid("the turn a hook sees", runner.turn_messages),
        ]
        before = runner.history
        if type(self.behaviour) in {plans.ReplacesHistory, plans.CutsHistory}:
            self.ledger.history_was_replaced(before)
        try:
            await self.behaviour.act(runner, subject)
        finally:
            self.ledger.problems += valid("the history behind a hook", runner.history)


def _begins_a_step(messages: Sequence[tr.Message], at: int) -> bool:
    """Whether message ``at`` may be the first that stays: behind templates, and not in a step."""
    if at == 0 or messages[at - 1].template:
        return False
    parts = at < len(messages) and (messages[at].tool_results or "attached_by" in messages[at].meta)
    return not parts


def _behaviour(truth: CallTruth) -> plans.ToolBehaviour:
    plan = truth.plan
    assert type(plan) is plans.CallPlan
    return plan.behaviour


def _at_once(behaviour: plans.ToolBehaviour) -> object:
    """What a behaviour without a checkpoint comes to."""
    match behaviour:
        case plans.Returns():
            return behaviour.value
        case plans.ReturnsOdd():
            return plans.make_odd_value(behaviour.kind)
        case plans.Raises():
            raise behaviour.kind(behaviour.text)
        case _:
            raise TypeError(f"a sync function cannot do {behaviour!r}; use an async tool")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    match error:
        case BaseExceptionGroup():
            for inner in error.exceptions:
                yield from _leaves(inner)
        case _:
            yield error
