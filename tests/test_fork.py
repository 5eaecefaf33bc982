"""`agent.fork`: two conversations that go on apart from here."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call


async def work() -> str:
    return "done"


def agent_of(replies: list[Any], **more: Any) -> tr.ToolAgent:
    return tr.ToolAgent("a", model=ScriptedModel(replies), tools=[work], **more)


async def test_a_fork_goes_on_from_here_and_neither_sees_the_other() -> None:
    agent = agent_of(["one", "of the agent", "of the fork"])
    await agent.generate("go")
    shared = agent.history
    fork = agent.fork()
    assert fork.history == shared
    await agent.generate("and?")
    await fork.generate("or?")
    assert [message.text for message in agent.history[2:]] == ["and?", "of the agent"]
    assert [message.text for message in fork.history[2:]] == ["or?", "of the fork"]
    assert fork.usage == tr.SessionUsage()


TEMPLATE = tr.Message.user("always", template=True)


@pytest.mark.parametrize(
    ("turns", "kept"),
    [(None, 9), (0, 1), (1, 3), (2, 7), (3, 9), (99, 9), (-1, 7), (-2, 3), (-3, 1), (-99, 1)],
)
async def test_a_fork_begins_at_a_turn(turns: int | None, kept: int) -> None:
    agent = agent_of(["one", [call("work")], "two", "three"], history=[TEMPLATE])
    for prompt in ("first", "second", "third"):
        await agent.generate(prompt)
    assert agent.fork(turns=turns).history == agent.history[:kept]
    tr.check_history(agent.history[:kept])


async def test_a_fork_of_a_running_turn_has_its_closed_steps() -> None:
    agent = agent_of([[call("work")], [call("work")], "done"])
    async with agent.turn("go") as runner:
        await anext(runner)
        await anext(runner)
        fork = agent.fork()
    tr.check_history(fork.history)
    assert [len(message.tool_calls) for message in fork.history] == [0, 1, 0]
    fork.model = ScriptedModel(["of the fork"])
    assert (await fork.generate("what is done?")).text == "of the fork"


async def test_a_fork_may_have_a_session_of_its_own_in_the_same_journal() -> None:
    journal = tr.MemoryJournal()
    async with agent_of(["one", "two"], journal=journal, session="s") as agent:
        await agent.generate("go")
        fork = agent.fork(session="s-fork")
        with pytest.raises(tr.NotEnteredError):
            await fork.generate("too early")
        async with fork:
            await fork.generate("go on")
    assert len(tr.fold(journal.stored("s")).messages) == 2
    assert tr.fold(journal.stored("s-fork")).messages == fork.history
    assert len(fork.history) == 4


async def test_a_fork_without_a_session_is_kept_nowhere() -> None:
    journal = tr.MemoryJournal()
    async with agent_of(["one", "two"], journal=journal, session="s") as agent:
        await agent.generate("go")
        fork = agent.fork()
        await fork.generate("go on")
    assert tr.fold(journal.stored("s")).messages == agent.history
    assert len(agent.history) == 2


async def test_a_fork_cannot_have_the_session_of_its_agent_or_half_a_place() -> None:
    journal = tr.MemoryJournal()
    agent = agent_of([], journal=journal, session="s")
    with pytest.raises(ValueError, match="this agent's own"):
        agent.fork(session="s")
    with pytest.raises(ValueError, match="belong together"):
        agent.fork(journal=journal)
    with pytest.raises(ValueError, match="belong together"):
        agent_of([]).fork(session="s")


async def test_forks_run_side_by_side() -> None:
    agent = agent_of(["one"])
    await agent.generate("go")
    forks = [agent.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        fork.model = ScriptedModel([[call("work")], f"answer {number}"])
    async with trio.open_nursery() as nursery:
        for fork in forks:
            nursery.start_soon(fork.generate, "each")
    assert [fork.history[-1].text for fork in forks] == ["answer 0", "answer 1", "answer 2"]


class Subclass(tr.ToolAgent):
    """An agent with an attribute and hooks of its own."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__("sub", model=ScriptedModel(["one", "two"]))
        self.notes = notes

    @property
    def tool_runner_hooks(self) -> tr.ToolRunnerHooks:
        async def note(runner: tr.ToolRunner, message: tr.Message) -> None:
            self.notes.append(message.text)

        return tr.ToolRunnerHooks(after_llm_call=note)


async def test_a_fork_of_a_subclass_is_one_too() -> None:
    agent = Subclass([])
    await agent.generate("go")
    fork = agent.fork()
    await fork.generate("go on")
    assert type(fork) is Subclass
    assert agent.notes == ["one", "two"]
