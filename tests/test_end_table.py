"""How a turn ends (FEATURES, the end table), one row after the other, driven in each way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call

END = tr.EndReason


@attrs.define
class World:
    """An agent with its journal, and what became of its turn."""

    replies: list[ScriptItem]
    options: dict[str, Any] = attrs.field(factory=dict[str, Any])
    journal: tr.MemoryJournal = attrs.field(factory=tr.MemoryJournal)
    completed: list[str] = attrs.field(factory=list[str])
    runner: tr.ToolRunner | None = None

    def agent(self) -> tr.ToolAgent:
        async def complete(_: tr.ToolRunner, message: tr.Message) -> None:
            self.completed.append(message.text)

        options = dict(self.options)
        given = options.pop("hooks", None)
        hooks = tr.merge_hooks(given, tr.ToolRunnerHooks(after_turn_complete=complete))
        return tr.ToolAgent(
            "a",
            model=ScriptedModel([*self.replies, "next"]),
            tools=[quick, slow, fatal, exits],
            hooks=hooks,
            journal=self.journal,
            session="s",
            **options,
        )


async def quick() -> str:
    """Return at once."""
    return "quick result"


async def slow() -> str:
    """Sleep for long."""
    await trio.sleep(1000)
    return "slow result"


async def fatal() -> str:
    """End the turn."""
    raise tr.FatalToolError("the disk is on fire")


async def exits() -> str:
    """As if Ctrl-C came here."""
    await trio.lowlevel.checkpoint()
    raise KeyboardInterrupt


Drive = Callable[[World, tr.ToolAgent], Awaitable[tr.Message | None]]


async def by_until_done(world: World, agent: tr.ToolAgent) -> tr.Message | None:
    async with agent.turn("go") as runner:
        world.runner = runner
        return await runner.until_done()


async def by_until_done_alone(world: World, agent: tr.ToolAgent) -> tr.Message | None:
    world.runner = agent.turn("go")
    return await world.runner.until_done()


async def by_iterating(world: World, agent: tr.ToolAgent) -> tr.Message | None:
    message = None
    async with agent.turn("go") as runner:
        world.runner = runner
        async for each in runner:
            message = each
    return message


async def by_generate(world: World, agent: tr.ToolAgent) -> tr.Message | None:
    return await agent.generate("go")


DRIVES = [by_until_done, by_until_done_alone, by_iterating, by_generate]
drives = pytest.mark.parametrize("drive", DRIVES)


def ended(world: World, agent: tr.ToolAgent, reason: tr.EndReason) -> tr.LastTurn:
    """The turn ended with ``reason``, everywhere where one can look; its history is valid."""
    last = agent.last_turn
    assert last is not None
    assert last.end_reason is reason
    if world.runner is not None:
        assert world.runner.end_reason is reason
        assert world.runner.is_done
        assert last.messages == world.runner.turn_messages
    assert last.messages == agent.history
    tr.check_history(agent.history)
    return last


async def goes_on(world: World, agent: tr.ToolAgent) -> None:
    """The session is what memory says, and the next turn works."""
    opened = tr.fold(world.journal.stored("s"))
    assert tuple(opened.history.view()) == agent.history
    assert opened.turn is not None
    assert agent.last_turn is not None
    assert opened.turn.end_reason is agent.last_turn.end_reason
    before = agent.history
    assert (await agent.generate("again")).text == "next"
    assert agent.history[: len(before)] == before


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for m in agent.history for result in m.tool_results]


def hooks_raising(name: str, error: BaseException) -> tr.ToolRunnerHooks:
    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        raise error

    return tr.ToolRunnerHooks(**{name: hook})


def stopped(reason: tr.StopReason, *calls: tr.ToolCall) -> tr.Message:
    return tr.Message.assistant("half", stop_reason=reason, tool_calls=calls)


# --- rows that return a message -------------------------------------------------

RETURNING = {
    "answered": (["done"], END.ANSWERED),
    "answered after tools": ([call("quick"), "done"], END.ANSWERED),
    "stop sequence": ([stopped(tr.StopReason.STOP_SEQUENCE)], END.ANSWERED),
    "the cap": ([call("quick"), [call("quick")]], END.MAX_ITERATIONS),
    "max_tokens": ([stopped(tr.StopReason.MAX_TOKENS, call("quick"))], END.MAX_TOKENS),
    "safety": ([stopped(tr.StopReason.SAFETY, call("quick"))], END.SAFETY),
    "error": ([stopped(tr.StopReason.ERROR, call("quick"))], END.FAILED),
    "timeout": ([stopped(tr.StopReason.TIMEOUT, call("quick"))], END.FAILED),
    "cancelled": ([stopped(tr.StopReason.CANCELLED)], END.FAILED),
}


@drives
@pytest.mark.parametrize("row", RETURNING)
async def test_rows_that_return_a_message(row: str, drive: Drive) -> None:
    replies, reason = RETURNING[row]
    world = World(list(replies), {"params": tr.RequestParams(max_iterations=1)})
    async with world.agent() as agent:
        message = await drive(world, agent)

        assert message is not None
        newest = [m for m in agent.history if m.role == "assistant"][-1]
        assert message == newest  # the model's last, unedited
        if world.runner is not None:
            assert world.runner.last_message == message
        last = ended(world, agent, reason)
        assert last.commit_errors == ()
        assert world.completed == [message.text]  # once, at the real end
        await goes_on(world, agent)


async def test_the_stop_reason_says_which_of_the_failed_ones_it_was() -> None:
    for reason in (tr.StopReason.ERROR, tr.StopReason.TIMEOUT, tr.StopReason.CANCELLED):
        world = World([stopped(reason)])
        async with world.agent() as agent:
            assert (await agent.generate("go")).stop_reason is reason


# --- interrupted ----------------------------------------------------------------


@drives
async def test_a_cancelled_caller_sees_cancelled(
    drive: Drive, autojump_clock: trio.testing.MockClock
) -> None:
    world = World([[call("quick"), call("slow")]])
    async with world.agent() as agent:
        with trio.move_on_after(1) as scope:
            await drive(world, agent)
            pytest.fail("the drive returned")

        assert scope.cancelled_caught
        ended(world, agent, END.INTERRUPTED)
        assert statuses(agent) == ["ok", "interrupted"]
        assert world.completed == []
        await goes_on(world, agent)


@drives
async def test_a_keyboard_interrupt_leaves_bare(
    drive: Drive, autojump_clock: trio.testing.MockClock
) -> None:
    world = World([[call("quick"), call("exits"), call("slow")]])
    async with world.agent() as agent:
        with pytest.raises(KeyboardInterrupt):
            await drive(world, agent)

        ended(world, agent, END.INTERRUPTED)
        assert statuses(agent) == ["ok", "interrupted", "interrupted"]
        assert world.completed == []
        await goes_on(world, agent)


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_leaving_early_shows_the_caller_nothing(steps: int) -> None:
    world = World([call("quick"), call("quick"), "done"])
    async with world.agent() as agent:
        async with agent.turn("go") as runner:
            world.runner = runner
            for _ in range(steps):
                await anext(runner)

        ended(world, agent, END.INTERRUPTED)
        assert statuses(agent) == ["ok", "not_started"][2 - steps :]
        assert world.completed == []
        with pytest.raises(StopAsyncIteration):
            await anext(runner)


async def test_break_shows_the_caller_nothing() -> None:
    world = World([call("quick")])
    async with world.agent() as agent:
        async with agent.turn("go") as runner:
            world.runner = runner
            async for _ in runner:
                break

        ended(world, agent, END.INTERRUPTED)
        assert statuses(agent) == ["not_started"]
        assert world.completed == []
        await goes_on(world, agent)


async def test_leaving_after_the_answer_leaves_it_answered() -> None:
    world = World(["done"])
    async with world.agent() as agent:
        async with agent.turn("go") as runner:
            world.runner = runner
            async for _ in runner:
                break

        ended(world, agent, END.ANSWERED)
        assert world.completed == ["done"]
        await goes_on(world, agent)


async def test_an_error_of_the_consumer_leaves_bare() -> None:
    world = World([call("quick")])
    async with world.agent() as agent:

        async def consume() -> None:
            async with agent.turn("go") as runner:
                world.runner = runner
                async for _ in runner:
                    raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await consume()

        ended(world, agent, END.INTERRUPTED)
        await goes_on(world, agent)


async def test_a_deadline_around_one_step_interrupts_the_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World([call("slow")])
    async with world.agent() as agent:
        async with agent.turn("go") as runner:
            world.runner = runner
            await anext(runner)
            with trio.move_on_after(1) as scope:
                await anext(runner)
            assert scope.cancelled_caught
            with pytest.raises(StopAsyncIteration):
                await anext(runner)
            with pytest.raises(tr.TurnInterruptedError) as caught:
                await runner.until_done()
            assert caught.value.end_reason is END.INTERRUPTED

        ended(world, agent, END.INTERRUPTED)
        assert world.completed == []
        await goes_on(world, agent)


@pytest.mark.parametrize("commits_before", [1, 2])
async def test_a_deadline_in_the_last_commit_leaves_the_turn_answered_and_returns_no_message(
    commits_before: int, autojump_clock: trio.testing.MockClock
) -> None:
    # Each commit takes a second. The cancel comes while the reply is made durable, or while
    # the end of the turn is.
    world = World(["done"], journal=tr.MemoryJournal(delay=1.0))
    async with world.agent() as agent:
        await trio.sleep(5)
        async with agent.turn("go") as runner:
            world.runner = runner
            with trio.move_on_after(commits_before - 0.5) as scope:
                await anext(runner)
            assert scope.cancelled_caught
            with pytest.raises(tr.TurnEndedError) as caught:
                await runner.until_done()
            # There is an answer, so resume() is no remedy.
            assert "resume" not in str(caught.value)

        ended(world, agent, END.ANSWERED)
        assert agent.history[-1].text == "done"
        await goes_on(world, agent)


# --- timed out ------------------------------------------------------------------


@drives
async def test_the_turns_own_deadline_raises_a_too_slow_error(
    drive: Drive, autojump_clock: trio.testing.MockClock
) -> None:
    world = World([[call("quick"), call("slow")]], {"params": tr.RequestParams(turn_timeout=2.0)})
    async with world.agent() as agent:
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError) as caught:
            await drive(world, agent)

        assert type(caught.value) is tr.TurnTimeoutError
        assert trio.current_time() - began == pytest.approx(2.0)
        ended(world, agent, END.TIMED_OUT)
        assert statuses(agent) == ["ok", "timed_out"]
        assert world.completed == []


async def test_a_turn_that_timed_out_does_not_hinder_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World([call("slow")], {"params": tr.RequestParams(turn_timeout=2.0)})
    async with world.agent() as agent:
        with pytest.raises(tr.TurnTimeoutError):
            await agent.generate("go")
        await goes_on(world, agent)


async def test_the_turns_deadline_counts_the_time_between_steps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World([call("quick"), "done"], {"params": tr.RequestParams(turn_timeout=2.0)})
    async with world.agent() as agent:
        async with agent.turn("go") as runner:
            world.runner = runner
            await anext(runner)
            await trio.sleep(3)
            with pytest.raises(tr.TurnTimeoutError):
                await anext(runner)

        ended(world, agent, END.TIMED_OUT)
        assert statuses(agent) == ["not_started"]


async def test_the_callers_cancel_beats_the_turns_deadline(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World([call("slow")], {"params": tr.RequestParams(turn_timeout=2.0)})
    async with world.agent() as agent:
        with trio.move_on_after(2.0) as scope:
            await agent.generate("go")
        assert scope.cancelled_caught
        ended(world, agent, END.INTERRUPTED)


# --- failed ---------------------------------------------------------------------


@drives
@pytest.mark.parametrize("after_tools", [False, True])
async def test_a_model_error_leaves_bare(after_tools: bool, drive: Drive) -> None:
    error = OSError("no network")
    world = World([call("quick"), error] if after_tools else [error])
    async with world.agent() as agent:
        with pytest.raises(OSError, match="no network") as caught:
            await drive(world, agent)

        assert caught.value is error
        ended(world, agent, END.FAILED)
        assert statuses(agent) == (["ok"] if after_tools else [])
        assert world.completed == []
        await goes_on(world, agent)


@drives
async def test_a_reply_that_is_no_message_fails_the_turn(drive: Drive) -> None:
    world = World([tr.Message.user("I am the user")])
    async with world.agent() as agent:
        with pytest.raises(tr.ModelReplyError):
            await drive(world, agent)
        ended(world, agent, END.FAILED)
        await goes_on(world, agent)


HOOK_ENDS = {
    "before_llm_call": [],
    "after_llm_call": ["not_started"],
    "before_tool_call": ["denied"],
    "after_tool_call": ["ok"],
}


@drives
@pytest.mark.parametrize("name", HOOK_ENDS)
async def test_a_hooks_error_leaves_bare(name: str, drive: Drive) -> None:
    error = LookupError("the hook failed")
    world = World([call("quick"), "done"], {"hooks": hooks_raising(name, error)})
    async with world.agent() as agent:
        with pytest.raises(LookupError) as caught:
            await drive(world, agent)

        assert caught.value is error
        ended(world, agent, END.FAILED)
        assert statuses(agent) == HOOK_ENDS[name]
        assert world.completed == []
        opened = tr.fold(world.journal.stored("s"))
        assert tuple(opened.history.view()) == agent.history


@drives
async def test_a_hooks_error_about_the_answer_fails_the_turn_and_keeps_the_answer(
    drive: Drive,
) -> None:
    error = LookupError("the hook failed")
    world = World(["done"], {"hooks": hooks_raising("after_llm_call", error)})
    async with world.agent() as agent:
        with pytest.raises(LookupError):
            await drive(world, agent)

        ended(world, agent, END.FAILED)
        assert agent.history[-1].text == "done"
        assert world.completed == []
        opened = tr.fold(world.journal.stored("s"))
        assert tuple(opened.history.view()) == agent.history
        assert opened.turn is not None
        assert opened.turn.end_reason is END.FAILED


@drives
async def test_an_error_after_the_end_loses_nothing(drive: Drive) -> None:
    error = LookupError("the hook failed")
    world = World(["done"], {"hooks": hooks_raising("after_turn_complete", error)})
    async with world.agent() as agent:
        with pytest.raises(LookupError) as caught:
            await drive(world, agent)

        assert caught.value is error
        assert agent.last_turn is not None
        assert agent.history[-1].text == "done"
        opened = tr.fold(world.journal.stored("s"))
        assert tuple(opened.history.view()) == agent.history
        # Memory and session agree on how the turn ended.
        assert opened.turn is not None
        assert opened.turn.end_reason is agent.last_turn.end_reason


@drives
async def test_a_fatal_tool_error_leaves_when_the_siblings_are_through(
    drive: Drive, autojump_clock: trio.testing.MockClock
) -> None:
    world = World([[call("fatal"), call("slow"), call("quick")]])
    async with world.agent() as agent:
        with pytest.raises(tr.FatalToolError, match="on fire"):
            await drive(world, agent)

        ended(world, agent, END.FAILED)
        assert statuses(agent) == ["error", "ok", "ok"]
        assert "on fire" in agent.history[-1].tool_results[0].text
        assert world.completed == []
        await goes_on(world, agent)


async def test_several_fatal_tool_errors_leave_as_one_group() -> None:
    world = World([[call("fatal"), call("fatal")]])
    async with world.agent() as agent:
        with pytest.raises(ExceptionGroup) as caught:
            await agent.generate("go")
        assert [type(error) for error in caught.value.exceptions] == [tr.FatalToolError] * 2
        ended(world, agent, END.FAILED)
