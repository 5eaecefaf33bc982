"""Reconciling: any list of messages becomes a valid history, and says what it took.

What may live here: the pure repair of a stored history and the values that
report it. What is valid is decided in `trio_runner._core.validity`.

How it works. A history that is valid comes back as it is. Otherwise each
message is mended by itself (text that does not encode, arguments that are no
object, a role that does not fit), then taken apart into results, content and
calls, and put together again: calls open a step, a result goes to its call,
content stays where it was. A result belongs to the step it follows, since ids
may repeat from step to step; a result that comes later still finds its call
when no other call before it has that id. Work that finished is never
dropped; only a result that fits no call is.
"""

from __future__ import annotations

import enum
import operator
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import attrs

import trio_runner._core.mending as mending
import trio_runner._core.normalise as normalise
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.validity as validity
import trio_runner._core.values as v
from trio_runner._core.quick import ByFields


class HistoryRollbackStatus(str, enum.Enum):
    """What became of the history when a turn ended or a history was reconciled."""

    HISTORY_DISABLED = "history_disabled"
    HISTORY_EMPTY = "history_empty"
    HISTORY_UNCHANGED = "history_unchanged"
    APPENDED_COMPLETED_TOOL_RESULT = "appended_completed_tool_result"
    APPENDED_PARTIAL_TOOL_RESULT = "appended_partial_tool_result"
    APPENDED_INTERRUPTED_TOOL_RESULT = "appended_interrupted_tool_result"
    REPAIRED = "repaired"


@attrs.frozen(eq=False, repr=False)
class HistoryRollbackState(ByFields):
    """What was done to make a history valid.

    Attributes:
      status: ``history_empty``; ``history_unchanged``; when only the calls of the
        last step had to be answered, ``appended_partial_tool_result`` where some of
        them had their real result and ``appended_interrupted_tool_result`` where
        none had; ``repaired`` for everything else. ``history_disabled`` and
        ``appended_completed_tool_result`` (all results of the last step are real,
        the model has not seen them) are set by the runner alone.
      messages_before: how many messages there were.
      messages_after: how many there are now.
      repairs: one sentence for each thing that was done, in the order of the messages.
    """

    status: HistoryRollbackStatus
    messages_before: int
    messages_after: int
    repairs: tuple[str, ...] = ()


def reconcile_interrupted_history(
    messages: Iterable[v.Message],
) -> tuple[tuple[v.Message, ...], HistoryRollbackState]:
    """Return ``messages`` as a valid history, and what was done to them.

    Works for any messages, also damaged ones. Doing it twice changes nothing
    more, and a valid history comes back unchanged, the same message objects.

    * A call without a result is answered ``interrupted``: the history alone cannot
      tell whether it ran. The call is never removed.
    * A result is moved to its call and put in the order of the calls. One that fits
      no call, or a second one for the same call, is dropped.
    * An id that is blank or was used before is replaced, in the call and its result.
    * An empty reply gets a placeholder, an empty user message is dropped.

    Linear in the size of the history. Never raises for `Message` values.
    """
    given = tuple(messages)
    if not given:
        return (), HistoryRollbackState(HistoryRollbackStatus.HISTORY_EMPTY, 0, 0)
    if not validity.history_problems(given):
        status = HistoryRollbackStatus.HISTORY_UNCHANGED
        return given, HistoryRollbackState(status, len(given), len(given))
    report = _Report()
    parts = [part for index, message in enumerate(given) if (part := _part(index, message, report))]
    repair = _Repair(parts, report)
    for part in parts:
        repair.add(part)
    repaired = repair.messages()
    state = HistoryRollbackState(repair.status(), len(given), len(repaired), report.sentences())
    return repaired, state


# --- the report -----------------------------------------------------------------


class _Report:
    """Strictly private: collects what was done, each with the index of its message."""

    def __init__(self) -> None:
        #: Everything but answers to open calls.
        self.changes: list[tuple[int, str]] = []
        #: Open calls that were answered.
        self.answers: list[tuple[int, str]] = []

    def change(self, index: int, text: str) -> None:
        self.changes.append((index, f"message {index}: {text}"))

    def answer(self, index: int, text: str) -> None:
        self.answers.append((index, f"message {index}: {text}"))

    def sentences(self) -> tuple[str, ...]:
        every = sorted([*self.changes, *self.answers], key=operator.itemgetter(0))
        return tuple([sentence for _, sentence in every])


