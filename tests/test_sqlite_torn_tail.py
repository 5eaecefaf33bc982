"""A torn tail goes before anything is written behind it, whoever writes it. Real files."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import trio_runner as tr
import trio_runner._journal._verify as verify
import trio_runner._journal.codec as codec
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append, Opened

#: Records of each session; the last row of the file is the last one of "c".
COUNT = 4


def record(session_id: str, number: int) -> r.SessionOpened:
    return r.SessionOpened(f"{session_id}{number}")


def records_of(session_id: str, count: int = COUNT) -> tuple[r.Record, ...]:
    return tuple(record(session_id, number) for number in range(count))


def append_to(
    file: SessionFile, session_id: str, opened: Opened, records: Sequence[r.Record], first: int
) -> tr.JournalError | None:
    bodies = [codec.encode_record(each) for each in records]
    [[error]] = file.commit([Append(session_id, opened.key, opened.epoch, first, bodies)])
    return error


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three sessions that took turns to append, of a process that has ended."""
    path = tmp_path / "journal.db"
    file = SessionFile(str(path), durable=False)
    opened = {session_id: file.open_session(session_id) for session_id in "abc"}
    for number in range(COUNT):
        for session_id, each in opened.items():
            assert append_to(file, session_id, each, [record(session_id, number)], number) is None
    file.close()
    return path


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        assert connection.execute(statement).rowcount >= 1
    connection.close()


