"""What ``trio-runner check`` shows: progress, the promises as a table, the first failures.

What may live here: text and its colours; nothing that decides anything. What
comes from the user's code goes through `terminal.printable`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from types import MappingProxyType
from typing import Final

import rich.box
import rich.console
import rich.live
import rich.table
import rich.text

import trio_runner as tr
import trio_runner._cli.terminal as terminal
from trio_runner.testing import ContractReport, PromiseReport

#: Of the verdicts on a promise.
_COLOURS: Final = MappingProxyType({"holds": "green", "BROKEN": "red", "not shown": "yellow"})


def plan_text(batches: Sequence[Sequence[tr.ToolCall]]) -> str:
    """Return what the scripted turn does, in a sentence."""
    steps = [", ".join(map(terminal.call_text, batch)) for batch in batches]
    return f"The turn: {'; then '.join([*steps, 'the answer'])}."


def show(out: terminal.Output, report: ContractReport, imports: Sequence[str]) -> None:
    """Write the report: counts, a table, what was left out, each broken promise, the verdict."""
    skipped = sum(part.report.skipped for part in report.parts)
    out.line(
        f"{report.positions} positions in {len(report.parts)} "
        + ("sweep" if len(report.parts) == 1 else "sweeps")
        + (f", {skipped} more left out" if skipped else "")
        + f", {report.cpu_seconds:.1f} s CPU"
    )
    out.show(_table(report))
    for line in report.not_swept():
        out.line(line, "yellow")
    broken = [each for each in report.promises if each.broken_at]
    for each in broken:
        _show_broken(out, each)
    if report.ok:
        out.line("Every promise holds.", "green")
        return
    if not broken:
        out.line("NOT SHOWN", "red")
        return
    out.line("")
    out.line("To replay one of these, put these lines before its own:")
    for line in imports:
        out.line(f"    {line}")
    out.line("")
    names = ", ".join(each.promise or "other" for each in broken)
    out.line(f"BROKEN: {names}", "red")


def _table(report: ContractReport) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE, pad_edge=False)
    for title in ("promise", "verdict", "positions", "what it says"):
        table.add_column(title, justify="right" if title == "positions" else "left")
    for each in report.promises:
        verdict = rich.text.Text(each.verdict, _COLOURS[each.verdict])
        table.add_row(each.promise or "other", verdict, str(each.broken_at or ""), each.title)
    return table


def _show_broken(out: terminal.Output, promise: PromiseReport) -> None:
    if promise.first is None or promise.part is None:
        return
    out.line("")
    out.line(f"{promise.promise or 'other'}: {promise.title}", "bold")
    for example in promise.examples:
        out.line(f"  - {example.removeprefix(f'{promise.promise}: ')}")
    out.line(f"  first at {promise.first.where}")
    out.line(f"    make_case = {promise.part.make_case}")
    out.line(f"    print({promise.first.replay}.violations)")


@contextlib.contextmanager
def progress(console: rich.console.Console | None) -> Generator[Callable[[str], None]]:
    """Give a function that shows what is being swept; rich shows it on a terminal only.

    The line is rewritten when it is told something, and no thread is started:
    a sweep wants the process for itself.
    """
    if console is None:
        yield lambda _: None
        return
    with rich.live.Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        begun = 0

        def tell(part: str) -> None:
            nonlocal begun
            begun += 1
            live.update(rich.text.Text(f"sweep {begun}: {part} …", "cyan"), refresh=True)

        yield tell


def progress_console() -> rich.console.Console | None:
    """Return the console for `progress`: stderr as it is now, whatever replaces it later."""
    return None if sys.stderr is None else rich.console.Console(file=sys.stderr)
