"""Plain JSON: what it is, how a value becomes it, how it is copied.

What may live here: functions on JSON values and on the text in them. Plain
JSON here means exactly ``dict`` with ``str`` keys, ``list``, ``str`` that
encodes as UTF-8, ``int``, finite ``float``, ``bool`` and ``None``, at most
`MAX_DEPTH` levels of lists and objects: what every encoder, store and provider
takes, and what shares nothing with the value it came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import trio_runner._core.values as v

#: Levels of lists and objects in one value. Encoders and decoders recurse, so
#: what is deeper could not be written or read back everywhere.
MAX_DEPTH: Final = 100

# Python itself refuses to print or parse a whole number of more than 4,300
# digits; 13,000 bits are a little over 3,900.
_MAX_INT_BITS: Final = 13_000

_EXPECTED: Final = "expected text, a finite number, true, false, null, a list or an object"


class NotJSONError(ValueError):
    """A value is not plain JSON; private to the core, which turns it into a result or report.

    Attributes:
      path: where in the value, such as ``$.rows[3].when``; ``$`` is the value itself.
      reason: what was found there and what was expected.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


# --- text -----------------------------------------------------------------------


def is_safe_text(text: str) -> bool:
    """Whether ``text`` encodes as UTF-8, that is: holds no lone surrogate."""
    if text.isascii():  # a flag on the string, so this costs nothing
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def safe_text(text: str) -> str:
    """``text`` itself when it encodes as UTF-8, else with U+FFFD for each lone surrogate.

    Two surrogates that make a pair become the character they stand for.
    """
    if is_safe_text(text):
        return text
    # UTF-16 is where surrogates come from: this joins the pairs and replaces the rest.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- making it plain ------------------------------------------------------------


def plain_json(value: object, *, max_depth: int = MAX_DEPTH) -> v.JSONValue:
    """Return ``value`` as plain JSON, a deep copy.

    Tuples become lists; any mapping becomes a dict; subclasses of ``str``,
    ``int``, ``float``, ``list`` and ``dict`` become the plain type; lone
    surrogates become U+FFFD.

    Args:
      max_depth: levels of lists and objects that are allowed.

    Raises:
      NotJSONError: for everything else (NaN, a date, a key that is no text,
        a value that is too deep or contains itself), with its path.
    """
    if is_plain_json(value, max_depth=max_depth):
        return copy_json(value)  # nearly always, and several times as quick
    return _plain(value, max_depth, [], value)


def _plain(value: object, room: int, trail: list[object], root: object) -> v.JSONValue:
    # ``trail`` holds the keys on the way here; it becomes a path only when needed.
    # ``root`` is the whole value, walked again to tell "contains itself" from "too deep".
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:
        return _plain_container(value, room, trail, root)
    match value:
        case None | bool():
            return value
        case str():
            return safe_text(value if kind is str else str.__str__(value))
        case int():
            if value.bit_length() > _MAX_INT_BITS:
                raise _problem(trail, "found a whole number of thousands of digits")
            return value if kind is int else int.__int__(value)
        case float():
            if not math.isfinite(value):
                raise _problem(trail, f"found {float.__repr__(value)}; {_EXPECTED}")
            return value if kind is float else float.__float__(value)
        case Mapping() | list() | tuple():
            return _plain_container(cast("object", value), room, trail, root)
        case _:
            raise _problem(trail, f"found a value of type {kind.__name__}; {_EXPECTED}")


def _plain_container(value: object, room: int, trail: list[object], root: object) -> v.JSONValue:
    if room <= 0:
        if _contains_itself(root, trail):
            raise _problem(trail[:8], "the value contains itself; expected a finite one")
        raise _problem(trail[:8], f"nested too deeply: more than {len(trail)} levels")
    if not isinstance(value, Mapping):
        items: list[v.JSONValue] = []
        for index, item in enumerate(cast("list[object]", value)):
            trail.append(index)
            items.append(_plain(item, room - 1, trail, root))
            trail.pop()
        return items
    result: v.JSONObject = {}
    for key, item in _pairs_of(cast("Mapping[object, object]", value), trail):
        if not isinstance(key, str):
            raise _problem(trail, f"found a key of type {type(key).__name__}; expected text")
        trail.append(key)
        plain_key = safe_text(key if type(key) is str else str.__str__(key))
        if plain_key in result:
            # Only possible where surrogates were replaced, or with odd ``str`` subclasses.
            raise _problem(trail, "two keys are equal once they are plain text")
        result[plain_key] = _plain(item, room - 1, trail, root)
        trail.pop()
    return result


