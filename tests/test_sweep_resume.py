"""A turn that a crash cut at any record is resumed, with a fault at every step of the resume.

Whatever the records end with, and wherever the fault comes: the session stays valid and opens
to what the agent has, results that were stored are kept, a call runs again under its key and
with a new attempt only, and after the fault the turn can still be brought to its end.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner import records as r
from trio_runner.testing import Case, Outcome, ScriptedModel, call, sweep
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine

SESSION = "s"
FIRST = [call("slow", id="c1"), call("pay", id="c2"), call("slow", id="c3")]
SECOND = [call("pay", id="c4"), call("slow", id="c5")]


def reply(request: tr.ModelRequest) -> Any:
    """By the place in the conversation, as a model would answer that is asked again."""
    asked = sum(bool(message.tool_calls) for message in request.history)
    return [FIRST, SECOND, "the answer"][asked]


class ResumedTurn:
    """Makes cases: a session that was cut, and the agent that goes on with it.

    Args:
      left: the records that the crash left.
      delay: of each commit, in seconds.
      asks: resume with a policy, which takes some steps too.
    """

    def __init__(
        self,
        left: Sequence[r.Record],
        *,
        sqlite: bool = False,
        delay: float = 0.0,
        asks: bool = False,
    ) -> None:
        self.left = tuple(left)
        self.sqlite = sqlite
        self.delay = delay
        self.asks = asks

    def __call__(self) -> Case:
        self.ran: list[tuple[str, str, int]] = []
        self.returned: list[str] = []
        engine: Any = InlineEngine()
        self.journal: Any = (
            tr.SqliteJournal(IN_MEMORY, _engine=engine) if self.sqlite else tr.MemoryJournal()
        )
        self.engine = engine
        return Case(self.run, self.check, judge=True)

    def agent(self) -> tr.ToolAgent:
        return tr.ToolAgent(
            "resumed",
            model=ScriptedModel([reply] * 4),
            tools=[self.pay, tr.tool(self.slow, idempotent=True)],
            journal=self.journal,
            session=SESSION,
        )

    async def pay(self) -> str:
        return await self.work(1)

    async def slow(self) -> str:
        return await self.work(3)

    async def work(self, steps: int) -> str:
        context = tr.current_tool_context()
        self.ran.append((context.call_id, context.idempotency_key, context.attempt))
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        self.returned.append(context.call_id)
        return f"{context.call_id}, attempt {context.attempt}"

    async def policy(self, unknown: tr.UnknownCall) -> tr.UnknownVerdict:
        await trio.lowlevel.checkpoint()
        return unknown.default

    async def run(self) -> object:
        # The crash is over before the sweep begins: no checkpoint of ours until then.
        if not self.sqlite:
            self.journal.delay = 0.0
        session = await self.journal.open(SESSION)
        session.append(self.left)
        await session.aclose()
        self.set_delay(self.delay)
        async with self.agent() as agent:
            reply = await agent.resume(unknown=self.policy if self.asks else None)
        return reply.text

    def set_delay(self, delay: float) -> None:
        (self.engine if self.sqlite else self.journal).delay = delay

    # --- what must hold -----------------------------------------------------------

    def check(self, outcome: Outcome) -> Iterator[str]:
        stored = tuple(self.journal.stored(SESSION))
        if len(stored) < len(self.left):
            return  # the fault came before the crash was laid out
        try:
            tr.fold(stored)
        except tr.RecordError as error:
            yield f"C2: the session does not open any more: {error}"
            return
        yield from self.check_records(stored)
        self.set_delay(0.0)
        ran = len(self.ran)
        yield from trio.run(self.go_on, clock=trio.testing.MockClock(autojump_threshold=0))
        after = tuple(self.journal.stored(SESSION))
        yield from self.check_records(after)
        for call_id, key, attempt in self.ran[ran:]:
            if call_id in {each.result.call_id for each in results_of(stored)}:
                yield f"C3: {call_id} ran again (attempt {attempt}, {key}) after its result"

    async def go_on(self) -> list[str]:
        """Whatever was left, the next process comes to the answer."""
        agent = self.agent()
        async with agent:
            last = agent.conversation.turn
            if last is None or last.end_reason is tr.EndReason.ANSWERED:
                return []
            message = await agent.resume()
        return [] if message.text == "the answer" else [f"the turn went on to {message.text!r}"]

    def check_records(self, stored: Sequence[r.Record]) -> Iterator[str]:
        if tuple(stored[: len(self.left)]) != self.left:
            yield "C3: what was stored has changed"
        state = tr.fold(stored)
        try:
            tr.check_history(state.messages)
        except tr.HistoryError as error:
            yield f"C2: {error}"
        kept = {each.result.call_id: each.result for each in results_of(stored)}
        for call_id in self.returned:
            if kept[call_id].status is not tr.CallStatus.OK:
                yield f"C3: {call_id} returned and is stored as {kept[call_id].status.value}"
        yield from self.check_starts(stored)
        begun = {each.call_id for each in stored if type(each) is r.ToolStarted}
        for result in kept.values():
            if result.status is tr.CallStatus.NOT_STARTED and result.call_id in {
                each.call_id for each in self.left if type(each) is r.ToolStarted
            }:
                yield f"C4: {result.call_id} had started, and is said not to have"
            entered = {call_id for call_id, _, _ in self.ran}
            if result.status is tr.CallStatus.INTERRUPTED and result.call_id not in entered:
                yield f"C4: {result.call_id} was cut by the crash, and is said to be interrupted"
            if result.status is tr.CallStatus.UNKNOWN_AFTER_CRASH and result.call_id not in begun:
                yield f"C4: {result.call_id} never started, and is said to be unknown"

    def check_starts(self, stored: Sequence[r.Record]) -> Iterator[str]:
        starts = [each for each in stored if type(each) is r.ToolStarted]
        for call_id, key, attempt in self.ran:
            since = [each for each in stored[len(self.left) :] if type(each) is r.ToolStarted]
            recorded = [(each.key, each.attempt) for each in since if each.call_id == call_id]
            if (key, attempt) not in recorded:
                yield f"{call_id} ran as {key}, {attempt}; recorded are {recorded}"
        for call_id in {each.call_id for each in starts}:
            ours = [each for each in starts if each.call_id == call_id]
            if [each.attempt for each in ours] != list(range(1, len(ours) + 1)):
                yield f"the attempts of {call_id} are {[each.attempt for each in ours]}"
            if len({each.key for each in ours}) > 1:
                yield f"{call_id} ran under several keys: {[each.key for each in ours]}"
            if len(ours) > 1 and ours[0].name != "slow":
                yield f"once: {call_id} is not idempotent, and was started {len(ours)} times"


def results_of(stored: Sequence[r.Record]) -> Iterator[r.ToolFinished]:
    return (each for each in stored if type(each) is r.ToolFinished)


@functools.cache
def lived() -> tuple[r.Record, ...]:
    """All records of the turn, when nothing is cut."""
    turn = ResumedTurn(())

    async def live() -> None:
        turn()
        async with turn.agent() as agent:
            await agent.generate("go")

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    return tuple(turn.journal.stored(SESSION))


def cuts() -> list[tuple[r.Record, ...]]:
    """Every record at which the crash can come, after the turn began."""
    whole = lived()
    return [whole[:count] for count in range(2, len(whole))]


@pytest.mark.slow
@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_a_resumed_turn_keeps_the_contract_at_every_step(sqlite: bool, full_sweeps: bool) -> None:
    positions = 0
    faults = ("cancel", "deadline", "crash", "sigint")
    for number, left in enumerate(cuts()):
        # Each cut has other steps; the faults take turns unless all are asked for.
        ours = faults if full_sweeps else ("cancel", faults[number % 4])
        turn = ResumedTurn(left, sqlite=sqlite, asks=number % 2 == 1)
        report = sweep(turn, faults=dict.fromkeys(ours), seeds=range(3 if full_sweeps else 1))
        report.raise_if_failed()
        positions += report.positions
    print("sqlite" if sqlite else "memory", len(cuts()), "cuts,", positions, "positions")
    assert positions > 20 * len(cuts())


@pytest.mark.slow
@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_slow_commits_and_a_second_cancel_change_nothing(sqlite: bool, full_sweeps: bool) -> None:
    positions = 0
    for left in cuts()[:: 1 if full_sweeps else 3]:
        turn = ResumedTurn(left, sqlite=sqlite, delay=0.5, asks=True)
        report = sweep(
            turn,
            faults=("cancel",),
            pairs=[("cancel", "cancel")],
            seeds=[0],
            sample=1.0 if full_sweeps else 0.2,
        )
        report.raise_if_failed()
        positions += report.positions
    print("sqlite" if sqlite else "memory", positions, "positions")
    assert positions > 100


def test_the_cuts_are_of_every_kind() -> None:
    kinds = {(type(a), type(b)) for a, b in itertools.pairwise(lived())}
    assert (r.ModelFinished, r.ToolStarted) in kinds
    assert (r.ToolStarted, r.ToolFinished) in kinds
    assert (r.ToolFinished, r.ToolFinished) in kinds
    assert (r.ToolFinished, r.ModelFinished) in kinds
