"""Which of a server's schemas can be used, and the check of structured content."""

from typing import Any

import pytest

from trio_runner_adapters.mcp._schemas import (
    OutputCheck,
    completed,
    input_schema_problem,
    schema_problem,
)

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "children": {"type": "array", "items": {"$ref": "#"}},
        "x": {"$ref": "#/$defs/n"},
    },
    "$defs": {"n": {"type": "integer"}},
}


GOOD: list[dict[str, Any]] = [
    {},
    {"type": "object"},
    {"properties": {"a": {"type": "string"}}},
    {"type": "object", "properties": {"$ref": {"type": "string"}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": {}}},
    {"type": "object", "anyOf": [{}], "properties": {"a": {"$ref": "#/anyOf/0"}}},
    TREE,
]


@pytest.mark.parametrize("schema", GOOD)
def test_a_good_schema_has_no_problem(schema: object) -> None:
    assert input_schema_problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "missing"),
        ([], "list"),
        (True, "bool"),
        ({"type": "string"}, "'string'"),
        ({"type": ["object", "null"]}, "object"),
        ({"type": "objekt"}, "objekt"),
        ({"type": "object", "required": None}, "required"),
        ({"type": "object", "properties": None}, "properties"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/no"}}}, "nowhere"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a/3"}}}, "nowhere"),
        ({"$ref": "#"}, "itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "itself"),
        ({"properties": {"a": {"$ref": "https://example.org/s.json"}}}, "into the schema itself"),
    ],
)
def test_a_bad_schema_is_told_in_words(schema: object, said: str) -> None:
    problem = input_schema_problem(schema)
    assert problem is not None
    assert said in problem


def test_a_schema_nested_without_end_is_a_problem_and_no_crash() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(20_000):
        schema = {"type": "object", "properties": {"a": schema}}
    assert schema_problem(schema) is not None


def test_an_output_schema_may_be_of_any_type() -> None:
    assert schema_problem({"type": "array"}) is None


def test_the_missing_type_is_added_and_nothing_else_changed() -> None:
    assert completed({"properties": {}}) == {"type": "object", "properties": {}}


def test_a_value_that_fits_passes() -> None:
    value: dict[str, Any] = {"children": [{"children": []}], "x": 3}
    assert OutputCheck(TREE).mismatch(value) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [({"x": "three"}, "at x"), (None, "object"), ({"children": [{"x": None}]}, "children/0/x")],
)
def test_a_value_that_does_not_fit_is_told_with_its_place(value: object, said: str) -> None:
    problem = OutputCheck(TREE).mismatch(value)
    assert problem is not None
    assert said in problem


def test_what_is_said_about_a_huge_value_is_bounded() -> None:
    problem = OutputCheck({"type": "integer"}).mismatch("x" * 100_000)
    assert problem is not None
    assert len(problem) < 1000
