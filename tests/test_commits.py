"""`Commits` alone: records on their way to a store that does not always do its part (F33)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as r
from trio_runner._shell.commits import Commits


@attrs.define(eq=False)
class Ticket:
    """A ticket that a test settles by hand."""

    done: bool = False
    error: Exception | None = None
    news: trio.Event = attrs.field(factory=trio.Event)
    raises: Exception | None = None
    returns_early: bool = False

    async def wait(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.raises is not None:
            raise self.raises
        if not self.returns_early:
            await self.news.wait()

    def settle(self, error: Exception | None = None) -> None:
        self.done, self.error = True, error
        self.news.set()


@attrs.define
class Store:
    """A session whose tickets a test settles by hand."""

    appends: list[list[str]] = attrs.field(factory=list[list[str]])
    tickets: list[Ticket] = attrs.field(factory=list[Ticket])
    refuses: Exception | None = None
    fails_at_once: bool = False
    records: Sequence[r.Record] = ()

    def append(self, records: Sequence[r.Record]) -> Ticket:
        if self.refuses is not None:
            raise self.refuses
        self.appends.append([record.agent for record in records if type(record) is r.SessionOpened])
        self.tickets.append(Ticket())
        if self.fails_at_once:
            self.tickets[-1].settle(OSError("disk full"))
        return self.tickets[-1]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def fact(name: str) -> r.Record:
    return r.SessionOpened(name)


class Kept:
    """Commits on a `Store`, with the failures they report."""

    def __init__(self, *, strict: bool = False) -> None:
        self.store = Store()
        self.commits = Commits(self.store)
        self.commits.strict = strict
        self.failures: list[tr.JournalError] = []
        self.commits.on_failure = self.failures.append

    def add(self, name: str) -> Any:
        return self.commits.add(fact(name))

    @property
    def kinds(self) -> list[type]:
        return [type(failure) for failure in self.failures]


# --- the part alone -------------------------------------------------------------


async def test_what_is_added_is_appended_at_once_and_settled_later() -> None:
    kept = Kept()
    kept.add("a")
    kept.commits.add(fact("b"), fact("c"))
    assert kept.store.appends == [["a"], ["b", "c"]]
    assert not kept.commits.settled
    for ticket in kept.store.tickets:
        ticket.settle()
    assert await kept.commits.settle(5)
    assert kept.commits.settled
    assert kept.failures == []


async def test_nothing_is_appended_for_nothing_and_without_a_session() -> None:
    kept = Kept()
    assert kept.commits.add() is None
    assert kept.store.appends == []
    nowhere = Commits(None)
    assert nowhere.add(fact("a")) is None
    assert not nowhere.keeps
    assert nowhere.settled
    assert not await nowhere.settle(5)


async def test_settle_waits_for_all_or_up_to_one(autojump_clock: trio.testing.MockClock) -> None:
    kept = Kept()
    first = kept.add("a")
    kept.add("b")
    kept.store.tickets[0].settle()
    began = trio.current_time()
    await kept.commits.settle(5, first)
    assert trio.current_time() == began
    assert not kept.commits.settled

    async def later() -> None:
        await trio.sleep(2)
        kept.store.tickets[1].settle()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(later)
        await kept.commits.settle(5)
    assert trio.current_time() - began == pytest.approx(2)
    assert kept.failures == []


async def test_a_failed_commit_is_reported_once_and_sent_again_before_later_ones() -> None:
    kept = Kept()
    kept.add("a")
    kept.add("b")
    for ticket in kept.store.tickets:
        ticket.settle(OSError("disk full"))
    await kept.commits.settle(5)
    assert set(kept.kinds) == {tr.CommitFailedError}
    before = len(kept.failures)
    assert type(kept.failures[0].__cause__) is OSError
    kept.add("c")
    assert kept.store.appends[2:] == [["a"]]
    kept.store.tickets[2].settle()
    assert not await kept.commits.settle(0)  # the rest went to the store meanwhile, as one
    assert kept.store.appends[3:] == [["b", "c"]]
    kept.store.tickets[3].settle()
    assert await kept.commits.settle(5)
    assert len(kept.failures) == before + 1  # `settle(0)` gave it up
    kept.add("d")
    assert kept.store.appends[4:] == [["d"]]


async def test_one_settle_waits_for_what_failed_and_for_all_that_came_after(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kept = Kept()
    for name in "abc":
        kept.add(name)
    for ticket in kept.store.tickets:
        ticket.settle(OSError("disk full"))
    assert kept.add("d") is None

    async def the_store_works_again() -> None:
        for number in (3, 4):
            await trio.sleep(1)
            kept.store.tickets[number].settle()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(the_store_works_again)
        assert await kept.commits.settle(5)
    assert kept.store.appends[3:] == [["a"], ["b", "c", "d"]]
    assert kept.commits.settled


async def test_what_is_added_while_a_failure_is_coming_in_goes_behind_what_fails_with_it() -> None:
    kept = Kept()
    for name in "abc":
        kept.add(name)
    first, *others = kept.store.tickets
    first.settle(OSError("disk full"))
    assert kept.add("d") is None
    for ticket in others:
        ticket.settle(OSError("disk full"))
    assert kept.add("e") is None
    kept.store.tickets[3].settle()
    assert not kept.commits.settled
    assert kept.store.appends[3:] == [["a"], ["b", "c", "d", "e"]]


async def test_nothing_overtakes_what_is_sent_again_and_fails_at_once() -> None:
    kept = Kept()
    kept.add("a")
    kept.store.refuses = OSError("no space")
    kept.add("b")
    kept.store.refuses = None
    kept.store.tickets[0].settle()
    kept.store.fails_at_once = True
    kept.add("c")
    assert kept.store.appends[1:] == [["b"], ["b"]]  # the second is the try that "c" brings
    kept.store.fails_at_once = False
    kept.add("d")
    kept.store.tickets[-1].settle()
    assert not kept.commits.settled
    assert kept.store.appends[3:] == [["b"], ["c", "d"]]


@pytest.mark.parametrize("refuses", [False, True])
async def test_an_outage_costs_one_small_try_for_each_fact(*, refuses: bool) -> None:
    kept = Kept()
    kept.store.refuses = OSError("no space") if refuses else None
    tried = 0
    for number in range(100):
        kept.add(str(number))
        for ticket in kept.store.tickets[tried:]:
            ticket.settle(OSError("disk full"))
        tried = len(kept.store.tickets)
        await kept.commits.settle(5)
    assert all(append == ["0"] for append in kept.store.appends)
    assert len(kept.store.appends) == (0 if refuses else 100)
    assert len(kept.failures) == 100

    kept.store.refuses = None
    kept.commits.send_missed()
    assert kept.store.appends[-1] == [str(number) for number in range(100)]


@pytest.mark.parametrize("strict", [False, True])
async def test_a_session_that_another_writer_has_ends_the_turn_and_takes_nothing_more(
    *, strict: bool
) -> None:
    kept = Kept(strict=strict)
    kept.add("a")
    kept.store.tickets[0].settle(tr.SessionLostError("taken over"))
    for _ in range(2):  # also the next turn
        with pytest.raises(tr.SessionLostError, match=r"taken over.*enter it again"):
            await kept.commits.settle(5)
    kept.add("b")
    kept.commits.send_missed()
    assert kept.store.appends == [["a"]]
    assert kept.kinds == [tr.CommitFailedError]


async def test_an_append_that_raises_is_reported_and_sent_again() -> None:
    kept = Kept()
    kept.store.refuses = OSError("no space")
    assert kept.add("a") is None
    assert kept.add("b") is None
    assert kept.kinds == [tr.CommitFailedError] * 2
    kept.store.refuses = None
    kept.add("c")
    kept.store.tickets[0].settle()
    assert not kept.commits.settled
    assert kept.store.appends == [["a"], ["b", "c"]]
    kept.store.tickets[1].settle()
    assert await kept.commits.settle(5)


async def test_a_commit_that_hangs_is_given_up_and_nothing_more_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kept = Kept()
    kept.add("a")
    began = trio.current_time()
    await kept.commits.settle(5)
    assert trio.current_time() - began == pytest.approx(5)
    assert kept.kinds == [tr.CommitUnknownError]

    kept.add("b")
    await kept.commits.settle(5)
    assert trio.current_time() - began == pytest.approx(5)  # waits for nothing now
    assert kept.kinds == [tr.CommitUnknownError]  # told once
    assert kept.store.appends == [["a"], ["b"]]  # never sent again


async def test_when_the_store_answers_again_commits_are_waited_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kept = Kept()
    kept.add("a")
    await kept.commits.settle(5)
    kept.store.tickets[0].settle()
    kept.add("b")
    began = trio.current_time()
    await kept.commits.settle(3)
    assert trio.current_time() - began == pytest.approx(3)
    assert kept.kinds == [tr.CommitUnknownError] * 2


async def test_a_given_up_commit_that_fails_later_is_reported_and_sent_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kept = Kept()
    kept.add("a")
    await kept.commits.settle(5)
    kept.store.tickets[0].settle(OSError("disk full"))
    kept.add("b")
    assert kept.kinds == [tr.CommitUnknownError, tr.CommitFailedError]
    kept.store.tickets[1].settle()
    assert not kept.commits.settled
    assert kept.store.appends == [["a"], ["a"], ["b"]]


@pytest.mark.parametrize("way", ["raises", "returns early"])
async def test_a_wait_that_breaks_its_promise_is_looked_after_and_then_given_up(
    way: str, autojump_clock: trio.testing.MockClock
) -> None:
    kept = Kept()
    kept.add("a")
    if way == "raises":
        kept.store.tickets[0].raises = OSError("broken pipe")
    else:
        kept.store.tickets[0].returns_early = True
    await kept.commits.settle(5)
    assert kept.kinds == [tr.CommitUnknownError]
    kept.add("b")
    await kept.commits.settle(5)
    assert kept.store.appends == [["a"], ["b"]]


async def test_a_cancelled_settle_changes_nothing_and_can_be_called_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kept = Kept()
    kept.add("a")
    with trio.move_on_after(1) as scope:
        await kept.commits.settle(5)
    assert scope.cancelled_caught
    assert kept.failures == []
    kept.store.tickets[0].settle()
    assert await kept.commits.settle(5)


@pytest.mark.parametrize("fate", ["fails", "hangs"])
async def test_strict_raises_what_became_of_the_commit(
    fate: str, autojump_clock: trio.testing.MockClock
) -> None:
    kept = Kept(strict=True)
    kept.add("a")
    if fate == "fails":
        kept.store.tickets[0].settle(OSError("disk full"))
        with pytest.raises(tr.CommitFailedError, match="disk full"):
            await kept.commits.settle(5)
    else:
        for _ in range(2):  # also the next time, without another wait
            with pytest.raises(tr.CommitUnknownError):
                await kept.commits.settle(5)
        assert trio.current_time() < 1000
    assert len(kept.failures) == 1


async def test_each_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    kept.add("a")
    kept.store.tickets[0].settle(OSError("disk full"))
    with caplog.at_level(logging.WARNING, logger="trio_runner"):
        await kept.commits.settle(5)
    assert "disk full" in caplog.text
