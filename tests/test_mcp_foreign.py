"""`McpToolset` against MCP servers that others wrote, in JavaScript and in Python.

The servers of npm are installed by ``foreign/install.py``, those of PyPI with the
tests' requirements. Each test prints what it took.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.mcp import McpToolset

HERE = Path(__file__).parent
PROC = Path("/proc")
#: Seconds after which a test takes something for hanging.
LONG: Final = 120.0
#: How many calls each server gets at once.
AT_ONCE: Final = 20
#: Marks a server's processes, whatever they start.
MARK: Final = "TRIO_RUNNER_TEST_SERVER"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PROC / "self" / "environ").exists(), reason="looks for processes in /proc"
    ),
]

Say = Callable[[str], None]


# --- what is installed ----------------------------------------------------------


def require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        package = module.replace("_", "-")
        pytest.skip(f"{package} is not installed (python -m pip install {package})")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Print a line that is seen also when the test passes."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="", flush=True)

    return line


# --- the servers ----------------------------------------------------------------


def processes(mark: str) -> set[int]:
    """The processes that carry the mark in their environment."""
    marked = f"{MARK}={mark}".encode()
    found: set[int] = set()
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if marked in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def alive_in(group: int) -> set[int]:
    """The processes of a group, without those that only wait to be reaped."""
    found: set[int] = set()
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # "pid (name) state parent group ...", and the name may hold anything.
                state, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(its) == group and state not in "ZX":
                    found.add(int(entry.name))
    return found


@attrs.frozen
class Place:
    """A server that may be connected to, and what to ask it.

    Attributes:
      tools: some of the tools it must list, by their own names.
      questions: tool, arguments and a part of the right answer.
    """

    toolset: McpToolset
    mark: str
    tools: frozenset[str]
    questions: list[tuple[str, dict[str, Any], str]]


class Start(Protocol):
    """Prepares a server in a folder; it is entered by the test."""

    def __call__(
        self, folder: Path, npm: dict[str, Any], mode: str
    ) -> contextlib.AbstractAsyncContextManager[Place]: ...


def script_of(npm: dict[str, Any], package: str) -> str:
    return str(Path(npm["modules"]) / "@modelcontextprotocol" / package / "dist" / "index.js")


def sums() -> list[tuple[str, dict[str, Any], str]]:
    return [("get-sum", {"a": each, "b": 1000}, str(each + 1000)) for each in range(AT_ONCE)]


EVERYTHING_TOOLS = frozenset({"echo", "get-sum", "trigger-long-running-operation"})


def stdio(command: str, args: list[str], mode: str, **env: str) -> tuple[McpToolset, str]:
    mark = uuid.uuid4().hex
    toolset = McpToolset.stdio(
        command, args, name="foreign", mode=mode, start_timeout=60.0, env={MARK: mark, **env}
    )
    return toolset, mark


@contextlib.asynccontextmanager
async def everything(folder: Path, npm: dict[str, Any], mode: str) -> AsyncGenerator[Place]:
    """The server that has something of everything, over stdio."""
    toolset, mark = stdio(npm["node"], [script_of(npm, "server-everything"), "stdio"], mode)
    yield Place(toolset, mark, EVERYTHING_TOOLS, sums())


@contextlib.asynccontextmanager
async def everything_http(folder: Path, npm: dict[str, Any], mode: str) -> AsyncGenerator[Place]:
    """The same over streamable HTTP; the test starts and ends it."""
    mark = uuid.uuid4().hex
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [npm["node"], script_of(npm, "server-everything"), "streamableHttp"]
    env = {**os.environ, "PORT": str(port), MARK: mark}
    with (folder / "log").open("wb") as log:
        process = await trio.lowlevel.open_process(command, stdout=log, stderr=log, env=env)
    try:
        while "listening" not in (folder / "log").read_text("utf-8"):
            assert process.returncode is None, (folder / "log").read_text("utf-8")
            await trio.sleep(0.02)
        toolset = McpToolset.http(f"http://127.0.0.1:{port}/mcp", name="foreign", mode=mode)
        yield Place(toolset, mark, EVERYTHING_TOOLS, sums())
        # It was told that the session is over.
        log_text = (folder / "log").read_text("utf-8")
        assert log_text.count("session termination") == log_text.count("Session initialized")
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10.0):
            await process.wait()


@contextlib.asynccontextmanager
async def filesystem(folder: Path, npm: dict[str, Any], mode: str) -> AsyncGenerator[Place]:
    """A folder's files."""
    questions: list[tuple[str, dict[str, Any], str]] = []
    for number in range(AT_ONCE):
        path = folder / f"{number}.txt"
        path.write_text(f"this is file {number}.")
        questions.append(("read_text_file", {"path": str(path)}, f"this is file {number}."))
    toolset, mark = stdio(npm["node"], [script_of(npm, "server-filesystem"), str(folder)], mode)
    yield Place(toolset, mark, frozenset({"read_text_file", "write_file"}), questions)


