"""An asyncio event loop that counts its steps and does something just before the n-th.

What may live here: the loop and its selector. Time is virtual and jumps, and
work for a thread is done in the loop some steps later, so that equal runs take
equal steps. Only what asyncio documents is overridden.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Callable
from typing import Any, TypeVarTuple, Unpack

_Args = TypeVarTuple("_Args")

#: How many steps a thread's work takes. A fault can only land where a step is.
THREAD_STEPS = 4
#: Seconds on the loop's clock after which a program counts as hung, however busy it is.
MAX_SECONDS = 600.0
#: Seconds of real time to wait when nothing is ready and no timer runs.
IDLE_SECONDS = 0.3


class HungError(Exception):
    """The program does not go on: nothing is ready, or it takes steps without end."""


class _Selector(selectors.SelectSelector):
    """Jumps over time instead of waiting for it."""

    jump: Callable[[float], None]
    check: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # An error that leaves from here ends the loop; from a callback it would only be logged.
        self.check()
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is not None and timeout > 0:
            self.jump(timeout)
            return []
        found = super().select(IDLE_SECONDS)
        if not found:
            raise HungError("nothing is ready and nothing will be")
        return found


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """Counts the callbacks that it runs; a step of a task is one of them.

    Attributes:
      steps: how many callbacks began while `watch` said so.
      before_step: called just before each counted callback, with its number.
      watch: whether a callback counts; asked before each.
      max_steps: the callback after which the program counts as hung.
    """

    def __init__(self) -> None:
        selector = _Selector()
        self._seconds = 0.0
        self._began = 0.0
        self.steps = 0
        self.before_step: Callable[[int], None] = lambda _: None
        self.watch: Callable[[], bool] = lambda: False
        self.max_steps = 1_000_000
        self._ran = 0
        super().__init__(selector)
        selector.jump = self._jump
        selector.check = self._check
        # Errors of tasks that a cancel left behind are not what is looked at.
        self.set_exception_handler(_ignore)

    def _jump(self, seconds: float) -> None:
        self._seconds += seconds

    def _check(self) -> None:
        if self._ran > self.max_steps:
            self._ran = 0
            raise HungError(f"not at its end after {self.max_steps} steps")
        if self._seconds > self._began + MAX_SECONDS:
            self._began = self._seconds
            raise HungError(f"not at its end after {MAX_SECONDS:.0f} s on the loop's clock")

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self._seconds

    def _step(self, callback: Callable[[Unpack[_Args]], object], *args: *_Args) -> None:
        self._ran += 1
        if self.watch():
            self.before_step(self.steps)
            self.steps += 1
        callback(*args)

    def call_soon(
        self,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As asyncio says; the callback is counted when it runs."""
        return super().call_soon(self._step, callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """As asyncio says; the callback is counted when it runs."""
        return super().call_soon_threadsafe(self._step, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio says; the callback is counted when it runs."""
        return super().call_at(when, self._step, callback, *args, context=context)

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[_Args]], Any], *args: *_Args
    ) -> asyncio.Future[Any]:
        """Do a thread's work in the loop, `THREAD_STEPS` later.

        A thread that began cannot be cancelled: the work is done also when
        nobody waits for it any more.
        """
        future: asyncio.Future[Any] = self.create_future()
        self.call_soon(self._work, THREAD_STEPS, future, func, args)
        return future

    def _work(
        self, left: int, future: asyncio.Future[Any], func: Callable[..., Any], args: Any
    ) -> None:
        if left:
            self.call_soon(self._work, left - 1, future, func, args)
            return
        try:
            value = func(*args)
        except Exception as exc:  # noqa: BLE001  # as a thread does: it goes to whoever waits
            if not future.done():
                future.set_exception(exc)
        else:
            if not future.done():
                future.set_result(value)
