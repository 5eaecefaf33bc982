"""Any legal order of events keeps the turn machine's promises, and replays to the same state.

Beside each event the records are written that the runner writes; `fold` of them must give what
the machine has, after every single event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
import trio_runner.testing.strategies as strategies
from trio_runner._core.errors import ModelReplyError, NothingToResumeError, TurnEndedError
from trio_runner._core.fold import fold
from trio_runner._core.history import History
from trio_runner._core.normalise import normalise_reply
from trio_runner._core.turn import CallModel, Finished, Phase, RunTools, Turn
from trio_runner._core.validity import check_history, history_problems

Status = v.CallStatus

#: What a call that was never entered may be answered with while its turn goes on.
REFUSALS = (
    Status.DENIED,
    Status.INVALID_ARGUMENTS,
    Status.UNAVAILABLE,
    Status.NOT_STARTED,
)
PAUSES = (v.StopReason.PAUSE, v.StopReason.CONTINUE_)

# Contents are simple: what a machine does depends on none, and small draws make long runs.
notes = st.lists(
    st.builds(v.Message, st.sampled_from(("user", "assistant")), st.just("note")),
    min_size=1,
    max_size=2,
)
asking = st.integers(1, 3).map(
    lambda count: v.Message.assistant(
        tool_calls=[v.ToolCall(f"t{number}", "tool") for number in range(count)]
    )
)
#: A suspension is no interrupt: it keeps the step open (``test_turn_machine_exhaustive.py``).
INTERRUPTS = [reason for reason in v.EndReason if reason is not v.EndReason.SUSPENDED]
paused = st.sampled_from(PAUSES).map(lambda stop: v.Message.assistant("wait", stop_reason=stop))
# Most replies ask for tools, so that turns get long.
raw_replies = st.one_of(asking, asking, asking, paused, strategies.replies())
some_histories = st.sampled_from(
    (
        (),
        (v.Message.user("summary", template=True), v.Message.user("more")),
        (v.Message.user("summary"), v.Message.assistant("understood")),
        (
            v.Message.assistant(tool_calls=[v.ToolCall("t1", "tool"), v.ToolCall("h", "tool")]),
            v.Message.user(
                tool_results=[v.ToolResult("t1", "tool", "x"), v.ToolResult("h", "tool", "y")]
            ),
        ),
    )
)
results = st.builds(
    v.ToolResult,
    st.just("c"),
    st.just("tool"),
    st.sampled_from(("result", "another")),
    st.none(),
    st.sampled_from(v.CallStatus),
)


def results_in(messages: Sequence[v.Message]) -> Iterator[v.ToolResult]:
    for message in messages:
        yield from message.tool_results


class AnyOrderOfEvents(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.records: list[r.Record] = [r.SessionOpened("agent")]
        self.live: Turn | None = None
        self.number = 0
        self.cap = 0
        #: What was reported and must still be in the history: what was not replaced since.
        self.in_history: dict[str, v.ToolResult] = {}
        #: What was reported in this turn.
        self.in_turn: dict[str, v.ToolResult] = {}
        #: What was reported of the open step, by position.
        self.in_step: dict[int, v.ToolResult] = {}
        #: What was added: since the history was replaced, and in this turn.
        self.said_in_history: list[v.Message] = []
        self.said_in_turn: list[v.Message] = []
        #: Calls of the open step whose start was recorded since the process began.
        self.begun: set[str] = set()
        #: Of those that a crash cut: how often each was recorded to start.
        self.attempts: dict[str, int] = {}
        #: Steps that went on, and replies, since the cap was granted.
        self.opened = 0
        self.replies = 0
        self.was_resumed = False
        #: Events that are legal everywhere are rationed, else there would be little else.
        self.rations = 3

    # --- questions --------------------------------------------------------------

    @property
    def turn(self) -> Turn:
        assert self.live is not None
        return self.live

    @property
    def reply(self) -> v.Message:
        assert self.turn.reply is not None
        return self.turn.reply

    def is_idle(self) -> bool:
        return self.live is None or self.live.phase is Phase.ENDED

    def is_running(self) -> bool:
        return not self.is_idle()

    def is_ended(self) -> bool:
        return self.live is not None and self.is_idle()

    def may_be_replaced(self) -> bool:
        return self.rations > 0

    def may_be_disturbed(self) -> bool:
        return self.live is not None and self.rations > 0

    def may_be_stopped(self) -> bool:
        return self.is_running() and self.rations > 0

    def is_at_a_good_moment(self) -> bool:
        # While a step is open it matters most, so there it is not rationed.
        return self.has_open_step() or self.may_be_stopped()

    def asks_model(self) -> bool:
        return self.is_running() and self.turn.next_action() == CallModel()

    def has_open_step(self) -> bool:
        return self.live is not None and self.live.reply is not None

    def has_closed_step(self) -> bool:
        return self.is_running() and self.turn.next_action() == RunTools() and not self.turn.reply

    def is_decided(self) -> bool:
        return self.is_running() and type(self.turn.next_action()) is Finished

    # --- events -----------------------------------------------------------------

    @precondition(is_idle)
    @rule(messages=notes, cap=st.integers(0, 3), rations=st.integers(0, 3))
    def turn_starts(self, messages: list[v.Message], cap: int, rations: int) -> None:
        self.number += 1
        self.cap = cap
        self.live = Turn(self.history, self.number)
        self.live.input_added(messages)
        self.records.append(r.TurnStarted(self.number, tuple(messages)))
        self.in_turn.clear()
        self.said_in_turn = list(messages)
        self.said_in_history += messages
        self.opened = self.replies = 0
        self.was_resumed = False
        self.rations = rations

    @precondition(asks_model)
    @rule(raw=raw_replies)
    def model_replies(self, raw: v.Message) -> None:
        try:
            reply = normalise_reply(raw, self.history.ids)
        except ModelReplyError:
            return
        step = self.turn.replies
        cap = self.cap if self.turn.iteration >= self.cap else None
        made = self.turn.model_replied(reply, self.cap)
        self.records.append(r.ModelFinished(self.number, step, reply, cap))
        for result in made:
            self.records.append(r.ToolFinished(self.number, step, result))
            self.in_history[result.call_id] = self.in_turn[result.call_id] = result
        self.replies += 1
        self.opened += self.turn.next_action() == RunTools()

    @precondition(asks_model)
    @rule(raw=asking, result=results)
    def a_whole_step_runs(self, raw: v.Message, result: v.ToolResult) -> None:
        self.model_replies(raw)
        if self.has_open_step():
            self.all_open_calls_run(result)
            self.step_is_done()

    @precondition(has_open_step)
    @rule(data=st.data())
    def start_is_recorded_before_the_tool_is_entered(self, data: st.DataObject) -> None:
        self._begin(data.draw(st.sampled_from(self.turn.open_positions)))

    @precondition(has_open_step)
    @rule(data=st.data())
    def tool_starts(self, data: st.DataObject) -> None:
        self._enter(data.draw(st.sampled_from(self.turn.open_positions)))

    def _begin(self, position: int) -> None:
        call = self.reply.tool_calls[position]
        if call.id not in self.begun:
            self.begun.add(call.id)
            attempt = self.attempts.get(call.id, 0) + 1
            step = self.turn.step
            self.records.append(
                r.ToolStarted(self.number, step, call.id, call.name, "", "", attempt=attempt)
            )

    def _enter(self, position: int) -> None:
        self._begin(position)
        step = self.turn.open_step
        assert step is not None
        if not self.turn.is_started(position) or step.is_cut(position):
            self.turn.tool_started(position)
        assert self.turn.is_started(position)
        assert not step.is_cut(position)
        assert step.attempts[position] == self.attempts.get(self._id(position), 0) + 1

    def _id(self, position: int) -> str:
        return self.reply.tool_calls[position].id

    @precondition(has_open_step)
    @rule(data=st.data(), result=results)
    def tool_finishes(self, data: st.DataObject, result: v.ToolResult) -> None:
        position = data.draw(st.sampled_from(self.turn.open_positions))
        call = self.reply.tool_calls[position]
        status = result.status
        if not self.turn.is_started(position):
            status = data.draw(st.sampled_from(REFUSALS))
        self._finish_call(position, v.ToolResult(call.id, call.name, result.content, None, status))

    def _finish_call(self, position: int, result: v.ToolResult) -> None:
        step = self.turn.step
        self.in_step[position] = result
        self.turn.tool_finished(position, result)
        self.records.append(r.ToolFinished(self.number, step, result))
        self._keep(result)

    def _keep(self, result: v.ToolResult) -> None:
        self.in_history[result.call_id] = self.in_turn[result.call_id] = result
        if not self.has_open_step():
            self.in_step.clear()
            self.begun.clear()
            self.attempts.clear()

    @precondition(has_open_step)
    @rule(result=results)
    def all_open_calls_run(self, result: v.ToolResult) -> None:
        for position in reversed(self.turn.open_positions):
            call = self.reply.tool_calls[position]
            self._enter(position)
            given = v.ToolResult(call.id, call.name, result.content, None, result.status)
            self._finish_call(position, given)

    @precondition(has_closed_step)
    @rule()
    def step_is_done(self) -> None:
        before = self.turn.iteration
        self.turn.step_done()
        assert self.turn.iteration == before + 1

    @precondition(is_at_a_good_moment)
    @rule(messages=notes)
    def input_is_added(self, messages: list[v.Message]) -> None:
        if not self.has_open_step():
            self.rations -= 1
        if self.is_decided():
            self._refused(messages)
            return
        self.turn.input_added(messages)
        self.said_in_turn += messages
        self.said_in_history += messages
        self.records.append(r.InputAdded(self.number, tuple(messages)))

    def _refused(self, messages: list[v.Message]) -> None:
        before = self.history.snapshot(), self.turn.messages
        try:
            self.turn.input_added(messages)
        except TurnEndedError:
            assert (self.history.snapshot(), self.turn.messages) == before
        else:
            raise AssertionError("a turn that has ended took messages")

    @precondition(may_be_replaced)
    @rule(messages=some_histories)
    def history_is_replaced(self, messages: tuple[v.Message, ...]) -> None:
        self.rations -= 1
        if self.has_open_step():
            answers = [stand_ins.unrecorded(call) for call in self.reply.tool_calls]
            closed = [*messages, self.reply, v.Message.user(tool_results=answers)]
            if history_problems(closed):
                return  # refused by `Conversation.replace_history`
        if self.live is None:
            self.history.replace(messages)
        else:
            self.live.history_replaced(messages)
        self.records.append(r.HistoryReplaced(messages))
        self.in_history = {result.call_id: result for result in self.in_step.values()}
        self.said_in_history = [] if self.live is None else list(self.live._queued)

    @precondition(is_decided)
    @rule()
    def turn_finishes(self) -> None:
        self.records.append(r.TurnEnded(self.number, self.turn.finish()))

    @precondition(is_at_a_good_moment)
    @rule(reason=st.sampled_from(INTERRUPTS), crashed=st.booleans())
    def turn_is_interrupted(self, reason: v.EndReason, crashed: bool) -> None:
        turn = self.turn
        expected = [(self.reply.tool_calls[i].id, turn.is_started(i)) for i in turn.open_positions]
        end, step = reason, turn.step
        if self.is_decided() and reason is not v.EndReason.FAILED:
            action = turn.next_action()
            assert type(action) is Finished
            end = action.end_reason
        self.rations -= 1
        made = turn.interrupt(reason, crashed=crashed)
        assert expected == [
            (result.call_id, result.status is not Status.NOT_STARTED) for result in made
        ]
        for result in made:
            self.records.append(r.ToolFinished(self.number, step, result))
            self._keep(result)
        assert turn.end_reason is end
        self.records.append(r.TurnEnded(self.number, end))
        # A second one does nothing, and no message is taken any more.
        before = self.history.snapshot(), self.turn.end_reason
        assert self.turn.interrupt(reason) == ()
        assert (self.history.snapshot(), self.turn.end_reason) == before
        self._refused([v.Message.user("too late")])

    @precondition(is_ended)
    @rule()
    def turn_is_resumed(self) -> None:
        before = self.history.snapshot(), self.turn.end_reason
        try:
            self.turn.resumed()
        except NothingToResumeError:
            assert (self.history.snapshot(), self.turn.end_reason) == before
            return
        self.records.append(r.TurnStarted(self.number, (), resumed=True))
        self.was_resumed = True
        if before[1] is v.EndReason.MAX_ITERATIONS:
            self.opened = 0

    @precondition(may_be_disturbed)
    @rule(heals=st.booleans(), runs_again=st.booleans())
    def process_dies_and_the_session_is_opened(self, heals: bool, runs_again: bool) -> None:
        self.rations -= 1
        state = fold(self.records)
        self.history, self.live = state.history, state.turn
        for call_id in self.begun:
            self.attempts[call_id] = self.attempts.get(call_id, 0) + 1
        self.begun.clear()
        if self.is_idle():
            return
        if heals:
            self.turn_is_interrupted(v.EndReason.INTERRUPTED, crashed=True)
            return
        self.turn.resumed()
        self.records.append(r.TurnStarted(self.number, (), resumed=True))
        self.was_resumed = True
        for position in self.turn.started_positions:
            call = self.reply.tool_calls[position]
            step = self.turn.open_step
            assert step is not None
            assert step.is_cut(position)
            assert step.attempts[position] == self.attempts[call.id]
            if not runs_again:
                self._finish_call(position, stand_ins.crashed(call, started=True))

    # --- what always holds ------------------------------------------------------

    @invariant()
    def histories_are_valid(self) -> None:
        check_history(self.history.view())
        if self.live is not None:
            check_history(self.live.messages)

    @invariant()
    def reported_results_are_kept(self) -> None:
        open_step = {result.call_id: result for result in self.in_step.values()}
        there = {result.call_id: result for result in results_in(self.history.snapshot())}
        for call_id, result in self.in_history.items():
            assert (open_step | there)[call_id] == result
        if self.live is None:
            return
        there = {result.call_id: result for result in results_in(self.live.messages)}
        for call_id, result in self.in_turn.items():
            assert (open_step | there)[call_id] == result

    @invariant()
    def added_messages_are_kept_once_and_in_their_order(self) -> None:
        queued = [] if self.live is None else self.live._queued
        for messages, said in (
            (self.history.snapshot(), self.said_in_history),
            (() if self.live is None else self.live.messages, self.said_in_turn),
        ):
            known = {id(message) for message in said}
            there = [message for message in (*messages, *queued) if id(message) in known]
            assert [id(message) for message in there] == [id(message) for message in said]
        # Queued for the open step only: else they are in the history.
        assert not queued or self.has_open_step()

    @invariant()
    def results_keep_their_positions(self) -> None:
        step = self.live._step if self.live is not None else None
        if step is None:
            assert not self.in_step
            return
        expected = [self.in_step.get(i) for i in range(len(step.reply.tool_calls))]
        assert step.results == expected
        assert step.missing == expected.count(None) > 0
        assert self.turn.open_positions == [i for i, each in enumerate(expected) if each is None]

    @invariant()
    def steps_are_bounded_by_the_cap(self) -> None:
        assert self.opened <= self.cap
        assert self.was_resumed or self.replies <= self.cap + 1

    @invariant()
    def the_action_fits_the_phase(self) -> None:
        if self.live is None:
            return
        action = self.live.next_action()
        ended = self.live.phase is Phase.ENDED
        assert (self.live.end_reason is not None) == ended
        if self.live.end_reason is not None:
            assert self.live.rollback is not None
            assert action == Finished(self.live.end_reason)
        elif action == CallModel():
            assert self.live.phase is Phase.AWAITING_MODEL
        elif action == RunTools():
            assert self.live.phase is Phase.AWAITING_TOOLS
        else:
            assert self.live.reply is None

    @invariant()
    def the_delta_is_the_tail_of_the_history(self) -> None:
        if self.live is not None:
            delta = tuple(self.live.delta)
            assert delta == self.history.snapshot()[len(self.history) - len(delta) :]
            # What the model said itself is never sent back to it as news.
            assert all(
                message.stop_reason is None or message in self.said_in_history for message in delta
            )

    @invariant()
    def the_records_fold_to_the_same_state(self) -> None:
        state = fold(self.records)
        assert state.history.view() == self.history.view()
        if self.live is None:
            assert state.turn is None
            return
        assert state.turn is not None
        assert_same_turn(state.turn, self.live, self.cap)


def assert_same_turn(folded: Turn, live: Turn, cap: int) -> None:
    assert folded.number == live.number
    assert folded.messages == live.messages
    assert (folded.replies, folded.usage) == (live.replies, live.usage)
    assert folded.end_reason == live.end_reason
    assert folded.history.ids == live.history.ids
    assert folded.reply == live.reply
    assert folded.open_positions == live.open_positions
    # A start is recorded before the tool is entered.
    assert set(folded.started_positions) >= set(live.started_positions)
    assert folded._queued == live._queued
    iteration = live.iteration
    if live.end_reason is None:
        expected = live.next_action()
        if expected == RunTools() and live.reply is None:
            expected = CallModel()
            iteration += 1
        assert folded.next_action() == expected
    # At the cap and beyond it all counts decide the same.
    assert min(folded.iteration + folded._uncounted, cap) == min(iteration + live._uncounted, cap)


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
