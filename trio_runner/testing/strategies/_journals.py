"""Journal behaviours: when commits land, fail or hang, as values, and the strategy for them.

What may live here: the value, `make_journal`, which makes a `MemoryJournal` of
it, and the strategy.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs
import hypothesis.strategies as st

from trio_runner._journal.memory import Fate, MemoryJournal


@attrs.frozen
class JournalBehaviour:
    """What the commits of a journal do.

    Attributes:
      delay: seconds that each commit takes.
      fates: single commits by their number, from 0: ``(number, "fail")`` or ``(number, "hang")``.
    """

    delay: float = 0.0
    fates: tuple[tuple[int, Literal["fail", "hang"]], ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether every commit lands."""
        return not self.fates

    @property
    def hangs(self) -> bool:
        """Whether a commit has no outcome; those behind it then have none either."""
        return any(fate == "hang" for _, fate in self.fates)


def make_journal(behaviour: JournalBehaviour) -> MemoryJournal:
    """A journal that behaves so."""
    script: dict[int, Fate] = {
        number: "hang" if fate == "hang" else OSError(f"commit {number} failed, as planned")
        for number, fate in behaviour.fates
    }
    return MemoryJournal(behaviour.delay, script=script)


_DELAYS: Final = st.sampled_from((0.0, 0.0, 0.5, 2.0))
_FATE: Final[st.SearchStrategy[tuple[int, Literal["fail", "hang"]]]] = st.tuples(
    st.integers(0, 30), st.sampled_from(("fail", "fail", "hang"))
)


def journal_behaviours(*, healthy: bool = False) -> st.SearchStrategy[JournalBehaviour]:
    """A delay, and a script of failures and hangs.

    Args:
      healthy: without any.
    """
    fates: st.SearchStrategy[tuple[tuple[int, Literal["fail", "hang"]], ...]] = st.just(())
    if not healthy:
        fates = st.lists(_FATE, max_size=3, unique_by=_number_of).map(tuple)
    return st.builds(JournalBehaviour, _DELAYS, fates)


def _number_of(fate: tuple[int, Literal["fail", "hang"]]) -> int:
    return fate[0]
