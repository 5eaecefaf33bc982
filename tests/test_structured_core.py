"""`AnswerPlan`, and finding JSON in a reply: the pure part of structured answers."""

from __future__ import annotations

import json
from typing import Any, Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given

import trio_runner as tr
from trio_runner._core.structured import (
    MARK,
    AnswerPlan,
    NoJSONError,
    find_json,
    instruction,
    is_strict,
    listed,
    output_name,
)

OUTPUT = tr.OutputFormat("Weather", {"type": "object"})
RESULTS = tr.Message.user(tool_results=[tr.ToolResult("c1", "look", "rain")])
Policy = Literal["always", "defer", "no_tools"]


def plan(policy: Policy = "always", *messages: tr.Message, retries: int = 2) -> AnswerPlan:
    return AnswerPlan(OUTPUT, policy, messages, retries)


# --- finding the JSON -----------------------------------------------------------

json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner),
    max_leaves=8,
)  # fmt: skip


@given(json_values, st.sampled_from([None, 2]))
def test_a_value_is_found_as_the_whole_text_and_in_one_fenced_block(
    value: Any, indent: int | None
) -> None:
    text = json.dumps(value, indent=indent)
    assert find_json(f"\n {text} \n") == value
    assert find_json(f"Here it is:\n\n```json\n{text}\n```\nAnything else?") == value
    assert find_json(f"```\n{text}\n```") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the answer is not JSON: Expecting value at line 1 column 1"),
        ("It rains.", "the answer is not JSON: Expecting value at line 1 column 1"),
        ('It is {"rain": true}', "the answer is not JSON"),
        ('{"rain": true} as I said', "Extra data"),
        ("```json\n1\n```\nor\n```json\n2\n```", "it has 2 fenced blocks"),
        ("```json\n{rain}\n```", "the fenced block of the answer is not JSON"),
        ("NaN", "NaN is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no JSON number"),
        ("[" * 500_000, "nested too deeply"),
        ("[" * 101 + "]" * 101, "nested too deeply"),
        ("9" * 5000, "digits"),
    ],
)
def test_what_is_no_json_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(NoJSONError, match=says):
        find_json(text)


def test_lone_surrogates_become_what_every_store_takes() -> None:
    assert find_json('"\\ud800"') == "�"


@given(st.text(max_size=60))
def test_any_text_is_json_or_refused(text: str) -> None:
    try:
        told = json.dumps(find_json(text))
    except NoJSONError as error:
        told = str(error)
    assert told


# --- when the schema is shown ---------------------------------------------------


def test_always_shows_the_schema_and_offers_tools() -> None:
    always = plan()
    assert always.shows_schema([], has_tools=True)
    assert not always.withholds_tools


def test_no_tools_shows_the_schema_and_withholds_tools() -> None:
    without = plan("no_tools")
    assert without.shows_schema([], has_tools=False)
    assert without.withholds_tools


def test_defer_shows_the_schema_once_the_delta_holds_a_result_and_from_then_on() -> None:
    defer = plan("defer")
    assert not defer.shows_schema([tr.Message.user("hi")], has_tools=True)
    assert not defer.has_shown
    assert defer.shows_schema([RESULTS], has_tools=True)
    assert defer.shows_schema([], has_tools=True)  # a paused reply goes back
    assert not defer.withholds_tools


def test_defer_without_tools_is_one_call_with_the_schema() -> None:
    assert plan("defer").shows_schema([tr.Message.user("hi")], has_tools=False)


def test_the_one_more_call_of_defer_has_no_tools_and_neither_has_what_follows() -> None:
    defer = plan("defer")
    defer.shows_schema([], has_tools=True)
    asked = defer.ask()
    assert (asked.role, asked.meta) == ("user", {MARK: "asked"})
    assert "'Weather'" in asked.text
    assert defer.withholds_tools
    refused = defer.refuse(["rain: missing"])
    assert refused is not None
    assert defer.withholds_tools


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_answers_go_back_as_often_as_retries_say(retries: int) -> None:
    always = plan(retries=retries)
    sent = [always.refuse(["rain: missing"]) for _ in range(retries + 2)]
    assert [message is not None for message in sent] == [True] * retries + [False] * 2
    assert always.attempts == retries


def test_a_turn_that_goes_on_is_where_it_was() -> None:
    """The messages alone tell it, since the process that wrote them may be gone."""
    first = plan("defer")
    first.shows_schema([tr.Message.user("hi")], has_tools=True)
    asked, refused = first.ask(), first.refuse(["no"])
    assert refused is not None
    again = plan("defer", tr.Message.user("hi"), asked, refused)
    assert (again.attempts, again.withholds_tools, again.has_shown) == (1, True, True)
    assert not plan("defer", tr.Message.user("hi")).has_shown
    assert plan("defer", tr.Message.user("hi"), RESULTS).has_shown


# --- what is said ---------------------------------------------------------------


def test_the_instruction_holds_the_schema_behind_the_agents_own() -> None:
    output = tr.OutputFormat("Ort", {"type": "object", "title": "Café"})
    text = instruction("Be brief.", output)
    assert text.startswith("Be brief.\n\n")
    assert text.endswith('JSON Schema of \'Ort\':\n{"type":"object","title":"Café"}')
    assert instruction(None, output) == text.removeprefix("Be brief.\n\n")


def test_what_is_told_of_an_answer_is_bounded() -> None:
    text = listed(["x" * 10_000] * 1000)
    assert len(text) < 6000
    assert text.endswith("- and 990 more")


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("Weather", "Weather"), ("list[int]", "list_int"), ("Größe & Co", "Gr_e_Co"), ("", "answer"),
     (None, "answer"), ("€", "answer"), ("n" * 100, "n" * 64)],
)  # fmt: skip
def test_a_name_is_one_that_providers_take(given_name: object, name: str) -> None:
    assert output_name(given_name) == name


OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CLOSED = {**OBJECT, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        (OBJECT, False),
        ({**CLOSED, "required": []}, False),
        ({"type": "array", "items": CLOSED}, True),
        ({"type": "array", "items": OBJECT}, False),
        ({"type": "array"}, False),
        ({**CLOSED, "$defs": {"x": OBJECT}}, False),
        ({**CLOSED, "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": CLOSED}}, True),
        ({**CLOSED, "properties": {"a": {}}}, False),
        ({**CLOSED, "properties": {"a": True}}, False),
        ({**CLOSED, "properties": {"a": {"anyOf": [{"type": "null"}, CLOSED]}}}, True),
        ({**CLOSED, "properties": {"a": {"anyOf": [{"type": "null"}, OBJECT]}}}, False),
        ({**CLOSED, "properties": {"a": {"type": ["object", "null"]}}}, False),
        ({**CLOSED, "properties": {"a": {"oneOf": [CLOSED]}}}, False),
        ({**CLOSED, "properties": {"a": {"enum": [{"type": "object"}]}}}, True),
    ],
)
def test_a_schema_is_strict_when_every_object_says_all_that_it_holds(
    schema: dict[str, Any], strict: bool
) -> None:
    assert is_strict(schema) is strict
