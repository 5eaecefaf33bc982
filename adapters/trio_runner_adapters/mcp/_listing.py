"""A server's tool list: all its pages, and each tool judged by itself.

The SDK validates a page as a whole, so one bad tool would cost all of them, and
it raises when a result does not fit its declared output schema, which loses the
result. So a `ListingFilter` sees every page before the SDK (`_wire`): it takes
bad tools and all output schemas out and keeps both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import attrs
import mcp
import mcp_types as m
import mcp_types.methods
import trio
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._schemas as schemas

#: At most so many pages and tools are read of one server.
MAX_PAGES: Final = 100
MAX_TOOLS: Final = 5000

LIST_METHOD: Final = "tools/list"


@attrs.frozen
class LeftOut:
    """A tool that is not offered, or an output schema that is not used, and why."""

    tool: str
    reason: str


class ListingFilter:
    """Judges the tools in the answers to ``tools/list`` as they pass by."""

    def __init__(self) -> None:
        #: What was taken out, since `take_left_out` was last called.
        self._left_out: list[LeftOut] = []
        #: Names of the tools that the walk through the pages which is looked at has offered.
        self._names: set[str] = set()
        #: The names so far of each walk that goes on, by the cursor of its next page.
        self._walks: dict[str, set[str]] = {}
        #: Each tool's output schema as it was last seen, by its original name; only usable ones.
        self.output_schemas: dict[str, dict[str, Any]] = {}

    def take_left_out(self) -> list[LeftOut]:
        """Return what was left out so far, once."""
        taken, self._left_out = self._left_out, []
        return taken

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget the output schemas of all other tools. No checkpoint."""
        kept = frozenset(names)
        self.output_schemas = {
            name: schema for name, schema in self.output_schemas.items() if name in kept
        }

    async def judged(
        self, page: dict[str, Any], version: str, cursor: str | None = None
    ) -> dict[str, Any]:
        """Return ``page`` with its good tools; a checkpoint for each, since there may be many.

        ``version`` is the protocol version agreed on, ``cursor`` what the page was asked
        with. Pages of several walks may come between each other, not during this call.
        """
        self._names = set() if cursor is None else self._walks.pop(cursor, set())
        following = page.get("nextCursor")
        if type(following) is str and len(self._walks) < MAX_PAGES:
            self._walks[following] = self._names
        entries = page.get("tools")
        if type(entries) is not list:
            return page  # the SDK will say what is wrong with it
        good: list[dict[str, Any]] = []
        for entry in cast("list[object]", entries):
            await trio.lowlevel.checkpoint()
            if len(self._names) >= MAX_TOOLS:
                self._leave_out("?", f"it and what follows are beyond {MAX_TOOLS} tools")
                break
            try:
                tool = self._entry(entry, page, version)
            except Exception as error:  # noqa: BLE001 - border: whatever odd data makes a library raise
                self._leave_out("?", errors.said(error))
                continue
            if tool is not None:
                good.append(tool)
        return {**page, "tools": good}

    def _entry(self, entry: object, page: dict[str, Any], version: str) -> dict[str, Any] | None:
        if type(entry) is not dict:
            self._leave_out("?", f"it is {type(entry).__name__!r}, not an object")
            return None
        tool = dict(cast("dict[str, Any]", entry))
        name = tool.get("name")
        if type(name) is not str or not name:
            self._leave_out("?", f"its name is {name!r}, not a text")
            return None
        if name in self._names:
            self._leave_out(name, "another tool of that name comes before it")
            return None
        if (problem := schemas.input_schema_problem(tool.get("inputSchema"))) is not None:
            self._leave_out(name, f"its input schema cannot be used: {problem}")
            return None
        if version in MODERN_PROTOCOL_VERSIONS and (
            problem := find_invalid_x_mcp_header(tool["inputSchema"])
        ):
            # The protocol has clients drop it, and the SDK does so without a word to us.
            self._leave_out(name, f"its header annotations cannot be used: {problem}")
            return None
        tool["inputSchema"] = schemas.completed(tool["inputSchema"])
        output_schema = tool.pop("outputSchema", None)
        try:
            alone = {**page, "tools": [tool]}
            mcp_types.methods.validate_server_result(LIST_METHOD, version, alone)
            m.Tool.model_validate(tool, by_name=False)
        except (KeyError, ValueError) as error:
            self._leave_out(name, errors.said(error))
            return None
        self._names.add(name)
        self.output_schemas.pop(name, None)
        self._keep_output_schema(name, output_schema)
        return tool

    def _keep_output_schema(self, name: str, schema: object) -> None:
        if schema is None:
            return
        if (problem := schemas.schema_problem(schema)) is not None:
            self._leave_out(name, f"offered, but its output schema is not used: {problem}")
            return
        self.output_schemas[name] = cast("dict[str, Any]", schema)

    def _leave_out(self, tool: str, reason: str) -> None:
        self._left_out.append(LeftOut(errors.shortened(tool, 100), errors.shortened(reason)))


async def list_all(client: mcp.Client) -> tuple[list[m.Tool], str | None]:
    """Return the tools of every page, and why the walk stopped early, or None.

    A cursor that was seen before, too many pages or too many tools end the walk
    with what there is.

    Raises:
      mcp.MCPError: the server refused or is gone.
      pydantic.ValidationError: a page is malformed as a whole.
    """
    tools: dict[str, m.Tool] = {}
    seen: set[str] = set()
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            tools.setdefault(tool.name, tool)
        cursor = page.next_cursor
        if cursor is None:
            return list(tools.values()), None
        if cursor in seen:
            return list(tools.values()), f"its list came back to the cursor {cursor[:100]!r}"
        if len(tools) >= MAX_TOOLS:
            return list(tools.values()), f"its list goes on after {len(tools)} tools"
        seen.add(cursor)
    return list(tools.values()), f"its list goes on after {MAX_PAGES} pages"
