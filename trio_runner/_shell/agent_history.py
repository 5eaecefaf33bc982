"""`AgentHistory`: what may be done with an agent's conversation between its turns.

What may live here: the part of `ToolAgent` that its users call to read, load and
shorten the history. What it does is in ``conversation.py`` and ``_core/compaction.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

import trio_runner._core.compaction as compaction
import trio_runner._core.values as v
from trio_runner._core.approval import Deny, PendingCall
from trio_runner._core.session_usage import SessionUsage
from trio_runner._shell.compacting import CompactionReport
from trio_runner._shell.conversation import Conversation, LastTurn
from trio_runner.abc import Summarizer


class AgentHistory:
    """The conversation of an agent, for its users.

    Args:
      require_open: raises `NotEnteredError` while toolsets or session are not open.
      compact: does what `compact` promises.
    """

    def __init__(
        self,
        conversation: Conversation,
        require_open: Callable[[], None],
        compact: Callable[[int | None, Summarizer | None], Awaitable[CompactionReport | None]],
    ) -> None:
        self.__conversation = conversation
        self.__require_open = require_open
        self.__compact = compact

    @property
    def history(self) -> tuple[v.Message, ...]:
        """The conversation so far: closed steps only, always valid."""
        return self.__conversation.history.snapshot()

    @property
    def last_turn(self) -> LastTurn | None:
        """How the newest turn ended; None before the first end and while one runs."""
        return self.__conversation.last_turn

    @property
    def usage(self) -> SessionUsage:
        """What the turns of the conversation took, the newest as far as it is.

        Of a session that was opened: what all its turns took, in whatever process. A turn
        without history is recorded nowhere, and counts while the agent lives.
        """
        return self.__conversation.usage

    @property
    def can_resume(self) -> bool:
        """Whether `resume` has a turn to go on with: the newest has no answer, and none runs.

        Raises:
          NotEnteredError: the session is not open, so nobody knows.
        """
        self.__require_open()
        return self.__conversation.can_resume

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a word, in the order of the request; see `ToolAgent.resume`.

        () while a turn runs. A turn that is suspended waits for them; one that a crash cut
        while its approver was asked has them too.

        Raises:
          NotEnteredError: the session is not open, so nobody knows.
        """
        self.__require_open()
        return self.__conversation.pending

    @trio.lowlevel.enable_ki_protection
    def deny_pending(self, reason: str = "") -> tuple[v.ToolResult, ...]:
        """Give a suspended turn up: its open calls are answered ``denied``, and it ends.

        The next turn may begin then; `resume` would ask the model with the answers.

        Args:
          reason: for the model to read.

        Returns:
          The answers; () when no turn is suspended.

        Raises:
          BusyError: a turn is running; nothing was changed.
          NotEnteredError: the session is not open.
        """
        self.__require_open()
        return self.__conversation.deny_pending(Deny(reason).reason)

    @trio.lowlevel.enable_ki_protection
    def load_history(self, messages: Iterable[v.Message]) -> None:
        """Put ``messages`` in the place of the history; what is damaged is repaired.

        A step left open at the end is kept aside until the next turn begins
        (which answers it) or `resume` takes it up. Template messages go to the front.

        Raises:
          BusyError: a turn is running; nothing was changed.
          NotEnteredError: the session is not open.
          TurnSuspendedError: the newest turn is suspended; nothing was changed.
        """
        self.__require_open()
        self.__conversation.load(messages)

    @trio.lowlevel.enable_ki_protection
    def take_over(self, agent: AgentHistory) -> None:
        """Go on with the conversation of ``agent``, which hands it over.

        What was said there takes the place of what was said here, behind this agent's own
        templates. ``agent`` keeps its conversation, and each keeps its session: in this one
        it is one record. The instruction, model and tools are this agent's from here on.

        Raises:
          BusyError: a turn is running on one of them; nothing was changed.
          NotEnteredError: the session is not open.
          TurnSuspendedError: the newest turn of one is suspended; nothing was changed.
          UsageError: the newest turn of ``agent`` has calls without results, after a crash;
            nothing was changed.
        """
        self.__require_open()
        self.__conversation.take_over(agent.__conversation)

    @trio.lowlevel.enable_ki_protection
    def clear(self) -> None:
        """Forget the conversation but for its templates.

        Raises:
          BusyError: a turn is running; nothing was changed.
          NotEnteredError: the session is not open.
          TurnSuspendedError: the newest turn is suspended; nothing was changed.
        """
        self.__require_open()
        self.__conversation.load(self.__conversation.history.templates())

    @trio.lowlevel.enable_ki_protection
    def choose_cut(self, *, keep: int = 2, at: int | None = None) -> compaction.HistoryCut | None:
        """What a summary of yours is to replace: all but the newest ``keep`` turns.

        Summarise ``cut.messages``, then hand the cut to `replace_with_summary`.

        Args:
          at: cut before this message of ``history`` instead, which begins a turn or a step.

        Returns:
          The cut; None when there is nothing older to summarise.

        Raises:
          HistoryError: a cut ``at`` there parts a step, or leaves nothing to replace.
          ValueError: ``keep`` is negative.
        """
        history = self.__conversation.history
        if at is not None:
            return compaction.cut_at(history, at)
        return compaction.choose_cut(history, keep)

    @trio.lowlevel.enable_ki_protection
    async def compact(
        self, *, keep_turns: int | None = None, summarizer: Summarizer | None = None
    ) -> CompactionReport | None:
        """Have a summary written that replaces the older turns, and put it in their place.

        The same as an automatic compaction, at any size of the context; `Compaction` says
        what stays. What was replaced stays in the journal: see `full_history`. While it runs,
        the agent takes no turn. Checkpoint: always. If cancelled before the summary is there,
        nothing was changed; later, the commit is finished within ``grace``.

        Args:
          keep_turns: instead of the setting.
          summarizer: instead of the agent's.

        Returns:
          What was done; None when there was nothing to do: no more turns than are kept.

        Raises:
          BusyError: a turn or a compaction is running; nothing was changed.
          CompactionError: no summary came, or none that fits; nothing was changed.
          CommitFailedError, CommitUnknownError: with ``durability="strict"``.
          NotEnteredError: the session is not open.
        """
        await trio.lowlevel.checkpoint()
        self.__require_open()
        return await self.__compact(keep_turns, summarizer)

    @trio.lowlevel.enable_ki_protection
    def replace_with_summary(self, cut: compaction.HistoryCut, summary: v.Message | str) -> None:
        """Put ``summary`` in the place of ``cut``, which `choose_cut` gave.

        One commit. What was replaced stays in the journal: see `full_history`. The
        summary's ``meta`` says ``is_summary``, and templates stay in front of it.

        Raises:
          BusyError: a turn is running; nothing was changed.
          HistoryError: the history has changed since the cut was chosen, or the summary is
            no plain message with content; nothing was changed.
          NotEnteredError: the session is not open.
        """
        self.__require_open()
        self.__conversation.require_idle("compact the history")
        history = self.__conversation.history
        self.__conversation.shorten(compaction.compacted(history, cut, summary))

    @trio.lowlevel.enable_ki_protection
    def trim(self, *, keep: int = 0) -> int:
        """Take out what the answers no longer need: all tool steps of a turn but its last.

        Only answered turns are trimmed, and what was said stays. One commit; what
        was taken out stays in the journal: see `full_history`.

        Args:
          keep: the newest so many turns are left as they are.

        Returns:
          How many messages were taken out.

        Raises:
          BusyError: a turn is running; nothing was changed.
          NotEnteredError: the session is not open.
          ValueError: ``keep`` is negative.
        """
        self.__require_open()
        self.__conversation.require_idle("trim the history")
        return self.__conversation.trim(keep)
