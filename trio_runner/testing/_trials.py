"""What a run of a conformance kit is made of: a trial, how it ended, and looks at its parts.

What may live here: what the rules use inside and after one trio run. How many
runs there are, and with which faults, is ``_stages.py``.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, cast

import attrs
import trio

import trio_runner._shell.finishing as finishing
from trio_runner.testing._conformance import Findings
from trio_runner.testing._faults import SiblingCrash
from trio_runner.testing._outcome import holds, leaves_of

#: Seconds between the steps that a fault can come before while an operation sleeps.
_TICKS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
#: What a fault makes leave a run.
_OF_A_FAULT = (trio.Cancelled, KeyboardInterrupt, SiblingCrash)
#: Seconds that looking at what is left may take after a cancel.
_LOOK_SECONDS = 600.0


@attrs.frozen
class Ending:
    """How one run of a trial ended.

    Attributes:
      raised: what left it, or None.
      hung: it did not end by itself.
      left_alive: the names of tasks that outlived it.
      trouble: warnings and unraisable errors.
      fault_time: when the fault came, on trio's clock; None without one.
      place: where the fault came, for messages.
      exact: the run repeats the undisturbed one up to its fault.
    """

    raised: BaseException | None
    hung: bool
    left_alive: tuple[str, ...]
    trouble: tuple[str, ...]
    fault_time: float | None
    place: str
    exact: bool


@attrs.frozen
class Trial:
    """One run of an implementation: what is done inside trio, and a look at how it ended."""

    run: Callable[[], Awaitable[object]]
    check: Callable[[Ending], None]


class Usual:
    """Strictly private: what the undisturbed run of a sweep was like."""

    def __init__(self) -> None:
        #: As those of a `Span`.
        self.hits: list[tuple[int, float]] = []
        self.began_at = 0.0


class Span:
    """Strictly private: notes how and when one operation inside a trial was left."""

    def __init__(self) -> None:
        self.began = False
        self.began_at = 0.0
        self.value: Any = None
        self.raised: BaseException | None = None
        #: On trio's clock; None while the operation runs.
        self.left_at: float | None = None
        #: Where a Cancelled was raised into it, by whatever scope: which of its waits it
        #: was, and the time.
        self.hits: list[tuple[int, float]] = []

    @property
    def returned(self) -> bool:
        """Whether it ended normally."""
        return self.left_at is not None and self.raised is None

    async def over(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        """Run ``operation``; what it raises goes on."""
        self.began, self.began_at = True, trio.current_time()
        try:
            self.value = await _watched(operation, self._hit)
        except BaseException as exc:
            self.raised = exc
            raise
        finally:
            self.left_at = trio.current_time()
        return self.value

    def _hit(self, wait: int) -> None:
        self.hits.append((wait, trio.current_time()))

    def _is_of_the_fault(self, hit: tuple[int, float], ending: Ending, usual: Usual) -> bool:
        wait, time = hit
        if ending.fault_time is None or time < ending.fault_time:
            return False
        if ending.exact:
            return hit not in usual.hits
        # Two runs in real time are alike in their waits at best. A deadline of its own, such
        # as that of a sleep, hits it at about the same time; a cancel comes before.
        since = time - self.began_at
        return all(since < (at - usual.began_at) / 2 for same, at in usual.hits if same == wait)

    def check_let_through(self, ending: Ending, found: Findings, what: str, usual: Usual) -> None:
        """Note a cancel that was raised into the operation, and did not leave it.

        Scopes of its own may cancel it too: where they do so in the undisturbed run.
        """
        if ending.fault_time is None:
            usual.hits, usual.began_at = self.hits, self.began_at
            return
        hits = [hit for hit in self.hits if self._is_of_the_fault(hit, ending, usual)]
        if self.returned and hits:
            found.violated(
                f"{what} returned {shown(self.value)} though Cancelled was raised into it",
                expected="Cancelled to leave it",
                remedy="catch Exception, not BaseException; raise Cancelled again when cleaned up",
            )

    def check_left(self, ending: Ending, found: Findings, what: str, within: float) -> bool:
        """Note when the operation was not left, or not soon enough after the fault.

        Returns:
          Whether there is an end to look at.
        """
        if ending.hung or (self.began and self.left_at is None):
            found.violated(
                f"{what} did not end{_after(ending)}",
                expected="that it ends, and that a cancel ends it at once",
                remedy="let Cancelled through; do not wait under a shield without a deadline",
            )
            return False
        if self.left_at is None:
            return False
        late = 0.0 if ending.fault_time is None else self.left_at - ending.fault_time
        if late > within + 1e-6:
            found.violated(
                f"{what} took {late:g} s to leave{_after(ending)}",
                expected=f"at most {within:g} s",
                remedy="let Cancelled through, and give what is shielded a deadline",
            )
        return True

    def check_errors(self, ending: Ending, found: Findings, what: str) -> None:
        """Note an error that the operation raised, when it was not just the fault."""
        exc = self.raised
        if exc is None or is_only(exc, _OF_A_FAULT):
            if exc is not None and ending.fault_time is None:
                found.violated(
                    f"{what} raised {type(exc).__name__}, though nobody had cancelled it",
                    expected="no cancellation of its own",
                    remedy="catch a foreign cancellation and raise an Exception in its place",
                )
            return
        found.raised(exc, f"{what}{_after(ending)}")


async def _watched(operation: Callable[[], Awaitable[Any]], on_hit: Callable[[int], None]) -> Any:
    """Run ``operation``; ``on_hit`` is told each wait into which a Cancelled is raised."""

    async def call() -> Any:
        return await operation()

    return await _driven(call(), on_hit)


@types.coroutine
def _driven(
    coroutine: Coroutine[Any, Any, Any], on_hit: Callable[[int], None]
) -> Generator[Any, Any, Any]:
    """Stand between trio and a coroutine, and see what trio sends into it."""
    answer: Any = None
    waits = 0
    try:
        while True:
            try:
                trap = coroutine.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield trap
            waits += 1
            # trio sends what a wait came to; it is an exception when that has an ``error``.
            if isinstance(getattr(answer, "error", None), trio.Cancelled):
                on_hit(waits)
    finally:
        coroutine.close()


def shown(value: object) -> str:
    """A value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:80]}…{text[-15:]}"


