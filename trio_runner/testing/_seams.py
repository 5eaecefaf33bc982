"""`Seam`: where an operation calls something else, so that one of the calls can fail.

What may live here: the counting and failing of calls. Which call it is that
fails is planned by the sweep; what the calls are, the case decides.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import trio

from trio_runner.testing._faults import Fault


def _nothing_planned() -> Fault | None:
    return None


class Seam:
    """Stands between an operation and something that it calls, such as its store.

    A case that has seams (`Case.seams`) can be swept with *call faults*: the
    first call through the seam fails, then in another run the second, and so on.
    Each call passes the seam before it does anything::

        async def save(self, data):
            await self.seam.call()
            await self.store.save(data)
    """

    def __init__(self) -> None:
        #: What the calls raised that were planned to fail, in order.
        self.raised: list[BaseException] = []
        #: How many calls were planned never to return.
        self.hung: int = 0
        self._on_call: Callable[[], Fault | None] = _nothing_planned

    @property
    def failed(self) -> bool:
        """Whether a call has failed as planned."""
        return bool(self.raised or self.hung)

    def watch(self, on_call: Callable[[], Fault | None]) -> None:
        """Have ``on_call`` count each call, and say which fault is planned for it. For engines."""
        self._on_call = on_call

    def call_nowait(self) -> bool:
        """Let a synchronous call pass; no checkpoint.

        Returns:
          Whether the call may do its work. False: behave as if it never came to an
          end; what it promised to do later must not happen either.

        Raises:
          BaseException: what the planned fault makes of this call.
        """
        fault = self._on_call()
        if fault is None:
            return True
        if fault.error is None:
            self.hung += 1
            return False
        error = fault.error()
        self.raised.append(error)
        raise error

    async def call(self) -> None:
        """Let an asynchronous call pass; a checkpoint only if a call is to hang.

        Raises:
          BaseException: what the planned fault makes of this call; a call that is
            to hang ends when it is cancelled.
        """
        if not self.call_nowait():
            await hang()


async def hang() -> None:
    """Wait until cancelled.

    It wakes at growing intervals, since a second fault can land only where a task steps.
    """
    for pause in itertools.accumulate(itertools.repeat(2.0), operator.mul, initial=1.0):
        await trio.sleep(pause)
