"""The cap on the size of a result."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

import trio_runner._core.values as v
from trio_runner._core.cap import cap_result


def size_of(result: v.ToolResult) -> int:
    """Measured in another way than the code does."""
    total = 0
    for block in result.content:
        match block:
            case v.TextContent(text=text):
                total += len(text.encode())
            case v.ImageContent(data=data) | v.AudioContent(data=data):
                total += len(data)
            case v.EmbeddedResource(text=text, blob=blob):
                total += len((text or "").encode()) + len(blob or "")
            case v.ResourceLink(uri=uri, name=name):
                total += len(uri) + len(name)
    if result.structured_content is not None:
        total += len(json.dumps(result.structured_content, ensure_ascii=False).encode())
    if result.meta:
        total += len(json.dumps(result.meta, ensure_ascii=False).encode())
    return total


def result(*content: v.ContentBlock, data: Any = None, meta: Any = None) -> v.ToolResult:
    return v.ToolResult("c1", "tool", content, data, v.CallStatus.OK, 0.5, meta or {})


def text_result(text: str) -> v.ToolResult:
    return result(v.TextContent(text))


@pytest.mark.parametrize(
    "fitting",
    [
        text_result("x" * 2000),
        text_result("é" * 1000),
        result(v.TextContent("x" * 1000), v.ImageContent("A" * 900, "image/png")),
        result(v.TextContent("[1, 2]"), data=[1, 2]),
        result(v.TextContent("x" * 1989), data="123456789"),
        result(),
    ],
)
def test_what_fits_is_the_same_object(fitting: v.ToolResult) -> None:
    assert cap_result(fitting, 2000) is fitting


def test_one_byte_more_than_the_cap_is_cut() -> None:
    assert cap_result(text_result("x" * 2001), 2000) != text_result("x" * 2001)


def test_structured_content_counts() -> None:
    too_much = result(v.TextContent("x" * 1990), data="123456789")

    assert size_of(cap_result(too_much, 2000)) <= 2000


def test_text_is_cut_in_the_middle_with_the_full_size_in_a_marker() -> None:
    capped = cap_result(text_result("a" * 5000 + "z" * 5000), 1024)

    assert re.fullmatch(
        r"(a+)\n\[\.\.\. cut: the full text has 10000 bytes \.\.\.\]\n(z+)", capped.text
    )
    assert 1020 <= size_of(capped) <= 1024
    assert capped.text.count("a") - capped.text.count("z") in (0, 1)


def test_everything_but_the_content_stays() -> None:
    long = v.ToolResult("c9", "n", "x" * 5000, None, v.CallStatus.ERROR, 2.5, {"k": 1})

    capped = cap_result(long, 1024)

    assert (capped.call_id, capped.name, capped.status) == ("c9", "n", v.CallStatus.ERROR)
    assert (capped.duration, capped.meta) == (2.5, {"k": 1})


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("cap", range(100, 108))
def test_kD10_a_cut_is_never_inside_a_character(character: str, offset: int, cap: int) -> None:
    capped = cap_result(text_result("." * offset + character * 400 + "." * offset), cap)

    assert size_of(capped) <= cap
    assert "\ufffd" not in capped.text
    kept = re.sub(r"\n\[.*\]\n", "", capped.text).strip(".")
    assert set(kept) == {character}


def test_structured_content_that_leaves_no_room_for_text_is_left_out_and_said_so() -> None:
    text = json.dumps(["x" * 1900])

    capped = cap_result(result(v.TextContent(text), data=["x" * 1900]), 2048)

    assert capped.structured_content is None
    assert capped.text.startswith(text)
    assert "structured content of 1904 bytes" in capped.text


def test_text_is_cut_before_structured_content_is_left_out() -> None:
    data = ["x" * 600]

    capped = cap_result(result(v.TextContent("a" * 2000), data=data), 2048)

    assert capped.structured_content == data
    assert "the full text has 2000 bytes" in capped.text


def test_a_block_that_is_not_text_is_kept_whole_or_left_out_and_counted() -> None:
    small, huge = v.ImageContent("A" * 100, "image/png"), v.ImageContent("A" * 9000, "image/png")

    capped = cap_result(result(small, huge, v.TextContent("t")), 1024)

    assert capped.content[0] is small
    assert huge not in capped.content
    assert "1 block of 9009 bytes" in capped.text
    assert capped.content[1] == v.TextContent("t")


def test_metadata_that_is_too_large_is_left_out() -> None:
    capped = cap_result(result(v.TextContent("t"), meta={"k": "x" * 5000}), 1024)

    assert capped.meta == {}
    assert "metadata of 5009 bytes" in capped.text


def test_text_of_an_embedded_resource_is_cut_too() -> None:
    capped = cap_result(result(v.EmbeddedResource("file:///a", text="a" * 5000)), 1024)

    assert capped.text.startswith("aaa")
    assert size_of(capped) <= 1024


def test_kD10_ten_thousand_blocks_keep_the_first_and_the_last() -> None:
    blocks = [v.TextContent(f"{n:05}" + "x" * 95) for n in range(10_000)]

    capped = cap_result(result(*blocks), 4096)

    assert capped.content[0] is blocks[0]
    assert capped.content[-1].text.endswith("x" * 20)  # type: ignore[union-attr]
    assert "the full text has 1000000 bytes" in capped.text
    assert 3900 <= size_of(capped) <= 4096


def test_kD10_fifty_megabytes_are_cut_without_a_copy() -> None:
    long = text_result("é" * 25_000_000)
    tracemalloc.start()
    try:
        capped = cap_result(long, 256 * 1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert "the full text has 50000000 bytes" in capped.text
    assert size_of(capped) <= 256 * 1024
    assert peak < 8_000_000


@pytest.mark.parametrize("cap", [1, 3, 20, 60])
def test_a_tiny_cap_still_leaves_something_to_read(cap: int) -> None:
    capped = cap_result(result(v.TextContent("é" * 900), v.ImageContent("A" * 900, "i/p")), cap)

    assert 0 < size_of(capped) <= cap
    assert capped.text.strip()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=20,
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(lambda t: t * 20)
blocks = (
    texts.map(v.TextContent)
    | texts.map(lambda text: v.TextContent(text, None, {"k": text}))
    | st.integers(0, 2000).map(lambda n: v.ImageContent("A" * n, "image/png"))
    | texts.map(lambda text: v.EmbeddedResource("file:///a", text=text))
    | st.integers(0, 500).map(lambda n: v.ResourceLink("file:///" + "a" * n, "n"))
)


@hypothesis.given(
    st.lists(blocks, max_size=8), st.none() | json_values, st.integers(1, 3000), st.booleans()
)
@hypothesis.settings(deadline=None)
def test_what_remains_fits_is_valid_text_and_is_not_empty(
    content: list[v.ContentBlock], data: Any, cap: int, meta: bool
) -> None:
    given = result(*content, data=data, meta={"m": "é" * 40} if meta else None)

    capped = cap_result(given, cap)

    assert size_of(capped) <= cap
    if capped is not given:
        assert "".join(b.text for b in capped.content if isinstance(b, v.TextContent)).strip()
        # Cut once, it stays as it is.
        assert cap_result(capped, cap) is capped
