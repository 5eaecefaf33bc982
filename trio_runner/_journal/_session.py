"""Sessions and tickets of a `SqliteJournal`, as trio sees them.

What may live here: what an append becomes, and how its outcome gets into its ticket.

What a session and its tickets tell changes in one go, in the thread of the trio run that
opened it, between the steps of its tasks: see `SqliteSession.settle`. The writer's
thread only notes what became of a commit.
"""

# A session and its tickets are one mechanism and use each other's insides; pyright knows
# privacy by class only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence

import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as r
from trio_runner._journal._parts import Append, Opened
from trio_runner._journal._writer import Bell, Release, Writer


class Counts:
    """The running counts: of several sessions, which may be of runs in several threads."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may append.
        self._lock = threading.RLock()
        self.appends = 0
        self.commits = 0
        self.failures = 0

    def add(self, *, appends: int = 0, commits: int = 0, failures: int = 0) -> None:
        with self._lock:
            self.appends += appends
            self.commits += commits
            self.failures += failures


class SqliteTicket:
    """Stands for one commit of a `SqliteSession`; a `trio_runner.abc.CommitTicket`."""

    __slots__ = ("_bells", "_done", "_error", "_generation", "_records", "append", "session")

    #: What the writer gets.
    append: Append
    #: The session that it belongs to.
    session: SqliteSession

    def __init__(
        self, session: SqliteSession, records: tuple[r.Record, ...], append: Append
    ) -> None:
        self.append = append
        self.session = session
        self._records = records
        #: How many failures its session knew of when it was appended.
        self._generation = session._generation
        self._done = False
        self._error: errors.JournalError | None = None
        #: Who waits.
        self._bells: list[Bell] = []

    @property
    def numbers(self) -> range:
        """The numbers of its records within the session; free again when the commit fails."""
        return range(self.append.first, self.append.first + len(self._records))

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, or failed with ``error``."""
        if not self._done:
            self.session._writer.look()
        return self._done

    @property
    def error(self) -> errors.JournalError | None:
        """Why the commit failed; None while open or when durable."""
        if not self._done:
            self.session._writer.look()
        return self._error

    async def wait(self) -> None:
        """Wait until ``done``; a checkpoint in any case. Does not raise ``error``.

        May be cancelled and called again; the commit does not notice.
        """
        await trio.lowlevel.checkpoint()
        session = self.session
        while not self.done:
            bell = Bell()
            with session._lock:
                if self._done:
                    return
                self._bells.append(bell)
            try:
                await session._writer.wait(bell)
            finally:
                with session._lock:
                    if bell in self._bells:
                        self._bells.remove(bell)

    def is_void(self) -> bool:
        """See `trio_runner._journal._writer.Commit`; called by the writer."""
        return self._generation < self.session._failures

    def note(self, error: errors.JournalError | None) -> None:
        """See `trio_runner._journal._writer.Commit`; called by the writer."""
        session = self.session
        if error is not None:
            session._failures = self._generation + 1
        session._outcomes.append((self, error))


