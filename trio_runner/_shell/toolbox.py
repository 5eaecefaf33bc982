"""`Toolbox`: the tools of one agent, its own and those of its toolsets.

What may live here: taking them in, and listing them. Toolsets are opened and
closed in ``belongings.py``; a tool that is an agent is made in ``agent_tools.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from trio_runner._shell.agent_tools import AgentTool, as_any_tool
from trio_runner._shell.ki import call_unprotected
from trio_runner._shell.open_toolsets import OpenToolsets
from trio_runner.abc import Tool, Toolset


class Toolbox:
    """What an agent may offer to its model.

    Args:
      name: of the agent, for messages.
      tools: plain functions, `Tool` objects, toolsets and agents.

    Raises:
      TypeError, ValueError: one of them is no tool, or two have one name.
    """

    def __init__(self, name: str, tools: Iterable[object]) -> None:
        self._name: Final = name
        self._by_name: dict[str, Tool] = {}
        #: The agent's own tools, as they are handed out.
        self.own: tuple[Tool, ...] = ()
        self.toolsets: Final[list[Toolset]] = []
        #: The same while they are open, shared with the clones of the agent.
        self._open: OpenToolsets = OpenToolsets(self.toolsets)
        #: What own tools and toolsets were when they were listed last, and all of it merged.
        self._parts: list[Sequence[Tool]] = []
        self._listed: tuple[Tool, ...] = ()
        for each in tools:
            self._take(each)

    def add(self, tool: object, *, replace: bool) -> Tool:
        """Add a tool, as `ToolAgent.add_tool` says."""
        made = as_any_tool(tool)
        if made.name in self._by_name and not replace:
            raise ValueError(
                f"agent {self._name!r} has a tool {made.name!r} already; pass replace=True to "
                "put the new one in its place"
            )
        self._by_name[made.name] = made
        self.own = tuple(self._by_name.values())
        return made

    def remove(self, name: str) -> Tool:
        """Take a tool away, as `ToolAgent.remove_tool` says."""
        if name not in self._by_name:
            raise KeyError(
                f"agent {self._name!r} has no tool {name!r}; it has {list(self._by_name)}"
            )
        removed = self._by_name.pop(name)
        self.own = tuple(self._by_name.values())
        return removed

    async def all(self) -> Sequence[Tool]:
        """All of them as they are now; the same object while nothing changed.

        Checkpoint: as the toolsets have it. If cancelled, nothing has changed.
        """
        parts: list[Sequence[Tool]] = [self.own]
        parts += [await call_unprotected(toolset.list_tools) for toolset in self.toolsets]
        same = len(parts) == len(self._parts) and all(
            new is old for new, old in zip(parts, self._parts, strict=True)
        )
        if not same:
            self._listed = tuple([tool for part in parts for tool in part])
            self._parts = parts
        return self._listed

    def copy(self) -> Toolbox:
        """The tools as they are now, for a clone: its own to change, with the same toolsets."""
        copied = Toolbox(self._name, ())
        copied._by_name = dict(self._by_name)
        copied.own = self.own
        copied.toolsets.extend(self.toolsets)
        copied._open = self._open
        return copied

    def collect_open(self, found: list[OpenToolsets]) -> None:
        """Add to ``found`` what must be open for these tools: also for agents among them."""
        if self._open in found:
            return  # an agent that is a tool of its own tools
        found.append(self._open)
        for tool in self.own:
            match tool:
                case AgentTool(child=child):
                    child.collect_open_toolsets(found)
                case _:
                    pass

    def _take(self, each: object) -> None:
        match each:
            case Tool():
                self.add(each, replace=False)
            case _ if hasattr(each, "list_tools") and not hasattr(each, "conversation"):
                self.toolsets.append(cast("Toolset", each))
            case _:
                self.add(each, replace=False)
