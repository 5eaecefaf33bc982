"""An approver decides on calls while the turn runs: who is asked, when, and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, call

Ran = list[tuple[str, Any]]


class Desk:
    """An agent with tools that need consent, and what happened to them.

    Args:
      replies: the script.
      approver: decides.
      settings: of the agent.
    """

    def __init__(self, *replies: Any, approver: tr.Approver | None = None, **settings: Any) -> None:
        self.ran: Ran = []
        self.asked: list[tr.ApprovalRequest] = []
        self.events: list[ev.Event] = []
        self.journal = tr.MemoryJournal()
        self._approver = approver
        free = tr.tool(self.free)
        pay = tr.tool(self.pay, needs_approval=True)
        settings.setdefault("tools", [free, pay])
        self.agent = tr.ToolAgent(
            "desk",
            model=ScriptedModel([*replies, "done"]),
            journal=self.journal,
            session="s",
            approver=self.ask if approver is not None else None,
            observers=[self],
            **settings,
        )

    async def ask(self, request: tr.ApprovalRequest) -> tr.Decision:
        self.asked.append(request)
        assert self._approver is not None
        return await self._approver(request)

    async def free(self, x: int) -> str:
        await trio.sleep(1)
        self.ran.append(("free", x))
        return f"free {x}"

    async def pay(self, amount: int) -> str:
        self.ran.append(("pay", amount))
        return f"paid {amount}"

    def on_event(self, event: ev.Event) -> None:
        self.events.append(event)

    async def go(self) -> tr.Message:
        async with self.agent:
            return await self.agent.generate("go")

    @property
    def results(self) -> dict[str, tr.ToolResult]:
        return {
            each.call_id: each for message in self.agent.history for each in message.tool_results
        }

    @property
    def records(self) -> Sequence[r.Record]:
        return self.journal.stored("s")


def says(decision: tr.Decision, after: float = 0) -> tr.Approver:
    async def approver(_: tr.ApprovalRequest) -> tr.Decision:
        await trio.sleep(after)
        return decision

    return approver


def pay(call_id: str, amount: Any = 5) -> tr.ToolCall:
    return call("pay", id=call_id, amount=amount)


# --- asking -----------------------------------------------------------------------


async def test_all_of_a_group_are_asked_at_once_while_other_calls_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    desk = Desk(
        [pay("c1", 1), call("free", id="c2", x=2), pay("c3", 3)],
        approver=says(tr.Approve(), after=5),
    )
    began = trio.current_time()
    await desk.go()
    assert trio.current_time() - began == 5
    assert desk.ran[0] == ("free", 2)
    assert sorted(desk.ran) == [("free", 2), ("pay", 1), ("pay", 3)]
    assert [each.text for each in desk.results.values()] == ["paid 1", "free 2", "paid 3"]


async def test_the_request_says_what_would_run() -> None:
    desk = Desk([pay("c1", 7)], approver=says(tr.Approve()))
    await desk.go()
    [request] = desk.asked
    assert (request.call.id, request.tool.name, request.arguments) == ("c1", "pay", {"amount": 7})
    assert request.arguments_hash == r.arguments_hash({"amount": 7})
    assert (request.turn, request.step) == (1, 0)


async def test_what_an_approver_changes_in_its_request_changes_nothing() -> None:
    async def meddles(request: tr.ApprovalRequest) -> tr.Decision:
        for arguments in (request.arguments, request.call.arguments):
            arguments["amount"] = 1_000_000  # type: ignore[index]
        return tr.Approve()

    desk = Desk([pay("c1", 7)], approver=meddles)
    await desk.go()
    assert desk.ran == [("pay", 7)]
    assert desk.agent.history[1].tool_calls[0].arguments == {"amount": 7}


async def test_only_calls_that_need_consent_are_asked_about() -> None:
    desk = Desk([call("free", id="c1", x=1)], approver=says(tr.Deny()))
    await desk.go()
    assert desk.asked == []
    assert desk.ran == [("free", 1)]


# --- what is said -----------------------------------------------------------------


async def test_edited_arguments_are_what_runs_and_what_is_recorded() -> None:
    desk = Desk([pay("c1", 500)], approver=says(tr.Approve({"amount": 50})))
    await desk.go()
    assert desk.ran == [("pay", 50)]
    result = desk.results["c1"]
    assert result.status is tr.CallStatus.OK
    assert result.meta["edited_arguments"] is True
    # The result is the tool's; what the model must know of the edit comes behind all results.
    assert result.text == "paid 50"
    note = desk.agent.history[3]
    assert '{"amount":50}' in note.text
    assert note.meta == {"attached_by": "c1", "edited_arguments": True}
    # The reply stays as the model gave it.
    assert desk.agent.history[1].tool_calls[0].arguments == {"amount": 500}
    assert [type(each) for each in desk.records[3:7]] == [
        r.CallHeld,
        r.CallEdited,
        r.CallApproved,
        r.ToolStarted,
    ]
    held, edited, approved, started = desk.records[3:7]
    assert held.arguments_hash == r.arguments_hash({"amount": 500})  # type: ignore[union-attr]
    assert edited == r.CallEdited(1, 0, "c1", {"amount": 50})
    for each in (approved, started):
        assert each.arguments_hash == r.arguments_hash({"amount": 50})  # type: ignore[union-attr]


async def test_the_same_arguments_given_again_are_no_edit() -> None:
    desk = Desk([pay("c1", 5)], approver=says(tr.Approve({"amount": 5})))
    await desk.go()
    assert desk.results["c1"].text == "paid 5"
    assert not any(type(each) is r.CallEdited for each in desk.records)


@pytest.mark.parametrize(("given", "edited"), [(0, False), (1, True), (1, 1.0)])
async def test_what_is_equal_in_python_alone_is_an_edit(given: object, edited: object) -> None:
    async def echo(arguments: Any, context: tr.ToolContext) -> str:
        return repr(arguments)

    tool = tr.Tool("echo", "", {"type": "object"}, echo, needs_approval=True)
    approver = says(tr.Approve({"x": edited}))
    desk = Desk([call("echo", id="c1", x=given)], approver=approver, tools=[tool])
    await desk.go()
    assert desk.results["c1"].text == repr({"x": edited})
    assert desk.results["c1"].meta["edited_arguments"] is True


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_an_edited_call_that_the_turn_cuts_says_what_it_ran_with(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def wire(amount: int) -> str:
        await trio.sleep_forever()
        return ""

    desk = Desk(
        [call("wire", id="c1", amount=500), call("wire", id="c2", amount=3)],
        approver=by_id(c1=tr.Approve({"amount": 50}), c2=tr.Approve()),
        tools=[tr.tool(wire, needs_approval=True)],
        params=tr.RequestParams(turn_timeout=1 if how == "deadline" else None),
    )
    if how == "deadline":
        with pytest.raises(tr.TurnTimeoutError):
            await desk.go()
    else:
        with trio.move_on_after(1):
            await desk.go()
    assert desk.results["c1"].text.endswith('had changed its arguments to {"amount":50}')
    assert desk.results["c1"].meta == {"edited_arguments": True}
    assert "changed" not in desk.results["c2"].text
    assert desk.results["c2"].meta == {}
    assert tr.fold(desk.records).messages == desk.agent.history


def by_id(**words: tr.Decision) -> tr.Approver:
    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        return words[request.call.id]

    return approver


async def test_an_edit_that_does_not_fit_the_schema_is_answered_as_the_models_would_be() -> None:
    desk = Desk([pay("c1", 5)], approver=says(tr.Approve({"amount": "plenty"})))
    await desk.go()
    assert desk.ran == []
    assert desk.results["c1"].status is tr.CallStatus.INVALID_ARGUMENTS
    assert desk.results["c1"].meta["edited_arguments"] is True


async def test_the_note_on_an_edit_is_short() -> None:
    desk = Desk(
        [call("say", id="c1", text="short")],
        approver=says(tr.Approve({"text": "x" * 2000})),
        tools=[tr.tool(_say, name="say", needs_approval=True)],
    )
    await desk.go()
    assert len(desk.results["c1"].text) == 2000
    assert len(desk.agent.history[3].text) < 700


async def _say(text: str) -> str:
    return text


async def test_a_denied_call_never_runs_and_the_model_reads_why() -> None:
    desk = Desk([pay("c1"), call("free", id="c2", x=1)], approver=says(tr.Deny("it is too much.")))
    await desk.go()
    assert desk.ran == [("free", 1)]
    assert desk.results["c1"].status is tr.CallStatus.DENIED
    assert desk.results["c1"].text == ("Denied: it is too much. It was not run and had no effect.")
    assert not any(type(e) is r.ToolStarted and e.call_id == "c1" for e in desk.records)


@pytest.mark.parametrize("said", [True, None, "yes", tr.Approve])
async def test_any_other_word_is_a_no(said: Any, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk([pay("c1"), call("free", id="c2", x=1)], approver=says(said))
    await desk.go()
    assert desk.ran == [("free", 1)]
    assert desk.results["c1"].status is tr.CallStatus.DENIED
    assert "expected Approve" in caplog.text


@pytest.mark.parametrize(
    "error",
    [ValueError("broken"), BaseExceptionGroup("g", [OSError("gone")]), trio.TooSlowError()],
    ids=["error", "group", "too slow"],
)
async def test_an_approver_that_raises_denies_its_call_alone(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        if request.call.id == "c1":
            raise error
        return tr.Approve()

    desk = Desk([pay("c1", 1), pay("c2", 2)], approver=approver)
    message = await desk.go()
    assert message.text == "done"
    assert desk.ran == [("pay", 2)]
    assert desk.results["c1"].status is tr.CallStatus.DENIED
    [failed] = [each for each in desk.events if type(each) is ev.ApprovalFailed]
    assert (failed.call_id, failed.error) == ("c1", error)
    assert [rec.levelno for rec in caplog.records] == [logging.ERROR]


async def test_a_cancellation_of_its_own_is_an_error_of_the_approver() -> None:
    async def approver(_: tr.ApprovalRequest) -> tr.Decision:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as stray:
                kept.append(stray)
        raise kept[0]

    kept: list[BaseException] = []
    desk = Desk([pay("c1")], approver=approver)
    message = await desk.go()
    assert message.text == "done"
    assert desk.results["c1"].status is tr.CallStatus.DENIED


async def test_a_fatal_error_of_an_approver_ends_the_turn() -> None:
    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        if request.call.id == "c1":
            raise tr.FatalToolError("stop it all")
        return tr.Approve()

    desk = Desk([pay("c1", 1), pay("c2", 2)], approver=approver)
    with pytest.raises(tr.FatalToolError, match="stop it all"):
        await desk.go()
    assert desk.agent.last_turn is not None
    assert desk.agent.last_turn.end_reason is tr.EndReason.FAILED
    assert desk.results["c1"].status is tr.CallStatus.DENIED
    assert desk.results["c2"].text == "paid 2"


# --- cancels ----------------------------------------------------------------------


async def test_a_cancel_inside_an_approver_is_a_cancel(
    autojump_clock: trio.testing.MockClock,
) -> None:
    desk = Desk([pay("c1"), call("free", id="c2", x=1)], approver=says(tr.Approve(), after=50))
    with trio.move_on_after(10) as scope:
        await desk.go()
    assert scope.cancelled_caught
    assert desk.results["c1"].status is tr.CallStatus.NOT_STARTED
    assert desk.results["c2"].text == "free 1"
    assert desk.agent.last_turn is not None
    assert desk.agent.last_turn.end_reason is tr.EndReason.INTERRUPTED


async def test_an_approver_that_swallows_the_cancel_lets_nothing_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def deaf(_: tr.ApprovalRequest) -> tr.Decision:
        try:
            await trio.sleep(50)
        except trio.Cancelled:
            pass
        return tr.Approve()

    desk = Desk([pay("c1")], approver=deaf)
    with trio.move_on_after(10) as scope:
        await desk.go()
    assert scope.cancelled_caught
    assert desk.ran == []
    assert desk.results["c1"].status is tr.CallStatus.NOT_STARTED
    assert not any(type(each) is r.ToolStarted for each in desk.records)


async def test_cancel_call_stops_the_question_and_the_turn_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    left: list[str] = []

    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        try:
            await trio.sleep(50)
        finally:
            left.append(request.call.id)
        return tr.Approve()

    desk = Desk([pay("c1"), call("free", id="c2", x=1)], approver=approver)
    hit: list[bool] = []

    async def withdraw(runner: tr.ToolRunner) -> None:
        await trio.sleep(10)
        hit.append(runner.cancel_call("c1"))

    async with desk.agent, trio.open_nursery() as nursery, desk.agent.turn("go") as runner:
        nursery.start_soon(withdraw, runner)
        message = await runner.until_done()
    assert hit == [True]
    assert left == ["c1"]
    assert message.text == "done"
    assert desk.ran == [("free", 1)]
    assert desk.results["c1"].status is tr.CallStatus.NOT_STARTED


async def test_the_turns_deadline_ends_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    desk = Desk(
        [pay("c1")],
        approver=says(tr.Approve(), after=50),
        params=tr.RequestParams(turn_timeout=10),
    )
    with pytest.raises(tr.TurnTimeoutError):
        await desk.go()
    assert desk.results["c1"].status is tr.CallStatus.NOT_STARTED


# --- order and limits --------------------------------------------------------------


async def test_a_barrier_keeps_its_place(autojump_clock: trio.testing.MockClock) -> None:
    desk = Desk(
        [call("free", id="c1", x=1), call("alone", id="c2"), call("free", id="c3", x=3)],
        approver=says(tr.Approve(), after=5),
    )

    async def alone() -> str:
        desk.ran.append(("alone", trio.current_time()))
        return "alone"

    desk.agent.add_tool(tr.tool(alone, needs_approval=True, sequential=True))
    await desk.go()
    assert [name for name, _ in desk.ran] == ["free", "alone", "free"]


async def test_a_tools_timeout_starts_after_its_approval(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def quick() -> str:
        await trio.sleep(1)
        return "in time"

    desk = Desk(
        [call("quick", id="c1")],
        approver=says(tr.Approve(), after=50),
        tools=[tr.tool(quick, needs_approval=True, timeout=2)],
    )
    await desk.go()
    assert desk.results["c1"].text == "in time"
    assert desk.results["c1"].duration == pytest.approx(1)


class Peak:
    """Counts how many of its calls run at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.order: list[int] = []

    async def __call__(self, n: int) -> str:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(n)
        await trio.sleep(1)
        self.now -= 1
        return str(n)


