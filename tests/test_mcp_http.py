"""`McpToolset` over HTTP, over SSE and in memory, with the SDK's own server behind a real uvicorn.

The web servers run in threads of this process, each with its own asyncio loop.
"""

import contextlib
import functools
import logging
import math
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from typing import Any, Literal

import anyio
import attrs
import pytest
import trio
import trio.testing
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context as ServerContext
from starlette.applications import Starlette

import trio_runner as tr
from trio_runner.testing import (
    TOOLSET_RULES,
    ScriptedModel,
    call,
    check_agent,
    check_toolset,
)
from trio_runner_adapters.mcp import McpServerError, McpToolset

#: Seconds after which a test takes something for hanging.
LONG = 30.0
Transport = Literal["http", "json", "sse", "memory"]


@attrs.define(eq=False)
class Notes:
    """What the tools of a server did, seen from the test's own thread."""

    seen: list[str] = attrs.Factory(list[str])

    async def wait(self, text: str, times: int = 1) -> None:
        with trio.fail_after(LONG):
            while self.seen.count(text) < times:
                await trio.sleep(0.005)


def make_server(notes: Notes) -> MCPServer:
    """A server with a few tools. They run on asyncio or on trio."""
    server = MCPServer("real", log_level="ERROR")

    @server.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def wait() -> str:
        """Wait until it is cancelled."""
        notes.seen.append("waiting")
        try:
            await anyio.sleep(math.inf)
        finally:
            notes.seen.append("stopped")
        return "never"

    @server.tool()
    async def steps(count: int, ctx: ServerContext) -> str:
        """Report progress."""
        for number in range(count):
            await ctx.report_progress(number, count, f"step {number}")
        return "all steps"

    @server.tool()
    async def big(size: int) -> str:
        """Return much text."""
        return "x" * size

    @server.tool()
    async def grow(name: str, ctx: ServerContext) -> str:
        """Add a tool, and tell both kinds of clients."""

        async def added() -> str:
            return name

        server.add_tool(added, name=name, description="new")
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return "grown"

    return server


@contextlib.contextmanager
def running(app: Starlette, port: int = 0) -> Generator[int]:
    """Serve ``app`` in a thread; gives its port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        config = uvicorn.Config(
            app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(LONG)
            assert not thread.is_alive()


@attrs.frozen
class Place:
    """Where a server is, and what makes toolsets of it."""

    notes: Notes
    make: Callable[..., McpToolset]


@contextlib.contextmanager
def serving(transport: Transport) -> Generator[Place]:
    notes = Notes()
    server = make_server(notes)
    match transport:
        case "http":
            with running(server.streamable_http_app()) as port:
                url = f"http://127.0.0.1:{port}/mcp"
                yield Place(notes, functools.partial(McpToolset.http, url, name="s"))
        case "json":
            with running(server.streamable_http_app(json_response=True)) as port:
                url = f"http://127.0.0.1:{port}/mcp"
                yield Place(notes, functools.partial(McpToolset.http, url, name="s"))
        case "sse":
            with running(server.sse_app()) as port:
                url = f"http://127.0.0.1:{port}/sse"
                yield Place(notes, functools.partial(McpToolset.sse, url, name="s"))
        case "memory":
            yield Place(notes, functools.partial(McpToolset.in_memory, server, name="s"))


@pytest.fixture(autouse=True)
def quiet_libraries(caplog: pytest.LogCaptureFixture) -> None:
    """The servers log in their threads; a test's records are ours alone."""
    for name in ("mcp", "httpx2", "sse_starlette"):
        caplog.set_level(logging.CRITICAL, name)


def over(*transports: Transport) -> pytest.MarkDecorator:
    """Run a test over these transports only."""
    return pytest.mark.parametrize("place", transports, indirect=True)


