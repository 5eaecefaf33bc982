"""Options and fixtures of the whole suite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Installs the packages of npm that some tests need.
INSTALL = Path(__file__).parent / "foreign" / "install.py"

pytest_plugins = ["pytester"]  # runs pytest on files that a test writes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full-sweeps",
        action="store_true",
        help="run every position of the longest sweeps (takes many minutes)",
    )


@pytest.fixture
def full_sweeps(request: pytest.FixtureRequest) -> bool:
    """Whether every position is to run."""
    return bool(request.config.getoption("--full-sweeps"))


@pytest.fixture(scope="session")
def npm(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Where the packages of npm are; without them the test is skipped, with the reason."""
    if pytestconfig.pluginmanager.has_plugin("cacheprovider"):
        folder = pytestconfig.cache.mkdir("npm")
    else:
        folder = tmp_path_factory.getbasetemp().parent / "npm"
    command = [sys.executable, str(INSTALL), str(folder)]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode == 3:
        pytest.skip(f"no packages of npm: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)
