"""`McpToolset` against servers that do not read, write without end, or break their answers.

Real processes over real pipes, in real time; the bounds are generous, since they
only tell waiting from not waiting.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp_types as m
import pytest
import trio
import trio.testing
from mcp.shared.message import SessionMessage

import trio_runner as tr
import trio_runner_adapters.mcp._stdio as stdio
from trio_runner_adapters.mcp import McpToolset

SERVER = Path(__file__).parent / "servers" / "hostile_server.py"
#: Seconds after which a test takes something for hanging.
LONG = 30.0


class Context:
    def report_progress(self, *_: object) -> None:
        pass


def hostile(tmp_path: Path, mode: str, **options: Any) -> McpToolset:
    args = ["-S", str(SERVER), mode, str(tmp_path / "notes")]
    options = {
        "name": "bad",
        "start_timeout": LONG,
        "close_timeout": 2.0,
        "mode": "legacy",
    } | options
    return McpToolset.stdio(sys.executable, args, **options)


async def call(toolset: McpToolset, name: str, **arguments: Any) -> tr.ToolResult:
    tools = {tool.name: tool for tool in await toolset.list_tools()}
    context: Any = Context()
    result: Any = await tools[name].call(arguments, context)
    return result


def living(tmp_path: Path) -> bool:
    """Whether the server's process is there and no zombie."""
    pid = (tmp_path / "notes").read_text().split()[0]
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize(("name", "said"), [("cut", "to which call"), ("huge", "100000 bytes")])
async def test_kD1_a_broken_answer_ends_its_call_whatever_the_order_of_its_members(
    tmp_path: Path, name: str, said: str
) -> None:
    toolset = hostile(tmp_path, "typescript", max_message_bytes=100_000)
    with trio.fail_after(LONG):
        async with toolset:
            with pytest.raises(tr.ToolError, match=said):
                await call(toolset, name)
            assert (await call(toolset, "echo", text="on")).text == "on"


async def test_kD1_a_cancel_is_immediate_although_the_server_reads_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toolset = hostile(tmp_path, "deaf")
    async with toolset:
        await call(toolset, "echo")  # now it reads no more
        for count in (300, 1, 1):  # more than the pipe and the queue hold
            with trio.move_on_after(0.3) as scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(count):
                        nursery.start_soon(lambda: call(toolset, "echo", text="x" * 1000))
            assert scope.cancelled_caught
            assert trio.current_time() - scope.deadline < 2.0  # of 5 that the SDK would wait
    assert "gave up" not in caplog.text
    assert not living(tmp_path)


class Pipe:
    """Takes what is written to it, once it is open."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.written: list[bytes] = []

    async def send_all(self, data: bytes) -> None:
        await self.open.wait()
        self.written.append(data)


def queue(pipe: Pipe) -> stdio.StdioServer:
    process: Any = SimpleNamespace(stdin=pipe, stdout=pipe, stderr=None, pid=0)
    command = stdio.StdioCommand("x", (), None, None, "tail", 1000, 1.0)
    return stdio.StdioServer(process, command, "x", lambda: None)


def request(number: int) -> SessionMessage:
    return SessionMessage(m.JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/call"))


def taking_back(number: int) -> SessionMessage:
    params = {"requestId": number}
    return SessionMessage(
        m.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
    )


async def test_a_request_that_was_taken_back_in_time_is_never_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pipe = Pipe()
    server = queue(pipe)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.write_messages)
        await server.send(request(1))
        await trio.testing.wait_all_tasks_blocked()  # being written: too late for the first
        for number in range(2, 130):
            await server.send(request(number))
        with trio.move_on_after(1) as waiting:
            await server.send(request(130))  # the queue is full
        assert waiting.cancelled_caught
        with trio.fail_after(0.5):
            for number in range(1, 131):
                await server.send(taking_back(number))
        pipe.open.set()
        await trio.testing.wait_all_tasks_blocked()
        await server.send(request(131))
        server.close_sending()
    ids = [json.loads(each).get("id") for each in pipe.written]
    assert ids in ([1, 131], [1, None, 131])  # the first one's cancel, if there was room


@pytest.mark.parametrize("kind", ["blank", "ping", "changed"])
async def test_a_flood_holds_up_nobody_and_the_close_stays_bounded(
    tmp_path: Path, kind: str
) -> None:
    toolset = hostile(tmp_path, "flood")
    longest = 0.0
    async with toolset:
        before = trio.lowlevel.current_statistics().tasks_living
        await call(toolset, kind)
        last = start = trio.current_time()
        while last < start + 1.0:
            await trio.sleep(0.001)
            now = trio.current_time()
            longest, last = max(longest, now - last), now
        assert trio.lowlevel.current_statistics().tasks_living - before < 150
        leaving = trio.current_time()
    assert trio.current_time() - leaving < 2.0 + 2.0
    assert longest < 0.5
    assert not living(tmp_path)