def _pairs_of(value: Mapping[object, object], trail: list[object]) -> list[tuple[object, object]]:
    if type(value) is dict:
        return list(cast("dict[object, object]", value).items())
    try:
        return list(value.items())
    except Exception as error:
        # The adapter border: a foreign mapping runs foreign code, and one that cannot
        # be read is one more value that is not JSON.
        raise _problem(
            trail, f"found a {type(value).__name__} that raises {type(error).__name__} when read"
        ) from error


def _contains_itself(root: object, trail: list[object]) -> bool:
    seen: set[int] = set()
    here: Any = root
    for key in trail:
        seen.add(id(here))
        if not isinstance(here, dict | list | tuple):
            return False  # a foreign mapping: asking it again may run anything
        here = cast("Any", here)[key]
    # Whoever went round in a circle is still in it when the levels run out.
    return id(here) in seen


def _problem(trail: list[object], reason: str) -> NotJSONError:
    return NotJSONError(_path(trail), reason)


def _path(trail: list[object]) -> str:
    parts = ["$"]
    for key in trail:
        if type(key) is int:
            parts.append(f"[{key}]")
        else:
            text = safe_text(str.__str__(cast("str", key)))
            parts.append(f".{text[:40]}")
    return "".join(parts)


# --- on values that are plain ---------------------------------------------------


def copy_json(value: object) -> Any:
    """Deep copy of a value that is plain JSON already; unchecked, and quick.

    Meant for each tool call, before its tool gets the arguments.
    """
    kind = type(value)
    plain: Any = value
    if kind is dict:
        result: dict[str, object] = plain.copy()
        for key, item in result.items():
            inner = type(item)
            if inner is dict or inner is list:
                result[key] = copy_json(item)
        return result
    if kind is list:
        return [copy_json(item) for item in plain]
    return value


def copy_if_plain(value: object) -> dict[str, Any] | None:
    """A deep copy of a dict that is plain JSON; None when it is not."""
    plain: Any = value
    # In one walk where all is plain text and whole numbers: most arguments are.
    key: object
    item: Any
    for key, item in plain.items():
        if not (type(key) is str and key.isascii()):
            break
        if not (
            (type(item) is str and item.isascii())
            or (type(item) is int and item.bit_length() <= _MAX_INT_BITS)
        ):
            break
    else:
        return plain.copy()
    return copy_json(value) if is_plain_json(value) else None


def is_plain_json(value: object, *, max_depth: int = MAX_DEPTH) -> bool:
    """Whether ``value`` is plain JSON as it stands, so that `plain_json` would only copy it."""
    # The text and the list of kinds are written out twice because this is run on the
    # arguments of every call.
    kind = type(value)
    if kind is dict:
        if max_depth <= 0:
            return False
        pairs: Any = value
        for key, item in pairs.items():
            if type(key) is not str or not (key.isascii() or is_safe_text(key)):
                return False
            if (type(item) is str and item.isascii()) or (
                type(item) is int and item.bit_length() <= _MAX_INT_BITS
            ):
                continue
            if not is_plain_json(item, max_depth=max_depth - 1):
                return False
        return True
    if kind is str:
        return is_safe_text(cast("str", value))
    if kind is int:
        return cast("int", value).bit_length() <= _MAX_INT_BITS
    if kind is float:
        return math.isfinite(cast("float", value))
    if kind is list:
        if max_depth <= 0:
            return False
        for item in cast("list[object]", value):
            if not is_plain_json(item, max_depth=max_depth - 1):
                return False
        return True
    return value is None or kind is bool
