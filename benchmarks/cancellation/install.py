"""Install the peers, each into an environment of its own.

    python3.13 benchmarks/cancellation/install.py [--peers FOLDER] [NAME ...]

Takes the newest versions unless a requirement below says otherwise, from the
index that pip is configured to use. Nothing else of the project needs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Where the environments are, unless an argument says otherwise; git ignores it.
FOLDER: Final = Path(__file__).resolve().parent.parent.parent / ".peers"
#: What each environment needs.
REQUIREMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "fast-agent": ("fast-agent-mcp",),
    "pydantic-ai": ("pydantic-ai-slim",),
    "openai-agents": ("openai-agents",),
    "langgraph": ("langgraph", "langchain", "langgraph-checkpoint-sqlite"),
}


def python_of(folder: Path, name: str) -> Path:
    """The Python of a peer's environment."""
    return folder / name / "bin" / "python"


def install(folder: Path, name: str) -> None:
    """Make the environment of one peer, or bring it up to date.

    Raises:
      subprocess.CalledProcessError: pip could not install it.
    """
    python = python_of(folder, name)
    if not python.exists():
        venv.create(folder / name, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", *REQUIREMENTS[name]]
    subprocess.run(command, check=True)


def main() -> None:
    """Install what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(REQUIREMENTS)}")
    parser.add_argument("--peers", type=Path, default=FOLDER, help="where the environments are")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(REQUIREMENTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(REQUIREMENTS)}")
    for name in arguments.names or REQUIREMENTS:
        print(f"{name} …", file=sys.stderr)
        install(arguments.peers, name)


if __name__ == "__main__":
    main()
