"""A server at a URL, spoken to by the older transport: one event stream, and a POST a message.

Why not the SDK's own transport: an event of more than a megabyte ends its
connection; a POST that fails leaves its caller waiting for ever, one that hangs
holds up everybody; and it throws half-used generators away, of which trio warns.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urljoin, urlsplit

import attrs
import httpx2
import mcp_types as m
import trio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._events as events
import trio_runner_adapters.mcp._lines as lines
import trio_runner_adapters.mcp._streams as streams
import trio_runner_adapters.mcp._web as web
import trio_runner_adapters.mcp._wire as wires
from trio_runner_adapters._finishing import closing_scope

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Seconds that the server may take for a message that has no answer.
_NOTICE_TIMEOUT: Final = 30.0
#: Seconds that a cancel waits for the request that it takes back to be through.
_OVERTAKE_TIMEOUT: Final = 5.0
_POOL_TIMEOUT: Final = 1.0


@attrs.define(eq=False)
class _Post:
    """A request whose POST is under way."""

    through: trio.Event = attrs.field(factory=trio.Event)


class SseLink(web.WebLink):
    """One connection to one server; made by `serve`. As a transport it hands out its streams."""

    def __init__(
        self,
        server: web.WebServer,
        client: httpx2.AsyncClient,
        name: str,
        on_end: Callable[[], None],
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(server, client, name, on_end, nursery)
        #: Where messages go; the server says it first.
        self._endpoint = ""
        self._opened = trio.Event()
        #: Why the stream ended, or could not be opened.
        self._failure: Exception | None = None
        #: Requests whose POST is under way, by their id.
        self._posts: dict[m.RequestId, _Post] = {}

    # --- the transport the SDK sees ---

    async def __aenter__(self) -> tuple[streams.Inbox, streams.Outbox]:
        """Open the stream and hand out both sides.

        Raises:
          WebError: it cannot be opened.
        """
        self._nursery.start_soon(self._read)
        await self._opened.wait()
        if not self._endpoint:
            failure = self._failure or web.WebError("its stream ended before it named an endpoint")
            raise web.WebError(web.as_error(failure).message) from failure
        return self._inbox, streams.Outbox(self._submit)

    async def how_it_ended(self) -> str:
        """Return in words how the stream ended. No checkpoint."""
        if not self._endpoint:
            return ""
        return "ended its connection" if self._failure is None else "lost its connection"

    async def _submit(self, item: SessionMessage) -> None:
        message = item.message
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        match message:
            case m.JSONRPCRequest(id=request_id):
                post = self._posts[coerce_request_id(request_id)] = _Post()
                self._nursery.start_soon(self._ask, message, body, post)
            case m.JSONRPCNotification(method="notifications/initialized"):
                # The server must have it before the first request.
                await self._tell(body, None)
            case _:
                taken_back = wires.cancelled_id(message)
                after = None if taken_back is None else self._posts.get(taken_back)
                self._nursery.start_soon(self._tell, body, after)
        await trio.lowlevel.checkpoint()

    # --- its tasks ---

    @trio.lowlevel.enable_ki_protection
    async def _read(self) -> None:
        """Read the stream until it ends."""
        try:
            await self._read_events()
        except Exception as error:  # noqa: BLE001 - border: the HTTP library, an ``auth``
            self._failure = error
            _log.debug("MCP server %r: the stream broke: %s", self._name, errors.said(error))
        finally:
            self._opened.set()
            self._inbox.end()

    async def _read_events(self) -> None:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        async with web.requested(
            self._client, "GET", self._server.url, headers=headers
        ) as response:
            if not response.is_success:
                refused = await web.refusal(response, request_id=None, has_session=False)
                raise web.WebError(refused.message)
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "text/event-stream":
                raise web.WebError(f"it answered with {kind[:100]!r}; expected an event stream")
            splitter = events.EventSplitter(self._server.max_message_bytes)
            async with web.chunks_of(response) as chunks:
                async for chunk in chunks:
                    splitter.feed(chunk)
                    while (event := splitter.next_event()) is not None:
                        await self._event(event)

    async def _event(self, event: events.Event) -> None:
        match event:
            case events.Event(kind="endpoint", data=bytes() as place) if not self._endpoint:
                self._endpoint = _endpoint(self._server.url, place.decode("utf-8", "replace"))
                self._opened.set()
            case events.Event(kind="message", data=data) if data != b"":
                for each in lines.parse(data):
                    await self._take(each)
            case _:
                pass

    async def _take(self, parsed: lines.Parsed) -> None:
        match parsed:
            case lines.Garbage(reason=reason, excerpt=excerpt):
                _log.warning(
                    "MCP server %r sent what is no message (%s), skipped: %r",
                    self._name,
                    reason,
                    excerpt,
                )
            case lines.LostAnswer(reason=reason):
                await self._inbox.put(wires.LostAnswerError(reason))
            case message:
                await self._inbox.put(message)

    @trio.lowlevel.enable_ki_protection
    async def _ask(self, request: m.JSONRPCRequest, body: bytes, post: _Post) -> None:
        """Send a request; its answer comes in the stream, an error if it cannot be sent."""
        key = coerce_request_id(request.id)
        try:
            error = await self._posted(body, request.id)
        finally:
            post.through.set()
            if self._posts.get(key) is post:
                del self._posts[key]
        if error is not None:
            await self._inbox.put(m.JSONRPCError(jsonrpc="2.0", id=request.id, error=error))

    async def _posted(self, body: bytes, request_id: m.RequestId | None) -> m.ErrorData | None:
        headers = {"content-type": "application/json"}
        try:
            async with web.requested(
                self._client, "POST", self._endpoint, headers=headers, content=body
            ) as response:
                if not response.is_success:
                    return await web.refusal(response, request_id=request_id, has_session=True)
        except Exception as error:  # noqa: BLE001 - border: the HTTP library, an ``auth``
            return web.as_error(error)
        return None

    @trio.lowlevel.enable_ki_protection
    async def _tell(self, body: bytes, after: _Post | None) -> None:
        """Send a message that has no answer, but not before the request that it takes back."""
        if after is not None:
            with trio.move_on_after(_OVERTAKE_TIMEOUT):
                await after.through.wait()
        with trio.move_on_after(_NOTICE_TIMEOUT):
            if (error := await self._posted(body, None)) is not None:
                _log.debug("MCP server %r: a notice was lost: %s", self._name, error.message)


def _endpoint(url: str, place: str) -> str:
    """The URL for messages; only the server's own origin may get what we send."""
    endpoint = urljoin(url, place)
    here, there = urlsplit(url), urlsplit(endpoint)
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        raise web.WebError(f"it wants messages at {endpoint[:200]!r}, which is another server")
    return endpoint


@asynccontextmanager
async def serve(
    server: web.WebServer, name: str, on_end: Callable[[], None]
) -> AsyncGenerator[SseLink]:
    """Hold a connection to a server open.

    Must be entered and left by one task. However the block is left, the end is bounded.
    """
    client = server.open_client()
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield SseLink(server, client, name, on_end, nursery)
            finally:
                nursery.cancel_scope.cancel()
    finally:
        with closing_scope(_POOL_TIMEOUT):
            await client.aclose()
