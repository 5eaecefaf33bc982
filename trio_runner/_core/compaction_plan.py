"""What an automatic compaction replaces: its settings, what a policy is asked, and the default.

What may live here: pure values and choices. When it happens and who writes the
summary is ``_shell/compacting.py``; the gate that every cut passes is ``compaction.py``.

The default policy tries cuts from gentle to strong and takes the first that brings
the context under its budget, else the strongest:

1. whole turns go, the newest ``keep_turns`` stay (the turn that runs is one of them);
2. while a turn runs: all turns before it go;
3. of each turn that stays, its input stays, and of its steps the last ``keep_steps``;
   then one fewer, down to one.

So a conversation of turns that are few and small is left alone, and a single turn that
grew too long is cut between its steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

import trio_runner._core.values as v
from trio_runner._core.compaction import (
    HistoryCut,
    HistoryCutError,
    between,
    check_cut,
    goes_on,
    is_answer,
    is_summary,
    template_count,
    turn_starts,
)
from trio_runner._core.estimate import message_tokens
from trio_runner._core.history import HistoryView
from trio_runner._core.params import check_seconds

#: Why a history is compacted: the turn's end, a follow-up call that is next, or the caller.
CompactionReason: TypeAlias = Literal["after_turn", "mid_turn", "on_demand"]

#: The share of the context window from which on there is a compaction, unless one is given.
DEFAULT_SHARE: Final = 0.85
#: Tokens that a summary should have at most, and the share of the window.
_SUMMARY_TOKENS: Final = 2_000
_SUMMARY_SHARE: Final = 10


@attrs.frozen(eq=False)
class CutRequest:
    """What a cut policy chooses on.

    Attributes:
      history: all closed steps, templates first: a read-only view.
      reason: why it is asked.
      keep_turns, keep_steps: the settings.
      tokens: about how many the context has now.
      budget: what stays should have fewer; None when nobody said what fits.
      summary_tokens: what the summary is to have at most.
      turn_start: index of the first message of the newest turn when that has no answer
        yet; None when it has one.
    """

    history: HistoryView
    reason: CompactionReason
    keep_turns: int
    keep_steps: int
    tokens: int
    budget: int | None
    summary_tokens: int
    turn_start: int | None = None

    def cut(self, stop: int, keep: Iterable[tuple[int, int]] = ()) -> HistoryCut:
        """The cut that replaces what is before message ``stop`` and behind the templates.

        Args:
          keep: ranges ``(start, stop)`` of indices before it, in order, that stay too.

        Raises:
          HistoryCutError: it would part a step, or leave nothing to replace.
        """
        cut = HistoryCut(template_count(self.history), stop, self.history, tuple(keep))
        check_cut(cut)
        return cut

    def tokens_after(self, cut: HistoryCut) -> int:
        """About how many tokens the context has behind ``cut``, the summary included.

        An estimate is right up to a factor at best, so it is scaled to ``tokens``.
        """
        without = self.tokens_without(cut)
        return without + min(self.tokens - without, self.summary_tokens)

    def tokens_without(self, cut: HistoryCut) -> int:
        """About how many tokens the context has without what ``cut`` takes, and without summary."""
        whole = max(1, sum(map(message_tokens, self.history)))
        gone = sum(map(message_tokens, cut.messages))
        return self.tokens - gone * self.tokens // whole


#: Says what a summary is to replace; None: nothing. It must not change anything, and is
#: not async. What it raises, or a cut that is not legal, is a failed compaction.
CutPolicy: TypeAlias = Callable[[CutRequest], HistoryCut | None]


def keep_recent(request: CutRequest) -> HistoryCut | None:
    """The default policy: the newest turns and steps stay; see `Compaction`."""
    strongest: HistoryCut | None = None
    most = len(request.history) if request.turn_start is None else unseen_from(request.history)
    for cut in _candidates(request):
        if cut is not None and cut.stop <= most and not all(map(is_summary, cut.messages)):
            strongest = cut
            tokens = request.tokens_after(cut)
        else:
            tokens = request.tokens
        if request.budget is None or tokens < request.budget:
            return strongest if strongest is cut else None
    return strongest


def _candidates(request: CutRequest) -> Iterator[HistoryCut | None]:
    """Cuts from gentle to strong; None where a stage has nothing to take."""
    messages, running = request.history, request.turn_start is not None
    starts = _starts(messages, request.turn_start)
    keep = max(request.keep_turns, 1) if running else request.keep_turns
    yield _cut_before(request, starts, keep)
    mid_turn = request.reason == "mid_turn"
    if mid_turn and keep > 1:
        yield _cut_before(request, starts, 1)
    stays = starts[-1:] if mid_turn else starts[len(starts) - min(keep, len(starts)) :]
    for steps in range(request.keep_steps, 0, -1):
        yield _cut_inside(request, [*stays, len(messages)], steps)


def _starts(messages: Sequence[v.Message], turn_start: int | None) -> list[int]:
    starts = turn_starts(messages)
    if turn_start is None:
        return starts
    return [*[start for start in starts if start < turn_start], turn_start]


def _cut_before(request: CutRequest, starts: Sequence[int], keep: int) -> HistoryCut | None:
    if len(starts) <= keep:
        return None
    return request.cut(starts[-keep] if keep else len(request.history))


def _cut_inside(request: CutRequest, borders: Sequence[int], steps: int) -> HistoryCut | None:
    """Of each turn between ``borders``, leave the input, the last steps and the answer."""
    stays = [
        part
        for start, stop in itertools.pairwise(borders)
        for part in _ends_of(request.history, start, stop, steps)
    ]
    front = template_count(request.history)
    merged = _merged(stays)
    if not merged or not any(between(front, len(request.history), merged)):
        return None
    *kept, (stop, _) = merged
    return request.cut(stop, kept)


def _ends_of(
    messages: Sequence[v.Message], start: int, stop: int, steps: int
) -> Iterator[tuple[int, int]]:
    """The input of a turn, and its last steps with its answer; all of it when there are no more."""
    replies = [index for index in range(start, stop) if messages[index].role == "assistant"]
    asking = [index for index in replies if not is_answer(messages[index])]
    if len(asking) <= steps:
        yield start, stop
        return
    if replies[0] > start:
        yield start, replies[0]
    yield asking[-steps], stop


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch as one."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = merged[-1][0], stop
        else:
            merged.append((start, stop))
    return merged


# --- the gate of what a policy chose ---------------------------------------------


def check_choice(request: CutRequest, cut: HistoryCut) -> None:
    """Raise unless ``cut`` may be made now.

    Raises:
      HistoryCutError: it is of another history, parts a step, or takes what the model
        has not answered yet.
    """
    if cut.history is not request.history:
        raise HistoryCutError("it was chosen on another history than the one that was asked about")
    check_cut(cut)
    unseen = unseen_from(cut.history)
    if request.turn_start is not None and cut.stop > unseen:
        raise HistoryCutError(
            f"it takes what is before message {cut.stop}; expected at most {unseen}: what is "
            "behind that, the model has not answered yet"
        )


def unseen_from(messages: Sequence[v.Message]) -> int:
    """Index of what the model has not answered yet, with the step that it belongs to."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant":
            is_seen = is_answer(message) and not goes_on(messages, index + 1)
            return index + 1 if is_seen or message.template else index
    return template_count(messages)


