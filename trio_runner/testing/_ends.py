"""How one run of a sweep ends, whatever it does.

What may live here: Ctrl-C that no fault has planned, a trio run that does not
stop when it is told to, and errors that have to wait until something else is over.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType


class Interrupts:
    """Counts the SIGINTs of one run, planned or not: the rest is Ctrl-C of whoever waits.

    Without it that would be lost when it comes into a run with a planned SIGINT,
    or when the operation swallows it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before = signal.getsignal(signal.SIGINT)
        self._handler: Callable[[int, FrameType | None], object] | None = None

    def count_from_now(self) -> None:
        """Stand before trio's handler. Called inside the run."""
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._counted)

    def _counted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        assert self._handler is not None
        self._handler(number, frame)

    def stop(self) -> None:
        """Put the handler back that was there before the run. Called after it."""
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._counted:
            signal.signal(signal.SIGINT, self._before)


class Stuck(Exception):
    """Ends a trio run whose tasks do not end when they are cancelled."""


def patience(current_time: Callable[[], float], looks_before: int) -> Callable[[], float]:
    """A clock that ends its trio run after so many looks: trio looks in every round."""
    looks = itertools.count()

    def impatient() -> float:
        if next(looks) > looks_before:
            raise Stuck("the run was cancelled, and goes on all the same")
        return current_time()

    return impatient


async def caught(function: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Await it, and give what it raises instead of raising it."""
    try:
        await function()
    except BaseException as exc:  # noqa: BLE001  the caller raises it, or reports it, later
        return exc
    return None
