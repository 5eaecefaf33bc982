"""`check_toolset` accepts good toolsets, and each of its rules rejects a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

import attrs
import pytest
import trio

import trio_runner as tr
from trio_runner.testing import TOOLSET_RULES, check_toolset
from trio_runner.testing._rules.toolset_listing import schema_problem

CALLS = [
    ("double", {"number": 4}),
    ("double", {"number": 5}),
    ("greet", {"name": "Ada"}),
]
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}

# --- a good one -------------------------------------------------------------------


class Shelf:
    """Holds a nursery while it is open, and ends its calls when it is left."""

    name: Any = "shelf"
    seconds = 3.0

    def __init__(self) -> None:
        self.scopes: set[trio.CancelScope] = set()
        self.tools: Sequence[Any] = (
            self.tool("double", self.double, NUMBER),
            self.tool("greet", self.greet, {"type": "object"}),
        )
        self.manager: AbstractAsyncContextManager[trio.Nursery]
        self.nursery: trio.Nursery

    def tool(self, name: str, call: Any, schema: Any) -> tr.Tool:
        async def bounded(arguments: tr.JSONObject, context: tr.ToolContext) -> object:
            return await self.run(call, arguments)

        return tr.Tool(name, f"The tool {name}.", schema, bounded)

    async def run(self, call: Any, arguments: tr.JSONObject) -> object:
        with trio.CancelScope() as scope:
            self.scopes.add(scope)
            try:
                return await call(arguments)
            finally:
                self.scopes.discard(scope)
        raise tr.ToolError("the shelf was closed during the call")

    async def double(self, arguments: Any) -> object:
        await trio.sleep(self.seconds)
        return arguments["number"] * 2

    async def greet(self, arguments: Any) -> object:
        await trio.lowlevel.checkpoint()
        return f"Hello {arguments['name']}"

    async def list_tools(self) -> Sequence[tr.Tool]:
        await trio.lowlevel.checkpoint()
        return self.tools

    async def __aenter__(self) -> Self:
        self.manager = trio.open_nursery()
        self.nursery = await self.manager.__aenter__()
        self.nursery.start_soon(trio.sleep_forever)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        for scope in self.scopes:
            scope.cancel()
        await self.close()
        self.nursery.cancel_scope.cancel()
        return await self.manager.__aexit__(exc_type, exc, traceback)

    async def close(self) -> None:
        """What closing takes; here nothing."""


@pytest.mark.slow
def test_a_good_toolset_keeps_every_promise() -> None:
    report = check_toolset(Shelf, calls=CALLS)
    report.raise_if_failed()
    assert {rule.status for rule in report.rules} == {"ok"}, report.render()
    assert [rule.name for rule in report.rules] == list(TOOLSET_RULES)


def test_a_toolset_can_be_checked_in_real_time() -> None:
    class Quick(Shelf):
        seconds = 0.02

    report = check_toolset(Quick, calls=CALLS[:2], real_time=True, max_positions=4)
    assert {rule.status for rule in report.rules} == {"ok"}, report.render()


def test_without_calls_the_rules_on_calls_say_what_they_need() -> None:
    report = check_toolset(Shelf, seeds=[0])
    notes = {rule.name: rule.note for rule in report.rules if rule.status == "not_applicable"}
    assert len(notes) == 7
    assert all("calls=[(name, arguments)" in note for note in notes.values())
    assert report.ok


def test_a_toolset_may_be_made_by_an_async_function() -> None:
    async def make() -> Shelf:
        await trio.lowlevel.checkpoint()
        return Shelf()

    assert check_toolset(make, calls=CALLS, rules=["calls_return", "name_is_text"]).ok


def test_a_call_of_a_tool_that_is_not_there_is_told() -> None:
    with pytest.raises(
        ValueError, match="calls names the tool 'triple'; the toolset has"
    ) as caught:
        check_toolset(Shelf, calls=[("triple", {})], seeds=[0])
    assert "['double', 'greet']" in str(caught.value)
    with pytest.raises(ValueError, match="calls names the tool 'triple'"):
        check_toolset(Shelf, calls=[("triple", {})], rules=["calls_do_not_mix"], seeds=[0])


class Strict(Shelf):
    async def greet(self, arguments: Any) -> object:
        raise tr.InvalidArgumentsError("name is missing")


def test_a_call_whose_arguments_do_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match=r"'greet' with \{\}, which it refuses: name is missing"):
        check_toolset(Strict, calls=[("greet", {})], seeds=[0])


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ({"double": {"number": 4}}, r"expected \[\(name, arguments\), …\]"),
        ("double", r"calls is 'double'; expected \["),
        (["double"], "calls has 'double'; expected a pair"),
        ([("double", 4)], "expected a pair"),
    ],
)
def test_calls_that_are_no_pairs_are_refused(calls: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        check_toolset(Shelf, calls=calls)


def test_what_makes_no_toolset_is_refused() -> None:
    shelf: Any = Shelf()
    with pytest.raises(TypeError, match="expected a function that makes a toolset"):
        check_toolset(shelf, calls=CALLS)
    wrong: Any = lambda: print  # noqa: E731
    with pytest.raises(ValueError, match="which has no list_tools, __aenter__, __aexit__"):
        check_toolset(wrong, calls=CALLS)


# --- wrong ones -----------------------------------------------------------------


def with_tools(change: Callable[[Shelf], Sequence[Any]]) -> Callable[[], Any]:
    def make() -> Any:
        shelf = Shelf()
        shelf.tools = change(shelf)
        return shelf

    return make


def with_schema(schema: Any) -> Callable[[], Any]:
    return with_tools(lambda shelf: [attrs.evolve(shelf.tools[0], input_schema=schema)])


class Nameless(Shelf):
    name = ""


class Shuffles(Shelf):
    async def list_tools(self) -> Sequence[tr.Tool]:
        self.tools = self.tools[::-1]
        return await super().list_tools()


class MakesNewLists(Shelf):
    async def list_tools(self) -> Sequence[tr.Tool]:
        return list(await super().list_tools())


class StartsAServer(Shelf):
    """Starts something outside the nursery, and forgets it when it is cancelled."""

    async def __aenter__(self) -> Self:
        started = trio.Event()

        async def serve() -> None:
            await started.wait()

        trio.lowlevel.spawn_system_task(serve, name="server")
        await trio.sleep(1)
        started.set()
        return await super().__aenter__()


class SwallowsOnEntering(Shelf):
    async def __aenter__(self) -> Self:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            pass
        return await super().__aenter__()


class ClosesSlowly(Shelf):
    async def close(self) -> None:
        await trio.sleep(60)


class ClosesSlowlyWhenCancelled(Shelf):
    async def close(self) -> None:
        if trio.current_effective_deadline() < 0:
            with trio.CancelScope(shield=True):
                await trio.sleep(60)


class SwallowsErrors(Shelf):
    async def __aexit__(self, *exc_info: object) -> bool | None:
        await super().__aexit__(None, None, None)
        return isinstance(exc_info[1], Exception)


class SwallowsCancel(Shelf):
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            return await super().__aexit__(exc_type, exc, traceback)
        except BaseException:  # noqa: BLE001  that is what is wrong with it
            return True


class LeavesATask(Shelf):
    async def close(self) -> None:
        trio.lowlevel.spawn_system_task(trio.sleep_forever, name="reaper")


class OfOneTask(Shelf):
    task: object = None

    async def __aenter__(self) -> Self:
        self.task = trio.lowlevel.current_task()
        return await super().__aenter__()

    async def list_tools(self) -> Sequence[tr.Tool]:
        if trio.lowlevel.current_task() is not self.task:
            raise RuntimeError("wrong task")
        return await super().list_tools()


class Fails(Shelf):
    async def double(self, arguments: Any) -> object:
        return tr.ToolResult(content="no", status=tr.CallStatus.ERROR)


class Raises(Shelf):
    async def double(self, arguments: Any) -> object:
        raise OSError("away")


class SwallowsInACall(Shelf):
    async def double(self, arguments: Any) -> object:
        try:
            return await super().double(arguments)
        except trio.Cancelled:
            return "cancelled"


class ShieldsACall(Shelf):
    async def double(self, arguments: Any) -> object:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        return arguments["number"] * 2


class BreaksOnCancel(Shelf):
    broken = False

    async def double(self, arguments: Any) -> object:
        if self.broken:
            raise tr.ToolError("the connection is broken")
        try:
            return await super().double(arguments)
        except trio.Cancelled:
            self.broken = True
            raise


class LeavesItsAnswer(Shelf):
    """One connection under a lock; the answer to a cancelled call is the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = trio.Lock()
        self.answers = trio.open_memory_channel[int](100)

    async def double(self, arguments: Any) -> object:
        send, receive = self.answers
        async with self.lock:
            send.send_nowait(arguments["number"] * 2)
            await trio.sleep(self.seconds)
            return await receive.receive()


