"""A server made with fastmcp: ``python fastmcp_server.py NOTES [PORT]``, stdio without a port.

It writes what happens in it to the file NOTES, a line each.
"""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import fastmcp

NOTES = Path(sys.argv[1])
server: Any = fastmcp.FastMCP("small")


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{text}\n")


@server.tool
async def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


@server.tool
async def meet(me: str, others: int) -> str:
    """Wait until as many calls are here at once."""
    here.add(me)
    with anyio.fail_after(20):
        while len(here) < others:
            await anyio.sleep(0.005)
    return me


here: set[str] = set()


@server.tool
async def count(steps: int, ctx: fastmcp.Context) -> str:
    """Report progress at each step."""
    for number in range(steps):
        await ctx.report_progress(number + 1, steps, f"step {number + 1}")
    return "counted"


@server.tool
async def wait(me: str) -> str:
    """Wait until cancelled."""
    note(f"begun {me}")
    try:
        await anyio.sleep(3600)
    except BaseException as error:
        note(f"{type(error).__name__} {me}")
        raise
    return "never"


@server.tool
async def fail() -> str:
    """Raise."""
    raise ValueError("on purpose")


@server.tool
async def die() -> str:
    """End the process at once."""
    os._exit(3)


if __name__ == "__main__":
    note(f"pid {os.getpid()}")
    if len(sys.argv) > 2:
        server.run("http", port=int(sys.argv[2]), show_banner=False, log_level="critical")
    else:
        server.run("stdio", show_banner=False, log_level="critical")
