"""`open_websocket_url` is entered, used and left; the stream that it opened must be closed."""

from importlib.metadata import version
from unittest import mock

import trio
import trio.testing
from trio_websocket import ConnectionClosed, open_websocket_url, wrap_server_stream

from trio_runner.testing import Case, Outcome, sweep


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

    async def read_from_stream() -> None:
        with trio.fail_after(60):
            while True:
                await opened[0].receive_some()

    def check(_: Outcome) -> list[str]:
        try:
            if opened:
                trio.run(read_from_stream, clock=trio.testing.MockClock(autojump_threshold=0))
        except trio.ClosedResourceError:
            return []
        except trio.TooSlowError:
            return ["the stream was not closed"]
        return []

    return Case(run, check, raises_cancel=False)


if __name__ == "__main__":
    reports = {"trio-websocket": sweep(make_case, seeds=range(2))}
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
