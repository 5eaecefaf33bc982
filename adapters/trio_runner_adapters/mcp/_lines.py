"""From a server's bytes to messages: framing and parsing, pure, bounded.

A line that is no message is skipped, never raised; but one that can be told to
be the broken answer to a request becomes an error answer, since its caller
would wait for ever. When it does not say which request it answers, it is a
`LostAnswer`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias, cast

import attrs
import mcp_types as m
from mcp_types.jsonrpc import JSONRPCMessage, jsonrpc_message_adapter

import trio_runner_adapters.mcp._convert as convert

_EXCERPT: Final = 200
#: Bytes that are kept of each end of an oversized line.
_HEAD: Final = 256
_TAIL: Final = 256
#: Bytes in which an answer is looked for behind text that a program wrote before it.
_PREFIX: Final = 4096

_VERSION: Final = rb'"jsonrpc"\s*:\s*"[^"]{0,8}"'
_ID: Final = rb'"id"\s*:\s*"?(\d{1,18})(?:\.0)?"?'
#: The beginning of an answer. Servers write the three members in any order.
_ANSWER: Final = re.compile(
    rb"\s*(\{\s*(?:(?:" + _VERSION + rb"|" + _ID + rb')\s*,\s*)*"(?:result|error)"\s*:)'
)
#: The end of an answer whose id comes last, as the official TypeScript SDK has it.
_ANSWER_END: Final = re.compile(
    rb",\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb"\s*(?:,\s*" + _VERSION + rb"\s*)?\}\s*$"
)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@attrs.frozen
class Garbage:
    """A line that is no message: why, and its beginning."""

    reason: str
    excerpt: str


@attrs.frozen
class LostAnswer:
    """A broken answer that does not say to which request."""

    reason: str
    excerpt: str


@attrs.frozen
class Oversized:
    """Stands for a line that was longer than allowed and was thrown away as it came."""

    head: bytes
    tail: bytes
    limit_bytes: int


#: What a line can hold.
Parsed: TypeAlias = JSONRPCMessage | Garbage | LostAnswer


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
        #: The two ends of an oversized line, so far, whose line break has not come yet.
        self._dropping: tuple[bytes, bytes] | None = None

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
            head, tail = self._drop(end)
            del self._buffer[:1]
            self._dropping = None
            return Oversized(head, tail, self._limit_bytes)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return line

    def rest(self) -> bytes:
        """Return what was left without a line break when the stream ended."""
        return bytes(self._buffer)

    def _drop(self, length: int) -> tuple[bytes, bytes]:
        head, tail = self._dropping or (bytes(self._buffer[: min(length, _HEAD)]), b"")
        tail = (tail + self._buffer[max(0, length - _TAIL) : length])[-_TAIL:]
        del self._buffer[:length]
        self._searched = 0
        self._dropping = head, tail
        return head, tail


def parse(line: bytes | Oversized) -> tuple[Parsed, ...]:
    """Return the messages in ``line``, mostly one, or what is wrong with it. Never raises."""
    match line:
        case Oversized():
            return (_broken(line.head, line.tail, f"a line of more than {line.limit_bytes} bytes"),)
        case bytes():
            pass
    if not line or line.isspace():
        return (Garbage("a blank line", ""),)
    line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
        return (_checked(jsonrpc_message_adapter.validate_json(line, by_name=False)),)
    except ValueError:
        pass
    # The slow way, for what strict JSON refuses though it can be understood:
    # lone surrogates, bytes that are not UTF-8.
    try:
        value: Any = convert.valid_json(json.loads(line.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return _behind_text(line) or (_broken(line[:_HEAD], line[-_TAIL:], "not JSON"),)
    # A list is a batch, which protocol 2025-03-26 allows.
    if type(value) is list and value:
        return tuple([_from_value(each, line) for each in cast("list[Any]", value)])
    return (_from_value(cast("Any", value), line),)


def _behind_text(line: bytes) -> tuple[Parsed, ...] | None:
    """The answer at the end of a line that begins with text that is none of it, if there is one."""
    found = _ANSWER.search(line, 0, _PREFIX)
    if found is None or found.start(1) == 0:
        return None
    try:
        message = jsonrpc_message_adapter.validate_json(line[found.start(1) :], by_name=False)
    except ValueError:
        return None
    return Garbage("text before an answer", _excerpt(line[: found.start(1)])), _checked(message)


def _from_value(value: object, line: bytes) -> Parsed:
    reason = "JSON, but no message"
    if type(value) is not dict:
        return Garbage(reason, _excerpt(line))
    fields = cast("dict[str, Any]", value)
    request_id = fields.get("id")
    if type(request_id) is float and request_id.is_integer():
        fields = {**fields, "id": int(request_id)}
    try:
        return _checked(jsonrpc_message_adapter.validate_python(fields, by_name=False))
    except ValueError:
        pass
    # With an id and no method it can only be an answer, whatever else is missing.
    if "method" not in fields and type(fields.get("id")) in (int, str):
        return _error_answer(fields["id"], reason)
    return Garbage(reason, _excerpt(line))


def _checked(message: JSONRPCMessage) -> Parsed:
    """The message, unless it is an error that names no request."""
    match message:
        case m.JSONRPCError(id=None, error=error):
            said = f"{error.message[:_EXCERPT]} (code {error.code})"
            if error.code == m.PARSE_ERROR:
                # It refused a line of ours, and nobody can tell which.
                return LostAnswer(f"the server says: {said}", "")
            # Often a careless answer to a notification, for which nobody waits.
            return Garbage("an error without an id", said)
        case _:
            return message


def _excerpt(line: bytes) -> str:
    return line[:_EXCERPT].decode("utf-8", "replace")


def _broken(head: bytes, tail: bytes, reason: str) -> m.JSONRPCError | LostAnswer | Garbage:
    """What a line is that cannot be parsed, judged by its two ends."""
    found = _ANSWER.match(head)
    if found is None:
        return Garbage(reason, _excerpt(head))
    at_end = _ANSWER_END.search(tail)
    request_id = found[2] or (None if at_end is None else at_end[1])
    if request_id is None:
        return LostAnswer(reason, _excerpt(head))
    return _error_answer(int(request_id), reason)


def _error_answer(request_id: int | str, reason: str) -> m.JSONRPCError:
    message = f"the server's answer was malformed: {reason}"
    return m.JSONRPCError(
        jsonrpc="2.0", id=request_id, error=m.ErrorData(code=m.INTERNAL_ERROR, message=message)
    )
