"""One server kept connected for as long as somebody uses it.

What may live here: who is inside, which connection is the present one, and when
another takes its place. `Connection` is one life; this is what outlasts it.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

import trio_runner_adapters.mcp._connection as connections
import trio_runner_adapters.mcp._errors as errors
from trio_runner_adapters._finishing import wait_closed

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Above ``close_timeout``, for the steps of closing that are not the server's.
_CLOSE_SLACK: Final = 2.0


class Upkeep:
    """Counts the users of a server, and gives them a connection.

    Invariant: at most one connection at a time is neither over nor retired
    (`test_kD4_concurrent_callers_share_one_reconnect`).

    Args:
      reconnects: whether a connection that is over may be followed by another while
        users are inside.
    """

    def __init__(
        self, connector: connections.Connector, plan: connections.Plan, *, reconnects: bool
    ) -> None:
        self._connector = connector
        self._plan = plan
        self.reconnects = reconnects
        #: The present connection; None when nobody is inside.
        self.current: connections.Connection | None = None
        #: Who is inside.
        self.users = 0
        #: Earlier connections that are not closed yet.
        self._earlier: list[connections.Connection] = []

    async def join(self) -> connections.Connection:
        """Count one more user and return the connection to wait for, a new one if need be.

        Cancelled, nobody was counted.
        """
        while True:
            current = self.current
            if current is not None and current.closed.is_set() and not current.is_of_this_run():
                # Its run ended and closed it; nobody was left to leave.
                self.current, self.users, self._earlier = None, 0, []
                continue
            if current is None or (self.users > 0 and self._is_failed_start(current)):
                current = self._begin()
            elif self.users == 0:
                # Its last user has left: two lives of a server never overlap.
                await current.closed.wait()
                if self.current is current:
                    self.current = None
                continue
            self.users += 1
            return current

    async def leave(self) -> None:
        """Count one user less; the last one closes and waits for it, bounded.

        Also when cancelled, and then it raises no Cancelled of its own.
        """
        self.users -= 1
        current = self.current
        if self.users > 0 or current is None:
            return
        closing = [*self._earlier, current]
        for each in closing:
            each.request_close()
        deadline = trio.current_time() + self._connector.close_timeout + _CLOSE_SLACK
        try:
            for each in closing:
                if not each.closed.is_set():
                    await wait_closed(each.closed, max(0.0, deadline - trio.current_time()))
        finally:
            self._earlier = []
            if self.current is current and current.closed.is_set():
                self.current = None

    async def usable(self) -> connections.Connection:
        """Return a connection for a call; a lost one is replaced first, once for all who wait.

        Raises:
          McpServerError: there is none, and none can be had; nothing was sent.
        """
        current = self.current
        if current is None or self.users == 0:
            raise self._problem("is not running; nothing was sent")
        if current.state is connections.State.STARTING:
            await current.settled.wait()
        elif self.reconnects and (current.is_doubtful or current.state is connections.State.OVER):
            current.retire()
            _log.info("MCP server %r: connecting anew", self._plan.name)
            current = self._begin()
            await current.settled.wait()
        if current.state is not connections.State.READY:
            raise self._problem(f"{current.why}; nothing was sent")
        return current

    def _begin(self) -> connections.Connection:
        if self.current is not None:
            self._earlier.append(self.current)
        self._earlier = [each for each in self._earlier if not each.closed.is_set()]
        self.current = connections.Connection(self._connector, self._plan)
        self.current.spawn()
        return self.current

    def _is_failed_start(self, connection: connections.Connection) -> bool:
        return connection.state is connections.State.OVER and (
            self.reconnects or not connection.was_ready
        )

    def _problem(self, text: str) -> errors.McpServerError:
        return errors.McpServerError(self._plan.name, text)
