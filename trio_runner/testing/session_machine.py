"""`SessionMachine`: a whole session under everything that can happen to it, by Hypothesis.

What may live here: the state machine. What is planned is in
``trio_runner.testing.strategies``; how it is played, and how the truth is kept,
in ``_session_play.py`` and ``_session_ledger.py``.

Turns with all kinds of replies, tools, hooks and callers; cancels, deadlines,
Ctrl-C, crashing siblings and power cuts at any task step, one or two of them;
histories cut, loaded, cleared and compacted by themselves; the session opened again by
a new agent. After each, what the agent and the journal say is compared with what happened::

    class TestMySession(SessionMachine.TestCase):
        pass

A failing example prints the plans as code. It runs its own `trio.run`, so call
it from a sync test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import trio_runner as tr
from trio_runner.testing import Fault, Injection, Outcome
from trio_runner.testing._probe import Options
from trio_runner.testing._session_play import SessionPlay
from trio_runner.testing._sweep import run_once
from trio_runner.testing.strategies import (
    JournalBehaviour,
    SessionStep,
    journal_behaviours,
    make_journal,
    session_steps,
)

#: A fault and the task step it comes before.
PlannedFault = tuple[str, int]

_POWER_CUT: Final = "power_cut"
#: Tokens of a context window that a few turns fill, beside the tools.
_SMALL: Final = 100


def fault_plans() -> st.SearchStrategy[tuple[PlannedFault, ...]]:
    """None, one or two faults, in order, at any step of a visit."""
    names = st.sampled_from(("cancel", "deadline", "crash", "sigint", _POWER_CUT))
    fault = st.tuples(names, st.integers(0, 12) | st.integers(0, 40))
    none: st.SearchStrategy[tuple[PlannedFault, ...]] = st.just(())
    return none | st.lists(fault, min_size=1, max_size=2).map(_in_order)


def _in_order(faults: Sequence[PlannedFault]) -> tuple[PlannedFault, ...]:
    return tuple(sorted(faults, key=_step_of))


def _step_of(fault: PlannedFault) -> int:
    return fault[1]


class SessionMachine(RuleBasedStateMachine):
    """Plays a session at random and compares it with what really happened.

    Subclass it to put your journal in: override `make_journal`. Your journal must
    be driven by trio's clock alone, since the machine jumps over time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.play: SessionPlay

    def make_journal(self, behaviour: JournalBehaviour) -> tr.Journal:
        """A new journal; commits as ``behaviour`` says, or yours, which may ignore it."""
        return make_journal(behaviour)

    @initialize(
        behaviour=journal_behaviours(healthy=True)
        | journal_behaviours(healthy=True)
        | journal_behaviours(),
        durability=st.sampled_from(("best_effort", "best_effort", "strict")),
        compaction=st.none()
        | st.builds(
            tr.Compaction,
            context_window=st.integers(_SMALL, 2 * _SMALL),
            keep_turns=st.integers(0, 2),
            keep_steps=st.integers(1, 2),
        ),
    )
    def begin(
        self,
        behaviour: JournalBehaviour,
        durability: tr.Durability,
        compaction: tr.Compaction | None = None,
    ) -> None:
        """A new session on a new journal; its agents compact it as ``compaction`` says."""
        self.play = SessionPlay(
            self.make_journal(behaviour),
            healthy=behaviour.is_healthy,
            durability=durability,
            compaction=compaction,
        )

    @rule(
        steps=st.lists(session_steps(), min_size=1, max_size=3).map(tuple),
        faults=fault_plans(),
        seed=st.integers(0, 7),
        anew=st.booleans(),
    )
    def visit(
        self,
        steps: tuple[SessionStep, ...],
        faults: tuple[PlannedFault, ...],
        seed: int,
        anew: bool,
    ) -> None:
        """Open the agent, do some things with it, with faults at some steps, and leave it.

        Args:
          anew: by a new agent, as after a restart.
        """
        play = self.play
        if anew:
            play.new_agent()
        power_cut = Fault(_POWER_CUT, self._cut_the_power)
        plan = [(power_cut if name == _POWER_CUT else name, step) for name, step in faults]
        outcome = run_once(lambda: play.visit(steps), plan, seed, Options())
        self._raise_for(outcome)
        if play.ledger.dead:
            play.new_agent()

    def _cut_the_power(self, injection: Injection) -> None:
        self.play.cut_the_power()
        injection.cancel()

    def _raise_for(self, outcome: Outcome) -> None:
        if outcome.violations:
            landed = [
                f"{landing.fault} before step {landing.position} in {landing.place}"
                for landing in outcome.landings
                if landing.landed
            ]
            raise AssertionError("\n".join([*outcome.violations, f"faults: {landed or 'none'}"]))
