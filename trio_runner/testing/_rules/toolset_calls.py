"""Rules of `check_toolset` on calls: alone, cancelled, side by side, and in a turn."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

import trio_runner._core.values as v
from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.odd_records import difference
from trio_runner.testing._rules.toolset_kit import NO_CALLS, Call, ToolsetKit, make_call
from trio_runner.testing._rules.turn import WitnessedTurn
from trio_runner.testing._scripted import ScriptedModel
from trio_runner.testing._trials import Ending, Span, Usual, check_run, shown, then_look

#: Seconds for a call to end once its toolset was left: what is on its way may arrive.
_END_SECONDS = 0.25


def _has_calls(kit: ToolsetKit, found: Findings) -> bool:
    if not kit.calls:
        found.not_applicable(NO_CALLS)
    return bool(kit.calls)


def calls_return(kit: ToolsetKit, found: Findings) -> None:
    """Each call gives a result that is no error."""
    if not _has_calls(kit, found):
        return

    async def body(toolset: Any) -> None:
        for call in kit.calls:
            result = await make_call(toolset, call)
            if result.is_error:
                found.violated(
                    f"{_name_of(call)} gave the status {result.status.value}: {shown(result.text)}",
                    expected="a result: the calls that were given are to work",
                    remedy="give calls that work, or see why this one fails",
                )

    kit.inside(found, "making the calls one by one", body)


def a_cancelled_call_leaves(kit: ToolsetKit, found: Findings) -> None:
    """A cancel at every step of each call leaves it, and soon."""
    if not _has_calls(kit, found):
        return
    for call in kit.calls:
        usual, what = Usual(), _name_of(call)

        async def body(toolset: Any, span: Span, call: Call = call) -> None:
            async def look() -> None:
                """What comes after is another rule's."""

            async with toolset:
                await then_look(lambda: span.over(lambda: make_call(toolset, call)), look, found)

        def check(ending: Ending, span: Span, usual: Usual = usual, what: str = what) -> None:
            if not span.began:
                if ending.fault_time is None:
                    check_run(ending, found, "entering")
            elif span.check_left(ending, found, what, kit.leaves_within):
                span.check_errors(ending, found, what)
                span.check_let_through(ending, found, what, usual)

        kit.sweep(body, check)


def it_works_after_a_cancelled_call(kit: ToolsetKit, found: Findings) -> None:
    """All calls give what they gave before, after one of them was cancelled at any step."""
    if not _has_calls(kit, found):
        return
    usual = _usual_results(kit, found)
    for call in kit.calls:
        #: What the calls of the newest run gave, by their number.
        after: dict[int, v.ToolResult] = {}

        async def body(
            toolset: Any, span: Span, call: Call = call, after: dict[int, v.ToolResult] = after
        ) -> None:
            after.clear()

            async def look() -> None:
                for number, each in enumerate(kit.calls):
                    after[number] = await make_call(toolset, each)

            async with toolset:
                await then_look(lambda: span.over(lambda: make_call(toolset, call)), look, found)

        def check(
            ending: Ending,
            _: Span,
            cancelled: Call = call,
            after: dict[int, v.ToolResult] = after,
        ) -> None:
            check_run(ending, found, "calling after a cancelled call")
            for number, result in after.items():
                if ending.fault_time is None:
                    usual[number].append(result)
                else:
                    _check_as_before(found, cancelled, kit.calls[number], usual[number], result)

        kit.sweep(body, check)


def _usual_results(kit: ToolsetKit, found: Findings) -> list[list[v.ToolResult]]:
    """What each call gives when nothing is cancelled, twice in each run."""
    usual: list[list[v.ToolResult]] = [[] for _ in kit.calls]

    async def body(toolset: Any) -> None:
        for _ in range(2):
            for number, call in enumerate(kit.calls):
                usual[number].append(await make_call(toolset, call))

    kit.inside(found, "making the calls one by one", body)
    return usual


def _check_as_before(
    found: Findings, cancelled: Call, call: Call, usual: list[v.ToolResult], result: v.ToolResult
) -> None:
    after = f"after a cancelled call of {cancelled[0]!r}, {_name_of(call)}"
    if result.is_error and not any(each.is_error for each in usual):
        found.violated(
            f"{after} gave {shown(result.text)}",
            expected="the other calls, and the next ones, to work as before",
            remedy="let a cancelled call leave the connection as it found it",
        )
        return
    if not usual:  # the calls do not work at all, which is told
        return
    # Of a call whose result changes by itself, such as the time, less can be said.
    changes = any(difference(usual[0], each) is not None for each in usual)
    look = _outline if changes else _whole
    problem = difference(look(usual[0]), look(result), "result")
    if problem is not None and all(look(each) != look(result) for each in usual):
        found.violated(
            f"{after} gave another result than before: {problem}",
            expected="the result that it gives when nothing was cancelled",
            remedy="match answers to calls by an id, and drop the answer to a cancelled call; "
            "or make the connection anew",
        )


