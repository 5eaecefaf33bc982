"""A cancel of the asyncio task at every step of the event loop, and what the turn leaves.

The loop counts its callbacks and cancels the host's task just before the k-th.
What the turn left is judged by the contract's own checks. Mutants of the host,
each in a process of its own, show that the sweep finds what it is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import trio

import trio_runner as tr
from trio_runner.testing.contract import check_contract
from trio_runner.testing.reference import Drive, ReferenceTurn
from trio_runner_adapters.asyncio_host import AsyncioHost, run_in_asyncio, stream_in_asyncio

ROOT = Path(__file__).parent.parent
BOUND = 6.0  # seconds for one run; it takes milliseconds
WAYS = (*get_args(Drive), "stream", "stream break")


class SteppedLoop(asyncio.SelectorEventLoop):
    """Counts its callbacks while `watch` is set, and calls `before` with each number."""

    def __init__(self) -> None:
        self.steps = 0
        self.watch = False
        self.before: Callable[[int], None] = lambda _: None
        super().__init__()

    def _count(self, callback: Callable[..., object], *args: Any) -> None:
        if self.watch:
            self.before(self.steps)
            self.steps += 1
        callback(*args)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._count, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._count, callback, *args, context=context)


class HostTurn(ReferenceTurn):
    """The reference turn, driven from asyncio."""

    def __init__(self, way: str) -> None:
        drive: Any = {"stream": "async_for", "stream break": "break"}.get(way, way)
        super().__init__(drive, delay=0.001)  # so that each commit takes steps
        self.way = way
        #: The cancel has reached the host's coroutine.
        self.told = False
        #: What left the trio function.
        self.left_trio: list[BaseException] = []

    async def run(self) -> object:
        self.ledger.is_cancelled = lambda: self.told
        try:
            async with self.agent:
                try:
                    return await self._drive()
                finally:
                    if self.agent.conversation.turns:
                        self.witness.left()
        except BaseException as error:
            self.left_trio.append(error)
            raise
        finally:
            self.witness.all_left()

    async def from_asyncio(self) -> object:
        if not self.way.startswith("stream"):
            return await run_in_asyncio(self.run)
        self.ledger.is_cancelled = lambda: self.told
        count = 0
        async with stream_in_asyncio(self.agent, "go") as messages:
            async for message in messages:
                self.witness.hand_out(message)
                count += 1
                if count == 2 and self.way == "stream break":
                    self._left_early = True
                    break
        return count


def run_at(way: str, cancels: tuple[int, ...], *, hosted: bool) -> tuple[bool, list[str]]:
    """One run with a cancel before each of these steps.

    Returns:
      Whether all of them came before the end, and what was wrong.
    """
    turn = HostTurn(way)
    turn()
    turn.witness.listen()
    loop = SteppedLoop()
    landed: list[int] = []
    problems: list[str] = []
    task: asyncio.Task[object] | None = None

    def tell() -> None:
        turn.told = True

    def before(step: int) -> None:
        if step in cancels and task is not None and not task.done():
            landed.append(step)
            task.cancel()
            loop.call_soon(tell)  # behind the step in which the task learns of it

    async def main() -> None:
        nonlocal task
        async with AsyncioHost() if hosted else contextlib.nullcontext():
            task = asyncio.create_task(turn.from_asyncio())
            loop.before, loop.watch = before, True
            await asyncio.wait([task], timeout=BOUND)
            loop.watch = False
            if not task.done():
                raise TimeoutError
            if turn.ledger.entered - turn.ledger.left:
                problems.append("a tool was running when the task was through")
            if turn.agent.conversation.is_busy:
                problems.append("the turn was not through when the task was")
        if trio.lowlevel.in_trio_run():
            problems.append("the trio run goes on")

    loop.set_exception_handler(lambda _, context: problems.append(f"the loop says: {context}"))
    asyncio.set_event_loop(loop)
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    asyncio.set_event_loop(None)
    assert task is not None
    problems += _left(turn, task, bool(landed))
    return len(landed) == len(cancels), problems


def _left(turn: HostTurn, task: asyncio.Task[object], cancelled: bool) -> Iterator[str]:
    if cancelled != task.cancelled():
        yield f"the task ended {task!r}"
    elif not cancelled and task.exception() is not None:
        yield f"it raised {task.exception()!r}"
    for error in turn.left_trio:
        if type(error) is not trio.Cancelled:
            yield f"{error!r} left the trio function"
    for messages in (turn.agent.history, turn.evidence(None).turn_messages):
        try:
            tr.check_history(messages)
        except tr.HistoryError as error:
            yield str(error)
    yield from check_contract(turn.evidence(None))


def sweep(way: str, *, hosted: bool, second: int = 0, stride: int = 1) -> tuple[int, list[str]]:
    """A cancel at every ``stride``-th step, and a second one ``second`` steps later if not 0.

    A thread's answer comes at another step each time, so the end is where three
    positions in a row come too late.
    """
    position, missed, done = 0, 0, 0
    found: list[str] = []
    while missed < 3 and not found:
        cancels = (position, position + second) if second else (position,)
        landed, problems = run_at(way, cancels, hosted=hosted)
        found += [f"{way}, cancelled before step {cancels}: {each}" for each in problems]
        missed = 0 if landed else missed + 1
        done += landed
        position += stride
    return done, found


@pytest.mark.slow
@pytest.mark.parametrize("hosted", [False, True], ids=["own run", "in a host"])
@pytest.mark.parametrize("way", WAYS)
def test_a_cancel_at_every_step_of_the_loop_keeps_the_contract(
    way: str, hosted: bool, record_property: Callable[[str, object], None]
) -> None:
    positions, found = sweep(way, hosted=hosted)

    assert found == []
    assert positions > 20
    record_property("positions", positions)
    print(f"{way}, {'in a host' if hosted else 'own run'}: {positions} positions, 0 violations")


@pytest.mark.slow
@pytest.mark.parametrize("second", [1, 2, 3, 5])
@pytest.mark.parametrize("way", ["generate", "stream"])
def test_two_cancels_keep_the_contract(way: str, second: int) -> None:
    positions, found = sweep(way, hosted=True, second=second, stride=2)

    assert found == []
    print(f"{way}, two cancels {second} steps apart: {positions} positions, 0 violations")


# --- mutants --------------------------------------------------------------------

Change = tuple[str, str, str]

MUTANTS: dict[str, tuple[Change, dict[str, Any]]] = {
    "the_cancel_does_not_reach_trio": (
        ("_calls.py", "            on_cancel()\n", ""),
        {"way": "generate"},
    ),
    "the_cancel_is_not_raised": (
        ("_calls.py", "        if cancelled is not None:\n            raise cancelled\n", ""),
        {"way": "generate"},
    ),
    "the_first_cancel_is_not_waited_out": (
        ("_calls.py", "            on_cancel()\n", "            on_cancel()\n            break\n"),
        {"way": "generate"},
    ),
    "the_second_cancel_is_not_waited_out": (
        (
            "_calls.py",
            "            first = first or error\n",
            "            if first is not None:\n                raise\n            first = error\n",
        ),
        {"way": "generate", "second": 2},
    ),
    "the_last_does_not_wait_for_the_end": (
        ("_guest.py", "self._kick) if not self.users else None", "self._kick) if 0 else None"),
        {"way": "generate", "hosted": False},
    ),
    "the_users_are_miscounted": (
        ("_guest.py", "        self.users -= 1\n", "        self.users = 0\n"),
        {"way": "held"},
    ),
    "a_step_of_a_stream_is_not_cancelled": (
        ("_stream.py", "outlast(step.done, step.scope.cancel)", "outlast(step.done, lambda: None)"),
        {"way": "stream"},
    ),
    "a_stream_is_left_without_closing_its_turn": (
        ("_stream.py", "        turn.close()\n        try:\n", "        try:\n"),
        {"way": "stream break"},
    ),
    "a_cancelled_enter_leaves_its_turn_open": (
        (
            "_stream.py",
            "        if cancelled is not None or turn.call.done.is_set():",
            "        if turn.call.done.is_set():",
        ),
        {"way": "stream"},
    ),
}  # fmt: skip


def run_program(adapters: Path, options: dict[str, Any]) -> list[str]:
    """Run this file's sweep on the adapters in a folder, in another process."""
    paths = [str(adapters), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(options)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_without_a_planted_fault_nothing_is_found() -> None:
    assert run_program(ROOT / "adapters", {"way": "held"}) == []
    assert run_program(ROOT / "adapters", {"way": "generate", "second": 3}) == []


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    (file, old, new), options = MUTANTS[name]
    shutil.copytree(ROOT / "adapters", tmp_path / "adapters")
    path = tmp_path / "adapters/trio_runner_adapters/asyncio_host" / file
    text = path.read_text("utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), "utf-8")

    assert run_program(tmp_path / "adapters", options) != []


def _held(path: str) -> list[str]:
    """A host that holds something, and goes on when a call comes and goes."""

    async def use() -> None:
        async with AsyncioHost() as host:
            agent = tr.ToolAgent("a", model=_Silent(), journal=tr.MemoryJournal(), session=path)
            await host.enter(agent)
            await run_in_asyncio(trio.lowlevel.checkpoint)
            await run_in_asyncio(trio.lowlevel.checkpoint)

    async def main() -> list[str]:
        task = asyncio.create_task(use())
        await asyncio.wait([task], timeout=BOUND)
        if not task.done():
            return ["it hangs"]
        return [repr(task.exception())] if task.exception() else []

    return asyncio.new_event_loop().run_until_complete(main())


class _Silent:
    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        raise AssertionError


def main() -> None:
    """What a mutant's process does: print what is wrong, and end whatever still runs."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    logging.getLogger("trio_runner_adapters").propagate = False
    logging.getLogger("trio_runner").propagate = False
    try:
        way = options.pop("way")
        options.setdefault("hosted", True)
        found = _held("s") if way == "held" else sweep(way, **options)[1]
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the mutant did
        found = [f"{error!r}"]
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
