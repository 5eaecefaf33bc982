"""Outputs: the schema a type is shown as, and the value that its JSON becomes."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import json
import typing
from typing import Any

import attrs
import hypothesis.strategies as st
import pydantic
import pytest
from hypothesis import given

import trio_runner as tr
from trio_runner._core.structured import MisfitError
from trio_runner._shell.structured import wanted


class Place(pydantic.BaseModel):
    name: str
    near: list[Place] = []


@attrs.frozen
class Wind:
    speed: float = attrs.field(metadata={"description": "in m/s"})
    _side: str = "N"


@attrs.define
class Day:
    """A day's weather."""

    when: datetime.date
    wind: Wind | None = None
    winds: list[Wind] = attrs.Factory(list[Wind])
    # Names that a pydantic model could not have.
    schema: int = attrs.field(default=3, validator=attrs.validators.instance_of(int))
    json: str = attrs.field(default="", validator=attrs.validators.max_len(3))
    made: int = attrs.field(init=False, default=4)


@attrs.define
class Node:
    name: str
    children: list[Node] = attrs.Factory(list["Node"])


@attrs.define
class Ping:
    pong: Pong | None = None


@attrs.define
class Pong:
    ping: Ping | None = None
    options: dict[str, Wind] = attrs.Factory(dict[str, Wind])


class Sky(typing.TypedDict):
    """The sky."""

    cover: int
    note: typing.NotRequired[str]


class PartlySky(typing.TypedDict, total=False):
    wind: Wind
    cover: typing.Required[int]


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = "red"


CASES: list[tuple[Any, Any, Any]] = [
    (Place, {"name": "a", "near": [{"name": "b"}]}, Place(name="a", near=[Place(name="b")])),
    (Wind, {"speed": 3, "side": "S"}, Wind(3.0, "S")),
    (
        Day,
        {"when": "2026-01-02", "wind": {"speed": 1}, "winds": [{"speed": 2}], "json": "abc"},
        Day(datetime.date(2026, 1, 2), Wind(1.0), [Wind(2.0)], 3, "abc"),
    ),
    (Node, {"name": "a", "children": [{"name": "b"}]}, Node("a", [Node("b")])),
    (Ping, {"pong": {"ping": {"pong": None}}}, Ping(Pong(Ping()))),
    (Pong, {"options": {"a": {"speed": 1}}}, Pong(None, {"a": Wind(1.0)})),
    (Sky, {"cover": 8}, {"cover": 8}),
    (PartlySky, {"cover": 8, "wind": {"speed": 1}}, {"cover": 8, "wind": Wind(1.0)}),
    (Point, {"x": 1}, Point(1)),
    (dict[str, Wind], {"a": {"speed": 1}}, {"a": Wind(1.0)}),
    (list[Wind], {"value": [{"speed": 1}]}, [Wind(1.0)]),
    (tuple[Wind, int], {"value": [{"speed": 1}, 2]}, (Wind(1.0), 2)),
    (typing.Annotated[list[Wind], "note"], {"value": []}, []),
    (typing.Optional[Node], {"value": {"name": "a"}}, Node("a")),  # noqa: UP045
    (Wind | Sky, {"value": {"cover": 3}}, {"cover": 3}),
    (int | str, {"value": "a"}, "a"),
    (typing.Literal["a", "b"], {"value": "a"}, "a"),
    (Colour, {"value": "red"}, Colour.RED),
    (bool, {"value": True}, True),
    (datetime.date, {"value": "2026-01-02"}, datetime.date(2026, 1, 2)),
]


def read(output: Any, answer: Any) -> Any:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return wanted(output, 2).read(tr.Message.assistant(text))


def problems(output: Any, answer: object) -> tuple[str, ...]:
    with pytest.raises(MisfitError) as e:
        read(output, answer)
    return e.value.problems


@pytest.mark.parametrize(("output", "answer", "value"), CASES, ids=lambda each: str(each)[:30])
def test_an_answer_becomes_a_value_of_the_type(output: Any, answer: Any, value: Any) -> None:
    found = read(output, answer)
    assert found == value
    assert type(found) is type(value)
    assert read(output, f"```json\n{json.dumps(answer)}\n```") == value


@pytest.mark.parametrize(("output", "answer", "value"), CASES, ids=lambda each: str(each)[:30])
def test_the_schema_that_is_shown_takes_the_answer(output: Any, answer: Any, value: Any) -> None:
    """By another library, so that what the model is held to is what is read."""
    pytest.importorskip("jsonschema")
    schema = wanted(output, 2).format.schema
    assert schema["type"] == "object"
    assert read(schema, answer) == answer
    assert problems(schema, [1, 2])


