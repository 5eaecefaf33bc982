"""`sweep`: one fault, or two, before every task step of an operation.

What may live here: which positions there are, in what order they run, and how
their outcomes become a report. How one position runs is `_position.py`.

A sweep first runs the case without a fault, for each seed: that tells how many
steps there are. Then it runs it once for each fault and step. For a pair it
does so again from where the first fault has led. At the end it runs it without a
fault again. Every run repeats the steps
of the run before it up to its fault; the engine compares them, and refuses a
case that is not deterministic, since its positions would mean nothing.
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable, Hashable, Iterable, Sequence

import attrs

from trio_runner.testing._faults import Fault, Landing, SweepError, as_fault
from trio_runner.testing._judge import judge, replay_text
from trio_runner.testing._options import (
    as_faults,
    as_pairs,
    at_least_one,
    listed,
    require_function,
    spread,
)
from trio_runner.testing._outcome import Case, Outcome, describe, errors_in, quoted
from trio_runner.testing._probe import LineTracer, Options, Planned
from trio_runner.testing._report import Failure, SweepReport, task_text
from trio_runner.testing._surroundings import Surroundings, surroundings

DEFAULT_FAULTS = ("cancel", "deadline", "crash", "sigint")
#: After so many runs that take seconds to be thrown out no further position is run, and how many
#: task steps take that long.
_STUCK_AT_MOST = 3
_MANY_STEPS = 10_000
_MADE_ANEW = (
    "make_case must make everything anew, and use no thread, clock or random number that the "
    "sweep does not know of, and no I/O"
)


def sweep(
    make_case: Callable[[], Case],
    *,
    faults: Iterable[str | Fault] = DEFAULT_FAULTS,
    pairs: Iterable[tuple[str | Fault, str | Fault]] = (),
    seeds: Iterable[int] = range(8),
    pair_seeds: Iterable[int] | None = None,
    sample: float = 1.0,
    max_positions: int | None = None,
    max_failures: int | None = None,
    restrict_ki: bool = False,
    strict_groups: bool = True,
    hang_after: float = 3600.0,
    max_steps: int = 20_000,
) -> SweepReport:
    """Run a case with a fault before every task step, and check what is left each time.

    Call it outside trio. Each position is a trio run of its own, on a mock
    clock that jumps; functions of `trio.to_thread` run while everything else waits
    for them. The operation runs in the main task; the fault comes from outside it.
    A moment at which every task waits counts as a step.

    The faults that have a name come before a task step:

    * ``"cancel"``: the caller's scope is cancelled;
    * ``"deadline"``: the deadline of the caller's scope is now;
    * ``"crash"``: a sibling task raises `SiblingCrash`;
    * ``"sigint"``: Ctrl-C, with the operation in the main task;
    * ``"sigint_child"``: Ctrl-C, with the operation in a child of it;

    or they are the failure of one call through a seam of the case (`Case.seams`):

    * ``"journal_error"``, ``"model_error"``, ``"hook_error"``, ``"observer_error"``:
      the call through that seam raises `PlannedError`;
    * ``"commit_error"``: the ticket of an append, the seam "commit", fails with it;
    * ``"journal_hang"``: the call through the seam "journal" never returns;
    * ``"foreign_cancel"``: the call through the seam "tool" raises
      ``asyncio.CancelledError``, as a client on a foreign event loop may.

    A `Fault` of your own can do either, with seams of any name.

    Args:
      make_case: makes the operation and its check, new for every position.
      faults: their names, or `Fault` objects.
      pairs: two faults in one run, the second at every later step or call.
      seeds: of trio's scheduler; each gives another order of the tasks.
      pair_seeds: the seeds for the pairs; None: the same.
      sample: the share of the pairs' positions to run, chosen by the seed.
      max_positions: at most this many positions per fault and seed, and per
        pair and seed, spread over the whole; None: all.
      max_failures: stop after so many failing positions; None: go on.
      restrict_ki: run trio with ``restrict_keyboard_interrupt_to_checkpoints``.
      strict_groups: run trio with ``strict_exception_groups``.
      hang_after: seconds on the mock clock after which a run counts as hung.
      max_steps: task steps after which it does.

    Raises:
      SweepError: the sweep could not do its work, or the run without a fault raised
        something; it then shows nothing.
      ValueError, TypeError: an argument makes no sense.
    """
    require_function(make_case)
    chosen, chosen_pairs = as_faults(faults), as_pairs(pairs)
    seed_list = listed("seeds", seeds)
    pair_seed_list = seed_list if pair_seeds is None else listed("pair_seeds", pair_seeds)
    if not chosen and not chosen_pairs:
        raise ValueError("faults and pairs are both empty; expected a fault to sweep with")
    if not 0 < sample <= 1:
        raise ValueError(f"sample is {sample!r}; expected a share above 0, at most 1")
    at_least_one(max_positions=max_positions, max_failures=max_failures, max_steps=max_steps)
    everything = [*chosen, *(fault for pair in chosen_pairs for fault in pair)]
    needs_signal = any(fault.needs_signal for fault in everything)
    options = Options(
        restrict_ki=restrict_ki,
        strict_groups=strict_groups,
        hang_after=hang_after,
        max_steps=max_steps,
    )
    with surroundings(needs_signal=needs_signal) as around:
        runner = Runner(make_case, options, around, max_failures)
        runner.seams = frozenset(fault.seam for fault in everything if fault.seam is not None)
        for seed in dict.fromkeys([*seed_list, *pair_seed_list]):
            singles = chosen if seed in seed_list else []
            doubles = chosen_pairs if seed in pair_seed_list else []
            for in_child in (False, True):
                ours = [fault for fault in singles if fault.in_child == in_child]
                our_pairs = [
                    pair for pair in doubles if any(each.in_child for each in pair) == in_child
                ]
                if in_child and not ours and not our_pairs:
                    continue
                clean = runner.run_clean(seed, in_child=in_child)
                if clean is None:
                    break
                for fault in ours:
                    _sweep_one(runner, fault, seed, clean, max_positions)
                # How far a run goes after a first fault is known only from running it.
                firsts: dict[Fault, list[Outcome]] = {}
                for first, second in our_pairs:
                    if first not in firsts:
                        firsts[first] = _runs_with(runner, first, seed, clean)
                    pair = (first, second)
                    _sweep_pair(runner, pair, seed, firsts[first], sample, max_positions)
                runner.check_again(seed, clean)
        return runner.report()


def replay(
    make_case: Callable[[], Case],
    *plan: tuple[str | Fault, int],
    seed: int = 0,
    restrict_ki: bool = False,
    strict_groups: bool = True,
    hang_after: float = 3600.0,
    max_steps: int = 20_000,
) -> Outcome:
    """Run one position: ``replay(make_case, ("cancel", 17), ("sigint", 20), seed=3)``.

    Each fault has the step it comes before, or the number of the call that
    fails, from 0. The outcome's ``violations`` hold those of the engine and of
    the case's check, and a fault that never came, since the run ended before.
    """
    options = Options(
        restrict_ki=restrict_ki,
        strict_groups=strict_groups,
        hang_after=hang_after,
        max_steps=max_steps,
    )
    outcome = run_once(make_case, plan, seed, options)
    never = [
        f"{landing.fault} never came: the run ended before {landing.unit} {landing.position}; the "
        "code has changed, or that is another case's position"
        for landing in outcome.landings
        if not landing.landed
    ]
    return attrs.evolve(outcome, violations=(*outcome.violations, *never))


def run_once(
    make_case: Callable[[], Case],
    plan: Sequence[tuple[str | Fault, int]],
    seed: int,
    options: Options,
) -> Outcome:
    """Run one position, whether all its faults come or not."""
    require_function(make_case)
    planned = [Planned.of(as_fault(fault), position) for fault, position in plan]
    in_child = any(entry.fault.in_child for entry in planned)
    needs_signal = any(entry.fault.needs_signal for entry in planned)
    with surroundings(needs_signal=needs_signal) as around:
        return judge(make_case, planned, seed, attrs.evolve(options, in_child=in_child), around)


class Runner:
    """Runs positions one after the other and keeps the books."""

    def __init__(
        self,
        make_case: Callable[[], Case],
        options: Options,
        around: Surroundings,
        max_failures: int | None,
        *,
        replay_words: Sequence[str] = (),
    ) -> None:
        self.skipped = 0
        #: The seams that the faults need.
        self.seams: frozenset[str] = frozenset()
        #: What was not swept, and why.
        self.unswept: dict[str, None] = {}
        self._replay_words = replay_words
        self._make_case = make_case
        self._options = options
        self._around = around
        self._max_failures = max_failures
        self._seeds: dict[int, None] = {}
        self._clean_runs = 0
        self._counts: collections.Counter[str] = collections.Counter()
        self._end_states: collections.Counter[Hashable] = collections.Counter()
        #: That of the last run.
        self._end_state: Hashable = None
        self._failures: list[Failure] = []
        self._announced: dict[str, Fault] = {}
        #: Those of the runs without a fault, by seed and by whether it was in a child.
        self._clean_end_states: dict[tuple[int, bool], Hashable] = {}
        #: Seeds whose run without a fault shows that there is nothing to sweep.
        self._broken_seeds: dict[int, None] = {}
        #: Runs that took very long to be thrown out.
        self._stuck = 0
        self._began = time.process_time()

    @property
    def is_stuck(self) -> bool:
        """Whether so many runs took seconds to be thrown out that it makes no sense to go on."""
        return self._stuck >= _STUCK_AT_MOST

    @property
    def full(self) -> bool:
        """Whether no further position should run, since enough of them failed."""
        if self.is_stuck:
            return True
        return self._max_failures is not None and len(self._failures) >= self._max_failures

    def run(
        self,
        plan: Sequence[Planned],
        seed: int,
        *,
        base: Outcome | None = None,
        tracer: LineTracer | None = None,
        count: bool = True,
        in_child: bool = False,
    ) -> Outcome:
        """Run one position; ``base`` is the run it must repeat up to its last fault.

        Returns:
          The outcome without what would keep the case alive.

        Raises:
          SweepError: the run did not repeat ``base``, or raised without a fault.
        """
        options = self._options
        if in_child or (base is not None and base.in_child):
            options = attrs.evolve(options, in_child=True)
        outcome = judge(
            self._make_case, plan, seed, options, self._around, tracer, look=self._look, keep=False
        )
        if base is not None and plan:
            _compare(base, outcome, plan)
        self._count_stuck(outcome)
        if not count:
            return outcome
        self._seeds[seed] = None
        if plan:
            self._counts["+".join(outcome.faults)] += 1
        else:
            self._clean_runs += 1
        self._end_states[self._end_state] += 1
        if outcome.violations:
            line = replay_text(plan, seed, self._options, self._replay_words)
            self._failures.append(Failure(seed, outcome.landings, outcome.violations, line))
        return outcome

    def _look(self, case: Case, outcome: Outcome) -> None:
        """Look at a run while its case is still there."""
        if not self.seams <= case.seams.keys():
            missing = sorted(self.seams - case.seams.keys())
            raise SweepError(
                f"the faults need the seams {missing}, and the case has {sorted(case.seams)}; "
                "give it those in Case(seams=…), or leave these faults out"
            )
        if not outcome.landings:
            _check_clean(case, outcome)
        self._end_state = (case.end_state or describe)(outcome)

    def _count_stuck(self, outcome: Outcome) -> None:
        if not outcome.hung or (outcome.broken is None and len(outcome.trace) < self._many):
            return
        self._stuck += 1
        if self._stuck == _STUCK_AT_MOST:
            self.unswept[
                f"what came after {_STUCK_AT_MOST} runs that did not stop when they were told to, "
                "since each costs seconds"
            ] = None

    @property
    def _many(self) -> int:
        return min(_MANY_STEPS, self._options.max_steps)

    def run_clean(
        self, seed: int, *, in_child: bool = False, tracer: LineTracer | None = None
    ) -> Outcome | None:
        """The run without a fault; None when it has a violation: then there is nothing to sweep."""
        failed = len(self._failures)
        clean = self.run((), seed, in_child=in_child, tracer=tracer)
        if len(self._failures) == failed and not clean.hung:
            self._clean_end_states[seed, in_child] = self._end_state
            return clean
        self.unswept[f"seed {seed}: its run without a fault has a violation already"] = None
        self._broken_seeds[seed] = None
        return None

    def check_again(self, seed: int, clean: Outcome) -> None:
        """Run once more without a fault, and compare the whole of it with the first time.

        Raises:
          SweepError: it was another run: what one run leaves shows in the next.
        """
        if self.full:
            return
        first = self._clean_end_states.get((seed, clean.in_child))
        again = self.run((), seed, in_child=clean.in_child, count=False)
        for name, before, now in (
            ("steps", clean.trace, again.trace),
            ("calls", clean.calls, again.calls),
            ("end state", first, self._end_state),
        ):
            if before != now:
                raise SweepError(
                    f"the case is not deterministic: with seed {seed} its run without a fault "
                    f"had other {name} when it was run again at the end ({now!r}, before "
                    f"{before!r}). {_MADE_ANEW}"
                )

    def announce(self, *faults: Fault) -> None:
        """Have the report name a fault, or a pair, also when it has no position."""
        name = "+".join(fault.name for fault in faults)
        self._counts[name] += 0
        if len(faults) == 1:
            self._announced[name] = faults[0]

    def report(self) -> SweepReport:
        """What came of it."""
        return SweepReport(
            positions=self._counts.total(),
            clean_runs=self._clean_runs,
            skipped=self.skipped,
            seeds=tuple(self._seeds),
            counts=dict(self._counts),
            end_states=dict(self._end_states),
            failures=tuple(self._failures),
            cpu_seconds=time.process_time() - self._began,
            unswept=(*self.unswept, *self._never_called()),
            broken_seeds=tuple(self._broken_seeds),
        )

    def _never_called(self) -> Iterable[str]:
        """Faults that had no place in any run."""
        for name, count in self._counts.items():
            fault = self._announced.get(name)
            if count == 0 and fault is not None and fault.seam is not None and not self.full:
                yield f"{name}: the case never passed the seam {fault.seam!r}"


def _positions(base: Outcome, fault: Fault, after: Landing | None = None) -> range:
    """Where a fault can come in a run that is like ``base``, after another one landed."""
    if fault.seam is None:
        return range(0 if after is None else after.steps, len(base.trace))
    passed = 0 if after is None else dict(after.calls).get(fault.seam, 0)
    return range(passed, base.calls.get(fault.seam, 0))


def _sweep_one(
    runner: Runner, fault: Fault, seed: int, clean: Outcome, max_positions: int | None
) -> None:
    runner.announce(fault)
    there = _positions(clean, fault)
    kept = spread(len(there), max_positions)
    runner.skipped += len(there) - len(kept)
    for done, position in enumerate(kept):
        if runner.full:
            runner.skipped += len(kept) - done
            return
        runner.run([Planned.of(fault, position)], seed, base=clean)


def _runs_with(runner: Runner, fault: Fault, seed: int, clean: Outcome) -> list[Outcome]:
    """A run for each position of a fault."""
    runs: list[Outcome] = []
    for position in _positions(clean, fault):
        if runner.is_stuck:
            break
        runs.append(runner.run([Planned.of(fault, position)], seed, base=clean, count=False))
    return runs


def _sweep_pair(
    runner: Runner,
    pair: tuple[Fault, Fault],
    seed: int,
    bases: list[Outcome],
    sample: float,
    max_positions: int | None,
) -> None:
    first, second = pair
    runner.announce(first, second)
    positions = [
        (base, one, two)
        for one, base in enumerate(bases)
        for two in _positions(base, second, base.landings[0])
    ]
    kept = spread(len(positions), max_positions)
    if sample < 1 and kept:
        chooser = random.Random(f"{seed} {first.name} {second.name}")  # noqa: S311  # a sample
        kept = sorted(chooser.sample(kept, max(1, round(sample * len(kept)))))
    runner.skipped += len(positions) - len(kept)
    for done, index in enumerate(kept):
        if runner.full:
            runner.skipped += len(kept) - done
            return
        base, one, two = positions[index]
        runner.run([Planned.of(first, one), Planned.of(second, two)], seed, base=base)


def _compare(base: Outcome, outcome: Outcome, plan: Sequence[Planned]) -> None:
    """Refuse a run that did not repeat ``base`` up to its last fault."""
    common = outcome.landings[-1].steps
    if outcome.landed and (
        plan[-1].unit == "line" or base.trace[:common] == outcome.trace[:common]
    ):
        return
    raise SweepError(
        f"the case is not deterministic: with seed {outcome.seed} it did not repeat its steps up "
        f"to {plan[-1].unit} {plan[-1].position}: {_first_difference(base, outcome)}. {_MADE_ANEW}"
    )


def _first_difference(base: Outcome, outcome: Outcome) -> str:
    """Where a run went another way than the one before, by its tasks."""
    for step, (before, now) in enumerate(zip(base.trace, outcome.trace, strict=False)):
        if before != now:
            return f"step {step} was {_step_of(base, before)}, and now is {_step_of(outcome, now)}"
    ended = min(len(base.trace), len(outcome.trace))
    if len(base.trace) == len(outcome.trace):
        return "the same steps came, and other calls or lines"
    last = outcome if len(base.trace) < len(outcome.trace) else base
    return f"one of the runs ended before step {ended}, {_step_of(last, last.trace[ended])}"


def _step_of(outcome: Outcome, number: int) -> str:
    if number < 0:
        return "a wait of all tasks"
    return f"one of {task_text(outcome.task_names[number])}"


def _check_clean(case: Case, outcome: Outcome) -> None:
    """Refuse a run without a fault that raises: it shows nothing but that."""
    error = outcome.raised
    if error is None or outcome.hung or outcome.broken is not None:
        return
    strays = [each for each in errors_in(error) if not isinstance(each, case.may_raise)]
    if strays and not isinstance(error, case.may_raise):
        raise SweepError(
            f"the run without a fault raised {type(strays[0]).__name__}: {quoted(strays[0])}; "
            "nothing was swept. Mend it, or say Case(may_raise=…) when it is meant to"
        ) from error
