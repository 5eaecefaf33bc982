"""trio functions called from asyncio: what crosses, what is waited for, what is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.asyncio_host import (
    AsyncioHost,
    HostClosedError,
    run_in_asyncio,
)
from trio_runner_adapters.asyncio_host._calls import Call
from trio_runner_adapters.asyncio_host._guest import join

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


class Log:
    """Notes what a trio function did."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.started = asyncio.Event()

    async def sleeper(self, cleanup_steps: int = 3) -> None:
        """Sleeps until it is cancelled, and then cleans up in some steps."""
        self.started.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.notes.append("cancelled")
            with trio.CancelScope(shield=True):
                for _ in range(cleanup_steps):
                    await trio.sleep(0.001)
            self.notes.append("cleaned up")
            raise


# --- what crosses ---------------------------------------------------------------


def test_a_function_gets_its_arguments_and_returns_its_value(
    run: Callable[[Main], None],
) -> None:
    async def add(one: int, two: int) -> int:
        await trio.lowlevel.checkpoint()
        return one + two

    async def main() -> None:
        assert await run_in_asyncio(add, 2, 3) == 5

    run(main)


def test_an_error_leaves_bare_and_is_the_same_object() -> None:
    error = LookupError("no such city")

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    async def main() -> None:
        with pytest.raises(LookupError) as caught:
            await run_in_asyncio(fail)
        assert caught.value is error

    run_plain(main)


def test_the_function_sees_the_callers_context_variables() -> None:
    variable = contextvars.ContextVar("variable", default="nobody's")

    async def look() -> str:
        await trio.lowlevel.checkpoint()
        return variable.get()

    async def caller(name: str) -> None:
        variable.set(name)
        assert await run_in_asyncio(look) == name

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(caller(f"caller {number}"))
        assert await run_in_asyncio(look) == "nobody's"

    run_plain(main)


def test_threads_processes_and_sockets_work(run: Callable[[Main], None]) -> None:
    async def work() -> tuple[int, bytes, bytes]:
        ident = await trio.to_thread.run_sync(threading.get_ident)
        done = await trio.run_process(
            [sys.executable, "-c", "print('from a process')"], capture_stdout=True
        )
        left, right = trio.socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with left, right:
            await left.send(b"through a socket")
            return ident, done.stdout, await right.recv(100)

    async def main() -> None:
        ident, said, received = await run_in_asyncio(work)
        assert ident != threading.get_ident()
        assert (said, received) == (b"from a process\n", b"through a socket")

    run(main)


def test_trios_deadline_raises_too_slow_error() -> None:
    async def main() -> None:
        async with AsyncioHost(clock=trio.testing.MockClock(autojump_threshold=0)):
            with pytest.raises(trio.TooSlowError):
                await run_in_asyncio(trio.sleep, 3600, timeout=1800)
            await run_in_asyncio(trio.sleep, 3600, timeout=7200)

    run_plain(main)


@pytest.mark.parametrize("kind", [asyncio.CancelledError, "trio", "group"])
def test_a_cancellation_that_nobody_asked_for_is_an_error_of_ours(kind: object) -> None:
    async def stray() -> None:
        cancelled: list[trio.Cancelled] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                cancelled.append(error)
                raise
        if kind == "trio":
            raise cancelled[0]
        if kind == "group":
            raise BaseExceptionGroup("both", [cancelled[0], asyncio.CancelledError()])
        raise asyncio.CancelledError

    async def main() -> None:
        with pytest.raises(tr.StrayCancellationError):
            await run_in_asyncio(stray)

    run_plain(main)


def test_a_cancellation_inside_a_group_of_errors_is_left_out() -> None:
    async def stray() -> None:
        await trio.lowlevel.checkpoint()
        raise BaseExceptionGroup("both", [asyncio.CancelledError(), KeyError("real")])

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await run_in_asyncio(stray)
        assert [type(error) for error in caught.value.exceptions] == [KeyError]

    run_plain(main)


# --- cancelling -----------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_cancel_is_waited_out_and_then_leaves(times: int, run: Callable[[Main], None]) -> None:
    async def main() -> None:
        log = Log()
        task = asyncio.create_task(run_in_asyncio(log.sleeper))
        await log.started.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert log.notes == ["cancelled", "cleaned up"]

    run(main)


def test_a_function_that_was_cancelled_before_it_began_does_not_begin() -> None:
    entered: list[int] = []

    async def function() -> None:
        entered.append(1)

    async def main() -> None:
        guest = await join()
        call = Call(guest.loop, function)
        guest.spawn(call)
        call.scope.cancel()
        await guest.finish(call)
        assert call.scope.cancelled_caught
        assert entered == []

    run_plain(main)


