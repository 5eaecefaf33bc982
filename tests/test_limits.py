"""`limits`: what a scope counts, for whom, and how it is asked.

Turns that meet a limit are in ``test_limited_turns.py``.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Mapping
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given

import trio_runner as tr
import trio_runner._core.values as v
import trio_runner._shell.limits as shell
from trio_runner._core.open_step import STARTED, OpenStep

USAGE = tr.Usage(input_tokens=1_000_000, output_tokens=100_000, cached_input_tokens=400_000)


def about(number: float) -> Any:
    """`pytest.approx`, for where a number is expected."""
    return pytest.approx(number)


def settings_of(kind: str, amount: Any) -> dict[str, Any]:
    return {kind: amount, "prices": tr.Price(input=1, output=1)}


def step_of(count: int) -> OpenStep:
    calls = [tr.ToolCall(f"c{n}", "work") for n in range(count)]
    return OpenStep(tr.Message.assistant(tool_calls=calls))


# --- settings ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("model_calls", -1),
        ("tool_calls", -1),
        ("input_tokens", -5),
        ("output_tokens", -5),
        ("total_tokens", -5),
        ("cost", -0.1),
        ("cost", float("inf")),
        ("cost", float("nan")),
        ("seconds", -1),
        ("seconds", float("inf")),
    ],
)
def test_an_amount_that_cannot_be_is_refused_when_the_scope_is_made(kind: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=kind):
        tr.limits(**settings_of(kind, bad))


@pytest.mark.parametrize("kind", ["model_calls", "tool_calls", "total_tokens", "cost", "seconds"])
@pytest.mark.parametrize("bad", [True, "3", [3]])
def test_what_is_no_number_is_refused_when_the_scope_is_made(kind: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=kind):
        tr.limits(**settings_of(kind, bad))


def test_a_part_of_a_call_is_no_count() -> None:
    with pytest.raises(TypeError, match=r"model_calls is 1\.5"):
        tr.limits(model_calls=1.5)  # type: ignore[arg-type]


def test_a_cost_without_prices_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="give prices="):
        tr.limits(cost=1.0)


@pytest.mark.parametrize("bad", [3, {"m": 3}, {"m": None}])
def test_prices_that_are_none_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="expected a Price"):
        tr.limits(prices=bad)


def test_a_price_is_per_million_and_cached_tokens_have_their_own() -> None:
    # 600,000 fresh at 2, 400,000 cached at 0.5, 100,000 out at 10.
    assert tr.Price(input=2, output=10, cached_input=0.5).cost(USAGE) == pytest.approx(2.4)
    assert tr.Price(input=2, output=10).cost(USAGE) == pytest.approx(3.0)
    odd = tr.Usage(input_tokens=10, cached_input_tokens=20)
    assert tr.Price(input=0, output=0, cached_input=1_000_000).cost(odd) == 10


@pytest.mark.parametrize("bad", [-1, float("nan"), True, None, "1"])
def test_a_price_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="input is"):
        tr.Price(input=bad, output=1)


# --- counting ---------------------------------------------------------------------


async def test_a_scope_that_was_not_entered_has_spent_nothing() -> None:
    scope = tr.limits(model_calls=2, seconds=3)
    assert scope.spent == tr.Spent()
    assert scope.remaining == tr.Remaining(model_calls=2, seconds=3)
    assert scope.name is None


async def test_spent_and_remaining_add_up_and_are_values(
    autojump_clock: trio.testing.MockClock,
) -> None:
    prices = {"small": tr.Price(input=2, output=10)}
    with tr.limits(
        model_calls=2, total_tokens=1_000_000, cost=5.0, prices=prices, seconds=10, name="mine"
    ) as scope:
        before = scope.spent
        await trio.sleep(4)
        tr.charge_usage(USAGE, model="small")

        assert before == tr.Spent()
        assert scope.spent == tr.Spent(1, 0, USAGE, about(3.0), about(4.0))
        assert scope.remaining == tr.Remaining(
            model_calls=1,
            total_tokens=0,  # 1,100,000 were taken
            cost=about(2.0),
            seconds=about(6.0),
        )


async def test_each_scope_around_counts_for_itself_and_none_beside() -> None:
    outer, inner, beside = tr.limits(), tr.limits(), tr.limits()
    with beside:
        pass
    with outer:
        with inner:
            tr.charge_usage(tr.Usage(1, 2))
        tr.charge_usage(tr.Usage(10, 20))
    tr.charge_usage(tr.Usage(100, 200))
    assert (outer.spent.usage, outer.spent.model_calls) == (tr.Usage(11, 22), 2)
    assert (inner.spent.usage, inner.spent.model_calls) == (tr.Usage(1, 2), 1)
    assert beside.spent.usage == tr.Usage()


async def test_a_scope_that_is_entered_twice_counts_once() -> None:
    scope = tr.limits()
    with scope:
        with scope:
            tr.charge_usage(tr.Usage(1))
        tr.charge_usage(tr.Usage(1))
    tr.charge_usage(tr.Usage(1))
    assert scope.spent.usage == tr.Usage(2)


async def test_scopes_are_left_in_any_order() -> None:
    first, second = tr.limits(), tr.limits()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    tr.charge_usage(tr.Usage(1))
    second.__exit__(None, None, None)
    second.__exit__(None, None, None)  # once more than it was entered
    tr.charge_usage(tr.Usage(1))
    assert (first.spent.usage, second.spent.usage) == (tr.Usage(0), tr.Usage(1))


async def test_a_scope_that_another_task_leaves_still_counts_where_it_was_entered() -> None:
    scope = tr.limits()
    scope.__enter__()
    contextvars.Context().run(scope.__exit__, None, None, None)
    tr.charge_usage(tr.Usage(1))
    scope.__exit__(None, None, None)
    assert scope.spent.usage == tr.Usage(1)


async def test_tasks_and_threads_started_inside_count_also_after_the_block() -> None:
    async def child() -> None:
        await go_on.wait()
        tr.charge_usage(tr.Usage(1))

    def thread() -> None:
        trio.from_thread.run_sync(tr.charge_usage, tr.Usage(10))

    go_on = trio.Event()
    async with trio.open_nursery() as nursery:
        with tr.limits() as scope:
            nursery.start_soon(child)
            await trio.to_thread.run_sync(thread)
        nursery.start_soon(child)  # this one was started outside
        go_on.set()
    assert scope.spent.usage == tr.Usage(11)


async def test_seconds_run_from_the_first_entry_on(autojump_clock: trio.testing.MockClock) -> None:
    scope = tr.limits(seconds=5)
    began = trio.current_time()
    for _ in range(2):
        with scope:
            await trio.sleep(2)
    assert scope.deadline == began + 5
    assert scope.remaining.seconds == pytest.approx(1)
    await trio.sleep(10)
    assert scope.remaining.seconds == 0


def test_seconds_go_on_in_the_next_run_of_trio_which_has_another_clock() -> None:
    scope = tr.limits(seconds=100)

    async def use(seconds: float) -> float:
        with scope:
            await trio.sleep(seconds)
            return scope.deadline - trio.current_time()

    clocks = [trio.testing.MockClock(autojump_threshold=0) for _ in range(2)]
    assert trio.run(use, 30, clock=clocks[0]) == about(70)
    spent = scope.spent.seconds  # the first clock stands still from here on
    assert spent == about(30)
    assert trio.run(use, 5, clock=clocks[1]) == about(100 - spent)


async def test_seconds_are_told_in_the_thread_of_a_tool_too() -> None:
    with tr.limits(seconds=100) as scope:
        await trio.sleep(0.01)
        spent = await trio.to_thread.run_sync(lambda: scope.spent.seconds)
    assert 0 < spent <= scope.spent.seconds


async def test_nothing_that_threads_charge_side_by_side_is_lost() -> None:
    def charge() -> None:
        for _ in range(500):
            tr.charge_usage(tr.Usage(1))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with tr.limits() as scope:
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(trio.to_thread.run_sync, charge)
                for _ in range(500):
                    scope.take_tool_calls(1)
                    await trio.lowlevel.checkpoint()
    finally:
        sys.setswitchinterval(switch)
    assert attrs.evolve(scope.spent, seconds=0) == tr.Spent(2000, 500, tr.Usage(2000))


def test_a_scope_with_seconds_is_entered_inside_trio() -> None:
    with pytest.raises(tr.UsageError, match=r"inside trio.run"):
        tr.limits(seconds=1).__enter__()


def test_a_scope_without_seconds_may_be_entered_around_trio() -> None:
    async def main() -> None:
        tr.charge_usage(tr.Usage(3))

    with tr.limits() as scope:
        trio.run(main)
    assert scope.spent == tr.Spent(1, 0, tr.Usage(3))


# --- prices -----------------------------------------------------------------------


class Prefixes(Mapping[str, tr.Price]):
    """A table of a user's own: it knows models by how their names begin."""

    def __init__(self, **prices: tr.Price) -> None:
        self.prices = prices

    def __getitem__(self, name: str) -> tr.Price:
        return next(price for key, price in self.prices.items() if name.startswith(key))

    def __contains__(self, name: object) -> bool:
        return any(str(name).startswith(key) for key in self.prices)

    def __iter__(self) -> Any:
        return iter(self.prices)

    def __len__(self) -> int:
        return len(self.prices)


