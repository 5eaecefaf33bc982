"""Any Python value as plain JSON, with a marker where something is lost.

What may live here: the rules for turning values into JSON. Plain JSON is what
`trio_runner._core.json_data` says; that file refuses other values, this one
converts them. The result shares nothing with the value. Where information is
lost, a short text in round brackets stands in its place.

Bounds: a value may contain itself, be nested without end, or stand for more
data than fits in memory because its parts are shared; all three end in a marker.
"""

from __future__ import annotations

import binascii
import dataclasses
import datetime as dt
import enum
import json
import math
import numbers
import pathlib
import uuid
from collections.abc import Coroutine, Iterable, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

import attrs

import trio_runner._core.describe as describe
import trio_runner._core.json_data as json_data
import trio_runner._core.values as v

_MAX_ITEMS: Final = 200_000
_MAX_CHARACTERS: Final = 64 * 1024 * 1024

#: As in `json_data`: Python refuses to print whole numbers of many more digits.
_MAX_INT_BITS: Final = 13_000


class NotDataError(Exception):
    """The value has no JSON form, such as a generator or a function; private to the core."""


class Conversion:
    """One conversion of one value, with what it has used of its bounds.

    Attributes:
      items_left: values it may still produce.
      characters_left: characters of text it may still produce.
      path: the ids of the containers around the current one.
    """

    __slots__ = ("_characters_left", "_items_left", "_path")

    def __init__(self) -> None:
        self._items_left = _MAX_ITEMS
        self._characters_left = _MAX_CHARACTERS
        self._path: set[int] = set()

    def top(self, value: object) -> v.JSONValue:
        """Convert the whole value.

        Raises:
          NotDataError: for a value without a JSON form.
          Exception: what the value itself raises when it is read.
        """
        if value is None or type(value) in (str, bool, int, float):
            return self.part(value)
        return self._compound(value, 0)

    def part(self, value: object, depth: int = 0) -> v.JSONValue:
        """Convert a value inside another; a marker where `top` would raise."""
        kind = type(value)
        if kind is str:
            return self._text(cast("str", value))
        if value is None or kind is bool:
            return cast("bool | None", value)
        if kind is int:
            return _whole(cast("int", value))
        if kind is float:
            return _real(cast("float", value))
        return self._compound_or_marker(value, depth)

    def _compound_or_marker(self, value: object, depth: int) -> v.JSONValue:
        try:
            return self._compound(value, depth)
        except NotDataError:
            close_coroutine(value)
            return f"({describe.shown(value)}, which is not data)"
        except Exception as problem:  # noqa: BLE001  the tool border: reading runs the user's code
            error = describe.shorten(describe.describe_error(problem), 200)
            return f"({describe.shown(value)}, which cannot be read: {error})"

    def _compound(self, value: object, depth: int) -> v.JSONValue:
        if depth >= json_data.MAX_DEPTH:
            return f"(a {describe.type_name(value)} more than {json_data.MAX_DEPTH} levels deep)"
        identity = id(value)
        if identity in self._path:
            return f"(the {describe.type_name(value)} that this is inside of)"
        self._path.add(identity)
        try:
            kind = type(value)
            if kind is dict:
                return self._object(cast("dict[object, object]", value).items(), depth)
            if kind is list:
                return self._list(cast("list[object]", value), depth)
            return self._known(value, depth)
        finally:
            self._path.discard(identity)

    # The order matters: an enum member may be a str, a date may be a datetime,
    # numpy's numbers are registered as numbers, and a named tuple is a tuple.
    def _known(self, value: object, depth: int) -> v.JSONValue:
        match value:
            case type() | BaseException():
                raise NotDataError
            case enum.Enum():
                return self.part(value.value, depth + 1)
            case str():
                return self._text(str.__str__(value))
            case numbers.Number():
                return _number(value)
            case bytes() | bytearray() | memoryview():
                encoded = base64_text(cast("bytes", value))
                return self._text(f"data:application/octet-stream;base64,{encoded}")
            case dt.date() | dt.time():
                return value.isoformat()
            case dt.timedelta() | uuid.UUID() | pathlib.PurePath():
                return self._text(str(value))
            case Mapping():
                return self._object(cast("Mapping[object, object]", value).items(), depth)
            case set() | frozenset():
                return self._set(cast("AbstractSet[object]", value), depth)
            case tuple() if hasattr(cast("Any", value), "_fields"):
                pairs = zip(cast("Any", value)._fields, cast("Any", value), strict=False)
                return self._object(pairs, depth)
            case Sequence() | AbstractSet() | ValuesView():
                return self._list(cast("Iterable[object]", value), depth)
            case _:
                return self._fields(value, depth)

    def _fields(self, value: object, depth: int) -> v.JSONValue:
        """What is known by the methods or fields of its class, so that nothing is imported."""
        kind: Any = type(value)
        if hasattr(kind, "model_dump"):  # pydantic
            return self.part(_model_dump(value), depth + 1)
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
        elif attrs.has(kind):
            names = [field.name for field in attrs.fields(kind)]
        elif hasattr(kind, "tolist"):  # numpy's arrays and scalars, array.array
            return self.part(cast("Any", value).tolist(), depth + 1)
        else:
            raise NotDataError
        return self._object([(name, getattr(value, name)) for name in names], depth)

    def _object(self, pairs: Iterable[tuple[object, object]], depth: int) -> v.JSONObject:
        result: v.JSONObject = {}
        for key, item in pairs:
            if self._items_left <= 0:
                result["(cut)"] = f"(the rest is left out: more than {_MAX_ITEMS} values)"
                break
            self._items_left -= 1
            text = self._text(key) if type(key) is str else self._key(key)
            while text in result:  # two keys that are equal only as text, such as 1 and "1"
                text = f"{text} ({len(result) + 1})"
            result[text] = self.part(item, depth + 1)
        return result

    def _key(self, key: object) -> str:
        data = self.part(key, json_data.MAX_DEPTH - 2)
        if type(data) is str:
            return data
        return json.dumps(data, ensure_ascii=False, allow_nan=False)

    def _list(self, items: Iterable[object], depth: int) -> list[v.JSONValue]:
        result: list[v.JSONValue] = []
        for item in items:
            if self._items_left <= 0:
                result.append(f"(the rest is left out: more than {_MAX_ITEMS} values)")
                break
            self._items_left -= 1
            result.append(self.part(item, depth + 1))
        return result

    def _set(self, items: AbstractSet[object], depth: int) -> list[v.JSONValue]:
        result = self._list(items, depth)
        # The order of a set differs between processes; a result should not.
        kinds = {type(item) for item in result}
        if kinds <= {int, float} or kinds <= {str}:
            return sorted(cast("list[Any]", result))
        return sorted(result, key=lambda item: json.dumps(item, sort_keys=True))

    def _text(self, text: str) -> str:
        if len(text) > self._characters_left:
            return f"(text of {len(text)} characters is left out)"
        self._characters_left -= len(text)
        return text if text.isascii() else json_data.safe_text(text)


