"""What a runner recorded folds to what its agent has, after every turn and in any shape of turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner import records
from trio_runner._core.turn import Phase
from trio_runner.testing import ScriptedModel, call

SESSION = "s"
PAUSE = tr.Message.assistant("wait", stop_reason=tr.StopReason.PAUSE)


# --- the agent under test -------------------------------------------------------


async def echo(text: str) -> str:
    """Say it back, after as many checkpoints as it has characters."""
    for _ in text:
        await trio.lowlevel.checkpoint()
    return text


async def broken() -> str:
    raise ValueError("boom")


async def fatal() -> str:
    raise tr.FatalToolError("enough")


async def forever() -> str:
    await trio.sleep_forever()
    return "never"


def echoes(*texts: str) -> list[tr.ToolCall]:
    return [call("echo", text=text) for text in texts]


class Desk:
    """An agent with a session, and the comparison that each test is about."""

    def __init__(
        self,
        script: Iterable[Any],
        *,
        hooks: tr.ToolRunnerHooks | None = None,
        max_iterations: int = 9,
        journal: tr.MemoryJournal | None = None,
        delay: float = 0.0,
    ) -> None:
        self.model = ScriptedModel(script)
        self.journal = journal if journal is not None else tr.MemoryJournal(delay)
        self.agent = tr.ToolAgent(
            "desk",
            model=self.model,
            tools=[echo, broken, fatal, forever],
            hooks=hooks,
            params=tr.RequestParams(max_iterations=max_iterations),
            journal=self.journal,
            session=SESSION,
        )

    @property
    def stored(self) -> tuple[records.Record, ...]:
        return self.journal.stored(SESSION)

    def check(self) -> None:
        """Memory is what the session opens as, and so it is cut at any record."""
        stored = self.stored
        state = tr.fold(stored)
        turn = state.turn
        assert state.history.snapshot() == self.agent.history
        last = self.agent.last_turn
        if last is not None and turn is not None and turn.number == last.number:
            assert turn.messages == last.messages
            assert (turn.end_reason, turn.usage) == (last.end_reason, last.usage)
        for count in range(len(stored) + 1):
            check_opens(stored[:count])
        assert self.model.violations == []

    async def ask(self, text: str = "question") -> tr.Message:
        message = await self.agent.generate(text)
        self.check()
        return message


def check_opens(stored: Sequence[records.Record]) -> None:
    state = tr.fold(stored)
    tr.check_history(state.history.view())
    if state.turn is not None and state.turn.phase is not Phase.ENDED:
        state.turn.interrupt(tr.EndReason.INTERRUPTED, crashed=True)
        tr.check_history(state.history.view())


def statuses(message: tr.Message) -> list[str]:
    return [result.status.value for result in message.tool_results]


# --- shapes of turns ------------------------------------------------------------


@pytest.mark.parametrize("delay", [0.0, 0.5])
async def test_parallel_tools_over_two_steps_and_two_turns(
    delay: float, autojump_clock: trio.testing.MockClock
) -> None:
    desk = Desk(
        [[*echoes("long text", "x", "mid"), call("broken")], echoes("a", "b"), "done", "again"],
        delay=delay,
    )
    async with desk.agent:
        await desk.ask()
        assert len(desk.agent.history) == 6
        await desk.ask()
        assert len(desk.agent.history) == 8


async def test_refused_calls_beside_ones_that_run() -> None:
    unknown = call("nothing")
    bad = tr.ToolCall("bad", "echo", {"text": 3}, "expected an object")
    desk = Desk([[unknown, *echoes("x"), bad], "done"])
    async with desk.agent:
        await desk.ask()
        assert statuses(desk.agent.history[2]) == ["unavailable", "ok", "invalid_arguments"]


@pytest.mark.parametrize("cap", [0, 1, 2])
async def test_pauses_and_the_cap(cap: int) -> None:
    desk = Desk([PAUSE, echoes("x"), PAUSE, "unreached"], max_iterations=cap)
    async with desk.agent:
        await desk.ask()
        assert desk.model.calls == cap + 1


async def test_calls_at_the_cap_then_resumed() -> None:
    desk = Desk([echoes("a"), echoes("b", "c"), echoes("d"), "done"], max_iterations=1)
    async with desk.agent:
        await desk.ask()
        assert statuses(desk.agent.history[-1]) == ["limit_reached", "limit_reached"]
        assert (await desk.agent.resume()).text == "done"
        desk.check()


@pytest.mark.parametrize(
    "stop", [tr.StopReason.MAX_TOKENS, tr.StopReason.SAFETY, tr.StopReason.ERROR]
)
async def test_calls_of_a_reply_that_was_stopped(stop: tr.StopReason) -> None:
    cut = tr.Message.assistant("par", tool_calls=echoes("a", "b"), stop_reason=stop)
    desk = Desk([cut, "next"])
    async with desk.agent:
        await desk.ask()
        assert len(desk.agent.history) == 3
        await desk.ask()


@pytest.mark.parametrize(
    "stop", [tr.StopReason.MAX_TOKENS, tr.StopReason.SAFETY, tr.StopReason.TIMEOUT]
)
async def test_a_reply_that_was_stopped_without_calls(stop: tr.StopReason) -> None:
    desk = Desk([tr.Message.assistant("par", stop_reason=stop), "next"])
    async with desk.agent:
        await desk.ask()
        await desk.ask()


async def test_a_turn_without_history_leaves_session_and_history_alone() -> None:
    desk = Desk(["one", echoes("a"), "two", "three"])
    async with desk.agent:
        await desk.ask()
        before, stored = desk.agent.history, desk.stored
        without = tr.RequestParams(use_history=False)
        await desk.agent.generate("aside", params=without)
        assert (desk.agent.history, desk.stored) == (before, stored)
        desk.check()
        await desk.ask()
        assert len(desk.agent.history) == 4


# --- hooks ----------------------------------------------------------------------

POINTS = ("before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call")


def hook(point: str, action: Callable[[tr.ToolRunner], None]) -> tr.ToolRunnerHooks:
    """Call ``action`` whenever the turn comes to ``point``."""

    async def run(runner: tr.ToolRunner, _: object) -> None:
        action(runner)

    return tr.ToolRunnerHooks(**{point: run})


@pytest.mark.parametrize("point", POINTS)
async def test_messages_appended_in_a_hook(point: str) -> None:
    def append(runner: tr.ToolRunner) -> None:
        if runner.iteration == 0:
            runner.append_messages(f"from {point}", tr.Message.assistant("noted"))

    desk = Desk([echoes("a", "b"), "done", "again"], hooks=hook(point, append))
    async with desk.agent:
        await desk.agent.generate("question", params=tr.RequestParams(max_iterations=1))
        desk.check()
        texts = [message.text for message in desk.agent.history]
        assert texts.count(f"from {point}") == 1


async def test_messages_appended_to_a_paused_turn() -> None:
    def append(runner: tr.ToolRunner) -> None:
        if runner.iteration == 0:
            runner.append_messages("go on")

    desk = Desk([PAUSE, "done"], hooks=hook("after_llm_call", append))
    async with desk.agent:
        await desk.ask()
        assert [message.text for message in desk.agent.history][1:] == ["wait", "go on", "done"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("point", [*POINTS, "after_turn_complete"])
async def test_a_history_replaced_in_a_hook(point: str, keep: int) -> None:
    def replace(runner: tr.ToolRunner) -> None:
        history = runner.agent.conversation.history.snapshot()
        runner.replace_history([tr.Message.user(f"summary {runner.iteration}"), *history[:keep]])

    desk = Desk([echoes("a", "b"), echoes("c"), "done", "again"], hooks=hook(point, replace))
    async with desk.agent:
        await desk.ask()
        await desk.ask()


async def test_the_same_id_again_after_the_history_lost_it_is_a_new_id_in_the_turn() -> None:
    def clear(runner: tr.ToolRunner) -> None:
        runner.replace_history([tr.Message.user("summary")])

    same = tr.ToolCall("c1", "echo", {"text": "x"})
    desk = Desk([same, same, "done"], hooks=hook("after_tool_call", clear))
    async with desk.agent, desk.agent.turn("question") as runner:
        async for _ in runner:
            tr.check_history(runner.turn_messages)
        assert runner.end_reason is tr.EndReason.ANSWERED
        desk.check()


async def test_a_denied_call() -> None:
    async def deny(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny(message.tool_calls[0].id, "not that one")

    desk = Desk([echoes("a", "b"), "done"], hooks=tr.ToolRunnerHooks(before_tool_call=deny))
    async with desk.agent:
        await desk.ask()
        assert statuses(desk.agent.history[2]) == ["denied", "ok"]


@pytest.mark.parametrize("point", [*POINTS, "after_turn_complete"])
async def test_a_hook_that_fails_and_the_turn_after_it(point: str) -> None:
    def fail(runner: tr.ToolRunner) -> None:
        raise RuntimeError("hook")

    def reply(request: tr.ModelRequest) -> str | list[tr.ToolCall]:
        return "done" if request.history[-1].tool_results else echoes("a", "b")

    desk = Desk([reply] * 4, hooks=hook(point, fail))
    async with desk.agent:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="hook"):
                await desk.agent.generate("question")
            desk.check()


@pytest.mark.parametrize("point", ["after_tool_call", "before_llm_call"])
async def test_a_hook_that_appends_and_fails_leaves_the_same_cap_in_memory_and_on_disk(
    point: str,
) -> None:
    armed = [True]

    def append_and_fail(runner: tr.ToolRunner) -> None:
        if armed and runner.agent.conversation.history.view()[-1].tool_results:
            armed.clear()
            runner.append_messages("a hint")
            raise RuntimeError("hook")

    hooks = hook(point, append_and_fail)
    desk = Desk([echoes("a"), echoes("b"), "unreached"], hooks=hooks, max_iterations=1)
    async with desk.agent:
        with pytest.raises(RuntimeError, match="hook"):
            await desk.agent.generate("question")
        desk.check()
        turn = tr.fold(desk.stored).turn
        assert turn is not None
        turn.resumed()
        assert turn.iteration == 1
        # One batch has run, so the next one is over the cap.
        await desk.agent.resume()
        assert statuses(desk.agent.history[-1]) == ["limit_reached"]
        desk.check()


# --- failing, stopping, going on ------------------------------------------------


async def test_a_model_that_fails_after_the_tools_and_the_turn_resumed() -> None:
    desk = Desk([echoes("a", "b"), OSError("net"), echoes("c"), "done"])
    async with desk.agent:
        with pytest.raises(OSError, match="net"):
            await desk.agent.generate("question")
        desk.check()
        assert (await desk.agent.resume()).text == "done"
        desk.check()
        assert desk.agent.last_turn is not None
        assert desk.agent.last_turn.number == 1


async def test_a_model_that_fails_and_a_new_turn_instead() -> None:
    desk = Desk([echoes("a"), OSError("net"), "done"])
    async with desk.agent:
        with pytest.raises(OSError, match="net"):
            await desk.agent.generate("question")
        await desk.ask("another question")


async def test_a_tool_that_ends_the_turn() -> None:
    desk = Desk([[call("fatal"), *echoes("x")], "done"])
    async with desk.agent:
        with pytest.raises(tr.FatalToolError):
            await desk.agent.generate("question")
        desk.check()
        await desk.agent.resume()
        desk.check()


async def test_a_turn_left_by_break_before_its_tools_run() -> None:
    desk = Desk([echoes("a", "b"), "done"])
    async with desk.agent:
        runner = desk.agent.turn("question")
        async with runner:
            async for _ in runner:
                runner.append_messages("and then")
                break
        desk.check()
        assert statuses(desk.agent.history[2]) == ["not_started", "not_started"]
        assert desk.agent.history[-1].text == "and then"
        await desk.ask()


async def test_a_cancel_within_a_batch_and_the_turn_resumed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    desk = Desk([[*echoes("x"), call("forever")], "done"])
    async with desk.agent:
        with trio.move_on_after(1) as scope:
            await desk.agent.generate("question")
        assert scope.cancelled_caught
        desk.check()
        assert statuses(desk.agent.history[2]) == ["ok", "interrupted"]
        await desk.agent.resume()
        desk.check()


async def test_a_deadline_of_the_turn_and_a_call_that_was_cancelled_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    desk = Desk([[*echoes("x"), call("forever", id="f1")], [call("forever")], "done"])
    async with desk.agent:
        params = tr.RequestParams(turn_timeout=5)
        runner = desk.agent.turn("question", params=params)

        async def cancel_one() -> None:
            await trio.sleep(1)
            assert runner.cancel_call("f1")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_one)
            with pytest.raises(tr.TurnTimeoutError):
                await runner.until_done()
        desk.check()
        assert statuses(desk.agent.history[2]) == ["ok", "cancelled"]
        assert statuses(desk.agent.history[4]) == ["timed_out"]


# --- other sessions of the same conversation ------------------------------------


@pytest.mark.parametrize("resumes", [False, True])
async def test_a_process_that_died_within_a_batch(resumes: bool) -> None:
    died = Desk([[*echoes("x"), call("forever"), call("broken")], "unreached"])
    async with died.agent, trio.open_nursery() as nursery:
        nursery.start_soon(died.agent.generate, "question")
        await trio.testing.wait_all_tasks_blocked()
        cut = died.stored
        nursery.cancel_scope.cancel()
    # What was on disk in the middle of the batch, in a store of its own.
    journal = tr.MemoryJournal()
    session = await journal.open(SESSION)
    session.append(cut)
    await session.aclose()

    desk = Desk(["done"], journal=journal)
    async with desk.agent:
        assert [message.role for message in desk.agent.history] == ["user"]
        if resumes:
            await desk.agent.resume()
        else:
            await desk.agent.generate("another question")
        desk.check()
        assert statuses(desk.agent.history[2]) == ["ok", "unknown_after_crash", "error"]


async def test_the_attempts_of_a_cut_call_are_counted_alike_live_and_folded() -> None:
    waits = tr.tool(forever, name="forever", idempotent=True)
    journal = tr.MemoryJournal()
    for attempt in (1, 2, 3):
        desk = Desk([[call("forever"), *echoes("x")]], journal=journal)
        desk.agent.add_tool(waits, replace=True)
        async with desk.agent, trio.open_nursery() as nursery:
            if attempt > 1:
                nursery.start_soon(desk.agent.resume)
            else:
                nursery.start_soon(desk.agent.generate, "question")
            await trio.testing.wait_all_tasks_blocked()
            cut = desk.stored
            live, folded = desk.agent.conversation.turn, tr.fold(cut).turn
            assert live is not None
            assert folded is not None
            for turn in (live, folded):
                assert turn.open_step is not None
                assert list(turn.open_step.attempts) == [attempt, 1]
                assert not turn.open_step.is_cut(0)
                assert turn.open_positions == [0]
            nursery.cancel_scope.cancel()
        journal = tr.MemoryJournal()
        session = await journal.open(SESSION)
        session.append(cut)
        await session.aclose()


async def test_a_history_loaded_with_an_open_step_and_answered_by_input() -> None:
    asked = tr.Message.assistant(tool_calls=[tr.ToolCall("q", "echo", {"text": "x"})])
    desk = Desk(["done", "again"])
    async with desk.agent:
        await desk.ask()
        desk.agent.load_history([tr.Message.user("old"), asked])
        desk.check()
        result = tr.ToolResult("q", "echo", "from outside")
        await desk.agent.generate(tr.Message.user("more", tool_results=[result]))
        desk.check()
        assert desk.agent.history[2].tool_results == (result,)


async def test_a_history_loaded_with_an_open_step_and_resumed() -> None:
    asked = tr.Message.assistant(tool_calls=[tr.ToolCall("q", "echo", {"text": "x"})])
    desk = Desk(["done"])
    async with desk.agent:
        desk.agent.load_history([tr.Message.user("old"), asked])
        await desk.agent.resume()
        desk.check()
        # The history does not say whether it ran, so it does not run again.
        assert statuses(desk.agent.history[2]) == ["interrupted"]


async def test_a_cleared_conversation() -> None:
    desk = Desk([echoes("a"), "done", echoes("a"), "again"])
    async with desk.agent:
        await desk.ask()
        desk.agent.clear()
        desk.check()
        assert len(desk.agent.history) == 0
        await desk.ask()


async def test_the_same_agent_reopened() -> None:
    desk = Desk([echoes("a"), "done", "again"])
    async with desk.agent:
        await desk.ask()
    async with desk.agent:
        desk.check()
        await desk.ask()
