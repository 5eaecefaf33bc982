"""`SessionUsage`: what the turns of a conversation took, and how it is summed up.

What may live here: the sum, from turns and summaries. It is the same live and from the
records of a session, since both are read off the turn machine.
"""

from __future__ import annotations

import attrs

import trio_runner._core.records as r
import trio_runner._core.values as v
from trio_runner._core.nested import nested_usage
from trio_runner._core.turn import Turn


@attrs.frozen
class SessionUsage:
    """The tokens that the turns of a conversation took, as far as the models reported them.

    Attributes:
      own: by the model calls of its turns.
      nested: by the turns of agents that ran as its tools, to any depth: closed steps only.
      summaries: by the summaries of its compactions.
    """

    own: v.Usage = v.Usage()
    nested: v.Usage = v.Usage()
    summaries: v.Usage = v.Usage()

    @property
    def total(self) -> v.Usage:
        """All of it together."""
        return self.own + self.nested + self.summaries

    def with_turn(self, turn: Turn | None) -> SessionUsage:
        """This and what ``turn`` took."""
        if turn is None:
            return self
        nested = self.nested + nested_usage(turn.messages)
        return SessionUsage(self.own + turn.usage, nested, self.summaries)

    def with_shortening(self, record: r.Compacted | r.Trimmed) -> SessionUsage:
        """This and what the summary took, where ``record`` has one."""
        match record:
            case r.Compacted(summary=v.Message(usage=v.Usage() as usage)):
                return attrs.evolve(self, summaries=self.summaries + usage)
            case _:
                return self
