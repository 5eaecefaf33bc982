"""Rules of `check_journal` on append, wait, tickets and records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.journal_kit import (
    SESSION,
    JournalKit,
    check_same,
    done_flags,
    is_checkpoint,
)
from trio_runner.testing._rules.odd_records import difference, every_record, simple_records
from trio_runner.testing._trials import Ending, Span, Trial, Usual, check_run, then_look, with_made

_LOOK_SECONDS: Final = 0.02
_LOOKS: Final = 100

# --- append ---------------------------------------------------------------------


def append_is_synchronous(kit: JournalKit, found: Findings) -> None:
    """Append returns a ticket, not something to await."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        ticket = session.append(simple_records(1))
        if inspect.isawaitable(ticket):
            if inspect.iscoroutine(ticket):
                ticket.close()
            found.violated(
                f"append returned {type(ticket).__name__}, which has to be awaited",
                expected="a ticket at once: a cancel could come before the records are taken",
                remedy="make append a plain function that queues the records",
            )
            return
        missing = [name for name in ("done", "error", "wait") if not hasattr(ticket, name)]
        if missing:
            found.violated(
                f"append returned a {type(ticket).__name__} without {', '.join(missing)}",
                expected="a CommitTicket",
                remedy="return an object with done, error and wait()",
            )
            return
        await session.aclose()

    kit.use(found, "appending", body)


def append_takes_a_copy(kit: JournalKit, found: Findings) -> None:
    """What the caller does to its list afterwards has no effect."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        records = simple_records(2)
        batch = list(records)
        ticket = session.append(batch)
        batch[0] = simple_records(1, start=100)[0]
        batch.append(batch[0])
        await ticket.wait()
        problem = difference(tuple(records), tuple(session.records))
        if problem is not None:
            found.violated(
                f"after the list that was appended had been changed, the stored {problem}",
                expected="the records as they were when append was called",
                remedy="copy the sequence (or encode the records) inside append",
            )
        await session.aclose()

    kit.use(found, "changing a list after it was appended", body)


# --- wait -----------------------------------------------------------------------


def wait_is_a_checkpoint(kit: JournalKit, found: Findings) -> None:
    """Wait gives others a turn and lets a cancel in, whether the ticket is done or not."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        ticket = session.append(simple_records(1))
        for what in ("a new ticket", "a ticket that is done"):
            if not await is_checkpoint(ticket.wait):
                found.violated(
                    f"wait() on {what} was no checkpoint",
                    expected="a checkpoint in any case: a loop of waits must be cancellable",
                    remedy="begin wait with `await trio.lowlevel.checkpoint()`",
                )
        await session.aclose()

    kit.use(found, "waiting", body)


def open_and_aclose_are_checkpoints(kit: JournalKit, found: Findings) -> None:
    """Advice: async functions are checkpoints."""

    async def body(journal: Any) -> None:
        sessions: list[Any] = []

        async def open_it() -> None:
            sessions.append(await journal.open(SESSION))

        async def close_it() -> None:
            await sessions[0].aclose()

        for what, operation in (("open", open_it), ("aclose", close_it)):
            if not await is_checkpoint(operation):
                found.advise(
                    f"{what} was no checkpoint",
                    expected="a checkpoint in any case, as trio's own functions are",
                    remedy="`await trio.lowlevel.checkpoint()` where nothing else is awaited",
                )

    kit.use(found, "opening and closing", body)


