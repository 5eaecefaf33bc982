"""`decide`: what a reply means for its turn, by its stop reason alone.

What may live here: the table of the header of ``turn.py``, as a pure function.
"""

from __future__ import annotations

from typing import Final, assert_never

import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v

#: Stop reasons next to which calls may stand that do not run.
CUT: Final = (
    v.StopReason.MAX_TOKENS,
    v.StopReason.SAFETY,
    v.StopReason.ERROR,
    v.StopReason.TIMEOUT,
    v.StopReason.CANCELLED,
)


def decide(
    reply: v.Message, met_cap: int | None
) -> tuple[v.EndReason | None, tuple[v.ToolResult, ...]]:
    """How the turn ends with a normalised ``reply``, and the answers to its calls.

    Args:
      met_cap: the ``max_iterations`` that the reply met; None when it is below it.

    Returns:
      The end reason, or None when the turn goes on; and the results of calls that do
      not run, in order.
    """
    match reply.stop_reason:
        case v.StopReason.TOOL_USE | v.StopReason.PAUSE | v.StopReason.CONTINUE_:
            if met_cap is None:
                return None, ()
            results = [stand_ins.limit_reached(call, met_cap) for call in reply.tool_calls]
            return v.EndReason.MAX_ITERATIONS, tuple(results)
        case v.StopReason.MAX_TOKENS:
            results = [stand_ins.output_cut(call) for call in reply.tool_calls]
            return v.EndReason.MAX_TOKENS, tuple(results)
        case (
            v.StopReason.SAFETY | v.StopReason.ERROR | v.StopReason.TIMEOUT | v.StopReason.CANCELLED
        ):
            why = f"the reply ended with stop reason {reply.stop_reason.value!r}."
            results = [stand_ins.denied(call, why) for call in reply.tool_calls]
            safe = reply.stop_reason is v.StopReason.SAFETY
            return v.EndReason.SAFETY if safe else v.EndReason.FAILED, tuple(results)
        case v.StopReason.END_TURN | v.StopReason.STOP_SEQUENCE | None:
            return v.EndReason.ANSWERED, ()
        case _:
            assert_never(reply.stop_reason)
