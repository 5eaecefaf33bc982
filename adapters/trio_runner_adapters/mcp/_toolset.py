"""`McpToolset`: an MCP server as a `trio_runner.abc.Toolset`."""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
import mcp
import mcp_types as m
import pydantic
import trio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._connection as connections
import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._names as names
import trio_runner_adapters.mcp._output_check as output_check
import trio_runner_adapters.mcp._stdio as stdio
from trio_runner_adapters._finishing import wait_closed

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Above ``close_timeout``, for the steps of closing that are not the process's.
_CLOSE_SLACK: Final = 2.0


class McpToolset:
    """The tools of one MCP server.

    Make it with `stdio`, give it to an agent, or use it in ``async with``. Any
    number of tasks may enter it and leave it in any order, each as often as it
    entered; the server starts with the first and is closed with the last, within
    ``close_timeout``, its whole process group with it (not what it has moved to a
    session of its own). After that it may be entered again, which starts the
    server anew. An agent whose ``grace`` is shorter than ``close_timeout`` stops
    waiting before that; the server is ended all the same.

    A call ends by its answer, by the server's end, by its timeout or by a cancel
    (which is passed on to the server), whichever comes first. Whatever the server
    does wrong is that call's error result and names the server. Once the server
    is gone later calls fail at once.
    """

    def __init__(
        self,
        connector: connections.Connector,
        *,
        name: str,
        start_timeout: float,
        call_timeout: float | None,
        mode: str,
        prefix: str | None,
    ) -> None:
        """Use `stdio`; this constructor takes the library's own connectors."""
        self._connector = connector
        self._name = name
        self._start_timeout = start_timeout
        self._call_timeout = call_timeout
        self._mode = mode
        self._prefix = prefix
        #: The server's present life; None when nobody is inside.
        self._connection: connections.Connection | None = None
        #: The tools as they were offered last, and whose they are.
        self._tools: tuple[abc.Tool, ...] = ()
        self._tools_of: connections.Connection | None = None
        #: Tools of which it was said that a result could not be checked.
        self._said_unchecked: set[str] = set()

    @classmethod
    def stdio(
        cls,
        command: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
        call_timeout: float | None = None,
        close_timeout: float = 5.0,
        mode: str = "auto",
        prefix: str | None = None,
        stderr: stdio.StderrMode = "tail",
        max_message_bytes: int = 64 * 1024 * 1024,
    ) -> Self:
        """Return a toolset whose server is a process spoken to over its stdin and stdout.

        Nothing is started before it is entered.

        Args:
          command: the program; looked up on PATH.
          args: its arguments.
          name: names the server in messages; by default the program's name.
          env: added to a small safe environment (PATH, HOME, …); the rest of ours
            is not passed on.
          cwd: the directory it starts in.
          start_timeout: seconds for starting, agreeing on the protocol and listing.
          call_timeout: seconds for each call, from when it really starts; becomes
            each `Tool.timeout`.
          close_timeout: seconds for ending the process group.
          mode: "auto", "legacy" (the initialize handshake), or a protocol version.
            "auto" asks the server first; one of the older protocol that ignores the
            question, rather than refusing it, takes ten seconds more to start: say
            "legacy" for it.
          prefix: expose ``prefix__tool`` in place of ``tool``.
          stderr: "tail" keeps its end for error messages, "inherit" mixes it into
            ours, "discard" throws it away.
          max_message_bytes: a longer message is skipped; the call it answered gets
            an error result. A message is parsed in one go, about ten milliseconds a
            megabyte, in which no other task runs.

        Raises:
          TypeError, ValueError: an argument is not what it should be.
        """
        program = os.fspath(command)
        if type(args) is str:
            raise TypeError(f"args is the text {args!r}; expected a sequence of arguments")
        connector = _StdioConnector(
            stdio.StdioCommand(
                command=program,
                args=tuple([os.fspath(arg) for arg in args]),
                env=None if env is None else dict(env),
                cwd=cwd,
                stderr=_checked_stderr(stderr),
                max_message_bytes=_positive("max_message_bytes", max_message_bytes),
                close_timeout=_seconds("close_timeout", close_timeout),
            )
        )
        return cls(
            connector,
            name=Path(program).name if name is None else name,
            start_timeout=_seconds("start_timeout", start_timeout),
            call_timeout=None if call_timeout is None else _seconds("call_timeout", call_timeout),
            mode=_checked_mode(mode),
            prefix=_checked_prefix(prefix),
        )

    @property
    def name(self) -> str:
        """Names the server in messages."""
        return self._name

    async def list_tools(self) -> tuple[abc.Tool, ...]:
        """Return the server's tools: the same tuple while they are unchanged. A checkpoint.

        They are read when the server starts, all pages; a server that is gone keeps
        its tools listed, and calling one says that it is gone.

        Raises:
          NotEnteredError: outside ``async with``.
        """
        await trio.lowlevel.checkpoint()
        connection = self._connection
        if connection is None or not connection.was_ready:
            raise tr.NotEnteredError(
                f"MCP server {self._name!r} is not running: use its toolset inside "
                "`async with toolset:` or give it to an agent and enter that"
            )
        if self._tools_of is not connection:
            self._tools = self._exposed(connection.listed)
            self._tools_of = connection
        return self._tools

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Start the server, or share the one that runs.

        Returns when its tools are listed. Cancelled meanwhile, it leaves the server
        as if it had never come; the close that this may need is bounded.

        Raises:
          McpServerError: it cannot be started, or is gone while others are still
            inside; the message says why, with the end of what it wrote to stderr.
        """
        connection = await self._joined()
        connection.users += 1
        try:
            await connection.settled.wait()
            self._check_usable(connection)
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            await self._leave(connection)
            raise
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; the last one out waits for the close, bounded, also when cancelled."""
        connection = self._connection
        if connection is None or connection.users == 0:
            raise tr.NotEnteredError(
                f"MCP server {self._name!r}: left more often than it was entered"
            )
        await self._leave(connection)
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()

    def _check_usable(self, connection: connections.Connection) -> None:
        if connection.state is connections.State.OVER:
            raise errors.McpServerError(self._name, connection.why)

    async def _joined(self) -> connections.Connection:
        """Return the connection to join, a new one when there is none."""
        while True:
            connection = self._connection
            if connection is None:
                connection = connections.Connection(
                    self._connector,
                    name=self._name,
                    mode=self._mode,
                    start_timeout=self._start_timeout,
                )
                self._connection = connection
                connection.spawn()
                return connection
            if connection.closed.is_set() and not connection.is_of_this_run():
                # Its run ended and closed it; nobody was left to leave.
                self._connection = None
                continue
            if connection.users > 0:
                return connection
            # Its last user has left: two lives of a server never overlap.
            await connection.closed.wait()
            self._forget(connection)

    async def _leave(self, connection: connections.Connection) -> None:
        connection.users -= 1
        if connection.users > 0:
            return
        connection.request_close()
        try:
            await wait_closed(connection.closed, self._connector.close_timeout + _CLOSE_SLACK)
        finally:
            self._forget(connection)

    def _forget(self, connection: connections.Connection) -> None:
        if self._connection is connection and connection.closed.is_set():
            self._connection = None

    # --- tools and calls ---

    def _exposed(self, listed: connections.Listed) -> tuple[abc.Tool, ...]:
        exposed = names.exposed_names([tool.name for tool in listed.tools], self._prefix)
        bare = names.exposed_names([tool.name for tool in listed.tools])
        return tuple(
            [
                self._tool(tool, exposed[tool.name], bare[tool.name], listed.output_schemas)
                for tool in listed.tools
            ]
        )

    def _tool(
        self, tool: m.Tool, name: str, bare: str, output_schemas: Mapping[str, Mapping[str, Any]]
    ) -> abc.Tool:
        output_schema = output_schemas.get(tool.name)
        remote = _Remote(
            tool.name, None if output_schema is None else output_check.OutputCheck(output_schema)
        )
        annotations = tool.annotations
        return abc.Tool(
            name=name,
            description=convert.valid_text(tool.description or ""),
            input_schema=convert.valid_json(tool.input_schema),
            call=functools.partial(self._call, remote),
            title=None if tool.title is None else convert.valid_text(tool.title),
            output_schema=output_schema,
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
        self, remote: _Remote, arguments: tr.JSONObject, context: abc.ToolContext
    ) -> tr.ToolResult:
        """Call the server once. Cancelled, it tells the server to stop, and lets go at once."""
        client = self._running_client()
        try:
            result = await client.call_tool(
                remote.name, arguments, progress_callback=_Progress(context)
            )
        except mcp.MCPError as error:
            raise self._refused(remote, error) from error
        except pydantic.ValidationError as error:
            raise tr.ToolError(
                f"MCP server {self._name!r} ran tool {remote.name!r} but sent a malformed "
                f"result: {errors.said(error)}"
            ) from error
        except Exception as error:  # border: whatever else the SDK raises is this call's
            raise tr.ToolError(
                f"MCP server {self._name!r}, tool {remote.name!r}: {errors.said(error)}"
            ) from error
        return self._checked(remote, convert.from_mcp_result(result))

    def _running_client(self) -> mcp.Client:
        connection = self._connection
        if connection is None:
            raise tr.ToolError(f"MCP server {self._name!r} is not running; nothing was sent")
        if connection.client is None or connection.state is not connections.State.READY:
            why = connection.why or "is still starting"
            raise tr.ToolError(f"MCP server {self._name!r} {why}; nothing was sent")
        return connection.client

    def _refused(self, remote: _Remote, error: mcp.MCPError) -> tr.ToolError:
        where = f"MCP server {self._name!r}, tool {remote.name!r}"
        # The code is also the first that servers use for errors of their own; the text is the
        # SDK's, for a connection that has ended.
        if error.error.code == m.CONNECTION_CLOSED and error.error.message == "Connection closed":
            return tr.ToolError(
                f"{where}: the connection ended during the call; "
                "it is not known whether the tool finished"
            )
        return tr.ToolError(f"{where}: {errors.said(error)}")

    def _checked(self, remote: _Remote, result: tr.ToolResult) -> tr.ToolResult:
        """What the tool said, or an error result that keeps it when it breaks its own schema."""
        if result.is_error:
            if result.content or result.structured_content is not None:
                return result
            text = f"MCP server {self._name!r}: tool {remote.name!r} failed and did not say why"
            return attrs.evolve(result, content=text)
        if remote.output_check is None:
            return result
        try:
            problem = remote.output_check.mismatch(result.structured_content)
        except output_check.UncheckableError as error:
            self._say_unchecked(remote, error)
            return result
        if problem is None:
            return result
        note = (
            f"MCP server {self._name!r}: tool {remote.name!r} ran, but its result does not fit "
            f"its own output schema: {problem}"
        )
        return attrs.evolve(
            result,
            status=tr.CallStatus.ERROR,
            content=(tr.TextContent(note), *result.content),
        )

    def _say_unchecked(self, remote: _Remote, error: output_check.UncheckableError) -> None:
        if remote.name not in self._said_unchecked:
            self._said_unchecked.add(remote.name)
            _log.warning(
                "MCP server %r, tool %r: a result was passed on without a check against the "
                "tool's output schema: %s",
                self._name,
                remote.name,
                error,
            )


