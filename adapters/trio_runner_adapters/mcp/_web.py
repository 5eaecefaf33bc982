"""HTTP as both transports use it: requests, bounded bodies, and what went wrong.

What may live here: what `_http` and `_sse` share. No message is interpreted here
beyond the error that an HTTP status stands for.
"""

from __future__ import annotations

import http
import re
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import attrs
import httpx2
import mcp_types as m
import trio
from mcp.shared.dispatcher import coerce_request_id
from mcp_types.jsonrpc import jsonrpc_message_adapter

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._streams as streams

#: Who we are to the server: what `httpx2.AsyncClient` takes as ``auth``.
Auth: TypeAlias = httpx2.Auth | tuple[str, str]

SESSION_ID: Final = "mcp-session-id"
PROTOCOL_VERSION: Final = "mcp-protocol-version"
LAST_EVENT_ID: Final = "last-event-id"

_MAX_REDIRECTS: Final = 5
#: How far an error's causes are followed.
_MAX_CAUSES: Final = 8
#: Bytes that are read of an answer which is an error.
_ERROR_BYTES: Final = 65536
#: Seconds to wait for a connection; how long an answer may take is the call's to say.
_CONNECT_TIMEOUT: Final = 30.0
_PLAIN: Final = ("", "identity")
#: What can be decoded, by the name of its encoding; more would need more than Python brings.
_WINDOW_BITS: Final = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
_ENCODINGS: Final = (*_PLAIN, *_WINDOW_BITS)
#: Bytes of the header of what is called deflate.
_HEADER_BYTES: Final = 2
#: Bytes that are made at a time of a compressed body, which could make very much of very little.
_INFLATED_BYTES: Final = 65536
#: A gateway that says this does not know what became of the request.
_GATEWAY_STATUSES: Final = (502, 504)
#: How a server says with status 400 that it does not know the session; any other word of a
#: session may be about one that its tool has, with a database for instance.
_BAD_SESSION: Final = re.compile(
    r"\b(?:no|valid|invalid|unknown|expired|missing) (?:mcp[ -])?session\b"
    r"|\bsession(?:[ -]?id)?(?: is| was| has)? (?:not found|unknown|invalid|expired|terminated)\b",
    re.IGNORECASE,
)
_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.LocalProtocolError,
    httpx2.UnsupportedProtocol,
)


@attrs.frozen
class WebServer:
    """How to reach a server.

    Attributes:
      url: of its endpoint.
      headers: sent with each request.
      verify: gives whom to trust over TLS: the same context to all sessions, one after the
        other, since making one takes some ten milliseconds of CPU.
    """

    url: str
    headers: Mapping[str, str]
    auth: Auth | None
    verify: Callable[[], ssl.SSLContext]
    max_message_bytes: int
    close_timeout: float

    def open_client(self) -> httpx2.AsyncClient:
        """Return a client; `aclose` it. No checkpoint."""
        return httpx2.AsyncClient(
            headers={"accept-encoding": "identity", **self.headers},
            auth=self.auth,
            verify=self.verify(),
            timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT),
            # A call waits for nobody: a server that never ends its answers must not hold up others.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )


class WebLink:
    """What the links of both transports are made of, and how they are left.

    Args:
      client: for all requests; whoever made it closes it.
      on_end: told when the link has ended by itself.
      nursery: of its tasks.
    """

    def __init__(
        self,
        server: WebServer,
        client: httpx2.AsyncClient,
        name: str,
        on_end: Callable[[], None],
        nursery: trio.Nursery,
    ) -> None:
        self._server = server
        self._client = client
        self._name = name
        self._nursery = nursery
        self._inbox = streams.Inbox(on_end)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Do nothing: who serves the link ends it."""

    def last_words(self) -> str:
        """Return nothing: there is no side channel."""
        return ""


class WebError(Exception):
    """A request got no usable answer. ``data`` says what that means for it."""

    def __init__(self, message: str, *, loss: errors.Loss | None = None, code: int = 0) -> None:
        super().__init__(message)
        self.error = m.ErrorData(code=code or m.INTERNAL_ERROR, message=message, data=loss)


def as_error(error: Exception) -> m.ErrorData:
    """Return what a request is answered with that ended in ``error``."""
    match error:
        case WebError():
            return error.error
        case httpx2.TransportError() if isinstance(error, _NOT_SENT):
            loss, text = errors.Loss.NOT_SENT, "it cannot be reached"
        case httpx2.TransportError() | OSError():
            loss, text = errors.Loss.UNKNOWN, "the connection broke"
        case _:
            # From an ``auth``, which works before the request or after it was refused.
            loss, text = None, "the request failed"
    message = f"{text}: {errors.said(_telling(error))}"
    return m.ErrorData(code=m.INTERNAL_ERROR, message=message, data=loss)


def _telling(error: BaseException) -> BaseException:
    """Return the first of ``error`` and its causes that has a text.

    What the HTTP library makes of a certificate that it does not trust, for instance, says
    nothing; the cause of its cause does.
    """
    link: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if link is None:
            break
        if errors.said(link) != type(link).__name__:
            return link
        link = link.__cause__ or link.__context__
    return error


@asynccontextmanager
async def requested(
    client: httpx2.AsyncClient,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> AsyncGenerator[httpx2.Response]:
    """Send a request and hold its answer open; the body is not read yet.

    A redirect is followed only within the server's origin, since the headers are meant
    for that, and only when it keeps the method and the body.
    """
    request = client.build_request(method, url, headers=dict(headers or {}), content=content)
    if request.url.scheme == "https":
        request.extensions["trace"] = _Handshake()
    for _ in range(_MAX_REDIRECTS):
        response = await client.send(request, stream=True, follow_redirects=False)
        following = response.next_request
        if following is None or not _may_follow(request, following):
            break
        await response.aclose()
        request = following
    else:
        raise WebError(f"it redirects more than {_MAX_REDIRECTS} times")
    try:
        yield response
    finally:
        await response.aclose()


class _Handshake:
    """Closes the connection whose handshake a cancel has cut: the HTTP library forgets it."""

    def __init__(self) -> None:
        #: The connection while it has no TLS yet.
        self._bare: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Take what the library tells of each of its steps."""
        if event.endswith("connect_tcp.complete"):
            self._bare = info["return_value"]
        elif event.endswith("start_tls.complete"):
            self._bare = None
        elif event.endswith("start_tls.failed") and self._bare is not None:
            await self._bare.aclose()


