"""The one place where an adapter shields anything: closing, always with a deadline."""

from __future__ import annotations

import trio


def closing_scope(seconds: float) -> trio.CancelScope:
    """Return a scope in which a close can finish, for at most ``seconds``.

    A cancel from outside, the run's end included, does not reach into it; past
    the deadline what is left is given up and the cancel goes on.
    """
    return trio.CancelScope(deadline=trio.current_time() + seconds, shield=True)
