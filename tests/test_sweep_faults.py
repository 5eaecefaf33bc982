"""The faults beyond those of a single task step: failing calls, a child task, pairs, two lines."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
import trio

from trio_runner.testing import (
    Case,
    Fault,
    Outcome,
    PlannedError,
    Seam,
    SweepError,
    SweepReport,
    replay,
    replay_line,
    sweep,
    sweep_lines,
)
from trio_runner.testing import _faults as faults


class Shop:
    """Asks a stock three times and notes what it got; ``keeps`` says whether it notes all."""

    def __init__(self) -> None:
        self.seam = Seam()
        self.asked = 0
        self.noted: list[str] = []

    async def buy(self) -> list[str]:
        for number in range(3):
            try:
                self.asked += 1
                await self.seam.call()
                await trio.sleep(1)
            except PlannedError:
                self.noted.append("failed")
            else:
                self.noted.append(f"item {number}")
        await trio.lowlevel.checkpoint()
        return self.noted

    def case(self, name: str = "journal") -> Case:
        return Case(self.buy, seams={name: self.seam})


def make_shop() -> Case:
    return Shop().case()


# --- call faults ----------------------------------------------------------------


def test_each_call_through_a_seam_fails_once() -> None:
    made: list[Shop] = []
    seen: list[tuple[str, ...]] = []

    def make() -> Case:
        shop = Shop()
        made.append(shop)

        def check(outcome: Outcome) -> list[str]:
            seen.append(tuple(shop.noted))
            return []

        return Case(shop.buy, check, seams={"journal": shop.seam})

    report = sweep(make, faults=["journal_error"], seeds=[0])
    assert report.counts == {"journal_error": 3}
    assert report.ok
    whole = ("item 0", "item 1", "item 2")
    assert seen == [
        whole,
        ("failed", "item 1", "item 2"),
        ("item 0", "failed", "item 2"),
        ("item 0", "item 1", "failed"),
        whole,  # once more at the end: it must be as at first
    ]
    assert [len(shop.seam.raised) for shop in made] == [0, 1, 1, 1, 0]


def test_a_call_that_hangs_ends_only_with_a_cancel() -> None:
    outcome = replay(make_shop, ("journal_hang", 1))
    (said,) = outcome.violations
    limit = "it did not end by itself: it took more than hang_after=3600 s on the mock clock"
    assert said.startswith(f"{limit}; it stood at ")
    # Where the call is made, and not where the engine lets it hang.
    assert "test_sweep_faults.py:" in said
    assert said.endswith(" in Shop.buy")
    # Leaving counts from the fault that says to leave, not from the hang.
    report = sweep(make_shop, faults=(), pairs=[("journal_hang", "cancel")], seeds=[0])
    assert report.ok
    assert report.positions > 3
    outcome = replay(make_shop, ("journal_hang", 1), ("cancel", 5))
    assert outcome.raised_a(trio.Cancelled)
    hung_at, cancelled_at = (landing.time for landing in outcome.landings)
    assert hung_at == 1
    assert cancelled_at is not None
    assert cancelled_at > hung_at
    assert outcome.leave_time == 0


def test_a_failing_call_has_its_number_and_its_place_in_the_report() -> None:
    def make() -> Case:
        return Case(Shop().case().run, seams={"journal": Seam()})

    def failing() -> Case:
        shop = Shop()
        return Case(
            shop.buy,
            lambda outcome: [] if outcome.landings == () else ["bad"],
            seams={"journal": shop.seam},
        )

    report = sweep(failing, faults=["journal_error"], seeds=[3])
    first = report.failures[0]
    assert first.where.startswith("seed 3: journal_error at call 0 (the main task at ")
    assert "test_sweep_faults.py:" in first.where
    assert "Shop.buy" in first.where
    assert first.replay == "replay(make_case, ('journal_error', 0), seed=3)"
    # The seam that nothing calls has no positions, and says so.
    assert sweep(make, faults=["journal_error"], seeds=[0]).counts == {"journal_error": 0}


def test_a_fault_whose_seam_the_case_has_not_is_refused() -> None:
    with pytest.raises(SweepError, match=r"need the seams \['model'\].*has \['journal'\]"):
        sweep(make_shop, faults=["model_error"], seeds=[0])


def test_a_foreign_cancel_is_not_the_callers() -> None:
    """Let through, it is what asyncio's own class is: an error that is no Exception."""
    outcome = replay(lambda: Shop().case("tool"), ("foreign_cancel", 0))
    assert type(outcome.raised) is asyncio.CancelledError
    assert not outcome.cancel_visible


