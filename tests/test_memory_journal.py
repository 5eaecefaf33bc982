import math
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner._core.errors as errors
import trio_runner._core.records as records_
import trio_runner.abc as abc
from trio_runner._journal.memory import Fate, MemoryJournal, MemorySession, MemoryTicket

RECORDS = [records_.SessionOpened(agent=f"agent-{number}") for number in range(10)]
A, B, C, D = RECORDS[:4]


def as_journal(journal: abc.Journal) -> abc.Journal:
    """Holds the type checker to it: the class has the protocol."""
    return journal


async def steps_of(async_fn: Callable[[], Awaitable[object]]) -> int:
    """How many task steps the current task takes for it."""
    mine = trio.lowlevel.current_task()
    steps = 0

    class Count(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal steps
            steps += task is mine

    count = Count()
    trio.lowlevel.add_instrument(count)
    await async_fn()
    trio.lowlevel.remove_instrument(count)
    return steps


def state(ticket: MemoryTicket) -> tuple[bool, Exception | None]:
    return ticket.done, ticket.error


# --- at once --------------------------------------------------------------------


async def test_without_a_delay_an_append_is_durable_at_once() -> None:
    journal = MemoryJournal()
    session = await as_journal(journal).open("s")
    ticket = session.append([A, B])
    assert (ticket.done, ticket.error) == (True, None)
    assert session.records == (A, B)


async def test_records_are_in_the_order_of_their_appends_with_contiguous_numbers() -> None:
    session = await MemoryJournal().open("s")
    numbers = [session.append(batch).numbers for batch in ([A, B], [], [C])]
    assert numbers == [range(2), range(2, 2), range(2, 3)]
    assert session.records == (A, B, C)


async def test_what_records_gave_does_not_grow() -> None:
    session = await MemoryJournal().open("s")
    before = session.records
    session.append([A])
    assert before == ()


async def test_an_append_works_on_its_own_copy_of_the_list() -> None:
    journal = MemoryJournal("hang")
    session = await journal.open("s")
    batch = [A]
    session.append(batch)
    batch.append(B)
    journal.delay = 0.0
    assert session.records == (A,)


async def test_waiting_for_a_settled_ticket_is_a_checkpoint() -> None:
    ticket = (await MemoryJournal().open("s")).append([A])
    with trio.testing.assert_checkpoints():
        await ticket.wait()


def test_commits_that_need_no_clock_work_outside_trio() -> None:
    journal = MemoryJournal()
    session = trio.run(journal.open, "s")
    assert state(session.append([A])) == (True, None)
    journal.delay = 1.0
    late = session.append([B])
    assert state(late) == (False, None)
    journal.delay = 0.0
    assert state(late) == (True, None)


# --- sessions -------------------------------------------------------------------


async def test_opening_again_gives_what_is_stored_and_goes_on_counting() -> None:
    journal = MemoryJournal()
    session = await journal.open("s")
    session.append([A])
    await session.aclose()
    again = await journal.open("s")
    assert again.records == (A,)
    assert again.append([B]).numbers == range(1, 2)
    assert journal.stored("s") == (A, B)


async def test_sessions_are_separate() -> None:
    journal = MemoryJournal()
    one, two = await journal.open("one"), await journal.open("two")
    one.append([A])
    assert two.append([B]).numbers == range(1)
    assert (one.records, two.records) == ((A,), (B,))
    assert journal.stored("three") == ()


async def test_a_session_has_one_writer() -> None:
    journal = MemoryJournal()
    session = await journal.open("s")
    with pytest.raises(tr.SessionInUseError, match="'s' is already open for writing"):
        await journal.open("s")
    session.append([A])
    assert session.records == (A,)


async def test_open_is_a_checkpoint_and_a_cancelled_one_changes_nothing() -> None:
    journal = MemoryJournal()
    with trio.testing.assert_checkpoints():
        await (await journal.open("s")).aclose()
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.open("s")
    assert scope.cancelled_caught
    await journal.open("s")


async def test_after_aclose_an_append_is_refused() -> None:
    session = await MemoryJournal().open("s")
    with trio.testing.assert_checkpoints():
        await session.aclose()
    with pytest.raises(errors.JournalError, match="'s' is closed"):
        session.append([A])
    assert session.records == ()


async def test_a_session_is_closed_before_its_close_waits(autojump_clock: object) -> None:
    journal = MemoryJournal(1.0)
    session = await journal.open("s")
    session.append([A])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.aclose)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(errors.JournalError, match="closed"):
            session.append([B])
        with pytest.raises(errors.JournalError, match="already open"):
            await journal.open("s")
    assert trio.current_time() == 1.0
    assert (await journal.open("s")).records == (A,)


