"""`Batch`: the calls of one reply, run as child tasks of one nursery.

What holds, whatever is cancelled or raised meanwhile:

* Results land in the turn machine by position, in the step in which the tool
  returned: between the return and the record there is no await.
* No tool starts after a cancel: each child asks just before it calls.
* The status of a call is decided in one place, `_run`. A value that was
  returned beats everything; the caller's cancel beats a timeout.
* A call that gets no status here stays open; the machine's `interrupt` answers
  it, knowing whether it had started.

The start of a call is durable before its tool runs. Calls that begin together
are one commit; a call that waits (behind a barrier, a limit, a named limiter)
is recorded when it begins, so that "not started" stays true after a crash.
"""

from __future__ import annotations

import contextvars
import functools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.recovery as recovery
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
from trio_runner._core.convert import (
    cap_result,
    describe_error,
    is_short_text,
    result_from_value,
)
from trio_runner._core.errors import (
    FatalToolError,
    InternalError,
    InvalidArgumentsError,
    ToolError,
    UsageError,
)
from trio_runner._core.json_data import copy_json, safe_text
from trio_runner._core.limits import LimitReached
from trio_runner._core.open_step import OpenStep
from trio_runner._core.params import RequestParams
from trio_runner._core.turn import Turn
from trio_runner._shell.barriers import groups
from trio_runner._shell.commits import Commit, Commits
from trio_runner._shell.context import BatchContext, CallContext, CutTurn, TurnContext
from trio_runner._shell.conversation import Conversation
from trio_runner._shell.ki import call_pair_unprotected
from trio_runner._shell.limits import LimitScope, Ration, scopes_around
from trio_runner._shell.loop_agent import Planned, ToolLoopAgent
from trio_runner._shell.notices import Notices
from trio_runner._shell.slots import Slot
from trio_runner.abc import Tool


@attrs.frozen(eq=False)
class Queue:
    """The calls of a group that wait because ``max_parallel_tools`` run already."""

    waiting: deque[Planned]
    nursery: trio.Nursery
    context: contextvars.Context


@attrs.define(eq=False)  # not frozen, which is quicker to make; one per batch
class BatchServices:
    """What a batch needs of the turn it belongs to.

    Strictly private, never changed.

    Attributes:
      can_cancel_calls: somebody can reach `Batch.cancel_call`, so each call gets a scope.
      resumed: whether the turn goes on after its end or a crash.
    """

    agent: ToolLoopAgent
    conversation: Conversation
    commits: Commits
    notices: Notices
    params: RequestParams
    commit_timeout: float
    can_cancel_calls: bool
    resumed: bool
    context: TurnContext


