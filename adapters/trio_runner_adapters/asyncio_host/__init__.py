"""trio_runner turns inside asyncio applications: FastAPI, Jupyter, anything with a running loop.

trio runs as a guest of the asyncio loop, in the same thread. Start with
`run_in_asyncio` for one call, `stream_in_asyncio` for the messages of a turn as
they come, and `AsyncioHost` for what stays open from one request to the next.
Needs no extra.
"""

from trio_runner_adapters.asyncio_host._calls import HostClosedError as HostClosedError
from trio_runner_adapters.asyncio_host._host import AsyncioHost as AsyncioHost
from trio_runner_adapters.asyncio_host._host import run_in_asyncio as run_in_asyncio
from trio_runner_adapters.asyncio_host._stream import MessageStream as MessageStream
from trio_runner_adapters.asyncio_host._stream import stream_in_asyncio as stream_in_asyncio
