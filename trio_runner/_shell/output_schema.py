"""Answers by a JSON Schema of the user's: checked by the library ``jsonschema``.

What may live here: loading it, and its words for what does not fit. It is no
dependency of the core: `Schema` says what to install where it is missing.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import trio_runner._core.structured as structured
import trio_runner._core.values as v
from trio_runner._core.describe import shorten
from trio_runner._core.json_data import NotJSONError, plain_json

_MAX_PROBLEMS: Final = 20


def schema_reader_of(
    output: Mapping[str, Any],
) -> tuple[structured.OutputFormat, Callable[[v.JSONValue], v.JSONValue]]:
    """The format of the answers that fit a JSON Schema, and what checks one and returns it.

    Raises:
      ImportError: jsonschema is not installed.
      ValueError: it is no JSON Schema.
    """
    try:
        schema: Any = plain_json(output)
    except NotJSONError as error:
        raise ValueError(f"the output schema is no JSON: {error}") from None
    jsonschema, registry = _load()
    validator_class: Any = jsonschema.validators.validator_for(
        schema, default=jsonschema.Draft202012Validator
    )
    try:
        validator_class.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(
            f"the output schema is no JSON Schema: {shorten(str(error.message), 500)}"
        ) from None
    output_format = structured.OutputFormat(
        structured.output_name(schema.get("title")), schema, structured.is_strict(schema)
    )
    return output_format, _Checked(validator_class(schema, registry=registry))


def _load() -> tuple[Any, Any]:
    """The library, and a registry without anything in it, so that no reference is fetched."""
    try:
        jsonschema = importlib.import_module("jsonschema")
        referencing: Any = importlib.import_module("referencing")
    except ImportError as error:
        raise ImportError(
            "an answer by a JSON Schema needs the library jsonschema, which cannot be imported "
            f"here ({error}); install it with 'python -m pip install trio-runner[jsonschema]', or "
            "give a type instead: a pydantic model, an attrs class, a dataclass, a TypedDict"
        ) from error
    return jsonschema, referencing.Registry()


class _Checked:
    """Returns an answer that fits."""

    def __init__(self, validator: Any) -> None:
        self._validator = validator

    def __call__(self, answer: v.JSONValue) -> v.JSONValue:
        found: Iterable[Any] = self._validator.iter_errors(answer)
        errors = list(itertools.islice(found, _MAX_PROBLEMS))
        if errors:
            raise structured.MisfitError([_problem(error) for error in errors])
        return answer


def _problem(error: Any) -> str:
    path = "".join(
        f"[{part}]" if type(part) is int else f".{str(part)[:60]}" for part in error.absolute_path
    )
    return f"{shorten(path.removeprefix('.'), 200) or 'the answer'}: {shorten(error.message, 400)}"
