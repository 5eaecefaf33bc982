"""`Slot`: at most so many at work, and nobody waits for a slot while holding one."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_runner._shell.slots import Slot


class Gauge:
    """Counts who works, and remembers the most."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0

    async def work(self, seconds: float = 1.0) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await trio.sleep(seconds)
        self.now -= 1
        self.done += 1


def borrowed(*limiters: trio.CapacityLimiter) -> list[int]:
    return [int(limiter.borrowed_tokens) for limiter in limiters]


@pytest.mark.parametrize("limit", [1, 3])
async def test_at_most_so_many_work_at_once_and_all_come_through(
    limit: int, autojump_clock: trio.testing.MockClock
) -> None:
    limiter, gauge = trio.CapacityLimiter(limit), Gauge()

    async def one() -> None:
        async with Slot(limiter):
            await gauge.work()

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(one)
    assert (gauge.most, gauge.done) == (limit, 10)
    assert borrowed(limiter) == [0]


async def test_a_block_that_raises_gives_its_slot_back() -> None:
    limiter = trio.CapacityLimiter(1)
    with pytest.raises(ValueError, match="bad"):
        async with Slot(limiter):
            raise ValueError("bad")
    assert borrowed(limiter) == [0]


# --- nested calls ---------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
async def test_nested_calls_of_any_depth_do_not_deadlock_on_a_limit_of_one(
    same: bool, autojump_clock: trio.testing.MockClock
) -> None:
    first = trio.CapacityLimiter(1)
    limiters = [first, first, first] if same else [first, trio.CapacityLimiter(1), first]
    gauge = Gauge()

    async def nest(depth: int) -> None:
        async with Slot(limiters[depth]):
            if depth + 1 < len(limiters):
                await nest(depth + 1)
            # Having its slot again, it may work.
            await gauge.work()

    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(nest, 0)
    assert gauge.done == 4 * 3
    assert gauge.most == (1 if same else 2)
    assert borrowed(*limiters) == [0, 0, 0]


async def test_a_slot_is_lent_while_nested_calls_want_one_and_taken_back_after_the_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outer, inner = trio.CapacityLimiter(1), trio.CapacityLimiter(2)
    seen: list[list[int]] = []

    async def nested(seconds: float) -> None:
        async with Slot(inner):
            seen.append(borrowed(outer))
            await trio.sleep(seconds)
        seen.append(borrowed(outer))

    async with Slot(outer):
        assert borrowed(outer) == [1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nested, 1)
            nursery.start_soon(nested, 2)
        assert borrowed(outer) == [1]
    # Lent while either is inside: only the last one out brings it back.
    assert seen == [[0], [0], [0], [1]]
    assert borrowed(outer, inner) == [0, 0]


async def test_a_call_that_has_its_slot_back_lends_it_to_the_next_nested_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limiter, gauge = trio.CapacityLimiter(1), Gauge()
    async with Slot(limiter):
        for _ in range(2):
            async with Slot(limiter):
                await gauge.work()
            assert borrowed(limiter) == [1]
    assert gauge.done == 2


async def test_a_nested_call_that_comes_while_the_slot_is_awaited_gets_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # One nested call is through and waits for the outer one's slot, which a stranger has.
    # When the slot comes, another nested call has come: the slot is lent again at once.
    limiter, other = trio.CapacityLimiter(1), trio.CapacityLimiter(1)
    times: dict[str, float] = {}

    async def first() -> None:
        async with Slot(other):
            await trio.sleep(1)
        times["first"] = trio.current_time()

    async def second() -> None:
        await trio.sleep(2)
        async with Slot(limiter):
            times["second has it"] = trio.current_time()
            await trio.sleep(1)
        times["second"] = trio.current_time()

    async def stranger() -> None:
        await trio.sleep(0.5)
        async with Slot(limiter):
            await trio.sleep(9.5)

    began = trio.current_time()
    async with trio.open_nursery() as strangers:
        strangers.start_soon(stranger)
        async with Slot(limiter):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first)
                nursery.start_soon(second)
            assert borrowed(limiter) == [1]
    passed = {name: at - began for name, at in times.items()}
    assert passed == {"first": 10, "second has it": 10, "second": 11}
    assert borrowed(limiter, other) == [0, 0]


async def test_behind_the_block_a_nested_call_is_one_of_the_outer_call_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    a, b, c = (trio.CapacityLimiter(1) for _ in range(3))
    async with Slot(a):
        async with Slot(b):
            assert borrowed(a, b) == [0, 1]
        async with Slot(c):
            # Lent by a, not by b, which is over.
            assert borrowed(a, b, c) == [0, 0, 1]
        assert borrowed(a) == [1]
    async with Slot(b):
        assert borrowed(a, b) == [0, 1]


# --- calls that are over --------------------------------------------------------


