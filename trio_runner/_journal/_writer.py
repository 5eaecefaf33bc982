"""The thread that writes a journal's file, and the queue in front of it.

What may live here: how commands get to a `SessionFile` and their outcomes back
to trio; nothing about SQL or about records.

Theory of operation. A file has one connection for each process, and one plain
daemon thread owns it: started with the first session, gone with the last. Nobody
joins it, so nobody waits for a disk that hangs. Commands are done in the order
in which they were submitted, whichever session or journal object they come from;
commits that wait together become one transaction. An outcome is written into the
command from the writer's thread, then whoever waits for it is woken through their
`trio.lowlevel.TrioToken`; a run that has ended is not woken, and loses nothing.

`Engine` is a seam: what owns the connections. `WriterThreads` is the real one;
`trio_runner.testing` has one that does the same work between task steps.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._journal._parts import Append, Opened, SessionFileLike

_log = logging.getLogger("trio_runner")

#: Commands that are done together at most: bounds a transaction.
_MAX_BATCH: Final = 1000

# Sent by the processor for a fault of the thread itself: blocking them hides the fault.
_FAULT_SIGNALS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
)


class Bell:
    """Wakes the one task that waits at it, from any thread."""

    __slots__ = ("event", "token")

    def __init__(self) -> None:
        self.event: trio.Event = trio.Event()
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()


def ring_from_outside(bells: Iterable[Bell]) -> None:
    """Wake the tasks, from a thread that is not trio's: one call for each trio run."""
    by_run: dict[trio.lowlevel.TrioToken, list[Bell]] = {}
    for bell in bells:
        by_run.setdefault(bell.token, []).append(bell)
    for token, group in by_run.items():
        try:
            token.run_sync_soon(ring, group)
        except trio.RunFinishedError:  # nobody is left to wake
            pass


def ring(bells: Iterable[Bell]) -> None:
    """Wake the tasks, from trio's thread."""
    for bell in bells:
        bell.event.set()


# --- commands -------------------------------------------------------------------


class Commit(Protocol):
    """One append on its way; a `trio_runner._journal.sqlite.SqliteTicket`."""

    @property
    def append(self) -> Append:
        """What is to be written."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has an outcome, and need not be written."""
        ...

    def settle(self, error: JournalErrorOrNone) -> list[Bell]:
        """Take the outcome; give the bells of those who wait for it."""
        ...


JournalErrorOrNone: TypeAlias = errors.JournalError | None


class Session(Protocol):
    """What a writer knows of a session that is open or being opened."""

    @property
    def session_id(self) -> str:
        """Its id."""
        ...

    def begin(self, opened: Opened) -> None:
        """The file has it open from here on."""
        ...

    def is_orphaned(self) -> bool:
        """Whether the trio run that opened it is over, so that nobody can close it."""
        ...

    def orphan(self) -> None:
        """Another session takes its place."""
        ...


class Request:
    """A command with an answer that a task waits for."""

    def __init__(self, writer: Writer) -> None:
        self.writer: Writer = writer
        self.error: errors.JournalError | None = None
        self._lock = threading.Lock()
        self._done = False
        self._given_up = False
        self._bells: list[Bell] = []

    async def wait(self) -> None:
        """Wait until it is done. Not a checkpoint when it is; may be cancelled."""
        while True:
            self.writer.look()
            with self._lock:
                if self._done:
                    return
                bell = Bell()
                self._bells.append(bell)
            await self.writer.wait(bell)

    def give_up(self) -> bool:
        """Nobody waits any more. Whether it was done already."""
        with self._lock:
            self._given_up = True
            return self._done

    def finish(self, error: errors.JournalError | None = None) -> bool:
        """It is done. Whether somebody waits, or may still come to ask."""
        with self._lock:
            self.error = error
            self._done = True
            self.writer.ring(self._bells)
            return not self._given_up


class Opening(Request):
    """Opens a session."""

    def __init__(self, writer: Writer, session: Session) -> None:
        super().__init__(writer)
        self.session: Session = session


class Release(Request):
    """Gives a session up."""

    def __init__(self, writer: Writer, session: Session) -> None:
        super().__init__(writer)
        self.session: Session = session


class Deletion(Request):
    """Takes a session that nobody has open out of the file."""

    def __init__(self, writer: Writer, session_id: str) -> None:
        super().__init__(writer)
        self.session_id: str = session_id
        #: How many records went.
        self.count: int = 0


Command: TypeAlias = "Opening | Release | Deletion | Commit"


# --- a writer -------------------------------------------------------------------


class Engine(Protocol):
    """Owns the writers of a process: one for each file."""

    def acquire(self, path: str) -> Writer:
        """The file's writer, with one user more; each `Opening` ends in one user less."""
        ...

    def leave(self, writer: Writer) -> bool:
        """One user less. Whether it was the last, and the writer must close its file."""
        ...

    def stored(self, path: str, session_id: str) -> tuple[r.Record, ...]:
        """The durable records of a session."""
        ...

    def session_ids(self, path: str) -> tuple[str, ...]:
        """The sessions that hold records."""
        ...


