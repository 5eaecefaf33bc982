"""The exhaustive walk finds what it is there for: each fault planted in the machine is found.

A mutant is a copy of the package with one change. A process of its own walks it
as ``test_turn_machine_exhaustive.py`` does, within the bounds that are needed;
the same walk finds nothing in the unchanged package.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

import trio_runner

PACKAGE: Final = pathlib.Path(trio_runner.__file__).parent
WALK: Final = pathlib.Path(__file__).parent / "test_turn_machine_exhaustive.py"

RUN: Final = """
import importlib.util, json, sys

path, calls, steps, depth, words = json.loads(sys.argv[1])
spec = importlib.util.spec_from_file_location("exhaustive", path)
exhaustive = sys.modules["exhaustive"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exhaustive)
stops = exhaustive.FEW_STOPS if depth else exhaustive.EVERY_STOP
bounds = exhaustive.Bounds(
    calls,
    steps,
    2,
    (0, 0, 0) if depth or words else None,
    stops,
    exhaustive.FEW_INTERRUPTS,
    words=words,
)
try:
    seen = exhaustive.walk(bounds)
except AssertionError as found:
    print(json.dumps([0, str(found)]))
else:
    print(json.dumps([seen.states, ""]))
"""


@attrs.frozen
class Mutant:
    """A change to one file, and how the walk names what it breaks.

    Attributes:
      old: stands in the file exactly once.
      says: stands in the report of the walk.
      bounds: calls, steps, and whether to walk far rather than wide.
      words: whether calls are held and approved.
    """

    name: str
    old: str
    new: str
    says: str
    file: str = "turn.py"
    bounds: tuple[int, int, bool] = (2, 1, False)
    words: bool = False


MUTANTS: Final = (
    Mutant(
        "an_interrupt_answers_finished_calls_too",
        "                if step.results[i] is None:\n",
        "                if step.reply:\n",
        "C4: the machine answered",
    ),
    Mutant(
        "a_start_is_noted_for_the_wrong_call",
        "        step.started[position] = STARTED\n",
        "        step.started[-position] = STARTED\n",
        "C4: the started calls are",
        bounds=(3, 1, False),
    ),
    Mutant(
        "a_second_result_of_a_call_is_taken",
        """            or step.positions.get(result.call_id) != position
            or step.results[position] is not None
""",
        """            or step.positions.get(result.call_id) != position
""",
        "was not refused",
    ),
    Mutant(
        "a_result_is_taken_at_the_wrong_position",
        "            or step.positions.get(result.call_id) != position\n",
        "            or not 0 <= position < len(step.results)\n",
        "was not refused",
    ),
    Mutant(
        "an_ended_turn_ends_once_more",
        """        if self.phase is Phase.ENDED:
            return ()
        if end_reason""",
        """        if end_reason""",
        "C6: a second interrupt changed something",
    ),
    Mutant(
        "an_interrupt_overrules_an_answer",
        "        if self._decided is not None and end_reason is not v.EndReason.FAILED:\n",
        "        if self._decided is not None and end_reason in (v.EndReason.INTERRUPTED,):\n",
        "C8: ",
    ),
    Mutant(
        "a_cut_step_is_not_counted_when_the_turn_goes_on",
        "        self._uncounted = self.phase is Phase.AWAITING_TOOLS\n",
        "        self._uncounted = False\n",
        "steps were counted",
    ),
    Mutant(
        "an_id_may_come_again_after_a_replacement",
        """        if self.phase is not Phase.ENDED or self._step is not None:
            self._reserve_ids()
