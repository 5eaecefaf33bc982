"""Plain functions as tools."""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
import enum
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

import attrs
import pydantic
import pytest
import trio

from trio_runner._core.errors import InternalError, InvalidArgumentsError
from trio_runner._shell.function_tools import function_tool
from trio_runner.abc import Tool, ToolContext


def ident() -> int:
    return threading.get_ident()


@attrs.define(slots=False)
class FakeContext:
    """A context that notes whether the call was claimed."""

    call_id: str = "c1"
    name: str = "tool"
    arguments: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    idempotency_key: str = "1:0:c1"
    attempt: int = 1
    resumed: bool = False
    began: float = 0.0
    may_start: bool = True
    claimed_in: list[int] = attrs.field(factory=list[int])
    on_claim: Callable[[], None] = lambda: None

    def claim_start(self) -> bool:
        self.claimed_in.append(threading.get_ident())
        self.on_claim()
        return self.may_start

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None: ...

    def emit(self, value: object) -> None: ...

    def attach(self, *content: Any) -> None: ...


async def call(tool: Tool, /, **arguments: Any) -> Any:
    return await tool.call(arguments, FakeContext())


async def refusal(tool: Tool, /, **arguments: Any) -> str:
    with pytest.raises(InvalidArgumentsError) as caught:
        await call(tool, **arguments)
    return str(caught.value)


# --- what the model is told -----------------------------------------------------


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@dataclasses.dataclass
class Range:
    first: int
    last: int


class Place(pydantic.BaseModel):
    city: str
    country: str = "NO"


async def forecast(place: Place, days: int = 3, *, unit: Unit = Unit.CELSIUS) -> str:
    """Tell the weather.

    It may rain.

    Args:
        place: Where.
        days (int): How many days,
            from today.
        unit: In what unit.

    Returns:
        One line a day.
    """
    return f"{place.city} {place.country} {days} {unit.value}"


def test_name_description_and_schema_come_from_the_function() -> None:
    tool = function_tool(forecast)

    assert tool.name == "forecast"
    assert tool.description == "Tell the weather.\n\nIt may rain.\n\nReturns: One line a day."
    assert tool.input_schema["type"] == "object"
    assert tool.input_schema["required"] == ["place"]
    assert tool.input_schema["additionalProperties"] is False
    properties = tool.input_schema["properties"]
    assert properties["days"] == {
        "type": "integer", "default": 3, "description": "How many days,\nfrom today."
    }  # fmt: skip
    assert properties["unit"]["default"] == "celsius"
    assert properties["place"]["description"] == "Where."
    assert "Place" in tool.input_schema["$defs"]
    json.dumps(tool.input_schema, allow_nan=False)


def numpy_style(x: int, y: int) -> None:
    """Add.

    Parameters
    ----------
    x : int
        The first.
    y
        The second.
    """


def sphinx_style(x: int, y: int) -> None:
    """Add.

    :param x: The first.
    :param int y: The second.
    """


def google_style(x: int, y: int) -> None:
    """Add.

    Args:
        x: The first.
        y (int): The second.

    Raises:
        ValueError: never.
    """


