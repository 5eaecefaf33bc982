"""The sweep of a turn that asks another agent finds what it is there for: each planted fault.

A mutant is a copy of the package with one change; a process of its own sweeps such a turn with
it, as ``test_sweep_agent_tools.py`` does. The same sweeps find nothing in the unchanged package.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import trio_runner

PACKAGE = pathlib.Path(trio_runner.__file__).parent
SWEEP = pathlib.Path(__file__).parent / "test_sweep_agent_tools.py"
CRASHES = pathlib.Path(__file__).parent / "test_agent_tools_crash.py"

RUN = """
import importlib.util, json, logging, sys

spec = importlib.util.spec_from_file_location("swept", sys.argv[1])
swept = sys.modules["swept"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(swept)
logging.getLogger("trio_runner").propagate = False
turn, faults = json.loads(sys.argv[2])
if hasattr(swept, "cuts"):
    turns = [swept.CutTurn(left) for left in swept.cuts()[5:]]
else:
    turns = [swept.NestedTurn(**turn)]
found = []
for each in turns:
    report = swept.sweep(each, faults=faults, seeds=[0], max_failures=20)
    found += [v for failure in report.failures for v in failure.violations]
print(json.dumps(found))
"""


@attrs.frozen
class Mutant:
    """A change to one file, and what a sweep says of it.

    Attributes:
      old: stands in the file exactly once.
      says: stands in a violation.
      turn, fault, sweep: what is swept, and by which file.
    """

    name: str
    file: str
    old: str
    new: str
    says: str
    turn: dict[str, Any]
    fault: str = "cancel"
    sweep: pathlib.Path = SWEEP


MUTANTS = [
    Mutant(
        "a_call_that_is_cut_does_not_name_its_turn",
        "_shell/agent_tools.py",
        "            self._leave_note()\n",
        "",
        "and its call says {}",
        {},
    ),
    Mutant(
        "the_note_of_a_cut_call_is_dropped",
        "_core/turn.py",
        "        self._step.notes[position] = meta\n",
        "        pass\n",
        "and its call says {}",
        {},
    ),
    Mutant(
        "usage_is_counted_twice",
        "_shell/agent_tools.py",
        "            usage = last.total_usage + self._summaries()\n",
        "            usage = last.total_usage + last.usage\n",
        "; the sum is ",
        {},
    ),
    Mutant(
        "a_cancel_that_reaches_the_child_is_its_error",
        "_shell/agent_tools.py",
        "            result = self._answer()\n            cut_alone",
        "            return self._failed(None)\n            cut_alone",
        "both turns were interrupted, and the call is error",
        {},
    ),
    Mutant(
        "a_cancel_behind_the_answer_takes_it_away",
        "_shell/agent_tools.py",
        "            if result is None or self._around is None or not cut_alone:\n",
        "            if result or self._clone:\n",
        "had answered, and its call is interrupted",
        {},
    ),
    Mutant(
        "where_an_error_came_from_is_told_to_nobody",
        "_shell/agent_tools.py",
        '_log.warning("agent %r failed as a tool", self._clone.name, exc_info=error)',
        "pass",
        "C7: an error was lost",
        {"watched": True},
        "model_error",
    ),
    Mutant(
        "the_opening_of_a_nested_session_has_no_bound",
        "_shell/agent_tools.py",
        "        with trio.move_on_after(self._timeout):\n",
        "        if self._timeout:\n",
        "C6: ",
        {"delay": 0.5, "watched": True},
        "journal_hang",
    ),
    Mutant(
        "errors_are_passed_through",
        "_core/nested.py",
        "    if result.status is not v.CallStatus.OK:\n        return False\n",
        "",
        "a result was passed through that is error",
        {"passes": True, "watched": True},
        "model_error",
    ),
    Mutant(
        "what_was_passed_through_is_not_recorded",
        "_shell/steps.py",
        "        self.commits.add(r.PassedThrough(turn.number, message))\n",
        "",
        "C3: memory and session differ",
        {"passes": True},
    ),
    Mutant(
        "the_child_is_kept_nowhere",
        "_shell/steps.py",
        "self._config.journal if self.commits.keeps else None",
        "None",
        "'session': None",
        {},
    ),
    Mutant(
        "a_call_that_runs_again_begins_anew",
        "_shell/agent_tools.py",
        "return self._attempt > 1 and _asks(",
        "return self._attempt > 99 and _asks(",
        "once: ",
        {},
        sweep=CRASHES,
    ),
    Mutant(
        "a_turn_of_another_call_is_gone_on_with",
        "_shell/agent_tools.py",
        "    return asked_by is not None and asked_by == prompt.meta[nested.ASKED_BY]\n",
        "    return asked_by is None\n",
        "once: ",
        {},
        sweep=CRASHES,
    ),
]
#: Each sweep that is asked of a mutant.
SWEEPS = sorted({(str(m.sweep), json.dumps([m.turn, [m.fault]])) for m in MUTANTS})


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (mutant.file, mutant.old, mutant.new))
    found = run_below(root, RUN, mutant.sweep, json.dumps([mutant.turn, [mutant.fault]]))
    assert any(mutant.says in each for each in found), found


@pytest.mark.slow
@pytest.mark.mutant
def test_the_same_sweeps_find_nothing_in_the_unchanged_package(
    run_below: Callable[..., Any],
) -> None:
    for sweep, what in SWEEPS:
        assert run_below(PACKAGE.parent, RUN, sweep, what) == []
