"""The parts of a result, each judged by itself."""

import json
from typing import Any

import mcp_types as m
import pytest

from trio_runner_adapters.mcp._results import judged

TEXT = {"type": "text", "text": "good"}
VERSIONS = ("2025-11-25", "2026-07-28")


def texts(result: dict[str, Any]) -> list[str]:
    """The texts of a result, which the SDK must be able to read."""
    parsed = m.CallToolResult.model_validate(result, by_name=False)
    return [block.text if block.type == "text" else block.type for block in parsed.content]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_good_result_is_left_as_it_is(version: str) -> None:
    result = {
        "resultType": "complete",
        "content": [
            TEXT,
            {**TEXT, "annotations": {"priority": 0.5}},
            {"type": "image", "data": "aQ==", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///y", "text": "y"}},
        ],
        "structuredContent": {"a": 1},
        "isError": True,
        "_meta": {"m": 1},
    }
    assert judged(result, version) is result


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "block",
    [
        {"type": "video", "data": "x"},
        {"type": "tool_use", "id": "a", "name": "b", "input": {}},
        {"type": "text", "text": 3},
        {"type": "image", "data": "***", "mimeType": "image/png"},
        {"type": "image", "data": "aQ==", "mimeType": ""},
        {"type": "audio", "data": "", "mimeType": "audio/wav"},
        {"type": "resource", "resource": 3},
        "text",
        None,
    ],
)
def test_a_block_that_cannot_be_used_costs_no_other_and_is_told(version: str, block: Any) -> None:
    first, note, last = texts(judged({"content": [TEXT, block, TEXT]}, version))
    assert (first, last) == ("good", "good")
    assert note.startswith("[a content block of this result cannot be used: ")
    assert json.dumps(block) in note


def test_the_note_about_a_huge_block_is_bounded() -> None:
    block = {"type": "video", "data": "x" * 1_000_000, "odd": "\ud800"}
    (note,) = texts(judged({"content": [block]}, VERSIONS[0]))
    assert len(note) < 1500
    note.encode()


def test_annotations_that_mcp_does_not_allow_are_dropped_and_the_block_kept() -> None:
    block = {**TEXT, "annotations": {"audience": ["alien"]}}
    assert judged({"content": [block]}, VERSIONS[0])["content"] == [TEXT]


def test_data_that_is_broken_into_lines_is_joined() -> None:
    block = {"type": "image", "data": "aQ\n==\r\n", "mimeType": "image/png"}
    (joined,) = judged({"content": [block]}, VERSIONS[0])["content"]
    assert joined == {"type": "image", "data": "aQ==", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("field", "value"), [("structuredContent", [1, 2]), ("_meta", "x"), ("isError", [])]
)
def test_a_field_that_cannot_be_used_becomes_a_note_and_the_content_is_kept(
    field: str, value: Any
) -> None:
    result = judged({"content": [TEXT], field: value}, VERSIONS[0])
    good, note = texts(result)
    assert good == "good"
    assert field in note
    assert field not in result


def test_structured_content_of_any_type_is_fine_where_the_protocol_allows_it() -> None:
    result = {"resultType": "complete", "content": [TEXT], "structuredContent": [1, 2]}
    assert judged(result, "2026-07-28") == result


def test_a_missing_result_type_is_added_where_the_protocol_wants_it() -> None:
    assert judged({"content": []}, "2026-07-28") == {"resultType": "complete", "content": []}


@pytest.mark.parametrize("field", ["structuredContent", "_meta", "isError"])
def test_null_is_as_good_as_absent(field: str) -> None:
    assert judged({"content": [TEXT], field: None}, VERSIONS[0]) == {"content": [TEXT]}


def test_structured_content_alone_is_a_result() -> None:
    result = judged({"structuredContent": {"a": 1}}, VERSIONS[0])
    assert result == {"structuredContent": {"a": 1}, "content": []}


@pytest.mark.parametrize(
    "result",
    [{}, {"content": "plain"}, {"toolResult": 1}, {"resultType": "input_required", "content": [3]}],
)
def test_what_has_no_content_at_all_is_left_to_the_sdk(result: dict[str, Any]) -> None:
    assert judged(result, VERSIONS[0]) == result
