"""Results that are the answer: when a batch is passed through, and who may choose that.

What may live here: what a step asks about ``tool_result_mode``. The rule itself is
`trio_runner._core.nested.passed_through`.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio_runner._core.nested as nested
import trio_runner._core.values as v
from trio_runner._core.actions import CallModel
from trio_runner._core.params import RequestParams
from trio_runner._core.turn import Turn
from trio_runner._shell.agent_tools import AgentTool
from trio_runner.abc import Tool


def answer_of(turn: Turn, params: RequestParams) -> v.Message | None:
    """What the results of the newest batch become in the place of a model call.

    Args:
      params: those that the batch ran with.

    Returns:
      None when the model is to be asked.
    """
    mode = params.tool_result_mode
    if mode == "postprocess" or turn.results is None or type(turn.next_action()) is not CallModel:
        return None
    history = turn.history.view()
    newest = next((each for each in reversed(history) if each.tool_results), None)
    if newest is None or _ids(newest) != _ids(turn.results):
        return None  # they are not of this turn
    return nested.passed_through(history, chosen=mode == "selectable")


def _ids(message: v.Message) -> list[str]:
    return [result.call_id for result in message.tool_results]


class Offer:
    """The tools as the model is told of them."""

    def __init__(self) -> None:
        self._listed: Sequence[Tool] = ()
        self._offered: Sequence[Tool] = ()

    def of(self, listed: Sequence[Tool], params: RequestParams) -> Sequence[Tool]:
        """``listed``; agents among them let the model choose, where it may."""
        if params.tool_result_mode != "selectable":
            return listed
        if listed is not self._listed:
            self._listed, self._offered = listed, tuple(map(_offered, listed))
        return self._offered


def _offered(tool: Tool) -> Tool:
    match tool:
        case AgentTool():
            return tool.offering_response_mode()
        case _:
            return tool
