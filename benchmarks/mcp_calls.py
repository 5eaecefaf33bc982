"""MCP: calls per second through `McpToolset`, against the SDK's bare client.

    python benchmarks/mcp_calls.py [--quick] [--rounds N] [--json FILE] [TRANSPORT ...]

Both are connected to a server of the same kind all the time and are asked in turns; what
counts are the ratios. ``README.md`` beside this file says what is measured. (Not called
``mcp.py``: beside a script of that name, nothing finds the SDK.)
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import fanout
import mcp
import trio
import uvicorn
from mcp.client._memory import InMemoryTransport
from mcp.client.stdio import StdioServerParameters
from mcp.server import MCPServer

from trio_runner_adapters.mcp import McpToolset

#: How many times as long a call may take as with the bare client.
BUDGET: Final = 1.05

#: Makes one call and returns what it checks.
Call: TypeAlias = Callable[[int], Awaitable[str]]


@attrs.frozen
class Parameters:
    """What is run; printed with the results.

    Attributes:
      calls: of each sample, by transport.
    """

    rounds: int
    calls: dict[str, int]
    in_flight: tuple[int, ...] = (1, 64)


QUICK: Final = Parameters(rounds=7, calls={"memory": 128, "stdio": 128, "http": 64})
FULL: Final = Parameters(rounds=31, calls={"memory": 256, "stdio": 256, "http": 128})


# --- the server -----------------------------------------------------------------


def make_server() -> MCPServer:
    """A server with one tool that says what it was given."""
    server = MCPServer("bench", log_level="CRITICAL")

    @server.tool()
    async def echo(number: int) -> str:
        """Say the number."""
        return f"number {number}"

    return server


def serve(transport: str) -> None:
    """Be the server, in a process of its own."""
    if transport == "stdio":
        trio.run(make_server().run_stdio_async)
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(make_server().streamable_http_app(), log_level="critical")
        uvicorn.Server(config).run([listener])


SELF: Final = str(Path(__file__).resolve())


@asynccontextmanager
async def http_server() -> AsyncGenerator[str]:
    """Start the server; gives its URL."""
    command = [sys.executable, SELF, "--serve", "http"]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = (await process.stdout.receive_some()).decode().strip()
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


# --- who is compared ------------------------------------------------------------


class Context:
    """The part of a `ToolContext` that the toolset uses."""

    def report_progress(self, *args: object) -> None:
        """Take it."""


@asynccontextmanager
async def bare(target: Any) -> AsyncGenerator[Call]:
    """The SDK's client, as its documentation uses it."""
    async with mcp.Client(target) as client:
        await client.list_tools()

        async def call(number: int) -> str:
            result = await client.call_tool("echo", {"number": number})
            return getattr(result.content[0], "text", "")

        yield call


@asynccontextmanager
async def ours(toolset: McpToolset) -> AsyncGenerator[Call]:
    """`McpToolset`, with all that it promises."""
    async with toolset:
        (tool,) = await toolset.list_tools()
        context: Any = Context()

        async def call(number: int) -> str:
            result: Any = await tool.call({"number": number}, context)
            return result.text

        yield call


