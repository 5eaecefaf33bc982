"""The values of a conversation: what may be written as content, and what they tell."""

from __future__ import annotations

from typing import Any, cast

import attrs
import pytest

import trio_runner as tr
from trio_runner._core.values import CONTENT_BLOCK_TYPES, as_blocks

BLOCKS: list[tr.ContentBlock] = [
    tr.TextContent("words"),
    tr.ImageContent("aGk=", "image/png"),
    tr.AudioContent("aGk=", "audio/wav"),
    tr.ResourceLink("file:///a", "a"),
    tr.EmbeddedResource("file:///a", text="inside"),
]


class Text(str):
    __slots__ = ()


# --- content --------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_each_kind_of_block_stands_alone_or_in_a_row(block: tr.ContentBlock) -> None:
    assert as_blocks(block) == (block,)
    assert as_blocks([block, block]) == (block, block)
    assert as_blocks(each for each in (block,)) == (block,)


def test_every_kind_of_block_was_tried() -> None:
    assert {type(block) for block in BLOCKS} == set(CONTENT_BLOCK_TYPES)


@pytest.mark.parametrize("nothing", [None, (), []])
def test_nothing_is_no_blocks(nothing: Any) -> None:
    assert as_blocks(nothing) == ()


def test_text_is_one_block_also_when_it_is_empty_or_of_a_subclass() -> None:
    assert as_blocks("") == (tr.TextContent(""),)
    assert as_blocks(Text("words")) == (tr.TextContent("words"),)


@pytest.mark.parametrize("bad", [["words"], (tr.TextContent("a"), "b"), {"type": "text"}, b"ab"])
def test_what_is_no_block_is_refused_with_what_is_expected(bad: Any) -> None:
    with pytest.raises(TypeError, match="expected text or content blocks"):
        tr.Message.user(bad)


def test_what_is_no_content_at_all_is_refused() -> None:
    with pytest.raises(TypeError):
        as_blocks(cast("Any", 3))


# --- messages -------------------------------------------------------------------


def test_a_users_message_holds_text_or_results() -> None:
    result = tr.ToolResult("c", "work", "ok")
    given = {"source": "test"}
    message = tr.Message.user("hello", tool_results=[result], meta=given, template=True)
    assert message == tr.Message(
        "user", "hello", (), (result,), None, None, {"source": "test"}, template=True
    )
    assert message.meta is not given
    assert tr.Message.user() == tr.Message("user")


@pytest.mark.parametrize(
    ("calls", "reason", "expected"),
    [
        ([], None, tr.StopReason.END_TURN),
        ([tr.ToolCall("c", "work")], None, tr.StopReason.TOOL_USE),
        ([tr.ToolCall("c", "work")], tr.StopReason.MAX_TOKENS, tr.StopReason.MAX_TOKENS),
        ([], tr.StopReason.PAUSE, tr.StopReason.PAUSE),
    ],
)
def test_a_models_message_stops_for_its_calls_unless_it_says_otherwise(
    calls: list[tr.ToolCall], reason: tr.StopReason | None, expected: tr.StopReason
) -> None:
    message = tr.Message.assistant("so", tool_calls=iter(calls), stop_reason=reason)
    assert (message.role, message.stop_reason) == ("assistant", expected)
    assert message.tool_calls == tuple(calls)


def test_a_models_message_keeps_usage_meta_and_template() -> None:
    usage = tr.Usage(1, 2)
    message = tr.Message.assistant("so", usage=usage, meta={"id": 1}, template=True)
    assert (message.usage, message.meta, message.template) == (usage, {"id": 1}, True)


def test_text_is_the_text_blocks_in_lines() -> None:
    content = [tr.TextContent("one"), BLOCKS[1], tr.TextContent("two")]
    assert tr.Message.user(content).text == "one\ntwo"
    assert tr.ToolResult("c", "work", content).text == "one\ntwo"
    assert tr.Message.user(BLOCKS[1]).text == ""


def test_lists_become_tuples_that_the_callers_list_does_not_change() -> None:
    calls, results = [tr.ToolCall("c", "work")], [tr.ToolResult("c", "work")]
    message = tr.Message("assistant", (), cast("Any", calls), cast("Any", results))
    calls.clear()
    results.clear()
    assert (len(message.tool_calls), len(message.tool_results)) == (1, 1)


# --- results, calls, usage ------------------------------------------------------


@pytest.mark.parametrize("status", tr.CallStatus)
def test_every_status_but_ok_is_an_error(status: tr.CallStatus) -> None:
    assert tr.ToolResult("c", "work", status=status).is_error is (status is not tr.CallStatus.OK)


def test_defaults_are_not_shared() -> None:
    one, two = tr.ToolCall("a", "work"), tr.ToolCall("b", "work")
    assert one.arguments == {}
    assert one.arguments is not two.arguments
    assert tr.ToolResult().meta is not tr.ToolResult().meta
    assert tr.Message("user").meta is not tr.Message("user").meta


def test_usage_is_summed_field_by_field() -> None:
    total = tr.Usage(1, 2, 3) + tr.Usage(10, 20, 30)
    assert total == tr.Usage(11, 22, 33)
    assert total.total_tokens == 33
    assert tr.Usage() + total == total


@pytest.mark.parametrize(
    "value",
    [*BLOCKS, tr.ToolCall("c", "work"), tr.ToolResult(), tr.Usage(), tr.Message("user")],
    ids=lambda value: type(value).__name__,
)
def test_values_are_frozen(value: Any) -> None:
    first = attrs.fields(value.__class__)[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(value, first, "edited")


# --- words ----------------------------------------------------------------------


def test_stop_reasons_are_spelled_as_mcp_spells_them() -> None:
    assert [reason.value for reason in tr.StopReason] == [
        "endTurn", "stopSequence", "maxTokens", "toolUse", "pause", "continue", "error",
        "cancelled", "timeout", "safety",
    ]  # fmt: skip


def test_end_reasons_and_statuses_are_their_names_in_small_letters() -> None:
    for kind in (tr.EndReason, tr.CallStatus):
        assert all(member.value == member.name.lower() for member in kind)
    assert len(tr.EndReason) == 10
    assert len(tr.CallStatus) == 12
