"""What is measured in processes of its own: imports, and instructions under callgrind.

What may live here: starting a child process and reading what it measured.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_IMPORT = "import time; began = time.process_time(); {}; print(time.process_time() - began)"


def import_seconds(statements: Mapping[str, str], *, rounds: int) -> dict[str, float]:
    """Median CPU seconds of each import statement, each time in a new process."""
    taken: dict[str, list[float]] = {name: [] for name in statements}
    # Bytecode is kept in a folder of its own, whatever the surroundings say about that:
    # sources that are compiled at each import would be what is measured.
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        environment["PYTHONPYCACHEPREFIX"] = folder
        for number in range(rounds + 1):
            for name, statement in statements.items():
                done = subprocess.run(
                    [sys.executable, "-c", _IMPORT.format(statement)],
                    check=True,
                    capture_output=True,
                    text=True,
                    env=environment,
                )
                if number:  # the first round compiles
                    taken[name].append(float(done.stdout))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def instructions(script: str, competitor: str, count: int, prepared: tuple[int, int]) -> int:
    """Instructions of a whole process that runs one sample, start and imports included.

    Args:
      count: of the sample that is run.
      prepared: the counts of the samples that are made; ``count`` is one of them.
        Processes that prepare the same differ by what they run alone.

    Raises:
      RuntimeError: valgrind is not installed, or said something unexpected.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise RuntimeError("valgrind is not installed; leave --callgrind out, or install it")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "callgrind.out")
        subprocess.run(
            [
                valgrind,
                "--tool=callgrind",
                f"--callgrind-out-file={out}",
                sys.executable,
                script,
                "--one-sample",
                competitor,
                *map(str, (count, *prepared)),
            ],
            check=True,
            capture_output=True,
            # The order of sets must be the same in each process.
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        found = re.search(r"^(?:summary|totals): (\d+)", out.read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError("callgrind wrote no total; expected a line 'summary: N'")
    return int(found[1])
