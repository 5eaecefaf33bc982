"""Planning a batch: which tool each call means, and which calls are refused at once.

What may live here: the one resolver of tool names, used by everything that
looks a tool up (the batch, hooks, permissions, the log), and frozen plans. The
core does not know the class of a tool; it needs its two names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, Protocol, TypeVar

import attrs

import trio_runner._core.json_data as json_data
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.quick import quick

#: Names of tools that a refusal lists, and characters shown of each.
LISTED_NAMES: Final = 20
_NAME_CHARACTERS: Final = 64


class NamedTool(Protocol):
    """What planning must know of a tool."""

    @property
    def name(self) -> str:
        """The name it is called by, unique among the tools."""
        ...

    @property
    def bare_name(self) -> str | None:
        """The name without a server's prefix, or None."""
        ...


ToolT = TypeVar("ToolT", bound=NamedTool)


@attrs.frozen
class PlannedToolCall(Generic[ToolT]):
    """What will be done about one call of a batch.

    Attributes:
      position: its place in the batch, from 0; scheduling goes by it, not by the id.
      call: the call as the history holds it.
      tool: the tool the call means; None when there is none.
      refusal: the complete result when the call must not run (no such tool, an
        ambiguous name, invalid arguments); None when it may run, and then
        ``tool`` is set.
    """

    position: int
    call: v.ToolCall
    tool: ToolT | None
    refusal: v.ToolResult | None = None


make_plan: Final = quick(PlannedToolCall)


class ToolTable(Generic[ToolT]):
    """The tools by every name they can be called by; built once per tool list.

    Raises:
      ValueError: when two tools have one name.
    """

    def __init__(self, tools: Iterable[ToolT]) -> None:
        #: The tools by their exact names, in the order given.
        self._exact: dict[str, ToolT] = {}
        # The others hold every tool that a name could mean, so that an ambiguous one shows.
        self._folded: dict[str, list[ToolT]] = {}
        self._bare: dict[str, list[ToolT]] = {}
        self._folded_bare: dict[str, list[ToolT]] = {}
        for tool in tools:
            if tool.name in self._exact:
                raise ValueError(
                    f"two tools are named {tool.name!r}; expected names that are unique: rename "
                    "or leave out one of them"
                )
            self._exact[tool.name] = tool
            self._folded.setdefault(tool.name.casefold(), []).append(tool)
            if tool.bare_name is not None:
                self._bare.setdefault(tool.bare_name, []).append(tool)
                self._folded_bare.setdefault(tool.bare_name.casefold(), []).append(tool)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, in the order given."""
        return tuple(self._exact)

    def __len__(self) -> int:
        return len(self._exact)

    def resolve(self, name: str) -> ToolT | None:
        """The tool ``name`` means; None when there is none or it could mean several."""
        tool = self._exact.get(name)
        if tool is not None:
            return tool
        found = self.candidates(name)
        return found[0] if len(found) == 1 else None

    def candidates(self, name: str) -> tuple[ToolT, ...]:
        """The tools ``name`` could mean: one when it is clear, several when it is ambiguous.

        The first of these that matches anything decides: the name as it is; without
        white space around it; without regard to case; as a bare name; as a bare name
        without regard to case.
        """
        stripped = name.strip()
        exact = self._exact.get(name) or self._exact.get(stripped)
        if exact is not None:
            return (exact,)
        folded = stripped.casefold()
        found = (
            self._folded.get(folded) or self._bare.get(stripped) or self._folded_bare.get(folded)
        )
        return tuple(found or ())


def plan_tool_calls(
    calls: v.Message | Iterable[v.ToolCall], tools: ToolTable[ToolT] | Iterable[ToolT]
) -> tuple[PlannedToolCall[ToolT], ...]:
    """Match each call to its tool, in order; what must not run gets its refusal.

    One plan per call, whatever the others are: an unknown name or bad arguments
    refuse that call alone.

    Args:
      calls: an assistant message, or its calls.
      tools: the tools there are, or a `ToolTable` of them (quicker when planning often).

    Raises:
      ValueError: when two tools have one name.
    """
    match calls:
        case v.Message():
            asked: Iterable[v.ToolCall] = calls.tool_calls
        case _:
            asked = calls
    match tools:
        case ToolTable():
            table = tools
        case _:
            table = ToolTable(tools)
    resolve = table.resolve
    plan: list[PlannedToolCall[ToolT]] = []
    for position, call in enumerate(asked):
        tool = resolve(call.name)
        refusal = None
        if tool is None:
            refusal = _unavailable(call, table)
        elif call.arguments_error is not None:
            refusal = _invalid_arguments(call)
        plan.append(make_plan(position, call, tool, refusal))
    return tuple(plan)


def _unavailable(call: v.ToolCall, table: ToolTable[ToolT]) -> v.ToolResult:
    candidates = table.candidates(call.name)
    asked = _shown(call.name)
    if candidates:
        names = _listed([tool.name for tool in candidates])
        text = (
            f"Unavailable: the name {asked!r} could mean several tools: {names}. "
            "It was not run and had no effect. Use one of these names exactly."
        )
    elif len(table):
        text = (
            f"Unavailable: there is no tool named {asked!r}. It was not run and had no effect. "
            f"The tools are: {_listed(table.names)}."
        )
    else:
        text = (
            f"Unavailable: there is no tool named {asked!r}. It was not run and had no effect. "
            "There are no tools."
        )
    return v.ToolResult(call.id, call.name, (v.TextContent(text),), None, v.CallStatus.UNAVAILABLE)


def _invalid_arguments(call: v.ToolCall) -> v.ToolResult:
    return stand_ins.invalid_arguments(
        call,
        f"Invalid arguments: {call.arguments_error}\n"
        f"{_shown(call.name)!r} was not run and had no effect. "
        "Call it again with one JSON object that fits its schema.",
    )


def _listed(names: Iterable[str]) -> str:
    every = [_shown(name) for name in names]
    shown = ", ".join(every[:LISTED_NAMES])
    more = len(every) - LISTED_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _shown(name: str) -> str:
    safe = json_data.safe_text(name)
    return safe if len(safe) <= _NAME_CHARACTERS else f"{safe[:_NAME_CHARACTERS]}..."
