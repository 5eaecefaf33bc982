"""fastmcp's client through the bridge to a real fastmcp server, over stdio and over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import fastmcp
import pytest
import trio
from fastmcp.client.transports import StdioTransport

import trio_runner as tr
import trio_runner.events as ev
from trio_runner.testing import TOOLSET_RULES, ScriptedModel, call, check_toolset
from trio_runner_adapters.fastmcp import FastMcpToolset
from trio_runner_adapters.mcp import McpServerError

SERVER = Path(__file__).parent / "servers" / "fastmcp_server.py"
#: Seconds for what happens at once, on a machine that may be busy.
SOON = 60.0

MakeToolset = Callable[..., FastMcpToolset]


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server on loopback: its address and its notes."""
    notes, port = tmp_path_factory.mktemp("http") / "notes", free_port()
    process = subprocess.Popen([sys.executable, str(SERVER), str(notes), str(port)])
    deadline = time.monotonic() + SOON
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/mcp", notes
    process.kill()
    process.wait()


@pytest.fixture(params=["stdio", "http"])
def served(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Callable[[], fastmcp.Client[Any]], Path]:
    """What makes a client, and the server's notes."""
    if request.param == "http":
        address, notes = request.getfixturevalue("http")
        return (lambda: fastmcp.Client(address)), notes
    return (lambda: over_stdio(tmp_path / "notes")), tmp_path / "notes"


def over_stdio(notes: Path) -> fastmcp.Client[Any]:
    transport = StdioTransport(sys.executable, [str(SERVER), str(notes)], keep_alive=False)
    return fastmcp.Client(transport)


