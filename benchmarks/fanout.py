"""Fan-out and depth: a batch of ours against a bare trio nursery doing the same work.

    python benchmarks/fanout.py [--quick] [--rounds N] [--json FILE] [--callgrind] [SECTION ...]

Everything that is compared runs side by side, in turns; what counts are the
ratios. The numbers at the end of each section are held against the budget.
``README.md`` beside this file says what each section measures.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import attrs
import child_processes
import measuring
import workloads

#: The competitors of a batch. The first is the floor, the others are held against it.
BATCHES: Final[dict[str, workloads.Prepare]] = {
    "bare": workloads.bare_batch,
    "bare, scopes": workloads.bare_scoped_batch,
    "generate": workloads.batch(),
    "own scopes": workloads.batch(scopes=True),
    "function tool": workloads.batch(kind="function"),
    "journal": workloads.batch(journal=True),
}
STEPS: Final[dict[str, workloads.Prepare]] = {
    "bare": workloads.bare_steps,
    "no journal": workloads.steps(),
    "journal": workloads.steps(journal=True),
    "own scopes": workloads.steps(scopes=True),
}

CALL_BUDGET: Final = 2.0
SCOPED_CALL_BUDGET: Final = 2.4
STEP_BUDGET: Final = 4.0
GROWTH_BUDGET: Final = 1.05
MAKESPAN_BUDGET: Final = 2.0
IMPORT_BUDGET: Final = 1.4
PEAK_BYTES_BUDGET: Final = 4096


@attrs.frozen
class Parameters:
    """What is run; printed with the results."""

    rounds: int
    calls: tuple[int, ...]
    depths: tuple[int, ...]
    import_rounds: int
    makespan_rounds: int
    callgrind_calls: tuple[int, int]


QUICK: Final = Parameters(
    rounds=3,
    calls=(1, 10, 100, 1000),
    depths=(10, 100, 500),
    import_rounds=3,
    makespan_rounds=5,
    callgrind_calls=(100, 300),
)
FULL: Final = Parameters(
    rounds=7,
    calls=(1, 2, 5, 10, 50, 100, 500, 1000, 5000, 10_000),
    depths=(10, 50, 199, 1000, 5000),
    import_rounds=9,
    makespan_rounds=15,
    callgrind_calls=(100, 600),
)


class Report:
    """What was found, printed as it comes and kept for ``--json``."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.over_budget: list[str] = []

    def budget(self, what: str, found: float, limit: float) -> None:
        """Hold a figure against its budget."""
        fits = found <= limit
        print(f"  {what:<58} {found:8.2f}  budget {limit:g}  {'ok' if fits else 'OVER'}")
        self.figures[what] = {"found": found, "budget": limit}
        if not fits:
            self.over_budget.append(what)

    def table(self, title: str, unit: str, rows: dict[int, dict[str, float]]) -> None:
        """Print microseconds per item, and the ratio to the first column."""
        self.figures[title] = {"unit": unit, "rows": rows}
        names = list(next(iter(rows.values())))
        print(f"\n{title}: CPU µs per {unit} (× {names[0]})")
        print(f"{'n':>7}" + "".join([f"{name:>22}" for name in names]))
        for count, row in rows.items():
            floor = row[names[0]]
            cells = [f"{row[name]:10.1f} ({row[name] / floor:5.2f} ×)" for name in names]
            print(f"{count:>7}" + "".join([f"{cell:>22}" for cell in cells]))


# --- sections -------------------------------------------------------------------


def fan_out(report: Report, parameters: Parameters) -> None:
    """One batch of N calls."""
    rows = _rows(BATCHES, parameters.calls, parameters.rounds, at_least=1000)
    report.table("A batch of n calls", "call", rows)
    at = 1000 if 1000 in rows else max(rows)
    floor = rows[at]["bare"]
    for name, limit in [
        ("generate", CALL_BUDGET),
        ("function tool", CALL_BUDGET),
        ("own scopes", SCOPED_CALL_BUDGET),
    ]:
        report.budget(f"a call of {at}, {name}: × bare trio", rows[at][name] / floor, limit)
    _growth(report, "a batch", rows, smallest=100)


def depth(report: Report, parameters: Parameters) -> None:
    """A turn of N steps with one call each."""
    rows = _rows(STEPS, parameters.depths, parameters.rounds, at_least=100)
    report.table("A turn of n steps", "step", rows)
    for count, row in rows.items():
        ratio = row["journal"] / row["bare"]
        report.budget(f"a step of {count}, memory journal: × bare trio", ratio, STEP_BUDGET)
    _growth(report, "a turn", rows, smallest=10)


def makespan(report: Report, parameters: Parameters) -> None:
    """64 staggered tools: how much later than the longest the batch is through."""
    seconds = [0.001 + 0.049 * i / 63 for i in range(64)]
    competitors: dict[str, workloads.Prepare] = {
        "bare": lambda _: workloads.bare_sleepers(seconds),
        "ours": lambda _: workloads.sleepers(seconds),
    }
    taken = measuring.interleaved(
        competitors, 1, rounds=parameters.makespan_rounds, clock=time.perf_counter
    )
    over = {name: each - max(seconds) for name, each in taken.items()}
    report.figures["makespan over the longest, seconds"] = over
    print("\n64 staggered tools (1 to 50 ms): wall time over the longest sleep")
    print("  " + ", ".join([f"{name} {each * 1e3:.2f} ms" for name, each in over.items()]))
    report.budget(
        "makespan over the longest: × bare trio", over["ours"] / over["bare"], MAKESPAN_BUDGET
    )


