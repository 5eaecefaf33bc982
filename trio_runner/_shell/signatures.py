"""Reading a plain function: its name, parameters, type hints and docstring.

What may live here: what Python itself can say of a function without calling it.
What is wrong with it is a `TypeError` or `ValueError` here, when its tool is made.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs

import trio_runner._core.describe as describe
import trio_runner.abc as abc


def entered_by(fn: Callable[..., object]) -> Callable[..., object]:
    """The function or method that a call of ``fn`` enters first."""
    target: Any = fn
    while isinstance(target, functools.partial):
        target = cast("functools.partial[object]", target).func
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    return target


def name_of(fn: Callable[..., object], name: str | None) -> str:
    if name is None:
        name = getattr(fn, "__name__", None)
        if name is None or name == "<lambda>":
            raise ValueError(
                f"{describe.shown(fn)} has no name that a model could call; pass name="
            )
    if type(name) is not str or not abc.TOOL_NAME.fullmatch(name):
        raise ValueError(
            f"tool name {name!r} is not one providers take; expected 1 to 64 characters of "
            "A-Z, a-z, 0-9, _ and -; pass name="
        )
    return name


def refuse_wrong_kinds(
    fn: Callable[..., object], entered: Callable[..., object], name: str
) -> None:
    if isinstance(fn, type):
        raise TypeError(f"tool {name!r} is a class; expected a function, which may make one")
    if inspect.isgeneratorfunction(entered) or inspect.isasyncgenfunction(entered):
        raise TypeError(
            f"tool {name!r} is a generator function; a tool returns one result: return a list, "
            "or report what comes in between with ToolContext.emit"
        )


@attrs.frozen
class Parameter:
    """One parameter that the model fills."""

    name: str
    hint: Any
    #: The default of the signature, or `inspect.Parameter.empty`.
    default: Any


@attrs.frozen
class Signature:
    """What a tool's function takes.

    Attributes:
      context: the name of the parameter that gets the `ToolContext`, or None.
      positional_only: those parameters that cannot be given by name, in order,
        with their defaults; the context's is among them.
    """

    parameters: tuple[Parameter, ...]
    context: str | None
    positional_only: Mapping[str, Any]


def read_signature(fn: Callable[..., object], tool: str) -> Signature:
    try:
        given = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"tool {tool!r}: the signature of {describe.shown(fn)} cannot be read ({error}); "
            "wrap it in a function with type hints"
        ) from error
    names = _Names(fn, tool)
    parameters: list[Parameter] = []
    context: str | None = None
    positional_only: dict[str, Any] = {}
    for parameter in given.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(
                f"tool {tool!r} takes {parameter}, so the model cannot know what to send; "
                "name each parameter, or make a Tool with a schema of your own"
            )
        names.refuse_self(parameter.name)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional_only[parameter.name] = parameter.default
        hint = names.resolve(parameter)
        if not _is_context(hint):
            parameters.append(Parameter(parameter.name, hint, parameter.default))
        elif context is None:
            context = parameter.name
        else:
            raise ValueError(f"tool {tool!r} has two ToolContext parameters; expected one")
    return Signature(tuple(parameters), context, positional_only)


class _Names:
    """Resolves the annotations of one function, in the names it sees.

    Strictly private; lives only while a tool is made.
    """

    def __init__(self, fn: Callable[..., object], tool: str) -> None:
        target: Any = inspect.unwrap(entered_by(fn))
        self._tool = tool
        self._function: Any = getattr(target, "__func__", target)
        # ToolContext is often imported for type checking only.
        known = {"ToolContext": abc.ToolContext}
        self._globals: dict[str, Any] = known | getattr(self._function, "__globals__", {})
        self._locals: dict[str, Any] = {
            parameter.__name__: parameter
            for parameter in getattr(self._function, "__type_params__", ())
        }
        code = getattr(self._function, "__code__", None)
        for name, cell in zip(
            code.co_freevars if code else (),
            getattr(self._function, "__closure__", None) or (),
            strict=True,
        ):
            try:
                self._locals[name] = cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue

    def refuse_self(self, parameter: str) -> None:
        """Refuse a method that nobody bound: the model cannot send ``self``."""
        outer = getattr(self._function, "__qualname__", "").rpartition(".")[0]
        if parameter in ("self", "cls") and outer and not outer.endswith("<locals>"):
            raise TypeError(
                f"tool {self._tool!r} has a parameter {parameter!r}: it seems to be a method of "
                f"{outer} that is not bound; make the tool from the method of an instance"
            )

    def resolve(self, parameter: inspect.Parameter) -> Any:
        """The type hint of ``parameter``, with every name in it resolved."""
        annotation = parameter.annotation
        if annotation is parameter.empty:
            return Any
        holder = types.SimpleNamespace(__annotations__={"hint": annotation})
        try:
            return typing.get_type_hints(
                holder, globalns=self._globals, localns=self._locals, include_extras=True
            )["hint"]
        except Exception as error:
            # An annotation is an expression of the user's; it may raise anything.
            raise TypeError(
                f"tool {self._tool!r}: the annotation {annotation!r} of parameter "
                f"{parameter.name!r} cannot be resolved ({describe.describe_error(error)}); "
                "its names must exist at run time, in the module of the function"
            ) from error


def _is_context(hint: Any) -> bool:
    if hint is abc.ToolContext:
        return True
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated:
        return _is_context(arguments[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {*arguments} == {abc.ToolContext, type(None)}
    return False


def or_none(hint: Any) -> Any:
    """The hint of a parameter whose default is None: None is fine, and models send null for it."""
    if typing.get_origin(hint) is typing.Annotated:
        annotated: Any = typing.Annotated
        return annotated[(or_none(typing.get_args(hint)[0]), *hint.__metadata__)]
    optional: Any = typing.Optional
    return hint if hint is Any else optional[hint]


# --- docstrings -----------------------------------------------------------------


def docstring_of(fn: Callable[..., object], entered: Callable[..., object]) -> str:
    # A partial has the docstring of its class, and so has an object with ``__call__``
    # when its own method has none.
    doc = entered.__doc__
    if doc is None and not isinstance(fn, functools.partial):
        doc = type(fn).__doc__ if not inspect.isroutine(fn) else inspect.getdoc(fn)
    return inspect.cleandoc(doc or "")
