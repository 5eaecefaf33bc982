"""`tool_result_mode`: when the results of a batch are the answer, and when the model is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call

PASS = tr.RequestParams(tool_result_mode="passthrough")
CHOOSE = tr.RequestParams(tool_result_mode="selectable")


def agent_of(name: str, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work, fail])
    return tr.ToolAgent(name, model=ScriptedModel(replies), **options)


def asked(agent: tr.ToolAgent) -> int:
    model: Any = agent.model
    return int(model.calls)


async def work(what: str = "work") -> str:
    return f"{what} done"


async def fail() -> str:
    raise ValueError("no")


async def picture() -> tr.ImageContent:
    return tr.ImageContent("aGk=", "image/png")


async def attach() -> str:
    tr.current_tool_context().attach(tr.ImageContent("aGk=", "image/png"))
    return "see the picture"


BATCH = [call("work", id="c1", what="one"), call("work", id="c2", what="two")]


# --- passthrough ----------------------------------------------------------------


async def test_the_results_in_order_become_the_answer() -> None:
    agent = agent_of("a", BATCH, "never asked for", params=PASS)
    seen: list[tr.Message] = []

    async def note(_: tr.ToolRunner, message: tr.Message) -> None:
        seen.append(message)

    hooks = tr.ToolRunnerHooks(after_llm_call=note, after_turn_complete=note)
    async with agent.turn("go", hooks=hooks) as runner:
        given = [message async for message in runner]
        assert runner.end_reason is tr.EndReason.PASSED_THROUGH
        assert (runner.iteration, runner.last_message) == (1, given[-1])
    assert asked(agent) == 1
    answer = given[-1]
    assert [block.text for block in answer.content if type(block) is tr.TextContent] == [
        "one done",
        "two done",
    ]
    assert (answer.role, answer.stop_reason, answer.usage) == ("assistant", "endTurn", None)
    assert answer.meta == {"passed_through": True}
    assert [message.role for message in agent.history] == ["user", "assistant", "user", "assistant"]
    assert agent.history[-1] == answer
    assert seen == [given[0], answer, answer]
    tr.check_history(agent.history)


async def test_media_of_the_results_and_what_they_attach_are_passed_through() -> None:
    batch = [call("attach", id="c1"), call("picture", id="c2")]
    agent = agent_of("a", batch, params=PASS, tools=[attach, picture])
    answer = await agent.generate("go")
    kinds = [type(block) for block in answer.content]
    assert kinds == [tr.TextContent, tr.ImageContent, tr.ImageContent]


async def test_a_turn_without_history_passes_through_too() -> None:
    params = tr.RequestParams(tool_result_mode="passthrough", use_history=False)
    agent = agent_of("a", BATCH, params=params)
    assert (await agent.generate("go")).text == "one done\ntwo done"
    assert agent.history == ()


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([BATCH[0], call("fail", id="f")], id="error"),
        pytest.param([call("nothing", id="n")], id="unavailable"),
        pytest.param([tr.ToolCall.from_model(id="b", name="work", arguments="{")], id="arguments"),
    ],
)
async def test_a_batch_that_did_not_all_work_goes_to_the_model(batch: Any) -> None:
    agent = agent_of("a", batch, "I see", params=PASS)
    assert (await agent.generate("go")).text == "I see"
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.ANSWERED


async def test_a_denied_call_goes_to_the_model() -> None:
    async def deny(runner: tr.ToolRunner, _: tr.Message) -> None:
        runner.deny("c2", "not now")

    agent = agent_of("a", BATCH, "I see", params=PASS)
    reply = await agent.generate("go", hooks=tr.ToolRunnerHooks(before_tool_call=deny))
    assert reply.text == "I see"


async def test_the_cap_comes_first() -> None:
    params = tr.RequestParams(tool_result_mode="passthrough", max_iterations=0)
    agent = agent_of("a", BATCH, params=params)
    reply = await agent.generate("go")
    assert reply.tool_calls
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.MAX_ITERATIONS


@pytest.mark.parametrize("point", ["before_tool_call", "after_tool_call"])
async def test_a_message_that_was_added_for_the_model_is_shown_to_it(point: str) -> None:
    async def add(runner: tr.ToolRunner, _: tr.Message) -> None:
        runner.append_messages("and be polite")

    hooks: dict[str, Any] = {point: add}
    agent = agent_of("a", BATCH, "Here you are.", params=PASS)
    reply = await agent.generate("go", hooks=tr.ToolRunnerHooks(**hooks))
    assert reply.text == "Here you are."


async def test_a_history_that_a_hook_has_replaced_goes_to_the_model() -> None:
    async def replace(runner: tr.ToolRunner, _: tr.Message) -> None:
        runner.replace_history([tr.Message.user("forget it")])

    agent = agent_of("a", BATCH, "Forgotten.", params=PASS)
    reply = await agent.generate("go", hooks=tr.ToolRunnerHooks(after_tool_call=replace))
    assert reply.text == "Forgotten."


async def test_a_paused_reply_goes_back_to_the_model() -> None:
    paused = tr.Message.assistant("wait", stop_reason=tr.StopReason.PAUSE)
    agent = agent_of("a", paused, "done", params=PASS)
    assert (await agent.generate("go")).text == "done"


async def test_results_of_an_earlier_turn_are_no_answer() -> None:
    agent = agent_of("a", ValueError("the model is gone"), "done")
    agent.load_history(
        [
            tr.Message.user("go"),
            tr.Message.assistant(tool_calls=[BATCH[0]]),
            tr.Message.user(tool_results=[tr.ToolResult("c1", "work", "one done")]),
        ]
    )
    with pytest.raises(ValueError, match="gone"):
        await agent.generate("again", params=PASS)
    assert (await agent.resume(params=PASS)).text == "done"


async def test_the_mode_is_that_of_the_model_call_that_asked_for_the_batch() -> None:
    async def switch(runner: tr.ToolRunner, _: tr.Message) -> None:
        runner.request_params = PASS

    agent = agent_of("a", [BATCH[0]], [BATCH[1]])
    hooks = tr.ToolRunnerHooks(after_tool_call=switch)
    assert (await agent.generate("go", hooks=hooks)).text == "two done"


async def test_observers_are_told_of_it() -> None:
    class Events:
        def __init__(self) -> None:
            self.all: list[ev.Event] = []

        def on_event(self, event: ev.Event) -> None:
            self.all.append(event)

    events = Events()
    answer = await agent_of("a", BATCH, params=PASS).generate("go", observers=[events])
    passed = [event for event in events.all if type(event) is ev.PassedThrough]
    assert [event.message for event in passed] == [answer]
    assert type(events.all[-1]) is ev.TurnEnded
    assert events.all[-1].end_reason is tr.EndReason.PASSED_THROUGH


async def test_a_hook_that_raises_on_it_fails_the_turn_and_loses_nothing() -> None:
    async def refuse(_: tr.ToolRunner, message: tr.Message) -> None:
        if message.meta.get("passed_through"):
            raise ValueError("too raw")

    agent = agent_of("a", BATCH, params=PASS)
    with pytest.raises(ValueError, match="too raw"):
        await agent.generate("go", hooks=tr.ToolRunnerHooks(after_llm_call=refuse))
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.FAILED
    assert agent.history[-1].meta == {"passed_through": True}


# --- sessions -------------------------------------------------------------------


def cuts(records: Sequence[r.Record]) -> list[Sequence[r.Record]]:
    """Every beginning of ``records`` with all results and without the turn's end."""
    last = max(i for i, record in enumerate(records) if type(record) is r.ToolFinished)
    return [records[:count] for count in range(last + 1, len(records))]


