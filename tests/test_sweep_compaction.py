"""A turn that is compacted twice in its middle and once at its end, with every fault at every step.

The contract holds for it as for any turn, and beside that: whatever comes when, the history is
the one before a compaction or the one after it, nothing that was said is lost to the session,
and a summariser is never shown half a step.

``--full-sweeps`` runs every position; without it the sweeps are sampled, spread evenly.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import trio_runner as tr
import trio_runner.records as r
from trio_runner._core.compaction import is_summary
from trio_runner.testing import Outcome, ScriptedModel, sweep
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing._probe import Options
from trio_runner.testing._sweep import run_once
from trio_runner.testing.reference import DRIVES, SESSION, Drive, ReferenceTurn

ALL_DRIVES = pytest.mark.parametrize("drive", DRIVES)
JOURNALS = pytest.mark.parametrize("delay", [0.0, 0.5], ids=["instant", "slow"])
STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)
INTERRUPTS = [("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint")]

#: What was said before the turn.
EARLIER = (
    tr.Message.user("rules", template=True),
    tr.Message.user("earlier"),
    tr.Message.assistant("earlier answer"),
)
FULL = tr.Usage(900, 0)


def reply(request: tr.ModelRequest) -> tr.Message:
    """By what the model is told, since a compaction may fail or not be reached."""
    if not request.tools:
        return tr.Message.assistant("what was said")
    told = {result.call_id for message in request.delta for result in message.tool_results}
    if "c4" in told:
        return tr.Message.assistant("the answer", usage=FULL)
    if "c1" in told:
        calls = [tr.ToolCall("c4", "tidy", {"steps": 1}), tr.ToolCall("c5", "plain", {"number": 9})]
    else:
        calls = [
            tr.ToolCall("c1", "tidy", {"steps": 3}),
            tr.ToolCall("c2", "broken", {"steps": 1}),
            tr.ToolCall("c3", "plain", {"number": 7}),
        ]
    return tr.Message.assistant(tool_calls=calls, usage=FULL)


class CompactingTurn(ReferenceTurn):
    """Makes cases: the reference turn, compacted before both follow-ups and at its end."""

    def make(self) -> None:
        self.model = ScriptedModel([reply] * 8)
        model = self.witness.model(self.model)
        journal: Any = (self._other_journal or self.make_journal)()
        self.journal = journal
        self.agent = tr.ToolAgent(
            "compacting",
            model=model,
            tools=self._tools,
            journal=self.witness.journal(journal),
            session=SESSION,
            grace=self._grace,
            history=EARLIER,
            compaction=tr.Compaction(context_window=1_000, keep_turns=0, keep_steps=1),
            summarizer=Watched(self, model),
        )

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        history = self.agent.history
        summaries = [index for index, each in enumerate(history) if is_summary(each)]
        if summaries not in ([], [1]):
            yield f"there are summaries at {summaries}: {history}"
        if history[:1] != EARLIER[:1]:
            yield f"the templates are gone: {history}"
        if not summaries and history[: len(EARLIER)] != EARLIER:
            yield f"without a summary, what was said is gone: {history}"
        last = self.agent.last_turn
        runs = last is not None and last.end_reason is not tr.EndReason.ANSWERED
        if runs and "go" not in [message.text for message in history]:
            yield f"the turn has no answer, and its input is gone: {history}"
        stored: Sequence[r.Record] = () if self.journal is None else self.journal.stored(SESSION)
        if any(type(each) is r.TurnStarted for each in stored):
            with contextlib.suppress(tr.RecordError):  # that is C2's
                yield from self.check_said(tr.full_history(stored))

    def check_said(self, said: Sequence[tr.Message]) -> Iterator[str]:
        texts = [message.text for message in said if message.text]
        if texts[:4] != ["rules", "earlier", "earlier answer", "go"]:
            yield f"what was said is not in the session any more: {texts}"
        for message in said:
            if is_summary(message):
                yield f"a summary passes for something that was said: {said}"


class Watched(tr.ModelSummarizer):
    """Asks the turn's model, and looks at what it was given."""

    def __init__(self, turn: CompactingTurn, model: tr.Model) -> None:
        super().__init__(model)
        self.turn = turn

    async def summarise(self, request: tr.SummaryRequest) -> tr.Message:
        found = self.turn.ledger.bad_histories
        try:
            tr.check_history(request.messages)
        except tr.HistoryError as error:
            found.append(f"a summariser was shown {error}")
        if any(message.template for message in request.messages):
            found.append("a summariser was shown a template")
        return await super().summarise(request)


def sqlite_in_memory(delay: float) -> Any:
    engine: Any = InlineEngine()
    engine.delay = delay
    return tr.SqliteJournal(IN_MEMORY, _engine=engine)


def test_without_a_fault_the_turn_is_compacted_three_times() -> None:
    turn = CompactingTurn()
    outcome = run_once(turn, [], 0, Options())
    assert outcome.violations == ()

    assert turn.journal is not None
    stored = turn.journal.stored(SESSION)
    compactions = [each for each in stored if type(each) is r.Compacted]
    assert [(each.before, each.upto, each.kept) for each in compactions] == [
        (6, 3, ()),  # the earlier turn
        (7, 5, ((2, 3),)),  # and the first step, but not the input
        (6, 6, ()),  # and all that was left
    ]
    assert [each.text for each in turn.agent.history] == [
        "rules",
        "Summary of the conversation so far:\nwhat was said",
    ]


@JOURNALS
@ALL_DRIVES
def test_every_fault_at_every_step_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep(
        CompactingTurn(drive, delay=delay),
        faults=STEP_FAULTS,
        seeds=range(8 if full_sweeps else 1),
        max_positions=None if full_sweeps else 8,
    )
    report.raise_if_failed()
    assert report.positions > 30
    print(drive, delay, report.positions, "positions")


@JOURNALS
@ALL_DRIVES
def test_every_call_that_fails_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    """The summary's model call among them."""
    report = sweep(
        CompactingTurn(drive, delay=delay, watched=True),
        faults=CALL_FAULTS,
        seeds=range(8 if full_sweeps else 1),
        max_positions=None if full_sweeps else 4,
    )
    report.raise_if_failed()
    assert [name for name in CALL_FAULTS if not report.counts[name]] == []
    print(drive, delay, report.positions, "calls")


@ALL_DRIVES
def test_two_interrupts_keep_the_contract(drive: Drive, full_sweeps: bool) -> None:
    report = sweep(
        CompactingTurn(drive, delay=0.5),
        faults=(),
        pairs=INTERRUPTS,
        seeds=[0],
        max_positions=None if full_sweeps else 6,
    )
    report.raise_if_failed()
    assert report.positions >= 18
    print(drive, report.positions, "pairs")


@ALL_DRIVES
@JOURNALS
def test_every_fault_keeps_the_contract_on_a_file_too(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    journal = functools.partial(sqlite_in_memory, delay)
    report = sweep(
        CompactingTurn(drive, journal=journal),
        faults=STEP_FAULTS,
        seeds=[0, 1] if full_sweeps else [0],
        max_positions=60 if full_sweeps else 5,
    )
    report.raise_if_failed()
    assert report.positions >= 20
    print(drive, delay, report.positions, "positions on a file")
