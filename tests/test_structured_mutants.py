"""The sweep of a structured turn finds what it is there for: each planted fault is caught.

A mutant is a copy of the package with one change; a process of its own sweeps one structured
turn with it, as ``test_sweep_structured.py`` does. The same sweeps find nothing in the unchanged
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
SWEEP = pathlib.Path(__file__).parent / "test_sweep_structured.py"

RUN = """
import importlib.util, json, logging, sys

spec = importlib.util.spec_from_file_location("swept", sys.argv[1])
swept = sys.modules["swept"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(swept)
logging.getLogger("trio_runner").propagate = False
turn = swept.StructuredTurn("until_done", sys.argv[2], watched=True)
try:
    report = swept.sweep(turn, faults=[sys.argv[3]], seeds=[0], max_failures=3)
    found = [v for failure in report.failures for v in failure.violations]
except swept.SweepError as error:  # it is wrong without a fault
    found = [str(error)]
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
    kind: str = "always"
    fault: str = "cancel"


MUTANTS = [
    Mutant(
        "a_refused_answer_is_not_recorded",
        "_shell/steps.py",
        "            self.commits.add(r.AnswerRefused(turn.number, sent))\n",
        "",
        "C2",
    ),
    Mutant(
        "a_checkpoint_between_an_answer_and_its_refusal",
        "_shell/steps.py",
        """
        if self.answering is not None:
            self._judge(self.answering, reply)
        return reply
""",
        """
        if self.answering is not None:
            await trio.lowlevel.checkpoint()
            self._judge(self.answering, reply)
        return reply
""",
        "the turn went on to no value",
    ),
    Mutant(
        "answers_that_went_back_before_the_crash_are_forgotten",
        "_core/structured.py",
        '            self._refused += mark == "refused"\n',
        "",
        "more often than they may",
    ),
    Mutant(
        "that_the_one_more_call_was_asked_for_is_forgotten",
        "_core/structured.py",
        """
            self._asked = self._asked or mark == "asked"
            self._shown = self._shown or mark is not None or bool(message.tool_results)
""",
        """
            self._shown = self._shown or bool(message.tool_results)
""",
        "more often than they may",
        "asked",
    ),
    Mutant(
        "what_was_refused_on_arrival_is_not_recorded_with_the_reply",
        "_shell/steps.py",
        "            made += self._heed_offers(reply, params.tool_choice)\n",
        "            self._heed_offers(reply, params.tool_choice)\n",
        "C",
        "filtered",
    ),
    Mutant(
        "what_was_not_offered_runs",
        "_shell/offers.py",
        "            self.listed, self.table = tuple(kept), ToolTable(kept)\n",
        "            self.listed = tuple(kept)\n",
        "ran, and was not offered",
        "filtered",
    ),
]


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (mutant.file, mutant.old, mutant.new))
    found = run_below(root, RUN, SWEEP, mutant.kind, mutant.fault)
    assert any(mutant.says in each for each in found), found


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("kind", sorted({mutant.kind for mutant in MUTANTS}))
def test_the_same_sweep_finds_nothing_in_the_unchanged_package(
    kind: str, run_below: Callable[..., Any]
) -> None:
    assert run_below(PACKAGE.parent, RUN, SWEEP, kind, "cancel") == []
