"""The faults a sweep injects, and the signal handler that SIGINT needs.

What may live here: what a fault does when its moment comes. When that is, the
position engine decides.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType
from typing import Final, Literal

import attrs
import trio


class SweepError(RuntimeError):
    """The sweep itself could not do its work, so it shows nothing about the case."""


class SiblingCrash(Exception):
    """What the sibling task raises for the fault ``crash``."""


class Injection:
    """What a fault can do to the run under test. Used just before a task step."""

    def __init__(self) -> None:
        #: The caller's scope, around the run.
        self.scope: trio.CancelScope = trio.CancelScope()
        #: How many SIGINTs were sent.
        self.interrupts: int = 0
        #: Set for the sibling to crash, or to go when ``crashing`` is False.
        self.sibling_wakes: trio.Event = trio.Event()
        self.crashing: bool = False

    def cancel(self) -> None:
        """Cancel the caller's scope."""
        self.scope.cancel()

    def expire(self) -> None:
        """Let the deadline of the caller's scope be now."""
        self.scope.deadline = trio.current_time()

    def crash(self) -> None:
        """Let a sibling task raise `SiblingCrash`, in its next step."""
        self.crashing = True
        self.sibling_wakes.set()

    def interrupt(self) -> None:
        """Send this process SIGINT, as Ctrl-C does."""
        self.interrupts += 1
        signal.raise_signal(signal.SIGINT)


@attrs.frozen
class Fault:
    """One kind of fault.

    Attributes:
      name: names it in reports and in replay lines.
      inject: does it; called just before a task step, must not block. An
        exception in it ends the sweep.
      needs_signal: whether SIGINT must reach trio's handler.
    """

    name: str
    inject: Callable[[Injection], None]
    needs_signal: bool = False


CANCEL: Final = Fault("cancel", Injection.cancel)
DEADLINE: Final = Fault("deadline", Injection.expire)
CRASH: Final = Fault("crash", Injection.crash)
SIGINT: Final = Fault("sigint", Injection.interrupt, needs_signal=True)

#: The faults that have a name of their own.
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {fault.name: fault for fault in (CANCEL, DEADLINE, CRASH, SIGINT)}
)


def as_fault(fault: str | Fault) -> Fault:
    """Look a fault up by its name.

    Raises:
      ValueError: no fault has that name.
    """
    if type(fault) is Fault:
        return fault
    try:
        return FAULTS[str(fault)]
    except KeyError:
        raise ValueError(
            f"fault {fault!r} is unknown; expected one of {list(FAULTS)}, or a Fault"
        ) from None


@attrs.frozen
class Landing:
    """Where one fault was to come, and where it did.

    Attributes:
      fault: the fault's name.
      position: the number of the step or line it was planned for, from 0.
      unit: what ``position`` counts.
      landed: False when the run ended before.
      time: on the mock clock, None unless it landed.
      task: the name of the task whose step or line it was.
      place: file, line and function where that task stood.
    """

    fault: str
    position: int
    unit: Literal["step", "line"] = "step"
    landed: bool = False
    time: float | None = None
    task: str = ""
    place: str = ""


@contextlib.contextmanager
def default_sigint_handler() -> Generator[None]:
    """Make sure that trio will handle SIGINT inside; put the old handler back.

    Trio installs its handler only over Python's default one. A shell that
    starts a job in the background has SIGINT ignored, so that trio would
    install none and the fault would do nothing.

    Raises:
      SweepError: not in the main thread, or a handler of the program is installed.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SweepError("a sweep with SIGINT must run in the main thread, where signals arrive")
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        yield
        return
    if handler not in (signal.SIG_IGN, signal.SIG_DFL):
        raise SweepError(
            f"SIGINT is handled by {handler!r}; expected signal.default_int_handler. "
            "Run the sweep outside trio.run, and before a handler of your own is installed"
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
