"""Any Python value as plain JSON."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import json
import math
import pathlib
import types
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import attrs
import hypothesis
import hypothesis.strategies as st
import pydantic
import pytest

import trio_runner._core.plain_data as plain_data
from trio_runner._core.json_data import is_plain_json
from trio_runner._core.plain_data import Conversion, NotDataError


def plain(value: object) -> Any:
    return Conversion().part(value)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    when: dt.date


@attrs.frozen
class Box:
    size: int
    inner: Any = None


class City(pydantic.BaseModel):
    name: str
    founded: dt.date
    anything: Any = None


class Pair(NamedTuple):
    left: int
    right: str


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no")


class Whole(int):
    pass


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Opaque:
    """Not `Silent`: Hypothesis asks for the repr of what it draws."""


class RaisingMap(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise OSError("gone")

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, True, None, "x"]}, {"a": [1, 2.5, True, None, "x"]}),
        ((1, (2, 3)), [1, [2, 3]]),
        ({1000, -7, 3}, [-7, 3, 1000]),
        (frozenset("hgfedcba"), list("abcdefgh")),
        (dt.datetime(2026, 11, 30, 10, 0, tzinfo=dt.UTC), "2026-11-30T10:00:00+00:00"),
        (dt.date(2026, 11, 30), "2026-11-30"),
        (dt.time(10, 30), "10:30:00"),
        (dt.timedelta(hours=1), "1:00:00"),
        (decimal.Decimal("1.10"), "1.10"),
        (fractions.Fraction(1, 3), "1/3"),
        (1 + 2j, "(1+2j)"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Text("t"), "t"),
        (Whole(4), 4),
        (b"\x00\x01", "data:application/octet-stream;base64,AAE="),
        (Point(1, dt.date(2026, 1, 2)), {"x": 1, "when": "2026-01-02"}),
        (Box(1, Box(2)), {"size": 1, "inner": {"size": 2, "inner": None}}),
        (
            City(name="Oslo", founded=dt.date(1048, 1, 1)),
            {"name": "Oslo", "founded": "1048-01-01", "anything": None},
        ),
        (Pair(1, "r"), {"left": 1, "right": "r"}),
        (collections.OrderedDict[str, int](a=1), {"a": 1}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (collections.deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ({"b": 1, "a": 2}.keys(), ["b", "a"]),
        ({"b": 1, "a": 2}.values(), [1, 2]),
        (array.array("i", [1, 2]), [1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kE4_values_with_a_json_form_get_it(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_kE4_numbers_that_json_lacks_become_text(number: float) -> None:
    assert plain([number]) == [f"({number})"]


def test_kE4_a_whole_number_that_python_will_not_print_becomes_a_marker() -> None:
    assert plain([10**30, 10**6000]) == [
        10**30,
        f"(a whole number of {(10**6000).bit_length()} bits)",
    ]


def test_kE4_a_list_that_contains_itself_ends_in_a_marker() -> None:
    value: list[Any] = [1]
    value.append({"again": value})

    assert plain(value) == [1, {"again": "(the list that this is inside of)"}]


def test_the_same_part_twice_side_by_side_is_no_cycle() -> None:
    part = [1]

    assert plain([part, part]) == [[1], [1]]


def test_kE4_an_object_with_a_raising_repr_becomes_a_marker() -> None:
    [marker] = plain([Silent()])

    assert "Silent" in marker
    assert "RuntimeError" in marker


def test_kE4_a_mapping_that_raises_when_read_becomes_a_marker() -> None:
    [marker, after] = plain([RaisingMap(), 1])

    assert "OSError: gone" in marker
    assert after == 1


def test_a_pydantic_model_with_a_field_that_has_no_json_form_is_kept_but_for_that_field() -> None:
    value = plain(City(name="Oslo", founded=dt.date(1048, 1, 1), anything=Silent()))

    assert value["name"] == "Oslo"
    assert "Silent" in value["anything"]


def test_depth_beyond_the_bound_ends_in_a_marker() -> None:
    value: list[Any] = []
    for _ in range(50_000):
        value = [value]

    converted = plain(value)

    assert is_plain_json(converted)
    assert "levels deep" in json.dumps(converted)


def test_shared_parts_cannot_multiply_without_end() -> None:
    value: list[Any] = ["x"]
    for _ in range(60):  # 2 ** 60 values
        value = [value, value]

    text = json.dumps(plain(value))

    assert "the rest is left out" in text
    assert len(text) < 60 * plain_data._MAX_ITEMS


def test_text_beyond_the_bound_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_data, "_MAX_CHARACTERS", 10)

    assert plain(["x" * 8, "y" * 8, "z"]) == ["x" * 8, "(text of 8 characters is left out)", "z"]


def test_values_beyond_the_bound_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_data, "_MAX_ITEMS", 3)

    assert plain(list(range(9))) == [0, 1, 2, "(the rest is left out: more than 3 values)"]
    assert list(plain(dict.fromkeys("abcde", 0))) == ["a", "b", "c", "(cut)"]


def test_keys_become_text_as_json_would_write_them() -> None:
    value = {1: "int", False: "bool", None: "none", 2.5: "float", (1, 2): "pair", Colour.RED: "e"}

    assert list(plain(value)) == ["1", "false", "null", "2.5", "[1, 2]", "red"]


def test_keys_that_are_equal_only_as_text_lose_nothing() -> None:
    assert plain({1: "a", "1": "b", "1 (2)": "c"}) == {"1": "a", "1 (2)": "b", "1 (2) (3)": "c"}


def test_a_set_comes_out_in_one_order_whatever_the_hash_seed() -> None:
    assert plain({None, "b", 2, "a"}) == ["a", "b", 2, None]


def test_lone_surrogates_are_replaced_in_values_and_keys() -> None:
    assert plain({"k\udfff": ["\ud800x"]}) == {"k\ufffd": ["\ufffdx"]}


def test_the_result_shares_nothing_with_the_value() -> None:
    value = {"a": [1]}

    converted = plain(value)
    value["a"].append(2)

    assert converted == {"a": [1]}


async def test_a_coroutine_among_data_is_closed_and_marked() -> None:
    async def fetch() -> None: ...

    coroutine = fetch()

    assert "coroutine" in plain({"c": coroutine})["c"]
    assert coroutine.cr_frame is None  # closed: no warning when it is collected


@pytest.mark.parametrize(
    "value", [object(), int, len, ValueError("x"), iter([1]), types], ids=lambda v: type(v).__name__
)
def test_what_is_not_data_is_refused_as_a_whole_and_marked_as_a_part(value: object) -> None:
    with pytest.raises(NotDataError):
        Conversion().top(value)
    [marker] = plain([value])
    assert marker.startswith("(")


odd = st.sampled_from([
    math.nan, Colour.RED, Point(1, dt.date(2026, 1, 1)), Opaque(), RaisingMap(), len,
    ValueError("\ud800"), decimal.Decimal("NaN"), "\udcff", object, Box(1, Opaque()),
])  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=20)
    | st.text(st.characters(), max_size=20) | st.datetimes() | st.decimals() | st.uuids()
    | st.timedeltas() | st.complex_numbers() | odd
)  # fmt: skip
hashable = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(hashable | st.tuples(hashable, hashable), inner, max_size=5)
        | st.sets(hashable, max_size=5)
        | st.tuples(inner, inner)
        | st.builds(Box, inner, inner)
        | inner.map(lambda value: collections.deque([value]))
    ),
    max_leaves=25,
)


@hypothesis.given(values)
@hypothesis.settings(deadline=None)
def test_any_value_becomes_plain_json_and_stays_so(value: object) -> None:
    converted = plain(value)

    assert is_plain_json(converted)
    assert json.loads(json.dumps(converted, allow_nan=False)) == converted
    assert plain(converted) == converted
