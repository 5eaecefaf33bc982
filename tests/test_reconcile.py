"""reconcile: any history becomes valid, finished work is kept, and what was done is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

import trio_runner._core.reconcile as reconcile
import trio_runner._core.validity as validity
import trio_runner._core.values as v
import trio_runner.testing.strategies as strategies

Status = reconcile.HistoryRollbackStatus

USER = v.Message.user("hello")
ANSWER = v.Message.assistant("hi")


def asks(*ids: Any, content: Any = (), **fields: Any) -> v.Message:
    calls = [v.ToolCall(one, "read") for one in ids]
    return v.Message("assistant", content, tool_calls=calls, **fields)


def result(call_id: Any, text: str | None = None) -> v.ToolResult:
    return v.ToolResult(call_id, "read", text or f"result of {call_id}")


def gives(*ids: Any, content: Any = ()) -> v.Message:
    return v.Message.user(content, tool_results=[result(one) for one in ids])


def repaired(
    *messages: Any,
) -> tuple[tuple[v.Message, ...], reconcile.HistoryRollbackState]:
    """Reconcile, and check what must hold for every input."""
    history, state = reconcile.reconcile_interrupted_history(messages)
    validity.check_history(history)
    again, second = reconcile.reconcile_interrupted_history(history)
    assert all(one is other for one, other in zip(history, again, strict=True))
    assert second.repairs == ()
    assert state.messages_before == len(messages)
    assert state.messages_after == len(history)
    for sentence in state.repairs:
        assert sentence.startswith("message ")
        sentence.encode()
    return history, state


def texts_of(message: v.Message) -> list[str]:
    return [one.text for one in message.tool_results]


# --- what is left alone ---------------------------------------------------------


def test_an_empty_history_stays_empty() -> None:
    assert repaired() == ((), reconcile.HistoryRollbackState(Status.HISTORY_EMPTY, 0, 0, ()))


@given(strategies.histories())
def test_kA3_a_valid_history_comes_back_unchanged(history: tuple[v.Message, ...]) -> None:
    again, state = reconcile.reconcile_interrupted_history(list(history))

    assert all(one is other for one, other in zip(history, again, strict=True))
    expected = Status.HISTORY_UNCHANGED if history else Status.HISTORY_EMPTY
    assert state == reconcile.HistoryRollbackState(expected, len(history), len(history), ())


# --- open calls of the last step ------------------------------------------------


def test_an_open_last_step_is_answered_as_interrupted() -> None:
    asking = asks("a", "b")

    history, state = repaired(USER, asking)

    assert history[:2] == (USER, asking)
    assert history[1] is asking
    for answer, call_id in zip(history[2].tool_results, ("a", "b"), strict=True):
        assert answer.call_id == call_id
        assert answer.name == "read"
        assert answer.status is v.CallStatus.INTERRUPTED
        assert answer.duration is None
        assert "not known whether it ran" in answer.text
    assert state.status is Status.APPENDED_INTERRUPTED_TOOL_RESULT
    assert state.repairs == (
        "message 1: the call 'a' had no result; answered as interrupted",
        "message 1: the call 'b' had no result; answered as interrupted",
    )


def test_what_finished_of_the_last_step_is_kept_in_the_order_of_the_calls() -> None:
    given_results = gives("a", "c", content="faster, please")

    history, state = repaired(USER, asks("a", "b", "c"), given_results)

    assert len(history) == 3
    kept = history[2].tool_results
    assert kept[0] is given_results.tool_results[0]
    assert kept[1].status is v.CallStatus.INTERRUPTED
    assert kept[2] is given_results.tool_results[1]
    assert history[2].text == "faster, please"
    assert state.status is Status.APPENDED_PARTIAL_TOOL_RESULT
    assert len(state.repairs) == 1


def test_input_after_an_open_step_comes_after_its_answers() -> None:
    again = v.Message.user("are you there?")

    history, state = repaired(USER, asks("a"), again)

    assert [bool(one.tool_results) for one in history] == [False, False, True, False]
    assert history[3] is again
    assert state.status is Status.APPENDED_INTERRUPTED_TOOL_RESULT


# --- anywhere -------------------------------------------------------------------


def test_kA3_open_calls_in_the_second_and_the_last_of_five_turns_are_closed() -> None:
    messages: list[v.Message] = []
    for number in range(5):
        messages += [USER, asks(f"a{number}", f"b{number}")]
        if number == 1:
            messages.append(gives("b1"))
        elif number < 4:
            messages += [gives(f"a{number}", f"b{number}"), ANSWER]

    history, state = repaired(*messages)

    statuses = [
        [answer.status.value for answer in one.tool_results] for one in history if one.tool_results
    ]
    ok, gone = "ok", "interrupted"
    assert statuses == [[ok, ok], [gone, ok], [ok, ok], [ok, ok], [gone, gone]]
    assert state.status is Status.REPAIRED
    assert len(state.repairs) == 3


def test_an_open_call_before_the_last_step_is_a_repair() -> None:
    _, state = repaired(USER, asks("a"), USER, asks("b"), gives("b"))

    assert state.status is Status.REPAIRED


def test_results_in_another_order_are_reordered() -> None:
    history, state = repaired(USER, asks("a", "b", "c"), gives("c", "a", "b"), ANSWER)

    assert texts_of(history[2]) == ["result of a", "result of b", "result of c"]
    assert state.status is Status.REPAIRED
    assert state.repairs == ("message 2: its results were put in the order of the calls",)


def test_results_split_over_several_messages_are_joined_and_text_stays_in_order() -> None:
    first, second = gives("b", content="one"), gives("a", content="two")

    history, state = repaired(asks("a", "b", "c"), first, USER, second, gives("c"))

    assert [one.text for one in history] == ["", "one", "hello", "two"]
    assert texts_of(history[1]) == ["result of a", "result of b", "result of c"]
    assert history[1].tool_results[1] is first.tool_results[0]
    assert history[3].tool_results == ()
    assert state.status is Status.REPAIRED
    assert state.repairs == (
        "message 3: the result for 'a' was moved to right after its call in message 0",
        "message 4: the result for 'c' was moved to right after its call in message 0",
    )


def test_a_result_behind_a_reply_is_moved_to_its_call() -> None:
    history, _ = repaired(asks("a"), ANSWER, gives("a"))

    assert history[1].tool_results == (result("a"),)
    assert history[2] is ANSWER
    assert len(history) == 3


def test_a_result_behind_another_step_finds_its_call_when_the_id_is_the_only_one() -> None:
    history, _ = repaired(asks("a"), asks("b"), gives("b", "a"))

    assert texts_of(history[1]) == ["result of a"]
    assert texts_of(history[3]) == ["result of b"]


def test_a_late_result_finds_its_call_also_when_the_id_is_used_again_afterwards() -> None:
    late = v.Message.user(tool_results=[result("y"), result("x", "first")])

    history, _ = repaired(asks("x"), asks("y"), late, asks("x"), gives("x"))

    answers = [texts_of(one) for one in history if one.tool_results]
    assert answers == [["first"], ["result of y"], ["result of x"]]


def test_a_late_result_that_fits_two_open_calls_answers_neither() -> None:
    history, state = repaired(asks("x"), asks("x"), asks("y"), gives("y", "x"))

    answers = [one.status.value for message in history for one in message.tool_results]
    assert answers == ["interrupted", "interrupted", "ok"]
    assert "message 3: the result for 'x' fits no open call; dropped" in state.repairs


def test_a_late_result_that_could_belong_to_two_calls_is_dropped() -> None:
    history, state = repaired(asks("x"), gives("x"), asks("x"), asks("y"), gives("y", "x"))

    assert history[3].tool_results[0].status is v.CallStatus.INTERRUPTED
    assert "message 4: the result for 'x' fits no open call; dropped" in state.repairs


def test_text_beside_results_of_two_messages_is_kept_in_both() -> None:
    history, _ = repaired(asks("a", "b"), gives("a", content="one"), gives("b", content="two"))

    assert [one.text for one in history] == ["", "one", "two"]
    assert texts_of(history[1]) == ["result of a", "result of b"]


def test_with_repeated_ids_a_result_belongs_to_the_step_it_follows() -> None:
    first = v.Message.user(tool_results=[result("x", "first")])
    second = v.Message.user(tool_results=[result("x", "second")])

    history, state = repaired(asks("x"), first, asks("x"), second, asks("x"))

    assert [call.id for one in history for call in one.tool_calls] == ["x", "call_2", "call_3"]
    assert texts_of(history[1]) == ["first"]
    assert texts_of(history[3]) == ["second"]
    assert history[5].tool_results[0].status is v.CallStatus.INTERRUPTED
    assert "renamed 'call_2'" in state.repairs[0]


def test_a_second_result_never_answers_the_open_call_of_another_step() -> None:
    # It would say that the first call had returned, which nobody knows.
    twice = v.Message.user(tool_results=[result("x", "one"), result("x", "two")])

    history, state = repaired(asks("x"), USER, asks("x"), twice)

    assert history[1].tool_results[0].status is v.CallStatus.INTERRUPTED
    assert texts_of(history[4]) == ["one"]
    assert any("fits no open call; dropped" in sentence for sentence in state.repairs)


def test_kC2_equal_ids_in_one_step_pair_by_position() -> None:
    answers = v.Message.user(tool_results=[result("x", "one"), result("x", "two")])

    history, _ = repaired(asks("x", "x"), answers)

    assert [call.id for call in history[0].tool_calls] == ["x", "call_2"]
    assert [(one.call_id, one.text) for one in history[1].tool_results] == [
        ("x", "one"),
        ("call_2", "two"),
    ]


@pytest.mark.parametrize(
    "call_id",
    ["", "  ", None, 7, True, 1.5, pytest.param(10**5000, id="huge"), "\ud800", ("a",)],
)
def test_kC2_ids_that_are_none_are_replaced_in_the_call_and_its_result(call_id: Any) -> None:
    answers = v.Message.user(tool_results=[result("ok"), result(call_id, "kept")])

    history, state = repaired(asks(call_id, "ok"), answers)

    [bad, good] = history[0].tool_calls
    assert (bad.id, good.id) == ("call_1", "ok")
    assert texts_of(history[1]) == ["kept", "result of ok"]
    assert state.status is Status.REPAIRED


def test_numbers_as_ids_are_told_apart() -> None:
    answers = v.Message.user(tool_results=[result(2, "two"), result(1, "one")])

    history, _ = repaired(asks(1, 2), answers)

    assert texts_of(history[1]) == ["one", "two"]


def test_an_invented_id_is_none_that_a_later_call_has() -> None:
    history, _ = repaired(asks("", "call_1"), gives("", "call_1"), asks("call_2"))

    ids = [call.id for one in history for call in one.tool_calls]
    assert ids[1:] == ["call_1", "call_2"]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("orphans", [gives("x"), gives("x", content="note")])
def test_a_result_without_a_call_is_dropped_and_told_but_text_stays(orphans: v.Message) -> None:
    history, state = repaired(USER, orphans, ANSWER)

    assert [one.text for one in history] == [
        one.text for one in (USER, orphans, ANSWER) if one.text
    ]
    assert state.status is Status.REPAIRED
    assert state.repairs == ("message 1: the result for 'x' fits no open call; dropped",)


def test_a_result_before_its_call_is_an_orphan() -> None:
    history, _ = repaired(gives("a"), asks("a"))

    assert history[1].tool_results[0].status is v.CallStatus.INTERRUPTED


def test_an_answered_step_before_another_needs_no_answer() -> None:
    history, _ = repaired(asks("a", "b"), gives("b", "a"), asks("c"))

    assert texts_of(history[1]) == ["result of a", "result of b"]


def test_an_extra_result_is_dropped_and_the_others_stay() -> None:
    history, state = repaired(asks("a"), gives("a", "b", "a"))

    assert texts_of(history[1]) == ["result of a"]
    assert len(state.repairs) == 2


# --- wrong roles ----------------------------------------------------------------


def test_results_of_role_tool_are_taken_as_the_users() -> None:
    answers: Any = {"role": "tool", "tool_results": [result("a")]}

    history, _ = repaired(asks("a"), v.Message(**answers))

    assert history[1].role == "user"
    assert texts_of(history[1]) == ["result of a"]


def test_calls_and_results_in_one_message_are_taken_apart() -> None:
    both = v.Message(
        "assistant",
        "look",
        tool_calls=[v.ToolCall("a", "read"), v.ToolCall("b", "read")],
        tool_results=[result("b"), result("x")],
    )

    history, state = repaired(USER, both)

    assert history[1].text == "look"
    assert [call.id for call in history[1].tool_calls] == ["a", "b"]
    assert history[1].tool_results == ()
    assert [one.status.value for one in history[2].tool_results] == ["interrupted", "ok"]
    assert any("'x' fits no open call" in sentence for sentence in state.repairs)


def test_a_reply_that_carries_the_results_of_the_step_before_gives_them_back() -> None:
    late = v.Message("assistant", "done", tool_results=[result("a")])

    history, _ = repaired(asks("a"), late)

    assert [one.role for one in history] == ["assistant", "user", "assistant"]
    assert texts_of(history[1]) == ["result of a"]
    assert history[2].text == "done"


def test_the_users_words_beside_calls_stay_the_users() -> None:
    odd = v.Message("user", "my words", tool_calls=[v.ToolCall("a", "read")])

    history, state = repaired(odd, gives("a"))

    assert [(one.role, one.text) for one in history] == [
        ("user", "my words"),
        ("assistant", ""),
        ("user", ""),
    ]
    assert texts_of(history[2]) == ["result of a"]
    assert any("moved to a reply of their own" in sentence for sentence in state.repairs)


def test_calls_and_results_of_the_user_without_words_become_a_step() -> None:
    odd = v.Message("user", tool_calls=[v.ToolCall("b", "read")], tool_results=[result("a")])

    history, _ = repaired(asks("a"), odd)

    assert [one.role for one in history] == ["assistant", "user", "assistant", "user"]
    assert texts_of(history[1]) == ["result of a"]


# --- damage by itself -----------------------------------------------------------


def test_an_empty_reply_gets_a_placeholder_and_an_empty_user_message_is_dropped() -> None:
    empty = v.Message.assistant(" ", meta={"id": 1})

    history, state = repaired(USER, empty, v.Message.user(""))

    assert [one.text for one in history] == ["hello", "(empty reply)"]
    assert history[1].meta == {"id": 1}
    assert state.status is Status.REPAIRED
    assert len(state.repairs) == 2


def test_a_history_of_nothing_but_empty_messages_ends_empty() -> None:
    history, state = repaired(v.Message.user(""), v.Message.user(" "))

    assert history == ()
    assert state.status is Status.REPAIRED


def test_damaged_text_arguments_and_results_are_mended_in_place() -> None:
    call: Any = {"id": "a", "name": "read", "arguments": '{"cut": '}
    history, state = repaired(
        v.Message.user("x\ud800"),
        v.Message.assistant("", tool_calls=[v.ToolCall(**call)]),
        v.Message.user(tool_results=[v.ToolResult("a", "read", "")]),
        "no message",
    )

    assert history[0].text == "x\ufffd"
    assert history[1].tool_calls[0].arguments == {"invalid_arguments": '{"cut": '}
    assert texts_of(history[2]) == ["(no output)"]
    assert [sentence.split(":")[0] for sentence in state.repairs] == [
        "message 0",
        "message 1",
        "message 2",
        "message 3",
    ]


def test_messages_beside_the_damage_stay_the_same_objects() -> None:
    messages = (USER, asks("a"), gives("a"), ANSWER, asks("b"))

    history, _ = repaired(*messages)

    assert all(one is other for one, other in zip(messages, history[:5], strict=True))


def test_the_answers_to_a_template_are_a_template() -> None:
    history, _ = repaired(asks("a", template=True), USER)

    assert [one.template for one in history] == [True, True, False]


def test_reconciling_changes_no_message_it_was_given() -> None:
    messages = [USER, asks("x"), v.Message.user("text"), asks("x", ""), gives("", "x")]
    before = [repr(one) for one in messages]

    repaired(*messages)

    assert [repr(one) for one in messages] == before


def test_the_seven_statuses_are_these() -> None:
    assert [one.value for one in Status] == [
        "history_disabled",
        "history_empty",
        "history_unchanged",
        "appended_completed_tool_result",
        "appended_partial_tool_result",
        "appended_interrupted_tool_result",
        "repaired",
    ]


# --- all of it ------------------------------------------------------------------


def lone_results(history: tuple[v.Message, ...]) -> list[v.ToolResult]:
    """The results that belong to one call without any doubt."""
    calls = [(index, call.id) for index, one in enumerate(history) for call in one.tool_calls]
    answers = [(index, answer) for index, one in enumerate(history) for answer in one.tool_results]
    found: list[v.ToolResult] = []
    for index, answer in answers:
        of_this_id = [at for at, call_id in calls if call_id == answer.call_id and at < index]
        count = sum(other.call_id == answer.call_id for _, other in answers)
        if len(of_this_id) == 1 and count == 1:
            found.append(answer)
    return found


@given(strategies.damaged_histories())
@settings(max_examples=150)
def test_kA3_any_history_becomes_valid_and_no_finished_result_is_lost(
    history: tuple[v.Message, ...],
) -> None:
    fixed, _ = repaired(*history)

    kept = [answer for one in fixed for answer in one.tool_results]
    for answer in lone_results(history):
        if validity.result_problems(answer):
            assert any(answer.status is one.status for one in kept)  # mended: another object
        else:
            assert any(answer is one for one in kept)
    # A call is never removed.
    assert sum(len(one.tool_calls) for one in fixed) == sum(len(one.tool_calls) for one in history)


def test_the_time_grows_with_the_length_not_faster() -> None:
    # Counted in calls of the id rule, which any search through earlier steps would multiply.
    def lookups(steps: int) -> int:
        counted = 0

        class Id(str):
            __slots__ = ()

            def __hash__(self) -> int:
                nonlocal counted
                counted += 1
                return super().__hash__()

        messages: list[v.Message] = []
        for number in range(steps):
            messages += [asks(Id("same"), Id(f"c{number}")), gives(Id(f"c{number}"))]
        repaired(*messages)
        return counted

    assert lookups(400) < 2.2 * lookups(200)
