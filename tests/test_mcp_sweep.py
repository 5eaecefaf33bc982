"""The reference turn with an `McpToolset`, and a fault at every step: contract C1-C9.

In memory on the mock clock, every position with ``--full-sweeps``. Over stdio, streamable
HTTP and SSE in real time, at some of the positions: two runs need not be alike there. The
turns are in ``mcp_workload.py``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from types import ModuleType
from typing import Any, Literal

import attrs
import pytest
import trio.testing
import uvicorn
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

import trio_runner as tr
import trio_runner_adapters._main_task as main_task
import trio_runner_adapters.mcp
from trio_runner.testing import Case, sweep, sweep_lines
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing._judge import judge
from trio_runner.testing._options import spread
from trio_runner.testing._probe import Options, Planned
from trio_runner.testing._surroundings import surroundings
from trio_runner.testing._turn_cases import DRIVES
from trio_runner_adapters.mcp import McpToolset

HERE = pathlib.Path(__file__).parent
PACKAGE = pathlib.Path(trio_runner_adapters.mcp.__file__).parent
#: Where the library lies, which stands beside the adapters.
BESIDE = (pathlib.Path(tr.__file__).parent.parent,)
STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)
ALL_DRIVES = pytest.mark.parametrize("drive", DRIVES)


def load_workload() -> Any:
    spec = importlib.util.spec_from_file_location("mcp_workload", HERE / "mcp_workload.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


workload = load_workload()


# --- in memory ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("delay", [0.0, 0.5], ids=["instant", "slow"])
@ALL_DRIVES
def test_every_fault_at_every_step_of_a_turn_with_a_server_in_memory(
    drive: str, delay: float, mode: str, full_sweeps: bool
) -> None:
    report = sweep(
        workload.MemoryTurn(drive, mode, delay=delay),
        faults=STEP_FAULTS,
        seeds=[0],
        max_positions=None if full_sweeps else 2,
    )
    report.raise_if_failed()
    assert report.positions >= (600 if full_sweeps else 10)
    print(drive, delay, mode, report.positions, "positions", round(report.cpu_seconds), "CPU s")


@pytest.mark.slow
@ALL_DRIVES
def test_every_call_that_fails_in_a_turn_with_a_server_in_memory(
    drive: str, full_sweeps: bool
) -> None:
    report = sweep(
        workload.MemoryTurn(drive, watched=True),
        faults=CALL_FAULTS,
        seeds=[0],
        max_positions=None if full_sweeps else 1,
    )
    report.raise_if_failed()
    assert [name for name in CALL_FAULTS if not report.counts[name]] == []
    print(drive, report.positions, "calls", round(report.cpu_seconds), "CPU s")


class New:
    """Makes journals, each with a file of its own in memory."""

    def __init__(self) -> None:
        self.engine = InlineEngine()

    def __call__(self) -> tr.SqliteJournal:
        self.engine.close()
        self.engine = InlineEngine(0.1)
        return tr.SqliteJournal(IN_MEMORY, _engine=self.engine)


@pytest.mark.slow
@ALL_DRIVES
def test_a_turn_with_a_server_in_memory_and_a_file_of_sqlite(drive: str, full_sweeps: bool) -> None:
    report = sweep(
        workload.MemoryTurn(drive, journal=New()),
        faults=STEP_FAULTS,
        seeds=[0],
        max_positions=40 if full_sweeps else 2,
    )
    report.raise_if_failed()
    print(drive, report.positions, "positions with sqlite", round(report.cpu_seconds), "CPU s")


@pytest.mark.slow
def test_a_second_interrupt_in_a_turn_with_a_server_in_memory(full_sweeps: bool) -> None:
    if not full_sweeps:
        pytest.skip("every first fault is run before a second: half a minute, with --full-sweeps")
    report = sweep(
        workload.MemoryTurn(),
        faults=(),
        pairs=[("cancel", "sigint"), ("sigint", "sigint"), ("cancel", "crash")],
        seeds=[0],
        max_positions=600,
    )
    report.raise_if_failed()
    print(report.positions, "pairs", round(report.cpu_seconds), "CPU s")


@pytest.mark.slow
def test_a_ctrl_c_at_any_line_of_a_toolset_and_of_the_sdk_below_it(
    monkeypatch: pytest.MonkeyPatch, full_sweeps: bool
) -> None:
    """Also in the SDK's own tasks, which nobody can protect: there it costs the connection."""
    monkeypatch.setattr(main_task, "_interrupt_main_task", workload.hand_on_unseen)
    report = sweep_lines(
        workload.MemoryTurn(),
        paths=[PACKAGE, inspect.getfile(JSONRPCDispatcher)],
        restrict_ki=False,
        max_positions=1000 if full_sweeps else 40,
    )
    report.raise_if_failed()
    print(report.positions, "lines", report.skipped, "left out", round(report.cpu_seconds), "CPU s")


