"""The files beside a journal: locks, whoever made them; forks; and what readers leave."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import trio

import trio_runner as tr
import trio_runner._journal._connect as connect
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._lease import FileLock
from trio_runner._journal._parts import Append
from trio_runner._journal.codec import encode_record

ROOT = Path(__file__).parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def lease_of(path: Path, session_id: str = "s") -> Path:
    name = hashlib.blake2b(session_id.encode(), digest_size=8).hexdigest()
    return Path(f"{path}.{name}.lock")


def locks_of(path: Path) -> list[Path]:
    return [lease_of(path), Path(f"{path}.lock")]


# --- what is in a lock's file, and what stands in its place --------------------------


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        b"[" * 4096,
        b'{"pid": Infinity, "host": "h", "since": "s"}',
        b'{"pid": ' + b"9" * 4000 + b', "host": "h", "since": "s"}',
        b'{"pid": 1, "host": "\\ud800", "since": "s"}',
    ],
)
async def test_whatever_is_in_a_lock_that_is_held_the_session_is_in_use(
    path: Path, note: bytes
) -> None:
    journal = tr.SqliteJournal(path)
    keeper = await journal.open("other")
    lease = lease_of(path)
    lease.write_bytes(note)
    with lease.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = open_files()
        with pytest.raises(tr.SessionInUseError) as caught:
            await journal.open("s")
        str(caught.value).encode()  # a terminal can show it
        assert open_files() == before
    await (await journal.open("s")).aclose()
    await keeper.aclose()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0  # noqa: PTH208


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "folder", "dangling"])
async def test_what_stands_in_the_place_of_a_lock_is_not_written_over(
    path: Path, number: int, kind: str
) -> None:
    precious = path.with_name("precious")
    precious.write_text("precious")
    lock = locks_of(path)[number]
    make: dict[str, Callable[[], object]] = {
        "symlink": lambda: lock.symlink_to(precious),
        "dangling": lambda: lock.symlink_to(path.with_name("nowhere")),
        "hard link": lambda: lock.hardlink_to(precious),
        "fifo": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }
    make[kind]()
    with pytest.raises(tr.JournalStorageError, match="remove it") as caught:
        await tr.SqliteJournal(path).open("s")

    assert str(lock) in str(caught.value)
    assert precious.read_text() == "precious"
    assert not path.with_name("nowhere").exists()


# --- made by another user ----------------------------------------------------------

#: As a user who is not root, with the lock files of another one there.
OTHER_USER = """
import os, sys, trio
import trio_runner as tr
from trio_runner.records import SessionOpened

async def main(path):
    session = await tr.SqliteJournal(path).open("s")
    ticket = session.append([SessionOpened("x")])
    await ticket.wait()
    assert ticket.error is None, ticket.error
    await session.aclose()

trio.run(main, sys.argv[2])  # loads all there is to load
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
trio.run(main, sys.argv[1])
"""


@pytest.fixture
def shared() -> Generator[Path]:
    """A folder that every user may write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_other_user(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OTHER_USER, str(path), str(path.with_name("loads.db"))],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize("sticky", [False, True])
def test_locks_that_another_user_left_behind_are_no_obstacle(shared: Path, sticky: bool) -> None:
    if sticky:  # then they cannot be removed either
        shared.chmod(0o1777)
    path = shared / "journal.db"
    for lock in locks_of(path):
        lock.touch()
        lock.chmod(0o444)
    done = as_other_user(path)

    assert done.returncode == 0, done.stderr
    assert len(tr.SqliteJournal(path).stored("s")) == 1
    if not sticky:
        assert [lock for lock in locks_of(path) if lock.exists()] == []


def test_a_lock_that_may_not_even_be_read_is_named_with_whose_it_is(shared: Path) -> None:
    path = shared / "journal.db"
    lock = lease_of(path)
    lock.touch()
    lock.chmod(0)
    done = as_other_user(path)

    assert f"the lock {lock}: Permission denied" in done.stderr
    assert f"belongs to the user with the id {os.geteuid()}" in done.stderr
    assert "when no process uses the journal, remove it" in done.stderr