def test_a_timeout_of_asyncio_interrupts_and_raises_timeout_error() -> None:
    async def main() -> None:
        for limit in (asyncio.timeout, None):
            log = Log()
            with pytest.raises(TimeoutError):  # noqa: PT012 - the block is what is tested
                if limit is None:
                    await asyncio.wait_for(run_in_asyncio(log.sleeper), 0.05)
                else:
                    async with limit(0.05):
                        await run_in_asyncio(log.sleeper)
            assert log.notes == ["cancelled", "cleaned up"]

    run_plain(main)


def test_a_failing_sibling_in_a_task_group_interrupts() -> None:
    async def main() -> None:
        log = Log()

        async def fail() -> None:
            await log.started.wait()
            raise KeyError("the sibling's")

        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the block is what is tested
            async with asyncio.TaskGroup() as group:
                group.create_task(run_in_asyncio(log.sleeper))
                group.create_task(fail())
        assert [type(error) for error in caught.value.exceptions] == [KeyError]
        assert log.notes == ["cancelled", "cleaned up"]

    run_plain(main)


def test_a_cancel_is_not_lost_when_the_function_swallows_it() -> None:
    async def swallow(log: Log) -> str:
        try:
            await log.sleeper()
        except trio.Cancelled:
            pass
        return "finished all the same"

    async def main() -> None:
        log = Log()
        task = asyncio.create_task(run_in_asyncio(swallow, log))
        await log.started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run_plain(main)


def test_an_error_that_a_cancel_overtakes_is_its_cause_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(log: Log) -> None:
        try:
            await log.sleeper()
        finally:
            raise KeyError("while cleaning up")

    async def main() -> None:
        log = Log()
        task = asyncio.create_task(run_in_asyncio(fail, log))
        await log.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert isinstance(caught.value.__cause__, KeyError)

    with caplog.at_level(logging.ERROR, "trio_runner_adapters.asyncio_host"):
        run_plain(main)
    assert [record.message for record in caplog.records] == [
        "an error was overtaken by the cancel of its task"
    ]


def test_a_cancelled_turn_keeps_what_finished_and_its_history_is_valid() -> None:
    async def main() -> None:
        waits = asyncio.Event()

        async def quick() -> str:
            await trio.lowlevel.checkpoint()
            return "kept"

        async def slow() -> str:
            waits.set()
            await trio.sleep_forever()
            return "never"

        model = ScriptedModel([[call("quick"), call("slow")], "on we go"])
        agent = tr.ToolAgent("a", model=model, tools=[quick, slow])
        task = asyncio.create_task(run_in_asyncio(agent.generate, "go"))
        await waits.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tr.check_history(agent.history)
        results = agent.history[-1].tool_results
        assert [result.status.value for result in results] == ["ok", "interrupted"]
        assert (await run_in_asyncio(agent.resume)).text == "on we go"

    run_plain(main)


def test_a_coroutine_that_is_thrown_away_cancels_its_function() -> None:
    async def main() -> None:
        log = Log()
        async with AsyncioHost():
            coroutine = run_in_asyncio(log.sleeper)
            coroutine.send(None)
            await log.started.wait()
            coroutine.close()
            while log.notes != ["cancelled", "cleaned up"]:
                await asyncio.sleep(0.001)

    run_plain(main)


# --- one guest run per loop -----------------------------------------------------


def test_calls_on_one_loop_share_one_trio_run() -> None:
    async def token() -> trio.lowlevel.TrioToken:
        await trio.sleep(0.01)
        return trio.lowlevel.current_trio_token()

    async def main() -> None:
        first, second = await asyncio.gather(run_in_asyncio(token), run_in_asyncio(token))
        assert first is second
        assert await run_in_asyncio(token) is not first
        async with AsyncioHost():
            third = await run_in_asyncio(token)
            assert await run_in_asyncio(token) is third

    run_plain(main)


def test_nothing_is_left_when_the_last_call_leaves(run: Callable[[Main], None]) -> None:
    async def main() -> None:
        tasks = len(asyncio.all_tasks())
        for _ in range(3):
            await asyncio.gather(*[run_in_asyncio(trio.sleep, 0.001) for _ in range(4)])
            assert not trio.lowlevel.in_trio_run()
            assert len(asyncio.all_tasks()) == tasks

    run(main)
    run(main)


