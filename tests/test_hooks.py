"""`ToolRunnerHooks`: what may be a hook, and how sets of hooks are merged."""

from __future__ import annotations

import functools
from collections.abc import Awaitable
from typing import Any, cast

import attrs
import pytest

import trio_runner as tr
from trio_runner.testing import ScriptedModel

POINTS = [field.name for field in attrs.fields(tr.ToolRunnerHooks)]
RUNNER = cast("tr.ToolRunner", object())
MESSAGE = tr.Message.assistant("done")


async def plain(runner: tr.ToolRunner, message: tr.Message) -> None: ...


def sync(runner: tr.ToolRunner, message: tr.Message) -> None: ...


def gives_an_awaitable(runner: tr.ToolRunner, message: tr.Message) -> Awaitable[None]:
    """It could be awaited, but nobody can see that before it is called."""
    return plain(runner, message)


class AsyncCallable:
    """An object with an async ``__call__``."""

    async def __call__(self, runner: tr.ToolRunner, message: tr.Message) -> None: ...

    async def method(self, runner: tr.ToolRunner, message: tr.Message) -> None: ...

    def sync_method(self, runner: tr.ToolRunner, message: tr.Message) -> None: ...


async def with_more(extra: int, runner: tr.ToolRunner, message: tr.Message) -> None: ...


class Notes:
    """Makes hooks that note when they run, and may fail."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def hook(self, name: str, error: Exception | None = None) -> Any:
        async def hook(runner: tr.ToolRunner, subject: object) -> None:
            assert (runner, subject) == (RUNNER, MESSAGE)
            self.all.append(name)
            if error is not None:
                raise error

        return hook


def test_the_five_points_are_in_the_order_of_a_step() -> None:
    assert POINTS == [
        "before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call",
        "after_turn_complete",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "hook",
    [
        None,
        plain,
        AsyncCallable(),
        AsyncCallable().method,
        functools.partial(with_more, 1),
        functools.partial(functools.partial(with_more), 1),
        functools.partial(AsyncCallable()),
    ],
)
@pytest.mark.parametrize("point", POINTS)
def test_async_functions_of_any_make_are_hooks(point: str, hook: Any) -> None:
    assert getattr(tr.ToolRunnerHooks(**{point: hook}), point) is hook


@pytest.mark.parametrize(
    "hook",
    [
        sync,
        AsyncCallable,  # the class: calling it gives an object, which cannot be awaited
        AsyncCallable().sync_method,
        functools.partial(sync),
        gives_an_awaitable,
        3,
        "before_llm_call",
    ],
)
def test_what_cannot_be_awaited_is_refused_when_the_hooks_are_made(hook: Any) -> None:
    with pytest.raises(TypeError, match=r"after_llm_call is .*; expected an async function"):
        tr.ToolRunnerHooks(after_llm_call=hook)


def test_hooks_are_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        cast("Any", tr.ToolRunnerHooks)(plain)


def test_an_agent_with_the_property_is_told_by_its_type() -> None:
    class With:
        @property
        def tool_runner_hooks(self) -> tr.ToolRunnerHooks | None:
            return None

    assert isinstance(With(), tr.ToolRunnerHookCapable)
    assert not isinstance(object(), tr.ToolRunnerHookCapable)


# --- merging --------------------------------------------------------------------


def test_nothing_merged_is_no_hooks_and_one_set_is_itself() -> None:
    one = tr.ToolRunnerHooks(after_llm_call=plain)
    assert tr.merge_hooks() == tr.merge_hooks(None, None) == tr.ToolRunnerHooks()
    assert tr.merge_hooks(None, one) is one


@pytest.mark.parametrize("bad", [tr.HookSet(), {"after_llm_call": plain}, plain])
@pytest.mark.parametrize("where", ["agent", "turn", "property", "merge"])
async def test_what_are_no_hooks_is_refused_before_anything_is_changed(
    bad: Any, where: str
) -> None:
    class Own(tr.ToolAgent):
        @property
        def tool_runner_hooks(self) -> Any:
            return bad if where == "property" else None

    agent = Own("a", model=ScriptedModel(["done"]))
    says = r"a HookSet; give its freeze\(\)" if "HookSet" in repr(bad) else "expected ToolRunner"

    async def give() -> None:
        match where:
            case "agent":
                tr.ToolAgent("a", model=ScriptedModel([]), hooks=bad)
            case "merge":
                tr.merge_hooks(None, bad)
            case _:
                await agent.generate("go", hooks=bad if where == "turn" else None)

    with pytest.raises(TypeError, match=f"hooks is .*{says}"):
        await give()
    assert agent.history == ()
    assert not agent.can_resume


async def test_merged_hooks_of_a_point_run_in_order() -> None:
    notes = Notes()
    sets = [tr.ToolRunnerHooks(after_llm_call=notes.hook(name)) for name in "abc"]

    merged = tr.merge_hooks(sets[0], None, sets[1], tr.ToolRunnerHooks(), sets[2])

    assert merged.after_llm_call is not None
    await merged.after_llm_call(RUNNER, MESSAGE)
    assert notes.all == ["a", "b", "c"]


def test_a_point_that_one_set_has_keeps_its_function_and_others_stay_empty() -> None:
    merged = tr.merge_hooks(
        tr.ToolRunnerHooks(after_llm_call=plain), tr.ToolRunnerHooks(after_tool_call=plain)
    )
    assert merged == tr.ToolRunnerHooks(after_llm_call=plain, after_tool_call=plain)


async def test_when_a_hook_raises_the_later_ones_of_its_point_do_not_run() -> None:
    notes = Notes()
    merged = tr.merge_hooks(
        tr.ToolRunnerHooks(after_llm_call=notes.hook("a", ValueError("bad"))),
        tr.ToolRunnerHooks(after_llm_call=notes.hook("b")),
    )
    assert merged.after_llm_call is not None
    with pytest.raises(ValueError, match="bad"):
        await merged.after_llm_call(RUNNER, MESSAGE)
    assert notes.all == ["a"]


async def test_merged_hooks_can_be_merged_again() -> None:
    notes = Notes()
    a, b, c = (tr.ToolRunnerHooks(after_llm_call=notes.hook(name)) for name in "abc")
    merged = tr.merge_hooks(tr.merge_hooks(a, b), c)
    assert merged.after_llm_call is not None
    await merged.after_llm_call(RUNNER, MESSAGE)
    assert notes.all == ["a", "b", "c"]


# --- collecting -----------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_set_collects_hooks_by_decorator_in_order(point: str) -> None:
    notes, hooks = Notes(), tr.HookSet()
    add = getattr(hooks, point)
    first, second = notes.hook("a"), notes.hook("b")
    assert add(first) is first  # the function is itself afterwards
    before = hooks.freeze()
    add(second)

    assert before == tr.ToolRunnerHooks(**{point: first})
    chain = getattr(hooks.freeze(), point)
    await chain(RUNNER, MESSAGE)
    assert notes.all == ["a", "b"]


def test_a_hook_set_without_hooks_is_no_hooks() -> None:
    assert tr.HookSet().freeze() == tr.ToolRunnerHooks()


@pytest.mark.parametrize("point", POINTS)
def test_a_decorated_function_that_is_not_async_is_refused_at_once(point: str) -> None:
    hooks = tr.HookSet()
    with pytest.raises(TypeError, match=f"hook {point} is"):
        getattr(hooks, point)(sync)
    assert hooks.freeze() == tr.ToolRunnerHooks()
