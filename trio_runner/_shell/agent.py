"""`ToolAgent`: a model, tools and a history under one name."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import attrs
import trio

import trio_runner._core.values as v
from trio_runner._core.compaction import first_turns
from trio_runner._core.compaction_plan import DEFAULT_COMPACTION, Compaction
from trio_runner._core.convert import result_from_value
from trio_runner._core.errors import NotEnteredError
from trio_runner._core.history import History
from trio_runner._core.normalise import normalise_reply
from trio_runner._core.params import DEFAULT_PARAMS, RequestParams
from trio_runner._core.planning import ToolTable, plan_tool_calls
from trio_runner._core.turn import Turn
from trio_runner._shell.agent_answers import AgentAnswers
from trio_runner._shell.agent_history import AgentHistory
from trio_runner._shell.agent_tools import AgentToolOptions, agent_tool, as_any_tool
from trio_runner._shell.batch import BatchServices
from trio_runner._shell.belongings import Belongings
from trio_runner._shell.commits import Commits
from trio_runner._shell.compacting import check_share, compact_on_demand
from trio_runner._shell.context import TurnContext
from trio_runner._shell.conversation import Conversation
from trio_runner._shell.guarded import make_batch
from trio_runner._shell.hooks import ToolRunnerHooks
from trio_runner._shell.ki import call_pair_unprotected
from trio_runner._shell.loop_agent import Durability, LoopConfig, Planned
from trio_runner._shell.notices import Notices
from trio_runner._shell.open_toolsets import OpenToolsets
from trio_runner._shell.runner import Input, ToolRunner
from trio_runner._shell.structured import Wanted, wanted
from trio_runner._shell.toolbox import Toolbox
from trio_runner.abc import (
    Approver,
    DeltaSink,
    Journal,
    Model,
    ModelRequest,
    NeedsApproval,
    Observer,
    Summarizer,
    Tool,
    ToolContext,
    Toolset,
    UnknownPolicy,
)


class ToolAgent(AgentHistory, AgentAnswers):
    """Asks a model, runs the tools it asks for, keeps the conversation.

    One turn at a time. ``async with agent`` opens its toolsets and its session;
    an agent with neither may be used without. Several tasks may enter it; the
    last one to leave closes what was opened.

    It may be subclassed: it has no slots, and its own attributes do not collide
    with a subclass's. A subclass with a ``tool_runner_hooks`` property has its
    hooks run after ``hooks``.

    Args:
      name: names the agent in messages and records.
      model: answers; see `trio_runner.abc.Model`.
      instruction: the system prompt.
      tools: plain functions, `Tool` objects, toolsets and agents (see `agent_tool`).
      hooks: see `ToolRunnerHooks`.
      params: the defaults of its turns.
      journal: keeps the conversation; needs ``session``.
      session: the id of the session, new or stored.
      history: messages to begin with, such as templates; see `load_history`.
      summarizer: writes the summaries of compactions; None: the model does.
      compaction: when the history is compacted by itself, and what stays: at 0.85 of the context
        window, where that is known. None: never.
      observers: told of every event of every turn.
      trim_tool_history: when a turn was answered, keep of its tool steps the last alone; what
        is taken out stays in the journal (`trim`).
      grace: seconds that finishing may take after a turn's first interrupt.
      commit_timeout: seconds a commit is waited for while nothing is cancelled.
      durability: "best_effort": a failed commit is reported and the turn goes
        on; "strict": it ends the turn before any side effect.
      approver: decides on calls that need consent, while the others run; without one
        the turn is suspended.
      needs_approval: calls that need it, besides those whose tools say so.

    Raises:
      TypeError, ValueError: a setting that cannot work, at once.
    """

    def __init__(
        self,
        name: str,
        *,
        model: Model,
        instruction: str | None = None,
        tools: Iterable[Tool | Toolset | ToolAgent | Callable[..., Any]] = (),
        hooks: ToolRunnerHooks | None = None,
        params: RequestParams | None = None,
        journal: Journal | None = None,
        session: str | None = None,
        history: Iterable[v.Message] = (),
        observers: Iterable[Observer] = (),
        summarizer: Summarizer | None = None,
        compaction: Compaction | None = DEFAULT_COMPACTION,
        trim_tool_history: bool = False,
        grace: float = 5.0,
        commit_timeout: float = 30.0,
        durability: Durability = "best_effort",
        approver: Approver | None = None,
        needs_approval: NeedsApproval = False,
    ) -> None:
        _expect(model, "model", "reply", "an object with 'async def reply'")
        if summarizer is not None:
            wanted = "an object with 'async def summarise'"
            _expect(summarizer, "summarizer", "summarise", wanted)
        observers = tuple(observers)
        for each in observers:
            _expect(each, "an observer", "on_event", "an object with 'def on_event'")
        self.name = name
        self.model = model
        config = LoopConfig(
            instruction=instruction,
            params=params if params is not None else RequestParams(),
            hooks=hooks,
            observers=observers,
            summarizer=summarizer,
            compaction=compaction,
            grace=grace,
            commit_timeout=commit_timeout,
            durability=durability,
            trim_tool_history=trim_tool_history,
            approver=approver,
            needs_approval=needs_approval,
            journal=journal,
            session_id=session,
        )
        check_share(model, compaction)
        self.__set_up(Conversation(history), config, Toolbox(name, tools))

    def __set_up(self, conversation: Conversation, config: LoopConfig, toolbox: Toolbox) -> None:
        """Take what belongs to this very agent, and to no clone of it."""
        self.__conversation = conversation
        self.__config = config
        self.__toolbox = toolbox
        self.__belongings = Belongings(
            conversation,
            name=self.name,
            toolsets=self.__open_toolsets,
            journal=config.journal,
            session_id=config.session_id,
            grace=config.grace,
            on_open=self.__check_names,
        )
        compact = functools.partial(compact_on_demand, self)
        AgentHistory.__init__(self, conversation, self.__require_open, compact)
        AgentAnswers.__init__(self, conversation, self.__runner)

    # --- what the loop needs (ToolLoopAgent) ------------------------------------

    @property
    def conversation(self) -> Conversation:
        """History and session, as the runner works on them."""
        return self.__conversation

    @property
    def config(self) -> LoopConfig:
        """The settings of its turns."""
        return self.__config

    async def list_tools(self) -> Sequence[Tool]:
        """Its own tools and those of its toolsets; the same object while nothing changed."""
        return await self.__toolbox.all()

    async def reply(self, request: ModelRequest, emit: DeltaSink) -> v.Message:
        """Ask the model once."""
        return await self.model.reply(request, emit)

    @trio.lowlevel.enable_ki_protection
    async def call_tool(self, planned: Planned, context: ToolContext) -> v.ToolResult:
        """Run one planned call; override it to see or change every call and result."""
        tool = planned.tool
        assert tool is not None
        # A dict: what the context holds is this call's own copy.
        arguments: Any = context.arguments
        value = await call_pair_unprotected(tool.call, arguments, context)
        return result_from_value(
            value,
            call_id=planned.call.id,
            name=planned.call.name,
            duration=trio.current_time() - context.began,
        )

    # --- turns ------------------------------------------------------------------

    def turn(
        self,
        messages: Input,
        *,
        params: RequestParams | None = None,
        tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None = None,
        hooks: ToolRunnerHooks | None = None,
        observers: Iterable[Observer] = (),
        output: object = None,
        output_retries: int = 2,
    ) -> ToolRunner:
        """A runner for one turn; use it in ``async with``.

        Args:
          messages: the input; may carry results for calls that are open.
          tools: instead of the agent's, for this turn.
          output: what the turn must end in, as for `structured`; see `ToolRunner.output`.
          output_retries: how many answers that do not fit it may go back to the model.

        Raises:
          NotEnteredError: the agent has toolsets or a session that are not open.
        """
        return self.__runner(
            messages,
            params=params,
            tools=tools,
            hooks=hooks,
            observers=observers,
            output=None if output is None else wanted(output, output_retries),
        )

    @trio.lowlevel.enable_ki_protection
    async def generate(
        self,
        messages: Input,
        *,
        params: RequestParams | None = None,
        tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None = None,
        hooks: ToolRunnerHooks | None = None,
        observers: Iterable[Observer] = (),
    ) -> v.Message:
        """Run one turn and return the model's last message.

        Checkpoint: always. If cancelled, the turn is interrupted, its history
        is valid and what finished is kept; see ``last_turn``. Errors as in
        `ToolRunner.until_done`.
        """
        runner = self.__runner(
            messages, params=params, tools=tools, hooks=hooks, observers=observers
        )
        runner.is_held = False
        return await runner.until_done()

    @trio.lowlevel.enable_ki_protection
    async def resume(
        self,
        *,
        params: RequestParams | None = None,
        tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None = None,
        hooks: ToolRunnerHooks | None = None,
        observers: Iterable[Observer] = (),
        unknown: UnknownPolicy | None = None,
        decisions: Mapping[str, object] | None = None,
    ) -> v.Message:
        """Go on with the newest turn, which has no answer yet; no tool runs twice unasked.

        After an error of the model the same messages are sent again. After a
        crash, results are kept and calls that never started run. A call that had
        started runs again, with its key and as its next attempt, if its tool is
        ``idempotent``; else it is answered ``unknown_after_crash``. A turn that was
        started with ``tools`` of its own needs them again.

        A turn that is suspended goes on with ``decisions`` on its `pending` calls; what
        is approved runs, and while some are undecided the turn is suspended again.
        Checkpoint: always.

        Args:
          unknown: asked about each call that had started, before anything is
            changed; says ``"rerun"``, ``"unknown"``, or what the result was.
          decisions: by call id: `Approve`, `Deny` or `Defer`; for an external call its
            result, a `ToolResult` or any value that a tool may return, or `Deny`. They
            take effect together, in one commit.

        Raises:
          NothingToResumeError: there is no such turn; see `can_resume`.
          DecisionError: a decision is not on a pending call, is no decision that the call
            can have, or was made on other arguments; nothing was changed.
          TurnSuspendedError: the turn is suspended, nothing is decided and nobody can be
            asked; nothing was changed.
        """
        runner = self.__runner(
            (),
            params=params,
            tools=tools,
            hooks=hooks,
            observers=observers,
            resume=True,
            unknown=unknown,
            decisions=decisions,
        )
        runner.is_held = False
        return await runner.until_done()

    @trio.lowlevel.enable_ki_protection
    async def run_tools(self, message: v.Message) -> v.Message:
        """Run the calls of one message by themselves: no turn, no history, no journal.

        A call that needs consent is asked about, and denied where nobody can be asked;
        so is one of an external tool. Checkpoint: always. If cancelled, no results are
        returned.

        Returns:
          The user message with one result per call, in order.

        Raises:
          ValueError: the message asks for no tools.
          NotEnteredError: the agent has toolsets or a session that are not open.
          FatalToolError: a tool raised it; several leave as one group.
        """
        self.__require_open()
        reply = normalise_reply(message, frozenset())
        if not reply.tool_calls:
            raise ValueError("the message asks for no tools; expected at least one call in it")
        turn = Turn(History(), 0)
        turn.model_replied(reply)
        if turn.reply is not None:
            notices = Notices(self.__config.observers)
            notices.begin(0)
            services = BatchServices(
                self,
                self.__conversation,
                Commits(None),
                notices,
                self.__config.params.over(DEFAULT_PARAMS),
                self.__config.commit_timeout,
                notices.listening,
                False,
                TurnContext(self.__conversation, None, self.__config.grace),
            )
            listed = await self.list_tools()
            batch = make_batch(turn, plan_tool_calls(reply, ToolTable(listed)), services, listed)
            await batch.run()
            batch.raise_fatal()
            if turn.open_positions:
                batch.deny_all("nobody could be asked about it, and nothing goes on later here.")
        await trio.lowlevel.checkpoint()
        last = turn.history.last
        assert last is not None
        return last

    # --- tools ------------------------------------------------------------------

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its own tools, without those of toolsets."""
        return self.__toolbox.own

    @trio.lowlevel.enable_ki_protection
    def add_tool(
        self, tool: Tool | ToolAgent | Callable[..., Any], *, replace: bool = False
    ) -> Tool:
        """Add a tool; the model is told of it at its next call.

        Raises:
          ValueError: there is a tool of that name, and ``replace`` is False.
        """
        return self.__toolbox.add(tool, replace=replace)

    @trio.lowlevel.enable_ki_protection
    def remove_tool(self, name: str) -> Tool:
        """Take one of its own tools away.

        Raises:
          KeyError: it has no tool of that name.
        """
        return self.__toolbox.remove(name)

    @trio.lowlevel.enable_ki_protection
    def add_agent_tool(
        self,
        child: ToolAgent,
        name: str | None = None,
        description: str | None = None,
        *,
        replace: bool = False,
        **options: Unpack[AgentToolOptions],
    ) -> Tool:
        """Let the model ask ``child``, on a clone for each call; see `agent_tool`.

        Toolsets of ``child`` are opened with this agent. Those of one that is added while
        this agent is entered already are opened for each call.

        Raises:
          ValueError: there is a tool of that name, and ``replace`` is False.
        """
        return self.add_tool(agent_tool(child, name, description, **options), replace=replace)

    # --- other agents -----------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def clone(
        self,
        *,
        journal: Journal | None = None,
        session: str | None = None,
        grace: float | None = None,
        history: Iterable[v.Message] | None = None,
    ) -> Self:
        """The same agent with a history of its own.

        It has this agent's model, settings, hooks, observers and tools as they are now, and
        shares its toolsets, which stay open while any of them is entered. Attributes of a
        subclass are shared (`copy.copy`). It may run a turn at any time, also while this
        agent does.

        Args:
          journal, session: where its conversation is kept (default: nowhere).
          grace: as for `ToolAgent` (default: this agent's).
          history: what it begins with (default: the templates).

        Raises:
          ValueError: a setting that cannot work.
        """
        config = attrs.evolve(self.__config, journal=journal, session_id=session)
        if grace is not None:
            config = attrs.evolve(config, grace=grace)
        if history is None:
            history = self.__conversation.history.templates()
        clone = copy.copy(self)
        clone.__set_up(Conversation(history), config, self.__toolbox.copy())
        return clone

    @trio.lowlevel.enable_ki_protection
    def fork(
        self,
        *,
        turns: int | None = None,
        journal: Journal | None = None,
        session: str | None = None,
    ) -> Self:
        """A `clone` that begins with this agent's history as it is: closed steps only.

        Args:
          turns: with the first so many turns alone; -1: all but the newest, to try it again.
          journal, session: where its conversation is kept (default: nowhere). A session
            alone is one of this agent's journal; the fork records nothing until it is entered.

        Raises:
          ValueError: a setting that cannot work, such as this agent's own session.
        """
        if session is not None and session == self.__config.session_id:
            raise ValueError(f"session {session!r} is this agent's own; give the fork another")
        if session is not None and journal is None:
            journal = self.__config.journal
        history = self.history if turns is None else first_turns(self.history, turns)
        return self.clone(journal=journal, session=session, history=history)

    def collect_open_toolsets(self, found: list[OpenToolsets]) -> None:
        """Add to ``found`` what must be open for its turns. For agents that have it as a tool."""
        self.__toolbox.collect_open(found)

    # --- opening and closing ----------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Open toolsets and session, unless another task has.

        Checkpoint: always. If it fails or is cancelled, what was opened is closed.
        """
        await self.__belongings.enter()
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what was opened when the last task leaves, within ``grace`` seconds."""
        await self.__belongings.leave(exc)
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()

    def __open_toolsets(self) -> Sequence[OpenToolsets]:
        found: list[OpenToolsets] = []
        self.collect_open_toolsets(found)
        return [each for each in found if not each.is_empty]

    async def __check_names(self) -> None:
        """Tell equal names of two toolsets now, not in the middle of a turn."""
        ToolTable(await self.list_tools())

    # --- inside -----------------------------------------------------------------

    def __require_open(self) -> None:
        if self.__belongings.are_missing:
            raise NotEnteredError(
                f"agent {self.name!r} has toolsets or a session, which 'async with agent:' opens; "
                "use it inside that block"
            )

    def __runner(
        self,
        messages: Input,
        *,
        params: RequestParams | None,
        hooks: ToolRunnerHooks | None,
        observers: Iterable[Observer],
        tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None = None,
        resume: bool = False,
        unknown: UnknownPolicy | None = None,
        decisions: Mapping[str, object] | None = None,
        output: Wanted | None = None,
    ) -> ToolRunner:
        self.__require_open()
        return ToolRunner(
            self,
            messages,
            params=params,
            hooks=hooks,
            observers=observers,
            tools=None if tools is None else [as_any_tool(each) for each in tools],
            resume=resume,
            unknown=unknown,
            decisions=decisions,
            output=output,
        )


def _expect(given: object, name: str, method: str, wanted: str) -> None:
    if not callable(getattr(given, method, None)):
        raise TypeError(f"{name} is {given!r}; expected {wanted}")
