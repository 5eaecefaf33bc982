"""What becomes of a call that a crash cut: it had started, and its result is not known.

What may live here: the rules, as pure functions. A call runs again only when
that was allowed: by its tool, when it was started and now, or by the caller,
who was asked. Whatever allows it, it must be the same call: a tool of its name
is there, and its arguments are those it was started with. Everything else is
answered ``unknown_after_crash``; healing, which nobody asked to go on, answers
them all.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.turn import Turn

#: What to do about a cut call: run it again with its key, or answer it ``unknown_after_crash``.
Recovery: TypeAlias = Literal["rerun", "unknown"]


class Repeatable(Protocol):
    """What the rules must know of a tool."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def idempotent(self) -> bool:
        """Whether it may be run again with the same key."""
        ...

    @property
    def external(self) -> bool:
        """Whether the application answers its calls, so that nothing here can run it."""
        ...


def obstacle(call: v.ToolCall, start: r.ToolStarted | None, tool: Repeatable | None) -> str | None:
    """Why the call cannot run again, as a part of a sentence; None when it can.

    Args:
      start: the record of its newest start; None when a loaded history left it open.
      tool: what its name means now; None when it means nothing.
    """
    if start is None:
        return "no record says with which key it was started"
    if tool is None:
        return "there is no tool of that name any more"
    if tool.external:
        return "its tool is external now, and nothing here runs it"
    if tool.name != start.name:
        return f"its name means another tool now, {tool.name!r} and not {start.name!r}"
    if start.arguments_hash != r.arguments_hash(call.arguments):
        return "its arguments are not those that it was started with"
    return None


def by_default(call: v.ToolCall, start: r.ToolStarted | None, tool: Repeatable | None) -> Recovery:
    """What to do about a cut call when the caller does not say."""
    if start is None or tool is None or obstacle(call, start, tool) is not None:
        return "unknown"
    return "rerun" if start.idempotent and tool.idempotent else "unknown"


def answer(
    call: v.ToolCall, start: r.ToolStarted | None, tool: Repeatable | None, wanted: Recovery
) -> v.ToolResult | None:
    """The answer to a cut call; None when it runs again.

    Args:
      wanted: what the caller said, or `by_default`. It cannot run what has an `obstacle`.
    """
    if start is None:
        return stand_ins.unrecorded(call)
    why = obstacle(call, start, tool)
    if why is None and wanted == "rerun":
        return None
    if why is not None and (wanted == "rerun" or start.idempotent):
        return stand_ins.not_run_again(call, why)
    if start.idempotent and tool is not None and not tool.idempotent:
        return stand_ins.not_run_again(call, "its tool is not idempotent any more")
    return stand_ins.crashed(call, started=True)


def without_running(turn: Turn, position: int, result: v.ToolResult, why: str) -> v.ToolResult:
    """``result``, which says that an open call did not run, or what is true of a cut call.

    Args:
      why: why it does not run, as a part of a sentence.
    """
    step = turn.open_step
    if step is not None and step.is_cut(position):
        answer = stand_ins.not_run_again(step.reply.tool_calls[position], why)
        return step.as_it_ran(position, answer)
    return result
