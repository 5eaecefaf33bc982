"""The contract as functions: one check for each promise C1-C9.

What may live here: what a turn left behind (`Evidence`), what really happened
meanwhile (`Ledger`), and the checks that compare the two. They are pure: they
look at values and say in a sentence what is wrong. ``docs/explanation/contract.md``
states the promises.

A check takes the evidence and yields sentences, so checks compose: a sweep's
case uses `check_contract`, a test of your own may use a single one::

    problems = list(work_kept(evidence))
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias, cast

import attrs
import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as records
import trio_runner._core.values as v
from trio_runner._core.fold import RecordError, fold
from trio_runner._core.validity import check_history
from trio_runner._shell.conversation import LastTurn
from trio_runner.testing._faults import SiblingCrash
from trio_runner.testing._outcome import (
    Outcome,
    chain_of,
    leaves_of,
    left_running,
    lost_cancel,
    lost_interrupt,
    slow_leaving,
    stray_cancel,
)


@attrs.define
class Ledger:
    """What really happened, noted outside the library; a `Witness` keeps it.

    Times are of no interest, only facts: each is noted in the very step in
    which it becomes true.
    """

    #: By call id: the tool was entered.
    entered: set[str] = attrs.field(factory=set[str])
    #: By call id: what the tool returned, noted as its last statement.
    returned: dict[str, object] = attrs.field(factory=dict[str, object])
    #: By call id: what it raised of its own.
    raised: dict[str, BaseException] = attrs.field(factory=dict[str, BaseException])
    #: By call id: the tool was left, in any way.
    left: set[str] = attrs.field(factory=set[str])
    #: What began although a cancel was in force.
    late: list[str] = attrs.field(factory=list[str])
    #: What went ahead of a commit that it depends on.
    ahead: list[str] = attrs.field(factory=list[str])
    #: What was wrong with requests to the model.
    bad_requests: list[str] = attrs.field(factory=list[str])
    #: Messages handed out, with what they looked like then.
    handed_out: list[tuple[v.Message, str]] = attrs.field(factory=list[tuple[v.Message, str]])
    #: Commits that were open when the turn had been left; None when no turn had begun.
    open_at_leaving: int | None = None
    #: Sessions of the journal that were open when the agent had been left.
    open_sessions: int = 0
    #: Commits that failed.
    failed_commits: int = 0
    #: Errors that a planned fault put into the turn.
    planted: list[BaseException] = attrs.field(factory=list[BaseException])
    #: Errors that observers or the log were told of.
    told: list[BaseException] = attrs.field(factory=list[BaseException])

    def begins(self, what: str) -> None:
        """Note a start that must not be when a cancel is in force. Call it in the task."""
        try:
            cancelled = trio.current_effective_deadline() == -math.inf
        except RuntimeError:  # in a worker thread: it may begin late, and is waited for
            return
        if cancelled:
            self.late.append(what)

    def hand_out(self, message: v.Message) -> None:
        """Note a message that the library gave away, as it looks now."""
        self.handed_out.append((message, repr(message)))


@attrs.frozen(kw_only=True)
class Evidence:
    """What one turn left behind, after the agent was left.

    Attributes:
      ledger: what really happened.
      history: the agent's history.
      last_turn: how its turn ended; None when none began.
      busy: whether the agent says that a turn is running.
      outcome: what a sweep saw of the run; None when it was not swept.
      stored: the records of its session; None without a journal.
      journal_failed: the journal was made to fail, so it may hold less than memory.
      grace: seconds that leaving may take; None when nothing is said of it.
      raises_cancel: the run ends with a checkpoint, so a cancel always leaves it.
      left_early: the run leaves the turn by itself before its end.
      before: how many messages the history had before the turn.
      exact_starts: a call counts as started exactly when its tool was entered.
        An interrupt at a line may come between the two; the call then counts as
        started, which is the safe side.
      own_errors: types of errors that may leave the run, since it raises them.
    """

    ledger: Ledger
    history: Sequence[v.Message]
    last_turn: LastTurn | None
    busy: bool = False
    outcome: Outcome | None = None
    stored: Sequence[records.Record] | None = None
    journal_failed: bool = False
    grace: float | None = 5.0
    raises_cancel: bool = True
    left_early: bool = False
    before: int = 0
    exact_starts: bool = True
    own_errors: tuple[type[BaseException], ...] = ()

    @property
    def results(self) -> dict[str, v.ToolResult]:
        """The tool results in the history, by call id."""
        return {each.call_id: each for message in self.history for each in message.tool_results}


#: A check: yields one sentence for each thing that is wrong.
Check: TypeAlias = Callable[[Evidence], Iterable[str]]


def cancel_wins(evidence: Evidence) -> Iterator[str]:
    """C1: after the cancel nothing starts, and Cancelled reaches the caller."""
    for what in evidence.ledger.late:
        yield f"{what} began after the cancel"
    if evidence.outcome is not None:
        yield from stray_cancel(evidence.outcome)
        if evidence.raises_cancel:
            yield from lost_cancel(evidence.outcome)


def history_valid(evidence: Evidence) -> Iterator[str]:
    """C2: every history that is let out is valid: in memory, stored, and sent to the model."""
    yield from evidence.ledger.bad_requests
    last = evidence.last_turn
    yield from _problems("the history", evidence.history)
    yield from _problems("last_turn.messages", last.messages if last is not None else ())
    if evidence.stored is not None:
        try:
            state = fold(evidence.stored)
        except RecordError as error:
            yield f"the session does not open: {error}"
        else:
            yield from _problems("the stored session", state.messages)
    for call_id in evidence.ledger.entered - evidence.results.keys():
        yield f"call {call_id} ran and has no result in the history"


def work_kept(evidence: Evidence) -> Iterator[str]:
    """C3: what a tool returned or raised is its result, in memory and stored, before it is used."""
    ledger = evidence.ledger
    places = [("in memory", evidence.results)]
    if evidence.stored is not None and not evidence.journal_failed:
        stored = _stored_history(evidence)
        if stored is not None:
            kept = {each.call_id: each for message in stored for each in message.tool_results}
            places.append(("stored", kept))
            if stored != tuple(evidence.history):
                yield f"memory and session differ: {tuple(evidence.history)} and {stored}"
    for where, results in places:
        for call_id, value in ledger.returned.items():
            result = results.get(call_id)
            if result is None or not _is_result_of(result, value):
                yield f"call {call_id} returned {value!r}; {where} it is {result}"
        for call_id, error in ledger.raised.items():
            result = results.get(call_id)
            foreign = isinstance(error, asyncio.CancelledError)
            if result is None or result.status not in (_CUT if foreign else _FAILED):
                yield f"the tool of call {call_id} raised {error!r}; {where} it is {result}"
    if not evidence.journal_failed:
        yield from ledger.ahead


def record_true(evidence: Evidence) -> Iterator[str]:
    """C4: the status of each call says what happened to it."""
    ledger = evidence.ledger
    for call_id, result in evidence.results.items():
        status = result.status
        said = f"call {call_id} has status {status.value}"
        entered = call_id in ledger.entered
        if status is v.CallStatus.OK and call_id not in ledger.returned:
            yield f"{said}, and its tool did not return"
        elif entered and status in _NEVER_RAN:
            yield f"{said}, and its tool was entered"
        elif (
            not entered
            and status in _BEGAN
            and (evidence.exact_starts or status is not v.CallStatus.INTERRUPTED)
        ):
            yield f"{said}, and its tool was never entered"


def nothing_left(evidence: Evidence) -> Iterator[str]:
    """C5: no task, tool or session of the turn lives on, and the agent is free."""
    ledger = evidence.ledger
    if evidence.outcome is not None:
        yield from left_running(evidence.outcome)
    for call_id in ledger.entered - ledger.left:
        yield f"the tool of call {call_id} is still running"
    if evidence.busy:
        yield "the agent was not freed"
    if ledger.open_sessions:
        yield f"{ledger.open_sessions} sessions of the journal were left open"


def leaving_bounded(evidence: Evidence) -> Iterator[str]:
    """C6: leaving takes ``grace`` at most, and all that could be committed then is."""
    ledger, last = evidence.ledger, evidence.last_turn
    if evidence.outcome is not None:
        yield from slow_leaving(evidence.outcome, evidence.grace)
    if evidence.journal_failed:
        return
    if ledger.open_at_leaving:
        yield f"{ledger.open_at_leaving} commits were not durable at leaving"
    told = last.commit_errors if last is not None else ()
    if ledger.failed_commits or told:
        yield f"commits were lost: {ledger.failed_commits} in the journal, told: {told}"
    if evidence.stored is not None:
        kinds = [type(record) for record in evidence.stored]
        if kinds.count(records.TurnStarted) != kinds.count(records.TurnEnded):
            yield f"the session's turn was not ended: {[kind.__name__ for kind in kinds]}"


def errors_told(evidence: Evidence) -> Iterator[str]:
    """C7: what leaves has its rank and its shape, and what does not leave is told."""
    outcome = evidence.outcome
    if outcome is None:
        return
    yield from lost_interrupt(outcome, raises_cancel=evidence.raises_cancel)
    raised = outcome.raised
    yield from _wrapped(outcome, evidence.own_errors)
    ledger, last = evidence.ledger, evidence.last_turn
    committed = last.commit_errors if last is not None else ()
    heard = {id(link) for each in (*ledger.told, *committed, raised) for link in chain_of(each)}
    for planted in ledger.planted:
        if id(planted) not in heard:
            yield f"an error was lost: {planted!r}"
    if isinstance(raised, Exception):
        known = {id(planted) for planted in ledger.planted}
        ours = isinstance(raised, (*evidence.own_errors, SiblingCrash))
        if not ours and not any(id(link) in known for link in chain_of(raised)):
            yield f"an error of nobody left: {raised!r}"


def _wrapped(outcome: Outcome, own_errors: tuple[type[BaseException], ...]) -> Iterator[str]:
    """Say what leaves in a group and should leave bare: only a layer of one's own does that."""
    raised: BaseException | None = outcome.raised
    if not isinstance(raised, BaseExceptionGroup) or isinstance(raised, own_errors):
        return
    group = cast("BaseException", raised)
    if outcome.raised_a(KeyboardInterrupt):
        yield f"KeyboardInterrupt did not leave bare: {group!r}"
    elif outcome.raised_a(trio.Cancelled):
        yield f"Cancelled did not leave bare: {group!r}"
    elif len(leaves_of(group)) == 1:
        yield f"a single error did not leave bare: {group!r}"


