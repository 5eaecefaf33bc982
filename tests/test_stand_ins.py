"""The text of a result that the library made never contradicts its status (contract C4)."""

from __future__ import annotations

import pytest

import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.validity import result_problems

End = v.EndReason
Status = v.CallStatus

CALL = v.ToolCall("c1", "pay", {"amount": 3})

#: Every stand-in whose words are the library's: made, status, what it says of the tool function.
NEVER_ENTERED = "never entered"
ENTERED = "may have been entered"
CASES: list[tuple[str, v.ToolResult, Status, str]] = [
    *[
        (
            f"stopped before it began, {reason.value}",
            stand_ins.stopped(CALL, reason, started=False),
            Status.NOT_STARTED,
            NEVER_ENTERED,
        )
        for reason in End
    ],
    *[
        (
            f"stopped while it ran, {reason.value}",
            stand_ins.stopped(CALL, reason, started=True),
            Status.TIMED_OUT if reason in (End.TIMED_OUT, End.LIMIT) else Status.INTERRUPTED,
            ENTERED,
        )
        for reason in End
    ],
    (
        "crashed before it began",
        stand_ins.crashed(CALL, started=False),
        Status.NOT_STARTED,
        NEVER_ENTERED,
    ),
    (
        "crashed while it ran",
        stand_ins.crashed(CALL, started=True),
        Status.UNKNOWN_AFTER_CRASH,
        ENTERED,
    ),
    ("unrecorded", stand_ins.unrecorded(CALL), Status.INTERRUPTED, ENTERED),
    ("timed out", stand_ins.call_timed_out(CALL, 2.5), Status.TIMED_OUT, ENTERED),
    ("cancelled", stand_ins.call_cancelled(CALL), Status.CANCELLED, ENTERED),
    ("withdrawn", stand_ins.call_withdrawn(CALL), Status.NOT_STARTED, NEVER_ENTERED),
    ("denied", stand_ins.denied(CALL, "not on a Sunday."), Status.DENIED, NEVER_ENTERED),
    ("limit reached", stand_ins.limit_reached(CALL, 7), Status.LIMIT_REACHED, NEVER_ENTERED),
    ("output cut", stand_ins.output_cut(CALL), Status.OUTPUT_CUT, NEVER_ENTERED),
]

each_case = pytest.mark.parametrize(
    ("made", "status", "truth"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)

#: The word that each status begins with; no text begins with another one's.
FIRST_WORDS = {
    Status.NOT_STARTED: "Not started:",
    Status.INTERRUPTED: "Interrupted:",
    Status.TIMED_OUT: "Timed out:",
    Status.CANCELLED: "Cancelled:",
    Status.DENIED: "Denied:",
    Status.LIMIT_REACHED: "Limit reached:",
    Status.OUTPUT_CUT: "Output cut:",
    Status.UNKNOWN_AFTER_CRASH: "Unknown:",
}


@each_case
def test_a_stand_in_is_a_valid_result_of_its_call(
    made: v.ToolResult, status: Status, truth: str
) -> None:
    assert (made.call_id, made.name, made.status) == (CALL.id, CALL.name, status)
    assert result_problems(made) == []
    assert made.is_error
    assert made.structured_content is None


@each_case
def test_a_text_begins_with_the_word_of_its_status(
    made: v.ToolResult, status: Status, truth: str
) -> None:
    assert made.text.startswith(FIRST_WORDS[status])


@each_case
def test_no_effect_is_said_of_just_the_calls_that_were_never_entered(
    made: v.ToolResult, status: Status, truth: str
) -> None:
    assert ("had no effect" in made.text) == (truth == NEVER_ENTERED)
    assert ("not run" in made.text) == (truth == NEVER_ENTERED)


@each_case
def test_a_call_that_may_have_been_entered_is_said_to_be_of_unknown_effect(
    made: v.ToolResult, status: Status, truth: str
) -> None:
    assert ("not known" in made.text) == (truth == ENTERED)


def test_each_status_that_means_not_entered_is_told_from_those_that_do_not() -> None:
    not_entered = {status for _, _, status, truth in CASES if truth == NEVER_ENTERED}
    entered = {status for _, _, status, truth in CASES if truth == ENTERED}
    assert not not_entered & entered


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (End.INTERRUPTED, "the turn was interrupted"),
        (End.TIMED_OUT, "the turn's time was up"),
        (End.FAILED, "the turn failed"),
        (End.SUSPENDED, "the turn ended (suspended)"),
    ],
)
@pytest.mark.parametrize("started", [False, True])
def test_a_stopped_call_says_why_its_turn_ended(reason: End, words: str, started: bool) -> None:
    assert words in stand_ins.stopped(CALL, reason, started=started).text


def test_a_text_names_what_it_depends_on() -> None:
    assert "2.5 seconds" in stand_ins.call_timed_out(CALL, 2.5).text
    assert "not on a Sunday." in stand_ins.denied(CALL, "not on a Sunday.").text
    assert "7 batches" in stand_ins.limit_reached(CALL, 7).text
    assert "output limit" in stand_ins.output_cut(CALL).text


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (stand_ins.failed(CALL, "ValueError: boom"), Status.ERROR),
        (stand_ins.invalid_arguments(CALL, "ValueError: boom"), Status.INVALID_ARGUMENTS),
    ],
)
def test_the_others_say_what_they_are_given(made: v.ToolResult, status: Status) -> None:
    assert (made.call_id, made.name, made.status) == (CALL.id, CALL.name, status)
    assert made.text == "ValueError: boom"


def test_every_status_but_those_of_tools_and_planning_has_a_stand_in() -> None:
    made = {status for _, _, status, _ in CASES}
    elsewhere = {Status.OK, Status.ERROR, Status.INVALID_ARGUMENTS, Status.UNAVAILABLE}
    assert made | elsewhere == set(Status)
    assert set(FIRST_WORDS) == made
