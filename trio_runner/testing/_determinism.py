"""What makes a trio run repeat exactly; the only place that uses private names of trio.

What may live here: switches of the trio scheduler, and the order in which threads
run beside it. Each is a context manager that puts things back.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Generator
from typing import Any

import trio
import trio._core._run as trio_run
import trio._threads as trio_threads

from trio_runner.testing._faults import SweepError
from trio_runner.testing._places import place_of_thread

_GENERATOR = "_r"
_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"
_START = "start_thread_soon"
_SEND = "_send_message_to_trio"
#: Set in trio's module while `threads_inline` is in force.
_IN_FORCE = "_trio_runner_threads"
# Its names are private, and looked up one by one.
_threads: Any = trio_threads


class DeterminismError(RuntimeError):
    """This version of trio cannot be made deterministic: a private name it needs has changed."""


def check_trio() -> None:
    """Raise `DeterminismError` unless trio has the two names that `deterministic` sets."""
    generator = getattr(trio_run, _GENERATOR, None)
    switch = getattr(trio_run, _SWITCH, None)
    if type(generator) is not random.Random or type(switch) is not bool:
        raise DeterminismError(
            f"trio {trio.__version__}: expected trio._core._run.{_GENERATOR} (a random.Random) and "
            f".{_SWITCH} (a bool), found {generator!r} and {switch!r}; "
            "use a trio version that this release was tested with"
        )


def cancel_from_here() -> Callable[[], bool]:
    """Tell, later and from any task, whether a cancel is in force for where this is called.

    A task below may stand in a shield, where nothing that trio makes public
    says so. Call it in a task; what it returns is good for that trio run.
    """
    status: Any = getattr(trio.lowlevel.current_task(), "_cancel_status", None)
    if not hasattr(status, "effectively_cancelled"):
        raise DeterminismError(
            f"trio {trio.__version__}: expected a task's _cancel_status to have "
            "effectively_cancelled; use a trio version that this release was tested with"
        )
    return lambda: bool(status.effectively_cancelled)


@contextlib.contextmanager
def deterministic(seed: int) -> Generator[None]:
    """Make each `trio.run` inside schedule its tasks in an order that ``seed`` fixes.

    Both halves are needed: the switch sorts a batch of runnable tasks before
    it is shuffled, and the seeded generator does the shuffling.
    """
    check_trio()
    generator: random.Random = getattr(trio_run, _GENERATOR)
    state = generator.getstate()
    switch: bool = getattr(trio_run, _SWITCH)
    generator.seed(seed)
    setattr(trio_run, _SWITCH, True)
    try:
        yield
    finally:
        setattr(trio_run, _SWITCH, switch)
        generator.setstate(state)


class _Work:
    """Strictly private: one function in a thread, which goes on only while trio's thread waits."""

    def __init__(
        self, threads: Threads, fn: Callable[[], object], deliver: Callable[[Any], object]
    ) -> None:
        self.thread: int | None = None
        self._threads = threads
        self._fn = fn
        self._deliver = deliver
        #: What the function came to; None while it runs, or waits for an answer of trio.
        self._result: Any = None
        self._stopped = threading.Semaphore(0)

    # --- in its own thread ---

    def work(self) -> object:
        """Run the function."""
        self.thread = threading.get_ident()
        self._threads.works[self.thread] = self
        return self._fn()

    def ended(self, result: Any) -> None:
        """It has come to an end."""
        self._threads.works.pop(self.thread, None)
        self._result = result
        self._stopped.release()

    def waits_for_trio(self) -> None:
        """It has asked trio for something: trio's thread may go on."""
        self._stopped.release()

    # --- in trio's thread ---

    def start(self, start_thread_soon: Callable[..., None], name: str | None) -> None:
        """Let it run as far as it can."""
        start_thread_soon(self.work, self.ended, name)
        self.go_on()

    def go_on(self) -> None:
        """Wait until it has ended or asks trio for something."""
        if not self._stopped.acquire(timeout=self._threads.patience):
            self.fail(self._threads.gave_up(self.thread))
        elif self._result is not None:
            self._deliver(self._result)

    def fail(self, error: SweepError) -> None:
        """Whoever waits for it gets the error."""
        self._deliver(_threads.outcome.Error(error))


