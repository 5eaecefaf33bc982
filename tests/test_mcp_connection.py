"""The owner of a connection: a failure of any shape is kept, and never ends the run."""

import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from mcp.server import MCPServer

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
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


# --- Ctrl-C ---------------------------------------------------------------------


def run_with_ctrl_c(main: Callable[[], Awaitable[None]]) -> None:
    """Run ``main`` where SIGINT is trio's to handle."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_ctrl_c_that_strikes_in_a_server_in_memory_ends_the_program() -> None:
    server = MCPServer("s")

    @server.tool()
    async def strike() -> str:
        signal.raise_signal(signal.SIGINT)
        return "went on"

    async def main() -> None:
        made = McpToolset.in_memory(server)
        model = ScriptedModel([[call("strike")], "went on"])
        async with tr.ToolAgent("a", model=model, tools=[made]) as agent:
            await agent.generate("go")

    with pytest.raises(KeyboardInterrupt):
        run_with_ctrl_c(main)


@pytest.mark.parametrize("required", [True, False])
def test_a_ctrl_c_at_the_start_of_a_server_in_memory_ends_the_program(*, required: bool) -> None:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None]:
        signal.raise_signal(signal.SIGINT)
        yield

    went_on: list[str] = []

    async def main() -> None:
        made = McpToolset.in_memory(MCPServer("s", lifespan=lifespan), required=required)
        async with made:
            went_on.append("it is entered")

    with pytest.raises(KeyboardInterrupt):
        run_with_ctrl_c(main)
    assert went_on == []


def misnested(cause: BaseException) -> RuntimeError:
    """What trio raises when ``cause`` kept somebody from leaving a scope."""
    caught: list[RuntimeError] = []

    async def main() -> None:
        outer, inner = trio.CancelScope(), trio.CancelScope()
        try:
            with outer:
                inner.__enter__()
                raise cause
        except RuntimeError as error:
            caught.append(error)

    trio.run(main)
    return caught[0]


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        SystemExit(3),
        BaseExceptionGroup("both", [OSError("wire cut"), KeyboardInterrupt()]),
        misnested(KeyboardInterrupt()),
        ExceptionGroup("a nursery's", [misnested(KeyboardInterrupt())]),
        misnested(misnested(KeyboardInterrupt())),
    ],
)
def test_what_would_end_the_program_reaches_the_main_task_and_no_waiter_hangs(
    error: BaseException,
) -> None:
    seen: list[str] = []

    async def enter() -> None:
        with pytest.raises(McpServerError, match="was interrupted by"):
            await toolset(Failing(at_once=error)).__aenter__()
        seen.append("told")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            try:
                await trio.sleep_forever()
            except KeyboardInterrupt:
                seen.append("main")

    run_with_ctrl_c(main)
    assert sorted(seen) == ["main", "told"]


def test_a_scope_that_something_else_kept_open_ends_no_program() -> None:
    error = misnested(ValueError("odd"))

    async def main() -> None:
        with pytest.raises(McpServerError, match="could not be started: RuntimeError"):
            await toolset(Failing(at_once=error)).__aenter__()
        await trio.lowlevel.checkpoint()

    run_with_ctrl_c(main)
