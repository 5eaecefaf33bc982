"""A disk that hangs, with the real writer thread: leaving keeps `grace`, nothing is written twice.

Time is trio's mock clock. It stands still while the writer works, and jumps once the writer
is stuck, so that how long leaving takes is exact.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner._journal._connect as connect
import trio_runner._journal._file as file_
import trio_runner.records as r
from trio_runner._core.errors import JournalError
from trio_runner._core.fold import fold
from trio_runner._journal._parts import Append, SessionFileLike
from trio_runner._journal._session import SqliteSession, SqliteTicket
from trio_runner._journal._threads import WriterThreads
from trio_runner.testing import ScriptedModel, call
from trio_runner.testing._determinism import threads_inline
from trio_runner.testing.contract import check_contract
from trio_runner.testing.reference import DRIVES, SESSION, Drive, ReferenceTurn

ROOT = Path(__file__).parent.parent
GRACE = 5.0

#: Where a commit hangs: nothing is on the disk yet; or all is, and nobody knows.
Place: TypeAlias = Literal["before", "after"]


class Disk:
    """Stands in for the file module: one transaction of its file hangs until `release`."""

    def __init__(self, transaction: int, place: Place) -> None:
        self.transaction = transaction
        self.place: Place = place
        #: Transactions so far; set by the writer's thread.
        self.count = 0
        #: Told, in the writer's thread, that it hangs.
        self.on_stuck: Callable[[], None] = lambda: None
        self._released = threading.Event()

    def SessionFile(self, path: str) -> SessionFileLike:
        return _File(path, self)

    def read_stored(self, path: str, session_id: str) -> tuple[r.Record, ...]:
        return file_.read_stored(path, session_id)

    def read_session_ids(self, path: str) -> tuple[str, ...]:
        return file_.read_session_ids(path)

    def hang(self) -> None:
        self.on_stuck()
        assert self._released.wait(60), "nobody released the disk"

    def release(self) -> None:
        self._released.set()


class _File(file_.SessionFile):
    def __init__(self, path: str, disk: Disk) -> None:
        super().__init__(path, durable=False)
        self._disk = disk

    def commit(self, appends: Sequence[Append]) -> Iterator[Sequence[JournalError | None]]:
        number = self._disk.count
        self._disk.count += 1
        if (number, self._disk.place) == (self._disk.transaction, "before"):
            self._disk.hang()
        outcomes = list(super().commit(appends))
        if (number, self._disk.place) == (self._disk.transaction, "after"):
            self._disk.hang()
        yield from outcomes


class Noting(tr.SqliteJournal):
    """Notes what was appended, and the tickets."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path, _engine=WriterThreads(lambda: disk))
        self.appended: list[r.Record] = []
        self.tickets: list[SqliteTicket] = []

    async def open(self, session_id: str) -> SqliteSession:
        session = await super().open(session_id)
        append = session.append

        def noted(records: Sequence[r.Record]) -> SqliteTicket:
            self.appended += records
            self.tickets.append(append(records))
            return self.tickets[-1]

        setattr(session, "append", noted)  # noqa: B010  of this object only
        return session


def left_by_a_cancel(turn: ReferenceTurn, disk: Disk) -> float | None:
    """Cancel a turn when the disk hangs; how long leaving took, or None: it never hung."""
    taken: list[float] = []
    clock = trio.testing.MockClock()

    async def main() -> None:
        began = trio.current_time()
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:

            def stuck() -> None:
                clock.autojump_threshold = 0.01  # from here on only the clock can go on
                scope.cancel()

            disk.on_stuck = lambda: token.run_sync_soon(stuck)
            await turn.run()
        if scope.cancelled_caught:
            taken.append(trio.current_time() - began)

    # The clock must not jump while a tool works in a thread.
    with threads_inline():
        trio.run(main, clock=clock)
    return taken[0] if taken else None


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("drive", DRIVES)
def test_wherever_the_disk_hangs_leaving_keeps_grace_and_nothing_is_written_twice(
    drive: Drive, place: Place, tmp_path: Path
) -> None:
    hung = 0
    for transaction in range(100):
        disk = Disk(transaction, place)
        journal = Noting(tmp_path / f"{transaction}.db", disk)
        turn = ReferenceTurn(drive, journal=lambda: journal, delay="hang", grace=GRACE)  # noqa: B023
        turn()
        taken = left_by_a_cancel(turn, disk)
        if taken is None:  # the turn has no more commits
            disk.release()
            break
        hung += 1
        assert taken == pytest.approx(GRACE)
        assert journal.statistics().open_tickets >= 1
        assert not journal.tickets[-1].done  # unknown
        assert list(check_contract(turn.evidence(None))) == []
        on_disk = journal.stored(SESSION)
        assert tuple(journal.appended[: len(on_disk)]) == on_disk

        disk.release()
        trio.run(reopened, journal)
        assert list(journal.stored(SESSION)) == journal.appended  # late, once and in order
        assert [ticket.error for ticket in journal.tickets] == [None] * len(journal.tickets)

    # Two at least for each of two steps with tools, and more.
    assert hung > (3 if drive == "break" else 6)
    print(drive, place, hung, "transactions")


