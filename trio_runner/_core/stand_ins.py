"""The results the library answers calls with when no tool did.

The one place where a status gets its words, so that a text never contradicts
its status (contract C4). "It had no effect" is said only of a call whose tool
function was never entered.
"""

from __future__ import annotations

from typing import Final

import attrs

import trio_runner._core.values as v

_UNKNOWN = "It is not known whether it took effect."
_NOT_RUN = "It was not run and had no effect."

#: How an open call is answered when the turn ends, by whether it had started.
_WHY: Final = {
    v.EndReason.INTERRUPTED: "the turn was interrupted",
    v.EndReason.TIMED_OUT: "the turn's time was up",
    v.EndReason.FAILED: "the turn failed",
    v.EndReason.LIMIT: "the time that a limit gives was up",
}
_TIME_IS_UP: Final = (v.EndReason.TIMED_OUT, v.EndReason.LIMIT)


def _result(call: v.ToolCall, status: v.CallStatus, text: str) -> v.ToolResult:
    return v.ToolResult(call.id, call.name, (v.TextContent(text),), None, status)


def stopped(call: v.ToolCall, end_reason: v.EndReason, *, started: bool) -> v.ToolResult:
    """The answer to a call that was open when its turn ended with ``end_reason``."""
    why = _WHY.get(end_reason, f"the turn ended ({end_reason.value})")
    if not started:
        return _result(
            call, v.CallStatus.NOT_STARTED, f"Not started: {why} before this call began. {_NOT_RUN}"
        )
    if end_reason in _TIME_IS_UP:
        return _result(
            call, v.CallStatus.TIMED_OUT, f"Timed out: {why} while this call ran. {_UNKNOWN}"
        )
    return _result(
        call, v.CallStatus.INTERRUPTED, f"Interrupted: {why} while this call ran. {_UNKNOWN}"
    )


def crashed(call: v.ToolCall, *, started: bool) -> v.ToolResult:
    """The answer to a call that was open when its process ended."""
    if not started:
        return _result(
            call,
            v.CallStatus.NOT_STARTED,
            f"Not started: the process ended before this call began. {_NOT_RUN}",
        )
    return _result(
        call,
        v.CallStatus.UNKNOWN_AFTER_CRASH,
        f"Unknown: the process ended after this call had started. {_UNKNOWN}",
    )


def not_run_again(call: v.ToolCall, why: str) -> v.ToolResult:
    """The answer to a call that started before a crash and is not started again, for a reason."""
    return _result(
        call,
        v.CallStatus.UNKNOWN_AFTER_CRASH,
        f"Unknown: the process ended after this call had started. {_UNKNOWN} "
        f"It was not run again: {why.strip().removesuffix('.')}.",
    )


def unrecorded(call: v.ToolCall) -> v.ToolResult:
    """The answer to an open call of a history that does not say whether it ran."""
    return _result(
        call,
        v.CallStatus.INTERRUPTED,
        "Interrupted: the history holds no result of this call. "
        "It is not known whether it ran or took effect.",
    )


def call_timed_out(call: v.ToolCall, timeout: float) -> v.ToolResult:
    """The answer to a call that ran longer than its own timeout, in seconds."""
    return _result(
        call,
        v.CallStatus.TIMED_OUT,
        f"Timed out: this call was stopped after its {timeout:g} seconds. {_UNKNOWN}",
    )


def call_cancelled(call: v.ToolCall) -> v.ToolResult:
    """The answer to a running call that ``cancel_call`` stopped."""
    return _result(
        call,
        v.CallStatus.CANCELLED,
        f"Cancelled: this call alone was stopped while it ran. {_UNKNOWN}",
    )


def call_withdrawn(call: v.ToolCall, why: str = "was cancelled") -> v.ToolResult:
    """The answer to a call that was stopped, by ``cancel_call`` or its timeout, as it waited."""
    return _result(
        call,
        v.CallStatus.NOT_STARTED,
        f"Not started: this call {why} before it began. {_NOT_RUN}",
    )


def denied(call: v.ToolCall, reason: str) -> v.ToolResult:
    """The answer to a call that was refused."""
    end = "" if reason.rstrip().endswith((".", "!", "?")) else "."
    return _result(call, v.CallStatus.DENIED, f"Denied: {reason.rstrip()}{end} {_NOT_RUN}")


def limit_reached(call: v.ToolCall, max_iterations: int) -> v.ToolResult:
    """The answer to a call that came when the turn had used its iterations."""
    return _result(
        call,
        v.CallStatus.LIMIT_REACHED,
        f"Limit reached: the turn may run {max_iterations} batches of tools. {_NOT_RUN}",
    )


def over_limit(call: v.ToolCall, why: str) -> v.ToolResult:
    """The answer to a call that a limit scope keeps from running."""
    return _result(call, v.CallStatus.LIMIT_REACHED, f"Limit reached: {why}. {_NOT_RUN}")


def output_cut(call: v.ToolCall) -> v.ToolResult:
    """The answer to a call of a reply that the output limit cut."""
    return _result(
        call,
        v.CallStatus.OUTPUT_CUT,
        f"Output cut: the reply hit the model's output limit (max_tokens). {_NOT_RUN}",
    )


def ran_edited(result: v.ToolResult, arguments: str) -> v.ToolResult:
    """An answer to a call that had started, and not with the arguments that the model gave.

    Args:
      arguments: as they are shown to the model.
    """
    said = f"Whoever approved this call had changed its arguments to {arguments}"
    content = (*result.content, v.TextContent(said))
    return attrs.evolve(result, content=content, meta={**result.meta, "edited_arguments": True})


def external_now(call: v.ToolCall) -> v.ToolResult:
    """The answer to a call that was approved, and whose tool nothing here runs any more."""
    return _result(
        call,
        v.CallStatus.UNAVAILABLE,
        f"Unavailable: {call.name!r} is external now, and nothing here runs it. {_NOT_RUN}",
    )


def failed(call: v.ToolCall, text: str) -> v.ToolResult:
    """The answer to a call whose tool raised; ``text`` describes the error."""
    return _result(call, v.CallStatus.ERROR, text)


def invalid_arguments(call: v.ToolCall, text: str) -> v.ToolResult:
    """The answer to a call whose arguments its tool's schema refuses."""
    return _result(call, v.CallStatus.INVALID_ARGUMENTS, text)
