"""`SqliteJournal` and other processes: kills, conflicts, frozen writers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
import trio

import trio_runner as tr
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._lease import FileLock
from trio_runner._journal._parts import Append

ROOT = Path(__file__).parent.parent

#: Opens a session and says so; then appends when told, and says what became of it.
CHILD = """
import json, sys, trio
import trio_runner as tr
from trio_runner.records import SessionOpened

def say(**what):
    print(json.dumps(what), flush=True)

async def main(path, session_id, mode):
    try:
        session = await tr.SqliteJournal(path).open(session_id)
    except tr.SessionInUseError as error:
        say(holder=error.holder and error.holder.pid, message=str(error))
        return
    say(opened=[record.agent for record in session.records])
    number = len(session.records)
    if mode == "race":  # three commits are always on their way
        tickets = []
        while True:
            two = [SessionOpened(str(number)), SessionOpened(str(number + 1))]
            tickets.append((number, session.append(two)))
            number += 2
            if len(tickets) > 3:
                first, ticket = tickets.pop(0)
                await ticket.wait()
                assert ticket.error is None, ticket.error
                say(done=first + 1)
    for line in sys.stdin:
        ticket = session.append([SessionOpened(line.strip())])
        await ticket.wait()
        say(error=None if ticket.error is None else type(ticket.error).__name__)
    await session.aclose()
    say(closed=True)

