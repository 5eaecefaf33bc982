"""How it is measured: interleaved rounds, medians, ratios, a log-log fit.

What may live here: clocks and arithmetic that know nothing of what they measure.

* CPU time of the process, so that other programs on the machine matter little.
* One sample of each competitor per round, in turn, so that what does matter
  (frequency, caches, temperature) hits all of them alike.
* The garbage collector runs before each sample and not within it: a collection
  would charge one sample for the garbage of another.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import trio
from workloads import Prepare, Sample


def _timed(samples: Sequence[Sample], clock: Callable[[], float]) -> float:
    """Seconds for ``samples``, one after the other, in one run of trio."""

    async def main() -> float:
        await trio.lowlevel.checkpoint()
        gc.collect()
        gc.disable()
        try:
            began = clock()
            checks = [await sample() for sample in samples]
            taken = clock() - began
        finally:
            gc.enable()
        for check in checks:
            check()
        return taken

    return trio.run(main)


def interleaved(
    competitors: Mapping[str, Prepare],
    count: int,
    *,
    rounds: int,
    at_least: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:
    """The median seconds of one sample of ``count``, by competitor.

    Args:
      at_least: repeat a sample within a round until so many calls (or steps)
        were made, since a short one cannot be timed.
    """
    repeats = max(1, at_least // count)
    taken: dict[str, list[float]] = {name: [] for name in competitors}
    for number in range(rounds + 1):
        for name, prepare in competitors.items():
            seconds = _timed([prepare(count) for _ in range(repeats)], clock) / repeats
            if number:  # the first round warms caches up
                taken[name].append(seconds)
    return {name: statistics.median(each) for name, each in taken.items() if each}


def run_one_and_exit(prepare: Prepare, count: int, prepared: tuple[int, int]) -> NoReturn:
    """Make a sample for each of ``prepared``, run the one of ``count``, and leave the process.

    At once, so that what is freed at the end is not counted: the clock of `interleaved`
    has stopped by then as well.
    """
    samples = {each: prepare(each) for each in prepared}

    async def main() -> NoReturn:
        await trio.lowlevel.checkpoint()
        gc.collect()
        gc.disable()
        await samples[count]()
        os._exit(0)

    trio.run(main)
    raise AssertionError("main() leaves the process")


def peak_bytes_per_item(prepare: Prepare, few: int, many: int) -> float:
    """The marginal peak of traced memory: between a sample of ``few`` and one of ``many``."""

    def peak(count: int) -> int:
        async def main() -> int:
            sample = prepare(count)
            gc.collect()
            tracemalloc.start()
            try:
                await sample()
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        return trio.run(main)

    peak(few)  # what is made once
    return (peak(many) - peak(few)) / (many - few)


def growth_exponent(seconds: Mapping[int, float]) -> float:
    """The slope of log(seconds) over log(count): 1 is linear, 2 quadratic."""
    x = [math.log(count) for count in seconds]
    y = [math.log(each) for each in seconds.values()]
    return statistics.linear_regression(x, y).slope
