"""The table of record: the reference turn on each peer and on trio_runner, cancelled everywhere.

    python benchmarks/cancellation/run.py [--peers FOLDER] [--json FILE] [NAME ...]

Runs one process for each, with the Python of its own environment, which
`install.py` makes. A peer that is not installed is left out. Prints the table.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import _table
import install

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
#: The scripts, in the order of the columns. Ours runs with the Python that runs this.
SCRIPTS: Final[Mapping[str, str]] = {
    "fast-agent": "peer_fast_agent.py",
    "pydantic-ai": "peer_pydantic_ai.py",
    "openai-agents": "peer_openai_agents.py",
    "langgraph": "peer_langgraph.py",
    "trio_runner": "peer_trio_runner.py",
}
#: Seconds that one peer may take, all its sweeps together.
TIMEOUT_SECONDS: Final = 3600.0


def measure(name: str, python: Path) -> dict[str, Any]:
    """What the script of ``name`` prints; an ``error`` when it does not."""
    paths = [str(ROOT), str(ROOT / "adapters"), os.environ.get("PYTHONPATH", "")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # No telemetry, no tracing, and the same order of sets in each run.
    environment |= {"PYTHONHASHSEED": "0", "LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1"}
    nothing: dict[str, Any] = {"name": name, "version": "", "rows": {}, "notes": {}}
    try:
        done = subprocess.run(
            [str(python), str(HERE / SCRIPTS[name])],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env=environment | (ours if name == "trio_runner" else {}),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**nothing, "error": f"not through after {TIMEOUT_SECONDS:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {**nothing, "error": f"exit code {done.returncode}: {lines[-1]}"}
    return json.loads(done.stdout)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(SCRIPTS)}")
    parser.add_argument("--peers", type=Path, default=install.FOLDER, help="as for install.py")
    parser.add_argument("--json", type=Path, help="keep everything that was found")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SCRIPTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(SCRIPTS)}")
    reports: list[dict[str, Any]] = []
    for name in arguments.names or SCRIPTS:
        python = install.python_of(arguments.peers, name)
        if name == "trio_runner":
            python = Path(sys.executable)
        elif not python.exists():
            print(f"{name} is not installed; see install.py", file=sys.stderr)
            continue
        print(f"{name} …", file=sys.stderr)
        reports.append(measure(name, python))
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    if arguments.json is not None:
        kept = {"date": today, "reports": reports}
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    print(_table.render(reports, date=today))
    return 1 if any("error" in report for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
