"""What the parts of `SqliteJournal` hand to each other.

What may live here: values and protocols without sqlite3 and without the codec,
so that the journal can be named without loading either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

import trio_runner._core.records as r
from trio_runner._core.errors import JournalError
from trio_runner._journal.sessions import JournalReport, SessionSummary


@attrs.frozen(eq=False)
class Append:
    """One commit as the file takes it.

    Attributes:
      key: of the session's row.
      first: the number of the first of ``bodies`` within the session.
      bodies: the encoded records.
    """

    session_id: str
    key: int
    epoch: int
    first: int
    bodies: Sequence[bytes]


@attrs.frozen(eq=False)
class Opened:
    """What opening a session found.

    Attributes:
      dropped: how many records of a torn tail were taken out.
    """

    key: int
    epoch: int
    records: tuple[r.Record, ...]
    dropped: int


class SessionFileLike(Protocol):
    """What a writer does with `trio_runner._journal._file.SessionFile`."""

    def open_session(self, session_id: str) -> Opened:
        """Take a session for writing."""
        ...

    def release_session(self, session_id: str) -> None:
        """Let others open it."""
        ...

    def delete_session(self, session_id: str) -> int:
        """Take a session that nobody has open out of the file; how many records went."""
        ...

    def commit(self, appends: Sequence[Append]) -> Iterable[Sequence[JournalError | None]]:
        """Make appends durable; what became of each, in order, some as soon as they are known."""
        ...

    def stored(self, session_id: str) -> tuple[r.Record, ...]:
        """The durable records of a session."""
        ...

    def session_ids(self) -> tuple[str, ...]:
        """The sessions that hold records."""
        ...

    def close(self) -> JournalError | None:
        """Close the file; never raises.

        What it returns says why the file could not be closed and must be kept as it is; this
        process must not open it again.
        """
        ...


class Admin(Protocol):
    """What is used of `trio_runner._journal._admin`, which is loaded late."""

    def read_summaries(self, path: str) -> tuple[SessionSummary, ...]:
        """What there is to say of each session."""
        ...

    def read_report(self, path: str) -> JournalReport:
        """What is wrong with the file."""
        ...

    def encode_lines(self, records: tuple[r.Record, ...]) -> bytes:
        """Records as an export."""
        ...

    def decode_lines(self, data: bytes) -> tuple[r.Record, ...]:
        """The records of an export."""
        ...
