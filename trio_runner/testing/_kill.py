"""`kill_sweep`: real processes, killed with SIGKILL at every call and at any moment.

What may live here: the parent's side. It plans the kills, has each lived by
the helper process (``_kill_child.py``), and lets ``_kill_judge.py`` compare
what was told with what is stored.
"""

from __future__ import annotations

import collections
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from trio_runner.testing._kill_child import Job
from trio_runner.testing._kill_helper import (
    Helper,
    JournalTarget,
    KillSweepError,
    WorkloadTarget,
    as_name,
)
from trio_runner.testing._kill_judge import Life, Stored, acknowledged_in, judge
from trio_runner.testing._kill_report import (
    KILL_MODES,
    KillFailure,
    KillMode,
    KillPoint,
    KillReport,
    KillViolation,
)
from trio_runner.testing._kill_workload import reference_workload
from trio_runner.testing._sweep import spread


def kill_sweep(
    journal: JournalTarget,
    workload: WorkloadTarget = reference_workload,
    *,
    modes: Sequence[KillMode] = KILL_MODES,
    at_most: int | None = None,
    samples: int = 60,
    pairs: int = 0,
    seed: int = 0,
    timeout: float = 30.0,
    max_failures: int | None = 20,
) -> KillReport:
    """Kill a process that runs turns on a journal, again and again, and check what is left.

    Each kill has a new session. A process lives until it is killed; another one
    opens the session, which must be readable, valid and true, hold everything
    that was acknowledged, and then goes on to the answers, with no side effect
    twice. Linux and macOS only.

    Args:
      journal: ``journal(path)`` makes a journal; nothing is at ``path`` before the first opening.
      workload: what the process runs; see `KillSite`. The default runs two turns with
        parallel tools.
      modes: ``call``: before and after every call of the journal, and at every
        `KillSite.point`; ``line``: after everything that happens; ``byte``: in the middle of the
        write that takes a file beyond so many bytes; ``moment``: at a random moment.
      at_most: kills by ``call`` and by ``line``, each, spread evenly; None: all of them.
      samples: kills by ``byte`` and by ``moment``, each.
      pairs: runs that are killed a second time while they go on.
      seed: chooses bytes, moments and pairs, and seeds `random` in the processes.
      timeout: seconds that one process may take.
      max_failures: stop after so many; None: never.

    Both functions are given by name (``package.module:name``, ``path/to/file.py:name``), or as
    they are: a fresh process imports them where it can, and else this process is forked, which
    must then have one thread.

    Raises:
      KillSweepError: not on this platform, the functions cannot be loaded, or there was no
        moment at which to kill.
      ValueError, TypeError: there is no such mode, or the arguments leave nothing to kill.
    """
    chosen = _chosen_modes(modes)
    _require_kills(chosen, at_most, samples, pairs)
    began = time.monotonic()
    with Helper(journal, workload) as helper:
        sweep = _Sweep(helper, seed, timeout, _replay_words(journal, workload))
        clean = sweep.run(())
        plans: list[tuple[KillPoint, ...]] = []
        skipped = 0
        if not sweep.failures:
            helper.preload = next(clean.told("finished"))["modules"]
            largest, seconds = sweep.measure()
            singles, skipped = _plan(clean, largest, seconds, chosen, at_most, samples, seed)
            plans = [(point,) for point in singles]
            chooser = random.Random(f"{seed} pairs")  # noqa: S311  a sample
            early = [*_calls(clean), *_lines(clean)]
            plans += [(chooser.choice(early), chooser.choice(early)) for _ in range(pairs)]
        for done, plan in enumerate(plans):
            if max_failures is not None and len(sweep.failures) >= max_failures:
                skipped += len(plans) - done
                break
            sweep.run(plan)
        if not plans and not sweep.failures:
            raise KillSweepError(
                f"nothing was killed: the modes {list(chosen)} found no moment of death in the "
                "run; is the journal's path written to before the session is closed?"
            )
    return sweep.report(skipped, time.monotonic() - began)


def replay_kill(
    journal: JournalTarget,
    workload: WorkloadTarget = reference_workload,
    *points: str,
    seed: int = 0,
    timeout: float = 30.0,
) -> KillReport:
    """Run one position of `kill_sweep` again: ``replay_kill("m:f", "m:g", "append 7 before")``.

    Args:
      points: when each process in turn is killed; none: the run without a kill.

    Raises:
      KillSweepError: as `kill_sweep`; or all is well, but a run ended before its point came.
      ValueError: a point is no moment of death.
    """
    began = time.monotonic()
    plan = tuple([KillPoint.parse(point) for point in points])
    with Helper(journal, workload) as helper:
        sweep = _Sweep(helper, seed, timeout, _replay_words(journal, workload))
        first = sweep.run(plan)
    report = sweep.report(0, time.monotonic() - began)
    if report.missed and not report.failures:
        raise KillSweepError(_missed_text(plan, report, first))
    return report


