"""What a sweep is given, and what it saw at one position: `Case` and `Outcome`.

What may live here: the two values, and the judgement that holds for every
case: no cancel or interrupt is lost, no error comes that no fault explains,
nothing hangs, nothing is left running.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs
import trio

from trio_runner.testing._faults import Landing, SiblingCrash
from trio_runner.testing._seams import Seam

# How much of an error's text a violation quotes.
_QUOTED_LINES = 12
# Faults after which a Cancelled that comes from a deadline is of somebody else's making.
_WITHOUT_DEADLINE = frozenset({"cancel", "crash", "sigint", "sigint_child"})


def as_types(
    given: type[BaseException] | Iterable[type[BaseException]],
) -> tuple[type[BaseException], ...]:
    """Types of errors, from one or several.

    Raises:
      TypeError: it is something else.
    """
    types = (given,) if isinstance(given, type) else tuple(given)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, BaseException)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"may_raise has {each!r}; expected types of errors, such as OSError")
    return types


@attrs.frozen
class Case:
    """What is swept: an operation, made anew for every position, and what must hold after it.

    Attributes:
      run: the operation. It is awaited in the main task of a trio run of its own.
      check: looks at the `Outcome` and gives one sentence for each violation, or
        None. Called outside trio, after the run; an AssertionError counts as a violation.
      raises_cancel: whether ``run`` promises to end with a checkpoint, so that
        a cancel or an interrupt that came while it ran always leaves it: then a
        swallowed one is found, too. With False it may end normally although it
        was cancelled.
      leaves_within: seconds on the mock clock that ``run`` may take to leave
        after the first fault; None: any time.
      end_state: what tells one end from another in the report's count; None:
        the type of what ``run`` raised.
      seams: by name, what the operation calls through; call faults need them.
      judge: whether the engine adds its own violations (what holds for any
        operation: `standard_violations`). False: the check sees to them.
      afterwards: asks whether what ``run`` used is still usable. Awaited in the
        main task of the same trio run when ``run`` has left, by returning or by
        raising, and the faults are over: no cancel or interrupt of the sweep
        reaches it, and none of its steps and calls is a position. Not awaited when
        ``run`` had to be thrown out or trio's loop broke. What it raises is a
        violation, and so is a hang; tasks that it leaves running are not.
      may_raise: a type of errors that may leave ``run`` by themselves, or several, also in
        the run without a fault; a sweep refuses a case whose run without a fault raises
        anything else. What the faults put in is allowed anyway.
    """

    run: Callable[[], Awaitable[object]]
    check: Callable[[Outcome], Iterable[str] | None] = lambda _: None
    raises_cancel: bool = False
    leaves_within: float | None = None
    end_state: Callable[[Outcome], Hashable] | None = None
    seams: Mapping[str, Seam] = MappingProxyType({})
    judge: bool = True
    afterwards: Callable[[], Awaitable[object]] | None = None
    may_raise: tuple[type[BaseException], ...] = attrs.field(default=(), converter=as_types)


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
        creation, and -1 for each moment at which every task was waiting; equal for
        equal positions.
      task_names: the tasks by that number.
      calls: how many calls passed each seam.
      in_child: whether ``run`` was a child of the main task.
      kept_interrupt: whether a KeyboardInterrupt came out of the whole program at last.
      violations: what the engine itself found wrong.
      afterwards_raised: what `Case.afterwards` raised; when it hung, what it was
        thrown out with, whose traceback shows where it stood.
      afterwards_hung: it did not return by itself, and was thrown out.
      limit: which limit of the sweep a run had passed that hung, in words.
      planned: what the calls raised that were planned to fail.
      calls_hung: how many calls were planned never to return, and came.
      left_behind: threads and child processes that came with ``run`` and outlived it.
      scope_left_open: ``run`` left a cancel scope open that it had entered.
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
    afterwards_raised: BaseException | None = None
    afterwards_hung: bool = False
    limit: str = ""
    planned: tuple[BaseException, ...] = ()
    calls_hung: int = 0
    left_behind: tuple[str, ...] = ()
    scope_left_open: bool = False

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
    if seen.broken is not None and not (seen.hung or seen.afterwards_hung):
        yield f"trio's run loop broke: {seen.broken.__cause__ or seen.broken!r}"
        return
    yield from slow_leaving(seen, case.leaves_within)
    yield from stray_cancel(seen)
    # Two tasks may fail alike.
    yield from dict.fromkeys(
        f"it raised {type(error).__name__}, which no fault explains: {quoted(error)}"
        for error in unexplained(seen, case.may_raise)
    )
    if case.raises_cancel:
        yield from lost_cancel(seen)
    yield from lost_interrupt(seen, raises_cancel=case.raises_cancel)
    yield from left_running(seen)


def afterwards_violations(seen: Outcome) -> Iterable[str]:
    """What no check can see for itself: a scope left open, and what `Case.afterwards` found."""
    if seen.scope_left_open:
        yield "it left a cancel scope open that it had entered"
    error = seen.afterwards_raised
    if seen.afterwards_hung:
        yield "afterwards: it did not end by itself"
    elif error is not None and seen.broken is None:
        said = str(error) if isinstance(error, AssertionError) else ""
        yield f"afterwards: {said or repr(error)}"


def slow_leaving(seen: Outcome, within: float | None) -> Iterable[str]:
    """It must end by itself, and soon enough after a fault that says to leave."""
    if seen.hung:
        yield "it did not end by itself" + (f": {seen.limit}" if seen.limit else "")
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
    if seen.raised is None or _replaces_cancelled(seen):
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
    for what in seen.left_behind:
        yield f"{what} was left running"
    yield from seen.trouble


def unexplained(
    seen: Outcome, may_raise: tuple[type[BaseException], ...]
) -> Iterator[BaseException]:
    """The errors that left the run though no fault of it can have raised them.

    Not among them: Cancelled, since `stray_cancel` finds those that nobody asked for.
    """
    if seen.hung or seen.broken is not None or isinstance(seen.raised, may_raise):
        return
    expected: tuple[type[BaseException], ...] = (trio.Cancelled, *may_raise)
    if seen.interrupts:
        expected += (KeyboardInterrupt,)
    if seen.sibling_crashed:
        expected += (SiblingCrash,)
    planned = tuple(type(error) for error in seen.planned)
    if seen.calls_hung:
        planned += (trio.TooSlowError,)  # of somebody who did not wait for ever
    for error in errors_in(seen.raised):
        if not isinstance(error, expected) and not _comes_from(error, planned):
            yield error


def _comes_from(error: BaseException | None, types: tuple[type[BaseException], ...]) -> bool:
    """Whether an error is one of ``types``, or was raised from one."""
    while error is not None:
        if isinstance(error, types):
            return True
        error = error.__cause__
    return False


def errors_in(error: BaseException | None) -> Iterator[BaseException]:
    """The errors in a group, at any depth; or the one error."""
    match error:
        case None:
            pass
        case BaseExceptionGroup():
            for each in leaves_of(error):
                yield from errors_in(each)
        case _:
            yield error


def quoted(error: BaseException) -> str:
    """The text of an error, below a violation's dash."""
    lines = str(error).splitlines() or [repr(error)]
    if len(lines) > _QUOTED_LINES:
        lines[_QUOTED_LINES:] = ["…"]
    return "\n      ".join(lines)


def sentences(found: object) -> Iterator[str]:
    """What a check gave, if it is what a check may give.

    Raises:
      TypeError: it is neither None nor sentences.
    """
    match found:
        case None:
            pass
        case str():
            yield found
        case Iterable():
            yield from cast("Iterable[str]", found)
        case _:
            raise TypeError(
                f"it gave {found!r}; expected None, or sentences. A check is a plain function "
                "that asserts, or yields what is wrong"
            )


def _how(seen: Outcome) -> str:
    return f"raised {seen.raised!r}" if seen.raised is not None else f"returned {seen.value!r}"


def _replaces_cancelled(seen: Outcome) -> bool:
    # A deadline of the operation's own is not the caller's cancel.
    not_by_deadline = bool(seen.landings) and set(seen.faults) <= _WITHOUT_DEADLINE
    return any(
        isinstance(link, trio.Cancelled) and not (not_by_deadline and link.source == "deadline")
        for link in chain_of(seen.raised)
    )


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
