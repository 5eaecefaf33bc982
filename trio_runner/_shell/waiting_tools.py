"""Tools whose calls wait for a word: `external_tool` and `ApprovalToolset`.

What may live here: ways to make such tools. What becomes of their calls is ``guarded.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import attrs
import trio

import trio_runner._core.values as v
from trio_runner._core.errors import InternalError
from trio_runner.abc import NeedsApproval, Tool, ToolContext, Toolset, check_rule


async def _never_run(_: v.JSONObject, context: ToolContext) -> NoReturn:
    raise InternalError(f"call {context.call_id!r} of an external tool was run; nothing here can")


def external_tool(
    name: str,
    description: str,
    input_schema: Mapping[str, Any],
    *,
    title: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Tool:
    """A tool that the application answers itself, later, perhaps in another process.

    Nothing here runs it: the turn is suspended with its calls open (`ToolAgent.pending`),
    and `ToolAgent.resume` takes their results. Its arguments are checked to be a JSON
    object, and not against the schema.

    Args:
      input_schema: JSON Schema of the arguments, an object.

    Raises:
      ValueError: the name is not one that providers take.
    """
    return Tool(
        name,
        description,
        input_schema,
        _never_run,
        title=title,
        meta=dict(meta or {}),
        external=True,
    )


class ApprovalToolset:
    """A toolset whose calls need consent; everything else is the inner one's.

    A call needs it when ``needs_approval`` or its own tool says so. External tools stay
    as they are.

    Args:
      toolset: the one whose tools these are.
      needs_approval: see `NeedsApproval`; all of its calls, by default.

    Raises:
      TypeError: ``toolset`` is none, or ``needs_approval`` is no rule.
    """

    def __init__(self, toolset: Toolset, needs_approval: NeedsApproval = True) -> None:
        if not callable(getattr(toolset, "list_tools", None)):
            raise TypeError(
                f"toolset is {toolset!r}; expected an object with 'async def list_tools'"
            )
        self.toolset: Final = toolset
        self._rule = _Rule(needs_approval).rule
        #: What the inner one listed last, and the same tools with their rule.
        self._inner: Sequence[Tool] | None = None
        self._listed: tuple[Tool, ...] = ()

    @property
    def name(self) -> str:
        """The inner one's."""
        return self.toolset.name

    async def list_tools(self) -> Sequence[Tool]:
        """The inner one's tools, with the rule; the same object while nothing has changed.

        Checkpoint: as the inner one has it. If cancelled, nothing has changed.
        """
        inner = await self.toolset.list_tools()
        if inner is not self._inner:
            self._listed = tuple([self._ruled(tool) for tool in inner])
            self._inner = inner
        return self._listed

    def _ruled(self, tool: Tool) -> Tool:
        if tool.external or tool.needs_approval is True:
            return tool
        return attrs.evolve(tool, needs_approval=_either(tool.needs_approval, self._rule))

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Enter the inner one."""
        await self.toolset.__aenter__()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None:
        """Leave the inner one, within its bound."""
        return await self.toolset.__aexit__(exc_type, exc, traceback)


@attrs.frozen
class _Rule:
    """Checks a rule when it is given."""

    rule: NeedsApproval = attrs.field(validator=check_rule, alias="needs_approval")


def _either(one: NeedsApproval, other: NeedsApproval) -> NeedsApproval:
    """A rule by which a call needs consent when either says so."""
    if one is False or other is True:
        return other
    if other is False or one is True:
        return one
    return lambda planned: one(planned) or other(planned)
