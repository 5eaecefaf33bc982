"""JSON Schemas that servers declare: whether they can be used, and checking values. Pure.

Nothing is ever fetched: a reference must resolve within its own document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import referencing

import trio_runner_adapters.mcp._errors as errors

_DEFAULT: Final = jsonschema.Draft202012Validator


def schema_problem(schema: object) -> str | None:
    """Return why ``schema`` is no JSON Schema we can use, or None."""
    if type(schema) is not dict:
        return f"the schema is {_kind(schema)}, not an object"
    document = cast("dict[str, Any]", schema)
    try:
        validator: Any = jsonschema.validators.validator_for(document, default=_DEFAULT)
        validator.check_schema(document)
        return _reference_problem(document)
    except jsonschema.SchemaError as error:
        where = "/".join(str(part) for part in error.absolute_path)
        return errors.shortened(f"{error.message} at {where or 'the top'}", 300)
    except RecursionError:
        return "the schema is nested too deeply"


def input_schema_problem(schema: object) -> str | None:
    """Return why ``schema`` cannot describe a tool's arguments, or None.

    A schema without a ``type`` is fine: `completed` adds the only one possible.
    """
    if (problem := schema_problem(schema)) is not None:
        return problem
    kind = cast("dict[str, Any]", schema).get("type", "object")
    return None if kind == "object" else f"its type is {kind!r}, not 'object'"


def completed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``schema`` with the type that arguments always have."""
    return {"type": "object", **schema}


class OutputCheck:
    """Checks structured content against a schema that `schema_problem` found good."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        kind: Any = jsonschema.validators.validator_for(dict(schema), default=_DEFAULT)
        # An empty registry: nothing outside the document is looked up.
        self._validator: Any = kind(dict(schema), registry=referencing.Registry[Any]())

    def mismatch(self, value: object) -> str | None:
        """Return in what way ``value`` does not fit, bounded, or None."""
        found = self._validator.iter_errors(value)
        error = cast("Any", jsonschema.exceptions).best_match(found)  # untyped there
        if error is None:
            return None
        where = "/".join(str(part) for part in error.absolute_path)
        return errors.shortened(f"{error.message} at {where or 'the top'}", 300)


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _reference_problem(document: dict[str, Any]) -> str | None:
    for start in _references(document):
        reference = start
        seen: set[str] = set()
        while True:
            if reference in seen:
                return f"the reference {reference!r} leads back to itself"
            seen.add(reference)
            if not reference.startswith("#") or not _is_pointer(reference):
                # A name within the document ("#node") or another document: only the
                # first could work, and no server was seen that needs it.
                return f"the reference {reference!r} does not point into the schema itself"
            found, target = _resolve(document, reference)
            if not found:
                return f"the reference {reference!r} leads nowhere"
            following = _reference_of(target)
            if following is None:
                break
            reference = following
    return None


def _is_pointer(reference: str) -> bool:
    return reference == "#" or reference.startswith("#/")


def _reference_of(schema: object) -> str | None:
    if type(schema) is not dict:
        return None
    reference = cast("dict[str, Any]", schema).get("$ref")
    return reference if type(reference) is str else None


def _references(document: object) -> Iterator[str]:
    """Every ``$ref`` in the document, wherever it stands."""
    todo: list[object] = [document]
    while todo:
        here = todo.pop()
        if (reference := _reference_of(here)) is not None:
            yield reference
        match here:
            case dict():
                todo.extend(cast("dict[str, object]", here).values())
            case list():
                todo.extend(cast("list[object]", here))
            case _:
                pass


def _resolve(document: dict[str, Any], reference: str) -> tuple[bool, object]:
    here: object = document
    for raw in reference[2:].split("/") if len(reference) > 1 else ():
        part = unquote(raw).replace("~1", "/").replace("~0", "~")
        match here:
            case dict():
                fields = cast("dict[str, object]", here)
                if part not in fields:
                    return False, None
                here = fields[part]
            case list():
                items = cast("list[object]", here)
                if not part.isdecimal() or int(part) >= len(items):
                    return False, None
                here = items[int(part)]
            case _:
                return False, None
    return True, here
