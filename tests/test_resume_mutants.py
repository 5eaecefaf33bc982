"""The sweep of a resumed turn finds what it is there for: each planted fault is caught.

A mutant is a copy of the package with one change; a process of its own sweeps the resume of one
turn with it, as ``test_sweep_resume.py`` does. The same sweep finds nothing in the unchanged
package.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import trio_runner

PACKAGE = pathlib.Path(trio_runner.__file__).parent
SWEEP = pathlib.Path(__file__).parent / "test_sweep_resume.py"

#: Two crashes: when all of the batch had started, and when one of it had not.
RUN = """
import importlib.util, json, logging, sys

spec = importlib.util.spec_from_file_location("swept", sys.argv[1])
swept = sys.modules["swept"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(swept)
logging.getLogger("trio_runner").propagate = False
found = []
for left in swept.cuts()[2:5:2]:
    report = swept.sweep(swept.ResumedTurn(left), faults=["cancel"], seeds=[0], max_failures=5)
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
        "what_may_not_run_again_runs_again",
        "_core/recovery.py",
        '    if why is None and wanted == "rerun":\n',
        "    if why is None:\n",
        "once: ",
    ),
    Mutant(
        "a_second_attempt_is_recorded_as_a_first",
        "_shell/conversation.py",
        "            1 if after is None else after.attempt + 1,\n",
        "            1,\n",
        "C2: the session does not open",
    ),
    Mutant(
        "the_tool_is_not_told_of_its_earlier_attempts",
        "_shell/context.py",
        "= 1 if after is None else after.attempt + 1\n",
        "= 1\n",
        "; recorded are",
    ),
    Mutant(
        "a_cut_call_is_called_interrupted",
        "_core/turn.py",
        "if crashed or step.is_cut(i)",
        "if crashed",
        "C4: ",
    ),
    Mutant(
        "the_answers_to_cut_calls_are_not_recorded",
        "_shell/steps.py",
        "        turn.tool_finished(position, result)\n"
        "        self.commits.add(r.ToolFinished(turn.number, step, result))\n",
        "        turn.tool_finished(position, result)\n",
        "C2: the session does not open",
    ),
]


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (mutant.file, mutant.old, mutant.new))
    found = run_below(root, RUN, SWEEP)
    assert any(mutant.says in each for each in found), found


@pytest.mark.slow
@pytest.mark.mutant
def test_the_same_sweep_finds_nothing_in_the_unchanged_package(
    run_below: Callable[..., Any],
) -> None:
    assert run_below(PACKAGE.parent, RUN, SWEEP) == []
