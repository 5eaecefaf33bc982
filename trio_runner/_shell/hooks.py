"""`ToolRunnerHooks`: where an application may decide and change, awaited in order.

The error policy, one line each, is ``docs/explanation/hook-errors.md``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import attrs

import trio_runner._core.values as v

if TYPE_CHECKING:
    from trio_runner._shell.runner import ToolRunner


def is_async(function: Any) -> bool:
    """Whether calling ``function`` gives something to await."""
    while isinstance(function, functools.partial):
        function = function.func
    # Of the type, as Python calls it: a class with such a method is not async itself.
    entered: object = function
    method = getattr(type(entered), "__call__", None)  # noqa: B004  the method itself is wanted
    return inspect.iscoroutinefunction(entered) or inspect.iscoroutinefunction(method)


def _check_async(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not is_async(value):
        raise TypeError(f"hook {attribute.name} is {value!r}; expected an async function (or None)")


# What goes out of a decorator is what came in, with its own type.
MessageHookT = TypeVar("MessageHookT", bound="MessageHook")
MessagesHookT = TypeVar("MessagesHookT", bound="MessagesHook")

HookT = TypeVar("HookT")

MessageHook = Callable[["ToolRunner", v.Message], Awaitable[None]]
MessagesHook = Callable[["ToolRunner", tuple[v.Message, ...]], Awaitable[None]]


@attrs.frozen(kw_only=True)
class ToolRunnerHooks:
    """Functions called at five points of a step; each may be None.

    A hook may call ``runner.append_messages``, ``runner.replace_history`` and
    ``runner.deny``, and set ``runner.request_params``. The messages it is given are
    copies: changing what is in them changes nothing.

    Attributes:
      before_llm_call: ``(runner, messages)``: what the model is about to be sent:
        the delta with history, the whole turn without.
      after_llm_call: ``(runner, reply)``, after every reply.
      before_tool_call: ``(runner, reply)``, before the batch that the reply asks for;
        guards all of it.
      after_tool_call: ``(runner, results)``, when all results are stored: the user
        message with the ``tool_results``.
      after_turn_complete: ``(runner, reply)``, once, after the answer is committed.
    """

    before_llm_call: MessagesHook | None = attrs.field(default=None, validator=_check_async)
    after_llm_call: MessageHook | None = attrs.field(default=None, validator=_check_async)
    before_tool_call: MessageHook | None = attrs.field(default=None, validator=_check_async)
    after_tool_call: MessageHook | None = attrs.field(default=None, validator=_check_async)
    after_turn_complete: MessageHook | None = attrs.field(default=None, validator=_check_async)


def check_hooks(given: object, name: str = "hooks") -> None:
    """Refuse what is neither hooks nor None."""
    match given:
        case None | ToolRunnerHooks():
            return
        case HookSet():
            what = "a HookSet; give its freeze(), which makes hooks of it"
        case _:
            what = f"{given!r}; expected ToolRunnerHooks (or None)"
    raise TypeError(f"{name} is {what}")


@runtime_checkable
class ToolRunnerHookCapable(Protocol):
    """An agent with hooks of its own, read at each turn's start."""

    @property
    def tool_runner_hooks(self) -> ToolRunnerHooks | None:
        """The hooks, or None."""
        ...


class _Chain:
    """Hooks of one point, in order; when one raises, the later ones do not run."""

    def __init__(self, hooks: tuple[Callable[..., Awaitable[None]], ...]) -> None:
        self._hooks = hooks

    async def __call__(self, runner: ToolRunner, subject: Any) -> None:
        for hook in self._hooks:
            await hook(runner, subject)


def merge_hooks(*hooks: ToolRunnerHooks | None) -> ToolRunnerHooks:
    """One set of hooks that runs the given ones in order.

    Raises:
      TypeError: one of them is neither hooks nor None.
    """
    for each in hooks:
        check_hooks(each)
    given = [each for each in hooks if each is not None]
    if len(given) == 1:
        return given[0]
    merged: dict[str, Any] = {}
    for field in attrs.fields(ToolRunnerHooks):
        chain = tuple([hook for each in given if (hook := getattr(each, field.name)) is not None])
        if chain:
            merged[field.name] = chain[0] if len(chain) == 1 else _Chain(chain)
    return ToolRunnerHooks(**merged)


class HookSet:
    """Collects hooks by decorator, and makes `ToolRunnerHooks` of them.

    For example::

        hooks = HookSet()

        @hooks.before_llm_call
        async def add_style(runner, messages):
            runner.append_messages("Answer in one sentence.")

        agent = ToolAgent("a", model=model, hooks=hooks.freeze())

    Several hooks of one point run in the order in which they were added; when one
    raises, the later ones do not run.
    """

    def __init__(self) -> None:
        self._sets: list[ToolRunnerHooks] = []

    def before_llm_call(self, hook: MessagesHookT) -> MessagesHookT:
        """Add ``hook``, as do the other four; see `ToolRunnerHooks` for what it is given.

        Raises:
          TypeError: it is not async.
        """
        return self._add(ToolRunnerHooks(before_llm_call=hook), hook)

    def after_llm_call(self, hook: MessageHookT) -> MessageHookT:
        """Add ``hook``."""
        return self._add(ToolRunnerHooks(after_llm_call=hook), hook)

    def before_tool_call(self, hook: MessageHookT) -> MessageHookT:
        """Add ``hook``."""
        return self._add(ToolRunnerHooks(before_tool_call=hook), hook)

    def after_tool_call(self, hook: MessageHookT) -> MessageHookT:
        """Add ``hook``."""
        return self._add(ToolRunnerHooks(after_tool_call=hook), hook)

    def after_turn_complete(self, hook: MessageHookT) -> MessageHookT:
        """Add ``hook``."""
        return self._add(ToolRunnerHooks(after_turn_complete=hook), hook)

    def freeze(self) -> ToolRunnerHooks:
        """The hooks that were added so far; what is added later changes nothing in them."""
        return merge_hooks(*self._sets)

    def _add(self, hooks: ToolRunnerHooks, hook: HookT) -> HookT:
        self._sets.append(hooks)
        return hook