""",
        "",
        "could be given once more",
    ),
    Mutant(
        "what_was_added_stands_before_the_media",
        "(self.results, *step.all_attached(), *queued)",
        "(self.results, *queued, *step.all_attached())",
        "C3: the history is",
    ),
    Mutant(
        "media_in_the_order_they_came",
        "in sorted(self.attached)",
        "in self.attached",
        "C3: the history is",
        file="open_step.py",
    ),
    Mutant(
        "media_are_not_replayed",
        "_position(turn, result.call_id), result, attached)",
        "_position(turn, result.call_id), result)",
        "replayed from its records: C3",
        file="fold.py",
    ),
    Mutant(
        "an_interrupt_forgets_that_a_crash_cut_a_call",
        "if crashed or step.is_cut(i)",
        "if crashed",
        "C4: the machine answered",
    ),
    Mutant(
        "a_cut_call_keeps_its_number_when_it_starts_again",
        "        step.attempts[position] += 1\n",
        "        step.attempts[position] = 1\n",
        "attempts of the open calls are",
    ),
    Mutant(
        "a_call_starts_again_while_it_runs",
        "            or step.started[position] == STARTED\n",
        "",
        "was not refused",
    ),
    Mutant(
        "a_start_is_replayed_out_of_its_turn",
        "start.attempt != step.attempts[position] + 1",
        "start.attempt < step.attempts[position]",
        "another attempt of",
    ),
    Mutant(
        "a_suspended_turn_takes_results",
        """            or self.phase is Phase.ENDED
            or step.positions.get""",
        """            or step.positions.get""",
        "was not refused",
    ),
    Mutant(
        "a_suspended_turn_starts_calls",
        """            or self.phase is Phase.ENDED
            or not 0 <= position""",
        """            or not 0 <= position""",
        "was not refused",
    ),
    Mutant(
        "a_suspended_turn_hears_words_on_calls",
        "return self.phase is Phase.ENDED or not self.is_open(position)",
        "return not self.is_open(position)",
        "was not refused",
        file="turn_state.py",
    ),
    Mutant(
        "a_suspended_step_is_counted_twice",
        "        self._uncounted = False  # `step_done` will count it\n",
        "",
        "steps were counted",
    ),
    Mutant(
        "a_call_that_runs_is_suspended",
        "or step is None or running:",
        "or step is None:",
        "a suspension was not refused",
    ),
    Mutant(
        "an_edit_is_kept_for_the_wrong_call",
        "        step.edits[position] = arguments\n",
        "        step.edits[0] = arguments\n",
        "would run with",
    ),
    Mutant(
        "an_edit_leaves_the_call_approved",
        "        step.approved.discard(position)\n",
        "",
        "waits for a word",
        words=True,
    ),
    Mutant(
        "what_others_are_to_answer_is_approved",
        """        if step.held.get(position) == "external":
            self._illegal("call_approved")
""",
        "",
        "an approval at",
        words=True,
    ),
    Mutant(
        "a_word_on_other_arguments_counts",
        "        if arguments_hash != r.arguments_hash(step.arguments(position)):\n",
        "        if not arguments_hash:\n",
        "other arguments",
        words=True,
    ),
    Mutant(
        "an_approval_is_not_replayed",
        "            turn.call_approved(position, digest)\n",
        "            pass\n",
        "replayed from its records",
        file="fold.py",
        words=True,
    ),
    Mutant(
        "a_refused_answer_is_not_counted",
        """        self._decided = None
        self.phase = Phase.AWAITING_TOOLS
""",
        """        self._decided = None
""",
        "C8: the next action",
        bounds=(1, 2, True),
    ),
    Mutant(
        "an_answer_is_refused_although_the_cap_was_met",
        "        if self._met_cap:\n",
        "        if False:\n",
        "C2: it said something else",
        bounds=(1, 2, True),
    ),
    Mutant(
        "results_pass_through_that_the_model_has_seen",
        "        answers = self._has_unseen_results and last is",
        "        answers = last is",
        "results passed through was not refused",
    ),
    Mutant(
        "a_refused_answer_is_not_replayed",
        "            turn.answer_refused(messages)\n",
        "            pass\n",
        "replayed from its records",
        file="fold.py",
        bounds=(1, 2, True),
    ),
    Mutant(
        "the_third_call_of_the_third_step_closes_it_too_early",
        "        step.missing -= 1\n",
        "        step.missing -= 1 + (self.iteration == 2 and position == 2)\n",
        "C2",
        bounds=(3, 3, True),
    ),
)


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_the_machine_is_found(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (f"_core/{mutant.file}", mutant.old, mutant.new))
    _, found = run_below(root, RUN, json.dumps([str(WALK), *mutant.bounds, mutant.words]))
    assert mutant.says in found, found


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize(
    ("bounds", "words"), sorted({(mutant.bounds, mutant.words) for mutant in MUTANTS})
)
def test_the_same_walk_finds_nothing_in_the_unchanged_machine(
    bounds: tuple[int, int, bool], words: bool, run_below: Callable[..., Any]
) -> None:
    states, found = run_below(PACKAGE.parent, RUN, json.dumps([str(WALK), *bounds, words]))
    assert (found, states > 150) == ("", True)
