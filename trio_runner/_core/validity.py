"""The rule that makes a list of messages a valid history (DESIGN, C2).

What may live here: pure checks that say what is wrong, in sentences, and
change nothing. Repairing is `trio_runner._core.reconcile`.

The rule:

* an assistant message with calls is followed at once by a user message with
  exactly one result for each call, with the same ids, in the same order;
* there is no result without a call, no call outside an assistant message and
  no result outside a user message;
* the id of a call is text, not blank, and unique in the history;
* no message and no result is empty: there is text that is not blank, or
  another block, or (messages) calls or results;
* all text encodes as UTF-8; arguments are a plain JSON object, structured
  content is plain JSON.

Two user messages or two assistant messages in a row are valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, cast

import trio_runner._core.errors as errors
import trio_runner._core.json_data as json_data
import trio_runner._core.values as v

#: The fields of each block type that must be text, and those that may be None.
TEXT_FIELDS: Final = {
    v.TextContent: ("text",),
    v.ImageContent: ("data", "mime_type"),
    v.AudioContent: ("data", "mime_type"),
    v.ResourceLink: ("uri", "name"),
    v.EmbeddedResource: ("uri",),
}
OPTIONAL_TEXT_FIELDS: Final = {
    v.TextContent: (),
    v.ImageContent: (),
    v.AudioContent: (),
    v.ResourceLink: ("title", "description", "mime_type"),
    v.EmbeddedResource: ("text", "blob", "mime_type"),
}
#: Mapping fields that blocks have; each is None or a plain JSON object.
JSON_FIELDS: Final = ("annotations", "meta", "resource_meta")


# --- the public checks ----------------------------------------------------------


def check_history(messages: Iterable[v.Message]) -> None:
    """Raise `HistoryError` unless ``messages`` is a valid history."""
    problems = history_problems(messages)
    if problems:
        raise errors.HistoryError(problems)


def history_problems(messages: Iterable[v.Message]) -> list[str]:
    """All that is wrong with ``messages`` as a history: one sentence each, [] when valid.

    Each sentence begins with the index of its message. Linear time.
    """
    problems: list[str] = []
    seen: set[str] = set()
    asking: tuple[int, Sequence[v.ToolCall]] | None = None
    for index, message in enumerate(messages):
        problems.extend(f"message {index}: {problem}" for problem in message_problems(message))
        if not _is_message(message):
            continue
        if asking is not None:
            problems.extend(_pairing_problems(*asking, index, message))
            asking = None
        elif message.tool_results:
            problems.append(
                f"message {index}: holds results for {_ids(message.tool_results)}, but the message "
                "before it asks for no calls; expected results right after their calls only"
            )
        if message.tool_calls:
            asking = (index, message.tool_calls)
            problems.extend(_repeated_ids(index, message.tool_calls, seen))
    if asking is not None:
        problems.append(
            f"message {asking[0]}: the calls {_ids(asking[1])} are open; expected a user message "
            "with their results right after it, found the end of the history"
        )
    return problems


def input_problems(messages: Iterable[v.Message]) -> list[str]:
    """What keeps ``messages`` from being appended between two steps, [] when nothing does.

    Such messages are what a caller says: user or assistant content, no calls
    and no results.
    """
    problems: list[str] = []
    for index, message in enumerate(messages):
        problems.extend(f"message {index}: {problem}" for problem in message_problems(message))
        if not _is_message(message):
            continue
        if message.tool_calls:
            problems.append(
                f"message {index}: asks for the calls {_ids(message.tool_calls)}; expected a "
                "message without calls, since only a reply of the model may ask for them"
            )
        if message.tool_results:
            problems.append(
                f"message {index}: holds results for {_ids(message.tool_results)}; expected a "
                "message without results, since they belong right after their calls"
            )
        if message.template:
            problems.append(
                f"message {index}: is a template; expected a plain message, since templates stand "
                "in front of the history: give them with history= or load_history()"
            )
    return problems


def message_problems(message: v.Message) -> list[str]:
    """What is wrong with ``message`` by itself, whatever stands around it; [] when nothing is."""
    if not _is_message(message):
        return [f"found a {_kind(message)}; expected a Message"]
    problems: list[str] = []
    role = cast("object", message.role)
    if not (isinstance(role, str) and role in {"user", "assistant"}):
        problems.append(f"the role is {shown(message.role)}; expected 'user' or 'assistant'")
    if message.tool_calls and role != "assistant":
        problems.append(
            f"a message of role {shown(message.role)} asks for calls; expected 'assistant'"
        )
    if message.tool_results and role != "user":
        problems.append(
            f"a message of role {shown(message.role)} holds tool results; expected 'user'"
        )
    problems.extend(content_problems(message.content))
    if not (message.tool_calls or message.tool_results or has_content(message.content)):
        problems.append("the message is empty; expected text that is not blank, or another block")
    for position, call in enumerate(message.tool_calls):
        problems.extend(f"call {position}: {problem}" for problem in call_problems(call))
    for position, result in enumerate(message.tool_results):
        problems.extend(f"result {position}: {problem}" for problem in result_problems(result))
    return problems


# --- the parts of a message -----------------------------------------------------


def has_content(content: Iterable[v.ContentBlock]) -> bool:
    """Whether there is text that is not blank, or any block that is not text."""
    for block in content:
        if type(block) is not v.TextContent:
            return True
        # The value classes check nothing, so text of another type is possible; it is reported
        # as such and not, once more, as blank.
        text = cast("object", block.text)
        if not isinstance(text, str) or (text and not text.isspace()):
            return True
    return False


def content_problems(content: Iterable[v.ContentBlock]) -> list[str]:
    """What is wrong with the blocks: fields that are no text, or text that does not encode."""
    problems: list[str] = []
    for position, block in enumerate(content):
        if type(block) is v.TextContent and block.annotations is None and block.meta is None:
            # By far the most frequent block.
            problem = _text_problem(block.text)
            if problem:
                problems.append(f"block {position}: text {problem}")
        else:
            problems.extend(f"block {position}: {problem}" for problem in block_problems(block))
    return problems


def block_problems(block: v.ContentBlock) -> list[str]:
    """What is wrong with one content block; [] when nothing is."""
    kind = type(block)
    if kind not in TEXT_FIELDS:
        return [f"found a {_kind(block)}; expected a content block"]
    problems: list[str] = []
    for name in TEXT_FIELDS[kind]:
        problem = _text_problem(getattr(block, name))
        if problem:
            problems.append(f"{name} {problem}")
    for name in OPTIONAL_TEXT_FIELDS[kind]:
        value = getattr(block, name)
        problem = None if value is None else _text_problem(value)
        if problem:
            problems.append(f"{name} {problem}")
    for name in JSON_FIELDS:
        value = getattr(block, name, None)
        if value is not None and not _is_plain_object(value):
            problems.append(f"{name} is not a plain JSON object")
    if kind is v.ResourceLink:
        icons = cast("v.ResourceLink", block).icons
        if icons is not None and not json_data.is_plain_json(list(icons)):
            problems.append("icons are not plain JSON")
    return problems


def call_problems(call: v.ToolCall) -> list[str]:
    """What is wrong with one call by itself; [] when nothing is."""
    if not _is_call(call):
        return [f"found a {_kind(call)}; expected a ToolCall"]
    problems: list[str] = []
    if not is_usable_id(call.id):
        problems.append(f"the id is {shown(call.id)}; expected text that is not blank")
    problems.extend(call_body_problems(call))
    return problems


def call_body_problems(call: v.ToolCall) -> list[str]:
    """What is wrong with a call but for its id."""
    problems: list[str] = []
    problem = _text_problem(call.name)
    if problem:
        problems.append(f"the name {problem}")
    elif not call.name:
        problems.append("the name is empty; expected the name of a tool")
    if type(call.arguments) is not dict:
        problems.append(f"the arguments are a {_kind(call.arguments)}; expected a JSON object")
    elif not json_data.is_plain_json(call.arguments):
        problems.append("the arguments are not a plain JSON object")
    if call.arguments_error is not None:
        problem = _text_problem(call.arguments_error)
        if problem:
            problems.append(f"arguments_error {problem}")
    return problems


def result_problems(result: v.ToolResult) -> list[str]:
    """What is wrong with one result by itself; [] when nothing is."""
    if not _is_result(result):
        return [f"found a {_kind(result)}; expected a ToolResult"]
    problems: list[str] = []
    if not is_usable_id(result.call_id):
        problems.append(f"the call_id is {shown(result.call_id)}; expected the id of a call")
    problems.extend(result_body_problems(result))
    return problems


def result_body_problems(result: v.ToolResult) -> list[str]:
    """What is wrong with a result but for its call_id."""
    problems: list[str] = []
    problem = _text_problem(result.name)
    if problem:
        problems.append(f"the name {problem}")
    problems.extend(content_problems(result.content))
    if not has_content(result.content):
        problems.append("the result is empty; expected text that is not blank, or another block")
    if not json_data.is_plain_json(result.structured_content):
        problems.append("the structured content is not plain JSON")
    return problems


def is_usable_id(value: object) -> bool:
    """Whether ``value`` can be the id of a call: text that encodes and is not blank."""
    return (
        isinstance(value, str)
        and bool(value)
        and not value.isspace()
        and json_data.is_safe_text(value)
    )


# --- pairing --------------------------------------------------------------------


def _repeated_ids(index: int, calls: Sequence[v.ToolCall], seen: set[str]) -> list[str]:
    problems: list[str] = []
    for call in calls:
        if not _is_call(call) or not is_usable_id(call.id):
            continue  # said already
        if call.id in seen:
            problems.append(
                f"message {index}: the id {shown(call.id)} was used before; expected ids that "
                "are unique in the history"
            )
        seen.add(call.id)
    return problems


def _pairing_problems(
    asked_at: int, calls: Sequence[v.ToolCall], index: int, message: v.Message
) -> list[str]:
    """What keeps ``message`` from being the answer to ``calls``."""
    if not message.tool_results:
        problem = (
            f"message {asked_at}: the calls {_ids(calls)} are open; expected a user message with "
            f"their results right after it, found role {shown(message.role)} and no results"
        )
        return [problem]
    wanted = [_id_of(call) for call in calls]
    given = [_id_of(result) for result in message.tool_results]
    if wanted == given:
        return []
    problems: list[str] = []
    missing = _without(wanted, given)
    extra = _without(given, wanted)
    if missing:
        problems.append(
            f"message {index}: no result for {_listed(missing)}; expected one for each call of "
            f"message {asked_at}"
        )
    if extra:
        problems.append(
            f"message {index}: results for {_listed(extra)}, which message {asked_at} did not "
            "ask for or which are there twice; expected exactly one for each call"
        )
    if not problems:
        problems.append(
            f"message {index}: the results are in the order {_listed(given)}; expected the order "
            f"of the calls, {_listed(wanted)}"
        )
    return problems


def _without(ids: list[str], others: list[str]) -> list[str]:
    """``ids`` less ``others``, each of which takes away one."""
    left = Counter(others)
    result: list[str] = []
    for one in ids:
        if left[one] > 0:
            left[one] -= 1
        else:
            result.append(one)
    return result


# --- showing what was found -----------------------------------------------------


def _is_message(value: object) -> bool:
    match value:
        case v.Message():
            return True
        case _:
            return False


def _is_call(value: object) -> bool:
    match value:
        case v.ToolCall():
            return True
        case _:
            return False


def _is_result(value: object) -> bool:
    match value:
        case v.ToolResult():
            return True
        case _:
            return False


def _id_of(value: object) -> str:
    """The id of a call or result; for what has none, words that say so."""
    found: object = value
    match value:
        case v.ToolCall():
            found = value.id
        case v.ToolResult():
            found = value.call_id
        case _:
            pass
    return found if type(found) is str else f"(a {_kind(found)})"


def _is_plain_object(value: object) -> bool:
    return type(value) is dict and json_data.is_plain_json(cast("object", value))


def _text_problem(value: object) -> str | None:
    if not isinstance(value, str):
        return f"is a {_kind(value)}; expected text"
    if not json_data.is_safe_text(value):
        return "does not encode as UTF-8 (a lone surrogate)"
    return None


def _kind(value: object) -> str:
    return type(value).__name__


def shown(value: object) -> str:
    """A bounded way to show an id or a role; runs no foreign code."""
    if isinstance(value, str):
        return repr(json_data.safe_text(str.__str__(value)))[:80]
    return f"of type {_kind(value)}"


def _ids(items: Iterable[object]) -> str:
    return _listed([_id_of(item) for item in items])


def _listed(ids: Sequence[str]) -> str:
    first = ", ".join([shown(one) for one in ids[:5]])
    return f"{first} and {len(ids) - 5} more" if len(ids) > 5 else first
