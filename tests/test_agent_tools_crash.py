"""A turn that asks another agent is killed at every commit of either session, and resumed.

Whatever was stored then: no tool of the child that is not idempotent runs twice, both sessions
stay valid, and the resumed turn comes to its answer; also when a fault comes at any step of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import Case, Outcome, ScriptedModel, ScriptItem, call, sweep
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine

Append = tuple[str, tuple[r.Record, ...]]
NESTED = "s+1:0:c1"


class Noted:
    """A journal that notes every append, in the order of both sessions together."""

    def __init__(self) -> None:
        self.inner = tr.MemoryJournal()
        self.appends: list[Append] = []

    async def open(self, session_id: str) -> Any:
        session = await self.inner.open(session_id)
        append = session.append

        def noted(records: Sequence[r.Record]) -> tr.CommitTicket:
            self.appends.append((session_id, tuple(records)))
            return append(records)

        setattr(session, "append", noted)  # noqa: B010  of this object only
        return session


class CutTurn:
    """Makes cases: both sessions as a crash left them, and the agent that goes on.

    Args:
      left: the appends that were stored.
    """

    def __init__(self, left: Sequence[Append], *, sqlite: bool = False) -> None:
        self.left = tuple(left)
        self.sqlite = sqlite

    def __call__(self) -> Case:
        self.ran: list[tuple[str, int]] = []
        engine: Any = InlineEngine()
        self.journal: Any = (
            tr.SqliteJournal(IN_MEMORY, _engine=engine) if self.sqlite else tr.MemoryJournal()
        )
        self.engine = engine
        self.laid_out = False
        return Case(self.run, self.check, judge=True)

    def agent(self, journal: Any) -> tr.ToolAgent:
        tools = [self.pay, tr.tool(self.look, idempotent=True)]
        child = tr.ToolAgent("bob", model=ScriptedModel([self.bob] * 9), tools=tools)
        return tr.ToolAgent(
            "alice",
            model=ScriptedModel([self.alice] * 9),
            tools=[child],
            journal=journal,
            session="s",
        )

    def alice(self, request: tr.ModelRequest) -> ScriptItem:
        if request.history[-1].tool_results:
            return "the answer"
        return call("agent__bob", id="c1", message="do it")

    def bob(self, request: tr.ModelRequest) -> ScriptItem:
        if request.history[-1].tool_results:
            return tr.Message.assistant("done", usage=tr.Usage(1, 1))
        calls = [call("pay", id="p"), call("look", id="l")]
        return tr.Message.assistant(tool_calls=calls, usage=tr.Usage(10, 10))

    async def pay(self) -> str:
        return await self.work()

    async def look(self) -> str:
        return await self.work()

    async def work(self) -> str:
        context = tr.current_tool_context()
        self.ran.append((context.name, context.attempt))
        await trio.lowlevel.checkpoint()
        return "worked"

    async def run(self) -> object:
        # The crash is over before the sweep begins: no fault finds a half of it.
        for session_id in ("s", NESTED):
            session = await self.journal.open(session_id)
            for name, records in self.left:
                if name == session_id:
                    session.append(records)
            await session.aclose()
        self.laid_out = True
        async with self.agent(self.journal) as agent:
            return (await agent.resume()).text

    # --- what must hold -----------------------------------------------------------

    def check(self, outcome: Outcome) -> Iterator[str]:
        if not self.laid_out:
            return
        yield from self.check_sessions()
        trio.run(self.go_on, clock=trio.testing.MockClock(autojump_threshold=0))
        yield from self.check_sessions()
        yield from self.check_end()

    async def go_on(self) -> None:
        async with self.agent(self.journal) as agent:
            if agent.can_resume:
                await agent.resume()

    def check_sessions(self) -> Iterator[str]:
        for session_id in ("s", NESTED):
            try:
                tr.check_history(tr.fold(self.journal.stored(session_id)).messages)
            except (tr.RecordError, tr.HistoryError) as error:
                yield f"C2: session {session_id}: {error}"

    def check_end(self) -> Iterator[str]:
        state, inner = (tr.fold(self.journal.stored(name)) for name in ("s", NESTED))
        if state.turn is None or state.turn.end_reason is not tr.EndReason.ANSWERED:
            yield f"the turn did not come to its answer: {state.turn and state.turn.end_reason}"
            return
        stored = [each for _, records in self.left for each in records]
        started = {each.call_id for each in stored if type(each) is r.ToolStarted}
        pays = [each for each in self.ran if each[0] == "pay"]
        if len(pays) + ("p" in started) > 1:
            yield f"once: the payment ran again: {self.ran}, started before: {started}"
        for result in [each for m in state.messages for each in m.tool_results]:
            told = result.meta.get("agent_turn", {})
            if result.status is tr.CallStatus.OK and told.get("end_reason") != "answered":
                yield f"C4: the call is ok, and says {told}"
            if result.status is tr.CallStatus.OK and state.usage.nested != inner.usage.own:
                yield f"the sum is {state.usage.nested}; the nested turn used {inner.usage.own}"


@functools.cache
def lived() -> tuple[Append, ...]:
    """Every append of both sessions, when nothing is cut."""
    turn, journal = CutTurn(()), Noted()
    turn()

    async def live() -> None:
        async with turn.agent(journal) as agent:
            await agent.generate("go")

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    return tuple(journal.appends)


def cuts() -> list[tuple[Append, ...]]:
    """What a crash leaves behind each append, from the beginning of the turn to before its end."""
    whole = lived()
    return [whole[:count] for count in range(2, len(whole))]


@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_a_crash_at_any_commit_is_gone_on_with(sqlite: bool, full_sweeps: bool) -> None:
    positions = 0
    for number, left in enumerate(cuts()):
        report = sweep(
            CutTurn(left, sqlite=sqlite),
            faults=("cancel", "sigint") if full_sweeps else (("cancel", "sigint")[number % 2],),
            seeds=range(2 if full_sweeps else 1),
            max_positions=None if full_sweeps else 8,
        )
        report.raise_if_failed()
        positions += report.positions
    print("sqlite" if sqlite else "memory", len(cuts()), "cuts,", positions, "positions")
    assert positions > 5 * len(cuts())


def test_the_cuts_are_in_both_sessions() -> None:
    ends = {(left[-1][0], type(left[-1][1][-1]).__name__) for left in cuts()}
    assert {
        ("s", "ToolStarted"),
        (NESTED, "SessionOpened"),
        (NESTED, "TurnStarted"),
        (NESTED, "ModelFinished"),
        (NESTED, "ToolStarted"),
        (NESTED, "ToolFinished"),
        (NESTED, "TurnEnded"),
        ("s", "ToolFinished"),
    } <= ends
