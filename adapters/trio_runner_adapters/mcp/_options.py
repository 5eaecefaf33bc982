"""What the constructors of a toolset take: checks, and the means to reach each kind of server.

What may live here: an argument is right or an error says what was found and what
was expected; and one `connections.Connector` for each transport.
"""

from __future__ import annotations

import functools
import math
import os
import re
import ssl
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
    if (problem := url_problem(value)) is not None:
        raise ValueError(f"url is {shown_url(value)!r}, which {problem}")
    return value


def url_problem(value: str) -> str | None:
    """Say what is wrong with a URL that HTTP is to ask, without any part of it; None: nothing."""
    wanted = "expected http://... or https://..."
    try:
        parts = urlsplit(value)
        port, host = parts.port, parts.hostname
        httpx2.URL(value)
    except (ValueError, httpx2.InvalidURL):
        # What these say may quote it.
        return f"is no usable URL; {wanted}"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return f"is no usable URL; {wanted}"
    return None


def argument_problem(value: str) -> str | None:
    """Say why a program cannot be given ``value``, without showing it; None: it can."""
    if "\0" in value:
        return "holds a NUL character; expected text that a program can be given"
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return "holds a character that cannot be encoded; expected text"
    return None


def path_problem(value: str) -> str | None:
    """Say why ``value`` can be no path, without showing it; None: it can."""
    return argument_problem(value) if value else "is empty; expected a path"


def variable_problem(name: str, value: str) -> str | None:
    """Say why a process cannot have the variable ``name``, without its value; None: it can."""
    if not name or "=" in name:
        return "has a name that no variable can have; expected one without '='"
    return argument_problem(name) or argument_problem(value)


def header_problem(name: str, value: str) -> str | None:
    """Say why a header cannot be sent, without its value; None: it can."""
    if not _HEADER_NAME.fullmatch(name):
        return "cannot be sent: its name is none of HTTP's"
    if any(part in value for part in "\r\n\0") or value.strip(" \t") != value:
        return "cannot be sent; expected one line without blanks at its ends"
    return None if value.isascii() else "cannot be sent; expected ASCII"


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
        if (problem := header_problem(name, text)) is not None:
            raise ValueError(f"headers[{name!r}] {problem}")
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


def _checked_verify(value: ssl.SSLContext | None) -> Callable[[], ssl.SSLContext]:
    given: object = value
    match given:
        case None:
            return functools.cache(httpx2.create_ssl_context)  # when first connected
        case ssl.SSLContext():
            return lambda: given
        case _:  # nor True or False, as with httpx: no word switches the check off
            raise TypeError(
                f"verify is a {type(given).__name__}; expected an ssl.SSLContext, such as "
                "ssl.create_default_context(cafile=...), or None for the usual authorities"
            )


def web_server(
    url: str,
    *,
    headers: Mapping[str, str] | None,
    auth: web.Auth | None,
    verify: ssl.SSLContext | None,
    max_message_bytes: int,
    close_timeout: float,
) -> web.WebServer:
    """Return how to reach a URL."""
    return web.WebServer(
        url=_checked_url(url),
        headers=_checked_headers(headers),
        auth=_checked_auth(auth),
        verify=_checked_verify(verify),
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
    args: Sequence[str | os.PathLike[str]],
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
        command=_checked_path("command", command),
        args=tuple([_checked_argument(f"args[{i}]", arg) for i, arg in enumerate(args)]),
        env=_checked_env(env),
        cwd=None if cwd is None else _checked_path("cwd", cwd),
        stderr=checked_stderr(stderr),
        max_message_bytes=positive("max_message_bytes", max_message_bytes),
        close_timeout=seconds("close_timeout", close_timeout),
    )


def _checked_path(name: str, value: str | os.PathLike[str]) -> str:
    path = _checked_argument(name, value)
    if (problem := path_problem(path)) is not None:
        raise ValueError(f"{name} {problem}")
    return path


def _checked_argument(name: str, value: str | os.PathLike[str]) -> str:
    """``value`` as text. It may be a secret, so that no error shows it."""
    given: object = os.fspath(value) if isinstance(value, os.PathLike) else value
    if type(given) is not str:
        raise TypeError(f"{name} is a {type(given).__name__}; expected text or a path of text")
    if (problem := argument_problem(given)) is not None:
        raise ValueError(f"{name} {problem}")
    return given


def _checked_env(value: Mapping[str, str] | None) -> dict[str, str] | None:
    if value is None:
        return None
    checked: dict[str, str] = {}
    for name, text in cast("Mapping[object, object]", value).items():
        if type(name) is not str or type(text) is not str:
            raise TypeError(f"env[{name!r}] is a {type(text).__name__}; expected text")
        if (problem := variable_problem(name, text)) is not None:
            raise ValueError(f"env[{name!r}] {problem}")
        checked[name] = text
    return checked


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
