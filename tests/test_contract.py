"""Each check of the contract finds the lie that it is there for, and nothing in the truth.

The evidence is that of a real turn; a lie changes one thing in it. A check that
cannot fail is a defect, so every promise has lies, and each is told by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import trio

import trio_runner as tr
from trio_runner._core.cap import cap_result
from trio_runner._core.convert import result_from_value
from trio_runner.testing import AgentTurn, Outcome, call, contract, replay, sweep
from trio_runner.testing.contract import CONTRACT, Evidence, check_contract
from trio_runner.testing.reference import ReferenceTurn


def evidence_of(*plan: tuple[str, int], drive: Any = "until_done", **settings: Any) -> Evidence:
    """What one position of the reference turn leaves behind."""
    turn = ReferenceTurn(drive, **settings)
    outcome = replay(turn, *plan)
    assert outcome.violations == ()
    return turn.evidence(outcome)


def interrupted() -> Evidence:
    """The first cancel that cuts a tool short."""
    for step in range(100):
        evidence = evidence_of(("cancel", step), delay=0.5)
        if any(each.status is tr.CallStatus.INTERRUPTED for each in evidence.results.values()):
            return evidence
    raise AssertionError("no cancel found a running tool")


def seen(evidence: Evidence, **changes: Any) -> Evidence:
    """The evidence with another outcome."""
    assert evidence.outcome is not None
    return attrs.evolve(evidence, outcome=attrs.evolve(evidence.outcome, **changes))


def noted(evidence: Evidence, **changes: Any) -> Evidence:
    """The evidence with another ledger."""
    return attrs.evolve(evidence, ledger=attrs.evolve(evidence.ledger, **changes))


def results_changed(
    evidence: Evidence, change: Callable[[tr.ToolResult], tr.ToolResult]
) -> tuple[tr.Message, ...]:
    return tuple(
        attrs.evolve(message, tool_results=tuple(map(change, message.tool_results)))
        for message in evidence.history
    )


def with_status(status: tr.CallStatus) -> Callable[[tr.ToolResult], tr.ToolResult]:
    return lambda result: attrs.evolve(result, status=status)


def with_statuses(status: tr.CallStatus) -> Callable[[Evidence], Evidence]:
    def lie(evidence: Evidence) -> Evidence:
        history = results_changed(evidence, with_status(status))
        return turn_changed(attrs.evolve(evidence, history=history, stored=None), history)

    return lie


def ended(evidence: Evidence, reason: tr.EndReason) -> Evidence:
    assert evidence.last_turn is not None
    return attrs.evolve(evidence, last_turn=attrs.evolve(evidence.last_turn, end_reason=reason))


def turn_changed(evidence: Evidence, messages: Sequence[tr.Message]) -> Evidence:
    assert evidence.last_turn is not None
    return attrs.evolve(evidence, last_turn=attrs.evolve(evidence.last_turn, messages=messages))


def given(evidence: Evidence, *messages: tr.Message) -> Evidence:
    return noted(evidence, handed_out=[(each, repr(each)) for each in messages])


def saying(text: str) -> Callable[[Evidence], Evidence]:
    """An interrupted call with another text."""

    def lie(_: Evidence) -> Evidence:
        evidence = interrupted()
        block = (tr.TextContent(text),)

        def change(result: tr.ToolResult) -> tr.ToolResult:
            cut = result.status is tr.CallStatus.INTERRUPTED
            return attrs.evolve(result, content=block) if cut else result

        history = results_changed(evidence, change)
        return turn_changed(attrs.evolve(evidence, history=history, stored=None), history)

    return lie


def raised(error: BaseException) -> Callable[[Evidence], Evidence]:
    return lambda evidence: seen(evidence, raised=error, value=None)


def a_cancelled() -> trio.Cancelled:
    """A real one: trio makes no other."""
    caught: list[trio.Cancelled] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                caught.append(error)
                raise

    trio.run(main)
    return caught[0]


def handed_out_and_edited(evidence: Evidence) -> Evidence:
    message = evidence.history[-1]
    return noted(evidence, handed_out=[(message, repr(tr.Message.assistant("as it was")))])


def lost_connection(evidence: Evidence) -> Evidence:
    """Call c1 was interrupted, and its tool said so itself: no lie."""
    said = tr.ToolResult(content="the connection was lost", status=tr.CallStatus.INTERRUPTED)
    made = result_from_value(said, call_id="c1", name="tidy", duration=None)
    history = results_changed(evidence, lambda each: made if each.call_id == "c1" else each)
    evidence = noted(evidence, returned={**evidence.ledger.returned, "c1": said})
    return turn_changed(attrs.evolve(evidence, history=history, stored=None), history)


def and_all_say(status: tr.CallStatus) -> Callable[[Evidence], Evidence]:
    """The same, and then every result has that status."""

    def lie(evidence: Evidence) -> Evidence:
        return with_statuses(status)(lost_connection(evidence))

    return lie


Lie = Callable[[Evidence], Evidence]

#: The promise, the lie, and a word of the sentence that must tell it.
LIES: list[tuple[str, str, Lie]] = [
    ("C1", "a model call began", lambda e: noted(e, late=["a model call"])),
    ("C1", "cancel was swallowed", lambda e: seen(e, cancel_visible=True)),
    ("C1", "nobody had cancelled", raised(a_cancelled())),
    ("C2", "a request", lambda e: noted(e, bad_histories=["a request: an open call"])),
    ("C2", "the history", lambda e: attrs.evolve(e, history=e.history[:2], stored=None)),
    ("C2", "does not open", lambda e: attrs.evolve(e, stored=(e.stored or ())[2:])),
    ("C2", "has no result", lambda e: noted(e, entered={*e.ledger.entered, "c9"})),
    ("C3", "returned 'lost'", lambda e: noted(e, returned={**e.ledger.returned, "c1": "lost"})),
    ("C3", "returned {'a': 1}", lambda e: noted(e, returned={**e.ledger.returned, "c1": {"a": 1}})),
    ("C3", "raised", lambda e: noted(e, raised={**e.ledger.raised, "c1": ValueError("x")})),
    ("C3", "memory and session", lambda e: attrs.evolve(e, history=(*e.history, *e.history[:1]))),
    ("C3", "commits", lambda e: noted(e, ahead=["a model call began while 1 commits …"])),
    ("C4", "was entered", with_statuses(tr.CallStatus.NOT_STARTED)),
    ("C4", "was entered", with_statuses(tr.CallStatus.DENIED)),
    ("C4", "never entered", lambda e: with_statuses(tr.CallStatus.ERROR)(noted(e, entered=set()))),
    (
        "C4",
        "never entered",
        lambda e: with_statuses(tr.CallStatus.INTERRUPTED)(noted(e, entered=set())),
    ),
    ("C4", "did not return", lambda e: noted(e, returned={})),
    ("C4", "neither raised nor returned", lambda e: noted(e, raised={})),
    ("C4", "nothing in this turn", with_statuses(tr.CallStatus.TIMED_OUT)),
    ("C4", "nothing in this turn", with_statuses(tr.CallStatus.UNKNOWN_AFTER_CRASH)),
    ("C4", "the turn was answered", with_statuses(tr.CallStatus.INTERRUPTED)),
    ("C4", "c2 has status interrupted, and the turn", and_all_say(tr.CallStatus.INTERRUPTED)),
    ("C4", "returned a result of status interrupted", and_all_say(tr.CallStatus.OK)),
    ("C4", "returned a result of status interrupted", and_all_say(tr.CallStatus.CANCELLED)),
    ("C4", "its text says", saying("Denied: the user refused this call. It had no effect.")),
    ("C4", "its text says", saying("Interrupted: it ran. It was not run and had no effect.")),
    ("C5", "left running", lambda e: seen(e, left_alive=("a task",))),
    ("C5", "never awaited", lambda e: seen(e, trouble=("RuntimeWarning: never awaited",))),
    ("C5", "still running", lambda e: noted(e, left=set())),
    ("C5", "not freed", lambda e: attrs.evolve(e, busy=True)),
    ("C5", "left open", lambda e: noted(e, open_sessions=1)),
    ("C5", "run loop broke", lambda e: seen(e, broken=trio.TrioInternalError("broken"))),
    ("C6", "to leave", lambda e: noted(e, stopped_at=1.0, left_at=6.1)),
    ("C6", "to leave", lambda e: seen(noted(e, left_at=9.0), leave_time=5.1)),
    ("C6", "gave up", lambda e: noted(e, gave_up=True)),
    ("C6", "did not end", lambda e: seen(e, hung=True)),
    ("C6", "not durable", lambda e: noted(e, open_at_leaving=1)),
    ("C6", "were lost", lambda e: noted(e, failed_commits=1)),
    ("C6", "was not ended", lambda e: attrs.evolve(e, stored=(e.stored or ())[:-1])),
    ("C7", "was swallowed", lambda e: seen(e, interrupts=1)),
    ("C7", "was pending", lambda e: seen(e, interrupts=1, kept_interrupt=True)),
    ("C7", "did not leave bare", raised(BaseExceptionGroup("g", [KeyboardInterrupt()]))),
    (
        "C7",
        "did not leave bare",
        lambda e: seen(raised(BaseExceptionGroup("g", [a_cancelled()]))(e), cancel_visible=True),
    ),
    ("C7", "did not leave bare", raised(ExceptionGroup("g", [ValueError()]))),
    ("C7", "was lost", lambda e: noted(e, planted=[ValueError("planted")])),
    ("C7", "of nobody", raised(ZeroDivisionError())),
    ("C8", "did not end", lambda e: attrs.evolve(e, last_turn=None)),
    ("C8", "the answer is there", lambda e: ended(e, tr.EndReason.INTERRUPTED)),
    ("C8", "is no answer", lambda e: turn_changed(e, e.turn_messages[:-1])),
    ("C8", "no turn was run", lambda e: attrs.evolve(e, last_turn=None, history=())),
    ("C8", "handed out", lambda e: noted(e, handed_out=[])),
    ("C8", "handed out", lambda e: noted(e, handed_out=[*e.ledger.handed_out] * 2)),
    ("C8", "handed out", lambda e: given(e, tr.Message.assistant("another answer"))),
    ("C8", "the run returned", lambda e: attrs.evolve(e, left_early=True)),
    ("C9", "changed after", handed_out_and_edited),
]


@pytest.mark.parametrize(("promise", "words", "lie"), LIES, ids=[f"{p} {w}" for p, w, _ in LIES])
def test_a_lie_is_told_by_the_name_of_its_promise(promise: str, words: str, lie: Lie) -> None:
    found = list(check_contract(lie(evidence_of())))
    assert any(text.startswith(f"{promise}: ") and words in text for text in found), found


def test_every_promise_has_a_check_and_every_check_a_lie() -> None:
    assert list(CONTRACT) == [f"C{number}" for number in range(1, 10)]
    assert {promise for promise, _, _ in LIES} == set(CONTRACT)


@pytest.mark.parametrize("drive", ["until_done", "async_for", "break", "generate"])
def test_nothing_is_found_in_the_truth(drive: str) -> None:
    assert list(check_contract(evidence_of(drive=drive))) == []
    assert list(check_contract(interrupted())) == []


def test_a_tool_may_say_itself_that_its_call_was_interrupted_and_the_turn_goes_on() -> None:
    evidence = lost_connection(evidence_of())
    assert evidence.last_turn is not None
    assert evidence.last_turn.end_reason is tr.EndReason.ANSWERED
    assert evidence.results["c1"].status is tr.CallStatus.INTERRUPTED
    assert list(check_contract(evidence)) == []


def test_a_tool_that_loses_its_connection_is_swept_without_a_word() -> None:
    async def ask() -> tr.ToolResult:
        await trio.lowlevel.checkpoint()
        return tr.ToolResult(content="lost", status=tr.CallStatus.INTERRUPTED)

    def make(journal: Any = None, session: Any = None, model: Any = None) -> tr.ToolAgent:
        return tr.ToolAgent("a", model=model, tools=[ask], journal=journal, session=session)

    turn = AgentTurn(make, [[call("ask"), call("ask")], "the answer"])
    report = sweep(turn, faults=["cancel", "crash"], seeds=[0], max_positions=6)
    report.raise_if_failed()
    assert report.positions == 12


def test_a_single_check_can_be_used_by_itself_without_a_sweep() -> None:
    evidence = attrs.evolve(evidence_of(), outcome=None)
    for check in CONTRACT.values():
        assert list(check(evidence)) == []
    lost = noted(evidence, returned={"c1": "something else"})
    assert [text.partition(";")[0] for text in contract.work_kept(lost)] == [
        "call c1 returned 'something else'",
        "call c1 returned 'something else'",  # in memory, and stored
    ]
    assert list(check_contract(lost, {"C9": contract.values_frozen})) == []


def test_an_interrupt_at_a_line_may_count_a_call_as_started() -> None:
    evidence = with_statuses(tr.CallStatus.INTERRUPTED)(noted(evidence_of(), entered=set()))
    evidence = noted(evidence, returned={}, raised={})
    assert any("never entered" in text for text in contract.record_true(evidence))
    safe = attrs.evolve(evidence, exact_starts=False)
    assert not any("never entered" in text for text in contract.record_true(safe))


def test_the_time_of_a_tools_own_cleanup_is_the_tools() -> None:
    evidence = noted(evidence_of(), stopped_at=1.0, left_at=20.0, last_tool_left_at=16.0)
    assert list(contract.leaving_bounded(evidence)) == []


def test_odd_values_are_compared_as_the_library_converts_them() -> None:
    def result_of(value: object, max_bytes: int | None = None) -> Evidence:
        evidence = evidence_of()
        result = evidence.results["c1"]
        made = result_from_value(value, call_id="c1", name="tidy", duration=None)
        if max_bytes is not None:
            made = cap_result(made, max_bytes)
        history = results_changed(
            evidence, lambda each: made if each.call_id == result.call_id else each
        )
        lied = noted(evidence, returned={**evidence.ledger.returned, "c1": value})
        lied = attrs.evolve(lied, history=history, stored=None, max_result_bytes=max_bytes)
        return turn_changed(lied, history)

    for value in ("", "a\ud800b", None, {"a": [1]}, b"bytes", [1, 2], 3.5, object()):
        assert list(contract.work_kept(result_of(value))) == []
    assert list(contract.work_kept(result_of("long" * 1000, 1024))) == []
    assert list(contract.work_kept(result_of(iter([1])))) == []


def test_an_error_that_was_told_is_not_lost() -> None:
    planted = ValueError("planted")
    wrapped = tr.JournalError("the commit failed")
    wrapped.__cause__ = planted
    told = noted(evidence_of(), planted=[planted], told=[wrapped])
    assert list(contract.errors_told(told)) == []


def test_own_errors_may_leave() -> None:
    evidence = raised(ZeroDivisionError())(evidence_of())
    mine = attrs.evolve(evidence, own_errors=(ZeroDivisionError,))
    assert list(contract.errors_told(mine)) == []
    group = raised(ExceptionGroup("mine", [ZeroDivisionError()]))(evidence_of())
    assert list(contract.errors_told(attrs.evolve(group, own_errors=(ExceptionGroup,)))) == []


def test_a_failing_journal_may_hold_less_than_memory_and_must_still_open() -> None:
    evidence = evidence_of()
    assert evidence.stored is not None
    shorter = attrs.evolve(evidence, stored=evidence.stored[:-3], journal_failed=True)
    assert list(check_contract(shorter)) == []
    torn = attrs.evolve(evidence, stored=evidence.stored[3:], journal_failed=True)
    assert any(text.startswith("C2: the session does not open") for text in check_contract(torn))


def test_the_promises_to_hold_can_be_chosen() -> None:
    class Late(ReferenceTurn):
        """A turn of which C1 is broken at every position."""

        async def run(self) -> object:
            self.ledger.late.append("something")
            return await super().run()

    found = sweep(Late(), faults=["cancel"], seeds=[0], max_positions=3).violations
    assert set(found) == {"C1: something began after the cancel"}
    kept = {name: check for name, check in CONTRACT.items() if name != "C1"}
    assert sweep(Late(checks=kept), faults=["cancel"], seeds=[0], max_positions=3).ok


def test_an_outcome_of_the_engine_is_not_judged_twice() -> None:
    def lossy() -> Any:
        case = ReferenceTurn()()

        async def run() -> None:
            try:
                await case.run()
            except trio.Cancelled:
                pass

        return attrs.evolve(case, run=run)

    outcome: Outcome = replay(lossy, ("cancel", 4))
    assert [text for text in outcome.violations if "swallowed" in text] == [
        "C1: the cancel was swallowed: it returned None"
    ]
