"""`MemoryJournal`: sessions kept in the object, with commits that wait, hang or fail on demand.

What may live here: a store without a file, a thread or a task. The outcome of
a commit is worked out whenever somebody looks (append, ``done``, ``wait``,
``records``), from trio's clock; so `trio.testing.MockClock` drives it, and
nothing happens behind the caller's back.

Nothing here is marked for KeyboardInterrupt protection: the library calls its
journals from protected frames, and a sweep must see it when it does not.
"""

# The three classes are one mechanism and use each other's insides; pyright knows
# privacy by class only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import attrs
import trio

import trio_runner._core.errors as errors
import trio_runner._core.records as records_
import trio_runner._journal.faults as faults
from trio_runner._core.quick import ByFields

#: What a commit does: take so many seconds, never finish, or fail.
Fate: TypeAlias = float | Literal["hang"] | Exception | type[Exception]

# A fault can land only where a task steps, so a delayed commit is waited for in several.
_STEPS_OF_A_WAIT = 4


def _check_fate(name: str, fate: object) -> None:
    match fate:
        case "hang" | Exception():
            return
        case type() if issubclass(fate, Exception):
            return
        case bool():
            pass
        case int() | float() if 0 <= fate < math.inf:
            return
        case _:
            pass
    raise ValueError(
        f"{name} is {fate!r}; expected seconds (finite, 0 or more), 'hang', "
        "or an Exception (an instance or a class)"
    )


@attrs.frozen(eq=False, repr=False)
class MemoryJournalStatistics(ByFields):
    """Counts over the life of a `MemoryJournal`, in commits (one append is one commit).

    Attributes:
      appends: commits asked for.
      commits: those that became durable.
      failures: those that failed, or were lost to `MemoryJournal.crash` or a reopening.
      open_tickets: those whose outcome is not known yet.
    """

    appends: int
    commits: int
    failures: int
    open_tickets: int


