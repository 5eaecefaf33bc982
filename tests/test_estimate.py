"""How long a history is thought to be: from the newest usage where that still says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_runner as tr
import trio_runner.records as r
import trio_runner.testing.strategies as strategies
from trio_runner._core.compaction import shorten
from trio_runner._core.estimate import Meter, context_tokens, message_tokens, text_tokens
from trio_runner._core.history import History


def user(text: str) -> tr.Message:
    return tr.Message.user(text)


def says(text: str, tokens: int | None = None) -> tr.Message:
    usage = None if tokens is None else tr.Usage(tokens - 1, 1)
    return tr.Message.assistant(text, usage=usage)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_four_characters_are_a_token(text: str, tokens: int) -> None:
    assert text_tokens(text) == tokens


def test_each_part_of_a_message_counts() -> None:
    image = tr.ImageContent("A" * 100_000, "image/png")
    ask = tr.Message.assistant(tool_calls=[tr.ToolCall("c", "work", {"key": "x" * 400})])
    results = tr.Message.user(tool_results=[tr.ToolResult("c", "work", "y" * 400)])

    assert message_tokens(user("x" * 400)) == 104
    # An image is not as long as its letters.
    assert message_tokens(tr.Message.user([image])) == 1_004
    assert 105 < message_tokens(ask) < 120
    assert message_tokens(results) == 108
    for block in (
        tr.ResourceLink("file:///x", "x"),
        tr.EmbeddedResource("file:///x", text="y" * 40),
        tr.EmbeddedResource("file:///x", blob="eA=="),
        tr.AudioContent("eA==", "audio/wav"),
    ):
        assert message_tokens(tr.Message.user([block])) > 4


def test_the_newest_usage_counts_and_only_what_came_since_is_estimated() -> None:
    history = History([user("x" * 4_000), says("a", 50), user("y" * 400)])

    assert context_tokens(history, Meter(), fixed=999) == 50 + 104


@pytest.mark.parametrize("usage", [None, tr.Usage()], ids=["none", "nothing counted"])
def test_without_a_usage_all_is_estimated_with_instruction_and_tools(
    usage: tr.Usage | None,
) -> None:
    newest = tr.Message.assistant("a", usage=usage)
    history = History([user("x" * 400), says("b", 10_000), user("y"), newest])

    assert context_tokens(history, Meter(), fixed=7) == 7 + 104 + 5 + 5 + 5


def test_a_usage_from_before_a_shortening_says_nothing_any_more() -> None:
    history = History([user("x" * 4_000), says("a", 1_000), user("y"), says("b", 1_010)])
    assert context_tokens(history, Meter(), 0) == 1_010

    shorten(history, r.Compacted(4, 2, user("summary")))
    assert context_tokens(history, Meter(), 0) == 4 + 2 + 5 + 5
    history.append(user("z"))
    assert context_tokens(history, Meter(), 0) < 30
    history.append(says("c", 70))
    assert context_tokens(history, Meter(), 0) == 70


@given(
    st.lists(
        st.tuples(st.integers(0, 3), strategies.histories(max_parts=3)), min_size=1, max_size=5
    )
)
@settings(max_examples=40, deadline=None)
def test_a_meter_says_the_sum_whatever_became_of_the_history(
    changes: list[tuple[int, tuple[tr.Message, ...]]],
) -> None:
    history, meter = History(), Meter()
    for kind, messages in changes:
        if kind == 0:
            history.replace(messages)
        elif kind == 1:
            history = History(messages)
        else:
            for message in messages:
                history.append(message)
        if kind != 3:  # not looked at each time
            assert meter.tokens(history) == sum(map(message_tokens, history.view()))
    assert meter.tokens(history) == sum(map(message_tokens, history.view()))
