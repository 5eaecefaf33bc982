"""What an error or an odd value is called, for the model."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from trio_runner._core.describe import describe_error, shorten, shown


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class BadNotes(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name == "__notes__":
            raise RuntimeError("no notes")
        return super().__getattribute__(name)


def test_type_and_message_are_named() -> None:
    assert describe_error(ValueError("bad day")) == "ValueError: bad day"


@pytest.mark.parametrize("message", ["", "   ", "\n"])
def test_kC1_an_error_without_a_message_still_says_its_type(message: str) -> None:
    assert describe_error(OSError(message)) == "OSError (no message)"


def test_kC1_an_error_whose_str_raises_is_described_all_the_same() -> None:
    text = describe_error(Mute())

    assert text.startswith("Mute: ")
    assert "RuntimeError" in text


def test_notes_are_added() -> None:
    error = ValueError("bad")
    error.add_note("row 7")

    assert describe_error(error) == "ValueError: bad\nrow 7"


def test_notes_that_cannot_be_read_do_no_harm() -> None:
    assert describe_error(BadNotes("x")).startswith("BadNotes: x\n")


def test_a_group_is_described_by_its_leaves_in_order() -> None:
    group = ExceptionGroup[Exception](
        "g", [ValueError("a"), ExceptionGroup[Exception]("h", [KeyError("b"), OSError()])]
    )

    assert describe_error(group) == "3 errors: ValueError: a; KeyError: 'b'; OSError (no message)"


def test_a_group_with_one_leaf_is_described_as_that_leaf() -> None:
    assert describe_error(ExceptionGroup("g", [ValueError("a")])) == "ValueError: a"


def test_at_most_five_leaves_are_named_and_the_others_counted() -> None:
    text = describe_error(ExceptionGroup("g", [ValueError(str(n)) for n in range(12)]))

    assert "ValueError: 4; and 7 more" in text
    assert "ValueError: 5" not in text


def test_a_group_nested_deeper_than_python_recurses_is_described() -> None:
    error: Any = ValueError("deep")
    for _ in range(5_000):
        error = ExceptionGroup("g", [error])

    assert describe_error(error) == "ValueError: deep"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x" * 1_000_000),
        ExceptionGroup("g", [ValueError("x" * 100_000) for _ in range(50)]),
        type("E" * 5_000, (Exception,), {})("x"),
    ],
    ids=["message", "group", "type name"],
)
def test_kD10_the_description_is_bounded(error: Exception) -> None:
    assert 0 < len(describe_error(error)) <= 2_000


def test_a_long_message_keeps_its_end_and_its_notes() -> None:
    error = ValueError("x" * 10_000 + "the end")
    error.add_note("look here")

    text = describe_error(error)

    assert "the end" in text
    assert text.endswith("look here")


def test_lone_surrogates_in_a_message_are_replaced() -> None:
    assert describe_error(ValueError("a\ud800b")) == "ValueError: a\ufffdb"


@hypothesis.given(st.text(), st.integers(min_value=60, max_value=300))
def test_shorten_never_exceeds_its_limit_and_keeps_short_text(text: str, limit: int) -> None:
    assert len(shorten(text * 20, limit)) <= limit
    assert shorten(text[:60], limit) == text[:60]


def test_an_address_is_not_shown() -> None:
    def function() -> None: ...

    assert " 0x" not in shown(function)
    assert "function" in shown(function)


def test_an_object_whose_repr_raises_is_named_by_its_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise KeyError("x")

    assert shown(Silent()) == "object of type Silent, whose repr() raises KeyError"
