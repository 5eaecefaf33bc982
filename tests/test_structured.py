"""`agent.structured`: a turn that ends in a value, or says why it has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import attrs
import pydantic
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call

SUNNY = '{"city": "Oslo", "degrees": 3}'


class Weather(pydantic.BaseModel):
    city: str
    degrees: float


async def look(city: str) -> str:
    return f"sun in {city}"


def agent_of(
    replies: Sequence[ScriptItem], *, native: bool = True, policy: Any = "auto", **options: Any
) -> tuple[tr.ToolAgent, ScriptedModel]:
    scripted = ScriptedModel(replies, supports_structured_output=native, structured_policy=policy)
    options.setdefault("tools", [look])
    return tr.ToolAgent("weather", model=scripted, **options), scripted


def outputs(model: ScriptedModel) -> list[str | None]:
    return [request.output.name if request.output else None for request in model.requests]


def offered(model: ScriptedModel) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in model.requests]


def marks(messages: Sequence[tr.Message]) -> list[object]:
    return [message.meta.get("structured_output") for message in messages]


# --- the value ------------------------------------------------------------------


async def test_the_value_and_the_message_are_returned() -> None:
    agent, model = agent_of([call("look", city="Oslo"), SUNNY])
    answer = await agent.structured(Weather, "How is it in Oslo?")
    assert answer.value == Weather(city="Oslo", degrees=3)
    assert answer.message == agent.history[-1]
    assert answer.message.text == SUNNY
    assert outputs(model) == ["Weather", "Weather"]
    last = agent.last_turn
    assert last is not None
    assert last.end_reason is tr.EndReason.ANSWERED


async def test_a_raw_schema_gives_plain_json() -> None:
    pytest.importorskip("jsonschema")
    agent, model = agent_of(["[1, 2.5]"], tools=())
    schema = {"type": "array", "items": {"type": "number"}, "title": "Some numbers"}
    answer = await agent.structured(schema, "Two numbers?")
    assert answer.value == [1, 2.5]
    assert model.requests[0].output == tr.OutputFormat("Some_numbers", schema, True)


async def test_a_model_that_cannot_be_held_to_a_schema_reads_it_in_its_instruction() -> None:
    agent, model = agent_of([SUNNY], native=False, instruction="Be brief.")
    answer = await agent.structured(Weather, "Oslo?")
    assert answer.value.degrees == 3
    (request,) = model.requests
    assert request.output is None
    assert request.instruction is not None
    assert request.instruction.startswith("Be brief.\n\nYour final answer must be JSON")
    assert '"degrees"' in request.instruction
    # The conversation is what was said.
    assert [message.text for message in agent.history] == ["Oslo?", SUNNY]


async def test_a_turn_with_an_output_gives_it_after_its_end() -> None:
    agent, _ = agent_of([call("look", city="Oslo"), SUNNY])
    async with agent.turn("Oslo?", output=Weather) as runner:
        with pytest.raises(tr.UsageError, match="no answer \\(yet"):
            _ = runner.output
        texts = [message.text async for message in runner]
        assert texts == ["", SUNNY]
        assert runner.output == Weather(city="Oslo", degrees=3)
    async with agent.turn("And?") as runner:
        with pytest.raises(tr.UsageError, match="none was asked for"):
            _ = runner.output


async def test_without_history_the_conversation_stays_as_it_was() -> None:
    agent, model = agent_of(["no", SUNNY])
    params = tr.RequestParams(use_history=False)
    answer = await agent.structured(Weather, "Oslo?", params=params)
    assert answer.value.city == "Oslo"
    assert agent.history == ()
    assert len(model.requests[1].history) == 3


async def test_type_checkers_know_the_value() -> None:
    agent, _ = agent_of([SUNNY, '{"value": [1]}', '{"value": "a"}', '{"value": 3}'], tools=())
    assert_type(await agent.structured(Weather, "?"), tr.Structured[Weather])
    assert_type((await agent.structured(list[int], "?")).value, list[int])
    assert_type((await agent.structured(int | str, "?")).value, Any)
    assert_type((await agent.structured({"type": "object"}, "?")).value, Any)


# --- answers that do not fit ----------------------------------------------------


async def test_an_answer_that_does_not_fit_goes_back_with_what_is_wrong() -> None:
    agent, model = agent_of(['{"city": "Oslo"}', "It is 3 degrees.", SUNNY])
    async with agent.turn("Oslo?", output=Weather) as runner:
        texts = [message.text async for message in runner]
        assert runner.iteration == 2
        assert runner.output.degrees == 3
    assert texts == ['{"city": "Oslo"}', "It is 3 degrees.", SUNNY]
    first, second = agent.history[2], agent.history[4]
    assert marks(agent.history) == [None, None, "refused", None, "refused", None]
    assert "degrees: Field required" in first.text
    assert "not JSON" in second.text
    assert [tuple(request.delta) for request in model.requests[1:]] == [(first,), (second,)]
    assert outputs(model) == ["Weather"] * 3
    tr.check_history(agent.history)


@pytest.mark.parametrize("retries", [0, 1, 2])
async def test_past_the_retries_the_turn_fails_and_says_what_came(retries: int) -> None:
    agent, model = agent_of(["no"] * 4)
    with pytest.raises(tr.StructuredOutputError, match=r"Weather.*\n- the answer is not JSON") as e:
        await agent.structured(Weather, "Oslo?", retries=retries)
    error = e.value
    assert (model.calls, error.attempts) == (retries + 1, retries + 1)
    assert error.end_reason is tr.EndReason.FAILED
    assert error.message == agent.history[-1]
    assert error.problems == ("the answer is not JSON: Expecting value at line 1 column 1",)
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.FAILED
    tr.check_history(agent.history)
    assert not agent.can_resume
    agent.model = ScriptedModel(["fine"])
    assert (await agent.generate("never mind")).text == "fine"


async def test_an_answer_sent_back_counts_as_an_iteration_and_the_cap_stops_it() -> None:
    agent, model = agent_of(["no"] * 4)
    params = tr.RequestParams(max_iterations=1)
    with pytest.raises(tr.StructuredOutputError, match="cap") as e:
        await agent.structured(Weather, "Oslo?", params=params, retries=9)
    assert model.calls == 2
    assert (e.value.end_reason, e.value.attempts) == (tr.EndReason.MAX_ITERATIONS, 2)
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.MAX_ITERATIONS
    assert [message.text for message in agent.history][-1] == "no"


async def test_calls_at_the_cap_end_without_an_answer() -> None:
    agent, _ = agent_of([call("look", city="Oslo")] * 3)
    params = tr.RequestParams(max_iterations=1)
    with pytest.raises(tr.StructuredOutputError, match="max_iterations") as e:
        await agent.structured(Weather, "Oslo?", params=params)
    assert (e.value.end_reason, e.value.attempts) == (tr.EndReason.MAX_ITERATIONS, 0)
    assert e.value.message is not None
    assert e.value.message.tool_calls
    tr.check_history(agent.history)


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (tr.StopReason.MAX_TOKENS, tr.EndReason.MAX_TOKENS),
        (tr.StopReason.SAFETY, tr.EndReason.SAFETY),
        (tr.StopReason.ERROR, tr.EndReason.FAILED),
        (tr.StopReason.TIMEOUT, tr.EndReason.FAILED),
        (tr.StopReason.CANCELLED, tr.EndReason.FAILED),
    ],
)
async def test_a_reply_that_was_cut_is_not_read(stop: tr.StopReason, reason: tr.EndReason) -> None:
    completed: list[tr.Message] = []

    async def complete(runner: tr.ToolRunner, message: tr.Message) -> None:
        completed.append(message)

    journal = tr.MemoryJournal()
    agent, model = agent_of(
        [tr.Message.assistant(SUNNY, stop_reason=stop)],
        hooks=tr.ToolRunnerHooks(after_turn_complete=complete),
        journal=journal,
        session="s",
    )
    async with agent:
        with pytest.raises(tr.StructuredOutputError, match=f"stopped with '{stop.value}'") as e:
            await agent.structured(Weather, "Oslo?")
        assert agent.last_turn is not None
        assert agent.last_turn.end_reason is reason
    assert (e.value.end_reason, e.value.problems, model.calls) == (reason, (), 1)
    assert e.value.message == agent.history[-1]
    assert journal.stored("s")[-1] == r.TurnEnded(1, reason)
    assert completed == []  # it is for turns that return a message


async def test_what_a_validator_raises_leaves_bare() -> None:
    class Odd(pydantic.BaseModel):
        city: str

        @pydantic.field_validator("city")
        @classmethod
        def explode(cls, value: str) -> str:
            raise RuntimeError("out of cheese")

    agent, _ = agent_of(['{"city": "Oslo"}'])
    with pytest.raises(RuntimeError, match="cheese"):
        await agent.structured(Odd, "Oslo?")
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.FAILED


async def test_hooks_see_refused_answers_and_may_add_to_what_goes_back() -> None:
    seen: list[tuple[int, str]] = []

    async def after(runner: tr.ToolRunner, message: tr.Message) -> None:
        seen.append((runner.iteration, message.text))
        if message.text == "no":
            runner.append_messages("It is about Oslo, mind.")

    agent, model = agent_of(["no", SUNNY], hooks=tr.ToolRunnerHooks(after_llm_call=after))
    await agent.structured(Weather, "Oslo?")
    assert seen == [(0, "no"), (1, SUNNY)]
    assert [message.text for message in model.requests[1].delta][1:] == ["It is about Oslo, mind."]


async def test_a_turn_that_is_suspended_goes_on_with_decisions() -> None:
    agent, model = agent_of(
        [call("look", id="c1", city="Oslo"), SUNNY], tools=[tr.tool(look, needs_approval=True)]
    )
    with pytest.raises(tr.StructuredOutputError, match="waits for decisions") as e:
        await agent.structured(Weather, "Oslo?")
    assert e.value.end_reason is tr.EndReason.SUSPENDED
    assert e.value.message is not None
    assert e.value.message.tool_calls
    answer = await agent.resume_structured(Weather, decisions={"c1": tr.Approve()})
    assert answer.value.city == "Oslo"
    assert model.calls == 2


async def test_a_limit_ends_it_without_a_value() -> None:
    agent, model = agent_of([call("look", city="Oslo"), SUNNY])
    with tr.limits(model_calls=1), pytest.raises(tr.StructuredOutputError, match="limit") as e:
        await agent.structured(Weather, "Oslo?")
    assert e.value.end_reason is tr.EndReason.LIMIT
    assert model.calls == 1
    assert (await agent.resume_structured(Weather)).value.city == "Oslo"


async def test_a_limit_of_seconds_ends_it_without_a_value(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slow = tr.tool(look, name="look")

    async def hang(request: tr.ModelRequest) -> object:
        await trio.sleep(60)
        return SUNNY

    agent, _ = agent_of([call("look", city="Oslo"), hang, SUNNY], tools=[slow])
    with tr.limits(seconds=1), pytest.raises(tr.StructuredOutputError) as e:
        await agent.structured(Weather, "Oslo?")
    assert e.value.end_reason is tr.EndReason.LIMIT
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.LIMIT
    assert (await agent.resume_structured(Weather)).value.city == "Oslo"


@pytest.mark.parametrize("mode", ["passthrough", "selectable"])
async def test_results_are_not_passed_through_where_a_value_is_wanted(mode: Any) -> None:
    agent, model = agent_of([call("look", city="Oslo"), SUNNY])
    params = tr.RequestParams(tool_result_mode=mode)
    answer = await agent.structured(Weather, "Oslo?", params=params)
    assert answer.value.city == "Oslo"
    assert model.calls == 2


# --- policies -------------------------------------------------------------------


async def test_always_shows_the_schema_with_the_tools() -> None:
    agent, model = agent_of([call("look", city="Oslo"), SUNNY])
    await agent.structured(Weather, "Oslo?", policy="always")
    assert outputs(model) == ["Weather"] * 2
    assert offered(model) == [["look"]] * 2


async def test_no_tools_offers_none_for_the_whole_turn() -> None:
    agent, model = agent_of([call("look", city="Oslo"), SUNNY])
    await agent.structured(Weather, "Oslo?", policy="no_tools")
    assert outputs(model) == ["Weather"] * 2
    assert offered(model) == [[], []]
    (result,) = agent.history[2].tool_results
    assert result.status is tr.CallStatus.UNAVAILABLE


async def test_defer_withholds_the_schema_until_there_are_results() -> None:
    agent, model = agent_of([call("look", city="Oslo"), call("look", city="Rome"), SUNNY])
    await agent.structured(Weather, "Oslo?", policy="defer")
    assert outputs(model) == [None, "Weather", "Weather"]
    assert offered(model) == [["look"]] * 3


async def test_defer_asks_once_more_without_tools_where_there_were_no_results() -> None:
    agent, model = agent_of(["It is 3 degrees in Oslo.", "no", SUNNY])
    async with agent.turn(
        "Oslo?", output=Weather, params=tr.RequestParams(structured_policy="defer")
    ) as runner:
        await runner.until_done()
        assert runner.iteration == 2  # every such call counts
    assert outputs(model) == [None, "Weather", "Weather"]
    assert offered(model) == [["look"], [], []]
    assert marks(agent.history) == [None, None, "asked", None, "refused", None]


async def test_defer_asks_also_for_an_answer_that_would_have_fitted_by_chance() -> None:
    agent, model = agent_of([SUNNY, SUNNY])
    await agent.structured(Weather, "Oslo?", policy="defer")
    assert model.calls == 2


async def test_defer_without_tools_is_one_call() -> None:
    agent, model = agent_of([SUNNY], tools=())
    await agent.structured(Weather, "Oslo?", policy="defer")
    assert outputs(model) == ["Weather"]


async def test_the_one_more_call_of_defer_counts_against_the_cap() -> None:
    agent, model = agent_of(["It is 3 degrees."])
    params = tr.RequestParams(max_iterations=0)
    with pytest.raises(tr.StructuredOutputError) as e:
        await agent.structured(Weather, "Oslo?", policy="defer", params=params)
    assert (e.value.end_reason, model.calls) == (tr.EndReason.MAX_ITERATIONS, 1)


async def test_a_paused_reply_goes_back_with_the_schema() -> None:
    paused = tr.Message.assistant("thinking", stop_reason=tr.StopReason.PAUSE)
    agent, model = agent_of([call("look", city="Oslo"), paused, SUNNY])
    await agent.structured(Weather, "Oslo?", policy="defer")
    assert outputs(model) == [None, "Weather", "Weather"]


@pytest.mark.parametrize(("own", "first"), [("defer", None), ("always", "Weather")])
async def test_auto_is_what_the_model_says(own: str, first: str | None) -> None:
    agent, model = agent_of([call("look", city="Oslo"), SUNNY], policy=own)
    await agent.structured(Weather, "Oslo?")
    assert outputs(model)[0] == first


async def test_a_models_policy_that_is_none_is_refused() -> None:
    agent, _ = agent_of([SUNNY], policy="sometimes")
    with pytest.raises(ValueError, match="structured_policy is 'sometimes'"):
        await agent.structured(Weather, "Oslo?")
    assert not agent.conversation.is_busy


# --- going on -------------------------------------------------------------------


class Rebooted:
    """An agent that can be made anew on one session."""

    def __init__(self) -> None:
        self.journal = tr.MemoryJournal()
        self.ran: list[str] = []

    async def look(self, city: str) -> str:
        self.ran.append(city)
        return f"sun in {city}"

    def agent(self, *replies: ScriptItem) -> tr.ToolAgent:
        return tr.ToolAgent(
            "weather",
            model=ScriptedModel(replies, supports_structured_output=True),
            tools=[self.look],
            journal=self.journal,
            session="s",
        )

    async def lay(self, records: Sequence[r.Record]) -> None:
        session = await self.journal.open("s")
        session.append(records)
        await session.aclose()


async def test_a_cancelled_turn_goes_on_and_runs_no_tool_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = Rebooted()
    agent = world.agent()

    async def hang(request: tr.ModelRequest) -> object:
        await trio.sleep_forever()

    agent.model = ScriptedModel([call("look", city="Oslo"), hang, SUNNY])
    async with agent:
        with trio.move_on_after(1):
            await agent.structured(Weather, "Oslo?")
        answer = await agent.resume_structured(Weather)
    assert answer.value == Weather(city="Oslo", degrees=3)
    assert world.ran == ["Oslo"]


async def test_a_crash_at_any_record_goes_on_to_the_same_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Retries before the crash count, and what was refused is not asked for again."""
    script = [call("look", id="c1", city="Oslo"), "no", '{"city": "Oslo"}', SUNNY]
    lived = Rebooted()
    async with lived.agent(*script) as agent:
        await agent.structured(Weather, "Oslo?")
    records = lived.journal.stored("s")
    whole = agent.history
    for count in range(2, len(records)):
        world = Rebooted()
        await world.lay(records[:count])
        asked = sum(type(each) is r.ModelFinished for each in records[:count])
        async with world.agent(*script[asked:]) as agent:
            answer = await agent.resume_structured(Weather, unknown=rerun)
            assert answer.value == Weather(city="Oslo", degrees=3)
            assert agent.history == whole, count
            with_start = sum(type(each) is r.ToolFinished for each in records[:count])
            assert len(world.ran) == 1 - with_start


