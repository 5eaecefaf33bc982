"""BEHAVIOURS part f: odd model output: arguments, cut replies, stop reasons, unknown names."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem

Status = tr.CallStatus


def asks(
    *calls: tuple[str, Any], reason: Any = tr.StopReason.TOOL_USE, text: str = ""
) -> tr.Message:
    """A reply whose calls have arguments of any kind."""
    made = [tr.ToolCall(f"c{n}", name, given) for n, (name, given) in enumerate(calls)]
    return tr.Message("assistant", text, made, (), reason)


class Tools:
    """Tools that keep what they were called with."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def all(self) -> list[Any]:
        got = self.got

        async def plain() -> str:
            got.append({})
            return "plain ran"

        async def anything(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
            got.append(arguments)
            return "anything ran"

        async def typed(names: list[str], text: str = "") -> str:
            got.append({"names": names, "text": text})
            return "typed ran"

        return [plain, tr.Tool("anything", "", {"type": "object"}, anything), typed]


def agent_of(tools: Tools, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent("a", model=ScriptedModel(replies), tools=tools.all(), **options)


def model_of(agent: tr.ToolAgent) -> ScriptedModel:
    return cast("ScriptedModel", agent.model)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def end_of(agent: tr.ToolAgent) -> tr.EndReason:
    assert agent.last_turn is not None
    return agent.last_turn.end_reason


# --- kF1 ------------------------------------------------------------------------

BAD = {
    "cut": '{"x": [1, 2',
    "trailing comma": '{"x": 1,}',
    "null": "null",
    "list": "[]",
    "list of objects": '[{"x": 1}]',
    "string": '"x"',
    "number": "3",
    "true": "true",
    "nan": '{"x": NaN}',
    "infinity": '{"x": -Infinity}',
    "repeated key": '{"x": 1, "x": 2}',
    "junk": "junk " * 200_000,
    "deep": '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a python list": [1, 2],
    "a number": 7,
    "surrogate key": {"\ud800": 1},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
async def test_kF1_bad_arguments_refuse_that_call_alone(given: Any) -> None:
    tools = Tools()
    agent = agent_of(
        tools, asks(("anything", {"n": 1}), ("anything", given), ("plain", {})), "done"
    )
    if given == {"\ud800": 1}:
        # An object, but no text that encodes: either made plain or refused, never {}.
        await agent.generate("go")
        assert tools.got.count({}) == 1
        tr.check_history(agent.history)
        return
    assert (await agent.generate("go")).text == "done"

    first, bad, last = results_of(agent)
    assert (first.status, last.status) == (Status.OK, Status.OK)
    assert bad.status is Status.INVALID_ARGUMENTS
    assert 0 < len(bad.text) < 2000
    assert sorted(map(len, tools.got)) == [0, 1]  # never {} in its place
    stored = agent.history[1].tool_calls[1]
    assert stored.arguments != {}
    assert len(repr(stored)) < 5000  # what is stored is bounded too


NOTHING: dict[str, Any] = {"none": None, "empty": "", "blank": "  \n", "object": "{}", "dict": {}}


@pytest.mark.parametrize("given", NOTHING.values(), ids=NOTHING)
async def test_kF1_no_arguments_in_each_spelling(given: Any) -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("plain", given), ("anything", given)), "done")
    await agent.generate("go")
    assert [r.status for r in results_of(agent)] == [Status.OK, Status.OK]
    assert tools.got == [{}, {}]
    assert [c.arguments for c in agent.history[1].tool_calls] == [{}, {}]


async def test_kF1_absent_arguments() -> None:
    tools = Tools()
    agent = agent_of(tools, [tr.ToolCall("c", "plain")], "done")
    await agent.generate("go")
    assert [r.status for r in results_of(agent)] == [Status.OK]


@pytest.mark.parametrize(
    ("given", "got"),
    [
        # The whole object, encoded twice, is decoded once more.
        ('"{\\"names\\": [\\"a\\"]}"', {"names": ["a"], "text": ""}),
        # A nested list in text, where the schema wants a list.
        ({"names": '["a", "b"]'}, {"names": ["a", "b"], "text": ""}),
        # A text that happens to look like JSON stays a text.
        ({"names": ["a"], "text": '["b"]'}, {"names": ["a"], "text": '["b"]'}),
        ({"names": ["a"], "text": "3"}, {"names": ["a"], "text": "3"}),
        ({"names": ['{"x": 1}']}, {"names": ['{"x": 1}'], "text": ""}),
    ],
)
async def test_kF1_double_encoding_is_undone_once_and_texts_are_left_alone(
    given: Any, got: Any
) -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("typed", given)), "done")
    await agent.generate("go")
    assert tools.got == [got]


