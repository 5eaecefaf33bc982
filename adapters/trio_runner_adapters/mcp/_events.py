"""From the bytes of a server-sent event stream to events: pure, bounded.

Why not the HTTP library's own reader: it works on text and raises at an event
that is too long, which ends the stream; here what is too long is dropped as it
comes, and the event still says what it can of itself.
"""

from __future__ import annotations

from typing import Final

import attrs

import trio_runner_adapters.mcp._lines as lines

#: Bytes that a line of an event may have beyond its data: ``data: `` and a line break.
_FIELD: Final = 16
#: Bytes of each end of an oversized event that are kept.
_KEPT: Final = 256
#: The longest wait for a new stream that a server may ask for, in seconds.
_MAX_RETRY: Final = 60.0
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


@attrs.frozen
class Event:
    """One event.

    Attributes:
      kind: ``message`` unless the server says something else.
      data: its data lines, joined; `lines.Oversized` when they were too long together.
      id: the id to go on from when the stream breaks, or None.
      retry: seconds to wait before that, or None.
    """

    kind: str
    data: bytes | lines.Oversized
    id: str | None = None
    retry: float | None = None


class EventSplitter:
    """Cuts a stream of bytes into events, holding at most about ``limit_bytes`` of one."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lines = lines.LineSplitter(limit_bytes + _FIELD)
        self._at_start = True
        self._kind = ""
        #: The data lines so far, and their bytes together.
        self._data: list[bytes] = []
        self._data_bytes = 0
        #: The two ends of data that is too long.
        self._dropping: tuple[bytes, bytes] | None = None
        self._id: str | None = None
        self._retry: float | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes; then call `next_event` until it returns None."""
        self._lines.feed(data)

    def next_event(self) -> Event | None:
        """Return the next whole event, or None when more bytes are needed."""
        while (line := self._lines.next_line()) is not None:
            match line:
                case lines.Oversized(head=head, tail=tail):
                    self._field(head, tail.removesuffix(b"\r"))
                case bytes():
                    line = line.removesuffix(b"\r")
                    if self._at_start:
                        line = line.removeprefix(_BYTE_ORDER_MARK)
                    if line:
                        self._field(line, None)
                    elif (event := self._whole()) is not None:
                        return event
            self._at_start = False
        return None

    def _whole(self) -> Event | None:
        data: bytes | lines.Oversized = b"\n".join(self._data)
        if self._dropping is not None:
            data = lines.Oversized(*self._dropping, self._limit_bytes)
        event = Event(self._kind or "message", data, self._id, self._retry)
        empty = not self._data and self._dropping is None and self._id is None
        self._data, self._data_bytes, self._dropping = [], 0, None
        self._kind, self._id, self._retry = "", None, None
        return None if empty and event.retry is None else event

    def _field(self, line: bytes, tail: bytes | None) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._take_data(value, tail)
            case b"event" if tail is None:
                self._kind = value.decode("utf-8", "replace")
            case b"id" if tail is None and b"\0" not in value:
                self._id = value.decode("utf-8", "replace")
            case b"retry" if value.isdigit() and len(value) < 10:
                self._retry = min(int(value) / 1000, _MAX_RETRY)
            case _:
                pass  # a comment, or a field that nobody knows

    def _take_data(self, value: bytes, tail: bytes | None) -> None:
        self._data_bytes += len(value) + 1
        if self._dropping is None and tail is None and self._data_bytes - 1 <= self._limit_bytes:
            self._data.append(value)
            return
        head, last = self._dropping or ((b"\n".join(self._data) or value)[:_KEPT], b"")
        self._dropping = head, (last + (value if tail is None else tail))[-_KEPT:]
        self._data = []
