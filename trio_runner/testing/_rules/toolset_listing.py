"""Rules of `check_toolset` on names, listing, entering and leaving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, cast

import attrs
import trio

import trio_runner._core.json_data as json_data
from trio_runner.abc import Tool
from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.toolset_kit import ToolsetKit, make_call
from trio_runner.testing._trials import Ending, Span, Usual, check_run, holds_leaf, shown, then_look

_TYPES: Final = frozenset(["array", "boolean", "integer", "null", "number", "object", "string"])
#: JSON Schema's keywords that hold a schema, a list of them, or an object of them.
_ONE_SCHEMA: Final = (
    "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LIST_OF_SCHEMAS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_OBJECT_OF_SCHEMAS: Final = ("$defs", "definitions", "dependentSchemas", "properties")
#: Stands for a keyword that is not there: None is a value.
_ABSENT: Final = object()
_TEXTS: Final = ("$anchor", "$id", "$ref", "$schema", "description", "format", "pattern", "title")


# --- names and listing ------------------------------------------------------------


def name_is_text(kit: ToolsetKit, found: Findings) -> None:
    """The name is a text, and stays what it is."""

    async def body(toolset: Any) -> None:
        before = toolset.name
        async with toolset:
            inside = toolset.name
        if type(before) is not str or not before.strip() or inside != before:
            found.violated(
                f"name is {before!r} before entering and {inside!r} inside",
                expected="one text that is not blank",
                remedy="fix the name when the toolset is made",
            )

    kit.use(found, "reading the name", body)


def tools_are_well_made(kit: ToolsetKit, found: Findings) -> None:
    """A sequence of tools with names of their own."""

    async def body(toolset: Any) -> None:
        tools = await toolset.list_tools()
        if not isinstance(tools, Sequence):
            found.violated(
                f"list_tools returned a {type(tools).__name__}",
                expected="a sequence of Tool objects",
                remedy="return a tuple",
            )
            return
        for tool in cast("Sequence[Any]", tools):
            problem = _tool_problem(tool)
            if problem is not None:
                found.violated(
                    problem,
                    expected="Tool objects: text that encodes, a call that is a function",
                    remedy="build them with trio_runner.Tool",
                )
                return
        names = [tool.name for tool in cast("Sequence[Any]", tools)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            found.violated(
                f"two tools are named {', '.join(map(repr, twice))}",
                expected="each name once: the model calls a tool by its name",
                remedy="rename one of them, in the same way each time",
            )

    kit.inside(found, "listing the tools", body)


def _tool_problem(tool: Any) -> str | None:
    if type(tool) is not Tool:
        return f"list_tools holds a {type(tool).__name__}"
    if type(tool.description) is not str or not json_data.is_safe_text(tool.description):
        return f"the description of tool {tool.name!r} is {shown(tool.description)}"
    if not callable(tool.call):
        return f"the call of tool {tool.name!r} is {shown(tool.call)}"
    return None


def schemas_are_objects(kit: ToolsetKit, found: Findings) -> None:
    """Each schema is a JSON Schema of an object."""

    async def body(toolset: Any) -> None:
        for tool in await toolset.list_tools():
            for which in ("input_schema", "output_schema"):
                schema = getattr(tool, which)
                problem = None
                if which == "input_schema" or schema is not None:
                    problem = schema_problem(schema, must_be_object=which == "input_schema")
                if problem is not None:
                    found.violated(
                        f"the {which} of tool {tool.name!r}: {problem}",
                        expected="a JSON Schema of plain JSON, of type object for arguments",
                        remedy='at the least {"type": "object"}; providers refuse the request '
                        "for one bad schema",
                    )

    kit.inside(found, "reading the schemas", body)


def schema_problem(schema: object, *, must_be_object: bool) -> str | None:
    """What keeps ``schema`` from being a JSON Schema, by a light check, or None."""
    if not isinstance(schema, Mapping):
        return f"it is a {type(schema).__name__}, no object"
    try:
        plain = cast("Any", json_data.plain_json(cast("object", schema)))
    except json_data.NotJSONError as error:
        return f"it is no JSON: at {error}"
    if must_be_object and plain.get("type") != "object":
        return f"its type is {plain.get('type')!r}, not 'object'"
    return _problem_in(plain, "it")


def _problem_in(schema: Any, path: str) -> str | None:
    if type(schema) is bool:
        return None
    if type(schema) is not dict:
        return f"{path} is {shown(schema)}, no schema"
    parts = cast("dict[str, Any]", schema)
    given: object = parts.get("type", "object")
    types = cast("list[Any]", given) if type(given) is list else [given]
    if not types or not all(type(one) is str and one in _TYPES for one in types):
        return f"{path}.type is {shown(cast('object', given))}, no type of JSON Schema"
    required: object = parts.get("required", [])
    if type(required) is not list or not all(type(name) is str for name in cast("Any", required)):
        return f"{path}.required is {shown(cast('object', required))}, no list of names"
    if type(parts.get("enum", [])) is not list:
        return f"{path}.enum is {shown(parts['enum'])}, no list"
    for key in _TEXTS:
        if type(parts.get(key, "")) is not str:
            return f"{path}.{key} is {shown(parts[key])}, no text"
    for key, inner in _inner_schemas(parts):
        if inner is None:
            return f"{path}.{key} is {shown(parts.get(key))}, which holds no schema"
        problem = _problem_in(inner, f"{path}.{key}")
        if problem is not None:
            return problem
    return None


def _inner_schemas(parts: dict[str, Any]) -> list[tuple[str, Any]]:
    """The schemas inside a schema by their path; None for what should hold some and does not."""
    inner: list[tuple[str, Any]] = [(key, parts[key]) for key in _ONE_SCHEMA if key in parts]
    for key in _LIST_OF_SCHEMAS:
        items: object = parts.get(key, _ABSENT)
        if type(items) is list and items:
            listed = cast("list[Any]", items)
            inner += [(f"{key}[{number}]", each) for number, each in enumerate(listed)]
        elif items is not _ABSENT:
            inner.append((key, None))
    for key in _OBJECT_OF_SCHEMAS:
        items = parts.get(key, _ABSENT)
        if type(items) is dict:
            inner += [(f"{key}.{name}", each) for name, each in cast("Any", items).items()]
        elif items is not _ABSENT:
            inner.append((key, None))
    return inner


def list_is_stable(kit: ToolsetKit, found: Findings) -> None:
    """Two lists with nothing between them are the same."""

    async def body(toolset: Any) -> None:
        first, second = await toolset.list_tools(), await toolset.list_tools()
        names = [[tool.name for tool in tools] for tools in (first, second)]
        if names[0] != names[1]:
            found.violated(
                f"list_tools gave {names[0]!r}, and then {names[1]!r}",
                expected="the same tools in the same order while nothing has changed",
                remedy="keep the list; sort what comes from a set or a dict of a server",
            )
        elif first is not second:
            found.advise(
                "list_tools makes a new list each time",
                expected="the same object while nothing has changed: it is asked before each "
                "model call, and a new one is indexed anew",
                remedy="keep the tuple and return it",
            )

    kit.inside(found, "listing twice", body)


# --- entering and leaving ---------------------------------------------------------


@attrs.frozen
class _Timed:
    """A toolset whose entering and leaving are looked at; both happen in the caller's task."""

    toolset: Any
    entering: Span
    leaving: Span

    async def __aenter__(self) -> Self:
        await self.entering.over(self.toolset.__aenter__)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self.leaving.over(lambda: self.toolset.__aexit__(exc_type, exc, traceback))


