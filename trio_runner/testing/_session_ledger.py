"""`SessionLedger`: what really happened in a session, kept outside the library.

What may live here: the ledger and the sentences about what does not agree with
it. It is told by the model, the tools and the caller of a session; it never
asks the library, but for the messages that it judges.

Every input, note and reply of a session has a text of its own, its *mark*, and
every call a number in its arguments. So a history can be compared with what
happened: the marks must be there in order, and each result must say what became
of its call. What a crash or a cut may have taken away is *unsure*: it may be
there or not, but not twice and not in another place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs
import trio

import trio_runner._core.values as v
from trio_runner._core.errors import HistoryError
from trio_runner._core.validity import check_history

MARK: Final = re.compile(r"(?:in|note|re)-\d+")

#: What a call is answered with whose tool was never entered.
_NEVER_RAN: Final = frozenset(
    {
        v.CallStatus.NOT_STARTED,
        v.CallStatus.DENIED,
        v.CallStatus.UNAVAILABLE,
        v.CallStatus.INVALID_ARGUMENTS,
        v.CallStatus.LIMIT_REACHED,
        v.CallStatus.OUTPUT_CUT,
    }
)
#: What a call is answered with that may have run, when nothing says how it went.
_UNKNOWN: Final = frozenset({v.CallStatus.INTERRUPTED, v.CallStatus.UNKNOWN_AFTER_CRASH})


@attrs.define
class CallTruth:
    """What became of one call.

    Attributes:
      plan: what the tool was to do, for reports.
      entered: how often its function was entered.
      returned: whether it returned, noted as its last statement; ``value`` is what.
      raised: whether it raised an error of its own.
      left: whether the function was left, in any way.
      stopped: whether the caller cancelled it alone, and hit.
      forgotten: whether its result may have been lost with a crash or a cut.
      lost: whether its start may have been lost too, so that nothing is known of it.
      acknowledged: whether the model was told its result.
    """

    plan: object
    entered: int = 0
    returned: bool = False
    value: object = None
    raised: bool = False
    left: bool = False
    stopped: bool = False
    forgotten: bool = False
    lost: bool = False
    acknowledged: bool = False


@attrs.define
class Item:
    """A mark.

    Attributes:
      sure: whether the history must have it.
      told: whether it must survive a crash, since the model was told it.
    """

    mark: str
    sure: bool = True
    told: bool = False


def marks_of(messages: Iterable[v.Message]) -> list[str]:
    """The marks in ``messages``, in order."""
    return [
        block.text
        for message in messages
        for block in message.content
        if type(block) is v.TextContent and type(block.text) is str and MARK.fullmatch(block.text)
    ]


def number_of(call: v.ToolCall) -> int | None:
    """The number of a planned call; None for another one."""
    arguments: object = call.arguments
    match arguments:
        case {"number": int() as number}:
            return number
        case _:
            return None


def answered_calls(
    messages: Sequence[v.Message],
) -> Iterator[tuple[int, v.ToolResult | None]]:
    """The numbers of the planned calls, each with its result, where it has one."""
    for index, message in enumerate(messages):
        following = messages[index + 1].tool_results if index + 1 < len(messages) else ()
        results = {result.call_id: result for result in following}
        for call in message.tool_calls:
            number = number_of(call)
            if number is not None:
                yield number, results.get(call.id)


class SessionLedger:
    """The truth about one session, over all its turns, openings and crashes."""

    def __init__(self) -> None:
        #: By number.
        self.calls: dict[int, CallTruth] = {}
        #: The marks of the history, in order.
        self.items: list[Item] = []
        #: The marks of the newest turn; None when they are not known.
        self.turn_items: list[Item] | None = None
        #: What was seen to be wrong as it happened.
        self.problems: list[str] = []
        #: Whether the newest turn runs without history.
        self.aside: bool = False
        #: Set when the power is cut: what happens then happens to nobody.
        self.dead = False
        #: Whether the journal has kept everything so far.
        self.healthy = True
        #: Messages handed out, with what they looked like then.
        self.handed_out: list[tuple[v.Message, str]] = []
        #: Which call each idempotency key was given to.
        self._keys: dict[str, int] = {}
        self._counter = 0

    def new_mark(self, kind: str) -> str:
        """A text that no other message has."""
        self._counter += 1
        return f"{kind}-{self._counter}"

    def new_call(self, plan: object) -> int:
        """The number of a call that the model is about to ask for."""
        self._counter += 1
        self.calls[self._counter] = CallTruth(plan)
        return self._counter

    # --- told as it happens -----------------------------------------------------

    def turn_begins(self, mark: str, *, aside: bool) -> None:
        """A turn began with the input ``mark``."""
        if self.dead:
            return
        self.aside = aside
        self.turn_items = [Item(mark)]
        if not aside:
            self.items.append(Item(mark))

    def said(self, mark: str) -> None:
        """A reply was returned, or a note was taken."""
        if self.dead:
            return
        if self.turn_items is not None:
            self.turn_items.append(Item(mark))
        if not self.aside:
            self.items.append(Item(mark))

    def model_called(self, history: Sequence[v.Message], delta: Sequence[v.Message]) -> None:
        """A request came: it must hold what happened, and replies and results are durable."""
        if self.dead:
            return
        self._begins("a model call")
        problems = list(valid("a request", history))
        if tuple(history[len(history) - len(delta) :]) != tuple(delta):
            problems.append("C2: the delta is not the tail of the request's history")
        if not self.aside:
            problems += self.disagreements("a request", history)
            # What the caller said after the last reply may still be on its way.
            replies = [place for place, each in enumerate(self.items) if each.mark[:2] == "re"]
            self._is_durable(history, self.items[: replies[-1] + 1] if replies else [])
        self.problems += problems

    def _is_durable(self, history: Sequence[v.Message], items: Iterable[Item]) -> None:
        for item in items:
            item.told = True
        for number, result in answered_calls(history):
            if result is not None and number in self.calls:
                self.calls[number].acknowledged = True

    def session_was_closed(self, history: Sequence[v.Message]) -> None:
        """The agent was left without a crash: what a healthy journal was given is durable."""
        if self.healthy:
            self._is_durable(history, self.items)

    def entered(self, number: int, key: str) -> CallTruth:
        """A tool's function was entered."""
        truth = self.calls[number]
        if self.dead:
            return CallTruth(truth.plan)
        self._begins(f"tool call {number}")
        truth.entered += 1
        if truth.entered > 1 and not truth.lost:
            self.problems.append(f"C3: call {number} ran {truth.entered} times: {truth.plan}")
        owner = self._keys.setdefault(key, number)
        if owner != number and self.healthy:
            self.problems.append(f"calls {owner} and {number} have one idempotency key {key!r}")
        return truth

    def _begins(self, what: str) -> None:
        # In a thread nothing can be said: the cancel may have come after the thread began.
        in_task = trio.lowlevel.in_trio_task()
        if in_task and trio.current_effective_deadline() == -math.inf:
            self.problems.append(f"C1: {what} began after the cancel")

    # --- what cannot be relied on any more ----------------------------------------

    def history_was_replaced(self, given: Sequence[v.Message] | None = None) -> None:
        """What is in the history now depends on what it was replaced with."""
        for item in self.items:
            item.sure = False
        for number, result in () if given is None else answered_calls(given):
            if result is None and number in self.calls:
                self.calls[number].forgotten = True

    def history_was_compacted(
        self, gone: Sequence[v.Message], kept: Sequence[v.Message], mark: str
    ) -> None:
        """A summary with ``mark`` stands for ``gone`` now, in front of ``kept``.

        What is gone is there again when a crash takes the compaction back.
        """
        if self.dead:
            return  # the process goes on to its next checkpoint, and nothing of it is kept
        self.history_was_trimmed(gone)
        behind = set(marks_of(kept))
        places = [place for place, item in enumerate(self.items) if item.mark in behind]
        self.items.insert(places[0] if places else len(self.items), Item(mark))

    def history_was_trimmed(self, gone: Sequence[v.Message]) -> None:
        """``gone`` was taken out; a crash may bring it back."""
        marks = set(marks_of(gone))
        for item in self.items:
            item.sure = item.sure and item.mark not in marks

    def power_was_cut(self) -> None:
        """What the model was not told may be gone; what it was told is there."""
        for truth in self.calls.values():
            truth.forgotten = truth.forgotten or not truth.acknowledged
            truth.lost = truth.lost or not self.healthy
        for item in self.items:
            item.sure = item.sure and item.told and self.healthy
        self.turn_items = None

    def session_was_reopened(self) -> None:
        """An agent opens the session: what the journal could not keep is gone."""
        if self.aside:
            # A turn without history is kept nowhere.
            self.aside, self.turn_items = False, None
        if not self.healthy:
            self.power_was_cut()

    # --- judgement ----------------------------------------------------------------

    def disagreements(self, what: str, messages: Sequence[v.Message]) -> Iterator[str]:
        """What ``messages``, a history, does not tell as it was; what is there becomes sure."""
        yield from _misplaced(what, self.items, marks_of(messages))
        yield from self.untrue_results(what, messages)

    def turn_disagreements(self, messages: Sequence[v.Message]) -> Iterator[str]:
        """The same for the messages of the newest turn."""
        if self.turn_items is not None:
            yield from _misplaced("last_turn", self.turn_items, marks_of(messages))
        yield from self.untrue_results("last_turn", messages)

    def untrue_results(self, what: str, messages: Sequence[v.Message]) -> Iterator[str]:
        """Results that say something else than what became of their calls."""
        for number, result in answered_calls(messages):
            truth = self.calls.get(number)
            if truth is None or result is None or truth.lost:
                continue
            problem = _untruth(truth, result)
            if problem:
                yield (
                    f"{problem}: in {what} call {number} ({truth.plan}) is answered "
                    f"{result.status.value} {result.text[:60]!r}; what happened: {truth}"
                )

    def changed_values(self) -> Iterator[str]:
        """Messages that do not look as they did when they were handed out."""
        for message, looked in self.handed_out:
            if repr(message) != looked:
                yield f"C9: a message changed after it was handed out: {looked} is now {message}"


