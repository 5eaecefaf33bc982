"""`Slot`: a slot of a named limiter, which nested turns cannot deadlock on.

A tool may run a turn of its own, whose tools want a limiter too, the same or
another. A tool that waits for such a nested call does no work itself, so it
*lends* its slot: the slot goes back to its limiter while nested calls want or
hold one of any limiter, and is taken again when the last of them is through.
Nobody waits for a slot while holding one, so somebody can always go on; and at
most ``total_tokens`` tools work at any time.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType

import trio

from trio_runner.abc import Limiter

_innermost: ContextVar[Slot | None] = ContextVar("trio_runner_innermost_slot", default=None)


class Slot:
    """One call's slot; use it as an async context manager in the call's own task."""

    __slots__ = ("_guests", "_holding", "_lender", "_limiter", "waiting")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        #: The slot of the nearest call around this one that has any.
        self._lender = _innermost.get()
        #: Nested calls that want or hold a slot.
        self._guests = 0
        self._holding = False
        #: Cancel it to give up the wait; the block is then entered without a slot.
        self.waiting = trio.CancelScope()

    async def __aenter__(self) -> None:
        """Wait for a slot. If cancelled, none is taken."""
        if self._lender is not None:
            self._lender._guest_came()
        try:
            with self.waiting:
                await self._take()
        except BaseException:
            if self._lender is not None:
                self._lender._guests -= 1
            raise
        _innermost.set(self)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the slot back; waits only until an outer call has its own again."""
        _innermost.set(self._lender)
        self._give_back()
        if self._lender is not None:
            await self._lender._guest_left()

    async def _take(self) -> None:
        await self._limiter.acquire_on_behalf_of(self)
        self._holding = True

    def _give_back(self) -> None:
        if self._holding:
            self._holding = False
            self._limiter.release_on_behalf_of(self)

    def _guest_came(self) -> None:
        self._guests += 1
        self._give_back()

    async def _guest_left(self) -> None:
        self._guests -= 1
        if not self._guests and not self._holding:
            await self._take()
            if self._guests:
                # Another nested call came while this one was waiting: lend it again.
                self._give_back()