def test_a_fault_of_ones_own_can_use_a_seam_of_any_name() -> None:
    slow = Fault("stock_empty", seam="stock", error=lambda: LookupError("empty"))
    outcome = replay(lambda: Shop().case("stock"), (slow, 2))
    assert type(outcome.raised) is LookupError


def test_a_seam_outside_a_sweep_lets_everything_pass() -> None:
    seam = Seam()
    assert seam.call_nowait()
    trio.run(seam.call)
    assert not seam.failed


def test_a_synchronous_call_that_hangs_is_told_not_to_do_its_work() -> None:
    did: list[bool] = []

    def make() -> Case:
        seam = Seam()

        async def run() -> None:
            did.append(seam.call_nowait())
            await trio.lowlevel.checkpoint()

        return Case(run, seams={"journal": seam})

    assert replay(make).violations == ()
    assert replay(make, ("journal_hang", 0)).violations == ()
    assert did == [True, False]


# --- pairs ----------------------------------------------------------------------


def test_every_pair_of_a_step_and_a_call_is_swept_in_both_orders() -> None:
    report = sweep(
        make_shop,
        faults=(),
        pairs=[
            ("journal_error", "cancel"),
            ("cancel", "journal_error"),
            ("journal_error", "journal_error"),
        ],
        seeds=[0],
    )
    assert report.ok
    assert replay(make_shop).calls == {"journal": 3}
    expected = 0
    for call in range(3):
        one = replay(make_shop, ("journal_error", call))
        expected += len(one.trace) - one.landings[0].steps
    assert report.counts["journal_error+cancel"] == expected
    assert expected > 3
    assert report.counts["journal_error+journal_error"] == 2 + 1


def test_a_pair_with_a_second_call_that_never_comes_has_no_position() -> None:
    # Cancelled before it begins, a shop asks once; cancelled later, nobody any more.
    report = sweep(make_shop, faults=(), pairs=[("cancel", "journal_error")], seeds=[0])
    assert report.positions == 1


# --- in a child -----------------------------------------------------------------


def test_an_interrupt_reaches_a_child_as_a_cancel() -> None:
    async def run() -> None:
        for _ in range(10):
            await trio.lowlevel.checkpoint()

    outcome = replay(lambda: Case(run), ("sigint_child", 1))
    assert outcome.in_child
    assert outcome.raised_a(trio.Cancelled)
    assert outcome.kept_interrupt
    assert outcome.violations == ()
    assert sweep(lambda: Case(run), faults=["sigint", "sigint_child"], seeds=[0]).ok


def test_a_child_that_swallows_the_cancel_of_an_interrupt_is_found() -> None:
    async def run() -> None:
        try:
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            pass

    outcome = replay(lambda: Case(run, raises_cancel=True), ("sigint_child", 1))
    assert outcome.violations == ("the cancel was swallowed: it returned None",)


def test_faults_in_the_main_task_and_in_a_child_have_runs_without_a_fault_of_their_own() -> None:
    report = sweep(make_shop, faults=["cancel", "sigint_child"], seeds=[0])
    assert report.ok
    assert report.clean_runs == 2


def test_a_pair_runs_in_a_child_when_one_of_its_faults_does() -> None:
    outcome = replay(make_shop, ("cancel", 1), ("sigint_child", 2))
    assert outcome.in_child
    report = sweep(make_shop, faults=(), pairs=[("cancel", "sigint_child")], seeds=[0])
    assert report.positions > 0
    assert report.ok


