"""Between the wire and the SDK: everything passes here, in order, both ways.

The SDK judges pages and results as a whole, waits for ever for an answer that
cannot be tied to its request, and starts a task for each message of the server.
So a `Wire` hands it parts that were judged one by one, an error for each request
that an answer was lost for, and no more requests of the server than it can serve.
"""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio
import attrs
import mcp_types as m
import trio
from mcp.client import Transport
from mcp.shared.dispatcher import as_request_id, coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import JSONRPCMessage

import trio_runner_adapters.mcp._entries as entries
import trio_runner_adapters.mcp._listing as listing
import trio_runner_adapters.mcp._results as results
import trio_runner_adapters.mcp._streams as streams

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Requests of the server that may be open at a time; more are dropped.
_MAX_THEIRS: Final = 100

#: Entries of a page that are named in the log when they are left out; more are counted.
_LOGGED: Final = 50

_TOOLS_CHANGED: Final = "notifications/tools/list_changed"

#: What the SDK starts no task for.
_ANSWERS: Final = (m.JSONRPCResponse, m.JSONRPCError)


@attrs.define(eq=False)
class Sending:
    """How many requests a call has handed to the transport so far: more than one if asked back."""

    requests: int = 0


#: The call whose requests this task sends.
SENDING: Final = contextvars.ContextVar[Sending | None]("trio_runner_mcp_sending", default=None)


class LostAnswerError(Exception):
    """What a transport hands out in place of a broken answer that names no request."""


def cancelled_id(message: JSONRPCMessage) -> m.RequestId | None:
    """Return the id of the request that ``message`` takes back, or None if it is no cancel."""
    match message:
        case m.JSONRPCNotification(method="notifications/cancelled", params=dict() as params):
            request_id = as_request_id(params.get("requestId"))
            return None if request_id is None else coerce_request_id(request_id)
        case _:
            return None


class Wire:
    """What a connection knows of the messages that have passed."""

    def __init__(self, name: str, on_end: Callable[[], None] | None = None) -> None:
        self._name = name
        #: Told, synchronously, when the read side has ended.
        self._on_end = on_end
        #: Whether the server said that its tools changed, since this was last set to False.
        self.tools_changed = False
        #: The protocol version agreed on; known before the first list is asked for.
        self.version = ""
        self.listing = listing.ListingFilter()
        #: Our requests that wait for an answer: what each asks for, and from which cursor on.
        self._ours: dict[m.RequestId, tuple[str, str | None]] = {}
        #: Ids of the server's requests that we have not answered.
        self._theirs: set[m.RequestId] = set()
        #: Whether it was said already that requests of the server are dropped.
        self._said_dropped = False

    def sending(self, message: JSONRPCMessage) -> None:
        """See a message before it goes to the server. No checkpoint."""
        match message:
            case m.JSONRPCRequest(method=method):
                cursor = (message.params or {}).get("cursor")
                self._ours[coerce_request_id(message.id)] = (
                    method,
                    cursor if type(cursor) is str else None,
                )
                if (sending := SENDING.get()) is not None:
                    sending.requests += 1
            case m.JSONRPCNotification():
                if (taken_back := cancelled_id(message)) is not None:
                    self._ours.pop(taken_back, None)
            case _:
                pass

    def sent(self, message: JSONRPCMessage) -> None:
        """See a message that has gone, or could not go. No checkpoint."""
        match message:
            case m.JSONRPCResponse(id=request_id) | m.JSONRPCError(id=int() | str() as request_id):
                self._theirs.discard(coerce_request_id(request_id))
            case _:
                pass

    async def received(self, message: JSONRPCMessage) -> JSONRPCMessage | None:
        """Return what the SDK should see in place of ``message``; None for nothing."""
        match message:
            case m.JSONRPCResponse():
                asked = self._ours.pop(coerce_request_id(message.id), None)
                return message if asked is None else await self._judged(message, *asked)
            case m.JSONRPCError():
                if message.id is not None:
                    self._ours.pop(coerce_request_id(message.id), None)
            case m.JSONRPCRequest():
                return message if self._admit(coerce_request_id(message.id)) else None
            case m.JSONRPCNotification():
                if message.method == _TOOLS_CHANGED:
                    self.tools_changed = True
                elif (taken_back := cancelled_id(message)) is not None:
                    self._theirs.discard(taken_back)
        return message

    def refused(self, message: JSONRPCMessage) -> None:
        """See that the transport did not take a message. No checkpoint."""
        if type(message) is m.JSONRPCRequest and (sending := SENDING.get()) is not None:
            sending.requests -= 1

    def ended(self) -> None:
        """See that nothing will be received any more. No checkpoint."""
        if self._on_end is not None:
            self._on_end()

    def lost(self, error: LostAnswerError) -> list[JSONRPCMessage]:
        """Return an error for each request in flight: any may be the one. No checkpoint."""
        text = f"the server's answer was malformed: {error}; it does not say to which call"
        data = m.ErrorData(code=m.INTERNAL_ERROR, message=text)
        waiting, self._ours = list(self._ours), {}
        return [m.JSONRPCError(jsonrpc="2.0", id=each, error=data) for each in waiting]

    async def _judged(
        self, answer: m.JSONRPCResponse, method: str, cursor: str | None
    ) -> JSONRPCMessage:
        match method:
            case listing.LIST_METHOD:
                result = await self.listing.judged(answer.result, self.version, cursor)
            case results.CALL_METHOD:
                result = results.judged(answer.result, self.version)
            case _ if method in entries.KINDS:
                result, left_out = await entries.judged(answer.result, self.version, method)
                self._say_left_out(entries.KINDS[method].word, left_out)
            case _:
                return answer
        same = result is answer.result
        return answer if same else answer.model_copy(update={"result": result})

    def _say_left_out(self, word: str, left_out: list[tuple[str, str]]) -> None:
        for name, reason in left_out[:_LOGGED]:
            _log.warning("MCP server %r, %s %r left out: %s", self._name, word, name, reason)
        if (more := len(left_out) - _LOGGED) > 0:
            _log.warning("MCP server %r: %d more of it left out", self._name, more)

    def _admit(self, request_id: m.RequestId) -> bool:
        if request_id not in self._theirs and len(self._theirs) < _MAX_THEIRS:
            self._theirs.add(request_id)
            return True
        if not self._said_dropped:
            self._said_dropped = True
            _log.warning(
                "MCP server %r sends requests faster than it takes their answers; some are dropped",
                self._name,
            )
        return False