class Writer:
    """Does the commands of one file, in order. Its subclass says when, and in which thread."""

    def __init__(self, engine: Engine, path: str) -> None:
        self.path: str = path
        #: Transactions so far, each of one or more commits.
        self.transactions: int = 0
        #: Whether the process was forked since: the thread is the parent's.
        self.is_of_the_parent: bool = False
        self._engine = engine
        self._file: SessionFileLike | None = None
        #: The sessions that are open here, by id.
        self._sessions: dict[str, Session] = {}

    # --- for the subclass to say ---

    def submit(self, command: Command) -> None:
        """Take a command. Never blocks, no checkpoint; may be called with a lock held."""
        raise NotImplementedError

    async def wait(self, bell: Bell) -> None:
        """Wait for the bell, or come back before; a checkpoint."""
        raise NotImplementedError

    def look(self) -> None:
        """Somebody is about to look at an outcome: a writer without a thread does what is due."""

    def open_file(self) -> SessionFileLike:
        """Open the file."""
        raise NotImplementedError

    def ring(self, bells: Sequence[Bell]) -> None:
        """Wake those who wait."""
        raise NotImplementedError

    # --- the work ---

    def process(self, commands: Sequence[Command]) -> bool:
        """Do the commands. Whether the writer's last user has left."""
        is_over = False
        group: list[Commit] = []
        for command in commands:
            match command:
                case Opening():
                    self._commit(group)
                    group = []
                    is_over = self._open(command) or is_over
                case Release():
                    self._commit(group)
                    group = []
                    is_over = self._release(command) or is_over
                case Deletion():
                    self._commit(group)
                    group = []
                    is_over = self._delete(command) or is_over
                case _:
                    group.append(command)
        self._commit(group)
        return is_over

    def _commit(self, group: Sequence[Commit]) -> None:
        group = [commit for commit in group if not commit.done]
        if not group or self._file is None:
            return
        self.transactions += 1
        outcomes: Sequence[errors.JournalError | None]
        try:
            outcomes = self._file.commit([commit.append for commit in group])
        except Exception as error:  # noqa: BLE001  the store's border: nobody else can tell
            outcomes = [_internal(error)] * len(group)
        bells: list[Bell] = []
        for commit, outcome in zip(group, outcomes, strict=True):
            bells += commit.settle(outcome)
        self.ring(bells)

    def _open(self, opening: Opening) -> bool:
        error: errors.JournalError | None = None
        session = opening.session
        try:
            if self._file is None:
                self._file = self.open_file()
            self._make_way(self._file, session.session_id)
            session.begin(self._file.open_session(session.session_id))
            self._sessions[session.session_id] = session
        except errors.JournalError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001  the store's border: nobody else can tell
            error = _internal(problem)
        is_over = self._leave() if error is not None else False
        if not opening.finish(error) and error is None:
            is_over = self._free(session)
        return is_over

    def _make_way(self, file: SessionFileLike, session_id: str) -> None:
        holder = self._sessions.get(session_id)
        if holder is None:
            return
        if not holder.is_orphaned():
            raise faults.SessionInUseError(
                f"session {session_id!r} of {self.path} is already open for writing in this "
                "process; close it first, or use another session id"
            )
        _log.warning("%s: session %r was never closed by its run", self.path, session_id)
        holder.orphan()
        del self._sessions[session_id]
        file.release_session(session_id)
        # Its user is gone too; the one who opens it now keeps the writer alive.
        self._engine.leave(self)

    def _release(self, release: Release) -> bool:
        is_over = self._free(release.session)
        release.finish()
        return is_over

    def _delete(self, deletion: Deletion) -> bool:
        error: errors.JournalError | None = None
        try:
            if self._file is None:
                self._file = self.open_file()
            self._make_way(self._file, deletion.session_id)
            deletion.count = self._file.delete_session(deletion.session_id)
        except errors.JournalError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001  the store's border: nobody else can tell
            error = _internal(problem)
        is_over = self._leave()
        deletion.finish(error)
        return is_over

    def _free(self, session: Session) -> bool:
        if self._sessions.get(session.session_id) is not session:
            return False
        del self._sessions[session.session_id]
        if self._file is not None:
            self._file.release_session(session.session_id)
        return self._leave()

    def _leave(self) -> bool:
        is_last = self._engine.leave(self)
        if is_last and self._file is not None:
            self._file.close()
            self._file = None
        return is_last

    def abandon(self) -> None:
        """The process was forked: touch nothing that is the parent's."""
        self.is_of_the_parent = True
        if self._file is not None:
            self._file.abandon()


def _internal(error: Exception) -> errors.JournalError:
    problem = errors.JournalError(
        f"the journal's writer failed with {error!r}, which should not happen: please report it"
    )
    problem.__cause__ = error
    return problem


# --- threads --------------------------------------------------------------------


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

    def __init__(self, engine: Engine, path: str, file_module: FileModule) -> None:
        super().__init__(engine, path)
        self._file_module = file_module
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
        ring_from_outside(bells)

    def _run(self) -> None:
        # A signal that the system gives to this thread would not wake trio.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULT_SIGNALS)
        is_over = False
        while not is_over:
            is_over = self.process(self._next_commands())

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
        #: Of the parent, in a forked process. Kept: a connection that is collected is
        #: closed, and that would end the parent's locks on the file.
        self._of_the_parent: list[WriterThread] = []

    def acquire(self, path: str) -> Writer:
        """The file's writer, started if it is new."""
        with self._lock:
            writer = self._writers.get(path)
            if writer is None:
                writer = WriterThread(self, path, self._load())
                try:
                    writer.start()
                except RuntimeError as error:
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

    def stored(self, path: str, session_id: str) -> tuple[r.Record, ...]:
        """Read by a connection of its own."""
        return self._load().read_stored(path, session_id)

    def session_ids(self, path: str) -> tuple[str, ...]:
        """Read by a connection of its own."""
        return self._load().read_session_ids(path)

    def forget(self) -> None:
        """The process was forked: its threads and locks are the parent's."""
        self._lock = threading.Lock()
        for writer in self._writers.values():
            writer.abandon()
            self._of_the_parent.append(writer)
        self._writers = {}
        self._users = {}