def turn_start_in(history: HistoryView, turn: Sequence[v.Message]) -> int | None:
    """Where the messages of ``turn``, which has no answer yet, begin in ``history``.

    Its first message is looked for; where somebody replaced the history, the last
    place counts where a turn may begin. None in a history of templates alone.
    """
    if turn:
        for index in range(len(history) - 1, -1, -1):
            if history[index] is turn[0]:
                return index
    starts = turn_starts(history)
    return starts[-1] if starts else None


# --- the settings -----------------------------------------------------------------


def _check_share(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    if type(value) not in (int, float):
        raise TypeError(f"{attribute.name} is {value!r}; expected a number above 0, up to 1")
    if not 0 < value <= 1:
        raise ValueError(f"{attribute.name} is {value!r}; expected a number above 0, up to 1")


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number from ``least`` on."""
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}; expected a whole number")
    if value < least:
        raise ValueError(f"{name} is {value!r}; expected at least {least}")


def _count(least: int) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        check_count(attribute.name, value, least)

    return check


def _optional_count(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        check_count(attribute.name, value, 1)


def _check_timeout(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_seconds(attribute.name, value)


def _check_policy(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{attribute.name} is {value!r}; expected a function of a CutRequest")


@attrs.frozen(kw_only=True)
class Compaction:
    """When a history is compacted, and what stays.

    Attributes:
      share: of the context window, above 0 and up to 1: from there on there is a compaction
        after a turn, and before a follow-up call within one. None: 0.85, where the
        window is known, and no automatic compaction where it is not.
      context_window: tokens; None: what the model says by an attribute of this name.
      keep_turns: the newest so many turns stay, the one that runs among them.
      keep_steps: of a turn that is too long by itself, the input and so many of its last
        steps stay; fewer, when that is too much still.
      cut: chooses what goes.
      timeout: seconds that a summary may take.
      summary_tokens: what a summary is asked to have at most; None: a tenth of the
        window, up to 2,000.
    """

    share: float | None = attrs.field(default=None, validator=_check_share)
    context_window: int | None = attrs.field(default=None, validator=_optional_count)
    keep_turns: int = attrs.field(default=2, validator=_count(0))
    keep_steps: int = attrs.field(default=3, validator=_count(1))
    cut: CutPolicy = attrs.field(default=keep_recent, validator=_check_policy)
    timeout: float = attrs.field(default=60.0, validator=_check_timeout)
    summary_tokens: int | None = attrs.field(default=None, validator=_optional_count)

    def trigger(self, window: int) -> int:
        """The number of tokens from which on there is a compaction."""
        return max(1, int((DEFAULT_SHARE if self.share is None else self.share) * window))

    def target(self, window: int | None) -> int:
        """What a summary is asked to have at most, in tokens."""
        if self.summary_tokens is not None:
            return self.summary_tokens
        return max(1, min(_SUMMARY_TOKENS, (window or _SUMMARY_TOKENS * _SUMMARY_SHARE) // 10))


DEFAULT_COMPACTION: Final = Compaction()
