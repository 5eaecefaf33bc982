"""One call from asyncio into the guest: `Call`, and what leaves it on the asyncio side.

What may live here: how the outcome of a trio function crosses. No exception
type of one side ever reaches the other: trio's Cancelled stays with the scope
of the call, asyncio's CancelledError is raised on the asyncio side only.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

import outcome
import trio

import trio_runner as tr
from trio_runner_adapters._unprotected import call_unprotected

_log = logging.getLogger("trio_runner_adapters.asyncio_host")

T = TypeVar("T")


class HostClosedError(tr.TrioRunnerError):
    """The trio run ended under a call: the asyncio loop was shut down, or trio itself broke."""


async def outlast(
    event: asyncio.Event, on_cancel: Callable[[], object]
) -> asyncio.CancelledError | None:
    """Wait for ``event`` on the asyncio side, whatever is cancelled meanwhile.

    Args:
      on_cancel: called at every cancel. anyio repeats its cancels, so it must be idempotent.

    Returns:
      The first cancel, for the caller to raise when it has finished; None without one.
    """
    first: asyncio.CancelledError | None = None
    while not event.is_set():
        try:
            await event.wait()
        except asyncio.CancelledError as error:
            first = first or error
            on_cancel()
    return first


class Call(Generic[T]):
    """A trio function that was called from asyncio.

    Invariant: it is settled, whatever becomes of it
    (`test_a_call_ends_when_the_trio_run_breaks`).

    Args:
      loop: where the caller waits.
      async_fn: the trio function.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, async_fn: Callable[[], Awaitable[T]]
    ) -> None:
        self._loop = loop
        self._async_fn = async_fn
        #: Cancelled when the asyncio side is.
        self.scope = trio.CancelScope()
        #: For calls that stay: set when they are ready to be used, or done.
        self.entered = asyncio.Event()
        #: Set when nothing of the call runs any more.
        self.done = asyncio.Event()
        #: The whole trio run was being cancelled when it ended.
        self._is_aborted = False
        self._outcome: outcome.Outcome[T | None] | None = None

    # --- the trio side ----------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Run the function and keep its outcome; raises nothing. For a trio task."""
        result = await outcome.acapture(self._in_scope)
        # What is cancelled out here is the whole trio run.
        self._is_aborted = trio.current_effective_deadline() == -math.inf
        self.settle(result)

    @trio.lowlevel.enable_ki_protection
    async def _in_scope(self) -> T | None:
        with self.scope:
            # trio runs the first step of a task that was cancelled before it began.
            await trio.lowlevel.checkpoint_if_cancelled()
            return await call_unprotected(self._async_fn)
        return None  # the scope was cancelled

    def settle(self, result: outcome.Outcome[T | None]) -> None:
        """Keep the outcome, unless there is one, and wake the asyncio side. No checkpoint."""
        if self._outcome is None:
            self._outcome = result
            self.tell(self.entered)
            self.tell(self.done)

    def tell(self, event: asyncio.Event) -> None:
        """Set an event of the asyncio side; on a closed loop nobody waits for it any more."""
        if not self._loop.is_closed():
            event.set()

    # --- the asyncio side -------------------------------------------------------

    def result(self, cancelled: asyncio.CancelledError | None) -> T:
        """What the settled call gives to the asyncio side.

        Args:
          cancelled: the cancel that is to leave, if there was one.

        Raises:
          asyncio.CancelledError: ``cancelled``; only KeyboardInterrupt and SystemExit
            go before it. An error that it overtakes is its cause, and is logged.
          BaseException: what the function raised, bare.
        """
        assert self._outcome is not None
        match self._outcome:
            case outcome.Error(error):
                self._raise(_without_cancels(error, self._is_aborted), cancelled)
            case _:
                pass
        if cancelled is not None:
            raise cancelled
        return cast("T", self._outcome.unwrap())

    def _raise(self, error: BaseException, cancelled: asyncio.CancelledError | None) -> None:
        try:
            if cancelled is None or isinstance(error, KeyboardInterrupt | SystemExit):
                raise error
            if not isinstance(error, HostClosedError | StopAsyncIteration):
                _log.error("an error was overtaken by the cancel of its task", exc_info=error)
            raise cancelled from error
        finally:
            del error, cancelled  # they hold this frame


def _without_cancels(error: BaseException, is_aborted: bool) -> BaseException:
    """``error`` without cancellations, which mean nothing on the asyncio side.

    The call's own cancel never comes here: its scope has caught it.
    """
    cancellations = (trio.Cancelled, asyncio.CancelledError)
    rest: BaseException | None = None if isinstance(error, cancellations) else error
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        rest = group.split(cancellations)[1]
        exits = group.split((KeyboardInterrupt, SystemExit))[0]
        if exits is not None:
            return _first_leaf(exits)
    if rest is not None:
        return rest
    if is_aborted:
        return HostClosedError(
            "trio was shut down during the call: its asyncio loop was, or it broke"
        )
    kind = type(cast("BaseException", error)).__name__
    stray = tr.StrayCancellationError(
        f"the function raised {kind} by itself, while nobody had cancelled it"
    )
    stray.__cause__ = error
    return stray


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def bind(async_fn: Callable[..., Awaitable[T]], *args: object) -> Callable[[], Awaitable[T]]:
    """The function with its arguments."""
    return functools.partial(async_fn, *args)
