"""The list of a server's tools over one connection: read at the start, and when it changed.

What may live here: when the list is read, and how we hear that it must be. What a
page is and which tools are good is in `_listing`.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs
import mcp
import mcp_types as m
import trio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._listing as listing
import trio_runner_adapters.mcp._wire as wires

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Seconds that the first list waits for the server to say that it will tell of changes.
_ACK_TIMEOUT: Final = 1.0
#: Seconds that reading a changed list may take; a model call waits for it.
_REFRESH_TIMEOUT: Final = 10.0
#: Seconds before the stream of changes is asked for again: it doubles each time.
_LISTEN_AGAIN: Final = (1.0, 60.0)
#: Tools left out that are named in the log; more are counted.
_LOGGED_TOOLS: Final = 50


@attrs.frozen
class Listed:
    """What a server offers: its tools, and the usable output schemas by original name."""

    tools: tuple[m.Tool, ...]
    output_schemas: dict[str, dict[str, object]]


class ToolList:
    """The tools of one connection."""

    def __init__(self, name: str, wire: wires.Wire) -> None:
        self._name = name
        self._wire = wire
        #: As it was read last.
        self.listed = Listed((), {})
        #: Whether it was read at all.
        self._was_read = False
        #: Wakes the task that reads the list anew; and what those wait for who woke it.
        self._refresh_wanted = trio.Event()
        self._refreshed: trio.Event | None = None

    async def start(self, client: mcp.Client, nursery: trio.Nursery) -> None:
        """Read it, and keep it up to date in ``nursery`` from then on."""
        if _tells_changes(client):
            await self._begin_listening(client, nursery)
        await self._read(client)
        nursery.start_soon(self._keep, client)

    async def refresh(self) -> None:
        """Wait until the list is read anew, if the server said that it changed.

        However many wait, it is read once, by the owner; cancelled, it is read all
        the same. It takes at most ten seconds.
        """
        if self._refreshed is None:
            if not self._wire.tools_changed:
                return
            self._refreshed = trio.Event()
            self._refresh_wanted.set()
        await self._refreshed.wait()

    @trio.lowlevel.enable_ki_protection
    async def _keep(self, client: mcp.Client) -> None:
        """Read the list anew, each time somebody wants it; a failure keeps the old one."""
        while True:
            await self._refresh_wanted.wait()
            self._refresh_wanted = trio.Event()
            why = f"it took more than {_REFRESH_TIMEOUT:g} seconds"
            with trio.move_on_after(_REFRESH_TIMEOUT) as scope:
                try:
                    await self._read(client)
                    why = ""
                except Exception as error:  # noqa: BLE001 - border: whatever the SDK raises
                    why = errors.said(error)
                    self._wire.tools_changed = True  # it is tried again
            if why or scope.cancelled_caught:
                _log.warning(
                    "MCP server %r: its changed list of tools could not be read, the old one "
                    "stays: %s",
                    self._name,
                    why,
                )
            self.end()

    def end(self) -> None:
        """Let go who waits for a refresh. No checkpoint, idempotent."""
        if self._refreshed is not None:
            self._refreshed.set()
            self._refreshed = None

    async def _read(self, client: mcp.Client) -> None:
        self._wire.tools_changed = False  # what is told from here on counts anew
        tools, stopped = await listing.list_all(client)
        found = self._wire.listing
        self._report(found.take_left_out(), stopped)
        found.keep_only([tool.name for tool in tools])
        self.listed = Listed(tuple(tools), dict(found.output_schemas))
        self._was_read = True

    async def _begin_listening(self, client: mcp.Client, nursery: trio.Nursery) -> None:
        """Ask to be told of changes; a little later in any case the list may be read."""
        acknowledged = trio.Event()
        nursery.start_soon(self._listen, client, acknowledged)
        with trio.move_on_after(_ACK_TIMEOUT):
            await acknowledged.wait()

    @trio.lowlevel.enable_ki_protection
    async def _listen(self, client: mcp.Client, acknowledged: trio.Event) -> None:
        """Hold the stream of changes open; what comes in it is seen by the `Wire`."""
        pause, longest = _LISTEN_AGAIN
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    if acknowledged.is_set() or self._was_read:
                        self._wire.tools_changed = True  # it may have changed unheard
                    acknowledged.set()
                    began = trio.current_time()
                    async for _ in changes:
                        pass
                    if trio.current_time() - began > longest:
                        pause = _LISTEN_AGAIN[0]
            except mcp.MCPError as error:
                if error.error.code == m.METHOD_NOT_FOUND:
                    acknowledged.set()
                    return
                _log.debug("MCP server %r: no news of changes: %s", self._name, errors.said(error))
            except Exception as error:  # noqa: BLE001 - border: the stream is lost, for instance
                _log.debug("MCP server %r: no news of changes: %s", self._name, errors.said(error))
            await trio.sleep(pause)
            pause = min(2 * pause, longest)

    def _report(self, left_out: list[listing.LeftOut], stopped: str | None) -> None:
        for one in left_out[:_LOGGED_TOOLS]:
            _log.warning("MCP server %r, tool %r left out: %s", self._name, one.tool, one.reason)
        if (more := len(left_out) - _LOGGED_TOOLS) > 0:
            _log.warning("MCP server %r: %d more tools left out", self._name, more)
        if stopped is not None:
            _log.warning("MCP server %r: %s; the rest is left out", self._name, stopped)


def _tells_changes(client: mcp.Client) -> bool:
    """Whether the server must be asked to tell of changes. An older one tells them unasked."""
    tools = client.server_capabilities.tools
    return (
        client.protocol_version in MODERN_PROTOCOL_VERSIONS
        and tools is not None
        and bool(tools.list_changed)
    )
