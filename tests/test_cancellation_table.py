"""The harness of `benchmarks/cancellation`, on tiny loops of its own; no peer is needed.

A correct loop shows nothing; each planted fault is found.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks/cancellation"
MODULES = ["_growth", "_histories", "_kill", "_reference", "_stepped_loop", "_sweep_asyncio"]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    yield importlib.import_module("_sweep_asyncio")
    for name in [*MODULES, "_table"]:
        sys.modules.pop(name, None)


class Loop:
    """A tool loop of twenty lines, over messages in the common form.

    ``fault`` says what is wrong with it.
    """

    def __init__(self, fault: str = "") -> None:
        self.histories: Any = importlib.import_module("_histories")
        self.reference: Any = importlib.import_module("_reference")
        self.ledger: Any = self.histories.Ledger()
        self.fault = fault
        self.history: list[Any] = []
        self.disk: list[Any] = []

    def say(self, role: str, **fields: Any) -> None:
        self.history.append(self.histories.Said(role, **fields))

    async def save(self) -> None:
        copy = list(self.history)
        await self.reference.pause(1)
        await asyncio.to_thread(lambda: self.disk.__setitem__(slice(None), copy))

    async def prepare(self) -> None:
        pass

    async def turn(self) -> object:
        self.say("user", text="go")
        for batch in self.reference.BATCHES:
            await self.reference.pause(2)
            self.say("assistant", calls=tuple(call.id for call in batch))
            await self.batch(batch)
        await self.reference.pause(2)
        self.say("assistant", text="the answer")
        await self.save()
        return "the answer"

    async def batch(self, batch: Any) -> None:
        perform = self.reference.perform
        tasks = {
            call.id: asyncio.ensure_future(perform(self.ledger, call.id, call.steps))
            for call in batch
        }
        try:
            await asyncio.wait(tasks.values())
        except asyncio.CancelledError:
            await self.clean_up(tasks)
            if self.fault != "swallows":
                raise
        else:
            self.answer(tasks)

    async def clean_up(self, tasks: dict[str, Any]) -> None:
        if self.fault == "leaves tools running":
            return
        for task in tasks.values():
            task.cancel()
        waiting = asyncio.ensure_future(asyncio.wait(tasks.values()))
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                continue
        if self.fault == "hangs":
            await asyncio.get_running_loop().create_future()
        if self.fault != "malformed":
            self.answer(tasks)
        if self.fault == "saves late":
            await self.save()

    def answer(self, tasks: dict[str, Any]) -> None:
        loses = self.fault == "loses"
        results: list[tuple[str, str]] = []
        for call_id, task in tasks.items():
            real = task.done() and not task.cancelled()
            kept = real and not (loses and self.ledger.cancelled)
            results.append((call_id, task.result() if kept else "interrupted"))
        self.say("tool", results=tuple(results))

    async def look(self) -> Any:
        disk = self.disk if self.fault == "saves late" and self.ledger.returned else None
        request = [*self.history, self.histories.Said("user", text="and now?")]
        if self.fault == "refuses" and self.ledger.cancelled:
            return self.histories.Seen(self.history, refusal="I will not")
        if self.fault == "malformed later" and self.ledger.cancelled:
            request.insert(0, self.histories.Said("tool", results=(("c9", "what?"),)))
        return self.histories.Seen(self.history, next_request=request, disk=disk)

    async def close(self) -> None:
        pass


def making(fault: str = "") -> Callable[[], Loop]:
    return lambda: Loop(fault)


# --- the sweep ------------------------------------------------------------------


def test_a_correct_loop_shows_nothing_at_any_position(harness: Any) -> None:
    done = harness.sweep(making())
    assert done.counts == {}
    assert done.positions == done.total > 30
    assert done.ends == {"cancelled": done.positions}


def test_a_correct_loop_shows_nothing_at_a_pair(harness: Any) -> None:
    done = harness.sweep_pairs(making(), at_most=400)
    assert done.counts == {}
    assert done.positions == 400 < done.total


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("loses", "result lost"),
        ("malformed", "history malformed"),
        ("malformed later", "next request malformed"),
        ("refuses", "next turn refused"),
        ("swallows", "cancel swallowed"),
        ("leaves tools running", "tool left running"),
        ("hangs", "never returned"),
    ],
)
def test_a_planted_fault_is_found(harness: Any, fault: str, kind: str) -> None:
    stepped: Any = importlib.import_module("_stepped_loop")
    stepped.IDLE_SECONDS = 0.0  # there are no threads to wait for
    done = harness.sweep(making(fault))
    assert 0 < done.counts[kind] <= done.positions
    assert done.examples[kind][0].startswith("cancel before step (")


def test_a_store_that_a_second_cancel_leaves_behind_is_found(harness: Any) -> None:
    done = harness.sweep_pairs(making("saves late"), at_most=100)
    assert done.positions == 100 < done.total
    assert done.counts["disk behind memory"] > 0


def test_the_pairs_that_are_run_are_the_same_each_time(harness: Any) -> None:
    first = harness.sweep_pairs(making("saves late"), at_most=30)
    second = harness.sweep_pairs(making("saves late"), at_most=30)
    assert first == second


def test_a_program_that_is_wrong_without_a_cancel_is_refused(harness: Any) -> None:
    class Wrong(Loop):
        async def turn(self) -> object:
            await super().turn()
            self.history.pop(2)
            return None

    with pytest.raises(harness.HarnessError, match="without a cancel"):
        harness.sweep(Wrong)


def test_a_program_that_is_not_deterministic_is_refused(harness: Any) -> None:
    extra = iter(range(100))

    class Other(Loop):
        async def turn(self) -> object:
            await self.reference.pause(next(extra))
            return await super().turn()

    with pytest.raises(harness.HarnessError, match="not deterministic"):
        harness.sweep(Other)


def test_a_cancel_that_did_not_land_is_refused(harness: Any) -> None:
    with pytest.raises(harness.HarnessError, match=r"\[\] landed"):
        harness.run_at(making(), [100_000])


def test_a_program_that_takes_steps_without_end_never_returns(harness: Any) -> None:
    class Endless(Loop):
        async def turn(self) -> object:
            while True:
                await asyncio.sleep(0)

    position = harness.run_at(Endless, max_steps=1000)
    assert [kind for kind, _ in position.found] == ["never returned"]


def test_time_jumps_and_a_thread_takes_steps(harness: Any) -> None:
    stepped: Any = importlib.import_module("_stepped_loop")
    loop = stepped.SteppedLoop()
    loop.watch = lambda: True

    async def program() -> tuple[float, str, int]:
        await asyncio.sleep(100)
        before = loop.steps
        text = await asyncio.to_thread(lambda: "from the thread")
        return loop.time(), text, loop.steps - before

    try:
        seconds, text, steps = loop.run_until_complete(program())
    finally:
        loop.close()
    assert (seconds, text) == (100.0, "from the thread")
    assert steps > stepped.THREAD_STEPS


def test_an_error_of_a_threads_work_reaches_whoever_waits(harness: Any) -> None:
    stepped: Any = importlib.import_module("_stepped_loop")
    loop = stepped.SteppedLoop()

    async def program() -> None:
        await asyncio.to_thread(lambda: 1 / 0)

    try:
        with pytest.raises(ZeroDivisionError):
            loop.run_until_complete(program())
    finally:
        loop.close()


# --- the rules ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ("u", None),
        ("u a1 r1 a", None),
        ("u a12 r2 r1 u", None),
        ("u a1", "no result for 1"),
        ("u a1 u", "before the results of 1"),
        ("u a12 r1 a", "before the results of 2"),
        ("u r1", "no open call"),
        ("u a1 r1 r1", "no open call"),
        ("u a1 r1 a1 r1", "second time"),
    ],
)
def test_the_pairing_rule(harness: Any, shape: str, problem: str | None) -> None:
    """u: user; a: assistant, with the ids of its calls; r: a result."""
    histories: Any = importlib.import_module("_histories")
    messages: list[Any] = []
    for word in shape.split():
        ids = tuple(word[1:])
        match word[0]:
            case "r":
                messages.append(histories.Said("tool", results=tuple((i, "text") for i in ids)))
            case "a":
                messages.append(histories.Said("assistant", "" if ids else "text", ids))
            case _:
                messages.append(histories.Said("user", "text"))
    found = histories.malformed(messages)
    assert (found is None) if problem is None else (problem in found)


def test_growth_is_told_by_the_two_longest_turns(harness: Any) -> None:
    growth: Any = importlib.import_module("_growth")
    assert growth.exponent({10: 999, 40: 4_000, 160: 16_000}) == pytest.approx(1.0)
    assert growth.describe({10: 1, 40: 4_000, 160: 16_000}).startswith("linear (n^1.00; 0.08 ×")
    assert growth.describe({10: 1, 40: 4_000, 160: 64_000}).startswith("quadratic (n^2.00")


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what is written")
def test_what_is_written_is_counted(harness: Any, tmp_path: Path) -> None:
    growth: Any = importlib.import_module("_growth")
    with growth.counted() as written:
        (tmp_path / "file").write_bytes(b"x" * 100_000)
    assert 100_000 <= written[0] < 200_000


# --- the table ------------------------------------------------------------------


def test_the_table_has_a_column_for_each_report_and_a_row_for_what_was_measured(
    harness: Any,
) -> None:
    table: Any = importlib.import_module("_table")
    text = table.render(
        [
            {
                "name": "one",
                "version": "1.0",
                "rows": {"positions swept": "68", "result lost": "26"},
                "notes": {"result lost": "by hand"},
            },
            {"name": "two", "version": "2.0", "rows": {"positions swept": "a|b"}, "notes": {}},
            {"name": "three", "version": "", "rows": {}, "notes": {}, "error": "exit code 1"},
        ],
        date="2001-02-03",
    )
    assert text.splitlines() == [
        "| 2001-02-03 | one 1.0 | two 2.0 | three  |",
        "|---|---|---|---|",
        "| positions swept | 68 | a\\|b | – |",
        "| a returned tool result lost | 26 | – | – |",
        "",
        "* one, a returned tool result lost: by hand.",
        "* three: not measured: exit code 1",
    ]
