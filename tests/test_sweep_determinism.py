"""A sweep repeats exactly: each position of the reference turn comes to the same end, every time.

Compared is all that a position shows: the trace of the task steps, where and
when the faults landed, what left the turn, its end state, the history and the
records, and the violations. A position is worth reporting only if its replay
shows the same; the sweep itself compares no more than the steps before a fault.

Without ``--full-sweeps`` a sample is run again twice; with it each position of
each fault ten times.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Final

import attrs
import pytest
import trio

import trio_runner
from trio_runner.testing import Case, Outcome, replay, replay_line, sweep, sweep_lines
from trio_runner.testing._faults import FAULTS
from trio_runner.testing.reference import DRIVES, SESSION, Drive, ReferenceTurn

PACKAGE: Final = pathlib.Path(trio_runner.__file__).parent
LINES_OF: Final = (PACKAGE / "_core", PACKAGE / "_shell", PACKAGE / "_journal")
DELAYS: Final = (0.0, 0.5)
SOME_TURNS: Final[tuple[tuple[Drive, float], ...]] = (("until_done", 0.5), ("break", 0.0))
#: trio's Cancelled names the task that cancelled, with its place in memory.
ADDRESS: Final = re.compile("0x[0-9a-f]+")
ALL_TURNS: Final = pytest.mark.parametrize(
    ("drive", "delay"), list(itertools.product(DRIVES, DELAYS))
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every failed observer is logged with its traceback; the contract's check reads it."""
    monkeypatch.setattr(logging.getLogger("trio_runner"), "propagate", False)


# --- what a position shows ------------------------------------------------------


def shown(exc: BaseException | None) -> object:
    """An exception as its kind and its words; a group with all that is in it."""
    match exc:
        case None:
            return None
        case BaseExceptionGroup():
            return type(exc).__name__, exc.message, [shown(each) for each in exc.exceptions]
        case _:
            return type(exc).__name__, str(exc)


class Recorded:
    """Makes the cases of another maker, and keeps what each position showed.

    Given an earlier one it compares with that one instead, position by position.
    """

    def __init__(
        self,
        make_case: Callable[[], Case],
        details: Callable[[], object] = lambda: None,
        earlier: Recorded | None = None,
    ) -> None:
        self.count = 0
        #: What differs from the earlier run, at most three of it.
        self.differences: list[str] = []
        self.shows: list[dict[str, str]] = []
        self._make_case = make_case
        self._details = details
        self._earlier = earlier

    def __call__(self) -> Case:
        case = self._make_case()

        def check(outcome: Outcome) -> Iterator[str]:
            violations = list(case.check(outcome) or ())
            state = case.end_state(outcome) if case.end_state is not None else None
            self._note(outcome, violations, state)
            yield from violations

        return attrs.evolve(case, check=check)

    def _note(self, outcome: Outcome, violations: list[str], end_state: object) -> None:
        seen: dict[str, object] = {
            field.name: getattr(outcome, field.name) for field in attrs.fields(Outcome)
        }
        seen["raised"], seen["broken"] = shown(outcome.raised), shown(outcome.broken)
        seen |= {"check": violations, "end_state": end_state, "details": self._details()}
        shows = {name: ADDRESS.sub("an address", repr(value)) for name, value in seen.items()}
        if self._earlier is None:
            self.shows.append(shows)
        else:
            self._compare(self._earlier.shows[self.count], shows)
        self.count += 1

    def _compare(self, before: dict[str, str], now: dict[str, str]) -> None:
        if before == now or len(self.differences) == 3:
            return
        name = next(name for name in before if before[name] != now[name])
        self.differences.append(
            f"run {self.count}, {now['landings']}: {name} was {before[name]}, is {now[name]}"
        )

    @property
    def digest(self) -> str:
        """One text that stands for all that was shown."""
        return hashlib.sha256(json.dumps(self.shows).encode()).hexdigest()


def recorded(drive: Drive, delay: float, earlier: Recorded | None = None) -> Recorded:
    """The reference turn with hooks and an observer, and with its history and its records."""
    turn = ReferenceTurn(drive, delay=delay, watched=True)

    def details() -> object:
        assert turn.journal is not None
        return turn.agent.history, turn.agent.last_turn, turn.journal.stored(SESSION)

    return Recorded(turn, details, earlier)


def repeats(
    run: Callable[[Recorded], object],
    make: Callable[[Recorded | None], Recorded],
    times: int,
) -> int:
    """Run a sweep, and ``times`` more; returns how many positions were compared in all."""
    first = make(None)
    run(first)
    assert first.count > 0
    compared = 0
    for _ in range(times):
        again = make(first)
        run(again)
        assert again.differences == []
        assert again.count == first.count
        compared += again.count
    return compared


# --- within one process ---------------------------------------------------------


@pytest.mark.slow
@ALL_TURNS
def test_every_position_of_a_sweep_repeats(drive: Drive, delay: float, full_sweeps: bool) -> None:
    def run(make_case: Recorded) -> None:
        most = None if full_sweeps else 6
        sweep(make_case, faults=FAULTS, seeds=[3], max_positions=most).raise_if_failed()

    times = 10 if full_sweeps else 2
    compared = repeats(run, lambda earlier: recorded(drive, delay, earlier), times)
    print(f"{drive} {delay}: {compared // times} positions, {times} re-runs: {compared} compared")