def test_calls_may_begin_while_the_run_before_is_ending() -> None:
    async def main() -> None:
        async def one(number: int) -> None:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            await run_in_asyncio(trio.lowlevel.checkpoint)

        for _ in range(5):
            await asyncio.gather(*[one(number) for number in range(40)])

    run_plain(main)


def test_each_thread_has_its_own() -> None:
    results: list[bool] = []

    def in_thread() -> None:
        async def main() -> None:
            await run_in_asyncio(trio.sleep, 0.01)
            results.append(True)

        run_plain(main)

    threads = [threading.Thread(target=in_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_it_goes_on_over_several_runs_of_one_loop() -> None:
    async def enter() -> AsyncioHost:
        return await AsyncioHost().__aenter__()

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            await trio.lowlevel.checkpoint()  # fails where asyncio closes it

    async def leave_a_generator() -> None:
        generator = numbers()
        await anext(generator)
        with pytest.warns(ResourceWarning, match="garbage collected"):  # noqa: PT031 - the block is what is tested
            del generator
            gc.collect()
            for _ in range(5):
                await trio.sleep(0.001)

    async def use() -> None:
        await run_in_asyncio(leave_a_generator)

    with asyncio.Runner() as runner:
        host = runner.run(enter())
        runner.run(use())
        runner.run(host.__aexit__(None, None, None))
        assert not trio.lowlevel.in_trio_run()


def test_a_loop_that_ends_interrupts_and_waits_for_what_runs() -> None:
    log: list[Log] = []
    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        log.append(Log())
        tasks.append(asyncio.create_task(run_in_asyncio(log[0].sleeper)))
        await log[0].started.wait()

    asyncio.run(main(), debug=True)
    assert log[0].notes == ["cancelled", "cleaned up"]
    assert tasks[0].cancelled()


def test_a_host_that_is_never_left_ends_with_the_loop(run: Callable[[Main], None]) -> None:
    notes: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncGenerator[str]:
        try:
            yield "it"
        finally:
            notes.append("closed")

    async def main() -> None:
        host = await AsyncioHost().__aenter__()
        assert await host.enter(resource()) == "it"

    run(main)
    assert notes == ["closed"]


def test_the_guest_of_a_loop_that_was_closed_under_it_is_run_out() -> None:
    notes: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(notes.append, "cleaned up")

    async def begin() -> None:
        keep.append(asyncio.create_task(run_in_asyncio(work)))
        await asyncio.sleep(0.02)

    keep: list[asyncio.Task[None]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    assert notes == []

    async def main() -> None:
        await run_in_asyncio(trio.lowlevel.checkpoint)

    run_plain(main)
    assert notes == ["cleaned up"]
    cast("Any", keep[0].get_coro()).close()


def test_a_second_loop_of_the_thread_is_told_to_wait() -> None:
    first = asyncio.new_event_loop()
    host = first.run_until_complete(AsyncioHost().__aenter__())

    async def main() -> None:
        with pytest.raises(tr.UsageError, match="another asyncio loop"):
            await run_in_asyncio(trio.lowlevel.checkpoint)

    run_plain(main)
    first.run_until_complete(host.__aexit__(None, None, None))
    first.close()


def test_a_guest_run_of_somebody_else_is_left_alone() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        stop = trio.Event()
        trio.lowlevel.start_guest_run(
            stop.wait,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda _: over.set(),
            host_uses_signal_set_wakeup_fd=True,
        )
        with pytest.raises(tr.UsageError, match="another guest run"):
            await run_in_asyncio(trio.lowlevel.checkpoint)
        stop.set()
        await over.wait()

    run_plain(main)


def test_trio_code_is_told_to_await_directly() -> None:
    async def inner() -> None:
        with pytest.raises(tr.UsageError, match="from trio code"):
            await run_in_asyncio(trio.lowlevel.checkpoint)

    trio.run(inner)
    run_plain(lambda: run_in_asyncio(inner))


def test_without_a_loop_it_says_what_to_do() -> None:
    with pytest.raises(tr.UsageError, match="no asyncio loop"):
        run_in_asyncio(trio.lowlevel.checkpoint).send(None)


def test_a_call_ends_when_the_trio_run_breaks(caplog: pytest.LogCaptureFixture) -> None:
    async def breaks() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("of a system task")

    async def work() -> None:
        trio.lowlevel.spawn_system_task(breaks)
        await trio.sleep_forever()

    async def main() -> None:
        with pytest.raises(HostClosedError):
            await run_in_asyncio(work)
        await run_in_asyncio(trio.lowlevel.checkpoint)

    run_plain(main)
    assert "the trio run inside asyncio broke" in caplog.text


# --- AsyncioHost ----------------------------------------------------------------


class Resource:
    """Opens a nursery over its life, and notes which task did what."""

    def __init__(self, name: str, notes: list[str], error: Exception | None = None) -> None:
        self.name, self.notes, self.error = name, notes, error
        self.task: trio.lowlevel.Task | None = None
        self.manager = trio.open_nursery()
        self.nursery: trio.Nursery | None = None

    async def __aenter__(self) -> Self:
        self.task = trio.lowlevel.current_task()
        self.nursery = await self.manager.__aenter__()
        self.nursery.start_soon(trio.sleep_forever)
        self.notes.append(f"{self.name} opened")
        return self

    async def __aexit__(self, *exc_info: object) -> bool | None:
        assert self.task is trio.lowlevel.current_task()
        assert self.nursery is not None
        self.nursery.cancel_scope.cancel()
        done = await self.manager.__aexit__(*cast("Any", exc_info))
        self.notes.append(f"{self.name} closed")
        if self.error is not None:
            raise self.error
        return done


def test_what_is_entered_stays_open_and_is_left_newest_first() -> None:
    notes: list[str] = []

    async def main() -> None:
        async with AsyncioHost() as host:
            one = await host.enter(Resource("one", notes))
            await host.enter(Resource("two", notes))
            await run_in_asyncio(trio.sleep, 0.01)
            assert notes == ["one opened", "two opened"]
            assert one.name == "one"

    run_plain(main)
    assert notes[2:] == ["two closed", "one closed"]


def test_leaving_in_another_task_is_fine() -> None:
    notes: list[str] = []

    async def main() -> None:
        host = AsyncioHost()
        await asyncio.create_task(host.__aenter__())
        await asyncio.create_task(host.enter(Resource("one", notes)))
        await asyncio.create_task(host.__aexit__(None, None, None))

    run_plain(main)
    assert notes == ["one opened", "one closed"]


def test_an_error_of_entering_leaves_bare_and_the_host_goes_on() -> None:
    notes: list[str] = []

    @asynccontextmanager
    async def refuses() -> AsyncGenerator[None]:
        await trio.lowlevel.checkpoint()
        raise LookupError("no")
        yield

    async def main() -> None:
        async with AsyncioHost() as host:
            with pytest.raises(LookupError):
                await host.enter(refuses())
            await host.enter(Resource("one", notes))

    run_plain(main)
    assert notes == ["one opened", "one closed"]


def test_a_cancelled_enter_is_left_again() -> None:
    async def main() -> None:
        log = Log()

        @asynccontextmanager
        async def slow() -> AsyncGenerator[None]:
            await log.sleeper()
            yield

        async with AsyncioHost() as host:
            task = asyncio.create_task(host.enter(slow()))
            await log.started.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert log.notes == ["cancelled", "cleaned up"]

    run_plain(main)


def test_errors_of_leaving_leave_when_all_is_left() -> None:
    notes: list[str] = []

    async def main() -> None:
        async with AsyncioHost() as host:
            await host.enter(Resource("one", notes, LookupError("one")))
            await host.enter(Resource("two", notes))

    with pytest.raises(LookupError):
        run_plain(main)
    assert notes[2:] == ["two closed", "one closed"]

    async def both() -> None:
        async with AsyncioHost() as host:
            await host.enter(Resource("one", notes, LookupError("one")))
            await host.enter(Resource("two", notes, KeyError("two")))

    with pytest.raises(ExceptionGroup) as caught:
        run_plain(both)
    assert {type(error) for error in caught.value.exceptions} == {LookupError, KeyError}


def test_an_error_of_leaving_does_not_hide_the_one_on_its_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with AsyncioHost() as host:
            await host.enter(Resource("one", [], LookupError("of leaving")))
            raise KeyError("of the body")

    with pytest.raises(KeyError):
        run_plain(main)
    assert "of leaving" in caplog.text


def test_what_ends_by_itself_is_logged_and_raised_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with AsyncioHost() as host:
            one = await host.enter(Resource("one", []))
            assert one.nursery is not None

            async def crash() -> None:
                raise LookupError("of a background task")

            one.nursery.start_soon(crash)
            while "ended by itself" not in caplog.text:
                await asyncio.sleep(0.001)

    with pytest.raises(ExceptionGroup, match="Trio nursery"):
        run_plain(main)


def test_a_host_says_when_it_is_used_wrongly() -> None:
    async def main() -> None:
        host = AsyncioHost()
        with pytest.raises(tr.NotEnteredError):
            await host.enter(tr.ToolAgent("a", model=ScriptedModel([])))
        async with host:
            with pytest.raises(tr.BusyError):
                await host.__aenter__()
            with pytest.raises(tr.UsageError, match="clock"):
                await AsyncioHost(clock=trio.testing.MockClock()).__aenter__()
        async with host:  # again, later
            pass

    run_plain(main)


# --- Ctrl-C ---------------------------------------------------------------------


def test_ctrl_c_under_asyncio_run_interrupts_the_turn_and_leaves_as_keyboard_interrupt(
    run: Callable[[Main], None],
) -> None:
    agents: list[tr.ToolAgent] = []

    async def quick() -> str:
        await trio.lowlevel.checkpoint()
        return "kept"

    async def pressed() -> str:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()
        return "never"

    async def main() -> None:
        model = ScriptedModel([[call("quick")], [call("pressed")], "never asked"])
        agents.append(tr.ToolAgent("a", model=model, tools=[quick, pressed]))
        await run_in_asyncio(agents[0].generate, "go")

    with pytest.raises(KeyboardInterrupt):
        run(main)
    tr.check_history(agents[0].history)
    results = [result for message in agents[0].history for result in message.tool_results]
    assert [result.status.value for result in results] == ["ok", "interrupted"]


@pytest.mark.parametrize("when", range(0, 60, 3))
def test_a_second_ctrl_c_at_any_moment_of_the_finish_does_not_break_it(when: int) -> None:
    """The second comes at the ``when``-th line of trio's own code after the first."""
    agents: list[tr.ToolAgent] = []
    lines = [-1]

    def trace(frame: Any, event: str, _: object) -> Any:
        if f"trio{'/'}_core" not in frame.f_code.co_filename:
            return None
        if event == "line" and lines[0] >= 0:
            if lines[0] == when:
                lines[0] = -(10**9)
                signal.raise_signal(signal.SIGINT)
            lines[0] += 1
        return trace

    async def slow() -> str:
        try:
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        finally:
            lines[0] = 0
        return "never"

    async def main() -> None:
        agents.append(tr.ToolAgent("a", model=ScriptedModel([[call("slow")]]), tools=[slow]))
        await run_in_asyncio(agents[0].generate, "go")

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        sys.settrace(None)
    assert lines[0] < 0
    tr.check_history(agents[0].history)
    assert agents[0].history[-1].tool_results[0].status.value == "interrupted"
    assert not trio.lowlevel.in_trio_run()


def test_a_second_ctrl_c_stops_a_tool_that_never_lets_go() -> None:
    agents: list[tr.ToolAgent] = []

    async def endless() -> str:
        signal.raise_signal(signal.SIGINT)
        ends = time.monotonic() + BOUND
        while time.monotonic() < ends:
            signal.raise_signal(signal.SIGINT)
        return "never"

    async def main() -> None:
        agents.append(tr.ToolAgent("a", model=ScriptedModel([[call("endless")]]), tools=[endless]))
        await run_in_asyncio(agents[0].generate, "go")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    tr.check_history(agents[0].history)
    assert agents[0].history[-1].tool_results[0].status.value == "interrupted"


def test_under_a_plain_loop_ctrl_c_stays_the_hosts() -> None:
    async def press() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep(0.01)
        notes.append("went on")

    notes: list[str] = []
    loop = asyncio.new_event_loop()
    task = loop.create_task(run_in_asyncio(press))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    # As any asyncio task, it goes on when the loop does.
    loop.run_until_complete(task)
    loop.close()
    assert notes == ["went on"]


def test_a_signal_receiver_in_trio_code_gets_ctrl_c_and_is_gone_afterwards() -> None:
    async def receive() -> int:
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            signal.raise_signal(signal.SIGINT)
            async for number in signals:
                return number
        raise AssertionError

    async def main() -> None:
        before = signal.getsignal(signal.SIGINT)
        assert await run_in_asyncio(receive) == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is before

    run_plain(main)


def test_a_loops_own_signal_handler_is_called_once_for_each_signal() -> None:
    calls: list[int] = []

    async def press() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep(0.01)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, calls.append, 1)
        await run_in_asyncio(press)
        await asyncio.sleep(0.01)
        loop.remove_signal_handler(signal.SIGINT)

    run_plain(main)
    assert calls == [1]
