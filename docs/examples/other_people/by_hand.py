"""What the sweeps found, seen by hand: plain trio, real sockets, one cancel at the right place.

Nothing of trio_runner is used here. Each function takes a few lines of set-up and prints one line.
"""

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpcore
import httpcore2
import tricycle
import trio
import trio.testing
from trio_websocket import open_websocket_url
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.trio.client import ClientConnection, connect

Handler = Callable[[trio.SocketStream], Awaitable[object]]


async def serve(nursery: trio.Nursery, handler: Handler) -> str:
    """Serve on a free port of this machine; what it listens on is the result."""
    listeners = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
    return f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"


async def silence(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


# --- httpcore and httpcore2 -----------------------------------------------------


async def pool(library: Any) -> None:
    async with trio.open_nursery() as nursery:
        url = f"http://{await serve(nursery, silence)}/"
        leaked: set[str] = set()
        # Which of the two requests leaves first is chance: try again and again.
        for attempt in range(200):
            connections = library.AsyncConnectionPool(max_connections=1)
            async with trio.open_nursery() as requests:
                requests.start_soon(connections.request, "GET", url)
                requests.start_soon(connections.request, "GET", url)
                for _ in range(attempt % 10):
                    await trio.lowlevel.checkpoint()
                requests.cancel_scope.cancel()
            leaked |= {repr(connection) for connection in connections.connections}
        print(f"{library.__name__}: left in a pool without requests: {sorted(leaked)}")
        nursery.cancel_scope.cancel()


async def http2(stream: trio.SocketStream) -> None:
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    await stream.send_all(server.data_to_send())
    while data := await stream.receive_some():
        for event in server.receive_data(data):
            if isinstance(event, h2.events.StreamEnded):
                server.send_headers(event.stream_id, [(":status", "204")], end_stream=True)
        await stream.send_all(server.data_to_send())


async def second_request(library: Any) -> None:
    async with trio.open_nursery() as nursery:
        url = f"http://{await serve(nursery, http2)}/"
        connections = library.AsyncConnectionPool(http1=False, http2=True)
        async with trio.open_nursery() as requests:
            requests.start_soon(connections.request, "GET", url)
            while not connections.connections or "HTTP/2" not in repr(connections.connections):
                await trio.lowlevel.checkpoint()
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            requests.cancel_scope.cancel()
        try:
            result = (await connections.request("GET", url)).status
        except ValueError as error:
            result = repr(error)
        print(f"{library.__name__}: the next HTTP/2 request: {result}")
        nursery.cancel_scope.cancel()


# --- websockets and trio-websocket ----------------------------------------------


async def handshake(stream: trio.SocketStream) -> None:
    """Open a WebSocket connection, and then do nothing."""
    protocol = ServerProtocol()
    protocol.receive_data(await stream.receive_some())
    [request] = protocol.events_received()
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    await stream.send_all(b"".join(protocol.data_to_send()))
    await trio.sleep_forever()


async def closing() -> None:
    made: list[ClientConnection] = []
    async with trio.open_nursery() as nursery:
        address = await serve(nursery, handshake)
        with trio.move_on_after(0.5):
            async with connect(f"ws://{address}/") as websocket:
                made.append(websocket)
                await websocket.recv()
        with trio.move_on_after(1) as patience:
            await made[0].wait_closed()
        hung = "hangs" if patience.cancelled_caught else "returns"
        print(f"websockets: after a cancel the state is {made[0].state.name}, wait_closed() {hung}")
        nursery.cancel_scope.cancel()


async def interrupted() -> None:
    @trio.lowlevel.enable_ki_protection  # the Ctrl-C is for the main task, not for this one
    async def interrupt() -> None:
        await trio.sleep(0.5)
        signal.raise_signal(signal.SIGINT)

    async with trio.open_nursery() as nursery:
        address = await serve(nursery, handshake)
        async with connect(f"ws://{address}/") as websocket:
            nursery.start_soon(interrupt)
            await websocket.aclose()
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def timeout() -> None:
    async with trio.open_nursery() as nursery:
        address = await serve(nursery, silence)
        with trio.move_on_after(2) as patience:
            async with open_websocket_url(f"ws://{address}/", connect_timeout=0.5):
                pass
        hung = "never comes" if patience.cancelled_caught else "comes"
        print(f"trio-websocket: ConnectionTimeout {hung}")
        nursery.cancel_scope.cancel()


# --- tricycle -------------------------------------------------------------------


async def readers() -> None:
    lock = tricycle.RWLock()
    order: list[str] = []

    async def read(name: str) -> None:
        async with lock.read_locked():
            order.append(name)

    await lock.acquire_read()
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as writer:
            writer.start_soon(lock.acquire_write)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(read, "the one who came first")
            await trio.testing.wait_all_tasks_blocked()
            writer.cancel_scope.cancel()
        nursery.start_soon(read, "the one who came last")
        await trio.testing.wait_all_tasks_blocked()
        lock.release()
    print(f"tricycle: readers in the order in which they got the lock: {order}")


if __name__ == "__main__":
    for library in (httpcore, httpcore2):
        trio.run(pool, library)
        trio.run(second_request, library)
    trio.run(closing)
    try:
        trio.run(interrupted)
    except KeyboardInterrupt:
        print("websockets: a Ctrl-C during aclose() ends the program")
    else:
        print("websockets: a Ctrl-C during aclose() is lost")
    trio.run(timeout)
    trio.run(readers)
