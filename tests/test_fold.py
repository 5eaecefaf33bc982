"""What a session's records mean, whole, cut at any record, and damaged."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.errors import InternalError, JournalError, NothingToResumeError
from trio_runner._core.fold import RecordError, SessionState, fold
from trio_runner._core.turn import CallModel, Finished, Phase, RunTools, Turn
from trio_runner._core.validity import check_history

End = v.EndReason
Stop = v.StopReason
Status = v.CallStatus

OPENED = r.SessionOpened("agent")
QUESTION = v.Message.user("question")
NOTE = v.Message.user("note")
ANSWER = v.Message.assistant("answer")


def call(call_id: str) -> v.ToolCall:
    return v.ToolCall(call_id, "tool")


def asks(*ids: str, stop: Stop = Stop.TOOL_USE) -> v.Message:
    return v.Message.assistant(tool_calls=[call(i) for i in ids], stop_reason=stop)


def ok(call_id: str) -> v.ToolResult:
    return v.ToolResult(call_id, "tool", f"result of {call_id}")


def starts(turn: int = 1, *messages: v.Message, resumed: bool = False) -> r.TurnStarted:
    given = messages or (() if resumed else (QUESTION,))
    return r.TurnStarted(turn, given, resumed)


def replied(
    message: v.Message, turn: int = 1, step: int = 0, *, cap: int | None = None
) -> r.ModelFinished:
    return r.ModelFinished(turn, step, message, cap)


def began(call_id: str, turn: int = 1, step: int = 0) -> r.ToolStarted:
    return r.ToolStarted(turn, step, call_id, "tool", "", f"{turn}:{step}:{call_id}")


def finished(result: v.ToolResult, turn: int = 1, step: int = 0) -> r.ToolFinished:
    return r.ToolFinished(turn, step, result)


def answers(*results: v.ToolResult) -> v.Message:
    return v.Message.user(tool_results=results)


def the_turn(state: SessionState) -> Turn:
    assert state.turn is not None
    return state.turn


def heal(state: SessionState) -> list[r.Record]:
    """End what a crash cut, as the next turn's start does; returns the records of it."""
    turn = state.turn
    if turn is None or turn.phase is Phase.ENDED:
        return []
    step = turn.step
    made = turn.interrupt(End.INTERRUPTED, crashed=True)
    assert turn.end_reason is not None
    records: list[r.Record] = [r.ToolFinished(turn.number, step, result) for result in made]
    return [*records, r.TurnEnded(turn.number, turn.end_reason)]


# --- one session that has everything --------------------------------------------

CUT = asks("e", "f", stop=Stop.MAX_TOKENS)
CUT_RESULTS = [stand_ins.output_cut(each) for each in CUT.tool_calls]
OVER = asks("g", "h")
OVER_RESULTS = [stand_ins.limit_reached(each, 0) for each in OVER.tool_calls]
STOPPED = stand_ins.stopped(call("j"), End.INTERRUPTED, started=True)
PAUSED = v.Message.assistant("wait", stop_reason=Stop.PAUSE)
SUMMARY = v.Message.user("what was said so far")

REFERENCE: tuple[r.Record, ...] = (
    OPENED,
    # Two steps, results out of order, a note within and between, a pause.
    starts(1),
    replied(asks("a", "b")),
    began("a"),
    began("b"),
    finished(ok("b")),
    r.InputAdded(1, (NOTE,)),
    finished(ok("a")),
    r.InputAdded(1, (v.Message.user("between"),)),
    replied(asks("c"), 1, 1),
    began("c", 1, 1),
    finished(ok("c"), 1, 1),
    replied(PAUSED, 1, 2),
    replied(ANSWER, 1, 3),
    r.TurnEnded(1, End.ANSWERED),
    # The output was cut: the results are recorded although the machine makes them too.
    starts(2),
    replied(CUT, 2),
    *[finished(each, 2) for each in CUT_RESULTS],
    r.TurnEnded(2, End.MAX_TOKENS),
    r.HistoryReplaced((SUMMARY,)),
    # The cap, then the same turn goes on.
    starts(3),
    replied(OVER, 3, cap=0),
    *[finished(each, 3) for each in OVER_RESULTS],
    r.TurnEnded(3, End.MAX_ITERATIONS),
    starts(3, resumed=True),
    replied(ANSWER, 3, 1),
    r.TurnEnded(3, End.ANSWERED),
    # An interrupt within a batch, while the history is replaced.
    starts(4),
    replied(asks("i", "j"), 4),
    began("i", 4),
    began("j", 4),
    r.HistoryReplaced((SUMMARY, NOTE)),
    finished(ok("i"), 4),
    finished(STOPPED, 4),
    r.TurnEnded(4, End.INTERRUPTED),
)