def found(path: Path, question: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    rows = connection.execute(question).fetchall()
    connection.close()
    return rows


TEAR = "UPDATE records SET body = body || 'x' WHERE place = (SELECT max(place) FROM records)"


async def use(journal: tr.SqliteJournal, session_id: str) -> None:
    session = await journal.open(session_id)
    ticket = session.append([record("later", 0)])
    await ticket.wait()
    await session.aclose()
    assert ticket.error is None


async def the_same(journal: tr.SqliteJournal) -> None:
    await use(journal, "c")


async def another(journal: tr.SqliteJournal) -> None:
    await use(journal, "a")


async def a_new_one(journal: tr.SqliteJournal) -> None:
    await use(journal, "new")


async def forking(journal: tr.SqliteJournal) -> None:
    assert await journal.fork("c", "new") == COUNT - 1


async def importing(journal: tr.SqliteJournal) -> None:
    assert await journal.import_jsonl("new", journal.export_jsonl("a")) == COUNT


@pytest.mark.parametrize("first", [the_same, another, a_new_one, forking, importing])
async def test_whatever_is_written_first_the_session_of_a_torn_tail_opens(
    path: Path, first: Callable[[tr.SqliteJournal], Awaitable[None]]
) -> None:
    change(path, TEAR)
    journal = tr.SqliteJournal(path)
    assert [each.torn for each in journal.verify().sessions] == [0, 0, 1]
    await first(journal)

    assert journal.verify().ok
    whole = journal.stored("c")
    await use(journal, "c")
    assert whole[: COUNT - 1] == records_of("c")[:-1]
    assert journal.stored("c") == (*whole, record("later", 0))
    assert journal.stored("b") == records_of("b")


async def test_it_is_told_to_who_opens_its_session_later_in_the_process(path: Path) -> None:
    change(path, TEAR)
    journal = tr.SqliteJournal(path)
    other = await journal.open("a")  # keeps the file open
    session = await journal.open("c")
    await session.aclose()
    again = await journal.open("c")
    await again.aclose()
    await other.aclose()

    assert (other.dropped, session.dropped, again.dropped) == (0, 1, 0)


def test_a_tail_of_several_sessions_is_taken_out_of_each_and_kept_aside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(path, "UPDATE records SET at = at + 1 WHERE seq = 3", "UPDATE records SET at = 1 WHERE "
           "session = 3 AND seq = 2")  # fmt: skip
    file = SessionFile(str(path), durable=False)
    file.close()

    assert [record.message.count("had a torn tail") for record in caplog.records] == [1, 1, 1]
    assert "session 'c' had a torn tail: 2 records from number 2 on" in caplog.text
    assert found(path, "SELECT id, length, epoch FROM sessions") == [
        ("a", 3, 2),
        ("b", 3, 2),
        ("c", 2, 2),
    ]
    assert found(path, "SELECT session, seq FROM dropped ORDER BY place") == [
        (3, 2),
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    assert tr.SqliteJournal(path).verify().ok


def test_what_is_bad_before_a_good_record_is_left_for_the_refusal(path: Path) -> None:
    change(path, "UPDATE records SET body = 'x' WHERE session = 2 AND seq = 3")
    SessionFile(str(path), durable=False).close()

    assert found(path, "SELECT count(*) FROM dropped") == [(0,)]
    with pytest.raises(tr.JournalDamagedError, match="session 'b', record 3"):
        tr.SqliteJournal(path).stored("b")


def test_a_good_record_is_never_dropped_for_one_that_is_missing_before_it(path: Path) -> None:
    # Its row lies too, so that the count does not tell.
    change(path, "DELETE FROM records WHERE session = 3 AND seq = 2",
           "UPDATE sessions SET length = 3 WHERE id = 'c'")  # fmt: skip
    file = SessionFile(str(path), durable=False)
    with pytest.raises(tr.JournalDamagedError, match="session 'c', record 2: it is missing"):
        file.open_session("c")
    file.close()

    assert found(path, "SELECT count(*) FROM records") == [(3 * COUNT - 1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM sessions WHERE id = 'c'",
        "UPDATE sessions SET length = 'x' WHERE id = 'c'",
        "UPDATE sessions SET epoch = 'x' WHERE id = 'c'",
    ],
)
def test_records_whose_session_is_damaged_itself_are_left(path: Path, statement: str) -> None:
    change(path, TEAR, statement)
    file = SessionFile(str(path), durable=False)
    file.open_session("new")
    file.close()

    assert found(path, "SELECT count(*) FROM records") == [(3 * COUNT,)]


def test_good_records_of_a_session_with_another_name_in_its_row_are_left(path: Path) -> None:
    [(page,)] = found(path, "SELECT rootpage FROM sqlite_master WHERE name = 'sessions'")
    assert isinstance(page, int)
    data = bytearray(path.read_bytes())
    [place] = [at for at in range((page - 1) * 4096, page * 4096) if data[at] == ord("c")]
    data[place] = ord("d")
    path.write_bytes(data)
    file = SessionFile(str(path), durable=False)
    file.open_session("new")
    file.close()

    assert found(path, "SELECT count(*) FROM records") == [(3 * COUNT,)]


def test_a_live_writer_of_a_session_whose_tail_went_writes_nothing_more(path: Path) -> None:
    first = SessionFile(str(path), durable=False)
    opened = first.open_session("c")
    assert append_to(first, "c", opened, [record("c", COUNT)], COUNT) is None
    change(path, TEAR)  # what was acknowledged is lost: the disk's doing
    second = SessionFile(str(path), durable=False)
    other = second.open_session("new")
    assert append_to(second, "new", other, [record("new", 0)], 0) is None

    error = append_to(first, "c", opened, [record("c", COUNT + 1)], COUNT + 1)
    assert type(error) is tr.SessionLostError
    first.close()
    again = second.open_session("c")
    assert again.records == records_of("c")
    assert append_to(second, "c", again, [record("c", COUNT)], COUNT) is None
    second.close()
    assert tr.SqliteJournal(path).verify().ok


def test_a_tail_that_went_bad_while_the_file_is_open_goes_at_the_next_opening(path: Path) -> None:
    file = SessionFile(str(path), durable=False)
    change(path, TEAR)
    other = file.open_session("new")
    assert append_to(file, "new", other, [record("new", 0)], 0) is None

    opened = file.open_session("c")
    assert (opened.records, opened.dropped) == (records_of("c")[:-1], 1)
    file.close()
    assert tr.SqliteJournal(path).verify().ok


def test_a_live_writer_of_a_good_session_is_not_disturbed(path: Path) -> None:
    first = SessionFile(str(path), durable=False)
    opened = first.open_session("a")
    change(path, TEAR)  # of "c"
    second = SessionFile(str(path), durable=False)

    assert append_to(first, "a", opened, [record("a", COUNT)], COUNT) is None
    first.close()
    second.close()
    assert tr.SqliteJournal(path).stored("a") == records_of("a", COUNT + 1)


def test_a_good_file_costs_a_look_at_one_record(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    real = verify._checksum

    def counted(*args: object) -> bytes:
        looks.append(args)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(verify, "_checksum", counted)
    SessionFile(str(path), durable=False).close()
    assert len(looks) == 1


def test_a_tail_that_cannot_be_read_is_left_to_who_opens_its_session(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(page,)] = found(path, "SELECT rootpage FROM sqlite_master WHERE name = 'records'")
    assert isinstance(page, int)
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : (page - 1) * 4096 + 8] = b"\xa5" * 8
    path.write_bytes(data)
    file = SessionFile(str(path), durable=False)
    with pytest.raises(tr.JournalDamagedError):
        file.open_session("c")
    file.close()
    assert path.read_bytes()[(page - 1) * 4096 : (page - 1) * 4096 + 8] == b"\xa5" * 8


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trio_runner")
