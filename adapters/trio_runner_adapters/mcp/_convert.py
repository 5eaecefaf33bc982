"""Results, content, resources and prompts, both ways between MCP's models and our values.

What may live here: total, pure conversion. Nothing that MCP defines is lost
either way; text that cannot be UTF-8 (lone surrogates, which the SDK's models
accept and then can neither dump nor parse) is made valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, assert_never, cast

import attrs
import mcp_types as m

import trio_runner as tr


@attrs.frozen
class ResourceTemplate:
    """A family of resources: ``uri_template`` (RFC 6570) with values put in is the URI of one."""

    uri_template: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    icons: tuple[Mapping[str, Any], ...] | None = None
    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None


@attrs.frozen
class PromptArgument:
    """An argument that a prompt takes; ``required`` is None where the server does not say."""

    name: str
    title: str | None = None
    description: str | None = None
    required: bool | None = None


@attrs.frozen
class Prompt:
    """A prompt that a server offers; ``arguments`` is None where the server does not say."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[PromptArgument, ...] | None = None
    icons: tuple[Mapping[str, Any], ...] | None = None
    meta: Mapping[str, Any] | None = None


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
            return from_mcp_resource(block)
        case m.EmbeddedResource():
            return from_mcp_contents(block.resource, annotations, meta)
        case _:
            assert_never(block)


def _icons(icons: list[m.Icon] | None) -> tuple[Mapping[str, Any], ...] | None:
    if icons is None:
        return None
    return tuple([valid_json(i.model_dump(by_alias=True, exclude_unset=True)) for i in icons])


def from_mcp_contents(
    resource: m.TextResourceContents | m.BlobResourceContents,
    annotations: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> tr.EmbeddedResource:
    """Return the content of a resource; its own ``_meta`` is ``resource_meta``."""
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
            return m.ResourceLink(**_resource_fields(block), **shared)
        case tr.EmbeddedResource():
            return m.EmbeddedResource(resource=to_mcp_contents(block), **shared)
        case _:
            assert_never(block)


def _resource_fields(link: tr.ResourceLink) -> dict[str, Any]:
    return {
        "uri": link.uri,
        "name": link.name,
        "title": link.title,
        "description": link.description,
        "mime_type": link.mime_type,
        "size": link.size,
        "icons": _to_icons(link.icons),
    }


def _to_icons(icons: Iterable[Mapping[str, Any]] | None) -> list[m.Icon] | None:
    return None if icons is None else [m.Icon.model_validate(dict(icon)) for icon in icons]


def to_mcp_contents(
    block: tr.EmbeddedResource,
) -> m.TextResourceContents | m.BlobResourceContents:
    """Return MCP's model of what a resource contains; the block's annotations are no part of it."""
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


# --- resources and prompts ------------------------------------------------------


def from_mcp_resource(resource: m.Resource) -> tr.ResourceLink:
    """Return the link to ``resource``: it has the same fields."""
    return tr.ResourceLink(
        uri=valid_text(resource.uri),
        name=valid_text(resource.name),
        title=_valid_or_none(resource.title),
        description=_valid_or_none(resource.description),
        mime_type=_valid_or_none(resource.mime_type),
        size=resource.size,
        icons=_icons(resource.icons),
        annotations=_annotations(resource.annotations),
        meta=_meta(resource.meta),
    )


def to_mcp_resource(link: tr.ResourceLink) -> m.Resource:
    """Return MCP's model of the resource that ``link`` leads to.

    Raises:
      pydantic.ValidationError: annotations or icons are none that MCP allows.
    """
    return m.Resource(
        **_resource_fields(link),
        annotations=_to_annotations(link.annotations),
        _meta=_to_meta(link.meta),
    )


def from_mcp_template(template: m.ResourceTemplate) -> ResourceTemplate:
    """Return ``template`` as our value."""
    return ResourceTemplate(
        uri_template=valid_text(template.uri_template),
        name=valid_text(template.name),
        title=_valid_or_none(template.title),
        description=_valid_or_none(template.description),
        mime_type=_valid_or_none(template.mime_type),
        icons=_icons(template.icons),
        annotations=_annotations(template.annotations),
        meta=_meta(template.meta),
    )


def to_mcp_template(template: ResourceTemplate) -> m.ResourceTemplate:
    """Return MCP's model of ``template``.

    Raises:
      pydantic.ValidationError: annotations or icons are none that MCP allows.
    """
    return m.ResourceTemplate(
        uri_template=template.uri_template,
        name=template.name,
        title=template.title,
        description=template.description,
        mime_type=template.mime_type,
        icons=_to_icons(template.icons),
        annotations=_to_annotations(template.annotations),
        _meta=_to_meta(template.meta),
    )


def from_mcp_prompt(prompt: m.Prompt) -> Prompt:
    """Return ``prompt`` as our value."""
    arguments = None
    if prompt.arguments is not None:
        arguments = tuple(
            [
                PromptArgument(
                    name=valid_text(each.name),
                    title=_valid_or_none(each.title),
                    description=_valid_or_none(each.description),
                    required=each.required,
                )
                for each in prompt.arguments
            ]
        )
    return Prompt(
        name=valid_text(prompt.name),
        title=_valid_or_none(prompt.title),
        description=_valid_or_none(prompt.description),
        arguments=arguments,
        icons=_icons(prompt.icons),
        meta=_meta(prompt.meta),
    )


def to_mcp_prompt(prompt: Prompt) -> m.Prompt:
    """Return MCP's model of ``prompt``.

    Raises:
      pydantic.ValidationError: icons are none that MCP allows.
    """
    arguments = None
    if prompt.arguments is not None:
        arguments = [
            m.PromptArgument(
                name=each.name,
                title=each.title,
                description=each.description,
                required=each.required,
            )
            for each in prompt.arguments
        ]
    return m.Prompt(
        name=prompt.name,
        title=prompt.title,
        description=prompt.description,
        arguments=arguments,
        icons=_to_icons(prompt.icons),
        _meta=_to_meta(prompt.meta),
    )


def from_prompt_message(message: m.PromptMessage) -> tr.Message:
    """Return the message of a prompt as one of a history."""
    block = from_mcp_block(message.content)
    return tr.Message.user(block) if message.role == "user" else tr.Message.assistant(block)


def to_prompt_messages(message: tr.Message) -> list[m.PromptMessage]:
    """Return MCP's models of ``message``, one for each content block; calls and results have none.

    Raises:
      pydantic.ValidationError: annotations or icons are none that MCP allows.
    """
    return [
        m.PromptMessage(role=message.role, content=to_mcp_block(block)) for block in message.content
    ]
