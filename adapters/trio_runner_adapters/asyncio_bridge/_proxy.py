"""What a trio program holds of the asyncio side: references, and calls not yet made.

Nothing of the client is touched in trio's thread. A reference only notes which attribute
of which object is meant; it is looked up in the loop's thread, when the call is made.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import attrs
import trio

import trio_runner_adapters.asyncio_bridge._call as calls
import trio_runner_adapters.asyncio_bridge._callbacks as callbacks
import trio_runner_adapters.asyncio_bridge._errors as errors
import trio_runner_adapters.asyncio_bridge._held as held
import trio_runner_adapters.asyncio_bridge._life as lives

#: In place of an object: the client itself.
CLIENT: Final = object()
#: Types of values that are what they are, found without looking.
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
_CALLABLES: Final = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)
_ASYNC_METHODS: Final = ("__await__", "__aiter__", "__anext__", "__aenter__")


@attrs.frozen
class _OnLoop:
    value: Any


def on_loop(value: Any) -> Any:
    """Mark an argument that is to be passed as it is, a callable that the loop may call itself.

    Any other callable argument is run in the calling trio task.
    """
    return _OnLoop(value)


class BridgedObject:
    """Stands for an object on the asyncio side: the client, or what it gave back.

    * ``await client.call_tool("x")`` calls a method, synchronous ones too, in the loop's thread,
      and so does ``nursery.start_soon(client.call_tool, "x")``;
    * ``await client.version`` reads an attribute;
    * ``async with client.session() as session`` enters a context, and ``async for item in
      client.stream()`` iterates; each stays in one asyncio task;
    * ``client.tools.call("x")`` may go as deep as you like.

    As an argument of a call it stands for its object. A value that comes back is itself,
    unless it has something asynchronous about it (coroutine methods, an async iterator or
    context), or is a function: then it is a `BridgedObject`. That is looked at in lists,
    tuples and dicts, too, one level deep.
    """

    __slots__ = ("_bridged_entered", "_bridged_life", "_bridged_path", "_bridged_root")

    def __init__(self, life: lives.Life, root: object, path: tuple[str, ...] = ()) -> None:
        self._bridged_life = life
        self._bridged_root = root
        self._bridged_path = path
        #: Who has entered it by ``async with`` as it stands, and the call that did.
        self._bridged_entered: list[tuple[trio.lowlevel.Task, BridgedCall]] = []

    def __repr__(self) -> str:
        """Name what it stands for, and the bridge."""
        return f"<{name_of(self)} of asyncio bridge {life_of(self).name!r}>"

    def __getattr__(self, name: str) -> BridgedObject:
        """Return a reference to an attribute; whether there is one, the asyncio side knows."""
        if name.startswith("__"):
            # Python itself asks for these, to copy or to pickle.
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return BridgedObject(self._bridged_life, self._bridged_root, (*self._bridged_path, name))

    @trio.lowlevel.enable_ki_protection
    def __call__(self, *args: Any, **kwargs: Any) -> BridgedCall:
        """Return the call, not yet made: await it, enter it or iterate it.

        A callable among the arguments (no class, and not marked by `on_loop`) runs in the
        trio task that waits for the call, in the order in which the client calls it and
        before the call returns; what it raises is raised in who called it. The loop stands
        still during one that is no async function. Between the operations of an iterator or
        a context, where no task waits, a task of the bridge runs it.
        """
        return BridgedCall(self, args, kwargs)

    @trio.lowlevel.enable_ki_protection
    def __await__(self) -> Generator[Any, Any, Any]:
        """Read it: the value of the attribute, awaited if it is awaitable. A checkpoint."""
        return BridgedCall(self, None, {}).__await__()

    def __aiter__(self) -> BridgedCall:
        """Iterate it, as the result of a call."""
        return BridgedCall(self, None, {})

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Any:
        """Enter it, as the result of a call; several tasks may, each for itself."""
        call = BridgedCall(self, None, {})
        value = await call.__aenter__()
        self._bridged_entered.append((trio.lowlevel.current_task(), call))
        return value

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Leave what this task entered last."""
        entered, task = self._bridged_entered, trio.lowlevel.current_task()
        own = [index for index, (who, _) in enumerate(entered) if who is task]
        _, call = entered.pop(own[-1] if own else -1)
        return await call.__aexit__(exc_type, exc, traceback)


