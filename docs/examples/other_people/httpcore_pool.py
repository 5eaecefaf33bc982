"""Two HTTP/1.1 requests share one connection; afterwards the pool must serve a third.

The network is in memory: the server answers each request as soon as it has come.
"""

from functools import partial
from importlib.metadata import version
from typing import Any

import httpcore
import httpcore2
import trio
import trio.testing

from trio_runner.testing import Case, sweep


def network_of(library: Any) -> Any:
    class Stream(library.AsyncNetworkStream):
        def __init__(self) -> None:
            self.ours, self.theirs = trio.testing.memory_stream_pair()

        async def read(self, max_bytes: int, *_args: object, **_options: object) -> bytes:
            return bytes(await self.ours.receive_some(max_bytes))

        async def write(self, buffer: bytes, *_args: object, **_options: object) -> None:
            await self.ours.send_all(buffer)
            if buffer:
                await self.theirs.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

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
    pool = library.AsyncConnectionPool(max_connections=1, network_backend=network_of(library))

    async def fetch() -> None:
        await pool.request("GET", "http://localhost/")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            nursery.start_soon(fetch)

    return Case(run, afterwards=fetch, raises_cancel=False)


if __name__ == "__main__":
    cases = {library.__name__: partial(make_case, library) for library in (httpcore, httpcore2)}
    reports = {name: sweep(case, seeds=range(4)) for name, case in cases.items()}
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
