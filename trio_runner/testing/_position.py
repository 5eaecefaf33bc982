"""One position of a sweep: one run of the case, with its faults, under full control.

What may live here: the instrument that counts and injects, the harness around
the run. What they saw is an `Outcome`; which positions there are, and what is
reported, is `_sweep.py`; SIGINT at a line is `_lines.py`.

Theory of operation. The case runs in the *main* task, since trio delivers
KeyboardInterrupt there. Around it are, from the outside: a scope of the engine
(for a run that hangs), the caller's scope (``cancel`` and ``deadline``), and a
nursery with a sibling (``crash``). The instrument counts the steps of the main
task and of every task that comes from it; the sibling and trio's own tasks do
not count. Position k is the moment just before step k; position 0 is before
the run has begun. Where a fault asks for it, the run is a child of the main task
instead. Calls through the case's seams are counted one by one, and position k of
a call fault is call k.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import math
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType, MappingProxyType
from typing import Protocol

import attrs
import trio
import trio.testing

from trio_runner.testing._determinism import deterministic
from trio_runner.testing._faults import (
    Fault,
    Injection,
    Landing,
    SiblingCrash,
    SweepError,
    Unit,
)
from trio_runner.testing._outcome import Case, Outcome, holds, standard_violations

_LOOKS_BEFORE_STUCK = 20_000
_TRIO_FOLDER = trio.__file__.removesuffix("__init__.py")
_OWN_FOLDER = __file__.removesuffix("_position.py")


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
        #: Called once when the run has taken too many steps.
        self.on_too_long: Callable[[], None] = lambda: None
        self._max_steps = max_steps
        self._plan = list(plan)
        #: Which planned fault comes next, and the step it is planned for (-1: none by step).
        self._next = 0
        self._next_step = -1
        #: The counted tasks, with their numbers.
        self._numbers: dict[trio.lowlevel.Task, int] = {}
        #: Whether the current task step is a counted one: what it spawns is counted too.
        self._counting = False

    # --- used by the harness ---

    def begin(self, root: trio.lowlevel.Task) -> None:
        """Count from here on; the task of the run is number 0."""
        self._numbers[root] = 0
        self.task_names.append(root.name)
        self._counting = True
        self._aim()
        self.active = True

    def end(self) -> None:
        """Count no more."""
        self.active = False

    def fire(self, task: trio.lowlevel.Task, place: str) -> None:
        """Inject the next planned fault."""
        number = self._next
        planned = self._plan[number]
        self._next += 1
        self._aim()
        now = trio.current_time()
        self.landings[number] = attrs.evolve(
            self.landings[number],
            landed=True,
            time=now,
            task=task.name,
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
        call = self.calls[seam]
        self.calls[seam] = call + 1
        if self._next == len(self._plan):
            return None
        planned = self._plan[self._next]
        if (planned.unit, planned.fault.seam, planned.position) != ("call", seam, call):
            return None
        self.fire(trio.lowlevel.current_task(), _place_of_call())
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

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the step, and inject the fault that is planned for it."""
        if not self.active:
            return
        number = self._numbers.get(task)
        if number is None:
            self._counting = False
            return
        self._counting = True
        step = len(self.trace)
        self.trace.append(number)
        # trio would only log it; the engine raises it when the run is over.
        try:
            # Two faults may be planned for one step.
            while step == self._next_step:
                self.fire(task, place_of(task))
            if step == self._max_steps:
                self.on_too_long()
        except BaseException as exc:
            self.errors.append(exc)
            raise

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


def place_of(task: trio.lowlevel.Task) -> str:
    """Say where a suspended task stands: its innermost frame outside trio."""
    place = "?"
    try:
        for frame, line in task.iter_await_frames():
            code = frame.f_code
            if place == "?" or not code.co_filename.startswith(_TRIO_FOLDER):
                place = f"{code.co_filename}:{line} in {code.co_qualname}"
    except TypeError:  # it awaits an object that trio cannot look into
        pass
    return place


