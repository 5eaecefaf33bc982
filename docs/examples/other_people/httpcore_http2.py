"""An HTTP/2 request is cancelled; afterwards the pool must serve another one.

The network is in memory. The server is the library h2; it answers whatever happens to the client.
"""

from functools import partial
from importlib.metadata import version
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import httpcore
import httpcore2
import trio
import trio.testing

from trio_runner.testing import Case, sweep


def network_of(library: Any) -> Any:
    class Stream(library.AsyncNetworkStream):
        def __init__(self) -> None:
            self.ours, self.theirs = trio.testing.memory_stream_pair()
            self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
            self.server.initiate_connection()

        async def read(self, max_bytes: int, *_args: object, **_options: object) -> bytes:
            return bytes(await self.ours.receive_some(max_bytes))

        async def write(self, buffer: bytes, *_args: object, **_options: object) -> None:
            try:
                await self.ours.send_all(buffer)
            except trio.BrokenResourceError:
                raise library.WriteError from None
            if buffer:
                with trio.CancelScope(shield=True):
                    await self.answer(bytes(await self.theirs.receive_some()))

        async def answer(self, data: bytes) -> None:
            try:
                events = self.server.receive_data(data)
            except h2.exceptions.ProtocolError:
                await self.theirs.aclose()
                return
            for event in events:
                if isinstance(event, h2.events.StreamEnded):
                    self.server.send_headers(event.stream_id, [(":status", "204")], end_stream=True)
            await self.theirs.send_all(self.server.data_to_send())

        async def aclose(self) -> None:
            await self.ours.aclose()

        def get_extra_info(self, info: str) -> None:
            return None

    class Network(library.AsyncNetworkBackend):
        async def connect_tcp(self, *_args: object, **_options: object) -> Stream:
            await trio.sleep(1)
            return Stream()

    return Network()


def make_case(library: Any) -> Case:
    pool = library.AsyncConnectionPool(http1=False, http2=True, network_backend=network_of(library))

    async def fetch() -> None:
        await pool.request("GET", "http://localhost/")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)

    return Case(run, afterwards=fetch, raises_cancel=False)


if __name__ == "__main__":
    cases = {library.__name__: partial(make_case, library) for library in (httpcore, httpcore2)}
    reports = {name: sweep(case, seeds=[0]) for name, case in cases.items()}
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
