"""What a kill sweep found: `KillPoint`, `KillFailure`, `KillReport`.

What may live here: frozen results, how they read as text and as JSON, and how
a moment of death is written in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal, Self, get_args

import attrs

#: How a process is killed: at a call of the journal (or a point of the workload's own), at
#: something that happened, in the middle of a write, or at a moment of the clock.
KillMode = Literal["call", "line", "byte", "moment"]
KILL_MODES: Final[tuple[KillMode, ...]] = get_args(KillMode)
#: The names of points that say how the kill comes, rather than at which call.
OTHER_MODES: Final = ("line", "byte", "moment")

_SHOWN_FAILURES: Final = 5
_SHOWN_VIOLATIONS: Final = 6


class KillSweepFailed(AssertionError):
    """A kill sweep found violations.

    Attributes:
      report: the whole report.
    """

    def __init__(self, report: KillReport) -> None:
        self.report = report
        super().__init__(report.render())


@attrs.frozen
class KillPoint:
    """When a process is killed; its text, such as ``append 7 before``, is how it is replayed.

    Attributes:
      name: ``open``, ``append``, ``wait`` or ``aclose`` for a call of the journal; the name of
        a `KillSite.point`; ``line``: right after the process told what happened; ``byte``: when
        a file would grow beyond so many bytes; ``moment``: seconds after the start.
      number: which of them, from 0; the bytes; the seconds.
      when: ``before`` or ``after`` a call; an empty text for all others.
    """

    name: str
    number: float
    when: Literal["before", "after", ""] = ""

    @property
    def mode(self) -> KillMode:
        """How the kill comes."""
        match self.name:
            case "line" | "byte" | "moment":
                return self.name
            case _:
                return "call"

    def __str__(self) -> str:
        """Its text, which `parse` reads."""
        number = int(self.number) if self.number == int(self.number) else self.number
        return f"{self.name} {number} {self.when}".rstrip()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes.

        Raises:
          ValueError: it is no such text.
        """
        match text.split():
            case [name, number]:
                return cls(name, float(number))
            case [name, number, ("before" | "after") as when]:
                return cls(name, float(number), when)
            case _:
                raise ValueError(
                    f"{text!r} is no moment of death; expected a text such as 'append 7 before', "
                    "'line 12', 'byte 4096' or 'moment 0.013'"
                )


@attrs.frozen
class KillViolation:
    """One promise that did not hold.

    Attributes:
      promise: ``readable``, ``C2 valid``, ``C3 kept``, ``C3 in order``, ``C3 durable first``,
        ``C4 true``, ``once``, or ``goes on``.
      text: what was found and what was expected.
    """

    promise: str
    text: str

    def __str__(self) -> str:
        """The promise, then the text."""
        return f"{self.promise}: {self.text}"


@attrs.frozen
class KillFailure:
    """One kill (or several in a row) after which a promise did not hold.

    Attributes:
      points: when each process was killed, in order; none: the run without a kill.
      seed: of the sweep.
      violations: what did not hold.
      output: the last that the processes printed.
      replay: a line of Python that runs just this again.
    """

    points: tuple[KillPoint, ...]
    seed: int
    violations: tuple[KillViolation, ...]
    output: str
    replay: str

    def render(self) -> str:
        """The failure as a few lines of text."""
        killed = ", then ".join(f"killed at {point}" for point in self.points) or "not killed"
        shown = self.violations[:_SHOWN_VIOLATIONS]
        lines = [f"{killed} (seed {self.seed})", *(f"    - {each}" for each in shown)]
        if len(self.violations) > len(shown):
            lines.append(f"    - … and {len(self.violations) - len(shown)} more")
        if self.output:
            lines.append("    printed: " + self.output[-500:].rstrip().replace("\n", "\n      "))
        return "\n".join([*lines, f"    replay: {self.replay}"])


@attrs.frozen
class KillReport:
    """What a kill sweep covered and found.

    Attributes:
      kills: processes that were killed.
      counts: kills by mode; ``pair`` counts those that were killed once more while they went on.
      missed: runs that ended before their moment of death came; they are judged like all others.
      skipped: positions that ``at_most`` or ``max_failures`` left out.
      seed: of the sweep.
      acknowledged: commits that the journal had called durable before a kill.
      results: tool results among them.
      lost: runs in which something acknowledged was not stored (``C3 kept``).
      unreadable: runs whose session did not open (``readable``).
      effects: side effects that were seen.
      effects_twice: runs in which one came twice unasked (``once``).
      resumed: sessions that went on to their answers after the last kill.
      failures: where something did not hold.
      seconds: wall time of the whole sweep.
      reruns: idempotent calls that ran again, under their key, after a kill had cut them.
    """

    kills: int
    counts: Mapping[str, int]
    missed: int
    skipped: int
    seed: int
    acknowledged: int
    results: int
    lost: int
    unreadable: int
    effects: int
    effects_twice: int
    resumed: int
    failures: tuple[KillFailure, ...]
    seconds: float
    reruns: int = 0

    @property
    def ok(self) -> bool:
        """Whether everything held, and a process was killed if one was to be."""
        return not self.failures and (self.kills > 0 or self.missed == 0)

    @property
    def violations(self) -> tuple[KillViolation, ...]:
        """Every violation of every failure, in order."""
        return tuple(each for failure in self.failures for each in failure.violations)

    def render(self) -> str:
        """The report as text; the first failures in full."""
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        each = 1000 * self.seconds / max(1, self.kills)
        covered = (
            f"{self.kills} kills ({counts or 'none'}), {self.missed} missed, seed {self.seed}, "
            f"{self.seconds:.1f} s ({each:.0f} ms each)"
        )
        found = (
            f"{self.acknowledged} commits were acknowledged, with {self.results} tool results: "
            f"{self.lost} runs lost one; {self.unreadable} sessions unreadable; "
            f"{self.effects} side effects, twice unasked in {self.effects_twice} runs; "
            f"{self.reruns} idempotent calls ran again; "
            f"{self.resumed} sessions went on to their answers"
        )
        lines = [covered, found]
        if self.skipped:
            lines.append(f"{self.skipped} positions left out")
        if self.ok:
            return "\n".join([*lines, "no violation"])
        if not self.failures:
            return "\n".join([*lines, "nothing was killed: each run ended before its moment came"])
        lines.append(f"{len(self.failures)} runs with violations:")
        lines += [failure.render() for failure in self.failures[:_SHOWN_FAILURES]]
        if len(self.failures) > _SHOWN_FAILURES:
            lines.append(f"… and {len(self.failures) - _SHOWN_FAILURES} more")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The report as one JSON object: its fields, ``ok``, and each failure in full."""
        data = attrs.asdict(self, recurse=False, filter=lambda field, _: field.name != "failures")
        data["ok"] = self.ok
        data["failures"] = [
            {
                "points": [str(point) for point in failure.points],
                "seed": failure.seed,
                "violations": [attrs.asdict(violation) for violation in failure.violations],
                "output": failure.output,
                "replay": failure.replay,
            }
            for failure in self.failures
        ]
        return json.dumps(data, indent=2)

    def raise_if_failed(self) -> None:
        """Raise `KillSweepFailed`, with the report as its text, unless `ok`."""
        if not self.ok:
            raise KillSweepFailed(self)
