"""What can go wrong with a server as a whole, and texts made safe to show."""

from __future__ import annotations

import enum
from typing import cast

import mcp
import mcp_types as m
import pydantic

import trio_runner as tr


class McpServerError(tr.TrioRunnerError):
    """An MCP server could not be started, or is gone.

    Attributes:
      server: the name of the toolset.
    """

    def __init__(self, server: str, message: str) -> None:
        super().__init__(f"MCP server {server!r} {message}")
        self.server = server


class Loss(enum.Enum):
    """What is known of a request that gets no answer; the ``data`` of the error it gets.

    No server can send one: what comes over the wire is JSON.
    """

    #: It certainly did not reach the server.
    NOT_SENT = "not_sent"
    #: The server refused it because it no longer knows the session.
    FORGOTTEN = "forgotten"
    #: The server may have received it, and no answer will come.
    UNKNOWN = "unknown"


def is_end(error: mcp.MCPError) -> bool:
    """Whether a request got ``error`` because its connection ended, as the SDK says it.

    The code is also the first that servers use for errors of their own; the text is the SDK's.
    """
    told = error.error
    return (
        told.code == m.CONNECTION_CLOSED
        and told.message == "Connection closed"
        and type(told.data) is not Loss
    )


def shortened(text: str, limit: int = 1000) -> str:
    """Return ``text`` with at most about ``limit`` characters: its head and its tail."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ... ({len(text)} characters) ... {text[-half:]}"


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside a group, however deep, or the error itself.

    The SDK's errors arrive up to two groups deep.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for inner in group.exceptions for leaf in leaves(inner)]
    return [error]


def said(error: BaseException) -> str:
    """Return one bounded line that says what ``error`` is; never empty."""
    match error:
        case BaseExceptionGroup():
            return "; ".join([said(leaf) for leaf in leaves(error)[:3]])
        case mcp.MCPError():
            text = error.error.message.strip() or "no message"
            return shortened(f"{text} (code {error.error.code})")
        case pydantic.ValidationError():
            # pydantic's own text quotes the whole input; the first fault is enough.
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return shortened(f"{first['msg']} at {where or 'the top'}")
        case _:
            try:
                text = str(error).strip()
            except Exception:  # noqa: BLE001 - border: a foreign error whose text cannot be had
                text = ""
            return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)
