"""Tool behaviours: what a tool may do when it is called, as values, and the strategy for them.

What may live here: one frozen class for each way to behave, `make_tool` and
`make_function`, which turn one into something an agent takes, and
`tool_behaviours`. A value prints as the code that makes it, so a failing
example of Hypothesis can be read and copied.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Protocol, get_args

import attrs
import hypothesis.strategies as st
import trio

import trio_runner._core.errors as errors
import trio_runner._core.values as v
import trio_runner.abc as abc


class ToolBehaviour(Protocol):
    """What a tool does when it is called."""

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Do it once: return a value, raise, or block."""
        ...


class UnprintableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("this error has no text")


async def _take(steps: int) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()


@attrs.frozen
class Returns:
    """Takes ``steps`` checkpoints, then returns ``value``."""

    value: Any = "fine"
    steps: int = 0

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoints: ``steps``."""
        del context
        await _take(self.steps)
        return self.value


@attrs.frozen
class Raises:
    """Takes ``steps`` checkpoints, then raises ``kind(text)``: an `Exception`."""

    kind: type[Exception] = LookupError
    text: str = "on purpose"
    steps: int = 0

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoints: ``steps``."""
        del context
        await _take(self.steps)
        raise self.kind(self.text)


@attrs.frozen
class RaisesGroup:
    """Takes ``steps`` checkpoints, then raises ``count`` errors in a group, ``depth`` deep."""

    count: int = 1
    depth: int = 1
    steps: int = 0

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoints: ``steps``."""
        del context
        await _take(self.steps)
        inner: list[Exception] = [LookupError(f"cause {number}") for number in range(self.count)]
        for number in range(1, self.depth):
            inner = [ExceptionGroup(f"group {number}", inner)]
        raise ExceptionGroup(f"group {self.depth}", inner)


@attrs.frozen
class Blocks:
    """Blocks until it is cancelled."""

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoint: one that does not end by itself."""
        del context
        await trio.sleep_forever()


@attrs.frozen
class CleansUp:
    """Sleeps ``seconds``, then cleans up for ``cleanup`` seconds, shielded, whatever happens.

    Attributes:
      seconds: `math.inf`: it blocks until it is cancelled.
      cleanup: also the deadline of the shield.
      raises: whether the cleanup raises a LookupError at its end.
    """

    seconds: float = math.inf
    cleanup: float = 1.0
    raises: bool = False

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoints: always; the cleanup takes no cancel."""
        del context
        try:
            await trio.sleep(self.seconds)
        finally:
            deadline = trio.current_time() + self.cleanup
            with trio.CancelScope(deadline=deadline, shield=True):
                await trio.sleep(self.cleanup)
            if self.raises:
                raise LookupError("the cleanup failed")
        return "cleaned up"


@attrs.frozen
class Spawns:
    """Runs ``children`` in a nursery of its own; each takes ``steps`` checkpoints.

    Attributes:
      raises: whether the last child raises a LookupError then, so that a group leaves.
    """

    children: int = 2
    steps: int = 1
    raises: bool = False

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoint: always."""
        del context
        async with trio.open_nursery() as nursery:
            for number in range(self.children):
                nursery.start_soon(self._child, self.raises and number == self.children - 1)
        return f"ran {self.children} children"

    async def _child(self, raises: bool) -> None:
        await _take(self.steps)
        if raises:
            raise LookupError("a child failed")


@attrs.frozen
class CancelsItself:
    """Cancels a scope of its own, and returns normally after it."""

    steps: int = 0

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoint: always."""
        del context
        await _take(self.steps)
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.lowlevel.checkpoint()
        return "cancelled itself"


@attrs.frozen
class RaisesCancelled:
    """Raises a cancellation that nobody asked for.

    Attributes:
      foreign: asyncio's CancelledError; else a `trio.Cancelled` that was taken out of its scope.
    """

    foreign: bool = False
    steps: int = 0

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoint: unless ``foreign``."""
        del context
        await _take(self.steps)
        if self.foreign:
            raise asyncio.CancelledError("a foreign loop gave up")
        raise await _stray_cancelled()


async def _stray_cancelled() -> trio.Cancelled:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            return error
    raise AssertionError("trio did not deliver a cancel")


#: What a tool may return beside data and text.
OddValue = Literal[
    "None",
    "empty text",
    "blank text",
    "text with a surrogate",
    "bytes",
    "number that is no number",
    "list that holds itself",
    "generator",
    "coroutine",
    "exception object",
    "object without a repr",
    "huge text",
    "result for another id",
    "result that says nothing",
    "result that says not started",
]
ODD_VALUES: Final[tuple[OddValue, ...]] = get_args(OddValue)


class _NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


async def _never_awaited() -> None:
    """Made by a tool, and returned instead of its value."""


