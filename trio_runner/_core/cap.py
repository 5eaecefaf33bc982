"""The cap on the size of one result.

What may live here: measuring a result and cutting it to a number of bytes.
The size of a result is the UTF-8 size of its text, its base64 data and its other
fields, and of its structured content as JSON. Frames of a wire format are not counted.
"""

from __future__ import annotations

import json.encoder
from collections.abc import Mapping, Sequence
from typing import Final, cast

import attrs

import trio_runner._core.values as v

#: How a JSON text writes a string; escapes nothing but what it must.
_quoted: Final = json.encoder.encode_basestring

#: Text is measured in pieces of this many characters, so that no copy of 50 MB is made.
_PIECE: Final = 1 << 16


def cap_result(result: v.ToolResult, max_bytes: int) -> v.ToolResult:
    """Return ``result`` itself when it fits ``max_bytes``, else one that was cut until it does.

    Text is cut first, to head and tail around a marker that gives the full
    size, never inside a character; but an eighth of ``max_bytes`` is left to
    it before anything else is kept. Then blocks that are not text are left out,
    then structured content and ``meta``: as many as must be, never in part. A
    text block at the end says what was left out.

    Args:
      max_bytes: UTF-8 bytes over all of the result. Below a hundred or so there
        is room for a piece of the marker only.
    """
    content = result.content
    if len(content) == 1 and result.structured_content is None and not result.meta:
        block = content[0]
        if type(block) is v.TextContent and block.annotations is None and block.meta is None:
            text = block.text
            # A character takes at most four bytes, so most results need no encoding.
            if 4 * len(text) <= max_bytes or (text.isascii() and len(text) <= max_bytes):
                return result
    sizes = [_block_bytes(block) for block in content]
    structured_bytes = _json_bytes(result.structured_content)
    meta_bytes = _json_bytes(result.meta or None)
    if sum(sizes) + structured_bytes + meta_bytes <= max_bytes:
        return result
    return _cut(result, sizes, structured_bytes, meta_bytes, max_bytes)


# --- measuring ------------------------------------------------------------------


def _utf8_bytes(text: str | None) -> int:
    if not text:
        return 0
    if text.isascii():
        return len(text)
    return sum([
        len(text[start : start + _PIECE].encode("utf-8", "surrogatepass"))
        for start in range(0, len(text), _PIECE)
    ])  # fmt: skip


def _json_bytes(value: object) -> int:
    """The size of ``json.dumps(value, ensure_ascii=False)`` as UTF-8, without writing it out."""
    if value is None:
        return 0  # the field is not there
    total = 0
    waiting: list[object] = [value]  # a loop, so that depth costs no stack
    while waiting:
        item = waiting.pop()
        kind = type(item)
        if kind is str:
            total += _utf8_bytes(_quoted(cast("str", item)))
        elif kind is dict:
            pairs = cast("dict[str, object]", item)
            total += 4 * len(pairs) if pairs else 2  # braces, and ", " and ": "
            waiting.extend(pairs)
            waiting.extend(pairs.values())
        elif kind is list:
            items = cast("list[object]", item)
            total += 2 * len(items) if items else 2  # brackets and ", "
            waiting.extend(items)
        else:
            total += 4 if item is None else len(repr(item))
    return total


def _block_bytes(block: v.ContentBlock) -> int:
    extra = 0
    if block.annotations is not None or block.meta is not None:
        extra = _json_bytes(block.annotations) + _json_bytes(block.meta)
    match block:
        case v.TextContent():
            return extra + _utf8_bytes(block.text)
        case v.ImageContent() | v.AudioContent():
            return extra + _utf8_bytes(block.data) + _utf8_bytes(block.mime_type)
        case v.EmbeddedResource():
            texts = (block.uri, block.text, block.blob, block.mime_type)
            return extra + _json_bytes(block.resource_meta) + sum(map(_utf8_bytes, texts))
        case v.ResourceLink():
            texts = (block.uri, block.name, block.title, block.description, block.mime_type)
            icons = sum(map(_json_bytes, block.icons or ()))
            return extra + icons + 8 + sum(map(_utf8_bytes, texts))


def _text_in(block: v.ContentBlock) -> str | None:
    """The text of a block that can be cut, None for one that is kept or left out whole."""
    match block:
        case v.TextContent() | v.EmbeddedResource():
            return block.text
        case _:
            return None


# --- cutting --------------------------------------------------------------------


