"""What the rules of `check_toolset` share: the kit, a tool context, a call.

Toolsets are ``Any`` in the rules: what they promise is just what is in doubt.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, cast

import attrs
import trio

import trio_runner._core.errors as errors
import trio_runner._core.values as v
from trio_runner._core.convert import result_from_value
from trio_runner.testing._conformance import Findings, KitMisuse
from trio_runner.testing._stages import Stage
from trio_runner.testing._trials import Ending, Span, Trial, check_run, with_made

#: A call to make: the tool's name and its arguments.
Call = tuple[str, v.JSONObject]

CALL_ID: Final = "kit"
NO_CALLS: Final = "give calls=[(name, arguments), …]: calls of its tools that work"


@attrs.frozen
class ToolsetKit:
    """What the rules of `check_toolset` work with; its arguments say what the fields are."""

    stage: Stage
    make: Callable[[], Any]
    calls: tuple[Call, ...]
    leaves_within: float

    def use(self, found: Findings, doing: str, body: Callable[[Any], Awaitable[object]]) -> None:
        """Run ``body`` with a new toolset that was not entered, undisturbed."""

        def make_trial() -> Trial:
            return Trial(
                lambda: with_made(self.make, body, enter=False),
                lambda ending: check_run(ending, found, doing),
            )

        self.stage.once(make_trial)

    def inside(self, found: Findings, doing: str, body: Callable[[Any], Awaitable[object]]) -> None:
        """Run ``body`` inside a new toolset, undisturbed."""

        async def entered(toolset: Any) -> None:
            async with toolset:
                await body(toolset)

        self.use(found, doing, entered)

    def sweep(
        self,
        body: Callable[[Any, Span], Awaitable[object]],
        check: Callable[[Ending, Span], None],
        faults: tuple[str, ...] = ("cancel",),
    ) -> None:
        """Run ``body`` with a new toolset and a fault before each step."""

        def make_trial() -> Trial:
            span = Span()
            return Trial(
                lambda: with_made(self.make, lambda toolset: body(toolset, span), enter=False),
                lambda ending: check(ending, span),
            )

        self.stage.sweep(make_trial, faults)


def as_calls(calls: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[Call, ...]:
    """The calls of an option.

    Raises:
      TypeError: they are no pairs of a name and arguments.
    """
    given: Any = calls
    if isinstance(given, (Mapping, str)):
        raise TypeError(f"calls is {given!r}; expected [(name, arguments), …]")
    made: list[Call] = []
    for each in given:
        match each:
            case (str() as name, arguments) if isinstance(arguments, Mapping):
                made.append((name, dict(cast("Mapping[str, Any]", arguments))))
            case _:
                raise TypeError(f"calls has {each!r}; expected a pair such as ('add', {{'a': 1}})")
    return tuple(made)


class Context:
    """A `trio_runner.abc.ToolContext` that keeps nothing."""

    def __init__(self, name: str, arguments: Mapping[str, Any]) -> None:
        self.call_id: str = CALL_ID
        self.name: str = name
        self.arguments: Mapping[str, Any] = arguments
        self.idempotency_key: str = f"1:0:{CALL_ID}"
        self.began: float = trio.current_time()
        self.attempt: int = 1
        self.resumed: bool = False

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Nobody listens."""

    def emit(self, value: object) -> None:
        """Nobody listens."""

    def attach(self, *content: v.ContentBlock) -> None:
        """Nobody looks."""

    def claim_start(self) -> bool:
        """A threaded call may always begin."""
        return True


async def make_call(toolset: Any, call: Call) -> v.ToolResult:
    """Call a tool as the runner does, and convert what it returns."""
    name, given = call
    tools = {tool.name: tool for tool in await toolset.list_tools()}
    if name not in tools:
        raise KitMisuse(f"calls names the tool {name!r}; the toolset has {sorted(tools)!r}")
    arguments = copy.deepcopy(given)
    try:
        value = await tools[name].call(arguments, Context(name, dict(arguments)))
    except errors.InvalidArgumentsError as error:
        raise KitMisuse(f"calls has {name!r} with {given!r}, which it refuses: {error}") from error
    return result_from_value(value, call_id=CALL_ID, name=name, duration=None)