@contextlib.asynccontextmanager
async def memory(folder: Path, npm: dict[str, Any], mode: str) -> AsyncGenerator[Place]:
    """A graph of entities in a file."""
    names = [f"thing{number:02}" for number in range(AT_ONCE)]
    things = [
        {"type": "entity", "name": name, "entityType": "thing", "observations": [f"I am {name}"]}
        for name in names
    ]
    graph = folder / "graph.json"
    graph.write_text("\n".join(json.dumps(each) for each in things))
    toolset, mark = stdio(
        npm["node"], [script_of(npm, "server-memory")], mode, MEMORY_FILE_PATH=str(graph)
    )
    questions: list[tuple[str, dict[str, Any], str]] = [
        ("open_nodes", {"names": [name]}, f"I am {name}") for name in names
    ]
    yield Place(toolset, mark, frozenset({"create_entities", "read_graph"}), questions)


@contextlib.asynccontextmanager
async def clock(folder: Path, npm: dict[str, Any], mode: str) -> AsyncGenerator[Place]:
    """mcp-server-time."""
    args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]
    toolset, mark = stdio(sys.executable, args, mode)
    zones = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo"}  # nine hours later
    questions: list[tuple[str, dict[str, Any], str]] = [
        (
            "convert_time",
            {**zones, "time": f"{number % 15:02}:{number:02}"},
            f"T{number % 15 + 9:02}:{number:02}:00+09:00",
        )
        for number in range(AT_ONCE)
    ]
    yield Place(toolset, mark, frozenset({"get_current_time", "convert_time"}), questions)


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


@contextlib.asynccontextmanager
async def repository(folder: Path, npm: dict[str, Any], mode: str) -> AsyncGenerator[Place]:
    """mcp-server-git."""
    git(folder, "init")
    git(folder, "config", "core.hooksPath", ".git/hooks")  # also where a user has others
    for number in range(AT_ONCE):
        git(folder, "commit", "--allow-empty", "-m", f"commit number {number:02}")
    args = ["-m", "mcp_server_git", "--repository", str(folder)]
    # What the commits of the server carry.
    names = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    toolset, mark = stdio(sys.executable, args, mode, **names)
    questions: list[tuple[str, dict[str, Any], str]] = [
        (
            "git_show",
            {"repo_path": str(folder), "revision": f"HEAD~{AT_ONCE - 1 - number}"},
            f"commit number {number:02}",
        )
        for number in range(AT_ONCE)
    ]
    yield Place(toolset, mark, frozenset({"git_status", "git_commit"}), questions)


@attrs.frozen
class Foreign:
    """A server that others wrote, by name."""

    name: str
    start: Start
    mode: str = "auto"
    #: What it needs of Python; without one, it needs npm.
    module: str | None = None

    def __str__(self) -> str:
        return f"{self.name}-{self.mode}"


SERVERS: Final = [
    Foreign("server-everything", everything),
    Foreign("server-everything (streamable HTTP)", everything_http),
    Foreign("server-filesystem", filesystem),
    Foreign("server-memory", memory),
    Foreign("mcp-server-time", clock, module="mcp_server_time"),
    Foreign("mcp-server-time", clock, mode="legacy", module="mcp_server_time"),
    Foreign("mcp-server-git", repository, module="mcp_server_git"),
]


