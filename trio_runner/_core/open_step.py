"""`OpenStep`: a reply with calls, and the results that are there so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.describe import shorten

#: What `OpenStep.started` says of a call: it began and may be running; or it began in a
#: process that has ended since, and has not begun again.
STARTED: Final = 1
CUT: Final = 2

#: Characters of edited arguments that the model is shown.
EDITED_SHOWN: Final = 500


class OpenStep:
    """An open step of a turn. Results are held by position, whatever order they come in.

    Invariant: ``missing`` is the number of None in ``results``.
    """

    __slots__ = (
        "approved",
        "attached",
        "attempts",
        "edits",
        "held",
        "missing",
        "notes",
        "positions",
        "reply",
        "results",
        "started",
        "starts",
    )

    def __init__(self, reply: v.Message) -> None:
        count = len(reply.tool_calls)
        self.reply: v.Message = reply
        #: By position in the request; None while the call is open.
        self.results: list[v.ToolResult | None] = [None] * count
        #: By position: whether the tool function may have been entered; 0, STARTED or CUT.
        self.started: bytearray = bytearray(count)
        #: By position: how often the call was started, over all processes.
        self.attempts: list[int] = [0] * count
        #: By position: the record of the newest start, of those that were replayed.
        self.starts: dict[int, r.ToolStarted] = {}
        self.missing: int = count
        #: Position by call id.
        self.positions: dict[str, int] = {call.id: i for i, call in enumerate(reply.tool_calls)}
        #: By position: the messages with media that the call attached.
        self.attached: dict[int, Sequence[v.Message]] = {}
        #: By position: ``meta`` for the answer, where the turn is interrupted before the result.
        self.notes: dict[int, Mapping[str, Any]] = {}
        #: By position: the arguments that run in the place of the call's own.
        self.edits: dict[int, v.JSONObject] = {}
        #: By position: what the call was held for; it stays held, and may be approved.
        self.held: dict[int, r.WaitsFor] = {}
        #: The positions of the calls that were allowed to run as they are.
        self.approved: set[int] = set()

    def arguments(self, position: int) -> v.JSONObject:
        """What the call at ``position`` runs with: its own arguments, or edited ones."""
        edited = self.edits.get(position)
        return self.reply.tool_calls[position].arguments if edited is None else edited

    def as_it_ran(self, position: int, result: v.ToolResult) -> v.ToolResult:
        """``result``, a stand-in; of a started call that somebody had edited it says so."""
        if position not in self.edits or not self.started[position]:
            return result
        shown = shorten(r.canonical_json(self.edits[position]), EDITED_SHOWN)
        return stand_ins.ran_edited(result, shown)

    def waits(self, position: int) -> bool:
        """Whether the call at ``position`` is open and waits for a word."""
        waits = position in self.held and position not in self.approved
        return waits and self.results[position] is None

    def cut(self) -> None:
        """The process that ran the calls has ended."""
        self.started = self.started.replace(bytes([STARTED]), bytes([CUT]))

    def is_cut(self, position: int) -> bool:
        """Whether the call began in a process that has ended, and has not begun again."""
        return self.started[position] == CUT

    def results_message(self) -> v.Message:
        """The user message with the results, in the order of the request."""
        results = tuple([result for result in self.results if result is not None])
        return v.make_message("user", (), (), results)

    def all_attached(self) -> Iterator[v.Message]:
        """What the calls attached, in the order of the request."""
        for position in sorted(self.attached):
            yield from self.attached[position]
