"""Words on calls that wait for one: what they do to the turn, and to its records.

What may live here: changes of the machine with the records that go with them, and
what is refused. Asking, while a batch runs, is ``guarded.py``; the rules are
``_core/approval.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.recovery as recovery
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.approval import (
    Approve,
    Defer,
    Deny,
    PendingCall,
    decision_problems,
    edit_problem,
    pending_calls,
)
from trio_runner._core.convert import cap_result, result_from_value
from trio_runner._core.errors import DecisionError, TurnSuspendedError
from trio_runner._core.json_data import copy_json
from trio_runner._core.open_step import OpenStep
from trio_runner._core.turn import Turn
from trio_runner._shell.notices import Notices

# --- facts ----------------------------------------------------------------------


def hold(turn: Turn, position: int, waits_for: r.WaitsFor) -> Iterable[r.Record]:
    """An open call waits for a word; the records to add, () when it did already."""
    step = turn.open_step
    assert step is not None
    if position in step.held:
        return ()
    call = step.reply.tool_calls[position]
    digest = r.arguments_hash(step.arguments(position))
    turn.call_held(position, waits_for, digest)
    return (r.CallHeld(turn.number, turn.step, call.id, waits_for, digest),)


def approve(turn: Turn, position: int, word: Approve) -> Iterable[r.Record]:
    """An open call may run, with the arguments of the word where it has any; the records."""
    step = turn.open_step
    assert step is not None
    number, index, call = turn.number, turn.step, step.reply.tool_calls[position]
    records: list[r.Record] = []
    edited = word.arguments
    # By the hash, since 0 == False == 0.0 in Python, and not for a tool.
    before = r.arguments_hash(step.arguments(position))
    if edited is not None and r.arguments_hash(edited) != before:
        turn.arguments_edited(position, edited)
        records.append(r.CallEdited(number, index, call.id, edited))
    digest = r.arguments_hash(step.arguments(position))
    turn.call_approved(position, digest)
    records.append(r.CallApproved(number, index, call.id, digest))
    return records


def words_on(turn: Turn, step: OpenStep) -> Iterable[r.Record]:
    """Records of what was said so far of the open calls of ``step``, for another session."""
    number, index = turn.number, turn.step
    for position in turn.open_positions:
        call_id, edited = step.reply.tool_calls[position].id, step.edits.get(position)
        if edited is not None:
            yield r.CallEdited(number, index, call_id, edited)
        digest = r.arguments_hash(step.arguments(position))
        if position in step.held:
            yield r.CallHeld(number, index, call_id, step.held[position], digest)
        if position in step.approved:
            yield r.CallApproved(number, index, call_id, digest)


# --- suspended turns ------------------------------------------------------------


def require_not_suspended(turn: Turn | None, what: str) -> None:
    """Refuse ``what`` while ``turn`` is suspended.

    Raises:
      TurnSuspendedError: it is; nothing was changed.
    """
    if turn is not None and turn.is_suspended:
        ids = [each.call_id for each in pending_calls(turn)]
        raise TurnSuspendedError(
            f"cannot {what}: turn {turn.number} is suspended and waits for a word on "
            f"{', '.join(map(repr, ids))}. Go on with agent.resume(decisions={{...}}), or give "
            "its calls up with agent.deny_pending()",
            ids,
        )


def check_decisions(turn: Turn, decisions: Mapping[str, object], *, can_ask: bool) -> None:
    """Refuse decisions that cannot be carried out on ``turn``, and a resume that changes nothing.

    Args:
      can_ask: there is an approver, which may be asked about the rest.

    Raises:
      DecisionError: a decision does not fit; nothing was changed.
      TurnSuspendedError: the turn is suspended, nothing is decided, and nobody can be asked.
    """
    pending = pending_calls(turn)
    require_pending(pending, decisions)
    problems = decision_problems(pending, decisions)
    step = turn.open_step
    if step is not None and not problems:
        tried = [edit_problem(step, step.positions[i], word) for i, word in decisions.items()]
        problems += filter(None, tried)
    if problems:
        raise DecisionError(problems)
    decided = any(type(word) is not Defer for word in decisions.values())
    asks = can_ask and any(each.waits_for == "approval" for each in pending)
    if not decided and not asks:
        require_not_suspended(turn, "go on with nothing decided")


def require_pending(pending: Sequence[PendingCall], decisions: Mapping[str, object]) -> None:
    """Refuse decisions where no call waits for one.

    Raises:
      DecisionError: there are some; nothing was changed.
    """
    if decisions and not pending:
        given = ", ".join(map(repr, decisions))
        raise DecisionError([f"the turn waits for no decision, and got some on {given}"])


def answered_by(decisions: Mapping[str, object]) -> frozenset[str]:
    """The ids of the calls that `carry_out` answers: refused ones, and those with a result."""
    return frozenset(
        call_id for call_id, word in decisions.items() if type(word) not in (Approve, Defer)
    )


def carry_out(turn: Turn, decisions: Mapping[str, object], max_result_bytes: int) -> list[r.Record]:
    """Do to ``turn`` what `check_decisions` let pass; returns what to record."""
    step, number, index = turn.open_step, turn.number, turn.step
    records: list[r.Record] = []
    for pending in pending_calls(turn):
        assert step is not None
        word, position = decisions.get(pending.call_id, Defer()), step.positions[pending.call_id]
        call = step.reply.tool_calls[position]
        match word:
            case Defer():
                continue
            case Approve():
                records += approve(turn, position, word)
                continue
            case Deny(reason=reason):
                result = denied(turn, position, reason)
            case _:
                result = cap_result(
                    result_from_value(word, call_id=call.id, name=call.name, duration=None),
                    max_result_bytes,
                )
        turn.tool_finished(position, result)
        records.append(r.ToolFinished(number, index, result))
    return records


def tell_decided(
    notices: Notices, step: int, decisions: Mapping[str, object], records: Iterable[r.Record]
) -> None:
    """Tell the observers what `carry_out` did."""
    for call_id, word in decisions.items():
        match word:
            case Approve(arguments=arguments):
                notices.tell(ev.ApprovalDecided, step, call_id, "approved", copy_json(arguments))
            case Deny(reason=reason):
                notices.tell(ev.ApprovalDecided, step, call_id, "denied", None, reason)
            case _:
                pass  # undecided, or a result
    for record in records:
        match record:
            case r.ToolFinished(result=result):
                notices.tell(ev.CallFinished, step, result)
            case _:
                pass


def denied(turn: Turn, position: int, reason: str) -> v.ToolResult:
    """The answer to an open call that is refused; a crash may have cut it."""
    step = turn.open_step
    assert step is not None
    result = stand_ins.denied(step.reply.tool_calls[position], reason)
    return recovery.without_running(turn, position, result, f"that was denied: {reason}")


def deny_all(turn: Turn, reason: str) -> tuple[list[v.ToolResult], list[r.Record]]:
    """Give a suspended turn up: its open calls are denied, and it ends ``interrupted``."""
    turn.resumed()
    number, index = turn.number, turn.step
    results = [denied(turn, position, reason) for position in turn.open_positions]
    for position, result in zip(turn.open_positions, results, strict=True):
        turn.tool_finished(position, result)
    turn.interrupt(v.EndReason.INTERRUPTED)
    finished = [r.ToolFinished(number, index, result) for result in results]
    ended = r.TurnEnded(number, v.EndReason.INTERRUPTED)
    return results, [r.TurnStarted(number, (), resumed=True), *finished, ended]
