"""Plain functions as tools: name, description, schema and validation from the signature.

What may live here: schema and validation of the arguments by pydantic, docstrings
by griffe, and the call itself. This is the only file of the library that imports
either; `trio_runner._shell.tools` loads it when the first plain function becomes
a tool. What is wrong with a function is said when its tool is made, as a
`TypeError` or `ValueError`, never at a call.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

import attrs
import griffe
import pydantic
import pydantic.fields
import pydantic.json_schema
import trio

import trio_runner._core.describe as describe
import trio_runner._core.errors as errors
import trio_runner._core.json_data as json_data
import trio_runner._core.values as v
import trio_runner._shell.ki as ki
import trio_runner._shell.signatures as signatures
import trio_runner.abc as abc
from trio_runner._shell.signatures import Parameter, Signature

_MAX_PROBLEMS: Final = 10

#: pydantic's names for "text found where the schema wants a list or an object".
_WANTS_STRUCTURE: Final = frozenset({
    "arguments_type", "dataclass_type", "dict_type", "frozen_set_type", "iterable_type",
    "list_type", "mapping_type", "model_attributes_type", "model_type", "sequence_str",
    "set_type", "tuple_type",
})  # fmt: skip


def function_tool(
    fn: Callable[..., object],
    *,
    name: str | None = None,
    description: str | None = None,
    title: str | None = None,
    timeout: float | None = None,
    sequential: bool = False,
    idempotent: bool = False,
    limiter: abc.Limiter | None = None,
    inline: bool = False,
    abandon_on_cancel: bool = False,
    meta: Mapping[str, Any] | None = None,
    needs_approval: abc.NeedsApproval = False,
) -> abc.Tool:
    """Make a tool of a plain function.

    The description and those of the parameters come from the docstring
    (Google, numpy or Sphinx style), the JSON Schema from the type hints; a
    parameter without a hint takes any JSON value. Arguments are validated and
    coerced by pydantic in lax mode; an argument that is not in the signature is
    refused. A list or object that arrives as JSON text is decoded, once, where
    the schema takes no text. A parameter annotated `ToolContext` is given the
    context of the call and is not in the schema. ``*args`` and ``**kwargs`` are
    refused: the model could not know what to send.

    An async function runs in the task of its call. Any other runs in a worker
    thread, with the context variables of the task; a cancel waits for it. What
    it returns is awaited in the task of the call if it can be awaited.

    Args:
      fn: a function, bound method, partial or object with ``__call__``.
      name: what the model calls it; needed where ``fn`` has no name of its own.
      timeout: seconds from when a call really starts; it cannot cut a thread short.
      sequential, idempotent, limiter, needs_approval: see `Tool`.
      inline: run a function that is not async in the task of its call, not in a
        thread; it must not block.
      abandon_on_cancel: on a cancel leave the thread behind; it goes on, and
        what it returns is discarded.

    Raises:
      TypeError, ValueError: for a function that cannot be a tool, saying why.
    """
    _check_flags(
        sequential=sequential,
        idempotent=idempotent,
        inline=inline,
        abandon_on_cancel=abandon_on_cancel,
    )
    entered = signatures.entered_by(fn)
    name = signatures.name_of(fn, name)
    signatures.refuse_wrong_kinds(fn, entered, name)
    is_async = inspect.iscoroutinefunction(entered)
    _check_place(name, is_async, inline, abandon_on_cancel)
    signature = signatures.read_signature(fn, name)
    text, parameter_texts = _read_docstring(signatures.docstring_of(fn, entered))
    arguments = _Arguments(name, signature, parameter_texts)
    target = _by_name(fn, signature.positional_only) if signature.positional_only else fn
    if is_async:
        call = _async_call(cast("Callable[..., Awaitable[object]]", target), arguments)
    elif inline:
        call = _inline_call(target, arguments)
    else:
        call = _thread_call(target, arguments, abandon_on_cancel)
    return abc.Tool(
        name,
        text if description is None else description,
        arguments.schema,
        call,
        title=title,
        timeout=timeout,
        sequential=sequential,
        idempotent=idempotent,
        limiter=limiter,
        threaded=not (is_async or inline),
        meta=dict(meta or {}),
        needs_approval=needs_approval,
    )


def _check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if type(value) is not bool:
            raise TypeError(f"{name} is {value!r}; expected True or False")


def _check_place(name: str, is_async: bool, inline: bool, abandon_on_cancel: bool) -> None:
    """Refuse options about a thread that there will not be."""
    if is_async and (inline or abandon_on_cancel):
        raise ValueError(
            f"tool {name!r} is async, so it never runs in a thread; inline and "
            "abandon_on_cancel are for functions that are not async"
        )
    if inline and abandon_on_cancel:
        raise ValueError(f"tool {name!r}: an inline tool has no thread that could be abandoned")


# --- docstrings -----------------------------------------------------------------


def _read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The description, and the texts of the parameters by name."""
    quiet = {"warnings": False}
    sections = griffe.parse_auto(
        griffe.Docstring(doc),
        default="google",
        per_style_options={
            "google": griffe.GoogleOptions(**quiet),
            "numpy": griffe.NumpyOptions(**quiet),
            "sphinx": griffe.SphinxOptions(**quiet),
        },
    )
    texts: list[str] = []
    parameters: dict[str, str] = {}
    for section in sections:
        match section:
            case griffe.DocstringSectionText():
                texts.append(section.value)
            case griffe.DocstringSectionAdmonition():
                texts.append(f"{section.title}: {section.value.description}")
            case griffe.DocstringSectionReturns():
                returned = " ".join([item.description for item in section.value])
                texts.append(f"Returns: {returned}" if returned.strip() else "")
            case griffe.DocstringSectionParameters() | griffe.DocstringSectionOtherParameters():
                for item in section.value:
                    parameters[item.name.lstrip("*")] = item.description.strip()
            case _:  # what it raises and examples of Python say nothing to a model
                pass
    return "\n\n".join([text.strip() for text in texts if text.strip()]), parameters


