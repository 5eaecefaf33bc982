"""What a tool returned, as a result."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest

import trio_runner._core.values as v
from trio_runner._core.convert import NO_OUTPUT, is_short_text, result_from_value, safe_text
from trio_runner._core.json_data import is_plain_json, is_safe_text

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)


def convert(value: object) -> v.ToolResult:
    return result_from_value(value, call_id="c1", name="tool", duration=0.25)


def of(*content: v.ContentBlock, data: Any = None) -> v.ToolResult:
    return v.ToolResult("c1", "tool", content, data, v.CallStatus.OK, 0.25)


def text(value: str) -> v.TextContent:
    return v.TextContent(value)


@pytest.mark.parametrize(
    "value",
    [None, "", " \n\t", b"", [text("")], text("  "), v.ToolResult(), v.ToolResult(content=" ")],
    ids=repr,
)
def test_kG5_what_says_nothing_becomes_no_output(value: object) -> None:
    assert convert(value) == of(text("(no output)"))


def test_text_is_one_text_block() -> None:
    assert convert("hello") == of(text("hello"))


def test_lone_surrogates_in_text_are_replaced() -> None:
    assert convert("a\ud800").text == "a\ufffd"


def test_safe_text_returns_good_text_itself() -> None:
    good = "Zürich 😀"

    assert safe_text(good) is good


@pytest.mark.parametrize(
    ("value", "data", "written"),
    [
        ({"a": 1}, {"a": 1}, '{"a": 1}'),
        ({}, {}, "{}"),
        ([1, "é"], [1, "é"], '[1, "é"]'),
        (("a", "b"), ["a", "b"], '["a", "b"]'),
        (["a", "b"], ["a", "b"], '["a", "b"]'),
        ([], [], "[]"),
        (5, 5, "5"),
        (-(10**30), -(10**30), str(-(10**30))),
        (2.5, 2.5, "2.5"),
        (True, True, "true"),
        (False, False, "false"),
        ({2, 1}, [1, 2], "[1, 2]"),
    ],
    ids=repr,
)
def test_data_is_structured_content_and_the_same_as_json_text(
    value: object, data: object, written: str
) -> None:
    assert convert(value) == of(text(written), data=data)
    assert type(convert(value).structured_content) is type(data)


def test_a_dataclass_is_data() -> None:
    @dataclasses.dataclass
    class Weather:
        city: str
        day: dt.date

    converted = convert(Weather("Oslo", dt.date(2026, 11, 30)))

    assert converted.structured_content == {"city": "Oslo", "day": "2026-11-30"}


@pytest.mark.parametrize(
    ("value", "written"),
    [(dt.date(2026, 11, 30), "2026-11-30"), (float("nan"), "(nan)"), (float("inf"), "(inf)")],
)
def test_kE4_what_is_text_as_json_is_only_text(value: object, written: str) -> None:
    assert convert(value) == of(text(written))


def test_data_is_copied() -> None:
    value = {"a": [1]}

    converted = convert(value)
    value["a"].append(2)

    assert converted.structured_content == {"a": [1]}


# --- bytes and blocks -----------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_kG5_bytes_that_are_text_become_text(kind: Any) -> None:
    assert convert(kind("naïve\n".encode())) == of(text("naïve\n"))


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF89a\x00\x01", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
def test_bytes_of_an_image_become_an_image(data: bytes, mime_type: str) -> None:
    assert convert(data) == of(v.ImageContent(base64.b64encode(data).decode(), mime_type))


@pytest.mark.parametrize("data", [b"\x00\x01", b"\xff\xfe", b"RIFF\x00\x00\x00\x00WAVEfmt "])
def test_kG5_other_bytes_become_an_embedded_resource(data: bytes) -> None:
    [block] = convert(data).content

    assert block == v.EmbeddedResource(
        "result:c1", blob=base64.b64encode(data).decode(), mime_type="application/octet-stream"
    )


def test_a_block_and_a_list_of_blocks_and_text_are_the_content() -> None:
    image = v.ImageContent("AAAA", "image/png")

    assert convert(image) == of(image)
    assert convert([image, "caption"]) == of(image, text("caption"))
    assert convert((text("a"), image)) == of(text("a"), image)


def test_blocks_among_other_data_are_data() -> None:
    assert convert([text("a"), 1]).structured_content == [
        {"text": "a", "annotations": None, "meta": None},
        1,
    ]


def test_kE4_everything_in_a_block_becomes_plain() -> None:
    odd: Any = {"when": dt.date(2026, 1, 2), "bad": "\ud800"}
    clean = {"when": "2026-01-02", "bad": "\ufffd"}
    not_text: Any = 5
    raw: Any = PNG

    converted = convert([
        v.TextContent(not_text, odd, odd),
        v.ImageContent(raw, "image/png", odd),
        v.AudioContent("AAAA", "audio/\ud800", meta=odd),
        v.ResourceLink("file:///\ud800", "n", "t", icons=(odd,), size=5),
        v.EmbeddedResource("file:///a", text="t\ud800", resource_meta=odd),
        v.EmbeddedResource("file:///b"),
    ])  # fmt: skip

    assert converted.content == (
        v.TextContent("5", clean, clean),
        v.ImageContent(base64.b64encode(PNG).decode(), "image/png", clean),
        v.AudioContent("AAAA", "audio/\ufffd", meta=clean),
        v.ResourceLink("file:///\ufffd", "n", "t", icons=(clean,), size=5),
        v.EmbeddedResource("file:///a", text="t\ufffd", resource_meta=clean),
        v.EmbeddedResource("file:///b", text=""),
    )


# --- ready results --------------------------------------------------------------


def test_kG5_a_result_for_another_id_is_stamped_anew() -> None:
    given = v.ToolResult("other", "else", "x", None, v.CallStatus.ERROR, 99.0, {"k": (1,)})

    assert convert(given) == v.ToolResult(
        "c1", "tool", "x", None, v.CallStatus.ERROR, 0.25, {"k": [1]}
    )


def test_a_result_with_data_and_no_blocks_gets_the_json_as_text() -> None:
    given: Any = {"a": (1, 2)}

    assert convert(v.ToolResult(structured_content=given)) == of(
        text('{"a": [1, 2]}'), data={"a": [1, 2]}
    )


def test_a_result_keeps_blocks_that_say_something_beside_its_data() -> None:
    given = v.ToolResult(content="one row", structured_content=[1])

    assert convert(given) == of(text("one row"), data=[1])


def test_a_status_given_as_text_is_the_status() -> None:
    wrong: Any = "denied"

    assert convert(v.ToolResult(content="x", status=wrong)).status is v.CallStatus.DENIED


def test_a_result_with_an_unknown_status_is_an_error_that_says_the_tool_ran() -> None:
    wrong: Any = "splendid"

    converted = convert(v.ToolResult(content="x", status=wrong))

    assert converted.status is v.CallStatus.ERROR
    assert "did run" in converted.text
    assert "splendid" in converted.text


# --- what cannot be converted ---------------------------------------------------


async def fetch() -> str:
    return "x"


def generate() -> Iterator[int]:
    yield 1


async def agenerate() -> AsyncIterator[int]:
    yield 1


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Nameless:
    """Not even what it is can be asked."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (fetch, "coroutine"),
        (generate, "generator"),
        (agenerate, "async_generator"),
        (lambda: ValueError("wrong"), "ValueError: wrong"),
        (lambda: convert, "function"),
        (lambda: int, "int"),
        (object, "object"),
        (Silent, "Silent"),
        (Nameless, "Nameless"),
        (lambda: iter([1]), "list_iterator"),
    ],
    ids=["coroutine", "generator", "async generator", "exception", "function", "class", "object",
         "raising repr", "raising class", "iterator"],
)  # fmt: skip
def test_kG5_what_cannot_be_converted_is_an_error_that_says_the_tool_ran(
    make: Any, named: str
) -> None:
    converted = convert(make())

    assert converted.status is v.CallStatus.ERROR
    assert (converted.call_id, converted.name, converted.duration) == ("c1", "tool", 0.25)
    assert "did run" in converted.text
    assert named in converted.text


