"""What a program does with a bridge: call, read, iterate, enter, pass callbacks.

Real threads and real loops. What ends a bridge badly is in ``test_asyncio_bridge_ends.py``.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, cast

import pytest
import trio

import trio_runner as tr
from trio_runner_adapters.asyncio_bridge import (
    AsyncioBridge,
    BridgeClosedError,
    BridgedObject,
    BridgeError,
    CallbackRefusedError,
    ForeignCancelledError,
    on_loop,
)

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")
#: Seconds for what happens at once, on a machine that may be busy.
SOON = 20.0


class Account:
    """An object with something asynchronous about it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.sum = 0

    async def pay(self, amount: int) -> int:
        await asyncio.sleep(0)
        self.sum += amount
        return self.sum


class Client:
    """An asyncio-only client: it needs its loop for everything."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.made_in = asyncio.get_running_loop()
        self.notes: list[Any] = []
        self.tools = {"names": ["a", "b"]}
        self.inner = Account("inner")
        self.entered_by: asyncio.Task[Any] | None = None
        self.left_by: asyncio.Task[Any] | None = None
        self.entered_in: list[asyncio.Task[Any] | None] = []

    async def __aenter__(self) -> Self:
        self.entered_by = asyncio.current_task()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left_by = asyncio.current_task()

    async def add(self, one: int, other: int = 1) -> int:
        async with self.lock:
            await asyncio.sleep(0)
        return one + other

    def thread(self) -> str:
        asyncio.get_running_loop()
        return threading.current_thread().name

    async def fail(self, error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    async def time_out(self) -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)

    async def who(self) -> str:
        await asyncio.sleep(0)
        return WHO.get()

    async def count(self, stop: int) -> AsyncIterator[int]:
        tasks = {asyncio.current_task()}
        try:
            # A timeout across a yield works in one task only.
            async with asyncio.timeout(60):
                for number in range(stop):
                    await asyncio.sleep(0)
                    tasks.add(asyncio.current_task())
                    yield number
        finally:
            self.notes.append(("closed", len(tasks | {asyncio.current_task()})))

    async def late_count(self, stop: int) -> AsyncIterator[int]:
        await asyncio.sleep(0)
        return self.count(stop)

    @asynccontextmanager
    async def session(self, owner: str, *, keeps: bool = False) -> AsyncGenerator[Account]:
        self.entered_in.append(asyncio.current_task())
        try:
            async with asyncio.timeout(60):
                yield Account(owner)
        except BaseException as error:
            self.notes.append(type(error).__name__)
            if not keeps:
                raise
        finally:
            self.entered_in.append(asyncio.current_task())

    async def account(self, owner: str) -> Account:
        return Account(owner)

    async def accounts(self) -> list[Any]:
        return [1, Account("one"), "two"]

    async def owner_of(self, account: Account) -> str:
        assert type(account) is Account
        return account.owner

    async def work(self, progress: Callable[..., Any]) -> Any:
        answers = [await progress(number, of=2) for number in range(2)]
        self.notes.append(answers)
        return answers

    async def work_sync(self, approve: Callable[[int], Any]) -> list[Any]:
        await asyncio.sleep(0)
        return [approve(number) for number in range(3)]


def bridge(**settings: Any) -> AsyncioBridge:
    return AsyncioBridge(Client, name="client", loop="asyncio", **settings)


async def inside(read: Callable[[Client], Any], at: AsyncioBridge) -> Any:
    """Look at the client, in its thread."""

    async def look(client: Client) -> Any:
        return read(client)

    return await at.run(look, on_client(at))


def on_client(at: AsyncioBridge) -> BridgedObject:
    life = at._life
    assert life is not None
    return BridgedObject(life, life.client)


# --- calls ----------------------------------------------------------------------


async def test_a_method_is_awaited_from_trio_and_a_synchronous_one_too() -> None:
    async with bridge() as client:
        assert await client.add(1, other=2) == 3
        assert await client.thread() == "asyncio bridge 'client'"
        assert threading.current_thread().name != "asyncio bridge 'client'"


async def test_an_attribute_is_read_by_awaiting_it_however_deep() -> None:
    async with bridge() as client:
        assert await client.tools == {"names": ["a", "b"]}
        assert await client.inner.owner == "inner"
        assert await client.inner.pay(5) == 5
        with pytest.raises(AttributeError, match="no_such"):
            await client.no_such
        with pytest.raises(AttributeError, match="no_such"):
            await client.no_such.method(1)


async def test_the_client_is_made_entered_and_left_in_one_asyncio_task_of_its_loop() -> None:
    made: list[Client] = []

    async def make() -> Client:
        await asyncio.sleep(0)
        made.append(Client())
        return made[0]

    async with AsyncioBridge(make, name="client"):
        pass
    client = made[0]
    assert client.entered_by is not None
    assert client.entered_by is client.left_by
    assert client.made_in is not None
    assert client.made_in.is_closed()


async def test_a_client_without_a_context_is_used_as_it_is() -> None:
    async with AsyncioBridge(lambda: Account("plain"), name="plain") as client:
        assert await client.owner == "plain"


async def test_a_context_that_is_not_to_be_entered_is_used_as_it_is() -> None:
    async with AsyncioBridge(Client, name="client", enter=False) as client:
        assert await client.entered_by is None
        assert await client.add(1) == 2


async def test_calls_run_side_by_side() -> None:
    class Meeting:
        def __init__(self) -> None:
            self.all_here = asyncio.Barrier(20)

        async def wait(self) -> int:
            return await self.all_here.wait()

    with trio.fail_after(SOON):
        async with AsyncioBridge(Meeting, name="meeting") as client:
            places: list[int] = []

            async def meet() -> None:
                places.append(await client.wait())

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(meet)
    assert sorted(places) == list(range(20))


class Notebook:
    """Notes what it is asked, and when it is cancelled."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    async def note(self, what: Any, *, twice: bool = False) -> None:
        await asyncio.sleep(0)
        self.notes += [what, what] if twice else [what]

    async def fail(self) -> None:
        raise ValueError("no")

    async def hang(self) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            self.notes.append("hung up")


