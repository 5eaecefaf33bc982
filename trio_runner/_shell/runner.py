"""`ToolRunner`: one turn, as an async iterator of the model's messages.

The order of one step, held by ``tests/test_order_of_a_step.py``:

    open calls of the last reply:  before_tool_call -> batch -> commits ->
                                   after_tool_call;  iteration += 1
    tool list -> before_llm_call -> model -> the reply is normalised, decided
    by the machine and recorded -> after_llm_call -> its commit -> yield
    (at the end, before the yield: turn ended is recorded and committed,
    after_turn_complete, and what that changed is committed)

Between steps nothing is held open, no nursery and no scope: the state is the
turn machine's data. Each ``__anext__`` opens and closes its own; an abandoned
iterator is just a machine that ``__aexit__`` interrupts.

Whatever goes wrong comes to one place, `_stop`: the machine is interrupted and
what that made is recorded, synchronously; then what is not durable yet is
waited for, within the turn's grace.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, NoReturn, Self

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
import trio_runner._shell.finishing as finishing
import trio_runner._shell.leaving as leaving
from trio_runner._core.errors import (
    BusyError,
    HistoryError,
    JournalError,
    NotEnteredError,
    StrayCancellationError,
    TurnInterruptedError,
    UsageError,
)
from trio_runner._core.normalise import normalise_reply
from trio_runner._core.params import DEFAULT_PARAMS, RequestParams
from trio_runner._core.planning import ToolTable, plan_tool_calls
from trio_runner._core.reconcile import HistoryRollbackState, HistoryRollbackStatus
from trio_runner._core.turn import Finished, Phase, RunTools, Turn
from trio_runner._core.validity import has_content, input_problems
from trio_runner._shell.batch import Batch, BatchServices
from trio_runner._shell.commits import Commits
from trio_runner._shell.conversation import LastTurn
from trio_runner._shell.hooks import ToolRunnerHooks, merge_hooks
from trio_runner._shell.ki import call_unprotected
from trio_runner._shell.loop_agent import ToolLoopAgent
from trio_runner._shell.notices import Notices
from trio_runner.abc import ModelRequest, Observer, Tool

_log = logging.getLogger("trio_runner")

#: What a turn may be started with.
Input = str | v.Message | Sequence[v.Message]


class ToolRunner:
    """Runs one turn of an agent; use it once.

    ``async with`` around it takes the agent and, on leaving, stops whatever is
    not finished. Inside, iterate, or call `until_done`::

        async with agent.turn("And in Cairo?") as runner:
            async for message in runner: ...

    A message that asks for tools is yielded before they run.

    Args:
      agent: what to drive; see `ToolLoopAgent`.
      messages: the input: text, a message, or several. May carry results for
        calls that the history left open.
      params: over the agent's, field by field.
      hooks: run after the agent's own.
      observers: told as well as the agent's own.
      tools: instead of the agent's, for this turn.
      resume: go on with the agent's unfinished turn; ``messages`` must be ().
    """

    def __init__(
        self,
        agent: ToolLoopAgent,
        messages: Input = (),
        *,
        params: RequestParams | None = None,
        hooks: ToolRunnerHooks | None = None,
        observers: Iterable[Observer] = (),
        tools: Sequence[Tool] | None = None,
        resume: bool = False,
    ) -> None:
        config = agent.config
        self._agent: Final = agent
        self._config: Final = config
        self._conversation: Final = agent.conversation
        self._input: Final = _as_input(messages)
        if resume == any(self._input):
            raise ValueError("a new turn needs input, and a resumed one takes none")
        self._resume: Final = resume
        self._params = _resolved(params, config.params)
        #: The params of the newest model call; its batch runs with them.
        self._asked_with = self._params
        own = getattr(agent, "tool_runner_hooks", None)
        self._hooks: Final = merge_hooks(config.hooks, own, hooks)
        self._notices: Final = Notices((*config.observers, *observers))
        self._tools: Final = tuple(tools) if tools is not None else None
        #: The tools as the model was last told, and how their names resolve.
        self._listed: Sequence[Tool] = ()
        self._table: ToolTable[Tool] = ToolTable(())
        #: False when only hooks and observers can reach the runner (`ToolAgent.generate`).
        self.is_held = True
        self._is_hooked: Final = self._hooks != ToolRunnerHooks()
        #: The machine; None before the block is entered.
        self._turn: Turn | None = None
        self._commits = Commits(None)
        self._commit_errors: list[JournalError] = []
        #: The newest reply.
        self._last: v.Message | None = None
        #: What the turn returns, once its end was decided and nothing overruled it.
        self._answer: v.Message | None = None
        self._batch: Batch | None = None
        #: The scope of the ``__anext__`` that is under way; None between steps.
        self._scope: trio.CancelScope | None = None
        #: Set when that ``__anext__`` is through.
        self._idle = trio.Event()
        #: Whether the block was entered, and whether it was left.
        self._entered = False
        self._left = False
        #: Whether the observers were told of the end.
        self._end_told = False
        #: When the turn's time is up, on trio's clock.
        self._deadline = math.inf
        #: When finishing must be over; fixed by the first interrupt.
        self._grace_deadline: float | None = None

    # --- what the turn is -------------------------------------------------------

    @property
    def agent(self) -> ToolLoopAgent:
        """What this runner drives."""
        return self._agent

    @property
    def iteration(self) -> int:
        """Finished follow-ups: 0 in every hook of the first step."""
        return self._turn.iteration if self._turn is not None else 0

    @property
    def is_done(self) -> bool:
        """Whether the turn has ended."""
        return self._turn is not None and self._turn.phase is Phase.ENDED

    @property
    def end_reason(self) -> v.EndReason | None:
        """Why the turn ended; None while it goes on."""
        return self._turn.end_reason if self._turn is not None else None

    @property
    def last_message(self) -> v.Message | None:
        """The model's newest message."""
        return self._last

    @property
    def turn_messages(self) -> tuple[v.Message, ...]:
        """The turn so far, input first: closed steps only."""
        return self._turn.messages if self._turn is not None else ()

    @property
    def delta_messages(self) -> tuple[v.Message, ...]:
        """What the next model call sends beyond what the model side has."""
        return tuple(self._turn.delta) if self._turn is not None else ()

    @property
    def usage(self) -> v.Usage:
        """The sum over the turn's model calls."""
        return self._turn.usage if self._turn is not None else v.Usage()

    @property
    def commit_errors(self) -> tuple[JournalError, ...]:
        """What the journal could not do during this turn."""
        return tuple(self._commit_errors)

    @property
    def observer_errors(self) -> int:
        """How many times an observer raised."""
        return self._notices.errors

    @property
    def rollback(self) -> HistoryRollbackState | None:
        """What the end of the turn did to the history; None before."""
        turn = self._turn
        if turn is None or turn.rollback is None or turn.history is self._conversation.history:
            return turn.rollback if turn is not None else None
        count = len(self._conversation.history)
        disabled = HistoryRollbackStatus.HISTORY_DISABLED
        return HistoryRollbackState(disabled, count, count, ())

    @property
    def request_params(self) -> RequestParams:
        """The turn's settings; a hook may set new ones, which hold from the next model call on."""
        return self._params

    @request_params.setter
    def request_params(self, params: RequestParams) -> None:
        self._params = params.over(self._params)

    # --- what hooks and callers may do ------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def append_messages(self, *messages: str | v.Message) -> None:
        """Add messages for the next model call; they go behind any open results.

        Raises:
          TurnEndedError: no further model call will come.
          HistoryError: one of them is no plain message; nothing was added.
        """
        turn = self._require_turn("append messages")
        given = tuple(
            [v.Message.user(each) if isinstance(each, str) else each for each in messages]
        )
        problems = input_problems(given)
        if problems:
            raise HistoryError(problems)
        turn.input_added(given)
        self._commits.add(r.InputAdded(turn.number, given))

    @trio.lowlevel.enable_ki_protection
    def replace_history(self, messages: Iterable[v.Message]) -> None:
        """Put ``messages`` in the place of the history; an open step stays open behind them.

        Raises:
          HistoryError: they are not a valid history; nothing was changed.
        """
        turn = self._require_turn("replace the history")
        self._conversation.replace_history(messages, turn)

    @trio.lowlevel.enable_ki_protection
    def deny(self, call_id: str, reason: str) -> None:
        """Refuse one call of the batch that is about to run (in ``before_tool_call``).

        Raises:
          UsageError: no batch is about to run, or it has no open call of that id.
        """
        if self._batch is None:
            raise UsageError(f"cannot deny call {call_id!r}: no batch is about to run")
        self._batch.deny(call_id, reason)

    @trio.lowlevel.enable_ki_protection
    def cancel_call(self, call_id: str) -> bool:
        """Stop one call, running or waiting, and keep the turn. No checkpoint.

        Returns:
          Whether it hit: False when the call is not open (any more).
        """
        if self._batch is not None:
            return self._batch.cancel_call(call_id)
        turn = self._turn
        position = turn.position_of(call_id) if turn is not None else None
        if turn is None or turn.reply is None or position is None:
            return False
        # The message that asks was yielded, and its batch has not begun.
        step, result = turn.step, stand_ins.call_withdrawn(turn.reply.tool_calls[position])
        turn.tool_finished(position, result)
        self._commits.add(r.ToolFinished(turn.number, step, result))
        if self._notices.listening:
            self._notices.tell(ev.CallFinished, step, result)
        return True

    # --- driving ----------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Take the agent for this turn and record its input.

        Checkpoint: yes, before anything is changed.

        Raises:
          BusyError: the agent has a turn running, or this runner was used before.
          HistoryError: the input is no valid message.
          NothingToResumeError: there is no unfinished turn.
        """
        await trio.lowlevel.checkpoint()
        if self._entered:
            raise BusyError("a runner runs one turn; make a new one with agent.turn(...)")
        self._conversation.acquire(self)
        try:
            self._begin()
        except BaseException:
            self._conversation.release(self)
            raise
        self._entered = True
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop what is not finished, wait for what is not durable, free the agent.

        Checkpoint: only when leaving without an exception. Takes at most
        ``grace`` seconds from the turn's first interrupt on.
        """
        self._left = True
        try:
            if self._scope is not None:
                # Another task is in __anext__: stop it, and let it finish.
                self._scope.cancel()
                await self._finish(self._idle.wait, exc)
            self._interrupt(v.EndReason.INTERRUPTED)
            if not isinstance(exc, GeneratorExit):
                await self._finish_commits(exc)
        finally:
            self._tell_end()
            self._conversation.release(self)
            self._conversation.commits.on_failure = _ignore
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()

    def __aiter__(self) -> Self:
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> v.Message:
        """Run to the model's next message.

        Checkpoint: always. If cancelled, the turn is interrupted: finished
        results are kept, open calls are answered, and later calls stop the iteration.

        Raises:
          NotEnteredError: outside ``async with``.
          BusyError: another task is in here.
          TurnTimeoutError: the turn's own deadline passed.
          BaseException: what ended the turn, bare (contract C7).
        """
        turn = self._require_turn("iterate")
        if self._scope is not None:
            raise BusyError("another task is iterating this runner; one task at a time")
        if self._left or turn.phase is Phase.ENDED:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        message = None
        self._scope = scope = trio.CancelScope(deadline=self._deadline)
        self._idle = trio.Event()
        try:
            with scope:
                message = await self._step(turn)
            if message is None:
                self._raise_stopped()
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            raise await self._stop(error)
        finally:
            self._scope = None
            self._idle.set()
        return message

    @trio.lowlevel.enable_ki_protection
    async def until_done(self) -> v.Message:
        """Run the turn to its end and return the model's last message.

        Enters the runner when that was not done. Checkpoint: always.

        Raises:
          TurnInterruptedError: the turn was interrupted before and has no message to return.
          BaseException: as ``__anext__``.
        """
        if self._entered:
            return await self._drive()
        async with self:
            message = await self._drive()
        return message

    async def _drive(self) -> v.Message:
        async for _ in self:
            pass
        if self._answer is not None:
            return self._answer
        match self.end_reason:
            case v.EndReason.INTERRUPTED | v.EndReason.TIMED_OUT | v.EndReason.FAILED as reason:
                what = f"ended {reason.value}: agent.resume() goes on from there"
            case None:
                what = "was left: agent.resume() goes on from there"
            case reason:
                what = f"ended {reason.value}, but was cut while it ended: see agent.history"
        raise TurnInterruptedError(f"no message to return: the turn {what}", self.end_reason)

    # --- one step ---------------------------------------------------------------

    def _begin(self) -> None:
        """Start the turn: all of it synchronous."""
        conversation = self._conversation
        given, results = self._input
        problems = input_problems(given)
        if problems:
            raise HistoryError(problems)
        strict = self._config.durability == "strict"
        conversation.commits.begin_turn(self._commit_failed, strict=strict)
        if self._resume:
            self._turn = turn = self._resume_turn()
        else:
            if self._params.use_history:
                conversation.match_results(results)
                conversation.heal()
                turn = conversation.new_turn()
            elif results:
                raise HistoryError(["results for open calls need the history (use_history)"])
            else:
                turn = conversation.new_turn_aside()
            self._turn = turn
            turn.input_added(given)
        if turn.history is conversation.history:
            self._commits = conversation.commits
        self._commits.add(r.TurnStarted(turn.number, given, self._resume))
        conversation.tells_last_turn(self._last_turn)
        conversation.grace_deadline = -math.inf
        self._notices.begin(turn.number)
        if self._notices.listening:
            self._notices.tell(ev.TurnStarted, given, self._resume)
        if self._params.turn_timeout is not None:
            self._deadline = trio.current_time() + self._params.turn_timeout

    def _resume_turn(self) -> Turn:
        conversation = self._conversation
        turn = conversation.unfinished_turn()
        turn.resumed()
        conversation.answer_started(turn)
        replies = [message for message in turn.messages if message.role == "assistant"]
        self._last = replies[-1] if replies else None
        return turn

    async def _step(self, turn: Turn) -> v.Message:
        """From one message to the next."""
        match turn.next_action():
            case RunTools():
                await self._run_tools(turn)
            case _:
                pass
        match turn.next_action():
            case Finished():
                # A crash came between the answer and the end of its turn.
                reply = self._last
                assert reply is not None
            case _:
                reply = await self._ask(turn)
                if self._hooks.after_llm_call is not None:
                    await call_unprotected(self._hooks.after_llm_call, self, reply)
        await self._settle()
        match turn.next_action():
            case Finished():
                await self._complete(turn, reply)
            case _:
                pass
        return reply

    async def _ask(self, turn: Turn) -> v.Message:
        """One model call; the reply is recorded in the step in which it arrives."""
        await self._list_tools()
        if self._hooks.before_llm_call is not None:
            await call_unprotected(self._hooks.before_llm_call, self, tuple(turn.delta))
        params = self._params
        request = ModelRequest(
            turn.delta, turn.history.view(), self._listed, params, self._config.instruction
        )
        step = turn.replies
        await trio.lowlevel.checkpoint_if_cancelled()
        began = trio.current_time()
        if self._notices.listening:
            self._notices.tell(ev.ModelCallStarted, step)
        raw = await call_unprotected(self._agent.reply, request, self._emit_delta)
        reply = normalise_reply(raw, turn.history.ids)
        made = turn.model_replied(reply, params.max_iterations)
        self._asked_with = params
        self._last = reply
        if self._commits.keeps:
            self._commits.add(
                r.ModelFinished(turn.number, step, reply),
                *[r.ToolFinished(turn.number, step, result) for result in made],
            )
        if self._notices.listening:
            duration = trio.current_time() - began
            self._notices.tell(ev.ModelCallFinished, step, reply, duration)
            for result in made:
                self._notices.tell(ev.CallFinished, step, result)
        return reply

    @trio.lowlevel.enable_ki_protection
    def _emit_delta(self, text: str) -> None:
        if self._notices.listening and self._turn is not None:
            self._notices.tell(ev.TextDelta, self._turn.replies, text)

    async def _list_tools(self) -> None:
        tools = self._tools
        if tools is None:
            tools = await call_unprotected(self._agent.list_tools)
        if tools is not self._listed:
            self._table = ToolTable(tools)
            self._listed = tools

    async def _run_tools(self, turn: Turn) -> None:
        """The open calls of the last reply, with their hooks."""
        reply = turn.reply
        if reply is not None:
            if self._resume:
                await self._list_tools()
            plan = plan_tool_calls(reply, self._table)
            params = self._asked_with
            services = BatchServices(
                self._agent,
                self._conversation,
                self._commits,
                self._notices,
                params,
                self._config.commit_timeout,
                self.is_held or self._is_hooked or self._notices.listening,
                self._resume,
            )
            self._batch = Batch(turn, plan, services)
            try:
                await self._run_batch(turn, reply, self._batch)
            finally:
                self._batch = None
        turn.step_done()

    async def _run_batch(self, turn: Turn, reply: v.Message, batch: Batch) -> None:
        if self._notices.listening:
            self._notices.tell(ev.BatchPlanned, turn.step, reply.tool_calls)
        hook = self._hooks.before_tool_call
        if hook is not None:
            try:
                await call_unprotected(hook, self, reply)
            except Exception:
                batch.deny_all("the check before the tools failed.")
                raise
        await batch.run()
        if batch.attached:
            attached = tuple(batch.attached)
            turn.input_added(attached)
            self._commits.add(r.InputAdded(turn.number, attached))
        await self._settle()
        batch.raise_fatal()
        if self._hooks.after_tool_call is not None:
            await call_unprotected(self._hooks.after_tool_call, self, reply)

    async def _complete(self, turn: Turn, reply: v.Message) -> None:
        """The decided end: recorded and committed, then the last hook."""
        reason = turn.finish()
        self._answer = reply
        self._commits.add(r.TurnEnded(turn.number, reason))
        if reason is v.EndReason.MAX_ITERATIONS:
            _log.warning(
                "turn %d ended at its cap of %d iterations",
                turn.number,
                self._params.max_iterations,
            )
        await self._settle()
        if self._hooks.after_turn_complete is not None:
            await call_unprotected(self._hooks.after_turn_complete, self, reply)
            await self._settle()
        self._tell_end()

    async def _settle(self) -> None:
        """Wait until what was recorded is durable, within ``commit_timeout``."""
        durable = await self._commits.settle(self._config.commit_timeout)
        if durable and self._notices.listening:
            self._notices.tell(ev.Committed)

    # --- stopping ---------------------------------------------------------------

    def _raise_stopped(self) -> NoReturn:
        """Our own scope caught a cancel: another task left the block, or the time is up."""
        if self._left:
            raise StopAsyncIteration
        raise leaving.TurnTimeoutError(
            f"the turn took longer than its turn_timeout of {self._params.turn_timeout} seconds; "
            "its history is valid and agent.resume() goes on from there"
        )

    async def _stop(self, error: BaseException) -> BaseException:
        """End the turn because of ``error``; returns what leaves (contract C7)."""
        reason, leaves = self._judge(error)
        self._answer = None
        self._fix_grace()
        self._interrupt(reason)
        if isinstance(error, GeneratorExit):
            return error
        try:
            await self._finish_commits(leaves)
        finally:
            self._tell_end()
        if leaves is None:
            # The caller's cancel beats this error, and was not raised yet.
            self._notices.suppressed(error)
            await trio.lowlevel.checkpoint_if_cancelled()
            return error
        return leaves

    def _judge(self, error: BaseException) -> tuple[v.EndReason, BaseException | None]:
        """Why the turn ends, and what leaves; None for a Cancelled that is still to come."""
        inner = list(leaving.leaves(error))
        for leaf in inner:
            if isinstance(leaf, leaving.EXITS):
                return v.EndReason.INTERRUPTED, self._winner(leaf, error)
        if leaving.cancelled_from_outside():
            for leaf in inner:
                if isinstance(leaf, trio.Cancelled):
                    return v.EndReason.INTERRUPTED, self._winner(leaf, error)
            return v.EndReason.INTERRUPTED, None
        match error:
            case leaving.TurnTimeoutError():
                return v.EndReason.TIMED_OUT, error
            case StopAsyncIteration():
                return v.EndReason.INTERRUPTED, error
            case _:
                pass
        if all(leaving.is_cancellation(leaf) for leaf in inner):
            stray = StrayCancellationError(
                "a model, hook or toolset raised a cancellation by itself, and nobody had "
                "cancelled the turn"
            )
            stray.__cause__ = error
            return v.EndReason.FAILED, stray
        return v.EndReason.FAILED, error

    def _winner(self, leaf: BaseException, error: BaseException) -> BaseException:
        if leaf is not error:
            for other in leaving.leaves(error):
                if other is not leaf and not leaving.is_cancellation(other):
                    self._notices.suppressed(other)
        return leaf

    def _interrupt(self, reason: v.EndReason) -> None:
        """The turn stops now: synchronous, idempotent, and recorded at once."""
        turn = self._turn
        if turn is None:
            return
        if turn.phase is Phase.ENDED:
            return
        self._fix_grace()
        step = turn.step
        results = turn.interrupt(reason)
        assert turn.end_reason is not None
        self._commits.add(
            *[r.ToolFinished(turn.number, step, result) for result in results],
            r.TurnEnded(turn.number, turn.end_reason),
        )
        if self._notices.listening:
            for result in results:
                self._notices.tell(ev.CallFinished, step, result)
            self._notices.tell(ev.TurnInterrupted, turn.end_reason, results)

    def _tell_end(self) -> None:
        """Tell the observers, once, that nothing more will come."""
        reason = self.end_reason
        if self._notices.listening and reason is not None and not self._end_told:
            self._end_told = True
            self._notices.tell(ev.TurnEnded, reason)

    async def _finish_commits(self, leaves: BaseException | None) -> None:
        """Wait, shielded, for what is not durable yet, until the turn's grace is over."""
        if self._grace_deadline is None and self._commits.is_stalled:
            return  # a normal end: what was given up is not waited for again
        if not self._commits.settled:
            await self._finish(self._commits.wait, leaves)
            self._commits.give_up(self._config.grace)

    async def _finish(
        self, async_fn: Callable[[], Awaitable[object]], leaves: BaseException | None
    ) -> None:
        """Run ``async_fn`` shielded; ``leaves`` is reported when Ctrl-C overtakes it."""
        report = self._notices.suppressed
        try:
            await finishing.finish(async_fn, deadline=self._fix_grace(), report=report)
        except leaving.EXITS:
            overtaken = leaves is not None and not isinstance(leaves, leaving.EXITS)
            if leaves is not None and overtaken and not leaving.is_cancellation(leaves):
                report(leaves)
            raise

    def _fix_grace(self) -> float:
        """When finishing must be over: one time per turn, fixed at its first interrupt."""
        if self._grace_deadline is None:
            self._grace_deadline = trio.current_time() + self._config.grace
            self._conversation.grace_deadline = self._grace_deadline
        return self._grace_deadline

    def _commit_failed(self, error: JournalError) -> None:
        self._commit_errors.append(error)
        if self._notices.listening:
            self._notices.tell(ev.CommitFailed, error)

    def _last_turn(self) -> LastTurn | None:
        turn, rollback = self._turn, self.rollback
        if turn is None or turn.end_reason is None or rollback is None:
            return None
        return LastTurn(
            turn.number,
            turn.messages,
            turn.end_reason,
            rollback,
            turn.usage,
            tuple(self._commit_errors),
        )

    def _require_turn(self, what: str) -> Turn:
        if self._turn is None or not self._entered:
            raise NotEnteredError(
                f"cannot {what} outside the runner's block: write "
                "'async with agent.turn(...) as runner:' around it, or await "
                "agent.generate(...). An abandoned iterator could not finish its turn"
            )
        return self._turn


def _ignore(_: JournalError) -> None:
    """The turn is over; the log has the failure."""


def _resolved(params: RequestParams | None, agent_params: RequestParams) -> RequestParams:
    base = agent_params.over(DEFAULT_PARAMS)
    return params.over(base) if params is not None else base


def _as_input(messages: Input) -> tuple[tuple[v.Message, ...], tuple[v.ToolResult, ...]]:
    """Split the input into messages to send and results for open calls.

    Raises:
      TypeError: it is neither text nor messages.
      ValueError: it is blank.
    """
    match messages:
        case str():
            given: Sequence[v.Message] = (v.Message.user(messages),)
        case v.Message():
            given = (messages,)
        case _:
            given = tuple(messages)
    plain: list[v.Message] = []
    results: list[v.ToolResult] = []
    for message in given:
        if type(message) is not v.Message:
            raise TypeError(
                f"the input holds a {type(message).__name__}; expected text or Message values"
            )
        results.extend(message.tool_results)
        if message.tool_results and message.role == "user":
            message = attrs.evolve(message, tool_results=())
            if not message.content:
                continue
        if not (has_content(message.content) or message.tool_calls):
            raise ValueError("the input is blank; expected text or another content block")
        plain.append(message)
    return tuple(plain), tuple(results)