@attrs.frozen
class _Remote:
    """A tool as the server knows it."""

    name: str
    output_check: output_check.OutputCheck | None


@attrs.frozen
class _Progress:
    """Passes the server's progress on to the call's observers."""

    context: abc.ToolContext

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report; the SDK wants it async, it does not wait for anything."""
        text = None if message is None else convert.valid_text(message)
        self.context.report_progress(progress, total, text)


@attrs.frozen
class _StdioConnector:
    command: stdio.StdioCommand

    @property
    def close_timeout(self) -> float:
        return self.command.close_timeout

    def connect(
        self, name: str, on_end: connections.OnEnd
    ) -> AbstractAsyncContextManager[connections.Link]:
        return stdio.serve(self.command, name, on_end)


# --- what the constructor takes -------------------------------------------------


def _seconds(name: str, value: float) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{name} is {value!r}; expected a number of seconds")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a finite number of seconds above 0")
    return float(value)


def _positive(name: str, value: int) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}; expected a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value!r}; expected at least 1")
    return value


def _checked_stderr(value: stdio.StderrMode) -> stdio.StderrMode:
    if value not in ("tail", "inherit", "discard"):
        raise ValueError(f"stderr is {value!r}; expected 'tail', 'inherit' or 'discard'")
    return value


def _checked_mode(value: str) -> str:
    known = ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)
    if value not in known:
        raise ValueError(f"mode is {value!r}; expected one of {', '.join(known)}")
    return value


def _checked_prefix(value: str | None) -> str | None:
    if value is not None and (not value or names.clean(value) != value or len(value) > 32):
        raise ValueError(
            f"prefix is {value!r}; expected 1 to 32 characters of A-Z, a-z, 0-9, _ and -"
        )
    return value