class Counts(Shelf):
    """Each call has another result, which is nobody's fault."""

    calls = 0

    async def double(self, arguments: Any) -> object:
        self.calls += 1
        await trio.sleep(self.seconds)
        return self.calls


class KeepsACallInItself(Shelf):
    arguments: Any = None

    async def double(self, arguments: Any) -> object:
        self.arguments = arguments
        return await super().double(arguments) and self.arguments["number"] * 2


class ListsUnderALock(Shelf):
    def __init__(self) -> None:
        super().__init__()
        self.lock = trio.Lock()

    async def double(self, arguments: Any) -> object:
        async with self.lock:
            await trio.sleep(8)
        return arguments["number"] * 2

    async def list_tools(self) -> Sequence[tr.Tool]:
        async with self.lock:
            return await super().list_tools()


class HidesABusyTool(Shelf):
    async def list_tools(self) -> Sequence[tr.Tool]:
        await trio.lowlevel.checkpoint()
        return self.tools[1:] if self.scopes else self.tools


class LetsCallsGoOn(Shelf):
    async def run(self, call: Any, arguments: tr.JSONObject) -> object:
        return await call(arguments)


class WaitsForCalls(LetsCallsGoOn):
    running = 0

    async def run(self, call: Any, arguments: tr.JSONObject) -> object:
        self.running += 1
        await trio.sleep(20)
        self.running -= 1
        return "done"

    async def close(self) -> None:
        while self.running:
            await trio.sleep(1)