async def test_a_task_that_outlives_its_call_has_nothing_of_it_to_lend(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outer, other = trio.CapacityLimiter(1), trio.CapacityLimiter(1)
    seen: list[list[int]] = []

    async def late() -> None:
        await trio.sleep(1)
        async with Slot(other):
            seen.append(borrowed(outer, other))
        seen.append(borrowed(outer, other))

    async with trio.open_nursery() as nursery, Slot(outer):
        nursery.start_soon(late)
    assert seen == [[0, 1], [0, 0]]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_nested_call_that_outlives_the_outer_one_brings_no_slot_back(
    waits: bool, autojump_clock: trio.testing.MockClock
) -> None:
    # With ``waits`` it is through first and waits for the slot, which a stranger has.
    outer, other = trio.CapacityLimiter(1), trio.CapacityLimiter(1)

    async def stranger() -> None:
        await trio.sleep(0.5)
        async with Slot(outer):
            await trio.sleep(9.5)

    async def nested() -> None:
        async with Slot(other):
            await trio.sleep(1 if waits else 5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stranger)
        async with Slot(outer):
            nursery.start_soon(nested)
            await trio.sleep(3)
    assert borrowed(outer, other) == [0, 0]
    assert outer.statistics().tasks_waiting == 0


async def test_two_nested_calls_that_end_while_the_slot_is_awaited_take_it_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outer, other = trio.CapacityLimiter(1), trio.CapacityLimiter(2)

    async def stranger() -> None:
        await trio.sleep(0.5)
        async with Slot(outer):
            await trio.sleep(9.5)

    async def nested(starts: float) -> None:
        await trio.sleep(starts)
        async with Slot(other):
            await trio.sleep(1)

    async with trio.open_nursery() as strangers:
        strangers.start_soon(stranger)
        async with Slot(outer):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nested, 0)
                nursery.start_soon(nested, 2)
            assert borrowed(outer, other) == [1, 0]
    assert borrowed(outer, other) == [0, 0]


# --- giving up ------------------------------------------------------------------


async def test_a_wait_that_is_given_up_enters_the_block_without_a_slot() -> None:
    limiter = trio.CapacityLimiter(1)
    entered = trio.Event()
    slot = Slot(limiter)

    async def waits() -> None:
        async with slot:
            assert borrowed(limiter) == [1]  # the other one's
            entered.set()

    async with trio.open_nursery() as nursery, Slot(limiter):
        nursery.start_soon(waits)
        await trio.testing.wait_all_tasks_blocked()
        assert not entered.is_set()
        slot.waiting.cancel()
        await entered.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert borrowed(limiter) == [1]
    assert borrowed(limiter) == [0]


async def test_a_cancelled_wait_takes_no_slot_and_is_counted_as_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    outer, inner = trio.CapacityLimiter(1), trio.CapacityLimiter(1)
    await inner.acquire_on_behalf_of("somebody")
    async with Slot(outer):
        with trio.move_on_after(1):
            async with Slot(inner):
                pytest.fail("entered")
        assert borrowed(outer, inner) == [0, 1]  # without its slot: a cancel cannot wait for it
        inner.release_on_behalf_of("somebody")
        # The next nested call brings it back.
        async with Slot(inner):
            assert borrowed(outer, inner) == [0, 1]
        assert borrowed(outer) == [1]
    assert borrowed(outer, inner) == [0, 0]


async def test_a_cancel_in_an_outermost_wait_leaves_the_limiter_as_it_was() -> None:
    limiter = trio.CapacityLimiter(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        async with Slot(limiter):
            pytest.fail("entered")
    assert borrowed(limiter) == [0]
    async with Slot(limiter):
        assert borrowed(limiter) == [1]


async def test_a_cancel_while_the_outer_slot_is_awaited_frees_everything(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limiter, other = trio.CapacityLimiter(1), trio.CapacityLimiter(1)

    async def stranger() -> None:
        await trio.sleep(0.5)
        async with Slot(limiter):
            await trio.sleep(100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stranger)
        with trio.move_on_after(5) as scope:
            async with Slot(limiter):
                async with Slot(other):
                    await trio.sleep(1)
                pytest.fail("the outer slot was never free")
        assert scope.cancelled_caught
        assert borrowed(limiter, other) == [1, 0]  # the stranger's
        nursery.cancel_scope.cancel()
    assert borrowed(limiter) == [0]


async def test_an_error_of_a_nested_call_leaves_at_once_and_is_not_replaced_by_a_cancel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # The outer slot cannot be had any more; Ctrl-C in the nested tool must not wait for it.
    limiter = trio.CapacityLimiter(1)

    async def stranger() -> None:
        await trio.sleep(0.5)
        async with Slot(limiter):
            await trio.sleep(100)

    async def nested() -> None:
        with trio.move_on_after(50):
            async with Slot(limiter), Slot(trio.CapacityLimiter(1)):
                await trio.sleep(1)
                raise KeyboardInterrupt

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stranger)
        with pytest.raises(KeyboardInterrupt):
            await nested()
        assert trio.current_time() - began == 1
        assert borrowed(limiter) == [1]  # the stranger's
        nursery.cancel_scope.cancel()
    assert borrowed(limiter) == [0]
