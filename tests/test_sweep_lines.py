"""SIGINT before every line of library code while the reference turn runs.

Under `trio_runner.run` an interrupt waits for a checkpoint, so nothing may
break anywhere. Under plain `trio.run` the library protects itself by marks
(``trio_runner/_shell/ki.py``). ``--full-sweeps`` runs every line.
"""

from __future__ import annotations

import pathlib

import pytest

import trio_runner
from trio_runner.testing import sweep_lines
from trio_runner.testing.reference import Drive, ReferenceTurn

PACKAGE = pathlib.Path(trio_runner.__file__).parent
PATHS = [PACKAGE / "_core", PACKAGE / "_shell", PACKAGE / "_journal"]

WAYS = pytest.mark.parametrize(
    ("drive", "delay"),
    [(drive, delay) for drive in ("until_done", "async_for", "break") for delay in (0.0, 0.5)],
)


@WAYS
def test_an_interrupt_at_any_line_under_run_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep_lines(
        ReferenceTurn(drive, delay=delay),
        paths=PATHS,
        restrict_ki=True,
        max_positions=None if full_sweeps else 400,
    )
    report.raise_if_failed()
    assert report.positions >= 400
    print(drive, delay, report.positions, "of", report.positions + report.skipped, "lines")


@WAYS
def test_an_interrupt_at_any_line_under_plain_trio_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep_lines(
        ReferenceTurn(drive, delay=delay, exact_starts=False),
        paths=PATHS,
        restrict_ki=False,
        max_positions=None if full_sweeps else 400,
    )
    report.raise_if_failed()
    assert report.positions >= 400