class _Answers:
    """Strictly private: where a thread waits for what it has asked of trio."""

    def __init__(self, work: _Work, queue: Any) -> None:
        self._work = work
        self._queue = queue

    def get(self) -> Any:
        """In the thread: wait for the answer."""
        self._work.waits_for_trio()
        return self._queue.get()

    def put_nowait(self, answer: Any) -> None:
        """In trio's thread: give the answer, and wait for what the thread does with it."""
        self._queue.put_nowait(answer)
        self._work.go_on()


class Threads:
    """The threads of ``trio.to_thread`` while `threads_inline` is in force.

    Attributes:
      patience: seconds of real time that trio's thread waits for a function.
      works: what runs, by the thread it runs in.
      error: set when a function did not stop in time.
    """

    def __init__(self, patience: float) -> None:
        self.patience: float = patience
        self.works: dict[int | None, _Work] = {}
        self.error: SweepError | None = None
        self._start: Callable[..., None] = _threads.start_thread_soon
        self._send: Callable[..., Any] = getattr(_threads, _SEND)

    def has(self, thread: int | None) -> bool:
        """Whether a function of ``trio.to_thread`` runs in that thread."""
        return thread in self.works

    def start(
        self, fn: Callable[[], object], deliver: Callable[[Any], object], name: str | None = None
    ) -> None:
        """Stands in for trio's ``start_thread_soon``: it starts when the caller waits for it."""
        work = _Work(self, fn, deliver)
        if self.error is not None:
            work.fail(self.error)
            return
        trio.lowlevel.current_trio_token().run_sync_soon(work.start, self._start, name)

    def send(self, trio_token: Any, message: Any) -> Any:
        """Stands in for what `trio.from_thread` uses to ask trio for something."""
        work = self.works.get(threading.get_ident())
        if work is not None:
            object.__setattr__(message, "queue", _Answers(work, message.queue))
        return self._send(trio_token, message)

    def gave_up(self, thread: int | None) -> SweepError:
        """The error for a function that did not stop."""
        self.error = SweepError(
            f"a function in a thread of trio.to_thread did not return within {self.patience:g} s "
            f"of real time; it stands at {place_of_thread(thread)}. A sweep lets no task run "
            "meanwhile, so it may wait for something that one of them has to do: let it ask trio "
            "for that (trio.from_thread), or give the case something that does not wait"
        )
        return self.error


@contextlib.contextmanager
def threads_inline(patience: float = 10.0) -> Generator[Threads]:
    """Let the functions of ``trio.to_thread.run_sync`` run in line with the tasks, until the exit.

    Each runs in a thread of its own, and while it does trio's thread waits for it:
    so nothing depends on how threads are scheduled. When it asks trio for something
    (`trio.from_thread`), trio's thread goes on until the answer is there, and waits
    again. The limiter, cancellation and contexts are trio's own; it makes no
    difference under which name the caller knows ``run_sync``.

    Raises:
      SweepError: it is in force already, for another sweep in this process.
      DeterminismError: trio does not have the private names that it needs.
    """
    missing = [name for name in (_START, _SEND, "outcome") if not hasattr(_threads, name)]
    if missing:
        raise DeterminismError(
            f"trio {trio.__version__}: expected trio._threads to have {missing}; "
            "use a trio version that this release was tested with"
        )
    ours = Threads(patience)
    names: dict[str, Any] = trio_threads.__dict__
    # Atomic, and as wide as what is replaced: the process.
    if names.setdefault(_IN_FORCE, ours) is not ours:
        raise SweepError(
            "another sweep is running in this process, perhaps in another thread, and a sweep "
            "changes what trio does there. Run one after the other, or each in a process"
        )
    before = names[_START], names[_SEND]
    names[_START], names[_SEND] = ours.start, ours.send
    try:
        yield ours
    finally:
        names[_START], names[_SEND] = before
        del names[_IN_FORCE]
