"""`ToolRunner`: one turn, as an async iterator of the model's messages.

Between steps nothing is held open, no nursery and no scope: the state is the
turn machine's data. Each ``__anext__`` opens and closes its own; an abandoned
iterator is just a machine that ``__aexit__`` interrupts.

What happens in a step is ``steps.py``; how a turn stops is ``ending.py``. Here
is who may call what when: entering, iterating, leaving, and what hooks may do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import trio

import trio_runner._core.records as r
import trio_runner._core.values as v
import trio_runner._shell.leaving as leaving
from trio_runner._core.copies import own_message
from trio_runner._core.errors import (
    BusyError,
    HistoryError,
    JournalError,
    LimitReachedError,
    NotEnteredError,
    TurnEndedError,
    TurnInterruptedError,
    UsageError,
)
from trio_runner._core.limits import LimitReached
from trio_runner._core.nested import nested_usage
from trio_runner._core.params import DEFAULT_PARAMS, RequestParams
from trio_runner._core.reconcile import HistoryRollbackState
from trio_runner._core.turn import Phase
from trio_runner._core.validity import input_problems
from trio_runner._shell.consent import answered_by, check_decisions
from trio_runner._shell.context import runs_inside
from trio_runner._shell.ending import Ending, LeftElsewhere
from trio_runner._shell.given import Input as Input
from trio_runner._shell.given import split_input
from trio_runner._shell.hooks import ToolRunnerHooks, check_hooks, merge_hooks
from trio_runner._shell.limits import LimitScope, first_deadline, scopes_around, time_limit
from trio_runner._shell.loop_agent import ToolLoopAgent
from trio_runner._shell.notices import Notices
from trio_runner._shell.recovering import recover
from trio_runner._shell.steps import Steps
from trio_runner._shell.structured import Wanted, value_in
from trio_runner.abc import Observer, Tool, UnknownPolicy


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
      unknown: asked, when resuming, about each call that a crash cut.
      decisions: when resuming, words on calls that wait; see `ToolAgent.resume`.
      output: what the turn must end in; see `ToolAgent.turn`, which makes it.
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
        unknown: UnknownPolicy | None = None,
        decisions: Mapping[str, object] | None = None,
        output: Wanted | None = None,
    ) -> None:
        config = agent.config
        self._agent: Final = agent
        self._conversation: Final = agent.conversation
        self._input: Final = split_input(messages)
        if resume == any(self._input):
            raise ValueError("a new turn needs input, and a resumed one takes none")
        if unknown is not None and not resume:
            raise ValueError("unknown= is asked when a turn is resumed, and this one is new")
        if unknown is not None and not callable(unknown):
            raise TypeError(f"unknown is {unknown!r}; expected 'async def policy(unknown)'")
        if decisions is not None and not resume:
            raise ValueError("decisions= are for a turn that is resumed, and this one is new")
        self._decisions: Final = dict(decisions or {})
        self._resume: Final = resume
        self._unknown: Final = unknown
        base = config.params.over(DEFAULT_PARAMS)
        self._params: Final = base if params is None else params.over(base)
        own = getattr(agent, "tool_runner_hooks", None)
        check_hooks(own, "the agent's tool_runner_hooks")
        self._hooks: Final = merge_hooks(config.hooks, own, hooks)
        self._notices: Final = Notices((*config.observers, *observers))
        self._tools: Final = tuple(tools) if tools is not None else None
        self._output: Final = output
        #: False when only hooks and observers can reach the runner (`ToolAgent.generate`).
        self.is_held = True
        #: The turn; None before the block is entered.
        self._steps: Steps | None = None
        #: The scope of the ``__anext__`` that is under way; None between steps.
        self._scope: trio.CancelScope | None = None
        #: Set when that ``__anext__`` is through; made by who waits for it.
        self._idle: trio.Event | None = None
        #: The task that is in ``__anext__``.
        self._stepper: trio.lowlevel.Task | None = None
        self._left = False

    # --- what the turn is -------------------------------------------------------

    @property
    def agent(self) -> ToolLoopAgent:
        """What this runner drives."""
        return self._agent

    @property
    def iteration(self) -> int:
        """Finished follow-ups: 0 in every hook of the first step."""
        return self._steps.turn.iteration if self._steps is not None else 0

    @property
    def is_done(self) -> bool:
        """Whether the turn has ended."""
        return self.end_reason is not None

    @property
    def end_reason(self) -> v.EndReason | None:
        """Why the turn ended; None while it goes on."""
        return self._steps.turn.end_reason if self._steps is not None else None

    @property
    def last_message(self) -> v.Message | None:
        """The model's newest message."""
        return self._steps.last if self._steps is not None else None

    @property
    def history(self) -> tuple[v.Message, ...]:
        """The agent's conversation so far: closed steps only, always valid."""
        return self._conversation.history.snapshot()

    @property
    def turn_messages(self) -> tuple[v.Message, ...]:
        """The turn so far, input first: closed steps only."""
        return self._steps.turn.messages if self._steps is not None else ()

    @property
    def delta_messages(self) -> tuple[v.Message, ...]:
        """What the next model call sends beyond what the model side has."""
        return tuple(self._steps.turn.delta) if self._steps is not None else ()

    @property
    def usage(self) -> v.Usage:
        """The sum over the turn's own model calls."""
        return self._steps.turn.usage if self._steps is not None else v.Usage()

    @property
    def nested_usage(self) -> v.Usage:
        """The sum over the turns of agents that ran as tools, to any depth: closed steps only."""
        return nested_usage(self.turn_messages)

    @property
    def limit(self) -> LimitReached | None:
        """Which limit ended the turn (`trio_runner.limits`); None: none did."""
        return self._steps.ending.limit if self._steps is not None else None

    @property
    def commit_errors(self) -> tuple[JournalError, ...]:
        """What the journal could not do during this turn."""
        return tuple(self._steps.ending.commit_errors) if self._steps is not None else ()

    @property
    def observer_errors(self) -> int:
        """How many times an observer raised."""
        return self._notices.errors

    @property
    def rollback(self) -> HistoryRollbackState | None:
        """What the end of the turn did to the history; None before."""
        return self._steps.ending.rollback if self._steps is not None else None

    @property
    def output(self) -> Any:
        """The value of the turn's structured answer, once there is one.

        Raises:
          UsageError: there is none yet, or none was asked for.
          StructuredOutputError: the turn ended without one.
        """
        return value_in(self._steps.answering if self._steps is not None else None)

    @property
    def request_params(self) -> RequestParams:
        """The turn's settings; a hook may set new ones, which hold from the next model call on."""
        return self._steps.params if self._steps is not None else self._params

    @request_params.setter
    def request_params(self, params: RequestParams) -> None:
        steps = self._running("set request_params")
        steps.params = params.over(steps.params)

    # --- what hooks and callers may do ------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def append_messages(self, *messages: str | v.Message) -> None:
        """Add messages for the next model call; they go behind any open results.

        Raises:
          TurnEndedError: no further model call will come.
          HistoryError: one of them is no plain message; nothing was added.
        """
        steps = self._running("append messages")
        given = tuple(
            [v.Message.user(each) if isinstance(each, str) else each for each in messages]
        )
        problems = input_problems(given)
        if problems:
            raise HistoryError(problems)
        given = tuple([own_message(message) for message in given])
        steps.turn.input_added(given)
        steps.commits.add(r.InputAdded(steps.turn.number, given))

    @trio.lowlevel.enable_ki_protection
    def replace_history(self, messages: Iterable[v.Message]) -> None:
        """Put ``messages`` in the place of the history; an open step stays open behind them.

        Raises:
          HistoryError: they are not a valid history; nothing was changed.
          TurnEndedError: the block was left.
        """
        steps = self._running("replace the history")
        self._conversation.replace_history(messages, steps.turn)

    @trio.lowlevel.enable_ki_protection
    def deny(self, call_id: str, reason: str) -> bool:
        """Refuse one call of the batch that is about to run (in ``before_tool_call``).

        Returns:
          Whether it is refused: False when it has its result already, in a batch that goes
          on after a crash or a suspension. That result stays.

        Raises:
          UsageError: no batch is about to run, or it has no call of that id.
        """
        batch = self._steps.batch if self._steps is not None else None
        if batch is None:
            raise UsageError(f"cannot deny call {call_id!r}: no batch is about to run")
        return batch.deny(call_id, reason)

    @trio.lowlevel.enable_ki_protection
    def cancel_call(self, call_id: str) -> bool:
        """Stop one call, running or waiting, and keep the turn. No checkpoint.

        Returns:
          Whether it hit: False when the call is not open (any more).
        """
        steps = self._steps
        if steps is None:
            return False
        if steps.batch is not None:
            return steps.batch.cancel_call(call_id)
        return steps.withdraw(call_id)

    # --- driving ----------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Take the agent for this turn and record its input.

        Checkpoint: yes, before anything is changed. A policy for unknown calls is
        asked before that as well.

        Raises:
          BusyError: the agent has a turn running, or this runner was used before.
          HistoryError: the input is no valid message.
          NothingToResumeError: there is no unfinished turn.
          DecisionError, TurnSuspendedError: as `ToolAgent.resume`.
        """
        await trio.lowlevel.checkpoint()
        if self._steps is not None:
            raise BusyError("a runner runs one turn; make a new one with agent.turn(...)")
        if self._conversation.is_busy and runs_inside(self._conversation):
            raise BusyError(
                "this was called from inside a tool of the agent's own running turn, which waits "
                "for the tool: it could never begin. Let the agent be a tool of itself "
                "(agent.add_agent_tool(agent)), or use agent.clone(), which has a history of "
                "its own"
            )
        self._conversation.acquire(self)
        try:
            self._begin(await self._recover() if self._resume else ())
        except BaseException:
            self._conversation.release(self)
            raise
        return self

    async def _recover(self) -> tuple[v.ToolResult, ...]:
        turn = self._conversation.unfinished_turn()
        can_ask = self._agent.config.approver is not None
        check_decisions(turn, self._decisions, can_ask=can_ask)
        max_bytes = self._params.max_result_bytes
        decided = answered_by(self._decisions)
        return await recover(self._agent, self._tools, self._unknown, max_bytes, decided)

    def _begin(self, recovered: tuple[v.ToolResult, ...]) -> None:
        given, results = self._input
        problems = input_problems(given)
        if problems:
            raise HistoryError(problems)
        self._steps = Steps(
            self,
            self._agent,
            given,
            results,
            params=self._params,
            hooks=self._hooks,
            notices=self._notices,
            tools=self._tools,
            resume=self._resume,
            recovered=recovered,
            decisions=self._decisions,
            output=self._output,
            can_cancel_calls=self.is_held
            or self._hooks != ToolRunnerHooks()
            or self._notices.listening,
        )

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
        ending = self._begun("leave").ending
        if self._stepper is not None and _descends_from(self._stepper):
            raise UsageError(
                "a hook or tool of a turn cannot leave the turn's block, which waits for it; "
                "cancel a scope around the turn instead"
            )
        self._left = True
        try:
            exit_error = await self._stop_other_task(ending, exc)
            ending.interrupt(v.EndReason.INTERRUPTED)
            if not leaving.is_closing(exc):
                await ending.finish_commits(exc)
        finally:
            ending.tell()
            self._conversation.release(self)
            self._conversation.commits.end_turn()
        if exit_error is not None:
            raise exit_error
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _stop_other_task(
        self, ending: Ending, exc: BaseException | None
    ) -> BaseException | None:
        """Stop a task that is in ``__anext__``, and wait for it as a nursery would.

        A tool's cleanup is the tool's, so there is no bound; a Ctrl-C meanwhile
        is returned, to be raised when nothing runs any more.
        """
        exit_error = None
        if self._scope is not None:
            self._scope.cancel()
            if self._idle is None:
                self._idle = trio.Event()
            idle = self._idle
            while not idle.is_set():
                try:
                    await ending.finish(idle.wait, exc, deadline=trio.current_time() + 1)
                except leaving.EXITS as error:
                    exit_error = error
        return exit_error

    def __aiter__(self) -> Self:
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> v.Message:
        """Run to the model's next message.

        Checkpoint: a cancel is always noticed; others run when the model or a
        tool lets them, or when a commit is waited for. If cancelled, the turn is
        interrupted: finished results are kept, open calls are answered, and later
        calls stop the iteration.

        Raises:
          NotEnteredError: outside ``async with``.
          BusyError: another task is in here.
          TurnTimeoutError: the turn's own deadline passed.
          LimitReachedError: a limit was reached, and the turn has no message yet.
          BaseException: what ended the turn, bare (contract C7).
        """
        steps = self._begun("iterate")
        if self._scope is not None:
            raise BusyError("another task is iterating this runner; one task at a time")
        if self._left or steps.turn.phase is Phase.ENDED:
            await trio.lowlevel.checkpoint()
            raise StopAsyncIteration
        scopes = scopes_around()
        scope = trio.CancelScope(deadline=min(steps.deadline, first_deadline(scopes)))
        self._scope = steps.scope = scope
        self._stepper = trio.lowlevel.current_task()
        try:
            message = await self._step(steps, scope, scopes)
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            leaves = await steps.ending.stop(error)
            if type(leaves) is LeftElsewhere:
                raise StopAsyncIteration from None
            if leaves is error:
                raise
            raise leaves from leaves.__cause__
        finally:
            self._scope = self._stepper = None
            if self._idle is not None:
                self._idle.set()
        if message is None:
            raise StopAsyncIteration
        return message

    async def _step(
        self, steps: Steps, scope: trio.CancelScope, limits: tuple[LimitScope, ...]
    ) -> v.Message | None:
        try:
            with scope:
                return await steps.step()
        except Exception as error:
            ended = steps.turn.phase is Phase.ENDED
            if not scope.cancel_called or ended or leaving.cancelled_from_outside():
                raise
            # That the time is up beats what somebody's cleanup raised because of it.
            self._notices.suppressed(error)
        if not self._left and scope.deadline < steps.deadline:
            # What follows the end has the time of the turn, until another task leaves the block.
            with trio.CancelScope(deadline=steps.deadline) as self._scope:
                return await steps.out_of_time(time_limit(limits))
        raise self._own_error(steps.ending)

    def _own_error(self, ending: Ending) -> Exception:
        """Our own scope was cancelled: another task left the block, or the time is up."""
        error: Exception = LeftElsewhere()
        if not self._left:
            error = leaving.TurnTimeoutError(
                f"the turn took longer than its turn_timeout of {self._params.turn_timeout} "
                "seconds; its history is valid and agent.resume() goes on from there"
            )
        ending.own_error = error
        return error

    @trio.lowlevel.enable_ki_protection
    async def until_done(self) -> v.Message:
        """Run the turn to its end and return the model's last message.

        Enters the runner when that was not done. Checkpoint: always.

        Raises:
          TurnInterruptedError: the turn was interrupted before and has no message to return.
          BaseException: as ``__anext__``.
        """
        if self._steps is not None:
            return await self._drive()
        async with self:
            return await self._drive()

    async def _drive(self) -> v.Message:
        async for _ in self:
            pass
        answer = self._begun("read the answer").ending.answer
        if answer is not None:
            return answer
        if self.limit is not None:
            raise LimitReachedError(self.limit)
        match self.end_reason:
            case v.EndReason.INTERRUPTED | v.EndReason.TIMED_OUT | v.EndReason.FAILED as reason:
                what = f"ended {reason.value}: agent.resume() goes on from there"
            case None:
                what = "was left: agent.resume() goes on from there"
            case reason:
                what = f"ended {reason.value}, but was cut while it ended: see agent.history"
        raise TurnInterruptedError(f"no message to return: the turn {what}", self.end_reason)

    def _running(self, what: str) -> Steps:
        """The steps of a turn whose block is not left: only then the conversation is its own."""
        steps = self._begun(what)
        if self._left:
            raise TurnEndedError(
                f"cannot {what}: the runner's block was left, and the agent may be running "
                "another turn. Start a new one, or use agent.load_history()",
                self.end_reason,
            )
        return steps

    def _begun(self, what: str) -> Steps:
        if self._steps is None:
            raise NotEnteredError(
                f"cannot {what} outside the runner's block: write "
                "'async with agent.turn(...) as runner:' around it, or await "
                "agent.generate(...). An abandoned iterator could not finish its turn"
            )
        return self._steps


def _descends_from(ancestor: trio.lowlevel.Task) -> bool:
    """Whether the current task is ``ancestor``, or was started below it."""
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None and task is not ancestor:
        task = task.parent_nursery.parent_task if task.parent_nursery is not None else None
    return task is not None
