"""The MCP project's own conformance suite: its client scenarios, driven by `McpToolset`.

The suite comes from npm (``foreign/install.py``). It starts a server for each scenario,
and as the client ``foreign/conformance_client.py``; then it says which of its checks
passed. The total is printed when the last scenario has run.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

HERE = Path(__file__).parent
#: Seconds that the suite gives the client.
TIMEOUT: Final = 90
#: The suite needs this Node.js.
WANTED_NODE: Final = 22

pytestmark = pytest.mark.slow

#: The scenarios, and for which version of the protocol each is run. Those of `auth/` need a
#: client that has registered somewhere, which is the SDK's part and not the toolset's.
SCENARIOS: Final = [
    ("initialize", "2025-06-18"),
    ("initialize", "2025-11-25"),
    ("tools_call", "2025-06-18"),
    ("tools_call", "2025-11-25"),
    ("tools_call", "2026-07-28"),
    ("elicitation-sep1034-client-defaults", "2025-11-25"),
    ("sse-retry", "2025-11-25"),
    ("request-metadata", "2026-07-28"),
    ("http-standard-headers", "2026-07-28"),
    ("http-custom-headers", "2026-07-28"),
    ("http-invalid-tool-headers", "2026-07-28"),
    ("json-schema-ref-no-deref", "2026-07-28"),
    ("json-schema-2020-12-preservation", "2025-11-25"),
    ("json-schema-2020-12-preservation", "2026-07-28"),
    ("sep-2322-client-request-state", "2026-07-28"),
]


@attrs.frozen
class Outcome:
    """What the suite said of one scenario.

    Attributes:
      checks: each check's status, and what it is about.
      said: what the suite printed, for the message of a test that fails.
    """

    exit_code: int
    checks: list[tuple[str, str]]
    said: str

    def count(self, *statuses: str) -> int:
        return sum(status in statuses for status, _ in self.checks)


Run = Callable[[str, str], Outcome]


@pytest.fixture(scope="module")
def outcomes(pytestconfig: pytest.Config) -> Iterator[dict[tuple[str, str], Outcome]]:
    """What was seen so far; the sum is printed at the end."""
    found: dict[tuple[str, str], Outcome] = {}
    yield found
    passed = [key for key, outcome in found.items() if outcome.exit_code == 0]
    checks = sum(outcome.count("SUCCESS") for outcome in found.values())
    counted = sum(outcome.count("SUCCESS", "FAILURE", "WARNING") for outcome in found.values())
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(
            f"\n  MCP conformance suite: {len({name for name, _ in passed})} of "
            f"{len({name for name, _ in found})} scenarios passed, {len(passed)} of {len(found)} "
            f"with each version of the protocol, {checks} of {counted} checks",
            end="",
        )


@pytest.fixture
def run(npm: dict[str, Any], tmp_path: Path, outcomes: dict[tuple[str, str], Outcome]) -> Run:
    """Runs a scenario."""
    if npm["major"] < WANTED_NODE:
        pytest.skip(f"the conformance suite needs Node.js {WANTED_NODE}, found {npm['major']}")

    def run_scenario(name: str, version: str) -> Outcome:
        suite = Path(npm["modules"]) / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
        client = shlex.join([sys.executable, str(HERE / "foreign" / "conformance_client.py")])
        command = [npm["node"], str(suite), "client", "--command", client, "--scenario", name]
        command += ["--spec-version", version, "--timeout", str(1000 * TIMEOUT)]
        command += ["--output-dir", str(tmp_path)]
        # The client is started elsewhere, and finds the same packages as this test.
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command,
            check=False,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * TIMEOUT,
        )
        checks = [
            (each["status"], each["description"])
            for path in tmp_path.glob("*/checks.json")
            for each in json.loads(path.read_text("utf-8"))
        ]
        outcomes[name, version] = Outcome(done.returncode, checks, done.stdout)
        return outcomes[name, version]

    return run_scenario


@pytest.mark.parametrize(("name", "version"), SCENARIOS)
def test_a_scenario_of_the_conformance_suite_passes(name: str, version: str, run: Run) -> None:
    outcome = run(name, version)
    assert outcome.exit_code == 0, outcome.said
    assert outcome.count("FAILURE", "WARNING") == 0, outcome.said
    # A scenario in which nothing was checked has shown nothing.
    assert outcome.count("SUCCESS") >= 1, outcome.said
