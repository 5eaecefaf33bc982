"""`Owner`: a task of its own for a toolset, from its opening to its close.

A toolset may hold a nursery, and a nursery must be left by the task that
entered it; yet an agent may be entered and left by several tasks, in any
order. So each toolset lives in a task that belongs to none of them: a system
task, which trio ends with the run. An exception that leaves a system task would
crash trio, so it is kept here: whoever opens is told, and later there is the log.
"""

from __future__ import annotations

import contextvars
import logging

import trio

from trio_runner.abc import Toolset

_log = logging.getLogger("trio_runner")


class Owner:
    """Opens one toolset in a task of its own, and closes it there."""

    def __init__(self, toolset: Toolset) -> None:
        self._toolset = toolset
        self._scope = trio.CancelScope()
        self._opened = trio.Event()
        self._closing = trio.Event()
        self._closed = trio.Event()
        #: Why the toolset could not be opened, or ended by itself.
        self._error: BaseException | None = None

    async def open(self) -> None:
        """Open the toolset.

        Checkpoint: yes. If cancelled, the opening is cancelled as well.

        Raises:
          Exception: what the toolset raised.
        """
        trio.lowlevel.spawn_system_task(
            self._live, name=f"toolset {self._toolset.name}", context=contextvars.copy_context()
        )
        try:
            await self._opened.wait()
        except BaseException:
            self._scope.cancel()
            raise
        if self._error is not None:
            raise self._error

    def ask_to_close(self) -> None:
        """Let the toolset close; see `wait_closed`."""
        self._closing.set()

    async def wait_closed(self) -> None:
        """Wait until the toolset is closed; the caller brings the deadline."""
        await self._closed.wait()

    def give_up(self) -> None:
        """Cancel a close that takes too long."""
        if not self._closed.is_set():
            _log.error("toolset %r did not close in time; it is cancelled", self._toolset.name)
            self._scope.cancel()

    async def _live(self) -> None:
        try:
            with self._scope:
                async with self._toolset:
                    self._opened.set()
                    await self._closing.wait()
        except Exception as error:  # noqa: BLE001  kept for whoever asks: see the header
            self._error = error
            if self._opened.is_set():
                _log.exception("toolset %r failed", self._toolset.name)
        except BaseExceptionGroup as group:
            # Cancelled together with errors: the run is over, or we gave up.
            cancelled, errors = group.split(trio.Cancelled)
            if errors is not None:
                self._error = errors
                _log.error("toolset %r failed", self._toolset.name, exc_info=errors)
            if cancelled is not None and not self._scope.cancel_called:
                raise cancelled from None
        finally:
            self._opened.set()
            self._closed.set()
