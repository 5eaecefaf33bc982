"""Naming errors and odd values in words that a model can read.

What may live here: functions from any object to short, valid text. They ask the
object as little as they can and contain what it raises: its ``str``, ``repr``
and notes are the user's code.
"""

from __future__ import annotations

import re
from typing import Final, cast

import trio_runner._core.json_data as json_data

_MAX_ERROR_LENGTH: Final = 2_000
_MAX_CAUSES: Final = 5
_MAX_NOTES: Final = 5
_MAX_SHOWN: Final = 200

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def describe_error(exc: BaseException) -> str:
    """Say what went wrong, for the model: type, message and notes; never empty.

    For a group these are its leaves, five at most. The text has at most 2,000
    characters and encodes as UTF-8. Nothing is raised, whatever ``exc`` does
    when it is asked.
    """
    leaves, count = _leaves(exc)
    if count == 1:
        return shorten(_describe_leaf(leaves[0]), _MAX_ERROR_LENGTH)
    room = _MAX_ERROR_LENGTH // len(leaves) - 10
    causes = "; ".join([shorten(_describe_leaf(leaf), room) for leaf in leaves])
    more = f"; and {count - len(leaves)} more" if count > len(leaves) else ""
    return f"{count} errors: {causes}{more}"


def _leaves(exc: BaseException) -> tuple[list[BaseException], int]:
    # A loop: a group may be nested deeper than Python recurses.
    leaves: list[BaseException] = []
    count = 0
    waiting = [exc]
    while waiting:
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            # Reversed, so that the leaves come in the order they are printed in.
            waiting.extend(reversed(cast("BaseExceptionGroup[BaseException]", current).exceptions))
            continue
        count += 1
        if len(leaves) < _MAX_CAUSES:
            leaves.append(current)
    return leaves, count


def _describe_leaf(exc: BaseException) -> str:
    kind = type_name(exc)
    try:
        message = plain_str(str(exc))
    except Exception as problem:  # noqa: BLE001  the tool border: str() is the user's code
        message = f"(its message cannot be read: str() raises {type_name(problem)})"
    # Cut before the notes are added, so that a huge message does not push them out.
    parts = [
        f"{kind}: {shorten(message, _MAX_ERROR_LENGTH * 3 // 4)}"
        if message.strip()
        else f"{kind} (no message)"
    ]
    try:
        notes = list(getattr(exc, "__notes__", ()))
        parts.extend(plain_str(str(note))[:_MAX_ERROR_LENGTH] for note in notes[:_MAX_NOTES])
    except Exception as problem:  # noqa: BLE001  the tool border: anything may be stored as notes
        parts.append(f"(its notes cannot be read: {type_name(problem)})")
    return json_data.safe_text("\n".join(parts))


def shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    middle = f" [... {len(text)} characters in full ...] "
    head = (limit - len(middle)) * 2 // 3
    return text[:head] + middle + text[len(text) - (limit - len(middle) - head) :]


def type_name(value: object) -> str:
    try:
        return json_data.safe_text(plain_str(type(value).__name__))[:100]
    except Exception:  # noqa: BLE001  the tool border: a metaclass may answer for the name
        return "object"


def plain_str(text: str) -> str:
    # A subclass of str may override anything that is done with it later.
    return text if type(text) is str else str.__str__(text)


def shown(value: object) -> str:
    """Name a value in a few words, for a reader who cannot have it."""
    kind = type_name(value)
    # By its real type: asking a value for its class may run the user's code.
    if issubclass(type(value), BaseException):
        error = cast("BaseException", value)
        return f"exception object {shorten(describe_error(error), _MAX_SHOWN)}"
    if type(value).__repr__ is object.__repr__:
        return f"object of type {kind}"
    try:
        text = plain_str(repr(value))
    except Exception as problem:  # noqa: BLE001  the tool border: repr() is the user's code
        return f"object of type {kind}, whose repr() raises {type_name(problem)}"
    # An address says nothing to the reader and differs in every run.
    text = _ADDRESS.sub("", json_data.safe_text(text[:_MAX_SHOWN]))
    return f"object of type {kind}: {text}" if text.strip() else f"object of type {kind}"