async def test_aclose_waits_as_long_as_the_store_and_frees_the_session_when_cancelled(
    autojump_clock: object,
) -> None:
    journal = MemoryJournal("hang")
    session = await journal.open("s")
    ticket = session.append([A])
    with trio.move_on_after(5) as scope:
        await session.aclose()
    assert scope.cancelled_caught
    assert not ticket.done
    journal.delay = 0.0  # the store comes back: what was given up lands after all
    assert (await journal.open("s")).records == (A,)
    assert state(ticket) == (True, None)


async def test_aclose_may_be_called_again_and_frees_no_one_elses_session() -> None:
    journal = MemoryJournal()
    session = await journal.open("s")
    await session.aclose()
    await journal.open("s")
    await session.aclose()
    with pytest.raises(errors.JournalError, match="already open"):
        await journal.open("s")


async def test_opening_again_loses_what_is_still_open() -> None:
    journal = MemoryJournal("hang")
    session = await journal.open("s")
    ticket = session.append([A])
    with trio.CancelScope() as scope:
        scope.cancel()
        await session.aclose()
    assert journal.statistics().open_tickets == 1
    again = await journal.open("s")
    journal.delay = 0.0
    assert ticket.done
    assert "opened again" in str(ticket.error)
    assert again.append([B]).numbers == range(1)
    assert again.records == (B,)
    assert session.records == ()


# --- delays ---------------------------------------------------------------------


async def test_a_delayed_commit_lands_when_its_time_has_come(autojump_clock: object) -> None:
    session = await MemoryJournal(2.0).open("s")
    ticket = session.append([A])
    await trio.sleep(1.9)
    assert state(ticket) == (False, None)
    assert session.records == ()
    await trio.sleep(0.1)
    assert state(ticket) == (True, None)
    assert session.records == (A,)


async def test_waiting_ends_with_the_commit(autojump_clock: object) -> None:
    session = await MemoryJournal(2.0).open("s")
    ticket = session.append([A])
    await trio.sleep(0.5)
    await ticket.wait()
    assert trio.current_time() == 2.0
    assert state(ticket) == (True, None)


@pytest.mark.parametrize("delay", [1e-9, 0.01, 1 / 3, 5.0, 1e5])
async def test_a_delayed_commit_is_waited_for_in_at_least_four_steps(
    autojump_clock: object, delay: float
) -> None:
    session = await MemoryJournal(delay).open("s")
    ticket = session.append([A])
    assert await steps_of(ticket.wait) >= 4
    assert trio.current_time() == pytest.approx(delay)


async def test_a_cancelled_wait_may_be_called_again_and_the_commit_does_not_notice(
    autojump_clock: object,
) -> None:
    session = await MemoryJournal(2.0).open("s")
    ticket = session.append([A])
    for _ in range(3):
        with trio.move_on_after(0.5) as scope:
            await ticket.wait()
        assert scope.cancelled_caught
        assert not ticket.done
    await ticket.wait()
    assert trio.current_time() == 2.0


async def test_several_may_wait_for_one_ticket(autojump_clock: object) -> None:
    ticket = (await MemoryJournal(2.0).open("s")).append([A])
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ticket.wait)
    assert trio.current_time() == 2.0


async def test_tickets_finish_in_the_order_of_their_appends(autojump_clock: object) -> None:
    journal = MemoryJournal(0.0, script={0: 3.0})
    session = await journal.open("s")
    slow, quick = session.append([A]), session.append([B])
    assert not quick.done
    await quick.wait()
    assert trio.current_time() == 3.0
    assert slow.done
    assert session.records == (A, B)


# --- hanging --------------------------------------------------------------------


async def test_a_hanging_commit_is_not_done_until_the_delay_says_otherwise(
    autojump_clock: object,
) -> None:
    journal = MemoryJournal("hang")
    session = await journal.open("s")
    ticket = session.append([A])
    with trio.move_on_after(1e6):
        await ticket.wait()
    assert not ticket.done
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticket.wait)
        await trio.testing.wait_all_tasks_blocked()
        journal.delay = 0.0
    assert state(ticket) == (True, None)
    assert session.records == (A,)


async def test_appends_queue_behind_a_hanging_commit() -> None:
    journal = MemoryJournal(script={0: "hang"})
    session = await journal.open("s")
    tickets = [session.append([A]), session.append([B])]
    assert [ticket.done for ticket in tickets] == [False, False]
    assert [ticket.numbers for ticket in tickets] == [range(1), range(1, 2)]


