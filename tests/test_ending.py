"""`Ending`: why a turn stops, what is recorded then, and which error leaves."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner._shell.commits import Commits
from trio_runner._shell.context import TurnContext
from trio_runner._shell.ending import Ending
from trio_runner._shell.notices import Notices
from trio_runner.testing import ScriptedModel, ScriptItem, call

Hook = Callable[[tr.ToolRunner, Any], Awaitable[None]]
HOOK_NAMES = ["before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call"]


class Events:
    def __init__(self) -> None:
        self.all: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.all.append(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.all if type(event) is kind]

    @property
    def suppressed(self) -> list[BaseException]:
        return [event.error for event in self.of(ev.ErrorSuppressed)]


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Sends a real SIGINT; trio's handler needs Python's own to be in place."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


async def work() -> str:
    """Work."""
    await trio.lowlevel.checkpoint()
    return "ok"


def raises(error: BaseException) -> Hook:
    async def hook(runner: tr.ToolRunner, _: object) -> None:
        await trio.lowlevel.checkpoint()
        raise error

    return hook


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def end_of(agent: tr.ToolAgent) -> tr.EndReason:
    assert agent.last_turn is not None
    tr.check_history(agent.history)
    return agent.last_turn.end_reason


# --- errors of hooks and models -------------------------------------------------


@pytest.mark.parametrize("kind", [StopAsyncIteration, GeneratorExit])
@pytest.mark.parametrize("point", [*HOOK_NAMES, "after_turn_complete"])
async def test_what_would_end_a_loop_or_a_coroutine_does_not_pass_for_an_end_of_the_turn(
    point: str, kind: type[BaseException]
) -> None:
    error = kind("from a hook")
    hooks = tr.ToolRunnerHooks(**{point: raises(error)})
    agent = agent_of(call("work"), "done", hooks=hooks)

    async def iterate() -> None:
        async with agent.turn("go") as runner:
            async for _ in runner:
                pass

    with pytest.raises(RuntimeError, match=kind.__name__) as caught:
        await iterate()

    assert caught.value.__cause__ is error
    # After the answer is committed the turn stays answered, and the error leaves all the same.
    answered = point == "after_turn_complete"
    assert end_of(agent) is (tr.EndReason.ANSWERED if answered else tr.EndReason.FAILED)


async def test_stop_async_iteration_from_a_model_is_an_error_too() -> None:
    agent = agent_of(StopAsyncIteration())
    with pytest.raises(RuntimeError, match="StopAsyncIteration"):
        await agent.generate("go")
    assert end_of(agent) is tr.EndReason.FAILED


@pytest.mark.parametrize("point", HOOK_NAMES)
async def test_a_timeout_of_another_turn_is_a_failure_of_this_one_and_leaves_bare(
    point: str, autojump_clock: trio.testing.MockClock
) -> None:
    slow = agent_of(call("sleeps"), tools=[tr.tool(trio.sleep_forever, name="sleeps")])
    params = tr.RequestParams(turn_timeout=2)

    async def hook(runner: tr.ToolRunner, _: object) -> None:
        await slow.generate("go", params=params)

    agent = agent_of(call("work"), "done", hooks=tr.ToolRunnerHooks(**{point: hook}))

    with pytest.raises(tr.TurnTimeoutError, match="turn_timeout of 2 seconds"):
        await agent.generate("go", params=tr.RequestParams(turn_timeout=100))

    assert end_of(slow) is tr.EndReason.TIMED_OUT
    assert end_of(agent) is tr.EndReason.FAILED


async def a_stray() -> trio.Cancelled:
    """A Cancelled whose scope is over."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            made = error
            raise
    return made  # pyright: ignore[reportPossiblyUnboundVariable]


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_cancellation_that_nobody_asked_for_is_a_failure_with_a_name(
    grouped: bool,
) -> None:
    stray: BaseException = await a_stray()
    if grouped:
        stray = BaseExceptionGroup("theirs", [stray, await a_stray()])
    agent = agent_of("done", hooks=tr.ToolRunnerHooks(after_llm_call=raises(stray)))

    with pytest.raises(tr.StrayCancellationError) as caught:
        await agent.generate("go")

    assert caught.value.__cause__ is stray
    assert end_of(agent) is tr.EndReason.FAILED


