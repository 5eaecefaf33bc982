"""`OpenToolsets`: the toolsets of one agent, open while anybody uses them.

What may live here: counting who uses them. The users are the agent itself, its
clones, and the agents that have it as a tool; the first one opens the toolsets,
the last one closes them. Deadlines and what is open beside them are
``belongings.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from trio_runner._shell.owner import Owner
from trio_runner.abc import Toolset


class OpenToolsets:
    """Opened by its first user and closed by its last one.

    Args:
      toolsets: the agent's own list, read when they are opened.
    """

    def __init__(self, toolsets: Sequence[Toolset]) -> None:
        self._toolsets = toolsets
        #: Who is inside, or about to be: each waits for one opening.
        self._users = 0
        #: Held while they are opened.
        self._gate = trio.Lock()
        #: One for each toolset while they are open; else empty.
        self._owners: list[Owner] = []
        #: Asked to close, and not known to be closed.
        self._closing: list[Owner] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to open."""
        return not self._toolsets

    async def enter(self) -> None:
        """Open the toolsets, unless somebody else has. A checkpoint.

        When it fails or is cancelled, this user is not inside, and what was opened is
        asked to close: see `wait_closed`.
        """
        self._users += 1
        try:
            async with self._gate:
                if not self._owners:
                    await self._open()
        except BaseException:
            self.leave()
            raise

    async def _open(self) -> None:
        for owner in self._closing:
            await owner.wait_closed()
        self._closing = []
        opened: list[Owner] = []
        try:
            for toolset in self._toolsets:
                opened.append(Owner(toolset))
                await opened[-1].open()
        except BaseException:
            self._ask_to_close(opened)
            raise
        self._owners = opened

    def leave(self) -> None:
        """One user less; when it was the last one, the toolsets are asked to close. No checkpoint.

        To be called once for each `enter` that succeeded.
        """
        self._users -= 1
        if not self._users:
            owners, self._owners = self._owners, []
            self._ask_to_close(owners)

    def _ask_to_close(self, owners: Sequence[Owner]) -> None:
        self._closing += owners
        for owner in owners:
            owner.ask_to_close()

    async def wait_closed(self) -> None:
        """Wait for what was asked to close; the caller brings the deadline.

        What has not closed when that is cut, or fails, is cancelled.
        """
        closing = list(self._closing)
        try:
            for owner in closing:
                await owner.wait_closed()
        finally:
            for owner in closing:
                owner.give_up()
            self._closing = [owner for owner in self._closing if owner not in closing]
