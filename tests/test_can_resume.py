"""`ToolAgent.can_resume`: it says beforehand whether `resume` has a turn to go on with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call

Do = Callable[[tr.ToolAgent], Awaitable[object]]


def add(a: int, b: int) -> int:
    return a + b


def agent_on(journal: tr.MemoryJournal, *script: object) -> tr.ToolAgent:
    model = ScriptedModel(list(script))  # type: ignore[arg-type]
    return tr.ToolAgent("sums", model=model, tools=[add], journal=journal, session="s")


async def nothing(agent: tr.ToolAgent) -> None:
    await trio.lowlevel.checkpoint()


async def answered(agent: tr.ToolAgent) -> None:
    await agent.generate("1 + 2?")


async def interrupted(agent: tr.ToolAgent) -> None:
    with trio.CancelScope() as scope:
        async with agent.turn("1 + 2?") as turn:
            await anext(turn)
            scope.cancel()
            await trio.lowlevel.checkpoint()


async def failed(agent: tr.ToolAgent) -> None:
    with pytest.raises(OSError, match="no network"):
        await agent.generate("1 + 2?")


async def capped(agent: tr.ToolAgent) -> None:
    await agent.generate("1 + 2?", params=tr.RequestParams(max_iterations=1))


async def cleared(agent: tr.ToolAgent) -> None:
    await interrupted(agent)
    agent.clear()


async def loaded_open(agent: tr.ToolAgent) -> None:
    await trio.lowlevel.checkpoint()
    asks = tr.Message.assistant(tool_calls=[call("add", id="c", a=1, b=2)])
    agent.load_history([tr.Message.user("1 + 2?"), asks])


async def loaded_closed(agent: tr.ToolAgent) -> None:
    await trio.lowlevel.checkpoint()
    agent.load_history([tr.Message.user("1 + 2?"), tr.Message.assistant("3")])


ASKS = [call("add", a=1, b=2)]


@pytest.mark.parametrize(
    ("do", "script", "expected"),
    [
        (nothing, [], False),
        (answered, [ASKS, "3"], False),
        (interrupted, [ASKS], True),
        (failed, [OSError("no network")], True),
        (capped, [ASKS, ASKS], True),
        (cleared, [ASKS], False),
        (loaded_open, [], True),
        (loaded_closed, [], False),
    ],
)
async def test_it_is_whether_resume_goes_on_or_has_nothing_to(
    do: Do, script: list[object], expected: bool
) -> None:
    journal = tr.MemoryJournal()
    async with agent_on(journal, *script) as agent:
        await do(agent)
        assert agent.can_resume is expected
    async with agent_on(journal, "3") as again:  # another process
        assert again.can_resume is expected
        if expected:
            assert (await again.resume()).text == "3"
        else:
            with pytest.raises(tr.NothingToResumeError):
                await again.resume()
        assert not again.can_resume


async def test_a_turn_that_a_crash_cut_can_be_resumed() -> None:
    journal, copy = tr.MemoryJournal(), tr.MemoryJournal()
    async with agent_on(journal, ASKS, "3") as agent:
        await agent.generate("1 + 2?")
    session = await copy.open("s")
    await session.append(journal.stored("s")[:-2]).wait()
    await session.aclose()

    async with agent_on(copy, "3") as again:
        assert again.can_resume


async def test_while_a_turn_runs_there_is_nothing_to_resume() -> None:
    agent = tr.ToolAgent("sums", model=ScriptedModel([ASKS, "3"]), tools=[add])
    async with agent.turn("1 + 2?") as turn:
        await anext(turn)
        assert not agent.can_resume


async def test_before_its_session_is_open_nobody_knows() -> None:
    agent = agent_on(tr.MemoryJournal())
    with pytest.raises(tr.NotEnteredError):
        assert agent.can_resume
