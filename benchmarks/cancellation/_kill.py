"""`kill -9` at moments spread over a turn, and what the library's store has then.

What may live here: starting, killing and reading. Standard library only.

A process that is killed loses nothing that it gave to the kernel, so the tools
note what they return in a plain file. Nobody can keep a result that is killed
within a moment of its return: only those that returned `SLACK` seconds before
count, which is time for more than one fsync.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

#: Seconds that the model takes for each reply.
MODEL_SECONDS: Final = 0.15
#: Seconds that each call's tool takes. The turn takes about 1.3 s.
TOOL_SECONDS: Final = {"c1": 0.5, "c2": 0.15, "c3": 0.3, "c4": 0.15, "c5": 0.3}
#: Seconds between a result's return and the kill from which on the result counts.
SLACK: Final = 0.1
#: How many processes are killed, and over how many seconds the kills are spread.
KILLS: Final = 48
SPREAD_SECONDS: Final = 1.4
#: Seconds that a process may take to begin with its turn.
START_SECONDS: Final = 60.0

_RETURNED: Final = "returned.txt"
_BEGAN: Final = "began"


@dataclass
class Killed:
    """What was found after all the kills.

    Attributes:
      kills: processes that were killed.
      lost: those after which a result that counts was not in the store.
      due: the results that count, over all processes.
      examples: the first losses.
    """

    kills: int = 0
    lost: int = 0
    due: int = 0
    examples: list[str] = field(default_factory=list[str])


def begin(folder: Path) -> None:
    """Say that the turn begins now; the first thing that the model does."""
    (folder / _BEGAN).touch()


async def work(folder: Path, call: str) -> str:
    """What each tool does: take its time, and note what it is about to return."""
    await asyncio.sleep(TOOL_SECONDS[call])
    return note(folder, call)


def note(folder: Path, call: str) -> str:
    """Note that a call returns now; gives the text to return."""
    text = f"{call} is done"
    with (folder / _RETURNED).open("a", encoding="utf-8") as file:
        file.write(f"{call} {time.monotonic()} {text}\n")
    return text


def tools(folder: Path) -> list[Any]:
    """The three tools as plain functions, for asyncio."""

    async def tidy(call: str, steps: int) -> str:
        """Take some time."""
        return await work(folder, call)

    async def quick(call: str, steps: int) -> str:
        """Take some time."""
        return await work(folder, call)

    async def plain(call: str, steps: int) -> str:
        """Take some time."""
        return await work(folder, call)

    return [tidy, quick, plain]


def sweep(child: Callable[[Path], None], read: Callable[[Path], Mapping[str, str]]) -> Killed:
    """Kill a process of ``child`` at each of `KILLS` moments.

    Args:
      child: runs the turn with its store in the folder.
      read: opens the store and gives the results it has: text by call id.
    """
    _warm_up(child, read)
    done = Killed()
    for number in range(KILLS):
        after = SPREAD_SECONDS * (number + 0.5) / KILLS
        folder = Path(tempfile.mkdtemp(prefix="killed-"))
        try:
            killed_at = _kill(child, folder, after)
            due = _due(folder, killed_at)
            kept = read(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        missing = {call: text for call, text in due.items() if text not in kept.get(call, "")}
        done.kills += 1
        done.due += len(due)
        if missing:
            done.lost += 1
            if len(done.examples) < 3:
                done.examples.append(
                    f"killed {after:.3f} s after the turn began: returned before that {due}, "
                    f"stored {dict(kept)}"
                )
    return done


def _warm_up(child: Callable[[Path], None], read: Callable[[Path], Mapping[str, str]]) -> None:
    """Load what a turn needs, and see that a turn that nobody kills stores everything."""
    folder = Path(tempfile.mkdtemp(prefix="whole-"))
    try:
        child(folder)
        kept = read(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if set(kept) != set(TOOL_SECONDS):
        raise RuntimeError(f"a turn that was not killed stored {dict(kept)}")


def _kill(child: Callable[[Path], None], folder: Path, after: float) -> float:
    """Run ``child`` and kill it; gives the moment of the kill."""
    pid = os.fork()
    if pid == 0:
        _run(child, folder)
    given_up = time.monotonic() + START_SECONDS
    while not (folder / _BEGAN).exists():
        if time.monotonic() > given_up:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise RuntimeError(f"the process did not begin its turn within {START_SECONDS} s")
        time.sleep(0.002)
    time.sleep(after)
    killed_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return killed_at


def _run(child: Callable[[Path], None], folder: Path) -> NoReturn:
    """The life of the process that is killed; it ends without the parent's clean-up."""
    try:
        child(folder)
        time.sleep(START_SECONDS)
    finally:
        os._exit(1)


def _due(folder: Path, killed_at: float) -> dict[str, str]:
    path = folder / _RETURNED
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    noted = [line.split(" ", 2) for line in lines]
    return {call: text for call, moment, text in noted if float(moment) <= killed_at - SLACK}
