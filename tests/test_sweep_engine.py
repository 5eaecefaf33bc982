import gc
import itertools
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import pytest
import trio

import trio_runner.testing as testing
from trio_runner.testing import (
    Case,
    Fault,
    Injection,
    Outcome,
    SiblingCrash,
    SweepError,
    SweepFailed,
    SweepReport,
    replay,
    replay_line,
    sweep,
    sweep_lines,
)
from trio_runner.testing import _faults as faults
from trio_runner.testing import _lines as lines
from trio_runner.testing import _position as position

ALL = ("cancel", "deadline", "crash", "sigint")
PAIRS = (("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint"))
GRACE = 5.0

Operation = Callable[[], Awaitable[object]]


def of(run: Operation, **options: object) -> Callable[[], Case]:
    """A case without a check of its own."""
    return lambda: Case(run, **options)  # type: ignore[arg-type]


def quick(run: Operation, *, seeds: Iterable[int] = range(2), **options: object) -> SweepReport:
    return sweep(of(run, **options), seeds=seeds)


# --- a correct operation --------------------------------------------------------


class Account:
    """A toy with a promise: either all three steps are noted, or it is marked as given up."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self.state = "new"

    async def fill(self) -> str:
        self.state = "open"
        try:
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(self._note, number)
            await trio.to_thread.run_sync(self.noted.append, 3)
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self.state = "given up"
            with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE):
                await trio.sleep(1)
            raise
        self.state = "full"
        return self.state

    async def _note(self, number: int) -> None:
        for _ in range(number + 1):
            await trio.sleep(0.1)
        self.noted.append(number)

    def problems(self, outcome: Outcome) -> Iterable[str]:
        if outcome.raised is None and sorted(self.noted) != [0, 1, 2, 3]:
            yield f"returned with {self.noted}"
        if outcome.raised is not None and self.state != "given up":
            yield f"raised in state {self.state!r}"


def make_account() -> Case:
    account = Account()
    return Case(
        account.fill,
        account.problems,
        leaves_within=1.0,
        end_state=lambda outcome: (account.state, tuple(account.noted)),
    )


def test_a_correct_operation_passes_every_fault_and_pair() -> None:
    report = sweep(make_account, pairs=PAIRS, seeds=range(4), pair_seeds=[0])
    report.raise_if_failed()
    assert report.ok
    assert report.seeds == (0, 1, 2, 3)
    assert report.clean_runs == 4
    assert report.skipped == 0
    assert report.counts["cancel"] == report.counts["sigint"] >= 4 * 10
    assert set(report.counts) == {*ALL, *("+".join(pair) for pair in PAIRS)}
    assert report.positions == sum(report.counts.values())
    assert sum(report.end_states.values()) == report.positions + report.clean_runs
    assert len(report.end_states) > 4


@pytest.mark.parametrize("restrict_ki", [False, True])
@pytest.mark.parametrize("strict_groups", [False, True])
def test_a_correct_operation_passes_under_other_settings_of_trio(
    restrict_ki: bool, strict_groups: bool
) -> None:
    sweep(
        make_account, seeds=[0], restrict_ki=restrict_ki, strict_groups=strict_groups
    ).raise_if_failed()


def test_every_step_is_a_position_for_every_fault() -> None:
    steps = len(replay(make_account, seed=5).trace)
    report = sweep(make_account, seeds=[5])
    assert dict(report.counts) == dict.fromkeys(ALL, steps)
    landings = [replay(make_account, ("cancel", step), seed=5).landed for step in range(steps + 1)]
    assert landings == [True] * steps + [False]


def test_a_pair_is_swept_to_the_end_of_the_run_that_the_first_fault_leaves() -> None:
    report = sweep(make_account, faults=(), pairs=[("cancel", "cancel")], seeds=[2])
    steps = len(replay(make_account, seed=2).trace)
    lengths = [len(replay(make_account, ("cancel", one), seed=2).trace) for one in range(steps)]
    expected = sum(length - one - 1 for one, length in enumerate(lengths))
    assert dict(report.counts) == {"cancel+cancel": expected}


# --- what an outcome tells ------------------------------------------------------


async def sleeper() -> str:
    await trio.sleep(10)
    await trio.lowlevel.checkpoint_if_cancelled()
    return "slept"


def test_without_a_fault_the_run_is_left_alone() -> None:
    outcome = replay(of(sleeper))
    assert (outcome.value, outcome.raised) == ("slept", None)
    assert outcome.landings == ()
    assert outcome.landed
    assert outcome.leave_time is None
    assert not outcome.cancel_visible
    assert not outcome.cancelled_caught


@pytest.mark.parametrize("fault", ALL)
def test_each_fault_reaches_the_run(fault: str) -> None:
    outcome = replay(of(sleeper), (fault, 2))
    assert outcome.landed
    assert outcome.faults == (fault,)
    assert outcome.violations == ()
    (landing,) = outcome.landings
    assert (landing.position, landing.unit, landing.time) == (2, "step", 10.0)
    assert landing.place.endswith("in sleeper")
    assert "test_sweep_engine.py:" in landing.place
    # Step 1 is in the sleep, step 2 ends it; the fault is seen by the check that follows it, but
    # for a deadline and a crash, which trio and the sibling come to only after that step.
    expected = {
        "cancel": trio.Cancelled,
        "sigint": KeyboardInterrupt,
        "deadline": type(None),
        "crash": type(None),
    }
    assert type(outcome.raised) is expected[fault]
    assert outcome.cancelled_caught is (fault == "cancel")
    assert outcome.leave_time == 0.0


@pytest.mark.parametrize("fault", ALL)
def test_a_fault_before_the_first_step_lets_the_run_begin_and_then_stops_it(fault: str) -> None:
    begun: list[int] = []

    async def run() -> None:
        begun.append(1)
        await trio.sleep(10)

    outcome = replay(of(run), (fault, 0))
    assert begun == [1]
    expected = KeyboardInterrupt if fault == "sigint" else trio.Cancelled
    assert type(outcome.raised) is expected
    assert outcome.violations == ()


def test_the_leave_time_counts_from_the_first_fault() -> None:
    outcome = replay(make_account, ("cancel", 3), ("cancel", 4))
    assert outcome.landed
    assert outcome.leave_time == 1.0


def test_steps_of_other_tasks_do_not_count() -> None:
    async def run() -> None:
        await trio.lowlevel.checkpoint()

    # One to begin, and one after the checkpoint.
    assert replay(of(run)).trace == (0, 0)


def test_a_task_started_from_outside_in_a_nursery_of_the_run_counts() -> None:
    async def run() -> None:
        token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            token.run_sync_soon(lambda: nursery.start_soon(trio.sleep, 1, name="late"))
            await trio.sleep(1)

    outcome = replay(of(run))
    assert outcome.task_names[1:] == ("late",)
    assert 1 in outcome.trace


def test_tasks_are_numbered_as_they_come() -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint, name="one")
            nursery.start_soon(trio.lowlevel.checkpoint, name="two")

    outcome = replay(of(run))
    assert outcome.task_names[1:] == ("one", "two")
    assert sorted(outcome.trace) == [0, 0, 1, 1, 2, 2]


def test_raised_a_looks_into_groups_at_any_depth() -> None:
    async def run() -> None:
        raise BaseExceptionGroup("a", [ExceptionGroup("b", [OSError()]), KeyError()])

    outcome = replay(of(run))
    assert outcome.raised_a(OSError)
    assert outcome.raised_a(ValueError, KeyError)
    assert not outcome.raised_a(ValueError)


# --- determinism ----------------------------------------------------------------


@pytest.mark.parametrize("plan", [(), (("cancel", 7),), (("sigint", 4), ("cancel", 6))])
def test_equal_positions_have_equal_traces(plan: tuple[tuple[str, int], ...]) -> None:
    outcomes = [replay(make_account, *plan, seed=1) for _ in range(10)]
    assert len({outcome.trace for outcome in outcomes}) == 1
    assert len({outcome.landings for outcome in outcomes}) == 1
    assert len(outcomes[0].trace) > 7


def test_seeds_give_other_traces() -> None:
    assert len({replay(make_account, seed=seed).trace for seed in range(8)}) > 2


def test_a_case_that_is_not_deterministic_is_refused() -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        for _ in range(3 if len(runs) == 1 else 2):
            await trio.lowlevel.checkpoint()

    with pytest.raises(SweepError, match="not deterministic"):
        sweep(of(run), faults=["cancel"], seeds=[0])


# --- planted faults are found ---------------------------------------------------


def assert_found(report: SweepReport, text: str, *, by: Iterable[str]) -> None:
    """Each of these faults alone shows it."""
    finders = {
        failure.landings[0].fault
        for failure in report.failures
        if failure.landings and any(text in violation for violation in failure.violations)
    }
    assert finders == set(by), report.render()


def test_a_swallowed_cancel_is_found() -> None:
    async def run() -> str:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            return "never mind"
        await trio.lowlevel.checkpoint_if_cancelled()
        return "slept"

    report = quick(run, raises_cancel=True)
    text = "the cancel was swallowed: it returned 'never mind'"
    assert_found(report, text, by=["cancel", "deadline", "crash"])


def test_a_cancel_turned_into_an_error_is_found() -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            raise ValueError("interrupted") from None

    by = ["cancel", "deadline", "crash"]
    assert_found(quick(run), "it raised ValueError, which no fault explains: interrupted", by=by)
    assert_found(quick(run, raises_cancel=True), "the cancel was swallowed", by=by)


def test_an_error_that_was_on_its_way_out_before_the_cancel_may_leave() -> None:
    async def run() -> None:
        try:
            raise ValueError("first")
        finally:
            await trio.lowlevel.cancel_shielded_checkpoint()

    assert quick(run, raises_cancel=True, may_raise=(ValueError,)).ok


def test_a_cancel_that_comes_at_the_last_step_is_found_unless_the_case_allows_it() -> None:
    async def run() -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()

    report = quick(run, raises_cancel=True)
    assert_found(report, "the cancel was swallowed", by=["cancel", "deadline", "crash"])
    assert_found(report, "a KeyboardInterrupt was pending", by=["sigint"])
    assert quick(run).ok


def test_a_swallowed_interrupt_is_found() -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
        except KeyboardInterrupt:
            pass
        await trio.lowlevel.checkpoint_if_cancelled()

    for allowed in (False, True):
        report = quick(run, raises_cancel=not allowed)
        assert_found(report, "the KeyboardInterrupt was swallowed", by=["sigint"])


def test_a_cancelled_that_nobody_asked_for_is_found() -> None:
    async def run() -> None:
        kept: list[BaseException] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep(1)
            except trio.Cancelled as exc:
                kept.append(exc)
        raise kept[0]

    (violation,) = replay(of(run)).violations
    assert "though nobody had cancelled it" in violation
    with pytest.raises(SweepError, match="the run without a fault raised Cancelled"):
        quick(run)


def test_a_task_left_in_an_outer_nursery_is_found() -> None:
    async def run() -> None:
        (nursery,) = trio.lowlevel.current_task().child_nurseries
        nursery.start_soon(trio.sleep, 30, name="straggler")
        await trio.sleep(1)
        await trio.lowlevel.checkpoint_if_cancelled()

    report = quick(run)
    assert report.violations == ("task 'straggler' was left running",) * 2
    for fault in ALL:
        assert "task 'straggler' was left running" in replay(of(run), (fault, 3)).violations


def test_a_task_left_in_the_system_nursery_is_found() -> None:
    async def run() -> None:
        async def child() -> None:
            trio.lowlevel.spawn_system_task(trio.sleep_forever, name="straggler")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        await trio.lowlevel.checkpoint_if_cancelled()

    assert "task 'straggler' was left running" in quick(run).violations


def test_a_task_that_is_left_only_when_cancelled_is_found() -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
        except BaseException:
            trio.lowlevel.spawn_system_task(trio.sleep, 1, name="cleaner")
            raise
        await trio.lowlevel.checkpoint_if_cancelled()

    report = quick(run)
    assert_found(report, "task 'cleaner' was left running", by=ALL)
    assert all(failure.landings for failure in report.failures)


def test_returning_without_having_finished_is_found_by_the_check() -> None:
    def make() -> Case:
        written: list[str] = []

        async def run() -> None:
            with trio.move_on_after(GRACE) as scope:
                await trio.sleep(1)
                written.append("all")
            if scope.cancelled_caught:
                return
            await trio.lowlevel.checkpoint_if_cancelled()

        def check(outcome: Outcome) -> Iterable[str]:
            assert written == ["all"], "nothing was written"
            return ()

        return Case(run, check)

    report = sweep(make, seeds=[0])
    assert_found(report, "check failed: nothing was written", by=ALL)


def test_a_check_that_breaks_is_no_violation() -> None:
    def check(_: Outcome) -> Iterable[str]:
        raise KeyError("a mistake in the check")

    with pytest.raises(KeyError) as caught:
        sweep(lambda: Case(sleeper, check), seeds=[7])
    assert caught.value.__notes__ == ["raised by the case's check after replay(make_case, seed=7)"]


@pytest.mark.parametrize("cleanup", [GRACE, GRACE + 1])
def test_taking_longer_than_grace_is_found(cleanup: float) -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            with trio.CancelScope(shield=True):
                await trio.sleep(cleanup)
            raise

    report = quick(run, leaves_within=GRACE)
    if cleanup == GRACE:
        # The KeyboardInterrupt ends the shielded sleep of the main task: it is only quicker.
        assert report.ok
    else:
        assert_found(report, "it took 6 s to leave, more than 5", by=ALL)


@pytest.mark.parametrize("shield", [False, True])
def test_a_run_that_hangs_is_found_and_thrown_out(shield: bool) -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            with trio.CancelScope(shield=shield):
                await trio.sleep_forever()
            raise

    report = quick(run)
    assert replay(of(run), ("cancel", 0)).broken is None
    if shield:
        assert_found(report, "it did not end by itself", by=["cancel", "deadline", "crash"])
    else:
        assert report.ok


def test_a_run_that_spins_for_ever_is_found_and_thrown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "_LOOKS_BEFORE_STUCK", 100)

    async def run() -> None:
        while True:
            try:
                await trio.sleep(1)
            except trio.Cancelled:
                await trio.lowlevel.cancel_shielded_checkpoint()

    outcome = replay(of(run), ("cancel", 3), max_steps=1000)
    text = "it did not end by itself: it took more than max_steps=1000 steps"
    assert any(each.startswith(text) for each in outcome.violations)
    assert outcome.broken is not None
    # trio could only drop the task; nothing of it is left for whoever comes next.
    del outcome
    gc.collect()


def test_too_many_steps_count_as_hanging() -> None:
    async def run() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    (violation,) = replay(of(run), max_steps=50).violations
    said, _, place = violation.partition("; it stood at ")
    assert said == "it did not end by itself: it took more than max_steps=50 steps"
    assert "test_sweep_engine.py:" in place
    assert place.endswith("test_too_many_steps_count_as_hanging.<locals>.run")


def test_a_coroutine_that_was_never_awaited_is_found() -> None:
    async def run() -> None:
        cast("Callable[[float], object]", trio.sleep)(1)
        await trio.lowlevel.checkpoint_if_cancelled()

    outcome = replay(of(run))
    assert outcome.violations == ("RuntimeWarning: coroutine 'sleep' was never awaited",)


def test_an_error_that_python_can_only_print_is_found() -> None:
    class Bad:
        def __del__(self) -> None:
            raise ValueError("too late")

    async def run() -> None:
        Bad()
        await trio.lowlevel.checkpoint_if_cancelled()

    (violation,) = replay(of(run)).violations
    assert "too late" in violation


def test_other_warnings_are_shown_as_ever() -> None:
    async def run() -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        await trio.lowlevel.checkpoint_if_cancelled()

    with pytest.warns(DeprecationWarning, match="old"):
        assert replay(of(run)).violations == ()


# --- SIGINT ---------------------------------------------------------------------


def test_an_interrupt_after_the_run_has_left_counts_against_nobody_and_is_told() -> None:
    async def run() -> None:
        await trio.sleep(1)

    outcome = replay(of(run, raises_cancel=False), ("sigint", 2))
    assert outcome.kept_interrupt
    assert outcome.raised is None
    assert outcome.violations == ()


def test_an_interrupt_of_the_user_ends_the_sweep() -> None:
    async def run() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        sweep(of(run), faults=["sigint"], seeds=[0])


@pytest.mark.parametrize("fault", ["cancel", "sigint", "sigint_child"])
def test_an_interrupt_of_the_user_is_not_taken_for_a_planned_one_or_swallowed(fault: str) -> None:
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        try:
            if runs == 3:
                signal.raise_signal(signal.SIGINT)
            await trio.sleep(1)
        except KeyboardInterrupt:
            pass  # what is swept may be wrong: that is why it is swept

    with pytest.raises(KeyboardInterrupt):
        sweep(of(run, judge=False), faults=[fault], seeds=[0])
    assert runs == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_sigint_is_ignored_a_handler_is_put_in_place_for_the_sweep(
    ignored: signal.Handlers,
) -> None:
    before = signal.signal(signal.SIGINT, ignored)
    try:
        assert type(replay(of(sleeper), ("sigint", 0)).raised) is KeyboardInterrupt
        assert signal.getsignal(signal.SIGINT) is ignored
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_the_program_is_refused() -> None:
    before = signal.signal(signal.SIGINT, lambda _, __: None)
    try:
        with pytest.raises(SweepError, match=r"expected signal\.default_int_handler"):
            replay(of(sleeper), ("sigint", 0))
        replay(of(sleeper), ("cancel", 0))
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_is_refused() -> None:
    found: list[Exception] = []

    def work() -> None:
        try:
            replay(of(sleeper), ("sigint", 0))
        except SweepError as exc:
            found.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0])


# --- a broken engine does not look clean ----------------------------------------


def test_a_broken_injector_raises() -> None:
    def broken(_: Injection) -> None:
        raise ZeroDivisionError("my injector")

    with pytest.raises(SweepError, match=r"injecting a fault failed.*my injector") as caught:
        sweep(of(sleeper), faults=[Fault("mine", broken)], seeds=[0])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_dropped_instrument_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: position.Probe, task: trio.lowlevel.Task) -> None:
        raise ZeroDivisionError("a bug in the engine")

    monkeypatch.setattr(position.Probe, "task_exited", broken)
    with pytest.raises(SweepError, match="dropped the sweep's instrument"):
        sweep(of(sleeper), faults=["cancel"], seeds=[0])


def test_a_broken_harness_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: object) -> None:
        raise ZeroDivisionError("a bug in the harness")

    monkeypatch.setattr(position._Harness, "_sibling", broken)
    with pytest.raises(SweepError, match="the harness failed"):
        replay(of(trio.lowlevel.checkpoint_if_cancelled))


def test_a_trio_that_cannot_run_the_case_raises() -> None:
    async def inside() -> None:
        replay(of(sleeper))

    with pytest.raises(SweepError, match="did not get as far as the case"):
        trio.run(inside)


def test_a_task_that_trio_cannot_look_into_has_a_place_all_the_same() -> None:
    class Opaque:
        def __await__(self) -> Any:
            return itertools.chain(checkpoint().__await__())

    async def checkpoint() -> None:
        await trio.lowlevel.checkpoint()

    async def run() -> None:
        await Opaque()

    (landing,) = replay(of(run), ("cancel", 1)).landings
    assert landing.place.endswith(
        "in test_a_task_that_trio_cannot_look_into_has_a_place_all_the_same.<locals>.run"
    )


def test_a_fault_of_ones_own_is_injected() -> None:
    seen: list[float] = []

    def note(injection: Injection) -> None:
        seen.append(trio.current_time())
        injection.cancel()

    report = sweep(of(sleeper), faults=[Fault("mine", note)], seeds=[0])
    assert dict(report.counts) == {"mine": 3}
    assert seen == [0.0, 0.0, 10.0]


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="fault 'cancle' is unknown; expected one of"):
        sweep(of(sleeper), faults=["cancle"])


def test_the_sibling_crashes_with_its_own_error() -> None:
    seen: list[BaseException] = []

    async def main() -> None:
        injection = Injection()
        probe = position.Probe([], 10)
        probe.injection = injection
        harness = position._Harness(Case(sleeper), probe, position.Options(), None)
        injection.crash()
        try:
            await harness._sibling()
        except SiblingCrash as exc:
            seen.append(exc)

    trio.run(main)
    assert len(seen) == 1


# --- reports --------------------------------------------------------------------


async def swallows() -> str:
    try:
        await trio.sleep(1)
    except trio.Cancelled:
        pass
    return "done"


swallowing = of(swallows, raises_cancel=True)


def test_a_failure_says_where_what_and_how_to_run_it_again() -> None:
    report = sweep(swallowing, faults=["cancel"], seeds=[3])
    (first, second, third) = report.failures
    assert first.seed == 3
    assert first.replay == "replay(make_case, ('cancel', 0), seed=3)"
    assert second.landings[0].place.endswith("in swallows, while every task is waiting")
    assert third.landings[0].place.endswith("in swallows")
    again = replay(swallowing, ("cancel", 1), seed=3)
    assert again.violations == second.violations
    assert again.landings == second.landings


def test_a_replay_line_names_what_differs_from_the_defaults() -> None:
    report = sweep(swallowing, faults=(), pairs=[("cancel", "cancel")], seeds=[3], restrict_ki=True)
    assert report.failures[0].replay == (
        "replay(make_case, ('cancel', 0), ('cancel', 1), seed=3, restrict_ki=True)"
    )


def test_the_text_shows_the_failures_and_the_error_has_it() -> None:
    report = sweep(swallowing, faults=["cancel"], seeds=range(8))
    text = report.render()
    assert text.startswith("24 positions (cancel 24) and 8 runs without a fault, 8 seeds, ")
    assert (
        "24 positions with violations:\nseed 0: cancel before step 0 (before it has begun)" in text
    )
    assert "seed 0: cancel before step 1 (the main task at " in text
    assert "    - the cancel was swallowed: it returned 'done'\n    replay: replay(make" in text
    assert text.endswith("… and 14 more")
    with pytest.raises(SweepFailed) as caught:
        report.raise_if_failed()
    assert caught.value.report is report
    assert str(caught.value) == text


def test_the_text_of_a_clean_sweep_says_so() -> None:
    report = sweep(of(sleeper), faults=["cancel"], seeds=[0])
    report.raise_if_failed()
    assert report.render().endswith("\nno violation")


def test_a_fault_that_missed_reads_as_missed() -> None:
    outcome = replay(of(sleeper), ("cancel", 99))
    failure = testing.Failure(0, outcome.landings, ("x",), "replay(…)")
    assert failure.render().startswith("seed 0: cancel before step 99 (missed)\n    - x")
    clean = testing.Failure(4, (), ("x",), "replay(…)")
    assert clean.render().startswith("seed 4: no fault\n")


def test_what_is_left_out_is_told() -> None:
    report = sweep(make_account, seeds=[0], max_positions=3)
    steps = len(replay(make_account).trace)
    assert dict(report.counts) == dict.fromkeys(ALL, 3)
    assert report.skipped == 4 * (steps - 3)
    assert f"{report.skipped} positions left out" in report.render()
    one = sweep(make_account, faults=["cancel"], seeds=[0], max_positions=1)
    assert one.positions == 1


def test_a_sample_is_a_share_of_the_pairs_and_repeats() -> None:
    def positions_of(sample: float, seed: int) -> SweepReport:
        return sweep(make_account, faults=(), pairs=[PAIRS[0]], seeds=[seed], sample=sample)

    whole = positions_of(1.0, 0)
    part = positions_of(0.3, 0)
    assert part.positions == round(0.3 * whole.positions)
    assert part.skipped == whole.positions - part.positions
    assert part.end_states == positions_of(0.3, 0).end_states
    with pytest.raises(ValueError, match="sample is 0"):
        positions_of(0, 0)


@pytest.mark.parametrize(
    ("chosen", "pairs"), [(["cancel"], []), ([], [("cancel", "cancel")])], ids=["faults", "pairs"]
)
def test_a_sweep_may_stop_at_the_first_failure(
    chosen: list[str], pairs: list[tuple[str, str]]
) -> None:
    report = sweep(swallowing, faults=chosen, pairs=pairs, seeds=range(3), max_failures=1)
    assert len(report.failures) == 1
    assert report.positions == 1
    whole = sweep(swallowing, faults=chosen, pairs=pairs, seeds=range(3))
    assert report.positions + report.skipped == whole.positions


def test_end_states_are_told_apart_by_what_was_raised() -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)

    states = sweep(of(run, raises_cancel=False), seeds=[0]).end_states
    assert "returned" in states
    assert ("BaseExceptionGroup", frozenset({"Cancelled"})) in states


# --- lines ----------------------------------------------------------------------


class Ledger:
    """Two lists that must stay equal."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.right: list[int] = []

    async def open(self) -> None:
        await trio.sleep(1)
        self.both(1)
        self.both(2)
        await trio.lowlevel.checkpoint_if_cancelled()

    @trio.lowlevel.enable_ki_protection
    async def open_protected(self) -> None:
        await trio.sleep(1)
        self.both(1)
        self.both(2)
        await trio.lowlevel.checkpoint_if_cancelled()

    def both(self, number: int) -> None:
        self.left.append(number)
        self.right.append(number)

    def problems(self, _: Outcome) -> Iterable[str]:
        if self.left != self.right:
            yield f"{self.left} is not {self.right}"


