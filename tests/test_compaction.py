"""Where a history may be cut, and what compaction and trim make of it, in memory and on disk."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_runner as tr
import trio_runner.records as r
import trio_runner.testing.strategies as strategies
from trio_runner._core.compaction import (
    choose_cut,
    compacted,
    cut_at,
    is_summary,
    shorten,
    trimmed,
    turn_starts,
)
from trio_runner._core.history import History
from trio_runner.testing import ScriptedModel, call

ROOT = Path(__file__).parent.parent


def user(text: str, **options: Any) -> tr.Message:
    return tr.Message.user(text, **options)


def says(text: str, stop_reason: tr.StopReason | None = None) -> tr.Message:
    return tr.Message.assistant(text, stop_reason=stop_reason)


def step(name: str, note: str = "") -> list[tr.Message]:
    """A step of two calls, with its results; ``note`` is said in the same message."""
    calls = [tr.ToolCall(f"{name}{letter}", "work", {}) for letter in "ab"]
    results = [tr.ToolResult(each.id, each.name, f"result of {each.id}") for each in calls]
    return [
        tr.Message.assistant(tool_calls=calls),
        tr.Message.user(note or (), tool_results=results),
    ]


def attached(name: str) -> tr.Message:
    return user("picture", meta={"attached_by": f"{name}b"})


SYSTEM = user("rules", template=True)
PAUSE = says("wait", tr.StopReason.PAUSE)
#: What sends an answer back, where a structured one was wanted.
REFUSED, ASKED = [user(mark, meta={"structured_output": mark}) for mark in ("refused", "asked")]
#: 0 template, 1 input, 2-3 step, 4 picture, 5 note, 6-7 step, 8 answer; 9 input, 10-11 step,
#: 12 answer; 13 input, 14 answer.
LONG = (
    SYSTEM,
    user("one"), *step("a"), attached("a"), user("note"), *step("b"), says("first"),
    user("two"), *step("c"), says("second"),
    user("three"), says("third"),
)  # fmt: skip


def compact(history: History, index: int, text: str = "summary") -> r.Compacted:
    """Cut before ``index``; returns the record."""
    record = compacted(history, cut_at(history, index), text)
    shorten(history, record)
    return record


# --- turns ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "starts"),
    [
        ([], []),
        ([SYSTEM], []),
        (LONG, [1, 9, 13]),
        ([user("a"), user("b"), says("c"), user("d")], [0, 3]),
        # A reply that waits is no answer, and neither are results: what follows is a note.
        ([user("a"), PAUSE, user("b"), says("c")], [0]),
        ([user("a"), *step("s"), user("b"), says("c")], [0]),
        # An answer to nothing, and two in a row.
        ([says("a"), says("b"), user("c")], [0, 2]),
        # An answer that goes back to the model ends no turn.
        ([user("a"), *step("s"), says("b"), REFUSED, says("c"), user("d")], [0, 6]),
        ([user("a"), says("b"), ASKED, says("c"), REFUSED, says("d"), user("e")], [0, 6]),
        ([user("sum", meta={"is_summary": True}), REFUSED, says("c"), user("d")], [0, 1, 3]),
        # A summary is a turn of its own, whoever speaks it.
        ([user("sum", meta={"is_summary": True}), user("a"), says("b")], [0, 1]),
        ([user("sum", meta={"is_summary": 1}), user("a"), says("b")], [0]),
    ],
)
def test_a_turn_begins_where_the_user_speaks_after_an_answer(
    messages: Sequence[tr.Message], starts: list[int]
) -> None:
    assert turn_starts(messages) == starts


# --- cuts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "stop"), [(0, 15), (1, 13), (2, 9), (3, None), (99, None)]
)  # fmt: skip
def test_a_cut_leaves_the_newest_turns(keep: int, stop: int | None) -> None:
    cut = choose_cut(History(LONG), keep)

    assert (None if cut is None else (cut.start, cut.stop)) == (None if stop is None else (1, stop))
    if cut is not None:
        assert cut.messages == LONG[1:stop]


def test_there_is_nothing_to_cut_in_a_history_of_templates_alone() -> None:
    assert choose_cut(History([SYSTEM]), 0) is None
    assert choose_cut(History(), 0) is None


def test_a_summary_alone_is_not_summarised_again() -> None:
    history = History(LONG)
    compact(history, 9)

    assert choose_cut(history, 2) is None
    again = choose_cut(history, 1)
    assert again is not None
    assert texts(again.messages)[:2] == ["summary", "two"]


def test_a_number_of_turns_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"keep is -1; expected .* from 0"):
        choose_cut(History(LONG), -1)
    with pytest.raises(ValueError, match="keep is -1"):
        trimmed(History(LONG), -1)


#: Between steps: 3, 7, 11 would part a call from its result, 4 a picture from its step.
BORDERS = {2, 5, 6, 8, 9, 10, 12, 13, 14, 15}


@pytest.mark.parametrize("index", range(-1, 17))
def test_a_cut_is_made_between_whole_steps_or_not_at_all(index: int) -> None:
    history = History(LONG)

    if index in BORDERS:
        record = compact(history, index)
        assert record.before == 15
        assert record.upto == index
        assert history.snapshot() == (SYSTEM, record.summary, *LONG[index:])
        tr.check_history(history.view())
    else:
        with pytest.raises(tr.HistoryCutError, match="Nothing was changed"):
            cut_at(history, index)
        # The record alone does not get through either.
        with pytest.raises(tr.HistoryCutError):
            shorten(history, r.Compacted(15, index, user("summary")))
        assert history.snapshot() == LONG


def test_a_cut_says_why_it_is_refused() -> None:
    with pytest.raises(tr.HistoryCutError, match="message 3 holds results for calls in message 2"):
        cut_at(History(LONG), 3)
    with pytest.raises(tr.HistoryCutError, match="message 4 was attached by a call of the step"):
        cut_at(History(LONG), 4)
    with pytest.raises(tr.HistoryCutError, match=r"index 1; expected one from 2 to 15.* first 1 "):
        cut_at(History(LONG), 1)


@pytest.mark.parametrize("what", ["a message came", "replaced by the same", "another history"])
def test_a_cut_is_good_for_the_version_that_it_was_chosen_on(what: str) -> None:
    history = History(LONG)
    cut = cut_at(history, 9)
    match what:
        case "a message came":
            history.append(user("four"))
        case "replaced by the same":
            history.replace(LONG)
        case _:
            history = History(LONG)
    before = history.snapshot()

    with pytest.raises(tr.HistoryCutError, match="another version of it, which had 15 messages"):
        compacted(history, cut, "summary")
    assert history.snapshot() == before


@pytest.mark.parametrize(
    "summary",
    ["", "  ", "\ud800", user("x", template=True), *step("s")],
    ids=["empty", "blank", "not UTF-8", "template", "calls", "results"],
)
def test_a_summary_that_is_no_plain_message_is_refused(summary: tr.Message | str) -> None:
    history = History(LONG)

    with pytest.raises(tr.HistoryError, match="message 0"):
        compacted(history, cut_at(history, 9), summary)


def test_a_summary_keeps_what_it_came_with_and_is_marked() -> None:
    history = History(LONG)
    given_ = tr.Message.assistant("So far", usage=tr.Usage(9, 1), meta={"by": object()})
    record = compacted(history, cut_at(history, 9), given_)

    assert is_summary(record.summary)
    assert (record.summary.role, record.summary.usage) == ("assistant", tr.Usage(9, 1))
    assert type(record.summary.meta["by"]) is not object  # plain data from the moment it enters
    assert not any(is_summary(message) for message in (*LONG, given_))


def test_the_ids_of_what_was_replaced_are_not_given_again() -> None:
    history = History(LONG)
    compact(history, 15)

    assert {"aa", "ab", "cb"} <= history.ids
    assert history.snapshot()[0] is SYSTEM
    assert len(history) == 2


# --- trim -----------------------------------------------------------------------


def trim(messages: Sequence[tr.Message], keep: int = 0) -> tuple[tr.Message, ...]:
    history = History(messages)
    record = trimmed(history, keep)
    if record is not None:
        shorten(history, record)
    return history.snapshot()


def test_the_older_steps_of_an_answered_turn_go_with_what_they_attached() -> None:
    assert trim(LONG) == (*LONG[:2], *LONG[5:])


@pytest.mark.parametrize(("keep", "trims"), [(0, True), (2, True), (3, False), (9, False)])
def test_the_newest_turns_are_left_as_they_are(keep: int, *, trims: bool) -> None:
    assert (trim(LONG, keep) != LONG) is trims


@pytest.mark.parametrize(
    "messages",
    [
        (),
        (SYSTEM,),
        (user("one step"), *step("a"), says("answer")),
        (user("no answer"), *step("a"), *step("b")),
        (user("waits"), *step("a"), *step("b"), PAUSE),
        (user("spoken to"), *step("a", "note"), *step("b"), says("answer")),
    ],
)
def test_nothing_is_trimmed_without_need(messages: tuple[tr.Message, ...]) -> None:
    assert trimmed(History(messages), 0) is None


def test_trimming_twice_changes_nothing_more() -> None:
    assert trim(trim(LONG)) == trim(LONG)


def test_what_is_said_between_steps_stays_and_the_last_step_too() -> None:
    a, b, c, d = step("a"), step("b", "said"), step("c"), step("d")
    messages = (user("in"), *a, PAUSE, *b, *c, user("note"), *d, attached("d"), says("out"))

    assert trim(messages) == (
        user("in"), PAUSE, *b, user("note"), *d, attached("d"), says("out")
    )  # fmt: skip


@pytest.mark.parametrize(
    "dropped",
    [
        ((0, 2),),  # a template
        ((3, 4),),  # results
        ((2, 3),),  # calls
        ((6, 8), (2, 5)),  # not in order
        ((2, 5), (4, 6)),  # twice
        ((2, 2),),  # nothing
        ((13, 16),),  # too much
        ((-2, -1),),
    ],
)
def test_a_trim_that_parts_a_step_is_refused_and_changes_nothing(
    dropped: tuple[tuple[int, int], ...],
) -> None:
    history = History(LONG)

    with pytest.raises(tr.HistoryCutError):
        shorten(history, r.Trimmed(15, dropped))
    assert history.snapshot() == LONG


def test_a_record_of_another_history_is_refused() -> None:
    history = History(LONG)

    with pytest.raises(tr.HistoryCutError, match=r"of 14 messages, and this one has 15"):
        shorten(history, r.Trimmed(14, ((2, 5),)))
    assert history.snapshot() == LONG


def test_a_summary_that_would_break_the_history_is_refused_by_the_gate() -> None:
    history = History(LONG)

    with pytest.raises(tr.HistoryError, match="open"):
        shorten(history, r.Compacted(15, 9, step("x")[0]))
    assert history.snapshot() == LONG


# --- random histories, random cuts ------------------------------------------------

#: Each: keep of a trim, or the place of a cut.
CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 14)), min_size=1, max_size=4)


@given(strategies.histories(max_parts=8), CHANGES)
@settings(max_examples=60, deadline=None)
def test_any_history_shortened_in_any_ways_is_valid_and_nothing_else_goes(
    messages: tuple[tr.Message, ...], changes: list[tuple[bool, int]]
) -> None:
    history = History(messages)
    for trims, number in changes:
        before, ids = history.snapshot(), set(history.ids)
        record: r.Compacted | r.Trimmed | None = None
        if trims:
            record = trimmed(history, number)
        else:
            try:
                record = compacted(history, cut_at(history, number), "summary")
            except tr.HistoryCutError:
                index = min(number, len(before))
                assert index == 0 or number > len(before) or before[index].tool_results
        if record is not None:
            shorten(history, record)
            assert len(history) <= len(before)
        after = history.snapshot()
        tr.check_history(after)
        assert history.ids == ids
        rest = iter(before)
        assert all(message in rest for message in after if not is_summary(message))


# --- the agent and its session ------------------------------------------------------


async def work() -> str:
    """Work."""
    return "done"


def agent_of(script: Sequence[Any] = (), **options: Any) -> tr.ToolAgent:
    settings_: dict[str, Any] = {"tools": [work], "session": "s", **options}
    if "journal" not in settings_:
        del settings_["session"]
    return tr.ToolAgent("a", model=ScriptedModel(script), **settings_)


def stored(journal: tr.MemoryJournal) -> tuple[r.Record, ...]:
    return journal.stored("s")


def texts(messages: Sequence[tr.Message]) -> list[str]:
    return [message.text for message in messages]


async def test_a_compaction_is_one_commit_of_one_record() -> None:
    journal = tr.MemoryJournal()
    async with agent_of([*"abc"], journal=journal) as agent:
        for text in ("one", "two", "three"):
            await agent.generate(text)
        before, commits = stored(journal), journal.statistics().commits
        cut = agent.choose_cut()
        assert cut is not None
        agent.replace_with_summary(cut, "so far")

        assert journal.statistics().commits == commits + 1
        [record] = stored(journal)[len(before) :]
        assert record == r.Compacted(6, 2, agent.history[0])
        assert texts(agent.history) == ["so far", "two", "b", "three", "c"]
    assert tr.fold(stored(journal)).messages == agent.history


async def test_what_was_replaced_is_in_the_journal_and_can_be_had() -> None:
    journal = tr.MemoryJournal()
    script = [[call("work"), call("work")], [call("work")], "first", "second", "third"]
    async with agent_of(script, journal=journal, history=[SYSTEM]) as agent:
        await agent.generate("one")
        whole = agent.history
        assert agent.trim() == 2
        agent.replace_with_summary(cut_of(agent, keep=0), "so far")
        await agent.generate("two")
        agent.replace_with_summary(cut_of(agent, keep=0), "so far, again")
        await agent.generate("three")

        said = tr.full_history(stored(journal))
        assert said[: len(whole)] == whole
        assert texts(said[len(whole) :]) == ["two", "second", "three", "third"]
        assert texts(agent.history) == ["rules", "so far, again", "three", "third"]
        # What is loaded is another conversation.
        agent.load_history([user("new")])
        assert texts(tr.full_history(stored(journal))) == ["new"]


def cut_of(agent: tr.ToolAgent, *, keep: int) -> tr.HistoryCut:
    cut = agent.choose_cut(keep=keep)
    assert cut is not None
    return cut


async def test_a_compacted_session_goes_on_from_its_summary() -> None:
    journal = tr.MemoryJournal()
    async with agent_of(["first"], journal=journal, history=[SYSTEM]) as agent:
        await agent.generate("one")
        agent.replace_with_summary(cut_of(agent, keep=0), "so far")
    model = ScriptedModel(["second"])
    async with tr.ToolAgent("b", model=model, journal=journal, session="s") as agent:
        await agent.generate("two")

    assert texts(model.requests[0].history) == ["rules", "so far", "two"]


async def test_the_whole_conversation_has_no_id_twice() -> None:
    # The model uses its ids anew once it does not see them any more.
    journal = tr.MemoryJournal()
    script = [[call("work", id="c1")], "first", [call("work", id="c1")], "second"]
    async with agent_of(script, journal=journal) as agent:
        await agent.generate("one")
        agent.replace_with_summary(cut_of(agent, keep=0), "so far")
        await agent.generate("two")

    tr.check_history(tr.full_history(stored(journal)))
    reopened = tr.fold(stored(journal))
    assert reopened.history.ids >= {"c1"}
    assert len(tr.full_history(stored(journal))) == 8


async def test_a_step_that_a_crash_left_open_stays_open_behind_a_summary() -> None:
    journal = tr.MemoryJournal()
    async with agent_of(["first", "second", [call("work", id="c1")]], journal=journal) as agent:
        await agent.generate("one")
        await agent.generate("two")
        async with agent.turn("three") as runner:
            await anext(runner)
            journal.crash()
            kept = stored(journal)
    fresh = tr.MemoryJournal()
    session = await fresh.open("s")
    session.append(kept)
    await session.aclose()

    async with agent_of(["third"], journal=fresh) as agent:
        agent.replace_with_summary(cut_of(agent, keep=1), "so far")
        assert texts(agent.history) == ["so far", "three"]
        reply = await agent.resume()

    assert reply.text == "third"
    assert [each.text for each in agent.history[-2].tool_results] == ["done"]
    assert tr.fold(stored(fresh)).messages == agent.history


async def test_while_a_turn_runs_nothing_is_compacted_or_trimmed() -> None:
    agent = agent_of([[call("work")], "done"], history=LONG)
    cut = cut_of(agent, keep=2)
    async with agent.turn("go") as runner:
        await anext(runner)
        before = agent.history
        with pytest.raises(tr.BusyError, match="cannot compact the history"):
            agent.replace_with_summary(cut, "summary")
        with pytest.raises(tr.BusyError, match="cannot trim the history"):
            agent.trim()
        assert agent.history == before


async def test_a_session_that_is_not_open_is_not_shortened() -> None:
    agent = agent_of(journal=tr.MemoryJournal(), history=LONG)
    cut = cut_of(agent, keep=2)

    with pytest.raises(tr.NotEnteredError):
        agent.replace_with_summary(cut, "summary")
    with pytest.raises(tr.NotEnteredError):
        agent.trim()


async def test_an_agent_without_a_session_is_shortened_in_memory() -> None:
    agent = agent_of(["fourth"], history=LONG)
    agent.replace_with_summary(cut_of(agent, keep=1), "summary")
    await agent.generate("four")

    assert texts(agent.history) == ["rules", "summary", "three", "third", "four", "fourth"]
    assert agent.trim() == 0


async def test_a_cut_may_be_asked_for_between_two_steps() -> None:
    agent = agent_of(history=LONG)
    cut = agent.choose_cut(at=6)
    assert cut is not None
    agent.replace_with_summary(cut, "summary")

    assert agent.history[2:] == LONG[6:]
    with pytest.raises(tr.HistoryCutError):
        agent.choose_cut(at=3)


# --- crashes ----------------------------------------------------------------------


class DyingJournal:
    """Calls ``die`` at its n-th append, before or after handing it on."""

    def __init__(
        self, inner: tr.Journal, dies_at: int, die: Callable[[], None], *, after: bool
    ) -> None:
        self.inner, self.left, self.die, self.after = inner, dies_at, die, after

    async def open(self, session_id: str) -> tr.JournalSession:
        return DyingSession(self, await self.inner.open(session_id))


class DyingSession:
    def __init__(self, journal: DyingJournal, session: tr.JournalSession) -> None:
        self.journal, self.session = journal, session

    @property
    def records(self) -> Sequence[r.Record]:
        return self.session.records

    def append(self, records: Sequence[r.Record]) -> tr.CommitTicket:
        journal = self.journal
        journal.left -= 1
        if journal.left == 0 and not journal.after:
            journal.die()
        ticket = self.session.append(records)
        if journal.left == 0:
            journal.die()
        return ticket

    async def aclose(self) -> None:
        await self.session.aclose()


async def shortening_session(journal: tr.Journal, seen: list[tuple[tr.Message, ...]]) -> None:
    """Turns, a trim, two compactions; ``seen`` gets the history at each point."""
    script = [[call("work", id="c1")], [call("work", id="c1")], "first", "second", "third"]
    async with agent_of(script, journal=journal, history=[SYSTEM]) as agent:
        for each in (
            "one",
            agent.trim,
            "two",
            lambda: agent.replace_with_summary(cut_of(agent, keep=1), "so far"),
            lambda: agent.replace_with_summary(cut_of(agent, keep=0), "so far, again"),
            "three",
        ):
            if isinstance(each, str):
                await agent.generate(each)
            else:
                each()
            seen.append(agent.history)


async def histories_of_the_session() -> list[tuple[tr.Message, ...]]:
    """What `shortening_session` has after each operation."""
    seen: list[tuple[tr.Message, ...]] = []
    await shortening_session(tr.MemoryJournal(), seen)
    assert [len(each) for each in seen] == [7, 5, 7, 4, 2, 4]
    return seen


async def check_goes_on(records: Sequence[r.Record]) -> tuple[tr.Message, ...]:
    """A session that a crash left is valid at each of its records, and goes on."""
    for count in range(len(records) + 1):
        tr.check_history(tr.fold(records[:count]).messages)
        tr.check_history(tr.full_history(records[:count]))
    fresh = tr.MemoryJournal()
    session = await fresh.open("s")
    session.append(records)
    await session.aclose()
    async with agent_of(["on"], journal=fresh) as agent:
        opened = agent.history
        await agent.generate("go on")
        tr.check_history(agent.history)
    return opened


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_append_leaves_the_old_history_or_the_new(*, after: bool) -> None:
    seen = await histories_of_the_session()
    opened: list[tuple[tr.Message, ...]] = []
    number, died = 0, True
    while died:
        number += 1
        memory = tr.MemoryJournal()

        def die(memory: tr.MemoryJournal = memory) -> None:
            memory.crash()
            raise KeyboardInterrupt  # leaves at once, since nothing of ours takes it

        try:
            await shortening_session(DyingJournal(memory, number, die, after=after), [])
            died = False
        except KeyboardInterrupt:
            pass
        opened.append(await check_goes_on(stored(memory)))
    assert number > 15
    # Each history that there was between two operations was left by some crash.
    assert {outline(each) for each in seen} <= {outline(each) for each in opened}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
async def test_a_kill_at_any_append_leaves_the_old_history_or_the_new(tmp_path: Path) -> None:
    seen = await histories_of_the_session()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    await trio.run_process([sys.executable, __file__, str(tmp_path)], env=env)

    opened = [
        await check_goes_on(tr.SqliteJournal(each).stored("s")) for each in tmp_path.glob("*.db")
    ]

    assert len(opened) > 15
    # What was not waited for may be lost, but there is no third thing.
    begins = {outline(each)[:2] for each in (*seen, (), (SYSTEM,))}
    assert {outline(each)[:2] for each in opened} <= begins
    assert {any(map(is_summary, each)) for each in opened} == {False, True}


def outline(messages: Sequence[tr.Message]) -> tuple[str, ...]:
    """The texts, with those of the results: no two runs take the same time."""
    return tuple(
        [each.text + "".join(result.text for result in each.tool_results) for each in messages]
    )


def die_at_every_append(folder: Path) -> None:
    """Run the session in forks that are killed, each on a file of its own in ``folder``."""
    tr.SqliteJournal(folder / "loads what it needs once")
    for number in itertools.count(1):
        child = os.fork()
        if not child:
            run_and_die(folder / f"{number}.db", number)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return


def run_and_die(path: Path, number: int) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    seen: list[tuple[tr.Message, ...]] = []
    journal = DyingJournal(tr.SqliteJournal(path), number, die, after=True)
    trio.run(shortening_session, journal, seen)
    os._exit(0)


async def test_records_that_do_not_fit_are_refused_at_their_place() -> None:
    journal = tr.MemoryJournal()
    async with agent_of([*"ab"], journal=journal) as agent:
        await agent.generate("one")
        await agent.generate("two")
        agent.replace_with_summary(cut_of(agent, keep=1), "so far")
    records = list(stored(journal))
    place = len(records) - 1
    assert type(records[place]) is r.Compacted

    for wrong in (r.Compacted(9, 2, user("x")), r.Compacted(4, 5, user("x")),
                  r.Trimmed(4, ((3, 2),)), r.Compacted(4, 2, step("x")[0])):  # fmt: skip
        for reading in (tr.fold, tr.full_history):
            with pytest.raises(tr.RecordError) as caught:
                reading([*records[:place], wrong])
            assert caught.value.index == place


if __name__ == "__main__":
    die_at_every_append(Path(sys.argv[1]))