async def test_kF1_an_object_encoded_three_times_is_refused() -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("anything", '"\\"{}\\""')), "done")
    await agent.generate("go")
    assert [r.status for r in results_of(agent)] == [Status.INVALID_ARGUMENTS]
    assert tools.got == []


# --- kF2 ------------------------------------------------------------------------

CUTS = {
    "one cut call": asks(("anything", '{"x": [1,'), reason=tr.StopReason.MAX_TOKENS),
    "one whole and one cut": asks(
        ("anything", {"x": 1}), ("anything", '{"x'), reason=tr.StopReason.MAX_TOKENS
    ),
    "missing fields": asks(("typed", {}), reason=tr.StopReason.MAX_TOKENS),
    "only text": asks(reason=tr.StopReason.MAX_TOKENS, text="once upon a"),
}


@pytest.mark.parametrize("reply", CUTS.values(), ids=CUTS)
async def test_kF2_no_call_of_a_reply_cut_by_the_output_limit_runs(reply: tr.Message) -> None:
    tools = Tools()
    agent = agent_of(tools, reply, "next")
    answer = await agent.generate("go")

    assert answer.stop_reason is tr.StopReason.MAX_TOKENS
    assert [c.id for c in answer.tool_calls] == [c.id for c in reply.tool_calls]
    assert tools.got == []
    assert [r.status for r in results_of(agent)] == [Status.OUTPUT_CUT] * len(reply.tool_calls)
    assert end_of(agent) is tr.EndReason.MAX_TOKENS
    assert model_of(agent).calls == 1  # no endless retry
    assert (await agent.generate("again")).text == "next"


async def test_kF2_cut_argument_text_is_stored_so_that_later_requests_pass() -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("anything", '{"path": "/etc/pas')), "one", "two", "three")
    for text in ("go", "second", "third"):
        await agent.generate(text)
    (result,) = results_of(agent)
    assert result.status is Status.INVALID_ARGUMENTS
    assert type(agent.history[1].tool_calls[0].arguments) is dict
    assert model_of(agent).violations == []


# --- kF4 ------------------------------------------------------------------------

NO_CALLS: dict[str, Any] = {"none": None, "object": {}, "list": []}


@pytest.mark.parametrize("text", ["", "some text"])
@pytest.mark.parametrize("calls", NO_CALLS.values(), ids=NO_CALLS)
async def test_kF4_tool_use_without_calls_ends_the_turn(calls: Any, text: str) -> None:
    tools = Tools()
    given = () if calls is None else calls
    agent = agent_of(
        tools, tr.Message("assistant", text, given, (), tr.StopReason.TOOL_USE), "next"
    )
    answer = await agent.generate("go")
    assert answer.stop_reason is tr.StopReason.END_TURN
    assert answer.text == (text or "(empty reply)")
    assert [m.role for m in agent.history] == ["user", "assistant"]
    assert end_of(agent) is tr.EndReason.ANSWERED
    assert model_of(agent).calls == 1
    assert (await agent.generate("again")).text == "next"


@pytest.mark.parametrize(
    "reason",
    [
        tr.StopReason.END_TURN,
        tr.StopReason.STOP_SEQUENCE,
        "something new",
        None,
        tr.StopReason.PAUSE,
    ],
)
async def test_kF4_calls_next_to_a_normal_reason_are_run(reason: Any) -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("anything", {"n": 1}), reason=reason), "done")
    assert (await agent.generate("go")).text == "done"
    assert tools.got == [{"n": 1}]
    assert agent.history[1].stop_reason is tr.StopReason.TOOL_USE


@pytest.mark.parametrize("reason", ["safety", "error", "cancelled", "timeout"])
async def test_kF4_calls_next_to_another_reason_are_answered_and_not_run(reason: str) -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("anything", {}), reason=tr.StopReason(reason)), "next")
    answer = await agent.generate("go")
    assert answer.stop_reason is tr.StopReason(reason)
    assert tools.got == []
    assert [r.status for r in results_of(agent)] == [Status.DENIED]
    assert (await agent.generate("again")).text == "next"


async def test_kF4_an_unknown_reason_counts_as_the_end() -> None:
    tools = Tools()
    reply = tr.Message("assistant", "hi", (), (), cast("Any", "brand_new_reason"))
    agent = agent_of(tools, reply)
    assert (await agent.generate("go")).stop_reason is tr.StopReason.END_TURN
    assert end_of(agent) is tr.EndReason.ANSWERED


# --- kF6 ------------------------------------------------------------------------

PAUSED = tr.Message.assistant("thinking", stop_reason=tr.StopReason.PAUSE)


