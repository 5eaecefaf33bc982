"""`ContractReport`: what the suite found on an agent, promise by promise.

What may live here: frozen results and their rendering.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import attrs

from trio_runner.testing._report import Failure, SweepReport
from trio_runner.testing.contract import CONTRACT

#: What the suite can say of a promise: it held wherever it was tried; it did not; or it was
#: not tried, or not everywhere, since the turn goes wrong without any fault.
Verdict = Literal["holds", "BROKEN", "not shown"]


@attrs.frozen
class PartReport:
    """One sweep of the suite: how the turn was driven, and what came of it.

    Attributes:
      given, settings: what else the cases were made with, as it stands in a call.
    """

    drive: str
    delay: object
    watched: bool
    report: SweepReport
    given: str = ""
    settings: str = ""

    @property
    def make_case(self) -> str:
        """The expression that makes the cases of this part."""
        watched = ", watched=True" if self.watched else ""
        words = f"{self.given}, drive={self.drive!r}, delay={self.delay!r}{watched}{self.settings}"
        return f"AgentTurn(make_agent{words})"


@attrs.frozen
class PromiseReport:
    """One promise: at how many positions it was broken, and where first.

    Attributes:
      title: what the promise says, in a few words.
      broken_at: the number of positions.
      examples: the sentences that tell how, without repetitions, the first few.
      first: the first position; None when it is not broken.
      part: which part of the suite that is.
      shown: whether it was checked at any position, and in no part of the suite the run
        without a fault went wrong, so that there was nothing to sweep.
    """

    promise: str
    title: str
    broken_at: int = 0
    examples: tuple[str, ...] = ()
    first: Failure | None = None
    part: PartReport | None = None
    shown: bool = True

    @property
    def verdict(self) -> Verdict:
        """What can be said of it."""
        if self.broken_at:
            return "BROKEN"
        return "holds" if self.shown else "not shown"


_SHOWN = 3


class ContractBroken(AssertionError):
    """`check_agent` found violations.

    Attributes:
      report: the whole report.
    """

    def __init__(self, report: ContractReport) -> None:
        self.report: ContractReport = report
        super().__init__(report.render())


@attrs.frozen
class ContractReport:
    """What `check_agent` covered and found.

    Attributes:
      parts: the sweeps, one for each way to drive the turn and each journal.
      left_out: faults that could not be swept, with the reason.
      checked: the promises that were checked; all of them, unless ``checks`` says otherwise.
    """

    parts: tuple[PartReport, ...]
    left_out: Mapping[str, str]
    checked: tuple[str, ...] = tuple(CONTRACT)

    @property
    def ok(self) -> bool:
        """Whether there were positions, and every promise held at each of them.

        A single part may have none: two faults that cannot both come, for instance. One
        whose run without a fault goes wrong has none either, and is not ok.
        """
        return self.positions > 0 and not any(
            part.report.failures or part.report.broken_seeds for part in self.parts
        )

    @property
    def positions(self) -> int:
        """How many positions there were, in all parts."""
        return sum(part.report.positions for part in self.parts)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all parts."""
        return sum(part.report.cpu_seconds for part in self.parts)

    @property
    def promises(self) -> tuple[PromiseReport, ...]:
        """C1-C9 in order, then what belongs to none of them, if there is such a thing."""
        found = [_promise(self, name, check.__doc__ or "") for name, check in CONTRACT.items()]
        other = _promise(self, "", "")
        return (*found, *([other] if other.broken_at else ()))

    def render(self) -> str:
        """The report as text: one line for each promise, then the first failure of each."""
        skipped = sum(part.report.skipped for part in self.parts)
        lines = [
            f"{self.positions} positions in {len(self.parts)} sweeps"
            + (f", {skipped} left out" if skipped else "")
            + f", {self.cpu_seconds:.1f} s CPU"
        ]
        for each in self.promises:
            verdict = each.verdict
            if each.broken_at:
                verdict = f"{verdict} at {each.broken_at} positions"
            lines.append(f"{each.promise or 'other'}  {verdict:<24} {each.title}")
        lines += self.not_swept()
        for each in self.promises:
            if each.first is None or each.part is None:
                continue
            lines += ["", f"{each.promise or 'other'}: {each.title}"]
            lines += [f"    - {example}" for example in each.examples]
            lines += [f"  first at {each.first.where}", f"    make_case = {each.part.make_case}"]
            lines.append(f"    {each.first.replay}")
        return "\n".join(lines)

    def not_swept(self) -> list[str]:
        """What was not swept, in sentences: parts that go wrong without a fault, then faults."""
        broken = [part for part in self.parts if part.report.broken_seeds]
        lines: list[str] = []
        if broken:
            names = ", ".join(dict.fromkeys(_broken_without_a_fault(broken)))
            what = "nothing was swept"
            if self.positions:
                what = f"not swept to the end: {len(broken)} of the {len(self.parts)} sweeps"
            why = f"breaks {names}" if names else "did not end"
            lines.append(f"{what}: the run without a fault {why}")
        elif self.positions == 0:
            lines.append("nothing was swept: no fault had a position")
        by_reason: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            by_reason.setdefault(why, []).append(name)
        said = [f"not swept: {', '.join(names)}: {why}" for why, names in by_reason.items()]
        return [*lines, *said]

    def to_json(self) -> str:
        """The whole report as a JSON object."""
        return json.dumps(
            {
                "ok": self.ok,
                "positions": self.positions,
                "cpu_seconds": self.cpu_seconds,
                "promises": [
                    {
                        "promise": each.promise,
                        "title": each.title,
                        "verdict": each.verdict,
                        "broken_at": each.broken_at,
                        "examples": each.examples,
                    }
                    for each in self.promises
                ],
                "not_swept": self.not_swept(),
                "left_out": dict(self.left_out),
                "parts": [_plain(part) for part in self.parts],
            },
            indent=2,
        )

    def raise_if_failed(self) -> None:
        """Raise `ContractBroken`, with the report as its text, unless `ok`."""
        if not self.ok:
            raise ContractBroken(self)


def _plain(part: PartReport) -> dict[str, Any]:
    return {
        "drive": part.drive,
        "delay": repr(part.delay),
        "watched": part.watched,
        "make_case": part.make_case,
        "report": json.loads(part.report.to_json()),
    }


def _promise(report: ContractReport, name: str, doc: str) -> PromiseReport:
    """Gather what was found about one promise; about none of them for the name ""."""
    count = 0
    examples: dict[str, None] = {}
    first: Failure | None = None
    where: PartReport | None = None
    for part in report.parts:
        for failure in part.report.failures:
            ours = [text for text in failure.violations if _name_of(text) == name]
            if ours:
                count += 1
                examples |= dict.fromkeys(ours)
                if first is None:
                    first, where = failure, part
    title = doc.partition("\n")[0].removeprefix(f"{name}: ").removesuffix(".")
    shown = (
        name in report.checked
        and report.positions > 0
        and not any(part.report.broken_seeds for part in report.parts)
    )
    return PromiseReport(name, title, count, tuple(examples)[:_SHOWN], first, where, shown)


def _broken_without_a_fault(parts: Iterable[PartReport]) -> Iterator[str]:
    """The promises that a run without a fault breaks, in the order in which they are found."""
    for part in parts:
        for failure in part.report.failures:
            if not failure.landings:
                yield from (_name_of(text) or "other" for text in failure.violations)


def _name_of(violation: str) -> str:
    head = violation.partition(":")[0]
    return head if head in CONTRACT else ""
