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

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias, cast

import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as records
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
from trio_runner._core.cap import cap_result
from trio_runner._core.convert import result_from_value
from trio_runner._core.fold import RecordError, fold, full_history
from trio_runner._core.open_step import OpenStep
from trio_runner._core.validity import check_history
from trio_runner.testing._evidence import PLAIN_STATUSES as PLAIN_STATUSES
from trio_runner.testing._evidence import Evidence as Evidence
from trio_runner.testing._evidence import Ledger as Ledger
from trio_runner.testing._evidence import results_by_id
from trio_runner.testing._faults import SiblingCrash
from trio_runner.testing._outcome import (
    Outcome,
    chain_of,
    leaves_of,
    left_running,
    lost_cancel,
    lost_interrupt,
    stray_cancel,
)

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
    yield from evidence.ledger.bad_histories
    yield from _problems("the history", evidence.history)
    yield from _problems("last_turn.messages", evidence.turn_messages)
    if evidence.stored is not None:
        try:
            state = fold(evidence.stored)
        except RecordError as error:
            yield f"the session does not open: {error}"
        else:
            yield from _problems("the stored session", state.messages)
    for call_id in sorted(evidence.ledger.entered - evidence.results.keys()):
        yield f"call {call_id} ran and has no result"


def work_kept(evidence: Evidence) -> Iterator[str]:
    """C3: what a tool returned or raised is its result, in memory and stored, before it is used."""
    ledger = evidence.ledger
    places = [("in memory", evidence.results)]
    stored = _stored_history(evidence)
    if stored is not None:
        # What a compaction or a trim took out is in the session all the same.
        said = full_history(evidence.stored or ())
        kept = results_by_id(said, _stored_step(evidence))
        if not any(type(each) is records.HistoryReplaced for each in evidence.stored or ()):
            places.append(("stored", kept))
        if stored != tuple(evidence.history):
            yield f"memory and session differ: {shown(evidence.history)} and {shown(stored)}"
    for where, results in places:
        for call_id, value in ledger.returned.items():
            result = results.get(call_id)
            if result is None or not _is_result_of(result, value, evidence.max_result_bytes):
                yield f"call {call_id} returned {shown(value)}; {where} it is {shown(result)}"
        for call_id, error in ledger.raised.items():
            result = results.get(call_id)
            if result is None or result.status not in _statuses_of(error):
                yield f"the tool of call {call_id} raised {error!r}; {where} it is {shown(result)}"
    if not evidence.journal_failed:
        yield from ledger.ahead


def record_true(evidence: Evidence) -> Iterator[str]:
    """C4: the status of each call says what happened to it, and its text says the same."""
    ledger = evidence.ledger
    reason = None if evidence.last_turn is None else evidence.last_turn.end_reason
    for call_id, result in evidence.results.items():
        status = result.status
        said = f"call {call_id} has status {status.value}"
        entered = call_id in ledger.entered
        if status is v.CallStatus.OK and call_id not in ledger.returned:
            yield f"{said}, and its tool did not return"
        elif entered and status in _NEVER_RAN:
            yield f"{said}, and its tool was entered"
        elif not entered and status in _BEGAN:
            if evidence.exact_starts or status is not v.CallStatus.INTERRUPTED:
                yield f"{said}, and its tool was never entered"
        elif status is v.CallStatus.ERROR and call_id not in (*ledger.raised, *ledger.returned):
            yield f"{said}, and its tool neither raised nor returned"
        # A tool may say so itself, of a connection that it lost for instance; the turn goes on.
        named = _status_named(ledger.returned.get(call_id))
        told = status is named
        if status not in evidence.statuses and not told:
            yield f"{said}, and nothing in this turn can have made it so"
        if reason is v.EndReason.ANSWERED and status is v.CallStatus.INTERRUPTED and not told:
            yield f"{said}, and the turn was answered"
        if named is not None and named in _CUT and not told:
            yield f"{said}, and its tool returned a result of status {named.value}"
        word = _WORDS.get(status)
        if word is not None and call_id not in ledger.returned:
            ran = "had no effect" not in result.text
            if not result.text.startswith(word) or ran != (status not in _NEVER_RAN):
                yield f"{said}, and its text says {shown(result.text)}"


