"""Hook behaviours: what a hook may do, as values, and the strategies for them.

What may live here: one frozen class for each way to behave, `make_hooks`, which
turns them into `ToolRunnerHooks`, and the strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, get_args

import attrs
import hypothesis.strategies as st
import trio

import trio_runner._core.errors as errors
import trio_runner._core.params as params_
import trio_runner._core.values as v
from trio_runner._shell.hooks import ToolRunnerHooks
from trio_runner._shell.runner import ToolRunner
from trio_runner.testing.strategies._damage import damaged_histories
from trio_runner.testing.strategies._values import valid_histories

#: The points of a step at which hooks run, in their order.
HookPoint = Literal[
    "before_llm_call", "after_llm_call", "before_tool_call", "after_tool_call",
    "after_turn_complete",
]  # fmt: skip
HOOK_POINTS: Final[tuple[HookPoint, ...]] = get_args(HookPoint)


class HookBehaviour(Protocol):
    """What a hook does each time it is called."""

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Do it; ``subject`` is the message, or the messages, that the hook is given."""
        ...


async def _take(steps: int) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()


@attrs.frozen
class LooksOn:
    """Takes ``steps`` checkpoints and returns."""

    steps: int = 0

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Checkpoints: ``steps``."""
        del runner, subject
        await _take(self.steps)


@attrs.frozen
class AppendsNote:
    """Appends a message for the next model call, where one may still come."""

    text: str = "a note"

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Not a checkpoint. On a turn that is decided nothing is appended."""
        del subject
        try:
            runner.append_messages(self.text)
        except errors.TurnEndedError:
            return


@attrs.frozen
class RaisesInHook:
    """Takes ``steps`` checkpoints, then raises ``kind(text)``: an `Exception`."""

    kind: type[Exception] = LookupError
    text: str = "the hook failed"
    steps: int = 0

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Checkpoints: ``steps``."""
        del runner, subject
        await _take(self.steps)
        raise self.kind(self.text)


@attrs.frozen
class DeniesCall:
    """Refuses one call of the batch: that at ``position``, counted around its end.

    For ``before_tool_call``; at any other point its UsageError leaves the hook.
    """

    position: int = 0
    reason: str = "no."

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Not a checkpoint."""
        calls: tuple[v.ToolCall, ...] = getattr(subject, "tool_calls", ())
        call_id = calls[self.position % len(calls)].id if calls else "none"
        runner.deny(call_id, self.reason)


@attrs.frozen
class ReplacesHistory:
    """Puts ``messages`` in the place of the history.

    Attributes:
      insists: the HistoryError of a refusal leaves the hook; else it is dropped.
    """

    messages: tuple[v.Message, ...] = ()
    insists: bool = False

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Not a checkpoint."""
        del subject
        try:
            runner.replace_history(self.messages)
        except errors.HistoryError:
            if self.insists:
                raise


@attrs.frozen
class CutsHistory:
    """Shortens the history as a careless trim does: without a look at what belongs together.

    Attributes:
      first: messages before this one go; counted around the end.
      last: messages from this one on go, counted from ``first``; None: none.
    """

    first: int = 1
    last: int | None = None

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Not a checkpoint. A cut that is refused changes nothing, and is dropped."""
        del subject
        history = runner.history
        first = self.first % (len(history) + 1)
        last = None if self.last is None else first + self.last
        try:
            runner.replace_history(history[first:last])
        except errors.HistoryError:
            return


@attrs.frozen
class ChangesParams:
    """Sets the turn's params; they hold from the next model call on."""

    params: params_.RequestParams

    async def act(self, runner: ToolRunner, subject: object) -> None:
        """Not a checkpoint. Refused when the turn has ended."""
        del subject
        if not runner.is_done:
            runner.request_params = self.params


def make_hooks(behaviours: Mapping[HookPoint, HookBehaviour]) -> ToolRunnerHooks:
    """Hooks that behave so each time they are called."""
    hooks: dict[str, Any] = {point: each.act for point, each in behaviours.items()}
    return ToolRunnerHooks(**hooks)


# --- strategies -------------------------------------------------------------------

_STEPS: Final = st.integers(0, 2)
_PARAMS: Final = st.builds(
    params_.RequestParams,
    max_iterations=st.integers(0, 3),
    parallel_tool_calls=st.booleans(),
    tool_timeout=st.none() | st.just(1.0),
    max_parallel_tools=st.none() | st.integers(1, 2),
)
_HISTORIES: Final[st.SearchStrategy[tuple[v.Message, ...]]] = st.one_of(
    valid_histories(max_parts=2), damaged_histories(max_parts=2)
)


def hook_behaviours(point: HookPoint = "before_llm_call") -> st.SearchStrategy[HookBehaviour]:
    """What a hook at ``point`` may do. None of it raises anything but an `Exception`."""
    kinds: list[st.SearchStrategy[Any]] = [
        st.builds(LooksOn, _STEPS),
        st.builds(LooksOn, _STEPS),
        st.builds(AppendsNote, st.sampled_from(("a note", "another note"))),
        st.builds(RaisesInHook, st.sampled_from((LookupError, StopAsyncIteration)), steps=_STEPS),
        st.builds(ReplacesHistory, _HISTORIES, st.booleans()),
        st.builds(CutsHistory, st.integers(0, 6), st.none() | st.integers(0, 6)),
        st.builds(ChangesParams, _PARAMS),
    ]
    if point == "before_tool_call":
        kinds += [st.builds(DeniesCall, st.integers(0, 3))] * 2
    return st.one_of(kinds)


def hook_plans(
    *, points: tuple[HookPoint, ...] = HOOK_POINTS
) -> st.SearchStrategy[dict[HookPoint, HookBehaviour]]:
    """Which hooks there are and what each does; for `make_hooks`. Often none."""
    optional: dict[HookPoint, st.SearchStrategy[HookBehaviour]] = {
        point: hook_behaviours(point) for point in points
    }
    return st.fixed_dictionaries({}, optional=optional)
