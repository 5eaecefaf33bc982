"""How a bridge and its calls end: cancelled, swallowed, closed, dead, interrupted.

Real threads and real loops. Each row of what a bridge must stand is a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner_adapters.asyncio_bridge import (
    AsyncioBridge,
    BridgeClosedError,
    BridgedObject,
    BridgeError,
    CallbackRefusedError,
)

#: Seconds for what happens at once, on a machine that may be busy.
SOON = 20.0
LOG = "trio_runner_adapters.asyncio_bridge"


class Client:
    """What can be asked of it ends in every way."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun = 0
        self.free = threading.Event()
        self.held = asyncio.Event()
        self.main = asyncio.current_task()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.notes.append("left")

    async def echo(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    async def forever(self) -> None:
        self.begun += 1
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.02)
            self.notes.append("cleaned")

    async def finishes(self) -> str:
        self.begun += 1
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
        return "finished"

    async def complains(self) -> None:
        self.begun += 1
        try:
            await asyncio.sleep(3600)
        finally:
            raise ValueError("while cleaning up")

    async def swallows(self) -> None:
        self.begun += 1
        while not self.free.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.notes.append("swallowed")

    async def blocks(self) -> None:
        self.begun += 1
        self.free.wait()

    async def stop_loop(self) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    async def exit(self) -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    async def exit_in_callback(self) -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await asyncio.sleep(3600)

    async def exit_in_thread_of_its_own(self) -> None:
        raise KeyboardInterrupt

    async def cancel_main(self) -> None:
        assert self.main is not None
        self.main.cancel()
        await asyncio.sleep(3600)

    async def items(self) -> AsyncIterator[int]:
        self.begun += 1
        yield 1
        await self.forever()


class Held:
    """The client that a bridge has made, for looks from the outside."""

    def __init__(self, **settings: Any) -> None:
        self.made: list[Client] = []
        self.bridge = AsyncioBridge(self.make, name="client", **settings)

    def make(self) -> Client:
        self.made.append(Client())
        return self.made[-1]

    @property
    def client(self) -> Client:
        return self.made[-1]

    async def begun(self, count: int = 1) -> None:
        with trio.fail_after(SOON):
            while not self.made or self.client.begun < count:
                await trio.sleep(0.001)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "asyncio bridge" in each.name]


async def threads_gone() -> None:
    with trio.fail_after(SOON):
        while threads():
            await trio.sleep(0.001)


async def outcome_of(call: Any, into: list[Any]) -> None:
    try:
        into.append(await call)
    except Exception as error:  # noqa: BLE001  whatever it is, the test looks at it
        into.append(error)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    before = threads()
    yield
    assert threads() == before


# --- cancelled calls ------------------------------------------------------------


async def test_a_cancel_cancels_the_asyncio_task_and_waits_for_its_cleanup() -> None:
    held = Held()
    with trio.fail_after(SOON):
        async with held.bridge as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outcome_of, client.forever(), list[Any]())
                await held.begun()
                nursery.cancel_scope.cancel()
            assert held.client.notes == ["cleaned"]
            assert await client.echo(1) == 1


async def test_a_deadline_is_a_cancel_and_leaves_as_its_own_error() -> None:
    held = Held()
    async with held.bridge as client:
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.05):
            await client.forever()
        assert held.client.notes == ["cleaned"]


async def test_a_result_that_comes_despite_the_cancel_is_kept_and_the_cancel_goes_on() -> None:
    held, got = Held(), list[str]()
    async with held.bridge as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def call() -> None:
                    got.append(await client.finishes())
                    await trio.lowlevel.checkpoint()
                    got.append("never")

                nursery.start_soon(call)
                await held.begun()
                scope.cancel()
        assert scope.cancelled_caught
    assert got == ["finished"]


async def test_an_error_that_comes_despite_the_cancel_is_not_lost() -> None:
    held, got = Held(), list[Any]()
    async with held.bridge as client, trio.open_nursery() as nursery:
        nursery.start_soon(outcome_of, client.complains(), got)
        await held.begun()
        nursery.cancel_scope.cancel()
    assert [str(error) for error in got] == ["while cleaning up"]


