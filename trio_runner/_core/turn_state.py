"""`TurnState`: where a turn is, and what can be asked of it.

What may live here: the state of the turn machine, and questions that change
nothing. The rules, which make one state of another, are in ``turn.py``.
"""

from __future__ import annotations

from typing import Final, NoReturn, assert_never

import trio_runner._core.values as v
from trio_runner._core.actions import Action, CallModel, Finished, Phase, RunTools
from trio_runner._core.errors import InternalError
from trio_runner._core.history import History, HistoryView
from trio_runner._core.open_step import OpenStep
from trio_runner._core.reconcile import HistoryRollbackState, HistoryRollbackStatus

_CALL_MODEL: Final = CallModel()
_RUN_TOOLS: Final = RunTools()


class TurnState:
    """A turn, as it is.

    Args:
      history: the conversation's; the turn appends to it.
      number: counts the turns of the conversation from 1.
      sends_whole_turn: `delta` is the whole turn, not what the model side lacks
        (a turn without history has a history of its own: the templates).
    """

    def __init__(self, history: History, number: int, *, sends_whole_turn: bool = False) -> None:
        self.history: Final = history
        self.number: Final = number
        self.phase: Phase = Phase.AWAITING_MODEL
        #: Finished follow-ups; see the header.
        self.iteration: int = 0
        #: Replies so far; the step of the newest one is ``replies - 1``.
        self.replies: int = 0
        #: Why the turn ended; None before.
        self.end_reason: v.EndReason | None = None
        #: What the newest interrupt or end did to the history.
        self.rollback: HistoryRollbackState | None = None
        #: How the turn will end once `finish` is called; None while it goes on.
        self._decided: v.EndReason | None = None
        #: Whether the reply that decided the end came at the cap.
        self._met_cap: bool = False
        #: The open step. Invariant: set only in AWAITING_TOOLS or SUSPENDED, and never without
        #: an open call.
        self._step: OpenStep | None = None
        #: The newest message with results; None before the first.
        self.results: v.Message | None = None
        #: Added while a step is open; goes behind its results.
        self._queued: list[v.Message] = []
        #: The turn's messages, closed steps only.
        self._messages: list[v.Message] = []
        self._usage = v.Usage()
        #: Whether the end came between a reply that goes on and its `step_done`.
        self._uncounted: bool = False
        #: Index in the history where the turn begins; None when it sends a delta only.
        self._whole_from: int | None = len(history) if sends_whole_turn else None

    # --- questions --------------------------------------------------------------

    def next_action(self) -> Action:
        """What the shell has to do now."""
        if self._decided is not None:
            return Finished(self._decided)
        match self.phase:
            case Phase.AWAITING_MODEL:
                return _CALL_MODEL
            case Phase.AWAITING_TOOLS:
                return _RUN_TOOLS
            case Phase.ENDED:
                assert self.end_reason is not None
                return Finished(self.end_reason)
            case _:
                assert_never(self.phase)

    @property
    def step(self) -> int:
        """The step of the newest reply, from 0."""
        return max(self.replies - 1, 0)

    @property
    def messages(self) -> tuple[v.Message, ...]:
        """The turn's messages, closed steps only."""
        return tuple(self._messages)

    @property
    def usage(self) -> v.Usage:
        """The sum over the turn's replies."""
        return self._usage

    @property
    def reply(self) -> v.Message | None:
        """The reply whose calls are open; None when none is."""
        return self._step.reply if self._step is not None else None

    @property
    def open_step(self) -> OpenStep | None:
        """The open step, to be read only; None when there is none."""
        return self._step

    @property
    def open_positions(self) -> list[int]:
        """Positions of the calls that have no result yet."""
        if self._step is None:
            return []
        return [i for i, result in enumerate(self._step.results) if result is None]

    @property
    def started_positions(self) -> list[int]:
        """Positions of the open calls that may have started."""
        step = self._step
        return [] if step is None else [i for i in self.open_positions if step.started[i]]

    def position_of(self, call_id: str) -> int | None:
        """The position of an open call; None when no open call has that id."""
        if self._step is None:
            return None
        position = self._step.positions.get(call_id)
        if position is None or self._step.results[position] is not None:
            return None
        return position

    def is_open(self, position: int) -> bool:
        """Whether the call at ``position`` of the open step has no result yet."""
        step = self._step
        return (
            step is not None
            and 0 <= position < len(step.results)
            and step.results[position] is None
        )

    def is_started(self, position: int) -> bool:
        """Whether the open call at ``position`` may have started."""
        return self._step is not None and bool(self._step.started[position])

    @property
    def delta(self) -> HistoryView:
        """What the next model call sends beyond what the model side has."""
        if self._whole_from is not None:
            return self.history.view(self._whole_from)
        return self.history.view(self.history.delta_start)

    @property
    def is_suspended(self) -> bool:
        """Whether it ended with its step open, to be taken up by `resumed`."""
        return self.phase is Phase.ENDED and self._step is not None

    @property
    def can_resume(self) -> bool:
        """Whether `resumed` may be told: it has no end, or one that something can come of."""
        if self.end_reason is None or self.is_suspended:
            return True
        last = self.history.last
        asks = last is not None and (last.role == "user" or last.stop_reason in _GOES_BACK)
        return asks and self.end_reason in MAY_GO_ON

    # --- for the rules ----------------------------------------------------------

    def _is_shut(self, position: int) -> bool:
        """Whether nothing may happen to the call at ``position``."""
        return self.phase is Phase.ENDED or not self.is_open(position)

    @property
    def _has_unseen_results(self) -> bool:
        return any(message.tool_results for message in self.delta)

    def _rollback_status(self, closed: OpenStep | None, made: int) -> HistoryRollbackStatus:
        if not len(self.history):
            return HistoryRollbackStatus.HISTORY_EMPTY
        if closed is not None and made == len(closed.results):
            return HistoryRollbackStatus.APPENDED_INTERRUPTED_TOOL_RESULT
        if closed is not None:
            return HistoryRollbackStatus.APPENDED_PARTIAL_TOOL_RESULT
        if self._has_unseen_results:
            # A batch was complete, and the model has not seen its results yet.
            return HistoryRollbackStatus.APPENDED_COMPLETED_TOOL_RESULT
        return HistoryRollbackStatus.HISTORY_UNCHANGED

    def _illegal(self, event: str) -> NoReturn:
        raise InternalError(
            f"turn {self.number}: event {event!r} is not legal in phase {self.phase.value!r} "
            f"(step {self.step}, decided {self._decided}, ended {self.end_reason})"
        )


_GOES_BACK: Final = (v.StopReason.PAUSE, v.StopReason.CONTINUE_)

#: Ends that came before an answer.
MAY_GO_ON: Final = (
    v.EndReason.INTERRUPTED,
    v.EndReason.TIMED_OUT,
    v.EndReason.FAILED,
    v.EndReason.MAX_ITERATIONS,
    v.EndReason.LIMIT,
)
