"""`Ending`: how one turn stops: what is recorded, what leaves, and by when.

Whatever goes wrong in a turn comes to `Ending.stop`: the machine is interrupted
and what that made is recorded, synchronously; then what is not durable yet is
waited for, within the turn's grace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.values as v
import trio_runner._shell.finishing as finishing
import trio_runner._shell.leaving as leaving
from trio_runner._core.errors import JournalError, StrayCancellationError
from trio_runner._core.limits import LimitReached
from trio_runner._core.reconcile import HistoryRollbackState, HistoryRollbackStatus
from trio_runner._core.turn import Phase, Turn
from trio_runner._shell.commits import Commits
from trio_runner._shell.context import TurnContext
from trio_runner._shell.conversation import Conversation, LastTurn, last_turn
from trio_runner._shell.loop_agent import LoopConfig
from trio_runner._shell.notices import Notices


class LeftElsewhere(Exception):
    """Another task left the runner's block while this one was iterating."""


class Ending:
    """The end of one turn, from the first thing that goes wrong to the last commit.

    Args:
      commits: the turn's; those of the session, or none.
      context: says how much of the grace turns inside this one have used.
    """

    def __init__(
        self,
        turn: Turn,
        conversation: Conversation,
        commits: Commits,
        config: LoopConfig,
        notices: Notices,
        context: TurnContext,
    ) -> None:
        self._turn = turn
        self._context = context
        self._conversation = conversation
        self._commits = commits
        self._config = config
        self._notices = notices
        #: What the turn returns, once its end was decided and nothing overruled it.
        self.answer: v.Message | None = None
        #: Which limit ended the turn.
        self.limit: LimitReached | None = None
        #: What the journal could not do during the turn.
        self.commit_errors: list[JournalError] = []
        #: Raised by the runner itself: its turn timed out, or was left by another task.
        self.own_error: BaseException | None = None
        #: When finishing must be over; fixed by the first interrupt.
        self._grace_deadline: float | None = None
        #: Whether the observers were told of the end.
        self._end_told = False

    async def stop(self, error: BaseException) -> BaseException:
        """End the turn because of ``error``; returns what leaves (contract C7)."""
        if leaving.is_closing(error):
            self.interrupt(v.EndReason.INTERRUPTED)
            return error
        reason, leaves = self._judge(error)
        self.answer = None
        self._fix_grace()
        self.interrupt(reason)
        try:
            await self.finish_commits(leaves)
        finally:
            self.tell()
        if leaves is None:
            # The caller's cancel beats this error, and was not raised yet.
            self._notices.suppressed(error)
            await trio.lowlevel.checkpoint_if_cancelled()
            return error
        return leaves

    def _judge(self, error: BaseException) -> tuple[v.EndReason, BaseException | None]:
        """Why the turn ends, and what leaves; None for a Cancelled that is still to come."""
        inner = list(leaving.leaves(error))
        for leaf in inner:
            if isinstance(leaf, leaving.EXITS):
                return v.EndReason.INTERRUPTED, self._winner(leaf, error)
        if leaving.cancelled_from_outside():
            for leaf in inner:
                if isinstance(leaf, trio.Cancelled):
                    return v.EndReason.INTERRUPTED, self._winner(leaf, error)
            return v.EndReason.INTERRUPTED, None
        if error is self.own_error:
            timed_out = isinstance(error, leaving.TurnTimeoutError)
            return (v.EndReason.TIMED_OUT if timed_out else v.EndReason.INTERRUPTED), error
        if all(leaving.is_cancellation(leaf) for leaf in inner):
            stray = StrayCancellationError(
                "a model, hook or toolset raised a cancellation by itself, and nobody had "
                "cancelled the turn"
            )
            stray.__cause__ = error
            return v.EndReason.FAILED, stray
        if isinstance(error, StopAsyncIteration | GeneratorExit):
            # It would end the caller's loop, or pass for the end of a coroutine.
            what = type(error).__name__
            stopped = RuntimeError(f"a model, tool, hook or toolset raised {what}")
            stopped.__cause__ = error
            return v.EndReason.FAILED, stopped
        return v.EndReason.FAILED, error

    def _winner(self, leaf: BaseException, error: BaseException) -> BaseException:
        if leaf is not error:
            for other in leaving.leaves(error):
                if other is not leaf and not leaving.is_cancellation(other):
                    self._notices.suppressed(other)
        return leaf

    def interrupt(self, reason: v.EndReason) -> None:
        """The turn stops now: synchronous, idempotent, and recorded at once."""
        turn = self._turn
        if turn.phase is Phase.ENDED:
            return
        if trio.lowlevel.in_trio_run():  # else nothing will be waited for, and there is no clock
            self._fix_grace()
        step = turn.step
        results = turn.interrupt(reason)
        assert turn.end_reason is not None
        self._commits.add(
            *[r.ToolFinished(turn.number, step, result) for result in results],
            r.TurnEnded(turn.number, turn.end_reason),
        )
        if self._notices.listening:
            for result in results:
                self._notices.tell(ev.CallFinished, step, result)
            self._notices.tell(ev.TurnInterrupted, turn.end_reason, results)

    def tell(self) -> None:
        """Tell the observers, once, that nothing more will come."""
        reason = self._turn.end_reason
        if self._notices.listening and reason is not None and not self._end_told:
            self._end_told = True
            self._notices.tell(ev.TurnEnded, reason)

    async def finish_commits(self, leaves: BaseException | None) -> None:
        """Wait, shielded, for what is not durable yet, until the turn's grace is over."""
        if self._grace_deadline is None and self._commits.is_stalled:
            return  # a normal end: what was given up is not waited for again
        if not self._commits.settled:
            try:
                await self.finish(self._commits.wait, leaves, deadline=self._fix_grace())
            finally:
                # Also when a Ctrl-C came meanwhile: the turn's grace is used up for what follows.
                self._commits.give_up(self._config.grace)

    async def finish(
        self,
        async_fn: Callable[[], Awaitable[object]],
        leaves: BaseException | None,
        *,
        deadline: float,
    ) -> None:
        """Run ``async_fn`` shielded while ``leaves`` is on its way out."""
        report = self._notices.suppressed
        await finishing.finish(async_fn, deadline=deadline, report=report, leaves=leaves)

    def _fix_grace(self) -> float:
        """When finishing must be over: one time per turn, fixed at its first interrupt."""
        if self._grace_deadline is None:
            left = max(0.0, self._config.grace - self._context.spent)
            self._grace_deadline = trio.current_time() + left
            self._conversation.grace_deadline = self._grace_deadline
        return self._grace_deadline

    def commit_failed(self, error: JournalError) -> None:
        """The journal could not do its part; called as it becomes known."""
        self.commit_errors.append(error)
        if self._notices.listening:
            self._notices.tell(ev.CommitFailed, error)

    @property
    def rollback(self) -> HistoryRollbackState | None:
        """What the end of the turn did to the history; None before."""
        turn = self._turn
        if turn.rollback is None or turn.history is self._conversation.history:
            return turn.rollback
        count = len(self._conversation.history)
        disabled = HistoryRollbackStatus.HISTORY_DISABLED
        return HistoryRollbackState(disabled, count, count, ())

    def last_turn(self) -> LastTurn | None:
        """How the turn ended; None while it runs."""
        return last_turn(self._turn, self.rollback, self.commit_errors, self.limit)
