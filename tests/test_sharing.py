"""Who shares what: blocks left by other tasks, limiters of nested turns, keys, histories."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as records
from trio_runner.testing import ScriptedModel, call

Status = tr.CallStatus


def agent_of(*replies: Any, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent("agent", model=ScriptedModel([*replies]), **options)


def statuses(agent: tr.ToolAgent) -> list[Status]:
    return [result.status for message in agent.history for result in message.tool_results]


# --- leaving from another task (C5) ---------------------------------------------


async def test_c5_leaving_from_another_task_waits_for_a_thread_that_outlives_grace() -> None:
    release = threading.Event()
    entered = trio.Event()
    token = trio.lowlevel.current_trio_token()
    ended: list[str] = []

    def blocks() -> str:
        token.run_sync_soon(entered.set)
        assert release.wait(60)
        ended.append("tool")
        return "finished"

    agent = agent_of(call("blocks"), "done", tools=[blocks], grace=0.0)
    runner = agent.turn("go")

    async def iterate() -> None:
        async for _ in runner:
            pass
        ended.append("iteration")

    async with trio.open_nursery() as nursery:
        async with runner:
            nursery.start_soon(iterate)
            await entered.wait()
            threading.Timer(0.05, release.set).start()
        ended.append("block")
    assert ended[0] == "tool"
    assert statuses(agent) == [Status.OK]
    assert runner.end_reason is tr.EndReason.INTERRUPTED


async def test_c5_two_tasks_may_leave_while_a_third_iterates() -> None:
    agent = agent_of(call("sleeps"), "done", tools=[tr.tool(trio.sleep_forever, name="sleeps")])
    runner = agent.turn("go")
    await runner.__aenter__()

    async def iterate() -> None:
        async for _ in runner:
            pass

    async def leave() -> None:
        await runner.__aexit__(None, None, None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(iterate)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(leave)
        nursery.start_soon(leave)
    assert statuses(agent) == [Status.INTERRUPTED]
    assert not agent.conversation.is_busy


@pytest.mark.parametrize("where", ["hook", "tool"])
async def test_a_turns_own_hook_or_tool_cannot_leave_its_block(where: str) -> None:
    async def leaves(*_: Any) -> None:
        with pytest.raises(tr.UsageError, match="cancel a scope around the turn instead"):
            await runner.__aexit__(None, None, None)

    async def tool() -> None:
        if where == "tool":
            await leaves()

    hooks = tr.ToolRunnerHooks(before_llm_call=leaves) if where == "hook" else None
    agent = agent_of(call("tool"), "done", tools=[tool], hooks=hooks)
    async with agent.turn("go") as runner:
        assert (await runner.until_done()).text == "done"


# --- named limiters and tasks that outlive a call (F22) --------------------------


async def test_a_task_that_a_tool_left_behind_does_not_leak_its_slot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)
    inner = agent_of(call("limited"), "done", tools=[_limited(limiter)])

    async with trio.open_nursery() as nursery:

        async def leaves_a_task() -> str:
            nursery.start_soon(inner.generate, "in the background")
            return "ok"

        outer = agent_of(
            call("outer"),
            "done",
            tools=[tr.tool(leaves_a_task, name="outer", limiter=limiter)],
        )
        await outer.generate("go")
    assert limiter.borrowed_tokens == 0


async def test_two_nested_turns_of_one_call_do_not_deadlock_on_its_limiter(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limiter = trio.CapacityLimiter(1)

    async def nests() -> str:
        async with trio.open_nursery() as nursery:
            for delay in (0.1, 0.2, 0.3, 0.4):
                inner = agent_of(call("limited", seconds=delay), "x", tools=[_limited(limiter)])
                nursery.start_soon(inner.generate, "go")
        return "ok"

    outer_tool = tr.tool(nests, name="nests", limiter=limiter)
    other = agent_of(call("limited", seconds=0.15), "x", tools=[_limited(limiter)])
    outer = agent_of(call("nests"), "done", tools=[outer_tool])
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outer.generate, "go")
            nursery.start_soon(other.generate, "go")
    assert limiter.borrowed_tokens == 0


def _limited(limiter: trio.CapacityLimiter) -> tr.Tool:
    async def limited(seconds: float = 0.1) -> str:
        await trio.sleep(seconds)
        return "ok"

    return tr.tool(limited, limiter=limiter)


# --- idempotency keys (F25) -----------------------------------------------------


async def test_calls_that_are_recorded_nowhere_never_share_an_idempotency_key() -> None:
    keys: list[str] = []

    async def pays(context: tr.ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "ok"

    journal = tr.MemoryJournal()
    message = tr.Message.assistant(tool_calls=[call("pays", id="call_1")])
    aside = tr.RequestParams(use_history=False)
    for _ in range(2):  # the second time stands for a restart
        agent = agent_of(
            [call("pays", id="call_1")], "done", tools=[pays], journal=journal, session="s"
        )
        async with agent:
            await agent.run_tools(message)
            await agent.run_tools(message)
            await agent.generate("go", params=aside)
    assert len(set(keys)) == len(keys) == 6


# --- a runner whose block was left (kG4) ----------------------------------------


async def test_kG4_a_runner_that_was_left_changes_nothing_of_a_later_turn() -> None:
    agent = agent_of("one", "two")
    async with agent.turn("first") as old:
        await old.until_done()
    async with agent.turn("second") as runner:
        for change in (
            lambda: old.replace_history([]),
            lambda: old.append_messages("late"),
            lambda: setattr(old, "request_params", tr.RequestParams(max_iterations=0)),
        ):
            with pytest.raises(tr.TurnEndedError, match="the runner's block was left"):
                change()
        assert (await runner.until_done()).text == "two"
    assert [message.text for message in agent.history] == ["first", "one", "second", "two"]


# --- templates (F37) ------------------------------------------------------------


async def test_f37_an_answer_that_the_repair_moves_to_its_template_is_a_template() -> None:
    history = [
        tr.Message.assistant(tool_calls=[call("asks", id="a")], template=True),
        tr.Message.user(""),
        tr.Message.user("and", tool_results=[tr.ToolResult("a", "asks", "answer")]),
    ]
    model = ScriptedModel(["done"])
    agent = tr.ToolAgent("agent", model=model, history=history)
    await agent.generate("go", params=tr.RequestParams(use_history=False))
    [request] = model.requests
    assert [result.text for result in request.history[1].tool_results] == ["answer"]


# --- the cap, in the record -----------------------------------------------------


async def test_a_reply_that_met_the_cap_says_so_in_its_record() -> None:
    journal = tr.MemoryJournal()
    agent = agent_of(
        [call("works")],
        [call("works")],
        tools=[tr.tool(trio.lowlevel.checkpoint, name="works")],
        journal=journal,
        session="s",
        params=tr.RequestParams(max_iterations=1),
    )
    async with agent:
        await agent.generate("go")
    stored = journal.stored("s")
    assert [each.cap for each in stored if isinstance(each, records.ModelFinished)] == [None, 1]
