"""`AsyncioBridge`: opens and closes the life of a client, and counts who is inside."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import trio

import trio_runner as tr
import trio_runner_adapters.asyncio_bridge._callbacks as callbacks
import trio_runner_adapters.asyncio_bridge._errors as errors
import trio_runner_adapters.asyncio_bridge._host as hosts
import trio_runner_adapters.asyncio_bridge._life as lives
import trio_runner_adapters.asyncio_bridge._proxy as proxy
from trio_runner_adapters._finishing import wait_closed


class AsyncioBridge:
    """Hosts an asyncio-only client in a daemon thread with a loop of its own.

    ``async with AsyncioBridge(make_client) as client:`` makes the client there, enters its
    async context, and gives a `BridgedObject` whose methods are awaited from trio. The context
    is entered and left in one asyncio task.

    Any number of tasks of one trio run may enter it and leave it, in any order, each as often
    as it entered. The thread starts with the first and ends with the last; after that it may
    be entered again, which makes a new client.

    What trio sees of the asyncio side is one outcome for each call; see `BridgedCall`. When
    the client ends by itself (its context breaks, its loop is stopped, something exits),
    each call in flight and each later one raises `BridgeClosedError`.

    Args:
      factory: makes the client, in the loop's thread, or is an async function that does. What
        it gives is entered if it is an async context, and is the client itself if not.
      name: names it in messages and names the thread.
      grace: seconds that a cancelled call may take to clean up, and that closing may take. Past
        them the thread is abandoned, with a warning.
      start_timeout: seconds for making and entering the client.
      loop: "asyncio", "uvloop", or "auto": uvloop where it is installed.
      enter: False for a client that is used without its async context.

    Raises:
      TypeError, ValueError: an argument is not what it should be.
      ModuleNotFoundError: uvloop was asked for and is not installed.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        name: str,
        grace: float = 5.0,
        start_timeout: float = 30.0,
        loop: hosts.LoopKind = "auto",
        enter: bool = True,
    ) -> None:
        if not callable(factory):
            raise TypeError(
                f"factory is {factory!r}; expected a function that makes the client. The client "
                "must be made in the loop's thread, so give the function, not the client"
            )
        if type(name) is not str or not name:
            raise ValueError(f"name is {name!r}; expected a text that names the client")
        self._factory = factory
        self._enter = enter
        self._name = name
        self._grace = _seconds("grace", grace)
        self._start_timeout = _seconds("start_timeout", start_timeout)
        self._make_loop = hosts.loop_maker(loop)
        #: The present life; None when nobody is inside.
        self._life: lives.Life | None = None

    @property
    def name(self) -> str:
        """Names it in messages."""
        return self._name

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> proxy.BridgedObject:
        """Open the client, or share the one that is open. A checkpoint.

        Cancelled meanwhile it leaves the client as if it had never come.

        Raises:
          BridgeClosedError: the client could not be opened, with its error as the cause, or
            has ended while others are still inside.
          BridgeError: it is open in another run of trio.
        """
        life = await self._joined()
        life.users += 1
        try:
            await self._until_settled(life)
            life.check_usable()
            await trio.lowlevel.checkpoint()
        except BaseException:
            await self._leave(life)
            raise
        return proxy.BridgedObject(life, proxy.CLIENT)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; the last one out waits for the close, at most ``grace`` seconds."""
        life = self._life
        if life is None or life.users == 0:
            raise tr.NotEnteredError(
                f"asyncio bridge {self._name!r}: left more often than it was entered"
            )
        await self._leave(life)
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call ``fn(*args)`` on the loop, await what it gives if that is awaitable. A checkpoint.

        ``fn`` runs on the asyncio side and may use all of asyncio there. The arguments, the
        result and a cancel are as for a method of the client; the proxy as an argument is the
        client itself.

        Raises:
          NotEnteredError: outside ``async with``.
        """
        life = self._life
        if life is None:
            raise tr.NotEnteredError(
                f"asyncio bridge {self._name!r} is not open: use it inside `async with`"
            )
        return await proxy.BridgedObject(life, fn)(*args)

    def callback(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for the asyncio side that runs ``fn`` in trio. No checkpoint.

        For what the client is made with, such as a log handler: no call of ours waits while it
        is called, so a task of the bridge runs it, one call after the other. An argument of a
        call needs no such thing. It is async if ``fn`` is; if not, the loop stands still
        while it runs. What it raises is raised in who called it. Outside ``async with``
        calling it raises `CallbackRefusedError`.
        """

        def channel_now() -> callbacks.Channel:
            return self._present().own_channel

        def incoming(value: Any) -> Any:
            return proxy.wrapped(self._present(), value)

        return callbacks.stand_in(fn, channel_now, incoming, proxy.unwrapped)

    # --- the life ---

    def _present(self) -> lives.Life:
        life = self._life
        if life is None:
            raise errors.CallbackRefusedError(self._name, "runs no callback: it is not open")
        return life

    def _make_host(self) -> hosts.Host:
        return hosts.ThreadHost(self._make_loop, f"asyncio bridge {self._name!r}")

    async def _joined(self) -> lives.Life:
        """Return the life to join, a new one when there is none."""
        while True:
            life = self._life
            if life is None:
                life = lives.Life(
                    self._factory,
                    self._make_host(),
                    name=self._name,
                    grace=self._grace,
                    start_timeout=self._start_timeout,
                    enter=self._enter,
                )
                life.start()
                self._life = life
                return life
            if not life.is_of_this_run():
                if not life.run_is_over():
                    raise errors.BridgeError(
                        self._name,
                        "is open in another run of trio; each run needs a bridge of its own",
                    )
                # Whoever was inside is gone without leaving.
                life.request_close()
                self._life = None
            elif life.users > 0:
                return life
            else:
                # Its last user has left: two lives of a client never overlap.
                await life.closed.wait()
                self._forget(life)

    async def _until_settled(self, life: lives.Life) -> None:
        if life.settled.is_set():
            return
        with trio.CancelScope(deadline=life.start_deadline):
            await life.settled.wait()
        if not life.settled.is_set():
            life.request_close(
                f"did not start within {self._start_timeout:g} seconds (start_timeout)"
            )

    async def _leave(self, life: lives.Life) -> None:
        life.users -= 1
        if life.users > 0:
            return
        life.request_close()
        try:
            if not life.closed.is_set():
                await wait_closed(life.closed, self._grace)
        finally:
            if not life.closed.is_set():
                life.abandon(
                    f"is abandoned: it did not close within {self._grace:g} seconds (grace); "
                    "its thread may go on"
                )
            self._forget(life)

    def _forget(self, life: lives.Life) -> None:
        if self._life is life:
            self._life = None


_SECONDS: Final = (int, float)


def _seconds(name: str, value: float) -> float:
    if type(value) not in _SECONDS:
        raise TypeError(f"{name} is {value!r}; expected a number of seconds")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a finite number of seconds above 0")
    return float(value)
