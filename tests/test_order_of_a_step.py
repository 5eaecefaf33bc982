"""The order of one step (FEATURES "Order of one step"): hooks, records, events, yields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call

FIRST_STEP_HOOKS = ("before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call")
ALL_HOOKS = (*FIRST_STEP_HOOKS, "after_turn_complete")


class NotedSession:
    """A session that notes what is appended."""

    def __init__(self, inner: tr.JournalSession, log: list[str]) -> None:
        self._inner = inner
        self._log = log

    @property
    def records(self) -> Sequence[r.Record]:
        return self._inner.records

    def append(self, records: Sequence[r.Record]) -> tr.CommitTicket:
        self._log.append("append " + " ".join([type(record).__name__ for record in records]))
        return self._inner.append(records)

    async def aclose(self) -> None:
        await self._inner.aclose()


class NotedJournal:
    """A journal that notes what is appended."""

    def __init__(self, log: list[str], delay: float = 0.0) -> None:
        self.inner = tr.MemoryJournal(delay)
        self._log = log

    async def open(self, session_id: str) -> NotedSession:
        return NotedSession(await self.inner.open(session_id), self._log)


class NotedEvents:
    """An observer that notes the kinds of the events."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def on_event(self, event: ev.Event) -> None:
        self._log.append("event " + type(event).__name__)


def noting_hooks(log: list[str]) -> tr.ToolRunnerHooks:
    def noting(name: str) -> Any:
        async def hook(runner: tr.ToolRunner, _: Any) -> None:
            log.append(f"{name} {runner.iteration}")

        return hook

    return tr.ToolRunnerHooks(**{name: noting(name) for name in ALL_HOOKS})


def noting_model(log: list[str], *replies: ScriptItem) -> ScriptedModel:
    def noting(reply: ScriptItem) -> Callable[[tr.ModelRequest], ScriptItem]:
        def play(_: tr.ModelRequest) -> ScriptItem:
            log.append("model")
            return reply

        return play

    return ScriptedModel([noting(reply) for reply in replies])


def noting_tool(log: list[str]) -> tr.Tool:
    async def work(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        log.append("tool")
        await trio.lowlevel.checkpoint()
        return "worked"

    return tr.Tool("work", "works", {"type": "object"}, work)


def only(log: Sequence[str], *beginnings: str) -> list[str]:
    return [entry for entry in log if entry.startswith(beginnings)]


async def drive(log: list[str], agent: tr.ToolAgent) -> None:
    async with agent, agent.turn("go") as runner:
        async for message in runner:
            text = message.text or "calls"
            log.append(f"yield {text} {runner.iteration}")


async def test_hooks_model_tools_and_yields_come_in_the_documented_order() -> None:
    log: list[str] = []
    agent = tr.ToolAgent(
        "a",
        model=noting_model(log, call("work"), [call("work"), call("work")], "done"),
        tools=[noting_tool(log)],
        hooks=noting_hooks(log),
    )

    await drive(log, agent)

    assert log == [
        "before_llm_call 0", "model", "after_llm_call 0", "yield calls 0",
        "before_tool_call 0", "tool", "after_tool_call 0",
        "before_llm_call 1", "model", "after_llm_call 1", "yield calls 1",
        "before_tool_call 1", "tool", "tool", "after_tool_call 1",
        "before_llm_call 2", "model", "after_llm_call 2", "after_turn_complete 2", "yield done 2",
    ]  # fmt: skip


async def test_records_are_appended_where_the_facts_arrive() -> None:
    log: list[str] = []
    agent = tr.ToolAgent(
        "a",
        model=noting_model(log, call("work"), "done"),
        tools=[noting_tool(log)],
        hooks=noting_hooks(log),
        journal=NotedJournal(log),
        session="s",
    )

    await drive(log, agent)

    assert log == [
        "append SessionOpened", "append TurnStarted",
        "before_llm_call 0", "model", "append ModelFinished", "after_llm_call 0", "yield calls 0",
        "before_tool_call 0", "append ToolStarted", "tool", "append ToolFinished",
        "after_tool_call 0",
        "before_llm_call 1", "model", "append ModelFinished", "after_llm_call 1",
        "append TurnEnded", "after_turn_complete 1", "yield done 1",
    ]  # fmt: skip


async def test_events_come_in_the_order_of_the_facts() -> None:
    log: list[str] = []
    agent = tr.ToolAgent(
        "a",
        model=noting_model(log, call("work"), "done"),
        tools=[noting_tool(log)],
        observers=[NotedEvents(log)],
        hooks=noting_hooks(log),
    )

    await drive(log, agent)

    assert only(log, "event") == [
        "event TurnStarted",
        "event ModelCallStarted", "event ModelCallFinished",
        "event BatchPlanned", "event CallStarted", "event CallFinished",
        "event ModelCallStarted", "event ModelCallFinished",
        "event TurnEnded",
    ]  # fmt: skip
    # The reply was recorded before the hook that may look at it.
    assert log.index("event ModelCallFinished") < log.index("after_llm_call 0")
    assert log.index("event CallFinished") < log.index("after_tool_call 0")
    # The last event: nothing of the turn comes behind it.
    assert log.index("event TurnEnded") > log.index("after_turn_complete 1")


async def test_turn_ended_is_the_last_event_of_a_turn_that_is_kept() -> None:
    log: list[str] = []
    agent = tr.ToolAgent(
        "a",
        model=noting_model(log, call("work"), "done"),
        tools=[noting_tool(log)],
        observers=[NotedEvents(log)],
        journal=tr.MemoryJournal(),
        session="s",
    )

    await drive(log, agent)

    # The docstring of the event calls it the last event of a turn.
    assert only(log, "event")[-1] == "event TurnEnded"


@pytest.mark.parametrize("at", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 1000])
@pytest.mark.parametrize("failing", [None, *ALL_HOOKS])
async def test_every_end_is_told_once_and_last(
    failing: str | None, at: float, autojump_clock: trio.testing.MockClock
) -> None:
    # Each commit takes a second; the cancel comes at each of them in turn.
    log: list[str] = []

    async def fails(runner: tr.ToolRunner, _: Any) -> None:
        raise LookupError(failing)

    hooks = tr.ToolRunnerHooks(**({} if failing is None else {failing: fails}))
    agent = tr.ToolAgent(
        "a",
        model=noting_model(log, call("work"), "done"),
        tools=[noting_tool(log)],
        observers=[NotedEvents(log)],
        journal=tr.MemoryJournal(delay=1.0),
        session="s",
        hooks=hooks,
    )
    async with agent:
        await trio.sleep(2)
        with trio.move_on_after(at), suppress(LookupError):
            await agent.generate("go")
    events = only(log, "event")
    assert events[0] == "event TurnStarted"
    assert events[-1] == "event TurnEnded"
    assert events.count("event TurnEnded") == 1


