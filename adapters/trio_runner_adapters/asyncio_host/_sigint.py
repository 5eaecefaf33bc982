"""SIGINT while trio code runs on the host's loop: held back until the host has its turn.

What may live here: the handler that is installed for the length of one tick of
the guest, and nothing that outlives a tick.

Ctrl-C belongs to the host: `asyncio.run` turns the first into a cancel of its
main task and raises KeyboardInterrupt at the second, a plain loop raises at
once. Raised between two lines of trio's run loop it would break the whole trio
run, and trio's own handler would take every Ctrl-C away from the host for as
long as the guest lives. So neither is let in: the host's handler is put aside
while a tick runs, and is called when the tick is over.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias, cast

import trio

#: What `signal.getsignal` returns.
Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | None


class _Held:
    """The handler during one tick.

    A tick that never ends must still be stopped by Ctrl-C: the second one within
    a tick is let in, unless the code that it meets is protected.
    """

    def __init__(self) -> None:
        #: The host's handler; None for a moment, while this one is being installed.
        self.previous: Handler = None
        #: How many signals came.
        self.count = 0

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1 and not trio.lowlevel.currently_ki_protected():
            while self.count:
                self.count -= 1
                _pass_on(self.previous, frame)

    def restore(self) -> None:
        """Put the host's handler back, and pass on what came meanwhile."""
        now = signal.getsignal(signal.SIGINT)
        if callable(now) and type(now) is _Held:
            # This one, or that of an earlier tick, which guest code with a handler of its own
            # put back.
            signal.signal(signal.SIGINT, cast("_Held", now).previous)
        if self.count:
            self.count = 0
            _pass_on(signal.getsignal(signal.SIGINT), None)


def _pass_on(handler: Handler, frame: FrameType | None) -> None:
    if callable(handler):
        # Called, not raised anew: a wake-up descriptor has had the signal already.
        handler(signal.SIGINT, frame)
    elif handler == signal.SIG_DFL:
        signal.raise_signal(signal.SIGINT)


def call_with_sigint_held(fn: Callable[[], object]) -> None:
    """Call ``fn``; SIGINT meanwhile is handled when it has returned. For the main thread."""
    if signal.getsignal(signal.SIGINT) is None:
        fn()  # a handler that Python did not install could not be put back
        return
    held = _Held()
    held.previous = signal.signal(signal.SIGINT, held)
    try:
        fn()
    finally:
        held.restore()
