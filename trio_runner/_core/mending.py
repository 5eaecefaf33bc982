"""Mending one message by itself, before `trio_runner._core.reconcile` pairs them.

What may live here: pure functions that take a message of any state apart into
pieces that are good by themselves (text that encodes, arguments that are an
object, results that are not empty, a role that fits), and tell what they changed.
Nothing here looks at another message; the ids are left as they came.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, TypeAlias, cast

import attrs

import trio_runner._core.json_data as json_data
import trio_runner._core.normalise as normalise
import trio_runner._core.validity as validity
import trio_runner._core.values as v
from trio_runner._core.quick import ByFields

NO_OUTPUT: Final = "(no output)"

#: Is told each change, in words.
Tell: TypeAlias = Callable[[str], None]


@attrs.frozen(eq=False, repr=False)
class Part(ByFields):
    """A message taken apart, each piece mended by itself.

    Attributes:
      index: of the message in the input.
      source: the message it was; what is not named below is taken from there.
      calls, results: with the ids they came with, whatever these are.
    """

    index: int
    source: v.Message
    role: str
    content: tuple[v.ContentBlock, ...]
    calls: tuple[v.ToolCall, ...]
    results: tuple[v.ToolResult, ...]

    @property
    def has_content(self) -> bool:
        """Whether the content is not empty."""
        return validity.has_content(self.content)


def take_apart(index: int, message: v.Message, tell: Tell) -> Part | None:
    """Message number ``index`` in good pieces, the same objects wherever they were good.

    None for what is no `Message`. ``tell`` is told each change.
    """
    match cast("object", message):
        case v.Message():
            pass
        case _:
            tell(f"a {type(message).__name__} was dropped; expected a Message")
            return None
    if not validity.message_problems(message):
        return Part(
            index,
            message,
            message.role,
            message.content,
            message.tool_calls,
            message.tool_results,
        )
    content = _mended_content(message.content, tell)
    calls = [
        call
        for position, given in enumerate(message.tool_calls)
        if (call := _mended_call(position, given, tell)) is not None
    ]
    results = [
        result
        for position, given in enumerate(message.tool_results)
        if (result := _mended_result(position, given, tell)) is not None
    ]
    role = _fitting_role(message, content, bool(calls), bool(results))
    if role != cast("object", message.role):
        tell(f"the role was made {role!r}, which fits what the message holds")
    return Part(index, message, role, content, tuple(calls), tuple(results))


def _fitting_role(
    message: v.Message, content: tuple[v.ContentBlock, ...], has_calls: bool, has_results: bool
) -> str:
    role = cast("object", message.role)
    match role:
        case "user":
            # Text next to the calls stays the user's; `reconcile` takes the calls out.
            alone = has_calls and not has_results and not validity.has_content(content)
            return "assistant" if alone else "user"
        case "assistant":
            alone = has_results and not has_calls and not validity.has_content(content)
            return "user" if alone else "assistant"
        case _:
            return "assistant" if has_calls else "user"


def _mended_content(content: tuple[v.ContentBlock, ...], tell: Tell) -> tuple[v.ContentBlock, ...]:
    if not validity.content_problems(content):
        return content
    blocks: list[v.ContentBlock] = []
    for position, block in enumerate(content):
        problems = validity.block_problems(block)
        safe = normalise.safe_block(block)
        if safe is None:
            tell(f"block {position} was dropped: {'; '.join(problems)}")
            continue
        if problems:
            tell(f"block {position} was mended: {'; '.join(problems)}")
        blocks.append(safe)
    return tuple(blocks)


def _mended_call(position: int, call: v.ToolCall, tell: Tell) -> v.ToolCall | None:
    match cast("object", call):
        case v.ToolCall():
            pass
        case _:
            tell(f"call {position} was dropped: found a {type(call).__name__}")
            return None
    problems = validity.call_body_problems(call)
    if not problems:
        return call
    tell(f"call {position} was mended: {'; '.join(problems)}")
    arguments, problem = call.arguments, None
    if type(arguments) is not dict or not json_data.is_plain_json(arguments):
        arguments, problem = normalise.normal_arguments(arguments)
    if call.arguments_error is not None:
        problem = normalise.error_text(call.arguments_error)
    name = cast("object", call.name)
    if not isinstance(name, str) or not name or not json_data.is_safe_text(name):
        name = normalise.legal_name(name)
    return attrs.evolve(call, name=name, arguments=arguments, arguments_error=problem)


def _mended_result(position: int, result: v.ToolResult, tell: Tell) -> v.ToolResult | None:
    match cast("object", result):
        case v.ToolResult():
            pass
        case _:
            tell(f"result {position} was dropped: found a {type(result).__name__}")
            return None
    problems = validity.result_body_problems(result)
    if not problems:
        return result
    tell(f"result {position} was mended: {'; '.join(problems)}")
    name = cast("object", result.name)
    try:
        structured = json_data.plain_json(result.structured_content)
    except json_data.NotJSONError:
        structured = None
    content = _mended_content(result.content, _ignore)
    if not validity.has_content(content):
        # ASCII, so that it encodes whatever is in there.
        text = NO_OUTPUT if structured is None else json.dumps(structured)
        content = (v.TextContent(text),)
    return attrs.evolve(
        result,
        name=json_data.safe_text(name) if isinstance(name, str) else "",
        content=content,
        structured_content=structured,
    )


def _ignore(text: str) -> None:
    """The problems of a result's blocks are told with the result."""
