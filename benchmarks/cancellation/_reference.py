"""The reference turn, as every peer plays it: three parallel tools, then two, then the answer.

What may live here: the script of the model and the body of the tools. Standard
library only: each peer runs in an environment of its own.

It is the turn of `trio_runner.testing.reference`, with two changes. No tool
raises and none is synchronous: what an exception of a tool means differs from
library to library, and a real thread would make the steps uncountable. And the
tools take more steps: some libraries need a handful to tell their tasks of a
cancel, and a tool that is over by then would hide how they handle one that is not.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from _histories import Ledger

PROMPT: Final = "go"
NEXT_PROMPT: Final = "and now?"
ANSWER: Final = "the answer"
NEXT_ANSWER: Final = "the next answer"


@dataclass(frozen=True)
class Call:
    """A call that the model asks for: its id, its tool, and how many steps that takes."""

    id: str
    tool: str
    steps: int

    @property
    def arguments(self) -> dict[str, object]:
        """What the tool is given; it learns its own call id, for the ledger."""
        return {"call": self.id, "steps": self.steps}


#: What the model asks for, reply by reply; after that it answers.
BATCHES: Final = (
    (Call("c1", "tidy", 12), Call("c2", "quick", 4), Call("c3", "plain", 8)),
    (Call("c4", "tidy", 4), Call("c5", "plain", 8)),
)
TOOLS: Final = ("tidy", "quick", "plain")


def temporary_folder() -> Path:
    """A new folder, in memory where there is one: what is swept is not the disk's speed."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="sweep-", dir=memory if memory.is_dir() else None))


async def pause(steps: int) -> None:
    """Take some steps of the event loop."""
    for _ in range(steps):
        await asyncio.sleep(0)


async def perform(ledger: Ledger, call: str, steps: int) -> str:
    """What each tool does: take some steps, and return a text that names the call."""
    ledger.entered.add(call)
    try:
        await pause(steps)
        text = f"{call} is done after {steps}"
        ledger.returned[call] = text
        return text
    finally:
        ledger.left.add(call)
