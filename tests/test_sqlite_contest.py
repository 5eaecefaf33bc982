"""Four processes that want one session: one writer at a time, whoever is killed or frozen.

``--full-sweeps`` kills more often.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import trio_runner as tr
import trio_runner.records as r

ROOT = Path(__file__).parent.parent

#: Tries to get the session until it has it; then appends without end, and says what is durable.
CONTENDER = """
import json, os, sys, trio
import trio_runner as tr
from trio_runner.records import SessionOpened

def say(**what):
    os.write(1, (json.dumps(what) + "\\n").encode())

async def main(path):
    journal = tr.SqliteJournal(path)
    refused = 0
    while True:
        try:
            session = await journal.open("s")
            break
        except tr.SessionInUseError:  # anything else ends the process, and the test
            refused += 1
            if refused == 1:
                say(refused=True)
            await trio.sleep(0.005)
    say(opened=len(session.records), refused=refused)
    number = len(session.records)
    while True:
        tickets = []
        for _ in range(3):
            tickets.append(session.append([SessionOpened(f"{os.getpid()} {number}")]))
            number += 1
        for ticket in tickets:
            await ticket.wait()
        if tickets[-1].error is not None:
            say(lost=type(tickets[-1].error).__name__, refused_at=tickets[0].numbers[0])
            return
        say(durable=number)

trio.run(main, sys.argv[1])
"""


class Contest:
    """Some contenders, and everything that they said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.selector = selectors.DefaultSelector()
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        #: How many records each said to be durable.
        self.durable: dict[int, int] = {}
        #: Who was last to say that it has the session.
        self.holder: int | None = None
        self._rest: dict[int, bytes] = {}

    def start(self) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(self.path)], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert process.stdout is not None
        self.selector.register(process.stdout, selectors.EVENT_READ, process.pid)
        self.processes[process.pid] = process
        self._rest[process.pid] = b""
        return process.pid

    def hear(self, timeout: float) -> list[tuple[int, dict[str, Any]]]:
        """What was said by now, or within the time."""
        said: list[tuple[int, dict[str, Any]]] = []
        for key, _ in self.selector.select(timeout):
            said += self._read(key.data)
        return said

    def _read(self, pid: int) -> list[tuple[int, dict[str, Any]]]:
        process = self.processes[pid]
        assert process.stdout is not None
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            self.selector.unregister(process.stdout)
            return [(pid, {"ended": True})]
        *lines, self._rest[pid] = (self._rest[pid] + data).split(b"\n")
        said = [(pid, json.loads(line)) for line in lines]
        for _, what in said:
            if "opened" in what:
                self.holder = pid
                self.durable[pid] = what["opened"]
            self.durable[pid] = what.get("durable", self.durable.get(pid, 0))
        return said

    def until(self, word: str, pids: set[int]) -> int:
        """Wait until one of them says the word; who."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for pid, what in self.hear(1):
                if word in what and pid in pids:
                    return pid
                assert "ended" not in what or pid not in pids, "a contender failed"
        raise AssertionError(f"nobody of {pids} said {word!r} within a minute")

    def kill(self, pid: int) -> None:
        """End it and hear what it still had to say."""
        process = self.processes[pid]
        process.kill()
        process.wait()
        assert process.stdout is not None
        while process.stdout in {key.fileobj for key in self.selector.get_map().values()}:
            self._read(pid)
        process.stdout.close()
        del self.processes[pid]
        if self.holder == pid:
            self.holder = None

    def stored(self) -> list[tuple[int, int]]:
        """The writer and the number that each record bears."""
        found = tr.SqliteJournal(self.path).stored("s")
        texts = [one.agent.split() for one in found if isinstance(one, r.SessionOpened)]
        return [(int(pid), int(number)) for pid, number in texts]


@contextmanager
def contest(path: Path) -> Generator[Contest]:
    one = Contest(path)
    try:
        yield one
    finally:
        for pid in list(one.processes):
            one.kill(pid)
        one.selector.close()


def check(one: Contest) -> None:
    """Numbered without a gap, each writer in one piece, and nothing lost that was durable."""
    stored = one.stored()
    assert [number for _, number in stored] == list(range(len(stored)))
    writers = [pid for pid, _ in stored]
    pieces = [pid for pid, before in zip(writers, [None, *writers], strict=False) if pid != before]
    assert len(pieces) == len(set(pieces)), "two writers were at work at once"
    for pid, durable in one.durable.items():
        assert len(stored) >= durable, f"process {pid} lost what was durable"


@pytest.mark.slow
def test_of_four_processes_one_writes_at_a_time_whichever_is_killed(
    tmp_path: Path, full_sweeps: bool
) -> None:
    chooser = random.Random(3)
    taken: list[float] = []
    others = 0
    with contest(tmp_path / "journal.db") as one:
        pids = {one.start() for _ in range(4)}
        one.until("opened", pids)
        for number in range(100 if full_sweeps else 8):
            for _ in range(chooser.randrange(1, 30)):
                one.hear(0.05)
            # The holder, then one of those who wait.
            holder = one.holder
            assert holder is not None
            waiting = sorted(set(one.processes) - {holder})
            victim = chooser.choice(waiting) if number % 2 else holder
            killed = time.monotonic()
            one.kill(victim)
            if victim == holder:
                one.until("opened", set(one.processes))
                taken.append(time.monotonic() - killed)
            else:
                others += 1
                assert one.holder == holder
            one.start()
        check(one)
        length = len(one.stored())

    assert len(taken) == others
    print(
        f"{len(taken)} holders and {others} others killed; somebody else had the session (of "
        f"{length} records in the end) after {statistics.median(taken) * 1e3:.0f} ms (median), "
        f"{max(taken) * 1e3:.0f} ms (at most)"
    )


@pytest.mark.slow
def test_a_writer_that_was_frozen_at_any_moment_writes_nothing_when_it_wakes(
    tmp_path: Path, full_sweeps: bool
) -> None:
    """Its lock is taken from it, as an administrator or a network file system does."""
    chooser = random.Random(5)
    frozen = 0
    for number in range(30 if full_sweeps else 4):
        path = tmp_path / f"{number}.db"
        with contest(path) as one:
            first = one.start()
            one.until("opened", {first})
            for _ in range(chooser.randrange(1, 12)):
                one.hear(0.05)
            os.kill(first, signal.SIGSTOP)
            before = one.stored()
            for lock in path.parent.glob(f"{path.name}.*.lock"):
                lock.unlink()
            second = one.start()
            try:
                # One that was frozen in a transaction holds the file, and keeps others out.
                if is_locked(path):
                    continue
                one.until("durable", {second})
                frozen += 1
                at = one.stored()
                assert at[: len(before)] == before
                os.kill(first, signal.SIGCONT)
                one.until("lost", {first})
                one.until("durable", {second})
                stored = one.stored()
                assert stored[: len(at)] == at
                assert {pid for pid, _ in stored[len(before) :]} == {second}
            finally:
                os.kill(first, signal.SIGCONT)

    assert frozen
    print(f"{frozen} frozen writers woke, and wrote nothing")


def is_locked(path: Path) -> bool:
    """Whether somebody who is frozen has the lock of a transaction."""
    said = Path("/proc/locks").read_text("ascii") if Path("/proc/locks").exists() else ""
    return f":{Path(f'{path}.lock').stat().st_ino} " in said
