"""A turn that asks another agent, with a fault at every step and call: C1-C9 for both turns.

The child's turn has a witness of its own, and its own session is held against it. The last case
passes the child's answer through. ``--full-sweeps`` runs every position; without it the sweeps
are sampled, spread evenly over the whole.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, Self

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call, sweep, sweep_lines
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing._outcome import Outcome
from trio_runner.testing._turn_cases import ReadableJournal, TurnCases
from trio_runner.testing._witness import Witness
from trio_runner.testing.contract import Evidence, check_contract
from trio_runner.testing.reference import DRIVES, SESSION, Drive

NESTED = f"{SESSION}+1:0:ask"
STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)
INTERRUPTS = [("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint")]


class Child(tr.ToolAgent):
    """Remembers its clones, whose turns are the nested ones."""

    clones: list[Child]

    def clone(self, **options: Any) -> Self:
        made = super().clone(**options)
        self.clones.append(made)
        return made


class TwoWitnesses:
    """A journal whose sessions are noted by the witness of the turn that they keep."""

    def __init__(self, journal: ReadableJournal, outer: Witness, inner: Witness) -> None:
        self._outer = outer.journal(journal)
        self._inner = inner.journal(journal)

    async def open(self, session_id: str) -> tr.JournalSession:
        return await (self._outer if session_id == SESSION else self._inner).open(session_id)


class NestedTurn(TurnCases):
    """Makes cases: an agent runs a tool of its own and asks another agent, which runs two.

    Args:
      passes: the answer of the other agent is passed through.
      sqlite: keep the sessions in a `SqliteJournal`.
    """

    patience = 100.0

    def __init__(
        self,
        drive: Drive = "until_done",
        *,
        passes: bool = False,
        sqlite: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(drive, **rest)
        self._passes = passes
        self._engine = InlineEngine() if sqlite else None
        self._leave_after = 1 if passes else 2
        self.inner = Witness()
        self.child: Child
        self.make()

    def make_journal(self) -> ReadableJournal:
        if self._engine is None:
            return tr.MemoryJournal(self._delay)
        self._engine.close()
        engine: Any = InlineEngine(self._delay)  # type: ignore[arg-type]
        self._engine = engine
        return tr.SqliteJournal(IN_MEMORY, _engine=engine)

    def make(self) -> None:
        self.inner = Witness()
        # A fault is planned for the k-th call of either turn: the seams are the same.
        self.inner._seams = self.witness._seams
        journal = self.journal = self.make_journal()
        both: Any = TwoWitnesses(journal, self.witness, self.inner)
        inner = ScriptedModel(
            [
                tr.Message.assistant(
                    tool_calls=[call("work", id="w1"), call("slow", id="w2")], usage=tr.Usage(7, 3)
                ),
                tr.Message.assistant("from below", usage=tr.Usage(20, 5)),
            ]
        )
        asks = [tr.ToolCall("ask", "agent__child", {"message": "?"})]
        script: list[ScriptItem] = [asks, "the answer"]
        if not self._passes:
            asks.append(call("slow", id="own"))
        tools = [self.tool(self.inner, "work", 1), self.tool(self.inner, "slow", 3)]
        self.child = Child("child", model=self.inner.model(inner), tools=tools, grace=self._grace)
        self.child.clones = []
        mode: Any = "passthrough" if self._passes else "postprocess"
        asking = self.witness.tool(tr.agent_tool(self.child))
        self.agent = tr.ToolAgent(
            "around",
            model=self.witness.model(ScriptedModel(script)),
            tools=[asking, self.tool(self.witness, "slow", 2)],
            journal=both,
            session=SESSION,
            grace=self._grace,
            params=tr.RequestParams(tool_result_mode=mode),
        )

    def tool(self, witness: Witness, name: str, steps: int) -> tr.Tool:
        async def run(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            return f"{name} after {steps}"

        return witness.tool(tr.Tool(name, "", {"type": "object"}, run))

    async def run(self) -> object:
        self.inner.ledger.told = self.ledger.told  # there is one log
        self.inner.ledger.is_cancelled = self.ledger.is_cancelled
        try:
            return await super().run()
        finally:
            self.inner.all_left()

    # --- what must hold -----------------------------------------------------------

    def evidence(self, outcome: Outcome | None) -> Evidence:
        self.inner.stop()
        return super().evidence(outcome)

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        for clone in self.child.clones:
            for problem in check_contract(self.evidence_of(clone)):
                yield f"nested: {problem}"
        yield from self.check_join(outcome)

    def evidence_of(self, clone: Child) -> Evidence:
        """What the nested turn left behind."""
        journal = self.journal
        assert journal is not None
        return Evidence(
            ledger=self.inner.ledger,
            history=clone.history,
            last_turn=clone.last_turn,
            busy=clone.conversation.is_busy,
            stored=journal.stored(NESTED),
            journal_failed=self._journal_failed,
            grace=None,  # it is part of the turn around it, and of its grace
            exact_starts=self._exact_starts,
            own_errors=self._may_raise(),
        )

    def check_join(self, outcome: Outcome) -> Iterator[str]:
        """The result of the call says what the nested turn was, and the sums agree."""
        last = self.agent.last_turn
        if last is None:
            return
        results = {each.call_id: each for m in last.messages for each in m.tool_results}
        result = results.get("ask")
        inner = [clone.last_turn for clone in self.child.clones]
        if len(inner) > 1:
            yield f"the child was cloned {len(inner)} times"
        if result is None or not inner or inner[0] is None:
            if result is not None and result.status is tr.CallStatus.OK:
                yield "the call is answered, and no turn was run"
            return
        told = result.meta.get("agent_turn", {})
        reason = inner[0].end_reason
        if told.get("session") != NESTED or told.get("end_reason") != reason.value:
            yield f"the nested turn ended {reason.value}, and its call says {told}"
        if result.status is tr.CallStatus.OK and reason is not tr.EndReason.ANSWERED:
            yield f"the nested turn ended {reason.value}, and its call is ok"
        is_cut = result.status is tr.CallStatus.INTERRUPTED
        exits = isinstance(outcome.raised, KeyboardInterrupt)
        if reason is tr.EndReason.ANSWERED and is_cut and not exits:
            yield "the nested turn had answered, and its call is interrupted"
        stopped = tr.EndReason.INTERRUPTED
        if reason is last.end_reason is stopped and not is_cut:
            yield f"both turns were interrupted, and the call is {result.status.value}"
        if last.nested_usage != inner[0].usage:
            yield f"the nested turn used {inner[0].usage}; the sum is {last.nested_usage}"
        passed = bool(last.messages[-1].meta.get("passed_through"))
        if passed and result.status is not tr.CallStatus.OK:
            yield f"a result was passed through that is {result.status.value}"
        if self._passes and result.status is tr.CallStatus.OK:
            # A hook that raises behind it fails the turn, and the answer stays.
            failed = last.end_reason is tr.EndReason.FAILED
            if passed != (last.end_reason is tr.EndReason.PASSED_THROUGH) and not failed:
                yield f"the turn ended {last.end_reason.value} with {last.messages[-1]}"


ALL_DRIVES = pytest.mark.parametrize("drive", DRIVES)
PASSES = pytest.mark.parametrize("passes", [False, True], ids=["asked", "passed"])


@PASSES
@ALL_DRIVES
@pytest.mark.parametrize("delay", [0.0, 0.5], ids=["instant", "slow"])
def test_every_fault_at_every_step_keeps_the_contract_of_both_turns(
    drive: Drive, passes: bool, delay: float, full_sweeps: bool
) -> None:
    report = sweep(
        NestedTurn(drive, passes=passes, delay=delay),
        faults=STEP_FAULTS,
        seeds=range(8 if full_sweeps else 1),
        max_positions=None if full_sweeps else 5,
    )
    report.raise_if_failed()
    print(drive, passes, delay, report.positions, "positions")
    assert report.positions >= 4 * len(STEP_FAULTS)


@PASSES
@ALL_DRIVES
def test_every_call_that_fails_keeps_the_contract_of_both_turns(
    drive: Drive, passes: bool, full_sweeps: bool
) -> None:
    report = sweep(
        NestedTurn(drive, passes=passes, delay=0.5, watched=True),
        faults=CALL_FAULTS,
        seeds=range(4 if full_sweeps else 1),
        max_positions=None if full_sweeps else 3,
    )
    report.raise_if_failed()
    print(drive, passes, report.positions, "calls")


@PASSES
@ALL_DRIVES
def test_two_interrupts_keep_the_contract_of_both_turns(
    drive: Drive, passes: bool, full_sweeps: bool
) -> None:
    report = sweep(
        NestedTurn(drive, passes=passes, delay=0.5),
        faults=(),
        pairs=INTERRUPTS,
        seeds=[0],
        max_positions=None if full_sweeps else 6,
    )
    report.raise_if_failed()
    print(drive, passes, report.positions, "pairs")


@ALL_DRIVES
def test_the_same_with_a_file(drive: Drive, full_sweeps: bool) -> None:
    for delay in (0.0, 0.5):
        report = sweep(
            NestedTurn(drive, sqlite=True, delay=delay),
            faults=STEP_FAULTS,
            seeds=range(3 if full_sweeps else 1),
            max_positions=None if full_sweeps else 3,
        )
        report.raise_if_failed()
        print(drive, delay, report.positions, "positions with a file")


def test_a_store_that_hangs_is_left_within_one_grace(full_sweeps: bool) -> None:
    report = sweep(
        NestedTurn("until_done", delay="hang"),
        seeds=[0],
        max_positions=None if full_sweeps else 5,
    )
    report.raise_if_failed()
    assert report.positions >= 20


@pytest.mark.parametrize("restrict_ki", [True, False], ids=["run", "plain trio"])
def test_ctrl_c_at_any_line_keeps_the_contract_of_both_turns(
    restrict_ki: bool, full_sweeps: bool
) -> None:
    """Under a plain `trio.run` a call may count as started just before its tool is entered."""
    package = pathlib.Path(tr.__file__).parent
    report = sweep_lines(
        NestedTurn("until_done", delay=0.5, exact_starts=restrict_ki),
        paths=[package / "_core", package / "_shell", package / "_journal"],
        restrict_ki=restrict_ki,
        max_positions=None if full_sweeps else 60,
    )
    report.raise_if_failed()
    print(restrict_ki, report.positions, "lines")
