"""A fault at every step of both sides of a bridge; and planted faults, which the sweep must find.

The loop and the operations are in ``bridge_workload.py``: no thread, so each position repeats.
A real thread takes part in ``check_toolset``, at some of the positions.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import pathlib
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, Self

import attrs
import pytest

import trio_runner as tr
import trio_runner_adapters.asyncio_bridge
from trio_runner.testing import TOOLSET_RULES, check_toolset, sweep, sweep_lines
from trio_runner_adapters.asyncio_bridge import AsyncioBridge, BridgedObject

HERE = pathlib.Path(__file__).parent
PACKAGE = pathlib.Path(trio_runner_adapters.asyncio_bridge.__file__).parent
#: Where the library lies, which stands beside the adapters.
BESIDE = (pathlib.Path(tr.__file__).parent.parent,)
FAULTS = ("cancel", "deadline", "crash", "sigint", "sigint_child", "foreign_cancel")
PAIRS = (
    ("cancel", "sigint"),
    ("sigint", "sigint"),
    ("foreign_cancel", "cancel"),
    ("cancel", "foreign_cancel"),
)


def load_workload() -> Any:
    spec = importlib.util.spec_from_file_location("bridge_workload", HERE / "bridge_workload.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


workload = load_workload()


# --- sweeps ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("in_main", [False, True])
def test_each_call_has_one_outcome_at_every_step(in_main: bool) -> None:
    cases = workload.BridgeCases(in_main=in_main)
    report = sweep(cases, faults=FAULTS, seeds=[0] if in_main else [0, 1])
    report.raise_if_failed()
    assert report.counts["foreign_cancel"] > 0
    assert report.positions > 400


@pytest.mark.slow
def test_each_call_has_one_outcome_for_pairs_of_faults(full_sweeps: bool) -> None:
    report = sweep(
        workload.BridgeCases(),
        faults=(),
        pairs=PAIRS,
        seeds=[0],
        max_positions=None if full_sweeps else 150,
    )
    report.raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize("drive", ["until_done", "async_for", "break", "generate"])
def test_the_reference_turn_with_a_bridged_toolset_keeps_the_contract(drive: str) -> None:
    report = sweep(workload.BridgedTurn(drive), faults=FAULTS, seeds=[0])
    report.raise_if_failed()
    assert report.positions > 150


@pytest.mark.slow
@pytest.mark.parametrize("in_main", [False, True])
@pytest.mark.parametrize("restrict_ki", [False, True])
def test_an_interrupt_at_any_line_of_the_bridge_leaves_it_whole(
    restrict_ki: bool, in_main: bool, full_sweeps: bool
) -> None:
    report = sweep_lines(
        workload.BridgeCases(in_main=in_main),
        paths=[PACKAGE],
        restrict_ki=restrict_ki,
        max_positions=None if full_sweeps else 200,
        pairs=100 if full_sweeps else 15,
    )
    report.raise_if_failed()


# --- with a real thread ---------------------------------------------------------


class Client:
    async def __aenter__(self) -> Self:
        await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.001)

    async def add(self, one: int, other: int) -> int:
        await asyncio.sleep(0.02)
        return one + other


class Adder:
    """A toolset on a bridge, in its shortest form."""

    name = "adder"

    def __init__(self) -> None:
        self.bridge = AsyncioBridge(Client, name="adder", grace=2.0)
        self.client: BridgedObject | None = None
        numbers = {"one": {"type": "integer"}, "other": {"type": "integer"}}
        schema = {"type": "object", "properties": numbers}
        self.tools = (tr.Tool("add", "Add two numbers.", schema, self.add),)

    async def add(self, arguments: dict[str, Any], context: tr.ToolContext) -> object:
        assert self.client is not None
        return await self.client.add(**arguments)

    async def list_tools(self) -> tuple[tr.Tool, ...]:
        return self.tools

    async def __aenter__(self) -> Self:
        self.client = await self.bridge.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.bridge.__aexit__(exc_type, exc, traceback)


@pytest.mark.slow
def test_a_bridged_toolset_keeps_every_promise_in_real_time() -> None:
    report = check_toolset(
        Adder,
        calls=[("add", {"one": 1, "other": 2}), ("add", {"one": 3, "other": 4})],
        real_time=True,
    )
    report.raise_if_failed()
    assert [rule.status for rule in report.rules] == ["ok"] * len(TOOLSET_RULES), report.render()


# --- mutants --------------------------------------------------------------------

RUN = """
import json, logging, sys
sys.path.insert(0, sys.argv[2])
import bridge_workload
from trio_runner.testing import sweep, sweep_lines
import trio_runner_adapters.asyncio_bridge as bridge

