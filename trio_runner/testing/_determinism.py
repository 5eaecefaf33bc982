"""What makes a trio run repeat exactly; the only place that uses private names of trio.

What may live here: switches of the trio scheduler, and stand-ins for what
threads would make random. Each is a context manager that puts things back.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import math
import random
from collections.abc import Callable, Generator
from typing import Any, TypeVar, TypeVarTuple

import trio
import trio._core._run as trio_run

_Ts = TypeVarTuple("_Ts")
_T = TypeVar("_T")

_GENERATOR = "_r"
_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"


class DeterminismError(RuntimeError):
    """This version of trio cannot be made deterministic: a private name it needs has changed."""


def check_trio() -> None:
    """Raise `DeterminismError` unless trio has the two names that `deterministic` sets."""
    generator = getattr(trio_run, _GENERATOR, None)
    switch = getattr(trio_run, _SWITCH, None)
    if type(generator) is not random.Random or type(switch) is not bool:
        raise DeterminismError(
            f"trio {trio.__version__}: expected trio._core._run.{_GENERATOR} (a random.Random) and "
            f".{_SWITCH} (a bool), found {generator!r} and {switch!r}; "
            "use a trio version that this release was tested with"
        )


@contextlib.contextmanager
def deterministic(seed: int) -> Generator[None]:
    """Make each `trio.run` inside schedule its tasks in an order that ``seed`` fixes.

    Both halves are needed: the switch sorts a batch of runnable tasks before
    it is shuffled, and the seeded generator does the shuffling.
    """
    check_trio()
    generator: random.Random = getattr(trio_run, _GENERATOR)
    state = generator.getstate()
    switch: bool = getattr(trio_run, _SWITCH)
    generator.seed(seed)
    setattr(trio_run, _SWITCH, True)
    try:
        yield
    finally:
        setattr(trio_run, _SWITCH, switch)
        generator.setstate(state)


@trio.lowlevel.enable_ki_protection  # a worker thread never gets KeyboardInterrupt
async def inline_run_sync(
    sync_fn: Callable[[*_Ts], _T],
    *args: *_Ts,
    thread_name: str | None = None,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> _T:
    """Stand in for `trio.to_thread.run_sync`: the function runs inline, between task steps.

    Cancellation is as there: checked on entry; then the function runs to its
    end whatever happens, and its result is returned, or with
    ``abandon_on_cancel`` is dropped for `trio.Cancelled`.
    """
    del thread_name
    await trio.lowlevel.checkpoint_if_cancelled()
    if limiter is None:
        limiter = trio.to_thread.current_default_thread_limiter()
    borrower = object()
    context = contextvars.copy_context()
    await limiter.acquire_on_behalf_of(borrower)
    try:
        # A step before the function and one after it: a fault may land while the
        # "thread" has not begun yet, and when its result is on the way.
        await trio.lowlevel.cancel_shielded_checkpoint()
        try:
            result = context.run(sync_fn, *args)
        except _CancelSeenError:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"expected a sync function, got {sync_fn!r}, which is async")
    finally:
        # Not in a nested try: the report of a failed function takes its step as well.
        await trio.lowlevel.cancel_shielded_checkpoint()
        limiter.release_on_behalf_of(borrower)
    if abandon_on_cancel:
        await trio.lowlevel.checkpoint_if_cancelled()
    return result


def _inline_from_thread_run_sync(
    fn: Callable[..., _T], *args: Any, trio_token: object = None
) -> _T:
    del trio_token
    return fn(*args)


class _CancelSeenError(BaseException):
    """Stands for the Cancelled that `trio.from_thread.check_cancelled` raises in a thread."""


def _inline_check_cancelled() -> None:
    """Raise when a cancel is in force for the task that waits for the "thread"."""
    if trio.current_effective_deadline() == -math.inf:
        raise _CancelSeenError


@contextlib.contextmanager
def threads_inline() -> Generator[None]:
    """Replace ``trio.to_thread.run_sync`` and what its function calls back, until the exit.

    Code that looks the functions up in ``trio.to_thread`` and
    ``trio.from_thread`` when it calls them is served, trio's own file and path
    functions included; a name imported earlier keeps the real one.
    `trio.from_thread.run` is not replaced, and fails in a function run inline.
    """
    replaced: list[tuple[Any, str, object]] = [
        (trio.to_thread, "run_sync", inline_run_sync),
        (trio.from_thread, "run_sync", _inline_from_thread_run_sync),
        (trio.from_thread, "check_cancelled", _inline_check_cancelled),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, stand_in in replaced:
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)
