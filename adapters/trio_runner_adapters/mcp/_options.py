"""What the constructors of a toolset take: checks, and the means to reach each kind of server.

What may live here: an argument is right or an error says what was found and what
was expected; and one `connections.Connector` for each transport.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import attrs
import httpx2
from mcp.server import MCPServer, Server
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner_adapters.mcp._connection as connections
import trio_runner_adapters.mcp._memory as memory
import trio_runner_adapters.mcp._names as names
import trio_runner_adapters.mcp._stdio as stdio
import trio_runner_adapters.mcp._web as web

#: What a header may be called: a token of HTTP.
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

# --- arguments ------------------------------------------------------------------


def seconds(name: str, value: float) -> float:
    """Return a number of seconds above 0."""
    if type(value) not in (int, float):
        raise TypeError(f"{name} is {value!r}; expected a number of seconds")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a finite number of seconds above 0")
    return float(value)


def positive(name: str, value: int) -> int:
    """Return a whole number of at least 1."""
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}; expected a whole number")
    if value < 1:
        raise ValueError(f"{name} is {value!r}; expected at least 1")
    return value


def checked_stderr(value: stdio.StderrMode) -> stdio.StderrMode:
    """Return ``value`` if it is one of the three modes."""
    if value not in ("tail", "inherit", "discard"):
        raise ValueError(f"stderr is {value!r}; expected 'tail', 'inherit' or 'discard'")
    return value


def checked_mode(value: str) -> str:
    """Return ``value`` if the SDK knows it."""
    known = ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)
    if value not in known:
        raise ValueError(f"mode is {value!r}; expected one of {', '.join(known)}")
    return value


def checked_prefix(value: str | None) -> str | None:
    """Return ``value`` if it can stand before a tool's name."""
    if value is not None and (not value or names.clean(value) != value or len(value) > 32):
        raise ValueError(
            f"prefix is {value!r}; expected 1 to 32 characters of A-Z, a-z, 0-9, _ and -"
        )
    return value


def checked_flag(name: str, value: bool) -> bool:
    """Return ``value`` if it is True or False."""
    if type(value) is not bool:
        raise TypeError(f"{name} is {value!r}; expected True or False")
    return value


def _checked_url(value: str) -> str:
    if type(value) is not str:
        raise TypeError(f"url is {value!r}; expected text")
    try:
        usable = is_web_url(value)
    except (ValueError, httpx2.InvalidURL) as error:
        raise ValueError(f"url is {shown_url(value)!r}, which is none: {error}") from None
    if not usable:
        raise ValueError(f"url is {shown_url(value)!r}; expected http://... or https://...")
    return value


def is_web_url(value: str) -> bool:
    """Return whether ``value`` is a URL that can be asked by HTTP.

    Raises:
      ValueError, httpx2.InvalidURL: it is no URL at all; the text may quote it.
    """
    parts = urlsplit(value)
    usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    httpx2.URL(value)
    return usable


def shown_url(url: str) -> str:
    """Return ``url`` without what may be secret in it: the user's part, query and fragment."""
    head, slashes, rest = url.partition("#")[0].partition("?")[0].rpartition("//")
    authority, slash, path = rest.partition("/")
    return f"{head}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def _checked_headers(value: Mapping[str, str] | None) -> dict[str, str]:
    given: object = value
    match given:
        case None:
            return {}
        case Mapping():
            pass
        case _:
            raise TypeError(f"headers is a {type(given).__name__}; expected a mapping of texts")
    checked: dict[str, str] = {}
    for name, text in cast("Mapping[object, object]", given).items():
        if type(name) is not str or type(text) is not str:
            # Not shown: a header is where secrets are.
            raise TypeError(f"headers[{name!r}] is a {type(text).__name__}; expected text")
        if not _HEADER_NAME.fullmatch(name) or any(part in text for part in "\r\n\0"):
            raise ValueError(f"headers[{name!r}] cannot be sent; expected one line under a name")
        checked[name] = text
    return checked


def _checked_auth(value: web.Auth | None) -> web.Auth | None:
    match value:
        case None | httpx2.Auth() | (str(), str()):
            return value
        case _:
            raise TypeError(
                f"auth is a {type(value).__name__}; expected an httpx2.Auth, such as the SDK's "
                "OAuthClientProvider, or a pair of user name and password"
            )


def web_server(
    url: str,
    *,
    headers: Mapping[str, str] | None,
    auth: web.Auth | None,
    max_message_bytes: int,
    close_timeout: float,
) -> web.WebServer:
    """Return how to reach a URL."""
    return web.WebServer(
        url=_checked_url(url),
        headers=_checked_headers(headers),
        auth=_checked_auth(auth),
        max_message_bytes=positive("max_message_bytes", max_message_bytes),
        close_timeout=seconds("close_timeout", close_timeout),
    )


def web_name(url: str) -> str:
    """Return what to call the server at ``url``: its host and port."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


# --- one connector for each transport -------------------------------------------


@attrs.frozen
class StdioConnector:
    """A process."""

    command: stdio.StdioCommand

    @property
    def close_timeout(self) -> float:
        """The seconds that ending its group may take."""
        return self.command.close_timeout

    def connect(
        self, name: str, on_end: connections.OnEnd
    ) -> AbstractAsyncContextManager[connections.Link]:
        """Start it."""
        return stdio.serve(self.command, name, on_end)


@attrs.frozen
class WebConnector:
    """A URL, by one of the two transports over HTTP."""

    server: web.WebServer
    serve: Callable[
        [web.WebServer, str, connections.OnEnd], AbstractAsyncContextManager[connections.Link]
    ]

    @property
    def close_timeout(self) -> float:
        """The seconds that ending the session may take."""
        return self.server.close_timeout

    def connect(
        self, name: str, on_end: connections.OnEnd
    ) -> AbstractAsyncContextManager[connections.Link]:
        """Begin a session, or open the stream."""
        return self.serve(self.server, name, on_end)


@attrs.frozen
class MemoryConnector:
    """A server object in this process."""

    server: memory.AnyServer
    close_timeout: float

    def connect(
        self, name: str, on_end: connections.OnEnd
    ) -> AbstractAsyncContextManager[connections.Link]:
        """Run the server beside its client."""
        return memory.serve(self.server)


def stdio_command(
    command: str | os.PathLike[str],
    args: Sequence[str],
    *,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    stderr: stdio.StderrMode,
    max_message_bytes: int,
    close_timeout: float,
) -> stdio.StdioCommand:
    """Return how to start a process."""
    if type(args) is str:
        raise TypeError(f"args is the text {args!r}; expected a sequence of arguments")
    return stdio.StdioCommand(
        command=os.fspath(command),
        args=tuple([os.fspath(arg) for arg in args]),
        env=None if env is None else dict(env),
        cwd=cwd,
        stderr=checked_stderr(stderr),
        max_message_bytes=positive("max_message_bytes", max_message_bytes),
        close_timeout=seconds("close_timeout", close_timeout),
    )


def program_name(command: str | os.PathLike[str]) -> str:
    """Return what to call the server that ``command`` starts."""
    return Path(os.fspath(command)).name


def checked_server(value: memory.AnyServer) -> memory.AnyServer:
    """Return ``value`` if it is a server of the SDK."""
    given: object = value
    match given:
        case MCPServer() | Server():
            return value
        case _:
            raise TypeError(
                f"server is a {type(given).__name__}; expected an MCPServer or a Server of the "
                "mcp SDK"
            )
