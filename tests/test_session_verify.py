"""`SqliteJournal.verify`: every record is checked, damage is told with its place. Real files."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import trio_runner as tr
import trio_runner._journal.codec as codec
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append

DATA = Path(__file__).parent / "data"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> tr.SqliteJournal:
    return tr.SqliteJournal(path)


def store(path: Path, **sessions: tuple[r.Record, ...]) -> None:
    """Sessions of the records given, as a process leaves them that has ended."""
    file = SessionFile(str(path), durable=False)
    for session_id, records in sessions.items():
        opened = file.open_session(session_id)
        bodies = [codec.encode_record(record) for record in records]
        [[error]] = file.commit([Append(session_id, opened.key, opened.epoch, 0, bodies)])
        assert error is None
    file.close()


CUT = (
    r.SessionOpened("sums"),
    r.TurnStarted(1, (tr.Message.user("\n  how   much? \nplease"),)),
    r.ModelFinished(1, 0, tr.Message.assistant("4"), None),
    r.TurnEnded(1, tr.EndReason.ANSWERED),
    r.TurnStarted(2, (tr.Message.user("and then?"),)),
)


def locks(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir() if entry.name.endswith(".lock")]


def damage(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_whole_file_is_ok_and_nothing_is_changed(path: Path, journal: tr.SqliteJournal) -> None:
    store(path, a=CUT, b=CUT[:4])
    before = path.read_bytes()
    report = journal.verify()

    assert report.ok
    assert [(each.session_id, each.records) for each in report.sessions] == [("a", 5), ("b", 4)]
    assert report.records == 9
    assert report.render().splitlines()[1:] == ["Every record is as it was written."]
    assert json.loads(report.to_json())["ok"] is True
    assert path.read_bytes() == before
    assert locks(path) == []


@pytest.mark.parametrize(
    ("statement", "where", "says"),
    [
        ("UPDATE records SET body = replace(body, '4', '5') WHERE session = 2 AND seq = 2", 2, ""),
        ("UPDATE records SET at = at + 1 WHERE session = 2 AND seq = 0", 0, "not what was written"),
        ("DELETE FROM records WHERE session = 2 AND seq = 3", 3, "missing: record 3."),
        ("DELETE FROM records WHERE session = 2 AND seq = 4", 4, "missing: record 4."),
        ("UPDATE sessions SET epoch = 'x' WHERE key = 2", None, "its row says"),
    ],
)
def test_damage_in_one_session_is_told_with_its_place_and_hides_no_other(
    path: Path, journal: tr.SqliteJournal, statement: str, where: int | None, says: str
) -> None:
    store(path, a=CUT, b=CUT, c=CUT[:4])
    damage(path, statement)
    report = journal.verify()

    assert not report.ok
    assert [each.session_id for each in report.sessions if not each.ok] == ["b"]
    [bad] = [each for each in report.sessions if each.problem is not None]
    assert bad.problem is not None
    assert says in bad.problem
    if where is not None:
        assert f": record {where}" in bad.problem
    assert "DAMAGED: 1 of 3 sessions" in report.render()
    assert json.loads(report.to_json())["sessions"][1]["problem"] == bad.problem
    states = {each.session_id: each.state for each in journal.summaries()}
    assert states == {"a": "unfinished", "b": "damaged", "c": "answered"}


def test_every_record_that_is_not_what_was_written_or_is_missing_is_named(
    path: Path, journal: tr.SqliteJournal
) -> None:
    many = tuple(r.SessionOpened(f"{number}") for number in range(60))
    store(path, a=many[:12], b=many[:8], c=many)
    damage(
        path,
        "UPDATE records SET body = body || ' ' WHERE session = 1 AND seq IN (4, 8, 11)",
        "DELETE FROM records WHERE session = 2 AND seq IN (3, 5, 6)",
        "UPDATE sessions SET length = 10 WHERE key = 2",
        "UPDATE records SET at = 1 WHERE session = 3 AND seq < 50",
    )
    a, b, c = [each.problem or "" for each in journal.verify().sessions]

    assert a.startswith(
        "not what was written: record 4 (row 5), record 8 (row 9), record 11 (row 12). The "
        "session is not opened."
    )
    assert b.startswith("missing: record 3, records 5 to 6, records 8 to 9. ")
    assert "record 19 (row 40), and 30 more. " in c
    assert "record 20" not in c


def test_records_that_do_not_fit_are_told_with_their_place(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=(CUT[0], CUT[3]))
    report = journal.verify()

    assert report.sessions[0].ok
    problem = report.sessions[1].problem
    assert problem is not None
    assert problem.startswith("record 1 (row 7): ")
    assert journal.summaries()[1].state == "damaged"


def test_a_torn_tail_is_damage_that_the_next_opening_mends(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=CUT)
    damage(path, "UPDATE records SET body = 'x' WHERE session = 2 AND seq = 4")
    report = journal.verify()

    assert not report.ok
    assert [(each.torn, each.problem) for each in report.sessions] == [(0, None), (1, None)]
    assert "session 'b': a torn tail, the last 1 of its 5 records" in report.render()
    assert journal.summaries()[1].torn == 1
    file = SessionFile(str(path), durable=False)
    file.open_session("b")
    file.close()
    assert journal.verify().ok


def test_a_session_whose_row_is_gone_is_told(path: Path, journal: tr.SqliteJournal) -> None:
    store(path, a=CUT, b=CUT)
    damage(path, "DELETE FROM sessions WHERE key = 2")
    report = journal.verify()

    assert report.problems == ("5 records belong to no session: the row of their session is gone",)
    assert not report.ok


def test_a_file_whose_pages_are_garbage_is_told_and_raises_nothing(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=tuple(r.SessionOpened("x" * 3000) for _ in range(20)))
    data = bytearray(path.read_bytes())
    data[4096 * 2 : 4096 * 3] = b"\xa5" * 4096  # a root: of the sessions or of their index
    path.write_bytes(data)
    report = journal.verify()

    assert not report.ok
    assert report.problems
    assert "- the file: SQLite says " in report.render()
    assert "the file: the file" not in report.render()
    assert "DAMAGED: the file" in report.render()
    data[4096 : 4096 * 2] = b"\xa5" * 4096
    path.write_bytes(data)
    with pytest.raises(tr.JournalDamagedError, match="or use another path"):
        journal.summaries()


def test_what_sqlite_itself_finds_is_told_beside_good_records(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT)
    data = bytearray(path.read_bytes())
    pages = int.from_bytes(data[28:32], "big") + 1  # the header's count
    data[28:32] = pages.to_bytes(4, "big")
    path.write_bytes(data + bytes(4096))
    report = journal.verify()

    assert [each.ok for each in report.sessions] == [True]
    [problem] = report.problems
    assert f"Page {pages}" in problem
    assert not report.ok


def test_a_file_that_is_no_journal_cannot_be_checked(path: Path) -> None:
    path.write_text("my notes\n" * 200)

    with pytest.raises(tr.JournalFormatError):
        tr.SqliteJournal(path).verify()
    with pytest.raises(tr.JournalFormatError):
        tr.SqliteJournal(path).summaries()


def test_a_stored_file_of_version_1_is_checked_record_by_record(path: Path) -> None:
    shutil.copy(DATA / "journal-v1.db", path)
    checks = {each.session_id: each for each in tr.SqliteJournal(path).verify().sessions}

    # "everything" has each kind of record once, which is no conversation.
    assert checks["everything"].records == 12
    assert checks["everything"].problem is not None
    assert "does not fit" in checks["everything"].problem
    assert checks["é😀"].ok
