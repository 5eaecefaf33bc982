"""KeyboardInterrupt: where it may strike, and how user code is called.

Python delivers SIGINT between any two bytecodes of the main thread. trio asks
the innermost marked code object on the stack whether that is allowed just now;
if not, it is raised in the *main task* at its next checkpoint instead.

The rules of this package, held by ``tests/test_ki_marks.py``:

* Marked as protected (``trio.lowlevel.enable_ki_protection``): the root of
  every child task, the methods of the surface that hold state across an await,
  the synchronous mutators, and what a worker thread calls back.
* Tools, models, hooks and toolsets run unprotected, through the functions
  below. The mark is global to a code object, so a user's function is never
  marked itself.
* Journals and observers stay protected: their calls are part of our state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

import trio

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
P = ParamSpec("P")


@trio.lowlevel.disable_ki_protection
async def call_unprotected(
    async_fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Await user code with KeyboardInterrupt allowed; has the checkpoints of ``async_fn``."""
    return await async_fn(*args, **kwargs)


@trio.lowlevel.disable_ki_protection
async def call_pair_unprotected(async_fn: Callable[[A, B], Awaitable[T]], first: A, second: B) -> T:
    """`call_unprotected` for two arguments; quicker, and each tool call comes here twice."""
    return await async_fn(first, second)


@trio.lowlevel.disable_ki_protection
def call_sync_unprotected(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call synchronous user code with KeyboardInterrupt allowed."""
    return fn(*args, **kwargs)


@trio.lowlevel.disable_ki_protection
async def await_unprotected(awaitable: Awaitable[T]) -> T:
    """Await what user code returned, with KeyboardInterrupt allowed."""
    return await awaitable


def run(async_fn: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
    """Run an application: `trio.run`, with KeyboardInterrupt at checkpoints only.

    With that, Ctrl-C cannot strike between two statements of your own code
    either. Takes the arguments of `trio.run` and returns what ``async_fn`` returns.
    """
    options.setdefault("restrict_keyboard_interrupt_to_checkpoints", True)
    return trio.run(async_fn, *args, **options)