def nothing_left(evidence: Evidence) -> Iterator[str]:
    """C5: no task, tool or session of the turn lives on, and the agent is free."""
    ledger = evidence.ledger
    if evidence.outcome is not None:
        yield from left_running(evidence.outcome)
    for call_id in sorted(ledger.entered - ledger.left):
        yield f"the tool of call {call_id} is still running"
    if evidence.busy:
        yield "the agent was not freed"
    if ledger.open_sessions:
        yield f"{ledger.open_sessions} sessions of the journal were left open"


def leaving_bounded(evidence: Evidence) -> Iterator[str]:
    """C6: leaving takes ``grace`` at most, and all that could be committed then is."""
    ledger, last = evidence.ledger, evidence.last_turn
    if evidence.outcome is not None and evidence.outcome.hung:
        yield "it did not end by itself"
    yield from _slow_leaving(evidence)
    if ledger.gave_up and ledger.opened_sessions:
        yield "it took so long that the driver of the turn gave up"
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
    yield from _wrapped(outcome, evidence.own_errors)
    ledger, last = evidence.ledger, evidence.last_turn
    out = [] if outcome.raised is None else list(leaving.leaves(outcome.raised))
    committed = last.commit_errors if last is not None else ()
    # What is told may be wrapped in words that say more; what leaves may not.
    heard = {id(link) for each in (*ledger.told, *committed) for link in chain_of(each)}
    heard |= {id(error) for error in out}
    for planted in ledger.planted:
        if id(planted) not in heard:
            yield f"an error was lost: {planted!r}"
    known = {id(planted) for planted in ledger.planted}
    for error in [] if isinstance(outcome.raised, evidence.own_errors) else out:
        allowed = isinstance(error, (*evidence.own_errors, SiblingCrash)) or id(error) in known
        if isinstance(error, Exception) and not allowed:
            yield f"an error of nobody left: {error!r}"


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
    """C8: however the turn was driven, it ended, for the reason it names, and gave its messages."""
    last, outcome = evidence.last_turn, evidence.outcome
    returned = outcome is not None and not outcome.hung and outcome.raised is None
    if last is None:
        if len(evidence.history) > evidence.before:
            yield "a turn began and did not end"
        elif returned and not evidence.ledger.gave_up:
            yield "the run returned, and no turn was run"
        return
    reason = last.end_reason
    answer = last.messages[-1] if last.messages else None
    answered = (
        answer is not None
        and answer.role == "assistant"
        and not answer.tool_calls
        and answer.stop_reason in (None, v.StopReason.END_TURN, v.StopReason.STOP_SEQUENCE)
    )
    if answered and reason in _STOPPED:
        yield f"the turn ended {reason.value}, and the answer is there: {shown(answer)}"
    if not answered and reason is v.EndReason.ANSWERED:
        yield f"the turn ended answered, and the last message is no answer: {shown(answer)}"
    yield from _handed_out(evidence, whole=returned and reason not in _STOPPED)
    if outcome is not None and returned and (reason in _STOPPED) != evidence.left_early:
        yield f"the run returned {shown(outcome.value)}, and the turn ended {reason.value}"


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
_CUT: Final = frozenset({v.CallStatus.TIMED_OUT, v.CallStatus.CANCELLED, v.CallStatus.INTERRUPTED})
_BEGAN: Final = _CUT | {v.CallStatus.ERROR}
_STOPPED: Final = (v.EndReason.INTERRUPTED, v.EndReason.TIMED_OUT)
#: How the text of a result begins that the library made.
_WORDS: Final = MappingProxyType(
    {
        v.CallStatus.INTERRUPTED: "Interrupted: ",
        v.CallStatus.NOT_STARTED: "Not started: ",
        v.CallStatus.TIMED_OUT: "Timed out: ",
        v.CallStatus.CANCELLED: "Cancelled: ",
        v.CallStatus.DENIED: "Denied: ",
        v.CallStatus.UNKNOWN_AFTER_CRASH: "Unknown: ",
        v.CallStatus.LIMIT_REACHED: "Limit reached: ",
        v.CallStatus.OUTPUT_CUT: "Output cut: ",
    }
)
_SHOWN_CHARACTERS: Final = 300


