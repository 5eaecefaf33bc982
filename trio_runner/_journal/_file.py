"""`SessionFile`: the SQLite file of a journal, and every statement that is run on it.

What may live here: synchronous code on one connection; no thread, no trio. It
is loaded when the first `SqliteJournal` is made, since it brings the codec.

The layout. ``records`` is the log: one row for each record, in the order of the
commits (``place``), with its number in its session (``seq``, from 0, without
gaps). ``sessions`` has one row for each session: how many records are durable
(``length``) and which opening may write (``epoch``). Each transaction checks both, so
a writer that was frozen while another took its session over writes nothing.
``dropped`` keeps the torn tails that an opening took out of the log.

Damage. SQLite notices a torn transaction by itself and drops it; it does not
notice changed bytes in its pages. So each record has a checksum over all that
its row says. It is BLAKE2b with 8 bytes: a CRC would find a flipped bit as well,
but a page of garbage passes 32 bits once in four billion records, and hashing
costs a microsecond beside an fsync of several hundred.

SQLite before 3.51.3 may damage a file when two connections write or checkpoint at
the same moment. Every transaction and every close here holds a lock of our own,
``NAME.lock``, so that never happens between processes.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio_runner._core.records as r
import trio_runner._journal.faults as faults
from trio_runner._core.errors import JournalError
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
    connect_to_read,
    damaged,
    fault_of,
    is_made,
)
from trio_runner._journal._lease import FileLock
from trio_runner._journal._parts import Append, Opened
from trio_runner._journal._verify import FIND, Row, rows_of, session_ids, stored, verified

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
        #: One lock for each session that is open here, by its key.
        self._leases: dict[str, FileLock] = {}
        if path != IN_MEMORY:
            check_directory(Path(path))
            with Faults(path):
                check_whole(path)
            self._write_lock = FileLock(Path(f"{path}.lock"))
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
                self._connection.execute("BEGIN IMMEDIATE")
                opened = self._open(session_id)
                self._connection.execute("COMMIT")
        except BaseException:
            if lease is not None:
                lease.remove()
            raise
        if lease is not None:
            self._leases[session_id] = lease
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
        return Opened(key, epoch, tuple([record for _, record in good]), len(torn))

    def _drop(self, session_id: str, torn: Sequence[Row]) -> None:
        _log.warning(
            "%s: session %r had a torn tail: %d records from number %d on are dropped from it "
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

    def commit(self, appends: Sequence[Append]) -> list[JournalError | None]:
        """Make the appends durable, in as few transactions as can be.

        Appends of one session must be in order; after one that fails the later ones of
        its session fail too, so what is stored is a prefix.

        Returns:
          For each append None when it is durable, or why it is certainly not stored.
        """
        try:
            return self._transaction(appends)
        except JournalError as error:
            if len(appends) == 1:
                return [error]
        # Together they failed: one may be too large for what is left of the disk. Alone,
        # each gets what it deserves; behind one that fails the length stops its session's.
        return [outcome for append in appends for outcome in self.commit([append])]

    def _transaction(self, appends: Sequence[Append]) -> list[JournalError | None]:
        with self._writing():
            self._connection.execute("BEGIN IMMEDIATE")
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
        return faults.SessionLostError(
            f"session {append.session_id!r} of {self._path} was taken over by another writer: "
            f"expected epoch {append.epoch} with {append.first} records, found (epoch, records) "
            f"{found}. Nothing was written; open the session again to see what is stored"
        )

    def _writing(self) -> _Writing:
        return _Writing(self._connection, self._write_lock, self._path)

    # --- reading and the end ----------------------------------------------------

    def stored(self, session_id: str) -> tuple[r.Record, ...]:
        """The durable records of a session, verified; () when there is none."""
        return stored(self._connection, self._path, session_id)

    def session_ids(self) -> tuple[str, ...]:
        """The sessions that hold records, in the order in which they were made."""
        return session_ids(self._connection, self._path)

    def close(self) -> None:
        """Give up every session and close the file. Never raises."""
        for session_id in list(self._leases):
            self.release_session(session_id)
        try:
            with self._writing():
                self._connection.close()  # the last connection also tidies the WAL away
        except JournalError as error:
            _log.warning("%s: closing: %s", self._path, error)
            self._connection.close()
        self._remove_write_lock()

    def _remove_write_lock(self) -> None:
        if self._write_lock is not None:
            self._write_lock.remove_if_free()

    def abandon(self) -> None:
        """Forget the file in a forked process: its locks belong to the parent."""
        for lease in self._leases.values():
            lease.drop()
        self._leases.clear()
        if self._write_lock is not None:
            self._write_lock.drop()


class _Writing:
    """Holds the write lock; turns what the system says into a `JournalError`, rolled back."""

    def __init__(self, connection: sqlite3.Connection, lock: FileLock | None, path: str) -> None:
        self._connection = connection
        self._lock = lock
        self._path = path

    def __enter__(self) -> None:
        if self._lock is not None:
            with Faults(self._path):
                locked = self._lock.lock(BUSY_TIMEOUT)
            if not locked:
                raise faults.JournalStorageError(
                    f"{self._path}: another process has been writing for {BUSY_TIMEOUT:g} s; "
                    "look for one that hangs or was stopped"
                )

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if error is not None:
                _roll_back(self._connection)
        finally:
            if self._lock is not None:
                self._lock.unlock()
        match error:
            case sqlite3.Error() | OSError():
                raise fault_of(error, self._path) from error
            case _:
                pass


def _roll_back(connection: sqlite3.Connection) -> None:
    try:
        if connection.in_transaction:  # some failures roll back by themselves
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        _log.warning("rolling back: %s", error)


# --- reading beside a writer ----------------------------------------------------


def read_stored(path: str, session_id: str) -> tuple[r.Record, ...]:
    """The durable records of a session, by a connection that cannot write; () without a file."""
    connection = connect_to_read(path)
    if connection is None:
        return ()
    try:
        return stored(connection, path, session_id)
    finally:
        connection.close()


def read_session_ids(path: str) -> tuple[str, ...]:
    """The sessions that hold records; () without a file."""
    connection = connect_to_read(path)
    if connection is None:
        return ()
    try:
        return session_ids(connection, path)
    finally:
        connection.close()