async def test_a_turn_records_a_result_that_came_despite_the_cancel() -> None:
    from trio_runner.testing import ScriptedModel, call

    held = Held()

    async with held.bridge as client:

        async def finishes() -> str:
            """Finish."""
            return await client.finishes()

        agent = tr.ToolAgent(
            "a", model=ScriptedModel([[call("finishes")], "never"]), tools=[finishes]
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.generate, "go")
            await held.begun()
            nursery.cancel_scope.cancel()
        [result] = agent.history[-1].tool_results
        assert (result.status, result.text) == (tr.CallStatus.OK, "finished")


async def test_a_callback_is_cancelled_with_its_call_and_what_is_open_is_refused() -> None:
    refused: list[BaseException] = []
    running = trio.Event()

    class Calls(Client):
        async def work(self, callback: Callable[[int], Any]) -> None:
            # Tasks of the client's own, which our cancel does not reach.
            self.tasks = [asyncio.create_task(self.one(callback, n)) for n in range(2)]
            await self.forever()

        async def one(self, callback: Callable[[int], Any], number: int) -> None:
            try:
                await callback(number)
            except CallbackRefusedError as error:
                refused.append(error)

    async def endless(number: int) -> None:
        running.set()
        await trio.sleep_forever()

    with trio.fail_after(SOON):
        async with AsyncioBridge(Calls, name="client") as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outcome_of, client.work(endless), list[Any]())
                await running.wait()
                nursery.cancel_scope.cancel()
            while len(refused) < 2:
                await trio.sleep(0.001)
            assert await client.echo("well") == "well"


# --- clients that do not let go ------------------------------------------------


@pytest.mark.parametrize("way", ["swallows", "blocks"])
async def test_a_client_that_swallows_the_cancel_costs_the_bridge_and_says_so(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    held, others = Held(grace=0.1), list[Any]()
    with trio.fail_after(SOON):
        async with held.bridge as client, trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, client.forever(), others)
            await held.begun()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(outcome_of, getattr(client, way)(), others)
                    await held.begun(2)
                    scope.cancel()
            assert scope.cancelled_caught
            with pytest.raises(BridgeClosedError, match=r"abandoned.*nothing was sent"):
                await client.echo(1)
            with pytest.raises(BridgeClosedError, match="abandoned"):
                await held.bridge.__aenter__()
    [error] = others
    assert isinstance(error, BridgeClosedError)
    assert "not known whether the call took effect" in str(error)
    [record] = [each for each in caplog.records if each.name == LOG]
    assert record.levelno == logging.WARNING
    assert f"client.{way} did not end within 0.1 seconds" in record.getMessage()
    assert threads() != []  # it goes on, until the client lets go
    held.client.free.set()
    await threads_gone()
    # Its place is free for a new life.
    async with held.bridge as client:
        assert await client.echo(2) == 2


async def test_a_client_that_does_not_close_is_abandoned_after_grace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stays(Client):
        async def __aexit__(self, *_: object) -> None:
            await self.swallows()

    made: list[Stays] = []

    def make() -> Stays:
        made.append(Stays())
        return made[0]

    with trio.fail_after(SOON):
        async with AsyncioBridge(make, name="client", grace=0.1) as client:
            assert await client.echo(1) == 1
    assert "did not close within 0.1 seconds" in caplog.text
    made[0].free.set()
    await threads_gone()


# --- close ----------------------------------------------------------------------


async def test_a_close_ends_each_call_in_flight_with_one_typed_error() -> None:
    held, outcomes = Held(), list[Any]()
    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery, held.bridge as client:
            for _ in range(3):
                nursery.start_soon(outcome_of, client.forever(), outcomes)
            nursery.start_soon(outcome_of, client.finishes(), outcomes)
            await held.begun(4)
    errors = [each for each in outcomes if each != "finished"]
    assert len(outcomes) == 4
    assert [type(error) for error in errors] == [BridgeClosedError] * 3
    assert all(error.began and "was closed" in str(error) for error in errors)
    # The calls end before the client is left.
    assert held.client.notes == ["cleaned"] * 3 + ["left"]
    with pytest.raises(BridgeClosedError, match="was closed; nothing was sent"):
        await client.echo(1)


