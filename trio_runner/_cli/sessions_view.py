"""What ``trio-runner sessions`` shows.

What may live here: text and its colours. A table for people at a terminal, lines
with tabs for programs in a pipe, JSON for those that ask for it. Each function
returns the exit status.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

import rich.box
import rich.table
import rich.text

import trio_runner as tr
import trio_runner._cli.terminal as terminal
from trio_runner.sessions import JournalReport, SessionSummary

#: As wide as an id may be and not be broken.
_ID_WIDTH: Final = 40
_COLOURS: Final[Mapping[str, str]] = MappingProxyType(
    {"damaged": "red", "unfinished": "yellow", "answered": "green"}
)


def show_list(summaries: Sequence[SessionSummary], *, none: str, as_json: bool) -> int:
    """Show a line for each session, the one used last first; ``none`` when there is none."""
    console = terminal.console()
    out = terminal.Output(console)
    newest = sorted(summaries, key=_last_used, reverse=True)
    if not newest:  # an empty stdout says nothing of the place that was looked at
        sys.stderr.write(f"trio-runner sessions: {terminal.printable(none)}\n")
    if as_json:
        out.raw(json.dumps([each.as_json() for each in newest], indent=2) + "\n")
    elif not console.is_terminal:
        for each in newest:
            out.raw("\t".join(_cells(each)) + "\n")
    elif newest:
        out.show(_table(newest))
        for each in newest:
            if each.problem is not None:
                out.line(f"{each.session_id}: {each.problem}", "red")
    return 1 if out.finish() else 0


def _last_used(summary: SessionSummary) -> float:
    return 0.0 if summary.last_at is None else summary.last_at.timestamp()


def _cells(summary: SessionSummary) -> list[str]:
    last = "" if summary.last_at is None else summary.last_at.isoformat(timespec="seconds")
    cells = [summary.session_id, summary.state, str(summary.turns), str(summary.records)]
    cells += [str(summary.size_bytes), last, summary.title, str(summary.compactions)]
    return [_one_line(cell) for cell in cells]


def _one_line(text: object) -> str:
    return terminal.printable(" ".join(str(text).split()))


def _table(summaries: Sequence[SessionSummary]) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE, pad_edge=False)
    # What is too wide is taken from the titles, and from ids only when they are very long.
    widest = max(len(_one_line(each.session_id)) for each in summaries)
    table.add_column("session", overflow="fold", no_wrap=widest <= _ID_WIDTH)
    for title in ("turns", "size"):
        table.add_column(title, justify="right", no_wrap=True)
    compacted = any(each.compactions for each in summaries)
    if compacted:
        table.add_column("compacted", justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("title", overflow="fold")
    for each in summaries:
        table.add_row(
            rich.text.Text(_one_line(each.session_id)),
            str(each.turns),
            size_text(each.size_bytes),
            *([f"{each.compactions}x" if each.compactions else ""] if compacted else []),
            local_text(each.last_at),
            rich.text.Text(each.state, _COLOURS.get(each.state, "")),
            rich.text.Text(_one_line(each.title)),
        )
    return table


def size_text(size_bytes: int) -> str:
    """Return a size as people read it."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def local_text(moment: datetime | None) -> str:
    """Return a moment in the time zone of this machine, to the minute."""
    return "unknown" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M}"


def show_session(summary: SessionSummary, page: str) -> int:
    """Show the figures of a session, and its page."""
    out = terminal.Output(terminal.console())
    torn = f" and {summary.torn} torn" if summary.torn else ""
    out.line(
        f"{summary.session_id}: {summary.state}, turns: {summary.turns}, records: {summary.records}"
        f"{torn}, {size_text(summary.size_bytes)}, {local_text(summary.first_at)} to "
        f"{local_text(summary.last_at)}",
        "bold",
    )
    if summary.compactions:
        out.line(
            f"compacted {_times(summary.compactions)}: summaries took the place of "
            f"{summary.replaced_messages} messages, and the history has {summary.messages}"
        )
    for line in pending_lines(summary.pending):
        out.line(line, "yellow")
    out.line("")
    for line in page.splitlines():
        style = "bold" if line.startswith(("# ", "## ", "**")) else ""
        out.line(line.expandtabs(4), style)
    return 1 if out.finish() else 0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def pending_lines(pending: Sequence[tr.PendingCall]) -> list[str]:
    """A line for each call that waits, and how to decide on it; none without any."""
    if not pending:
        return []
    lines = ["waits for a word on these calls (--approve ID, --deny ID=REASON of resume):"]
    for each in pending:
        what = "approval" if each.waits_for == "approval" else "its result, from the application"
        arguments = _one_line(json.dumps(each.arguments))
        lines.append(_one_line(f"  {each.call_id}: {each.name} {arguments} waits for {what}"))
    return lines


def show_json(summary: SessionSummary, lines: bytes) -> int:
    """Show the figures and the records of a session as one JSON object."""
    records = [json.loads(line) for line in lines.splitlines()]
    out = terminal.Output(terminal.console())
    out.raw(json.dumps({**summary.as_json(), "content": records}, indent=2) + "\n")
    return 1 if out.finish() else 0


def show_report(report: JournalReport, *, as_json: bool) -> int:
    """Show what a check found; 1 when something is wrong."""
    out = terminal.Output(terminal.console())
    if as_json:
        out.raw(report.to_json() + "\n")
    else:
        *lines, verdict = report.render().splitlines()
        for line in lines:
            out.line(line)
        out.line(verdict, "green" if report.ok else "red")
    lost = out.finish()
    return 1 if lost or not report.ok else 0


def done(what: str, session_id: str, records: int, *, as_json: bool) -> int:
    """Say what was done to a session."""
    out = terminal.Output(terminal.console())
    if as_json:
        out.raw(json.dumps({"session_id": session_id, "done": what, "records": records}) + "\n")
    else:
        counted = "1 record" if records == 1 else f"{records} records"
        out.line(f"{what} session {session_id!r} with {counted}")
    return 1 if out.finish() else 0


def write(data: bytes) -> int:
    """Write an export to stdout: the bytes as they are."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the reader has seen enough
        return 1
    return 0
