"""validity: the rule of a valid history, each clause of it, and nothing more."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import trio_runner._core.errors as errors
import trio_runner._core.validity as validity
import trio_runner._core.values as v

USER = v.Message.user("hello")
ANSWER = v.Message.assistant("hi")


def asks(*ids: Any, content: Any = ()) -> v.Message:
    return v.Message.assistant(content, tool_calls=[v.ToolCall(one, "read") for one in ids])


def gives(*ids: Any, content: Any = ()) -> v.Message:
    return v.Message.user(content, tool_results=[v.ToolResult(one, "read", "ok") for one in ids])


def make(kind: Any, **fields: Any) -> Any:
    """A value whose fields may be of wrong types."""
    return kind(**fields)


def problem_of(*messages: Any) -> str:
    """The one problem there is."""
    [problem] = validity.history_problems(messages)
    return problem


# --- what is valid --------------------------------------------------------------


@pytest.mark.parametrize(
    "history",
    [
        [],
        [USER],
        [USER, ANSWER],
        [ANSWER],
        [USER, USER],  # the turn before was interrupted
        [USER, ANSWER, ANSWER],
        [USER, asks("a"), gives("a"), ANSWER],
        [USER, asks("a", "b", content="let me see"), gives("a", "b", content="and faster")],
        [asks("a"), gives("a"), asks("b"), gives("b"), USER],
        [USER, v.Message.user([v.TextContent(" "), v.TextContent("x")])],
        [v.Message.user(v.ImageContent("aGk=", "image/png"))],
        [v.Message.user(v.EmbeddedResource("u"))],
        [asks("a", content=" "), gives("a", content="")],
        [v.Message.user("é😀 \0")],
    ],
)
def test_a_valid_history_has_no_problems(history: list[v.Message]) -> None:
    assert validity.history_problems(history) == []
    validity.check_history(iter(history))


def test_any_status_structured_content_and_meta_are_valid() -> None:
    call = v.ToolCall("a", "read", {"x": [None, 1.5]}, "expected a JSON object")
    for status in v.CallStatus:
        result = v.ToolResult("a", "", "x", {"k": []}, status, 1.0, {"raw": object()})
        validity.check_history(
            [v.Message.assistant("", tool_calls=[call]), v.Message.user(tool_results=[result])]
        )


# --- pairing --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ([USER, asks("a")], ["message 1", "'a'", "open", "end of the history"]),
        ([asks("a", "b"), USER], ["message 0", "'a', 'b'", "open", "role 'user'"]),
        ([asks("a"), ANSWER], ["message 0", "open", "role 'assistant'"]),
        ([asks("a", "b"), gives("a")], ["message 1", "no result for 'b'", "message 0"]),
        ([asks("a"), gives("a", "b")], ["message 1", "results for 'b'", "did not ask"]),
        ([asks("a"), gives("a", "a")], ["message 1", "results for 'a'", "twice"]),
        ([asks("a", "b"), gives("b", "a")], ["message 1", "order 'b', 'a'", "'a', 'b'"]),
        ([USER, gives("a")], ["message 1", "'a'", "asks for no calls"]),
        ([gives("a")], ["message 0", "'a'", "asks for no calls"]),
        ([asks("a"), gives("a"), gives("a")], ["message 2", "'a'", "asks for no calls"]),
        ([asks("a"), gives("a"), asks("a"), gives("a")], ["message 2", "'a'", "used before"]),
        ([asks("a", "a"), gives("a", "a")], ["message 0", "'a'", "used before"]),
    ],
)
def test_a_fault_of_pairing_is_one_problem_that_names_what_was_found(
    history: list[v.Message], words: list[str]
) -> None:
    problem = problem_of(*history)

    assert problem.startswith(words[0])
    for word in words:
        assert word in problem


def test_missing_and_foreign_results_are_both_told() -> None:
    problems = validity.history_problems([asks("a", "b"), gives("a", "x")])

    assert ["no result for 'b'" in problems[0], "results for 'x'" in problems[1]] == [True, True]


def test_results_in_a_later_message_are_an_open_step_and_orphans() -> None:
    problems = validity.history_problems([asks("a"), USER, gives("a")])

    assert len(problems) == 2
    assert problems[0].startswith("message 0: the calls 'a' are open")
    assert problems[1].startswith("message 2: holds results for 'a'")


def test_long_lists_of_ids_are_cut() -> None:
    assert "and 995 more" in problem_of(asks(*[f"c{number}" for number in range(1000)]))


# --- one message ----------------------------------------------------------------


def call_with(**fields: Any) -> v.Message:
    call = make(v.ToolCall, **{"id": "a", "name": "read", **fields})
    return v.Message.assistant("x", tool_calls=[call])


def result_with(**fields: Any) -> v.Message:
    result = make(v.ToolResult, **{"call_id": "a", "name": "read", "content": "x", **fields})
    return v.Message.user("x", tool_results=[result])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("text", "found a str; expected a Message"),
        (make(v.Message, role="tool", content="x"), "role is 'tool'"),
        (make(v.Message, role=None, content="x"), "role is of type NoneType"),
        (make(v.Message, role=["user"], content="x"), "role is of type list"),
        (v.Message("user", "x", tool_calls=[v.ToolCall("a", "b")]), "role 'user' asks for calls"),
        (
            v.Message("assistant", "x", tool_results=[v.ToolResult("a", "b", "c")]),
            "role 'assistant' holds tool results",
        ),
        (v.Message.user(), "the message is empty"),
        (v.Message.user(""), "the message is empty"),
        (v.Message.assistant(" \n\u2003"), "the message is empty"),
        (v.Message.user([v.TextContent(""), v.TextContent(" ")]), "the message is empty"),
        (v.Message.user("\ud800"), "block 0: text does not encode as UTF-8"),
        (v.Message.user(make(v.TextContent, text=None)), "block 0: text is a NoneType"),
        (v.Message.user(v.TextContent("x", meta={"a": "\ud800"})), "block 0: meta is not"),
        (v.Message.user(make(v.TextContent, text="x", meta="y")), "block 0: meta is not"),
        (
            v.Message.user(v.TextContent("x", annotations={"a": object()})),
            "block 0: annotations is not",
        ),
        (v.Message.user(make(v.ImageContent, data=b"x", mime_type="y")), "data is a bytes"),
        (v.Message.user(v.AudioContent("x", "\ud800")), "mime_type does not encode"),
        (v.Message.user(v.ResourceLink("u", "n", title="\ud800")), "title does not encode"),
        (v.Message.user(make(v.ResourceLink, uri="u", name="n", description=3)), "description is"),
        (v.Message.user(v.ResourceLink("u", "n", icons=({"a": object()},))), "icons are not"),
        (v.Message.user(v.EmbeddedResource("u", text="\ud800")), "text does not encode"),
        (v.Message.user(v.EmbeddedResource("u", resource_meta={"a": set()})), "resource_meta is"),
        (attrs.evolve(asks("a"), tool_calls=["x"]), "call 0: found a str; expected a ToolCall"),
        (call_with(id=""), "call 0: the id is ''"),
        (call_with(id=" "), "call 0: the id is ' '"),
        (call_with(id=None), "call 0: the id is of type NoneType"),
        (call_with(id="\ud800"), "call 0: the id is '\ufffd'"),
        (call_with(name="\ud800"), "call 0: the name does not encode"),
        (call_with(name=None), "call 0: the name is a NoneType"),
        (call_with(name=""), "call 0: the name is empty"),
        (call_with(arguments=None), "call 0: the arguments are a NoneType"),
        (call_with(arguments="{}"), "call 0: the arguments are a str"),
        (call_with(arguments=[]), "call 0: the arguments are a list"),
        (call_with(arguments={"a": float("nan")}), "arguments are not a plain JSON object"),
        (call_with(arguments={1: 2}), "arguments are not a plain JSON object"),
        (call_with(arguments={"a": "\ud800"}), "arguments are not a plain JSON object"),
        (call_with(arguments_error="\ud800"), "call 0: arguments_error does not encode"),
        (call_with(arguments_error=3), "call 0: arguments_error is a int"),
        (
            v.Message("user", "x", tool_results=["x"]),  # type: ignore[list-item]
            "result 0: found a str; expected a ToolResult",
        ),
        (result_with(call_id=""), "result 0: the call_id is ''"),
        (result_with(name="\ud800"), "result 0: the name does not encode"),
        (result_with(name=None), "result 0: the name is a NoneType"),
        (result_with(content=()), "result 0: the result is empty"),
        (result_with(content=" "), "result 0: the result is empty"),
        (result_with(content=(), structured_content={"a": 1}), "result 0: the result is empty"),
        (result_with(content="\ud800"), "result 0: block 0: text does not encode"),
        (result_with(structured_content={"a": object()}), "structured content is not plain JSON"),
        (result_with(structured_content="\ud800"), "structured content is not plain JSON"),
    ],
)
def test_a_fault_of_one_message_is_one_problem(message: Any, words: str) -> None:
    [problem] = validity.message_problems(message)

    assert words in problem
    problem.encode()
    # The same, with the index of the message, when it stands in a history.
    assert f"message 1: {problem}" in validity.history_problems([USER, message])


def test_a_block_of_another_type_is_a_problem() -> None:
    class Odd(v.TextContent):
        pass

    [problem] = validity.message_problems(v.Message.user(Odd("x")))

    assert problem == "block 0: found a Odd; expected a content block"


def test_ids_of_any_type_can_be_told() -> None:
    problems = validity.history_problems([asks(None, ["x"]), gives(None, 3, "b")])

    assert problems[-2].startswith("message 1: no result for '(a list)'")
    assert problems[-1].startswith("message 1: results for '(a int)', 'b'")


def test_parts_of_a_wrong_type_do_not_hide_the_pairing() -> None:
    message = make(v.Message, role="assistant", content="x", tool_calls=["x"])

    assert any("open" in problem for problem in validity.history_problems([message]))


# --- input at a step border -----------------------------------------------------


def test_text_and_other_content_may_be_appended_between_steps() -> None:
    assert validity.input_problems([USER, ANSWER, v.Message.user(v.EmbeddedResource("u"))]) == []
    assert validity.input_problems([]) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (asks("a"), "message 1: asks for the calls 'a'"),
        (gives("a"), "message 1: holds results for 'a'"),
        (v.Message.user(" "), "message 1: the message is empty"),
        ("text", "message 1: found a str"),
        (v.Message.user("a style", template=True), "message 1: is a template"),
    ],
)
def test_calls_results_and_empty_messages_may_not(message: Any, words: str) -> None:
    [problem] = validity.input_problems([USER, message])

    assert problem.startswith(words)


# --- the error ------------------------------------------------------------------


def test_check_history_raises_all_problems_at_once() -> None:
    with pytest.raises(errors.HistoryError, match="message 0: the message is empty") as caught:
        validity.check_history([v.Message.user(""), asks("a")])

    assert len(caught.value.problems) == 2