def make_ledger(protected: bool) -> Callable[[], Case]:
    def make() -> Case:
        ledger = Ledger()
        return Case(ledger.open_protected if protected else ledger.open, ledger.problems)

    return make


@pytest.mark.parametrize(("protected", "restrict_ki"), [(False, True), (True, False)])
def test_at_no_line_is_a_deferred_interrupt_seen_within_a_step(
    protected: bool, restrict_ki: bool
) -> None:
    report = sweep_lines(make_ledger(protected), paths=[__file__], restrict_ki=restrict_ki)
    report.raise_if_failed()
    # The lines of `open`, and those of `both` twice.
    assert report.positions == 4 + 2 * 2
    assert report.end_states["KeyboardInterrupt"] == report.positions


def test_unprotected_code_is_interrupted_between_two_lines() -> None:
    report = sweep_lines(make_ledger(False), paths=[__file__], restrict_ki=False)
    assert [failure.violations for failure in report.failures] == [
        ("[1] is not []",),
        ("[1, 2] is not [1]",),
    ]
    landing = report.failures[0].landings[0]
    assert landing.unit == "line"
    assert landing.place.endswith("in Ledger.both")
    assert report.failures[0].replay == (
        f"replay_line(make_case, {landing.position}, paths=[{__file__!r}], seed=0, "
        "restrict_ki=False)"
    )
    again = replay_line(make_ledger(False), landing.position, paths=[__file__], restrict_ki=False)
    assert again.landings == (landing,)
    assert again.violations == ("[1] is not []",)


