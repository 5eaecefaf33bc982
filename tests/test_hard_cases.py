"""Cases that broke an earlier version: tools, observers and stores that do what nobody expects.

Each is the smallest program of its kind; the promise it is about is in its name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as events
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


@pytest.mark.parametrize("stopped_by", ["cancel_call", "timeout"])
async def test_c4_a_sync_call_that_waits_for_a_thread_was_not_started(
    stopped_by: str, autojump_clock: trio.testing.MockClock
) -> None:
    entered: list[str] = []

    def waits() -> None:
        entered.append("waits")

    timeout = 1.0 if stopped_by == "timeout" else None
    agent = agent_of(call("waits", id="w"), "done", tools=[tr.tool(waits, timeout=timeout)])
    limiter = trio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    async with limiter, trio.open_nursery() as nursery, agent.turn("go") as runner:

        @nursery.start_soon
        async def stop() -> None:
            await trio.sleep(2)
            assert runner.cancel_call("w") == (stopped_by == "cancel_call")

        assert (await runner.until_done()).text == "done"
    assert entered == []
    assert statuses(agent) == [Status.NOT_STARTED]
    why = "was cancelled" if stopped_by == "cancel_call" else "waited for a thread too long"
    [result] = agent.history[2].tool_results
    assert why in result.text
    assert result.duration is None


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
