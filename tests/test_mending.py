"""mending: one message becomes good pieces, good ones stay the same objects, changes are told."""

from __future__ import annotations

from typing import Any

import pytest

import trio_runner._core.mending as mending
import trio_runner._core.validity as validity
import trio_runner._core.values as v


def take_apart(message: Any) -> tuple[mending.Part, list[str]]:
    told: list[str] = []
    part = mending.take_apart(4, message, told.append)
    assert part is not None
    assert part.index == 4
    assert part.source is message
    for call in part.calls:
        assert not validity.call_body_problems(call)
    for result in part.results:
        assert not validity.result_body_problems(result)
    assert not validity.content_problems(part.content)
    return part, told


def make(kind: Any, **fields: Any) -> Any:
    """A value whose fields may be of wrong types."""
    return kind(**fields)


GOOD_CALL = v.ToolCall("a", "read", {"x": 1})
GOOD_RESULT = v.ToolResult("a", "read", "ok")


def test_a_good_message_is_taken_apart_into_its_own_objects() -> None:
    message = v.Message.assistant("text", tool_calls=[GOOD_CALL])

    part, told = take_apart(message)

    assert told == []
    assert part.role == "assistant"
    assert part.has_content
    assert part.content is message.content
    assert part.calls is message.tool_calls
    assert part.results is message.tool_results


def test_what_is_no_message_is_dropped_and_told() -> None:
    told: list[str] = []

    assert mending.take_apart(0, make(dict), told.append) is None
    assert told == ["a dict was dropped; expected a Message"]


@pytest.mark.parametrize(
    ("fields", "role"),
    [
        ({"role": "tool", "tool_results": [GOOD_RESULT]}, "user"),
        ({"role": "system", "content": "x"}, "user"),
        ({"role": None, "tool_calls": [GOOD_CALL]}, "assistant"),
        ({"role": ["user"], "content": "x"}, "user"),
        ({"role": "user", "tool_calls": [GOOD_CALL]}, "assistant"),
        ({"role": "user", "tool_calls": [GOOD_CALL], "content": "x"}, "user"),
        ({"role": "user", "tool_calls": [GOOD_CALL], "tool_results": [GOOD_RESULT]}, "user"),
        ({"role": "assistant", "tool_results": [GOOD_RESULT]}, "user"),
        ({"role": "assistant", "tool_results": [GOOD_RESULT], "content": "x"}, "assistant"),
        (
            {"role": "assistant", "tool_results": [GOOD_RESULT], "tool_calls": [GOOD_CALL]},
            "assistant",
        ),
    ],
)
def test_the_role_fits_what_the_message_holds(fields: dict[str, Any], role: str) -> None:
    part, told = take_apart(make(v.Message, **fields))

    assert part.role == role
    assert bool(told) == (fields["role"] != role)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": None}, v.ToolCall(None, "read", {"x": 1})),  # type: ignore[arg-type]
        ({"name": ""}, v.ToolCall("a", "unnamed_tool", {"x": 1})),
        ({"name": None}, v.ToolCall("a", "unnamed_tool", {"x": 1})),
        ({"name": "re\ud800d"}, v.ToolCall("a", "re_d", {"x": 1})),
        ({"name": "a.b", "arguments": None}, v.ToolCall("a", "a.b", {})),
        ({"arguments": '{"x": 2}'}, v.ToolCall("a", "read", {"x": 2})),
        ({"arguments": {"x": "\ud800"}}, v.ToolCall("a", "read", {"x": "\ufffd"})),
        ({"arguments_error": "\ud800"}, v.ToolCall("a", "read", {"x": 1}, "\ufffd")),
        (
            {"arguments": "null", "arguments_error": "was null"},
            v.ToolCall("a", "read", {"invalid_arguments": "null"}, "was null"),
        ),
    ],
)
def test_a_call_is_mended_but_for_its_id(fields: dict[str, Any], expected: v.ToolCall) -> None:
    call = make(v.ToolCall, **{"id": "a", "name": "read", "arguments": {"x": 1}, **fields})

    part, told = take_apart(v.Message.assistant("", tool_calls=[call, GOOD_CALL]))

    assert part.calls == (expected, GOOD_CALL)
    assert part.calls[1] is GOOD_CALL
    if "id" in fields:
        assert told == []  # the id is not this module's
    else:
        [sentence] = told
        assert sentence.startswith("call 0 was mended: ")


def test_arguments_that_were_none_get_an_error() -> None:
    call = make(v.ToolCall, id="a", name="read", arguments="null")

    part, _ = take_apart(v.Message.assistant("", tool_calls=[call]))

    assert part.calls[0].arguments == {"invalid_arguments": "null"}
    assert "found null" in str(part.calls[0].arguments_error)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": None}, v.ToolResult("a", "", "ok")),
        ({"name": "\ud800"}, v.ToolResult("a", "\ufffd", "ok")),
        ({"content": ()}, v.ToolResult("a", "read", "(no output)")),
        ({"content": " "}, v.ToolResult("a", "read", "(no output)")),
        ({"content": "\ud800"}, v.ToolResult("a", "read", "\ufffd")),
        (
            {"content": (), "structured_content": {"é": 1}},
            v.ToolResult("a", "read", '{"\\u00e9": 1}', {"é": 1}),
        ),
        ({"structured_content": object()}, v.ToolResult("a", "read", "ok", None)),
        ({"structured_content": ("\ud800",)}, v.ToolResult("a", "read", "ok", ["\ufffd"])),
        (
            {"content": [make(v.TextContent, text=None), v.TextContent("kept")]},
            v.ToolResult("a", "read", "kept"),
        ),
    ],
)
def test_a_result_is_mended_but_for_its_id(fields: dict[str, Any], expected: v.ToolResult) -> None:
    result = make(v.ToolResult, **{"call_id": "a", "name": "read", "content": "ok", **fields})

    part, told = take_apart(v.Message.user(tool_results=[result, GOOD_RESULT]))

    assert part.results == (expected, GOOD_RESULT)
    assert part.results[1] is GOOD_RESULT
    [sentence] = told
    assert sentence.startswith("result 0 was mended: ")


def test_blocks_are_mended_or_dropped_and_each_is_told() -> None:
    good = v.TextContent("good")
    content = [v.TextContent("\ud800"), make(v.TextContent, text=None), good]

    part, told = take_apart(v.Message.user(content))

    assert part.content == (v.TextContent("\ufffd"), good)
    assert part.content[1] is good
    assert told == [
        "block 0 was mended: text does not encode as UTF-8 (a lone surrogate)",
        "block 1 was dropped: text is a NoneType; expected text",
    ]


def test_calls_and_results_of_other_types_are_dropped() -> None:
    message = make(v.Message, role="assistant", tool_calls=["x", GOOD_CALL], tool_results=[3])

    part, told = take_apart(message)

    assert part.calls == (GOOD_CALL,)
    assert part.results == ()
    assert told == ["call 0 was dropped: found a str", "result 0 was dropped: found a int"]


def test_an_empty_message_is_left_to_the_one_who_knows_what_stands_around_it() -> None:
    part, told = take_apart(v.Message.user(" "))

    assert not part.has_content
    assert told == []
