"""Which error leaves a turn, and what counts as a cancellation (contract C7).

By precedence: KeyboardInterrupt and SystemExit, then the caller's Cancelled,
then a single error bare, then several as one group. What loses is reported.
Only the layer of our own nurseries is taken off, never a user's group.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Final, cast

import trio

#: They end the program: they leave whatever else happened.
EXITS: Final = (KeyboardInterrupt, SystemExit)


class TurnTimeoutError(trio.TooSlowError):
    """The turn's own deadline (``turn_timeout``) passed; its history is valid and kept."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in ``error`` that are no groups."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from leaves(inner)
    else:
        yield error


def is_cancellation(error: BaseException) -> bool:
    """Whether a leaf is trio's Cancelled or asyncio's CancelledError.

    asyncio is looked up, not imported: without it nobody can raise its error.
    """
    if isinstance(error, trio.Cancelled):
        return True
    exceptions = sys.modules.get("asyncio.exceptions")
    foreign = getattr(exceptions, "CancelledError", None)
    return foreign is not None and isinstance(error, foreign)


def is_closing(error: BaseException | None) -> bool:
    """Whether ``error`` says that this coroutine is being thrown away, so nothing can await.

    A GeneratorExit that user code raised in a running task is an error like any other.
    """
    return isinstance(error, GeneratorExit) and not trio.lowlevel.in_trio_task()


def cancelled_from_outside() -> bool:
    """Whether a scope around the current task's innermost one is cancelled right now."""
    return trio.current_effective_deadline() == -math.inf


def must_leave(error: BaseException) -> bool:
    """Whether what user code raised ends more than that code: the rest is its own failure.

    The end of the program, or of the test that runs, and the caller's cancel. Ask it outside of
    the scopes that the user code ran in.
    """
    inner = list(leaves(error))
    cancels = [leaf for leaf in inner if is_cancellation(leaf)]
    if any(not isinstance(leaf, Exception) and leaf not in cancels for leaf in inner):
        return True
    return cancelled_from_outside() and any(isinstance(leaf, trio.Cancelled) for leaf in cancels)


def pick(
    group: BaseExceptionGroup[BaseException], report: Callable[[BaseException], None]
) -> BaseException:
    """What leaves a nursery of ours that raised ``group``.

    Args:
      report: told of each error that loses.
    """
    inner = list(group.exceptions)
    for kind in (EXITS, (trio.Cancelled,)):
        for error in inner:
            for leaf in leaves(error):
                if isinstance(leaf, kind):
                    _report_others(inner, leaf, report)
                    return leaf
    if len(inner) == 1:
        return inner[0]
    return BaseExceptionGroup("several errors ended the batch", inner)


def _report_others(
    errors: list[BaseException], winner: BaseException, report: Callable[[BaseException], None]
) -> None:
    for error in errors:
        for leaf in leaves(error):
            if leaf is not winner and not is_cancellation(leaf):
                report(leaf)
