"""Sampling's messages: the conversion between MCP's and ours, both ways. Total and pure.

What a server asks is a small conversation of its own. Its assistant may ask for
tools; those are the server's, which runs them itself and sends the results along
with its next question.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import mcp_types as m

import trio_runner as tr
import trio_runner_adapters.mcp._convert as convert

#: Where a message's ``meta`` keeps the ``_meta`` of its tool calls, by their ids: a `ToolCall`
#: has none of its own.
TOOL_USE_META: Final = "mcp_tool_use_meta"


# --- messages -------------------------------------------------------------------


def from_sampling_message(message: m.SamplingMessage) -> tr.Message:
    """Return the `Message` that says the same.

    Tool calls and results go into fields of their own, behind the other content; the
    ``_meta`` of calls goes into ``meta`` under `TOOL_USE_META`. A result has the name
    of its call only when it comes with it.
    """
    content: list[tr.ContentBlock] = []
    calls: list[tr.ToolCall] = []
    results: list[tr.ToolResult] = []
    call_meta: dict[str, Any] = {}
    for block in message.content_as_list:
        match block:
            case m.ToolUseContent():
                call = tr.ToolCall(
                    convert.valid_text(block.id),
                    convert.valid_text(block.name),
                    convert.valid_json(block.input),
                )
                calls.append(call)
                if block.meta is not None:
                    call_meta[call.id] = convert.valid_json(dict(block.meta))
            case m.ToolResultContent():
                results.append(_from_result(block))
            case _:
                content.append(convert.from_mcp_block(block))
    meta: dict[str, Any] = {} if message.meta is None else convert.valid_json(dict(message.meta))
    if call_meta:
        meta[TOOL_USE_META] = call_meta
    return tr.Message(
        message.role,
        content,
        calls,
        results,
        _stopped(message.role, calls),
        meta=meta,
    )


def _stopped(role: str, calls: Sequence[tr.ToolCall]) -> tr.StopReason | None:
    if role == "user":
        return None
    return tr.StopReason.TOOL_USE if calls else tr.StopReason.END_TURN


def _from_result(block: m.ToolResultContent) -> tr.ToolResult:
    return tr.ToolResult(
        call_id=convert.valid_text(block.tool_use_id),
        content=[convert.from_mcp_block(each) for each in block.content],
        structured_content=convert.valid_json(block.structured_content),
        status=tr.CallStatus.ERROR if block.is_error else tr.CallStatus.OK,
        meta={} if block.meta is None else convert.valid_json(dict(block.meta)),
    )


def to_sampling_message(message: tr.Message) -> m.SamplingMessage:
    """Return MCP's model of ``message``.

    A block of a kind that sampling does not have (a resource, a link to one) becomes
    the text that it stands for.
    """
    meta = {key: value for key, value in message.meta.items() if key != TOOL_USE_META}
    blocks = [*_basic(message.content), *_tool_uses(message)]
    return m.SamplingMessage(
        role=message.role,
        content=[*blocks, *[_to_result_block(each) for each in message.tool_results]],
        _meta=meta or None,
    )


def _basic(content: Iterable[tr.ContentBlock]) -> list[m.SamplingMessageContentBlock]:
    blocks: list[m.SamplingMessageContentBlock] = []
    for block in content:
        match block:
            case tr.TextContent(text=text):
                made = convert.to_mcp_block(attrs.evolve(block, text=convert.valid_text(text)))
            case tr.ImageContent() | tr.AudioContent():
                made = convert.to_mcp_block(block)
            case tr.EmbeddedResource():
                made = m.TextContent(text=convert.valid_text(block.text or block.uri))
            case tr.ResourceLink():
                made = m.TextContent(text=convert.valid_text(block.uri))
        blocks.append(cast("m.SamplingMessageContentBlock", made))
    return blocks


def _tool_uses(message: tr.Message) -> list[m.ToolUseContent]:
    by_id: Mapping[str, Any] = message.meta.get(TOOL_USE_META) or {}
    fresh = _fresh_ids(call.id for call in message.tool_calls)
    return [
        m.ToolUseContent(
            id=convert.valid_text(call.id) if call.id else next(fresh),
            name=convert.valid_text(call.name),
            input=convert.valid_json(_as_object(call)),
            _meta=by_id.get(call.id),
        )
        for call in message.tool_calls
    ]


def _fresh_ids(taken: Iterable[str]) -> Iterator[str]:
    """Ids for the calls of a reply that came without one."""
    there = set(taken)
    return (each for number in itertools.count() if (each := f"call-{number}") not in there)


def _as_object(call: tr.ToolCall) -> dict[str, Any]:
    """The arguments, which a model may hand over as text or leave out."""
    arguments: Any = call.arguments
    if not arguments or (type(arguments) is str and arguments.isspace()):
        return {}
    if type(arguments) is str:
        with contextlib.suppress(ValueError, RecursionError):  # then it stays text
            arguments = json.loads(arguments)
    if type(arguments) is not dict:
        raise ValueError(f"the model's call of {call.name!r} has arguments that are no object")
    return cast("dict[str, Any]", arguments)


def _to_result_block(result: tr.ToolResult) -> m.ToolResultContent:
    made = convert.to_mcp_result(result)
    fields: dict[str, Any] = {"content": made.content, "_meta": made.meta}
    if result.structured_content is not None:
        fields["structured_content"] = made.structured_content
    return m.ToolResultContent(
        tool_use_id=result.call_id, is_error=True if result.is_error else None, **fields
    )


# --- the answer -----------------------------------------------------------------


def to_sampling_result(
    reply: tr.Message,
    *,
    originals: Mapping[str, str],
    with_tools: bool,
    model: str,
    several: bool,
) -> m.CreateMessageResult | m.CreateMessageResultWithTools:
    """The reply as the protocol wants it: one block where one will do.

    Raises:
      ValueError: it asks for tools though none were offered, or cannot be said in the
        server's version of the protocol.
    """
    if reply.tool_calls and not with_tools:
        raise ValueError("the model asked for tools, but the server offered none")
    calls = [
        attrs.evolve(call, name=originals.get(call.name, call.name)) for call in reply.tool_calls
    ]
    blocks = _basic(reply.content) + _tool_uses(attrs.evolve(reply, tool_calls=calls))
    reason = None if reply.stop_reason is None else reply.stop_reason.value
    shared: dict[str, Any] = {"role": "assistant", "model": model, "stop_reason": reason}
    if not with_tools and len(blocks) > 1:
        blocks = _joined(blocks)
    blocks = blocks or [m.TextContent(text="")]
    match blocks:
        case [m.TextContent() | m.ImageContent() | m.AudioContent() as block] if not with_tools:
            return m.CreateMessageResult(content=block, **shared)
        case [block]:
            return m.CreateMessageResultWithTools(content=block, **shared)
        case _ if several:
            return m.CreateMessageResultWithTools(content=blocks, **shared)
        case _:
            raise ValueError(
                f"the model's reply has {len(blocks)} parts that cannot be joined; the server's "
                "version of the protocol takes one"
            )


def _joined(
    blocks: list[m.SamplingMessageContentBlock],
) -> list[m.SamplingMessageContentBlock]:
    """Texts that follow each other as one."""
    joined: list[m.SamplingMessageContentBlock] = []
    for bare, group in itertools.groupby(blocks, _is_bare_text):
        if bare:
            texts = [cast("m.TextContent", each).text for each in group]
            joined.append(m.TextContent(text="\n".join(texts)))
        else:
            joined.extend(group)
    return joined


def _is_bare_text(block: m.SamplingMessageContentBlock) -> bool:
    match block:
        case m.TextContent(annotations=None, meta=None):
            return True
        case _:
            return False