def test_the_whole_session_means_what_was_said() -> None:
    state = fold(REFERENCE)
    assert state.history.snapshot() == (
        SUMMARY,
        NOTE,
        asks("i", "j"),
        answers(ok("i"), STOPPED),
    )
    assert (state.turns, the_turn(state).end_reason) == (4, End.INTERRUPTED)
    assert the_turn(state).messages == (QUESTION, asks("i", "j"), answers(ok("i"), STOPPED))


def test_the_first_turn_of_it_has_its_messages_in_order() -> None:
    state = fold(REFERENCE[:15])
    assert state.history.snapshot() == (
        QUESTION,
        asks("a", "b"),
        answers(ok("a"), ok("b")),
        NOTE,
        v.Message.user("between"),
        asks("c"),
        answers(ok("c")),
        PAUSED,
        ANSWER,
    )
    assert (the_turn(state).iteration, the_turn(state).end_reason) == (3, End.ANSWERED)


@pytest.mark.parametrize("count", range(len(REFERENCE) + 1))
def test_every_prefix_opens_valid_and_its_repair_opens_to_the_same(count: int) -> None:
    records = REFERENCE[:count]
    state = fold(records)
    check_history(state.history.view())

    repair = heal(state)

    check_history(state.history.view())
    again = fold([*records, *repair])
    assert again.history.view() == state.history.view()
    if state.turn is not None:
        assert the_turn(again).phase is Phase.ENDED
        assert the_turn(again).end_reason is state.turn.end_reason
        check_history(state.turn.messages)


@pytest.mark.parametrize("count", range(len(REFERENCE) + 1))
def test_no_prefix_loses_a_result_that_it_holds(count: int) -> None:
    replaced_at = max(
        [i for i in range(count) if type(REFERENCE[i]) is r.HistoryReplaced], default=0
    )
    recorded = [
        record.result for record in REFERENCE[replaced_at:count] if type(record) is r.ToolFinished
    ]
    state = fold(REFERENCE[:count])
    heal(state)
    there = [each for message in state.history.view() for each in message.tool_results]
    assert all(result in there for result in recorded)


@pytest.mark.parametrize("index", range(len(REFERENCE)))
@pytest.mark.parametrize("damage", ["lost", "twice", "swapped"])
def test_a_damaged_session_is_refused_or_valid_but_never_opens_broken(
    damage: str, index: int
) -> None:
    records = list(REFERENCE)
    match damage:
        case "lost":
            del records[index]
        case "twice":
            records.insert(index, records[index])
        case _:
            records[index - 1 : index + 1] = reversed(records[index - 1 : index + 1])
    refused_at = None
    try:
        state = fold(records)
    except RecordError as error:
        refused_at = error.index
    else:
        check_history(state.history.view())
        heal(state)
        check_history(state.history.view())
    # Nothing before the damage can be to blame.
    assert refused_at is None or refused_at >= index - 1


# --- what a crash may do to a call ----------------------------------------------


def test_no_records_are_an_empty_session_without_a_turn() -> None:
    for records in ([], [OPENED]):
        state = fold(records)
        assert (len(state.history), state.turn, state.turns) == (0, None, 0)


def test_a_started_turn_calls_the_model() -> None:
    state = fold([OPENED, starts()])
    assert the_turn(state).next_action() == CallModel()
    assert state.history.snapshot() == (QUESTION,)


def test_calls_that_never_started_are_there_to_be_run() -> None:
    state = fold([OPENED, starts(), replied(asks("a", "b"))])
    turn = the_turn(state)
    assert (turn.next_action(), turn.open_positions) == (RunTools(), [0, 1])
    assert turn.started_positions == []
    # The open step is kept aside.
    assert state.history.snapshot() == (QUESTION,)
    assert [each.status for each in turn.interrupt(End.INTERRUPTED, crashed=True)] == [
        Status.NOT_STARTED,
        Status.NOT_STARTED,
    ]


