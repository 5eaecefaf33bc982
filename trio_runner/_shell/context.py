"""`CallContext`: what one running call can know and say (the public `ToolContext`).

What may live here: contexts, of a call, of its batch and of its turn, and how the
running call is found. What a turn that runs inside a call wants of the turn
around it, it finds here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.values as v
from trio_runner._core.errors import UsageError
from trio_runner._core.normalise import safe_block
from trio_runner._core.validity import has_content
from trio_runner._shell.conversation import Conversation
from trio_runner._shell.notices import Notices
from trio_runner.abc import Journal, ToolContext

_current: ContextVar[CallContext | None] = ContextVar("trio_runner_tool_context", default=None)


def current_tool_context() -> ToolContext:
    """The context of the tool call that is running here, found without a parameter.

    Works in the tool, in the tasks it starts and in its worker thread.

    Raises:
      UsageError: no tool call is running here.
    """
    context = _current.get()
    if context is None:
        raise UsageError("no tool call is running here; call this from inside a tool")
    return context


def running_call() -> CallContext | None:
    """The tool call that is running here; None outside of one."""
    return _current.get()


def runs_inside(conversation: Conversation) -> bool:
    """Whether this is inside a running tool of a turn on ``conversation``, however deep."""
    call = _current.get()
    while call is not None:
        if call.open and call.turn.conversation is conversation:
            return True
        call = call.turn.around
    return False


@attrs.define(eq=False)
class TurnContext:
    """What the calls of one turn have in common, for turns that run inside them.

    Strictly private.

    Attributes:
      journal: where the turn is kept; None: nowhere.
      grace: seconds that its finishing may take.
      around: the call that this turn runs in; None for one that runs in no tool.
      spent: seconds of the grace that nested turns have used, which were interrupted by
        what ends this turn too: all that are nested in one another have one grace.
    """

    conversation: Conversation
    journal: Journal | None
    grace: float
    around: CallContext | None = attrs.field(factory=running_call)
    spent: float = 0.0

    @property
    def depth(self) -> int:
        """How many turns there are around it: 0 for one that runs in no tool."""
        depth, call = 0, self.around
        while call is not None:
            depth, call = depth + 1, call.turn.around
        return depth


@attrs.define(eq=False)  # not frozen, which is quicker to make; one per batch
class BatchContext:
    """What the contexts of one batch have in common. Strictly private, never changed."""

    turn: TurnContext
    notices: Notices
    step: int
    key_prefix: str
    resumed: bool


@attrs.frozen
class CutTurn:
    """A turn that ran in a call and was interrupted from outside. Strictly private.

    Attributes:
      meta: for the result that the call is answered with.
      spent: seconds of its grace that its finishing took.
    """

    meta: Mapping[str, Any]
    spent: float


class CallContext:
    """One call on its way. Implements `trio_runner.abc.ToolContext`.

    Args:
      threaded: it begins in a worker thread, which says so.
      after: the record of its start that a crash cut.
    """

    __slots__ = (
        "_batch",
        "_call",
        "_key",
        "_unclaimed",
        "arguments",
        "attached",
        "attempt",
        "began",
        "cancelled",
        "cut",
        "open",
        "scope",
        "timeout",
    )

    def __init__(
        self,
        call: v.ToolCall,
        arguments: v.JSONObject,
        batch: BatchContext,
        threaded: bool,
        after: r.ToolStarted | None = None,
    ) -> None:
        self._call: Final = call
        self._batch: Final = batch
        #: Who takes the item out may start (or give up) a threaded call: list.pop is atomic.
        self._unclaimed: Final = [True] if threaded else None
        #: The key of the attempts that a crash cut; None for a first one.
        self._key: Final = None if after is None else after.key
        #: 1, or more when the call is run again after a crash.
        self.attempt: Final = 1 if after is None else after.attempt + 1
        self.arguments: Mapping[str, Any] = arguments
        #: When the tool was called, on trio's clock.
        self.began: float = trio.current_time()
        #: False once the call has its result; what is said later is dropped.
        self.open: bool = True
        #: Messages with media, to go behind the results of the step.
        self.attached: tuple[v.Message, ...] = ()
        #: What the call runs in, where it has a timeout or `cancel_call` can reach it.
        self.scope: trio.CancelScope | None = None
        #: Seconds that it may take; set together with ``scope``.
        self.timeout: float | None = None
        #: Whether `cancel_call` hit it while it ran.
        self.cancelled: bool = False
        #: What a turn that ran in it, and was cut with it, leaves behind.
        self.cut: CutTurn | None = None

    @property
    def turn(self) -> TurnContext:
        """The turn that the call belongs to."""
        return self._batch.turn

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self._call.id

    @property
    def name(self) -> str:
        """The name of the tool, as the model called it."""
        return self._call.name

    @property
    def idempotency_key(self) -> str:
        """``turn:step:call``; the turn is named with its session."""
        return self._key or f"{self._batch.key_prefix}:{self._call.id}"

    @property
    def resumed(self) -> bool:
        """Whether the turn goes on after its end or a crash."""
        return self._batch.resumed

    @property
    def duration(self) -> float:
        """Seconds since the tool was called."""
        return trio.current_time() - self.began

    def make_current(self) -> None:
        """Let `current_tool_context` find this call in the current task."""
        _current.set(self)

    @trio.lowlevel.enable_ki_protection
    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Tell the observers how far the call is; ``total`` and ``message`` are optional."""
        batch = self._batch
        if self.open and batch.notices.listening:
            batch.notices.tell_from_anywhere(
                ev.CallProgress, batch.step, self._call.id, progress, total, message
            )

    @trio.lowlevel.enable_ki_protection
    def emit(self, value: object) -> None:
        """Tell the observers a value of the tool's own."""
        batch = self._batch
        if self.open and batch.notices.listening:
            batch.notices.tell_from_anywhere(ev.CallEmitted, batch.step, self._call.id, value)

    @trio.lowlevel.enable_ki_protection
    def attach(self, *content: v.ContentBlock) -> None:
        """Send media to the model in a marked user message behind the results.

        Raises:
          TypeError: something is no content block.
        """
        safe = [block for each in v.as_blocks(content) if (block := safe_block(each)) is not None]
        if self.open and has_content(safe):
            meta = {"attached_by": self._call.id}
            self.attached += (v.Message.user(safe, meta=meta),)

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens to what happens in the call."""
        return self._batch.notices.listening

    def tell_nested(self, agent: str, depth: int, event: ev.Event) -> None:
        """Tell the observers of an event in a turn that runs in the call."""
        batch = self._batch
        if self.open and batch.notices.listening:
            batch.notices.tell(ev.NestedEvent, batch.step, self._call.id, agent, depth, event)

    def suppressed(self, error: BaseException) -> None:
        """Report an error that must not change the call's result."""
        self._batch.notices.suppressed(error)

    def claim_start(self) -> bool:
        """Whether a threaded tool may begin now; says so exactly once."""
        if self._unclaimed is None:
            return True  # it begins with its call, and nobody gives it up
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def give_up(self) -> bool:
        """Whether a threaded tool had not begun; it never will then."""
        return self.claim_start()