def shown(value: object) -> str:
    """A value in a sentence, cut when it is long."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"


def _status_named(value: object) -> v.CallStatus | None:
    """What a tool itself calls its call, by the result that it returned; None: nothing."""
    match value:
        case v.ToolResult(status=v.CallStatus() as status):
            return status
        case _:
            return None


def _statuses_of(error: BaseException) -> frozenset[v.CallStatus]:
    """What a call may be called whose tool raised ``error``."""
    if isinstance(error, errors.InvalidArgumentsError):
        return frozenset({v.CallStatus.INVALID_ARGUMENTS})
    if all(leaving.is_cancellation(leaf) for leaf in leaving.leaves(error)):
        # A foreign loop's; when the caller has cancelled as well, that is how a bridged call ends.
        return _BEGAN
    # A tool that its timeout stops may raise something of its own on the way out.
    return frozenset({v.CallStatus.ERROR, v.CallStatus.TIMED_OUT, v.CallStatus.CANCELLED})


def _slow_leaving(evidence: Evidence) -> Iterator[str]:
    """From the first interrupt of any kind; while a tool cleans up, it is the tool's time."""
    ledger, outcome = evidence.ledger, evidence.outcome
    if evidence.grace is None:
        return
    stopped = ledger.stopped_at
    if outcome is not None and outcome.leave_time is not None:
        stopped = min(stopped, ledger.left_at - outcome.leave_time)
    took = ledger.left_at - max(stopped, ledger.last_tool_left_at)
    if stopped < math.inf and took > evidence.grace + 1e-6:
        yield f"it took {took:g} s to leave, more than {evidence.grace:g}"


def _handed_out(evidence: Evidence, *, whole: bool) -> Iterator[str]:
    """What the run was given is what the turn's messages are."""
    given = [message for message, _ in evidence.ledger.handed_out]
    there = [message for message in evidence.turn_messages if message.role == "assistant"]
    if evidence.open_step is not None:
        there.append(evidence.open_step.reply)
    match evidence.handed:
        case "last":
            there = there[-1:]
        case "all":
            pass
        case None:
            return
    if given != (there if whole else there[: len(given)]):
        yield f"the messages handed out are {shown(given)}; the turn has {shown(there)}"


def _problems(name: str, messages: Sequence[v.Message]) -> Iterator[str]:
    try:
        check_history(messages)
    except errors.HistoryError as error:
        yield f"{name}: {error}"


def _stored_history(evidence: Evidence) -> tuple[v.Message, ...] | None:
    """The closed steps of the session; None when it does not open, or need not hold the turn."""
    if evidence.stored is None or evidence.journal_failed:
        return None
    if not any(type(record) is records.TurnStarted for record in evidence.stored):
        return None
    try:
        return fold(evidence.stored).messages
    except RecordError:  # that is C2's
        return None


def _stored_step(evidence: Evidence) -> OpenStep | None:
    """The step that the session's newest turn is suspended with."""
    turn = fold(evidence.stored or ()).turn
    return turn.open_step if turn is not None and turn.is_suspended else None


def _is_result_of(result: v.ToolResult, value: object, max_bytes: int | None) -> bool:
    """Whether a result is what becomes of a returned value."""
    if type(value) in _READ_ONCE or hasattr(value, "__next__"):
        return result.status in (v.CallStatus.OK, v.CallStatus.ERROR)
    expected = result_from_value(value, call_id=result.call_id, name=result.name, duration=None)
    if max_bytes is not None:
        expected = cap_result(expected, max_bytes)
    return (result.content, result.structured_content, result.is_error) == (
        expected.content,
        expected.structured_content,
        expected.is_error,
    )


_READ_ONCE: Final = (types.GeneratorType, types.CoroutineType)
