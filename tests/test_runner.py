"""`ToolRunner`: driving a turn, what it sends, hooks, events, resuming, stopping one call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import Scripted, ScriptedModel, ScriptItem, call


async def work(number: int = 0) -> str:
    """Work."""
    await trio.lowlevel.checkpoint()
    return f"value {number}"


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work, sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def model_of(agent: tr.ToolAgent) -> ScriptedModel:
    return cast("ScriptedModel", agent.model)


def shapes(messages: Sequence[tr.Message]) -> list[str]:
    return [
        "results" if message.tool_results else "calls" if message.tool_calls else message.text
        for message in messages
    ]


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for m in agent.history for result in m.tool_results]


class Events:
    def __init__(self) -> None:
        self.all: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.all.append(event)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.all]


# --- F1, C8: driving ------------------------------------------------------------


async def test_a_message_that_asks_for_tools_is_yielded_before_they_run() -> None:
    ran: list[str] = []

    async def effect() -> str:
        ran.append("effect")
        return "ok"

    agent = agent_of(call("effect"), "done", tools=[effect])
    async with agent.turn("go") as runner:
        message = await anext(runner)
        assert [c.name for c in message.tool_calls] == ["effect"]
        assert ran == []
        assert (await anext(runner)).text == "done"
        assert ran == ["effect"]
        with pytest.raises(StopAsyncIteration):
            await anext(runner)


async def test_until_done_goes_on_from_where_the_iteration_is() -> None:
    agent = agent_of(call("work"), call("work"), "done")
    async with agent.turn("go") as runner:
        await anext(runner)
        assert (await runner.until_done()).text == "done"
        assert (await runner.until_done()).text == "done"


async def test_what_a_runner_tells_of_its_turn() -> None:
    agent = agent_of(call("work"), "done")
    runner = agent.turn("go")
    assert (runner.iteration, runner.is_done, runner.end_reason) == (0, False, None)
    assert (runner.last_message, runner.turn_messages, runner.delta_messages) == (None, (), ())
    async with runner:
        assert shapes(runner.turn_messages) == ["go"]
        assert shapes(runner.delta_messages) == ["go"]
        first = await anext(runner)
        assert runner.last_message == first
        # The open step is in neither yet.
        assert shapes(runner.turn_messages) == ["go"]
        assert shapes(agent.history) == ["go"]
        await anext(runner)
        assert (runner.iteration, runner.is_done) == (1, True)
        assert runner.end_reason is tr.EndReason.ANSWERED
        assert shapes(runner.turn_messages) == ["go", "calls", "results", "done"]
    assert runner.agent is agent


@pytest.mark.parametrize("use", ["iterate", "append", "replace"])
async def test_a_runner_that_was_not_entered_says_what_to_do(use: str) -> None:
    runner = agent_of("done").turn("go")

    async def use_it() -> None:
        match use:
            case "iterate":
                async for _ in runner:
                    pytest.fail("iterated")
            case "append":
                runner.append_messages("more")
            case _:
                runner.replace_history([])

    with pytest.raises(tr.NotEnteredError) as caught:
        await use_it()
    assert "async with agent.turn(" in str(caught.value)
    # It can still be used the right way.
    assert (await runner.until_done()).text == "done"


async def test_entering_under_a_cancel_changes_nothing() -> None:
    agent = agent_of("done")
    with trio.CancelScope() as scope:
        scope.cancel()
        async with agent.turn("go"):
            pytest.fail("entered")
    assert scope.cancelled_caught
    assert agent.history == ()
    assert (await agent.generate("go")).text == "done"


async def test_every_public_await_is_a_checkpoint() -> None:
    agent = agent_of("done", "more")
    for drive in (lambda: agent.generate("go"), lambda: agent.turn("go").until_done()):
        with trio.testing.assert_checkpoints():
            await drive()


@pytest.mark.parametrize("bad", ["", "  \n", [], tr.Message.user(""), [tr.Message.user(" ")]])
def test_an_empty_input_is_a_value_error(bad: Any) -> None:
    with pytest.raises(ValueError, match="input"):
        agent_of().turn(bad)


def test_an_input_that_is_no_message_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="input"):
        agent_of().turn(cast("Any", [3]))


# --- F4: what is sent -----------------------------------------------------------


async def test_with_history_the_model_gets_what_is_new_and_all_of_it_as_a_view() -> None:
    agent = agent_of(call("work"), "one", "two")
    await agent.generate("first")
    await agent.generate("second")
    deltas = [shapes(request.delta) for request in model_of(agent).requests]
    histories = [shapes(request.history) for request in model_of(agent).requests]
    assert deltas == [["first"], ["results"], ["second"]]
    assert histories == [
        ["first"],
        ["first", "calls", "results"],
        ["first", "calls", "results", "one", "second"],
    ]


async def test_without_history_the_request_is_templates_and_this_turn() -> None:
    front = tr.Message.user("be brief", template=True)
    agent = agent_of(
        "kept", call("work"), "forgotten", "again", history=[front, tr.Message.user("old")]
    )
    await agent.generate("first")
    before = agent.history
    params = tr.RequestParams(use_history=False)
    seen: list[list[str]] = []

    async def look(runner: tr.ToolRunner, messages: tuple[tr.Message, ...]) -> None:
        seen.append(shapes(messages))

    hooks = tr.ToolRunnerHooks(before_llm_call=look)
    async with agent.turn("aside", params=params, hooks=hooks) as runner:
        assert (await runner.until_done()).text == "forgotten"
        assert shapes(runner.turn_messages) == ["aside", "calls", "results", "forgotten"]
        tr.check_history(runner.turn_messages)

    assert agent.history == before
    assert [shapes(request.history) for request in model_of(agent).requests[1:]] == [
        ["be brief", "aside"], ["be brief", "aside", "calls", "results"]
    ]  # fmt: skip
    # The hook sees the whole turn.
    assert seen == [["aside"], ["aside", "calls", "results"]]
    assert agent.last_turn is not None
    assert agent.last_turn.rollback.status is tr.HistoryRollbackStatus.HISTORY_DISABLED
    assert shapes(agent.last_turn.messages) == ["aside", "calls", "results", "forgotten"]


async def test_a_turn_without_history_leaves_an_open_step_of_the_history_alone() -> None:
    asked = tr.Message.assistant(tool_calls=[tr.ToolCall("c", "work")])
    agent = agent_of("aside", "done", history=[tr.Message.user("q"), asked])
    before = agent.history
    await agent.generate("x", params=tr.RequestParams(use_history=False))
    assert agent.history == before
    # It can still be taken up.
    assert (await agent.resume()).text == "done"
    assert statuses(agent) == ["interrupted"]


async def test_a_turns_params_win_where_they_are_set() -> None:
    agent = agent_of(
        "done", params=tr.RequestParams(use_history=False, tool_timeout=3, max_iterations=5)
    )
    runner = agent.turn("go", params=tr.RequestParams(max_iterations=7))
    assert runner.request_params.max_iterations == 7
    assert runner.request_params.tool_timeout == 3
    assert runner.request_params.use_history is False
    assert runner.request_params.parallel_tool_calls is True
    await runner.until_done()
    assert agent.history == ()


async def test_two_user_messages_in_a_row_are_valid_after_an_interrupt() -> None:
    agent = agent_of(OSError("no network"), "done")
    with pytest.raises(OSError, match="no network"):
        await agent.generate("first")
    assert (await agent.generate("second")).text == "done"
    assert shapes(agent.history) == ["first", "second", "done"]


async def test_new_input_on_an_unfinished_history_goes_behind_the_results() -> None:
    agent = agent_of(call("work"), OSError("no network"), "done")
    with pytest.raises(OSError, match="no network"):
        await agent.generate("first")
    await agent.generate("second")
    assert shapes(agent.history) == ["first", "calls", "results", "second", "done"]
    assert shapes(model_of(agent).requests[2].delta) == ["results", "second"]


async def test_an_empty_reply_gets_a_marked_placeholder() -> None:
    agent = agent_of(tr.Message.assistant(""))
    reply = await agent.generate("go")
    assert reply.text == "(empty reply)"
    assert reply.meta
    assert agent.history[-1] == reply


# --- F9: resuming ---------------------------------------------------------------


async def test_resume_runs_what_never_started_and_keeps_the_rest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ran: list[bool] = []

    async def noting(context: tr.ToolContext) -> str:
        ran.append(context.resumed)
        return "ok"

    agent = agent_of(call("noting"), "done", tools=[noting])
    async with agent.turn("go") as runner:
        await anext(runner)
    # The turn was left: its call is answered, and resuming asks the model.
    assert statuses(agent) == ["not_started"]
    assert (await agent.resume()).text == "done"
    assert ran == []


async def test_resume_after_a_crash_runs_the_calls_that_never_started() -> None:
    journal = tr.MemoryJournal()
    ran: list[tuple[str, bool]] = []

    async def effect(name: str, context: tr.ToolContext) -> str:
        ran.append((name, context.resumed))
        if not context.resumed:
            journal.crash()
        return name

    alone = tr.tool(effect, sequential=True)
    asked = [call("effect", name="first"), call("effect", name="second")]
    async with agent_of(asked, "lost", tools=[alone], journal=journal, session="s") as first:
        hooks = tr.ToolRunnerHooks(after_tool_call=dies)
        with pytest.raises(OSError, match="process died"):
            await first.generate("go", hooks=hooks)
    ran.clear()

    async with agent_of("done", tools=[alone], journal=journal, session="s") as second:
        assert (await second.resume()).text == "done"
        assert ran == [("second", True)]
        assert statuses(second) == ["unknown_after_crash", "ok"]
        tr.check_history(second.history)
        assert tuple(tr.fold(journal.stored("s")).history.view()) == second.history


async def dies(runner: tr.ToolRunner, message: tr.Message) -> None:
    raise OSError("as if the process died")


async def test_resume_after_a_crash_between_the_answer_and_the_end_asks_no_model() -> None:
    journal = tr.MemoryJournal(script={3: OSError("the end is not stored")})
    async with agent_of("the answer", journal=journal, session="s") as first:
        await first.generate("go")
        journal.crash()
    async with agent_of(journal=journal, session="s") as second:
        assert (await second.resume()).text == "the answer"
        assert model_of(second).calls == 0
        assert second.last_turn is not None
        assert second.last_turn.end_reason is tr.EndReason.ANSWERED


@pytest.mark.parametrize("history", [[], ["done"]])
async def test_there_may_be_nothing_to_resume(history: list[str]) -> None:
    agent = agent_of(*history)
    for _ in history:
        await agent.generate("go")
    with pytest.raises(tr.NothingToResumeError):
        await agent.resume()
    assert not agent.conversation.is_busy


# --- F10 to F12: hooks ----------------------------------------------------------


def noting(log: list[str], name: str) -> tr.ToolRunnerHooks:
    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        log.append(name)

    return tr.ToolRunnerHooks(before_llm_call=hook)


async def test_hooks_of_the_agent_then_its_property_then_the_turn() -> None:
    log: list[str] = []

    class Mine(tr.ToolAgent):
        """Its own attributes do not collide with the base class's."""

        def __init__(self, *replies: ScriptItem, **options: Any) -> None:
            self._hooks = noting(log, "property")
            self._config = self._conversation = self._tools = self._journal = "mine"
            super().__init__("mine", model=ScriptedModel(replies), **options)

        @property
        def tool_runner_hooks(self) -> tr.ToolRunnerHooks:
            return self._hooks

    agent = Mine("one", "two", hooks=noting(log, "agent"))
    assert isinstance(agent, tr.ToolRunnerHookCapable)
    await agent.generate("go", hooks=noting(log, "turn"))
    assert log == ["agent", "property", "turn"]
    # Read at each turn's start.
    agent._hooks = noting(log, "new property")
    await agent.generate("go")
    assert log[3:] == ["agent", "new property"]