class Batch:
    """The open calls of the present step of ``turn``.

    Args:
      plan: one entry per call of the reply, in order.
    """

    def __init__(self, turn: Turn, plan: Sequence[Planned], services: BatchServices) -> None:
        self._turn = turn
        self._plan = plan
        self._services = services
        self._agent = services.agent
        self._notices = services.notices
        self._params = services.params
        self._step = turn.step
        #: Whether anything is recorded at all.
        self._records = services.commits.keeps
        #: Set once the first tool may run; from then on nothing can be denied.
        self._begun = False
        #: Reasons by position, from `deny`.
        self._denials: dict[int, str] = {}
        #: The waits of calls for a slot of a named limiter, by position.
        self._waiting: dict[int, trio.CancelScope] = {}
        #: The running calls that have a scope, by position.
        self._running: dict[int, CallContext] = {}
        self._context = BatchContext(
            services.context,
            services.notices,
            self._step,
            services.conversation.key_prefix(turn),
            services.resumed,
        )
        step = turn.open_step
        #: By position: the starts of the calls that a crash cut and that run again.
        self._cut: dict[int, r.ToolStarted] = step.starts if step is not None else {}
        #: The limit that kept some of the calls from running; None: they all could.
        self.limit: LimitReached | None = None
        #: Errors of tools that end the turn.
        self._fatal: list[BaseException] = []

    # --- from hooks and callers -------------------------------------------------

    def deny(self, call_id: str, reason: str) -> bool:
        """Refuse one call before the batch begins; False when it has its result already.

        Raises:
          UsageError: the batch has begun, or none of its calls has the id.
        """
        if self._begun or all(planned.call.id != call_id for planned in self._plan):
            why = "the batch has begun" if self._begun else "no call of the batch has that id"
            raise UsageError(f"cannot deny call {call_id!r}: {why}; deny in before_tool_call")
        position = self._turn.position_of(call_id)
        if position is None:
            # The hook is called again when a batch goes on, and says again what it said.
            return False
        self._denials[position] = safe_text(str(reason)) or "no reason was given."
        return True

    def deny_all(self, reason: str) -> None:
        """Answer every open call ``denied``; a reason given by `deny` is kept."""
        for planned in self._plan:
            if self._turn.is_open(planned.position):
                self._denials.setdefault(planned.position, reason)
        self._answer_refused()

    def cancel_call(self, call_id: str) -> bool:
        """Stop one call, running or waiting; False when it is not open any more."""
        position = self._turn.position_of(call_id)
        if position is None:
            return False
        running = self._running.get(position)
        if running is not None and running.scope is not None:
            running.cancelled = True
            running.scope.cancel()
            return True
        step = self._turn.open_step
        if self._turn.is_started(position) and not (step is not None and step.is_cut(position)):
            return False
        result = stand_ins.call_withdrawn(self._plan[position].call)
        self._refuse(position, result, "it was cancelled before it began once more")
        waiting = self._waiting.get(position)
        if waiting is not None:
            waiting.cancel()
        return True

    def hold_open(self) -> None:
        """Record what the calls wait for that are still open when the batch is through."""
        raise InternalError("a batch without calls that wait left some open")

    # --- running ----------------------------------------------------------------

    async def run(self) -> None:
        """Run every open call to its result.

        Cancellation: children are cancelled and waited for; what they returned
        is kept; calls without a result stay open for `Turn.interrupt`.

        Raises:
          BaseException: what must leave the turn, by the rule of ``leaving.pick``.
        """
        self._begun = True
        self._answer_refused()
        scopes, step = scopes_around(), self._turn.open_step
        ration = self._ration(scopes, step) if scopes and step is not None else None
        waiting = [self._plan[position] for position in self._turn.open_positions]
        try:
            for group in groups(waiting, parallel=self._params.parallel_tool_calls):
                await self._run_group(group)
        finally:
            if ration is not None:
                ration.give_back()

    def _ration(self, scopes: tuple[LimitScope, ...], step: OpenStep) -> Ration:
        """Take the calls that the limits have left, and answer the others."""
        ration = Ration(scopes, step, self._turn.open_positions)
        self.limit, why = ration.limit, str(ration.limit)
        for position in ration.over:
            self._refuse(position, stand_ins.over_limit(self._plan[position].call, why), why)
        return ration

    @property
    def is_fatal(self) -> bool:
        """Whether a tool raised what ends the turn."""
        return bool(self._fatal)

    def report_fatal(self) -> None:
        """Something else ends the turn: what tools wanted to end it with must not be lost."""
        for error in self._fatal:
            self._notices.suppressed(error)

    def raise_fatal(self) -> None:
        """Raise the errors that end the turn: one bare, several as a group."""
        match self._fatal:
            case []:
                pass
            case [error]:
                raise error
            case errors:
                raise BaseExceptionGroup("several tools ended the turn", errors)

    def _answer_refused(self) -> None:
        for planned in self._plan:
            position = planned.position
            if planned.refusal is None and not self._denials:
                continue  # nearly always
            if not self._turn.is_open(position):
                continue
            if position in self._denials:
                reason = self._denials[position]
                result = stand_ins.denied(planned.call, reason)
                self._refuse(position, result, f"that was denied: {reason}")
            elif planned.refusal is not None and self._begun:
                why = "there is no tool of that name any more"
                self._refuse(position, planned.refusal, why)

    def _refuse(self, position: int, result: v.ToolResult, why: str) -> None:
        """Answer a call that does not run; it may have run before a crash."""
        self._record(position, recovery.without_running(self._turn, position, result, why))

    async def _run_group(self, group: Sequence[Planned]) -> None:
        limit = self._params.max_parallel_tools
        first, rest = (group, ()) if limit is None else (group[:limit], group[limit:])
        if self._records:
            free = [planned for planned in first if tool_of(planned).limiter is None]
            await self._durable(self._begin(free))
        try:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                if rest:
                    queue = Queue(deque(rest), nursery, contextvars.copy_context())
                    for planned in first:
                        nursery.start_soon(self._link, planned, queue, name=planned.call.name)
                else:
                    for planned in group:
                        # One frame less where nothing is waited for.
                        tool = planned.tool
                        waits = tool is not None and tool.limiter is not None
                        child = self._child if waits else self._run
                        nursery.start_soon(child, planned, name=planned.call.name)
        except BaseExceptionGroup as group_error:
            raise leaving.pick(group_error, self._notices.suppressed) from None

    @trio.lowlevel.enable_ki_protection
    async def _child(self, planned: Planned) -> None:
        limiter = tool_of(planned).limiter
        if limiter is None:
            await self._run(planned)
        elif self._turn.is_open(planned.position):
            slot = Slot(limiter)
            self._waiting[planned.position] = slot.waiting
            async with slot:
                del self._waiting[planned.position]
                if self._turn.is_open(planned.position):
                    await self._durable(self._begin([planned]))
                    await self._run(planned)

    @trio.lowlevel.enable_ki_protection
    async def _link(self, planned: Planned, queue: Queue, *, begun: bool = True) -> None:
        """Run ``planned``, then start the next one that waits: one link of a chain.

        There are as many chains as calls may run at once. The next call gets a
        task of its own, with the context variables that the batch began with.
        """
        if not begun and tool_of(planned).limiter is None and self._turn.is_open(planned.position):
            await self._durable(self._begin([planned]))
        await self._child(planned)
        self._follow(queue)

    def _follow(self, queue: Queue) -> None:
        """Start the next call that waits, where one does."""
        if queue.waiting:
            following = queue.waiting.popleft()
            link = functools.partial(self._link, following, queue, begun=False)
            queue.context.run(queue.nursery.start_soon, link, name=following.call.name)

    def _begin(self, group: Iterable[Planned]) -> Commit | None:
        """Record that the calls may run from here on, as one commit."""
        if not self._records:
            return None
        conversation, turn = self._services.conversation, self._turn
        return self._services.commits.add(
            *[
                conversation.started_record(
                    turn,
                    planned.call,
                    tool=tool_of(planned).name,
                    idempotent=tool_of(planned).idempotent,
                    after=self._cut.get(planned.position),
                )
                for planned in group
                if turn.is_open(planned.position)
            ]
        )

    async def _durable(self, commit: Commit | None) -> None:
        if self._records:
            await self._services.commits.settle(self._services.commit_timeout, commit)

    @trio.lowlevel.enable_ki_protection
    async def _run(self, planned: Planned) -> None:
        """Run one call and decide its status."""
        await trio.lowlevel.checkpoint_if_cancelled()
        position, call, tool = planned.position, planned.call, planned.tool
        assert tool is not None, "a planned call without a refusal has a tool"
        turn = self._turn
        if not turn.is_open(position):
            return
        arguments, cut = copy_json(call.arguments), self._cut.get(position)
        context = CallContext(call, arguments, self._context, tool.threaded, cut)
        context.make_current()
        timeout = tool.timeout if tool.timeout is not None else self._params.tool_timeout
        scope = None
        if timeout is not None or self._services.can_cancel_calls:
            context.scope = scope = trio.CancelScope()
            if timeout is not None:
                context.timeout = timeout
                scope.deadline = context.began + timeout
            self._running[position] = context
        if not tool.threaded:
            turn.tool_started(position)
        if self._notices.listening:
            self._notices.tell(ev.CallStarted, self._step, call, context.attempt)
        try:
            if scope is None:
                value = await call_pair_unprotected(self._agent.call_tool, planned, context)
                self._returned(planned, context, value)
            else:
                with scope:
                    value = await call_pair_unprotected(self._agent.call_tool, planned, context)
                    self._returned(planned, context, value)
        except leaving.EXITS:
            raise
        except BaseException as error:  # noqa: BLE001  _raised raises what must leave
            # The one place where everything is looked at: a tool may raise what
            # it likes, and only what comes from outside may leave.
            self._raised(planned, context, error)
        else:
            if context.open:
                self._stopped(planned, context)
            return  # it has its result
        finally:
            if tool.threaded and context.open and not context.give_up():
                turn.tool_started(position)
            context.open = False
            if context.cut is not None:
                self._note_cut(position, context.cut)
            if scope is not None:
                self._running.pop(position, None)
        if turn.is_open(position):
            # The caller cancelled, and the tool said so in a foreign loop's words.
            await trio.lowlevel.checkpoint_if_cancelled()

    def _note_cut(self, position: int, cut: CutTurn) -> None:
        """A turn that ran in a call was cut: by what ends this turn, unless the call goes on."""
        is_open = self._turn.is_open(position)
        if is_open:
            # What answers the call is to name the turn that ran in it.
            self._turn.tool_noted(position, cut.meta)
        if is_open or leaving.cancelled_from_outside():
            self._services.context.spent = max(self._services.context.spent, cut.spent)

    # --- outcomes: no await from here on ----------------------------------------

    def _returned(self, planned: Planned, context: CallContext, value: object) -> None:
        call = planned.call
        if (
            type(value) is v.ToolResult
            and value.call_id == call.id
            and value.name == call.name
            and type(value.duration) is float
            and (value.status is _OK or value.status not in _NEVER_RAN)
            and is_short_text(value, self._params.max_result_bytes)
        ):
            # As the agent made it, nearly always: nothing to convert and nothing to cut.
            context.open = False
            self._record(planned.position, value, context.attached)
            return
        result = result_from_value(
            value, call_id=call.id, name=call.name, duration=context.duration
        )
        if result.status in _NEVER_RAN:
            # It did run: a status that says otherwise would not be true.
            result = attrs.evolve(result, status=v.CallStatus.ERROR)
        self._finished(planned, context, result)

    def _stopped(self, planned: Planned, context: CallContext) -> None:
        """The call's own scope caught a cancel: by `cancel_call`, or its timeout."""
        call = planned.call
        if context.scope is None:
            raise InternalError(f"call {call.id!r} ended without a result")
        if tool_of(planned).threaded and context.give_up():
            why = "was cancelled" if context.cancelled else "waited for a thread too long"
            result = stand_ins.call_withdrawn(call, why)
            result = recovery.without_running(
                self._turn, planned.position, result, f"it {why} before it began once more"
            )
            self._finished(planned, context, result)
            return
        if context.cancelled or context.timeout is None:
            result = stand_ins.call_cancelled(call)
        else:
            result = stand_ins.call_timed_out(call, context.timeout)
        meta = result.meta if context.cut is None else context.cut.meta
        result = attrs.evolve(result, duration=context.duration, meta=meta)
        self._finished(planned, context, result)

    def _raised(self, planned: Planned, context: CallContext, error: BaseException) -> None:
        """Answer the call with its error, unless the error comes from outside: then raise it."""
        if not context.open:
            # The value was recorded; what the scope's exit raises must leave.
            raise error
        inner = list(leaving.leaves(error))
        outside = leaving.cancelled_from_outside()
        cancels = [leaf for leaf in inner if leaving.is_cancellation(leaf)]
        if any(not isinstance(leaf, Exception) and leaf not in cancels for leaf in inner):
            raise error
        if outside and any(isinstance(leaf, trio.Cancelled) for leaf in cancels):
            raise error
        if len(cancels) == len(inner):
            if outside:
                return  # the call stays open, and the caller's Cancelled comes after this
            if context.scope is not None and context.scope.cancel_called:
                self._stopped(planned, context)
                return
        call = planned.call
        match error:
            case InvalidArgumentsError() if str(error).strip():
                # It was refused before the tool's function: no time was spent in it.
                text = safe_text(str(error))
                result = stand_ins.invalid_arguments(call, text)
                if context.attempt > 1:
                    why = "its tool does not take these arguments any more"
                    result = stand_ins.not_run_again(call, why)
                self._finished(planned, context, result)
                return
            case ToolError() if str(error).strip():
                result = stand_ins.failed(call, safe_text(str(error)))
            case _:
                text = describe_error(error)
                if len(cancels) == len(inner):
                    text = f"The tool was cancelled from within, by nobody's request: {text}"
                result = stand_ins.failed(call, text)
        self._finished(planned, context, attrs.evolve(result, duration=context.duration))
        self._fatal += [leaf for leaf in inner if isinstance(leaf, FatalToolError)]

    def _finished(self, planned: Planned, context: CallContext, result: v.ToolResult) -> None:
        context.open = False
        capped = cap_result(result, self._params.max_result_bytes)
        self._record(planned.position, capped, context.attached)

    def _record(
        self, position: int, result: v.ToolResult, attached: tuple[v.Message, ...] = ()
    ) -> None:
        turn, step = self._turn, self._step
        turn.tool_finished(position, result, attached)
        if self._records:
            self._services.commits.add(r.ToolFinished(turn.number, step, result, attached))
        if self._notices.listening:
            self._notices.tell(ev.CallFinished, step, result)


_OK: Final = v.CallStatus.OK

#: What a tool that ran cannot say of itself.
_NEVER_RAN: Final = frozenset(
    {
        v.CallStatus.NOT_STARTED,
        v.CallStatus.LIMIT_REACHED,
        v.CallStatus.OUTPUT_CUT,
        v.CallStatus.UNKNOWN_AFTER_CRASH,
    }
)


def tool_of(planned: Planned) -> Tool:
    tool = planned.tool
    assert tool is not None, "a planned call without a refusal has a tool"
    return tool
