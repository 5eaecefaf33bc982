"""`run_in_asyncio` and `AsyncioHost`: one call into trio, and what stays open between calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, TypeVarTuple, cast

import trio

import trio_runner as tr
from trio_runner_adapters.asyncio_host._calls import Call, HostClosedError, bind, outlast
from trio_runner_adapters.asyncio_host._guest import Guest, join

_log = logging.getLogger("trio_runner_adapters.asyncio_host")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def run_in_asyncio(
    async_fn: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    timeout: float | None = None,  # noqa: ASYNC109 - trio's deadline, not a wait of asyncio's
) -> T:
    """Run a trio function from asyncio code and return what it returns.

    Example::

        reply = await run_in_asyncio(agent.generate, "What is the weather in Oslo?")

    It may be any trio function: nurseries, threads, sockets and processes work.
    Calls on one loop share one trio run, which begins with the first and is over
    when the last has left; `AsyncioHost` keeps it. The function sees the context
    variables of the calling task. In keyword arguments: `functools.partial`.

    Cancelling the asyncio task (also by `asyncio.timeout`, `asyncio.wait_for`, a
    task group, or Ctrl-C under `asyncio.run`) cancels the function. The task
    waits until it has ended, however often it is cancelled meanwhile: a turn
    takes its ``grace`` at most, and its tools' own cleanup. Then CancelledError is
    raised, always; a result that was finished all the same is in the agent's
    history. An error that came with the cancel is the cause, and is logged.

    Args:
      timeout: seconds until the function is cancelled by a deadline of trio's.

    Raises:
      trio.TooSlowError: ``timeout`` passed.
      HostClosedError: the loop was shut down under it.
      UsageError: called from trio code, or without a running loop.
      BaseException: what the function raised, bare.
    """
    guest = await join()
    fn = bind(async_fn, *args)
    call = Call(guest.loop, fn if timeout is None else bind(_in_time, fn, timeout))
    try:
        guest.spawn(call)
    except BaseException:
        guest.leave_nowait()
        raise
    return await guest.finish(call)


async def _in_time(async_fn: Callable[[], Awaitable[T]], seconds: float) -> T:
    with trio.fail_after(seconds):
        return await async_fn()


class _Stay(Generic[T]):
    """A trio context manager that is entered, held and left by one trio task.

    Only so may it hold a nursery or a cancel scope; see `AsyncioHost.enter`.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, context: AbstractAsyncContextManager[T]
    ) -> None:
        self._context = context
        self._release = trio.Event()
        #: What entering it returned.
        self.value: T | None = None
        self.call = Call(loop, self._hold)

    async def _hold(self) -> None:
        try:
            async with self._context as self.value:
                self.call.tell(self.call.entered)
                await self._release.wait()
        except Exception:
            if self.call.entered.is_set() and not self._release.is_set():
                _log.exception("%r, which an AsyncioHost held open, ended by itself", self._context)
            raise

    def release(self) -> None:
        """Ask it to leave. Only while the trio run goes on."""
        self._release.set()


class AsyncioHost:
    """Keeps trio running on the asyncio loop, and trio things open in it.

    For an application, from its start to its end, as in FastAPI's lifespan::

        async with AsyncioHost() as host:
            weather = await host.enter(McpToolset.stdio(...))
            yield {"weather": weather}

    Without a host each turn starts trio and ends it, which takes about a
    millisecond and closes everything. Toolsets, agents and sessions belong to one
    trio run: open them with `enter`, and use them with `run_in_asyncio` and
    `stream_in_asyncio`, which find the host's run by themselves.

    Leaving closes what was entered, newest first, and ends the trio run when
    nobody else uses it. It stops no call: those belong to the tasks that made them.
    Enter and leave it in any task. If it is never left, the loop's shutdown ends all.

    Args:
      clock: for tests, a `trio.testing.MockClock`; only the first user on a loop may give one.
    """

    def __init__(self, *, clock: trio.abc.Clock | None = None) -> None:
        self._clock = clock
        self._guest: Guest | None = None
        self._stays: list[_Stay[Any]] = []

    async def __aenter__(self) -> Self:
        """Start trio on the running loop, unless it runs there already.

        Raises:
          BusyError: this host is entered already.
          UsageError: called from trio code, or trio runs on another loop of this thread.
        """
        if self._guest is not None:
            raise tr.BusyError("this AsyncioHost is entered already; make another one")
        self._guest = await join(self._clock)
        return self

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enter a trio context manager, hold it until the host is left, return what it gives.

        A trio task of its own enters it and leaves it. If cancelled, it is left
        again, and CancelledError is raised. If it ends by itself later, that is
        logged, and raised when the host is left.

        Raises:
          NotEnteredError: outside the host's block.
          BaseException: what entering raised, bare.
        """
        guest = self._guest
        if guest is None:
            raise tr.NotEnteredError(
                "the AsyncioHost is not entered; write 'async with AsyncioHost() as host:'"
            )
        stay = _Stay(guest.loop, context)
        call = stay.call
        guest.spawn(call)
        guest.users += 1
        cancelled = await outlast(call.entered, call.scope.cancel)
        if cancelled is not None or call.done.is_set():
            await guest.finish(call, cancelled)
            raise HostClosedError(f"{context!r} was left while it was being entered")
        self._stays.append(stay)
        return cast("T", stay.value)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave what was entered, newest first; the last user of trio waits for its end.

        A cancel meanwhile cancels the leaving that is under way, is waited out, and raised.

        Raises:
          BaseException: what leaving raised, bare, or several as one group; logged instead
            when something else leaves already.
        """
        guest, self._guest = self._guest, None
        stays, self._stays = self._stays, []
        if guest is None:
            return
        cancelled: asyncio.CancelledError | None = None
        errors: list[Exception] = []
        while stays:
            stay = stays.pop()
            if not guest.is_over:
                stay.release()
            try:
                await guest.finish(stay.call)
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
            except HostClosedError:
                pass  # the whole trio run has ended, and it with it
            except Exception as error:  # noqa: BLE001 - raised below, when all is left
                errors.append(error)
        last = await guest.leave()
        cancelled = cancelled or last
        if cancelled is not None or exc is not None:
            for error in errors:
                _log.error("an error was overtaken while an AsyncioHost was left", exc_info=error)
        if cancelled is not None:
            raise cancelled
        if errors and exc is None:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("leaving failed", errors)
