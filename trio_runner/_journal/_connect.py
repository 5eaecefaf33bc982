"""Connections to a journal's file, and what the system says when there is something wrong.

What may live here: what a file must be to be a journal, how it is made and opened, and
how an error of SQLite or of the system becomes a `JournalError` that says what to do.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import trio_runner._journal.faults as faults
from trio_runner._core.errors import JournalError

T = TypeVar("T")

#: In the header of the file: "tRun". Tells our files from other SQLite files.
APPLICATION_ID: Final = 0x7452756E
#: The version of the tables (``user_version``); a record has one of its own.
LAYOUT: Final = 1
#: The path of a journal without a file, for a sweep that runs thousands of them.
IN_MEMORY: Final = ":memory:"

#: Seconds to wait for another process that is writing.
BUSY_TIMEOUT: Final = 10.0

#: The statements that make the file.
SCHEMA: Final = (
    """CREATE TABLE sessions (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        epoch INTEGER NOT NULL,
        length INTEGER NOT NULL
    )""",
    """CREATE TABLE records (
        place INTEGER PRIMARY KEY,
        session INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        at REAL NOT NULL,
        body TEXT NOT NULL,
        checksum BLOB NOT NULL,
        UNIQUE (session, seq)
    )""",
    """CREATE TABLE dropped (
        place INTEGER,
        session INTEGER,
        seq INTEGER,
        epoch INTEGER,
        at REAL,
        body TEXT,
        checksum BLOB,
        dropped_at REAL
    )""",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {LAYOUT}",
)


#: From layout n to n + 1: the statements that make it so. They only add (a table, a column with
#: a default, an index), since a connection that cannot write reads older files as they are.
#: Who adds one raises `LAYOUT`, and changes `SCHEMA` to make the same.
_UPGRADES: Final[Mapping[int, Sequence[str]]] = {}


# --- opening --------------------------------------------------------------------


def connect(where: str, *, uri: bool = False) -> sqlite3.Connection:
    """A connection without Python's own transactions, for any one thread at a time."""
    connection = sqlite3.connect(
        where, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False, uri=uri
    )
    connection.text_factory = _text  # damaged text is for the checksum to find
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def check_directory(path: Path) -> None:
    """Refuse a path where no file can be, before SQLite says so in fewer words.

    Raises:
      JournalStorageError: there is no directory, or the path is one.
    """
    if not path.parent.is_dir():
        raise faults.JournalStorageError(
            f"{path}: there is no directory {str(path.parent)!r}; make it first"
        )
    if path.is_dir():
        raise faults.JournalStorageError(f"{path} is a directory; expected the path of a file")


def check_whole(path: str) -> None:
    """Refuse a WAL without the file that it belongs to: SQLite would throw it away.

    Raises:
      JournalDamagedError: the file is empty or missing, and its WAL is not.
    """
    # SQLite takes a file of one byte for an empty one. The WAL first: whoever makes a journal
    # at this moment writes the file before it.
    if _size_of(f"{path}-wal") > 0 and _size_of(path) <= 1:
        raise faults.JournalDamagedError(
            f"{path}: the file: it is empty or missing, and {path}-wal holds what was written "
            "last. Nothing was changed. Put the file back, or move its WAL away to begin anew",
            "the file",
        )