# --- arguments ------------------------------------------------------------------


@attrs.frozen
class _Detail:
    """One thing that pydantic found wrong: its name for it, where, in words, and the value."""

    kind: str
    place: tuple[int | str, ...]
    message: str
    value: object


class _Schema(pydantic.json_schema.GenerateJsonSchema):
    """Without the titles that only repeat a field's name, and without warnings."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


class _Arguments:
    """The arguments of one tool: their schema, and their validation.

    Strictly private; never changed once it is made.

    Attributes:
      schema: JSON Schema for the model.
      validate: pydantic's own function: a new object whose ``__dict__`` is the
        valid arguments by parameter name, or `pydantic.ValidationError`.
      context: the name of the parameter for the context, or None.
    """

    def __init__(self, tool: str, signature: Signature, texts: Mapping[str, str]) -> None:
        self._tool = tool
        self._names = [parameter.name for parameter in signature.parameters]
        self.context = signature.context
        adapter, self.schema = _build(tool, signature.parameters)
        self.validate: Callable[[object], Any] = adapter.validator.validate_python
        for parameter in signature.parameters:
            entry = self.schema["properties"].get(parameter.name)
            if entry is not None:
                _complete(entry, parameter.default, texts.get(parameter.name))

    def bind(self, given: v.JSONObject, context: abc.ToolContext) -> dict[str, Any]:
        """The arguments to call the function with: validated, and the context put in.

        Raises:
          InvalidArgumentsError: they do not fit.
        """
        try:
            values: dict[str, Any] = self.validate(given).__dict__
        except pydantic.ValidationError as problem:
            values = self.second_try(given, problem).__dict__
        if self.context is not None:
            values[self.context] = context
        return values

    def second_try(self, arguments: v.JSONObject, problem: pydantic.ValidationError) -> Any:
        """Validate once more, with nested JSON text decoded; or say what is wrong."""
        decoded = _decode_nested(arguments, _details(problem))
        if decoded is not None:
            try:
                return self.validate(decoded)
            except pydantic.ValidationError as remaining:
                problem = remaining
        raise errors.InvalidArgumentsError(self._explain(problem)) from problem

    def _explain(self, problem: pydantic.ValidationError) -> str:
        details = _details(problem)
        lines = [_line(detail) for detail in details[:_MAX_PROBLEMS]]
        if len(details) > _MAX_PROBLEMS:
            lines.append(f"- and {len(details) - _MAX_PROBLEMS} more")
        accepted = ", ".join(self._names) or "none"
        # Valid text: pydantic's own is, and what the model sent is shown by its repr.
        return "\n".join([
            f"The arguments do not fit the schema of tool {self._tool!r}; it was not run.",
            *lines,
            f"It takes: {describe.shorten(accepted, 500)}",
        ])  # fmt: skip


def _build(
    tool: str, parameters: Sequence[Parameter]
) -> tuple[pydantic.TypeAdapter[Any], dict[str, Any]]:
    # A dataclass, because its fields take any name that a parameter can have, it
    # keeps to the function's own defaults, and it is quick to validate.
    arguments: Any = dataclasses.make_dataclass(
        "Arguments", [_field(parameter) for parameter in parameters], kw_only=True
    )
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    try:
        adapter = pydantic.TypeAdapter[Any](arguments)
        schema = adapter.json_schema(schema_generator=_Schema)
    except Exception as error:
        # Types bring schema code of their own, which may raise anything.
        raise TypeError(_blame(tool, parameters, error)) from error
    schema.pop("title", None)
    return adapter, schema


def _blame(tool: str, parameters: Sequence[Parameter], error: Exception) -> str:
    """Find the parameter that pydantic has no schema for."""
    for parameter in parameters:
        try:
            pydantic.TypeAdapter[Any](parameter.hint).json_schema(schema_generator=_Schema)
        except Exception as own:  # noqa: BLE001  as in _build
            return (
                f"tool {tool!r}: parameter {parameter.name!r} is annotated {parameter.hint!r}, "
                f"which has no JSON Schema: {_first_line(own)}"
            )
    return f"tool {tool!r}: no JSON Schema can be made of its signature: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return describe.describe_error(error).partition("\n")[0]


def _field(parameter: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    name, hint, default = parameter.name, parameter.hint, parameter.default
    if default is inspect.Parameter.empty:
        return name, hint
    if isinstance(default, pydantic.fields.FieldInfo):  # ``x: int = Field(3, ge=1)``
        return name, typing.Annotated[hint, default]
    if default is None:
        hint = signatures.or_none(hint)
    if any(
        isinstance(extra, pydantic.fields.FieldInfo) and not extra.is_required()
        for extra in getattr(hint, "__metadata__", ())
    ):  # a second default, which the first overrides; pydantic takes no factory then
        return name, hint, dataclasses.field(default=default)
    # A factory, because a dataclass refuses a list or dict as a default. It gives the
    # very object that Python would.
    return name, hint, dataclasses.field(default_factory=lambda: default)


def _complete(entry: dict[str, Any], default: object, text: str | None) -> None:
    """Add to a parameter's schema what the type hint does not tell."""
    if text:
        entry.setdefault("description", text)
    if default is inspect.Parameter.empty or isinstance(default, pydantic.fields.FieldInfo):
        return
    try:
        plain = pydantic.TypeAdapter[Any](Any).dump_python(default, mode="json")
        json.dumps(plain, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return  # a default that JSON cannot show is still the function's default
    entry.setdefault("default", plain)


# --- arguments that do not fit --------------------------------------------------


def _details(problem: pydantic.ValidationError) -> list[_Detail]:
    return [
        _Detail(detail["type"], detail["loc"], detail["msg"], detail["input"])
        for detail in problem.errors(include_url=False, include_context=False)
    ]


def _line(detail: _Detail) -> str:
    path = ""
    for part in detail.place:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:60]}"
    path = describe.shorten(path.removeprefix("."), 200) or "arguments"
    if detail.kind == "missing":
        return f"- {path}: missing, and required"
    if detail.kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"- {path}: there is no such argument"
    message = describe.shorten(detail.message, 300)
    return f"- {path}: {message}; found {_found(detail.value)}"


