"""One call of a batch: timeout, `cancel_call`, context, limits and barriers (F22 to F25)."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import ScriptedModel, ScriptItem, call


async def work(number: int = 0) -> str:
    """Work."""
    await trio.lowlevel.checkpoint()
    return f"value {number}"


async def sleeps(seconds: float) -> str:
    """Sleep."""
    await trio.sleep(seconds)
    return f"slept {seconds:g}"


def agent_of(*replies: ScriptItem, **options: Any) -> tr.ToolAgent:
    options.setdefault("tools", [work, sleeps])
    return tr.ToolAgent("a", model=ScriptedModel(replies), **options)


def results_of(agent: tr.ToolAgent) -> list[tr.ToolResult]:
    return [result for m in agent.history for result in m.tool_results]


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for result in results_of(agent)]


class Events:
    def __init__(self) -> None:
        self.all: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.all.append(event)


# --- F23: one call --------------------------------------------------------------


async def test_a_tools_own_timeout_ends_that_call_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bounded = tr.tool(sleeps, name="bounded", timeout=2)
    asked = [call("bounded", seconds=9), call("sleeps", seconds=3), call("bounded", seconds=1)]
    agent = agent_of(asked, "done", tools=[sleeps, bounded])
    await agent.generate("go")
    assert statuses(agent) == ["timed_out", "ok", "ok"]


async def test_a_timeout_counts_from_when_the_call_really_starts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limited = tr.tool(sleeps, name="limited", timeout=2, limiter=trio.CapacityLimiter(1))
    journal = tr.MemoryJournal(delay=1.5)
    agent = agent_of(
        [call("limited", seconds=1.5)] * 3, "done", tools=[limited], journal=journal, session="s"
    )
    async with agent:
        await agent.generate("go")
        assert statuses(agent) == ["ok"] * 3


async def test_tool_timeout_of_the_params_is_for_tools_without_their_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    patient = tr.tool(sleeps, name="patient", timeout=10)
    agent = agent_of(
        [call("sleeps", seconds=5), call("patient", seconds=5)], "done",
        tools=[sleeps, patient], params=tr.RequestParams(tool_timeout=2),
    )  # fmt: skip
    await agent.generate("go")
    assert statuses(agent) == ["timed_out", "ok"]


@pytest.mark.parametrize("waits_for", ["barrier", "limit", "limiter"])
async def test_cancel_call_stops_a_running_and_a_queued_call_and_keeps_the_turn(
    waits_for: str, autojump_clock: trio.testing.MockClock
) -> None:
    limiter = trio.CapacityLimiter(1)
    queued = tr.tool(
        sleeps, name="queued", sequential=waits_for == "barrier",
        limiter=limiter if waits_for == "limiter" else None,
    )  # fmt: skip
    params = tr.RequestParams(max_parallel_tools=1 if waits_for == "limit" else None)
    asked = [call("sleeps", id="running", seconds=50), call("queued", id="waiting", seconds=5)]
    agent = agent_of(asked, "done", tools=[sleeps, queued], params=params)
    hits: list[bool] = []
    async with agent.turn("go") as runner:
        await anext(runner)

        async def stop() -> None:
            await trio.sleep(1)
            hits.extend(runner.cancel_call(i) for i in ("waiting", "nosuch", "running"))
            hits.append(runner.cancel_call("waiting"))  # has its result

        async with trio.open_nursery() as nursery:
            if waits_for == "limiter":
                limiter.acquire_nowait()  # somebody else has the slot, for ever
            nursery.start_soon(stop)
            with trio.fail_after(30):
                message = await runner.until_done()
    assert message.text == "done"
    assert hits == [True, False, True, False]
    assert statuses(agent) == ["cancelled", "not_started"]
    assert runner.end_reason is tr.EndReason.ANSWERED


async def test_cancel_call_reaches_a_call_of_the_message_that_was_just_yielded() -> None:
    agent = agent_of([call("work", id="c1"), call("work", id="c2")], "done")
    async with agent.turn("go") as runner:
        await anext(runner)
        assert runner.cancel_call("c1")  # it is queued: the batch comes with the next step
        await runner.until_done()
    assert statuses(agent) == ["not_started", "ok"]


@pytest.mark.parametrize("then", ["go on", "leave"])
async def test_when_every_call_was_cancelled_before_the_batch_the_turn_goes_on(then: str) -> None:
    journal = tr.MemoryJournal()
    replies = [call("work", id="c1"), call("work", id="c2")], "done"
    agent = agent_of(*replies, journal=journal, session="s")
    async with agent:
        async with agent.turn("go") as runner:
            await anext(runner)
            assert [runner.cancel_call(i) for i in ("c1", "c2", "c1")] == [True, True, False]
            tr.check_history(agent.history)
            if then == "go on":
                assert (await runner.until_done()).text == "done"
        assert statuses(agent) == ["not_started"] * 2
        assert tuple(tr.fold(journal.stored("s")).history.view()) == agent.history


async def test_a_hook_may_cancel_calls_of_the_batch_that_is_about_to_run() -> None:
    async def hook(runner: tr.ToolRunner, message: tr.Message) -> None:
        assert runner.cancel_call("c1")

    hooks = tr.ToolRunnerHooks(before_tool_call=hook)
    agent = agent_of([call("work", id="c1"), call("work", id="c2")], "done", hooks=hooks)
    await agent.generate("go")
    assert statuses(agent) == ["not_started", "ok"]


async def test_a_returned_value_beats_a_cancel_of_the_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stubborn() -> str:
        try:
            await trio.sleep(50)
        except trio.Cancelled:
            pass
        return "all the same"

    agent = agent_of(call("stubborn", id="c"), "done", tools=[stubborn])
    async with agent.turn("go") as runner, trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.sleep(1)
            assert runner.cancel_call("c")

        nursery.start_soon(stop)
        await runner.until_done()
    assert statuses(agent) == ["ok"]


# --- F22: side by side, in turn, alone ------------------------------------------


class Spans:
    """A tool that keeps when it ran."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[float, float]] = {}

    def tool(self, name: str, **options: Any) -> tr.Tool:
        async def runs(label: str, seconds: float) -> str:
            began = trio.current_time()
            await trio.sleep(seconds)
            self.spans[label] = (began, trio.current_time())
            return label

        return tr.tool(runs, name=name, **options)

    def overlap(self, one: str, other: str) -> bool:
        (a, b), (c, d) = self.spans[one], self.spans[other]
        return a < d and c < b


