"""Reading records back, and telling whether they are what was written.

What may live here: statements that only read, and the checksum. See ``_file.py`` for the
layout and for what can happen to it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs

import trio_runner._core.records as r
import trio_runner._journal.codec as codec
import trio_runner._journal.faults as faults
from trio_runner._journal._connect import Faults, damaged
from trio_runner._journal._parts import Append

# Without the index: a damaged index must not make a session look new.
FIND: Final = "SELECT key, epoch, length FROM sessions NOT INDEXED WHERE id = ?"
_COLUMNS: Final = "place, seq, epoch, at, CAST(body AS BLOB), checksum"
_OF_A_SESSION: Final = f"SELECT {_COLUMNS} FROM records WHERE session = ? ORDER BY seq"  # noqa: S608
_BACKWARDS: Final = (
    "SELECT session, (SELECT id FROM sessions WHERE key = session), "  # noqa: S608  constants
    f"{_COLUMNS} FROM records ORDER BY place DESC"
)
_ROW_OF: Final = "SELECT typeof(epoch), typeof(length) FROM sessions WHERE key = ?"
#: From the index alone, which has the id once more.
_KEY_IN_INDEX: Final = (
    "SELECT key FROM sessions INDEXED BY sqlite_autoindex_sessions_1 WHERE id = ?"
)
#: Places that a sentence names at most.
_NAMED: Final = 20


@attrs.frozen
class Row:
    """One row of the log as it was found."""

    place: int
    seq: Any
    epoch: Any
    at: Any
    body: bytes
    checksum: Any


# --- writing down, and checking ----------------------------------------------------


def rows_of(append: Append, now: float) -> Iterable[tuple[int, int, int, float, bytes, bytes]]:
    """The rows of an append, as they go into the log."""
    for seq, body in enumerate(append.bodies, append.first):
        checksum = _checksum(append.session_id, seq, append.epoch, now, body)
        yield (append.key, seq, append.epoch, now, body, checksum)


def _checksum(session_id: str, seq: int, epoch: int, at: float, body: bytes) -> bytes:
    row = hashlib.blake2b(f"{session_id}\n{seq} {epoch} {at!r}\n".encode(), digest_size=8)
    row.update(body)
    return row.digest()


def _is_as_written(session_id: str, row: Row) -> bool:
    # A flipped bit may change the type of a value too.
    columns: tuple[object, ...] = (row.seq, row.epoch, row.at, row.body)
    if tuple(map(type, columns)) != (int, int, float, bytes):
        return False
    return row.checksum == _checksum(session_id, row.seq, row.epoch, row.at, row.body)


def verified(
    connection: sqlite3.Connection, path: str, session_id: str, found: tuple[Any, Any, Any]
) -> tuple[list[tuple[Row, r.Record]], list[Row]]:
    """Read a session and check each record; ``found`` is its key, epoch and length.

    Returns:
      The good records with their rows, and the torn tail.

    Raises:
      JournalDamagedError: what is bad is not at the end of the file, or records are gone.
      JournalFormatError: a record is as it was written, but not by what this code knows.
    """
    key, _, length = found
    if {type(number) for number in found} != {int}:
        raise damaged(path, f"session {session_id!r}", f"its row says {found}")
    rows = [Row(*row) for row in connection.execute(_OF_A_SESSION, (key,))]
    good: list[tuple[Row, r.Record]] = []
    for row in rows:
        if row.seq != len(good) or not _is_as_written(session_id, row):
            break
        good.append((row, _decoded(path, session_id, row)))
    torn = rows[len(good) :]
    where = f"session {session_id!r}, record {len(good)}"
    if any(_is_as_written(session_id, row) for row in torn[:1]):
        raise damaged(path, where, "it is missing, and later records are good")
    if torn:
        where += f" (row {torn[0].place})"
        if _something_good_follows(connection, torn[0].place):
            raise damaged(path, where, "it is not what was written, and later records are good")
    if len(rows) < length:
        raise damaged(path, where, f"{length} records were written, {len(rows)} are there")
    return good, torn


def _decoded(path: str, session_id: str, row: Row) -> r.Record:
    try:
        return codec.decode_record(row.body)
    except (ValueError, faults.JournalFormatError) as error:
        raise faults.JournalFormatError(
            f"{path}: session {session_id!r}, record {row.seq} (row {row.place}): {error}"
        ) from error


def _something_good_follows(connection: sqlite3.Connection, place: int) -> bool:
    """Whether a later row of the file, of any session, is as it was written.

    Commits are written one after the other, so what was torn has nothing good behind it.
    """
    cursor = connection.execute(
        "SELECT (SELECT id FROM sessions WHERE key = session), "  # noqa: S608  a constant
        f"{_COLUMNS} FROM records WHERE place > ? ORDER BY place",
        (place,),
    )
    return any(_is_as_written(session_id, Row(*columns)) for session_id, *columns in cursor)


def torn_tail(connection: sqlite3.Connection) -> Iterator[tuple[int, str, Row]]:
    """The rows at the end of the file that are not as they were written, the last one first.

    Each with the key and the id of its session. One whose session cannot be told, or whose
    session's own row is damaged, ends the walk: it may be good.
    """
    for key, session_id, *columns in connection.execute(_BACKWARDS):
        row = Row(*columns)
        if session_id is None or _is_as_written(session_id, row):
            return
        if connection.execute(_ROW_OF, (key,)).fetchall() != [("integer", "integer")]:
            return
        # With another id in its session's row every record of it would look bad.
        if connection.execute(_KEY_IN_INDEX, (session_id,)).fetchall() != [(key,)]:
            return
        yield key, session_id, row


def flaws(connection: sqlite3.Connection, session_id: str, key: int, length: int) -> str:
    """Which records of a session are not as they were written, and which are missing.

    As a part of a sentence; empty when nothing is wrong.
    """
    bad: list[str] = []
    missing: list[str] = []
    expected = 0
    for row in [Row(*row) for row in connection.execute(_OF_A_SESSION, (key,))]:
        if not _is_as_written(session_id, row):
            bad.append(f"record {row.seq!r} (row {row.place})")
        if type(row.seq) is int and row.seq >= expected:
            missing += _span(expected, row.seq)
            expected = row.seq + 1
    missing += _span(expected, length)
    parts = [("not what was written", bad), ("missing", missing)]
    return "; ".join(f"{what}: {_listed(places)}" for what, places in parts if places)


def _span(first: int, end: int) -> list[str]:
    if first >= end:
        return []
    return [f"record {first}" if first == end - 1 else f"records {first} to {end - 1}"]


def _listed(places: list[str]) -> str:
    more = [f"and {len(places) - _NAMED} more"] if len(places) > _NAMED else []
    return ", ".join([*places[:_NAMED], *more])


# --- reading ------------------------------------------------------------------------


def stored(connection: sqlite3.Connection, path: str, session_id: str) -> tuple[r.Record, ...]:
    """The records of a session; a torn tail is left out and left where it is."""
    with Faults(path):
        found = connection.execute(FIND, (session_id,)).fetchone()
        if found is None:
            return ()
        good, _ = verified(connection, path, session_id, found)
        return tuple([record for _, record in good])


def session_ids(connection: sqlite3.Connection, path: str) -> tuple[str, ...]:
    """The sessions that hold records, in the order in which they were made."""
    with Faults(path):
        found = connection.execute("SELECT id FROM sessions WHERE length > 0 ORDER BY key")
        return tuple([session_id for (session_id,) in found])