@pytest.fixture
def packages(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the server needs; without it the test is skipped."""
    foreign: Foreign = request.getfixturevalue("foreign")
    if foreign.module is None:
        return request.getfixturevalue("npm")
    require(foreign.module)
    if foreign.module == "mcp_server_git" and shutil.which("git") is None:
        pytest.skip("git is not installed")
    return {}


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Whatever a test opened, it is closed."""
    before = len(list((PROC / "self" / "fd").iterdir()))
    yield
    assert len(list((PROC / "self" / "fd").iterdir())) == before


# --- using them -----------------------------------------------------------------


class Context:
    """The part of a `ToolContext` that the toolset uses."""

    def __init__(self) -> None:
        self.progress: list[float] = []
        self.told = trio.Event()

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        self.progress.append(progress)
        if len(self.progress) == 2:
            self.told.set()


async def called(
    toolset: McpToolset, name: str, arguments: dict[str, Any], context: Context | None = None
) -> tr.ToolResult:
    tools = {tool.name: tool for tool in await toolset.list_tools()}
    told: Any = context or Context()
    result = await tools[name].call(arguments, told)
    assert type(result) is tr.ToolResult
    return result


async def ask_all_at_once(place: Place) -> None:
    """Have a turn make all the calls in one batch."""
    batch = [call(name, **arguments) for name, arguments, _ in place.questions]
    agent = tr.ToolAgent("a", model=ScriptedModel([batch, "done"]), tools=[place.toolset])
    async with agent:
        await agent.generate("Ask them all.")
    results = agent.history[2].tool_results
    assert [result.status for result in results] == ["ok"] * AT_ONCE, results
    for result, (_, _, answer) in zip(results, place.questions, strict=True):
        assert answer in result.text


async def cancel_a_call_that_was_sent(place: Place) -> None:
    """Cancel while the server, which is stopped meanwhile, cannot have answered."""
    (name, arguments, _), (_, others, answer) = place.questions[:2]
    stopped = processes(place.mark)
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(called, place.toolset, name, arguments)
                await trio.testing.wait_all_tasks_blocked(0.05)
                scope.cancel()
        assert scope.cancelled_caught
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    # The server lives, and the answer is the one to this question.
    result = await called(place.toolset, name, others)
    assert result.status == "ok"
    assert answer in result.text


@pytest.mark.parametrize("foreign", SERVERS, ids=str)
async def test_a_foreign_server_is_listed_called_at_once_cancelled_and_closed(
    foreign: Foreign, packages: dict[str, Any], tmp_path: Path, say: Say
) -> None:
    clock = time.perf_counter
    with trio.fail_after(LONG):
        async with foreign.start(tmp_path, packages, foreign.mode) as place:
            began = clock()
            async with place.toolset:
                connected = clock()
                names = {tool.name for tool in await place.toolset.list_tools()}
                assert names >= place.tools
                asked = clock()
                await ask_all_at_once(place)
                answered = clock()
                await cancel_a_call_that_was_sent(place)
                alive = processes(place.mark)
                groups = {os.getpgid(pid) for pid in alive} - {os.getpgid(0)}
                left = clock()
            closed = clock()
            if foreign.start is not everything_http:
                assert processes(place.mark) == set()
                assert groups
                assert [alive_in(group) for group in groups] == [set()] * len(groups)
    say(
        f"{foreign.name}, {foreign.mode}: connected in {connected - began:.2f} s, "
        f"{len(names)} tools, {AT_ONCE} calls at once in {answered - asked:.2f} s, "
        f"closed in {closed - left:.2f} s, {len(alive)} process(es) then"
    )


@pytest.mark.parametrize("foreign", SERVERS[:2], ids=str)
async def test_progress_comes_in_order_and_a_cancelled_operation_holds_nobody_up(
    foreign: Foreign, packages: dict[str, Any], tmp_path: Path
) -> None:
    name = "trigger-long-running-operation"
    context, cancelled = Context(), Context()
    with trio.fail_after(LONG):
        async with foreign.start(tmp_path, packages, foreign.mode) as place, place.toolset:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as inner:
                        long = {"duration": 3600, "steps": 180_000}
                        inner.start_soon(called, place.toolset, name, long, cancelled)
                        short = {"duration": 0.5, "steps": 5}
                        nursery.start_soon(called, place.toolset, name, short, context)
                        await cancelled.told.wait()
                        scope.cancel()
                assert scope.cancelled_caught
            assert context.progress == [1, 2, 3, 4, 5]
            heard = len(cancelled.progress)
            assert cancelled.progress == list(range(1, heard + 1))
            assert (await called(place.toolset, "echo", {"message": "hello"})).text.count("hello")
            assert len(cancelled.progress) == heard
        if foreign.start is everything:
            assert processes(place.mark) == set()


async def test_what_a_foreign_server_started_is_ended_with_it(tmp_path: Path) -> None:
    """A hook of git that does not end: processes that the toolset knows nothing of."""
    require("mcp_server_git")
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    with trio.fail_after(LONG):
        async with repository(tmp_path, {}, "auto") as place:
            hook = tmp_path / ".git" / "hooks" / "pre-commit"
            hook.parent.mkdir(exist_ok=True)
            hook.write_text("#!/bin/sh\necho > begun\nsleep 60 & wait\n")
            hook.chmod(0o755)
            (tmp_path / "file").write_text("new")
            git(tmp_path, "add", "file")
            commit = {"repo_path": str(tmp_path), "message": "never made"}
            async with place.toolset:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(called, place.toolset, "git_commit", commit)
                        with trio.fail_after(LONG / 4):
                            while not (tmp_path / "begun").exists():
                                await trio.sleep(0.02)
                        scope.cancel()
                assert scope.cancelled_caught
                assert len(processes(place.mark)) >= 3  # the server, the hook, its sleep
            assert processes(place.mark) == set()


async def test_what_a_foreign_server_refuses_is_that_calls_error(tmp_path: Path) -> None:
    require("mcp_server_time")
    with trio.fail_after(LONG):
        async with clock(tmp_path, {}, "auto") as place, place.toolset:
            name, arguments, answer = place.questions[0]
            refused = await called(place.toolset, name, {**arguments, "time": "noon"})
            assert refused.status == "error"
            assert "time" in refused.text
            assert answer in (await called(place.toolset, name, arguments)).text
