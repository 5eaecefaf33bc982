"""`ToolLoopAgent`: all that the loop knows of an agent.

The runner decides, the agent acts. Any object with these members can be driven
by a `ToolRunner`; it need not inherit anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import attrs

import trio_runner._core.values as v
from trio_runner._core.compaction_plan import Compaction
from trio_runner._core.params import RequestParams, check_seconds
from trio_runner._core.planning import PlannedToolCall
from trio_runner._shell.conversation import Conversation
from trio_runner._shell.hooks import ToolRunnerHooks, check_hooks, is_async
from trio_runner.abc import (
    Approver,
    DeltaSink,
    Journal,
    ModelRequest,
    NeedsApproval,
    Observer,
    Summarizer,
    Tool,
    ToolContext,
    check_rule,
)

Durability = Literal["best_effort", "strict"]

#: A call matched to its tool.
Planned: TypeAlias = PlannedToolCall[Tool]


def _check_hooks(_: object, __: object, value: object) -> None:
    check_hooks(value)


def _check_durability(_: object, __: object, value: object) -> None:
    if value not in ("best_effort", "strict"):
        raise ValueError(f"durability is {value!r}; expected 'best_effort' or 'strict'")


def _check_flag(_: object, attribute: attrs.Attribute[bool], value: object) -> None:
    if type(value) is not bool:
        raise TypeError(f"{attribute.name} is {value!r}; expected True or False")


def _check_seconds(_: object, attribute: attrs.Attribute[float], value: object) -> None:
    check_seconds(attribute.name, value)


def _check_approver(_: object, __: object, value: object) -> None:
    if value is not None and not is_async(value):
        raise TypeError(
            f"approver is {value!r}; expected 'async def approver(request)' that returns Approve, "
            "Deny or Defer (or None)"
        )


@attrs.frozen(kw_only=True)
class LoopConfig:
    """How an agent's turns run, fixed when the agent is made.

    Attributes:
      grace: seconds that finishing may take after the first interrupt of a turn.
      commit_timeout: seconds a commit is waited for while nothing is cancelled.
      durability: what a failed commit means: a report, or the end of the turn.
      summarizer: writes the summaries; None: the agent's own model.
      compaction: when and how the history is compacted by itself; None: it is not.
      trim_tool_history: take the older tool steps out of answered turns as they end.
      approver: decides on calls that need consent; None: the turn is suspended.
      needs_approval: calls that need it, besides those whose tools say so.
      journal, session_id: where the conversation is kept; None: nowhere.
    """

    instruction: str | None = None
    params: RequestParams = attrs.field(
        factory=RequestParams, validator=attrs.validators.instance_of(RequestParams)
    )
    hooks: ToolRunnerHooks | None = attrs.field(default=None, validator=_check_hooks)
    observers: tuple[Observer, ...] = ()
    grace: float = attrs.field(default=5.0, validator=_check_seconds)
    commit_timeout: float = attrs.field(default=30.0, validator=_check_seconds)
    durability: Durability = attrs.field(default="best_effort", validator=_check_durability)
    summarizer: Summarizer | None = None
    compaction: Compaction | None = attrs.field(
        default=None,
        validator=attrs.validators.optional(attrs.validators.instance_of(Compaction)),
    )
    trim_tool_history: bool = attrs.field(default=False, validator=_check_flag)
    approver: Approver | None = attrs.field(default=None, validator=_check_approver)
    needs_approval: NeedsApproval = attrs.field(default=False, validator=check_rule)
    journal: Journal | None = None
    session_id: str | None = None

    def __attrs_post_init__(self) -> None:
        if (self.journal is None) != (self.session_id is None):
            raise ValueError("journal and session belong together; give both or neither")
        if self.journal is not None and not callable(getattr(self.journal, "open", None)):
            raise TypeError(
                f"journal is {self.journal!r}; expected an object with 'async def open'"
            )


class ToolLoopAgent(Protocol):
    """What a `ToolRunner` drives."""

    @property
    def conversation(self) -> Conversation:
        """The history and its session; one per agent."""
        ...

    @property
    def config(self) -> LoopConfig:
        """The settings; read at each turn's start."""
        ...

    async def list_tools(self) -> Sequence[Tool]:
        """What the model may call now; the same object while nothing changed."""
        ...

    async def reply(self, request: ModelRequest, emit: DeltaSink) -> v.Message:
        """Ask the model once."""
        ...

    async def call_tool(self, planned: Planned, context: ToolContext) -> v.ToolResult:
        """Run one planned call and convert what its tool returned.

        What it raises becomes the call's error result, but for `FatalToolError`.
        The arguments to use are ``context.arguments``, a copy.
        """
        ...
