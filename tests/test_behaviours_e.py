"""BEHAVIOURS part e: what is saved, torn, shared, odd, large, and run again after a crash.

Each test is one of the scenarios, on a real file, and in memory where that says something.
"""

from __future__ import annotations

import datetime
import decimal
import json
import logging
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import trio

import trio_runner as tr
import trio_runner.records as r
import trio_runner.testing.strategies as strategies
from trio_runner._core.records import arguments_hash
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append
from trio_runner._journal.codec import encode_record
from trio_runner.testing import KillSite, ScriptedModel, call, kill_sweep

ROOT = Path(__file__).parent.parent


async def work(text: str = "") -> str:
    """Give it back."""
    return text


def agent_of(journal: tr.Journal, script: Sequence[Any], **options: Any) -> tr.ToolAgent:
    settings: dict[str, Any] = {"tools": [work], "session": "s", **options}
    return tr.ToolAgent("a", model=ScriptedModel(script), journal=journal, **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


#: Journals to try, each made at a path.
JOURNALS: dict[str, Callable[[Path], tr.MemoryJournal | tr.SqliteJournal]] = {
    "memory": lambda _: tr.MemoryJournal(),
    "sqlite": tr.SqliteJournal,
}


@pytest.fixture(params=list(JOURNALS))
def journal(request: pytest.FixtureRequest, path: Path) -> tr.MemoryJournal | tr.SqliteJournal:
    return JOURNALS[request.param](path)


# --- kE1: torn last record --------------------------------------------------------

#: Two, three and four bytes in UTF-8.
WORDS = "é€😀"


@pytest.fixture
async def live(tmp_path: Path) -> Path:
    """The file as ``kill -9`` leaves it, while its session is open: the WAL holds it all."""
    path = tmp_path / "live.db"
    script = [[call("work", text=WORDS)], WORDS * 3]
    async with agent_of(tr.SqliteJournal(path), script) as agent:
        await agent.generate(WORDS * 2)
        shutil.copy(path, tmp_path / "killed.db")
        shutil.copy(f"{path}-wal", tmp_path / "killed.db-wal")
    return tmp_path / "killed.db"


def load(path: Path) -> tuple[r.Record, ...]:
    file = SessionFile(str(path), durable=False)
    try:
        return file.open_session("s").records
    finally:
        file.close()


def append(path: Path, record: r.Record) -> tuple[int, int]:
    """Append; returns how many records were found, and how many were dropped."""
    file = SessionFile(str(path), durable=False)
    opened = file.open_session("s")
    first = len(opened.records)
    append = Append("s", opened.key, opened.epoch, first, [encode_record(record)])
    [[error]] = file.commit([append])
    assert error is None
    file.close()
    return first, opened.dropped


LATER = r.SessionOpened("later")


@pytest.mark.slow
async def test_kE1_a_file_cut_at_every_byte_loses_its_end_and_takes_what_comes_later(
    live: Path, path: Path, *, full_sweeps: bool
) -> None:
    wal = Path(f"{live}-wal").read_bytes()
    shutil.copy(live, path)
    assert load(path) == ()  # nothing but the WAL holds it
    whole: tuple[r.Record, ...] = ()
    step = 1 if full_sweeps else 211
    places = [at for at in range(len(wal)) if wal[at : at + 4] == "😀".encode()]
    inside = {at + part for at in places for part in range(5)}
    lengths: list[int] = []
    for cut in sorted({*range(0, len(wal), step), *inside, len(wal) - 1, len(wal)}):
        shutil.copy(live, path)
        Path(f"{path}-wal").write_bytes(wal[:cut])
        found, _ = append(path, LATER)
        records = load(path)
        # More of the file never gives less, and what was there stays the same.
        assert records[: len(whole)] == whole
        whole, last = records[:-1], records[-1]
        assert (len(whole), last) == (found, LATER)
        tr.check_history(tr.fold(whole).messages)
        lengths.append(found)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)

    assert tr.fold(whole).messages[-1].text == WORDS * 3
    assert len(set(lengths)) > 4  # commits went one by one


