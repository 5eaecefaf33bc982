"""`Case.afterwards`: awaited when the run has left, out of the reach of every fault."""

from __future__ import annotations

import gc
import signal
import textwrap
from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from trio_runner.testing import Case, Fault, Injection, Outcome, Seam, replay, sweep
from trio_runner.testing._position import _Harness

ALL = ("cancel", "deadline", "crash", "sigint", "sigint_child")
HUNG = "afterwards: it did not end by itself"

Operation = Callable[[], Awaitable[object]]


async def sleeper() -> str:
    await trio.sleep(1)
    await trio.lowlevel.checkpoint_if_cancelled()
    return "slept"


async def nothing() -> None:
    pass


class Twice:
    """An operation with a child task, and what was seen afterwards."""

    def __init__(self) -> None:
        self.looked: list[str] = []

    async def run(self) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            await trio.sleep(2)
        await trio.lowlevel.checkpoint_if_cancelled()
        return "done"

    async def afterwards(self) -> None:
        self.looked.append("began")
        assert trio.current_effective_deadline() == float("inf")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await trio.lowlevel.checkpoint()
        self.looked.append("ended")

    def check(self, _: Outcome) -> list[str]:
        return [] if self.looked == ["began", "ended"] else [f"afterwards {self.looked}"]


def make_twice() -> Case:
    twice = Twice()
    return Case(twice.run, twice.check, afterwards=twice.afterwards)


def make_twice_without() -> Case:
    return Case(Twice().run)


def after(afterwards: Operation, run: Operation = sleeper, *, judge: bool = True) -> Outcome:
    """One run without a fault."""
    return replay(lambda: Case(run, afterwards=afterwards, judge=judge))


# --- when, and where --------------------------------------------------------------


@pytest.mark.parametrize("fault", ["sigint", "sigint_child"])
def test_it_is_awaited_after_the_run_in_the_same_trio_run_and_in_the_main_task(fault: str) -> None:
    seen: list[tuple[str, trio.lowlevel.TrioToken, trio.lowlevel.Task]] = []

    def note(name: str) -> None:
        seen.append((name, trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()))

    async def run() -> None:
        await trio.lowlevel.checkpoint()
        note("run")

    async def afterwards() -> None:
        note("afterwards")

    outcome = replay(lambda: Case(run, afterwards=afterwards, raises_cancel=False), (fault, 99))
    assert outcome.in_child == (fault == "sigint_child")
    [(first, run_token, run_task), (second, token, task)] = seen
    assert (first, second) == ("run", "afterwards")
    assert token is run_token
    assert task.name == f"{_Harness.__module__}._Harness.main"
    assert (task is run_task) == (fault == "sigint")


def test_no_fault_at_any_step_reaches_it() -> None:
    report = sweep(make_twice, faults=ALL, seeds=range(2))
    report.raise_if_failed()
    assert report.positions >= 2 * 5 * 4


def test_no_pair_of_faults_reaches_it() -> None:
    pairs = [("cancel", "sigint"), ("sigint", "sigint"), ("crash", "sigint_child")]
    sweep(make_twice, faults=(), pairs=pairs, seeds=[0]).raise_if_failed()


@pytest.mark.parametrize("fault", ALL)
def test_what_an_outcome_says_of_the_run_is_the_same_without_it(fault: str) -> None:
    steps = len(replay(make_twice_without).trace)
    assert steps == len(replay(make_twice).trace) >= 4
    for step in range(steps):
        plan = (fault, step)
        with_it, without = replay(make_twice, plan), replay(make_twice_without, plan)
        assert type(with_it.raised) is type(without.raised)
        assert attrs.evolve(with_it, raised=None) == attrs.evolve(without, raised=None)


def test_its_calls_are_no_positions_and_do_not_fail() -> None:
    def make_case() -> Case:
        seam = Seam()

        async def afterwards() -> None:
            for _ in range(3):
                await seam.call()

        async def run() -> None:
            await seam.call()

        return Case(
            run, raises_cancel=False, seams={"journal": seam}, afterwards=afterwards, judge=False
        )

    report = sweep(make_case, faults=["journal_error"], seeds=[0])
    report.raise_if_failed()
    assert dict(report.counts) == {"journal_error": 1}
    assert dict(replay(make_case).calls) == {"journal": 1}


