"""Shortening a history: where it may be cut, and what `Compacted` and `Trimmed` make of it.

What may live here: pure functions that choose what goes, and the one gate that
every shortening passes, `shorten`. Live running and the fold of a session both
go through it, so that what a session opens as is what was in memory.

What may go: whole steps only, so that no call is parted from its result, and
never a template. A *turn* begins, as far as messages tell, where the user speaks
first, or after an answer or a summary, unless the answer goes back to the model
as none that was wanted. What follows a turn without an answer
counts as part of it, so rather too much is kept than too little.

Who shortens twice must look twice: a `HistoryCut` is good for the version of the
history that it was chosen on, and for no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, assert_never

import attrs

import trio_runner._core.records as r
import trio_runner._core.structured as structured
import trio_runner._core.values as v
from trio_runner._core.copies import own_message
from trio_runner._core.errors import HistoryError
from trio_runner._core.history import History, HistoryView
from trio_runner._core.validity import has_content, history_problems, input_problems

#: The member of a message's ``meta`` that marks it as a summary.
SUMMARY_MARK: Final = "is_summary"
_GOES_BACK: Final = (v.StopReason.PAUSE, v.StopReason.CONTINUE_)


class HistoryCutError(HistoryError):
    """A history cannot be shortened like this; nothing was changed."""

    def __init__(self, why: str) -> None:
        super().__init__((why,))
        self.args: tuple[str, ...] = (
            f"the history cannot be cut like this: {why}. Nothing was changed",
        )


@attrs.frozen(eq=False)
class HistoryCut:
    """Which messages a summary is to replace, chosen on one version of a history.

    Attributes:
      start: index of the first of them; the templates stand before it.
      stop: index of the first message that stays.
      history: the whole history that the cut was chosen on.
      kept: ranges of indices ``(start, stop)`` in between whose messages stay too, behind
        the summary, in order: the input of a turn, for instance.
    """

    start: int
    stop: int
    history: HistoryView
    kept: tuple[tuple[int, int], ...] = ()

    @property
    def messages(self) -> tuple[v.Message, ...]:
        """What the summary is to tell."""
        return tuple(
            [
                message
                for start, stop in between(self.start, self.stop, self.kept)
                for message in self.history[start:stop]
            ]
        )


def between(start: int, stop: int, kept: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a range that none of ``kept``, which are in order, covers."""
    at = start
    for first, last in kept:
        if first > at:
            yield at, first
        at = last
    if stop > at:
        yield at, stop


# --- choosing -------------------------------------------------------------------


def choose_cut(history: History, keep: int) -> HistoryCut | None:
    """Cut so that the newest ``keep`` turns stay; None when nothing older is worth a summary.

    Raises:
      ValueError: ``keep`` is negative.
    """
    _check_keep(keep)
    messages = history.view()
    starts = turn_starts(messages)
    if len(starts) <= keep:
        return None
    cut = HistoryCut(starts[0], starts[-keep] if keep else len(messages), messages)
    if all(is_summary(message) for message in cut.messages):
        return None  # there is a summary of it already
    return cut


def cut_at(history: History, index: int) -> HistoryCut:
    """Cut before message ``index``, which must begin a step or stand between two.

    Raises:
      HistoryCutError: there is nothing to replace, or a step would be parted.
    """
    cut = HistoryCut(template_count(history.view()), index, history.view())
    _check_border(cut.history, index)
    return cut


def check_cut(cut: HistoryCut) -> None:
    """Raise unless ``cut`` takes whole steps and nothing else.

    Raises:
      HistoryCutError: it does not.
    """
    if cut.start != template_count(cut.history):
        raise HistoryCutError(
            f"it begins at message {cut.start}; expected {template_count(cut.history)}, behind "
            "the templates"
        )
    _check_parts(cut.history, cut.stop, cut.kept)


def turn_starts(messages: Sequence[v.Message]) -> list[int]:
    """Where turns begin, as far as the messages tell; templates belong to none."""
    first = template_count(messages)
    if first == len(messages):
        return []
    return [
        first,
        *[
            index
            for index in range(first + 1, len(messages))
            if messages[index].role == "user"
            and _ends_a_turn(messages[index - 1])
            and not goes_on(messages, index)
        ],
    ]


