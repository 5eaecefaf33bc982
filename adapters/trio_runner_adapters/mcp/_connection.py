"""One connection to one server, from open to close: the task that owns it.

The SDK's client must be entered and left by one task, and when its connection is
lost everything in its body is cancelled. So each connection has one owner task
that does nothing but hold the client; calls are made from the callers' tasks.

The owner is a *system task*. It may not be a child of whoever entered first:
several tasks may use the toolset, and the first to come may be the first to go,
or be cancelled, while the others are in the middle of a call. An exception that
escaped a system task would end the whole trio run, so the owner keeps every
failure as a value; only the cancel at the run's end passes through, and a Ctrl-C
that strikes in the SDK's tasks, or in a server in memory, goes to the main task.
"""

from __future__ import annotations

import enum
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import attrs
import mcp
import mcp_types as m
import trio
from mcp.client import Transport
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner_adapters._main_task as main_task
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._listing as listing
import trio_runner_adapters.mcp._wire as wires

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Seconds that leaving the SDK's client may take when the close was asked for.
CLIENT_EXIT_TIMEOUT: Final = 1.0
#: Seconds that the first list waits for the server to say that it will tell of changes.
_ACK_TIMEOUT: Final = 1.0
#: Seconds that reading a changed list may take; a model call waits for it.
_REFRESH_TIMEOUT: Final = 10.0
#: Seconds before the stream of changes is asked for again: it doubles each time.
_LISTEN_AGAIN: Final = (1.0, 60.0)
#: Tools left out that are named in the log; more are counted.
_LOGGED_TOOLS: Final = 50

#: Called once, synchronously, when a link has ended by itself.
OnEnd: TypeAlias = Callable[[], None]


class Link(Transport, Protocol):
    """A transport that can say how it ended."""

    async def how_it_ended(self) -> str:
        """Return in words how the connection ended, or nothing; bounded."""
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


@attrs.frozen
class Plan:
    """What holds for each connection to a server.

    Attributes:
      client_options: makes more arguments of `mcp.Client`, for each connection anew.
      client_exit_timeout: seconds that leaving the SDK's client may take.
    """

    name: str
    mode: str
    start_timeout: float
    client_options: Callable[[], Mapping[str, Any]] = dict
    client_exit_timeout: float = CLIENT_EXIT_TIMEOUT


