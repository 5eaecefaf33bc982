"""From a server's bytes to messages: framing and parsing, pure, bounded.

A line that is no message is skipped, never raised; but one that can be told to
be the broken answer to a request becomes an error answer, since its caller
would wait for ever.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

import attrs
import mcp_types as m
from mcp_types.jsonrpc import JSONRPCMessage, jsonrpc_message_adapter

import trio_runner_adapters.mcp._convert as convert

_EXCERPT: Final = 200
_HEAD: Final = 256

#: The beginning of an answer as servers write it: the id is known, whatever follows.
_ANSWER: Final = re.compile(
    rb'\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,18})\s*,\s*"(?:result|error)"\s*:'
)


@attrs.frozen
class Garbage:
    """A line that is no message: why, and its beginning."""

    reason: str
    excerpt: str


@attrs.frozen
class Oversized:
    """Stands for a line that was longer than allowed and was thrown away as it came."""

    head: bytes
    limit_bytes: int


class LineSplitter:
    """Cuts a stream of bytes into lines, holding at most one line of ``limit_bytes``.

    What a longer line holds is dropped as it comes; an `Oversized` takes its place.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        #: What came after the last line break.
        self._buffer = bytearray()
        #: How far ``_buffer`` was searched for a line break already.
        self._searched = 0
        #: The head of an oversized line whose end has not come yet.
        self._dropping: bytes | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes; then call `next_line` until it returns None."""
        self._buffer += data

    def next_line(self) -> bytes | Oversized | None:
        """Return the next whole line without its break, or None when more bytes are needed."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            if self._searched > self._limit_bytes or self._dropping is not None:
                self._drop(len(self._buffer))
            return None
        if self._dropping is not None or end > self._limit_bytes:
            self._drop(end + 1)
            head, self._dropping = cast("bytes", self._dropping), None
            return Oversized(head, self._limit_bytes)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def rest(self) -> bytes:
        """Return what was left without a line break when the stream ended."""
        return bytes(self._buffer)

    def _drop(self, length: int) -> None:
        if self._dropping is None:
            self._dropping = bytes(self._buffer[:_HEAD])
        del self._buffer[:length]
        self._searched = 0


def parse(line: bytes | Oversized) -> JSONRPCMessage | Garbage:
    """Return the message in ``line``, or what is wrong with it. Never raises."""
    match line:
        case Oversized():
            reason = f"a line of more than {line.limit_bytes} bytes"
            return _broken_answer(line.head, reason) or Garbage(reason, _excerpt(line.head))
        case bytes():
            pass
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    # The slow way, for what strict JSON refuses though it can be understood:
    # lone surrogates, bytes that are not UTF-8.
    if not line.strip():
        return Garbage("a blank line", "")
    try:
        value = convert.valid_json(json.loads(line.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        reason = "not JSON"
        return _broken_answer(line[:_HEAD], reason) or Garbage(reason, _excerpt(line))
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValueError:
        pass
    reason = "JSON, but no message"
    return _broken_object(value, reason) or Garbage(reason, _excerpt(line))


def _excerpt(line: bytes) -> str:
    return line[:_EXCERPT].decode("utf-8", "replace")


def _broken_answer(head: bytes, reason: str) -> m.JSONRPCError | None:
    found = _ANSWER.match(head)
    return None if found is None else _error_answer(int(found[1]), reason)


def _broken_object(value: Any, reason: str) -> m.JSONRPCError | None:
    if type(value) is not dict:
        return None
    fields = cast("dict[str, Any]", value)
    answer = "method" not in fields and ("result" in fields or "error" in fields)
    if answer and type(fields.get("id")) in (int, str):
        return _error_answer(fields["id"], reason)
    return None


def _error_answer(request_id: int | str, reason: str) -> m.JSONRPCError:
    message = f"the server's answer was malformed: {reason}"
    return m.JSONRPCError(
        jsonrpc="2.0", id=request_id, error=m.ErrorData(code=m.INTERNAL_ERROR, message=message)
    )