def test_a_call_that_started_and_did_not_finish_is_unknown_after_a_crash() -> None:
    state = fold([OPENED, starts(), replied(asks("a", "b")), began("b")])
    turn = the_turn(state)
    assert turn.started_positions == [1]
    assert [each.status for each in turn.interrupt(End.INTERRUPTED, crashed=True)] == [
        Status.NOT_STARTED,
        Status.UNKNOWN_AFTER_CRASH,
    ]


def test_what_finished_is_kept_and_only_the_rest_is_open() -> None:
    state = fold(
        [
            OPENED,
            starts(),
            replied(asks("a", "b", "c")),
            began("a"),
            began("b"),
            finished(ok("b")),
        ]
    )
    turn = the_turn(state)
    assert (turn.open_positions, turn.started_positions) == ([0, 2], [0])
    turn.interrupt(End.INTERRUPTED, crashed=True)
    kept = state.history.snapshot()[-1].tool_results
    assert [(each.call_id, each.status) for each in kept] == [
        ("a", Status.UNKNOWN_AFTER_CRASH),
        ("b", Status.OK),
        ("c", Status.NOT_STARTED),
    ]


def test_when_all_finished_the_model_is_next_and_the_step_counts() -> None:
    state = fold([OPENED, starts(), replied(asks("a")), began("a"), finished(ok("a"))])
    turn = the_turn(state)
    assert (turn.next_action(), turn.iteration) == (CallModel(), 1)
    assert list(turn.delta) == [answers(ok("a"))]


def test_a_pause_goes_back_to_the_model() -> None:
    turn = the_turn(fold([OPENED, starts(), replied(PAUSED)]))
    assert (turn.next_action(), turn.iteration) == (CallModel(), 1)


@pytest.mark.parametrize(
    ("records", "end"),
    [
        ([replied(ANSWER)], End.ANSWERED),
        ([replied(CUT)], End.MAX_TOKENS),
        ([replied(CUT), *[finished(each) for each in CUT_RESULTS]], End.MAX_TOKENS),
        ([replied(OVER, cap=0)], End.MAX_ITERATIONS),
        ([replied(OVER, cap=0), *[finished(each) for each in OVER_RESULTS]], End.MAX_ITERATIONS),
        ([replied(PAUSED, cap=0)], End.MAX_ITERATIONS),
    ],
)
def test_a_turn_that_was_decided_is_closed_without_another_model_call(
    records: Sequence[r.Record], end: End
) -> None:
    state = fold([OPENED, starts(), *records])
    turn = the_turn(state)
    assert turn.next_action() == Finished(end)
    # So does whoever heals it instead of resuming.
    assert heal(state) == [r.TurnEnded(1, end)]


def test_results_made_on_arrival_are_there_once_however_often_they_are_recorded() -> None:
    without = fold([OPENED, starts(), replied(CUT), r.TurnEnded(1, End.MAX_TOKENS)])
    with_them = fold(
        [
            OPENED,
            starts(),
            replied(CUT),
            *[finished(each) for each in CUT_RESULTS],
            r.TurnEnded(1, End.MAX_TOKENS),
        ]
    )
    assert without.history.view() == with_them.history.view()
    assert with_them.history.snapshot() == (QUESTION, CUT, answers(*CUT_RESULTS))


# --- ends and turns that go on --------------------------------------------------


@pytest.mark.parametrize("reason", [End.INTERRUPTED, End.TIMED_OUT, End.FAILED])
def test_an_ended_turn_is_resumed_by_its_record(reason: End) -> None:
    records = [OPENED, starts(), r.TurnEnded(1, reason)]
    assert the_turn(fold(records)).end_reason is reason
    turn = the_turn(fold([*records, starts(1, resumed=True)]))
    assert (turn.next_action(), turn.end_reason) == (CallModel(), None)


def test_a_failure_that_overruled_an_answer_stays_a_failure() -> None:
    turn = the_turn(fold([OPENED, starts(), replied(ANSWER), r.TurnEnded(1, End.FAILED)]))
    assert turn.end_reason is End.FAILED
    with pytest.raises(NothingToResumeError):
        turn.resumed()


def test_a_note_behind_a_closed_step_does_not_count_the_step_before_its_time() -> None:
    records = [
        OPENED,
        starts(),
        replied(asks("a")),
        finished(ok("a")),
        r.InputAdded(1, (NOTE,)),
        r.TurnEnded(1, End.FAILED),
    ]
    ended = the_turn(fold(records))
    resumed = the_turn(fold([*records, starts(1, resumed=True)]))
    assert (ended.iteration, resumed.iteration) == (0, 1)