# --- failing --------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError("disk full"), OSError])
async def test_a_failed_commit_has_its_error_and_frees_its_numbers(
    error: Exception | type[Exception],
) -> None:
    journal = MemoryJournal(error)
    session = await journal.open("s")
    ticket = session.append([A, B])
    assert ticket.done
    assert type(ticket.error) is OSError
    await ticket.wait()  # does not raise it
    journal.delay = 0.0
    assert session.append([C]).numbers == range(1)
    assert session.records == (C,)


async def test_a_scripted_failure_hits_one_commit_only() -> None:
    error = OSError("disk full")
    session = await MemoryJournal(script={1: error}).open("s")
    tickets = [session.append([record]) for record in (A, B, C)]
    assert [ticket.error for ticket in tickets] == [None, error, None]
    assert [ticket.numbers for ticket in tickets] == [range(1), range(1, 2), range(1, 2)]
    assert session.records == (A, C)


async def test_a_scripted_failure_comes_after_the_delay_and_takes_later_open_commits_along(
    autojump_clock: object,
) -> None:
    error = OSError("disk full")
    session = await MemoryJournal(2.0, script={1: error}).open("s")
    tickets = [session.append([record]) for record in (A, B, C)]
    assert [ticket.done for ticket in tickets] == [False, False, False]
    await tickets[2].wait()
    assert trio.current_time() == 2.0
    assert [ticket.error for ticket in tickets] == [None, error, error]
    after = session.append([D])
    assert after.numbers == range(1, 2)
    await after.wait()
    assert session.records == (A, D)


async def test_a_failure_wakes_those_who_wait_behind_it(autojump_clock: object) -> None:
    journal = MemoryJournal(script={0: "hang"})
    session = await journal.open("s")
    session.append([A])
    later = session.append([B])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(later.wait)
        await trio.testing.wait_all_tasks_blocked()
        journal.crash()
    assert later.error is not None


async def test_the_delay_may_turn_open_commits_into_failed_ones() -> None:
    journal = MemoryJournal("hang")
    session = await journal.open("s")
    ticket = session.append([A])
    journal.delay = ValueError("gone")
    assert isinstance(ticket.error, ValueError)
    assert session.records == ()


async def test_a_script_may_let_one_commit_through() -> None:
    session = await MemoryJournal(OSError, script={1: 0.0}).open("s")
    results = [session.append([record]).error is None for record in (A, B, C)]
    assert results == [False, True, False]


# --- crash, statistics, mistakes ------------------------------------------------


async def test_a_crash_loses_what_is_not_durable_and_frees_every_session(
    autojump_clock: object,
) -> None:
    journal = MemoryJournal(script={1: "hang"})
    session = await journal.open("s")
    session.append([A])
    ticket = session.append([B])
    journal.crash()
    assert "crashed" in str(ticket.error)
    with pytest.raises(errors.JournalError, match="closed"):
        session.append([C])
    again = await journal.open("s")
    assert again.append([D]).done
    assert again.records == (A, D)
    assert session.records == (A,)
    await session.aclose()  # the dead process's close frees nothing
    with pytest.raises(errors.JournalError, match="already open"):
        await journal.open("s")


async def test_statistics_count_commits() -> None:
    journal = MemoryJournal(script={1: OSError("x"), 2: "hang"})
    session = await journal.open("s")
    for record in (A, B, C, D):
        session.append([record, record])
    statistics = journal.statistics()
    assert (statistics.appends, statistics.commits) == (4, 1)
    assert (statistics.failures, statistics.open_tickets) == (1, 2)


@pytest.mark.parametrize(
    "fate", [-1.0, math.nan, math.inf, "hung", None, True, KeyboardInterrupt(), KeyboardInterrupt]
)
def test_a_delay_that_means_nothing_is_refused(fate: Fate) -> None:
    with pytest.raises(ValueError, match="delay is"):
        MemoryJournal(fate)
    with pytest.raises(ValueError, match=r"script\[2\] is"):
        MemoryJournal(script={2: fate})
    journal = MemoryJournal()
    with pytest.raises(ValueError, match="expected seconds"):
        journal.delay = fate
    assert journal.delay == 0.0


async def test_an_open_session_is_what_the_protocol_says() -> None:
    session: abc.JournalSession = await MemoryJournal().open("s")
    ticket: abc.CommitTicket = session.append([])
    assert type(session) is MemorySession
    assert ticket.done
