"""The reference turn: one turn that uses everything, with what the contract says of it.

Three parallel tools with different numbers of checkpoints (one with async
cleanup, one that raises, one synchronous), then two tools, then the answer. A
`Ledger` outside the library notes what really happened; `ReferenceTurn.check`
compares it with what the conversation says. Used by the library's own sweeps
and by the benchmarks; a sweep of your own agent looks much the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, get_args

import attrs
import trio

import trio_runner as tr
import trio_runner.records as records
from trio_runner._journal.memory import Fate
from trio_runner.testing._outcome import Case, Outcome
from trio_runner.testing._scripted import ScriptedModel

#: The ways to drive a turn.
Drive = Literal["until_done", "async_for", "break", "generate"]
DRIVES: Final[tuple[Drive, ...]] = get_args(Drive)
SESSION: Final = "reference"


@attrs.define
class Ledger:
    """What really happened, noted by the tools and by the driver; the library never sees it."""

    #: By call id: the tool function was entered.
    entered: set[str] = attrs.field(factory=set[str])
    #: By call id: the text it was about to return, noted as its last statement.
    returned: dict[str, str] = attrs.field(factory=dict[str, str])
    #: By call id: it was about to raise its own error.
    raised: set[str] = attrs.field(factory=set[str])
    #: By call id: the function was left, in any way.
    left: set[str] = attrs.field(factory=set[str])
    #: What began although a cancel was in force.
    late: list[str] = attrs.field(factory=list[str])
    #: Messages handed out, with what they looked like then.
    handed_out: list[tuple[tr.Message, str]] = attrs.field(factory=list[tuple[tr.Message, str]])
    #: Commits that were open when the turn had been left; None when none had begun.
    open_at_leaving: int | None = None

    def begins(self, what: str) -> None:
        """Note a start that must not be, when a cancel is in force."""
        if trio.current_effective_deadline() == -math.inf:
            self.late.append(what)

    def hand_out(self, message: tr.Message) -> None:
        """Keep a message the library gave away."""
        self.handed_out.append((message, repr(message)))


class _Model(ScriptedModel):
    """Notes a model call that begins after a cancel."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(
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
        self._ledger = ledger

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        self._ledger.begins("a model call")
        return await super().reply(request, emit)


