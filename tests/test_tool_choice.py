"""What the model may call: tools that change between steps, filters, and `tool_choice`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import RequestViolation, ScriptedModel, ScriptItem, call


async def look(city: str) -> str:
    return f"sun in {city}"


async def pay(amount: int) -> str:
    return f"paid {amount}"


def agent_of(replies: Sequence[ScriptItem], **options: Any) -> tuple[tr.ToolAgent, ScriptedModel]:
    model = ScriptedModel(replies)
    options.setdefault("tools", [look, pay])
    return tr.ToolAgent("weather", model=model, **options), model


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in model.requests]


def choices(model: ScriptedModel) -> list[str]:
    return [request.params.tool_choice for request in model.requests]


def results(agent: tr.ToolAgent) -> list[tuple[str, str]]:
    return [
        (result.status.value, result.text)
        for message in agent.history
        for result in message.tool_results
    ]


LOOK = call("look", city="Oslo")
PAY = call("pay", amount=3)

# --- tool_choice ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "asked"),
    [("auto", "auto"), ("required", "required"), ("pay", "pay"), ("PAY", "pay"), ("none", "none")],
)
async def test_the_model_is_told_what_it_must_call(choice: str, asked: str) -> None:
    agent, model = agent_of(["fine"])
    await agent.generate("go", params=tr.RequestParams(tool_choice=choice))
    assert choices(model) == [asked]


@pytest.mark.parametrize("choice", ["required", "look"])
async def test_forcing_ends_after_one_round(choice: str) -> None:
    agent, model = agent_of([LOOK, PAY, "fine", LOOK, "fine"])
    params = tr.RequestParams(tool_choice=choice)
    await agent.generate("go", params=params)
    assert choices(model) == [choice, "auto", "auto"]
    await agent.generate("go", params=params)  # a turn of its own
    assert choices(model)[3:] == [choice, "auto"]


async def test_a_model_that_does_not_obey_is_not_forced_again() -> None:
    agent, model = agent_of(["no", LOOK, "fine"])

    async def more(runner: tr.ToolRunner, message: tr.Message) -> None:
        assert runner.request_params.tool_choice == "auto"

    hooks = tr.ToolRunnerHooks(after_llm_call=more)
    await agent.generate("go", params=tr.RequestParams(tool_choice="look"), hooks=hooks)
    assert choices(model) == ["look"]


async def test_a_paused_reply_is_no_round() -> None:
    paused = tr.Message.assistant("hm", stop_reason=tr.StopReason.PAUSE)
    agent, model = agent_of([paused, LOOK, "fine"])
    await agent.generate("go", params=tr.RequestParams(tool_choice="look"))
    assert choices(model) == ["look", "look", "auto"]


async def test_a_hook_can_force_a_later_round() -> None:
    agent, model = agent_of([LOOK, PAY, "fine"])

    async def force(runner: tr.ToolRunner, results: tr.Message) -> None:
        if runner.iteration == 0:
            runner.request_params = tr.RequestParams(tool_choice="pay")

    await agent.generate("go", hooks=tr.ToolRunnerHooks(after_tool_call=force))
    assert choices(model) == ["auto", "pay", "auto"]


async def test_forcing_lasts_until_a_reply_has_come() -> None:
    agent, model = agent_of([OSError("down"), LOOK, OSError("down"), "fine"])
    params = tr.RequestParams(tool_choice="look")
    with pytest.raises(OSError, match="down"):
        await agent.generate("go", params=params)
    with pytest.raises(OSError, match="down"):
        await agent.resume(params=params)
    await agent.resume(params=params)
    assert choices(model) == ["look", "look", "auto", "auto"]


@pytest.mark.parametrize(
    ("tools", "choice", "says"),
    [
        ([look, pay], "steal", r"'steal', but the model is offered no such tool.*'look', 'pay'"),
        ((), "steal", r"or one of its tools: none"),
        ((), "required", r"'required', but the model is offered no tools"),
    ],
)
async def test_a_tool_that_is_not_there_cannot_be_required(
    tools: Any, choice: str, says: str
) -> None:
    agent, model = agent_of(["fine"], tools=tools)
    with pytest.raises(tr.UsageError, match=says):
        await agent.generate("go", params=tr.RequestParams(tool_choice=choice))
    assert model.calls == 0
    assert [message.text for message in agent.history] == ["go"]
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.FAILED
    assert (await agent.resume()).text == "fine"


async def test_a_model_that_calls_though_it_must_not_is_denied_and_may_answer() -> None:
    ran: list[int] = []

    async def count(number: int) -> str:
        ran.append(number)
        return "counted"

    hooked: list[str] = []

    async def before(runner: tr.ToolRunner, message: tr.Message) -> None:
        hooked.append("before")

    journal = tr.MemoryJournal()
    agent, model = agent_of(
        [[call("count", number=1), call("nothing")], "fine"],
        tools=[count],
        hooks=tr.ToolRunnerHooks(before_tool_call=before),
        journal=journal,
        session="s",
    )
    async with agent:
        message = await agent.generate("go", params=tr.RequestParams(tool_choice="none"))
    assert message.text == "fine"
    assert choices(model) == ["none", "none"]
    assert [len(names) for names in offered(model)] == [1, 1]
    text = (
        "Denied: no tool may be called now (tool_choice is 'none'). "
        "It was not run and had no effect."
    )
    assert results(agent) == [("denied", text)] * 2
    assert (ran, hooked) == ([], [])
    kinds = [type(record) for record in journal.stored("s")]
    assert kinds.count(r.ToolStarted) == 0
    tr.check_history(agent.history)


async def test_denied_calls_count_against_the_cap() -> None:
    agent, model = agent_of([LOOK] * 9)
    params = tr.RequestParams(tool_choice="none", max_iterations=2)
    await agent.generate("go", params=params)
    assert model.calls == 3
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.MAX_ITERATIONS


# --- filters --------------------------------------------------------------------


def is_free(tool: tr.Tool) -> bool:
    return tool.name != "pay"


@pytest.mark.parametrize("tools_filter", [["look"], {"look", "unknown"}, is_free])
async def test_a_filter_narrows_what_the_model_sees(tools_filter: Any) -> None:
    agent, model = agent_of([[LOOK, PAY], "fine"])
    await agent.generate("go", params=tr.RequestParams(tools_filter=tools_filter))
    assert offered(model) == [["look"], ["look"]]
    assert [status for status, _ in results(agent)] == ["ok", "unavailable"]
    assert results(agent)[1][1].endswith("The tools are: look.")


async def test_a_hook_narrows_the_tools_from_the_next_call_on() -> None:
    agent, model = agent_of([PAY, [LOOK, PAY], LOOK, "fine"])

    async def before(runner: tr.ToolRunner, messages: tuple[tr.Message, ...]) -> None:
        wanted = {1: ["look"], 2: None}
        if runner.iteration in wanted:
            runner.request_params = tr.RequestParams(tools_filter=wanted[runner.iteration])

    await agent.generate("go", hooks=tr.ToolRunnerHooks(before_llm_call=before))
    assert offered(model) == [["look", "pay"], ["look"], ["look", "pay"], ["look", "pay"]]
    assert [status for status, _ in results(agent)] == ["ok", "ok", "unavailable", "ok"]


async def test_a_batch_keeps_the_filter_that_its_reply_was_asked_with() -> None:
    agent, _ = agent_of([PAY, PAY, "fine"])

    async def after(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.request_params = tr.RequestParams(tools_filter=["look"])

    await agent.generate("go", hooks=tr.ToolRunnerHooks(after_llm_call=after))
    assert [status for status, _ in results(agent)] == ["ok", "unavailable"]


async def test_a_filter_that_raises_ends_the_turn_before_the_model_is_asked() -> None:
    def broken(tool: tr.Tool) -> bool:
        raise LookupError(tool.name)

    agent, model = agent_of(["fine"])
    with pytest.raises(LookupError, match="look"):
        await agent.generate("go", params=tr.RequestParams(tools_filter=broken))
    assert model.calls == 0
    assert (await agent.resume()).text == "fine"


async def test_what_is_filtered_out_cannot_be_required() -> None:
    agent, _ = agent_of(["fine"])
    params = tr.RequestParams(tools_filter=["look"], tool_choice="pay")
    with pytest.raises(tr.UsageError, match="or one of its tools: 'look'"):
        await agent.generate("go", params=params)


async def test_a_call_that_was_not_offered_does_not_run_after_a_crash_either(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its answer is recorded with the reply, since the filter is forgotten by then."""
    journal = tr.MemoryJournal()

    def agent(*replies: ScriptItem) -> tr.ToolAgent:
        return agent_of(replies, journal=journal, session="s")[0]

    calls = [call("look", id="c1", city="Oslo"), call("pay", id="c2", amount=3)]
    async with agent(calls, "fine") as first:
        await first.generate("go", params=tr.RequestParams(tools_filter=["look"]))
    records = journal.stored("s")
    upto = [type(record) for record in records].index(r.ModelFinished) + 2
    assert type(records[upto - 1]) is r.ToolFinished
    journal = tr.MemoryJournal()
    session = await journal.open("s")
    session.append(records[:upto])
    await session.aclose()
    async with agent("fine") as second:
        await second.resume()
    assert [status for status, _ in results(second)] == ["ok", "unavailable"]
    assert second.history == first.history


