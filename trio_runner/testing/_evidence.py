"""What a turn left behind, and what really happened meanwhile: `Evidence` and `Ledger`.

What may live here: the two values that the checks of ``contract.py`` compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import attrs
import trio

import trio_runner._core.records as records
import trio_runner._core.values as v
from trio_runner._core.open_step import OpenStep
from trio_runner._shell.conversation import LastTurn
from trio_runner.testing._outcome import Outcome


def _in_force() -> bool:
    """Whether a cancel is in force for the current task; False outside a task."""
    try:
        return trio.current_effective_deadline() == -math.inf
    except RuntimeError:  # in a worker thread: it may begin late, and is waited for
        return False


def _now() -> float:
    try:
        return trio.current_time()
    except RuntimeError:
        return -math.inf


@attrs.define
class Ledger:
    """What really happened, noted outside the library; a `Witness` keeps it.

    Each fact is noted in the very step in which it becomes true. Times are
    trio's clock.
    """

    #: By call id: the tool was entered.
    entered: set[str] = attrs.field(factory=set[str])
    #: By call id: what the tool returned, noted as its last statement.
    returned: dict[str, object] = attrs.field(factory=dict[str, object])
    #: By call id: what it raised of its own.
    raised: dict[str, BaseException] = attrs.field(factory=dict[str, BaseException])
    #: By call id: the tool was left, in any way.
    left: set[str] = attrs.field(factory=set[str])
    #: What began although the caller's cancel was in force.
    late: list[str] = attrs.field(factory=list[str])
    #: What went ahead of a commit that it depends on.
    ahead: list[str] = attrs.field(factory=list[str])
    #: What was wrong with histories that went to the model or to a hook.
    bad_histories: list[str] = attrs.field(factory=list[str])
    #: Messages handed out, with what they looked like then.
    handed_out: list[tuple[v.Message, str]] = attrs.field(factory=list[tuple[v.Message, str]])
    #: When something first stopped the turn from inside: an error, or its driver.
    stopped_at: float = math.inf
    #: When the last tool was left, and when all of it was left.
    last_tool_left_at: float = -math.inf
    left_at: float = math.inf
    #: Commits that were open when the turn had been left; None when no turn had begun.
    open_at_leaving: int | None = None
    #: Sessions of the journal that were opened, and those still open when the agent was left.
    opened_sessions: int = 0
    open_sessions: int = 0
    #: Commits that failed.
    failed_commits: int = 0
    #: Whether the driver of the turn lost its patience.
    gave_up: bool = False
    #: Errors that a planned fault put into the turn.
    planted: list[BaseException] = attrs.field(factory=list[BaseException])
    #: Errors that observers or the log were told of.
    told: list[BaseException] = attrs.field(factory=list[BaseException])
    #: Whether the caller's cancel is in force, asked where something begins. A shield
    #: around it hides that from the task; whoever drives the turn knows better.
    is_cancelled: Callable[[], bool] = _in_force

    def begins(self, what: str) -> None:
        """Note a start that must not be when the caller's cancel is in force."""
        if self.is_cancelled():
            self.late.append(what)

    def hand_out(self, message: v.Message) -> None:
        """Note a message that the library gave away, as it looks now."""
        self.handed_out.append((message, repr(message)))

    def leaves(self, call_id: str) -> None:
        """Note that the tool of a call was left."""
        self.left.add(call_id)
        self.last_tool_left_at = _now()

    def stops(self) -> None:
        """Note the first thing that stops the turn from inside."""
        self.stopped_at = min(self.stopped_at, _now())


#: What can become of a call in a turn with no timeout, no hooks and no crash before it.
PLAIN_STATUSES = frozenset(v.CallStatus) - {
    v.CallStatus.TIMED_OUT,
    v.CallStatus.CANCELLED,
    v.CallStatus.DENIED,
    v.CallStatus.UNKNOWN_AFTER_CRASH,
}


@attrs.frozen(kw_only=True)
class Evidence:
    """What one turn left behind, after the agent was left.

    Attributes:
      ledger: what really happened.
      history: the agent's history.
      last_turn: how its turn ended; None when none began.
      busy: whether the agent says that a turn is running.
      outcome: what a sweep saw of the run; None when it was not swept.
      stored: the records of its session; None without a journal.
      journal_failed: the journal was made to fail, so it may hold less than memory.
      grace: seconds that leaving may take; None when nothing is said of it.
      raises_cancel: the run ends with a checkpoint, so a cancel always leaves it.
      left_early: the run leaves the turn by itself before its end.
      handed: which messages of the turn the run was given: "all" the assistant's in
        order, or the "last"; None when nothing is said of it.
      before: how many messages the history had before the turn.
      statuses: those that something in this turn can make true.
      max_result_bytes: the cap on a result; None: none.
      exact_starts: a call counts as started exactly when its tool was entered.
        An interrupt at a line may come between the two; the call then counts as
        started, which is the safe side.
      own_errors: types of errors that may leave the run, since it raises them.
      open_step: the step that a suspended turn was left with.
    """

    ledger: Ledger
    history: Sequence[v.Message]
    last_turn: LastTurn | None
    busy: bool = False
    outcome: Outcome | None = None
    stored: Sequence[records.Record] | None = None
    journal_failed: bool = False
    grace: float | None = 5.0
    raises_cancel: bool = True
    left_early: bool = False
    handed: Literal["all", "last"] | None = None
    before: int = 0
    statuses: frozenset[v.CallStatus] = frozenset(v.CallStatus)
    max_result_bytes: int | None = None
    exact_starts: bool = True
    own_errors: tuple[type[BaseException], ...] = ()
    open_step: OpenStep | None = None

    @property
    def turn_messages(self) -> tuple[v.Message, ...]:
        """The messages of the turn; () when none began."""
        return () if self.last_turn is None else self.last_turn.messages

    @property
    def results(self) -> dict[str, v.ToolResult]:
        """The tool results of the turn, of the history and of the open step, by call id."""
        return results_by_id((*self.turn_messages, *self.history), self.open_step)


def results_by_id(
    messages: Iterable[v.Message], open_step: OpenStep | None
) -> dict[str, v.ToolResult]:
    """The results in ``messages`` and those that an open step has so far."""
    found = {each.call_id: each for message in messages for each in message.tool_results}
    for result in [] if open_step is None else open_step.results:
        if result is not None:
            found[result.call_id] = result
    return found
