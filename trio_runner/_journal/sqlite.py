"""`SqliteJournal`: sessions in a SQLite file, durable when their tickets say so.

What may live here: the journal, its sessions and tickets, as trio sees them. The
file is `_file.py`, the thread that writes it `_writer.py`. `_load` brings the
former, with sqlite3 and the codec, when the first journal is made; that is a
lazy import, and keeps ``import trio_runner`` quick for programs without one.

State is shared by the loop's thread and the writer's: whatever changes in a
session changes under its lock, in one go, so a failed commit fails all that
follow it before anybody can look.
"""

# The journal, its sessions and tickets are one mechanism and use each other's insides;
# pyright knows privacy by class only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import collections
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

import attrs
import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._core.quick import ByFields
from trio_runner._journal._parts import Admin, Append, Opened
from trio_runner._journal._writer import (
    Bell,
    Deletion,
    Engine,
    FileModule,
    Opening,
    Release,
    Writer,
    WriterThreads,
)
from trio_runner._journal.sessions import JournalReport, SessionSummary, check_id, records_to_fork


class _Codec(Protocol):
    def encode_record(self, record: r.Record) -> bytes: ...


def _load() -> FileModule:
    return cast("FileModule", importlib.import_module("trio_runner._journal._file"))


def _load_admin() -> Admin:
    return cast("Admin", importlib.import_module("trio_runner._journal._admin"))


def _load_encoder() -> Callable[[r.Record], bytes]:
    codec = cast("_Codec", importlib.import_module("trio_runner._journal.codec"))
    return codec.encode_record


#: The one thing in this library that belongs to the process: a file may have only one
#: connection in it, whoever opens it.
_THREADS: Final = WriterThreads(_load)
os.register_at_fork(after_in_child=_THREADS.forget)


@attrs.frozen(eq=False, repr=False)
class SqliteJournalStatistics(ByFields):
    """Counts over the life of a `SqliteJournal` object, in commits (one append is one commit).

    Attributes:
      appends: commits asked for.
      commits: those that became durable.
      failures: those that failed.
      open_tickets: those whose outcome is not known yet.
    """

    appends: int
    commits: int
    failures: int
    open_tickets: int


class _Counts:
    """The running counts. ``appends`` is of the loop's thread, the others of the writer's."""

    def __init__(self) -> None:
        self.appends = 0
        self.commits = 0
        self.failures = 0


