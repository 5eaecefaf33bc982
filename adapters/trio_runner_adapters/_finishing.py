"""The one place where an adapter shields anything: closing, always with a deadline."""

from __future__ import annotations

import trio


def closing_scope(seconds: float) -> trio.CancelScope:
    """Return a scope in which a close can finish, for at most ``seconds``.

    A cancel from outside, the run's end included, does not reach into it; past
    the deadline what is left is given up and the cancel goes on.
    """
    return trio.CancelScope(deadline=trio.current_time() + seconds, shield=True)


async def wait_closed(closed: trio.Event, seconds: float) -> None:
    """Wait for ``closed`` for at most ``seconds``, whatever is cancelled meanwhile.

    In a child task: trio delivers KeyboardInterrupt to the main task at any
    checkpoint, shields included, but a parent in its nursery keeps it until the
    child is through.

    Raises:
      KeyboardInterrupt: one came meanwhile.
    """
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            nursery.start_soon(_wait_shielded, closed, seconds)
    except BaseExceptionGroup as group:
        # The child raises nothing, so this is the KeyboardInterrupt and nothing else.
        raise group.exceptions[0] from None


@trio.lowlevel.enable_ki_protection
async def _wait_shielded(closed: trio.Event, seconds: float) -> None:
    with closing_scope(seconds):
        await closed.wait()
