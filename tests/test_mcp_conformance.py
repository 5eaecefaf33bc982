"""`McpToolset` keeps what a toolset promises, against servers over real pipes.

Each run starts a server of its own. The small server of the tests starts
quickly, so it takes the sweeps; the demo server takes what needs no sweep.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trio_runner.testing import TOOLSET_RULES, check_toolset
from trio_runner_adapters.mcp import McpToolset

SMALL_SERVER = Path(__file__).parent / "servers" / "hostile_server.py"


def small(mode: str, notes: Path) -> McpToolset:
    args = ["-S", str(SMALL_SERVER), mode, str(notes)]
    return McpToolset.stdio(sys.executable, args, name="small")


@pytest.mark.slow
def test_the_mcp_toolset_keeps_every_promise(tmp_path: Path) -> None:
    calls = [("echo", {"text": "one"}), ("echo", {"text": "two"})]
    report = check_toolset(
        lambda: small("plain", tmp_path / "notes"), calls=calls, real_time=True, max_positions=5
    )
    report.raise_if_failed()
    assert [rule.status for rule in report.rules] == ["ok"] * len(TOOLSET_RULES), report.render()


@pytest.mark.slow
def test_leaving_ends_a_call_that_the_server_never_answers(tmp_path: Path) -> None:
    report = check_toolset(
        lambda: small("silent", tmp_path / "notes"),
        calls=[("wait", {})],
        rules=["leaving_ends_calls_in_flight"],
        real_time=True,
    )
    report.raise_if_failed()


@pytest.mark.slow
def test_the_tools_of_the_demo_server_are_as_promised(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\ntwo\n")
    server = ["-m", "trio_runner_adapters.demo_server", str(tmp_path), "--delay", "0.1"]
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    report = check_toolset(
        lambda: McpToolset.stdio(sys.executable, server, name="demo", env=env),
        calls=[("read_file", {"path": "notes.txt"}), ("count_lines", {"path": "."})],
        rules=[
            "tools_are_well_made",
            "schemas_are_objects",
            "list_is_stable",
            "any_task_may_use_it",
            "calls_return",
            "calls_do_not_mix",
            "listing_goes_on_during_a_call",
        ],
        real_time=True,
    )
    report.raise_if_failed()
    assert {rule.status for rule in report.rules} == {"ok"}, report.render()
