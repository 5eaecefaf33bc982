"""The sweeps find what they are there for: each planted fault is caught.

A mutant is a copy of the package with one change. Each runs in a process of its
own, with just the part of a sweep that must find it; the same part finds
nothing in the unchanged package. A sweep that cannot fail proves nothing.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import trio_runner

pytestmark = pytest.mark.mutant
PACKAGE = pathlib.Path(trio_runner.__file__).parent

RUN = """
import json, logging, pathlib, sys
import trio_runner
from trio_runner.testing import sweep, sweep_lines
from trio_runner.testing.reference import ReferenceTurn

logging.getLogger("trio_runner").propagate = False
kind, turn, options = json.loads(sys.argv[1])
package = pathlib.Path(trio_runner.__file__).parent
if kind == "lines":
    options["paths"] = [package / path for path in options["paths"]]
    turn["exact_starts"] = options["restrict_ki"] = False
    report = sweep_lines(ReferenceTurn(**turn), max_failures=1, **options)
else:
    options.setdefault("max_failures", 1)
    report = sweep(ReferenceTurn(**turn), **options)
print(json.dumps([report.positions, [v for f in report.failures for v in f.violations]]))
"""


@attrs.frozen
class Mutant:
    """A change to one file, and the sweep that must find it.

    Attributes:
      changes: ``(old, new)``; ``old`` stands in the file exactly once.
      also: ``(file, old, new)``: a second place, where one alone would be made good by the other.
      promise: what one of the violations must name.
    """

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    promise: str
    turn: dict[str, Any]
    options: dict[str, Any]
    kind: str = "steps"
    also: tuple[tuple[str, str, str], ...] = ()

    @property
    def argument(self) -> str:
        """The sweep, as the process of the mutant reads it."""
        return json.dumps([self.kind, self.turn, self.options])


def steps(*faults: str, **options: Any) -> dict[str, Any]:
    """A sweep of single faults with two seeds."""
    return {"faults": faults, "seeds": [0, 1], **options}


def cut(line: str) -> tuple[str, str]:
    """A change that leaves out a line."""
    return f"{line}\n", ""


def put(old: str, new: str) -> tuple[str, str]:
    """A change of one text to another; a text over several lines begins with a newline."""
    return old.removeprefix("\n"), new.removeprefix("\n")


MARK = "@trio.lowlevel.enable_ki_protection"
CHECK = "await trio.lowlevel.checkpoint_if_cancelled()"

MUTANTS = [
    Mutant(
        "no_shield",
        "_shell/finishing.py",
        (put("shield=True", "shield=False"),),
        "C5",  # the session is not closed
        {"drive": "until_done", "delay": 0.5},
        steps("cancel"),
    ),
    Mutant(
        "a_checkpoint_between_a_tools_return_and_its_record",
        "_shell/batch.py",
        (
            put(
                """
            if scope is None:
                value = await call_pair_unprotected(self._agent.call_tool, planned, context)
""",
                """
            if scope is None:
                value = await call_pair_unprotected(self._agent.call_tool, planned, context)
                await trio.lowlevel.checkpoint()
""",
            ),
        ),
        "C3",
        {"drive": "generate"},
        steps("cancel"),
    ),
    Mutant(
        "the_cancel_is_swallowed",
        "_shell/runner.py",
        (
            put(
                """
            leaves = await steps.ending.stop(error)
""",
                """
            await steps.ending.stop(error)
            return steps.last
""",
            ),
            cut(f"        if exc is None:\n            {CHECK}"),
        ),
        "swallowed",
        {"drive": "until_done"},
        steps("cancel"),
        also=(("_shell/agent.py", *cut(f"        if exc is None:\n            {CHECK}")),),
    ),
    Mutant(
        "finished_results_are_overwritten_at_interrupt",
        "_core/turn.py",
        (put("                if step.results[i] is None:\n", "                if step.reply:\n"),),
        "C3",
        {"drive": "until_done"},
        steps("cancel"),
    ),
    Mutant(
        "finishing_in_the_main_task",
        "_shell/finishing.py",
        (
            put(
                """
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            nursery.start_soon(_shielded, async_fn, args, deadline)
""",
                """
        await _shielded(async_fn, args, deadline)
""",
            ),
        ),
        "C6",
        {"drive": "break", "delay": 0.5},
        steps("sigint"),
    ),
    Mutant(
        "an_unmarked_child_root",
        "_shell/batch.py",
        (put(f"    {MARK}\n    async def _run(", "    async def _run("),),
        "C",
        {"drive": "until_done"},
        {"paths": ["_shell/batch.py"]},
        "lines",
    ),
    Mutant(
        "an_unmarked_finishing_root",
        "_shell/finishing.py",
        (put(f"{MARK}\nasync def _shielded(", "async def _shielded("),),
        "C6",
        {"drive": "break", "delay": 0.5},
        {"paths": ["_shell/finishing.py", "_shell/commits.py", "_journal"]},
        "lines",
    ),
    Mutant(
        "an_unprotected_journal_call",
        "_shell/commits.py",
        (
            put("session.append(batch.records)", "_append(session, batch.records)"),
            put(
                """
class Commits:
""",
                """
@trio.lowlevel.disable_ki_protection
def _append(session, batch):
    return session.append(batch)


