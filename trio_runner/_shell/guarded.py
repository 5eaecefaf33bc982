"""`GuardedBatch`: a batch in which some calls need somebody's word before they run.

What holds besides what ``batch.py`` says:

* A call that needs consent never runs without it. Whatever goes wrong with asking
  (the approver raises, says something else, the rule of who needs consent raises)
  keeps it from running.
* Each approver is asked in a child task of the batch, all those of one group at
  once, while the other calls of the group run. It holds no slot of a limiter and no
  place of ``max_parallel_tools``; its call gets in line when it is approved.
* What was decided is a fact: machine and records know it before anything is awaited,
  and its record comes before the one that its call starts.
* A call on which nobody has a word yet stays open, and so does all that is behind the
  next barrier. The turn is suspended then (``steps.py``).
* What was held once stays held, whatever its tool says in another process.
"""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
import trio_runner._shell.consent as consent
import trio_runner._shell.leaving as leaving
from trio_runner._core.approval import (
    Approve,
    Decision,
    Defer,
    Deny,
    as_edited,
    as_it_runs,
    edit_note,
    edit_problem,
    pending_call,
)
from trio_runner._core.errors import DecisionError, FatalToolError
from trio_runner._core.json_data import copy_json
from trio_runner._core.open_step import OpenStep
from trio_runner._core.turn import Turn
from trio_runner._shell.batch import Batch, BatchServices, Queue, tool_of
from trio_runner._shell.ki import call_sync_unprotected, call_unprotected
from trio_runner._shell.loop_agent import LoopConfig, Planned
from trio_runner.abc import ApprovalRequest, NeedsApproval, Tool

_log: Final = logging.getLogger("trio_runner")

#: What the model reads of a call whose approver failed.
_FAILED: Final = "whoever decides on this call could not be asked."


def needs_guard(config: LoopConfig, tools: Sequence[Tool], step: OpenStep | None) -> bool:
    """Whether a batch may hold calls that wait for a word, or that somebody had one on."""
    return (
        config.needs_approval is not False
        or (step is not None and bool(step.held or step.approved or step.edits))
        or any(tool.external or tool.needs_approval is not False for tool in tools)
    )


def make_batch(
    turn: Turn, plan: Sequence[Planned], services: BatchServices, tools: Sequence[Tool]
) -> Batch:
    """The batch of the present step: one that asks, where a call of it may wait for a word.

    Args:
      tools: those that the model was told of.
    """
    guarded = needs_guard(services.agent.config, tools, turn.open_step)
    return (GuardedBatch if guarded else Batch)(turn, plan, services)


