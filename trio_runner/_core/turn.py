"""The turn machine: what is legal in a turn, and what its history is.

Rules
-----
1. Everything that decides how a turn goes on or ends is in this file; what a
   turn is, and can be asked, is in ``turn_state.py``. The two know no model,
   tool, clock, task or journal; they are told events.
2. An event either is legal and takes effect at once, whole, or raises
   `InternalError` and changes nothing. All of it is synchronous, so none of
   it can be cancelled half-way.
3. The history holds closed steps only: a reply that asks for tools enters it
   together with its results, when the last of them is there. It is valid
   (contract C2) after every event.
4. A result that came in is kept. `interrupt` answers the calls that are open,
   and no others.
5. Results are held by position. Whatever order they come in, they are stored
   in the order of the request.
6. The same machine runs live and replays a session (``fold.py``).

Theory of operation
-------------------
A turn is in one of three phases::

    phase            next_action()   events that move it on
    AWAITING_MODEL   CallModel       model_replied -> any phase below;
                                     passed_through -> ENDED
    AWAITING_TOOLS   RunTools        call_held, arguments_edited, call_approved,
                                     tool_started, tool_finished (per call);
                                     step_done -> AWAITING_MODEL;
                                     suspend -> ENDED, with its open step
    ENDED            Finished        resumed -> AWAITING_MODEL, or where it was
                                     suspended

`model_replied` decides on the reply's stop reason alone (``decision.py``), since
replies were normalised before (``normalise.py``): calls and stop reason agree.

    stop reason                  below the cap         at the cap
    tool_use                     open step             calls limit_reached, MAX_ITERATIONS
    pause, continue_             step without calls    MAX_ITERATIONS
    max_tokens                   calls output_cut, MAX_TOKENS
    safety                       calls denied, SAFETY
    error, timeout, cancelled    calls denied, FAILED
    anything else                ANSWERED

In the last four rows and at the cap the turn is *decided*: `next_action` says
`Finished`, and `finish` makes it so. Between the two a hook may still fail,
which is why deciding and ending are two moments: an interrupt with FAILED
overrules what was decided, a cancel does not (an answer that is recorded was
given). And the answer may be refused (`answer_refused`), because it is not what
was asked for: then the model is asked again, or at the cap the end is MAX_ITERATIONS.

In the place of the next model call, `passed_through` makes the results of the
last step the answer. A budget that is spent is an interrupt with LIMIT.

A paused reply goes back to the model unchanged: it opens a step without calls,
so that it is counted like any other and `iteration` moves at the same place.

`iteration` counts finished follow-ups: it grows in `step_done`, when the batch
and its hooks are through. A step that an interrupt cut before that counts as
well: it is added when the turn is resumed. So a turn makes at most
``max_iterations + 1`` model calls, and runs at most ``max_iterations`` batches
however often it is resumed; resuming after MAX_ITERATIONS grants them anew.

Messages added while a step is open wait until it is closed, so that nothing
comes between a call and its result.

A suspended turn has ended, and its step is still open: it waits for somebody's
word on calls of which none has started. Nothing but `resumed` changes it, not
even an interrupt, and no other turn may begin on its history meanwhile.

The arguments that somebody edited run in the place of the call's own
(`OpenStep.arguments`); the reply stays as the model gave it. That a call is held, and
that it may run, is said of its arguments by their hash: of other ones it is illegal.

A crash leaves a turn that has not ended. `resumed` then says that its process
is gone: the open calls that had started are *cut*. A cut call is answered, or
starts again as its next attempt, by the rules of ``recovery.py``; an interrupt
answers it ``unknown_after_crash`` whatever the reason is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.actions import Action as Action
from trio_runner._core.actions import CallModel as CallModel
from trio_runner._core.actions import Finished as Finished
from trio_runner._core.actions import Phase as Phase
from trio_runner._core.actions import RunTools as RunTools
from trio_runner._core.decision import CUT, decide
from trio_runner._core.errors import NothingToResumeError, TurnEndedError
from trio_runner._core.open_step import STARTED, OpenStep
from trio_runner._core.reconcile import HistoryRollbackState, HistoryRollbackStatus
from trio_runner._core.turn_state import MAY_GO_ON, TurnState


class Turn(TurnState):
    """One turn, from its input to its end; what it is asked is in `TurnState`."""

    # What the rules assign, said again for type checkers that would infer it anew here.
    phase: Phase
    iteration: int
    replies: int
    results: v.Message | None
    rollback: HistoryRollbackState | None

    def input_added(self, messages: Iterable[v.Message]) -> None:
        """Messages for the next model call; behind the results when a step is open.

        Raises:
          TurnEndedError: when no further model call will come.
        """
        reason = self._decided or self.end_reason
        if reason is not None:
            raise TurnEndedError(
                f"the turn has ended ({reason.value}): no model call will see these messages. "
                "Start a new turn with them",
                reason,
            )
        if self._step is not None:
            self._queued.extend(messages)
        else:
            for message in messages:
                self._append(message)

    def model_replied(
        self, reply: v.Message, max_iterations: int | None = None
    ) -> tuple[v.ToolResult, ...]:
        """A normalised reply came.

        Args:
          max_iterations: the cap; None: there is none.

        Returns:
          The results that were decided on arrival, in order; () when the calls
          are to run or there are none.
        """
        asks = reply.stop_reason is v.StopReason.TOOL_USE
        fits = bool(reply.tool_calls) == asks or reply.stop_reason in CUT
        if self.phase is not Phase.AWAITING_MODEL or self._decided is not None or not fits:
            self._illegal("model_replied")
        self.replies += 1
        if reply.usage is not None:
            self._usage += reply.usage
        self._met_cap = max_iterations is not None and self.iteration >= max_iterations
        self._decided, results = decide(reply, max_iterations if self._met_cap else None)
        if self._decided is None:
            self.phase = Phase.AWAITING_TOOLS
            if asks:
                self._step = OpenStep(reply)
                return ()
        self._append(reply, from_model=True)
        if results:
            self._append(v.Message("user", (), (), results))
        return results

    def answer_refused(self, messages: Sequence[v.Message]) -> tuple[v.Message, ...]:
        """The answer that was decided is not what was asked for: the model is asked again.

        It opens a step without calls, as a paused reply does. At the cap there is no
        further model call, so the turn is decided MAX_ITERATIONS and nothing is said.

        Args:
          messages: what to say to the model, at least one below the cap.

        Returns:
          What of them was appended: all, or none at the cap.
        """
        answered = self._decided is v.EndReason.ANSWERED
        if not answered or not (messages or self._met_cap):
            self._illegal("answer_refused")
        if self._met_cap:
            self._decided = v.EndReason.MAX_ITERATIONS
            return ()
        self._decided = None
        self.phase = Phase.AWAITING_TOOLS
        for message in messages:
            self._append(message)
        return tuple(messages)

    def passed_through(self, message: v.Message) -> None:
        """The results are the answer, as ``message``: the model has not seen them, and will not."""
        last = self.history.last
        answers = self._has_unseen_results and last is not None and last.role == "user"
        fits = message.role == "assistant" and not message.tool_calls
        asks = self.phase is Phase.AWAITING_MODEL and self._decided is None
        if not (asks and answers and fits):
            self._illegal("passed_through")
        self.replies += 1
        self._append(message, from_model=True)
        self._decided = v.EndReason.PASSED_THROUGH

    def call_held(self, position: int, waits_for: r.WaitsFor, arguments_hash: str) -> None:
        """An open call waits for a word, on it with the arguments of this hash."""
        step = self._not_running(position, arguments_hash, "call_held")
        if position in step.held or position in step.approved:
            self._illegal("call_held")
        step.held[position] = waits_for

    def call_approved(self, position: int, arguments_hash: str) -> None:
        """An open call may run, with the arguments of this hash."""
        step = self._not_running(position, arguments_hash, "call_approved")
        if step.held.get(position) == "external":
            self._illegal("call_approved")
        step.approved.add(position)

    def arguments_edited(self, position: int, arguments: v.JSONObject) -> None:
        """An open call that has not started is to run with these arguments, if it may run."""
        step = self._step
        if step is None or self._is_shut(position) or step.started[position]:
            self._illegal("arguments_edited")
        step.edits[position] = arguments
        step.approved.discard(position)

    def suspend(self) -> None:
        """The turn waits for a word on its open calls, none of which has started."""
        step = self._step
        running = step is not None and any(
            step.started[position] == STARTED for position in self.open_positions
        )
        if self.phase is not Phase.AWAITING_TOOLS or step is None or running:
            self._illegal("suspend")
        self._end(v.EndReason.SUSPENDED, len(self.history), HistoryRollbackStatus.HISTORY_UNCHANGED)
        self._uncounted = False  # `step_done` will count it

    def tool_started(self, position: int, start: r.ToolStarted | None = None) -> None:
        """The tool function of an open call is about to be entered, or may have been.

        Args:
          start: the record that says so, when it is replayed.
        """
        step = self._step
        if (
            step is None
            or self.phase is Phase.ENDED
            or not 0 <= position < len(step.results)
            or step.results[position] is not None
            or step.started[position] == STARTED
            or (start is not None and start.attempt != step.attempts[position] + 1)
        ):
            self._illegal("tool_started")
        step.started[position] = STARTED
        step.attempts[position] += 1
        if start is not None:
            step.starts[position] = start

    def tool_finished(
        self, position: int, result: v.ToolResult, attached: Sequence[v.Message] = ()
    ) -> None:
        """An open call has its result; the last one closes the step.

        Args:
          attached: messages with media of this call; they go behind all results.
        """
        step = self._step
        if (
            step is None
            or self.phase is Phase.ENDED
            or step.positions.get(result.call_id) != position
            or step.results[position] is not None
        ):
            self._illegal("tool_finished")
        step.results[position] = result
        step.missing -= 1
        if attached:
            step.attached[position] = attached
        if not step.missing:
            self._close_step(step)

    def tool_noted(self, position: int, meta: Mapping[str, Any]) -> None:
        """An open call leaves behind what the answer of an `interrupt` is to carry as ``meta``."""
        if self._step is None or not self.is_open(position):
            self._illegal("tool_noted")
        self._step.notes[position] = meta

    def step_done(self) -> None:
        """The step is closed and its hooks are through: the model is next."""
        if self.phase is not Phase.AWAITING_TOOLS or self._step is not None:
            self._illegal("step_done")
        self.iteration += 1
        self.phase = Phase.AWAITING_MODEL

    def history_replaced(self, messages: Sequence[v.Message]) -> None:
        """The closed part of the history is now ``messages``, which are valid.

        An open step stays open and goes behind them; the caller has checked
        that its ids are not among theirs.
        """
        self.history.replace(messages)
        if self._whole_from is not None:
            self._whole_from = len(self.history.templates())
        if self.phase is not Phase.ENDED or self._step is not None:
            self._reserve_ids()

    def finish(self) -> v.EndReason:
        """The decided end is reached; idempotent. Returns the end reason."""
        if self.phase is not Phase.ENDED:
            if self._decided is None:
                self._illegal("finish")
            self._end(self._decided, len(self.history), HistoryRollbackStatus.HISTORY_UNCHANGED)
        assert self.end_reason is not None
        return self.end_reason

    def interrupt(
        self, end_reason: v.EndReason, *, crashed: bool = False
    ) -> tuple[v.ToolResult, ...]:
        """The turn stops now: answer the open calls truthfully, keep what finished.

        Pure and idempotent: on an ended turn it does nothing, and a suspended one has
        ended. A decided turn ends as decided unless ``end_reason`` is FAILED.

        Args:
          crashed: the process that ran the turn is gone; a call that may have
            started is answered ``unknown_after_crash``.

        Returns:
          The results it made, in the order of the request.
        """
        if self.phase is Phase.ENDED:
            return ()
        if end_reason is v.EndReason.SUSPENDED:
            self._illegal("interrupt")
        if self._decided is not None and end_reason is not v.EndReason.FAILED:
            self.finish()
            return ()
        before = len(self.history)
        made: list[v.ToolResult] = []
        step = self._step
        if step is not None:
            for i, call in enumerate(step.reply.tool_calls):
                if step.results[i] is None:
                    started = bool(step.started[i])
                    result = (
                        stand_ins.crashed(call, started=started)
                        if crashed or step.is_cut(i)
                        else stand_ins.stopped(call, end_reason, started=started)
                    )
                    if i in step.notes:
                        result = attrs.evolve(result, meta=step.notes[i])
                    result = step.as_it_ran(i, result)
                    step.results[i] = result
                    made.append(result)
            step.missing = 0
            self._close_step(step)
        self._end(end_reason, before, self._rollback_status(step, len(made)))
        return tuple(made)

    def resumed(self) -> None:
        """Go on with a turn that ended without an answer, was suspended, or that a crash cut.

        Raises:
          NothingToResumeError: the turn has an answer, or none can come of it.
        """
        if self.end_reason is None:
            if self._step is not None:
                self._step.cut()
            return
        if not self.can_resume:
            what = ": there is nothing to resume"
            if self.end_reason in MAY_GO_ON:
                what = ", and the history ends with a reply that asks for nothing"
            raise NothingToResumeError(
                f"turn {self.number} ended {self.end_reason.value}{what}. Start a new turn"
            )
        ran_out = self.end_reason is v.EndReason.MAX_ITERATIONS
        self.iteration = 0 if ran_out else self.iteration + self._uncounted
        self._uncounted = False
        self.end_reason = None
        self._decided = None
        self.phase = Phase.AWAITING_MODEL if self._step is None else Phase.AWAITING_TOOLS
        self._reserve_ids()

    # --- inside -----------------------------------------------------------------

    def _not_running(self, position: int, arguments_hash: str, event: str) -> OpenStep:
        """The open step, with an open call of these very arguments that does not run."""
        step = self._step
        if step is None or self._is_shut(position) or step.started[position] == STARTED:
            self._illegal(event)
        if arguments_hash != r.arguments_hash(step.arguments(position)):
            self._illegal(f"{event} of other arguments")
        return step

    def _append(self, message: v.Message, *, from_model: bool = False) -> None:
        self.history.append(message)
        if from_model:
            self.history.model_has_all()
        self._messages.append(message)

    def _close_step(self, step: OpenStep) -> None:
        queued, self._queued = self._queued, []
        self._step = None
        self.results = step.results_message()
        self._append(step.reply, from_model=True)
        for message in (self.results, *step.all_attached(), *queued):
            self._append(message)

    def _reserve_ids(self) -> None:
        """Keep the ids of `messages` unique too, where the history holds them no longer."""
        self.history.reserve(call.id for message in self._messages for call in message.tool_calls)

    def _end(self, end_reason: v.EndReason, before: int, status: HistoryRollbackStatus) -> None:
        self._decided = None
        self._met_cap = False
        self._uncounted = self.phase is Phase.AWAITING_TOOLS
        self.end_reason = end_reason
        self.phase = Phase.ENDED
        self.rollback = HistoryRollbackState(status, before, len(self.history), ())
