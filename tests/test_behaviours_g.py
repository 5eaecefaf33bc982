"""BEHAVIOURS part g: hooks that raise or change things, use at once, odd return values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, ScriptItem, call

HOOKS = (
    "before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call",
    "after_turn_complete",
)  # fmt: skip


async def work(number: int = 0) -> str:
    """Work."""
    await trio.lowlevel.checkpoint()
    return f"value {number}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for result in results_of(agent)]


def hooks_of(name: str, hook: Any) -> tr.ToolRunnerHooks:
    return tr.ToolRunnerHooks(**{name: hook})


# --- kG1 ------------------------------------------------------------------------


class CustomExit(BaseException):
    """Neither an Exception nor a cancellation, as pytest.fail raises."""


#: What the results are when the hook raises the first and the second time it is called.
AFTERWARDS: dict[str, tuple[list[str], list[str]]] = {
    "before_llm_call": ([], ["ok", "ok"]),
    "after_llm_call": (["not_started"] * 2, ["ok"] * 2 + ["not_started"]),
    "before_tool_call": (["denied"] * 2, ["ok"] * 2 + ["denied"]),
    "after_tool_call": (["ok"] * 2, ["ok"] * 3),
}


@pytest.mark.parametrize("round_number", [0, 1])
@pytest.mark.parametrize("kind", ["error", "base", "cancel"])
@pytest.mark.parametrize("name", AFTERWARDS)
async def test_kG1_a_hook_that_raises_at_each_round(
    name: str, kind: str, round_number: int, autojump_clock: trio.testing.MockClock
) -> None:
    journal = tr.MemoryJournal()
    rounds: list[int] = []

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        rounds.append(len(rounds))
        if len(rounds) == round_number + 1:
            match kind:
                case "error":
                    raise LookupError("the hook")
                case "base":
                    raise CustomExit
                case _:
                    await trio.sleep(100)

    agent = agent_of(
        [call("work"), call("work")], call("work"), "done", "next",
        hooks=hooks_of(name, hook), journal=journal, session="s",
    )  # fmt: skip
    async with agent:
        with trio.move_on_after(10) as scope:
            with pytest.raises((LookupError, CustomExit, trio.Cancelled)) as caught:
                await agent.generate("go")
            if kind == "cancel":
                raise caught.value
        assert scope.cancelled_caught == (kind == "cancel")

        tr.check_history(agent.history)
        found = statuses(agent)
        expected = AFTERWARDS[name][round_number]
        if kind != "error":
            # Only an Exception says that the guard refused.
            expected = [s.replace("denied", "not_started") for s in expected]
        assert found == expected
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


async def test_kG1_after_turn_complete_raises_after_the_turn_is_committed() -> None:
    journal = tr.MemoryJournal()
    stored: list[str] = []

    async def hook(runner: tr.ToolRunner, _: tr.Message) -> None:
        stored.extend([type(record).__name__ for record in journal.stored("s")])
        raise LookupError("the hook")

    agent = agent_of(
        "done", "next", hooks=hooks_of("after_turn_complete", hook), journal=journal, session="s"
    )
    async with agent:
        with pytest.raises(LookupError):
            await agent.generate("go")
        assert stored[-1] == "TurnEnded"
        assert [m.text for m in agent.history] == ["go", "done"]


async def test_kG1_when_a_hook_raises_the_later_ones_of_that_point_do_not_run() -> None:
    ran: list[str] = []

    def noting(name: str, *, fails: bool = False) -> tr.ToolRunnerHooks:
        async def hook(runner: tr.ToolRunner, _: Any) -> None:
            ran.append(name)
            if fails:
                raise LookupError(name)

        return tr.ToolRunnerHooks(before_tool_call=hook)

    hooks = tr.merge_hooks(noting("first"), noting("second", fails=True), noting("third"))
    agent = agent_of(call("work"), hooks=hooks)
    with pytest.raises(LookupError, match="second"):
        await agent.generate("go")
    assert ran == ["first", "second"]


async def test_kG1_a_guard_that_raises_for_one_of_three_calls_runs_none() -> None:
    async def denies(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny(message.tool_calls[1].id, "forbidden by the first guard.")

    async def raises(runner: tr.ToolRunner, message: tr.Message) -> None:
        raise LookupError("the guard")

    hooks = tr.merge_hooks(
        tr.ToolRunnerHooks(before_tool_call=denies), tr.ToolRunnerHooks(before_tool_call=raises)
    )
    agent = agent_of([call("work", number=n) for n in range(3)], hooks=hooks)
    with pytest.raises(LookupError):
        await agent.generate("go")
    assert statuses(agent) == ["denied"] * 3
    # A deny is never lost: its reason is the one that was given.
    assert "forbidden by the first guard" in results_of(agent)[1].text


async def test_kG1_one_denied_call_does_not_keep_the_others_from_running() -> None:
    async def denies(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny(message.tool_calls[1].id, "no.")

    agent = agent_of(
        [call("work", number=n) for n in range(3)],
        "done",
        hooks=hooks_of("before_tool_call", denies),
    )
    await agent.generate("go")
    assert statuses(agent) == ["ok", "denied", "ok"]


# --- kG2 ------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOOKS)
async def test_kG2_a_hook_may_put_a_shorter_or_longer_history_in_place(name: str) -> None:
    journal = tr.MemoryJournal()
    shorter = [tr.Message.user("a summary"), tr.Message.assistant("I see")]
    longer = [*shorter, tr.Message.user("more"), tr.Message.assistant("and more")]

    for replacement in (shorter, longer):
        done: list[str] = []

        async def hook(
            runner: tr.ToolRunner,
            _: Any,
            replacement: Sequence[tr.Message] = replacement,
            done: list[str] = done,
        ) -> None:
            if not done:
                done.append(name)
                runner.replace_history([*replacement, tr.Message.user("go on")])

        session = f"s{len(replacement)}"
        agent = agent_of(
            [call("work")], "done", "next",
            hooks=hooks_of(name, hook), journal=journal, session=session,
        )  # fmt: skip
        async with agent:
            assert (await agent.generate("go")).text == "done"
            tr.check_history(agent.history)
            assert agent.history[: len(replacement)] == tuple(replacement)
            assert done == [name]
            assert tuple(tr.fold(journal.stored(session)).history.view()) == agent.history
            await agent.generate("again")


INVALID: dict[str, Callable[[tuple[tr.Message, ...]], list[tr.Message]]] = {
    "delete a request": lambda h: [m for m in h if not m.tool_calls],
    "delete a result": lambda h: [m for m in h if not m.tool_results],
    "reorder": lambda h: list(reversed(h)),
    "repeat": lambda h: [*h, *h],
    "empty message": lambda h: [*h, tr.Message.user("")],
}


@pytest.mark.parametrize("change", INVALID)
@pytest.mark.parametrize("name", ["before_llm_call", "after_tool_call", "after_turn_complete"])
async def test_kG2_an_invalid_change_is_refused_and_changes_nothing(name: str, change: str) -> None:
    problems: list[str] = []

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        before = agent.history
        if not results_of(agent):
            return
        with pytest.raises(tr.HistoryError) as caught:
            runner.replace_history(INVALID[change](before))
        problems.extend(caught.value.problems)
        assert agent.history == before

    agent = agent_of([call("work")], "done", hooks=hooks_of(name, hook))
    assert (await agent.generate("go")).text == "done"
    assert problems
    assert all(problems)


@pytest.mark.parametrize("name", ["after_llm_call", "before_tool_call"])
async def test_kG2_the_pending_request_cannot_be_deleted_or_doubled(name: str) -> None:
    async def hook(runner: tr.ToolRunner, message: Any) -> None:
        if not message.tool_calls:
            return
        runner.replace_history([tr.Message.user("only this")])
        with pytest.raises(tr.HistoryError):
            runner.replace_history([tr.Message.user("q"), message])
        answer = tr.Message.user(
            tool_results=[tr.ToolResult(c.id, c.name, "made up") for c in message.tool_calls]
        )
        with pytest.raises(tr.HistoryError):
            runner.replace_history([tr.Message.user("q"), message, answer])

    agent = agent_of([call("work", number=5)], "done", hooks=hooks_of(name, hook))
    await agent.generate("go")
    assert [r.text for r in results_of(agent)] == ["value 5"]
    assert agent.history[0].text == "only this"


@pytest.mark.parametrize("name", HOOKS)
async def test_kG2_what_a_hook_does_to_the_messages_it_is_given_changes_nothing(name: str) -> None:
    changed: list[str] = []

    async def work(number: int, deep: dict[str, list[int]]) -> tr.ToolResult:
        assert (number, deep) == (5, {"list": [6]})
        return tr.ToolResult("", "", [tr.TextContent("7", meta={"is": "of the tool"})], {"k": [8]})

    async def hook(runner: tr.ToolRunner, given: tr.Message | tuple[tr.Message, ...]) -> None:
        for message in given if isinstance(given, tuple) else [given]:
            spoiled: list[Any] = [message.meta]
            spoiled += [asked.arguments for asked in message.tool_calls]
            spoiled += [asked.arguments.get("deep", {}) for asked in message.tool_calls]
            for result in message.tool_results:
                spoiled += [result.structured_content, result.meta, result.content[0].meta]
            for each in spoiled:
                if each:
                    changed.append(str(each))
                    each.clear()
                    each["odd"] = object()

    journal = tr.MemoryJournal()
    meta = {"from": {"the": "user"}}
    asked = call("work", number=5, deep={"list": [6]})
    agent = agent_of(
        tr.Message.assistant("", tool_calls=[asked], meta={"of": "the reply"}),
        tr.Message.assistant("done", meta={"of": "the answer"}),
        tools=[work], hooks=hooks_of(name, hook), journal=journal, session="s",
    )  # fmt: skip
    async with agent:
        await agent.generate(tr.Message("user", [tr.TextContent("go")], meta=meta))
        meta["from"]["the"] = "caller, later"

        assert changed, "the hook saw nothing that it could change"
        tr.check_history(agent.history)
        user, reply, results, answer = agent.history
        assert user.meta == {"from": {"the": "user"}}
        assert reply.tool_calls[0].arguments == {"number": 5, "deep": {"list": [6]}}
        assert (reply.meta, answer.meta) == ({"of": "the reply"}, {"of": "the answer"})
        [result] = results.tool_results
        assert result.structured_content == {"k": [8]}
        assert result.content[0].meta == {"is": "of the tool"}
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


@pytest.mark.parametrize("way", ["input", "note", "history", "load"])
async def test_a_message_that_its_maker_changes_later_is_what_it_was(way: str) -> None:
    meta: dict[str, Any] = {"plain": [1]}
    message = tr.Message("user", [tr.TextContent("hi")], meta=meta)

    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        if way == "note":
            runner.append_messages(message)

    agent = agent_of(
        "done", hooks=hooks_of("before_llm_call", hook),
        history=[message] if way == "history" else (),
    )  # fmt: skip
    if way == "load":
        agent.load_history([message])
    await agent.generate(message if way == "input" else "go")
    meta["plain"].append(object())
    assert {"plain": [1]} in [m.meta for m in agent.history]


@pytest.mark.parametrize(
    "bad",
    [
        tr.Message.user(""),
        tr.Message.user("\ud800"),
        tr.Message.assistant(tool_calls=[tr.ToolCall("c", "work")]),
        tr.Message.user(tool_results=[tr.ToolResult("c", "work", "made up")]),
    ],
)
async def test_kG2_a_note_that_is_no_plain_message_is_refused(bad: tr.Message) -> None:
    async def hook(runner: tr.ToolRunner, _: Any) -> None:
        with pytest.raises(tr.HistoryError):
            runner.append_messages("fine", bad)

    agent = agent_of(call("work"), "done", hooks=hooks_of("after_tool_call", hook))
    await agent.generate("go")
    assert "fine" not in [m.text for m in agent.history]


@pytest.mark.parametrize("templates", [0, 2])
@pytest.mark.parametrize("use_history", [True, False])
async def test_kG2_an_empty_history_may_be_put_in_place(use_history: bool, templates: int) -> None:
    async def hook(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.replace_history([])

    front = [tr.Message.user(f"template {n}", template=True) for n in range(templates)]
    agent = agent_of(
        call("work"), "done",
        hooks=hooks_of("after_tool_call", hook), history=front,
        params=tr.RequestParams(use_history=use_history),
    )  # fmt: skip
    assert (await agent.generate("go")).text == "done"
    tr.check_history(agent.history)


# --- kG4 ------------------------------------------------------------------------


async def test_kG4_a_second_turn_on_one_agent_is_refused_before_anything_changes() -> None:
    agent = agent_of(call("work"), "done", "next")
    async with agent.turn("go") as runner:
        await anext(runner)
        before = agent.history
        with pytest.raises(tr.BusyError):
            await agent.generate("me too")
        with pytest.raises(tr.BusyError):
            async with agent.turn("me too"):
                pytest.fail("entered")
        with pytest.raises(tr.BusyError):
            await agent.resume()
        with pytest.raises(tr.BusyError):
            agent.load_history([])
        with pytest.raises(tr.BusyError):
            agent.clear()
        assert agent.history == before
        assert (await runner.until_done()).text == "done"  # the first is unaffected
    assert (await agent.generate("now")).text == "next"


async def test_kG4_one_runner_from_two_tasks(autojump_clock: trio.testing.MockClock) -> None:
    async def slow() -> str:
        await trio.sleep(5)
        return "slow"

    agent = agent_of(call("slow"), "done", tools=[slow])
    refused: list[BaseException] = []

    async with agent.turn("go") as runner:

        async def intrude() -> None:
            await trio.sleep(1)
            try:
                await anext(runner)
            except tr.BusyError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(intrude)
            assert (await runner.until_done()).text == "done"
    assert len(refused) == 1


async def test_kG4_a_runner_is_entered_once() -> None:
    agent = agent_of("done", "next")
    runner = agent.turn("go")
    async with runner:
        with pytest.raises(tr.BusyError):
            await runner.__aenter__()
        await runner.until_done()
    with pytest.raises(tr.BusyError):
        await runner.__aenter__()
    assert [m.text for m in agent.history] == ["go", "done"]
    assert (await agent.generate("again")).text == "next"


async def test_kG4_a_finished_runner_stays_finished() -> None:
    agent = agent_of("done")
    runner = agent.turn("go")
    async with runner:
        await runner.until_done()
    with pytest.raises(StopAsyncIteration):
        await anext(runner)
    with pytest.raises(tr.TurnEndedError):
        runner.append_messages("late")


@pytest.mark.parametrize("way", ["cancel", "error"])
async def test_kG4_the_guard_is_freed(way: str, autojump_clock: trio.testing.MockClock) -> None:
    async def sleeps(_: tr.ModelRequest) -> ScriptItem:
        await trio.sleep(100)
        return "late"

    first: ScriptItem = sleeps if way == "cancel" else OSError("no network")
    agent = agent_of(first, "next")
    with trio.move_on_after(1):
        try:
            await agent.generate("go")
        except OSError:
            pass
    assert (await agent.generate("again")).text == "next"


async def test_kG4_a_runner_that_could_not_start_frees_the_agent() -> None:
    agent = agent_of("next")
    bad = tr.Message.assistant(tool_calls=[tr.ToolCall("c", "work")])
    with pytest.raises(tr.HistoryError):
        await agent.generate(bad)
    with pytest.raises(tr.NothingToResumeError):
        await agent.resume()
    assert agent.history == ()
    assert (await agent.generate("again")).text == "next"


async def test_kG4_two_agents_side_by_side_do_not_mix(
    autojump_clock: trio.testing.MockClock,
) -> None:
    agents = [agent_of([call("work", number=n)] * 3, f"done {n}") for n in range(2)]
    async with trio.open_nursery() as nursery:
        for agent in agents:
            nursery.start_soon(agent.generate, "go")
    for n, agent in enumerate(agents):
        assert [r.text for r in results_of(agent)] == [f"value {n}"] * 3


async def test_kG4_a_tool_that_uses_its_own_agent_gets_a_busy_error_as_its_result() -> None:
    async def again() -> str:
        return (await agent.generate("from inside")).text

    agent = agent_of(call("again"), "done", tools=[again])
    assert (await agent.generate("go")).text == "done"
    assert statuses(agent) == ["error"]
    assert "BusyError" in results_of(agent)[0].text


# --- kG5 ------------------------------------------------------------------------


def generator() -> Generator[int]:
    yield 1


class NotData:
    """Says nothing of itself, not even its repr."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD: dict[str, tuple[Callable[[], Any], tr.CallStatus]] = {
    "none": (lambda: None, tr.CallStatus.OK),
    "empty text": (lambda: "", tr.CallStatus.OK),
    "blank text": (lambda: " \n", tr.CallStatus.OK),
    "bytes": (lambda: b"\xff\xfe\x00", tr.CallStatus.OK),
    "surrogate": (lambda: "\ud800", tr.CallStatus.OK),
    "nan": (lambda: {"x": float("nan")}, tr.CallStatus.OK),
    "generator": (generator, tr.CallStatus.ERROR),
    "coroutine": (work, tr.CallStatus.ERROR),
    "object": (NotData, tr.CallStatus.ERROR),
    "result without content": (tr.ToolResult, tr.CallStatus.OK),
    "result for another id": (
        lambda: tr.ToolResult("other", "other", "text"), tr.CallStatus.OK
    ),
    "result that says error": (
        lambda: tr.ToolResult(content="bad", status=tr.CallStatus.ERROR), tr.CallStatus.ERROR
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
async def test_kG5_each_odd_return_value_is_one_valid_result(odd: str) -> None:
    make, status = ODD[odd]

    async def returns(arguments: tr.JSONObject, context: tr.ToolContext) -> Any:
        return make()

    returning = tr.Tool("returns", "", {}, returns)
    agent = agent_of(
        [call("returns", id="c1"), call("work", number=1)], "done", tools=[returning, work]
    )
    assert (await agent.generate("go")).text == "done"
    result, other = results_of(agent)
    assert (result.call_id, result.name, result.status) == ("c1", "returns", status)
    assert result.content
    assert other.text == "value 1"
    if odd in ("none", "empty text", "blank text", "result without content"):
        assert result.text == "(no output)"
    if odd in ("generator", "coroutine", "object"):
        assert "ran" in result.text or "did run" in result.text


async def test_kG5_an_exception_object_that_is_returned() -> None:
    async def returns() -> Any:
        return LookupError("returned, not raised")

    agent = agent_of(call("returns"), "done", tools=[returns])
    await agent.generate("go")
    (result,) = results_of(agent)
    assert "LookupError" in result.text or "returned, not raised" in result.text
