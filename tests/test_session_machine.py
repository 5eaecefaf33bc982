"""A session under everything that can happen to it agrees with what really happened.

The machine finds what it is there for as well: in a copy of the package with one
guarantee taken out it fails, and says which promise is broken.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import trio_runner
from trio_runner.testing.session_machine import SessionMachine

PACKAGE = pathlib.Path(trio_runner.__file__).parent

SLOW_DRAWS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.slow
def test_a_session_under_everything_that_can_happen_to_it(full_sweeps: bool) -> None:
    examples, steps = (3000, 10) if full_sweeps else (80, 6)
    run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=SLOW_DRAWS,
        ),
    )


# --- mutants --------------------------------------------------------------------

BY_THE_MACHINE = """
import json, logging, sys
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from trio_runner.testing.session_machine import SessionMachine

logging.disable()
found = ""
try:
    run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=int(sys.argv[1]), stateful_step_count=6, deadline=None, database=None,
            derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
except BaseException as error:
    found = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

EVERY_STEP = """
import itertools, json, logging
import trio_runner as tr
import trio_runner.testing.strategies as plans
from trio_runner.testing import Fault, replay
from trio_runner.testing._session_play import SessionPlay

logging.disable()
CALLS = plans.CallPlan(behaviour=plans.Returns("slow", 2)), plans.CallPlan(tool="alone")
TURN = plans.TurnPlan((plans.Asks(CALLS), plans.Asks(CALLS)))
found = []
for fault in ("cancel", "power_cut"):
    for step in itertools.count():
        play = SessionPlay(tr.MemoryJournal(0.5))

        def cut_the_power(injection):
            play.cut_the_power()
            injection.cancel()

        planned = Fault(fault, cut_the_power) if fault == "power_cut" else fault
        first = replay(lambda: play.visit((TURN,)), (planned, step))
        if not first.landed:  # the step before was the last
            break
        found += first.violations
        play.new_agent()
        then = replay(lambda: play.visit((plans.ResumePlan(), TURN)))
        found += then.violations
print(json.dumps(" ".join(found)))
"""


@attrs.frozen
class Mutant:
    """A change to one file; ``old`` stands in it exactly once, ``promise`` is what must break.

    ``how`` is the program that must notice: what needs a fault at one very step is looked for
    at every step.
    """

    name: str
    file: str
    old: str
    new: str
    promise: str
    how: str = BY_THE_MACHINE


MUTANTS = [
    Mutant(
        "finished_results_are_overwritten_at_interrupt",
        "_core/turn.py",
        "                if step.results[i] is None:\n",
        "                if step.reply:\n",
        "C",
    ),
    Mutant(
        "a_call_that_ran_is_said_not_to_have_started",
        "_core/turn.py",
        "                    started = bool(step.started[i])\n",
        "                    started = False\n",
        "C4",
    ),
    Mutant(
        "a_history_is_replaced_without_a_look",
        "_shell/conversation.py",
        "        problems = history_problems([*given, *step])\n        if problems:\n",
        "        problems = history_problems([*given, *step])\n        if not messages:\n",
        "C2",
    ),
    Mutant(
        "notes_that_wait_for_results_are_lost",
        "_core/turn.py",
        "        for message in (self.results, *step.all_attached(), *queued):\n",
        "        for message in (self.results, *step.all_attached()):\n",
        "C3",
    ),
    Mutant(
        "the_agent_is_not_freed",
        "_shell/runner.py",
        "            self._conversation.release(self)\n            self._conversation.commits",
        "            self._conversation.commits",
        "C",
    ),
    Mutant(
        "a_tool_starts_after_the_cancel",
        "_shell/batch.py",
        '        """Run one call and decide its status."""\n'
        "        await trio.lowlevel.checkpoint_if_cancelled()\n",
        "",
        "C1",
        EVERY_STEP,
    ),
    Mutant(
        "a_call_that_may_have_run_runs_again_after_a_crash",
        "_core/recovery.py",
        '    if why is None and wanted == "rerun":\n',
        "    if why is None:\n",
        "C3",
        EVERY_STEP,
    ),
    Mutant(
        "the_next_model_call_does_not_wait_for_the_results",
        "_shell/steps.py",
        "                await self._settle()\n        except",
        "                pass\n        except",
        "C3",
        EVERY_STEP,
    ),
]


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE, (mutant.file, mutant.old, mutant.new))
    assert mutant.promise in run_below(root, mutant.how, 300)


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("how", [BY_THE_MACHINE, EVERY_STEP], ids=["machine", "every step"])
def test_the_same_finds_nothing_in_the_unchanged_package(
    how: str, run_below: Callable[..., Any]
) -> None:
    assert run_below(PACKAGE.parent, how, 60) == ""
