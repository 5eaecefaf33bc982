"""BEHAVIOURS kB6: cleanup under a cancel: not cut short, not endless, eating no errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import ScriptedModel, ScriptItem, call


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def statuses(messages: Sequence[tr.Message]) -> list[str]:
    return [result.status.value for m in messages for result in m.tool_results]


async def test_kB6_a_cancel_does_not_cut_a_save_of_several_steps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay=1)  # a delayed commit is waited for in several steps
    agent = agent_of(
        [call("sleeps", seconds=1), call("sleeps", seconds=1000)], journal=journal, session="s"
    )
    async with agent:
        with trio.move_on_after(10) as scope:
            await agent.generate("go")
        assert scope.cancelled_caught
        assert statuses(agent.history) == ["ok", "interrupted"]
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history
        assert journal.statistics().open_tickets == 0


async def test_kB6_a_store_that_never_answers_is_given_up_after_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal()
    told: list[ev.Event] = []

    class Told:
        def on_event(self, event: ev.Event) -> None:
            told.append(event)

    async def hangs() -> None:
        journal.delay = "hang"
        await trio.sleep(1000)

    agent = agent_of(
        call("hangs"), tools=[hangs], journal=journal, session="s", grace=2.0, observers=[Told()]
    )
    async with agent:
        began = trio.current_time()
        with trio.move_on_after(0.05) as scope:
            await agent.generate("go")

        assert scope.cancelled_caught
        assert trio.current_time() - began == pytest.approx(2.05)
        assert agent.last_turn is not None
        assert [type(e) for e in agent.last_turn.commit_errors] == [tr.CommitUnknownError]
        failed = [event for event in told if type(event) is ev.CommitFailed]
        assert len(failed) == 1
        tr.check_history(agent.history)
        journal.delay = 0.0


@pytest.mark.parametrize("second", ["cancel", "deadline"])
async def test_kB6_a_second_cancel_does_not_cut_or_extend_grace(
    second: str, autojump_clock: trio.testing.MockClock
) -> None:
    journal = tr.MemoryJournal()

    async def hangs() -> None:
        journal.delay = "hang"
        await trio.sleep(1000)

    agent = agent_of(call("hangs"), tools=[hangs], journal=journal, session="s", grace=2.0)
    async with agent:
        began = trio.current_time()
        with trio.CancelScope() as outer, trio.move_on_after(1):
            async with trio.open_nursery() as nursery:

                async def cancel_again() -> None:
                    with trio.CancelScope(shield=True):
                        await trio.sleep(1.5)
                    outer.cancel()

                if second == "cancel":
                    nursery.start_soon(cancel_again)
                else:
                    outer.deadline = trio.current_time() + 1.5
                async with agent.turn("go") as runner:
                    await runner.until_done()

        assert trio.current_time() - began == pytest.approx(3.0)
        journal.delay = 0.0


async def test_kB6_grace_is_shared_by_all_finishes_of_a_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay="hang")
    agent = agent_of("never", journal=journal, session="s", grace=2.0)
    async with agent:
        began = trio.current_time()
        async with agent.turn("go") as runner:
            with trio.move_on_after(1):
                await anext(runner)  # finishes once
            assert trio.current_time() - began == pytest.approx(3.0)
            # leaving the block finishes again
        assert trio.current_time() - began == pytest.approx(3.0)
        journal.delay = 0.0


async def test_kB6_a_real_error_during_the_cancel_is_told_and_not_lost(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []

    class Told:
        def on_event(self, event: ev.Event) -> None:
            if type(event) is ev.ErrorSuppressed:
                told.append(event.error)

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        try:
            await trio.sleep(1000)
        finally:
            raise LookupError("while leaving")  # the fault under test

    agent = agent_of("never", hooks=tr.ToolRunnerHooks(before_llm_call=hook), observers=[Told()])
    with trio.move_on_after(1) as scope:
        await agent.generate("go")

    assert scope.cancelled_caught
    assert [str(error) for error in told] == ["while leaving"]
    assert "while leaving" in caplog.text
    caplog.clear()


async def test_kB6_a_tools_error_during_the_cancel_is_its_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def fails_to_clean() -> None:
        try:
            await trio.sleep(1000)
        except trio.Cancelled:
            raise LookupError("while cleaning") from None

    agent = agent_of(call("fails_to_clean"), "never", tools=[fails_to_clean])
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
    assert scope.cancelled_caught
    assert statuses(agent.history) == ["error"]
    assert "while cleaning" in agent.history[-1].tool_results[0].text
