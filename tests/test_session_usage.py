"""`agent.usage`: what the turns of a conversation took, live and from the records."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call


def took(number: int) -> tr.Usage:
    return tr.Usage(number, 10 * number, number // 2)


def reply(text: str, number: int) -> tr.Message:
    return tr.Message.assistant(text, usage=took(number))


def asking(number: int, name: str = "work", **arguments: str) -> tr.Message:
    return tr.Message.assistant(tool_calls=[call(name, **arguments)], usage=took(number))


async def work() -> str:
    return "done"


def agent_of(replies: list[Any], **more: Any) -> tr.ToolAgent:
    return tr.ToolAgent("a", model=ScriptedModel(replies), tools=[work], **more)


async def test_an_agent_without_turns_took_nothing() -> None:
    assert agent_of([]).usage == tr.SessionUsage()


async def test_turns_are_summed_and_the_running_one_counts_as_far_as_it_is() -> None:
    agent = agent_of([reply("one", 1), asking(2), reply("two", 4)])
    await agent.generate("go")
    assert agent.usage.total == took(1)
    async with agent.turn("go on") as runner:
        sums = [(await anext(runner), agent.usage.own)[1] for _ in range(2)]
    assert sums == [took(1) + took(2), took(1) + took(2) + took(4)]
    assert agent.last_turn is not None
    assert agent.last_turn.usage == took(2) + took(4)
    assert agent.usage == tr.SessionUsage(own=sums[-1])


async def test_an_interrupted_turn_counts_with_what_is_known_of_it() -> None:
    agent = agent_of([asking(3), reply("never", 100)])
    async with agent.turn("go") as runner:
        await anext(runner)
    assert agent.usage.own == took(3)


async def test_turns_without_history_count_and_a_kept_one_may_go_on_behind_them() -> None:
    agent = agent_of([asking(1), reply("aside", 2), reply("aside", 4), reply("kept", 8)])
    async with agent.turn("go") as runner:
        await anext(runner)
    aside = tr.RequestParams(use_history=False)
    for _ in range(2):
        await agent.generate("beside", params=aside)
    assert agent.usage.own == took(1) + took(2) + took(4)
    await agent.generate("and now?")
    assert agent.usage.own == took(1) + took(2) + took(4) + took(8)


async def test_what_agents_as_tools_took_is_a_part_of_its_own() -> None:
    child = tr.ToolAgent("child", model=ScriptedModel([reply("from below", 5)] * 2))
    agent = agent_of([asking(1, "agent__child", message="well?"), reply("one", 2), reply("two", 4)])
    agent.add_agent_tool(child)
    await agent.generate("go")
    await agent.generate("go on")
    assert agent.usage == tr.SessionUsage(own=took(1) + took(2) + took(4), nested=took(5))
    assert agent.usage.total == took(1) + took(2) + took(4) + took(5)
    assert child.usage == tr.SessionUsage()  # its clone took it


async def test_a_summary_counts_and_what_it_replaces_does_too() -> None:
    agent = agent_of([reply("one", 1), reply("two", 2)])
    for _ in range(2):
        await agent.generate("go")
    summarizer = tr.ModelSummarizer(ScriptedModel([reply("short", 7)]))
    report = await agent.compact(keep_turns=1, summarizer=summarizer)
    assert report is not None
    assert agent.usage == tr.SessionUsage(own=took(1) + took(2), summaries=took(7))


# --- from the records -------------------------------------------------------------

ACTS = st.sampled_from(["answer", "tools", "break", "aside", "fail", "compact", "trim", "clear"])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ACTS, st.integers(1, 9)), max_size=7))
def test_a_session_opens_with_the_sum_that_it_had(acts: list[tuple[str, int]]) -> None:
    """But for turns without history, which it does not hold."""

    async def main() -> None:
        journal = tr.MemoryJournal()
        aside = tr.Usage()
        async with agent_of([], journal=journal, session="s") as agent:
            for act, number in acts:
                aside += await play(agent, act, number)
                assert tr.fold(journal.stored("s")).usage.total + aside == agent.usage.total
            live = agent.usage
        async with agent_of([], journal=journal, session="s") as reopened:
            stored = reopened.usage
        assert attrs.evolve(stored, own=stored.own + aside) == live

    trio.run(main)


async def play(agent: tr.ToolAgent, act: str, number: int) -> tr.Usage:
    """Do it; returns what was taken beside the session."""
    match act:
        case "answer" | "aside":
            agent.model = ScriptedModel([reply("fine", number)])
            params = tr.RequestParams(use_history=act == "answer")
            await agent.generate("go", params=params)
        case "tools":
            agent.model = ScriptedModel([asking(number), asking(1), reply("fine", number)])
            await agent.generate("go")
        case "break":
            agent.model = ScriptedModel([asking(number)])
            async with agent.turn("go") as runner:
                await anext(runner)
        case "fail":
            agent.model = ScriptedModel([asking(number), LookupError("gone"), reply("fine", 1)])
            with pytest.raises(LookupError):
                await agent.generate("go")
            if number % 2:
                await agent.resume()
        case "compact":
            summarizer = tr.ModelSummarizer(ScriptedModel([reply("short", number)]))
            await agent.compact(keep_turns=1, summarizer=summarizer)
        case "trim":
            agent.trim()
        case _:
            agent.clear()
    return took(number) if act == "aside" else tr.Usage()
