"""`sweep`: one fault, or two, before every task step of an operation.

What may live here: which positions there are, in what order they run, and how
their outcomes become a report. How one position runs is `_position.py`.

A sweep first runs the case without a fault, for each seed: that tells how many
steps there are. Then it runs it once for each fault and step. For a pair it
does so again from where the first fault has led. Every run repeats the steps
of the run before it up to its fault; the engine compares them, and refuses a
case that is not deterministic, since its positions would mean nothing.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import random
import sys
import time
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Any, TextIO

import attrs
import trio

from trio_runner.testing._determinism import threads_inline
from trio_runner.testing._faults import (
    Fault,
    Landing,
    SweepError,
    as_fault,
    default_sigint_handler,
)
from trio_runner.testing._outcome import Case, Outcome, chain_of, describe
from trio_runner.testing._position import LineTracer, Options, Planned, run_position
from trio_runner.testing._report import Failure, SweepReport

DEFAULT_FAULTS = ("cancel", "deadline", "crash", "sigint")


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
    clock that jumps, with `trio.to_thread.run_sync` done inline. The operation
    runs in the main task; the fault comes from outside it.

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
      SweepError: the sweep could not do its work; it then shows nothing.
    """
    chosen = [as_fault(fault) for fault in faults]
    chosen_pairs = [(as_fault(first), as_fault(second)) for first, second in pairs]
    seed_list = tuple(seeds)
    pair_seed_list = seed_list if pair_seeds is None else tuple(pair_seeds)
    if not 0 < sample <= 1:
        raise ValueError(f"sample is {sample!r}; expected a share above 0, at most 1")
    everything = [*chosen, *(fault for pair in chosen_pairs for fault in pair)]
    needs_signal = any(fault.needs_signal for fault in everything)
    options = Options(
        restrict_ki=restrict_ki,
        strict_groups=strict_groups,
        hang_after=hang_after,
        max_steps=max_steps,
    )
    with surroundings(needs_signal=needs_signal) as trouble:
        runner = Runner(make_case, options, trouble, max_failures)
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
                clean = runner.run((), seed, in_child=in_child)
                for fault in ours:
                    _sweep_one(runner, fault, seed, clean, max_positions)
                # How far a run goes after a first fault is known only from running it.
                firsts: dict[Fault, list[Outcome]] = {}
                for first, second in our_pairs:
                    if first not in firsts:
                        firsts[first] = _runs_with(runner, first, seed, clean)
                    pair = (first, second)
                    _sweep_pair(runner, pair, seed, firsts[first], sample, max_positions)
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
    the case's check.
    """
    planned = [Planned.of(as_fault(fault), position) for fault, position in plan]
    options = Options(
        restrict_ki=restrict_ki,
        strict_groups=strict_groups,
        hang_after=hang_after,
        max_steps=max_steps,
        in_child=any(entry.fault.in_child for entry in planned),
    )
    needs_signal = any(entry.fault.needs_signal for entry in planned)
    with surroundings(needs_signal=needs_signal) as trouble:
        return judge(make_case(), planned, seed, options, trouble)


def judge(
    case: Case,
    plan: Sequence[Planned],
    seed: int,
    options: Options,
    trouble: list[str],
    tracer: LineTracer | None = None,
) -> Outcome:
    """Run a position and add the violations that the case's check finds."""
    outcome = run_position(case, plan, seed, options, trouble, tracer)
    if outcome.broken is not None:
        # The tasks that trio had to drop are taken apart here, with much noise, and not
        # in somebody else's hands. Their tracebacks would keep them alive.
        for broken in (outcome.broken, outcome.raised):
            for exc in chain_of(broken):
                exc.__traceback__ = None
        gc.collect()
    found: list[str] = []
    try:
        found.extend(case.check(outcome))
    except AssertionError as exc:
        found.append(f"check failed: {exc}")
    except Exception as exc:
        exc.add_note(f"raised by the case's check after {_replay_line(plan, seed, options)}")
        raise
    return attrs.evolve(outcome, violations=(*outcome.violations, *found))


class Runner:
    """Runs positions one after the other and keeps the books."""

    def __init__(
        self,
        make_case: Callable[[], Case],
        options: Options,
        trouble: list[str],
        max_failures: int | None,
        *,
        replay_words: Sequence[str] = (),
    ) -> None:
        self.skipped = 0
        #: The seams that the faults need.
        self.seams: frozenset[str] = frozenset()
        self._replay_words = replay_words
        self._make_case = make_case
        self._options = options
        self._trouble = trouble
        self._max_failures = max_failures
        self._seeds: dict[int, None] = {}
        self._clean_runs = 0
        self._counts: collections.Counter[str] = collections.Counter()
        self._end_states: collections.Counter[Hashable] = collections.Counter()
        self._failures: list[Failure] = []
        self._began = time.process_time()

    @property
    def full(self) -> bool:
        """Whether no further position should run, since enough of them failed."""
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
        """Run one position; ``base`` is the run it must repeat up to its last fault."""
        case = self._make_case()
        if not self.seams <= case.seams.keys():
            missing = sorted(self.seams - case.seams.keys())
            raise SweepError(
                f"the faults need the seams {missing}, and the case has {sorted(case.seams)}; "
                "give it those in Case(seams=…), or leave these faults out"
            )
        options = self._options
        if in_child or (base is not None and base.in_child):
            options = attrs.evolve(options, in_child=True)
        outcome = judge(case, plan, seed, options, self._trouble, tracer)
        if base is not None:
            _compare(base, outcome, plan)
        if not count:
            return outcome
        self._seeds[seed] = None
        if plan:
            self._counts["+".join(outcome.faults)] += 1
        else:
            self._clean_runs += 1
        self._end_states[(case.end_state or describe)(outcome)] += 1
        if outcome.violations:
            line = _replay_line(plan, seed, self._options, self._replay_words)
            self._failures.append(Failure(seed, outcome.landings, outcome.violations, line))
        return outcome

    def announce(self, faults: str) -> None:
        """Have the report name these faults, also when they have no position."""
        self._counts[faults] += 0

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
        )


