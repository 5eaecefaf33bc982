"""Every event sequence of the turn machine for small turns, breadth first.

The walk
--------
From each state every event is tried that the machine has: a reply of every
stop reason with every number of calls, below the cap, at it and without one;
each start and each result, in any order, with and without attached media;
messages added, the history replaced, the step done, arguments edited, the turn
suspended, its answer refused, its results passed through; the turn finished,
resumed (also after a crash, which cuts the calls that had started) and
interrupted for every reason. After each event everything is checked that
must hold (`problems`), in the machine and in the fold of the records that the
shell writes. In each state every event that is not legal there is tried as
well: it must be refused and change nothing.

What must hold is said by `Book`: the rules of the machine once more, written
as what a history has to contain rather than as transitions.

States that are one
-------------------
The sequences are endless, since messages may be added again and again. `kind`
makes their states finitely many: it leaves out what the machine never reads
again. That is sound for four reasons.

* How often a call was started is only ever counted on, and compared with its
  record: nothing is decided by it.
* A closed step is only ever copied. Of the history the machine asks for the
  last message (`resumed`), for results that the model has not seen, and
  whether there is any message (how an interrupt is reported); `kind` keeps
  these three. While a step is open none of them can matter: closing it comes
  first, and puts other messages there.
* What is left out is not left unchecked. After each event the history must be
  what the book says, message by message, and what was there before must be
  there still. So if it was right before the event, it is right after it, for
  whichever of the merged ways led there.
* It is tried: `test_states_that_are_merged_go_on_alike` walks smaller turns
  with `everything` as the identity of a state, where nothing is left out, and
  finds that all states of one kind have the same events, that each of these
  leads to the same kind, and that both walks reach the same kinds.

Calls are not merged by symmetry: that positions do not get mixed up is what is
to be shown.

The file is long because tests import nothing of each other: the rules, the
states and the walk belong together. ``test_turn_machine_walk.py`` shows that
the walk can fail.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias, cast

import attrs
import pytest

import trio_runner._core.records as r
import trio_runner._core.values as v
from trio_runner._core.errors import InternalError, NothingToResumeError, TurnEndedError
from trio_runner._core.fold import fold
from trio_runner._core.history import History
from trio_runner._core.open_step import OpenStep
from trio_runner._core.reconcile import HistoryRollbackStatus as Rollback
from trio_runner._core.turn import Action, CallModel, Finished, Phase, RunTools, Turn
from trio_runner._core.validity import history_problems

Stop = v.StopReason
End = v.EndReason
Status = v.CallStatus
Messages: TypeAlias = tuple[v.Message, ...]

# --- the rules, as tables -------------------------------------------------------

GOES_ON: Final = (Stop.TOOL_USE, Stop.PAUSE, Stop.CONTINUE_)
ENDS_AS: Final = {
    None: End.ANSWERED,
    Stop.END_TURN: End.ANSWERED,
    Stop.STOP_SEQUENCE: End.ANSWERED,
    Stop.MAX_TOKENS: End.MAX_TOKENS,
    Stop.SAFETY: End.SAFETY,
    Stop.ERROR: End.FAILED,
    Stop.TIMEOUT: End.FAILED,
    Stop.CANCELLED: End.FAILED,
}
#: How calls are answered that do not run.
NOT_RUN_AS: Final[Mapping[Stop | None, Status]] = {
    Stop.TOOL_USE: Status.LIMIT_REACHED,
    Stop.MAX_TOKENS: Status.OUTPUT_CUT,
    Stop.SAFETY: Status.DENIED,
    Stop.ERROR: Status.DENIED,
    Stop.TIMEOUT: Status.DENIED,
    Stop.CANCELLED: Status.DENIED,
}
#: How the text of each status begins, and what it says of the call's effect.
WORDS: Final = {
    Status.LIMIT_REACHED: ("Limit reached: ", "was not run and had no effect"),
    Status.OUTPUT_CUT: ("Output cut: ", "was not run and had no effect"),
    Status.DENIED: ("Denied: ", "was not run and had no effect"),
    Status.NOT_STARTED: ("Not started: ", "was not run and had no effect"),
    Status.TIMED_OUT: ("Timed out: ", "not known whether it took effect"),
    Status.INTERRUPTED: ("Interrupted: ", "not known whether it took effect"),
    Status.UNKNOWN_AFTER_CRASH: ("Unknown: ", "not known whether it took effect"),
}
RESUMABLE: Final = (End.INTERRUPTED, End.TIMED_OUT, End.FAILED, End.MAX_ITERATIONS, End.LIMIT)


# --- events ---------------------------------------------------------------------


@attrs.frozen
class Replied:
    stop: Stop | None
    calls: int
    cap: int | None


@attrs.frozen
class Started:
    at: int


@attrs.frozen
class Returned:
    """The result of a call that runs, or the refusal of one that does not."""

    at: int
    attaches: bool = False


@attrs.frozen
class Edited:
    at: int


@attrs.frozen
class Held:
    at: int
    waits_for: r.WaitsFor


@attrs.frozen
class Approved:
    at: int


@attrs.frozen
class Suspended:
    pass


@attrs.frozen
class Refused:
    pass


@attrs.frozen
class Passed:
    pass


@attrs.frozen
class Added:
    pass


@attrs.frozen
class Replaced:
    by: int


@attrs.frozen
class StepDone:
    pass


@attrs.frozen
class Ended:
    pass


@attrs.frozen
class Interrupted:
    reason: End
    crashed: bool = False


@attrs.frozen
class Resumed:
    pass


Event: TypeAlias = (
    Replied
    | Started
    | Returned
    | Edited
    | Held
    | Approved
    | Suspended
    | Refused
    | Passed
    | Added
    | Replaced
    | StepDone
    | Ended
    | Interrupted
    | Resumed
)

EVERY_INTERRUPT: Final = tuple(
    Interrupted(reason, crashed)
    for reason in End
    if reason is not End.SUSPENDED
    for crashed in (False, True)
)
FEW_INTERRUPTS: Final = (
    Interrupted(End.INTERRUPTED),
    Interrupted(End.FAILED),
    Interrupted(End.TIMED_OUT, crashed=True),
)
EVERY_STOP: Final = (None, *Stop)
FEW_STOPS: Final = (Stop.END_TURN, Stop.TOOL_USE, Stop.PAUSE)


@attrs.frozen
class Bounds:
    """How far a walk goes.

    Attributes:
      calls: at most so many calls in a reply.
      steps: at most so many replies in the turn.
      queued: at most so many messages are added while a step is open.
      spare: how often in all a message is added, the history replaced and the
        turn resumed; None: without end.
      stops: the stop reasons of the replies.
      interrupts: the ways to interrupt.
      crashes: a crash cuts the calls of the first so many replies only.
      words: calls are held and approved. A walk of its own, since it multiplies the states.
    """

    calls: int
    steps: int
    queued: int = 1
    spare: tuple[int, int, int] | None = None
    stops: tuple[Stop | None, ...] = EVERY_STOP
    interrupts: tuple[Interrupted, ...] = EVERY_INTERRUPT
    crashes: int = 1
    words: bool = False


# --- histories ------------------------------------------------------------------

_TEMPLATE = v.Message.user("template", template=True)
_CALLS = v.Message.assistant(tool_calls=[v.ToolCall("h0", "tool"), v.ToolCall("h1", "tool")])
_RESULTS = v.Message.user(
    tool_results=[v.ToolResult("h0", "tool", "old"), v.ToolResult("h1", "tool", "old")]
)
#: What the history may be replaced by; the last ends with results the model has not seen.
REPLACEMENTS: Final[tuple[Messages, ...]] = (
    (),
    (v.Message.user("summary"),),
    (_TEMPLATE, v.Message.user("summary"), v.Message.assistant("understood")),
    (_TEMPLATE, v.Message.user("old question"), _CALLS, _RESULTS),
)
#: What the turn begins with, and whether it sends all of itself (a turn without history).
STARTS: Final[tuple[tuple[Messages, bool], ...]] = (
    ((), False),
    ((v.Message.user("old"), _CALLS, _RESULTS, v.Message.assistant("old answer")), False),
    ((_TEMPLATE,), True),
)


# --- what has to come of the events ---------------------------------------------


@attrs.define
class Book:
    """What was said to the machine, and what must have come of it."""

    history: Messages
    #: Whether the delta is the whole turn.
    whole: bool
    #: Where the delta begins.
    unseen: int
    messages: Messages = ()
    #: The reply whose calls are open, and what was said of them by position.
    asked: v.Message | None = None
    started: frozenset[int] = frozenset()
    #: Of those that had started: the ones that a crash cut, and how often each was started.
    cut: frozenset[int] = frozenset()
    attempts: dict[int, int] = attrs.field(factory=dict[int, int])
    answers: dict[int, v.ToolResult] = attrs.field(factory=dict[int, v.ToolResult])
    attached: dict[int, v.Message] = attrs.field(factory=dict[int, v.Message])
    edits: dict[int, v.JSONObject] = attrs.field(factory=dict[int, v.JSONObject])
    held: dict[int, r.WaitsFor] = attrs.field(factory=dict[int, r.WaitsFor])
    approved: frozenset[int] = frozenset()
    queued: Messages = ()
    results: v.Message | None = None
    #: Between a reply that goes on and its `step_done`.
    goes_on: bool = False
    #: Steps that went on since the cap was granted.
    opened: int = 0
    replies: int = 0
    #: Whether the newest reply came at the cap.
    met_cap: bool = False
    usage: v.Usage = v.Usage()
    decided: End | None = None
    ended: End | None = None
    rollback: tuple[Rollback, int, int] | None = None

    def copied(self) -> Book:
        return attrs.evolve(
            self,
            answers=dict(self.answers),
            attached=dict(self.attached),
            attempts=dict(self.attempts),
            edits=dict(self.edits),
            held=dict(self.held),
        )

    @property
    def open_positions(self) -> list[int]:
        calls = () if self.asked is None else self.asked.tool_calls
        return [position for position in range(len(calls)) if position not in self.answers]

    @property
    def action(self) -> Action:
        end = self.decided or self.ended
        if end is not None:
            return Finished(end)
        return RunTools() if self.goes_on else CallModel()

    @property
    def can_resume(self) -> bool:
        if self.ended is End.SUSPENDED:
            return True
        last = self.history[-1] if self.history else None
        return (
            self.ended in RESUMABLE
            and last is not None
            and (last.role == "user" or last.stop_reason in (Stop.PAUSE, Stop.CONTINUE_))
        )

    def add(self, *messages: v.Message) -> None:
        self.history += messages
        self.messages += messages

    def model_has_all(self) -> None:
        if not self.whole:
            self.unseen = len(self.history)

    def close(self) -> None:
        """The step is complete: reply, results in the order of the request, the rest."""
        assert self.asked is not None
        self.add(self.asked)
        self.model_has_all()
        ordered = [self.answers[i] for i in range(len(self.asked.tool_calls))]
        self.results = v.Message("user", tool_results=ordered)
        media = [self.attached[i] for i in range(len(ordered)) if i in self.attached]
        self.add(self.results, *media, *self.queued)
        self.asked, self.started, self.queued = None, frozenset(), ()
        self.answers, self.attached = {}, {}
        self.cut, self.attempts, self.edits = frozenset(), {}, {}
        self.held, self.approved = {}, frozenset()

    def replied(self, reply: v.Message, cap: int | None, made: Sequence[v.ToolResult]) -> None:
        self.replies += 1
        self.usage += reply.usage or v.Usage()
        goes_on = reply.stop_reason in GOES_ON
        self.met_cap = cap is not None and self.opened >= cap
        if goes_on and not self.met_cap:
            self.opened += 1
            self.goes_on = True
            if reply.tool_calls:
                self.asked = reply
                return
        else:
            self.decided = End.MAX_ITERATIONS if goes_on else ENDS_AS[reply.stop_reason]
        self.add(reply)
        self.model_has_all()
        if made:
            self.add(v.Message("user", tool_results=made))

    def returned(self, at: int, result: v.ToolResult, attached: Messages) -> None:
        self.answers[at] = result
        if attached:
            self.attached[at] = attached[0]
        if not self.open_positions:
            self.close()

    def replaced(self, messages: Messages) -> None:
        self.history = messages
        if self.whole:
            self.unseen = [*[m.template for m in messages], False].index(False)
        else:
            roles = [message.role for message in messages]
            self.unseen = max([i + 1 for i, role in enumerate(roles) if role == "assistant"] or [0])

    def refused(self, messages: Messages) -> Messages:
        if self.met_cap:
            self.decided = End.MAX_ITERATIONS
            return ()
        self.decided = None
        self.opened += 1
        self.goes_on = True
        self.add(*messages)
        return messages

    def passed(self, message: v.Message) -> None:
        self.replies += 1
        self.add(message)
        self.model_has_all()
        self.decided = End.PASSED_THROUGH

    def suspended(self) -> None:
        """It ends, and nothing else becomes of it."""
        self.rollback = (Rollback.HISTORY_UNCHANGED, len(self.history), len(self.history))
        self.ended = End.SUSPENDED

    def end(self) -> None:
        assert self.decided is not None
        self.rollback = (Rollback.HISTORY_UNCHANGED, len(self.history), len(self.history))
        self.ended, self.decided, self.goes_on = self.decided, None, False

    def interrupted(self, reason: End, made: Sequence[v.ToolResult]) -> None:
        if self.decided is not None and reason is not End.FAILED:
            self.end()
            return
        before, status = len(self.history), Rollback.HISTORY_UNCHANGED
        if self.asked is not None:
            status = (
                Rollback.APPENDED_PARTIAL_TOOL_RESULT
                if self.answers
                else Rollback.APPENDED_INTERRUPTED_TOOL_RESULT
            )
            self.answers |= dict(zip(self.open_positions, made, strict=True))
            self.close()
        elif not self.history:
            status = Rollback.HISTORY_EMPTY
        elif any(message.tool_results for message in self.history[self.unseen :]):
            status = Rollback.APPENDED_COMPLETED_TOOL_RESULT
        self.rollback = (status, before, len(self.history))
        self.ended, self.decided, self.goes_on = reason, None, False

    def begun(self, at: int) -> None:
        self.started |= {at}
        self.cut -= {at}
        self.attempts[at] = self.attempts.get(at, 0) + 1

    def resumed(self) -> None:
        if self.ended is None:
            self.cut = self.started
        if self.ended is End.MAX_ITERATIONS:
            self.opened = 0
        self.ended = None


# --- the machine and its states -------------------------------------------------


@attrs.define
class Node:
    """A state: the machine, what must be true of it, and how it came about."""

    turn: Turn
    book: Book
    bounds: Bounds
    #: What the shell has written; None for a turn without a session.
    records: tuple[r.Record, ...] | None
    path: tuple[Event, ...] = ()
    #: Messages added, histories replaced, turns resumed.
    spent: tuple[int, int, int] = (0, 0, 0)


def begin(start: tuple[Messages, bool], bounds: Bounds) -> Node:
    """A turn that has its input."""
    before, whole = start
    question = v.Message.user("question")
    turn = Turn(History(before), 1, sends_whole_turn=whole)
    turn.input_added([question])
    book = Book((), whole, 0)
    book.replaced(before)
    book.add(question)
    records = (r.SessionOpened("a"), r.HistoryReplaced(before), r.TurnStarted(1, (question,)))
    return Node(turn, book, bounds, None if whole else records)


#: The types in a machine whose values change.
CHANGE: Final = (list, dict, set, bytearray)


def copied_turn(turn: Turn) -> Turn:
    """A machine in the same state that shares nothing that changes."""
    twin = object.__new__(Turn)
    for name, value in vars(turn).items():
        match value:
            case History() | OpenStep():
                setattr(twin, name, _copied_slots(value))
            case _:
                setattr(twin, name, _still(value))
    return twin


def _copied_slots(value: History | OpenStep) -> object:
    kind_of = type(value)
    twin = object.__new__(kind_of)
    for name in kind_of.__slots__:
        setattr(twin, name, _still(getattr(value, name)))
    return twin


def picture(turn: Turn) -> object:
    """All there is in a machine, to see whether it was changed."""
    parts: list[object] = []
    for value in vars(turn).values():
        match value:
            case History() | OpenStep():
                parts += [_still(getattr(value, slot)) for slot in type(value).__slots__]
            case _:
                parts.append(_still(value))
    return parts


def _still(value: Any) -> object:
    return type(value)(value) if type(value) in CHANGE else value


def kind(node: Node) -> Hashable:
    """What tells states apart: all that the machine can read again."""
    turn, step, history = node.turn, node.turn._step, node.turn.history
    common = (
        turn.phase,
        turn._decided,
        # Read again when an answer is refused, and by nothing else.
        turn._decided is End.ANSWERED and turn._met_cap,
        turn.end_reason,
        turn.iteration,
        turn._uncounted,
        turn.replies,
        turn._whole_from is None,
        node.spent if node.bounds.spare is not None else None,
    )
    if step is not None:
        answered = tuple([None if each is None else each.status for each in step.results])
        words = (frozenset(step.held.items()), frozenset(step.approved))
        # In the order in which they came: a machine could depend on it.
        common = (*common, words)
        return common, answered, bytes(step.started), tuple(step.attached), len(turn._queued)
    last = history.last
    return (
        common,
        None if last is None else (last.role, last.stop_reason, bool(last.tool_results)),
        any(message.tool_results for message in turn.delta),
        len(turn._queued),
    )


def everything(node: Node) -> Hashable:
    """What tells states apart when nothing is left out but what is derived."""
    spent = node.spent if node.bounds.spare is not None else None
    return spent, hashable(vars(node.turn))


def hashable(value: object) -> Hashable:
    match value:
        case v.Message():
            results = [(each.call_id, each.status, each.text) for each in value.tool_results]
            ids = [call.id for call in value.tool_calls]
            return value.role, value.stop_reason, value.text, tuple(ids), tuple(results)
        case History() | OpenStep():
            slots = [slot for slot in type(value).__slots__ if slot != "_snapshot"]
            return tuple([hashable(getattr(value, slot)) for slot in slots])
        case dict():
            items = cast("dict[object, object]", value).items()
            return tuple([(hashable(key), hashable(each)) for key, each in items])
        case list() | tuple():
            return tuple([hashable(each) for each in cast("list[object]", value)])
        case v.ToolResult():
            return value.call_id, value.status, value.text
        case set():
            return frozenset(cast("set[Hashable]", value))
        case bytearray():
            return bytes(value)
        case _:
            return cast("Hashable", value)


# --- what is legal, and what happens --------------------------------------------


def events(node: Node) -> Iterator[Event]:
    """All that is legal now, but for what the bounds leave out."""
    book, bounds = node.book, node.bounds
    notes, replacements, resumes = _left(node)
    if book.ended is None and book.decided is None:
        if not book.goes_on and book.replies < bounds.steps:
            yield from replies(node)
        yield from of_calls(book)
        if bounds.words:
            yield from words(book)
        if can_pass_through(book) and book.replies <= bounds.steps:
            yield Passed()
        if book.goes_on and book.asked is None:
            yield StepDone()
        if notes and (book.asked is None or len(book.queued) < bounds.queued):
            yield Added()
    if replacements:
        yield from map(Replaced, range(len(REPLACEMENTS)))
    if book.decided is End.ANSWERED and book.replies < bounds.steps:
        yield Refused()
    if book.decided is not None:
        yield Ended()
    if book.ended is None:
        yield from bounds.interrupts
    runs = book.started - book.cut if book.replies <= bounds.crashes else ()
    if resumes and (book.can_resume or (book.ended is None and runs)):
        yield Resumed()


def of_calls(book: Book) -> Iterator[Event]:
    """What may happen to open calls."""
    for position in book.open_positions:
        if position not in book.started - book.cut:
            yield Started(position)
        yield Returned(position)
        if position in book.started - book.cut:
            yield Returned(position, attaches=True)
        if position not in book.started:
            yield Edited(position)
    if book.asked is not None and not runs(book):
        yield Suspended()


def runs(book: Book) -> frozenset[int]:
    """The open calls that run."""
    return (book.started - book.cut) & set(book.open_positions)


def words(book: Book) -> Iterator[Event]:
    """What may be said about open calls."""
    for position in book.open_positions:
        if position in runs(book):
            continue
        if position not in book.held and position not in book.approved:
            yield Held(position, "approval")
            yield Held(position, "external")
        if book.held.get(position) != "external":
            yield Approved(position)


def can_pass_through(book: Book) -> bool:
    """Whether results may be the answer: the model has not seen them."""
    last = book.history[-1] if book.history else None
    return (
        book.action == CallModel()
        and any(message.tool_results for message in book.history[book.unseen :])
        and last is not None
        and last.role == "user"
    )


def _left(node: Node) -> list[bool]:
    spare = node.bounds.spare
    if spare is None:
        return [True] * 3
    return [used < most for used, most in zip(node.spent, spare, strict=True)]


def replies(node: Node) -> Iterator[Replied]:
    """Every reply, with every cap that could make a difference."""
    done = node.book.opened
    for stop in node.bounds.stops:
        calls = range(stop not in NOT_RUN_AS or stop is Stop.TOOL_USE, node.bounds.calls + 1)
        if stop not in NOT_RUN_AS:
            calls = range(1)
        for count, cap in itertools.product(calls, {None, done + 1, done, max(done - 1, 0)}):
            yield Replied(stop, count, cap)


def after(node: Node, event: Event) -> Node:
    """A copy of ``node`` to which it happened; what was handed out before must not change."""
    fresh = attrs.evolve(
        node,
        turn=copied_turn(node.turn),
        book=node.book.copied(),
    )
    view = fresh.turn.history.view()
    happen(fresh, event)
    if view != node.book.history:
        fail("C9: a view that was handed out changed", fresh)
    return fresh


def happen(node: Node, event: Event) -> None:
    """Let it happen to the machine and to the book, and write the records that the shell writes."""
    node.path += (event,)
    written = _happen(node, event)
    if node.records is not None:
        node.records += tuple(written)
    notes, replacements, resumes = node.spent
    match event:
        case Added():
            node.spent = (notes + 1, replacements, resumes)
        case Replaced():
            node.spent = (notes, replacements + 1, resumes)
        case Resumed():
            node.spent = (notes, replacements, resumes + 1)
        case _:
            pass


def _happen(node: Node, event: Event) -> Sequence[r.Record]:
    turn, book = node.turn, node.book
    match event:
        case Replied(stop, count, cap):
            return _reply(node, stop, count, cap)
        case Started(at):
            turn.tool_started(at)
            book.begun(at)
            return [_start(node, at, book.attempts[at])]
        case Returned(at, attaches):
            return _return(node, at, attaches=attaches)
        case Edited() | Held() | Approved() | Suspended() | Refused() | Passed():
            return _happen_outside(node, event)
        case Added():
            note = v.Message.user(f"note {node.spent[0]}")
            turn.input_added([note])
            if book.asked is None:
                book.add(note)
            else:
                book.queued += (note,)
            return [r.InputAdded(1, (note,))]
        case Replaced(which):
            turn.history_replaced(REPLACEMENTS[which])
            book.replaced(REPLACEMENTS[which])
            return [r.HistoryReplaced(REPLACEMENTS[which])]
        case StepDone():
            turn.step_done()
            book.goes_on = False
            return []
        case Ended():
            if turn.finish() is not book.decided:
                fail("C8: it ended otherwise than decided", node)
            book.end()
        case Interrupted(reason, crashed):
            return _interrupt(node, reason, crashed=crashed)
        case Resumed():
            turn.resumed()
            book.resumed()
            return [r.TurnStarted(1, (), resumed=True)]
    assert book.ended is not None
    return [r.TurnEnded(1, book.ended)]


def _happen_outside(
    node: Node, event: Edited | Held | Approved | Suspended | Refused | Passed
) -> Sequence[r.Record]:
    """What neither the model nor a tool does."""
    turn, book = node.turn, node.book
    match event:
        case Edited(at):
            arguments: v.JSONObject = {"edited": at}
            turn.arguments_edited(at, arguments)
            book.edits[at] = arguments
            book.approved -= {at}
            return [r.CallEdited(1, turn.step, _call_id(book, at), arguments)]
        case Held(at, waits_for):
            turn.call_held(at, waits_for, _digest(book, at))
            book.held[at] = waits_for
            digest = _digest(book, at)
            return [r.CallHeld(1, turn.step, _call_id(book, at), waits_for, digest)]
        case Approved(at):
            turn.call_approved(at, _digest(book, at))
            book.approved |= {at}
            return [r.CallApproved(1, turn.step, _call_id(book, at), _digest(book, at))]
        case Suspended():
            turn.suspend()
            book.suspended()
            return [r.TurnEnded(1, End.SUSPENDED)]
        case Refused():
            again = (v.Message.user("once more"),)
            sent = turn.answer_refused(again)
            if sent != book.refused(again):
                fail("C2: it said something else to the model", node)
            return [r.AnswerRefused(1, sent)]
        case Passed():
            passed = v.Message.assistant("the results")
            turn.passed_through(passed)
            book.passed(passed)
            return [r.PassedThrough(1, passed)]


def _start(node: Node, at: int, attempt: int) -> r.ToolStarted:
    call_id = _call_id(node.book, at)
    return r.ToolStarted(1, node.turn.step, call_id, "tool", "", "", attempt=attempt)


def _digest(book: Book, position: int) -> str:
    assert book.asked is not None
    own = book.asked.tool_calls[position].arguments
    return r.arguments_hash(book.edits.get(position, own))


def _call_id(book: Book, position: int) -> str:
    assert book.asked is not None
    return book.asked.tool_calls[position].id


def _reply(node: Node, stop: Stop | None, count: int, cap: int | None) -> Sequence[r.Record]:
    turn, book = node.turn, node.book
    number = book.replies
    calls = [v.ToolCall(f"r{number}c{position}", "tool") for position in range(count)]
    usage = v.Usage(10**number, number) if number != 1 else None
    reply = v.Message("assistant", f"reply {number}", calls, (), stop, usage)
    met = cap if cap is not None and turn.iteration >= cap else None
    made = turn.model_replied(reply, cap)
    at_cap = cap is not None and book.opened >= cap
    runs = stop is Stop.TOOL_USE and not at_cap
    expected = [] if runs else [(call.id, NOT_RUN_AS[stop]) for call in calls]
    _check_made(node, made, expected)
    book.replied(reply, cap, made)
    written = [r.ToolFinished(1, number, result) for result in made]
    return [r.ModelFinished(1, number, reply, met), *written]


def _return(node: Node, at: int, *, attaches: bool) -> Sequence[r.Record]:
    turn, book = node.turn, node.book
    call_id = _call_id(book, at)
    status = Status.OK if at in book.started else Status.DENIED
    if at in book.cut:
        status = Status.UNKNOWN_AFTER_CRASH
    result = v.ToolResult(call_id, "tool", f"result of {call_id}", None, status)
    attached = (v.Message.user(f"media of {call_id}"),) if attaches else ()
    step = turn.step
    turn.tool_finished(at, result, attached)
    book.returned(at, result, attached)
    return [r.ToolFinished(1, step, result, attached)]


def _interrupt(node: Node, reason: End, *, crashed: bool) -> Sequence[r.Record]:
    turn, book = node.turn, node.book
    # A limit that strikes while calls run is one of time.
    ran = Status.TIMED_OUT if reason in (End.TIMED_OUT, End.LIMIT) else Status.INTERRUPTED
    ran = Status.UNKNOWN_AFTER_CRASH if crashed else ran
    expected: list[tuple[str, Status]] = []
    for at in book.open_positions:
        status = ran if at in book.started else Status.NOT_STARTED
        status = Status.UNKNOWN_AFTER_CRASH if at in book.cut else status
        expected.append((_call_id(book, at), status))
    step = turn.step
    made = turn.interrupt(reason, crashed=crashed)
    _check_made(node, made, expected)
    book.interrupted(reason, made)
    before = picture(turn)
    if turn.interrupt(End.FAILED, crashed=not crashed) or picture(turn) != before:
        fail("C6: a second interrupt changed something", node)
    assert book.ended is not None
    return [*[r.ToolFinished(1, step, result) for result in made], r.TurnEnded(1, book.ended)]


def _check_made(
    node: Node, made: Sequence[v.ToolResult], expected: list[tuple[str, Status]]
) -> None:
    given = [(result.call_id, result.status) for result in made]
    if given != expected:
        fail(f"C4: the machine answered {given}; expected {expected}", node)
    for result in made:
        begins, effect = WORDS[result.status]
        if not (result.text.startswith(begins) and effect in result.text):
            fail(f"C4: status {result.status.value} has the text {result.text!r}", node)


# --- what must hold -------------------------------------------------------------


def fail(what: str, node: Node) -> NoReturn:
    way = "\n".join([f"  {event}" for event in node.path])
    raise AssertionError(f"{what}\nafter these events:\n{way}")


def problems(turn: Turn, book: Book) -> Iterator[str]:
    """What the machine has that the book has not, or not so."""
    if turn.history.snapshot() != book.history:
        yield f"C3: the history is {turn.history.snapshot()}; expected {book.history}"
    if turn.messages != book.messages:
        yield f"C3: the turn's messages are {turn.messages}; expected {book.messages}"
    if turn.delta != book.history[book.unseen :]:
        yield f"the delta is {tuple(turn.delta)}; expected {book.history[book.unseen :]}"
    if turn.next_action() != book.action:
        yield f"C8: the next action is {turn.next_action()}; expected {book.action}"
    if turn.end_reason is not book.ended or (turn.phase is Phase.ENDED) != bool(book.ended):
        yield f"C8: the turn ended {turn.end_reason} ({turn.phase}); expected {book.ended}"
    known = (turn.reply, turn.results, turn.replies, turn.usage)
    if known != (book.asked, book.results, book.replies, book.usage):
        yield f"reply, results, replies and usage are {known}; expected {book}"
    if turn.iteration + turn._uncounted + book.goes_on != book.opened:
        yield f"{turn.iteration} + {turn._uncounted} steps were counted; expected {book.opened}"
    used = {call.id for message in book.history for call in message.tool_calls}
    if book.ended is None or book.asked is not None:
        used |= {call.id for message in book.messages for call in message.tool_calls}
    if not used <= turn.history.ids:
        yield f"C2: the ids {used - turn.history.ids} could be given once more"
    yield from step_problems(turn, book)


def step_problems(turn: Turn, book: Book) -> Iterator[str]:
    """What is wrong about the open calls and what waits for them."""
    if turn.open_positions != book.open_positions:
        yield f"C3: the open calls are {turn.open_positions}; expected {book.open_positions}"
    started = [position for position in book.open_positions if position in book.started]
    if turn.started_positions != started:
        yield f"C4: the started calls are {turn.started_positions}; expected {started}"
    if (step := turn.open_step) is not None:
        cut = [position for position in book.open_positions if step.is_cut(position)]
        if cut != sorted(book.cut & set(book.open_positions)):
            yield f"C4: the calls that a crash cut are {cut}; expected {sorted(book.cut)}"
        attempts = {i: count for i, count in enumerate(step.attempts) if count}
        if attempts != book.attempts:
            yield f"C4: the attempts of the open calls are {attempts}; expected {book.attempts}"
        for position, call in enumerate(step.reply.tool_calls):
            arguments = book.edits.get(position, call.arguments)
            if step.arguments(position) != arguments:
                yield f"C4: call {call.id} would run with {step.arguments(position)}"
            waits = position in book.held and position not in book.approved
            if step.waits(position) != (waits and position in book.open_positions):
                yield f"C4: call {call.id} waits for a word: {step.waits(position)}"
    if tuple(turn._queued) != book.queued:
        yield f"C3: the messages that wait are {turn._queued}; expected {book.queued}"
    calls = () if book.asked is None else book.asked.tool_calls
    for position, call in enumerate(calls):
        found = (turn.is_open(position), turn.position_of(call.id))
        is_open = position in book.open_positions
        if found != (is_open, position if is_open else None):
            yield f"C3: call {call.id} is open: {found}; expected {is_open}"
        if is_open and turn.is_started(position) != (position in started):
            yield f"C4: call {call.id} is started: {turn.is_started(position)}"


def check(node: Node) -> None:
    """Everything holds in the machine, and in what its records fold to."""
    turn, book = node.turn, node.book
    whole = [turn.messages] if book.history != book.messages else []
    for messages in (turn.history.view(), *whole):
        for problem in history_problems(messages):
            fail(f"C2: {problem}", node)
    for problem in problems(turn, book):
        fail(problem, node)
    rollback = turn.rollback and (
        turn.rollback.status,
        turn.rollback.messages_before,
        turn.rollback.messages_after,
    )
    if rollback != book.rollback:
        fail(f"the rollback is {rollback}; expected {book.rollback}", node)
    if node.records is None:
        return
    replayed = fold(node.records).turn
    assert replayed is not None
    if book.goes_on and book.asked is None:
        # No record says that a closed step is done: replayed, it is.
        book = attrs.evolve(book, goes_on=False)
    for problem in problems(replayed, book):
        fail(f"replayed from its records: {problem}", node)


def check_refusals(node: Node) -> None:
    """What is not legal here is refused, what is done already is left alone."""
    turn = node.turn
    before = picture(turn)
    for what, event, error in refused(turn, node.book):
        try:
            event()
        except (InternalError, TurnEndedError, NothingToResumeError) as exc:
            if type(exc) is not error:
                fail(f"{what} raised {exc!r}; expected {error.__name__}", node)
        else:
            fail(f"{what} was not refused", node)
        if picture(turn) != before:
            fail(f"{what} was refused and changed something", node)
    if node.book.ended is None:
        if node.book.started == node.book.cut:
            turn.resumed()
    else:
        if turn.finish() is not node.book.ended:
            fail("C8: finish gave another end reason the second time", node)
        for interrupt in EVERY_INTERRUPT:
            if turn.interrupt(interrupt.reason, crashed=interrupt.crashed):
                fail("C3: an interrupt of an ended turn made results", node)
    if picture(turn) != before:
        fail("C6: doing once more what was done already changed something", node)


def refused(turn: Turn, book: Book) -> Iterator[tuple[str, Callable[[], object], type[Exception]]]:
    """The events that are not legal, with what they must raise."""
    calls = [v.ToolCall("x", "tool")]
    misfits = [v.Message("assistant", "x", (), (), Stop.TOOL_USE)] + [
        v.Message("assistant", "x", calls, (), stop)
        for stop in (None, Stop.END_TURN, Stop.STOP_SEQUENCE, Stop.PAUSE, Stop.CONTINUE_)
    ]
    fits = [v.Message.assistant("x"), v.Message.assistant(tool_calls=calls)]
    if book.action != CallModel():
        misfits += fits
    for reply in misfits:
        yield f"{reply}", lambda reply=reply: turn.model_replied(reply, 9), InternalError
    size = 0 if book.asked is None else len(book.asked.tool_calls)
    for at in range(-1, size + 1):
        own = _call_id(book, at) if 0 <= at < size else "r0c0"
        other = _call_id(book, (at + 1) % size) if size > 1 else "other"
        is_open = at in book.open_positions and book.ended is None
        ids = [other] if is_open else [own, other]
        for call_id in ids:
            result = v.ToolResult(call_id, "tool", "late")
            finish = lambda at=at, result=result: turn.tool_finished(at, result)  # noqa: E731
            yield f"a result of {call_id} at {at}", finish, InternalError
        yield from refused_words(turn, book, at, can_run=is_open and at not in runs(book))
        if not is_open or at in book.started:
            edit = lambda at=at: turn.arguments_edited(at, {})  # noqa: E731
            yield f"an edit at {at}", edit, InternalError
        if not is_open or at in book.started - book.cut:
            yield f"a start at {at}", lambda at=at: turn.tool_started(at), InternalError
        else:
            for wrong in (-1, 1):
                count = book.attempts.get(at, 0) + 1 + wrong
                record = r.ToolStarted(1, turn.step, own, "tool", "", "", attempt=count)
                again = lambda at=at, record=record: turn.tool_started(at, record)  # noqa: E731
                yield f"another attempt of {own} than the next", again, InternalError
    yield from refused_from_outside(turn, book)
    if not book.goes_on or book.asked is not None:
        yield "step_done", turn.step_done, InternalError
    if book.decided is None and book.ended is None:
        yield "finish", turn.finish, InternalError
    if book.decided is not None or book.ended is not None:
        late = [v.Message.user("late")]
        yield "late input", lambda: turn.input_added(late), TurnEndedError
    if book.ended is not None and not book.can_resume:
        yield "a resume", turn.resumed, NothingToResumeError


def refused_from_outside(
    turn: Turn, book: Book
) -> Iterator[tuple[str, Callable[[], object], type[Exception]]]:
    """The same, of the events that neither the model nor a tool brings."""
    calls = [v.ToolCall("x", "tool")]
    fits = [v.Message.assistant("x"), v.Message.assistant(tool_calls=calls)]
    if book.asked is None or book.ended or runs(book):
        yield "a suspension", turn.suspend, InternalError
    if book.ended is None:
        suspended = lambda: turn.interrupt(End.SUSPENDED)  # noqa: E731
        yield "an interrupt that suspends", suspended, InternalError
    again = [v.Message.user("once more")]
    if book.decided is not End.ANSWERED:
        yield "a refused answer", lambda: turn.answer_refused(again), InternalError
    if book.decided is not End.ANSWERED or not book.met_cap:
        yield "an answer refused without a word", lambda: turn.answer_refused([]), InternalError
    yield "calls passed through", lambda: turn.passed_through(fits[1]), InternalError
    yield "input passed through", lambda: turn.passed_through(again[0]), InternalError
    if not can_pass_through(book):
        yield "results passed through", lambda: turn.passed_through(fits[0]), InternalError


def refused_words(
    turn: Turn, book: Book, at: int, *, can_run: bool
) -> Iterator[tuple[str, Callable[[], object], type[Exception]]]:
    """The same, of what is said about the call at one position."""
    digest = ""
    if can_run:
        assert book.asked is not None
        digest = r.arguments_hash(book.edits.get(at, book.asked.tool_calls[at].arguments))
        other = r.arguments_hash({"other": "arguments"})
        yield (
            f"other arguments held at {at}",
            lambda: turn.call_held(at, "approval", other),
            (InternalError),
        )
        yield (
            f"other arguments approved at {at}",
            lambda: turn.call_approved(at, other),
            (InternalError),
        )
    if not can_run or at in book.held or at in book.approved:
        yield f"a hold at {at}", lambda: turn.call_held(at, "external", digest), InternalError
    if not can_run or book.held.get(at) == "external":
        yield f"an approval at {at}", lambda: turn.call_approved(at, digest), InternalError


# --- the walk -------------------------------------------------------------------

Targets: TypeAlias = list[Node]


@attrs.define
class Walk:
    """What a walk has seen.

    Attributes:
      states: how many states there are; each was checked, with all refusals.
      edges: how many events led from one to another; what came of each was checked.
    """

    states: int = 0
    edges: int = 0


def walk(
    bounds: Bounds,
    identity: Callable[[Node], Hashable] = kind,
    visit: Callable[[Node, Targets], None] = lambda node, targets: None,
) -> Walk:
    """Visit every state once, breadth first; ``visit`` sees it with all that follows it.

    Raises:
      AssertionError: something does not hold; it names the shortest way there.
    """
    seen = Walk()
    starts = [begin(start, bounds) for start in STARTS]
    waiting: deque[Node] = deque()
    known: set[Hashable] = set()
    for node in starts:
        check(node)
        known.add(identity(node))
        waiting.append(node)
    while waiting:
        node = waiting.popleft()
        check_refusals(node)
        targets = [after(node, event) for event in events(node)]
        for target in targets:
            check(target)
            key = identity(target)
            if key not in known:
                known.add(key)
                waiting.append(target)
        visit(node, targets)
        seen.edges += len(targets)
    seen.states = len(known)
    return seen


# --- tests ----------------------------------------------------------------------


def test_small_turns_with_everything_that_can_happen_keep_the_contract() -> None:
    """Two messages wait for a step here, which shows their order."""
    seen = walk(Bounds(calls=1, steps=1, queued=2))
    assert seen.states > 500


@pytest.mark.slow
def test_calls_that_wait_for_a_word_keep_the_contract() -> None:
    seen = walk(Bounds(2, 1, 1, (0, 0, 1), FEW_STOPS, FEW_INTERRUPTS, words=True))
    print(f"held and approved calls: {seen.states} states, {seen.edges} edges")
    assert seen.states > 500


@pytest.mark.slow
def test_turns_of_three_calls_and_three_steps_keep_the_contract(full_sweeps: bool) -> None:
    for calls, steps in [(3, 3), (4, 3), (3, 4)] if full_sweeps else [(3, 3)]:
        seen = walk(Bounds(calls, steps))
        print(f"{calls} calls, {steps} steps: {seen.states} states, {seen.edges} edges")
        assert seen.states > 5_000
        assert seen.edges > 10 * seen.states


SMALLER: Final = (
    Bounds(2, 1, 1, (1, 0, 0), FEW_STOPS, FEW_INTERRUPTS),
    Bounds(1, 1, 1, (1, 1, 0), FEW_STOPS, FEW_INTERRUPTS),
    Bounds(1, 1, 1, (0, 1, 1), FEW_STOPS, FEW_INTERRUPTS),
    Bounds(1, 2, 1, (0, 0, 1), FEW_STOPS, FEW_INTERRUPTS),
    Bounds(1, 2, 1, (1, 0, 0), FEW_STOPS, FEW_INTERRUPTS),
)
#: With ``--full-sweeps`` these too.
NOT_SO_SMALL: Final = (
    Bounds(1, 1, 1, (1, 1, 1), FEW_STOPS, FEW_INTERRUPTS),
    Bounds(2, 2, 1, (0, 0, 0), FEW_STOPS, FEW_INTERRUPTS),
    Bounds(3, 1, 1, (1, 0, 0), FEW_STOPS, FEW_INTERRUPTS),
)


@pytest.mark.slow
def test_states_that_are_merged_go_on_alike(full_sweeps: bool) -> None:
    for bounds in (*SMALLER, *NOT_SO_SMALL) if full_sweeps else SMALLER:
        apart: dict[Hashable, dict[Event, Hashable]] = {}
        merged: dict[Hashable, dict[Event, Hashable]] = {}

        def compare(table: dict[Hashable, dict[Event, Hashable]], node: Node, to: Targets) -> None:
            leads_to = {target.path[-1]: kind(target) for target in to}
            if table.setdefault(kind(node), leads_to) != leads_to:
                fail("states of one kind go on differently", node)

        unreduced = walk(bounds, everything, functools.partial(compare, apart))
        reduced = walk(bounds, kind, functools.partial(compare, merged))
        print(
            f"{bounds.calls} calls, {bounds.steps} steps, {bounds.spare} more: {unreduced.states} "
            f"states, {unreduced.edges} edges; merged {reduced.states}, {reduced.edges}"
        )
        assert apart == merged
        assert unreduced.states > 2 * reduced.states


@pytest.mark.slow
def test_a_copied_machine_is_in_the_state_that_its_events_lead_to() -> None:
    def replay(node: Node, _: Targets) -> None:
        for start in STARTS:
            again = begin(start, node.bounds)
            for event in node.path:
                happen(again, event)
            if everything(again) == everything(node):
                return
        fail("the same events without a copy in between lead elsewhere", node)

    walk(SMALLER[0], everything, replay)
