"""Agents in agents: depth, cycles, one shared limit, one grace for all that is nested."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call


def agent_of(name: str, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent(name, model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def asking(name: str, id: str = "c1") -> tr.ToolCall:
    return call(f"agent__{name}", id=id, message="?")


# --- three levels, fifty tools, one limit -------------------------------------------


class Office:
    """A root that asks 5 agents, of which each asks 2, of which each runs 5 tools.

    All calls, those of agents too, share one limiter. Every reply has a usage of its
    own, so that one that is lost, or counted twice, shows in the sum.
    """

    def __init__(self) -> None:
        self.limiter = trio.CapacityLimiter(8)
        self.running = self.peak = self.ran = 0
        self.numbers = itertools.count()
        self.spent = tr.Usage()
        work = tr.tool(self.work, limiter=self.limiter)
        low = self.agent("low", lambda: [call("work") for _ in range(5)], tools=[work])
        mid = self.agent("mid", lambda: [asking("low", "") for _ in range(2)])
        mid.add_agent_tool(low, limiter=self.limiter)
        self.root = self.agent("root", lambda: [asking("mid", "") for _ in range(5)])
        self.root.add_agent_tool(mid, limiter=self.limiter)

    def agent(
        self, name: str, batch: Callable[[], list[tr.ToolCall]], **options: Any
    ) -> tr.ToolAgent:
        def reply(request: tr.ModelRequest) -> tr.Message:
            usage = tr.Usage(2 ** next(self.numbers), 1)
            self.spent += usage
            if request.history[-1].tool_results:
                return tr.Message.assistant("done", usage=usage)
            calls = [
                tr.ToolCall(f"{name}-{n}", each.name, each.arguments)
                for n, each in enumerate(batch())
            ]
            return tr.Message.assistant(tool_calls=calls, usage=usage)

        return tr.ToolAgent(name, model=ScriptedModel(itertools.repeat(reply)), **options)

    async def work(self) -> str:
        self.running += 1
        self.peak = max(self.peak, self.running)
        await trio.sleep(1)
        self.running -= 1
        self.ran += 1
        return "worked"


async def test_three_levels_with_fifty_tools_and_one_limit_of_eight(
    autojump_clock: trio.testing.MockClock,
) -> None:
    office = Office()
    with trio.fail_after(1000):
        await office.root.generate("go")
    assert (office.ran, office.peak) == (50, 8)
    assert office.limiter.borrowed_tokens == 0
    last = office.root.last_turn
    assert last is not None
    # 2 replies of the root, 2 of each of 5 in the middle, 2 of each of 10 below.
    assert office.spent.output_tokens == 32
    assert last.usage.output_tokens == 2
    assert last.total_usage == office.spent
    assert {result.status for result in results_of(office.root)} == {tr.CallStatus.OK}


async def test_a_cancel_at_any_time_frees_every_slot_of_the_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for seconds in (0.5, 1.0, 3.5, 6.0):
        office = Office()
        with trio.move_on_after(seconds) as scope:
            await office.root.generate("go")
        assert scope.cancelled_caught
        assert office.limiter.borrowed_tokens == 0
        assert {result.status for result in results_of(office.root)} == {tr.CallStatus.INTERRUPTED}
        last = office.root.last_turn
        assert last is not None
        # What was spent in turns that were cut is in the sum as well.
        assert last.total_usage == office.spent


# --- depth and cycles ---------------------------------------------------------------


def asks_until(depth: int, names: list[str]) -> Callable[[tr.ModelRequest], ScriptItem]:
    """A model that asks on until the limit stops it, and then says what it was told."""

    def reply(request: tr.ModelRequest) -> ScriptItem:
        last = request.history[-1]
        if last.tool_results:
            return last.tool_results[0].text
        level = int(last.text)
        name = names[level % len(names)]
        return call(f"agent__{name}", id=f"d{level}", message=str(level + 1))

    return reply


@pytest.mark.parametrize("names", [["a"], ["b", "a"]], ids=["A asks A", "A asks B asks A"])
@pytest.mark.parametrize("max_depth", [1, 3, None])
async def test_agents_may_ask_in_a_circle_up_to_the_limit(
    names: list[str], max_depth: int | None
) -> None:
    limit = 8 if max_depth is None else max_depth
    model = ScriptedModel(itertools.repeat(asks_until(limit, names)))
    agents = {name: tr.ToolAgent(name, model=model) for name in set(names)}
    options: dict[str, Any] = {} if max_depth is None else {"max_depth": max_depth}
    for name, child in zip([*names[1:], names[0]], names, strict=True):
        agents[name].add_agent_tool(agents[child], **options)
    reply = await agents["a"].generate("0")
    assert f"would run {limit + 1} turns deep, and {limit} are allowed (max_depth)" in reply.text
    assert model.calls == 2 * (limit + 1)


@pytest.mark.parametrize("deep", [False, True], ids=["own tool", "tool of a child"])
async def test_the_running_agent_itself_is_refused_in_its_own_tool(deep: bool) -> None:
    told: list[str] = []

    async def again() -> str:
        with pytest.raises(tr.BusyError) as caught:
            await agent.generate("and now?")
        told.append(str(caught.value))
        return "tried"

    child = agent_of("child", call("again", id="x"), "tried", tools=[again])
    asks = asking("child") if deep else call("again", id="x")
    agent = agent_of("a", asks, "done", tools=[child if deep else again])
    assert (await agent.generate("go")).text == "done"
    (why,) = told
    assert "from inside a tool of the agent's own running turn" in why
    assert "agent.add_agent_tool(agent)" in why
    assert "agent.clone()" in why


async def test_a_clone_may_be_asked_in_a_tool() -> None:
    async def again() -> str:
        return (await agent.clone().generate("and now?")).text

    agent = agent_of("a", call("again", id="x"), "from the clone", "done", tools=[again])
    await agent.generate("go")
    assert [result.text for result in results_of(agent)] == ["from the clone"]


async def test_run_tools_is_no_turn_that_a_tool_would_wait_for() -> None:
    async def ask() -> str:
        return (await agent.generate("go")).text

    agent = agent_of("a", "an answer", tools=[ask])
    message = await agent.run_tools(tr.Message.assistant(tool_calls=[call("ask", id="c")]))
    assert message.tool_results[0].text == "an answer"


# --- one grace ------------------------------------------------------------------------


class Deep:
    """Agents in agents, the innermost in a tool that waits, on a store that hangs."""

    def __init__(self, levels: int, *, child_grace: float = 5.0) -> None:
        self.journal = tr.MemoryJournal()
        self.waiting = trio.Event()
        agent = agent_of("a0", call("wait", id="w"), tools=[self.wait], grace=child_grace)
        for level in range(1, levels):
            agent = agent_of(f"a{level}", asking(f"a{level - 1}"), tools=[agent], grace=child_grace)
        self.agent = agent_of(
            "top", asking(agent.name), tools=[agent], journal=self.journal, session="s", grace=5.0
        )

    async def wait(self) -> str:
        self.waiting.set()
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("child_grace", [5.0, 30.0])
@pytest.mark.parametrize("levels", [1, 3])
async def test_a_hanging_store_is_left_within_one_grace_however_deep(
    levels: int, child_grace: float, autojump_clock: trio.testing.MockClock
) -> None:
    deep = Deep(levels, child_grace=child_grace)
    async with deep.agent, trio.open_nursery() as nursery:
        nursery.start_soon(deep.agent.generate, "go")
        await deep.waiting.wait()
        deep.journal.delay = "hang"
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(5.0)
    last = deep.agent.last_turn
    assert last is not None
    assert last.end_reason is tr.EndReason.INTERRUPTED
    assert [type(error) for error in last.commit_errors] == [tr.CommitUnknownError]


async def test_what_a_call_that_was_stopped_alone_has_used_is_no_part_of_the_turns_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    deep = Deep(1)
    async with deep.agent as agent, trio.open_nursery() as nursery:
        runner = agent.turn("go")
        nursery.start_soon(runner.until_done)
        await deep.waiting.wait()
        deep.journal.delay = "hang"
        began = trio.current_time()
        assert runner.cancel_call("c1")
        # The call takes 5 s to leave; then its result waits for the store.
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began == pytest.approx(25.0)


async def test_a_session_that_cannot_be_opened_in_time_is_an_error_of_the_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Journal(tr.MemoryJournal):
        async def open(self, session_id: str) -> Any:
            if session_id != "s":
                await trio.sleep_forever()
            return await super().open(session_id)

    inner = agent_of("inner", "never asked", commit_timeout=7.0)
    child = agent_of("bob", asking("inner"), "bob", tools=[inner], commit_timeout=3.0)
    agent = agent_of("a", asking("bob"), "done", tools=[child], journal=Journal(), session="s")
    async with agent:
        began = trio.current_time()
        await agent.generate("go")
        assert trio.current_time() - began == pytest.approx(3.0)
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.ERROR
    assert "could not be asked" in result.text
    assert "was not open after 3 s (commit_timeout); its store hangs" in result.text


# --- limits and consent -----------------------------------------------------------------


async def test_a_limit_around_the_turn_reaches_the_turns_inside() -> None:
    async def work() -> str:
        return "worked"

    child = agent_of("bob", call("work", id="w"), "never asked for", tools=[work])
    agent = agent_of("a", asking("bob"), "never asked for", tools=[child])
    with tr.limits(model_calls=2) as scope:
        await agent.generate("go")
    assert scope.spent.model_calls == 2
    (result,) = results_of(agent)
    assert "its turn ended limit" in result.text
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.LIMIT


async def test_a_child_that_is_suspended_is_an_error_that_says_so() -> None:
    outside = tr.external_tool("outside", "Somebody else does it.", {"type": "object"})
    child = agent_of("bob", call("outside", id="o"), tools=[outside])
    agent = agent_of("a", asking("bob"), "I see", tools=[child])
    await agent.generate("go")
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.ERROR
    assert "Agent 'bob' gave no answer: its turn ended suspended" in result.text


@pytest.mark.parametrize("allowed", [True, False])
async def test_asking_an_agent_may_need_consent(allowed: bool) -> None:
    async def decide(_: tr.ApprovalRequest) -> tr.Approve | tr.Deny:
        return tr.Approve({"message": "only this"}) if allowed else tr.Deny("not him")

    child = agent_of("bob", "fine")
    agent = agent_of("a", asking("bob"), "done", approver=decide)
    agent.add_agent_tool(child, needs_approval=True)
    await agent.generate("go")
    (result,) = results_of(agent)
    assert result.status == ("ok" if allowed else "denied")
    model: Any = child.model
    asked = [request.history[-1].text for request in model.requests]
    assert asked == (["only this"] if allowed else [])
