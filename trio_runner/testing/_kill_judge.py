"""What must hold after a kill: the lives of a session against what is stored.

What may live here: `Life` (what one process told, and how it ended), `Stored`
(what the session then held), and one function for each promise. All of it is
pure: no process, no file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import attrs

from trio_runner.testing._kill_report import KillPoint, KillViolation

#: What a process told: ``what`` happened, and what belongs to it.
Line = Mapping[str, Any]


@attrs.frozen
class Stored:
    """What a process found that opened the session.

    Attributes:
      error: why it did not open; None when it did.
      misfit: why its records do not fit together; None when they do.
      records: a fingerprint of each record.
      started: id, key and attempt of each call that was recorded to start.
      results: id, status and text of each result.
      replies: a fingerprint of each reply.
      ends: the end reason of each turn that ended.
      turns: how many turns there are.
      open: whether the newest turn goes on.
      problems: what is not valid in the conversation.
    """

    error: str | None = None
    misfit: str | None = None
    records: Sequence[str] = ()
    started: Sequence[Sequence[Any]] = ()
    results: Sequence[Sequence[str]] = ()
    replies: Sequence[str] = ()
    ends: Sequence[str] = ()
    turns: int = 0
    open: bool = False
    problems: Sequence[str] = ()


@attrs.frozen
class Life:
    """One process that worked on the session, and what was stored after it.

    Attributes:
      kill: when it was to be killed; None: it was to reach its end.
      lines: what it told, in order.
      stored: what the session held afterwards.
      end: how it ended: ``finished``, ``killed``, ``hung``, or what went wrong.
      output: the last that it printed.
      seconds: from when the workload began to its end.
    """

    kill: KillPoint | None
    lines: Sequence[Line]
    stored: Stored
    end: str
    output: str = ""
    seconds: float = 0.0

    def told(self, what: str) -> Iterator[Line]:
        """What it told under that name."""
        return (line for line in self.lines if line["what"] == what)


def acknowledged_in(life: Life) -> Iterator[Sequence[str]]:
    """The records of each append that the life saw acknowledged."""
    for _, appends, _ in _openings(life):
        yield from (append.records for append in appends if append.fate == "acknowledged")


def judge(lives: Sequence[Life]) -> list[KillViolation]:
    """Everything that does not hold over the lives of one session, promise by promise."""
    for life in lives:
        if life.stored.error is not None:
            # Nothing else can be said of a session that does not open.
            what = f"the session does not open after {_death(life)}: {life.stored.error}"
            return [KillViolation("readable", what)]
    found = [
        KillViolation(promise, text) for promise, check in PROMISES.items() for text in check(lives)
    ]
    return list(dict.fromkeys(found))


def _death(life: Life) -> str:
    return f"the kill at {life.kill}" if life.end == "killed" else "the end"


# --- it opens, and is valid -------------------------------------------------------


def _readable(lives: Sequence[Life]) -> Iterator[str]:
    for life in lives:
        if life.stored.misfit is not None:
            yield f"what is stored after {_death(life)} makes no session: {life.stored.misfit}"


def _valid(lives: Sequence[Life]) -> Iterator[str]:
    for life in lives:
        for problem in life.stored.problems:
            yield f"after {_death(life)}: {problem}"


# --- C3: what was acknowledged is stored, whole and in order ----------------------


@attrs.define
class _Append:
    """One append of a life: its number, its records, and what became of it."""

    number: int
    records: Sequence[str]
    fate: str = "open"


def _openings(life: Life) -> Iterator[tuple[Sequence[str], list[_Append], Sequence[str]]]:
    """Each opening of the session in a life: what it found, its appends, what was found next."""
    base: Sequence[str] | None = None
    appends: list[_Append] = []
    for line in life.lines:
        match line["what"]:
            case "opened":
                if base is not None:
                    yield base, appends, line["records"]
                base, appends = line["records"], []
            case "appends":
                appends.append(_Append(line["append"], line["records"]))
            case "acknowledged" | "failed" as fate:
                appends[line["append"]].fate = fate
            case _:
                pass
    if base is not None:
        yield base, appends, life.stored.records


def _some(records: Sequence[str]) -> str:
    shown = ", ".join(records[:3])
    return f"[{shown}, and {len(records) - 3} more]" if len(records) > 3 else f"[{shown}]"


def _mismatch(
    base: Sequence[str], appends: Sequence[_Append], stored: Sequence[str]
) -> tuple[str, str] | None:
    """The promise that ``stored`` breaks, and how: it is ``base`` and then some of the appends."""
    if list(stored[: len(base)]) != list(base):
        return "C3 kept", f"stored was {_some(base)}, and now it is {_some(stored)}"
    rest = list(stored[len(base) :])
    for append in appends:
        records = list(append.records)
        if append.fate == "failed":
            continue
        if not rest:
            if append.fate == "acknowledged":
                text = f"append {append.number} was acknowledged and is lost: {_some(records)}"
                return "C3 kept", text
        elif rest[: len(records)] == records:
            rest = rest[len(records) :]
        else:
            what = "only a part of it" if rest == records[: len(rest)] else "something else"
            where = f"behind record {len(stored) - len(rest)}"
            text = f"append {append.number} ({append.fate}) is {_some(records)}"
            promise = "C3 kept" if append.fate == "acknowledged" else "C3 in order"
            return promise, f"{text}, and {where} {what} is stored: {_some(rest)}"
    if rest:
        return "C3 in order", f"nobody appended what is stored at the end: {_some(rest)}"
    return None


def _stored_as_appended(promise: str) -> Callable[[Sequence[Life]], Iterator[str]]:
    def check(lives: Sequence[Life]) -> Iterator[str]:
        before: Sequence[str] = ()
        for life in lives:
            openings = list(_openings(life))
            found = [_mismatch(*opening) for opening in openings]
            if not openings:
                found = [_mismatch(before, (), life.stored.records)]
            elif list(openings[0][0]) != list(before):
                found.append(
                    ("C3 kept", f"{_some(before)} was read, and then {_some(openings[0][0])}")
                )
            for each in found:
                if each is not None and each[0] == promise:
                    yield f"after {_death(life)}: {each[1]}"
            before = life.stored.records

    return check


# --- C3: nothing happens before what it depends on is durable ---------------------


@attrs.define
class _Known:
    """What was durable as far as a life knew, at some moment of it."""

    #: Ids and keys of calls that were recorded to start.
    started: set[tuple[str, str]]
    #: Ids of calls with a result.
    results: set[str]
    #: Fingerprints of replies.
    replies: set[str]

    @classmethod
    def stored(cls, stored: Stored) -> Self:
        known = cls(set(), set(), set())
        known.add(stored.started, stored.results, stored.replies)
        return known

    def add(
        self,
        started: Sequence[Sequence[Any]],
        results: Sequence[Sequence[str]],
        replies: Sequence[str],
    ) -> None:
        self.started |= {(call, key) for call, key, _ in started}
        self.results |= {call for call, _, _ in results}
        self.replies |= set(replies)


def _durable_first(lives: Sequence[Life]) -> Iterator[str]:
    before = Stored()
    for life in lives:
        yield from _acts_on_what_is_durable(life, before)
        before = life.stored


def _acts_on_what_is_durable(life: Life, before: Stored) -> Iterator[str]:
    # What the life was told in time, and what is there in the end: it must be in both.
    told, stored = _Known.stored(before), _Known.stored(life.stored)
    appends: dict[int, Line] = {}
    for line in life.lines:
        match line["what"]:
            case "failed":
                return  # best effort: a failure that was reported holds nothing up
            case "appends":
                appends[line["append"]] = line
            case "acknowledged":
                append = appends[line["append"]]
                told.add(append["started"], append["results"], append["replies"])
            case "entered" | "asked" | "handed_out":
                for did, needed in _missing(line, told):
                    yield f"{did} before {needed} was known to be durable"
                for did, needed in _missing(line, stored):
                    yield f"{did}, and after {_death(life)} {needed} is not stored"
            case _:
                pass


def _missing(line: Line, known: _Known) -> Iterator[tuple[str, str]]:
    """What the life did, and what it needed that is not among ``known``."""
    match line["what"]:
        case "entered" if (line["call"], line["key"]) not in known.started:
            yield f"call {line['call']} ran", "its start"
        case "asked":
            for call, _ in line["results"]:
                if call not in known.results:
                    yield "the model was asked again", f"the result of call {call}"
        case "handed_out" if line["message"] not in known.replies:
            yield "a message was handed out", "it"
        case _:
            pass


# --- C4 ---------------------------------------------------------------------------


def _true(lives: Sequence[Life]) -> Iterator[str]:
    entered: set[str] = set()
    returned: dict[str, list[str | None]] = {}
    raised: set[str] = set()
    for life in lives:
        entered |= {line["call"] for line in life.told("entered")}
        raised |= {line["call"] for line in life.told("raised")}
        for line in life.told("returned"):
            returned.setdefault(line["call"], []).append(line["text"])
        started = {call for call, _, _ in life.stored.started}
        for call, status, text in life.stored.results:
            said = f"call {call} is stored as {status}"
            match status:
                case "ok" if call not in returned:
                    yield f"{said}, and its tool never returned"
                case "ok" if text not in returned[call] and None not in returned[call]:
                    yield f"{said} with {text!r}, and its tool returned {returned[call]}"
                case "error" if call not in raised | set(returned):
                    yield f"{said}, and its tool never raised"
                case "unknown_after_crash" if call not in started:
                    yield f"{said}, and no start of it is"
                case "not_started" if call in entered:
                    yield f"{said}, and its tool was entered"
                case "interrupted":
                    yield f"{said}; after a crash expected unknown_after_crash"
                case _:
                    pass


# --- side effects -----------------------------------------------------------------


def _once(lives: Sequence[Life]) -> Iterator[str]:
    entries: dict[str, list[Line]] = {}
    # By call and effect: the keys under which it came.
    effects: dict[tuple[str, str], list[str]] = {}
    had_result: set[str] = set()
    for life in lives:
        for line in life.told("entered"):
            entries.setdefault(line["call"], []).append(line)
            if line["call"] in had_result:
                yield f"call {line['call']} ran again although its result was stored"
        for line in life.told("effect"):
            effects.setdefault((line["call"], line["effect"]), []).append(line["key"])
        had_result = {call for call, _, _ in life.stored.results}
    for call, lines in entries.items():
        keys = {line["key"] for line in lines}
        attempts = [line["attempt"] for line in lines]
        if len(lines) > 1 and not all(line["idempotent"] for line in lines):
            yield f"call {call} is not idempotent and ran {len(lines)} times"
        elif len(keys) > 1:
            yield f"call {call} ran again under another key: {sorted(keys)}"
        elif attempts != sorted(set(attempts)):
            yield f"call {call} ran again, and its attempts are {attempts}; expected a new number"
    for (call, what), came in effects.items():
        lines = entries.get(call, [])
        repeatable = bool(lines) and all(line["idempotent"] for line in lines)
        if len(came) > 1 and not repeatable:
            yield f"the side effect {what!r} of call {call} came {len(came)} times"
        elif len(set(came)) > 1:
            yield f"the side effect {what!r} of call {call} came under the keys {sorted(set(came))}"


# --- the session goes on ----------------------------------------------------------


def _goes_on(lives: Sequence[Life]) -> Iterator[str]:
    for life in lives:
        # A write that is cut short may also come back as an error, as on a full disk.
        cut_short = life.kill is not None and life.kill.mode == "byte" and life.end != "hung"
        if cut_short:
            continue
        if life.end not in {"finished", "killed"}:
            yield f"life {lives.index(life)} ended: {life.end}"
        for line in life.told("failed"):
            yield f"append {line['append']} failed, and nothing was wrong: {line['error']}"
    last = lives[-1]
    if last.end != "finished" or last.kill is not None:
        return
    if not any(line["turns"] for line in last.told("planned")):
        yield (
            "the workload ended without having driven a turn, so nothing was shown; expected it "
            "to call site.drive(agent, …) with the inputs of its turns"
        )
    for line in last.told("planned"):
        stored, wanted = last.stored, line["turns"]
        answered = list(stored.ends).count("answered")
        if (stored.turns, answered, stored.open) != (wanted, wanted, False):
            yield (
                f"{wanted} turns were to be answered; stored are {stored.turns}, they ended "
                f"{list(stored.ends)}, and the newest {'goes on' if stored.open else 'is over'}"
            )


#: One check for each promise, in the order of the report.
PROMISES: Final[Mapping[str, Callable[[Sequence[Life]], Iterator[str]]]] = {
    "readable": _readable,
    "C2 valid": _valid,
    "C3 kept": _stored_as_appended("C3 kept"),
    "C3 in order": _stored_as_appended("C3 in order"),
    "C3 durable first": _durable_first,
    "C4 true": _true,
    "once": _once,
    "goes on": _goes_on,
}
