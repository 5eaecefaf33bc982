"""planning: each call finds its tool, or gets a complete refusal; the others are unaffected."""

from __future__ import annotations

import attrs
import pytest

import trio_runner._core.planning as planning
import trio_runner._core.validity as validity
import trio_runner._core.values as v


@attrs.frozen
class FakeTool:
    name: str
    bare_name: str | None = None


READ = FakeTool("read")
FILES_SEARCH = FakeTool("files__Search", "Search")
WEB_SEARCH = FakeTool("web__search", "search")
WEB_FETCH = FakeTool("web__fetch", "fetch")
TABLE = planning.ToolTable([READ, FILES_SEARCH, WEB_SEARCH, WEB_FETCH])


def call(name: str, *, error: str | None = None, call_id: str = "c1") -> v.ToolCall:
    return v.ToolCall(call_id, name, {}, error)


def plan_one(name: str, *tools: FakeTool) -> planning.PlannedToolCall[FakeTool]:
    [planned] = planning.plan_tool_calls([call(name)], tools)
    return planned


def refusal_of(planned: planning.PlannedToolCall[FakeTool]) -> v.ToolResult:
    assert planned.refusal is not None
    return planned.refusal


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read", READ),
        ("READ", READ),
        (" read ", READ),
        (" Read\n", READ),
        ("WEB__SEARCH", WEB_SEARCH),
        ("Search", FILES_SEARCH),  # a bare name, exactly
        ("search", WEB_SEARCH),
        ("SEARCH", None),  # two bare names without regard to case
        ("FETCH", WEB_FETCH),
        ("write", None),
        ("", None),
    ],
)
def test_kF7_names_resolve_by_one_order_of_rules(name: str, expected: FakeTool | None) -> None:
    assert TABLE.resolve(name) is expected


def test_kF7_a_case_difference_is_repaired_only_where_it_is_unique() -> None:
    lower, upper = FakeTool("read"), FakeTool("READ")

    assert plan_one("read", lower, upper).tool is lower
    assert plan_one("READ", lower, upper).tool is upper
    assert plan_one(" read ", lower, upper).tool is lower
    ambiguous = plan_one("Read", lower, upper)
    assert ambiguous.tool is None
    assert refusal_of(ambiguous).status is v.CallStatus.UNAVAILABLE
    assert "could mean several tools: read, READ" in refusal_of(ambiguous).text


def test_kF7_a_full_name_comes_before_a_bare_one() -> None:
    local, remote = FakeTool("search"), FakeTool("web__search", "search")

    assert plan_one("search", remote, local).tool is local
    assert plan_one("Search", remote, local).tool is local


def test_kF7_an_ambiguous_bare_name_is_refused_with_its_candidates() -> None:
    planned = plan_one("search", FakeTool("a__search", "search"), FakeTool("b__search", "search"))

    assert planned.tool is None
    assert "a__search, b__search" in refusal_of(planned).text


def test_kF7_the_known_calls_of_a_batch_run_beside_an_unknown_one() -> None:
    calls = [call("read", call_id="a"), call("nope", call_id="b"), call("read", call_id="c")]

    plans = planning.plan_tool_calls(v.Message.assistant("", tool_calls=calls), TABLE)

    assert [plan.position for plan in plans] == [0, 1, 2]
    assert [plan.call for plan in plans] == calls
    assert [plan.tool for plan in plans] == [READ, None, READ]
    assert [plan.refusal is None for plan in plans] == [True, False, True]
    refusal = refusal_of(plans[1])
    assert (refusal.call_id, refusal.name) == ("b", "nope")
    assert refusal.status is v.CallStatus.UNAVAILABLE
    assert refusal.duration is None
    assert "'nope'" in refusal.text
    assert "The tools are: read, files__Search, web__search, web__fetch." in refusal.text
    assert not validity.result_problems(refusal)


def test_kF7_the_list_of_names_and_each_name_are_bounded() -> None:
    tools = [FakeTool(f"tool_{number}" + "x" * 10_000) for number in range(5000)]

    text = refusal_of(plan_one("y" * 100_000, *tools)).text

    assert "and 4980 more" in text
    assert "tool_19x" in text
    assert "tool_20x" not in text
    assert len(text) < 2000


def test_twenty_names_are_listed_without_a_remainder() -> None:
    tools = [FakeTool(f"tool_{number}") for number in range(20)]

    text = refusal_of(plan_one("nope", *tools)).text

    assert "tool_19." in text
    assert "more" not in text


def test_without_tools_the_refusal_says_so() -> None:
    assert "There are no tools." in refusal_of(plan_one("read")).text


def test_kF1_bad_arguments_refuse_that_call_alone() -> None:
    calls = [call("READ", error="expected a JSON object, found null"), call("read", call_id="c2")]

    bad, good = planning.plan_tool_calls(calls, [READ])

    assert bad.tool is READ
    assert refusal_of(bad).status is v.CallStatus.INVALID_ARGUMENTS
    assert refusal_of(bad).call_id == "c1"
    assert "expected a JSON object, found null" in refusal_of(bad).text
    assert "was not run" in refusal_of(bad).text
    assert good.refusal is None


@pytest.mark.parametrize("error", ["", "\n"])
def test_an_arguments_error_without_words_still_refuses(error: str) -> None:
    [planned] = planning.plan_tool_calls([call("read", error=error)], [READ])

    assert not validity.result_problems(refusal_of(planned))


def test_an_unknown_tool_comes_before_bad_arguments() -> None:
    [planned] = planning.plan_tool_calls([call("nope", error="bad")], [READ])

    assert refusal_of(planned).status is v.CallStatus.UNAVAILABLE


def test_a_name_that_does_not_encode_is_refused_in_text_that_does() -> None:
    refusal_of(plan_one("\ud800", READ)).text.encode()


def test_two_tools_of_one_name_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="two tools are named 'read'"):
        planning.ToolTable([READ, FakeTool("read")])
    with pytest.raises(ValueError, match="two tools are named 'read'"):
        planning.plan_tool_calls([], [READ, FakeTool("read")])


def test_a_table_knows_its_names_in_order() -> None:
    assert TABLE.names == ("read", "files__Search", "web__search", "web__fetch")
    assert len(TABLE) == 4
    assert TABLE.candidates("SEARCH") == (FILES_SEARCH, WEB_SEARCH)
    assert TABLE.candidates("read") == (READ,)
    assert TABLE.candidates("nope") == ()