def calls_do_not_mix(kit: ToolsetKit, found: Findings) -> None:
    """Calls side by side give what each gives alone."""
    if not _has_calls(kit, found):
        return

    async def body(toolset: Any) -> None:
        calls = kit.calls * 2
        alone = [[await make_call(toolset, call) for call in calls] for _ in range(2)]
        together: dict[int, v.ToolResult] = {}

        async def one(number: int) -> None:
            together[number] = await make_call(toolset, calls[number])

        async with trio.open_nursery() as nursery:
            for number in range(len(calls)):
                nursery.start_soon(one, number)
        for number, call in enumerate(calls):
            first, second = alone[0][number], alone[1][number]
            # A call whose result changes by itself, such as the time, shows less.
            if difference(first, second) is not None:
                first, result = _outline(first), _outline(together[number])
            else:
                result = together[number]
            problem = difference(first, result, "result")
            if problem is not None:
                found.violated(
                    f"{_name_of(call)}, beside {len(calls) - 1} other calls: {problem}",
                    expected="the result of the call alone",
                    remedy="match answers to calls by an id; keep nothing of a call in the toolset",
                )

    kit.inside(found, "making the calls side by side", body)


def _whole(result: v.ToolResult) -> object:
    return result


def _outline(result: v.ToolResult) -> object:
    return (result.status, [type(block).__name__ for block in result.content])


def listing_goes_on_during_a_call(kit: ToolsetKit, found: Findings) -> None:
    """The tools are listed while a call is in flight, without waiting for it."""
    if not _has_calls(kit, found):
        return

    async def body(toolset: Any) -> None:
        for call in kit.calls:
            before = [tool.name for tool in await toolset.list_tools()]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make_call, toolset, call)
                await trio.testing.wait_all_tasks_blocked()
                span = Span()
                with trio.move_on_after(kit.leaves_within) as scope:
                    await span.over(toolset.list_tools)
            if scope.cancelled_caught:
                found.violated(
                    f"list_tools took over {kit.leaves_within:g} s while {_name_of(call)} ran",
                    expected="an answer at once: it is asked before each model call",
                    remedy="do not hold a lock over a call; answer from what is known",
                )
            elif [tool.name for tool in span.value] != before:
                found.violated(
                    f"list_tools gave other tools while {_name_of(call)} ran",
                    expected="the same tools",
                    remedy="do not change the list because of a call",
                )

    kit.inside(found, "listing during a call", body)


def leaving_ends_calls_in_flight(kit: ToolsetKit, found: Findings) -> None:
    """Leave while a call is in flight: the close is bounded, and the call ends."""
    if not _has_calls(kit, found):
        return
    for call in kit.calls:

        async def body(toolset: Any, call: Call = call) -> None:
            ended = trio.Event()

            async def one() -> None:
                try:
                    await make_call(toolset, call)
                except Exception:  # noqa: BLE001, S110  however it ends, it ends
                    pass
                finally:
                    ended.set()

            async with trio.open_nursery() as nursery:
                async with toolset:
                    nursery.start_soon(one)
                    await trio.testing.wait_all_tasks_blocked()
                    began = trio.current_time()
                took = trio.current_time() - began
                if took > kit.leaves_within + 1e-6:
                    found.violated(
                        f"leaving took {took:g} s while {_name_of(call)} was in flight",
                        expected=f"at most {kit.leaves_within:g} s",
                        remedy="end the calls in flight; do not wait for their answers",
                    )
                with trio.move_on_after(_END_SECONDS):
                    await ended.wait()
                if not ended.is_set():
                    found.violated(
                        f"{_name_of(call)} was in flight when the toolset was left, and goes on",
                        expected="the call to end, by an error that says so",
                        remedy="keep a cancel scope for each call, and cancel them in __aexit__",
                    )
                nursery.cancel_scope.cancel()

        kit.use(found, f"leaving while {_name_of(call)} is in flight", body)


def a_turn_keeps_the_contract(kit: ToolsetKit, found: Findings) -> None:
    """A turn of an agent with this toolset, cancelled at every step."""
    if not _has_calls(kit, found):
        return
    asked = [v.ToolCall(f"c{n}", name, args) for n, (name, args) in enumerate(kit.calls)]

    async def body(toolset: Any, span: Span) -> None:
        model = ScriptedModel([asked, "Done."])
        turn = WitnessedTurn(model=model, toolset=toolset, grace=kit.leaves_within)

        async def look() -> None:
            turn.check(found)
            for result in turn.results() if span.returned else ():
                if result.is_error:
                    found.violated(
                        f"in an agent's turn, {result.name!r} gave {result.status.value}: "
                        f"{shown(result.text)}",
                        expected="what the call gives outside a turn",
                        remedy="do not depend on the id of a call, or on who makes it",
                    )

        await then_look(lambda: span.over(lambda: turn.take("go")), look, found)

    def check(ending: Ending, span: Span) -> None:
        if span.check_left(ending, found, "an agent's turn", 2 * kit.leaves_within):
            span.check_errors(ending, found, "an agent's turn")

    kit.sweep(body, check)


def _name_of(call: Call) -> str:
    return f"the call of {call[0]!r}"
