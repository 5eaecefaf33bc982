"""`ToolAgent`: its session, entering and leaving it, its toolsets, and `run_tools`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call


async def work(number: int = 0) -> str:
    """Work."""
    await trio.lowlevel.checkpoint()
    return f"value {number}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


# --- sessions and opening -------------------------------------------------------


async def test_a_session_goes_on_where_it_was() -> None:
    journal = tr.MemoryJournal()
    async with agent_of(call("work"), "one", journal=journal, session="s") as first:
        await first.generate("go")
    async with agent_of("two", journal=journal, session="s") as second:
        assert second.history == first.history
        await second.generate("more")
        assert second.last_turn is not None
        assert second.last_turn.number == 2


async def test_history_and_a_stored_session_together_are_refused() -> None:
    journal = tr.MemoryJournal()
    async with agent_of("one", journal=journal, session="s") as first:
        await first.generate("go")
    other = agent_of(journal=journal, session="s", history=[tr.Message.user("mine")])
    with pytest.raises(tr.UsageError):
        async with other:
            pytest.fail("entered")
    await (await journal.open("s")).aclose()


@pytest.mark.parametrize(
    "use", ["generate", "turn", "resume", "load_history", "clear", "run_tools"]
)
async def test_an_agent_with_something_to_open_must_be_entered(use: str) -> None:
    agent = agent_of("done", tools=[work, Box("box")])
    uses: dict[str, Any] = {
        "generate": lambda: agent.generate("go"),
        "turn": lambda: agent.turn("go").until_done(),
        "resume": agent.resume,
        "load_history": lambda: agent.load_history([]),
        "clear": agent.clear,
        "run_tools": lambda: agent.run_tools(
            tr.Message.assistant(tool_calls=[tr.ToolCall("c", "work")])
        ),
    }

    async def use_it() -> None:
        made = uses[use]()
        if made is not None:
            await made

    with pytest.raises(tr.NotEnteredError, match="async with"):
        await use_it()


class Box:
    """A toolset that counts how it is used."""

    def __init__(self, name: str, *, fails: int = 0, pause: float = 0.0) -> None:
        self.name = name
        self.fails = fails
        self.pause = pause
        self.entered = self.left = self.now = self.most = 0

        async def use(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
            return f"{name} used"

        self.tools = [tr.Tool(f"{name}_use", "", {}, use)]

    async def list_tools(self) -> Sequence[tr.Tool]:
        assert self.now == 1
        return self.tools

    async def __aenter__(self) -> Self:
        await trio.sleep(self.pause)
        if self.fails:
            self.fails -= 1
            raise OSError(f"{self.name} cannot be reached")
        self.entered += 1
        self.now += 1
        self.most = max(self.most, self.now)
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        self.left += 1
        self.now -= 1


async def test_several_tasks_may_enter_and_the_last_one_closes() -> None:
    box = Box("box")
    agent = agent_of("one", tools=[box])
    first_left, done = trio.Event(), trio.Event()

    async def first() -> None:
        async with agent:
            await trio.testing.wait_all_tasks_blocked()
        first_left.set()

    async def second() -> None:
        async with agent:
            await first_left.wait()
            assert (box.entered, box.left) == (1, 0)
            assert (await agent.generate("go")).text == "one"
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        nursery.start_soon(second)
    assert done.is_set()
    assert (box.entered, box.left) == (1, 1)


async def test_a_toolset_that_fails_to_open_closes_the_others_and_may_be_tried_again() -> None:
    good, bad = Box("good"), Box("bad", fails=1)
    journal = tr.MemoryJournal()
    agent = agent_of(
        [call("good_use"), call("bad_use")], "done", tools=[good, bad], journal=journal, session="s"
    )
    with pytest.raises(OSError, match="bad cannot be reached"):
        async with agent:
            pytest.fail("entered")
    assert (good.entered, good.left, bad.entered) == (1, 1, 0)
    async with agent:
        await agent.generate("go")
        assert [r.text for r in results_of(agent)] == ["good used", "bad used"]
    assert (good.entered, good.left) == (2, 2)


@pytest.mark.parametrize("way", ["fails", "cancelled"])
async def test_what_was_opened_is_not_opened_twice_when_another_task_waits(
    way: str, autojump_clock: trio.testing.MockClock
) -> None:
    # The first task's opening fails half-way, while a second one waits for its turn.
    good, bad = Box("good"), Box("bad", fails=1 if way == "fails" else 0, pause=2)
    agent = agent_of(tools=[good, bad])
    ends: list[str] = []

    async def first() -> None:
        with trio.move_on_after(1 if way == "cancelled" else 100):
            try:
                async with agent:
                    pytest.fail("entered")
            except OSError:
                pass
        ends.append("first")

    async def second() -> None:
        await trio.sleep(0.5)
        async with agent:
            ends.append("second")
            assert (good.now, bad.now) == (1, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        nursery.start_soon(second)
    assert ends == ["first", "second"]
    assert good.most == 1
    assert good.entered == good.left
    assert bad.entered == bad.left


async def test_equal_names_of_two_toolsets_are_told_at_opening() -> None:
    one, two = Box("box"), Box("box")
    with pytest.raises(ValueError, match="box_use"):
        async with agent_of(tools=[one, two]):
            pytest.fail("entered")
    assert (one.now, two.now) == (0, 0)


# --- run_tools ------------------------------------------------------------------


async def test_run_tools_answers_one_message_and_touches_nothing_else() -> None:
    agent = agent_of()
    calls = [tr.ToolCall("x", "work", {"number": 1}), tr.ToolCall("x", "nosuch"), call("WORK")]
    answer = await agent.run_tools(tr.Message.assistant(tool_calls=calls))
    assert answer.role == "user"
    assert [r.status.value for r in answer.tool_results] == ["ok", "unavailable", "ok"]
    assert answer.tool_results[0].call_id == "x"
    assert len({r.call_id for r in answer.tool_results}) == 3
    assert agent.history == ()
    assert agent.last_turn is None


async def test_run_tools_of_a_message_without_calls_is_no_result_message() -> None:
    # There is no answer to give: the message itself is none.
    try:
        answer = await agent_of().run_tools(tr.Message.assistant("no calls"))
    except (ValueError, tr.UsageError):
        return
    assert answer.role == "user"


@pytest.mark.parametrize("count", [1, 2])
async def test_run_tools_loses_no_fatal_error(count: int) -> None:
    async def fatal(number: int) -> None:
        raise tr.FatalToolError(f"fatal {number}")

    message = tr.Message.assistant(tool_calls=[call("fatal", number=n) for n in range(count)])
    with pytest.raises((tr.FatalToolError, ExceptionGroup)) as caught:
        await agent_of(tools=[fatal]).run_tools(message)
    told = repr(caught.value)
    assert all(f"fatal {n}" in told for n in range(count))


async def test_run_tools_is_a_checkpoint_and_lets_a_cancel_through(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def sleeps() -> None:
        await trio.sleep(100)

    agent = agent_of(tools=[work, sleeps])
    with trio.testing.assert_checkpoints():
        await agent.run_tools(tr.Message.assistant(tool_calls=[call("work")]))
    with trio.move_on_after(1) as scope:
        await agent.run_tools(tr.Message.assistant(tool_calls=[call("sleeps")]))
    assert scope.cancelled_caught
