"""The table of record as Markdown.

What may live here: rendering what the peers' scripts printed. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: The rows, top to bottom: the name a script uses, and what the table says.
ROWS: Final[Mapping[str, str]] = {
    "positions swept": "positions swept",
    "history malformed": "history malformed",
    "result lost": "a returned tool result lost",
    "next request malformed": "next request malformed",
    "next turn refused": "next turn refused",
    "the same, after the documented repair": (
        "next request malformed or turn refused, after the library's documented repair"
    ),
    "cancel swallowed": "cancel swallowed",
    "tool left running": "a tool left running",
    "tool left running after a second cancel": "a tool left running after a second cancel",
    "disk behind memory after a second cancel": "disk behind memory after a second cancel",
    "hanging store: the turn never returns": "hanging store: the turn never returns",
    "kill -9: a returned result lost on disk": "`kill -9`: a returned result lost on disk",
    "bytes written over a turn of n steps": "bytes written over a turn of n steps",
    "another promise of the contract broken": "another promise of our contract broken",
}
#: A cell that was not measured.
NOTHING: Final = "–"


def render(reports: Sequence[Mapping[str, Any]], *, date: str) -> str:
    """The table and the notes below it.

    Args:
      reports: what each script printed, in the order of the columns.
      date: of the measurement.
    """
    heads = [f"{report['name']} {report['version']}" for report in reports]
    lines = [f"| {date} | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for row, title in ROWS.items():
        cells = [_cell(report, row) for report in reports]
        if any(cell != NOTHING for cell in cells):
            lines.append(f"| {title} | {' | '.join(cells)} |")
    notes = [line for report in reports for line in _notes(report)]
    return "\n".join([*lines, "", *notes]) + "\n"


def _cell(report: Mapping[str, Any], row: str) -> str:
    return str(report["rows"].get(row, NOTHING)).replace("|", "\\|")


def _notes(report: Mapping[str, Any]) -> list[str]:
    if "error" in report:
        return [f"* {report['name']}: not measured: {report['error']}"]
    return [
        f"* {report['name']}, {ROWS.get(row, row)}: {text}."
        for row, text in report["notes"].items()
    ]