@pytest.mark.parametrize("function", [numpy_style, sphinx_style, google_style])
def test_docstrings_of_three_styles_are_read_in_silence(
    function: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    tool = function_tool(function)

    assert tool.description == "Add."
    assert tool.input_schema["properties"]["x"]["description"] == "The first."
    assert tool.input_schema["properties"]["y"]["description"] == "The second."
    assert caplog.records == []


def test_a_note_for_the_reader_stays_in_the_description() -> None:
    def search() -> None:
        """Search.

        Note:
            Call it once.
        """

    assert function_tool(search).description == "Search.\n\nNote: Call it once."


def test_options_win_over_what_was_read() -> None:
    limiter = trio.CapacityLimiter(1)

    tool = function_tool(
        forecast, name="weather", description="d", title="Weather", timeout=2.5, sequential=True,
        idempotent=True, limiter=limiter, meta={"k": 1},
    )  # fmt: skip

    assert (tool.name, tool.description, tool.title) == ("weather", "d", "Weather")
    assert (tool.timeout, tool.sequential, tool.idempotent) == (2.5, True, True)
    assert tool.limiter is limiter
    assert tool.meta == {"k": 1}


def test_a_text_in_the_annotation_wins_over_the_docstring() -> None:
    def f(x: Annotated[int, pydantic.Field(description="mine", ge=2)]) -> None:
        """F.

        Args:
            x: theirs
        """

    assert function_tool(f).input_schema["properties"]["x"] == {
        "type": "integer", "minimum": 2, "description": "mine"
    }  # fmt: skip


def test_a_function_without_hints_takes_any_json_value() -> None:
    def f(x, y=None): ...  # type: ignore[no-untyped-def]

    tool = function_tool(f)  # pyright: ignore[reportUnknownArgumentType]

    assert tool.input_schema["properties"] == {"x": {}, "y": {"default": None}}
    assert tool.input_schema["required"] == ["x"]


def test_a_function_without_parameters_has_an_empty_object_as_schema() -> None:
    def f() -> None: ...

    assert function_tool(f).input_schema == {
        "type": "object", "properties": {}, "additionalProperties": False
    }  # fmt: skip


async def test_parameters_may_have_any_name() -> None:
    async def f(_x: int, self: int, model_config: int, copy: int, values: int) -> list[int]:
        return [_x, self, model_config, copy, values]

    tool = function_tool(f)

    assert await call(tool, _x=1, self=2, model_config=3, copy=4, values=5) == [1, 2, 3, 4, 5]


async def test_a_default_that_json_cannot_show_is_still_the_default() -> None:
    default = object()

    async def f(x: Any = default) -> Any:
        return x

    tool = function_tool(f)

    assert "default" not in tool.input_schema["properties"]["x"]
    assert await call(tool) is default


async def test_defaults_given_by_pydantic_fields_work() -> None:
    async def f(
        x: int = pydantic.Field(3, ge=1),
        y: Annotated[int, pydantic.Field(default=4)] = 5,
        z: list[int] = pydantic.Field(default_factory=list),  # noqa: B008  pydantic's own way
    ) -> list[Any]:
        return [x, y, z]

    tool = function_tool(f)

    assert tool.input_schema["properties"]["x"] == {"type": "integer", "minimum": 1, "default": 3}
    assert await call(tool) == [3, 5, []]
    assert "greater than or equal to 1" in await refusal(tool, x=0)


async def test_null_is_taken_where_the_default_is_none() -> None:
    async def f(x: int = None, y: Annotated[int, pydantic.Field(ge=1)] = None) -> Any:  # type: ignore[assignment]  # noqa: RUF013  what is tested
        return (x, y)

    tool = function_tool(f)

    assert await call(tool, x=None, y=None) == (None, None)
    assert await call(tool, x=3, y="4") == (3, 4)


# --- arguments ------------------------------------------------------------------


async def test_arguments_are_coerced_to_the_hints() -> None:
    async def f(
        n: int, when: dt.date, unit: Unit, span: Range, pair: tuple[int, str], tags: set[str],
        kind: Literal["a", "b"], place: Place | None = None,
    ) -> list[Any]:  # fmt: skip
        return [n, when, unit, span, pair, tags, kind, place]

    got = await call(
        function_tool(f), n="3", when="2026-11-30", unit="kelvin", span={"first": 1, "last": 2},
        pair=[1, "x"], tags=["a", "a"], kind="b", place={"city": "Oslo"},
    )  # fmt: skip
    assert got == [
        3, dt.date(2026, 11, 30), Unit.KELVIN, Range(1, 2), (1, "x"), {"a"}, "b", Place(city="Oslo")
    ]  # fmt: skip


async def test_a_class_local_to_the_maker_is_found_where_the_function_uses_it() -> None:
    class Local(pydantic.BaseModel):
        n: int

    async def f(x: Local) -> Local:
        return Local(n=x.n + 1)

    assert await call(function_tool(f), x={"n": 1}) == Local(n=2)


async def test_absent_arguments_get_the_very_default_of_the_function() -> None:
    default: list[int] = []

    async def f(x: list[int] = default) -> list[int]:
        return x

    assert await call(function_tool(f)) is default


async def test_what_does_not_fit_is_refused_in_words_for_the_model() -> None:
    ran: list[int] = []

    async def f(n: int, places: list[Place]) -> None:
        ran.append(1)

    text = await refusal(
        function_tool(f), n="many", places=[{"city": "Oslo"}, {"country": "SE"}], extra=1
    )

    assert "'f'" in text
    assert "- n: Input should be a valid integer" in text
    assert "found 'many'" in text
    assert "- places[1].city: missing, and required" in text
    assert "- extra: there is no such argument" in text
    assert "It takes: n, places" in text
    assert "pydantic" not in text
    assert ran == []


async def test_the_refusal_is_bounded() -> None:
    async def f(numbers: list[int]) -> None: ...

    text = await refusal(function_tool(f), numbers=["x" * 100_000] * 50, **{"k" * 100_000: 1})

    assert "- and 41 more" in text
    assert len(text) < 5_000


async def test_the_refusal_is_valid_text() -> None:
    async def f(n: int) -> None: ...

    text = await refusal(function_tool(f), n="\ud800", **{"\udfff": 1})

    text.encode()


async def test_an_error_of_pydantic_inside_the_function_is_the_functions_own() -> None:
    async def f() -> None:
        Place.model_validate({})

    with pytest.raises(pydantic.ValidationError):
        await call(function_tool(f))


async def test_the_given_arguments_are_left_as_they_are() -> None:
    async def f(numbers: list[int]) -> list[int]:
        return numbers

    given: dict[str, Any] = {"numbers": "[1, 2]"}

    assert await function_tool(f).call(given, FakeContext()) == [1, 2]
    assert given == {"numbers": "[1, 2]"}


@pytest.mark.parametrize(
    ("hint", "text", "expected"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (list[int] | None, " [1]", [1]),
        (list[int] | int, "[1]", [1]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        (tuple[int, int], "[1, 2]", (1, 2)),
        (set[int], "[1]", {1}),
        (Place, '{"city": "Oslo"}', Place(city="Oslo")),
    ],
    ids=repr,
)
async def test_kF1_nested_json_text_is_decoded_where_the_schema_takes_no_text(
    hint: Any, text: str, expected: object
) -> None:
    async def f(x: Any) -> Any:
        return x

    f.__annotations__["x"] = hint

    assert await call(function_tool(f), x=text) == expected


async def test_kF1_nested_json_text_deeper_inside_is_decoded_too() -> None:
    async def f(places: list[Place]) -> list[Place]:
        return places

    assert await call(function_tool(f), places=['{"city": "Oslo"}', {"city": "Rome"}]) == [
        Place(city="Oslo"), Place(city="Rome")
    ]  # fmt: skip


@pytest.mark.parametrize("hint", [str, str | list[int], Any, str | None])
async def test_kF1_text_that_looks_like_json_stays_text_where_text_is_taken(hint: Any) -> None:
    async def f(x: Any, n: list[int]) -> Any:
        return x

    f.__annotations__["x"] = hint

    # The other argument makes the first validation fail, so that decoding is tried at all.
    assert await call(function_tool(f), x="[1, 2]", n="[3]") == "[1, 2]"


async def test_kF1_text_that_is_refused_as_text_is_not_decoded_into_something_else() -> None:
    async def f(x: Annotated[str, pydantic.Field(max_length=2)] | list[int]) -> None: ...

    assert "found '[1, 2]'" in await refusal(function_tool(f), x="[1, 2]")


@pytest.mark.parametrize("text", ["[1, 2", "3", '"[1]"', "[" * 100_000, "[NaN]", '{"a": 1}'])
async def test_kF1_text_that_is_not_the_list_that_is_wanted_is_refused(text: str) -> None:
    async def f(x: list[int]) -> None: ...

    assert "- x" in await refusal(function_tool(f), x=text)


async def test_kF1_text_encoded_twice_over_is_decoded_once_only() -> None:
    async def f(x: list[list[int]]) -> None: ...

    assert "x[0]" in await refusal(function_tool(f), x='["[1]"]')


# --- the context ----------------------------------------------------------------


@pytest.mark.parametrize(
    "hint",
    [
        ToolContext,
        ToolContext | None,
        "ToolContext",
        "ToolContext | None",
        Annotated[ToolContext, 1],
    ],
    ids=repr,
)
async def test_a_tool_context_is_injected_and_not_in_the_schema(hint: Any) -> None:
    async def f(x: int, context: Any = None) -> Any:
        return context

    f.__annotations__["context"] = hint
    tool = function_tool(f)
    context = FakeContext()

    assert list(tool.input_schema["properties"]) == ["x"]
    assert await tool.call({"x": 1}, context) is context
    assert "- context: there is no such argument" in await refusal(tool, x=1, context=1)


async def test_positional_only_parameters_are_given_by_position() -> None:
    async def f(a: int, context: ToolContext, b: int = 5, /, c: int = 6) -> Any:
        return [a, context.call_id, b, c]

    tool = function_tool(f)

    assert await call(tool, a=1) == [1, "c1", 5, 6]
    assert await call(tool, a=1, b=2, c=3) == [1, "c1", 2, 3]


# --- what can be a tool ---------------------------------------------------------


class Counter:
    """Counts."""

    def __init__(self, start: int) -> None:
        self.start = start

    def add(self, n: int) -> int:
        """Add."""
        return self.start + n

    async def __call__(self, n: int) -> int:
        return self.start + n


async def test_methods_partials_and_callable_objects_are_tools() -> None:
    def power(base: int, exponent: int) -> int:
        """Raise."""
        return base**exponent

    method = function_tool(Counter(3).add)
    partial = function_tool(functools.partial(power, 2), name="power_of_two")
    instance = function_tool(Counter(4), name="count")

    assert (method.name, method.description, method.threaded) == ("add", "Add.", True)
    assert await call(method, n=1) == 4
    assert (partial.description, list(partial.input_schema["properties"])) == (
        "Raise.",
        ["exponent"],
    )
    assert await call(partial, exponent=3) == 8
    assert (instance.description, instance.threaded) == ("Counts.", False)
    assert await call(instance, n=1) == 5


async def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    tool = function_tool(logged(forecast))

    assert tool.name == "forecast"
    # The wrapper is not async: it runs in a thread, and what it returns is awaited.
    assert await call(tool, place={"city": "Oslo"}) == "Oslo NO 3 celsius"


def with_args(*args: int) -> None: ...
def with_kwargs(**kwargs: int) -> None: ...
def with_missing(x: Any) -> None: ...


def with_two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def with_threads(x: threading.Thread) -> None: ...
def with_nonsense(x: Any) -> None: ...


def generate() -> Iterator[int]:
    yield 1


async def agenerate() -> AsyncIterator[int]:
    yield 1


with_missing.__annotations__["x"] = "list[Missing]"
with_nonsense.__annotations__["x"] = "1 +"


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        (with_args, {}, TypeError, r"takes \*args: .*name each parameter"),
        (with_kwargs, {}, TypeError, r"takes \*\*kwargs"),
        (with_missing, {}, TypeError, "Missing.* of parameter 'x' cannot be resolved.*run time"),
        (with_nonsense, {}, TypeError, "parameter 'x' cannot be resolved"),
        (with_two_contexts, {}, ValueError, "two ToolContext"),
        (with_threads, {}, TypeError, "parameter 'x' is annotated.*Thread.*no JSON Schema"),
        (generate, {}, TypeError, "generator function"),
        (agenerate, {}, TypeError, "generator function"),
        (Counter.add, {}, TypeError, "method of Counter that is not bound"),
        (Counter, {}, TypeError, "is a class"),
        (with_args, {"name": "größe"}, ValueError, "'größe' is not one providers take.*pass name="),
        (lambda: 1, {}, ValueError, "pass name="),
        (functools.partial(google_style, 1), {}, ValueError, "pass name="),
        (Counter(1), {}, ValueError, "pass name="),
        (google_style, {"name": "a b"}, ValueError, "'a b'"),
        (google_style, {"timeout": "soon"}, TypeError, "timeout"),
        (google_style, {"timeout": True}, TypeError, "timeout"),
        (google_style, {"sequential": 1}, TypeError, "sequential is 1"),
        (google_style, {"inline": True, "abandon_on_cancel": True}, ValueError, "no thread"),
        (forecast, {"inline": True}, ValueError, "is async"),
        (forecast, {"abandon_on_cancel": True}, ValueError, "is async"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_tool_is_refused_when_it_is_made(
    function: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        function_tool(function, **options)


def test_a_return_hint_that_cannot_be_resolved_does_no_harm() -> None:
    def f(x: int) -> Any: ...

    f.__annotations__["return"] = "Missing"

    assert function_tool(f).name == "f"


# --- threads --------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")


async def test_kC5_a_plain_function_runs_in_a_thread_with_the_context_variables() -> None:
    def f() -> tuple[int, str]:
        return threading.get_ident(), variable.get()

    variable.set("seen")
    tool = function_tool(f)
    context = FakeContext()

    thread, value = await tool.call({}, context)  # type: ignore[misc]

    assert tool.threaded
    assert thread != threading.get_ident()
    assert value == "seen"
    assert context.claimed_in == [thread]


async def test_kC5_an_inline_function_stays_on_the_thread_of_the_loop() -> None:
    tool = function_tool(ident, inline=True)
    context = FakeContext()

    assert await tool.call({}, context) == threading.get_ident()
    assert not tool.threaded
    assert context.claimed_in == []


@pytest.mark.parametrize("inline", [True, False])
async def test_kC5_an_awaitable_that_a_plain_function_returns_is_awaited(inline: bool) -> None:
    async def later() -> int:
        await trio.lowlevel.checkpoint()
        return threading.get_ident()

    def start() -> Any:
        return later()

    tool = function_tool(start, inline=inline)

    assert await call(tool) == threading.get_ident()


async def test_kC5_blocking_tools_run_side_by_side() -> None:
    barrier = threading.Barrier(4, timeout=10)  # only four threads at once get past it

    def wait() -> None:
        barrier.wait()

    tool = function_tool(wait)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(call, tool)


async def test_a_call_that_was_given_up_is_not_run_and_does_not_look_returned() -> None:
    ran: list[int] = []
    tool = function_tool(lambda: ran.append(1), name="f")

    with trio.CancelScope() as scope:
        token = trio.lowlevel.current_trio_token()
        # The cancel comes between the start of the thread and its claim.
        context = FakeContext(
            may_start=False,
            on_claim=lambda: trio.from_thread.run_sync(scope.cancel, trio_token=token),
        )
        await tool.call({}, context)

    assert scope.cancelled_caught
    assert ran == []


async def test_a_call_given_up_by_nobodys_request_is_our_error() -> None:
    tool = function_tool(lambda: 1, name="f")

    with pytest.raises(InternalError):
        await tool.call({}, FakeContext(may_start=False))


async def test_a_cancel_waits_for_the_thread_and_keeps_what_it_returns() -> None:
    began, go_on = trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    def f() -> int:
        trio.from_thread.run_sync(began.set, trio_token=token)
        assert go_on.wait(10)
        return 7

    async def watch(scope: trio.CancelScope) -> None:
        await began.wait()
        scope.cancel()
        go_on.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(watch, scope)
            assert await call(function_tool(f)) == 7
        assert scope.cancel_called
        assert not scope.cancelled_caught


async def test_an_abandoned_thread_is_left_behind() -> None:
    began, go_on, done = trio.Event(), threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    def f() -> None:
        trio.from_thread.run_sync(began.set, trio_token=token)
        assert go_on.wait(10)
        token.run_sync_soon(done.set)

    async def watch(scope: trio.CancelScope) -> None:
        await began.wait()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(watch, scope)
            await call(function_tool(f, abandon_on_cancel=True))
    assert scope.cancelled_caught
    go_on.set()
    await done.wait()


async def test_the_thread_function_of_trio_is_looked_up_at_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = function_tool(ident)

    async def inline(fn: Callable[..., Any], *args: Any, abandon_on_cancel: bool) -> Any:
        return fn(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    monkeypatch.setattr(trio.from_thread, "check_cancelled", lambda: None)

    assert await call(tool) == threading.get_ident()


async def test_a_cancel_while_the_thread_starts_beats_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []
    tool = function_tool(lambda: ran.append(1), name="f")
    context = FakeContext()
    scope = trio.CancelScope()
    run_sync = trio.to_thread.run_sync

    async def cancelled_at_start(fn: Any, *args: Any, abandon_on_cancel: bool) -> Any:
        def begin(*args: Any) -> Any:
            trio.from_thread.run_sync(scope.cancel)
            return fn(*args)

        return await run_sync(begin, *args, abandon_on_cancel=abandon_on_cancel)

    monkeypatch.setattr(trio.to_thread, "run_sync", cancelled_at_start)

    with scope:
        await tool.call({}, context)

    assert scope.cancelled_caught
    assert context.claimed_in == []
    assert ran == []
