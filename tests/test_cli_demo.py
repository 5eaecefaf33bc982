"""`trio-runner demo`: in any directory, interrupted, in JSON, and without its extras.

The processes here are real and use real time; the bounds only guard against
waiting for ever.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click.testing
import pytest

import trio_runner as tr
import trio_runner._cli.demo as demo
import trio_runner._cli.demo_script as demo_script
import trio_runner._cli.demo_view as demo_view
import trio_runner._cli.terminal as terminal
import trio_runner.abc as abc
from trio_runner._core.params import DEFAULT_PARAMS

#: Seconds after which a test takes something for hanging.
LONG = 120.0
COMMAND = [sys.executable, "-P", "-c", "from trio_runner._cli import main; main()"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "demo", *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A parent that ignores SIGINT (a shell's background job) would pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=LONG)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def report_of(*arguments: str, cwd: Path) -> tuple[int, dict[str, Any]]:
    status, out, err = finished(start("--json", *arguments, cwd=cwd))
    assert err == ""
    return status, json.loads(out)


def servers_of(directory: Path) -> list[str]:
    """The demo servers that still run on a directory; read from /proc."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"trio_runner_adapters.demo_server" in line and os.fsencode(directory) in line:
                found.append(entry.name)
    return found


# --- the command ----------------------------------------------------------------


