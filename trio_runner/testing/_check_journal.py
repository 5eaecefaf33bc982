"""`check_journal`: does a journal keep what its protocol promises?

What may live here: the entry, the kit that its rules work with, and the table
of rules. The rules themselves stand in ``_rules/``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Final, TypeAlias

import trio_runner.testing._rules.journal_faults as faults
import trio_runner.testing._rules.journal_sessions as sessions
import trio_runner.testing._rules.journal_tickets as tickets
from trio_runner.abc import Journal
from trio_runner.testing._conformance import (
    ConformanceReport,
    ConformanceRule,
    chosen_rules,
    required,
    run_rules,
)
from trio_runner.testing._rules.journal_kit import JournalKit
from trio_runner.testing._stages import make_stage

#: What makes a journal: a function of nothing that returns one, or an awaitable of
#: one, or an async context manager that gives one.
MakeJournal: TypeAlias = (
    Callable[[], Journal]
    | Callable[[], Awaitable[Journal]]
    | Callable[[], AbstractAsyncContextManager[Journal]]
)

_OPEN, _APPEND, _ACLOSE = "Journal.open", "JournalSession.append", "JournalSession.aclose"
_RECORDS, _TICKET, _WAIT = "JournalSession.records", "CommitTicket", "CommitTicket.wait"

#: The rules of `check_journal`, by name.
JOURNAL_RULES: Final[Mapping[str, ConformanceRule[JournalKit]]] = MappingProxyType(
    {
        rule.name: rule
        for rule in [
            ConformanceRule(name, promised_by, promise, check)
            for name, promised_by, promise, check in (
                (
                    "append_is_synchronous",
                    f"{_APPEND}; C3",
                    "append takes the records and returns a ticket, without a checkpoint",
                    tickets.append_is_synchronous,
                ),
                (
                    "append_takes_a_copy",
                    _APPEND,
                    "the sequence that was passed is not used after the call",
                    tickets.append_takes_a_copy,
                ),
                (
                    "wait_is_a_checkpoint",
                    f"{_WAIT}; C1",
                    "wait is a checkpoint, also when the ticket is done",
                    tickets.wait_is_a_checkpoint,
                ),
                (
                    "open_and_aclose_are_checkpoints",
                    f"{_OPEN}, {_ACLOSE}; C1",
                    "what is async is always a checkpoint",
                    tickets.open_and_aclose_are_checkpoints,
                ),
                (
                    "wait_ends_when_done",
                    _WAIT,
                    "wait ends when the ticket is done, and not before",
                    tickets.wait_ends_when_done,
                ),
                (
                    "a_cancelled_wait_changes_nothing",
                    f"{_WAIT}; C1, C3",
                    "wait may be cancelled and called again; the commit does not notice",
                    tickets.a_cancelled_wait_changes_nothing,
                ),
                (
                    "tickets_finish_in_order",
                    _TICKET,
                    "the tickets of a session finish in the order of their appends",
                    tickets.tickets_finish_in_order,
                ),
                (
                    "error_is_none_unless_failed",
                    f"{_TICKET}.error",
                    "error is None while the ticket is open, and when it is durable",
                    tickets.error_is_none_unless_failed,
                ),
                (
                    "records_come_back_equal",
                    f"{_RECORDS}; C3, C4",
                    "records of every kind come back as they were, in order",
                    tickets.records_come_back_equal,
                ),
                (
                    "records_hold_what_is_durable",
                    f"{_RECORDS}; C3",
                    "records are those of the tickets that are done, and no others",
                    tickets.records_hold_what_is_durable,
                ),
                (
                    "a_commit_is_whole",
                    _APPEND,
                    "of one append all records become durable, or none",
                    tickets.a_commit_is_whole,
                ),
                (
                    "records_does_not_grow",
                    f"{_RECORDS}; C9",
                    "what records gave is not changed by later appends",
                    tickets.records_does_not_grow,
                ),
                (
                    "sessions_do_not_mix",
                    "Journal.open",
                    "each session has its own records, whatever its id looks like",
                    sessions.sessions_do_not_mix,
                ),
                (
                    "one_writer_at_a_time",
                    _OPEN,
                    "opening a session that is open raises JournalError and disturbs nobody",
                    sessions.one_writer_at_a_time,
                ),
                (
                    "a_cancelled_open_leaves_it_free",
                    f"{_OPEN}; C1, C5",
                    "after a cancelled open the session can be opened, and has what was stored",
                    sessions.a_cancelled_open_leaves_it_free,
                ),
                (
                    "aclose_waits_for_what_was_appended",
                    f"{_ACLOSE}; C3",
                    "aclose returns when what was appended is settled",
                    sessions.aclose_waits_for_what_was_appended,
                ),
                (
                    "aclose_frees_the_session",
                    f"{_ACLOSE}; C5",
                    "after aclose the session can be opened, by this journal and after a restart",
                    sessions.aclose_frees_the_session,
                ),
                (
                    "a_cancelled_aclose_frees_the_session",
                    f"{_ACLOSE}; C1, C5",
                    "a cancelled aclose leaves soon, and the session is free and closed",
                    sessions.a_cancelled_aclose_frees_the_session,
                ),
                (
                    "append_after_aclose_is_refused",
                    f"{_APPEND}, {_ACLOSE}",
                    "a session that was given up takes no records: JournalError",
                    sessions.append_after_aclose_is_refused,
                ),
                (
                    "a_restart_gives_the_same_records",
                    f"{_OPEN}; C3",
                    "a journal made anew on the same store has what was durable",
                    sessions.a_restart_gives_the_same_records,
                ),
                (
                    "a_crash_keeps_what_is_durable",
                    f"{_OPEN}, {_WAIT}; C3",
                    "what a ticket called durable is stored, also when nothing is closed",
                    sessions.a_crash_keeps_what_is_durable,
                ),
                (
                    "a_failure_fails_what_is_open",
                    f"{_TICKET}; C3",
                    "what is stored is a prefix of what was appended: a failure fails what is open",
                    faults.a_failure_fails_what_is_open,
                ),
                (
                    "a_failure_is_told_before_what_follows_it",
                    f"{_TICKET}; C3",
                    "an outcome is told in the loop's own thread, between two steps of its tasks",
                    faults.a_failure_is_told_before_what_follows_it,
                ),
                (
                    "what_failed_may_be_appended_anew",
                    f"{_TICKET}; C3",
                    "records whose commit failed may come again, and are then stored once",
                    faults.what_failed_may_be_appended_anew,
                ),
                (
                    "nothing_is_left_running",
                    f"{_ACLOSE}; C5",
                    "no task outlives the session, in whatever way it was left",
                    faults.nothing_is_left_running,
                ),
                (
                    "nothing_acknowledged_is_lost",
                    f"{_TICKET}; C3, C6",
                    "a fault at any step of a session's life: what was done is stored",
                    faults.nothing_acknowledged_is_lost,
                ),
                (
                    "a_turn_keeps_the_contract",
                    "Journal; C1-C9",
                    "an agent's turn with it, cancelled at any step, keeps the contract",
                    faults.a_turn_keeps_the_contract,
                ),
            )
        ]
    }
)


def check_journal(
    make_journal: MakeJournal,
    *,
    reopen: Callable[[Journal], Journal | Awaitable[Journal]] | None = None,
    make_failing: MakeJournal | None = None,
    rules: Iterable[str] | None = None,
    real_time: bool = False,
    seeds: Iterable[int] = range(2),
    max_positions: int | None = None,
    hang_after: float = 30.0,
    leaves_within: float = 5.0,
) -> ConformanceReport:
    """Check a journal against `trio_runner.abc.Journal`. Call it outside trio.

    Each rule runs the journal in trio runs of its own, each time a new one,
    with its own store: undisturbed, and with a fault before each step.

    Args:
      make_journal: makes a journal with an empty store; may be async, or an async
        context manager.
      reopen: makes a journal on the store of the one it is given, as a new process
        would, also when that one was not closed; None: the same object is used again.
      make_failing: makes a journal of which one of the first three commits fails,
        and later ones work again. None: the rules on failures are not checked.
      rules: names from `JOURNAL_RULES`; None: all.
      real_time: for a journal with real threads, sockets or processes: no mock
        clock, and the only fault is a cancel.
      seeds: of trio's scheduler (on the mock clock).
      max_positions: at most this many positions per fault and seed; None: all,
        and 12 in real time.
      hang_after: seconds after which a run counts as hung (in real time).
      leaves_within: seconds that a cancelled operation may take to leave.

    Raises:
      ValueError, TypeError: there is no such rule, or nothing that makes a journal.
      SweepError: the journal cannot be run on the mock clock: use ``real_time``.
    """
    chosen = chosen_rules(JOURNAL_RULES, rules)
    stage = make_stage(
        real_time=real_time, seeds=seeds, max_positions=max_positions, hang_after=hang_after
    )
    make = required(make_journal, "journal", ["open"])
    failing = make_failing and required(make_failing, "journal", ["open"])
    kit = JournalKit(stage, make, reopen, failing, leaves_within)
    name = getattr(make_journal, "__qualname__", repr(make_journal))
    return ConformanceReport("check_journal", name, run_rules(chosen, kit), stage.runs)
