"""Journals that a kill sweep is tried on: one that is right, and each way to be wrong.

A module of its own, since a fresh process imports it by its path.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

import trio_runner as tr
from trio_runner.records import Record, ToolFinished, ToolStarted, TurnEnded
from trio_runner.testing import KillSite, call

HEAD = struct.Struct("!I32s")  # length and checksum of one commit


class Ticket:
    """Done when its thread says so."""

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self.event = trio.Event()

    async def wait(self) -> None:
        await self.event.wait()

    def set_done(self) -> None:
        self.done = True
        self.event.set()


class FileSession:
    """One file: each commit a length, a checksum and a pickle; written by a thread."""

    def __init__(self, journal: FileJournal, path: Path) -> None:
        self.journal = journal
        self.path = path
        self.records: list[Record] = []
        size = self.read() if path.exists() else 0
        self.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self.file, size)
        os.lseek(self.file, size, os.SEEK_SET)
        self.token = trio.lowlevel.current_trio_token()
        self.queue: list[tuple[list[Record], Ticket]] = []
        self.news = threading.Condition()
        self.closing = False
        self.closed = trio.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def read(self) -> int:
        """Take over what is stored; returns where the good part ends."""
        data, at = self.path.read_bytes(), 0
        while at + HEAD.size <= len(data):
            length, digest = HEAD.unpack_from(data, at)
            body = data[at + HEAD.size : at + HEAD.size + length]
            if len(body) < length or hashlib.sha256(body).digest() != digest:
                break
            self.records += pickle.loads(body)
            at += HEAD.size + length
        return at

    def append(self, records: Sequence[Record]) -> Any:
        ticket = Ticket()
        with self.news:
            self.queue.append((list(records), ticket))
            self.news.notify()
        return ticket

    def work(self) -> None:
        while True:
            with self.news:
                self.news.wait_for(lambda: self.queue or self.closing)
                if not self.queue:
                    break
                records, ticket = self.take()
            self.commit(records)
            self.token.run_sync_soon(self.land, records, ticket)
        os.close(self.file)
        self.token.run_sync_soon(self.closed.set)

    def take(self) -> tuple[list[Record], Ticket]:
        return self.queue.pop(0)

    def commit(self, records: list[Record]) -> None:
        time.sleep(self.journal.delay)
        body = pickle.dumps(records)
        self.write(HEAD.pack(len(body), hashlib.sha256(body).digest()) + body)

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.file, data) :]
        os.fsync(self.file)

    def land(self, records: list[Record], ticket: Ticket) -> None:
        self.records += records
        ticket.set_done()

    async def aclose(self) -> None:
        with self.news:
            self.closing = True
            self.news.notify()
        await self.closed.wait()


class FileJournal:
    """Durable, and right."""

    session: type[FileSession] = FileSession
    delay = 0.0005  # seconds from an append to its write

    def __init__(self, path: Path) -> None:
        self.path = path

    async def open(self, session_id: str) -> Any:
        await trio.lowlevel.checkpoint()
        return self.session(self, self.path)


# --- each way to be wrong -------------------------------------------------------


class _AcknowledgesFirst(FileSession):
    def append(self, records: Sequence[Record]) -> Any:
        ticket = super().append(records)
        ticket.set_done()
        return ticket


class AcknowledgesBeforeWriting(FileJournal):
    session = _AcknowledgesFirst
    delay = 0.003


class _Drops(FileSession):
    def read(self) -> int:
        end = super().read()
        if not any(type(record) is TurnEnded for record in self.records[-1:]):
            self.records = self.records[:-1]
        return end


class DropsTheTail(FileJournal):
    """Takes the last record for a torn one, unless the turn is over."""

    session = _Drops


class _NewestResultFirst(FileSession):
    def take(self) -> tuple[list[Record], Ticket]:
        results = all(type(each) is ToolFinished for records, _ in self.queue for each in records)
        return self.queue.pop(-1 if results else 0)


class WritesOutOfOrder(FileJournal):
    """Results that wait together are written newest first."""

    session = _NewestResultFirst
    delay = 0.003


class _RefusesATornTail(FileSession):
    def read(self) -> int:
        end = super().read()
        if end != self.path.stat().st_size:
            raise tr.JournalError("the file is damaged")
        return end


class CannotReadATornTail(FileJournal):
    session = _RefusesATornTail


class _AppendsBehindATornTail(FileSession):
    def read(self) -> int:
        super().read()
        return self.path.stat().st_size


class AppendsBehindATornTail(FileJournal):
    """What is written after a torn record cannot be read."""

    session = _AppendsBehindATornTail


class _OneByOne(FileSession):
    def commit(self, records: list[Record]) -> None:
        for record in records:
            super().commit([record])


class WritesACommitInParts(FileJournal):
    session = _OneByOne


class LeaseOutlivesItsHolder(FileJournal):
    """A lock file that is taken away on closing, and stays when the process is killed."""

    async def open(self, session_id: str) -> Any:
        lock = self.path.with_suffix(".lock")
        if lock.exists():
            raise tr.JournalError("the session is open elsewhere")
        lock.touch()
        session = await super().open(session_id)
        aclose = session.aclose

        async def unlock() -> None:
            await aclose()
            lock.unlink()

        session.aclose = unlock
        return session


class _WithoutStarts(FileSession):
    def commit(self, records: list[Record]) -> None:
        super().commit([each for each in records if type(each) is not ToolStarted])


class ForgetsStarts(FileJournal):
    session = _WithoutStarts


class _ChangesValues(FileSession):
    def commit(self, records: list[Record]) -> None:
        super().commit([self.changed(each) for each in records])

    def changed(self, record: Record) -> Record:
        if type(record) is ToolFinished:
            return attrs.evolve(record, result=attrs.evolve(record.result, content="cut"))
        return record


class ChangesValues(FileJournal):
    session = _ChangesValues


class OpensForEver(FileJournal):
    async def open(self, session_id: str) -> Any:
        if self.path.exists():
            await trio.sleep_forever()
        return await super().open(session_id)


# --- workloads ------------------------------------------------------------------


async def one_turn(site: KillSite, *, idempotent: bool = False, twice: bool = False) -> None:
    """One tool, and the answer."""

    async def pay(amount: int) -> str:
        site.effect("paid")
        if twice:
            site.effect("paid")
        await trio.sleep(0.001)
        return f"paid {amount}"

    agent = tr.ToolAgent(
        "one",
        model=site.model([[[call("pay", id="c1", amount=3)], "Paid."]]),
        tools=site.tools(tr.tool(pay, idempotent=idempotent)),
        journal=site.journal,
        session=site.session,
    )
    async with agent:
        await site.drive(agent, "Pay 3.")


async def pays_twice(site: KillSite) -> None:
    await one_turn(site, twice=True)


async def raises(site: KillSite) -> None:
    print("about to fail")
    raise ValueError("no such workload")


async def never_ends(site: KillSite) -> None:
    await trio.sleep_forever()


async def dies_by_itself(site: KillSite) -> None:
    os.abort()


async def stops_too_early(site: KillSite) -> None:
    """Leaves out the turn that it was to run."""
    agent = tr.ToolAgent("none", model=site.model([]), journal=site.journal, session=site.session)
    site._ledger.tell("planned", turns=1)
    async with agent:
        pass


async def leaves_a_grandchild(site: KillSite) -> None:
    """A program that outlives the kill holds what its parent printed to, and nothing else."""
    subprocess.Popen(["sleep", "25"])  # noqa: ASYNC220  it is not waited for
    await one_turn(site)


async def with_points(site: KillSite) -> None:
    """Points of its own, from a thread as well."""
    site.point("begun")
    await trio.to_thread.run_sync(site.point, "threaded")
    await one_turn(site)