@pytest.mark.slow
def test_the_turn_shows_its_calls_and_answers_from_the_real_results_on_an_odd_tree(
    tmp_path: Path,
) -> None:
    (tmp_path / "README.md").write_text("\n# A little project\n")
    (tmp_path / "a.py").write_text("1\n2  # TODO: three\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "away").symlink_to("/etc")
    (tmp_path / os.fsdecode(b"not\xfftext")).write_text("TODO\n")
    (tmp_path / "line\nbreak \x1b[31m").write_text("license " * 500_000)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    status, out, err = finished(start(cwd=tmp_path))
    assert (status, err) == (0, "")
    for name in ("list_files", "count_lines", "search_text", "read_file"):
        assert f"  > {name}(" in out
        assert f"  < {name}(" in out
    assert "5 files with 6 lines of text" in out
    assert "'TODO' stands in 2 lines of 4 text files, first in a.py, line 2." in out
    assert "first in line\\nbreak \\x1b[31m, line 1" in out
    assert "\x1b" not in out  # a file's name must not command the terminal
    assert "README.md begins: # A little project" in out
    assert "The history is valid: 6 messages, checked." in out
    assert servers_of(tmp_path) == []


@pytest.mark.slow
def test_json_is_one_report_and_nothing_of_the_directory_is_imported_or_in_the_way(
    tmp_path: Path,
) -> None:
    odd = tmp_path / os.fsdecode(b"d\xff")
    odd.mkdir()
    for name in ("mcp", "trio", "json", "trio_runner"):
        (odd / f"{name}.py").write_text("raise SystemExit('imported from the directory')\n")
    status, report = report_of("--directory", str(odd), cwd=odd)
    assert status == 0
    assert report["directory"] == f"{tmp_path}/d\\xff"
    assert (report["end_reason"], report["history_valid"]) == ("answered", True)
    assert (report["interrupted_by"], report["error"]) == (None, None)
    expected = ["list_files", "count_lines", *["search_text"] * 2, *["read_file"] * 3]
    assert [call["name"] for call in report["calls"]] == expected
    assert {call["status"] for call in report["calls"]} == {"ok"}
    assert all(call["seconds"] >= 0 for call in report["calls"])
    assert "4 files with 4 lines of text" in report["answer"]


@pytest.mark.slow
def test_an_empty_directory_is_answered(tmp_path: Path) -> None:
    status, report = report_of(cwd=tmp_path)
    assert status == 0
    assert report["answer"].startswith("There are no files here.")
    assert len(report["calls"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_stops_the_turn_and_the_summary_is_true(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    (tmp_path / "a.py").write_text("1\n")
    process = start("--delay", "10", cwd=tmp_path)
    assert process.stdout is not None
    seen: list[str] = []
    # list_files waits half the delay, so it ends while the other three still run.
    while not (seen and seen[-1].startswith("  < list_files")):
        line = process.stdout.readline()
        assert line, (seen, process.stderr and process.stderr.read())
        seen.append(line)
    process.send_signal(number)
    returned, out, err = finished(process)
    assert (returned, err) == (status, "")
    assert f"Interrupted by {number.name}" in out
    assert "finished (1): list_files(" in out
    assert "interrupted, outcome unknown (3): count_lines(" in out
    assert "never started (0): -" in out
    assert "The history is valid: 3 messages, checked." in out
    assert servers_of(tmp_path) == []


@pytest.mark.slow
def test_a_signal_before_the_first_call_is_told_in_json_too(tmp_path: Path) -> None:
    process = start("--delay", "30", "--json", cwd=tmp_path)
    while not servers_of(tmp_path):
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    returned, out, err = finished(process)
    report = json.loads(out)
    assert (returned, err) == (130, "")
    assert (report["interrupted_by"], report["history_valid"]) == ("SIGINT", True)
    assert "ok" not in {call["status"] for call in report["calls"]}
    assert servers_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_two_signals_at_once_still_end_with_the_summary(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = start("--delay", "30", cwd=tmp_path)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("  > "):
        assert process.poll() is None
    process.send_signal(number)
    # The first has been seen when its call is told; the server is still being closed then.
    while not process.stdout.readline().startswith("  < "):
        assert process.poll() is None
    process.send_signal(number)
    returned, out, err = finished(process)
    assert (returned, err) == (status, "")
    assert "The history is valid" in out
    assert servers_of(tmp_path) == []


def _do_nothing(_: demo.DemoRun) -> None:
    pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_summary_is_written_does_not_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    real = demo.DemoRun.report

    def report(self: demo.DemoRun) -> demo_view.Report:
        signal.raise_signal(number)
        return real(self)

    monkeypatch.setattr(demo.DemoRun, "run", _do_nothing)
    monkeypatch.setattr(demo.DemoRun, "report", report)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        arguments = ["--json", "--directory", str(tmp_path)]
        done = click.testing.CliRunner().invoke(demo.demo, arguments)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert done.exit_code == 0
    assert json.loads(done.output)["history_valid"] is True


@pytest.mark.parametrize(
    "arguments",
    [["--directory", "no/such/directory"], ["--delay", "-1"], ["--delay", "nan"], ["--what"]],
)
def test_wrong_usage_is_exit_status_2(arguments: list[str]) -> None:
    done = click.testing.CliRunner().invoke(demo.demo, arguments)
    assert done.exit_code == 2
    assert "Usage" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["click", "rich", "mcp"])
def test_a_missing_extra_is_said_with_the_remedy(tmp_path: Path, missing: str) -> None:
    program = f"""
        import sys
        sys.modules[{missing!r}] = None  # importing it now fails as if it were not installed
        from trio_runner._cli import main
        main()
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program), "demo"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert repr(missing) in done.stderr
    assert "pip install 'trio-runner[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


# --- the script -----------------------------------------------------------------


def request(*messages: tr.Message) -> abc.ModelRequest:
    return abc.ModelRequest(messages, messages, (), DEFAULT_PARAMS)


def asked_and_answered(
    *pairs: tuple[str, Mapping[str, Any] | str], arguments: Mapping[str, Any] | None = None
) -> Sequence[tr.Message]:
    calls = [
        tr.ToolCall(f"c{place}", name, dict(arguments or {}))
        for place, (name, _) in enumerate(pairs)
    ]
    results = [
        tr.ToolResult(call.id, call.name, answer, status=tr.CallStatus.ERROR)
        if isinstance(answer, str)
        else tr.ToolResult(call.id, call.name, "{}", structured_content=dict(answer))
        for call, (_, answer) in zip(calls, pairs, strict=True)
    ]
    return [tr.Message.assistant(tool_calls=calls), tr.Message.user(tool_results=results)]


def entry(path: str, size: int = 10, kind: str = "file") -> dict[str, Any]:
    return {"path": path, "kind": kind, "bytes": size}


def read_paths(*entries: dict[str, Any], matches: Sequence[str] = ()) -> list[str]:
    _, closer_look, _ = demo_script.script()
    found = {"matches": [{"path": path} for path in matches]}
    history = asked_and_answered(("list_files", {"entries": list(entries)}), ("search_text", found))
    calls: Sequence[tr.ToolCall] = closer_look(request(*history))  # type: ignore[operator]
    return [str(call.arguments["path"]) for call in calls]


def test_the_planner_reads_a_readme_first_then_files_with_matches_then_big_ones() -> None:
    chosen = read_paths(
        entry("big", 900), entry("small", 5), entry("x/README.md"), matches=["small"]
    )
    assert chosen == ["x/README.md", "small", "big"]


def test_the_planner_does_not_choose_what_cannot_be_read() -> None:
    chosen = read_paths(
        entry("link", kind="link"),
        entry("empty", 0),
        entry("huge", 10**9),
        entry("b\\xff"),
        entry("f"),
    )
    assert chosen == ["f"]


def test_without_a_file_to_read_the_second_reply_is_the_answer() -> None:
    _, closer_look, _ = demo_script.script()
    history = asked_and_answered(("list_files", {"entries": []}))
    assert isinstance(closer_look(request(*history)), str)  # type: ignore[operator]


def test_the_planner_does_not_choose_files_of_a_kind_that_has_no_lines() -> None:
    _, closer_look, _ = demo_script.script()
    kinds = [{"suffix": ".bin", "lines": 0}, {"suffix": "(none)", "lines": 0}]
    history = asked_and_answered(
        ("list_files", {"entries": [entry("a.BIN"), entry("b"), entry("c.py")]}),
        ("count_lines", {"by_suffix": [*kinds, {"suffix": ".py", "lines": 3}]}),
    )
    calls: Sequence[tr.ToolCall] = closer_look(request(*history))  # type: ignore[operator]
    assert [call.arguments["path"] for call in calls] == ["c.py"]


def answered(tool: str, **data: Any) -> str:
    _, _, answer = demo_script.script()
    whole = {"cut": None, "unreadable": 0, "not_entered": 0, **data}
    history = asked_and_answered((tool, whole), arguments={"text": "TODO"})
    text = cast("Any", answer)(request(*history))
    return str(text)


def counted(files: int, **data: Any) -> str:
    kinds = [{"suffix": ".py", "lines": 2, "files": files}]
    return answered("count_lines", files=files, lines=2, bytes=9, by_suffix=kinds, **data)


def test_the_answer_says_no_files_only_when_everything_was_seen() -> None:
    assert counted(0) == "There are no files here."
    assert counted(0, cut="time limit") == "No file was seen: time limit."
    assert counted(0, unreadable=2) == "No file was seen: 2 places could not be read."


def test_the_answer_says_what_it_does_not_cover() -> None:
    said = counted(1, cut="time limit", unreadable=2, not_entered=1)
    assert "in all (time limit; 2 could not be read)." in said
    assert "1 directory, such as .git, was not looked into." in said
    assert "3 directories, such as .git, were" in counted(1, not_entered=3)
    said = answered("search_text", matches=[], files_searched=3, unreadable=1)
    assert said == "'TODO' stands nowhere in 3 text files (1 could not be read)."
    said = answered("search_text", matches=[], files_searched=0)
    assert said == "There was no text file to search for 'TODO'."


def test_the_answer_says_which_tools_failed_and_why() -> None:
    _, _, answer = demo_script.script()
    history = asked_and_answered(("count_lines", "the disk\nis on fire"), ("list_files", "no"))
    text: Any = answer(request(*history))  # type: ignore[operator]
    assert "count_lines gave no answer (error): the disk is on fire" in text
    assert "list_files gave no answer" in text


# --- the view -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("é中", "é中"),
        ("\u202e", "\\u202e"),
        ("\r", "\\r"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert terminal.printable(text) == shown


def test_a_call_is_shown_on_one_bounded_line() -> None:
    shown = terminal.call_text(tr.ToolCall("1", "t", {"text": "x\n" * 1000}))
    assert "\n" not in shown
    assert len(shown) < 100


def test_a_history_that_is_not_valid_is_reported_and_fails() -> None:
    report = demo_view.Report("d", None, None, None, None, [], 1, ("a call has no result",))
    assert json.loads(report.as_json())["history_valid"] is False
