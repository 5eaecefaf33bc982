"""Rules of `check_journal` on open, aclose and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio_runner._core.errors as errors
from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.journal_kit import (
    SESSION,
    JournalKit,
    check_prefix,
    check_same,
    done_flags,
)
from trio_runner.testing._rules.odd_records import difference, simple_records
from trio_runner.testing._trials import Ending, Span, Trial, Usual, check_run, then_look, with_made

#: Ids that a journal may be tempted to take for paths, patterns or equal names.
_ODD_IDS: Final = ("a", "A", "a/b", "a_b", "a b", "../a", "é", "e\u0301", "a%", "a.", "-")

# --- sessions -------------------------------------------------------------------


def sessions_do_not_mix(kit: JournalKit, found: Findings) -> None:
    """Sessions with odd ids, appended to in turns."""

    async def body(journal: Any) -> None:
        sessions: dict[str, Any] = {}
        refused: list[str] = []
        for session_id in _ODD_IDS:
            try:
                sessions[session_id] = await journal.open(session_id)
            except errors.JournalError:
                refused.append(session_id)
        expected: dict[str, list[Any]] = {session_id: [] for session_id in sessions}
        tickets: list[Any] = []
        for part in range(2):
            for number, (session_id, session) in enumerate(sessions.items()):
                records = simple_records(2, start=100 * number + 10 * part)
                expected[session_id] += records
                tickets.append(session.append(records))
        for ticket in tickets:
            await ticket.wait()
        for session_id, session in sessions.items():
            _check_own(found, session_id, expected[session_id], session.records)
            await session.aclose()
        for session_id in sessions:
            _check_own(
                found, session_id, expected[session_id], await kit.stored(journal, session_id)
            )

        for session_id in refused:
            await _check_refused_id(journal, found, session_id)

    kit.use(
        found, f"using {len(_ODD_IDS)} sessions at once, with ids such as 'a', 'A', 'a/b'", body
    )


async def _check_refused_id(journal: Any, found: Findings, session_id: str) -> None:
    """Tell an id that is not taken from one that was taken for another session's."""
    try:
        session = await journal.open(session_id)
    except errors.JournalError as error:
        found.advise(
            f"the session id {session_id!r} was refused: {error}",
            expected="any text to be an id",
            remedy="encode the id where it becomes a name of something",
        )
        return
    await session.aclose()
    found.violated(
        f"session {session_id!r} could be opened only after others such as 'a' were closed",
        expected="each id to be a session of its own",
        remedy="key everything by the whole session id; encode it where it is a file's name",
    )


def _check_own(
    found: Findings, session_id: str, expected: list[Any], records: Sequence[Any]
) -> None:
    problem = difference(tuple(expected), tuple(records), "records")
    if problem is not None:
        found.violated(
            f"session {session_id!r}, with others open beside it: {problem}",
            expected="its own records and no others",
            remedy="key everything by the whole session id; encode it where it is a file's name",
        )


def one_writer_at_a_time(kit: JournalKit, found: Findings) -> None:
    """A second open is refused, and the first session works on."""

    async def body(journal: Any) -> None:
        first = await journal.open(SESSION)
        other = await journal.open("other")
        await first.append(simple_records(1)).wait()
        try:
            await journal.open(SESSION)
        except errors.JournalError:
            pass
        except Exception as error:  # noqa: BLE001  the adapter border: it is the finding
            found.violated(
                f"opening a session that is open raised {error!r}",
                expected="JournalError",
                remedy="raise trio_runner.JournalError and say which session it is",
            )
        else:
            found.violated(
                "a session that is open was opened again",
                expected="JournalError: two writers would interleave their records",
                remedy="keep the set of open session ids; in a shared store, take a lock",
            )
        await first.append(simple_records(1, start=1)).wait()
        await other.append(simple_records(1, start=5)).wait()
        check_same(found, simple_records(2), first.records, "after a refused second open")
        await first.aclose()
        await other.aclose()

    kit.use(found, "opening a session twice", body)


def a_cancelled_open_leaves_it_free(kit: JournalKit, found: Findings) -> None:
    """A cancel at every step of open."""
    usual = Usual()

    def make_trial() -> Trial:
        span, records = Span(), simple_records(2)

        async def body(journal: Any) -> None:
            session = await journal.open(SESSION)
            await session.append(records).wait()
            await session.aclose()
            again = await kit.restarted(journal)

            async def look() -> None:
                if span.returned:
                    await span.value.aclose()
                check_same(found, records, await kit.stored(again), "after a cancelled open")

            await then_look(lambda: span.over(lambda: again.open(SESSION)), look, found)

        def check(ending: Ending) -> None:
            if not span.began:
                check_run(ending, found, "storing two records")
            elif span.check_left(ending, found, "open", kit.leaves_within):
                span.check_errors(ending, found, "open")
                span.check_let_through(ending, found, "open", usual)

        return Trial(lambda: with_made(kit.make, body), check)

    kit.stage.sweep(make_trial)


# --- aclose ---------------------------------------------------------------------


