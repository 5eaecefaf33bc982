"""What a sweep is given, and what it saw at one position: `Case` and `Outcome`.

What may live here: the two values, and the judgement that holds for every
case: no cancel or interrupt is lost, nothing hangs, nothing is left running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from typing import Any, cast

import attrs
import trio

from trio_runner.testing._faults import Landing


@attrs.frozen
class Case:
    """What is swept: an operation, made anew for every position, and what must hold after it.

    Attributes:
      run: the operation. It is awaited in the main task of a trio run of its own.
      check: looks at the `Outcome` and yields one sentence for each violation.
        Called outside trio, after the run; an AssertionError counts as a violation.
      raises_cancel: whether ``run`` promises to end with a checkpoint, so that
        a cancel or an interrupt that came while it ran always leaves it. With
        False it may end normally although it was cancelled.
      leaves_within: seconds on the mock clock that ``run`` may take to leave
        after the first fault; None: any time.
      end_state: what tells one end from another in the report's count; None:
        the type of what ``run`` raised.
    """

    run: Callable[[], Awaitable[object]]
    check: Callable[[Outcome], Iterable[str]] = lambda _: ()
    raises_cancel: bool = True
    leaves_within: float | None = None
    end_state: Callable[[Outcome], Hashable] | None = None


@attrs.frozen
class Outcome:
    """What happened at one position.

    Attributes:
      seed: of the scheduler.
      landings: the planned faults, in order; none in the run without a fault.
      value: what ``run`` returned; None when it raised.
      raised: the exception as it left ``run``.
      cancel_visible: whether a cancel of the caller's was in force when ``run`` left.
      cancelled_caught: whether the caller's scope caught a Cancelled.
      interrupts: how many SIGINTs were sent.
      sibling_crashed: whether the sibling task was told to crash.
      late_interrupt: a SIGINT came while ``run`` was active, but was raised only after it.
      left_alive: the names of tasks that came from ``run`` and outlived it.
      hung: ``run`` did not leave by itself, and was thrown out.
      leave_time: seconds on the mock clock from the first fault to leaving; None without one.
      trouble: warnings and unraisable errors of the run.
      broken: an error of trio's run loop itself.
      trace: for each step that was counted, the number of its task in order of
        creation; equal for equal positions.
      task_names: the tasks by that number.
      violations: what the engine itself found wrong.
    """

    seed: int
    landings: tuple[Landing, ...]
    value: object
    raised: BaseException | None
    cancel_visible: bool
    cancelled_caught: bool
    interrupts: int
    sibling_crashed: bool
    late_interrupt: bool
    left_alive: tuple[str, ...]
    hung: bool
    leave_time: float | None
    trouble: tuple[str, ...]
    broken: trio.TrioInternalError | None
    trace: tuple[int, ...]
    task_names: tuple[str, ...]
    violations: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """The names of the planned faults."""
        return tuple(landing.fault for landing in self.landings)

    @property
    def landed(self) -> bool:
        """Whether every planned fault came while the run was active; True without faults."""
        return all(landing.landed for landing in self.landings)

    def raised_a(self, *types: type[BaseException]) -> bool:
        """Whether what left ``run`` is, or is a group that holds, one of ``types``."""
        return holds(self.raised, types)


def leaves_of(group: object) -> tuple[BaseException, ...]:
    """The exceptions directly in a group."""
    return cast("BaseExceptionGroup[BaseException]", group).exceptions


def chain_of(exc: BaseException | None) -> Iterator[BaseException]:
    """The exception, its leaves, and all that they were raised over or from."""
    seen: set[int] = set()
    todo = [exc]
    while todo:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        todo += [link.__context__, link.__cause__]
        if isinstance(link, BaseExceptionGroup):
            todo += leaves_of(cast("object", link))


def holds(exc: BaseException | None, types: tuple[type[BaseException], ...]) -> bool:
    """Whether ``exc`` is one of ``types``, or a group with one of them at any depth."""
    match exc:
        case None:
            return False
        case BaseExceptionGroup():
            return any(holds(leaf, types) for leaf in leaves_of(exc))
        case _:
            return isinstance(exc, types)


def violations(case: Case, seen: Outcome) -> Iterable[str]:
    """What is wrong with an outcome whatever the case is about."""
    how = f"raised {seen.raised!r}" if seen.raised is not None else f"returned {seen.value!r}"
    if seen.hung:
        yield "it did not end by itself"
        return
    if seen.broken is not None:
        yield f"trio's run loop broke: {seen.broken.__cause__ or seen.broken!r}"
        return
    yield from _lost_faults(case, seen, how)
    for name in seen.left_alive:
        yield f"task {name!r} was left running"
    if (
        case.leaves_within is not None
        and seen.leave_time is not None
        and seen.leave_time > case.leaves_within + 1e-6
    ):
        yield f"it took {seen.leave_time:g} s to leave, more than {case.leaves_within:g}"
    yield from seen.trouble


def _lost_faults(case: Case, seen: Outcome, how: str) -> Iterable[str]:
    interrupted = seen.raised_a(KeyboardInterrupt)
    cancelled = seen.raised_a(trio.Cancelled)
    if cancelled and not seen.cancel_visible:
        yield f"it {how}, though nobody had cancelled it"
    if seen.interrupts and not interrupted:
        by_line = any(landing.unit == "line" for landing in seen.landings)
        if not seen.late_interrupt:
            yield f"the KeyboardInterrupt was swallowed: it {how}"
        elif case.raises_cancel and seen.raised is None and not by_line:
            # A line may come after the last checkpoint; a step comes before it.
            yield f"a KeyboardInterrupt was pending when it {how}"
    if not case.raises_cancel or not seen.cancel_visible or interrupted:
        return
    # An error that was already on its way out when the cancel came may leave; one
    # that was raised over the Cancelled has it in its chain.
    if not cancelled and (seen.raised is None or _replaces_cancelled(seen.raised)):
        yield f"the cancel was swallowed: it {how}"


def _replaces_cancelled(exc: BaseException) -> bool:
    return any(isinstance(link, trio.Cancelled) for link in chain_of(exc))


def describe(outcome: Outcome) -> Any:
    """The default end state: the type of what was raised, with the types in a group."""
    return _shape(outcome.raised)


def _shape(exc: BaseException | None) -> Any:
    match exc:
        case None:
            return "returned"
        case BaseExceptionGroup():
            return (type(exc).__name__, frozenset(_shape(leaf) for leaf in leaves_of(exc)))
        case _:
            return type(exc).__name__
