"""The SDK's own MCP server on HTTP, in a process that can be killed and started again.

Run as ``python web_server.py TRANSPORT PORT NOTES``: ``http`` or ``sse``. It appends
what its tools did to the file NOTES, a line each.
"""

import os
import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server import MCPServer

TRANSPORT, PORT, NOTES = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
server = MCPServer("web", log_level="ERROR")


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{text}\n")


@server.tool()
async def echo(text: str) -> str:
    """Say it back."""
    note(f"echo {text}")
    return text


@server.tool()
async def wait() -> str:
    """Wait for ever."""
    note("wait")
    await anyio.sleep_forever()
    return "never"


@server.tool()
async def die() -> str:
    """End the process in the middle of the call."""
    note("die")
    os._exit(3)


app = server.sse_app() if TRANSPORT == "sse" else server.streamable_http_app()
uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="critical")