def _part(index: int, message: v.Message, report: _Report) -> mending.Part | None:
    def tell(text: str) -> None:
        report.change(index, text)

    return mending.take_apart(index, message, tell)


# --- putting them together ------------------------------------------------------


@attrs.define(eq=False)
class _Step:
    """Strictly private: a message with calls and the answers found for them.

    Attributes:
      index: of the message in the input.
      message: as it goes out, with its final ids.
      answers: one for each call, None while it is open.
      carrier: the user message right after it that holds results of it.
    """

    index: int
    message: v.Message
    answers: list[v.ToolResult | None]
    carrier: mending.Part | None = None


#: What a raw id is compared by; ids of any type must be possible.
_Key: TypeAlias = str | tuple[str, str]


def _key(raw: object) -> _Key:
    match raw:
        case str():
            return raw
        case int():
            return (type(raw).__name__, hex(raw))  # Python prints no huge int in decimal
        case None | float():
            return (type(raw).__name__, repr(raw))
        case _:
            return (type(raw).__name__, str(id(raw)))


class _Repair:
    """Strictly private: builds the valid history, one part after the other."""

    def __init__(self, parts: Iterable[mending.Part], report: _Report) -> None:
        raw_ids = [cast("object", call.id) for part in parts for call in part.calls]
        #: How many calls so far have this raw id.
        self._count: Counter[_Key] = Counter()
        #: Every id that some call was given: an invented one must differ from all.
        self._given = {cast("str", raw) for raw in raw_ids if validity.is_usable_id(raw)}
        #: The final ids of the calls so far. Invariant: no two calls share one.
        self._used: set[str] = set()
        self._out: list[_Step | v.Message] = []
        #: The newest step, and its open positions by raw id, the first one last.
        self._current: _Step | None = None
        self._open_here: dict[_Key, list[int]] = {}
        #: Open calls of any step whose raw id no other call so far has.
        self._open_once: dict[_Key, tuple[_Step, int]] = {}
        self._report = report

    def add(self, part: mending.Part) -> None:
        """Take the next message, in order."""
        step = self._current
        right_after = (
            step is not None
            and step.carrier is None
            and self._out[-1] is step
            and part.role == "user"
            and not part.calls
        )
        unmatched: list[v.ToolResult] = []
        positions: list[int] = []
        for result in part.results:
            found = self._open_call_of(result)
            if found is None:
                unmatched.append(result)
                continue
            self._answer(*found, result)
            if right_after and found[0] is step:
                positions.append(found[1])
            else:
                self._report_moved(part, found[0], result)
        if step is not None and positions:
            # Text next to the results stays with them.
            step.carrier = part
            if positions != sorted(positions):
                self._report.change(part.index, "its results were put in the order of the calls")
        else:
            self._add_content_and_calls(part)
        if part.calls:
            unmatched = self._match_own(part, unmatched)
        for result in unmatched:
            self._report.change(
                part.index,
                f"the result for {validity.shown(result.call_id)} fits no open call; dropped",
            )

    def _open_call_of(self, result: v.ToolResult) -> tuple[_Step, int] | None:
        key = _key(result.call_id)
        positions = self._open_here.get(key)
        if positions and self._current is not None:
            self._open_once.pop(key, None)
            return self._current, positions.pop()
        return self._open_once.pop(key, None)

    def _answer(self, step: _Step, position: int, result: v.ToolResult) -> None:
        call = step.message.tool_calls[position]
        if result.call_id != call.id:
            result = attrs.evolve(result, call_id=call.id)
        step.answers[position] = result

    def _match_own(self, part: mending.Part, results: list[v.ToolResult]) -> list[v.ToolResult]:
        """Results that stand in the message of their own calls; returns the rest."""
        unmatched: list[v.ToolResult] = []
        for result in results:
            found = self._open_call_of(result)
            if found is None:
                unmatched.append(result)
            else:
                self._answer(*found, result)
                self._report_moved(part, found[0], result)
        return unmatched

    def _report_moved(self, part: mending.Part, step: _Step, result: v.ToolResult) -> None:
        self._report.change(
            part.index,
            f"the result for {validity.shown(result.call_id)} was moved to right after its call in "
            f"message {step.index}",
        )

    def _add_content_and_calls(self, part: mending.Part) -> None:
        if part.calls and part.role == "user":
            self._report.change(part.index, "its calls were moved to a reply of their own")
            if part.has_content:
                self._out.append(_rebuilt(part, "user", part.content))
            self._open_step(part, ())
        elif part.calls:
            self._open_step(part, part.content)
        elif part.has_content:
            self._out.append(_rebuilt(part, part.role, part.content))
        elif part.role == "assistant":
            self._report.change(part.index, f"the reply was empty; got {normalise.EMPTY_REPLY!r}")
            content = (v.TextContent(normalise.EMPTY_REPLY),)
            self._out.append(_rebuilt(part, "assistant", content))
        elif not part.results:
            self._report.change(part.index, "the message was empty; dropped")

    def _open_step(self, part: mending.Part, content: tuple[v.ContentBlock, ...]) -> None:
        calls: list[v.ToolCall] = []
        self._open_here = {}
        for position, call in enumerate(part.calls):
            calls.append(self._with_unique_id(part.index, position, call))
            self._open_here.setdefault(_key(call.id), []).append(position)
        for positions in self._open_here.values():
            positions.reverse()
        message = _rebuilt(part, "assistant", content, calls=tuple(calls))
        step = _Step(part.index, message, [None] * len(calls))
        for position, call in enumerate(part.calls):
            key = _key(call.id)
            self._count[key] += 1
            if self._count[key] == 1:
                self._open_once[key] = (step, position)
            else:
                # From here on a late result could belong to either.
                self._open_once.pop(key, None)
        self._current = step
        self._out.append(step)

    def _with_unique_id(self, index: int, position: int, call: v.ToolCall) -> v.ToolCall:
        if validity.is_usable_id(call.id) and call.id not in self._used:
            self._used.add(call.id)
            return call
        new_id = normalise.unused_id(len(self._used) + 1, self._used, self._given)
        self._used.add(new_id)
        self._report.change(
            index,
            f"call {position}: the id {validity.shown(call.id)} is blank, not text that encodes, "
            f"or was used before; renamed {new_id!r}",
        )
        return attrs.evolve(call, id=new_id)

    def messages(self) -> tuple[v.Message, ...]:
        """The valid history; answers what is still open."""
        result: list[v.Message] = []
        for item in self._out:
            match item:
                case _Step():
                    result.extend((item.message, self._answers_of(item)))
                case _:
                    result.append(item)
        return tuple(result)

    def _answers_of(self, step: _Step) -> v.Message:
        answers: list[v.ToolResult] = []
        for call, answer in zip(step.message.tool_calls, step.answers, strict=True):
            if answer is None:
                self._report.answer(
                    step.index,
                    f"the call {validity.shown(call.id)} had no result; answered as interrupted",
                )
                answers.append(stand_ins.unrecorded(call))
            else:
                answers.append(answer)
        if step.carrier is None:
            # With the flag of its calls, so that keeping the templates keeps the pair.
            return v.Message.user((), tool_results=answers, template=step.message.template)
        carrier = step.carrier
        return _rebuilt(carrier, "user", carrier.content, results=tuple(answers))

    def status(self) -> HistoryRollbackStatus:
        """How the whole repair is named; call it after `messages`."""
        last = self._current
        if self._report.changes or last is None:
            return HistoryRollbackStatus.REPAIRED
        if any(index != last.index for index, _ in self._report.answers):
            return HistoryRollbackStatus.REPAIRED
        if all(answer is None for answer in last.answers):
            return HistoryRollbackStatus.APPENDED_INTERRUPTED_TOOL_RESULT
        return HistoryRollbackStatus.APPENDED_PARTIAL_TOOL_RESULT


def _rebuilt(
    part: mending.Part,
    role: str,
    content: tuple[v.ContentBlock, ...],
    *,
    calls: tuple[v.ToolCall, ...] = (),
    results: tuple[v.ToolResult, ...] = (),
) -> v.Message:
    """The message of ``part`` with these fields; the same object when nothing differs."""
    source = part.source
    if (
        cast("object", source.role) == role
        and source.content is content
        and _same_objects(source.tool_calls, calls)
        and _same_objects(source.tool_results, results)
    ):
        return source
    return attrs.evolve(
        source,
        role=cast("Any", role),
        content=content,
        tool_calls=calls,
        tool_results=results,
    )


def _same_objects(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    return len(before) == len(after) and all(
        one is other for one, other in zip(before, after, strict=True)
    )