class SqliteTicket:
    """Stands for one commit of a `SqliteSession`; a `trio_runner.abc.CommitTicket`."""

    __slots__ = ("_bells", "_done", "_error", "_records", "_session", "append")

    #: What the writer gets.
    append: Append

    def __init__(
        self, session: SqliteSession, records: tuple[r.Record, ...], append: Append
    ) -> None:
        self.append = append
        self._session = session
        self._records = records
        self._done = False
        self._error: errors.JournalError | None = None
        #: Who waits.
        self._bells: list[Bell] = []

    @property
    def numbers(self) -> range:
        """The numbers of its records within the session; free again when the commit fails."""
        return range(self.append.first, self.append.first + len(self._records))

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, or failed with ``error``."""
        if not self._done:
            self._session._writer.look()
        return self._done

    @property
    def error(self) -> errors.JournalError | None:
        """Why the commit failed; None while open or when durable."""
        if not self._done:
            self._session._writer.look()
        return self._error

    async def wait(self) -> None:
        """Wait until ``done``; a checkpoint in any case. Does not raise ``error``.

        May be cancelled and called again; the commit does not notice.
        """
        await trio.lowlevel.checkpoint()
        session = self._session
        while not self.done:
            bell = Bell()
            with session._lock:
                if self._done:
                    return
                self._bells.append(bell)
            try:
                await session._writer.wait(bell)
            finally:
                with session._lock:
                    if bell in self._bells:
                        self._bells.remove(bell)

    def settle(self, error: errors.JournalError | None) -> list[Bell]:
        """Called by the writer with the outcome; see `trio_runner._journal._writer.Commit`."""
        return self._session._settle(self, error)


class SqliteSession:
    """A session of a `SqliteJournal`, open for writing; a `trio_runner.abc.JournalSession`.

    Attributes:
      dropped: how many records of a torn tail this opening took out; see `SqliteJournal`.
    """

    def __init__(
        self,
        session_id: str,
        writer: Writer,
        encode: Callable[[r.Record], bytes],
        counts: _Counts,
    ) -> None:
        self.session_id: str = session_id
        self.dropped: int = 0
        self._writer = writer
        self._encode = encode
        self._counts = counts
        #: Of the run that opened it, to see whether that is over.
        self._token = trio.lowlevel.current_trio_token()
        #: For everything below. Reentrant: a writer may settle a commit while it is submitted.
        self._lock = threading.RLock()
        #: The durable records. With those of the open tickets: all that was appended.
        self._stored: list[r.Record] = []
        #: Commits without an outcome, in the order of their appends.
        #: Invariant: their numbers follow on from ``_stored`` without a gap.
        #: test_sqlite_journal.py::test_what_failed_is_numbered_anew
        self._open: collections.deque[SqliteTicket] = collections.deque()
        self._next_number = 0
        self._key = 0
        self._epoch = 0
        self._closed = False
        #: The command that gives the session up, once `aclose` was called.
        self._release: Release | None = None

    @property
    def records(self) -> Sequence[r.Record]:
        """What is stored: the durable records, in order. A copy: it does not grow."""
        self._writer.look()
        with self._lock:
            return tuple(self._stored)

    def append(self, records: Sequence[r.Record]) -> SqliteTicket:
        """Number, encode and enqueue ``records`` as one commit. No checkpoint.

        Raises:
          JournalError: after `aclose` was called, or in a forked process.
        """
        if self._closed:
            raise errors.JournalError(
                f"session {self.session_id!r} is closed; open it again before appending to it"
            )
        if self._writer.is_of_the_parent:
            raise errors.JournalError(
                f"session {self.session_id!r} was opened before this process was forked; "
                "open it after the fork"
            )
        batch = tuple(records)
        bodies = [self._encode(record) for record in batch]
        with self._lock:
            append = Append(self.session_id, self._key, self._epoch, self._next_number, bodies)
            ticket = SqliteTicket(self, batch, append)
            self._next_number += len(batch)
            self._open.append(ticket)
            self._counts.appends += 1
            # In the lock, so that the queue has the order of the numbers; and last.
            self._writer.submit(ticket)
        return ticket

    async def aclose(self) -> None:
        """Close at once, wait until every append is settled and the session is free.

        A checkpoint. It waits as long as the commits do, so the caller bounds
        it; when cancelled, the session is free for this process all the same: who opens it
        again waits for what is still open, since commands are done in order. For other
        processes it is free when that has happened.
        """
        self._closed = True
        if self._release is None:
            self._release = Release(self._writer, self)
            if self._writer.is_of_the_parent:
                self._release.finish()
            else:
                self._writer.submit(self._release)
        release = self._release
        await trio.lowlevel.checkpoint()
        await release.wait()

    # --- used by the writer ---

    def begin(self, opened: Opened) -> None:
        """The file has the session open."""
        with self._lock:
            self._key = opened.key
            self._epoch = opened.epoch
            self._stored = list(opened.records)
            self._next_number = len(self._stored)
            self.dropped = opened.dropped

    def is_orphaned(self) -> bool:
        """Whether the run that opened it is over."""
        try:
            self._token.run_sync_soon(_nothing)
        except trio.RunFinishedError:
            return True
        return False

    def orphan(self) -> None:
        """Another session takes its place: there is nothing left to give up."""
        self._closed = True
        self._release = Release(self._writer, self)
        self._release.finish()

    def _settle(self, ticket: SqliteTicket, error: errors.JournalError | None) -> list[Bell]:
        with self._lock:
            if ticket._done:
                return []
            if error is None:
                assert self._open[0] is ticket
                self._open.popleft()
                self._stored.extend(ticket._records)
                self._counts.commits += 1
                ticket._done = True
                return ticket._bells
            # What is stored stays a prefix of what was appended.
            self._next_number = len(self._stored)
            bells: list[Bell] = []
            while self._open:
                failed = self._open.popleft()
                failed._error = error
                failed._done = True
                self._counts.failures += 1
                bells += failed._bells
            return bells


def _nothing() -> None:
    """Only to see whether a run still takes calls."""


class SqliteJournal:
    """Keeps sessions in one SQLite file, durably: a ticket that is done is on the disk.

    The file is made when the first session is opened; its directory must be there.
    Any number of agents, journals and processes may use one file; each session has one writer at
    a time, and `open` says who it is. Commits that wait together become one
    transaction, with one fsync. Ended by ``kill -9`` at any moment, the file
    holds every commit that was done, and opens.

    Opening a session checks each record. A damaged record with good ones behind it is
    refused with its place. Bad records at the very end of the file, a torn tail, are taken
    out: that is logged, and `SqliteSession.dropped` counts them.

    A forked process must open its sessions itself. POSIX only.

    Args:
      path: the file. The names beside it that begin with its name are used too.
    """

    def __init__(self, path: str | os.PathLike[str], *, _engine: Engine | None = None) -> None:
        if _engine is None and os.fspath(path) in {"", ":memory:"}:
            raise ValueError(
                f"path is {os.fspath(path)!r}; expected the path of a file. For sessions in "
                "memory use MemoryJournal"
            )
        self._engine: Engine = _THREADS if _engine is None else _engine
        self._path = str(Path(path).resolve()) if _engine is None else os.fspath(path)
        self._encode = _load_encoder()
        self._counts = _Counts()

    @property
    def path(self) -> str:
        """The file, as an absolute path."""
        return self._path

    async def open(self, session_id: str) -> SqliteSession:
        """Open a session for writing, making it when it is new. A checkpoint.

        Waits for what an earlier opening in this process has left open. A
        cancelled open leaves the session free. An id has 1 to 128 characters out of A-Z, a-z,
        0-9 and ``_.:@+=-``, and begins with a letter, a digit or ``_``.

        Raises:
          SessionIdError: the id is another one; a `ValueError`.
          SessionInUseError: it is open for writing already, here or elsewhere.
          JournalDamagedError: a record is not what was written, and good ones follow.
          JournalFormatError: the file is no journal, or of a newer version.
          JournalStorageError: the system refuses; the message says what to do.
        """
        await trio.lowlevel.checkpoint()
        check_id(session_id)
        writer = self._engine.acquire(self._path)
        session = SqliteSession(session_id, writer, self._encode, self._counts)
        opening = Opening(writer, session)
        writer.submit(opening)
        try:
            await opening.wait()
        except BaseException:
            if opening.give_up() and opening.error is None:
                writer.submit(Release(writer, session))
            raise
        if opening.error is not None:
            raise opening.error
        return session

    def stored(self, session_id: str) -> tuple[r.Record, ...]:
        """The durable records of a session, whoever has it open; () when unknown.

        For tools and tests: it reads the file in the calling thread, without a
        checkpoint, and writes nothing.

        Raises:
          JournalError: as `open`, but for a session in use.
        """
        return self._engine.stored(self._path, session_id)

    def sessions(self) -> tuple[str, ...]:
        """The ids of the sessions that hold records, in the order in which they were made.

        Reads the file as `stored` does; () when there is no file yet.
        """
        return self._engine.session_ids(self._path)

    # --- whole sessions ---

    def summaries(self) -> tuple[SessionSummary, ...]:
        """What there is to say of each session, in the order in which they were made.

        Reads and checks every record, as `stored` does; a session that cannot be read is
        listed with its ``problem``. () when there is no file yet.

        Raises:
          JournalError: the file as a whole cannot be read.
        """
        return _load_admin().read_summaries(self._path)

    def verify(self) -> JournalReport:
        """Check every record of every session, and the file; changes nothing.

        Reads the file as `stored` does, also while others write it.

        Raises:
          JournalFormatError: the file is no journal, or of a newer version.
          JournalStorageError: the system refuses to read it.
        """
        return _load_admin().read_report(self._path)

    def export_jsonl(self, session_id: str) -> bytes:
        """The durable records of a session, one line of JSON for each; reads as `stored` does.

        Raises:
          NoSuchSessionError: there is no such session, or it holds nothing.
          JournalError: as `stored`.
        """
        return _load_admin().encode_lines(self._records_of(session_id))

    async def import_jsonl(self, session_id: str, data: bytes) -> int:
        """Make a session of what `export_jsonl` gave; returns the number of its records.

        Checkpoint, cancelling and errors as `fork`; what does not read is refused
        with its line.
        """
        return await self._make(session_id, _load_admin().decode_lines(data))

    async def fork(self, session_id: str, new_id: str, *, turn: int | None = None) -> int:
        """Make the session ``new_id`` of the first turns of another; returns how many records.

        The other is only read, and may be in use. Turns, calls and their keys keep their
        numbers and ids; what the fork calls itself has keys of its own. Always a checkpoint.
        Cancelled, the new session holds all of it or nothing.

        Args:
          turn: the last turn to take, which must have ended; None: the newest that has
            ended; 0: only what was there before the first turn.

        Raises:
          NoSuchSessionError: there is no such session or turn.
          SessionExistsError: ``new_id`` holds records already.
          JournalError: as `open`, or the commit failed; then ``new_id`` holds nothing.
        """
        await trio.lowlevel.checkpoint()
        return await self._make(
            new_id, records_to_fork(session_id, self._records_of(session_id), turn)
        )

    async def delete(self, session_id: str) -> int:
        """Take a session out of the file, damaged or not; returns how many records went.

        Its room in the file is used again; the file does not shrink. Always a checkpoint.
        Cancelled, it is deleted all the same unless the disk refuses.

        Raises:
          SessionInUseError: it is open for writing, here or elsewhere.
          NoSuchSessionError: there is no such session.
          JournalError: the system refuses; nothing was deleted.
        """
        await trio.lowlevel.checkpoint()
        if not self.sessions():  # and no file is to be made
            raise self._no_such(session_id)
        writer = self._engine.acquire(self._path)
        deletion = Deletion(writer, session_id)
        writer.submit(deletion)
        await deletion.wait()
        if deletion.error is not None:
            raise deletion.error
        return deletion.count

    async def _make(self, session_id: str, records: tuple[r.Record, ...]) -> int:
        session = await self.open(session_id)
        try:
            if session.records:
                raise faults.SessionExistsError(
                    f"session {session_id!r} of {self._path} holds {len(session.records)} records "
                    "already; nothing was changed. Use another id"
                )
            ticket = session.append(records)
            await ticket.wait()
        finally:
            await session.aclose()
        if ticket.error is not None:
            raise ticket.error
        return len(records)

    def _records_of(self, session_id: str) -> tuple[r.Record, ...]:
        records = self.stored(session_id)
        if not records:
            raise self._no_such(session_id)
        return records

    def _no_such(self, session_id: str) -> faults.NoSuchSessionError:
        return faults.NoSuchSessionError(
            f"{self._path} has no session {session_id!r}; its sessions() are listed by "
            "`trio-runner sessions list` too"
        )

    def statistics(self) -> SqliteJournalStatistics:
        """Count the commits that went through this object so far."""
        counts = self._counts
        commits, failures, appends = counts.commits, counts.failures, counts.appends
        return SqliteJournalStatistics(appends, commits, failures, appends - commits - failures)