def test_it_is_awaited_when_the_run_raised_and_what_was_raised_goes_on_its_way() -> None:
    looked: list[str] = []

    async def run() -> None:
        await trio.sleep(1)
        raise OSError("the run's")

    async def afterwards() -> None:
        looked.append("looked")
        await trio.sleep(1)

    outcome = after(afterwards, run, judge=False)
    assert looked == ["looked"]
    assert isinstance(outcome.raised, OSError)
    assert (outcome.violations, outcome.afterwards_raised) == ((), None)


def test_an_interrupt_leaves_the_program_though_it_is_awaited_in_between() -> None:
    outcome = replay(make_twice, ("sigint", 2))
    assert outcome.raised_a(KeyboardInterrupt)
    assert outcome.kept_interrupt
    assert outcome.violations == ()


def test_a_pending_interrupt_does_not_land_in_it_and_is_not_lost() -> None:
    class AtTheLastMoment(trio.abc.Instrument):
        """Ctrl-C when the main task waits for nothing any more, but has not gone on yet."""

        def __init__(self, injection: Injection) -> None:
            self.injection = injection

        def task_exited(self, task: trio.lowlevel.Task) -> None:
            if task.name.endswith("_sibling"):
                self.injection.interrupt()

    def inject(injection: Injection) -> None:
        trio.lowlevel.add_instrument(AtTheLastMoment(injection))

    late = Fault("late", inject, needs_signal=True)
    twice = Twice()
    outcome = replay(lambda: Case(twice.run, twice.check, afterwards=twice.afterwards), (late, 1))
    assert outcome.value == "done"
    assert outcome.interrupts == 1
    assert outcome.kept_interrupt
    assert twice.looked == ["began", "ended"]
    assert outcome.afterwards_raised is None


# --- when it is not awaited ---------------------------------------------------------


def never_awaited() -> tuple[list[str], Operation]:
    looked: list[str] = []

    async def afterwards() -> None:
        looked.append("looked")

    return looked, afterwards


def test_it_is_not_awaited_when_the_run_hung() -> None:
    looked, afterwards = never_awaited()
    [violation] = after(afterwards, trio.sleep_forever).violations
    assert violation.startswith("it did not end by itself")
    assert looked == []


def test_it_is_not_awaited_when_a_task_that_was_left_alive_had_to_be_thrown_out() -> None:
    looked, afterwards = never_awaited()

    async def clings() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    async def run() -> None:
        # The harness's own nursery, which is around the run.
        [*_, around] = trio.lowlevel.current_task().child_nurseries
        around.start_soon(clings)
        await trio.lowlevel.checkpoint()

    outcome = after(afterwards, run)
    assert [each for each in outcome.violations if "was left running" in each]
    assert looked == []


def test_it_is_not_awaited_when_trios_loop_broke_also_not_by_the_garbage_collector() -> None:
    looked, afterwards = never_awaited()

    async def crashes() -> None:
        raise OSError("in a system task")

    async def run() -> None:
        trio.lowlevel.spawn_system_task(crashes)
        await trio.sleep_forever()

    outcome = after(afterwards, run)
    assert outcome.broken is not None
    assert outcome.afterwards_raised is None
    del outcome
    gc.collect()
    assert looked == []


def test_a_loop_that_breaks_meanwhile_is_not_blamed_on_it() -> None:
    async def crashes() -> None:
        await trio.sleep(2)
        raise OSError("in a system task")

    async def run() -> None:
        # Not started by the run, as far as the engine knows: else it would be left running.
        token = trio.lowlevel.current_trio_token()
        token.run_sync_soon(trio.lowlevel.spawn_system_task, crashes)
        await trio.sleep(1)

    outcome = after(trio.sleep_forever, run)
    assert isinstance(outcome.afterwards_raised, trio.Cancelled)
    [violation] = outcome.violations
    assert violation.startswith("trio's run loop broke: ")