async def test_a_method_is_given_to_a_nursery_as_any_async_function() -> None:
    async with AsyncioBridge(Notebook, name="c") as client:
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(client.note, number)
            nursery.start_soon(functools.partial(client.note, "x", twice=True))
        assert sorted(map(str, await client.notes)) == ["0", "1", "2", "x", "x"]


async def test_a_method_in_a_nursery_has_the_outcome_of_a_call() -> None:
    async with AsyncioBridge(Notebook, name="c") as client:
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="no")):
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                nursery.start_soon(client.fail)
        with trio.move_on_after(0.05) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.hang)
        assert scope.cancelled_caught
        assert await client.notes == ["hung up"]


async def test_a_call_is_stepped_and_closed_as_a_coroutine() -> None:
    async with AsyncioBridge(Notebook, name="c") as client:
        call = client.note(1)
        assert isinstance(call, Coroutine)
        call.close()  # it was never begun: it is not made, and nothing warns of that
        with pytest.raises(RuntimeError, match="used already"):
            await call
        thrown = client.note(2)
        with pytest.raises(KeyError):
            thrown.throw(KeyError("before its first step"))
        thrown.close()
        assert await client.notes == []


async def test_run_calls_any_function_on_the_loop() -> None:
    at = bridge()
    async with at as client:

        async def twice(given: Client, number: int) -> int:
            assert type(given) is Client
            return await given.add(number, number)

        assert await at.run(twice, client, 4) == 8
        assert await at.run(threading.current_thread) is not threading.current_thread()
    with pytest.raises(tr.NotEnteredError, match="'client' is not open"):
        await at.run(threading.current_thread)