def same_ways(evidence: Evidence) -> Iterator[str]:
    """C8: however the turn was driven, it ended, and for the reason that it names."""
    last = evidence.last_turn
    if last is None:
        if len(evidence.history) > evidence.before:
            yield "a turn began and did not end"
        return
    reason = last.end_reason
    answer = evidence.history[-1] if evidence.history else None
    answered = (
        answer is not None
        and answer.role == "assistant"
        and not answer.tool_calls
        and answer.stop_reason in (None, v.StopReason.END_TURN, v.StopReason.STOP_SEQUENCE)
        and answer in last.messages
    )
    if answered and reason in (v.EndReason.INTERRUPTED, v.EndReason.TIMED_OUT):
        yield f"the turn ended {reason.value}, and the answer is there: {answer}"
    if not answered and reason is v.EndReason.ANSWERED:
        yield f"the turn ended answered, and the last message is no answer: {answer}"
    outcome = evidence.outcome
    if outcome is None or outcome.hung or outcome.raised is not None:
        return
    stopped = reason in (v.EndReason.INTERRUPTED, v.EndReason.TIMED_OUT)
    if stopped != evidence.left_early:
        yield f"the run returned {outcome.value!r}, and the turn ended {reason.value}"


def values_frozen(evidence: Evidence) -> Iterator[str]:
    """C9: nothing that was handed out is edited later."""
    for message, looked in evidence.ledger.handed_out:
        if repr(message) != looked:
            yield f"a message changed after it was handed out: {looked} is now {message}"


