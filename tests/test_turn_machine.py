"""The rules in the header of ``_core/turn.py``, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import trio_runner._core.values as v
from trio_runner._core.errors import InternalError, TurnEndedError
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


# --- the table of the header ----------------------------------------------------


def test_a_new_turn_asks_the_model() -> None:
    turn = new_turn()
    assert (turn.phase, turn.next_action(), turn.iteration) == (
        Phase.AWAITING_MODEL,
        CallModel(),
        0,
    )


@pytest.mark.parametrize(
    ("stop", "end", "status"),
    [
        (Stop.MAX_TOKENS, End.MAX_TOKENS, Status.OUTPUT_CUT),
        (Stop.SAFETY, End.SAFETY, Status.DENIED),
        (Stop.ERROR, End.FAILED, Status.DENIED),
        (Stop.TIMEOUT, End.FAILED, Status.DENIED),
        (Stop.CANCELLED, End.FAILED, Status.DENIED),
    ],
)
@pytest.mark.parametrize("cap", [0, 5])
def test_a_reply_that_was_stopped_has_its_calls_answered_on_arrival_and_decides_the_turn(
    stop: Stop, end: End, status: Status, cap: int
) -> None:
    turn = new_turn()
    reply = asks("a", "b", stop=stop)

    made = turn.model_replied(reply, cap)

    assert [(result.call_id, result.status) for result in made] == [("a", status), ("b", status)]
    assert turn.messages == (INPUT, reply, v.Message.user(tool_results=made))
    assert turn.next_action() == Finished(end)
    assert turn.finish() is end


@pytest.mark.parametrize(
    ("stop", "end"),
    [
        (Stop.END_TURN, End.ANSWERED),
        (Stop.STOP_SEQUENCE, End.ANSWERED),
        (None, End.ANSWERED),
        (Stop.MAX_TOKENS, End.MAX_TOKENS),
        (Stop.SAFETY, End.SAFETY),
        (Stop.ERROR, End.FAILED),
        (Stop.TIMEOUT, End.FAILED),
        (Stop.CANCELLED, End.FAILED),
    ],
)
@pytest.mark.parametrize("cap", [0, 5])
def test_a_reply_without_calls_that_does_not_go_on_decides_the_turn(
    stop: Stop | None, end: End, cap: int
) -> None:
    turn = new_turn()
    reply = v.Message("assistant", "text", stop_reason=stop)
    assert turn.model_replied(reply, cap) == ()
    assert turn.messages == (INPUT, reply)
    assert (turn.next_action(), turn.finish()) == (Finished(end), end)


def test_calls_below_the_cap_open_a_step() -> None:
    turn = new_turn()
    reply = asks("a", "b")
    assert turn.model_replied(reply, 1) == ()
    assert (turn.phase, turn.next_action()) == (Phase.AWAITING_TOOLS, RunTools())
    assert (turn.reply, turn.open_positions) == (reply, [0, 1])


def test_calls_at_the_cap_are_answered_limit_reached_before_anything_runs() -> None:
    turn = new_turn()
    made = turn.model_replied(asks("a", "b"), 0)
    assert [(result.call_id, result.status) for result in made] == [
        ("a", Status.LIMIT_REACHED),
        ("b", Status.LIMIT_REACHED),
    ]
    assert turn.messages[-1].tool_results == made
    assert (turn.reply, turn.next_action()) == (None, Finished(End.MAX_ITERATIONS))
    assert turn.finish() is End.MAX_ITERATIONS


@pytest.mark.parametrize("stop", [Stop.PAUSE, Stop.CONTINUE_])
def test_a_pause_below_the_cap_is_a_step_without_calls_and_counts(stop: Stop) -> None:
    turn = new_turn()
    reply = says(stop)
    assert turn.model_replied(reply, 1) == ()
    assert (turn.phase, turn.next_action(), turn.reply) == (
        Phase.AWAITING_TOOLS,
        RunTools(),
        None,
    )
    turn.step_done()
    assert (turn.next_action(), turn.iteration) == (CallModel(), 1)
    # Sent back unchanged, with nothing invented behind it.
    assert turn.messages == (INPUT, reply)
    assert list(turn.delta) == []


@pytest.mark.parametrize("stop", [Stop.PAUSE, Stop.CONTINUE_])
def test_a_pause_at_the_cap_ends_the_turn(stop: Stop) -> None:
    turn = new_turn()
    assert turn.model_replied(says(stop), 0) == ()
    assert turn.next_action() == Finished(End.MAX_ITERATIONS)


@pytest.mark.parametrize("cap", [0, 1, 2, 7])
@pytest.mark.parametrize("stop", [Stop.TOOL_USE, Stop.PAUSE])
def test_a_turn_makes_one_model_call_more_than_its_cap_and_as_many_batches(
    cap: int, stop: Stop
) -> None:
    turn = new_turn()
    calls = batches = 0
    while type(turn.next_action()) is not Finished:
        match turn.next_action():
            case CallModel():
                calls += 1
                turn.model_replied(asks(f"c{calls}") if stop is Stop.TOOL_USE else says(stop), cap)
            case _:
                batches += 1
                for position in turn.open_positions:
                    turn.tool_finished(position, ok(f"c{calls}"))
                turn.step_done()
    assert (calls, batches, turn.iteration) == (cap + 1, cap, cap)
    assert turn.finish() is End.MAX_ITERATIONS


# --- results --------------------------------------------------------------------


def test_the_history_gets_a_step_whole_when_its_last_result_is_there() -> None:
    turn = at_tools("a", "b")
    turn.tool_finished(1, ok("b"))
    assert turn.messages == turn.history.snapshot() == (INPUT,)
    turn.tool_finished(0, ok("a"))
    closed = v.Message.user(tool_results=[ok("a"), ok("b")])
    assert turn.messages == turn.history.snapshot() == (INPUT, asks("a", "b"), closed)
    # The step is through only when its hooks are.
    assert (turn.next_action(), turn.reply, turn.iteration) == (RunTools(), None, 0)
    turn.step_done()
    assert (turn.next_action(), turn.iteration) == (CallModel(), 1)


def test_results_are_stored_in_the_order_of_the_request() -> None:
    turn = at_tools("a", "b", "c")
    for position, call_id in [(2, "c"), (0, "a"), (1, "b")]:
        turn.tool_finished(position, ok(call_id))
    assert [result.call_id for result in turn.messages[-1].tool_results] == ["a", "b", "c"]


def test_open_started_and_position_tell_what_is_left() -> None:
    turn = at_tools("a", "b", "c")
    turn.tool_started(0)
    turn.tool_started(1)
    turn.tool_finished(0, ok("a"))
    assert (turn.open_positions, turn.started_positions) == ([1, 2], [1])
    assert [turn.is_open(i) for i in (0, 1, 2, 3, -1)] == [False, True, True, False, False]
    assert [turn.is_started(i) for i in range(3)] == [True, True, False]
    assert [turn.position_of(i) for i in ("a", "b", "c", "nobody")] == [None, 1, 2, None]


def test_without_an_open_step_nothing_is_open() -> None:
    turn = new_turn()
    assert (turn.open_positions, turn.started_positions) == ([], [])
    assert (turn.position_of("a"), turn.is_open(0), turn.is_started(0)) == (None, False, False)
    assert turn.step == 0


def test_usage_is_summed_over_the_replies_and_a_reply_may_have_none() -> None:
    turn = new_turn()
    turn.model_replied(
        v.Message.assistant(
            "x", stop_reason=Stop.PAUSE, usage=v.Usage(input_tokens=3, output_tokens=1)
        ),
        9,
    )
    turn.step_done()
    turn.model_replied(v.Message.assistant("y", stop_reason=Stop.PAUSE), 9)
    turn.step_done()
    turn.model_replied(
        v.Message.assistant("z", usage=v.Usage(input_tokens=4, cached_input_tokens=2)), 9
    )
    assert turn.usage == v.Usage(7, 1, 2)
    assert (turn.replies, turn.step) == (3, 2)


# --- messages added on the way --------------------------------------------------


def test_messages_added_while_a_step_is_open_go_behind_its_results_in_their_order() -> None:
    turn = at_tools("a")
    turn.input_added([NOTE])
    turn.input_added([v.Message.user("another")])
    assert turn.history.snapshot() == (INPUT,)
    turn.tool_finished(0, ok("a"))
    assert [message.text for message in turn.messages[-2:]] == ["a note", "another"]
    assert turn.messages[2].tool_results == (ok("a"),)
    assert turn.history.snapshot() == turn.messages


@pytest.mark.parametrize("pause", [False, True])
def test_messages_added_between_steps_are_there_at_once(pause: bool) -> None:
    turn = new_turn()
    if pause:
        turn.model_replied(says(Stop.PAUSE), 5)
    turn.input_added([NOTE])
    assert turn.messages[-1] == turn.history.last == NOTE
    assert turn.delta[-1] == NOTE


def test_messages_queued_at_an_interrupt_are_kept_behind_the_answers() -> None:
    turn = at_tools("a")
    turn.input_added([NOTE])
    turn.interrupt(End.INTERRUPTED)
    assert turn.messages[-1] == NOTE
    check_history(turn.history.view())


@pytest.mark.parametrize("finished", [False, True])
def test_a_decided_or_ended_turn_takes_no_message_and_says_why(finished: bool) -> None:
    turn = new_turn()
    turn.model_replied(ANSWER, 5)
    if finished:
        turn.finish()
    before = state(turn)
    with pytest.raises(TurnEndedError, match="answered") as caught:
        turn.input_added([NOTE])
    assert caught.value.end_reason is End.ANSWERED
    assert state(turn) == before


# --- illegal events -------------------------------------------------------------


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


ILLEGAL: list[tuple[str, Callable[[], Turn], Callable[[Turn], object]]] = [
    ("a reply while tools run", _half, lambda turn: turn.model_replied(ANSWER, 5)),
    ("a reply before step_done", _closed_step, lambda turn: turn.model_replied(ANSWER, 5)),
    ("a second answer", _decided, lambda turn: turn.model_replied(ANSWER, 5)),
    ("a reply after the end", lambda: ended(End.FAILED), lambda t: t.model_replied(ANSWER, 5)),
    (
        "tool_use without calls",
        new_turn,
        lambda turn: turn.model_replied(says(Stop.TOOL_USE), 5),
    ),
    (
        "calls next to end_turn",
        new_turn,
        lambda turn: turn.model_replied(asks("a", stop=Stop.END_TURN), 5),
    ),
    (
        "calls next to pause",
        new_turn,
        lambda turn: turn.model_replied(asks("a", stop=Stop.PAUSE), 5),
    ),
    ("a start without a step", new_turn, lambda turn: turn.tool_started(0)),
    ("a start of a finished call", _half, lambda turn: turn.tool_started(0)),
    ("a start behind the last call", _half, lambda turn: turn.tool_started(2)),
    ("a start before the first call", _half, lambda turn: turn.tool_started(-1)),
    ("a result without a step", new_turn, lambda turn: turn.tool_finished(0, ok("a"))),
    ("a result for a closed step", _closed_step, lambda turn: turn.tool_finished(0, ok("a"))),
    ("a second result", _half, lambda turn: turn.tool_finished(0, ok("a"))),
    ("a result of another call", _half, lambda turn: turn.tool_finished(1, ok("a"))),
    ("a result behind the last call", _half, lambda turn: turn.tool_finished(2, ok("c"))),
    ("a result before the first call", _half, lambda turn: turn.tool_finished(-1, ok("b"))),
    ("step_done with open calls", _half, lambda turn: turn.step_done()),
    ("step_done without a step", new_turn, lambda turn: turn.step_done()),
    ("finish of an undecided turn", new_turn, lambda turn: turn.finish()),
    ("finish while tools run", _half, lambda turn: turn.finish()),
]


@pytest.mark.parametrize(
    ("make", "event"), [row[1:] for row in ILLEGAL], ids=[row[0] for row in ILLEGAL]
)
def test_an_illegal_event_raises_and_changes_nothing(
    make: Callable[[], Turn], event: Callable[[Turn], object]
) -> None:
    turn = make()
    before = state(turn)
    with pytest.raises(InternalError, match=r"turn 1: event '.*' is not legal in phase"):
        event(turn)
    assert state(turn) == before


# --- what the model is sent -----------------------------------------------------


def test_the_delta_is_what_came_behind_the_last_reply() -> None:
    history = History([v.Message.user("old"), v.Message.assistant("older answer")])
    turn = new_turn(history)
    assert list(turn.delta) == [INPUT]
    run_step(turn, "a")
    turn.input_added([NOTE])
    assert list(turn.delta) == [v.Message.user(tool_results=[ok("a")]), NOTE]


def test_a_turn_that_keeps_no_history_sends_all_of_itself() -> None:
    template = v.Message.user("style", template=True)
    turn = Turn(History([template]), 1, sends_whole_turn=True)
    turn.input_added([INPUT])
    run_step(turn, "a")
    assert tuple(turn.delta) == turn.messages
    assert turn.history.snapshot() == (template, *turn.messages)


def test_a_turn_that_keeps_no_history_sends_what_its_history_was_replaced_by() -> None:
    templates = [v.Message.user(text, template=True) for text in ("one", "two")]
    turn = Turn(History(templates), 1, sends_whole_turn=True)
    turn.input_added([INPUT])
    turn.history_replaced([])
    assert len(turn.delta) == 0
    turn.history_replaced([templates[0], NOTE])
    assert list(turn.delta) == [NOTE]


# --- replacing the history ------------------------------------------------------


def test_an_open_step_goes_behind_a_replaced_history() -> None:
    turn = at_tools("a")
    turn.history_replaced([NOTE])
    assert turn.history.snapshot() == (NOTE,)
    turn.tool_finished(0, ok("a"))
    assert turn.history.snapshot() == (
        NOTE,
        asks("a"),
        v.Message.user(tool_results=[ok("a")]),
    )


def test_ids_of_the_turn_stay_used_when_the_history_has_lost_them() -> None:
    turn = new_turn()
    run_step(turn, "a")
    turn.history_replaced([NOTE])
    assert "a" in turn.history.ids
    turn.interrupt(End.INTERRUPTED)
    # After its end the history may be cleared, and the ids are free.
    turn.history_replaced([NOTE])
    assert set(turn.history.ids) == set()
    # But not for the turn itself.
    turn.resumed()
    assert "a" in turn.history.ids


def test_the_messages_of_the_turn_stay_its_own_when_the_history_is_replaced() -> None:
    turn = new_turn()
    run_step(turn, "a")
    before = turn.messages
    turn.history_replaced([NOTE])
    assert turn.messages == before


# --- media that calls attach ----------------------------------------------------


def test_what_calls_attach_goes_behind_all_results_in_the_order_of_the_request() -> None:
    turn = at_tools("a", "b")
    first, second, note = [v.Message.user(text) for text in ("of a", "of b", "note")]
    turn.input_added([note])
    turn.tool_finished(1, ok("b"), [second])
    before = len(turn.messages)
    turn.tool_finished(0, ok("a"), [first])

    results = v.Message.user(tool_results=[ok("a"), ok("b")])
    assert turn.messages[before + 1 :] == (results, first, second, note)


def test_what_a_finished_call_attached_survives_an_interrupt() -> None:
    turn = at_tools("a", "b")
    media = v.Message.user("of b")
    turn.tool_finished(1, ok("b"), [media])
    turn.interrupt(End.INTERRUPTED)

    assert turn.messages[-1] == media
