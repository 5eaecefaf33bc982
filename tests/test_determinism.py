import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio._core._run as trio_run
import trio._threads as trio_threads
import trio.testing
from trio.to_thread import run_sync as run_sync_by_another_name

from trio_runner.testing import SweepError
from trio_runner.testing._determinism import (
    DeterminismError,
    check_trio,
    deterministic,
    threads_inline,
)


async def order_of_ten() -> list[int]:
    """The order in which ten tasks run, over some rounds."""
    order: list[int] = []

    async def child(number: int) -> None:
        for _ in range(5):
            order.append(number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(child, number)
    return order


# --- the scheduler --------------------------------------------------------------


def test_trio_has_the_private_names_that_are_set() -> None:
    """When this fails, trio has changed: look at `trio._core._run` for what took their place."""
    check_trio()
    assert type(trio_run._r) is random.Random
    assert trio_run._ALLOW_DETERMINISTIC_SCHEDULING in (True, False)


def test_one_seed_gives_one_order() -> None:
    orders: list[list[int]] = []
    for _ in range(5):
        with deterministic(3):
            orders.append(trio.run(order_of_ten))
    assert all(order == orders[0] for order in orders)


def test_other_seeds_give_other_orders() -> None:
    """Both halves work: without the seed one order would come by chance only."""
    orders: set[tuple[int, ...]] = set()
    for seed in range(10):
        with deterministic(seed):
            orders.add(tuple(trio.run(order_of_ten)))
    assert len(orders) == 10


def test_the_switch_takes_the_order_from_the_seed_and_not_from_the_run_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other half: tasks woken in another order are still stepped in the seed's order."""
    # pytest-trio turns the switch on where Hypothesis is installed.
    monkeypatch.setattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", False)

    async def woken(backwards: bool) -> list[int]:
        order: list[int] = []
        events = [trio.Event() for _ in range(6)]

        async def child(number: int) -> None:
            await events[number].wait()
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(child, number)
            await trio.testing.wait_all_tasks_blocked()
            for event in reversed(events) if backwards else events:
                event.set()
        return order

    results: list[list[int]] = []
    for backwards in (False, True):
        with deterministic(1):
            results.append(trio.run(woken, backwards))
    assert results[0] == results[1]


@pytest.mark.parametrize("switch", [False, True])
def test_everything_is_put_back(monkeypatch: pytest.MonkeyPatch, switch: bool) -> None:
    monkeypatch.setattr(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", switch)
    before = (trio_run._r.getstate(), trio_run._ALLOW_DETERMINISTIC_SCHEDULING)
    # The switch is on, so this is 1 // 0. With the switch off nothing would be raised.
    with pytest.raises(ZeroDivisionError), deterministic(0):
        divmod(1, not trio_run._ALLOW_DETERMINISTIC_SCHEDULING)
    assert before == (trio_run._r.getstate(), trio_run._ALLOW_DETERMINISTIC_SCHEDULING)


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_trio_that_has_changed_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(trio_run, name)
    with pytest.raises(DeterminismError, match=f"trio {trio.__version__}: expected .*{name}"):
        check_trio()
    with pytest.raises(DeterminismError), deterministic(0):
        pytest.fail("it was let in")


# --- threads --------------------------------------------------------------------


def in_line(main: Callable[[], Awaitable[Any]], patience: float = 10.0) -> Any:
    with threads_inline(patience):
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_function_runs_in_a_thread_of_its_own() -> None:
    here = threading.get_ident()

    async def where() -> int:
        return await trio.to_thread.run_sync(threading.get_ident)

    assert in_line(where) != here
    assert trio.run(where) != here


def test_everything_about_threads_is_put_back() -> None:
    before = dict(trio_threads.__dict__)
    with pytest.raises(ZeroDivisionError), threads_inline():
        divmod(1, dict(trio_threads.__dict__) == before)
    assert dict(trio_threads.__dict__) == before


def test_the_clock_does_not_jump_while_a_function_works() -> None:
    """Also for a caller that knows ``run_sync`` by a name of its own."""

    async def main() -> list[bool]:
        with trio.fail_after(5):
            path = trio.Path(__file__)
            return [await run_sync_by_another_name(time.sleep, 0.01) is None, await path.exists()]

    assert in_line(main) == [True, True]


def test_no_task_steps_while_a_function_works() -> None:
    seen: list[str] = []

    async def other() -> None:
        for _ in range(20):
            seen.append("step")
            await trio.lowlevel.checkpoint()

    def function() -> None:
        seen.append("begin")
        time.sleep(0.01)
        seen.append("end")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await trio.to_thread.run_sync(function)

    in_line(main)
    assert seen.index("end") == seen.index("begin") + 1
    assert seen[0] == seen[-1] == "step"


def test_a_function_may_call_back_into_trio_and_the_order_is_the_same_each_time() -> None:
    def once() -> list[object]:
        seen: list[object] = []

        async def slow() -> str:
            await trio.sleep(1)
            seen.append("slept")
            return "A"

        def function() -> str:
            trio.from_thread.check_cancelled()
            seen.append(trio.from_thread.run_sync(str.upper, "b"))
            answer = trio.from_thread.run(slow)
            seen.append("answered")
            return answer

        async def other(number: int) -> None:
            for _ in range(10):
                seen.append(number)
                await trio.sleep(0.25)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(other, number)
                seen.append(await trio.to_thread.run_sync(function))

        with deterministic(1):
            in_line(main)
        return seen

    first = once()
    assert [each for each in first if type(each) is str] == ["B", "slept", "answered", "A"]
    assert [once() for _ in range(5)] == [first] * 5


def test_trio_and_asyncio_can_be_run_in_a_thread() -> None:
    async def inner() -> str:
        return await trio.to_thread.run_sync(str.upper, "a")

    async def foreign() -> str:
        await asyncio.sleep(0)
        return "b"

    async def main() -> list[str]:
        return [
            await trio.to_thread.run_sync(trio.run, inner),
            await trio.to_thread.run_sync(lambda: asyncio.run(foreign())),
        ]

    assert in_line(main) == ["A", "b"]


@pytest.mark.parametrize("abandon", [False, True])
def test_a_cancel_during_the_call_is_treated_as_ever(abandon: bool) -> None:
    done: list[int] = []

    async def main() -> bool:
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:

            def function() -> None:
                trio.from_thread.run_sync(scope.cancel, trio_token=token)
                done.append(1)

            await trio.to_thread.run_sync(function, abandon_on_cancel=abandon)
        return scope.cancelled_caught

    assert in_line(main) is abandon
    assert done == [1]


def test_a_cancel_that_came_before_it_began_can_be_seen_in_the_function() -> None:
    async def main() -> bool:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, trio.from_thread.check_cancelled)
                await trio.lowlevel.checkpoint()
                scope.cancel()
        return scope.cancelled_caught

    assert in_line(main) is True


def test_a_function_that_waits_for_another_task_is_an_error_that_says_where() -> None:
    event = threading.Event()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, event.wait)
            await trio.sleep(0.1)
            event.set()

    with threads_inline(patience=0.05) as threads:
        with pytest.RaisesGroup(SweepError):
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        event.set()
        assert threads.error is not None
        assert "did not return within 0.05 s of real time; it stands at" in str(threads.error)
        with pytest.raises(SweepError):
            trio.run(trio.to_thread.run_sync, int)


def test_two_at_a_time_are_refused() -> None:
    found: list[Exception] = []

    def other() -> None:
        try:
            with threads_inline():
                pass
        except SweepError as error:
            found.append(error)

    with threads_inline():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another sweep is running in this process" in str(found[0])
    with threads_inline():
        pass


def test_a_trio_without_the_names_for_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(trio_threads, "start_thread_soon")
    with pytest.raises(DeterminismError, match="start_thread_soon"), threads_inline():
        pytest.fail("it was let in")
