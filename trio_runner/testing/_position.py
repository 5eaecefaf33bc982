"""One position of a sweep: one run of the case, with its faults, under full control.

What may live here: the harness around the run. The instrument that counts and
injects is `_probe.py`, what they saw is an `Outcome`; which positions there are, and
what is reported, is `_sweep.py`; SIGINT at a line is `_lines.py`.

Theory of operation. The case runs in the *main* task, since trio delivers
KeyboardInterrupt there. Around it are, from the outside: a scope of the engine
(for a run that hangs), the caller's scope (``cancel`` and ``deadline``), and a
nursery with a sibling (``crash``). The instrument counts the steps of the main
task and of every task that comes from it; the sibling and trio's own tasks do
not count. Position k is the moment just before step k; position 0 is before
the run has begun. A moment at which no task can run, since all of them wait, is
a position among the steps as well: there a fault finds each task in its wait, and
not on its way out of it. Where a fault asks for it, the run is a child of the main task
instead. Calls through the case's seams are counted one by one, and position k of
a call fault is call k. When the run has left and all of this is over but the
engine's scope, the main task awaits the case's ``afterwards``.
"""

from __future__ import annotations

import functools
import gc
import math
import threading
from collections.abc import Sequence
from types import MappingProxyType

import trio
import trio.testing

from trio_runner.testing._determinism import deterministic
from trio_runner.testing._ends import Interrupts, caught, patience
from trio_runner.testing._faults import SiblingCrash, SweepError
from trio_runner.testing._outcome import Case, Outcome, errors_in, holds
from trio_runner.testing._places import place_of
from trio_runner.testing._probe import LineTracer, Options, Planned, Probe
from trio_runner.testing._surroundings import Surroundings

_LOOKS_BEFORE_STUCK = 20_000
_SHOWN_PLACES = 3
#: How trio names a task in which it closes an async generator; it has warned of that.
_CLOSING = "close asyncgen"


class _Harness:
    """Runs the case in one trio run, and keeps what it sees."""

    def __init__(
        self, case: Case, probe: Probe, options: Options, tracer: LineTracer | None
    ) -> None:
        self.value: object = None
        self.raised: BaseException | None = None
        self.hung = False
        #: Which limit of the sweep it has passed, in words.
        self.limit = ""
        self.cancel_visible = False
        self.left_alive: tuple[str, ...] = ()
        self.left_at = 0.0
        self.kept_interrupt = False
        self.afterwards_raised: BaseException | None = None
        self.afterwards_hung = False
        self._case = case
        #: The one that runs the operation, or what is awaited after it.
        self._task: trio.lowlevel.Task | None = None
        #: The tasks that were there before the run.
        self._there: set[trio.lowlevel.Task] = set()
        self._probe = probe
        self._options = options
        self._tracer = tracer
        self._engine_scope = trio.CancelScope()
        #: When on the mock clock whatever is still going on is thrown out.
        self._patience_ends = math.inf
        self.interrupts = Interrupts()
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        probe.now = self.clock.current_time

    async def main(self) -> None:
        """Run the case; what it raises goes the whole way out, as in a program."""
        self._probe.on_too_long = self._too_many_steps
        self.interrupts.count_from_now()
        self._patience_ends = trio.current_time() + self._options.hang_after
        trio.lowlevel.spawn_system_task(self._watch)
        with self._engine_scope:
            way_out = await caught(self._operation)
            if self._case.afterwards is not None and self._goes_on():
                self._patience_ends = trio.current_time() + self._options.hang_after
                # A KeyboardInterrupt that is still on its way is not for what comes now.
                way_out = await caught(trio.lowlevel.checkpoint) or way_out
                self.kept_interrupt = holds(way_out, (KeyboardInterrupt,))
                self._task = trio.lowlevel.current_task()
                self._probe.afterwards = True
                self.afterwards_raised = await caught(self._case.afterwards)
                self._probe.afterwards = False
            if way_out is not None:
                try:
                    raise way_out
                finally:
                    del way_out  # its traceback holds this frame

    async def _operation(self) -> None:
        """The case's operation with everything around it that a fault acts through."""
        with self._probe.injection.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sibling)
                if self._options.in_child:
                    async with trio.open_nursery() as around:
                        around.start_soon(self._run, nursery)
                else:
                    await self._run(nursery)

    def _goes_on(self) -> bool:
        """Whether the operation ended without being thrown out, and trio runs on."""
        # A coroutine that trio had to drop is closed later, outside trio, and comes here.
        # A cancel is the engine's, or trio's when its loop is coming down.
        return trio.lowlevel.in_trio_task() and trio.current_effective_deadline() != -math.inf

    async def _run(self, nursery: trio.Nursery) -> None:
        probe = self._probe
        self._there = _all_tasks()
        self._task = trio.lowlevel.current_task()
        probe.begin(self._task)
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
        strangers = _all_tasks() - self._there - probe.alive.keys()
        names = [task.name for task in strangers if not task.name.startswith(_CLOSING)]
        self.left_alive = (*[task.name for task in probe.alive], *sorted(names))
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
        while trio.current_time() < self._patience_ends:  # noqa: ASYNC110  it may move meanwhile
            await trio.sleep_until(self._patience_ends)
        self._throw_out(f"more than hang_after={self._options.hang_after:g} s on the mock clock")

    def _too_many_steps(self) -> None:
        self._throw_out(f"more than max_steps={self._options.max_steps} steps")

    def _places(self) -> str:
        """Where the operation and its tasks stand, the first few."""
        tasks = [task for task in (self._task, *self._probe.alive) if task is not None]
        places = list(dict.fromkeys(map(place_of, tasks)))
        more = f", and {len(places) - _SHOWN_PLACES} more" * (len(places) > _SHOWN_PLACES)
        return ", ".join(places[:_SHOWN_PLACES]) + more

    def _throw_out(self, limit: str) -> None:
        """End what does not end by itself, so that the sweep can go on."""
        self.limit = f"it took {limit}; it stood at {self._places()}"
        self.hung = self._probe.active
        self.afterwards_hung = self._probe.afterwards
        # What comes now is the engine's doing, and no position.
        self._probe.end()
        self._engine_scope.cancel()
        # It may swallow the cancel over and over. trio looks at the clock in every round.
        impatient = patience(self.clock.current_time, _LOOKS_BEFORE_STUCK)
        setattr(self.clock, "current_time", impatient)  # noqa: B010
        # It may hang under a shield. Nothing else uses trio in this thread.
        for thing in gc.get_objects():
            if type(thing) is trio.CancelScope and thing.shield:
                thing.shield = False


