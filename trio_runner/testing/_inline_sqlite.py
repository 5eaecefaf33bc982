"""`InlineEngine`: a `SqliteJournal` without a thread, for runs that must repeat exactly.

What may live here: the engine that does a writer's commands in trio's own thread
when their time on trio's clock has come and somebody looks. Everything else is what a
program uses: the same order, the same statements, the same tickets. There is no task behind
it, so a sweep counts the steps of the operation only.

``SqliteJournal(IN_MEMORY, _engine=InlineEngine(delay=0.1))`` is a new journal in memory.
"""

from __future__ import annotations

import collections
import importlib
import math
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import trio

import trio_runner._core.records as r
from trio_runner._journal._parts import SessionFileLike
from trio_runner._journal._writer import Bell, Command, Committing, Writer, ring, settle_all

#: The path of a journal that has no file.
IN_MEMORY: Final = ":memory:"

# As MemoryJournal does it: a fault can land only where a task steps.
_STEPS_OF_A_WAIT: Final = 4


class InlineEngine:
    """Does the commands of a `SqliteJournal` between the steps of the operation.

    The file stays open when the last session is closed, so that it can be read
    after the run; it is closed by `close`, or with the engine. Commands that a run
    left undone when it ended are never done, as if the process had died.

    Args:
      delay: seconds on trio's clock from a command to its outcome (0: at once),
        or ``"hang"``; may be set at any time for what is submitted from then on.
      open_file: opens the file; None: without fsync, which a sweep does not need.
    """

    def __init__(
        self,
        delay: float | Literal["hang"] = 0.0,
        *,
        open_file: Callable[[str], SessionFileLike] | None = None,
    ) -> None:
        self.delay: float | Literal["hang"] = delay
        self._open_file = open_file or _open_file
        self._writers: dict[str, _InlineWriter] = {}

    def acquire(self, path: str) -> Writer:
        """The writer of ``path``."""
        return self._writer(path)

    def leave(self, writer: Writer) -> bool:
        """The file stays open."""
        return False

    def check(self, path: str) -> None:
        """A file that lives as long as the engine may always be used."""

    def refuse(self, path: str, why: str) -> None:
        """Nothing refuses it."""

    def stored(self, path: str, session_id: str) -> tuple[r.Record, ...]:
        """Read by the one connection there is: a journal in memory has no other."""
        writer = self._writer(path)
        writer.look()
        return writer.file.stored(session_id)

    def session_ids(self, path: str) -> tuple[str, ...]:
        """Read by the one connection there is."""
        writer = self._writer(path)
        writer.look()
        return writer.file.session_ids()

    def close(self) -> None:
        """Close the files; sessions that are open are free."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, path: str) -> _InlineWriter:
        writer = self._writers.get(path)
        if writer is None:
            writer = self._writers[path] = _InlineWriter(self, path, self._open_file(path))
        return writer


def _open_file(path: str) -> SessionFileLike:
    module: Any = importlib.import_module("trio_runner._journal._file")
    return module.SessionFile(path, durable=False)


class _InlineWriter(Writer):
    def __init__(self, engine: InlineEngine, path: str, file: SessionFileLike) -> None:
        super().__init__(engine, path)
        self.file = file
        self._inline = engine
        #: Commands that are still to be done, each with its time.
        self._waiting: collections.deque[tuple[float, Command]] = collections.deque()
        self._is_working = False
        #: Closes the file, once: when it is called, or when nobody has the writer any more.
        self.close = weakref.finalize(self, file.close)

    def submit(self, command: Command) -> None:
        """Do it now, or when somebody looks and its time has come."""
        delay = math.inf if self._inline.delay == "hang" else self._inline.delay
        due = -math.inf if delay == 0 else _now(otherwise=math.inf) + delay
        self._waiting.append((due, command))
        self.look()

    def look(self) -> None:
        """Do, in order, what is due."""
        if self._is_working:  # what is being done may look too
            return
        now = _now(otherwise=-math.inf)
        due: list[Command] = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(self._waiting.popleft()[1])
        if due:
            self._is_working = True
            try:
                self.process(due)
            finally:
                self._is_working = False

    async def wait(self, bell: Bell) -> None:
        """Wait for the bell in several steps, since a fault can land only at a step."""
        due = self._waiting[0][0] if self._waiting else math.inf
        now = trio.current_time()
        for number in range(1, _STEPS_OF_A_WAIT + 1):
            until = due if due == math.inf else now + (due - now) * number / _STEPS_OF_A_WAIT
            with trio.move_on_at(until):
                await bell.event.wait()
                return
        self.look()

    def open_file(self) -> SessionFileLike:
        """It is open."""
        return self.file

    def ring(self, bells: Sequence[Bell]) -> None:
        """Wake those who wait: this is their thread."""
        ring(bells)

    def settle(self, sessions: Collection[Committing]) -> None:
        """Settle the sessions: this is their thread."""
        settle_all(sessions)


def _now(*, otherwise: float) -> float:
    try:
        return trio.current_time()
    except RuntimeError:  # outside a run no time passes: what is delayed stays undone
        return otherwise