async def test_a_model_without_a_price_is_refused_and_nothing_is_counted() -> None:
    with (
        tr.limits() as outer,
        tr.limits(prices={"a": tr.Price(input=1, output=1)}, name="x") as scope,
    ):
        with pytest.raises(
            tr.UnknownPriceError, match="of scope 'x' have no model 'b'; they have 'a'"
        ):
            tr.charge_usage(USAGE, model="b")
        with pytest.raises(tr.UnknownPriceError, match="give one Price for all models"):
            tr.charge_usage(USAGE)
    assert scope.spent.usage == outer.spent.usage == tr.Usage()


async def test_a_table_may_be_any_mapping() -> None:
    with tr.limits(prices=Prefixes(gpt=tr.Price(input=1, output=0))) as scope:
        tr.charge_usage(USAGE, model="gpt-7-mini-2026-11-30")
    assert scope.spent.cost == pytest.approx(1.0)


async def test_tokens_of_a_call_that_is_counted_already_add_no_call() -> None:
    with tr.limits(model_calls=5) as scope:
        tr.charge_usage(tr.Usage(7), calls=0)
    assert (scope.spent.model_calls, scope.spent.usage) == (0, tr.Usage(7))


@pytest.mark.parametrize("bad", [-1, True, 0.5])
async def test_calls_that_cannot_be_are_refused_and_nothing_is_counted(bad: Any) -> None:
    with tr.limits() as scope, pytest.raises((TypeError, ValueError), match="calls is"):
        tr.charge_usage(tr.Usage(7), calls=bad)
    assert attrs.evolve(scope.spent, seconds=0) == tr.Spent()


