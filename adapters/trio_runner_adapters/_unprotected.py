"""How adapters call user code: with KeyboardInterrupt allowed, as the library itself does.

What may live here: functions of one statement. trio's mark belongs to a code object, so a
user's function is never marked itself; ``tests/test_ki_marks.py`` holds the project to this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import trio

T = TypeVar("T")
P = ParamSpec("P")


@trio.lowlevel.disable_ki_protection
async def call_unprotected(
    async_fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Await user code with KeyboardInterrupt allowed; has the checkpoints of ``async_fn``."""
    return await async_fn(*args, **kwargs)


@trio.lowlevel.disable_ki_protection
def call_sync_unprotected(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call synchronous user code with KeyboardInterrupt allowed."""
    return fn(*args, **kwargs)
