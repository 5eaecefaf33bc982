"""A journal's files that are moved, removed, linked or replaced under the process that writes them.

Each program runs in a process of its own: what it loses, it cannot use again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trio_runner as tr
import trio_runner.records as r

ROOT = Path(__file__).parent.parent

#: Its arguments: the file, and what happens to it, as a statement. Prints what it was told.
PROGRAM = """
import json, os, subprocess, sys, trio
from pathlib import Path
import trio_runner as tr
from trio_runner.records import SessionOpened

path = Path(sys.argv[1])
wal, shm = Path(f"{path}-wal"), Path(f"{path}-shm")
journal = tr.SqliteJournal(path)
said = []

def other(text="other", path=path):  # another process opens, commits and closes
    code = f'''
import trio, trio_runner as tr
from trio_runner.records import SessionOpened
async def main():
    session = await tr.SqliteJournal({str(path)!r}).open("other")
    for number in range(3):
        ticket = session.append([SessionOpened({text!r} + "x" * 5000)])
        await ticket.wait()
        assert ticket.error is None, ticket.error
    await session.aclose()
trio.run(main)'''
    subprocess.run([sys.executable, "-c", code], check=True)

async def put(session, text):
    ticket = session.append([SessionOpened(text)])
    await ticket.wait()
    said.append("ok" if ticket.error is None else type(ticket.error).__name__)
    return str(ticket.error)

async def main():
    session = await journal.open("s")
    await put(session, "before")
    exec(sys.argv[2])
    message = await put(session, "after")
    await put(session, "again")
    for last in (False, True):
        if last:
            await session.aclose()
        try:
            await (await journal.open("t")).aclose()
            said.append("opened")
        except tr.JournalError as error:
            said.append(type(error).__name__)
    print(json.dumps([said, message]))

trio.run(main)
"""

REFUSED = "JournalStorageError"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path.resolve() / "journal.db"


def run(path: Path, statement: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), statement],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said, message = json.loads(done.stdout)
    return said, message


def texts(path: Path, session_id: str) -> list[str]:
    stored = tr.SqliteJournal(path).stored(session_id)
    return [one.agent.rstrip("x") for one in stored if isinstance(one, r.SessionOpened)]


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("path.read_bytes(); other()", "journal.db-wal"),  # the locks are lost by the reading
        ("path.read_bytes(); wal.unlink(); shm.unlink(); other()", "journal.db-wal"),
        ("wal.unlink()", "journal.db-wal"),
        ("wal.rename(f'{path}.old'); wal.touch()", "journal.db-wal"),
        ("[each.unlink() for each in path.parent.glob('journal.db*')]", "journal.db"),
        ("path.rename(f'{path}.old')", "journal.db"),
        ("path.rename(f'{path}.old'); path.touch()", "journal.db"),
    ],
)
def test_what_goes_into_a_file_that_is_gone_is_not_acknowledged(
    path: Path, statement: str, what: str
) -> None:
    said, message = run(path, statement)

    assert said == ["ok", *[REFUSED] * 4]
    assert f"{path.parent / what} was moved, removed or replaced" in message
    assert "End this process" in message


@pytest.mark.parametrize(
    "statement",
    ["path.read_bytes(); other()", "path.read_bytes(); wal.unlink(); shm.unlink(); other()"],
)
def test_what_others_wrote_since_is_not_written_over(path: Path, statement: str) -> None:
    run(path, statement)

    assert texts(path, "other") == ["other"] * 3
    assert tr.SqliteJournal(path).verify().ok


def test_what_was_acknowledged_before_the_locks_were_lost_is_there(path: Path) -> None:
    run(path, "path.read_bytes(); other()")

    assert texts(path, "s") == ["before"]


def test_a_file_with_two_names_is_written_by_neither_until_it_has_one(path: Path) -> None:
    said, message = run(path, "os.link(path, f'{path}.link')")
    assert said == ["ok", *[REFUSED] * 4]
    assert f"{path} has 2 names (hard links)" in message
    assert "Remove the other names" in message
    for name in (path, Path(f"{path}.link")):
        said, _ = run_opening(name)
        assert said == "JournalStorageError"
    os.unlink(f"{path}.link")  # noqa: PTH108  as the program does it

    assert run_opening(path) == ("opened", 1)


def run_opening(path: Path) -> tuple[str, int]:
    code = """
import sys, trio, trio_runner as tr
async def main():
    try:
        session = await tr.SqliteJournal(sys.argv[1]).open("s")
    except tr.JournalError as error:
        print(type(error).__name__, 0)
    else:
        print("opened", len(session.records))
        await session.aclose()
trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    what, count = done.stdout.split()
    return what, int(count)


@pytest.mark.parametrize(
    "statement",
    [
        "other()",
        "journal.stored('s'); journal.verify(); other()",
        "path.touch(); path.chmod(0o600)",
    ],
)
def test_what_others_may_do_is_no_reason_to_refuse(path: Path, statement: str) -> None:
    said, _ = run(path, statement)

    assert said == ["ok", "ok", "ok", "opened", "opened"]
    assert texts(path, "s") == ["before", "after", "again"]
