"""Finishing: the only place of the library where something is shielded.

What must be finished although the caller was cancelled (contract C6) runs here,
under a shield that always has a deadline, and in a *child* task: trio delivers
KeyboardInterrupt to the main task at any checkpoint, shields included, and the
runner may be driven from the main task. While the child works the caller is
parked in its nursery, which keeps a KeyboardInterrupt until the child is through.
A nursery and a child cost more than the rest of a step, so callers come here
only when something is open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

import trio

import trio_runner._shell.leaving as leaving

Ts = TypeVarTuple("Ts")


async def finish(
    async_fn: Callable[[*Ts], Awaitable[object]],
    *args: *Ts,
    deadline: float,
    report: Callable[[BaseException], None],
    leaves: BaseException | None = None,
) -> None:
    """Run ``async_fn(*args)`` to its end or to ``deadline``, whatever is cancelled meanwhile.

    Cancellation: the caller's is not delivered here; it waits for the caller's
    next checkpoint. A KeyboardInterrupt is raised once the work is through.

    Args:
      deadline: absolute time on trio's clock; the work is cancelled then, silently.
      report: told of each error that loses to another one.
      leaves: what is on its way out meanwhile; reported when Ctrl-C overtakes it.

    Raises:
      BaseException: what ``async_fn`` raised, bare.
    """
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            nursery.start_soon(_shielded, async_fn, args, deadline)
    except BaseExceptionGroup as group:
        error = leaving.pick(group, report)
        overtakes = isinstance(error, leaving.EXITS) and not isinstance(leaves, leaving.EXITS)
        if overtakes and leaves is not None and not leaving.is_cancellation(leaves):
            report(leaves)
        raise error from None


@trio.lowlevel.enable_ki_protection
async def _shielded(
    async_fn: Callable[[*Ts], Awaitable[object]], args: tuple[*Ts], deadline: float
) -> None:
    with trio.CancelScope(shield=True, deadline=deadline):
        await async_fn(*args)
