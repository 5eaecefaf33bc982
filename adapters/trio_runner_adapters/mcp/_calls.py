"""Calls of a server's tools: one answer each, whatever becomes of the connection.

What may live here: making a `Tool` of what the server lists, calling it, and
saying truly what became of a call that got no answer.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import attrs
import mcp
import mcp_types as m
import pydantic
import trio

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._connection as connections
import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._names as names
import trio_runner_adapters.mcp._output_check as output_check
import trio_runner_adapters.mcp._tool_list as tool_list
import trio_runner_adapters.mcp._upkeep as upkeep_
import trio_runner_adapters.mcp._wire as wires

_log = logging.getLogger("trio_runner_adapters.mcp")


@attrs.frozen
class Remote:
    """A tool as the server knows it."""

    name: str
    output_check: output_check.OutputCheck | None


class _LostError(Exception):
    """A request got no answer; what is known of it."""

    def __init__(self, loss: errors.Loss, why: str, *, once: bool) -> None:
        super().__init__(why)
        self.loss = loss
        #: Whether it was the only request of its call.
        self.once = once


class Caller:
    """Makes and calls the tools of one server."""

    def __init__(
        self,
        name: str,
        upkeep: upkeep_.Upkeep,
        *,
        prefix: str | None,
        call_timeout: float | None,
    ) -> None:
        self._name = name
        self._upkeep = upkeep
        self._prefix = prefix
        self._call_timeout = call_timeout
        #: Tools of which it was said that a result could not be checked.
        self._said_unchecked: set[str] = set()

    # --- making tools ---

    def exposed(self, listed: tool_list.Listed) -> tuple[abc.Tool, ...]:
        """Return a `Tool` for each that the server lists. No checkpoint."""
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
        remote = Remote(
            tool.name, None if output_schema is None else output_check.OutputCheck(output_schema)
        )
        annotations = tool.annotations
        return abc.Tool(
            name=name,
            description=convert.valid_text(tool.description or ""),
            input_schema=convert.valid_json(tool.input_schema),
            call=functools.partial(self.call, remote),
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

    # --- calling ---

    # Marked, since what calls a tool is not: a Ctrl-C within the SDK would leave its streams
    # half-open. The functions that a server may ask for in the call are unmarked again.
    @trio.lowlevel.enable_ki_protection
    async def call(
        self, remote: Remote, arguments: tr.JSONObject, context: abc.ToolContext
    ) -> tr.ToolResult:
        """Call the server; cancelled, it tells the server to stop, and lets go at once.

        A call is made a second time only when the first one certainly did not reach
        the tool, once, and over a new connection.
        """
        where = f"MCP server {self._name!r}, tool {remote.name!r}"
        try:
            return await self._call_once(remote, arguments, context)
        except _LostError as error:
            lost = error
        if self._upkeep.reconnects and lost.once and lost.loss is not errors.Loss.UNKNOWN:
            try:
                return await self._call_once(remote, arguments, context)
            except _LostError as error:
                lost = error
        match lost.loss:
            case errors.Loss.UNKNOWN:
                text = (
                    f"{where}: {lost}. The call may have been received, and its outcome is "
                    "unknown: it is not known whether the tool finished"
                )
                return tr.ToolResult(content=text, status=tr.CallStatus.INTERRUPTED)
            case errors.Loss.NOT_SENT:
                raise tr.ToolError(f"{where}: {lost}; nothing was sent")
            case errors.Loss.FORGOTTEN:
                raise tr.ToolError(f"{where}: {lost}, so it did not run the tool")

    async def _call_once(
        self, remote: Remote, arguments: tr.JSONObject, context: abc.ToolContext
    ) -> tr.ToolResult:
        """Call the server once.

        Raises:
          _LostError: there was no answer.
          ToolError: the answer is an error, or no result; or there is no connection.
        """
        try:
            connection = await self._upkeep.usable()
        except errors.McpServerError as error:
            raise tr.ToolError(str(error)) from error
        assert connection.client is not None, "a usable connection is ready"
        sending = wires.Sending()
        token = wires.SENDING.set(sending)
        connection.begin_call()
        try:
            result = await connection.client.call_tool(
                remote.name, arguments, progress_callback=_Progress(context)
            )
        except mcp.MCPError as error:
            if errors.is_end(error):
                await connection.wait_unwound()
            raise self._refused(remote, error, connection, sending) from error
        except pydantic.ValidationError as error:
            raise tr.ToolError(
                f"MCP server {self._name!r} ran tool {remote.name!r} but sent a malformed "
                f"result: {errors.said(error)}"
            ) from error
        except Exception as error:  # border: whatever else the SDK raises is this call's
            raise tr.ToolError(
                f"MCP server {self._name!r}, tool {remote.name!r}: {errors.said(error)}"
            ) from error
        finally:
            connection.end_call()
            wires.SENDING.reset(token)
        return self._checked(remote, convert.from_mcp_result(result))

    def _refused(
        self,
        remote: Remote,
        error: mcp.MCPError,
        connection: connections.Connection,
        sending: wires.Sending,
    ) -> Exception:
        why = error.error.message
        match error.error.data:
            case errors.Loss() as loss:
                pass
            case _ if errors.is_end(error):
                loss = errors.Loss.UNKNOWN if sending.requests else errors.Loss.NOT_SENT
                why = "the connection ended during the call"
            case _:
                text = f"MCP server {self._name!r}, tool {remote.name!r}: {errors.said(error)}"
                return tr.ToolError(text)
        connection.is_doubtful = True
        return _LostError(loss, errors.shortened(why), once=sending.requests <= 1)

    def _checked(self, remote: Remote, result: tr.ToolResult) -> tr.ToolResult:
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

    def _say_unchecked(self, remote: Remote, error: output_check.UncheckableError) -> None:
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
class _Progress:
    """Passes the server's progress on to the call's observers."""

    context: abc.ToolContext

    @trio.lowlevel.enable_ki_protection
    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report; the SDK wants it async, it does not wait for anything."""
        text = None if message is None else convert.valid_text(message)
        self.context.report_progress(progress, total, text)
