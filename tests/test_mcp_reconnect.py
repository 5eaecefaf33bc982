"""A server process behind a URL dies and comes back: what its calls say, and what is run twice."""

import socket
import sys
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.mcp import McpToolset

SERVER = Path(__file__).parent / "servers" / "web_server.py"
#: Seconds after which a test takes something for hanging.
LONG = 60.0
Transport = Literal["http", "sse"]
MODES = pytest.mark.parametrize(
    ("transport", "mode"), [("http", "auto"), ("http", "legacy"), ("sse", "legacy")]
)


class Context:
    """The part of a `ToolContext` that the toolset uses."""

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        pass


@attrs.define(eq=False)
class Server:
    """A server that can be killed and started again at the same port."""

    transport: Transport
    notes: Path
    port: int = 0
    process: trio.Process | None = None

    def __attrs_post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    async def start(self) -> None:
        args = [sys.executable, str(SERVER), self.transport, str(self.port), str(self.notes)]
        if self.process is not None:
            await self.process.wait()
        self.process = await trio.lowlevel.open_process(args)
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", self.port)).aclose()
            except OSError:
                assert self.process.poll() is None
                await trio.sleep(0.02)
            else:
                return

    async def stop(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def wait_noted(self, text: str, times: int = 1) -> None:
        while self.noted().count(text) < times:
            await trio.sleep(0.01)

    def toolset(self, **options: Any) -> McpToolset:
        make = McpToolset.sse if self.transport == "sse" else McpToolset.http
        url = f"http://127.0.0.1:{self.port}/{'sse' if self.transport == 'sse' else 'mcp'}"
        options = {"name": "web", "start_timeout": LONG, **options}
        return make(url, **options)


async def called(made: McpToolset, tool_name: str, **arguments: Any) -> tr.ToolResult:
    tools = {tool.name: tool for tool in await made.list_tools()}
    context: Any = Context()
    result = await tools[tool_name].call(arguments, context)
    assert type(result) is tr.ToolResult
    return result


@pytest.mark.slow
@MODES
async def test_kD4_a_server_that_dies_in_a_call_is_used_again_when_it_is_back(
    tmp_path: Path, transport: Transport, mode: str
) -> None:
    with trio.fail_after(LONG):
        server = Server(transport, tmp_path / "notes")
        await server.start()
        async with server.toolset(mode=mode) as made:
            tools = await made.list_tools()
            assert (await called(made, "echo", text="1")).text == "1"
            waiting: list[tr.ToolResult] = []

            async def wait() -> None:
                waiting.append(await called(made, "wait"))

            async with trio.open_nursery() as calls:
                calls.start_soon(wait)
                await server.wait_noted("wait")
                lost = await called(made, "die")
            assert (lost.status, waiting[0].status) == ("interrupted", "interrupted")
            assert "outcome is unknown" in lost.text

            with pytest.raises(tr.ToolError, match=r"'web'.*reached.*nothing was sent"):
                await called(made, "echo", text="nobody there")
            assert await made.list_tools() is tools

            await server.start()
            results: list[str] = []

            async def echo(text: str) -> None:
                results.append((await called(made, "echo", text=text)).text)

            async with trio.open_nursery() as calls:
                for number in range(5):
                    calls.start_soon(echo, f"back {number}")
            assert sorted(results) == [f"back {number}" for number in range(5)]
            assert await made.list_tools() is tools
        await server.stop()
    # Nothing was made twice.
    noted = server.noted()
    assert sorted(noted) == sorted(
        ["echo 1", "wait", "die", *[f"echo back {number}" for number in range(5)]]
    )


@pytest.mark.slow
async def test_a_turn_goes_on_after_a_lost_connection_and_its_record_is_true(
    tmp_path: Path,
) -> None:
    model = ScriptedModel([[call("die"), call("wait")], [call("echo", text="x")], "done"])
    with trio.fail_after(LONG):
        server = Server("http", tmp_path / "notes")
        await server.start()
        async with tr.ToolAgent("a", model=model, tools=[server.toolset()]) as agent:
            assert (await agent.generate("go")).text == "done"
        assert server.process is not None
        await server.process.wait()
    first = [result.status for result in agent.history[2].tool_results]
    second = [result.status for result in agent.history[4].tool_results]
    assert (first[0], second) == ("interrupted", ["error"])
    assert "nothing was sent" in agent.history[4].tool_results[0].text
