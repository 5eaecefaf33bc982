"""`Guest`: the trio run that lives on an asyncio loop, from its first user to its last.

What may live here: starting, driving and ending the one guest run that a thread
can have. It is kept in the trio run itself, in a `RunVar`: whoever asks on the
same thread finds it, and it is gone when the run is.

Everything here runs in the loop's thread, but for `Guest._soon_threadsafe`.
trio's ticks wait in a queue of ours and the loop is only told to take the next.
So a tick is not lost with the loop: the guest of a loop that was closed under it
can be driven to its end by hand.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, TypeVar

import outcome
import trio

import trio_runner as tr
from trio_runner_adapters.asyncio_host._calls import Call, HostClosedError, outlast
from trio_runner_adapters.asyncio_host._sigint import call_with_sigint_held

_log = logging.getLogger("trio_runner_adapters.asyncio_host")

T = TypeVar("T")

#: Seconds that the guest of a closed loop may take to end.
_RUN_OUT_TIMEOUT: Final = 10.0


class Guest:
    """One trio run inside one asyncio loop.

    Invariant: the run ends when the last user has left, and whoever leaves last
    waits for that (`test_nothing_is_left_when_the_last_call_leaves`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        #: Calls, streams and hosts that need the run.
        self.users = 0
        #: Nothing new may begin in it: the last user has left, or it was aborted.
        self.is_ending = False
        #: The trio run is over.
        self.is_over = False
        #: The same, for those who wait on the asyncio side.
        self.over = asyncio.Event()
        #: What is to be settled when the run breaks.
        self._calls: set[Call[Any]] = set()
        #: Calls that came before the main task had a nursery, each in its caller's context.
        self._early: list[tuple[contextvars.Context, Call[Any]]] = []
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()
        self._last_has_left = trio.Event()
        self._ticks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        #: Ticks and system tasks run in a context of nobody's.
        self._context = contextvars.Context()
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        #: What trio installs for async generators. The loop puts its own there at each run.
        self._hooks = sys.get_asyncgen_hooks()
        self._at_shutdown = self._shut_down_with_loop()
        self._is_shutting_down = False
        #: The loop is closed, and `run_out` takes the ticks.
        self._by_hand = False

    # --- from the first user to the last ----------------------------------------

    def start(self, clock: trio.abc.Clock | None) -> None:
        """Start the trio run. No checkpoint, on neither side."""
        _begin(self._at_shutdown)
        try:
            self._tick_with(lambda: contextvars.Context().run(self._start, clock))
        except BaseException:
            _end(self._at_shutdown)
            raise
        self._hooks = sys.get_asyncgen_hooks()
        _GUEST.set(self)

    def _start(self, clock: trio.abc.Clock | None) -> None:
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._soon_threadsafe,
            run_sync_soon_not_threadsafe=self._soon,
            done_callback=self._done,
            # The descriptor is asyncio's and uvloop's; trio would take it away from them.
            host_uses_signal_set_wakeup_fd=True,
            # Without effect: as SIGINT is held just now, trio installs no handler at all.
            restrict_keyboard_interrupt_to_checkpoints=True,
            clock=clock,
        )

    @trio.lowlevel.enable_ki_protection
    async def _main(self) -> None:
        with self._scope:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                self._nursery = nursery
                for context, call in self._early:
                    context.run(nursery.start_soon, self._run, call)
                self._early.clear()
                await self._last_has_left.wait()

    @trio.lowlevel.enable_ki_protection
    async def _run(self, call: Call[Any]) -> None:
        await call.run()

    def spawn(self, call: Call[Any]) -> None:
        """Start a call, in the context of the asyncio task that is running. No checkpoint.

        Raises:
          HostClosedError: the run is ending.
        """
        if self.is_ending:
            raise HostClosedError("the trio run of this asyncio loop has been shut down")
        self._calls.add(call)
        if self._nursery is None:
            self._early.append((contextvars.copy_context(), call))
        else:
            self._nursery.start_soon(self._run, call)

    def watch(self, call: Call[Any]) -> None:
        """See to it that a call which another one runs is settled when the run breaks."""
        self._calls.add(call)

    def forget(self, call: Call[Any]) -> None:
        """The asyncio side has what it waited for."""
        self._calls.discard(call)

    async def finish(self, call: Call[T], cancelled: asyncio.CancelledError | None = None) -> T:
        """Wait for a call of one user, and let that user go: asyncio side.

        Checkpoint of asyncio: yes. A cancel cancels the call, is waited out, and raised.

        Args:
          cancelled: a cancel that came before.
        """
        try:
            try:
                later = await outlast(call.done, call.scope.cancel)
            except BaseException:  # the coroutine is being thrown away: it cannot wait
                self.throw_away(call)
                raise
            self.forget(call)
            last = await self.leave()
            return call.result(cancelled or later or last)
        finally:
            del cancelled

    async def leave(self) -> asyncio.CancelledError | None:
        """A user goes; the last waits until the trio run is over, whatever is cancelled."""
        self.leave_nowait()
        return await outlast(self.over, self._kick) if not self.users else None

    def leave_nowait(self) -> None:
        """A user goes, and nobody waits."""
        self.users -= 1
        if not self.users and not self.is_over:
            self.is_ending = True
            if not self.loop.is_closed():  # else `run_out` sees to it
                self._last_has_left.set()

    def throw_away(self, call: Call[Any]) -> None:
        """A user goes whose coroutine is being closed: its call is cancelled, and nobody waits."""
        if not self.loop.is_closed():
            call.scope.cancel()
        self.leave_nowait()

    def abort(self) -> None:
        """Cancel all that runs in it. No checkpoint, idempotent."""
        self.is_ending = True
        if not self.is_over:
            self._last_has_left.set()
            self._scope.cancel()

    def _done(self, result: outcome.Outcome[Any]) -> None:
        self.is_ending = self.is_over = True
        error = result.error if isinstance(result, outcome.Error) else None
        if error is not None:
            _log.error("the trio run inside asyncio broke", exc_info=error)
        for call in tuple(self._calls):
            closed = HostClosedError("the trio run ended before the call did")
            closed.__cause__ = error
            call.settle(outcome.Error(closed))
        self._calls.clear()
        if not self._is_shutting_down:
            _end(self._at_shutdown)
        if not self.loop.is_closed():
            self.over.set()

    async def _shut_down_with_loop(self) -> AsyncGenerator[None]:
        """End the run when the loop closes its async generators, as `asyncio.run` does.

        By then all tasks have been cancelled and have ended, so this is for a host
        whose block was never left, as in a notebook.
        """
        try:
            yield
        finally:
            if not self.is_over:
                self._is_shutting_down = True
                self.abort()
                await outlast(self.over, self._kick)

    # --- ticks ------------------------------------------------------------------

    def _soon(self, fn: Callable[[], object]) -> None:
        self._ticks.put(fn)
        self._kick()

    def _soon_threadsafe(self, fn: Callable[[], object]) -> None:
        self._ticks.put(fn)
        try:
            self.loop.call_soon_threadsafe(self._tick, context=self._context)
        except RuntimeError:
            pass  # the loop is closed: `run_out` takes it

    def _kick(self) -> None:
        """Have the loop take the next tick. Once too often does no harm.

        A KeyboardInterrupt may strike before the first line of `_tick`, and the loop
        then forgets it, but the tick itself stays in the queue.
        """
        if not self._by_hand:
            self.loop.call_soon(self._tick, context=self._context)

    def _tick(self) -> None:
        self._tick_with(self._next_tick)

    def _tick_with(self, fn: Callable[[], object]) -> None:
        if self._in_main_thread:
            call_with_sigint_held(fn)
        else:
            fn()

    def _next_tick(self) -> None:
        try:
            tick = self._ticks.get_nowait()
        except queue.Empty:
            return
        if sys.get_asyncgen_hooks() != self._hooks:
            # The loop was stopped and runs again; trio's hooks pass its generators on to it.
            sys.set_asyncgen_hooks(*self._hooks)
        tick()

    def run_out(self) -> None:
        """Drive the run to its end by hand: its loop was closed under it.

        What runs in it is cancelled, and finishes as it would.

        Raises:
          HostClosedError: it did not end in time; the thread cannot run trio any more.
        """
        hooks = sys.get_asyncgen_hooks()
        self._by_hand = True
        self.abort()
        ends = time.monotonic() + _RUN_OUT_TIMEOUT
        try:
            while not self.is_over:
                tick = self._ticks.get(timeout=max(0.0, ends - time.monotonic()))
                self._tick_with(tick)
        except queue.Empty:
            raise HostClosedError(
                "an asyncio loop was closed while trio ran in it, and what ran did not end within "
                f"{_RUN_OUT_TIMEOUT:g} seconds; leave AsyncioHost and streams before closing a loop"
            ) from None
        finally:
            sys.set_asyncgen_hooks(*hooks)


