"""Where an asyncio loop runs: a daemon thread of its own.

What may live here: how a loop is made, run and ended, knowing nothing of what runs on it.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import outcome

#: Which event loop: asyncio's own, uvloop's, or uvloop's where it is installed.
LoopKind = Literal["auto", "asyncio", "uvloop"]
_KINDS: Final = get_args(LoopKind)

MakeLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]
Main: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Host(Protocol):
    """Runs one loop, once."""

    def start(
        self,
        main: Main,
        on_stop: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Run ``main`` on a new loop.

        From there ``on_stop`` is called when ``main`` does not run any more, for whatever
        reason, and ``on_end`` when all is over: every task cancelled, the loop closed.
        """
        ...

    def call_soon(self, fn: Callable[..., object], *args: object) -> None:
        """Have the loop call ``fn`` soon, in order; nothing happens when it has ended."""
        ...

    def join(self) -> None:
        """Wait until nothing of it is left. After ``on_end``, so it takes no time."""
        ...


def loop_maker(kind: str) -> MakeLoop:
    """Return what makes a loop of that kind.

    Raises:
      ValueError: there is no such kind.
      ModuleNotFoundError: uvloop was asked for and is not installed.
    """
    if kind not in _KINDS:
        raise ValueError(f"loop is {kind!r}; expected one of {', '.join(_KINDS)}")
    if kind == "asyncio":
        return asyncio.new_event_loop
    try:
        return importlib.import_module("uvloop").new_event_loop
    except ModuleNotFoundError:
        if kind == "uvloop":
            raise
        return asyncio.new_event_loop


class ThreadHost:
    """A loop in a daemon thread.

    A daemon, since a client may never give its thread back: the program must be able to
    end all the same.
    """

    def __init__(self, make_loop: MakeLoop, name: str) -> None:
        self._make_loop = make_loop
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: Those of whoever starts it: what the client's own tasks see.
        self._context = contextvars.copy_context()

    def start(
        self,
        main: Main,
        on_stop: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        """Start the thread."""
        # Made here, so that there is no time in which `call_soon` has no loop.
        loop = self._loop = self._make_loop()
        self._thread = threading.Thread(
            target=self._work, args=(loop, main, on_stop, on_end), name=self._name, daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # no more threads to be had
            loop.close()
            raise

    def call_soon(self, fn: Callable[..., object], *args: object) -> None:
        """Have the loop call ``fn``; nothing happens when it is closed."""
        loop = self._loop
        assert loop is not None, "started"
        try:
            loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:
            # Closed. `on_end` is on its way, and ends whatever waits for an answer.
            if not loop.is_closed():
                raise

    def join(self) -> None:
        """Wait for the thread's last instruction, so that it is not seen after the close."""
        if self._thread is not None:
            self._thread.join(1.0)

    def _work(
        self,
        loop: asyncio.AbstractEventLoop,
        main: Main,
        on_stop: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        # Nothing may be lost: whatever ends the loop, SystemExit included, is told to trio.
        result = outcome.capture(self._run, loop, main, on_stop)
        # After a SystemExit in the middle of closing it may still be open.
        if not loop.is_closed():
            loop.close()
        on_end(result.error if isinstance(result, outcome.Error) else None)

    def _run(
        self, loop: asyncio.AbstractEventLoop, main: Main, on_stop: Callable[[], None]
    ) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                runner.run(main(), context=self._context)
            finally:
                # Before the runner cancels what is left: that is the end, and no foreign whim.
                on_stop()
