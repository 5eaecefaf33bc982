"""`Slot`: a slot of a named limiter, which nested turns cannot deadlock on.

A tool may run a turn of its own, whose tools want a limiter too, the same or
another. A tool that waits for such a nested call does no work itself, so it
*lends* its slot: the slot goes back to its limiter while nested calls want or
hold one of any limiter, and is taken again when the last of them is through.
Nobody waits for a slot while holding one, so somebody can always go on.

At most ``total_tokens`` tools work at any time, with two exceptions. On the way
out of an error or a cancel nothing is waited for, so a tool that goes on after
its nested call was cut works without its slot until the next one brings it
back. And a tool that works beside its nested calls works without one meanwhile.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType

import trio

from trio_runner.abc import Limiter

_innermost: ContextVar[Slot | None] = ContextVar("trio_runner_innermost_slot", default=None)


class Slot:
    """One call's slot; use it as an async context manager in the call's own task."""

    __slots__ = ("_guests", "_holding", "_lender", "_limiter", "_over", "_taking", "waiting")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        #: The slot of the nearest call around this one that has any; a call that is
        #: over may have left a task behind, and lends no more.
        self._lender = _innermost.get()
        while self._lender is not None and self._lender._over:
            self._lender = self._lender._lender
        #: Nested calls that want or hold a slot.
        self._guests = 0
        self._holding = False
        #: Whether somebody waits to take the slot again.
        self._taking = False
        self._over = False
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
        """Give the slot back; without an error, wait until an outer call has its own again."""
        _innermost.set(self._lender)
        self._over = True
        self._give_back()
        if self._lender is None:
            return
        if exc is None:
            await self._lender._guest_left()
        else:
            # Waiting would hold a KeyboardInterrupt up, and a cancel would replace it.
            self._lender._guests -= 1

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
        if self._guests or self._holding or self._taking or self._over:
            return
        self._taking = True
        try:
            await self._take()
        finally:
            self._taking = False
        if self._guests or self._over:
            # A nested call came, or the outer one ended, while this one was waiting.
            self._give_back()
