"""BEHAVIOURS kB10: calls that run on a foreign event loop have one outcome each, and leave nothing.

The bridge to asyncio comes later. `Bridge` is a double of one: an asyncio loop in
a thread of its own, whose calls a tool awaits from trio. It is lean on purpose,
and lets foreign errors through as they are: what is tested is that the *library*
keeps its promises when tools are made that way.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import outcome
import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call

#: Seconds of real time after which a test that waits for a thread has failed.
PATIENCE = 10


class Bridge:
    """An asyncio loop in a thread; `run` awaits a coroutine of it from trio."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        #: What became of each foreign call, by its name, noted on the foreign side.
        self.ends: list[tuple[str, str]] = []
        self._thread = threading.Thread(target=self._main, name="foreign loop")
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def close(self) -> int:
        """Stop the loop; how many tasks were left on it."""
        left = len(asyncio.all_tasks(self.loop))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self.loop.close()
        return left

    async def run(self, name: str, async_fn: Callable[[], Awaitable[Any]]) -> Any:
        """Await ``async_fn()`` over there. A cancel goes there too, and its end is waited for."""
        token = trio.lowlevel.current_trio_token()
        task = trio.lowlevel.current_task()
        foreign: list[asyncio.Task[Any]] = []

        async def noted() -> Any:
            try:
                value = await async_fn()
            except BaseException as error:
                self.ends.append((name, type(error).__name__))
                raise
            self.ends.append((name, "returned"))
            return value

        def wake(done: asyncio.Task[Any]) -> None:
            result: outcome.Maybe[Any]
            if done.cancelled():
                result = outcome.Error(asyncio.CancelledError())
            elif (error := done.exception()) is not None:
                result = outcome.Error(error)
            else:
                result = outcome.Value(done.result())
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        def begin() -> None:
            foreign.append(self.loop.create_task(noted()))
            foreign[0].add_done_callback(wake)

        def cancel() -> None:
            foreign[0].cancel()  # it is there by now

        def abort(_: Any) -> trio.lowlevel.Abort:
            self.loop.call_soon_threadsafe(cancel)
            return trio.lowlevel.Abort.FAILED

        self.loop.call_soon_threadsafe(begin)
        return await trio.lowlevel.wait_task_rescheduled(abort)


@contextlib.contextmanager
def bridged() -> Generator[Bridge]:
    """A bridge that is closed behind, with nothing left on the other side."""
    threads = set(threading.enumerate())
    bridge = Bridge()
    try:
        yield bridge
    finally:
        left = bridge.close()
    assert left == 0
    assert set(threading.enumerate()) - threads == set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the other thread."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "the foreign side did not get there"
        await trio.sleep(0.001)


