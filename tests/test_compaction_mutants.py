"""The sweep of a compacted turn finds what it is there for: each planted fault is caught.

A mutant is a copy of the package with one change; a process of its own sweeps the turn of
``test_sweep_compaction.py`` with it. The same sweep finds nothing in the unchanged package.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import trio_runner

pytestmark = [pytest.mark.slow, pytest.mark.mutant]
PACKAGE = pathlib.Path(trio_runner.__file__).parent
SWEEP = pathlib.Path(__file__).parent / "test_sweep_compaction.py"

RUN = """
import importlib.util, json, logging, sys

spec = importlib.util.spec_from_file_location("swept", sys.argv[1])
swept = sys.modules["swept"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(swept)
logging.getLogger("trio_runner").propagate = False
found = []
for delay in (0.5, 0.0):
    turn = swept.CompactingTurn("until_done", delay=delay)
    report = swept.sweep(turn, faults=["cancel", "sigint"], seeds=[0], max_failures=3)
    found += [v for failure in report.failures for v in failure.violations]
print(json.dumps(found))
"""


@attrs.frozen
class Mutant:
    """A change to one file; ``old`` stands in it exactly once, ``says`` in a violation."""

    name: str
    file: str
    old: str
    new: str
    says: str


MUTANTS = [
    Mutant(
        "a_compaction_is_not_recorded",
        "_shell/conversation.py",
        "        compaction.shorten(self.history, record)\n        self.commits.add(record)\n",
        "        compaction.shorten(self.history, record)\n",
        "C3: memory and session differ",
    ),
    Mutant(
        "it_is_recorded_before_the_summary_is_there",
        "_shell/compacting.py",
        "            summary = await self._summary(cut, request, deadline)\n",
        '            self._conversation.commits.add(compacted(history, cut, "S"))\n'
        "            summary = await self._summary(cut, request, deadline)\n",
        "C2: the session does not open",
    ),
    Mutant(
        "whatever_the_summariser_raises_is_its_failure",
        "_shell/compacting.py",
        "            if leaving.must_leave(error):\n                raise\n",
        "",
        "swallowed",
    ),
    Mutant(
        "a_summary_is_asked_for_after_the_cancel",
        "_shell/compacting.py",
        "        await trio.lowlevel.checkpoint_if_cancelled()\n        timeout = ",
        "        timeout = ",
        "C1: a model call began after the cancel",
    ),
    Mutant(
        "what_is_to_stay_goes",
        "_core/compaction.py",
        "_as_summary(summary), cut.kept)",
        "_as_summary(summary))",
        "its input is gone",
    ),
    Mutant(
        "the_summariser_is_shown_half_a_step",
        "_shell/compacting.py",
        "tuple(map(own_message, cut.messages)), request.reason",
        "tuple(map(own_message, cut.messages))[:-1], request.reason",
        "a summariser was shown",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (mutant.file, mutant.old, mutant.new))
    found = run_below(root, RUN, SWEEP)
    assert any(mutant.says in each for each in found), found


def test_the_unchanged_package_has_none(run_below: Callable[..., Any]) -> None:
    assert run_below(PACKAGE.parent, RUN, SWEEP) == []
