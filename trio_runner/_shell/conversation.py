"""`Conversation`: what outlives a turn: the history, its session, the one-turn lock.

An agent has one; the runner works on it and on nothing else of the agent's
state, so that any object with a conversation can be driven (`ToolLoopAgent`).
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Sequence

import attrs

import trio_runner._core.compaction as compaction
import trio_runner._core.records as r
import trio_runner._core.stand_ins as stand_ins
import trio_runner._core.values as v
from trio_runner._core.approval import PendingCall, pending_calls
from trio_runner._core.errors import (
    BusyError,
    HistoryError,
    NothingToResumeError,
    UsageError,
)
from trio_runner._core.estimate import Meter
from trio_runner._core.fold import RecordError, fold
from trio_runner._core.history import History
from trio_runner._core.loading import answered, split_open_step, templates_first
from trio_runner._core.reconcile import reconcile_interrupted_history
from trio_runner._core.session_usage import SessionUsage
from trio_runner._core.turn import Phase, Turn
from trio_runner._core.validity import history_problems, result_problems
from trio_runner._shell.commits import Commits
from trio_runner._shell.consent import deny_all, require_not_suspended, words_on
from trio_runner._shell.last_turn import LastTurn as LastTurn
from trio_runner._shell.last_turn import last_turn as last_turn
from trio_runner.abc import JournalSession

_log = logging.getLogger("trio_runner")


class Conversation:
    """History and session of one agent.

    Invariant: ``history`` is valid after every call (``test_conversation.py``).
    """

    def __init__(self, messages: Iterable[v.Message] = ()) -> None:
        #: Closed steps only.
        self.history: History = History()
        #: Estimates the history where no reply says how long it is.
        self.meter: Meter = Meter()
        #: The newest turn on the history; not ENDED while it runs, or when a crash or a
        #: load left it open.
        self.turn: Turn | None = None
        #: The newest turn of all, which may be one without history; what `resume` takes up.
        self.newest: Turn | None = None
        #: What all turns but `turn` and `newest` took, and the summaries.
        self._usage_before = SessionUsage()
        #: Counts turns from 1.
        self.turns: int = 0
        self.commits: Commits = Commits(None)
        #: The commits of the session that was open last.
        self._left: Commits | None = None
        #: When the finishing of the newest turn must be over; -inf before its first interrupt.
        self.grace_deadline: float = -math.inf
        #: The results that a loaded open step came with; None when the open turn, if any, comes
        #: from a session. A loaded history does not say what ran.
        self._loaded: tuple[v.ToolResult, ...] | None = None
        #: Names the session in idempotency keys; a random name when nothing is kept.
        self._name = secrets.token_hex(4)
        #: What runs the present turn; None when the agent is free.
        self._holder: object | None = None
        #: How the newest turn ended, as a question to whoever ran it.
        self._last: Callable[[], LastTurn | None] | None = None
        given = tuple(messages)
        if given:
            self.load(given)

    # --- the one-turn lock ------------------------------------------------------

    def acquire(self, holder: object) -> None:
        """Take the conversation for a turn.

        Raises:
          BusyError: another turn has it; nothing was changed.
        """
        if self._holder is not None:
            raise BusyError(
                "another turn, or a compaction, is running on this agent; wait for its end, or use "
                "agent.clone(), which has a history of its own"
            )
        self._holder = holder

    def release(self, holder: object) -> None:
        """Free the conversation; harmless when ``holder`` does not have it."""
        if self._holder is holder:
            self._holder = None

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running."""
        return self._holder is not None

    def require_idle(self, what: str) -> None:
        """Refuse ``what`` while a turn or a compaction runs."""
        if self._holder is not None:
            raise BusyError(f"cannot {what} while a turn is running on this agent")

    # --- turns ------------------------------------------------------------------

    def new_turn(self) -> Turn:
        """The machine of the next turn."""
        self.turns += 1
        self._usage_before = self.usage
        self.newest = self.turn = Turn(self.history, self.turns)
        return self.turn

    def new_turn_aside(self) -> Turn:
        """The machine of a turn without history: on the templates, and kept nowhere."""
        self.turns += 1
        templates = History(self.history.templates())
        if self.newest is not self.turn:
            self._usage_before = self._usage_before.with_turn(self.newest)
        self.newest = Turn(templates, self.turns, sends_whole_turn=True)
        return self.newest

    @property
    def usage(self) -> SessionUsage:
        """What its turns took; of an opened session, all that is recorded there."""
        usage = self._usage_before.with_turn(self.turn)
        return usage if self.newest is self.turn else usage.with_turn(self.newest)

    def unfinished_turn(self) -> Turn:
        """The turn to go on with: the newest, or the one that a crash or a load left open.

        Raises:
          NothingToResumeError: there is none.
        """
        newest, kept = self.newest, self.turn
        if newest is None:
            raise NothingToResumeError("the agent has had no turn yet; start one")
        if kept is None or newest is kept:
            return newest
        # After a turn without history the one on the history counts again; at once when it is
        # suspended, since nothing else can begin before somebody has decided.
        done = newest.end_reason is not None and not newest.can_resume
        if kept.is_suspended and not newest.is_suspended:
            return kept
        return kept if done and kept.phase is not Phase.ENDED else newest

    @property
    def can_resume(self) -> bool:
        """Whether a turn may be taken up now."""
        if self._holder is not None or self.newest is None:
            return False
        return self.unfinished_turn().can_resume

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls that wait for a word, in the order of the request; () while a turn runs."""
        busy = self._holder is not None or self.newest is None
        return () if busy else pending_calls(self.unfinished_turn())

    def deny_pending(self, reason: str) -> tuple[v.ToolResult, ...]:
        """Give a suspended turn up; returns the answers to its open calls, () without one."""
        self.require_idle("deny the pending calls")
        turn = None if self.newest is None else self.unfinished_turn()
        if turn is None or not turn.is_suspended:
            return ()
        results, records = deny_all(turn, reason)
        self._counts_again(turn)
        if turn.history is self.history:
            self.commits.add(*records)
        return tuple(results)

    def take_up(self) -> Turn:
        """Go on with the unfinished turn; its calls that had started are cut.

        Raises:
          NothingToResumeError: there is none.
        """
        turn = self.unfinished_turn()
        turn.resumed()
        self._loaded = None
        self._counts_again(turn)
        return turn

    def _counts_again(self, turn: Turn) -> None:
        """Make ``turn`` the newest, whatever turn without history came after it."""
        if turn is not self.newest:
            self._usage_before = self._usage_before.with_turn(self.newest)
            self.newest = turn

    def key_prefix(self, turn: Turn) -> str:
        """The ``turn:step`` part of the idempotency keys of the turn's present step."""
        # What is recorded nowhere may have the same numbers again after a restart.
        name = self._name if turn.history is self.history else secrets.token_hex(4)
        return f"{name}/{turn.number}:{turn.step}"

    def started_record(
        self,
        turn: Turn,
        call: v.ToolCall,
        *,
        tool: str | None = None,
        idempotent: bool = False,
        after: r.ToolStarted | None = None,
    ) -> r.ToolStarted:
        """The record that ``call`` may run from here on.

        Args:
          tool: the name of what runs, which need not be the call's; None: it is.
          after: the record of its start that a crash cut: the key stays, the attempt is the next.
        """
        return r.ToolStarted(
            turn.number,
            turn.step,
            call.id,
            call.name if tool is None else tool,
            r.arguments_hash(call.arguments),
            f"{self.key_prefix(turn)}:{call.id}" if after is None else after.key,
            idempotent,
            1 if after is None else after.attempt + 1,
        )

    def tells_last_turn(self, last: Callable[[], LastTurn | None]) -> None:
        """Ask ``last`` how the newest turn ended, once it has."""
        self._last = last

    @property
    def last_turn(self) -> LastTurn | None:
        """How the newest turn ended; None while it runs."""
        return self._last() if self._last is not None else None

    def match_results(self, results: Sequence[v.ToolResult]) -> None:
        """Take results that came from outside as the answers of the open step.

        Raises:
          HistoryError: one of them answers no open call; nothing was changed.
          TurnSuspendedError: the turn is suspended, and they do not answer all of its calls.
        """
        turn = self.turn
        problems = [
            f"a result for call {result.call_id!r}, which is not open"
            for result in results
            if turn is None or turn.position_of(result.call_id) is None
        ]
        ids = [result.call_id for result in results]
        problems += [f"{ids.count(i)} results for call {i!r}" for i in set(ids) if ids.count(i) > 1]
        for result in results:
            problems += [
                f"result for {result.call_id!r}: {each}" for each in result_problems(result)
            ]
        if problems:
            raise HistoryError(sorted(problems))
        if turn is not None and turn.is_suspended:
            if len(results) < len(turn.open_positions):
                require_not_suspended(turn, "start a turn")
            turn.resumed()
            self.commits.add(r.TurnStarted(turn.number, (), resumed=True))
        for result in results:
            assert turn is not None
            self.finish_call(turn, result)

    def heal(self) -> tuple[v.ToolResult, ...]:
        """Answer what a crash or a load left open, and end that turn; the repair is recorded.

        Returns:
          The results that were made; () when nothing was open.
        """
        turn = self.turn
        if turn is None or turn.phase is Phase.ENDED:
            return ()
        made = self.answer_started(turn)
        rest = turn.interrupt(v.EndReason.INTERRUPTED, crashed=True)
        for result in rest:
            self.commits.add(r.ToolFinished(turn.number, turn.step, result))
        assert turn.end_reason is not None
        self.commits.add(r.TurnEnded(turn.number, turn.end_reason))
        return (*made, *rest)

    def answer_started(self, turn: Turn) -> tuple[v.ToolResult, ...]:
        """Answer the open calls of a cut turn that may have run, and none of them runs again."""
        step = turn.open_step
        loaded, self._loaded = self._loaded is not None, None
        if step is None:
            return ()
        made: list[v.ToolResult] = []
        for position in turn.started_positions:
            call = step.reply.tool_calls[position]
            if loaded:
                made.append(stand_ins.unrecorded(call))
            else:
                made.append(step.as_it_ran(position, stand_ins.crashed(call, started=True)))
        for result in made:
            self.finish_call(turn, result)
        return tuple(made)

    def finish_call(self, turn: Turn, result: v.ToolResult) -> None:
        """An open call of the turn on the history has its result, from elsewhere."""
        position, reply, step = turn.position_of(result.call_id), turn.reply, turn.step
        assert position is not None
        assert reply is not None
        # A result from outside may lack the name of its call.
        result = attrs.evolve(result, name=reply.tool_calls[position].name)
        turn.tool_finished(position, result)
        self.commits.add(r.ToolFinished(turn.number, step, result))

    # --- history as a whole -----------------------------------------------------

    def replace_history(self, messages: Iterable[v.Message], turn: Turn | None = None) -> None:
        """Put ``messages`` in the place of the history.

        Args:
          turn: the running turn; without one the step that is kept aside counts. An open
            step stays open behind them.

        Raises:
          HistoryError: they are not valid; nothing was changed.
        """
        given = templates_first(messages)
        if turn is None and self.turn is not None and self.turn.phase is not Phase.ENDED:
            turn = self.turn
        reply = turn.reply if turn is not None else None
        step = () if reply is None else answered(reply)
        problems = history_problems([*given, *step])
        if problems:
            raise HistoryError(problems)
        if turn is not None:
            turn.history_replaced(given)
        else:
            self.history.replace(given)
        if turn is None or turn.history is self.history:
            self.commits.add(r.HistoryReplaced(given))

    def shorten(self, record: r.Compacted | r.Trimmed) -> None:
        """Compact or trim the history as ``record`` says; an open step stays open.

        Only whoever holds the conversation may do so while a turn runs.

        Raises:
          HistoryError: it does not fit, or cuts a step; nothing was changed.
        """
        compaction.shorten(self.history, record)
        self.commits.add(record)
        self._usage_before = self._usage_before.with_shortening(record)

    def trim(self, keep: int) -> int:
        """Take the older tool steps out of answered turns; returns how many messages went.

        Args:
          keep: the newest so many turns are left as they are.

        Raises:
          ValueError: ``keep`` is negative.
        """
        record = compaction.trimmed(self.history, keep)
        if record is None:
            return 0
        self.shorten(record)
        return record.before - len(self.history)

    def load(self, messages: Iterable[v.Message]) -> None:
        """Take over a history from elsewhere.

        A step that is open at its end is kept aside until the next turn begins
        or resumes; everything else that is damaged is repaired.
        """
        self.require_idle("load a history")
        require_not_suspended(self.turn, "replace the history")
        given = templates_first(messages)
        closed, reply, results = split_open_step(given)
        repaired, _ = reconcile_interrupted_history(closed)
        if reply is not None and history_problems([*repaired, *answered(reply, results)]):
            # Only a step that is sound in itself can be taken up again.
            repaired, _ = reconcile_interrupted_history(given)
            reply = None
        repaired = templates_first(repaired)  # the repair may have made an answer of its own
        self.heal()
        self.history.replace(repaired)
        self.commits.add(r.HistoryReplaced(repaired))
        if reply is not None:
            self._open_step(reply, results)

    def take_over(self, source: Conversation) -> None:
        """Put what was said in ``source`` behind the templates; see `AgentHistory.take_over`."""
        source.require_idle("hand the conversation over")
        require_not_suspended(source.turn, "hand the conversation over")
        if source.turn is not None and source.turn.reply is not None:
            raise UsageError(
                "the conversation to take over ends with calls that have no results; resume its "
                "turn, or begin another there, which answers them. Nothing was changed"
            )
        said = [message for message in source.history.snapshot() if not message.template]
        self.load([*self.history.templates(), *said])

    def _open_step(self, reply: v.Message, results: Sequence[v.ToolResult]) -> None:
        turn = self.new_turn()
        turn.model_replied(reply)
        for result in results:
            position = turn.position_of(result.call_id)
            assert position is not None
            turn.tool_finished(position, result)
        for position in turn.open_positions:
            # Nothing says that they did not run.
            turn.tool_started(position)
        self._loaded = tuple(results)
        self._record_turn(turn)

    def _record_turn(self, turn: Turn) -> None:
        """Record of ``turn``, which has closed no step here, what the history does not tell."""
        number, step = turn.number, turn.open_step
        records: list[r.Record] = [r.TurnStarted(number, ())]
        if step is not None:
            records.append(r.ModelFinished(number, turn.step, step.reply))
            records += [
                r.ToolFinished(number, turn.step, result, tuple(step.attached.get(position, ())))
                for position, result in enumerate(step.results)
                if result is not None
            ]
            records += [
                self.started_record(turn, step.reply.tool_calls[position])
                for position in turn.started_positions
            ]
            records += words_on(turn, step)
        if turn.end_reason is not None:
            records.append(r.TurnEnded(number, turn.end_reason))
        self.commits.add(*records)

    # --- the session ------------------------------------------------------------

    def attach(self, session: JournalSession, name: str, agent: str) -> None:
        """Take over an opened session.

        Raises:
          UsageError: both the conversation and the session have messages.
          RecordError: the records do not fit together; nothing was changed.
        """
        self.require_idle("open a session")
        records = session.records
        state = fold(records)
        own = self.history.snapshot()
        if own and records and name != self._name and own != state.history.templates():
            raise UsageError(
                f"session {name!r} holds {len(state.history)} messages and the agent has "
                f"{len(own)} of its own; give the history or the session, not both (templates "
                "that are those of the session may be given)"
            )
        if not records:
            if self._loaded is None:
                # Cut by a crash, in a session that has gone since.
                self.heal()
            self._name = name
            self.commits = Commits(session)
            self._begin_session(agent)
        elif lacking := self._lacking(records, name):
            # The store failed and works again: what it lacks is known.
            self.commits = Commits(session)
            self.commits.add(*lacking)
        else:
            self.commits = Commits(session)
            if name == self._name and state.history.view() != self.history.view():
                _log.warning("session %r is not what this agent had; the session wins", name)
            self.history, self.turn, self.turns = state.history, state.turn, state.turns
            self.newest = state.turn
            self._usage_before = state.usage_before
            self._last = functools.partial(_stored_turn, state.turn)
            self._loaded = None
            self._name = name

    def _lacking(self, records: Sequence[r.Record], name: str) -> Sequence[r.Record]:
        """What makes ``records`` what this agent has; () when nothing does, or is needed."""
        if name != self._name or self._left is None:
            return ()
        for lacking in filter(None, self._left.not_stored()):
            try:
                whole = fold([*records, *lacking])
            except RecordError:
                continue
            if whole.turns == self.turns and whole.history.view() == self.history.view():
                return lacking
        return ()

    def _begin_session(self, agent: str) -> None:
        """Record what there is already, so that the session opens as it is here."""
        self.commits.add(r.SessionOpened(agent))
        if len(self.history):
            self.commits.add(r.HistoryReplaced(self.history.snapshot()))
        if self.turn is not None:
            # Without it `resume` would go on with a turn that the session does not know.
            self._record_turn(self.turn)

    def detach(self) -> None:
        """Let go of the session; history stays in memory and nothing more is recorded."""
        self._left = self.commits
        self.commits = Commits(None)


def _stored_turn(turn: Turn | None) -> LastTurn | None:
    return None if turn is None else last_turn(turn, turn.rollback)
