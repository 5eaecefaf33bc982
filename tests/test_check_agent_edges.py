"""`check_agent` on agents at the edge: correct ones are not accused, sly ones are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import (
    AgentTurn,
    ContractReport,
    ScriptedModel,
    SweepError,
    call,
    check_agent,
    replay,
)

TWO_BATCHES: Sequence[Any] = [[call("work"), call("work")], [call("work")], "done"]


def quick(make_agent: Callable[..., tr.ToolAgent], **options: Any) -> ContractReport:
    """One way to drive, with the faults that leave a turn."""
    chosen: dict[str, Any] = {
        "seeds": [0],
        "drives": ["async_for"],
        "faults": ["cancel", "sigint", "journal_hang", "commit_error"],
        **options,
    }
    return check_agent(make_agent, **chosen)


def working(work: Callable[..., Any], **settings: Any) -> Callable[..., tr.ToolAgent]:
    """An agent with one tool, called ``work``."""

    def make(model: tr.Model, journal: tr.Journal, session: str) -> tr.ToolAgent:
        tool = tr.tool(work, name="work")
        return tr.ToolAgent(
            "mine", model=model, tools=[tool], journal=journal, session=session, **settings
        )

    return make


def returns(value: Any) -> Callable[..., Any]:
    async def work() -> Any:
        await trio.sleep(0.1)
        return value

    return work


async def cleans_up_for_ten_seconds() -> str:
    try:
        await trio.sleep(1)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            await trio.sleep(10)
    return "done"


async def takes_long() -> str:
    await trio.sleep(300)
    return "done"


async def is_fatal() -> str:
    await trio.lowlevel.checkpoint()
    raise tr.FatalToolError("stop everything")


async def leaves_with_a_group() -> str:
    async def fail_on_cancel() -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            raise ValueError("on the way out") from None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_on_cancel)
        await trio.sleep(1)
    return "done"


async def deny_first(runner: tr.ToolRunner, reply: tr.Message) -> None:
    runner.deny(reply.tool_calls[0].id, "not this one")


async def compact(runner: tr.ToolRunner, _: object) -> None:
    if len(runner.history) > 3:
        runner.replace_history([tr.Message.user("what was before")])


# --- correct agents -------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["", "a\ud800b", None, {"a": [1, 2]}, 7, b"bytes", [1]],
    ids=repr,
)
def test_a_tool_may_return_what_it_likes(value: object) -> None:
    quick(working(returns(value)), delays=[0.0], faults=["cancel"]).raise_if_failed()


def test_a_result_may_be_longer_than_the_cap() -> None:
    params = tr.RequestParams(max_result_bytes=1024)
    make_agent = working(returns("long " * 1000), params=params)
    quick(make_agent, delays=[0.0], faults=["cancel"]).raise_if_failed()


def test_call_tool_may_be_overridden_to_change_results() -> None:
    class Mine(tr.ToolAgent):
        async def call_tool(self, planned: Any, context: tr.ToolContext) -> tr.ToolResult:
            result = await super().call_tool(planned, context)
            return tr.ToolResult(result.call_id, result.name, f"<{result.text}>")

    def make(model: tr.Model) -> tr.ToolAgent:
        return Mine("mine", model=model, tools=[tr.tool(returns("x"), name="work")])

    quick(make).raise_if_failed()


@pytest.mark.parametrize("work", [cleans_up_for_ten_seconds, takes_long, leaves_with_a_group])
def test_the_time_and_the_cleanup_of_a_tool_are_its_own(work: Callable[..., Any]) -> None:
    quick(working(work), delays=[0.0], max_positions=8).raise_if_failed()


def test_several_fatal_errors_may_leave_together() -> None:
    replies = [[call("work"), call("work"), call("work")], "never"]
    quick(working(is_fatal), replies=replies, delays=[0.0]).raise_if_failed()


def test_a_turn_may_have_a_timeout_that_passes() -> None:
    params = tr.RequestParams(turn_timeout=0.15)
    make_agent = working(returns("x"), params=params)
    quick(make_agent, delays=[0.0], faults=["journal_hang", "commit_error"]).raise_if_failed()


def test_a_tool_may_have_a_timeout_that_passes() -> None:
    make_agent = working(takes_long, params=tr.RequestParams(tool_timeout=2))
    quick(make_agent, delays=[0.0]).raise_if_failed()


def test_durability_may_be_strict() -> None:
    quick(working(returns("x"), durability="strict")).raise_if_failed()


def test_an_agent_may_begin_with_a_history() -> None:
    history = [tr.Message.user("before"), tr.Message.assistant("this")]
    quick(working(returns("x"), history=history)).raise_if_failed()


def test_a_turn_may_go_without_the_history() -> None:
    quick(working(returns("x"), params=tr.RequestParams(use_history=False))).raise_if_failed()


def test_hooks_may_deny_and_replace_the_history() -> None:
    hooks = tr.ToolRunnerHooks(before_tool_call=deny_first, before_llm_call=compact)
    quick(working(returns("x"), hooks=hooks), replies=TWO_BATCHES).raise_if_failed()


def test_grace_may_be_shorter_than_a_commit_takes() -> None:
    quick(working(returns("x"), grace=0.2), delays=[0.5]).raise_if_failed()


# --- what must be refused or found ----------------------------------------------


def test_one_agent_for_all_positions_is_refused() -> None:
    agent = tr.ToolAgent("mine", model=ScriptedModel([]), tools=[tr.tool(returns("x"), name="w")])
    with pytest.raises(SweepError, match=r"make_agent returned .* again"):
        check_agent(lambda: agent, seeds=[0], drives=["generate"], faults=["cancel"])


def test_a_script_that_a_tool_does_not_take_is_refused() -> None:
    def work(day: str) -> str:
        if day != "Monday":
            raise tr.InvalidArgumentsError("day must be Monday")
        return day

    def make(model: tr.Model) -> tr.ToolAgent:
        return tr.ToolAgent("mine", model=model, tools=[work])

    with pytest.raises(SweepError, match=r"'work' does not take its arguments: .*replies="):
        quick(make)


def test_a_script_that_is_too_short_is_refused() -> None:
    with pytest.raises(SweepError, match=r"too short|raised ScriptExhausted"):
        quick(working(returns("x")), replies=[[call("work")]])


@pytest.mark.parametrize("what", ["drives", "delays"])
def test_nothing_to_sweep_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=f"{what} is empty"):
        quick(working(returns("x")), **{what: []})


def test_an_unknown_way_to_drive_is_refused() -> None:
    with pytest.raises(ValueError, match="drive is 'for'; expected one of"):
        quick(working(returns("x")), drives=["for"])


def test_results_that_are_swapped_are_found_with_the_made_script() -> None:
    class Swapping(tr.ToolAgent):
        """Gives each call the result of another, behind the library's back."""

        async def generate(self, *args: Any, **options: Any) -> tr.Message:
            return await super().generate(*args, **options)

        @property
        def history(self) -> tuple[tr.Message, ...]:
            def swapped(message: tr.Message) -> tr.Message:
                texts = [each.content for each in reversed(message.tool_results)]
                results = [
                    tr.ToolResult(each.call_id, each.name, content)
                    for each, content in zip(message.tool_results, texts, strict=True)
                ]
                return tr.Message.user((), tool_results=results) if results else message

            return tuple(map(swapped, super().history))

    async def echo(word: str) -> str:
        await trio.lowlevel.checkpoint()
        return word

    def make(model: tr.Model) -> tr.ToolAgent:
        return Swapping("mine", model=model, tools=[echo])

    report = quick(make, faults=["cancel"], drives=["generate"])
    assert any("C3: call" in text for part in report.parts for text in part.report.violations)


