"""A conversation as text that a model reads: who said what, calls and results in words.

What may live here: pure text. It is for summaries, so it is bounded and leaves out what
no text can say. A page for people is ``_journal/markdown.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import assert_never

import trio_runner._core.values as v
from trio_runner._core.compaction import is_summary


def transcript(messages: Iterable[v.Message], max_part_characters: int) -> str:
    """The messages as text.

    Args:
      max_part_characters: of each text, call and result at most so many are shown.
    """
    return "\n\n".join(
        part for message in messages for part in _parts(message, max_part_characters)
    )


def _parts(message: v.Message, size: int) -> Iterator[str]:
    who = "User" if message.role == "user" else "Assistant"
    if is_summary(message):
        who = "Summary of what was before"
        size = len(message.text)  # it is short already, and what it leaves out is gone
    said = _content(message.content)
    if said:
        yield f"{who}: {_clipped(said, size)}"
    for call in message.tool_calls:
        arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
        yield f"Assistant calls {call.name}({_clipped(arguments, size)})"
    for result in message.tool_results:
        status = "" if not result.is_error else f" ({result.status.value})"
        yield f"Result of {result.name}{status}: {_clipped(_content(result.content), size)}"


def _content(content: Iterable[v.ContentBlock]) -> str:
    return "\n".join(map(_block, content))


def _block(block: v.ContentBlock) -> str:
    match block:
        case v.TextContent(text=text):
            return text
        case v.ImageContent(mime_type=kind) | v.AudioContent(mime_type=kind):
            return f"[{kind}]"
        case v.ResourceLink(uri=uri):
            return f"[{uri}]"
        case v.EmbeddedResource(uri=uri, text=text):
            return f"[{uri}]" if text is None else f"[{uri}]\n{text}"
        case _:
            assert_never(block)


def _clipped(text: str, size: int) -> str:
    """Head and tail of a text that is too long, and how long it was."""
    if len(text) <= size:
        return text
    half = size // 2
    return f"{text[:half]} … [{len(text)} characters] … {text[-half:]}"
