"""A turn that waits for a word: it is saved with its open calls, and goes on in any process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner._core.fold import check_records
from trio_runner.testing import ScriptedModel, call

ASKS = [
    call("free", id="c1", x=1),
    call("pay", id="c2", amount=5),
    call("human", id="c3", q="why?"),
    call("pay", id="c4", amount=7),
]
HUMAN = tr.external_tool("human", "Asks a human.", {"type": "object"})


def by_place(request: tr.ModelRequest) -> Any:
    """As a model answers that is asked again, whatever process asks."""
    asked = sum(bool(message.tool_calls) for message in request.history)
    return ASKS if not asked else "done"


class House:
    """Makes agents on one session, each as another process would; and what ran in them."""

    def __init__(self, journal: Any = None, **settings: Any) -> None:
        self.journal: Any = tr.MemoryJournal() if journal is None else journal
        self.ran: list[tuple[str, int]] = []
        self.events: list[ev.Event] = []
        self.settings = settings

    def agent(self, *replies: Any, **settings: Any) -> tr.ToolAgent:
        settings = {**self.settings, **settings}
        settings.setdefault("tools", [self.free, tr.tool(self.pay, needs_approval=True), HUMAN])
        return tr.ToolAgent(
            "house",
            model=ScriptedModel(replies or [by_place] * 4),
            journal=self.journal,
            session="s",
            observers=[self],
            **settings,
        )

    def on_event(self, event: ev.Event) -> None:
        self.events.append(event)

    async def free(self, x: int) -> str:
        self.ran.append(("free", x))
        return f"free {x}"

    async def pay(self, amount: int) -> str:
        self.ran.append(("pay", amount))
        return f"paid {amount}"

    @property
    def records(self) -> tuple[r.Record, ...]:
        return tuple(self.journal.stored("s"))


def status(agent: tr.ToolAgent) -> dict[str, str]:
    results = [each for message in agent.history for each in message.tool_results]
    return {each.call_id: each.status.value for each in results}


def waiting(agent: tr.ToolAgent) -> list[str]:
    return [each.call_id for each in agent.pending]


def ended(agent: tr.ToolAgent) -> tr.EndReason | None:
    return None if agent.last_turn is None else agent.last_turn.end_reason


# --- the suspension ------------------------------------------------------------------


async def test_what_needs_no_word_runs_and_then_the_turn_is_suspended() -> None:
    house = House()
    async with house.agent() as agent:
        message = await agent.generate("go")
        assert [each.id for each in message.tool_calls] == ["c1", "c2", "c3", "c4"]
        assert ended(agent) is tr.EndReason.SUSPENDED
        assert house.ran == [("free", 1)]
        assert agent.can_resume
        # The open step is not in the history, and the finished result is kept with it.
        assert [each.role for each in agent.history] == ["user"]
        assert [(p.call_id, p.name, p.arguments, p.waits_for) for p in agent.pending] == [
            ("c2", "pay", {"amount": 5}, "approval"),
            ("c3", "human", {"q": "why?"}, "external"),
            ("c4", "pay", {"amount": 7}, "approval"),
        ]
        assert agent.pending[0].arguments_hash == r.arguments_hash({"amount": 5})
    assert house.records[-1] == r.TurnEnded(1, tr.EndReason.SUSPENDED)
    [suspended] = [each for each in house.events if type(each) is ev.TurnSuspended]
    assert [each.call_id for each in suspended.pending] == ["c2", "c3", "c4"]
    assert type(house.events[-1]) is ev.TurnEnded


async def test_the_iteration_stops_after_the_message_with_the_open_calls() -> None:
    async with House().agent() as agent, agent.turn("go") as runner:
        messages = [message async for message in runner]
        assert len(messages) == 1
        assert runner.end_reason is tr.EndReason.SUSPENDED
        assert runner.is_done
        assert runner.last_message is messages[0]
        assert await runner.until_done() is messages[0]
        with pytest.raises(tr.TurnEndedError):
            runner.append_messages("too late")


async def test_hooks_on_the_end_wait_for_the_real_end() -> None:
    fired: list[str] = []

    def notes(name: str) -> Callable[..., Any]:
        async def hook(runner: tr.ToolRunner, _: object) -> None:
            fired.append(f"{name} {runner.iteration}")

        return hook

    names = ("before_tool_call", "after_tool_call", "after_turn_complete")
    hooks = tr.ToolRunnerHooks(**{name: notes(name) for name in names})
    async with House(hooks=hooks).agent() as agent:
        await agent.generate("go")
        assert fired == ["before_tool_call 0"]
        fired.clear()
        words = {"c2": tr.Deny(), "c3": 1, "c4": tr.Approve()}
        await agent.resume(decisions=words)
        assert fired == ["before_tool_call 0", "after_tool_call 0", "after_turn_complete 1"]


async def test_a_batch_of_which_nothing_is_left_to_run_is_over_for_the_hook_too() -> None:
    seen: list[list[str]] = []

    async def hook(runner: tr.ToolRunner, results: tr.Message) -> None:
        assert runner.iteration == 0
        seen.append([each.status.value for each in results.tool_results])

    async with House(hooks=tr.ToolRunnerHooks(after_tool_call=hook)).agent() as agent:
        await agent.generate("go")
        await agent.resume(decisions={"c2": tr.Deny(), "c3": "so", "c4": tr.Deny()})
        assert ended(agent) is tr.EndReason.ANSWERED
    assert seen == [["ok", "denied", "ok", "denied"]]


@pytest.mark.parametrize("refused", ["c1", "c2"])
async def test_a_guard_says_the_same_each_time_that_the_batch_goes_on(refused: str) -> None:
    said: list[bool] = []

    async def guard(runner: tr.ToolRunner, reply: tr.Message) -> None:
        said.extend(runner.deny(each.id, "no.") for each in reply.tool_calls if each.id == refused)

    house = House(hooks=tr.ToolRunnerHooks(before_tool_call=guard))
    async with house.agent() as agent:
        await agent.generate("go")
        assert waiting(agent) == [each for each in ("c2", "c3", "c4") if each != refused]
        words = {each: tr.Deny() for each in waiting(agent)}
        await agent.resume(decisions={**words, "c4": tr.Approve()})
        assert ended(agent) is tr.EndReason.ANSWERED
        assert said == [True, False]
        assert status(agent)[refused] == "denied"


async def test_a_guard_that_is_too_late_changes_no_result() -> None:
    async def guard(runner: tr.ToolRunner, reply: tr.Message) -> None:
        if runner.agent.config.instruction == "strict":
            assert not runner.deny("c1", "no.")

    house = House(hooks=tr.ToolRunnerHooks(before_tool_call=guard))
    async with house.agent() as agent:
        await agent.generate("go")
    async with house.agent(instruction="strict") as agent:
        words = {each: tr.Deny() for each in waiting(agent)}
        await agent.resume(decisions={**words, "c4": tr.Approve()})
        assert status(agent) == {"c1": "ok", "c2": "denied", "c3": "denied", "c4": "ok"}


async def test_an_approver_that_defers_suspends_the_turn() -> None:
    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        return tr.Defer() if request.call.id == "c4" else tr.Approve()

    house = House(approver=approver)
    async with house.agent() as agent:
        await agent.generate("go")
        assert sorted(house.ran) == [("free", 1), ("pay", 5)]
        assert waiting(agent) == ["c3", "c4"]
        told = {e.call_id: e.verdict for e in house.events if type(e) is ev.ApprovalDecided}
        assert told == {"c2": "approved", "c4": "deferred"}


async def test_a_fatal_tool_ends_the_turn_in_spite_of_calls_that_wait() -> None:
    async def free(x: int) -> str:
        raise tr.FatalToolError(f"stop at {x}")

    house = House()
    async with house.agent(tools=[free, tr.tool(house.pay, needs_approval=True), HUMAN]) as agent:
        with pytest.raises(tr.FatalToolError):
            await agent.generate("go")
        assert ended(agent) is tr.EndReason.FAILED
        assert status(agent) == {
            "c1": "error",
            "c2": "not_started",
            "c3": "not_started",
            "c4": "not_started",
        }
        assert agent.pending == ()


# --- going on ------------------------------------------------------------------------


@pytest.fixture(params=["same", "another", "sqlite"])
def process(request: pytest.FixtureRequest) -> str:
    """Which agent goes on: the one that asked, or another one on the session."""
    return request.param


async def test_decisions_are_carried_out_and_the_turn_goes_on(process: str, tmp_path: Path) -> None:
    house = House(tr.SqliteJournal(tmp_path / "j.db") if process == "sqlite" else None)
    agent = house.agent()
    async with agent:
        await agent.generate("go")
        pending = {each.call_id: each for each in agent.pending}
    if process != "same":
        agent = house.agent()
    async with agent:
        assert waiting(agent) == ["c2", "c3", "c4"]
        message = await agent.resume(
            decisions={
                "c4": pending["c4"].deny("too much"),
                "c3": {"because": 42},
                "c2": pending["c2"].approve({"amount": 6}),
            }
        )
        assert message.text == "done"
        assert ended(agent) is tr.EndReason.ANSWERED
        assert agent.pending == ()
        results = agent.history[2].tool_results
    assert house.ran == [("free", 1), ("pay", 6)]
    assert [each.status.value for each in results] == ["ok", "ok", "ok", "denied"]
    assert results[1].meta["edited_arguments"] is True
    assert results[2].structured_content == {"because": 42}
    assert results[3].text == "Denied: too much. It was not run and had no effect."
    tr.check_history(tr.fold(house.records).messages)


async def test_decisions_are_one_commit() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
    appended: list[tuple[type, ...]] = []

    class Noting(tr.MemoryJournal):
        async def open(self, session_id: str) -> Any:
            session = await house.journal.open(session_id)
            append = session.append

            def note(records: Sequence[r.Record]) -> tr.CommitTicket:
                appended.append(tuple(type(each) for each in records))
                return append(records)

            session.append = note
            return session

    other = House(Noting())
    async with other.agent() as agent:
        await agent.resume(decisions={"c4": tr.Deny(), "c3": "x", "c2": tr.Approve({"amount": 1})})
    assert appended[0] == (
        r.TurnStarted,
        r.CallEdited,
        r.CallApproved,
        r.ToolFinished,
        r.ToolFinished,
    )


async def test_with_decisions_for_some_those_run_and_the_turn_is_suspended_again() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        message = await agent.resume(decisions={"c2": tr.Approve(), "c4": tr.Defer()})
        assert [each.id for each in message.tool_calls] == ["c1", "c2", "c3", "c4"]
        assert ended(agent) is tr.EndReason.SUSPENDED
        assert house.ran == [("free", 1), ("pay", 5)]
        assert waiting(agent) == ["c3", "c4"]
    async with house.agent() as agent:
        assert waiting(agent) == ["c3", "c4"]
        message = await agent.resume(decisions={"c3": "so", "c4": tr.Deny()})
        assert message.text == "done"
    assert house.ran == [("free", 1), ("pay", 5)]
    assert sum(type(each) is r.CallHeld for each in house.records) == 3


async def test_an_approver_is_asked_when_a_suspended_turn_goes_on() -> None:
    async def later(request: tr.ApprovalRequest) -> tr.Decision:
        return tr.Approve({"amount": 1})

    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
    async with house.agent(approver=later) as agent:
        await agent.resume()
        assert sorted(house.ran) == [("free", 1), ("pay", 1), ("pay", 1)]
        assert waiting(agent) == ["c3"]
        # Nobody can be asked about an external call.
        with pytest.raises(tr.TurnSuspendedError):
            await agent.resume()


async def test_a_tool_result_answers_an_external_call_as_it_is() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        given = tr.ToolResult(content=[tr.TextContent("broke")], status=tr.CallStatus.ERROR)
        await agent.resume(decisions={"c2": tr.Deny(), "c3": given, "c4": tr.Deny()})
        assert agent.history[2].tool_results[2].text == "broke"
        assert status(agent)["c3"] == "error"


async def test_an_answer_needs_no_tool_any_more_and_an_approval_does() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
    async with house.agent(tools=[house.free]) as agent:
        message = await agent.resume(decisions={"c2": tr.Approve()})
        assert waiting(agent) == ["c3"]
        message = await agent.resume(decisions={"c3": "so"})
        assert message.text == "done"
        assert status(agent) == {
            "c1": "ok",
            "c2": "unavailable",
            "c3": "ok",
            "c4": "unavailable",
        }
    assert house.ran == [("free", 1)]


async def test_what_was_held_stays_held_whatever_its_tool_says_later() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")

    async def human(q: str) -> str:
        raise AssertionError(q)

    async with house.agent(tools=[house.free, house.pay, human]) as agent:
        assert waiting(agent) == ["c2", "c3", "c4"]
        await agent.resume(decisions={"c2": tr.Approve()})
        assert waiting(agent) == ["c3", "c4"]
    assert house.ran == [("free", 1), ("pay", 5)]


async def test_the_cap_counts_a_suspended_step_once() -> None:
    house = House(params=tr.RequestParams(max_iterations=1))
    async with house.agent(by_place, [call("free", id="d1", x=2)]) as agent:
        await agent.generate("go")
        message = await agent.resume(decisions={"c2": tr.Deny()})
        message = await agent.resume(decisions={"c3": "so", "c4": tr.Deny()})
        assert [each.id for each in message.tool_calls] == ["d1"]
        assert ended(agent) is tr.EndReason.MAX_ITERATIONS
    assert house.ran == [("free", 1)]


# --- barriers -------------------------------------------------------------------------


def in_turn(house: House) -> list[Any]:
    return [
        tr.tool(house.free, sequential=True),
        tr.tool(house.pay, needs_approval=True, sequential=True),
    ]


async def test_nothing_behind_a_barrier_runs_before_what_waits_in_front_of_it() -> None:
    asks = [
        call("pay", id="c1", amount=1),
        call("free", id="c2", x=2),
        call("pay", id="c3", amount=3),
        call("free", id="c4", x=4),
    ]
    house = House()
    async with house.agent(asks, "done", tools=in_turn(house)) as agent:
        await agent.generate("go")
        assert house.ran == []
        # All that wait are shown at once, also those behind.
        assert waiting(agent) == ["c1", "c3"]
        await agent.resume(decisions={"c3": tr.Approve({"amount": 33})})
        assert house.ran == []
        assert waiting(agent) == ["c1"]
    async with house.agent("done", tools=in_turn(house)) as agent:
        # The word on c3 was kept.
        await agent.resume(decisions={"c1": tr.Approve()})
        assert house.ran == [("pay", 1), ("free", 2), ("pay", 33), ("free", 4)]
        assert list(status(agent).values()) == ["ok"] * 4


async def test_one_at_a_time_means_one_at_a_time() -> None:
    house = House(params=tr.RequestParams(parallel_tool_calls=False))
    asks = [call("pay", id="c1", amount=1), call("free", id="c2", x=2)]
    async with house.agent(asks, "done") as agent:
        await agent.generate("go")
        assert house.ran == []
        await agent.resume(decisions={"c1": tr.Approve()})
    assert house.ran == [("pay", 1), ("free", 2)]


# --- what is refused ------------------------------------------------------------------

WRONG: dict[str, tuple[dict[Any, Any], str]] = {
    "unknown": ({"zz": tr.Approve()}, "no call 'zz' waits"),
    "finished": ({"c1": tr.Approve()}, "no call 'c1' waits"),
    "a value for an approval": ({"c2": True}, "waits for approval and got a bool"),
    "a result for an approval": ({"c2": tr.ToolResult()}, "waits for approval and got a ToolRes"),
    "an approval of an external call": ({"c3": tr.Approve()}, "is external"),
    "other arguments": ({"c2": tr.Approve(arguments_hash="0" * 64)}, "not the one"),
    "one of several": ({"c2": tr.Approve(), "c4": tr.Deny(arguments_hash="x")}, "'c4' is not"),
}


@pytest.mark.parametrize(("decisions", "says"), WRONG.values(), ids=WRONG)
async def test_a_wrong_decision_is_refused_and_changes_nothing(decisions: Any, says: str) -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        before = house.records
        with pytest.raises(tr.DecisionError, match=says) as caught:
            await agent.resume(decisions=decisions)
        assert len(caught.value.problems) == 1
        assert house.records == before
        assert waiting(agent) == ["c2", "c3", "c4"]
        assert not agent.conversation.is_busy
    assert house.ran == [("free", 1)]


async def test_decisions_on_a_turn_that_waits_for_none_are_refused() -> None:
    house = House()
    async with house.agent("hello") as agent:
        with pytest.raises(tr.NothingToResumeError):
            await agent.resume(decisions={"c2": tr.Approve()})
        await agent.generate("hi")
        with pytest.raises(tr.DecisionError, match="waits for no decision"):
            await agent.resume(decisions={"c2": tr.Approve()})


async def test_decisions_of_a_new_turn_are_a_mistake() -> None:
    async with House().agent() as agent:
        with pytest.raises(ValueError, match="resumed"):
            tr.ToolRunner(agent, "go", decisions={"c1": tr.Approve()})


async def test_a_call_cannot_be_swapped_between_asking_and_running() -> None:
    """Whoever edits the saved call, the session does not open with it."""
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
    records = list(house.records)
    for index, record in enumerate(records):
        if type(record) is r.ModelFinished:
            calls = [
                attrs.evolve(each, arguments={"amount": 5_000_000}) if each.id == "c2" else each
                for each in record.message.tool_calls
            ]
            message = attrs.evolve(record.message, tool_calls=calls)
            records[index] = attrs.evolve(record, message=message)
    with pytest.raises(tr.RecordError, match=r"CallHeld.*other arguments"):
        tr.fold(records)


async def test_an_approval_of_other_arguments_does_not_open() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        await agent.resume(decisions={"c2": tr.Approve({"amount": 1})})
    records = [
        attrs.evolve(each, arguments={"amount": 5_000_000}) if type(each) is r.CallEdited else each
        for each in house.records
    ]
    with pytest.raises(tr.RecordError, match=r"CallApproved.*other arguments"):
        tr.fold(records)


# --- what else may be done meanwhile ---------------------------------------------------


async def _generate(agent: tr.ToolAgent) -> None:
    await agent.generate("something else")


async def _turn(agent: tr.ToolAgent) -> None:
    async with agent.turn("something else"):
        pass


async def _load(agent: tr.ToolAgent) -> None:
    agent.load_history([tr.Message.user("x")])


async def _clear(agent: tr.ToolAgent) -> None:
    agent.clear()


@pytest.mark.parametrize("what", [_generate, _turn, _load, _clear])
async def test_what_would_lose_the_calls_is_refused_with_the_remedy(
    what: Callable[[tr.ToolAgent], Awaitable[None]],
) -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        before, history = house.records, agent.history
        with pytest.raises(tr.TurnSuspendedError, match="deny_pending") as caught:
            await what(agent)
        assert caught.value.call_ids == ("c2", "c3", "c4")
        assert (house.records, agent.history) == (before, history)
        assert not agent.conversation.is_busy


async def test_going_on_with_nothing_decided_is_refused() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        before = house.records
        for decisions in (None, {}, {"c2": tr.Defer()}):
            with pytest.raises(tr.TurnSuspendedError, match="nothing decided"):
                await agent.resume(decisions=decisions)
        assert house.records == before


async def test_pending_calls_can_be_given_up() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        made = agent.deny_pending("the user went away.")
        assert [each.call_id for each in made] == ["c2", "c3", "c4"]
        assert agent.deny_pending() == ()
        assert status(agent) == {"c1": "ok", "c2": "denied", "c3": "denied", "c4": "denied"}
        assert ended(agent) is tr.EndReason.INTERRUPTED
        assert (await agent.generate("something else")).text == "done"
    assert "the user went away" in made[0].text
    assert house.ran == [("free", 1)]
    state = tr.fold(house.records)
    assert state.messages == agent.history
    assert state.turns == 2


async def test_results_for_all_open_calls_begin_the_next_turn() -> None:
    house = House()
    async with house.agent() as agent:
        await agent.generate("go")
        results = [tr.ToolResult(call_id, content="by hand") for call_id in ("c2", "c3", "c4")]
        some = tr.Message.user("and now?", tool_results=results[:2])
        before = house.records
        with pytest.raises(tr.TurnSuspendedError):
            await agent.generate(some)
        with pytest.raises(tr.HistoryError):
            await agent.generate(tr.Message.user("?", tool_results=[tr.ToolResult("c1")]))
        assert house.records == before
        message = await agent.generate(tr.Message.user("and now?", tool_results=results))
        assert message.text == "done"
        assert status(agent) == dict.fromkeys(("c1", "c2", "c3", "c4"), "ok")
    assert house.ran == [("free", 1)]
    assert tr.fold(house.records).messages == agent.history


async def test_a_suspended_conversation_may_be_shortened() -> None:
    house = House()
    async with house.agent("hello", "hi", by_place_after(2), "done") as agent:
        await agent.generate("one")
        await agent.generate("two")
        await agent.generate("go")
        cut = agent.choose_cut(keep=1)
        assert cut is not None
        agent.replace_with_summary(cut, "they said hello")
        assert agent.trim() == 0
        assert waiting(agent) == ["c2", "c3", "c4"]
        await agent.resume(decisions={"c2": tr.Approve(), "c3": 1, "c4": tr.Deny()})
        tr.check_history(agent.history)
        assert agent.history[0].meta.get("is_summary")
    assert tr.fold(house.records).messages == agent.history


def by_place_after(_: int) -> Any:
    return ASKS


async def test_a_turn_without_history_can_be_suspended_in_memory() -> None:
    house = House(params=tr.RequestParams(use_history=False))
    async with house.agent() as agent:
        await agent.generate("go")
        assert waiting(agent) == ["c2", "c3", "c4"]
        for params in (None, tr.RequestParams(use_history=True)):
            with pytest.raises(tr.TurnSuspendedError):
                await agent.generate("more", params=params)
        message = await agent.resume(decisions={"c2": tr.Approve(), "c3": 1, "c4": tr.Deny()})
        assert message.text == "done"
        assert agent.history == ()
    assert house.ran == [("free", 1), ("pay", 5)]


async def test_a_turn_without_history_leaves_a_suspended_one_alone() -> None:
    house = House()
    aside = tr.RequestParams(use_history=False)
    async with house.agent(by_place, "aside", "done") as agent:
        await agent.generate("go")
        assert (await agent.generate("what?", params=aside)).text == "aside"
        assert waiting(agent) == ["c2", "c3", "c4"]
        message = await agent.resume(decisions={"c2": tr.Deny(), "c3": 1, "c4": tr.Deny()})
        assert message.text == "done"


@pytest.mark.parametrize("then", ["decide", "deny"])
async def test_a_turn_without_history_that_fails_leaves_a_suspended_one_alone_too(
    then: str,
) -> None:
    house = House()
    aside = tr.RequestParams(use_history=False)
    words: dict[str, Any] = {"c2": tr.Deny(), "c3": 1, "c4": tr.Deny()}
    replies = [by_place, OSError("down"), OSError("down"), "done"]
    async with house.agent(*replies) as agent:
        await agent.generate("go")
        with pytest.raises(OSError, match="down"):
            await agent.generate("what?", params=aside)
        assert waiting(agent) == ["c2", "c3", "c4"]
        if then == "deny":
            assert len(agent.deny_pending()) == 3
        else:
            with pytest.raises(OSError, match="down"):
                await agent.resume(decisions=words)
        # It is the newest turn again, so it can be gone on with, and its answer is the answer.
        assert waiting(agent) == []
        assert agent.can_resume
        if then == "deny":
            with pytest.raises(OSError, match="down"):
                await agent.resume()
        assert (await agent.resume()).text == "done"
        assert not agent.can_resume
        assert agent.history[-1].text == "done"


async def test_nothing_is_pending_while_a_turn_runs() -> None:
    seen: list[object] = []

    async def approver(_: tr.ApprovalRequest) -> tr.Decision:
        seen.append(agent.pending)
        with pytest.raises(tr.BusyError):
            agent.deny_pending()
        return tr.Approve()

    house = House(approver=approver)
    async with house.agent() as agent:
        await agent.generate("go")
    assert seen == [(), ()]
    with pytest.raises(tr.NotEnteredError):
        _ = agent.pending


async def test_a_suspended_turn_moves_to_a_session_that_forgot_it() -> None:
    """The journal lost the session while the agent was left: what it has is recorded anew."""
    house = House()
    agent = house.agent()
    async with agent:
        await agent.generate("go")
        await agent.resume(decisions={"c4": tr.Approve({"amount": 1})})
    assert house.ran == [("free", 1), ("pay", 1)]
    house.journal = tr.MemoryJournal()
    other = house.agent()
    async with other:
        assert other.pending == ()
    # The same agent on another, empty journal cannot be made; so fold what it would record.
    conversation = agent.conversation
    session = await tr.MemoryJournal().open("fresh")
    conversation.attach(session, "fresh", "house")
    await trio.testing.wait_all_tasks_blocked()
    state = tr.fold(session.records)
    assert state.turn is not None
    assert state.turn.is_suspended
    assert [each.call_id for each in conversation.pending] == ["c2", "c3"]
    await session.aclose()


# --- crashes --------------------------------------------------------------------------


def lived_without_a_crash() -> tuple[r.Record, ...]:
    house = House()

    async def live() -> None:
        async with house.agent() as agent:
            await agent.generate("go")
        async with house.agent() as agent:
            await agent.resume(decisions={"c2": tr.Approve({"amount": 6}), "c4": tr.Deny()})
        async with house.agent() as agent:
            await agent.resume(decisions={"c3": "so"})

    trio.run(live)
    return house.records


LIVED = lived_without_a_crash()


def test_the_session_has_every_kind_of_record_of_it() -> None:
    kinds = {type(each) for each in LIVED}
    assert kinds >= {r.CallHeld, r.CallEdited, r.CallApproved, r.TurnEnded, r.ToolStarted}


@pytest.mark.parametrize("count", range(3, len(LIVED)))
async def test_a_crash_at_any_record_resumes_truthfully(count: int) -> None:
    house = House()
    session = await house.journal.open("s")
    session.append(LIVED[:count])
    await session.aclose()
    begun = [e.call_id for e in LIVED[:count] if type(e) is r.ToolStarted]
    approved = [e.call_id for e in LIVED[:count] if type(e) is r.CallApproved]
    denied = [
        e.result.call_id
        for e in LIVED[:count]
        if type(e) is r.ToolFinished and e.result.status is tr.CallStatus.DENIED
    ]
    words: dict[str, Any] = {"c2": tr.Approve({"amount": 6}), "c3": "so", "c4": tr.Deny()}

    async def guard(runner: tr.ToolRunner, reply: tr.Message) -> None:
        for call_id in denied:
            runner.deny(call_id, "it was denied, and stays so")

    async with house.agent(hooks=tr.ToolRunnerHooks(before_tool_call=guard)) as agent:
        for _ in range(4):
            if ended(agent) is tr.EndReason.ANSWERED:
                break
            pending = waiting(agent)
            assert not set(pending) & {*begun, *approved, *denied}
            await agent.resume(decisions={each: words[each] for each in pending} or None)
        assert ended(agent) is tr.EndReason.ANSWERED
        found = status(agent)
    finished = {
        e.result.call_id: e.result.status.value for e in LIVED[:count] if type(e) is r.ToolFinished
    }
    for call_id in ("c1", "c2"):
        unknown = call_id in begun and call_id not in finished
        assert found[call_id] == ("unknown_after_crash" if unknown else "ok")
    assert found["c3"] == "ok"
    assert found["c4"] == "denied"
    # Never the denied one, never one twice, and only the edited arguments.
    ran = {"free": 1, "pay": 6}
    assert all(ran[name] == value for name, value in house.ran)
    for name, call_id in (("free", "c1"), ("pay", "c2")):
        times = [each for each, _ in house.ran].count(name)
        assert times == (0 if call_id in begun else 1)


async def test_a_crash_while_the_approver_is_asked_leaves_what_it_was_asked_about() -> None:
    async def approver(_: tr.ApprovalRequest) -> tr.Decision:
        session = await tr.MemoryJournal().open("copy")
        copied.append((*house.records,))
        await session.aclose()
        return tr.Deny()

    copied: list[tuple[r.Record, ...]] = []
    house = House(approver=approver)
    async with house.agent() as agent:
        await agent.generate("go")
    after = House()
    session = await after.journal.open("s")
    session.append(copied[0])
    await session.aclose()
    async with after.agent() as agent:
        assert waiting(agent) == ["c2", "c4"]
        await agent.resume(decisions={"c2": tr.Approve(), "c4": tr.Deny()})
        assert waiting(agent) == ["c3"]
    assert ("pay", 5) in after.ran
    assert ("pay", 7) not in after.ran


# --- words on calls that a crash cut --------------------------------------------------


def cut(idempotent: bool, edit: dict[str, Any] | None = None) -> list[r.Record]:
    """The records of a session whose process died while `pay` ran; consent came with an edit."""
    arguments: dict[str, Any] = {"amount": 5} if edit is None else edit
    words: list[r.Record] = []
    if edit is not None:
        words = [
            r.CallHeld(1, 0, "c1", "approval", r.arguments_hash({"amount": 5})),
            r.CallEdited(1, 0, "c1", edit),
            r.CallApproved(1, 0, "c1", r.arguments_hash(edit)),
        ]
    reply = tr.Message(
        "assistant",
        tool_calls=(tr.ToolCall("c1", "pay", {"amount": 5}),),
        stop_reason=tr.StopReason.TOOL_USE,
    )
    digest = r.arguments_hash(arguments)
    return [
        r.SessionOpened("house"),
        r.TurnStarted(1, (tr.Message.user("go"),)),
        r.ModelFinished(1, 0, reply),
        *words,
        r.ToolStarted(1, 0, "c1", "pay", digest, "s/1:0:c1", idempotent, 1),
    ]


async def left_behind(records: Sequence[r.Record]) -> House:
    house = House()
    session = await house.journal.open("s")
    session.append(records)
    await session.aclose()
    return house


async def rerun(_: tr.UnknownCall) -> tr.UnknownVerdict:
    return "rerun"


async def look_up(unknown: tr.UnknownCall) -> tr.UnknownVerdict:
    return tr.ToolResult(content="it was paid", call_id=unknown.call.id)


@pytest.mark.parametrize("word", [tr.Deny("no."), tr.Approve(), tr.Approve({"amount": 6})])
@pytest.mark.parametrize("policy", [None, rerun, look_up])
@pytest.mark.parametrize("tool", ["idempotent", "plain", "gone", "external"])
async def test_a_word_on_a_call_that_a_crash_cut_is_carried_out_truthfully(
    tool: str, policy: Any, word: Any
) -> None:
    """Consent became needed after a crash, so a cut call waits; then anything may have changed."""
    house = await left_behind(cut(idempotent=True))
    guarded = tr.tool(house.pay, needs_approval=True, idempotent=True)
    async with house.agent(tools=[guarded]) as agent:
        await agent.resume()
        assert waiting(agent) == ["c1"]
    tools = {
        "idempotent": [guarded],
        "plain": [tr.tool(house.pay)],
        "gone": [],
        "external": [tr.external_tool("pay", "Pays.", {"type": "object"})],
    }
    async with house.agent(tools=tools[tool]) as agent:
        assert waiting(agent) == ["c1"]
        if word == tr.Approve({"amount": 6}):
            with pytest.raises(tr.DecisionError, match="only with the arguments it started with"):
                await agent.resume(decisions={"c1": word}, unknown=policy)
            word = tr.Approve({"amount": 5})
        await agent.resume(decisions={"c1": word}, unknown=policy)
        assert ended(agent) is tr.EndReason.ANSWERED
        [result] = agent.history[2].tool_results
    if type(word) is tr.Deny:
        assert result.status is tr.CallStatus.UNKNOWN_AFTER_CRASH
        assert "It was not run again: that was denied: no." in result.text
        assert house.ran == []
    elif policy is look_up:
        assert (result.text, house.ran) == ("it was paid", [])
    elif house.ran:
        assert tool in ("idempotent", "plain")
        assert (result.text, house.ran) == ("paid 5", [("pay", 5)])
    else:
        assert result.status is tr.CallStatus.UNKNOWN_AFTER_CRASH
    assert check_records(house.records).messages == agent.history


async def test_an_approver_cannot_edit_a_call_that_a_crash_cut() -> None:
    async def approver(_: tr.ApprovalRequest) -> tr.Decision:
        return tr.Approve({"amount": 6})

    house = await left_behind(cut(idempotent=True))
    guarded = tr.tool(house.pay, needs_approval=True, idempotent=True)
    async with house.agent("done", tools=[guarded], approver=approver) as agent:
        await agent.resume()
        assert status(agent) == {"c1": "unknown_after_crash"}
    [failed] = [each for each in house.events if type(each) is ev.ApprovalFailed]
    assert "only with the arguments it started with" in str(failed.error)
    assert house.ran == []


async def test_an_approved_call_whose_tool_became_external_is_unavailable() -> None:
    house = House()
    async with house.agent([call("pay", id="c1", amount=5)]) as agent:
        await agent.generate("go")
    pay = tr.external_tool("pay", "Pays.", {"type": "object"})
    async with house.agent("done", tools=[pay]) as agent:
        await agent.resume(decisions={"c1": tr.Approve()})
        assert status(agent) == {"c1": "unavailable"}


@pytest.mark.parametrize("then", ["resume", "turn", "gone"])
async def test_an_edited_call_that_a_crash_cut_says_what_it_ran_with(then: str) -> None:
    house = await left_behind(cut(idempotent=then == "gone", edit={"amount": 6}))
    async with house.agent("done") as agent:
        match then:
            case "turn":
                await agent.generate("more")
            case _:
                await agent.resume()
        [result] = agent.history[2].tool_results
    assert result.status is tr.CallStatus.UNKNOWN_AFTER_CRASH
    assert result.text.endswith('had changed its arguments to {"amount":6}')
    assert result.meta == {"edited_arguments": True}
    assert house.ran == []
    assert check_records(house.records).messages == agent.history


# --- whole sessions -------------------------------------------------------------------


async def test_a_fork_takes_no_call_that_waits(tmp_path: Path) -> None:
    journal = tr.SqliteJournal(tmp_path / "j.db")
    house = House(journal)
    async with house.agent("hello", by_place_after(1)) as agent:
        await agent.generate("hi")
        await agent.generate("go")
    await journal.fork("s", "t")
    assert tr.fold(journal.stored("t")).turns == 1
    [summary] = [each for each in journal.summaries() if each.session_id == "s"]
    assert summary.state == "suspended"
    data = journal.export_jsonl("s")
    with pytest.raises(tr.JournalFormatError, match="turn 2"):
        await journal.import_jsonl("u", data)
    await journal.import_jsonl("u", data, moved=True)
    assert journal.stored("u") == journal.stored("s")