# --- tools that change ----------------------------------------------------------


async def test_a_tool_that_is_added_while_tools_run_is_offered_at_the_next_call() -> None:
    async def unlock() -> str:
        agent.add_tool(pay)
        return "unlocked"

    agent, model = agent_of([call("unlock"), PAY, "fine"], tools=[look, unlock])
    await agent.generate("go")
    assert offered(model) == [["look", "unlock"]] + [["look", "unlock", "pay"]] * 2
    assert results(agent)[1] == ("ok", "paid 3")


async def test_a_batch_keeps_the_tools_it_was_planned_with() -> None:
    """Removed, or replaced, while an earlier call of the batch runs: this batch runs as planned."""

    async def dearer(amount: int) -> str:
        return f"paid {2 * amount}"

    @tr.tool(sequential=True)
    async def change() -> str:
        agent.remove_tool("look")
        agent.add_tool(tr.tool(dearer, name="pay"), replace=True)
        return "changed"

    batch = [call("change"), LOOK, PAY]
    agent, model = agent_of([batch, [LOOK, PAY], "fine"], tools=[look, pay, change])
    await agent.generate("go")
    assert [text for _, text in results(agent)][1:3] == ["sun in Oslo", "paid 3"]
    assert offered(model)[1] == ["pay", "change"]
    assert results(agent)[3][0] == "unavailable"
    assert results(agent)[4] == ("ok", "paid 6")


