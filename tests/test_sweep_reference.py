"""The reference turn with one fault, or two, at every step and every call: contract C1-C9.

``--full-sweeps`` runs every position; without it the longest sweeps are
sampled, spread evenly over the whole.
"""

from __future__ import annotations

import itertools

import pytest

from trio_runner.testing import sweep
from trio_runner.testing._faults import FAULTS
from trio_runner.testing.reference import DRIVES, Drive, ReferenceTurn

#: Commits that land at once, and commits that take several task steps.
JOURNALS = pytest.mark.parametrize("delay", [0.0, 0.5], ids=["instant", "slow"])
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


@JOURNALS
@ALL_DRIVES
def test_every_fault_at_every_step_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    seeds = range(8 if full_sweeps or not delay else 3)
    report = sweep(ReferenceTurn(drive, delay=delay), faults=STEP_FAULTS, seeds=seeds)
    report.raise_if_failed()
    assert report.skipped == 0
    assert report.positions > len(seeds) * len(STEP_FAULTS) * 20
    print(drive, delay, report.positions, "positions")


@JOURNALS
@ALL_DRIVES
def test_every_call_that_fails_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    """A journal, a model, a hook, an observer or a foreign event loop, at the k-th call of each."""
    report = sweep(
        ReferenceTurn(drive, delay=delay, watched=True),
        faults=CALL_FAULTS,
        seeds=range(8 if full_sweeps else 2),
    )
    report.raise_if_failed()
    assert [name for name in CALL_FAULTS if not report.counts[name]] == []
    print(drive, delay, report.positions, "calls")


@JOURNALS
@ALL_DRIVES
def test_two_interrupts_keep_the_contract(drive: Drive, delay: float, full_sweeps: bool) -> None:
    report = sweep(
        ReferenceTurn(drive, delay=delay),
        faults=(),
        pairs=INTERRUPTS,
        seeds=[0],
        sample=1.0 if full_sweeps or not delay else 0.2,
    )
    report.raise_if_failed()
    assert report.positions > 200
    print(drive, delay, report.positions, "pairs")


@JOURNALS
@ALL_DRIVES
def test_every_pair_of_faults_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    """Two of anything, in either order."""
    report = sweep(
        ReferenceTurn(drive, delay=delay, watched=True),
        faults=(),
        pairs=EVERY_PAIR,
        seeds=[0],
        max_positions=None if full_sweeps else 5,
    )
    report.raise_if_failed()
    assert report.positions > 400
    print(drive, delay, report.positions, "pairs of anything")


def test_ctrl_c_at_every_step_of_a_journal_that_hangs_keeps_the_contract() -> None:
    """Also in the step in which patience with an opening that hangs is at its end."""
    turn = ReferenceTurn("until_done", watched=True)
    report = sweep(turn, faults=(), pairs=[("journal_hang", "sigint")], seeds=[0])
    report.raise_if_failed()
    assert report.positions > 200


@ALL_DRIVES
def test_a_journal_that_hangs_is_left_within_grace(drive: Drive) -> None:
    """One absolute deadline: a second cancel changes nothing, and the give-up is reported."""
    turn = ReferenceTurn(drive, delay="hang", grace=5.0)
    report = sweep(turn, seeds=range(2), pairs=INTERRUPTS, pair_seeds=[0], sample=0.2)
    report.raise_if_failed()
    assert report.positions > 200