class ReferenceTurn:
    """Makes cases of the reference turn; the tools are built once.

    Args:
      drive: how the turn is driven; ``break`` leaves after the second message.
      delay: of the journal's commits; see `tr.MemoryJournal`.
      grace: seconds that leaving may take; the default of the library.
      exact_starts: whether a call counts as started exactly when its tool was
        entered. An interrupt at a line may come between the two; the call then
        counts as started, which is the safe side.
    """

    def __init__(
        self,
        drive: Drive = "until_done",
        *,
        delay: Fate = 0.0,
        grace: float = 5.0,
        observers: Callable[[], Iterable[tr.Observer]] = tuple,
        exact_starts: bool = True,
    ) -> None:
        self._drive_name: Drive = drive
        self._delay = delay
        self._grace = grace
        self._observers = observers
        self._exact_starts = exact_starts
        self._tools = [tr.tool(self.tidy), tr.tool(self.broken), tr.tool(self.plain)]
        self.ledger: Ledger
        self.model: ScriptedModel
        self.journal: tr.MemoryJournal
        self.agent: tr.ToolAgent
        self._renew()

    def _renew(self) -> None:
        self.ledger = Ledger()
        self.model = _Model(self.ledger)
        self.journal = tr.MemoryJournal(self._delay)
        self.agent = tr.ToolAgent(
            "reference",
            model=self.model,
            tools=self._tools,
            journal=self.journal,
            session=SESSION,
            grace=self._grace,
            observers=self._observers(),
        )

    def __call__(self) -> Case:
        """A new case: pass the object itself as ``make_case``."""
        self._renew()
        return Case(
            self.run,
            self.check,
            leaves_within=self._grace,
            end_state=self.end_state,
        )

    # --- the tools --------------------------------------------------------------

    async def tidy(self, steps: int) -> str:
        """Take some steps, and clean up in two more."""
        call_id = self._enter()
        try:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            return self._return(call_id, f"tidy after {steps}")
        finally:
            with trio.CancelScope(deadline=trio.current_time() + 1, shield=True):
                await trio.lowlevel.checkpoint()
            self.ledger.left.add(call_id)

    async def broken(self, steps: int) -> str:
        """Take some steps, then raise."""
        call_id = self._enter()
        try:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            self.ledger.raised.add(call_id)
            raise ValueError("broken on purpose")
        finally:
            self.ledger.left.add(call_id)

    def plain(self, number: int) -> str:
        """Work in a thread."""
        call_id = self._enter()
        self.ledger.left.add(call_id)
        return self._return(call_id, f"plain {number}")

    def _enter(self) -> str:
        call_id = tr.current_tool_context().call_id
        self.ledger.begins(f"tool call {call_id}")
        self.ledger.entered.add(call_id)
        return call_id

    def _return(self, call_id: str, text: str) -> str:
        self.ledger.returned[call_id] = text
        return text

    # --- the operation ----------------------------------------------------------

    async def run(self) -> object:
        """Drive the turn once; what a sweep calls."""
        async with self.agent:
            try:
                return await self._drive()
            finally:
                if self.agent.conversation.turns:
                    self.ledger.open_at_leaving = self.journal.statistics().open_tickets

    async def _drive(self) -> object:
        match self._drive_name:
            case "generate":
                message = await self.agent.generate("go")
                self.ledger.hand_out(message)
                return message.text
            case "until_done":
                message = await self.agent.turn("go").until_done()
                self.ledger.hand_out(message)
                return message.text
            case "async_for" | "break":
                count = 0
                async with self.agent.turn("go") as runner:
                    async for message in runner:
                        self.ledger.hand_out(message)
                        count += 1
                        if count == 2 and self._drive_name == "break":
                            break
                return count

    # --- what the contract says of it -------------------------------------------

    def end_state(self, outcome: Outcome) -> object:
        """Ends differ by how the turn ended and by the status of each call."""
        last = self.agent.last_turn
        return (
            type(outcome.raised).__name__,
            last and last.end_reason,
            tuple([result.status for result in _results(self.agent.history)]),
        )

    def check(self, outcome: Outcome) -> Iterator[str]:
        """Yield a sentence for each promise of C1-C5, C8, C9 that does not hold."""
        ledger = self.ledger
        for what in ledger.late:
            yield f"C1: {what} began after the cancel"
        for problem in self.model.violations:
            yield f"C2: a request was not valid: {problem}"
        yield from self._check_valid()
        history = self.agent.history
        yield from self._check_results(history, "in memory")
        if self._delay != "hang":
            yield from self._check_stored(history)
        yield from self._check_commits()
        for call_id in ledger.entered - ledger.left:
            yield f"C5: the tool of call {call_id} is still running"
        if self.agent.conversation.is_busy:
            yield "C5: the agent was not freed"
        for message, looked in ledger.handed_out:
            if repr(message) != looked:
                yield f"C9: a message changed after it was handed out: {looked} is now {message}"
        yield from self._check_end(outcome)

    def _check_valid(self) -> Iterator[str]:
        last = self.agent.last_turn
        for name, messages in (
            ("history", self.agent.history),
            ("last_turn.messages", last.messages if last is not None else ()),
        ):
            try:
                tr.check_history(messages)
            except tr.HistoryError as error:
                yield f"C2: {name}: {error}"

    def _check_stored(self, history: tuple[tr.Message, ...]) -> Iterator[str]:
        try:
            stored = tr.fold(self.journal.stored(SESSION)).history.snapshot()
        except tr.RecordError as error:
            yield f"the session does not open: {error}"
        else:
            if stored != history:
                yield f"memory and session differ: {history} and {stored}"

    def _check_results(self, history: tuple[tr.Message, ...], where: str) -> Iterator[str]:
        ledger = self.ledger
        results = {result.call_id: result for result in _results(history)}
        for call_id, text in ledger.returned.items():
            result = results.get(call_id)
            if result is None or result.status is not tr.CallStatus.OK or result.text != text:
                yield f"C3: call {call_id} returned {text!r}; {where} it is {result}"
        for call_id, result in results.items():
            yield from self._check_status(call_id, result)
        for call_id in ledger.entered - set(results):
            yield f"C2: call {call_id} ran and has no result {where}"

    def _check_status(self, call_id: str, result: tr.ToolResult) -> Iterator[str]:
        ledger, status = self.ledger, result.status
        said = f"call {call_id} has status {status.value}"
        if call_id not in ledger.entered and status is not tr.CallStatus.NOT_STARTED:
            if self._exact_starts or status is not tr.CallStatus.INTERRUPTED:
                yield f"C4: {said}, and its tool was never entered"
        elif call_id in ledger.raised and status is not tr.CallStatus.ERROR:
            yield f"C3: {said}, and its tool raised an error of its own"
        elif call_id in ledger.entered and status is tr.CallStatus.NOT_STARTED:
            yield f"C4: {said}, and its tool was entered"
        elif status is tr.CallStatus.OK and call_id not in ledger.returned:
            yield f"C4: {said}, and its tool did not return"

    def _check_commits(self) -> Iterator[str]:
        if self._delay == "hang":
            return
        if self.ledger.open_at_leaving:
            yield f"C6: {self.ledger.open_at_leaving} commits were not durable at leaving"
        failures = self.journal.statistics().failures
        last = self.agent.last_turn
        errors = last.commit_errors if last is not None else ()
        if failures or errors:
            yield f"C6: commits were lost: {failures} in the journal, told: {errors}"
        kinds = [type(record) for record in self.journal.stored(SESSION)]
        if kinds.count(records.TurnStarted) != kinds.count(records.TurnEnded):
            yield f"the session's turn was not ended: {[kind.__name__ for kind in kinds]}"

    def _check_end(self, outcome: Outcome) -> Iterator[str]:
        last = self.agent.last_turn
        if last is None:
            if len(self.agent.history):
                yield "C8: a turn began and did not end"
            return
        reason = last.end_reason
        answered = any(message.text == "the answer" for message in self.agent.history)
        if answered != (reason is tr.EndReason.ANSWERED):
            yield f"C8: the turn ended {reason.value}, and the answer is there: {answered}"
        if outcome.raised is None:
            wanted = {"break": "interrupted"}.get(self._drive_name, "answered")
            if reason.value != wanted:
                yield f"C8: {self._drive_name} returned, and the turn ended {reason.value}"
        elif outcome.raised_a(Exception) and not outcome.raised_a(KeyboardInterrupt):
            yield f"C7: an error of nobody left: {outcome.raised!r}"


def _results(history: Iterable[tr.Message]) -> list[tr.ToolResult]:
    return [result for message in history for result in message.tool_results]