def _after(ending: Ending) -> str:
    return f" after a {ending.place}" if ending.place else ""


def is_only(exc: BaseException | None, types: tuple[type[BaseException], ...]) -> bool:
    """Whether ``exc`` is one of ``types``, or a group of nothing else."""
    match exc:
        case None:
            return False
        case BaseExceptionGroup():
            return all(is_only(leaf, types) for leaf in leaves_of(cast("object", exc)))
        case _:
            return isinstance(exc, types)


def holds_leaf(exc: BaseException, kind: type[BaseException]) -> bool:
    """Whether ``exc`` is a ``kind``, or a group with one."""
    return holds(exc, (kind,))


async def then_look(
    operation: Callable[[], Awaitable[object]],
    look: Callable[[], Awaitable[object]],
    found: Findings,
) -> None:
    """Run ``operation``, then ``look`` at what is left, also after a cancel.

    A checkpoint at its end: a cancel always leaves. What ``look`` raises is a finding.
    """

    async def safe_look() -> None:
        try:
            await look()
        except Exception as error:  # noqa: BLE001  the adapter border: whatever it raises is told
            found.raised(error, "going on after the fault")

    done = False

    async def whole() -> None:
        nonlocal done
        await safe_look()
        done = True

    def not_told(_: BaseException) -> None:
        """A KeyboardInterrupt that loses to another is of the sweep's making."""

    try:
        await _with_metronome(operation)
    finally:
        deadline = trio.current_time() + _LOOK_SECONDS
        await finishing.finish(whole, deadline=deadline, report=not_told)
        if not done:
            found.violated(
                f"going on after the fault took more than {_LOOK_SECONDS:g} s",
                expected="that everything works as before",
                remedy="free what the cancelled operation holds",
            )
    await trio.lowlevel.checkpoint()


async def _with_metronome(operation: Callable[[], Awaitable[object]]) -> None:
    """Run ``operation`` beside a task that steps now and then.

    A fault comes before a step, so an operation that sleeps could not be hit in its sleep.
    """

    async def tick() -> None:
        for seconds in _TICKS:
            await trio.sleep(seconds)

    async with trio.open_nursery(strict_exception_groups=True) as nursery:
        nursery.start_soon(tick)
        await operation()
        nursery.cancel_scope.cancel()


async def with_made(
    make: Callable[[], Any], use: Callable[[Any], Awaitable[object]], *, enter: bool = True
) -> None:
    """Call ``use`` with what ``make`` makes: an object, an awaitable, or a context manager."""
    made = make()
    if inspect.isawaitable(made):
        made = await made
    if enter and hasattr(made, "__aenter__"):
        async with made as entered:
            await use(entered)
    else:
        await use(made)


def check_run(ending: Ending, found: Findings, doing: str) -> None:
    """Note that an undisturbed run did not end, or ended by an error."""
    if ending.hung:
        found.violated(
            f"no end while {doing}",
            expected="that it ends by itself",
            remedy="find out what it waits for; with real threads, sockets or processes, "
            "use real_time=True",
        )
    elif ending.raised is not None and not _is_the_fault(ending):
        found.raised(ending.raised, doing)


def _is_the_fault(ending: Ending) -> bool:
    return ending.fault_time is not None and is_only(ending.raised, _OF_A_FAULT)
