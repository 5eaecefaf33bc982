"""The two streams that the SDK gets of a transport of ours.

What may live here: how messages wait between the tasks of a transport and the
SDK, one at a time, so that a server which sends faster than we look is held up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio
import trio
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCMessage


class Closing:
    """The ``async with`` of a stream: leaving it closes the stream."""

    async def aclose(self) -> None:
        """Close it."""
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


class Inbox(Closing):
    """Messages on their way to the SDK. It is also the SDK's read side."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        #: Told once, synchronously, when the transport says that no more will come.
        self._on_end = on_end
        self._send, self._receive = trio.open_memory_channel[SessionMessage | Exception](0)

    async def put(self, item: JSONRPCMessage | Exception) -> None:
        """Hand a message to the SDK, and wait until it looks; a closed SDK gets none."""
        try:
            await self._send.send(item if isinstance(item, Exception) else SessionMessage(item))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()

    def end(self) -> None:
        """Say that no more will come. No checkpoint, idempotent."""
        self._send.close()
        self._on_end()

    # --- the SDK's side ---

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise anyio.EndOfStream from None
        except trio.ClosedResourceError:
            raise anyio.ClosedResourceError from None

    async def aclose(self) -> None:
        """Take no more. A checkpoint."""
        await self._receive.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Outbox(Closing):
    """The SDK's write side: passes each message to ``send`` until it is closed."""

    def __init__(self, send: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._send = send
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Pass a message on."""
        if self._closed:
            raise anyio.ClosedResourceError
        await self._send(item)

    async def aclose(self) -> None:
        """Take no more. A checkpoint."""
        self._closed = True
        await trio.lowlevel.checkpoint()
