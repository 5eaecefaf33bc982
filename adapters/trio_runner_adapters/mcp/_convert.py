"""Tool results and content blocks, both ways between MCP's models and our values.

What may live here: total, pure conversion. Nothing that MCP defines is lost
either way; text that cannot be UTF-8 (lone surrogates, which the SDK's models
accept and then can neither dump nor parse) is made valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never, cast

import mcp_types as m

import trio_runner as tr


def valid_text(text: str) -> str:
    """Return ``text`` with every lone surrogate replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # A pair written as two escapes is one character; only a lone half is lost.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def valid_json(value: Any) -> Any:
    """Return a JSON value whose strings and keys all encode as UTF-8."""
    match value:
        case str():
            return valid_text(value)
        case list():
            return [valid_json(item) for item in cast("list[Any]", value)]
        case dict():
            return {
                valid_text(str(key)): valid_json(item)
                for key, item in cast("dict[Any, Any]", value).items()
            }
        case _:
            return value


def _valid_or_none(text: str | None) -> str | None:
    return None if text is None else valid_text(text)


def _annotations(annotations: m.Annotations | None) -> Mapping[str, Any] | None:
    if annotations is None:
        return None
    return valid_json(annotations.model_dump(by_alias=True, exclude_unset=True))


def _meta(meta: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return None if meta is None else valid_json(dict(meta))


def from_mcp_block(block: m.ContentBlock) -> tr.ContentBlock:
    """Return the content block that says the same as ``block``."""
    annotations = _annotations(block.annotations)
    meta = _meta(block.meta)
    match block:
        case m.TextContent():
            return tr.TextContent(valid_text(block.text), annotations, meta)
        case m.ImageContent():
            return tr.ImageContent(block.data, valid_text(block.mime_type), annotations, meta)
        case m.AudioContent():
            return tr.AudioContent(block.data, valid_text(block.mime_type), annotations, meta)
        case m.ResourceLink():
            icons = None
            if block.icons is not None:
                icons = tuple(
                    [
                        valid_json(i.model_dump(by_alias=True, exclude_unset=True))
                        for i in block.icons
                    ]
                )
            return tr.ResourceLink(
                uri=valid_text(block.uri),
                name=valid_text(block.name),
                title=_valid_or_none(block.title),
                description=_valid_or_none(block.description),
                mime_type=_valid_or_none(block.mime_type),
                size=block.size,
                icons=icons,
                annotations=annotations,
                meta=meta,
            )
        case m.EmbeddedResource():
            return _from_resource(block.resource, annotations, meta)
        case _:
            assert_never(block)


def _from_resource(
    resource: m.TextResourceContents | m.BlobResourceContents,
    annotations: Mapping[str, Any] | None,
    meta: Mapping[str, Any] | None,
) -> tr.EmbeddedResource:
    match resource:
        case m.TextResourceContents():
            text, blob = valid_text(resource.text), None
        case m.BlobResourceContents():
            text, blob = None, resource.blob
    return tr.EmbeddedResource(
        uri=valid_text(resource.uri),
        text=text,
        blob=blob,
        mime_type=_valid_or_none(resource.mime_type),
        resource_meta=_meta(resource.meta),
        annotations=annotations,
        meta=meta,
    )


def _to_annotations(annotations: Mapping[str, Any] | None) -> m.Annotations | None:
    return None if annotations is None else m.Annotations.model_validate(dict(annotations))


def _to_meta(meta: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if meta is None else dict(meta)


def to_mcp_block(block: tr.ContentBlock) -> m.ContentBlock:
    """Return MCP's model of ``block``.

    Raises:
      pydantic.ValidationError: the annotations or icons are none that MCP allows.
    """
    shared: dict[str, Any] = {
        "annotations": _to_annotations(block.annotations),
        "_meta": _to_meta(block.meta),
    }
    match block:
        case tr.TextContent():
            return m.TextContent(text=block.text, **shared)
        case tr.ImageContent():
            return m.ImageContent(data=block.data, mime_type=block.mime_type, **shared)
        case tr.AudioContent():
            return m.AudioContent(data=block.data, mime_type=block.mime_type, **shared)
        case tr.ResourceLink():
            icons = block.icons
            return m.ResourceLink(
                uri=block.uri,
                name=block.name,
                title=block.title,
                description=block.description,
                mime_type=block.mime_type,
                size=block.size,
                icons=None if icons is None else [m.Icon.model_validate(dict(i)) for i in icons],
                **shared,
            )
        case tr.EmbeddedResource():
            return m.EmbeddedResource(resource=_to_resource(block), **shared)
        case _:
            assert_never(block)


def _to_resource(block: tr.EmbeddedResource) -> m.TextResourceContents | m.BlobResourceContents:
    inner: dict[str, Any] = {
        "uri": block.uri,
        "mime_type": block.mime_type,
        "_meta": _to_meta(block.resource_meta),
    }
    if block.blob is not None:
        return m.BlobResourceContents(blob=block.blob, **inner)
    return m.TextResourceContents(text=block.text or "", **inner)


def from_mcp_result(result: m.CallToolResult) -> tr.ToolResult:
    """Return ``result`` as a `ToolResult`; ``isError`` becomes the status ``error``."""
    return tr.ToolResult(
        content=_from_blocks(result.content),
        structured_content=valid_json(result.structured_content),
        status=tr.CallStatus.ERROR if result.is_error else tr.CallStatus.OK,
        meta=_meta(result.meta) or {},
    )


def _from_blocks(blocks: Iterable[m.ContentBlock]) -> tuple[tr.ContentBlock, ...]:
    return tuple([from_mcp_block(block) for block in blocks])


def to_mcp_result(result: tr.ToolResult) -> m.CallToolResult:
    """Return ``result`` as MCP's model; every status but ``ok`` becomes ``isError``.

    Raises:
      pydantic.ValidationError: annotations or icons are none that MCP allows.
    """
    fields: dict[str, Any] = {"content": [to_mcp_block(block) for block in result.content]}
    if result.structured_content is not None:
        # Left unset when absent: "present and null" means something else on the wire.
        fields["structured_content"] = result.structured_content
    if result.meta:
        fields["_meta"] = dict(result.meta)
    return m.CallToolResult(is_error=result.is_error, **fields)