class MemoryTicket:
    """Stands for one commit of a `MemorySession`; a `trio_runner.abc.CommitTicket`."""

    __slots__ = ("_appended_at", "_done", "_error", "_index", "_records", "_session", "numbers")

    #: The numbers of its records within the session; free again when the commit fails.
    numbers: range

    def __init__(
        self,
        session: MemorySession,
        records: tuple[records_.Record, ...],
        numbers: range,
        index: int,
    ) -> None:
        self.numbers = numbers
        self._session = session
        self._records = records
        self._index = index  # which append of the journal this is, from 0: the key of its script
        self._appended_at = -math.inf
        self._done = False
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, or failed with ``error``."""
        if not self._done:
            self._session._settle()
        return self._done

    @property
    def error(self) -> Exception | None:
        """Why the commit failed; None while open or when durable."""
        if not self._done:
            self._session._settle()
        return self._error

    async def wait(self) -> None:
        """Wait until ``done``; a checkpoint in any case. Does not raise ``error``.

        An outcome that lies in the future is waited for in at least four task
        steps. May be cancelled and called again; the commit does not notice.
        """
        await trio.lowlevel.checkpoint()
        steps_left = _STEPS_OF_A_WAIT
        while not self.done:
            # Tickets finish in order, so the next news comes from the front of the queue.
            due = self._session._front_due()
            pause_until = due
            if steps_left > 1 and due < math.inf:
                now = trio.current_time()
                pause_until = now + (due - now) / steps_left
            steps_left -= 1
            with trio.move_on_at(pause_until):
                await self._session._journal._changed.park()


class MemorySession:
    """A session of a `MemoryJournal`, open for writing; a `trio_runner.abc.JournalSession`."""

    def __init__(self, journal: MemoryJournal, session_id: str) -> None:
        self.session_id = session_id
        self._journal = journal
        #: The durable records, shared with the journal. Given up for a copy when
        #: the session is no longer the writer.
        self._stored = journal._stored.setdefault(session_id, [])
        #: Commits without an outcome, in the order of their appends.
        self._open: collections.deque[MemoryTicket] = collections.deque()
        #: The number the next record gets: those before it are durable or open.
        self._next_number = len(self._stored)
        self._closed = False

    @property
    def records(self) -> Sequence[records_.Record]:
        """What is stored: the durable records, in order. A copy: it does not grow."""
        self._settle()
        return tuple(self._stored)

    def append(self, records: Sequence[records_.Record]) -> MemoryTicket:
        """Number and enqueue ``records`` as one commit. No checkpoint.

        Raises:
          JournalError: after `aclose` was called.
        """
        if self._closed:
            raise errors.JournalError(
                f"session {self.session_id!r} is closed; open it again before appending to it"
            )
        journal = self._journal
        batch = tuple(records)
        first = self._next_number
        ticket = MemoryTicket(
            self, batch, range(first, first + len(batch)), journal._count_append()
        )
        self._next_number = first + len(batch)
        if journal._instant and not self._open:  # nothing to wait for or to work out
            self._stored.extend(batch)
            ticket._done = True
            journal._commits += 1
            return ticket
        self._open.append(ticket)
        if not journal._instant:
            ticket._appended_at = _now(otherwise=math.inf)
        self._settle()
        return ticket

    async def aclose(self) -> None:
        """Close at once, wait until every append is settled, then free the session.

        A checkpoint. It waits as long as the commits do, so the caller bounds
        it; when cancelled the session is freed all the same, and what is open
        may still land until the session is opened again.
        """
        self._closed = True
        try:
            if self._open:
                await self._open[-1].wait()
            else:
                await trio.lowlevel.checkpoint()
        finally:
            self._journal._free(self)

    # --- used by the ticket and the journal ---

    def _settle(self) -> None:
        """Let every commit land or fail whose time has come, in order."""
        while self._open:
            ticket = self._open[0]
            due, error = self._journal._fate_of(ticket)
            # -inf needs no clock: an instant commit works outside trio too.
            if due > -math.inf and due > _now(otherwise=-math.inf):
                return
            if error is not None:
                self._fail_all(error)
                return
            self._open.popleft()
            self._stored.extend(ticket._records)
            ticket._done = True
            self._journal._commits += 1

    def _fail_all(self, error: Exception) -> None:
        """Fail every open commit: what is stored stays a prefix of what was appended."""
        self._next_number = len(self._stored)
        while self._open:
            ticket = self._open.popleft()
            ticket._error = error
            ticket._done = True
            self._journal._failures += 1
        self._journal._changed.unpark_all()

    def _front_due(self) -> float:
        return self._journal._fate_of(self._open[0])[0]

    def _replace(self, reason: str) -> None:
        """Stop being the session's writer: close, and lose what is not durable."""
        self._closed = True
        self._settle()
        self._stored = list(self._stored)
        self._fail_all(
            errors.JournalError(f"session {self.session_id!r}: the commit was lost; {reason}")
        )


