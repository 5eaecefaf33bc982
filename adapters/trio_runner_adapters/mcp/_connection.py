"""One connection to one server, from open to close: the task that owns it.

The SDK's client must be entered and left by one task, and when its connection is
lost everything in its body is cancelled. So each connection has one owner task
that does nothing but hold the client; calls are made from the callers' tasks.

The owner is a *system task*. It may not be a child of whoever entered first:
several tasks may use the toolset, and the first to come may be the first to go,
or be cancelled, while the others are in the middle of a call. An exception that
escaped a system task would end the whole trio run, so the owner keeps every
failure as a value; only the cancel at the run's end passes through.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias

import attrs
import mcp
import mcp_types as m
import trio
from mcp.client import Transport

import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._listing as listing
import trio_runner_adapters.mcp._wire as wires

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Seconds that leaving the SDK's client may take when the close was asked for.
_CLIENT_EXIT_TIMEOUT: Final = 1.0
#: Tools left out that are named in the log; more are counted.
_LOGGED_TOOLS: Final = 50

#: Called once, synchronously, when a link has ended by itself.
OnEnd: TypeAlias = Callable[[], None]


class Link(Transport, Protocol):
    """A transport that can say how it ended."""

    async def how_it_ended(self) -> str:
        """Return in words how the connection ended; bounded."""
        ...

    def last_words(self) -> str:
        """Return what the server said last on a side channel; may be empty."""
        ...


class Connector(Protocol):
    """Opens links to one server, be it a process or a URL."""

    def connect(self, name: str, on_end: OnEnd) -> AbstractAsyncContextManager[Link]:
        """Return a context that holds the link open; ``on_end`` is called when it ends by itself.

        Leaving the context is bounded, also when it is cancelled.
        """
        ...

    @property
    def close_timeout(self) -> float:
        """The seconds that leaving the context may take."""
        ...


class State(enum.Enum):
    """Where a connection stands; it only ever moves downwards."""

    STARTING = "starting"
    READY = "ready"
    #: It failed to start, was lost, or is being closed; ``Connection.why`` says which.
    OVER = "over"


@attrs.frozen
class Listed:
    """What a server offers: its tools, and the usable output schemas by original name."""

    tools: tuple[m.Tool, ...]
    output_schemas: dict[str, dict[str, object]]


class Connection:
    """One life of a server.

    Invariant: whatever happens, ``settled`` and then ``closed`` get set
    (`test_a_start_that_fails_tells_every_waiter`).
    """

    def __init__(self, connector: Connector, *, name: str, mode: str, start_timeout: float) -> None:
        self._connector = connector
        self._name = name
        self._mode = mode
        self._start_timeout = start_timeout
        self.state = State.STARTING
        #: Why no call can be made, when the state is OVER; reads on after "MCP server 'x'".
        self.why = ""
        #: Who is inside: counted by the toolset, which asks for the close at 0.
        self.users = 0
        #: Set when the start has succeeded or failed.
        self.settled = trio.Event()
        #: Set when the owner is done: the client is left, the process group reaped.
        self.closed = trio.Event()
        #: There while the state is READY.
        self.client: mcp.Client | None = None
        self.listed = Listed((), {})
        #: Whether it ever was ready; a start that failed may be tried again.
        self.was_ready = False
        #: Wakes the owner: somebody asked for the close, or the link has ended.
        self._wake = trio.Event()
        self._close_requested = False
        self._token = trio.lowlevel.current_trio_token()
        #: Around everything the owner does with the server; its deadline is the start's.
        self._scope = trio.CancelScope()

    def is_of_this_run(self) -> bool:
        """Return whether it was made under the trio run that runs now."""
        return self._token is trio.lowlevel.current_trio_token()

    def spawn(self) -> None:
        """Start the owner. No checkpoint."""
        trio.lowlevel.spawn_system_task(self._own, name=f"MCP server {self._name!r}")

    def request_close(self) -> None:
        """Ask for the close; calls in flight end with an error each. No checkpoint, idempotent."""
        self._close_requested = True
        self._over("was closed")
        self._wake.set()
        if not self.was_ready:
            self._scope.cancel()
        else:
            self._scope.deadline = trio.current_time() + _CLIENT_EXIT_TIMEOUT

    # --- the owner ---

    async def _own(self) -> None:
        try:
            await self._serve()
        except BaseExceptionGroup as group:
            # A loss that coincides with a cancel arrives as a group of both.
            cancelled, failures = group.split(trio.Cancelled)
            if failures is not None:
                self._fail(failures)
            if cancelled is not None and _run_is_over():
                raise cancelled from None
        except trio.Cancelled as error:
            if _run_is_over():
                raise
            self._fail(error)  # one that the SDK let out by itself
        except Exception as error:  # noqa: BLE001 - border: whatever the SDK and the process raise
            self._fail(error)
        finally:
            self.client = None
            self._over("was closed")
            self.settled.set()
            self.closed.set()

    async def _serve(self) -> None:
        self._scope.deadline = trio.current_time() + self._start_timeout
        with self._scope:
            async with self._connector.connect(self._name, self._on_end) as link:
                try:
                    await self._hold(link)
                except Exception as error:  # noqa: BLE001 - border: the SDK
                    # Said here, while the link can add how it ended.
                    await self._explain(error, link)
                if not self._close_requested and self.was_ready:
                    self.why = await link.how_it_ended()
                    _log.warning("MCP server %r %s", self._name, self.why)
        if self._scope.cancelled_caught and not self._close_requested:
            # A legacy server that ignores what it does not know is found out after a long wait.
            hint = "; a server of the older protocol may need mode='legacy'"
            self._over(
                f"did not start within {self._start_timeout:g} seconds (start_timeout)"
                f"{hint if self._mode == 'auto' else ''}"
            )

    async def _hold(self, link: Link) -> None:
        wire = wires.Wire(self._name)
        transport = wires.WiredTransport(link, wire)
        async with mcp.Client(transport, mode=self._mode, cache=None) as client:
            wire.version = client.protocol_version
            tools, stopped = await listing.list_all(client)
            self._report(wire.listing.take_left_out(), stopped)
            self.listed = Listed(tuple(tools), dict(wire.listing.output_schemas))
            self._ready(client)
            await self._wake.wait()
            # State first: from here on a call fails fast, whatever closing takes.
            self._over("has ended its connection")
            self.client = None

    def _ready(self, client: mcp.Client) -> None:
        if self.state is State.STARTING:
            self._scope.deadline = math.inf
            self.client = client
            self.state = State.READY
            self.was_ready = True
            self.settled.set()

    def _on_end(self) -> None:
        if self.was_ready:
            self._over("has ended its connection")
        self._wake.set()

    def _over(self, why: str) -> None:
        if self.state is not State.OVER:
            self.state = State.OVER
            self.why = why

    async def _explain(self, error: Exception, link: Link) -> None:
        if self._close_requested:
            _log.debug("MCP server %r: error while closing", self._name, exc_info=error)
            return
        if self.was_ready:
            self._over("is gone")
            _log.warning("MCP server %r: the connection broke: %s", self._name, errors.said(error))
            return
        how = await link.how_it_ended()
        words = link.last_words()
        tail = f". It wrote: {words}" if words else ""
        self._over(f"could not be started: it {how}: {errors.said(error)}{tail}")

    def _fail(self, error: BaseException) -> None:
        if self.state is State.OVER:
            # Somebody was told already; what closing adds is for the log.
            _log.warning("MCP server %r: error while closing: %s", self._name, errors.said(error))
        else:
            self._over(f"could not be started: {errors.said(error)}")

    def _report(self, left_out: list[listing.LeftOut], stopped: str | None) -> None:
        for one in left_out[:_LOGGED_TOOLS]:
            _log.warning("MCP server %r, tool %r left out: %s", self._name, one.tool, one.reason)
        if (more := len(left_out) - _LOGGED_TOOLS) > 0:
            _log.warning("MCP server %r: %d more tools left out", self._name, more)
        if stopped is not None:
            _log.warning("MCP server %r: %s; the rest is left out", self._name, stopped)


def _run_is_over() -> bool:
    """Whether trio ends this system task, together with the run."""
    return trio.current_effective_deadline() == -math.inf
