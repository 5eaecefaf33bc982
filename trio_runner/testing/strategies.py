"""Hypothesis strategies for conversations, good ones and damaged ones.

What may live here: strategies built of the public values, for your own
property tests and ours. This is the only module that imports Hypothesis, so
``trio_runner.testing`` works without it. A field that is added to a value is
added here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import attrs
import hypothesis.strategies as st

import trio_runner._core.values as v

# Few and short on purpose: repeated names and ids are where faults are.
_NAMES: Final = ("read", "search", "files__read", "weather")
_BAD_TEXTS: Final = ("", "   ", "\n\t", "bad \ud800 text", "\udfff")

# --- JSON -----------------------------------------------------------------------


def safe_texts(*, max_size: int = 6) -> st.SearchStrategy[str]:
    """Text that encodes as UTF-8; may be empty or blank."""
    # A small alphabet, with one, two, three and four byte characters: much quicker to draw
    # than all of Unicode, and it finds the same faults.
    return st.text("ab \n\0é€😀", max_size=max_size)


def visible_texts() -> st.SearchStrategy[str]:
    """Text that encodes as UTF-8 and is not blank."""
    return safe_texts().map(_with_a_letter)


def _with_a_letter(text: str) -> str:
    return text if text.strip() else f"{text}x"


def json_values() -> st.SearchStrategy[v.JSONValue]:
    """Any small plain JSON value."""
    atoms: st.SearchStrategy[Any] = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | safe_texts()
    )

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=3) | st.dictionaries(safe_texts(), inner, max_size=3)

    return st.recursive(atoms, nested, max_leaves=3)


def json_objects() -> st.SearchStrategy[v.JSONObject]:
    """A small plain JSON object, such as the arguments of a call."""
    return st.dictionaries(safe_texts(), json_values(), max_size=3)


# --- the values of a valid history ----------------------------------------------


def contents() -> st.SearchStrategy[tuple[v.ContentBlock, ...]]:
    """Content that is not empty: text that is not blank, or another block."""
    media: st.SearchStrategy[v.ContentBlock] = (
        st.builds(v.ImageContent, st.just("aGk="), st.just("image/png"))
        | st.builds(v.AudioContent, st.just("aGk="), st.just("audio/wav"))
        | st.builds(
            v.ResourceLink,
            st.just("file:///a"),
            visible_texts(),
            description=st.none() | safe_texts(),
        )
        | st.builds(v.EmbeddedResource, st.just("file:///a"), text=st.none() | safe_texts())
    )
    counted = media | st.builds(v.TextContent, visible_texts())
    others = st.lists(counted | st.builds(v.TextContent, safe_texts()), max_size=2)
    return st.builds(_joined, counted, others)


def _joined(first: v.ContentBlock, rest: list[v.ContentBlock]) -> tuple[v.ContentBlock, ...]:
    return (first, *rest)


def tool_calls() -> st.SearchStrategy[v.ToolCall]:
    """A call as a history holds it; two of them may have one id."""
    return st.builds(
        v.ToolCall,
        st.sampled_from(("c1", "c2", "toolu_01-A", "call_3")),
        st.sampled_from(_NAMES),
        json_objects(),
        st.sampled_from((None, None, "expected a JSON object, found null")),
    )


def tool_results() -> st.SearchStrategy[v.ToolResult]:
    """A result with any status, not empty; its ``call_id`` and ``name`` are still to be set."""
    return st.builds(
        v.ToolResult,
        st.just("c1"),
        st.just("read"),
        contents(),
        st.none() | json_objects(),
        st.sampled_from(v.CallStatus),
        st.none() | st.floats(0, 1000),
    )


# Strategies are made once: making one costs more than drawing from it.
_CONTENTS: Final = contents()
_MAYBE_CONTENTS: Final[st.SearchStrategy[tuple[v.ContentBlock, ...]]] = st.just(()) | _CONTENTS
_CALLS: Final = st.lists(tool_calls(), min_size=1, max_size=3)
_RESULTS: Final = tool_results()
_COIN: Final = st.booleans()
_PARTS: Final = st.sampled_from(("user", "assistant", "step", "step"))


@st.composite
def histories(
    draw: st.DrawFn, *, valid: bool = True, min_parts: int = 0, max_parts: int = 5
) -> tuple[v.Message, ...]:
    """A history; with ``valid=False`` one that was damaged (see `damaged_histories`).

    Args:
      min_parts, max_parts: how many steps and single messages, before any damage.
    """
    if not valid:
        return draw(damaged_histories(max_parts=max_parts))
    messages: list[v.Message] = []
    used = 0
    for part in draw(st.lists(_PARTS, min_size=min_parts, max_size=max_parts)):
        if part == "user":
            messages.append(v.Message.user(draw(_CONTENTS)))
        elif part == "assistant":
            messages.append(v.Message.assistant(draw(_CONTENTS)))
        else:
            calls = [
                attrs.evolve(call, id=f"c{used + number}")
                for number, call in enumerate(draw(_CALLS))
            ]
            used += len(calls)
            results = [
                attrs.evolve(draw(_RESULTS), call_id=call.id, name=call.name) for call in calls
            ]
            messages.append(v.Message.assistant(draw(_MAYBE_CONTENTS), tool_calls=calls))
            messages.append(v.Message.user(draw(_MAYBE_CONTENTS), tool_results=results))
    return tuple(messages)


# --- damage ---------------------------------------------------------------------


@st.composite
def damaged_histories(draw: st.DrawFn, *, max_parts: int = 5) -> tuple[v.Message, ...]:
    """A history with one to three faults, such as crashes, foreign tools and hands leave behind.

    Nearly all are invalid; a fault may happen to undo another. All are `Message`
    values, but their fields may be of wrong types.
    """
    messages = list(draw(histories(min_parts=1, max_parts=max_parts)))
    for damage in draw(_DAMAGE_LISTS):
        if not messages:
            messages.append(v.Message.user(""))
        damage(draw, messages, draw(st.integers(0, len(messages) - 1)))
    return tuple(messages)


def _nearest(messages: list[v.Message], index: int, fits: Callable[[v.Message], bool]) -> int:
    """The index of the next message that fits, counted on from ``index``; else ``index``."""
    order = (*range(index, len(messages)), *range(index))
    return next((i for i in order if fits(messages[i])), index)


_Damage = Callable[[st.DrawFn, list[v.Message], int], None]


def _lose_message(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    del messages[index]


def _cut_off(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    del messages[index + 1 :]


def _repeat_message(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    messages.insert(draw(st.integers(0, len(messages))), messages[index])


def _move_message(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    message = messages.pop(index)
    messages.insert(draw(st.integers(0, len(messages))), message)


def _insert_text(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    text = draw(st.sampled_from(("and another thing", *_BAD_TEXTS)))
    role = draw(st.sampled_from(("user", "assistant")))
    messages.insert(index, v.Message(role, text))


def _change_role(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    role: Any = draw(st.sampled_from(("user", "assistant", "tool", None)))
    messages[index] = attrs.evolve(messages[index], role=role)


def _empty_content(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    blocks: Any = draw(st.sampled_from(((), *[(v.TextContent(text),) for text in _BAD_TEXTS])))
    messages[index] = attrs.evolve(messages[index], content=blocks)


def _reorder_results(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    index = _nearest(messages, index, lambda one: len(one.tool_results) > 1)
    results = messages[index].tool_results
    messages[index] = attrs.evolve(messages[index], tool_results=results[::-1])


def _lose_results(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    index = _nearest(messages, index, lambda one: bool(one.tool_results))
    results = [one for one in messages[index].tool_results if draw(_COIN)]
    messages[index] = attrs.evolve(messages[index], tool_results=results)


def _crash_in_a_batch(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # What a killed process leaves: nothing behind the step, some of its results missing.
    index = _nearest(messages, index, lambda one: bool(one.tool_results))
    del messages[index + 1 :]
    _lose_results(draw, messages, index)


def _split_results(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    results = messages[index].tool_results
    cut = draw(st.integers(0, len(results)))
    messages[index] = attrs.evolve(messages[index], tool_results=results[:cut])
    messages.insert(index + 1, v.Message.user((), tool_results=results[cut:]))


def _move_results(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    results = messages[index].tool_results
    messages[index] = attrs.evolve(messages[index], tool_results=())
    target = draw(st.integers(0, len(messages) - 1))
    messages[target] = attrs.evolve(
        messages[target], tool_results=(*messages[target].tool_results, *results)
    )


_BAD_CALL_FIELDS: Final[st.SearchStrategy[dict[str, Any]]] = st.sampled_from(
    (
        {"id": ""},
        {"id": " "},
        {"id": None},
        {"id": 3},
        {"id": ["a"]},
        {"id": "c0"},
        {"id": "x\ud800"},
        {"name": ""},
        {"name": "\udc00"},
        {"name": None},
        {"arguments": None},
        {"arguments": '{"cut": '},
        {"arguments": [1]},
        {"arguments": {"x": float("nan")}},
        {"arguments": {1: 2}},
        {"arguments": {"x": "\ud800"}},
        {"arguments_error": "\ud800"},
        {"arguments_error": 7},
    )
)


def _damage_call(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    index = _nearest(messages, index, lambda one: bool(one.tool_calls))
    calls = list(messages[index].tool_calls)
    if calls:
        calls[-1] = attrs.evolve(calls[-1], **draw(_BAD_CALL_FIELDS))
    messages[index] = attrs.evolve(messages[index], tool_calls=calls)


_BAD_RESULT_FIELDS: Final[st.SearchStrategy[dict[str, Any]]] = st.sampled_from(
    (
        {"call_id": ""},
        {"call_id": None},
        {"call_id": "c0"},
        {"call_id": "nobody"},
        {"name": None},
        {"name": "\ud800"},
        {"content": ()},
        {"content": " "},
        {"content": "\ud800"},
        {"structured_content": {"when": object()}},
        {"structured_content": float("inf")},
        {"content": (), "structured_content": {"x": 1}},
    )
)


def _damage_result(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    index = _nearest(messages, index, lambda one: bool(one.tool_results))
    results = list(messages[index].tool_results)
    if results:
        results[-1] = attrs.evolve(results[-1], **draw(_BAD_RESULT_FIELDS))
    messages[index] = attrs.evolve(messages[index], tool_results=results)


def _damage_block(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    bad: Any = draw(
        st.sampled_from(
            (
                v.TextContent(cast("Any", None)),
                v.TextContent("\ud800", meta={"x": "\ud800"}),
                v.ImageContent(cast("Any", b"raw"), "image/png"),
                v.ResourceLink("file:///a", "n", title="\ud800", icons=({"x": "y"},)),
                v.EmbeddedResource("file:///a", text=cast("Any", 3), annotations={"x": object()}),
            )
        )
    )
    messages[index] = attrs.evolve(messages[index], content=(*messages[index].content, bad))


_DAMAGES: Final[tuple[_Damage, ...]] = (
    _lose_message,
    _cut_off,
    _repeat_message,
    _move_message,
    _insert_text,
    _change_role,
    _empty_content,
    _reorder_results,
    _lose_results,
    _crash_in_a_batch,
    _split_results,
    _move_results,
    _damage_call,
    _damage_result,
    _damage_block,
)

_DAMAGE_LISTS: Final = st.lists(st.sampled_from(_DAMAGES), min_size=1, max_size=3)


# --- what a model may return ----------------------------------------------------


def argument_texts() -> st.SearchStrategy[str]:
    """Arguments as a provider's text: good, empty, and bad in the known ways."""
    return st.sampled_from(
        (
            "",
            "  ",
            "{}",
            '{"a": 1}',
            '"{\\"a\\": 1}"',
            '{"a": ',
            '{"a": 1,}',
            "null",
            "[]",
            '"x"',
            "3",
            "NaN",
            '{"a": NaN}',
            '{"a": 1e999}',
            '{"a": 1, "a": 2}',
            '{"a": "\\ud800"}',
            "[" * 5000,
            "junk " * 100,
        )
    )


