"""How many bytes a turn of n steps writes.

What may live here: the turns' lengths, counting what this process writes, and
saying how that grows. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from _reference import Call

#: How many steps the turns have.
LENGTHS: Final = (10, 40, 160)
#: How many characters each result has.
RESULT_SIZE: Final = 1250
_COUNTERS: Final = Path("/proc/self/io")


def script(steps: int) -> tuple[tuple[Call, ...], ...]:
    """A turn of ``steps`` replies with one call each, whose ``steps`` argument is a size."""
    return tuple((Call(f"c{number}", "quick", RESULT_SIZE),) for number in range(steps))


def bytes_written() -> int:
    """The bytes that this process has given to the kernel to write, to files of any kind.

    Raises:
      RuntimeError: this system does not say; Linux does.
    """
    if not _COUNTERS.exists():
        raise RuntimeError(f"{_COUNTERS} is not there; the bytes written are counted on Linux only")
    for line in _COUNTERS.read_text("ascii").splitlines():
        name, _, count = line.partition(": ")
        if name == "wchar":
            return int(count)
    raise RuntimeError(f"no line 'wchar: N' in {_COUNTERS}")


@contextmanager
def counted() -> Generator[list[int]]:
    """Count what is written inside; the list holds the bytes afterwards."""
    written = [0]
    before = bytes_written()
    yield written
    written[0] = bytes_written() - before


def exponent(written: Mapping[int, int]) -> float:
    """The growth exponent between the two longest turns: 1 is linear, 2 quadratic."""
    shorter, longer = sorted(written)[-2:]
    return math.log(written[longer] / written[shorter]) / math.log(longer / shorter)


def describe(written: Mapping[int, int]) -> str:
    """The cell of the table: the word, the exponent, and the bytes per byte of the results."""
    power = exponent(written)
    longest = max(written)
    payload = longest * RESULT_SIZE
    word = "linear" if power < 1.2 else "quadratic" if power > 1.6 else "more than linear"
    times = written[longest] / payload
    return f"{word} (n^{power:.2f}; {times:.3g} × the results at n = {longest})"
