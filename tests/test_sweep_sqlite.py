"""The cancellation suite on a `SqliteJournal`: contract C1-C9 with a fault at every step and call.

The journal is the real one, with its file in memory and its writer's work done between
the steps of the turn, so that runs repeat. ``--full-sweeps`` runs every position;
without it the longest sweeps are sampled, spread evenly over the whole.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import trio

import trio_runner as tr
import trio_runner.records as r
from trio_runner._journal._session import SqliteSession, SqliteTicket
from trio_runner.testing import sweep, sweep_lines
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing.reference import DRIVES, Drive, ReferenceTurn

PACKAGE = pathlib.Path(tr.__file__).parent
PATHS = [PACKAGE / "_core", PACKAGE / "_shell", PACKAGE / "_journal"]

#: Commits that land at once, and commits that take several task steps.
DELAYS = pytest.mark.parametrize("delay", [0.0, 0.5], ids=["instant", "slow"])
ALL_DRIVES = pytest.mark.parametrize("drive", DRIVES)

STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)
INTERRUPTS = [("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint")]
#: With one operation in the main task and one in a child the same pair is two.
EVERY_PAIR = [
    (first, second)
    for first, second in itertools.product((*STEP_FAULTS, *CALL_FAULTS), repeat=2)
    if (first, second) not in INTERRUPTS
]


class New:
    """Makes journals, each with a file of its own in memory.

    The file before is closed first: were that left to the garbage collector, it would happen
    in the middle of another run, which counts lines.
    """

    def __init__(self, delay: float | Literal["hang"]) -> None:
        self.delay: float | Literal["hang"] = delay
        self.engine = InlineEngine()

    def __call__(self) -> tr.SqliteJournal:
        self.engine.close()
        self.engine = InlineEngine(self.delay)
        return tr.SqliteJournal(IN_MEMORY, _engine=self.engine)


def turn(drive: Drive, delay: float, **settings: Any) -> ReferenceTurn:
    return ReferenceTurn(drive, journal=New(delay), **settings)


class HangsAfter(tr.SqliteJournal):
    """So many commits land; then the disk hangs, for commits and for closing."""

    def __init__(self, commits: int) -> None:
        self.engine = InlineEngine(0.1)
        self.left = commits
        super().__init__(IN_MEMORY, _engine=self.engine)

    async def open(self, session_id: str) -> SqliteSession:
        session = await super().open(session_id)
        append = session.append

        def counted(records: Sequence[r.Record]) -> SqliteTicket:
            if self.left == 0:
                self.engine.delay = "hang"
            self.left -= 1
            return append(records)

        setattr(session, "append", counted)  # noqa: B010  of this object only
        return session


class Patient(ReferenceTurn):
    """Ends with a checkpoint also when it gave up on a journal that never opens."""

    async def run(self) -> object:
        result = await super().run()
        await trio.lowlevel.checkpoint()
        return result


# --- one fault ------------------------------------------------------------------


@DELAYS
@ALL_DRIVES
def test_every_fault_at_every_step_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    seeds = range(8 if full_sweeps else 1)
    report = sweep(turn(drive, delay), faults=STEP_FAULTS, seeds=seeds)
    report.raise_if_failed()
    assert report.skipped == 0
    assert report.positions > len(seeds) * len(STEP_FAULTS) * (50 if delay else 20)
    print(drive, delay, report.positions, "positions", round(report.cpu_seconds, 1), "CPU s")


@DELAYS
@ALL_DRIVES
def test_every_call_that_fails_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    """The journal, the model, a hook, an observer or a foreign loop, at the k-th call of each."""
    report = sweep(
        turn(drive, delay, watched=True),
        faults=CALL_FAULTS,
        seeds=range(8 if full_sweeps else 1),
    )
    report.raise_if_failed()
    assert [name for name in CALL_FAULTS if not report.counts[name]] == []
    print(drive, delay, report.positions, "calls", round(report.cpu_seconds, 1), "CPU s")


# --- two faults -----------------------------------------------------------------


@DELAYS
@ALL_DRIVES
def test_two_interrupts_keep_the_contract(drive: Drive, delay: float, full_sweeps: bool) -> None:
    report = sweep(
        turn(drive, delay),
        faults=(),
        pairs=INTERRUPTS,
        seeds=[0],
        sample=1.0 if full_sweeps else 0.1,
    )
    report.raise_if_failed()
    assert report.positions > (400 if full_sweeps else 40)
    print(drive, delay, report.positions, "pairs", round(report.cpu_seconds, 1), "CPU s")


@DELAYS
@ALL_DRIVES
def test_every_pair_of_faults_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    """Two of anything, in either order."""
    report = sweep(
        turn(drive, delay, watched=True),
        faults=(),
        pairs=EVERY_PAIR if full_sweeps else EVERY_PAIR[::3],
        seeds=[0],
        max_positions=40 if full_sweeps else 3,
    )
    report.raise_if_failed()
    assert report.positions > 100
    print(drive, delay, report.positions, "of any pairs", round(report.cpu_seconds, 1), "CPU s")


# --- a disk that hangs ----------------------------------------------------------


@pytest.mark.parametrize("drive", ["break", "until_done"])
def test_ctrl_c_while_a_commit_hangs_does_not_begin_a_second_grace(drive: Drive) -> None:
    report = sweep(
        turn(drive, 0.1, watched=True),
        faults=(),
        pairs=[("journal_hang", "sigint")],
        seeds=[0],
        sample=0.2,
    )
    report.raise_if_failed()
    assert report.positions > 50


@ALL_DRIVES
@pytest.mark.parametrize("commits", [0, 1, 4])
def test_a_disk_that_hangs_is_left_within_grace(
    drive: Drive, commits: int, full_sweeps: bool
) -> None:
    """One absolute deadline: a second cancel changes nothing, and the give-up is reported."""
    report = sweep(
        ReferenceTurn(drive, journal=lambda: HangsAfter(commits), delay="hang", grace=5.0),
        seeds=range(4 if full_sweeps else 1),
        pairs=INTERRUPTS,
        pair_seeds=[0],
        sample=1.0 if full_sweeps else 0.05,
    )
    report.raise_if_failed()
    assert report.positions > 100
    print(drive, commits, report.positions, "hangs", round(report.cpu_seconds, 1), "CPU s")


@ALL_DRIVES
def test_a_session_whose_opening_hangs_is_left_at_once(drive: Drive) -> None:
    """Somebody was stopped while writing: nothing was appended, so there is nothing to wait for."""
    report = sweep(
        Patient(
            drive,
            journal=New("hang"),
            delay="hang",
            grace=5.0,
        ),
        seeds=range(2),
    )
    report.raise_if_failed()
    assert report.positions > 5


# --- an interrupt at any line ---------------------------------------------------

WAYS = pytest.mark.parametrize(
    ("drive", "delay"),
    [(drive, delay) for drive in ("until_done", "async_for", "break") for delay in (0.0, 0.5)],
)


@WAYS
def test_an_interrupt_at_any_line_under_run_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep_lines(
        turn(drive, delay),
        paths=PATHS,
        restrict_ki=True,
        max_positions=None if full_sweeps else 150,
    )
    report.raise_if_failed()
    assert report.positions >= 150
    print(drive, delay, report.positions, "lines", round(report.cpu_seconds, 1), "CPU s")


@WAYS
def test_an_interrupt_at_any_line_under_plain_trio_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep_lines(
        turn(drive, delay, exact_starts=False),
        paths=PATHS,
        restrict_ki=False,
        max_positions=None if full_sweeps else 150,
    )
    report.raise_if_failed()
    assert report.positions >= 150
    print(drive, delay, report.positions, "lines", round(report.cpu_seconds, 1), "CPU s")