def raw_tool_calls() -> st.SearchStrategy[v.ToolCall]:
    """A call as a model may return it: ids, names and arguments of any sort."""
    ids: st.SearchStrategy[Any] = st.sampled_from(
        ("", " ", None, 7, "a", "a", "b", " a", "call_1", "call_2", "call_3", "x" * 65, "f.g:0")
    )
    names: st.SearchStrategy[Any] = st.sampled_from((*_NAMES, " read ", "a.b", "", None, "é" * 70))
    arguments: st.SearchStrategy[Any] = (
        argument_texts() | json_objects() | st.sampled_from((None, [], 3, {"x": float("nan")}))
    )
    return st.builds(v.ToolCall, ids, names, arguments, st.none() | st.just("refused"))


def replies() -> st.SearchStrategy[v.Message]:
    """A reply as a model may return it, before it is normalised."""
    reasons: st.SearchStrategy[Any] = (
        st.none() | st.sampled_from(v.StopReason) | st.sampled_from(("toolUse", "weird", ""))
    )
    texts = safe_texts() | st.sampled_from(_BAD_TEXTS)
    metas: st.SearchStrategy[Any] = st.sampled_from(({}, {"provider": "x"}, {"raw": object()}))
    return st.builds(
        v.Message,
        st.just("assistant"),
        st.just(()) | st.builds(v.TextContent, texts) | contents(),
        st.just([]) | st.lists(raw_tool_calls(), max_size=4),
        stop_reason=reasons,
        meta=metas,
    )
