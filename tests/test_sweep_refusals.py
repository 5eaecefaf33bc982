"""A sweep that could show nothing says so: in an error, or in a report that is not ok."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import trio

from trio_runner.testing import (
    Case,
    Fault,
    Injection,
    Outcome,
    ScriptedModel,
    Seam,
    SweepError,
    SweepFailed,
    check_model,
    replay,
    sweep,
    sweep_lines,
)
from trio_runner.testing import _position as position


def of(run: Callable[[], Any], **options: Any) -> Callable[[], Case]:
    return lambda: Case(run, **options)


async def sleeper() -> None:
    await trio.sleep(1)


# --- errors that no fault explains -----------------------------------------------


async def broken() -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("always broken")


def test_a_run_without_a_fault_that_raises_ends_the_sweep_with_its_error() -> None:
    with pytest.raises(
        SweepError, match="the run without a fault raised ValueError: always broken"
    ) as caught:
        sweep(of(broken))
    assert type(caught.value.__cause__) is ValueError
    assert caught.value.__cause__.__traceback__ is not None
    with pytest.raises(SweepError, match="nothing was swept"):
        sweep_lines(of(broken), paths=[__file__])


@pytest.mark.parametrize("judged", [False, True])
def test_what_may_leave_is_said_by_the_case(judged: bool) -> None:
    with pytest.raises(SweepError):
        sweep(of(broken, judge=judged), seeds=[0])
    assert sweep(of(broken, judge=judged, may_raise=(ValueError,)), seeds=[0]).ok
    with pytest.raises(SweepError):
        sweep(of(broken, judge=judged, may_raise=(KeyError,)), seeds=[0])


def test_a_run_that_is_not_async_or_exits_is_refused() -> None:
    def run() -> None:
        return None

    async def leaves() -> None:
        raise SystemExit(3)

    with pytest.raises(SweepError, match="raised TypeError"):
        sweep(of(run))
    with pytest.raises(SweepError, match="raised SystemExit: 3"):
        sweep(of(leaves))


def test_an_error_that_hides_the_cancel_is_found() -> None:
    async def run() -> None:
        failed = False
        try:
            await trio.sleep(1)
        except BaseException:  # noqa: BLE001  the mistake to find
            failed = True
        if failed:
            raise RuntimeError("it failed")

    report = sweep(of(run), seeds=[0])
    text = "it raised RuntimeError, which no fault explains: it failed"
    assert {
        failure.landings[0].fault for failure in report.failures if text in failure.violations
    } == {"cancel", "deadline", "crash", "sigint"}


def shop(other: ValueError | None) -> Callable[[], Case]:
    """An operation that lets the error of its store through, or raises another from it."""

    def make() -> Case:
        seam = Seam()

        async def run() -> None:
            try:
                with trio.fail_after(5):
                    await seam.call()
            except Exception as error:
                if other is None:
                    raise
                raise other from error

        return Case(run, seams={"journal": seam})

    return make


def test_a_failed_call_explains_its_error_and_what_is_raised_from_it() -> None:
    others: list[ValueError | None] = [None, ValueError("no store")]
    for other in others:
        report = sweep(shop(other), faults=["journal_error", "journal_hang"], seeds=[0])
        assert report.ok, report.render()
        assert report.positions == 2


def test_an_error_in_the_handler_of_a_failed_call_is_found() -> None:
    def make() -> Case:
        seam = Seam()

        async def run() -> None:
            try:
                await seam.call()
            except Exception:  # noqa: BLE001  the mistake to find
                raise KeyError("a mistake") from None

        return Case(run, seams={"journal": seam})

    (violation,) = sweep(make, faults=["journal_error"], seeds=[0]).violations
    assert violation == "it raised KeyError, which no fault explains: 'a mistake'"


# --- what a cancel may do --------------------------------------------------------


@pytest.mark.parametrize("fault", ["cancel", "deadline", "crash", "sigint"])
def test_trios_own_functions_are_right_as_they_are(fault: str) -> None:
    async def in_a_nursery() -> None:
        event = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(event.wait)
            await trio.sleep(1)
            event.set()

    async def through_a_channel() -> object:
        send, receive = trio.open_memory_channel[int](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send.send, 1)
            return await receive.receive()

    for run in (sleeper, in_a_nursery, through_a_channel):
        assert sweep(of(run), faults=[fault], seeds=range(2)).ok


def test_an_error_of_a_deadline_of_its_own_may_leave_when_the_cancel_comes_after_it() -> None:
    async def run() -> None:
        try:
            with trio.fail_after(0.5):
                await trio.sleep(1)
        except trio.TooSlowError as error:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            raise RuntimeError("too slow") from error

    case = of(run, raises_cancel=True, may_raise=(RuntimeError,))
    assert replay(case, ("cancel", 4)).violations == ()
    (violation,) = replay(case, ("cancel", 1)).violations or ("",)
    assert violation == ""


# --- nothing to sweep ------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seeds": ()}, "seeds is empty"),
        ({"seeds": 3}, r"seeds is 3; expected several numbers: range\(3\)"),
        ({"faults": ()}, "faults and pairs are both empty"),
        ({"faults": "cancel"}, r"faults is 'cancel'; expected several: \['cancel'\]"),
        ({"pairs": ("cancel", "sigint")}, "expected pairs of faults"),
        ({"pairs": [("cancel",)]}, "expected pairs of faults"),
        ({"max_positions": 0}, "max_positions is 0; expected 1 or more"),
        ({"max_positions": -1}, "max_positions is -1"),
        ({"max_failures": 0}, "max_failures is 0"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_options_that_leave_nothing_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        sweep(of(sleeper), **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"paths": __file__}, r"expected several: \['"),
        ({"paths": trio}, r"paths is trio; expected several: \[trio\]"),
        ({"paths": ()}, "paths is empty"),
        ({"paths": [__file__], "seeds": ()}, "seeds is empty"),
        ({"paths": [__file__], "max_positions": 0}, "max_positions is 0"),
        ({"paths": [__file__], "pairs": -1}, "pairs is -1"),
    ],
)
def test_options_of_lines_that_leave_nothing_are_refused(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        sweep_lines(of(sleeper), **options)


@pytest.mark.parametrize("options", [{"seeds": ()}, {"max_positions": 0}, {"rules": []}])
def test_options_of_a_kit_that_leave_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is empty|is 0"):
        check_model(lambda: ScriptedModel([]), **options)


@pytest.mark.parametrize("made", [None, sleeper])
def test_a_factory_that_makes_no_case_is_told_what_to_make(made: object) -> None:
    with pytest.raises(TypeError, match=r"expected a Case\. It is a plain function"):
        sweep(lambda: made)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="expected a Case"):
        sweep(sleeper)  # pyright: ignore[reportArgumentType]


def test_a_report_without_positions_is_not_ok() -> None:
    def make() -> Case:
        return Case(sleeper, seams={"journal": Seam()})

    report = sweep(make, faults=["journal_error"], seeds=[0])
    assert not report.ok
    assert "nothing was swept: journal_error: the case never passed the seam 'journal'" in (
        report.render()
    )
    with pytest.raises(SweepFailed, match="nothing was swept"):
        report.raise_if_failed()
    both = sweep(make, faults=["cancel", "journal_error"], seeds=[0])
    assert both.ok
    assert both.unswept == ("journal_error: the case never passed the seam 'journal'",)
    assert "not swept: journal_error" in both.render()


# --- one run is like another ------------------------------------------------------


def test_a_case_whose_runs_grow_is_refused() -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        for _ in runs:
            await trio.lowlevel.checkpoint()

    with pytest.raises(SweepError, match="had other steps when"):
        sweep(of(run), faults=["cancel"], seeds=[0])


def test_a_case_that_draws_its_steps_is_refused() -> None:
    dice = random.Random(4)

    async def run() -> None:
        for _ in range(dice.randint(3, 9)):
            await trio.lowlevel.checkpoint()

    with pytest.raises(SweepError, match="not deterministic"):
        sweep(of(run), faults=["cancel"], seeds=range(3))


def test_a_case_whose_end_depends_on_the_run_is_refused() -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)
        await trio.lowlevel.checkpoint()

    with pytest.raises(SweepError, match="had other end state"):
        sweep(lambda: Case(run, end_state=lambda _: len(runs)), faults=["cancel"], seeds=[0])


def test_two_sweeps_at_a_time_are_refused() -> None:
    found: list[BaseException] = []

    def make() -> Case:
        def other() -> None:
            try:
                sweep(of(sleeper), faults=["cancel"], seeds=[0])
            except SweepError as error:
                found.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return Case(sleeper)

    assert sweep(make, faults=["cancel"], seeds=[0]).ok
    assert "another sweep is running" in str(found[0])
    assert sweep(of(sleeper), faults=["cancel"], seeds=[0]).ok


def test_a_case_in_the_place_of_its_maker_is_refused() -> None:
    case: Any = Case(sleeper)
    for function in (sweep, replay):
        with pytest.raises(TypeError, match="expected a function that makes a Case"):
            function(case)


@pytest.mark.parametrize("given", [OSError, [OSError], (OSError, ValueError), {OSError}])
def test_what_may_be_raised_is_one_type_or_several(given: Any) -> None:
    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError

    sweep(lambda: Case(fails, may_raise=given), faults=["cancel"], seeds=[0]).raise_if_failed()


@pytest.mark.parametrize("given", [["OSError"], [OSError()], "OSError"])
def test_what_is_no_type_of_errors_cannot_be_raised(given: Any) -> None:
    with pytest.raises(TypeError, match="expected types of errors, such as OSError"):
        Case(sleeper, may_raise=given)


def test_a_replayed_fault_that_never_comes_is_told() -> None:
    (said,) = replay(of(sleeper), ("cancel", 99)).violations
    assert said.startswith("cancel never came: the run ended before step 99; ")


def test_a_run_that_goes_another_way_is_told_by_its_tasks() -> None:
    steps = iter(range(1, 100))

    async def longer_each_time() -> None:
        for _ in range(next(steps)):
            await trio.lowlevel.checkpoint()

    async def in_a_child() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(longer_each_time)
            await trio.sleep(1)

    with pytest.raises(
        SweepError,
        match=r"step \d+ was a wait of all tasks, and now is one of task '.*longer_each_time'",
    ):
        sweep(of(in_a_child), faults=["cancel"], seeds=[0])


# --- runs that do not end ---------------------------------------------------------


def test_a_run_that_is_too_long_says_which_limit_it_passed_and_is_not_swept() -> None:
    async def steps() -> None:
        for _ in range(60):
            await trio.lowlevel.checkpoint()

    async def hours() -> None:
        await trio.sleep(7200)

    test = "test_a_run_that_is_too_long_says_which_limit_it_passed_and_is_not_swept"
    for run, limit in (
        (steps, "it took more than max_steps=50 steps"),
        (hours, "it took more than hang_after=3600 s on the mock clock"),
    ):
        report = sweep(of(run), faults=["cancel"], seeds=[0], max_steps=50)
        (said,) = report.violations
        place = f"in {test}.<locals>.{run.__name__}"
        assert said.startswith(f"it did not end by itself: {limit}; it stood at ")
        assert said.endswith(place)
        assert report.positions == 0
        assert report.unswept == ("seed 0: its run without a fault has a violation already",)


def test_after_a_few_runs_that_cannot_be_stopped_the_rest_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(position, "_LOOKS_BEFORE_STUCK", 100)

    async def run() -> None:
        done = False
        while not done:
            try:
                for _ in range(20):
                    await trio.sleep(1)
                done = True
            except trio.Cancelled:
                await trio.lowlevel.cancel_shielded_checkpoint()

    report = sweep(of(run), faults=["cancel"], seeds=range(8), max_steps=200)
    assert len(report.failures) == 3
    assert report.skipped > 0
    assert "after 3 runs that did not stop" in report.render()


# --- words ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "violations"),
    [(None, ()), ("bad", ("bad",)), (["a", "b"], ("a", "b")), ((), ())],
)
def test_a_check_gives_nothing_a_sentence_or_several(
    found: Iterable[str] | None, violations: tuple[str, ...]
) -> None:
    assert replay(lambda: Case(sleeper, lambda _: found)).violations == violations


def test_a_check_that_gives_anything_else_is_told_what_to_give() -> None:
    def check(_: Outcome) -> Any:
        return False

    with pytest.raises(TypeError, match="it gave False; expected None, or sentences"):
        replay(of(sleeper, check=check))


def test_a_replay_line_names_a_fault_of_ones_own_by_its_variable() -> None:
    def nothing(_: Injection) -> None:
        pass

    mine = Fault("mine", nothing)

    def check(outcome: Outcome) -> Iterable[str]:
        return ["bad"] * len(outcome.landings)

    report = sweep(of(sleeper, check=check), faults=[mine])
    line = report.failures[0].replay
    assert line == "replay(make_case, (mine, 0), seed=0)  # mine: your Fault('mine', …)"
    scope: dict[str, Any] = {"replay": replay, "make_case": of(sleeper), "mine": mine}
    assert eval(line, scope).landed


def test_a_subclass_of_a_fault_is_a_fault() -> None:
    class Mine(Fault):
        pass

    assert sweep(of(sleeper), faults=[Mine("mine", Injection.cancel)], seeds=[0]).ok
