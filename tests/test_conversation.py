"""`Conversation`: the history, the step kept aside, the session and the one-turn lock."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, cast

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import trio_runner as tr
import trio_runner.records as r
from trio_runner._core.history import History
from trio_runner._core.records import arguments_hash
from trio_runner._core.turn import Phase, Turn
from trio_runner._core.validity import history_problems
from trio_runner._shell.conversation import Conversation
from trio_runner.testing import ScriptedModel, strategies


def user(text: str, **options: Any) -> tr.Message:
    return tr.Message.user(text, **options)


def asks(*ids: str, **options: Any) -> tr.Message:
    return tr.Message.assistant(tool_calls=[tr.ToolCall(i, "work") for i in ids], **options)


def answers(*ids: str, **options: Any) -> tr.Message:
    results = [tr.ToolResult(i, "work", f"value of {i}") for i in ids]
    return tr.Message.user(tool_results=results, **options)


def statuses(messages: Sequence[tr.Message]) -> dict[str, str]:
    return {each.call_id: each.status.value for m in messages for each in m.tool_results}


def shapes(conversation: Conversation) -> list[str]:
    return [
        "results" if m.tool_results else "calls" if m.tool_calls else m.text
        for m in conversation.history.snapshot()
    ]


async def session_of(journal: tr.MemoryJournal) -> tr.JournalSession:
    return await journal.open("s")


def same_when_opened(conversation: Conversation, stored: Sequence[r.Record]) -> bool:
    """Whether the session opens as the conversation is: history, newest turn, open calls."""
    state = tr.fold(stored)
    mine, theirs = conversation.turn, state.turn
    assert (mine is None) == (theirs is None)
    if mine is not None and theirs is not None:
        assert (mine.number, mine.phase) == (theirs.number, theirs.phase)
        assert mine.end_reason is theirs.end_reason
        assert (mine.reply, mine.open_positions) == (theirs.reply, theirs.open_positions)
        assert mine.started_positions == theirs.started_positions
    return state.history.view() == conversation.history.view()


# --- loading --------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["a reply", "two of three results"])
def test_a_step_that_is_open_at_the_end_is_kept_aside(ending: str) -> None:
    tail = [asks("a", "b", "c")]
    if ending != "a reply":
        tail.append(answers("c", "a"))

    conversation = Conversation([user("go"), *tail])

    assert shapes(conversation) == ["go"]
    turn = conversation.turn
    assert turn is not None
    assert turn.reply is not None
    assert turn.open_positions == ([0, 1, 2] if ending == "a reply" else [1])
    # Nothing says that they did not run.
    assert turn.started_positions == turn.open_positions


def test_an_open_step_is_healed_truthfully_with_the_results_that_were_there() -> None:
    conversation = Conversation([user("go"), asks("a", "b"), answers("a")])

    made = conversation.heal()

    assert [(each.call_id, each.status.value) for each in made] == [("b", "interrupted")]
    assert "not known whether it ran" in made[0].text
    assert shapes(conversation) == ["go", "calls", "results"]
    assert statuses(conversation.history.snapshot()) == {"a": "ok", "b": "interrupted"}
    assert conversation.heal() == ()
    assert conversation.turn is not None
    assert conversation.turn.end_reason is tr.EndReason.INTERRUPTED


@pytest.mark.parametrize(
    "tail",
    [
        [asks("a", stop_reason=tr.StopReason.MAX_TOKENS)],
        [asks("a", stop_reason=tr.StopReason.SAFETY)],
        [asks("a"), user("next")],
        [asks("a", "b"), answers("a", meta={}), user("next")],
        [asks("a"), tr.Message.user("mixed", tool_results=[tr.ToolResult("a", "work", "x")])],
        [asks("a", "b"), tr.Message.user("mixed", tool_results=[tr.ToolResult("a", "work", "x")])],
        [asks("a"), answers("other")],
        [asks("a", "b"), answers("a", "a")],
        [asks("a", "a")],
        [asks("")],
        [tr.Message.assistant(tool_calls=[tr.ToolCall("a", "work", {}, "bad text")])],
        [asks("a", "b", template=True)],
        [user("go"), asks("a", "b", template=True), answers("a", template=True)],
    ],
)
def test_what_cannot_be_taken_up_again_is_answered_at_once(tail: list[tr.Message]) -> None:
    conversation = Conversation([user("go"), *tail])

    assert conversation.turn is None
    tr.check_history(conversation.history.snapshot())
    called = [c.id for m in conversation.history.snapshot() for c in m.tool_calls]
    assert set(statuses(conversation.history.snapshot())) == set(called)


@pytest.mark.parametrize(
    "reason", [None, tr.StopReason.END_TURN, tr.StopReason.PAUSE, tr.StopReason.TOOL_USE]
)
def test_a_kept_step_asks_for_tools_whatever_normal_reason_it_had(
    reason: tr.StopReason | None,
) -> None:
    conversation = Conversation([user("go"), attrs.evolve(asks("a"), stop_reason=reason)])
    assert conversation.turn is not None
    assert conversation.turn.reply is not None
    assert conversation.turn.reply.stop_reason is tr.StopReason.TOOL_USE


def test_an_open_step_with_an_id_of_the_history_is_repaired_not_taken_up() -> None:
    conversation = Conversation([user("go"), asks("a"), answers("a"), asks("a")])

    assert conversation.turn is None
    tr.check_history(conversation.history.snapshot())
    assert shapes(conversation) == ["go", "calls", "results", "calls", "results"]


def test_loading_anew_answers_the_step_that_was_kept_and_forgets_it() -> None:
    conversation = Conversation([user("go"), asks("a")])
    conversation.load([user("new")])
    assert shapes(conversation) == ["new"]
    assert conversation.turn is not None
    assert conversation.turn.phase is Phase.ENDED


def test_what_is_no_message_is_refused() -> None:
    for load in (Conversation, Conversation().load, Conversation().replace_history):
        with pytest.raises(TypeError, match="holds a str"):
            load(cast("Any", ["text"]))


# --- templates ------------------------------------------------------------------


def test_templates_go_to_the_front_in_their_order() -> None:
    one, two = user("one", template=True), user("two", template=True)
    conversation = Conversation([user("a"), one, user("b"), two])
    assert shapes(conversation) == ["one", "two", "a", "b"]
    assert conversation.history.templates() == (one, two)


def test_a_history_with_its_templates_in_front_keeps_its_objects() -> None:
    messages = (user("one", template=True), user("a"))
    kept = Conversation(messages).history.snapshot()
    assert all(mine is theirs for mine, theirs in zip(kept, messages, strict=True))


@pytest.mark.parametrize("how", ["load", "replace"])
@pytest.mark.parametrize("front", [True, False])
def test_the_answers_to_a_template_are_a_template(how: str, front: bool) -> None:
    # It is sent without what follows it, in a turn without history.
    pair = [asks("a", template=True), answers("a")]
    messages = [*pair, user("go")] if front else [user("go"), *pair]
    conversation = Conversation()

    if how == "load":
        conversation.load(messages)
    else:
        conversation.replace_history(messages)

    assert shapes(conversation) == ["calls", "results", "go"]
    tr.check_history(conversation.history.templates())
    assert len(conversation.history.templates()) == 2


async def test_an_open_template_is_answered_once_and_stays_valid_without_history() -> None:
    async def work() -> str:
        return "ok"

    model = ScriptedModel(["one", "two"])  # checks each request
    front = [asks("a", template=True)]
    agent = tr.ToolAgent("a", model=model, tools=[work], history=front)
    await agent.generate("go", params=tr.RequestParams(use_history=False))
    agent.clear()
    await agent.generate("go")
    assert statuses(agent.history) == {"a": "interrupted"}


# --- replacing the history ------------------------------------------------------


def open_turn(conversation: Conversation) -> Turn:
    """A running turn with one of two calls answered."""
    turn = conversation.new_turn()
    turn.input_added([user("go")])
    turn.model_replied(asks("a", "b"))
    turn.tool_started(0)
    turn.tool_finished(0, tr.ToolResult("a", "work", "value of a"))
    return turn


def test_an_open_step_stays_open_behind_a_history_that_is_put_in_place() -> None:
    conversation = Conversation([user("old")])
    turn = open_turn(conversation)

    conversation.replace_history([user("short"), user("summary", template=True)], turn)

    assert shapes(conversation) == ["summary", "short"]
    assert turn.open_positions == [1]
    turn.tool_started(1)
    turn.tool_finished(1, tr.ToolResult("b", "work", "value of b"))
    assert shapes(conversation) == ["summary", "short", "calls", "results"]
    tr.check_history(conversation.history.snapshot())


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([asks("a"), answers("a")], "'a'"),  # an id of the open step
        ([user("x"), asks("z")], "'z'"),  # another open step
        ([user("")], "empty"),
    ],
)
async def test_a_history_that_does_not_fit_is_refused_and_nothing_changes(
    bad: list[tr.Message], problem: str
) -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation([user("old")])
    conversation.attach(await session_of(journal), "s", "a")
    turn = open_turn(conversation)
    before = conversation.history.snapshot(), journal.stored("s"), turn.open_positions

    with pytest.raises(tr.HistoryError) as caught:
        conversation.replace_history(bad, turn)

    assert problem in str(caught.value)
    assert (conversation.history.snapshot(), journal.stored("s"), turn.open_positions) == before


def test_a_step_that_is_kept_aside_stays_open_too_and_shares_no_id() -> None:
    conversation = Conversation([user("old"), asks("a")])

    with pytest.raises(tr.HistoryError, match="'a'"):
        conversation.replace_history([asks("a"), answers("a")])
    conversation.replace_history([user("short")])

    conversation.heal()
    assert shapes(conversation) == ["short", "calls", "results"]


async def test_only_a_history_that_is_kept_is_recorded() -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation()
    conversation.attach(await session_of(journal), "s", "a")
    conversation.replace_history([user("one")])
    aside = conversation.new_turn_aside()
    conversation.replace_history([user("two")], aside)

    replaced = [each for each in journal.stored("s") if type(each) is r.HistoryReplaced]
    assert [[m.text for m in each.messages] for each in replaced] == [["one"]]
    assert shapes(conversation) == ["one"]
    assert [m.text for m in aside.history.snapshot()] == ["two"]


# --- results from outside -------------------------------------------------------


def test_results_from_outside_answer_open_calls_under_the_calls_name() -> None:
    conversation = Conversation([user("go"), asks("a", "b")])

    conversation.match_results([tr.ToolResult("b", "other", "from outside")])

    turn = conversation.turn
    assert turn is not None
    assert turn.open_positions == [0]
    conversation.match_results([tr.ToolResult("a", "", "too")])
    results = conversation.history.snapshot()[-1].tool_results
    assert [(each.call_id, each.name, each.text) for each in results] == [
        ("a", "work", "too"), ("b", "work", "from outside"),
    ]  # fmt: skip
    # The step is closed; the rest of its turn is ended by the next one.
    assert conversation.heal() == ()
    assert turn.end_reason is tr.EndReason.INTERRUPTED


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ([tr.ToolResult("z", "work", "x")], "'z', which is not open"),
        ([tr.ToolResult("a", "work", "x")] * 2, "2 results for call 'a'"),
        ([tr.ToolResult("a", "work", "\ud800")], "result for 'a'"),
    ],
)
def test_results_that_do_not_fit_are_refused_together(
    given_: list[tr.ToolResult], problem: str
) -> None:
    conversation = Conversation([user("go"), asks("a", "b")])

    with pytest.raises(tr.HistoryError, match=problem):
        conversation.match_results([tr.ToolResult("b", "work", "good"), *given_])

    assert conversation.turn is not None
    assert conversation.turn.open_positions == [0, 1]
    # Without any turn no call is open.
    with pytest.raises(tr.HistoryError, match="not open"):
        Conversation().match_results([tr.ToolResult("a", "work", "x")])
    Conversation().match_results([])


# --- turns ----------------------------------------------------------------------


def test_turns_are_counted_with_and_without_history() -> None:
    conversation = Conversation([user("front", template=True), user("old")])
    first, aside, second = (
        conversation.new_turn(),
        conversation.new_turn_aside(),
        conversation.new_turn(),
    )
    assert [first.number, aside.number, second.number] == [1, 2, 3]
    assert first.history is second.history is conversation.history
    assert [m.text for m in aside.history.snapshot()] == ["front"]


def test_a_fresh_agent_has_nothing_to_resume() -> None:
    with pytest.raises(tr.NothingToResumeError, match="no turn yet"):
        Conversation().unfinished_turn()


def test_a_turn_aside_is_resumed_unless_it_is_answered_and_a_kept_step_is_open() -> None:
    conversation = Conversation([user("go"), asks("a")])
    kept = conversation.unfinished_turn()
    assert kept is conversation.turn
    aside = conversation.new_turn_aside()
    aside.input_added([user("aside")])
    assert conversation.unfinished_turn() is aside
    aside.model_replied(tr.Message.assistant("done"))
    aside.finish()
    assert conversation.unfinished_turn() is kept
    conversation.heal()
    assert conversation.unfinished_turn() is aside


def test_how_the_newest_turn_ended_is_asked_of_who_ran_it() -> None:
    conversation = Conversation()
    assert conversation.last_turn is None
    rollback = tr.HistoryRollbackState(tr.HistoryRollbackStatus.HISTORY_EMPTY, 0, 0)
    last = tr.LastTurn(1, (), tr.EndReason.FAILED, rollback, tr.Usage(), ())
    told: list[tr.LastTurn | None] = [None, last]
    conversation.tells_last_turn(lambda: told.pop(0))
    assert [conversation.last_turn, conversation.last_turn] == [None, last]


async def test_keys_of_calls_name_the_session_and_are_of_this_process_without_one() -> None:
    first, second = Conversation(), Conversation()
    prefixes = [each.key_prefix(each.new_turn()) for each in (first, second)]
    assert prefixes[0] != prefixes[1]
    assert all(prefix.endswith("/1:0") for prefix in prefixes)

    kept = Conversation()
    kept.attach(await session_of(tr.MemoryJournal()), "s", "a")
    turn = kept.new_turn()
    call = tr.ToolCall("c", "work", {"x": 1})
    assert kept.key_prefix(turn) == "s/1:0"
    record = kept.started_record(turn, call, idempotent=True)
    assert (record.key, record.idempotent) == ("s/1:0:c", True)
    assert record.arguments_hash == arguments_hash({"x": 1})


# --- the one-turn lock ----------------------------------------------------------


def test_one_holder_at_a_time_and_only_it_can_let_go() -> None:
    conversation, first, second = Conversation(), object(), object()
    assert not conversation.is_busy
    conversation.acquire(first)
    with pytest.raises(tr.BusyError, match="another turn, or a compaction, is running"):
        conversation.acquire(second)
    conversation.release(second)
    assert conversation.is_busy
    conversation.release(first)
    conversation.require_idle("do anything")
    conversation.acquire(second)


async def test_a_running_turn_keeps_its_history_and_session() -> None:
    conversation = Conversation([user("go")])
    session = await session_of(tr.MemoryJournal())
    conversation.acquire(object())
    with pytest.raises(tr.BusyError, match="cannot load a history"):
        conversation.load([])
    with pytest.raises(tr.BusyError, match="cannot open a session"):
        conversation.attach(session, "s", "a")
    assert shapes(conversation) == ["go"]
    assert session.records == ()


# --- sessions -------------------------------------------------------------------


async def test_a_new_session_begins_with_what_is_there() -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation([user("go")])
    conversation.attach(await session_of(journal), "s", "me")
    assert journal.stored("s") == (r.SessionOpened("me"), r.HistoryReplaced((user("go"),)))

    empty = tr.MemoryJournal()
    Conversation().attach(await session_of(empty), "s", "me")
    assert empty.stored("s") == (r.SessionOpened("me"),)


@pytest.mark.parametrize("then", ["heal", "resume", "nothing"])
async def test_a_step_that_was_loaded_before_the_session_opened_is_in_the_session(
    then: str,
) -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation([user("go"), asks("a", "b"), answers("b")])
    conversation.attach(await session_of(journal), "s", "a")
    assert same_when_opened(conversation, journal.stored("s"))

    turn = conversation.unfinished_turn()
    if then == "resume":
        turn.resumed()
        conversation.commits.add(r.TurnStarted(turn.number, (), True))
        conversation.answer_started(turn)
    if then != "nothing":
        conversation.heal()
        assert statuses(conversation.history.snapshot()) == {"a": "interrupted", "b": "ok"}

    assert same_when_opened(conversation, journal.stored("s"))


@pytest.mark.parametrize("reason", [tr.EndReason.FAILED, tr.EndReason.ANSWERED])
async def test_a_turn_that_ended_before_the_session_opened_can_be_resumed_in_it(
    reason: tr.EndReason,
) -> None:
    # As after a first use during which the store was down.
    journal = tr.MemoryJournal()
    conversation = Conversation()
    turn = conversation.new_turn()
    turn.input_added([user("go")])
    if reason is tr.EndReason.ANSWERED:
        turn.model_replied(tr.Message.assistant("done"))
    turn.interrupt(reason)

    conversation.attach(await session_of(journal), "s", "a")

    assert same_when_opened(conversation, journal.stored("s"))
    if reason is tr.EndReason.FAILED:
        turn.resumed()
        conversation.commits.add(r.TurnStarted(turn.number, (), True))
        assert same_when_opened(conversation, journal.stored("s"))


def stored_session() -> list[r.Record]:
    """A session that a crash cut in its second turn: ``a`` finished, ``b`` had started."""
    reply = asks("a", "b", "c")
    return [
        r.SessionOpened("a"),
        r.TurnStarted(1, (user("one"),)),
        r.ModelFinished(1, 0, tr.Message.assistant("done")),
        r.TurnEnded(1, tr.EndReason.ANSWERED),
        r.TurnStarted(2, (user("two"),)),
        r.ModelFinished(2, 0, reply),
        r.ToolStarted(2, 0, "a", "work", "", "k", False),
        r.ToolStarted(2, 0, "b", "work", "", "k", False),
        r.ToolFinished(2, 0, tr.ToolResult("a", "work", "value of a")),
    ]


async def test_a_session_that_a_crash_cut_is_answered_from_its_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = tr.MemoryJournal()
    session = await session_of(journal)
    session.append(stored_session())
    conversation = Conversation()

    conversation.attach(session, "s", "a")

    assert shapes(conversation) == ["one", "done", "two"]
    assert (conversation.turns, conversation.newest) == (2, conversation.turn)
    assert len(journal.stored("s")) == len(stored_session())  # opening writes nothing
    assert caplog.records == []  # and there is nothing to warn of
    made = conversation.heal()
    assert {each.call_id: each.status.value for each in made} == {
        "b": "unknown_after_crash", "c": "not_started",
    }  # fmt: skip
    assert same_when_opened(conversation, journal.stored("s"))


async def test_a_crash_cut_turn_whose_session_has_gone_is_answered_and_recorded() -> None:
    first, second = tr.MemoryJournal(), tr.MemoryJournal()
    session = await session_of(first)
    session.append(stored_session())
    conversation = Conversation()
    conversation.attach(session, "s", "a")
    conversation.detach()

    conversation.attach(await session_of(second), "s", "a")

    assert statuses(conversation.history.snapshot()) == {
        "a": "ok", "b": "unknown_after_crash", "c": "not_started",
    }  # fmt: skip
    assert same_when_opened(conversation, second.stored("s"))


async def test_history_and_a_stored_session_are_not_mixed() -> None:
    journal = tr.MemoryJournal()
    session = await session_of(journal)
    session.append(stored_session())
    conversation = Conversation([user("mine")])

    with pytest.raises(tr.UsageError, match=r"holds 3 messages and the agent has 1"):
        conversation.attach(session, "s", "a")

    assert shapes(conversation) == ["mine"]
    assert not conversation.commits.keeps


async def test_records_that_do_not_fit_change_nothing() -> None:
    session = await session_of(tr.MemoryJournal())
    session.append([r.TurnEnded(1, tr.EndReason.ANSWERED)])
    conversation = Conversation([user("mine")])
    with pytest.raises(tr.RecordError):
        conversation.attach(session, "s", "a")
    assert shapes(conversation) == ["mine"]


@pytest.mark.parametrize("same", [True, False])
async def test_when_its_own_session_opens_again_the_session_wins_and_a_difference_is_told(
    same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation([user("go")])
    session = await session_of(journal)
    conversation.attach(session, "s", "a")
    conversation.detach()
    await session.aclose()
    assert shapes(conversation) == ["go"]
    if not same:
        conversation.load([user("what the session does not know")])

    conversation.attach(await session_of(journal), "s", "a")

    assert shapes(conversation) == ["go"]
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == (0 if same else 1)


async def test_without_its_session_nothing_more_is_recorded() -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation()
    conversation.attach(await session_of(journal), "s", "a")
    conversation.detach()
    conversation.load([user("go")])
    assert journal.stored("s") == (r.SessionOpened("a"),)
    assert conversation.grace_deadline == -math.inf


# --- whatever is done, it is valid and the session is the same -------------------


async def _do(conversation: Conversation, step: tuple[str, tuple[tr.Message, ...]]) -> None:
    what, messages = step
    match what:
        case "load":
            conversation.load(messages)
        case "heal":
            conversation.heal()
        case "replace":
            try:
                conversation.replace_history(messages)
            except tr.HistoryError:
                pass
        case _:
            turn = conversation.turn
            if turn is not None and turn.reply is not None:
                ids = [turn.reply.tool_calls[i].id for i in turn.open_positions]
                conversation.match_results([tr.ToolResult(i, "", "outside") for i in ids])
                conversation.heal()  # a turn does both at once: a matched step is over


steps = st.lists(
    st.tuples(
        st.sampled_from(["load", "heal", "replace", "match"]),
        st.one_of(strategies.histories(), strategies.damaged_histories()),
    ),
    max_size=4,
)


@given(first=strategies.damaged_histories(), before=steps, after=steps)
@settings(max_examples=30, deadline=None)
async def test_whatever_is_done_the_history_is_valid_and_the_session_opens_the_same(
    first: tuple[tr.Message, ...],
    before: list[tuple[str, tuple[tr.Message, ...]]],
    after: list[tuple[str, tuple[tr.Message, ...]]],
) -> None:
    journal = tr.MemoryJournal()
    conversation = Conversation(first)
    for step in before:
        await _do(conversation, step)
        tr.check_history(conversation.history.snapshot())
    conversation.attach(await session_of(journal), "s", "a")
    assert same_when_opened(conversation, journal.stored("s"))
    for step in after:
        await _do(conversation, step)
        tr.check_history(conversation.history.snapshot())
        tr.check_history(conversation.history.templates())
        # What the next turn does first.
    conversation.heal()
    tr.check_history(conversation.history.snapshot())
    assert same_when_opened(conversation, journal.stored("s"))
    assert type(conversation.history) is History


@pytest.mark.parametrize("odd", [["a"], {}, 7, None])
def test_an_id_that_is_no_text_is_repaired_as_other_damage_is(odd: object) -> None:
    asks = tr.Message.assistant(tool_calls=[tr.ToolCall(cast("str", odd), "read")])
    answers = tr.Message.user(tool_results=[tr.ToolResult(cast("str", odd), "read", "x")])
    for messages in ([asks], [asks, answers], [asks, tr.Message.user("and?")]):
        conversation = Conversation(messages)
        assert history_problems(conversation.history.view()) == []
