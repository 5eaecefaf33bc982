"""Whole sessions of a `SqliteJournal`: listed, forked, exported, deleted. Real files."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

import trio_runner as tr
import trio_runner._journal.codec as codec
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append
from trio_runner.sessions import SessionSummary
from trio_runner.testing import ScriptedModel, call


def add(a: int, b: int) -> str:
    return str(a + b)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> tr.SqliteJournal:
    return tr.SqliteJournal(path)


def agent_on(journal: tr.SqliteJournal, session: str, *replies: object) -> tr.ToolAgent:
    model = ScriptedModel(list(replies))  # type: ignore[arg-type]
    return tr.ToolAgent("sums", model=model, tools=[add], journal=journal, session=session)


async def talk(journal: tr.SqliteJournal, session: str, turns: int) -> None:
    """Turns of one step with two calls each, and an answer."""
    replies: list[object] = []
    for number in range(turns):
        replies += [[call("add", a=number, b=1), call("add", a=number, b=2)], f"answer {number}"]
    async with agent_on(journal, session, *replies) as agent:
        for number in range(turns):
            await agent.generate(f"question {number}\nof many")


def store(path: Path, **sessions: tuple[r.Record, ...]) -> None:
    """Sessions of the records given, as a process leaves them that has ended."""
    file = SessionFile(str(path), durable=False)
    for session_id, records in sessions.items():
        opened = file.open_session(session_id)
        bodies = [codec.encode_record(record) for record in records]
        [[error]] = file.commit([Append(session_id, opened.key, opened.epoch, 0, bodies)])
        assert error is None
    file.close()


CUT = (
    r.SessionOpened("sums"),
    r.TurnStarted(1, (tr.Message.user("\n  how   much? \nplease"),)),
    r.ModelFinished(1, 0, tr.Message.assistant("4"), None),
    r.TurnEnded(1, tr.EndReason.ANSWERED),
    r.TurnStarted(2, (tr.Message.user("and then?"),)),
)


def locks(path: Path) -> list[str]:
    return [entry.name for entry in path.parent.iterdir() if entry.name.endswith(".lock")]


def damage(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# --- lists ----------------------------------------------------------------------


async def test_a_summary_says_what_a_session_holds(journal: tr.SqliteJournal) -> None:
    before = datetime.now(UTC)
    await talk(journal, "s", 2)
    [summary] = journal.summaries()

    records = journal.stored("s")
    assert summary == SessionSummary(
        "s",
        # Opened; each turn: started, 2 replies, 2 starts, 2 results, ended.
        1 + 2 * 8,
        sum(len(codec.encode_record(record)) for record in records),
        turns=2,
        messages=8,
        title="question 0",
        agent="sums",
        first_at=summary.first_at,
        last_at=summary.last_at,
        end_reason=tr.EndReason.ANSWERED,
    )
    assert summary.first_at is not None
    assert summary.last_at is not None
    moment = timedelta(seconds=1)  # the two clocks are read differently
    assert before - moment <= summary.first_at <= summary.last_at <= datetime.now(UTC) + moment
    assert summary.state == "answered"


def test_a_turn_that_a_crash_cut_is_unfinished(path: Path, journal: tr.SqliteJournal) -> None:
    store(path, cut=CUT)
    [summary] = journal.summaries()

    assert (summary.turns, summary.is_unfinished, summary.end_reason) == (2, True, None)
    assert (summary.state, summary.title, summary.messages) == ("unfinished", "how much?", 3)


def test_a_title_is_what_was_asked_first_and_no_template(
    path: Path, journal: tr.SqliteJournal
) -> None:
    template = tr.Message.user("be brief", template=True)
    long = tr.Message.user("word " * 40)
    store(
        path,
        a=(r.HistoryReplaced((template,)), r.TurnStarted(1, (tr.Message.user(" "), long))),
        b=(r.HistoryReplaced((template, tr.Message.user("loaded"))),),
        c=(r.SessionOpened("only opened"),),
    )
    a, b, c = journal.summaries()

    assert a.title == ("word " * 16)[:79] + "…"
    assert b.title == "loaded"
    assert (c.title, c.state, c.turns) == ("", "new", 0)


async def test_what_was_only_opened_is_not_listed_and_no_file_is_an_empty_list(
    journal: tr.SqliteJournal, path: Path
) -> None:
    assert journal.summaries() == ()
    assert not path.exists()
    await (await journal.open("s")).aclose()
    assert journal.summaries() == ()


def test_a_summary_is_plain_json(path: Path, journal: tr.SqliteJournal) -> None:
    store(path, cut=CUT)
    [summary] = journal.summaries()
    fields = json.loads(json.dumps(summary.as_json()))

    assert fields["session_id"] == "cut"
    assert fields["state"] == "unfinished"
    assert datetime.fromisoformat(fields["last_at"]) == summary.last_at


# --- forks ----------------------------------------------------------------------


async def test_a_fork_is_the_turns_up_to_one_and_goes_on_by_itself(
    journal: tr.SqliteJournal,
) -> None:
    await talk(journal, "s", 3)
    records = journal.stored("s")
    count = await journal.fork("s", "t", turn=2)

    assert count == 1 + 2 * 8
    assert journal.stored("t") == records[:count]
    async with agent_on(journal, "t", [call("add", a=1, b=1)], "other") as agent:
        assert (await agent.generate("instead")).text == "other"
    assert journal.stored("s") == records
    started = [each for each in journal.stored("t")[count:] if type(each) is r.ToolStarted]
    assert [each.turn for each in started] == [3]
    # A key of the fork is never one of the other's next turn.
    keys = {each.key for each in records if type(each) is r.ToolStarted}
    assert keys.isdisjoint({each.key for each in started})


async def test_without_a_turn_a_fork_takes_all_that_have_ended(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, cut=CUT)
    await journal.fork("cut", "t")

    assert journal.stored("t") == CUT[:4]


async def test_turn_0_is_what_was_there_before_the_first(
    path: Path, journal: tr.SqliteJournal
) -> None:
    start = (r.SessionOpened("a"), r.HistoryReplaced((tr.Message.user("be brief"),)))
    store(path, s=(*start, r.TurnStarted(1, ())), new=start)
    await journal.fork("s", "t", turn=0)
    await journal.fork("new", "u")

    assert journal.stored("t") == journal.stored("u") == start


async def test_a_turn_that_was_resumed_is_taken_to_its_last_end(
    path: Path, journal: tr.SqliteJournal
) -> None:
    resumed = (
        *CUT,
        r.TurnEnded(2, tr.EndReason.INTERRUPTED),
        r.TurnStarted(2, (), resumed=True),
        r.ModelFinished(2, 0, tr.Message.assistant("5"), None),
        r.TurnEnded(2, tr.EndReason.ANSWERED),
        r.HistoryReplaced(()),
    )
    store(path, s=resumed, again=resumed[:7])
    await journal.fork("s", "t", turn=2)
    await journal.fork("again", "u")

    assert journal.stored("t") == resumed[:-1]
    assert journal.stored("u") == CUT[:4]


async def test_what_was_done_to_the_history_since_the_last_end_goes_with_a_fork_of_all(
    path: Path, journal: tr.SqliteJournal
) -> None:
    cleared = (*CUT[:4], r.HistoryReplaced(()))
    store(path, s=cleared, cut=(*cleared, CUT[4]))
    await journal.fork("s", "all")
    await journal.fork("cut", "all but the cut turn".replace(" ", "-"))
    await journal.fork("s", "as-it-was", turn=1)

    assert journal.stored("all") == journal.stored("all-but-the-cut-turn") == cleared
    assert tr.fold(journal.stored("all")).messages == ()
    assert journal.stored("as-it-was") == CUT[:4]


@pytest.mark.parametrize(("turn", "says"), [(2, "turn 2 has not ended"), (7, "7 is not there")])
async def test_a_fork_at_no_such_turn_is_refused_with_those_that_there_are(
    path: Path, journal: tr.SqliteJournal, turn: int, says: str
) -> None:
    store(path, cut=CUT)
    with pytest.raises(tr.NoSuchSessionError, match=rf"{says}; expected one of 0, 1 "):
        await journal.fork("cut", "t", turn=turn)
    assert journal.sessions() == ("cut",)


async def test_a_fork_onto_another_session_changes_nothing(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=CUT[:1])
    with pytest.raises(tr.SessionExistsError, match=r"'b' .*holds 1 records already"):
        await journal.fork("a", "b")
    with pytest.raises(tr.SessionIdError):
        await journal.fork("a", "../b")
    with pytest.raises(tr.NoSuchSessionError, match="no session 'x'"):
        await journal.fork("x", "c")

    assert journal.stored("b") == CUT[:1]
    session = await journal.open("b")  # it was given up
    with pytest.raises(tr.SessionInUseError):
        await journal.fork("a", "b")
    await journal.fork("b", "c", turn=0)  # the other may be in use
    await session.aclose()


async def test_a_cancelled_fork_holds_all_or_nothing(path: Path, journal: tr.SqliteJournal) -> None:
    store(path, cut=CUT)
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.fork("cut", "t")
    assert scope.cancelled_caught
    assert journal.stored("t") in ((), CUT[:4])


# --- export and import ----------------------------------------------------------


async def test_what_was_exported_is_imported_elsewhere(
    journal: tr.SqliteJournal, tmp_path: Path
) -> None:
    await talk(journal, "s", 2)
    data = journal.export_jsonl("s")
    other = tr.SqliteJournal(tmp_path / "other.db")
    count = await other.import_jsonl("t", data)

    assert count == len(data.splitlines())
    assert other.stored("t") == journal.stored("s")
    assert other.export_jsonl("t") == data
    first = json.loads(data.splitlines()[0])
    assert (first["kind"], first["agent"]) == ("session_opened", "sums")
    with pytest.raises(tr.NoSuchSessionError):
        journal.export_jsonl("t")


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"[]\n", tr.JournalFormatError, "line 1 of the export: found a JSON list"),
        (
            codec.encode_record(CUT[0]) + b"\n" + codec.encode_record(CUT[1])[:-9],
            tr.JournalFormatError,
            "line 2 of the export: found what is no JSON",
        ),
        (codec.encode_record(CUT[3]), tr.JournalFormatError, "line 1 .*TurnEnded. does not fit"),
        (
            b"\n".join(codec.encode_record(record) for record in (*CUT[:1], *CUT[2:4])),
            tr.JournalFormatError,
            "line 2 of the export .ModelFinished. does not fit.* may be missing. Nothing was",
        ),
        (b"", tr.JournalFormatError, "the export is empty; .* Nothing was changed"),
        (b'{"v":99,"kind":"titled"}', tr.JournalFormatError, "line 1 .*schema version 99"),
    ],
)
async def test_what_is_no_export_is_refused_and_no_file_is_made(
    journal: tr.SqliteJournal, path: Path, data: bytes, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        await journal.import_jsonl("t", data)
    assert not path.exists()


def a_line(**members: object) -> bytes:
    return json.dumps({"v": 1, **members}).encode()


def a_message(text: object, **more: object) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "text", "text": text}], **more}


def a_reply(*calls: object, **more: object) -> bytes:
    given = {"role": "assistant", "tool_calls": list(calls), "stop_reason": "toolUse", **more}
    return a_line(kind="model_finished", turn=1, step=0, message=given)


ADD = {"id": "c1", "name": "add", "arguments": {"a": 1}}
STARTED = a_line(kind="turn_started", turn=1, input=[a_message("1 + 2?")])


def a_result(**more: object) -> bytes:
    given = {"call_id": "c1", "name": "add", "content": [{"type": "text", "text": "3"}], **more}
    return a_line(kind="tool_finished", turn=1, step=0, result=given)


def replaced(*messages: object) -> bytes:
    return a_line(kind="history_replaced", messages=list(messages))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([replaced(a_message("x"), a_message("", role="assistant", tool_calls=[ADD]))], "are open"),
        ([replaced(a_message("x"), {"role": "user", "content": []})], "message 1: .* is empty"),
        ([STARTED, a_reply(ADD, ADD)], "line 2 .* the call id 'c1' is there already"),
        ([STARTED, a_reply(ADD), a_result(), a_reply(ADD)], "line 4 .* 'c1' is there already"),
        ([STARTED, a_reply({**ADD, "id": " "})], "line 2 .* the id is"),
        ([STARTED, a_reply({**ADD, "arguments": [1]})], "line 2 .* wrong type"),
        ([STARTED, a_reply(role="user", content=[{"type": "text", "text": "x"}])], "is no reply"),
        ([STARTED, a_reply(stop_reason="endTurn")], "line 2 .* is empty"),
        ([STARTED, a_reply(ADD), a_result(content=[])], "line 3 .* the result is empty"),
        ([a_line(kind="turn_started", turn=1, input=[a_message(" ")])], "is empty"),
        ([a_line(kind="turn_started", turn=1, input=[a_message(None)])], "wrong type"),
        ([a_line(kind="turn_started", turn=1, input=[a_message("x", meta=[1])])], "wrong type"),
        ([a_line(kind="turn_started", turn="7", input=[])], "found turn = '7'"),
        ([a_line(kind="turn_started", turn=1.9, input=[])], "found turn = '1.9'"),
        ([a_line(kind="turn_started", turn=1, input=[], resumed="no")], "found resumed"),
        ([STARTED, a_reply(ADD), a_result(), STARTED], "line 4 .* while turn 1 is running"),
    ],
)
async def test_an_import_of_what_no_agent_writes_is_refused_with_its_line(
    journal: tr.SqliteJournal, path: Path, lines: list[bytes], says: str
) -> None:
    with pytest.raises(tr.JournalFormatError, match=says) as caught:
        await journal.import_jsonl("t", b"\n".join(lines), moved=True)
    assert f"line {len(lines)} of the export" in str(caught.value)
    assert not path.exists()


async def test_a_member_that_says_what_is_the_default_is_taken(journal: tr.SqliteJournal) -> None:
    explicit = a_line(kind="turn_started", turn=1.0, input=[a_message("x", meta={})], resumed=False)
    arguments = {"meta": [1], "text": None, "deep": {"turn": "7"}}  # anybody's own JSON
    lines = [explicit, a_reply({**ADD, "arguments": arguments, "arguments_error": None})]
    assert await journal.import_jsonl("t", b"\n".join(lines), moved=True) == 2


def test_what_was_imported_before_that_was_refused_is_told_by_verify(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, s=(r.HistoryReplaced((tr.Message.user(""),)),))
    [found] = journal.verify().sessions

    assert found.problem is not None
    assert "record 0 (row 1): " in found.problem
    assert "message 0: the message is empty" in found.problem


async def test_an_export_inside_a_turn_is_imported_only_as_moved(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, s=CUT)
    data = journal.export_jsonl("s")
    with pytest.raises(tr.JournalFormatError, match="ends inside turn 2: resumed in both"):
        await journal.import_jsonl("t", data)
    assert journal.sessions() == ("s",)

    assert await journal.import_jsonl("t", data, moved=True) == len(CUT)
    assert journal.stored("t") == CUT


async def test_an_id_that_is_no_text_is_no_session(journal: tr.SqliteJournal, path: Path) -> None:
    await talk(journal, "s", 1)
    assert journal.stored("\udcff") == ()
    with pytest.raises(tr.NoSuchSessionError, match=r"has no session .*; expected one of 's'"):
        journal.export_jsonl("\udcff")
    with pytest.raises(tr.NoSuchSessionError):
        await journal.fork("\udcff", "t")
    with pytest.raises(tr.NoSuchSessionError):
        await journal.delete("\udcff")


# --- deleting -------------------------------------------------------------------


async def test_what_was_deleted_is_gone_from_the_file_and_its_id_is_free(
    journal: tr.SqliteJournal, path: Path
) -> None:
    secret = b"the word is swordfish"
    store(path, a=(r.SessionOpened(secret.decode() * 500),), b=CUT)
    assert secret in path.read_bytes()
    assert await journal.delete("a") == 1

    assert journal.sessions() == ("b",)
    assert [each.session_id for each in journal.summaries()] == ["b"]
    assert journal.verify().ok
    assert locks(path) == []
    assert secret not in path.read_bytes()
    session = await journal.open("a")
    assert tuple(session.records) == ()
    await session.aclose()
    with pytest.raises(tr.NoSuchSessionError):
        await journal.delete("c")


async def test_a_deletion_beside_an_open_session_leaves_no_byte_in_the_wal(
    journal: tr.SqliteJournal, path: Path
) -> None:
    keeper = await journal.open("keeper")
    session = await journal.open("a")
    ticket = session.append([r.SessionOpened("the word is swordfish")])
    await ticket.wait()
    with pytest.raises(tr.SessionInUseError, match="already open for writing in this process"):
        await journal.delete("a")
    await session.aclose()
    await journal.delete("a")

    wal = Path(f"{path}-wal")
    assert b"swordfish" not in path.read_bytes() + (wal.read_bytes() if wal.exists() else b"")
    await keeper.aclose()


async def test_nothing_is_made_to_delete_from(journal: tr.SqliteJournal, path: Path) -> None:
    with pytest.raises(tr.NoSuchSessionError):
        await journal.delete("a")
    assert not path.exists()


def test_a_frozen_writer_of_a_deleted_session_does_not_write_into_its_successor(
    path: Path,
) -> None:
    # As if the lock between them had failed: two connections in one process.
    frozen, other = (SessionFile(str(path), durable=False) for _ in range(2))
    opened = frozen.open_session("a")
    frozen.release_session("a")
    other.delete_session("a")
    again = other.open_session("a")
    body = codec.encode_record(CUT[0])
    [[error]] = frozen.commit([Append("a", opened.key, opened.epoch, 0, [body])])

    assert isinstance(error, tr.SessionLostError)
    assert again.key != opened.key
    assert other.stored("a") == ()
    frozen.close()
    other.close()


async def test_a_cancelled_delete_leaves_the_thread_and_the_file_in_order(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=CUT)
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.delete("a")
    assert scope.cancelled_caught
    assert journal.sessions() in (("a", "b"), ("b",))
    await journal.delete("b")
    assert "b" not in journal.sessions()


async def test_damage_does_not_keep_a_session_from_being_deleted(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=CUT)
    damage(path, "UPDATE records SET body = 'x' WHERE session = 1 AND seq = 2")
    with pytest.raises(tr.JournalDamagedError):
        await journal.open("a")

    await journal.delete("a")
    assert journal.verify().ok


# --- beside a writer ------------------------------------------------------------

WRITER = """
import sys, trio
import trio_runner as tr
import trio_runner.records as r

