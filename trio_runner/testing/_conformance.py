"""What a conformance kit finds: rules, their findings, and the `ConformanceReport`.

What may live here: the values that all kits share, and how they read as text
and as JSON. What is checked stands in ``_check_journal.py``, ``_check_model.py``
and ``_check_toolset.py``; how a check is run, in ``_stages.py``.
"""

from __future__ import annotations

import collections
import inspect
import json
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import attrs
import trio

from trio_runner.testing._faults import SweepError
from trio_runner.testing._outcome import errors_in
from trio_runner.testing._surroundings import quiet_log

KitT = TypeVar("KitT")

#: What became of a rule.
RuleStatus = Literal["ok", "advice", "violated", "not_applicable"]

_SHOWN_FINDINGS = 4


class ConformanceFailed(AssertionError):
    """A conformance kit found broken promises.

    Attributes:
      report: the whole report.
    """

    def __init__(self, report: ConformanceReport) -> None:
        self.report: ConformanceReport = report
        super().__init__(report.render())


class KitMisuse(Exception):
    """What a kit was given is wrong, so that nothing can be said of the implementation.

    `run_rules` makes a ValueError of it.
    """


def required(make: Callable[[], Any], kind: str, members: Iterable[str]) -> Callable[[], Any]:
    """``make``, whose object is refused when it lacks a member of what it should be.

    Raises:
      TypeError: ``make`` cannot be called; an object was given, for instance.
    """
    if not callable(make):
        raise TypeError(
            f"found {make!r}; expected a function that makes a {kind}, new for each run: "
            f"its class, or lambda: …"
        )

    def checked(made: Any) -> Any:
        missing = [name for name in members if not hasattr(made, name)]
        if missing:
            raise KitMisuse(
                f"{_name(make)} made {made!r}, which has no {', '.join(missing)}; expected a {kind}"
            )
        return made

    async def later(made: Awaitable[Any]) -> Any:
        return checked(await made)

    def made() -> Any:
        thing = make()
        if inspect.isawaitable(thing):
            return later(thing)
        # What a context manager gives is known when it is entered.
        return thing if hasattr(thing, "__aenter__") else checked(thing)

    return made


def _name(make: Callable[[], Any]) -> str:
    return getattr(make, "__qualname__", repr(make))


@attrs.frozen
class Finding:
    """One thing that is not as it was promised.

    Attributes:
      rule: the name of the rule.
      promised_by: where the promise stands, such as ``JournalSession.append; C3``.
      found: what was seen.
      expected: what should have been seen.
      remedy: what to do about it.
    """

    rule: str
    promised_by: str
    found: str
    expected: str
    remedy: str

    def render(self) -> str:
        """The finding as one sentence."""
        return (
            f"{self.rule} ({self.promised_by}): found {self.found}; "
            f"expected {self.expected}; to do: {self.remedy}"
        )


class Findings:
    """Collects what one rule finds. Equal findings count once."""

    def __init__(self, rule: str, promised_by: str) -> None:
        self.violations: collections.Counter[Finding] = collections.Counter()
        self.advice: collections.Counter[Finding] = collections.Counter()
        #: Why the rule could not be checked; empty when it could.
        self.why_not: str = ""
        self._rule = rule
        self._promised_by = promised_by

    def violated(self, found: str, *, expected: str, remedy: str) -> None:
        """Note a broken promise."""
        self.violations[Finding(self._rule, self._promised_by, found, expected, remedy)] += 1

    def advise(self, found: str, *, expected: str, remedy: str) -> None:
        """Note what is allowed, but not as good as it could be."""
        self.advice[Finding(self._rule, self._promised_by, found, expected, remedy)] += 1

    def not_applicable(self, why: str) -> None:
        """Note that the rule cannot be checked, and what it would take."""
        self.why_not = why

    def raised(self, error: BaseException, doing: str) -> None:
        """Note an exception that should not have come.

        Raises:
          KitMisuse: it says that the kit was used wrongly.
        """
        for each in errors_in(error):
            if isinstance(each, KitMisuse):
                raise each
        self.violated(
            f"{_shown(error)} while {doing}",
            expected="no exception",
            remedy="see the place in your code that the message names",
        )


@attrs.frozen
class ConformanceRule(Generic[KitT]):
    """One rule of a kit.

    Attributes:
      name: the claim.
      promised_by: the protocol's member whose docstring makes the promise, and
        the promises of the contract (C1-C9) that rest on it.
      promise: the promise in a sentence.
      check: runs the implementation and notes what it finds. Called outside trio.
    """

    name: str
    promised_by: str
    promise: str
    check: Callable[[KitT, Findings], None]


