"""BEHAVIOURS kB3: a connection lives in one task of its own; any task may close it, in any order.

A toolset is the connection here: each has an owner task, and an agent opens and
closes its toolsets together, counted over the tasks that use it. So A, B and C
belong to an agent each, or to one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner._shell.owner import Owner
from trio_runner.testing import ScriptedModel, ScriptItem, call


class Connection:
    """Like a client of a server: a nursery that is entered and must be left by one task."""

    def __init__(self, name: str, *, fails: bool = False, closing: float = 0) -> None:
        self.name = name
        self.fails = fails
        self.closing = closing
        self.opened_by: list[trio.lowlevel.Task] = []
        self.closed_by: list[trio.lowlevel.Task] = []
        self.ended: list[str] = []
        self._manager: Any = None

    @property
    def is_open(self) -> bool:
        return len(self.opened_by) > len(self.closed_by)

    async def list_tools(self) -> Sequence[tr.Tool]:
        return self.tools

    @property
    def tools(self) -> tuple[tr.Tool, ...]:
        if not hasattr(self, "_tools"):
            self._tools = (tr.Tool(f"ask_{self.name}", "", {"type": "object"}, self._ask),)
        return self._tools

    async def _ask(self, arguments: tr.JSONObject, context: tr.ToolContext) -> str:
        assert self.is_open
        await trio.sleep(5)
        assert self.is_open
        return f"answer of {self.name}"

    async def __aenter__(self) -> Self:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise ConnectionError(f"{self.name} cannot be reached")
        self._manager = trio.open_nursery(strict_exception_groups=True)
        self.nursery = await self._manager.__aenter__()
        self.nursery.start_soon(self._reader)
        self.opened_by.append(trio.lowlevel.current_task())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Noted before anything is awaited: this is where a close may be cut.
        self.closed_by.append(trio.lowlevel.current_task())
        try:
            await trio.sleep(self.closing)
        finally:
            self.nursery.cancel_scope.cancel()
            await self._manager.__aexit__(exc_type, exc, traceback)

    async def _reader(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ended.append(self.name)


def assert_owned(connection: Connection) -> None:
    """It was opened and closed once, by one task, and nothing of it is left."""
    assert connection.opened_by == connection.closed_by
    assert len(connection.opened_by) == 1
    assert connection.ended == [connection.name]


def agent_of(*connections: Connection, replies: Sequence[ScriptItem] = ()) -> tr.ToolAgent:
    return tr.ToolAgent("a", model=ScriptedModel(replies), tools=connections)


def live_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


# --- any order, any task, any number of times -----------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations("ABC")))
async def test_kB3_opened_as_A_B_C_and_closed_in_every_order(order: tuple[str, ...]) -> None:
    before = live_tasks()
    connections = {name: Connection(name) for name in "ABC"}
    agents = {name: agent_of(each) for name, each in connections.items()}
    for name in "ABC":
        await agents[name].__aenter__()

    for place, name in enumerate(order):
        await agents[name].__aexit__(None, None, None)
        open_now = {each.name for each in connections.values() if each.is_open}
        assert open_now == set(order[place + 1 :])

    for each in connections.values():
        assert_owned(each)
    await trio.testing.wait_all_tasks_blocked()
    assert live_tasks() == before


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_kB3_closed_by_other_tasks_than_the_one_that_opened(order: tuple[int, ...]) -> None:
    connections = [Connection(name) for name in "ABC"]
    agents = [agent_of(each) for each in connections]
    async with trio.open_nursery() as nursery:
        for agent in agents:
            nursery.start_soon(agent.__aenter__)
    here = trio.lowlevel.current_task()
    async with trio.open_nursery() as nursery:
        for index in order:
            nursery.start_soon(agents[index].__aexit__, None, None, None)

    for each in connections:
        assert_owned(each)
        assert each.opened_by != [here]
    # Each has a task of its own.
    assert len({each.opened_by[0] for each in connections}) == 3


async def test_kB3_any_task_may_ask_to_close_any_number_of_times() -> None:
    connection = Connection("A")
    owner = Owner(connection)
    await owner.open()

    async def close() -> None:
        owner.ask_to_close()
        await owner.wait_closed()

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(close)
    await close()
    owner.give_up()
    assert_owned(connection)


async def test_kB3_an_agent_that_is_closed_once_too_often_still_closes_the_next_time() -> None:
    connection = Connection("A")
    agent = tr.ToolAgent("a", model=ScriptedModel(["done"]), tools=[connection])
    await agent.__aenter__()
    for _ in range(3):
        await agent.__aexit__(None, None, None)
    assert not connection.is_open
    async with agent:
        assert connection.is_open
    assert not connection.is_open
    assert connection.opened_by == connection.closed_by
    assert connection.ended == ["A", "A"]


async def test_kB3_opened_and_closed_again_and_again_by_one_agent() -> None:
    connection = Connection("A")
    agent = agent_of(connection)
    before = live_tasks()
    for count in range(1, 4):
        async with agent:
            assert connection.is_open
        assert len(connection.opened_by) == count
        assert connection.opened_by == connection.closed_by
    await trio.testing.wait_all_tasks_blocked()
    assert live_tasks() == before


async def test_kB3_a_scope_of_the_opener_does_not_reach_the_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # Entered in one task and scope, used and left outside of them.
    connection = Connection("A")
    agent = agent_of(connection, replies=[call("ask_A"), "done"])
    with trio.CancelScope() as scope:
        await agent.__aenter__()
        scope.cancel()
    assert (await agent.generate("go")).text == "done"
    await agent.__aexit__(None, None, None)
    assert_owned(connection)


# --- one that fails to start ----------------------------------------------------


@pytest.mark.parametrize("failing", "ABC")
async def test_kB3_one_that_fails_to_start_closes_those_before_it(failing: str) -> None:
    before = live_tasks()
    connections = [Connection(name, fails=name == failing) for name in "ABC"]
    agent = agent_of(*connections)

    with pytest.raises(ConnectionError, match=f"{failing} cannot be reached"):
        await agent.__aenter__()

    for each in connections:
        if each.name < failing:
            assert_owned(each)
        else:
            assert each.opened_by == each.closed_by == []
    await trio.testing.wait_all_tasks_blocked()
    assert live_tasks() == before

    for each in connections:
        each.fails = False
    async with agent:
        assert all(each.is_open for each in connections)
    assert not any(each.is_open for each in connections)


async def test_kB3_the_others_work_on_while_one_fails_to_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sound, broken = Connection("A"), Connection("B", fails=True)
    first = agent_of(sound, replies=[call("ask_A"), "done"])
    second = agent_of(broken)
    answers: list[str] = []

    async def use() -> None:
        async with first:
            answers.append((await first.generate("go")).text)

    async def fail() -> None:
        await trio.sleep(1)
        with pytest.raises(ConnectionError):
            await second.__aenter__()
        # Closing what was never opened changes nothing.
        assert broken.closed_by == []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        nursery.start_soon(fail)
    assert answers == ["done"]
    assert_owned(sound)


# --- shared by two --------------------------------------------------------------


@pytest.mark.parametrize("way", ["leaves", "raises", "is cancelled"])
async def test_kB3_two_users_of_one_connection_and_the_first_one_goes(
    way: str, autojump_clock: trio.testing.MockClock
) -> None:
    connection = Connection("A")
    agent = agent_of(connection, replies=[call("ask_A"), "done"])
    answers: list[str] = []
    entered = trio.Event()

    async def stays() -> None:
        async with agent:
            entered.set()
            answers.append((await agent.generate("go")).text)  # 5 seconds in the call
            assert connection.closed_by == []

    async def goes() -> None:
        await entered.wait()
        with trio.CancelScope() as scope:
            try:
                async with agent:
                    await trio.sleep(1)
                    if way == "raises":
                        raise LookupError("mine")
                    if way == "is cancelled":
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
            except LookupError:
                pass
        assert connection.is_open

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stays)
        nursery.start_soon(goes)
    assert answers == ["done"]
    assert_owned(connection)


async def test_kB3_two_turns_in_one_nursery_share_a_connection_and_one_ends_early(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # An agent runs one turn at a time, so two agents use the tools of a third that holds it.
    connection = Connection("A")
    results: dict[str, str] = {}

    async def turn(name: str, limit: float) -> None:
        user = tr.ToolAgent(
            name, model=ScriptedModel([call("ask_A"), "done"]), tools=connection.tools
        )
        async with holder:
            with trio.move_on_after(limit):
                results[name] = (await user.generate("go")).text
            tr.check_history(user.history)

    holder = agent_of(connection)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn, "early", 1)
        nursery.start_soon(turn, "late", 100)
    assert results == {"late": "done"}
    assert_owned(connection)


async def test_kB3_a_cancelled_user_closes_it_all_the_same_and_in_its_own_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connection = Connection("A", closing=2)
    agent = agent_of(connection, replies=[call("ask_A"), "never"])
    with trio.move_on_after(1) as scope:
        async with agent:
            await agent.generate("go")
    assert scope.cancelled_caught
    assert_owned(connection)
    assert trio.current_time() == 3  # the close was waited for, within grace
