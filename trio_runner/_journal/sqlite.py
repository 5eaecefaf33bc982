"""`SqliteJournal`: sessions in a SQLite file, durable when their tickets say so.

What may live here: the journal as trio sees it; its sessions and tickets are
`_session.py`, the file is `_file.py`, what writes it `_writer.py` and `_threads.py`.
`_load` brings the file, with sqlite3 and the codec, when the first journal is made; that
is a lazy import, and keeps ``import trio_runner`` quick for programs without one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, cast

import attrs
import trio

import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._core.json_data import is_safe_text
from trio_runner._core.quick import ByFields
from trio_runner._journal._parts import Admin
from trio_runner._journal._session import Counts, SqliteSession
from trio_runner._journal._threads import FileModule, WriterThreads
from trio_runner._journal._writer import Deletion, Engine, Opening, Release
from trio_runner._journal.sessions import (
    JournalReport,
    SessionSummary,
    check_ended,
    check_id,
    records_to_fork,
)


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
#: Sessions that a message names at most.
_NAMED: Final = 10
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


class SqliteJournal:
    """Keeps sessions in one SQLite file, durably: a ticket that is done is on the disk.

    The file is made when the first session is opened; its directory must be there.
    Any number of agents, journals and processes may use one file; each session has one writer at
    a time, and `open` says who it is. Commits that wait together become one
    transaction, with one fsync. Ended by ``kill -9`` at any moment, the file
    holds every commit that was done, and opens.

    Opening a session checks each record. A damaged record with good ones behind it is
    refused with its place. Bad records at the very end of the file, a torn tail, are taken
    out, whichever session is opened: nothing is written behind them. They are kept aside in
    the file, that is logged, and `SqliteSession.dropped` counts them.

    While it is open, nobody may move, remove, replace or link the file or those beside it, nor
    open it in this process by other means, not even to read it: that takes SQLite's locks
    away. What would be written into a file that is gone is an error and not acknowledged.

    A forked process must open its sessions itself, and cannot use a file that had a session
    open at the fork. POSIX only.

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
        self._counts = Counts()

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
        # No session has an id that is no text: SQLite does not take it.
        return self._engine.stored(self._path, session_id) if is_safe_text(session_id) else ()

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
        self._engine.check(self._path)
        return _load_admin().read_summaries(self._path)

    def verify(self) -> JournalReport:
        """Check every record of every session, and the file; changes nothing.

        Reads the file as `stored` does, also while others write it.

        Raises:
          JournalFormatError: the file is no journal, or of a newer version.
          JournalStorageError: the system refuses to read it.
        """
        self._engine.check(self._path)
        return _load_admin().read_report(self._path)

    def export_jsonl(self, session_id: str) -> bytes:
        """The durable records of a session, one line of JSON for each; reads as `stored` does.

        Raises:
          NoSuchSessionError: there is no such session, or it holds nothing.
          JournalError: as `stored`.
        """
        return _load_admin().encode_lines(self._records_of(session_id))

    async def import_jsonl(self, session_id: str, data: bytes, *, moved: bool = False) -> int:
        """Make a session of what `export_jsonl` gave; returns the number of its records.

        Checkpoint, cancelling and errors as `fork`; what does not read, does not fit what is
        before it, or is no valid message, is refused with its line (`JournalFormatError`), and
        so is an empty export, and one that ends inside a turn.

        Args:
          moved: the session that was exported is not gone on with, so the new one may have
            its turn that has not ended, and resume it. Resumed in both, its calls would run
            twice.
        """
        records = _load_admin().decode_lines(data)
        if not moved:
            check_ended(records)
        return await self._make(session_id, records)

    async def fork(self, session_id: str, new_id: str, *, turn: int | None = None) -> int:
        """Make the session ``new_id`` of the first turns of another; returns how many records.

        The other is only read, and may be in use. Turns, calls and their keys keep their
        numbers and ids; what the fork calls itself has keys of its own. Always a checkpoint.
        Cancelled, the new session holds all of it or nothing.

        Args:
          turn: the last turn to take, which must have ended: the session as it was then. 0:
            only what was there before the first turn. None: all but a turn that has not
            ended, with what was done to the history since, such as a compaction or a clear.

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
        if not is_safe_text(session_id) or not self.sessions():  # and no file is to be made
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
        known = [repr(each) for each in self.sessions()]
        more = [f"and {len(known) - _NAMED} more"] if len(known) > _NAMED else []
        expected = "it has no sessions"
        if known:
            expected = f"expected one of {', '.join([*known[:_NAMED], *more])}"
        return faults.NoSuchSessionError(f"{self._path} has no session {session_id!r}; {expected}")

    def statistics(self) -> SqliteJournalStatistics:
        """Count the commits that went through this object so far."""
        counts = self._counts
        commits, failures, appends = counts.commits, counts.failures, counts.appends
        return SqliteJournalStatistics(appends, commits, failures, appends - commits - failures)
