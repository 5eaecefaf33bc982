"""``trio-runner sessions``: what is kept in a journal's file.

What may live here: the commands' options, and the order of what they do. What they do
is `trio_runner.SqliteJournal`; what they show is ``sessions_view.py``.

Exit status: 0 done; 1 the file or a session is damaged, or the system refused; 2 used wrongly
(no such session, one that is in use, no journal); 3 the turn that was resumed waits for decisions;
130 Ctrl-C.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import attrs
import click
import platformdirs

import trio_runner as tr
import trio_runner._cli.check_target as check_target
import trio_runner._cli.sessions_resume as sessions_resume
import trio_runner._cli.sessions_view as sessions_view
import trio_runner._cli.terminal as terminal
from trio_runner.sessions import to_markdown

#: Whose fault an error of the journal is: the caller's, or else the disk's.
_USED_WRONGLY: Final = (
    tr.NoSuchSessionError,
    tr.SessionExistsError,
    tr.SessionIdError,
    tr.SessionInUseError,
    tr.JournalFormatError,
)
#: Characters of one text that `show` shows.
_LONGEST_TEXT: Final = 2000


def default_path() -> Path:
    """Where the sessions are when nobody says otherwise: the platform's place for data."""
    return platformdirs.user_data_path("trio-runner", appauthor=False) / "sessions.db"


@attrs.frozen
class Place:
    """Where the sessions are.

    Attributes:
      is_given: somebody said so; then there must be a file.
    """

    journal: tr.SqliteJournal
    is_given: bool

    def check(self) -> None:
        """Refuse to go on without a file.

        Raises:
          click.UsageError: there is none.
        """
        if not Path(self.journal.path).is_file():
            raise click.UsageError(self.nothing())

    def nothing(self) -> str:
        """Say that there is nothing, and where it was looked for."""
        how = "" if self.is_given else ", which is the default; --path names another"
        if Path(self.journal.path).is_file():
            return f"there are no sessions in {self.journal.path!r}{how}"
        return f"there is no file {self.journal.path!r}{how}"


def _command(command: Callable[..., int]) -> Callable[..., None]:
    """Give a command ``--path``, and its exit status to whatever happens."""

    @functools.wraps(command)
    def run(*, path: Path | None, **options: Any) -> None:
        for stream in (sys.stdout, sys.stderr):
            # What somebody typed into a session must not end the command.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            status = command(place=_place(path), **options)
        except _USED_WRONGLY as error:
            status = _complain(error, 2)
        except (tr.JournalError, OSError) as error:
            status = _complain(error, 1)
        except BaseExceptionGroup as group:
            # What trio makes of Ctrl-C; anything else is a fault of ours.
            _, rest = group.split(KeyboardInterrupt)
            if rest is not None:
                raise
            status = _complain("interrupted", 130)
        except KeyboardInterrupt:
            status = _complain("interrupted", 130)
        sys.exit(status)

    option = click.option(
        "--path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="TRIO_RUNNER_JOURNAL",
        help="The journal's file; also by the variable TRIO_RUNNER_JOURNAL.",
    )
    return option(run)


def _place(path: Path | None) -> Place:
    try:
        return Place(tr.SqliteJournal(path or default_path()), path is not None)
    except (ValueError, RuntimeError) as error:  # no path of a file; a loop of links
        raise click.UsageError(str(error)) from error


def _complain(problem: object, status: int) -> int:
    click.echo(f"trio-runner sessions: {terminal.printable(str(problem))}", err=True)
    return status


_json = click.option("--json", "as_json", is_flag=True, help="Write JSON and nothing else.")


@click.group()
def sessions() -> None:
    """List, show, export, fork, delete, check or resume sessions.

    They are read from a journal's file (--path, after the command's name), also
    while other processes write it.

    Exit status: 0 done, 1 damage or a disk that refuses, 2 used wrongly, 3 the turn that was
    resumed waits for decisions, 130 Ctrl-C.
    """


# --- reading --------------------------------------------------------------------


@sessions.command("list")
@_json
@_command
def list_sessions(place: Place, *, as_json: bool) -> int:
    """List the sessions, the one used last first."""
    if place.is_given:
        place.check()
    return sessions_view.show_list(place.journal.summaries(), none=place.nothing(), as_json=as_json)


@sessions.command()
@click.argument("session")
@click.option("--full", is_flag=True, help="Long texts too, to their ends.")
@_json
@_command
def show(place: Place, *, session: str, full: bool, as_json: bool) -> int:
    """Show a session: its figures, then every turn."""
    place.check()
    journal = place.journal
    found = [each for each in journal.summaries() if each.session_id == session]
    lines = journal.export_jsonl(session)  # refuses one that is not there, or damaged
    if as_json:
        return sessions_view.show_json(found[0], lines)
    longest = None if full else _LONGEST_TEXT
    page = to_markdown(journal.stored(session), title=session, longest_text=longest)
    return sessions_view.show_session(found[0], page)


