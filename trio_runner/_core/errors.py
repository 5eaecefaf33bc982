"""The errors, sorted by whose fault they are.

Yours: `UsageError` and below. Nobody's: `LimitReachedError`. The tool's: `ToolError`,
`FatalToolError`. The model's: `ModelError`. The store's: `JournalError`. Ours:
`InternalError`.
A message says what was found, what was expected and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio_runner._core.values as v
from trio_runner._core.limits import LimitReached


class TrioRunnerError(Exception):
    """Base of every error this library raises on its own account, but for `TurnTimeoutError`."""


# --- yours ----------------------------------------------------------------------


class UsageError(TrioRunnerError):
    """The library was used in a way it cannot honour; nothing was changed."""


class BusyError(UsageError):
    """A second turn on one agent, or a second task on one runner; the first is unaffected."""


class NotEnteredError(UsageError):
    """A runner, agent or toolset was used outside its ``async with`` block."""


class TurnEndedError(UsageError):
    """The turn is over, so it can take no further message.

    Attributes:
      end_reason: how the turn ended, where that is known.
    """

    def __init__(self, message: str, end_reason: v.EndReason | None = None) -> None:
        super().__init__(message)
        self.end_reason = end_reason


class TurnInterruptedError(TurnEndedError):
    """The turn was interrupted before it had an answer: there is no message to return."""


class NothingToResumeError(UsageError):
    """``resume()`` found no unfinished turn."""


class UnknownPriceError(UsageError):
    """A scope limits the cost, and its prices have no model of that name."""


class TurnSuspendedError(UsageError):
    """The newest turn waits for a word on some of its calls, which is in the way of this.

    Attributes:
      call_ids: the calls that wait.
    """

    def __init__(self, message: str, call_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.call_ids: tuple[str, ...] = tuple(call_ids)


class DecisionError(UsageError):
    """Decisions on pending calls that cannot be carried out; nothing was changed.

    Attributes:
      problems: one sentence for each.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__(f"{'; '.join(self.problems)}. Nothing was changed")


class HistoryError(UsageError):
    """Messages that are not a valid history were refused.

    Attributes:
      problems: one sentence for each fault, with the index of its message.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        shown = "; ".join(self.problems[:5])
        more = f"; and {len(self.problems) - 5} more" if len(self.problems) > 5 else ""
        super().__init__(
            f"not a valid history: {shown}{more}. Nothing was changed. "
            "reconcile_interrupted_history(messages) returns a valid one"
        )


# --- nobody's: you asked for it -------------------------------------------------


class LimitReachedError(TrioRunnerError):
    """A turn met a limit before it had a message to return; its history is valid and kept.

    Attributes:
      limit: which limit.
    """

    def __init__(self, limit: LimitReached) -> None:
        super().__init__(
            f"{limit}, and the turn has no message to return; agent.resume() goes on in a scope "
            "with more"
        )
        self.limit = limit


# --- the tool's -----------------------------------------------------------------


class ToolError(TrioRunnerError):
    """Raise it in a tool to answer the call with an error the model reads as it stands."""


class InvalidArgumentsError(ToolError):
    """The arguments do not fit the tool's schema; the call is answered ``invalid_arguments``."""


class FatalToolError(TrioRunnerError):
    """Raise it in a tool to end the turn: the result is kept, siblings finish, then it leaves."""


# --- the model's ----------------------------------------------------------------


class ModelError(TrioRunnerError):
    """The model side failed."""


class ModelReplyError(ModelError):
    """A model returned something that is not an assistant message."""


class StructuredOutputError(ModelError):
    """A turn that was to end with a structured answer ended without one; its history is valid.

    Attributes:
      message: the model's last message, or None.
      problems: one sentence for each thing that is wrong with it.
      attempts: how many answers were judged and did not fit.
      end_reason: how the turn ended: ``failed`` when the retries were used up, else
        what stopped it.
    """

    def __init__(
        self,
        text: str,
        *,
        message: v.Message | None,
        problems: Sequence[str],
        attempts: int,
        end_reason: v.EndReason,
    ) -> None:
        super().__init__(text)
        self.message = message
        self.problems: tuple[str, ...] = tuple(problems)
        self.attempts = attempts
        self.end_reason = end_reason


class CompactionError(TrioRunnerError):
    """A history was not compacted: no summary came, or none that fits. Nothing was changed."""


# --- the store's ----------------------------------------------------------------


class JournalError(TrioRunnerError):
    """The journal could not keep what it was given."""


class CommitFailedError(JournalError):
    """A commit failed; with ``durability="strict"`` it ends the turn."""


class SessionLostError(JournalError):
    """Another writer took the session over, so what was appended here is not stored.

    What a journal reports by it is final: nothing more can be stored by this opening, and
    another process may be running the turn. It ends the turn whatever its ``durability`` is.
    """


class CommitUnknownError(JournalError):
    """A commit was given up: it may still land, and is never sent again under another number."""


# --- ours, and foreign ----------------------------------------------------------


class InternalError(TrioRunnerError):
    """A rule of the library was broken by the library: please report it."""


class StrayCancellationError(TrioRunnerError):
    """A model or hook raised a cancellation by itself, while nobody had cancelled the turn."""