def _missed_text(plan: Sequence[KillPoint], report: KillReport, first: Life) -> str:
    """Say that a point of a replay never came, and which there are."""
    shown = ", ".join([repr(str(point)) for point in plan])
    passed: dict[str, None] = {}
    for line in first.told("finished"):
        passed = {f"{name} … {when}".rstrip(" …"): None for name, when, _ in line["passed"]}
    there = f" It passed {', '.join(passed)}." if passed else ""
    return (
        f"{report.missed} of the points {shown} never came: the run ended before. The code has "
        "changed, or that is another workload's point. The modes are line, byte and moment; any "
        f"other word is a call of the journal or a point of the workload.{there}"
    )


# --- what is killed, and when ---------------------------------------------------


def _chosen_modes(modes: Sequence[KillMode]) -> tuple[KillMode, ...]:
    """The modes of a sweep.

    Raises:
      TypeError: they are a single name.
      ValueError: one of them does not exist, or there is none.
    """
    if isinstance(modes, str):
        raise TypeError(f"modes is {modes!r}; expected several: [{modes!r}] for that one")
    chosen = tuple(modes)
    if not chosen or not set(chosen) <= set(KILL_MODES):
        raise ValueError(f"modes is {list(chosen)!r}; expected some of {list(KILL_MODES)}")
    return chosen


def _require_kills(
    modes: Sequence[KillMode], at_most: int | None, samples: int, pairs: int
) -> None:
    """Refuse numbers that leave nothing to kill.

    Raises:
      ValueError: they do, or one of them is negative.
    """
    for name, number in (("at_most", at_most), ("samples", samples), ("pairs", pairs)):
        if number is not None and number < 0:
            raise ValueError(f"{name} is {number!r}; expected 0 or more")
    limits = {"call": at_most, "line": at_most, "byte": samples, "moment": samples}
    if pairs == 0 and all(limits[mode] == 0 for mode in modes):
        raise ValueError(
            f"nothing would be killed: modes is {list(modes)!r}, at_most {at_most!r}, samples "
            f"{samples!r}, pairs 0. at_most is for call and line, samples for byte and moment; "
            "expected 1 or more for one of the modes"
        )


def _plan(
    clean: Life,
    largest: int,
    seconds: float,
    modes: Sequence[KillMode],
    at_most: int | None,
    samples: int,
    seed: int,
) -> tuple[list[KillPoint], int]:
    """The kills of each mode, and how many positions were left out."""
    plan: list[KillPoint] = []
    skipped = 0
    for mode in modes:
        chooser = random.Random(f"{seed} {mode}")  # noqa: S311  a sample
        match mode:
            case "call" | "line":
                points = _calls(clean) if mode == "call" else _lines(clean)
                kept = [points[index] for index in spread(len(points), at_most)]
                skipped += len(points) - len(kept)
                plan += kept
            case "byte":
                sizes = sorted(chooser.sample(range(1, largest), min(samples, largest - 1)))
                plan += [KillPoint("byte", size) for size in sizes]
            case "moment":
                moments = sorted(chooser.uniform(0, seconds) for _ in range(samples))
                plan += [KillPoint("moment", round(moment, 6)) for moment in moments]
    return plan, skipped


def _calls(clean: Life) -> list[KillPoint]:
    """Every call of the journal, before and after, and every point of the workload's own."""
    passed: list[tuple[str, str, int]] = next(clean.told("finished"))["passed"]
    return [
        KillPoint.parse(f"{name} {number} {when}")
        for name, when, count in passed
        for number in range(count)
    ]


def _lines(clean: Life) -> list[KillPoint]:
    """Everything that was told."""
    return [KillPoint("line", number) for number in range(len(clean.lines))]