@pytest.fixture(params=["http", "json", "sse", "memory"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with serving(request.param) as found:
        yield found


class Context:
    """The part of a `ToolContext` that the toolset uses."""

    def __init__(self) -> None:
        self.progress: list[float] = []

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        self.progress.append(progress)


async def called(
    made: McpToolset, tool_name: str, context: Any = None, **arguments: Any
) -> tr.ToolResult:
    tools = {tool.name: tool for tool in await made.list_tools()}
    told: Any = context or Context()
    result = await tools[tool_name].call(arguments, told)
    assert type(result) is tr.ToolResult
    return result


MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


# --- every transport ------------------------------------------------------------


@MODES
async def test_tools_are_listed_and_called_side_by_side(place: Place, mode: str) -> None:
    sums: dict[int, str] = {}
    with trio.fail_after(LONG):
        async with place.make(mode=mode) as made:
            tools = await made.list_tools()
            assert await made.list_tools() is tools
            assert "add" in {tool.name for tool in tools}

            async def add(number: int) -> None:
                sums[number] = (await called(made, "add", a=number, b=1)).text

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(add, number)
    assert sums == {number: str(number + 1) for number in range(20)}


# The SDK's server does not notice a client that hangs up while it makes a plain JSON answer.
@over("http", "sse", "memory")
@MODES
async def test_kD1_a_cancel_ends_the_call_at_once_and_stops_the_tool(
    place: Place, mode: str
) -> None:
    with trio.fail_after(LONG):
        async with place.make(mode=mode) as made:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(called, made, "wait")
                    await place.notes.wait("waiting")
                    scope.cancel()
            assert scope.cancelled_caught
            await place.notes.wait("stopped")
            assert (await called(made, "add", a=1, b=2)).text == "3"


@over("http", "sse", "memory")
@MODES
async def test_progress_is_complete_and_in_order(place: Place, mode: str) -> None:
    context = Context()
    with trio.fail_after(LONG):
        async with place.make(mode=mode) as made:
            assert (await called(made, "steps", context, count=30)).text == "all steps"
            assert context.progress == [float(number) for number in range(30)]


@MODES
async def test_kD2_leaving_ends_the_calls_in_flight(place: Place, mode: str) -> None:
    results: list[tr.ToolResult] = []
    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery, place.make(mode=mode) as made:

            async def wait() -> None:
                results.append(await called(made, "wait"))

            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await place.notes.wait("waiting", 2)
    assert [each.status for each in results] == ["interrupted", "interrupted"]


async def test_it_may_be_entered_again_after_it_was_left(place: Place) -> None:
    made = place.make()
    with trio.fail_after(LONG):
        for _ in range(3):
            async with made:
                assert (await called(made, "add", a=1, b=2)).text == "3"


@over("http", "json", "sse")
async def test_kD10_an_answer_beyond_the_cap_is_that_calls_error(place: Place) -> None:
    with trio.fail_after(LONG):
        async with place.make(max_message_bytes=1_500_000) as made:
            assert len((await called(made, "big", size=1_200_000 // 2)).text) == 600_000
            with pytest.raises(tr.ToolError, match="malformed"):
                await called(made, "big", size=2_000_000)
            assert (await called(made, "add", a=1, b=2)).text == "3"


# --- lists that change ----------------------------------------------------------


@over("http", "sse", "memory")
@MODES
async def test_a_changed_list_is_taken_up_at_the_next_look(place: Place, mode: str) -> None:
    with trio.fail_after(LONG):
        async with place.make(mode=mode) as made:
            before = await made.list_tools()
            assert await made.list_tools() is before
            await called(made, "grow", name="fresh")
            # Over HTTP the news comes by another way than the answer.
            while (after := await made.list_tools()) is before:
                await trio.sleep(0.01)
            assert {tool.name for tool in after} - {tool.name for tool in before} == {"fresh"}
            assert await made.list_tools() is after
            assert (await called(made, "fresh")).text == "fresh"
            # What a batch was planned with still calls what it meant.
            context: Any = Context()
            result = await before[0].call({"a": 1, "b": 2}, context)
            assert type(result) is tr.ToolResult
            assert result.text == "3"


async def test_a_change_is_offered_to_the_model_at_its_next_call() -> None:
    server = make_server(Notes())
    model = ScriptedModel([[call("grow", name="fresh")], [call("fresh")], "done"])
    made = McpToolset.in_memory(server)
    async with tr.ToolAgent("a", model=model, tools=[made]) as agent:
        await agent.generate("go")
    (result,) = agent.history[4].tool_results
    assert (result.status, result.text) == ("ok", "fresh")


# --- a server that goes away ----------------------------------------------------


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_that_is_not_there_is_named_with_the_reason(transport: Transport) -> None:
    with socket.socket() as taken:  # bound and not listening: it refuses
        taken.bind(("127.0.0.1", 0))
        make = McpToolset.http if transport == "http" else McpToolset.sse
        made = make(f"http://127.0.0.1:{taken.getsockname()[1]}/mcp", name="s")
        with trio.fail_after(LONG):
            with pytest.raises(McpServerError, match=r"'s' could not be started.*reached"):
                await made.__aenter__()


@MODES
def test_kD4_a_restart_between_two_calls_is_not_noticed(mode: str) -> None:
    # Made outside trio: the SDK's server binds itself to the loop it is made under.
    apps = [make_server(Notes()).streamable_http_app() for _ in range(2)]
    with contextlib.ExitStack() as first:
        port = first.enter_context(running(apps[0]))

        async def main() -> None:
            url = f"http://127.0.0.1:{port}/mcp"
            with trio.fail_after(LONG):
                async with McpToolset.http(url, name="s", mode=mode) as made:
                    tools = await made.list_tools()
                    assert (await called(made, "add", a=1, b=2)).text == "3"
                    await trio.to_thread.run_sync(first.close)
                    with running(apps[1], port):
                        assert (await called(made, "add", a=3, b=4)).text == "7"
                        assert await made.list_tools() is tools

        trio.run(main)


async def test_an_in_memory_server_is_ended_with_its_lifespan() -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None]:
        seen.append("up")
        yield
        seen.append("down")

    server = MCPServer("m", lifespan=lifespan)
    made = McpToolset.in_memory(server)
    assert made.name == "m"
    async with made:
        assert seen == ["up"]
    assert seen == ["up", "down"]


async def test_an_in_memory_server_whose_lifespan_does_not_end_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncGenerator[None]:
        yield
        await anyio.sleep(math.inf)

    made = McpToolset.in_memory(MCPServer("m", lifespan=lifespan), close_timeout=1.0)
    async with made:
        start = trio.current_time()
    assert trio.current_time() - start <= 1.0 + 2.0


# --- what the constructors refuse -----------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"url": "ftp://host/x"}, ValueError),
        ({"url": "host/mcp"}, ValueError),
        ({"url": "http://[::1/mcp"}, ValueError),
        ({"url": 7}, TypeError),
        ({"headers": ["a"]}, TypeError),
        ({"headers": {"a": 1}}, TypeError),
        ({"headers": {"a b": "c"}}, ValueError),
        ({"headers": {"a": "b\r\nc: d"}}, ValueError),
        ({"headers": {"a": " secret"}}, ValueError),
        ({"headers": {"a": "secr\xe9t secret"}}, ValueError),
        ({"url": "http://host:99999/"}, ValueError),
        ({"url": "http://host/\0"}, ValueError),
        ({"auth": "secret"}, TypeError),
        ({"start_timeout": 0}, ValueError),
        ({"call_timeout": -1}, ValueError),
        ({"close_timeout": None}, TypeError),
        ({"max_message_bytes": 0}, ValueError),
        ({"mode": "new"}, ValueError),
        ({"prefix": "a b"}, ValueError),
        ({"required": 1}, TypeError),
    ],
)
@pytest.mark.parametrize("make", [McpToolset.http, McpToolset.sse])
def test_a_wrong_option_is_refused_at_set_up(
    make: Callable[..., McpToolset], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        make(**{"url": "http://host/mcp", **options})
    assert "secret" not in str(caught.value)


def test_what_is_no_server_is_refused_at_set_up() -> None:
    with pytest.raises(TypeError, match="MCPServer"):
        McpToolset.in_memory("server")  # pyright: ignore[reportArgumentType]


def test_a_name_shows_nothing_secret_of_the_url() -> None:
    made = McpToolset.http("https://me:pass@host:8/mcp?key=1")
    assert made.name == "host:8"


# --- the conformance kit and the cancellation suite -----------------------------


CALLS = [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]


@pytest.mark.slow
def test_a_toolset_over_http_keeps_every_promise() -> None:
    with serving("http") as place:
        report = check_toolset(place.make, calls=CALLS, real_time=True, max_positions=5)
    report.raise_if_failed()
    assert [rule.status for rule in report.rules] == ["ok"] * len(TOOLSET_RULES), report.render()


def test_a_toolset_in_memory_keeps_every_promise() -> None:
    def make() -> McpToolset:
        return McpToolset.in_memory(make_server(Notes()))

    report = check_toolset(make, calls=CALLS, seeds=range(1), max_positions=12)
    report.raise_if_failed()
    assert [rule.status for rule in report.rules] == ["ok"] * len(TOOLSET_RULES), report.render()


def in_memory_agent(**given: Any) -> tr.ToolAgent:
    made = McpToolset.in_memory(make_server(Notes()))
    return tr.ToolAgent("swept", tools=[made], **given)


SCRIPT = [
    [call("add", a=1, b=2), call("add", a=3, b=4), call("steps", count=2)],
    [call("add", a=5, b=6), call("nothing")],
    "the answer",
    "never asked for",
]


@pytest.mark.slow
def test_a_turn_with_an_in_memory_toolset_keeps_the_contract() -> None:
    def make(journal: Any, session: Any, model: Any) -> tr.ToolAgent:
        return in_memory_agent(journal=journal, session=session, model=model)

    report = check_agent(
        make, SCRIPT, drives=["until_done"], delays=[0.0], seeds=range(1), max_positions=25
    )
    report.raise_if_failed()
