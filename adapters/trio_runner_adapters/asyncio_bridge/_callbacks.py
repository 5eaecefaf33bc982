"""Callables of trio's side that a client is given: how a call of one comes over and back.

A `Request` is one such call. It goes into the `Channel` of the call that the callable was
an argument of, and the task that waits for that call runs it, so a callback is a part of
the task that passed it: it is cancelled with it, and sees its context variables.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import outcome
import trio

import trio_runner_adapters._main_task as main_task
import trio_runner_adapters.asyncio_bridge._errors as errors
from trio_runner_adapters._unprotected import call_sync_unprotected, call_unprotected

_log = logging.getLogger("trio_runner_adapters.asyncio_bridge")


class Post(Protocol):
    """Has trio call something soon, in order, from any thread."""

    def __call__(self, fn: Callable[..., object], *args: object) -> bool:
        """Return whether trio still runs."""
        ...


class Waiter(Protocol):
    """A task of trio that waits for a call."""

    def wake(self) -> None:
        """Let it look at its channel."""
        ...


def is_async(fn: Callable[..., Any]) -> bool:
    """Return whether calling ``fn`` gives a coroutine, also for partials and callable objects."""
    call = getattr(type(fn), "__call__", None)  # noqa: B004 - its kind, not whether it is there
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(call)


class Request:
    """One call of a callback; answered once, whatever happens."""

    def __init__(
        self,
        bridge: str,
        fn: Callable[..., Any],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        answer: Callable[[object, BaseException | None], None],
        *,
        waits: bool,
    ) -> None:
        self._bridge = bridge
        self._fn = fn
        self._arguments = arguments
        self._answer = answer
        #: Whether it may wait: an async callable. The loop stands still for any other.
        self.waits: bool = waits
        #: Cancelled when the asyncio side does not want it any more.
        self._scope = trio.CancelScope()
        self._answered = False

    def _give(self, value: object, error: BaseException | None) -> None:
        if not self._answered:
            self._answered = True
            self._answer(value, error)

    def give_up(self) -> None:
        """The asyncio side has cancelled whoever waits for it."""
        self._answered = True  # nobody listens
        self._scope.cancel()

    def refuse(self, why: str) -> None:
        """Answer with an error that says why it was not run, or not to its end."""
        self._give(None, errors.CallbackRefusedError(self._bridge, f"runs no callback: {why}"))

    async def run(self, *, in_caller: bool) -> None:
        """Run it in this task. Only what its caller on the asyncio side cannot have is raised.

        ``in_caller``: this is the task that passed the callable, where Ctrl-C may strike; in
        one of our own it would be lost.
        """
        args, kwargs = self._arguments
        try:
            with self._scope:
                if not self.waits:
                    self._run_sync(in_caller=in_caller)
                elif in_caller:
                    self._give(await call_unprotected(self._fn, *args, **kwargs), None)
                else:
                    self._give(await self._fn(*args, **kwargs), None)
        except Exception as error:  # noqa: BLE001 - border: it belongs to whoever called
            self._give(None, error)
        except BaseException:
            self.refuse("the task that is to run it was stopped")
            raise
        self.refuse("it was cancelled")

    def run_now(self) -> None:
        """Run a synchronous one right here, in no task."""
        try:
            self._run_sync(in_caller=False)
        except Exception as error:  # noqa: BLE001 - border: it belongs to whoever called
            self._give(None, error)
        except BaseException:
            self.refuse("it raised what is no ordinary error")
            raise

    def _run_sync(self, *, in_caller: bool) -> None:
        args, kwargs = self._arguments
        if in_caller:
            value = call_sync_unprotected(self._fn, *args, **kwargs)
        else:
            value = self._fn(*args, **kwargs)
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(
                f"callback {self._fn!r} is no async function, but returned {type(value).__name__}; "
                "expected a value. Give an `async def` function"
            )
        self._give(value, None)


class Channel:
    """The callbacks of one call, from the first to the last.

    Used in trio's thread. Invariant: a request that arrives is answered
    (`test_a_callback_is_cancelled_with_its_call_and_what_is_open_is_refused`).
    """

    def __init__(self, bridge: str, post: Post, send: Callable[..., None]) -> None:
        self.bridge: str = bridge
        self._post = post
        self._send = send
        #: The caller's; a copy, since the client's task is in its own while the loop stands still.
        self.context: contextvars.Context = contextvars.copy_context()
        #: What has arrived and was not begun, in order.
        self.inbox: deque[Request] = deque()
        #: Who waits for the call; None between the operations of an iterator or a context.
        self.waiter: Waiter | None = None
        #: Whether some task is running requests.
        self.busy: bool = False
        #: What is being run, to be answered when its task is stopped.
        self._running: Request | None = None
        #: Why nothing is run any more; empty while it is.
        self._closed = ""
        #: Around a task that serves when nobody waits.
        self._scope = trio.CancelScope()

    # --- in trio's thread ---

    def arrive(self, request: Request) -> None:
        """Take a request: for the waiting task, or for one of our own when none waits.

        A synchronous one is run at once unless the waiting task is free: until it is
        answered the loop stands still, and the task may be waiting for the loop.
        """
        if self._closed:
            request.refuse(self._closed)
        elif not request.waits and (self.busy or self.waiter is None):
            result = outcome.capture(self.context.copy().run, request.run_now)
            self._tell(result)
        else:
            self.inbox.append(request)
            if self.waiter is not None:
                self.waiter.wake()
            elif not self.busy:
                self.busy = True
                trio.lowlevel.spawn_system_task(
                    self._serve, name=f"callbacks of {self.bridge!r}", context=self.context
                )

    async def drain(self, *, in_caller: bool = True) -> None:
        """Run what has arrived, in order, in this task."""
        self.busy = True
        try:
            while self.inbox:
                self._running = self.inbox.popleft()
                await self._running.run(in_caller=in_caller)
        finally:
            self._running = None
            self.busy = False

    def close(self, why: str) -> None:
        """Run nothing any more; what is open is refused."""
        self._closed = self._closed or why
        if self._running is not None:
            self._running.refuse(self._closed)
        while self.inbox:
            self.inbox.popleft().refuse(self._closed)
        self._scope.cancel()

    async def _serve(self) -> None:
        """Serve without a waiting task; a system task, so no error may leave it."""
        with self._scope:
            self._tell(await outcome.acapture(self.drain, in_caller=False))
        if self.inbox:
            self.close("the run of trio ends")
        if self.waiter is not None:
            self.waiter.wake()

    def _tell(self, result: outcome.Value[Any] | outcome.Error) -> None:
        if isinstance(result, outcome.Error) and not isinstance(result.error, trio.Cancelled):
            # It is in no caller's task, so that nobody would see a Ctrl-C there.
            main_task.passed_on(result.error)
            _log.error(
                "asyncio bridge %r: a callback raised %s", self.bridge, errors.said(result.error)
            )

    # --- in the loop's thread, or another one of the client's ---

    def ask(self, request: Request) -> None:
        """Bring a request over."""
        if not self._post(self.arrive, request):
            request.refuse("the run of trio is over")

    def tell(self, fn: Callable[..., object]) -> None:
        """Have trio call ``fn``."""
        self._post(fn)

    def answer(self, future: asyncio.Future[Any], value: object, error: object) -> None:
        """Have the loop settle ``future``. In trio's thread."""
        self._send(_settle, future, value, error)