async def test_a_crash_after_the_results_changes_nothing_of_the_answer() -> None:
    journal = tr.MemoryJournal()
    async with agent_of("a", BATCH, params=PASS, journal=journal, session="s") as agent:
        answer = await agent.generate("go")
        history = agent.history
    whole = journal.stored("s")
    assert tr.fold(whole).messages == history
    assert len(cuts(whole)) == 2
    for left in cuts(whole):
        journal = tr.MemoryJournal()
        session = await journal.open("s")
        await session.append(left).wait()
        await session.aclose()
        async with agent_of("a", params=PASS, journal=journal, session="s") as agent:
            assert await agent.resume() == answer
            assert agent.history == history
            assert asked(agent) == 0
            assert agent.last_turn is not None
            assert agent.last_turn.end_reason is tr.EndReason.PASSED_THROUGH
        # What is recorded as resumed differs, and nothing else.
        assert [record for record in journal.stored("s") if type(record) is not r.TurnStarted] == [
            record for record in whole if type(record) is not r.TurnStarted
        ]


async def test_a_turn_cancelled_after_its_batch_is_resumed_to_the_same_answer() -> None:
    agent = agent_of("a", BATCH, params=PASS)
    with trio.CancelScope() as scope:

        async def cut(_: tr.ToolRunner, __: tr.Message) -> None:
            scope.cancel()
            await trio.lowlevel.checkpoint()

        await agent.generate("go", hooks=tr.ToolRunnerHooks(after_tool_call=cut))
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.INTERRUPTED
    assert (await agent.resume()).text == "one done\ntwo done"
    assert asked(agent) == 1