class BreaksInATurn(Shelf):
    """Takes the id of the call for something of its own."""

    def tool(self, name: str, call: Any, schema: Any) -> tr.Tool:
        async def picky(arguments: tr.JSONObject, context: tr.ToolContext) -> object:
            if context.call_id != "kit":
                raise KeyError(context.call_id)
            return await self.run(call, arguments)

        return tr.Tool(name, f"The tool {name}.", schema, picky)


#: For each rule the wrong toolsets that break it.
WRONG: dict[str, list[Callable[[], Any]]] = {
    "name_is_text": [Nameless],
    "tools_are_well_made": [
        with_tools(lambda shelf: [*shelf.tools, shelf.tools[0]]),
        with_tools(lambda shelf: [*shelf.tools, "double"]),
        with_tools(lambda shelf: [attrs.evolve(shelf.tools[0], description=None)]),
        with_tools(lambda shelf: [attrs.evolve(shelf.tools[0], call="double")]),
        with_tools(lambda shelf: {tool.name: tool for tool in shelf.tools}),  # type: ignore[reportArgumentType]
    ],
    "schemas_are_objects": [
        with_schema({}),
        with_schema({"type": "object", "properties": {"x": {"type": "str"}}}),
        with_schema({"type": "object", "default": object()}),
        with_tools(lambda shelf: [attrs.evolve(shelf.tools[0], output_schema=[])]),
    ],
    "list_is_stable": [Shuffles],
    "a_cancelled_enter_leaves_nothing": [StartsAServer, SwallowsOnEntering],
    "leaving_is_bounded": [ClosesSlowly, ClosesSlowlyWhenCancelled],
    "leaving_lets_errors_through": [SwallowsErrors, SwallowsCancel],
    "nothing_is_left_running": [LeavesATask],
    "any_task_may_use_it": [OfOneTask],
    "calls_return": [Fails, Raises],
    "a_cancelled_call_leaves": [SwallowsInACall, ShieldsACall],
    "it_works_after_a_cancelled_call": [BreaksOnCancel, LeavesItsAnswer],
    "calls_do_not_mix": [KeepsACallInItself],
    "listing_goes_on_during_a_call": [ListsUnderALock, HidesABusyTool],
    "leaving_ends_calls_in_flight": [LetsCallsGoOn, WaitsForCalls],
    "a_turn_keeps_the_contract": [BreaksInATurn],
}
CASES = [
    pytest.param(rule, make, id=f"{rule}-{number}")
    for rule, wrong in WRONG.items()
    for number, make in enumerate(wrong)
]


