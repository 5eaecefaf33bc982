"""Normalising a reply: what a model returned becomes what the history may hold.

What may live here: pure functions that turn ids, names, arguments and stop
reasons of any shape into legal ones, the same for the same input. It is done
once, at the boundary, so that everything behind it can rely on:

* a reply asks for calls exactly when its stop reason is ``tool_use``, or when
  the model was stopped (``max_tokens``, ``safety``, ``error``, ``cancelled``,
  ``timeout``), in which case the turn answers the calls and runs none;
* ids are unique in the history, names and ids are what every provider takes;
* arguments are a plain JSON object of their own, shared with nobody. Where they
  were not one, ``arguments_error`` says what was found, and the object wraps a
  bounded extract. Nothing is ever replaced by ``{}`` but "no arguments".
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

import attrs

import trio_runner._core.errors as errors
import trio_runner._core.json_data as json_data
import trio_runner._core.validity as validity
import trio_runner._core.values as v

EMPTY_REPLY: Final = "(empty reply)"
INVALID_ARGUMENTS_KEY: Final = "invalid_arguments"
UNNAMED_TOOL: Final = "unnamed_tool"

#: Characters of the bad arguments, or of an odd stop reason, that are kept.
EXTRACT_CHARACTERS: Final = 200

_LEGAL_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ILLEGAL_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")

#: Reasons that do not say that the model was stopped: calls next to them run.
_NORMAL_REASONS: Final = frozenset(
    {
        v.StopReason.END_TURN,
        v.StopReason.STOP_SEQUENCE,
        v.StopReason.TOOL_USE,
        v.StopReason.PAUSE,
        v.StopReason.CONTINUE_,
    }
)

_EXPECTED: Final = "expected a JSON object"


# --- the reply ------------------------------------------------------------------


def normalise_reply(message: v.Message, used_ids: AbstractSet[str]) -> v.Message:
    """Return the reply ``message`` as the history may hold it.

    Deterministic for the same input. A reply without calls that is normal
    already is returned itself; one with calls is a new message, since the
    arguments are always copied.

    Args:
      used_ids: the ids of all calls in the history so far.

    Raises:
      ModelReplyError: when ``message`` is not an assistant `Message`, holds tool
        results, or is made of parts of the wrong type.
    """
    _refuse_what_is_no_reply(message)
    content = _safe_content(message.content)
    calls = _normal_calls(message.tool_calls, used_ids)
    stop_reason, unknown_reason = _normal_stop_reason(message.stop_reason, bool(calls))
    meta = plain_meta(message.meta)
    if unknown_reason is not None:
        meta = {**meta, "stop_reason": unknown_reason}
    if not calls and not validity.has_content(content):
        content = (v.TextContent(EMPTY_REPLY),)
        meta = {**meta, "empty_reply": True}
    if (
        not calls
        and content is message.content
        and stop_reason is message.stop_reason
        and meta is message.meta
        and not message.template
    ):
        return message
    # ``template`` marks what stands in front of the history; a reply never does.
    return v.make_message("assistant", content, calls, (), stop_reason, message.usage, meta)


def _refuse_what_is_no_reply(message: object) -> None:
    match message:
        case v.Message():
            pass
        case _:
            raise errors.ModelReplyError(
                f"the model returned a {type(message).__name__}; expected a Message, such as "
                "Message.assistant('...')"
            )
    if message.role != "assistant":
        raise errors.ModelReplyError(
            f"the model returned a message of role {_shown(message.role)}; expected 'assistant'"
        )
    if message.tool_results:
        raise errors.ModelReplyError(
            f"the model returned a message with {len(message.tool_results)} tool results; "
            "expected none: a reply asks for calls, the runner answers them"
        )
    for position, call in enumerate(message.tool_calls):
        if type(call) is v.ToolCall:
            continue
        match cast("object", call):
            case v.ToolCall():
                pass
            case _:
                raise errors.ModelReplyError(
                    f"tool call {position} of the reply is a {type(call).__name__}; "
                    "expected a ToolCall"
                )


def _normal_stop_reason(given: object, has_calls: bool) -> tuple[v.StopReason, str | None]:
    """The stop reason that fits the calls, and the given one where it was unknown."""
    unknown: str | None = None
    match given:
        case v.StopReason():
            reason = given
        case None:
            reason = v.StopReason.END_TURN
        case str():
            found = _stop_reason_named(given)
            if found is None:
                unknown = bounded_extract(given)
            reason = found or v.StopReason.END_TURN
        case _:
            raise errors.ModelReplyError(
                f"the reply's stop_reason is a {type(given).__name__}; expected a StopReason, "
                "text or None"
            )
    if has_calls and reason in _NORMAL_REASONS:
        return v.StopReason.TOOL_USE, unknown
    if not has_calls and reason is v.StopReason.TOOL_USE:
        return v.StopReason.END_TURN, unknown
    return reason, unknown


def _stop_reason_named(text: str) -> v.StopReason | None:
    """The reason with this value (``maxTokens``) or name (``max_tokens``)."""
    # The names too: taking a plain "max_tokens" for the end of a reply would run cut calls.
    for reason in v.StopReason:
        if text == reason.value or text.upper() == reason.name:
            return reason
    return None


def _safe_content(content: tuple[v.ContentBlock, ...]) -> tuple[v.ContentBlock, ...]:
    """``content`` itself when its text is good, else a copy with the text made safe."""
    if not validity.content_problems(content):
        return content
    blocks: list[v.ContentBlock] = []
    for position, block in enumerate(content):
        safe = safe_block(block)
        if safe is None:
            found = "; ".join(validity.block_problems(block))
            raise errors.ModelReplyError(f"content block {position} of the reply: {found}")
        blocks.append(safe)
    return tuple(blocks)


def safe_block(block: v.ContentBlock) -> v.ContentBlock | None:
    """``block`` with its text made safe and its mappings plain, itself when it was good.

    None when a field that must be text is something else.
    """
    if not validity.block_problems(block):
        return block
    kind = type(block)
    if kind not in validity.TEXT_FIELDS:
        return None
    changes: dict[str, Any] = {}
    for name in validity.TEXT_FIELDS[kind]:
        text = getattr(block, name)
        if not isinstance(text, str):
            return None
        changes[name] = json_data.safe_text(text)
    for name in validity.OPTIONAL_TEXT_FIELDS[kind]:
        text = getattr(block, name)
        changes[name] = json_data.safe_text(text) if isinstance(text, str) else None
    for name in (*validity.JSON_FIELDS, "icons"):
        value = getattr(block, name, None)
        if value is not None:
            changes[name] = _plain_or_none(value, as_tuple=name == "icons")
    return attrs.evolve(block, **changes)


def _plain_or_none(value: object, *, as_tuple: bool) -> object:
    try:
        plain = json_data.plain_json(value)
    except json_data.NotJSONError:
        return None
    if as_tuple:
        return tuple(plain) if isinstance(plain, list) else None
    return plain if isinstance(plain, dict) else None


def plain_meta(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    """``meta`` itself when it can be stored, else a plain copy that names what it lost."""
    if not meta or json_data.is_plain_json(meta):
        return meta
    plain: v.JSONObject = {}
    for key, value in meta.items():
        name = json_data.safe_text(str(key))
        try:
            plain[name] = json_data.plain_json(value)
        except json_data.NotJSONError as error:
            plain[name] = f"(not stored: {error.reason})"
    return plain


# --- calls ----------------------------------------------------------------------


def _normal_calls(
    calls: tuple[v.ToolCall, ...], used_ids: AbstractSet[str]
) -> tuple[v.ToolCall, ...]:
    if not calls:
        return ()
    ids = _unique_ids(calls, used_ids)
    #: Names that are legal: a large batch asks for a few tools many times.
    legal: set[str] = set()
    result: list[v.ToolCall] = []
    for call, call_id in zip(calls, ids, strict=True):
        arguments, problem = normal_arguments(call.arguments)
        if call.arguments_error is not None:
            problem = error_text(call.arguments_error)
        name = call.name
        if type(name) is not str or name not in legal:
            name = legal_name(name)
            legal.add(name)
        result.append(v.make_call(call_id, name, arguments, problem))
    return tuple(result)


def error_text(given: object) -> str:
    """The ``arguments_error`` an adapter gave, as text that encodes."""
    # The adapter knows best what was wrong, as long as it said so in words.
    if isinstance(given, str):
        return json_data.safe_text(given)
    return f"the model adapter refused them ({bounded_extract(given)})"


def _unique_ids(calls: tuple[v.ToolCall, ...], used_ids: AbstractSet[str]) -> list[str]:
    legal = _LEGAL_WORD.fullmatch
    kept: set[str] = {
        call.id
        for call in calls
        if type(call.id) is str
        # Most ids are identifiers too, which is quicker to ask than a pattern.
        and (
            (len(call.id) <= 64 and call.id.isascii() and call.id.isidentifier()) or legal(call.id)
        )
        and call.id not in used_ids
    }
    if len(kept) == len(calls):
        return [call.id for call in calls]
    ids: list[str | None] = []
    kept = set()
    for call in calls:
        given = call.id
        if is_legal_id(given) and given not in used_ids and given not in kept:
            kept.add(given)
            ids.append(given)
        else:
            ids.append(None)
    # Only now: what is invented for an early call must not be what a later call is given.
    result: list[str] = []
    for position, given_id in enumerate(ids):
        final_id = given_id or unused_id(len(used_ids) + position + 1, used_ids, kept)
        kept.add(final_id)
        result.append(final_id)
    return result


def is_legal_id(value: object) -> bool:
    """Whether ``value`` is an id every provider takes: 1 to 64 of ``A-Za-z0-9_-``."""
    return type(value) is str and _LEGAL_WORD.fullmatch(value) is not None


def unused_id(start: int, *taken: AbstractSet[str]) -> str:
    """An id that is in none of ``taken``: ``call_<start>``, or the first free one after it.

    The steps double, so that a block of n taken numbers costs log n tries.
    """
    number, step = start, 1
    while True:
        candidate = f"call_{number}"
        if not any(candidate in ids for ids in taken):
            return candidate
        number += step
        step *= 2


def legal_name(name: object) -> str:
    """``name`` itself when every provider takes it, else the nearest name they take."""
    if type(name) is str and _LEGAL_WORD.fullmatch(name):
        return name
    if not isinstance(name, str):
        return UNNAMED_TOOL
    # Cut before the characters are replaced, so that a name of a megabyte costs nothing;
    # each character becomes one character.
    return _ILLEGAL_CHARACTER.sub("_", name.strip()[:64]) or UNNAMED_TOOL


# --- arguments ------------------------------------------------------------------


def normal_arguments(given: object) -> tuple[v.JSONObject, str | None]:
    """The arguments as a JSON object of their own, and what was wrong with them or None.

    None, ``""``, blank text and ``{}`` mean no arguments. A JSON object in text is
    decoded, one that was encoded twice is decoded twice; texts inside it stay texts.
    """
    kind = type(given)
    if kind is dict:  # nearly always, so it comes first
        copied = json_data.copy_if_plain(given)
        if copied is not None:
            return copied, None
    match given:
        case dict() | Mapping():
            whole = cast("object", given)
            try:
                return cast("v.JSONObject", json_data.plain_json(whole)), None
            except json_data.NotJSONError as error:
                return _invalid(f"{_EXPECTED}, but at {error}", whole)
        case str():
            return _arguments_of_text(given)
        case None:
            return {}, None
        case _:
            return _invalid(f"{_EXPECTED}, found a value of type {type(given).__name__}", given)


def _arguments_of_text(text: str) -> tuple[v.JSONObject, str | None]:
    if not text or text.isspace():
        return {}, None
    try:
        decoded = _decode(text)
        # Some models encode the whole object twice. Once only, and an object only:
        # whatever else is in there was not meant as arguments.
        if isinstance(decoded, str) and decoded.lstrip().startswith("{"):
            decoded = _decode(decoded)
    except _BadTextError as error:
        return _invalid(f"{_EXPECTED}, found {error}", text)
    if not isinstance(decoded, dict):
        return _invalid(f"{_EXPECTED}, found {_JSON_WORDS[type(decoded)]}", text)
    return cast("v.JSONObject", decoded), None


class _BadTextError(Exception):
    """Strictly private: text that is not JSON we take; says what it is instead."""


_JSON_WORDS: Final = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    type(None): "null",
}


def _decode(text: str) -> Any:
    """Decode JSON text to plain JSON.

    Raises:
      _BadTextError: for anything else, NaN and repeated keys included.
    """
    try:
        decoded = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = f"at character {error.pos} of {len(text)}"
        raise _BadTextError(f"text that is not JSON ({error.msg} {where})") from None
    except RecursionError:
        raise _BadTextError("JSON that is nested too deeply") from None
    except ValueError:
        # All that is left is a number of more digits than Python converts.
        raise _BadTextError("JSON with a number of thousands of digits") from None
    if json_data.is_plain_json(decoded):
        return decoded
    try:
        # What JSON text can still hold: lone surrogates, 1e999, deep nesting.
        return json_data.plain_json(decoded)
    except json_data.NotJSONError as error:
        raise _BadTextError(f"JSON that cannot be kept: at {error}") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        # Which of the two was meant cannot be known.
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise _BadTextError(f"JSON with the key {bounded_extract(twice)!r} twice in one object")
    return result


def _refuse_constant(name: str) -> Any:
    raise _BadTextError(f"JSON with {name}, which is no JSON number")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object_of, parse_constant=_refuse_constant)


def _invalid(problem: str, given: object) -> tuple[v.JSONObject, str]:
    extract = bounded_extract(given)
    return {INVALID_ARGUMENTS_KEY: extract}, f"{problem}. They were: {extract}"


def bounded_extract(given: object) -> str:
    """At most `EXTRACT_CHARACTERS` characters that show ``given``; runs none of its code."""
    # Only what is cut is looked at: the whole may be megabytes.
    text = given if isinstance(given, str) else _BOUNDED_REPR.repr(given)
    if len(text) <= EXTRACT_CHARACTERS:
        return json_data.safe_text(text)
    # Where a text was cut off shows at its end.
    return json_data.safe_text(f"{text[:130]} ... {text[-60:]}")


class _BoundedRepr(reprlib.Repr):
    """Shows values by their shape; objects by their type, so that it is the same each time."""

    def repr_instance(self, x: object, level: int) -> str:
        if x is None or type(x) is bool or type(x) is float:
            return repr(x)
        return f"<{type(x).__name__}>"

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else "<a huge int>"


_BOUNDED_REPR: Final = _BoundedRepr()


def _shown(value: object) -> str:
    return (
        repr(bounded_extract(value)) if isinstance(value, str) else f"type {type(value).__name__}"
    )