def goes_on(messages: Sequence[v.Message], index: int) -> bool:
    """Whether message ``index`` sends the answer before it back, in the same turn."""
    return (
        0 < index < len(messages)
        and structured.MARK in messages[index].meta
        and is_answer(messages[index - 1])
    )


def first_turns(messages: Sequence[v.Message], count: int) -> tuple[v.Message, ...]:
    """The templates and the first ``count`` turns; all but the newest ``-count`` when negative."""
    starts = turn_starts(messages)
    kept = count if count >= 0 else max(0, len(starts) + count)
    return tuple(messages[: starts[kept]] if kept < len(starts) else messages)


def is_summary(message: v.Message) -> bool:
    """Whether ``message`` was put in the place of older ones."""
    return message.meta.get(SUMMARY_MARK) is True


def _ends_a_turn(message: v.Message) -> bool:
    return is_answer(message) or is_summary(message)


def is_answer(message: v.Message) -> bool:
    """Whether ``message`` is a reply after which its turn does not go on."""
    return (
        message.role == "assistant"
        and not message.tool_calls
        and message.stop_reason not in _GOES_BACK
    )


def template_count(messages: Sequence[v.Message]) -> int:
    """How many templates stand in front."""
    return sum(1 for _ in itertools.takewhile(lambda message: message.template, messages))


def _check_keep(keep: int) -> None:
    if keep < 0:
        raise ValueError(f"keep is {keep}; expected a number of turns, from 0")


# --- the records ----------------------------------------------------------------


def compacted(history: History, cut: HistoryCut, summary: v.Message | str) -> r.Compacted:
    """The record that puts ``summary`` in the place of ``cut``.

    Raises:
      HistoryCutError: the history is not what ``cut`` was chosen on.
      HistoryError: the summary is no plain message with content.
    """
    if not history.is_still(cut.history):
        raise HistoryCutError(
            f"it was chosen on another version of it, which had {len(cut.history)} messages; it "
            f"has {len(history)} now. Choose it again, and summarise what it holds then"
        )
    return r.Compacted(len(history), cut.stop, _as_summary(summary), cut.kept)


def carried_over(history: History, cut: HistoryCut) -> HistoryCut:
    """``cut`` for the history as it is now, when all that came since stands behind it.

    Raises:
      HistoryCutError: the history was replaced or shortened since the cut was chosen.
    """
    if not history.grew_from(cut.history):
        raise HistoryCutError(
            f"it was chosen on a history of {len(cut.history)} messages that was replaced since"
        )
    return attrs.evolve(cut, history=history.view())


def _as_summary(summary: v.Message | str) -> v.Message:
    message = v.Message.user(summary) if isinstance(summary, str) else summary
    problems = input_problems([message])
    if problems:
        raise HistoryError(problems)
    return own_message(attrs.evolve(message, meta={**message.meta, SUMMARY_MARK: True}))


def trimmed(history: History, keep: int) -> r.Trimmed | None:
    """The record that takes the older steps out of answered turns; None when there are none.

    Of a turn with two tool steps or more, and an answer, the last step stays with
    all its calls and results. What the user or the model said outside of
    the others stays too; the media that their calls attached go with them.

    Args:
      keep: the newest so many turns are left as they are.

    Raises:
      ValueError: ``keep`` is negative.
    """
    _check_keep(keep)
    messages = history.view()
    borders = [*turn_starts(messages), len(messages)]
    ended = borders[: len(borders) - keep]
    gone = [
        index
        for start, stop in itertools.pairwise(ended)
        for index in _older_steps(messages, start, stop)
    ]
    return r.Trimmed(len(messages), tuple(_ranges(gone))) if gone else None


