"""BEHAVIOURS kB7: no exception group leaks that nobody raised, and none that was raised is lost."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import ScriptedModel, ScriptItem, call
from trio_runner.testing.strategies import RaisesGroup, Spawns, make_tool


async def waits(seconds: float = 0) -> str:
    """Wait."""
    await trio.sleep(seconds)
    return "fine"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [waits])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for message in agent.history for result in message.tool_results]


def told_group(error: object) -> tuple[str, list[BaseException]]:
    """The message and the errors of a group."""
    assert isinstance(error, BaseExceptionGroup)
    group = cast("BaseExceptionGroup[BaseException]", error)
    return group.message, list(group.exceptions)


class Told:
    """Keeps the errors that observers are told of because another one left."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def on_event(self, event: ev.Event) -> None:
        if type(event) is ev.ErrorSuppressed:
            self.errors.append(event.error)


# --- errors of tools alone ------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_kB7_a_group_of_a_tools_errors_is_one_result_that_names_the_leaf_causes(
    count: int, depth: int
) -> None:
    tool = make_tool(RaisesGroup(count, depth))
    agent = agent_of([call("work"), call("waits")], "done", tools=[tool, waits])
    assert (await agent.generate("go")).text == "done"

    failed, other = results_of(agent)
    assert failed.status is tr.CallStatus.ERROR
    for number in range(count):
        assert "LookupError" in failed.text
        assert f"cause {number}" in failed.text
    assert other.text == "fine"


async def test_kB7_the_group_of_a_tools_own_nursery_is_one_result_that_names_the_cause() -> None:
    agent = agent_of(call("work"), "done", tools=[make_tool(Spawns(3, 2, raises=True))])
    await agent.generate("go")
    (failed,) = results_of(agent)
    assert failed.status is tr.CallStatus.ERROR
    assert "a child failed" in failed.text


async def test_kB7_an_error_beside_a_stray_cancellation_is_one_result_that_names_it() -> None:
    async def work() -> None:
        errors = [LookupError("the cause"), asyncio.CancelledError("a foreign loop")]
        raise BaseExceptionGroup("theirs", errors)

    agent = agent_of([call("work"), call("waits")], "done", tools=[work, waits])
    assert (await agent.generate("go")).text == "done"
    failed, other = results_of(agent)
    assert failed.status is tr.CallStatus.ERROR
    assert "the cause" in failed.text
    assert other.text == "fine"


# --- a BaseExceptionGroup that holds the caller's cancel ------------------------


async def test_kB7_a_group_that_holds_the_callers_cancel_is_the_cancel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def fails_late() -> None:
        try:
            await trio.sleep(1000)
        finally:
            raise LookupError("in the cleanup")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_late)
            nursery.start_soon(trio.sleep, 1000)

    told = Told()
    agent = agent_of(call("work"), "never", tools=[work], observers=[told])
    with trio.move_on_after(1) as scope:
        await agent.generate("go")
        pytest.fail("the turn returned")

    # No except* was needed, and the error that came with the cancel was told.
    assert scope.cancelled_caught
    assert [str(error) for error in told.errors] == ["in the cleanup"]
    (result,) = results_of(agent)
    assert result.status is tr.CallStatus.INTERRUPTED


# --- what must leave, alone and together ----------------------------------------


class OddExit(BaseException):
    """Neither an `Exception` nor a cancellation, as test frameworks raise."""


