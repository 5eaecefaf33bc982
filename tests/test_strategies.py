"""The strategies make what they say, so that the property tests test something."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

import trio_runner._core.json_data as json_data
import trio_runner._core.normalise as normalise
import trio_runner._core.reconcile as reconcile
import trio_runner._core.validity as validity
import trio_runner._core.values as v
import trio_runner.testing.strategies as strategies


def tally(
    strategy: SearchStrategy[Any], kinds_of: Callable[[Any], Iterable[str]], examples: int = 200
) -> Counter[str]:
    """How many of ``examples`` drawn values are of each kind; the same each time."""
    counts: Counter[str] = Counter()

    @given(strategy)
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    def draw(value: Any) -> None:
        counts.update(["all", *kinds_of(value)])

    draw()
    return counts


@given(strategies.histories())
def test_valid_histories_are_valid(history: tuple[v.Message, ...]) -> None:
    validity.check_history(history)


def kinds_of_history(history: tuple[v.Message, ...]) -> Iterable[str]:
    if len(history) > 5:
        yield "long"
    if any(len(one.tool_calls) > 1 for one in history):
        yield "parallel"
    if any(one.tool_results and one.content for one in history):
        yield "text beside results"
    if any(one.role == other.role for one, other in itertools.pairwise(history)):
        yield "one role twice"


def test_valid_histories_are_of_many_kinds() -> None:
    counts = tally(strategies.histories(), kinds_of_history, examples=100)

    for kind in ("long", "parallel", "text beside results", "one role twice"):
        assert counts[kind] > 2, kind


#: One for each clause of the rule: words that only its sentence has.
CLAUSES = (
    "are open",
    "no result for",
    "asks for no calls",
    "used before",
    "in the order",
    "did not ask",
    "the message is empty",
    "the result is empty",
    "the role is",
    "holds tool results",
    "asks for calls",
    "block",
    "the id is",
    "the call_id is",
    "the name",
    "the arguments",
    "arguments_error",
    "structured content",
)


def test_damaged_histories_are_mostly_invalid_in_every_way_and_reach_most_statuses() -> None:
    def kinds(history: tuple[v.Message, ...]) -> Iterable[str]:
        problems = " ".join(validity.history_problems(history))
        yield "invalid" if problems else "valid"
        yield from [one for one in CLAUSES if one in problems]
        yield reconcile.reconcile_interrupted_history(history)[1].status.value

    counts = tally(strategies.histories(valid=False, max_parts=3), kinds, examples=400)

    assert counts["invalid"] > 0.5 * counts["all"]
    # Rare ones may be missed by so few examples.
    assert len([one for one in CLAUSES if not counts[one]]) <= 5, counts
    assert counts["history_unchanged"] > 0
    assert counts["appended_interrupted_tool_result"] > 0
    assert counts["repaired"] > 0


@given(strategies.damaged_histories())
@settings(max_examples=50)
def test_a_damaged_history_is_made_valid_and_twice_changes_nothing(
    history: tuple[v.Message, ...],
) -> None:
    repaired, _ = reconcile.reconcile_interrupted_history(history)

    validity.check_history(repaired)
    again, second = reconcile.reconcile_interrupted_history(repaired)
    assert again == repaired
    assert second.repairs == ()


@given(strategies.tool_calls(), strategies.tool_results(), strategies.json_objects())
def test_calls_results_and_objects_are_good_by_themselves(
    call: v.ToolCall, result: v.ToolResult, value: v.JSONObject
) -> None:
    assert validity.call_problems(call) == []
    assert validity.result_problems(result) == []
    assert json_data.is_plain_json(value)


def test_replies_are_of_many_kinds() -> None:
    def kinds(message: v.Message) -> Iterable[str]:
        reply = normalise.normalise_reply(message, set())
        if len(reply.tool_calls) > 1:
            yield "parallel"
        if "empty_reply" in reply.meta:
            yield "empty"
        if "stop_reason" in reply.meta:
            yield "odd reason"
        if reply is message:
            yield "normal"
        for before, after in zip(message.tool_calls, reply.tool_calls, strict=True):
            yield "renamed" if before.id != after.id else "kept"
            yield "good arguments" if after.arguments_error is None else "bad arguments"

    counts = tally(strategies.replies(), kinds)

    for kind in ("parallel", "empty", "odd reason", "normal", "renamed", "kept"):
        assert counts[kind] > 0, kind
    assert counts["good arguments"] > 10
    assert counts["bad arguments"] > 10
