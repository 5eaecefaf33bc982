"""The pytest plugin, run on small test files: what it sweeps, and what it shows."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from pathlib import Path

import pytest

from trio_runner.testing._pytest_options import Replay

ROOT = Path(__file__).parent.parent
PLUGIN = "trio_runner.testing.pytest_plugin"
PLAIN = ("-p", PLUGIN, "-p", "no:cacheprovider")
# The process has imported the library before that pytest began.
IMPORTED = ("-Wignore::pytest.PytestAssertRewriteWarning",)
HEAD = "import pytest, trio\nfrom trio.lowlevel import checkpoint\n"
ACCOUNT = """
class Account:
    def __init__(self):
        self.left, self.right = 10, 0

    async def transfer(self, amount):
        await checkpoint()
        self.left -= amount
        self.right += amount
        await checkpoint()

    async def lossy_transfer(self, amount):
        self.left -= amount
        await checkpoint()
        self.right += amount

@pytest.fixture
def account(position):
    account = Account()

    @position.check
    def nothing_is_lost(outcome):
        assert account.left + account.right == 10

    return account
"""


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


# --- sweeping -------------------------------------------------------------------


def test_a_correct_test_passes_and_the_summary_says_how_much_was_swept(
    pytester: pytest.Pytester,
) -> None:
    code = """
        @pytest.mark.cancel_sweep(seeds=3)
        async def test_good(account):
            await account.transfer(3)
            assert account.left == 7

        def test_plain(): ...
    """
    result = inner(pytester, ACCOUNT + textwrap.dedent(code), "-rP")

    result.assert_outcomes(passed=2)
    # Two checkpoints are three steps; four faults come before each, with three seeds.
    assert "cancel sweeps: 1 test, 36 positions, 0 with violations" in told(result)
    assert "36 positions (cancel 9, deadline 9, crash 9, sigint 9) and 3 runs without" in told(
        result
    )


def test_without_a_swept_test_there_is_no_summary(pytester: pytest.Pytester) -> None:
    assert "cancel sweeps" not in told(inner(pytester, "def test_plain(): ..."))


LOSSY = """
@pytest.mark.cancel_sweep(seeds=2)
async def test_lossy(account):
    print("in the body")
    await account.lossy_transfer(3)
"""


def test_a_lossy_test_fails_with_a_command_that_replays_just_that(
    pytester: pytest.Pytester,
) -> None:
    result = inner(pytester, ACCOUNT + LOSSY)

    result.assert_outcomes(failed=1)
    text = told(result)
    # The check's own traceback, then the report.
    assert "> assert account.left + account.right == 10" in text
    assert "assert (7 + 0) == 10" in text
    assert "12 positions with violations" in text
    assert "seed 1: cancel before step 1" in text
    assert "- nothing_is_lost: AssertionError: assert (7 + 0) == 10" in text
    command = "replay: pytest test_it.py::test_lossy --sweep-replay=cancel@1,seed=1"
    assert command in text
    assert "cancel sweeps: 1 test, 16 positions, 12 with violations" in text

    again = inner(pytester, ACCOUNT + LOSSY, *command.split()[2:])
    again.assert_outcomes(failed=1)
    assert "> assert account.left + account.right == 10" in told(again)
    assert "at cancel@1,seed=1: - nothing_is_lost: AssertionError" in told(again)
    assert again.outlines.count("in the body") == 1


def test_a_replayed_position_that_holds_passes(pytester: pytest.Pytester) -> None:
    # The sibling crashes in a step of its own: too late.
    result = inner(pytester, ACCOUNT + LOSSY, "--sweep-replay=crash@1,seed=0", "-rP")

    result.assert_outcomes(passed=1)
    assert "no violation at crash@1,seed=0" in told(result)


@pytest.mark.parametrize(
    ("position", "words"),
    [
        ("cancel@99,seed=0", "the run ended before step 99"),
        ("sigint_child@0", "this sweep has no fault 'sigint_child'; expected some of cancel, "),
    ],
)
def test_a_replayed_position_that_is_not_there_fails(
    pytester: pytest.Pytester, position: str, words: str
) -> None:
    result = inner(pytester, ACCOUNT + LOSSY, f"--sweep-replay={position}")

    result.assert_outcomes(failed=1)
    assert f"--sweep-replay={Replay.parse(position)}: {words}" in told(result)


def test_an_assertion_of_the_body_that_fails_only_after_a_fault_is_a_violation(
    pytester: pytest.Pytester,
) -> None:
    code = """
        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_cleanup():
            done = False
            try:
                await checkpoint()
                done = True
            finally:
                assert done, "it was not done"
    """
    result = inner(pytester, code)

    result.assert_outcomes(failed=1)
    assert "- it raised AssertionError, which no fault explains: it was not done" in told(result)
    assert '> assert done, "it was not done"' in told(result)
    # trio's checkpoint looks for a cancel after its step, too.
    assert "2 positions with violations" in told(result)


def test_errors_that_the_faults_explain_are_none(pytester: pytest.Pytester) -> None:
    code = """
        class Torn(Exception): ...

        async def tear():
            try:
                await checkpoint()
            except trio.Cancelled:
                raise Torn from None

        @pytest.mark.cancel_sweep(seeds=1)
        async def test_group():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(checkpoint)
                nursery.start_soon(checkpoint)

        @pytest.mark.cancel_sweep(seeds=1)
        async def test_torn():
            await tear()

        @pytest.mark.cancel_sweep(seeds=1, may_raise=[Torn])
        async def test_may_be_torn():
            await tear()
    """
    result = inner(pytester, code)

    result.assert_outcomes(passed=2, failed=1)
    assert "- it raised Torn, which no fault explains: " in told(result)


def test_what_the_engine_finds_needs_no_check(pytester: pytest.Pytester) -> None:
    code = """
        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1, raises_cancel=True)
        async def test_swallows():
            try:
                await checkpoint()
            except trio.Cancelled:
                pass

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1, leaves_within=2)
        async def test_lingers():
            try:
                await trio.sleep(60)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(5)
    """
    result = inner(pytester, code)

    result.assert_outcomes(failed=2)
    assert "- the cancel was swallowed: it returned None" in told(result)
    assert "- it took 5 s to leave, more than 2" in told(result)


SEAMS = """
import trio_runner.testing as testing