def test_kG5_a_returned_coroutine_is_closed() -> None:
    coroutine = fetch()

    convert(coroutine)

    assert coroutine.cr_frame is None  # closed: no warning when it is collected


def test_a_value_that_raises_when_read_is_an_error_that_names_why() -> None:
    @dataclasses.dataclass
    class Broken:
        x: int = 1

        def __getattribute__(self, name: str) -> Any:
            if name == "x":
                raise OSError("gone")
            return super().__getattribute__(name)

    converted = convert(Broken())

    assert converted.status is v.CallStatus.ERROR
    assert "did run" in converted.text
    assert "OSError: gone" in converted.text


def test_a_keyboard_interrupt_in_the_conversion_leaves() -> None:
    class Interrupting:
        def model_dump(self, **_: object) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(Interrupting())


# --- any value ------------------------------------------------------------------

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=9) | st.text()
    | st.text(st.characters(categories=["Cs", "L"]), max_size=9) | st.dates() | st.decimals()
    | st.just(fetch) | st.builds(object) | st.builds(ValueError, st.text())
    | st.builds(v.TextContent, st.text()) | st.builds(v.ImageContent, st.just("AAAA"), st.text())
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=5)
        | st.builds(v.ToolResult, content=st.text(), structured_content=inner)
        | st.builds(v.ToolResult, meta=st.dictionaries(st.text(max_size=5), inner, max_size=3))
    ),
    max_leaves=20,
)