def aclose_waits_for_what_was_appended(kit: JournalKit, found: Findings) -> None:
    """After aclose no ticket is open."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        tickets = [session.append([record]) for record in simple_records(5)]
        await session.aclose()
        flags = done_flags(tickets)
        if not all(flags):
            found.violated(
                f"after aclose, done is {flags!r} for the 5 appends before it",
                expected="every ticket to be done",
                remedy="wait for the last ticket in aclose; the caller bounds it",
            )
        for ticket in tickets:
            await ticket.wait()
        check_same(found, simple_records(5), await kit.stored(journal), "after aclose")

    kit.use(found, "closing with commits on their way", body)


def aclose_frees_the_session(kit: JournalKit, found: Findings) -> None:
    """Open, append, close; three times over."""

    async def body(journal: Any) -> None:
        for number in range(3):
            try:
                session = await journal.open(SESSION)
            except errors.JournalError as error:
                found.violated(
                    f"after aclose, opening the session again raised {error!r}",
                    expected="the session to be free",
                    remedy="take the id out of the set of open sessions in aclose",
                )
                return
            check_same(found, simple_records(number), session.records, "opened again")
            session.append(simple_records(1, start=number))
            await session.aclose()

    kit.use(found, "closing a session and opening it again", body)


def a_cancelled_aclose_frees_the_session(kit: JournalKit, found: Findings) -> None:
    """A cancel at every step of aclose, with commits on their way."""
    usual = Usual()

    def make_trial() -> Trial:
        span, records = Span(), simple_records(3)

        async def body(journal: Any) -> None:
            session = await journal.open(SESSION)
            tickets = [session.append([record]) for record in records]
            acknowledged: list[bool] = []

            async def close() -> None:
                try:
                    await session.aclose()
                finally:
                    acknowledged.extend(done_flags(tickets))

            async def look() -> None:
                check_refused(found, session, "a cancelled aclose")
                try:
                    stored = await kit.stored(journal)
                except errors.JournalError as error:
                    found.violated(
                        f"after a cancelled aclose, opening the session raised {error!r}",
                        expected="the session to be free all the same",
                        remedy="mark it closed first, then wait; free it in a finally",
                    )
                else:
                    check_prefix(found, records, stored, acknowledged.count(True))

            await then_look(lambda: span.over(close), look, found)

        def check(ending: Ending) -> None:
            if not span.began:
                check_run(ending, found, "appending")
            elif span.check_left(ending, found, "aclose", kit.leaves_within):
                span.check_errors(ending, found, "aclose")
                span.check_let_through(ending, found, "aclose", usual)

        return Trial(lambda: with_made(kit.make, body), check)

    kit.stage.sweep(make_trial)


def check_refused(found: Findings, session: Any, after: str) -> None:
    try:
        session.append(simple_records(1, start=100))
    except errors.JournalError:
        return
    except Exception as error:  # noqa: BLE001  the adapter border: it is the finding
        what = f"append after {after} raised {error!r}"
    else:
        what = f"append after {after} was taken"
    found.violated(
        what,
        expected="JournalError: the session is another writer's now",
        remedy="mark the session closed as the first statement of aclose, and look at that",
    )


def append_after_aclose_is_refused(kit: JournalKit, found: Findings) -> None:
    """The session was given up."""

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        await session.append(simple_records(1)).wait()
        await session.aclose()
        check_refused(found, session, "aclose")
        stored = await kit.stored(journal)
        check_same(found, simple_records(1), stored, "after an append to a closed session")

    kit.use(found, "appending to a closed session", body)


def a_restart_gives_the_same_records(kit: JournalKit, found: Findings) -> None:
    """A journal made anew has what was durable, and goes on from there."""
    if kit.reopen is None:
        found.not_applicable("give reopen, which makes a journal anew on the store of another")
        return

    async def body(journal: Any) -> None:
        for number in range(3):
            session = await journal.open(SESSION)
            check_same(found, simple_records(2 * number), session.records, "after a restart")
            await session.append(simple_records(2, start=2 * number)).wait()
            await session.aclose()
            journal = await kit.restarted(journal)

    kit.use(found, "making the journal anew", body)


def a_crash_keeps_what_is_durable(kit: JournalKit, found: Findings) -> None:
    """A journal made anew beside one that nobody closed, as after a crash."""
    if kit.reopen is None:
        found.not_applicable("give reopen, which makes a journal anew on the store of another")
        return

    async def body(journal: Any) -> None:
        session = await journal.open(SESSION)
        for number in range(2):
            await session.append(simple_records(2, start=2 * number)).wait()
        try:
            stored = await kit.stored(journal)
        except errors.JournalError as error:
            # It keeps a second writer out, as it should while the first one lives.
            found.not_applicable(
                f"the session cannot be opened while the first opening is there ({error}), so "
                "nothing is shown of a crash; let reopen take that for dead, or use kill_sweep"
            )
        else:
            problem = difference(tuple(simple_records(4)), tuple(stored), "records")
            if problem is not None:
                found.violated(
                    f"opened anew without an aclose before: {problem}",
                    expected="what a ticket called done without an error, as after a crash",
                    remedy="write it to the store before the ticket is done, and not in aclose",
                )
        try:
            await session.aclose()
        except errors.JournalError:
            pass  # the other opening has taken its place

    kit.use(found, "making the journal anew as after a crash", body)
