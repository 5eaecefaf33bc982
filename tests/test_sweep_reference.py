"""The reference turn with one fault, or two, before every task step: contract C1-C9.

``--full-sweeps`` runs every position; without it the longest sweeps are
sampled, spread evenly over the whole.
"""

from __future__ import annotations

import pytest

from trio_runner.testing import sweep
from trio_runner.testing.reference import DRIVES, Drive, ReferenceTurn

#: Commits that land at once, and commits that take several task steps.
JOURNALS = pytest.mark.parametrize("delay", [0.0, 0.5], ids=["instant", "slow"])
ALL_DRIVES = pytest.mark.parametrize("drive", DRIVES)

PAIRS = [("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint")]


@JOURNALS
@ALL_DRIVES
def test_every_fault_at_every_step_keeps_the_contract(drive: Drive, delay: float) -> None:
    report = sweep(ReferenceTurn(drive, delay=delay), seeds=range(8))
    report.raise_if_failed()
    assert report.skipped == 0
    assert report.positions > 8 * 4 * 20
    print(drive, delay, report.positions, "positions")


@JOURNALS
@ALL_DRIVES
def test_every_pair_of_faults_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep(
        ReferenceTurn(drive, delay=delay),
        faults=(),
        pairs=PAIRS,
        seeds=[0],
        sample=1.0 if full_sweeps or not delay else 0.2,
    )
    report.raise_if_failed()
    assert report.positions > 200
    print(drive, delay, report.positions, "pairs")


@ALL_DRIVES
def test_a_journal_that_hangs_is_left_within_grace(drive: Drive) -> None:
    """One absolute deadline: a second cancel changes nothing, and the give-up is reported."""
    turn = ReferenceTurn(drive, delay="hang", grace=5.0)
    report = sweep(turn, seeds=range(2), pairs=PAIRS, pair_seeds=[0], sample=0.2)
    report.raise_if_failed()
    assert report.positions > 200
