"""Whole sessions as values: what a list shows of each, where one may be cut, what a check found.

What may live here: frozen values and pure functions over records. Whoever reads the
file for them is ``_admin.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import attrs

import trio_runner._core.records as r
import trio_runner._core.values as v
import trio_runner._journal.faults as faults
from trio_runner._core.approval import PendingCall, pending_calls
from trio_runner._core.fold import fold
from trio_runner._core.quick import ByFields
from trio_runner._core.turn import Phase

#: No separator of paths, no blank, nothing that a shell or a terminal takes for its own, and no
#: two spellings that look the same; and never the beginning of an option or of "..".
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]{0,127}")
_TITLE_LENGTH: Final = 80


def check_id(session_id: str) -> None:
    """Refuse an id that a new session may not have.

    Raises:
      SessionIdError: it is not 1 to 128 ASCII letters, digits and ``_.:@+=-``, of which the
        first is a letter, a digit or ``_``.
    """
    if type(session_id) is not str or _SAFE_ID.fullmatch(session_id) is None:
        raise faults.SessionIdError(
            f"the session id is {session_id!r}; expected 1 to 128 characters out of A-Z, a-z, 0-9 "
            "and _.:@+=- , beginning with a letter, a digit or _. Nothing was changed"
        )


# --- what a list shows ------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class SessionSummary(ByFields):
    """One session of a journal, as a list shows it.

    Attributes:
      session_id: its id.
      records: how many records it holds.
      size_bytes: what they take, encoded.
      turns: how many turns were begun.
      messages: how many messages its history has now.
      title: the first line of the first thing that was asked; may be empty.
      agent: the name of the agent that opened it first; empty when no record says so.
      first_at, last_at: when the first and the last record were written, in UTC; None when
        there are none, or that cannot be known.
      compactions: how many times a summary took the place of older messages.
      replaced_messages: how many messages those summaries took the place of, older summaries
        among them.
      end_reason: how the newest turn ended; None when it has no end, or there is none.
      is_unfinished: the newest turn has no end: it is running, or a crash cut it.
      problem: why the session cannot be read, with the place; None when it can. Then only
        ``records`` and ``size_bytes`` say anything.
      torn: records at the end of the file that are not as they were written; the next opening
        for writing, of any session, takes them out.
      pending: the calls of the newest turn that wait for a word, when it is suspended, or a
        crash came while its approver was asked.
    """

    session_id: str
    records: int
    size_bytes: int
    turns: int = 0
    messages: int = 0
    title: str = ""
    agent: str = ""
    first_at: datetime | None = None
    last_at: datetime | None = None
    end_reason: v.EndReason | None = None
    is_unfinished: bool = False
    problem: str | None = None
    torn: int = 0
    compactions: int = 0
    replaced_messages: int = 0
    pending: tuple[PendingCall, ...] = ()

    @property
    def state(self) -> str:
        """In a word: ``damaged``, ``unfinished``, ``new`` (no turn yet), or the end reason."""
        if self.problem is not None:
            return "damaged"
        if self.is_unfinished:
            return "unfinished"
        return "new" if self.end_reason is None else self.end_reason.value

    def as_json(self) -> dict[str, Any]:
        """Every field as plain JSON; times as ISO 8601 text."""
        fields: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in attrs.fields(type(self))
        }
        for name in ("first_at", "last_at"):
            fields[name] = None if fields[name] is None else fields[name].isoformat()
        fields["pending"] = [each.as_json() for each in self.pending]
        fields["end_reason"] = None if self.end_reason is None else self.end_reason.value
        return {**fields, "state": self.state}


def summarise(
    session_id: str,
    records: Sequence[r.Record],
    *,
    size_bytes: int = 0,
    first_at: datetime | None = None,
    last_at: datetime | None = None,
    torn: int = 0,
) -> SessionSummary:
    """Sum up one session from its records; linear in their number.

    Raises:
      RecordError: they do not fit together.
    """
    state = fold(records)
    turn = state.turn
    compactions, replaced = _compactions(records)
    return SessionSummary(
        session_id,
        len(records),
        size_bytes,
        turns=state.turns,
        messages=len(state.history),
        title=_title(records),
        agent=next((each.agent for each in records if type(each) is r.SessionOpened), ""),
        first_at=first_at,
        last_at=last_at,
        end_reason=None if turn is None else turn.end_reason,
        is_unfinished=turn is not None and turn.phase is not Phase.ENDED,
        torn=torn,
        compactions=compactions,
        replaced_messages=replaced,
        pending=pending_calls(turn),
    )


def _compactions(records: Iterable[r.Record]) -> tuple[int, int]:
    """How many there were, and how many messages they replaced."""
    count = replaced = front = 0
    for record in records:
        match record:
            case r.HistoryReplaced(messages=messages):
                # The only way in which templates come or go.
                front = sum(message.template for message in messages)
            case r.Compacted(upto=upto, kept=kept):
                count += 1
                replaced += upto - front - sum(stop - start for start, stop in kept)
            case _:
                pass
    return count, replaced


def _title(records: Iterable[r.Record]) -> str:
    for record in records:
        match record:
            case r.TurnStarted(input=messages) | r.HistoryReplaced(messages=messages):
                for message in messages:
                    if message.role == "user" and not message.template and message.text.strip():
                        return _clipped(message.text.strip().splitlines()[0])
            case _:
                pass
    return ""


def _clipped(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _TITLE_LENGTH else f"{line[: _TITLE_LENGTH - 1]}…"


# --- where a session may be cut ---------------------------------------------------


def records_to_fork(
    session_id: str, records: Sequence[r.Record], turn: int | None
) -> tuple[r.Record, ...]:
    """The records up to the end of ``turn``; None: all but those of a turn that has not ended.

    A fork never holds an open call, so a call cannot run in two sessions. With a number it
    is the session as it was when that turn ended; without, also what was done to the
    history since, such as a compaction or a clear. Turn 0 is what was there before the
    first turn.

    Raises:
      NoSuchSessionError: there is no such turn, or it has not ended.
    """
    begun: dict[int, int] = {}
    ended: dict[int, int] = {0: 0}
    newest = 0
    for index, record in enumerate(records):
        match record:
            case r.TurnStarted(turn=newest):
                begun.setdefault(newest, index)
                # One that goes on has no end until it ends again.
                ended.pop(newest, None)
            case r.TurnEnded(turn=number, end_reason=reason):
                if reason is not v.EndReason.SUSPENDED:
                    ended[number] = index + 1
            case _:
                pass
    ended[0] = min(begun.values(), default=len(records))
    if turn is None:
        return tuple(records if newest in ended else records[: begun[newest]])
    wanted = turn
    if wanted not in ended:
        listed = ", ".join(map(str, sorted(ended)))
        found = "has not ended" if wanted in begun else "is not there"
        raise faults.NoSuchSessionError(
            f"session {session_id!r}: turn {wanted} {found}; expected one of {listed} "
            "(0: before the first turn). Nothing was changed"
        )
    return tuple(records[: ended[wanted]])


def check_ended(records: Sequence[r.Record]) -> None:
    """Refuse records whose last turn has not ended, or waits with open calls.

    Raises:
      JournalFormatError: it has not.
    """
    turn = fold(records).turn
    if turn is not None and (turn.phase is not Phase.ENDED or turn.is_suspended):
        raise faults.JournalFormatError(
            f"the export ends inside turn {turn.number}: resumed in both sessions, its calls would "
            "run twice. Nothing was changed. Fork the session and export the fork; or, when the "
            "session that was exported is not gone on with, import it as moved (moved=True or "
            "--moved)"
        )


# --- what a check found -----------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class SessionCheck(ByFields):
    """What `SqliteJournal.verify` found on one session.

    Attributes:
      records: how many are there; when ``problem`` is None all of them are as they were
        written, but for the last ``torn``.
      torn: records at the very end of the file that are not as they were written.
      problem: what is wrong and at which records; None when nothing is.
    """

    session_id: str
    records: int
    torn: int = 0
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every record is there, as it was written, and fits those before it."""
        return self.problem is None and not self.torn