def told(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


async def noted(notes: Path, text: str) -> None:
    with trio.fail_after(SOON):
        while text not in told(notes):
            await trio.sleep(0.005)


class Watch:
    """Keeps a turn's events."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.events.append(event)


def agent_of(toolset: FastMcpToolset, *script: Any, **settings: Any) -> tr.ToolAgent:
    return tr.ToolAgent("a", model=ScriptedModel([*script, "done"]), tools=[toolset], **settings)


def results_of(agent: tr.ToolAgent) -> list[tuple[tr.CallStatus, str]]:
    return [(each.status, each.text) for message in agent.history for each in message.tool_results]


async def test_a_turn_calls_in_parallel_with_progress_and_gets_errors_as_results(
    served: tuple[Callable[[], fastmcp.Client[Any]], Path],
) -> None:
    make, _ = served
    toolset, watch = FastMcpToolset(make, name="small", prefix="s"), Watch()
    meeting = [call("s__meet", me=f"{os.getpid()} {number}", others=4) for number in range(4)]
    more = [call("s__count", steps=3), call("s__fail"), call("s__add", one=2, other=3)]
    agent = agent_of(toolset, meeting, more, observers=[watch])
    with trio.fail_after(SOON):
        async with agent:
            await agent.generate("go")
            tools = await toolset.list_tools()
            assert tools is await toolset.list_tools()
    results = results_of(agent)
    assert [status for status, _ in results[:4]] == [tr.CallStatus.OK] * 4
    assert results[4] == (tr.CallStatus.OK, "counted")
    assert results[5][0] is tr.CallStatus.ERROR
    assert "on purpose" in results[5][1]
    assert results[6] == (tr.CallStatus.OK, "5")
    assert agent.history[-2].tool_results[2].structured_content == {"result": 5}
    progress = [each for each in watch.events if type(each) is ev.CallProgress]
    assert [(each.progress, each.total, each.message) for each in progress] == [
        (number, 3, f"step {number}") for number in (1, 2, 3)
    ]
    names = {tool.name for tool in tools}
    assert names == {"s__add", "s__meet", "s__count", "s__wait", "s__fail", "s__die"}
    [add] = [tool for tool in tools if tool.name == "s__add"]
    assert (add.description, add.bare_name) == ("Add two numbers.", "add")
    assert set(add.input_schema["properties"]) == {"one", "other"}


async def test_a_cancel_reaches_the_server_and_the_toolset_works_on(
    served: tuple[Callable[[], fastmcp.Client[Any]], Path],
) -> None:
    make, notes = served
    toolset = FastMcpToolset(make, name="small")
    me = f"cancelled {time.monotonic_ns()}"
    with trio.fail_after(SOON):
        async with toolset:
            agent = agent_of(toolset, call("wait", me=me))
            async with agent, trio.open_nursery() as nursery:
                nursery.start_soon(agent.generate, "go")
                await noted(notes, f"begun {me}")
                nursery.cancel_scope.cancel()
            assert [status for status, _ in results_of(agent)] == [tr.CallStatus.INTERRUPTED]
            with trio.fail_after(SOON):
                while not any(line.endswith(me) for line in told(notes)[1:] if "begun" not in line):
                    await trio.sleep(0.005)
            after = agent_of(toolset, call("add", one=1, other=1))
            async with after:
                await after.generate("go")
            assert results_of(after) == [(tr.CallStatus.OK, "2")]


async def test_closing_ends_a_call_in_flight_as_interrupted(
    served: tuple[Callable[[], fastmcp.Client[Any]], Path],
) -> None:
    make, notes = served
    toolset = FastMcpToolset(make, name="small")
    me = f"closed {time.monotonic_ns()}"

    async def run() -> None:
        [wait] = [tool for tool in await toolset.list_tools() if tool.name == "wait"]
        results.append(await wait.call({"me": me}, cast("Any", None)))

    results: list[Any] = []
    with trio.fail_after(SOON):
        async with trio.open_nursery() as nursery, toolset:
            nursery.start_soon(run)
            await noted(notes, f"begun {me}")
    [result] = results
    assert result.status is tr.CallStatus.INTERRUPTED
    assert "not known whether it took effect" in result.text
    with pytest.raises(tr.NotEnteredError):
        await toolset.list_tools()


async def test_a_server_that_dies_interrupts_its_call_and_later_ones_say_so(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    toolset = FastMcpToolset(lambda: over_stdio(notes), name="mortal")
    agent = agent_of(toolset, call("die"), call("add", one=1, other=1))
    with trio.fail_after(SOON):
        async with agent:
            await agent.generate("go")
    (first, why), (second, later) = results_of(agent)
    assert first is tr.CallStatus.INTERRUPTED, why
    assert second in (tr.CallStatus.ERROR, tr.CallStatus.INTERRUPTED)
    assert "'mortal'" in later


async def test_no_process_and_no_thread_is_left(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    toolset = FastMcpToolset(lambda: over_stdio(notes), name="small")
    with trio.fail_after(SOON):
        async with toolset:
            pass
        [line] = told(notes)
        pid = int(line.removeprefix("pid "))
        while Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid):
            await trio.sleep(0.005)
    assert not [each for each in threading.enumerate() if "asyncio bridge" in each.name]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def test_a_server_that_cannot_be_reached_says_why() -> None:
    toolset = FastMcpToolset(
        lambda: fastmcp.Client(f"http://127.0.0.1:{free_port()}/mcp"), name="nowhere"
    )
    with trio.fail_after(SOON):
        with pytest.raises(McpServerError, match="'nowhere' could not be started") as caught:
            async with toolset:
                pass
    assert caught.value.server == "nowhere"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"prefix": "a b"}, ValueError),
        ({"call_timeout": -1}, ValueError),
        ({"name": ""}, ValueError),
    ],
)
def test_arguments_are_checked_at_once(settings: dict[str, Any], error: type[Exception]) -> None:
    given: dict[str, Any] = {"name": "x", **settings}
    with pytest.raises(error):
        FastMcpToolset(lambda: fastmcp.Client("http://127.0.0.1/mcp"), **given)


@pytest.mark.slow
def test_the_fastmcp_toolset_keeps_every_promise(http: tuple[str, Path]) -> None:
    address, _ = http
    report = check_toolset(
        lambda: FastMcpToolset(lambda: fastmcp.Client(address), name="small"),
        calls=[("add", {"one": 1, "other": 2}), ("count", {"steps": 2})],
        real_time=True,
        max_positions=5,
    )
    report.raise_if_failed()
    assert [rule.status for rule in report.rules] == ["ok"] * len(TOOLSET_RULES), report.render()


@pytest.mark.slow
def test_leaving_ends_a_call_that_the_server_never_answers(http: tuple[str, Path]) -> None:
    address, _ = http
    report = check_toolset(
        lambda: FastMcpToolset(lambda: fastmcp.Client(address), name="small"),
        calls=[("wait", {"me": "left"})],
        rules=["leaving_ends_calls_in_flight"],
        real_time=True,
    )
    report.raise_if_failed()


async def test_leaving_once_too_often_changes_nothing(tmp_path: Path) -> None:
    toolset = FastMcpToolset(lambda: over_stdio(tmp_path / "notes"), name="small")
    with trio.fail_after(SOON):
        for _ in range(2):
            with pytest.raises(tr.NotEnteredError, match="left more often than it was entered"):
                await toolset.__aexit__(None, None, None)
            async with toolset:
                assert await toolset.list_tools()
            with pytest.raises(tr.NotEnteredError, match="not running"):
                await toolset.list_tools()
