"""A disk that is really full: nothing acknowledged is lost, it is said, and it works with room.

Each test runs in a process of its own, on a file system of three megabytes that only that
process sees; where the system does not allow that, the test is skipped.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trio_runner as tr
from trio_runner._journal._file import SessionFile

ROOT = Path(__file__).parent.parent

COMMON = """
import errno, json, os, sys
from pathlib import Path
import trio
import trio_runner as tr
from trio_runner.records import SessionOpened

disk = Path(sys.argv[1])
path = disk / "journal.db"
ballast = disk / "ballast"
journal = tr.SqliteJournal(path)

def fill():
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

def numbers(session_id):
    return [int(record.agent.split()[0]) for record in journal.stored(session_id)]

async def append(session, *numbers):
    ticket = session.append([SessionOpened(f"{number} " + "y" * 2000) for number in numbers])
    await ticket.wait()
    return ticket.error

def refused(error):
    return type(error).__name__, str(error)
"""

APPENDS = """
async def until_full(session, acknowledged):
    for number in range(0, 10_000, 2):
        error = await append(session, number, number + 1)
        if error is not None:
            return refused(error)
        acknowledged += [number, number + 1]

async def main():
    sessions = [await journal.open(session_id) for session_id in "abc"]
    acknowledged = [[], [], []]
    async with trio.open_nursery() as nursery:
        errors = []
        async def run(session, mine):
            errors.append(await until_full(session, mine))
        for session, mine in zip(sessions, acknowledged):
            nursery.start_soon(run, session, mine)
    stored = [numbers(session_id) for session_id in "abc"]
    with ballast.open("wb"):
        pass
    later = []
    for session, mine in zip(sessions, acknowledged):
        later.append(refused(await append(session, 7777)))
        await session.aclose()
    reopened = []
    ballast.unlink()
    for session_id in "abc":
        session = await journal.open(session_id)
        reopened.append(await append(session, 8888))
        await session.aclose()
    print(json.dumps({"acknowledged": acknowledged, "stored": stored, "errors": errors,
                      "later": later, "reopened": reopened,
                      "final": [numbers(session_id) for session_id in "abc"]}))

ballast.write_bytes(b"z" * 1_400_000)
trio.run(main)
"""

OPENS = """
async def main():
    said = {}
    session = await journal.open("s")
    assert await append(session, 1, 2) is None
    await session.aclose()
    fill()
    try:
        said["full"] = numbers("s")  # reading needs no room, or says so
    except tr.JournalStorageError as error:
        said["full"] = refused(error)
    try:
        session = await journal.open("s")
    except tr.JournalStorageError as error:
        said["open"] = refused(error)
    else:
        said["append"] = refused(await append(session, *range(100, 300)))
        await session.aclose()
    ballast.unlink()
    session = await journal.open("s")
    said["found"] = len(session.records)
    assert await append(session, 3) is None
    await session.aclose()
    said["final"] = numbers("s")
    print(json.dumps(said))

trio.run(main)
"""

MAKES = """
async def main():
    fill()
    try:
        await journal.open("s")
    except tr.JournalError as error:
        first = refused(error)
    try:
        await journal.open("s")
    except tr.JournalError as error:
        again = refused(error)
    ballast.unlink()
    session = await journal.open("s")
    assert await append(session, 1) is None
    await session.aclose()
    print(json.dumps({"first": first, "again": again, "final": numbers("s")}))

trio.run(main)
"""


def on_a_small_disk(program: str, folder: Path) -> dict[str, Any]:
    """Run a program with a file system of three megabytes at ``folder``."""
    unshare = shutil.which("unshare")
    if unshare is None or sys.platform != "linux":
        pytest.skip("needs unshare")
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = 'mount -t tmpfs -o size=3m tmpfs "$1" || exit 99; exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [
            *(unshare, *rights, "--mount", "sh", "-c", mount, "sh"),
            *(str(folder), sys.executable, COMMON + program),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"mounting is not allowed here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_on_a_full_disk_nothing_acknowledged_is_lost_and_it_works_again_with_room(
    tmp_path: Path,
) -> None:
    said = on_a_small_disk(APPENDS, tmp_path)

    assert said["stored"] == said["acknowledged"]
    assert sum(map(len, said["acknowledged"])) > 20
    assert len(said["errors"]) == 3
    for kind, text in said["errors"]:
        assert kind == "JournalStorageError"
        assert "the disk is full: make room" in text
        assert "journal.db" in text
    assert said["later"] == [["NoneType", "None"]] * 3
    assert said["reopened"] == [None] * 3
    assert said["final"] == [[*mine, 7777, 8888] for mine in said["acknowledged"]]


def test_a_session_that_is_opened_on_a_full_disk_is_whole_again_with_room(tmp_path: Path) -> None:
    said = on_a_small_disk(OPENS, tmp_path)

    kind, text = said["open"] if "open" in said else said["append"]
    assert kind == "JournalStorageError"
    assert "make room" in text
    assert said["full"] == [1, 2] or "make room" in said["full"][1]
    assert said["found"] == 2
    assert said["final"] == [1, 2, 3]


def test_a_journal_that_cannot_be_made_on_a_full_disk_can_be_made_with_room(tmp_path: Path) -> None:
    said = on_a_small_disk(MAKES, tmp_path)

    for kind, text in (said["first"], said["again"]):
        assert kind == "JournalStorageError", text
        assert "make room" in text
    assert said["final"] == [1]


async def test_a_session_that_nobody_could_sign_for_is_open_and_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "journal.db"
    journal = tr.SqliteJournal(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        session = await journal.open("s")
    second = SessionFile(str(path))
    with pytest.raises(tr.SessionInUseError, match="another process") as caught:
        second.open_session("s")
    assert caught.value.holder is None
    await session.aclose()
    second.open_session("s")
    second.close()