# --- what it finds -------------------------------------------------------------------


@pytest.mark.parametrize("judge", [True, False])
def test_what_it_raises_is_a_violation(judge: bool) -> None:
    async def afterwards() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("no longer usable")

    outcome = after(afterwards, judge=judge)
    assert outcome.violations == ("afterwards: ValueError('no longer usable')",)
    assert isinstance(outcome.afterwards_raised, ValueError)
    assert (outcome.value, outcome.raised) == ("slept", None)


def test_an_assertion_speaks_for_itself_and_one_without_words_by_its_name() -> None:
    async def talks() -> None:
        raise AssertionError("the pool is full")

    async def is_silent() -> None:
        raise AssertionError

    assert after(talks).violations == ("afterwards: the pool is full",)
    assert after(is_silent).violations == ("afterwards: AssertionError()",)


def test_its_error_has_no_part_of_what_the_run_raised() -> None:
    async def run() -> None:
        raise OSError("the run's")

    async def afterwards() -> None:
        raise ValueError("no longer usable")

    outcome = after(afterwards, run)
    assert isinstance(outcome.raised, OSError)
    assert isinstance(outcome.afterwards_raised, ValueError)
    assert outcome.afterwards_raised.__context__ is None


def test_a_sweep_counts_and_replays_what_it_finds() -> None:
    def make_case() -> Case:
        torn: list[int] = []

        async def run() -> None:
            torn.append(1)
            await trio.sleep(1)
            torn.clear()

        async def afterwards() -> None:
            if torn:
                raise AssertionError("torn")

        return Case(run, raises_cancel=False, afterwards=afterwards)

    report = sweep(make_case, faults=["cancel"], seeds=[0])
    # At each of its steps: step 0 is before the first line, and the cancel waits for the sleep.
    assert len(report.failures) == report.positions >= 2
    assert {each.violations for each in report.failures} == {("afterwards: torn",)}
    assert replay(make_case, ("cancel", 1)).violations == ("afterwards: torn",)


async def hangs() -> None:
    await trio.sleep_forever()


async def hangs_behind_a_shield() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def goes_round_in_circles() -> None:
    while True:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("hang", [hangs, hangs_behind_a_shield, goes_round_in_circles])
@pytest.mark.parametrize("run", [sleeper, nothing])
def test_a_hang_is_thrown_out_and_is_a_violation(hang: Operation, run: Operation) -> None:
    outcome = replay(lambda: Case(run, afterwards=hang), max_steps=200)
    assert outcome.violations == (HUNG,)
    assert outcome.afterwards_hung
    assert not outcome.hung
    assert outcome.broken is None
    # Where it stood.
    assert isinstance(outcome.afterwards_raised, trio.Cancelled)


def test_a_hang_that_swallows_the_cancel_is_thrown_out_too() -> None:
    async def stays() -> None:
        while True:
            try:
                await trio.sleep(10)
            except trio.Cancelled:
                await trio.lowlevel.cancel_shielded_checkpoint()

    outcome = after(stays)
    assert outcome.violations == (HUNG,)
    del outcome
    gc.collect()


def test_an_interrupt_is_not_lost_when_it_hangs_for_good() -> None:
    async def stays() -> None:
        while True:
            try:
                await trio.sleep(10)
            except trio.Cancelled:
                await trio.lowlevel.cancel_shielded_checkpoint()

    outcome = replay(lambda: Case(sleeper, afterwards=stays), ("sigint", 1))
    assert outcome.kept_interrupt
    assert outcome.violations == (HUNG,)
    del outcome
    gc.collect()


def test_its_time_and_its_steps_are_its_own() -> None:
    async def takes_long() -> None:
        for _ in range(30):
            await trio.sleep(1)

    case = Case(takes_long, afterwards=takes_long)
    assert replay(lambda: case, hang_after=31, max_steps=80).violations == ()
    assert replay(lambda: case, hang_after=29).hung


