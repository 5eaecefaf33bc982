"""Values that cost little: `quick` makes the same as its class, `ByFields` acts as attrs does."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest

import trio_runner as tr
import trio_runner._core.planning as planning
import trio_runner._core.values as v
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner._core.quick import ByFields, quick

MAKERS: list[tuple[type[Any], type[Any], tuple[Any, ...]]] = [
    (v.TextContent, v.make_text, ("hello",)),
    (v.ToolCall, v.make_call, ("c1", "work", {"x": 1})),
    (v.ToolResult, v.make_result, ("c1", "work", "done", None, v.CallStatus.ERROR, 0.5)),
    (v.Message, v.make_message, ("user", "hello")),
    (planning.PlannedToolCall, planning.make_plan, (0, v.ToolCall("c1", "work"), None)),
]
each_maker = pytest.mark.parametrize(
    ("cls", "make", "args"), MAKERS, ids=[cls.__name__ for cls, _, _ in MAKERS]
)


@each_maker
def test_a_quick_value_is_the_one_its_class_makes(
    cls: type[Any], make: type[Any], args: tuple[Any, ...]
) -> None:
    made, plain = make(*args), cls(*args)
    assert type(made) is cls
    assert made == plain
    assert repr(made) == repr(plain)
    assert attrs.asdict(made) == attrs.asdict(plain)


@each_maker
def test_a_quick_value_is_frozen(cls: type[Any], make: type[Any], args: tuple[Any, ...]) -> None:
    made = make(*args)
    name = attrs.fields(cls)[0].name
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(made, name, "other")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        delattr(made, name)
    assert made == cls(*args)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@each_maker
@pytest.mark.parametrize(
    "through",
    [copy.copy, copy.deepcopy, attrs.evolve, pickled],
    ids=["copy", "deepcopy", "evolve", "pickle"],
)
def test_a_quick_value_can_be_copied(
    cls: type[Any], make: type[Any], args: tuple[Any, ...], through: Callable[[Any], Any]
) -> None:
    copied = through(make(*args))
    assert type(copied) is cls
    assert copied == cls(*args)


def test_defaults_converters_and_factories_of_the_class_apply() -> None:
    one, two = v.make_result(), v.make_result()
    assert one == v.ToolResult()
    assert one.meta is not two.meta
    assert v.make_message("user", "hello").content == (v.TextContent("hello"),)
    with pytest.raises(TypeError, match="content holds a int"):
        v.make_result("c1", "work", [1])  # type: ignore[list-item]


def test_quick_leaves_the_class_as_it_was() -> None:
    @attrs.frozen
    class Point:
        x: int

    make = quick(Point)
    assert type(Point(1)) is Point
    assert hash(make(1)) == hash(Point(1))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]


# --- ByFields -------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class Pair(ByFields):
    """By fields."""

    left: int
    right: object = None


@attrs.frozen(eq=False, repr=False)
class Other(ByFields):
    """The same fields in another class."""

    left: int
    right: object = None


def test_values_are_equal_when_class_and_all_fields_are() -> None:
    assert Pair(1, "a") == Pair(1, "a")
    assert Pair(1, "a") != Pair(2, "a")
    assert Pair(1, "a") != Pair(1, "b")
    assert Pair(1, "a") != Other(1, "a")
    assert Pair(1, "a") != (1, "a")


def test_equal_values_have_one_hash() -> None:
    assert {Pair(1, "a"), Pair(1, "a"), Pair(2, "a"), Other(1, "a")} == {
        Pair(1, "a"),
        Pair(2, "a"),
        Other(1, "a"),
    }
    assert len({Pair(1, "a"), Other(1, "a")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1, []))


def test_the_repr_names_class_and_fields() -> None:
    assert repr(Pair(1, "a")) == "Pair(left=1, right='a')"
    assert repr(tr.ImageContent("QUJD", "image/png")) == (
        "ImageContent(data='QUJD', mime_type='image/png', annotations=None, meta=None)"
    )


@pytest.mark.parametrize(
    "value",
    [
        ev.Committed(3, 1),
        r.TurnEnded(1, v.EndReason.ANSWERED),
        tr.ImageContent("QUJD", "image/png"),
    ],
    ids=["event", "record", "block"],
)
def test_events_records_and_media_are_frozen_and_copied_whole(value: Any) -> None:
    assert pickled(value) == value
    assert copy.deepcopy(value) == value
    assert hash(copy.copy(value)) == hash(value)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(value, next(iter(attrs.asdict(value))), None)