async def test_errors_of_the_client_pass_as_they_are() -> None:
    async with bridge() as client:
        error = LookupError("gone")
        with pytest.raises(LookupError) as caught:
            await client.fail(error)
        assert caught.value is error
        with pytest.raises(TimeoutError):
            await client.time_out()
        group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
        with pytest.raises(ExceptionGroup) as both:
            await client.fail(group)
        assert both.value is group
        with pytest.raises(TypeError, match="unexpected keyword"):
            await client.add(1, nonsense=2)


async def test_a_cancel_that_nobody_asked_for_is_an_error_of_the_bridge() -> None:
    async with bridge() as client:
        with pytest.raises(ForeignCancelledError, match=r"lost client\.fail") as caught:
            await client.fail(asyncio.CancelledError("by the loop"))
        assert isinstance(caught.value, Exception)
        assert await client.add(1) == 2


async def test_a_group_loses_the_cancels_of_asyncio_and_keeps_the_rest() -> None:
    cancel, error = asyncio.CancelledError(), ValueError("real")
    nested = BaseExceptionGroup("out", [cancel, BaseExceptionGroup("in", [error, cancel])])
    only = BaseExceptionGroup("out", [BaseExceptionGroup("in", [cancel])])
    async with bridge() as client:
        with pytest.raises(ExceptionGroup) as caught:
            await client.fail(nested)
        assert caught.group_contains(ValueError)
        assert not caught.group_contains(asyncio.CancelledError)
        with pytest.raises(ForeignCancelledError):
            await client.fail(only)
        with pytest.raises(BridgeError, match="GeneratorExit"):
            await client.fail(GeneratorExit())


async def test_the_clients_task_sees_the_callers_context_variables() -> None:
    async with bridge() as client:
        WHO.set("outer")

        async def one(name: str) -> None:
            WHO.set(name)
            assert await client.who() == name

        async with trio.open_nursery() as nursery:
            for name in ("ann", "ben"):
                nursery.start_soon(one, name)
        assert await client.who() == "outer"


async def test_a_call_with_a_cancel_before_it_sends_nothing() -> None:
    at = bridge()
    async with at as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.notes.append(1)
        assert scope.cancelled_caught
        assert await client.notes == []


# --- values ---------------------------------------------------------------------


async def test_an_object_with_coroutines_comes_back_as_a_reference_and_goes_back_as_itself() -> (
    None
):
    async with bridge() as client:
        account = await client.account("ann")
        assert type(account) is BridgedObject
        assert await account.pay(3) == 3
        assert await account.sum == 3
        assert await client.owner_of(account) == "ann"
        listed = await client.accounts()
        assert (listed[0], listed[2]) == (1, "two")
        assert await listed[1].owner == "one"
        assert repr(account) == "<Account of asyncio bridge 'client'>"


async def test_a_method_that_was_read_is_called_on_the_loop() -> None:
    async with bridge() as client:
        method = await client.thread
        assert await method() == "asyncio bridge 'client'"


async def test_a_call_that_is_not_used_warns_and_one_is_for_one_use() -> None:
    async with bridge() as client:
        with pytest.warns(RuntimeWarning, match=r"client\.add .* never awaited"):
            client.add(1)
        call = client.add(1)
        assert await call == 2
        with pytest.raises(RuntimeError, match="used already"):
            await call


# --- iterators ------------------------------------------------------------------


async def test_an_async_iterator_is_iterated_in_one_asyncio_task() -> None:
    async with bridge() as client:
        assert [number async for number in client.count(3)] == [0, 1, 2]
        assert [number async for number in client.late_count(2)] == [0, 1]
        assert await client.notes == [("closed", 1), ("closed", 1)]


async def test_an_iterator_left_early_is_closed_by_aclose_or_when_it_is_collected() -> None:
    at = bridge()
    async with at as client:
        async with aclosing(cast("Any", client.count(5))) as numbers:
            async for number in numbers:
                assert number == 0
                break
        assert await client.notes == [("closed", 1)]
        assert [number async for number in numbers] == []

        numbers = client.count(5)
        assert await anext(numbers) == 0
        del numbers
        gc.collect()
        with trio.fail_after(SOON):
            while len(await client.notes) < 2:
                await trio.sleep(0.001)
        assert await client.notes == [("closed", 1)] * 2
        assert await inside(lambda _: len(asyncio.all_tasks()), at) == 2  # the client's, this