def test_an_interrupt_at_a_line_after_the_last_checkpoint_counts_against_nobody() -> None:
    async def run() -> int:
        await trio.sleep(1)
        await trio.lowlevel.checkpoint_if_cancelled()
        return 1

    report = sweep_lines(of(run), paths=[__file__])
    report.raise_if_failed()
    assert report.end_states == {"returned": 2, "KeyboardInterrupt": 2}


def test_a_swallowed_interrupt_is_found_at_a_line_too() -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
        except KeyboardInterrupt:
            pass
        await trio.lowlevel.checkpoint_if_cancelled()

    report = sweep_lines(of(run), paths=[__file__])
    assert "the KeyboardInterrupt was swallowed: it returned None" in report.violations


def test_lines_of_all_tasks_count() -> None:
    async def child() -> None:
        await trio.sleep(1)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    outcomes = [replay_line(of(run), line, paths=[__file__]) for line in range(4)]
    names = [outcome.landings[0].place.rpartition(".")[2] for outcome in outcomes]
    assert sorted(names) == ["child", "run", "run", "run"]


def test_the_tracer_of_before_is_put_back() -> None:
    calls: list[str] = []

    def mine(frame: object, event: str, arg: object) -> None:
        calls.append(event)

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        sweep_lines(make_ledger(False), paths=[__file__], max_positions=2, restrict_ki=False)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)
    assert calls