class SqliteSession:
    """A session of a `SqliteJournal`, open for writing; a `trio_runner.abc.JournalSession`.

    Attributes:
      dropped: how many of its records were taken out as a torn tail, by this opening or by
        one of another session in this process before it; see `SqliteJournal`.
    """

    def __init__(
        self,
        session_id: str,
        writer: Writer,
        encode: Callable[[r.Record], bytes],
        counts: Counts,
    ) -> None:
        self.session_id: str = session_id
        self.dropped: int = 0
        self._writer = writer
        self._encode = encode
        self._counts = counts
        #: Of the run that opened it and sees its tickets.
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()
        #: What the writer noted and `settle` has not taken yet, in the order of the appends.
        self._outcomes: collections.deque[tuple[SqliteTicket, errors.JournalError | None]] = (
            collections.deque()
        )
        #: Of the writer: commits that know of fewer failures than this are void.
        self._failures = 0
        #: For everything below. Free but for once the run is over: then the writer settles.
        #: Reentrant: a writer without a thread settles a commit while it is submitted.
        self._lock = threading.RLock()
        #: Failures that were settled.
        self._generation = 0
        #: The durable records. With those of the open tickets: all that was appended.
        self._stored: list[r.Record] = []
        #: Commits without an outcome, in the order of their appends.
        #: Invariant: their numbers follow on from ``_stored`` without a gap.
        #: test_sqlite_journal.py::test_what_failed_is_numbered_anew
        self._open: collections.deque[SqliteTicket] = collections.deque()
        self._next_number = 0
        self._key = 0
        self._epoch = 0
        self._closed = False
        #: The command that gives the session up, once `aclose` was called.
        self._release: Release | None = None

    @property
    def records(self) -> Sequence[r.Record]:
        """What is stored: the durable records, in order. A copy: it does not grow."""
        self._writer.look()
        with self._lock:
            return tuple(self._stored)

    def append(self, records: Sequence[r.Record]) -> SqliteTicket:
        """Number, encode and enqueue ``records`` as one commit. No checkpoint.

        Raises:
          JournalError: after `aclose` was called, or in a forked process.
        """
        if self._closed:
            raise errors.JournalError(
                f"session {self.session_id!r} is closed; open it again before appending to it"
            )
        if self._writer.is_of_the_parent:
            raise errors.JournalError(
                f"session {self.session_id!r} was opened before this process was forked; "
                "open it after the fork"
            )
        batch = tuple(records)
        bodies = [self._encode(record) for record in batch]
        with self._lock:
            append = Append(self.session_id, self._key, self._epoch, self._next_number, bodies)
            ticket = SqliteTicket(self, batch, append)
            self._next_number += len(batch)
            self._open.append(ticket)
            self._counts.add(appends=1)
            # In the lock, so that the queue has the order of the numbers; and last.
            self._writer.submit(ticket)
        return ticket

    async def aclose(self) -> None:
        """Close at once, wait until every append is settled and the session is free.

        A checkpoint. It waits as long as the commits do, so the caller bounds
        it; when cancelled, the session is free for this process all the same: who opens it
        again waits for what is still open, since commands are done in order. For other
        processes it is free when that has happened.
        """
        self._closed = True
        if self._release is None:
            self._release = Release(self._writer, self)
            if self._writer.is_of_the_parent:
                self._release.finish()
            else:
                self._writer.submit(self._release)
        release = self._release
        await trio.lowlevel.checkpoint()
        await release.wait()
        self.settle()  # what was noted before the session was given up

    # --- used by the writer ---

    def begin(self, opened: Opened) -> None:
        """The file has the session open."""
        with self._lock:
            self._key = opened.key
            self._epoch = opened.epoch
            self._stored = list(opened.records)
            self._next_number = len(self._stored)
            self.dropped = opened.dropped

    def is_orphaned(self) -> bool:
        """Whether the run that opened it is over."""
        try:
            self.token.run_sync_soon(_nothing)
        except trio.RunFinishedError:
            return True
        return False

    def orphan(self) -> None:
        """Another session takes its place: there is nothing left to give up."""
        self._closed = True
        self._release = Release(self._writer, self)
        self._release.finish()

    def settle(self) -> None:
        """Let the tickets tell what the writer noted, in order.

        Called in the thread of the run that opened the session, never between a look at its
        tickets and the append that follows from it; by the writer once that run is over.
        """
        bells: list[Bell] = []
        with self._lock:
            while self._outcomes:
                ticket, error = self._outcomes.popleft()
                if ticket._done:  # one before it failed
                    continue
                if error is None:
                    bells += self._land(ticket)
                else:
                    bells += self._fail_all(error)
        self._writer.ring(bells)

    def _land(self, ticket: SqliteTicket) -> list[Bell]:
        assert self._open[0] is ticket
        self._open.popleft()
        self._stored.extend(ticket._records)
        self._counts.add(commits=1)
        ticket._done = True
        return ticket._bells

    def _fail_all(self, error: errors.JournalError) -> list[Bell]:
        """What is stored stays a prefix of what was appended."""
        self._next_number = len(self._stored)
        self._generation += 1
        self._counts.add(failures=len(self._open))
        bells: list[Bell] = []
        while self._open:
            failed = self._open.popleft()
            failed._error = error
            failed._done = True
            bells += failed._bells
        return bells


def _nothing() -> None:
    """Only to see whether a run still takes calls."""
