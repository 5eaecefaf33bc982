"""A server's tool list: all its pages, and each tool judged by itself.

The SDK validates a page as a whole, so one bad tool would cost all of them, and
it raises when a result does not fit its declared output schema, which loses the
result. So a `ListingFilter` sits between the wire and the SDK: it takes bad
tools and all output schemas out of the pages and keeps both.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Protocol, Self, cast

import attrs
import mcp
import mcp_types as m
import mcp_types.methods
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCMessage

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._schemas as schemas

#: At most so many pages and tools are read of one server.
MAX_PAGES: Final = 100
MAX_TOOLS: Final = 5000

_LIST_METHOD: Final = "tools/list"


@attrs.frozen
class LeftOut:
    """A tool that is not offered, or an output schema that is not used, and why."""

    tool: str
    reason: str


class ListingFilter:
    """Judges the tools in the answers to ``tools/list`` as they pass by."""

    def __init__(self) -> None:
        #: The protocol version agreed on; known before the first list is asked for.
        self.version = ""
        #: What was taken out, since `take_left_out` was last called.
        self._left_out: list[LeftOut] = []
        #: Each tool's output schema, by its original name; only usable ones.
        self.output_schemas: dict[str, dict[str, Any]] = {}
        #: Ids of list requests that were sent and are not answered yet.
        self._open: set[int | str] = set()

    def take_left_out(self) -> list[LeftOut]:
        """Return what was left out so far, once."""
        taken, self._left_out = self._left_out, []
        return taken

    def sent(self, message: JSONRPCMessage) -> None:
        """See a message go to the server."""
        if type(message) is m.JSONRPCRequest and message.method == _LIST_METHOD:
            self._open.add(message.id)

    def received(self, message: JSONRPCMessage) -> JSONRPCMessage:
        """Return the message the SDK should see in place of ``message``."""
        match message:
            case m.JSONRPCResponse() if message.id in self._open:
                self._open.discard(message.id)
                return message.model_copy(update={"result": self._judged(message.result)})
            case m.JSONRPCError() if message.id in self._open:
                self._open.discard(message.id)
                return message
            case _:
                return message

    def _judged(self, page: dict[str, Any]) -> dict[str, Any]:
        entries = page.get("tools")
        if type(entries) is not list:
            return page  # the SDK will say what is wrong with it
        shell: dict[str, Any] = {**page, "tools": []}
        good = [self._entry(entry, shell) for entry in cast("list[object]", entries)]
        return {**page, "tools": [entry for entry in good if entry is not None]}

    def _entry(self, entry: object, shell: dict[str, Any]) -> dict[str, Any] | None:
        if type(entry) is not dict:
            self._leave_out("?", f"it is {type(entry).__name__!r}, not an object")
            return None
        tool = dict(cast("dict[str, Any]", entry))
        name = tool.get("name")
        if type(name) is not str or not name:
            self._leave_out("?", f"its name is {name!r}, not a text")
            return None
        if (problem := schemas.input_schema_problem(tool.get("inputSchema"))) is not None:
            self._leave_out(name, f"its input schema cannot be used: {problem}")
            return None
        tool["inputSchema"] = schemas.completed(tool["inputSchema"])
        output_schema = tool.pop("outputSchema", None)
        try:
            page = {**shell, "tools": [tool]}
            mcp_types.methods.validate_server_result(_LIST_METHOD, self.version, page)
            m.Tool.model_validate(tool, by_name=False)
        except (KeyError, ValueError) as error:
            self._leave_out(name, errors.said(error))
            return None
        self._keep_output_schema(name, output_schema)
        return tool

    def _keep_output_schema(self, name: str, schema: object) -> None:
        self.output_schemas.pop(name, None)
        if schema is None:
            return
        if (problem := schemas.schema_problem(schema)) is not None:
            self._leave_out(name, f"offered, but its output schema is not used: {problem}")
            return
        self.output_schemas[name] = cast("dict[str, Any]", schema)

    def _leave_out(self, tool: str, reason: str) -> None:
        self._left_out.append(LeftOut(errors.shortened(tool, 100), reason))


async def list_all(client: mcp.Client) -> tuple[list[m.Tool], str | None]:
    """Return the tools of every page, and why the walk stopped early, or None.

    A cursor that was seen before, too many pages or too many tools end the walk
    with what there is. The first of two tools with one name is kept.

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


# --- between the wire and the SDK -----------------------------------------------


class _Read(Protocol):
    async def receive(self) -> SessionMessage | Exception: ...
    async def aclose(self) -> None: ...
    async def __anext__(self) -> SessionMessage | Exception: ...


class _Write(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...


class _Closing:
    """The ``async with`` of a stream: leaving it closes the stream."""

    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class _FilteredRead(_Closing):
    def __init__(self, inner: _Read, listing: ListingFilter) -> None:
        self._inner = inner
        self._listing = listing

    def _seen(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        match item:
            case SessionMessage():
                message = self._listing.received(item.message)
                same = message is item.message
                return item if same else SessionMessage(message, item.metadata)
            case _:
                return item

    async def receive(self) -> SessionMessage | Exception:
        return self._seen(await self._inner.receive())

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._seen(await self._inner.__anext__())


class _FilteredWrite(_Closing):
    def __init__(self, inner: _Write, listing: ListingFilter) -> None:
        self._inner = inner
        self._listing = listing

    async def send(self, item: SessionMessage, /) -> None:
        self._listing.sent(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


class FilteredTransport:
    """A transport whose messages pass by a `ListingFilter`; the SDK is given this one."""

    def __init__(self, inner: Transport, listing: ListingFilter) -> None:
        self._inner = inner
        self._listing = listing

    async def __aenter__(self) -> tuple[_FilteredRead, _FilteredWrite]:
        read, write = await self._inner.__aenter__()
        return _FilteredRead(read, self._listing), _FilteredWrite(write, self._listing)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)