def not_async(runner: tr.ToolRunner, message: Any) -> None:
    """Not an async function."""


NOT_HOOKS: list[Any] = [not_async, functools.partial(not_async), 3, str]


@pytest.mark.parametrize("bad", NOT_HOOKS)
@pytest.mark.parametrize("name", [field.name for field in attrs.fields(tr.ToolRunnerHooks)])
def test_a_hook_that_is_not_async_is_refused_at_set_up(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=name):
        tr.ToolRunnerHooks(**{name: bad})


def test_hooks_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        tr.ToolRunnerHooks().after_llm_call = None  # type: ignore[misc]


async def test_request_params_hold_from_the_next_model_call_on() -> None:
    peak = [0, 0]

    async def counts() -> str:
        peak[0] += 1
        peak[1] = max(peak)
        await trio.testing.wait_all_tasks_blocked()
        peak[0] -= 1
        return str(peak[1])

    async def serially(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.request_params = attrs.evolve(runner.request_params, parallel_tool_calls=False)

    batch = [call("counts"), call("counts")]
    agent = agent_of(batch, batch, "done", tools=[counts])
    async with agent.turn("go", hooks=tr.ToolRunnerHooks(after_llm_call=serially)) as runner:
        await anext(runner)
        await anext(runner)
        # The model asked for this batch under the settings before.
        assert peak == [0, 2]
        peak[1] = 0
        await runner.until_done()
        assert peak == [0, 1]
    asked = [request.params.parallel_tool_calls for request in model_of(agent).requests]
    assert asked == [True, False, False]


async def test_a_hook_may_set_just_some_params() -> None:
    async def hook(runner: tr.ToolRunner, messages: Any) -> None:
        runner.request_params = tr.RequestParams(model_settings={"temperature": 0})

    agent = agent_of("done", params=tr.RequestParams(max_iterations=3))
    await agent.generate("go", hooks=tr.ToolRunnerHooks(before_llm_call=hook))
    (request,) = model_of(agent).requests
    assert request.params.model_settings == {"temperature": 0}
    assert request.params.max_iterations == 3


async def test_deny_outside_before_tool_call_is_refused() -> None:
    agent = agent_of(call("work", id="c1"), "done")
    async with agent.turn("go") as runner:
        await anext(runner)
        with pytest.raises(tr.UsageError, match="c1"):
            runner.deny("c1", "too early")
        await runner.until_done()
    assert statuses(agent) == ["ok"]


async def test_deny_of_an_unknown_call_is_refused_and_fails_closed() -> None:
    async def hook(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny("nosuch", "why")

    agent = agent_of(call("work"), "done")
    with pytest.raises(tr.UsageError, match="nosuch"):
        await agent.generate("go", hooks=tr.ToolRunnerHooks(before_tool_call=hook))
    assert statuses(agent) == ["denied"]


# --- F14: events ----------------------------------------------------------------


async def test_events_are_numbered_one_by_one_and_say_what_happened() -> None:
    events = Events()
    agent = agent_of(
        [call("work", id="c1", number=7)],
        Scripted("done", deltas=["do", "ne"]),
        observers=[events],
    )
    await agent.generate("go")
    assert [event.number for event in events.all] == list(range(len(events.all)))
    assert {event.turn for event in events.all} == {1}
    assert events.kinds == [
        "TurnStarted", "ModelCallStarted", "ModelCallFinished",
        "BatchPlanned", "CallStarted", "CallFinished",
        "ModelCallStarted", "TextDelta", "TextDelta", "ModelCallFinished", "TurnEnded",
    ]  # fmt: skip
    steps = [getattr(event, "step", None) for event in events.all]
    assert steps == [None, 0, 0, 0, 0, 0, 1, 1, 1, 1, None]
    finished = events.all[5]
    assert isinstance(finished, ev.CallFinished)
    assert finished.result.duration is not None
    assert finished.result.text == "value 7"


async def test_an_interrupted_turn_tells_what_its_open_calls_got(
    autojump_clock: trio.testing.MockClock,
) -> None:
    events = Events()
    agent = agent_of([call("work"), call("sleeps", seconds=99)], observers=[events])
    with trio.move_on_after(1):
        await agent.generate("go")
    (interrupted,) = [event for event in events.all if type(event) is ev.TurnInterrupted]
    assert interrupted.end_reason is tr.EndReason.INTERRUPTED
    assert [result.status.value for result in interrupted.results] == ["interrupted"]
    assert events.kinds[-1] == "TurnEnded"


async def test_an_observer_that_raises_is_contained_and_counted() -> None:
    class Raises:
        def on_event(self, event: ev.Event) -> None:
            raise LookupError("the observer")

    events = Events()
    agent = agent_of(call("work"), "done", observers=[Raises()])
    async with agent.turn("go", observers=[events]) as runner:
        await runner.until_done()
        assert runner.observer_errors == len(events.all) > 5
