"""What makes a tool: `tool` for everybody, `as_tool` for the agent.

What may live here: the choice of how an object becomes a `Tool`. pydantic is
not imported here: `_function_tools` loads the module that needs it when the
first plain function becomes a tool, which keeps ``import trio_runner`` quick for
programs that use `Tool` objects only. (``structured.py`` does the same for outputs.)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict, Unpack, cast, overload

import trio_runner.abc as abc


class ToolOptions(TypedDict, total=False):
    """The options of `tool`.

    The threads of sync functions come from trio's default thread limiter (40 at a
    time), so one that runs a turn of its own through `trio.from_thread` can starve
    the tools of that turn of threads; make such a tool async.

    Attributes:
      name: what the model calls it (default: the function's name).
      description: for the model (default: the docstring without its parameters).
      title: for people.
      timeout: seconds for each call, from when it really starts.
      sequential: a barrier in its batch: runs alone.
      idempotent: may be run again with the same key after a crash.
      limiter: shared by every tool that has it.
      inline: run a function that is not async on the loop's thread; it must not block.
      abandon_on_cancel: on a cancel leave the thread of a sync function behind.
      meta: yours; kept with the tool.
      needs_approval: whether its calls need consent; see `trio_runner.abc.NeedsApproval`.
    """

    name: str | None
    description: str | None
    title: str | None
    timeout: float | None
    sequential: bool
    idempotent: bool
    limiter: abc.Limiter | None
    inline: bool
    abandon_on_cancel: bool
    meta: Mapping[str, Any] | None
    needs_approval: abc.NeedsApproval


class _FunctionTools(Protocol):
    def function_tool(
        self, fn: Callable[..., object], **options: Unpack[ToolOptions]
    ) -> abc.Tool: ...


@overload
def tool(fn: Callable[..., object], /, **options: Unpack[ToolOptions]) -> abc.Tool: ...
@overload
def tool(
    fn: None = None, /, **options: Unpack[ToolOptions]
) -> Callable[[Callable[..., object]], abc.Tool]: ...
def tool(
    fn: Callable[..., object] | None = None, /, **options: Unpack[ToolOptions]
) -> abc.Tool | Callable[[Callable[..., object]], abc.Tool]:
    """Make a `Tool` of a plain function; as ``@tool``, ``@tool(timeout=5)`` or ``tool(fn, …)``.

    The result is the tool; it is not callable as the function was. See
    `ToolOptions` for what can be said, and `Tool` for a tool with a schema of its own.

    Raises:
      TypeError, ValueError: for a function that cannot be a tool, or a wrong option.
    """
    if fn is None:

        def decorate(fn: Callable[..., object]) -> abc.Tool:
            return tool(fn, **options)

        return decorate
    if not callable(fn):
        raise TypeError(f"tool() got a {type(fn).__name__}; expected a function")
    return _function_tools().function_tool(fn, **options)


def as_tool(obj: object) -> abc.Tool:
    """Return a `Tool` as it is, and make one of a plain function.

    Raises:
      TypeError: for anything else.
      TypeError, ValueError: for a function that cannot be a tool.
    """
    match obj:
        case abc.Tool():
            return obj
        case _ if callable(obj):
            return _function_tools().function_tool(obj)
        case _:
            raise TypeError(
                f"tools holds a {type(obj).__name__}; expected functions, Tool objects, agents "
                "and toolsets (objects with list_tools, __aenter__ and __aexit__)"
            )


def _function_tools() -> _FunctionTools:
    try:
        module = importlib.import_module("trio_runner._shell.function_tools")
    except ImportError as error:
        raise ImportError(
            "a plain function as a tool needs pydantic and griffe, which come with trio-runner "
            f"but cannot be imported here ({error}); install them with "
            "'python -m pip install trio-runner', or pass Tool objects with a schema of your own"
        ) from error
    return cast("_FunctionTools", module)
