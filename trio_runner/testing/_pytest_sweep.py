"""How the pytest plugin sweeps one test, and what it raises in the end.

What may live here: a marked test as a case of `sweep`, the judgement of what
left its body, and the way from a failed sweep to an error that pytest shows.
Options are in `_pytest_options.py`, hooks and fixtures in `pytest_plugin.py`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Unpack

import attrs
import pytest

from trio_runner.testing._faults import Fault, SweepError
from trio_runner.testing._outcome import (
    Case,
    Outcome,
    as_types,
    errors_in,
    quoted,
    sentences,
    unexplained,
)
from trio_runner.testing._pytest_fixtures import Fixtures
from trio_runner.testing._pytest_options import (
    REPLAY_OPTIONS,
    TEST_OPTIONS,
    CommandLine,
    Replay,
    SweepOptions,
    faults_of,
    marked_options,
)
from trio_runner.testing._pytest_position import Check, Position
from trio_runner.testing._report import SweepReport
from trio_runner.testing._seams import Seam
from trio_runner.testing._sweep import replay, sweep

#: The user property in which a test's report carries what its sweeps have covered.
PROPERTY: Final = "cancel_sweep"
#: What `SweepError` says of ``make_case``, in the words of a marked test.
_MADE_ANEW: Final = (
    "(The case is the body of the test with its function-scoped fixtures: nothing that they use "
    "from outside may differ from run to run)"
)
#: What ends a test in pytest's own way.
_PYTEST_OUTCOMES: Final = (pytest.skip.Exception, pytest.xfail.Exception, pytest.fail.Exception)


class _Stopped(Exception):
    """Ends a sweep whose run without a fault has ended otherwise than by returning."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(error)


