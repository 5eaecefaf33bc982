"""`check_agent` and `AgentTurn`: the suite on an agent that knows nothing of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import (
    AgentTurn,
    Case,
    ContractBroken,
    ContractReport,
    ScriptedModel,
    call,
    check_agent,
    replay,
    script_for,
    sweep,
)
from trio_runner.testing._contract_report import PartReport
from trio_runner.testing._examples import example_arguments
from trio_runner.testing.contract import CONTRACT

NO_SESSION = "make takes no journal and session, so no session is swept"


async def get_weather(city: str) -> str:
    """A tool with one step."""
    await trio.sleep(0.1)
    return f"sunny in {city}"


def add(a: int, b: int = 3) -> int:
    """A tool that runs in a thread."""
    return a + b


def good_agent(**settings: Any) -> tr.ToolAgent:
    return tr.ToolAgent("good", tools=[get_weather, add], **settings)


def agent_with(*tools: Callable[..., Any]) -> Callable[..., tr.ToolAgent]:
    def make(model: tr.Model) -> tr.ToolAgent:
        return tr.ToolAgent("mine", model=model, tools=tools)

    return make


def agent_of(kind: type[tr.ToolAgent]) -> Callable[..., tr.ToolAgent]:
    def make(model: tr.Model) -> tr.ToolAgent:
        return kind("mine", model=model, tools=[get_weather])

    return make


def quick(make_agent: Callable[..., tr.ToolAgent], **options: Any) -> ContractReport:
    options = {"seeds": [0], "drives": ["until_done"], **options}
    return check_agent(make_agent, **options)


def broken(report: ContractReport) -> dict[str, tuple[str, ...]]:
    """What was found, by promise."""
    return {each.promise: each.examples for each in report.promises if each.broken_at}


# --- an agent that keeps the contract -------------------------------------------


def test_an_ordinary_agent_keeps_every_promise_in_every_way() -> None:
    report = check_agent(good_agent, seeds=[0], max_positions=6)
    report.raise_if_failed()
    assert {part.drive for part in report.parts} == {"until_done", "async_for", "break", "generate"}
    assert {part.delay for part in report.parts} == {0.0, 0.5}
    assert report.left_out == {}
    counts: dict[str, int] = {}
    for part in report.parts:
        for name, count in part.report.counts.items():
            counts[name] = counts.get(name, 0) + count
    missing = [name for name, count in counts.items() if not count]
    assert missing == []
    assert len(counts) == 12 + 3  # every fault, and the pairs that are tried anyhow


def test_what_an_agent_has_no_place_for_is_left_out_and_told() -> None:
    report = quick(agent_with(get_weather))
    report.raise_if_failed()
    assert set(report.left_out) == {"journal_error", "commit_error", "journal_hang"}
    text = f"not swept: journal_error, commit_error, journal_hang: {NO_SESSION}"
    assert text in report.render()


def test_the_factory_is_called_by_its_name() -> None:
    def only_model(model: tr.Model) -> tr.ToolAgent:
        return tr.ToolAgent("mine", model=model, tools=[get_weather])

    report = quick(only_model, drives=["generate"], faults=["cancel", "journal_error"])
    assert report.left_out["journal_error"].startswith("only_model takes no journal and session")


def test_a_script_without_calls_is_told() -> None:
    options: dict[str, Any] = {"drives": ["generate"], "faults": ["cancel"]}
    report = quick(agent_with(get_weather), replies=["done"], **options)
    assert "not swept: tools: none is called, so little can go wrong" in report.render()
    assert "not swept" not in quick(agent_with(get_weather), **options).render()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"replies": "hello"}, r"replies is 'hello'; expected a script, such as \['hello'\]"),
        ({"seeds": 3}, r"seeds is 3; expected several numbers: range\(3\)"),
    ],
)
def test_a_text_for_a_script_and_a_number_for_seeds_are_refused(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        check_agent(agent_with(get_weather), **options)


def test_a_report_that_is_ok_says_nothing_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    # As in a program that has not set up logging: there the library's log goes to stderr.
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        report = quick(good_agent, drives=["generate"], faults=["observer_error"])
    finally:
        root.handlers = handlers
    report.raise_if_failed()
    assert report.positions > 0
    assert capfd.readouterr().err == ""


def test_without_a_journal_there_is_one_sweep_for_each_way_to_drive() -> None:
    report = check_agent(
        agent_with(get_weather), seeds=[0], faults=["cancel"], drives=["generate", "break"]
    )
    assert [(part.drive, part.delay) for part in report.parts] == [
        ("generate", 0.0),
        ("break", 0.0),
    ]


def test_a_factory_without_parameters_is_given_the_script_all_the_same() -> None:
    def make() -> tr.ToolAgent:
        return tr.ToolAgent("mine", model=ScriptedModel(["not asked"]), tools=[get_weather])

    cases = AgentTurn(make)
    assert replay(cases).violations == ()
    assert cases.agent.history[-1].text == "the answer"
    assert cases.ledger.returned.keys() == {each.call_id for each in all_results(cases.agent)}


def all_results(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for message in agent.history for result in message.tool_results]


def test_the_script_may_be_the_users_own() -> None:
    cases = AgentTurn(good_agent, [[call("add", a=1), call("add", a=2)], "done"])
    assert replay(cases).violations == ()
    assert [each.text for each in all_results(cases.agent)] == ["4", "5"]


def test_an_agent_subclass_with_its_own_call_tool_is_watched_as_well() -> None:
    seen: list[str] = []

    class Mine(tr.ToolAgent):
        async def call_tool(self, planned: Any, context: tr.ToolContext) -> tr.ToolResult:
            seen.append(planned.call.name)
            return await super().call_tool(planned, context)

    cases = AgentTurn(agent_of(Mine))
    assert replay(cases).violations == ()
    assert seen == ["get_weather"] * 5
    assert len(cases.ledger.entered) == 5


@pytest.mark.parametrize("script", [None, [[call("get_weather", city="Oslo")], "done"], ["done"]])
def test_a_turn_of_any_length_can_be_left_by_break(script: Any) -> None:
    report = quick(good_agent, replies=script, drives=["break"], faults=["cancel"], delays=[0.0])
    report.raise_if_failed()
    (part,) = report.parts
    states: Any = part.report.end_states
    ends = {end_reason for _, end_reason, _ in states}
    # Without a batch the first message is the answer, and leaving then leaves nothing early.
    assert (tr.EndReason.ANSWERED in ends) == (script == ["done"])


def test_the_expression_for_a_part_names_all_that_it_was_made_with() -> None:
    script = [[call("add", a=1)], "done"]
    report = quick(
        *(good_agent,),
        replies=script,
        drives=["generate"],
        delays=[0.0],
        faults=["cancel"],
        prompt="add",
        checks={},
        max_positions=2,
    )
    assert report.parts[0].make_case == (
        "AgentTurn(make_agent, replies, drive='generate', delay=0.0, prompt='add', checks=checks)"
    )


def test_pairs_are_swept_where_their_seams_are_and_the_rest_is_told() -> None:
    report = quick(
        agent_with(get_weather),
        drives=["generate"],
        faults=[],
        pairs=[("cancel", "sigint"), ("hook_error", "cancel"), ("cancel", "journal_hang")],
        max_positions=3,
    )
    report.raise_if_failed()
    assert [(part.watched, list(part.report.counts)) for part in report.parts] == [
        (False, ["cancel+sigint"]),
        (True, ["hook_error+cancel"]),
    ]
    assert report.left_out == {"cancel+journal_hang": NO_SESSION}


def test_a_part_without_a_position_breaks_nothing_and_no_position_at_all_shows_nothing() -> None:
    options: dict[str, Any] = {"drives": ["generate"], "delays": [0.0]}
    nothing = quick(agent_with(), replies=["done"], faults=["foreign_cancel"], **options)
    assert (nothing.positions, nothing.ok) == (0, False)
    some = quick(agent_with(), replies=["done"], faults=["foreign_cancel", "hook_error"], **options)
    assert [bool(part.report.positions) for part in some.parts] == [False, True]
    some.raise_if_failed()


async def leaks(x: int) -> str:
    trio.lowlevel.spawn_system_task(trio.sleep, 1e6)
    await trio.sleep(1)
    return "done"


def verdicts(report: ContractReport) -> dict[str, str]:
    return {each.promise: each.verdict for each in report.promises}


def test_of_an_agent_that_goes_wrong_without_a_fault_no_promise_is_said_to_hold() -> None:
    report = quick(agent_with(leaks), drives=["generate"], faults=["cancel"])
    assert (report.ok, report.positions) == (False, 0)
    assert verdicts(report) == {f"C{n}": "not shown" for n in range(1, 10)} | {"C5": "BROKEN"}
    text = report.render()
    assert "holds" not in text
    assert "nothing was swept: the run without a fault breaks C5" in text
    plain = json.loads(report.to_json())
    assert [each["verdict"] for each in plain["promises"]] == list(verdicts(report).values())
    assert plain["not_swept"] == ["nothing was swept: the run without a fault breaks C5"]


def test_a_part_that_goes_wrong_without_a_fault_leaves_nothing_to_hold() -> None:
    def make_agent(model: tr.Model) -> tr.ToolAgent:
        class Mine(tr.ToolAgent):
            async def generate(self, *args: Any, **options: Any) -> tr.Message:
                trio.lowlevel.spawn_system_task(trio.sleep, 1e6)
                return await super().generate(*args, **options)

        return Mine("mine", model=model, tools=[get_weather])

    report = quick(make_agent, drives=["generate", "until_done"], faults=["cancel"])
    assert report.positions > 0
    assert set(verdicts(report).values()) == {"BROKEN", "not shown"}
    line = "not swept to the end: 1 of the 2 sweeps: the run without a fault breaks C5"
    assert line in report.render()


def test_a_promise_that_was_not_checked_is_not_said_to_hold() -> None:
    options: dict[str, Any] = {"drives": ["generate"], "faults": ["cancel"]}
    report = quick(good_agent, checks={"C5": CONTRACT["C5"]}, **options)
    report.raise_if_failed()
    assert verdicts(report) == {f"C{n}": "not shown" for n in range(1, 10)} | {"C5": "holds"}


def test_a_run_that_does_not_end_shows_nothing_also_when_nobody_checks_that() -> None:
    def check(_: object) -> None:
        """All is well."""

    swept = sweep(lambda: Case(trio.sleep_forever, check, judge=False), seeds=[3])
    assert (swept.ok, swept.broken_seeds) == (False, (3,))
    report = ContractReport((PartReport("generate", 0.0, False, swept),), {})
    assert not report.ok
    assert set(verdicts(report).values()) == {"not shown"}
    assert "nothing was swept: the run without a fault did not end" in report.render()


def test_each_part_is_announced() -> None:
    told: list[str] = []
    quick(good_agent, drives=["break"], max_positions=1, on_part=told.append)
    assert told == [
        "break, commits at once",
        "break, commits at once, two faults",
        "break, commits at once, with hooks and an observer",
        "break, commits at once, with hooks and an observer, two faults",
        "break, commits: 0.5",
        "break, commits: 0.5, two faults",
        "break, commits: 0.5, with hooks and an observer",
        "break, commits: 0.5, with hooks and an observer, two faults",
    ]


# --- agents that break a promise ------------------------------------------------


async def leaves_a_task(city: str) -> str:
    """Lives on when it is cancelled."""
    try:
        await trio.sleep(1)
    finally:
        trio.lowlevel.spawn_system_task(trio.sleep, 5)
    return city


class Replacer(tr.ToolAgent):
    """Makes an error of its own of every end."""

    async def generate(self, *args: Any, **options: Any) -> tr.Message:
        try:
            return await super().generate(*args, **options)
        except BaseException as error:
            raise RuntimeError("the turn failed") from error


class Lingerer(tr.ToolAgent):
    """Takes longer to leave than an agent should."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            await trio.sleep(50)
        await super().__aexit__(exc_type, exc, traceback)


