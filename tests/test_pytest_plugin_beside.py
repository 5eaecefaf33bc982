"""The pytest plugin and what is around it: fixtures, other plugins, the installation."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from trio_runner.testing import sweep
from trio_runner.testing.pytest_plugin import SweepOptions

ROOT = Path(__file__).parent.parent
PLUGIN = "trio_runner.testing.pytest_plugin"
PLAIN = ("-p", PLUGIN, "-p", "no:cacheprovider")
# The process has imported the library before that pytest began.
IMPORTED = ("-Wignore::pytest.PytestAssertRewriteWarning",)
HEAD = "import pytest, trio\nfrom trio.lowlevel import checkpoint\n"


def inner(pytester: pytest.Pytester, code: str, *args: str) -> pytest.RunResult:
    """Run pytest on one file, in this process; warnings are errors in it."""
    pytester.makepyfile(test_it=HEAD + textwrap.dedent(code))
    return pytester.runpytest_inprocess(*PLAIN, "-Werror", *IMPORTED, *args)


def told(result: pytest.RunResult) -> str:
    """What pytest wrote, without the marks of lines that tell an error, and on one line."""
    return " ".join(" ".join(re.sub(r"^E +", "", line) for line in result.outlines).split())


@pytest.fixture
def as_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a test starts finds the library where this one did."""
    paths = [str(ROOT), str(ROOT / "adapters"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


# --- fixtures -------------------------------------------------------------------


def test_each_position_has_function_scoped_fixtures_of_its_own(pytester: pytest.Pytester) -> None:
    code = """
        import warnings

        events = []

        @pytest.fixture(scope="module")
        def wide():
            return []

        @pytest.fixture(autouse=True)
        def around():
            events.append("begin")
            yield
            events.append("end")

        @pytest.fixture
        def low(tmp_path):
            yield tmp_path / "file"
            events.append("low")

        @pytest.fixture(params=[1, 2])
        def high(low, request):
            yield low, request.param
            events.append("high")

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_fresh(high, wide, monkeypatch, capsys, caplog):
            file, number = high
            assert not file.exists()
            file.write_text("x")
            assert not hasattr(warnings, "mark")
            monkeypatch.setattr(warnings, "mark", 1, raising=False)
            print("out")
            assert capsys.readouterr().out == "out\\n"
            print("left")
            caplog.records  # is there
            assert not caplog.records
            import logging
            logging.getLogger("it").warning("careful")
            assert [record.message for record in caplog.records] == ["careful"]
            wide.append(number)
            await checkpoint()

        def test_what_happened(wide):
            assert wide == [1] * 4 + [2] * 4
            begun = events.pop()
            assert begun == "begin"
            assert events == ["begin", "high", "low", "end"] * 8
    """
    inner(pytester, code).assert_outcomes(passed=3)


def test_a_failed_sweep_shows_the_output_of_its_first_failing_position_only(
    pytester: pytest.Pytester,
) -> None:
    code = """
        import logging, os

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=4)
        async def test_noisy():
            print("printed")
            logging.getLogger("noisy").warning("logged")
            try:
                await checkpoint()
            except trio.Cancelled:
                print("cancelled")
                raise ValueError from None
    """
    result = inner(pytester, code)

    result.assert_outcomes(failed=1)
    assert result.outlines.count("printed") == 1
    assert result.outlines.count("cancelled") == 1
    assert sum("logged" in line and "WARNING" in line for line in result.outlines) == 1
    assert "Output and log are shown for the first of these positions only" in told(result)


def test_a_failure_that_does_not_repeat_says_so(pytester: pytest.Pytester) -> None:
    code = """
        seen = []

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_once():
            seen.append(1)
            try:
                await checkpoint()
            except trio.Cancelled:
                if len(seen) == 2:
                    raise ValueError from None
                raise
    """
    result = inner(pytester, code)

    result.assert_outcomes(failed=1)
    assert "had no violation when it was run again" in told(result)


# --- the fixture for sync tests -------------------------------------------------

CASES = """
import trio_runner.testing as testing

def make(leave_out=False):
    notes = []
    async def run():
        await checkpoint()
        notes.append(1)
    def check(outcome):
        if leave_out and not notes:
            yield "nothing was noted"
    return testing.Case(run, check, raises_cancel=False)

def test_both(cancel_sweep):
    report = cancel_sweep(make, seeds=range(2))
    assert report.positions == 16
    cancel_sweep(lambda: make(leave_out=True), faults=["cancel"], seeds=[0])
"""


def test_a_sync_test_sweeps_cases_with_the_fixture(pytester: pytest.Pytester) -> None:
    result = inner(pytester, CASES)

    result.assert_outcomes(failed=1)
    text = told(result)
    assert "> cancel_sweep(lambda: make(leave_out=True)" in text
    assert "- nothing was noted" in text
    assert "replay: pytest test_it.py::test_both --sweep-replay=cancel@0,seed=0,sweep=2" in text
    assert "1 test, 18 positions, 2 with violations" in text


def test_one_position_of_one_sweep_of_the_fixture_is_replayed(pytester: pytest.Pytester) -> None:
    failing = inner(pytester, CASES, "--sweep-replay=cancel@0,seed=0,sweep=2")
    failing.assert_outcomes(failed=1)
    assert "at cancel@0,seed=0,sweep=2: - nothing was noted" in told(failing)

    fine = inner(pytester, CASES, "--sweep-replay=sigint@1,seed=1", "-rs")
    fine.assert_outcomes(skipped=1)
    assert "no violation at sigint@1,seed=1; the rest of the test was not run" in told(fine)


def test_the_fixtures_options_are_those_of_sweep() -> None:
    assert set(SweepOptions.__annotations__) == {*inspect.signature(sweep).parameters} - {
        "make_case"
    }


# --- refusals -------------------------------------------------------------------

REFUSED = {
    "sync": (
        "@pytest.mark.cancel_sweep\ndef test_it(): ...",
        "test_it.py::test_it is not async. Make it `async def`",
    ),
    "positional": (
        "@pytest.mark.cancel_sweep(['cancel'])\nasync def test_it(): ...",
        "cancel_sweep takes keyword arguments only, found (['cancel'],)",
    ),
    "option": (
        "@pytest.mark.cancel_sweep(fault='cancel')\nasync def test_it(): ...",
        "cancel_sweep has no option 'fault'; expected some of faults, hang_after, leaves_within",
    ),
    "fault": (
        "@pytest.mark.cancel_sweep(faults=['crush'])\nasync def test_it(): ...",
        "cancel_sweep: fault 'crush' is unknown; expected one of ['cancel'",
    ),
    "types": (
        "@pytest.mark.cancel_sweep(may_raise=['OSError'])\nasync def test_it(): ...",
        "cancel_sweep: may_raise has 'OSError'; expected types of errors",
    ),
    "async fixture": (
        (
            "@pytest.fixture\nasync def thing(): yield 1\n\n"
            "@pytest.mark.cancel_sweep\nasync def test_it(thing): ..."
        ),
        "the fixture 'thing' is async, and each position of a sweep is a trio run of its own",
    ),
    "nursery": (
        "@pytest.mark.cancel_sweep\nasync def test_it(nursery): ...",
        "the fixture 'nursery' belongs to pytest-trio's own run of the test",
    ),
    "clock": (
        "@pytest.mark.cancel_sweep\nasync def test_it(autojump_clock): ...",
        "'autojump_clock' is a clock, and each position runs on a mock clock that jumps already",
    ),
    "hypothesis": (
        (
            "from hypothesis import given, strategies as st\n@pytest.mark.cancel_sweep\n"
            "@given(x=st.integers())\nasync def test_it(x): ..."
        ),
        "is a Hypothesis test, and a sweep must repeat itself exactly",
    ),
    "unittest": (
        (
            "import unittest\nclass TestIt(unittest.TestCase):\n"
            "    @pytest.mark.cancel_sweep\n    async def test_it(self): ..."
        ),
        "is a unittest.TestCase; expected a function, or a method of a plain class",
    ),
    "position": (
        "def test_it(position): ...",
        "'position' is for tests that are marked with pytest.mark.cancel_sweep",
    ),
    "check": (
        (
            "@pytest.mark.cancel_sweep\nasync def test_it(position):\n"
            "    position.check(lambda outcome: True)\n"
        ),
        "TypeError: it gave True; expected None, or sentences. A check is a plain function",
    ),
}


@pytest.mark.parametrize(("code", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_swept_says_why(pytester: pytest.Pytester, code: str, words: str) -> None:
    result = inner(pytester, code, "-o", "trio_mode=true")

    counts = result.parseoutcomes()
    assert counts.get("failed", 0) + counts.get("errors", 0) == 1
    assert "passed" not in counts
    assert words in told(result)


POISON = """
@pytest.fixture
async def server():
    yield 3

@pytest.fixture
def client(server):
    return server

@pytest.fixture
def by_name(request):
    return request.getfixturevalue("server")

class TestOfAClass:
    @pytest.fixture
    async def own(self):
        return 4

    @pytest.mark.cancel_sweep
    async def test_swept(self, own): ...

    @pytest.mark.trio
    async def test_right_in_a_class(self, own):
        assert own == 4

@pytest.mark.cancel_sweep
@pytest.mark.parametrize("_", range(2))
async def test_swept({fixture}, _): ...

@pytest.mark.trio
async def test_right(server):
    assert server == 3

@pytest.mark.trio
async def test_right_again({fixture}): ...
"""


@pytest.mark.parametrize("fixture", ["server", "client", "nursery", "autojump_clock"])
def test_a_refused_test_leaves_the_fixtures_to_the_tests_after_it(
    pytester: pytest.Pytester, fixture: str
) -> None:
    result = inner(pytester, POISON.format(fixture=fixture))

    result.assert_outcomes(passed=3, errors=3)
    assert "AssertionError" not in told(result)


def test_a_fixture_that_is_asked_for_by_name_is_refused_as_well(pytester: pytest.Pytester) -> None:
    result = inner(pytester, POISON.format(fixture="by_name"), "-k", "swept or right and not again")

    result.assert_outcomes(passed=2, errors=3, deselected=1)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--sweep-seeds=0", "--sweep-seeds=0: expected 1 or more"),
        ("--sweep-positions=-1", "--sweep-positions=-1: expected 1 or more"),
        ("--sweep-sample=1.5", "--sweep-sample=1.5: expected a share above 0, at most 1"),
        ("--sweep-replay=cancel", "--sweep-replay=cancel: cannot read 'cancel'; expected what"),
        ("--sweep-replay=cancel@1,weed=3", "cannot read 'weed=3'"),
    ],
)
def test_an_option_that_makes_no_sense_stops_pytest_before_any_test(
    pytester: pytest.Pytester, option: str, words: str
) -> None:
    result = inner(pytester, "def test_plain(): ...", option)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in " ".join([*result.outlines, *result.errlines])


# --- beside other plugins -------------------------------------------------------

BESIDE = """
import os

@pytest.mark.cancel_sweep(seeds=1)
async def test_swept():
    await trio.sleep(60)

{mark}
async def test_beside():
    await trio.sleep(0)

@pytest.mark.cancel_sweep(seeds=1)
{mark}
async def test_both():
    await trio.sleep(60)
"""


@pytest.mark.parametrize("mode", ["true", "false"])
def test_pytest_trio_runs_its_tests_and_the_sweep_its_own(
    pytester: pytest.Pytester, mode: str
) -> None:
    # After its run a test is again what was collected: it may be run again.
    pytester.makeconftest(
        "import inspect\n"
        "def pytest_runtest_teardown(item):\n"
        "    marked = item.get_closest_marker('cancel_sweep') is not None\n"
        "    assert not marked or inspect.iscoroutinefunction(item.obj)\n"
    )
    code = BESIDE.format(mark="@pytest.mark.trio")
    result = inner(pytester, code, "-o", f"trio_mode={mode}", "--strict-markers")

    result.assert_outcomes(passed=3)
    assert "2 tests, 24 positions" in told(result)


def test_without_pytest_trio_and_beside_anyio(pytester: pytest.Pytester) -> None:
    pytest.importorskip("anyio", reason="the test is about its plugin")
    code = BESIDE.format(mark="@pytest.mark.anyio").replace(
        "await trio.sleep(0)", "import anyio; await anyio.sleep(0)"
    )
    result = inner(pytester, code, "-p", "no:trio", "-rs")

    # Each of anyio's runs on two backends; the sweep of the second one is for trio only.
    result.assert_outcomes(passed=4, skipped=1)
    assert "this is the test's variant for asyncio" in told(result)


def test_without_any_other_plugin_an_async_test_is_swept(pytester: pytest.Pytester) -> None:
    code = BESIDE.format(mark='@pytest.mark.skip(reason="nothing runs it")')
    result = inner(pytester, code, "-p", "no:trio", "-p", "no:anyio", "-p", "no:hypothesispytest")

    result.assert_outcomes(passed=1, skipped=2)


@pytest.mark.usefixtures("as_a_process")
def test_the_figures_of_distributed_tests_are_summed(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    code = BESIDE.format(mark="@pytest.mark.trio")
    pytester.makepyfile(test_it=HEAD + code)
    result = pytester.runpytest_subprocess(*PLAIN, "-n2")

    result.assert_outcomes(passed=3)
    assert "2 tests, 24 positions" in told(result)


# --- as it is installed ---------------------------------------------------------


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    try:
        found = importlib.metadata.distribution("trio-runner").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("trio-runner is on the path, but not installed")
    (entry,) = [each for each in found if each.group == "pytest11"]

    # Under this name `-p` and `pytest_plugins` find it loaded, and do not load it twice.
    assert entry.name == entry.value == PLUGIN


@pytest.mark.usefixtures("as_a_process")
def test_the_example_of_the_docs_passes_and_its_faulty_variant_does_not(
    pytester: pytest.Pytester,
) -> None:
    example = (ROOT / "docs/examples/with_pytest/test_transfer.py").read_text("utf-8")
    page = (ROOT / "docs/how-to/sweep-with-pytest.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert blocks[0] == example

    # As a user runs it: in a process of its own.
    pytester.makepyfile(test_it=example)
    result = pytester.run(sys.executable, "-m", "pytest", *PLAIN)
    result.assert_outcomes(passed=1)
    assert "cancel sweeps: 1 test, " in told(result)

    late = "        self.left -= amount\n        await trio.lowlevel.checkpoint()\n"
    faulty = example.replace("        self.left -= amount\n", late)
    assert faulty != example
    inner(pytester, faulty).assert_outcomes(failed=1)
