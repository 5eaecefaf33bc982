"""Server-sent events cut out of bytes, however they come."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_runner_adapters.mcp._events import Event, EventSplitter
from trio_runner_adapters.mcp._lines import Oversized


def events_of(*chunks: bytes, limit: int = 1000) -> list[Event]:
    splitter = EventSplitter(limit)
    found: list[Event] = []
    for chunk in chunks:
        splitter.feed(chunk)
        while (event := splitter.next_event()) is not None:
            found.append(event)
    return found


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: x\n\n", Event("message", b"x")),
        (b"data:x\r\n\r\n", Event("message", b"x")),
        (b"data:  x\n\n", Event("message", b" x")),
        (b"\xef\xbb\xbfdata: x\n\n", Event("message", b"x")),
        (b"data: a\ndata: b\n\n", Event("message", b"a\nb")),
        (b"data\n\n", Event("message", b"")),
        (b"event: endpoint\ndata: /m?s=1\n\n", Event("endpoint", b"/m?s=1")),
        (b"id: 7\nretry: 250\ndata\n\n", Event("message", b"", "7", 0.25)),
        (b"retry: 999999999\n\n", Event("message", b"", None, 60.0)),
        (b": ping\n\ndata: x\n\n", Event("message", b"x")),
        (b"retry: soon\nid: a\0b\nother: 1\ndata: x\n\n", Event("message", b"x")),
    ],
)
def test_one_event(raw: bytes, expected: Event) -> None:
    assert events_of(raw) == [expected]


def test_what_has_not_ended_is_no_event() -> None:
    assert events_of(b"data: x\n") == []


STREAM = (
    b"\xef\xbb\xbf: hello\n\ndata: one\nid: 1\n\nevent: e\r\ndata: two\r\ndata:\r\n\r\n"
    b"data: " + b"y" * 90 + b"\n\ndata: last\n\n"
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_events_do_not_depend_on_how_the_bytes_come(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in itertools.pairwise(places)]
    found = events_of(*chunks, limit=50)
    assert [each.kind for each in found] == ["message", "e", "message", "message"]
    assert [found[0].data, found[1].data, found[3].data] == [b"one", b"two\n", b"last"]
    assert type(found[2].data) is Oversized


@pytest.mark.parametrize(
    "raw",
    [
        b"data: head" + b"x" * 5000 + b"tail\n\n",
        b"data: head\n" + b"data: xxxxxxxx\n" * 500 + b"data: tail\n\n",
    ],
)
def test_an_event_that_is_too_long_keeps_its_two_ends(raw: bytes) -> None:
    (first, second) = events_of(raw, b"data: next\n\n", limit=1000)
    assert isinstance(first.data, Oversized)
    assert first.data.head.startswith(b"head")
    assert first.data.tail.endswith(b"tail")
    assert len(first.data.head) + len(first.data.tail) <= 512
    assert second.data == b"next"


@pytest.mark.parametrize("size", [999, 1000, 1001])
def test_the_limit_is_on_the_data_alone(size: int) -> None:
    (event,) = events_of(b"id: 1\ndata: " + b"x" * size + b"\n\n", limit=1000)
    assert (type(event.data) is bytes) == (size <= 1000)