def memory(report: Report, parameters: Parameters) -> None:
    """The marginal peak of memory per call."""
    print("\nPeak bytes per call (marginal, tracemalloc)")
    for name, prepare in BATCHES.items():
        found = measuring.peak_bytes_per_item(prepare, 500, 1500)
        if name.startswith("bare"):
            print(f"  {name}: {found:.0f}")
        else:
            report.budget(f"peak bytes per call, {name}", found, PEAK_BYTES_BUDGET)


def imports(report: Report, parameters: Parameters) -> None:
    """How long the import takes, in new processes."""
    taken = child_processes.import_seconds(
        {"trio, attrs": "import trio, attrs", "trio_runner": "import trio_runner"},
        rounds=parameters.import_rounds,
    )
    report.figures["import, CPU seconds"] = taken
    print("\nImport: CPU time within a new process")
    print("  " + ", ".join([f"{name} {each * 1e3:.0f} ms" for name, each in taken.items()]))
    ratio = taken["trio_runner"] / taken["trio, attrs"]
    report.budget("import: × import trio, attrs", ratio, IMPORT_BUDGET)


def instructions(report: Report, parameters: Parameters) -> None:
    """Instructions per call and step: the marginal cost, free of the noise of clocks."""
    found = _marginal_instructions(report, "call", BATCHES, parameters.callgrind_calls)
    for name, limit in [
        ("generate", CALL_BUDGET),
        ("function tool", CALL_BUDGET),
        ("own scopes", SCOPED_CALL_BUDGET),
    ]:
        ratio = found[name] / found["bare"]
        report.budget(f"instructions per call, {name}: × bare trio", ratio, limit)
    found = _marginal_instructions(report, "step", STEPS, parameters.callgrind_calls)
    ratio = found["journal"] / found["bare"]
    report.budget("instructions per step, memory journal: × bare trio", ratio, STEP_BUDGET)


def _marginal_instructions(
    report: Report,
    unit: str,
    competitors: dict[str, workloads.Prepare],
    counts: tuple[int, int],
) -> dict[str, float]:
    few, many = counts
    print(f"\nInstructions per {unit} (callgrind; between {few} and {many})")
    found: dict[str, float] = {}
    for name in competitors:
        sample = f"{unit}:{name}"
        low, high = (
            child_processes.instructions(__file__, sample, count, counts) for count in counts
        )
        found[name] = (high - low) / (many - few)
        print(f"  {name:<16} {found[name] / 1000:8.1f} k  ({found[name] / found['bare']:.2f} ×)")
    report.figures[f"instructions per {unit}"] = found
    return found


SECTIONS: Final[dict[str, Callable[[Report, Parameters], None]]] = {
    "fan-out": fan_out,
    "depth": depth,
    "makespan": makespan,
    "memory": memory,
    "imports": imports,
}


def _rows(
    competitors: dict[str, workloads.Prepare], counts: tuple[int, ...], rounds: int, at_least: int
) -> dict[int, dict[str, float]]:
    """Microseconds per item, by count and competitor."""
    rows: dict[int, dict[str, float]] = {}
    for count in counts:
        taken = measuring.interleaved(competitors, count, rounds=rounds, at_least=at_least)
        rows[count] = {name: seconds / count * 1e6 for name, seconds in taken.items()}
    return rows


def _growth(report: Report, what: str, rows: dict[int, dict[str, float]], smallest: int) -> None:
    for name in next(iter(rows.values())):
        total = {count: row[name] * count for count, row in rows.items() if count >= smallest}
        if len(total) > 1:
            exponent = measuring.growth_exponent(total)
            counts = f"{min(total)} to {max(total)}"
            if name.startswith("bare"):
                print(f"  growth exponent of {what}, {name}, {counts}: {exponent:.3f}")
            else:
                report.budget(
                    f"growth exponent of {what}, {name}, {counts}", exponent, GROWTH_BUDGET
                )


# --- the command ----------------------------------------------------------------


def main() -> int:
    """Run what was asked for; the exit code is 1 when a figure is over its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="fewer and smaller samples")
    parser.add_argument("--rounds", type=int, help="samples of each competitor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--callgrind", action="store_true", help="count instructions (minutes)")
    parser.add_argument("--one-sample", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_sample is not None:
        sample, count, few, many = options.one_sample
        unit, _, name = sample.partition(":")
        prepare = (BATCHES if unit == "call" else STEPS)[name]
        measuring.run_one_and_exit(prepare, int(count), (int(few), int(many)))
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    parameters = QUICK if options.quick else FULL
    if options.rounds is not None:
        parameters = attrs.evolve(parameters, rounds=options.rounds)
    report = Report()
    _print_surroundings(report, parameters)
    for name, section in SECTIONS.items():
        if name in options.sections or not options.sections:
            section(report, parameters)
    if options.callgrind:
        instructions(report, parameters)
    if options.json is not None:
        options.json.write_text(json.dumps(report.figures, indent=2) + "\n", "utf-8")
    print(f"\nover budget: {', '.join(report.over_budget) or 'nothing'}")
    return 1 if report.over_budget else 0


def _print_surroundings(report: Report, parameters: Parameters) -> None:
    surroundings = {
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "system": platform.system(),
        "trio": version("trio"),
        "attrs": version("attrs"),
        "pydantic": version("pydantic"),
    }
    report.figures["surroundings"] = surroundings
    report.figures["parameters"] = attrs.asdict(parameters)
    print(", ".join([f"{name} {value}" for name, value in surroundings.items()]))
    for name, value in attrs.asdict(parameters).items():
        print(f"  {name}: {value}")


if __name__ == "__main__":
    sys.exit(main())
