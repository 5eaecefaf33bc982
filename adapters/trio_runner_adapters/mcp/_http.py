"""A server at a URL, spoken to by the streamable HTTP transport.

Why not the SDK's own transport, beside which this one stands: one POST whose
connection breaks ends its whole client and cancels everybody else's calls; an
answer as JSON has no limit; one notification that is not answered holds up
everything that is sent after it; an answer that strict JSON refuses leaves its call
waiting or fails it; and it throws four half-used generators away with each answer
that is a stream, of which trio warns.

Each request is a task of its own and ends in one answer to the SDK: the server's,
or an error that says what is known of the request (`errors.Loss`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs
import httpx2
import mcp_types as m
import trio
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._events as events
import trio_runner_adapters.mcp._lines as lines
import trio_runner_adapters.mcp._streams as streams
import trio_runner_adapters.mcp._web as web
import trio_runner_adapters.mcp._wire as wires
from trio_runner_adapters._finishing import closing_scope

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Seconds until a stream that broke is asked for again, unless the server says otherwise.
_RETRY: Final = 1.0
#: The least of it: a server that ends its streams at once must not keep us busy.
_LEAST_RETRY: Final = 0.05
#: The most that it becomes for the stream in which a server speaks when it wants to.
_LONGEST_RETRY: Final = 60.0
_OK: Final = 200
#: How a server says that it has no such stream, or that the session is over.
_NO_STREAM: Final = (404, 405, 501)
#: Attempts in a row to get a stream back, and in all for one request.
_ATTEMPTS: Final = 3
_MAX_RESUMPTIONS: Final = 100
#: Seconds that a stream may take to end after its answer, so that its connection is used again.
#: Not without TLS: there a new connection costs less than what a used one often waits for, the
#: 40 ms of a delayed acknowledgement, at a server that does not switch off Nagle's algorithm.
_LINGER: Final = 0.2
#: Seconds that the server may take for a message that has no answer.
_NOTICE_TIMEOUT: Final = 30.0
#: Seconds that a request which was taken back may still hold its connection.
_TAKEN_BACK_TIMEOUT: Final = 10.0
#: The pool has closed its sockets long before.
_POOL_TIMEOUT: Final = 1.0


#: What a stream that was away may not have told.
_CHANGED: Final = m.JSONRPCNotification(
    jsonrpc="2.0", method="notifications/tools/list_changed", params=None
)


@attrs.define(eq=False)
class _Post:
    """A request that is under way."""

    scope: trio.CancelScope
    #: Whether closing its connection is what cancels it.
    modern: bool


@attrs.define(eq=False)
class _Place:
    """Where a stream of events stands."""

    last_id: str | None = None
    retry: float = _RETRY
    answered: bool = False
    #: Whether something may have been said since the stream before it.
    has_gap: bool = False
    #: Answers in it that bore the id of another request.
    strays: int = 0


class HttpLink(web.WebLink):
    """One session with one server; made by `serve`. As a transport it hands out its streams."""

    def __init__(
        self,
        server: web.WebServer,
        client: httpx2.AsyncClient,
        name: str,
        on_end: Callable[[], None],
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(server, client, name, on_end, nursery)
        self._linger = _LINGER if server.url.startswith("https:") else 0.0
        #: What the server calls the session, in the older protocol.
        self._session_id: str | None = None
        #: The protocol version that requests name; known from what the SDK stamps on them.
        self._version: str | None = None
        #: Requests under way, by their id.
        self._posts: dict[m.RequestId, _Post] = {}

    # --- the transport the SDK sees ---

    async def __aenter__(self) -> tuple[streams.Inbox, streams.Outbox]:
        """Hand out the streams. No checkpoint."""
        return self._inbox, streams.Outbox(self._submit)

    async def how_it_ended(self) -> str:
        """Return nothing: the error says it all. No checkpoint."""
        return ""

    async def _submit(self, item: SessionMessage) -> None:
        """Send one message. Serialised here, so that a bad value is its sender's error."""
        message = item.message
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        headers = self._headers_for(item)
        match message:
            case m.JSONRPCRequest(id=request_id):
                post = _Post(trio.CancelScope(), self._version in MODERN_PROTOCOL_VERSIONS)
                self._posts[coerce_request_id(request_id)] = post
                self._nursery.start_soon(self._ask, message, body, headers, post)
            case m.JSONRPCNotification(method="notifications/initialized"):
                # The server must have it before the first request.
                await self._tell(body, headers)
                self._nursery.start_soon(self._hear)
            case _ if (taken_back := wires.cancelled_id(message)) is not None:
                self._take_back(taken_back, body, headers)
            case _:
                self._nursery.start_soon(self._tell, body, headers)
        await trio.lowlevel.checkpoint()

    def _headers_for(self, item: SessionMessage) -> dict[str, str]:
        stamped: Mapping[str, str] = {}
        match item.metadata:
            case ClientMessageMetadata(headers=dict() as given):
                stamped = given
            case _:
                pass
        match item.message:
            case m.JSONRPCRequest(method="initialize"):
                self._version = None  # what a question before it named is not agreed on
            case _:
                self._version = stamped.get(web.PROTOCOL_VERSION, self._version)
        return {**self._own_headers(), **stamped}

    def _own_headers(self) -> dict[str, str]:
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        if self._session_id is not None:
            headers[web.SESSION_ID] = self._session_id
        if self._version is not None:
            headers[web.PROTOCOL_VERSION] = self._version
        return headers

    def _take_back(self, request_id: m.RequestId, body: bytes, headers: dict[str, str]) -> None:
        post = self._posts.get(request_id)
        if post is not None and post.modern:
            post.scope.cancel()
        elif post is not None or self._version not in MODERN_PROTOCOL_VERSIONS:
            self._nursery.start_soon(self._tell, body, headers)
            if post is not None:
                # Nobody waits for the answer; a server that never gives one keeps no socket.
                post.scope.deadline = trio.current_time() + _TAKEN_BACK_TIMEOUT

    # --- its tasks ---

    @trio.lowlevel.enable_ki_protection
    async def _ask(
        self, request: m.JSONRPCRequest, body: bytes, headers: dict[str, str], post: _Post
    ) -> None:
        """See one request through to its one answer."""
        key = coerce_request_id(request.id)
        try:
            with post.scope:
                place = _Place()
                try:
                    await self._exchange(request, body, headers, place)
                except Exception as error:  # noqa: BLE001 - border: the HTTP library, an ``auth``
                    if not place.answered:
                        await self._fail(request, web.as_error(error))
        finally:
            if self._posts.get(key) is post:
                del self._posts[key]

    async def _exchange(
        self, request: m.JSONRPCRequest, body: bytes, headers: dict[str, str], place: _Place
    ) -> None:
        async with web.requested(
            self._client, "POST", self._server.url, headers=headers, content=body
        ) as response:
            if response.status_code == 202:
                raise web.WebError(
                    "it took the request (HTTP status 202) and gives no answer to it",
                    loss=errors.Loss.UNKNOWN,
                )
            if not response.is_success:
                has_session = web.SESSION_ID in headers
                refused = await web.refusal(
                    response, request_id=request.id, has_session=has_session
                )
                await self._fail(request, refused)
                return
            if request.method == "initialize":
                self._session_id = response.headers.get(web.SESSION_ID)
            match _kind(response):
                case "application/json":
                    answer = await web.body_of(response, self._server.max_message_bytes)
                    parsed = lines.parse(answer)
                    await self._take(parsed, request, place)
                    if not place.answered:
                        await self._fail(
                            request, web.error_without_id(answer) or _no_answer(parsed)
                        )
                    return
                case "text/event-stream":
                    await self._follow(response, request, place)
                case kind:
                    raise web.WebError(f"it answered with {kind[:100]!r}; expected JSON or events")
        if not place.answered:
            await self._resume(request, place)

    async def _follow(
        self, response: httpx2.Response, request: m.JSONRPCRequest | None, place: _Place
    ) -> None:
        """Take the events of a stream until it ends; soon after the answer in any case."""
        splitter = events.EventSplitter(self._server.max_message_bytes)
        with trio.CancelScope() as lingering:
            try:
                async with web.chunks_of(response) as chunks:
                    async for chunk in chunks:
                        splitter.feed(chunk)
                        while (event := splitter.next_event()) is not None:
                            if not place.answered:
                                await self._event(event, request, place)
                        if place.answered and lingering.deadline == float("inf"):
                            lingering.deadline = trio.current_time() + self._linger
            except (httpx2.TransportError, OSError) as error:
                # It may go on in another stream; if not, the request's end says it.
                _log.debug("MCP server %r: a stream broke: %s", self._name, errors.said(error))

    async def _event(
        self, event: events.Event, request: m.JSONRPCRequest | None, place: _Place
    ) -> None:
        place.last_id = event.id or place.last_id
        place.retry = place.retry if event.retry is None else max(event.retry, _LEAST_RETRY)
        if event.kind != "message" or event.data == b"":
            return
        await self._take(lines.parse(event.data), request, place)
        if request is None or place.answered or type(event.data) is not bytes:
            return
        # In the stream of a request an error without an id can only mean the request.
        if (error := web.error_without_id(event.data)) is not None:
            await self._answer(request, error, place)

    async def _take(
        self,
        parsed: tuple[lines.Parsed, ...],
        request: m.JSONRPCRequest | None,
        place: _Place,
    ) -> None:
        """Hand messages on; an answer with another id than ``request`` has is not its answer."""
        for each in parsed:
            match each:
                case lines.Garbage(reason=reason, excerpt=excerpt):
                    _log.warning(
                        "MCP server %r sent what is no message (%s), skipped: %r",
                        self._name,
                        reason,
                        excerpt,
                    )
                case lines.LostAnswer(reason=reason):
                    if request is not None and not place.answered:
                        await self._answer(request, _malformed(reason), place)
                case m.JSONRPCError() | m.JSONRPCResponse() if not _may_answer(each, request):
                    self._skip(each, place)
                case m.JSONRPCError(error=error) if request is not None:
                    await self._answer(request, error, place)
                case m.JSONRPCResponse(result=result) if request is not None:
                    await self._answer(request, result, place)
                case message:
                    await self._inbox.put(message)

    def _skip(self, stray: m.JSONRPCError | m.JSONRPCResponse, place: _Place) -> None:
        place.strays += 1
        if place.strays == 1:  # a server that floods us floods no log
            _log.warning(
                "MCP server %r answered another request (id %s) in the place of this one's "
                "answer, skipped",
                self._name,
                errors.shortened(repr(stray.id), 100),
            )

    async def _answer(
        self, request: m.JSONRPCRequest, outcome: dict[str, object] | m.ErrorData, place: _Place
    ) -> None:
        if place.answered:
            return
        place.answered = True
        match outcome:
            case m.ErrorData():
                await self._fail(request, outcome)
            case _:
                answer = m.JSONRPCResponse(jsonrpc="2.0", id=request.id, result=outcome)
                await self._inbox.put(answer)

    async def _fail(self, request: m.JSONRPCRequest, error: m.ErrorData) -> None:
        await self._inbox.put(m.JSONRPCError(jsonrpc="2.0", id=request.id, error=error))

    async def _resume(self, request: m.JSONRPCRequest, place: _Place) -> None:
        """Ask for the rest of a stream that ended without the answer, where that can be had."""
        failures = 0
        for _ in range(_MAX_RESUMPTIONS):
            if place.last_id is None or failures == _ATTEMPTS:
                break
            await trio.sleep(place.retry)
            failures = 0 if await self._more(request, place) == _OK else failures + 1
            if place.answered:
                return
        raise web.WebError("the stream ended without the answer", loss=errors.Loss.UNKNOWN)

    async def _more(self, request: m.JSONRPCRequest | None, place: _Place) -> int:
        """Follow one more stream; return the HTTP status, 0 for none."""
        headers = self._own_headers() | {"accept": "text/event-stream"}
        if place.last_id is not None:
            headers[web.LAST_EVENT_ID] = place.last_id
        try:
            async with web.requested(
                self._client, "GET", self._server.url, headers=headers
            ) as response:
                if response.status_code == _OK and _kind(response) != "text/event-stream":
                    return 0
                if response.status_code == _OK:
                    if place.has_gap:
                        await self._inbox.put(_CHANGED)
                    await self._follow(response, request, place)
                return response.status_code
        except Exception as error:  # noqa: BLE001 - border: the HTTP library, an ``auth``
            _log.debug("MCP server %r: no stream: %s", self._name, errors.said(error))
            return 0

    @trio.lowlevel.enable_ki_protection
    async def _hear(self) -> None:
        """Hold the stream open in which an older server speaks when it wants to."""
        if self._session_id is None:
            return
        place, pause = _Place(), _RETRY
        while True:
            status = await self._more(None, place)
            if status in _NO_STREAM:
                return
            # What was said meanwhile is lost, unless the stream goes on where it stood.
            place.has_gap = place.last_id is None
            pause = max(place.retry, _RETRY) if status == _OK else min(2 * pause, _LONGEST_RETRY)
            await trio.sleep(pause)

    @trio.lowlevel.enable_ki_protection
    async def _tell(self, body: bytes, headers: dict[str, str]) -> None:
        """Send a message that has no answer; what becomes of it concerns nobody."""
        try:
            with trio.move_on_after(_NOTICE_TIMEOUT):
                async with web.requested(
                    self._client, "POST", self._server.url, headers=headers, content=body
                ):
                    pass
        except Exception as error:  # noqa: BLE001 - border: the HTTP library, an ``auth``
            _log.debug("MCP server %r: a notice was lost: %s", self._name, errors.said(error))

    # --- its end ---

    async def end_session(self) -> None:
        """Tell the server that the session is over; the caller bounds it."""
        if self._session_id is None:
            return
        try:
            async with web.requested(
                self._client, "DELETE", self._server.url, headers=self._own_headers()
            ):
                pass
        except Exception as error:  # noqa: BLE001 - border: the HTTP library, an ``auth``
            _log.debug("MCP server %r: it was not told the end: %s", self._name, error)


