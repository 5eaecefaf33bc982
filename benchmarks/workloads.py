"""The work that is measured: a turn of ours, and bare trio doing the same.

What may live here: the models, tools and loops that the benchmarks time. Each
workload is an async function that takes how much to do; what is not the thing
measured (the replies, the agent) is made before, by a `prepare` function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

import trio

import trio_runner as tr
from trio_runner.abc import DeltaSink, ModelRequest, Tool, ToolContext

#: What is asserted of a sample when the clock has stopped.
Check: TypeAlias = Callable[[], None]
#: One sample: the work, with everything that it needs prepared.
Sample: TypeAlias = Callable[[], Awaitable[Check]]
#: Makes a sample of so many calls, or steps.
Prepare: TypeAlias = Callable[[int], Sample]
#: What runs in a call: a `Tool` object, or a plain function with one ``int`` (pydantic).
ToolKind: TypeAlias = Literal["tool", "function"]


# --- what the model says, and what the tools do ---------------------------------


class ListModel:
    """Plays prepared replies and does nothing else: no checkpoint, no copy."""

    def __init__(self, replies: Sequence[tr.Message]) -> None:
        self._replies = iter(replies)

    async def reply(self, request: ModelRequest, emit: DeltaSink) -> tr.Message:
        """The next reply."""
        return next(self._replies)


async def _no_op(arguments: tr.JSONObject, context: ToolContext) -> str:
    await trio.lowlevel.checkpoint()
    return "done"


async def no_op(number: int) -> str:
    """Do nothing."""
    await trio.lowlevel.checkpoint()
    return "done"


async def _sleep(arguments: tr.JSONObject, context: ToolContext) -> str:
    await trio.sleep(context.arguments["seconds"])
    return "done"


def _tool(kind: ToolKind) -> Tool:
    return tr.tool(no_op) if kind == "function" else Tool("no_op", "Does nothing.", {}, _no_op)


def _one_batch(count: int) -> list[tr.Message]:
    calls = [tr.ToolCall(f"call_{i}", "no_op", {"number": i}) for i in range(count)]
    return [tr.Message.assistant(tool_calls=calls), tr.Message.assistant("done")]


def _many_steps(count: int) -> list[tr.Message]:
    replies = [
        tr.Message.assistant(tool_calls=[tr.ToolCall(f"call_{i}", "no_op", {"number": i})])
        for i in range(count)
    ]
    return [*replies, tr.Message.assistant("done")]


# --- bare trio ------------------------------------------------------------------


async def _bare_child(number: int, results: dict[int, str]) -> None:
    await trio.lowlevel.checkpoint()
    results[number] = "done"


async def _bare_scoped_child(number: int, results: dict[int, str]) -> None:
    with trio.CancelScope():
        await trio.lowlevel.checkpoint()
        results[number] = "done"


def _check_bare(results: dict[int, str], count: int) -> None:
    assert len(results) == count


def bare_batch(count: int) -> Sample:
    """One nursery, ``count`` children; each does a checkpoint and stores its result."""

    async def sample() -> Check:
        results: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(_bare_child, number, results)
        return lambda: _check_bare(results, count)

    return sample


def bare_scoped_batch(count: int) -> Sample:
    """The same, with a cancel scope for each child."""

    async def sample() -> Check:
        results: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(_bare_scoped_child, number, results)
        return lambda: _check_bare(results, count)

    return sample


def bare_steps(count: int) -> Sample:
    """``count`` times a nursery with one child."""

    async def sample() -> Check:
        results: dict[int, str] = {}
        for number in range(count):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_bare_child, number, results)
        return lambda: _check_bare(results, count)

    return sample


def bare_sleepers(seconds: Sequence[float]) -> Sample:
    """A nursery of children that sleep."""

    async def child(number: int, results: dict[int, str]) -> None:
        await trio.sleep(seconds[number])
        results[number] = "done"

    async def sample() -> Check:
        results: dict[int, str] = {}
        async with trio.open_nursery() as nursery:
            for number in range(len(seconds)):
                nursery.start_soon(child, number, results)
        return lambda: _check_bare(results, len(seconds))

    return sample


# --- ours -----------------------------------------------------------------------


def _turn(
    replies: Sequence[tr.Message],
    tool: Tool,
    *,
    scopes: bool = False,
    journal: tr.MemoryJournal | None = None,
) -> Sample:
    """One turn of a new agent. With ``scopes`` somebody holds the runner, as applications do."""
    agent = tr.ToolAgent(
        "bench",
        model=ListModel(replies),
        tools=[tool],
        params=tr.RequestParams(max_iterations=len(replies)),
        journal=journal,
        session="bench" if journal is not None else None,
    )

    def check() -> None:
        # The input; each step's reply and results; the answer.
        assert len(agent.history) == 2 * len(replies)
        assert all(not r.is_error for message in agent.history for r in message.tool_results)

    async def drive() -> None:
        if scopes:
            async with agent.turn("go") as runner:
                await runner.until_done()
        else:
            await agent.generate("go")

    async def sample() -> Check:
        if journal is None:
            await drive()
        else:
            async with agent:
                await drive()
        return check

    return sample


def batch(*, kind: ToolKind = "tool", scopes: bool = False, journal: bool = False) -> Prepare:
    """A turn with one batch of so many calls, then the answer."""

    def prepare(count: int) -> Sample:
        memory = tr.MemoryJournal() if journal else None
        return _turn(_one_batch(count), _tool(kind), scopes=scopes, journal=memory)

    return prepare


def steps(*, journal: bool = False, scopes: bool = False) -> Prepare:
    """A turn of so many steps with one call each, then the answer."""

    def prepare(count: int) -> Sample:
        memory = tr.MemoryJournal() if journal else None
        return _turn(_many_steps(count), _tool("tool"), scopes=scopes, journal=memory)

    return prepare


def sleepers(seconds: Sequence[float]) -> Sample:
    """A turn with one batch of calls that sleep."""
    calls = [tr.ToolCall(f"call_{i}", "sleep", {"seconds": each}) for i, each in enumerate(seconds)]
    replies = [tr.Message.assistant(tool_calls=calls), tr.Message.assistant("done")]
    return _turn(replies, Tool("sleep", "Sleeps.", {}, _sleep))
