"""What writes a journal's file: commands, and how they are done.

What may live here: how commands get to a `SessionFile` and their outcomes back
to trio; nothing about SQL or about records. `_threads.py` has the threads.

Theory of operation. A file has one connection for each process, and one plain
daemon thread owns it: started with the first session, gone with the last. Nobody
joins it, so nobody waits for a disk that hangs. Commands are done in the order
in which they were submitted, whichever session or journal object they come from;
commits that wait together become one transaction.

What became of a commit is handed over to the run of its session
(`trio.lowlevel.TrioToken`), and changes its ticket there, between two steps of tasks: so
nothing that the loop sees of a session changes while it looks at tickets and appends. Once
that run has ended nobody looks any more, and the writer does it. What comes after a
commit that failed, and was appended before its run knew, is not written.

`Engine` is a seam: what owns the connections. `WriterThreads` is the real one;
`trio_runner.testing` has one that does the same work between task steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeAlias

import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._journal._parts import Append, Opened, SessionFileLike

_log = logging.getLogger("trio_runner")


class Bell:
    """Wakes the one task that waits at it, from any thread."""

    __slots__ = ("event", "token")

    def __init__(self) -> None:
        self.event: trio.Event = trio.Event()
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()


def ring(bells: Iterable[Bell]) -> None:
    """Wake the tasks, from their own thread."""
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
    def session(self) -> Committing:
        """The session that it belongs to."""
        ...

    def is_void(self) -> bool:
        """Whether one before it failed, so that it fails too and must not be written."""
        ...

    def note(self, error: errors.JournalError | None) -> None:
        """Here is the outcome; nobody sees it before `Committing.settle`."""
        ...


class Committing(Protocol):
    """A session as far as its commits go."""

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """Of the run that sees its tickets."""
        ...

    def settle(self) -> None:
        """Let the tickets tell what was noted, in order. Called in the thread of that run."""
        ...


def settle_all(sessions: Iterable[Committing]) -> None:
    """Settle each."""
    for session in sessions:
        session.settle()


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

    def check(self, path: str) -> None:
        """Raise a `JournalStorageError` when this process must not open the file."""
        ...

    def refuse(self, path: str, why: str) -> None:
        """Let `check` raise from here on."""
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

    def settle(self, sessions: Collection[Committing]) -> None:
        """See that the sessions are settled, each in the thread of its run."""
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
        group = [commit for commit in group if not commit.is_void()]
        if not group or self._file is None:
            return
        self.transactions += 1
        left = iter(group)
        try:
            for outcomes in self._file.commit([commit.append for commit in group]):
                self._hand_over([(next(left), outcome) for outcome in outcomes])
        except Exception as error:  # noqa: BLE001  the store's border: nobody else can tell
            self._hand_over([(commit, _internal(error)) for commit in left])

    def _hand_over(self, outcomes: Iterable[tuple[Commit, errors.JournalError | None]]) -> None:
        sessions: dict[Committing, None] = {}
        for commit, error in outcomes:
            commit.note(error)
            sessions[commit.session] = None
        self.settle(sessions)

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
            lost = self._file.close()
            if lost is None:
                self._file = None
            else:
                self._engine.refuse(self.path, str(lost))
        return is_last


def _internal(error: Exception) -> errors.JournalError:
    problem = errors.JournalError(
        f"the journal's writer failed with {error!r}, which should not happen: please report it"
    )
    problem.__cause__ = error
    return problem
