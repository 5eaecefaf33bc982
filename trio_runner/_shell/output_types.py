"""What a type is to a model, and how an answer becomes a value of it: by pydantic.

Loaded with the first turn that is to end in a value of a type
(``structured.py``). What may live here: the JSON Schema of a type, validation,
and attrs classes, for which pydantic is given a model of their fields. A raw
JSON Schema needs none of this.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pydantic
import pydantic.json_schema
import typing_extensions

import trio_runner._core.describe as describe
import trio_runner._core.structured as structured
import trio_runner._core.values as v

#: Where an answer stands that is no JSON object by itself: providers want an object.
_WRAPPED = "value"
_MAX_SHOWN = 60


def reader_of(output: object) -> tuple[structured.OutputFormat, Callable[[v.JSONValue], object]]:
    """The format of the answers that are values of a type, and what makes a value of one.

    What it returns raises `structured.MisfitError` for an answer that does not fit, and what
    validators of the type raise.

    Raises:
      TypeError: the type has no JSON Schema.
    """
    try:
        adapter = pydantic.TypeAdapter[Any](_Models().type_with_models(output))
        schema = adapter.json_schema(schema_generator=_Schema)
    except Exception as error:
        # Types bring schema code of their own, which may raise anything.
        why = describe.describe_error(error).partition("\n")[0]
        raise TypeError(
            f"output is {output!r}, which has no JSON Schema: {why}. Expected a pydantic model, an "
            "attrs class, a dataclass, a TypedDict, or another type that pydantic knows; or a "
            "JSON Schema as a dict"
        ) from error
    schema = _top_resolved(schema)
    wraps = schema.get("type") != "object"
    name = structured.output_name(schema.get("title"))
    if wraps:
        schema = _in_an_object(schema)
    output_format = structured.OutputFormat(name, schema, structured.is_strict(schema))
    return output_format, _Reader(adapter, wraps=wraps)


class _Schema(pydantic.json_schema.GenerateJsonSchema):
    """Without the titles that only repeat a field's name, and without warnings."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _top_resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the definition in its place that it only refers to (a recursive type)."""
    reference = schema.get("$ref")
    if type(reference) is not str:
        return schema
    definitions: dict[str, Any] = schema["$defs"]
    return {**definitions[reference.removeprefix("#/$defs/")], "$defs": definitions}


def _in_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    inner = dict(schema)
    definitions = inner.pop("$defs", None)
    outer: dict[str, Any] = {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
    }
    return outer if definitions is None else {**outer, "$defs": definitions}


class _Reader:
    """Makes a value of an answer."""

    def __init__(self, adapter: pydantic.TypeAdapter[Any], *, wraps: bool) -> None:
        self._adapter = adapter
        self._wraps = wraps

    def __call__(self, answer: v.JSONValue) -> object:
        if self._wraps:
            match answer:
                case {"value": inner, **others} if not others:
                    answer = inner
                case _:
                    found = describe.shorten(json.dumps(answer), _MAX_SHOWN)
                    raise structured.MisfitError([
                        f'the answer is {found}; expected an object with "{_WRAPPED}" alone'
                    ])  # fmt: skip
        try:
            # As JSON, not as Python values: a date is text there.
            return self._adapter.validate_json(json.dumps(answer))
        except pydantic.ValidationError as error:
            top = _WRAPPED if self._wraps else ""
            raise structured.MisfitError(_problems(error, top)) from error


def _problems(error: pydantic.ValidationError, top: str) -> list[str]:
    return [
        f"{_place(top, detail['loc'])}: {detail['msg']}{_found(detail['type'], detail['input'])}"
        for detail in error.errors(include_url=False, include_context=False)
    ]


def _place(top: str, loc: tuple[int | str, ...]) -> str:
    path = top
    for part in loc:
        path += f"[{part}]" if type(part) is int else f".{str(part)[:60]}"
    return describe.shorten(path.removeprefix("."), 200) or "the answer"


def _found(kind: str, value: object) -> str:
    if kind == "missing":
        return ""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return ""  # made by a validator of the user's
    return f"; found {describe.shorten(text, _MAX_SHOWN)}"


# --- attrs classes --------------------------------------------------------------


