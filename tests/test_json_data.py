"""json_data: plain JSON is made, told, and copied."""

from __future__ import annotations

import datetime
import enum
import json
import types
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import trio_runner._core.json_data as json_data
import trio_runner._core.values as v
import trio_runner.testing.strategies as strategies


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Celsius(float):
    pass


class Broken(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        return 1


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("é😀", "é😀"),
        ("a\ud800b", "a\ufffdb"),
        ("\udc00", "\ufffd"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("x\ud83d\ude00", "x😀"),
        ("x\ud83d", "x\ufffd"),
    ],
)
def test_safe_text_replaces_lone_surrogates_and_joins_pairs(text: str, expected: str) -> None:
    assert json_data.safe_text(text) == expected
    assert json_data.is_safe_text(text) == (text == expected)
    json_data.safe_text(text).encode()


@pytest.mark.parametrize("text", ["plain", "é" * 1000])
def test_safe_text_returns_good_text_itself(text: str) -> None:
    assert json_data.safe_text(text) is text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (1.5, 1.5),
        ("é", "é"),
        ("\ud800", "\ufffd"),
        ((1, (2, 3)), [1, [2, 3]]),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Celsius(20.5), 20.5),
        ({"a": [{"b": None}]}, {"a": [{"b": None}]}),
        ({Colour.RED: Level.LOW}, {"red": 1}),
        ({"k\ud800": 1}, {"k\ufffd": 1}),
        (types.MappingProxyType({"a": (1,)}), {"a": [1]}),
    ],
)
def test_plain_json_makes_plain_values(value: object, expected: object) -> None:
    plain = json_data.plain_json(value)

    assert plain == expected
    assert type(plain) is type(expected)
    assert json_data.is_plain_json(plain)


def test_keys_and_items_of_subclasses_become_the_plain_types() -> None:
    plain = json_data.plain_json({Colour.RED: [Colour.RED, Level.LOW, Celsius(1.0)]})

    assert isinstance(plain, dict)
    [(key, items)] = plain.items()
    assert isinstance(items, list)
    assert [type(key), *map(type, items)] == [str, str, int, float]


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (float("nan"), "$", "found nan"),
        ({"a": [1, float("-inf")]}, "$.a[1]", "found -inf"),
        ({"when": datetime.date(2026, 1, 1)}, "$.when", "type date"),
        ({"a": {1: 2}}, "$.a", "key of type int"),
        ({None: 2}, "$", "key of type NoneType"),
        (b"x", "$", "type bytes"),
        ([{1, 2}], "$[0]", "type set"),
        pytest.param(10**5000, "$", "thousands of digits", id="huge"),
        (Broken(), "$", "raises RuntimeError"),
        ({"k" + chr(0xD800): 1, "k" + chr(0xDFFF): 2}, "$.k\ufffd", "two keys are equal"),
        ({"x" * 100: object()}, "$." + "x" * 40, "type object"),
    ],
)
def test_what_is_not_json_is_refused_with_its_path(value: object, path: str, reason: str) -> None:
    with pytest.raises(json_data.NotJSONError) as caught:
        json_data.plain_json(value)

    assert caught.value.path == path
    assert reason in caught.value.reason
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    assert not json_data.is_plain_json(value)


def test_a_hundred_levels_are_plain_and_one_more_is_too_deep() -> None:
    assert json_data.plain_json(nested(100)) == nested(100)
    assert json_data.is_plain_json(nested(100))
    assert not json_data.is_plain_json(nested(101))
    assert not json_data.is_plain_json([nested(100)])
    with pytest.raises(json_data.NotJSONError, match="more than 100 levels"):
        json_data.plain_json(nested(101))
    with pytest.raises(json_data.NotJSONError, match="more than 2 levels"):
        json_data.plain_json([nested(2)], max_depth=2)


def test_a_tuple_on_the_way_counts_as_a_level() -> None:
    with pytest.raises(json_data.NotJSONError, match="more than 2 levels"):
        json_data.plain_json([(nested(1),)], max_depth=2)


def test_a_value_that_contains_itself_is_told_as_such() -> None:
    inside: dict[str, Any] = {}
    inside["again"] = [inside]

    with pytest.raises(json_data.NotJSONError, match="contains itself"):
        json_data.plain_json({"a": inside})
    assert not json_data.is_plain_json(inside)


def test_one_that_contains_itself_through_a_foreign_mapping_is_too_deep() -> None:
    # A foreign mapping is not asked twice, so the two cannot be told apart.
    inner: dict[str, Any] = {}
    inner["again"] = types.MappingProxyType(inner)

    with pytest.raises(json_data.NotJSONError, match="too deeply"):
        json_data.plain_json(inner)


def test_one_object_in_two_places_does_not_contain_itself() -> None:
    shared: list[int] = [1]

    plain = json_data.plain_json({"a": shared, "b": (shared,)})

    assert plain == {"a": [1], "b": [[1]]}


@pytest.mark.parametrize("value", [(1,), Colour.RED, Level.LOW, Celsius(1.0), {"a": (1,)}])
def test_what_plain_json_would_convert_is_not_plain_yet(value: object) -> None:
    assert not json_data.is_plain_json(value)


@pytest.mark.parametrize("value", [["\ud800"], {"a": "\ud800"}, {"\ud800": 1}, [float("inf")]])
def test_damaged_text_and_numbers_are_not_plain(value: object) -> None:
    assert not json_data.is_plain_json(value)


@pytest.mark.parametrize("copier", [json_data.plain_json, json_data.copy_json])
def test_copies_share_nothing(copier: Any) -> None:
    original: dict[str, Any] = {"a": [1, {"b": [2]}], "c": {"d": 3}, "e": "text"}

    copied = copier(original)
    copied["a"][1]["b"].append(9)
    copied["c"]["d"] = 9
    copied["a"].append(9)

    assert original == {"a": [1, {"b": [2]}], "c": {"d": 3}, "e": "text"}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": "text", "b": 3},
        {"a": True},
        {"a": None},
        {"a": 0.5},
        {"å": "ö"},
        {"a": [{"b": 1}]},
    ],
)
def test_a_plain_dict_is_copied_whole(value: dict[str, Any]) -> None:
    copied = json_data.copy_if_plain(value)
    assert copied == value
    assert copied is not value
    if value.get("a") == [{"b": 1}]:
        assert copied is not None
        assert copied["a"] is not value["a"]
        assert copied["a"][0] is not value["a"][0]


@pytest.mark.parametrize(
    "value",
    [
        {1: "a"},
        {"a": float("nan")},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": 1 << 13_001},
        {"a": (1,)},
        {"a": [object()]},
    ],
)
def test_a_dict_that_is_not_plain_is_not_copied(value: dict[Any, Any]) -> None:
    assert json_data.copy_if_plain(value) is None


@given(strategies.json_values())
def test_plain_values_pass_all_functions_unchanged(value: v.JSONValue) -> None:
    assert json_data.is_plain_json(value)
    assert json_data.plain_json(value) == value
    assert json_data.copy_json(value) == value
    assert json.loads(json.dumps(value, allow_nan=False)) == value


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(max_size=3) | st.binary(max_size=1),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner)
            | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
        ),
        max_leaves=5,
    )
)
def test_whatever_comes_is_made_plain_or_refused(value: object) -> None:
    try:
        plain = json_data.plain_json(value)
    except json_data.NotJSONError:
        assert not json_data.is_plain_json(value)
    else:
        assert json_data.is_plain_json(plain)
        json.dumps(plain, allow_nan=False).encode()
