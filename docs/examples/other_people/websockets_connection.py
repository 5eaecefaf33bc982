"""A connection of `websockets.trio` is opened, used and closed; it must be closed afterwards."""

import logging
from importlib.metadata import version

import trio
import trio.testing
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.trio.client import ClientConnection, connect

from trio_runner.testing import Case, Outcome, sweep


async def echo(stream: trio.abc.HalfCloseableStream) -> None:
    """A server in a dozen lines, from the part of websockets that does no I/O."""
    protocol = ServerProtocol()
    async with stream:
        while data := await stream.receive_some():
            protocol.receive_data(data)
            for event in protocol.events_received():
                match event:
                    case Request():
                        protocol.send_response(protocol.accept(event))
                    case Frame(opcode=Opcode.TEXT, data=text):
                        protocol.send_text(text)
                    case _:  # a ping or a close, which the protocol answers itself
                        pass
            for out in protocol.data_to_send():
                await (stream.send_all(out) if out else stream.send_eof())


def make_case() -> Case:
    made: list[ClientConnection] = []

    async def run() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo, theirs)
            async with connect("ws://localhost/", stream=ours) as websocket:
                made.append(websocket)
                await websocket.send("hello")
                await websocket.recv()

    async def wait_closed() -> None:
        for websocket in made:
            await websocket.wait_closed()

    def check(_: Outcome) -> list[str]:
        states = [websocket.state.name for websocket in made]
        return ["the state is not CLOSED"] if states not in ([], ["CLOSED"]) else []

    return Case(run, check, afterwards=wait_closed, raises_cancel=False)


if __name__ == "__main__":
    # After a Ctrl-C it may log an error, which would be printed between the reports.
    logging.getLogger("websockets").addHandler(logging.NullHandler())
    reports = {"websockets": sweep(make_case, seeds=range(2))}
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
