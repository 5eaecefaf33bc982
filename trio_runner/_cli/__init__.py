"""The ``trio-runner`` command: its entry point, which needs no extra to say that one is missing.

The commands themselves need click, rich and mcp, so they are imported when the
command is run and not with this package.
"""

from __future__ import annotations

import importlib
import sys

#: What the extra ``demo`` brings; any other missing module is a fault of ours.
_EXTRA = frozenset({"click", "rich", "mcp", "mcp_types", "anyio", "pydantic", "jsonschema"})


def main() -> None:
    """Run the command.

    Exit status 2 when a package that it needs is not installed, 130 when Ctrl-C
    came before the command began; else the command's own.
    """
    try:
        commands = importlib.import_module("trio_runner._cli.demo")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        sys.stderr.write(
            f"trio-runner: the package {missing!r} is not installed. Install what the command "
            "needs:\n  python -m pip install 'trio-runner[demo]'\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:
        # Importing takes a second or two; nothing has been started yet.
        sys.stderr.write("trio-runner: interrupted before the turn began\n")
        sys.exit(130)
    commands.cli()