#: The guest, kept in the trio run that it is.
_GUEST: Final = trio.lowlevel.RunVar[Guest | None]("trio_runner_adapters.asyncio_host")


def _begin(generator: AsyncGenerator[None]) -> None:
    """Run an async generator, which does not wait, to its yield: the loop then knows it."""
    try:
        generator.asend(None).send(None)
    except StopIteration:
        pass


def _end(generator: AsyncGenerator[None]) -> None:
    """Close an async generator that has nothing to wait for any more."""
    try:
        generator.aclose().send(None)
    except StopIteration:
        pass


async def join(clock: trio.abc.Clock | None = None) -> Guest:
    """Become a user of the guest of the running loop; it is started when there is none.

    Checkpoint of asyncio: only when the guest before is still ending.

    Raises:
      UsageError: called from trio code, without a loop, or where trio is in use otherwise.
    """
    if trio.lowlevel.in_trio_task():
        raise tr.UsageError(
            "this was called from trio code, and it is for asyncio code: await the trio "
            "function itself"
        )
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise tr.UsageError(
            "no asyncio loop is running here; await this from asyncio code, and use "
            "trio_runner.run() where there is no asyncio"
        ) from None
    while (guest := _find(loop)) is not None and guest.is_ending:
        await guest.over.wait()
    if guest is None:
        guest = Guest(loop)
        guest.start(clock)
    elif clock is not None:
        raise tr.UsageError("trio runs on this loop already; its clock cannot be changed now")
    guest.users += 1
    return guest


def _find(loop: asyncio.AbstractEventLoop) -> Guest | None:
    if not trio.lowlevel.in_trio_run():
        return None
    guest = _GUEST.get(None)
    if guest is None:
        raise tr.UsageError(
            "another guest run of trio is on this thread, and a thread can have one only; "
            "await trio functions through whatever started it"
        )
    if guest.loop is loop:
        return guest
    if not guest.loop.is_closed():
        raise tr.UsageError(
            "trio runs on another asyncio loop of this thread, and a thread can have one trio run "
            "only; leave the AsyncioHost, or the stream, of that loop, or close the loop"
        )
    guest.run_out()
    return None
