"""What a sweep found: `SweepReport`, and how it reads as text and as JSON.

What may live here: frozen results and their rendering.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping

import attrs

from trio_runner.testing._faults import Landing

_SHOWN_FAILURES = 10
#: How trio names the tasks that the engine starts.
_OURS = "trio_runner.testing._position."


class SweepFailed(AssertionError):
    """A sweep found violations.

    Attributes:
      report: the whole report.
    """

    def __init__(self, report: SweepReport) -> None:
        self.report = report
        super().__init__(report.render())


@attrs.frozen
class Failure:
    """One position at which something was violated.

    Attributes:
      seed: of the scheduler.
      landings: the faults, with where they came; none for the run without a fault.
      violations: one sentence each.
      replay: a line of Python that runs just this position again.
    """

    seed: int
    landings: tuple[Landing, ...]
    violations: tuple[str, ...]
    replay: str

    @property
    def where(self) -> str:
        """The seed and the faults with their places, in one line."""
        if self.landings:
            return f"seed {self.seed}: " + ", then ".join(map(_where, self.landings))
        return f"seed {self.seed}: no fault"

    def render(self) -> str:
        """The failure as a few lines of text."""
        lines = [self.where, *(f"    - {violation}" for violation in self.violations)]
        return "\n".join([*lines, f"    replay: {self.replay}"])


def _where(landing: Landing) -> str:
    relation = "at" if landing.unit == "call" else "before"
    text = f"{landing.fault} {relation} {landing.unit} {landing.position}"
    if not landing.landed:
        return f"{text} (missed)"
    if landing.unit == "step" and landing.position == 0:
        return f"{text} (before it has begun)"
    return f"{text} ({task_text(landing.task)} at {landing.place})"


def task_text(name: str) -> str:
    """A task by its name; the one that the operation runs in has a name of the engine's."""
    return "the main task" if name.startswith(_OURS) else f"task {name!r}"


def _as_plain(landing: Landing) -> dict[str, object]:
    return {**attrs.asdict(landing), "calls": dict(landing.calls)}


@attrs.frozen
class SweepReport:
    """What a sweep covered and found.

    Attributes:
      positions: runs with a fault.
      clean_runs: runs without one, one for each seed.
      skipped: positions that ``sample``, ``max_positions`` or ``max_failures`` left out.
      seeds: the seeds that were used.
      counts: positions for each fault, or pair as ``"cancel+sigint"``.
      end_states: how many positions ended in each end state.
      failures: where something was violated.
      cpu_seconds: CPU time of the whole sweep, all threads.
      unswept: what was not swept although it was asked for, with the reason, in sentences.
      broken_seeds: those whose run without a fault had a violation, or did not end, so that
        nothing was swept with them.
    """

    positions: int
    clean_runs: int
    skipped: int
    seeds: tuple[int, ...]
    counts: Mapping[str, int]
    end_states: Mapping[Hashable, int]
    failures: tuple[Failure, ...]
    cpu_seconds: float
    unswept: tuple[str, ...] = ()
    broken_seeds: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there were positions with each seed, and nothing was violated at any of them."""
        return self.positions > 0 and not self.failures and not self.broken_seeds

    @property
    def violations(self) -> tuple[str, ...]:
        """Every violation of every failure, in order."""
        return tuple(text for failure in self.failures for text in failure.violations)

    def render(self) -> str:
        """The report as text; the first failures in full."""
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        each = 1000 * self.cpu_seconds / max(1, self.positions + self.clean_runs)
        head = (
            f"{self.positions} positions ({counts or 'none'}) and {self.clean_runs} runs without "
            f"a fault, {len(self.seeds)} seeds, {len(self.end_states)} distinct end states, "
            f"{self.cpu_seconds:.1f} s CPU ({each:.1f} ms each)"
        )
        lines = [head]
        if self.skipped:
            share = self.positions / (self.positions + self.skipped)
            lines.append(f"{self.skipped} positions left out: {share:.1%} covered")
        if self.positions == 0:
            why = "; ".join(self.unswept) or "no fault had a position"
            lines.append(f"nothing was swept: {why}")
        else:
            lines += [f"not swept: {what}" for what in self.unswept]
        if self.ok:
            lines.append("no violation")
        elif self.failures:
            lines.append(f"{len(self.failures)} positions with violations:")
            lines += [failure.render() for failure in self.failures[:_SHOWN_FAILURES]]
            if len(self.failures) > _SHOWN_FAILURES:
                lines.append(f"… and {len(self.failures) - _SHOWN_FAILURES} more")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The whole report as a JSON object, every failure in full."""
        return json.dumps(
            {
                "ok": self.ok,
                "positions": self.positions,
                "clean_runs": self.clean_runs,
                "skipped": self.skipped,
                "seeds": self.seeds,
                "counts": dict(self.counts),
                "distinct_end_states": len(self.end_states),
                "end_states": [
                    {"end_state": repr(end), "count": count}
                    for end, count in self.end_states.items()
                ],
                "failures": [
                    {
                        "seed": failure.seed,
                        "faults": [_as_plain(landing) for landing in failure.landings],
                        "violations": failure.violations,
                        "replay": failure.replay,
                    }
                    for failure in self.failures
                ],
                "cpu_seconds": self.cpu_seconds,
                "unswept": self.unswept,
                "broken_seeds": self.broken_seeds,
            },
            indent=2,
        )

    def raise_if_failed(self) -> None:
        """Raise `SweepFailed`, with the report as its text, unless `ok`."""
        if not self.ok:
            raise SweepFailed(self)