@hypothesis.given(values)
@hypothesis.settings(deadline=None)
def test_any_value_becomes_a_valid_result(value: object) -> None:
    converted = convert(value)

    assert (converted.call_id, converted.name, converted.duration) == ("c1", "tool", 0.25)
    assert is_plain_json(converted.structured_content)
    assert is_plain_json(converted.meta)
    assert converted.content
    for block in converted.content:
        assert is_plain_json(attrs.asdict(block))
    if converted.structured_content is not None and converted.text == NO_OUTPUT:
        assert "(no output)" in json.dumps(converted.structured_content)
    assert is_safe_text(converted.text)


# --- what need not be converted -------------------------------------------------

TEXT = v.TextContent("four")


def result_of(*content: v.ContentBlock, **fields: Any) -> v.ToolResult:
    return v.ToolResult("c1", "work", content, **fields)


def test_one_plain_text_that_fits_is_short() -> None:
    assert is_short_text(result_of(TEXT), 4)


@pytest.mark.parametrize(
    "result",
    [
        result_of(),
        result_of(TEXT, TEXT),
        result_of(v.ImageContent("QUJD", "image/png")),
        result_of(v.TextContent("four", annotations={"a": 1})),
        result_of(v.TextContent("four", meta={"a": 1})),
        result_of(v.TextContent("")),
        result_of(v.TextContent(" \n")),
        result_of(v.TextContent("fö")),
        result_of(v.TextContent("five!")),
        result_of(v.TextContent(4)),  # type: ignore[arg-type]
        result_of(TEXT, structured_content=0),
        result_of(TEXT, meta={"a": 1}),
    ],
    ids=[
        "no_block", "two_blocks", "an_image", "annotations", "meta_of_the_block", "empty", "blank",
        "more_bytes_than_characters", "too_long", "no_text", "structured", "meta",
    ],
)  # fmt: skip
def test_everything_else_is_not_short(result: v.ToolResult) -> None:
    assert not is_short_text(result, 4)


def test_what_is_short_would_stay_as_it_is() -> None:
    made = result_from_value("four", call_id="c1", name="work", duration=None)
    assert is_short_text(made, 4)
    assert result_from_value(made, call_id="c1", name="work", duration=None) == made
