"""How the pytest plugin gives each position of a sweep fixtures of its own.

What may live here: what is known of a swept test's function-scoped fixtures,
which of them are refused, and how they are made anew. pytest has no public call
for that last part; what is used of it (`FixtureDef.finish`, `FixtureDef.execute`)
stands in its reference, and is called here only. `FixtureDef.func` is not in it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Generator
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

    @contextlib.contextmanager
    def refused_if_async(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None]:
        """Let the setup of a fixture fail that would need the loop of one position.

        The failure comes from the fixture's own function, so that pytest notes it as that of
        a fixture that was begun. Raised anywhere else it would leave the fixture half set
        up, for all later tests that use it.
        """
        whole: Any = fixturedef
        function = whole.func
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            why = "is async"
        elif getattr(function, "_force_trio_fixture", False):  # so pytest-trio marks its nursery
            why = "belongs to pytest-trio's own run of the test"
        else:
            yield
            return
        whole.func = functools.partial(_refuse, fixturedef.argname, why)
        try:
            yield
        finally:
            whole.func = function

    def note(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest, value: object
    ) -> None:
        """Remember a fixture that has been set up, or fail the test when it cannot be swept."""
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


def _refuse(name: str, why: str, /, **_: object) -> None:
    """Stands for the function of a fixture; it takes whatever that takes."""
    pytest.fail(
        f"cancel_sweep: the fixture {name!r} {why}, and each position of a sweep is a trio run of "
        "its own. Make what it gives inside the test (`async with make_it() as it:`), or let the "
        "fixture be a plain function that returns a factory",
        pytrace=False,
    )