#: The checks by the promise that each of them holds.
CONTRACT: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "C1": cancel_wins,
        "C2": history_valid,
        "C3": work_kept,
        "C4": record_true,
        "C5": nothing_left,
        "C6": leaving_bounded,
        "C7": errors_told,
        "C8": same_ways,
        "C9": values_frozen,
    }
)


def check_contract(evidence: Evidence, checks: Mapping[str, Check] = CONTRACT) -> Iterator[str]:
    """Yield what is wrong, each sentence with its promise in front: ``"C3: call …"``."""
    outcome = evidence.outcome
    if outcome is not None and outcome.broken is not None and not outcome.hung:
        yield f"C5: trio's run loop broke: {outcome.broken.__cause__ or outcome.broken!r}"
        return
    for promise, check in checks.items():
        for problem in check(evidence):
            yield f"{promise}: {problem}"


#: What a tool that raised may be called, and one that a foreign loop cancelled: when the
#: caller has cancelled as well, that is how a bridged call ends.
_FAILED: Final = frozenset({v.CallStatus.ERROR})
_CUT: Final = _FAILED | {
    v.CallStatus.INTERRUPTED,
    v.CallStatus.TIMED_OUT,
    v.CallStatus.CANCELLED,
}
#: Statuses of calls whose tool has not run at all, and of those whose tool began.
_NEVER_RAN: Final = frozenset(
    {
        v.CallStatus.NOT_STARTED,
        v.CallStatus.DENIED,
        v.CallStatus.UNAVAILABLE,
        v.CallStatus.LIMIT_REACHED,
        v.CallStatus.OUTPUT_CUT,
    }
)
_BEGAN: Final = frozenset(
    {
        v.CallStatus.ERROR,
        v.CallStatus.TIMED_OUT,
        v.CallStatus.CANCELLED,
        v.CallStatus.INTERRUPTED,
    }
)


def _problems(name: str, messages: Sequence[v.Message]) -> Iterator[str]:
    try:
        check_history(messages)
    except errors.HistoryError as error:
        yield f"{name}: {error}"


def _stored_history(evidence: Evidence) -> tuple[v.Message, ...] | None:
    """The closed steps of the stored session; None when it does not open (which is C2's)."""
    try:
        return fold(evidence.stored or ()).messages
    except RecordError:
        return None


def _is_result_of(result: v.ToolResult, value: object) -> bool:
    """Whether a result can be what became of a returned value."""
    if isinstance(value, str):
        return result.status is v.CallStatus.OK and result.text == value
    if type(value) is v.ToolResult:
        return result.content == value.content and result.is_error == value.is_error
    # Conversion may fail; that, too, is said as the result of a call that did run.
    return result.status in (v.CallStatus.OK, v.CallStatus.ERROR)
