"""`TurnCases`: makes cases of one turn of an agent, with the contract as their check.

What may live here: how a turn is driven and what is read off it afterwards,
whatever the agent is. `ReferenceTurn` and `AgentTurn` say which agent.
"""

from __future__ import annotations

import abc as abstract
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, Protocol, get_args

import trio

import trio_runner._core.records as records
import trio_runner.abc as abc
from trio_runner._journal.memory import Fate, MemoryJournal
from trio_runner._shell.agent import ToolAgent
from trio_runner._shell.hooks import ToolRunnerHooks
from trio_runner.testing._outcome import Case, Outcome
from trio_runner.testing._witness import Witness
from trio_runner.testing.contract import CONTRACT, Check, Evidence, Ledger, check_contract

#: The ways to drive a turn.
Drive = Literal["until_done", "async_for", "break", "generate"]
DRIVES: Final[tuple[Drive, ...]] = get_args(Drive)
SESSION: Final = "swept"
# Seconds after which a run gives up on a journal that never even opens.
_PATIENCE: Final = 200.0


class ReadableJournal(abc.Journal, Protocol):
    """A journal that also tells what it holds."""

    def stored(self, session_id: str) -> Sequence[records.Record]:
        """The durable records of a session, whether it is open or not."""
        ...


class TurnCases(abstract.ABC):
    """Makes cases of one turn; pass the object itself to `sweep` as ``make_case``.

    Args:
      drive: how the turn is driven; ``break`` leaves after the second message.
      prompt: the user's input.
      delay: of the commits of the `MemoryJournal` that is used.
      grace: seconds that leaving may take.
      watched: give the turn hooks at all five points and an observer, which are
        the seams "hook" and "observer".
      exact_starts, own_errors: see `Evidence`.
      checks: the promises to hold.
    """

    def __init__(
        self,
        drive: Drive = "until_done",
        *,
        prompt: str = "go",
        delay: Fate = 0.0,
        grace: float = 5.0,
        watched: bool = False,
        exact_starts: bool = True,
        own_errors: tuple[type[BaseException], ...] = (),
        checks: Mapping[str, Check] = CONTRACT,
    ) -> None:
        self.witness: Witness = Witness()
        #: The agent and the journal (None: it has none) of the newest case.
        self.agent: ToolAgent
        self.journal: ReadableJournal | None = None
        self._drive_name: Drive = drive
        self._prompt = prompt
        self._delay: Fate = delay
        self._grace = grace
        self._watched = watched
        self._exact_starts = exact_starts
        self._own_errors = own_errors
        self._checks = MappingProxyType(dict(checks))

    @abstract.abstractmethod
    def make(self) -> None:
        """Make the agent, and its journal if it has one, with the wrappers of ``self.witness``."""

    def make_journal(self) -> ReadableJournal:
        """A new journal."""
        return MemoryJournal(self._delay)

    @property
    def ledger(self) -> Ledger:
        """What really happened in the newest case."""
        return self.witness.ledger

    def __call__(self) -> Case:
        """A new case."""
        self.witness = Witness()
        self.make()
        seams = {
            name: seam
            for name, seam in self.witness.seams.items()
            if (self._watched or name not in ("hook", "observer"))
            and (self.journal is not None or name not in ("journal", "commit"))
        }
        return Case(
            self.run,
            self.check,
            end_state=self.end_state,
            seams=seams,
            judge=False,  # the contract says it, by promise
        )

    # --- the operation ----------------------------------------------------------

    async def run(self) -> object:
        """Drive the turn once; what a sweep calls."""
        self.witness.listen()
        # The deadline is for a journal that never opens; nothing else takes so long.
        with trio.move_on_after(_PATIENCE):
            async with self.agent:
                try:
                    return await self._drive()
                finally:
                    if self.agent.conversation.turns:
                        self.witness.left()
        return None

    async def _drive(self) -> object:
        hooks: ToolRunnerHooks | None = None
        observers: tuple[abc.Observer, ...] = ()
        if self._watched:
            hooks, observers = self.witness.hooks(), (self.witness.observer(),)
        agent, prompt = self.agent, self._prompt
        match self._drive_name:
            case "generate":
                message = await agent.generate(prompt, hooks=hooks, observers=observers)
                self.witness.hand_out(message)
                return message.text
            case "until_done":
                message = await agent.turn(prompt, hooks=hooks, observers=observers).until_done()
                self.witness.hand_out(message)
                return message.text
            case "async_for" | "break":
                count = 0
                async with agent.turn(prompt, hooks=hooks, observers=observers) as runner:
                    async for message in runner:
                        self.witness.hand_out(message)
                        count += 1
                        if count == 2 and self._drive_name == "break":
                            break
                return count

    # --- what the contract says of it -------------------------------------------

    def end_state(self, outcome: Outcome) -> object:
        """Ends differ by how the turn ended and by the status of each call."""
        last = self.agent.last_turn
        statuses = [each.status for message in self.agent.history for each in message.tool_results]
        return type(outcome.raised).__name__, last and last.end_reason, tuple(statuses)

    def evidence(self, outcome: Outcome | None) -> Evidence:
        """What the newest case left behind."""
        self.witness.stop()
        return Evidence(
            ledger=self.witness.ledger,
            outcome=outcome,
            history=self.agent.history,
            last_turn=self.agent.last_turn,
            busy=self.agent.conversation.is_busy,
            stored=None if self.journal is None else self.journal.stored(SESSION),
            journal_failed=self._delay == "hang" or self.witness.journal_failed,
            grace=self._grace,
            left_early=self._drive_name == "break",
            exact_starts=self._exact_starts,
            own_errors=self._own_errors,
        )

    def check(self, outcome: Outcome) -> Iterator[str]:
        """Yield a sentence for each promise of C1-C9 that does not hold."""
        return check_contract(self.evidence(outcome), self._checks)
