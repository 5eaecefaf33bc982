"""`open_websocket_url` is entered, used and left; the stream that it opened must be closed."""

import contextlib
from importlib.metadata import version
from unittest import mock

import trio
import trio.testing
from trio_websocket import ConnectionClosed, open_websocket_url, wrap_server_stream

from trio_runner.testing import Case, sweep


async def echo(stream: trio.abc.Stream) -> None:
    async with trio.open_nursery() as nursery:
        request = await wrap_server_stream(nursery, stream)
        try:
            websocket = await request.accept()
            while True:
                await websocket.send_message(await websocket.get_message())
        except ConnectionClosed:
            return


def make_case() -> Case:
    opened: list[trio.abc.Stream] = []

    async def run() -> None:
        ours, theirs = trio.testing.memory_stream_pair()

        async def open_stream(*_args: object) -> trio.abc.Stream:
            await trio.sleep(1)
            opened.append(ours)
            return ours

        async with trio.open_nursery() as nursery:
            nursery.start_soon(echo, theirs)
            # trio's way to the network leads into memory; trio-websocket itself is untouched.
            with mock.patch.object(trio, "open_tcp_stream", open_stream):
                async with open_websocket_url("ws://localhost/") as websocket:
                    await websocket.send_message("hello")
                    await websocket.get_message()
            nursery.cancel_scope.cancel()

    async def read_until_closed() -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            while opened:
                await opened[0].receive_some()

    return Case(run, afterwards=read_until_closed, raises_cancel=False)


if __name__ == "__main__":
    reports = {"trio-websocket": sweep(make_case, seeds=range(2))}
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