def spread(total: int, at_most: int | None) -> list[int]:
    """``range(total)``, or ``at_most`` numbers spread evenly over it, first and last included."""
    if at_most is None or total <= at_most:
        return list(range(total))
    if at_most < 2:
        return list(range(at_most))
    return [round(i * (total - 1) / (at_most - 1)) for i in range(at_most)]


def _positions(base: Outcome, fault: Fault, after: Landing | None = None) -> range:
    """Where a fault can come in a run that is like ``base``, after another one landed."""
    if fault.seam is None:
        return range(0 if after is None else after.steps, len(base.trace))
    passed = 0 if after is None else dict(after.calls).get(fault.seam, 0)
    return range(passed, base.calls.get(fault.seam, 0))


def _sweep_one(
    runner: Runner, fault: Fault, seed: int, clean: Outcome, max_positions: int | None
) -> None:
    runner.announce(fault.name)
    there = _positions(clean, fault)
    kept = spread(len(there), max_positions)
    runner.skipped += len(there) - len(kept)
    for done, position in enumerate(kept):
        if runner.full:
            runner.skipped += len(kept) - done
            return
        runner.run([Planned.of(fault, position)], seed, base=clean)


def _runs_with(runner: Runner, fault: Fault, seed: int, clean: Outcome) -> list[Outcome]:
    """A run for each position of a fault, without what would keep the case alive."""
    runs = [
        runner.run([Planned.of(fault, position)], seed, base=clean, count=False)
        for position in _positions(clean, fault)
    ]
    return [attrs.evolve(run, raised=None, value=None) for run in runs]


def _sweep_pair(
    runner: Runner,
    pair: tuple[Fault, Fault],
    seed: int,
    bases: list[Outcome],
    sample: float,
    max_positions: int | None,
) -> None:
    first, second = pair
    runner.announce(f"{first.name}+{second.name}")
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
        f"to {plan[-1].unit} {plan[-1].position}. make_case must make everything anew, and use no "
        "real thread, clock, random number or I/O"
    )


def _replay_line(
    plan: Sequence[Planned], seed: int, options: Options, more_words: Sequence[str] = ()
) -> str:
    by_line = bool(plan) and plan[0].unit == "line"
    words = ["make_case"]
    if by_line:
        words += [str(entry.position) for entry in plan]
    else:
        words += [f"({entry.fault.name!r}, {entry.position})" for entry in plan]
    words += [*more_words, f"seed={seed}"]
    defaults = Options(restrict_ki=by_line)
    words += [
        f"{field.name}={getattr(options, field.name)!r}"
        for field in attrs.fields(Options)
        if getattr(options, field.name) != getattr(defaults, field.name)
    ]
    return f"{'replay_line' if by_line else 'replay'}({', '.join(words)})"


@contextlib.contextmanager
def surroundings(*, needs_signal: bool) -> Generator[list[str]]:
    """Set the process up for a sweep and put everything back.

    Gives the list that collects warnings of two kinds and unraisable errors:
    coroutines never awaited and things not closed are found there.
    """
    trouble: list[str] = []
    with contextlib.ExitStack() as stack:
        if needs_signal:
            stack.enter_context(default_sigint_handler())
        stack.enter_context(threads_inline())
        stack.enter_context(_collected(trouble))
        yield trouble


@contextlib.contextmanager
def _collected(trouble: list[str]) -> Generator[None]:
    show = warnings.showwarning
    unraisable_hook = sys.unraisablehook

    def collect(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, (RuntimeWarning, ResourceWarning)):
            trouble.append(f"{category.__name__}: {message}")
        else:
            show(message, category, filename, lineno, file, line)

    def collect_unraisable(args: Any) -> None:
        trouble.append(f"unraisable in {args.object!r}: {args.exc_value!r}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.simplefilter("always", ResourceWarning)
        # Whoever asks for strict_groups=False knows.
        warnings.filterwarnings(
            "ignore", ".*strict_exception_groups=False", trio.TrioDeprecationWarning
        )
        warnings.showwarning = collect
        sys.unraisablehook = collect_unraisable
        try:
            yield
        finally:
            sys.unraisablehook = unraisable_hook
