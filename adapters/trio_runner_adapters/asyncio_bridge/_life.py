"""One life of a bridge: from the start of the loop's thread to its end.

The state is trio's: the loop side only posts what has happened there. So what a user sees
changes in trio's thread alone, between two steps of tasks, and needs no lock.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import inspect
import logging
from collections.abc import Callable
from typing import Any

import trio

import trio_runner_adapters.asyncio_bridge._call as calls
import trio_runner_adapters.asyncio_bridge._callbacks as callbacks
import trio_runner_adapters.asyncio_bridge._errors as errors
import trio_runner_adapters.asyncio_bridge._held as held
import trio_runner_adapters.asyncio_bridge._host as hosts

_log = logging.getLogger("trio_runner_adapters.asyncio_bridge")


def _nothing() -> None:
    """Is posted to learn whether anybody is there."""


class State(enum.Enum):
    """Where a life stands; it only ever moves downwards."""

    STARTING = "starting"
    READY = "ready"
    #: Somebody has asked for the end, or the client has ended by itself.
    ENDING = "ending"
    #: The thread is gone, or was given up.
    OVER = "over"


class Life:
    """One life.

    Invariant: whatever happens, ``settled`` and then ``closed`` get set, and no call stays in
    flight (`test_whatever_ends_the_asyncio_side_each_call_gets_one_typed_error`).
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        host: hosts.Host,
        *,
        name: str,
        grace: float,
        start_timeout: float,
        enter: bool,
    ) -> None:
        self._factory = factory
        self._enter = enter
        self._host = host
        self.name: str = name
        self.grace: float = grace
        # In trio's thread:
        self.state: State = State.STARTING
        #: Why it is not usable, when it is not; reads on after "asyncio bridge 'x'".
        self._why = ""
        #: What it ended with.
        self._cause: BaseException | None = None
        #: Who is inside: counted by the bridge, which asks for the close at 0.
        self.users: int = 0
        #: Set when the client is open, or will not be.
        self.settled: trio.Event = trio.Event()
        #: Set when the thread has ended, or was given up.
        self.closed: trio.Event = trio.Event()
        #: When the start is given up.
        self.start_deadline: float = trio.current_time() + start_timeout
        self._calls: set[calls.Call] = set()
        self._channels: set[callbacks.Channel] = set()
        self._token = trio.lowlevel.current_trio_token()
        #: Of the callbacks that the client itself was made with.
        self.own_channel: callbacks.Channel = self.channel()
        # In the loop's thread:
        #: The client, as its context gave it.
        self.client: Any = None
        self.tasks: set[asyncio.Task[Any]] = set()
        #: Which types can only be used on the loop, as far as they were met.
        self.foreign_types: dict[type[Any], bool] = {}
        self._main_task: asyncio.Task[Any] | None = None
        #: Wakes the main task, for the end.
        self._end_asked = asyncio.Event()
        #: Whether the client was open.
        self._has_served = False
        self._loop_ends = False

    # --- in trio's thread ---

    def start(self) -> None:
        """Start the thread. No checkpoint."""
        self._host.start(self._main, self._loop_stopped, self._thread_ended)

    def is_of_this_run(self) -> bool:
        """Return whether it was made under the trio run that runs now."""
        return self._token is trio.lowlevel.current_trio_token()

    def run_is_over(self) -> bool:
        """Return whether the trio run that it was made under has ended."""
        return not self.post(_nothing)

    def send(self, fn: Callable[..., object], *args: object) -> None:
        """Have the loop call ``fn``, in order. From any thread."""
        self._host.call_soon(fn, *args)

    def check_usable(self) -> None:
        """Raise unless a call can be made from here.

        Raises:
          BridgeClosedError: it is not open.
          BridgeError: it belongs to another run of trio.
        """
        if not self.is_of_this_run():
            raise errors.BridgeError(
                self.name, "belongs to another run of trio; each run needs a bridge of its own"
            )
        if self.state is not State.READY:
            why = self._why or "is still starting"
            raise errors.BridgeClosedError(self.name, f"{why}; nothing was sent") from self._cause

    def closed_error(self) -> errors.BridgeClosedError | None:
        """Return the error of a call that the end has cut; None while it is open."""
        if self.state in (State.STARTING, State.READY):
            return None
        error = errors.BridgeClosedError(self.name, self._why, began=True)
        error.__cause__ = self._cause
        return error

    def channel(self) -> callbacks.Channel:
        """Return a new channel for callbacks; it is closed with the life at the latest."""
        channel = callbacks.Channel(self.name, self.post, self.send)
        self._channels.add(channel)
        return channel

    def drop(self, channel: callbacks.Channel, why: str) -> None:
        """Close a channel whose call is over."""
        channel.close(why)
        self._channels.discard(channel)

    @trio.lowlevel.enable_ki_protection
    async def perform(
        self, what: Callable[[], str], work: calls.Work, channel: callbacks.Channel | None = None
    ) -> Any:
        """Do ``work`` in an asyncio task of its own, and return what it does. A checkpoint.

        See `Call.outcome` for what a cancel does; one that is there before sends nothing.
        """
        call = calls.Call(self, what, channel)
        try:
            self.check_usable()
            await trio.lowlevel.checkpoint_if_cancelled()
            self.register(call)
            self.send(call.begin, work, contextvars.copy_context())
            return await call.outcome(lambda: self.send(call.cancel_task))
        finally:
            self.forget(call)
            if channel is not None:
                self.drop(channel, "the call that it belongs to has ended")

    def register(self, call: calls.Call) -> calls.Call:
        """Count a call as in flight: it then gets an outcome, whatever ends."""
        self._calls.add(call)
        if self.state is State.OVER:
            call.settle(None, self.closed_error())
        return call

    def forget(self, call: calls.Call) -> None:
        """The call has its outcome."""
        self._calls.discard(call)

    def request_close(self, why: str = "was closed") -> None:
        """Ask the loop side to end: calls, then the client, then the thread. No checkpoint."""
        if self.state is not State.OVER:
            self._ending(why, None)
            self.send(self._ask_end)

    def abandon(self, why: str) -> None:
        """Stop waiting for the thread: it is told to end, and may or may not. No checkpoint."""
        if self.state is State.OVER:
            return
        self.send(self._ask_end, True)
        _log.warning("asyncio bridge %r %s", self.name, why)
        self.state, self._why = State.OVER, why
        self._all_over()

    def _all_over(self) -> None:
        for channel in list(self._channels):
            self.drop(channel, "the bridge has ended")
        for call in list(self._calls):
            call.settle(None, self.closed_error())
        self.settled.set()
        self.closed.set()

    # --- in trio's thread, posted by the loop's ---

    def _ready(self) -> None:
        if self.state is State.STARTING:
            self.state = State.READY
            self.settled.set()

    def _ending(self, why: str, cause: BaseException | None) -> None:
        if self.state in (State.STARTING, State.READY):
            self.state, self._why, self._cause = State.ENDING, why, cause
            self.settled.set()

    def _ended(self, error: BaseException | None) -> None:
        """The thread has ended, but for its last instruction."""
        self._host.join()
        if self.state is State.OVER:
            return  # it was given up, and ended after all
        if error is not None and not isinstance(error, asyncio.CancelledError):
            text = errors.said(error)
            match self.state:
                case State.STARTING:
                    self._why, self._cause = f"could not be started: {text}", error
                case State.ENDING if self._why == "was closed":
                    # Whoever was inside has gone; what closing adds is for the log.
                    _log.warning("asyncio bridge %r: error while closing: %s", self.name, text)
                case _:
                    self._why, self._cause = f"has ended by itself: {text}", error
                    _log.warning("asyncio bridge %r %s", self.name, self._why)
        elif not self._why:
            self._why = "has ended by itself"
        self.state = State.OVER
        self._all_over()

    # --- in the loop's thread ---

    @property
    def loop_ends(self) -> bool:
        """Whether the loop side begins nothing any more."""
        return self._loop_ends

    def post(self, fn: Callable[..., object], *args: object) -> bool:
        """Have trio call ``fn`` soon, in order; return whether its run is still there."""
        try:
            self._token.run_sync_soon(fn, *args)
        except trio.RunFinishedError:
            return False
        return True

    def _ask_end(self, hurry: bool = False) -> None:
        self._loop_ends = True
        self._end_asked.set()
        if self._main_task is not None and (hurry or not self._has_served):
            self._main_task.cancel()

    async def _main(self) -> None:
        """Hold the client, in one task: made, entered, left."""
        self._main_task = asyncio.current_task()
        try:
            made = self._factory()
            if inspect.isawaitable(made):
                made = await made
            if self._enter and held.has_method(made, "__aenter__"):
                async with made as client:
                    await self._serve(client)
            else:
                await self._serve(made)
        finally:
            await self._end_calls()

    async def _serve(self, client: Any) -> None:
        self._has_served = True
        self.client = client
        self.post(self._ready)
        try:
            await self._end_asked.wait()
        finally:
            # Also when the client cancels the task that holds it.
            self._loop_stopped()
            await self._end_calls()

    async def _end_calls(self) -> None:
        """Cancel what is in flight, and wait for it; trio bounds that."""
        self._loop_ends = True
        while self.tasks:
            for task in self.tasks:
                calls.cancel_once(task)
            await asyncio.wait(self.tasks)

    def _loop_stopped(self) -> None:
        self._loop_ends = True
        if self._has_served:
            self.post(self._ending, "has ended by itself", None)

    def _thread_ended(self, error: BaseException | None) -> None:
        self.client = None
        self.post(self._ended, error)
