"""An MCP server over stdio, by hand and without the SDK, that asks its client for things.

Run as ``python asking_server.py``. Each of its tools asks, and says what it was answered.
"""

import itertools
import json
import sys
from typing import Any

OBJECT = {"type": "object"}
SAMPLE = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "More?"}}],
    "maxTokens": 10,
}
IDS = itertools.count(1)


def send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def receive() -> dict[str, Any]:
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit()
    return json.loads(line)


def ask(method: str, params: dict[str, Any]) -> str:
    """Ask for one thing; what comes in between is not looked at."""
    number = f"ask-{next(IDS)}"
    send({"id": number, "method": method, "params": params})
    while (message := receive()).get("id") != number:
        pass
    if "error" in message:
        return f"error {message['error']['code']}: {message['error']['message']}"
    return json.dumps(message["result"], sort_keys=True)


def call(name: str) -> str:
    match name:
        case "elicit":
            schema: dict[str, Any] = {"type": "object", "properties": {}}
            return ask("elicitation/create", {"message": "Who?", "requestedSchema": schema})
        case "roots":
            return ask("roots/list", {})
        case "log":
            data = {"level": "warning", "logger": "part", "data": "look out"}
            send({"method": "notifications/message", "params": data})
            return "logged"
        case "sample":
            return ask("sampling/createMessage", SAMPLE)
        case "sample_loop":
            # It never has enough, until it was refused twice.
            answers: list[str] = []
            while sum(each.startswith("error") for each in answers) < 2:
                answers.append(ask("sampling/createMessage", SAMPLE))
            return "\n".join(answers)
        case "sample_flood":
            for _ in range(1000):
                number = f"ask-{next(IDS)}"
                send({"id": number, "method": "sampling/createMessage", "params": SAMPLE})
            return "flooded"
        case _:
            return "ok"


def main() -> None:
    while True:
        message = receive()
        match message.get("method"):
            case "initialize":
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}, "logging": {}},
                    "serverInfo": {"name": "asking", "version": "0"},
                }
                send({"id": message["id"], "result": result})
            case "tools/list":
                known = ["elicit", "roots", "log", "sample", "sample_loop", "sample_flood", "echo"]
                tools = [{"name": name, "inputSchema": OBJECT} for name in known]
                send({"id": message["id"], "result": {"tools": tools}})
            case "tools/call":
                text = call(message["params"]["name"])
                content = [{"type": "text", "text": text}]
                send({"id": message["id"], "result": {"content": content}})
            case str() if "id" in message:
                send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})
            case _:
                pass


main()
