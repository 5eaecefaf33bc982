"""Strategies for histories that were damaged, in each known way.

What may live here: one function for each kind of damage, and the strategies
that apply them. The kinds are what crashes, cuts, foreign tools, two writers
and hands leave behind; each has a name, so that a test can ask for just that one.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import attrs
import hypothesis.strategies as st

import trio_runner._core.values as v
from trio_runner.testing.strategies._values import BAD_TEXTS, valid_histories

_COIN: Final = st.booleans()


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
    text = draw(st.sampled_from(("and another thing", *BAD_TEXTS)))
    role = draw(st.sampled_from(("user", "assistant")))
    messages.insert(index, v.Message(role, text))


def _change_role(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    role: Any = draw(st.sampled_from(("user", "assistant", "tool", None)))
    messages[index] = attrs.evolve(messages[index], role=role)


def _empty_content(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    blocks: Any = draw(st.sampled_from(((), *[(v.TextContent(text),) for text in BAD_TEXTS])))
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


def _cut_the_front(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # A history that was shortened by count, without a look at what belongs together.
    del messages[:index]


def _repeat_step(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # A step that was saved twice, or run again after a crash.
    index = _nearest(messages, index, lambda one: bool(one.tool_calls))
    messages[index + 1 : index + 1] = messages[
        index : draw(st.sampled_from((index + 1, index + 2)))
    ]


def _lose_calls(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # A repair that dropped the request and left the answer.
    index = _nearest(messages, index, lambda one: bool(one.tool_calls))
    kept = [one for one in messages[index].tool_calls if draw(_COIN)]
    messages[index] = attrs.evolve(messages[index], tool_calls=kept)


def _repeat_id(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # Calls of one batch with one id.
    index = _nearest(messages, index, lambda one: len(one.tool_calls) > 1)
    calls = messages[index].tool_calls
    same = [attrs.evolve(one, id=calls[0].id) for one in calls]
    messages[index] = attrs.evolve(messages[index], tool_calls=same)


def _repeat_result(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    index = _nearest(messages, index, lambda one: bool(one.tool_results))
    results = messages[index].tool_results
    messages[index] = attrs.evolve(messages[index], tool_results=(*results, *results[-1:]))


def _merge_messages(_: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # Two messages of one role made one, as some providers ask for.
    index = min(index, len(messages) - 2)
    if index < 0:
        return
    first, second = messages[index : index + 2]
    messages[index : index + 2] = [
        attrs.evolve(
            first,
            content=(*first.content, *second.content),
            tool_calls=(*first.tool_calls, *second.tool_calls),
            tool_results=(*first.tool_results, *second.tool_results),
        )
    ]


def _interleave(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # Two writers of one session, each from its own state.
    others = list(draw(_SHORT_HISTORIES))
    place = index
    for other in others:
        place = draw(st.integers(min(place, len(messages)), len(messages)))
        messages.insert(place, other)
        place += 1


def _lose_a_save(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    # Some messages in the middle were never stored.
    del messages[index : index + draw(st.integers(1, 3))]


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
        {"arguments": {"x": b"raw"}},
        {"arguments": {"x": {1, 2}}},
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
        {"structured_content": decimal.Decimal("1.5")},
        {"structured_content": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)},
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


class _NoRepr:
    """An object that a tool put where data belongs; showing it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _endless() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


_NO_DATA: Final[st.SearchStrategy[Any]] = st.builds(_NoRepr) | st.builds(_endless)


def _put_no_data(draw: st.DrawFn, messages: list[v.Message], index: int) -> None:
    """Objects, and a list that contains itself, in the place of data."""
    index = _nearest(messages, index, lambda one: bool(one.tool_calls or one.tool_results))
    message = messages[index]
    value = draw(_NO_DATA)
    messages[index] = attrs.evolve(
        message,
        tool_calls=[attrs.evolve(one, arguments={"x": value}) for one in message.tool_calls],
        tool_results=[attrs.evolve(one, structured_content=value) for one in message.tool_results],
    )


_DAMAGES: Final[Mapping[str, _Damage]] = MappingProxyType(
    {
        # Writing was cut, or did not happen.
        "cut_off": _cut_off,
        "crash_in_a_batch": _crash_in_a_batch,
        "lose_a_save": _lose_a_save,
        "lose_message": _lose_message,
        # Somebody shortened, repaired or merged it.
        "cut_the_front": _cut_the_front,
        "lose_calls": _lose_calls,
        "lose_results": _lose_results,
        "merge_messages": _merge_messages,
        "insert_text": _insert_text,
        "change_role": _change_role,
        "empty_content": _empty_content,
        # Written twice, or by two.
        "repeat_message": _repeat_message,
        "repeat_step": _repeat_step,
        "interleave": _interleave,
        # Ids and order.
        "repeat_id": _repeat_id,
        "repeat_result": _repeat_result,
        "reorder_results": _reorder_results,
        "split_results": _split_results,
        "move_message": _move_message,
        "move_results": _move_results,
        # Values.
        "damage_call": _damage_call,
        "damage_result": _damage_result,
        "damage_block": _damage_block,
        "put_no_data": _put_no_data,
    }
)

#: The names of the kinds of damage, for `damaged_histories`.
DAMAGE_KINDS: Final[tuple[str, ...]] = tuple(_DAMAGES)

_KINDS: Final = st.sampled_from(DAMAGE_KINDS)
_SHORT_HISTORIES: Final = valid_histories(min_parts=1, max_parts=2)


@st.composite
def damaged_histories(
    draw: st.DrawFn, *, max_parts: int = 5, kinds: Iterable[str] | None = None
) -> tuple[v.Message, ...]:
    """A history with one to three faults, such as crashes, cuts, foreign tools and hands leave.

    Nearly all are invalid; a fault may happen to undo another. All are `Message`
    values, but their fields may be of wrong types.

    Args:
      kinds: which of `DAMAGE_KINDS` may happen; None: all.
    """
    chosen = _KINDS if kinds is None else st.sampled_from(tuple(kinds))
    messages = list(draw(valid_histories(min_parts=1, max_parts=max_parts)))
    for kind in draw(st.lists(chosen, min_size=1, max_size=3)):
        if not messages:
            messages.append(v.Message.user(""))
        _DAMAGES[kind](draw, messages, draw(st.integers(0, len(messages) - 1)))
    return tuple(messages)


def histories(
    *, valid: bool = True, min_parts: int = 0, max_parts: int = 5
) -> st.SearchStrategy[tuple[v.Message, ...]]:
    """A history; with ``valid=False`` one that was damaged (see `damaged_histories`).

    Args:
      min_parts, max_parts: how many steps and single messages, before any damage;
        a damaged one has at least one.
    """
    if valid:
        return valid_histories(min_parts=min_parts, max_parts=max_parts)
    return damaged_histories(max_parts=max_parts)
