"""The recovery table, row by row: what the last durable fact is, and what `resume` does then.

Each row is lived by a real agent whose process "dies" (its records up to some fact are all that
is left), on a `MemoryJournal` and on a `SqliteJournal`; then another agent opens the session.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
import trio
from hypothesis import given, settings

import trio_runner as tr
from trio_runner import events as ev
from trio_runner import records as r
from trio_runner._core.records import arguments_hash
from trio_runner.testing import ScriptedModel, call
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine

SESSION = "s"


class Store:
    """A journal that can be filled with the records that a crash left."""

    def __init__(self, kind: str) -> None:
        engine: Any = InlineEngine()
        self.journal: Any = (
            tr.MemoryJournal() if kind == "memory" else tr.SqliteJournal(IN_MEMORY, _engine=engine)
        )

    @property
    def stored(self) -> tuple[r.Record, ...]:
        return tuple(self.journal.stored(SESSION))

    async def fill(self, records: Sequence[r.Record]) -> None:
        session = await self.journal.open(SESSION)
        await session.append(records).wait()
        await session.aclose()


@pytest.fixture(params=["memory", "sqlite"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], Store]:
    return functools.partial(Store, request.param)


@attrs.define
class Desk:
    """Tools that note what runs, and an agent with them."""

    store: Store
    ran: list[tuple[str, str, int]] = attrs.field(factory=list[tuple[str, str, int]])
    events: list[ev.Event] = attrs.field(factory=list[ev.Event])
    idempotent: bool = True
    model: ScriptedModel = attrs.field(factory=lambda: ScriptedModel(["done"]))

    def note(self) -> str:
        context = tr.current_tool_context()
        self.ran.append((context.call_id, context.idempotency_key, context.attempt))
        return f"{context.name} {context.attempt}"

    async def pay(self) -> str:
        return self.note()

    async def look(self) -> str:
        return self.note()

    def tools(self) -> list[Any]:
        return [self.pay, tr.tool(self.look, idempotent=self.idempotent)]

    def agent(self, *script: Any, **settings: Any) -> tr.ToolAgent:
        self.model = ScriptedModel(script or ("done",))
        settings.setdefault("tools", self.tools())
        return tr.ToolAgent(
            "desk",
            model=self.model,
            journal=self.store.journal,
            session=SESSION,
            observers=[self],
            **settings,
        )

    def on_event(self, event: ev.Event) -> None:
        self.events.append(event)

    async def resume(
        self, unknown: tr.UnknownPolicy | None = None, **settings: Any
    ) -> dict[str, str]:
        """Resume to the answer; the status of each call, and everything is as it must be."""
        agent = self.agent(**settings)
        async with agent:
            assert (await agent.resume(unknown=unknown)).text == "done"
            tr.check_history(agent.history)
        assert tr.fold(self.store.stored).messages == agent.history
        assert self.model.violations == []
        return statuses(agent)


def statuses(agent: tr.ToolAgent) -> dict[str, str]:
    return {
        each.call_id: each.status.value
        for message in agent.history
        for each in message.tool_results
    }


def texts(agent: tr.ToolAgent) -> dict[str, str]:
    return {each.call_id: each.text for message in agent.history for each in message.tool_results}


ASKED = [call("pay", id="c1"), call("look", id="c2"), call("pay", id="c3")]
KEYS = {each: f"{SESSION}/1:0:{each}" for each in ("c1", "c2", "c3")}


async def whole_turn(kind: str = "memory") -> list[r.Record]:
    """The records of a turn with one batch, as a live agent writes them."""
    desk = Desk(Store(kind))
    async with desk.agent(ASKED, "done") as agent:
        await agent.generate("go")
    return list(desk.store.stored)


async def died(make_store: Callable[[], Store], *kept: str, **finished: bool) -> Desk:
    """A desk whose last process left the records of these types, and these results."""
    wanted = list(kept)
    left: list[r.Record] = []
    for record in await whole_turn():
        name = type(record).__name__
        if type(record) is r.ToolFinished:
            if not finished.get(record.result.call_id, False):
                continue
        elif name in wanted:
            wanted.remove(name)
        else:
            continue
        left.append(record)
    desk = Desk(make_store())
    await desk.store.fill(left)
    return desk


BEGUN = ("SessionOpened", "TurnStarted")
REPLIED = (*BEGUN, "ModelFinished")
STARTED = (*REPLIED, "ToolStarted", "ToolStarted", "ToolStarted")


# --- the rows ---------------------------------------------------------------------


async def test_turn_started_and_nothing_else_calls_the_model(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *BEGUN)
    assert await desk.resume() == {}
    assert [message.text for message in desk.model.requests[0].history] == ["go"]
    assert desk.ran == []


async def test_a_reply_that_was_streaming_is_dropped_and_asked_for_again(
    make_store: Callable[[], Store],
) -> None:
    store = make_store()

    class Dies:
        async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
            emit("half a re")
            await trio.sleep_forever()
            raise AssertionError("unreached")

    agent = tr.ToolAgent("desk", model=Dies(), journal=store.journal, session=SESSION)
    async with agent, trio.open_nursery() as nursery:
        nursery.start_soon(agent.generate, "go")
        await trio.testing.wait_all_tasks_blocked()
        left = store.stored
        nursery.cancel_scope.cancel()
    desk = Desk(make_store())
    await desk.store.fill(left)
    assert await desk.resume() == {}
    assert "half" not in str(tr.fold(desk.store.stored).messages)
    assert desk.model.calls == 1


async def test_calls_without_a_start_never_began_and_run(make_store: Callable[[], Store]) -> None:
    desk = await died(make_store, *REPLIED)
    assert await desk.resume() == {"c1": "ok", "c2": "ok", "c3": "ok"}
    assert sorted(desk.ran) == [(each, KEYS[each], 1) for each in ("c1", "c2", "c3")]


async def test_a_started_call_is_unknown_and_runs_again_only_if_it_is_idempotent(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    assert await desk.resume() == {
        "c1": "unknown_after_crash",
        "c2": "ok",
        "c3": "unknown_after_crash",
    }
    assert desk.ran == [("c2", KEYS["c2"], 2)]
    # Recorded before it ran, under the same key, as the next attempt.
    starts = [each for each in desk.store.stored if type(each) is r.ToolStarted]
    assert [(each.call_id, each.key, each.attempt) for each in starts[3:]] == [
        ("c2", KEYS["c2"], 2)
    ]
    # And told to who listens.
    begun = [each for each in desk.events if type(each) is ev.CallStarted]
    assert [(each.call.id, each.attempt) for each in begun] == [("c2", 2)]
    told = [each.result.call_id for each in desk.events if type(each) is ev.CallFinished]
    assert sorted(told) == ["c1", "c2", "c3"]


async def test_the_start_of_a_second_attempt_is_durable_before_it_runs(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    seen: list[int] = []

    async def look() -> str:
        records = desk.store.stored
        seen.extend(each.attempt for each in records if type(each) is r.ToolStarted)
        return "seen"

    await desk.resume(tools=[desk.pay, tr.tool(look, idempotent=True)])
    assert seen == [1, 1, 1, 2]


async def test_results_that_are_there_are_kept_and_the_rest_goes_by_its_own_row(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED, c1=True)
    assert await desk.resume() == {"c1": "ok", "c2": "ok", "c3": "unknown_after_crash"}
    assert [each[0] for each in desk.ran] == ["c2"]


async def test_when_all_have_finished_the_model_is_called_and_no_tool(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED, c1=True, c2=True, c3=True)
    assert await desk.resume() == {"c1": "ok", "c2": "ok", "c3": "ok"}
    assert (desk.ran, desk.model.calls) == ([], 1)


async def test_an_answer_without_an_end_is_closed_and_the_model_is_not_called(
    make_store: Callable[[], Store],
) -> None:
    kept = (*STARTED, "ModelFinished")
    desk = await died(make_store, *kept, c1=True, c2=True, c3=True)
    assert await desk.resume() == {"c1": "ok", "c2": "ok", "c3": "ok"}
    assert (desk.ran, desk.model.calls) == ([], 0)
    assert desk.store.stored[-1] == r.TurnEnded(1, tr.EndReason.ANSWERED)


async def test_a_torn_tail_is_the_row_of_what_is_left(tmp_path: Path) -> None:
    """The write-ahead log loses its last bytes: the newest commit goes, what is before stays."""
    path = tmp_path / "a.db"
    journal = tr.SqliteJournal(path)
    session = await journal.open(SESSION)
    left = [each for each in await whole_turn() if type(each) is not r.ToolFinished][:6]
    await session.append(left).wait()
    await session.append([r.ToolFinished(1, 0, tr.ToolResult("c1", "pay", "paid"))]).wait()
    torn = tmp_path / "torn.db"
    torn.write_bytes(path.read_bytes())
    log = path.with_name("a.db-wal").read_bytes()
    torn.with_name("torn.db-wal").write_bytes(log[:-1])
    await session.aclose()

    desk = Desk(Store("memory"))
    desk.store.journal = tr.SqliteJournal(torn)
    assert (await desk.resume())["c1"] == "unknown_after_crash"
    assert [each[0] for each in desk.ran] == ["c2"]


async def test_healing_at_the_start_of_a_new_turn_answers_and_never_runs_again(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED, c1=True)
    agent = desk.agent()
    async with agent:
        await agent.generate("something else")
    assert statuses(agent) == {"c1": "ok", "c2": "unknown_after_crash", "c3": "unknown_after_crash"}
    assert desk.ran == []


# --- when a call may not run again ------------------------------------------------


def changed(desk: Desk, **change: Any) -> list[r.Record]:
    return [
        attrs.evolve(each, **change) if type(each) is r.ToolStarted else each
        for each in desk.store.stored
    ]


async def test_other_arguments_than_it_was_started_with_are_not_run(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    other = Desk(make_store())
    await other.store.fill(changed(desk, arguments_hash=arguments_hash({"x": 1})))
    # Not even when the policy wants it.
    assert set((await other.resume(always("rerun"))).values()) == {"unknown_after_crash"}
    assert other.ran == []


@pytest.mark.parametrize("now", ["gone", "not idempotent"])
async def test_a_tool_that_is_gone_or_not_idempotent_any_more_is_not_run_again(
    now: str, make_store: Callable[[], Store]
) -> None:
    desk = await died(make_store, *STARTED)
    tools: list[Any] = [desk.pay] if now == "gone" else [desk.pay, desk.look]
    agent = desk.agent(tools=tools)
    async with agent:
        await agent.resume()
    assert statuses(agent)["c2"] == "unknown_after_crash"
    assert "not known whether it took effect" in texts(agent)["c2"]
    assert "It was not run again: " in texts(agent)["c2"]
    assert "no effect" not in texts(agent)["c2"]
    assert desk.ran == []


async def test_another_tool_that_the_name_means_now_is_not_run(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    agent = desk.agent(tools=[desk.pay, tr.tool(desk.look, name="LOOK", idempotent=True)])
    async with agent:
        # Not even when the policy wants it.
        await agent.resume(unknown=always("rerun"))
    assert statuses(agent)["c2"] == "unknown_after_crash"
    assert "its name means another tool now, 'LOOK' and not 'look'" in texts(agent)["c2"]
    assert [each[0] for each in desk.ran if each[0] == "c2"] == []


async def test_a_tool_whose_name_the_model_spells_otherwise_runs_again(
    make_store: Callable[[], Store],
) -> None:
    desk, other = Desk(make_store()), Desk(make_store())
    async with desk.agent([call("Look", id="c2")], "done") as agent:
        await agent.generate("go")
    left = [each for each in desk.store.stored if type(each) is not r.ToolFinished][:4]
    assert type(left[-1]) is r.ToolStarted
    assert left[-1].name == "look"  # the tool's
    await other.store.fill(left)

    assert await other.resume() == {"c2": "ok"}
    assert other.ran == [("c2", KEYS["c2"], 2)]


async def test_a_tool_that_became_idempotent_only_later_is_not_run_again(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    agent = desk.agent(tools=[tr.tool(each, idempotent=True) for each in (desk.pay, desk.look)])
    async with agent:
        await agent.resume()
    assert [each[0] for each in desk.ran] == ["c2"]


async def test_a_second_run_that_is_denied_or_cancelled_does_not_say_that_there_was_none(
    make_store: Callable[[], Store],
) -> None:
    for way in ("denied", "denied by a failure", "withdrawn", "cancelled in the queue"):
        desk = await died(make_store, *STARTED)

        async def before_tool_call(runner: tr.ToolRunner, message: tr.Message, way: str) -> None:
            match way:
                case "denied":
                    runner.deny("c2", "too late.")
                case "denied by a failure":
                    raise ValueError("no")
                case _:
                    assert runner.cancel_call("c2")

        hook = functools.partial(before_tool_call, way=way)
        agent = desk.agent(hooks=tr.ToolRunnerHooks(before_tool_call=hook))
        async with agent:
            if way == "withdrawn":
                async with tr.ToolRunner(agent, (), resume=True) as runner:
                    assert runner.cancel_call("c2")
            elif way == "denied by a failure":
                with pytest.raises(ValueError, match="no"):
                    await agent.resume()
            else:
                await agent.resume()
        assert statuses(agent)["c2"] == "unknown_after_crash", way
        assert "It was not run again: " in texts(agent)["c2"], way
        assert "no effect" not in texts(agent)["c2"], way
        assert desk.ran == []


async def test_a_second_run_whose_arguments_do_not_fit_any_more_stays_unknown(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)

    async def look(city: str) -> str:
        return city

    agent = desk.agent(tools=[desk.pay, tr.tool(look, idempotent=True)])
    async with agent:
        await agent.resume()
    assert statuses(agent)["c2"] == "unknown_after_crash"
    assert "not take these arguments" in texts(agent)["c2"]


# --- the caller's policy ----------------------------------------------------------


def always(verdict: tr.UnknownVerdict) -> tr.UnknownPolicy:
    async def policy(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
        return verdict

    return policy


async def test_a_policy_is_asked_about_each_started_call_and_what_it_says_is_done(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    asked: list[tr.UnknownCall] = []

    async def policy(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
        await trio.lowlevel.checkpoint()
        asked.append(unknown)
        match unknown.call.id:
            case "c1":
                return tr.ToolResult(content="the bank says it was paid")
            case "c2":
                return "unknown"
            case _:
                return "rerun"

    agent = desk.agent()
    async with agent:
        await agent.resume(unknown=policy)
    assert statuses(agent) == {"c1": "ok", "c2": "unknown_after_crash", "c3": "ok"}
    assert texts(agent)["c1"] == "the bank says it was paid"
    assert desk.ran == [("c3", KEYS["c3"], 2)]
    assert [(each.attempt, each.idempotency_key, each.default) for each in asked] == [
        (1, KEYS["c1"], "unknown"),
        (1, KEYS["c2"], "rerun"),
        (1, KEYS["c3"], "unknown"),
    ]
    assert [each.tool and each.tool.name for each in asked] == ["pay", "look", "pay"]
    assert {each.obstacle for each in asked} == {None}
    assert tr.fold(desk.store.stored).messages == agent.history


async def test_a_policy_is_told_why_a_call_cannot_run_again(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    asked: list[tr.UnknownCall] = []

    async def policy(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
        asked.append(unknown)
        return unknown.default

    await desk.resume(policy, tools=[desk.pay])
    assert [each.tool for each in asked][1] is None
    assert "no tool of that name" in (asked[1].obstacle or "")
    assert asked[1].default == "unknown"


async def _raises(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
    raise OSError("the bank does not answer")


def _is_not_async(unknown: tr.UnknownCall) -> Any:
    return "rerun"


async def _says_nonsense(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
    verdict: Any = "maybe"
    return verdict


async def _cancelled_by_itself(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
    strays: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            strays.append(error)
    raise strays[0]


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (_raises, OSError),
        (_says_nonsense, ValueError),
        (_is_not_async, TypeError),
        (_cancelled_by_itself, tr.StrayCancellationError),
    ],
)
async def test_a_policy_that_fails_changes_nothing_and_the_turn_can_be_resumed_again(
    policy: tr.UnknownPolicy, error: type[Exception], make_store: Callable[[], Store]
) -> None:
    desk = await died(make_store, *STARTED)
    before = desk.store.stored
    agent = desk.agent()
    async with agent:
        with pytest.raises(error):
            await agent.resume(unknown=policy)
        assert desk.store.stored == before
        assert not agent.conversation.is_busy
        assert (await agent.resume()).text == "done"
    assert desk.ran == [("c2", KEYS["c2"], 2)]


async def test_a_cancel_while_the_policy_is_asked_changes_nothing(
    make_store: Callable[[], Store], autojump_clock: trio.testing.MockClock
) -> None:
    desk = await died(make_store, *STARTED)
    before = desk.store.stored

    async def policy(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
        await trio.sleep(10)
        return "rerun"

    async def swallows(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
        try:
            await trio.sleep(10)
        except trio.Cancelled:
            pass
        return "rerun"

    agent = desk.agent()
    async with agent:
        for each in (policy, swallows):
            with trio.move_on_after(1) as scope:
                await agent.resume(unknown=each)
            assert scope.cancelled_caught
            assert desk.store.stored == before
    assert desk.ran == []


async def test_a_policy_without_a_resume_is_refused() -> None:
    agent = tr.ToolAgent("a", model=ScriptedModel(["x"]))
    with pytest.raises(ValueError, match="unknown= is asked when a turn is resumed"):
        tr.ToolRunner(agent, "go", unknown=always("rerun"))


# --- killed and cancelled again ---------------------------------------------------


def leaves_its_records(desk: Desk, left: list[r.Record]) -> Callable[[], Awaitable[str]]:
    async def look() -> str:
        desk.note()
        left.extend(desk.store.stored)  # what a kill would leave now
        return "lost with the process"

    return look


async def test_attempts_go_on_counting_however_often_the_process_dies(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    for attempt in (2, 3, 4):
        left: list[r.Record] = []
        tools = [desk.pay, tr.tool(leaves_its_records(desk, left), name="look", idempotent=True)]
        async with desk.agent(tools=tools) as agent:
            await agent.resume()
        assert desk.ran == [("c2", KEYS["c2"], attempt)]
        desk = Desk(make_store())
        await desk.store.fill(left)
    assert (await desk.resume())["c2"] == "ok"
    assert desk.ran == [("c2", KEYS["c2"], 5)]


async def test_a_kill_between_the_resume_and_the_second_start_keeps_the_count(
    make_store: Callable[[], Store],
) -> None:
    desk = await died(make_store, *STARTED)
    again = Desk(make_store())
    await again.store.fill([*desk.store.stored, r.TurnStarted(1, (), resumed=True)])
    await again.resume()
    assert again.ran == [("c2", KEYS["c2"], 2)]


async def test_a_resume_that_is_cancelled_answers_each_call_as_far_as_it_came(
    make_store: Callable[[], Store], autojump_clock: trio.testing.MockClock
) -> None:
    desk = await died(make_store, *STARTED)

    async def look() -> str:
        desk.note()
        await trio.sleep_forever()
        raise AssertionError("unreached")

    agent = desk.agent(tools=[desk.pay, tr.tool(look, idempotent=True)])
    async with agent:
        with trio.move_on_after(1):
            await agent.resume()
        assert statuses(agent) == {
            "c1": "unknown_after_crash",
            "c2": "interrupted",
            "c3": "unknown_after_crash",
        }
        assert (await agent.resume()).text == "done"
    assert desk.ran == [("c2", KEYS["c2"], 2)]
    assert tr.fold(desk.store.stored).messages == agent.history


# --- whatever the crash left ------------------------------------------------------

FATES = st.sampled_from(["none", "started", "finished"])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), FATES, st.integers(1, 3)), min_size=1, max_size=4),
    st.sampled_from(["default", "rerun", "unknown", "result"]),
    st.sampled_from(["memory", "sqlite"]),
)
def test_each_call_goes_by_its_own_row_whatever_its_siblings_are(
    calls: list[tuple[bool, str, int]], says: str, kind: str
) -> None:
    def arrange() -> tuple[list[r.Record], dict[str, str], list[tuple[str, str, int]]]:
        """The records, and by the table: the statuses and what runs."""
        asked = [
            call("look" if idem else "pay", id=f"c{i}") for i, (idem, _, _) in enumerate(calls)
        ]
        records: list[r.Record] = [
            r.SessionOpened("desk"),
            r.TurnStarted(1, (tr.Message.user("go"),)),
            r.ModelFinished(1, 0, tr.Message.assistant(tool_calls=asked)),
        ]
        expected: dict[str, str] = {}
        runs: list[tuple[str, str, int]] = []
        for each, (idem, fate, attempts) in zip(asked, calls, strict=True):
            key = f"{SESSION}/1:0:{each.id}"
            begun = fate != "none"
            for attempt in range(1, attempts + 1 if begun else 1):
                if attempt > 1:
                    records.append(r.TurnStarted(1, (), resumed=True))
                records.append(
                    r.ToolStarted(1, 0, each.id, each.name, arguments_hash({}), key, idem, attempt)
                )
            expected[each.id] = "ok"
            if fate == "finished":
                records.append(r.ToolFinished(1, 0, tr.ToolResult(each.id, each.name, "kept")))
            elif not begun:
                runs.append((each.id, key, 1))
            elif says == "rerun" or (says == "default" and idem):
                runs.append((each.id, key, attempts + 1))
            elif says != "result":
                expected[each.id] = "unknown_after_crash"
        return records, expected, runs

    records, expected, runs = arrange()
    policy: tr.UnknownPolicy | None
    match says:
        case "default":
            policy = None
        case "result":
            policy = always(tr.ToolResult(content="found out"))
        case "rerun":
            policy = always("rerun")
        case _:
            policy = always("unknown")

    async def play() -> None:
        desk = Desk(Store(kind))
        await desk.store.fill(records)
        assert await desk.resume(policy) == expected
        assert sorted(desk.ran) == sorted(runs)

    trio.run(play)
