"""`Belongings`: what an agent has open while it is entered: its toolsets and its session.

What may live here: opening all of it or nothing, counting the tasks that use
it, and closing it within ``grace`` when the last one leaves. The toolsets of the
agents that are its tools belong to it as well.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

import trio_runner._shell.finishing as finishing
import trio_runner._shell.leaving as leaving
from trio_runner._shell.commits import Commits
from trio_runner._shell.conversation import Conversation
from trio_runner._shell.open_toolsets import OpenToolsets
from trio_runner.abc import Journal, JournalSession

_log = logging.getLogger("trio_runner")


class Belongings:
    """Opened by the first task that enters the agent, closed by the last one that leaves.

    Args:
      toolsets: asked for those of the agent and of the agents that are its tools.
      on_open: awaited when all is open; what it raises closes all again.
    """

    def __init__(
        self,
        conversation: Conversation,
        *,
        name: str,
        toolsets: Callable[[], Sequence[OpenToolsets]],
        journal: Journal | None,
        session_id: str | None,
        grace: float,
        on_open: Callable[[], Awaitable[None]],
    ) -> None:
        self._conversation = conversation
        self._name = name
        self._toolsets = toolsets
        self._journal = journal
        self._session_id = session_id
        self._grace = grace
        self._on_open = on_open
        #: Tasks inside; what they share is open while there are any.
        self._users = 0
        self._are_open = False
        self._gate = trio.Lock()
        #: Those that this agent is a user of.
        self._entered: list[OpenToolsets] = []
        #: Those that are to be closed, or that another user has open still.
        self._left: list[OpenToolsets] = []
        self._session: JournalSession | None = None

    @property
    def are_missing(self) -> bool:
        """Whether there is something to open, and it is not open."""
        return not self._are_open and (self._journal is not None or bool(self._toolsets()))

    async def enter(self) -> None:
        """Open everything, unless another task has. A checkpoint."""
        await trio.lowlevel.checkpoint()
        async with self._gate:
            if not self._are_open:
                await self._open()
            self._users += 1

    async def leave(self, exc: BaseException | None) -> None:
        """Close everything when this is the last task; ``exc`` is on its way out meanwhile."""
        if not self._users:
            return  # closed once more than it was opened
        self._users -= 1
        if self._users or not self._are_open:
            return
        try:
            await self._finish(self._close_if_unused, exc)
        except Exception as error:
            # What leaves the block already, or the caller's cancel, goes before it.
            if exc is None and not leaving.cancelled_from_outside():
                raise
            _report(error)

    async def _open(self) -> None:
        """Open everything, or nothing: what was opened when it fails is closed again."""
        try:
            for toolsets in self._toolsets():
                self._left.append(toolsets)  # it may fail half-way
                await toolsets.enter()
                self._entered.append(self._left.pop())
            if self._journal is not None and self._session_id is not None:
                self._session = await self._journal.open(self._session_id)
                self._conversation.attach(self._session, self._session_id, self._name)
            await self._on_open()
        except BaseException as failure:
            try:
                await self._finish(self._close, failure)
            except Exception as error:  # noqa: BLE001  why the opening failed matters more
                _report(error)
            raise
        self._are_open = True

    async def _finish(
        self, async_fn: Callable[[], Awaitable[None]], leaves: BaseException | None
    ) -> None:
        if self._entered or self._left or self._session is not None:
            deadline = trio.current_time() + self._grace
            await finishing.finish(async_fn, deadline=deadline, report=_report, leaves=leaves)

    async def _close_if_unused(self) -> None:
        async with self._gate:
            if not self._users and self._are_open:
                await self._close()

    async def _close(self) -> None:
        """Close what is open; the caller holds the gate and brings the deadline."""
        entered, self._entered = self._entered, []
        left, self._left = [*self._left, *entered], []
        session, self._session = self._session, None
        self._are_open = False
        for toolsets in entered:
            toolsets.leave()
        try:
            await self._close_session(session)
        finally:
            await _wait_closed(left)

    async def _close_session(self, session: JournalSession | None) -> None:
        commits = self._conversation.commits
        self._conversation.detach()
        deadline = trio.current_time() + self._grace
        try:
            deadline = self._session_deadline(commits)
            commits.send_missed()
        finally:
            if session is not None:
                try:
                    with trio.CancelScope(deadline=deadline):
                        await session.aclose()
                finally:
                    commits.give_up(self._grace)

    def _session_deadline(self, commits: Commits) -> float:
        """How long the session may take to close: no second grace after an interrupted turn."""
        now = trio.current_time()
        if commits.is_stalled:
            return now
        shared = self._conversation.grace_deadline
        return shared if shared > now else now + self._grace


async def _wait_closed(left: Sequence[OpenToolsets]) -> None:
    """Wait for each; when one fails, or time is up, the others are still looked after."""
    if left:
        try:
            await left[0].wait_closed()
        finally:
            await _wait_closed(left[1:])


def _report(error: BaseException) -> None:
    _log.error("an error was overtaken by another while an agent closed", exc_info=error)