def test_a_schema_is_named_after_its_type() -> None:
    names = [wanted(each, 0).format.name for each in (Place, Day, Sky, Point, list[int], int)]
    assert names == ["Place", "Day", "Sky", "Point", "answer", "answer"]


def test_what_attrs_says_of_a_field_is_in_the_schema() -> None:
    schema = wanted(Wind, 0).format.schema
    assert schema["properties"]["speed"]["description"] == "in m/s"
    assert schema["properties"]["side"]["default"] == "N"
    assert schema["required"] == ["speed"]
    day = wanted(Day, 0).format.schema
    assert day["description"] == "A day's weather."
    assert "made" not in day["properties"]


@attrs.frozen
class Exact:
    city: str
    wind: Wind | None


class ExactModel(pydantic.BaseModel, extra="forbid"):
    city: str


@pytest.mark.parametrize(
    ("output", "strict"), [(Exact, False), (ExactModel, True), (Place, False), (list[int], True)]
)
def test_whether_a_provider_can_be_strict_is_told(output: Any, strict: bool) -> None:
    assert wanted(output, 0).format.strict is strict


MISFITS: list[tuple[Any, Any, list[str]]] = [
    (Place, {}, ["name: Field required"]),
    (Place, {"name": 3}, ["name: Input should be a valid string; found 3"]),
    (Place, {"name": "a", "near": [{}]}, ["near[0].name: Field required"]),
    (Place, [1], ["the answer: Input should be an object; found [1]"]),
    (Wind, {"speed": 1, "to": "S"}, ['to: Extra inputs are not permitted; found "S"']),
    (Day, {"when": "2026-01-02", "json": "long"}, ["the answer: Value error, Length of"]),
    (list[int], [1], ['the answer is [1]; expected an object with "value" alone']),
    (list[int], {"value": [1], "more": 2}, ["alone"]),
    (list[int], {"value": ["a"]}, ["value[0]: Input should be a valid integer"]),
    (list[Wind], {"value": [{"speed": "a"}]}, ["value[0].speed"]),
    (Node, "no JSON", ["the answer is not JSON"]),
]


@pytest.mark.parametrize(("output", "answer", "says"), MISFITS)
def test_what_does_not_fit_is_told_with_its_place(
    output: Any, answer: object, says: list[str]
) -> None:
    found = problems(output, answer)
    assert len(found) == len(says)
    for problem, expected in zip(found, says, strict=True):
        assert expected in problem


def even(_: object, attribute: object, value: int) -> None:
    if value % 2:
        raise TypeError("odd")


@attrs.frozen
class Even:
    number: int = attrs.field(validator=even)


def test_what_an_attrs_class_refuses_does_not_fit() -> None:
    assert "odd" in problems(Even, {"number": 3})[0]
    assert read(Even, {"number": 4}).number == 4


def test_a_huge_value_is_not_shown_whole() -> None:
    (problem,) = problems(Place, {"name": ["x" * 10_000]})
    assert len(problem) < 300


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"type": 3}, {"required": "a"}])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(ValueError, match="no JSON Schema"):
        wanted(schema, 2)


def test_a_schema_that_is_no_json_is_refused() -> None:
    pytest.importorskip("jsonschema")
    with pytest.raises(ValueError, match=r"\$\.enum.*set"):
        wanted({"enum": {1}}, 2)


def test_a_schema_says_all_that_is_wrong_and_where() -> None:
    pytest.importorskip("jsonschema")
    schema = {
        "type": "object",
        "required": ["a", "b"],
        "properties": {"c": {"items": {"type": "integer"}}},
    }
    assert sorted(problems(schema, {"c": [1, "x"]})) == [
        "c[1]: 'x' is not of type 'integer'",
        "the answer: 'a' is a required property",
        "the answer: 'b' is a required property",
    ]
    assert len(problems({"items": {"type": "integer"}}, ["x"] * 500)) == 20


def test_a_schema_of_elsewhere_is_not_fetched() -> None:
    pytest.importorskip("jsonschema")
    found = wanted({"$ref": "http://127.0.0.1:9/schema.json"}, 0)
    with pytest.raises(Exception, match="Unresolvable"):
        found.read(tr.Message.assistant("1"))


plain: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "children", "value"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_any_answer_becomes_a_value_or_a_list_of_problems(answer: Any) -> None:
    for output, kind in ((Node, Node), (Ping, Ping), (list[int], list)):
        try:
            value, wrong = read(output, answer), ()
        except MisfitError as error:
            value, wrong = None, error.problems
        assert wrong or isinstance(value, kind)


def test_pydantic_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ImportError, match="comes with trio-runner"):
        wanted(Place, 2)