class SweptTest:
    """A test with the marker, from its setup to its end.

    Args:
      item: the test.
      function: the async function that pytest has collected.
    """

    def __init__(self, item: pytest.Function, function: Callable[..., Awaitable[object]]) -> None:
        self.function = function
        self.fixtures = Fixtures()
        #: The position that is being run, or set up.
        self.position = Position()
        self._item = item
        self._noise = _Noise(item.config)
        self._options: dict[str, Any] = {}
        self._faults: Mapping[str, Fault] = {}
        #: The test's arguments, as pytest's setup made them.
        self._arguments: dict[str, Any] = {}
        #: Whether a run has used them.
        self._used = False
        #: Errors of the last run that are violations, with their tracebacks.
        self._errors: list[BaseException] = []

    def run(self, **arguments: Any) -> None:
        """Sweep the test, or replay one position of it; pytest calls it as the test.

        Args:
          **arguments: the values of the test's fixtures and parameters.
        """
        __tracebackhide__ = True
        _skip_other_backends(self._item)
        command = CommandLine.of(self._item.config)
        self._arguments = arguments
        self._used = False
        self._options = command.over(marked_options(self._item))
        try:
            self._faults = faults_of(self._options)
            as_types(self._options.get("may_raise", ()))
        except (ValueError, TypeError) as error:
            pytest.fail(f"cancel_sweep: {error}", pytrace=False)
        error: BaseException | None = None
        try:
            if command.replay is None:
                self._sweep()
            else:
                self._replay(command.replay)
        except _Stopped as stopped:
            error = stopped.error
        except SweepError as broken:
            error = broken if broken.__cause__ else _failed(f"{broken}\n{_MADE_ANEW}")
        if error is not None:  # raised outside the handler, so as not to carry that along
            raise error

    def _sweep(self) -> None:
        __tracebackhide__ = True
        options = {name: self._options[name] for name in self._options.keys() - TEST_OPTIONS}
        report = _with_commands(sweep(self._make_case, **options), self._item)
        _note(self._item, report)
        if report.ok:
            return
        # Once more the first of them: what it prints, logs and raises is what pytest shows.
        first = report.failures[0]
        again = self._run_again(Replay.of(first.landings, first.seed))
        text = report.render()
        if not again.violations:
            text += (
                "\nThe first of these positions had no violation when it was run again: the test "
                "depends on something that its runs share, such as a fixture of a wider scope"
            )
        elif self._noise.dropped:
            text += "\nOutput and log are shown for the first of these positions only"
        error = self._first_error()
        if error is None:
            raise _failed(text)
        error.add_note(f"cancel_sweep: {text}")
        raise error

    def _replay(self, position: Replay) -> None:
        __tracebackhide__ = True
        outcome = self._run_again(position)
        _check_landed(outcome, position)
        if not outcome.violations:
            text = f"no violation at {position}"
            self._item.add_report_section("call", "cancel sweep", text)
            return
        error = self._first_error()
        text = _told(outcome, position)
        if error is None:
            if outcome.raised is not None:
                left = traceback.format_exception(outcome.raised)
                text = f"{text}\n\nWhat left the body:\n{''.join(left)}"
            raise _failed(text)
        error.add_note(text)
        raise error

    def _run_again(self, position: Replay) -> Outcome:
        options = {name: self._options[name] for name in self._options.keys() & REPLAY_OPTIONS}
        plan = _plan(position, self._faults)
        return replay(self._make_case, *plan, seed=position.seed, **options)

    def _first_error(self) -> BaseException | None:
        """The first violation that is an error; its traceback begins in the test's file."""
        if not self._errors:
            return None
        ours: Any = inspect.unwrap(self.function)
        trace = whole = self._errors[0].__traceback__
        while trace is not None and trace.tb_frame.f_globals is not ours.__globals__:
            trace = trace.tb_next
        return self._errors[0].with_traceback(trace or whole)

    # --- one position ---

    def _make_case(self) -> Case:
        """The test's body, with fixtures of its own."""
        renewed: dict[str, Any] = {}
        if self._used:
            self._noise.drop()
            self.position = Position()
            renewed = self.fixtures.renew()
        self._used = True
        self._errors = []
        position = self.position
        for fault in self._faults.values():
            if fault.seam is not None:
                position.seams.setdefault(fault.seam, Seam())
        arguments = {name: renewed.get(name, old) for name, old in self._arguments.items()}
        return Case(
            run=functools.partial(self.function, **arguments),
            check=functools.partial(self._check, position),
            raises_cancel=self._options.get("raises_cancel", False),
            leaves_within=self._options.get("leaves_within"),
            seams=position.seams,
            afterwards=position.look_afterwards,
            may_raise=self._may_raise,
        )

    @property
    def _may_raise(self) -> tuple[type[BaseException], ...]:
        return as_types(self._options.get("may_raise", ()))

    def _check(self, position: Position, outcome: Outcome) -> Iterator[str]:
        """What the test's own checks say of a run; keeps its errors, for pytest to show.

        Raises:
          _Stopped: a run without a fault did not end well.
        """
        ended_by_itself = not outcome.hung and outcome.broken is None
        found: list[str] = []
        if ended_by_itself:
            for error in errors_in(outcome.raised):
                if isinstance(error, pytest.exit.Exception):
                    raise error
            # The engine has its sentences on these already.
            self._errors += unexplained(outcome, self._may_raise)
            self._errors += _from_afterwards(outcome)
            for check in position.checks:
                found += self._ask(check, outcome)
            found = list(dict.fromkeys(found))
        if not outcome.landings:
            self._stop_unless_clean(position, outcome, found)
        yield from found

    def _ask(self, check: Check, outcome: Outcome) -> Iterator[str]:
        name = getattr(check, "__name__", repr(check))
        try:
            yield from sentences(check(outcome))
        except pytest.exit.Exception:
            raise
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  user's: a failed check
            self._errors.append(error)
            yield f"{name}: {type(error).__name__}: {quoted(error)}"

    def _stop_unless_clean(self, position: Position, outcome: Outcome, found: list[str]) -> None:
        """End the sweep when the run without a fault shows that there is nothing to sweep."""
        where = Replay((), outcome.seed)
        if outcome.raised is not None and not outcome.hung and outcome.broken is None:
            leaves = list(errors_in(outcome.raised))
            if len(leaves) == 1 and isinstance(leaves[0], _PYTEST_OUTCOMES):
                raise _Stopped(leaves[0])
            outcome.raised.add_note(f"in the run without a fault: {where.command(self._item)}")
            raise _Stopped(outcome.raised)
        missing = {fault.seam for fault in self._faults.values()} - position.seams_used - {None}
        if outcome.violations or found:
            text = "\n".join(f"- {one}" for one in (*outcome.violations, *found))
            text = f"in the run without a fault ({where.command(self._item)}):\n{text}"
        elif missing:
            text = (
                f"the faults need the seams {sorted(map(str, missing))}, and the test asked for "
                f"{sorted(position.seams_used)}; call position.seam(name).call() where the calls "
                "pass, or leave these faults out"
            )
        else:
            return
        if self._errors:
            self._errors[0].add_note(text)
            raise _Stopped(self._errors[0])
        raise _Stopped(_failed(text))


