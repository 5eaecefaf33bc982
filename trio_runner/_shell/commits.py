"""`Commits`: what was recorded and is not known to be durable yet.

State first, then await: `add` hands records to the journal synchronously, in
the same step in which the fact arrived; `settle` waits. One instance lives as
long as the session is open, over all its turns.

What happens when the store does not do its part:

* A commit that *fails* is reported, and its records go to the journal again before
  any later ones, since they are known not to be stored. As long as the store fails,
  each new fact costs one try, with the oldest commit that failed; once that one is
  durable, all the others follow as one. So an outage costs what the facts cost.
* A commit that *takes too long* is given up: it may still land, so it is
  unknown, is never sent again, and later appends queue behind it. Until the
  store has answered, nothing more is waited for.
* With ``strict`` both end the turn, by the error `settle` raises.
* A session that *another writer took over* ends the turn in any case: that writer may be
  running the same tools. Nothing is handed to the journal any more.
"""

from __future__ import annotations

import bisect
import logging
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

import trio_runner._core.records as r
import trio_runner._shell.leaving as leaving
from trio_runner._core.errors import (
    CommitFailedError,
    CommitUnknownError,
    JournalError,
    SessionLostError,
)
from trio_runner.abc import CommitTicket, JournalSession

_log = logging.getLogger("trio_runner")


@attrs.frozen(eq=False)
class Batch:
    """Records that become durable together; ``number`` is their place among all batches."""

    number: int
    records: Sequence[r.Record]


@attrs.frozen(eq=False)
class Commit:
    """A batch that the journal took."""

    batch: Batch
    ticket: CommitTicket

    @property
    def number(self) -> int:
        """The place of its batch."""
        return self.batch.number


#: Seconds between two looks at a ticket whose ``wait`` failed or came back too early.
_LOOK_AGAIN: Final = 0.1


def _is_of_the_store(error: BaseException) -> bool:
    """Whether a store failed, rather than somebody cancelling or ending the program."""
    foreign = leaving.is_cancellation(error) and not isinstance(error, trio.Cancelled)
    return isinstance(error, Exception) or foreign


_number = operator.attrgetter("number")


def _nobody(_: JournalError) -> None:
    """Nobody listens."""