class BridgedCall:
    """A call of the asyncio side that was not made yet; use it once.

    * ``await call``: its result.
    * ``async with call as value``: enters what the call gives, or what awaiting that gives.
      An error in the block is raised in the context, which may take it; a cancel in the block
      cancels the context's task. Leaving is bounded by ``grace``, cancelled or not.
    * ``async for item in call``: iterates it likewise. An iterator that is left early is closed
      by ``await call.aclose()`` (`contextlib.aclosing` does it), when the object is collected,
      or with the bridge.

    Every operation is a checkpoint. Cancelled, it cancels its asyncio task and waits for that
    to end, at most ``grace`` seconds; a result or an error that comes all the same is what the
    call returns or raises, and the cancel is found at the next checkpoint. A client that does
    not end by then costs the bridge: it is abandoned, with a warning.

    Raises, beside what the client raises:
      BridgeClosedError: the bridge is not open, or ended meanwhile.
      ForeignCancelledError: the asyncio side cancelled the call by itself.
    """

    __slots__ = (
        "__weakref__",
        "_args",
        "_channel",
        "_held",
        "_iterates",
        "_kwargs",
        "_life",
        "_over",
        "_steps",
        "_to",
        "_used",
    )

    @trio.lowlevel.enable_ki_protection
    def __init__(
        self, to: BridgedObject, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any]
    ) -> None:
        self._to = to
        self._life = life_of(to)
        #: None: it is not called, just used.
        self._args = args
        self._kwargs = kwargs
        self._channel: callbacks.Channel | None = None
        self._held: held.Held | None = None
        #: Whether it is being used, or was: each is for one use.
        self._used = False
        #: What `send` and `throw` drive.
        self._steps: Generator[Any, Any, Any] | None = None
        #: Whether it is iterated, and whether that has ended.
        self._iterates = False
        self._over = False

    def __repr__(self) -> str:
        """Name the method and the bridge."""
        return f"<call of {self._to!r}>"

    # --- await ---

    @trio.lowlevel.enable_ki_protection
    def __await__(self) -> Generator[Any, Any, Any]:
        """Make the call, and return what it gives. A checkpoint."""
        self._use()
        return self._result().__await__()

    @trio.lowlevel.enable_ki_protection
    async def _result(self) -> Any:
        life = self._life
        life.check_usable()
        make = self._prepared()

        async def work() -> Any:
            value = make()
            if held.kind_of(value) is types.CoroutineType or inspect.isawaitable(value):
                value = await value
            return wrapped(life, value)

        return await life.perform(functools.partial(name_of, self._to), work, self._channel)

    # --- as a coroutine, which a method must give for `trio.Nursery.start_soon` ---

    @trio.lowlevel.enable_ki_protection
    def send(self, value: Any) -> Any:
        """Take one step of awaiting it, as a coroutine does."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    @trio.lowlevel.enable_ki_protection
    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, as a coroutine does."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    @trio.lowlevel.enable_ki_protection
    def close(self) -> None:
        """Give up awaiting it, as a coroutine does; one that was not begun is never made."""
        self._used = True
        if self._steps is not None:
            self._steps.close()

    # --- async with ---

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Any:
        """Enter the context, in a task of its own. A checkpoint."""
        self._use()
        self._life.check_usable()
        await trio.lowlevel.checkpoint_if_cancelled()
        holding = self._held = self._hold(held.Holding)
        call = self._register("entering")
        try:
            self._life.send(holding.ask, call)
            return await call.outcome(lambda: self._life.send(holding.cancel, call))
        except BaseException:
            # It may have been entered all the same.
            self._life.send(holding.abort, None)
            self._end()
            raise
        finally:
            self._life.forget(call)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Leave the context, within ``grace`` seconds, also when cancelled."""
        holding = self._held
        assert holding is not None, "entered"
        call = self._register("leaving")
        try:
            if exc is None or isinstance(exc, Exception):
                self._life.send(holding.ask, call, exc)
                taken = await call.finish()
            else:
                await self._leave_by_cancel(holding, call)
                taken = False
        except Exception as error:
            if error is not exc:
                raise
            taken = False  # the context let it through
        finally:
            self._life.forget(call)
            self._end()
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        return taken is True and exc is not None

    async def _leave_by_cancel(self, holding: held.Held, call: calls.Call) -> None:
        self._life.send(holding.abort, call)
        try:
            await call.finish()
        except (errors.ForeignCancelledError, errors.BridgeClosedError):
            pass  # that was asked for; what leaves the block says why

    # --- async for ---

    @trio.lowlevel.enable_ki_protection
    def __aiter__(self) -> Self:
        """Return itself; nothing is called before the first item is asked for."""
        if not self._iterates:
            self._use()
            self._iterates = True
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> Any:
        """Return the next item. A checkpoint; cancelled, it ends a generator."""
        self.__aiter__()
        if self._over:
            raise StopAsyncIteration
        self._life.check_usable()
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._held is None:
            self._held = self._hold(held.Iteration)
        iteration = self._held
        call = self._register("the next item of")
        try:
            self._life.send(iteration.ask, call)
            item = await call.outcome(lambda: self._life.send(iteration.cancel, call))
        finally:
            self._life.forget(call)
        if item is held.END:
            self._over = True
            self._held = None
            self._end()
            raise StopAsyncIteration
        return item

    @trio.lowlevel.enable_ki_protection
    async def aclose(self) -> None:
        """Close the iterator, within ``grace`` seconds, also when cancelled. A checkpoint.

        Closed already, or not begun, it does nothing.
        """
        iteration, self._held = self._held, None
        self._used = self._iterates = self._over = True
        if iteration is not None:
            call = self._register("closing")
            try:
                self._life.send(iteration.ask, call, GeneratorExit())
                await call.finish()
            except errors.BridgeClosedError:
                pass  # it went with the bridge
            finally:
                self._life.forget(call)
                self._end()
        await trio.lowlevel.checkpoint()

    @trio.lowlevel.enable_ki_protection
    def __del__(self) -> None:
        # Any thread, any moment: nothing but a message to the loop.
        if self._held is not None:
            self._life.send(self._held.abort, None)
        elif not self._used and self._args is not None:
            message = f"{self!r} was never awaited, entered or iterated: it was not made"
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    # --- what the three share ---

    def _use(self) -> None:
        if self._used:
            raise RuntimeError(f"{self!r} was used already; make a new call for each use")
        self._used = True

    def _prepared(self) -> Callable[[], Any]:
        """What makes the call, in the loop's thread; nothing is called yet."""
        to, args = self._to, self._args
        if args is None:
            return functools.partial(resolved, to)
        kwargs, outgoing = self._kwargs, self._outgoing
        if _PLAIN.issuperset(map(type, args)) and _PLAIN.issuperset(map(type, kwargs.values())):
            return lambda: resolved(to)(*args, **kwargs)
        given = [outgoing(arg) for arg in args]
        named = {name: outgoing(arg) for name, arg in kwargs.items()}
        if not any(type(arg) in _LOOKED_UP for arg in (*given, *named.values())):
            return lambda: resolved(to)(*given, **named)

        def make() -> Any:
            values = [unwrapped(arg) for arg in given]
            return resolved(to)(*values, **{name: unwrapped(arg) for name, arg in named.items()})

        return make

    def _outgoing(self, value: Any) -> Any:
        """An argument as the client gets it, but for what must be looked up in the loop."""
        kind = held.kind_of(value)
        if kind in _PLAIN or kind is BridgedObject or kind is _OnLoop:
            return value
        if not callable(value) or isinstance(value, type):
            return value
        if self._channel is None:
            self._channel = self._life.channel()
        channel = self._channel
        incoming = functools.partial(wrapped, self._life)
        return callbacks.stand_in(value, lambda: channel, incoming, unwrapped)

    def _hold(self, kind: type[held.Held]) -> held.Held:
        incoming = functools.partial(wrapped, self._life)
        return kind(self._life, self._prepared(), incoming, contextvars.copy_context())

    def _register(self, doing: str) -> calls.Call:
        # Not this object: the task that holds the call would keep it from being collected.
        to = self._to
        call = calls.Call(self._life, lambda: f"{doing} {name_of(to)}", self._channel)
        return self._life.register(call)

    def _end(self) -> None:
        self._held = None
        if self._channel is not None:
            self._life.drop(self._channel, "the call that it belongs to has ended")


