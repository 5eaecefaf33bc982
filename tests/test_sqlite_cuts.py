"""A journal's file, or its WAL, cut at every byte of the last ten records.

What was cut off is gone; what is read is exactly the commits that were whole before the
cut, or a refusal that says where. ``--full-sweeps`` cuts at every byte; without it
at the bytes around each boundary, and at some between.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import attrs
import pytest

import trio_runner as tr
import trio_runner._journal.codec as codec
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append

COUNT = 40
LAST = 10


def said(number: int) -> r.Record:
    """The records differ in length; none needs a page of its own."""
    return r.SessionOpened(f"record {number:03} " + "x" * (number * 37 % 301))


@attrs.frozen
class Journal:
    """The bytes of a journal: as it was closed, and as ``kill -9`` leaves it.

    Attributes:
      ends: how long the WAL was after the commit of each of the last ten records.
    """

    closed: bytes
    main: bytes
    wal: bytes
    ends: tuple[int, ...]


@pytest.fixture(scope="module")
def folder() -> Generator[Path]:
    """In memory where there is such a place: tens of thousands of files are made."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as name:
        yield Path(name)


def made(path: Path, *, reopened: bool) -> Journal:
    """Forty records; with ``reopened`` the WAL holds the last ten only, else everything."""
    wal = Path(f"{path}-wal")
    file = SessionFile(str(path), durable=False)
    opened = file.open_session("s")
    ends: list[int] = []
    for number in range(COUNT):
        if reopened and number == COUNT - LAST:
            file.close()
            file = SessionFile(str(path), durable=False)
            opened = file.open_session("s")
        body = codec.encode_record(said(number))
        append = Append("s", opened.key, opened.epoch, number, [body])
        assert list(file.commit([append])) == [[None]]
        ends.append(wal.stat().st_size)
    main, log = path.read_bytes(), wal.read_bytes()
    file.close()
    return Journal(path.read_bytes(), main, log, tuple(ends[-LAST:]))


@pytest.fixture(scope="module")
def journal(folder: Path) -> Journal:
    return made(folder / "made.db", reopened=True)


@pytest.fixture(scope="module")
def young(folder: Path) -> Journal:
    """Never closed so far: nothing but a header is in the main file."""
    return made(folder / "young.db", reopened=False)


def read_back(path: Path) -> tuple[r.Record, ...] | tr.JournalError:
    """What opening gives. Anything else than records or a known refusal fails the test."""
    known = (tr.JournalDamagedError, tr.JournalFormatError, tr.JournalStorageError)
    try:
        file = SessionFile(str(path), durable=False)
    except known as error:
        return error
    try:
        return file.open_session("s").records
    except known as error:
        return error
    finally:
        file.close()


def written(folder: Path, main: bytes, wal: bytes | None) -> Path:
    """The two files, in a folder with nothing else."""
    place = folder / "cut"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "cut.db").write_bytes(main)
    if wal is not None:
        (place / "cut.db-wal").write_bytes(wal)
    return place / "cut.db"


def places(first: int, last: int, boundaries: Iterable[int], *, every: bool) -> list[int]:
    """Where to cut, from ``first`` up to but not including ``last``."""
    if every:
        return list(range(first, last))
    near = {at + step for at in boundaries for step in (-1, 0, 1)}
    return sorted({at for at in (*near, *range(first, last, 997)) if first <= at < last})


def check_cuts(
    cuts: Iterable[int], cut: Callable[[int], Path]
) -> tuple[dict[int, int], dict[int, tr.JournalError]]:
    """Read each cut back: how many records, all as they were written; or the refusal."""
    lengths: dict[int, int] = {}
    refusals: dict[int, tr.JournalError] = {}
    for at in cuts:
        path = cut(at)
        match read_back(path):
            case tr.JournalError() as error:
                assert str(path) in str(error)
                refusals[at] = error
            case records:
                assert records == tuple(map(said, range(len(records)))), f"cut at byte {at}"
                lengths[at] = len(records)
    return lengths, refusals


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_wal_cut_at_any_byte_gives_every_commit_that_was_whole(
    part: int, journal: Journal, folder: Path, full_sweeps: bool
) -> None:
    cuts = places(0, len(journal.wal), journal.ends, every=full_sweeps)[part::4]
    lengths, refusals = check_cuts(cuts, lambda at: written(folder, journal.main, journal.wal[:at]))

    assert refusals == {}
    for at, length in lengths.items():
        whole = sum(end <= at for end in journal.ends)
        assert length == COUNT - LAST + whole, f"cut at byte {at}"
    assert set(lengths.values()) == set(range(COUNT - LAST, COUNT))
    print(len(lengths), "cuts of the WAL")


@pytest.mark.slow
def test_a_closed_file_cut_at_any_byte_is_refused_with_its_place_or_whole(
    journal: Journal, folder: Path, full_sweeps: bool
) -> None:
    data = journal.closed
    found = [data.index(f"record {number:03}".encode()) for number in range(COUNT - LAST, COUNT)]
    boundaries = [*found, *range(0, len(data), 4096)]
    cuts = places(min(found), len(data), boundaries, every=full_sweeps)
    lengths, refusals = check_cuts(cuts, lambda at: written(folder, data[:at], None))

    # Its records are not in a row, so a cut takes pages of many: there is no prefix to give.
    assert set(lengths.values()) <= {COUNT}
    assert refusals
    for at, error in refusals.items():
        match error:
            case tr.JournalDamagedError():
                assert error.where, f"cut at byte {at}"
            case _:
                pytest.fail(f"cut at byte {at}: {error!r}")
    print(len(refusals), "cuts refused,", len(lengths), "whole")


@pytest.mark.slow
def test_a_main_file_cut_under_its_wal_loses_nothing(
    young: Journal, folder: Path, full_sweeps: bool
) -> None:
    # The WAL holds every page, so whatever is left of the main file will do.
    cuts = range(2, len(young.main)) if full_sweeps else [2, 16, 100, len(young.main) - 1]
    lengths, refusals = check_cuts(cuts, lambda at: written(folder, young.main[:at], young.wal))

    assert refusals == {}
    assert set(lengths.values()) == {COUNT}
    print(len(lengths), "cuts of the main file under its WAL")


@pytest.mark.parametrize("main", [None, b"", b"S"], ids=["missing", "empty", "one byte"])
def test_a_wal_without_its_main_file_is_refused_and_kept(
    young: Journal, folder: Path, main: bytes | None
) -> None:
    # SQLite takes the file for a new one, and would throw the WAL away.
    path = written(folder, main or b"", young.wal)
    if main is None:
        path.unlink()

    for refused in (read_back(path), stored_in(path)):
        assert isinstance(refused, tr.JournalDamagedError)
        assert refused.where == "the file"
        assert "Put the file back" in str(refused)
    assert Path(f"{path}-wal").read_bytes() == young.wal
    path.write_bytes(young.main)
    assert read_back(path) == tuple(map(said, range(COUNT)))


def stored_in(path: Path) -> tuple[r.Record, ...] | tr.JournalError:
    try:
        return tr.SqliteJournal(path).stored("s")
    except tr.JournalError as error:
        return error