class Inventor(tr.ToolAgent):
    """Asks nobody."""

    async def generate(self, *args: Any, **options: Any) -> tr.Message:
        await trio.lowlevel.checkpoint()
        return tr.Message.assistant("the answer")


@pytest.mark.parametrize(
    ("make_agent", "promise", "words"),
    [
        (agent_with(leaves_a_task), "C5", "'trio.sleep' was left running"),
        (agent_of(Lingerer), "C6", "to leave, more than 5"),
        (agent_of(Replacer), "C1", "the cancel was swallowed"),
        (agent_of(Inventor), "C8", "no turn was run"),
    ],
)
def test_an_agent_that_breaks_a_promise_is_told_which(
    make_agent: Callable[..., tr.ToolAgent], promise: str, words: str
) -> None:
    report = quick(make_agent, drives=["generate"], faults=["cancel"])
    found = broken(report)
    assert any(words in text for text in found[promise]), found
    with pytest.raises(ContractBroken, match=f"{promise} +BROKEN at"):
        report.raise_if_failed()


def test_the_text_names_each_promise_and_how_to_replay_the_first_failure() -> None:
    report = quick(agent_with(leaves_a_task), faults=["cancel"])
    lines = report.render().splitlines()
    assert [line[:2] for line in lines[1:10]] == [f"C{number}" for number in range(1, 10)]
    # It goes wrong without a fault, too, so that nothing can be said of the others.
    assert sum("not shown" in line for line in lines) == 8
    assert "    make_case = AgentTurn(make_agent, drive='until_done', delay=0.0)" in lines
    first = report.promises[4].first
    assert first is not None
    assert f"    {first.replay}" in lines
    plan = [(landing.fault, landing.position) for landing in first.landings]
    again = replay(AgentTurn(agent_with(leaves_a_task)), *plan, seed=first.seed)
    assert again.violations == first.violations


