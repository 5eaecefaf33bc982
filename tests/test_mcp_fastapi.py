"""Turns of an agent in a real FastAPI application under a real uvicorn on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.asyncio_host import AsyncioHost, run_in_asyncio, stream_in_asyncio
from trio_runner_adapters.mcp import McpToolset

fastapi = pytest.importorskip("fastapi", reason="needs fastapi")
uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn")

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "docs/examples/with_fastapi/fastapi_app.py"
BOUND = 20.0  # seconds: for what must come, and comes at once


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that another thread does."""
    ends = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < ends, f"it never came: {what}"
        time.sleep(0.005)


class App:
    """An application whose one tool waits until it is let go, or is cancelled."""

    def __init__(self) -> None:
        self.agents: list[tr.ToolAgent] = []
        self.running = 0
        self.began = 0
        self.cleaned_up = 0
        self.let_go = False
        #: What the end of the application saw: tools that ran, and tasks besides the server's.
        self.left_running: int | None = None
        self.journal = tr.MemoryJournal()
        self.app = fastapi.FastAPI(lifespan=self.lifespan)
        example = load_example()
        self.unless_gone: Any = example.unless_gone
        self.app.get("/stream")(self.stream)
        self.app.add_api_route("/plain", self.make_plain(example.Request))

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object) -> AsyncGenerator[None]:
        async with AsyncioHost():
            yield
        self.left_running = self.running

    def make_agent(self) -> tr.ToolAgent:
        model = ScriptedModel([[call("work")], "the answer"])
        name = f"session-{len(self.agents)}"
        agent = tr.ToolAgent(
            "a", model=model, tools=[self.work], journal=self.journal, session=name
        )
        self.agents.append(agent)
        return agent

    async def work(self) -> str:
        """Work until it is let go."""
        self.running += 1
        self.began += 1
        try:
            while not self.let_go:  # set by the test's thread
                await trio.sleep(0.005)
            return "worked"
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)
            self.cleaned_up += 1
            self.running -= 1

    async def stream(self) -> Any:
        async def lines() -> AsyncGenerator[str]:
            async with stream_in_asyncio(self.make_agent(), "go") as messages:
                async for message in messages:
                    yield f"{message.text}\n"

        return fastapi.responses.StreamingResponse(lines())

    def make_plain(self, request_type: Any) -> Any:
        async def plain(request: Any) -> dict[str, str]:
            agent = self.make_agent()

            async def turn() -> tr.Message:
                async with agent:
                    return await agent.generate("go")

            reply = await self.unless_gone(request, run_in_asyncio(turn))
            return {"text": reply.text}

        plain.__annotations__["request"] = request_type
        return plain

    def check(self, *statuses: str) -> None:
        """Each agent's history is valid, in memory and stored, and its calls ended like this."""
        for number, agent in enumerate(self.agents):
            wait_until(lambda agent=agent: not agent.conversation.is_busy, "the end of a turn")
            stored = tr.fold(self.journal.stored(f"session-{number}")).messages
            for messages in (agent.history, stored):
                tr.check_history(messages)
                results = [each for message in messages for each in message.tool_results]
                assert [result.status.value for result in results] == list(statuses)
        assert self.running == 0
        assert self.cleaned_up == self.began


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Serving:
    """An application under uvicorn, in a thread."""

    def __init__(self, app: App, loop: str) -> None:
        self.app = app
        self.errors: list[BaseException] = []
        config = uvicorn.Config(
            app.app, port=0, log_level="critical", timeout_graceful_shutdown=1, loop=loop
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()
        wait_until(lambda: self.server.started or self.errors, "the start of the server")
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]

    def _serve(self) -> None:
        try:
            self.server.run()
            assert not trio.lowlevel.in_trio_run()
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.errors.append(error)

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        with contextlib.closing(connection):
            connection.request("GET", path)
            with connection.getresponse() as response:
                text = response.read().decode()
                assert response.status == 200, text
                return text

    def ask_and_go_away(self, path: str) -> None:
        """Send a request, wait until its tool runs, and close the connection."""
        began = self.app.began
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
            wait_until(lambda: self.app.began > began, "the tool")

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(BOUND)
        assert not self.thread.is_alive()
        assert self.errors == []
        assert self.app.running == 0


@pytest.fixture(params=["asyncio", "uvloop"])
def serving(request: pytest.FixtureRequest) -> Iterator[Serving]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    serving = Serving(App(), request.param)
    yield serving
    if serving.thread.is_alive():
        serving.stop()
    gc.collect()


