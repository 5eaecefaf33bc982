"""The process around a sweep: what is switched for it, and what its runs leave behind in it.

What may live here: warnings and errors that only the process hears of, SIGINT's
handler, the garbage collector, threads and child processes.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pathlib
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Generator, Iterable
from typing import Any, Final, TextIO

import trio

from trio_runner.testing._determinism import Threads, threads_inline
from trio_runner.testing._faults import default_sigint_handler
from trio_runner.testing._outcome import chain_of

#: Seconds of real time that a thread or a child process has to end: at first, and at least.
#: It may have been told to, and need a moment.
_PATIENCE: Final = (1.0, 0.05)
_TASKS: Final = pathlib.Path("/proc/self/task")
#: How trio calls a worker thread that has nothing to do; it ends by itself.
_IDLE_WORKER: Final = "Trio thread "


class Surroundings:
    """What a sweep knows of its process.

    Attributes:
      trouble: warnings of two kinds and unraisable errors, since it was emptied last.
      threads: the threads of ``trio.to_thread``.
    """

    def __init__(self, threads: Threads) -> None:
        self.trouble: list[str] = []
        self.threads: Threads = threads
        self._patience = _PATIENCE[0]
        self._threads_before: set[threading.Thread] = set()
        self._children_before: set[int] = set()

    def begin(self) -> None:
        """A run begins: what is there now is not of its making."""
        self.trouble.clear()
        self._threads_before = set(threading.enumerate())
        self._children_before = _children()

    def left_behind(self) -> tuple[str, ...]:
        """The threads and child processes that came since `begin` and are still there, by name."""
        until: float | None = None
        while True:
            found = sorted([*self._new_threads(), *self._new_children()])
            if not found:
                return ()
            now = time.monotonic()
            if until is None:
                until = now + self._patience
            if now > until:
                self._patience = max(_PATIENCE[1], self._patience / 2)
                return tuple(found)
            time.sleep(0.005)

    def _new_threads(self) -> Iterable[str]:
        for thread in threading.enumerate():
            if thread in self._threads_before or thread.name.startswith(_IDLE_WORKER):
                continue
            if not self.threads.has(thread.ident):
                yield f"thread {thread.name!r}"

    def _new_children(self) -> Iterable[str]:
        for child in _children() - self._children_before:
            name = _running(child)
            if name is not None:
                yield f"child process {name!r}"


def _children() -> set[int]:
    """The child processes of this one; none where the system does not tell."""
    try:
        # One call, where reading takes many: it fails when there is no child at all.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (ChildProcessError, AttributeError):
        return set()
    found: set[int] = set()
    for file in _TASKS.glob("*/children"):
        with contextlib.suppress(OSError):  # a thread may be gone meanwhile
            found.update(map(int, file.read_bytes().split()))
    return found


def _running(child: int) -> str | None:
    """The command line of a process; None when it has ended."""
    folder = pathlib.Path(f"/proc/{child}")
    try:
        state = (folder / "stat").read_bytes().rpartition(b")")[2].split()[0]
        words = (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    return None if state in (b"Z", b"X") else b" ".join(words).decode("utf-8", "replace")


@contextlib.contextmanager
def surroundings(*, needs_signal: bool) -> Generator[Surroundings]:
    """Set the process up for a sweep and put everything back.

    Raises:
      SweepError: another sweep is running in this process, or SIGINT cannot be had.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet_log())
        if needs_signal:
            stack.enter_context(default_sigint_handler())
        around = Surroundings(stack.enter_context(threads_inline()))
        stack.enter_context(_heard(around.trouble))
        stack.enter_context(_collected_by_hand())
        yield around


@contextlib.contextmanager
def quiet_log() -> Generator[None]:
    """Keep what the library logs away from stderr, where it goes when nobody has set up logging.

    Planned faults make it log at thousands of positions. Handlers that somebody has set up get
    all of it.
    """
    log, handler = logging.getLogger("trio_runner"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def _collected_by_hand() -> Generator[None]:
    """Let garbage be collected at the end of each run only, and none of what was there before.

    What a run leaves behind is then told at its own position, in each of its repetitions.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def let_go(errors: Iterable[BaseException | None]) -> None:
    """Empty the frames of errors: what only their variables hold is free.

    The tracebacks stay, so that they can still be shown.
    """
    for error in errors:
        for link in chain_of(error):
            traceback.clear_frames(link.__traceback__)


@contextlib.contextmanager
def _heard(trouble: list[str]) -> Generator[None]:
    """Collect warnings of two kinds and unraisable errors.

    Coroutines never awaited and things not closed are found there.
    """
    show = warnings.showwarning
    unraisable_hook = sys.unraisablehook

    def collect(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, (RuntimeWarning, ResourceWarning)):
            trouble.append(f"{category.__name__}: {message}")
        else:
            show(message, category, filename, lineno, file, line)

    def collect_unraisable(args: Any) -> None:
        trouble.append(f"unraisable in {args.object!r}: {args.exc_value!r}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.simplefilter("always", ResourceWarning)
        # Whoever asks for strict_groups=False knows.
        warnings.filterwarnings(
            "ignore", ".*strict_exception_groups=False", trio.TrioDeprecationWarning
        )
        warnings.showwarning = collect
        sys.unraisablehook = collect_unraisable
        try:
            yield
        finally:
            sys.unraisablehook = unraisable_hook