def sluggish(seconds: Callable[[int], float]) -> tr.Approver:
    """Takes its time, which depends on the call."""

    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        await trio.sleep(seconds(request.arguments["n"]))
        return tr.Approve()

    return approver


@pytest.mark.parametrize("guarded", [{0, 1, 2}, {3, 4, 5, 6}, set(range(8))], ids=len)
async def test_a_waiting_approval_takes_no_place_among_the_parallel_calls(
    guarded: set[int], autojump_clock: trio.testing.MockClock
) -> None:
    peak = Peak()

    def asks(planned: tr.Planned) -> bool:
        return planned.call.arguments["n"] in guarded

    desk = Desk(
        [call("peak", id=f"c{n}", n=n) for n in range(8)],
        approver=sluggish(lambda n: 100 if n in (0, 3) else 0.5),
        tools=[tr.tool(peak, name="peak", needs_approval=asks)],
        params=tr.RequestParams(max_parallel_tools=2),
    )
    began = trio.current_time()
    await desk.go()
    assert peak.most == 2
    assert peak.order[-1] in (0, 3)  # the one that waited 100 s held nobody up
    assert len(peak.order) == 8
    assert trio.current_time() - began == 101
    assert [each.text for each in desk.results.values()] == [str(n) for n in range(8)]