def _older_steps(messages: Sequence[v.Message], start: int, stop: int) -> Iterator[int]:
    """Indices of what may go from one turn."""
    asking = [index for index in range(start, stop) if messages[index].tool_calls]
    if not asking or not is_answer(messages[stop - 1]):
        return
    step: int | None = None
    for index in range(asking[0], asking[-1]):
        message = messages[index]
        if message.tool_calls:
            # Somebody may have spoken in the message with the results.
            step = None if has_content(messages[index + 1].content) else index
        of_step = message.tool_calls or message.tool_results
        if step is not None and (of_step or _is_attached(message, messages[step])):
            yield index


def _is_attached(message: v.Message, reply: v.Message) -> bool:
    """Whether a call of ``reply`` attached ``message``."""
    owner = message.meta.get("attached_by")
    return any(call.id == owner for call in reply.tool_calls)


def _ranges(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    start = stop = -1
    for index in indices:
        if index != stop:
            if stop > start:
                yield start, stop
            start = index
        stop = index + 1
    if stop > start:
        yield start, stop


# --- the gate -------------------------------------------------------------------


def shorten(history: History, record: r.Compacted | r.Trimmed) -> None:
    """Make of ``history`` what ``record`` says: valid, or refused and unchanged.

    The ids of the calls that go stay reserved: the whole conversation, which the
    journal keeps, has no id twice. A step that is open is not in the history, and stays open.

    Raises:
      HistoryCutError: the record is of another history, or parts a step.
      HistoryError: what comes of it is not valid.
    """
    before = history.view()
    after = _shortened(before, record)
    problems = history_problems(after)
    if problems:
        raise HistoryError(problems)
    history.shorten(after)


def _shortened(
    messages: Sequence[v.Message], record: r.Compacted | r.Trimmed
) -> tuple[v.Message, ...]:
    if record.before != len(messages):
        raise HistoryCutError(
            f"the cut is of a history of {record.before} messages, and this one has {len(messages)}"
        )
    front = template_count(messages)
    match record:
        case r.Compacted(upto=upto, summary=summary, kept=ranges):
            _check_parts(messages, upto, ranges)
            stays = [message for start, stop in ranges for message in messages[start:stop]]
            return (*messages[:front], summary, *stays, *messages[upto:])
        case r.Trimmed(dropped=dropped):
            kept: list[v.Message] = []
            at = 0
            _check_ranges(messages, dropped)
            for start, stop in dropped:
                kept += messages[at:start]
                at = stop
            return (*kept, *messages[at:])
        case _:
            assert_never(record)


def _check_parts(
    messages: Sequence[v.Message], upto: int, kept: tuple[tuple[int, int], ...]
) -> None:
    """Raise unless a summary may replace what is before ``upto`` and not ``kept``."""
    _check_border(messages, upto)
    _check_ranges(messages, kept)
    if kept and (kept[-1][1] > upto or not any(between(template_count(messages), upto, kept))):
        raise HistoryCutError(
            f"found the ranges {kept} to keep; expected some in front of message {upto} that "
            "leave something to replace"
        )


def _check_ranges(messages: Sequence[v.Message], ranges: tuple[tuple[int, int], ...]) -> None:
    """Raise unless ``ranges`` are in order, hold whole steps, and no template."""
    at = front = template_count(messages)
    for start, stop in ranges:
        if not at <= start < stop <= len(messages):
            raise HistoryCutError(f"found the ranges {ranges}; expected some in order")
        _check_border(messages, start, least=front)
        _check_border(messages, stop)
        at = stop


def _check_border(messages: Sequence[v.Message], index: int, least: int | None = None) -> None:
    """Raise unless a step may begin at ``index``."""
    front = template_count(messages)
    least = front + 1 if least is None else least
    if not least <= index <= len(messages):
        raise HistoryCutError(
            f"found the index {index}; expected one from {least} to {len(messages)}: the history "
            f"has {len(messages)} messages, and the first {front} are templates"
        )
    if index == len(messages):
        return
    if messages[index].tool_results:
        raise HistoryCutError(f"message {index} holds results for calls in message {index - 1}")
    reply = next((each for each in reversed(messages[:index]) if each.role == "assistant"), None)
    if reply is not None and _is_attached(messages[index], reply):
        raise HistoryCutError(f"message {index} was attached by a call of the step before it")
