"""What the pytest plugin is told: by marker, by keyword, by command line.

What may live here: the options, their meaning together, and the text that names
one position (``cancel@17,sigint@20,seed=3``). What is done with them is in
`_pytest_sweep.py`.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict

import attrs
import pytest

from trio_runner.testing._faults import Fault, Landing, as_fault
from trio_runner.testing._sweep import DEFAULT_FAULTS, replay, sweep

#: Each option of `sweep`, and those that `replay` takes as well.
SWEEP_OPTIONS: Final = frozenset(inspect.signature(sweep).parameters) - {"make_case"}
REPLAY_OPTIONS: Final = SWEEP_OPTIONS & frozenset(inspect.signature(replay).parameters)
#: What a marked test may say besides.
TEST_OPTIONS: Final = frozenset({"raises_cancel", "leaves_within", "may_raise"})


class SweepOptions(TypedDict, total=False):
    """The keyword arguments of `trio_runner.testing.sweep`."""

    faults: Iterable[str | Fault]
    pairs: Iterable[tuple[str | Fault, str | Fault]]
    seeds: Iterable[int]
    pair_seeds: Iterable[int] | None
    sample: float
    max_positions: int | None
    max_failures: int | None
    restrict_ki: bool
    strict_groups: bool
    hang_after: float
    max_steps: int


@attrs.frozen
class Replay:
    """One position, as the command line names it.

    Attributes:
      plan: the faults by name, each with its step or call.
      seed: of the scheduler.
      sweep: which of a test's sweeps, from 1.
    """

    plan: tuple[tuple[str, int], ...]
    seed: int = 0
    sweep: int = 1

    @classmethod
    def parse(cls, text: str) -> Replay:
        """Read ``cancel@17,sigint@20,seed=3``.

        Raises:
          pytest.UsageError: the text is not of that form.
        """
        plan: list[tuple[str, int]] = []
        numbers = {"seed": 0, "sweep": 1}
        for word in text.split(","):
            found = re.fullmatch(r"\s*([^@=\s]+)([@=])(\d+)\s*", word)
            if found is not None and found[2] == "@":
                plan.append((found[1], int(found[3])))
            elif found is not None and found[1] in numbers:
                numbers[found[1]] = int(found[3])
            else:
                raise pytest.UsageError(
                    f"--sweep-replay={text}: cannot read {word!r}; expected what a failed sweep "
                    "prints, such as cancel@17,sigint@20,seed=3"
                )
        return cls(tuple(plan), **numbers)

    @classmethod
    def of(cls, landings: Iterable[Landing], seed: int, sweep: int = 1) -> Replay:
        """The position at which these faults came."""
        return cls(tuple((each.fault, each.position) for each in landings), seed, sweep)

    def __str__(self) -> str:
        words = [f"{name}@{position}" for name, position in self.plan]
        words.append(f"seed={self.seed}")
        if self.sweep != 1:
            words.append(f"sweep={self.sweep}")
        return ",".join(words)

    def command(self, item: pytest.Item) -> str:
        """The command that runs this position alone, from where pytest was started."""
        path = os.path.relpath(item.path, item.config.invocation_params.dir)
        within = item.nodeid.partition("::")[2]
        return f"pytest {shlex.quote(f'{path}::{within}')} --sweep-replay={self}"


@attrs.frozen
class CommandLine:
    """What the command line says; None where it says nothing.

    Attributes:
      seeds: how many seeds each sweep takes.
      sample: the share of the pairs' positions.
      positions: at most so many positions for each fault and seed.
      replay: the one position to run.
    """

    seeds: int | None
    sample: float | None
    positions: int | None
    replay: Replay | None

    @classmethod
    def of(cls, config: pytest.Config) -> CommandLine:
        """Read it.

        Raises:
          pytest.UsageError: an option makes no sense.
        """
        text = config.getoption("sweep_replay")
        read = cls(
            config.getoption("sweep_seeds"),
            config.getoption("sweep_sample"),
            config.getoption("sweep_positions"),
            None if text is None else Replay.parse(text),
        )
        for name, number in (("seeds", read.seeds), ("positions", read.positions)):
            if number is not None and number < 1:
                raise pytest.UsageError(f"--sweep-{name}={number}: expected 1 or more")
        if read.sample is not None and not 0 < read.sample <= 1:
            raise pytest.UsageError(
                f"--sweep-sample={read.sample}: expected a share above 0, at most 1"
            )
        return read

    def over(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a sweep with those of the command line in their place."""
        merged = dict(options)
        for name in merged.keys() & {"faults", "pairs"}:
            merged[name] = tuple(merged[name])  # they are looked at more than once
        for name in ("seeds", "pair_seeds"):
            if type(merged.get(name)) is int:
                merged[name] = range(merged[name])
        if self.seeds is not None:
            merged["seeds"] = range(self.seeds)
            if merged.get("pair_seeds") is not None:
                merged["pair_seeds"] = tuple(merged["pair_seeds"])[: self.seeds]
        if self.sample is not None:
            merged["sample"] = self.sample
        if self.positions is not None:
            merged["max_positions"] = self.positions
        return merged


def marked_options(item: pytest.Item) -> dict[str, Any]:
    """What the markers of a test say together; the one nearest to the test wins.

    Raises:
      pytest.fail.Exception: an option is unknown.
    """
    options: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("cancel_sweep"))):
        if mark.args:
            pytest.fail(
                f"cancel_sweep takes keyword arguments only, found {mark.args!r}; "
                "write cancel_sweep(faults=[...]), for instance",
                pytrace=False,
            )
        unknown = sorted(mark.kwargs.keys() - SWEEP_OPTIONS - TEST_OPTIONS)
        if unknown:
            pytest.fail(
                f"cancel_sweep has no option {', '.join(map(repr, unknown))}; expected some of "
                f"{', '.join(sorted(SWEEP_OPTIONS | TEST_OPTIONS))}",
                pytrace=False,
            )
        options |= mark.kwargs
    return options


def faults_of(options: Mapping[str, Any]) -> dict[str, Fault]:
    """All faults of a sweep by name.

    Raises:
      ValueError: no fault has that name.
    """
    given = [*options.get("faults", DEFAULT_FAULTS)]
    for pair in options.get("pairs", ()):
        given += pair
    return {fault.name: fault for fault in map(as_fault, given)}
