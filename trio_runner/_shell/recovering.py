"""`recover`: decides, before a turn goes on, what becomes of the calls that a crash cut.

What may live here: asking the caller. The rules are ``_core/recovery.py``.
Nothing is changed here, so that a policy may fail, or be cancelled, and the
turn can be resumed once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Sequence
from typing import cast

import trio

import trio_runner._core.recovery as recovery
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
from trio_runner._core.approval import as_it_runs
from trio_runner._core.convert import cap_result, result_from_value
from trio_runner._core.errors import StrayCancellationError
from trio_runner._core.planning import ToolTable, plan_tool_calls
from trio_runner._shell.ki import await_unprotected, call_sync_unprotected, call_unprotected
from trio_runner._shell.loop_agent import ToolLoopAgent
from trio_runner.abc import Tool, UnknownCall, UnknownPolicy


async def recover(
    agent: ToolLoopAgent,
    tools: Sequence[Tool] | None,
    policy: UnknownPolicy | None,
    max_result_bytes: int,
    decided: Container[str] = (),
) -> tuple[v.ToolResult, ...]:
    """The answers to the cut calls of the unfinished turn that are not to run again.

    Checkpoint: only when there are cut calls. If cancelled, nothing has changed.

    Args:
      tools: instead of the agent's.
      policy: asked about each of them, in the order of the request; None: nobody is.
      max_result_bytes: what is kept of a result that the policy gives.
      decided: the ids of calls that a decision answers; nobody is asked about them.

    Raises:
      NothingToResumeError: there is no unfinished turn.
      TypeError: the policy is not async.
      ValueError: the policy said something else than it may.
      BaseException: what the policy or a toolset raised.
    """
    turn = agent.conversation.unfinished_turn()
    step, positions = turn.open_step, turn.started_positions
    if step is None or not positions:
        return ()
    listed = tools if tools is not None else await call_unprotected(agent.list_tools)
    plan = [as_it_runs(each, step) for each in plan_tool_calls(step.reply, ToolTable(listed))]
    prefix = agent.conversation.key_prefix(turn)
    answers: list[v.ToolResult] = []
    for position in positions:
        call, tool, start = plan[position].call, plan[position].tool, step.starts.get(position)
        if call.id in decided:
            continue
        wanted = recovery.by_default(call, start, tool)
        if policy is not None:
            said = await _ask(
                policy,
                UnknownCall(
                    call=call,
                    tool=tool,
                    attempt=step.attempts[position],
                    idempotency_key=start.key if start is not None else f"{prefix}:{call.id}",
                    obstacle=recovery.obstacle(call, start, tool),
                    default=wanted,
                ),
            )
            if type(said) is v.ToolResult:
                found = result_from_value(
                    said, call_id=call.id, name=call.name, duration=said.duration
                )
                answers.append(cap_result(found, max_result_bytes))
                continue
            wanted = _as_wanted(call, said)
        answer = recovery.answer(call, start, tool, wanted)
        if answer is not None:
            answers.append(step.as_it_ran(position, answer))
    await trio.lowlevel.checkpoint_if_cancelled()
    return tuple(answers)


async def _ask(policy: UnknownPolicy, unknown: UnknownCall) -> object:
    try:
        said = _awaitable(policy, call_sync_unprotected(policy, unknown))
        return await await_unprotected(said)
    except BaseException as error:
        stray = all(leaving.is_cancellation(leaf) for leaf in leaving.leaves(error))
        if stray and not leaving.cancelled_from_outside():
            raise StrayCancellationError(
                "the policy for unknown calls raised a cancellation by itself, and nobody had "
                "cancelled it"
            ) from error
        raise


def _awaitable(policy: UnknownPolicy, said: object) -> Awaitable[object]:
    # A plain function would fail in the `await`, with words that name nothing of the caller's.
    if isinstance(said, Awaitable):
        return cast("Awaitable[object]", said)
    raise TypeError(
        f"the policy {getattr(policy, '__qualname__', repr(policy))} is not async: it returned "
        f"{said!r}; expected 'async def policy(unknown)'. Nothing was changed: resume() can be "
        "called again"
    )


def _as_wanted(call: v.ToolCall, said: object) -> recovery.Recovery:
    match said:
        case "rerun":
            return "rerun"
        case "unknown":
            return "unknown"
        case _:
            raise ValueError(
                f"the policy said {said!r} of call {call.id!r}; expected 'rerun', 'unknown' or "
                "a ToolResult. Nothing was changed: resume() can be called again"
            )