# --- two lines ------------------------------------------------------------------


class Ledger:
    """Counts up in two places; ``protected`` says whether an interrupt may come between them."""

    def __init__(self) -> None:
        self.left = 0
        self.right = 0

    @trio.lowlevel.enable_ki_protection
    def both(self) -> None:
        self.left += 1
        self.right += 1

    async def run(self) -> None:
        try:
            await trio.lowlevel.checkpoint()
            self.both()
        finally:
            self.clean_up()
        await trio.lowlevel.checkpoint()

    def clean_up(self) -> None:
        self.left += 1
        self.right += 1


def make_ledger() -> Case:
    ledger = Ledger()
    return Case(
        ledger.run,
        lambda _: [] if ledger.left == ledger.right else ["the sides differ"],
        raises_cancel=False,
    )


def test_two_interrupts_at_lines_find_what_one_cannot() -> None:
    """One may cut the cleanup of a normal end; only two cut it while it ends an interrupt."""
    report = sweep_lines(
        make_ledger, paths=[__file__], restrict_ki=False, max_positions=1, pairs=60
    )
    assert report.counts["sigint+sigint"] > 20
    two = [failure for failure in report.failures if len(failure.landings) == 2]
    assert two
    failure = two[0]
    first, second = failure.landings
    assert first.position < second.position
    again = replay_line(
        make_ledger, first.position, second.position, paths=[__file__], restrict_ki=False
    )
    assert "the sides differ" in again.violations
    assert again.landings == failure.landings
    assert f"{first.position}, {second.position}, paths=[{__file__!r}]" in failure.replay


def test_the_second_line_is_found_after_an_interrupt_was_raised() -> None:
    """Python stops tracing when the tracer raises; the engine goes on all the same."""
    lines = {
        replay_line(make_ledger, 1, line, paths=[__file__], restrict_ki=False).landings[1]
        for line in range(2, 6)
    }
    assert any(landing.landed and "Ledger.clean_up" in landing.place for landing in lines)
    assert sys.gettrace() is None
    assert sys.getprofile() is None


def test_pairs_of_lines_are_drawn_by_the_seed() -> None:
    def drawn(seed: int) -> list[tuple[int, ...]]:
        report = sweep_lines(
            make_ledger,
            paths=[__file__],
            seeds=[seed],
            restrict_ki=False,
            max_positions=0,
            pairs=40,
        )
        return [tuple(each.position for each in failure.landings) for failure in report.failures]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_lines_can_be_swept_with_the_operation_in_a_child() -> None:
    report = sweep_lines(make_ledger, paths=[__file__], restrict_ki=False, in_child=True)
    assert report.failures
    assert all("in_child=True" in failure.replay for failure in report.failures)


# --- the report as JSON ---------------------------------------------------------


def test_the_report_as_json_has_all_that_is_needed_to_go_on() -> None:
    def lossy() -> Case:
        async def run() -> None:
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                pass

        return Case(run, raises_cancel=True)

    report: SweepReport = sweep(lossy, faults=["cancel"], seeds=[5])
    plain = json.loads(report.to_json())
    assert plain["ok"] is False
    assert plain["positions"] == report.positions
    assert plain["counts"] == {"cancel": report.positions}
    assert plain["seeds"] == [5]
    assert plain["distinct_end_states"] == len(report.end_states)
    assert sum(each["count"] for each in plain["end_states"]) == report.positions + 1
    failure = plain["failures"][0]
    assert failure["violations"] == ["the cancel was swallowed: it returned None"]
    assert failure["faults"][0]["fault"] == "cancel"
    assert failure["faults"][0]["landed"] is True
    assert failure["replay"] == report.failures[0].replay


def test_every_named_fault_is_documented() -> None:
    text = sweep.__doc__ or ""
    assert [name for name in faults.FAULTS if f'"{name}"' not in text] == []
