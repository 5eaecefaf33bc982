"""Process groups: signals to all of one, and whether any member lives. No trio here."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path


def signal_group(pgid: int, number: signal.Signals) -> None:
    """Send a signal to every process of the group; a group that is gone is fine."""
    if sys.platform == "win32":
        return
    # PermissionError: a member runs as somebody else; the others were signalled.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, number)


def group_lives(pgid: int) -> bool:
    """Return whether a process of the group is alive; one that only waits to be reaped is not.

    An orphan is reaped by process 1, and not every process 1 does it (containers),
    so a group of nothing but zombies counts as gone where `/proc` can tell.
    """
    if sys.platform == "win32":
        return False
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    if not Path("/proc/self/stat").exists():
        return True
    return any(
        _is_member(entry, pgid) for entry in Path("/proc").iterdir() if entry.name.isdecimal()
    )


def _is_member(entry: Path, pgid: int) -> bool:
    try:
        stat = (entry / "stat").read_bytes()
    except OSError:
        return False  # it ended while we looked
    # "pid (name) state ppid pgrp ...": the name may hold anything, brackets too.
    fields = stat[stat.rindex(b")") + 1 :].split()
    return int(fields[2]) == pgid and fields[0] not in (b"Z", b"X")