@sessions.command()
@click.argument("session")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "markdown"]),
    default="jsonl",
    show_default=True,
    help="jsonl: every record, to be imported again. markdown: to be read.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file to make; stdout by default.",
)
@_command
def export(place: Place, *, session: str, kind: str, output: Path | None) -> int:
    """Write a session to stdout or into a new file."""
    place.check()
    data = place.journal.export_jsonl(session)
    if kind == "markdown":
        data = to_markdown(place.journal.stored(session), title=session).encode()
    if output is None:
        return sessions_view.write(data)
    try:
        with output.open("xb") as stream:
            stream.write(data)
    except FileExistsError as error:
        raise click.UsageError(f"{str(output)!r} is there already; nothing was changed") from error
    return 0


@sessions.command()
@_json
@_command
def verify(place: Place, *, as_json: bool) -> int:
    """Check every record of every session. Nothing is changed.

    Exit status 1 when anything is not as it was written.
    """
    place.check()
    return sessions_view.show_report(place.journal.verify(), as_json=as_json)


# --- writing --------------------------------------------------------------------


@sessions.command()
@click.argument("session")
@click.argument("new")
@click.option(
    "--turn",
    type=click.IntRange(min=0),
    help="The last turn to take, as it ended; 0: none. Without: all that have ended.",
)
@_json
@_command
def fork(place: Place, *, session: str, new: str, turn: int | None, as_json: bool) -> int:
    """Make the session NEW of the first turns of another, which stays as it is."""
    place.check()
    count = tr.run(functools.partial(place.journal.fork, session, new, turn=turn))
    return sessions_view.done("made", new, count, as_json=as_json)


@sessions.command("import")
@click.argument("file", type=click.File("rb"))
@click.argument("session")
@click.option(
    "--moved",
    is_flag=True,
    help="The exported session is not gone on with: its unfinished turn may come along.",
)
@_json
@_command
def import_session(
    place: Place, *, file: io.BufferedReader, session: str, moved: bool, as_json: bool
) -> int:
    """Make SESSION of a FILE (- for stdin) that `export` wrote as jsonl."""
    if not place.is_given:  # nobody can be asked to make the platform's directory
        Path(place.journal.path).parent.mkdir(parents=True, exist_ok=True)
    made = functools.partial(place.journal.import_jsonl, session, file.read(), moved=moved)
    count = tr.run(made)
    return sessions_view.done("made", session, count, as_json=as_json)


def _is_at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


@sessions.command()
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_json
@_command
def delete(place: Place, *, session: str, yes: bool, as_json: bool) -> int:
    """Delete a session that nobody has open. It cannot be brought back."""
    place.check()
    if not yes:
        if not _is_at_a_terminal():
            raise click.UsageError("there is no terminal to ask at; --yes deletes without asking")
        question = f"Delete session {session!r} of {place.journal.path}?"
        try:
            said = click.confirm(question, err=True)
        except click.Abort:  # click's word for Ctrl-C
            return _complain("interrupted; nothing was deleted", 130)
        if not said:
            return _complain("nothing was deleted", 1)
    count = tr.run(place.journal.delete, session)
    return sessions_view.done("deleted", session, count, as_json=as_json)


@sessions.command()
@click.argument("session")
@click.option(
    "--agent",
    "target",
    required=True,
    metavar="TARGET",
    help="MODULE:factory or PATH.py:factory; the factory takes journal= and session=.",
)
@click.option("--approve", multiple=True, metavar="ID", help="Let a call that waits run.")
@click.option("--deny", multiple=True, metavar="ID=REASON", help="Refuse a call that waits.")
@_json
@_command
def resume(
    place: Place,
    *,
    session: str,
    target: str,
    approve: tuple[str, ...],
    deny: tuple[str, ...],
    as_json: bool,
) -> int:
    """Go on with the turn of a session that has no answer yet, and show the answer.

    No tool runs twice, unless it says that it may. A turn that is suspended goes on with
    decisions on the calls that wait; without any they are shown.
    """
    place.check()
    decisions = _decisions(approve, deny)
    place.journal.export_jsonl(session)  # refuses one that is not there: it would be made
    try:
        return sessions_resume.Resumption(place.journal, session, target, decisions).run(
            as_json=as_json
        )
    except (check_target.TargetError, tr.UsageError) as error:
        return _complain(error, 2)


def _decisions(approved: Iterable[str], denied: Iterable[str]) -> dict[str, tr.Decision]:
    decisions: dict[str, tr.Decision] = {}
    for call_id in approved:
        decisions[call_id] = tr.Approve()
    for given in denied:
        call_id, _, reason = given.partition("=")
        match decisions.get(call_id):
            case None:
                pass
            case tr.Deny():
                raise click.UsageError(f"call {call_id!r} is denied twice; expected one reason")
            case _:
                what = "approved and denied; expected one of them"
                raise click.UsageError(f"call {call_id!r} is {what}")
        decisions[call_id] = tr.Deny(reason)
    return decisions
