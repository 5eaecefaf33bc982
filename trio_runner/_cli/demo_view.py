"""What the demo shows: calls as they start and end, the answer, the summary, the JSON report.

What may live here: text and its colours; nothing that decides anything. All text
from files and servers goes through `terminal.printable`, since a terminal obeys what it is sent.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import rich.console
import trio

import trio_runner as tr
import trio_runner._cli.terminal as terminal
import trio_runner.events as events

_STYLES: Final[Mapping[tr.CallStatus, str]] = {
    tr.CallStatus.OK: "green",
    tr.CallStatus.INTERRUPTED: "yellow",
    tr.CallStatus.NOT_STARTED: "yellow",
    tr.CallStatus.CANCELLED: "yellow",
}


@attrs.frozen
class CallReport:
    """What became of one call of the turn."""

    call: tr.ToolCall
    result: tr.ToolResult

    def as_json(self) -> dict[str, Any]:
        """Return it as the JSON report has it."""
        return {
            "id": self.call.id,
            "name": self.call.name,
            "arguments": self.call.arguments,
            "status": self.result.status.value,
            "seconds": None if self.result.duration is None else round(self.result.duration, 3),
        }


def call_reports(history: Iterable[tr.Message]) -> list[CallReport]:
    """Return every call of a valid history with its result, in order."""
    messages = list(history)
    return [
        CallReport(call, result)
        for asking, answering in itertools.pairwise(messages)
        for call, result in zip(asking.tool_calls, answering.tool_results, strict=True)
    ]


@attrs.frozen
class Report:
    """Everything that is said at the end of the demo."""

    directory: str
    end_reason: str | None
    answer: str | None
    interrupted_by: str | None
    error: str | None
    calls: list[CallReport]
    messages: int
    history_problems: tuple[str, ...]

    def as_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(
            {
                "directory": self.directory,
                "end_reason": self.end_reason,
                "answer": self.answer,
                "interrupted_by": self.interrupted_by,
                "error": self.error,
                "calls": [each.as_json() for each in self.calls],
                "messages": self.messages,
                "history_valid": not self.history_problems,
                "history_problems": list(self.history_problems),
            }
        )


class View(terminal.Output):
    """Writes to the terminal; an observer of the turn.

    When output cannot be written the scope of `stop_with` is cancelled.
    """

    def __init__(self, console: rich.console.Console) -> None:
        super().__init__(console)
        self._calls: dict[str, tr.ToolCall] = {}
        #: What is of no use when nobody reads.
        self._scope: trio.CancelScope | None = None

    def stop_with(self, scope: trio.CancelScope) -> None:
        """Cancel ``scope`` when output cannot be written; at once if it could not."""
        self._scope = scope
        if self._lost is not None:
            scope.cancel()

    def gave_up(self) -> None:
        """Cancel what is of no use when nobody reads."""
        if self._scope is not None:
            self._scope.cancel()

    def on_event(self, event: events.Event) -> None:
        """Show calls as they start and end."""
        match event:
            case events.CallStarted(call=call):
                self._calls[call.id] = call
                self.line(f"  > {terminal.call_text(call)}", "cyan")
            case events.CallFinished(result=result):
                call = self._calls.get(result.call_id) or tr.ToolCall(result.call_id, result.name)
                self.call(CallReport(call, result))
            case _:
                pass

    def call(self, report: CallReport) -> None:
        """Write what became of a call."""
        result = report.result
        took = "" if result.duration is None else f" after {result.duration:.2f} s"
        style = _STYLES.get(result.status, "red")
        self.line(f"  < {terminal.call_text(report.call)}: {result.status.value}{took}", style)

    def summary(self, report: Report) -> None:
        """Write the answer, or where the turn stopped, and the check of the history."""
        self.line("")
        if report.interrupted_by is not None:
            self._interrupted(report)
        elif report.error is not None:
            self.line(f"The turn failed: {report.error}", "red")
        if report.answer is not None:
            self.line(report.answer, "bold")
            self.line("")
        if report.history_problems:
            self.line(f"The history is NOT valid: {'; '.join(report.history_problems)}", "red")
        else:
            count = f"{report.messages} message{'' if report.messages == 1 else 's'}"
            self.line(f"The history is valid: {count}, checked.", "green")

    def _interrupted(self, report: Report) -> None:
        self.line(f"Interrupted by {report.interrupted_by}. The turn has stopped.", "yellow")
        groups = (
            ("finished", _with_status(report, finished=True)),
            ("interrupted, outcome unknown", _of(report, tr.CallStatus.INTERRUPTED)),
            ("never started", _of(report, tr.CallStatus.NOT_STARTED)),
        )
        for what, calls in groups:
            names = ", ".join(terminal.call_text(each.call) for each in calls) or "-"
            self.line(f"  {what} ({len(calls)}): {names}")


def _of(report: Report, status: tr.CallStatus) -> list[CallReport]:
    return [each for each in report.calls if each.result.status is status]


def _with_status(report: Report, *, finished: bool) -> list[CallReport]:
    stopped = (tr.CallStatus.INTERRUPTED, tr.CallStatus.NOT_STARTED)
    return [each for each in report.calls if (each.result.status not in stopped) is finished]
