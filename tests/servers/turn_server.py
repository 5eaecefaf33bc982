"""The server of a swept turn over stdio, by hand and without the SDK, so that it starts at once.

Run as ``python -S turn_server.py NOTES``. Each call runs in a thread of its own and appends
``begin`` and ``end`` lines to the file NOTES; a cancelled one ends early.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

NOTES = Path(sys.argv[1])
TOOLS = {"tidy": "steps", "broken": "number", "progress": "count"}
LOCK = threading.Lock()
STOPPED: dict[Any, threading.Event] = {}


def send(message: dict[str, Any]) -> None:
    with LOCK:
        sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        sys.stdout.buffer.flush()


def note(text: str) -> None:
    with LOCK, NOTES.open("a") as file:
        file.write(f"{text}\n")


def call(request: dict[str, Any], stopped: threading.Event) -> None:
    params = request["params"]
    name = params["name"]
    number = params["arguments"][TOOLS[name]]
    note(f"begin {name} {number}")
    for step in range(number):
        if name == "progress":
            token = params["_meta"]["progressToken"]
            told = {"progressToken": token, "progress": step, "total": number}
            send({"method": "notifications/progress", "params": told})
        if stopped.wait(0.002):
            break
    note(f"end {name} {number}")
    if not stopped.is_set():
        said = {"content": [{"type": "text", "text": f"{name} {number}"}]}
        send({"id": request["id"], "result": {**said, "isError": name == "broken"}})


def serve() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        match message.get("method"):
            case "initialize":
                result: dict[str, object] = {
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "turn", "version": "1"},
                }
                send({"id": message["id"], "result": result})
            case "tools/list":
                tools = [
                    {
                        "name": name,
                        "inputSchema": {"type": "object", "properties": {one: {"type": "integer"}}},
                    }
                    for name, one in TOOLS.items()
                ]
                send({"id": message["id"], "result": {"tools": tools}})
            case "tools/call":
                stopped = STOPPED[message["id"]] = threading.Event()
                threading.Thread(target=call, args=(message, stopped)).start()
            case "notifications/cancelled":
                STOPPED[message["params"]["requestId"]].set()
            case _:
                if "id" in message:
                    error = {"code": -32601, "message": "not found"}
                    send({"id": message["id"], "error": error})
    for stopped in STOPPED.values():
        stopped.set()
    time.sleep(0)


serve()