logging.getLogger("trio_runner_adapters").propagate = False
kind, in_main, options = json.loads(sys.argv[1])
cases = bridge_workload.BridgeCases(in_main=in_main)
if kind == "lines":
    report = sweep_lines(
        cases, paths=[bridge.__file__.rpartition("/")[0]], max_failures=1, **options
    )
else:
    report = sweep(cases, seeds=[0], max_failures=1, **options)
print(json.dumps([report.positions, [v for f in report.failures for v in f.violations]]))
"""


@attrs.frozen
class Mutant:
    """A bridge with one guarantee taken out, and the sweep that must find it.

    Attributes:
      old, new: ``old`` stands in the file exactly once.
      found: what one of the violations must say.
    """

    name: str
    file: str
    old: str
    new: str
    found: str
    options: dict[str, Any] = attrs.field(factory=lambda: {"faults": ["cancel"]})
    in_main: bool = False
    kind: str = "steps"

    @property
    def argument(self) -> str:
        return json.dumps([self.kind, self.in_main, self.options])


MUTANTS = [
    Mutant(
        "a_cancel_is_not_passed_on",
        "_call.py",
        "        cancel()\n        try:",
        "        try:",
        "",  # what hangs is waited for until grace is over
    ),
    Mutant(
        "a_cancelled_call_does_not_wait_for_its_cleanup",
        "_call.py",
        "            await wait_closed(self._ending, self._life.grace)",
        "            self.ended = True",
        "",
    ),
    Mutant(
        "a_result_that_came_despite_the_cancel_is_dropped",
        "_call.py",
        "if isinstance(self._error, asyncio.CancelledError | errors.BridgeClosedError):",
        "if True:",
        "returned, and trio saw",
    ),
    Mutant(
        "a_foreign_cancel_crosses",
        "_errors.py",
        "case asyncio.CancelledError():",
        "case asyncio.CancelledError() if not error:",
        "asyncio.CancelledError reached trio",
        {"faults": ["foreign_cancel"]},
    ),
    Mutant(
        "a_call_that_the_close_cancels_is_called_foreign",
        "_call.py",
        "error = self._life.closed_error() or error",
        "pass",
        "foreign whim",
    ),
    Mutant(
        "the_client_is_left_while_its_calls_run",
        "_life.py",
        "            self._loop_stopped()\n            await self._end_calls()",
        "            self._loop_stopped()",
        "left while",
    ),
    Mutant(
        "a_cleanup_is_cut_by_a_second_cancel",
        "_call.py",
        "    if not task.cancelling():\n        task.cancel()",
        "    task.cancel()",
        "cleaned: []",
    ),
    Mutant(
        "the_last_one_out_does_not_wait",
        "_bridge.py",
        "                await wait_closed(life.closed, self._grace)",
        "                await trio.lowlevel.checkpoint()",
        "left with",
    ),
    Mutant(
        "an_iterator_is_closed_only_when_it_is_collected",
        "_proxy.py",
        "                self._life.send(iteration.ask, call, GeneratorExit())\n"
        "                await call.finish()",
        "                pass",
        "",
    ),
    Mutant(
        "ctrl_c_strikes_in_the_middle_of_entering",
        "_bridge.py",
        "    @trio.lowlevel.enable_ki_protection\n    async def __aenter__",
        "    async def __aenter__",
        "",
        {"restrict_ki": False, "max_positions": 400},
        in_main=True,
        kind="lines",
    ),
]


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_of_the_bridge_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    change = (f"asyncio_bridge/{mutant.file}", mutant.old, mutant.new)
    root = plant(PACKAGE.parent, change)

    _, violations = run_below(root, RUN, mutant.argument, HERE, beside=BESIDE)

    assert any(mutant.found in violation for violation in violations), violations


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("argument", sorted({mutant.argument for mutant in MUTANTS}))
def test_the_same_sweep_finds_nothing_in_the_bridge_as_it_is(
    argument: str, run_below: Callable[..., Any]
) -> None:
    positions, violations = run_below(PACKAGE.parent.parent, RUN, argument, HERE, beside=BESIDE)
    assert violations == []
    assert positions > 0
