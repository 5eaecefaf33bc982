"""`RequestParams`: what a setting may be, and how settings are layered."""

from __future__ import annotations

import math
import sys
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

import trio_runner as tr
from trio_runner._core.params import DEFAULT_PARAMS, check_seconds

FIELDS = [field.name for field in attrs.fields(tr.RequestParams)]
SECONDS = ["tool_timeout", "turn_timeout"]
FLAGS = ["use_history", "parallel_tool_calls"]


def params_of(**options: Any) -> tr.RequestParams:
    """Params with settings of any type, as a program without types may give them."""
    return tr.RequestParams(**options)


# --- layers ---------------------------------------------------------------------


def test_every_field_may_be_left_unset_and_says_so() -> None:
    params = tr.RequestParams()
    assert [getattr(params, name) for name in FIELDS] == [tr.UNSET] * len(FIELDS)
    assert repr(tr.UNSET) == "UNSET"


def test_the_defaults_set_every_field() -> None:
    assert tr.UNSET not in [getattr(DEFAULT_PARAMS, name) for name in FIELDS]
    assert DEFAULT_PARAMS.max_iterations == 199
    assert DEFAULT_PARAMS.max_result_bytes == 256 * 1024
    assert tr.RequestParams().over(DEFAULT_PARAMS) == DEFAULT_PARAMS


def test_a_field_that_is_set_wins_also_when_it_is_set_to_none() -> None:
    base = tr.RequestParams(tool_timeout=5.0, max_parallel_tools=3, use_history=False)
    params = tr.RequestParams(tool_timeout=None, use_history=True).over(base)
    assert (params.tool_timeout, params.max_parallel_tools, params.use_history) == (None, 3, True)
    assert params.turn_timeout is tr.UNSET
    assert base.tool_timeout == 5.0


options: Any = st.fixed_dictionaries(
    {},
    optional={
        "max_iterations": st.integers(0, 9),
        "use_history": st.booleans(),
        "max_parallel_tools": st.none() | st.integers(1, 9),
        "tool_timeout": st.none() | st.floats(0, 1e9),
        "model_settings": st.dictionaries(st.text(max_size=2), st.integers()),
    },
)


@given(options, options, options)
def test_layers_may_be_laid_in_any_grouping(
    a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]
) -> None:
    top, middle, bottom = (tr.RequestParams(**each) for each in (a, b, c))
    layered = top.over(middle).over(bottom)
    assert layered == top.over(middle.over(bottom))
    assert layered == params_of(**{**c, **b, **a})


# --- what is refused ------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_iterations", "max_parallel_tools", "max_result_bytes"])
@pytest.mark.parametrize("bad", [1.0, "1", [1], math.nan])
def test_a_count_is_a_whole_number(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} is .*; expected a whole number"):
        params_of(**{name: bad})


@pytest.mark.parametrize("name", ["max_iterations", "max_parallel_tools", "max_result_bytes"])
def test_a_bool_is_no_count(name: str) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        params_of(**{name: True})


@pytest.mark.parametrize(
    ("name", "least"),
    [("max_iterations", 0), ("max_parallel_tools", 1), ("max_result_bytes", 1024)],
)
def test_a_count_has_a_least_value(name: str, least: int) -> None:
    assert getattr(params_of(**{name: least}), name) == least
    with pytest.raises(ValueError, match=f"{name} is {least - 1}; expected at least {least}"):
        params_of(**{name: least - 1})


def test_only_where_there_may_be_no_limit_none_is_one() -> None:
    assert tr.RequestParams(max_parallel_tools=None).max_parallel_tools is None
    for name in ("max_iterations", "max_result_bytes", *FLAGS):
        options: dict[str, Any] = {name: None}
        with pytest.raises(TypeError, match=name):
            tr.RequestParams(**options)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("bad", [0, 1, "yes"])
def test_a_flag_is_true_or_false(name: str, bad: Any) -> None:
    assert getattr(params_of(**{name: False}), name) is False
    with pytest.raises(TypeError, match=f"{name} is .*; expected True or False"):
        params_of(**{name: bad})


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("good", [None, 0, 0.0, 3, 2.5, sys.float_info.max])
def test_seconds_are_finite_and_not_negative(name: str, good: Any) -> None:
    assert getattr(params_of(**{name: good}), name) == good


@pytest.mark.parametrize("bad", [-1, -0.5, math.inf, -math.inf, math.nan, 10**400])
def test_a_number_that_is_no_time_is_refused(bad: float) -> None:
    for name in SECONDS:
        with pytest.raises(ValueError, match=f"{name} is .*; expected a finite number of seconds"):
            params_of(**{name: bad})
    with pytest.raises(ValueError, match="grace is"):
        check_seconds("grace", bad)


@pytest.mark.parametrize("bad", [True, "3", [3], 3j])
def test_what_is_no_number_is_refused_as_seconds(bad: Any) -> None:
    with pytest.raises(TypeError, match="expected a number of seconds"):
        tr.RequestParams(tool_timeout=bad)


def test_seconds_that_must_be_given_are_not_none() -> None:
    check_seconds("grace", None, optional=True)
    with pytest.raises(TypeError, match="grace is None"):
        check_seconds("grace", None)


def test_params_are_frozen_and_given_by_name() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(DEFAULT_PARAMS, "max_iterations", 3)  # noqa: B010  the point is that it fails


# --- structured answers and the choice of tools ---------------------------------


@pytest.mark.parametrize("policy", ["auto", "always", "defer", "no_tools"])
def test_a_structured_policy_is_one_of_four(policy: str) -> None:
    assert params_of(structured_policy=policy).structured_policy == policy
    with pytest.raises(ValueError, match="structured_policy is 'never'; expected one of 'auto'"):
        params_of(structured_policy="never")


def test_a_tool_choice_is_a_mode_or_a_name() -> None:
    assert params_of(tool_choice="look_up").tool_choice == "look_up"
    for wrong in ("", None, True, ["look_up"]):
        with pytest.raises(TypeError, match="expected 'auto', 'required', 'none' or a tool's name"):
            params_of(tool_choice=wrong)


def test_a_tools_filter_is_names_or_a_function() -> None:
    assert params_of(tools_filter=["b", "a", "b"]).tools_filter == frozenset({"a", "b"})
    assert params_of(tools_filter=()).tools_filter == frozenset()
    assert params_of(tools_filter=callable).tools_filter is callable
    base = params_of(tools_filter=["a"])
    assert tr.RequestParams().over(base).tools_filter == frozenset({"a"})
    assert params_of(tools_filter=None).over(base).tools_filter is None
    for wrong in ("look_up", 3, [3], [None]):
        with pytest.raises(TypeError, match="expected names of tools, or a function"):
            params_of(tools_filter=wrong)