async def test_an_iterator_is_closed_with_the_bridge() -> None:
    at = bridge()
    async with at as client:
        notes = await inside(lambda made: [made.notes], at)
        numbers = client.count(5)
        assert await anext(numbers) == 0
    assert notes == [[("closed", 1)]]
    with pytest.raises(BridgeClosedError):
        await anext(numbers)
    await numbers.aclose()


async def test_a_cancelled_item_ends_a_generator_and_the_bridge_goes_on() -> None:
    class Streams:
        async def stuck(self) -> AsyncIterator[int]:
            yield 1
            await asyncio.sleep(3600)
            yield 2

        async def well(self) -> str:
            return "well"

    with trio.fail_after(SOON):
        async with AsyncioBridge(Streams, name="streams") as client:
            items = client.stuck()
            assert await anext(items) == 1
            with trio.move_on_after(0.05) as scope:
                await anext(items)
            assert scope.cancelled_caught
            with pytest.raises(StopAsyncIteration):
                await anext(items)
            assert await client.well() == "well"


async def test_an_iterator_is_closed_also_when_its_task_is_cancelled() -> None:
    async with bridge() as client:
        with trio.CancelScope() as scope:
            async with aclosing(cast("Any", client.count(5))) as numbers:
                assert await anext(numbers) == 0
                scope.cancel()
                await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert await client.notes == [("closed", 1)]


async def test_an_error_in_an_iterator_leaves_it() -> None:
    class Breaks:
        async def items(self) -> AsyncIterator[int]:
            yield 1
            raise ValueError("broken")

        plain = 7

    async with AsyncioBridge(Breaks, name="breaks") as client:
        items = client.items()
        assert await anext(items) == 1
        with pytest.raises(ValueError, match="broken"):
            await anext(items)
        with pytest.raises(StopAsyncIteration):
            await anext(items)
        with pytest.raises(TypeError, match="no __aiter__"):
            async for _ in client.plain:
                pass


# --- contexts -------------------------------------------------------------------


async def test_a_nested_context_is_entered_and_left_in_one_asyncio_task() -> None:
    at = bridge()
    async with at as client:
        async with client.session("ann") as account:
            assert await account.pay(2) == 2
            async with client.session("ben") as other:
                assert await other.owner == "ben"
        assert await inside(lambda made: len(set(made.entered_in)), at) == 2
        assert await client.notes == []


async def test_an_error_in_the_block_reaches_the_context_which_may_take_it() -> None:
    async with bridge() as client:
        error = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as caught:
            async with client.session("ann"):
                raise error
        assert caught.value is error
        async with client.session("ann", keeps=True):
            raise error
        assert await client.notes == ["ValueError", "ValueError"]


async def test_a_cancel_in_the_block_cancels_the_contexts_task() -> None:
    async with bridge() as client:
        for keeps in (False, True):
            with trio.CancelScope() as scope:
                async with client.session("ann", keeps=keeps):
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
            assert scope.cancelled_caught
        assert await client.notes == ["CancelledError", "CancelledError"]


async def test_an_object_is_entered_as_it_stands_by_several_tasks() -> None:
    order: list[int] = []

    async with bridge() as client:
        lock = client.lock

        async def locked(number: int) -> None:
            async with lock:
                order.append(number)
                await trio.sleep(0.001)
                order.append(number)

        with trio.fail_after(SOON):
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(locked, number)
        assert await client.lock.locked() is False
    assert order[::2] == order[1::2]


async def test_what_is_no_context_says_so() -> None:
    async with bridge() as client:
        with pytest.raises(TypeError, match="no __aenter__"):
            async with client.add(1):
                pass


# --- callbacks ------------------------------------------------------------------