def _all_tasks() -> set[trio.lowlevel.Task]:
    """Every task of this trio run, trio's own among them."""
    found: set[trio.lowlevel.Task] = set()
    todo = [trio.lowlevel.current_root_task()]
    while todo:
        task = todo.pop()
        if task is not None:
            found.add(task)
            todo += [each for nursery in task.child_nurseries for each in nursery.child_tasks]
    return found


def run_position(
    case: Case,
    plan: Sequence[Planned],
    seed: int,
    options: Options,
    around: Surroundings,
    tracer: LineTracer | None = None,
) -> Outcome:
    """Run the case once with the faults of ``plan``. What is wrong with it is not said yet.

    Raises:
      SweepError: the engine could not do its work.
    """
    probe = Probe(plan, options.max_steps)
    probe.runs_in_line = lambda: around.threads.has(threading.get_ident())
    for name, seam in case.seams.items():
        seam.watch(functools.partial(probe.on_call, name))
    harness = _Harness(case, probe, options, tracer)
    escaped: BaseException | None = None
    around.begin()
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
    unasked = probe.injection.interrupts == 0 and holds(
        harness.afterwards_raised, (KeyboardInterrupt,)
    )
    if unasked or harness.interrupts.count > probe.injection.interrupts:
        raise KeyboardInterrupt from escaped
    if around.threads.error is not None:
        raise around.threads.error
    broken = escaped if isinstance(escaped, trio.TrioInternalError) else None
    _check_engine(probe, harness, escaped, broken)
    return Outcome(
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
        trouble=tuple(around.trouble),
        broken=broken,
        trace=tuple(probe.trace),
        task_names=tuple(probe.task_names),
        calls=MappingProxyType(dict(probe.calls)),
        in_child=options.in_child,
        kept_interrupt=harness.kept_interrupt or holds(escaped, (KeyboardInterrupt,)),
        afterwards_raised=harness.afterwards_raised,
        afterwards_hung=harness.afterwards_hung,
        limit=harness.limit,
        planned=tuple(error for seam in case.seams.values() for error in seam.raised),
        calls_hung=sum(seam.hung for seam in case.seams.values()),
        left_behind=() if broken is not None else around.left_behind(),
        scope_left_open=_is_misnested(escaped),
    )


def _check_engine(
    probe: Probe,
    harness: _Harness,
    escaped: BaseException | None,
    broken: BaseException | None,
) -> None:
    """Raise unless what was seen can be trusted."""
    if probe.errors and isinstance(probe.errors[0], SweepError):
        raise probe.errors[0]
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
    if escaped is not None and not explained and not _is_misnested(escaped):
        raise SweepError(f"the harness failed: {escaped!r}") from escaped


def _is_misnested(escaped: BaseException | None) -> bool:
    """Whether trio found a scope of the case inside those of the engine when these were left."""
    return any(
        isinstance(error, RuntimeError) and str(error).startswith("Cancel scope stack corrupted")
        for error in errors_in(escaped)
    )
