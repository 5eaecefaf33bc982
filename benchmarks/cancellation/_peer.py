"""What each peer's script prints: one JSON object with everything that it measured.

What may live here: collecting and printing. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any, Final

import _growth
import _kill
from _histories import Kind
from _sweep_asyncio import Program, Sweep, sweep, sweep_pairs

#: Pairs of cancels that are run; the share is printed.
PAIRS = 400


#: What a sweep with one cancel counts, in the order of the table.
KINDS: Final[tuple[Kind, ...]] = (
    "history malformed",
    "result lost",
    "next request malformed",
    "next turn refused",
    "cancel swallowed",
    "tool left running",
)
#: The rows of a sweep with two cancels, by what they count.
PAIR_ROWS: Final[dict[Kind, str]] = {
    "tool left running": "tool left running after a second cancel",
    "disk behind memory": "disk behind memory after a second cancel",
}


class Report:
    """What one peer showed; printed as JSON when all is measured.

    Args:
      name: as it stands in the table.
      distribution: whose version is told.
      version: the version; None: that of the installed distribution.
    """

    def __init__(self, name: str, distribution: str, *, version: str | None = None) -> None:
        self.data: dict[str, Any] = {
            "name": name,
            "version": version or metadata.version(distribution),
            "python": platform.python_version(),
            "rows": {},
            "notes": {},
            "sweeps": {},
        }
        # Whatever a library prints or logs must not get into the JSON.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        logging.disable(logging.CRITICAL)

    @property
    def rows(self) -> dict[str, str]:
        """The cells of the table, by row."""
        return self.data["rows"]

    def note(self, row: str, text: str) -> None:
        """Say how a row was measured, or why it was not."""
        before = self.data["notes"].get(row)
        self.data["notes"][row] = text if before is None else f"{before}; {text}"

    def sweep(self, make: Callable[[], Program]) -> Sweep:
        """One cancel at every step: the first rows of the table."""
        done = sweep(make)
        self.data["sweeps"]["cancel"] = asdict(done)
        self.rows["positions swept"] = str(done.positions)
        for kind in KINDS:
            self.rows[kind] = str(done.counts.get(kind, 0))
        return done

    def recovery(self, make: Callable[[], Program], how: str) -> Sweep:
        """The same, with the library's documented way to go on."""
        done = sweep(make)
        self.data["sweeps"]["recovery"] = asdict(done)
        bad = done.counts.get("next request malformed", 0) + done.counts.get("next turn refused", 0)
        self.rows["the same, after the documented repair"] = str(bad)
        self.note("the same, after the documented repair", how)
        return done

    def provider(self, make: Callable[[], Program], how: str) -> None:
        """The same with a provider of the library's own in place of the scripted model."""
        done = sweep(make)
        self.data["sweeps"]["provider"] = asdict(done)
        count = done.counts.get("cancel swallowed", 0)
        self.rows["cancel swallowed"] += f"; {count} of {done.positions} with a real provider"
        self.note("cancel swallowed", how)

    def hanging(self, make: Callable[[], Program]) -> None:
        """A store that hangs from the cancel on."""
        done = sweep(make)
        self.data["sweeps"]["hanging"] = asdict(done)
        count = done.counts.get("never returned", 0)
        self.rows["hanging store: the turn never returns"] = f"{count} of {done.positions}"

    def killed(self, done: _kill.Killed) -> None:
        """`kill -9` at moments spread over the turn."""
        self.data["killed"] = asdict(done)
        row = "kill -9: a returned result lost on disk"
        self.rows[row] = f"{done.lost} of {done.kills}"
        self.note(
            row, f"results that returned {1000 * _kill.SLACK:.0f} ms before the kill or earlier"
        )

    def pairs(
        self, make: Callable[[], Program], *, stored: bool = True, at_most: int = PAIRS
    ) -> Sweep:
        """A second cancel.

        Args:
          stored: whether there is a store to be compared with memory.
          at_most: how many pairs are run.
        """
        done = sweep_pairs(make, at_most=at_most)
        self.data["sweeps"]["pairs"] = asdict(done)
        for kind, row in PAIR_ROWS.items():
            if stored or kind != "disk behind memory":
                self.rows[row] = f"{done.counts.get(kind, 0)} of {done.positions}"
        if done.positions < done.total:
            self.note(
                PAIR_ROWS["tool left running"],
                f"{done.positions} of {done.total} pairs, drawn with a fixed seed",
            )
        return done

    def growth(self, written: Mapping[int, int]) -> None:
        """How many bytes the turns of `_growth.LENGTHS` wrote, by their length."""
        self.data["written"] = {str(steps): count for steps, count in written.items()}
        self.rows["bytes written over a turn of n steps"] = _growth.describe(written)

    def print(self) -> None:
        """Print it all."""
        with contextlib.closing(self._out):
            json.dump(self.data, self._out, indent=1)
        sys.stdout.flush()
