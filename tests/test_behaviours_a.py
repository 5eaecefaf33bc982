"""BEHAVIOURS part a: dangling calls, repair at load, true statuses, results kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call

CUT = tr.ToolCall("cut", "work", {})


def statuses(messages: Sequence[tr.Message]) -> list[str]:
    return [result.status.value for m in messages for result in m.tool_results]


def texts(messages: Sequence[tr.Message]) -> list[str]:
    return [result.text for m in messages for result in m.tool_results]


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


# --- kA1 ------------------------------------------------------------------------


async def test_kA1_cancel_while_a_tool_sleeps_then_a_new_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agent = agent_of(call("sleeps", id="c1", seconds=1000), "fine")
    with trio.move_on_after(1) as scope:
        await agent.generate("go")

    assert scope.cancelled_caught
    request, answer = agent.history[-2:]
    assert [c.id for c in request.tool_calls] == ["c1"]
    assert answer.role == "user"
    (result,) = answer.tool_results
    assert (result.call_id, result.status) == ("c1", tr.CallStatus.INTERRUPTED)
    assert result.is_error
    assert (await agent.generate("again")).text == "fine"
    tr.check_history(agent.history)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([9], ["interrupted"]),
        ([9, 9, 9], ["interrupted"] * 3),
        ([9, 1, 9], ["interrupted", "ok", "interrupted"]),
        ([1, 2, 3], ["ok", "ok", "ok"]),
    ],
)
async def test_kA1_cancel_when_some_of_the_tools_have_finished(
    seconds: list[float], expected: list[str], autojump_clock: trio.testing.MockClock
) -> None:
    def asks(_: tr.ModelRequest) -> ScriptItem:
        return [call("sleeps", seconds=each) for each in seconds]

    async def never(_: tr.ModelRequest) -> ScriptItem:
        return await trio.sleep_forever()

    cut_in_the_batch = max(seconds) > 5
    agent = agent_of(asks, *([] if cut_in_the_batch else [never]), "fine")
    with trio.move_on_after(5):
        await agent.generate("go")

    tr.check_history(agent.history)
    assert statuses(agent.history) == expected
    assert (await agent.generate("again")).text == "fine"


@pytest.mark.parametrize(
    "error", [OSError("x"), tr.FatalToolError("x"), SystemExit(3), KeyboardInterrupt()]
)
async def test_kA1_an_error_from_the_batch_leaves_a_valid_history(error: BaseException) -> None:
    async def raises() -> None:
        raise error

    async def next_reply(_: tr.ModelRequest) -> ScriptItem:
        raise error

    agent = agent_of(
        [call("raises"), call("sleeps", seconds=0)], next_reply, tools=[raises, sleeps]
    )
    with pytest.raises(type(error)):
        await agent.generate("go")

    tr.check_history(agent.history)
    assert len(statuses(agent.history)) == 2


async def test_kA1_what_hooks_and_observers_see_is_valid_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    looked: list[int] = []

    def look(runner: tr.ToolRunner) -> None:
        tr.check_history(runner.turn_messages)
        tr.check_history(agent.history)
        looked.append(len(agent.history))

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        look(runner)

    class Looks:
        def on_event(self, event: object) -> None:
            tr.check_history(agent.history)

    names = ("before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call")
    agent = agent_of(
        [call("sleeps", seconds=1), call("sleeps", seconds=2)],
        "done",
        hooks=tr.ToolRunnerHooks(**dict.fromkeys(names, hook), after_turn_complete=hook),
        observers=[Looks()],
    )
    async with agent.turn("go") as runner:
        async for _ in runner:
            look(runner)

    assert runner.observer_errors == 0
    assert looked == [1, 1, 1, 1, 3, 3, 4, 4, 4]


# --- kA3 ------------------------------------------------------------------------


def five_turns(*, broken: int) -> list[tr.Message]:
    """Five turns with one call each; the call of turn ``broken`` (from 1) has no result."""
    messages: list[tr.Message] = []
    for number in range(1, 6):
        asked = tr.ToolCall(f"c{number}", "work", {})
        messages += [tr.Message.user(f"q{number}"), tr.Message.assistant(tool_calls=[asked])]
        if number != broken:
            messages.append(tr.Message.user(tool_results=[tr.ToolResult(asked.id, "work", "r")]))
            messages.append(tr.Message.assistant(f"a{number}"))
    return messages


@pytest.mark.parametrize("broken", [2, 5])
async def test_kA3_a_gap_is_closed_saved_and_stays_as_it_is(broken: int) -> None:
    journal = tr.MemoryJournal()
    async with agent_of("fine", journal=journal, session="s") as agent:
        agent.load_history(five_turns(broken=broken))
        await agent.generate("go on")
        saved = agent.history
    tr.check_history(saved)
    assert [m.text for m in saved if m.role == "user" and m.text] == [
        "q1", "q2", "q3", "q4", "q5", "go on"
    ]  # fmt: skip
    assert len(statuses(saved)) == 5

    records = journal.stored("s")
    async with agent_of(journal=journal, session="s") as again:
        assert again.history == saved
    assert journal.stored("s") == records  # the second load wrote nothing

    reloaded = agent_of(history=saved)
    assert reloaded.history == saved


async def test_kA3_a_valid_history_is_taken_as_it_is() -> None:
    valid = five_turns(broken=0)
    agent = agent_of(history=valid)
    assert all(mine is given for mine, given in zip(agent.history, valid, strict=True))


async def test_kA3_a_broken_history_does_not_hurt_the_other_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    broken = agent_of("mended", history=[tr.Message.assistant(tool_calls=[CUT])])
    sound = agent_of([call("sleeps", seconds=1)], "untouched")
    answers: dict[str, str] = {}

    async def run(name: str, agent: tr.ToolAgent) -> None:
        answers[name] = (await agent.generate("go")).text

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "broken", broken)
        nursery.start_soon(run, "sound", sound)

    assert answers == {"broken": "mended", "sound": "untouched"}
    tr.check_history(broken.history)


async def test_kA3_records_that_do_not_fit_raise_their_own_error_and_free_the_session() -> None:
    journal = tr.MemoryJournal()
    session = await journal.open("s")
    session.append([r.TurnEnded(7, tr.EndReason.ANSWERED)])
    await session.aclose()
    agent = agent_of("fine", journal=journal, session="s")

    with pytest.raises(tr.RecordError):
        async with agent:
            pytest.fail("the block was entered")

    await (await journal.open("s")).aclose()  # it can be opened again


@pytest.mark.parametrize(
    "reason", [None, tr.StopReason.END_TURN, tr.StopReason.MAX_TOKENS, tr.StopReason.ERROR]
)
@pytest.mark.parametrize("answered", [0, 1])
async def test_kA3_an_open_step_with_any_stop_reason_is_healed(
    reason: tr.StopReason | None, answered: int
) -> None:
    # Histories from elsewhere need not have our stop reasons.
    calls = [tr.ToolCall("c1", "work"), tr.ToolCall("c2", "work")]
    messages = [
        tr.Message.user("q"), tr.Message("assistant", (), calls, (), reason)
    ]  # fmt: skip
    if answered:
        messages.append(tr.Message.user(tool_results=[tr.ToolResult("c1", "work", "real")]))
    agent = agent_of("fine", history=messages)

    tr.check_history(agent.history)
    await agent.generate("go on")
    tr.check_history(agent.history)
    results = [result for m in agent.history for result in m.tool_results]
    assert [result.call_id for result in results] == ["c1", "c2"]
    if answered:
        assert results[0].text == "real"


async def test_kA3_an_open_step_with_a_damaged_result_is_healed() -> None:
    calls = [tr.ToolCall("c1", "work"), tr.ToolCall("c2", "work")]
    messages = [
        tr.Message.user("q"),
        tr.Message.assistant(tool_calls=calls),
        tr.Message.user(tool_results=[tr.ToolResult("c1", "work", ())]),  # an empty result
    ]
    agent = agent_of("fine", history=messages)
    await agent.generate("go on")
    tr.check_history(agent.history)


async def test_kA3_a_session_that_a_crash_cut_is_healed_when_the_next_turn_starts() -> None:
    journal = tr.MemoryJournal()

    async def crashes() -> str:
        journal.crash()
        return "never stored"

    async with agent_of(
        call("crashes"), "lost", tools=[crashes], journal=journal, session="s"
    ) as a:
        await a.generate("go")

    async with agent_of("fine", journal=journal, session="s") as agent:
        assert [m.text for m in agent.history] == ["go"]  # closed steps only
        assert (await agent.generate("again")).text == "fine"
        assert statuses(agent.history) == ["unknown_after_crash"]
        tr.check_history(agent.history)
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


# --- kA4 ------------------------------------------------------------------------


async def test_kA4_statuses_tell_denied_not_started_interrupted_and_timed_out_apart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    effects: list[str] = []

    async def pay(who: str) -> str:
        effects.append(who)
        await trio.sleep(1000)
        return "paid"

    async def deny_second(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny(message.tool_calls[1].id, "too expensive.")

    tools = [
        pay,
        tr.tool(pay, name="bounded", timeout=2),
        tr.tool(pay, name="alone", sequential=True),
    ]
    asked = [
        call("pay", who="interrupted"),
        call("pay", who="denied"),
        call("bounded", who="timed out"),
        call("alone", who="not started"),
    ]
    agent = agent_of(asked, tools=tools, hooks=tr.ToolRunnerHooks(before_tool_call=deny_second))
    with trio.move_on_after(5):
        await agent.generate("go")

    assert sorted(effects) == ["interrupted", "timed out"]
    assert statuses(agent.history) == ["interrupted", "denied", "timed_out", "not_started"]
    interrupted, denied, timed_out, not_started = texts(agent.history)
    for started in (interrupted, timed_out):
        assert "not known whether it took effect" in started
        assert "not run" not in started
    for never in (denied, not_started):
        assert "had no effect" in never
    assert "too expensive" in denied


async def test_kA4_the_turns_deadline_is_not_called_an_interrupt(
    autojump_clock: trio.testing.MockClock,
) -> None:
    alone = tr.tool(sleeps, name="alone", sequential=True)
    agent = agent_of(
        [call("sleeps", seconds=99), call("alone", seconds=99)],
        tools=[sleeps, alone],
        params=tr.RequestParams(turn_timeout=2),
    )
    with pytest.raises(tr.TurnTimeoutError):
        await agent.generate("go")

    assert statuses(agent.history) == ["timed_out", "not_started"]
    started, never = texts(agent.history)
    assert "not known" in started
    assert "had no effect" in never
    assert "interrupted" not in (started + never).lower()


async def test_kA4_killed_during_a_side_effect_the_request_is_kept() -> None:
    journal = tr.MemoryJournal()
    effects: list[int] = []

    async def pay() -> str:
        effects.append(1)
        journal.crash()
        return "paid"

    replies = [call("pay", id="c1")], "lost"
    async with agent_of(*replies, tools=[pay], journal=journal, session="s") as first:
        await first.generate("go")

    async with agent_of("fine", tools=[pay], journal=journal, session="s") as agent:
        await agent.generate("again")
        calls = [c.id for m in agent.history for c in m.tool_calls]
        assert calls == ["c1"]
        (text,) = texts(agent.history)
        assert statuses(agent.history) == ["unknown_after_crash"]
        assert "not known" in text
    assert effects == [1]


async def test_kA4_an_open_call_of_a_loaded_history_may_have_run() -> None:
    agent = agent_of("fine", history=[tr.Message.user("q"), tr.Message.assistant(tool_calls=[CUT])])
    await agent.generate("go on")
    assert statuses(agent.history) == ["interrupted"]
    assert "not known whether it ran" in texts(agent.history)[0]


async def test_kA4_a_call_that_waits_for_a_limiter_was_not_started(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limited = tr.tool(sleeps, name="limited", limiter=trio.CapacityLimiter(1))
    agent = agent_of([call("limited", seconds=99), call("limited", seconds=99)], tools=[limited])
    with trio.move_on_after(1):
        await agent.generate("go")
    # Which of the two gets the slot is open.
    assert sorted(statuses(agent.history)) == ["interrupted", "not_started"]


# --- kA7 ------------------------------------------------------------------------


async def test_kA7_the_model_call_after_the_tools_fails_and_is_retried_from_memory() -> None:
    ran: list[str] = []
    seen: list[list[str]] = []

    async def work() -> str:
        ran.append("work")
        return "worked"

    def fails(request: tr.ModelRequest) -> ScriptItem:
        seen.append(statuses(agent.history))
        return OSError("no network")

    agent = agent_of([call("work"), call("work")], fails, "done", tools=[work])
    with pytest.raises(OSError, match="no network"):
        await agent.generate("go")

    assert seen == [["ok", "ok"]]  # in the history before the second model call
    reply = await agent.resume()

    assert reply.text == "done"
    assert len(ran) == 2
    model = agent.model
    assert isinstance(model, ScriptedModel)
    assert model.requests[2].history == model.requests[1].history
    assert model.requests[2].delta == model.requests[1].delta


async def test_kA7_the_same_after_a_reload() -> None:
    journal = tr.MemoryJournal()
    ran: list[str] = []

    async def work() -> str:
        ran.append("work")
        return "worked"

    failing = ScriptedModel([[call("work"), call("work")], OSError("no network")])
    async with tr.ToolAgent(
        "a", model=failing, tools=[work], journal=journal, session="s"
    ) as first:
        with pytest.raises(OSError, match="no network"):
            await first.generate("go")

    working = ScriptedModel(["done"])
    async with tr.ToolAgent(
        "a", model=working, tools=[work], journal=journal, session="s"
    ) as second:
        assert (await second.resume()).text == "done"
        tr.check_history(second.history)

    assert len(ran) == 2
    assert working.requests[0].history == failing.requests[1].history


async def test_kA7_results_are_durable_before_the_next_model_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay=1)

    def fails(request: tr.ModelRequest) -> ScriptItem:
        journal.crash()  # what is durable now is all there is
        return OSError("gone")

    replies = [call("sleeps", seconds=0), call("sleeps", seconds=0)], fails
    agent = agent_of(*replies, journal=journal, session="s")
    async with agent:
        with pytest.raises(OSError, match="gone"):
            await agent.generate("go")

    assert statuses(list(tr.fold(journal.stored("s")).history.view())) == ["ok", "ok"]