def _found(value: object) -> str:
    match value:
        case str():
            return repr(value) if len(value) <= 60 else f"{value[:60]!r}... ({len(value)} long)"
        case dict():
            return "an object"
        case list():
            return "a list"
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return describe.shorten(repr(value), 60)
        case _:  # made by a validator of the user's
            return f"a {describe.type_name(value)}"


def _decode_nested(arguments: v.JSONObject, details: Sequence[_Detail]) -> v.JSONObject | None:
    """The arguments with JSON text decoded where a list or object is wanted; None if nowhere.

    A place that takes text as well keeps its text, whatever it looks like.
    """
    decoded: v.JSONObject = json_data.copy_json(arguments)
    places: dict[tuple[int, str | int], tuple[Any, str | int, set[str]]] = {}
    for detail in details:
        if type(detail.value) is not str:
            continue
        container, key = _place(decoded, detail.place)
        if container is not None and container[key] == detail.value:
            kinds = places.setdefault((id(container), key), (container, key, set()))[2]
            kinds.add(detail.kind)
    changed = False
    for container, key, kinds in places.values():
        takes_text = any(kind.startswith("string_") for kind in kinds)
        if kinds & _WANTS_STRUCTURE and not takes_text:
            value = _structure_in(container[key])
            if value is not None:
                container[key] = value
                changed = True
    return decoded if changed else None