async def test_a_stray_cancellation_beside_an_error_leaves_as_it_was_raised() -> None:
    error = BaseExceptionGroup("theirs", [await a_stray(), ValueError("bad")])
    agent = agent_of("done", hooks=tr.ToolRunnerHooks(after_llm_call=raises(error)))

    with pytest.raises(BaseExceptionGroup) as caught:
        await agent.generate("go")

    assert caught.value is error
    assert end_of(agent) is tr.EndReason.FAILED


# --- precedence, and what loses -------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_exit_leaves_as_it_was_raised_and_nothing_is_lost(
    kind: type[BaseException],
) -> None:
    error, events = kind(), Events()
    hooks = tr.ToolRunnerHooks(before_llm_call=raises(error))
    agent = agent_of("done", hooks=hooks, observers=[events])

    with pytest.raises(kind) as caught:
        await agent.generate("go")

    assert caught.value is error
    assert end_of(agent) is tr.EndReason.INTERRUPTED
    assert events.suppressed == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_exit_in_a_group_leaves_bare_and_the_others_are_told(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    leaf, lost = kind(), ValueError("lost")
    error = BaseExceptionGroup("theirs", [lost, BaseExceptionGroup("inner", [leaf])])
    events = Events()
    hooks = tr.ToolRunnerHooks(before_llm_call=raises(error))
    agent = agent_of("done", hooks=hooks, observers=[events])

    with pytest.raises(kind) as caught:
        await agent.generate("go")

    assert caught.value is leaf
    assert end_of(agent) is tr.EndReason.INTERRUPTED
    assert events.suppressed == [lost]
    assert "overtaken" in caplog.text


async def test_the_callers_cancel_beats_an_error_beside_it_which_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = ValueError("lost")
    events = Events()

    async def hook(runner: tr.ToolRunner, _: object) -> None:
        async def fails_when_cancelled() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise lost

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_when_cancelled)
            nursery.start_soon(trio.sleep_forever)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()

    agent = agent_of("done", hooks=tr.ToolRunnerHooks(before_llm_call=hook), observers=[events])
    with trio.CancelScope() as scope:
        await agent.generate("go")

    assert scope.cancelled_caught
    assert end_of(agent) is tr.EndReason.INTERRUPTED
    assert events.suppressed == [lost]
    assert "overtaken" in caplog.text


@pytest.mark.parametrize("error", [ValueError("lost"), StopAsyncIteration("lost")])
async def test_the_callers_cancel_beats_an_error_that_came_instead_of_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events()

    async def hook(runner: tr.ToolRunner, _: object) -> None:
        scope.cancel()
        raise error

    agent = agent_of("done", hooks=tr.ToolRunnerHooks(before_llm_call=hook), observers=[events])
    with trio.CancelScope() as scope:
        await agent.generate("go")

    assert scope.cancelled_caught
    assert end_of(agent) is tr.EndReason.INTERRUPTED
    assert events.suppressed == [error]


async def test_a_caller_that_shields_itself_meanwhile_sees_the_error_that_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = Parts(await tr.MemoryJournal(delay=2.0).open("s"))
    error = ValueError("lost")

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as inner:

            async def shield_it() -> None:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                    inner.shield = True

            nursery.start_soon(shield_it)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            assert await parts.ending.stop(error) is error
            inner.shield = False
    # It was told all the same; nothing is lost.
    assert parts.events.suppressed == [error]
    assert parts.turn.end_reason is tr.EndReason.INTERRUPTED


