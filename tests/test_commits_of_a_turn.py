"""What a turn commits and when (F33), and what it does when the store fails, hangs or breaks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call

# --- what is committed when -----------------------------------------------------


class CountingJournal:
    """Notes each append as the kinds of its records."""

    def __init__(self, inner: tr.MemoryJournal | None = None) -> None:
        self.inner = inner or tr.MemoryJournal()
        self.appends: list[str] = []

    async def open(self, session_id: str) -> Any:
        session = await self.inner.open(session_id)
        append = session.append

        def noting(records: Sequence[r.Record]) -> tr.CommitTicket:
            self.appends.append(" ".join([short(record) for record in records]))
            return append(records)

        session.append = noting  # type: ignore[method-assign]
        return session


def short(record: r.Record) -> str:
    match record:
        case r.ToolStarted(call_id=call_id):
            return f"start:{call_id}"
        case r.ToolFinished(result=result):
            return f"result:{result.call_id}"
        case _:
            return type(record).__name__


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(journal: Any, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), journal=journal, session="s", **options)


def three(name: str = "sleeps") -> list[tr.ToolCall]:
    return [call(name, id=f"c{n}", seconds=3 - n) for n in range(3)]


async def test_a_step_is_the_reply_the_starts_together_and_each_result(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = CountingJournal()
    async with agent_of(journal, three(), "done") as agent:
        await agent.generate("go")
    assert journal.appends == [
        "SessionOpened", "TurnStarted", "ModelFinished",
        "start:c0 start:c1 start:c2", "result:c2", "result:c1", "result:c0",
        "ModelFinished", "TurnEnded",
    ]  # fmt: skip


@pytest.mark.parametrize("by", ["barrier", "limit", "serial"])
async def test_a_call_that_waits_is_recorded_when_it_begins(
    by: str, autojump_clock: trio.testing.MockClock
) -> None:
    journal = CountingJournal()
    options: dict[str, Any] = {}
    match by:
        case "barrier":
            options["tools"] = [tr.tool(sleeps, sequential=True)]
        case "limit":
            options["params"] = tr.RequestParams(max_parallel_tools=1)
        case _:
            options["params"] = tr.RequestParams(parallel_tool_calls=False)
    async with agent_of(journal, three(), "done", **options) as agent:
        await agent.generate("go")
    assert journal.appends[3:9] == [
        "start:c0", "result:c0", "start:c1", "result:c1", "start:c2", "result:c2"
    ]  # fmt: skip


async def test_a_call_behind_a_named_limiter_is_recorded_when_it_has_its_slot(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = CountingJournal()
    limited = tr.tool(sleeps, name="limited", limiter=trio.CapacityLimiter(1))
    asked = [*three(), *[call("limited", id=f"l{n}", seconds=10) for n in range(2)]]
    async with agent_of(journal, asked, "done", tools=[sleeps, limited]) as agent:
        await agent.generate("go")
    assert journal.appends[3] == "start:c0 start:c1 start:c2"
    limits = [entry for entry in journal.appends if ":l" in entry]
    assert [entry.split(":")[0] for entry in limits] == ["start", "result"] * 2
    assert limits[0][-2:] == limits[1][-2:]


async def test_a_refused_call_has_a_result_and_no_start() -> None:
    journal = CountingJournal()
    asked = [call("nosuch", id="u0"), call("sleeps", id="c0", seconds=0)]
    async with agent_of(journal, asked, "done") as agent:
        await agent.generate("go")
    assert journal.appends[3:6] == ["result:u0", "start:c0", "result:c0"]


async def test_a_turn_without_history_writes_nothing() -> None:
    journal = CountingJournal()
    params = tr.RequestParams(use_history=False)
    async with agent_of(journal, three(), "done", params=params) as agent:
        before = list(journal.appends)
        await agent.generate("go")
        assert journal.appends == before
        assert agent.history == ()


async def test_calls_answered_on_arrival_are_one_commit_with_their_reply() -> None:
    journal = CountingJournal()
    params = tr.RequestParams(max_iterations=0)
    async with agent_of(journal, three(), params=params) as agent:
        await agent.generate("go")
    assert journal.appends[2:] == [
        "ModelFinished result:c0 result:c1 result:c2", "TurnEnded"
    ]  # fmt: skip


# --- a store that fails, through the agent --------------------------------------


class Told:
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.CommitFailed(error=error):
                self.errors.append(error)
            case _:
                pass


@pytest.mark.parametrize("failing", range(1, 9))
async def test_best_effort_reports_in_three_places_and_goes_on(
    failing: int, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tr.MemoryJournal(script={failing: OSError("disk full")})
    told = Told()
    async with agent_of(journal, three(), "done", "next", observers=[told]) as agent:
        with caplog.at_level(logging.WARNING, logger="trio_runner"):
            assert (await agent.generate("go")).text == "done"
        last = agent.last_turn
        assert last is not None
        assert [type(error) for error in last.commit_errors] == [tr.CommitFailedError]
        assert told.errors == list(last.commit_errors)
        assert "disk full" in caplog.text
        if failing < 8:  # else nothing came later in this turn
            assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history
        await agent.generate("again")
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


async def test_a_store_that_is_down_all_the_time_never_breaks_the_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay=OSError("down"))
    async with agent_of(journal, three(), "done", "next") as agent:
        assert (await agent.generate("go")).text == "done"
        journal.delay = 0.0
        assert (await agent.generate("again")).text == "next"
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


class BrokenTicket:
    """A ticket that cannot be waited for."""

    done = False
    error = None

    async def wait(self) -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("broken")


@pytest.mark.parametrize("raises_in", ["append", "wait"])
async def test_best_effort_bears_a_store_that_raises_where_it_should_not(
    raises_in: Literal["append", "wait"], autojump_clock: trio.testing.MockClock
) -> None:
    class Breaks:
        records: Sequence[r.Record] = ()

        def append(self, records: Sequence[r.Record]) -> BrokenTicket:
            if raises_in == "append":
                raise OSError("broken")
            return BrokenTicket()

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    class BreaksJournal:
        async def open(self, session_id: str) -> Breaks:
            await trio.lowlevel.checkpoint()
            return Breaks()

    async with agent_of(BreaksJournal(), three(), "done") as agent:
        assert (await agent.generate("go")).text == "done"
        assert agent.last_turn is not None
        assert agent.last_turn.commit_errors


async def test_a_hanging_store_costs_commit_timeout_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay="hang")
    told = Told()
    agent = agent_of(journal, three(), "done", commit_timeout=7.0, grace=2.0, observers=[told])
    async with agent:
        began = trio.current_time()
        async with agent.turn("go") as runner:
            assert (await runner.until_done()).text == "done"
            # The tools took 3 s of it; one wait for the reply, and then for nothing more.
            assert trio.current_time() - began == pytest.approx(7.0 + 3.0)
        assert [type(error) for error in told.errors] == [tr.CommitUnknownError]
        # Leaving waits for at most grace.
        assert trio.current_time() - began <= 7.0 + 3.0 + 2.0
        journal.delay = 0.0


async def test_a_fatal_error_waits_for_a_hanging_store_no_longer_than_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # C6: after *any* interrupt (cancel, error, break) it is the turn's grace that counts.
    journal = tr.MemoryJournal()

    async def stop() -> None:
        journal.delay = "hang"
        raise tr.FatalToolError("stop")

    replies = (call("stop"), "never asked for")
    agent = agent_of(journal, *replies, tools=[stop], commit_timeout=50.0, grace=2.0)
    async with agent:
        began = trio.current_time()
        with pytest.raises(tr.FatalToolError, match="stop"):
            await agent.generate("go")
        assert trio.current_time() - began == pytest.approx(2.0)
        journal.delay = 0.0


async def test_leaving_a_turn_that_gave_a_commit_up_waits_for_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # C6: past commit_timeout best effort goes on, "waiting for no further commit until the
    # store has answered again"; a normal end is no interrupt.
    journal = tr.MemoryJournal(delay="hang")
    async with agent_of(journal, "done", commit_timeout=7.0, grace=2.0) as agent:
        began = trio.current_time()
        assert (await agent.generate("go")).text == "done"
        assert trio.current_time() - began == pytest.approx(7.0)
        journal.delay = 0.0


async def test_a_store_that_wakes_up_is_waited_for_again_and_has_everything(
    autojump_clock: trio.testing.MockClock,
) -> None:
    journal = tr.MemoryJournal(delay="hang")
    async with agent_of(journal, "done", "next", commit_timeout=7.0, grace=2.0) as agent:
        await agent.generate("go")
        journal.delay = 0.5
        await agent.generate("again")
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history
        assert journal.statistics().open_tickets == 0


async def test_strict_with_a_hanging_store_runs_no_tool(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ran: list[str] = []

    async def effect() -> str:
        ran.append("effect")
        return "ok"

    journal = tr.MemoryJournal()
    replies = call("effect"), "never"
    agent = agent_of(
        journal, *replies, tools=[effect], durability="strict", commit_timeout=7.0, grace=2.0
    )
    async with agent:
        journal.delay = "hang"
        began = trio.current_time()
        with pytest.raises(tr.CommitUnknownError):
            await agent.generate("go")
        # One deadline for all finishes of the turn.
        assert trio.current_time() - began == pytest.approx(9.0)
        assert ran == []
        assert agent.last_turn is not None
        assert agent.last_turn.end_reason is tr.EndReason.FAILED
        tr.check_history(agent.history)
        journal.delay = 0.0


async def test_no_ticket_is_open_when_a_turn_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for seconds in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5):
        journal = tr.MemoryJournal(delay=1.0)
        async with agent_of(journal, three(), "done") as agent:
            await trio.sleep(2)
            with trio.move_on_after(seconds):
                await agent.generate("go")
            assert journal.statistics().open_tickets == 0
            assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


# --- strict ---------------------------------------------------------------------

Drive = Callable[[tr.ToolAgent], Awaitable[object]]


async def by_generate(agent: tr.ToolAgent) -> object:
    return await agent.generate("go")


async def by_iterating(agent: tr.ToolAgent) -> object:
    async with agent.turn("go") as runner:
        return [message async for message in runner]


drives = pytest.mark.parametrize("drive", [by_generate, by_iterating])


#: The appends of the turn: SessionOpened, TurnStarted, the reply, the start, the result,
#: the answer, TurnEnded.
@drives
@pytest.mark.parametrize("failing", range(7))
async def test_with_strict_durability_a_failed_commit_ends_the_turn(
    failing: int, drive: Drive
) -> None:
    journal = tr.MemoryJournal(script={failing: OSError("disk full")})
    ran: list[str] = []
    completed: list[str] = []

    async def effect() -> str:
        ran.append("effect")
        return "ok"

    async def complete(runner: tr.ToolRunner, message: tr.Message) -> None:
        completed.append(message.text)

    agent = agent_of(
        journal, call("effect"), "done", tools=[effect], durability="strict",
        hooks=tr.ToolRunnerHooks(after_turn_complete=complete),
    )  # fmt: skip
    async with agent:
        with pytest.raises(tr.CommitFailedError, match="disk full"):
            await drive(agent)

        if failing <= 3:
            assert ran == []  # before any side effect
        last = agent.last_turn
        assert last is not None
        # The commit of the end itself comes after the answer is durable: that turn is answered.
        ended = tr.EndReason.FAILED if failing < 6 else tr.EndReason.ANSWERED
        assert last.end_reason is ended
        assert [type(error) for error in last.commit_errors] == [tr.CommitFailedError]
        assert completed == []
        # The append that ended the turn carried what was missed.
        opened = tr.fold(journal.stored("s"))
        assert tuple(opened.history.view()) == agent.history
        assert opened.turn is not None
        assert opened.turn.end_reason is (last.end_reason if failing < 6 else None)
    # What was missed is sent once more when the session closes.
    opened = tr.fold(journal.stored("s"))
    assert opened.turn is not None
    assert opened.turn.end_reason is ended


@drives
async def test_with_strict_durability_the_next_turn_works_once_the_store_does(
    drive: Drive,
) -> None:
    journal = tr.MemoryJournal()
    agent = agent_of(journal, call("sleeps", seconds=0), "next", durability="strict")
    async with agent:
        journal.delay = OSError("disk full")
        with pytest.raises(tr.CommitFailedError):
            await drive(agent)
        journal.delay = 0.0

        assert (await agent.generate("again")).text == "next"
        opened = tr.fold(journal.stored("s"))
        assert tuple(opened.history.view()) == agent.history


@pytest.mark.parametrize("fate", [OSError("disk full"), "hang"], ids=["fails", "hangs"])
async def test_an_agent_that_is_entered_again_after_an_outage_stores_what_the_session_lacks(
    fate: Any, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tr.MemoryJournal()
    agent = agent_of(journal, "one", call("sleeps", seconds=1), "two", "three")
    async with agent:
        await agent.generate("first")
        journal.delay = fate
        await agent.generate("second")
    had = agent.history
    assert len(had) == 6
    assert len(journal.stored("s")) == 4

    journal.delay = 0
    caplog.clear()
    async with agent:
        assert agent.history == had
        await agent.generate("third")
    assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history
    assert len(agent.history) == 8
    assert "the session wins" not in caplog.text


async def test_a_session_that_somebody_else_went_on_with_wins_over_what_was_not_stored() -> None:
    journal = tr.MemoryJournal()
    agent, other = agent_of(journal, "one", "lost"), agent_of(journal, "theirs")
    async with agent:
        await agent.generate("first")
        journal.delay = OSError("disk full")
        await agent.generate("second")
    journal.delay = 0
    async with other:
        await other.generate("other")
    async with agent:
        assert [message.text for message in agent.history] == ["first", "one", "other", "theirs"]