def _size_of(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def is_made(connection: sqlite3.Connection) -> bool:
    """Whether the file has our tables already."""
    [(application,)] = connection.execute("PRAGMA application_id").fetchall()
    return application == APPLICATION_ID


def check_format(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file of somebody else, or of a newer version; a new file is fine.

    Raises:
      JournalFormatError: it is one.
    """
    [(application,)] = connection.execute("PRAGMA application_id").fetchall()
    [(layout,)] = connection.execute("PRAGMA user_version").fetchall()
    if application != APPLICATION_ID:
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        if application or layout or tables:
            raise faults.JournalFormatError(
                f"{path} is a SQLite file of another application (its id is {application:#x}, and "
                f"it has {tables} tables); expected a journal of trio_runner. Nothing was changed; "
                "use another path"
            )
    elif layout > LAYOUT:
        raise faults.JournalFormatError(
            f"{path} has layout {layout}; this version of trio_runner reads up to {LAYOUT}. "
            "Nothing was changed; use the version that wrote it, or a newer one"
        )


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Give an older file the present layout, in one transaction; the caller has the write lock.

    The epochs grow, so an older version of this code that has the file open writes
    nothing more into it.
    """
    [(layout,)] = connection.execute("PRAGMA user_version").fetchall()
    if layout == LAYOUT:
        return
    connection.execute("BEGIN IMMEDIATE")
    for older in range(layout, LAYOUT):
        for statement in _UPGRADES[older]:
            connection.execute(statement)
    connection.execute("UPDATE sessions SET epoch = epoch + 1")
    connection.execute(f"PRAGMA user_version = {LAYOUT}")
    connection.execute("COMMIT")


# --- reading beside a writer ----------------------------------------------------


def read(path: str, look: Callable[[sqlite3.Connection], T]) -> T | None:
    """What ``look`` finds, by a connection that cannot write and in one read transaction.

    A journal that nobody has open is read without SQLite's locks. They would leave files
    beside it that belong to whoever reads, and nobody else could write it any more.

    Returns:
      None when there is no journal yet.
    """
    with Faults(path):
        check_whole(path)
        before = _closed(path)
        if before is not None:
            try:
                found = _read(path, "mode=ro&immutable=1", look)
            except (sqlite3.Error, JournalError):
                if _closed(path) == before:
                    raise
            else:
                if _closed(path) == before:
                    return found
            # Somebody opened it in between: what was read may be of two moments.
        return _read(path, "mode=ro", look) if Path(path).exists() else None


def _closed(path: str) -> tuple[int, ...] | None:
    """What changes when a journal that nobody has open is written; None: somebody has it."""
    if any(Path(f"{path}{each}").exists() for each in ("-wal", "-journal")):
        return None
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: str, how: str, look: Callable[[sqlite3.Connection], T]) -> T | None:
    connection = connect(f"{Path(path).as_uri()}?{how}", uri=True)
    try:
        # All that is read is of one moment: a reader holds no lock of ours, and somebody may
        # be making the file.
        connection.execute("BEGIN")
        check_format(connection, path)
        return look(connection) if is_made(connection) else None
    finally:
        connection.close()


# --- errors ---------------------------------------------------------------------


def damaged(path: str, where: str, what: str) -> faults.JournalDamagedError:
    """The error for what cannot be as it was written."""
    other = "path" if where == "the file" else "session id"
    return faults.JournalDamagedError(
        f"{path}: {where}: {what}. The file is damaged; nothing was changed. Take it from a "
        f"backup, or use another {other}",
        where,
    )


_NO_ROOM: Final = "make room"
_NO_ACCESS: Final = "see that its directory can be written to"
_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def fault_of(error: sqlite3.Error | OSError, path: str) -> JournalError:
    """What the system said, as the `JournalError` that fits."""
    match error:
        case OSError():
            remedy = _NO_ROOM if error.errno in _FULL_ERRNOS else _NO_ACCESS
            return faults.JournalStorageError(f"{path}: {error.strerror or error}; {remedy}")
        case _:
            pass
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_SCHEMA")):
        return damaged(path, "the file", f"SQLite says {error}")
    if name.startswith("SQLITE_NOTADB"):
        return faults.JournalFormatError(
            f"{path} is no SQLite file; nothing was changed. Use another path"
        )
    remedy = {
        "SQLITE_FULL": f"the disk is full: {_NO_ROOM}",
        "SQLITE_READONLY": "it cannot be written to: see to its permissions and its directory's",
        "SQLITE_CANTOPEN": "it cannot be opened: see that its directory can be written to",
        "SQLITE_BUSY": "another program has locked it",
    }.get("_".join(name.split("_")[:2]), "the system refused")
    if name == "SQLITE_IOERR_SHMSIZE":  # what readers and writers share cannot grow
        remedy = f"the disk is full: {_NO_ROOM}"
    return faults.JournalStorageError(f"{path}: {remedy} ({name or 'sqlite3'}: {error})")


class Faults:
    """Turns what the system says into a `JournalError`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        match error:
            case sqlite3.Error() | OSError():
                raise fault_of(error, self._path) from error
            case _:
                pass