def wait_ends_when_done(kit: JournalKit, found: Findings) -> None:
    """Wait neither ends too early nor raises."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        for number in range(3):
            ticket = session.append(simple_records(1, start=number))
            await ticket.wait()
            if not ticket.done:
                found.violated(
                    "wait() returned while done was False",
                    expected="done to be True once wait has returned",
                    remedy="set done before the waiters are woken, and wait in a loop",
                )
        await session.aclose()

    kit.use(found, "waiting for commits", body)


def a_cancelled_wait_changes_nothing(kit: JournalKit, found: Findings) -> None:
    """A fault at every step of wait, then wait again."""
    usual = Usual()

    def make_trial() -> Trial:
        span, records = Span(), simple_records(3)

        async def body(journal: Any) -> None:
            session = await journal.open(SESSION)
            tickets = [session.append([record]) for record in records]

            async def look() -> None:
                for ticket in tickets:
                    await ticket.wait()
                _check_outcome(found, tickets, records, session.records)
                await session.aclose()

            await then_look(lambda: span.over(tickets[-1].wait), look, found)

        def check(ending: Ending) -> None:
            if span.check_left(ending, found, "wait", kit.leaves_within):
                span.check_errors(ending, found, "wait")
                span.check_let_through(ending, found, "wait", usual)
            elif not span.began:
                check_run(ending, found, "appending")

        return Trial(lambda: with_made(kit.make, body), check)

    kit.stage.sweep(make_trial)


def _check_outcome(
    found: Findings, tickets: list[Any], records: list[Any], stored: Sequence[Any]
) -> None:
    states = [(ticket.done, ticket.error) for ticket in tickets]
    if states != [(True, None)] * len(tickets):
        found.violated(
            f"after a cancelled wait the tickets are {states!r} (done, error)",
            expected="every commit to land as if nobody had waited",
            remedy="let the commit not depend on the task that waits for it",
        )
    problem = difference(tuple(records), tuple(stored))
    if problem is not None:
        found.violated(
            f"after a cancelled wait the stored {problem}",
            expected="the records that were appended",
            remedy="let the commit not depend on the task that waits for it",
        )


# --- tickets and records, looked at while they land -----------------------------


async def _watch(session: Any, look: Callable[[list[Any]], None]) -> None:
    """Append eight commits of three records, and look again and again until all have landed."""
    tickets: list[Any] = []
    for number in range(8):
        tickets.append(session.append(simple_records(3, start=3 * number)))
        look(tickets)
    for _ in range(_LOOKS):
        if tickets[-1].done:
            break
        await trio.sleep(_LOOK_SECONDS)
        look(tickets)
    for ticket in tickets:
        await ticket.wait()
        look(tickets)


def _watched(kit: JournalKit, found: Findings, look: Callable[[Any, list[Any]], None]) -> None:
    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        await _watch(session, lambda tickets: look(session, tickets))
        await session.aclose()

    kit.use(found, "looking at commits while they land", body)


def tickets_finish_in_order(kit: JournalKit, found: Findings) -> None:
    """No ticket is done while an earlier one is open."""

    def look(_: Any, tickets: list[Any]) -> None:
        flags = done_flags(tickets)
        if flags != sorted(flags, reverse=True):
            found.violated(
                f"ticket {flags.index(False)} is open, and a later one is done",
                expected="tickets to finish in the order of their appends",
                remedy="commit in one queue, and complete the tickets in its order",
            )

    _watched(kit, found, look)


def error_is_none_unless_failed(kit: JournalKit, found: Findings) -> None:
    """A commit that does not fail never has an error."""

    def look(_: Any, tickets: list[Any]) -> None:
        for ticket in tickets:
            error = ticket.error
            if error is not None:
                found.violated(
                    f"error is {error!r} on a ticket that has not failed",
                    expected="None while the ticket is open, and when it is durable",
                    remedy="set error only together with done, and only for a failed commit",
                )

    _watched(kit, found, look)


def records_hold_what_is_durable(kit: JournalKit, found: Findings) -> None:
    """The records are those of the tickets that are done."""

    def look(session: Any, tickets: list[Any]) -> None:
        before = done_flags(tickets).count(True)
        stored = len(session.records)
        after = done_flags(tickets).count(True)
        # A batch that lands while we look is no violation.
        if not 3 * before <= stored < 3 * after + 3:
            found.violated(
                f"records holds {stored} records while {after} commits of 3 are done",
                expected="the records of the tickets that are done, and no others",
                remedy="add to records when a commit has landed, in the step that sets done",
            )

    _watched(kit, found, look)


def a_commit_is_whole(kit: JournalKit, found: Findings) -> None:
    """No part of a commit is seen."""

    def look(session: Any, _: list[Any]) -> None:
        stored = len(session.records)
        if stored % 3:
            found.violated(
                f"records holds {stored} records after commits of 3 each",
                expected="all records of a commit, or none",
                remedy="store the records of one append in one transaction",
            )

    _watched(kit, found, look)


def records_come_back_equal(kit: JournalKit, found: Findings) -> None:
    """Every kind of record with odd values, one by one and as one commit."""
    expected = (*every_record(), *every_record())

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        half = len(expected) // 2
        tickets = [session.append([record]) for record in expected[:half]]
        tickets.append(session.append(expected[half:]))
        for number, ticket in enumerate(tickets):
            await ticket.wait()
            if ticket.error is not None:
                found.violated(
                    f"the commit of record {number} failed: {ticket.error!r}",
                    expected="every record to be stored: texts that encode, any JSON number",
                    remedy="encode without loss; a number may have more than 64 bits",
                )
        check_same(found, expected, session.records, "while open")
        await session.aclose()
        check_same(found, expected, await kit.stored(journal), "opened again")

    kit.use(found, "storing odd records", body)


def records_does_not_grow(kit: JournalKit, found: Findings) -> None:
    """What was handed out stays as it was."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        await session.append(simple_records(2)).wait()
        handed_out = session.records
        before = tuple(handed_out)
        await session.append(simple_records(2, start=2)).wait()
        if tuple(handed_out) != before:
            found.violated(
                f"what records gave had {len(before)} records, and now has {len(handed_out)}",
                expected="a value that later appends do not change",
                remedy="return a tuple, or a view that ends where it ended",
            )
        await session.aclose()

    kit.use(found, "appending after records was read", body)