def _place_of_call() -> str:
    """Say where the running code stands: the innermost frame outside trio and this package."""
    frame: FrameType | None = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_TRIO_FOLDER, _OWN_FOLDER)):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        frame = frame.f_back
    return "?"


class _Harness:
    """Runs the case in one trio run, and keeps what it sees."""

    def __init__(
        self, case: Case, probe: Probe, options: Options, tracer: LineTracer | None
    ) -> None:
        self.value: object = None
        self.raised: BaseException | None = None
        self.hung = False
        self.cancel_visible = False
        self.left_alive: tuple[str, ...] = ()
        self.left_at = 0.0
        self._case = case
        self._probe = probe
        self._options = options
        self._tracer = tracer
        self._engine_scope = trio.CancelScope()
        self.interrupts = _Interrupts()
        self.clock = trio.testing.MockClock(autojump_threshold=0)

    async def main(self) -> None:
        """Run the case; what it raises goes the whole way out, as in a program."""
        probe = self._probe
        probe.on_too_long = self._throw_out
        self.interrupts.count_from_now()
        trio.lowlevel.spawn_system_task(self._watch)
        with self._engine_scope, probe.injection.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sibling)
                if self._options.in_child:
                    async with trio.open_nursery() as around:
                        around.start_soon(self._run, nursery)
                else:
                    await self._run(nursery)

    async def _run(self, nursery: trio.Nursery) -> None:
        probe = self._probe
        probe.begin(trio.lowlevel.current_task())
        try:
            # Step 0. It takes neither a cancel nor an interrupt: the run always begins.
            await trio.lowlevel.cancel_shielded_checkpoint()
            if self._tracer is not None:
                self._tracer.start(probe)
            self.value = await self._case.run()
        except BaseException as exc:
            self.raised = exc
            raise
        finally:
            self._left(nursery)

    def _left(self, nursery: trio.Nursery) -> None:
        """The run has left, in the very step in which it did so."""
        if self._tracer is not None:
            self._tracer.stop()
        probe = self._probe
        probe.end()
        # -inf exactly when a checkpoint here would raise Cancelled. A deadline that
        # has passed, but that trio has not looked at since, does not count yet.
        self.cancel_visible = trio.current_effective_deadline() == -math.inf
        self.left_at = trio.current_time()
        self.left_alive = tuple(task.name for task in probe.alive)
        if not probe.injection.crashing:
            probe.injection.sibling_wakes.set()
        if self.left_alive:
            nursery.cancel_scope.cancel()

    async def _sibling(self) -> None:
        injection = self._probe.injection
        await injection.sibling_wakes.wait()
        if injection.crashing:
            raise SiblingCrash("the sweep's sibling task crashed, as planned")

    async def _watch(self) -> None:
        await trio.sleep(self._options.hang_after)
        self._throw_out()

    def _throw_out(self) -> None:
        """End a run that does not end by itself, so that the sweep can go on."""
        self.hung = self._probe.active
        # What comes now is the engine's doing, and no position.
        self._probe.end()
        self._engine_scope.cancel()
        # It may swallow the cancel over and over. trio looks at the clock in every round.
        setattr(self.clock, "current_time", _patience(self.clock.current_time))  # noqa: B010
        # It may hang under a shield. Nothing else uses trio in this thread.
        for thing in gc.get_objects():
            if type(thing) is trio.CancelScope and thing.shield:
                thing.shield = False


class _Interrupts:
    """Counts the SIGINTs of one run, planned or not: the rest is Ctrl-C of whoever waits.

    Without it that would be lost when it comes into a run with a planned SIGINT,
    or when the operation swallows it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before = signal.getsignal(signal.SIGINT)
        self._handler: Callable[[int, FrameType | None], object] | None = None

    def count_from_now(self) -> None:
        """Stand before trio's handler. Called inside the run."""
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._handler = handler
            signal.signal(signal.SIGINT, self._counted)

    def _counted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        assert self._handler is not None
        self._handler(number, frame)

    def stop(self) -> None:
        """Put the handler back that was there before the run. Called after it."""
        if self._handler is not None and signal.getsignal(signal.SIGINT) == self._counted:
            signal.signal(signal.SIGINT, self._before)


