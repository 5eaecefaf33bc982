"""`ToolAgent`: set-up, its tools, templates, loaded histories, `last_turn`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call


async def work(number: int = 0) -> str:
    """Work."""
    await trio.lowlevel.checkpoint()
    return f"value {number}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def model_of(agent: tr.ToolAgent) -> ScriptedModel:
    return cast("ScriptedModel", agent.model)


def shapes(messages: Sequence[tr.Message]) -> list[str]:
    return [
        "results" if message.tool_results else "calls" if message.tool_calls else message.text
        for message in messages
    ]


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def open_step(*ids: str) -> list[tr.Message]:
    return [
        tr.Message.user("q"),
        tr.Message.assistant(tool_calls=[tr.ToolCall(i, "work") for i in ids]),
    ]


# --- F3: any object with the protocol can be driven -----------------------------


async def test_the_runner_drives_any_object_with_the_protocol() -> None:
    class Tiny:
        """No base class, no model, no function tools."""

        def __init__(self) -> None:
            self.conversation = tr.Conversation()
            self.config = tr.LoopConfig()
            self.asked: list[list[str]] = []
            self.tool = tr.Tool("echo", "", {}, self.never)

        async def never(self, arguments: tr.JSONObject, context: tr.ToolContext) -> str:
            raise AssertionError("the agent's own call_tool is used")

        async def list_tools(self) -> Sequence[tr.Tool]:
            return [self.tool]

        async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
            await trio.lowlevel.checkpoint()
            self.asked.append(shapes(request.history))
            if len(self.asked) == 1:
                return tr.Message.assistant(tool_calls=[tr.ToolCall("c", "echo", {"x": 1})])
            return tr.Message.assistant("done")

        async def call_tool(
            self, planned: tr.PlannedToolCall[tr.Tool], context: tr.ToolContext
        ) -> tr.ToolResult:
            await trio.lowlevel.checkpoint()
            return tr.ToolResult(planned.call.id, planned.call.name, str(context.arguments))

    tiny = Tiny()
    agent: tr.ToolLoopAgent = tiny
    async with tr.ToolRunner(agent, "go") as runner:
        assert (await runner.until_done()).text == "done"
    assert tiny.asked == [["go"], ["go", "calls", "results"]]
    assert runner.turn_messages[2].tool_results[0].text == "{'x': 1}"


async def test_call_tool_may_be_overridden() -> None:
    class Louder(tr.ToolAgent):
        async def call_tool(
            self, planned: tr.PlannedToolCall[tr.Tool], context: tr.ToolContext
        ) -> tr.ToolResult:
            result = await super().call_tool(planned, context)
            return tr.ToolResult(content=result.text.upper())

    agent = Louder(
        "a", model=ScriptedModel([call("work", id="c1", number=2), "done"]), tools=[work]
    )
    await agent.generate("go")
    (result,) = results_of(agent)
    assert (result.call_id, result.name, result.text) == ("c1", "work", "VALUE 2")


# --- set-up ---------------------------------------------------------------------

BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "journal alone": {"journal": tr.MemoryJournal()},
    "session alone": {"session": "s"},
    "durability": {"durability": "perhaps"},
    "grace bool": {"grace": True},
    "grace negative": {"grace": -1},
    "grace infinite": {"grace": float("inf")},
    "commit_timeout": {"commit_timeout": "30"},
    "a tool that is none": {"tools": [3]},
    "two tools of one name": {"tools": [work, work]},
}


@pytest.mark.parametrize("setting", BAD_SETTINGS)
def test_what_cannot_work_is_refused_at_set_up(setting: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        agent_of(**BAD_SETTINGS[setting])


def test_a_model_without_reply_is_refused_at_set_up() -> None:
    with pytest.raises(TypeError, match="reply"):
        tr.ToolAgent("a", model=cast("Any", "gpt"))


def test_an_agent_among_the_tools_becomes_a_tool_that_asks_it() -> None:
    child = tr.ToolAgent("child", model=ScriptedModel([]))
    agent = tr.ToolAgent("a", model=ScriptedModel([]), tools=[child])
    assert [tool.name for tool in agent.tools] == ["agent__child"]


@pytest.mark.parametrize(
    "bad",
    [
        {"max_parallel_tools": 0}, {"max_parallel_tools": True}, {"tool_timeout": -1},
        {"turn_timeout": True}, {"use_history": 1}, {"parallel_tool_calls": "no"},
        {"max_result_bytes": 10}, {"max_iterations": 1.5},
    ],
)  # fmt: skip
def test_params_that_cannot_work_are_refused_at_set_up(bad: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
        tr.RequestParams(**bad)


# --- F20: tools -----------------------------------------------------------------


async def test_tools_are_added_and_removed_for_the_next_model_call() -> None:
    async def later() -> str:
        return "later ran"

    async def add(runner: tr.ToolRunner, message: tr.Message) -> None:
        if runner.iteration == 0:
            agent.add_tool(later)
            agent.remove_tool("work")

    agent = agent_of(
        call("work"), [call("later"), call("work")], "done",
        hooks=tr.ToolRunnerHooks(after_tool_call=add),
    )  # fmt: skip
    await agent.generate("go")
    offered = [[tool.name for tool in request.tools] for request in model_of(agent).requests]
    assert offered == [["work"], ["later"], ["later"]]
    assert [r.status.value for r in results_of(agent)] == ["ok", "ok", "unavailable"]


def test_a_second_tool_of_a_name_needs_replace() -> None:
    agent = agent_of()
    with pytest.raises(ValueError, match="replace=True"):
        agent.add_tool(work)
    assert agent.add_tool(tr.tool(work, description="newer"), replace=True).description == "newer"
    assert [tool.description for tool in agent.tools] == ["newer"]
    with pytest.raises(KeyError, match="nosuch"):
        agent.remove_tool("nosuch")


async def test_a_turn_may_have_tools_and_observers_of_its_own() -> None:
    kinds: list[str] = []

    class Told:
        def on_event(self, event: object) -> None:
            kinds.append(type(event).__name__)

    async def other() -> str:
        return "other ran"

    agent = agent_of([call("other"), call("work")], "done", "again")
    await agent.generate("go", tools=[other], observers=[Told()])
    assert [r.status.value for r in results_of(agent)] == ["ok", "unavailable"]
    assert kinds
    await agent.generate("go")
    assert [tool.name for tool in model_of(agent).requests[-1].tools] == ["work"]


@pytest.mark.parametrize(
    "value", [{"x": [1, None]}, [1, 2], 7, 2.5, True, tr.ToolResult(structured_content={"x": 1})]
)
async def test_data_that_a_tool_returns_is_structured_and_the_same_as_json_text(value: Any) -> None:
    async def returns() -> Any:
        return value

    agent = agent_of(call("returns"), "done", tools=[returns])
    await agent.generate("go")
    (result,) = results_of(agent)
    data = value.structured_content if type(value) is tr.ToolResult else value
    assert result.structured_content == data
    assert json.loads(result.text) == data


# --- F37: templates -------------------------------------------------------------


async def test_templates_are_sent_first_and_kept() -> None:
    front = [tr.Message.user("be brief", template=True), tr.Message.assistant("ok", template=True)]
    agent = agent_of("one", "two", "three", history=[tr.Message.user("old"), *front])
    assert shapes(agent.history) == ["be brief", "ok", "old"]
    await agent.generate("go")
    agent.clear()
    assert shapes(agent.history) == ["be brief", "ok"]
    await agent.generate("go", params=tr.RequestParams(use_history=False))
    assert shapes(model_of(agent).requests[-1].history) == ["be brief", "ok", "go"]
    await agent.generate("go")
    assert shapes(agent.history) == ["be brief", "ok", "go", "three"]


# --- F31: loaded histories, results from outside --------------------------------


async def test_loading_answers_nothing_and_keeps_the_open_step_aside() -> None:
    agent = agent_of("done")
    agent.load_history(open_step("c1"))
    assert shapes(agent.history) == ["q"]
    assert (await agent.resume()).text == "done"
    assert [r.status.value for r in results_of(agent)] == ["interrupted"]


@pytest.mark.parametrize("given", [["c1", "c2"], ["c2"], ["c2", "c1"]])
@pytest.mark.parametrize("text", ["", "and one more thing"])
async def test_results_in_the_input_answer_the_open_calls(given: list[str], text: str) -> None:
    agent = agent_of("done", history=open_step("c1", "c2"))
    results = [tr.ToolResult(i, "work", f"from outside {i}") for i in given]
    await agent.generate(tr.Message.user(text or (), tool_results=results))
    tr.check_history(agent.history)
    assert shapes(agent.history) == ["q", "calls", "results", *([text] if text else []), "done"]
    found = {r.call_id: (r.status.value, r.text) for r in results_of(agent)}
    for i in ("c1", "c2"):
        if i in given:
            assert found[i] == ("ok", f"from outside {i}")
        else:
            assert found[i][0] == "interrupted"


async def test_results_in_the_input_after_a_crash_are_matched_too() -> None:
    journal = tr.MemoryJournal()

    async def crashes() -> str:
        journal.crash()
        return "lost"

    asked = call("crashes", id="c1")
    async with agent_of(asked, "x", tools=[crashes], journal=journal, session="s") as first:
        await first.generate("go")
    async with agent_of("done", journal=journal, session="s") as agent:
        result = tr.ToolResult("c1", "crashes", "looked up by hand")
        await agent.generate(tr.Message.user(tool_results=[result]))
        assert [r.text for r in results_of(agent)] == ["looked up by hand"]
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


@pytest.mark.parametrize(
    "results",
    [
        [tr.ToolResult("nosuch", "work", "r")],
        [tr.ToolResult("c1", "work", "r"), tr.ToolResult("c1", "work", "again")],
        [tr.ToolResult("c1", "work", "r"), tr.ToolResult("nosuch", "work", "r")],
    ],
)
async def test_results_that_answer_no_open_call_are_refused(
    results: list[tr.ToolResult],
) -> None:
    agent = agent_of("done", history=open_step("c1"))
    with pytest.raises(tr.HistoryError):
        await agent.generate(tr.Message.user("x", tool_results=results))
    assert shapes(agent.history) == ["q"]
    good = tr.Message.user(tool_results=[tr.ToolResult("c1", "work", "right")])
    await agent.generate(good)
    assert [r.text for r in results_of(agent)] == ["right"]


@pytest.mark.parametrize(
    "bad", [tr.ToolResult("c1", "work", ()), tr.ToolResult("c1", "work", "\ud800")]
)
async def test_a_damaged_result_in_the_input_never_makes_the_history_invalid(
    bad: tr.ToolResult,
) -> None:
    agent = agent_of("done", "more", history=open_step("c1"))
    try:
        await agent.generate(tr.Message.user(tool_results=[bad]))
    except tr.HistoryError:  # refusing it is as good as mending it
        await agent.generate("go on")
    tr.check_history(agent.history)
    assert len(results_of(agent)) == 1


async def test_a_result_from_outside_carries_the_name_of_its_call() -> None:
    agent = agent_of("done", history=open_step("c1"))
    await agent.generate(tr.Message.user(tool_results=[tr.ToolResult("c1", content="r")]))
    (result,) = results_of(agent)
    assert (result.call_id, result.name) == ("c1", "work")


async def test_the_repair_of_a_session_is_saved_when_a_turn_starts() -> None:
    journal = tr.MemoryJournal()
    async with agent_of(OSError("gone"), journal=journal, session="s") as agent:
        agent.load_history(open_step("c1"))
        with pytest.raises(OSError, match="gone"):
            await agent.generate("go")
        tr.check_history(agent.history)
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


# --- F15 ------------------------------------------------------------------------


async def test_last_turn_is_there_after_any_end_and_not_before() -> None:
    reply = tr.Message.assistant("one", usage=tr.Usage(10, 5))
    asks = tr.Message.assistant(tool_calls=[call("work", id="c")], usage=tr.Usage(1, 2))
    agent = agent_of(asks, reply)
    assert agent.last_turn is None
    async with agent.turn("go") as runner:
        await anext(runner)
        assert agent.last_turn is None
        await runner.until_done()
    last = agent.last_turn
    assert last is not None
    assert (last.number, last.end_reason) == (1, tr.EndReason.ANSWERED)
    assert last.usage == tr.Usage(11, 7)
    assert last.messages == agent.history
    assert last.commit_errors == ()
    assert last.rollback.status is tr.HistoryRollbackStatus.HISTORY_UNCHANGED


@pytest.mark.parametrize(
    ("finished", "status"),
    [(0, "interrupted_tool_result"), (1, "partial_tool_result"), (2, "completed_tool_result")],
)
async def test_the_rollback_state_says_what_the_end_added(finished: int, status: str) -> None:
    async def waits(number: int) -> str:
        if number < finished:
            return "ok"
        return await trio.sleep_forever()

    async def fails(runner: tr.ToolRunner, message: tr.Message) -> None:
        raise OSError("after the tools")

    asked = [call("waits", number=n) for n in range(2)]
    agent = agent_of(asked, tools=[waits], hooks=tr.ToolRunnerHooks(after_tool_call=fails))
    async with trio.open_nursery() as nursery:

        async def go() -> None:
            with pytest.raises((OSError, trio.Cancelled)) as caught:
                await agent.generate("go")
            if isinstance(caught.value, trio.Cancelled):
                raise caught.value

        nursery.start_soon(go)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert agent.last_turn is not None
    rollback = agent.last_turn.rollback
    assert rollback.status.value == f"appended_{status}"
    assert rollback.messages_after == len(agent.history) == 3
