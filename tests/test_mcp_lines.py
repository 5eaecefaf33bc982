"""Framing and parsing of what a server writes."""

import mcp_types as m
import pytest

import trio_runner_adapters.mcp._lines as lines


def parse(line: bytes | lines.Oversized) -> lines.Parsed:
    """The one thing that a line holds."""
    (parsed,) = lines.parse(line)
    return parsed


def split(chunks: list[bytes], limit_bytes: int = 1000) -> list[bytes | lines.Oversized]:
    splitter = lines.LineSplitter(limit_bytes)
    found: list[bytes | lines.Oversized] = []
    for chunk in chunks:
        splitter.feed(chunk)
        while (line := splitter.next_line()) is not None:
            found.append(line)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    data = b"one\n\ntwo\nthree\nrest"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert split(chunks) == [b"one", b"", b"two", b"three"]


def test_what_has_no_line_break_is_the_rest() -> None:
    splitter = lines.LineSplitter(1000)
    splitter.feed(b"a\nhalf")
    assert splitter.next_line() == b"a"
    assert splitter.next_line() is None
    assert splitter.rest() == b"half"


@pytest.mark.parametrize("size", [1, 4, 5, 50])
def test_a_line_over_the_limit_is_dropped_and_the_next_one_is_whole(size: int) -> None:
    data = b"ok\n" + b"x" * 30 + b"\nnext\n"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    first, oversized, following = split(chunks, limit_bytes=5)
    assert (first, following) == (b"ok", b"next")
    assert type(oversized) is lines.Oversized
    assert oversized.limit_bytes == 5
    assert oversized.head.startswith(b"xxxxx")
    assert oversized.tail.endswith(b"xxxxx")


def test_a_line_of_exactly_the_limit_passes() -> None:
    assert split([b"12345\n"], limit_bytes=5) == [b"12345"]


def test_an_oversized_line_is_not_kept_in_memory() -> None:
    splitter = lines.LineSplitter(10)
    for _ in range(100):
        splitter.feed(b"x" * 1000)
        assert splitter.next_line() is None
        assert len(splitter.rest()) <= 1000
    splitter.feed(b"y\n")
    dropped = splitter.next_line()
    assert type(dropped) is lines.Oversized
    assert (dropped.head, dropped.tail) == (b"x" * 256, b"x" * 255 + b"y")


def test_a_message_is_parsed() -> None:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}')
    assert parsed == m.JSONRPCResponse(jsonrpc="2.0", id=1, result={"a": 1})


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"Listening on port 8080",
        b"[]",
        b"3",
        b'{"no": "message"}',
        b'{"jsonrpc":"2.0","method":3}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":true,"result":{}}',
    ],
)
def test_a_line_that_is_no_message_is_garbage(line: bytes) -> None:
    parsed = parse(line)
    assert type(parsed) is lines.Garbage
    assert parsed.reason
    assert len(parsed.excerpt) <= 200


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"result":null}',
        b'{"jsonrpc":"2.0","id":7,"result":{"content":[',
        b' { "jsonrpc" : "2.0", "id" : 7, "error" : {',
        b'{"id":7,"jsonrpc":"1.0","result":{}}',
        lines.Oversized(b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"text":"xxx', b"", 100),
        # The order of the members is each server's own; TypeScript's SDK has the id last.
        lines.Oversized(b'{"result":{"content":[{"text":"x', b'x"}]},"jsonrpc":"2.0","id":7}', 100),
        lines.Oversized(b'{"jsonrpc":"2.0","result":{"con', b'x"}]} , "id" : 7 } ', 100),
        lines.Oversized(b'{"error":{"message":"xxx', b'x"},"id":"7","jsonrpc":"2.0"}', 100),
        lines.Oversized(b'{"id":7.0,"jsonrpc":"2.0","result":[', b"", 100),
        b'{"result":{"a":\x00},"jsonrpc":"2.0","id":7}',
        # Neither a result nor an error, as Go's omitempty makes it; a list of old errors.
        b'{"jsonrpc":"2.0","id":7}',
        b'{"jsonrpc":"2.0","id":7,"error":"it broke"}',
    ],
)
def test_a_broken_answer_is_an_error_answer_so_that_nobody_waits(
    line: bytes | lines.Oversized,
) -> None:
    parsed = parse(line)
    assert type(parsed) is m.JSONRPCError
    assert parsed.id == 7
    assert "malformed" in parsed.error.message


def test_an_oversized_line_that_is_no_answer_is_garbage() -> None:
    assert type(parse(lines.Oversized(b"xxxx", b"", 100))) is lines.Garbage


@pytest.mark.parametrize("inside", [b"a\\ud800b", b"a\xffb"])
def test_text_that_is_not_valid_is_made_valid_and_the_message_kept(inside: bytes) -> None:
    parsed = parse(b'{"jsonrpc":"2.0","id":1,"result":{"t":"' + inside + b'"}}')
    assert type(parsed) is m.JSONRPCResponse
    assert parsed.result == {"t": "a\ufffdb"}


@pytest.mark.parametrize(
    "line",
    [
        b'{"result":{"content":[',
        b'{"jsonrpc":"2.0","result":{"content":[{"text":"xx',
        lines.Oversized(b'{"result":{"content":[', b'"id":7}]}}', 100),  # an id of something else
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
    ],
)
def test_a_broken_answer_that_names_no_request_is_told_apart(
    line: bytes | lines.Oversized,
) -> None:
    assert type(parse(line)) is lines.LostAnswer


def test_an_error_that_names_no_request_may_be_about_a_notification() -> None:
    line = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"what?"}}'
    assert parse(line) == lines.Garbage("an error without an id", "what? (code -32601)")


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1.0,"result":{"a":1}}',
        b'[{"jsonrpc":"2.0","id":1,"result":{"a":1}}]',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"result":{"a":1}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}\r',
    ],
)
def test_an_answer_in_an_odd_form_is_understood(line: bytes) -> None:
    assert parse(line) == m.JSONRPCResponse(jsonrpc="2.0", id=1, result={"a": 1})


@pytest.mark.parametrize("before", [b"Loading... ", b"data: ", b"{debug} "])
def test_an_answer_behind_other_text_on_its_line_is_found(before: bytes) -> None:
    garbage, answer = lines.parse(before + b'{"jsonrpc":"2.0","id":1,"result":{"a":1}}')
    assert type(garbage) is lines.Garbage
    assert answer == m.JSONRPCResponse(jsonrpc="2.0", id=1, result={"a": 1})


def test_a_log_line_that_shows_part_of_an_answer_is_no_answer() -> None:
    assert type(parse(b'sending {"jsonrpc":"2.0","id":1,"result":{"a"...')) is lines.Garbage


def test_each_member_of_a_batch_is_read_by_itself() -> None:
    first, second, third = lines.parse(
        b'[{"jsonrpc":"2.0","id":1,"result":{}}, 3, {"jsonrpc":"2.0","method":"x"}]'
    )
    assert first == m.JSONRPCResponse(jsonrpc="2.0", id=1, result={})
    assert type(second) is lines.Garbage
    assert third == m.JSONRPCNotification(jsonrpc="2.0", method="x")