# --- selectable -----------------------------------------------------------------


def child_of(name: str, answer: str) -> tr.ToolAgent:
    return tr.ToolAgent(name, model=ScriptedModel([answer] * 3))


def ask(name: str, id: str, mode: str | None = None) -> tr.ToolCall:
    arguments: dict[str, Any] = {"message": "the question"}
    if mode is not None:
        arguments["response_mode"] = mode
    return tr.ToolCall(id, f"agent__{name}", arguments)


@pytest.mark.parametrize(
    ("modes", "passes"),
    [
        (("passthrough", "passthrough"), True),
        (("passthrough", "postprocess"), False),
        (("passthrough", None), False),
        ((None, None), False),
    ],
)
async def test_it_passes_through_when_every_call_chose_it(
    modes: tuple[str | None, str | None], passes: bool
) -> None:
    bob, carol = child_of("bob", "I am Bob"), child_of("carol", "I am Carol")
    batch = [ask("bob", "c1", modes[0]), ask("carol", "c2", modes[1])]
    agent = agent_of("a", batch, "They are Bob and Carol.", tools=[bob, carol], params=CHOOSE)
    reply = await agent.generate("go")
    assert reply.text == ("I am Bob\nI am Carol" if passes else "They are Bob and Carol.")
    model: Any = bob.model
    assert model.requests[0].history[-1].text == "the question"


async def test_a_tool_that_is_no_agent_never_chooses_it() -> None:
    batch = [ask("bob", "c1", "passthrough"), BATCH[0]]
    agent = agent_of("a", batch, "done", tools=[child_of("bob", "hi"), work], params=CHOOSE)
    assert (await agent.generate("go")).text == "done"


async def test_an_agent_that_fails_is_not_passed_through() -> None:
    bob = tr.ToolAgent("bob", model=ScriptedModel([ValueError("no credit")]))
    agent = agent_of("a", ask("bob", "c1", "passthrough"), "sorry", tools=[bob], params=CHOOSE)
    assert (await agent.generate("go")).text == "sorry"


async def test_only_agents_offer_it_and_only_where_it_may_be_chosen() -> None:
    schema = {"type": "object", "properties": {"response_mode": {"type": "string"}}}
    for params in (PASS, CHOOSE, tr.RequestParams()):
        agent = agent_of("a", "done", tools=[child_of("bob", "hi"), work], params=params)
        agent.add_agent_tool(child_of("carol", "hi"), input_schema=schema)
        await agent.generate("go")
        model: Any = agent.model
        offered = {
            tool.name: tool.input_schema["properties"].get("response_mode")
            for tool in model.requests[0].tools
        }
        chooses = offered.pop("agent__bob")
        assert (chooses is not None) == (params is CHOOSE)
        assert chooses is None or chooses["enum"] == ["postprocess", "passthrough"]
        # One that has an argument of that name keeps its own.
        assert offered == {"work": None, "agent__carol": {"type": "string"}}


async def test_an_own_argument_of_that_name_goes_to_the_child() -> None:
    schema = {"type": "object", "properties": {"response_mode": {"type": "string"}}}
    carol = child_of("carol", "hi")
    batch = tr.ToolCall("c1", "agent__carol", {"response_mode": "passthrough"})
    agent = agent_of("a", batch, "done", tools=[], params=CHOOSE)
    agent.add_agent_tool(carol, input_schema=schema)
    assert (await agent.generate("go")).text == "done"
    model: Any = carol.model
    assert model.requests[0].history[-1].text == '{"response_mode": "passthrough"}'


async def test_a_mode_that_does_not_exist_is_told_to_the_model() -> None:
    agent = agent_of("a", ask("bob", "c1", "loud"), "oh", tools=[child_of("bob", "hi")])
    await agent.generate("go")
    (result,) = agent.history[2].tool_results
    assert result.status is tr.CallStatus.INVALID_ARGUMENTS
    assert "'loud'; expected 'postprocess' or 'passthrough'" in result.text


async def test_the_reply_keeps_what_the_model_said() -> None:
    agent = agent_of(
        "a", ask("bob", "c1", "passthrough"), tools=[child_of("bob", "hi")], params=CHOOSE
    )
    await agent.generate("go")
    (asks,) = agent.history[1].tool_calls
    assert asks.arguments["response_mode"] == "passthrough"
