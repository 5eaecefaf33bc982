"""Where code stands, as reports name it.

What may live here: from a task, a thread or the running code to
``file:line in function``.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Final

import trio

_TRIO_FOLDER: Final = trio.__file__.removesuffix("__init__.py")
_OWN_FOLDER: Final = __file__.removesuffix("_places.py")
#: Frames that say nothing of the user's code: trio's, and a call that is made to hang.
_INSIDE: Final = (_TRIO_FOLDER, f"{_OWN_FOLDER}_seams.py")


def place_of(task: trio.lowlevel.Task) -> str:
    """Say where a suspended task stands: its innermost frame outside trio and seams."""
    place = "?"
    try:
        for frame, line in task.iter_await_frames():
            code = frame.f_code
            if place == "?" or not code.co_filename.startswith(_INSIDE):
                place = f"{code.co_filename}:{line} in {code.co_qualname}"
    except TypeError:  # it awaits an object that trio cannot look into
        pass
    return place


def place_here() -> str:
    """Say where the running code stands: the innermost frame outside trio and this package."""
    return _place_from(sys._getframe())  # pyright: ignore[reportPrivateUsage]


def place_of_thread(ident: int | None) -> str:
    """Say where a thread stands, as `place_here` does for the running one."""
    return _place_from(
        sys._current_frames().get(ident or 0)  # pyright: ignore[reportPrivateUsage]
    )


def here() -> str:
    """The name of the task that runs here; outside trio that of the thread."""
    try:
        return trio.lowlevel.current_task().name
    except RuntimeError:
        return threading.current_thread().name


def _place_from(frame: FrameType | None) -> str:
    innermost = "?"
    while frame is not None:
        code = frame.f_code
        place = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        if not code.co_filename.startswith((_TRIO_FOLDER, _OWN_FOLDER)):
            return place
        innermost = place if innermost == "?" else innermost
        frame = frame.f_back
    return innermost
