"""What must stay in one asyncio task over several operations: iterators and contexts.

An async generator or a context may hold a cancel scope, a timeout or a context variable
across its operations, so all of them are done by the task that did the first. Everything
here runs in the loop's thread; trio's side of it is in ``_proxy``.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Final

import trio_runner_adapters.asyncio_bridge._call as calls

#: The answer to `Iteration` after its last item.
END: Final = object()


def kind_of(value: object) -> type[Any]:
    """Return the type of a value of which nothing is known."""
    return type(value)


def has_method(value: object, name: str) -> bool:
    """Return whether Python would find the special method ``name``: on the type."""
    return hasattr(kind_of(value), name)


class Held:
    """A task that does operations one after the other, as they are asked for."""

    def __init__(
        self,
        life: calls.Sides,
        open_it: Callable[[], Any],
        wrapped: Callable[[Any], Any],
        context: contextvars.Context,
    ) -> None:
        self._life = life
        self._open = open_it
        self._wrapped = wrapped
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._asked: asyncio.Queue[tuple[calls.Call, BaseException | None]] = asyncio.Queue()
        #: What is being done.
        self._current: calls.Call | None = None
        #: What ended the task, when that was an error nobody was told.
        self._untold: BaseException | None = None

    # --- asked for by trio ---

    def ask(self, call: calls.Call, error: BaseException | None = None) -> None:
        """Do the next operation.

        ``error`` is what the body of a context is left with; any ends an iteration.
        """
        if self._task is None and not self._life.loop_ends:
            coroutine = self._work()
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(coroutine, context=self._context)
            self._life.tasks.add(self._task)
            self._task.add_done_callback(self._done)
        if self._task is None:
            call.answer(None, asyncio.CancelledError())
        elif self._task.done():
            self._answer_late(call)
        else:
            self._asked.put_nowait((call, error))

    def cancel(self, call: calls.Call) -> None:
        """Cancel one operation; the task goes on where it can."""
        call.cancel_arrived = True
        if self._current is call and self._task is not None:
            calls.cancel_once(self._task)

    def abort(self, call: calls.Call | None) -> None:
        """Cancel the task itself: the body of the context was cancelled, or nobody is there."""
        if self._task is None or self._task.done():
            if call is not None:
                self._answer_late(call)
            return
        self._current = call
        calls.cancel_once(self._task)

    # --- the task ---

    async def _work(self) -> None:
        raise NotImplementedError

    async def _next(self) -> tuple[calls.Call, BaseException | None]:
        while True:
            call, error = await self._asked.get()
            if not call.cancel_arrived:
                self._current = call
                return call, error
            call.answer(None, asyncio.CancelledError())

    def _answer(self, value: Any) -> None:
        call, self._current = self._current, None
        if call is not None:
            call.answer(value, None)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Whatever was asked for gets an answer."""
        self._life.tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        call, self._current = self._current, None
        if call is not None:
            call.answer(None, error)
        else:
            self._untold = error
        while not self._asked.empty():
            self._answer_late(self._asked.get_nowait()[0])

    def _answer_late(self, call: calls.Call) -> None:
        error, self._untold = self._untold, None
        call.answer(END, error)


async def _opened(made: Any, method: str) -> Any:
    """What can be entered, or iterated: ``made`` itself, or what it is a coroutine of."""
    if not has_method(made, method) and inspect.isawaitable(made):
        made = await made
    if not has_method(made, method):
        raise TypeError(f"{made!r:.200} has no {method}")
    return made


class Iteration(Held):
    """An async iterator: each operation is its next item."""

    async def _work(self) -> None:
        call, error = await self._next()
        iterator: Any = None
        try:
            while error is None:
                try:
                    if iterator is None:
                        iterator = aiter(await _opened(self._open(), "__aiter__"))
                    self._answer(self._wrapped(await anext(iterator)))
                except StopAsyncIteration:
                    break
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if not call.cancel_arrived or task is None:
                        raise
                    # Just this operation was cancelled: a generator is over by that, and
                    # says so when it is asked again; another iterator may go on.
                    task.uncancel()
                    self._current = None
                    call.answer(None, asyncio.CancelledError())
                call, error = await self._next()
        finally:
            if (close := getattr(iterator, "aclose", None)) is not None:
                await close()
        self._answer(END)


class Holding(Held):
    """An async context: the first operation enters it, the second leaves it."""

    async def _work(self) -> None:
        await self._next()
        context = await _opened(self._open(), "__aenter__")
        given: BaseException | None = None
        async with context as value:
            self._answer(self._wrapped(value))
            _, given = await self._next()
            if given is not None:
                raise given
        # With an error given, coming here means that the context has taken it.
        self._answer(given is not None)
