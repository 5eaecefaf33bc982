"""How the pytest plugin gives each position of a sweep fixtures of its own.

What may live here: what is known of a swept test's function-scoped fixtures,
which of them are refused, and how they are made anew. pytest has no public call
for that last part; what is used of it (`FixtureDef.finish`, `FixtureDef.execute`)
stands in its reference, and is called here only.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import trio.abc


class Fixtures:
    """The function-scoped fixtures of one swept test.

    pytest makes them once for a test. For a sweep that would be once for all
    positions, and what one position left in them would show in the next.
    """

    def __init__(self) -> None:
        #: Definition and request of each, in the order in which their setup ended: what a
        #: fixture uses comes before it.
        self._made: list[tuple[Any, Any]] = []

    def check_is_sync(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """Fail the test when a fixture is async: it would need the loop of one position."""
        if inspect.iscoroutinefunction(fixturedef.func) or inspect.isasyncgenfunction(
            fixturedef.func
        ):
            _refuse(fixturedef.argname, "is async")

    def note(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest, value: object
    ) -> None:
        """Remember a fixture that has been set up, or fail the test when it cannot be swept."""
        if type(value).__module__ == "pytest_trio.plugin":
            _refuse(fixturedef.argname, "belongs to pytest-trio's own run of the test")
        if isinstance(value, trio.abc.Clock):
            pytest.fail(
                f"cancel_sweep: the fixture {fixturedef.argname!r} is a clock, and each position "
                "runs on a mock clock that jumps already. Leave the fixture out",
                pytrace=False,
            )
        if all(known is not fixturedef for known, _ in self._made):
            self._made.append((fixturedef, request))

    def renew(self) -> dict[str, Any]:
        """Tear the fixtures down and set them up again; gives the values by name."""
        made = tuple(self._made)
        for fixturedef, request in reversed(made):
            if fixturedef.argname == "tmp_path":
                _expect_results(request)
            fixturedef.finish(request)
        return {fixturedef.argname: fixturedef.execute(request) for fixturedef, request in made}


def _expect_results(request: pytest.FixtureRequest) -> None:
    """Let the teardown of pytest's ``tmp_path`` find what it looks for: the results of a test."""
    tmpdir = request.config.pluginmanager.get_plugin("tmpdir")
    key = getattr(tmpdir, "tmppath_result_key", None)
    if key is not None:
        request.node.stash.setdefault(key, {})


def _refuse(name: str, why: str) -> None:
    pytest.fail(
        f"cancel_sweep: the fixture {name!r} {why}, and each position of a sweep is a trio run of "
        "its own. Make what it gives inside the test (`async with make_it() as it:`), or let the "
        "fixture be a plain function that returns a factory",
        pytrace=False,
    )