async def test_kF6_pause_twice_then_the_end() -> None:
    agent = agent_of(Tools(), PAUSED, PAUSED, "done")
    assert (await agent.generate("go")).text == "done"
    assert [m.text for m in agent.history] == ["go", "thinking", "thinking", "done"]
    assert [m.role for m in agent.history].count("user") == 1
    assert model_of(agent).requests[1].history[-1] == PAUSED


@pytest.mark.parametrize("cap", [0, 1, 3])
async def test_kF6_pause_for_ever_stops_at_the_cap(cap: int) -> None:
    params = tr.RequestParams(max_iterations=cap)
    agent = agent_of(Tools(), *[PAUSED] * 9, params=params)
    assert await agent.generate("go") == PAUSED
    assert model_of(agent).calls == cap + 1
    assert end_of(agent) is tr.EndReason.MAX_ITERATIONS
    assert [m.role for m in agent.history].count("user") == 1


async def test_kF6_pause_with_a_client_call_runs_it() -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("plain", {}), reason=tr.StopReason.PAUSE), "done")
    assert (await agent.generate("go")).text == "done"
    assert tools.got == [{}]


# --- kF7 ------------------------------------------------------------------------


async def test_kF7_known_unknown_known() -> None:
    tools = Tools()
    agent = agent_of(tools, asks(("plain", {}), ("nosuch", {}), ("anything", {"n": 1})), "done")
    assert (await agent.generate("go")).text == "done"
    known, unknown, also = results_of(agent)
    assert (known.status, also.status) == (Status.OK, Status.OK)
    assert unknown.status is Status.UNAVAILABLE
    assert all(name in unknown.text for name in ("nosuch", "plain", "anything", "typed"))
    assert sorted(map(len, tools.got)) == [0, 1]


async def test_kF7_the_list_of_names_is_bounded() -> None:
    async def work(arguments: tr.JSONObject, context: tr.ToolContext) -> None:
        """Never called."""

    many = [tr.Tool(f"tool_{n}", "", {}, work) for n in range(500)]
    agent = tr.ToolAgent("a", model=ScriptedModel([asks(("x" * 60, {})), "done"]), tools=many)
    await agent.generate("go")
    (result,) = results_of(agent)
    assert len(result.text) < 3000


async def test_kF7_only_unknown_names_the_cap_still_ends_it() -> None:
    def unknown(number: int) -> ScriptItem:
        return [tr.ToolCall(f"u{number}", "nosuch")]

    params = tr.RequestParams(max_iterations=4)
    agent = agent_of(Tools(), *[unknown(n) for n in range(9)], params=params)
    await agent.generate("go")
    assert model_of(agent).calls == 5
    assert [r.status.value for r in results_of(agent)] == ["unavailable"] * 4 + ["limit_reached"]
    assert end_of(agent) is tr.EndReason.MAX_ITERATIONS


@pytest.mark.parametrize(
    ("tool_names", "asked", "ran"),
    [
        (["read"], "READ", "read"),
        (["read", "READ"], "Read", None),
        (["read", "READ"], "READ", "READ"),
        (["read"], " read ", "read"),
        (["server_read"], "read", None),
    ],
)
async def test_kF7_one_resolver_for_the_run_and_for_what_may_refuse_it(
    tool_names: list[str], asked: str, ran: str | None
) -> None:
    got: list[str] = []

    def tool_named(name: str) -> tr.Tool:
        async def work(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
            got.append(name)
            return "ok"

        return tr.Tool(name, "", {}, work)

    tools = [tool_named(name) for name in tool_names]
    model = ScriptedModel([asks((asked, {})), "done"])
    agent = tr.ToolAgent("a", model=model, tools=tools)
    await agent.generate("go")

    (planned,) = tr.plan_tool_calls([tr.ToolCall("c", asked)], tools)
    assert got == ([] if ran is None else [ran])
    assert (planned.tool.name if planned.tool else None) == ran
    expected = Status.OK if ran is not None else Status.UNAVAILABLE
    assert [r.status for r in results_of(agent)] == [expected]
    # What the history keeps is a name that every provider takes.
    (stored,) = agent.history[1].tool_calls
    tr.Tool(stored.name, "", {}, tools[0].call)


async def test_kF7_a_bare_name_that_is_unique_is_repaired() -> None:
    async def work(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        await trio.lowlevel.checkpoint()
        return "ok"

    tools = [
        tr.Tool("files__read", "", {}, work, bare_name="read"),
        tr.Tool("files__list", "", {}, work, bare_name="list"),
        tr.Tool("web__list", "", {}, work, bare_name="list"),
    ]
    model = ScriptedModel([asks(("read", {}), ("list", {})), "done"])
    agent = tr.ToolAgent("a", model=model, tools=tools)
    await agent.generate("go")
    assert [r.status for r in results_of(agent)] == [Status.OK, Status.UNAVAILABLE]
