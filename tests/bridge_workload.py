"""What the sweeps of the asyncio bridge run: a loop that can be repeated, and two operations.

A module of its own, since the process of a mutant imports it, too. The loop runs in trio's
thread, a round at a time, in a task of trio's: so nothing depends on how threads are
scheduled, every step of both sides comes again in the next run, and a fault comes between any
two. All else is the bridge as it is. Real threads are in the other tests.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast

import attrs
import trio

import trio_runner as tr
from trio_runner.testing import Case, Outcome, Seam
from trio_runner.testing.reference import SESSION, ReferenceTurn
from trio_runner_adapters.asyncio_bridge import (
    AsyncioBridge,
    BridgeClosedError,
    BridgedObject,
    ForeignCancelledError,
)

GRACE = 5.0


class InlineHost:
    """Runs the loop in trio's thread, in a task whose steps a sweep counts."""

    def __init__(self) -> None:
        self.loop: Any = None
        self.task: asyncio.Task[None] | None = None
        self.kicked = trio.Event()

    def start(
        self,
        main: Callable[[], Any],
        on_stop: Callable[[], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self.loop = asyncio.SelectorEventLoop()
        self.on_stop, self.on_end = on_stop, on_end
        context = contextvars.copy_context()

        def begin() -> None:
            self.task = self.loop.create_task(main(), context=context)

        self.call_soon(begin)
        trio.lowlevel.spawn_system_task(self.drive)

    def call_soon(self, fn: Callable[..., object], *args: object) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon(fn, *args)
            self.kicked.set()

    def join(self) -> None: ...

    async def drive(self) -> None:
        """A round of the loop, a step of trio, and so on."""
        while self.task is None or not self.task.done():
            if self.loop._ready:
                self.round()
                await trio.lowlevel.checkpoint()
            else:
                self.kicked = trio.Event()
                await self.kicked.wait()
        self.finish(self.task)

    def round(self) -> None:
        self.loop.stop()
        self.loop.run_forever()

    def finish(self, task: asyncio.Task[None]) -> None:
        """What `asyncio.Runner` does at its end."""
        self.on_stop()
        for left in asyncio.all_tasks(self.loop):
            left.cancel()
        while asyncio.all_tasks(self.loop) or self.loop._ready:
            self.round()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.on_end(asyncio.CancelledError() if task.cancelled() else task.exception())


def inline(bridge: AsyncioBridge, hosts: list[InlineHost]) -> AsyncioBridge:
    """The bridge, on such a loop."""

    def make_host() -> InlineHost:
        hosts.append(InlineHost())
        return hosts[-1]

    bridge._make_host = make_host
    return bridge


# --- an operation that uses all of a bridge -------------------------------------


@attrs.define
class Ledger:
    """What happened on both sides, noted in the step in which it became true."""

    #: Clients that are open, and what is running in them.
    is_open: int = 0
    running: set[str] = attrs.field(factory=set[str])
    #: By name: what a method returned, and what was cancelled instead.
    returned: dict[str, object] = attrs.field(factory=dict[str, object])
    cancelled: set[str] = attrs.field(factory=set[str])
    #: Those that came to the end of their cleanup.
    cleaned: set[str] = attrs.field(factory=set[str])
    #: By name: what trio asked for, and each outcome that it saw.
    asked: list[str] = attrs.field(factory=list[str])
    outcomes: list[tuple[str, object]] = attrs.field(factory=list[tuple[str, object]])
    #: Callbacks: begun, and their answers as the asyncio side got them.
    callbacks: list[int] = attrs.field(factory=list[int])
    answers: list[object] = attrs.field(factory=list[object])
    wrong: list[str] = attrs.field(factory=list[str])


class Client:
    """The asyncio side."""

    def __init__(self, ledger: Ledger, seam: Seam) -> None:
        self.ledger = ledger
        self.seam = seam
        self.task: asyncio.Task[Any] | None = None
        self.lock = asyncio.Lock()
        self.gate = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.task = asyncio.current_task()
        await asyncio.sleep(0)
        self.ledger.is_open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.ledger.running:
            self.ledger.wrong.append(f"left while {sorted(self.ledger.running)} were running")
        if asyncio.current_task() is not self.task:
            self.ledger.wrong.append("entered in one task and left in another")
        self.ledger.is_open -= 1
        await asyncio.sleep(0)

    @asynccontextmanager
    async def noted(self, name: str) -> AsyncGenerator[None]:
        self.ledger.running.add(name)
        try:
            await self.seam.call()
            yield
        except asyncio.CancelledError:
            self.ledger.cancelled.add(name)
            await asyncio.sleep(0)
            self.ledger.cleaned.add(name)
            raise
        finally:
            self.ledger.running.discard(name)

    async def work(self, name: str, steps: int) -> str:
        async with self.noted(name):
            for _ in range(steps):
                await asyncio.sleep(0)
            self.ledger.returned[name] = name
        return name

    async def stubborn(self, name: str) -> str:
        """Comes to its end whether it is cancelled or not."""
        self.ledger.running.add(name)
        try:
            for _ in range(3):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        self.ledger.running.discard(name)
        self.ledger.returned[name] = name
        return name

    async def pass_gate(self, name: str) -> str:
        """Only a cancel ends it when nobody opens the gate."""
        async with self.noted(name):
            await self.gate.wait()
            self.ledger.returned[name] = name
        return name

    async def hang(self, name: str) -> None:
        async with self.noted(name):
            await asyncio.Event().wait()

    async def fail(self, name: str) -> None:
        async with self.noted(name):
            await asyncio.sleep(0)
        raise LookupError(name)

    async def tell(self, name: str, callback: Callable[[int], Any]) -> str:
        async with self.noted(name):
            for number in range(2):
                self.ledger.answers.append(await callback(number))
            self.ledger.returned[name] = name
        return name

    async def items(self, name: str) -> AsyncIterator[int]:
        async with self.noted(name):
            for number in range(3):
                await asyncio.sleep(0)
                yield number

    @asynccontextmanager
    async def session(self, name: str) -> AsyncGenerator[Client]:
        task = asyncio.current_task()
        async with self.noted(name):
            try:
                yield self
            finally:
                await asyncio.sleep(0)
                if asyncio.current_task() is not task:
                    self.ledger.wrong.append("a session was left in another task")


class BridgeCases:
    """Makes cases of one use of a bridge; pass it to `sweep`."""

    def __init__(self, *, in_main: bool = False) -> None:
        #: Do all of it in one task, the main one where the fault says so.
        self.in_main = in_main

    def __call__(self) -> Case:
        self.ledger, self.seam, self.hosts = Ledger(), Seam(), list[InlineHost]()
        bridge = AsyncioBridge(
            lambda: Client(self.ledger, self.seam), name="swept", loop="asyncio", grace=GRACE
        )
        self.bridge = inline(bridge, self.hosts)
        return Case(
            self.run,
            self.check,
            raises_cancel=True,
            leaves_within=0.5,  # nothing here takes time
            seams={"tool": self.seam},
            may_raise=(ForeignCancelledError,),
            end_state=lambda seen: (type(seen.raised), tuple(sorted(self.ledger.returned))),
        )

    async def run(self) -> None:
        parts = (self.calls, self.callback, self.iterate, self.nest)
        async with trio.open_nursery() as outside, self.bridge as client:
            if self.in_main:
                for part in parts:
                    await part(client)
            else:
                async with trio.open_nursery() as nursery:
                    for part in parts:
                        nursery.start_soon(part, client)
                # In flight when the bridge is left.
                outside.start_soon(self.ask, "hang", client.hang("hang"))
                while "hang" not in self.ledger.running and not self.seam.raised:
                    await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def ask(self, name: str, call: Awaitable[Any]) -> Any:
        self.ledger.asked.append(name)
        try:
            value = await call
        except BaseException as error:
            self.ledger.outcomes.append((name, error))
            if not isinstance(error, Exception):
                raise
            return None
        self.ledger.outcomes.append((name, value))
        return value

    async def calls(self, client: BridgedObject) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.ask, "gate", client.pass_gate("gate"))
            await self.ask("work", client.work("work", 2))
            await client.gate.set()
        await self.ask("fail", client.fail("fail"))
        await self.ask("stubborn", client.stubborn("stubborn"))

    async def callback(self, client: BridgedObject) -> None:
        async def called(number: int) -> int:
            self.ledger.callbacks.append(number)
            await trio.lowlevel.checkpoint()
            return 10 * number

        await self.ask("tell", client.tell("tell", called))

    async def iterate(self, client: BridgedObject) -> None:
        items = cast("Any", client.items("items"))
        try:
            async with aclosing(items):
                async for number in items:
                    if number == 1:
                        break
            if "items" in self.ledger.running:
                self.ledger.wrong.append("an iterator was left and goes on")
            async with client.lock:
                await trio.lowlevel.checkpoint()
        except ForeignCancelledError:
            pass

    async def nest(self, client: BridgedObject) -> None:
        try:
            async with client.session("session") as session:
                await self.ask("inner", session.work("inner", 1))
        except ForeignCancelledError:
            pass

    def check(self, seen: Outcome) -> Iterator[str]:
        ledger = self.ledger
        yield from ledger.wrong
        if ledger.running or ledger.is_open:
            yield f"left with {sorted(ledger.running)} running, {ledger.is_open} clients open"
        if not all(host.loop is None or host.loop.is_closed() for host in self.hosts):
            yield "left with a loop open"
        # What cancels itself may be cancelled by us while it cleans up.
        if ledger.cleaned != ledger.cancelled and not self.seam.raised:
            yield f"cancelled: {sorted(ledger.cancelled)}, cleaned: {sorted(ledger.cleaned)}"
        if self.bridge._life is not None:
            yield "left with a life"
        names = [name for name, _ in ledger.outcomes]
        if sorted(names) != sorted(ledger.asked):
            yield f"asked for {ledger.asked}, and saw outcomes of {names}"
        raised = [error for _, error in ledger.outcomes if isinstance(error, BaseException)]
        if any(_foreign(error) for error in (*raised, seen.raised)):
            yield "an asyncio.CancelledError reached trio"
        interrupted = seen.raised_a(KeyboardInterrupt)
        for name, outcome in ledger.outcomes:
            kept = outcome == ledger.returned.get(name)
            if name in ledger.returned and not (kept or (interrupted and self.in_main)):
                yield f"{name} returned, and trio saw {outcome!r}"
            closed = name == "hang" and isinstance(outcome, BridgeClosedError)
            if name in ledger.cancelled and not (
                closed
                or isinstance(outcome, trio.Cancelled | KeyboardInterrupt | ForeignCancelledError)
            ):
                yield f"{name} was cancelled, and trio saw {outcome!r}"
            if isinstance(outcome, ForeignCancelledError) and not self.seam.raised:
                yield f"{name} was cancelled for trio, and called a foreign whim: {outcome!r}"
        if ledger.callbacks != list(range(len(ledger.callbacks))):
            yield f"callbacks ran in the order {ledger.callbacks}"
        if ledger.answers != [10 * number for number in range(len(ledger.answers))]:
            yield f"callbacks were answered {ledger.answers}"
        if not seen.landings and len(ledger.returned) != 5:
            yield f"undisturbed, only {sorted(ledger.returned)} returned"


def _foreign(error: BaseException | None) -> bool:
    match error:
        case asyncio.CancelledError():
            return True
        case BaseExceptionGroup():
            return any(_foreign(leaf) for leaf in error.exceptions)
        case _:
            return False


# --- the reference turn with a bridged toolset -----------------------------------


class Tools:
    """The asyncio side of the reference turn's tools."""

    def __init__(self, seam: Seam) -> None:
        self.seam = seam

    async def tidy(self, steps: int) -> str:
        try:
            await self.seam.call()
            for _ in range(steps):
                await asyncio.sleep(0)
            return f"tidy after {steps}"
        finally:
            await asyncio.sleep(0)

    async def broken(self, steps: int) -> str:
        for _ in range(steps):
            await asyncio.sleep(0)
        raise ValueError("broken on purpose")

    def plain(self, number: int) -> str:
        return f"plain {number}"


class BridgedTools:
    """A toolset on a bridge, as the how-to page has it, with notes for the contract."""

    name = "bridged"

    def __init__(self, turn: BridgedTurn) -> None:
        self.turn = turn
        seam = turn.witness.seams["tool"]
        bridge = AsyncioBridge(lambda: Tools(seam), name="tools", loop="asyncio", grace=GRACE)
        self.hosts: list[InlineHost] = []
        self.bridge = inline(bridge, self.hosts)
        self.client: BridgedObject | None = None
        whole = {"type": "integer"}
        schemas = {"tidy": "steps", "broken": "steps", "plain": "number"}
        self.tools = tuple(
            tr.Tool(name, name, {"type": "object", "properties": {one: whole}}, self.call)
            for name, one in schemas.items()
        )

    async def list_tools(self) -> tuple[tr.Tool, ...]:
        return self.tools

    async def __aenter__(self) -> Self:
        self.client = await self.bridge.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.bridge.__aexit__(exc_type, exc, traceback)

    async def call(self, arguments: tr.JSONObject, context: tr.ToolContext) -> object:
        turn, call_id = self.turn, context.call_id
        turn.witness.entered(call_id)
        try:
            value = await getattr(self.client, context.name)(**arguments)
        except Exception as error:
            turn.ledger.raised[call_id] = error
            raise
        finally:
            turn.ledger.leaves(call_id)
        turn.ledger.returned[call_id] = value
        return value


class BridgedTurn(ReferenceTurn):
    """The reference turn; its tools are on the other side of a bridge."""

    def make(self) -> None:
        super().make()
        self.toolset = BridgedTools(self)
        assert self.journal is not None
        self.agent = tr.ToolAgent(
            "bridged",
            model=self.witness.model(self.model),
            tools=[self.toolset],
            journal=self.witness.journal(self.journal),
            session=SESSION,
            grace=GRACE,
        )

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        if not all(host.loop.is_closed() for host in self.toolset.hosts):
            yield "C5: the turn was left with a loop open"
        raised = (outcome.raised, *self.ledger.raised.values())
        if any(_foreign(error) for error in raised):
            yield "an asyncio.CancelledError reached trio"
