"""`SqliteJournal` in one process: durable, in order, free again whatever happens."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner._journal._connect as connect
import trio_runner._journal._file as file_
import trio_runner._journal._threads as threads_
import trio_runner._journal._writer as writer_
import trio_runner._journal.sqlite as sqlite
import trio_runner.records as r
from trio_runner._journal._lease import FileLock
from trio_runner._journal._parts import Append, SessionFileLike
from trio_runner._journal._session import SqliteSession, SqliteTicket
from trio_runner.testing import check_journal, sweep
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing.reference import ReferenceTurn


def record(number: int) -> r.Record:
    return r.TurnEnded(number, tr.EndReason.ANSWERED)


def records(*numbers: int) -> tuple[r.Record, ...]:
    return tuple(map(record, numbers))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> tr.SqliteJournal:
    return tr.SqliteJournal(path)


@pytest.fixture
def stuck(path: Path) -> FileLock:
    """A disk that hangs: somebody has the write lock, until `unlock`."""
    return FileLock(Path(f"{path}.lock"))


async def settled(*tickets: SqliteTicket) -> None:
    with trio.fail_after(30):
        for ticket in tickets:
            await ticket.wait()


def writer_threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("trio_runner journal")]


# --- what is kept ---------------------------------------------------------------


async def test_what_is_done_is_in_the_file(journal: tr.SqliteJournal) -> None:
    session = await journal.open("s")
    ticket = session.append(records(1, 2))
    await settled(ticket)

    assert ticket.done
    assert ticket.error is None
    assert ticket.numbers == range(2)
    assert tuple(session.records) == records(1, 2)
    assert journal.stored("s") == records(1, 2)
    await session.aclose()


async def test_a_session_opens_with_what_was_stored(journal: tr.SqliteJournal) -> None:
    session = await journal.open("s")
    session.append(records(1))
    await session.aclose()  # waits for the commit
    session = await tr.SqliteJournal(journal.path).open("s")
    await settled(session.append(records(2)))

    assert tuple(session.records) == records(1, 2)
    await session.aclose()


async def test_sessions_of_one_file_do_not_mix(journal: tr.SqliteJournal) -> None:
    ids = ["a", "A", "a.b", "a_b", "a-b", "x" * 128, "_me@host:7+8=15"]
    for number, session_id in enumerate(ids):
        session = await journal.open(session_id)
        session.append(records(number))
        await session.aclose()

    assert journal.sessions() == tuple(ids)
    assert [journal.stored(session_id) for session_id in ids] == [
        records(number) for number in range(len(ids))
    ]


async def test_a_session_that_was_only_opened_is_not_listed(journal: tr.SqliteJournal) -> None:
    await (await journal.open("s")).aclose()

    assert journal.sessions() == ()
    assert journal.stored("s") == ()


async def test_an_append_of_nothing_is_a_commit(journal: tr.SqliteJournal) -> None:
    session = await journal.open("s")
    before, nothing, after = (session.append(records(*ns)) for ns in ([1], [], [2]))
    await settled(before, nothing, after)

    assert nothing.error is None
    assert tuple(session.records) == records(1, 2)
    await session.aclose()


async def test_commits_that_wait_together_are_one_transaction(
    journal: tr.SqliteJournal, path: Path, stuck: FileLock
) -> None:
    sessions = [await journal.open(f"s{number}") for number in range(3)]
    assert stuck.try_lock()
    first = sessions[0].append(records(0))  # the writer takes this one, and waits
    tickets = [session.append(records(n)) for n in range(1, 9) for session in sessions]
    stuck.unlock()
    await settled(first, *tickets)

    assert [ticket.error for ticket in tickets] == [None] * 24
    assert sessions[0]._writer.transactions <= 2
    assert journal.stored("s2") == records(*range(1, 9))
    for session in sessions:
        await session.aclose()
    stuck.drop()


async def test_a_reader_sees_what_is_durable_while_a_writer_lives(
    journal: tr.SqliteJournal, stuck: FileLock
) -> None:
    session = await journal.open("s")
    await settled(session.append(records(1)))
    assert stuck.try_lock()
    ticket = session.append(records(2))

    assert not ticket.done
    assert tuple(session.records) == journal.stored("s") == records(1)
    stuck.unlock()
    await settled(ticket)
    assert journal.stored("s") == records(1, 2)
    await session.aclose()
    stuck.drop()


@pytest.mark.parametrize("statement", range(1, 5))
def test_a_reader_takes_a_file_that_is_being_made_for_what_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: int
) -> None:
    plain = connect.connect
    made: list[bool] = []
    read: list[str] = []

    def traced(where: str, *, uri: bool = False) -> sqlite3.Connection:
        connection = plain(where, uri=uri)
        if uri:
            connection.set_trace_callback(make_at)
        return connection

    def make_at(sql: str) -> None:
        read.append(sql)
        if len(read) == statement:
            try:
                file_.SessionFile(str(path)).close()
                made.append(True)
            except tr.JournalStorageError:  # the reader's moment is not over: the file waits
                made.append(False)

    monkeypatch.setattr(connect, "connect", traced)
    monkeypatch.setattr(connect, "BUSY_TIMEOUT", 0.0)
    path.touch()

    assert tr.SqliteJournal(path).stored("s") == ()
    assert made, f"expected {statement} statements of the reader, found {read}"


def test_nothing_is_made_by_reading_or_by_making_the_object(tmp_path: Path) -> None:
    journal = tr.SqliteJournal(tmp_path / "new.db")

    assert journal.stored("s") == ()
    assert journal.sessions() == ()
    assert list(tmp_path.iterdir()) == []


async def test_statistics_count_commits(journal: tr.SqliteJournal, stuck: FileLock) -> None:
    session = await journal.open("s")
    await settled(session.append(records(1)))
    assert stuck.try_lock()
    open_ticket = session.append(records(2))

    assert journal.statistics() == sqlite.SqliteJournalStatistics(2, 1, 0, 1)
    stuck.unlock()
    await settled(open_ticket)
    assert journal.statistics() == sqlite.SqliteJournalStatistics(2, 2, 0, 0)
    await session.aclose()
    stuck.drop()


# --- opening, closing, and who may ----------------------------------------------


async def test_a_second_opening_is_refused_until_the_first_is_closed(
    journal: tr.SqliteJournal,
) -> None:
    session = await journal.open("s")
    with pytest.raises(tr.SessionInUseError, match=r"'s' .* already open .* in this process"):
        await tr.SqliteJournal(journal.path).open("s")
    await settled(session.append(records(1)))
    await session.aclose()
    await (await journal.open("s")).aclose()


async def test_paths_that_mean_one_file_share_one_writer(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    one = await tr.SqliteJournal(tmp_path / "j.db").open("a")
    two = await tr.SqliteJournal(tmp_path / "link" / ".." / tmp_path.name / "j.db").open("b")

    assert one._writer is two._writer
    assert len(writer_threads()) == 1
    await one.aclose()
    await settled(two.append(records(1)))
    await two.aclose()


async def test_the_last_session_takes_thread_locks_and_wal_away(
    journal: tr.SqliteJournal, tmp_path: Path
) -> None:
    one = await journal.open("a")
    two = await journal.open("b")
    await one.aclose()
    assert len(writer_threads()) == 1
    await two.aclose()

    assert [entry.name for entry in tmp_path.iterdir()] == ["journal.db"]
    await trio.to_thread.run_sync(joined_writers)
    assert writer_threads() == []


def joined_writers() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("trio_runner journal"):
            thread.join(30)


async def test_append_after_aclose_is_refused(journal: tr.SqliteJournal) -> None:
    session = await journal.open("s")
    await session.aclose()

    with pytest.raises(tr.JournalError, match="closed; open it again"):
        session.append(records(1))
    await session.aclose()  # twice is fine


async def test_a_cancelled_aclose_leaves_the_session_free_and_keeps_what_was_appended(
    journal: tr.SqliteJournal, stuck: FileLock
) -> None:
    session = await journal.open("s")
    assert stuck.try_lock()
    session.append(records(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await session.aclose()
    assert scope.cancelled_caught
    with pytest.raises(tr.JournalError, match="closed"):
        session.append(records(2))

    async with trio.open_nursery() as nursery:
        opened: list[SqliteSession] = []

        async def reopen() -> None:
            opened.append(await journal.open("s"))

        nursery.start_soon(reopen)
        await trio.testing.wait_all_tasks_blocked()
        assert opened == []  # it waits for what is open
        stuck.unlock()
    assert tuple(opened[0].records) == records(1)
    await opened[0].aclose()
    stuck.drop()


async def test_a_cancelled_open_leaves_the_session_free(
    journal: tr.SqliteJournal, stuck: FileLock
) -> None:
    keeper = await journal.open("other")
    assert stuck.try_lock()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.open, "s")
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    stuck.unlock()
    session = await journal.open("s")  # behind the one that was given up
    await settled(session.append(records(1)))
    await session.aclose()
    await keeper.aclose()
    stuck.drop()


async def test_an_open_that_is_cancelled_when_it_is_done_already_leaves_the_session_free(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cancel comes in the step in which the outcome arrives.
    keeper = await journal.open("other")
    with trio.CancelScope() as scope:
        ring = type(keeper._writer).ring

        def ring_and_cancel(writer: Any, bells: Sequence[Any]) -> None:
            trio.from_thread.run_sync(scope.cancel, trio_token=token)
            ring(writer, bells)

        token = trio.lowlevel.current_trio_token()
        monkeypatch.setattr(type(keeper._writer), "ring", ring_and_cancel)
        await journal.open("s")
    assert scope.cancelled_caught
    monkeypatch.undo()
    await (await journal.open("s")).aclose()
    await keeper.aclose()


@pytest.mark.parametrize(
    "session_id",
    ["", "lone \ud800", "../up", "a/b", ".hidden", "-o", "two words", "é", "x" * 129, "a\n", "\0"],
)
async def test_an_id_that_is_no_safe_name_is_refused_and_nothing_is_made(
    journal: tr.SqliteJournal, path: Path, session_id: str
) -> None:
    with pytest.raises(tr.SessionIdError, match=r"session id is .*; expected 1 to 128"):
        await journal.open(session_id)
    assert issubclass(tr.SessionIdError, ValueError)
    assert list(path.parent.iterdir()) == []


def test_memory_is_not_a_path() -> None:
    with pytest.raises(ValueError, match="MemoryJournal"):
        tr.SqliteJournal(":memory:")


# --- when a commit fails --------------------------------------------------------


class Refusing:
    """Makes the transactions with these numbers fail, after their rows were written."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers
        self.count = 0

    def __call__(self, append: Append, now: float) -> list[Any]:
        self.count += 1
        rows = list(real_rows_of(append, now))
        return [*rows, ("not", "a", "row")] if self.count in self.numbers else rows


