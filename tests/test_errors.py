"""The errors: whose fault they are, and what their messages say."""

from __future__ import annotations

import inspect

import pytest
import trio

import trio_runner as tr
import trio_runner._core.errors as errors
from trio_runner._core.fold import RecordError

# Whose fault it is, by the class that says so; the others of the library stand below one of them.
YOURS = {"BusyError", "NotEnteredError", "TurnEndedError", "TurnInterruptedError",
         "NothingToResumeError", "HistoryError", "UnknownPriceError",
         "TurnSuspendedError", "DecisionError"}  # fmt: skip


def ours() -> dict[str, type[Exception]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }


def test_every_error_is_one_of_the_librarys_and_says_what_it_means() -> None:
    for name, kind in ours().items():
        assert issubclass(kind, tr.TrioRunnerError), name
        assert kind.__doc__, name


def test_what_you_did_wrong_is_a_usage_error_and_nothing_else_is() -> None:
    found = {name for name, kind in ours().items() if issubclass(kind, tr.UsageError)}
    assert found == YOURS | {"UsageError"}


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (tr.InvalidArgumentsError, tr.ToolError),
        (tr.ModelReplyError, tr.ModelError),
        (tr.CommitFailedError, tr.JournalError),
        (tr.CommitUnknownError, tr.JournalError),
        (RecordError, tr.JournalError),
        (tr.TurnInterruptedError, tr.TurnEndedError),
    ],
)
def test_an_error_can_be_caught_with_its_kin(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


def test_an_error_that_ends_the_turn_is_no_answer_to_a_call() -> None:
    # A tool that catches ToolError must not catch the end of the turn.
    assert not issubclass(tr.FatalToolError, tr.ToolError)
    assert not issubclass(tr.CommitFailedError, tr.CommitUnknownError)


def test_the_turns_timeout_is_trios_kind_of_timeout() -> None:
    assert issubclass(tr.TurnTimeoutError, trio.TooSlowError)
    assert not issubclass(tr.TurnTimeoutError, tr.TrioRunnerError)


def test_a_turn_that_ended_says_how_where_that_is_known() -> None:
    known = tr.TurnEndedError("over", tr.EndReason.ANSWERED)
    assert (str(known), known.end_reason) == ("over", tr.EndReason.ANSWERED)
    assert tr.TurnInterruptedError("cut").end_reason is None


@pytest.mark.parametrize("count", [1, 5, 6, 40])
def test_a_refused_history_shows_five_problems_and_counts_the_others(count: int) -> None:
    problems = [f"message {i}: wrong" for i in range(count)]

    error = tr.HistoryError(problems)
    problems.clear()

    assert len(error.problems) == count
    text = str(error)
    assert text.count("wrong") == min(count, 5)
    assert text.startswith("not a valid history: message 0: wrong")
    more = f"and {count - 5} more"
    assert (more in text) is (count > 5)
    assert "Nothing was changed" in text
    assert "reconcile_interrupted_history(messages)" in text
