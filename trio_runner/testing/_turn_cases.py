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

import trio_runner._core.errors as errors
import trio_runner._core.records as records
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
import trio_runner.abc as abc
from trio_runner._core.params import DEFAULT_PARAMS, RequestParams
from trio_runner._journal.memory import Fate, MemoryJournal
from trio_runner._shell.agent import ToolAgent
from trio_runner._shell.hooks import ToolRunnerHooks
from trio_runner.testing._determinism import cancel_from_here
from trio_runner.testing._outcome import Case, Outcome
from trio_runner.testing._witness import Witness, check_log
from trio_runner.testing.contract import (
    CONTRACT,
    PLAIN_STATUSES,
    Check,
    Evidence,
    Ledger,
    check_contract,
)

#: The ways to drive a turn.
Drive = Literal["until_done", "async_for", "break", "generate"]
DRIVES: Final[tuple[Drive, ...]] = get_args(Drive)
SESSION: Final = "swept"


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

    #: Seconds after which a run gives up, on a journal that never opens for instance.
    patience: float = 3000.0

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
        if drive not in DRIVES:
            raise ValueError(f"drive is {drive!r}; expected one of {list(DRIVES)}")
        self.witness: Witness = Witness()
        #: The agent and the journal (None: it has none) of the newest case.
        self.agent: ToolAgent
        self.journal: ReadableJournal | None = None
        self._drive_name: Drive = drive
        #: With ``break``: after how many messages it leaves, and whether the turn went on then.
        self._leave_after = 2
        self._left_early = False
        self._prompt = prompt
        self._delay: Fate = delay
        self._grace = grace
        self._watched = watched
        self._exact_starts = exact_starts
        self._before = 0
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
        """A new case.

        Raises:
          SweepError: the library's log is switched off, and C7 reads it.
        """
        if "C7" in self._checks:
            check_log()
        self.witness = Witness()
        self._left_early = False
        self.make()
        self._before = len(self.agent.history)
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
            may_raise=self._may_raise(),
            judge=False,  # the contract says it, by promise
        )

    # --- the operation ----------------------------------------------------------

    async def run(self) -> object:
        """Drive the turn once; what a sweep calls."""
        self.witness.listen()
        self.ledger.is_cancelled = cancel_from_here()
        try:
            with trio.move_on_after(self.patience) as scope:
                async with self.agent:
                    try:
                        return await self._drive()
                    finally:
                        if self.agent.conversation.turns:
                            self.witness.left()
        finally:
            self.witness.all_left()
        self.ledger.gave_up = scope.cancelled_caught
        # Ctrl-C may have come when the patience was at its end.
        await trio.lowlevel.checkpoint_if_cancelled()
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
                        if count == self._leave_after and self._drive_name == "break":
                            self._left_early = runner.end_reason is None
                            self.ledger.stops()
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
        agent = self.agent
        params = agent.config.params.over(DEFAULT_PARAMS)
        turn = agent.conversation.newest
        return Evidence(
            ledger=self.witness.ledger,
            outcome=outcome,
            history=agent.history,
            last_turn=agent.last_turn,
            busy=agent.conversation.is_busy,
            stored=None if self.journal is None else self.journal.stored(SESSION),
            journal_failed=self._journal_failed,
            grace=self._grace,
            left_early=self._left_early,
            handed="all" if self._drive_name in ("async_for", "break") else "last",
            before=self._before,
            statuses=self._statuses(params),
            max_result_bytes=params.max_result_bytes,
            exact_starts=self._exact_starts,
            own_errors=self._may_raise(),
            open_step=None if turn is None or not turn.is_suspended else turn.open_step,
        )

    @property
    def _journal_failed(self) -> bool:
        delay = self._delay
        # A commit that takes longer than grace is given up, as the contract says.
        too_slow = delay == "hang" or (isinstance(delay, float | int) and delay > self._grace)
        return too_slow or self.witness.journal_failed

    def _may_raise(self) -> tuple[type[BaseException], ...]:
        """The types of errors that may leave the run, as the agent is made."""
        config, found = self.agent.config, self._own_errors
        if config.params.over(DEFAULT_PARAMS).turn_timeout is not None:
            found += (leaving.TurnTimeoutError,)
        if config.durability == "strict" and self._journal_failed:
            found += (errors.JournalError,)
        return found

    def _statuses(self, params: RequestParams) -> frozenset[v.CallStatus]:
        """What can become of a call, as the agent is made."""
        found = PLAIN_STATUSES
        timeouts = (params.tool_timeout, params.turn_timeout, self.witness.tool_timeout)
        if any(timeout is not None for timeout in timeouts):
            found |= {v.CallStatus.TIMED_OUT}
        if self.agent.config.hooks or getattr(self.agent, "tool_runner_hooks", None):
            # Only a hook can deny a call, or cancel it alone.
            found |= {v.CallStatus.DENIED, v.CallStatus.CANCELLED}
        if self.agent.config.approver is not None or params.tool_choice == "none":
            found |= {v.CallStatus.DENIED}
        if self.witness.seams["hook"].raised:
            found |= {v.CallStatus.DENIED}  # a guard that fails guards all the same
        return found

    def check(self, outcome: Outcome) -> Iterator[str]:
        """Yield a sentence for each promise of C1-C9 that does not hold."""
        return check_contract(self.evidence(outcome), self._checks)