class Commits:
    """The records of one open session on their way to the disk.

    Args:
      session: None when nothing is kept (no journal, or a turn without history).
    """

    def __init__(self, session: JournalSession | None) -> None:
        self._session = session
        #: Appended, outcome not looked at yet; oldest first, and they finish in that order.
        self._open: deque[Commit] = deque()
        #: How many batches there were.
        self._batches = 0
        #: Known not to be stored: what failed and what waits behind it, by number.
        self._missed: list[Batch] = []
        #: Whether the newest outcome was a failure.
        self._failing = False
        #: The newest failure that `settle` has not raised yet (strict).
        self._failure: JournalError | None = None
        #: Set for good when another writer has the session; see `settle`.
        self._taken_over: SessionLostError | None = None
        #: The commit that was given up; nothing is waited for until it is done.
        self._stalled: Commit | None = None
        #: Whether something became durable that `settle` has not told yet.
        self._news = False
        #: Told of each failure, as it becomes known; the running turn listens.
        self.on_failure: Callable[[JournalError], None] = _nobody
        self.strict: bool = False

    def add(self, *records: r.Record) -> Commit | None:
        """Hand ``records`` to the journal. No checkpoint, never raises an `Exception`.

        Returns:
          What `settle` can wait for; None when there is nothing, or it is not known which
          commit will hold them.
        """
        if self._session is None or not records:
            return None
        self._collect()
        self._batches += 1
        batch = Batch(self._batches, records)
        if not self._missed:
            return self._append(batch)
        self._missed.append(batch)
        if not self._open:
            self._append(self._missed.pop(0))
        return None

    def _append(self, batch: Batch) -> Commit | None:
        session = self._session
        if session is None or self._taken_over is not None:
            return None
        try:
            ticket = session.append(batch.records)
        except BaseException as error:
            self._missed.insert(0, batch)
            self._failing = True
            if not _is_of_the_store(error):
                raise
            what = f"the journal refused {len(batch.records)} records: {error!r}"
            self._failed(CommitFailedError(what), error)
            return None
        commit = Commit(batch, ticket)
        self._open.append(commit)
        return commit

    def _append_missed(self) -> None:
        """Hand over all that was missed, as one batch."""
        if self._missed:
            first = self._missed[0].number
            records = [record for batch in self._missed for record in batch.records]
            self._missed.clear()
            self._append(Batch(first, records))

    def begin_turn(self, on_failure: Callable[[JournalError], None], *, strict: bool) -> None:
        """A turn begins: it is told of failures; what failed before was told to another."""
        self.on_failure = on_failure
        self.strict = strict
        self._failure = None

    def send_missed(self) -> None:
        """Hand over once more what failed, before the session closes."""
        self._collect()
        self._append_missed()

    def not_stored(self) -> list[list[r.Record]]:
        """What a closed session may lack, in two readings.

        The first is what failed. The second is that and what was given up, which may
        have landed.
        """
        self._collect()
        failed = [record for batch in self._missed for record in batch.records]
        batches = sorted([*self._missed, *[commit.batch for commit in self._open]], key=_number)
        return [failed, [record for batch in batches for record in batch.records]]

    def end_turn(self) -> None:
        """The turn is over; what fails from here on goes to the log alone."""
        self.on_failure = _nobody

    @property
    def keeps(self) -> bool:
        """Whether there is a session at all."""
        return self._session is not None

    @property
    def is_stalled(self) -> bool:
        """Whether a commit was given up and is not done yet."""
        self._collect()
        return self._stalled is not None

    @property
    def settled(self) -> bool:
        """Whether the outcome of everything appended is known."""
        self._collect()
        return not self._open

    async def settle(
        self,
        timeout: float,  # noqa: ASYNC109  the end of a wait is an outcome here, not an error
        upto: Commit | None = None,
    ) -> bool:
        """Wait until everything (or everything up to ``upto``) is durable or has failed.

        No checkpoint when there is nothing to wait for. May be cancelled; then
        nothing has changed and `wait` can go on under a shield.

        Args:
          timeout: seconds; past them the commit is given up and reported.

        Returns:
          Whether something became durable since the last time, and nothing is open now.

        Raises:
          CommitFailedError, CommitUnknownError: only when ``strict``.
          SessionLostError: another writer has the session; each time from then on.
        """
        if self._session is None:
            return False
        self._collect()
        if self._open and self._stalled is None:
            with trio.move_on_after(timeout):
                await self.wait(upto)
            self._collect()
            if self._is_open(upto):
                self.give_up(timeout)
        failure, self._failure = self._failure, None
        if (lost := self._taken_over) is not None:
            remedy = "leave the agent's block, and enter it again to see what became of it"
            raise SessionLostError(f"{lost}; the turn ends here: {remedy}") from lost
        if self.strict and failure is None and self._stalled is not None:
            failure = CommitUnknownError("the store has not answered an earlier commit yet")
        if self.strict and failure is not None:
            raise failure
        news = self._news and not self._open and not self._missed
        self._news = self._news and not news
        return news

    async def wait(self, upto: Commit | None = None) -> None:
        """Wait without a bound; the caller brings the deadline.

        What failed before and can be stored now is, too.
        """
        while self._is_open(upto):
            head = self._open[0]
            try:
                await head.ticket.wait()
            except BaseException as error:
                if not _is_of_the_store(error):
                    raise
                _log.warning("waiting for a commit failed: %r", error)
            self._collect()
            if self._open and self._open[0] is head:
                # A store that cannot wait may still commit: look again, within the bound.
                await trio.sleep(_LOOK_AGAIN)

    def give_up(self, waited: float) -> None:
        """Stop waiting for what is open, and report it once."""
        if self._stalled is None and not self.settled:
            what = f"{len(self._open)} commits were not done after {waited:g} s and are given up"
            self._lost(self._open[-1], what, None)

    def _lost(self, commit: Commit, what: str, cause: Exception | None) -> None:
        if self._stalled is None:
            self._stalled = commit
            after = "they may still land. Nothing more is waited for until the store answers"
            self._failed(CommitUnknownError(f"{what}: {after}"), cause)

    def _is_open(self, upto: Commit | None) -> bool:
        return bool(self._open) and (upto is None or self._open[0].number <= upto.number)

    def _collect(self) -> None:
        """Look at the outcome of what is done, and send what can be stored again."""
        self._look()
        while self._missed and not self._open and not self._failing:
            self._append_missed()
            self._look()  # it may have failed already, and nothing may overtake it

    def _look(self) -> None:
        """Look at the outcome of what is done, in order."""
        while self._open and self._open[0].ticket.done:
            commit = self._open.popleft()
            if commit is self._stalled:
                self._stalled = None
            error = commit.ticket.error
            self._failing = error is not None
            if error is None:
                self._news = True
            else:
                # Tried before what waits, and behind what failed before it.
                bisect.insort(self._missed, commit.batch, key=_number)
                self._failed(
                    CommitFailedError(
                        f"a commit of {len(commit.batch.records)} records failed: {error!r}. "
                        "They are sent again"
                    ),
                    error,
                )

    def _failed(self, failure: JournalError, cause: BaseException | None) -> None:
        failure.__cause__ = cause
        self._failure = failure
        match cause:
            case SessionLostError():
                self._taken_over = cause
            case _:
                pass
        _log.warning("%s", failure)
        self.on_failure(failure)
