"""A server in this very process, over streams in memory: for tests, and for servers of one's own.

The SDK hands such a server to its client without messages when it can. We do not
use that: what a server says would not pass by our `Wire` then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeAlias

# The SDK has this in no public module; `mcp.Client` uses it for servers of the older protocol.
from mcp.client._memory import InMemoryTransport
from mcp.client._transport import TransportStreams
from mcp.server import MCPServer, Server

#: A server of either kind that the SDK has.
AnyServer: TypeAlias = MCPServer | Server[Any]


class MemoryLink:
    """The two streams to a server that runs in a task beside its client."""

    def __init__(self, server: AnyServer) -> None:
        self._transport = InMemoryTransport(server)

    async def __aenter__(self) -> TransportStreams:
        """Start the server and hand out the streams."""
        return await self._transport.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """End the server: it sees the end of its input, and is cancelled two seconds later."""
        await self._transport.__aexit__(exc_type, exc_val, exc_tb)

    async def how_it_ended(self) -> str:
        """Return in words how the server ended. No checkpoint."""
        return "has ended"

    def last_words(self) -> str:
        """Return nothing: there is no side channel."""
        return ""


@asynccontextmanager
async def serve(server: AnyServer) -> AsyncGenerator[MemoryLink]:
    """Give a link to a server; it runs while the SDK's client holds the link."""
    yield MemoryLink(server)
