"""Where a turn is, and what the shell has to do next: the words of the turn machine.

What may live here: values without any rule. The rules are in ``turn.py``.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import attrs

import trio_runner._core.values as v
from trio_runner._core.quick import ByFields


class Phase(enum.Enum):
    """Where a turn is."""

    AWAITING_MODEL = "awaiting_model"
    AWAITING_TOOLS = "awaiting_tools"
    ENDED = "ended"


@attrs.frozen(eq=False, repr=False)
class CallModel(ByFields):
    """Ask the model, then report `Turn.model_replied`."""


@attrs.frozen(eq=False, repr=False)
class RunTools(ByFields):
    """Run the open calls, report each, then `Turn.step_done`."""


@attrs.frozen(eq=False, repr=False)
class Finished(ByFields):
    """There is nothing left to do but `Turn.finish`."""

    end_reason: v.EndReason


Action: TypeAlias = CallModel | RunTools | Finished
