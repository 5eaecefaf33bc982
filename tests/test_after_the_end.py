"""What follows a turn's end, in its fixed order: the user's hook, trim, and their commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import Outcome, ScriptedModel, call, sweep
from trio_runner.testing._faults import FAULTS
from trio_runner.testing.reference import DRIVES, Drive, ReferenceTurn

WORK = [call("work"), call("work")]
STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)


async def work() -> str:
    return "done"


def agent_of(replies: list[Any], **more: Any) -> tr.ToolAgent:
    more = {"trim_tool_history": True, **more}
    return tr.ToolAgent("a", model=ScriptedModel(replies), tools=[work], **more)


def shape(messages: tuple[tr.Message, ...]) -> list[str]:
    return [
        "calls" if each.tool_calls else "results" if each.tool_results else each.text
        for each in messages
    ]


async def test_of_an_answered_turn_the_prompt_the_last_step_and_the_answer_stay() -> None:
    agent = agent_of([WORK, WORK, WORK, "done"])
    await agent.generate("go")
    assert shape(agent.history) == ["go", "calls", "results", "done"]
    assert agent.last_turn is not None
    assert shape(agent.last_turn.messages) == ["go", *["calls", "results"] * 3, "done"]
    tr.check_history(agent.history)


async def test_a_turn_with_one_step_is_left_as_it_is() -> None:
    agent = agent_of([WORK, "done"])
    await agent.generate("go")
    assert shape(agent.history) == ["go", "calls", "results", "done"]


async def test_a_turn_without_an_answer_is_left_and_trimmed_once_there_is_one() -> None:
    agent = agent_of([WORK, WORK, LookupError("gone"), "done"])
    with pytest.raises(LookupError):
        await agent.generate("go")
    assert len(agent.history) == 5
    await agent.resume()
    assert shape(agent.history) == ["go", "calls", "results", "done"]


async def test_a_turn_that_met_a_limit_is_no_answer_and_goes_on_with_all_it_had() -> None:
    agent = agent_of([WORK, WORK, "done"])
    with tr.limits(model_calls=2):
        await agent.generate("go")
    assert len(agent.history) == 5
    await agent.resume()
    assert shape(agent.history) == ["go", "calls", "results", "done"]


async def test_a_turn_without_history_trims_nothing() -> None:
    agent = agent_of([WORK, WORK, "done", "aside"], trim_tool_history=False)
    await agent.generate("go")
    trimming = agent_of(["aside"], history=agent.history)
    await trimming.generate("beside", params=tr.RequestParams(use_history=False))
    assert trimming.history == agent.history


async def test_it_is_off_unless_asked_for_and_is_a_bool() -> None:
    agent = tr.ToolAgent("a", model=ScriptedModel([WORK, WORK, "done"]), tools=[work])
    await agent.generate("go")
    assert len(agent.history) == 6
    with pytest.raises(TypeError, match="trim_tool_history is 1; expected True or False"):
        agent_of([], trim_tool_history=1)


async def test_the_users_hook_comes_first_then_trim_then_the_commit() -> None:
    seen: list[list[str]] = []

    async def look(runner: tr.ToolRunner, message: tr.Message) -> None:
        seen.append(shape(runner.history))
        runner.replace_history(
            [tr.Message.user("before"), tr.Message.assistant("yes"), *runner.history]
        )

    journal = tr.MemoryJournal(delay=0.1)
    hooks = tr.ToolRunnerHooks(after_turn_complete=look)
    async with agent_of([WORK, WORK, "done"], hooks=hooks, journal=journal, session="s") as agent:
        await agent.generate("go")
        # Durable already when the answer is handed over.
        stored = tuple(journal.stored("s"))
    assert seen == [["go", "calls", "results", "calls", "results", "done"]]
    assert shape(agent.history) == ["before", "yes", "go", "calls", "results", "done"]
    assert [type(record) for record in stored[-3:]] == [r.TurnEnded, r.HistoryReplaced, r.Trimmed]
    assert tr.fold(stored).messages == agent.history
    assert len(tr.full_history(stored)) == 8  # nothing is lost


async def test_when_the_users_hook_raises_nothing_is_trimmed_and_the_answer_stays() -> None:
    async def fail(runner: tr.ToolRunner, message: tr.Message) -> None:
        raise LookupError("the hook failed")

    agent = agent_of([WORK, WORK, "done", WORK, "again"])
    with pytest.raises(LookupError):
        await agent.generate("go", hooks=tr.ToolRunnerHooks(after_turn_complete=fail))
    assert len(agent.history) == 6
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.ANSWERED
    await agent.generate("go on")  # the next end does what that one could not
    assert shape(agent.history) == [
        "go", "calls", "results", "done", "go on", "calls", "results", "again"
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=4), st.booleans())
def test_a_trimmed_conversation_is_valid_and_opens_as_it_was(
    turns: list[list[int]], by_hand: bool
) -> None:
    """Trimmed at each end, or by hand behind the last: the same comes of it."""

    async def main() -> None:
        journal = tr.MemoryJournal()
        replies = [
            item
            for number, turn in enumerate(turns)
            for item in [*[[call("work")] * count for count in turn], f"answer {number}"]
        ]
        more: dict[str, Any] = {"trim_tool_history": not by_hand}
        async with agent_of(replies, journal=journal, session="s", **more) as agent:
            for _ in turns:
                await agent.generate("go")
            if by_hand:
                agent.trim()
        expected = [
            part
            for number, turn in enumerate(turns)
            for part in ["go", *(["calls", "results"] if turn else []), f"answer {number}"]
        ]
        assert shape(agent.history) == expected
        assert [len(message.tool_calls) for message in agent.history if message.tool_calls] == [
            turn[-1] for turn in turns if turn
        ]
        tr.check_history(agent.history)
        assert tr.fold(journal.stored("s")).messages == agent.history

    trio.run(main)


# --- the suite ----------------------------------------------------------------------


class TrimmedTurn(ReferenceTurn):
    """The reference turn with trim, and a hook at the end that puts a message in front."""

    def make(self) -> None:
        super().make()
        settled = self.agent.config
        self.agent = tr.ToolAgent(
            "reference",
            model=self.agent.model,
            tools=self.agent.tools,
            journal=settled.journal,
            session=settled.session_id,
            grace=settled.grace,
            trim_tool_history=True,
            hooks=tr.ToolRunnerHooks(after_turn_complete=self.edit),
        )

    async def edit(self, runner: tr.ToolRunner, message: tr.Message) -> None:
        await trio.lowlevel.checkpoint()
        before = (tr.Message.user("before"), tr.Message.assistant("noted"))
        runner.replace_history((*before, *runner.history))
        await trio.lowlevel.checkpoint()

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        if not outcome.landings and self._drive_name != "break":
            there = shape(self.agent.history)
            if there != ["before", "noted", "go", "calls", "results", "the answer"]:
                yield f"without a fault the history is {there}"


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.2], ids=["instant", "slow"])
@pytest.mark.parametrize("drive", DRIVES)
def test_a_turn_that_is_edited_and_trimmed_at_its_end_keeps_the_contract(
    drive: Drive, delay: float, full_sweeps: bool
) -> None:
    report = sweep(
        TrimmedTurn(drive, delay=delay),
        faults=STEP_FAULTS,
        seeds=range(8 if full_sweeps else 1),
        max_positions=None if full_sweeps else 20,
    )
    report.raise_if_failed()
    assert report.positions > 50
    print(drive, delay, report.positions, "positions")


@pytest.mark.slow
def test_a_second_interrupt_at_the_end_changes_nothing(full_sweeps: bool) -> None:
    report = sweep(
        TrimmedTurn(delay=0.2),
        faults=(),
        pairs=[("cancel", "cancel"), ("cancel", "sigint"), ("sigint", "sigint")],
        seeds=[0],
        max_positions=None if full_sweeps else 8,
        sample=1.0 if full_sweeps else 0.2,
    )
    report.raise_if_failed()
    print(report.positions, "pairs")
