"""How the conformance kits run an implementation: on the mock clock, or in real time.

What may live here: stages, which run a `Trial` once or with a cancel at each
step. What a trial is made of is ``_trials.py``, what is looked at is the rules' business.

`MockStage` is the sweep engine: every step, repeatable, threads inline. `LiveStage`
is for implementations with real threads, sockets or processes, where a mock
clock would jump past the work: it counts steps too, but two runs need not be alike.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
import trio

from trio_runner.testing._options import at_least_one, listed, spread
from trio_runner.testing._outcome import Case, Outcome
from trio_runner.testing._sweep import replay, sweep
from trio_runner.testing._trials import Ending, Trial


class Stage(Protocol):
    """Runs trials, each in a trio run of its own."""

    runs: int

    def once(self, make_trial: Callable[[], Trial]) -> None:
        """Run a trial undisturbed (on the mock clock: once for each seed)."""
        ...

    def sweep(self, make_trial: Callable[[], Trial], faults: Iterable[str] = ("cancel",)) -> None:
        """Run a trial with a fault before each of its steps."""
        ...


@attrs.define
class MockStage:
    """On the mock clock, with the sweep engine.

    Attributes:
      seeds: of the scheduler.
      max_positions: at most this many positions per fault and seed; None: all.
      runs: how many trio runs there were.
    """

    seeds: tuple[int, ...]
    max_positions: int | None
    runs: int = 0

    def once(self, make_trial: Callable[[], Trial]) -> None:
        """Run a trial undisturbed, once for each seed."""
        for seed in self.seeds:
            self.runs += 1
            replay(lambda: _case_of(make_trial()), seed=seed)

    def sweep(self, make_trial: Callable[[], Trial], faults: Iterable[str] = ("cancel",)) -> None:
        """Run a trial with a fault before each of its steps.

        Raises:
          SweepError: two runs were not alike.
        """
        report = sweep(
            lambda: _case_of(make_trial()),
            faults=faults,
            seeds=self.seeds,
            max_positions=self.max_positions,
        )
        self.runs += report.positions + report.clean_runs


def _case_of(trial: Trial) -> Case:
    def check(outcome: Outcome) -> tuple[str, ...]:
        landing = outcome.landings[0] if outcome.landings else None
        trial.check(
            Ending(
                raised=outcome.raised if outcome.broken is None else outcome.broken,
                hung=outcome.hung,
                left_alive=outcome.left_alive,
                trouble=outcome.trouble,
                fault_time=landing.time if landing else None,
                place=f"{landing.fault} before step {landing.position}" if landing else "",
                exact=True,
            )
        )
        return ()

    # The rules judge; what a run raises is for them to see, too.
    return Case(trial.run, check, judge=False, may_raise=(BaseException,))


@attrs.define
class LiveStage:
    """In real time. The only fault is a cancel.

    Attributes:
      max_positions: at most this many positions, spread over the steps of the first run.
      hang_after: seconds after which a run counts as hung.
      runs: how many trio runs there were.
    """

    max_positions: int
    hang_after: float
    runs: int = 0

    def once(self, make_trial: Callable[[], Trial]) -> None:
        """Run a trial undisturbed."""
        self._run(make_trial(), -1)

    def sweep(self, make_trial: Callable[[], Trial], faults: Iterable[str] = ("cancel",)) -> None:
        """Run a trial undisturbed, then with a cancel before some of its steps."""
        steps = self._run(make_trial(), -1)
        if "cancel" in set(faults):
            for position in spread(steps, self.max_positions):
                self._run(make_trial(), position)

    def _run(self, trial: Trial, position: int) -> int:
        """Run a trial with a cancel before step ``position`` (-1: none); count its steps."""
        self.runs += 1
        harness = _LiveHarness(trial, position, self.hang_after)
        # What the trial raises was kept; here it must not end the check.
        trio.run(harness.main, instruments=[harness])
        trial.check(harness.ending())
        return harness.steps


class _LiveHarness(trio.abc.Instrument):
    """One trio run of a trial: counts its steps, brings the cancel, notes how it ended.

    The run is a child task, so that what it raises can be kept.
    """

    def __init__(self, trial: Trial, position: int, hang_after: float) -> None:
        self.steps = 0
        self._trial = trial
        self._position = position
        self._hang_after = hang_after
        self._scope = trio.CancelScope()
        self._active = False
        self._counting = False
        self._known: set[trio.lowlevel.Task] = set()
        self._alive: dict[trio.lowlevel.Task, None] = {}
        self._raised: BaseException | None = None
        self._hung = False
        self._left_alive: tuple[str, ...] = ()
        self._fault_time: float | None = None

    async def main(self) -> None:
        """Run the trial under a scope of its own."""
        trio.lowlevel.spawn_system_task(self._watch)
        try:
            with self._scope:
                self._known.add(trio.lowlevel.current_task())
                self._active = self._counting = True
                try:
                    await self._trial.run()
                except BaseException as exc:
                    self._raised = exc
                    raise
                finally:
                    self._active = False
                    self._left_alive = tuple([task.name for task in self._alive])
        except Exception:  # noqa: BLE001, S110  the adapter border: kept for the check
            pass
        except BaseExceptionGroup as group:
            # The run's own scope takes its Cancelled, unless errors came with it.
            if group.split(trio.Cancelled)[0] is None:
                raise

    def ending(self) -> Ending:
        """How the run ended."""
        return Ending(
            raised=self._raised,
            hung=self._hung,
            left_alive=self._left_alive,
            trouble=(),
            fault_time=self._fault_time,
            place="" if self._fault_time is None else f"cancel before step {self._position}",
            exact=False,
        )

    async def _watch(self) -> None:
        await trio.sleep(self._hang_after)
        self._hung = self._active
        self._scope.cancel()
        # It may hang under a shield. Nothing else uses trio in this thread.
        for thing in gc.get_objects():
            if type(thing) is trio.CancelScope and thing.shield:
                thing.shield = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step, and cancel when its turn has come."""
        self._counting = self._active and task in self._known
        if self._counting:
            if self.steps == self._position:
                self._fault_time = trio.current_time()
                self._scope.cancel()
            self.steps += 1

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Note a task that comes from the trial."""
        nursery = task.parent_nursery
        if self._active and (
            self._counting or (nursery is not None and nursery.parent_task in self._known)
        ):
            self._known.add(task)
            self._alive[task] = None

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """Forget a task that has ended."""
        self._alive.pop(task, None)


def make_stage(
    *, real_time: bool, seeds: Iterable[int], max_positions: int | None, hang_after: float
) -> Stage:
    """The stage that a kit's options ask for.

    Raises:
      ValueError: an option leaves nothing to run.
    """
    at_least_one(max_positions=max_positions)
    seed_list = listed("seeds", seeds)
    if real_time:
        return LiveStage(12 if max_positions is None else max_positions, hang_after)
    return MockStage(seed_list, max_positions)
