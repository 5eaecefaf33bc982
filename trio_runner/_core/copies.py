"""Copies of messages that share nothing which could be changed.

What may live here: pure functions. Messages are frozen, but the dicts inside (arguments,
``meta``, structured content) are plain dicts, for speed. So a message is copied where it
comes in from a caller, who may change his dicts later, and where it goes to a hook, which
may change what it is given. The history and the records stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import attrs

import trio_runner._core.json_data as json_data
import trio_runner._core.normalise as normalise
import trio_runner._core.validity as validity
import trio_runner._core.values as v

_Block = TypeVar("_Block", bound=v.ContentBlock)


def own_message(message: v.Message) -> v.Message:
    """``message`` with dicts of its own, its ``meta`` made plain; itself where it has none."""
    changes: dict[str, Any] = {
        "content": _own_blocks(message.content),
        "tool_calls": _unless_same(message.tool_calls, map(_own_call, message.tool_calls)),
        "tool_results": own_results(message.tool_results),
        "meta": _own_json(normalise.plain_meta(message.meta)),
    }
    if not message.meta and all(
        changes[name] is getattr(message, name)
        for name in ("content", "tool_calls", "tool_results")
    ):
        return message
    return attrs.evolve(message, **changes)


def own_results(results: tuple[v.ToolResult, ...]) -> tuple[v.ToolResult, ...]:
    """``results`` with dicts of their own, ``meta`` made plain."""
    return _unless_same(results, map(_own_result, results))


def _own_call(call: v.ToolCall) -> v.ToolCall:
    if not call.arguments:
        return call
    return attrs.evolve(call, arguments=_own_json(call.arguments))


def _own_result(result: v.ToolResult) -> v.ToolResult:
    content = _own_blocks(result.content)
    structured = _own_json(result.structured_content)
    if not result.meta and content is result.content and structured is result.structured_content:
        return result
    meta = _own_json(normalise.plain_meta(result.meta))
    return attrs.evolve(result, content=content, structured_content=structured, meta=meta)


def _own_blocks(blocks: tuple[v.ContentBlock, ...]) -> tuple[v.ContentBlock, ...]:
    return _unless_same(blocks, map(_own_block, blocks))


def _own_block(block: _Block) -> _Block:
    changes = {
        name: _own_json(value)
        for name in validity.JSON_FIELDS
        if (value := getattr(block, name, None))
    }
    return attrs.evolve(block, **changes) if changes else block


def _own_json(value: Any) -> Any:
    """A copy; ``value`` itself where it is no plain JSON, which is for others to judge."""
    return json_data.copy_json(value) if json_data.is_plain_json(value) else value


_Item = TypeVar("_Item")


def _unless_same(old: tuple[_Item, ...], new: Iterable[_Item]) -> tuple[_Item, ...]:
    """The old tuple when every item is the very same."""
    made = tuple(new)
    return old if all(one is other for one, other in zip(old, made, strict=True)) else made
