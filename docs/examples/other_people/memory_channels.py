"""Two senders and two receivers share a channel: an item is received once, or still there.

Once with trio's own memory channel, once with anyio's memory object stream on trio.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
import trio

from trio_runner.testing import Case, sweep


def make_case(open_channel: Callable[[int], Any]) -> Case:
    sent: list[tuple[int, int]] = []
    received: list[tuple[int, int]] = []
    channels: list[Any] = []

    async def produce(sender: int) -> None:
        for number in range(4):
            await channels[0].send((sender, number))
            sent.append((sender, number))  # state first: no checkpoint since the send

    async def consume() -> None:
        for _ in range(4):
            item = await channels[1].receive()
            received.append(item)

    async def run() -> None:
        channels.extend(open_channel(1))
        async with trio.open_nursery() as nursery:
            for sender in range(2):
                nursery.start_soon(produce, sender)
                nursery.start_soon(consume)

    async def afterwards() -> None:
        sender, receiver = channels
        sender.close()
        with receiver:
            received.extend([item async for item in receiver])
        assert sorted(sent) == sorted(received), "an item was lost, or came twice"

    return Case(run, afterwards=afterwards, raises_cancel=False)


if __name__ == "__main__":
    kinds: dict[str, Callable[[int], Any]] = {
        "trio": trio.open_memory_channel,
        "anyio": anyio.create_memory_object_stream,
    }
    reports = {
        name: sweep(partial(make_case, kind), seeds=range(4)) for name, kind in kinds.items()
    }
    for name, report in reports.items():
        print(name, version(name), report.render(), sep="\n")
