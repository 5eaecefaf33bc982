"""Results and content blocks between MCP's models and ours."""

from typing import Any

import mcp_types as m
import pytest

import trio_runner as tr
from trio_runner_adapters.mcp import from_mcp_result, to_mcp_result

SHARED: dict[str, Any] = {"annotations": {"audience": ["user"], "priority": 0.5}, "_meta": {"k": 1}}
WIRE: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "hé", **SHARED},
        {"type": "image", "data": "aQ==", "mimeType": "image/png", **SHARED},
        {"type": "audio", "data": "YQ==", "mimeType": "audio/wav", **SHARED},
        {
            "type": "resource_link",
            "uri": "file:///x",
            "name": "x",
            "title": "X",
            "description": "d",
            "mimeType": "text/plain",
            "size": 3,
            "icons": [{"src": "data:,", "sizes": ["1x1"]}],
            **SHARED,
        },
        {
            "type": "resource",
            "resource": {
                "uri": "file:///y",
                "text": "y",
                "mimeType": "text/plain",
                "_meta": {"r": 2},
            },
            **SHARED,
        },
        {"type": "resource", "resource": {"uri": "file:///z", "blob": "eg=="}},
    ],
    "structuredContent": {"a": [1, None, "x"]},
    "isError": False,
    "_meta": {"trace": "7"},
}


def dumped(result: m.CallToolResult) -> dict[str, Any]:
    data = result.model_dump(by_alias=True, exclude_none=True)
    del data["resultType"]  # added by the SDK's model to every result
    return data


def test_nothing_that_mcp_defines_is_lost_there_and_back() -> None:
    result = from_mcp_result(m.CallToolResult.model_validate(WIRE))
    assert dumped(to_mcp_result(result)) == dumped(m.CallToolResult.model_validate(WIRE))


def test_each_field_lands_in_its_own() -> None:
    result = from_mcp_result(m.CallToolResult.model_validate(WIRE))
    annotations, meta = {"audience": ["user"], "priority": 0.5}, {"k": 1}
    assert result == tr.ToolResult(
        content=(
            tr.TextContent("hé", annotations, meta),
            tr.ImageContent("aQ==", "image/png", annotations, meta),
            tr.AudioContent("YQ==", "audio/wav", annotations, meta),
            tr.ResourceLink(
                uri="file:///x",
                name="x",
                title="X",
                description="d",
                mime_type="text/plain",
                size=3,
                icons=({"src": "data:,", "sizes": ["1x1"]},),
                annotations=annotations,
                meta=meta,
            ),
            tr.EmbeddedResource(
                uri="file:///y",
                text="y",
                mime_type="text/plain",
                resource_meta={"r": 2},
                annotations=annotations,
                meta=meta,
            ),
            tr.EmbeddedResource(uri="file:///z", blob="eg=="),
        ),
        structured_content={"a": [1, None, "x"]},
        status=tr.CallStatus.OK,
        meta={"trace": "7"},
    )


@pytest.mark.parametrize("status", [status for status in tr.CallStatus if status != "ok"])
def test_every_status_but_ok_is_an_error_to_mcp(status: tr.CallStatus) -> None:
    assert to_mcp_result(tr.ToolResult(content="x", status=status)).is_error


def test_is_error_becomes_the_status_error_and_keeps_its_content() -> None:
    wire = {"content": [{"type": "text", "text": "no"}], "isError": True, "structuredContent": [1]}
    result = from_mcp_result(m.CallToolResult.model_validate(wire))
    assert (result.status, result.text, result.structured_content) == ("error", "no", [1])


def test_absent_structured_content_stays_absent() -> None:
    sent = to_mcp_result(tr.ToolResult(content="x"))
    assert "structured_content" not in sent.model_fields_set


def test_lone_surrogates_are_replaced_everywhere_and_pairs_joined() -> None:
    odd = "a\ud800b"
    result = from_mcp_result(
        m.CallToolResult(
            content=[
                m.TextContent(text=odd, _meta={odd: odd}),
                m.TextContent(text="\ud83d\ude00"),
                m.EmbeddedResource(resource=m.TextResourceContents(uri="u", text=odd)),
            ],
            structured_content={odd: [odd, {"deep": odd}]},
            _meta={"x": odd},
        )
    )
    good = "a\ufffdb"
    first, second, third = result.content
    assert first == tr.TextContent(good, meta={good: good})
    assert second == tr.TextContent("😀")
    assert third == tr.EmbeddedResource(uri="u", text=good)
    assert result.structured_content == {good: [good, {"deep": good}]}
    assert result.meta == {"x": good}