async def _nothing_more() -> None:
    """What is left is counted by the stage."""


def a_cancelled_enter_leaves_nothing(kit: ToolsetKit, found: Findings) -> None:
    """A cancel at every step of entering."""
    usual = Usual()

    async def body(toolset: Any, span: Span) -> None:
        async def enter_and_leave() -> None:
            async with _Timed(toolset, span, Span()):
                pass

        await then_look(enter_and_leave, _nothing_more, found)

    def check(ending: Ending, span: Span) -> None:
        if span.check_left(ending, found, "__aenter__", kit.leaves_within):
            span.check_errors(ending, found, "__aenter__")
            span.check_let_through(ending, found, "__aenter__", usual)
        _check_left_alive(ending, found, "__aenter__ that was cancelled")

    kit.sweep(body, check)


def leaving_is_bounded(kit: ToolsetKit, found: Findings) -> None:
    """Leaving takes at most so long, also when a cancel comes at any step of it."""

    async def body(toolset: Any, span: Span) -> None:
        async def live() -> None:
            async with _Timed(toolset, Span(), span):
                for call in kit.calls:
                    await make_call(toolset, call)

        await then_look(live, _nothing_more, found)

    def check(ending: Ending, span: Span) -> None:
        if not span.began and ending.fault_time is None:
            check_run(ending, found, "entering and calling")
        elif span.check_left(ending, found, "__aexit__", kit.leaves_within):
            span.check_errors(ending, found, "__aexit__")
            took = (span.left_at or 0.0) - span.began_at
            if took > kit.leaves_within + 1e-6:
                found.violated(
                    f"__aexit__ took {took:g} s",
                    expected=f"at most {kit.leaves_within:g} s",
                    remedy="give what the close waits for a deadline",
                )

    kit.sweep(body, check)


