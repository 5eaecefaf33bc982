"""`Position`: what a swept test is given to say what must hold, the fixture ``position``.

What may live here: what a test registers while it runs. When it is called is in
`_pytest_sweep.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from trio_runner.testing._outcome import Outcome
from trio_runner.testing._seams import Seam

#: A check of an `Outcome`: gives sentences, or asserts.
Check = Callable[[Outcome], Iterable[str] | None]
_CheckT = TypeVar("_CheckT", bound=Check)
_AfterwardsT = TypeVar("_AfterwardsT", bound=Callable[[], Awaitable[object]])


class Position:
    """One position of a swept test; the fixture ``position``.

    It is new for each position, as the other function-scoped fixtures are.
    """

    def __init__(self) -> None:
        #: In the order in which they were registered.
        self.checks: list[Check] = []
        #: By name; the engine watches those that its faults need.
        self.seams: dict[str, Seam] = {}
        #: The names that the test has asked for.
        self.seams_used: set[str] = set()
        self._afterwards: list[Callable[[], Awaitable[object]]] = []

    def check(self, check: _CheckT) -> _CheckT:
        """Register a function that is called when the run has ended; a decorator, too.

        It is called outside trio with the `Outcome`, and asserts, or gives one
        sentence for each violation. Registered again, it is called again.
        """
        self.checks.append(check)
        return check

    def afterwards(self, function: _AfterwardsT) -> _AfterwardsT:
        """Register an async function that tries whether it all still works; a decorator, too.

        It is awaited when the body has left, in the same trio run, where no fault
        reaches it (`Case.afterwards`). An error or a hang in it is a violation.
        Several are awaited in their order, up to the first error.
        """
        self._afterwards.append(function)
        return function

    async def look_afterwards(self) -> None:
        """Await what is registered by now; raises what it raises. A checkpoint if any of it is."""
        for function in self._afterwards:
            await function()

    def seam(self, name: str) -> Seam:
        """The seam of that name: calls that pass it can be made to fail by call faults."""
        self.seams_used.add(name)
        return self.seams.setdefault(name, Seam())
