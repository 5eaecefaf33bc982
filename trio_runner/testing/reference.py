"""The reference turn: one turn that uses everything, with the contract as its check.

Three parallel tools with different numbers of checkpoints (one with async
cleanup, one that raises, one synchronous), then two tools, then the answer. The
tools note in the ledger what really happened. Used by the library's own sweeps
and by the benchmarks; `AgentTurn` does the same for an agent of yours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import trio

import trio_runner as tr
from trio_runner.testing._scripted import ScriptedModel
from trio_runner.testing._turn_cases import DRIVES as DRIVES
from trio_runner.testing._turn_cases import SESSION as SESSION
from trio_runner.testing._turn_cases import Drive as Drive
from trio_runner.testing._turn_cases import ReadableJournal, TurnCases


def _script() -> ScriptedModel:
    return ScriptedModel(
        [
            [
                tr.ToolCall("c1", "tidy", {"steps": 3}),
                tr.ToolCall("c2", "broken", {"steps": 1}),
                tr.ToolCall("c3", "plain", {"number": 7}),
            ],
            [
                tr.ToolCall("c4", "tidy", {"steps": 1}),
                tr.ToolCall("c5", "plain", {"number": 9}),
            ],
            "the answer",
            "never asked for",
        ]
    )


class ReferenceTurn(TurnCases):
    """Makes cases of the reference turn; the tools are built once.

    Args:
      drive: how the turn is driven; ``break`` leaves after the second message.
      observers: makes more observers, for each case anew.
      journal: makes another journal than a `tr.MemoryJournal`, for each case anew.
      settings: as for `TurnCases`.
    """

    patience: float = 100.0

    def __init__(
        self,
        drive: Drive = "until_done",
        *,
        observers: Callable[[], Iterable[tr.Observer]] = tuple,
        journal: Callable[[], ReadableJournal] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(drive, **settings)
        self._observers = observers
        self._other_journal = journal
        self._tools = [tr.tool(self.tidy), tr.tool(self.broken), tr.tool(self.plain)]
        self.model: ScriptedModel
        self.make()

    def make(self) -> None:
        """Make the agent of one case."""
        self.model = _script()
        journal = (self._other_journal or self.make_journal)()
        self.journal: ReadableJournal | None = journal
        self.agent: tr.ToolAgent = tr.ToolAgent(
            "reference",
            model=self.witness.model(self.model),
            tools=self._tools,
            journal=self.witness.journal(journal),
            session=SESSION,
            grace=self._grace,
            observers=self._observers(),
        )

    # --- the tools --------------------------------------------------------------

    async def tidy(self, steps: int) -> str:
        """Take some steps, and clean up in two more."""
        call_id = self._enter()
        try:
            await self._foreign(call_id)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            return self._return(call_id, f"tidy after {steps}")
        finally:
            with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
                await trio.lowlevel.checkpoint()
            self.ledger.leaves(call_id)

    async def broken(self, steps: int) -> str:
        """Take some steps, then raise."""
        call_id = self._enter()
        try:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            error = ValueError("broken on purpose")
            self.ledger.raised[call_id] = error
            raise error
        finally:
            self.ledger.leaves(call_id)

    def plain(self, number: int) -> str:
        """Work in a thread."""
        call_id = self._enter()
        self.ledger.leaves(call_id)
        return self._return(call_id, f"plain {number}")

    def _enter(self) -> str:
        call_id = tr.current_tool_context().call_id
        self.witness.entered(call_id)
        return call_id

    async def _foreign(self, call_id: str) -> None:
        """Stand for a client on a foreign event loop."""
        try:
            await self.witness.seams["tool"].call()
        except asyncio.CancelledError as error:
            self.ledger.raised[call_id] = error
            raise

    def _return(self, call_id: str, text: str) -> str:
        self.ledger.returned[call_id] = text
        return text
