"""Turns that meet a limit: how they end, what is kept, and that the counts are exact."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given, settings

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as records
from trio_runner.testing import Scripted, ScriptedModel, call

USAGE = tr.Usage(60, 40)
PRICE = tr.Price(input=2.0, output=5.0)  # a reply costs 0.00032


def about(number: float) -> Any:
    """`pytest.approx`, for where a number is expected."""
    return pytest.approx(number)


def asks(*calls: tr.ToolCall) -> tr.Message:
    return tr.Message.assistant(tool_calls=calls, usage=USAGE)


def answers(text: str = "done") -> tr.Message:
    return tr.Message.assistant(text, usage=USAGE)


class Log:
    """Tools that note that they ran, and an observer that notes limits."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.limits: list[tr.LimitReached] = []
        self.completed: list[tr.Message] = []

    async def work(self, name: str = "work") -> str:
        self.ran.append(name)
        return f"{name} is done"

    async def slow(self, name: str = "slow") -> str:
        self.ran.append(name)
        await trio.sleep(10)
        return f"{name} is done"

    def on_event(self, event: ev.Event) -> None:
        match event:
            case ev.LimitHit(limit=limit):
                self.limits.append(limit)
            case _:
                pass

    async def complete(self, runner: tr.ToolRunner, message: tr.Message) -> None:
        self.completed.append(message)

    def agent(self, *replies: Any, **more: Any) -> tr.ToolAgent:
        hooks = tr.merge_hooks(
            tr.ToolRunnerHooks(after_turn_complete=self.complete), more.pop("hooks", None)
        )
        model = ScriptedModel(replies)
        tools = [self.work, self.slow, *more.pop("tools", ())]
        return tr.ToolAgent("a", model=model, tools=tools, observers=[self], hooks=hooks, **more)


def statuses(agent: tr.ToolAgent) -> list[str]:
    return [result.status.value for each in agent.history for result in each.tool_results]


def asked(agent: tr.ToolAgent) -> int:
    model: Any = agent.model
    return len(model.requests)


# --- before a model call ----------------------------------------------------------