# --- what the loop asks -------------------------------------------------------------


def test_the_first_limit_in_order_is_told_and_the_innermost_scope() -> None:
    outer, inner = tr.limits(model_calls=0, name="outer"), tr.limits(total_tokens=0, name="inner")
    found = shell.before_model_call((outer, inner), ())
    assert found == tr.LimitReached("total_tokens", 0, 0, "inner")
    assert str(found) == "the limit of scope 'inner' of 0 total tokens is reached (0 spent)"
    assert shell.before_model_call((outer, tr.limits()), ()) == tr.LimitReached(
        "model_calls", 0, 0, "outer"
    )


@pytest.mark.parametrize("kind", ["model_calls", "input_tokens", "output_tokens", "total_tokens"])
def test_a_limit_is_reached_when_it_is_spent_and_not_before(kind: Any) -> None:
    settings: dict[str, Any] = {kind: 3}
    limits = tr.Limits(**settings)
    usage = {"input_tokens": tr.Usage(2), "output_tokens": tr.Usage(0, 2)}
    two = tr.Spent(2, 0, usage.get(kind, tr.Usage(1, 1)))
    three = tr.Spent(3, 0, two.usage + {"output_tokens": tr.Usage(0, 1)}.get(kind, tr.Usage(1)))
    assert limits.before_a_model_call(two) is None
    assert limits.before_a_model_call(three) == tr.LimitReached(kind, 3, 3)


