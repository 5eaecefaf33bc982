"""The messages of a turn on the asyncio side: every way to leave the block, and what is left."""

from __future__ import annotations

import asyncio
import gc
import importlib
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.asyncio_host import AsyncioHost, run_in_asyncio, stream_in_asyncio

Main = Callable[[], Coroutine[Any, Any, None]]
BOUND = 20.0  # seconds: for what must come, and does at once


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After each test: no trio run, no handler, no hook, and the collector finds nothing to say."""
    before = (signal.getsignal(signal.SIGINT), sys.get_asyncgen_hooks())
    yield
    gc.collect()
    assert not trio.lowlevel.in_trio_run()
    assert (signal.getsignal(signal.SIGINT), sys.get_asyncgen_hooks()) == before


def uvloop_or_skip() -> asyncio.AbstractEventLoop:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    return importlib.import_module("uvloop").new_event_loop()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop_or_skip], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """`asyncio.run` with either loop, in debug mode."""
    if request.param is uvloop_or_skip:
        uvloop_or_skip().close()

    def run_main(main: Main) -> None:
        with asyncio.Runner(debug=True, loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main(), BOUND))

    return run_main


def run_plain(main: Main) -> None:
    asyncio.run(asyncio.wait_for(main(), BOUND), debug=True)


class Told:
    """An agent with one tool, which notes when it ran and waits when told to."""

    def __init__(self, *, waits: bool = False) -> None:
        self.notes: list[str] = []
        self.waits = waits
        self.entered = asyncio.Event()
        self.agent = tr.ToolAgent(
            "a", model=ScriptedModel([[call("look")], "the answer"]), tools=[self.look]
        )

    async def look(self) -> str:
        """Look."""
        self.notes.append("looked")
        self.entered.set()
        if self.waits:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return "seen"

    def check(self, *statuses: str) -> None:
        tr.check_history(self.agent.history)
        results = [each for message in self.agent.history for each in message.tool_results]
        assert [result.status.value for result in results] == list(statuses)
        assert not self.agent.conversation.is_busy


def test_a_stream_gives_each_message_and_ends(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        told = Told()
        texts: list[str] = []
        async with stream_in_asyncio(told.agent, "go") as messages:
            async for message in messages:
                texts.append(message.text)
                if len(texts) == 1:
                    assert told.notes == []  # handed out before its tools run
        assert texts == ["", "the answer"]
        assert messages.runner.end_reason is tr.EndReason.ANSWERED
        told.check("ok")

    run(main)


def test_a_break_leaves_before_any_tool_starts() -> None:
    async def main() -> None:
        told = Told()
        async with stream_in_asyncio(told.agent, "go") as messages:
            async for _ in messages:
                break
        assert told.notes == []
        assert not trio.lowlevel.in_trio_run()
        told.check("not_started")

    run_plain(main)


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_consumer_interrupts_the_turn(times: int) -> None:
    async def main() -> None:
        told = Told(waits=True)

        async def consume() -> None:
            async with stream_in_asyncio(told.agent, "go") as messages:
                async for _ in messages:
                    pass

        task = asyncio.create_task(consume())
        await told.entered.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert task.cancelled()
        told.check("interrupted")

    run_plain(main)


def test_a_deadline_around_one_message_ends_the_iteration() -> None:
    async def main() -> None:
        told = Told(waits=True)
        async with stream_in_asyncio(told.agent, "go") as messages:
            await anext(messages)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await anext(messages)
            assert [message async for message in messages] == []
        told.check("interrupted")

    run_plain(main)


def test_an_error_in_the_body_interrupts_the_turn_and_leaves() -> None:
    async def main() -> None:
        told = Told()
        with pytest.raises(KeyError):  # noqa: PT012 - the block is what is tested
            async with stream_in_asyncio(told.agent, "go") as messages:
                async for _ in messages:
                    raise KeyError("the consumer's")
        told.check("not_started")

    run_plain(main)


def test_an_error_of_the_model_leaves_bare() -> None:
    error = LookupError("no model")

    async def main() -> None:
        agent = tr.ToolAgent("a", model=ScriptedModel([error]))
        with pytest.raises(LookupError) as caught:
            async with stream_in_asyncio(agent, "go") as messages:
                await anext(messages)
        assert caught.value is error

    run_plain(main)


def test_aclose_of_a_generator_around_it_waits_for_the_end() -> None:
    async def texts(told: Told) -> AsyncGenerator[str]:
        async with stream_in_asyncio(told.agent, "go") as messages:
            async for message in messages:
                yield message.text

    async def main() -> None:
        told = Told()
        generator = texts(told)
        await anext(generator)
        await generator.aclose()
        assert not trio.lowlevel.in_trio_run()
        told.check("not_started")

    run_plain(main)


def test_a_generator_around_it_that_is_dropped_ends_the_turn_soon() -> None:
    async def texts(told: Told) -> AsyncGenerator[str]:
        async with stream_in_asyncio(told.agent, "go") as messages:
            async for message in messages:
                yield message.text

    async def main() -> None:
        told = Told()
        generator = texts(told)
        await anext(generator)
        del generator
        gc.collect()
        while trio.lowlevel.in_trio_run():
            await asyncio.sleep(0.001)
        told.check("not_started")

    run_plain(main)


def test_a_generator_around_it_that_is_kept_ends_with_the_loop() -> None:
    kept: list[Any] = []
    told: list[Told] = []

    async def texts(told: Told) -> AsyncGenerator[str]:
        async with stream_in_asyncio(told.agent, "go") as messages:
            async for message in messages:
                yield message.text

    async def main() -> None:
        told.append(Told())
        kept.append(texts(told[0]))
        await anext(kept[0])

    run_plain(main)
    told[0].check("not_started")


def test_a_stream_that_is_dropped_inside_its_block_says_so_and_ends() -> None:
    async def main() -> None:
        told = Told()
        messages = await stream_in_asyncio(told.agent, "go").__aenter__()
        await anext(messages)
        with pytest.warns(ResourceWarning, match="dropped inside its block"):  # noqa: PT031 - the block is what is tested
            del messages
            gc.collect()
        while trio.lowlevel.in_trio_run():
            await asyncio.sleep(0.001)
        told.check("not_started")

    run_plain(main)


def test_another_task_may_close_the_stream() -> None:
    async def main() -> None:
        told = Told(waits=True)
        messages = stream_in_asyncio(told.agent, "go")
        await messages.__aenter__()
        await anext(messages)

        async def take() -> list[tr.Message]:
            return [message async for message in messages]

        task = asyncio.create_task(take())
        await told.entered.wait()
        with pytest.raises(tr.BusyError):
            await anext(messages)
        await messages.aclose()
        assert await task == []
        await messages.aclose()
        told.check("interrupted")

    run_plain(main)


def test_a_stream_says_when_it_is_used_wrongly() -> None:
    async def main() -> None:
        told = Told()
        stream = stream_in_asyncio(told.agent, "go")
        with pytest.raises(tr.NotEnteredError, match="async with"):
            await anext(stream)
        with pytest.raises(tr.NotEnteredError):
            _ = stream.runner
        async with stream:
            with pytest.raises(tr.BusyError):
                await stream.__aenter__()
            with pytest.raises(tr.BusyError):  # the agent's
                await stream_in_asyncio(told.agent, "go").__aenter__()

    run_plain(main)


def test_an_agent_stays_open_over_turns_in_a_host() -> None:
    journal = tr.MemoryJournal()

    async def main() -> None:
        model = ScriptedModel(["one", "two"])
        agent = tr.ToolAgent("a", model=model, journal=journal, session="s")
        async with AsyncioHost() as host:
            await host.enter(agent)
            assert (await run_in_asyncio(agent.generate, "go")).text == "one"
            async with stream_in_asyncio(agent, "go") as messages:
                assert [message.text async for message in messages] == ["two"]
            assert len(agent.history) == 4

    run_plain(main)
    assert len(tr.fold(journal.stored("s")).messages) == 4


def test_one_stream_opens_and_closes_an_agent_that_is_not_open() -> None:
    journal = tr.MemoryJournal()

    async def main() -> None:
        for _ in range(2):
            model = ScriptedModel(["one"])
            agent = tr.ToolAgent("a", model=model, journal=journal, session="s")
            async with stream_in_asyncio(agent, "go") as messages:
                assert [message.text async for message in messages] == ["one"]

    run_plain(main)
    assert len(tr.fold(journal.stored("s")).messages) == 4
