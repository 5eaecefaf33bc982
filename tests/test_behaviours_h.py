"""BEHAVIOURS part h: the cap on iterations (kH1) and its formula (FEATURES F5)."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call


class Counted:
    """A model that asks for tools, for ever or ``asks`` times, and a tool that counts batches."""

    def __init__(self, cap: int, *, asks: int | None = None, width: int = 2) -> None:
        self.batches: list[int] = []
        self.ran = 0
        again: list[ScriptItem] = [[call("work") for _ in range(width)]]
        replies = itertools.cycle(again) if asks is None else again * asks + ["done", "next"]
        self.model = ScriptedModel(replies)

        async def work() -> str:
            self.ran += 1
            await trio.lowlevel.checkpoint()
            return "ok"

        async def before(runner: tr.ToolRunner, message: tr.Message) -> None:
            self.batches.append(runner.iteration)

        self.agent = tr.ToolAgent(
            "a",
            model=self.model,
            tools=[work],
            params=tr.RequestParams(max_iterations=cap),
            hooks=tr.ToolRunnerHooks(before_tool_call=before),
        )

    @property
    def statuses(self) -> list[str]:
        return [r.status.value for m in self.agent.history for r in m.tool_results]

    @property
    def end_reason(self) -> tr.EndReason:
        assert self.agent.last_turn is not None
        return self.agent.last_turn.end_reason


@pytest.mark.parametrize("cap", [0, 1, 2, 7])
async def test_kH1_a_model_that_always_asks_meets_the_formula(cap: int) -> None:
    world = Counted(cap)
    await world.agent.generate("go")
    assert world.model.calls == cap + 1
    assert world.batches == list(range(cap))
    assert world.ran == 2 * cap
    assert world.statuses == ["ok"] * (2 * cap) + ["limit_reached"] * 2
    assert world.end_reason is tr.EndReason.MAX_ITERATIONS


@pytest.mark.parametrize("cap", [1, 2, 7])
async def test_kH1_a_model_that_stops_at_the_cap_has_answered(cap: int) -> None:
    world = Counted(cap, asks=cap)
    assert (await world.agent.generate("go")).text == "done"
    assert world.model.calls == cap + 1
    assert world.end_reason is tr.EndReason.ANSWERED


async def test_kH1_with_a_cap_of_0_an_answer_is_an_answer() -> None:
    world = Counted(0, asks=0)
    assert (await world.agent.generate("go")).text == "done"
    assert world.end_reason is tr.EndReason.ANSWERED


@pytest.mark.parametrize("bad", [-1, True, False])
def test_kH1_a_cap_below_0_or_a_bool_is_refused_at_set_up(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_iterations"):
        tr.RequestParams(max_iterations=bad)


async def test_kH1_at_the_cap_the_history_is_closed_and_the_next_turn_works() -> None:
    world = Counted(1, asks=2)
    await world.agent.generate("go")
    tr.check_history(world.agent.history)
    assert world.statuses[-2:] == ["limit_reached"] * 2
    assert (await world.agent.generate("again")).text == "done"
    tr.check_history(world.agent.history)


async def test_kH1_at_the_cap_the_models_last_message_is_returned_unedited() -> None:
    world = Counted(1)
    given: list[tr.Message] = []
    states: list[tuple[bool, int]] = []
    async with world.agent.turn("go") as runner:
        async for message in runner:
            given.append(message)
            states.append((runner.is_done, len(world.agent.history)))
        returned = await runner.until_done()

    assert returned is given[-1]
    assert returned.role == "assistant"
    assert returned.stop_reason is tr.StopReason.TOOL_USE  # why the model stopped
    assert runner.end_reason is tr.EndReason.MAX_ITERATIONS  # why the turn ended
    # The calls were answered on arrival, before the message was handed over.
    assert states == [(False, 1), (True, 5)]
    asked = [m for m in world.agent.history if m.role == "assistant"]
    assert given == asked
    assert all(m.stop_reason is tr.StopReason.TOOL_USE for m in given)


async def test_kH1_a_turns_own_cap_wins_over_the_agents() -> None:
    world = Counted(7)
    await world.agent.generate("go", params=tr.RequestParams(max_iterations=2))
    assert world.model.calls == 3


async def test_kH1_the_default_is_199() -> None:
    world = Counted(0)
    await world.agent.generate("go", params=tr.RequestParams(max_iterations=tr.UNSET))
    assert world.model.calls == 1
    model = ScriptedModel(itertools.repeat([call("nosuch")]), check=False)
    agent = tr.ToolAgent("a", model=model)
    await agent.generate("go")
    assert model.calls == 200


async def test_kH1_reaching_the_cap_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = Counted(2)
    with caplog.at_level(logging.WARNING, logger="trio_runner"):
        await world.agent.generate("go")
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


async def test_kH1_a_follow_up_that_fails_does_not_gain_batches_when_it_is_resumed() -> None:
    # An error between the batch and the next model call: the batch was one of the two.
    failed: list[str] = []

    async def fails_once(runner: tr.ToolRunner, message: tr.Message) -> None:
        if not failed:
            failed.append("")
            raise LookupError("the hook")

    world = Counted(2)
    hooks = tr.ToolRunnerHooks(after_tool_call=fails_once)
    with pytest.raises(LookupError):
        await world.agent.generate("go", hooks=hooks)
    await world.agent.resume()
    assert len(world.batches) == 2
    assert world.model.calls == 3


async def test_kH1_a_turn_may_be_resumed_behind_its_cap() -> None:
    world = Counted(1, asks=2)
    await world.agent.generate("go")
    assert (await world.agent.resume()).text == "done"
    tr.check_history(world.agent.history)
