"""What a first user met: settings, sessions and stores that are used a little otherwise."""

from __future__ import annotations

from typing import Any, Self

import pytest

import trio_runner as tr
import trio_runner.events as events
import trio_runner.records as records
from trio_runner.testing import ScriptedModel


def agent_of(*replies: Any, **options: Any) -> tr.ToolAgent:
    return tr.ToolAgent("agent", model=ScriptedModel([*replies]), **options)


async def test_templates_may_be_given_each_time_a_session_is_opened() -> None:
    journal = tr.MemoryJournal()
    style = tr.Message.user("You are terse.", template=True)
    for count in (3, 5):
        agent = agent_of("ok", history=[style], journal=journal, session="s")
        async with agent:
            await agent.generate("go")
            assert len(agent.history) == count
    other = agent_of("ok", history=[tr.Message.user("You are not.", template=True)],
                     journal=journal, session="s")  # fmt: skip
    with pytest.raises(tr.UsageError, match="give the history or the session"):
        async with other:
            pass


async def test_what_is_no_json_in_the_meta_of_an_input_is_not_stored() -> None:
    journal = tr.MemoryJournal()
    agent = agent_of("ok", journal=journal, session="s")
    async with agent:
        await agent.generate(tr.Message.user("go", meta={"when": object(), "n": 1}))
    [started] = [each for each in journal.stored("s") if isinstance(each, records.TurnStarted)]
    assert started.input[0].meta["n"] == 1
    assert started.input[0].meta["when"].startswith("(not stored: ")


async def test_a_reopened_session_tells_how_its_last_turn_ended() -> None:
    journal = tr.MemoryJournal()
    first = agent_of(ValueError("no model"), journal=journal, session="s")
    async with first:
        with pytest.raises(ValueError, match="no model"):
            await first.generate("go")
    second = agent_of("ok", journal=journal, session="s")
    async with second:
        last = second.last_turn
        assert last is not None
        assert last.end_reason is tr.EndReason.FAILED
        assert (await second.resume()).text == "ok"


async def test_a_broken_ticket_does_not_keep_toolsets_open() -> None:
    class Tools:
        name = "tools"
        is_open = False

        async def list_tools(self) -> tuple[tr.Tool, ...]:
            return ()

        async def __aenter__(self) -> Self:
            self.is_open = True
            return self

        async def __aexit__(self, *_: object) -> None:
            self.is_open = False

    class Broken(tr.MemoryJournal):
        async def open(self, session_id: str) -> Any:
            session: Any = await super().open(session_id)
            session.append = lambda batch: None  # pyright: ignore[reportUnknownLambdaType]
            return session

    tools = Tools()
    agent = agent_of("ok", tools=[tools], journal=Broken(), session="s")

    async def use() -> None:
        async with agent:
            assert tools.is_open
            await agent.generate("go")

    with pytest.raises(AttributeError):
        await use()
    assert not tools.is_open


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"params": {"max_iterations": 1}}, "params"),
        ({"hooks": {"after_llm_call": None}}, "hooks"),
        ({"journal": "x", "session": "s"}, "journal is 'x'"),
        ({"observers": [print]}, "on_event"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        agent_of("ok", **options)


async def test_a_call_as_the_provider_sent_it_is_normalised() -> None:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    raw = tr.ToolCall.from_model(id=None, name="add", arguments='{"a": 1, "b": 2}')
    agent = agent_of(tr.Message.assistant(tool_calls=[raw]), "3", tools=[add])
    await agent.generate("go")
    [asked] = agent.history[1].tool_calls
    assert asked.arguments == {"a": 1, "b": 2}
    assert asked.id
    assert agent.history[2].tool_results[0].text == "3"


def test_public_names_are_shown_under_their_public_path() -> None:
    assert tr.ToolAgent.__module__ == tr.BusyError.__module__ == tr.tool.__module__ == "trio_runner"
    assert events.TurnEnded.__module__ == "trio_runner.events"
    assert records.TurnEnded.__module__ == "trio_runner.records"
