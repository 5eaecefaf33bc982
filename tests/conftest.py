"""Options and fixtures of the whole suite."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
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


@pytest.fixture
def plant(tmp_path: Path) -> Callable[..., Path]:
    """Plants faults: ``plant(package, (file, old, new), ...)`` copies the package and changes it.

    Each ``old`` must stand in its file exactly once. Returns the folder that the copy lies in.
    """

    def planted(package: Path, *changes: tuple[str, str, str]) -> Path:
        copy = tmp_path / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in changes:
            path = copy / file
            source = path.read_text("utf-8")
            assert source.count(old) == 1, f"{file} has not one {old!r}"
            path.write_text(source.replace(old, new), "utf-8")
        return tmp_path

    return planted


@pytest.fixture(scope="session")
def run_below() -> Callable[..., Any]:
    """Runs a program on the packages of a folder: ``run_below(root, code, *arguments)``.

    In a process of its own; what it printed last is read as JSON and returned. ``beside``
    are more folders with packages, behind ``root``.
    """

    def run(root: Path, code: str, *arguments: object, beside: tuple[Path, ...] = ()) -> Any:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (root, *beside)))},
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


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