@attrs.define
class _LeftOut:
    """What did not fit, for the note at the end."""

    blocks: int = 0
    block_bytes: int = 0
    structured_bytes: int = 0
    meta_bytes: int = 0

    def note(self) -> str:
        parts: list[str] = []
        if self.blocks:
            plural = "block" if self.blocks == 1 else "blocks"
            parts.append(f"{self.blocks} {plural} of {self.block_bytes} bytes")
        if self.structured_bytes:
            parts.append(f"structured content of {self.structured_bytes} bytes")
        if self.meta_bytes:
            parts.append(f"metadata of {self.meta_bytes} bytes")
        return f"[left out for size: {', '.join(parts)}]" if parts else ""


def _cut(
    result: v.ToolResult,
    sizes: list[int],
    structured_bytes: int,
    meta_bytes: int,
    max_bytes: int,
) -> v.ToolResult:
    content = result.content
    whole = [(b, n) for b, n in zip(content, sizes, strict=True) if _text_in(b) is None]
    other_bytes = sum([n for _, n in whole])
    text_bytes = sum(sizes) - other_bytes
    mark = f"\n[... cut: the full text has {text_bytes} bytes ...]\n"
    worst = _LeftOut(len(whole), other_bytes, structured_bytes, meta_bytes)
    room = max_bytes - len(worst.note())
    if text_bytes:
        room -= min(text_bytes, max_bytes // 8 + len(mark))

    left_out = _LeftOut()
    structured = result.structured_content
    meta: Mapping[str, object] = result.meta
    if structured_bytes <= room:
        room -= structured_bytes
    else:
        structured, left_out.structured_bytes = None, structured_bytes
    if meta_bytes <= room:
        room -= meta_bytes
    else:
        meta, left_out.meta_bytes = {}, meta_bytes
    kept: list[tuple[v.ContentBlock, int]] = []
    for block, size in zip(content, sizes, strict=True):
        if _text_in(block) is not None:
            kept.append((block, size))
        elif size <= room:
            room -= size
            kept.append((block, size))
        else:
            left_out.blocks += 1
            left_out.block_bytes += size

    note = left_out.note()
    used = structured_bytes - left_out.structured_bytes + meta_bytes - left_out.meta_bytes
    used += other_bytes - left_out.block_bytes
    blocks = _cut_text(kept, text_bytes, max_bytes - used - len(note), mark)
    if note:
        blocks.append(v.TextContent(note))
    if sum(map(_block_bytes, blocks)) + used > max_bytes:  # not even the marker fits
        blocks = [v.TextContent(_head((mark + note).strip(), max_bytes))]
        structured, meta = None, {}
    return v.ToolResult(
        result.call_id, result.name, blocks, structured, result.status, result.duration, meta
    )


def _cut_text(
    kept: Sequence[tuple[v.ContentBlock, int]], text_bytes: int, room: int, mark: str
) -> list[v.ContentBlock]:
    """The blocks, with their text cut from the middle when it takes more than ``room``."""
    if text_bytes == 0 or text_bytes <= room:
        return [block for block, _ in kept]
    head_room = max(0, room - len(mark) + 1) // 2
    tail_room = max(0, room - len(mark)) // 2
    front: list[v.ContentBlock] = []
    first = 0
    # Both loops end: together the texts are larger than the two rooms.
    while (text := _text_in(kept[first][0])) is None or kept[first][1] <= head_room:
        front.append(kept[first][0])
        head_room -= 0 if text is None else kept[first][1]
        first += 1
    back: list[v.ContentBlock] = []
    last = len(kept) - 1
    while last > first and (
        (text := _text_in(kept[last][0])) is None or kept[last][1] <= tail_room
    ):
        back.append(kept[last][0])
        tail_room -= 0 if text is None else kept[last][1]
        last -= 1
    back.reverse()
    head_text = cast("str", _text_in(kept[first][0]))
    if first == last:
        middle = [v.TextContent(_squeezed(head_text, head_room, tail_room, mark))]
    else:
        between = [block for block, _ in kept[first + 1 : last] if _text_in(block) is None]
        tail = _tail(cast("str", _text_in(kept[last][0])), tail_room)
        middle = [v.TextContent(_head(head_text, head_room) + mark), *between]
        middle += [v.TextContent(tail)] if tail else []
    return [*front, *middle, *back]


def _squeezed(text: str, head_room: int, tail_room: int, mark: str) -> str:
    if _utf8_bytes(text) <= head_room + tail_room:  # it was the block's metadata that is large
        return text + mark
    return _head(text, head_room) + mark + _tail(text, tail_room)


def _head(text: str, max_bytes: int) -> str:
    """The longest beginning of ``text`` that takes at most ``max_bytes``."""
    # Cut to that many characters first: the rest need not be encoded.
    return text[:max_bytes].encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def _tail(text: str, max_bytes: int) -> str:
    """The longest end of ``text`` that takes at most ``max_bytes``."""
    if max_bytes <= 0:
        return ""
    return text[-max_bytes:].encode("utf-8", "replace")[-max_bytes:].decode("utf-8", "ignore")
