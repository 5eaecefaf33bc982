"""What a sweep is given, and what it saw at one position: `Case` and `Outcome`.

What may live here: the two values, and the judgement that holds for every
case: no cancel or interrupt is lost, nothing hangs, nothing is left running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs
import trio

from trio_runner.testing._faults import Landing
from trio_runner.testing._seams import Seam


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
      seams: by name, what the operation calls through; call faults need them.
      judge: whether the engine adds its own violations (what holds for any
        operation: `standard_violations`). False: the check sees to them.
    """

    run: Callable[[], Awaitable[object]]
    check: Callable[[Outcome], Iterable[str]] = lambda _: ()
    raises_cancel: bool = True
    leaves_within: float | None = None
    end_state: Callable[[Outcome], Hashable] | None = None
    seams: Mapping[str, Seam] = MappingProxyType({})
    judge: bool = True


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
      left_alive: the names of tasks that came from ``run`` and outlived it.
      hung: ``run`` did not leave by itself, and was thrown out.
      leave_time: seconds on the mock clock to leaving, from the first fault that says to
        leave (no call fault); None without one.
      trouble: warnings and unraisable errors of the run.
      broken: an error of trio's run loop itself.
      trace: for each step that was counted, the number of its task in order of
        creation; equal for equal positions.
      task_names: the tasks by that number.
      calls: how many calls passed each seam.
      in_child: whether ``run`` was a child of the main task.
      kept_interrupt: whether a KeyboardInterrupt came out of the whole program at last.
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
    left_alive: tuple[str, ...]
    hung: bool
    leave_time: float | None
    trouble: tuple[str, ...]
    broken: trio.TrioInternalError | None
    trace: tuple[int, ...]
    task_names: tuple[str, ...]
    calls: Mapping[str, int] = MappingProxyType({})
    in_child: bool = False
    kept_interrupt: bool = False
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


def standard_violations(case: Case, seen: Outcome) -> Iterable[str]:
    """What is wrong with an outcome whatever the case is about."""
    if seen.broken is not None and not seen.hung:
        yield f"trio's run loop broke: {seen.broken.__cause__ or seen.broken!r}"
        return
    yield from slow_leaving(seen, case.leaves_within)
    yield from stray_cancel(seen)
    if case.raises_cancel:
        yield from lost_cancel(seen)
    yield from lost_interrupt(seen, raises_cancel=case.raises_cancel)
    yield from left_running(seen)


def slow_leaving(seen: Outcome, within: float | None) -> Iterable[str]:
    """It must end by itself, and soon enough after a fault that says to leave."""
    if seen.hung:
        yield "it did not end by itself"
    elif within is not None and seen.leave_time is not None and seen.leave_time > within + 1e-6:
        yield f"it took {seen.leave_time:g} s to leave, more than {within:g}"


def stray_cancel(seen: Outcome) -> Iterable[str]:
    """No Cancelled leaves that the caller did not ask for."""
    if not seen.hung and seen.raised_a(trio.Cancelled) and not seen.cancel_visible:
        yield f"it {_how(seen)}, though nobody had cancelled it"


def lost_cancel(seen: Outcome) -> Iterable[str]:
    """A cancel that is in force when the run leaves, leaves it."""
    if seen.hung or not seen.cancel_visible:
        return
    if seen.raised_a(KeyboardInterrupt, trio.Cancelled):
        return
    # An error that was already on its way out when the cancel came may leave; one
    # that was raised over the Cancelled has it in its chain.
    if seen.raised is None or _replaces_cancelled(seen.raised):
        yield f"the cancel was swallowed: it {_how(seen)}"


def lost_interrupt(seen: Outcome, *, raises_cancel: bool) -> Iterable[str]:
    """A KeyboardInterrupt leaves the run, or the program when the run was a child."""
    if seen.hung or not seen.interrupts or seen.raised_a(KeyboardInterrupt):
        return
    by_line = any(landing.unit == "line" for landing in seen.landings)
    if not seen.kept_interrupt:
        yield f"the KeyboardInterrupt was swallowed: it {_how(seen)}"
    elif raises_cancel and seen.raised is None and not by_line and not seen.in_child:
        # A line may come after the last checkpoint; a step comes before it.
        yield f"a KeyboardInterrupt was pending when it {_how(seen)}"


def left_running(seen: Outcome) -> Iterable[str]:
    """No task, and nothing that Python complains about, is left behind."""
    if seen.hung:
        return
    for name in seen.left_alive:
        yield f"task {name!r} was left running"
    yield from seen.trouble


def _how(seen: Outcome) -> str:
    return f"raised {seen.raised!r}" if seen.raised is not None else f"returned {seen.value!r}"


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
