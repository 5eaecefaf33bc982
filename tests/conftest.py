"""Options and fixtures of the whole suite."""

from __future__ import annotations

import pytest

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