@pytest.mark.parametrize("error", [OddExit("odd"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("wrapped", [False, True])
async def test_kB7_a_single_cause_that_is_no_exception_leaves_bare_or_as_it_was_raised(
    error: BaseException, wrapped: bool
) -> None:
    async def work() -> None:
        raise BaseExceptionGroup("theirs", [error]) if wrapped else error

    agent = agent_of([call("work"), call("waits")], "never", tools=[work, waits])
    caught: BaseException | None = None
    try:
        await agent.generate("go")
    except BaseException as left:  # noqa: BLE001  it is looked at
        caught = left

    if wrapped and type(error) is OddExit:
        # The tool's own group stays: only the layer of our nursery is taken off.
        assert told_group(caught) == ("theirs", [error])
    else:
        assert caught is error
    tr.check_history(agent.history)
    assert len(results_of(agent)) == 2


async def test_kB7_a_tools_group_with_an_internal_error_leaves_and_the_tool_errors_are_kept() -> (
    None
):
    inner = [LookupError("of the tool"), OddExit("not of the tool")]

    async def work() -> None:
        raise BaseExceptionGroup("theirs", inner)

    agent = agent_of([call("work"), call("waits")], "never", tools=[work, waits])
    with pytest.raises(BaseExceptionGroup) as caught:
        await agent.generate("go")
    assert caught.value.message == "theirs"
    assert list(caught.value.exceptions) == inner
    tr.check_history(agent.history)


async def test_kB7_two_causes_of_two_tools_leave_as_one_documented_group() -> None:
    async def first() -> None:
        await trio.lowlevel.checkpoint()
        raise OddExit("first")

    async def second() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OddExit("second")

    agent = agent_of([call("first"), call("second")], "never", tools=[first, second])
    with pytest.raises(BaseExceptionGroup) as caught:
        await agent.generate("go")
    assert sorted(map(str, caught.value.exceptions)) == ["first", "second"]
    assert "several errors" in caught.value.message


@pytest.mark.parametrize("count", [1, 2])
async def test_kB7_fatal_tool_errors_leave_bare_or_as_one_group(count: int) -> None:
    async def fatal(number: int) -> None:
        raise tr.FatalToolError(f"over {number}")

    agent = agent_of(
        [*[call("fatal", number=n) for n in range(count)], call("waits")],
        "never",
        tools=[fatal, waits],
    )
    caught: Exception | None = None
    try:
        await agent.generate("go")
    except Exception as error:  # noqa: BLE001  it is looked at
        caught = error
    if count == 1:
        assert type(caught) is tr.FatalToolError
    else:
        _, errors = told_group(caught)
        assert sorted(map(str, errors)) == ["over 0", "over 1"]
    assert [result.status.value for result in results_of(agent)] == [*["error"] * count, "ok"]


async def test_kB7_a_fatal_tool_error_in_a_tools_own_group_ends_the_turn_too() -> None:
    async def fatal() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    async def child() -> None:
        raise tr.FatalToolError("over")

    agent = agent_of([call("fatal"), call("waits")], "never", tools=[fatal, waits])
    with pytest.raises(tr.FatalToolError, match="over"):
        await agent.generate("go")
    assert [result.status.value for result in results_of(agent)] == ["error", "ok"]


@pytest.mark.parametrize("who", ["model", "hook"])
async def test_kB7_a_group_that_a_model_or_hook_raised_leaves_as_it_was_raised(who: str) -> None:
    theirs = ExceptionGroup("theirs", [ExceptionGroup("inner", [LookupError("cause")])])

    async def hook(runner: tr.ToolRunner, _: object) -> None:
        raise theirs

    hooks = tr.ToolRunnerHooks(before_llm_call=hook) if who == "hook" else None
    agent = agent_of(theirs, hooks=hooks)
    with pytest.raises(ExceptionGroup) as caught:
        await agent.generate("go")
    assert caught.value is theirs


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.filterwarnings(
    # The switch is what this test is about.
    "ignore:.*strict_exception_groups=False:trio.TrioDeprecationWarning"
)
def test_kB7_the_same_leaves_whichever_way_the_application_wants_its_nurseries(
    strict: bool,
) -> None:
    seen: list[tuple[str, str]] = []

    async def fatal() -> None:
        raise tr.FatalToolError("over")

    async def odd() -> None:
        raise OddExit("odd")

    async def odd_group() -> None:
        raise BaseExceptionGroup("theirs", [OddExit("odd")])

    async def once(*tools: Any) -> None:
        agent = agent_of([call(each.__name__) for each in tools], "never", tools=tools)
        try:
            await agent.generate("go")
        except BaseException as error:  # noqa: BLE001  it is looked at
            seen.append((type(error).__name__, str(error)))

    async def main() -> None:
        await once(fatal)
        await once(odd)
        await once(odd, waits)
        await once(odd_group)

    trio.run(main, strict_exception_groups=strict)
    theirs = ("BaseExceptionGroup", "theirs (1 sub-exception)")
    assert seen == [("FatalToolError", "over"), ("OddExit", "odd"), ("OddExit", "odd"), theirs]


async def test_kB7_the_cause_keeps_where_it_came_from() -> None:
    async def work() -> None:
        try:
            raise OSError("the disk")
        except OSError as error:
            raise tr.FatalToolError("over") from error

    agent = agent_of(call("work"), "never", tools=[work])
    with pytest.raises(tr.FatalToolError) as caught:
        await agent.generate("go")
    assert isinstance(caught.value.__cause__, OSError)
