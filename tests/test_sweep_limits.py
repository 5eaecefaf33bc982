"""A turn that a limit ends, with a fault at every step and every call: contract C1-C9.

One turn for each kind of limit: before any reply, before a later model call, in the
middle of a batch, and while its time is up. ``--full-sweeps`` runs every position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import Outcome, ScriptedModel, sweep
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing.reference import DRIVES, Drive, ReferenceTurn

STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)

USAGE = tr.Usage(60, 40)
PRICE = tr.Price(input=2.0, output=5.0)
#: Name: the limits, and how much a turn without a fault spends of what is limited.
LIMITS: dict[str, tuple[dict[str, Any], float]] = {
    "no_model_call": ({"model_calls": 0}, 0),
    "model_calls": ({"model_calls": 1}, 1),
    "tool_calls": ({"tool_calls": 2}, 2),
    "tool_calls_of_the_second_batch": ({"tool_calls": 4}, 4),
    "total_tokens": ({"total_tokens": 150}, 200),
    "cost": ({"cost": 0.0003, "prices": PRICE}, 0.00032),
    "seconds": ({"seconds": 1.0}, 1),
}


class LimitedTurn(ReferenceTurn):
    """The reference turn in a scope; its tools take a second where time is limited."""

    def __init__(self, limit: str, drive: Drive = "until_done", **settings: Any) -> None:
        self.limited, self.spends = LIMITS[limit]
        self.scope = tr.limits()
        settings.setdefault("own_errors", (tr.LimitReachedError,))
        super().__init__(drive, **settings)

    def make(self) -> None:
        super().make()
        self.scope = tr.limits(**self.limited)
        replies = [
            tr.Message.assistant(
                tool_calls=[
                    tr.ToolCall("c1", "tidy", {"steps": 3}),
                    tr.ToolCall("c2", "broken", {"steps": 1}),
                    tr.ToolCall("c3", "plain", {"number": 7}),
                ],
                usage=USAGE,
            ),
            tr.Message.assistant(
                tool_calls=[
                    tr.ToolCall("c4", "tidy", {"steps": 1}),
                    tr.ToolCall("c5", "plain", {"number": 9}),
                ],
                usage=USAGE,
            ),
            tr.Message.assistant("the answer", usage=USAGE),
        ]
        self.model = ScriptedModel(replies)
        self.agent.model = self.witness.model(self.model)

    async def tidy(self, steps: int) -> str:
        """As of the reference turn, but late where the clock counts."""
        if "seconds" in self.limited:
            call_id = tr.current_tool_context().call_id
            self.witness.entered(call_id)
            try:
                await trio.sleep(0.7)
                return self._return(call_id, "late")
            finally:
                self.ledger.leaves(call_id)
        return await super().tidy(steps)

    async def run(self) -> object:
        with self.scope:
            return await super().run()

    def _statuses(self, params: tr.RequestParams) -> frozenset[tr.CallStatus]:
        more = {tr.CallStatus.LIMIT_REACHED}
        if "seconds" in self.limited:
            more = {tr.CallStatus.TIMED_OUT}
        return super()._statuses(params) | more

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        yield from self.check_limit(outcome)

    def check_limit(self, outcome: Outcome) -> Iterator[str]:
        """What was spent is what happened, and without a fault the limit ends the turn."""
        spent, last = self.scope.spent, self.agent.last_turn
        failed = self.witness.seams["model"]
        made = len(self.model.requests) + len(failed.raised) + failed.hung
        if spent.model_calls != made:
            yield f"limits: {spent.model_calls} model calls; {made} were made"
        entered = len(self.ledger.entered)
        if spent.tool_calls != entered:
            yield f"limits: {spent.tool_calls} tool calls; {entered} tools were entered"
        for kind in ("model_calls", "tool_calls"):
            limit = self.limited.get(kind)
            if limit is not None and spent.of(kind) > limit:
                yield f"limits: {spent.of(kind)} {kind}, and the limit is {limit}"
        if last is not None and last.usage != spent.usage:
            yield f"limits: the turn took {last.usage}, and the scope counted {spent.usage}"
        if last is not None and (last.limit is None) != (last.end_reason is not tr.EndReason.LIMIT):
            yield f"limits: the turn ended {last.end_reason.value}, by {last.limit}"
        if outcome.landings or self._drive_name == "break":
            return
        if last is None or last.limit is None or last.limit.spent < self.spends:
            yield f"limits: without a fault the turn ended {last}"


@pytest.mark.slow
@pytest.mark.parametrize("drive", DRIVES)
@pytest.mark.parametrize("limit", LIMITS)
def test_a_turn_that_meets_a_limit_keeps_the_contract_at_every_step(
    limit: str, drive: Drive, full_sweeps: bool
) -> None:
    report = sweep(
        LimitedTurn(limit, drive),
        faults=STEP_FAULTS,
        seeds=range(8 if full_sweeps else 1),
        max_positions=None if full_sweeps else 5,
    )
    report.raise_if_failed()
    assert report.positions > 10
    print(limit, drive, report.positions, "positions")


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_slow_commits_and_calls_that_fail_change_nothing(limit: str, full_sweeps: bool) -> None:
    # The drives take turns unless all are asked for.
    drives = DRIVES if full_sweeps else (DRIVES[list(LIMITS).index(limit) % len(DRIVES)],)
    for drive in drives:
        report = sweep(
            LimitedTurn(limit, drive, delay=0.2, watched=True),
            faults=CALL_FAULTS + STEP_FAULTS,
            seeds=range(8 if full_sweeps else 1),
            max_positions=None if full_sweeps else 3,
        )
        report.raise_if_failed()
        assert report.positions > 10
        print(limit, drive, report.positions, "positions")


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_a_second_interrupt_changes_nothing(limit: str, full_sweeps: bool) -> None:
    report = sweep(
        LimitedTurn(limit, delay=0.2),
        faults=(),
        pairs=[("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint")],
        seeds=[0],
        max_positions=None if full_sweeps else 3,
        sample=1.0 if full_sweeps else 0.2,
    )
    report.raise_if_failed()
    print(limit, report.positions, "pairs")


class New:
    """Makes journals, each with a file of its own in memory; the one before is closed."""

    def __init__(self) -> None:
        self.engine = InlineEngine()

    def __call__(self) -> tr.SqliteJournal:
        self.engine.close()
        self.engine = InlineEngine(0.2)
        return tr.SqliteJournal(IN_MEMORY, _engine=self.engine)


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_a_session_in_a_file_keeps_the_contract(limit: str, full_sweeps: bool) -> None:
    report = sweep(
        LimitedTurn(limit, journal=New(), watched=True),
        faults=STEP_FAULTS + CALL_FAULTS,
        seeds=range(8 if full_sweeps else 1),
        max_positions=None if full_sweeps else 3,
    )
    report.raise_if_failed()
    print(limit, report.positions, "positions")
