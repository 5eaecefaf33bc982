"""`Compactor`: when a summary is asked for, and what comes of it.

What may live here: the moments of a compaction and its one way: a policy chooses what goes,
a summariser writes, the gate takes it or refuses it, and it is recorded. What may go
is ``_core/compaction_plan.py``; the gate is ``_core/compaction.py``.

Until the summary is there nothing has changed and nothing is held: no record, no
shield, no slot of a limiter. So whatever goes wrong on the way is reported and
leaves the history as it is, and a cancel is a cancel.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

import trio_runner._core.events as ev
import trio_runner._core.values as v
import trio_runner._shell.finishing as finishing
import trio_runner._shell.leaving as leaving
from trio_runner._core.compaction import HistoryCut, carried_over, compacted
from trio_runner._core.compaction_plan import (
    DEFAULT_COMPACTION,
    Compaction,
    CompactionReason,
    CutRequest,
    check_choice,
    check_count,
    turn_start_in,
    unseen_from,
)
from trio_runner._core.copies import own_message
from trio_runner._core.describe import describe_error
from trio_runner._core.errors import CompactionError, JournalError
from trio_runner._core.estimate import context_tokens, json_tokens, message_tokens, text_tokens
from trio_runner._shell.commits import Commits
from trio_runner._shell.ki import call_sync_unprotected, call_unprotected
from trio_runner._shell.loop_agent import LoopConfig, ToolLoopAgent
from trio_runner._shell.notices import Notices
from trio_runner._shell.summarizer import ModelSummarizer
from trio_runner.abc import Summarizer, SummaryRequest, Tool

_log = logging.getLogger("trio_runner")

#: Within a turn there is no second try until the context grew by this part of the window.
_GROWTH: Final = 20


@attrs.frozen
class CompactionReport:
    """What a compaction did.

    Attributes:
      reason: why there was one.
      replaced: how many messages the summary took the place of.
      messages_before, messages_after: how many the history had and has.
      tokens_before, tokens_after: about how many the context had and has.
      summary: as it stands in the history.
    """

    reason: CompactionReason
    replaced: int
    messages_before: int
    messages_after: int
    tokens_before: int
    tokens_after: int
    summary: v.Message


def context_window(model: object, settings: Compaction) -> int | None:
    """How many tokens a model takes, as the settings or the model itself say; None: unknown."""
    if settings.context_window is not None:
        return settings.context_window
    window: object = getattr(model, "context_window", None)
    return window if type(window) is int and window > 0 else None


def _model_of(agent: ToolLoopAgent) -> object:
    """The model of an agent that has one by that name; the loop needs none."""
    return getattr(agent, "model", None)


def check_share(model: object, settings: Compaction | None) -> None:
    """Refuse a share of a window that nobody knows.

    Raises:
      ValueError: there is one.
    """
    if settings is None or settings.share is None:
        return
    if context_window(model, settings) is None:
        raise ValueError(
            f"compaction asks for a share of {settings.share}, and the context window is not "
            "known; give Compaction(context_window=...) in tokens, or a model with an "
            "attribute context_window"
        )


class Compactor:
    """The compactions of one turn, or of one call of `compact` between turns.

    Args:
      turn: the messages of the newest turn, asked for when they matter.
    """

    def __init__(
        self,
        agent: ToolLoopAgent,
        settings: Compaction,
        notices: Notices,
        turn: Callable[[], Sequence[v.Message]],
        *,
        window: int | None,
        summarizer: Summarizer | None = None,
    ) -> None:
        self._conversation: Final = agent.conversation
        self._settings: Final = settings
        self._notices: Final = notices
        self._turn: Final = turn
        self._window: Final = window
        given = summarizer if summarizer is not None else agent.config.summarizer
        self._summarizer: Final = given if given is not None else ModelSummarizer.of_agent(agent)
        self._instruction_tokens: Final = text_tokens(agent.config.instruction or "")
        #: The tools that were measured last, and what came of it.
        self._tools: Sequence[Tool] = ()
        self._tools_tokens = 0
        #: The size after the newest try; None before the first.
        self._tried: int | None = None

    @classmethod
    def of_turn(
        cls, agent: ToolLoopAgent, notices: Notices, turn: Callable[[], Sequence[v.Message]]
    ) -> Compactor | None:
        """The compactor of a turn; None when nothing is to be compacted by itself."""
        settings = agent.config.compaction
        window = None if settings is None else context_window(_model_of(agent), settings)
        if settings is None or window is None:
            return None
        return cls(agent, settings, notices, turn, window=window)

    # --- the moments ------------------------------------------------------------

    async def before_follow_up(self, tools: Sequence[Tool]) -> bool:
        """Compact when the next model call would come too close to the window.

        No checkpoint when there is nothing to do. A failure is reported; a cancel leaves.

        Returns:
          Whether something was recorded.
        """
        tokens = self._tokens(tools)
        least = 0 if self._tried is None else self._tried + (self._window or 0) // _GROWTH
        return await self._when_due("mid_turn", tokens, least, math.inf)

    async def after_turn(self, tools: Sequence[Tool], deadline: float) -> bool:
        """Compact at the end of a turn; otherwise as `before_follow_up`.

        Args:
          deadline: on trio's clock; the summary is given up then, and that is a failure.
        """
        tokens = self._tokens(tools)
        least = 0 if self._tried is None else self._tried + 1
        return await self._when_due("after_turn", tokens, least, deadline)

    async def now(self, keep_turns: int) -> CompactionReport | None:
        """Compact whatever the size is.

        Raises:
          CompactionError: there is no summary; nothing was changed.
        """
        budget = None if self._window is None else self._settings.trigger(self._window)
        tokens = self._tokens(())
        return await self._compact("on_demand", tokens, budget, keep_turns, math.inf)

    async def _when_due(
        self, reason: CompactionReason, tokens: int, least: int, deadline: float
    ) -> bool:
        assert self._window is not None
        trigger = self._settings.trigger(self._window)
        if tokens < max(trigger, least):
            return False
        self._tried = tokens
        keep = self._settings.keep_turns
        try:
            report = await self._compact(reason, tokens, trigger, keep, deadline)
        except CompactionError:
            return False  # it was reported, and the turn goes on
        if report is None:
            return False
        self._tried = report.tokens_after
        return True

    def _tokens(self, tools: Sequence[Tool]) -> int:
        if tools is not self._tools:
            self._tools, self._tools_tokens = tools, sum(map(_tool_tokens, tools))
        fixed = self._instruction_tokens + self._tools_tokens
        return context_tokens(self._conversation.history, self._conversation.meter, fixed)

    # --- one compaction ---------------------------------------------------------

    async def _compact(
        self,
        reason: CompactionReason,
        tokens: int,
        budget: int | None,
        keep_turns: int,
        deadline: float,
    ) -> CompactionReport | None:
        history = self._conversation.history
        request = self._request(reason, tokens, budget, keep_turns)
        try:
            cut = self._choose(request)
            if cut is None:
                return None
            if self._notices.listening:
                self._notices.tell(ev.CompactionStarted, reason, len(cut.messages), tokens)
            summary = await self._summary(cut, request, deadline)
            # The caller may have added messages meanwhile: they stand behind the cut.
            record = compacted(history, carried_over(history, cut), summary)
            self._conversation.shorten(record)
        except Exception as error:  # noqa: BLE001  a border: policies and summarisers are users'
            failure = self._failed(reason, error)
            raise failure from failure.__cause__
        gone = cut.messages
        report = CompactionReport(
            reason,
            len(gone),
            record.before,
            len(history),
            tokens,
            request.tokens_without(cut) + message_tokens(record.summary),
            record.summary,
        )
        if self._notices.listening:
            self._notices.tell(ev.Compacted, *attrs.astuple(report, recurse=False))
        return report

    def _request(
        self, reason: CompactionReason, tokens: int, budget: int | None, keep_turns: int
    ) -> CutRequest:
        view = self._conversation.history.view()
        answered = unseen_from(view) == len(view)
        return CutRequest(
            view,
            reason,
            keep_turns,
            self._settings.keep_steps,
            tokens,
            budget,
            self._settings.target(self._window),
            None if answered else turn_start_in(view, self._turn()),
        )

    def _choose(self, request: CutRequest) -> HistoryCut | None:
        policy = self._settings.cut
        cut: object = call_sync_unprotected(policy, request)
        match cut:
            case None:
                return None
            case HistoryCut():
                check_choice(request, cut)
                return cut
            case _:
                raise TypeError(
                    f"the cut policy returned {cut!r}; expected request.cut(...) or None"
                )

    async def _summary(
        self, cut: HistoryCut, request: CutRequest, deadline: float
    ) -> v.Message | str:
        asked = SummaryRequest(
            tuple(map(own_message, cut.messages)), request.reason, request.summary_tokens
        )
        await trio.lowlevel.checkpoint_if_cancelled()
        timeout = self._settings.timeout
        scope = trio.CancelScope(deadline=min(trio.current_time() + timeout, deadline))
        try:
            with scope:
                return await call_unprotected(self._summarizer.summarise, asked)
        except BaseException as error:
            if leaving.must_leave(error):
                raise
            raise CompactionError(f"the summariser failed: {describe_error(error)}") from error
        raise CompactionError(
            f"the summariser took longer than its timeout of {timeout:g} seconds"
            if trio.current_time() < deadline
            else "the summariser was not done when the time of the turn was up"
        )

    def _failed(self, reason: CompactionReason, error: Exception) -> CompactionError:
        cause: BaseException | None = error
        match error:
            case CompactionError():
                why, cause = str(error), error.__cause__
            case _:
                why = describe_error(error)
        failure = CompactionError(
            f"the history was not compacted ({reason}): {why}. It is as it was"
        )
        failure.__cause__ = cause
        _log.warning("%s", failure)
        if self._notices.listening:
            self._notices.tell(ev.CompactionFailed, reason, failure)
        return failure


def _tool_tokens(tool: Tool) -> int:
    return text_tokens(tool.name + tool.description) + json_tokens(tool.input_schema)


# --- between two turns ------------------------------------------------------------


async def compact_on_demand(
    agent: ToolLoopAgent, keep_turns: int | None, summarizer: Summarizer | None
) -> CompactionReport | None:
    """`ToolAgent.compact`: takes the conversation as a turn does, and commits."""
    conversation, config = agent.conversation, agent.config
    settings = config.compaction if config.compaction is not None else DEFAULT_COMPACTION
    keep = settings.keep_turns if keep_turns is None else keep_turns
    check_count("keep_turns", keep, 0)
    holder = object()
    conversation.acquire(holder)
    notices = Notices(config.observers)
    try:
        notices.begin(conversation.turns)
        turn = conversation.turn
        compactor = Compactor(
            agent,
            settings,
            notices,
            lambda: () if turn is None else turn.messages,
            window=context_window(_model_of(agent), settings),
            summarizer=summarizer,
        )
        report = await compactor.now(keep)
        if report is not None:
            await _commit(conversation.commits, config, notices)
    finally:
        conversation.release(holder)
    await trio.lowlevel.checkpoint_if_cancelled()
    return report


async def _commit(commits: Commits, config: LoopConfig, notices: Notices) -> None:
    """Wait until the compaction is durable, as a turn does."""

    def failed(error: JournalError) -> None:
        if notices.listening:
            notices.tell(ev.CommitFailed, error)

    commits.begin_turn(failed, strict=config.durability == "strict")
    try:
        durable = await commits.settle(config.commit_timeout)
        if durable and notices.listening:
            notices.tell(ev.Committed)
    except BaseException as error:
        if not leaving.is_closing(error) and not commits.settled and not commits.is_stalled:
            deadline = trio.current_time() + config.grace
            try:
                await finishing.finish(
                    commits.wait, deadline=deadline, report=notices.suppressed, leaves=error
                )
            finally:
                commits.give_up(config.grace)
        raise
    finally:
        commits.end_turn()
