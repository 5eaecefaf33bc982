"""JSON Schemas that servers declare: whether they can be used. Pure, bounded, one walk.

A tool with a schema that is none makes providers refuse every request, so it is
looked at when it is listed. The look is our own walk over the document, since
the general way (validating it against its metaschema) takes milliseconds for
each tool and would hold up every other task. It checks the form of each keyword
and that each reference leads to a place in the document; nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import unquote

#: The JSON values that a schema may consist of, and the levels it may have.
MAX_PARTS: Final = 10_000
MAX_DEPTH: Final = 100
#: The characters of a reference.
MAX_REFERENCE: Final = 1000

TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})

# Where the schemas are inside a schema: as a value, in a list, or under names.
_ONE: Final = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if",
        "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
_LISTED: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)


def schema_problem(schema: object) -> str | None:
    """Return why ``schema`` is no JSON Schema we can use, or None."""
    if type(schema) is not dict:
        return f"the schema is {_kind(schema)}, not an object"
    document = cast("dict[str, Any]", schema)
    if (problem := _extent_problem(document)) is not None:
        return problem
    return _Walk(document).problem()


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


def is_older(document: Mapping[str, Any]) -> bool:
    """Return whether ``document`` says that it is of a draft before 2020-12."""
    said = document.get("$schema")
    return type(said) is str and ("draft-0" in said or "2019-09" in said)


def resolve(document: Mapping[str, Any], reference: str) -> tuple[bool, object]:
    """Return whether a reference into ``document`` leads to something, and to what."""
    here: object = document
    if len(reference) > MAX_REFERENCE:
        return False, None
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
                if not part.isdecimal() or len(part) > 6 or int(part) >= len(items):
                    return False, None
                here = items[int(part)]
            case _:
                return False, None
    return True, here


def _kind(value: object) -> str:
    return "missing" if value is None else f"of type {type(value).__name__!r}"


def _extent_problem(document: dict[str, Any]) -> str | None:
    level: list[object] = [document]
    parts = depth = 0
    while level:
        parts, depth = parts + len(level), depth + 1
        if parts > MAX_PARTS:
            return f"the schema is too large: more than {MAX_PARTS} parts"
        if depth > MAX_DEPTH:
            return f"the schema is nested too deeply: more than {MAX_DEPTH} levels"
        following: list[object] = []
        for here in level:
            match here:
                case dict():
                    following.extend(cast("dict[str, object]", here).values())
                case list():
                    following.extend(cast("list[object]", here))
                case _:
                    pass
        level = following
    return None


class _Walk:
    """One look at every schema inside a document, also at those only references lead to."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._older = is_older(document)
        #: Schemas that are still to be looked at, each with its place for messages.
        self._todo: list[tuple[object, str]] = [(document, "")]
        #: Identities of the objects seen; the document keeps them alive.
        self._seen: set[int] = set()
        #: References that are known to lead somewhere.
        self._sound: set[str] = set()

    def problem(self) -> str | None:
        while self._todo:
            here, where = self._todo.pop()
            if type(here) is bool:
                continue
            if type(here) is not dict:
                return f"what is {_kind(here)} is not a schema at {where.strip('/') or 'the top'}"
            schema = cast("dict[str, object]", here)
            if id(schema) in self._seen:
                continue
            self._seen.add(id(schema))
            for keyword, value in schema.items():
                if (said := self._keyword(keyword, value, where)) is not None:
                    return f"{said} at {f'{where}/{keyword}'.strip('/')}"
        return None

    def _keyword(self, keyword: str, value: object, where: str) -> str | None:
        place = f"{where}/{keyword}"
        if keyword == "$ref":
            return self._reference(value)
        if keyword in _LISTED or (keyword == "items" and self._older and _is_list(value)):
            if not _is_list(value) or not value:
                return f"what is {_kind(value)} is not a list of schemas"
            self._todo += [(item, place) for item in cast("list[object]", value)]
        elif keyword in _ONE or keyword == "items":
            self._todo.append((value, place))
        elif keyword in _NAMED:
            if type(value) is not dict:
                return f"what is {_kind(value)} is not an object of schemas"
            named = cast("dict[str, object]", value)
            self._todo += [(item, f"{place}/{name[:50]}") for name, item in named.items()]
        elif keyword in ("exclusiveMaximum", "exclusiveMinimum") and self._older:
            return (
                None if type(value) in (bool, int, float) else f"what is {_kind(value)} is no bound"
            )
        elif (form := _FORMS.get(keyword)) is not None and not form(value):
            return f"{_shown(value)} is not allowed"
        return None

    def _reference(self, value: object) -> str | None:
        if type(value) is not str:
            return f"what is {_kind(value)} is no reference"
        followed: set[str] = set()
        reference: object = value
        # A schema that is nothing but a reference is followed further: it must end somewhere.
        while type(reference) is str and reference not in self._sound:
            if reference in followed:
                return f"the reference {reference!r} leads back to itself"
            followed.add(reference)
            if reference != "#" and not reference.startswith("#/"):
                # A name within the document ("#node") or another document: only the
                # first could work, and no server was seen that needs it.
                return f"the reference {reference[:100]!r} does not point into the schema itself"
            found, target = resolve(self._document, reference)
            if not found:
                return f"the reference {reference[:100]!r} leads nowhere"
            self._todo.append((target, reference[1:]))
            reference = (
                cast("dict[str, object]", target).get("$ref") if _is_object(target) else None
            )
        self._sound |= followed
        return None


def _is_object(value: object) -> bool:
    return type(value) is dict


def _shown(value: object) -> str:
    return (
        f"{value!r}"[:100] if type(value) in (str, int, float, bool) else f"what is {_kind(value)}"
    )


# --- the form of each other keyword ---------------------------------------------


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_count(value: object) -> bool:
    match value:
        case bool():
            return False
        case int():
            return value >= 0
        case float():
            return value >= 0 and value.is_integer()
        case _:
            return False


def _is_list(value: object) -> bool:
    return type(value) is list


def _is_list_of_names(value: object) -> bool:
    if type(value) is not list:
        return False
    items = cast("list[object]", value)
    return all(type(item) is str for item in items) and len(set(items)) == len(items)


def _is_type(value: object) -> bool:
    if type(value) is str:
        return value in TYPES
    return bool(value) and _is_list_of_names(value) and TYPES.issuperset(cast("list[str]", value))


def _is_named_lists(value: object) -> bool:
    return type(value) is dict and all(
        _is_list_of_names(item) for item in cast("dict[str, object]", value).values()
    )


def _forms() -> Iterator[tuple[str, Callable[[object], bool]]]:
    table: tuple[tuple[str, Callable[[object], bool]], ...] = (
        ("$schema $id $anchor $dynamicRef $comment title description pattern format", _is_text),
        ("contentEncoding contentMediaType", _is_text),
        ("minLength maxLength minItems maxItems minProperties maxProperties", _is_count),
        ("minContains maxContains", _is_count),
        ("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf", _is_number),
        ("uniqueItems readOnly writeOnly deprecated", _is_flag),
        ("enum examples", _is_list),
        ("required", _is_list_of_names),
        ("dependentRequired", _is_named_lists),
        ("type", _is_type),
    )
    for keywords, form in table:
        for keyword in keywords.split():
            yield keyword, form


_FORMS: Final[Mapping[str, Callable[[object], bool]]] = dict(_forms())
