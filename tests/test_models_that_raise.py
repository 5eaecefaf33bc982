"""A model whose own attributes raise: the turn fails as a whole, or does not begin at all.

What a model says of itself (its window, its name, how it answers) may be a property that looks
something up. Each read of one raises once, in a turn with tools, a compaction and a value.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call

SAYS: dict[str, object] = {
    "context_window": 1000,
    "name": "m",
    "structured_policy": "defer",
    "supports_structured_output": True,
}


def answer_to(request: tr.ModelRequest) -> ScriptItem:
    asked = request.delta[-1].text
    if asked == "go":
        return tr.Message.assistant(tool_calls=[call("look", id="l1")], usage=tr.Usage(900, 1))
    return "a summary" if asked.startswith("Summarise") else '{"n": 1}'


class Model:
    """Counts what is read of `SAYS`, and raises at one of the reads.

    Args:
      raises_at: the number of that read; -1: none.
    """

    def __init__(self, raises_at: int = -1) -> None:
        self.raises_at = raises_at
        self.reads: list[str] = []
        self._script = ScriptedModel([answer_to] * 20, supports_structured_output=True)

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        return await self._script.reply(request, emit)

    def __getattr__(self, name: str) -> object:
        if name not in SAYS:
            raise AttributeError(name)
        self.reads.append(name)
        if len(self.reads) - 1 == self.raises_at:
            raise LookupError(name)
        return SAYS[name]


async def look() -> str:
    return "seen"


async def play(raises_at: int) -> Model:
    model, journal = Model(), tr.MemoryJournal()
    agent = tr.ToolAgent(
        "a",
        model=model,
        tools=[look],
        journal=journal,
        session="s",
        compaction=tr.Compaction(keep_turns=1, keep_steps=1),
    )
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    async with agent:
        await agent.generate("first")
        before, stored = agent.history, journal.stored("s")
        model.reads, model.raises_at = [], raises_at
        with tr.limits(total_tokens=100_000), contextlib.suppress(LookupError):
            await agent.structured(schema, "go")
            # A summary without a price for it is a failed one, and no more.
            assert raises_at == -1 or model.reads[raises_at] == "name"
        model.raises_at = -1
        last = agent.last_turn
        assert last is not None
        if last.number == 1:  # it did not begin
            assert (agent.history, journal.stored("s"), agent.can_resume) == (before, stored, False)
        assert tr.fold(journal.stored("s")).messages == agent.history
        await agent.generate("next")
        assert tr.fold(journal.stored("s")).messages == agent.history
    return model


async def test_whatever_a_model_raises_of_itself_the_session_stays_what_the_agent_has() -> None:
    clean = await play(-1)
    assert set(clean.reads) == set(SAYS)
    for raises_at in range(len(clean.reads)):
        await play(raises_at)


async def test_a_policy_that_no_model_can_have_is_refused_before_the_turn_begins() -> None:
    journal = tr.MemoryJournal()
    model: Any = ScriptedModel(["4"])
    model.structured_policy = "sometimes"
    async with tr.ToolAgent("a", model=model, journal=journal, session="s") as agent:
        with pytest.raises(ValueError, match="sometimes"):
            await agent.structured({"type": "integer"}, "go")
        assert (agent.history, agent.can_resume) == ((), False)
        assert len(journal.stored("s")) == 1  # that it was opened
