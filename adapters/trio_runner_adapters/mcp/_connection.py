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
import trio_runner_adapters.mcp._tool_list as tool_list
import trio_runner_adapters.mcp._wire as wires

_log = logging.getLogger("trio_runner_adapters.mcp")

#: Seconds that leaving the SDK's client may take when the close was asked for.
CLIENT_EXIT_TIMEOUT: Final = 1.0
#: Seconds that a server may take to answer which log messages it is asked for.
_LEVEL_TIMEOUT: Final = 10.0
#: Seconds that a call whose connection has ended waits to learn whether a Ctrl-C ended it.
_UNWIND_TIMEOUT: Final = 1.0
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
        #: Set when the SDK's client is left, some steps after its calls were told: a Ctrl-C
        #: that has ended it is with the main task then.
        self._unwound = trio.Event()
        #: Set when the owner is done: the client is left, the process group reaped.
        self.closed = trio.Event()
        #: There while the state is READY.
        self.client: mcp.Client | None = None
        #: Its list of tools, kept up to date while the state is READY.
        self.tools = tool_list.ToolList(plan.name, self._wire)
        #: Whether it ever was ready; a start that failed may be tried again.
        self.was_ready = False
        #: Wakes the owner: somebody asked for the close, or the link has ended.
        self._wake = trio.Event()
        self._close_requested = False
        #: Another one has taken its place; it is closed when its last call has ended.
        self._is_retired = False
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

    async def wait_unwound(self) -> None:
        """Wait until it is known what ended the connection, at most a second. A checkpoint.

        Without it a turn could go on with the results of its lost calls, and call the
        model, while the Ctrl-C that cost it the connection is still on its way.
        """
        await trio.lowlevel.checkpoint()
        if not self._close_requested:
            with trio.move_on_after(_UNWIND_TIMEOUT):
                await self._unwound.wait()

    async def refresh(self) -> None:
        """Wait until the list is read anew, if the server said that it changed; bounded."""
        if self.state is State.READY:
            await self.tools.refresh()

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
            if not self._interrupted(error):
                self._fail(error)
        finally:
            self.client = None
            self._over("was closed")
            self._say_unwound()
            self.settled.set()
            self.tools.end()
            self.closed.set()

    async def _serve(self) -> None:
        self._scope.deadline = trio.current_time() + self._plan.start_timeout
        with self._scope:
            async with self._connector.connect(self._name, self._on_end) as link:
                try:
                    await self._hold(link)
                except Exception as error:  # noqa: BLE001 - border: the SDK
                    # Said here, while the link can add how it ended.
                    if not self._interrupted(error):
                        await self._explain(error, link)
                except BaseException as error:
                    # At once: closing the link may take its time.
                    if not self._interrupted(error):
                        raise
                self._say_unwound()
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
        options = self._plan.client_options()
        async with mcp.Client(transport, mode=self._plan.mode, cache=None, **options) as client:
            self._wire.version = client.protocol_version
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                level = options.get("log_level")
                if level is not None and _takes_a_level(client):
                    nursery.start_soon(self._set_log_level, client, level)
                await self.tools.start(client, nursery)
                self._ready(client)
                await self._wake.wait()
                # State first: from here on a call fails fast, whatever closing takes.
                self._over("has ended its connection")
                self.client = None
                nursery.cancel_scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def _set_log_level(self, client: mcp.Client, level: Any) -> None:
        """Ask for log messages; a server that says no, or nothing, decides by itself."""
        with trio.move_on_after(_LEVEL_TIMEOUT):
            try:
                # Not the client's own method: it is deprecated with the whole feature.
                asked = m.SetLevelRequest(params=m.SetLevelRequestParams(level=level))
                await client.session.send_request(asked, m.EmptyResult)
            except Exception as error:  # noqa: BLE001 - border: whatever the SDK raises
                _log.debug("MCP server %r: no log level: %s", self._name, errors.said(error))

    def _say_unwound(self) -> None:
        # In the order of what was handed to trio's queue: behind a Ctrl-C for the main task.
        self._token.run_sync_soon(self._unwound.set)

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


def _takes_a_level(client: mcp.Client) -> bool:
    """Whether the server is of the older protocol, where the level is asked for once."""
    return (
        client.protocol_version not in MODERN_PROTOCOL_VERSIONS
        and client.server_capabilities.logging is not None
    )


def _run_is_over() -> bool:
    """Whether trio ends this system task, together with the run."""
    return trio.current_effective_deadline() == -math.inf