def _whole(value: int) -> v.JSONValue:
    bits = value.bit_length()
    return value if bits <= _MAX_INT_BITS else f"(a whole number of {bits} bits)"


def _real(value: float) -> v.JSONValue:
    return value if math.isfinite(value) else f"({value})"


def _number(value: object) -> v.JSONValue:
    """A number of another type than Python's own; exact ones keep their digits as text."""
    match value:
        case int():
            return _whole(int.__int__(value))
        case float():
            return _real(float.__float__(value))
        case numbers.Integral():
            return _whole(int(value))
        case numbers.Real() if not isinstance(value, numbers.Rational):
            return _real(float(value))
        case _:  # Decimal, Fraction, complex
            return json_data.safe_text(str(value))


def base64_text(data: bytes | bytearray | memoryview[Any]) -> str:
    """The bytes as base64 text, in one line."""
    return binascii.b2a_base64(bytes(data), newline=False).decode("ascii")


def _model_dump(value: Any) -> object:
    try:
        return value.model_dump(mode="json")
    except Exception:  # noqa: BLE001  the tool border: a field without a JSON form, often
        return value.model_dump()


def close_coroutine(value: object) -> None:
    """Close a coroutine that nobody will await: left alone it warns when it is collected."""
    try:
        if isinstance(value, Coroutine):
            cast("Coroutine[Any, Any, Any]", value).close()
    except Exception:  # noqa: BLE001, S110  the tool border: both may run the user's code
        pass
