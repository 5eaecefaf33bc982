"""`OpenStep`: a reply with calls, and the results that are there so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio_runner._core.values as v


class OpenStep:
    """An open step of a turn. Results are held by position, whatever order they come in.

    Invariant: ``missing`` is the number of None in ``results``.
    """

    __slots__ = ("attached", "missing", "positions", "reply", "results", "started")

    def __init__(self, reply: v.Message) -> None:
        count = len(reply.tool_calls)
        self.reply = reply
        #: By position in the request; None while the call is open.
        self.results: list[v.ToolResult | None] = [None] * count
        #: By position: whether the tool function may have been entered.
        self.started = bytearray(count)
        self.missing = count
        #: Position by call id.
        self.positions = {call.id: i for i, call in enumerate(reply.tool_calls)}
        #: By position: the messages with media that the call attached.
        self.attached: dict[int, Sequence[v.Message]] = {}

    def results_message(self) -> v.Message:
        """The user message with the results, in the order of the request."""
        results = tuple([result for result in self.results if result is not None])
        return v.make_message("user", (), (), results)

    def all_attached(self) -> Iterator[v.Message]:
        """What the calls attached, in the order of the request."""
        for position in sorted(self.attached):
            yield from self.attached[position]