async def test_a_sequential_tool_is_a_barrier(autojump_clock: trio.testing.MockClock) -> None:
    spans = Spans()
    asked = [
        call("free", label="a", seconds=3), call("free", label="b", seconds=1),
        call("alone", label="c", seconds=2),
        call("free", label="d", seconds=1), call("free", label="e", seconds=1),
    ]  # fmt: skip
    tools = [spans.tool("free"), spans.tool("alone", sequential=True)]
    agent = agent_of(asked, "done", tools=tools)
    await agent.generate("go")
    assert spans.overlap("a", "b")
    assert spans.overlap("d", "e")
    assert not any(spans.overlap("c", other) for other in "abde")
    assert max(spans.spans[i][1] for i in "ab") <= spans.spans["c"][0]
    assert spans.spans["c"][1] <= min(spans.spans[i][0] for i in "de")
    assert [r.text for r in results_of(agent)] == list("abcde")


async def test_without_parallel_calls_a_batch_runs_one_by_one_and_the_model_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    spans = Spans()
    asked = [call("free", label=i, seconds=1) for i in "abc"]
    params = tr.RequestParams(parallel_tool_calls=False)
    agent = agent_of(asked, "done", tools=[spans.tool("free")], params=params)
    await agent.generate("go")
    assert list(spans.spans) == list("abc")
    assert not spans.overlap("a", "b")
    assert not spans.overlap("b", "c")
    assert isinstance(agent.model, ScriptedModel)
    assert agent.model.requests[0].params.parallel_tool_calls is False


