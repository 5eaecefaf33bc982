"""``trio-runner sessions resume``: a turn that was cut, taken up with the user's agent.

What may live here: making the agent on the session, and telling how the turn went.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import trio_runner as tr
import trio_runner._cli.check_target as check_target
import trio_runner._cli.sessions_view as sessions_view
import trio_runner._cli.terminal as terminal

#: The exit status when the turn waits for decisions.
WAITS: Final = 3


class Resumption:
    """One use of the command.

    Args:
      decisions: on calls that wait, by id.

    Raises:
      TargetError: there is no such factory, or it makes no agent on a session.
    """

    def __init__(
        self,
        journal: tr.SqliteJournal,
        session: str,
        target: str,
        decisions: Mapping[str, tr.Decision],
    ) -> None:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the answer
            self._agent = _agent(journal, session, target)
        self._session = session
        self._decisions = dict(decisions)
        #: The calls that wait, when nothing more can be done.
        self._pending: Sequence[tr.PendingCall] = ()

    def run(self, *, as_json: bool) -> int:
        """Resume the turn and show its answer; return the exit status.

        Raises:
          NothingToResumeError: the session has no turn without an answer.
          DecisionError: a decision does not fit.
        """
        error: Exception | None = None
        reply: tr.Message | None = None
        try:
            with contextlib.redirect_stdout(sys.stderr):
                reply = tr.run(self._resume)
        except (tr.JournalError, tr.NothingToResumeError, tr.DecisionError):
            raise
        except tr.TurnSuspendedError:
            pass  # nothing was decided: what waits is shown
        except KeyboardInterrupt:
            return self._interrupted()
        # The agent is the user's, and may raise anything.
        except Exception as problem:  # noqa: BLE001  the border: it is shown
            error = problem
        except BaseExceptionGroup as group:
            _, rest = group.split(KeyboardInterrupt)
            if rest is not None:
                raise
            return self._interrupted()
        return self._show(reply, error, as_json=as_json)

    async def _resume(self) -> tr.Message:
        async with self._agent as agent:
            self._pending = agent.pending
            reply = await agent.resume(decisions=self._decisions or None)
            self._pending = agent.pending
            return reply

    def _show(self, reply: tr.Message | None, error: Exception | None, *, as_json: bool) -> int:
        last = self._agent.last_turn
        end_reason = None if last is None else last.end_reason.value
        answer = None if reply is None else reply.text
        out = terminal.Output(terminal.console())
        if error is not None:
            trace = terminal.printable(check_target.trace_of(error))
            sys.stderr.write(f"trio-runner sessions: the turn failed:\n{trace}\n")
        if as_json:
            report: dict[str, object] = {
                "session_id": self._session,
                "end_reason": end_reason,
                "answer": answer,
                "pending": [each.as_json() for each in self._pending],
            }
            out.raw(json.dumps(report) + "\n")
        elif answer and answer.strip():
            out.line(answer)
        lost = out.finish()
        if lost or error is not None:
            return 1
        for line in sessions_view.pending_lines(self._pending):
            sys.stderr.write(f"{terminal.printable(line)}\n")
        return WAITS if self._pending else 0

    def _interrupted(self) -> int:
        sys.stderr.write(
            f"trio-runner sessions: interrupted; session {self._session!r} is kept, and the same "
            "command goes on with it\n"
        )
        return 130


def _agent(journal: tr.SqliteJournal, session: str, target: str) -> tr.ToolAgent:
    factory = check_target.find(target).factory
    parameters = inspect.signature(factory).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    missing = [] if takes_any else [n for n in ("journal", "session") if n not in parameters]
    model = parameters.get("model")
    if missing:
        raise check_target.TargetError(
            f"{target} does not take {' and '.join(missing)}; expected a function that makes a "
            "trio_runner.ToolAgent with journal= and session="
        )
    if model is not None and model.default is model.empty:
        raise check_target.TargetError(
            f"{target} needs 'model'; expected a function that brings its own model"
        )
    try:
        agent = factory(journal=journal, session=session)
    except check_target.TargetError:
        raise
    except Exception as error:
        # The user's function may raise anything.
        raise check_target.TargetError(
            f"{target} raised:\n{check_target.trace_of(error)}"
        ) from error
    _check_session(agent, journal, session, target)
    return agent


def _check_session(
    agent: tr.ToolAgent, journal: tr.SqliteJournal, session: str, target: str
) -> None:
    """Refuse an agent that would go on with something else, before anything is opened."""
    config = getattr(agent, "config", None)
    if type(config) is not tr.LoopConfig:
        raise check_target.TargetError(
            f"{target} returned {agent!r}; expected a trio_runner.ToolAgent on session {session!r}"
        )
    if config.session_id != session:
        made = "an agent without a session"
        if config.session_id is not None:
            made = f"an agent of session {config.session_id!r}"
        raise check_target.TargetError(
            f"{target} made {made}; expected one of session {session!r}, which it was given as "
            "session=. Nothing was opened or run"
        )
    if config.journal is not journal and getattr(config.journal, "path", None) != journal.path:
        raise check_target.TargetError(
            f"{target} made an agent on another journal; expected the one of {journal.path!r}, "
            "which it was given as journal=. Nothing was opened or run"
        )
