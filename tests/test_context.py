"""`CallContext`: what a running call knows, and what it says until it has its result."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
from trio_runner._shell.context import BatchContext, CallContext, TurnContext
from trio_runner._shell.notices import Notices

OF_A_TURN = TurnContext(tr.Conversation(), None, 5.0)


class Events:
    def __init__(self) -> None:
        self.all: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.all.append(event)


def context_of(
    *, events: Events | None = None, resumed: bool = False, threaded: bool = False
) -> CallContext:
    notices = Notices([] if events is None else [events])
    notices.begin(2)
    batch = BatchContext(OF_A_TURN, notices, 1, "s/2:1", resumed)
    call = tr.ToolCall("c1", "work", {"x": [1]})
    return CallContext(call, {"x": [1]}, batch, threaded=threaded)


@pytest.mark.parametrize("resumed", [True, False])
async def test_a_context_says_which_call_it_is(
    resumed: bool, autojump_clock: trio.testing.MockClock
) -> None:
    context = context_of(resumed=resumed)
    await trio.sleep(3)
    assert (context.call_id, context.name, context.attempt) == ("c1", "work", 1)
    assert context.idempotency_key == "s/2:1:c1"
    assert context.arguments == {"x": [1]}
    assert context.resumed is resumed
    assert context.duration == 3
    assert trio.current_time() - context.began == 3
    public: tr.ToolContext = context  # what a tool may rely on
    assert public is context


async def test_progress_and_values_are_told_with_the_call_and_its_step() -> None:
    events = Events()
    context = context_of(events=events)
    value = object()

    context.report_progress(0.5)
    context.report_progress(1, total=3.0, message="third")
    context.emit(value)

    assert events.all == [
        ev.CallProgress(0, 2, 1, "c1", 0.5, None, None),
        ev.CallProgress(1, 2, 1, "c1", 1, 3.0, "third"),
        ev.CallEmitted(2, 2, 1, "c1", value),
    ]


async def test_what_is_attached_names_its_call_and_nothing_attaches_nothing() -> None:
    context = context_of()
    image = tr.ImageContent("aGk=", "image/png")

    context.attach(image, tr.TextContent("a picture"))
    context.attach()
    context.attach(tr.TextContent(" \n"))  # blank is nothing

    (message,) = context.attached
    assert (message.role, message.content) == ("user", (image, tr.TextContent("a picture")))
    assert message.meta == {"attached_by": "c1"}


async def test_content_that_is_none_is_refused_where_the_tool_can_see_it() -> None:
    context = context_of()
    with pytest.raises(TypeError, match="expected text or content blocks"):
        context.attach(cast("Any", 3))
    assert context.attached == ()


async def test_once_the_call_has_its_result_nothing_more_is_said() -> None:
    events = Events()
    context = context_of(events=events)
    context.open = False

    context.report_progress(1)
    context.emit("late")
    context.attach(tr.TextContent("late"))

    assert (events.all, context.attached) == ([], ())


async def test_without_observers_nothing_is_built() -> None:
    context = context_of()
    context.report_progress(cast("Any", object()))
    context.emit("nobody listens")


async def test_exactly_one_side_gets_the_start_of_a_call() -> None:
    context = context_of(threaded=True)
    assert [context.claim_start(), context.claim_start(), context.give_up()] == [True, False, False]
    other = context_of(threaded=True)
    assert [other.give_up(), other.claim_start()] == [True, False]


async def test_a_tool_without_a_thread_begins_with_its_call_however_often_it_says_so() -> None:
    context = context_of()
    assert [context.claim_start(), context.claim_start()] == [True, True]


async def test_of_many_threads_one_gets_the_start() -> None:
    for _ in range(20):
        context = context_of(threaded=True)
        barrier = threading.Barrier(4)
        won: list[bool] = []

        def race(
            context: CallContext = context,
            barrier: threading.Barrier = barrier,
            won: list[bool] = won,
        ) -> None:
            barrier.wait()
            won.append(context.claim_start())

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(trio.to_thread.run_sync, race)
        assert sorted(won) == [False, False, False, True]


async def test_the_current_context_is_found_in_the_task_its_children_and_threads() -> None:
    seen: list[str] = []
    batch = BatchContext(OF_A_TURN, Notices(()), 0, "s/1:0", False)

    async def in_a_call(call_id: str) -> None:
        context = CallContext(tr.ToolCall(call_id, "work"), {}, batch, threaded=False)
        context.make_current()
        assert tr.current_tool_context() is context

        async def child() -> None:
            seen.append(tr.current_tool_context().call_id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
        seen.append(await trio.to_thread.run_sync(lambda: tr.current_tool_context().call_id))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_a_call, "a")
        nursery.start_soon(in_a_call, "b")
    assert sorted(seen) == ["a", "a", "b", "b"]
    # What a call sets is its task's own.
    with pytest.raises(tr.UsageError, match="no tool call is running here"):
        tr.current_tool_context()
