"""`LastTurn`: how the newest turn of a conversation ended."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

import trio_runner._core.values as v
from trio_runner._core.errors import JournalError
from trio_runner._core.limits import LimitReached
from trio_runner._core.nested import nested_usage
from trio_runner._core.quick import ByFields
from trio_runner._core.reconcile import HistoryRollbackState
from trio_runner._core.turn import Turn


@attrs.frozen(eq=False, repr=False)
class LastTurn(ByFields):
    """How the newest turn ended.

    Attributes:
      messages: the turn's messages, input first.
      rollback: what the end did to the history.
      usage: the sum over its own model calls.
      commit_errors: what the journal could not do.
      limit: which limit ended it, in this process; None: none did.
    """

    number: int
    messages: tuple[v.Message, ...]
    end_reason: v.EndReason
    rollback: HistoryRollbackState
    usage: v.Usage
    commit_errors: tuple[JournalError, ...]
    limit: LimitReached | None = None

    @property
    def nested_usage(self) -> v.Usage:
        """The sum over the turns of agents that ran as its tools, to any depth."""
        return nested_usage(self.messages)

    @property
    def total_usage(self) -> v.Usage:
        """``usage`` and ``nested_usage`` together."""
        return self.usage + self.nested_usage


def last_turn(
    turn: Turn,
    rollback: HistoryRollbackState | None,
    commit_errors: Iterable[JournalError] = (),
    limit: LimitReached | None = None,
) -> LastTurn | None:
    """How ``turn`` ended; None when it did not."""
    if turn.end_reason is None or rollback is None:
        return None
    errors = tuple(commit_errors)
    return LastTurn(
        turn.number, turn.messages, turn.end_reason, rollback, turn.usage, errors, limit
    )
