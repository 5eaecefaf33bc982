"""`Notices`: what observers are told, in which order, and that nothing they do matters."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner._shell.notices import Notices
from trio_runner.testing import ScriptedModel, call


class Events:
    def __init__(self, error: BaseException | None = None) -> None:
        self.all: list[ev.Event] = []
        self.error = error

    def on_event(self, event: ev.Event) -> None:
        self.all.append(event)
        if self.error is not None:
            raise self.error

    @property
    def numbers(self) -> list[int]:
        return [event.number for event in self.all]


def test_every_observer_gets_the_same_event_numbered_one_by_one() -> None:
    first, second = Events(), Events()
    notices = Notices([first, second])
    notices.turn = 7

    notices.tell(ev.TextDelta, 0, "a")
    notices.tell(ev.TextDelta, 1, text="b")

    assert first.all == [ev.TextDelta(0, 7, 0, "a"), ev.TextDelta(1, 7, 1, "b")]
    assert all(a is b for a, b in zip(first.all, second.all, strict=True))


def test_without_observers_nobody_listens() -> None:
    assert not Notices(()).listening
    assert Notices(iter([Events()])).listening


def test_an_observer_that_raises_is_logged_and_the_next_one_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Events(ValueError("bad observer")), Events()
    notices = Notices([bad, good])

    notices.tell(ev.Committed)
    notices.tell(ev.Committed)

    assert (len(bad.all), len(good.all), notices.errors) == (2, 2, 2)
    assert "bad observer" in caplog.text
    assert "the turn goes on" in caplog.text


def test_a_cancellation_that_an_observer_raises_by_itself_is_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Events(asyncio.CancelledError()), Events()
    notices = Notices([bad, good])

    notices.tell(ev.Committed)

    assert (len(good.all), notices.errors) == (1, 1)
    assert "the turn goes on" in caplog.text


def test_what_is_no_exception_leaves_an_observer() -> None:
    notices = Notices([Events(KeyboardInterrupt())])
    with pytest.raises(KeyboardInterrupt):
        notices.tell(ev.Committed)
    assert notices.errors == 0


@pytest.mark.parametrize("listening", [True, False])
def test_an_error_that_loses_goes_to_the_log_and_to_whoever_listens(
    listening: bool, caplog: pytest.LogCaptureFixture
) -> None:
    events, error = Events(), ValueError("the one that lost")
    notices = Notices([events] if listening else [])

    notices.suppressed(error)

    assert events.all == ([ev.ErrorSuppressed(0, 0, error)] if listening else [])
    assert [each.levelno for each in caplog.records] == [logging.ERROR]
    assert "the one that lost" in caplog.text


# --- from worker threads --------------------------------------------------------


async def test_from_a_thread_it_is_told_soon_in_trios_thread_and_in_order() -> None:
    events = Events()
    threads: list[int] = []

    class Where:
        def on_event(self, event: ev.Event) -> None:
            threads.append(threading.get_ident())

    notices = Notices([events, Where()])
    notices.begin(3)

    def work() -> None:
        for number in range(3):
            notices.tell_from_anywhere(ev.TextDelta, number, text="x")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # holds the loop up, so that nothing can be told meanwhile
    assert events.all == []
    await trio.testing.wait_all_tasks_blocked()
    notices.tell_from_anywhere(ev.Committed)  # from trio's thread: now

    assert events.all == [
        *[ev.TextDelta(number, 3, number, "x") for number in range(3)],
        ev.Committed(3, 3),
    ]
    assert set(threads) == {threading.get_ident()}


def test_before_a_turn_begins_any_thread_tells_at_once() -> None:
    events = Events()
    Notices([events]).tell_from_anywhere(ev.Committed)
    assert events.numbers == [0]


async def test_a_turn_without_observers_takes_its_number_all_the_same() -> None:
    notices = Notices(())
    notices.begin(5)
    assert notices.turn == 5


def test_a_notices_of_another_run_tells_its_own_thread() -> None:
    # A runner is made in one place and may run in another thread's run.
    events = Events()
    notices = Notices([events])

    async def main() -> None:
        notices.begin(1)
        notices.tell_from_anywhere(ev.Committed)

    async def elsewhere() -> None:
        await trio.to_thread.run_sync(trio.run, main)

    trio.run(elsewhere)
    assert events.numbers == [0]


async def test_events_of_one_turn_have_growing_numbers_whoever_causes_them() -> None:
    events = Events()

    def threaded(context: tr.ToolContext) -> str:
        for number in range(3):
            context.report_progress(number)
        return "ok"

    agent = tr.ToolAgent(
        "a",
        model=ScriptedModel([[call("threaded"), call("threaded")], "done"]),
        tools=[threaded],
        observers=[events],
    )
    await agent.generate("go")

    assert events.numbers == list(range(len(events.all)))
    progress = [event for event in events.all if type(event) is ev.CallProgress]
    by_call = itertools.groupby(sorted(progress, key=lambda e: e.call_id), lambda e: e.call_id)
    assert [[event.progress for event in group] for _, group in by_call] == [[0, 1, 2]] * 2