# --- between the two sides ------------------------------------------------------


#: What is looked up in the loop's thread, when the call is made.
_LOOKED_UP: Final = (BridgedObject, _OnLoop)


def life_of(reference: Any) -> lives.Life:
    """Return the life that a reference belongs to."""
    return reference._bridged_life


def name_of(reference: Any) -> str:
    """Return what a reference stands for, in words."""
    root = reference._bridged_root
    path = reference._bridged_path
    return ".".join(("client" if root is CLIENT else type(root).__name__, *path))


def resolved(reference: Any) -> Any:
    """Look up what a reference stands for. In the loop's thread."""
    root: Any = reference._bridged_root
    value: Any = reference._bridged_life.client if root is CLIENT else root
    for name in reference._bridged_path:
        value = getattr(value, name)
    return value


def unwrapped(value: Any) -> Any:
    """Return a value as the client gets it. In the loop's thread."""
    match value:
        case BridgedObject():
            return resolved(value)
        case _OnLoop():
            return value.value
        case _:
            return value


def wrapped(life: lives.Life, value: Any) -> Any:
    """Return a value as trio gets it. In the loop's thread."""
    kind = held.kind_of(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        if any(_is_foreign(life, item) for item in value):
            items = [_one(life, item) for item in value]
            return items if kind is list else tuple(items)
        return value
    if kind is dict:
        if any(_is_foreign(life, item) for item in value.values()):
            return {key: _one(life, item) for key, item in value.items()}
        return value
    return _one(life, value)


def _one(life: lives.Life, value: Any) -> Any:
    return BridgedObject(life, value) if _is_foreign(life, value) else value


def _is_foreign(life: lives.Life, value: Any) -> bool:
    """Whether a value can only be used on the loop."""
    kind = held.kind_of(value)
    if kind in _PLAIN:
        return False
    known = life.foreign_types.get(kind)
    if known is None:
        known = life.foreign_types[kind] = _is_foreign_type(kind)
    return known


def _is_foreign_type(kind: type[Any]) -> bool:
    if issubclass(kind, type | types.ModuleType) or kind is BridgedObject:
        return False
    if issubclass(kind, _CALLABLES) or any(hasattr(kind, name) for name in _ASYNC_METHODS):
        return True
    return any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for cls in kind.__mro__
        for member in vars(cls).values()
    )