class Server:
    """Tools that are bridged calls."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.waiting = 0

    async def quick(self, name: str) -> str:
        """Answer at once."""

        async def there() -> str:
            await asyncio.sleep(0)
            return f"answer to {name}"

        return await self.bridge.run(name, there)

    async def slow(self, name: str) -> str:
        """Never answer."""

        async def there() -> str:
            self.waiting += 1
            await asyncio.Event().wait()
            return "never"

        return await self.bridge.run(name, there)

    async def broken(self, name: str) -> str:
        """Fail over there, when all that wait are waiting."""

        async def there() -> str:
            while self.waiting < 2:
                await asyncio.sleep(0)
            raise ConnectionResetError(f"{name} was reset")

        return await self.bridge.run(name, there)

    async def gives_up(self, name: str) -> str:
        """Be cancelled over there, by nobody on this side."""

        async def there() -> str:
            raise asyncio.CancelledError("the foreign side gave up")

        return await self.bridge.run(name, there)

    def agent(self, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
        tools = [self.quick, self.slow, self.broken, self.gives_up]
        return tr.ToolAgent("a", model=ScriptedModel(replies), tools=tools, **options)


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for m in agent.history for result in m.tool_results]


def texts(agent: tr.ToolAgent) -> list[str]:
    return [result.text for m in agent.history for result in m.tool_results]


def live_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


THREE = [call("slow", name="one"), call("slow", name="two"), call("slow", name="three")]


# --- three calls in flight ------------------------------------------------------


async def test_kB10_a_callers_cancel_reaches_each_foreign_task_and_is_awaited() -> None:
    with bridged() as bridge:
        server = Server(bridge)
        agent = server.agent(THREE, "never")
        before = live_tasks()
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:

                async def cancel_when_all_wait() -> None:
                    await until(lambda: server.waiting == 3)
                    scope.cancel()

                nursery.start_soon(cancel_when_all_wait)
                await agent.generate("go")
                pytest.fail("the turn returned")
            # Awaited: when the cancel arrives here each foreign task has ended.
            assert sorted(bridge.ends) == [
                (name, "CancelledError") for name in ("one", "three", "two")
            ]
        assert scope.cancelled_caught
        assert live_tasks() == before
        assert statuses(agent) == ["interrupted"] * 3
        tr.check_history(agent.history)


@pytest.mark.parametrize("whose", ["the turn's", "each call's", "the caller's"])
async def test_kB10_a_deadline_ends_each_foreign_call_with_one_outcome(whose: str) -> None:
    with bridged() as bridge:
        server = Server(bridge)
        params = {
            "the turn's": tr.RequestParams(turn_timeout=0.05),
            "each call's": tr.RequestParams(tool_timeout=0.05),
            "the caller's": tr.RequestParams(),
        }[whose]
        agent = server.agent(THREE, "done", params=params)
        with trio.move_on_after(0.05 if whose == "the caller's" else PATIENCE) as scope:
            try:
                await agent.generate("go")
            except tr.TurnTimeoutError:
                assert whose == "the turn's"
        assert scope.cancelled_caught == (whose == "the caller's")
        # One outcome over there, and one here.
        assert sorted(name for name, _ in bridge.ends) == sorted({name for name, _ in bridge.ends})
        wanted = "interrupted" if whose == "the caller's" else "timed_out"
        assert set(statuses(agent)) <= {wanted, "not_started"}
        assert len(statuses(agent)) == 3
        tr.check_history(agent.history)


async def test_kB10_a_foreign_error_is_that_calls_result_and_the_others_go_on() -> None:
    with bridged() as bridge:
        server = Server(bridge)
        agent = server.agent(
            [call("slow", name="one"), call("broken", name="two"), call("slow", name="three")],
            "done",
            params=tr.RequestParams(tool_timeout=3.0),
        )
        assert (await agent.generate("go")).text == "done"
        assert statuses(agent) == ["timed_out", "error", "timed_out"]
        assert "ConnectionResetError" in texts(agent)[1]
        assert sorted(bridge.ends) == [
            ("one", "CancelledError"), ("three", "CancelledError"),
            ("two", "ConnectionResetError"),
        ]  # fmt: skip


async def test_kB10_a_foreign_cancellation_is_an_error_result_and_crosses_no_further() -> None:
    with bridged() as bridge:
        server = Server(bridge)
        agent = server.agent([call("gives_up", name="one"), call("quick", name="two")], "done")
        with trio.CancelScope() as scope:
            assert (await agent.generate("go")).text == "done"
        assert not scope.cancelled_caught
        assert statuses(agent) == ["error", "ok"]
        assert texts(agent)[1] == "answer to two"


async def test_kB10_the_callers_cancel_in_a_foreign_loops_words_is_the_callers_cancel() -> None:
    # The bridge reports the caller's own cancel as asyncio's CancelledError.
    with bridged() as bridge:
        server = Server(bridge)
        agent = server.agent(call("slow", name="one"), "never")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await until(lambda: server.waiting == 1)
                    scope.cancel()

                nursery.start_soon(cancel)
                await agent.generate("go")
        assert scope.cancelled_caught
        assert statuses(agent) == ["interrupted"]


# --- broken again and again -----------------------------------------------------


async def test_kB10_broken_twenty_times_nothing_grows_and_nothing_spins() -> None:
    with bridged() as bridge:
        server = Server(bridge)
        before, threads = live_tasks(), set(threading.enumerate())
        for number in range(20):
            server.waiting = 2
            agent = server.agent([call("broken", name=f"{number}"), call("gives_up", name="x")])
            with pytest.raises(AssertionError, match="the script has 1 replies"):
                await agent.generate("go")
            assert statuses(agent) == ["error", "error"]
            with trio.move_on_after(0):
                await server.agent(call("slow", name="y")).generate("go")
        await until(lambda: not asyncio.all_tasks(bridge.loop))
        assert live_tasks() == before
        # Those that trio keeps for its workers may have gone meanwhile.
        assert set(threading.enumerate()) - threads == set()

        # Whatever spins takes all of the processor; two idle loops take next to nothing.
        began, cpu = time.monotonic(), time.process_time()
        await trio.sleep(0.3)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        assert share < 0.5
