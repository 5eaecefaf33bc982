"""`McpToolset`: an MCP server as a `trio_runner.abc.Toolset`."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import trio

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._callbacks as callbacks_
import trio_runner_adapters.mcp._calls as calls
import trio_runner_adapters.mcp._connection as connections
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._http as http
import trio_runner_adapters.mcp._memory as memory
import trio_runner_adapters.mcp._options as options_
import trio_runner_adapters.mcp._reading as reading
import trio_runner_adapters.mcp._sse as sse
import trio_runner_adapters.mcp._stdio as stdio
import trio_runner_adapters.mcp._tool_list as tool_list
import trio_runner_adapters.mcp._upkeep as upkeep_
import trio_runner_adapters.mcp._web as web

_log = logging.getLogger("trio_runner_adapters.mcp")


class McpToolset(reading.ServerReading):
    """The tools of one MCP server.

    Make it with `stdio`, `http`, `sse` or `in_memory`, give it to an agent, or use
    it in ``async with``. Any number of tasks may enter it and leave it in any order,
    each as often as it entered; the server is connected with the first and closed
    with the last, within ``close_timeout``, a process with its whole process group
    (not what it has moved to a session of its own). After that it may be entered
    again, which connects anew. An agent whose ``grace`` is shorter than
    ``close_timeout`` stops waiting before that; the close goes on all the same.

    A call ends by its answer, by the loss of its connection, by its timeout or by a
    cancel (which is passed on to the server), whichever comes first. Whatever the
    server does wrong is that call's error result and names the server. A call whose
    connection was lost is answered ``interrupted``: its outcome is unknown, and it
    is never made again. Later calls to a URL connect anew first, all who wait
    together; a process that is gone stays gone, and they fail at once. A call that
    certainly did not reach its tool, because the server could not be reached or had
    forgotten the session, is made once more over the new connection.
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
        callbacks: callbacks_.Callbacks | None = None,
        required: bool = True,
        reconnects: bool = False,
        client_exit_timeout: float = connections.CLIENT_EXIT_TIMEOUT,
    ) -> None:
        """Use `stdio` and the others; this constructor takes the library's own connectors."""
        self._name = name
        self._required = options_.checked_flag("required", required)
        self._upkeep = upkeep_.Upkeep(
            connector,
            connections.Plan(
                name=name,
                mode=options_.checked_mode(mode),
                start_timeout=options_.seconds("start_timeout", start_timeout),
                client_options=_client_options(name, callbacks),
                client_exit_timeout=client_exit_timeout,
            ),
            reconnects=reconnects,
        )
        self._caller = calls.Caller(
            name,
            self._upkeep,
            prefix=options_.checked_prefix(prefix),
            call_timeout=(
                None if call_timeout is None else options_.seconds("call_timeout", call_timeout)
            ),
        )
        self._reader = reading.Reader(name, self._upkeep, call_timeout)
        #: The tools as they were offered last, and what they were made of.
        self._tools: tuple[abc.Tool, ...] = ()
        self._listed: tool_list.Listed | None = None
        #: Why the last entry found no server.
        self._failure: errors.McpServerError | None = None

    @classmethod
    def stdio(
        cls,
        command: str | os.PathLike[str],
        args: Sequence[str | os.PathLike[str]] = (),
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
        callbacks: callbacks_.Callbacks | None = None,
        required: bool = True,
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
          callbacks: what the server may ask of us, and tell us.
          required: False: when it cannot be started that is a warning in the log,
            there are no tools, and `failure` says why.

        Raises:
          TypeError, ValueError: an argument is not what it should be.
        """
        connector = options_.StdioConnector(
            options_.stdio_command(
                command,
                args,
                env=env,
                cwd=cwd,
                stderr=stderr,
                max_message_bytes=max_message_bytes,
                close_timeout=close_timeout,
            )
        )
        return cls(
            connector,
            name=options_.program_name(command) if name is None else name,
            start_timeout=start_timeout,
            call_timeout=call_timeout,
            mode=mode,
            prefix=prefix,
            callbacks=callbacks,
            required=required,
        )

    @classmethod
    def http(
        cls,
        url: str,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: web.Auth | None = None,
        verify: ssl.SSLContext | None = None,
        start_timeout: float = 30.0,
        call_timeout: float | None = None,
        close_timeout: float = 5.0,
        mode: str = "auto",
        prefix: str | None = None,
        max_message_bytes: int = 64 * 1024 * 1024,
        callbacks: callbacks_.Callbacks | None = None,
        required: bool = True,
    ) -> Self:
        """Return a toolset whose server is at a URL, by the streamable HTTP transport.

        Nothing is sent before it is entered.

        Args:
          url: of the server's endpoint, often ending in ``/mcp``. A redirect is
            followed within its origin only.
          name: names the server in messages; by default its host and port.
          headers: sent with each request.
          auth: an `httpx2.Auth`, such as the SDK's ``OAuthClientProvider``, or a pair
            of user name and password.
          verify: whom to trust over ``https``: a context such as
            ``ssl.create_default_context(cafile="our-ca.pem")``, used for every
            connection. None: the authorities that `httpx2` trusts.
          start_timeout: seconds for agreeing on the protocol and listing, when it is
            entered and each time it connects anew.
          call_timeout: seconds for each call, from when it really starts; becomes
            each `Tool.timeout`.
          close_timeout: seconds for telling the server that the session is over.
          mode: "auto", "legacy" (the initialize handshake), or a protocol version.
          prefix: expose ``prefix__tool`` in place of ``tool``.
          max_message_bytes: the rest of a longer message is not read; the call it
            answered gets an error result.
          callbacks: what the server may ask of us, and tell us.
          required: False: when it cannot be reached that is a warning in the log,
            there are no tools, and `failure` says why.

        Raises:
          TypeError, ValueError: an argument is not what it should be.
        """
        server = options_.web_server(
            url,
            headers=headers,
            auth=auth,
            verify=verify,
            max_message_bytes=max_message_bytes,
            close_timeout=close_timeout,
        )
        return cls(
            options_.WebConnector(server, http.serve),
            name=options_.web_name(url) if name is None else name,
            start_timeout=start_timeout,
            call_timeout=call_timeout,
            mode=mode,
            prefix=prefix,
            callbacks=callbacks,
            required=required,
            reconnects=True,
        )

    @classmethod
    def sse(
        cls,
        url: str,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        auth: web.Auth | None = None,
        verify: ssl.SSLContext | None = None,
        start_timeout: float = 30.0,
        call_timeout: float | None = None,
        close_timeout: float = 5.0,
        mode: str = "auto",
        prefix: str | None = None,
        max_message_bytes: int = 64 * 1024 * 1024,
        callbacks: callbacks_.Callbacks | None = None,
        required: bool = True,
    ) -> Self:
        """Return a toolset whose server is at a URL, by the older HTTP+SSE transport.

        The arguments are those of `http`. The answers of all calls come over one
        stream, so its loss interrupts them all.

        Raises:
          TypeError, ValueError: an argument is not what it should be.
        """
        server = options_.web_server(
            url,
            headers=headers,
            auth=auth,
            verify=verify,
            max_message_bytes=max_message_bytes,
            close_timeout=close_timeout,
        )
        return cls(
            options_.WebConnector(server, sse.serve),
            name=options_.web_name(url) if name is None else name,
            start_timeout=start_timeout,
            call_timeout=call_timeout,
            mode=mode,
            prefix=prefix,
            callbacks=callbacks,
            required=required,
            reconnects=True,
        )

    @classmethod
    def in_memory(
        cls,
        server: memory.AnyServer,
        *,
        name: str | None = None,
        start_timeout: float = 30.0,
        call_timeout: float | None = None,
        close_timeout: float = 5.0,
        mode: str = "auto",
        prefix: str | None = None,
        callbacks: callbacks_.Callbacks | None = None,
        required: bool = True,
    ) -> Self:
        """Return a toolset whose server is an object of the mcp SDK in this process.

        Each first entry runs it, in a task beside this trio run's own; its messages
        pass the same checks as those of any server.

        Args:
          server: an ``MCPServer`` or a low-level ``Server``.
          name: names the server in messages; by default the server's own name.
          close_timeout: seconds in which its lifespan may end; then it is cancelled.
          start_timeout, call_timeout, mode, prefix, callbacks, required: as for `http`.

        Raises:
          TypeError, ValueError: an argument is not what it should be.
        """
        timeout = options_.seconds("close_timeout", close_timeout)
        connector = options_.MemoryConnector(options_.checked_server(server), timeout)
        return cls(
            connector,
            name=server.name if name is None else name,
            start_timeout=start_timeout,
            call_timeout=call_timeout,
            mode=mode,
            prefix=prefix,
            callbacks=callbacks,
            required=required,
            client_exit_timeout=timeout,
        )

    @property
    def name(self) -> str:
        """Names the server in messages."""
        return self._name

    @property
    def failure(self) -> errors.McpServerError | None:
        """Why the last entry found no server, for one that is not required; else None."""
        return self._failure

    async def list_tools(self) -> tuple[abc.Tool, ...]:
        """Return the server's tools: the same tuple while they are unchanged. A checkpoint.

        They are read when the server starts, all pages, and again when it said that
        they changed: for at most ten seconds, then the former ones stay. A server that
        is gone keeps its tools listed, and calling one says that it is gone.

        Raises:
          NotEnteredError: outside ``async with``.
        """
        await trio.lowlevel.checkpoint()
        connection = self._upkeep.current
        if connection is None or self._upkeep.users == 0 or not self._is_known(connection):
            raise tr.NotEnteredError(
                f"MCP server {self._name!r} is not running: use its toolset inside "
                "`async with toolset:` or give it to an agent and enter that"
            )
        await connection.refresh()
        if connection.was_ready and connection.tools.listed is not self._listed:
            if connection.tools.listed != self._listed:
                self._tools = self._caller.exposed(connection.tools.listed)
            self._listed = connection.tools.listed
        return self._tools

    def _is_known(self, connection: connections.Connection) -> bool:
        """Whether it is known which tools there are, if only that there are none."""
        return connection.was_ready or self._listed is not None or self._failure is not None

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Connect to the server, or share the connection that there is.

        Returns when its tools are listed. Cancelled meanwhile, it leaves the server
        as if it had never come; the close that this may need is bounded.

        Raises:
          McpServerError: it cannot be started or reached, or is gone while others are
            still inside; the message says why, with the end of what it wrote to
            stderr. Not when it is not required.
        """
        connection = await self._upkeep.join()
        try:
            await connection.settled.wait()
            # A Ctrl-C that ended the start goes before the error that it would look like.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._note_start(connection)
        except BaseException:
            await self._upkeep.leave()
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
        if self._upkeep.users == 0:
            raise tr.NotEnteredError(
                f"MCP server {self._name!r}: left more often than it was entered"
            )
        await self._upkeep.leave()
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()

    def _note_start(self, connection: connections.Connection) -> None:
        if connection.state is not connections.State.OVER:
            self._failure = None
            return
        failure = errors.McpServerError(self._name, connection.why)
        if self._required:
            raise failure
        self._failure = failure
        if self._upkeep.users == 1:
            self._tools, self._listed = (), None
        _log.warning("%s; it is not required, so its tools are left out", failure)


def _client_options(
    name: str, callbacks: callbacks_.Callbacks | None
) -> Callable[[], Mapping[str, Any]]:
    if callbacks is None:
        return dict
    return lambda: callbacks.client_options(name)
