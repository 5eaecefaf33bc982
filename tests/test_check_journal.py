"""`check_journal` accepts good journals, and each of its rules rejects a wrong one.

The wrong journals are good ones with one thing changed, as a third party might
have written them.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import (
    JOURNAL_RULES,
    ConformanceFailed,
    ConformanceReport,
    SweepError,
    check_journal,
)

# --- good journals --------------------------------------------------------------


def checked(delay: float, **options: Any) -> ConformanceReport:
    return check_journal(
        lambda: tr.MemoryJournal(delay),
        reopen=lambda journal: journal,
        make_failing=lambda: tr.MemoryJournal(delay, script={1: OSError("disk full")}),
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_the_memory_journal_keeps_every_promise(delay: float) -> None:
    report = checked(delay)
    report.raise_if_failed()
    statuses = {rule.name: rule.status for rule in report.rules}
    assert statuses.pop("a_crash_keeps_what_is_durable") == "not_applicable"
    assert set(statuses.values()) == {"ok"}
    assert [rule.name for rule in report.rules] == list(JOURNAL_RULES)


def test_a_journal_can_be_checked_in_real_time() -> None:
    report = checked(0.001, real_time=True, max_positions=3)
    assert {rule.status for rule in report.rules} == {"ok", "not_applicable"}, report.render()


def test_rules_that_need_more_than_a_journal_say_what() -> None:
    report = check_journal(tr.MemoryJournal, seeds=[0])
    notes = {rule.name: rule.note for rule in report.rules if rule.status == "not_applicable"}
    assert set(notes) == {
        "a_restart_gives_the_same_records",
        "a_crash_keeps_what_is_durable",
        "a_failure_fails_what_is_open",
        "a_failure_is_told_before_what_follows_it",
        "what_failed_may_be_appended_anew",
    }
    assert "reopen" in notes["a_restart_gives_the_same_records"]
    assert "make_failing" in notes["a_failure_fails_what_is_open"]
    assert report.ok


def test_a_journal_that_cannot_be_reopened_beside_itself_is_told_of_the_kill_sweep() -> None:
    rule = "a_crash_keeps_what_is_durable"
    report = check_journal(tr.MemoryJournal, reopen=lambda journal: journal, rules=[rule])
    assert report.status_of(rule) == "not_applicable"
    assert "kill_sweep" in report.render()


def test_acknowledged_records_that_wait_for_aclose_are_lost_in_a_crash() -> None:
    options: dict[str, Any] = {"make_journal": KeepsUntilClosed, "reopen": KeepsUntilClosed.again}
    rules = ["a_restart_gives_the_same_records", "a_crash_keeps_what_is_durable"]
    report = check_journal(**options, rules=rules, seeds=[0])
    # It shows in a crash only.
    assert [rule.status for rule in report.rules] == ["ok", "violated"]
    assert "records has 0 items, not 4" in report.render()


def test_a_crash_loses_nothing_of_a_journal_that_is_right() -> None:
    def crashed(journal: Any) -> tr.Journal:
        journal.crash()
        return journal

    rules = ["a_crash_keeps_what_is_durable"]
    report = check_journal(lambda: tr.MemoryJournal(0.5), reopen=crashed, rules=rules)
    assert report.rules[0].status == "ok", report.render()


def test_a_journal_may_be_made_by_an_async_function_or_a_context_manager() -> None:
    left: list[str] = []

    async def make() -> tr.MemoryJournal:
        await trio.lowlevel.checkpoint()
        return tr.MemoryJournal()

    @asynccontextmanager
    async def managed() -> AsyncGenerator[tr.MemoryJournal]:
        yield tr.MemoryJournal()
        left.append("left")

    some = ["append_is_synchronous", "aclose_frees_the_session"]
    assert check_journal(make, rules=some).ok
    assert check_journal(managed, rules=some, seeds=[0]).ok
    assert left == ["left", "left"]


# --- wrong ones -----------------------------------------------------------------


class Ticket:
    """A commit of another journal; the mutants change what they override."""

    def __init__(self, inner: Any, session: Session) -> None:
        self.inner = inner
        self.session = session

    @property
    def done(self) -> bool:
        return self.inner.done

    @property
    def error(self) -> Exception | None:
        return self.inner.error

    async def wait(self) -> None:
        await self.inner.wait()


class Session:
    """A session of another journal."""

    ticket: Callable[[Any, Session], Ticket] = Ticket

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.tickets: list[Ticket] = []
        self.appended: list[Sequence[r.Record]] = []

    @property
    def records(self) -> Sequence[r.Record]:
        return self.inner.records

    def append(self, records: Sequence[r.Record]) -> Any:
        self.appended.append(records)
        self.tickets.append(type(self).ticket(self.inner.append(records), self))
        return self.tickets[-1]

    async def aclose(self) -> None:
        await self.inner.aclose()

    def drop(self) -> None:
        """Give the session up without a word."""
        self.inner._closed = True
        self.inner._journal._free(self.inner)


class Journal:
    """A journal around another one."""

    session: Callable[[Any], Session] = Session

    def __init__(self, delay: Any = 0.5, script: Any = None) -> None:
        self.inner = tr.MemoryJournal(delay, script=script)

    async def open(self, session_id: str) -> Any:
        return type(self).session(await self.inner.open(session_id))


def journal_of(session: type[Session]) -> Callable[[], Any]:
    return type("Wrong", (Journal,), {"session": session})


def session_of(ticket: type[Ticket]) -> Callable[[], Any]:
    return journal_of(type("WrongSession", (Session,), {"ticket": ticket}))


class AsyncAppend(Session):
    async def append(self, records: Sequence[r.Record]) -> Any:
        await trio.lowlevel.checkpoint()
        return super().append(records)


class BareAppend(Session):
    def append(self, records: Sequence[r.Record]) -> Any:
        self.inner.append(records)
        return object()


class Lazy(Session):
    """Looks at the list only when somebody waits."""

    def append(self, records: Sequence[r.Record]) -> Any:
        parent = super()

        class LazyTicket(Ticket):
            async def wait(self) -> None:
                parent.append(records)
                await parent.tickets[-1].wait()

        return LazyTicket(None, self)


class NoCheckpoint(Ticket):
    async def wait(self) -> None:
        if not self.done:
            await self.inner.wait()


class AcloseAtOnce(Session):
    async def aclose(self) -> None:
        if all(ticket.done for ticket in self.tickets):
            self.drop()
        else:
            await self.inner.aclose()


class Impatient(Ticket):
    async def wait(self) -> None:
        await trio.lowlevel.checkpoint()


class LosesOnCancel(Ticket):
    lost = False

    @property
    def done(self) -> bool:
        return self.lost or self.inner.done

    @property
    def error(self) -> Exception | None:
        return tr.JournalError("cancelled") if self.lost else self.inner.error

    async def wait(self) -> None:
        try:
            await self.inner.wait()
        except trio.Cancelled:
            self.lost = True
            raise


class SwallowsCancel(Ticket):
    async def wait(self) -> None:
        try:
            await self.inner.wait()
        except trio.Cancelled:
            pass


class OutOfOrder(Ticket):
    @property
    def done(self) -> bool:
        return self.inner.done or self.inner._index % 2 == 1


class ErrorWhileOpen(Ticket):
    @property
    def error(self) -> Exception | None:
        return None if self.inner.done else tr.JournalError("not stored yet")


class Strips(Session):
    def append(self, records: Sequence[r.Record]) -> Any:
        return super().append(
            [
                r.SessionOpened(record.agent.strip()) if type(record) is r.SessionOpened else record
                for record in records
            ]
        )


class Eager(Session):
    @property
    def records(self) -> Sequence[r.Record]:
        return [record for batch in self.appended for record in batch]


class Halves(Session):
    @property
    def records(self) -> Sequence[r.Record]:
        stored = list(self.inner.records)
        everything = [record for batch in self.appended for record in batch]
        return [*stored, *everything[len(stored) : len(stored) + 1]]


class Live(Session):
    @property
    def records(self) -> Sequence[r.Record]:
        return self.inner._stored if self.inner.records is not None else ()


class FoldsCase(Journal):
    async def open(self, session_id: str) -> Any:
        return Session(await self.inner.open(session_id.lower()))


class TwoWriters(Journal):
    async def open(self, session_id: str) -> Any:
        writer = self.inner._writers.pop(session_id, None)
        session = await self.inner.open(session_id)
        if writer is not None:
            session._stored = writer._stored
        return Session(session)


class RefusesByValueError(Journal):
    async def open(self, session_id: str) -> Any:
        try:
            return await super().open(session_id)
        except tr.JournalError as error:
            raise ValueError("busy") from error


class MarksThenWaits(Journal):
    async def open(self, session_id: str) -> Any:
        session = await super().open(session_id)
        await trio.lowlevel.checkpoint()
        return session


class DoesNotWait(Session):
    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.drop()


class StaysTaken(Session):
    async def aclose(self) -> None:
        if self.tickets:
            await self.tickets[-1].wait()
        await trio.lowlevel.checkpoint()


class WaitsThenMarks(Session):
    async def aclose(self) -> None:
        if self.tickets:
            await self.tickets[-1].wait()
        await self.inner.aclose()


class TakesForEver(Session):
    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        await self.inner.aclose()


class AppendsWhenClosed(Session):
    def append(self, records: Sequence[r.Record]) -> Any:
        self.inner._closed = False
        return super().append(records)


class FailsAlone(Ticket):
    @property
    def error(self) -> Exception | None:
        return self.inner.error if self.inner._index == 1 else None


class LeavesATask(Journal):
    async def open(self, session_id: str) -> Any:
        session = await super().open(session_id)
        trio.lowlevel.spawn_system_task(trio.sleep_forever, name="writer")
        return session


class Boasts(Ticket):
    @property
    def done(self) -> bool:
        return True


class DropsResults(Session):
    def append(self, records: Sequence[r.Record]) -> Any:
        return super().append([each for each in records if type(each) is not r.ToolFinished])


def failing_alone() -> Any:
    session = type("S", (Session,), {"ticket": FailsAlone})
    return type("J", (Journal,), {"session": session})(0.5, {1: OSError("disk full")})


class SharedSession(Session):
    """A session whose records are in the store of its journal once it is closed."""

    stored: dict[str, list[r.Record]]
    session_id: str

    def records_of(self) -> list[r.Record]:
        return self.stored.setdefault(self.session_id, [])

    @property
    def records(self) -> Sequence[r.Record]:
        return (*self.records_of(), *self.inner.records)

    async def aclose(self) -> None:
        await self.inner.aclose()
        self.records_of().extend(self.inner.records)


class KeepsUntilClosed:
    """Says durable of what it keeps in memory until the session is closed."""

    def __init__(self, stored: dict[str, list[r.Record]] | None = None) -> None:
        self.stored = {} if stored is None else stored

    def again(self) -> KeepsUntilClosed:
        return KeepsUntilClosed(self.stored)

    async def open(self, session_id: str) -> Any:
        session = SharedSession(await tr.MemoryJournal().open(session_id))
        session.stored, session.session_id = self.stored, session_id
        return session


class ThreadTicket:
    """An outcome that a thread may set at any moment."""

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None

    async def wait(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self.done:
            await trio.sleep(0.001)


class TellsFromItsThread:
    """Stores in a thread, which also says what became of it; the second commit fails."""

    def __init__(self) -> None:
        self.records: tuple[r.Record, ...] = ()
        self.appends = 0

    async def open(self, session_id: str) -> Any:
        await trio.lowlevel.checkpoint()
        return self

    def append(self, records: Sequence[r.Record]) -> ThreadTicket:
        ticket = ThreadTicket()
        self.appends += 1
        fails = self.appends == 2
        thread = threading.Thread(target=self._store, args=(ticket, tuple(records), fails))
        thread.start()
        return ticket

    def _store(self, ticket: ThreadTicket, records: Sequence[r.Record], fails: bool) -> None:
        time.sleep(0.01)
        if fails:
            ticket.error = OSError("disk full")
        else:
            self.records += tuple(records)
        ticket.done = True

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


def fresh(_: object) -> Any:
    return tr.MemoryJournal()


#: For each rule the wrong journals that break it: options of `check_journal`.
WRONG: dict[str, list[dict[str, Any]]] = {
    "append_is_synchronous": [
        {"make_journal": journal_of(AsyncAppend)},
        {"make_journal": journal_of(BareAppend)},
    ],
    "append_takes_a_copy": [{"make_journal": journal_of(Lazy)}],
    "wait_is_a_checkpoint": [{"make_journal": session_of(NoCheckpoint)}],
    "wait_ends_when_done": [{"make_journal": session_of(Impatient)}],
    "a_cancelled_wait_changes_nothing": [
        {"make_journal": session_of(LosesOnCancel)},
        {"make_journal": session_of(SwallowsCancel)},
    ],
    "tickets_finish_in_order": [{"make_journal": session_of(OutOfOrder)}],
    "error_is_none_unless_failed": [{"make_journal": session_of(ErrorWhileOpen)}],
    "records_come_back_equal": [{"make_journal": journal_of(Strips)}],
    "records_hold_what_is_durable": [{"make_journal": journal_of(Eager)}],
    "a_commit_is_whole": [{"make_journal": journal_of(Halves)}],
    "records_does_not_grow": [{"make_journal": journal_of(Live)}],
    "sessions_do_not_mix": [{"make_journal": FoldsCase}],
    "one_writer_at_a_time": [
        {"make_journal": TwoWriters},
        {"make_journal": RefusesByValueError},
    ],
    "a_cancelled_open_leaves_it_free": [{"make_journal": MarksThenWaits}],
    "aclose_waits_for_what_was_appended": [{"make_journal": journal_of(DoesNotWait)}],
    "aclose_frees_the_session": [{"make_journal": journal_of(StaysTaken)}],
    "a_cancelled_aclose_frees_the_session": [
        {"make_journal": journal_of(WaitsThenMarks)},
        {"make_journal": journal_of(TakesForEver)},
    ],
    "append_after_aclose_is_refused": [{"make_journal": journal_of(AppendsWhenClosed)}],
    "a_restart_gives_the_same_records": [{"make_journal": Journal, "reopen": fresh}],
    "a_crash_keeps_what_is_durable": [
        {"make_journal": KeepsUntilClosed, "reopen": KeepsUntilClosed.again}
    ],
    "a_failure_fails_what_is_open": [
        {"make_journal": Journal, "make_failing": failing_alone},
        {"make_journal": Journal, "make_failing": Journal},
    ],
    "a_failure_is_told_before_what_follows_it": [
        {"make_journal": Journal, "make_failing": TellsFromItsThread}
    ],
    "what_failed_may_be_appended_anew": [
        {"make_journal": Journal, "make_failing": lambda: Journal(OSError("disk full"))}
    ],
    "nothing_is_left_running": [{"make_journal": LeavesATask}],
    "nothing_acknowledged_is_lost": [{"make_journal": session_of(Boasts)}],
    "a_turn_keeps_the_contract": [{"make_journal": journal_of(DropsResults)}],
}
#: Rules that give advice, with what they advise against.
ADVISED: dict[str, dict[str, Any]] = {
    "open_and_aclose_are_checkpoints": {"make_journal": journal_of(AcloseAtOnce)},
}
CASES = [
    pytest.param(rule, options, id=f"{rule}-{number}")
    for rule, wrong in WRONG.items()
    for number, options in enumerate(wrong)
]


@pytest.mark.slow
def test_the_journal_that_the_wrong_ones_are_made_of_is_right() -> None:
    assert {rule.status for rule in check_journal(Journal, seeds=[0]).rules} <= {
        "ok",
        "not_applicable",
    }


def test_each_rule_has_a_journal_that_breaks_it() -> None:
    assert set(WRONG) | set(ADVISED) == set(JOURNAL_RULES)


@pytest.mark.parametrize(("rule", "options"), CASES)
def test_a_wrong_journal_is_told_which_promise_it_breaks(
    rule: str, options: dict[str, Any]
) -> None:
    report = check_journal(**options, rules=[rule], seeds=[0])
    assert report.status_of(rule) == "violated", report.render()
    promise = f"{rule} ({JOURNAL_RULES[rule].promised_by}): found "
    assert all(text.startswith(promise) for text in report.violations)
    assert all("; expected " in text and "; to do: " in text for text in report.violations)


@pytest.mark.parametrize(("rule", "options"), ADVISED.items())
def test_what_is_allowed_but_not_good_is_advice(rule: str, options: dict[str, Any]) -> None:
    report = check_journal(**options, rules=[rule], seeds=[0])
    assert report.status_of(rule) == "advice"
    assert report.ok
    assert "aclose was no checkpoint" in report.render()


def test_a_journal_that_never_ends_is_reported_and_does_not_hang_the_kit() -> None:
    class Never(Session):
        async def aclose(self) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

    some = ["aclose_frees_the_session", "a_cancelled_aclose_frees_the_session"]
    report = check_journal(journal_of(Never), rules=some, seeds=[0], max_positions=2)
    assert [rule.status for rule in report.rules] == ["violated", "violated"]
    assert "no end while closing a session" in report.render()
    live = check_journal(journal_of(Never), rules=some[:1], real_time=True, hang_after=0.1)
    assert "no end while closing a session" in live.render()


# --- the report -----------------------------------------------------------------


def test_the_report_reads_as_text_and_as_json() -> None:
    some = ["append_is_synchronous", "one_writer_at_a_time"]
    report = check_journal(TwoWriters, rules=some, seeds=[0, 1])
    assert report.render().splitlines()[0] == (
        "check_journal on TwoWriters: 2 rules in 4 runs: 1 ok, 1 violated"
    )
    assert "found: a session that is open was opened again (in 2 runs)" in report.render()
    data = json.loads(report.to_json())
    assert data["ok"] is False
    assert [(rule["name"], rule["status"]) for rule in data["rules"]] == [
        ("append_is_synchronous", "ok"),
        ("one_writer_at_a_time", "violated"),
    ]
    with pytest.raises(ConformanceFailed, match="one_writer_at_a_time") as caught:
        report.raise_if_failed()
    assert caught.value.report is report


def test_what_makes_no_journal_is_refused() -> None:
    journal: Any = tr.MemoryJournal()
    with pytest.raises(TypeError, match=r"MemoryJournal.*; expected a function that makes"):
        check_journal(journal)
    with pytest.raises(TypeError, match="expected a function that makes a journal"):
        check_journal(tr.MemoryJournal, make_failing=journal)

    async def make_later() -> Any:
        await trio.lowlevel.checkpoint()

    for wrong in (make_later, lambda: 3):
        make: Any = wrong
        with pytest.raises(ValueError, match="which has no open; expected a journal"):
            check_journal(make)


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no rule \['append_is_fast'\]"):
        check_journal(tr.MemoryJournal, rules=["append_is_fast"])


def test_a_journal_that_is_not_repeatable_is_sent_to_real_time() -> None:
    steps = iter(range(1, 100))

    class Random(Session):
        async def aclose(self) -> None:
            for _ in range(next(steps)):
                await trio.lowlevel.checkpoint()
            await self.inner.aclose()

    with pytest.raises(SweepError) as caught:
        check_journal(journal_of(Random), rules=["nothing_is_left_running"])
    assert "real_time=True" in caught.value.__notes__[0]