def test_tool_calls_that_are_used_up_do_not_keep_the_model_from_answering() -> None:
    assert tr.Limits(tool_calls=1).before_a_model_call(tr.Spent(tool_calls=1)) is None


@given(st.lists(st.none() | st.integers(0, 6), max_size=3), st.lists(st.integers(0, 5), max_size=5))
def test_a_batch_gets_what_the_scarcest_scope_has_and_all_scopes_count_it(
    limits: list[int | None], batches: list[int]
) -> None:
    scopes = tuple([tr.limits(tool_calls=limit) for limit in limits])
    budget = min([limit for limit in limits if limit is not None], default=None)
    taken = 0
    for count in batches:
        ration = shell.Ration(scopes, step_of(count), list(range(count)))
        fits = count if budget is None else min(count, budget - taken)
        taken += fits
        assert ration.over == list(range(fits, count))
        assert (ration.limit is not None) == bool(ration.over)
        if ration.limit is not None:
            assert (ration.limit.limit, ration.limit.spent) == (budget, budget)
        assert [scope.spent.tool_calls for scope in scopes] == [taken] * len(scopes)


@pytest.mark.parametrize(
    ("status", "started", "counts"),
    [
        (v.CallStatus.OK, True, True),
        (v.CallStatus.OK, False, True),  # in a thread, whose start is not noted
        (v.CallStatus.ERROR, True, True),
        (v.CallStatus.TIMED_OUT, True, True),
        (None, True, True),  # it is open: the turn was interrupted
        (None, False, False),
        (v.CallStatus.NOT_STARTED, False, False),
        (v.CallStatus.DENIED, False, False),
        (v.CallStatus.UNAVAILABLE, False, False),
        (v.CallStatus.INVALID_ARGUMENTS, True, False),
        (v.CallStatus.UNKNOWN_AFTER_CRASH, False, False),
    ],
)
def test_a_call_counts_when_its_tool_ran(
    status: v.CallStatus | None, started: bool, counts: bool
) -> None:
    scope, step = tr.limits(), step_of(2)
    ration = shell.Ration((scope,), step, [1])
    if status is not None:
        step.results[1] = tr.ToolResult("c1", "work", status=status)
    if started:
        step.started[1] = STARTED
    ration.give_back()
    assert scope.spent.tool_calls == counts


async def test_the_seconds_that_are_up_first_are_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with tr.limits(seconds=0.3, name="short") as short, tr.limits(seconds=9) as long, tr.limits():
        assert shell.first_deadline(shell.scopes_around()) == short.deadline
        await trio.sleep_until(short.deadline)
        found = shell.time_limit((long, short))
    assert (found.kind, found.limit, found.scope) == ("seconds", 0.3, "short")
    assert found.spent >= 0.3


async def test_that_a_model_reports_no_usage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with tr.limits(total_tokens=10) as scope, tr.limits(model_calls=3) as other:
        for each in (scope, scope, other):
            each.add(None, (None, "small"))  # the reply names none, the model's object does
    told = [record.message for record in caplog.records if "reports no usage" in record.message]
    assert len(told) == 1
    assert "'small'" in told[0]
