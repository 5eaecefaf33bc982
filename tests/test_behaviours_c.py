"""BEHAVIOURS part c: parallel calls: failures, ids, order, blocking tools, fan-out."""

from __future__ import annotations

import contextvars
import itertools
import random
import threading
from collections.abc import Awaitable
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import ScriptedModel, ScriptItem, call


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for result in results_of(agent)]


class RawModel:
    """Returns messages just as they are, and keeps what it was asked."""

    def __init__(self, *replies: tr.Message) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[tr.Message, ...]] = []

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        tr.check_history(request.history)
        self.requests.append(tuple(request.history))
        await trio.lowlevel.checkpoint()
        return self.replies.pop(0)


# --- kC1 ------------------------------------------------------------------------


class UnprintableError(Exception):
    """Its str() raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


ERRORS: list[Exception] = [LookupError("ordinary"), LookupError(), UnprintableError()]


@pytest.mark.parametrize(
    "failing", [s for n in range(6) for s in itertools.combinations(range(5), n)]
)
async def test_kC1_any_subset_of_five_calls_may_fail(failing: tuple[int, ...]) -> None:
    async def work(number: int) -> str:
        for _ in range(number % 3):
            await trio.lowlevel.checkpoint()
        if number in failing:
            raise ERRORS[number % 3]
        return f"value {number}"

    agent = agent_of([call("work", number=n) for n in range(5)], "done", tools=[work])
    await agent.generate("go")

    results = results_of(agent)
    assert len(results) == 5
    for number, result in enumerate(results):
        if number in failing:
            assert result.status is tr.CallStatus.ERROR
            assert type(ERRORS[number % 3]).__name__ in result.text
        else:
            assert (result.status, result.text) == (tr.CallStatus.OK, f"value {number}")


async def test_kC1_each_call_of_a_batch_fares_by_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def deny_first(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny(message.tool_calls[0].id, "no.")

    bounded = tr.tool(sleeps, name="bounded", timeout=1)
    agent = agent_of(
        [
            call("sleeps", seconds=1), call("bounded", seconds=9), call("nosuch"),
            call("sleeps", seconds="soon"), call("sleeps", seconds=2),
        ],
        "done",
        tools=[sleeps, bounded],
        hooks=tr.ToolRunnerHooks(before_tool_call=deny_first),
    )  # fmt: skip
    await agent.generate("go")
    assert statuses(agent) == ["denied", "timed_out", "unavailable", "invalid_arguments", "ok"]
    assert all(result.text.strip() for result in results_of(agent))


async def test_kC1_an_after_hook_that_raises_on_the_third_batch_loses_nothing() -> None:
    seen: list[int] = []

    async def hook(runner: tr.ToolRunner, message: tr.Message) -> None:
        seen.append(len(message.tool_results))
        if len(seen) == 3:
            raise LookupError("the hook")

    batches = [[call("sleeps", seconds=0)] * 10] * 3
    agent = agent_of(*batches, "never", hooks=tr.ToolRunnerHooks(after_tool_call=hook))
    with pytest.raises(LookupError, match="the hook"):
        await agent.generate("go")

    assert seen == [10, 10, 10]
    assert statuses(agent) == ["ok"] * 30


@pytest.mark.parametrize("count", [1, 2])
async def test_kC1_a_group_raised_by_a_tool_is_one_error_result(count: int) -> None:
    async def work() -> None:
        raise ExceptionGroup("several", [ValueError(f"cause {n}") for n in range(count)])

    agent = agent_of([call("work"), call("sleeps", seconds=0)], "done", tools=[work, sleeps])
    await agent.generate("go")
    failed, fine = results_of(agent)
    assert (failed.status, fine.status) == (tr.CallStatus.ERROR, tr.CallStatus.OK)
    for n in range(count):
        assert f"cause {n}" in failed.text


async def test_kC1_a_cancellation_that_a_tool_raises_by_itself_is_its_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def strays() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept.append(error)
        raise kept[0]

    kept: list[BaseException] = []
    agent = agent_of([call("strays"), call("sleeps", seconds=1)], "done", tools=[strays, sleeps])
    assert (await agent.generate("go")).text == "done"
    assert statuses(agent) == ["error", "ok"]


# --- kC2 ------------------------------------------------------------------------

NONE_ID: Any = None
ID_BATCHES = {
    "same twice": ["x", "x"],
    "empty": ["", ""],
    "none": [NONE_ID, NONE_ID],
    "blank": [" ", "\t"],
    "one empty and one equal to what is invented": ["", "call_1", "call_2"],
    "not what providers take": ["a b", "é", "x" * 500],
    "fine": ["a", "b"],
}


@pytest.mark.parametrize("ids", ID_BATCHES.values(), ids=ID_BATCHES)
async def test_kC2_each_call_runs_once_under_an_id_of_its_own(ids: list[str]) -> None:
    async def run() -> tuple[list[int], list[str]]:
        ran: list[int] = []

        async def work(number: int) -> str:
            ran.append(number)
            return f"value {number}"

        calls = [tr.ToolCall(i, "work", {"number": n}) for n, i in enumerate(ids)]
        model = RawModel(tr.Message.assistant(tool_calls=calls), tr.Message.assistant("done"))
        agent = tr.ToolAgent("a", model=model, tools=[work])
        await agent.generate("go")

        request, answer = agent.history[1:3]
        given = [c.id for c in request.tool_calls]
        assert len(set(given)) == len(ids)
        assert all(given)
        assert [r.call_id for r in answer.tool_results] == given
        assert [r.text for r in answer.tool_results] == [f"value {n}" for n in range(len(ids))]
        assert model.requests[1][1:3] == (request, answer)
        return sorted(ran), given

    first_ran, first_ids = await run()
    second_ran, second_ids = await run()
    assert first_ran == second_ran == list(range(len(ids)))
    assert first_ids == second_ids  # the same on replay


async def test_kC2_an_id_that_an_earlier_step_used_is_replaced() -> None:
    def again() -> tr.Message:
        return tr.Message.assistant(tool_calls=[tr.ToolCall("x", "sleeps", {"seconds": 0})])

    agent = tr.ToolAgent(
        "a", model=RawModel(again(), again(), tr.Message.assistant("done")), tools=[sleeps]
    )
    await agent.generate("go")
    tr.check_history(agent.history)
    ids = [c.id for m in agent.history for c in m.tool_calls]
    assert ids[0] == "x"
    assert len(set(ids)) == 2


async def test_kC2_a_failing_call_without_a_message_has_id_name_and_text() -> None:
    async def fails() -> None:
        raise LookupError

    agent = agent_of(
        [call("fails", id="f1"), call("sleeps", seconds=0)], "done", tools=[fails, sleeps]
    )
    await agent.generate("go")
    result = results_of(agent)[0]
    assert (result.call_id, result.name) == ("f1", "fails")
    assert result.text.strip()


# --- kC4 ------------------------------------------------------------------------


class Finishes:
    def __init__(self) -> None:
        self.ids: list[str] = []

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.CallFinished(result=result):
                self.ids.append(result.call_id)
            case _:
                pass


async def test_kC4_results_are_in_the_order_of_the_request_for_every_finishing_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rng = random.Random(4)
    histories: list[tuple[tr.Message, ...]] = []
    orders: set[tuple[str, ...]] = set()
    for _ in range(12):
        delays = rng.sample(range(1, 6), 5)

        def work(delay: list[int]) -> Any:
            async def work(number: int) -> str:
                """Work."""
                await trio.sleep(delay[number])
                return f"value {number}"

            return work

        asked = [call("work", id=f"c{n}", number=n) for n in range(5)]
        asked.insert(2, call("nosuch", id="refused"))
        finishes = Finishes()
        journal = tr.MemoryJournal()
        model = ScriptedModel([asked, "done"])
        agent = tr.ToolAgent(
            "a", model=model, tools=[work(delays)], observers=[finishes],
            journal=journal, session="s",
        )  # fmt: skip
        async with agent:
            await agent.generate("go")
        orders.add(tuple(finishes.ids))
        assert finishes.ids[0] == "refused"
        assert finishes.ids[1:] == [f"c{n}" for n in sorted(range(5), key=delays.__getitem__)]
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history
        assert model.requests[1].history == agent.history[:-1]
        histories.append(tuple([without_durations(m) for m in agent.history]))

    assert len(orders) > 5
    assert [r.call_id for m in histories[0] for r in m.tool_results] == [
        "c0", "c1", "refused", "c2", "c3", "c4"
    ]  # fmt: skip
    assert all(repr(history) == repr(histories[0]) for history in histories)


def without_durations(message: tr.Message) -> tr.Message:
    results = [
        tr.ToolResult(r.call_id, r.name, r.content, r.structured_content, r.status)
        for r in message.tool_results
    ]
    return tr.Message(
        message.role, message.content, message.tool_calls, results, message.stop_reason
    )


# --- kC5 ------------------------------------------------------------------------

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def test_kC5_blocking_tools_run_side_by_side_and_the_loop_goes_on() -> None:
    # All four must be in their threads at once, or the barrier breaks; and only the
    # loop can let them go, so it is not blocked.
    barrier = threading.Barrier(5, timeout=5)
    let_go = threading.Event()
    colours: list[str] = []

    def blocks() -> str:
        barrier.wait()
        colours.append(colour.get())
        assert let_go.wait(5)
        return "ok"

    async def heartbeat() -> None:
        await trio.to_thread.run_sync(barrier.wait)
        let_go.set()

    agent = agent_of([call("blocks")] * 4, "done", tools=[blocks])
    colour.set("blue")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeat)
        await agent.generate("go")

    assert statuses(agent) == ["ok"] * 4
    assert colours == ["blue"] * 4


async def test_kC5_an_inline_tool_stays_on_the_loops_thread() -> None:
    threads: list[int] = []

    def work() -> str:
        threads.append(threading.get_ident())
        return "ok"

    agent = agent_of(
        [call("inline"), call("threaded")],
        "done",
        tools=[tr.tool(work, name="inline", inline=True), tr.tool(work, name="threaded")],
    )
    await agent.generate("go")
    here = threading.get_ident()
    assert sorted([ident == here for ident in threads]) == [False, True]


@pytest.mark.parametrize("inline", [False, True])
async def test_kC5_what_a_plain_function_returns_is_awaited_when_it_can_be(inline: bool) -> None:
    async def answer() -> str:
        await trio.lowlevel.checkpoint()
        return "awaited"

    def work() -> Awaitable[str]:
        return answer()

    agent = agent_of(call("work"), "done", tools=[tr.tool(work, inline=inline)])
    await agent.generate("go")
    assert [r.text for r in results_of(agent)] == ["awaited"]


async def test_kC5_a_cancel_waits_for_a_blocking_tool_and_keeps_its_result() -> None:
    entered = threading.Event()
    let_go = threading.Event()

    def blocks() -> str:
        entered.set()
        assert let_go.wait(5)
        return "finished"

    agent = agent_of(call("blocks"), "never", tools=[blocks])

    async def cancel_and_let_go(scope: trio.CancelScope) -> None:
        await trio.to_thread.run_sync(entered.wait)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        let_go.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_and_let_go, scope)
            await agent.generate("go")
    assert scope.cancelled_caught
    assert [(r.status.value, r.text) for r in results_of(agent)] == [("ok", "finished")]
