"""The owner of a connection: a failure of any shape is kept, and never ends the run."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from trio_runner_adapters.mcp import McpServerError, McpToolset
from trio_runner_adapters.mcp._connection import Link, OnEnd


class Failing:
    """A connector whose link fails as told."""

    close_timeout = 1.0

    def __init__(self, *, at_once: BaseException | None = None) -> None:
        self.at_once = at_once
        self.left = False

    def connect(self, name: str, on_end: OnEnd) -> AbstractAsyncContextManager[Link]:
        return self._link()

    @asynccontextmanager
    async def _link(self) -> AsyncGenerator[Any]:
        if self.at_once is not None:
            raise self.at_once
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            # A loss that coincides with a cancel arrives as a group of both.
            raise BaseExceptionGroup("both", [cancelled, OSError("wire cut")]) from None
        finally:
            self.left = True
        yield


def toolset(connector: Failing, start_timeout: float = 5.0) -> McpToolset:
    return McpToolset(
        connector,
        name="bad",
        start_timeout=start_timeout,
        call_timeout=None,
        mode="auto",
        prefix=None,
    )


async def stray_cancelled() -> trio.Cancelled:
    kept: list[trio.Cancelled] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept.append(error)
            raise
    return kept[0]


@pytest.mark.parametrize(
    "error",
    [
        OSError("wire cut"),
        ExceptionGroup("one", [ExceptionGroup("deep", [OSError("wire cut")])]),
    ],
)
async def test_an_error_at_the_start_however_deep_is_told_to_who_enters(error: Exception) -> None:
    with pytest.raises(McpServerError, match="'bad' could not be started: OSError: wire cut"):
        await toolset(Failing(at_once=error)).__aenter__()


async def test_a_stray_cancellation_is_an_error_like_any_other() -> None:
    stray = await stray_cancelled()
    with pytest.raises(McpServerError, match="could not be started: Cancelled"):
        await toolset(Failing(at_once=stray)).__aenter__()
    group = BaseExceptionGroup("both", [stray, OSError("wire cut")])
    with pytest.raises(McpServerError, match="could not be started: OSError: wire cut"):
        await toolset(Failing(at_once=group)).__aenter__()
    await trio.testing.wait_all_tasks_blocked()  # where a cancelled run would show


async def test_a_start_that_times_out_and_fails_at_once_is_one_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connector = Failing()
    with pytest.raises(McpServerError, match="could not be started: OSError: wire cut"):
        await toolset(connector).__aenter__()
    assert connector.left


def test_a_failure_at_the_end_of_the_run_does_not_crash_it() -> None:
    connector = Failing()

    async def main() -> None:
        made = toolset(connector)
        connection = await made._upkeep.join()
        await trio.testing.wait_all_tasks_blocked()
        assert not connection.settled.is_set()

    trio.run(main)
    assert connector.left