class _Read(Protocol):
    async def receive(self) -> SessionMessage | Exception: ...
    async def aclose(self) -> None: ...
    async def __anext__(self) -> SessionMessage | Exception: ...


class _Write(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...


class _WiredRead(streams.Closing):
    def __init__(self, inner: _Read, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire
        #: Answers that stand for a lost one and are not handed out yet.
        self._waiting: deque[JSONRPCMessage] = deque()
        #: Whether the SDK has started a task for what it was handed last.
        self._starts_task = False

    # Marked, since tasks of the SDK are not: a Ctrl-C that strikes here would cost the
    # connection and every call in flight.

    @trio.lowlevel.enable_ki_protection
    async def receive(self) -> SessionMessage | Exception:
        return await self._next(self._inner.receive)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> SessionMessage | Exception:
        return await self._next(self._inner.__anext__)

    async def _next(self, more: Any) -> SessionMessage | Exception:
        while True:
            # The SDK starts a task for each notification. With a checkpoint here that task
            # runs before the next message is looked at: progress comes in order and before
            # the answer, and a flood neither piles up tasks nor holds up the others.
            if self._starts_task or self._waiting:
                self._starts_task = False
                await trio.lowlevel.checkpoint()
            if self._waiting:
                return SessionMessage(self._waiting.popleft())
            try:
                item = await more()
            except (anyio.EndOfStream, anyio.ClosedResourceError, StopAsyncIteration):
                self._wire.ended()
                raise
            match item:
                case SessionMessage():
                    message = await self._wire.received(item.message)
                    self._starts_task = type(item.message) not in _ANSWERS
                    if message is not None:
                        same = message is item.message
                        return item if same else SessionMessage(message, item.metadata)
                case LostAnswerError():
                    self._waiting += self._wire.lost(item)
                case _:
                    return item


class _WiredWrite(streams.Closing):
    def __init__(self, inner: _Write, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    @trio.lowlevel.enable_ki_protection
    async def send(self, item: SessionMessage, /) -> None:
        self._wire.sending(item.message)
        try:
            await self._inner.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._wire.refused(item.message)
            raise
        finally:
            self._wire.sent(item.message)

    async def aclose(self) -> None:
        await self._inner.aclose()


class WiredTransport:
    """A transport whose messages pass by a `Wire`; the SDK is given this one."""

    def __init__(self, inner: Transport, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def __aenter__(self) -> tuple[_WiredRead, _WiredWrite]:
        read, write = await self._inner.__aenter__()
        return _WiredRead(read, self._wire), _WiredWrite(write, self._wire)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(exc_type, exc_val, exc_tb)
