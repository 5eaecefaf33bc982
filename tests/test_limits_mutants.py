"""The sweep of limited turns finds what it is there for: each planted fault is caught.

A mutant is a copy of the package with one change; a process of its own sweeps turns that meet
a limit with it, as ``test_sweep_limits.py`` does. The same sweep finds nothing in the unchanged
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
SWEEP = pathlib.Path(__file__).parent / "test_sweep_limits.py"

RUN = """
import importlib.util, json, logging, sys

spec = importlib.util.spec_from_file_location("swept", sys.argv[1])
swept = sys.modules["swept"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(swept)
logging.getLogger("trio_runner").propagate = False
found = []
for limit in ("model_calls", "tool_calls", "seconds"):
    turn = swept.LimitedTurn(limit, delay=0.2)
    report = swept.sweep(turn, faults=["cancel"], seeds=[0], max_failures=5)
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
        "calls_that_never_began_are_not_given_back",
        "_shell/batch.py",
        "                ration.give_back()\n",
        "                pass\n",
        "limits: ",
    ),
    Mutant(
        "calls_over_the_limit_run",
        "_shell/batch.py",
        "        for position in ration.over:\n",
        "        for position in ration.over[:0]:\n",
        "limits: 2 tool calls; 3 tools were entered",
    ),
    Mutant(
        "a_model_call_is_not_counted",
        "_shell/steps.py",
        "                scope.take_model_calls()\n",
        "                scope.take_model_calls(0)\n",
        "limits: 0 model calls; 1 were made",
    ),
    Mutant(
        "the_end_by_a_limit_is_not_recorded_at_once",
        "_shell/steps.py",
        "        self.commits.add(r.TurnEnded(self.turn.number, v.EndReason.LIMIT))\n",
        "",
        "the session's turn was not ended",
    ),
    Mutant(
        "the_turn_does_not_end_when_its_time_is_up",
        "_shell/steps.py",
        "        ending.interrupt(v.EndReason.LIMIT)\n",
        "",
        "C8: the run returned '', and the turn ended interrupted",
    ),
    Mutant(
        "what_a_reply_took_is_not_counted",
        "_shell/steps.py",
        "            scope.add(reply.usage, usage_names(self._agent, reply))\n",
        "            pass\n",
        "and the scope counted Usage(input_tokens=0, output_tokens=0, cached_input_tokens=0)",
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
