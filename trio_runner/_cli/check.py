"""``trio-runner check``: the cancellation suite on an agent of the user's.

What may live here: the command's options, and the order of what it does. The
suite is `trio_runner.testing.check_agent`.

Exit status: 0 every promise holds, 1 one is broken, 2 nothing could be shown
(used wrongly, or the agent cannot be swept), 130 Ctrl-C.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import attrs
import click

import trio_runner as tr
import trio_runner._cli.check_target as check_target
import trio_runner._cli.check_view as check_view
import trio_runner._cli.terminal as terminal
from trio_runner.testing import (
    AgentTurn,
    ContractReport,
    Drive,
    ScriptItem,
    SweepError,
    check_agent,
    replay,
)
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._turn_cases import DRIVES

#: What ``--quick`` means: few positions, spread over the turn.
_QUICK_SEEDS: Final = 1
_QUICK_POSITIONS: Final = 8
_SEEDS: Final = 2
#: Statuses of calls that never came to their tool, since the call itself is wrong.
_WRONG_CALL: Final = (tr.CallStatus.UNAVAILABLE, tr.CallStatus.INVALID_ARGUMENTS)


class NothingShown(Exception):
    """The suite cannot say anything about the agent; the text says why."""


@attrs.frozen
class Plan:
    """What was asked for on the command line.

    Attributes:
      batches: the calls of the script; none: a script is made.
    """

    target: str
    batches: tuple[tuple[tr.ToolCall, ...], ...]
    drives: tuple[Drive, ...]
    faults: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    sample: float
    seeds: int
    max_positions: int | None
    as_json: bool
    show_output: bool


# --- options --------------------------------------------------------------------


def parse_call(text: str) -> tr.ToolCall:
    """Read ``NAME {"json": "arguments"}``; without arguments they are empty.

    Raises:
      click.BadParameter: it is something else.
    """
    name, _, rest = text.strip().partition(" ")
    try:
        arguments: Any = json.loads(rest or "{}")
    except json.JSONDecodeError as error:
        raise click.BadParameter(f"the arguments of {name!r} are no JSON: {error}") from error
    if not name or not isinstance(arguments, dict):
        raise click.BadParameter(f"found {text!r}; expected a tool's name and a JSON object")
    return tr.ToolCall("", name, cast("dict[str, Any]", arguments))


def parse_pair(text: str) -> tuple[str, str]:
    """Read ``A+B``.

    Raises:
      click.BadParameter: one of the two is no fault, or it is not two.
    """
    match text.split("+"):
        case [first, second] if first in FAULTS and second in FAULTS:
            return first, second
        case _:
            raise click.BadParameter(f"found {text!r}; expected two of {', '.join(FAULTS)}, as A+B")


def _calls(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> tuple[tr.ToolCall, ...]:
    return tuple(map(parse_call, texts))


def _pairs(
    _: click.Context, __: click.Parameter, texts: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    return tuple(map(parse_pair, texts))


_CALL: Final = "'NAME {ARGUMENTS}'"


@click.command()
@click.argument("target")
@click.option(
    "--call",
    "first",
    metavar=_CALL,
    multiple=True,
    callback=_calls,
    help="A call of the scripted turn, with its arguments as JSON; repeat it for parallel calls. "
    "Without it, every tool is called with made-up arguments.",
)
@click.option(
    "--then",
    metavar=_CALL,
    multiple=True,
    callback=_calls,
    help="A call of a second batch, after the results of the first.",
)
@click.option(
    "--drive",
    "drives",
    type=click.Choice(DRIVES),
    multiple=True,
    help="How the turn is driven; repeat it for several. All of them by default.",
)
@click.option(
    "--fault",
    "faults",
    type=click.Choice(list(FAULTS)),
    multiple=True,
    help="A fault to sweep; repeat it for several. All of them by default.",
)
@click.option(
    "--pair",
    "pairs",
    metavar="A+B",
    multiple=True,
    callback=_pairs,
    help="Two faults in one run, one after the other; repeat it for several.",
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="The share of the pairs' positions to run.",
)
@click.option("--seeds", type=click.IntRange(min=1), help=f"Orders of the tasks; {_SEEDS}.")
@click.option(
    "--max-positions",
    type=click.IntRange(min=1),
    help="At most so many positions for each fault and seed, spread over the turn.",
)
@click.option(
    "--quick",
    is_flag=True,
    help=f"A first look: --seeds {_QUICK_SEEDS} --max-positions {_QUICK_POSITIONS}.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON, nothing else.")
@click.option(
    "-s",
    "--show-output",
    is_flag=True,
    help="Let through what the agent prints and logs, to stderr. It runs thousands of times.",
)
def check(
    target: str,
    first: tuple[tr.ToolCall, ...],
    then: tuple[tr.ToolCall, ...],
    seeds: int | None,
    max_positions: int | None,
    quick: bool,
    **options: Any,
) -> None:
    """Run the cancellation suite on an agent of yours.

    TARGET is MODULE:factory, or PATH.py:factory: a function that makes a
    trio_runner.ToolAgent. It may take model=, journal= and session=, and should
    pass them on. The model is played by a script; the tools and hooks are
    yours. A turn runs again and again, each time with one fault before one of
    its steps, and each promise of the contract is checked.

    Exit status: 0 every promise holds, 1 one is broken, 2 nothing could be
    shown, 130 Ctrl-C.
    """
    if then and not first:
        raise click.UsageError("--then is for a second batch; the first is given with --call")
    plan = Plan(
        target,
        batches=tuple(batch for batch in (first, then) if batch),
        seeds=seeds or (_QUICK_SEEDS if quick else _SEEDS),
        max_positions=max_positions or (_QUICK_POSITIONS if quick else None),
        **options,
    )
    interrupted = False
    status = 2
    try:
        status = CheckRun(plan).run()
    except* KeyboardInterrupt:
        interrupted = True
    if interrupted:
        _complain("interrupted; what was swept so far is not reported")
        status = 130
    sys.exit(status)


def _in_words_of_the_command(text: str) -> str:
    """What the suite says to a caller in Python, for one who has named a factory."""
    return text.replace(", or say Case(may_raise=…) when it is meant to", "").replace(
        "make_case", "the factory"
    )


def _complain(text: str) -> None:
    click.echo(f"trio-runner check: {terminal.printable(text)}", err=True)


# --- the run --------------------------------------------------------------------


class CheckRun:
    """One use of the command."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        for stream in (sys.stdout, sys.stderr):
            # A name that the terminal cannot show must not end it.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self._out = terminal.Output(terminal.console(quiet=plan.as_json))

    def run(self) -> int:
        """Check the target and report; return the exit status."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                target = check_target.find(self._plan.target)
            report = self._sweep(target)
        except (check_target.TargetError, NothingShown) as error:
            _complain(str(error))
            return 2
        except SweepError as error:
            said = _in_words_of_the_command(str(error))
            _complain(f"the suite could not do its work, and says nothing of the agent: {said}")
            return 2
        # What the agent is made of may raise anything while it is made or opened.
        except Exception as error:  # noqa: BLE001  the border: it is shown, and is no verdict
            trace = check_target.trace_of(error)
            _complain(f"{self._plan.target} cannot be swept; what it makes raised:\n{trace}")
            return 2
        if self._plan.as_json:
            self._out.raw(report.to_json() + "\n")
        else:
            check_view.show(self._out, report, _imports(target, self._plan.batches))
        lost = self._out.finish()
        return 1 if lost or not report.ok else 0

    def _sweep(self, target: check_target.Target) -> ContractReport:
        plan = self._plan
        console = None if plan.show_output else check_view.progress_console()
        replies = self._replies(target)
        with (
            check_view.progress(console) as tell,
            hushed(show=plan.show_output),
        ):
            report = check_agent(
                target.factory,
                replies,
                drives=plan.drives or DRIVES,
                # Without a word on faults: all of them, unless it is about pairs alone.
                faults=plan.faults or (() if plan.pairs else None),
                pairs=plan.pairs or None,
                seeds=range(plan.seeds),
                sample=plan.sample,
                max_positions=plan.max_positions,
                on_part=tell,
            )
        if report.positions == 0 and not any(part.report.failures for part in report.parts):
            reasons = [line.removeprefix("not swept: ") for line in report.not_swept()[1:]]
            raise NothingShown(
                f"nothing was swept: {'; '.join(reasons) or 'the turn has no such position'}"
            )
        return report

    def _replies(self, target: check_target.Target) -> tuple[ScriptItem, ...] | None:
        """Run the turn once without a fault, and tell what its calls are worth.

        Calls that never reach a tool would let every promise hold for nothing. In a
        script that was made, the case itself refuses them.
        """
        given = self._plan.batches
        replies = (*given, "the answer", "never asked for") if given else None
        with hushed(show=self._plan.show_output):
            cases = AgentTurn(target.factory, replies)
            replay(cases)
        batches = [each.tool_calls for each in cases.agent.history if each.tool_calls]
        self._out.line(check_view.plan_text(batches))
        results = [each for message in cases.agent.history for each in message.tool_results]
        wrong = [each for each in results if each.status in _WRONG_CALL]
        if given and wrong:
            raise NothingShown(f"--call: {wrong[0].text}")
        if not results:
            _complain("note: no tool is called, so little can go wrong")
        notes = {
            f"note: the call of {each.name} ends {each.status.value}: {each.text}"
            for each in results
            if each.status is not tr.CallStatus.OK
        }
        for note in sorted(notes):
            _complain(note)
        return replies


@contextlib.contextmanager
def hushed(*, show: bool) -> Generator[None]:
    """Keep what the agent prints and logs away from stdout; from stderr too unless ``show``.

    It says the same things at each of thousands of positions.
    """
    if show:
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    root = logging.getLogger()
    handlers = root.handlers[:]
    with (
        Path(os.devnull).open("w", encoding="utf-8") as sink,
        contextlib.redirect_stdout(sink),
        contextlib.redirect_stderr(sink),
    ):
        # The suite has a handler of its own below the root, and goes on listening.
        root.handlers[:] = [logging.NullHandler()]
        try:
            yield
        finally:
            root.handlers[:] = handlers


def _imports(
    target: check_target.Target, batches: Sequence[Sequence[tr.ToolCall]]
) -> Sequence[str]:
    """The lines that make ``make_case = …`` and ``replay(…)`` of a failure run."""
    top, _, rest = target.name.partition(".")
    lines = [
        "from trio_runner.testing import AgentTurn, replay",
        f"from {target.module} import {top}",
        f"make_agent = {top}.{rest}" if rest else f"make_agent = {top}",
    ]
    if batches:
        written = [f"[{', '.join(map(_written, batch))}]" for batch in batches]
        lines.insert(0, "from trio_runner import ToolCall")
        lines.append(f"replies = [{', '.join(written)}, 'the answer', 'never asked for']")
    return lines


def _written(call: tr.ToolCall) -> str:
    return f"ToolCall('', {call.name!r}, {call.arguments!r})"
