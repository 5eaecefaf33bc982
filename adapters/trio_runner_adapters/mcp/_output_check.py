"""Whether structured content fits its tool's output schema. Pure, and bounded in work.

It runs between two checkpoints, on a schema and a value that the same server
made up, so it may neither take long nor recurse for ever. Hence our own
evaluation, which counts its steps, and which leaves out regular expressions.

It understands a part of JSON Schema, and only keywords that make a schema
stricter: what it leaves out (``pattern``, ``not``, ``if``, ...) can make it more
lenient and never refuse a value that fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import trio_runner_adapters.mcp._schemas as schemas

#: Steps of one check, about a microsecond each.
MAX_STEPS: Final = 50_000
#: Levels of schemas within schemas that are evaluated, references included.
MAX_DEPTH: Final = 100


class UncheckableError(Exception):
    """The value cannot be checked with bounded work; the text says why."""


class OutputCheck:
    """Checks structured content against a schema that `schema_problem` found good."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema

    def mismatch(self, value: object) -> str | None:
        """Return in what way ``value`` does not fit, bounded, or None.

        Raises:
          UncheckableError: it would take too long to find out.
        """
        found = _Evaluation(self._schema).misfit(self._schema, value, ())
        if found is None:
            return None
        said, where = found
        place = "/".join(str(part)[:50] for part in where)
        return f"{said} at {place[:200] or 'the top'}"


_Place = tuple[str | int, ...]
_Misfit = tuple[str, _Place]


