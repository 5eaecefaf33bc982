"""Damage to a journal's file: a good prefix, or a refusal that says where. Never a wrong value."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import trio_runner as tr
import trio_runner._journal.codec as codec
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append, Opened

DATA = Path(__file__).parent / "data"
SESSIONS = ("a", "b", "c")


def records_of(session_id: str, count: int = 12) -> tuple[r.Record, ...]:
    """Records that differ in length, the longest over several pages."""
    return tuple(
        r.SessionOpened(f"{session_id}{number} " + "xyz" * (number**4 % 4001))
        for number in range(count)
    )


def append_to(
    file: SessionFile, session_id: str, opened: Opened, records: Sequence[r.Record], first: int = 0
) -> None:
    bodies = [codec.encode_record(record) for record in records]
    [[error]] = file.commit([Append(session_id, opened.key, opened.epoch, first, bodies)])
    assert error is None


def build(path: Path) -> SessionFile:
    """Three sessions that took turns to append; the file is still open."""
    file = SessionFile(str(path), durable=False)
    opened = {session_id: file.open_session(session_id) for session_id in SESSIONS}
    for number in range(12):
        for session_id in SESSIONS:
            record = records_of(session_id)[number]
            append_to(file, session_id, opened[session_id], [record], number)
    return file


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that was closed: all is in the main file."""
    path = tmp_path_factory.mktemp("closed") / "journal.db"
    build(path).close()
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as ``kill -9`` leaves it: all is in the WAL."""
    folder = tmp_path_factory.mktemp("killed")
    file = build(folder / "live.db")
    shutil.copy(folder / "live.db", folder / "journal.db")
    shutil.copy(folder / "live.db-wal", folder / "journal.db-wal")
    file.close()
    return folder / "journal.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def copied(source: Path, path: Path) -> Path:
    for suffix in ("", "-wal", "-shm", ".lock"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copy(source, path)
    if Path(f"{source}-wal").exists():
        shutil.copy(f"{source}-wal", f"{path}-wal")
    return path


def opened_with(path: Path, session_id: str) -> tuple[r.Record, ...] | tr.JournalError:
    """What opening gives; any error but a `JournalError` of a known kind fails the test."""
    known = (tr.JournalDamagedError, tr.JournalFormatError, tr.JournalStorageError)
    try:
        file = SessionFile(str(path), durable=False)
    except known as error:
        return error
    try:
        return file.open_session(session_id).records
    except known as error:
        return error
    finally:
        file.close()


def check_prefix(path: Path) -> str:
    """Every session opens with a prefix of what was written, or is refused."""
    outcomes: set[str] = set()
    for session_id in SESSIONS:
        found = opened_with(path, session_id)
        match found:
            case tr.JournalError():
                assert str(path) in str(found)
                outcomes.add("refused")
            case _:
                assert found == records_of(session_id)[: len(found)]
                outcomes.add("whole" if len(found) == 12 else "prefix")
    return " ".join(sorted(outcomes))


# --- bytes ----------------------------------------------------------------------


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(bit // 8)
        [byte] = stream.read(1)
        stream.seek(bit // 8)
        stream.write(bytes([byte ^ (1 << bit % 8)]))


def test_a_file_that_nobody_touched_is_whole(closed: Path, killed: Path, path: Path) -> None:
    assert check_prefix(copied(closed, path)) == "whole"
    assert check_prefix(copied(killed, path)) == "whole"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["closed", "killed"])
def test_a_flipped_bit_never_gives_a_wrong_record(
    where: str, request: pytest.FixtureRequest, path: Path
) -> None:
    source: Path = request.getfixturevalue(where)
    suffix = "" if where == "closed" else "-wal"
    size_bits = Path(f"{source}{suffix}").stat().st_size * 8
    chooser = random.Random(1)
    outcomes: list[str] = []
    for bit in [chooser.randrange(size_bits) for _ in range(200)]:
        copied(source, path)
        flip(Path(f"{path}{suffix}"), bit)
        outcomes.append(check_prefix(path))

    # The flips did hit something, so that an empty check would show.
    harmed = [outcome for outcome in outcomes if outcome != "whole"]
    assert len(harmed) > 100, harmed


@pytest.mark.slow
def test_a_flipped_bit_in_the_rows_of_the_sessions_never_gives_a_wrong_record(
    closed: Path, path: Path
) -> None:
    # The page of the table, whole: its rows have no checksum of their own.
    page = 1
    data = closed.read_bytes()
    while not all(name in data[page * 4096 : (page + 1) * 4096] for name in (b"\x01a", b"\x01b")):
        page += 1
        assert page < 3
    outcomes: set[str] = set()
    for byte in [
        *range(page * 4096, page * 4096 + 16),
        *range((page + 1) * 4096 - 40, (page + 1) * 4096),
    ]:
        for bit in range(8):
            copied(closed, path)
            flip(path, byte * 8 + bit)
            outcomes.add(check_prefix(path))

    assert "refused" in " ".join(outcomes)


@pytest.mark.slow
def test_a_wal_that_was_cut_anywhere_gives_a_prefix_and_takes_appends(
    killed: Path, path: Path
) -> None:
    size = Path(f"{killed}-wal").stat().st_size
    frame = 4096 + 24
    last_frames = range(size - 100 * frame, size)
    cuts = {*last_frames[::2999], *last_frames[::frame], 0, 1, 31, 32, 33, size - 1}
    lengths: set[int] = set()
    for cut in sorted(cuts):
        copied(killed, path)
        os.truncate(f"{path}-wal", cut)
        assert check_prefix(path) in {"whole", "prefix", "prefix whole"}
        file = SessionFile(str(path), durable=False)
        opened = file.open_session("c")
        lengths.add(len(opened.records))
        append_to(file, "c", opened, [r.SessionOpened("later")], len(opened.records))
        file.close()
        found = opened_with(path, "c")
        assert found == (*records_of("c")[: len(opened.records)], r.SessionOpened("later"))

    assert len(lengths) > 5


def test_a_main_file_that_was_cut_is_never_read_wrong(closed: Path, path: Path) -> None:
    size = closed.stat().st_size
    outcomes = set[str]()
    for cut in range(1, size, 1531):
        copied(closed, path)
        os.truncate(path, cut)
        outcomes.add(check_prefix(path))

    assert "refused" in outcomes


# --- rows -----------------------------------------------------------------------


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    assert connection.execute(statement).rowcount == 1
    connection.close()


@pytest.mark.parametrize(
    "changed",
    [
        "session = 2, seq = 12",
        "seq = 99",
        "epoch = 7",
        "epoch = 'x'",
        "at = at + 1",
        "at = 5",
        "body = replace(body, 'x', 'y')",
        "body = CAST(body AS BLOB) || x'00'",
        "body = ''",
        "checksum = x'0011223344556677'",
        "checksum = 5",
    ],
)
def test_a_changed_row_with_good_ones_behind_it_is_refused_with_its_place(
    closed: Path, path: Path, changed: str
) -> None:
    copied(closed, path)
    change(path, f"UPDATE records SET {changed} WHERE session = 1 AND seq = 5")

    found = opened_with(path, "a")
    assert isinstance(found, tr.JournalDamagedError)
    assert found.where.startswith("session 'a', record 5")
    assert found.where in str(found)
    assert opened_with(path, "c") == records_of("c")  # the others are not touched


def test_a_bad_last_record_with_good_ones_of_others_behind_it_is_refused(
    closed: Path, path: Path
) -> None:
    copied(closed, path)
    change(path, "UPDATE records SET body = 'x' WHERE session = 1 AND seq = 11")

    assert isinstance(opened_with(path, "a"), tr.JournalDamagedError)


def test_a_torn_tail_is_dropped_reported_and_kept_aside(
    closed: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied(closed, path)
    change(path, "UPDATE records SET body = 'torn' WHERE session = 3 AND seq = 11")

    # Reading changes nothing.
    assert tr.SqliteJournal(path).stored("c") == records_of("c")[:11]
    file = SessionFile(str(path), durable=False)
    with caplog.at_level(logging.WARNING, "trio_runner"):
        opened = file.open_session("c")
    assert opened.dropped == 1
    assert opened.records == records_of("c")[:11]
    assert "session 'c' had a torn tail: 1 records from number 11 on" in caplog.text
    append_to(file, "c", opened, [r.SessionOpened("after")], 11)
    file.close()

    again = SessionFile(str(path), durable=False)
    opened = again.open_session("c")
    assert opened.dropped == 0
    assert opened.records == (*records_of("c")[:11], r.SessionOpened("after"))
    again.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT session, seq, body FROM dropped").fetchall() == [
        (3, 11, "torn")
    ]
    connection.close()


async def test_the_session_tells_how_much_was_dropped(closed: Path, path: Path) -> None:
    copied(closed, path)
    change(path, "UPDATE records SET body = 'torn' WHERE session = 3 AND seq = 11")
    journal = tr.SqliteJournal(path)
    session = await journal.open("c")

    assert session.dropped == 1
    assert tuple(session.records) == records_of("c")[:11]
    await session.aclose()


@pytest.mark.parametrize("seq", [11, 5])
def test_a_record_that_is_gone_is_missed(closed: Path, path: Path, seq: int) -> None:
    copied(closed, path)
    change(path, f"DELETE FROM records WHERE session = 3 AND seq = {seq}")

    assert isinstance(opened_with(path, "c"), tr.JournalDamagedError)


def test_a_row_of_a_session_that_lies_is_not_believed(closed: Path, path: Path) -> None:
    copied(closed, path)
    change(path, "UPDATE sessions SET length = 3, epoch = 0 WHERE id = 'a'")
    file = SessionFile(str(path), durable=False)
    opened = file.open_session("a")  # the records have checksums, the row has not
    assert opened.records == records_of("a")
    assert opened.epoch == 2  # above that of the records: their writer may still live
    file.close()
    change(path, "UPDATE sessions SET length = 13 WHERE id = 'b'")
    assert isinstance(opened_with(path, "b"), tr.JournalDamagedError)
    change(path, "UPDATE sessions SET length = 'x' WHERE id = 'c'")
    assert isinstance(opened_with(path, "c"), tr.JournalDamagedError)


def test_a_session_that_its_index_does_not_find_is_not_taken_for_a_new_one(
    closed: Path, path: Path
) -> None:
    copied(closed, path)
    connection = sqlite3.connect(path)
    [(page,)] = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_sessions_1'"
    )
    connection.close()
    data = path.read_bytes()
    start = (page - 1) * 4096
    [place] = [one for one in range(start, start + 4096) if data[one] == ord("a")]
    flip(path, place * 8 + 4)  # "q"

    assert opened_with(path, "a") == records_of("a")


# --- formats --------------------------------------------------------------------


def test_a_file_of_version_1_opens_and_takes_appends(path: Path) -> None:
    copied(DATA / "journal-v1.db", path)
    lines = (DATA / "records-v1.jsonl").read_bytes().splitlines()
    said = tuple(map(codec.decode_record, lines))
    journal = tr.SqliteJournal(path)

    assert journal.sessions() == ("everything", "é😀")
    assert journal.stored("everything") == said
    file = SessionFile(str(path), durable=False)
    opened = file.open_session("everything")
    append_to(file, "everything", opened, said[:1], len(said))
    file.close()
    assert journal.stored("everything") == (*said, said[0])


def test_a_record_of_a_newer_version_is_refused_with_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SessionFile(str(path), durable=False)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "_SINCE", {"session_opened": 99})
        append_to(file, "s", file.open_session("s"), records_of("s", 1))
    file.close()

    found = opened_with(path, "s")
    assert isinstance(found, tr.JournalFormatError)
    assert "session 's', record 0" in str(found)
    assert "schema version 99" in str(found)


def test_a_newer_layout_is_refused_and_nothing_is_changed(closed: Path, path: Path) -> None:
    copied(closed, path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(tr.JournalFormatError, match=r"layout 2;.* reads up to 1"):
        SessionFile(str(path), durable=False)
    with pytest.raises(tr.JournalFormatError, match="layout 2"):
        tr.SqliteJournal(path).stored("a")
    assert path.read_bytes() == before


def test_a_file_of_another_application_is_refused_and_nothing_is_changed(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE sessions (id, mine)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(tr.JournalFormatError, match="another application"):
        SessionFile(str(path), durable=False)
    with pytest.raises(tr.JournalFormatError, match="another application"):
        tr.SqliteJournal(path).sessions()
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_nothing_is_changed(path: Path) -> None:
    path.write_text("my notes\n" * 200)

    with pytest.raises(tr.JournalFormatError, match="no SQLite file"):
        SessionFile(str(path), durable=False)
    with pytest.raises(tr.JournalFormatError, match="no SQLite file"):
        tr.SqliteJournal(path).stored("a")
    assert path.read_text() == "my notes\n" * 200
    assert [entry.name for entry in path.parent.iterdir()] == ["journal.db"]


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()

    assert tr.SqliteJournal(path).stored("a") == ()
    assert opened_with(path, "a") == ()


# --- what the system refuses ----------------------------------------------------


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    journal = tr.SqliteJournal(tmp_path / "missing" / "journal.db")

    with pytest.raises(tr.JournalStorageError, match=r"no directory '.*missing'; make it first"):
        await journal.open("s")


async def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(tr.JournalStorageError, match="is a directory"):
        await tr.SqliteJournal(tmp_path).open("s")


READ_ONLY = """
import os, sys, trio
import trio_runner as tr
import trio_runner._journal._file
import urllib.parse  # what is loaded late cannot be found by the other user

journal = tr.SqliteJournal(sys.argv[1])
if os.getuid() == 0:
    os.setuid(65534)  # root may write everywhere

async def main():
    try:
        await journal.open("a")
    except tr.JournalStorageError as error:
        print("refused", error)

trio.run(main)
print(len(journal.stored("a")))
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_a_directory_that_cannot_be_written_to_is_said_and_can_be_read(
    closed: Path, is_there: bool
) -> None:
    # pytest's own directories are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        if is_there:
            copied(closed, path)
        Path(folder).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(path)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        Path(folder).chmod(0o755)

    refused, stored = done.stdout.splitlines()
    assert refused.startswith("refused")
    assert str(path) in refused
    assert "can be written to" in refused
    assert stored == ("12" if is_there else "0")