class _Sweep:
    """Lives through plans one after the other and keeps the books."""

    def __init__(self, helper: Helper, seed: int, timeout: float, replay_words: str) -> None:
        self._helper = helper
        self._seed = seed
        self._timeout = timeout
        self._replay_words = replay_words
        self._counts: collections.Counter[str] = collections.Counter()
        #: Sums for the report, by the name of its field.
        self._sums: collections.Counter[str] = collections.Counter()
        #: How often each promise was broken.
        self._broken: collections.Counter[str] = collections.Counter()
        self.failures: list[KillFailure] = []

    def run(self, plan: Sequence[KillPoint]) -> Life:
        """Live once for each kill and once to the end; judge it; the first life is returned."""
        with tempfile.TemporaryDirectory(prefix="kill-sweep-") as folder:
            lives = self._lives(Path(folder), plan)
        violations = tuple(judge(lives))
        self._count(plan, lives, violations)
        if violations:
            points = ", ".join([self._replay_words, *[repr(str(point)) for point in plan]])
            line = f"replay_kill({points}, seed={self._seed})"
            output = "".join(life.output for life in lives)
            failure = KillFailure(tuple(plan), self._seed, violations, output, line)
            self.failures.append(failure)
        return lives[0]

    def measure(self) -> tuple[int, float]:
        """How large a file gets before the session is closed, in bytes, and how long that takes."""
        with tempfile.TemporaryDirectory(prefix="kill-sweep-") as folder:
            life = self._live(Path(folder), 0, KillPoint("aclose", 0, "before"), look=False)
            sizes = [path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()]
        return max(sizes, default=1), life.seconds

    def _lives(self, folder: Path, plan: Sequence[KillPoint]) -> list[Life]:
        lives: list[Life] = []
        for number, kill in enumerate([*plan, None]):
            life = self._live(folder, number, kill, look=bool(lives))
            self._read(lives, life)
            if lives and lives[-1].stored.error is not None:
                return lives
            lives.append(life)
            if life.end == "hung":
                break
        self._read(lives, self._live(folder, len(lives), None, look=True, run=False))
        return lives

    def _read(self, lives: list[Life], reader: Life) -> None:
        """What ``reader`` found stored is what the life before it left behind."""
        if not lives:
            return
        for line in reader.told("stored"):
            facts = {name: value for name, value in line.items() if name != "what"}
            lives[-1] = attrs.evolve(lives[-1], stored=Stored(**facts))
            return
        error = f"opening it did not end: {reader.end}"
        lives[-1] = attrs.evolve(lives[-1], stored=Stored(error=error))

    def _live(
        self, folder: Path, number: int, kill: KillPoint | None, *, look: bool, run: bool = True
    ) -> Life:
        moment = kill.number if kill is not None and kill.mode == "moment" else None
        text = str(kill) if kill is not None and moment is None else None
        job = Job(str(folder), number, look, run, text, self._seed, self._timeout)
        limit = self._timeout * (1 + look)
        return attrs.evolve(self._helper.live(job, moment, limit), kill=kill)

    def _count(
        self, plan: Sequence[KillPoint], lives: Sequence[Life], violations: Sequence[KillViolation]
    ) -> None:
        for number, life in enumerate(lives):
            self._sums["effects"] += sum(1 for _ in life.told("effect"))
            self._sums["reruns"] += sum(line["attempt"] > 1 for line in life.told("entered"))
            if life.kill is not None and life.end == "killed":
                self._counts["pair" if number else life.kill.mode] += 1
                self._count_acknowledged(life)
            elif life.kill is not None:
                self._sums["missed"] += 1
        broken = {violation.promise for violation in violations}
        self._broken.update(broken)
        if plan and lives[-1].end == "finished" and not broken & {"goes on", "readable"}:
            self._sums["resumed"] += 1

    def _count_acknowledged(self, life: Life) -> None:
        for acknowledged in acknowledged_in(life):
            self._sums["acknowledged"] += 1
            kinds = [record.partition(":")[0] for record in acknowledged]
            self._sums["results"] += kinds.count("ToolFinished")

    def report(self, skipped: int, seconds: float) -> KillReport:
        """What came of it."""
        return KillReport(
            kills=self._counts.total(),
            counts=dict(self._counts),
            missed=self._sums["missed"],
            skipped=skipped,
            seed=self._seed,
            acknowledged=self._sums["acknowledged"],
            results=self._sums["results"],
            lost=self._broken["C3 kept"],
            unreadable=self._broken["readable"],
            effects=self._sums["effects"],
            effects_twice=self._broken["once"],
            resumed=self._sums["resumed"],
            failures=tuple(self.failures),
            seconds=seconds,
            reruns=self._sums["reruns"],
        )


def _replay_words(journal: JournalTarget, workload: WorkloadTarget) -> str:
    """Both functions as they stand in a call: by their names, or as they are in a script."""
    return ", ".join([_replay_word(target) for target in (journal, workload)])


def _replay_word(target: JournalTarget | WorkloadTarget) -> str:
    name = as_name(target)
    if name is not None:
        return repr(name)
    variable = getattr(target, "__name__", "")
    return variable if variable.isidentifier() else "…"
