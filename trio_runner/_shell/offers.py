"""`Offers`: what the model may call in one turn, from one model call to the next.

What may live here: listing the tools, narrowing them, and checking which of them
the model must call. A batch keeps the tools that its reply was offered, whatever
is added or taken away meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
import trio_runner._shell.passing as passing
from trio_runner._core.errors import UsageError
from trio_runner._core.params import RequestParams, ToolsFilter
from trio_runner._core.planning import ToolTable, plan_tool_calls
from trio_runner._shell.ki import call_sync_unprotected, call_unprotected
from trio_runner._shell.loop_agent import ToolLoopAgent
from trio_runner.abc import Tool

_NO_TOOL: Final = "no tool may be called now (tool_choice is 'none')."


class Offers:
    """The tools of one turn.

    Args:
      tools: instead of the agent's.
    """

    def __init__(self, agent: ToolLoopAgent, tools: Sequence[Tool] | None) -> None:
        self._agent: Final = agent
        self._instead: Final = tools
        #: All tools as they were listed last, and how their names resolve.
        self._all: Sequence[Tool] = ()
        self._all_by_name: ToolTable[Tool] = ToolTable(())
        #: What the model is told of them.
        self.listed: Sequence[Tool] = ()
        self._shown: Final = passing.Offer()
        #: How the names resolve that it was told.
        self.table: ToolTable[Tool] = self._all_by_name

    @property
    def is_narrowed(self) -> bool:
        """Whether the model is told of fewer tools than there are."""
        return self.listed is not self._all

    async def take_up(self) -> None:
        """Take up what has changed; everything is offered until `narrow`.

        Checkpoint: as the agent's listing has it. If cancelled, nothing has changed.
        """
        tools = self._instead
        if tools is None:
            tools = await call_unprotected(self._agent.list_tools)
        if tools is not self._all:
            self._all_by_name = ToolTable(tools)
            self._all = tools
        self.listed, self.table = self._all, self._all_by_name

    def narrow(self, tools_filter: ToolsFilter, *, to_none: bool) -> None:
        """Offer only what the filter lets pass, or nothing.

        Raises:
          Exception: what the filter raised; nothing has changed.
        """
        if to_none:
            kept: list[Tool] = []
        else:
            kept = [tool for tool in self.listed if _passes(tools_filter, tool)]
        if len(kept) < len(self.listed):
            self.listed, self.table = tuple(kept), ToolTable(kept)

    def told(self, params: RequestParams) -> Sequence[Tool]:
        """The tools as they stand in the request."""
        return self._shown.of(self.listed, params)

    def checked(self, params: RequestParams) -> RequestParams:
        """``params`` with the exact name of the tool that must be called.

        Raises:
          UsageError: there is no such tool, or none that could be called.
        """
        choice = params.tool_choice
        if choice in ("auto", "none"):
            return params
        if choice == "required":
            if not self.listed:
                raise UsageError(
                    "tool_choice is 'required', but the model is offered no tools; expected at "
                    "least one, or tool_choice='auto'"
                )
            return params
        tool = self.table.resolve(choice)
        if tool is None:
            names = ", ".join(map(repr, self.table.names)) or "none"
            raise UsageError(
                f"tool_choice is {choice!r}, but the model is offered no such tool; expected "
                f"'auto', 'required', 'none' or one of its tools: {names}"
            )
        return params if tool.name == choice else attrs.evolve(params, tool_choice=tool.name)

    def refusals(self, reply: v.Message, choice: str) -> list[tuple[int, v.ToolResult]]:
        """Answers to the calls that the model was told not to make, by position.

        They are recorded with the reply: what was not offered does not run after a crash
        either, when nobody remembers what was.
        """
        if choice == "none":
            denied = [stand_ins.denied(call, _NO_TOOL) for call in reply.tool_calls]
            return list(enumerate(denied))
        if not self.is_narrowed:
            return []
        return [
            (planned.position, planned.refusal)
            for planned in plan_tool_calls(reply, self.table)
            if planned.tool is None and planned.refusal is not None
        ]


def forces(choice: str) -> bool:
    """Whether a ``tool_choice`` makes the model call a tool."""
    return choice not in ("auto", "none")


def _passes(tools_filter: ToolsFilter, tool: Tool) -> bool:
    match tools_filter:
        case None:
            return True
        case frozenset():
            return tool.name in tools_filter
        case fn:
            return bool(call_sync_unprotected(fn, tool))