async def main():
    session = await tr.SqliteJournal(sys.argv[1]).open("busy")
    turn = 0
    for _ in sys.stdin:  # a line for each turn
        turn += 1
        said = (tr.Message.user(f"question {turn}"),)
        answer = tr.Message.assistant("4")
        started = [r.TurnStarted(turn, said), r.ModelFinished(turn, 0, answer, None)]
        ticket = session.append([*started, r.TurnEnded(turn, tr.EndReason.ANSWERED)])
        await ticket.wait()
        assert ticket.error is None
        print(turn, flush=True)

trio.run(main)
"""


async def test_reading_forking_and_deleting_work_while_another_process_writes(
    path: Path, journal: tr.SqliteJournal
) -> None:
    store(path, a=CUT, b=CUT)
    with subprocess.Popen(  # noqa: ASYNC220  it is started once
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        try:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "1\n"
            for number in range(5):
                writer.stdin.write("go\n" * 20)
                writer.stdin.flush()
                # Each is a whole number of commits, never half of one.
                busy = next(each for each in journal.summaries() if each.session_id == "busy")
                assert busy.state == "answered"
                assert busy.records == 3 * busy.turns >= 3
                assert journal.verify().ok
                copied = await journal.fork("busy", f"copy-{number}")
                assert copied % 3 == 0
            with pytest.raises(tr.SessionInUseError, match=f"process {writer.pid} "):
                await journal.delete("busy")
            await journal.delete("b")
            assert writer.poll() is None
        finally:
            writer.kill()
    assert "b" not in journal.sessions()
    await journal.delete("busy")  # its lease went with its process
    assert journal.verify().ok
