"""What every library's history is turned into, and the rules that are held against it.

What may live here: plain values and the judgement of one run. Standard library
only: each peer runs in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: What can be found wrong with one run, in the order of the table.
Kind = Literal[
    "history malformed",
    "result lost",
    "next request malformed",
    "next turn refused",
    "cancel swallowed",
    "disk behind memory",
    "tool left running",
    "never returned",
    "turn failed",
]


@dataclass(frozen=True)
class Said:
    """One message of a history, whatever the library calls it.

    Attributes:
      role: who speaks; ``tool`` carries results.
      text: what was said.
      calls: the ids of the calls that an assistant message asks for.
      results: the results that a message carries: call id and text.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[tuple[str, str], ...] = ()


@dataclass
class Ledger:
    """What really happened, noted by the tools; no library sees it.

    Attributes:
      entered: the calls whose tool was entered.
      returned: by call id, the text that its tool was about to return.
      left: the calls whose tool was left, in any way.
      cancelled: whether a cancel was sent; noted by the sweep.
    """

    entered: set[str] = field(default_factory=set[str])
    returned: dict[str, str] = field(default_factory=dict[str, str])
    left: set[str] = field(default_factory=set[str])
    cancelled: bool = False


@dataclass
class Seen:
    """What is there after a run.

    Attributes:
      history: what the user holds.
      next_request: the first request of a further turn on that history; None: not tried.
      refusal: the library's error when it refused that further turn.
      disk: what the library's store holds; None: there is no store.
    """

    history: Sequence[Said]
    next_request: Sequence[Said] | None = None
    refusal: str | None = None
    disk: Sequence[Said] | None = None


def malformed(messages: Iterable[Said]) -> str | None:
    """The first thing that a provider would refuse, or None.

    Each assistant message with calls is followed at once by one result for
    each call, in any order and over any number of messages; no result stands
    without its call; no call id occurs twice.
    """
    known: set[str] = set()
    waiting: set[str] = set()
    for number, message in enumerate(messages):
        for call_id, _ in message.results:
            if call_id not in waiting:
                return f"message {number}: a result for {call_id}, which is no open call"
            waiting.remove(call_id)
        speaks = message.calls or message.text or not message.results
        if waiting and message.role != "tool" and speaks:
            return f"message {number} ({message.role}) comes before the results of {_ids(waiting)}"
        for call_id in message.calls:
            if call_id in known:
                return f"message {number}: call id {call_id} for the second time"
            known.add(call_id)
            waiting.add(call_id)
    if waiting:
        return f"no result for {_ids(waiting)} at the end"
    return None


def lost(returned: Mapping[str, str], history: Iterable[Said]) -> str | None:
    """The first result that a tool returned and the history does not have, or None."""
    kept = dict(pair for message in history for pair in message.results)
    for call_id, text in returned.items():
        if text not in kept.get(call_id, ""):
            return f"{call_id} returned {text!r}; the history has {kept.get(call_id)!r}"
    return None


def behind(history: Sequence[Said], disk: Sequence[Said]) -> str | None:
    """What memory has and the store has not, or None."""
    if list(disk[: len(history)]) == list(history):
        return None
    return f"memory has {len(history)} messages, the store {len(disk)}: {_tail(history, disk)}"


def judge(
    returned: Mapping[str, str], seen: Seen, *, running: Iterable[str]
) -> Iterator[tuple[Kind, str]]:
    """Everything that is wrong with what a run left, as kind and explanation.

    Args:
      returned: by call id, what the tools had returned when the turn had ended.
      running: the calls whose tool was still running when the turn had ended.
    """
    if (problem := malformed(seen.history)) is not None:
        yield "history malformed", problem
    if (problem := lost(returned, seen.history)) is not None:
        yield "result lost", problem
    if seen.refusal is not None:
        yield "next turn refused", seen.refusal
    elif seen.next_request is not None and (problem := malformed(seen.next_request)) is not None:
        yield "next request malformed", problem
    if seen.disk is not None and (problem := behind(seen.history, seen.disk)) is not None:
        yield "disk behind memory", problem
    if still := sorted(running):
        yield "tool left running", f"the tools of {', '.join(still)} outlived the turn"


def _ids(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))


def _tail(history: Sequence[Said], disk: Sequence[Said]) -> str:
    for number, message in enumerate(history):
        if number >= len(disk) or disk[number] != message:
            there = disk[number] if number < len(disk) else None
            return f"message {number} is {message}, there {there}"
    return "the store has more"
