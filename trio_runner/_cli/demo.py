"""``trio-runner demo``: one turn on a real directory, with nothing but the package.

A scripted model plays the planner; a real MCP server, started over stdio, offers
read-only file tools. Ctrl-C (or SIGTERM) stops the turn wherever it is.

Exit status: 0 answered, 1 failed, 2 used wrongly, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import io
import math
import os
import signal
import sys
from pathlib import Path
from typing import Final

import click
import trio

import trio_runner as tr
import trio_runner._cli.demo_script as demo_script
import trio_runner._cli.demo_view as demo_view
import trio_runner._cli.terminal as terminal
from trio_runner.testing import ScriptedModel
from trio_runner_adapters.mcp import McpServerError, McpToolset

_STATUS: Final = {"SIGINT": 130, "SIGTERM": 143}
#: Seconds one call may take beyond what ``--delay`` asks for.
_CALL_TIMEOUT: Final = 60.0


def _finite(_: click.Context, __: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter("expected a finite number of seconds")
    return value


@click.command()
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The directory to look at; the current one by default. It is only read.",
)
@click.option(
    "--delay",
    type=click.FloatRange(min=0),
    default=0.0,
    callback=_finite,
    help="Slow the tools down by about so many seconds, to try Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON report and nothing else.")
def demo(directory: Path, delay: float, as_json: bool) -> None:
    """Run one turn: a scripted planner and real file tools.

    Several tools run at once. Ctrl-C stops the turn wherever it is.
    """
    for stream in (sys.stdout, sys.stderr):
        # A file's name must not end the demo on a terminal that cannot show it.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    view = demo_view.View(terminal.console(quiet=as_json))
    run = DemoRun(_absolute(directory), delay, view)
    run.run()
    # The turn is over and nothing runs: a further signal would only lose the summary.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report = run.report()
    view.summary(report)
    if as_json:
        view.raw(report.as_json() + "\n")
    lost = view.finish()
    sys.exit(run.exit_status(report) or (1 if lost else 0))


def _absolute(directory: Path) -> Path:
    try:
        return directory.absolute()
    except OSError as error:
        raise click.BadParameter(
            f"the current directory cannot be found: {error.strerror}", param_hint="--directory"
        ) from error


class DemoRun:
    """The demo's turn and how it went."""

    def __init__(self, directory: Path, delay: float, view: demo_view.View) -> None:
        self._directory = directory
        self._view = view
        self._agent = _agent(directory, delay, view)
        #: The signal that stopped it.
        self._stopped_by: str | None = None
        #: Why it failed.
        self._error: str | None = None
        self._answer: str | None = None

    def run(self) -> None:
        """Run the turn to its end, whatever the end is; then nothing is left running."""
        try:
            tr.run(self._main)
        except* KeyboardInterrupt:
            self._stopped_by = self._stopped_by or "SIGINT"
        except* McpServerError as group:
            self._error = str(group.exceptions[0])

    async def _main(self) -> None:
        # Before the server starts, which takes a second: something is to be seen at once.
        self._view.line(f"{demo_script.QUESTION} ({self._directory})", "bold")
        scope = trio.CancelScope()
        self._view.stop_with(scope)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_for_sigterm, scope)
            # Inside: the watch goes on while the agent closes, so a second signal does no harm.
            with scope:
                async with self._agent:
                    await self._turn()
            nursery.cancel_scope.cancel()

    async def _turn(self) -> None:
        async with self._agent.turn(demo_script.QUESTION) as runner:
            async for message in runner:
                if message.tool_calls:
                    self._view.line(f"The model asks for {len(message.tool_calls)} calls:")
            if runner.last_message is not None:
                self._answer = runner.last_message.text

    async def _watch_for_sigterm(
        self,
        scope: trio.CancelScope,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Turn SIGTERM into a cancel of the whole."""
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self._stopped_by = "SIGTERM"
                scope.cancel()

    def report(self) -> demo_view.Report:
        """Return what there is to say; the history is checked here."""
        history = self._agent.history
        try:
            tr.check_history(history)
            problems: tuple[str, ...] = ()
        except tr.HistoryError as error:
            problems = error.problems
        last = self._agent.last_turn
        return demo_view.Report(
            directory=os.fsencode(self._directory).decode("utf-8", "backslashreplace"),
            end_reason=None if last is None else last.end_reason.value,
            answer=self._answer,
            interrupted_by=self._stopped_by,
            error=self._error,
            calls=[] if problems else demo_view.call_reports(history),
            messages=len(history),
            history_problems=problems,
        )

    def exit_status(self, report: demo_view.Report) -> int:
        """Return the exit status that the module's docstring promises."""
        if report.interrupted_by is not None:
            return _STATUS[report.interrupted_by]
        return 1 if report.error is not None or report.history_problems else 0


def _agent(directory: Path, delay: float, view: demo_view.View) -> tr.ToolAgent:
    # -P: the server must not import what happens to lie in the current directory.
    args = ["-P", "-m", "trio_runner_adapters.demo_server", str(directory), "--delay", str(delay)]
    # The server needs to find the same packages; nothing else of our environment is passed on.
    path = os.environ.get("PYTHONPATH")
    files = McpToolset.stdio(
        sys.executable,
        args,
        name="files",
        env=None if path is None else {"PYTHONPATH": path},
        call_timeout=_CALL_TIMEOUT + 2 * delay,
    )
    model = ScriptedModel(demo_script.script())
    return tr.ToolAgent("demo", model=model, tools=[files], observers=[view])