async def test_a_callback_runs_in_the_calling_task_in_order_and_before_the_call_returns() -> None:
    seen: list[Any] = []

    async def progress(number: int, *, of: int) -> str:
        await trio.lowlevel.checkpoint()
        seen.append((number, of, trio.lowlevel.current_task(), WHO.get()))
        return f"saw {number}"

    async with bridge() as client:
        WHO.set("caller")
        assert await client.work(progress) == ["saw 0", "saw 1"]
    me = trio.lowlevel.current_task()
    assert seen == [(0, 2, me, "caller"), (1, 2, me, "caller")]


async def test_callbacks_that_nobody_waits_for_run_before_the_call_returns() -> None:
    class Throws:
        async def work(self, tell: Callable[[int], Any]) -> str:
            self.tasks = [asyncio.create_task(tell(number)) for number in range(5)]
            await asyncio.sleep(0)
            return "done"

    seen: list[int] = []

    async def tell(number: int) -> None:
        await trio.sleep(0.001)
        seen.append(number)

    async with AsyncioBridge(Throws, name="throws") as client:
        assert await client.work(tell) == "done"
    assert seen == list(range(5))


async def test_a_synchronous_callback_gives_its_value_to_who_called_it() -> None:
    tasks: list[Any] = []

    def approve(number: int) -> bool:
        tasks.append(trio.lowlevel.current_task())
        return number == 1

    async with bridge() as client:
        assert await client.work_sync(approve) == [False, True, False]
        assert await client.work_sync(functools.partial(max, 1)) == [1, 1, 2]
    assert tasks == [trio.lowlevel.current_task()] * 3


async def test_an_error_of_a_callback_is_raised_in_who_called_it() -> None:
    async def broken(number: int, of: int) -> None:
        raise LookupError(f"no {number}")

    def broken_sync(number: int) -> None:
        raise LookupError(f"no {number}")

    class Careful(Client):
        async def careful(self, progress: Callable[..., Any]) -> str:
            try:
                await progress(7, of=1)
            except LookupError as error:
                return f"caught {error}"
            return "nothing"

    async with AsyncioBridge(Careful, name="client") as client:
        with pytest.raises(LookupError, match="no 0"):
            await client.work(broken)
        with pytest.raises(LookupError, match="no 0"):
            await client.work_sync(broken_sync)
        assert await client.careful(broken) == "caught no 7"


async def test_a_callback_of_the_wrong_kind_says_what_to_do() -> None:
    async def later(number: int) -> None: ...

    def hands_over(number: int) -> Any:
        return later(number)

    async with bridge() as client:
        with pytest.raises(TypeError, match="async def"):
            await client.work_sync(hands_over)


async def test_what_is_marked_stays_on_the_loop_and_classes_are_no_callbacks() -> None:
    class Takes:
        async def take(self, value: Any) -> Any:
            return threading.current_thread().name, value

        async def call(self, fn: Callable[[], Any]) -> str:
            return fn().name

    async with AsyncioBridge(Takes, name="takes") as client:
        assert await client.take(Account) == ("asyncio bridge 'takes'", Account)
        assert await client.call(on_loop(threading.current_thread)) == "asyncio bridge 'takes'"
        assert await client.call(threading.current_thread) == threading.current_thread().name


async def test_a_callback_may_use_the_bridge() -> None:
    async with bridge() as client:

        async def progress(number: int, of: int) -> int:
            return await client.add(number, of)

        assert await client.work(progress) == [2, 3]


async def test_a_callback_looks_like_what_it_stands_for() -> None:
    import inspect

    class Looks:
        async def look(self, fn: Callable[..., Any]) -> tuple[Any, ...]:
            return (
                fn.__name__,
                inspect.iscoroutinefunction(fn),
                list(inspect.signature(fn).parameters),
            )

    async def handler(progress: float, total: float) -> None: ...

    async with AsyncioBridge(Looks, name="looks") as client:
        assert await client.look(handler) == ("handler", True, ["progress", "total"])