@pytest.mark.parametrize("listening", [True, False])
def test_ctrl_c_during_the_finish_beats_the_error_that_ended_the_turn(
    listening: bool, ctrl_c: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    lost = ValueError("lost")
    events = Events()
    journal = tr.MemoryJournal(delay=3.0)

    async def main() -> None:
        async with (
            agent_of(
                "done",
                hooks=tr.ToolRunnerHooks(after_llm_call=raises(lost)),
                observers=[events] if listening else [],
                journal=journal,
                session="s",
            ) as agent,
            trio.open_nursery() as nursery,
        ):

            @trio.lowlevel.enable_ki_protection  # so that it comes to the main task
            async def strike() -> None:
                await trio.sleep(1)
                ctrl_c()

            nursery.start_soon(strike)
            await agent.generate("go")

    with pytest.raises(BaseExceptionGroup) as caught:  # the nursery's
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert [type(error) for error in caught.value.exceptions] == [KeyboardInterrupt]
    assert events.suppressed == ([lost] if listening else [])
    assert "ValueError: lost" in caplog.text
    # What was finished when Ctrl-C came is durable.
    ends = [each for each in journal.stored("s") if type(each) is r.TurnEnded]
    assert [each.end_reason for each in ends] == [tr.EndReason.FAILED]


# --- the parts by themselves ----------------------------------------------------


def context_of(conversation: tr.Conversation) -> TurnContext:
    return TurnContext(conversation, None, 5.0)


class Parts:
    """An ending with everything around it, over a session of ``journal``."""

    def __init__(self, session: tr.JournalSession | None = None, *, grace: float = 5.0) -> None:
        self.events = Events()
        self.conversation = tr.Conversation()
        if session is not None:
            self.conversation.attach(session, "s", "a")
        self.turn = self.conversation.new_turn()
        self.commits = self.conversation.commits
        notices = Notices([self.events])
        notices.begin(self.turn.number)
        config = tr.LoopConfig(grace=grace)
        around = context_of(self.conversation)
        self.ending = Ending(self.turn, self.conversation, self.commits, config, notices, around)
        self.commits.begin_turn(self.ending.commit_failed, strict=False)
        self.commits.add(r.TurnStarted(1, (tr.Message.user("go"),)))
        self.turn.input_added([tr.Message.user("go")])

    def reply(self) -> None:
        calls = [tr.ToolCall("c1", "work"), tr.ToolCall("c2", "work")]
        self.turn.model_replied(tr.Message.assistant(tool_calls=calls))
        self.commits.add(r.ModelFinished(1, 0, tr.Message.assistant(tool_calls=calls)))
        self.turn.tool_started(0)


def kinds(items: list[Any]) -> list[str]:
    return [type(each).__name__ for each in items]


async def test_an_interrupt_records_and_tells_the_answers_at_once_and_only_once() -> None:
    journal = tr.MemoryJournal()
    parts = Parts(await journal.open("s"))
    parts.reply()

    for _ in range(2):
        parts.ending.interrupt(tr.EndReason.INTERRUPTED)
        parts.ending.tell()

    stored = list(journal.stored("s"))
    assert kinds(stored[3:]) == ["ToolFinished", "ToolFinished", "TurnEnded"]
    assert kinds(parts.events.all) == [
        "CallFinished", "CallFinished", "TurnInterrupted", "TurnEnded",
    ]  # fmt: skip
    statuses = [event.result.status.value for event in parts.events.of(ev.CallFinished)]
    assert statuses == ["interrupted", "not_started"]
    assert parts.ending.rollback is parts.turn.rollback


async def test_nothing_is_told_before_the_end() -> None:
    parts = Parts()
    parts.ending.tell()
    assert parts.events.all == []
    assert parts.ending.last_turn() is None
    assert parts.ending.rollback is None


async def test_how_the_turn_ended_is_told_with_what_the_journal_could_not_do() -> None:
    parts = Parts()
    failure = tr.CommitFailedError("disk full")
    parts.ending.commit_failed(failure)
    parts.ending.interrupt(tr.EndReason.FAILED)

    last = parts.ending.last_turn()

    assert last is not None
    assert (last.number, last.end_reason) == (1, tr.EndReason.FAILED)
    assert last.commit_errors == (failure,)
    assert [event.error for event in parts.events.of(ev.CommitFailed)] == [failure]


async def test_without_observers_what_the_journal_could_not_do_is_kept() -> None:
    conversation = tr.Conversation()
    turn = conversation.new_turn()
    around = context_of(conversation)
    ending = Ending(turn, conversation, Commits(None), tr.LoopConfig(), Notices(()), around)
    failure = tr.CommitFailedError("disk full")
    ending.commit_failed(failure)
    ending.interrupt(tr.EndReason.FAILED)
    ending.tell()
    last = ending.last_turn()
    assert last is not None
    assert last.commit_errors == (failure,)


async def test_a_turn_without_history_says_so_whatever_its_end_did() -> None:
    parts = Parts()
    conversation = parts.conversation
    conversation.history.append(tr.Message.user("kept"))
    aside = conversation.new_turn_aside()
    around = context_of(conversation)
    ending = Ending(aside, conversation, Commits(None), tr.LoopConfig(), Notices(()), around)
    assert ending.rollback is None
    aside.input_added([tr.Message.user("aside")])

    ending.interrupt(tr.EndReason.INTERRUPTED)

    count = len(conversation.history)
    disabled = tr.HistoryRollbackStatus.HISTORY_DISABLED
    assert ending.rollback == tr.HistoryRollbackState(disabled, count, count)
    last = ending.last_turn()
    assert last is not None
    assert [message.text for message in last.messages] == ["aside"]


def test_a_closed_coroutine_is_reconciled_and_waits_for_nothing() -> None:
    # GeneratorExit outside every task: whoever throws the coroutine away cannot await.
    journal = tr.MemoryJournal("hang")

    async def begin() -> Parts:
        parts = Parts(await journal.open("s"))
        parts.reply()
        return parts

    parts = trio.run(begin)
    error = GeneratorExit()

    with pytest.raises(StopIteration) as returned:
        parts.ending.stop(error).__await__().send(None)

    assert returned.value.value is error
    assert parts.turn.end_reason is tr.EndReason.INTERRUPTED
    tr.check_history(parts.conversation.history.snapshot())
    journal.delay = 0.0
    assert kinds(list(journal.stored("s")))[-1] == "TurnEnded"


async def test_an_error_withdraws_the_answer() -> None:
    parts = Parts()
    parts.ending.answer = tr.Message.assistant("done")
    error = ValueError("bad")

    assert await parts.ending.stop(error) is error

    assert parts.ending.answer is None
    assert kinds(parts.events.all) == ["TurnInterrupted", "TurnEnded"]


async def test_the_runners_own_error_says_how_the_turn_ends() -> None:
    timed_out, left = Parts(), Parts()
    timed_out.ending.own_error = tr.TurnTimeoutError("late")
    left.ending.own_error = ValueError("left elsewhere")

    assert await timed_out.ending.stop(timed_out.ending.own_error) is timed_out.ending.own_error
    assert await left.ending.stop(left.ending.own_error) is left.ending.own_error

    assert timed_out.turn.end_reason is tr.EndReason.TIMED_OUT
    assert left.turn.end_reason is tr.EndReason.INTERRUPTED


# --- grace ----------------------------------------------------------------------


async def test_grace_is_one_time_from_the_first_interrupt_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts(await tr.MemoryJournal("hang").open("s"), grace=4.0)
    began = trio.current_time()
    parts.ending.interrupt(tr.EndReason.INTERRUPTED)
    await trio.sleep(3)

    await parts.ending.stop(ValueError("bad"))
    assert trio.current_time() - began == 4
    deadline = parts.conversation.grace_deadline
    await parts.ending.finish(trio.sleep_forever, None, deadline=deadline)
    await parts.ending.finish_commits(None)

    assert trio.current_time() - began == 4
    assert parts.conversation.grace_deadline == began + 4
    given_up = [each for each in caplog.records if "given up" in each.getMessage()]
    assert len(given_up) == 1
    assert kinds(parts.ending.commit_errors) == ["CommitUnknownError"]


async def test_at_a_normal_end_what_was_given_up_is_not_waited_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    parts = Parts(await tr.MemoryJournal("hang").open("s"))
    await parts.commits.settle(1.0)
    assert parts.commits.is_stalled

    with trio.testing.assert_no_checkpoints():
        await parts.ending.finish_commits(None)


async def test_nothing_is_waited_for_when_everything_is_durable() -> None:
    parts = Parts(await tr.MemoryJournal().open("s"))
    with trio.testing.assert_no_checkpoints():
        await parts.ending.finish_commits(None)


@pytest.mark.parametrize("leaves", [None, SystemExit(1), ValueError("lost")])
async def test_an_exit_from_the_finish_leaves_and_an_ordinary_error_is_told(
    leaves: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    with caplog.at_level(logging.CRITICAL), pytest.raises(KeyboardInterrupt):
        await parts.ending.finish(interrupted, leaves, deadline=math.inf)

    told = parts.events.suppressed
    assert told == ([leaves] if type(leaves) is ValueError else [])


async def test_a_cancel_that_an_exit_overtakes_is_no_lost_error() -> None:
    parts = Parts()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await parts.ending.finish(interrupted, await a_stray(), deadline=math.inf)
    assert parts.events.suppressed == []
