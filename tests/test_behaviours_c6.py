"""BEHAVIOURS kC6: bounded fan-out: limits hold, are freed on every exit, and never deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for result in results_of(agent)]


class Peak:
    def __init__(self) -> None:
        self.now = self.highest = 0
        self.order: list[int] = []

    async def __aenter__(self) -> None:
        self.now += 1
        self.highest = max(self.highest, self.now)

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1


def fan_out(peak: Peak, n: int, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    async def work(number: int) -> str:
        async with peak:
            peak.order.append(number)
            await trio.sleep(1 + number % 3)
            if number == 17:
                raise LookupError("one raises")
            return "ok"

    work_tool = tr.tool(work, limiter=options.pop("limiter", None))
    return agent_of(
        [call("work", number=i) for i in range(n)], *replies, tools=[work_tool], **options
    )


@pytest.mark.parametrize("by", ["max_parallel_tools", "limiter"])
async def test_kC6_a_thousand_calls_with_a_limit_of_eight(
    by: str, autojump_clock: trio.testing.MockClock
) -> None:
    peak = Peak()
    limiter = trio.CapacityLimiter(8)
    options: dict[str, Any] = (
        {"limiter": limiter}
        if by == "limiter"
        else {"params": tr.RequestParams(max_parallel_tools=8)}
    )
    agent = fan_out(peak, 1000, "done", **options)
    await agent.generate("go")
    assert peak.highest == 8
    assert statuses(agent) == ["error" if n == 17 else "ok" for n in range(1000)]
    assert limiter.borrowed_tokens == 0


@pytest.mark.parametrize("by", ["max_parallel_tools", "limiter"])
async def test_kC6_a_cancel_half_way_frees_the_slots_and_answers_every_call(
    by: str, autojump_clock: trio.testing.MockClock
) -> None:
    peak = Peak()
    limiter = trio.CapacityLimiter(8)
    options: dict[str, Any] = (
        {"limiter": limiter}
        if by == "limiter"
        else {"params": tr.RequestParams(max_parallel_tools=8)}
    )
    agent = fan_out(peak, 100, "fine", **options)
    with trio.move_on_after(10.5):
        await agent.generate("go")
    assert peak.now == 0
    assert limiter.borrowed_tokens == 0
    found = statuses(agent)
    assert len(found) == 100
    assert found.count("interrupted") == 8
    assert 0 < found.count("not_started") < 90
    assert set(found) <= {"ok", "error", "interrupted", "not_started"}
    assert (await agent.generate("again")).text == "fine"


async def test_kC6_a_limit_of_one_runs_in_the_order_of_the_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peak = Peak()
    agent = fan_out(peak, 30, "done", params=tr.RequestParams(max_parallel_tools=1))
    await agent.generate("go")
    assert peak.order == list(range(30))
    assert peak.highest == 1


class Works:
    """Counts, for each limiter, the tools that do work of their own at the same time."""

    def __init__(self) -> None:
        self.limiters = {name: trio.CapacityLimiter(1) for name in "abc"}
        self.now = dict.fromkeys("abc", 0)
        self.most = dict.fromkeys("abc", 0)

    async def work(self, name: str) -> None:
        self.now[name] += 1
        self.most[name] = max(self.most[name], self.now[name])
        try:
            await trio.sleep(1)
        finally:
            self.now[name] -= 1

    def nesting(self, outer: str, inner: str) -> tr.Tool:
        """A tool under limiter ``outer`` that runs a turn whose tools are under ``inner``."""

        async def leaf() -> str:
            await self.work(inner)
            return "leaf"

        async def nests() -> str:
            await self.work(outer)
            tool = tr.tool(leaf, limiter=self.limiters[inner])
            replies = [[call("leaf"), call("leaf")], "inner done"]
            child = tr.ToolAgent("child", model=ScriptedModel(replies), tools=[tool])
            text = (await child.generate("go")).text
            await self.work(outer)
            return text

        return tr.tool(nests, name=f"{outer}_{inner}", limiter=self.limiters[outer])

    def agent(self, names: Sequence[str], *replies: ScriptItem) -> tr.ToolAgent:
        made = {name: self.nesting(name[0], name[2]) for name in names}
        return agent_of([call(name) for name in names], *replies, tools=made.values())

    @property
    def borrowed(self) -> int:
        return sum(limiter.borrowed_tokens for limiter in self.limiters.values())


NESTED = [
    ["a_a"],
    ["a_a", "a_a", "a_a"],
    ["a_b", "b_a"],
    ["a_b", "b_c", "c_a"],
    ["a_b", "b_b", "b_a", "a_a"],
]


@pytest.mark.parametrize("names", NESTED)
async def test_kC6_nested_turns_keep_the_limits_and_do_not_deadlock(
    names: Sequence[str], autojump_clock: trio.testing.MockClock
) -> None:
    works = Works()
    agent = works.agent(names, "done")
    with trio.fail_after(100):
        assert (await agent.generate("go")).text == "done"
    assert [r.text for r in results_of(agent)] == ["inner done"] * len(names)
    assert max(works.most.values()) == 1
    assert works.borrowed == 0


@pytest.mark.parametrize("names", NESTED)
async def test_kC6_a_cancel_of_nested_turns_frees_every_slot(
    names: Sequence[str], autojump_clock: trio.testing.MockClock
) -> None:
    for halves in range(1, 20):
        works = Works()
        agent = works.agent(names, "done")
        with trio.move_on_after(halves / 2):
            await agent.generate("go")
        assert works.borrowed == 0
        assert max(works.most.values()) <= 1
        tr.check_history(agent.history)


async def test_kC6_nested_turns_do_not_deadlock_on_max_parallel_tools(
    autojump_clock: trio.testing.MockClock,
) -> None:
    params = tr.RequestParams(max_parallel_tools=1)

    async def nests() -> str:
        return (
            await agent_of(call("sleeps", seconds=1), "inner", params=params).generate("x")
        ).text

    agent = agent_of([call("nests")] * 3, "done", tools=[nests], params=params)
    with trio.fail_after(100):
        await agent.generate("go")
    assert statuses(agent) == ["ok"] * 3
