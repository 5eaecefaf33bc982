"""Which error leaves a nursery of ours, and what counts as a cancellation."""

from __future__ import annotations

import asyncio
import sys

import pytest
import trio

import trio_runner._shell.leaving as leaving

MESSAGE = "several errors ended the batch"


class Unusual(BaseException):
    """Neither an `Exception` nor one of the exits, as test frameworks raise."""


async def a_cancelled() -> trio.Cancelled:
    """A Cancelled as trio makes it; nobody else may."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            made = error
            raise
    return made  # pyright: ignore[reportPossiblyUnboundVariable]


def nobody(error: BaseException) -> None:
    pytest.fail(f"reported {error!r}, which does not lose")


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("of a nursery", errors)


# --- leaves and cancellations ---------------------------------------------------


def test_leaves_are_the_errors_within_groups_of_any_depth_in_order() -> None:
    a, b, c = ValueError("a"), Unusual("b"), KeyError("c")

    assert list(leaving.leaves(group(group(a, group(b)), c))) == [a, b, c]
    assert list(leaving.leaves(a)) == [a]


async def test_both_loops_cancellations_count_and_nothing_else() -> None:
    assert leaving.is_cancellation(await a_cancelled())
    assert leaving.is_cancellation(asyncio.CancelledError())
    for other in (ValueError(), KeyboardInterrupt(), TimeoutError(), trio.TooSlowError()):
        assert not leaving.is_cancellation(other)
    # A group is no leaf, whatever is in it.
    assert not leaving.is_cancellation(group(asyncio.CancelledError()))


async def test_without_asyncio_only_trios_cancellation_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "asyncio.exceptions")

    assert leaving.is_cancellation(await a_cancelled())
    assert not leaving.is_cancellation(ValueError())
    # asyncio's would be known again by the module that makes it.
    assert not leaving.is_cancellation(asyncio.CancelledError())
    assert "asyncio.exceptions" not in sys.modules


async def test_a_cancel_from_outside_is_one_that_reaches_the_present_task() -> None:
    assert not leaving.cancelled_from_outside()
    with trio.move_on_after(60):
        await trio.lowlevel.checkpoint()
        assert not leaving.cancelled_from_outside()
    with trio.CancelScope() as scope:
        scope.cancel()
        assert leaving.cancelled_from_outside()
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
            assert not leaving.cancelled_from_outside()
        await trio.lowlevel.cancel_shielded_checkpoint()
    assert not leaving.cancelled_from_outside()


def test_only_outside_every_task_does_generator_exit_mean_that_nothing_can_await() -> None:
    async def in_a_task() -> bool:
        return leaving.is_closing(GeneratorExit())

    assert not trio.run(in_a_task)
    assert leaving.is_closing(GeneratorExit())
    assert not leaving.is_closing(ValueError())
    assert not leaving.is_closing(None)


# --- what leaves ----------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("deep", [False, True])
async def test_an_exit_beats_everything_and_leaves_bare(
    kind: type[BaseException], deep: bool
) -> None:
    exit_, value, key = kind(), ValueError("lost"), KeyError("lost too")
    cancelled = await a_cancelled()
    reported: list[BaseException] = []
    inner = group(key, exit_) if deep else exit_

    picked = leaving.pick(group(cancelled, value, inner), reported.append)

    assert picked is exit_
    assert reported == ([value, key] if deep else [value])


async def test_a_cancel_beats_errors_which_are_reported_one_by_one() -> None:
    first, second = await a_cancelled(), await a_cancelled()
    value, key, odd = ValueError("lost"), KeyError("lost too"), Unusual("and this")
    reported: list[BaseException] = []

    picked = leaving.pick(group(value, group(key, first), odd, second), reported.append)

    assert picked is first
    # The other cancellations are the same event, not an error.
    assert reported == [value, key, odd]


async def test_asyncios_cancellation_does_not_leave_for_a_cancel_of_ours() -> None:
    foreign, value = asyncio.CancelledError(), ValueError("kept")

    picked = leaving.pick(group(foreign, value), nobody)

    assert type(picked) is BaseExceptionGroup
    assert picked.exceptions == (foreign, value)


@pytest.mark.parametrize("error", [ValueError("one"), Unusual("one")])
def test_a_single_error_leaves_bare(error: BaseException) -> None:
    assert leaving.pick(group(error), nobody) is error


def test_a_users_group_leaves_as_it_is() -> None:
    # Its only error is not taken out: that layer is not ours.
    theirs = ExceptionGroup("theirs", [ValueError("one")])

    assert leaving.pick(group(theirs), nobody) is theirs
    assert [str(error) for error in theirs.exceptions] == ["one"]


def test_several_errors_leave_as_one_group_that_keeps_users_groups() -> None:
    theirs, key = ExceptionGroup("theirs", [ValueError("one"), TypeError("two")]), KeyError("k")

    picked = leaving.pick(group(theirs, key), nobody)

    assert type(picked) is ExceptionGroup
    assert picked.message == MESSAGE
    assert picked.exceptions == (theirs, key)


def test_the_turns_timeout_is_one_of_trios_and_no_cancellation() -> None:
    error = leaving.TurnTimeoutError("late")

    assert isinstance(error, trio.TooSlowError)
    assert not leaving.is_cancellation(error)
