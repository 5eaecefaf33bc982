"""An older file gets the present layout when it is opened for writing; a newer one is refused."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

import trio_runner as tr
import trio_runner._journal._connect as connect
import trio_runner._journal.codec as codec
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append

DATA = Path(__file__).parent / "data"
RECORDS = tuple(map(codec.decode_record, (DATA / "records-v1.jsonl").read_bytes().splitlines()))
#: A layout of the future, in two steps.
UPGRADES = {
    1: ["ALTER TABLE sessions ADD COLUMN label TEXT", "UPDATE sessions SET label = 'from 1'"],
    2: ["CREATE TABLE notes (text TEXT)", "INSERT INTO notes SELECT label FROM sessions"],
}
Future = Callable[[int, Mapping[int, Sequence[str]]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the stored file of layout 1."""
    path = tmp_path / "journal.db"
    shutil.copy(DATA / "journal-v1.db", path)
    return path


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Future:
    """Become the version of this code that writes such a layout."""

    def become(layout: int, upgrades: Mapping[int, Sequence[str]]) -> None:
        monkeypatch.setattr(connect, "LAYOUT", layout)
        monkeypatch.setattr(connect, "_UPGRADES", upgrades)

    return become


def query(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_the_way_from_every_older_layout_to_this_one_is_there() -> None:
    assert set(connect._UPGRADES) == set(range(1, connect.LAYOUT))


def test_a_file_of_this_layout_is_left_as_it_is(path: Path) -> None:
    [(layout,)] = query(path, "PRAGMA user_version")
    epochs = query(path, "SELECT epoch FROM sessions")
    SessionFile(str(path), durable=False).close()

    assert layout == connect.LAYOUT == 1
    assert query(path, "SELECT epoch FROM sessions") == epochs


def test_an_older_file_goes_up_step_by_step_and_keeps_its_records(
    path: Path, become: Future
) -> None:
    become(3, UPGRADES)
    file = SessionFile(str(path), durable=False)
    opened = file.open_session("everything")

    assert opened.records == RECORDS
    [[error]] = file.commit(
        [Append("everything", opened.key, opened.epoch, 12, [codec.encode_record(RECORDS[0])])]
    )
    assert error is None
    file.close()
    assert tr.SqliteJournal(path).stored("everything") == (*RECORDS, RECORDS[0])
    assert query(path, "PRAGMA user_version") == [(3,)]
    assert query(path, "SELECT * FROM notes") == [("from 1",), ("from 1",)]


def test_reading_alone_reads_an_older_file_and_changes_nothing(path: Path, become: Future) -> None:
    before = path.read_bytes()
    become(3, UPGRADES)
    journal = tr.SqliteJournal(path)

    assert journal.stored("everything") == RECORDS
    assert [each.session_id for each in journal.summaries()] == ["everything", "é😀"]
    assert path.read_bytes() == before


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(path: Path, become: Future) -> None:
    become(3, {**UPGRADES, 2: ["INSERT INTO no_such_table VALUES (1)"]})
    with pytest.raises(tr.JournalError):
        SessionFile(str(path), durable=False)

    assert query(path, "PRAGMA user_version") == [(1,)]
    assert len(query(path, "PRAGMA table_info(sessions)")) == 4
    become(1, {})
    assert tr.SqliteJournal(path).stored("everything") == RECORDS


def test_an_older_version_refuses_the_new_file_and_says_what_to_do(
    path: Path, become: Future
) -> None:
    become(3, UPGRADES)
    SessionFile(str(path), durable=False).close()
    become(1, {})
    before = path.read_bytes()

    for read in (
        lambda: SessionFile(str(path), durable=False),
        tr.SqliteJournal(path).sessions,
        tr.SqliteJournal(path).verify,
    ):
        with pytest.raises(
            tr.JournalFormatError, match=r"has layout 3; .* reads up to 1\. .*use the version that"
        ):
            read()
    assert path.read_bytes() == before


def test_an_older_version_that_has_the_file_open_writes_nothing_more(
    path: Path, become: Future
) -> None:
    older = SessionFile(str(path), durable=False)
    opened = older.open_session("everything")
    become(3, UPGRADES)
    SessionFile(str(path), durable=False).close()
    [[error]] = older.commit(
        [Append("everything", opened.key, opened.epoch, 12, [codec.encode_record(RECORDS[0])])]
    )
    older.close()

    assert isinstance(error, tr.SessionLostError)
    assert tr.SqliteJournal(path).stored("everything") == RECORDS