@attrs.frozen
class RuleReport:
    """What became of one rule.

    Attributes:
      name: of the rule.
      promised_by: where its promise stands.
      promise: the promise in a sentence.
      status: ``ok``, ``advice`` (kept, with something to better), ``violated``,
        or ``not_applicable`` (``note`` says what it would take to check it).
      findings: what was found, each once.
      counts: in how many runs each finding came up; as long as ``findings``.
      note: why the rule was not checked.
    """

    name: str
    promised_by: str
    promise: str
    status: RuleStatus
    findings: tuple[Finding, ...] = ()
    counts: tuple[int, ...] = ()
    note: str = ""

    def render(self) -> str:
        """The rule as a line, with its findings below it."""
        lines = [f"{self.status:<14} {self.name} ({self.promised_by}): {self.promise}"]
        if self.note:
            lines.append(f"    {self.note}")
        shown = zip(self.findings[:_SHOWN_FINDINGS], self.counts, strict=False)
        for finding, count in shown:
            times = "" if count == 1 else f" (in {count} runs)"
            lines += [
                f"    - found: {finding.found}{times}",
                f"      expected: {finding.expected}",
                f"      to do: {finding.remedy}",
            ]
        if len(self.findings) > _SHOWN_FINDINGS:
            lines.append(f"    … and {len(self.findings) - _SHOWN_FINDINGS} more findings")
        return "\n".join(lines)


@attrs.frozen
class ConformanceReport:
    """What a conformance kit checked and found.

    Attributes:
      kit: the name of the kit, such as ``check_journal``.
      subject: what was checked.
      rules: each rule that was asked for, in the kit's order.
      runs: how many trio runs it took.
    """

    kit: str
    subject: str
    rules: tuple[RuleReport, ...]
    runs: int

    @property
    def ok(self) -> bool:
        """Whether no rule is violated. Advice and rules that do not apply are no violation."""
        return not self.violations

    @property
    def violations(self) -> tuple[str, ...]:
        """A sentence for each broken promise: ``RULE (promise): found …; expected …; to do …``."""
        return tuple(
            [
                finding.render()
                for rule in self.rules
                if rule.status == "violated"
                for finding in rule.findings
            ]
        )

    def status_of(self, rule: str) -> RuleStatus:
        """What became of a rule.

        Raises:
          KeyError: the rule was not among those that were asked for.
        """
        statuses: dict[str, RuleStatus] = {each.name: each.status for each in self.rules}
        return statuses[rule]

    def render(self) -> str:
        """The report as text: what is not ``ok`` in full, the rest as a count."""
        counts = collections.Counter(rule.status for rule in self.rules)
        said = ", ".join(
            f"{count} {status.replace('_', ' ')}" for status, count in sorted(counts.items())
        )
        head = f"{self.kit} on {self.subject}: {len(self.rules)} rules in {self.runs} runs: {said}"
        return "\n".join([head, *(rule.render() for rule in self.rules if rule.status != "ok")])

    def to_json(self) -> str:
        """The report as JSON: an object with the fields of this class, and ``ok``."""
        return json.dumps({"ok": self.ok, **attrs.asdict(self)}, ensure_ascii=False, indent=2)

    def raise_if_failed(self) -> None:
        """Raise `ConformanceFailed`, with the report as its text, unless `ok`."""
        if not self.ok:
            raise ConformanceFailed(self)


def chosen_rules(
    table: Mapping[str, ConformanceRule[KitT]], names: Iterable[str] | None
) -> Sequence[ConformanceRule[KitT]]:
    """The rules with these names, in the order of the table; None: all.

    Raises:
      ValueError: no rule has that name, or there is none.
    """
    if names is None:
        return list(table.values())
    wanted = {names} if type(names) is str else set(names)
    if not wanted:
        raise ValueError(f"rules is empty; expected some of {list(table)}, or None for all")
    unknown = wanted - set(table)
    if unknown:
        raise ValueError(f"there is no rule {sorted(unknown)!r}; expected some of {list(table)}")
    return [rule for name, rule in table.items() if name in wanted]


def run_rules(rules: Sequence[ConformanceRule[KitT]], kit: KitT) -> tuple[RuleReport, ...]:
    """Check each rule on its own.

    Raises:
      SweepError: the implementation cannot be run on the mock clock.
      ValueError: the kit was given something wrong.
    """
    reports: list[RuleReport] = []
    for rule in rules:
        findings = Findings(rule.name, rule.promised_by)
        try:
            with quiet_log():
                rule.check(kit, findings)
        except KitMisuse as misuse:
            raise ValueError(str(misuse)) from misuse.__cause__
        except SweepError as error:
            error.add_note(
                f"while checking {rule.name}. An implementation with real threads, sockets or "
                "processes is checked with real_time=True"
            )
            raise
        reports.append(_report_of(rule, findings))
    return tuple(reports)


def _report_of(rule: ConformanceRule[Any], findings: Findings) -> RuleReport:
    kept: collections.Counter[Finding] = collections.Counter()
    status: RuleStatus = "ok"
    if findings.violations:
        status, kept = "violated", findings.violations
    elif findings.why_not:
        status = "not_applicable"
    elif findings.advice:
        status, kept = "advice", findings.advice
    return RuleReport(
        rule.name,
        rule.promised_by,
        rule.promise,
        status,
        tuple(kept),
        tuple(kept.values()),
        findings.why_not if status == "not_applicable" else "",
    )


def _shown(error: BaseException) -> str:
    """The error with the last place that it came through."""
    if isinstance(error, trio.Cancelled):
        return "trio.Cancelled"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{error!r}{where}"