async def test_a_tool_that_is_removed_in_a_hook_is_still_run_for_its_reply() -> None:
    agent, model = agent_of([LOOK, "fine"])

    async def after(runner: tr.ToolRunner, message: tr.Message) -> None:
        if message.tool_calls:
            agent.remove_tool("look")

    await agent.generate("go", hooks=tr.ToolRunnerHooks(after_llm_call=after))
    assert results(agent) == [("ok", "sun in Oslo")]
    assert offered(model) == [["look", "pay"], ["pay"]]


async def test_a_batch_of_a_resumed_turn_keeps_the_tools_of_its_reply_too() -> None:
    agent, model = agent_of([OSError("down"), LOOK, "fine"])

    async def after(runner: tr.ToolRunner, message: tr.Message) -> None:
        if message.tool_calls:
            agent.remove_tool("look")

    with pytest.raises(OSError, match="down"):
        await agent.generate("go")
    await agent.resume(hooks=tr.ToolRunnerHooks(after_llm_call=after))
    assert results(agent) == [("ok", "sun in Oslo")]
    assert offered(model)[1:] == [["look", "pay"], ["pay"]]


# --- what the scripted model says of it -----------------------------------------


@pytest.mark.parametrize("choice", ["required", "look"])
async def test_a_scripted_model_refuses_to_be_forced_to_nothing(choice: str) -> None:
    model = ScriptedModel(["fine"])
    message = tr.Message.user("go")
    request = tr.ModelRequest([message], [message], (), tr.RequestParams(tool_choice=choice))
    with pytest.raises(RequestViolation, match="offered"):
        await model.reply(request, lambda text: None)


@pytest.mark.parametrize("native", [False, True])
async def test_a_scripted_model_takes_an_output_only_if_it_says_so(native: bool) -> None:
    model = ScriptedModel(["fine"], supports_structured_output=native)
    message = tr.Message.user("go")
    output = tr.OutputFormat("Weather", {"type": "object"})
    request = tr.ModelRequest([message], [message], (), tr.RequestParams(), output=output)
    if native:
        assert (await model.reply(request, lambda text: None)).text == "fine"
        assert model.requests[0].output == output
    else:
        with pytest.raises(RequestViolation, match="does not say supports_structured_output"):
            await model.reply(request, lambda text: None)