async def test_the_asyncio_side_can_cancel_a_callback() -> None:
    ended: list[str] = []

    async def endless(number: int, of: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    class Impatient(Client):
        async def impatient(self, progress: Callable[..., Any]) -> str:
            try:
                await asyncio.wait_for(progress(1, of=1), 0.01)
            except TimeoutError:
                return "gave up"
            return "nothing"

    with trio.fail_after(SOON):
        async with AsyncioBridge(Impatient, name="client") as client:
            assert await client.impatient(endless) == "gave up"
    assert ended == ["cancelled"]


async def test_callbacks_of_a_context_run_also_while_nobody_waits_for_it() -> None:
    class Talks:
        @asynccontextmanager
        async def session(
            self, on_log: Callable[[str], Any], check: Callable[[str], Any]
        ) -> AsyncGenerator[Talks]:
            self.on_log, self.check = on_log, check
            yield self

        async def work(self) -> Any:
            return await self.on_log("hello"), self.check("there")

    WHO.set("opener")

    async def on_log(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"{text}, {WHO.get()}"

    def check(text: str) -> str:
        return f"{text}: {WHO.get()}"

    with trio.fail_after(SOON):
        async with (
            AsyncioBridge(Talks, name="talks") as client,
            client.session(on_log, check) as session,
        ):
            assert await session.work() == ("hello, opener", "there: opener")


async def test_the_client_can_be_made_with_callbacks() -> None:
    class Asks:
        def __init__(self, ask: Callable[[str], Any], note: Callable[[str], Any]) -> None:
            self.ask, self.note = ask, note

        async def work(self) -> Any:
            return await self.ask("who?"), self.note("fine")

    async def ask(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return f"{text} me"

    notes: list[str] = []
    at = AsyncioBridge(lambda: Asks(at.callback(ask), at.callback(notes.append)), name="asks")
    with trio.fail_after(SOON):
        async with at as client:
            assert await client.work() == ("who? me", None)
    assert notes == ["fine"]
    with pytest.raises(CallbackRefusedError, match="not open"):
        at.callback(notes.append)("late")


async def test_a_synchronous_callback_does_not_wait_for_a_task_that_waits_for_the_loop() -> None:
    class Both:
        async def work(self, slow: Callable[[], Any], quick: Callable[[], Any]) -> Any:
            task = asyncio.create_task(slow())
            await asyncio.sleep(0.02)
            # The trio task is in the middle of `slow`, which waits for this loop.
            answer = quick()
            return answer, await task

        async def well(self) -> str:
            await asyncio.sleep(0.05)
            return "well"

    async with AsyncioBridge(Both, name="both") as client:

        async def slow() -> str:
            return await client.well()

        with trio.fail_after(SOON):
            assert await client.work(slow, lambda: "quick") == ("quick", "well")


# --- setting up -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"grace": 0}, ValueError, "grace is 0"),
        ({"grace": True}, TypeError, "grace is True"),
        ({"start_timeout": float("inf")}, ValueError, "start_timeout is inf"),
        ({"loop": "curio"}, ValueError, "loop is 'curio'"),
        ({"name": ""}, ValueError, "name is ''"),
        ({"factory": Account("made")}, TypeError, "give the function, not the client"),
    ],
)
def test_arguments_are_checked_at_once(
    settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    given: dict[str, Any] = {"factory": Client, "name": "client", **settings}
    with pytest.raises(error, match=said):
        AsyncioBridge(**given)


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "auto"])
async def test_each_kind_of_loop_hosts_the_client(kind: Any) -> None:
    if kind != "asyncio":
        pytest.importorskip("uvloop")
    at = AsyncioBridge(Client, name="client", loop=kind)
    async with at as client:
        module = await at.run(lambda: type(asyncio.get_running_loop()).__module__)
        assert module.partition(".")[0] == ("asyncio" if kind == "asyncio" else "uvloop")
        assert await client.add(1) == 2
        assert [number async for number in client.count(2)] == [0, 1]
