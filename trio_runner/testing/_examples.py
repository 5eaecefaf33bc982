"""Arguments that fit a tool's schema, made without a model.

What may live here: one small, deterministic value for a JSON Schema. It serves
tools that take ordinary arguments; for others the user writes the call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

_DEPTH: Final = 8


def example_arguments(schema: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """The required arguments of a tool, each with the plainest value that its schema allows.

    Another ``number`` gives other texts and numbers, where the schema lets it.

    A default, a constant, an example or the first of an enum is taken where
    there is one. Patterns and formats are not understood.
    """
    value = _Maker(schema, number).example(schema, _DEPTH)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


class _Maker:
    def __init__(self, root: Mapping[str, Any], number: int) -> None:
        self._root = root
        self._number = number

    def example(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth == 0:
            return None
        part = cast("Mapping[str, Any]", schema)
        for word in ("default", "const"):
            if word in part:
                return part[word]
        for word in ("examples", "enum"):
            if part.get(word):
                return part[word][self._number % len(part[word])]
        if "$ref" in part:
            return self.example(_resolve(part["$ref"], self._root), depth - 1)
        for word in ("anyOf", "oneOf", "allOf"):
            if part.get(word):
                return self.example(part[word][0], depth - 1)
        return self._of_type(part, depth)

    def _of_type(self, part: Mapping[str, Any], depth: int) -> Any:
        kind = part.get("type", "object" if "properties" in part else None)
        if isinstance(kind, list):
            kind = cast("list[Any]", kind)[0]
        match kind:
            case "object":
                properties = part.get("properties", {})
                return {
                    name: self.example(properties.get(name), depth - 1)
                    for name in cast("Sequence[str]", part.get("required", ()))
                }
            case "array":
                item = self.example(part.get("items"), depth - 1)
                return [item] * part.get("minItems", 0)
            case "string":
                plain = "x" * max(1, part.get("minLength", 1))
                varied = f"{plain}{self._number}" if self._number else plain
                return varied if len(varied) <= part.get("maxLength", len(varied)) else plain
            case "integer" | "number":
                least = part.get("minimum", part.get("exclusiveMinimum", -1) + 1)
                most = part.get("maximum", part.get("exclusiveMaximum", math.inf) - 1)
                return min(least, most) if least >= most else min(least + self._number, most)
            case "boolean":
                return bool(self._number % 2)
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
