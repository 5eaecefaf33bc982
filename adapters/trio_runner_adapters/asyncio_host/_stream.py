"""`stream_in_asyncio`: the messages of a turn, as they come, on the asyncio side.

What may live here: the asyncio side of one turn (`MessageStream`) and the trio
task that owns it (`_Turn`). The task enters the agent and the turn and leaves
them; the asyncio side only asks for the next message.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import outcome
import trio

import trio_runner as tr
from trio_runner_adapters.asyncio_host._calls import Call, HostClosedError, outlast
from trio_runner_adapters.asyncio_host._guest import Guest, join

_log = logging.getLogger("trio_runner_adapters.asyncio_host")


class _Turn:
    """The turn, in a trio task of its own. It knows nothing of the stream, which may be dropped."""

    def __init__(
        self, guest: Guest, agent: tr.ToolAgent, make_runner: Callable[[], tr.ToolRunner]
    ) -> None:
        self.guest = guest
        self._agent = agent
        self._make_runner = make_runner
        self.runner: tr.ToolRunner | None = None
        #: The message that is asked for; None between two.
        self.step: Call[tr.Message] | None = None
        #: The same, until the task takes it up.
        self._asked: Call[tr.Message] | None = None
        self.is_closing = False
        self._wake = trio.Event()
        self.call = Call(guest.loop, self._drive)

    # --- the trio side ----------------------------------------------------------

    async def _drive(self) -> None:
        async with self._agent, self._make_runner() as self.runner:
            self.call.tell(self.call.entered)
            try:
                while not self.is_closing:
                    asked, self._asked = self._asked, None
                    if asked is not None:
                        await asked.run()
                    else:
                        self._wake = trio.Event()
                        await self._wake.wait()
            finally:
                if self._asked is not None:
                    self._asked.settle(outcome.Error(StopAsyncIteration()))

    # --- the asyncio side -------------------------------------------------------

    def ask(self) -> Call[tr.Message]:
        """Ask for the next message."""
        assert self.runner is not None
        step = Call(self.guest.loop, self.runner.__anext__)
        self.guest.watch(step)
        self.step = self._asked = step
        self._wake.set()
        return step

    def close(self) -> None:
        """Ask the task to leave the turn; a step that is under way is cancelled."""
        self.is_closing = True
        if not self.guest.is_over:
            self._wake.set()
            if self.step is not None:
                self.step.scope.cancel()

    def abandon(self) -> None:
        """Nobody will wait for the end."""
        self.close()
        self.call.scope.cancel()
        self.guest.leave_nowait()


class MessageStream:
    """The assistant messages of one turn, for ``async for``; made by `stream_in_asyncio`."""

    def __init__(self, agent: tr.ToolAgent, make_runner: Callable[[], tr.ToolRunner]) -> None:
        self._agent = agent
        self._make_runner = make_runner
        #: None before the block is entered.
        self._turn: _Turn | None = None
        self._is_used = False
        self._is_left = False

    @property
    def runner(self) -> tr.ToolRunner:
        """The runner of the turn: its properties and its plain methods, such as ``cancel_call``.

        What it has to await is for trio code.

        Raises:
          NotEnteredError: the block is not entered.
        """
        if self._turn is None or self._turn.runner is None:
            raise tr.NotEnteredError("there is no turn yet; enter the stream with 'async with'")
        return self._turn.runner

    async def __aenter__(self) -> Self:
        """Open the agent and begin its turn.

        If cancelled, the turn is left again, and CancelledError is raised.

        Raises:
          BusyError: the agent has a turn running, or this stream was used before.
          BaseException: what opening the agent raised, bare.
        """
        if self._is_used:
            raise tr.BusyError("a stream is one turn; make a new one with stream_in_asyncio(...)")
        self._is_used = True
        guest = await join()
        turn = _Turn(guest, self._agent, self._make_runner)
        try:
            guest.spawn(turn.call)
        except BaseException:
            guest.leave_nowait()
            raise
        cancelled = await outlast(turn.call.entered, turn.call.scope.cancel)
        if cancelled is not None or turn.call.done.is_set():
            await guest.finish(turn.call, cancelled)
            raise HostClosedError("the turn was left while it was being entered")
        self._turn = turn
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tr.Message:
        """Run the turn to its next message.

        If cancelled, the turn is interrupted, and CancelledError is raised when it
        has finished; later calls stop the iteration.

        Raises:
          NotEnteredError: outside ``async with``.
          BusyError: another task is in here.
          BaseException: what ended the turn, bare.
        """
        turn = self._turn
        if turn is None:
            raise tr.NotEnteredError(
                "cannot iterate outside the stream's block: write 'async with "
                "stream_in_asyncio(...) as messages:' around the loop. An abandoned iterator could "
                "not finish its turn"
            )
        if turn.step is not None:
            raise tr.BusyError("another task is iterating this stream; one task at a time")
        if turn.is_closing or turn.call.done.is_set():
            await asyncio.sleep(0)
            raise StopAsyncIteration
        step = turn.ask()
        try:
            cancelled = await outlast(step.done, step.scope.cancel)
        except BaseException:  # the coroutine is being thrown away
            step.scope.cancel()
            raise
        finally:
            turn.step = None
            turn.guest.forget(step)
        if cancelled is None and turn.is_closing:
            raise StopAsyncIteration  # another task has closed the stream
        return step.result(cancelled)

    async def aclose(self) -> None:
        """Interrupt the turn if it is not through, and wait for its end; as leaving the block.

        Idempotent. A cancel meanwhile is waited out and raised: the turn's ``grace`` holds.
        """
        turn = self._turn
        if turn is None or self._is_left:
            return
        self._is_left = True
        turn.close()
        try:
            await turn.guest.finish(turn.call)
        except HostClosedError:
            pass  # the whole trio run has ended, and the turn with it

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Interrupt the turn if it is not through, and wait for its end.

        Raises:
          BaseException: what closing the agent raised; logged instead when
            something else leaves already.
        """
        try:
            await self.aclose()
        except Exception as error:
            if exc is None:
                raise
            _log.error("an error was overtaken while a stream was left", exc_info=error)

    def __del__(self) -> None:
        turn = self._turn
        if turn is None or self._is_left or turn.guest.is_over:
            return
        warnings.warn(
            f"{self!r} was dropped inside its block; its turn is interrupted in the background",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        try:
            turn.guest.loop.call_soon_threadsafe(turn.abandon)
        except RuntimeError:
            pass  # the loop is closed


def stream_in_asyncio(
    agent: tr.ToolAgent,
    messages: str | tr.Message | Sequence[tr.Message],
    *,
    params: tr.RequestParams | None = None,
    tools: Iterable[tr.Tool | Callable[..., Any]] | None = None,
    hooks: tr.ToolRunnerHooks | None = None,
    observers: Iterable[tr.Observer] = (),
) -> MessageStream:
    """The assistant messages of one turn, as they come, for asyncio code.

    Example::

        async with stream_in_asyncio(agent, "What is the weather in Oslo?") as messages:
            async for message in messages:
                print(message.text)

    It is what ``async with agent, agent.turn(...) as runner`` is in trio, and takes
    the arguments of `ToolAgent.turn`. A message that asks for tools is handed out
    before they run, and nothing runs until the next one is asked for.

    Why a block and not a plain async generator: only leaving a block can wait.
    Whichever way it is left (the end, ``break``, an error, a cancelled consumer, an
    ``aclose`` of a generator around it), the turn is interrupted if it is not
    through, and when the block is left nothing of it runs. A generator that is left
    by ``break`` is closed some time later, in another task, by the garbage
    collector. A stream that is dropped inside its block says so by a
    ResourceWarning, and its turn is interrupted in the background.

    Cancelling the consumer interrupts the turn and waits, as `run_in_asyncio` does.
    """
    return MessageStream(
        agent,
        functools.partial(
            agent.turn, messages, params=params, tools=tools, hooks=hooks, observers=observers
        ),
    )