def leaving_lets_errors_through(kit: ToolsetKit, found: Findings) -> None:
    """An error of the body and a cancel leave the block."""

    async def body(toolset: Any) -> None:
        try:
            async with toolset:
                raise _BodyError  # noqa: TRY301  it is to come through the block
        except Exception as error:
            if not holds_leaf(error, _BodyError):
                raise
            return
        found.violated(
            "an error in the block did not leave it",
            expected="the error, bare or in a group: __aexit__ must not swallow it",
            remedy="return None from __aexit__",
        )

    async def cancelled(toolset: Any) -> None:
        with trio.CancelScope() as scope:
            async with toolset:
                scope.cancel()
                await trio.lowlevel.checkpoint()
        if not scope.cancelled_caught:
            found.violated(
                "a cancel in the block did not leave it",
                expected="Cancelled: __aexit__ must not swallow it",
                remedy="return None from __aexit__",
            )

    kit.use(found, "leaving by an error", body)
    kit.use(found, "leaving by a cancel", cancelled)


class _BodyError(Exception):
    """Strictly private: raised in a toolset's block, must leave it."""


def nothing_is_left_running(kit: ToolsetKit, found: Findings) -> None:
    """A cancel or Ctrl-C at every step from entering to leaving."""

    async def body(toolset: Any, span: Span) -> None:
        async def live() -> None:
            async with toolset:
                await toolset.list_tools()
                for call in kit.calls:
                    await make_call(toolset, call)

        await then_look(lambda: span.over(live), _nothing_more, found)

    def check(ending: Ending, span: Span) -> None:
        if span.check_left(ending, found, "a toolset's life", 2 * kit.leaves_within):
            span.check_errors(ending, found, "using the toolset")
        _check_left_alive(ending, found, "the toolset")

    kit.sweep(body, check, ("cancel", "sigint"))


def _check_left_alive(ending: Ending, found: Findings, after: str) -> None:
    for name in ending.left_alive:
        found.violated(
            f"task {name!r} outlived {after}",
            expected="nothing to be left running",
            remedy="own the tasks in a nursery that __aexit__ leaves; close it when entering fails",
        )
    for trouble in ending.trouble:
        found.violated(
            trouble,
            expected="nothing to be left unclosed or never awaited",
            remedy="close it in __aexit__, and when entering fails",
        )


@attrs.frozen
class _Owner:
    """Enters and leaves a toolset in a task of its own, as an agent does."""

    toolset: Any
    opened: trio.Event = attrs.field(factory=trio.Event)
    closing: trio.Event = attrs.field(factory=trio.Event)

    async def live(self) -> None:
        async with self.toolset:
            self.opened.set()
            await self.closing.wait()


def any_task_may_use_it(kit: ToolsetKit, found: Findings) -> None:
    """The task that enters and leaves is not the one that lists and calls."""

    async def body(toolset: Any) -> None:
        owner = _Owner(toolset)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(owner.live)
            await owner.opened.wait()
            async with trio.open_nursery() as users:
                users.start_soon(toolset.list_tools)
                for call in kit.calls:
                    users.start_soon(make_call, toolset, call)
            owner.closing.set()

    kit.use(found, "listing and calling from other tasks than the one that entered", body)
