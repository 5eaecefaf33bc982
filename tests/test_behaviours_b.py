"""BEHAVIOURS part b: cancellation that is swallowed, tasks left running, cleanup under cancel."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import Case, Outcome, ScriptedModel, ScriptItem, call, sweep


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def model_of(agent: tr.ToolAgent) -> ScriptedModel:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def statuses(messages: Sequence[tr.Message]) -> list[str]:
    return [result.status.value for m in messages for result in m.tool_results]


def live_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


# --- kB1 ------------------------------------------------------------------------


async def test_kB1_a_tool_that_catches_everything_cannot_swallow_the_cancel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    started: list[str] = []

    async def catches_all(name: str) -> str:
        started.append(name)
        try:
            await trio.sleep(1000)
        except BaseException:  # noqa: BLE001  the fault under test
            return "I was stopped, and say that all is well"
        return "slept"

    alone = tr.tool(catches_all, name="alone", sequential=True)
    agent = agent_of(
        [call("catches_all", name="first"), call("alone", name="second")],
        "never",
        tools=[catches_all, alone],
    )
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
        pytest.fail("the turn returned")

    assert scope.cancelled_caught
    assert started == ["first"]
    assert model_of(agent).calls == 1
    # What it returned is kept, since it returned; the stop itself is no result.
    assert statuses(agent.history) == ["ok", "not_started"]
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.INTERRUPTED


async def test_kB1_a_fatal_tool_error_ends_the_turn_failed_and_is_no_cancel() -> None:
    async def fatal() -> None:
        raise tr.FatalToolError("over")

    agent = agent_of([call("fatal"), call("sleeps", seconds=0)], tools=[fatal, sleeps])
    with trio.CancelScope() as scope, pytest.raises(tr.FatalToolError):
        await agent.generate("go")
    assert not scope.cancelled_caught
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.FAILED
    assert statuses(agent.history) == ["error", "ok"]


@pytest.mark.parametrize(
    ("name", "model_calls"),
    [
        ("before_llm_call", 0),
        ("after_llm_call", 1),
        ("before_tool_call", 1),
        ("after_tool_call", 1),
    ],
)
async def test_kB1_a_hook_that_catches_everything_cannot_swallow_the_cancel(
    name: str, model_calls: int, autojump_clock: trio.testing.MockClock
) -> None:
    ran: list[str] = []

    async def catches_all(runner: tr.ToolRunner, _: Any) -> None:
        try:
            await trio.sleep(1000)
        except BaseException:  # noqa: BLE001  the fault under test
            ran.append("caught")

    async def work() -> str:
        ran.append("tool")
        return "ok"

    agent = agent_of(
        call("work"), "never", tools=[work], hooks=tr.ToolRunnerHooks(**{name: catches_all})
    )
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
        pytest.fail("the turn returned")

    assert scope.cancelled_caught
    assert model_of(agent).calls == model_calls
    assert ran == (["tool", "caught"] if name == "after_tool_call" else ["caught"])
    tr.check_history(agent.history)


async def test_kB1_a_model_that_catches_everything_cannot_swallow_the_cancel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def catches_all(_: tr.ModelRequest) -> ScriptItem:
        try:
            await trio.sleep(1000)
        except BaseException:  # noqa: BLE001  the fault under test
            return call("sleeps", seconds=0)
        return "slept"

    agent = agent_of(catches_all, "never")
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
        pytest.fail("the turn returned")
    assert scope.cancelled_caught
    assert model_of(agent).calls == 1
    assert statuses(agent.history) == ["not_started"]


class Cut:
    """One turn of two rounds, cancelled somewhere, and what must hold then."""

    def __init__(self) -> None:
        self.agent = agent_of(
            [call("sleeps", seconds=1), call("sleeps", seconds=2)],
            [call("sleeps", seconds=1)],
            "done",
            journal=tr.MemoryJournal(delay=0.5),
            session="s",
        )
        self.returned = False

    async def run(self) -> None:
        async with self.agent:
            await self.agent.generate("go")
            self.returned = True

    def problems(self, outcome: Outcome) -> list[str]:
        tr.check_history(self.agent.history)
        last = self.agent.last_turn
        if self.returned:
            return [] if last and last.end_reason is tr.EndReason.ANSWERED else ["no answer"]
        # `sweep` itself checks that a cancel was seen, and that nothing is left running.
        return [] if outcome.cancelled_caught else [f"no cancel, but {outcome.raised!r}"]


def test_kB1_cancelled_at_each_checkpoint_the_callers_scope_always_sees_it() -> None:
    def make_case() -> Case:
        cut = Cut()
        return Case(run=cut.run, check=cut.problems)

    report = sweep(make_case, faults=["cancel"], seeds=range(1))
    report.raise_if_failed()
    assert report.positions > 30


# --- kB4 ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["fatal error", "stop", "observer", "hook", "store", "exit"])
async def test_kB4_no_task_lives_on_when_the_turn_is_left(
    way: str, autojump_clock: trio.testing.MockClock
) -> None:
    closed: list[str] = []

    async def works() -> str:
        try:
            await trio.sleep(10)
        finally:
            closed.append("works")
        return "worked"

    async def raises() -> None:
        await trio.sleep(1)
        if way == "fatal error":
            raise tr.FatalToolError("over")
        if way == "exit":
            raise SystemExit(1)

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        if way == "hook":
            raise LookupError("the result hook")

    class Raises:
        def on_event(self, event: ev.Event) -> None:
            if way == "observer" and type(event) is ev.CallFinished:
                raise LookupError("the observer")

    journal = tr.MemoryJournal()
    if way == "store":
        journal = tr.MemoryJournal(script={4: OSError("disk full")})
    agent = agent_of(
        [call("works"), call("works"), call("works"), call("raises")],
        "done",
        tools=[works, raises],
        hooks=tr.ToolRunnerHooks(after_tool_call=hook),
        observers=[Raises()],
        journal=journal,
        session="s",
        durability="strict",
    )
    async with agent:
        before = live_tasks()
        try:
            async with agent.turn("go") as runner:
                await anext(runner)
                if way != "stop":
                    await runner.until_done()
        except (tr.FatalToolError, LookupError, OSError, tr.CommitFailedError, SystemExit):
            pass

        assert live_tasks() == before
        assert closed == ([] if way == "stop" else ["works"] * 3)
        tr.check_history(agent.history)


async def test_kB4_a_tools_own_cleanup_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cleaned: list[str] = []

    async def cleans() -> None:
        try:
            await trio.sleep(1000)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)
            cleaned.append("cleaned")

    agent = agent_of(call("cleans"), tools=[cleans])
    with trio.move_on_after(1):
        await agent.generate("go")
    assert cleaned == ["cleaned"]
    assert trio.current_time() >= 4


async def test_kB4_a_block_left_by_another_task_ends_the_step_that_runs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agent = agent_of([call("sleeps", seconds=1000)], "next")
    seen: list[str] = []

    async def iterate(runner: tr.ToolRunner) -> None:
        seen.extend([message.text async for message in runner])
        seen.append("stopped")

    async with trio.open_nursery() as nursery, agent.turn("go") as runner:
        nursery.start_soon(iterate, runner)
        await trio.sleep(1)
    assert seen == ["", "stopped"]
    assert trio.current_time() < 10
    assert statuses(agent.history) == ["interrupted"]
    assert (await agent.generate("again")).text == "next"


# --- kB5 ------------------------------------------------------------------------


class CountedJournal:
    """Counts the commits of a session by the kinds of their records."""

    def __init__(self) -> None:
        self.inner = tr.MemoryJournal()
        self.commits: list[str] = []

    async def open(self, session_id: str) -> Any:
        session = await self.inner.open(session_id)
        append = session.append

        def noting(records: Sequence[Any]) -> Any:
            self.commits.append("+".join([type(record).__name__ for record in records]))
            return append(records)

        session.append = noting
        return session


@pytest.mark.parametrize("way", ["break", "raise", "cancel"])
async def test_kB5_a_consumer_that_stops_after_the_first_message(way: str) -> None:
    ran: list[str] = []

    async def work() -> str:
        ran.append("work")
        return "ok"

    journal = CountedJournal()
    agent = agent_of(call("work"), "next", tools=[work], journal=journal, session="s")
    async with agent:
        with trio.CancelScope() as scope:
            try:
                async with agent.turn("go") as runner:
                    async for _ in runner:
                        if way == "raise":
                            raise LookupError("mine")
                        if way == "cancel":
                            scope.cancel()
                            await trio.lowlevel.checkpoint()
                        break
            except LookupError:
                pass

        assert scope.cancelled_caught == (way == "cancel")
        assert ran == []
        assert statuses(agent.history) == ["not_started"]
        # Repaired and saved exactly once.
        assert journal.commits[3:] == ["ToolFinished+TurnEnded"]
        assert (await agent.generate("again")).text == "next"


async def test_kB5_a_consumer_in_another_task() -> None:
    agent = agent_of([call("sleeps", seconds=0)], "done")
    texts: list[str] = []

    async def consume(runner: tr.ToolRunner) -> None:
        texts.extend([message.text async for message in runner])

    async with agent.turn("go") as runner:
        await anext(runner)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, runner)
    assert texts == ["done"]


async def test_kB5_a_runner_that_is_dropped_in_the_middle_says_nothing_when_collected() -> None:
    agent = agent_of(call("sleeps", seconds=0))
    async with agent.turn("go") as runner:
        iterator = aiter(runner)
        await anext(iterator)
        del iterator
    del runner
    gc.collect()  # a warning would be an error
    assert statuses(agent.history) == ["not_started"]


async def test_kB5_the_consumer_may_hold_a_nursery_and_scopes_around_each_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agent = agent_of([call("sleeps", seconds=1)], "done")
    async with agent.turn("go") as runner:
        with trio.fail_after(5):
            await anext(runner)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 3)
            message = await anext(runner)
    assert message.text == "done"
