"""`Notices`: tells observers what happens. They may look, and nothing they do matters.

An event is built only when somebody listens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec

import trio

import trio_runner._core.events as ev
import trio_runner._shell.leaving as leaving
from trio_runner.abc import Observer

_log = logging.getLogger("trio_runner")

P = ParamSpec("P")


class Notices:
    """The observers of one runner."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        #: Whether anybody listens; ask before an event is built.
        self.listening = bool(self._observers)
        #: The number of the next event.
        self._number = 0
        #: The turn the events belong to; set when it begins.
        self.turn = 0
        #: How many times an observer raised.
        self.errors = 0
        self._thread = threading.get_ident()
        self._token: trio.lowlevel.TrioToken | None = None

    def begin(self, turn: int) -> None:
        """Take the number of the turn; called in its run."""
        self.turn = turn
        if self.listening:
            self._thread = threading.get_ident()
            self._token = trio.lowlevel.current_trio_token()

    def tell(
        self,
        event: Callable[Concatenate[int, int, P], ev.Event],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Build the event and pass it to each observer. No checkpoint, never raises."""
        built = event(self._number, self.turn, *args, **kwargs)
        self._number += 1
        for observer in self._observers:
            try:
                observer.on_event(built)
            except BaseException as error:
                # A border: an observer may fail in any way, a foreign loop's words included.
                if not isinstance(error, Exception) and not leaving.is_cancellation(error):
                    raise
                self.errors += 1
                _log.exception("observer %r failed on %r; the turn goes on", observer, built)

    def tell_from_anywhere(
        self,
        event: Callable[Concatenate[int, int, P], ev.Event],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """`tell`, also from a worker thread: then soon, in trio's thread, in order."""
        if threading.get_ident() == self._thread or self._token is None:
            self.tell(event, *args, **kwargs)
        else:
            self._token.run_sync_soon(lambda: self.tell(event, *args, **kwargs))

    def suppressed(self, error: BaseException) -> None:
        """An error that loses to another one on the way out: to the log and the observers."""
        _log.error("an error was overtaken by another on the way out of a turn", exc_info=error)
        if self.listening:
            self.tell(ev.ErrorSuppressed, error)