async def test_a_close_goes_on_when_it_is_cancelled() -> None:
    held = Held()
    with trio.CancelScope() as scope:
        async with held.bridge:
            scope.cancel()
    assert scope.cancelled_caught
    assert held.client.notes == ["left"]
    assert threads() == []


async def test_an_error_of_the_close_is_logged_since_whoever_was_inside_has_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fails(Client):
        async def __aexit__(self, *_: object) -> None:
            raise ValueError("cannot close")

    async with AsyncioBridge(Fails, name="client"):
        pass
    assert "error while closing: ValueError: cannot close" in caplog.text


async def test_any_task_enters_and_leaves_in_any_order() -> None:
    held = Held()
    entered = [trio.Event() for _ in range(3)]
    leave = [trio.Event() for _ in range(3)]

    async def user(number: int) -> None:
        async with held.bridge as client:
            entered[number].set()
            await leave[number].wait()
            assert await client.echo(number) == number

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(user, number)
            for event in entered:
                await event.wait()
            for number in (0, 2, 1):
                assert held.client.notes == []
                leave[number].set()
                await trio.testing.wait_all_tasks_blocked()
    assert len(held.made) == 1
    assert held.client.notes == ["left"]


async def test_one_task_enters_and_another_leaves() -> None:
    held = Held()

    async def leaves() -> None:
        await held.bridge.__aexit__(None, None, None)

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            client = await held.bridge.__aenter__()
            assert await client.echo(1) == 1
            nursery.start_soon(leaves)
    assert threads() == []
    with pytest.raises(tr.NotEnteredError, match="more often"):
        await leaves()


async def test_entered_again_it_makes_a_new_client() -> None:
    held = Held()
    for count in (1, 2, 3):
        async with held.bridge as client:
            assert await client.echo(count) == len(held.made) == count


async def test_who_comes_while_it_closes_waits_for_a_new_client() -> None:
    class Slow(Client):
        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0.05)

    made: list[Slow] = []

    def make() -> Slow:
        made.append(Slow())
        return made[-1]

    at = AsyncioBridge(make, name="client")

    async def leaves() -> None:
        await at.__aexit__(None, None, None)

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            await at.__aenter__()
            nursery.start_soon(leaves)
            await trio.testing.wait_all_tasks_blocked()
            async with at as client:
                assert await client.echo(1) == 1
    assert len(made) == 2


# --- start ----------------------------------------------------------------------


async def test_a_start_that_fails_tells_everybody_who_waits() -> None:
    async def broken() -> None:
        await asyncio.sleep(0.02)
        raise LookupError("no such server")

    at = AsyncioBridge(broken, name="client")
    got: list[Any] = []

    async def enter() -> None:
        await at.__aenter__()

    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(outcome_of, enter(), got)
    said = "could not be started: LookupError: no such server; nothing was sent"
    assert [str(error) for error in got] == [f"asyncio bridge 'client' {said}"] * 3
    assert [type(error.__cause__) for error in got] == [LookupError] * 3


async def test_a_start_that_takes_too_long_is_given_up() -> None:
    notes: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            notes.append("cleaned")

    with trio.fail_after(SOON):
        with pytest.raises(BridgeClosedError, match=r"did not start within 0\.05 seconds"):
            async with AsyncioBridge(slow, name="client", start_timeout=0.05):
                pass
    assert notes == ["cleaned"]


@pytest.mark.parametrize("before", [True, False])
async def test_a_cancelled_start_leaves_nothing(before: bool) -> None:
    class Slow(Client):
        async def __aenter__(self) -> Self:
            await asyncio.sleep(3600)
            return self

    with trio.fail_after(SOON), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def enter() -> None:
                if before:
                    scope.cancel()
                async with AsyncioBridge(Slow, name="client"):
                    pytest.fail("it started")

            nursery.start_soon(enter)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert threads() == []


