"""When a `SqliteJournal` tells what became of a commit: in the loop's thread, in one go.

The writer is made as quick as it can be: at chosen places the loop's thread stands still until
the writer has done all that it was given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import trio

import trio_runner as tr
import trio_runner._journal._connect as connect
import trio_runner._journal._file as file_
import trio_runner._journal._session as session_
import trio_runner._journal._threads as threads_
import trio_runner.records as r
from trio_runner._core.errors import JournalError
from trio_runner._journal._lease import FileLock
from trio_runner._journal._parts import Append
from trio_runner._journal._writer import Command, Committing
from trio_runner._shell.commits import Commits

#: Where the loop's thread stands still.
Place: TypeAlias = Literal["submitted", "encoding", "looking"]


class Quick:
    """Counts what the writer was given and has done; `wait` until it has done it all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self._given = self._done = 0
        submit, process = threads_.WriterThread.submit, threads_.WriterThread.process

        def given(writer: threads_.WriterThread, command: Command) -> None:
            with self._changed:
                self._given += 1
            submit(writer, command)

        def done(writer: threads_.WriterThread, commands: Sequence[Command]) -> bool:
            is_over = process(writer, commands)
            with self._changed:
                self._done += len(commands)
                self._changed.notify_all()
            return is_over

        monkeypatch.setattr(threads_.WriterThread, "submit", given)
        monkeypatch.setattr(threads_.WriterThread, "process", done)

    def wait(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._done == self._given, 30)