class _Evaluation:
    """One check: the schema's document, and how much work is left."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        #: Up to draft 7 a reference stands for everything beside it.
        self._ref_alone = "draft-0" in str(document.get("$schema", ""))
        self._steps = MAX_STEPS
        self._depth = 0

    def misfit(self, schema: object, value: object, where: _Place) -> _Misfit | None:
        """Return the first way in which ``value`` does not fit, and where, or None."""
        if schema is False:
            return f"{_shown(value)} is not allowed", where
        if type(schema) is not dict:
            return None  # True
        fields = cast("dict[str, Any]", schema)
        parts = len(cast("list[object]", value)) if type(value) in (list, dict) else 0
        self._take(1 + len(fields) + parts)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UncheckableError(f"its schemas refer to each other more than {MAX_DEPTH} deep")
        if "$id" in fields and schema is not self._document:
            raise UncheckableError("a schema inside it has an $id of its own")
        found = self._misfit(fields, value, where)
        self._depth -= 1
        return found

    def _misfit(self, schema: dict[str, Any], value: object, where: _Place) -> _Misfit | None:
        reference = schema.get("$ref")
        if type(reference) is str:
            _, target = schemas.resolve(self._document, reference)
            found = self.misfit(target, value, where)
            if found is not None or self._ref_alone:
                return found
        if (said := self._by_itself(schema, value)) is not None:
            return said, where
        for part, inner, place in _inside(schema, value):
            if (found := self.misfit(inner, part, (*where, place))) is not None:
                return found
        for inner in schema.get("allOf", ()):
            if (found := self.misfit(inner, value, where)) is not None:
                return found
        # oneOf as anyOf: that no second one fits cannot be told for sure.
        for keyword in ("anyOf", "oneOf"):
            choices = schema.get(keyword)
            if choices and (found := self._none_fits(choices, value, where)) is not None:
                return found
        return None

    def _none_fits(self, choices: list[object], value: object, where: _Place) -> _Misfit | None:
        found: _Misfit | None = None
        for choice in choices:
            one = self.misfit(choice, value, where)
            if one is None:
                return None
            # The choice that fitted furthest down says it best.
            if found is None or len(one[1]) > len(found[1]):
                found = one
        return found

    def _by_itself(self, schema: dict[str, Any], value: object) -> str | None:
        """What is wrong with the value apart from its parts."""
        types = schema.get("type")
        if types is not None:
            allowed = cast("list[str]", types if type(types) is list else [types])
            if not any(_is_of(value, name) for name in allowed):
                return f"{_shown(value)} is not of type {' or '.join(allowed)}"
        if "const" in schema and not self._same(schema["const"], value):
            return f"{_shown(value)} is not {_shown(schema['const'])}"
        choices = schema.get("enum")
        if choices is not None and not any(self._same(choice, value) for choice in choices):
            return f"{_shown(value)} is none of the {len(choices)} values allowed"
        match value:
            case bool():
                return None
            case int() | float():
                return _number_problem(schema, value)
            case str():
                return _size_problem(schema, len(value), "Length", "characters")
            case list():
                return _size_problem(schema, len(cast("list[object]", value)), "Items", "items")
            case dict():
                fields = cast("dict[str, object]", value)
                for name in schema.get("required", ()):
                    if name not in fields:
                        return f"{name[:100]!r} is missing"
                return _size_problem(schema, len(fields), "Properties", "properties")
            case _:
                return None

    def _same(self, one: object, other: object) -> bool:
        """Whether two JSON values are equal; unlike Python's, true is not 1."""
        self._take(1)
        match one, other:
            case dict(), dict():
                first, second = cast("dict[str, object]", one), cast("dict[str, object]", other)
                return first.keys() == second.keys() and all(
                    self._same(item, second[name]) for name, item in first.items()
                )
            case list(), list():
                items, others = cast("list[object]", one), cast("list[object]", other)
                return len(items) == len(others) and all(map(self._same, items, others))
            case _:
                return (type(one) is bool) is (type(other) is bool) and one == other

    def _take(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise UncheckableError("the check would take too long")


def _inside(schema: dict[str, Any], value: object) -> Iterator[tuple[object, object, str | int]]:
    """The parts of a value, each with a schema for it and its place."""
    match value:
        case dict():
            properties = cast("dict[str, object]", schema.get("properties", {}))
            # Which others there are is said by regular expressions then.
            others = True if "patternProperties" in schema else schema.get("additionalProperties")
            for name, item in cast("dict[str, object]", value).items():
                if name in properties:
                    yield item, properties[name], name
                elif others is not None and others is not True:
                    yield item, others, name
        case list():
            items = schema.get("items")
            first = schema.get("prefixItems", ())
            if type(items) is list:  # up to draft 2019-09
                first, items = cast("list[object]", items), schema.get("additionalItems")
            for place, item in enumerate(cast("list[object]", value)):
                inner = first[place] if place < len(first) else items
                if inner is not None and inner is not True:
                    yield item, inner, place
        case _:
            pass


def _is_of(value: object, name: str) -> bool:
    match value:
        case None:
            return name == "null"
        case bool():
            return name == "boolean"
        case int():
            return name in ("integer", "number")
        case float():
            return name == "number" or (name == "integer" and value.is_integer())
        case str():
            return name == "string"
        case list():
            return name == "array"
        case _:
            return name == "object"


def _number_problem(schema: dict[str, Any], value: float) -> str | None:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    # Draft 4 has true and false there; the looser bound beside it is checked.
    too_low = value < low or (above is not None and type(above) is not bool and value <= above)
    too_high = value > high or (below is not None and type(below) is not bool and value >= below)
    if too_low:
        return f"{_shown(value)} is too small"
    return f"{_shown(value)} is too big" if too_high else None


def _size_problem(schema: dict[str, Any], size: int, what: str, unit: str) -> str | None:
    low, high = schema.get(f"min{what}", 0), schema.get(f"max{what}", math.inf)
    if size < low:
        return f"{size} {unit} are too few"
    return f"{size} {unit} are too many" if size > high else None


def _shown(value: object) -> str:
    match value:
        case str():
            return repr(value) if len(value) <= 100 else f"{value[:100]!r}..."
        case list():
            return "a list"
        case dict():
            return "an object"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > 1000:
            return "a huge number"
        case _:
            return repr(value)
