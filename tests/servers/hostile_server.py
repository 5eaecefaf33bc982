"""An MCP server over stdio, by hand and without the SDK, that misbehaves as told.

Run as ``python hostile_server.py MODE NOTES``. It writes its process id, and
what it was told to note, to the file NOTES, a line each.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODE, NOTES = sys.argv[1], sys.argv[2]
OBJECT = {"type": "object"}
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def note(text: object) -> None:
    with Path(NOTES).open("a") as file:
        file.write(f"{text}\n")


def raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def send(message: dict[str, Any]) -> None:
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(request: dict[str, Any], result: Any) -> None:
    send({"id": request["id"], "result": result})


def text(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": one} for one in texts], **fields}


def garbage() -> None:
    raw(b'Listening on port 8080\n\n[1, 2]\n{"no": "message"}\n')
    raw(b"x" * 5_000_000 + b"\n" + b"\xff\xfe\n" + b'{"cut": \n')


def echo(request: dict[str, Any]) -> None:
    arguments: dict[str, Any] = request["params"].get("arguments") or {}
    answer(request, text(str(arguments.get("text", ""))))


ALL_BLOCKS = {
    "content": [
        {"type": "text", "text": "t", "annotations": {"priority": 0.5}, "_meta": {"m": 1}},
        {"type": "image", "data": "aQ==", "mimeType": "image/png"},
        {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///x", "name": "x", "size": 3},
        {"type": "resource", "resource": {"uri": "file:///y", "text": "y", "_meta": {"r": 2}}},
        {"type": "resource", "resource": {"uri": "file:///z", "blob": "eg=="}},
    ],
    "structuredContent": {"a": [1]},
    "_meta": {"trace": "7"},
}

FLOODS = {
    "blank": b"\n",
    "ping": b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n',
    "changed": b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n',
}

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def call(request: dict[str, Any]) -> None:  # noqa: C901 - a table of misbehaviours
    name = request["params"]["name"]
    match MODE, name:
        case "dies", "die":
            sys.exit(3)
        case "dies", "half":
            raw(b'{"jsonrpc":"2.0","id":%d,"result":{"con' % request["id"])
            os._exit(0)
        case "dies", "leave_child":
            note(subprocess.Popen(SLEEPER).pid)
            os._exit(0)
        case "silent", "wait":
            note("called")
        case "garbage", "echo":
            garbage()
            echo(request)
        case "broken", "null":
            send({"id": request["id"], "result": None})
        case "broken", "cut":
            raw(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[\n' % request["id"])
        case "broken", "huge":
            answer(request, text("x" * 200_000))
        case "broken", "no_content":
            answer(request, {"content": "not a list"})
        case "broken", "surrogate":
            raw(
                b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text",'
                b'"text":"a\\ud800b"}]}}\n' % request["id"]
            )
        case "broken", "refuse":
            send({"id": request["id"], "error": {"code": -32000 - 77, "message": "no"}})
        case "results", "blocks":
            answer(request, ALL_BLOCKS)
        case "results", "fails":
            answer(request, text("it broke", isError=True, structuredContent={"n": "odd"}))
        case "results", "fails_silently":
            answer(request, {"content": [], "isError": True})
        case "results", "number":
            value = request["params"]["arguments"].get("value")
            fields = {} if value is None else {"structuredContent": value}
            answer(request, text("kept", **fields))
        case "typescript", "cut":
            raw(b'{"result":{"content":[\n')
        case "typescript", "huge":
            # The order of the members is the official TypeScript SDK's.
            message = {"result": text("x" * 200_000), "jsonrpc": "2.0", "id": request["id"]}
            raw(json.dumps(message).encode() + b"\n")
        case "deaf", _:
            echo(request)
            time.sleep(600)
        case "flood", kind:
            echo(request)
            while True:
                raw(FLOODS[kind] * 1000)
        case "progress", _:
            token = request["params"]["_meta"]["progressToken"]
            params = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
            send({"method": "notifications/progress", "params": params})
            answer(request, text("done"))
        case _:
            echo(request)


def tool(name: str, schema: Any = OBJECT, **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, **fields}


def tools(request: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = request.get("params") or {}
    cursor: str | None = params.get("cursor")
    match MODE:
        case "pages":
            number = int(cursor or 0)
            page: dict[str, Any] = {"tools": [tool(f"t{number}")]}
            if number < 2:
                page["nextCursor"] = str(number + 1)
            return page
        case "loop":
            return {"tools": [tool(f"t{cursor}")], "nextCursor": "again"}
        case "endless":
            number = int(cursor or 0)
            return {"tools": [tool(f"t{number}")], "nextCursor": str(number + 1)}
        case "schemas":
            loop = {"$ref": "#/$defs/a"}
            bad: list[Any] = [
                {"name": "missing"},
                tool("null", None),
                tool("string", {"type": "string"}),
                tool("required_null", {"type": "object", "required": None}),
                tool("loop", {**OBJECT, "properties": {"x": loop}, "$defs": {"a": loop}}),
                tool("remote", {**OBJECT, "properties": {"x": {"$ref": "http://h/s.json"}}}),
                {"inputSchema": OBJECT},
                "no object",
            ]
            good = [tool("empty", {}), tool("no_properties")]
            good += [tool(f"good{n}", {**OBJECT, "properties": {}}) for n in range(20)]
            good += [tool("odd_output", outputSchema={"type": "nonsense"})]
            return {"tools": bad[:4] + good + bad[4:]}
        case "names":
            return {"tools": [tool("a.b"), tool("a b"), tool("a_b"), tool("x" * 80)]}
        case "results":
            return {
                "tools": [
                    tool("blocks"),
                    tool("fails", outputSchema=NUMBER),
                    tool("fails_silently"),
                    tool("number", outputSchema=NUMBER),
                ]
            }
        case "dies":
            return {"tools": [tool("die"), tool("half"), tool("leave_child"), tool("echo")]}
        case "silent":
            return {"tools": [tool("wait"), tool("echo")]}
        case "typescript":
            return {"tools": [tool("cut"), tool("huge"), tool("echo")]}
        case "flood":
            return {"tools": [tool(kind) for kind in FLOODS]}
        case "broken":
            known = ["null", "cut", "huge", "no_content", "surrogate", "refuse", "echo"]
            return {"tools": [tool(name) for name in known]}
        case _:
            return {"tools": [tool("echo")]}


def serve() -> None:
    while line := sys.stdin.buffer.readline():
        message: dict[str, Any] = json.loads(line)
        match message.get("method"):
            case "initialize":
                if MODE == "mute":
                    continue
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "hostile", "version": "0"},
                }
                answer(message, result)
            case "tools/list":
                answer(message, tools(message))
            case "tools/call":
                call(message)
            case "notifications/cancelled":
                note("cancelled")
            case _:
                if "id" in message and MODE != "mute":
                    send({"id": message["id"], "error": {"code": -32601, "message": "unknown"}})


def main() -> None:
    note(os.getpid())
    match MODE:
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "child":
            note(subprocess.Popen(SLEEPER).pid)
        case "garbage":
            garbage()
        case "exits":
            sys.stderr.write("no licence found\n")
            sys.exit(4)
        case _:
            pass
    serve()
    note("end of input")
    if MODE == "stubborn":
        time.sleep(600)


main()