def valid(what: str, messages: Sequence[v.Message]) -> Iterator[str]:
    """What is not valid in ``messages``."""
    try:
        check_history(messages)
    except HistoryError as error:
        yield f"C2: {what} is not valid: {error}"


def _misplaced(what: str, items: list[Item], found: Sequence[str]) -> Iterator[str]:
    """Marks that are missing, were never given, or stand in another order."""
    place = 0
    for mark in found:
        while place < len(items) and items[place].mark != mark:
            if items[place].sure:
                yield f"C3: {items[place].mark} is missing in {what}, or misplaced: {found}"
                return
            place += 1
        if place == len(items):
            yield f"C2: {mark} is twice or misplaced in {what}: {found}; expected {items}"
            return
        items[place].sure = True
        place += 1
    for item in items[place:]:
        if item.sure:
            yield f"C3: {item.mark} is missing in {what}: {found}"


def _untruth(truth: CallTruth, result: v.ToolResult) -> str:
    status = result.status
    if truth.forgotten and status in _UNKNOWN:
        return ""
    if not truth.entered:
        # A crash may come between the record of a start and the start itself.
        return "" if status in _NEVER_RAN else "C4: its tool was never entered"
    if truth.returned:
        plain = type(truth.value) is str and len(truth.value) < 1000 and truth.value.strip()
        if not plain or "\ud800" in str(truth.value):
            fits = status in {v.CallStatus.OK, v.CallStatus.ERROR}
        else:
            fits = status is v.CallStatus.OK and result.text == truth.value
        return "" if fits else "C3: its tool returned"
    if status in _NEVER_RAN:
        return "C4: its tool was entered"
    if truth.raised:
        return "" if status is v.CallStatus.ERROR else "C3: its tool raised an error of its own"
    if status is v.CallStatus.OK:
        return "C4: its tool did not return"
    if status is v.CallStatus.CANCELLED and not truth.stopped:
        return "C4: nobody cancelled it"
    return ""
