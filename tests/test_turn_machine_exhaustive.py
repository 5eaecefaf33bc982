"""Every state of the turn machine that small turns can reach, visited once, breadth first.

States are compared by what they mean, not by the way that led to them. In each state the
invariants are checked, and once more after an interrupt in it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Hashable, Iterator

import attrs
import pytest

import trio_runner._core.values as v
from trio_runner._core.history import History
from trio_runner._core.turn import CallModel, Finished, Phase, RunTools, Turn
from trio_runner._core.validity import check_history

Stop = v.StopReason
End = v.EndReason
Status = v.CallStatus

#: The reply that each stop reason stands for; calls come on top.
WITHOUT_CALLS = (Stop.END_TURN, Stop.PAUSE, Stop.MAX_TOKENS, Stop.ERROR)
WITH_CALLS = (Stop.TOOL_USE, Stop.MAX_TOKENS, Stop.SAFETY)
INTERRUPTS = (End.INTERRUPTED, End.TIMED_OUT, End.FAILED)

#: One event: its name and what it is about: a stop reason, a position or a number of calls, an end.
Event = tuple[str, Stop | None, int, End | None]


def event(name: str, *, stop: Stop | None = None, at: int = 0, end: End | None = None) -> Event:
    return name, stop, at, end


@attrs.frozen
class Bounds:
    """How far the search goes.

    Attributes:
      calls: at most so many calls in a reply.
      cap: the turn's ``max_iterations``.
      notes: at most so many messages are added on the way.
      resumes: at most so often the turn is resumed.
    """

    calls: int
    cap: int
    notes: int
    resumes: int


@attrs.define
class Node:
    """A machine, and what was said to it that it must not lose."""

    turn: Turn
    notes: int = 0
    resumes: int = 0
    replies: int = 0
    opened: int = 0
    #: Results by call id, as they were reported.
    reported: dict[str, Status] = attrs.field(factory=dict[str, Status])
    #: Ids of calls whose tool was entered.
    entered: frozenset[str] = frozenset()


def result(call_id: str) -> v.ToolResult:
    return v.ToolResult(call_id, "tool", f"result of {call_id}")


def events(node: Node, bounds: Bounds) -> Iterator[Event]:
    """What is legal now."""
    turn = node.turn
    action = turn.next_action()
    if turn.phase is Phase.ENDED:
        # Whether the turn can be resumed is the machine's to say: see `can_resume`.
        if node.resumes < bounds.resumes and can_resume(turn):
            yield event("resumed")
        return
    if action == CallModel():
        for stop in WITHOUT_CALLS:
            yield event("replied", stop=stop)
        for stop in WITH_CALLS:
            for count in range(1, bounds.calls + 1):
                yield event("replied", stop=stop, at=count)
    for position in turn.open_positions:
        if position not in turn.started_positions:
            yield event("started", at=position)
        yield event("finished", at=position)
    if action == RunTools() and turn.reply is None:
        yield event("step_done")
    if type(action) is Finished:
        yield event("finish")
    elif node.notes < bounds.notes:
        yield event("input")
    for reason in INTERRUPTS:
        yield event("interrupt", end=reason)


def can_resume(turn: Turn) -> bool:
    """The rule of `Turn.resumed`, said once more."""
    last = turn.messages[-1]
    goes_on = last.role == "user" or last.stop_reason is Stop.PAUSE
    return goes_on and turn.end_reason in {*INTERRUPTS, End.MAX_ITERATIONS}


def after(node: Node, happened: Event, bounds: Bounds) -> Node:
    """A copy of ``node`` to which it happened."""
    node = copied(node)
    turn = node.turn
    match happened:
        case ("replied", stop, count, _):
            ids = [f"r{node.replies}-{position}" for position in range(count)]
            calls = [v.ToolCall(call_id, "tool") for call_id in ids]
            node.replies += 1
            made = turn.model_replied(
                v.Message("assistant", "text", tool_calls=calls, stop_reason=stop), bounds.cap
            )
            node.opened += turn.next_action() == RunTools()
            node.reported |= {each.call_id: each.status for each in made}
        case ("started", _, position, _):
            turn.tool_started(position)
            node.entered |= {id_at(turn, position)}
        case ("finished", _, position, _):
            call_id = id_at(turn, position)
            turn.tool_finished(position, result(call_id))
            node.reported[call_id] = Status.OK
        case ("step_done", *_):
            turn.step_done()
        case ("finish", *_):
            turn.finish()
        case ("input", *_):
            turn.input_added([v.Message.user(f"note {node.notes}")])
            node.notes += 1
        case ("interrupt", _, _, End() as reason):
            interrupt(node, reason)
        case ("resumed", *_):
            was_at_cap = turn.end_reason is End.MAX_ITERATIONS
            turn.resumed()
            node.resumes += 1
            node.opened = 0 if was_at_cap else node.opened
        case _:
            raise AssertionError(happened)
    return node


def interrupt(node: Node, reason: End) -> None:
    """Interrupt, and check that just the open calls were answered, truthfully."""
    turn = node.turn
    open_ids = [id_at(turn, position) for position in turn.open_positions]
    made = turn.interrupt(reason)
    ran = Status.TIMED_OUT if reason is End.TIMED_OUT else Status.INTERRUPTED
    assert [(each.call_id, each.status) for each in made] == [
        (call_id, ran if call_id in node.entered else Status.NOT_STARTED) for call_id in open_ids
    ]
    node.reported |= {each.call_id: each.status for each in made}


def id_at(turn: Turn, position: int) -> str:
    assert turn.reply is not None
    return turn.reply.tool_calls[position].id


def copied(node: Node) -> Node:
    return attrs.evolve(node, turn=copied_turn(node.turn), reported=dict(node.reported))


def copied_turn(turn: Turn) -> Turn:
    """A machine in the same state that shares nothing that changes."""
    twin = Turn(History(turn.history.snapshot()), turn.number)
    for name, value in vars(turn).items():
        if name != "history":
            setattr(twin, name, copy.copy(value))
    step = turn._step
    if step is not None:
        fresh = copy.copy(step)
        fresh.results, fresh.started = list(step.results), bytearray(step.started)
        twin._step = fresh
    return twin


def meaning(node: Node) -> Hashable:
    """What tells two states apart: all that later events can depend on or show."""
    turn = node.turn
    step = turn._step
    return (
        turn.phase,
        turn._decided,
        turn.end_reason,
        turn.iteration,
        turn._uncounted,
        shape(turn.messages),
        len(turn._queued),
        None if step is None else (shape([step.reply]), bytes(step.started)),
        None if step is None else tuple([each is not None for each in step.results]),
        node.notes,
        node.resumes,
    )


def shape(messages: tuple[v.Message, ...] | list[v.Message]) -> Hashable:
    """The kinds of the messages, their calls and what became of these."""
    return tuple(
        [
            (
                message.role,
                message.stop_reason,
                len(message.tool_calls),
                tuple([each.status for each in message.tool_results]),
            )
            for message in messages
        ]
    )


def check(node: Node, bounds: Bounds) -> None:
    """What holds in every state."""
    turn = node.turn
    check_history(turn.history.view())
    assert turn.history.snapshot() == turn.messages
    closed = {
        each.call_id: each.status for message in turn.messages for each in message.tool_results
    }
    step = turn._step
    kept = [] if step is None else [each for each in step.results if each is not None]
    assert node.reported == closed | {each.call_id: each.status for each in kept}
    assert node.opened <= bounds.cap
    assert node.resumes or node.replies <= bounds.cap + 1
    assert (turn.phase is Phase.ENDED) == (turn.end_reason is not None)
    if turn.phase is Phase.ENDED:
        assert (turn._step, turn._queued) == (None, [])
    if turn.reply is not None:
        assert turn.next_action() == RunTools()
        assert turn.open_positions


def search(bounds: Bounds) -> tuple[int, int]:
    """Visit all states; returns how many there are, and how many events lead between them."""
    turn = Turn(History(), 1)
    turn.input_added([v.Message.user("question")])
    start = Node(turn)
    seen = {meaning(start)}
    waiting = deque([start])
    edges = 0
    while waiting:
        node = waiting.popleft()
        check(node, bounds)
        for happened in events(node, bounds):
            edges += 1
            target = after(node, happened, bounds)
            if happened[0] == "interrupt":
                check(target, bounds)
                assert target.turn.phase is Phase.ENDED
            key = meaning(target)
            if key not in seen:
                seen.add(key)
                waiting.append(target)
    return len(seen), edges


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(calls=3, cap=1, notes=1, resumes=0),
        Bounds(calls=2, cap=2, notes=0, resumes=0),
        Bounds(calls=1, cap=2, notes=0, resumes=1),
        Bounds(calls=1, cap=0, notes=1, resumes=2),
    ],
    ids=str,
)
def test_every_reachable_state_is_valid_and_stays_so_when_it_is_interrupted(
    bounds: Bounds,
) -> None:
    states, edges = search(bounds)
    print(f"{bounds}: {states} states, {edges} edges")
    assert states > 50
    assert edges > states


def test_the_search_copies_machines_and_shares_nothing_that_changes() -> None:
    bounds = Bounds(calls=2, cap=1, notes=1, resumes=0)
    turn = Turn(History(), 1)
    turn.input_added([v.Message.user("question")])
    node = after(Node(turn), event("replied", stop=Stop.TOOL_USE, at=2), bounds)
    before = meaning(node)
    for happened in events(node, bounds):
        after(after(node, happened, bounds), event("interrupt", end=End.FAILED), bounds)
        assert meaning(node) == before