@attrs.frozen(eq=False, repr=False)
class JournalReport(ByFields):
    """What `SqliteJournal.verify` found.

    Attributes:
      path: the file.
      sessions: one for each session that holds records or should.
      problems: what is wrong with the file as a whole.
    """

    path: str
    sessions: tuple[SessionCheck, ...]
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and all(each.ok for each in self.sessions)

    @property
    def records(self) -> int:
        """How many records were checked."""
        return sum(each.records for each in self.sessions)

    def render(self) -> str:
        """The report as text: counts, one line for each thing that is wrong, the verdict."""
        sessions = _counted(len(self.sessions), "session")
        lines = [f"{self.path}: {sessions}, {_counted(self.records, 'record')} checked"]
        lines += [f"- the file: {problem}" for problem in self.problems]
        for each in self.sessions:
            if each.problem is not None:
                lines.append(f"- session {each.session_id!r}: {each.problem}")
            if each.torn:
                lines.append(
                    f"- session {each.session_id!r}: a torn tail, the last {each.torn} of its "
                    f"{_counted(each.records, 'record')}; the next opening for writing, of any "
                    "session, takes it out and keeps it aside"
                )
        bad = sum(not each.ok for each in self.sessions)
        if self.ok:
            return "\n".join([*lines, "Every record is as it was written."])
        parts = ["the file"] if self.problems else []
        parts += [f"{bad} of {sessions}"] if bad else []
        return "\n".join([*lines, f"DAMAGED: {' and '.join(parts)}. Nothing was changed."])

    def to_json(self) -> str:
        """The report as one JSON object."""
        sessions = [
            {
                "session_id": each.session_id,
                "ok": each.ok,
                "records": each.records,
                "torn": each.torn,
                "problem": each.problem,
            }
            for each in self.sessions
        ]
        report = {
            "path": self.path,
            "ok": self.ok,
            "records": self.records,
            "problems": list(self.problems),
            "sessions": sessions,
        }
        return json.dumps(report, indent=2)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