def test_code_may_be_given_as_module_package_file_or_folder() -> None:
    assert lines._prefix(trio).endswith("trio/")
    assert lines._prefix(lines).endswith("testing/_lines.py")
    assert lines._prefix(__file__) == __file__
    assert lines._prefix(__file__.rpartition("/")[0]).endswith("tests/")
    with pytest.raises(ValueError, match="no file or folder"):
        lines._prefix("nowhere/at/all")
    with pytest.raises(ValueError, match="has no file"):
        lines._prefix(sys)


def test_a_sweep_over_lines_that_are_never_executed_raises() -> None:
    with pytest.raises(SweepError, match="executed no line"):
        sweep_lines(of(sleeper), paths=[testing])


def test_lines_may_be_bounded_and_stopped() -> None:
    report = sweep_lines(make_ledger(False), paths=[__file__], restrict_ki=False, max_failures=1)
    assert len(report.failures) == 1
    assert report.positions + report.skipped == 8
    assert sweep_lines(make_ledger(False), paths=[__file__], max_positions=2).positions == 2


def test_an_injector_that_breaks_at_a_line_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: faults.Injection) -> None:
        raise ZeroDivisionError("my injector")

    monkeypatch.setattr(lines, "SIGINT", Fault("sigint", broken))
    with pytest.raises(SweepError, match=r"injecting a fault failed.*my injector"):
        sweep_lines(of(sleeper), paths=[__file__])