trio.run(main, *sys.argv[1:])
"""


class Child:
    """A process that has, or wants, a session."""

    def __init__(self, path: Path, session_id: str = "s", mode: str = "told") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), session_id, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def hears(self) -> dict[str, object]:
        line = self.output.readline()
        assert line, "the child ended"
        return json.loads(line)

    @property
    def output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def append(self, text: str) -> dict[str, object]:
        self.say(text)
        return self.hears()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> str:
        """End it, and give what else it said."""
        self.process.kill()
        rest = self.output.read()
        self.process.wait()
        return rest


@contextmanager
def child(path: Path, session_id: str = "s", mode: str = "told") -> Generator[Child]:
    one = Child(path, session_id, mode)
    try:
        yield one
    finally:
        one.kill()
        for stream in (one.process.stdin, one.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def texts(path: Path, session_id: str = "s") -> list[str]:
    stored = tr.SqliteJournal(path).stored(session_id)
    return [one.agent for one in stored if isinstance(one, r.SessionOpened)]


@pytest.mark.slow
def test_what_was_acknowledged_before_a_kill_is_stored_whole_and_in_order(path: Path) -> None:
    chooser = random.Random(4)
    stored = 0
    for _ in range(8):
        with child(path, mode="race") as writer:
            assert writer.hears() == {"opened": [str(number) for number in range(stored)]}
            acknowledged = stored - 1
            for _ in range(chooser.randrange(1, 40)):
                [acknowledged] = [int(str(number)) for number in writer.hears().values()]
            rest = [json.loads(line) for line in writer.kill().splitlines() if line.endswith("}")]
        acknowledged = max([acknowledged, *[one["done"] for one in rest]])
        found = texts(path)  # read before anybody has opened it again

        assert found == [str(number) for number in range(len(found))]
        assert acknowledged < len(found) <= acknowledged + 1 + 4 * 2
        assert len(found) % 2 == 0  # commits are whole
        stored = len(found)

    assert stored > 50


async def test_another_process_is_told_who_has_the_session_and_gets_it_after_a_kill(
    path: Path,
) -> None:
    journal = tr.SqliteJournal(path)
    with child(path) as holder:
        holder.hears()
        holder.append("one")
        with pytest.raises(tr.SessionInUseError) as caught:
            await journal.open("s")
        assert caught.value.holder is not None
        assert caught.value.holder.pid == holder.process.pid
        assert caught.value.holder.host == os.uname().nodename
        assert f"process {holder.process.pid}" in str(caught.value)
        other = await journal.open("other")  # a session of its own is free
        await other.append([r.SessionOpened("here")]).wait()
        holder.kill()
        session = await journal.open("s")  # at once: the kernel freed the lock

    assert [one.agent for one in session.records if isinstance(one, r.SessionOpened)] == ["one"]
    await session.aclose()
    await other.aclose()


async def test_this_process_is_named_to_others(path: Path) -> None:
    session = await tr.SqliteJournal(path).open("s")
    with child(path) as other:
        assert other.hears()["holder"] == os.getpid()
    await session.aclose()


async def test_a_writer_that_wakes_after_its_session_was_taken_over_writes_nothing(
    path: Path,
) -> None:
    journal = tr.SqliteJournal(path)
    with child(path) as frozen:
        frozen.hears()
        assert frozen.append("before") == {"error": None}
        os.kill(frozen.process.pid, signal.SIGSTOP)
        with pytest.raises(tr.SessionInUseError):  # frozen is not dead
            await journal.open("s")
        # What an administrator does, or a network file system that forgets its locks.
        [lock] = [one for one in path.parent.glob("*.lock") if one.name != "journal.db.lock"]
        lock.unlink()
        session = await journal.open("s")
        await session.append([r.SessionOpened("taken over")]).wait()
        os.kill(frozen.process.pid, signal.SIGCONT)
        assert frozen.append("too late") == {"error": "SessionLostError"}
        assert frozen.append("and again") == {"error": "SessionLostError"}
        ticket = session.append([r.SessionOpened("goes on")])
        await ticket.wait()
        assert ticket.error is None

    assert texts(path) == ["before", "taken over", "goes on"]
    await session.aclose()


async def test_a_writer_that_was_taken_over_does_not_free_the_others_lock(path: Path) -> None:
    with child(path) as first:
        first.hears()
        [lock] = [one for one in path.parent.glob("*.lock") if one.name != "journal.db.lock"]
        lock.unlink()
        session = await tr.SqliteJournal(path).open("s")
        assert first.process.stdin is not None
        first.process.stdin.close()
        assert first.hears() == {"closed": True}
        with child(path) as other:
            assert other.hears()["holder"] == os.getpid()
    await session.aclose()


def test_taking_a_session_over_is_enough_to_stop_the_writer_before(path: Path) -> None:
    before, after = SessionFile(str(path)), SessionFile(str(path))
    opened = before.open_session("s")
    [lock] = [one for one in path.parent.glob("*.lock") if one.name != "journal.db.lock"]
    lock.unlink()
    after.open_session("s")  # and appends nothing, so only the epoch is different
    [[error]] = before.commit([Append("s", opened.key, opened.epoch, 0, [b"{}"])])

    assert isinstance(error, tr.SessionLostError)
    assert "epoch 1" in str(error)
    before.close()
    after.close()
    assert texts(path) == []


def test_a_lock_whose_file_was_removed_is_not_taken(tmp_path: Path) -> None:
    first, waiting, third = (FileLock(tmp_path / "x.lock") for _ in range(3))
    assert first.try_lock()
    assert not waiting.try_lock()  # has the file open from here on
    first.remove()
    assert third.try_lock()  # a new file

    assert not waiting.try_lock()
    third.remove()
    assert waiting.try_lock()
    waiting.remove()
    assert list(tmp_path.iterdir()) == []


async def test_a_process_that_is_frozen_while_it_writes_holds_up_others_but_not_their_leaving(
    path: Path,
) -> None:
    # The lock stands for the frozen process: whoever has it is in a transaction.
    session = await tr.SqliteJournal(path).open("s")
    lock = FileLock(Path(f"{path}.lock"))
    assert lock.try_lock()
    ticket = session.append([r.SessionOpened("waits")])
    with trio.CancelScope() as scope:
        scope.cancel()
        await session.aclose()
    assert scope.cancelled_caught
    assert not ticket.done
    lock.unlock()
    await ticket.wait()
    assert ticket.error is None
    assert texts(path) == ["waits"]
    lock.drop()


@pytest.mark.slow
def test_several_processes_on_one_file_lose_nothing(path: Path) -> None:
    with child(path, "a") as a, child(path, "b") as b, child(path, "c") as c:
        for one in (a, b, c):
            assert one.hears() == {"opened": []}
        for number in range(30):
            for one in (a, b, c):
                one.say(str(number))
            for one in (a, b, c):
                assert one.hears() == {"error": None}

    for session_id in "abc":
        assert texts(path, session_id) == [str(number) for number in range(30)]


@pytest.mark.slow
def test_of_several_processes_that_want_one_session_one_has_it_at_a_time(path: Path) -> None:
    stored: list[str] = []
    for number in range(3):
        with child(path) as one, child(path) as two, child(path) as three:
            said = [(process, process.hears()) for process in (one, two, three)]
            winners = [process for process, what in said if "opened" in what]
            assert len(winners) == 1
            [winner] = winners
            assert [what["opened"] for _, what in said if "opened" in what] == [stored]
            losers = [what["holder"] for _, what in said if "holder" in what]
            assert set(losers) <= {winner.process.pid, None}  # None: not signed yet
            assert winner.append(str(number)) == {"error": None}
            stored.append(str(number))
            winner.kill()

    assert texts(path) == stored


DISK = """
import resource, sys, trio
import trio_runner as tr
from trio_runner.records import SessionOpened

async def main(path):
    session = await tr.SqliteJournal(path).open("s")
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    acknowledged = []
    failed = None
    for number in range(200):
        ticket = session.append([SessionOpened(f"{number} " + "x" * 10_000)])
        await ticket.wait()
        if ticket.error is not None:
            failed = ticket.error
            break
        acknowledged.append(number)
    assert isinstance(failed, tr.JournalStorageError), failed
    assert 5 < len(acknowledged) < 40, acknowledged
    stored = [int(record.agent.split()[0]) for record in tr.SqliteJournal(path).stored("s")]
    assert stored == acknowledged
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ticket = session.append([SessionOpened("room again")])
    await ticket.wait()
    assert ticket.error is None, ticket.error
    await session.aclose()
    print(len(acknowledged))

trio.run(main, sys.argv[1])
"""


def test_when_a_file_may_not_grow_nothing_acknowledged_is_lost(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DISK, str(path)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        cwd=ROOT,
    )

    found = texts(path)
    assert [text.split()[0] for text in found] == [
        *map(str, range(int(done.stdout))),
        "room",
    ]