def test_an_endpoint_runs_a_turn_plain_and_streaming(serving: Serving) -> None:
    serving.app.let_go = True

    assert json.loads(serving.get("/plain")) == {"text": "the answer"}
    assert serving.get("/stream") == "\nthe answer\n"
    serving.app.check("ok")


def test_requests_at_once_share_one_trio_run(serving: Serving) -> None:
    texts: list[str] = []

    def ask(path: str) -> None:
        texts.append(serving.get(path))

    paths = ["/plain", "/stream", "/plain", "/stream"]
    threads = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    wait_until(lambda: serving.app.running == 4, "four tools at once")
    serving.app.let_go = True
    for thread in threads:
        thread.join(BOUND)
    assert len(texts) == 4
    serving.app.check("ok")


@pytest.mark.parametrize("path", ["/stream", "/plain"])
def test_a_client_that_goes_away_interrupts_the_turn(serving: Serving, path: str) -> None:
    serving.ask_and_go_away(path)
    wait_until(lambda: serving.app.running == 0, "the end of the tool")
    serving.app.check("interrupted")

    serving.app.let_go = True  # and the server goes on
    assert "the answer" in serving.get(path)


@pytest.mark.parametrize("path", ["/stream", "/plain"])
def test_a_shutdown_interrupts_the_turn_and_waits(serving: Serving, path: str) -> None:
    failed: list[Exception] = []

    def ask() -> None:
        try:
            serving.get(path)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            failed.append(error)

    client = threading.Thread(target=ask)
    client.start()
    wait_until(lambda: serving.app.running, "the tool")
    serving.stop()
    client.join(BOUND)
    assert len(failed) == 1
    serving.app.check("interrupted")


SHUTDOWN = """
import asyncio, sys, fastapi, uvicorn, trio
import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.asyncio_host import AsyncioHost, run_in_asyncio

async def work() -> str:
    print("works", flush=True)
    await trio.sleep_forever()

agent = tr.ToolAgent("a", model=ScriptedModel([[call("work")]]), tools=[work])
app = fastapi.FastAPI()
app.get("/")(lambda: None)

@app.get("/plain")
async def plain():
    await run_in_asyncio(agent.generate, "go")

server = uvicorn.Server(
    uvicorn.Config(app, fd=int(sys.argv[1]), log_level="critical", timeout_graceful_shutdown=1)
)
try:
    server.run()
finally:
    tr.check_history(agent.history)
    print("ended:", agent.last_turn.end_reason.value, trio.lowlevel.in_trio_run(), flush=True)
"""


def test_ctrl_c_at_the_server_interrupts_the_turn() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        os.set_inheritable(listener.fileno(), True)
        paths = [str(ROOT), str(ROOT / "adapters"), os.environ.get("PYTHONPATH", "")]
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SHUTDOWN, str(listener.fileno())],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process, socket.create_connection(listener.getsockname()) as connection:
            connection.sendall(b"GET /plain HTTP/1.1\r\nHost: here\r\n\r\n")
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "works\n", process.stderr.read()
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=BOUND)
    assert said == "ended: interrupted False\n", errors
    assert "Task was destroyed" not in errors
    assert "abandoned" not in errors


def test_a_toolset_stays_open_over_requests_in_a_host(tmp_path: Path) -> None:
    server = str(ROOT / "tests/servers/hostile_server.py")
    toolset = McpToolset.stdio(sys.executable, ["-S", server, "plain", str(tmp_path / "notes")])

    async def turn() -> str:
        model = ScriptedModel([[call("echo", text="hello")], "done"])
        agent = tr.ToolAgent("a", model=model, tools=[toolset])
        async with agent:
            await agent.generate("go")
        (result,) = agent.history[2].tool_results
        assert result.status is tr.CallStatus.OK, result
        return result.text

    async def main() -> None:
        async with AsyncioHost() as host:
            await host.enter(toolset)
            first = await run_in_asyncio(turn)
            assert await asyncio.gather(run_in_asyncio(turn), run_in_asyncio(turn)) == [
                first,
                first,
            ]

    asyncio.run(asyncio.wait_for(main(), BOUND))


def test_the_example_of_the_page_runs() -> None:
    paths = [str(ROOT), str(ROOT / "adapters"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"text": "I have looked out in Rome."},
        {"text": "", "asks": ["get_weather"]},
        {"text": "I have looked out in Oslo.", "asks": []},
    ]
