"""A fault comes while every task waits, too; and each leak is told where it comes from."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import pytest
import trio

from trio_runner.testing import Case, Outcome, Seam, replay, sweep

STEP_FAULTS = ("cancel", "deadline", "crash", "sigint", "sigint_child")


# --- positions in a wait --------------------------------------------------------


class Account:
    """Moves money, and moves it back only for ``undone_for``."""

    def __init__(self, undone_for: type[BaseException]) -> None:
        self.left = 10
        self.right = 0
        self._undone_for = undone_for

    async def transfer(self) -> None:
        self.left -= 3
        try:
            await trio.sleep(1)
        except self._undone_for:
            self.left += 3
            raise
        self.right += 3
        await trio.lowlevel.checkpoint()

    def lost(self, _: Outcome) -> Iterator[str]:
        if self.left + self.right != 10:
            yield f"lost: {self.left} + {self.right}"


def transfer(undone_for: type[BaseException]) -> Callable[[], Case]:
    def make() -> Case:
        account = Account(undone_for)
        return Case(account.transfer, account.lost)

    return make


@pytest.mark.parametrize(
    ("undone_for", "finders"),
    [
        (trio.Cancelled, {"sigint"}),
        (KeyboardInterrupt, {"cancel", "deadline", "crash", "sigint_child"}),
        (BaseException, set[str]()),
    ],
)
def test_each_fault_is_tried_in_the_middle_of_a_wait(
    undone_for: type[BaseException], finders: set[str]
) -> None:
    report = sweep(transfer(undone_for), faults=STEP_FAULTS, seeds=[0])
    waiting = {
        landing.fault
        for failure in report.failures
        for landing in failure.landings
        if landing.place.endswith("in Account.transfer, while every task is waiting")
    }
    assert waiting == finders


def test_the_clock_stands_at_the_beginning_of_a_wait() -> None:
    times: list[float] = []

    async def run() -> None:
        for _ in range(3):
            await trio.sleep(1)

    for step in range(7):
        (landing,) = replay(lambda: Case(run), ("cancel", step)).landings
        assert landing.time is not None
        times.append(landing.time)
    assert times == [0, 0, 1, 1, 2, 2, 3]
    assert replay(lambda: Case(run)).trace == (0, -1, 0, -1, 0, -1, 0)


def test_a_wait_is_one_position_however_often_others_wake_in_it() -> None:
    """A task that does not come from the run, and a callback from outside, change nothing."""

    async def tick() -> None:
        for _ in range(5):
            await trio.sleep(0.1)

    def make() -> Case:
        async def run() -> None:
            token = trio.lowlevel.current_trio_token()
            token.run_sync_soon(trio.lowlevel.spawn_system_task, tick)
            await trio.sleep(1)

        return Case(run, judge=False)

    assert replay(make).trace == (0, -1, 0)


def test_no_wait_is_counted_while_a_task_can_run() -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            for _ in range(3):
                await trio.lowlevel.checkpoint()

    trace = replay(lambda: Case(run)).trace
    assert trace.count(-1) == 1
    assert trace[-3:] == (-1, 1, 0)


def test_a_second_fault_comes_in_a_wait_too() -> None:
    async def run() -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    report = sweep(lambda: Case(run), faults=(), pairs=[("cancel", "cancel")], seeds=[0])
    assert report.ok
    first, second = replay(lambda: Case(run), ("cancel", 1), ("cancel", 3)).landings
    assert first.landed
    assert second.landed
    assert first.place.endswith("while every task is waiting")
    assert second.place.endswith("while every task is waiting")
    assert first.place != second.place


def opened() -> IO[str]:
    """A file that somebody has to close."""
    return Path(__file__).open(encoding="utf-8")


def launch(*command: str) -> subprocess.Popen[bytes]:
    """A process that somebody has to wait for."""
    return subprocess.Popen(command)


# --- what a run leaves behind is told with the run --------------------------------


def found_at(make: Callable[[], Case], text: str) -> tuple[set[tuple[str, int]], int]:
    """Where a sweep finds a violation, and how many positions there are."""
    report = sweep(make, faults=["cancel", "sigint"], seeds=[0])
    for failure in report.failures:
        for violation in failure.violations:
            assert text in violation
    places = {
        (landing.fault, landing.position)
        for failure in report.failures
        for landing in failure.landings
    }
    return places, report.positions


@pytest.mark.parametrize("how", ["in the frame", "in a cycle"])
def test_a_file_that_is_left_open_is_told_with_the_run_that_left_it(how: str) -> None:
    def make() -> Case:
        async def run() -> None:
            holder: list[object] = []
            if how == "in a cycle":
                holder.append(holder)
            file = opened()
            holder.append(file)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            file.close()
            await trio.lowlevel.checkpoint()

        return Case(run)

    places, positions = found_at(make, "ResourceWarning: unclosed file")
    # Step 0 lets the run begin, and the first checkpoint meets the fault; from step 3 it is closed.
    assert places == {(fault, step) for fault in ("cancel", "sigint") for step in range(3)}
    assert positions == 2 * 4
    for fault, step in places:
        (violation,) = replay(make, (fault, step)).violations
        assert "unclosed file" in violation


def test_what_the_case_itself_holds_is_told_with_it() -> None:
    class Box:
        file: object = None

    def make() -> Case:
        box = Box()

        async def run() -> None:
            box.file = opened()
            await trio.lowlevel.checkpoint()

        return Case(run, check=lambda _: [] if box.file else ["it was not opened"])

    report = sweep(make, faults=["cancel"], seeds=[0])
    assert [failure.landings for failure in report.failures] == [()]
    assert "unclosed file" in report.violations[0]


def test_nothing_of_one_sweep_is_told_by_the_next() -> None:
    def leaky() -> Case:
        async def run() -> None:
            never = trio.sleep(1)  # noqa: ASYNC105  that is the leak
            await trio.lowlevel.checkpoint()
            await never

        return Case(run)

    def innocent() -> Case:
        return Case(trio.lowlevel.checkpoint)

    assert not sweep(leaky, faults=["cancel"], seeds=[0]).ok
    assert sweep(innocent, faults=["cancel"], seeds=[0]).ok


def test_the_check_sees_what_is_found_by_the_garbage_collector() -> None:
    seen: list[tuple[str, ...]] = []

    def check(outcome: Outcome) -> Iterable[str]:
        seen.append(outcome.trouble)
        return outcome.trouble

    def make() -> Case:
        async def run() -> None:
            holder: list[object] = []
            holder += [holder, opened()]
            await trio.lowlevel.checkpoint()

        return Case(run, check, judge=False)

    (violation,) = replay(make).violations
    assert "unclosed file" in violation
    assert seen[-1] == (violation,)


# --- threads, processes, tasks --------------------------------------------------


def test_a_task_that_a_callback_started_is_told() -> None:
    async def run() -> None:
        token = trio.lowlevel.current_trio_token()
        token.run_sync_soon(trio.lowlevel.spawn_system_task, trio.sleep_forever)
        await trio.sleep(1)

    assert replay(lambda: Case(run)).violations == ("task 'trio.sleep_forever' was left running",)


def test_a_thread_that_lives_on_is_told_and_one_that_ends_is_not() -> None:
    stop = threading.Event()

    def make(wait: Callable[[], object]) -> Callable[[], Case]:
        async def run() -> None:
            threading.Thread(target=wait, name="worker", daemon=True).start()
            await trio.lowlevel.checkpoint()

        return lambda: Case(run)

    try:
        assert replay(make(stop.wait)).violations == ("thread 'worker' was left running",)
    finally:
        stop.set()
    assert replay(make(lambda: None)).violations == ()


def test_a_thread_that_is_made_once_for_the_process_is_no_leak() -> None:
    stop = threading.Event()
    pool: list[threading.Thread] = []

    async def run() -> None:
        if not pool:
            pool.append(threading.Thread(target=stop.wait, daemon=True))
            pool[0].start()
        await trio.lowlevel.checkpoint()

    try:
        assert sweep(lambda: Case(run), faults=["cancel"], seeds=[0]).ok
    finally:
        stop.set()
        pool[0].join()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which children there are")
def test_a_child_process_that_lives_on_is_told() -> None:
    started: list[subprocess.Popen[bytes]] = []

    async def run() -> None:
        started.append(launch("sleep", "30"))
        await trio.lowlevel.checkpoint()

    async def run_to_the_end() -> None:
        launch("true").wait()
        await trio.lowlevel.checkpoint()

    try:
        assert replay(lambda: Case(run)).violations == (
            "child process 'sleep 30' was left running",
        )
        assert replay(lambda: Case(run_to_the_end)).violations == ()
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_scope_that_is_left_open_is_told() -> None:
    async def run() -> None:
        trio.CancelScope().__enter__()
        await trio.lowlevel.checkpoint()

    assert "it left a cancel scope open that it had entered" in replay(lambda: Case(run)).violations


# --- seams in threads -----------------------------------------------------------


def test_a_seam_may_be_called_in_a_thread_that_trio_waits_for() -> None:
    def make() -> Case:
        seam = Seam()

        async def run() -> None:
            await trio.to_thread.run_sync(seam.call_nowait)

        return Case(run, seams={"journal": seam})

    report = sweep(make, faults=["journal_error"], seeds=[0])
    assert report.ok
    assert report.positions == 1


def test_a_seam_that_is_called_in_any_other_thread_is_refused() -> None:
    def make() -> Case:
        seam = Seam()

        async def run() -> None:
            def work() -> None:
                with pytest.raises(RuntimeError):
                    seam.call_nowait()

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        return Case(run, seams={"journal": seam})

    with pytest.raises(RuntimeError, match=r"'journal' was called outside a task of trio, at .*in"):
        sweep(make, faults=["journal_error"], seeds=[0])
