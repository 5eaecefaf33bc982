"""The threads that write the journals' files of a process, one for each file.

What may live here: when a `Writer` does its commands, how what came of them gets to trio's
thread, and which files this process must not open.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

import trio

import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._journal._parts import SessionFileLike
from trio_runner._journal._writer import Bell, Command, Committing, Writer, ring, settle_all

#: Commands that are done together at most: bounds a transaction.
_MAX_BATCH: Final = 1000

# Sent by the processor for a fault of the thread itself: blocking them hides the fault.
_FAULT_SIGNALS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
)


class FileModule(Protocol):
    """What is used of `trio_runner._journal._file`, which is loaded late."""

    def SessionFile(self, path: str) -> SessionFileLike:  # noqa: N802  a class
        """Open the file for reading and writing."""
        ...

    def read_stored(self, path: str, session_id: str) -> tuple[r.Record, ...]:
        """Read a session, whoever has it open."""
        ...

    def read_session_ids(self, path: str) -> tuple[str, ...]:
        """Read which sessions there are."""
        ...


class WriterThread(Writer):
    """A writer with a daemon thread of its own."""

    def __init__(self, threads: WriterThreads, path: str, file_module: FileModule) -> None:
        super().__init__(threads, path)
        self._threads = threads
        self._file_module = file_module
        self._is_over = False
        # Put by the loop's thread, also from a signal handler: SimpleQueue allows it.
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the thread."""
        name = f"trio_runner journal {os.path.basename(self.path)}"  # noqa: PTH119  text only
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, command: Command) -> None:
        """Put it in the queue."""
        self._commands.put(command)

    async def wait(self, bell: Bell) -> None:
        """Wait for the bell."""
        await bell.event.wait()

    def open_file(self) -> SessionFileLike:
        """Open the file."""
        return self._file_module.SessionFile(self.path)

    def ring(self, bells: Sequence[Bell]) -> None:
        """Wake those who wait."""
        ring_from_anywhere(bells)

    def settle(self, sessions: Collection[Committing]) -> None:
        """See that the sessions are settled: one call for each trio run."""
        by_run: dict[trio.lowlevel.TrioToken, list[Committing]] = {}
        for session in sessions:
            by_run.setdefault(session.token, []).append(session)
        for token, group in by_run.items():
            try:
                token.run_sync_soon(settle_all, group)
            except trio.RunFinishedError:  # nobody looks any more
                settle_all(group)

    @property
    def may_have_file(self) -> bool:
        """Whether the file is open, or may be being opened."""
        return self._file is not None or not self._is_over

    def _run(self) -> None:
        # A signal that the system gives to this thread would not wake trio.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULT_SIGNALS)
        while not self._is_over:
            self._is_over = self.process(self._next_commands())
        if self._file is None:
            self._threads.ended(self)
        else:  # it must never be closed; a frame of a daemon thread outlives even the interpreter
            threading.Event().wait()

    def _next_commands(self) -> list[Command]:
        commands = [self._commands.get()]
        while len(commands) < _MAX_BATCH:
            try:
                commands.append(self._commands.get_nowait())
            except queue.Empty:
                break
        return commands


class WriterThreads:
    """The writers of this process: one thread for each file that has a session open."""

    def __init__(self, load: Callable[[], FileModule]) -> None:
        self._load = load
        self._lock = threading.Lock()
        #: By the real path of the file.
        self._writers: dict[str, WriterThread] = {}
        #: How many sessions are open or being opened, by path.
        self._users: dict[str, int] = {}
        #: Those whose thread lives. Kept in a forked process: SQLite's connections must not
        #: even be closed there.
        self._alive: set[WriterThread] = set()
        #: Files that this process must not open, and why.
        self._refused: dict[str, str] = {}

    def acquire(self, path: str) -> Writer:
        """The file's writer, started if it is new."""
        with self._lock:
            writer = self._writers.get(path)
            if writer is None:
                self.check(path)
                writer = WriterThread(self, path, self._load())
                self._alive.add(writer)
                try:
                    writer.start()
                except RuntimeError as error:
                    self._alive.discard(writer)
                    raise faults.JournalStorageError(
                        f"{path}: no thread to write it can be started: {error}"
                    ) from error
                self._writers[path] = writer
            self._users[path] = self._users.get(path, 0) + 1
            return writer

    def leave(self, writer: Writer) -> bool:
        """One user less; the last one takes the writer out."""
        with self._lock:
            self._users[writer.path] -= 1
            if self._users[writer.path]:
                return False
            del self._users[writer.path]
            del self._writers[writer.path]
            return True

    def ended(self, writer: WriterThread) -> None:
        """Its thread is over."""
        self._alive.discard(writer)

    def check(self, path: str) -> None:
        """Raise what `refuse` was told; or that the process was forked with the file open."""
        if path in self._refused:
            raise faults.JournalStorageError(self._refused[path])

    def refuse(self, path: str, why: str) -> None:
        """This process must not open the file any more."""
        self._refused[path] = why

    def stored(self, path: str, session_id: str) -> tuple[r.Record, ...]:
        """Read by a connection of its own."""
        self.check(path)
        return self._load().read_stored(path, session_id)

    def session_ids(self, path: str) -> tuple[str, ...]:
        """Read by a connection of its own."""
        self.check(path)
        return self._load().read_session_ids(path)

    def forget(self) -> None:
        """The process was forked: its threads and locks are the parent's.

        SQLite remembers which files the process has locked, and the locks are not inherited: a
        file that was open would be written without any, and pulled away from under us.
        """
        self._lock = threading.Lock()
        for writer in self._alive:
            writer.is_of_the_parent = True
            if writer.may_have_file:
                self.refuse(writer.path, _forked(writer.path))
        self._writers = {}
        self._users = {}


def _forked(path: str) -> str:
    return (
        f"{path} was open when this process was forked, and SQLite cannot use it here. Close every "
        "session of it before the fork, or start the process anew: multiprocessing with 'spawn' "
        "or 'forkserver', or subprocess"
    )


def ring_from_anywhere(bells: Iterable[Bell]) -> None:
    """Wake the tasks, from any thread: one call for each trio run."""
    by_run: dict[trio.lowlevel.TrioToken, list[Bell]] = {}
    for bell in bells:
        by_run.setdefault(bell.token, []).append(bell)
    for token, group in by_run.items():
        if _is_here(token):
            ring(group)
            continue
        try:
            token.run_sync_soon(ring, group)
        except trio.RunFinishedError:  # nobody is left to wake
            pass


def _is_here(token: trio.lowlevel.TrioToken) -> bool:
    return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token
