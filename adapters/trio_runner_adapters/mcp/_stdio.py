"""A server process in a process group of its own, as streams for the SDK.

Why not the SDK's own stdio client: it kills the group only when the server does
not exit by itself, so a polite server's children live on; it waits for ever for
an answer that came in a line it could not parse; and its bounds are fixed.

The read side has no task: the SDK's loop reads the pipe itself. Writing goes
through a queue and one writer task, so that a cancelled caller cannot leave half
a message on the pipe.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Final, Literal, Self

import anyio
import attrs
import mcp_types as m
import trio
from mcp.client.stdio import get_default_environment
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage

import trio_runner_adapters.mcp._groups as groups
import trio_runner_adapters.mcp._lines as lines
import trio_runner_adapters.mcp._streams as streams
import trio_runner_adapters.mcp._wire as wires
from trio_runner_adapters._finishing import closing_scope

_log = logging.getLogger("trio_runner_adapters.mcp")

StderrMode = Literal["tail", "inherit", "discard"]

#: Messages that may wait for a server that does not read; then senders wait.
_QUEUE: Final = 128
_CHUNK_BYTES: Final = 65536
_STDERR_TAIL_BYTES: Final = 4096
#: Bad lines logged for one server; later ones are only counted.
_LOGGED_LINES: Final = 10
#: Seconds in which what an ended server had written is still read, when a child holds its pipe.
_DRAIN_TIMEOUT: Final = 0.5
#: Closing our ends of the pipes takes one checkpoint each; a bound all the same.
_CLOSE_PIPES_TIMEOUT: Final = 1.0
#: Seconds between two looks at whether the group is gone.
_POLL_INTERVAL: Final = 0.02


@attrs.frozen
class StdioCommand:
    """How to start a server."""

    command: str
    args: Sequence[str]
    env: Mapping[str, str] | None
    cwd: str | os.PathLike[str] | None
    stderr: StderrMode
    max_message_bytes: int
    close_timeout: float


@attrs.define(eq=False)
class _Outgoing:
    """A message in the queue."""

    data: bytes
    #: The request's id, for a request that can still be taken back.
    request_id: m.RequestId | None = None
    taken_back: bool = False


class StdioServer:
    """One running server. Made by `serve`; entering it as a transport hands out its streams."""

    def __init__(
        self,
        process: trio.Process,
        command: StdioCommand,
        name: str,
        on_end: Callable[[], None],
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._command = command
        self._name = name
        #: Told once, synchronously, when nothing can come from the server any more.
        self._on_end = on_end
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._splitter = lines.LineSplitter(command.max_message_bytes)
        #: Set when the server's output has ended or was given up.
        self._ended = trio.Event()
        #: Set when the writer has written what it could.
        self._written = trio.Event()
        self._outgoing, self._queue = trio.open_memory_channel[_Outgoing](_QUEUE)
        #: Requests that are queued and not yet being written.
        self._unsent: dict[m.RequestId, _Outgoing] = {}
        #: What the last line held and was not handed out yet.
        self._parsed: deque[lines.Parsed] = deque()
        self._stderr_tail = b""
        #: Lines of the server that were no message.
        self.bad_lines = 0

    # --- the transport the SDK sees ---

    async def __aenter__(self) -> tuple[_ReadStream, _WriteStream]:
        """Hand out the streams. No checkpoint."""
        return _ReadStream(self), _WriteStream(self)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Do nothing: the process outlives the SDK's client and is closed by `serve`."""

    async def next_message(self) -> SessionMessage | Exception | None:
        """Return the next message, or None when there will be none any more."""
        while True:
            while self._parsed:
                match self._parsed.popleft():
                    case lines.Garbage() as garbage:
                        self._skip(garbage)
                        # A server that floods us with them holds up nobody else.
                        await trio.lowlevel.checkpoint()
                    case lines.LostAnswer() as lost:
                        self._skip(lost)
                        return wires.LostAnswerError(lost.reason)
                    case message:
                        return SessionMessage(message)
            if (line := self._splitter.next_line()) is not None:
                self._parsed += lines.parse(line)
                continue
            if self._ended.is_set():
                return None
            try:
                data = await self._stdout.receive_some(_CHUNK_BYTES)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                data = b""
            if data:
                self._splitter.feed(bytes(data))
            else:
                self._end()

    async def send(self, item: SessionMessage) -> None:
        """Queue one message. Serialised here, so that a bad value is its sender's error.

        Waits while the queue is full, except to take back a request: that never
        waits, and a request which is still in the queue is not sent at all.
        """
        message = item.message
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
        outgoing = _Outgoing(text.encode() + b"\n")
        try:
            if (taken_back := wires.cancelled_id(message)) is not None:
                self._take_back(taken_back, outgoing)
                await trio.lowlevel.checkpoint()
                return
            if type(message) is m.JSONRPCRequest:
                outgoing.request_id = coerce_request_id(message.id)
                # Known before there is room: a cancel while waiting takes it back as well.
                self._unsent[outgoing.request_id] = outgoing
            await self._outgoing.send(outgoing)
        except trio.BrokenResourceError:
            raise anyio.BrokenResourceError from None
        except trio.ClosedResourceError:
            raise anyio.ClosedResourceError from None

    def _take_back(self, request_id: m.RequestId, notice: _Outgoing) -> None:
        unsent = self._unsent.pop(request_id, None)
        if unsent is not None:
            unsent.taken_back = True
            return
        try:
            self._outgoing.send_nowait(notice)
        except trio.WouldBlock:
            # It reads nothing at present; its answer, if one comes, goes to nobody.
            _log.debug("MCP server %r: no room for a cancel", self._name)

    def close_sending(self) -> None:
        """Take no further message; what is queued is still written."""
        self._outgoing.close()

    # --- its tasks ---

    @trio.lowlevel.enable_ki_protection
    async def write_messages(self) -> None:
        """Write what is queued until there is no more, or the server stops reading."""
        try:
            async with self._queue:
                async for outgoing in self._queue:
                    if outgoing.request_id is not None:
                        self._unsent.pop(outgoing.request_id, None)
                    if not outgoing.taken_back:
                        await self._stdin.send_all(outgoing.data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # It reads no more. What it has answered already is still to be read.
            await self._end_soon()
        finally:
            self._written.set()

    @trio.lowlevel.enable_ki_protection
    async def watch(self) -> None:
        """End the connection when the process has ended, even when a child holds its pipe."""
        await self._process.wait()
        await self._end_soon()

    @trio.lowlevel.enable_ki_protection
    async def read_stderr(self) -> None:
        """Keep the tail of what the server writes to stderr."""
        stream = self._process.stderr
        if stream is None:
            return
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            async for data in stream:
                self._stderr_tail = (self._stderr_tail + bytes(data))[-_STDERR_TAIL_BYTES:]

    async def _end_soon(self) -> None:
        with trio.move_on_after(_DRAIN_TIMEOUT):
            await self._ended.wait()
        await self._stdout.aclose()
        self._end()

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            if rest := self._splitter.rest():
                self._skip(lines.Garbage("cut off by the end", repr(rest[:200])))
            self._on_end()

    def _skip(self, garbage: lines.Garbage | lines.LostAnswer) -> None:
        self.bad_lines += 1
        if self.bad_lines <= _LOGGED_LINES:
            _log.warning(
                "MCP server %r wrote a line that is no message (%s), skipped: %r",
                self._name,
                garbage.reason,
                garbage.excerpt,
            )
        if self.bad_lines == _LOGGED_LINES:
            _log.warning("MCP server %r: further such lines are only counted", self._name)

    # --- its end ---

    async def how_it_ended(self) -> str:
        """Return in words how the connection ended; waits up to half a second for the status."""
        with trio.move_on_after(_DRAIN_TIMEOUT):
            await self._process.wait()
        match self._process.returncode:
            case None:
                said = "closed its connection"
            case code if code < 0:
                said = f"was ended by signal {_signal_name(-code)}"
            case code:
                said = f"exited with status {code}"
        return said

    def last_words(self) -> str:
        """Return the end of what it wrote to stderr, for an error message; may be empty."""
        return self._stderr_tail.decode("utf-8", "replace").strip()[-1000:]

    async def close(self) -> None:
        """End the process and its whole group: end of input, SIGTERM, SIGKILL. Idempotent.

        Takes at most ``close_timeout``, in shares, and runs in a scope that has
        it as its deadline.
        """
        self.close_sending()
        async with trio.open_nursery() as nursery:
            # A server that is stuck writing cannot see the end of its input.
            nursery.start_soon(self._drain)
            await self._stop()
            nursery.cancel_scope.cancel()

    async def _stop(self) -> None:
        start, whole = trio.current_time(), self._command.close_timeout
        pgid = self._process.pid
        with trio.move_on_at(start + 0.1 * whole):
            await self._written.wait()
        await self._stdin.aclose()
        with trio.move_on_at(start + 0.5 * whole):
            await self._process.wait()
        # Also when the server left by itself: its children are ours to end.
        for number, share in ((signal.SIGTERM, 0.75), (_KILL, 0.95)):
            if self._process.poll() is not None and not groups.group_lives(pgid):
                break
            groups.signal_group(pgid, number)
            with trio.move_on_at(start + share * whole):
                await self._gone(pgid)
        if self._process.poll() is None or groups.group_lives(pgid):
            _log.error("MCP server %r could not be ended; process group %d", self._name, pgid)

    async def close_pipes(self) -> None:
        """Close our ends of the pipes; whoever still holds the others is on their own."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                await stream.aclose()

    async def _gone(self, pgid: int) -> None:
        # No event tells that the last process of a group has ended.
        while self._process.poll() is None or groups.group_lives(pgid):  # noqa: ASYNC110
            await trio.sleep(_POLL_INTERVAL)

    @trio.lowlevel.enable_ki_protection
    async def _drain(self) -> None:
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while await self._stdout.receive_some(_CHUNK_BYTES):
                pass


_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@asynccontextmanager
async def serve(
    command: StdioCommand, name: str, on_end: Callable[[], None]
) -> AsyncGenerator[StdioServer]:
    """Start a server, and end it with its whole process group when the block is left.

    Must be entered and left by one task. However the block is left, cancelled too,
    the end takes at most ``close_timeout``.

    Raises:
      OSError: it could not be started.
    """
    process = await trio.lowlevel.open_process(
        [command.command, *command.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=_stderr(command.stderr),
        env=get_default_environment() | dict(command.env or {}),
        cwd=command.cwd,
        # Its own group: ended as a whole, and a Ctrl-C at the terminal is ours alone.
        start_new_session=True,
    )
    server = StdioServer(process, command, name, on_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.write_messages)
        nursery.start_soon(server.watch)
        nursery.start_soon(server.read_stderr)
        try:
            yield server
        finally:
            with closing_scope(command.close_timeout):
                await server.close()
            with closing_scope(_CLOSE_PIPES_TIMEOUT):
                await server.close_pipes()
            nursery.cancel_scope.cancel()


def _stderr(mode: StderrMode) -> int | None:
    match mode:
        case "tail":
            return subprocess.PIPE
        case "discard":
            return subprocess.DEVNULL
        case "inherit":
            return None


class _ReadStream(streams.Closing):
    """The SDK's read side: iterating it reads the pipe."""

    def __init__(self, server: StdioServer) -> None:
        self._server = server

    async def receive(self) -> SessionMessage | Exception:
        message = await self._server.next_message()
        if message is None:
            raise anyio.EndOfStream
        return message

    async def aclose(self) -> None:
        """Do nothing: the pipe is drained and closed with the process."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        message = await self._server.next_message()
        if message is None:
            raise StopAsyncIteration
        return message


class _WriteStream(streams.Closing):
    """The SDK's write side."""

    def __init__(self, server: StdioServer) -> None:
        self._server = server

    async def send(self, item: SessionMessage, /) -> None:
        await self._server.send(item)

    async def aclose(self) -> None:
        self._server.close_sending()
