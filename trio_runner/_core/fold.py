"""What a session's records mean: `fold` feeds them to the machine that runs live.

Nothing is decided here that `turn.Turn` does not decide, so live running and
replay cannot drift apart. A list of records that the machine refuses is
damage: `RecordError` says at which record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import assert_never

import attrs

import trio_runner._core.records as r
import trio_runner._core.validity as validity
import trio_runner._core.values as v
from trio_runner._core.compaction import shorten
from trio_runner._core.errors import InternalError, JournalError, TrioRunnerError
from trio_runner._core.history import History
from trio_runner._core.session_usage import SessionUsage
from trio_runner._core.turn import Finished, Phase, Turn


class RecordError(JournalError):
    """The records of a session do not fit together.

    Attributes:
      index: the place of the first record that does not fit.
    """

    def __init__(self, index: int, record: r.Record, why: str) -> None:
        super().__init__(
            f"record {index} ({type(record).__name__}) does not fit what is before it: {why}"
        )
        self.index = index


@attrs.define
class SessionState:
    """A session as it opens.

    Attributes:
      history: the closed steps of all turns.
      turn: the newest turn; when its phase is not ENDED, a crash cut it, and its
        open step (if any) is kept in it and is not in ``history``.
      usage_before: what the turns before the newest took, and the summaries.
    """

    history: History = attrs.field(factory=History)
    turn: Turn | None = None
    usage_before: SessionUsage = attrs.field(factory=SessionUsage)

    @property
    def messages(self) -> tuple[v.Message, ...]:
        """The closed steps of all turns, as a tuple."""
        return self.history.snapshot()

    @property
    def turns(self) -> int:
        """How many turns there were."""
        return 0 if self.turn is None else self.turn.number

    @property
    def usage(self) -> SessionUsage:
        """What all turns took."""
        return self.usage_before.with_turn(self.turn)


def fold(records: Iterable[r.Record]) -> SessionState:
    """Replay ``records``.

    Raises:
      RecordError: they do not fit together.
    """
    state = SessionState()
    for index, record in enumerate(records):
        _apply_at(index, state, record)
    if state.turn is not None:
        _settle(state.turn)
    return state


def check_records(records: Iterable[r.Record]) -> SessionState:
    """Replay ``records`` as `fold` does, and check each message and result in them too.

    What agents write passes by itself; what was made by other means may hold messages
    that no history may hold.

    Raises:
      RecordError: they do not fit together, or a message or result is not valid.
    """
    state = SessionState()
    for index, record in enumerate(records):
        problem = next(_problems(state, record), None)
        if problem is not None:
            raise RecordError(index, record, problem)
        _apply_at(index, state, record)
    if state.turn is not None:
        _settle(state.turn)
    return state


def _problems(state: SessionState, record: r.Record) -> Iterator[str]:
    """What is wrong with the messages of ``record``, which comes next."""
    match record:
        case (
            r.TurnStarted(input=messages)
            | r.InputAdded(messages=messages)
            | r.AnswerRefused(messages=messages)
        ):
            yield from validity.input_problems(messages)
        case r.HistoryReplaced(messages=messages):
            yield from validity.history_problems(messages)
        case r.ModelFinished(message=message) | r.PassedThrough(message=message):
            yield from _reply_problems(state, message)
        case r.ToolFinished(result=result, attached=attached):
            yield from validity.result_problems(result)
            yield from validity.input_problems(attached)
        case r.Compacted(summary=summary):
            yield from validity.input_problems([summary])
        case r.CallHeld() | r.CallEdited() | r.CallApproved():
            pass
        case r.SessionOpened() | r.ToolStarted() | r.Trimmed() | r.TurnEnded():
            pass
        case _:
            assert_never(record)


def _reply_problems(state: SessionState, message: v.Message) -> Iterator[str]:
    yield from validity.message_problems(message)
    if message.role != "assistant" or message.template:
        yield f"a message of role {message.role!r} is no reply; expected one of the assistant"
    seen = set(state.history.ids)
    for call in message.tool_calls:
        if call.id in seen:
            yield f"the call id {call.id!r} is there already; expected ids that are unique"
        seen.add(call.id)


def full_history(records: Iterable[r.Record]) -> tuple[v.Message, ...]:
    """The conversation as it was before any compaction and trim: all messages, no summary.

    It is valid. It begins with what the history was last replaced by (a load, an
    edit, a clear), since that is not a shortening.

    Raises:
      RecordError: the records do not fit together.
    """
    state = SessionState()
    messages: list[v.Message] = []
    seen = 0
    for index, record in enumerate(records):
        _apply_at(index, state, record)
        match record:
            case r.Compacted() | r.Trimmed():
                pass
            case r.HistoryReplaced():
                messages = list(state.history.view())
            case _:
                messages += state.history.view(seen)
        seen = len(state.history)
    return tuple(messages)


def _apply_at(index: int, state: SessionState, record: r.Record) -> None:
    try:
        _apply(state, record)
    except TrioRunnerError as error:
        raise RecordError(index, record, str(error)) from error


def _apply(state: SessionState, record: r.Record) -> None:
    match record:
        case r.SessionOpened():
            pass
        case r.HistoryReplaced(messages=messages):
            if state.turn is not None:
                state.turn.history_replaced(messages)
            else:
                state.history.replace(messages)
        case r.Compacted() | r.Trimmed():
            shorten(state.history, record)
            state.usage_before = state.usage_before.with_shortening(record)
        case r.TurnStarted():
            _start(state, record)
        case _:
            _apply_to_turn(state, record)


def _apply_to_turn(state: SessionState, record: r.InTurn) -> None:
    turn = _running(state, record.turn)
    match record:
        case r.ModelFinished(message=message, cap=cap):
            _settle(turn)
            turn.model_replied(message, cap)
        case r.PassedThrough(message=message):
            _settle(turn)
            turn.passed_through(message)
        case r.ToolStarted(call_id=call_id):
            turn.tool_started(_position(turn, call_id), record)
        case r.ToolFinished(result=result, attached=attached):
            # What `model_replied` answers on arrival is recorded as well.
            if not _was_answered_on_arrival(turn, result):
                turn.tool_finished(_position(turn, result.call_id), result, attached)
        case r.CallHeld() | r.CallEdited() | r.CallApproved():
            _word(turn, record)
        case r.InputAdded(messages=messages):
            _input(turn, messages)
        case r.AnswerRefused(messages=messages):
            turn.answer_refused(messages)
        case r.TurnEnded(end_reason=v.EndReason.SUSPENDED):
            turn.suspend()
        case r.TurnEnded(end_reason=end_reason):
            turn.interrupt(end_reason)
        case _:
            assert_never(record)


def _start(state: SessionState, record: r.TurnStarted) -> None:
    turn = state.turn
    if record.resumed:
        if turn is None or turn.number != record.turn:
            raise InternalError(f"turn {record.turn} is resumed, the newest is {state.turns}")
        turn.resumed()
    else:
        if turn is not None and (turn.phase is not Phase.ENDED or turn.is_suspended):
            raise InternalError(f"turn {record.turn} starts while turn {turn.number} is running")
        state.usage_before = state.usage
        turn = state.turn = Turn(state.history, record.turn)
    _input(turn, record.input)


def _word(turn: Turn, record: r.CallHeld | r.CallEdited | r.CallApproved) -> None:
    position = _position(turn, record.call_id)
    match record:
        case r.CallHeld(waits_for=waits_for, arguments_hash=digest):
            turn.call_held(position, waits_for, digest)
        case r.CallEdited(arguments=arguments):
            turn.arguments_edited(position, arguments)
        case r.CallApproved(arguments_hash=digest):
            turn.call_approved(position, digest)
        case _:
            assert_never(record)


def _input(turn: Turn, messages: tuple[v.Message, ...]) -> None:
    if messages:
        turn.input_added(messages)


def _settle(turn: Turn) -> None:
    """A closed step goes on by itself: no record says so, since nothing depends on it."""
    if turn.phase is Phase.AWAITING_TOOLS and turn.reply is None:
        turn.step_done()


def _running(state: SessionState, number: int) -> Turn:
    turn = state.turn
    if turn is None or turn.number != number or turn.phase is Phase.ENDED:
        running = None if turn is None or turn.phase is Phase.ENDED else turn.number
        raise InternalError(f"it belongs to turn {number}; the running turn is {running}")
    return turn


def _was_answered_on_arrival(turn: Turn, result: v.ToolResult) -> bool:
    last = turn.history.last
    return (
        type(turn.next_action()) is Finished
        and last is not None
        and any(answer.call_id == result.call_id for answer in last.tool_results)
    )


def _position(turn: Turn, call_id: str) -> int:
    position = turn.position_of(call_id)
    if position is None:
        raise InternalError(f"no open call has the id {call_id!r}")
    return position