class Commits:
""",
            ),
        ),
        "C",
        {"drive": "until_done"},
        {"paths": ["_shell/commits.py", "_journal"]},
        "lines",
    ),
    Mutant(
        "no_final_checkpoint",
        "_shell/runner.py",
        (
            put(
                f"""
            message = await self._step(steps, scope, scopes)
            {CHECK}
""",
                """
            message = await self._step(steps, scope, scopes)
""",
            ),
            cut(f"        if exc is None:\n            {CHECK}"),
        ),
        "swallowed",
        {"drive": "until_done", "delay": 0.5},
        steps("cancel"),
        also=(("_shell/agent.py", *cut(f"        if exc is None:\n            {CHECK}")),),
    ),
    Mutant(
        "grace_per_finish",
        "_shell/ending.py",
        (put("        if self._grace_deadline is None:\n", "        if self._config:\n"),),
        "to leave, more than",
        {"drive": "until_done", "delay": "hang"},
        steps("cancel"),
    ),
    Mutant(
        "a_tool_starts_after_the_cancel",
        "_shell/batch.py",
        (
            put(
                f"""
        \"\"\"Run one call and decide its status.\"\"\"
        {CHECK}
""",
                "",
            ),
        ),
        "C1",
        {"drive": "until_done"},
        steps("cancel"),
    ),
    Mutant(
        "results_are_recorded_but_not_waited_for",
        "_shell/ending.py",
        (put("await self.finish(self._commits.wait, leaves, deadline=self._fix_grace())", "pass"),),
        "C6",
        {"drive": "until_done", "delay": 0.5},
        steps("cancel"),
    ),
    Mutant(
        "an_interrupted_step_is_dropped",
        "_core/turn.py",
        (
            put(
                """
            step.missing = 0
            self._close_step(step)
        self._end(end_reason""",
                """
            step.missing = 0
        self._end(end_reason""",
            ),
        ),
        "C3: memory and session differ",
        {"drive": "until_done"},
        steps("cancel", max_failures=20),
    ),
    Mutant(
        "the_model_is_asked_before_the_results_are_durable",
        "_shell/steps.py",
        (
            put(
                """
            if not batch.is_fatal:  # else the turn ends, and what it waits for is bounded by grace
                await self._settle()
""",
                "",
            ),
        ),
        "C3: a model call began",
        {"drive": "until_done", "delay": 0.5},
        steps("cancel"),
    ),
    Mutant(
        "an_interrupted_call_counts_as_not_started",
        "_core/turn.py",
        (put("started = bool(step.started[i])", "started = False"),),
        "C4",
        {"drive": "until_done"},
        steps("cancel"),
    ),
    Mutant(
        "an_error_that_an_interrupt_overtakes_is_not_told",
        "_shell/finishing.py",
        (put("            report(leaves)\n", "            pass\n"),),
        "C7: an error was lost",
        {"drive": "until_done", "delay": 0.5, "watched": True},
        {"faults": [], "pairs": [["hook_error", "sigint"]], "seeds": [0]},
    ),
    Mutant(
        "a_commit_that_fails_when_the_session_closes_is_not_told",
        "_shell/belongings.py",
        (put("commits.give_up(self._grace)", "pass"),),
        "C7: an error was lost",
        {"drive": "generate", "watched": True},
        {"faults": [], "pairs": [["journal_error", "commit_error"]], "seeds": [0]},
    ),
    Mutant(
        "what_comes_later_overtakes_what_failed_twice",
        "_shell/commits.py",
        (put("self._look()  # it may have failed already, and nothing may overtake it", "pass"),),
        "C2: the session does not open",
        {"drive": "generate", "watched": True},
        {"faults": [], "pairs": [["journal_error", "commit_error"]], "seeds": [0]},
    ),
    Mutant(
        "the_block_is_left_and_the_turn_goes_on",
        "_shell/runner.py",
        (cut("            ending.interrupt(v.EndReason.INTERRUPTED)"),),
        "C8",
        {"drive": "break"},
        steps("cancel"),
    ),
    Mutant(
        "a_message_is_edited_after_it_was_handed_out",
        "_shell/steps.py",
        (
            put(
                """
        turn.step_done()

    async def _run_batch""",
                """
        turn.step_done()
        object.__setattr__(reply, "stop_reason", None)

    async def _run_batch""",
            ),
        ),
        "C9",
        {"drive": "async_for"},
        steps("cancel"),
    ),
]


def test_there_is_a_mutant_for_every_promise() -> None:
    told = {mutant.promise[:2] for mutant in MUTANTS}
    # "the cancel was swallowed" is C1, and what an interrupt at a line breaks may be any of them.
    assert told >= {f"C{number}" for number in range(1, 10)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    changes = [(mutant.file, *change) for change in mutant.changes]
    root = plant(PACKAGE, *changes, *mutant.also)
    _, violations = run_below(root, RUN, mutant.argument)
    assert any(mutant.promise in violation for violation in violations), violations


@pytest.mark.parametrize(
    "mutant",
    {mutant.argument: mutant for mutant in MUTANTS}.values(),
    ids=lambda mutant: mutant.name,
)
def test_the_same_sweep_finds_nothing_in_the_unchanged_package(
    mutant: Mutant, run_below: Callable[..., Any]
) -> None:
    positions, violations = run_below(PACKAGE.parent, RUN, mutant.argument)
    assert violations == []
    assert positions > 0