async def test_a_start_that_never_ends_is_abandoned() -> None:
    free = threading.Event()

    def stuck() -> None:
        free.wait()

    with trio.fail_after(SOON):
        with pytest.raises(BridgeClosedError, match="did not start"):
            async with AsyncioBridge(stuck, name="client", start_timeout=0.05, grace=0.05):
                pass
    free.set()
    await threads_gone()


# --- the asyncio side dies ------------------------------------------------------


@pytest.mark.parametrize(
    "way", ["stop_loop", "exit", "exit_in_callback", "exit_in_thread_of_its_own", "cancel_main"]
)
async def test_whatever_ends_the_asyncio_side_each_call_gets_one_typed_error(way: str) -> None:
    held, outcomes = Held(), list[Any]()
    with trio.fail_after(SOON):
        async with held.bridge as client:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(outcome_of, client.forever(), outcomes)
                await held.begun(3)
                nursery.start_soon(outcome_of, getattr(client, way)(), outcomes)
            with pytest.raises(BridgeClosedError, match="nothing was sent"):
                await client.echo(1)
            with pytest.raises(BridgeClosedError):
                await held.bridge.__aenter__()
    assert [type(error) for error in outcomes] == [BridgeClosedError] * 4
    assert all(error.began for error in outcomes)
    assert "cleaned" in held.client.notes
    async with held.bridge as client:
        assert await client.echo(2) == 2


async def test_a_client_whose_context_breaks_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Client):
        async def __aexit__(self, *_: object) -> None:
            raise ConnectionError("the server is gone")

    with trio.fail_after(SOON):
        async with AsyncioBridge(Breaks, name="client") as client:
            with pytest.raises(BridgeClosedError, match="ended by itself"):
                await client.cancel_main()
            while "ConnectionError: the server is gone" not in caplog.text:
                await trio.sleep(0.001)
            with pytest.raises(BridgeClosedError, match="the server is gone"):
                await client.echo(1)


async def test_an_iterator_and_a_context_end_with_the_asyncio_side() -> None:
    held = Held()
    with trio.fail_after(SOON):
        async with held.bridge as client:
            items = client.items()
            assert await anext(items) == 1
            got: list[Any] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outcome_of, anext(items), got)
                await held.begun(2)
                nursery.start_soon(outcome_of, client.exit(), got)
            assert [type(error) for error in got] == [BridgeClosedError] * 2
            await items.aclose()


# --- runs and threads of trio ---------------------------------------------------


def test_runs_of_trio_one_after_the_other_use_one_bridge() -> None:
    held = Held()

    async def main(number: int) -> int:
        async with held.bridge as client:
            return await client.echo(number)

    assert [trio.run(main, number) for number in range(3)] == [0, 1, 2]


