"""What the commands write with: text that commands no terminal, output that may get lost.

What may live here: the console and the writing of lines, whatever they say.
"""

from __future__ import annotations

import sys
from typing import Final

import rich.console
import rich.text

import trio_runner as tr

#: A column is wide enough for a table also where nobody says how wide the output is.
_PLAIN_WIDTH: Final = 100


def printable(text: str) -> str:
    """Return ``text`` with whatever is not printable written as an escape; line breaks stay."""
    return "".join(
        [
            one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode()
            for one in text
        ]
    )


def call_text(call: tr.ToolCall) -> str:
    """Return a call as a line of text, bounded."""
    arguments = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
    shown = arguments if len(arguments) <= 60 else f"{arguments[:57]}..."
    return printable(f"{call.name}({shown})")


class _Console(rich.console.Console):
    """A console that does not exit the process when its reader is gone: `Output` sees to that."""

    def on_broken_pipe(self) -> None:
        """Raise on; called while the error is handled."""
        raise  # noqa: PLE0704 - rich calls this in its except block


def console(*, quiet: bool = False, stderr: bool = False) -> rich.console.Console:
    """Return a console for stdout, or for stderr; a quiet one shows nothing."""
    made = _Console(quiet=quiet, stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = _PLAIN_WIDTH
    return made


class Output:
    """Writes to stdout, until it cannot be written (its reader is gone, the disk is full).

    Then nothing more is written, and `finish` tells.
    """

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        #: Why nothing more is written.
        self._lost: OSError | None = None

    def gave_up(self) -> None:
        """Called once when output cannot be written; does nothing here."""

    def line(self, text: str, style: str = "") -> None:
        """Write one paragraph as it is: no markup, nothing guessed about it."""
        self.show(rich.text.Text(printable(text), style=style))

    def show(self, thing: rich.console.RenderableType) -> None:
        """Write anything that the console can render."""
        if self._lost is None:
            try:
                self._console.print(thing, soft_wrap=type(thing) is rich.text.Text)
            except OSError as error:
                self._lost = error
                self.gave_up()

    def raw(self, text: str) -> None:
        """Write text as it is, past the console."""
        if self._lost is None and sys.stdout is not None:
            try:
                sys.stdout.write(text)
            except OSError as error:
                self._lost = error

    def finish(self) -> bool:
        """Write what is buffered, and return whether output was lost."""
        if sys.stdout is None:
            return True
        try:
            sys.stdout.flush()
        except OSError as error:
            self._lost = self._lost or error
        if self._lost is None:
            return False
        if not isinstance(self._lost, BrokenPipeError):
            sys.stderr.write(f"trio-runner: cannot write the output: {self._lost.strerror}\n")
        return True
