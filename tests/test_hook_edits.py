"""Hooks edit a random history while a batch is in flight: valid, or refused and unchanged.

At each point of each step hooks put other histories in the place of the one that is there:
cut, turned round, doubled, damaged, from elsewhere. They append notes and change the params;
the turn is trimmed at its end, and may meet a limit on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import hypothesis.strategies as st
import trio
import trio.testing
from hypothesis import given, settings

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call, strategies

#: What a hook does: its name, and two numbers or a history.
Edit: TypeAlias = tuple[str, int, int, tuple[tr.Message, ...]]

POINTS = (
    "before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call",
    "after_turn_complete",
)  # fmt: skip
HISTORIES = strategies.histories(max_parts=3)
EDITS = st.tuples(
    st.sampled_from(["look", "replace", "cut", "drop", "turn_round", "double", "reply", "note"]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.one_of(HISTORIES, strategies.damaged_histories(max_parts=2)),
)


def edited(edit: Edit, history: tuple[tr.Message, ...], reply: tr.Message | None) -> Any:
    """The history that a hook wants to put in the place of ``history``; None: none."""
    name, first, last, other = edit
    match name:
        case "replace":
            return other
        case "cut":
            return history[first % (len(history) + 1) :][: last + 1]
        case "drop":
            return history[: max(0, len(history) - first)]
        case "turn_round":
            return history[::-1]
        case "double":
            return history + history[first:]
        case "reply":
            # The reply itself, whose calls may be open, as if it were closed.
            return history if reply is None else (*history, reply)
        case _:
            return None


class Editor:
    """Hooks that play ``edits`` one by one, and see what comes of each."""

    def __init__(self, edits: Sequence[Edit], agent: tr.ToolAgent) -> None:
        self.edits = list(edits)
        self.agent = agent
        self.refused = 0
        self.done = 0

    def hooks(self) -> tr.ToolRunnerHooks:
        hooks: dict[str, Any] = dict.fromkeys(POINTS, self.act)
        return tr.ToolRunnerHooks(**hooks)

    async def act(self, runner: tr.ToolRunner, subject: object) -> None:
        await trio.lowlevel.checkpoint()
        if self.edits:
            self.play(runner, self.edits.pop(0))
        await trio.lowlevel.checkpoint()

    def play(self, runner: tr.ToolRunner, edit: Edit) -> None:
        turn = self.agent.conversation.turn
        assert turn is not None
        before, opened = runner.history, turn.open_positions
        if edit[0] == "note":
            try:
                runner.append_messages("a note")
            except tr.TurnEndedError:
                assert runner.history == before
            return
        wanted = edited(edit, before, runner.last_message)
        if wanted is None:
            return
        try:
            runner.replace_history(wanted)
        except tr.HistoryError:
            self.refused += 1
            assert all(a is b for a, b in zip(runner.history, before, strict=True))
        else:
            self.done += 1
            front = [message for message in wanted if message.template]
            rest = [message for message in wanted if not message.template]
            assert [*runner.history] == [*front, *rest]
        tr.check_history(runner.history)
        assert turn.open_positions == opened


@settings(max_examples=60, deadline=None)
@given(
    history=HISTORIES,
    edits=st.lists(EDITS, max_size=14),
    batches=st.lists(st.integers(1, 3), max_size=3),
    limit=st.none() | st.integers(0, 5),
    trims=st.booleans(),
)
def test_whatever_hooks_put_in_place_is_valid_or_refused_and_unchanged(
    history: tuple[tr.Message, ...],
    edits: list[Edit],
    batches: list[int],
    limit: int | None,
    trims: bool,
) -> None:
    async def main() -> None:
        ran: list[str] = []

        async def work() -> str:
            ran.append(call_id := tr.current_tool_context().call_id)
            await trio.lowlevel.checkpoint()
            return call_id

        journal = tr.MemoryJournal()
        batched = [[call("work")] * count for count in batches]
        agent = tr.ToolAgent(
            "a",
            model=ScriptedModel([*batched, "the answer"]),
            tools=[work],
            journal=journal,
            session="s",
            history=history,
            trim_tool_history=trims,
        )
        editor = Editor(edits, agent)
        async with agent:
            with tr.limits(tool_calls=limit):
                await agent.generate("go", hooks=editor.hooks())
            last = agent.last_turn
            assert last is not None
            ends = (tr.EndReason.ANSWERED, tr.EndReason.LIMIT)
            assert last.end_reason in ends[: 1 if limit is None else 2]
            kept = {
                each.call_id: each.text
                for message in last.messages
                for each in message.tool_results
            }
            assert [kept[call_id] for call_id in ran] == ran  # no result of the turn is lost
            tr.check_history(agent.history)
            assert tr.fold(journal.stored("s")).messages == agent.history
        reopened = tr.ToolAgent("a", model=ScriptedModel(["yes"]), journal=journal, session="s")
        async with reopened:
            await reopened.generate("go on")  # the strict model takes what is there

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