def test_two_runs_of_trio_in_two_threads_have_a_bridge_each() -> None:
    got: dict[int, list[int]] = {}
    both_in = threading.Barrier(2)

    async def main(number: int) -> None:
        async with AsyncioBridge(Client, name=f"client {number}") as client:
            both_in.wait(SOON)
            got[number] = [await client.echo(10 * number + each) for each in range(20)]

    workers = [threading.Thread(target=trio.run, args=(main, number)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(SOON)
    assert got == {number: [10 * number + each for each in range(20)] for number in (1, 2)}


def test_a_bridge_that_is_open_in_one_run_is_refused_to_another() -> None:
    held = Held()
    clients: list[BridgedObject] = []
    is_open, done = threading.Event(), threading.Event()

    async def owner() -> None:
        async with held.bridge as client:
            clients.append(client)
            is_open.set()
            await trio.to_thread.run_sync(done.wait)

    async def other() -> None:
        with pytest.raises(BridgeError, match="another run of trio"):
            await held.bridge.__aenter__()
        with pytest.raises(BridgeError, match="another run of trio"):
            await clients[0].echo(1)

    worker = threading.Thread(target=trio.run, args=(owner,))
    worker.start()
    try:
        assert is_open.wait(SOON)
        trio.run(other)
    finally:
        done.set()
        worker.join(SOON)


def test_a_run_that_ended_without_leaving_does_not_block_the_next() -> None:
    held = Held()

    async def enters() -> None:
        await held.bridge.__aenter__()

    async def uses() -> int:
        async with held.bridge as client:
            return await client.echo(5)

    trio.run(enters)
    assert trio.run(uses) == 5


# --- Ctrl-C ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["forever", "finishes"])
def test_an_interrupt_in_the_main_task_cancels_the_call_and_leaves(way: str) -> None:
    class Interrupts(Client):
        async def interrupt(self, way: str) -> Any:
            # Python handles a signal in the main thread, whoever sends it.
            asyncio.get_running_loop().call_later(0.02, os.kill, os.getpid(), signal.SIGINT)
            return await getattr(self, way)()

    made: list[Interrupts] = []

    def make() -> Interrupts:
        made.append(Interrupts())
        return made[0]

    async def main() -> None:
        async with AsyncioBridge(make, name="client") as client:
            await client.interrupt(way)
            pytest.fail("the interrupt was lost")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)
    assert made[0].notes == (["cleaned", "left"] if way == "forever" else ["left"])


@pytest.mark.parametrize("way", ["strikes in a child", "KeyboardInterrupt", "SystemExit", "sync"])
def test_a_ctrl_c_in_a_callback_that_nobody_waits_for_reaches_the_main_task(way: str) -> None:
    class Asks:
        """Calls back from a task of its own."""

        def __init__(self, handler: Callable[[], Any]) -> None:
            self.handler = handler
            self.task: asyncio.Task[None] | None = None

        async def begin(self) -> None:
            self.task = asyncio.create_task(self.ask())

        async def ask(self) -> None:
            with contextlib.suppress(CallbackRefusedError):
                answer = self.handler()
                if asyncio.iscoroutine(answer):
                    await answer

    async def strike() -> None:
        signal.raise_signal(signal.SIGINT)

    async def handler() -> None:
        match way:
            case "KeyboardInterrupt":
                raise KeyboardInterrupt
            case "SystemExit":
                raise SystemExit(3)
            case _:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(strike)

    def sync_handler() -> None:
        raise SystemExit(3)

    def make() -> Asks:
        return Asks(bridge.callback(sync_handler if way == "sync" else handler))

    bridge = AsyncioBridge(make, name="asks")

    async def main() -> None:
        with trio.fail_after(SOON):
            async with bridge as client:
                await client.begin()
                await trio.sleep_forever()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)


# --- leaks ----------------------------------------------------------------------


def test_fifty_cycles_leave_no_thread_no_descriptor_and_no_task() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def cycle(number: int) -> None:
        async with AsyncioBridge(Client, name="client") as client:
            assert await client.echo(number) == number
            assert await anext(client.items()) == 1
            with trio.move_on_after(0.001):
                await client.forever()

    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc to count descriptors in")
    trio.run(cycle, -1)  # what is made once
    gc.collect()
    before, threads = descriptors(), set(threading.enumerate())
    for number in range(50):
        trio.run(cycle, number)
    gc.collect()
    assert descriptors() == before
    # Those that trio keeps for its workers may have gone meanwhile.
    assert set(threading.enumerate()) - threads == set()
    tasks: list[Any] = [each for each in gc.get_objects() if type(each) is asyncio.Task]
    assert [each for each in tasks if not each.done()] == []


async def test_twenty_bad_breaks_leave_the_process_idle() -> None:
    held, outcomes = Held(), list[Any]()
    ways = ["stop_loop", "exit", "exit_in_callback", "cancel_main"]
    with trio.fail_after(5 * SOON):
        for number in range(20):
            async with held.bridge as client, trio.open_nursery() as nursery:
                nursery.start_soon(outcome_of, client.forever(), outcomes)
                await held.begun()
                nursery.start_soon(outcome_of, getattr(client, ways[number % 4])(), outcomes)
    assert len(outcomes) == 40
    before = time.process_time()
    await trio.sleep(1)
    # A thread or a task that spins takes most of that second.
    assert time.process_time() - before < 0.1
