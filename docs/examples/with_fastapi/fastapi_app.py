"""A FastAPI application whose endpoints run turns of an agent, one plain and one that streams.

Needs ``fastapi`` and ``uvicorn``. Serve it with ``uvicorn fastapi_app:app``; run as a program it
serves itself on a port of this machine, asks once, and stops.
"""

import asyncio
import contextlib
import json
import threading
import time
import urllib.request
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import trio
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.asyncio_host import AsyncioHost, run_in_asyncio, stream_in_asyncio

T = TypeVar("T")


async def get_weather(city: str) -> str:
    """Look out of the window there."""
    await trio.sleep(0.05)
    return {"Oslo": "snow", "Rome": "sun"}.get(city, "no idea")


def make_agent(city: str) -> tr.ToolAgent:
    """An agent runs one turn at a time: each request, or each conversation, has its own."""
    # Any model will do; this one plays two replies.
    model = ScriptedModel([[call("get_weather", city=city)], f"I have looked out in {city}."])
    return tr.ToolAgent("weather", model=model, tools=[get_weather])


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    # Keeps trio running between the requests. What all agents share, such as an McpToolset, is
    # opened here: await host.enter(toolset).
    async with AsyncioHost() as host:
        app.state.host = host
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/stream/{city}")
async def stream(city: str) -> StreamingResponse:
    # When the client goes away the response cancels this generator: the turn is interrupted.
    async def lines() -> AsyncGenerator[str]:
        async with stream_in_asyncio(make_agent(city), f"How is {city}?") as messages:
            async for message in messages:
                asks = [each.name for each in message.tool_calls]
                yield json.dumps({"text": message.text, "asks": asks}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@app.get("/plain/{city}")
async def plain(city: str, request: Request) -> dict[str, str]:
    agent = make_agent(city)
    reply = await unless_gone(request, run_in_asyncio(agent.generate, f"How is {city}?"))
    return {"text": reply.text}


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, and cancel it when the client goes away: servers do not do that."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(499, "the client has gone away")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.wait([task, gone])  # the turn has finished when this returns


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def main() -> None:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))

    def ask() -> None:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        for path in ("plain/Rome", "stream/Oslo"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}") as response:
                print(response.read().decode().strip())
        server.should_exit = True

    client = threading.Thread(target=ask)
    client.start()
    server.run()
    client.join()


if __name__ == "__main__":
    main()