@asynccontextmanager
async def competitors(transport: str) -> AsyncGenerator[dict[str, Call]]:
    """All of them, connected."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        match transport:
            case "memory":
                yield {
                    "mcp.Client": await enter(bare(InMemoryTransport(make_server()))),
                    "McpToolset": await enter(ours(McpToolset.in_memory(make_server()))),
                    "mcp.Client, without messages": await enter(bare(make_server())),
                }
            case "stdio":
                args = [SELF, "--serve", "stdio"]
                env = dict(os.environ)
                parameters = StdioServerParameters(command=sys.executable, args=args, env=env)
                toolset = McpToolset.stdio(sys.executable, args, env=env)
                yield {
                    "mcp.Client": await enter(bare(parameters)),
                    "McpToolset": await enter(ours(toolset)),
                }
            case _:
                url = await enter(http_server())
                yield {
                    "mcp.Client": await enter(bare(url)),
                    "McpToolset": await enter(ours(McpToolset.http(url))),
                }


# --- how it is measured ---------------------------------------------------------


async def sample(call: Call, calls: int, in_flight: int) -> tuple[float, float]:
    """Seconds of wall time and of our CPU time for so many calls, in batches."""
    answers: dict[int, str] = {}

    async def one(number: int) -> None:
        answers[number] = await call(number)

    gc.collect()
    gc.disable()
    try:
        began, began_cpu = time.perf_counter(), time.process_time()
        for first in range(0, calls, in_flight):
            async with trio.open_nursery() as nursery:
                for number in range(first, first + in_flight):
                    nursery.start_soon(one, number)
        taken = time.perf_counter() - began, time.process_time() - began_cpu
    finally:
        gc.enable()
    assert answers == {number: f"number {number}" for number in range(calls)}
    return taken


Taken: TypeAlias = dict[str, list[tuple[float, float]]]


async def interleaved(transport: str, parameters: Parameters) -> dict[int, Taken]:
    """All samples, by how many calls were in flight and by competitor."""
    found: dict[int, Taken] = {}
    async with competitors(transport) as calls:
        for number in range(parameters.rounds + 1):
            # Who comes second must not always be the same one.
            order = list(calls.items())[:: 1 if number % 2 else -1]
            for in_flight in parameters.in_flight:
                for name, call in order:
                    taken = await sample(call, parameters.calls[transport], in_flight)
                    if number:  # the first round warms caches up
                        found.setdefault(in_flight, {}).setdefault(name, []).append(taken)
    return found


def ratio(taken: Taken, which: int) -> float:
    """Ours over the bare client's; of each round by itself, since rounds differ."""
    pairs = zip(taken["McpToolset"], taken["mcp.Client"], strict=True)
    return statistics.median(own[which] / floor[which] for own, floor in pairs)


def section(report: fanout.Report, parameters: Parameters, transport: str) -> None:
    """Measure one transport."""
    calls = parameters.calls[transport]
    for in_flight, taken in sorted(trio.run(interleaved, transport, parameters).items()):
        title = f"{transport}, {in_flight} in flight"
        print(f"\n{title}: calls per second (median of {parameters.rounds} rounds), our CPU µs")
        figures: dict[str, dict[str, float]] = {}
        for name, samples in sorted(taken.items()):
            wall, cpu = [statistics.median(each) / calls for each in zip(*samples, strict=True)]
            figures[name] = {"calls per second": 1 / wall, "CPU µs": cpu * 1e6}
            print(f"  {name:<32}{1 / wall:9.0f}{cpu * 1e6:9.0f}")
        report.figures[title] = figures
        report.figures[f"{title}: × CPU"] = ratio(taken, 1)
        print(f"  {'× the CPU time of mcp.Client':<58} {ratio(taken, 1):8.2f}")
        report.budget(f"{title}: × the time of mcp.Client", ratio(taken, 0), BUDGET)


# --- the command ----------------------------------------------------------------


def main() -> int:
    """Measure; the exit code is 1 when a figure is over its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("transports", nargs="*", metavar="TRANSPORT", help="memory, stdio, http")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller samples")
    parser.add_argument("--rounds", type=int, help="samples of each competitor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return 0
    parameters = QUICK if options.quick else FULL
    if options.rounds is not None:
        parameters = attrs.evolve(parameters, rounds=options.rounds)
    if unknown := set(options.transports) - set(parameters.calls):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected memory, stdio or http")
    report = fanout.Report()
    surroundings = {
        "python": sys.version.split()[0],
        "system": sys.platform,
        "trio": version("trio"),
        "mcp": version("mcp"),
    }
    report.figures["surroundings"] = surroundings
    report.figures["parameters"] = attrs.asdict(parameters)
    print(", ".join([f"{name} {value}" for name, value in surroundings.items()]))
    for name, value in attrs.asdict(parameters).items():
        print(f"  {name}: {value}")
    for transport in options.transports or parameters.calls:
        section(report, parameters, transport)
    if options.json is not None:
        options.json.write_text(json.dumps(report.figures, indent=2) + "\n", "utf-8")
    print(f"\nover budget: {', '.join(report.over_budget) or 'nothing'}")
    return 1 if report.over_budget else 0


if __name__ == "__main__":
    sys.exit(main())
