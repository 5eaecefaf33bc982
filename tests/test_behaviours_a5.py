"""BEHAVIOURS kA5: whatever shortens a history passes one gate: valid, or refused and unchanged.

The ways in which a history is shortened, with cuts at any index: `agent.replace_with_summary`,
`agent.trim` and `agent.load_history` between turns, and `runner.replace_history` from
hooks, from the caller between two messages, and from a tool while its batch grows.
Where the cuts may be is in ``test_compaction.py``.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_runner as tr
import trio_runner.testing.strategies as strategies
from trio_runner.testing import ScriptedModel, ScriptItem, call

HOOKS = (
    "before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call",
    "after_turn_complete",
)  # fmt: skip


async def work(number: int = 0) -> str:
    """Work."""
    return f"value {number}"


def agent_of(*replies: ScriptItem, **options: object) -> tr.ToolAgent:
    settings_: dict[str, object] = {"tools": [work], **options}
    return tr.ToolAgent("a", model=ScriptedModel(replies), **settings_)  # type: ignore[arg-type]


def step(number: int) -> list[tr.Message]:
    """A step of two parallel calls, with its results."""
    calls = [tr.ToolCall(f"h{number}{letter}", "work", {}) for letter in "ab"]
    results = [tr.ToolResult(each.id, each.name, f"result {each.id}") for each in calls]
    return [tr.Message.assistant(tool_calls=calls), tr.Message.user(tool_results=results)]


#: Two turns: 0 user, 1-2 step, 3-4 step, 5 answer, 6 user, 7-8 step, 9 answer.
LONG = (
    tr.Message.user("one"), *step(1), *step(2), tr.Message.assistant("first"),
    tr.Message.user("two"), *step(3), tr.Message.assistant("second"),
)  # fmt: skip


def opens_as(journal: tr.MemoryJournal) -> tuple[tr.Message, ...]:
    return tr.fold(journal.stored("s")).messages


@attrs.define
class Cut:
    """Cuts at one place and notes what came of it."""

    first: int
    last: int
    replaced: list[bool] = attrs.field(factory=list[bool])

    def on(self, runner: tr.ToolRunner) -> None:
        before = runner.history
        wanted = before[self.first : self.last]
        try:
            runner.replace_history(wanted)
        except tr.HistoryError:
            assert runner.history == before
            # It was refused for a reason.
            with pytest.raises(tr.HistoryError):
                tr.check_history(wanted)
            self.replaced.append(False)
        else:
            assert runner.history == wanted
            self.replaced.append(True)
        tr.check_history(runner.history)

    async def hook(self, runner: tr.ToolRunner, _: object) -> None:
        self.on(runner)


PIECES = [(first, last) for first in range(11) for last in range(first, 11)]


@pytest.mark.parametrize("name", HOOKS)
async def test_kA5_a_cut_at_any_index_from_any_hook_is_valid_or_refused_and_unchanged(
    name: str,
) -> None:
    outcomes: set[bool] = set()
    for first, last in PIECES:
        cut = Cut(first, last)
        journal = tr.MemoryJournal()
        agent = agent_of(
            [call("work", number=1), call("work", number=2)],
            "done",
            journal=journal,
            session="s",
            hooks=tr.ToolRunnerHooks(**{name: cut.hook}),
        )
        async with agent:
            agent.load_history(LONG)
            await agent.generate("go")
            tr.check_history(agent.history)
            assert opens_as(journal) == agent.history
            # What the turn itself did is there, whatever was cut in front of it.
            assert agent.last_turn is not None
            done = [r.text for m in agent.last_turn.messages for r in m.tool_results]
            assert done == ["value 1", "value 2"]
        outcomes.update(cut.replaced)
    assert outcomes == {True, False}


async def test_kA5_the_step_that_is_open_survives_every_cut() -> None:
    # Cut in before_tool_call: the reply is out, and its batch has not begun.
    for first, last in PIECES:
        cut = Cut(first, last)
        agent = agent_of(
            [call("work", id="n1", number=1), call("work", id="n2", number=2)],
            "done",
            history=LONG,
            hooks=tr.ToolRunnerHooks(before_tool_call=cut.hook),
        )
        await agent.generate("go")
        tr.check_history(agent.history)
        ids = [each.id for message in agent.history for each in message.tool_calls]
        assert ids[-2:] == ["n1", "n2"]


@pytest.mark.parametrize("index", range(len(LONG) + 1))
async def test_kA5_a_cut_that_was_chosen_before_the_batch_grew_is_judged_when_it_is_applied(
    index: int,
) -> None:
    # The index is chosen when the turn starts, and applied from a tool, when other calls of
    # the batch have finished and others have not.
    agent = agent_of(history=LONG)
    noted: list[str] = []

    async def early() -> str:
        return "early"

    async def cuts() -> str:
        before = runner.history
        try:
            runner.replace_history(before[index:])
        except tr.HistoryError:
            assert runner.history == before
            noted.append("refused")
        else:
            assert runner.history == before[index:]
            noted.append("replaced")
        tr.check_history(runner.history)
        return "cut"

    async def late() -> str:
        return noted[0]

    agent.model = ScriptedModel([[call("early"), call("cuts"), call("late")], "done"])
    for each, barrier in ((early, False), (cuts, True), (late, False)):
        agent.add_tool(tr.tool(each, sequential=barrier))
    async with agent.turn("go") as runner:
        await runner.until_done()

    tr.check_history(agent.history)
    results = [r.text for m in agent.history[-3:] for r in m.tool_results]
    assert results == ["early", "cut", noted[0]]


@pytest.mark.parametrize("way", ["the same ids", "an open step"])
async def test_kA5_a_replacement_that_clashes_with_the_open_step_is_refused(way: str) -> None:
    clash = step(9) if way == "the same ids" else [*LONG, step(9)[0]]
    refused: list[tr.HistoryError] = []

    async def hook(runner: tr.ToolRunner, _: object) -> None:
        before = runner.history
        try:
            runner.replace_history(clash)
        except tr.HistoryError as error:
            refused.append(error)
        assert runner.history == before

    agent = agent_of(
        [call("work", id="h9a"), call("work", id="h9b")],
        "done",
        history=LONG,
        hooks=tr.ToolRunnerHooks(before_tool_call=hook),
    )
    await agent.generate("go")

    assert len(refused) == 1
    assert agent.history[: len(LONG)] == LONG
    tr.check_history(agent.history)


@given(
    history=strategies.histories(max_parts=6),
    first=st.integers(0, 12),
    last=st.integers(0, 12),
)
@settings(max_examples=100, deadline=None)
async def test_kA5_any_history_cut_at_any_index_loads_as_a_valid_one(
    history: tuple[tr.Message, ...], first: int, last: int
) -> None:
    piece = history[first:last]
    journal = tr.MemoryJournal()
    async with agent_of("done", journal=journal, session="s") as agent:
        agent.load_history(piece)
        tr.check_history(agent.history)
        kept = [message.content for message in piece if message.content]
        await agent.generate("go on")
        tr.check_history(agent.history)
        # Healing drops results without their calls; it drops nothing that was said.
        said = [message.content for message in agent.history if message.content]
        assert said[: len(kept)] == kept
        assert opens_as(journal) == agent.history


@given(
    history=strategies.histories(max_parts=6),
    cuts=st.lists(st.tuples(st.sampled_from(("at", "keep", "trim")), st.integers(0, 12))),
)
@settings(max_examples=60, deadline=None)
async def test_kA5_any_history_compacted_and_trimmed_in_any_ways_is_valid_or_unchanged(
    history: tuple[tr.Message, ...], cuts: list[tuple[str, int]]
) -> None:
    journal = tr.MemoryJournal()
    async with agent_of("done", journal=journal, session="s") as agent:
        agent.load_history(history)
        for way, number in cuts:
            before, records = agent.history, journal.stored("s")
            try:
                if way == "trim":
                    agent.trim(keep=number)
                else:
                    at = number if way == "at" else None
                    cut = agent.choose_cut(keep=number, at=at)
                    if cut is not None:
                        agent.replace_with_summary(cut, "so far")
                        assert agent.history[cut.start + 1 :] == before[cut.stop :]
            except tr.HistoryError:
                assert way == "at"
                assert (agent.history, journal.stored("s")) == (before, records)
            tr.check_history(agent.history)
            assert opens_as(journal) == agent.history
            assert tr.full_history(journal.stored("s")) == history
        await agent.generate("go on")
        assert opens_as(journal) == agent.history


async def test_kA5_a_cut_chosen_before_the_batch_grew_is_refused_and_can_be_chosen_again() -> None:
    journal = tr.MemoryJournal()
    chosen: list[tr.HistoryCut | None] = []

    async def chooses() -> str:
        """Choose a cut while the batch is on its way."""
        chosen.append(agent.choose_cut(keep=1))
        return "chosen"

    script = [[call("work"), call("chooses")], "done"]
    agent = agent_of(*script, tools=[work, chooses], journal=journal, session="s")
    async with agent:
        agent.load_history(LONG)
        await agent.generate("go")
        before, records = agent.history, journal.stored("s")
        [old] = chosen
        assert old is not None
        with pytest.raises(tr.HistoryCutError, match="another version of it"):
            agent.replace_with_summary(old, "so far")
        assert (agent.history, journal.stored("s")) == (before, records)

        cut = agent.choose_cut(keep=1)
        assert cut is not None
        assert cut.messages == LONG
        agent.replace_with_summary(cut, "so far")
        assert [message.text for message in agent.history[:2]] == ["so far", "go"]
        assert opens_as(journal) == agent.history


async def test_kA5_a_cut_while_a_turn_runs_is_refused_from_outside_and_changes_nothing() -> None:
    agent = agent_of([call("work")], "done", history=LONG)
    async with agent.turn("go") as runner:
        await anext(runner)
        before = agent.history
        with pytest.raises(tr.BusyError):
            agent.load_history(LONG[2:])
        with pytest.raises(tr.BusyError):
            agent.clear()
        assert agent.history == before
        assert (await runner.until_done()).text == "done"
