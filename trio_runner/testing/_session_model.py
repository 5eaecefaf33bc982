"""The model of a planned session, and who writes its summaries: `PlayedModel`, `PlayedSummarizer`.

What may live here: what answers when the library asks. Each text that it makes is
a mark of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import trio

import trio_runner as tr
import trio_runner.testing.strategies as plans
from trio_runner.testing._session_ledger import SessionLedger, valid


class PlayedModel:
    """Plays the replies of the turn that runs."""

    def __init__(self, ledger: SessionLedger) -> None:
        self._ledger = ledger
        self.replies: Iterator[plans.ReplyPlan] = iter(())

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        """Checkpoints: as planned."""
        del emit
        ledger = self._ledger
        ledger.model_called(tuple(request.history), tuple(request.delta))
        plan = next(self.replies, plans.Says(steps=0))
        match plan:
            case plans.SaysAnything():
                await trio.lowlevel.checkpoint()
                return plan.message
            case _:
                for _ in range(plan.steps):
                    await trio.lowlevel.checkpoint()
                return self._made(plan)

    def _made(self, plan: plans.Asks | plans.Says | plans.FailsToReply) -> tr.Message:
        ledger = self._ledger
        mark = ledger.new_mark("re")
        match plan:
            case plans.Asks():
                calls = [
                    tr.ToolCall.from_model(
                        id=each.id, name=each.tool, arguments={"number": ledger.new_call(each)}
                    )
                    for each in plan.calls
                ]
                message = tr.Message.assistant(mark, tool_calls=calls, stop_reason=plan.stop_reason)
            case plans.Says():
                message = tr.Message.assistant(mark, stop_reason=plan.stop_reason)
            case plans.FailsToReply():
                raise plan.kind("no reply")
            case _:
                assert_never(plan)
        ledger.said(mark)
        return message


class PlayedSummarizer:
    """Writes summaries, each with a mark of its own; every fourth one fails."""

    def __init__(self, ledger: SessionLedger) -> None:
        self._ledger = ledger
        self._count = 0
        #: What the newest summary stands for.
        self.gone: Sequence[tr.Message] = ()

    async def summarise(self, request: tr.SummaryRequest) -> str:
        """Checkpoints: two."""
        self._ledger.problems += valid("what a summariser is shown", request.messages)
        self._count += 1
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        if self._count % 4 == 0:
            raise ValueError("no summary")
        self.gone = request.messages
        return self._ledger.new_mark("note")