def test_numbers_of_turns_may_have_gaps() -> None:
    # A turn that keeps no history has a number and no records.
    state = fold([OPENED, starts(1), r.TurnEnded(1, End.FAILED), starts(4)])
    assert (state.turns, the_turn(state).number) == (4, 4)


def test_a_history_may_be_replaced_before_the_first_turn() -> None:
    state = fold([OPENED, r.HistoryReplaced((SUMMARY,)), starts()])
    assert state.history.snapshot() == (SUMMARY, QUESTION)
    assert the_turn(state).messages == (QUESTION,)


# --- damage ---------------------------------------------------------------------

DAMAGED: list[tuple[str, list[r.Record]]] = [
    ("a reply before any turn", [OPENED, replied(ANSWER)]),
    ("a start before any turn", [OPENED, began("a")]),
    ("an end before any turn", [OPENED, r.TurnEnded(1, End.FAILED)]),
    ("a second turn while one runs", [OPENED, starts(1), starts(2)]),
    ("a reply of another turn", [OPENED, starts(1), replied(ANSWER, 2)]),
    ("an end of another turn", [OPENED, starts(1), r.TurnEnded(2, End.FAILED)]),
    ("a second end", [OPENED, starts(), r.TurnEnded(1, End.FAILED), r.TurnEnded(1, End.FAILED)]),
    (
        "a note after the end",
        [OPENED, starts(), r.TurnEnded(1, End.FAILED), r.InputAdded(1, (NOTE,))],
    ),
    ("a note behind an answer", [OPENED, starts(), replied(ANSWER), r.InputAdded(1, (NOTE,))]),
    ("a second answer", [OPENED, starts(), replied(ANSWER), replied(ANSWER, 1, 1)]),
    ("a reply while a call is open", [OPENED, starts(), replied(asks("a")), replied(ANSWER, 1, 1)]),
    ("tool_use without calls", [OPENED, starts(), replied(asks())]),
    ("a start of no open call", [OPENED, starts(), replied(asks("a")), began("b")]),
    ("a result of no open call", [OPENED, starts(), replied(asks("a")), finished(ok("b"))]),
    (
        "a start of a call that has finished",
        [OPENED, starts(), replied(asks("a", "b")), finished(ok("a")), began("a")],
    ),
    (
        "a second result in an open step",
        [OPENED, starts(), replied(asks("a", "b")), finished(ok("a")), finished(ok("a"))],
    ),
    (
        "a second result behind a closed step",
        [OPENED, starts(), replied(asks("a")), finished(ok("a")), finished(ok("a"))],
    ),
    (
        "a result of an older step behind an answer",
        [
            OPENED,
            starts(),
            replied(asks("a")),
            finished(ok("a")),
            replied(ANSWER, 1, 1),
            finished(ok("a")),
        ],
    ),
    ("a resumed turn that never was", [OPENED, starts(1, resumed=True)]),
    (
        "another turn resumed than the newest",
        [OPENED, starts(2), r.TurnEnded(2, End.FAILED), starts(1, resumed=True)],
    ),
    (
        "an answered turn resumed",
        [OPENED, starts(), replied(ANSWER), r.TurnEnded(1, End.ANSWERED), starts(1, resumed=True)],
    ),
]


@pytest.mark.parametrize("records", [row[1] for row in DAMAGED], ids=[row[0] for row in DAMAGED])
def test_a_record_that_does_not_fit_is_refused_with_its_place(records: list[r.Record]) -> None:
    last = len(records) - 1
    fold(records[:last])
    # What comes behind the damage does not matter.
    for rest in ([], [r.TurnEnded(9, End.FAILED), OPENED]):
        with pytest.raises(RecordError) as caught:
            fold([*records, *rest])
        error = caught.value
        assert error.index == last
        assert str(error).startswith(f"record {last} ({type(records[last]).__name__}) does not fit")
        assert isinstance(error, JournalError)


def test_the_error_keeps_what_the_machine_said() -> None:
    with pytest.raises(RecordError, match="no open call has the id 'b'") as caught:
        fold([OPENED, starts(), replied(asks("a")), began("b")])
    assert type(caught.value.__cause__) is InternalError