def failing(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> list[int]:
    """Let the transactions with these numbers fail; gives the list of those so far."""
    transaction = file_.SessionFile._transaction
    seen: list[int] = []

    def counted(file: file_.SessionFile, appends: Sequence[Append]) -> list[JournalError | None]:
        seen.append(len(seen))
        if seen[-1] in numbers:
            raise tr.JournalStorageError("a passing error")
        return transaction(file, appends)

    monkeypatch.setattr(file_.SessionFile, "_transaction", counted)
    return seen


def record(number: int) -> r.Record:
    return r.TurnEnded(number, tr.EndReason.ANSWERED)


def records(*numbers: int) -> tuple[r.Record, ...]:
    return tuple(map(record, numbers))


@pytest.fixture
def journal(tmp_path: Path) -> tr.SqliteJournal:
    return tr.SqliteJournal(tmp_path / "journal.db")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Quick:
    return Quick(monkeypatch)


async def test_nothing_that_the_loop_sees_changes_before_its_next_checkpoint(
    journal: tr.SqliteJournal, quick: Quick
) -> None:
    session = await journal.open("s")
    ticket = session.append(records(1))
    quick.wait()

    assert journal.stored("s") == records(1)
    assert not ticket.done
    assert tuple(session.records) == ()
    await ticket.wait()
    assert ticket.done
    assert tuple(session.records) == records(1)
    await session.aclose()


async def test_what_is_appended_before_a_failure_is_told_fails_with_it(
    journal: tr.SqliteJournal, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await journal.open("s")
    tries = failing(monkeypatch, 0)
    failed = session.append(records(1))
    quick.wait()
    assert not failed.done
    later = [session.append(records(2)), session.append(()), session.append(records(3))]
    quick.wait()
    assert tries == [0]  # nothing behind it is written, not even nothing
    for ticket in (failed, *later):
        await ticket.wait()

    assert isinstance(failed.error, tr.JournalStorageError)
    assert [ticket.error for ticket in later] == [failed.error] * 3
    assert journal.stored("s") == ()
    again = session.append(records(1, 2, 3))
    await again.wait()
    assert again.error is None
    assert again.numbers == range(3)
    assert journal.stored("s") == tuple(session.records) == records(1, 2, 3)
    await session.aclose()


async def test_of_commits_that_failed_one_after_the_other_each_knows_its_failure(
    journal: tr.SqliteJournal, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await journal.open("s")
    failing(monkeypatch, 0, 1)
    for _ in range(2):
        ticket = session.append(records(1))
        quick.wait()
        await ticket.wait()
        assert ticket.error is not None
    ticket = session.append(records(1))
    await ticket.wait()

    assert ticket.error is None
    assert journal.stored("s") == records(1)
    await session.aclose()


@pytest.mark.parametrize("fails", range(7))
@pytest.mark.parametrize("place", ["submitted", "encoding", "looking"])
async def test_wherever_the_writer_is_quicker_than_the_loop_the_order_is_that_of_the_facts(
    journal: tr.SqliteJournal,
    quick: Quick,
    monkeypatch: pytest.MonkeyPatch,
    place: Place,
    fails: int,
) -> None:
    session = await journal.open("s")
    failing(monkeypatch, fails, fails + 1)
    stand_still(monkeypatch, quick.wait, session, place)
    commits = Commits(session)
    for number in range(8):
        commits.add(record(number))
        if number % 3 == 2:  # some come together, some after a wait
            await commits.settle(30)
    with trio.fail_after(30):
        while not commits.settled or commits._missed:
            commits.send_missed()
            await commits.settle(30)
    await session.aclose()

    assert journal.stored("s") == records(*range(8))


def stand_still(
    monkeypatch: pytest.MonkeyPatch, wait: Callable[[], None], session: Any, place: Place
) -> None:
    """Let the loop's thread wait for the writer at each such place."""
    if place == "submitted":
        append = session.append

        def appended(batch: Sequence[r.Record]) -> object:
            ticket = append(batch)
            wait()
            return ticket

        session.append = appended
    elif place == "encoding":
        encode = session._encode

        def encoded(one: r.Record) -> bytes:
            wait()
            return encode(one)

        session._encode = encoded
    else:
        done: Any = session_.SqliteTicket.done

        def looked(ticket: session_.SqliteTicket) -> bool:
            before = done.fget(ticket)
            wait()
            return before

        monkeypatch.setattr(session_.SqliteTicket, "done", property(looked))


def test_what_a_run_never_saw_is_told_when_it_is_over(
    journal: tr.SqliteJournal, quick: Quick
) -> None:
    left: list[session_.SqliteTicket] = []
    lock = FileLock(Path(f"{journal.path}.lock"))

    async def main() -> None:
        session = await journal.open("s")
        assert lock.try_lock()
        left.append(session.append(records(1)))

    trio.run(main)
    assert not left[0].done
    lock.drop()
    quick.wait()

    assert left[0].done
    assert tuple(left[0].session.records) == records(1)
    trio.run(left[0].session.aclose)


async def test_aclose_leaves_no_ticket_open_however_quick_the_writer_is(
    journal: tr.SqliteJournal, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await journal.open("s")
    told: list[Committing] = []

    def lazy(_: threads_.WriterThread, sessions: Collection[Committing]) -> None:
        told.extend(sessions)  # the run is slow to take it

    monkeypatch.setattr(threads_.WriterThread, "settle", lazy)
    ticket = session.append(records(1))
    quick.wait()
    await session.aclose()

    assert told == [session]
    assert ticket.done


# --- failures of many at once -----------------------------------------------------


@pytest.mark.parametrize("whose", ["ours", "sqlite's"])
async def test_when_no_transaction_can_begin_that_is_one_failure_of_all(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    sessions = [await journal.open(f"s{number}") for number in range(20)]
    monkeypatch.setattr(connect, "BUSY_TIMEOUT", 0.0)
    file: Any = getattr(sessions[0]._writer, "_file")  # noqa: B009
    file._connection.execute("PRAGMA busy_timeout = 0")
    if whose == "ours":
        lock = FileLock(Path(f"{journal.path}.lock"))
        assert lock.try_lock()
        free = lock.drop
    else:
        other = connect.connect(journal.path)
        other.execute("BEGIN IMMEDIATE")
        free = other.close
    tries = failing(monkeypatch)
    outcomes = list(file.commit([one.append for one in appends_of(sessions)]))
    assert tries == [0]
    [errors] = outcomes
    assert len(errors) == 20
    assert all(isinstance(error, tr.JournalStorageError) for error in errors)
    free()
    for session in sessions:
        await session.aclose()


def appends_of(sessions: Sequence[session_.SqliteSession]) -> Iterator[session_.SqliteTicket]:
    for session in sessions:
        append = Append(session.session_id, session._key, session._epoch, 0, [b"{}"])
        yield session_.SqliteTicket(session, (), append)


async def test_when_the_store_stops_while_each_is_tried_the_rest_is_not_tried(
    journal: tr.SqliteJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [await journal.open(f"s{number}") for number in range(6)]
    file: Any = getattr(sessions[0]._writer, "_file")  # noqa: B009
    tries = failing(monkeypatch, 0, 2)
    enter = file_.Writing.__enter__

    def stops(writing: file_.Writing) -> None:
        if tries[-1] == 3:
            raise tr.JournalStorageError("busy")
        enter(writing)

    monkeypatch.setattr(file_.Writing, "__enter__", stops)
    outcomes = list(file.commit([one.append for one in appends_of(sessions)]))

    texts = [[error and str(error) for error in group] for group in outcomes]
    assert texts == [[None], ["a passing error"], ["busy"] * 4]
    assert tries == [0, 1, 2, 3]
    monkeypatch.undo()
    for session in sessions:
        await session.aclose()