def test_kE1_a_last_record_torn_at_every_byte_is_dropped_and_reported(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = [
        r.TurnStarted(1, (tr.Message.user(WORDS),)),
        r.InputAdded(1, (tr.Message.user(WORDS),)),
    ]
    body = encode_record(records[1])
    for cut in range(len(body)):
        for record in records:
            append(path, record)
        connection = sqlite3.connect(path)
        torn = "UPDATE records SET body = ? WHERE place = (SELECT max(place) FROM records)"
        with connection:
            assert connection.execute(torn, (body[:cut],)).rowcount == 1
        connection.close()

        caplog.clear()
        with caplog.at_level(logging.WARNING, "trio_runner"):
            assert append(path, LATER) == (1, 1)
        assert "had a torn tail: 1 records from number 1 on" in caplog.text
        assert load(path) == (records[0], LATER)
        assert append(path, LATER) == (2, 0)
        path.unlink()


# --- kE3: several writers -----------------------------------------------------------

WRITER = """
import sys, trio
import trio_runner as tr
from trio_runner.records import SessionOpened

async def main(path, name, count):
    journal, saved, conflicts = tr.SqliteJournal(path), 0, 0
    print("ready", flush=True)
    while saved < count:
        try:
            session = await journal.open("s")
        except tr.SessionInUseError as error:
            assert "'s'" in str(error), error
            conflicts += 1
            await trio.sleep(0.001)
            continue
        for number in range(saved, min(saved + 10, count)):
            ticket = session.append([SessionOpened(f"{name} {number}")])
            await ticket.wait()
            assert ticket.error is None, ticket.error
        saved = number + 1
        await session.aclose()
    print(conflicts, flush=True)

trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def output_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def saved_by(path: Path) -> dict[str, list[int]]:
    """What a reader finds: the numbers of each writer; a half file would raise."""
    found: dict[str, list[int]] = {}
    for record in tr.SqliteJournal(path).stored("s"):
        assert type(record) is r.SessionOpened
        name, number = record.agent.split()
        found.setdefault(name, []).append(int(number))
    return found


@pytest.mark.slow
def test_kE3_of_four_processes_one_writes_at_a_time_and_a_dead_one_blocks_nobody(
    path: Path,
) -> None:
    count, chooser = 200, random.Random(3)
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name, str(count)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in "abcd"
    }
    try:
        for writer in writers.values():
            assert output_of(writer).readline() == "ready\n"
        killed_at = chooser.randrange(20, 150)
        reads, before = 0, 0
        while any(writer.poll() is None for writer in writers.values()):
            found = saved_by(path) if path.exists() else {}
            assert all(numbers == list(range(len(numbers))) for numbers in found.values())
            total = sum(map(len, found.values()))
            assert total >= before
            reads, before = reads + 1, total
            if total >= killed_at:
                writers["c"].kill()
        said = {name: output_of(writer).read() for name, writer in writers.items()}
    finally:
        for writer in writers.values():
            writer.kill()
            output_of(writer).close()
            writer.wait()

    assert writers.pop("c").returncode < 0
    assert [writer.returncode for writer in writers.values()] == [0, 0, 0]
    assert reads > 3
    found = saved_by(path)
    assert [len(found[name]) for name in writers] == [count, count, count]
    # They did get in each other's way, and each was told.
    assert sum(int(said[name]) for name in writers) > 0


async def test_kE3_two_agents_save_at_once_in_one_process(path: Path) -> None:
    # Two journals on one file, as two parts of a program may have.
    one = agent_of(tr.SqliteJournal(path), [[call("work", text="1")], "one"] * 5)
    two = agent_of(tr.SqliteJournal(path), [[call("work", text="2")], "two"] * 5, session="t")

    async def talk(agent: tr.ToolAgent) -> None:
        async with agent:
            for _ in range(5):
                await agent.generate("go")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk, one)
        nursery.start_soon(talk, two)

    # Nothing temporary is left behind.
    others = [each.name for each in path.parent.iterdir() if not each.name.endswith(".lock")]
    assert others == ["journal.db"]
    journal = tr.SqliteJournal(path)
    assert tr.fold(journal.stored("s")).messages == one.history
    assert tr.fold(journal.stored("t")).messages == two.history


async def test_kE3_a_second_writer_in_the_process_is_told_and_changes_nothing(
    journal: tr.MemoryJournal | tr.SqliteJournal,
) -> None:
    async with agent_of(journal, ["one", "two"]) as agent:
        await agent.generate("go")
        before = journal.stored("s")
        with pytest.raises(tr.JournalError, match="'s'"):
            async with agent_of(journal, ["never"]):
                pass
        assert journal.stored("s") == before
        await agent.generate("go")
    assert tr.fold(journal.stored("s")).messages == agent.history


# --- kE4: values that cannot be saved -------------------------------------------------


def odd_tools() -> list[tr.Tool]:
    """A tool for each value that is no plain data, named by its number."""
    makers: list[Callable[[], object]] = [
        *[lambda kind=kind: strategies.make_odd_value(kind) for kind in strategies.ODD_VALUES],
        lambda: datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC),
        lambda: decimal.Decimal("1.10"),
        lambda: {"a", "b"},
        lambda: {"deep": [{"bytes": b"\xff", "nan": float("nan")}, (1, {2})]},
        lambda: {1: "number as key", None: 2},
        lambda: 10**5000,
        lambda: ["\ud800", float("inf"), -0.0],
        lambda: tr.ToolResult(content="x", structured_content={"set": {1}}),  # type: ignore[dict-item]
        lambda: tr.ToolResult(content="x", meta={"no data": object()}),
    ]

    def tool(number: int, make: Callable[[], object]) -> tr.Tool:
        async def odd(arguments: tr.JSONObject, context: tr.ToolContext) -> object:
            return make()

        return tr.Tool(f"odd{number}", "", {"type": "object"}, odd)

    return [tool(number, make) for number, make in enumerate(makers)]


async def test_kE4_whatever_a_tool_returns_is_saved_and_opens_as_it_is_in_memory(
    journal: tr.MemoryJournal | tr.SqliteJournal,
) -> None:
    tools = odd_tools()
    script = [[call(each.name) for each in tools], "done", "again"]
    async with agent_of(journal, script, tools=tools) as agent:
        await agent.generate("go")
        assert agent.last_turn is not None
        assert agent.last_turn.commit_errors == ()
        await agent.generate("go on")

    results = agent.history[2].tool_results
    assert len(results) == len(tools)
    assert {each.status.value for each in results} <= {"ok", "error"}
    assert all(each.content for each in results)
    opened = tr.fold(journal.stored("s")).messages
    assert opened == agent.history
    assert repr(opened) == repr(agent.history)  # -0.0 and 0.0 are equal
    # It is plain data from the moment it entered: JSON that others read too.
    for each in results:
        json.dumps([each.structured_content, dict(each.meta)], allow_nan=False)


# --- kE5: quadratic saving --------------------------------------------------------------


class CountingJournal(tr.MemoryJournal):
    """Counts the bytes of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    async def open(self, session_id: str) -> Any:
        session = await super().open(session_id)
        give = session.append

        def count(records: Sequence[r.Record]) -> tr.CommitTicket:
            self.written += sum(len(encode_record(record)) for record in records)
            return give(records)

        session.append = count  # type: ignore[method-assign]
        return session


def steps(count: int) -> list[Any]:
    return [*[[call("work", text="x" * 1000)] for _ in range(count)], "done"]


async def test_kE5_each_step_writes_as_much_as_the_one_before() -> None:
    written: dict[int, int] = {}
    for count in (100, 200, 400):
        journal = CountingJournal()
        params = tr.RequestParams(max_iterations=500)
        async with agent_of(journal, steps(count), params=params) as agent:
            await agent.generate("go")
        written[count] = journal.written

    # A call, its start and its result, 1 KB each way: numbers grow by digits alone.
    assert 1.9 < written[400] / written[200] < 2.1
    assert (written[400] - written[200]) / 200 < 1.02 * (written[200] - written[100]) / 100
    assert written[400] < 400 * 3000


@pytest.mark.slow
async def test_kE5_the_file_grows_by_the_steps_and_not_by_their_square(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}
    for count in (100, 200, 400):
        path = tmp_path / f"{count}.db"
        params = tr.RequestParams(max_iterations=500)
        async with agent_of(tr.SqliteJournal(path), steps(count), params=params) as agent:
            await agent.generate("go")
        sizes[count] = path.stat().st_size

    assert sizes[400] / sizes[200] < 2.3
    assert sizes[200] / sizes[100] < 2.3


async def test_kE5_compaction_writes_the_summary_alone() -> None:
    journal = CountingJournal()
    params = tr.RequestParams(max_iterations=500)
    async with agent_of(journal, [*steps(50), "two", "three"], params=params) as agent:
        for text in ("one", "two", "three"):
            await agent.generate(text)
        before = journal.written
        assert agent.trim() == 98
        cut = agent.choose_cut()
        assert cut is not None
        agent.replace_with_summary(cut, "so far")
        assert journal.written - before < 1000


# --- kE7: side effects twice after a crash -----------------------------------------------


def the_records() -> list[r.Record]:
    """One call, up to its result."""
    reply = tr.Message.assistant(tool_calls=[call("pay", id="c1", amount=3)])
    asked = reply.tool_calls[0]
    key = f"s/1:0:{asked.id}"
    return [
        r.SessionOpened("a"),
        r.TurnStarted(1, (tr.Message.user("Pay 3."),)),
        r.ModelFinished(1, 0, reply),
        r.ToolStarted(1, 0, asked.id, asked.name, arguments_hash(asked.arguments), key),
        r.ToolFinished(1, 0, tr.ToolResult(asked.id, asked.name, "paid 3")),
    ]


@pytest.mark.parametrize(
    ("last", "ran_before", "runs_now", "status"),
    [
        ("before the start record", 0, 1, "ok"),
        ("after the start record", 0, 0, "unknown_after_crash"),
        ("after the side effect", 1, 0, "unknown_after_crash"),
        ("after the result record", 1, 0, "ok"),
    ],
)
async def test_kE7_a_call_that_may_have_run_is_not_run_again(
    last: str, ran_before: int, runs_now: int, status: str,
    journal: tr.MemoryJournal | tr.SqliteJournal,
) -> None:  # fmt: skip
    count = {"before the start record": 3, "after the result record": 5}.get(last, 4)
    session = await journal.open("s")
    await session.append(the_records()[:count]).wait()
    await session.aclose()
    effects = [3] * ran_before

    async def pay(amount: int) -> str:
        """Pay."""
        effects.append(amount)
        return f"paid {amount}"

    async with agent_of(journal, ["Done."], tools=[pay]) as agent:
        assert (await agent.resume()).text == "Done."

    [result] = agent.history[2].tool_results
    assert (len(effects) - ran_before, result.status.value) == (runs_now, status)
    assert len(effects) <= 1


async def pays(site: KillSite) -> None:
    """A payment with a point before and after its effect."""

    async def pay(amount: int) -> str:
        """Pay."""
        site.point("entered")
        site.effect("paid")
        site.point("paid")
        return f"paid {amount}"

    agent = tr.ToolAgent(
        "payer",
        model=site.model([[[call("pay", amount=3), call("pay", amount=4)], "Paid."]]),
        tools=site.tools(pay),
        journal=site.journal,
        session=site.session,
    )
    async with agent:
        await site.drive(agent, "Pay 3 and 4.")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_kE7_killed_at_every_call_and_point_it_pays_once_at_most() -> None:
    report = kill_sweep(tr.SqliteJournal, f"{__file__}:pays", modes=("call",), pairs=2)

    report.raise_if_failed()
    assert report.kills > 25
    assert report.effects > report.kills  # two payments each, but for those that were cut