# --- in real time ---------------------------------------------------------------


def live(
    monkeypatch: pytest.MonkeyPatch,
    make_case: Callable[[], Case],
    positions: int,
    faults: Iterable[str] = STEP_FAULTS,
) -> dict[str, int]:
    """Run a case with each fault before some of its steps, in real time.

    The engine of `sweep` without its clock, and without its demand that two runs are alike.
    """
    monkeypatch.setattr(trio.testing, "MockClock", workload.RealClock)
    options = Options(hang_after=120.0, max_steps=10**7)
    found: list[str] = []
    counts: dict[str, int] = {}
    with surroundings(needs_signal=True) as around:

        def run(*plan: Planned) -> int:
            in_child = any(each.fault.in_child for each in plan)
            own = attrs.evolve(options, in_child=in_child)
            outcome = judge(make_case, plan, 0, own, around)
            found.extend(f"{outcome.landings}: {each}" for each in outcome.violations)
            for each in outcome.landings:
                counts[each.fault] = counts.get(each.fault, 0) + each.landed
            return len(outcome.trace)

        steps = run()
        for offset, name in enumerate(faults):
            # Each fault at other steps.
            for position in spread(steps, positions):
                run(Planned.of(FAULTS[name], (position + offset) % steps))
    assert not found, "\n".join(found)
    return counts


@pytest.mark.slow
@ALL_DRIVES
def test_faults_in_a_turn_with_a_server_in_a_process(
    drive: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, full_sweeps: bool
) -> None:
    began = time.monotonic()
    counts = live(monkeypatch, workload.StdioTurn(tmp_path, drive), 25 if full_sweeps else 1)
    assert sum(counts.values()) >= len(STEP_FAULTS)
    print(drive, "stdio", counts, f"{time.monotonic() - began:.0f} s")


@contextlib.contextmanager
def serving(transport: Literal["http", "sse"]) -> Generator[tuple[str, Any]]:
    """The SDK's server in a thread; gives its URL and its shelf."""
    shelf = workload.Shelf()
    server = workload.make_server(shelf)
    app = server.sse_app() if transport == "sse" else server.streamable_http_app()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
        thread.start()
        while not running.started and thread.is_alive():
            time.sleep(0.005)
        try:
            port = listener.getsockname()[1]
            yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}", shelf
        finally:
            running.should_exit = True
            thread.join(30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "mode", "some"),
    [
        ("http", "auto", ("until_done", "generate")),
        ("http", "legacy", ("async_for",)),
        ("sse", "legacy", ("break",)),
    ],
)
def test_faults_in_a_turn_with_a_server_behind_a_url(
    transport: Literal["http", "sse"],
    mode: str,
    some: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    full_sweeps: bool,
) -> None:
    make = McpToolset.http if transport == "http" else McpToolset.sse
    for drive in DRIVES if full_sweeps else some:
        began = time.monotonic()
        with serving(transport) as (url, shelf):
            turn = workload.WebTurn(make, url, shelf, drive, mode)
            counts = live(monkeypatch, turn, 40 if full_sweeps else 2)
        assert sum(counts.values()) >= len(STEP_FAULTS)
        print(drive, transport, mode, counts, f"{time.monotonic() - began:.0f} s")


