"""The asyncio bridge: what a call through it costs, against simpler ways to cross threads.

    python benchmarks/bridge.py [--quick] [--rounds N] [--json FILE]

All are compared side by side, in turns; what counts are the ratios. Ours is held
against its budget. ``README.md`` beside this file says what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import statistics
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import fanout
import outcome
import trio

from trio_runner_adapters.asyncio_bridge import AsyncioBridge

#: The latency of a call, as a multiple of the leanest thread bridge.
BUDGET: Final = 1.5

#: Makes so many calls, at most so many at a time; gives the seconds that took.
Calls: TypeAlias = Callable[[int, int], float]


@attrs.frozen
class Parameters:
    """What is run; printed with the results."""

    rounds: int
    calls: int
    in_flight: tuple[int, ...] = (1, 64)


QUICK: Final = Parameters(rounds=5, calls=640)
FULL: Final = Parameters(rounds=25, calls=1280)


class Client:
    """What is called: one step of the loop, and back."""

    async def call(self, number: int) -> int:
        """Take one turn of the loop."""
        await asyncio.sleep(0)
        return number


# --- who is compared ------------------------------------------------------------


def direct(calls: int, in_flight: int) -> float:
    """No thread: each call is a task of asyncio's."""
    client = Client()

    async def one_by_one(share: int) -> None:
        for number in range(share):
            assert await asyncio.create_task(client.call(number)) == number

    async def main() -> float:
        await one_by_one(10)
        began = time.perf_counter()
        await asyncio.gather(*[one_by_one(calls // in_flight) for _ in range(in_flight)])
        return time.perf_counter() - began

    return asyncio.run(main())


async def timed(call: Callable[[int], Any], calls: int, in_flight: int) -> float:
    """Make the calls from trio."""

    async def one_by_one(share: int) -> None:
        for number in range(share):
            assert await call(number) == number

    await one_by_one(10)
    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(one_by_one, calls // in_flight)
    return time.perf_counter() - began


@contextmanager
def loop_in_a_thread() -> Generator[asyncio.AbstractEventLoop]:
    """A loop and its thread, with nothing else about them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def leanest(calls: int, in_flight: int) -> float:
    """A waiting task that the loop's thread has rescheduled. No cancel, no errors, no close."""
    client = Client()

    async def main() -> float:
        token = trio.lowlevel.current_trio_token()
        with loop_in_a_thread() as loop:

            async def call(number: int) -> int:
                waiting = trio.lowlevel.current_task()

                def done(task: asyncio.Task[int]) -> None:
                    result = outcome.Value(task.result())
                    token.run_sync_soon(trio.lowlevel.reschedule, waiting, result)

                def start() -> None:
                    loop.create_task(client.call(number)).add_done_callback(done)

                loop.call_soon_threadsafe(start)
                return await trio.lowlevel.wait_task_rescheduled(
                    lambda _: trio.lowlevel.Abort.FAILED
                )

            return await timed(call, calls, in_flight)

    return trio.run(main)


def run_coroutine_threadsafe(calls: int, in_flight: int) -> float:
    """The standard library's way, its future waited for in a worker thread of trio's."""
    client = Client()

    async def main() -> float:
        with loop_in_a_thread() as loop:

            async def call(number: int) -> int:
                future = asyncio.run_coroutine_threadsafe(client.call(number), loop)
                return await trio.to_thread.run_sync(future.result)

            return await timed(call, calls, in_flight)

    return trio.run(main)


@asynccontextmanager
async def opened(loop: Any) -> AsyncGenerator[Any]:
    """Our bridge, open."""
    async with AsyncioBridge(Client, name="bench", loop=loop) as client:
        yield client


def ours(calls: int, in_flight: int, loop: Any = "asyncio") -> float:
    """`AsyncioBridge`, with all that it promises."""

    async def main() -> float:
        async with opened(loop) as client:
            return await timed(client.call, calls, in_flight)

    return trio.run(main)


def ours_on_uvloop(calls: int, in_flight: int) -> float:
    """The same on uvloop."""
    return ours(calls, in_flight, "uvloop")


def ours_with_progress(calls: int, in_flight: int) -> float:
    """A call with one callback: two more ways between the threads."""

    class Progress(Client):
        async def tell(self, number: int, progress: Any) -> int:
            return await progress(number)

    async def main() -> float:
        async with AsyncioBridge(Progress, name="bench", loop="asyncio") as client:

            async def progress(number: int) -> int:
                return number

            return await timed(lambda number: client.tell(number, progress), calls, in_flight)

    return trio.run(main)


def competitors() -> dict[str, Calls]:
    """Those that are there."""
    found: dict[str, Calls] = {
        "a task of asyncio": direct,
        "leanest thread bridge": leanest,
        "run_coroutine_threadsafe": run_coroutine_threadsafe,
        "AsyncioBridge": ours,
        "AsyncioBridge, a callback": ours_with_progress,
    }
    if importlib.util.find_spec("uvloop") is not None:
        found["AsyncioBridge on uvloop"] = ours_on_uvloop
    return found


# --- the command ----------------------------------------------------------------


def latency(report: fanout.Report, parameters: Parameters) -> None:
    """What a call takes, one at a time and many at a time."""
    for in_flight in parameters.in_flight:
        taken: dict[str, list[float]] = {}
        for number in range(parameters.rounds + 1):
            for name, competitor in competitors().items():
                seconds = competitor(parameters.calls, in_flight)
                if number:  # the first round warms caches up
                    taken.setdefault(name, []).append(seconds / parameters.calls * 1e6)
        medians = {name: statistics.median(each) for name, each in taken.items()}
        report.figures[f"µs per call, {in_flight} in flight"] = medians
        print(f"\nµs per call, {in_flight} in flight (median of {parameters.rounds} rounds)")
        # Of each round by itself: what else the machine does differs between rounds.
        pairs = zip(taken["AsyncioBridge"], taken["leanest thread bridge"], strict=True)
        ratio = statistics.median(own / floor for own, floor in pairs)
        for name, each in medians.items():
            print(f"  {name:<28}{each:9.1f}  {each / medians['leanest thread bridge']:6.2f} ×")
        report.budget(f"AsyncioBridge, {in_flight} in flight: × the leanest", ratio, BUDGET)


def main() -> int:
    """Measure; the exit code is 1 when a figure is not within its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and smaller samples")
    parser.add_argument("--rounds", type=int, help="samples of each competitor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    parameters = QUICK if options.quick else FULL
    if options.rounds is not None:
        parameters = attrs.evolve(parameters, rounds=options.rounds)
    report = fanout.Report()
    surroundings = {
        "python": sys.version.split()[0],
        "system": sys.platform,
        "trio": trio.__version__,
    }
    report.figures["surroundings"] = surroundings
    report.figures["parameters"] = attrs.asdict(parameters)
    print(", ".join([f"{name} {value}" for name, value in surroundings.items()]))
    for name, value in attrs.asdict(parameters).items():
        print(f"  {name}: {value}")
    latency(report, parameters)
    if options.json is not None:
        options.json.write_text(json.dumps(report.figures, indent=2) + "\n", "utf-8")
    print(f"\nnot within budget: {', '.join(report.over_budget) or 'nothing'}")
    return 1 if report.over_budget else 0


if __name__ == "__main__":
    sys.exit(main())
