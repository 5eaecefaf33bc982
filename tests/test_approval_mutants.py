"""The sweeps of turns that wait find what they are there for: each planted fault is caught.

A mutant is a copy of the package with one change; a process of its own sweeps with it as
``test_sweep_approvals.py`` does: a turn whose approver takes its time, and a suspended turn that
goes on. The same sweeps find nothing in the unchanged package.
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
SWEEP = pathlib.Path(__file__).parent / "test_sweep_approvals.py"

RUN = """
import importlib.util, json, logging, sys

spec = importlib.util.spec_from_file_location("swept", sys.argv[1])
swept = sys.modules["swept"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(swept)
logging.getLogger("trio_runner").propagate = False
logging.getLogger("trio_runner").addHandler(logging.NullHandler())
found = []
try:
    swept.lived()
    turns = [swept.InlineTurn("generate", sqlite=False)]
    turns += [swept.SuspendedTurn(), swept.SuspendedTurn(decides=("c1",))]
    for turn in turns:
        report = swept.sweep(turn, faults=["cancel"], seeds=[0], max_failures=5)
        found += [v for failure in report.failures for v in failure.violations]
except Exception as error:
    found.append(f"raised {error!r}")
print(json.dumps([str(each) for each in found]))
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
        "an_approval_is_not_recorded",
        "_shell/consent.py",
        "    records.append(r.CallApproved(number, index, call.id, digest))\n",
        "",
        "that nobody approved",
    ),
    Mutant(
        "the_arguments_that_were_edited_do_not_run",
        "_core/approval.py",
        "    if edited is None:\n        return planned\n",
        "    return planned\n",
        "c1 ",
    ),
    Mutant(
        "a_decision_that_denies_is_not_recorded",
        "_shell/consent.py",
        "        records.append(r.ToolFinished(number, index, result))\n",
        "",
        "raised RecordError",
    ),
    Mutant(
        "an_approvers_no_leaves_the_call_open",
        "_shell/guarded.py",
        "                self._record(position, consent.denied(self._turn, position, reason))\n",
        "                pass\n",
        "C8: ",
    ),
    Mutant(
        "the_decisions_of_a_resume_are_not_recorded",
        "_shell/steps.py",
        "self.commits.add(r.TurnStarted(self.turn.number, given, resume), *decided)",
        "self.commits.add(r.TurnStarted(self.turn.number, given, resume))",
        "raised RecordError",
    ),
    Mutant(
        "a_held_call_runs_without_a_word",
        "_shell/guarded.py",
        "        if held is not None:\n            return held\n        tool",
        "        if held is not None:\n            return None\n        tool",
        "c3 ran with 3",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (mutant.file, mutant.old, mutant.new))
    found = run_below(root, RUN, SWEEP)
    print(found)
    assert any(mutant.says in each for each in found), found


def test_the_same_sweeps_find_nothing_in_the_unchanged_package(
    run_below: Callable[..., Any],
) -> None:
    assert run_below(PACKAGE.parent, RUN, SWEEP) == []
