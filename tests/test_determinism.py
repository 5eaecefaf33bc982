import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio._core._run as trio_run
import trio.testing

from trio_runner.testing import _determinism
from trio_runner.testing._determinism import (
    DeterminismError,
    check_trio,
    deterministic,
    inline_run_sync,
    threads_inline,
)

RunSync = Callable[..., Awaitable[Any]]


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


def test_inside_thread_functions_run_in_this_thread_and_outside_they_do_not() -> None:
    here = threading.get_ident()
    real = trio.to_thread.run_sync

    async def where() -> int:
        return await trio.to_thread.run_sync(threading.get_ident)

    with threads_inline():
        assert trio.run(where) == here
    assert trio.to_thread.run_sync is real
    assert trio.run(where) != here


async def test_the_stand_in_returns_and_raises_what_the_function_does() -> None:
    assert await inline_run_sync(max, 3, 5) == 5
    with pytest.raises(ZeroDivisionError):
        await inline_run_sync(lambda: 1 // 0)


async def test_the_stand_in_refuses_an_async_function() -> None:
    with pytest.raises(TypeError, match="which is async"):
        await inline_run_sync(trio.sleep, 0)


async def test_the_stand_in_takes_a_step_before_the_function_and_one_after_it() -> None:
    seen: list[str] = []

    async def other() -> None:
        for number in range(2):
            seen.append(f"step {number}")
            await trio.lowlevel.cancel_shielded_checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await inline_run_sync(seen.append, "function")
        seen.append("returned")
    position = seen.index("function")
    assert seen.index("step 0") < position < seen.index("returned")
    assert len(seen[position:]) >= 2


@pytest.mark.parametrize("run_sync", [inline_run_sync, trio.to_thread.run_sync])
async def test_a_cancel_before_the_call_stops_it_as_it_does_with_a_thread(
    run_sync: RunSync,
) -> None:
    called: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_sync(called.append, 1)
    assert scope.cancelled_caught
    assert called == []


@pytest.mark.parametrize("abandon", [False, True])
@pytest.mark.parametrize("run_sync", [inline_run_sync, trio.to_thread.run_sync])
async def test_a_cancel_during_the_call_is_treated_as_with_a_thread(
    run_sync: RunSync, abandon: bool
) -> None:
    token = trio.lowlevel.current_trio_token()
    result: list[int] = []
    with trio.CancelScope() as scope:

        def function() -> int:
            if run_sync is inline_run_sync:
                scope.cancel()
            else:
                trio.from_thread.run_sync(scope.cancel, trio_token=token)
            return 1

        result.append(await run_sync(function, abandon_on_cancel=abandon))
    assert result == ([] if abandon else [1])
    assert scope.cancel_called
    assert scope.cancelled_caught is abandon


async def test_the_stand_in_holds_the_limiter_while_the_function_runs() -> None:
    limiter = trio.CapacityLimiter(1)
    assert await inline_run_sync(lambda: limiter.borrowed_tokens, limiter=limiter) == 1
    assert limiter.borrowed_tokens == 0
    with pytest.raises(ZeroDivisionError):
        await inline_run_sync(lambda: 1 // 0, limiter=limiter)
    assert limiter.borrowed_tokens == 0


async def test_a_function_run_inline_may_call_back_into_trio() -> None:
    def function() -> str:
        trio.from_thread.check_cancelled()
        return trio.from_thread.run_sync(str.upper, "a")

    with threads_inline():
        assert await trio.to_thread.run_sync(function) == "A"
    with pytest.raises(RuntimeError):
        trio.from_thread.run_sync(str.upper, "a")


async def test_a_function_run_inline_is_protected_from_ctrl_c_as_in_a_thread() -> None:
    assert await inline_run_sync(trio.lowlevel.currently_ki_protected) is True


async def test_the_stand_in_has_its_own_context() -> None:
    name = _determinism.contextvars.ContextVar("name", default="outside")
    await inline_run_sync(name.set, "inside")
    assert name.get() == "outside"