async def test_iteration_is_0_in_every_hook_of_the_first_step() -> None:
    log: list[str] = []
    agent = tr.ToolAgent(
        "a",
        model=noting_model(log, call("work"), "done"),
        tools=[noting_tool(log)],
        hooks=noting_hooks(log),
    )

    await agent.generate("go")

    assert only(log, *ALL_HOOKS)[:4] == [f"{name} 0" for name in FIRST_STEP_HOOKS]


async def test_a_reply_is_durable_before_it_is_yielded_and_its_batch_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay=1.0)
    stored_at: dict[str, list[str]] = {}

    def stored(moment: str) -> None:
        stored_at[moment] = [type(record).__name__ for record in journal.stored("s")]

    async def work(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        stored("tool")
        return "worked"

    async def after_llm_call(_: tr.ToolRunner, message: tr.Message) -> None:
        if message.tool_calls:
            stored("after_llm_call")

    async def after_tool_call(_: tr.ToolRunner, __: tr.Message) -> None:
        stored("after_tool_call")

    async def after_turn_complete(_: tr.ToolRunner, __: tr.Message) -> None:
        stored("after_turn_complete")

    agent = tr.ToolAgent(
        "a",
        model=ScriptedModel([call("work"), "done"]),
        tools=[tr.Tool("work", "", {}, work)],
        journal=journal,
        session="s",
        hooks=tr.ToolRunnerHooks(
            after_llm_call=after_llm_call,
            after_tool_call=after_tool_call,
            after_turn_complete=after_turn_complete,
        ),
    )
    async with agent, agent.turn("go") as runner:
        await anext(runner)
        stored("yield")
        await runner.until_done()

    # The hook comes before the wait for the commit.
    assert "ModelFinished" not in stored_at["after_llm_call"]
    assert stored_at["yield"][-1] == "ModelFinished"
    assert stored_at["tool"][-1] == "ToolStarted"
    assert stored_at["after_tool_call"][-1] == "ToolFinished"
    assert stored_at["after_turn_complete"][-2:] == ["ModelFinished", "TurnEnded"]


async def test_the_next_model_call_waits_until_the_results_are_durable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay=1.0)
    stored: list[list[str]] = []

    def answer(_: tr.ModelRequest) -> ScriptItem:
        stored.append([type(record).__name__ for record in journal.stored("s")])
        return "done"

    async def work(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        return "worked"

    agent = tr.ToolAgent(
        "a",
        model=ScriptedModel([[call("work"), call("work")], answer]),
        tools=[tr.Tool("work", "", {}, work)],
        journal=journal,
        session="s",
    )
    async with agent:
        await agent.generate("go")

    assert stored[0].count("ToolFinished") == 2


# --- messages that hooks append -------------------------------------------------


def note_once(hook_name: str) -> tr.ToolRunnerHooks:
    noted: list[str] = []

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        if not noted:
            noted.append(hook_name)
            runner.append_messages("a note")

    return tr.ToolRunnerHooks(**{hook_name: hook})


def shapes(messages: Sequence[tr.Message]) -> list[str]:
    return [
        "results" if message.tool_results else "calls" if message.tool_calls else message.text
        for message in messages
    ]


@pytest.mark.parametrize("hook_name", FIRST_STEP_HOOKS)
async def test_a_note_of_a_hook_goes_to_the_next_model_call_behind_the_results(
    hook_name: str,
) -> None:
    log: list[str] = []
    model = ScriptedModel([[call("work"), call("work")], "done"])
    agent = tr.ToolAgent("a", model=model, tools=[noting_tool(log)], hooks=note_once(hook_name))

    await agent.generate("go")

    first, second = model.requests
    if hook_name == "before_llm_call":
        assert shapes(first.delta) == ["go", "a note"]
        assert shapes(second.delta) == ["results"]
        assert shapes(agent.history) == ["go", "a note", "calls", "results", "done"]
    else:
        assert shapes(first.delta) == ["go"]
        assert shapes(second.delta) == ["results", "a note"]
        assert shapes(agent.history) == ["go", "calls", "results", "a note", "done"]
    tr.check_history(agent.history)
    assert shapes(agent.last_turn.messages) == shapes(agent.history) if agent.last_turn else False


async def test_notes_of_several_hooks_keep_their_order() -> None:
    log: list[str] = []

    async def noting(runner: tr.ToolRunner, message: tr.Message) -> None:
        if message.tool_calls or message.tool_results:
            runner.append_messages(f"note {len(log)}")
            log.append("")

    hooks = tr.ToolRunnerHooks(
        after_llm_call=noting, before_tool_call=noting, after_tool_call=noting
    )
    model = ScriptedModel([call("work"), "done"])
    agent = tr.ToolAgent("a", model=model, tools=[noting_tool([])], hooks=hooks)

    await agent.generate("go")

    assert shapes(model.requests[1].delta) == ["results", "note 0", "note 1", "note 2"]


@pytest.mark.parametrize("hook_name", ["after_llm_call", "after_turn_complete"])
async def test_a_note_that_no_model_call_would_see_is_refused(hook_name: str) -> None:
    agent = tr.ToolAgent("a", model=ScriptedModel(["done"]), hooks=note_once(hook_name))

    with pytest.raises(tr.TurnEndedError):
        await agent.generate("go")

    assert shapes(agent.history) == ["go", "done"]


async def test_a_caller_may_append_between_two_steps() -> None:
    model = ScriptedModel([call("work"), "done"])
    agent = tr.ToolAgent("a", model=model, tools=[noting_tool([])])
    async with agent.turn("go") as runner:
        await anext(runner)
        # The open step is not in the history yet, and nothing comes into it.
        assert shapes(agent.history) == ["go"]
        runner.append_messages("hurry")
        assert shapes(agent.history) == ["go"]
        await runner.until_done()

    assert shapes(model.requests[1].delta) == ["results", "hurry"]


async def test_what_hooks_append_survives_the_reopening_of_the_session() -> None:
    journal = tr.MemoryJournal()
    agent = tr.ToolAgent(
        "a",
        model=ScriptedModel([call("work"), "done"]),
        tools=[noting_tool([])],
        hooks=note_once("before_tool_call"),
        journal=journal,
        session="s",
    )
    async with agent:
        await agent.generate("go")

    assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


# --- paused replies -------------------------------------------------------------


@pytest.mark.parametrize("reason", [tr.StopReason.PAUSE, tr.StopReason.CONTINUE_])
async def test_a_paused_reply_goes_back_unchanged_and_counts(reason: tr.StopReason) -> None:
    log: list[str] = []
    paused = tr.Message.assistant("thinking", stop_reason=reason)
    model = noting_model(log, paused, paused, "done")
    agent = tr.ToolAgent("a", model=model, hooks=noting_hooks(log))

    await drive(log, agent)

    assert log == [
        "before_llm_call 0", "model", "after_llm_call 0", "yield thinking 0",
        "before_llm_call 1", "model", "after_llm_call 1", "yield thinking 1",
        "before_llm_call 2", "model", "after_llm_call 2", "after_turn_complete 2", "yield done 2",
    ]  # fmt: skip
    assert [list(request.delta) for request in model.requests[1:]] == [[], []]
    assert model.requests[1].history[-1] == paused
    assert shapes(agent.history) == ["go", "thinking", "thinking", "done"]
