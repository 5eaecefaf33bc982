"""Names under which a server's tools are exposed."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

import trio_runner.abc as abc
from trio_runner_adapters.mcp._names import exposed_names


def test_legal_names_stay_as_they_are() -> None:
    assert exposed_names(["read_file", "a-b"]) == {"read_file": "read_file", "a-b": "a-b"}


def test_the_prefix_is_put_before_the_name() -> None:
    assert exposed_names(["read"], "fs") == {"read": "fs__read"}


def test_illegal_characters_become_underscores() -> None:
    assert exposed_names(["files/read.all"]) == {"files/read.all": "files_read_all"}


def test_names_equal_after_cleaning_are_told_apart_and_the_legal_one_keeps_its_name() -> None:
    exposed = exposed_names(["a.b", "a b", "a_b"])
    assert exposed["a_b"] == "a_b"
    assert len(set(exposed.values())) == 3


def test_a_long_name_is_cut_to_64_characters_and_told_apart() -> None:
    exposed = exposed_names(["x" * 80, "x" * 81, "x" * 64])
    assert exposed["x" * 64] == "x" * 64
    assert {len(name) for name in exposed.values()} == {64}
    assert len(set(exposed.values())) == 3


def test_names_do_not_depend_on_the_order_of_the_list() -> None:
    originals = ["a.b", "a b", "a_b", "x" * 70, "x" * 71]
    results = [exposed_names(order) for order in itertools.permutations(originals)]
    assert all(result == results[0] for result in results)


def test_a_long_name_is_the_same_whatever_else_the_server_offers() -> None:
    long = "y" * 90
    assert exposed_names([long])[long] == exposed_names([long, "other", "y" * 91])[long]


@given(st.lists(st.text(min_size=1, max_size=90)), st.none() | st.just("srv"))
def test_exposed_names_are_legal_and_unique_for_any_names(
    originals: list[str], prefix: str | None
) -> None:
    exposed = exposed_names(originals, prefix)
    assert set(exposed) == set(originals)
    assert len(set(exposed.values())) == len(set(originals))
    assert all(abc.TOOL_NAME.fullmatch(name) for name in exposed.values())
