"""The pure part of nested turns: names, sums, and which results may be an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

import trio_runner as tr
import trio_runner._core.nested as nested
from trio_runner._core.history import History
from trio_runner._core.turn import Turn
from trio_runner.testing.strategies import histories

OK = tr.CallStatus.OK


# --- names ------------------------------------------------------------------------


@given(st.text())
def test_every_agent_has_a_name_as_a_tool(name: str) -> None:
    made = nested.agent_tool_name(name)
    assert re.fullmatch(r"agent__[A-Za-z0-9_-]{1,57}", made)


@given(st.text(max_size=300), st.text(max_size=300))
def test_every_key_has_a_session_of_its_own(one: str, other: str) -> None:
    ids = [nested.nested_session_id(f"s/{key}") for key in (one, other)]
    assert all(re.fullmatch(r"[A-Za-z0-9_.:@+=-]{1,128}", each) for each in ids)
    if one.replace("/", "+") != other.replace("/", "+"):
        assert ids[0] != ids[1]


# --- sums -------------------------------------------------------------------------

USAGES = st.builds(tr.Usage, *[st.integers(0, 2**70)] * 3)


@given(st.lists(st.lists(USAGES, max_size=3), max_size=4), histories())
def test_the_sum_is_over_every_result_that_tells_of_a_turn(
    steps: Sequence[Sequence[tr.Usage]], others: tuple[tr.Message, ...]
) -> None:
    messages = list(others)
    for usages in steps:
        told = [
            nested.AgentTurn(agent="a", session=None, end_reason=None, usage=usage).as_meta()
            for usage in usages
        ]
        messages.append(tr.Message.user(tool_results=[tr.ToolResult(meta=meta) for meta in told]))
    expected = tr.Usage()
    for usage in (each for usages in steps for each in usages):
        expected += usage
    assert nested.nested_usage(messages) == expected


@pytest.mark.parametrize("bad", [None, 3, [], {"input_tokens": "1"}, {"input_tokens": -5},
                                 {"input_tokens": True}])  # fmt: skip
def test_what_is_no_usage_is_not_summed(bad: object) -> None:
    result = tr.ToolResult(meta={"agent_turn": {"usage": bad}})
    assert nested.nested_usage([tr.Message.user(tool_results=[result])]) == tr.Usage()


# --- which results may be an answer -----------------------------------------------


@given(histories(min_parts=1), st.booleans(), st.data())
def test_what_is_passed_through_is_all_that_the_results_hold_and_leaves_a_valid_history(
    history: tuple[tr.Message, ...], chosen: bool, data: st.DataObject
) -> None:
    last = history[-1]
    choose = st.sampled_from([None, "postprocess", "passthrough"])
    results = [
        attrs.evolve(
            result,
            status=data.draw(st.sampled_from([OK, OK, OK, *tr.CallStatus])),
            meta={"agent_turn": {"response_mode": data.draw(choose)}},
        )
        for result in last.tool_results
    ]
    history = (*history[:-1], attrs.evolve(last, tool_results=tuple(results)))
    passed = nested.passed_through(history, chosen=chosen)
    wanted = all(each.meta["agent_turn"]["response_mode"] == "passthrough" for each in results)
    passes = (
        bool(results)
        and not last.content
        and all(each.status is OK for each in results)
        and (wanted or not chosen)
    )
    assert (passed is not None) == passes
    if passed is not None:
        assert passed.content == tuple([block for each in results for block in each.content])
        assert (passed.role, passed.stop_reason, passed.tool_calls) == ("assistant", "endTurn", ())
        tr.check_history([*history, passed])


def step(*texts: str) -> list[tr.Message]:
    calls = [tr.ToolCall(f"c{n}", "work") for n, _ in enumerate(texts)]
    results = [
        tr.ToolResult(each.id, "work", text) for each, text in zip(calls, texts, strict=True)
    ]
    return [tr.Message.assistant(tool_calls=calls), tr.Message.user(tool_results=results)]


def test_what_tools_attached_comes_behind_and_what_others_added_goes_to_the_model() -> None:
    image = tr.ImageContent("aGk=", "image/png")
    attached = tr.Message.user(image, meta={"attached_by": "c0"})
    passed = nested.passed_through([*step("one", "two"), attached], chosen=False)
    assert passed is not None
    assert passed.content == (tr.TextContent("one"), tr.TextContent("two"), image)
    for added in (tr.Message.user("and politely"), tr.Message.assistant("wait")):
        assert nested.passed_through([*step("one"), attached, added], chosen=False) is None
    assert nested.passed_through([], chosen=False) is None


# --- what a call that is cut leaves behind ------------------------------------------


def turn_with(*ids: str) -> Turn:
    turn = Turn(History(), 1)
    turn.input_added([tr.Message.user("go")])
    turn.model_replied(tr.Message.assistant(tool_calls=[tr.ToolCall(i, "work") for i in ids]))
    return turn


def test_the_answer_of_an_interrupt_carries_the_note_and_a_result_does_not() -> None:
    turn = turn_with("a", "b", "c")
    note: dict[str, Any] = {"agent_turn": {"agent": "bob"}}
    for position in (0, 1):
        turn.tool_started(position)
        turn.tool_noted(position, note)
    turn.tool_finished(1, tr.ToolResult("b", "work", "done"))
    made = turn.interrupt(tr.EndReason.INTERRUPTED)
    assert [result.meta for result in made] == [note, {}]
    assert turn.results is not None
    assert [result.meta for result in turn.results.tool_results] == [note, {}, {}]


def test_a_note_is_for_an_open_call() -> None:
    turn = turn_with("a")
    for position in (1, -1):
        with pytest.raises(tr.InternalError):
            turn.tool_noted(position, {})
    turn.tool_finished(0, tr.ToolResult("a", "work", "done"))
    with pytest.raises(tr.InternalError):
        turn.tool_noted(0, {})
