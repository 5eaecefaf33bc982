"""The cancellation suite on turns in which calls wait for somebody's word.

Inline: approvers are waiting, several at once, while other calls run. Suspended: a turn that
ended with its calls open goes on in another process, with decisions on them, and the fault
comes there. ``--full-sweeps`` runs every position.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner import records as r
from trio_runner.testing import Case, Outcome, ScriptedModel, call, check_agent, sweep
from trio_runner.testing._agent_turn import AgentTurn
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing._turn_cases import DRIVES, Drive

STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)
SESSION = "s"
FIRST = [call("pay", id="c1", n=1), call("look", id="c2", n=2), call("pay", id="c3", n=3)]
SECOND = [call("pay", id="c4", n=4), call("look", id="c5", n=5)]
SCRIPT = [FIRST, SECOND, "the answer", "never asked for"]
DENIED, EDITED = 3, 10


# --- inline ---------------------------------------------------------------------------


async def pay(n: int) -> str:
    await trio.lowlevel.checkpoint()
    return f"paid {n}"


async def look(n: int) -> str:
    for _ in range(2):
        await trio.lowlevel.checkpoint()
    return f"looked {n}"


async def approver(request: tr.ApprovalRequest) -> tr.Decision:
    """Takes a while; edits, denies and allows."""
    await trio.sleep(1)
    await trio.lowlevel.checkpoint()
    match request.arguments["n"]:
        case 1:
            return tr.Approve({"n": EDITED})
        case 3:
            return tr.Deny("not this one.")
        case _:
            return tr.Approve()


def make_agent(model: tr.Model, journal: tr.Journal, session: str) -> tr.ToolAgent:
    return tr.ToolAgent(
        "approved",
        model=model,
        tools=[tr.tool(pay, needs_approval=True), tr.tool(look)],
        approver=approver,
        journal=journal,
        session=session,
    )


class InlineTurn(AgentTurn):
    """A turn whose approver takes its time, on either journal."""

    def __init__(self, drive: Drive, *, sqlite: bool, **settings: Any) -> None:
        super().__init__(make_agent, SCRIPT, drive, **settings)
        self._sqlite = sqlite

    def make_journal(self) -> Any:
        if not self._sqlite:
            return super().make_journal()
        engine: Any = InlineEngine()
        engine.delay = self._delay
        return tr.SqliteJournal(IN_MEMORY, _engine=engine)

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        for call_id in self.ledger.entered:
            arguments = {"c1": EDITED, "c2": 2, "c4": 4, "c5": 5}.get(call_id)
            if arguments is None:
                yield f"{call_id} was denied, and ran"
        if self.journal is not None:
            stored = self.journal.stored("swept")
            yield from consented(stored)
            for record in stored:
                match record:
                    case r.TurnEnded(end_reason=tr.EndReason.SUSPENDED):
                        yield "C8: it is suspended, and each of its calls had a word"
                    case _:
                        pass


def consented(stored: Sequence[r.Record]) -> Iterator[str]:
    """No start of a call that needs consent stands without its approval in front of it."""
    approved: dict[str, str] = {}
    for record in stored:
        match record:
            case r.CallApproved(call_id=call_id, arguments_hash=digest):
                approved[call_id] = digest
            case r.ToolStarted(call_id=call_id, name="pay", arguments_hash=digest):
                if approved.get(call_id) != digest:
                    yield f"{call_id} started with arguments that nobody approved"
            case _:
                pass


@pytest.mark.slow
@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
@pytest.mark.parametrize("drive", DRIVES)
def test_every_fault_while_approvers_wait_keeps_the_contract(
    drive: Drive, sqlite: bool, full_sweeps: bool
) -> None:
    positions = 0
    for watched, faults in ((False, STEP_FAULTS), (True, CALL_FAULTS)):
        report = sweep(
            InlineTurn(drive, sqlite=sqlite, delay=0.5 if sqlite else 0.0, watched=watched),
            faults=faults,
            seeds=range((3 if sqlite else 8) if full_sweeps else 1),
            max_positions=None if full_sweeps else 4,
        )
        report.raise_if_failed()
        positions += report.positions
    print(drive, "sqlite" if sqlite else "memory", positions, "positions")
    assert positions > 10


def make_agent_without_approver(model: tr.Model, journal: tr.Journal, session: str) -> tr.ToolAgent:
    return tr.ToolAgent(
        "suspends",
        model=model,
        tools=[tr.tool(pay, needs_approval=True), tr.tool(look)],
        journal=journal,
        session=session,
    )


def test_a_turn_that_ends_suspended_keeps_the_contract(full_sweeps: bool) -> None:
    report = check_agent(
        make_agent_without_approver,
        [FIRST, "never asked for"],
        seeds=[0],
        max_positions=None if full_sweeps else 4,
    )
    report.raise_if_failed()
    print(report.positions, "positions")
    assert report.positions > 50


# --- suspended, and gone on with --------------------------------------------------------


def by_place(request: tr.ModelRequest) -> Any:
    """By the place in the conversation, as a model would answer that is asked again."""
    asked = sum(bool(message.tool_calls) for message in request.history)
    return [FIRST, SECOND, "the answer"][asked]


HUMAN = tr.external_tool("look", "Is done by hand.", {"type": "object"})


class SuspendedTurn:
    """Makes cases: a session whose turn waits, and the agent that goes on with decisions.

    Args:
      decides: on which calls; the others are decided in ``go_on``.
      asks: the agent has an approver, who is asked about the others.
    """

    def __init__(
        self,
        drive: Drive = "generate",
        *,
        sqlite: bool = False,
        decides: Sequence[str] = ("c1", "c2", "c3"),
        asks: bool = False,
    ) -> None:
        self.drive, self.sqlite, self.decides, self.asks = drive, sqlite, decides, asks

    def __call__(self) -> Case:
        self.ran: list[tuple[str, int]] = []
        self.returned: list[str] = []
        engine: Any = InlineEngine()
        self.journal: Any = (
            tr.SqliteJournal(IN_MEMORY, _engine=engine) if self.sqlite else tr.MemoryJournal()
        )
        return Case(self.run, self.check, judge=True)

    def agent(self, *, asks: bool = False) -> tr.ToolAgent:
        return tr.ToolAgent(
            "suspended",
            model=ScriptedModel([by_place] * 4),
            tools=[tr.tool(self.pay, needs_approval=True), HUMAN],
            approver=approver if asks else None,
            journal=self.journal,
            session=SESSION,
        )

    async def pay(self, n: int) -> str:
        call_id = tr.current_tool_context().call_id
        self.ran.append((call_id, n))
        await trio.lowlevel.checkpoint()
        self.returned.append(call_id)
        return f"paid {n}"

    def word(self, call_id: str) -> Any:
        words: dict[str, Any] = {
            "c1": tr.Approve({"n": EDITED}),
            "c2": "by hand",
            "c3": tr.Deny(),
            "c4": tr.Approve(),
            "c5": {"by": "hand"},
        }
        return words[call_id]

    async def run(self) -> object:
        # What was before is over before the sweep begins: no checkpoint of ours until then.
        session = await self.journal.open(SESSION)
        session.append(lived())
        await session.aclose()
        decisions = {each: self.word(each) for each in self.decides}
        async with self.agent(asks=self.asks) as agent:
            if self.drive == "generate":
                return (await agent.resume(decisions=decisions)).text
            runner = tr.ToolRunner(agent, resume=True, decisions=decisions)
            if self.drive == "until_done":
                return (await runner.until_done()).text
            async with runner:
                async for message in runner:
                    if self.drive == "break":
                        return message.text
        return None

    def check(self, outcome: Outcome) -> Iterator[str]:
        stored = tuple(self.journal.stored(SESSION))
        if len(stored) < len(lived()):
            return  # the fault came before the session was laid out
        yield from self.check_records(stored)
        yield from trio.run(self.go_on, clock=trio.testing.MockClock(autojump_threshold=0))
        yield from self.check_records(tuple(self.journal.stored(SESSION)))
        for call_id in dict(self.ran):
            if [each for each, _ in self.ran].count(call_id) > 1:
                yield f"once: {call_id} ran twice"

    async def go_on(self) -> list[str]:
        """Whatever was left, the next process comes to the answer."""
        agent = self.agent()
        async with agent:
            for _ in range(6):
                last = agent.conversation.turn
                assert last is not None
                if last.end_reason is tr.EndReason.ANSWERED:
                    return []
                decisions = {each.call_id: self.word(each.call_id) for each in agent.pending}
                await agent.resume(decisions=decisions or None)
        return ["the turn does not come to its answer"]

    def check_records(self, stored: Sequence[r.Record]) -> Iterator[str]:
        try:
            state = tr.fold(stored)
        except tr.RecordError as error:
            yield f"C2: the session does not open any more: {error}"
            return
        try:
            tr.check_history(state.messages)
        except tr.HistoryError as error:
            yield f"C2: {error}"
        yield from consented(stored)
        results = {e.result.call_id: e.result for e in stored if type(e) is r.ToolFinished}
        for call_id in self.returned:
            if results[call_id].status is not tr.CallStatus.OK:
                yield f"C3: {call_id} returned and is {results[call_id].status.value}"
        for call_id, n in self.ran:
            if (call_id, n) not in (("c1", EDITED), ("c4", 4)):
                yield f"{call_id} ran with {n}"
        for call_id, result in results.items():
            ran = call_id in dict(self.ran)
            if ran and result.status in (tr.CallStatus.NOT_STARTED, tr.CallStatus.DENIED):
                yield f"C4: {call_id} ran and is {result.status.value}"
            if not ran and result.status is tr.CallStatus.INTERRUPTED:
                yield f"C4: {call_id} never ran and is interrupted"
        decided = {e.call_id for e in stored[len(lived()) :] if type(e) is r.CallApproved}
        decided |= {e.result.call_id for e in stored[len(lived()) :] if type(e) is r.ToolFinished}
        begun = [e for e in stored[len(lived()) :] if type(e) is r.TurnStarted]
        if begun and not self.asks and not decided >= set(self.decides):
            yield f"the turn went on, and of the decisions only {sorted(decided)} are there"


@functools.cache
def lived() -> tuple[r.Record, ...]:
    """The records of a turn that is suspended."""
    turn = SuspendedTurn()

    async def live() -> None:
        turn()
        async with turn.agent() as agent:
            await agent.generate("go")

    trio.run(live, clock=trio.testing.MockClock(autojump_threshold=0))
    return tuple(turn.journal.stored(SESSION))


@pytest.mark.slow
@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
@pytest.mark.parametrize("drive", DRIVES)
def test_a_suspended_turn_that_goes_on_keeps_the_contract_at_every_step(
    drive: Drive, sqlite: bool, full_sweeps: bool
) -> None:
    lived()  # runs trio, which a swept run cannot
    positions = 0
    for decides, asks in ((("c1", "c2", "c3"), False), (("c1",), False), (("c2",), True)):
        report = sweep(
            SuspendedTurn(drive, sqlite=sqlite, decides=decides, asks=asks),
            faults=STEP_FAULTS,
            seeds=range((3 if sqlite else 8) if full_sweeps else 1),
            max_positions=None if full_sweeps else 4,
        )
        report.raise_if_failed()
        positions += report.positions
    print(drive, "sqlite" if sqlite else "memory", positions, "positions")
    assert positions > 10
