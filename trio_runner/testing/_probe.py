"""What stands between trio and a swept run: it counts, and injects the faults.

What may live here: what a run is planned to meet (`Planned`, `Options`) and the
instrument. What runs around the operation is `_position.py`.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from trio_runner.testing._faults import Fault, Injection, Landing, SweepError, Unit
from trio_runner.testing._places import here, place_here, place_of

#: Stands in a trace for a moment at which every task waits.
_ALL_WAIT = -1


@attrs.frozen
class Planned:
    """A fault and the position it is planned for, counted in ``unit`` from 0."""

    fault: Fault
    position: int
    unit: Unit = "step"

    @classmethod
    def of(cls, fault: Fault, position: int) -> Planned:
        """For a task step, or for a call if it is a call fault."""
        return cls(fault, position, "step" if fault.seam is None else "call")


@attrs.frozen(kw_only=True)
class Options:
    """How each position is run.

    Attributes:
      restrict_ki: run trio with ``restrict_keyboard_interrupt_to_checkpoints``.
      strict_groups: run trio with ``strict_exception_groups``.
      hang_after: seconds on the mock clock after which a run counts as hung.
      max_steps: task steps after which it does.
      in_child: run the operation in a child of the main task.
    """

    restrict_ki: bool = False
    strict_groups: bool = True
    hang_after: float = 3600.0
    max_steps: int = 20_000
    in_child: bool = False


class LineTracer(Protocol):
    """What `_lines.py` plugs in: a thing that is switched on while the run is active."""

    def start(self, probe: Probe) -> None:
        """The run begins: count from 0."""
        ...

    def stop(self) -> None:
        """The run has left."""
        ...


class Probe(trio.abc.Instrument):
    """Counts task steps, injects the faults, and knows which tasks came from the run.

    trio logs an exception of an instrument and drops the instrument, which
    would look like a clean run: so each is kept in ``errors``, and
    ``saw_the_end`` stays False when this one was dropped for any other reason.
    """

    def __init__(self, plan: Sequence[Planned], max_steps: int) -> None:
        self.injection = Injection()
        self.errors: list[BaseException] = []
        self.saw_the_end = False
        self.trace: list[int] = []
        self.task_names: list[str] = []
        #: Tasks that came from the run and have not ended.
        self.alive: dict[trio.lowlevel.Task, None] = {}
        #: Calls that passed each seam.
        self.calls: collections.Counter[str] = collections.Counter()
        self.landings = [Landing(p.fault.name, p.position, p.unit) for p in plan]
        #: When the first fault landed that says to leave.
        self.told_to_leave: float | None = None
        self.active = False
        #: Whether the case's ``afterwards`` is being awaited.
        self.afterwards = False
        #: The mock clock, which can be read in a thread as well.
        self.now: Callable[[], float] = trio.current_time
        #: Whether the running code is that of a thread for which trio's thread waits.
        self.runs_in_line: Callable[[], bool] = lambda: False
        #: Called once when the run has taken too many steps, and once when ``afterwards`` has.
        self.on_too_long: Callable[[], None] = lambda: None
        self._max_steps = max_steps
        #: Steps of any task while ``afterwards`` was awaited.
        self._steps_afterwards = 0
        self._plan = list(plan)
        #: Which planned fault comes next, and the step it is planned for (-1: none by step).
        self._next = 0
        self._next_step = -1
        #: The counted tasks, with their numbers.
        self._numbers: dict[trio.lowlevel.Task, int] = {}
        #: Whether the current task step is a counted one: what it spawns is counted too.
        self._counting = False
        self._root: trio.lowlevel.Task | None = None
        #: How many tasks can run.
        self._runnable = 0
        #: Whether a counted task has stepped since every task waited last.
        self._stepped = False

    # --- used by the harness ---

    def begin(self, root: trio.lowlevel.Task) -> None:
        """Count from here on; the task of the run is number 0."""
        self._root = root
        self._numbers[root] = 0
        self.task_names.append(root.name)
        self._counting = True
        self._aim()
        self.active = True

    def end(self) -> None:
        """Count no more."""
        self.active = False

    def fire(self, task: str, place: str) -> None:
        """Inject the next planned fault; ``task`` is the name of the one that it meets."""
        number = self._next
        planned = self._plan[number]
        self._next += 1
        self._aim()
        now = self.now()
        self.landings[number] = attrs.evolve(
            self.landings[number],
            landed=True,
            time=now,
            task=task,
            place=place,
            steps=len(self.trace),
            calls=tuple(self.calls.items()),
        )
        if planned.fault.seam is None and self.told_to_leave is None:
            self.told_to_leave = now
        planned.fault.inject(self.injection)

    def on_call(self, seam: str) -> Fault | None:
        """Count a call through a seam, and give the fault that is planned for it."""
        if not self.active:
            return None
        if not trio.lowlevel.in_trio_task() and not self.runs_in_line():
            error = SweepError(
                f"the seam {seam!r} was called outside a task of trio, at {place_here()}: when "
                "that is depends on chance. Call it in a task, or in a function of trio.to_thread"
            )
            self.errors.append(error)
            raise error
        call = self.calls[seam]
        self.calls[seam] = call + 1
        if self._next == len(self._plan):
            return None
        planned = self._plan[self._next]
        if (planned.unit, planned.fault.seam, planned.position) != ("call", seam, call):
            return None
        self.fire(here(), place_here())
        return planned.fault

    def next_line(self) -> int:
        """The line the next fault is planned for, or -1."""
        if self._next < len(self._plan) and self._plan[self._next].unit == "line":
            return self._plan[self._next].position
        return -1

    def _aim(self) -> None:
        self._next_step = -1
        if self._next < len(self._plan) and self._plan[self._next].unit == "step":
            self._next_step = self._plan[self._next].position

    # --- called by trio ---

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """A task can run."""
        self._runnable += 1

    def before_io_wait(self, timeout: float) -> None:
        """Count the moment when every task waits, once until a counted task steps."""
        # The timeout does not tell: the clock jumps, so it is 0 in any case.
        if self.active and self._stepped and self._runnable == 0:
            self._stepped = False
            try:
                self._count(_ALL_WAIT, self._root)
            except BaseException as exc:
                self.errors.append(exc)
                raise

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step, and inject the fault that is planned for it."""
        self._runnable -= 1
        # trio would only log it; the engine raises it when the run is over.
        try:
            if self.active:
                self._step(task)
            elif self.afterwards:
                self._steps_afterwards += 1
                if self._steps_afterwards == self._max_steps:
                    self.on_too_long()
        except BaseException as exc:
            self.errors.append(exc)
            raise

    def _step(self, task: trio.lowlevel.Task) -> None:
        number = self._numbers.get(task)
        if number is None:
            self._counting = False
            return
        self._counting = True
        self._stepped = True
        self._count(number, task)

    def _count(self, number: int, task: trio.lowlevel.Task | None) -> None:
        step = len(self.trace)
        self.trace.append(number)
        # Two faults may be planned for one step.
        while step == self._next_step:
            assert task is not None
            waiting = ", while every task is waiting" if number == _ALL_WAIT else ""
            self.fire(task.name, place_of(task) + waiting)
        if step == self._max_steps:
            self.on_too_long()

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        """Count a task that a counted task spawned, wherever, or that a counted nursery got."""
        if not self.active:
            return
        nursery = task.parent_nursery
        if self._counting or (nursery is not None and nursery.parent_task in self._numbers):
            self._numbers[task] = len(self.task_names)
            self.task_names.append(task.name)
            self.alive[task] = None

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """Forget a task that has ended."""
        self.alive.pop(task, None)

    def after_run(self) -> None:
        """Note that this instrument was there to the end."""
        self.saw_the_end = True