def _may_follow(sent: httpx2.Request, following: httpx2.Request) -> bool:
    here, there = sent.url, following.url
    same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    secured = (here.scheme, there.scheme, here.port, there.port) == ("http", "https", None, None)
    return (
        following.method == sent.method
        and (same or (secured and here.host == there.host))
        and there.userinfo in (b"", here.userinfo)
    )


@asynccontextmanager
async def chunks_of(response: httpx2.Response) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Give the chunks of a body; what is not taken is given up.

    The library's generators are left by running into a cancel, never at a yield: trio
    warns of each generator that is thrown away half-way.

    Raises:
      WebError: the body is compressed in a way that nobody asked for.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise WebError(f"it answered in the encoding {encoding[:50]!r}, which was not asked for")
    # Not `aiter_bytes`: data that cannot be decoded ends that one, and what it is fed by,
    # half-used, is out of reach.
    raw = response.aiter_raw()
    try:
        yield raw if encoding in _PLAIN else _Inflated(raw, encoding)
    finally:
        with trio.CancelScope() as scope:
            scope.cancel()
            with suppress(Exception):
                async for _ in raw:
                    pass


class _Inflated:
    """The chunks of a compressed body, each of at most 64 kB, however little it was made of.

    A `WebError` when they are not what the server says they are.
    """

    def __init__(self, raw: AsyncIterator[bytes], encoding: str) -> None:
        self._raw = raw
        self._encoding = encoding
        self._inflating = zlib.decompressobj(_WINDOW_BITS[encoding])
        #: What came before it was known whether there is a header: some send deflate without.
        self._head = b"" if encoding == "deflate" else None
        #: Whether the last chunk was as long as may be, so that there may be more to it.
        self._has_more = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while not self._inflating.eof:
            data = self._inflating.unconsumed_tail if self._has_more else await anext(self._raw)
            found = self._inflate(data)
            self._has_more = len(found) == _INFLATED_BYTES
            if found:
                return found
        raise StopAsyncIteration

    def _inflate(self, data: bytes) -> bytes:
        head, self._head = self._head, None
        try:
            found = self._inflating.decompress(data, _INFLATED_BYTES)
        except zlib.error as error:
            if head is None:
                raise WebError(
                    f"the server's answer was malformed: it is no {self._encoding}: {error}"
                ) from error
            self._inflating = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inflate(head + data)
        if head is not None and len(head + data) < _HEADER_BYTES:
            self._head = head + data
        return found


async def body_of(response: httpx2.Response, limit_bytes: int) -> bytes:
    """Return the whole body.

    Raises:
      WebError: it is longer than ``limit_bytes``; the rest was not read.
    """
    body = bytearray()
    async with chunks_of(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > limit_bytes:
                raise WebError(
                    f"the server's answer was malformed: it has more than {limit_bytes} bytes"
                )
    return bytes(body)


async def refusal(
    response: httpx2.Response, *, request_id: m.RequestId | None, has_session: bool
) -> m.ErrorData:
    """Return the error that an answer with a bad status stands for.

    A server that says the request's own id took the request up: it may have run the tool,
    so that its error is the answer, whatever status and words it has.
    """
    status = response.status_code
    if response.next_request is not None:
        place = response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
        text = f"it redirects to {place}, which is not followed; use that URL if it is meant"
        return m.ErrorData(code=m.INVALID_REQUEST, message=text)
    try:
        body = await body_of(response, _ERROR_BYTES)
    except WebError:
        body = b""
    message = _own_message(body)
    own = None if message is None else message.error
    is_answer = (
        message is not None
        and message.id is not None
        and request_id is not None
        and coerce_request_id(message.id) == coerce_request_id(request_id)
    )
    # The second is how some servers say it, among them those of the TypeScript SDK's examples.
    if (
        has_session
        and not is_answer
        and (status == 404 or (status == 400 and own is not None and _names_session(own.message)))
    ):
        text = "it no longer knows the session"
        return m.ErrorData(code=m.INVALID_REQUEST, message=text, data=errors.Loss.FORGOTTEN)
    if own is not None:
        return own
    loss = errors.Loss.UNKNOWN if status in _GATEWAY_STATUSES else None
    code = m.METHOD_NOT_FOUND if status == 404 else m.INTERNAL_ERROR
    text = f"it answered with HTTP status {status} {_phrase(status)}".rstrip()
    return m.ErrorData(code=code, message=text, data=loss)


def error_without_id(body: bytes) -> m.ErrorData | None:
    """Return the error that ``body`` is, if it names no request."""
    message = _own_message(body)
    return None if message is None or message.id is not None else message.error


def _own_message(body: bytes) -> m.JSONRPCError | None:
    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValueError:
        return None
    return message if type(message) is m.JSONRPCError else None


def _names_session(message: str) -> bool:
    return _BAD_SESSION.search(message) is not None


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""