def _place(root: v.JSONObject, loc: Sequence[int | str]) -> tuple[Any, str | int]:
    """Where in the arguments an error lies: the container and the key in it."""
    container: Any = None
    key: str | int = ""
    here: object = root
    for part in loc:
        match here:
            case dict():
                found = part in here
            case list():
                found = type(part) is int and 0 <= part < len(cast("list[object]", here))
            case _:
                found = False
        if found:  # else it names a member of a union, which is no place in the value
            container, key = cast("Any", here), part
            here = container[part]
    return container, key


def _structure_in(text: str) -> v.JSONValue:
    """The list or object that ``text`` is the JSON of, or None."""
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        return json_data.plain_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


# --- calling --------------------------------------------------------------------


def _by_name(
    fn: Callable[..., object], positional_only: Mapping[str, Any]
) -> Callable[..., object]:
    """Let a function with positional-only parameters be called by name."""

    def call_by_name(**values: Any) -> object:
        given = [values.pop(name, default) for name, default in positional_only.items()]
        return fn(*given, **values)

    return call_by_name


# The three are written out: they run once per call of a tool, where a call
# more, or a branch that was decided when the tool was made, can be measured.


def _async_call(
    fn: Callable[..., Awaitable[object]], arguments: _Arguments
) -> Callable[[v.JSONObject, abc.ToolContext], Awaitable[object]]:
    @trio.lowlevel.enable_ki_protection
    async def call(given: v.JSONObject, context: abc.ToolContext) -> object:
        return await ki.call_unprotected(fn, **arguments.bind(given, context))

    return call


def _inline_call(
    fn: Callable[..., object], arguments: _Arguments
) -> Callable[[v.JSONObject, abc.ToolContext], Awaitable[object]]:
    @trio.lowlevel.enable_ki_protection
    async def call(given: v.JSONObject, context: abc.ToolContext) -> object:
        values = arguments.bind(given, context)
        return await _awaited(ki.call_sync_unprotected(fn, **values))

    return call


def _thread_call(
    fn: Callable[..., object], arguments: _Arguments, abandon_on_cancel: bool
) -> Callable[[v.JSONObject, abc.ToolContext], Awaitable[object]]:
    @trio.lowlevel.enable_ki_protection
    async def call(given: v.JSONObject, context: abc.ToolContext) -> object:
        values = arguments.bind(given, context)
        # Looked up at each call: the fault sweep puts a stand-in there.
        outcome = await trio.to_thread.run_sync(
            _in_thread, context, fn, values, abandon_on_cancel=abandon_on_cancel
        )
        if not outcome:
            # Only a cancelled call is given up, so this raises; what follows keeps
            # a call that never began from ever looking like one that returned.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise errors.InternalError(
                "a call was given up before it began, but nothing had cancelled it"
            )
        return await _awaited(outcome[0])

    return call


async def _awaited(returned: object) -> object:
    """What a function that is not declared async returned, awaited where it can be."""
    if inspect.isawaitable(returned):
        return await ki.await_unprotected(returned)
    return returned


def _in_thread(
    context: abc.ToolContext, fn: Callable[..., object], values: dict[str, Any]
) -> tuple[()] | tuple[object]:
    """What ``fn`` returned, or nothing when the call was given up before it began."""
    # A cancel that came while the thread was starting beats the call.
    trio.from_thread.check_cancelled()
    if not context.claim_start():
        return ()
    # In a tuple, because trio takes a coroutine that a thread returns for a mistake.
    return (fn(**values),)
