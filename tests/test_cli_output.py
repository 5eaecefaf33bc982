"""What `trio-runner demo` does when it cannot write, or cannot begin. Real processes."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click.testing
import pytest

import trio_runner._cli as cli
import trio_runner._cli.demo as demo
import trio_runner._cli.demo_view as demo_view
import trio_runner._cli.terminal as terminal

#: Seconds after which a test takes something for hanging.
LONG = 50.0
COMMAND = [sys.executable, "-P", "-c", "from trio_runner._cli import main; main()", "demo"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=LONG,
        check=False,
        **options,
    )


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1\n")
    process = subprocess.Popen(
        [*COMMAND, "--delay", "60"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process:
        assert process.stderr.read() == ""
        # Well before its tools would have ended: nobody reads what they find.
        assert process.wait(LONG) == 1


@pytest.mark.slow
def test_a_reader_that_dies_of_the_same_ctrl_c_does_not_hide_the_status(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--delay", "30"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A parent that ignores SIGINT (a shell's background job) would pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert process.stdout is not None
    assert process.stderr is not None
    while not process.stdout.readline().startswith("  > "):
        assert process.poll() is None
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    with process:
        assert process.stderr.read() == ""
        assert process.wait(LONG) == 130


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_full_disk_is_said_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*arguments, cwd=tmp_path, stdout=full)
    assert done.returncode == 1
    assert done.stderr == "trio-runner: cannot write the output: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["", "--json"])
def test_without_a_stdout_it_still_ends_quietly(tmp_path: Path, arguments: str) -> None:
    command = ["/bin/sh", "-c", f'exec "$@" {arguments} >&-', "sh", *COMMAND]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=LONG, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_current_directory_that_is_gone_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = click.testing.CliRunner().invoke(demo.demo, [])
    assert done.exit_code == 2
    assert "current directory" in done.output


def test_a_ctrl_c_before_the_command_is_loaded_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "trio-runner: interrupted before the command began\n"


def test_the_question_is_shown_before_the_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    async def opening(_: object) -> None:
        seen.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo.tr.ToolAgent, "__aenter__", opening)
    demo.DemoRun(tmp_path, 0.0, demo_view.View(terminal.console(quiet=False))).run()
    assert seen[0].startswith("What is in this directory?")
