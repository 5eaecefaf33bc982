"""Cases that broke an earlier version: tools, observers and stores that do what nobody expects.

Each is the smallest program of its kind; the promise it is about is in its name.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as events
import trio_runner.records as records
from trio_runner.testing import ScriptedModel, call

Status = tr.CallStatus


def agent_of(*replies: Any, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent("agent", model=ScriptedModel([*replies]), **options)


def statuses(agent: tr.ToolAgent) -> list[Status]:
    return [result.status for message in agent.history for result in message.tool_results]


class Seen:
    """Keeps every event."""

    def __init__(self) -> None:
        self.all: list[events.Event] = []

    def on_event(self, event: events.Event) -> None:
        self.all.append(event)

    def suppressed(self) -> list[BaseException]:
        return [each.error for each in self.all if isinstance(each, events.ErrorSuppressed)]


# --- cancellations in a foreign loop's words (C1, C4) ---------------------------


async def speaks_asyncio() -> None:
    """Sleep, and answer a cancel as a tool on an asyncio bridge does."""
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        raise asyncio.CancelledError("the other loop stopped") from None


async def test_c4_a_timeout_that_a_tool_answers_with_a_foreign_cancel_is_timed_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agent = agent_of(call("slow"), "done", tools=[tr.tool(speaks_asyncio, name="slow", timeout=2)])
    await agent.generate("go")
    assert statuses(agent) == [Status.TIMED_OUT]


async def test_c4_a_cancelled_call_that_answers_with_a_foreign_cancel_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agent = agent_of(call("slow", id="c"), "done", tools=[tr.tool(speaks_asyncio, name="slow")])
    async with trio.open_nursery() as nursery, agent.turn("go") as runner:

        @nursery.start_soon
        async def stop() -> None:
            await trio.sleep(1)
            assert runner.cancel_call("c")

        assert (await runner.until_done()).text == "done"
    assert statuses(agent) == [Status.CANCELLED]


async def test_c1_the_callers_cancel_wins_over_the_foreign_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agent = agent_of(call("slow"), "done", tools=[tr.tool(speaks_asyncio, name="slow")])
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
    assert scope.cancelled_caught
    assert statuses(agent) == [Status.INTERRUPTED]


async def test_c4_a_foreign_cancel_of_the_tools_own_is_its_error() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    agent = agent_of(call("gives_up"), "done", tools=[gives_up])
    assert (await agent.generate("go")).text == "done"
    assert statuses(agent) == [Status.ERROR]
    assert "by nobody's request" in agent.history[2].tool_results[0].text


# --- what a tool says of itself (C4) --------------------------------------------


@pytest.mark.parametrize("threaded", [True, False])
@pytest.mark.parametrize(
    "status",
    [Status.NOT_STARTED, Status.LIMIT_REACHED, Status.OUTPUT_CUT, Status.UNKNOWN_AFTER_CRASH],
)
async def test_c4_a_tool_that_ran_cannot_say_that_it_did_not(
    status: Status, threaded: bool
) -> None:
    def says() -> tr.ToolResult:
        return tr.ToolResult(content="text", status=status)

    agent = agent_of(call("says"), "done", tools=[tr.tool(says, inline=not threaded)])
    assert (await agent.generate("go")).text == "done"
    assert statuses(agent) == [Status.ERROR]


@pytest.mark.parametrize("where", ["tool", "model", "hook"])
async def test_c3_a_generator_exit_of_user_code_is_an_error_and_everything_is_committed(
    where: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def closes(*_: Any) -> Any:
        raise GeneratorExit(where)

    async def works() -> str:
        if where == "tool":
            raise GeneratorExit(where)
        return "ok"

    journal = tr.MemoryJournal(0.5)
    agent = agent_of(
        call("works"),
        closes if where == "model" else "done",
        tools=[works],
        hooks=tr.ToolRunnerHooks(after_tool_call=closes) if where == "hook" else None,
        journal=journal,
        session="s",
    )
    async with agent:
        with pytest.raises(RuntimeError, match="raised GeneratorExit"):
            await agent.generate("go")
        assert journal.statistics().open_tickets == 0
        assert tr.fold(journal.stored("s")).history.snapshot() == agent.history
        last = agent.last_turn
        assert last is not None
        assert last.end_reason is tr.EndReason.FAILED


# --- media that tools attach (C2, C3) -------------------------------------------


@pytest.mark.parametrize("text", ["", "  ", "\ud800"])
async def test_c2_attached_text_that_is_no_text_does_not_spoil_the_history(text: str) -> None:
    async def attaches(context: tr.ToolContext) -> None:
        context.attach(tr.TextContent(text))

    agent = agent_of(call("attaches"), "done", tools=[attaches])
    await agent.generate("go")
    tr.check_history(agent.history)
    assert len(agent.history) == (4 if not text.strip() else 5)


async def test_attaching_what_is_no_content_is_the_tools_error() -> None:
    async def attaches(context: tr.ToolContext) -> None:
        context.attach(b"\x89PNG")  # type: ignore[arg-type]

    agent = agent_of(call("attaches"), "done", tools=[attaches])
    await agent.generate("go")
    assert statuses(agent) == [Status.ERROR]


async def test_c3_what_a_finished_call_attached_survives_the_cancel_of_its_sibling(
    autojump_clock: trio.testing.MockClock,
) -> None:
    picture = tr.ImageContent("aGk=", "image/png")

    async def attaches(context: tr.ToolContext) -> str:
        context.attach(picture)
        return "see the picture"

    journal = tr.MemoryJournal()
    agent = agent_of(
        [call("sleeps"), call("attaches")],
        "done",
        tools=[tr.tool(trio.sleep_forever, name="sleeps"), attaches],
        journal=journal,
        session="s",
    )
    async with agent:
        with trio.move_on_after(1):
            await agent.generate("go")
        assert statuses(agent) == [Status.INTERRUPTED, Status.OK]
        assert agent.history[-1].content == (picture,)
        assert tr.fold(journal.stored("s")).history.snapshot() == agent.history


# --- errors that lose (C7) ------------------------------------------------------


async def test_c7_a_fatal_error_that_a_cancel_overtakes_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def breaks() -> None:
        raise tr.FatalToolError("broken")

    seen = Seen()
    sleeps = tr.tool(trio.sleep_forever, name="sleeps")
    agent = agent_of([call("breaks"), call("sleeps")], tools=[breaks, sleeps], observers=[seen])
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
    assert scope.cancelled_caught
    assert [str(error) for error in seen.suppressed()] == ["broken"]


async def test_c7_the_turns_deadline_beats_what_a_cleanup_raises_because_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slow(*_: Any) -> tr.Message:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("cleanup")

    seen = Seen()
    agent = agent_of(slow, observers=[seen], params=tr.RequestParams(turn_timeout=1))
    with pytest.raises(tr.TurnTimeoutError):
        await agent.generate("go")
    assert [str(error) for error in seen.suppressed()] == ["cleanup"]
    last = agent.last_turn
    assert last is not None
    assert last.end_reason is tr.EndReason.TIMED_OUT


class BadClose(tr.MemoryJournal):
    """A journal whose sessions cannot be closed."""

    async def open(self, session_id: str) -> Any:
        session = await super().open(session_id)

        async def aclose() -> None:
            raise OSError("close failed")

        session.aclose = aclose
        return session


async def test_c7_an_error_of_closing_leaves_when_nothing_else_does() -> None:
    with pytest.raises(OSError, match="close failed"):
        async with agent_of("done", journal=BadClose(), session="s") as agent:
            await agent.generate("go")


@pytest.mark.parametrize("cancelled_while", ["inside", "at the end"])
async def test_c1_an_error_of_closing_does_not_replace_the_callers_cancel(
    cancelled_while: str, caplog: pytest.LogCaptureFixture
) -> None:
    with trio.CancelScope() as scope:
        async with agent_of("done", journal=BadClose(), session="s"):
            scope.cancel()
            if cancelled_while == "inside":
                await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    if cancelled_while == "inside":
        assert "overtaken" in caplog.text


async def test_c7_ctrl_c_beats_an_error_of_closing() -> None:
    with pytest.raises(KeyboardInterrupt):
        async with agent_of("done", journal=BadClose(), session="s"):
            raise KeyboardInterrupt


# --- observers (F14) ------------------------------------------------------------


async def test_a_cancellation_that_an_observer_raises_is_contained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Bad:
        def on_event(self, event: events.Event) -> None:
            raise asyncio.CancelledError("observer")

    caplog.set_level(logging.CRITICAL, "trio_runner")
    agent = agent_of("done", observers=[Bad()])
    runner = agent.turn("go")
    assert (await runner.until_done()).text == "done"
    assert runner.observer_errors > 0


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


# --- stores that fail in foreign words (C2, C3) ---------------------------------


@pytest.mark.parametrize("failing", range(7))
async def test_c2_an_append_that_is_cancelled_by_a_foreign_loop_loses_no_record(
    failing: int,
) -> None:
    journal = tr.MemoryJournal()
    agent = agent_of(call("works"), "done", tools=[works], journal=journal, session="s")
    async with agent:
        session: Any = journal._writers["s"]
        append, count = session.append, iter(range(100))

        def fails(batch: Any) -> Any:
            if next(count) == failing:
                raise asyncio.CancelledError("store")
            return append(batch)

        session.append = fails  # the first append of the session is done by now
        assert (await agent.generate("go")).text == "done"
    assert tr.fold(journal.stored("s")).history.snapshot() == agent.history


@pytest.mark.parametrize("fault", [None, OSError("wait"), asyncio.CancelledError()])
async def test_c3_a_ticket_that_cannot_wait_is_looked_at_again(
    fault: BaseException | None, autojump_clock: trio.testing.MockClock
) -> None:
    class Hasty:
        """A ticket that does not wait."""

        def __init__(self, ticket: tr.CommitTicket) -> None:
            self.ticket = ticket

        done = property(lambda self: self.ticket.done)
        error = property(lambda self: self.ticket.error)

        async def wait(self) -> None:
            await trio.lowlevel.checkpoint()
            if fault is not None:
                raise fault

    journal = tr.MemoryJournal(1.0)
    agent = agent_of(call("works"), "done", tools=[works], journal=journal, session="s")
    async with agent:
        session: Any = journal._writers["s"]
        append = session.append

        def hasty(batch: Any) -> Any:
            return Hasty(append(batch))

        session.append = hasty
        assert (await agent.generate("go")).text == "done"
        assert journal.statistics().open_tickets == 0
        last = agent.last_turn
        assert last is not None
        assert last.commit_errors == ()


async def works() -> str:
    return "ok"


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
