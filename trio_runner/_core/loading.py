"""What becomes of messages that are loaded: their order, and a step that is open at their end.

What may live here: pure functions of messages. What is damaged is mended elsewhere
(``reconcile.py``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.copies import own_message


def templates_first(messages: Iterable[v.Message]) -> tuple[v.Message, ...]:
    """Copies of ``messages``, with the templates in front.

    Raises:
      TypeError: one of them is no message.
    """
    given = tuple(messages)
    for message in given:
        if type(message) is not v.Message:
            raise TypeError(f"a history holds a {type(message).__name__}; expected Message values")
    given = _with_their_answers(tuple([own_message(message) for message in given]))
    front = tuple([message for message in given if message.template])
    if given[: len(front)] == front:
        return given
    return (*front, *[message for message in given if not message.template])


def _with_their_answers(messages: tuple[v.Message, ...]) -> tuple[v.Message, ...]:
    """The answers to a template are a template: it is sent without what follows it."""
    loose = [
        index
        for index, (asks, answers) in enumerate(itertools.pairwise(messages), 1)
        if asks.template and asks.tool_calls and answers.tool_results and not answers.template
    ]
    if not loose:
        return messages
    mended = list(messages)
    for index in loose:
        mended[index] = attrs.evolve(mended[index], template=True)
    return tuple(mended)


def answered(reply: v.Message, given: Iterable[v.ToolResult] = ()) -> tuple[v.Message, v.Message]:
    """The step with the results given, and stand-ins for the others."""
    by_id = {result.call_id: result for result in given}
    results = [by_id.get(call.id) or stand_ins.unrecorded(call) for call in reply.tool_calls]
    return reply, v.Message.user(tool_results=results)


#: Stop reasons with which a reply's calls were to run.
_ASKS: Final = (
    v.StopReason.TOOL_USE,
    v.StopReason.END_TURN,
    v.StopReason.STOP_SEQUENCE,
    v.StopReason.PAUSE,
    v.StopReason.CONTINUE_,
    None,
)


def split_open_step(
    messages: tuple[v.Message, ...],
) -> tuple[tuple[v.Message, ...], v.Message | None, tuple[v.ToolResult, ...]]:
    """Split off a step that is open at the end: ``(closed, reply, results)``."""
    if messages and _asks(messages[-1]):
        return messages[:-1], _as_tool_use(messages[-1]), ()
    if len(messages) > 1 and _asks(messages[-2]) and messages[-1].tool_results:
        reply, last = messages[-2:]
        wanted = {call.id for call in reply.tool_calls}
        ids = [result.call_id for result in last.tool_results]
        sound = _are_text(ids) and not last.content and not last.template
        if sound and set(ids) < wanted and len(set(ids)) == len(ids):
            return messages[:-2], _as_tool_use(reply), last.tool_results
    return messages, None, ()


def _asks(message: v.Message) -> bool:
    return (
        message.role == "assistant"
        and bool(message.tool_calls)
        # A template is answered at once: it is sent in every turn, so it is never taken up again.
        and not message.template
        and message.stop_reason in _ASKS
        and not any(call.arguments_error for call in message.tool_calls)
        and _are_text([call.id for call in message.tool_calls])
    )


def _are_text(ids: Sequence[object]) -> bool:
    """Whether the ids can be compared; a damaged history holds anything."""
    return all(type(each) is str for each in ids)


def _as_tool_use(reply: v.Message) -> v.Message:
    if reply.stop_reason is v.StopReason.TOOL_USE:
        return reply
    return attrs.evolve(reply, stop_reason=v.StopReason.TOOL_USE)
