"""The journal: appends per second and the cost of a step, against simpler ways to store that.

    python benchmarks/journal.py [--quick] [--rounds N] [--json FILE] [--folder DISK] [SECTION ...]

Everything that is compared runs side by side, in turns; what counts are the
ratios. The numbers at the end of each section are held against the budget.
``README.md`` beside this file says what each section measures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import attrs
import fanout
import measuring
import trio
import workloads

import trio_runner as tr
import trio_runner.records as r

#: At 64 sessions: appends per second, as a multiple of one transaction for each.
GROUPING_BUDGET: Final = 5.0
GROWTH_BUDGET: Final = 1.05

_TEXT: Final = "A result of about a kilobyte, as tools give them. " * 18


@attrs.frozen
class Parameters:
    """What is run; printed with the results."""

    rounds: int
    sessions: tuple[int, ...]
    appends: int
    depths: tuple[int, ...]
    step_rounds: int


QUICK: Final = Parameters(
    rounds=3, sessions=(1, 64), appends=640, depths=(10, 100, 1000), step_rounds=1
)
FULL: Final = Parameters(
    rounds=7, sessions=(1, 64), appends=3200, depths=(10, 50, 200, 1000, 5000), step_rounds=3
)


class Report(fanout.Report):
    """With budgets that are to be reached."""

    def at_least(self, what: str, found: float, limit: float) -> None:
        """Hold a figure against what it must reach."""
        fits = found >= limit
        print(f"  {what:<58} {found:8.2f}  at least {limit:g}  {'ok' if fits else 'UNDER'}")
        self.figures[what] = {"found": found, "at least": limit}
        if not fits:
            self.over_budget.append(what)


# --- appends: who is compared ---------------------------------------------------

#: Appends so many records in all, taking turns over so many sessions; each is durable before
#: the session's next. Gives the seconds that took.
Appends: TypeAlias = Callable[[Path, int, int], float]


def record(session: int, number: int) -> r.Record:
    """What is appended."""
    return r.SessionOpened(f"{session} {number} {_TEXT}")


def line(session: int, number: int) -> bytes:
    """The same as text, for those who do not encode it themselves."""
    said = {"v": 1, "kind": "session_opened", "agent": f"{session} {number} {_TEXT}"}
    return json.dumps(said).encode()


def ours(folder: Path, sessions: int, appends: int) -> float:
    """`SqliteJournal`: a task for each session, which waits for each commit."""
    journal = tr.SqliteJournal(folder / "journal.db")
    each = appends // sessions

    async def append(session: Any, number: int) -> None:
        for count in range(each):
            ticket = session.append([record(number, count)])
            await ticket.wait()
            assert ticket.error is None

    async def main() -> float:
        opened = [await journal.open(f"s{number}") for number in range(sessions)]
        with quiet():
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for number, session in enumerate(opened):
                    nursery.start_soon(append, session, number)
            taken = time.perf_counter() - began
        for session in opened:
            await session.aclose()
        return taken

    taken = trio.run(main)
    assert all(len(journal.stored(f"s{number}")) == each for number in range(sessions))
    return taken


def one_transaction(folder: Path, sessions: int, appends: int) -> float:
    """SQLite with the same table and settings, one transaction per append, in a bare loop."""
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE records (place INTEGER PRIMARY KEY, session INTEGER NOT NULL, "
        "seq INTEGER NOT NULL, body TEXT NOT NULL, UNIQUE (session, seq))"
    )
    with quiet():
        began = time.perf_counter()
        for count in range(appends // sessions):
            for session in range(sessions):
                row = (session, count, line(session, count).decode())
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO records (session, seq, body) VALUES (?, ?, ?)", row)
                connection.execute("COMMIT")
        taken = time.perf_counter() - began
    connection.close()
    return taken


def lines_in_files(folder: Path, sessions: int, appends: int) -> float:
    """A JSONL file for each session: a write and an fsync per append, in a bare loop."""
    files = [
        os.open(folder / f"{number}.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for number in range(sessions)
    ]
    with quiet():
        began = time.perf_counter()
        for count in range(appends // sessions):
            for session, file in enumerate(files):
                os.write(file, line(session, count) + b"\n")
                os.fsync(file)
        taken = time.perf_counter() - began
    for file in files:
        os.close(file)
    return taken


def fast_agent_exports(folder: Path, sessions: int, appends: int) -> float:
    """fast-agent's `HistoryExporter`: it writes the history anew each time, without an fsync."""
    exporter: Any = importlib.import_module("fast_agent.history.history_exporter").HistoryExporter
    prompt: Any = importlib.import_module("fast_agent.mcp.prompt").Prompt
    agents = [SimpleNamespace(message_history=list[Any]()) for _ in range(sessions)]

    async def main() -> float:
        with quiet():
            began = time.perf_counter()
            for count in range(appends // sessions):
                for number, agent in enumerate(agents):
                    agent.message_history.append(prompt.user(f"{number} {count} {_TEXT}"))
                    await exporter.save(agent, str(folder / f"{number}.json"), compact=True)
            return time.perf_counter() - began

    return asyncio.run(main())


def competitors() -> dict[str, Appends]:
    """Those that are there; ours is the first."""
    found: dict[str, Appends] = {
        "SqliteJournal": ours,
        "one transaction each": one_transaction,
        "JSONL and fsync": lines_in_files,
    }
    if importlib.util.find_spec("fast_agent") is not None:
        found["fast-agent's exporter"] = fast_agent_exports
    return found


@contextmanager
def quiet() -> Generator[None]:
    """No garbage collection within."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- steps ----------------------------------------------------------------------


@attrs.frozen
class Cost:
    """What a turn cost, in all."""

    seconds: float
    cpu_seconds: float
    file_bytes: float
    written_bytes: float


def turn(folder: Path, steps: int) -> Cost:
    """A turn of so many steps with one call each, then the answer, with a `SqliteJournal`."""
    journal = tr.SqliteJournal(folder / "journal.db")
    replies = workloads._many_steps(steps)
    agent = tr.ToolAgent(
        "bench",
        model=workloads.ListModel(replies),
        tools=[workloads._tool("tool")],
        params=tr.RequestParams(max_iterations=len(replies)),
        journal=journal,
        session="bench",
    )

    async def main() -> tuple[float, float, float]:
        async with agent:
            await trio.lowlevel.checkpoint()
            with quiet():
                bytes_before = written_bytes()
                began, cpu_began = time.perf_counter(), time.process_time()
                await agent.generate("go")
                taken = time.perf_counter() - began, time.process_time() - cpu_began
                return *taken, written_bytes() - bytes_before

    seconds, cpu_seconds, written = trio.run(main)
    assert len(agent.history) == 2 * len(replies)
    return Cost(seconds, cpu_seconds, (folder / "journal.db").stat().st_size, written)


def written_bytes() -> float:
    """Bytes that this process gave to the system to write; NaN where it does not tell."""
    try:
        counters = Path("/proc/self/io").read_text("ascii")
    except OSError:
        return float("nan")
    return float(dict(each.split(": ") for each in counters.splitlines())["wchar"])


# --- sections -------------------------------------------------------------------


def append_rates(report: Report, parameters: Parameters, folder: Path) -> None:
    """Appends per second."""
    for sessions in parameters.sessions:
        # One after the other they take their time: a tenth is enough.
        appends = parameters.appends if sessions > 1 else parameters.appends // 10
        taken: dict[str, list[float]] = {}
        cpu: dict[str, list[float]] = {}
        for number in range(parameters.rounds + 1):
            for name, competitor in competitors().items():
                cpu_began = time.process_time()
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    seconds = competitor(Path(place), sessions, appends)
                if number:  # the first round warms caches up
                    taken.setdefault(name, []).append(seconds)
                    cpu.setdefault(name, []).append(time.process_time() - cpu_began)
        rates = {name: appends / statistics.median(each) for name, each in taken.items()}
        report.figures[f"appends per second, {sessions} sessions"] = rates
        print(f"\nAppends per second, {sessions} sessions ({appends} appends of 1 kB)")
        floor = rates["one transaction each"]
        for name, rate in rates.items():
            each_us = statistics.median(cpu[name]) / appends * 1e6
            times = f"({rate / floor:5.2f} × one transaction each)"
            print(f"  {name:<24} {rate:10.0f}  {times}  {each_us:6.0f} µs CPU, all included")
        if sessions == 64:
            ratio = rates["SqliteJournal"] / floor
            report.at_least(
                "appends per second, 64 sessions: × one transaction", ratio, GROUPING_BUDGET
            )


def steps(report: Report, parameters: Parameters, folder: Path) -> None:
    """What a step costs, by how many there are."""
    costs: dict[int, Cost] = {}
    for count in (0, *parameters.depths):
        found: list[Cost] = []
        for _ in range(parameters.step_rounds):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                found.append(turn(Path(place), count))
        medians = zip(*map(attrs.astuple, found), strict=True)
        costs[count] = Cost(*map(statistics.median, medians))
    empty = costs.pop(0)  # what a turn costs without a step
    print("\nA turn of n steps with a SqliteJournal: per step")
    print(f"{'n':>7}{'ms':>12}{'CPU ms':>12}{'file bytes':>14}{'written bytes':>16}")
    rows = {
        count: {
            name: (total - getattr(empty, name)) / count
            for name, total in attrs.asdict(cost).items()
        }
        for count, cost in costs.items()
    }
    for count, row in rows.items():
        print(
            f"{count:>7}{row['seconds'] * 1e3:12.3f}{row['cpu_seconds'] * 1e3:12.3f}"
            f"{row['file_bytes']:14.0f}{row['written_bytes']:16.0f}"
        )
    report.figures["a step with a SqliteJournal"] = rows
    for name in ("seconds", "cpu_seconds", "file_bytes", "written_bytes"):
        totals = {count: getattr(cost, name) for count, cost in costs.items()}
        if all(total > 0 for total in totals.values()):
            exponent = measuring.growth_exponent(totals)
            counts = f"{min(totals)} to {max(totals)}"
            words = name.replace("_", " ")
            report.budget(f"growth exponent, {words}, {counts}", exponent, GROWTH_BUDGET)


SECTIONS: Final[dict[str, Callable[[Report, Parameters, Path], None]]] = {
    "appends": append_rates,
    "steps": steps,
}


# --- the command ----------------------------------------------------------------


def main() -> int:
    """Run what was asked for; the exit code is 1 when a figure is not within its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="fewer and smaller samples")
    parser.add_argument("--rounds", type=int, help="samples of each competitor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    parameters = QUICK if options.quick else FULL
    if options.rounds is not None:
        parameters = attrs.evolve(parameters, rounds=options.rounds)
    report = Report()
    surroundings = {
        "python": sys.version.split()[0],
        "system": sys.platform,
        "trio": trio.__version__,
        "sqlite": sqlite3.sqlite_version,
    }
    report.figures["surroundings"] = surroundings
    report.figures["parameters"] = attrs.asdict(parameters)
    print(", ".join([f"{name} {value}" for name, value in surroundings.items()]))
    for name, value in attrs.asdict(parameters).items():
        print(f"  {name}: {value}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name, section in SECTIONS.items():
            if name in options.sections or not options.sections:
                section(report, parameters, Path(folder))
    if options.json is not None:
        options.json.write_text(json.dumps(report.figures, indent=2) + "\n", "utf-8")
    print(f"\nnot within budget: {', '.join(report.over_budget) or 'nothing'}")
    return 1 if report.over_budget else 0


if __name__ == "__main__":
    sys.exit(main())
