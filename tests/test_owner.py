"""`Owner`: the task in which a toolset lives, from its opening to its close."""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import pytest
import trio
import trio.testing

import trio_runner as tr
from trio_runner._shell.owner import Owner
from trio_runner.testing import ScriptedModel

flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="none")


class Odd(BaseException):
    """Neither an `Exception` nor an exit, as test frameworks raise."""


class Box:
    """A toolset with what a test needs: pauses and errors, and notes about its life."""

    def __init__(
        self,
        *,
        opening: float = 0,
        closing: float = 0,
        open_error: BaseException | None = None,
        close_error: Exception | None = None,
    ) -> None:
        self.name = "box"
        self.opening, self.closing = opening, closing
        self.open_error, self.close_error = open_error, close_error
        self.notes: list[str] = []
        self.tasks: list[trio.lowlevel.Task] = []
        self.flavour = ""

    async def list_tools(self) -> Sequence[tr.Tool]:
        return ()

    async def __aenter__(self) -> Self:
        self.tasks.append(trio.lowlevel.current_task())
        self.flavour = flavour.get()
        try:
            await trio.sleep(self.opening)
        except trio.Cancelled:
            self.notes.append("opening cancelled")
            raise
        if self.open_error is not None:
            raise self.open_error
        self.notes.append("opened")
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.tasks.append(trio.lowlevel.current_task())
        try:
            await trio.sleep(self.closing)
        except trio.Cancelled:
            self.notes.append("close cancelled")
            raise
        finally:
            if self.close_error is not None:
                raise self.close_error
        self.notes.append("closed")


class Server(Box):
    """A toolset with a task of its own, which may end it."""

    def __init__(self, error: Exception | None = None, lives: float = math.inf) -> None:
        super().__init__()
        self.error, self.lives = error, lives
        self.manager = trio.open_nursery(strict_exception_groups=True)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        nursery = await self.manager.__aenter__()
        nursery.start_soon(self._live)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.notes.append("left")
        await self.manager.__aexit__(exc_type, exc, traceback)

    async def _live(self) -> None:
        try:
            await trio.sleep(self.lives)
        finally:
            if self.error is not None:
                raise self.error


def errors_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


# --- opening and closing --------------------------------------------------------


async def test_a_toolset_is_entered_and_left_in_one_task_that_is_nobodys() -> None:
    box = Box()
    owner = Owner(box)
    flavour.set("vanilla")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(owner.open)
    assert box.notes == ["opened"]
    owner.ask_to_close()
    await owner.wait_closed()

    assert box.notes == ["opened", "closed"]
    entered, left = box.tasks
    assert entered is left
    assert entered is not trio.lowlevel.current_task()
    assert entered.parent_nursery is not None
    assert box.flavour == "vanilla"  # the variables of whoever opened


async def test_what_the_opening_raises_reaches_whoever_opens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = OSError("cannot be reached")
    owner = Owner(Box(open_error=error))

    with pytest.raises(OSError, match="cannot be reached") as caught:
        await owner.open()

    assert caught.value is error
    await owner.wait_closed()
    owner.give_up()
    assert errors_logged(caplog) == []  # it was told already


async def test_a_group_with_an_odd_error_from_the_opening_is_no_success_and_no_crash() -> None:
    leaf = Odd("as test frameworks raise")
    owner = Owner(Box(open_error=BaseExceptionGroup("theirs", [leaf])))

    with pytest.raises(BaseExceptionGroup) as caught:
        await owner.open()

    assert caught.value.exceptions == (leaf,)
    await owner.wait_closed()


async def test_a_cancelled_opening_is_cancelled_in_the_toolset_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    box = Box(opening=100)
    owner = Owner(box)

    with trio.move_on_after(3) as scope:
        await owner.open()

    assert scope.cancelled_caught
    await owner.wait_closed()
    assert box.notes == ["opening cancelled"]


async def test_opening_is_a_checkpoint() -> None:
    owner = Owner(Box())
    with trio.testing.assert_checkpoints():
        await owner.open()
    owner.ask_to_close()
    with trio.testing.assert_checkpoints():
        await owner.wait_closed()


# --- ending by itself -----------------------------------------------------------


async def test_a_toolset_that_fails_in_the_background_is_logged_and_cancels_nobody(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(OSError("the server went away"), lives=1)
    owner = Owner(server)
    await owner.open()

    await trio.sleep(5)  # its user is not cancelled

    assert server.notes == ["opened", "left"]
    assert errors_logged(caplog) == ["toolset 'box' failed"]
    assert "the server went away" in caplog.text
    await owner.wait_closed()
    owner.ask_to_close()
    owner.give_up()
    assert len(errors_logged(caplog)) == 1


async def test_an_agents_block_goes_on_when_its_toolset_fails(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(OSError("the server went away"), lives=1)
    async with tr.ToolAgent("a", model=ScriptedModel(["done"]), tools=[server]) as agent:
        await trio.sleep(5)
        assert (await agent.generate("go")).text == "done"
    assert errors_logged(caplog) == ["toolset 'box' failed"]


# --- closes that go wrong -------------------------------------------------------


async def test_a_close_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner(Box(close_error=OSError("stuck")))
    await owner.open()
    owner.ask_to_close()
    await owner.wait_closed()
    assert errors_logged(caplog) == ["toolset 'box' failed"]
    assert "stuck" in caplog.text


async def test_a_close_that_hangs_can_be_given_up(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    box = Box(closing=math.inf)
    owner = Owner(box)
    await owner.open()
    owner.ask_to_close()
    with trio.move_on_after(3):
        await owner.wait_closed()
        pytest.fail("closed")

    owner.give_up()

    await owner.wait_closed()
    assert box.notes == ["opened", "close cancelled"]
    assert errors_logged(caplog) == ["toolset 'box' did not close in time; it is cancelled"]


async def test_an_error_in_a_close_that_was_given_up_is_logged_and_no_crash(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    # Two tasks of the toolset end at once: one by the cancel, one by an error.
    server = Server(OSError("broken pipe"))
    owner = Owner(server)
    await owner.open()

    owner.give_up()
    await owner.wait_closed()

    assert errors_logged(caplog)[1:] == ["toolset 'box' failed"]
    assert "broken pipe" in caplog.text


async def test_an_agent_leaves_within_grace_when_a_toolset_hangs_in_its_close(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    box = Box(closing=math.inf)
    agent = tr.ToolAgent("a", model=ScriptedModel([]), tools=[box], grace=2.0)
    async with agent:
        began = trio.current_time()
    assert trio.current_time() - began == 2
    assert errors_logged(caplog) == ["toolset 'box' did not close in time; it is cancelled"]
    await trio.testing.wait_all_tasks_blocked()
    assert box.notes == ["opened", "close cancelled"]


# --- the end of the run ---------------------------------------------------------


@pytest.mark.parametrize("make", [Box, Server, lambda: Server(OSError("broken pipe"))])
def test_the_end_of_the_run_ends_a_toolset_that_nobody_closed(make: Callable[[], Box]) -> None:
    box = make()

    async def main() -> None:
        await Owner(box).open()
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="the program's own"):
        trio.run(main)
    assert box.notes[0] == "opened"
    assert len(box.notes) == 2
