"""Whole sessions out of a journal's file: their summaries, a check of all, an export.

What may live here: reading by a connection that cannot write, so that it works beside a
writer, and what one session's damage does to the reading of the others: nothing. It
is loaded when it is first asked for, since it brings the codec.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import trio_runner._core.records as r
import trio_runner._journal.codec as codec
import trio_runner._journal.faults as faults
from trio_runner._core.errors import JournalError
from trio_runner._core.fold import RecordError, check_records
from trio_runner._journal._connect import Faults, read
from trio_runner._journal._verify import Row, flaws, verified
from trio_runner._journal.sessions import JournalReport, SessionCheck, SessionSummary, summarise

_SESSIONS: Final = "SELECT id, key, epoch, length FROM sessions NOT INDEXED ORDER BY key"
_COUNT: Final = (
    "SELECT count(*), ifnull(sum(length(CAST(body AS BLOB))), 0) FROM records WHERE session = ?"
)
_ORPHANS: Final = "SELECT count(*) FROM records WHERE session NOT IN (SELECT key FROM sessions)"
#: Lines of SQLite's own check that are worth showing.
_SHOWN_PROBLEMS: Final = 5


# --- summaries --------------------------------------------------------------------


def read_summaries(path: str) -> tuple[SessionSummary, ...]:
    """Every session that holds records, in the order in which they were made.

    Raises:
      JournalError: the file is no journal, or its list of sessions cannot be read.
    """

    def look(connection: sqlite3.Connection) -> list[SessionSummary]:
        with Faults(path):
            found = connection.execute(_SESSIONS).fetchall()
        return [_summary(connection, path, *each) for each in found]

    summaries = read(path, look) or []
    # One that was only opened, or was deleted, holds nothing.
    return tuple([each for each in summaries if each.records or each.problem is not None])


def _summary(
    connection: sqlite3.Connection, path: str, session_id: str, *found: Any
) -> SessionSummary:
    try:
        rows, torn = _rows(connection, path, session_id, found)
        return summarise(
            session_id,
            [record for _, record in rows],
            size_bytes=sum(len(row.body) for row, _ in rows),
            first_at=_time(rows[0][0]) if rows else None,
            last_at=_time(rows[-1][0]) if rows else None,
            torn=torn,
        )
    except JournalError as error:
        count, size = _count(connection, path, found[0])
        return SessionSummary(session_id, count, size, problem=_said(error, path, session_id))


def _rows(
    connection: sqlite3.Connection, path: str, session_id: str, found: tuple[Any, ...]
) -> tuple[list[tuple[Row, r.Record]], int]:
    """The good records of a session with their rows, and the number of those in a torn tail."""
    key, epoch, length = found
    with Faults(path):
        good, torn = verified(connection, path, session_id, (key, epoch, length))
    return good, len(torn)


def _count(connection: sqlite3.Connection, path: str, key: object) -> tuple[int, int]:
    try:
        with Faults(path):
            [(count, size)] = connection.execute(_COUNT, (key,)).fetchall()
    except JournalError:  # that much is damaged; the problem is told already
        return 0, 0
    return count, size


def _time(row: Row) -> datetime | None:
    try:
        return datetime.fromtimestamp(row.at, UTC)
    except (OverflowError, ValueError, OSError):  # a clock that was far off
        return None


def _said(error: JournalError, path: str, session_id: str | None = None) -> str:
    """The message without the place that is named beside it."""
    text = str(error).removeprefix(f"{path}: ")
    if session_id is None:
        return text.removeprefix("the file: ")
    return text.removeprefix(f"session {session_id!r}: ").removeprefix(f"session {session_id!r}, ")


# --- the check of all -------------------------------------------------------------


def read_report(path: str) -> JournalReport:
    """Check every record of every session, and the file itself; changes nothing.

    Raises:
      JournalFormatError: the file is no journal, or of a newer version.
      JournalStorageError: it cannot be read.
    """
    return read(path, lambda connection: _report(connection, path)) or JournalReport(path, ())


def _report(connection: sqlite3.Connection, path: str) -> JournalReport:
    problems: list[str] = []
    checks: list[SessionCheck] = []
    try:
        with Faults(path):
            problems += _file_problems(connection)
            found = connection.execute(_SESSIONS).fetchall()
        checks += [_check(connection, path, *each) for each in found]
        checks = [each for each in checks if each.records or not each.ok]
    except faults.JournalDamagedError as error:
        problems.append(_said(error, path))
    return JournalReport(path, tuple(checks), tuple(problems))


def _file_problems(connection: sqlite3.Connection) -> Iterator[str]:
    # SQLite finds a broken structure and a wrong index; it does not see changed content.
    said = connection.execute(f"PRAGMA integrity_check({_SHOWN_PROBLEMS})").fetchall()
    for (line,) in said:
        if line != "ok":
            yield f"SQLite says {' '.join(str(line).split())}"
    [(orphans,)] = connection.execute(_ORPHANS).fetchall()
    if orphans:
        yield f"{orphans} records belong to no session: the row of their session is gone"


def _check(connection: sqlite3.Connection, path: str, session_id: str, *found: Any) -> SessionCheck:
    try:
        rows, torn = _rows(connection, path, session_id, found)
    except JournalError as error:
        count, _ = _count(connection, path, found[0])
        problem = _each_flaw(connection, path, session_id, found) or _said(error, path, session_id)
        return SessionCheck(session_id, count, problem=problem)
    try:
        check_records([record for _, record in rows])
    except RecordError as error:
        row = rows[error.index][0]
        problem = f"record {row.seq} (row {row.place}): {error}"
        return SessionCheck(session_id, len(rows) + torn, torn, problem)
    return SessionCheck(session_id, len(rows) + torn, torn)


def _each_flaw(
    connection: sqlite3.Connection, path: str, session_id: str, found: tuple[Any, ...]
) -> str:
    key, _, length = found
    if {type(number) for number in found} != {int}:
        return ""
    try:
        with Faults(path):
            named = flaws(connection, session_id, key, length)
    except JournalError:  # that much is damaged; the error says so
        return ""
    remedy = "Take the file from a backup, or delete the session"
    return f"{named}. The session is not opened. {remedy}" if named else ""


# --- export -----------------------------------------------------------------------


def encode_lines(records: tuple[r.Record, ...]) -> bytes:
    """One line of JSON for each record."""
    return b"".join([codec.encode_record(record) + b"\n" for record in records])


def decode_lines(data: bytes) -> tuple[r.Record, ...]:
    """What `encode_lines` wrote.

    Raises:
      JournalFormatError: there is nothing in it, or a line is no record, of a newer version, or
        does not fit those before it; the message has its number.
    """
    records: list[r.Record] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            records.append(codec.decode_exactly(line))
        except (ValueError, faults.JournalFormatError) as error:
            raise faults.JournalFormatError(
                f"line {number} of the export: {error}. Nothing was changed"
            ) from error
    if not records:
        raise faults.JournalFormatError(
            "the export is empty; expected a line of JSON for each record. Nothing was changed"
        )
    try:
        check_records(records)
    except RecordError as error:
        what = str(error).removeprefix(f"record {error.index} ")
        raise faults.JournalFormatError(
            f"line {error.index + 1} of the export {what}. A line before it may be missing. "
            "Nothing was changed"
        ) from error
    return tuple(records)