@pytest.mark.slow
@pytest.mark.parametrize(("drive", "delay"), SOME_TURNS)
def test_a_sweep_of_pairs_repeats(drive: Drive, delay: float, full_sweeps: bool) -> None:
    pairs = [("commit_error", "cancel")]
    if full_sweeps:
        pairs += [("cancel", "sigint"), ("sigint_child", "deadline")]

    def run(make_case: Recorded) -> None:
        most = 50 if full_sweeps else 5
        sweep(make_case, faults=(), pairs=pairs, seeds=[1], max_positions=most).raise_if_failed()

    times = 10 if full_sweeps else 1
    compared = repeats(run, lambda earlier: recorded(drive, delay, earlier), times)
    print(f"{drive} {delay}: {compared // times} runs, {times} re-runs: {compared} compared")


@pytest.mark.slow
@pytest.mark.parametrize("restrict_ki", [True, False])
@pytest.mark.parametrize("delay", DELAYS)
def test_every_line_of_a_sweep_repeats(delay: float, restrict_ki: bool, full_sweeps: bool) -> None:
    def make(earlier: Recorded | None) -> Recorded:
        turn = ReferenceTurn("async_for", delay=delay, exact_starts=restrict_ki)
        return Recorded(turn, lambda: turn.agent.history, earlier)

    def run(make_case: Recorded) -> None:
        most = 300 if full_sweeps else 20
        sweep_lines(
            make_case, paths=LINES_OF, restrict_ki=restrict_ki, max_positions=most
        ).raise_if_failed()

    times = 10 if full_sweeps else 2
    compared = repeats(run, make, times)
    print(f"lines {delay} {restrict_ki}: {compared // times} runs, {times} re-runs: {compared}")


def test_a_replay_shows_what_the_sweep_has_shown() -> None:
    """The line a report prints leads to the very same position."""
    swept = recorded("until_done", 0.5)
    sweep(swept, faults=["cancel", "sigint"], seeds=[5], max_positions=9).raise_if_failed()
    alone = recorded("until_done", 0.5)
    faults = ["cancel"] * 9 + ["sigint"] * 9
    # The first run and the last are those without a fault.
    positions = swept.shows[1:-1]
    for shows, fault in zip(positions, faults, strict=True):
        position = next(step for step in range(10_000) if f"position={step}," in shows["landings"])
        replay(alone, (fault, position), seed=5)
    assert alone.shows == positions


def test_a_replayed_line_shows_what_the_sweep_has_shown() -> None:
    turns = [ReferenceTurn("until_done"), ReferenceTurn("until_done")]
    swept, alone = (Recorded(turn, lambda turn=turn: turn.agent.history) for turn in turns)
    sweep_lines(swept, paths=LINES_OF, max_positions=5).raise_if_failed()
    # Two runs without an interrupt come first: one to warm up, one to count.
    for shows in swept.shows[2:]:
        line = next(line for line in range(100_000) if f"position={line}," in shows["landings"])
        replay_line(alone, line, paths=LINES_OF)
    assert alone.shows[1::2] == swept.shows[2:]


# --- across processes -----------------------------------------------------------

RUN: Final = """
import importlib.util, sys

path, function = sys.argv[1:]
spec = importlib.util.spec_from_file_location("determinism", path)
module = sys.modules["determinism"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(getattr(module, function)())
"""


def digest_of_the_reference_turn() -> str:
    digests: list[str] = []
    for drive, delay in SOME_TURNS:
        taken = recorded(drive, delay)
        sweep(taken, faults=FAULTS, seeds=[0], max_positions=8)
        digests.append(taken.digest)
    return " ".join(digests)


def digest_of_what_a_set_shows() -> str:
    async def run() -> str:
        return " ".join({"a", "set", "of", "words", "in", "no", "order"})

    taken = Recorded(lambda: Case(run, raises_cancel=False))
    sweep(taken, faults=["cancel"], seeds=[0])
    return taken.digest


def in_a_process(function: Callable[[], str], hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, __file__, function.__name__],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONHASHSEED": hash_seed},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_every_process_shows_the_same_whatever_its_hash_seed() -> None:
    digests = {in_a_process(digest_of_the_reference_turn, seed) for seed in ("0", "1", "4242")}
    assert digests == {digest_of_the_reference_turn()}


# --- the comparison can fail ----------------------------------------------------


def test_a_case_that_repeats_its_steps_but_not_its_end_is_noticed() -> None:
    numbers = itertools.count()

    async def run() -> int:
        await trio.lowlevel.checkpoint()
        return next(numbers)

    first = Recorded(lambda: Case(run))
    sweep(first, faults=["crash"], seeds=[0])
    again = Recorded(lambda: Case(run), earlier=first)
    sweep(again, faults=["crash"], seeds=[0])
    assert "value was 0, is " in again.differences[0]


@pytest.mark.slow
def test_what_depends_on_the_hash_seed_is_noticed() -> None:
    digests = {in_a_process(digest_of_what_a_set_shows, seed) for seed in ("0", "1", "4242")}
    assert len(digests) > 1
