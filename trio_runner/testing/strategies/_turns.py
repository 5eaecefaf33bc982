"""Plans: what happens in a turn and in a session, as values, and the strategies for them.

What may live here: one frozen class for each thing that can be planned.
``trio_runner.testing.session_machine`` plays them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs
import hypothesis.strategies as st

import trio_runner._core.params as params_
import trio_runner._core.values as v
from trio_runner.testing.strategies._damage import damaged_histories
from trio_runner.testing.strategies._hooks import HookBehaviour, HookPoint, hook_plans
from trio_runner.testing.strategies._replies import batches, replies
from trio_runner.testing.strategies._tools import (
    ODD_VALUES,
    Raises,
    Returns,
    ReturnsOdd,
    ToolBehaviour,
    tool_behaviours,
)
from trio_runner.testing.strategies._values import valid_histories

# --- what the model does ----------------------------------------------------------

#: The tools of a planned session: ``alone`` is a barrier, ``bounded`` has a timeout,
#: ``limited`` a limiter of one, ``plain`` is a sync function.
ToolName = Literal["work", "alone", "bounded", "limited", "plain"]
TOOL_NAMES: Final[tuple[ToolName, ...]] = get_args(ToolName)


@attrs.frozen
class CallPlan:
    """One call, and what its tool does then.

    Attributes:
      id: as the model sends it: missing or repeated ones too.
    """

    tool: ToolName = "work"
    behaviour: ToolBehaviour = attrs.field(factory=Returns)
    id: Any = ""


@attrs.frozen
class Asks:
    """A reply that asks for tools, after ``steps`` checkpoints."""

    calls: tuple[CallPlan, ...]
    stop_reason: v.StopReason = v.StopReason.TOOL_USE
    steps: int = 1


@attrs.frozen
class Says:
    """A reply without calls, after ``steps`` checkpoints."""

    stop_reason: v.StopReason = v.StopReason.END_TURN
    steps: int = 1


@attrs.frozen
class SaysAnything:
    """A reply as no provider should send it."""

    message: v.Message


@attrs.frozen
class FailsToReply:
    """The model raises ``kind("no reply")`` after ``steps`` checkpoints."""

    kind: type[Exception] = ConnectionError
    steps: int = 1


ReplyPlan: TypeAlias = Asks | Says | SaysAnything | FailsToReply


# --- what the caller does ---------------------------------------------------------

DriveWay = Literal["until_done", "generate", "async_for"]


@attrs.frozen
class TurnPlan:
    """One turn: what comes from the model, from hooks and from the caller.

    Attributes:
      replies: in order; when they are used up the model answers.
      drive: how the turn is driven; what follows is for ``async_for`` alone.
      stops_after: leaves the block by ``break`` after so many messages; None: never.
      notes_after: appends a message after so many messages; None: never.
      cancels_after: cancels the first call of that message, counted from 1; None: never.
      step_timeout: seconds of the caller's own deadline around each step; None: none.
    """

    replies: tuple[ReplyPlan, ...] = ()
    hooks: Mapping[HookPoint, HookBehaviour] = MappingProxyType({})
    params: params_.RequestParams | None = None
    drive: DriveWay = "until_done"
    stops_after: int | None = None
    notes_after: int | None = None
    cancels_after: int | None = None
    step_timeout: float | None = None


@attrs.frozen
class ResumePlan:
    """Goes on with the newest turn, when there is something to go on with."""

    replies: tuple[ReplyPlan, ...] = ()


@attrs.frozen
class LoadPlan:
    """Loads a history from elsewhere, damaged or not."""

    messages: tuple[v.Message, ...]


@attrs.frozen
class CutPlan:
    """Loads a piece of the session's own history, cut anywhere, as hands and foreign code do.

    Attributes:
      first: messages before this one go; counted around the end.
      size: how many stay; None: all the others.
    """

    first: int = 1
    size: int | None = None


@attrs.frozen
class CompactPlan:
    """Puts a summary in the place of the oldest messages.

    Attributes:
      keep: so many turns stay.
      at: cuts before this message instead, counted around the end; None: by turns.
    """

    keep: int = 2
    at: int | None = None


@attrs.frozen
class TrimPlan:
    """Takes the older tool steps out of all turns but the newest ``keep``."""

    keep: int = 0


@attrs.frozen
class ClearPlan:
    """Forgets the conversation."""


SessionStep: TypeAlias = (
    TurnPlan | ResumePlan | LoadPlan | CutPlan | CompactPlan | TrimPlan | ClearPlan
)


# --- strategies -------------------------------------------------------------------

_STEPS: Final = st.integers(0, 2)
_FEW: Final = st.integers(1, 3)
_MAYBE_FEW: Final[st.SearchStrategy[int | None]] = st.none() | _FEW
_IDS: Final[st.SearchStrategy[Any]] = st.sampled_from(("", "", "", "c1", "c1", "c2", None, 7, " "))
_ASYNC_TOOLS: Final[st.SearchStrategy[ToolName]] = st.sampled_from(
    ("work", "work", "alone", "bounded", "limited")
)
#: A sync function cannot wait.
_AT_ONCE: Final[st.SearchStrategy[Any]] = st.one_of(
    st.builds(Returns), st.builds(Raises), st.builds(ReturnsOdd, st.sampled_from(ODD_VALUES))
)
_CALLS: Final = st.builds(CallPlan, _ASYNC_TOOLS, tool_behaviours(), _IDS)
_PLAIN_CALLS: Final = st.builds(CallPlan, st.just("plain"), _AT_ONCE, _IDS)
_ASKS: Final = st.builds(
    Asks,
    st.lists(_CALLS | _CALLS | _CALLS | _PLAIN_CALLS, min_size=1, max_size=4).map(tuple),
    st.sampled_from(
        (*[v.StopReason.TOOL_USE] * 12, v.StopReason.END_TURN, v.StopReason.MAX_TOKENS,
         v.StopReason.SAFETY)
    ),
    _STEPS,
)  # fmt: skip
_SAYS: Final = st.builds(
    Says,
    st.sampled_from(
        (*[v.StopReason.END_TURN] * 4, v.StopReason.PAUSE, v.StopReason.MAX_TOKENS,
         v.StopReason.ERROR)
    ),
    _STEPS,
)  # fmt: skip
_ODD_BATCHES: Final = batches(("work", "alone")).map(
    lambda calls: v.Message.assistant(tool_calls=calls)
)
_ANYTHING: Final = st.builds(SaysAnything, replies() | _ODD_BATCHES)
_FAILS: Final = st.builds(FailsToReply, st.sampled_from((ConnectionError, StopAsyncIteration)))
#: Batches mostly, since that is where faults can land between things.
_REPLIES: Final[st.SearchStrategy[tuple[ReplyPlan, ...]]] = st.lists(
    st.one_of(_ASKS, _ASKS, _ASKS, _ASKS, _ASKS, _ASKS, _SAYS, _ANYTHING, _FAILS),
    min_size=1,
    max_size=4,
).map(tuple)
_PARAMS: Final = (
    st.none()
    | st.none()
    | st.builds(
        params_.RequestParams,
        max_iterations=st.sampled_from((199, 199, 0, 1, 2)),
        use_history=st.sampled_from((True, True, False)),
        parallel_tool_calls=st.sampled_from((True, True, False)),
        tool_timeout=st.sampled_from((None, None, 1.0)),
        turn_timeout=st.sampled_from((None, None, 0.5, 3.0)),
        max_parallel_tools=st.sampled_from((None, None, 1, 2)),
    )
)
_HOOKS: Final[st.SearchStrategy[dict[HookPoint, HookBehaviour]]] = (
    st.builds(dict[HookPoint, HookBehaviour])
    | st.builds(dict[HookPoint, HookBehaviour])
    | hook_plans()
)
_TURNS: Final = st.builds(
    TurnPlan, _REPLIES, _HOOKS, _PARAMS, st.sampled_from(("until_done", "generate"))
) | st.builds(
    TurnPlan,
    _REPLIES,
    _HOOKS,
    _PARAMS,
    st.just("async_for"),
    _MAYBE_FEW,
    _MAYBE_FEW,
    _MAYBE_FEW,
    st.sampled_from((None, None, 0.5)),
)
_RESUMES: Final = st.builds(ResumePlan, _REPLIES)
_CUTS: Final = st.builds(CutPlan, st.integers(0, 8), st.none() | st.integers(0, 8))
_COMPACTIONS: Final = st.builds(CompactPlan, st.integers(0, 2), st.none() | st.integers(0, 12))
_TRIMS: Final = st.builds(TrimPlan, st.integers(0, 1))
_LOADS: Final = st.builds(LoadPlan, valid_histories(max_parts=3) | damaged_histories(max_parts=3))
_SESSION_STEPS: Final[st.SearchStrategy[SessionStep]] = st.one_of(
    _TURNS, _TURNS, _TURNS, _TURNS, _TURNS, _RESUMES, _RESUMES, _CUTS, _LOADS,
    _COMPACTIONS, _TRIMS, st.builds(ClearPlan)
)  # fmt: skip

# Composites, since they show as their names; the whole of them fills pages.


@st.composite
def turn_plans(draw: st.DrawFn) -> TurnPlan:
    """A turn of any kind: half of them are driven step by step, and disturbed by the caller."""
    return draw(_TURNS)


@st.composite
def session_steps(draw: st.DrawFn) -> SessionStep:
    """What is done with an agent: turns mostly, and what becomes of a history between them."""
    return draw(_SESSION_STEPS)