real_rows_of = file_.rows_of


def refusing(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    monkeypatch.setattr(file_, "rows_of", Refusing(*numbers))


async def test_a_failure_fails_all_that_is_open_and_nothing_before(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch, stuck: FileLock
) -> None:
    session = await journal.open("s")
    await settled(session.append(records(1)))
    monkeypatch.setattr(connect, "BUSY_TIMEOUT", 0.0)
    assert stuck.try_lock()
    tickets = [session.append(records(n)) for n in (2, 3, 4)]
    await settled(*tickets)

    assert all(isinstance(ticket.error, tr.JournalStorageError) for ticket in tickets)
    assert tuple(session.records) == journal.stored("s") == records(1)
    stuck.unlock()
    await session.aclose()
    stuck.drop()


def test_what_fails_fails_in_one_go() -> None:
    engine = InlineEngine()

    async def main() -> None:
        session = await tr.SqliteJournal(IN_MEMORY, _engine=engine).open("s")
        session.append(records(1))
        engine.delay = "hang"
        tickets = [session.append(records(n)) for n in (2, 3, 4)]
        error = tr.JournalStorageError("the disk is gone")
        tickets[0].note(error)
        assert [(ticket.done, ticket.error) for ticket in tickets] == [(False, None)] * 3
        session.settle()

        assert [(ticket.done, ticket.error) for ticket in tickets] == [(True, error)] * 3
        assert session.append(records(2)).numbers == range(1, 2)

    trio.run(main)
    engine.close()


async def test_what_failed_is_numbered_anew(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, 2)
    session = await journal.open("s")
    await settled(session.append(records(1)))
    failed = session.append(records(2))
    await settled(failed)
    assert failed.error is not None
    again = session.append(records(2, 3))
    await settled(again)

    assert again.error is None
    assert again.numbers == range(1, 3)
    assert journal.stored("s") == records(1, 2, 3)
    assert journal.statistics() == sqlite.SqliteJournalStatistics(3, 2, 1, 0)
    await session.aclose()


async def test_one_sessions_failure_is_not_anothers(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch, stuck: FileLock
) -> None:
    # What fails together is tried alone: the second try of "bad" fails too.
    def rows_of(append: Append, now: float) -> list[Any]:
        if append.session_id == "bad":
            raise sqlite3.OperationalError("database or disk is full")
        return list(real_rows_of(append, now))

    good, bad = await journal.open("good"), await journal.open("bad")
    monkeypatch.setattr(file_, "rows_of", rows_of)
    assert stuck.try_lock()
    first = good.append(records(1))
    lost = [bad.append(records(2)), bad.append(records(3))]
    kept = good.append(records(4))
    stuck.unlock()
    await settled(first, kept, *lost)

    assert [ticket.error for ticket in (first, kept)] == [None, None]
    assert all(isinstance(ticket.error, tr.JournalStorageError) for ticket in lost)
    assert journal.stored("good") == records(1, 4)
    assert journal.stored("bad") == ()
    for session in (good, bad):
        await session.aclose()
    stuck.drop()


async def test_an_error_of_ours_in_the_writer_is_told_and_hangs_nobody(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise ZeroDivisionError("ours")

    session = await journal.open("s")
    monkeypatch.setattr(file_.SessionFile, "commit", broken)
    ticket = session.append(records(1))
    await settled(ticket)
    assert "please report" in str(ticket.error)
    monkeypatch.setattr(file_.SessionFile, "open_session", broken)
    with pytest.raises(tr.JournalError, match="ZeroDivisionError"):
        await journal.open("t")
    monkeypatch.undo()
    await settled(session.append(records(1)))
    await session.aclose()


async def test_a_full_disk_fails_the_commit_and_later_ones_work(path: Path) -> None:
    # SQLite's own limit on pages gives the error that a full disk gives.
    journal = tr.SqliteJournal(path)
    session = await journal.open("s")
    await settled(session.append(records(1)))
    writer: Any = session._writer
    connection: sqlite3.Connection = writer._file._connection
    [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    large = session.append([r.SessionOpened("x" * 100_000)])
    await settled(large)
    assert isinstance(large.error, tr.JournalStorageError)
    assert "the disk is full: make room" in str(large.error)
    assert journal.stored("s") == records(1)
    connection.execute("PRAGMA max_page_count = 1000000")
    await settled(session.append([r.SessionOpened("x" * 100_000)]))

    assert len(journal.stored("s")) == 2
    await session.aclose()


# --- trio runs, threads, forks ----------------------------------------------------


def test_one_journal_serves_several_trio_runs_one_after_the_other(path: Path) -> None:
    journal = tr.SqliteJournal(path)

    async def turn(number: int) -> None:
        session = await journal.open("s")
        assert tuple(session.records) == records(*range(number))
        await settled(session.append(records(number)))
        await session.aclose()

    for number in range(3):
        trio.run(turn, number)


def test_a_run_that_ended_without_closing_leaves_the_session_to_the_next(
    path: Path, stuck: FileLock, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tr.SqliteJournal(path)
    left: list[SqliteSession] = []

    async def leave() -> None:
        left.append(await journal.open("s"))
        assert stuck.try_lock()
        left[0].append(records(1))  # done when this run is over

    async def go_on() -> None:
        stuck.unlock()
        session = await journal.open("s")
        assert tuple(session.records) == records(1)
        with pytest.raises(tr.JournalError, match="closed"):
            left[0].append(records(2))
        await settled(session.append(records(2)))
        await session.aclose()
        await trio.to_thread.run_sync(joined_writers)

    async def close_late() -> None:
        with trio.fail_after(30):  # no writer is there to answer
            await left[0].aclose()

    trio.run(leave)
    with caplog.at_level(logging.WARNING, "trio_runner"):
        trio.run(go_on)
    trio.run(close_late)
    assert "never closed" in caplog.text
    assert journal.stored("s") == records(1, 2)
    joined_writers()
    assert writer_threads() == []
    stuck.drop()


def test_two_runs_at_once_share_the_writer_and_wake_their_own_tasks(path: Path) -> None:
    async def turn(session_id: str) -> None:
        session = await tr.SqliteJournal(path).open(session_id)
        for number in range(20):
            await settled(session.append(records(number)))
        await session.aclose()

    threads = [threading.Thread(target=trio.run, args=(turn, name)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    journal = tr.SqliteJournal(path)
    assert journal.stored("a") == journal.stored("b") == records(*range(20))


async def test_a_wait_may_be_cancelled_and_called_again(
    journal: tr.SqliteJournal, stuck: FileLock
) -> None:
    session = await journal.open("s")
    assert stuck.try_lock()
    ticket = session.append(records(1))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ticket.wait)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert not ticket.done
    assert ticket._bells == []
    stuck.unlock()
    await settled(ticket)
    assert ticket.error is None
    await session.aclose()
    stuck.drop()


async def test_waiting_for_what_is_done_is_a_checkpoint(journal: tr.SqliteJournal) -> None:
    session = await journal.open("s")
    ticket = session.append(records(1))
    await settled(ticket)
    with trio.testing.assert_checkpoints():
        await ticket.wait()
    with trio.testing.assert_no_checkpoints():
        session.append(records(2))
    with trio.testing.assert_checkpoints():
        await session.aclose()


def test_a_forked_process_is_told_what_it_must_not_use_and_may_use_the_rest(path: Path) -> None:
    program = f"""
import os, sys, trio
import trio_runner as tr
from trio_runner.records import SessionOpened

async def child(session):
    try:
        session.append([SessionOpened("child")])
    except tr.JournalError as error:
        assert "fork" in str(error), error
    else:
        os._exit(2)
    await session.aclose()
    journal = tr.SqliteJournal({str(path)!r})
    for read in (journal.sessions, journal.summaries, journal.verify, lambda: journal.stored("s")):
        try:
            read()
        except tr.JournalStorageError as error:
            assert "was open when this process was forked" in str(error), error
        else:
            os._exit(3)
    try:
        await journal.open("childs")
    except tr.JournalStorageError as error:
        assert "multiprocessing with 'spawn'" in str(error), error
    else:
        os._exit(4)
    other = await tr.SqliteJournal({str(path.with_name("other.db"))!r}).open("childs")
    await other.append([SessionOpened("child")]).wait()
    await other.aclose()

async def main():
    return await tr.SqliteJournal({str(path)!r}).open("s")

session = trio.run(main)
pid = os.fork()
if pid == 0:
    trio.run(child, session)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
ticket = session.append([SessionOpened("parent")])
while not ticket.done:
    pass
assert ticket.error is None, ticket.error
trio.run(session.aclose)

async def open_and_close():  # nothing is open at this fork
    await (await tr.SqliteJournal({str(path)!r}).open("s")).aclose()

pid = os.fork()
if pid == 0:
    trio.run(open_and_close)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False)

    assert done.returncode == 0
    journal = tr.SqliteJournal(path)
    assert journal.stored("s") == (r.SessionOpened("parent"),)
    assert tr.SqliteJournal(path.with_name("other.db")).stored("childs") == (
        r.SessionOpened("child"),
    )


async def test_signals_go_to_the_main_thread(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[str] = []
    open_session = file_.SessionFile.open_session

    def look(self: file_.SessionFile, session_id: str) -> object:
        status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text("ascii")
        masks.extend(line for line in status.splitlines() if line.startswith("SigBlk"))
        return open_session(self, session_id)

    if not Path("/proc/self/task").exists():
        pytest.skip("reads the mask from /proc")
    monkeypatch.setattr(file_.SessionFile, "open_session", look)
    await (await journal.open("s")).aclose()

    [mask] = masks
    sigint, sigterm, sigsegv = (1 << (number - 1) for number in (2, 15, 11))
    blocked = int(mask.split()[1], 16)
    assert blocked & sigint
    assert blocked & sigterm
    assert not blocked & sigsegv  # a fault of the thread itself must show


async def test_a_release_that_comes_too_late_does_not_keep_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threads_.WriterThread) -> None:
        """Its work is done by hand below."""

    monkeypatch.setattr(threads_.WriterThread, "start", start)
    engine = threads_.WriterThreads(sqlite._load)
    writer = engine.acquire(str(path))
    journal = tr.SqliteJournal(path)
    one, other = (SqliteSession(name, writer, journal._encode, journal._counts) for name in "so")

    assert not writer.process([writer_.Opening(writer, one)])
    assert writer.process([writer_.Release(writer, one), writer_.Release(writer, other)])


def test_no_thread_can_be_started_is_a_storage_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        journal = tr.SqliteJournal(path)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(tr.JournalStorageError, match="no thread"):
                await journal.open("s")
        await (await journal.open("s")).aclose()

    trio.run(main)


# --- the library's own kits -------------------------------------------------------


def inline(delay: float) -> Callable[[], tr.SqliteJournal]:
    return lambda: tr.SqliteJournal(IN_MEMORY, _engine=InlineEngine(delay))


class FailingFile(file_.SessionFile):
    """The second append is refused, in company and alone."""

    def __init__(self, path: str) -> None:
        super().__init__(path, durable=False)
        self.seen: list[Append] = []

    def _may_write(self, append: Append) -> bool:
        if append not in self.seen:
            self.seen.append(append)
        if [append] == self.seen[1:2]:
            raise sqlite3.OperationalError("refused, as the test wants it")
        return super()._may_write(append)


def failing_file(path: str) -> SessionFileLike:
    return FailingFile(path)


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_inline_it_keeps_every_promise_of_a_journal(delay: float) -> None:
    report = check_journal(
        inline(delay),
        make_failing=lambda: tr.SqliteJournal(
            IN_MEMORY, _engine=InlineEngine(delay, open_file=failing_file)
        ),
        seeds=[0],
    )

    report.raise_if_failed()
    assert report.status_of("what_failed_may_be_appended_anew") == "ok"
    assert report.status_of("nothing_acknowledged_is_lost") == "ok"


@pytest.mark.slow
def test_with_its_thread_it_keeps_every_promise_of_a_journal(tmp_path: Path) -> None:
    count = iter(range(10_000))
    report = check_journal(
        lambda: tr.SqliteJournal(tmp_path / f"{next(count)}.db"),
        reopen=lambda journal: tr.SqliteJournal(getattr(journal, "path")),  # noqa: B009
        real_time=True,
    )

    report.raise_if_failed()
    assert report.status_of("a_restart_gives_the_same_records") == "ok"


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_every_fault_at_every_step_of_a_turn_keeps_the_contract(delay: float) -> None:
    report = sweep(ReferenceTurn(journal=inline(delay)), seeds=[0])

    report.raise_if_failed()
    assert report.positions > 100
    if delay:
        assert report.positions > 300  # in the waits for the commits too


def test_what_a_run_left_undone_in_the_inline_engine_is_never_done() -> None:
    engine = InlineEngine("hang")

    async def main() -> None:
        engine.delay = 0.0
        session = await tr.SqliteJournal(IN_MEMORY, _engine=engine).open("s")
        session.append(records(1))
        engine.delay = "hang"
        ticket = session.append(records(2))
        with trio.move_on_after(1000) as scope:
            await ticket.wait()
        assert scope.cancelled_caught
        assert tuple(session.records) == records(1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert tr.SqliteJournal(IN_MEMORY, _engine=engine).stored("s") == records(1)
    engine.close()