async def test_a_waiting_approval_holds_no_slot_of_a_limiter(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peak, limiter = Peak(), trio.CapacityLimiter(1)
    desk = Desk(
        [call("peak", id=f"c{n}", n=n) for n in range(4)],
        approver=sluggish(lambda n: 50 if n == 0 else 0),
        tools=[tr.tool(peak, name="peak", needs_approval=True, limiter=limiter)],
    )
    began = trio.current_time()
    await desk.go()
    assert peak.most == 1
    assert peak.order[-1] == 0
    assert trio.current_time() - began == 51


async def test_the_approval_is_durable_before_the_tool_runs() -> None:
    seen: list[list[type]] = []

    async def looks() -> str:
        seen.append([type(each) for each in desk.records])
        return "seen"

    desk = Desk(
        [call("looks", id="c1")],
        approver=says(tr.Approve()),
        tools=[tr.tool(looks, needs_approval=True)],
    )
    desk.journal.delay = 0.001
    await desk.go()
    assert seen[0][-3:] == [r.CallHeld, r.CallApproved, r.ToolStarted]


async def test_strict_durability_runs_nothing_whose_approval_is_not_stored() -> None:
    async def approver(_: tr.ApprovalRequest) -> tr.Decision:
        desk.journal.delay = OSError("disk full")
        return tr.Approve()

    desk = Desk([pay("c1")], approver=approver, durability="strict")
    with pytest.raises(tr.JournalError):
        await desk.go()
    assert desk.ran == []


# --- who needs consent -------------------------------------------------------------


def _by_arguments(planned: tr.Planned) -> bool:
    return planned.call.arguments.get("x") == 1


def _by_name(planned: tr.Planned) -> bool:
    return planned.tool is not None and planned.tool.name == "free"


def _never(_: tr.Planned) -> bool:
    return False


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        (True, ["c1", "c2"]),
        (False, ["c2"]),
        (_by_arguments, ["c1", "c2"]),
        (_by_name, ["c1", "c2"]),
        (_never, ["c2"]),
    ],
)
async def test_a_rule_of_the_agent_adds_to_those_of_the_tools(rule: Any, asked: Any) -> None:
    desk = Desk(
        [call("free", id="c1", x=1), pay("c2")], approver=says(tr.Approve()), needs_approval=rule
    )
    await desk.go()
    assert sorted(each.call.id for each in desk.asked) == asked


