"""The pytest plugin: sweeps async tests, with a fault before every step they take.

What may live here: pytest's hooks, the options and the fixtures. What they do
is in `_pytest_sweep.py`. pytest finds this module by its entry point; nothing else
needs to load it::

    @pytest.mark.cancel_sweep
    async def test_a_transfer_loses_nothing(position):
        account = Account()

        @position.check
        def nothing_is_lost(outcome):
            assert account.left + account.right == 10

        await account.transfer(3)

The test's body runs once without a fault, then once for each fault and task
step, each time in a trio run of its own, with function-scoped fixtures of its
own, on a mock clock that jumps.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any, Final

import pytest

from trio_runner.testing._pytest_options import CommandLine
from trio_runner.testing._pytest_options import SweepOptions as SweepOptions
from trio_runner.testing._pytest_position import Position as Position
from trio_runner.testing._pytest_sweep import PROPERTY, SweptTest
from trio_runner.testing._pytest_sweep import CancelSweep as CancelSweep

_SWEPT: Final = pytest.StashKey[SweptTest]()

# --- options --------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ``--sweep-…`` options."""
    group = parser.getgroup("cancel sweeps (trio-runner)")
    group.addoption(
        "--sweep-seeds",
        type=int,
        metavar="N",
        help="sweep with N seeds of trio's scheduler, whatever the tests say",
    )
    group.addoption(
        "--sweep-positions",
        type=int,
        metavar="N",
        help="run at most N positions for each fault and seed, spread over the whole",
    )
    group.addoption(
        "--sweep-sample",
        type=float,
        metavar="SHARE",
        help="run this share of the positions of each pair of faults",
    )
    group.addoption(
        "--sweep-replay",
        metavar="POSITION",
        help="run one position of the selected tests, as a failed sweep names it: "
        "cancel@17,sigint@20,seed=3",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse options that make no sense before anything runs."""
    config.addinivalue_line(
        "markers",
        "cancel_sweep(faults=…, pairs=…, seeds=…, …): run the async test with a cancel, a "
        "deadline, a crashing sibling or Ctrl-C before every task step; the options are those of "
        "trio_runner.testing.sweep, and raises_cancel, leaves_within, may_raise",
    )
    CommandLine.of(config)


# --- fixtures -------------------------------------------------------------------


@pytest.fixture
def position(request: pytest.FixtureRequest) -> Position:
    """The position at which a ``cancel_sweep`` test is being run; takes checks for after the run.

    New for each position, and so is every function-scoped fixture that uses it.
    """
    swept = request.node.stash.get(_SWEPT, None)
    if swept is None:
        pytest.fail(
            "the fixture 'position' is for tests that are marked with pytest.mark.cancel_sweep, "
            f"and {request.node.nodeid} is not",
            pytrace=False,
        )
    return swept.position


@pytest.fixture
def cancel_sweep(request: pytest.FixtureRequest) -> CancelSweep:
    """`trio_runner.testing.sweep` for a sync test: ``cancel_sweep(make_case, seeds=range(2))``.

    It raises when a position has a violation, and returns the report.
    """
    return CancelSweep(request.node)


# --- running marked tests -------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Prepare a marked test before its fixtures are made."""
    if item.get_closest_marker("cancel_sweep") is None or not isinstance(item, pytest.Function):
        return
    function = item.obj
    why: str | None = None
    if getattr(function, "is_hypothesis_test", False):
        why = (
            "is a Hypothesis test, and a sweep must repeat itself exactly. Parametrize it, or call "
            "the fixture cancel_sweep in a test without the marker"
        )
    elif item.cls is not None and any(
        base.__module__ == "unittest.case" for base in item.cls.mro()
    ):
        why = "is a unittest.TestCase; expected a function, or a method of a plain class"
    elif not inspect.iscoroutinefunction(function):
        if all(mark.name != "cancel_sweep" for mark in item.own_markers):
            return  # the marker of a module or class is meant for its async tests
        why = "is not async. Make it `async def`, or call the fixture cancel_sweep in it"
    if why is not None:
        pytest.fail(f"cancel_sweep: {item.nodeid} {why}", pytrace=False)
    item.stash[_SWEPT] = SweptTest(item, function)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Get to know the function-scoped fixtures of a marked test."""
    swept = request.node.stash.get(_SWEPT, None) if request.scope == "function" else None
    if swept is None:
        return (yield)
    with swept.fixtures.refused_if_async(fixturedef):
        value = yield
    swept.fixtures.note(fixturedef, request, value)
    return value


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a marked test as a sweep.

    The last wrapper around the call: plugins that run async tests have looked at the
    test already, and what is called in the end is the sweep, which is sync.
    """
    swept = item.stash.get(_SWEPT, None)
    if swept is None or not isinstance(item, pytest.Function):
        return (yield)
    item.obj = swept.run
    try:
        return (yield)
    finally:
        item.obj = swept.function


# --- the summary ----------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in one line how much was swept."""
    swept = [
        [figures for name, figures in report.user_properties if name == PROPERTY]
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
    ]
    tests = [figures for figures in swept if figures]
    if not tests:
        return
    positions, failures, seconds = (
        sum(each[what] for figures in tests for each in figures)
        for what in ("positions", "failures", "cpu_seconds")
    )
    terminalreporter.write_line(
        f"cancel sweeps: {len(tests)} test{'s' * (len(tests) > 1)}, {positions:,} positions, "
        f"{failures:,} with violations, {seconds:.1f} s CPU"
    )