WORK = call("work")
#: By kind: the limits, and what `LimitReached` says. Two replies of 100 tokens fit.
KINDS: dict[str, tuple[dict[str, Any], float, float]] = {
    "model_calls": ({}, 2, 2),
    "input_tokens": ({}, 100, 120),
    "output_tokens": ({}, 80, 80),
    "total_tokens": ({}, 101, 200),
    "cost": ({"prices": PRICE}, 0.0005, 0.00064),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drive", ["generate", "async_for", "until_done"])
async def test_a_used_up_limit_ends_the_turn_before_the_next_model_call(
    kind: Any, drive: str
) -> None:
    more, limit, spent = KINDS[kind]
    log = Log()
    agent = log.agent(asks(WORK), asks(WORK), answers())

    with tr.limits(**{kind: limit}, **more, name="mine") as scope:
        if drive == "generate":
            last = await agent.generate("go")
        else:
            async with agent.turn("go") as runner:
                given = [message async for message in runner] if drive == "async_for" else []
                last = await runner.until_done()
                assert given == [agent.history[1], agent.history[3]][: len(given)]
            assert runner.limit == agent.last_turn.limit  # type: ignore[union-attr]
            assert runner.is_done

    assert asked(agent) == 2
    assert log.ran == ["work", "work"]
    assert last == agent.history[3] == log.completed[0]  # the newest message of the model
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.LIMIT
    expected = tr.LimitReached(kind, limit, about(spent), "mine")
    assert [agent.last_turn.limit] == log.limits == [expected]
    assert scope.spent.usage == agent.last_turn.usage == tr.Usage(120, 80)
    tr.check_history(agent.history)
    assert statuses(agent) == ["ok", "ok"]


@pytest.mark.parametrize("drive", ["generate", "async_for", "until_done"])
async def test_a_limit_before_any_reply_is_an_error_and_the_input_is_kept(drive: str) -> None:
    log = Log()
    agent = log.agent(answers())

    async def run() -> None:
        match drive:
            case "generate":
                await agent.generate("go")
            case "until_done":
                await agent.turn("go").until_done()
            case _:
                async with agent.turn("go") as runner:
                    async for _ in runner:
                        pytest.fail("there is nothing to hand over")

    with tr.limits(model_calls=0), pytest.raises(tr.LimitReachedError) as caught:
        await run()

    assert caught.value.limit == tr.LimitReached("model_calls", 0, 0)
    assert asked(agent) == 0
    assert [message.text for message in agent.history] == ["go"]
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.LIMIT
    assert log.completed == []  # nothing was returned
    assert (await agent.resume()).text == "done"


async def test_a_turn_that_ended_by_a_limit_says_so_each_time_it_is_asked() -> None:
    agent = Log().agent(answers())
    with tr.limits(model_calls=0):
        async with agent.turn("go") as runner:
            for _ in range(2):
                with pytest.raises(tr.LimitReachedError):
                    await runner.until_done()
    agent = Log().agent(asks(WORK), answers())
    with tr.limits(model_calls=1):
        async with agent.turn("go") as runner:
            assert await runner.until_done() is await runner.until_done()


async def test_no_limit_no_trace() -> None:
    log = Log()
    agent = log.agent(asks(WORK), answers())
    with tr.limits() as scope:
        await agent.generate("go")
    assert (scope.spent.model_calls, scope.spent.tool_calls) == (2, 1)
    assert agent.last_turn is not None
    assert agent.last_turn.limit is None
    assert log.limits == []


async def test_what_a_hook_spends_before_the_model_call_counts_for_that_call() -> None:
    async def ask_another(runner: tr.ToolRunner, messages: object) -> None:
        tr.charge_usage(tr.Usage(1))

    log = Log()
    agent = log.agent(answers(), hooks=tr.ToolRunnerHooks(before_llm_call=ask_another))
    with tr.limits(model_calls=1), pytest.raises(tr.LimitReachedError):
        await agent.generate("go")
    assert asked(agent) == 0


async def test_a_model_call_that_fails_counts() -> None:
    def fail(request: tr.ModelRequest) -> tr.Message:
        raise LookupError("no model")

    agent = Log().agent(fail, answers())
    with tr.limits(model_calls=2) as scope:
        with pytest.raises(LookupError):
            await agent.generate("go")
        assert scope.spent.model_calls == 1
        assert (await agent.resume()).text == "done"
    assert scope.remaining.model_calls == 0


# --- cost -------------------------------------------------------------------------


@attrs.define
class Named:
    """A model with a name."""

    name: str
    inner: ScriptedModel

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        return await self.inner.reply(request, emit)


async def test_a_model_without_a_price_is_refused_before_it_is_asked() -> None:
    prices = {"small": PRICE}
    for name in ("large", None):
        script = ScriptedModel([answers()])
        model = script if name is None else Named(name, script)
        agent = tr.ToolAgent("a", model=model)
        with tr.limits(cost=1.0, prices=prices), pytest.raises(tr.UnknownPriceError, match="price"):
            await agent.generate("go")
        assert script.requests == []
        assert agent.last_turn is not None
        assert agent.last_turn.end_reason is tr.EndReason.FAILED
        assert [message.text for message in agent.history] == ["go"]


@pytest.mark.parametrize(
    ("meta", "cost"),
    [
        ({}, 0.00032),
        ({"model": "dear"}, 3.2),
        ({"model": "small-2026"}, 0.00032),
        ({"model": 3}, 0.00032),
    ],
)
async def test_the_price_is_that_of_the_model_that_the_reply_names_if_it_is_known(
    meta: dict[str, Any], cost: float
) -> None:
    prices = {"small": PRICE, "dear": tr.Price(input=20_000, output=50_000)}
    model = Named("small", ScriptedModel([attrs.evolve(answers(), meta=meta)]))
    with tr.limits(cost=10.0, prices=prices) as scope:
        await tr.ToolAgent("a", model=model).generate("go")
    assert scope.spent.cost == about(cost)


# --- tool calls -------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_batch_takes_what_is_left_in_the_order_of_the_request(parallel: bool) -> None:
    log = Log()
    batch = asks(*[call("work", name=name) for name in "abcd"])
    agent = log.agent(batch, answers(), params=tr.RequestParams(parallel_tool_calls=parallel))
    seen: list[list[str]] = []

    async def look(runner: tr.ToolRunner, results: tr.Message) -> None:
        seen.append([result.status.value for result in results.tool_results])

    with tr.limits(tool_calls=2) as scope:
        last = await agent.generate("go", hooks=tr.ToolRunnerHooks(after_tool_call=look))

    assert last.tool_calls == agent.history[1].tool_calls
    assert sorted(log.ran) == ["a", "b"]
    assert seen == [["ok", "ok", "limit_reached", "limit_reached"]]
    assert statuses(agent) == seen[0]
    assert agent.history[2].tool_results[2].text == (
        "Limit reached: the limit of 2 tool calls is reached (2 spent). It was not run and had no "
        "effect."
    )
    assert scope.spent.tool_calls == 2
    assert asked(agent) == 1
    assert log.limits == [tr.LimitReached("tool_calls", 2, 2)]


async def test_a_model_may_answer_when_its_tool_calls_are_just_used_up() -> None:
    log = Log()
    agent = log.agent(asks(WORK, WORK), answers())
    with tr.limits(tool_calls=2):
        assert (await agent.generate("go")).text == "done"
        assert log.limits == []
    # With nothing left it is asked, and none of what it wants then runs.
    agent = log.agent(asks(WORK), answers())
    with tr.limits(tool_calls=0):
        await agent.generate("go")
    assert statuses(agent) == ["limit_reached"]
    assert asked(agent) == 1


async def test_calls_that_no_tool_runs_take_nothing() -> None:
    async def guard(runner: tr.ToolRunner, message: tr.Message) -> None:
        runner.deny(message.tool_calls[0].id, "not today.")

    log = Log()
    batch = asks(
        call("work", name="denied"), call("unknown"), call("work", nam="misspelt"), WORK, WORK
    )
    agent = log.agent(batch, answers(), hooks=tr.ToolRunnerHooks(before_tool_call=guard))
    with tr.limits(tool_calls=3) as scope:
        assert (await agent.generate("go")).text == "done"
    assert statuses(agent) == ["denied", "unavailable", "invalid_arguments", "ok", "ok"]
    assert scope.spent.tool_calls == 2


@pytest.mark.parametrize("how", ["cancel_call", "cancel"])
async def test_calls_that_were_taken_and_never_began_are_given_back(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    log = Log()
    batch = asks(call("slow", name="a"), call("slow", name="b"), call("slow", name="c"))
    agent = log.agent(batch, answers(), params=tr.RequestParams(max_parallel_tools=1))
    with tr.limits(tool_calls=3) as scope:
        async with agent.turn("go") as runner, trio.open_nursery() as nursery:
            nursery.start_soon(runner.until_done)
            await trio.sleep(15)  # the second one runs
            assert scope.spent.tool_calls == 3
            if how == "cancel_call":
                assert runner.cancel_call(batch_id(runner, 2))
            else:
                nursery.cancel_scope.cancel()
        assert log.ran == ["a", "b"]
        assert scope.spent.tool_calls == 2


def batch_id(runner: tr.ToolRunner, position: int) -> str:
    assert runner.last_message is not None
    return runner.last_message.tool_calls[position].id


async def test_a_message_that_is_run_alone_is_limited_too() -> None:
    log = Log()
    agent = log.agent()
    with tr.limits(tool_calls=1) as scope:
        results = await agent.run_tools(asks(WORK, WORK))
    assert [result.status.value for result in results.tool_results] == ["ok", "limit_reached"]
    assert scope.spent.tool_calls == 1


# --- shared -----------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 8),
    st.integers(0, 6),
)
def test_turns_side_by_side_never_take_more_than_there_is(
    batches: list[int], tool_calls: int, model_calls: int
) -> None:
    """No two both take the last one, and what is not taken was not there."""

    async def main() -> None:
        log = Log()

        async def turn(count: int) -> None:
            async def wait(runner: tr.ToolRunner, messages: object) -> None:
                await trio.lowlevel.checkpoint()

            hooks = tr.ToolRunnerHooks(before_llm_call=wait)
            agent = log.agent(asks(*[WORK] * count), answers(), hooks=hooks)
            agents.append(agent)
            try:
                await agent.generate("go")
            except tr.LimitReachedError:
                assert asked(agent) == 0

        agents: list[tr.ToolAgent] = []
        with tr.limits(tool_calls=tool_calls, model_calls=model_calls) as scope:
            async with trio.open_nursery() as nursery:
                for count in batches:
                    nursery.start_soon(turn, count)
        assert sum(map(asked, agents)) == scope.spent.model_calls <= model_calls
        assert len(log.ran) == scope.spent.tool_calls <= tool_calls
        wanted = sum(len(statuses(agent)) for agent in agents)
        assert scope.spent.tool_calls == min(tool_calls, wanted)
        for agent in agents:
            tr.check_history(agent.history)

    trio.run(main)


async def test_a_sub_agent_spends_what_its_parent_has() -> None:
    child_log, log = Log(), Log()
    child = child_log.agent(asks(WORK, WORK), answers("of the child"))

    async def delegate() -> str:
        return (await child.generate("do it")).text

    agent = log.agent(asks(call("delegate")), answers(), tools=[delegate])
    with tr.limits(tool_calls=2, model_calls=4) as outer, tr.limits() as inner:
        assert (await agent.generate("go")).text == "done"

    # The call of the child takes one; of its own two one is left.
    assert statuses(child) == ["ok", "limit_reached"]
    assert child.last_turn is not None
    assert child.last_turn.end_reason is tr.EndReason.LIMIT
    assert outer.spent.tool_calls == inner.spent.tool_calls == 2
    assert outer.spent.model_calls == 3
    assert outer.spent.usage == tr.Usage(180, 120)


# --- seconds ----------------------------------------------------------------------


async def test_when_the_seconds_are_up_what_runs_is_answered_and_what_finished_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = Log()
    batch = asks(WORK, call("slow"), call("slow"), call("slow"))
    agent = log.agent(batch, answers(), params=tr.RequestParams(max_parallel_tools=2))
    began = trio.current_time()
    with tr.limits(seconds=4):
        last = await agent.generate("go")

    assert trio.current_time() - began == about(4)
    assert last == agent.history[1]
    assert log.completed == [last]
    assert statuses(agent) == ["ok", "timed_out", "timed_out", "not_started"]
    assert agent.history[2].tool_results[1].text == (
        "Timed out: the time that a limit gives was up while this call ran. It is not known "
        "whether it took effect."
    )
    assert agent.last_turn is not None
    assert agent.last_turn.end_reason is tr.EndReason.LIMIT
    assert agent.last_turn.limit == tr.LimitReached("seconds", 4, about(4))
    assert log.limits == [agent.last_turn.limit]
    tr.check_history(agent.history)
    assert (await agent.resume()).text == "done"
    assert sorted(log.ran) == ["slow", "slow", "work"]


async def test_a_model_that_takes_too_long_is_left(autojump_clock: trio.testing.MockClock) -> None:
    log = Log()
    agent = log.agent(asks(WORK), Scripted(answers(), delay=100), answers())
    with tr.limits(seconds=2) as scope:
        assert (await agent.generate("go")).tool_calls
    assert statuses(agent) == ["ok"]
    assert scope.spent.model_calls == 2  # the one that was cut counts
    assert (await agent.resume()).text == "done"

    agent = log.agent(Scripted(answers(), delay=100), answers())
    with tr.limits(seconds=2), pytest.raises(tr.LimitReachedError, match="2 seconds"):
        await agent.generate("go")
    assert [message.text for message in agent.history] == ["go"]
    assert (await agent.resume()).text == "done"


@pytest.mark.parametrize("within", ["the turn's timeout", "the caller's", "both at once"])
async def test_what_comes_first_ends_the_turn(
    within: str, autojump_clock: trio.testing.MockClock
) -> None:
    log = Log()
    timeout = 1 if within == "the turn's timeout" else None
    agent = log.agent(asks(call("slow")), answers(), params=tr.RequestParams(turn_timeout=timeout))
    seconds = 2 if within == "both at once" else 5
    with trio.move_on_after(2) as caller, tr.limits(seconds=seconds):
        if timeout:
            with pytest.raises(tr.TurnTimeoutError):
                await agent.generate("go")
        else:
            await agent.generate("go")
            pytest.fail("the caller's cancel wins")
    assert agent.last_turn is not None
    expected = tr.EndReason.TIMED_OUT if timeout else tr.EndReason.INTERRUPTED
    assert (caller.cancelled_caught, agent.last_turn.end_reason) == (not timeout, expected)
    assert agent.last_turn.limit is None
    assert log.limits == []


async def test_the_time_between_two_steps_counts(autojump_clock: trio.testing.MockClock) -> None:
    log = Log()
    agent = log.agent(asks(WORK), answers())
    with tr.limits(seconds=2):
        async with agent.turn("go") as runner:
            async for _ in runner:
                await trio.sleep(3)
            assert runner.end_reason is tr.EndReason.LIMIT
    assert (log.ran, statuses(agent)) == ([], ["not_started"])


async def test_a_reply_that_is_there_when_the_seconds_are_up_is_handed_over(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def ponder(runner: tr.ToolRunner, reply: tr.Message) -> None:
        await trio.sleep(100)

    log = Log()
    agent = log.agent(asks(WORK), answers(), hooks=tr.ToolRunnerHooks(after_llm_call=ponder))
    with tr.limits(seconds=2):
        async with agent.turn("go") as runner:
            given = [message async for message in runner]
    assert given == [agent.history[1]]
    assert runner.end_reason is tr.EndReason.LIMIT
    assert (log.ran, statuses(agent)) == ([], ["not_started"])


@pytest.mark.parametrize("where", ["after_llm_call", "commit", "after_turn_complete"])
async def test_an_answer_that_is_there_when_the_seconds_are_up_is_an_answer(
    where: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def ponder(runner: tr.ToolRunner, reply: tr.Message) -> None:
        pondered.append(reply)
        await trio.sleep(100)

    pondered: list[tr.Message] = []
    pondering: dict[str, Any] = {} if where == "commit" else {where: ponder}
    hooks = tr.ToolRunnerHooks(**pondering)
    journal = tr.MemoryJournal(delay=4.0 if where == "commit" else 0.0)
    log = Log()
    agent = log.agent(answers(), hooks=hooks, journal=journal, session="s")
    async with agent:
        # A slow store needs 4 seconds for each commit: the input's and the answer's.
        with tr.limits(seconds=6):
            async with agent.turn("go") as runner:
                given = [message async for message in runner]
    assert [message.text for message in given] == ["done"]
    assert (runner.end_reason, runner.limit) == (tr.EndReason.ANSWERED, None)
    assert log.completed == given
    assert log.limits == []
    assert len(pondered) == (where != "commit")  # once, although it was cut
    assert tr.fold(journal.stored("s")).messages == agent.history


@pytest.mark.parametrize("limited", [{"model_calls": 1}, {"seconds": 3}])
async def test_the_end_is_durable_before_the_hook_that_follows_it(
    limited: dict[str, Any], autojump_clock: trio.testing.MockClock
) -> None:
    async def look(runner: tr.ToolRunner, message: tr.Message) -> None:
        seen.append(type(journal.stored("s")[-1]))

    journal, seen = tr.MemoryJournal(delay=0.2), list[type]()
    hooks = tr.ToolRunnerHooks(after_turn_complete=look)
    agent = Log().agent(asks(call("slow")), answers(), hooks=hooks, journal=journal, session="s")
    async with agent:
        with tr.limits(**limited):
            await agent.generate("go")
    assert seen == [records.TurnEnded]


@pytest.mark.parametrize("limited", [{"model_calls": 1}, {"seconds": 3}])
@pytest.mark.parametrize("cut", ["left", "turn_timeout"])
async def test_the_hook_behind_a_limit_ends_with_the_block_and_the_time_of_the_turn(
    limited: dict[str, Any], cut: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def linger(runner: tr.ToolRunner, message: tr.Message) -> None:
        lingers.set()
        await trio.sleep(1000)

    async def drive(runner: tr.ToolRunner) -> None:
        if cut == "left":
            assert [message async for message in runner]
        else:
            with pytest.raises(tr.TurnTimeoutError):
                await runner.until_done()
        through.set()

    lingers, through = trio.Event(), trio.Event()
    hooks = tr.ToolRunnerHooks(after_turn_complete=linger)
    agent = Log().agent(asks(call("slow")), answers(), hooks=hooks)
    params = tr.RequestParams(turn_timeout=20)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        with tr.limits(**limited):
            async with agent.turn("go", params=params) as runner:
                nursery.start_soon(drive, runner)
                await (lingers if cut == "left" else through).wait()
    assert trio.current_time() - began <= (10 if cut == "left" else 20)
    assert runner.end_reason is tr.EndReason.LIMIT


async def test_a_tools_cleanup_is_the_tools_also_when_the_seconds_are_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def stubborn() -> str:
        """Cleans up for a while, and fails at it."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await trio.sleep(0.5)
        return "never"

    agent = Log().agent(asks(call("stubborn")), answers(), tools=[stubborn])
    began = trio.current_time()
    with tr.limits(seconds=1):
        await agent.generate("go")
    assert trio.current_time() - began == about(1.5)
    assert statuses(agent) == ["timed_out"]


# --- resuming -----------------------------------------------------------------------


@pytest.mark.parametrize("limited", [{"tool_calls": 1}, {"model_calls": 1}, {"seconds": 5}])
@pytest.mark.parametrize("reopened", [False, True])
async def test_a_limited_turn_goes_on_in_a_bigger_budget_and_runs_no_tool_twice(
    limited: dict[str, Any], reopened: bool, autojump_clock: trio.testing.MockClock
) -> None:
    log, journal = Log(), tr.MemoryJournal()
    second = call("slow") if "seconds" in limited else WORK
    agent = log.agent(asks(WORK, second), answers(), journal=journal, session="s")
    async with agent:
        with tr.limits(**limited):
            await agent.generate("go")
        ran = list(log.ran)
        if not reopened:
            assert agent.can_resume
            assert (await agent.resume()).text == "done"
    if reopened:
        agent = log.agent(answers(), journal=journal, session="s")
        async with agent:
            assert agent.last_turn is not None
            assert agent.last_turn.end_reason is tr.EndReason.LIMIT
            with tr.limits(model_calls=1, tool_calls=0):
                assert (await agent.resume()).text == "done"
    assert log.ran == ran
    assert tr.fold(journal.stored("s")).messages == agent.history


async def test_a_turn_without_history_is_limited_and_resumed_too() -> None:
    agent = Log().agent(asks(WORK), answers(), params=tr.RequestParams(use_history=False))
    with tr.limits(model_calls=1):
        await agent.generate("go")
    assert agent.history == ()
    assert (await agent.resume()).text == "done"


async def test_new_input_goes_on_after_a_limit_as_well() -> None:
    agent = Log().agent(asks(WORK), answers())
    with tr.limits(model_calls=1):
        await agent.generate("go")
    assert (await agent.generate("and now?")).text == "done"
    assert [message.role for message in agent.history] == [
        "user", "assistant", "user", "user", "assistant"
    ]  # fmt: skip