async def reopened(journal: Noting) -> None:
    """Who opens the session next waits for what is still open."""
    session = await tr.SqliteJournal(journal.path, _engine=journal._engine).open(SESSION)
    assert list(session.records) == journal.appended
    await session.aclose()


# --- two agents -----------------------------------------------------------------


def small_agent(journal: tr.SqliteJournal, session: str, **settings: Any) -> tr.ToolAgent:
    def count(number: int) -> str:
        """Count."""
        return f"counted to {number}"

    model = ScriptedModel([[call("count", number=2), call("count", number=3)], "Done."])
    return tr.ToolAgent(
        session, model=model, tools=[count], journal=journal, session=session, **settings
    )


@pytest.mark.slow
def test_of_two_agents_on_a_disk_that_hangs_the_one_that_stays_loses_nothing(
    tmp_path: Path,
) -> None:
    """One is cancelled and gone while a commit hangs; the other waits, and goes on."""
    hung = 0
    for transaction in range(100):
        disk = Disk(transaction, "before")
        journal = tr.SqliteJournal(
            tmp_path / f"{transaction}.db",
            _engine=WriterThreads(lambda: disk),  # noqa: B023  used within this round
        )
        goes = small_agent(journal, "goes", grace=0.02)
        stays = small_agent(journal, "stays")
        trio.run(one_goes, journal, goes, stays, disk)
        disk.release()
        hung += disk.count > transaction
        assert stays.last_turn is not None
        assert stays.last_turn.end_reason is tr.EndReason.ANSWERED
        assert fold(journal.stored("stays")).messages == stays.history
        # What the one that went had appended is there as well.
        assert fold(journal.stored("goes")).messages == goes.history
        if disk.count <= transaction:
            break

    assert hung > 3
    print(hung, "transactions hung")


async def one_goes(
    journal: tr.SqliteJournal, goes: tr.ToolAgent, stays: tr.ToolAgent, disk: Disk
) -> None:
    token = trio.lowlevel.current_trio_token()
    scope = trio.CancelScope()
    disk.on_stuck = lambda: token.run_sync_soon(scope.cancel)

    async def turn(agent: tr.ToolAgent) -> None:
        async with agent:
            await agent.generate("go")

    async def gone() -> None:
        with scope:
            await turn(goes)
        disk.release()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn, stays)
            nursery.start_soon(gone)
        # What is still open is waited for by whoever opens the session next.
        session = await journal.open("goes")
        await session.aclose()


# --- a process that was stopped while it was writing ------------------------------

#: Takes the lock that every transaction holds, says so, and keeps it.
WRITING = """
import sys
from pathlib import Path
from trio_runner._journal._lease import FileLock

lock = FileLock(Path(sys.argv[1] + ".lock"))
assert lock.lock(30)
print("writing", flush=True)
sys.stdin.read()
"""


def stopped_while_writing(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    os.kill(process.pid, signal.SIGSTOP)
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_turn_is_left_while_a_stopped_process_holds_the_disk_and_lands_when_that_is_gone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    journal = tr.SqliteJournal(path)
    agent = small_agent(journal, "s", grace=0.05)
    processes: list[subprocess.Popen[str]] = []

    async def main() -> None:
        async with agent:
            processes.append(stopped_while_writing(path))
            with trio.move_on_after(0.05) as scope:
                await agent.generate("go")
            assert scope.cancelled_caught
        assert journal.statistics().open_tickets > 0
        assert len(journal.stored("s")) == 1  # that it was opened
        end(processes[0])
        with trio.fail_after(60):
            session = await journal.open("s")
        assert fold(session.records).messages == agent.history
        await session.aclose()

    try:
        trio.run(main)
    finally:
        end(processes[0])
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.INTERRUPTED
    assert journal.statistics().open_tickets == 0


def test_a_file_that_a_stopped_process_holds_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    journal = tr.SqliteJournal(path)
    monkeypatch.setattr(connect, "BUSY_TIMEOUT", 0.05)
    process = stopped_while_writing(path)

    async def main() -> None:
        with pytest.raises(tr.JournalStorageError, match="one that hangs or was stopped"):
            await journal.open("s")
        end(process)
        session = await journal.open("s")
        await session.aclose()

    try:
        trio.run(main)
    finally:
        end(process)
