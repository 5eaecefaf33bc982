"""Arguments that fit a tool's schema, made without a model.

What may live here: one small, deterministic value for a JSON Schema. It serves
tools that take ordinary arguments; for others the user writes the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

_DEPTH: Final = 8


def example_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The required arguments of a tool, each with the plainest value that its schema allows.

    A default, a constant, an example or the first of an enum is taken where
    there is one. Patterns and formats are not understood.
    """
    value = _example(schema, schema, _DEPTH)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _example(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    part = cast("Mapping[str, Any]", schema)
    for word in ("default", "const"):
        if word in part:
            return part[word]
    for word in ("examples", "enum"):
        if part.get(word):
            return part[word][0]
    if "$ref" in part:
        return _example(_resolve(part["$ref"], root), root, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if part.get(word):
            return _example(part[word][0], root, depth - 1)
    return _of_type(part, root, depth)


def _of_type(part: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = part.get("type", "object" if "properties" in part else None)
    if isinstance(kind, list):
        kind = cast("list[Any]", kind)[0]
    match kind:
        case "object":
            properties = part.get("properties", {})
            return {
                name: _example(properties.get(name), root, depth - 1)
                for name in cast("Sequence[str]", part.get("required", ()))
            }
        case "array":
            item = _example(part.get("items"), root, depth - 1)
            return [item] * part.get("minItems", 0)
        case "string":
            return "x" * max(1, part.get("minLength", 1))
        case "integer" | "number":
            least = part.get("minimum", part.get("exclusiveMinimum", 0) + 1)
            return min(least, part.get("maximum", least))
        case "boolean":
            return False
        case _:
            return None


def _resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in str(reference).removeprefix("#").split("/"):
        if step:
            inside: Mapping[str, Any] = (
                cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
            )
            found = inside.get(step)
    return found