def _endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def _nothing() -> None:
    """Returns what most functions return."""


def _generator() -> Generator[int]:
    yield 1


_ODD: Final[Mapping[OddValue, Callable[[], object]]] = MappingProxyType(
    {
        "None": _nothing,
        "empty text": str,
        "blank text": functools.partial(str, " \n\t"),
        "text with a surrogate": functools.partial(str, "half \ud800 a pair"),
        "bytes": functools.partial(bytes, b"\xff\xfe\x00"),
        "number that is no number": functools.partial(dict[str, float], x=math.nan),
        "list that holds itself": _endless,
        "generator": _generator,
        "coroutine": _never_awaited,
        "exception object": functools.partial(LookupError, "returned, not raised"),
        "object without a repr": _NoRepr,
        "huge text": functools.partial(str, "0123456789" * 60_000),
        "result for another id": functools.partial(
            v.ToolResult, "another", "another", "of another"
        ),
        "result that says nothing": v.ToolResult,
        "result that says not started": functools.partial(
            v.ToolResult, content="not me", status=v.CallStatus.NOT_STARTED
        ),
    }
)


def make_odd_value(kind: OddValue) -> object:
    """The value that `ReturnsOdd` returns: a new one each time."""
    return _ODD[kind]()


@attrs.frozen
class ReturnsOdd:
    """Returns a value that no tool should return; see `make_odd_value`."""

    kind: OddValue = "None"
    steps: int = 0

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoints: ``steps``."""
        del context
        await _take(self.steps)
        return make_odd_value(self.kind)


class _SwallowsAll(AbstractContextManager[None]):
    """What a catch-all does to a cancel."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return True


@attrs.frozen
class CatchesAll:
    """Sleeps ``seconds``, catches whatever comes, a cancel included, and returns text."""

    seconds: float = math.inf

    async def act(self, context: abc.ToolContext | None = None) -> object:
        """Checkpoint: always, and what it raises is swallowed."""
        del context
        with _SwallowsAll():
            await trio.sleep(self.seconds)
        return "all is well"


# --- as tools ---------------------------------------------------------------------

#: The schema of a tool that takes anything.
_ANYTHING: Final = {"type": "object", "additionalProperties": True}


def make_tool(
    behaviour: ToolBehaviour,
    name: str = "work",
    *,
    timeout: float | None = None,
    sequential: bool = False,
    idempotent: bool = False,
    limiter: abc.Limiter | None = None,
) -> abc.Tool:
    """A tool that behaves so at each call, and takes any arguments. See `Tool` for the options."""

    async def act(arguments: v.JSONObject, context: abc.ToolContext) -> object:
        del arguments
        return await behaviour.act(context)

    return abc.Tool(
        name,
        repr(behaviour),
        _ANYTHING,
        act,
        timeout=timeout,
        sequential=sequential,
        idempotent=idempotent,
        limiter=limiter,
    )


def make_function(behaviour: ToolBehaviour, name: str = "work") -> Callable[[], Awaitable[object]]:
    """An async function without parameters that behaves so at each call."""

    async def act() -> object:
        return await behaviour.act()

    act.__name__ = act.__qualname__ = name
    return act


# --- the strategy -----------------------------------------------------------------

_STEPS: Final = st.integers(0, 3)
_COIN: Final = st.booleans()
_FEW: Final = st.integers(1, 2)
_ERRORS: Final[st.SearchStrategy[type[Exception]]] = st.sampled_from(
    (LookupError, errors.ToolError, errors.FatalToolError, UnprintableError, StopAsyncIteration)
)
_TEXTS: Final = st.sampled_from(("on purpose", "", " "))


def tool_behaviours(*, ends: bool = False) -> st.SearchStrategy[ToolBehaviour]:
    """What a tool may do: half of the time it just returns or raises after a few steps.

    Args:
      ends: only such as end by themselves; else some block until they are cancelled.
    """
    seconds = st.sampled_from((0.0, 1.0) if ends else (0.0, 1.0, math.inf))
    returns = st.builds(Returns, st.just("fine"), _STEPS)
    others: list[st.SearchStrategy[Any]] = [
        returns,
        returns,
        returns,
        st.builds(Raises, _ERRORS, _TEXTS, _STEPS),
        st.builds(RaisesGroup, _FEW, _FEW, _STEPS),
        st.builds(CleansUp, seconds, st.sampled_from((0.0, 1.0)), _COIN),
        st.builds(Spawns, _FEW, _STEPS, _COIN),
        st.builds(CancelsItself, _STEPS),
        st.builds(RaisesCancelled, _COIN, _STEPS),
        st.builds(ReturnsOdd, st.sampled_from(ODD_VALUES), _STEPS),
        st.builds(CatchesAll, seconds),
    ]
    if not ends:
        others.append(st.builds(Blocks))
    return st.one_of(others)