# --- forks -------------------------------------------------------------------------

#: Forks while a session is being opened, and is then killed; the child lives on.
FORKS = """
import os, signal, sys, trio
import trio_runner as tr
import trio_runner._journal._file as file_

def fork(*_):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    print("forked", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

file_.SessionFile._open = fork
trio.run(tr.SqliteJournal(sys.argv[1]).open, "s")
"""


def test_a_fork_during_an_opening_does_not_keep_the_session_of_a_dead_process(path: Path) -> None:
    async def open_and_close() -> None:
        await (await tr.SqliteJournal(path).open("s")).aclose()

    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        process.wait()
        trio.run(open_and_close)


#: Forks in one thread while the other has just opened a lock's file.
FORKS_IN_BETWEEN = """
import os, sys, threading
from pathlib import Path
import trio_runner._journal._lease as lease

opened, plain = threading.Event(), os.open
def slow(*arguments, **more):
    fd = plain(*arguments, **more)
    opened.set()
    forking.wait(0.2)  # whoever forks is kept waiting
    return fd
forking = threading.Event()
lease.os.open = slow
lock = lease.FileLock(Path(sys.argv[1]))
thread = threading.Thread(target=lock.try_lock)
thread.start()
opened.wait()
child = os.fork()
if child == 0:
    mine = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    print([os.readlink(fd) for fd in mine if os.path.islink(fd)].count(sys.argv[1]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
thread.join()
assert not lease.FileLock(Path(sys.argv[1])).try_lock()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_forked_process_has_no_lock_that_was_just_being_opened(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS_IN_BETWEEN, str(tmp_path.resolve() / "lock")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(done.stdout) == 0


def test_a_lock_is_taken_again_after_it_was_dropped(tmp_path: Path) -> None:
    one, other = FileLock(tmp_path / "x.lock"), FileLock(tmp_path / "x.lock")
    assert one.try_lock()
    one.drop()
    assert other.try_lock()
    assert not one.try_lock()
    other.remove()
    assert one.try_lock()
    one.remove()


# --- readers -----------------------------------------------------------------------


async def closed_journal(path: Path) -> tr.SqliteJournal:
    journal = tr.SqliteJournal(path)
    session = await journal.open("s")
    await session.append([r.SessionOpened("first")]).wait()
    await session.aclose()
    return journal


async def test_reading_a_journal_that_nobody_has_open_makes_no_file(path: Path) -> None:
    journal = await closed_journal(path)
    connection = connect.connect
    seen: list[set[str]] = []

    def connected(where: str, *, uri: bool = False) -> sqlite3.Connection:
        one = connection(where, uri=uri)
        one.set_trace_callback(lambda _: seen.append({each.name for each in path.parent.iterdir()}))
        return one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "connect", connected)
        assert len(journal.stored("s")) == 1
        assert journal.sessions() == ("s",)
        assert [each.session_id for each in journal.summaries()] == ["s"]
        assert journal.verify().ok
    assert len(seen) > 4
    assert {name for names in seen for name in names} == {path.name}


@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_reader_of_a_closed_journal_that_is_written_meanwhile_reads_it_of_one_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    journal = await closed_journal(path)
    connection = connect.connect
    seen: list[str] = []

    def write(_: str) -> None:
        seen.append(_)
        if len(seen) == statement:
            file = SessionFile(str(path))
            opened = file.open_session("s")
            bodies = [encode_record(r.SessionOpened("x" * 9000)) for _ in range(50)]
            append = Append("s", opened.key, opened.epoch, len(opened.records), bodies)
            assert list(file.commit([append])) == [[None]]
            file.close()

    def connected(where: str, *, uri: bool = False) -> sqlite3.Connection:
        one = connection(where, uri=uri)
        if uri:
            one.set_trace_callback(write)
        return one

    monkeypatch.setattr(connect, "connect", connected)
    found = journal.stored("s")
    if len(seen) >= statement:
        assert len(found) == 51
    else:  # the reader has fewer statements
        assert len(found) == 1
        assert statement > 4