class _Stuck(Exception):
    """Ends a trio run whose tasks do not end when they are cancelled."""


def _patience(current_time: Callable[[], float]) -> Callable[[], float]:
    looks = itertools.count()

    def impatient() -> float:
        if next(looks) > _LOOKS_BEFORE_STUCK:
            raise _Stuck("the run was cancelled, and goes on all the same")
        return current_time()

    return impatient


def run_position(
    case: Case,
    plan: Sequence[Planned],
    seed: int,
    options: Options,
    trouble: list[str],
    tracer: LineTracer | None = None,
) -> Outcome:
    """Run the case once with the faults of ``plan`` and judge what the engine can judge.

    ``trouble`` is the list that collects warnings; it is emptied.

    Raises:
      SweepError: the engine could not do its work.
    """
    probe = Probe(plan, options.max_steps)
    for name, seam in case.seams.items():
        seam.watch(functools.partial(probe.on_call, name))
    harness = _Harness(case, probe, options, tracer)
    escaped: BaseException | None = None
    trouble.clear()
    with deterministic(seed):
        try:
            trio.run(
                harness.main,
                clock=harness.clock,
                instruments=[probe],
                restrict_keyboard_interrupt_to_checkpoints=options.restrict_ki,
                strict_exception_groups=options.strict_groups,
            )
        except BaseException as exc:
            # A KeyboardInterrupt that no fault asked for is the user's.
            if probe.injection.interrupts == 0 and holds(exc, (KeyboardInterrupt,)):
                raise KeyboardInterrupt from exc
            escaped = exc
        finally:
            harness.interrupts.stop()
    if harness.interrupts.count > probe.injection.interrupts:
        raise KeyboardInterrupt from escaped
    broken = escaped if isinstance(escaped, trio.TrioInternalError) else None
    _check_engine(probe, harness, escaped, broken)
    seen = Outcome(
        seed=seed,
        landings=tuple(probe.landings),
        value=harness.value,
        raised=harness.raised,
        cancel_visible=harness.cancel_visible,
        cancelled_caught=probe.injection.scope.cancelled_caught,
        interrupts=probe.injection.interrupts,
        sibling_crashed=probe.injection.crashing,
        left_alive=harness.left_alive,
        hung=harness.hung,
        leave_time=(None if probe.told_to_leave is None else harness.left_at - probe.told_to_leave),
        trouble=tuple(trouble),
        broken=broken,
        trace=tuple(probe.trace),
        task_names=tuple(probe.task_names),
        calls=MappingProxyType(dict(probe.calls)),
        in_child=options.in_child,
        kept_interrupt=holds(escaped, (KeyboardInterrupt,)),
    )
    found = standard_violations(case, seen) if case.judge else ()
    return attrs.evolve(seen, violations=tuple(found))


def _check_engine(
    probe: Probe,
    harness: _Harness,
    escaped: BaseException | None,
    broken: BaseException | None,
) -> None:
    """Raise unless what was seen can be trusted."""
    if probe.errors:
        raise SweepError(
            f"injecting a fault failed: {probe.errors[0]!r}; the sweep shows nothing"
        ) from probe.errors[0]
    if broken is not None:
        return
    if not probe.task_names:
        raise SweepError(f"trio did not get as far as the case: {escaped!r}") from escaped
    if not probe.saw_the_end:
        raise SweepError(
            "trio dropped the sweep's instrument; the log 'trio.abc.Instrument' says why"
        ) from escaped
    explained = (
        harness.raised is not None
        or harness.left_alive
        or probe.injection.crashing
        or probe.injection.interrupts
    )
    if escaped is not None and not explained:
        raise SweepError(f"the harness failed: {escaped!r}") from escaped
