"""One cancel at every event-loop step of an asyncio program, or two at every pair of steps.

What may live here: running a `Program` at one position, and going over all of
them. Standard library only: each peer runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from _histories import Kind, Ledger, Seen, judge
from _stepped_loop import HungError, SteppedLoop

#: Examples of each kind of finding that are kept, to be checked by hand.
EXAMPLES = 3


class HarnessError(Exception):
    """The sweep could not do its work; what it would say means nothing."""


class Program(Protocol):
    """One turn of one library, made anew for every position.

    Attributes:
      ledger: what the tools noted.
    """

    ledger: Ledger

    async def prepare(self) -> None:
        """Whatever comes before the turn; not swept."""
        ...

    async def turn(self) -> object:
        """The turn, up to its answer. This is what is cancelled."""
        ...

    async def look(self) -> Seen:
        """Read what the turn left, and try a further turn."""
        ...

    async def close(self) -> None:
        """Whatever comes last."""
        ...


@dataclass
class Position:
    """What one run showed.

    Attributes:
      cancels: the steps before which a cancel was sent.
      steps: how many the turn took.
      found: what was wrong.
      ended: how the turn ended, as text.
    """

    cancels: tuple[int, ...]
    steps: int = 0
    found: list[tuple[Kind, str]] = field(default_factory=list[tuple[Kind, str]])
    ended: str = ""


@dataclass
class Sweep:
    """What all positions together showed.

    Attributes:
      total: how many positions there are.
      positions: how many of them were run.
      counts: positions with each kind of finding.
      examples: the first positions with each kind.
      ends: how many turns ended in each way.
    """

    total: int = 0
    positions: int = 0
    counts: dict[Kind, int] = field(default_factory=dict[Kind, int])
    examples: dict[Kind, list[str]] = field(default_factory=dict[Kind, list[str]])
    ends: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, position: Position) -> None:
        """Count one more position."""
        self.positions += 1
        self.ends[position.ended] = self.ends.get(position.ended, 0) + 1
        kinds: set[Kind] = {kind for kind, _ in position.found}
        for kind in kinds:
            self.counts[kind] = self.counts.get(kind, 0) + 1
        for kind, text in position.found:
            examples = self.examples.setdefault(kind, [])
            if len(examples) < EXAMPLES:
                examples.append(f"cancel before step {position.cancels}: {text}")


def run_at(
    make: Callable[[], Program], cancels: Sequence[int] = (), *, max_steps: int = 200_000
) -> Position:
    """Run a program, with a cancel of its turn just before each of ``cancels``.

    Args:
      max_steps: callbacks after which the run counts as hung.
    """
    loop = SteppedLoop()
    loop.max_steps = max_steps
    asyncio.set_event_loop(loop)
    try:
        return _run_in(loop, make(), tuple(cancels))
    finally:
        _clear(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _run_in(loop: SteppedLoop, program: Program, cancels: tuple[int, ...]) -> Position:
    loop.run_until_complete(program.prepare())
    task = loop.create_task(_turn(program))
    landed: list[int] = []

    def fault(step: int) -> None:
        if step in cancels:
            landed.append(step)
            program.ledger.cancelled = True
            task.cancel()

    running: list[str] = []
    task.add_done_callback(lambda _: running.extend(program.ledger.entered - program.ledger.left))
    loop.before_step = fault
    loop.watch = lambda: not task.done()
    position = Position(cancels)
    try:
        loop.run_until_complete(_wait(task))
        position.ended = _ended(task, position, cancelled=len(cancels) > 0)
        # What a thread had begun is done, as when a program shuts its loop down.
        loop.run_until_complete(asyncio.sleep(1))
    except HungError as exc:
        position.ended = "never returned"
        position.found.append(("never returned", str(exc)))
    position.steps = loop.steps
    if len(landed) < len(cancels):
        raise HarnessError(
            f"cancels before the steps {cancels}: the turn took {loop.steps} steps and {landed} "
            "landed; the program is not deterministic"
        )
    if task.done():
        position.found += _look(loop, program, running)
    else:
        _end_tasks(loop)
    with contextlib.suppress(HungError):
        loop.run_until_complete(program.close())
    return position


def _look(loop: SteppedLoop, program: Program, running: list[str]) -> list[tuple[Kind, str]]:
    returned = dict(program.ledger.returned)
    try:
        seen = loop.run_until_complete(program.look())
    except HungError as exc:
        return [("next turn refused", f"it did not return: {exc}")]
    return list(judge(returned, seen, running=running))


async def _turn(program: Program) -> object:
    return await program.turn()


async def _wait(task: asyncio.Task[object]) -> None:
    await asyncio.wait([task])


def _ended(task: asyncio.Task[object], position: Position, *, cancelled: bool) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    how = "returned" if error is None else f"raised {type(error).__name__}"
    if cancelled:
        text = f"it {how}: {error!r}" if error is not None else f"it returned {task.result()!r}"
        position.found.append(("cancel swallowed", text[:300]))
    elif error is not None:
        position.found.append(("turn failed", f"{error!r}"[:300]))
    return how


def _end_tasks(loop: SteppedLoop) -> None:
    """End what is still there, as far as it can be ended."""
    loop.watch = lambda: False
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        with contextlib.suppress(HungError):
            loop.run_until_complete(asyncio.wait(left, timeout=1))


def _clear(loop: SteppedLoop) -> None:
    """Make the loop ready to be closed."""
    _end_tasks(loop)
    with contextlib.suppress(HungError):
        loop.run_until_complete(loop.shutdown_asyncgens())


def clean_run(make: Callable[[], Program]) -> int:
    """The number of steps of a turn that nobody cancels.

    Raises:
      HarnessError: it is not clean, or not the same each time.
    """
    # The first run of a process may take other steps: it fills caches.
    run_at(make)
    runs = [run_at(make) for _ in range(3)]
    for run in runs:
        if run.found:
            raise HarnessError(f"without a cancel: {run.found}")
    counts = [run.steps for run in runs]
    if len(set(counts)) != 1:
        raise HarnessError(f"equal runs took {counts} steps; the program is not deterministic")
    return counts[0]


def sweep(make: Callable[[], Program]) -> Sweep:
    """One cancel before every step of the turn.

    Raises:
      HarnessError: the run without a cancel is not clean.
    """
    done = Sweep(total=clean_run(make))
    for step in range(done.total):
        done.add(run_at(make, [step]))
    return done


def sweep_pairs(make: Callable[[], Program], *, at_most: int) -> Sweep:
    """Two cancels, the second at every later step of the run with the first.

    Args:
      at_most: how many pairs are run; they are drawn with a fixed seed.

    Raises:
      HarnessError: the run without a cancel is not clean.
    """
    steps = clean_run(make)
    pairs = [
        (first, second)
        for first in range(steps)
        for second in range(first + 1, run_at(make, [first]).steps)
    ]
    done = Sweep(total=len(pairs))
    if len(pairs) > at_most:
        pairs = sorted(random.Random(0).sample(pairs, at_most))
    for pair in pairs:
        done.add(run_at(make, pair))
    return done
