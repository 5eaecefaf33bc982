"""The commands by name; each module is loaded when its command is used.

What may live here: which commands there are, and nothing that one of them needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

import attrs
import click

import trio_runner._cli as entry


@attrs.frozen
class Entry:
    """A command: the extra that it needs, and the line that the list of commands shows."""

    extra: str
    line: str


#: The command ``x`` is the function ``x`` of ``trio_runner/_cli/x.py``.
COMMANDS: Final[Mapping[str, Entry]] = MappingProxyType(
    {
        "check": Entry("cli", "Run the cancellation suite on an agent of yours."),
        "demo": Entry("demo", "Run one turn: a scripted planner and real file tools."),
        "sessions": Entry("cli", "List, show, export, fork, delete, check or resume sessions."),
    }
)


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = entry.load(cmd_name, COMMANDS[cmd_name].extra)
        return cast("click.Command", getattr(module, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The list is shown whether the packages that a command needs are there or not.
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.line) for name, each in COMMANDS.items()])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trio-runner")
def cli() -> None:
    """The agent tool loop for trio that can be cancelled anywhere."""
