"""The check of structured content: what fits, what does not, and that its work is bounded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_runner_adapters.mcp._output_check import OutputCheck, UncheckableError

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "children": {"type": "array", "items": {"$ref": "#"}},
        "x": {"$ref": "#/$defs/n"},
    },
    "$defs": {"n": {"type": "integer"}},
}
OLD = "http://json-schema.org/draft-07/schema#"

FITS: list[tuple[dict[str, Any], Any]] = [
    (TREE, {"children": [{"children": []}], "x": 3}),
    ({"type": "integer"}, 3.0),
    ({"type": ["string", "null"]}, None),
    ({"enum": [1, {"a": [True]}]}, {"a": [True]}),
    ({"const": 1}, 1.0),
    ({"minimum": 0, "exclusiveMaximum": 5, "maximum": 5}, 4.9),
    ({"exclusiveMinimum": True, "minimum": 5}, 5),  # draft 4
    ({"minLength": 2, "maxLength": 2}, "é😀"),
    ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"a": 1, "b": "x"}),
    ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", 1, 2]),
    ({"items": [{"type": "string"}], "additionalItems": False}, ["a"]),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, 3),
    # What is not understood makes it more lenient, never stricter.
    ({"pattern": "^(a+)+$", "properties": {}, "not": {}, "if": {}, "then": False}, "no"),
    ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"xa": 1}),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 3),
    ({"$schema": OLD, "$ref": "#/definitions/a", "type": "string", "definitions": {"a": {}}}, 3),
    ({"minimum": 3, "minLength": 3, "minItems": 3, "required": ["a"]}, None),
]
MISFITS: list[tuple[dict[str, Any], Any, str]] = [
    (TREE, {"x": "three"}, "'three' is not of type integer at x"),
    (TREE, None, "null is not of type object at the top"),
    (TREE, {"children": [{"x": None}]}, "null is not of type integer at children/0/x"),
    ({"type": "integer"}, True, "true is not of type integer"),
    ({"type": "integer"}, 3.5, "3.5 is not"),
    ({"enum": [1, "a"]}, True, "true is none of the 2 values"),
    ({"const": {"a": 1}}, {"a": 1, "b": 2}, "an object is not an object"),
    ({"const": [1]}, [1, 2], "a list is not a list"),
    ({"minimum": 0}, -1, "-1 is too small"),
    ({"exclusiveMinimum": 0}, 0, "0 is too small"),
    ({"maximum": 0}, 1, "1 is too big"),
    ({"exclusiveMaximum": 0}, 0, "0 is too big"),
    ({"minLength": 3}, "ab", "2 characters are too few"),
    ({"maxItems": 1}, [1, 2], "2 items are too many"),
    ({"maxProperties": 0}, {"a": 1}, "1 properties are too many"),
    ({"required": ["a"]}, {}, "'a' is missing"),
    ({"additionalProperties": False}, {"b": 1}, "1 is not allowed at b"),
    ({"prefixItems": [{}], "items": False}, [1, 2], "2 is not allowed at 1"),
    ({"allOf": [{}, {"type": "string"}]}, 3, "3 is not of type string"),
    (
        {"anyOf": [{"type": "string"}, {"properties": {"a": {"type": "string"}}}]},
        {"a": 3},
        "3 is not of type string at a",
    ),
    ({"oneOf": [{"type": "string"}]}, 3, "3 is not of type string"),
    ({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": {}}}, 3, "3 is not of type string"),
]


@pytest.mark.parametrize(("schema", "value"), FITS)
def test_a_value_that_fits_passes(schema: dict[str, Any], value: Any) -> None:
    assert OutputCheck(schema).mismatch(value) is None


@pytest.mark.parametrize(("schema", "value", "said"), MISFITS)
def test_a_value_that_does_not_fit_is_told_with_its_place(
    schema: dict[str, Any], value: Any, said: str
) -> None:
    problem = OutputCheck(schema).mismatch(value)
    assert problem is not None
    assert problem.startswith(said)


@pytest.mark.parametrize("value", ["x" * 100_000, 10**4000, {"x" * 100_000: 1}, [[1]] * 10_000])
def test_what_is_said_about_a_huge_value_is_bounded(value: Any) -> None:
    problem = OutputCheck({"type": "null", "additionalProperties": False}).mismatch(value)
    assert problem is not None
    assert len(problem) < 1000
    problem = OutputCheck({"additionalProperties": {"type": "null"}}).mismatch({"x" * 10_000: 1})
    assert problem is not None
    assert len(problem) < 1000


def doubling(levels: int) -> dict[str, Any]:
    twice = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**twice, f"a{levels}": {"type": "string"}}}


BOMBS: list[tuple[dict[str, Any], Any]] = [
    (doubling(40), 1),
    ({"allOf": [{"$ref": "#"}]}, 1),
    ({"$ref": "#"}, 1),
    ({"items": {"enum": [[n] for n in range(5000)]}}, [[4999]] * 5000),
    ({"items": {"anyOf": [{"type": "string"}, {}]}}, [1] * 50_000),
    ({"anyOf": [{"items": {"$ref": "#"}, "minItems": 1}] * 2}, json.loads("[" * 30 + "]" * 30)),
    # A reference in it would be meant from there.
    ({"properties": {"a": {"$id": "http://x/y", "$ref": "#"}}}, {"a": 1}),
]


@pytest.mark.parametrize(("schema", "value"), BOMBS)
def test_work_without_end_is_given_up(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(UncheckableError):
        OutputCheck(schema).mismatch(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(JSON)
def test_every_json_value_is_equal_to_itself_and_of_one_type(value: Any) -> None:
    if value == value and "nan" not in repr(value):
        assert OutputCheck({"const": value, "enum": [0.5, value]}).mismatch(value) is None
    kinds = ["null", "boolean", "number", "string", "array", "object"]
    assert sum(OutputCheck({"type": kind}).mismatch(value) is None for kind in kinds) == 1
