"""`SessionFile`: the SQLite file of a journal, and every statement that is run on it.

What may live here: synchronous code on one connection; no thread, no trio. It
is loaded when the first `SqliteJournal` is made, since it brings the codec.

The layout. ``records`` is the log: one row for each record, in the order of the
commits (``place``), with its number in its session (``seq``, from 0, without
gaps). ``sessions`` has one row for each session: how many records are durable
(``length``) and which opening may write (``epoch``). Each transaction checks both, so
a writer that was frozen while another took its session over writes nothing.
``dropped`` keeps the torn tails that an opening took out of the log.

A torn tail, bad records with nothing good behind them, goes before anything is written
behind it: when the file is opened, and when a session is, whichever session it belongs to.
A writer of that session in another process writes nothing more: it built on what is gone.

Damage. SQLite notices a torn transaction by itself and drops it; it does not
notice changed bytes in its pages. So each record has a checksum over all that
its row says. It is BLAKE2b with 8 bytes: a CRC would find a flipped bit as well,
but a page of garbage passes 32 bits once in four billion records, and hashing
costs a microsecond beside an fsync of several hundred.

SQLite before 3.51.3 may damage a file when two connections write or checkpoint at
the same moment. Every transaction and every close here holds a lock of our own,
``NAME.lock``, so that never happens between processes.

Under that lock each transaction looks whether the file and its WAL are still at their
paths (`_place.py`). If not, the connection must not even be closed: that would write
what is in the old WAL over what others have written since.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._core.errors import JournalError, SessionLostError
from trio_runner._journal._connect import (
    BUSY_TIMEOUT,
    IN_MEMORY,
    SCHEMA,
    Faults,
    bring_up_to_date,
    check_directory,
    check_format,
    check_whole,
    connect,
    damaged,
    is_made,
    read,
)
from trio_runner._journal._lease import FileLock
from trio_runner._journal._parts import Append, Opened
from trio_runner._journal._place import Place
from trio_runner._journal._verify import (
    FIND,
    Row,
    rows_of,
    session_ids,
    stored,
    torn_tail,
    verified,
)
from trio_runner._journal._writing import Writing

_log = logging.getLogger("trio_runner")

_INSERT: Final = (
    "INSERT INTO records (session, seq, epoch, at, body, checksum) "
    "VALUES (?, ?, ?, ?, CAST(? AS TEXT), ?)"
)


class SessionFile:
    """One read-write connection to a journal's file. Used by one thread at a time.

    Args:
      path: the file, made when it is new; or `IN_MEMORY`.
      durable: whether a commit is an fsync; a sweep does without.

    Raises:
      JournalError: the file cannot be opened, or is not a journal.
    """

    def __init__(self, path: str, *, durable: bool = True) -> None:
        self._path = path
        #: Held during every transaction; None without a file.
        self._write_lock: FileLock | None = None
        self._place: Place | None = None
        #: One lock for each session that is open here, by its id.
        self._leases: dict[str, FileLock] = {}
        #: Records that were dropped here from sessions that were not opened since, by id.
        self._dropped: dict[str, int] = {}
        if path != IN_MEMORY:
            check_directory(Path(path))
            with Faults(path):
                check_whole(path)
            self._write_lock = FileLock(Path(f"{path}.lock"))
            self._place = Place(path)
        with Faults(path):
            self._connection = connect(path)
        try:
            self._prepare(durable=durable)
        except BaseException:
            self._connection.close()
            self._remove_write_lock()
            raise

    def _prepare(self, *, durable: bool) -> None:
        with self._writing():
            check_format(self._connection, self._path)
            execute = self._connection.execute
            execute("PRAGMA journal_mode = WAL")
            execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            execute("PRAGMA fullfsync = ON")  # macOS: an fsync that reaches the disk
            execute("PRAGMA checkpoint_fullfsync = ON")
            execute("PRAGMA cell_size_check = ON")
            if not is_made(self._connection):
                execute("BEGIN IMMEDIATE")
                for statement in SCHEMA:
                    execute(statement)
                execute("COMMIT")
            bring_up_to_date(self._connection)
            self._drop_torn_tail()
            if self._place is not None:
                self._place.note()

    def _drop_torn_tail(self) -> None:
        """Take what is bad at the end of the file out of it; the caller has the write lock.

        Reads one row when that is good.
        """
        execute = self._connection.execute
        try:
            tail = list(torn_tail(self._connection))
        except sqlite3.DatabaseError as error:
            if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_CORRUPT"):
                raise
            return  # opening the session says where
        if not tail:
            return
        rows_of_session: dict[tuple[int, str], list[Row]] = {}
        for key, session_id, row in reversed(tail):
            rows_of_session.setdefault((key, session_id), []).append(row)
        execute("BEGIN IMMEDIATE")
        for (key, session_id), rows in rows_of_session.items():
            self._drop(session_id, rows)
            execute(
                "UPDATE sessions SET epoch = epoch + 1, length = max(length - ?, 0) WHERE key = ?",
                (len(rows), key),
            )
        execute("COMMIT")
        for (_, session_id), rows in rows_of_session.items():
            self._dropped[session_id] = self._dropped.get(session_id, 0) + len(rows)

    # --- sessions ---------------------------------------------------------------

    def open_session(self, session_id: str) -> Opened:
        """Take the session for writing: verify and read it, and begin a new epoch.

        Raises:
          SessionInUseError: another process has it.
          JournalDamagedError: a record is not what was written, and good ones follow.
          JournalFormatError: a record is of a newer version.
        """
        lease = self._take_lease(session_id)
        try:
            with self._writing():
                self._drop_torn_tail()
                self._connection.execute("BEGIN IMMEDIATE")
                opened = self._open(session_id)
                self._connection.execute("COMMIT")
        except BaseException:
            if lease is not None:
                lease.remove()
            raise
        if lease is not None:
            self._leases[session_id] = lease
        self._dropped.pop(session_id, None)
        return opened

    def _open(self, session_id: str) -> Opened:
        execute = self._connection.execute
        found = execute(FIND, (session_id,)).fetchone()
        if found is None:
            try:
                cursor = execute(
                    "INSERT INTO sessions (id, epoch, length) VALUES (?, 1, 0)", (session_id,)
                )
            except sqlite3.IntegrityError as error:
                raise damaged(self._path, f"session {session_id!r}", "its row is gone") from error
            key = cursor.lastrowid
            assert key is not None
            return Opened(key, 1, (), 0)
        key, epoch, _ = found
        good, torn = verified(self._connection, self._path, session_id, found)
        if torn:
            self._drop(session_id, torn)
        # A damaged epoch must not let an earlier writer in.
        epoch = 1 + max([epoch, *[row.epoch for row, _ in good[-1:]]])
        execute("UPDATE sessions SET epoch = ?, length = ? WHERE key = ?", (epoch, len(good), key))
        dropped = len(torn) + self._dropped.get(session_id, 0)
        return Opened(key, epoch, tuple([record for _, record in good]), dropped)

    def _drop(self, session_id: str, torn: Sequence[Row]) -> None:
        _log.warning(
            "%s: session %r had a torn tail: %d records from number %s on are dropped from it "
            "(their rows are kept in the table 'dropped')",
            self._path, session_id, len(torn), torn[0].seq,
        )  # fmt: skip
        for row in torn:
            self._connection.execute(
                "INSERT INTO dropped SELECT *, ? FROM records WHERE place = ?",
                (time.time(), row.place),
            )
            self._connection.execute("DELETE FROM records WHERE place = ?", (row.place,))

    def _take_lease(self, session_id: str) -> FileLock | None:
        if self._write_lock is None:
            return None
        name = hashlib.blake2b(session_id.encode(), digest_size=8).hexdigest()
        lease = FileLock(Path(f"{self._path}.{name}.lock"))
        with Faults(self._path):
            try:
                taken = lease.try_lock()
            except BaseException:
                lease.drop()
                raise
            if not taken:
                holder = lease.holder()
                lease.drop()
                raise faults.SessionInUseError(
                    f"session {session_id!r} of {self._path} is open for writing in "
                    f"{holder or 'another process'}; close it there, or use another session id",
                    holder,
                )
            lease.sign()
        return lease

    def release_session(self, session_id: str) -> None:
        """Let others open the session; does nothing when it is not open here."""
        lease = self._leases.pop(session_id, None)
        if lease is not None:
            lease.remove()

    def delete_session(self, session_id: str) -> int:
        """Take the session out of the log, damaged or not; how many records went.

        Its row stays without the id and with a new epoch: a writer that was frozen must not
        find another session under its key.

        Raises:
          SessionInUseError: another process has it open.
          NoSuchSessionError: there is none.
        """
        lease = self._take_lease(session_id)
        execute = self._connection.execute
        try:
            with self._writing():
                execute("PRAGMA secure_delete = ON")  # no byte of it stays in the free pages
                execute("BEGIN IMMEDIATE")
                found = execute(FIND, (session_id,)).fetchone()
                if found is None:
                    raise faults.NoSuchSessionError(
                        f"{self._path} has no session {session_id!r}; nothing was changed"
                    )
                key = found[0]
                gone = execute("DELETE FROM records WHERE session = ?", (key,)).rowcount
                execute("DELETE FROM dropped WHERE session = ?", (key,))
                execute(
                    "UPDATE sessions SET id = ?, epoch = epoch + 1, length = 0 WHERE key = ?",
                    (f"/deleted/{key}", key),
                )
                execute("COMMIT")
                self._empty_wal()
        finally:
            if lease is not None:
                lease.remove()
        return gone

    def _empty_wal(self) -> None:
        """Write the WAL into the file and cut it, unless a reader needs it."""
        try:
            self._connection.execute("PRAGMA busy_timeout = 0")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:  # what was deleted is gone all the same
            _log.warning("%s: after deleting a session: %s", self._path, error)
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")

    # --- commits ----------------------------------------------------------------

    def commit(self, appends: Sequence[Append]) -> Iterator[Sequence[JournalError | None]]:
        """Make the appends durable, in as few transactions as can be.

        Appends of one session must be in order; after one that fails the later ones of
        its session fail too, so what is stored is a prefix.

        Yields:
          For each append, in order, None when it is durable, or why it is certainly not stored:
          for all at once, or for one after the other as it becomes known.
        """
        try:
            outcomes = self._transaction(appends)
        except _CannotBeginError as error:
            yield [error.why] * len(appends)
        except JournalError as error:
            if len(appends) == 1:
                yield [error]
            else:
                yield from self._commit_each(appends)
        else:
            yield outcomes

    def _commit_each(self, appends: Sequence[Append]) -> Iterator[Sequence[JournalError | None]]:
        # Together they failed: one may be too large for what is left of the disk. Alone, each
        # gets what it deserves.
        failed: dict[int, JournalError] = {}
        for number, append in enumerate(appends):
            outcome = failed.get(append.key)
            if outcome is None:
                try:
                    [outcome] = self._transaction([append])
                except _CannotBeginError as error:  # then the others cannot either
                    yield [failed.get(each.key, error.why) for each in appends[number:]]
                    return
                except JournalError as error:
                    outcome = error
            if outcome is not None:
                failed[append.key] = outcome
            yield [outcome]

    def _transaction(self, appends: Sequence[Append]) -> list[JournalError | None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._writing(begin=True))
            except JournalError as error:
                raise _CannotBeginError(error) from error
            now = time.time()
            outcome: list[JournalError | None] = []
            lost: dict[int, JournalError] = {}
            rows: list[tuple[int, int, int, float, bytes, bytes]] = []
            for append in appends:
                if append.key not in lost and not self._may_write(append):
                    lost[append.key] = self._why_lost(append)
                outcome.append(lost.get(append.key))
                if append.key not in lost:
                    rows.extend(rows_of(append, now))
            self._connection.executemany(_INSERT, rows)
            self._connection.execute("COMMIT")
            if self._place is not None:
                self._place.check_after()
        return outcome

    def _may_write(self, append: Append) -> bool:
        """Check the epoch and the length, and set the new length, in one statement."""
        changed = self._connection.execute(
            "UPDATE sessions SET length = ? WHERE key = ? AND epoch = ? AND length = ?",
            (append.first + len(append.bodies), append.key, append.epoch, append.first),
        )
        return changed.rowcount == 1

    def _why_lost(self, append: Append) -> JournalError:
        found = self._connection.execute(
            "SELECT epoch, length FROM sessions WHERE key = ?", (append.key,)
        ).fetchone()
        return SessionLostError(
            f"session {append.session_id!r} of {self._path} was taken over by another writer: "
            f"expected epoch {append.epoch} with {append.first} records, found (epoch, records) "
            f"{found}. Nothing was written; open the session again to see what is stored"
        )

    def _writing(self, *, begin: bool = False) -> Writing:
        return Writing(self._connection, self._write_lock, self._place, self._path, begin=begin)

    # --- reading and the end ----------------------------------------------------

    def stored(self, session_id: str) -> tuple[r.Record, ...]:
        """The durable records of a session, verified; () when there is none."""
        return stored(self._connection, self._path, session_id)

    def session_ids(self) -> tuple[str, ...]:
        """The sessions that hold records, in the order in which they were made."""
        return session_ids(self._connection, self._path)

    def close(self) -> JournalError | None:
        """Give up every session and close the file. Never raises.

        Returns:
          Why it was not closed, when it is not at its path any more; see above.
        """
        for session_id in list(self._leases):
            self.release_session(session_id)
        try:
            with self._writing():
                self._connection.close()  # the last connection also tidies the WAL away
        except JournalError as error:
            _log.warning("%s: closing: %s", self._path, error)
        lost = None if self._place is None else self._place.lost
        if lost is None:
            self._connection.close()
        self._remove_write_lock()
        return lost

    def _remove_write_lock(self) -> None:
        if self._write_lock is not None:
            self._write_lock.remove_if_free()


class _CannotBeginError(Exception):
    """No transaction can begin: a failure of all that would be in it."""

    def __init__(self, why: JournalError) -> None:
        super().__init__(why)
        self.why = why


# --- reading beside a writer ----------------------------------------------------


def read_stored(path: str, session_id: str) -> tuple[r.Record, ...]:
    """The durable records of a session, by a connection that cannot write; () without a file."""
    return read(path, lambda connection: stored(connection, path, session_id)) or ()


def read_session_ids(path: str) -> tuple[str, ...]:
    """The sessions that hold records; () without a file."""
    return read(path, lambda connection: session_ids(connection, path)) or ()