class _Models:
    """The models that stand for attrs classes, of one type.

    Strictly private. A class that holds itself finds a forward reference to its model.
    """

    def __init__(self) -> None:
        self._by_class: dict[type, Any] = {}
        self._by_name: dict[str, Any] = {}
        self._made: list[type[pydantic.BaseModel]] = []
        #: Those that are being looked at: one within itself stays as it is.
        self._typed_dicts: list[object] = []

    def type_with_models(self, hint: object) -> Any:
        """``hint`` with a model in the place of each attrs class in it."""
        changed = self._changed(hint)
        for model in self._made:
            # Those that wait for a class which was not ready then.
            model.model_rebuild(_types_namespace=self._by_name)
        return changed

    def _changed(self, hint: Any) -> Any:
        if isinstance(hint, type) and attrs.has(hint):
            return self._model_of(hint)
        if typing_extensions.is_typeddict(hint) and hint not in self._typed_dicts:
            return self._typed_dict_of(hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is None or origin is typing.Literal or not arguments:
            return hint
        if origin is typing.Annotated:
            return typing.Annotated[self._changed(arguments[0]), *arguments[1:]]
        changed = tuple([self._changed(each) for each in arguments])
        if all(new is old for new, old in zip(changed, arguments, strict=True)):
            return hint
        if origin is types.UnionType:
            return typing.Union[changed]  # noqa: UP007  a forward reference has no |
        return origin[changed[0] if len(changed) == 1 else changed]

    def _typed_dict_of(self, cls: Any) -> Any:
        self._typed_dicts.append(cls)
        hints: dict[str, Any] = typing.get_type_hints(cls, include_extras=True)
        changed = {name: self._changed(hint) for name, hint in hints.items()}
        self._typed_dicts.remove(cls)
        if not _is_refused(cls) and all(changed[name] is hint for name, hint in hints.items()):
            return cls
        for name, hint in hints.items():
            says = typing.get_origin(hint) in (typing.Required, typing.NotRequired)
            if not says and name not in cls.__required_keys__:
                changed[name] = typing.NotRequired[changed[name]]
        make: Any = typing_extensions.TypedDict  # called as type checkers do not know it
        made = make(cls.__name__, changed)
        made.__doc__ = cls.__doc__
        return made

    def _model_of(self, cls: Any) -> Any:
        known = self._by_class.get(cls)
        if known is not None:
            return known
        name = f"_{cls.__name__}_{len(self._by_class)}"
        self._by_class[cls] = typing.ForwardRef(name)
        hints = typing.get_type_hints(cls, include_extras=True)
        names: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for number, attribute in enumerate(attrs.fields(cls)):
            if attribute.init:
                # Any name is fine in JSON, but not as a field of a model.
                field = f"field_{number}"
                names[field] = attribute.alias
                hint = self._changed(hints.get(attribute.name, attribute.type or Any))
                fields[field] = (hint, _field(attribute))
        # What is not among the fields could not be given to the class.
        config = pydantic.ConfigDict(extra="forbid")
        model = pydantic.create_model(
            cls.__name__, __config__=config, __doc__=cls.__doc__, **fields
        )
        self._made.append(model)
        made = typing.Annotated[model, pydantic.AfterValidator(_Made(cls, names))]
        self._by_class[cls] = self._by_name[name] = made
        return made


def _is_refused(typed_dict: object) -> bool:
    """Whether pydantic refuses it: before 3.12, ``typing.TypedDict`` forgets what it inherits."""
    return sys.version_info < (3, 12) and type(typed_dict).__module__ == "typing"


def _field(attribute: attrs.Attribute[Any]) -> Any:
    options: dict[str, Any] = {}
    match attribute.default:
        case attrs.NOTHING:
            pass
        case attrs.Factory():  # pyright: ignore[reportGeneralTypeIssues]
            options["default_factory"] = _nothing
        case default:
            options["default"] = default
    description = attribute.metadata.get("description")
    return pydantic.Field(alias=attribute.alias, description=description, **options)


def _nothing() -> None:
    """Stands for a default that the class makes itself."""


@attrs.frozen(eq=False)  # hashable whatever it holds
class _Made:
    """Makes an object of an attrs class of the model that was validated.

    Attributes:
      names: of the arguments, by field.
    """

    cls: Callable[..., object]
    names: Mapping[str, str]

    def __call__(self, model: pydantic.BaseModel) -> object:
        given = {self.names[field]: getattr(model, field) for field in model.model_fields_set}
        try:
            return self.cls(**given)
        except TypeError as error:  # pydantic takes it for a bug, and attrs' validators raise it
            raise ValueError(str(error)) from error