def test_a_run_that_leaves_at_the_last_moment_leaves_it_all_its_time() -> None:
    async def to_the_end() -> None:
        await trio.sleep(10)

    for seed in range(8):
        outcome = replay(
            lambda: Case(to_the_end, afterwards=sleeper, raises_cancel=False),
            hang_after=10,
            seed=seed,
        )
        assert outcome.hung or outcome.violations == ()


def test_tasks_that_it_leaves_running_do_not_count_against_the_run() -> None:
    async def afterwards() -> None:
        trio.lowlevel.spawn_system_task(trio.sleep_forever)

    outcome = after(afterwards)
    assert (outcome.left_alive, outcome.violations) == ((), ())


@pytest.mark.parametrize("planned", [(), (("sigint", 1),)])
def test_ctrl_c_of_whoever_waits_ends_the_sweep(planned: tuple[tuple[str, int], ...]) -> None:
    async def afterwards() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        replay(lambda: Case(sleeper, afterwards=afterwards), *planned)


def test_a_keyboard_interrupt_that_nobody_planned_is_raised() -> None:
    async def afterwards() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        after(afterwards)


# --- in pytest ------------------------------------------------------------------------

PLAIN = ("-p", "trio_runner.testing.pytest_plugin", "-p", "no:cacheprovider", "-Werror")
# The process has imported the library before that pytest began.
IMPORTED = ("-Wignore::pytest.PytestAssertRewriteWarning",)


def inner(pytester: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    """Run pytest on one file, in this process."""
    pytester.makepyfile(test_it="import pytest, trio\n" + textwrap.dedent(code))
    return pytester.runpytest_inprocess(*PLAIN, *IMPORTED, *args)


def test_a_swept_test_registers_it_and_pytest_shows_its_error(pytester: pytest.Pytester) -> None:
    result = inner(
        pytester,
        """
        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_torn(position):
            torn = []

            @position.afterwards
            async def it_works():
                await trio.sleep(1)
                assert torn == []

            torn.append(1)
            await trio.sleep(1)
            torn.clear()
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*async def it_works():*",
            ">*assert torn == []",
            "*cancel_sweep: * positions (cancel *)*",
            "*    - afterwards: assert [[]1[]] == [[][]]*",
        ]
    )


def test_several_are_awaited_in_their_order_and_in_every_position(
    pytester: pytest.Pytester,
) -> None:
    result = inner(
        pytester,
        """
        seen = []

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_good(position):
            for number in range(2):
                @position.afterwards
                async def note(number=number):
                    await trio.sleep(1)
                    seen.append(number)
            await trio.sleep(1)

        def test_seen():
            assert len(seen) >= 6  # without a fault, and at two steps
            assert seen == [0, 1] * (len(seen) // 2)
        """,
    )
    result.assert_outcomes(passed=2)


def test_a_run_without_a_fault_that_does_not_pass_it_fails_as_it_is(
    pytester: pytest.Pytester,
) -> None:
    result = inner(
        pytester,
        """
        @pytest.mark.cancel_sweep(seeds=1)
        async def test_bad(position):
            @position.afterwards
            async def breaks():
                raise ZeroDivisionError("mine")

        @pytest.mark.cancel_sweep(seeds=1)
        async def test_hangs(position):
            position.afterwards(trio.sleep_forever)
        """,
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E*ZeroDivisionError: mine",
            "*in the run without a fault*seed=0*",
            "*- afterwards: ZeroDivisionError('mine')",
            "*in the run without a fault*seed=0*",
            "*- afterwards: it did not end by itself",
        ]
    )
    result.stdout.no_fnmatch_line("*Cancelled*")


def test_pytest_exit_in_it_ends_pytest(pytester: pytest.Pytester) -> None:
    result = inner(
        pytester,
        """
        runs = []

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_exits(position):
            runs.append("begun")

            @position.afterwards
            async def leaves():
                if runs[-1] == "begun":
                    pytest.exit("enough")

            await trio.sleep(1)
            runs[-1] = "done"

        def test_next(): ...
        """,
    )
    result.assert_outcomes()
    result.stdout.fnmatch_lines(["*Exit: enough*"])
    result.stdout.no_fnmatch_line("*cancel_sweep: * positions*")