# --- mutants --------------------------------------------------------------------

RUN = """
import inspect, json, logging, sys
logging.basicConfig(level=logging.WARNING, handlers=[logging.NullHandler()])
sys.path.insert(0, sys.argv[2])
import mcp_workload
import trio_runner_adapters._main_task as main_task
import trio_runner_adapters.mcp as adapter
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from trio_runner.testing import sweep, sweep_lines

kind, drive, options = json.loads(sys.argv[1])
turn = mcp_workload.MemoryTurn(drive)
if kind == "lines":
    main_task._interrupt_main_task = mcp_workload.hand_on_unseen
    paths = [adapter.__file__.rpartition("/")[0], inspect.getfile(JSONRPCDispatcher)]
    report = sweep_lines(turn, paths=paths, max_failures=1, **options)
else:
    report = sweep(turn, seeds=[0], max_failures=1, **options)
print(json.dumps([report.positions, [v for f in report.failures for v in f.violations]]))
"""


@attrs.frozen
class Mutant:
    """An `McpToolset` with one guarantee taken out, and the sweep that must find it.

    Attributes:
      file: below the package of the adapters.
      old, new: ``old`` stands in the file exactly once.
      found: what one of the violations must say.
    """

    name: str
    file: str
    old: str
    new: str
    found: str
    options: dict[str, Any] = attrs.field(
        factory=lambda: {"faults": ["cancel"], "max_positions": 40}
    )
    drive: str = "until_done"
    kind: str = "steps"

    @property
    def argument(self) -> str:
        return json.dumps([self.kind, self.drive, self.options])


MUTANTS = [
    Mutant(
        "who_is_cancelled_while_entering_stays_counted",
        "mcp/_toolset.py",
        "        except BaseException:\n            await self._upkeep.leave()\n            raise",
        "        except BaseException:\n            raise",
        "somebody is inside still",
    ),
    Mutant(
        "the_close_is_cut_by_a_cancel",
        "_finishing.py",
        "    with closing_scope(seconds):\n        await closed.wait()",
        "    await closed.wait()",
        "was left running",
    ),
    Mutant(
        "the_last_one_out_does_not_wait",
        "mcp/_upkeep.py",
        "                    await wait_closed(",
        "                    await trio.lowlevel.checkpoint(); (lambda *_: None)(",
        "was left running",
    ),
    Mutant(
        "a_ctrl_c_in_a_task_of_the_sdk_is_only_logged",
        "_main_task.py",
        "        _interrupt_main_task()\n    return found",
        "        pass\n    return found",
        "the KeyboardInterrupt was swallowed",
        {"restrict_ki": False, "max_positions": 150},
        kind="lines",
    ),
    Mutant(
        "a_turn_goes_on_while_the_ctrl_c_that_cost_it_a_connection_is_on_its_way",
        "mcp/_calls.py",
        "                await connection.wait_unwound()",
        "                pass",
        "has status interrupted, and the turn was answered",
        {"restrict_ki": False, "max_positions": 150},
        kind="lines",
    ),
    Mutant(
        "the_server_is_never_told_of_the_end",
        "mcp/_upkeep.py",
        "            each.request_close()",
        "            pass",
        "was left running",
        drive="generate",
    ),
]


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_of_the_toolset_is_caught(
    mutant: Mutant, plant: Callable[..., pathlib.Path], run_below: Callable[..., Any]
) -> None:
    root = plant(PACKAGE.parent, (mutant.file, mutant.old, mutant.new))

    _, violations = run_below(root, RUN, mutant.argument, HERE, beside=BESIDE)

    assert any(mutant.found in violation for violation in violations), violations


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize("argument", sorted({mutant.argument for mutant in MUTANTS}))
def test_the_same_sweep_finds_nothing_in_the_toolset_as_it_is(
    argument: str, run_below: Callable[..., Any]
) -> None:
    positions, violations = run_below(PACKAGE.parent.parent, RUN, argument, HERE, beside=BESIDE)
    assert violations == []
    assert positions > 0