async def rerun(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
    return "rerun"


async def test_retries_before_a_crash_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lived = Rebooted()
    async with lived.agent("no", "no", "no") as agent:
        with pytest.raises(tr.StructuredOutputError):
            await agent.structured(Weather, "Oslo?")
    records = lived.journal.stored("s")
    for cut in (-1, -2):  # the end of the turn is missing; and the third answer
        world = Rebooted()
        await world.lay(records[:cut])
        async with world.agent("no") as agent:
            with pytest.raises(tr.StructuredOutputError) as e:
                await agent.resume_structured(Weather)
            assert e.value.attempts == 3
            assert len(agent.history) == 6


async def test_defer_goes_on_after_a_crash_where_it_was(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lived = Rebooted()
    async with lived.agent("It is 3 degrees.", SUNNY) as agent:
        await agent.structured(Weather, "Oslo?", policy="defer")
    records, whole = lived.journal.stored("s"), agent.history
    cuts = [
        n
        for n in range(2, len(records))
        if type(records[n - 1]) in (r.ModelFinished, r.AnswerRefused)
    ]
    assert len(cuts) == 3
    for count in cuts:
        world = Rebooted()
        await world.lay(records[:count])
        async with world.agent(SUNNY) as agent:
            answer = await agent.resume_structured(Weather, policy="defer")
            assert answer.value.city == "Oslo"
            assert agent.history == whole


async def test_an_answer_that_was_there_when_the_cancel_came_is_read_without_the_model() -> None:
    world = Rebooted()
    world.journal = tr.MemoryJournal()
    async with world.agent(SUNNY) as agent:
        with trio.CancelScope() as scope:

            async def cancel(runner: tr.ToolRunner, message: tr.Message) -> None:
                scope.cancel()
                await trio.lowlevel.checkpoint()

            await agent.structured(
                Weather, "Oslo?", hooks=tr.ToolRunnerHooks(after_llm_call=cancel)
            )
        assert scope.cancelled_caught
        assert agent.last_turn is not None
        assert agent.last_turn.end_reason is tr.EndReason.ANSWERED
        answer = await agent.resume_structured(Weather)
        assert answer.value == Weather(city="Oslo", degrees=3)
        assert answer.message == agent.history[-1]

        @attrs.frozen
        class Else:
            name: str

        with pytest.raises(tr.StructuredOutputError, match="ended answered"):
            await agent.resume_structured(Else)


async def test_a_cancel_after_a_refused_answer_can_be_gone_on_with() -> None:
    """The refusal is decided with the reply, so that no await comes between them."""
    agent, _ = agent_of(["no", SUNNY])
    with trio.CancelScope() as scope:

        async def cancel(runner: tr.ToolRunner, message: tr.Message) -> None:
            scope.cancel()
            await trio.lowlevel.checkpoint()

        await agent.structured(Weather, "Oslo?", hooks=tr.ToolRunnerHooks(after_llm_call=cancel))
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.INTERRUPTED
    assert (await agent.resume_structured(Weather)).value.city == "Oslo"


async def test_decisions_on_an_answered_turn_are_refused() -> None:
    agent, _ = agent_of([SUNNY])
    await agent.structured(Weather, "Oslo?")
    with pytest.raises(tr.DecisionError, match="waits for no decision, and got some on 'c1'"):
        await agent.resume_structured(Weather, decisions={"c1": tr.Deny()})
    assert (await agent.resume_structured(Weather, decisions={})).value.city == "Oslo"


async def test_there_may_be_nothing_to_go_on_with() -> None:
    agent, _ = agent_of([])
    with pytest.raises(tr.NothingToResumeError):
        await agent.resume_structured(Weather)


# --- what is refused at once ----------------------------------------------------


@pytest.mark.parametrize("output", [3, "Weather", object(), print, [1]])
async def test_an_output_that_is_neither_type_nor_schema_is_refused(output: object) -> None:
    agent, model = agent_of([SUNNY])
    with pytest.raises(TypeError, match="has no JSON Schema"):
        await agent.structured(output, "Oslo?")
    assert (model.calls, agent.history) == (0, ())


async def test_wrong_retries_and_policies_are_refused() -> None:
    agent, _ = agent_of([SUNNY])
    wrong: Any = True
    with pytest.raises(TypeError, match="retries are True"):
        await agent.structured(Weather, "Oslo?", retries=wrong)
    with pytest.raises(ValueError, match="retries are -1"):
        agent.turn("Oslo?", output=Weather, output_retries=-1)
    wrong = "later"
    with pytest.raises(ValueError, match="structured_policy is 'later'"):
        await agent.structured(Weather, "Oslo?", policy=wrong)


async def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    agent, _ = agent_of([SUNNY])
    with pytest.raises(ImportError, match=r"pip install trio-runner\[jsonschema\]"):
        await agent.structured({"type": "object"}, "Oslo?")


async def test_observers_are_told_of_refused_answers() -> None:
    class Told:
        def __init__(self) -> None:
            self.events: list[ev.Event] = []

        def on_event(self, event: ev.Event) -> None:
            self.events.append(event)

    told = Told()
    agent, _ = agent_of(["no", SUNNY])
    await agent.structured(Weather, "Oslo?", observers=[told])
    refused = [event for event in told.events if type(event) is ev.AnswerRefused]
    assert [(event.step, event.messages) for event in refused] == [(0, (agent.history[2],))]
