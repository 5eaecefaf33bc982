"""`take_over`: a conversation goes on under another agent."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call


def agent_of(name: str, *replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    template = tr.Message.user(f"I am {name}", template=True)
    return tr.ToolAgent(name, model=ScriptedModel(replies), history=[template], **options)


def texts(agent: tr.ToolAgent) -> list[str]:
    return [message.text for message in agent.history]


async def test_what_was_said_goes_on_behind_the_templates_of_the_other() -> None:
    triage = agent_of("triage", "that is for billing")
    billing = agent_of("billing", "old answer", "your bill is paid")
    await billing.generate("something else")
    await triage.generate("my bill?")
    billing.take_over(triage)
    assert texts(billing) == ["I am billing", "my bill?", "that is for billing"]
    assert texts(triage) == ["I am triage", "my bill?", "that is for billing"]
    await billing.generate("please")
    model: Any = billing.model
    sent = [message.text for message in model.requests[-1].history]
    assert sent == ["I am billing", "my bill?", "that is for billing", "please"]
    assert len(triage.history) == 3


async def test_each_keeps_its_session() -> None:
    journal = tr.MemoryJournal()
    triage = agent_of("triage", "that is for billing", journal=journal, session="t")
    billing = agent_of("billing", "paid", journal=journal, session="b")
    async with triage, billing:
        await triage.generate("my bill?")
        kept = journal.stored("t")
        billing.take_over(triage)
        await billing.generate("please")
    assert journal.stored("t") == kept
    assert tr.fold(journal.stored("b")).messages == billing.history
    assert sum(type(each) is r.HistoryReplaced for each in journal.stored("b")) == 2


@pytest.mark.parametrize("running", ["triage", "billing"])
async def test_a_turn_that_runs_is_not_handed_over(
    running: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def wait() -> str:
        await trio.sleep(10)
        return "waited"

    agents = {
        name: agent_of(name, call("wait", id="w"), "done", tools=[wait])
        for name in ("triage", "billing")
    }
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agents[running].generate, "go")
        await trio.testing.wait_all_tasks_blocked()
        before = agents["billing"].history
        with pytest.raises(tr.BusyError):
            agents["billing"].take_over(agents["triage"])
        assert agents["billing"].history == before


async def test_open_calls_are_not_handed_over() -> None:
    triage, billing = agent_of("triage"), agent_of("billing")
    triage.load_history(
        [tr.Message.user("go"), tr.Message.assistant(tool_calls=[tr.ToolCall("c", "work")])]
    )
    before = billing.history
    with pytest.raises(tr.UsageError, match="no results"):
        billing.take_over(triage)
    assert billing.history == before


async def test_a_session_that_is_not_open_takes_nothing_over() -> None:
    billing = agent_of("billing", journal=tr.MemoryJournal(), session="b")
    with pytest.raises(tr.NotEnteredError):
        billing.take_over(agent_of("triage"))
