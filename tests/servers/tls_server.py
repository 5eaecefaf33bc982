"""An MCP server behind TLS: ``tls_server.py http|sse CERTIFICATE PORT``. Says its port at first.

A process of its own, and not a thread of the test's: asyncio leaves sockets of TLS to the
garbage collector when its loop is closed.
"""

import socket
import sys

import uvicorn
from mcp.server import MCPServer

server = MCPServer("secret", log_level="CRITICAL")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main(kind: str, certificate: str, port: str) -> None:
    """Serve until the process is killed."""
    app = server.sse_app() if kind == "sse" else server.streamable_http_app()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen()  # who comes before it runs waits
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            app, log_level="critical", ssl_certfile=certificate, ssl_keyfile=certificate
        )
        uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
