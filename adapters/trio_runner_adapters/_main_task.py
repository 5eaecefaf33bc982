"""How an adapter's own task hands on what would end the program: to the main task, as Ctrl-C.

What may live here: telling such an error, and the one way to the main task. A task that
belongs to no caller has nobody who would see its KeyboardInterrupt or SystemExit.
"""

from __future__ import annotations

import signal

import trio


def passed_on(error: BaseException) -> bool:
    """Return whether ``error`` would end the program; then the main task has been told to.

    No checkpoint. The main task gets a KeyboardInterrupt at its next one, for SystemExit too.
    """
    ends = (KeyboardInterrupt, SystemExit)
    match error:
        case BaseExceptionGroup():
            found = error.subgroup(ends) is not None
        case _:
            found = isinstance(error, ends)
    if found:
        _interrupt_main_task()
    return found


@trio.lowlevel.enable_ki_protection
def _interrupt_main_task() -> None:
    # trio's handler sees this frame, which is protected, and so keeps the KeyboardInterrupt
    # for the main task's next checkpoint.
    signal.raise_signal(signal.SIGINT)
