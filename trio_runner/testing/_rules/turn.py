"""One turn of an agent with what a kit checks, and what the contract says of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import attrs

import trio_runner._core.records as r
import trio_runner._core.values as v
from trio_runner._core.params import RequestParams
from trio_runner._shell.agent import ToolAgent
from trio_runner.abc import Model, Tool
from trio_runner.testing._conformance import Findings
from trio_runner.testing._witness import Witness
from trio_runner.testing.contract import Evidence, check_contract

SESSION: Final = "kit"


class WitnessedTurn:
    """A turn under a `Witness`; what it is made of may be what is checked.

    Args:
      toolset: whose tools are wrapped too.
    """

    def __init__(
        self,
        *,
        model: Model,
        grace: float,
        tools: Sequence[Tool] = (),
        toolset: Any = None,
        journal: Any = None,
    ) -> None:
        self.witness: Witness = Witness()
        self._grace = grace
        wrapped: list[Any] = [self.witness.tool(tool) for tool in tools]
        if toolset is not None:
            wrapped.append(_Toolset(toolset, self.witness))
        self.agent: ToolAgent = ToolAgent(
            "kit",
            model=self.witness.model(model),
            tools=wrapped,
            journal=None if journal is None else self.witness.journal(journal),
            session=None if journal is None else SESSION,
            grace=grace,
            # A model may ask for calls for ever.
            params=RequestParams(max_iterations=1),
        )

    async def take(self, text: str) -> None:
        """Enter the agent, take the turn, and leave. A checkpoint; may be cancelled."""
        self.witness.listen()
        try:
            async with self.agent:
                try:
                    self.witness.hand_out(await self.agent.generate(text))
                finally:
                    if self.agent.conversation.turns:
                        self.witness.left()
        finally:
            self.witness.stop()

    def check(self, found: Findings, stored: Sequence[r.Record] | None = None) -> None:
        """Note which promises of the contract do not hold; ``stored`` is the session."""
        agent = self.agent
        evidence = Evidence(
            ledger=self.witness.ledger,
            history=agent.history,
            last_turn=agent.last_turn,
            busy=agent.conversation.is_busy,
            stored=stored,
            grace=self._grace,
        )
        for sentence in check_contract(evidence):
            found.violated(
                f"in an agent's turn, {sentence}",
                expected="the contract to hold, see docs/explanation/contract.md",
                remedy="mend what the other rules name; then this one shows what is left",
            )

    def results(self) -> list[v.ToolResult]:
        """The results in the history."""
        return [each for message in self.agent.history for each in message.tool_results]


@attrs.define
class _Toolset:
    """A toolset whose tools are wrapped."""

    inner: Any
    witness: Witness
    #: What was listed last, and what became of it: the same while nothing changes.
    listed: Any = None
    tools: tuple[Tool, ...] = ()

    @property
    def name(self) -> str:
        return self.inner.name

    async def list_tools(self) -> Sequence[Tool]:
        listed = await self.inner.list_tools()
        if listed is not self.listed:
            self.listed = listed
            self.tools = tuple([self.witness.tool(tool) for tool in listed])
        return self.tools

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self.inner.__aexit__(exc_type, exc, traceback)
