"""Which of a server's schemas can be used."""

from typing import Any

import pytest

import trio_runner_adapters.mcp._schemas as schemas
from trio_runner_adapters.mcp._schemas import (
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
    {"$schema": "http://[bad", "type": "object"},
    {"properties": {"a": {"default": {"$ref": "http://not-a-reference"}}}},
    {"properties": {"a": True, "b": {"type": ["string", "null"], "minLength": 1.0}}},
    {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True, "items": [{}]},
    {"allOf": [{"$ref": "#"}]},  # for ever, but a schema
]


@pytest.mark.parametrize("schema", GOOD)
def test_a_good_schema_has_no_problem(schema: object) -> None:
    assert input_schema_problem(schema) is None


BAD: list[tuple[Any, str]] = [
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
    ({"$schema": 5}, "$schema"),
    ({"$schema": ["x"]}, "$schema"),
    ({"properties": {"a": {"$schema": {}}}}, "properties/a/$schema"),
    ({"properties": {"a": 3}}, "what is of type 'int' is not a schema at properties/a"),
    ({"properties": {"a": {"items": [{}]}}}, "items"),
    ({"properties": {"a": {"exclusiveMinimum": True}}}, "exclusiveMinimum"),
    ({"properties": {"a": {"minLength": -1}}}, "minLength"),
    ({"properties": {"a": {"minLength": True}}}, "minLength"),
    ({"properties": {"a": {"maximum": "3"}}}, "maximum"),
    ({"properties": {"a": {"type": []}}}, "type"),
    ({"required": ["a", "a"]}, "required"),
    ({"required": [3]}, "required"),
    ({"dependentRequired": {"a": "b"}}, "dependentRequired"),
    ({"anyOf": []}, "anyOf"),
    ({"anyOf": {}}, "anyOf"),
    ({"description": 3}, "description"),
    ({"enum": "a"}, "enum"),
    ({"uniqueItems": 1}, "uniqueItems"),
    ({"properties": {"a": {"$ref": 3}}}, "$ref"),
    ({"properties": {"a": {"$ref": "#/x"}}, "x": {"type": "bad"}}, "'bad'"),
    ({"properties": {"a": {"$ref": "#/" + "a/" * 1000}}}, "nowhere"),
    ({"properties": {"a": {"$ref": "#/" + "x" * 1000}}, "x" * 1000: {}}, "nowhere"),
]


@pytest.mark.parametrize(("schema", "said"), BAD)
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


def test_a_schema_of_too_many_parts_is_a_problem() -> None:
    large = {"properties": {f"p{n}": {"type": "string"} for n in range(6000)}}
    problem = schema_problem(large)
    assert problem is not None
    assert "too large" in problem


def test_a_long_chain_of_references_is_followed_once() -> None:
    followed = 0

    class Counting(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            nonlocal followed
            followed += 1
            return super().__contains__(key)

    count = 2000
    names = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)} | {f"d{count}": {}}
    document: dict[str, Any] = {"$defs": names}
    walk = schemas._Walk(document)
    walk._document = Counting(document)
    assert walk.problem() is None
    assert followed <= 3 * count
