"""`finish`: what must be done although the caller was cancelled, within a deadline."""

from __future__ import annotations

import math
import signal
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
import trio.testing

import trio_runner._shell.finishing as finishing


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Sends a real SIGINT; trio's handler needs Python's own to be in place."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def nobody(error: BaseException) -> None:
    pytest.fail(f"reported {error!r}, which does not lose")


class Work:
    """Takes ``seconds`` and notes what became of it."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.state = "not begun"
        self.ended_at = math.nan

    async def run(self) -> None:
        self.state = "begun"
        try:
            await trio.sleep(self.seconds)
            self.state = "done"
        except trio.Cancelled:
            self.state = "cancelled"
            raise
        finally:
            self.ended_at = trio.current_time()


async def finish(
    async_fn: Callable[[], Awaitable[object]],
    within: float = 5,
    report: Callable[[BaseException], None] = nobody,
) -> None:
    await finishing.finish(async_fn, deadline=trio.current_time() + within, report=report)


# --- the work and its deadline --------------------------------------------------


async def test_the_work_gets_its_arguments_and_a_task_of_its_own() -> None:
    seen: list[object] = []

    async def work(*args: object) -> None:
        seen.extend([*args, trio.lowlevel.current_task(), trio.lowlevel.currently_ki_protected()])

    await finishing.finish(work, 1, "two", deadline=math.inf, report=nobody)

    assert seen[:2] == [1, "two"]
    assert seen[2] is not trio.lowlevel.current_task()
    assert seen[3] is True


async def test_past_the_deadline_the_work_is_cancelled_and_nothing_is_raised(
    autojump_clock: trio.testing.MockClock,
) -> None:
    work = Work(seconds=100)
    began = trio.current_time()

    await finish(work.run, within=5)

    assert work.state == "cancelled"
    assert work.ended_at - began == 5


async def test_a_deadline_that_has_passed_lets_the_work_reach_its_first_checkpoint() -> None:
    work = Work()

    await finish(work.run, within=-1)

    assert work.state == "cancelled"


# --- cancels --------------------------------------------------------------------


async def test_a_cancelled_caller_finishes_and_meets_its_cancel_afterwards(
    autojump_clock: trio.testing.MockClock,
) -> None:
    work = Work(seconds=3)
    with trio.CancelScope() as scope:
        scope.cancel()
        await finish(work.run)
        assert work.state == "done"
        await trio.lowlevel.checkpoint_if_cancelled()
        pytest.fail("the cancel was lost")
    assert scope.cancelled_caught


async def test_cancels_and_deadlines_that_come_meanwhile_neither_cut_nor_extend(
    autojump_clock: trio.testing.MockClock,
) -> None:
    work = Work(seconds=100)
    began = trio.current_time()
    with trio.CancelScope() as outer, trio.move_on_after(2):
        async with trio.open_nursery() as nursery:

            async def cancel_twice() -> None:
                await trio.sleep(1)
                nursery.cancel_scope.cancel()
                outer.cancel()

            nursery.start_soon(cancel_twice)
            await finish(work.run, within=5)
            assert trio.current_time() - began == 5
    assert work.ended_at - began == 5


async def test_the_works_own_children_are_shielded_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    work = Work(seconds=3)

    async def with_a_child() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work.run)

    with trio.CancelScope() as scope:
        scope.cancel()
        await finish(with_a_child)
    assert work.state == "done"


# --- errors ---------------------------------------------------------------------


# An application may still ask for the old way; our own nursery does not follow it.
@pytest.mark.filterwarnings("ignore::trio.TrioDeprecationWarning")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
def test_an_error_of_the_work_leaves_as_it_was_raised(error: BaseException, strict: bool) -> None:
    async def fails() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await finish(fails)
        assert caught.value is error
        assert caught.value.__suppress_context__

    trio.run(main, strict_exception_groups=strict)


@pytest.mark.filterwarnings("ignore::trio.TrioDeprecationWarning")
@pytest.mark.parametrize("strict", [True, False])
def test_a_group_that_the_work_raises_keeps_its_layer(strict: bool) -> None:
    leaf = ValueError("bad")

    async def fails() -> None:
        raise ExceptionGroup("theirs", [leaf])

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await finish(fails)
        # The group may be a copy, which trio makes; its errors are the same.
        assert caught.value.message == "theirs"
        assert caught.value.exceptions == (leaf,)

    trio.run(main, strict_exception_groups=strict)


async def test_an_error_of_the_work_beats_the_deadline_that_caused_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def fails_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise ValueError("on the way out") from None

    with pytest.raises(ValueError, match="on the way out"):
        await finish(fails_when_cancelled)


# --- Ctrl-C ---------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_while_the_main_task_waits_comes_when_the_work_is_done(
    ctrl_c: Callable[[], None], times: int
) -> None:
    work = Work(seconds=3)

    async def interrupted_work() -> None:
        for _ in range(times):
            ctrl_c()
            await trio.lowlevel.checkpoint()
        await work.run()

    async def main() -> None:
        await finish(interrupted_work)
        pytest.fail("Ctrl-C was lost")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert work.state == "done"


def test_ctrl_c_beats_an_error_of_the_work_which_is_reported(
    ctrl_c: Callable[[], None],
) -> None:
    reported: list[BaseException] = []
    error = ValueError("lost")

    async def interrupted_work() -> None:
        ctrl_c()
        # Long enough for the main task to have been told.
        await trio.testing.wait_all_tasks_blocked()
        raise error

    async def main() -> None:
        await finish(interrupted_work, report=reported.append)

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert reported == [error]
