"""Agents as tools: one call is one turn on a clone, and its end is the call's result."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Self

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import Scripted, ScriptedModel, ScriptItem, call


class Events:
    def __init__(self) -> None:
        self.all: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.all.append(event)

    @property
    def nested(self) -> list[ev.NestedEvent]:
        return [event for event in self.all if type(event) is ev.NestedEvent]


def agent_of(name: str, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent(name, model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def told(result: tr.ToolResult) -> dict[str, Any]:
    return dict(result.meta["agent_turn"])


def asking(name: str = "bob", **arguments: Any) -> tr.ToolCall:
    return call(f"agent__{name}", id="c1", **(arguments or {"message": "the question"}))


# --- one call -------------------------------------------------------------------


async def test_the_answer_of_the_child_is_the_result() -> None:
    child = agent_of(
        "bob",
        tr.Message.assistant("forty-two", usage=tr.Usage(5, 2, 1)),
        instruction="Be brief.",
        params=tr.RequestParams(model_settings={"temperature": 0}),
    )
    agent = agent_of("alice", asking(), "Bob says: forty-two", tools=[child])
    reply = await agent.generate("go")
    assert reply.text == "Bob says: forty-two"
    (result,) = results_of(agent)
    assert (result.status, result.text, result.name) == ("ok", "forty-two", "agent__bob")
    assert told(result) == {
        "agent": "bob",
        "session": None,
        "end_reason": "answered",
        "usage": {"input_tokens": 5, "output_tokens": 2, "cached_input_tokens": 1},
    }
    model: Any = child.model
    (request,) = model.requests
    assert [message.text for message in request.history] == ["the question"]
    assert (request.instruction, request.params.model_settings) == ("Be brief.", {"temperature": 0})


async def test_the_child_itself_is_not_touched_and_sends_its_templates() -> None:
    child = agent_of("bob", "fine", history=[tr.Message.user("template", template=True)])
    agent = agent_of("alice", asking(), "done", tools=[child])
    before = child.history
    await agent.generate("go")
    assert child.history == before
    assert child.last_turn is None
    model: Any = child.model
    assert [message.text for message in model.requests[0].history] == ["template", "the question"]


async def test_calls_of_one_agent_run_side_by_side(autojump_clock: trio.testing.MockClock) -> None:
    def echo(request: tr.ModelRequest) -> Scripted:
        return Scripted(f"re: {request.history[-1].text}", delay=10)

    child = agent_of("bob", *[echo] * 3)
    asks = [call("agent__bob", id=f"c{n}", message=str(n)) for n in range(3)]
    agent = agent_of("alice", asks, "done", tools=[child])
    began = trio.current_time()
    await agent.generate("go")
    assert trio.current_time() - began == 10
    assert [result.text for result in results_of(agent)] == ["re: 0", "re: 1", "re: 2"]


async def boom() -> str:
    raise tr.FatalToolError("the building is on fire")


async def work() -> str:
    return "worked"


ENDS: dict[str, tuple[Sequence[ScriptItem], dict[str, Any], str, Sequence[str]]] = {
    "model error": ([ValueError("no credit")], {}, "failed", ["ValueError: no credit"]),
    "error after words": (
        [tr.Message.assistant("let me see", tool_calls=[call("work", id="w")]), ValueError("gone")],
        {},
        "failed",
        ["ValueError: gone", "The last that it said: let me see"],
    ),
    "cap": (
        [tr.Message.assistant("one more", tool_calls=[call("work", id="w")])],
        {"params": tr.RequestParams(max_iterations=0)},
        "max_iterations",
        ["The last that it said: one more"],
    ),
    "output limit": (
        [tr.Message.assistant("half a sen", stop_reason=tr.StopReason.MAX_TOKENS)],
        {},
        "max_tokens",
        ["half a sen"],
    ),
    "refusal": (
        [tr.Message.assistant("no", stop_reason=tr.StopReason.SAFETY)],
        {},
        "safety",
        ["The last that it said: no"],
    ),
    "fatal tool": ([call("boom", id="b")], {}, "failed", ["FatalToolError", "on fire"]),
    "time": (
        [Scripted("late", delay=60)],
        {"params": tr.RequestParams(turn_timeout=3)},
        "timed_out",
        ["TurnTimeoutError"],
    ),
}


@pytest.mark.parametrize("end", ENDS)
async def test_any_end_but_an_answer_is_an_error_that_names_it(
    end: str, autojump_clock: trio.testing.MockClock
) -> None:
    replies, options, reason, words = ENDS[end]
    child = agent_of("bob", *replies, tools=[work, boom], **options)
    agent = agent_of("alice", asking(), "I see", tools=[child])
    reply = await agent.generate("go")
    assert reply.text == "I see"
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.ERROR
    assert f"Agent 'bob' gave no answer: its turn ended {reason}" in result.text
    assert [word for word in words if word not in result.text] == []
    assert told(result)["end_reason"] == reason


async def test_a_passed_through_answer_is_an_answer() -> None:
    child = agent_of(
        "bob",
        call("work", id="w"),
        tools=[work],
        params=tr.RequestParams(tool_result_mode="passthrough"),
    )
    agent = agent_of("alice", asking(), "done", tools=[child])
    await agent.generate("go")
    (result,) = results_of(agent)
    assert (result.status, result.text) == ("ok", "worked")
    assert told(result)["end_reason"] == "passed_through"


@pytest.mark.parametrize("arguments", [{"message": " "}, {"message": 3}, {"mesage": "oops"}])
async def test_a_call_that_asks_nothing_is_told_what_is_wrong(arguments: dict[str, Any]) -> None:
    child = agent_of("bob")
    agent = agent_of("alice", asking(**arguments), "done", tools=[child])
    await agent.generate("go")
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.INVALID_ARGUMENTS
    assert "message" in result.text


async def test_a_schema_of_ones_own_sends_its_arguments_or_what_is_made_of_them() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    child = agent_of("bob", "one", "two")
    agent = agent_of(
        "alice", [call("plain", id="c1", city="Oslo"), call("worded", id="c2", city="Rome")], "done"
    )
    agent.add_agent_tool(child, "plain", input_schema=schema, sequential=True)
    agent.add_agent_tool(
        child,
        "worded",
        "Knows the weather.",
        input_schema=schema,
        prompt=lambda arguments: f"The weather in {arguments['city']}?",
    )
    assert [dict(tool.input_schema) for tool in agent.tools] == [schema, schema]
    assert agent.tools[1].description == "Knows the weather."
    await agent.generate("go")
    model: Any = child.model
    asked = [request.history[-1].text for request in model.requests]
    assert asked == ['{"city": "Oslo"}', "The weather in Rome?"]


async def test_the_tools_of_one_turn_may_be_agents_too() -> None:
    agent = agent_of("alice", asking(), "done")
    await agent.generate("go", tools=[agent_of("bob", "hello")])
    assert [result.text for result in results_of(agent)] == ["hello"]


# --- what reaches the turn around it ----------------------------------------------


async def test_events_of_the_child_reach_the_parent_marked() -> None:
    events, own = Events(), Events()
    leaf = agent_of("carol", Scripted(deltas=["deep ", "down"]))
    child = agent_of("bob", asking("carol"), "from bob", tools=[leaf], observers=[own])
    agent = agent_of("alice", asking("bob"), "done", tools=[child])
    await agent.generate("go", observers=[events])
    assert {(each.agent, each.depth, each.call_id) for each in events.nested} == {
        ("bob", 1, "c1"),
        ("carol", 2, "c1"),
    }
    deltas = [each.event for each in events.nested if type(each.event) is ev.TextDelta]
    assert [delta.text for delta in deltas] == ["deep ", "down"]
    assert [type(each.event) for each in events.nested if each.depth == 1] == [
        type(event) for event in own.all if type(event) is not ev.NestedEvent
    ]
    assert [event.number for event in events.all] == list(range(len(events.all)))


async def test_usage_is_summed_over_all_levels_and_counted_once() -> None:
    def said(text: str, tokens: int) -> tr.Message:
        return tr.Message.assistant(text, usage=tr.Usage(tokens, 1))

    def asked(name: str, tokens: int) -> tr.Message:
        return tr.Message.assistant(tool_calls=[asking(name)], usage=tr.Usage(tokens, 1))

    leaf = agent_of("carol", said("c", 1000))
    child = agent_of("bob", asked("carol", 100), said("b", 200), tools=[leaf])
    agent = agent_of("alice", asked("bob", 10), said("a", 20), tools=[child])
    async with agent.turn("go") as runner:
        async for _ in runner:
            pass
        assert runner.usage == tr.Usage(30, 2)
        assert runner.nested_usage == tr.Usage(1300, 3)
    last = agent.last_turn
    assert last is not None
    assert (last.usage, last.nested_usage) == (tr.Usage(30, 2), tr.Usage(1300, 3))
    assert last.total_usage == tr.Usage(1330, 5)


@pytest.mark.parametrize("meta", [3, {}, {"usage": 7}, {"usage": {"input_tokens": "many"}}])
async def test_what_other_tools_write_in_their_meta_is_no_usage(meta: object) -> None:
    async def odd() -> tr.ToolResult:
        return tr.ToolResult(content="odd", meta={"agent_turn": meta})

    agent = agent_of("alice", call("odd", id="c"), "done", tools=[odd])
    await agent.generate("go")
    assert agent.last_turn is not None
    assert agent.last_turn.nested_usage == tr.Usage()


# --- being stopped ----------------------------------------------------------------


async def test_a_cancel_reaches_the_child_and_both_sessions_say_so(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal()
    first = tr.Message.assistant(tool_calls=[call("slow", id="s1")], usage=tr.Usage(7, 3))
    child = agent_of("bob", first, tools=[slow])
    agent = agent_of("alice", asking(), tools=[child], journal=journal, session="s")
    async with agent:
        with trio.move_on_after(1):
            await agent.generate("go")
        last = agent.last_turn
    assert last is not None
    assert (last.end_reason, last.nested_usage) == ("interrupted", tr.Usage(7, 3))
    (result,) = results_of(agent)
    assert (result.status, told(result)["end_reason"]) == ("interrupted", "interrupted")
    kept = tr.fold(journal.stored(told(result)["session"]))
    assert kept.turn is not None
    assert kept.turn.end_reason is tr.EndReason.INTERRUPTED
    assert [each.status for m in kept.messages for each in m.tool_results] == ["interrupted"]
    stored = tr.fold(journal.stored("s"))
    assert stored.messages == agent.history


async def slow() -> str:
    await trio.sleep(60)
    return "slow"


@pytest.mark.parametrize("how", ["timeout", "cancel_call"])
async def test_a_call_that_is_stopped_alone_names_its_turn(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    child = agent_of("bob", call("slow", id="s1"), tools=[slow])
    agent = agent_of("alice", asking(), "never mind")
    agent.add_agent_tool(child, timeout=2 if how == "timeout" else None)

    async with agent.turn("go") as runner, trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.sleep(1)
            if how == "cancel_call":
                assert runner.cancel_call("c1")

        nursery.start_soon(stop)
        assert (await runner.until_done()).text == "never mind"
    (result,) = results_of(agent)
    assert result.status == ("timed_out" if how == "timeout" else "cancelled")
    assert (told(result)["agent"], told(result)["end_reason"]) == ("bob", "interrupted")


class SlowToSummarise:
    async def summarise(self, request: tr.SummaryRequest) -> str:
        await trio.sleep(30)
        return "a summary"


@pytest.mark.parametrize("how", ["cancel", "turn_timeout", "timeout", "cancel_call"])
async def test_a_call_that_is_cut_behind_the_answer_of_its_turn_keeps_the_answer(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    answer = tr.Message.assistant("the answer", usage=tr.Usage(900, 1))
    compaction = tr.Compaction(context_window=1000, keep_turns=0)
    child = agent_of("bob", answer, compaction=compaction, summarizer=SlowToSummarise())
    agent = agent_of("alice", asking(), "done")
    agent.add_agent_tool(child, timeout=2 if how == "timeout" else None)
    params = tr.RequestParams(turn_timeout=2) if how == "turn_timeout" else None

    runner = agent.turn("go", params=params)
    with trio.move_on_after(2 if how == "cancel" else 20) as scope:
        async with runner, trio.open_nursery() as nursery:

            async def stop() -> None:
                await trio.sleep(1)
                if how == "cancel_call":
                    assert runner.cancel_call("c1")

            nursery.start_soon(stop)
            with contextlib.suppress(tr.TurnTimeoutError):
                await runner.until_done()
    assert trio.current_time() == (1 if how == "cancel_call" else 2)
    assert scope.cancelled_caught == (how == "cancel")
    ends = {"cancel": "interrupted", "turn_timeout": "timed_out"}
    assert runner.end_reason == ends.get(how, "answered")
    (result,) = results_of(agent)
    assert (result.status, result.text) == ("ok", "the answer")
    assert told(result)["end_reason"] == "answered"
    assert runner.nested_usage == tr.Usage(900, 1)


async def test_what_follows_the_answer_may_fail_and_the_result_says_which_it_was() -> None:
    async def check(runner: tr.ToolRunner, message: tr.Message) -> None:
        raise ValueError("not good enough")

    child = agent_of("bob", "forty", hooks=tr.ToolRunnerHooks(after_turn_complete=check))
    agent = agent_of("alice", asking(), "done", tools=[child])
    await agent.generate("go")
    (result,) = results_of(agent)
    assert (result.status, told(result)["end_reason"]) == ("error", "answered")
    assert result.text == (
        "Agent 'bob' has answered, and what follows its answer failed. "
        "ValueError: not good enough\nThe last that it said: forty"
    )


class BadToClose:
    """A toolset that fails when it is closed; or to be opened."""

    name = "bad"

    def __init__(self, *, opens: bool = True) -> None:
        self.opens = opens

    async def list_tools(self) -> Sequence[tr.Tool]:
        return ()

    async def __aenter__(self) -> Self:
        if not self.opens:
            raise OSError("no such server")
        return self

    async def __aexit__(self, *_: object) -> None:
        raise OSError("the server is gone")


async def test_a_child_that_cannot_be_opened_is_an_error_result() -> None:
    agent = agent_of("alice", asking(), "done")
    await agent.generate("go", tools=[agent_of("bob", tools=[BadToClose(opens=False)])])
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.ERROR
    assert "Agent 'bob' could not be asked. OSError: no such server" in result.text
    assert told(result)["end_reason"] is None


async def test_an_error_of_the_close_is_told_and_the_answer_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Journal(tr.MemoryJournal):
        async def open(self, session_id: str) -> Any:
            session = await super().open(session_id)

            async def aclose() -> None:
                self._free(session)
                raise tr.JournalError("the disk is gone")

            session.aclose = aclose
            return session

    events = Events()
    child = agent_of("bob", "the answer", journal=Journal(), session="own")
    agent = agent_of("alice", asking(), "done", tools=[child])
    with caplog.at_level(logging.ERROR):
        await agent.generate("go", observers=[events])
    assert [result.text for result in results_of(agent)] == ["the answer"]
    errors = [event.error for event in events.all if type(event) is ev.ErrorSuppressed]
    assert [type(error) for error in errors] == [tr.JournalError]


# --- the tool itself --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weather", "agent__weather"),
        ("my agent!", "agent__my_agent_"),
        ("天気", "agent_____"),
        ("x" * 80, "agent__" + "x" * 48 + "_"),
    ],
)
def test_the_name_is_one_that_providers_take(name: str, expected: str) -> None:
    made = tr.agent_tool(agent_of(name))
    assert made.name.startswith(expected)
    assert len(made.name) <= 64
    assert made.name == tr.agent_tool(agent_of(name)).name


def test_names_that_are_cut_alike_stay_apart() -> None:
    names = {tr.agent_tool(agent_of("x" * 80 + end)).name for end in "ab"}
    names |= {tr.agent_tool(agent_of(name)).name for name in ("天気", "天空")}
    assert len(names) == 4


@pytest.mark.parametrize(
    "bad",
    [{"child": 3}, {"max_depth": 0}, {"max_depth": True}, {"prompt": "ask"}, {"timeout": -1},
     {"name": "no blanks please"}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_at_set_up(bad: dict[str, Any]) -> None:
    options: dict[str, Any] = {"child": agent_of("bob"), **bad}
    with pytest.raises((TypeError, ValueError)):
        tr.agent_tool(**options)


def test_a_second_tool_of_a_name_needs_replace() -> None:
    agent = agent_of("alice", tools=[agent_of("bob")])
    with pytest.raises(ValueError, match="replace=True"):
        agent.add_agent_tool(agent_of("bob"))
    made = agent.add_agent_tool(agent_of("bob"), replace=True)
    assert agent.tools == (made,)


async def test_a_copy_of_the_tool_is_still_one() -> None:
    made = attrs.evolve(tr.agent_tool(agent_of("bob", "yes")), name="ask")
    agent = agent_of("alice", call("ask", id="c", message="?"), "done", tools=[made])
    await agent.generate("go")
    assert [result.text for result in results_of(agent)] == ["yes"]


async def test_a_prompt_that_says_nothing_is_told_to_the_model() -> None:
    child = agent_of("bob")
    agent = agent_of("alice", asking(), "oh")
    agent.add_agent_tool(child, prompt=lambda _: "  ")
    await agent.generate("go")
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.INVALID_ARGUMENTS
    assert "nothing to ask" in result.text


class ByHand:
    """The context of a call that no turn makes."""

    call_id = "c"
    attempt = 1
    idempotency_key = "k/1:0:c"
    arguments: tr.JSONObject = {"message": "?"}  # noqa: RUF012  read only


@pytest.mark.parametrize(("said", "status"), [("yes", "ok"), (ValueError("no"), "error")])
async def test_the_tool_may_be_called_by_hand_and_is_kept_nowhere(said: Any, status: str) -> None:
    child = agent_of("bob", said, journal=tr.MemoryJournal(), session="own")
    context: Any = ByHand()
    result: Any = await tr.agent_tool(child).call({"message": "?"}, context)
    assert result.status == status
    assert told(result)["session"] is None


async def test_a_call_by_hand_may_be_cancelled() -> None:
    child = agent_of("bob", "never")
    context: Any = ByHand()
    with trio.CancelScope() as scope:
        scope.cancel()
        await tr.agent_tool(child).call({"message": "?"}, context)
    assert scope.cancelled_caught
