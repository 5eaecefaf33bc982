"""Rules of `check_journal` on failing commits, a whole life, and an agent's turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import trio

import trio_runner._core.errors as errors
import trio_runner._core.values as v
import trio_runner.abc as abc
from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.journal_kit import (
    SESSION,
    JournalKit,
    check_prefix,
    check_same,
    done_flags,
)
from trio_runner.testing._rules.odd_records import simple_records
from trio_runner.testing._rules.turn import WitnessedTurn
from trio_runner.testing._scripted import ScriptedModel
from trio_runner.testing._trials import Ending, Span, Trial, then_look, with_made

# --- failures -------------------------------------------------------------------


#: Real seconds in which a store that works in a thread of its own can fail.
_STANDS_STILL = 0.02


def a_failure_fails_what_is_open(kit: JournalKit, found: Findings) -> None:
    """Commits appended together, one of which fails."""
    _fail_one(kit, found, lambda: None)


def a_failure_is_told_before_what_follows_it(kit: JournalKit, found: Findings) -> None:
    """The same by a loop that stands still between its look and each append."""
    _fail_one(kit, found, lambda: time.sleep(_STANDS_STILL))


def _fail_one(kit: JournalKit, found: Findings, stand_still: Callable[[], None]) -> None:
    if kit.make_failing is None:
        found.not_applicable("give make_failing, a journal of which one of 3 commits fails")
        return

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        tickets: list[Any] = []
        #: For each append, how many of the earlier ones had an outcome when it was decided. One
        #: that is told after that is told too late: no step of a task came between.
        known: list[int] = []
        for record in simple_records(6):
            known.append(done_flags(tickets).count(True))
            stand_still()
            tickets.append(session.append([record]))
        for ticket in tickets:
            await ticket.wait()
        _check_failures(found, tickets, known)
        landed = [
            record
            for record, ticket in zip(simple_records(6), tickets, strict=True)
            if ticket.error is None
        ]
        check_same(found, landed, session.records, "after a failed commit")
        await session.aclose()

    kit.use(found, "letting a commit fail", body, kit.make_failing)


def _check_failures(found: Findings, tickets: list[Any], known: list[int]) -> None:
    failed = [number for number, ticket in enumerate(tickets) if ticket.error is not None]
    if not failed:
        found.violated(
            "no ticket of the journal of make_failing has an error",
            expected="one of the first three commits to fail, and its ticket to say so",
            remedy="set error on the ticket when the store raises",
        )
    for number in failed:
        error = tickets[number].error
        if not isinstance(error, Exception):
            found.violated(
                f"error is {error!r}",
                expected="an Exception that says why the commit failed",
                remedy="keep the store's exception",
            )
        for later in range(number + 1, len(tickets)):
            # Appended while the failure was not known: it must fail with it.
            if known[later] <= number and tickets[later].error is None:
                found.violated(
                    f"commit {number} failed, and commit {later}, which was open then, landed",
                    expected="every commit that was open to fail with it: what is stored is a "
                    "prefix of what was appended",
                    remedy="fail the whole queue when one commit fails",
                )


def what_failed_may_be_appended_anew(kit: JournalKit, found: Findings) -> None:
    """Append until nothing fails, the failed records always in front."""
    if kit.make_failing is None:
        found.not_applicable("give make_failing, a journal of which one of 3 commits fails")
        return

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        missed: list[Any] = []
        for record in simple_records(6):
            batch = [*missed, record]
            ticket = session.append(batch)
            await ticket.wait()
            missed = [] if ticket.error is None else batch
        if missed:
            found.violated(
                f"{len(missed)} records could not be stored, though they came again",
                expected="commits to work again after one of the first three has failed",
                remedy="let a failure be of that commit, not of the session",
            )
        stored = simple_records(6 - len(missed))
        check_same(found, stored, session.records, "after the failed records came again")
        await session.aclose()

    kit.use(found, "appending again what had failed", body, kit.make_failing)


# --- a whole life ---------------------------------------------------------------


def _life(kit: JournalKit, found: Findings, check: Callable[[Ending, Span], None]) -> Trial:
    """Open, append, wait, append, aclose; then open again and compare."""
    span = Span()
    records = simple_records(4)
    tickets: list[Any] = []

    async def body(journal: Any) -> None:
        async def live() -> None:
            session = await journal.open(SESSION)
            try:
                tickets.extend([session.append([record]) for record in records[:2]])
                await tickets[0].wait()
                tickets.extend([session.append([record]) for record in records[2:]])
                await tickets[-1].wait()
            finally:
                await session.aclose()

        async def look() -> None:
            acknowledged = done_flags(tickets).count(True)
            try:
                stored = await kit.stored(journal)
            except errors.JournalError as error:
                # With SIGINT in the main task aclose itself may not have been reached.
                found.violated(
                    f"after a fault, opening the session raised {error!r}",
                    expected="the session to be free",
                    remedy="free the session in aclose, whatever interrupts it",
                )
            else:
                check_prefix(found, records, stored, acknowledged)

        await then_look(lambda: span.over(live), look, found)

    return Trial(lambda: with_made(kit.make, body), lambda ending: check(ending, span))


def nothing_acknowledged_is_lost(kit: JournalKit, found: Findings) -> None:
    """A cancel, a deadline, a crash or Ctrl-C at every step of a session's life."""

    def check(ending: Ending, span: Span) -> None:
        if span.check_left(ending, found, "a session's life", kit.leaves_within):
            span.check_errors(ending, found, "using a session")

    kit.stage.sweep(
        lambda: _life(kit, found, check), faults=("cancel", "deadline", "crash", "sigint")
    )


def nothing_is_left_running(kit: JournalKit, found: Findings) -> None:
    """No task, and nothing that Python complains about."""

    def check(ending: Ending, _: Span) -> None:
        for name in ending.left_alive:
            found.violated(
                f"task {name!r} was left running",
                expected="no task to outlive the session",
                remedy="end what the session started in aclose, or use a thread",
            )
        for trouble in ending.trouble:
            found.violated(
                trouble,
                expected="nothing to be left unclosed or never awaited",
                remedy="close it in aclose, whatever interrupts it",
            )

    # What the life itself finds is told by the other rule.
    ignored = Findings("", "")
    kit.stage.sweep(lambda: _life(kit, ignored, check))


async def _echo(arguments: v.JSONObject, _: abc.ToolContext) -> str:
    await trio.lowlevel.checkpoint()
    return f"echo {arguments['text']}"


def a_turn_keeps_the_contract(kit: JournalKit, found: Findings) -> None:
    """A turn of an agent with this journal, cancelled at every step."""

    def make_trial() -> Trial:
        span = Span()
        calls = [v.ToolCall(f"c{n}", "echo", {"text": str(n)}) for n in range(2)]
        echo = abc.Tool("echo", "says it again", {"type": "object"}, _echo)

        async def body(journal: Any) -> None:
            model = ScriptedModel([calls, "Done."])
            turn = WitnessedTurn(
                model=model, tools=[echo], journal=journal, grace=kit.leaves_within
            )

            async def look() -> None:
                turn.check(found, await kit.stored(journal))

            await then_look(lambda: span.over(lambda: turn.take("go")), look, found)

        def check(ending: Ending) -> None:
            if span.check_left(ending, found, "an agent's turn", 2 * kit.leaves_within):
                span.check_errors(ending, found, "an agent's turn")

        return Trial(lambda: with_made(kit.make, body), check)

    kit.stage.sweep(make_trial)
