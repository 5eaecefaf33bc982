"""Behaviours are values that print as code, and each makes a thing that behaves so."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings

import trio_runner as tr
import trio_runner._core.normalise as normalise
import trio_runner._core.validity as validity
import trio_runner.testing.strategies as strategies
from trio_runner.testing import ScriptedModel, call

OK, ERROR = tr.CallStatus.OK, tr.CallStatus.ERROR


async def result_of(behaviour: strategies.ToolBehaviour) -> tr.ToolResult:
    tool = strategies.make_tool(behaviour)
    agent = tr.ToolAgent("a", model=ScriptedModel([call("work"), "done"]), tools=[tool])
    with trio.move_on_after(5):
        await agent.generate("go")
    tr.check_history(agent.history)
    (result,) = [each for message in agent.history for each in message.tool_results]
    return result


@pytest.mark.parametrize(
    ("behaviour", "status", "text"),
    [
        (strategies.Returns("value", 2), OK, "value"),
        (strategies.Raises(LookupError, "why"), ERROR, "why"),
        (strategies.Raises(strategies.UnprintableError), ERROR, "UnprintableError"),
        (strategies.RaisesGroup(2, 2), ERROR, "cause 1"),
        (strategies.Blocks(), tr.CallStatus.INTERRUPTED, "Interrupted"),
        (strategies.CleansUp(1.0), OK, "cleaned up"),
        (strategies.CleansUp(math.inf), tr.CallStatus.INTERRUPTED, "Interrupted"),
        (strategies.CleansUp(1.0, raises=True), ERROR, "the cleanup failed"),
        (strategies.Spawns(2), OK, "ran 2 children"),
        (strategies.Spawns(2, raises=True), ERROR, "a child failed"),
        (strategies.CancelsItself(), OK, "cancelled itself"),
        (strategies.RaisesCancelled(), ERROR, "cancelled from within"),
        (strategies.RaisesCancelled(foreign=True), ERROR, "cancelled from within"),
        (strategies.CatchesAll(), OK, "all is well"),
        (strategies.ReturnsOdd("None"), OK, "(no output)"),
    ],
    ids=repr,
)
async def test_each_tool_behaviour_does_what_it_says(
    behaviour: strategies.ToolBehaviour,
    status: tr.CallStatus,
    text: str,
    autojump_clock: trio.testing.MockClock,
) -> None:
    result = await result_of(behaviour)
    assert result.status is status
    assert text in result.text


@pytest.mark.parametrize("kind", strategies.ODD_VALUES)
async def test_each_odd_value_is_one_valid_result(kind: strategies.OddValue) -> None:
    assert (await result_of(strategies.ReturnsOdd(kind))).status in {OK, ERROR}


@pytest.mark.parametrize("point", strategies.HOOK_POINTS)
async def test_a_hook_is_made_for_its_point(point: strategies.HookPoint) -> None:
    hooks = strategies.make_hooks({point: strategies.RaisesInHook(LookupError, "planned")})
    tool = strategies.make_tool(strategies.Returns())
    agent = tr.ToolAgent(
        "a", model=ScriptedModel([call("work"), "done"]), tools=[tool], hooks=hooks
    )
    with pytest.raises(LookupError, match="planned"):
        await agent.generate("go")


async def test_a_journal_fails_the_commits_it_was_told_to() -> None:
    behaviour = strategies.JournalBehaviour(0.0, ((1, "fail"), (2, "hang")))
    assert not behaviour.is_healthy
    assert behaviour.hangs
    session = await strategies.make_journal(behaviour).open("s")
    tickets = [session.append([]) for _ in range(3)]
    assert [ticket.done for ticket in tickets] == [True, True, False]
    assert isinstance(tickets[1].error, OSError)


@pytest.mark.parametrize("kind", strategies.DAMAGE_KINDS)
def test_each_kind_of_damage_makes_some_history_invalid(kind: str) -> None:
    invalid = 0

    @given(strategies.damaged_histories(kinds=[kind]))
    @settings(max_examples=40, derandomize=True, database=None, deadline=None)
    def draw(history: tuple[tr.Message, ...]) -> None:
        nonlocal invalid
        invalid += bool(validity.history_problems(history))

    draw()
    assert invalid


@given(strategies.batches(("work", "alone")))
@settings(max_examples=50, deadline=None)
def test_a_batch_is_a_reply_that_the_boundary_takes(calls: list[tr.ToolCall]) -> None:
    reply = normalise.normalise_reply(tr.Message.assistant(tool_calls=calls), set())
    assert len(reply.tool_calls) == len(calls) > 0


@given(strategies.batches(("work", "alone"), odd=False))
@settings(max_examples=50, deadline=None)
def test_a_batch_that_is_not_odd_names_tools_that_are_there(calls: list[tr.ToolCall]) -> None:
    assert {each.name for each in calls} <= {"work", "alone"}
    assert len({each.id for each in calls}) == len(calls)


def test_batches_of_no_tools_are_refused() -> None:
    @given(strategies.batches(()))
    def draw(_: list[tr.ToolCall]) -> None:
        """Never gets there."""

    with pytest.raises(ValueError, match="got no tools"):
        draw()


@given(strategies.tool_behaviours(), strategies.session_steps())
@settings(max_examples=30, deadline=None)
def test_plans_can_be_printed(behaviour: Any, step: Any) -> None:
    assert type(behaviour).__name__ in repr(behaviour)
    assert type(step).__name__ in repr(step)
