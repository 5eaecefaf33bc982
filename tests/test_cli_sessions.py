"""`trio-runner sessions`: what it shows and does, its exit statuses, a clean stdout. Real files."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import click.testing
import pytest
import rich.console

import trio_runner as tr
import trio_runner._cli.group as group
import trio_runner._cli.sessions as sessions
import trio_runner._cli.sessions_view as sessions_view
import trio_runner._cli.terminal as terminal
import trio_runner._journal.codec as codec
import trio_runner.records as r
from trio_runner._journal._file import SessionFile
from trio_runner._journal._parts import Append

#: Seconds after which a test takes something for hanging.
LONG = 100.0
COMMAND = [sys.executable, "-P", "-c", "from trio_runner._cli import main; main()", "sessions"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

CALLS = (tr.ToolCall("c1", "add", {"a": 1}),)
WHOLE = (
    r.SessionOpened("sums"),
    r.TurnStarted(1, (tr.Message.user("[bold]1 + 2[/bold]?\x1b[2J\tplease"),)),
    r.ModelFinished(1, 0, tr.Message.assistant(tool_calls=CALLS), None),
    r.ToolStarted(1, 0, "c1", "add", "00", "s/1:0:c1"),
    r.ToolFinished(1, 0, tr.ToolResult("c1", "add", "x" * 3000)),
    r.ModelFinished(1, 1, tr.Message.assistant("3"), None),
    r.TurnEnded(1, tr.EndReason.ANSWERED),
)
CUT = (*WHOLE, r.TurnStarted(2, (tr.Message.user("and then?"),)))

AGENTS = """
    import sys

    import trio
    import trio_runner as tr
    from trio_runner.testing import ScriptedModel

    print("imported")


    def make(journal, session):
        print("made")
        model = ScriptedModel([lambda request: print("asked") or "then 4"])
        return tr.ToolAgent("sums", model=model, journal=journal, session=session)


    class Slow:
        async def reply(self, request, emit):
            print("asked", file=sys.stderr, flush=True)
            await trio.sleep_forever()


    def slow(journal, session):
        return tr.ToolAgent("sums", model=Slow(), journal=journal, session=session)


    class Broken:
        async def reply(self, request, emit):
            raise RuntimeError("no network")


    def broken(journal, session):
        return tr.ToolAgent("sums", model=Broken(), journal=journal, session=session)


    def of_another(journal, session):
        return make(journal, "other")


    def without_its_session(journal, session):
        return tr.ToolAgent("sums", model=Broken())


    def elsewhere(journal, session):
        return make(tr.SqliteJournal("elsewhere.db"), session)


    def nothing_made(journal, session):
        return None


    def without_session(journal):
        return tr.ToolAgent("sums", model=Broken())


    def needs_model(model, journal, session):
        return tr.ToolAgent("sums", model=model)


    def raises(journal, session):
        raise RuntimeError("no settings")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with a whole session and one that a crash cut."""
    path = tmp_path / "journal.db"
    file = SessionFile(str(path), durable=False)
    for session_id, records in (("whole", WHOLE), ("cut", CUT)):
        opened = file.open_session(session_id)
        bodies = [codec.encode_record(record) for record in records]
        [[error]] = file.commit([Append(session_id, opened.key, opened.epoch, 0, bodies)])
        assert error is None
    file.close()
    return path


class Finished:
    """What one use of the command left."""

    def __init__(self, result: click.testing.Result) -> None:
        self.status = result.exit_code
        self.out, self.err = result.stdout, result.stderr
        print(self.out, self.err)  # for a test that fails
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception


Run = Callable[..., Finished]


@pytest.fixture
def run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command on the journal, in a directory with a module of agents."""
    (tmp_path / "agents_to_resume.py").write_text(textwrap.dedent(AGENTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("TRIO_RUNNER_JOURNAL", raising=False)

    def run(command: str, *arguments: str, at: Path | None = path) -> Finished:
        where = [] if at is None else ["--path", str(at)]
        runner = click.testing.CliRunner()
        return Finished(runner.invoke(group.cli, ["sessions", command, *arguments, *where]))

    yield run
    sys.modules.pop("agents_to_resume", None)


def damage(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE records SET body = 'x' WHERE session = 1 AND seq = 2")
    connection.close()


# --- list and show --------------------------------------------------------------


def test_a_list_in_a_pipe_is_lines_with_tabs(run: Run) -> None:
    done = run("list")
    rows = [line.split("\t") for line in done.out.splitlines()]

    assert done.status == 0
    assert [row[:4] for row in rows] == [
        ["cut", "unfinished", "2", "8"],
        ["whole", "answered", "1", "7"],
    ]
    assert int(rows[0][4]) > int(rows[1][4]) > 3000
    # Nothing that a terminal obeys, and no tab of the title's.
    assert rows[1][6] == "[bold]1 + 2[/bold]?\\x1b[2J please"
    assert done.err == ""


def test_a_list_at_a_terminal_is_a_table_with_the_damage_below(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(path)
    console = rich.console.Console(force_terminal=True, width=90, color_system=None)
    monkeypatch.setattr(terminal, "console", lambda: console)
    with console.capture() as shown:
        sessions_view.show_list(tr.SqliteJournal(path).summaries(), none="", as_json=False)
    lines = [line.strip() for line in shown.get().splitlines() if line.strip()]

    assert lines[0].split() == "session turns size last used state title".split()
    assert lines[2].startswith("cut ")
    assert "[bold]1 + 2[/bold]?\\x1b[2J" in lines[2]  # no markup, no escape
    [whole] = [line for line in lines[3:] if line.startswith("whole ")]
    assert "damaged" in whole
    assert "whole: record 2 (row 3)" in " ".join(lines[4:])


def test_a_list_as_json_has_every_figure(run: Run) -> None:
    listed = json.loads(run("list", "--json").out)

    assert [each["session_id"] for each in listed] == ["cut", "whole"]
    assert listed[1]["end_reason"] == "answered"
    assert listed[0]["is_unfinished"] is True


def test_a_damaged_session_is_listed_with_the_others(run: Run, path: Path) -> None:
    damage(path)
    done = run("list")

    assert done.status == 0
    assert [line.split("\t")[1] for line in done.out.splitlines()] == ["unfinished", "damaged"]


def test_show_is_the_figures_and_the_turns_with_long_texts_cut(run: Run) -> None:
    done = run("show", "whole")
    lines = done.out.splitlines()

    assert done.status == 0
    assert lines[0].startswith("whole: answered, turns: 1, records: 7, ")
    assert "> [bold]1 + 2[/bold]?\\x1b[2J    please" in lines
    assert "… 1000 more characters" in lines
    assert "\x1b" not in done.out
    assert "x" * 3000 in run("show", "whole", "--full").out


def test_show_as_json_has_the_records(run: Run) -> None:
    shown = json.loads(run("show", "whole", "--json").out)

    assert shown["state"] == "answered"
    assert [each["kind"] for each in shown["content"]][:2] == ["session_opened", "turn_started"]


# --- export, import, fork, delete -----------------------------------------------


def test_an_export_is_imported_again(run: Run, path: Path, tmp_path: Path) -> None:
    assert run("export", "whole", "-o", "whole.jsonl").out == ""
    done = run("import", "whole.jsonl", "again")

    assert done.status == 0
    assert tr.SqliteJournal(path).stored("again") == WHOLE
    assert run("export", "again").out == (tmp_path / "whole.jsonl").read_text()
    again = run("export", "whole", "-o", "whole.jsonl")
    assert again.status == 2
    assert "is there already" in again.err


def test_a_markdown_export_is_the_whole_session(run: Run) -> None:
    done = run("export", "whole", "--format", "markdown")

    assert done.status == 0
    assert done.out.startswith("# `whole`\n\nAgent: `sums`\n\n## Turn 1\n")
    assert "x" * 3000 in done.out


def test_a_fork_and_its_deletion(run: Run, path: Path) -> None:
    forked = run("fork", "cut", "t", "--turn", "1", "--json")
    assert json.loads(forked.out) == {"session_id": "t", "done": "made", "records": 7}
    assert tr.SqliteJournal(path).stored("t") == WHOLE
    refused = run("delete", "t")
    assert refused.status == 2
    assert "--yes deletes without asking" in refused.err
    deleted = run("delete", "t", "--yes")
    assert (deleted.status, deleted.out) == (0, "deleted session 't' with 7 records\n")
    assert "t" not in tr.SqliteJournal(path).sessions()


# --- verify ---------------------------------------------------------------------


def test_verify_is_0_when_all_is_well_and_1_when_not(run: Run, path: Path) -> None:
    well = run("verify")
    assert well.status == 0
    assert well.out.splitlines()[-1] == "Every record is as it was written."
    damage(path)
    bad = run("verify")
    assert bad.status == 1
    assert bad.out.splitlines()[-1] == "DAMAGED: 1 of 2 sessions. Nothing was changed."
    assert "- session 'whole': not what was written: record 2 (row 3). " in bad.out
    report = json.loads(run("verify", "--json").out)
    assert [(each["session_id"], each["ok"]) for each in report["sessions"]] == [
        ("whole", False),
        ("cut", True),
    ]


# --- used wrongly ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "x"), "has no session 'x'"),
        (("export", "x"), "has no session 'x'"),
        (("delete", "x", "--yes"), "has no session 'x'"),
        (("fork", "x", "y"), "has no session 'x'"),
        (("fork", "cut", "t", "--turn", "2"), "turn 2 has not ended"),
        (("fork", "cut", "whole"), "holds 7 records already"),
        (("fork", "cut", "../t"), "the session id is '../t'"),
        (("import", "agents_to_resume.py", "t"), "line 1 of the export"),
        (("import", os.devnull, "t"), "the export is empty"),
        (("import", "one.jsonl", "t"), "the export ends inside turn 1"),
        (("show", "\udcff"), "has no session"),
        (("delete", "\udcff", "--yes"), "has no session"),
        (("resume", "x", "--agent", "agents_to_resume:make"), "has no session 'x'"),
        (
            ("resume", "cut", "--agent", "agents_to_resume:of_another"),
            "of session 'other'; expected",
        ),
        (
            ("resume", "cut", "--agent", "agents_to_resume:without_its_session"),
            "an agent without a session; expected one of session 'cut'",
        ),
        (("resume", "cut", "--agent", "agents_to_resume:elsewhere"), "an agent on another journal"),
        (("resume", "cut", "--agent", "agents_to_resume:nothing_made"), "returned None; expected"),
        (("resume", "whole", "--agent", "agents_to_resume:make"), "nothing to resume"),
        (("resume", "cut", "--agent", "agents_to_resume:nothing"), "has no 'nothing'"),
        (("resume", "cut", "--agent", "agents_to_resume:without_session"), "not take session"),
        (("resume", "cut", "--agent", "agents_to_resume:needs_model"), "needs 'model'"),
        (("resume", "cut", "--agent", "agents_to_resume:raises"), "no settings"),
        (("list", "--what"), "No such option"),
    ],
)
def test_what_cannot_be_done_is_exit_status_2_and_changes_nothing(
    run: Run, path: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    (tmp_path / "one.jsonl").write_bytes(codec.encode_record(CUT[1]))
    before = path.read_bytes()
    done = run(*arguments)

    assert done.status == 2
    assert says in done.err
    assert "asked" not in done.err
    assert "_cli" not in done.err  # no traceback of ours
    assert done.out == ""
    assert not (tmp_path / "elsewhere.db").exists()
    assert tr.SqliteJournal(path).sessions() == ("whole", "cut")
    assert tr.SqliteJournal(path).stored("cut") == CUT
    assert len(path.read_bytes()) == len(before)


def test_a_damaged_session_cannot_be_shown_and_is_exit_status_1(run: Run, path: Path) -> None:
    damage(path)
    done = run("show", "whole")

    assert done.status == 1
    assert "record 2 (row 3)" in done.err
    assert done.out == ""


def test_a_file_that_is_not_there_or_no_journal_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("my notes\n" * 200)

    for command in ("list", "verify"):
        missing = run(command, at=tmp_path / "missing.db")
        assert (missing.status, missing.out) == (2, "")
        assert "there is no file" in missing.err
        wrong = run(command, at=tmp_path / "notes")
        assert (wrong.status, wrong.out) == (2, "")
        assert "is no SQLite file" in wrong.err


def test_the_place_is_the_platforms_unless_a_variable_or_an_option_says_otherwise(
    run: Run, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(name: str, *, appauthor: bool) -> Path:
        return tmp_path / "own"

    monkeypatch.setattr(sessions.platformdirs, "user_data_path", place)
    assert sessions.default_path() == tmp_path / "own" / "sessions.db"
    nothing_yet = run("list", at=None)
    assert (nothing_yet.status, nothing_yet.out) == (0, "")
    own = str(tmp_path / "own" / "sessions.db")
    assert (
        f"there is no file {own!r}, which is the default; --path names another" in nothing_yet.err
    )
    assert not (tmp_path / "own").exists()
    assert "the default; --path names another" in run("verify", at=None).err
    (tmp_path / "one.jsonl").write_bytes(codec.encode_record(WHOLE[0]))
    assert run("import", "one.jsonl", "s", at=None).status == 0
    assert tr.SqliteJournal(tmp_path / "own" / "sessions.db").stored("s") == WHOLE[:1]
    monkeypatch.setenv("TRIO_RUNNER_JOURNAL", str(path))
    assert len(run("list", at=None).out.splitlines()) == 2


def test_an_empty_list_names_the_file_that_was_looked_at(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    SessionFile(str(empty), durable=False).close()
    listed = run("list", at=empty)
    assert (listed.status, listed.out) == (0, "")
    assert f"there are no sessions in {str(empty)!r}" in listed.err
    as_json = run("list", "--json", at=empty)
    assert (as_json.status, as_json.out) == (0, "[]\n")


def test_what_is_no_path_of_a_file_is_exit_status_2(run: Run, tmp_path: Path) -> None:
    loop = tmp_path / "loop.db"
    loop.symlink_to(loop)
    for wrong in (":memory:", loop):
        done = run("list", at=Path(wrong))
        assert (done.status, done.out) == (2, "")


def test_an_unfinished_turn_comes_along_when_it_is_moved(run: Run, path: Path) -> None:
    run("export", "cut", "-o", "cut.jsonl")
    done = run("import", "cut.jsonl", "there", "--moved")
    assert (done.status, done.out) == (0, "made session 'there' with 8 records\n")
    assert tr.SqliteJournal(path).stored("there") == CUT


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [("n", 1, "nothing was deleted"), (click.Abort, 130, "interrupted; nothing was deleted")],
)
def test_a_deletion_that_is_not_confirmed_changes_nothing(
    run: Run,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: object,
    status: int,
    says: str,
) -> None:
    def confirm(*_: object, **__: object) -> bool:
        if answer is click.Abort:
            raise click.Abort
        return False

    monkeypatch.setattr(sessions, "_is_at_a_terminal", lambda: True)
    monkeypatch.setattr(click, "confirm", confirm)
    done = run("delete", "whole")

    assert done.status == status
    assert says in done.err
    assert tr.SqliteJournal(path).sessions() == ("whole", "cut")


# --- resume ---------------------------------------------------------------------


def test_resume_finishes_the_turn_and_shows_the_answer_alone(run: Run, path: Path) -> None:
    done = run("resume", "cut", "--agent", "agents_to_resume:make")

    assert (done.status, done.out) == (0, "then 4\n")
    assert done.err == "imported\nmade\nasked\n"
    [summary] = [e for e in tr.SqliteJournal(path).summaries() if e.session_id == "cut"]
    assert (summary.state, summary.turns) == ("answered", 2)


def test_resume_as_json_is_the_answer_and_how_the_turn_ended(run: Run) -> None:
    done = run("resume", "cut", "--agent", "agents_to_resume.py:make", "--json")

    assert json.loads(done.out) == {
        "session_id": "cut",
        "end_reason": "answered",
        "answer": "then 4",
        "pending": [],
    }


def test_a_turn_that_fails_is_exit_status_1_and_can_be_resumed_again(run: Run) -> None:
    done = run("resume", "cut", "--agent", "agents_to_resume:broken", "--json")

    assert done.status == 1
    assert "no network" in done.err
    assert json.loads(done.out)["end_reason"] == "failed"
    assert run("resume", "cut", "--agent", "agents_to_resume:make").out == "then 4\n"


@pytest.mark.slow
def test_ctrl_c_stops_the_turn_and_keeps_the_session(run: Run, path: Path) -> None:
    arguments = ["resume", "cut", "--agent", "agents_to_resume:slow", "--path", str(path)]
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A parent that ignores SIGINT (a shell's background job) would pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while not process.stderr.readline().startswith("asked"):
            assert process.poll() is None
        other = run("delete", "cut", "--yes")
        assert other.status == 2
        assert f"process {process.pid} " in other.err
        assert len(run("list").out.splitlines()) == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 130
        assert "session 'cut' is kept" in process.stderr.read()
        assert process.stdout.read() == ""
    assert run("resume", "cut", "--agent", "agents_to_resume:make").out == "then 4\n"


@pytest.mark.slow
def test_a_reader_that_leaves_ends_an_export_without_a_word(path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "export", "whole", "--path", str(path)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(LONG) == 1
