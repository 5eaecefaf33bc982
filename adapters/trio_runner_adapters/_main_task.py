"""How an adapter's own task hands on what would end the program: to the main task, as Ctrl-C.

What may live here: telling such an error, and the one way to the main task. A task that
belongs to no caller has nobody who would see its KeyboardInterrupt or SystemExit.
"""

from __future__ import annotations

import signal
from typing import Final

import trio

_ENDS: Final = (KeyboardInterrupt, SystemExit)
#: How trio's errors begin when scopes and nurseries are left in the wrong order.
_MISNESTED: Final = ("Cancel scope stack corrupted", "Nursery stack corrupted")


def passed_on(error: BaseException) -> bool:
    """Return whether ``error`` would end the program; then the main task has been told to.

    No checkpoint. The main task gets a KeyboardInterrupt at its next one, for SystemExit too.
    """
    match error:
        case BaseExceptionGroup():
            found = error.subgroup(_would_end) is not None
        case _:
            found = _would_end(error)
    if found:
        _interrupt_main_task()
    return found


def _would_end(error: BaseException) -> bool:
    """Whether a single error is one, or stands in the place of one.

    A Ctrl-C at the very line in which foreign code leaves a cancel scope keeps it from leaving
    it: the next ones outwards then raise trio's errors about that, one over the other.
    """
    match error:
        case RuntimeError() if str(error).startswith(_MISNESTED):
            covered = error.__context__
            return covered is not None and _would_end(covered)
        case _:
            return isinstance(error, _ENDS)


@trio.lowlevel.enable_ki_protection
def _interrupt_main_task() -> None:
    # trio's handler sees this frame, which is protected, and so keeps the KeyboardInterrupt
    # for the main task's next checkpoint.
    signal.raise_signal(signal.SIGINT)