def _kind(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _may_answer(
    message: m.JSONRPCError | m.JSONRPCResponse, request: m.JSONRPCRequest | None
) -> bool:
    """Whether it answers ``request``; in a stream of no request it may answer any."""
    if request is None:
        return True
    found = message.id
    return found is not None and coerce_request_id(found) == coerce_request_id(request.id)


def _no_answer(parsed: tuple[lines.Parsed, ...]) -> m.ErrorData:
    match parsed[0]:
        case lines.Garbage(reason=reason):
            return _malformed(reason)
        case _:
            return _malformed("it is no answer to the request")


def _malformed(reason: str) -> m.ErrorData:
    return m.ErrorData(
        code=m.INTERNAL_ERROR, message=f"the server's answer was malformed: {reason}"
    )


@asynccontextmanager
async def serve(
    server: web.WebServer, name: str, on_end: Callable[[], None]
) -> AsyncGenerator[HttpLink]:
    """Speak to a server, and end the session when the block is left.

    Must be entered and left by one task. However the block is left, cancelled too,
    the end takes at most ``close_timeout``.
    """
    client = server.open_client()
    link: HttpLink | None = None
    try:
        async with trio.open_nursery() as nursery:
            link = HttpLink(server, client, name, on_end, nursery)
            try:
                yield link
            finally:
                nursery.cancel_scope.cancel()
    finally:
        if link is not None:
            with closing_scope(server.close_timeout):
                await link.end_session()
        with closing_scope(_POOL_TIMEOUT):
            await client.aclose()