def test_the_json_has_every_promise_and_every_failure() -> None:
    report = quick(agent_with(leaves_a_task), faults=["cancel"], max_failures=None)
    plain = json.loads(report.to_json())
    assert plain["ok"] is False
    assert [each["promise"] for each in plain["promises"]] == [f"C{n}" for n in range(1, 10)]
    failures = plain["parts"][0]["report"]["failures"]
    assert plain["promises"][4]["broken_at"] == len(failures) > 0


def test_a_factory_that_makes_no_agent_is_refused() -> None:
    async def forgotten() -> tr.ToolAgent:
        raise AssertionError("never run")

    def make() -> Any:
        forgotten().close()
        return "an agent"

    with pytest.raises(TypeError, match="make_agent returned 'an agent'; expected a ToolAgent"):
        AgentTurn(make, ["done"])()


# --- the script that is made ----------------------------------------------------


def test_the_made_script_calls_every_tool_in_batches_of_three_and_two() -> None:
    tools = [tr.tool(each) for each in (get_weather, add)]
    script = script_for(lambda: tr.ToolAgent("x", model=ScriptedModel([]), tools=tools))
    batches: list[Any] = [item for item in script if isinstance(item, list)]
    assert [[each.name for each in batch] for batch in batches] == [
        ["get_weather", "add", "get_weather"],
        ["add", "get_weather"],
    ]
    arguments = [each.arguments for batch in batches for each in batch]
    assert arguments == [{"city": "x"}, {"a": 1}, {"city": "x2"}, {"a": 3}, {"city": "x4"}]
    assert script[2] == "the answer"


def test_an_agent_without_tools_just_answers() -> None:
    script = script_for(lambda: tr.ToolAgent("x", model=ScriptedModel([])))
    assert script[0] == "the answer"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "x"),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": "integer"}, 0),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 5}, 6),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["x", "x"]),
        ({"type": ["integer", "null"]}, 0),
        ({"enum": ["north", "south"]}, "north"),
        ({"const": 7}, 7),
        ({"default": "d", "type": "string"}, "d"),
        ({"examples": ["e"], "type": "string"}, "e"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 0),
        ({"$ref": "#/$defs/Point"}, {"x": 0}),
        ({"$ref": "#/$defs/Nothing"}, None),
        ({}, None),
    ],
)
def test_an_example_fits_its_schema(schema: dict[str, Any], value: object) -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    whole = {
        "type": "object",
        "properties": {"it": schema, "optional": {"type": "string"}},
        "required": ["it"],
        "$defs": {"Point": point},
    }
    assert example_arguments(whole) == {"it": value}


def test_a_schema_that_refers_to_itself_ends() -> None:
    tree = {
        "type": "object",
        "properties": {"child": {"$ref": "#"}},
        "required": ["child"],
    }
    assert "child" in example_arguments(tree)
