"""`Steps`: what happens in one step of a turn, and in which order.

    open calls of the last reply:  before_tool_call -> batch -> commits ->
                                   after_tool_call;  iteration += 1
    tool list -> before_llm_call -> model -> the reply is normalised, decided
    by the machine and recorded -> after_llm_call -> its commit
    (or the results are passed through, in the place of this line's first half)
    at the end: the end is recorded and committed, after_turn_complete, trim,
    compaction, and what they changed is committed

``tests/test_order_of_a_step.py`` holds it. Who may call when, and what an
iteration sees, is the runner's business.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.records as r
import trio_runner._core.recovery as recovery
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
import trio_runner._shell.passing as passing
from trio_runner._core.approval import pending_calls
from trio_runner._core.compaction import is_answer
from trio_runner._core.copies import own_message
from trio_runner._core.errors import HistoryError, LimitReachedError
from trio_runner._core.limits import LimitReached
from trio_runner._core.normalise import normalise_reply
from trio_runner._core.params import RequestParams
from trio_runner._core.planning import plan_tool_calls
from trio_runner._core.turn import Finished, Phase, RunTools, Turn
from trio_runner._shell.batch import Batch, BatchServices
from trio_runner._shell.commits import Commits
from trio_runner._shell.compacting import Compactor
from trio_runner._shell.consent import carry_out, require_not_suspended, tell_decided
from trio_runner._shell.context import TurnContext
from trio_runner._shell.ending import Ending
from trio_runner._shell.finalising import finalise
from trio_runner._shell.guarded import make_batch
from trio_runner._shell.hooks import MessageHook, ToolRunnerHooks
from trio_runner._shell.ki import call_unprotected
from trio_runner._shell.limits import (
    LimitScope,
    before_model_call,
    first_deadline,
    scopes_around,
    usage_names,
)
from trio_runner._shell.loop_agent import ToolLoopAgent
from trio_runner._shell.notices import Notices
from trio_runner._shell.offers import Offers, forces
from trio_runner._shell.structured import Answering, Wanted, asking_of
from trio_runner.abc import ModelRequest, Tool

if TYPE_CHECKING:
    from trio_runner._shell.runner import ToolRunner

_log = logging.getLogger("trio_runner")

#: A paused reply is no round of its own.
_GOES_BACK: Final = (v.StopReason.PAUSE, v.StopReason.CONTINUE_)


class Steps:
    """One turn under way. Making it begins the turn, synchronously.

    Args:
      runner: what hooks are given.
      given: the input, plain messages.
      results: the input's results for open calls.
      tools: instead of the agent's.
      resume: go on with the agent's unfinished turn.
      recovered: answers to its calls that a crash cut; the others of them run again.
      decisions: words on its calls that wait for one, by call id.
      output: what the turn must end in; None: a message.
      can_cancel_calls: somebody can reach `cancel_call`.

    Raises:
      HistoryError: the input is not valid; nothing was changed.
      NothingToResumeError: there is no unfinished turn.
    """

    def __init__(
        self,
        runner: ToolRunner,
        agent: ToolLoopAgent,
        given: tuple[v.Message, ...],
        results: tuple[v.ToolResult, ...],
        *,
        params: RequestParams,
        hooks: ToolRunnerHooks,
        notices: Notices,
        tools: Sequence[Tool] | None,
        resume: bool,
        recovered: tuple[v.ToolResult, ...],
        decisions: Mapping[str, object],
        output: Wanted | None,
        can_cancel_calls: bool,
    ) -> None:
        self._runner: Final = runner
        self._agent: Final = agent
        self._config: Final = agent.config
        self._conversation: Final = agent.conversation
        self._hooks: Final = hooks
        self._notices: Final = notices
        self._resume: Final = resume
        self._can_cancel_calls: Final = can_cancel_calls
        #: The turn's settings; a hook may set new ones.
        self.params = params
        #: The params of the newest model call; its batch runs with them.
        self._asked_with = params
        self._offers: Final = Offers(agent, tools)
        #: The newest reply.
        self.last: v.Message | None = None
        #: The scope of the step that is under way, which ends when the turn's time is up.
        self.scope: trio.CancelScope | None = None
        #: The batch that is planned or runs; None between batches.
        self.batch: Batch | None = None
        # What the model says of itself is read before the turn begins: it may raise.
        compactor = Compactor.of_turn(agent, notices, lambda: self.turn.messages)
        asking = asking_of(output, agent, params)
        conversation = self._conversation
        self.turn: Final = conversation.take_up() if resume else self._new_turn(given, results)
        kept = self.turn.history is conversation.history
        self.commits: Final = conversation.commits if kept else Commits(None)
        self._context: Final = TurnContext(
            conversation, self._config.journal if self.commits.keeps else None, self._config.grace
        )
        self.ending: Final = Ending(
            self.turn, conversation, self.commits, self._config, notices, self._context
        )
        #: None where nothing is compacted by itself.
        self._compactor: Final = compactor if kept else None
        strict = self._config.durability == "strict"
        conversation.commits.begin_turn(self.ending.commit_failed, strict=strict)
        step = self.turn.step
        decided = carry_out(self.turn, decisions, params.max_result_bytes) if decisions else []
        # One commit, so that a crash finds all of the decisions or none.
        self.commits.add(r.TurnStarted(self.turn.number, given, resume), *decided)
        conversation.tells_last_turn(self.ending.last_turn)
        conversation.grace_deadline = -math.inf
        notices.begin(self.turn.number)
        if notices.listening:
            notices.tell(ev.TurnStarted, given, resume)
            tell_decided(notices, step, decisions, decided)
        for result in recovered:
            self._answer(result)
        if resume:
            replies = [message for message in self.turn.messages if message.role == "assistant"]
            self.last = self.turn.reply or (replies[-1] if replies else None)
        #: The reply whose calls were open when the turn was taken up; None when none was.
        self._left_open: Final = self.turn.reply
        #: The newest message that the runner has handed over, or that was there before.
        self._handed = self.last
        #: Whether decisions and a crash left nothing to run of a batch that was under way.
        self._ends_batch = self.turn.reply is None and bool(decided or recovered)
        #: The limit that kept calls of the newest batch from running.
        self._over: LimitReached | None = None
        #: Whether what follows the end, such as ``after_turn_complete``, was begun.
        self._completing = False
        if self.turn.replies and forces(params.tool_choice):
            self.params = attrs.evolve(params, tool_choice="auto")
        #: How the turn comes to a structured answer; None when none is wanted.
        self.answering: Final = None if asking is None else asking(self.turn.messages)
        #: When the turn's time is up, on trio's clock.
        self.deadline: Final = (
            math.inf if params.turn_timeout is None else trio.current_time() + params.turn_timeout
        )

    def _new_turn(self, given: tuple[v.Message, ...], results: tuple[v.ToolResult, ...]) -> Turn:
        conversation = self._conversation
        if conversation.newest is not conversation.turn:
            require_not_suspended(conversation.newest, "start a turn")
        if self.params.use_history:
            if not results:
                require_not_suspended(conversation.turn, "start a turn")
            conversation.match_results(results)
            conversation.heal()
            turn = conversation.new_turn()
        elif results:
            raise HistoryError(["results for open calls need the history (use_history)"])
        else:
            turn = conversation.new_turn_aside()
        turn.input_added(given)
        return turn

    # --- one step ---------------------------------------------------------------

    async def step(self) -> v.Message | None:
        """From one message to the next; None when the turn ended before there was one.

        Calls that wait for a word suspended it, or a limit ended it.

        Raises:
          LimitReachedError: the turn has no message at all.
        """
        turn = self.turn
        if type(turn.next_action()) is RunTools:
            await self._run_tools()
            if turn.is_suspended:
                return None
        wanted = self.answering is None
        passed = passing.answer_of(turn, self._asked_with) if wanted else None
        reply = None if passed is None else await self._pass_through(passed)
        if reply is None and type(turn.next_action()) is Finished:
            # A crash came between the answer and the end of its turn.
            reply = self.last
            assert reply is not None
            if self.answering is not None:
                await self._offers.take_up()
                self.answering.goes_on(has_tools=bool(self._offers.listed))
                self._judge(self.answering, reply)
        else:
            if reply is None:
                reply = await self._ask()
            if reply is not None and self._hooks.after_llm_call is not None:
                await self._tell(self._hooks.after_llm_call, reply)
        await self._settle()
        action = turn.next_action()
        if type(action) is Finished:
            if self.answering is not None and self.last is not None:
                await self._require_value(self.answering, self.last, action.end_reason)
            await self._complete(self.last)
        return self._hand_over(reply)

    def _hand_over(self, reply: v.Message | None) -> v.Message | None:
        if reply is None and self.last is None:
            assert self.ending.limit is not None
            raise LimitReachedError(self.ending.limit)
        self._handed = reply or self._handed
        return reply

    async def _ask(self) -> v.Message | None:
        """One model call; the reply is recorded in the step in which it arrives.

        Returns:
          The reply; None when a limit keeps the model from being asked.
        """
        turn = self.turn
        scopes = scopes_around()
        if scopes and self._is_limited(scopes):
            return None
        compactor = self._compactor if turn.replies else None
        if compactor is not None and await compactor.before_follow_up(self._offers.listed):
            await self._settle()
        await self._offers.take_up()
        if self._hooks.before_llm_call is not None:
            delta = tuple(map(own_message, turn.delta))
            await call_unprotected(self._hooks.before_llm_call, self._runner, delta)
        params, request = self._request()
        step = turn.replies
        await trio.lowlevel.checkpoint_if_cancelled()
        if scopes:
            # Once more, and in the step in which it is taken: others may have spent meanwhile.
            if self._is_limited(scopes):
                return None
            for scope in scopes:
                scope.take_model_calls()
        began = trio.current_time()
        if self._notices.listening:
            self._notices.tell(ev.ModelCallStarted, step)
        raw = await call_unprotected(self._agent.reply, request, self._emit_delta)
        reply = normalise_reply(raw, turn.history.ids)
        made = turn.model_replied(reply, params.max_iterations)
        if params.tool_choice != "auto" or self._offers.is_narrowed:
            made += self._heed_offers(reply, params.tool_choice)
        self._asked_with = params
        self.last = reply
        if self.commits.keeps:
            cap = params.max_iterations if turn.iteration >= params.max_iterations else None
            self.commits.add(
                r.ModelFinished(turn.number, step, reply, cap),
                *[r.ToolFinished(turn.number, step, result) for result in made],
            )
        if self._notices.listening:
            duration = trio.current_time() - began
            self._notices.tell(ev.ModelCallFinished, step, reply, duration)
            for result in made:
                self._notices.tell(ev.CallFinished, step, result)
        for scope in scopes:
            scope.add(reply.usage, usage_names(self._agent, reply))
        if self.answering is not None:
            self._judge(self.answering, reply)
        return reply

    async def _pass_through(self, message: v.Message) -> v.Message:
        """Let the results of the newest batch be the answer."""
        turn = self.turn
        await trio.lowlevel.checkpoint_if_cancelled()
        turn.passed_through(message)
        self.last = message
        self.commits.add(r.PassedThrough(turn.number, message))
        if self._notices.listening:
            self._notices.tell(ev.PassedThrough, message)
        return message

    def _is_limited(self, scopes: tuple[LimitScope, ...]) -> bool:
        """Whether a limit keeps the model from being asked; the turn has ended then."""
        limit = before_model_call(scopes, usage_names(self._agent))
        limit = self._over or limit
        if limit is None:
            return False
        self.turn.interrupt(v.EndReason.LIMIT)
        self.commits.add(r.TurnEnded(self.turn.number, v.EndReason.LIMIT))
        self._note(limit)
        return True

    def _note(self, limit: LimitReached) -> None:
        self.ending.limit = limit
        if self._notices.listening:
            self._notices.tell(ev.LimitHit, limit)

    @trio.lowlevel.enable_ki_protection
    def _emit_delta(self, text: str) -> None:
        if self._notices.listening:
            self._notices.tell(ev.TextDelta, self.turn.replies, text)

    def _request(self) -> tuple[RequestParams, ModelRequest]:
        """What the model is asked, after the hook: the hook may have narrowed it."""
        params, offers, answering = self.params, self._offers, self.answering
        to_none = answering is not None and answering.withholds_tools
        if to_none or params.tools_filter is not None:
            offers.narrow(params.tools_filter, to_none=to_none)
        if params.tool_choice != "auto":
            params = offers.checked(params)
        if answering is not None:
            params = answering.settings(params)
        turn, tools = self.turn, offers.told(params)
        request = ModelRequest(
            turn.delta, turn.history.view(), tools, params, self._config.instruction
        )
        return params, request if answering is None else answering.shaped(request)

    def _heed_offers(self, reply: v.Message, choice: str) -> tuple[v.ToolResult, ...]:
        """Answer the calls that the model was told not to make; what was forced is used up."""
        if forces(choice) and reply.stop_reason not in _GOES_BACK:
            self.params = attrs.evolve(self.params, tool_choice="auto")
        if self.turn.reply is None:
            return ()
        refusals = self._offers.refusals(reply, choice)
        for position, result in refusals:
            self.turn.tool_finished(position, result)
        return tuple([result for _, result in refusals])

    def _judge(self, answering: Answering, reply: v.Message) -> None:
        """Read the reply if it is an answer; one that does not fit goes back, if it may."""
        action = self.turn.next_action()
        if type(action) is not Finished:
            return
        # An answer at the cap may have been refused before a crash: what was wrong is read again.
        at_cap = action.end_reason is v.EndReason.MAX_ITERATIONS and is_answer(reply)
        answered = action.end_reason is v.EndReason.ANSWERED
        message = answering.judge(reply) if answered or at_cap else None
        if message is not None and answered:
            turn = self.turn
            sent = turn.answer_refused((message,))
            self.commits.add(r.AnswerRefused(turn.number, sent))
            if self._notices.listening:
                self._notices.tell(ev.AnswerRefused, turn.step, sent)

    async def _require_value(
        self, answering: Answering, reply: v.Message, reason: v.EndReason
    ) -> None:
        """Raise unless the turn, which is about to end, has its value; no last hook then."""
        has_ended = self.turn.phase is Phase.ENDED
        error = answering.failure(reply, reason, has_ended=has_ended)
        if error is None:
            return
        # A decided answer that is none fails by the error; every other end stays what it is.
        if reason is not v.EndReason.ANSWERED and not has_ended:
            self.turn.finish()
            self.commits.add(r.TurnEnded(self.turn.number, reason))
            await self._settle()
        raise error

    async def _run_tools(self) -> None:
        """The open calls of the last reply, with their hooks."""
        turn, reply = self.turn, self.turn.reply
        if reply is not None:
            if reply is self._left_open:  # what it was offered, nobody remembers
                await self._offers.take_up()
            services = BatchServices(
                self._agent,
                self._conversation,
                self.commits,
                self._notices,
                self._asked_with,
                self._config.commit_timeout,
                self._can_cancel_calls,
                self._resume,
                self._context,
            )
            plan = plan_tool_calls(reply, self._offers.table)
            self.batch = make_batch(turn, plan, services, self._offers.listed)
            try:
                await self._run_batch(reply, self.batch)
            finally:
                self.batch = None
            if turn.is_suspended:
                return
        else:
            # Nothing is left to run, but the model must not hear of answers that are not durable.
            await self._settle()
            if self._ends_batch:
                self._ends_batch = False
                await self._tell_results()
        turn.step_done()

    async def _run_batch(self, reply: v.Message, batch: Batch) -> None:
        turn = self.turn
        if self._notices.listening:
            self._notices.tell(ev.BatchPlanned, turn.step, reply.tool_calls)
        hook = self._hooks.before_tool_call
        if hook is not None:
            try:
                await self._tell(hook, reply)
            except Exception:
                batch.deny_all("the check before the tools failed.")
                raise
        try:
            await batch.run()
            if turn.reply is not None and not batch.is_fatal:
                await self._suspend(reply, batch)
                return
            if not batch.is_fatal:  # else the turn ends, and what it waits for is bounded by grace
                await self._settle()
        except BaseException:
            batch.report_fatal()
            raise
        batch.raise_fatal()
        self._over = batch.limit
        await self._tell_results()

    async def _tell_results(self) -> None:
        """The batch is over."""
        if self._hooks.after_tool_call is not None:
            results = self.turn.results
            assert results is not None
            await self._tell(self._hooks.after_tool_call, results)

    async def _suspend(self, reply: v.Message, batch: Batch) -> None:
        """Calls are open on which nobody has a word yet: the turn ends with them."""
        turn = self.turn
        batch.hold_open()
        turn.suspend()
        self.ending.answer = reply
        self.commits.add(r.TurnEnded(turn.number, v.EndReason.SUSPENDED))
        if self._notices.listening:
            self._notices.tell(ev.TurnSuspended, turn.step, pending_calls(turn))
        await self._settle()
        self.ending.tell()

    def withdraw(self, call_id: str) -> bool:
        """Answer an open call whose batch has not begun; False when none has that id."""
        turn = self.turn
        position = turn.position_of(call_id)
        if turn.reply is None or position is None:
            return False
        result = stand_ins.call_withdrawn(turn.reply.tool_calls[position])
        why = "it was cancelled before it began once more"
        self._answer(recovery.without_running(turn, position, result, why))
        return True

    def _answer(self, result: v.ToolResult) -> None:
        """An open call has its result without a batch."""
        turn = self.turn
        position, step = turn.position_of(result.call_id), turn.step
        assert position is not None
        turn.tool_finished(position, result)
        self.commits.add(r.ToolFinished(turn.number, step, result))
        if self._notices.listening:
            self._notices.tell(ev.CallFinished, step, result)

    async def _complete(self, reply: v.Message | None) -> None:
        """The end, decided or by a limit: recorded and committed, then what follows it.

        Args:
          reply: what the turn returns; None: it met a limit before any reply.
        """
        turn = self.turn
        self.ending.answer = reply
        if turn.phase is not Phase.ENDED:
            self.commits.add(r.TurnEnded(turn.number, turn.finish()))
        if turn.end_reason is v.EndReason.MAX_ITERATIONS:
            cap = self._asked_with.max_iterations
            _log.warning("turn %d ended at its cap of %d iterations", turn.number, cap)
        await self._settle()
        if reply is not None:
            await self._finalise(reply)
            await self._settle()
        if self._compactor is not None and turn.end_reason is not v.EndReason.LIMIT:
            await self._compact_after_turn(self._compactor)
        self.ending.tell()

    async def _compact_after_turn(self, compactor: Compactor) -> None:
        """The turn has its answer: what is slow from here on does not take it away."""
        if self.scope is not None:
            self.scope.deadline = math.inf
        deadline = min(self.deadline, first_deadline(scopes_around()))
        if await compactor.after_turn(self._offers.listed, deadline):
            await self._settle()

    async def _finalise(self, reply: v.Message) -> None:
        self._completing = True
        hook = self._hooks.after_turn_complete
        kept = self.turn.history is self._conversation.history
        told = None if hook is None else functools.partial(self._tell, hook, reply)
        await finalise(self._conversation, self._config, told, kept=kept)

    async def out_of_time(self, limit: LimitReached) -> v.Message | None:
        """The seconds of a scope are up, and what ran was cancelled: end the turn.

        Checkpoint: a cancel of the caller beats it. Returns and raises as `step`.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        ending, reply = self.ending, self.last
        ending.interrupt(v.EndReason.LIMIT)
        if self.turn.end_reason is v.EndReason.LIMIT and ending.limit is None:
            self._note(limit)
        ending.answer = reply
        await ending.finish_commits(None)
        reason = self.turn.end_reason
        if self.answering is not None and reply is not None and reason is not None:
            await self._require_value(self.answering, reply, reason)
        if reply is not None and not self._completing:
            await self._finalise(reply)
            await ending.finish_commits(None)
        ending.tell()
        return self._hand_over(None if reply is self._handed else reply)

    async def _tell(self, hook: MessageHook, message: v.Message) -> None:
        """Call a hook with a copy that it may change."""
        await call_unprotected(hook, self._runner, own_message(message))

    async def _settle(self) -> None:
        """Wait until what was recorded is durable, within ``commit_timeout``."""
        durable = await self.commits.settle(self._config.commit_timeout)
        if durable and self._notices.listening:
            self._notices.tell(ev.Committed)
