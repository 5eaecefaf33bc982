"""One operation that trio asks of the asyncio side: sent, waited for, cancelled, answered once.

What may live here: the waiting, and what a cancel does to it. What the operation is, the
loop side decides; whether there is a loop, `Life` knows.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias

import trio

import trio_runner_adapters.asyncio_bridge._callbacks as callbacks
import trio_runner_adapters.asyncio_bridge._errors as errors
from trio_runner_adapters._finishing import wait_closed

#: Makes the coroutine that does it, in the loop's thread.
Work: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]


def cancel_once(task: asyncio.Task[Any]) -> None:
    """Cancel a task, unless it is being cancelled: a second one would cut its cleanup."""
    if not task.cancelling():
        task.cancel()


class Sides(Protocol):
    """What a call needs of the life that it belongs to."""

    name: str
    grace: float
    #: The asyncio tasks that are ours. Used in the loop's thread only.
    tasks: set[asyncio.Task[Any]]

    @property
    def loop_ends(self) -> bool:
        """Whether the loop side begins nothing any more. For the loop's thread."""
        ...

    def send(self, fn: Callable[..., object], *args: object) -> None:
        """Have the loop call ``fn``."""
        ...

    def post(self, fn: Callable[..., object], *args: object) -> bool:
        """Have trio call ``fn``."""
        ...

    def closed_error(self) -> errors.BridgeClosedError | None:
        """The error of a call that was in flight when it ended; None while it is open."""
        ...

    def abandon(self, why: str) -> None:
        """Give the thread up."""
        ...


class Call:
    """One operation in flight.

    Invariant: it gets exactly one outcome, of whichever comes first: the answer, or the end
    of the life (`test_each_call_has_one_outcome_at_every_step`).
    """

    __slots__ = (
        "_cancel_asked",
        "_channel",
        "_ending",
        "_error",
        "_life",
        "_sleeper",
        "_task",
        "_value",
        "_what",
        "cancel_arrived",
        "ended",
    )

    def __init__(
        self, life: Sides, what: Callable[[], str], channel: callbacks.Channel | None
    ) -> None:
        self._life = life
        #: Says in words what it is; most calls need none.
        self._what = what
        self._channel = channel
        # In trio's thread:
        #: Whether the outcome is there.
        self.ended: bool = False
        self._value: Any = None
        self._error: BaseException | None = None
        #: Whether we have asked for the cancel.
        self._cancel_asked = False
        #: The task that sleeps until `wake`; None while it is awake.
        self._sleeper: trio.lowlevel.Task | None = None
        #: Set with the outcome; made when somebody waits for that alone.
        self._ending: trio.Event | None = None
        # In the loop's thread:
        self._task: asyncio.Task[Any] | None = None
        #: Whether a cancel has arrived.
        self.cancel_arrived: bool = False

    # --- in trio's thread ---

    async def outcome(self, cancel: Callable[[], None]) -> Any:
        """Wait for the outcome, and return or raise it.

        Cancelled, or interrupted, it has ``cancel`` ask the asyncio side to cancel, and
        waits for its cleanup, at most ``grace`` seconds. An outcome that comes all the
        same is what counts: then the caller's cancel is found at its next checkpoint.
        """
        channel = self._channel
        if channel is not None:
            channel.waiter = self
        try:
            await self._until_ended()
        except trio.Cancelled:
            await self._stopped(cancel)
            # Without an outcome of its own the caller's cancel is what happened.
            if isinstance(self._error, asyncio.CancelledError | errors.BridgeClosedError):
                raise
        except BaseException:
            await self._stopped(cancel)
            raise
        finally:
            if channel is not None:
                channel.waiter = None
        return self._unwrapped()

    async def finish(self) -> Any:
        """Wait for the outcome whatever is cancelled, at most ``grace`` seconds.

        For what must come to its end: leaving a context, closing an iterator.

        Raises:
          BridgeClosedError: it took longer; the thread is given up.
        """
        try:
            await self._wait_bounded()
        finally:
            if not self.ended:
                self._give_up()
        return self._unwrapped()

    async def _until_ended(self) -> None:
        channel = self._channel
        while True:
            if channel is not None and channel.inbox and not channel.busy:
                await channel.drain()
            elif self.ended and (channel is None or not channel.busy):
                return
            else:
                self._sleeper = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._sleeper = None
        return trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        """Let the waiting task look again; nothing happens when none sleeps. No checkpoint."""
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None

    async def _stopped(self, cancel: Callable[[], None]) -> None:
        """The wait was cut: have the other side stop, and wait for that."""
        if self._channel is not None:
            self._channel.close("the call that it belongs to was cancelled")
        if self.ended:
            return
        self._cancel_asked = True
        cancel()
        try:
            await self._wait_bounded()
        finally:
            if not self.ended:
                self._give_up()

    async def _wait_bounded(self) -> None:
        if not self.ended:
            self._ending = trio.Event()
            await wait_closed(self._ending, self._life.grace)

    def _give_up(self) -> None:
        self._life.abandon(
            f"is abandoned: {self._what()} did not end within {self._life.grace:g} seconds (grace) "
            "of its cancel or close; its thread may go on"
        )

    def _unwrapped(self) -> Any:
        error = self._error
        if error is None:
            return self._value
        try:
            if isinstance(error, errors.BridgeError):
                raise error
            crossing = errors.may_cross(self._life.name, self._what(), error)
            if crossing is error:
                raise error
            raise crossing from error
        finally:
            # The traceback leads back here: no cycle may keep what it holds.
            del error, self

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take the outcome; a second one is ignored. No checkpoint."""
        if self.ended:
            return
        if type(error) is asyncio.CancelledError and not self._cancel_asked:
            # Our own end cancels what is in flight: that is no foreign whim.
            error = self._life.closed_error() or error
        self.ended = True
        self._value, self._error = value, error
        if self._ending is not None:
            self._ending.set()
        self.wake()

    # --- in the loop's thread ---

    def begin(self, work: Work, context: contextvars.Context) -> None:
        """Do ``work`` in an asyncio task of its own."""
        if self._life.loop_ends:
            self.answer(None, asyncio.CancelledError())
            return
        task = asyncio.get_running_loop().create_task(work(), context=context, name=self._life.name)
        self._task = task
        self._life.tasks.add(task)
        task.add_done_callback(self._done)

    def cancel_task(self) -> None:
        """Cancel that task."""
        self.cancel_arrived = True
        if self._task is not None:
            cancel_once(self._task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._life.tasks.discard(task)
        if task.cancelled():
            self.answer(None, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.answer(None, error)
        else:
            self.answer(task.result(), None)

    def answer(self, value: Any, error: BaseException | None) -> None:
        """Send the outcome to trio."""
        self._life.post(self.settle, value, error)