class Connection:
    """One life of a server.

    Invariant: whatever happens, ``settled`` and then ``closed`` get set
    (`test_a_start_that_fails_tells_every_waiter`).
    """

    def __init__(self, connector: Connector, plan: Plan) -> None:
        self._connector = connector
        self._plan = plan
        self._name = plan.name
        self._wire = wires.Wire(plan.name, self._on_end)
        self.state = State.STARTING
        #: Why no call can be made, when the state is OVER; reads on after "MCP server 'x'".
        self.why = ""
        #: Whether a request got lost on it: the next call makes a new one first.
        self.is_doubtful = False
        #: Calls in flight.
        self.calls = 0
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
        #: Another one has taken its place; it is closed when its last call has ended.
        self._is_retired = False
        #: Wakes the task that reads the list anew; and what those wait for who woke it.
        self._refresh_wanted = trio.Event()
        self._refreshed: trio.Event | None = None
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
            self._scope.deadline = trio.current_time() + self._plan.client_exit_timeout

    def retire(self) -> None:
        """Close it as soon as no call is in flight on it. No checkpoint, idempotent."""
        self._is_retired = True
        if self.calls == 0:
            self.request_close()

    def begin_call(self) -> None:
        """Count a call that is in flight from here on. No checkpoint."""
        self.calls += 1

    def end_call(self) -> None:
        """Count a call that has ended. No checkpoint."""
        self.calls -= 1
        if self._is_retired and self.calls == 0:
            self.request_close()

    async def refresh(self) -> None:
        """Wait until the list is read anew, if the server said that it changed.

        However many wait, it is read once, by the owner; cancelled, it is read all
        the same. It takes at most ten seconds.
        """
        if self.state is not State.READY:
            return
        if self._refreshed is None:
            if not self._wire.tools_changed:
                return
            self._refreshed = trio.Event()
            self._refresh_wanted.set()
        await self._refreshed.wait()

    # --- the owner ---

    async def _own(self) -> None:
        try:
            await self._serve()
        except (KeyboardInterrupt, SystemExit) as error:
            self._interrupted(error)
        except BaseExceptionGroup as group:
            if self._interrupted(group):
                return
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
            self._say_refreshed()
            self.closed.set()

    async def _serve(self) -> None:
        self._scope.deadline = trio.current_time() + self._plan.start_timeout
        with self._scope:
            async with self._connector.connect(self._name, self._on_end) as link:
                try:
                    await self._hold(link)
                except Exception as error:  # noqa: BLE001 - border: the SDK
                    # Said here, while the link can add how it ended.
                    await self._explain(error, link)
                except BaseException as error:
                    # At once: closing the link may take its time.
                    if not self._interrupted(error):
                        raise
                if not self._close_requested and self.was_ready:
                    self.why = await link.how_it_ended() or self.why
                    _log.warning("MCP server %r %s", self._name, self.why)
        if self._scope.cancelled_caught and not self._close_requested:
            # A legacy server that ignores what it does not know is found out after a long wait.
            hint = "; a server of the older protocol may need mode='legacy'"
            self._over(
                f"did not start within {self._plan.start_timeout:g} seconds (start_timeout)"
                f"{hint if self._plan.mode == 'auto' else ''}"
            )

    async def _hold(self, link: Link) -> None:
        transport = wires.WiredTransport(link, self._wire)
        async with mcp.Client(
            transport, mode=self._plan.mode, cache=None, **self._plan.client_options()
        ) as client:
            self._wire.version = client.protocol_version
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                if _tells_changes(client):
                    await self._begin_listening(client, nursery)
                await self._read_list(client)
                self._ready(client)
                nursery.start_soon(self._keep_listed, client)
                await self._wake.wait()
                # State first: from here on a call fails fast, whatever closing takes.
                self._over("has ended its connection")
                self.client = None
                nursery.cancel_scope.cancel()

    # --- the list of tools ---

    async def _read_list(self, client: mcp.Client) -> None:
        self._wire.tools_changed = False  # what is told from here on counts anew
        tools, stopped = await listing.list_all(client)
        found = self._wire.listing
        self._report(found.take_left_out(), stopped)
        found.keep_only([tool.name for tool in tools])
        self.listed = Listed(tuple(tools), dict(found.output_schemas))

    @trio.lowlevel.enable_ki_protection
    async def _keep_listed(self, client: mcp.Client) -> None:
        """Read the list anew, each time somebody wants it; a failure keeps the old one."""
        while True:
            await self._refresh_wanted.wait()
            self._refresh_wanted = trio.Event()
            why = f"it took more than {_REFRESH_TIMEOUT:g} seconds"
            with trio.move_on_after(_REFRESH_TIMEOUT) as scope:
                try:
                    await self._read_list(client)
                    why = ""
                except Exception as error:  # noqa: BLE001 - border: whatever the SDK raises
                    why = errors.said(error)
                    self._wire.tools_changed = True  # it is tried again
            if why or scope.cancelled_caught:
                _log.warning(
                    "MCP server %r: its changed list of tools could not be read, the old one "
                    "stays: %s",
                    self._name,
                    why,
                )
            self._say_refreshed()

    def _say_refreshed(self) -> None:
        if self._refreshed is not None:
            self._refreshed.set()
            self._refreshed = None

    async def _begin_listening(self, client: mcp.Client, nursery: trio.Nursery) -> None:
        """Ask to be told of changes; a little later in any case the list may be read."""
        acknowledged = trio.Event()
        nursery.start_soon(self._listen, client, acknowledged)
        with trio.move_on_after(_ACK_TIMEOUT):
            await acknowledged.wait()

    @trio.lowlevel.enable_ki_protection
    async def _listen(self, client: mcp.Client, acknowledged: trio.Event) -> None:
        """Hold the stream of changes open; what comes in it is seen by the `Wire`."""
        pause, longest = _LISTEN_AGAIN
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    if acknowledged.is_set() or self.was_ready:
                        self._wire.tools_changed = True  # it may have changed unheard
                    acknowledged.set()
                    began = trio.current_time()
                    async for _ in changes:
                        pass
                    if trio.current_time() - began > longest:
                        pause = _LISTEN_AGAIN[0]
            except mcp.MCPError as error:
                if error.error.code == m.METHOD_NOT_FOUND:
                    acknowledged.set()
                    return
                _log.debug("MCP server %r: no news of changes: %s", self._name, errors.said(error))
            except Exception as error:  # noqa: BLE001 - border: the stream is lost, for instance
                _log.debug("MCP server %r: no news of changes: %s", self._name, errors.said(error))
            await trio.sleep(pause)
            pause = min(2 * pause, longest)

    # --- how it goes on and ends ---

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
        head = f"it {how}: " if how else ""
        tail = f". It wrote: {words}" if words else ""
        self._over(f"could not be started: {head}{errors.said(error)}{tail}")

    def _interrupted(self, error: BaseException) -> bool:
        """Whether ``error`` would end the program; then the main task has been told to.

        A Cancelled beside it is dropped: the owner ends in any case.
        """
        if not main_task.passed_on(error):
            return False
        self._over(f"was interrupted by {errors.said(error)}")
        return True

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


def _tells_changes(client: mcp.Client) -> bool:
    """Whether the server must be asked to tell of changes. An older one tells them unasked."""
    tools = client.server_capabilities.tools
    return (
        client.protocol_version in MODERN_PROTOCOL_VERSIONS
        and tools is not None
        and bool(tools.list_changed)
    )


def _run_is_over() -> bool:
    """Whether trio ends this system task, together with the run."""
    return trio.current_effective_deadline() == -math.inf