class GuardedBatch(Batch):
    """A batch that asks. Arguments as for `Batch`."""

    def __init__(self, turn: Turn, plan: Sequence[Planned], services: BatchServices) -> None:
        #: The plan, with the arguments that run.
        self._guarded: list[Planned] = [as_it_runs(each, turn.open_step) for each in plan]
        super().__init__(turn, self._guarded, services)
        config = services.agent.config
        self._approver = config.approver
        #: By position: whether rules say that the call needs consent, asked once.
        self._ruled: dict[int, bool] = {}
        self._rule = config.needs_approval
        #: Chains of the present group that have nothing to run.
        self._idle = 0
        #: Whether a call of an earlier group waits for a word: nothing behind it may run.
        self._blocked = False
        for position, planned in enumerate(self._guarded):
            if planned.tool is None:
                # The application's answer needs no tool.
                if self._open_step.held.get(position) == "external":
                    self._guarded[position] = attrs.evolve(planned, refusal=None)
            elif planned.tool.external and position in self._open_step.approved:
                refusal = stand_ins.external_now(planned.call)
                self._guarded[position] = attrs.evolve(planned, refusal=refusal)

    @property
    def _open_step(self) -> OpenStep:
        step = self._turn.open_step
        assert step is not None, "while a batch has open calls, their step is open"
        return step

    def hold_open(self) -> None:
        """Record what each open call waits for; no call runs any more."""
        for position in self._turn.open_positions:
            waits_for = self._waits_for(self._guarded[position])
            if waits_for is not None:
                self._hold(position, waits_for)

    # --- running ----------------------------------------------------------------

    async def _run_group(self, group: Sequence[Planned]) -> None:
        if self._blocked:
            return
        # `cancel_call` may have answered some of them while earlier groups ran.
        group = [planned for planned in group if self._turn.is_open(planned.position)]
        waiting = [self._waits_for(planned) for planned in group]
        free = [planned for planned, waits in zip(group, waiting, strict=True) if waits is None]
        asked = [p for p, waits in zip(group, waiting, strict=True) if waits == "approval"]
        if asked and self._approver is not None:
            await self._run_and_ask(free, asked)
        elif free:
            await super()._run_group(free)
        self._blocked = any(self._turn.is_open(planned.position) for planned in group)

    async def _run_and_ask(self, free: Sequence[Planned], asked: Sequence[Planned]) -> None:
        for planned in asked:
            self._hold(planned.position, "approval")
        limit = self._params.max_parallel_tools or len(free) + len(asked)
        first, rest = free[:limit], free[limit:]
        self._idle = limit - len(first)
        if self._records and first:
            begun = [planned for planned in first if tool_of(planned).limiter is None]
            await self._durable(self._begin(begun))
        try:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                queue = Queue(deque(rest), nursery, contextvars.copy_context())
                for planned in first:
                    nursery.start_soon(self._link, planned, queue, name=planned.call.name)
                for planned in asked:
                    name = f"approver of {planned.call.name}"
                    nursery.start_soon(self._ask, planned, queue, name=name)
        except BaseExceptionGroup as group_error:
            raise leaving.pick(group_error, self._notices.suppressed) from None

    @trio.lowlevel.enable_ki_protection
    async def _link(self, planned: Planned, queue: Queue, *, begun: bool = True) -> None:
        # A call that was just approved must not be recorded as begun when a cancel came.
        await trio.lowlevel.checkpoint_if_cancelled()
        await super()._link(planned, queue, begun=begun)

    def _follow(self, queue: Queue) -> None:
        if not queue.waiting:
            self._idle += 1
        super()._follow(queue)

    # --- asking -----------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _ask(self, planned: Planned, queue: Queue) -> None:
        """Ask about one call, and let it get in line when it is approved."""
        await trio.lowlevel.checkpoint_if_cancelled()
        position = planned.position
        if not self._turn.is_open(position):
            return
        word = await self._word_on(planned)
        if word is not None and self._turn.is_open(position):
            self._decided(position, word)
        # The approver may have swallowed a cancel, or said it in a foreign loop's words.
        await trio.lowlevel.checkpoint_if_cancelled()
        if type(word) is Approve and self._turn.is_open(position):
            queue.waiting.append(self._guarded[position])
            if self._idle:
                self._idle -= 1
                self._follow(queue)

    async def _word_on(self, planned: Planned) -> Decision | None:
        """What the approver says; None when `cancel_call` made it needless, or the caller did."""
        approver, position = self._approver, planned.position
        assert approver is not None
        scope = self._waiting[position] = trio.CancelScope()
        request = self._request(planned)
        if self._notices.listening:
            self._notices.tell(
                ev.ApprovalRequested, self._step, planned.call, copy_json(request.arguments)
            )
        try:
            with scope:
                said = await call_unprotected(approver, request)
                return _as_word(said, self._turn.open_step, position)
        except BaseException as error:
            # An approver is the user's, and may raise what it likes.
            if leaving.must_leave(error):
                raise
            return self._unasked(planned, error)
        finally:
            del self._waiting[position]
        return None

    def _request(self, planned: Planned) -> ApprovalRequest:
        step, position = self._open_step, planned.position
        shown = pending_call(step, position, "approval")
        original = step.reply.tool_calls[position]
        return ApprovalRequest(
            call=attrs.evolve(original, arguments=copy_json(original.arguments)),
            tool=tool_of(planned),
            arguments=shown.arguments,
            arguments_hash=shown.arguments_hash,
            turn=self._turn.number,
            step=self._step,
        )

    def _unasked(self, planned: Planned, error: BaseException) -> Deny | None:
        """What an approver that raised means for its call; None: the caller's cancel comes."""
        inner = list(leaving.leaves(error))
        if leaving.cancelled_from_outside() and all(map(leaving.is_cancellation, inner)):
            return None
        self._failed(planned, error)
        self._fatal += [leaf for leaf in inner if isinstance(leaf, FatalToolError)]
        return Deny(_FAILED)

    def _failed(self, planned: Planned, error: BaseException) -> None:
        call_id = planned.call.id
        _log.error(
            "asking whether call %r may run failed; it does not run unasked",
            call_id,
            exc_info=error,
        )
        if self._notices.listening:
            self._notices.tell(ev.ApprovalFailed, self._step, call_id, error)

    # --- what is decided: no await from here on ---------------------------------

    def _decided(self, position: int, word: Decision) -> None:
        call = self._guarded[position].call
        match word:
            case Approve():
                records = consent.approve(self._turn, position, word)
                self._services.commits.add(*records)
                planned = self._guarded[position]
                self._guarded[position] = as_it_runs(planned, self._open_step)
                self._tell_decided(call, "approved", arguments=word.arguments)
            case Deny(reason=reason):
                self._tell_decided(call, "denied", reason=reason)
                self._record(position, consent.denied(self._turn, position, reason))
            case Defer():
                self._tell_decided(call, "deferred")

    def _tell_decided(
        self,
        call: v.ToolCall,
        verdict: Literal["approved", "denied", "deferred"],
        arguments: v.JSONObject | None = None,
        reason: str | None = None,
    ) -> None:
        if self._notices.listening:
            self._notices.tell(
                ev.ApprovalDecided, self._step, call.id, verdict, copy_json(arguments), reason
            )

    def _hold(self, position: int, waits_for: r.WaitsFor) -> None:
        self._services.commits.add(*consent.hold(self._turn, position, waits_for))

    def _record(
        self, position: int, result: v.ToolResult, attached: tuple[v.Message, ...] = ()
    ) -> None:
        if position in self._open_step.edits:
            result = as_edited(result)
            if result.duration is not None:  # else it did not run
                attached = (edit_note(self._guarded[position].call), *attached)
        super()._record(position, result, attached)

    # --- who needs consent --------------------------------------------------------

    def _waits_for(self, planned: Planned) -> r.WaitsFor | None:
        """What an open call waits for; None when it may run."""
        position, step = planned.position, self._open_step
        if position in step.approved:
            return None
        held = step.held.get(position)
        if held is not None:
            return held
        tool = tool_of(planned)
        if tool.external:
            return "external"
        if position not in self._ruled:
            rules = (self._rule, tool.needs_approval)
            self._ruled[position] = any(self._asks_for_consent(rule, planned) for rule in rules)
        return "approval" if self._ruled[position] else None

    def _asks_for_consent(self, rule: NeedsApproval, planned: Planned) -> bool:
        if rule is True or rule is False:
            return rule
        call = planned.call
        own = attrs.evolve(call, arguments=copy_json(call.arguments))
        try:
            said = call_sync_unprotected(rule, attrs.evolve(planned, call=own))
            if type(said) is bool:
                return said
            raise TypeError(f"the rule {rule!r} said {said!r}; expected True or False")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001  the rule is the user's
            self._failed(planned, error)
            return True


def _as_word(said: object, step: OpenStep | None, position: int) -> Decision:
    problem = None if step is None else edit_problem(step, position, said)
    if problem is not None:
        raise DecisionError([problem])
    match said:
        case Approve() | Deny() | Defer():
            return said
        case _:
            raise TypeError(
                f"the approver said {said!r}; expected Approve(...), Deny(...) or Defer()"
            )