def stand_in(
    fn: Callable[..., Any],
    channel_now: Callable[[], Channel],
    incoming: Callable[[Any], Any],
    outgoing: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Return what the client is given in place of ``fn``: of the same kind and signature."""

    def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (
            tuple([incoming(arg) for arg in args]),
            {name: incoming(arg) for name, arg in kwargs.items()},
        )

    def sync_callback(*args: Any, **kwargs: Any) -> Any:
        channel, slot = channel_now(), _Slot()
        arguments = called(args, kwargs)
        channel.ask(Request(channel.bridge, fn, arguments, slot.fill, waits=False))
        return outgoing(slot.wait())

    async def async_callback(*args: Any, **kwargs: Any) -> Any:
        channel, future = channel_now(), asyncio.get_running_loop().create_future()
        answer = functools.partial(channel.answer, future)
        request = Request(channel.bridge, fn, called(args, kwargs), answer, waits=True)
        channel.ask(request)
        try:
            return outgoing(await future)
        except asyncio.CancelledError:
            channel.tell(request.give_up)
            raise

    made = async_callback if is_async(fn) else sync_callback
    return functools.wraps(fn)(made)


class _Slot:
    """One value between two threads."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._value: object = None
        self._error: BaseException | None = None

    def fill(self, value: object, error: BaseException | None) -> None:
        self._value, self._error = value, error
        self._there.set()

    def wait(self) -> object:
        self._there.wait()
        if self._error is not None:
            raise self._error
        return self._value


def _settle(future: asyncio.Future[object], value: object, error: BaseException | None) -> None:
    """In the loop's thread: answer whoever waits there, unless it has gone."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
