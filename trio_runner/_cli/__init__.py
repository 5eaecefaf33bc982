"""The ``trio-runner`` command: its entry point, which needs no extra to say that one is missing.

The commands themselves need click, rich and perhaps mcp, so they are imported
when they are run and not with this package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_CLI: Final = frozenset({"click", "rich", "platformdirs"})
#: What an extra brings; any other missing module is a fault of ours.
_EXTRAS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {"cli": _CLI, "demo": _CLI | {"mcp", "mcp_types", "anyio", "jsonschema"}}
)


def main() -> None:
    """Run the command.

    Exit status 2 when a package that it needs is not installed, 130 when Ctrl-C
    came before the command began; else the command's own.
    """
    wants_demo = sys.argv[1:2] == ["demo"]
    load("group", "demo" if wants_demo else "cli").cli(prog_name="trio-runner")


def load(module: str, extra: str) -> Any:
    """Import ``trio_runner._cli.MODULE``, or end the process with the reason why not."""
    try:
        return importlib.import_module(f"trio_runner._cli.{module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS[extra]:
            raise
        sys.stderr.write(
            f"trio-runner: the package {missing!r} is not installed. Install what the command "
            f"needs:\n  python -m pip install 'trio-runner[{extra}]'\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:
        # Importing takes a second or two; nothing has been started yet.
        sys.stderr.write("trio-runner: interrupted before the command began\n")
        sys.exit(130)