def test_a_start_behind_a_shield_is_late_all_the_same() -> None:
    class Late(tr.ToolAgent):
        newest: tr.Message

        async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                await trio.sleep(1)
                self.newest = await super().reply(request, emit)
            return self.newest

    def make(model: tr.Model) -> tr.ToolAgent:
        return Late("mine", model=model, tools=[tr.tool(returns("x"), name="work")])

    report = quick(make, faults=["cancel"])
    assert any(
        "C1: a model call began after the cancel" in text
        for part in report.parts
        for text in part.report.violations
    )


def test_an_error_that_leaves_in_other_words_is_of_nobody() -> None:
    class Wrapping(tr.ToolAgent):
        async def generate(self, *args: Any, **options: Any) -> tr.Message:
            try:
                return await super().generate(*args, **options)
            except Exception as error:
                raise RuntimeError("something failed") from error

    def make(model: tr.Model) -> tr.ToolAgent:
        return Wrapping("mine", model=model, tools=[tr.tool(returns("x"), name="work")])

    report = quick(make, faults=["model_error"], drives=["generate"])
    texts = [text for part in report.parts for text in part.report.violations]
    assert any("C7: an error of nobody left: RuntimeError" in text for text in texts)
    assert any("C7: an error was lost: PlannedError" in text for text in texts)


def test_overtaken_errors_are_tried_by_default() -> None:
    report = check_agent(working(returns("x")), seeds=[0], drives=["generate"], delays=[0.5])
    report.raise_if_failed()
    counts = {name for part in report.parts for name in part.report.counts}
    assert {"model_error+cancel", "hook_error+sigint", "journal_error+commit_error"} <= counts


def test_a_case_is_replayed_as_it_was_swept() -> None:
    cases = AgentTurn(working(returns("x")), drive="break", delay=0.5)
    assert replay(cases, ("journal_hang", 2), ("cancel", 9)).violations == ()


def test_a_log_record_that_is_kept_keeps_no_run_alive(caplog: pytest.LogCaptureFixture) -> None:
    """pytest keeps them all; each would hold a whole run, and a long sweep would grow and grow."""
    quick(working(returns("x")), faults=["journal_error", "observer_error"]).raise_if_failed()
    records = [each for each in caplog.records if each.name == "trio_runner"]
    assert any("PlannedError" in (each.exc_text or "") for each in records)
    assert any("the journal refused" in each.getMessage() for each in records)
    assert [each for each in records if each.exc_info or each.args] == []
