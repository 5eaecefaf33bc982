"""How a turn ends, and how it goes on: interrupt, finish, resumed, and the replay of an end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import trio_runner._core.values as v
from trio_runner._core.errors import NothingToResumeError
from trio_runner._core.history import History
from trio_runner._core.reconcile import HistoryRollbackStatus
from trio_runner._core.turn import CallModel, Finished, Phase, RunTools, Turn
from trio_runner._core.validity import check_history

Stop = v.StopReason
End = v.EndReason
Status = v.CallStatus
Rollback = HistoryRollbackStatus

INPUT = v.Message.user("question")
ANSWER = v.Message.assistant("answer")
NOTE = v.Message.user("a note")


def asks(*ids: str, stop: Stop = Stop.TOOL_USE) -> v.Message:
    return v.Message.assistant(tool_calls=[v.ToolCall(i, "tool") for i in ids], stop_reason=stop)


def says(stop: Stop) -> v.Message:
    return v.Message.assistant("text", stop_reason=stop)


def ok(call_id: str) -> v.ToolResult:
    return v.ToolResult(call_id, "tool", f"result of {call_id}")


def new_turn(history: History | None = None) -> Turn:
    turn = Turn(History() if history is None else history, 1)
    turn.input_added([INPUT])
    return turn


def at_tools(*ids: str) -> Turn:
    turn = new_turn()
    turn.model_replied(asks(*ids), 199)
    return turn


def run_step(turn: Turn, *ids: str, cap: int = 199) -> None:
    """One whole step with calls that all succeed."""
    turn.model_replied(asks(*ids), cap)
    for position, call_id in enumerate(ids):
        turn.tool_started(position)
        turn.tool_finished(position, ok(call_id))
    turn.step_done()


def ended(reason: End) -> Turn:
    """A turn of one input that was interrupted with ``reason``."""
    turn = new_turn()
    turn.interrupt(reason)
    return turn


def statuses(turn: Turn) -> list[Status]:
    return [result.status for result in turn.messages[-1].tool_results]


def state(turn: Turn) -> object:
    """Everything that an event may change."""
    return (
        turn.phase,
        turn.iteration,
        turn.replies,
        turn.end_reason,
        turn.rollback,
        turn.next_action(),
        turn.reply,
        turn.open_positions,
        turn.started_positions,
        turn.messages,
        turn.history.snapshot(),
        turn.usage,
    )


def _decided() -> Turn:
    turn = new_turn()
    turn.model_replied(ANSWER, 5)
    return turn


def _closed_step() -> Turn:
    turn = at_tools("a")
    turn.tool_finished(0, ok("a"))
    return turn


def _half() -> Turn:
    turn = at_tools("a", "b")
    turn.tool_finished(0, ok("a"))
    return turn


# --- interrupt ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "started"),
    [
        (End.INTERRUPTED, Status.INTERRUPTED),
        (End.FAILED, Status.INTERRUPTED),
        (End.TIMED_OUT, Status.TIMED_OUT),
    ],
)
def test_interrupt_answers_the_open_calls_truthfully_and_keeps_what_finished(
    reason: End, started: Status
) -> None:
    turn = at_tools("done", "running", "waiting")
    turn.tool_started(0)
    turn.tool_started(1)
    turn.tool_finished(0, ok("done"))

    made = turn.interrupt(reason)

    assert [(result.call_id, result.status) for result in made] == [
        ("running", started),
        ("waiting", Status.NOT_STARTED),
    ]
    assert turn.messages[-1].tool_results == (ok("done"), *made)
    assert (turn.phase, turn.end_reason, turn.next_action()) == (
        Phase.ENDED,
        reason,
        Finished(reason),
    )


def test_a_crash_answers_what_may_have_started_unknown() -> None:
    turn = at_tools("running", "waiting")
    turn.tool_started(0)
    turn.interrupt(End.INTERRUPTED, crashed=True)
    assert statuses(turn) == [Status.UNKNOWN_AFTER_CRASH, Status.NOT_STARTED]


def test_a_second_interrupt_changes_nothing() -> None:
    turn = at_tools("a")
    turn.interrupt(End.INTERRUPTED)
    before = state(turn)
    assert turn.interrupt(End.FAILED) == ()
    assert turn.interrupt(End.TIMED_OUT, crashed=True) == ()
    assert state(turn) == before


@pytest.mark.parametrize("reason", [End.INTERRUPTED, End.TIMED_OUT])
def test_a_decided_turn_ends_as_decided_when_it_is_cancelled(reason: End) -> None:
    turn = _decided()
    assert turn.interrupt(reason) == ()
    assert turn.end_reason is End.ANSWERED


def test_a_failure_overrules_what_was_decided_but_not_what_has_ended() -> None:
    failed = _decided()
    failed.interrupt(End.FAILED)
    answered = _decided()
    answered.finish()
    answered.interrupt(End.FAILED)
    assert (failed.end_reason, answered.end_reason) == (End.FAILED, End.ANSWERED)


def test_deciding_is_not_ending() -> None:
    turn = _decided()
    assert (turn.end_reason, turn.rollback) == (None, None)
    assert turn.phase is not Phase.ENDED
    assert turn.finish() is turn.finish() is End.ANSWERED
    assert turn.phase is Phase.ENDED


@pytest.mark.parametrize(
    ("make", "status", "added"),
    [
        (new_turn, Rollback.HISTORY_UNCHANGED, 0),
        (lambda: Turn(History(), 1), Rollback.HISTORY_EMPTY, 0),
        (lambda: at_tools("a", "b"), Rollback.APPENDED_INTERRUPTED_TOOL_RESULT, 2),
        (_half, Rollback.APPENDED_PARTIAL_TOOL_RESULT, 2),
        (_closed_step, Rollback.APPENDED_COMPLETED_TOOL_RESULT, 0),
        (_decided, Rollback.HISTORY_UNCHANGED, 0),
    ],
)
def test_rollback_says_what_the_end_did_to_the_history(
    make: Callable[[], Turn], status: HistoryRollbackStatus, added: int
) -> None:
    turn = make()
    before = len(turn.history)
    turn.interrupt(End.INTERRUPTED)
    assert turn.rollback is not None
    assert (turn.rollback.status, turn.rollback.messages_before, turn.rollback.messages_after) == (
        status,
        before,
        before + added,
    )


# --- resumed --------------------------------------------------------------------


@pytest.mark.parametrize("reason", [End.INTERRUPTED, End.TIMED_OUT, End.FAILED])
def test_a_turn_without_an_answer_goes_on_with_its_messages(reason: End) -> None:
    turn = at_tools("a")
    turn.interrupt(reason)
    before = turn.messages
    turn.resumed()
    assert (turn.next_action(), turn.end_reason, turn.messages) == (CallModel(), None, before)
    turn.model_replied(ANSWER, 5)
    assert turn.finish() is End.ANSWERED
    check_history(turn.history.view())


def test_resuming_a_turn_that_a_crash_cut_leaves_its_open_step_open() -> None:
    turn = at_tools("a")
    turn.resumed()
    assert (turn.next_action(), turn.open_positions) == (RunTools(), [0])


def _interrupted_in_a_batch(turn: Turn) -> None:
    turn.model_replied(asks(f"i{turn.replies}"), 2)
    turn.tool_started(0)
    turn.interrupt(End.INTERRUPTED)


def _failed_after_a_batch(turn: Turn) -> None:
    call_id = f"f{turn.replies}"
    turn.model_replied(asks(call_id), 2)
    turn.tool_finished(0, ok(call_id))
    turn.interrupt(End.FAILED)


def _failed_in_the_model_call_after_a_batch(turn: Turn) -> None:
    run_step(turn, f"m{turn.replies}", cap=2)
    turn.interrupt(End.FAILED)


@pytest.mark.parametrize(
    "cut", [_interrupted_in_a_batch, _failed_after_a_batch, _failed_in_the_model_call_after_a_batch]
)
def test_a_cut_step_counts_once_so_resuming_does_not_stretch_the_cap(
    cut: Callable[[Turn], None],
) -> None:
    turn = new_turn()
    for expected in (1, 2):
        cut(turn)
        turn.resumed()
        assert turn.iteration == expected
    (made,) = turn.model_replied(asks("over"), 2)
    assert made.status is Status.LIMIT_REACHED


def test_an_interrupt_before_any_reply_counts_nothing() -> None:
    turn = ended(End.FAILED)
    turn.resumed()
    turn.interrupt(End.FAILED)
    turn.resumed()
    assert turn.iteration == 0


def test_resuming_at_the_cap_grants_the_iterations_anew() -> None:
    turn = new_turn()
    run_step(turn, "a", cap=1)
    turn.model_replied(asks("b"), 1)
    assert turn.finish() is End.MAX_ITERATIONS
    turn.resumed()
    assert (turn.next_action(), turn.iteration) == (CallModel(), 0)
    run_step(turn, "c", cap=1)
    assert turn.iteration == 1


@pytest.mark.parametrize("stop", [Stop.PAUSE, Stop.CONTINUE_])
def test_a_turn_that_ended_on_a_pause_can_be_resumed(stop: Stop) -> None:
    turn = new_turn()
    turn.model_replied(says(stop), 0)
    turn.finish()
    turn.resumed()
    assert turn.next_action() == CallModel()


def _replied_and_ended(stop: Stop) -> Turn:
    turn = new_turn()
    turn.model_replied(says(stop), 5)
    turn.finish()
    return turn


def _failed_hook_after_the_answer() -> Turn:
    turn = _decided()
    turn.interrupt(End.FAILED)
    return turn


def _nothing_to_send() -> Turn:
    turn = Turn(History(), 1)
    turn.interrupt(End.INTERRUPTED)
    return turn


@pytest.mark.parametrize(
    "make",
    [
        lambda: _replied_and_ended(Stop.END_TURN),
        lambda: _replied_and_ended(Stop.MAX_TOKENS),
        lambda: _replied_and_ended(Stop.SAFETY),
        lambda: _replied_and_ended(Stop.ERROR),
        _failed_hook_after_the_answer,
        _nothing_to_send,
    ],
)
def test_a_turn_of_which_no_answer_can_come_is_not_resumed_and_stays_as_it_is(
    make: Callable[[], Turn],
) -> None:
    turn = make()
    before = state(turn)
    with pytest.raises(NothingToResumeError, match=r"turn 1 ended .* Start a new turn"):
        turn.resumed()
    assert state(turn) == before


# --- replaying ------------------------------------------------------------------


@pytest.mark.parametrize("started", [True, False])
def test_a_tool_that_says_limit_reached_itself_does_not_end_the_turn(started: bool) -> None:
    turn = at_tools("a")
    if started:
        turn.tool_started(0)
    turn.tool_finished(0, v.ToolResult("a", "tool", "quota", status=Status.LIMIT_REACHED))
    assert turn.next_action() == RunTools()