class Store:
    def __init__(self, seam):
        self.seam, self.kept = seam, []

    async def save(self, item):
        await self.seam.call()
        self.kept.append(item)
"""


def test_call_faults_come_through_the_seams_of_the_position(pytester: pytest.Pytester) -> None:
    code = """
        @pytest.mark.cancel_sweep(faults=["journal_error", "journal_hang"], seeds=1)
        async def test_gives_up(position):
            store = Store(position.seam("journal"))
            with trio.move_on_after(3):
                await store.save(1)
                await store.save(2)

        @pytest.mark.cancel_sweep(faults=["journal_error"], seeds=1)
        async def test_wraps(position):
            store = Store(position.seam("journal"))
            try:
                await store.save(1)
            except testing.PlannedError as error:
                raise OSError("the disk") from error

        @pytest.mark.cancel_sweep(faults=["journal_error"], seeds=1)
        async def test_forgets(position):
            store = Store(position.seam("journal"))
            try:
                await store.save(1)
            except testing.PlannedError:
                assert store.kept

        @pytest.mark.cancel_sweep(faults=["journal_error", "model_error"], seeds=1)
        async def test_has_no_model(position):
            await position.seam("journal").call()
    """
    result = inner(pytester, SEAMS + textwrap.dedent(code), "-rP")

    result.assert_outcomes(passed=2, failed=2)
    assert "4 positions (journal_error 2, journal_hang 2)" in told(result)
    assert "- it raised AssertionError, which no fault explains: assert []" in told(result)
    assert "the faults need the seams ['model'], and the test asked for ['journal']" in told(result)


def test_parameters_classes_and_marks_of_a_module_work(pytester: pytest.Pytester) -> None:
    code = """
        pytestmark = pytest.mark.cancel_sweep(faults=["cancel"], seeds=2)

        @pytest.mark.parametrize("count", [1, 2], ids=["one", "a b"])
        async def test_count(count):
            for _ in range(count):
                await checkpoint()

        class TestThem:
            def setup_method(self):
                self.steps = []

            @pytest.mark.cancel_sweep(seeds=1)
            async def test_method(self):
                assert self.steps == []
                self.steps.append(1)
                await checkpoint()

        @pytest.mark.parametrize("name", ["x y"])
        async def test_named(name):
            try:
                await checkpoint()
            finally:
                raise KeyError(name)

        def test_sync(): ...
    """
    result = inner(pytester, code, "-k", "not named")

    result.assert_outcomes(passed=4)
    # One fault: two or three steps with two seeds, two steps with the nearer marker's one.
    assert "3 tests, 12 positions" in told(result)


def test_a_fault_of_ones_own_is_replayed_by_its_name(pytester: pytest.Pytester) -> None:
    code = """
        import trio_runner.testing as testing

        NUDGE = testing.Fault("nudge", testing.Injection.cancel)

        @pytest.mark.cancel_sweep(faults=(fault for fault in [NUDGE]), pairs=[("cancel", NUDGE)])
        @pytest.mark.parametrize("word", ["it's"])
        async def test_own(word):
            try:
                await checkpoint()
            except trio.Cancelled:
                raise ValueError(word) from None
    """
    result = inner(pytester, code)
    result.assert_outcomes(failed=1)
    assert """pytest 'test_it.py::test_own[it'"'"'s]' --sweep-replay=nudge@0,seed=0""" in told(
        result
    )

    again = inner(pytester, code, "--sweep-replay=cancel@0,nudge@1,seed=0")
    again.assert_outcomes(failed=1)
    assert "at cancel@0,nudge@1,seed=0: - " in told(again)


def test_a_test_that_differs_from_run_to_run_says_so(pytester: pytest.Pytester) -> None:
    code = """
        steps = [3, 3, 3, 0]  # the last of them ends before its fault

        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_shorter_and_shorter():
            for _ in range(steps.pop(0)):
                await checkpoint()
    """
    result = inner(pytester, code)

    result.assert_outcomes(failed=1)
    assert "cancel_sweep: the case is not deterministic: with seed 0" in told(result)
    assert "The case is the body of the test with its function-scoped fixtures" in told(result)


# --- the run without a fault ----------------------------------------------------


def test_the_run_without_a_fault_ends_the_test_as_usual(pytester: pytest.Pytester) -> None:
    code = """
        import trio_runner.testing as testing
        pytestmark = pytest.mark.cancel_sweep(seeds=2)

        async def test_skips():
            pytest.skip("not today")

        async def test_skips_in_a_child():
            async def child():
                pytest.skip("not tomorrow")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)

        @pytest.mark.skip
        async def test_skipped(): ...

        async def test_expects_to_fail():
            async def child():
                pytest.xfail("known")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)

        @pytest.mark.xfail(strict=True, raises=ValueError)
        async def test_expected_to_fail_after_a_fault():
            try:
                await checkpoint()
            except trio.Cancelled:
                raise ValueError from None

        async def test_fails():
            await checkpoint()
            pytest.fail("on purpose")

        async def test_asserts():
            await checkpoint()
            assert 1 + 1 == 3

        async def test_leaves_a_task():
            trio.lowlevel.spawn_system_task(trio.sleep_forever)
            await checkpoint()

        async def test_hangs():
            await trio.sleep_forever()

        async def test_check(position):
            @position.check
            def never(outcome):
                yield "never right"
                yield "never right"
    """
    result = inner(pytester, code)

    result.assert_outcomes(skipped=3, xfailed=2, failed=5)
    text = told(result)
    assert "> assert 1 + 1 == 3" in text
    alone = "in the run without a fault (pytest test_it.py::{} --sweep-replay=seed=0):"
    assert f"{alone.format('test_leaves_a_task')} - task 'trio.sleep_forever' was left" in text
    assert f"{alone.format('test_hangs')} - it did not end by itself" in text
    assert f"{alone.format('test_check')} - never right" in text
    # In its failure; pytest's summary has it once more where lines may be long, as in a CI.
    failures, _, _ = text.partition(" short test summary info ")
    assert failures.count("- never right") == 1
    # Each ended with its first run.
    assert "before step" not in text


@pytest.mark.usefixtures("as_a_process")
def test_exit_and_a_real_interrupt_stop_pytest(pytester: pytest.Pytester) -> None:
    code = """
        @pytest.mark.cancel_sweep(faults=["cancel"], seeds=1)
        async def test_it():
            {}

        def test_never(): ...
    """
    after_a_fault = "try: await checkpoint()\n    except trio.Cancelled: pytest.exit('enough')"
    for body in (after_a_fault, "raise KeyboardInterrupt"):
        pytester.makepyfile(test_it=HEAD + textwrap.dedent(code).format(body))
        # A process of its own: this one is not to be stopped.
        result = pytester.run(sys.executable, "-m", "pytest", *PLAIN)
        assert result.ret == pytest.ExitCode.INTERRUPTED
        assert "test_never" not in told(result)
        assert "no tests ran" in told(result)


# --- the command line -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ([], 2 * (2 * 4 + 1 * 4 * 3 // 2)),  # cancel, sigint; the pairs
        (["--sweep-seeds=1"], 2 * 4 + 6),
        (["--sweep-seeds=3", "--sweep-positions=2"], 3 * (2 * 2 + 2)),
        (["--sweep-sample=0.5"], 2 * (2 * 4 + 3)),
    ],
)
def test_the_command_line_chooses_how_much_is_swept(
    pytester: pytest.Pytester, options: list[str], positions: int
) -> None:
    code = """
        @pytest.mark.cancel_sweep(
            faults=["cancel", "sigint"], pairs=[("nudge", "nudge")], seeds=2
        )
        async def test_three():
            for _ in range(3):
                await checkpoint()
    """
    # A fault that does nothing: a run goes on to its end after it.
    code = code.replace('("nudge", "nudge")', "(NUDGE, NUDGE)")
    head = 'import trio_runner.testing as t\nNUDGE = t.Fault("nudge", lambda injection: None)\n'
    result = inner(pytester, head + textwrap.dedent(code), *options)

    result.assert_outcomes(passed=1)
    assert f"1 test, {positions} positions" in told(result)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cancel@17,sigint@20,seed=3", Replay((("cancel", 17), ("sigint", 20)), 3)),
        ("cancel@0", Replay((("cancel", 0),))),
        ("seed=5", Replay((), 5)),
        ("a-b@1, seed=0,sweep=2", Replay((("a-b", 1),), 0, 2)),
    ],
)
def test_the_text_of_a_position_reads_back(text: str, expected: Replay) -> None:
    assert Replay.parse(text) == expected
    assert Replay.parse(str(expected)) == expected