class MemoryJournal:
    """Keeps sessions in memory, for tests and for programs that need no file.

    Opening a session id again on the same journal gives the stored records, so
    a test "restarts" by closing the session (or by `crash`) and opening it.

    Args:
      delay: what each commit does. Seconds: it lands that long after its
        append (0.0: at once). ``"hang"``: it has no outcome as long as the
        attribute says so. An exception, or its class: it fails with it.
      script: the fate of single commits by the number of the append, counted
        from 0 over the whole journal; the others follow ``delay``. A scripted
        exception comes when the commit would have landed under ``delay``.

    Example:
      ``MemoryJournal(script={3: OSError("disk full")})`` fails the fourth commit.
    """

    def __init__(self, delay: Fate = 0.0, *, script: Mapping[int, Fate] | None = None) -> None:
        _check_fate("delay", delay)
        self._script: dict[int, Fate] = dict(script or {})
        for index, fate in self._script.items():
            _check_fate(f"script[{index!r}]", fate)
        self._delay: Fate = delay
        #: Whether every commit lands at once, which spares the look at the clock.
        self._instant = delay == 0 and not self._script
        self._stored: dict[str, list[records_.Record]] = {}
        #: Who may append now; at most one session per id.
        self._writers: dict[str, MemorySession] = {}
        #: Freed sessions whose open commits may still land, until the id is opened again.
        self._lingering: dict[str, list[MemorySession]] = {}
        #: Where tickets wait for news that the clock does not bring.
        self._changed = trio.lowlevel.ParkingLot()
        self._appends = 0
        self._commits = 0
        self._failures = 0

    @property
    def delay(self) -> Fate:
        """What commits do; may be set at any time, and then goes for open commits too."""
        return self._delay

    @delay.setter
    def delay(self, value: Fate) -> None:
        _check_fate("delay", value)
        self._delay = value
        self._instant = value == 0 and not self._script
        self._changed.unpark_all()

    async def open(self, session_id: str) -> MemorySession:
        """Open a session for writing, making it when it is new. A checkpoint.

        Commits of an earlier opening that are still open are lost by this. A
        cancelled open changes nothing.

        Raises:
          SessionInUseError: the session is open for writing already.
        """
        await trio.lowlevel.checkpoint()
        if session_id in self._writers:
            raise faults.SessionInUseError(
                f"session {session_id!r} is already open for writing; close it first, "
                "or use another session id"
            )
        for earlier in self._lingering.pop(session_id, ()):
            earlier._replace("the session was opened again")
        session = MemorySession(self, session_id)
        self._writers[session_id] = session
        return session

    def stored(self, session_id: str) -> tuple[records_.Record, ...]:
        """The durable records of a session, whether it is open or not; () when unknown."""
        for session in self._sessions():
            session._settle()
        return tuple(self._stored.get(session_id, ()))

    def crash(self) -> None:
        """Behave as if the process died: what is not durable is lost, every session is free."""
        for session in self._sessions():
            session._replace("the journal crashed")
        self._writers.clear()
        self._lingering.clear()

    def statistics(self) -> MemoryJournalStatistics:
        """Count the commits so far."""
        sessions = self._sessions()
        for session in sessions:
            session._settle()
        return MemoryJournalStatistics(
            appends=self._appends,
            commits=self._commits,
            failures=self._failures,
            open_tickets=sum(len(session._open) for session in sessions),
        )

    # --- used by the session ---

    def _sessions(self) -> list[MemorySession]:
        lingering = [session for group in self._lingering.values() for session in group]
        return lingering + list(self._writers.values())

    def _free(self, session: MemorySession) -> None:
        """Let the id be opened again. A second call, or one after a crash, does nothing."""
        if self._writers.get(session.session_id) is session:
            del self._writers[session.session_id]
            if session._open:
                self._lingering.setdefault(session.session_id, []).append(session)

    def _count_append(self) -> int:
        index = self._appends
        self._appends = index + 1
        return index

    def _fate_of(self, ticket: MemoryTicket) -> tuple[float, Exception | None]:
        """When the commit has its outcome (-inf: now), and the error it then has."""
        if self._instant:
            return -math.inf, None
        due, error = _reckon(self._delay, ticket._appended_at)
        if ticket._index in self._script:
            scripted_due, scripted_error = _reckon(self._script[ticket._index], ticket._appended_at)
            if scripted_error is None:
                return scripted_due, None
            error = scripted_error
        return due, error


def _reckon(fate: Fate, appended_at: float) -> tuple[float, Exception | None]:
    match fate:
        case "hang":
            return math.inf, None
        case Exception():
            return -math.inf, fate
        case type():
            return -math.inf, fate("the commit failed, as the MemoryJournal was told")
        case 0:
            return -math.inf, None
        case _:
            return appended_at + fate, None


def _now(*, otherwise: float) -> float:
    try:
        return trio.current_time()
    except RuntimeError:  # outside trio.run no time passes: what is delayed stays open
        return otherwise
