"""What a tool returned, as a result that every journal and provider takes.

What may live here: `result_from_value` and its parts. It is total: a value
that cannot be converted is an error result which says that the tool did run.
Data goes through `trio_runner._core.plain_data`, errors through
`trio_runner._core.describe`; a result that is too large through `trio_runner._core.cap`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, cast

import trio_runner._core.describe as describe
import trio_runner._core.json_data as json_data
import trio_runner._core.values as v
from trio_runner._core.cap import cap_result as cap_result
from trio_runner._core.describe import describe_error as describe_error
from trio_runner._core.json_data import safe_text as safe_text
from trio_runner._core.plain_data import Conversion, NotDataError, base64_text, close_coroutine

#: Stands for a result that says nothing: None, blank text, no blocks.
NO_OUTPUT: Final = "(no output)"

#: Whole numbers below this are written without looking further.
_SHORT: Final = 10**18

_OK: Final = v.CallStatus.OK
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_json_text: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False
).encode


# --- results --------------------------------------------------------------------


def result_from_value(
    value: object, *, call_id: str, name: str, duration: float | None
) -> v.ToolResult:
    """Convert what a tool returned; never raises.

    * None and blank text: the text ``(no output)``; other text is a text block.
    * Content blocks, or a list of blocks and text with a block in it: the content.
    * A `ToolResult`: stamped with this call's id, name and duration, whatever
      it carried; its values are made plain and its text valid.
    * Data (dict, list, tuple, set, number, bool, dataclass, attrs, pydantic):
      ``structured_content``, and the same as JSON in a text block. A date, UUID,
      path or `decimal.Decimal` is text; an enum member is its value.
    * bytes: text when they are UTF-8 without control characters; an image when
      they begin as PNG, JPEG, GIF or WebP do; else an embedded resource.
    * Anything else: a result of status ``error`` which says that the tool ran.

    Args:
      duration: seconds the call ran.
    """
    if type(value) is str:  # by far the most frequent, so it does nothing that it need not
        text = value if value.isascii() else safe_text(value)
        if not text or text.isspace():
            text = NO_OUTPUT
        return v.make_result(call_id, name, text, None, _OK, duration)
    if value is None:
        return v.make_result(call_id, name, NO_OUTPUT, None, _OK, duration)
    try:
        if type(value) is int and -_SHORT < value < _SHORT:
            return v.make_result(call_id, name, str(value), value, _OK, duration)
        kind = type(value)
        if kind is dict:
            data = Conversion().top(value)
            return v.make_result(call_id, name, _json_text(data), data, _OK, duration)
        return _converted(value, call_id, name, duration)
    except Exception as problem:  # noqa: BLE001  the tool border: conversion runs the user's code
        return _unconvertible(value, problem, call_id, name, duration)


def _converted(value: object, call_id: str, name: str, duration: float | None) -> v.ToolResult:
    match value:
        case v.ToolResult():
            return _restamped(value, call_id, name, duration)
        case v.TextContent() | v.ImageContent() | v.AudioContent() | v.ResourceLink():
            content = (_clean_block(value),)
        case v.EmbeddedResource():
            content = (_clean_block(value),)
        case list() | tuple() if _is_content(cast("Sequence[object]", value)):
            content = tuple([
                v.TextContent(safe_text(item)) if type(item) is str
                else _clean_block(cast("v.ContentBlock", item))
                for item in cast("Sequence[object]", value)
            ])  # fmt: skip
        case bytes() | bytearray() | memoryview():
            content = (_block_from_bytes(bytes(cast("Any", value)), call_id),)
        case _:
            data = Conversion().top(value)
            if type(data) is str or data is None:
                content = (v.TextContent(data or NO_OUTPUT),)
            else:
                return v.ToolResult(call_id, name, _json_text(data), data, _OK, duration)
    if _says_nothing(content):
        content = (v.TextContent(NO_OUTPUT),)
    return v.ToolResult(call_id, name, content, None, _OK, duration)


def _restamped(
    result: v.ToolResult, call_id: str, name: str, duration: float | None
) -> v.ToolResult:
    content = tuple([_clean_block(block) for block in result.content])
    structured = result.structured_content
    if structured is not None:
        structured = Conversion().part(structured)
    if _says_nothing(content):
        text = NO_OUTPUT if structured is None else _json_text(structured)
        content = (v.TextContent(text),)
    status = result.status
    if type(status) is not v.CallStatus:
        status = v.CallStatus(status)
    meta = _plain_object(result.meta) or {}
    return v.ToolResult(call_id, name, content, structured, status, duration, meta)


def _unconvertible(
    value: object, problem: Exception, call_id: str, name: str, duration: float | None
) -> v.ToolResult:
    close_coroutine(value)
    why = (
        ""
        if type(problem) is NotDataError
        else f" ({describe.shorten(describe.describe_error(problem), 300)})"
    )
    text = (
        f"The tool did run, and returned an {describe.shown(value)}. That could not be converted "
        f"to a result{why}, so its output is lost. Whatever the tool changed has been changed."
    )
    return v.ToolResult(call_id, name, text, None, v.CallStatus.ERROR, duration)


# --- content blocks -------------------------------------------------------------


def _is_content(items: Sequence[object]) -> bool:
    """Whether these are blocks and text only, with a block among them (else it is data)."""
    has_block = False
    for item in items:
        if type(item) in v.CONTENT_BLOCK_TYPES:
            has_block = True
        elif type(item) is not str:
            return False
    return has_block


def is_short_text(result: v.ToolResult, max_bytes: int) -> bool:
    """Whether a result is one plain text of at most ``max_bytes``.

    Neither converting such a result nor capping it would change anything.
    """
    content = result.content
    if len(content) != 1 or result.structured_content is not None or result.meta:
        return False
    block = content[0]
    if type(block) is not v.TextContent or block.annotations is not None or block.meta is not None:
        return False
    text = block.text
    return (
        type(text) is str
        and text.isascii()  # so that its characters are its bytes
        and 0 < len(text) <= max_bytes
        and not text.isspace()
    )


def _says_nothing(content: tuple[v.ContentBlock, ...]) -> bool:
    for block in content:
        if type(block) is not v.TextContent or not (not block.text or block.text.isspace()):
            return False
    return True


def _clean_block(block: v.ContentBlock) -> v.ContentBlock:
    """The same block when all in it is valid text and plain data, else one that is."""
    if (
        type(block) is v.TextContent
        and block.annotations is None
        and block.meta is None
        and type(block.text) is str
        and json_data.is_safe_text(block.text)
    ):
        return block
    annotations, meta = _plain_object(block.annotations), _plain_object(block.meta)
    match block:
        case v.TextContent():
            return v.TextContent(_text(block.text) or "", annotations, meta)
        case v.ImageContent():
            mime_type = _text(block.mime_type) or "application/octet-stream"
            return v.ImageContent(_base64_text(block.data) or "", mime_type, annotations, meta)
        case v.AudioContent():
            mime_type = _text(block.mime_type) or "application/octet-stream"
            return v.AudioContent(_base64_text(block.data) or "", mime_type, annotations, meta)
        case v.ResourceLink():
            return _clean_link(block, annotations, meta)
        case v.EmbeddedResource():
            text = _text(block.text)
            blob = None if text is not None else _base64_text(block.blob)
            return v.EmbeddedResource(
                _text(block.uri) or "",
                "" if text is None and blob is None else text,
                blob,
                _text(block.mime_type),
                _plain_object(block.resource_meta),
                annotations,
                meta,
            )


def _clean_link(
    link: v.ResourceLink, annotations: v.JSONObject | None, meta: v.JSONObject | None
) -> v.ResourceLink:
    icons = None
    if link.icons is not None:
        icons = tuple([_plain_object(icon) or {} for icon in link.icons])
    return v.ResourceLink(
        _text(link.uri) or "",
        _text(link.name) or "",
        _text(link.title),
        _text(link.description),
        _text(link.mime_type),
        link.size if type(link.size) is int else None,
        icons,
        annotations,
        meta,
    )


def _text(value: object) -> str | None:
    """What stands in a field for text: valid text, whatever was put there."""
    if value is None:
        return None
    data = Conversion().part(value)
    return data if type(data) is str else _json_text(data)


def _base64_text(value: object) -> str | None:
    """As `_text`, but raw bytes are encoded: a frequent slip, and its meaning is plain."""
    match value:
        case bytes() | bytearray() | memoryview():
            return base64_text(cast("bytes", value))
        case _:
            return _text(value)


def _plain_object(value: object) -> v.JSONObject | None:
    if value is None:
        return None
    data = Conversion().part(value)
    return data if type(data) is dict else {"value": data}


def _block_from_bytes(data: bytes, call_id: str) -> v.ContentBlock:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        pass
    else:
        # Files of every binary format hold control characters, if only in their lengths.
        if not _CONTROL.search(text):
            return v.TextContent(text)
    mime_type = _image_type(data)
    if mime_type is not None:
        return v.ImageContent(base64_text(data), mime_type)
    return v.EmbeddedResource(
        f"result:{call_id}", blob=base64_text(data), mime_type="application/octet-stream"
    )


def _image_type(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None
