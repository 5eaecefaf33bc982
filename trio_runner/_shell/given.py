"""`split_input`: what a turn may be started with, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

import trio_runner._core.values as v
from trio_runner._core.copies import own_message
from trio_runner._core.validity import has_content

#: What a turn may be started with.
Input = str | v.Message | Sequence[v.Message]


def split_input(messages: Input) -> tuple[tuple[v.Message, ...], tuple[v.ToolResult, ...]]:
    """Split the input into messages to send and results for open calls.

    Raises:
      TypeError: it is neither text nor messages.
      ValueError: it is blank.
    """
    match messages:
        case str():
            given: Sequence[v.Message] = (v.Message.user(messages),)
        case v.Message():
            given = (messages,)
        case _:
            try:
                given = tuple(messages)
            except TypeError:
                raise TypeError(
                    f"the input is a {type(messages).__name__}; expected text or Message values"
                ) from None
    plain: list[v.Message] = []
    results: list[v.ToolResult] = []
    for message in given:
        if type(message) is not v.Message:
            raise TypeError(
                f"the input holds a {type(message).__name__}; expected text or Message values"
            )
        message = own_message(message)  # noqa: PLW2901
        results.extend(message.tool_results)
        answers = bool(message.tool_results) and message.role == "user"
        if answers and not message.content:
            continue
        if not (has_content(message.content) or message.tool_calls):
            raise ValueError("the input is blank; expected text or another content block")
        plain.append(attrs.evolve(message, tool_results=()) if answers else message)
    return tuple(plain), tuple(results)