def test_each_rule_has_a_toolset_that_breaks_it() -> None:
    assert set(WRONG) == set(TOOLSET_RULES)


@pytest.mark.parametrize(("rule", "make"), CASES)
def test_a_wrong_toolset_is_told_which_promise_it_breaks(
    rule: str, make: Callable[[], Any]
) -> None:
    report = check_toolset(make, calls=CALLS, rules=[rule], seeds=[0])
    assert report.status_of(rule) == "violated", report.render()
    promise = f"{rule} ({TOOLSET_RULES[rule].promised_by}): found "
    assert all(text.startswith(promise) for text in report.violations)


def test_an_answer_that_a_cancelled_call_left_behind_is_shown_as_the_next_calls() -> None:
    rule = "it_works_after_a_cancelled_call"
    report = check_toolset(LeavesItsAnswer, calls=CALLS[:2], rules=[rule], seeds=[0])
    assert any("after a cancelled call of 'double'" in text for text in report.violations)
    # double(4) is 8 and double(5) is 10: each is found in the other's place.
    assert "'10', not '8'" in report.render()


def test_a_result_that_changes_by_itself_is_not_held_against_the_toolset() -> None:
    rules = ["it_works_after_a_cancelled_call", "calls_do_not_mix"]
    assert check_toolset(Counts, calls=CALLS, rules=rules, seeds=[0]).ok


def test_a_new_list_each_time_is_advised_against() -> None:
    report = check_toolset(MakesNewLists, rules=["list_is_stable"], seeds=[0])
    assert report.status_of("list_is_stable") == "advice"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "rule", "seconds"),
    [
        (SwallowsInACall, "a_cancelled_call_leaves", 0.3),
        (LeavesATask, "nothing_is_left_running", 0.0),
        (LetsCallsGoOn, "leaving_ends_calls_in_flight", 30.0),
    ],
)
def test_wrong_toolsets_are_found_in_real_time_too(
    wrong: type[Shelf], rule: str, seconds: float
) -> None:
    make = type("Live", (wrong,), {"seconds": seconds})
    report = check_toolset(make, calls=CALLS[:1], rules=[rule], real_time=True)
    assert report.status_of(rule) == "violated", report.render()


# --- schemas ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        NUMBER,
        {"type": "object", "additionalProperties": False, "properties": {"x": True}},
        {"type": "object", "properties": {"type": {"type": ["string", "null"]}}},
        {"type": "object", "$defs": {"a": {"enum": [1, None]}}, "anyOf": [{"$ref": "#/$defs/a"}]},
        {"type": "object", "x-own": [1], "properties": {"l": {"items": {"const": 3}}}},
    ],
)
def test_a_good_schema_has_no_problem(schema: dict[str, Any]) -> None:
    assert schema_problem(schema, must_be_object=True) is None


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (None, "it is a NoneType, no object"),
        ({"type": "array"}, "its type is 'array', not 'object'"),
        ({"type": "object", "properties": []}, "it.properties is [], which holds no schema"),
        ({"type": "object", "properties": {"x": "int"}}, "it.properties.x is 'int', no schema"),
        ({"type": "object", "required": "x"}, "it.required is 'x', no list of names"),
        ({"type": "object", "anyOf": []}, "it.anyOf is [], which holds no schema"),
        (
            {"type": "object", "oneOf": [{"type": 3}]},
            "it.oneOf[0].type is 3, no type of JSON Schema",
        ),
        ({"type": "object", "title": 3}, "it.title is 3, no text"),
        ({"type": "object", "not": {"enum": 3}}, "it.not.enum is 3, no list"),
        ({"type": "object", "not": None}, "it.not is None, which holds no schema"),
    ],
)
def test_a_bad_schema_is_told_where(schema: object, problem: str) -> None:
    assert schema_problem(schema, must_be_object=True) == problem
