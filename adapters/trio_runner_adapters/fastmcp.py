"""`FastMcpToolset`: a fastmcp ``Client`` as a toolset, through the asyncio bridge.

Needs the extra ``fastmcp``. For what the mcp SDK can do by itself take
`trio_runner_adapters.mcp.McpToolset`, which needs no thread; this is for programs that have
a fastmcp client already, with its transports, its configuration and its ways to sign in.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import trio

import trio_runner as tr
import trio_runner.abc as abc
from trio_runner_adapters.asyncio_bridge import AsyncioBridge, BridgeClosedError, BridgedObject

try:
    import fastmcp
    import mcp
    import mcp_types as m
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "trio_runner_adapters.fastmcp needs fastmcp: python -m pip install 'trio-runner[fastmcp]'",
        name=_error.name,
    ) from _error

import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._names as names
import trio_runner_adapters.mcp._schemas as schemas

_log: Final = logging.getLogger("trio_runner_adapters.fastmcp")


class FastMcpToolset:
    """The tools of the server, or servers, that a fastmcp client speaks to.

    The client lives in a thread with an asyncio loop of its own. Give the toolset to an agent,
    or use it in ``async with``: any number of tasks may enter and leave it, in any order; the
    client is made and entered with the first and left with the last, within
    ``close_timeout``. Calls that are in flight then end with one result each, ``interrupted``.

    The tools are read, all pages, when the client is entered. A call ends by its answer, by
    the connection's end, by its timeout or by a cancel, which fastmcp passes on to the server.
    A connection that is lost is not made anew, since what that takes (the client's factory,
    signing in, a handler's state) is the program's: later calls fail, and say so, until the
    toolset is left by all and entered again. For the same reason a change of the list is
    taken up then: fastmcp tells it only to the handler that the client was made with.
    `McpToolset` does both by itself.

    Args:
      factory: makes the client: ``lambda: fastmcp.Client("https://…")``, or an async function
        that does. It is called in the loop's thread. The client's handlers run there too; wrap
        one of trio's by `callback`.
      name: names the server in messages.
      start_timeout: seconds for connecting, and as many for listing the tools.
      call_timeout: seconds for each call, from when it really starts; becomes each
        `Tool.timeout`.
      close_timeout: seconds for closing, and for the cleanup of a cancelled call. A client that
        takes longer is abandoned, with a warning.
      prefix: expose ``prefix__tool`` in place of ``tool``.
      loop: "asyncio", "uvloop", or "auto": uvloop where it is installed.

    Raises:
      TypeError, ValueError: an argument is not what it should be.
    """

    def __init__(
        self,
        factory: Callable[[], fastmcp.Client[Any] | Awaitable[fastmcp.Client[Any]]],
        *,
        name: str,
        start_timeout: float = 30.0,
        call_timeout: float | None = None,
        close_timeout: float = 5.0,
        prefix: str | None = None,
        loop: Any = "asyncio",
    ) -> None:
        if prefix is not None and (names.clean(prefix) != prefix or not 0 < len(prefix) <= 32):
            raise ValueError(
                f"prefix is {prefix!r}; expected 1 to 32 characters of A-Z, a-z, 0-9, _ and -"
            )
        self._bridge = AsyncioBridge(
            factory, name=name, grace=close_timeout, start_timeout=start_timeout, loop=loop
        )
        self._start_timeout = start_timeout
        self._call_timeout = call_timeout
        self._prefix = prefix
        #: Who is inside, and what they use; None and empty when nobody is.
        self._users = 0
        self._client: BridgedObject | None = None
        self._tools: tuple[abc.Tool, ...] | None = None
        #: The first to come lists; the others wait for that.
        self._listing = trio.Lock()
        # A bad timeout is told now and not with the first tool.
        abc.Tool("check", "", {}, self._never, timeout=call_timeout)

    @property
    def name(self) -> str:
        """Names the server in messages."""
        return self._bridge.name

    def callback(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler for the client that runs ``fn`` in trio; see `AsyncioBridge.callback`.

        For the handlers that `fastmcp.Client` is made with, such as ``sampling_handler``.
        """
        return self._bridge.callback(fn)

    async def list_tools(self) -> tuple[abc.Tool, ...]:
        """Return the tools as they were when the client was entered. A checkpoint.

        Raises:
          NotEnteredError: outside ``async with``.
        """
        await trio.lowlevel.checkpoint()
        if self._tools is None:
            raise tr.NotEnteredError(
                f"MCP server {self.name!r} is not running: use its toolset inside "
                "`async with toolset:` or give it to an agent and enter that"
            )
        return self._tools

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Connect, or share the client that is there. A checkpoint.

        Raises:
          McpServerError: it cannot be connected to, or its tools cannot be listed; the
            message says why.
        """
        try:
            client = await self._bridge.__aenter__()
        except BridgeClosedError as error:
            raise errors.McpServerError(
                self.name, f"could not be started: {errors.said(error.__cause__ or error)}"
            ) from error
        self._users += 1
        try:
            await self._list_once(client)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; the last one out waits for the close, bounded, also when cancelled.

        Raises:
          NotEnteredError: nobody is inside.
        """
        if self._users == 0:
            raise tr.NotEnteredError(
                f"MCP server {self.name!r}: left more often than it was entered"
            )
        self._users -= 1
        if self._users == 0:
            self._client = self._tools = None
        await self._bridge.__aexit__(exc_type, exc, traceback)

    # --- tools and calls ---

    async def _list_once(self, client: BridgedObject) -> None:
        await self._listing.acquire()
        try:
            if self._tools is None:
                with trio.fail_after(self._start_timeout):
                    listed: list[m.Tool] = await client.list_tools()
                self._client, self._tools = client, self._exposed(listed)
        except (Exception, trio.TooSlowError) as error:
            raise errors.McpServerError(
                self.name, f"could not list its tools: {errors.said(error)}"
            ) from error
        finally:
            self._listing.release()

    def _exposed(self, listed: Sequence[m.Tool]) -> tuple[abc.Tool, ...]:
        good: dict[str, m.Tool] = {}
        for tool in listed:
            problem = schemas.input_schema_problem(tool.input_schema)
            if problem is None and tool.name in good:
                problem = "there is one of that name already"
            if problem is None:
                good[tool.name] = tool
            else:
                _log.warning("MCP server %r, tool %r left out: %s", self.name, tool.name, problem)
        exposed = names.exposed_names(good, self._prefix)
        bare = names.exposed_names(good)
        return tuple([self._tool(good[name], exposed[name], bare[name]) for name in good])

    def _tool(self, tool: m.Tool, name: str, bare: str) -> abc.Tool:
        annotations, output_schema = tool.annotations, tool.output_schema
        return abc.Tool(
            name=name,
            description=convert.valid_text(tool.description or ""),
            input_schema=convert.valid_json(schemas.completed(tool.input_schema)),
            call=functools.partial(self._call, tool.name),
            title=None if tool.title is None else convert.valid_text(tool.title),
            output_schema=None if output_schema is None else convert.valid_json(output_schema),
            annotations=(
                None
                if annotations is None
                else annotations.model_dump(by_alias=True, exclude_unset=True)
            ),
            timeout=self._call_timeout,
            bare_name=None if self._prefix is None else bare,
            meta={} if tool.meta is None else convert.valid_json(dict(tool.meta)),
        )

    async def _call(
        self, original: str, arguments: tr.JSONObject, context: abc.ToolContext
    ) -> tr.ToolResult:
        """Call the server once. Cancelled, fastmcp tells the server to stop."""
        client, where = self._client, f"MCP server {self.name!r}, tool {original!r}"
        if client is None:
            raise tr.ToolError(f"MCP server {self.name!r} is not running; nothing was sent")

        async def progress(
            done: float, total: float | None = None, message: str | None = None
        ) -> None:
            text = None if message is None else convert.valid_text(message)
            context.report_progress(done, total, text)

        try:
            result: m.CallToolResult = await client.call_tool_mcp(
                original, arguments, progress_handler=progress
            )
        except BridgeClosedError as error:
            if not error.began:
                raise tr.ToolError(f"{where}: {errors.said(error)}") from error
            return _interrupted(where)
        except mcp.MCPError as error:
            if error.error.code == m.CONNECTION_CLOSED:
                return _interrupted(where)
            raise tr.ToolError(f"{where}: {errors.said(error)}") from error
        except Exception as error:  # border: whatever fastmcp raises is this call's
            raise tr.ToolError(f"{where}: {errors.said(error)}") from error
        return convert.from_mcp_result(result)

    async def _never(self, arguments: tr.JSONObject, context: abc.ToolContext) -> object:
        raise AssertionError("the tool of the set-up's check")  # pragma: no cover


def _interrupted(where: str) -> tr.ToolResult:
    """The result of a call whose connection ended before its answer."""
    text = f"{where}: the connection ended during the call; it is not known whether it took effect"
    return tr.ToolResult(content=text, status=tr.CallStatus.INTERRUPTED)
