"""`ToolAgent.clone`, and the toolsets that clones and parents share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call


def agent_of(name: str, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent(name, model=ScriptedModel(replies), **options)


async def first() -> str:
    return "first"


async def second() -> str:
    return "second"


async def test_a_clone_begins_with_the_templates_and_leaves_the_original_alone() -> None:
    template = tr.Message.user("always", template=True)
    agent = agent_of("a", "one", "two", history=[template])
    await agent.generate("hello")
    clone = agent.clone()
    assert clone.history == (template,)
    await clone.generate("what?")
    assert [message.text for message in agent.history] == ["always", "hello", "one"]
    assert [message.text for message in clone.history] == ["always", "what?", "two"]


async def test_a_clone_runs_while_the_original_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gate = trio.Event()

    async def wait() -> str:
        await gate.wait()
        return "waited"

    agent = agent_of("a", call("wait", id="w"), "from the clone", "done", tools=[wait])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.generate, "go")
        await trio.testing.wait_all_tasks_blocked()
        assert (await agent.clone().generate("and you?")).text == "from the clone"
        gate.set()
    assert agent.history[-1].text == "done"


async def test_the_tools_of_a_clone_are_its_own_to_change() -> None:
    agent = agent_of("a", tools=[first])
    clone = agent.clone()
    clone.add_tool(second)
    agent.remove_tool("first")
    assert [tool.name for tool in clone.tools] == ["first", "second"]
    assert agent.tools == ()


async def test_a_clone_of_a_subclass_has_its_class_hooks_and_attributes() -> None:
    class Noting(tr.ToolAgent):
        def __init__(self, **options: Any) -> None:
            super().__init__("noting", **options)
            self._noted: list[str] = []

        @property
        def tool_runner_hooks(self) -> tr.ToolRunnerHooks:
            return tr.ToolRunnerHooks(after_llm_call=self._note)

        async def _note(self, _: tr.ToolRunner, message: tr.Message) -> None:
            self._noted.append(message.text)

    agent = Noting(model=ScriptedModel(["hi"]))
    clone = agent.clone()
    await clone.generate("go")
    assert type(clone) is Noting
    assert agent._noted == ["hi"]


async def test_a_clone_may_be_kept() -> None:
    journal = tr.MemoryJournal()
    agent = agent_of("a", "one", journal=journal, session="mine")
    clone = agent.clone(journal=journal, session="other")
    async with agent, clone:
        await clone.generate("go")
    assert [type(record).__name__ for record in journal.stored("mine")] == ["SessionOpened"]
    assert tr.fold(journal.stored("other")).messages == clone.history
    with pytest.raises(ValueError, match="together"):
        agent.clone(session="alone")
    with pytest.raises(ValueError, match="grace"):
        agent.clone(grace=-1)


# --- toolsets ---------------------------------------------------------------------


class Box:
    """A toolset that counts how it is used."""

    def __init__(self, *, fails: int = 0) -> None:
        self.name = "box"
        self.fails = fails
        self.opened: int = 0
        self.closed: int = 0

        async def use(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
            assert self.opened == self.closed + 1
            return "used"

        self.tools = [tr.Tool("use", "", {}, use)]

    async def list_tools(self) -> Sequence[tr.Tool]:
        return self.tools

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        if self.fails:
            self.fails -= 1
            raise OSError("no box")
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        self.closed += 1


def asking(name: str = "bob", id: str = "c1") -> tr.ToolCall:
    return call(f"agent__{name}", id=id, message="?")


async def test_the_toolsets_of_a_child_are_opened_once_with_the_parent() -> None:
    box = Box()
    child = agent_of("bob", call("use", id="u"), "one", call("use", id="u"), "two", tools=[box])
    agent = agent_of("alice", asking(), asking(id="c2"), "done", tools=[child])
    with pytest.raises(tr.NotEnteredError, match="async with"):
        await agent.generate("too early")
    async with agent:
        await agent.generate("go")
        assert (box.opened, box.closed) == (1, 0)
    assert (box.opened, box.closed) == (1, 1)
    texts = [result.text for m in agent.history for result in m.tool_results]
    assert texts == ["one", "two"]


async def test_a_child_that_is_entered_too_shares_them() -> None:
    box = Box()
    child = agent_of("bob", call("use", id="u"), "own", tools=[box])
    agent = agent_of("alice", tools=[child])
    async with agent:
        async with child:
            await child.generate("go")
        assert (box.opened, box.closed) == (1, 0)
    assert (box.opened, box.closed) == (1, 1)
    async with child:
        pass
    assert (box.opened, box.closed) == (2, 2)


async def test_agents_that_are_tools_of_each_other_open_each_set_once() -> None:
    boxes = [Box(), Box()]
    alice = agent_of("alice", tools=[boxes[0]])
    bob = agent_of("bob", tools=[boxes[1]])
    alice.add_agent_tool(bob)
    bob.add_agent_tool(alice)
    async with alice, trio.open_nursery() as nursery:
        nursery.start_soon(enter, bob)
        nursery.start_soon(enter, bob)
    assert [(box.opened, box.closed) for box in boxes] == [(1, 1), (1, 1)]


async def enter(agent: tr.ToolAgent) -> None:
    async with agent:
        await trio.lowlevel.checkpoint()


async def test_a_child_that_cannot_be_opened_closes_what_is_open_and_may_be_tried_again() -> None:
    own, box = Box(), Box(fails=1)
    agent = agent_of("alice", tools=[own, agent_of("bob", tools=[box])])
    with pytest.raises(OSError, match="no box"):
        async with agent:
            pytest.fail("entered")
    assert (own.opened, own.closed) == (1, 1)
    async with agent:
        assert (own.opened, box.opened) == (2, 1)
    assert (own.closed, box.closed) == (2, 1)


async def test_what_is_added_while_the_agent_is_open_is_opened_for_each_call() -> None:
    box = Box()
    child = agent_of("bob", call("use", id="u"), "one", tools=[box])
    agent = agent_of("alice", asking(), "done", tools=[Box()])
    async with agent:
        agent.add_agent_tool(child)
        await agent.generate("go")
        assert (box.opened, box.closed) == (1, 1)


async def test_toolsets_that_are_closing_are_opened_again_when_they_are_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow(Box):
        async def __aenter__(self) -> Self:
            assert self.opened == self.closed
            return await super().__aenter__()

        async def __aexit__(self, *_: object) -> None:
            await trio.sleep(2)
            self.closed += 1

    box = Slow()
    child = agent_of("bob", tools=[box])
    agent = agent_of("alice", tools=[child])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(enter, agent)
        await trio.sleep(1)  # it has been entered, and is closing
        assert (box.opened, box.closed) == (1, 0)
        async with child:
            assert (box.opened, box.closed) == (2, 1)
    assert (box.opened, box.closed) == (2, 2)