async def test_a_named_limiter_is_shared_by_tools_and_agents(
    autojump_clock: trio.testing.MockClock,
) -> None:
    spans = Spans()
    limiter = trio.CapacityLimiter(1)
    tools = [spans.tool(name, limiter=limiter) for name in ("one", "two")]
    agents = [
        agent_of([call("one", label=f"{n}a", seconds=1), call("two", label=f"{n}b", seconds=1)],
                 "done", tools=tools)
        for n in range(2)
    ]  # fmt: skip
    async with trio.open_nursery() as nursery:
        for agent in agents:
            nursery.start_soon(agent.generate, "go")
    labels = list(spans.spans)
    assert len(labels) == 4
    assert not any(spans.overlap(a, b) for a in labels for b in labels if a < b)


# --- F24, F25 -------------------------------------------------------------------


async def test_every_result_says_whose_it_is_and_how_long_it_took(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked = [call("sleeps", id="c1", seconds=2), call("nosuch", id="c2")]
    agent = agent_of(asked, "done")
    await agent.generate("go")
    ran, refused = results_of(agent)
    assert (ran.call_id, ran.name) == ("c1", "sleeps")
    assert ran.duration == pytest.approx(2)
    assert (refused.call_id, refused.name, refused.duration) == ("c2", "nosuch", None)


async def test_a_large_result_is_cut_to_head_and_tail_with_its_full_size() -> None:
    async def big(text: str, count: int) -> str:
        return text * count

    asked = [
        call("big", text="ab", count=5000), call("big", text="\u20ac", count=5000),
        call("work", number=3),
    ]  # fmt: skip
    agent = agent_of(
        asked, "done", tools=[big, work], params=tr.RequestParams(max_result_bytes=1024)
    )
    await agent.generate("go")
    plain, euros, small = results_of(agent)
    for result, first, size in ((plain, "a", "10000"), (euros, "\u20ac", "15000")):
        assert len(result.text.encode()) <= 1024
        assert result.text.startswith(first)
        digits = "".join([c for c in result.text if c.isdigit()])
        assert size in digits
        assert "\ufffd" not in result.text
    assert small.text == "value 3"


async def test_by_default_a_result_is_capped_at_256_kib() -> None:
    async def big(count: int) -> str:
        return "x" * count

    asked = [call("big", count=256 * 1024), call("big", count=256 * 1024 + 1)]
    agent = agent_of(asked, "done", tools=[big])
    await agent.generate("go")
    fits, cut = results_of(agent)
    assert fits.text == "x" * (256 * 1024)
    assert cut.text != "x" * (256 * 1024 + 1)
    assert len(cut.text) <= 256 * 1024


async def test_media_that_a_tool_attaches_goes_behind_the_results_marked() -> None:
    async def shoots(context: tr.ToolContext) -> str:
        context.attach(tr.ImageContent("aGk=", "image/png"))
        return "see the picture"

    agent = agent_of([call("shoots", id="c1"), call("work")], "done", tools=[shoots, work])
    await agent.generate("go")
    _, calls, results, media, _ = agent.history
    assert calls.tool_calls
    assert len(results.tool_results) == 2
    assert media.role == "user"
    assert media.meta
    assert [type(block) for block in media.content] == [tr.ImageContent]
    assert len([m for m in agent.history if m.text == "go"]) == 1


async def test_the_context_is_injected_and_not_in_the_schema() -> None:
    seen: list[Any] = []

    async def knows(city: str, context: tr.ToolContext) -> str:
        ambient = tr.current_tool_context()
        seen.append((
            context.call_id, context.name, dict(context.arguments), context.attempt,
            context.resumed, ambient.call_id,
        ))  # fmt: skip
        return "ok"

    agent = agent_of(call("knows", id="c1", city="Oslo"), "done", tools=[knows])
    (made,) = agent.tools
    assert set(made.input_schema["properties"]) == {"city"}
    await agent.generate("go")
    assert seen == [("c1", "knows", {"city": "Oslo"}, 1, False, "c1")]
    with pytest.raises(tr.UsageError):
        tr.current_tool_context()


async def test_idempotency_keys_are_unique_and_end_with_turn_step_call() -> None:
    keys: list[str] = []

    async def knows(context: tr.ToolContext) -> str:
        keys.append(context.idempotency_key)
        return "ok"

    one = [call("knows", id="a"), call("knows", id="b")]
    agent = agent_of(one, [call("knows", id="c")], "x", [call("knows", id="d")], "y", tools=[knows])
    await agent.generate("go")
    await agent.generate("go")
    endings = ["1:0:a", "1:0:b", "1:1:c", "2:0:d"]
    assert all(
        key.endswith(end) for key, end in zip(sorted(keys[:2]) + keys[2:], endings, strict=True)
    )
    assert len(set(keys)) == 4


async def test_the_tools_copy_of_its_arguments_is_its_own() -> None:
    async def edits(arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        names = arguments["names"]
        assert isinstance(names, list)
        names.append("added")
        arguments["more"] = 1
        return "ok"

    raw = tr.Tool("edits", "", {"type": "object"}, edits)
    agent = agent_of(call("edits", names=["a"]), "done", tools=[raw])
    await agent.generate("go")
    assert agent.history[1].tool_calls[0].arguments == {"names": ["a"]}


@pytest.mark.parametrize("threaded", [False, True])
async def test_progress_reaches_observers_in_order_also_from_a_thread(threaded: bool) -> None:
    here = threading.get_ident()
    told_in: list[int] = []

    class Told(Events):
        def on_event(self, event: ev.Event) -> None:
            told_in.append(threading.get_ident())
            super().on_event(event)

    def reports(context: tr.ToolContext) -> str:
        for n in range(3):
            context.report_progress(n, 3, f"part {n}")
        context.emit({"own": "value"})
        return "ok"

    events = Told()
    agent = agent_of(
        call("reports", id="c1"), "done", tools=[tr.tool(reports, inline=not threaded)],
        observers=[events],
    )  # fmt: skip
    await agent.generate("go")
    kinds = [type(event) for event in events.all]
    first = kinds.index(ev.CallStarted)
    assert kinds[first : first + 6] == [
        ev.CallStarted, *[ev.CallProgress] * 3, ev.CallEmitted, ev.CallFinished
    ]  # fmt: skip
    progress = [event for event in events.all if type(event) is ev.CallProgress]
    assert [(p.call_id, p.progress, p.total, p.message) for p in progress] == [
        ("c1", n, 3, f"part {n}") for n in range(3)
    ]
    assert set(told_in) == {here}


async def test_what_a_call_says_after_its_end_is_dropped() -> None:
    contexts: list[tr.ToolContext] = []

    async def keeps(context: tr.ToolContext) -> str:
        contexts.append(context)
        return "ok"

    events = Events()
    agent = agent_of(call("keeps"), "done", tools=[keeps], observers=[events])
    await agent.generate("go")
    before = len(events.all)
    contexts[0].report_progress(1)
    contexts[0].emit("late")
    contexts[0].attach(tr.ImageContent("aGk=", "image/png"))
    assert len(events.all) == before


colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def test_a_context_variable_that_one_call_sets_is_not_seen_by_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[str] = []

    async def leaves() -> str:
        seen.append(colour.get())
        colour.set("red")
        return "ok"

    for params in (
        tr.RequestParams(max_parallel_tools=1),
        tr.RequestParams(parallel_tool_calls=False),
        tr.RequestParams(),
    ):
        agent = agent_of([call("leaves")] * 3, "done", tools=[leaves], params=params)
        await agent.generate("go")
    assert seen == ["none"] * 9
