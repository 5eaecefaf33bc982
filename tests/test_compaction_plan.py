"""What an automatic compaction replaces, and what it leaves: turns, steps, the newest input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_runner as tr
import trio_runner.testing.strategies as strategies
from trio_runner._core.compaction import (
    compacted,
    is_summary,
    shorten,
    template_count,
)
from trio_runner._core.compaction_plan import (
    check_choice,
    turn_start_in,
    unseen_from,
)
from trio_runner._core.history import History

SYSTEM = tr.Message.user("rules", template=True)


def user(text: str, **options: Any) -> tr.Message:
    return tr.Message.user(text, **options)


def says(text: str) -> tr.Message:
    return tr.Message.assistant(text)


def step(name: str, size: int = 4) -> list[tr.Message]:
    call = tr.ToolCall(name, "work", {})
    result = tr.ToolResult(name, "work", f"{name}:" + "x" * size)
    return [tr.Message.assistant(tool_calls=[call]), tr.Message.user(tool_results=[result])]


def turn(name: str, steps: int = 0) -> list[tr.Message]:
    done = [message for n in range(steps) for message in step(f"{name}{n}")]
    return [user(f"{name}?"), *done, says(f"{name}!")]


def request(
    messages: Sequence[tr.Message],
    reason: tr.CompactionReason = "after_turn",
    *,
    tokens: int = 1_000,
    budget: int | None = 1_000,
    keep_turns: int = 2,
    keep_steps: int = 3,
    turn_start: int | None = None,
) -> tr.CutRequest:
    view = History(messages).view()
    return tr.CutRequest(
        view, reason, keep_turns, keep_steps, tokens, budget, 10, turn_start=turn_start
    )


def names(messages: Sequence[tr.Message]) -> str:
    """The messages in a word each: a step by the id of its call."""
    words = [
        message.tool_calls[0].id if message.tool_calls else message.text
        for message in messages
        if not message.tool_results
    ]
    return " ".join(words)


def after(asked: tr.CutRequest) -> str:
    """What the default policy leaves, with S for the summary; "unchanged" when it takes nothing."""
    cut = tr.keep_recent(asked)
    if cut is None:
        return "unchanged"
    check_choice(asked, cut)
    history = History(asked.history)
    chosen = tr.HistoryCut(cut.start, cut.stop, history.view(), cut.kept)
    shorten(history, compacted(history, chosen, "S"))
    tr.check_history(history.view())
    return names(history.view())


# --- after a turn -----------------------------------------------------------------


def test_the_oldest_turns_go_and_two_stay() -> None:
    messages = [SYSTEM, *turn("a", 2), *turn("b", 1), *turn("c"), *turn("d", 1)]

    assert after(request(messages)) == "rules S c? c! d? d0 d!"


@pytest.mark.parametrize(("keep", "left"), [(0, "S"), (1, "S c? c!"), (3, "unchanged")])
def test_as_many_turns_stay_as_are_asked_for(keep: int, left: str) -> None:
    messages = [*turn("a"), *turn("b"), *turn("c")]

    assert after(request(messages, keep_turns=keep, budget=None)) == left


def test_turns_that_are_few_and_short_are_left_alone() -> None:
    messages = [*turn("a", 3), *turn("b", 3)]

    assert after(request(messages, tokens=900)) == "unchanged"
    assert after(request(messages, budget=None)) == "unchanged"


def test_a_summary_alone_is_not_summarised_again_and_an_older_one_is_folded_in() -> None:
    summary = user("S0", meta={"is_summary": True})
    messages = [summary, *turn("a"), *turn("b")]
    assert after(request(messages)) == "unchanged"

    asked = request([*messages, *turn("c")])
    cut = tr.keep_recent(asked)
    assert cut is not None
    assert names(cut.messages) == "S0 a? a!"
    assert after(asked) == "S b? b! c? c!"


def test_one_oversized_turn_is_cut_between_its_steps() -> None:
    messages = turn("a", 6)

    assert after(request(messages)) == "S a? a3 a4 a5 a!"
    # What is within the budget by itself stays whole.
    assert after(request(messages, tokens=900)) == "unchanged"


def test_the_turns_that_stay_are_cut_between_their_steps_when_they_are_too_much() -> None:
    messages = [*turn("a", 1), *turn("b", 5), *turn("c", 5)]

    # A step is 20 tokens by the estimate, an input or an answer 5: 30 + 110 + 110, which counts as
    # 1,000. Three steps of each leave 560 and the summary's 10, two 410, one 250.
    assert after(request(messages)) == "S b? b0 b1 b2 b3 b4 b! c? c0 c1 c2 c3 c4 c!"
    assert after(request(messages, budget=800)) == "S b? b2 b3 b4 b! c? c2 c3 c4 c!"
    assert after(request(messages, budget=500)) == "S b? b3 b4 b! c? c3 c4 c!"
    assert after(request(messages, budget=400)) == "S b? b4 b! c? c4 c!"


# --- mid-turn ---------------------------------------------------------------------


def running(
    before: Sequence[tr.Message], steps: int, size: int = 4
) -> tuple[list[tr.Message], int]:
    """A history whose last turn has no answer yet, and where that begins."""
    done = [message for n in range(steps) for message in step(f"z{n}", size)]
    return [*before, user("z?"), *done], len(before)


def test_before_a_follow_up_the_input_and_the_last_three_steps_stay() -> None:
    messages, start = running([], 6)

    assert after(request(messages, "mid_turn", turn_start=start)) == "S z? z3 z4 z5"


def test_the_turn_that_runs_is_one_of_the_turns_that_stay() -> None:
    messages, start = running([SYSTEM, *turn("a", 2), *turn("b", 1)], 2)

    assert after(request(messages, "mid_turn", turn_start=start)) == "rules S b? b0 b! z? z0 z1"


def test_older_turns_go_before_steps_of_the_turn_that_runs() -> None:
    messages, start = running(turn("a", 4), 5)
    asked = request(messages, "mid_turn", tokens=1_000, budget=700, turn_start=start)

    assert after(asked) == "S z? z0 z1 z2 z3 z4"
    asked = request(messages, "mid_turn", tokens=1_000, budget=450, turn_start=start)
    assert after(asked) == "S z? z2 z3 z4"


def test_fewer_steps_stay_when_three_are_over_the_budget() -> None:
    messages, start = running([], 6, size=1_000)

    two = request(messages, "mid_turn", budget=400, turn_start=start)
    assert after(two) == "S z? z4 z5"
    # What the model has not seen yet is never taken, however much it is.
    least = request(messages, "mid_turn", budget=1, turn_start=start)
    assert after(least) == "S z? z5"


def test_the_only_step_of_the_only_turn_stays() -> None:
    messages, start = running([], 1)

    assert after(request(messages, "mid_turn", budget=1, turn_start=start)) == "unchanged"


def test_what_was_said_between_steps_goes_with_them_and_what_is_unseen_stays() -> None:
    messages, start = running([], 2)
    more = [*messages, user("note"), *step("y0"), *step("y1"), *step("y2"), user("new note")]

    assert after(request(more, "mid_turn", turn_start=start)) == "S z? y0 y1 y2 new note"


def test_the_input_stays_when_the_turn_before_has_no_answer() -> None:
    before = [user("a?"), *step("a0")]
    messages, start = running(before, 5)

    left = after(request(messages, "mid_turn", turn_start=start, budget=700))
    assert left == "S z? z2 z3 z4"


def test_a_turn_that_was_compacted_once_is_compacted_again() -> None:
    summary = user("S0", meta={"is_summary": True})
    messages, start = running([summary], 5)

    assert after(request(messages, "mid_turn", turn_start=start)) == "S z? z2 z3 z4"


# --- where a turn begins, and what is unseen ---------------------------------------


def test_a_turn_is_found_by_its_first_message() -> None:
    messages, start = running(turn("a"), 2)
    view = History(messages).view()

    assert turn_start_in(view, messages[start:]) == start
    # Equal is not the same: somebody replaced the history.
    assert turn_start_in(view, [user("nowhere")]) == start
    assert turn_start_in(view, ()) == start
    assert turn_start_in(History([SYSTEM]).view(), ()) is None


@pytest.mark.parametrize(
    ("messages", "index"),
    [
        ([], 0),
        ([SYSTEM], 1),
        ([user("a")], 0),
        (turn("a"), 2),
        ([*turn("a"), user("b")], 2),
        ([*turn("a"), user("b"), *step("s"), user("c")], 3),
        ([user("a"), says("b"), user("no", meta={"structured_output": "refused"})], 1),
        ([user("a"), tr.Message.assistant("wait", stop_reason=tr.StopReason.PAUSE)], 1),
        ([says("template").__class__("assistant", "x", template=True), user("b")], 1),
    ],
)
def test_what_the_model_has_not_answered_begins_with_its_step(
    messages: list[tr.Message], index: int
) -> None:
    assert unseen_from(messages) == index


# --- policies ----------------------------------------------------------------------


def test_a_request_makes_cuts_between_whole_steps_only() -> None:
    asked = request([SYSTEM, *turn("a", 2), *turn("b")])

    cut = asked.cut(4, keep=[(1, 2)])
    assert [each.text for each in cut.messages] == ["", ""]
    for stop, keep in ((3, ()), (1, ()), (99, ()), (4, [(3, 4)]), (4, [(1, 4)]), (4, [(2, 6)]),
                       (4, [(2, 4), (1, 2)]), (4, [(0, 1)])):  # fmt: skip
        with pytest.raises(tr.HistoryCutError):
            asked.cut(stop, keep)


def test_a_choice_is_refused_that_takes_what_is_unseen_or_is_of_another_history() -> None:
    messages, start = running(turn("a"), 3)
    asked = request(messages, "mid_turn", turn_start=start)
    check_choice(asked, asked.cut(unseen_from(messages)))

    with pytest.raises(tr.HistoryCutError, match="not answered yet"):
        check_choice(asked, asked.cut(len(messages)))
    with pytest.raises(tr.HistoryCutError, match="another history"):
        check_choice(asked, request(messages).cut(2))
    with pytest.raises(tr.HistoryCutError, match="behind the templates"):
        check_choice(asked, tr.HistoryCut(1, 2, asked.history))


@pytest.mark.parametrize(
    ("settings_", "error"),
    [
        ({"share": 0}, ValueError),
        ({"share": 1.1}, ValueError),
        ({"share": True}, TypeError),
        ({"share": "0.5"}, TypeError),
        ({"context_window": 0}, ValueError),
        ({"context_window": True}, TypeError),
        ({"keep_turns": -1}, ValueError),
        ({"keep_steps": 0}, ValueError),
        ({"keep_steps": 1.0}, TypeError),
        ({"cut": 3}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"timeout": None}, TypeError),
        ({"summary_tokens": 0}, ValueError),
    ],
    ids=str,
)
def test_a_setting_that_cannot_work_is_refused_at_once(
    settings_: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(settings_))):
        tr.Compaction(**settings_)


def test_the_trigger_and_the_size_of_a_summary_follow_the_window() -> None:
    assert tr.Compaction().trigger(1_000) == 850
    assert tr.Compaction(share=0.5).trigger(1_000) == 500
    assert tr.Compaction().target(1_000) == 100
    assert tr.Compaction().target(None) == 2_000
    assert tr.Compaction().target(200_000) == 2_000
    assert tr.Compaction(summary_tokens=7).target(200_000) == 7


# --- random histories, random budgets ------------------------------------------------


@given(
    strategies.histories(max_parts=8),
    st.sampled_from(["after_turn", "mid_turn", "on_demand"]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.none() | st.integers(1, 1_200),
    st.integers(0, 14),
)
@settings(max_examples=100, deadline=None)
def test_what_the_default_policy_chooses_is_always_legal(
    messages: tuple[tr.Message, ...],
    reason: tr.CompactionReason,
    keep_turns: int,
    keep_steps: int,
    budget: int | None,
    start: int,
) -> None:
    history = History(messages)
    view = history.view()
    running_turn = view[min(start, len(view)) :]
    answered = unseen_from(view) == len(view)
    asked = tr.CutRequest(
        view, reason, keep_turns, keep_steps, 1_000, budget, 10,
        turn_start=None if answered else turn_start_in(view, running_turn),
    )  # fmt: skip
    try:
        cut = tr.keep_recent(asked)
    except tr.HistoryCutError:
        return  # where nobody can tell where the turn begins
    if cut is None:
        return
    check_choice(asked, cut)
    shorten(history, compacted(history, cut, "S"))
    after_ = history.snapshot()
    tr.check_history(after_)
    front = template_count(messages)
    assert after_[:front] == messages[:front]
    assert is_summary(after_[front])
    if not answered:
        assert after_[-(len(view) - unseen_from(view)) :] == view[unseen_from(view) :]