class CancelSweep:
    """`trio_runner.testing.sweep` for a test; the fixture ``cancel_sweep``.

    It obeys the command line's ``--sweep-…`` options, names the failing positions
    so that they can be replayed, and counts for the summary.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._calls = 0

    def __call__(
        self, make_case: Callable[[], Case], **options: Unpack[SweepOptions]
    ) -> SweepReport:
        """Sweep a case, see `trio_runner.testing.sweep`.

        Raises:
          trio_runner.testing.SweepFailed: a position had a violation.
          SweepError: the sweep could not do its work.
        """
        __tracebackhide__ = True
        self._calls += 1
        command = CommandLine.of(self._item.config)
        merged = command.over(options)
        if command.replay is not None and command.replay.sweep == self._calls:
            self._replay(make_case, merged, command.replay)
        report = _with_commands(sweep(make_case, **merged), self._item, self._calls)
        _note(self._item, report)
        report.raise_if_failed()
        return report

    def _replay(
        self, make_case: Callable[[], Case], options: Mapping[str, Any], position: Replay
    ) -> None:
        """Run one position and end the test."""
        __tracebackhide__ = True
        kept = {name: options[name] for name in options.keys() & REPLAY_OPTIONS}
        plan = _plan(position, faults_of(options))
        outcome = replay(make_case, *plan, seed=position.seed, **kept)
        _check_landed(outcome, position)
        if outcome.violations:
            raise AssertionError(_told(outcome, position)) from outcome.raised
        pytest.skip(f"no violation at {position}; the rest of the test was not run")


class _Noise:
    """What the positions print and log: thousands of times the same.

    What pytest has captured is dropped before each run, so that it shows one run. It
    has no public call for that: should it change, a failed test shows all runs.
    """

    def __init__(self, config: pytest.Config) -> None:
        #: Whether something has been.
        self.dropped = False
        self._capture: Any = config.pluginmanager.get_plugin("capturemanager")

    def drop(self) -> None:
        """Forget what was captured so far in this phase of the test."""
        for handler in logging.getLogger().handlers:
            clear = getattr(handler, "clear", None)
            if clear is not None and type(handler).__module__ == "_pytest.logging":
                self.dropped = self.dropped or bool(getattr(handler, "records", ()))
                clear()
        read = getattr(self._capture, "read_global_capture", None)
        if read is not None and self._capture.is_globally_capturing():
            self.dropped = any(read()) or self.dropped


def _from_afterwards(outcome: Outcome) -> Iterator[BaseException]:
    """The error that was found by what is awaited after the run."""
    error = outcome.afterwards_raised
    if isinstance(error, pytest.exit.Exception):
        raise error
    if error is not None and not outcome.afterwards_hung:
        yield error


def _skip_other_backends(item: pytest.Function) -> None:
    """Skip a test that anyio has parametrised with a backend that is not trio."""
    backend: Any = item.funcargs.get("anyio_backend", "trio")
    name = backend if type(backend) is str else backend[0]  # or a pair of name and options
    if name != "trio":
        pytest.skip(f"cancel_sweep runs on trio, and this is the test's variant for {name}")


def _failed(text: str) -> BaseException:
    """A failure that pytest shows as this text, without a traceback."""
    return pytest.fail.Exception(f"cancel_sweep: {text}", pytrace=False)


def _told(outcome: Outcome, position: Replay) -> str:
    """The violations of one position as text."""
    return "\n".join([f"at {position}:", *(f"    - {each}" for each in outcome.violations)])


def _plan(position: Replay, faults: Mapping[str, Fault]) -> list[tuple[str | Fault, int]]:
    """The faults of a position; a fault of the test's own is found by its name."""
    plan: list[tuple[str | Fault, int]] = []
    for name, number in position.plan:
        if name not in faults:
            pytest.fail(
                f"--sweep-replay={position}: this sweep has no fault {name!r}; expected some of "
                f"{', '.join(faults)}",
                pytrace=False,
            )
        plan.append((faults[name], number))
    return plan


def _check_landed(outcome: Outcome, position: Replay) -> None:
    """Fail a test whose replayed position is not there."""
    missed = [each for each in outcome.landings if not each.landed]
    if missed:
        pytest.fail(
            f"--sweep-replay={position}: the run ended before {missed[0].unit} "
            f"{missed[0].position}; the code has changed, or that is another test's position",
            pytrace=False,
        )


def _with_commands(report: SweepReport, item: pytest.Item, sweep: int = 1) -> SweepReport:
    """The report with commands of pytest as its replay lines."""
    failures = [
        attrs.evolve(failure, replay=Replay.of(failure.landings, failure.seed, sweep).command(item))
        for failure in report.failures
    ]
    return attrs.evolve(report, failures=tuple(failures))


def _note(item: pytest.Item, report: SweepReport) -> None:
    """Let the test's report say what was covered."""
    figures = {
        "positions": report.positions,
        "failures": len(report.failures),
        "cpu_seconds": report.cpu_seconds,
    }
    item.user_properties.append((PROPERTY, figures))
    if report.ok:
        item.add_report_section("call", "cancel sweep", report.render())
