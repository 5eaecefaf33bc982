"""The faults a sweep injects, and the signal handler that SIGINT needs.

What may live here: what a fault does when its moment comes. When that is, the
position engine decides. A *step fault* comes from outside, before a task step
or a line; a *call fault* is the failure of one call that passes a `Seam`.
"""

from __future__ import annotations

import asyncio
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


class PlannedError(Exception):
    """What a call raises when a call fault is planned for it."""


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


def _from_outside(_: Injection) -> None:
    """A call fault does nothing but let the call fail."""


@attrs.frozen
class Fault:
    """One kind of fault.

    Attributes:
      name: names it in reports and in replay lines.
      inject: does it; called just before a task step, must not block. An
        exception in it ends the sweep.
      needs_signal: whether SIGINT must reach trio's handler.
      in_child: whether the operation must run in a child of the main task, where
        Ctrl-C reaches it as a cancel.
      seam: for a call fault: the name of the seam whose calls are the positions.
      error: for a call fault: makes what the call raises; None: it never returns.
    """

    name: str
    inject: Callable[[Injection], None] = _from_outside
    needs_signal: bool = False
    in_child: bool = False
    seam: str | None = None
    error: Callable[[], BaseException] | None = None


def _planned_error() -> PlannedError:
    return PlannedError("this call fails, as the sweep has planned")


def _foreign_cancel() -> asyncio.CancelledError:
    return asyncio.CancelledError("the foreign event loop cancelled it, as the sweep has planned")


CANCEL: Final = Fault("cancel", Injection.cancel)
DEADLINE: Final = Fault("deadline", Injection.expire)
CRASH: Final = Fault("crash", Injection.crash)
SIGINT: Final = Fault("sigint", Injection.interrupt, needs_signal=True)
SIGINT_CHILD: Final = attrs.evolve(SIGINT, name="sigint_child", in_child=True)
JOURNAL_ERROR: Final = Fault("journal_error", seam="journal", error=_planned_error)
COMMIT_ERROR: Final = Fault("commit_error", seam="commit", error=_planned_error)
JOURNAL_HANG: Final = Fault("journal_hang", seam="journal")
MODEL_ERROR: Final = Fault("model_error", seam="model", error=_planned_error)
HOOK_ERROR: Final = Fault("hook_error", seam="hook", error=_planned_error)
OBSERVER_ERROR: Final = Fault("observer_error", seam="observer", error=_planned_error)
FOREIGN_CANCEL: Final = Fault("foreign_cancel", seam="tool", error=_foreign_cancel)

#: The faults that have a name of their own.
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        fault.name: fault
        for fault in (
            CANCEL,
            DEADLINE,
            CRASH,
            SIGINT,
            SIGINT_CHILD,
            JOURNAL_ERROR,
            COMMIT_ERROR,
            JOURNAL_HANG,
            MODEL_ERROR,
            HOOK_ERROR,
            OBSERVER_ERROR,
            FOREIGN_CANCEL,
        )
    }
)
#: What a position is counted in.
Unit = Literal["step", "line", "call"]


def as_fault(fault: str | Fault) -> Fault:
    """Look a fault up by its name.

    Raises:
      ValueError: no fault has that name.
    """
    match fault:
        case Fault():
            return fault
        case _:
            pass
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
      position: the number of the step, line or call it was planned for, from 0.
      unit: what ``position`` counts.
      landed: False when the run ended before.
      time: on the mock clock, None unless it landed.
      task: the name of the task whose step, line or call it was.
      place: file, line and function where that task stood.
      steps: how many task steps had begun when it landed.
      calls: how many calls had passed which seam when it landed, this one included.
    """

    fault: str
    position: int
    unit: Unit = "step"
    landed: bool = False
    time: float | None = None
    task: str = ""
    place: str = ""
    steps: int = 0
    calls: tuple[tuple[str, int], ...] = ()


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