async def test_a_rule_sees_the_tool_that_a_misspelt_name_means() -> None:
    desk = Desk(
        [call(" FREE", id="c1", x=1)],
        approver=says(tr.Deny()),
        needs_approval=_by_name,
    )
    await desk.go()
    assert desk.ran == []
    assert desk.results["c1"].status is tr.CallStatus.DENIED


def _raises(_: tr.Planned) -> bool:
    raise RuntimeError("no idea")


def _undecided(_: tr.Planned) -> Any:
    return None


def _zero(_: tr.Planned) -> Any:
    return 0


@pytest.mark.parametrize("rule", [_raises, _undecided, _zero])
async def test_a_rule_that_fails_asks(rule: Any, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk([call("free", id="c1", x=1)], approver=says(tr.Deny()), needs_approval=rule)
    await desk.go()
    assert desk.ran == []
    assert desk.results["c1"].status is tr.CallStatus.DENIED
    assert "may run failed" in caplog.text


async def test_what_a_rule_changes_in_its_arguments_changes_nothing() -> None:
    def meddles(planned: tr.Planned) -> bool:
        planned.call.arguments["x"] = 99
        return False

    desk = Desk([call("free", id="c1", x=1)], needs_approval=meddles)
    await desk.go()
    assert desk.ran == [("free", 1)]


class Shelf:
    """A toolset of two tools, which counts how it was used."""

    name = "shelf"

    def __init__(self) -> None:
        self.tools: tuple[tr.Tool, ...] = (
            tr.tool(_say, name="say"),
            tr.external_tool("human", "Asks a human.", {"type": "object"}),
        )
        self.entered = 0

    async def list_tools(self) -> Sequence[tr.Tool]:
        return self.tools

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.entered -= 1


async def test_a_toolset_can_be_made_to_need_consent() -> None:
    shelf = Shelf()
    guarded = tr.ApprovalToolset(shelf)
    desk = Desk([call("say", id="c1", text="x")], approver=says(tr.Deny()), tools=[guarded])
    await desk.go()
    assert guarded.name == "shelf"
    assert desk.results["c1"].status is tr.CallStatus.DENIED
    assert shelf.entered == 0


async def test_a_guarded_toolset_lists_the_same_object_while_nothing_changed() -> None:
    shelf = Shelf()
    guarded = tr.ApprovalToolset(shelf, lambda planned: planned.call.name == "say")
    listed = await guarded.list_tools()
    assert await guarded.list_tools() is listed
    assert [callable(each.needs_approval) for each in listed] == [True, False]
    assert listed[1] is shelf.tools[1]
    shelf.tools = shelf.tools[:1]
    assert len(await guarded.list_tools()) == 1


@pytest.mark.parametrize(
    ("own", "outer", "wanted"),
    [(False, True, True), (True, False, True), (False, False, False)],
)
async def test_either_rule_is_enough(own: bool, outer: bool, wanted: bool) -> None:
    shelf = Shelf()
    shelf.tools = (tr.tool(_say, name="say", needs_approval=own),)
    [listed] = await tr.ApprovalToolset(shelf, outer).list_tools()
    assert listed.needs_approval is wanted


# --- set up, and alone -------------------------------------------------------------


def not_async(_: tr.ApprovalRequest) -> tr.Decision:
    return tr.Approve()


async def is_async(_: tr.Planned) -> bool:
    return True


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"approver": not_async}, TypeError, "async def approver"),
        ({"approver": True}, TypeError, "async def approver"),
        ({"needs_approval": "yes"}, TypeError, "plain function"),
        ({"needs_approval": 1}, TypeError, "plain function"),
        ({"needs_approval": is_async}, TypeError, "plain function"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(settings: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        tr.ToolAgent("a", model=ScriptedModel([]), **settings)


def test_wrong_tools_and_words_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="plain function"):
        tr.tool(_say, needs_approval="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="external"):
        tr.Tool("x", "", {}, _say, external=True, needs_approval=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list_tools"):
        tr.ApprovalToolset(_say)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected an object of arguments"):
        tr.Approve([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not plain JSON"):
        tr.Approve({"when": object()})
    with pytest.raises(TypeError, match="reason"):
        tr.Deny(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="arguments_hash"):
        tr.Approve(arguments_hash=5)  # type: ignore[arg-type]


def test_an_edit_is_a_copy() -> None:
    given = {"amount": [1]}
    word = tr.Approve(given)
    given["amount"].append(2)
    assert word.arguments == {"amount": [1]}


def test_a_blank_reason_gets_words() -> None:
    assert tr.Deny("  ").reason == "it was not approved."


@pytest.mark.parametrize("name", ["pay", "human"])
async def test_calls_that_run_alone_are_denied_where_nobody_can_be_asked(name: str) -> None:
    desk = Desk()
    desk.agent.add_tool(tr.external_tool("human", "Asks a human.", {"type": "object"}))
    message = tr.Message.assistant(tool_calls=[call("free", id="c1", x=1), call(name, id="c2")])
    async with desk.agent:
        results = await desk.agent.run_tools(message)
    assert [each.status.value for each in results.tool_results] == ["ok", "denied"]
    assert desk.ran == [("free", 1)]


async def test_calls_that_run_alone_are_asked_about() -> None:
    desk = Desk(approver=says(tr.Approve({"amount": 3})))
    message = tr.Message.assistant(tool_calls=[pay("c1", 5)])
    async with desk.agent:
        await desk.agent.run_tools(message)
    assert desk.ran == [("pay", 3)]


# --- events -----------------------------------------------------------------------


async def test_observers_are_told_what_is_asked_and_decided() -> None:
    decisions: dict[str, tr.Decision] = {
        "c1": tr.Approve({"amount": 1}),
        "c2": tr.Deny("no."),
        "c3": tr.Approve(),
    }

    async def approver(request: tr.ApprovalRequest) -> tr.Decision:
        return decisions[request.call.id]

    desk = Desk([pay("c1"), pay("c2"), pay("c3")], approver=approver)
    await desk.go()
    asked = [e for e in desk.events if type(e) is ev.ApprovalRequested]
    assert sorted((e.call.id, e.arguments["amount"]) for e in asked) == [
        ("c1", 5),
        ("c2", 5),
        ("c3", 5),
    ]
    told = [e for e in desk.events if type(e) is ev.ApprovalDecided]
    decided = {e.call_id: (e.verdict, e.arguments, e.reason) for e in told}
    assert decided == {
        "c1": ("approved", {"amount": 1}, None),
        "c2": ("denied", None, "no."),
        "c3": ("approved", None, None),
    }
    for call_id in ("c1", "c3"):
        kinds = [type(e) for e in desk.events if _is_about(e, call_id)]
        assert kinds == [ev.ApprovalRequested, ev.ApprovalDecided, ev.CallStarted, ev.CallFinished]


def _is_about(event: ev.Event, call_id: str) -> bool:
    match event:
        case ev.ApprovalRequested(call=asked) | ev.CallStarted(call=asked):
            return asked.id == call_id
        case ev.ApprovalDecided(call_id=found):
            return found == call_id
        case ev.CallFinished(result=result):
            return result.call_id == call_id
        case _:
            return False


async def test_without_calls_that_wait_nothing_of_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> Awaitable[None]:
        raise AssertionError("a guarded batch was made")

    monkeypatch.setattr("trio_runner._shell.guarded.GuardedBatch", fail)
    desk = Desk([call("free", id="c1", x=1)], approver=says(tr.Approve()), tools=[])
    desk.agent.add_tool(desk.free)
    await desk.go()
    assert desk.ran == [("free", 1)]
