import itertools
from collections.abc import Sequence
from typing import cast

import attrs
import pytest
import trio
import trio.testing

import trio_runner._core.params as params_
import trio_runner._core.values as v
import trio_runner.abc as abc
from trio_runner.testing import (
    RequestViolation,
    Scripted,
    ScriptedModel,
    ScriptExhausted,
    ScriptItem,
    call,
)

USER = v.Message.user("hello")


def request(*history: v.Message, delta: Sequence[v.Message] | None = None) -> abc.ModelRequest:
    messages = history or (USER,)
    return abc.ModelRequest(
        delta=messages[-1:] if delta is None else delta,
        history=messages,
        tools=[],
        params=params_.DEFAULT_PARAMS,
    )


class Heard:
    """A delta sink that keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> None:
        self.texts.append(text)


def unheard(text: str) -> None:
    """A delta sink for models that must not stream."""
    pytest.fail(f"an unexpected delta: {text!r}")


async def reply_of(item: ScriptItem) -> v.Message:
    model: abc.Model = ScriptedModel([item])
    return await model.reply(request(), unheard)


# --- what an item does ----------------------------------------------------------


async def test_text_is_a_final_answer() -> None:
    assert await reply_of("done") == v.Message.assistant("done")


async def test_a_message_is_returned_as_it_is() -> None:
    message = v.Message.assistant("cut", stop_reason=v.StopReason.MAX_TOKENS)
    assert await reply_of(message) is message


async def test_calls_make_a_reply_that_asks_for_them() -> None:
    one, two = v.ToolCall("a", "add", {"x": 1}), v.ToolCall("b", "add", {"x": 2})
    assert await reply_of(one) == v.Message.assistant(tool_calls=[one])
    assert await reply_of([one, two]) == v.Message.assistant(tool_calls=[one, two])
    assert (await reply_of((one, two))).stop_reason is v.StopReason.TOOL_USE


@pytest.mark.parametrize("error", [OSError("no network"), OSError, KeyboardInterrupt()])
async def test_an_exception_is_raised(error: BaseException | type[BaseException]) -> None:
    with pytest.raises((OSError, KeyboardInterrupt)):
        await reply_of(error)


async def test_a_function_gets_the_request_and_answers_with_another_item() -> None:
    async def slowly(asked: abc.ModelRequest) -> ScriptItem:
        await trio.lowlevel.checkpoint()
        return lambda again: f"{asked.history[0].text}, {again.history[0].text}"

    assert (await reply_of(slowly)).text == "hello, hello"


async def test_a_function_may_answer_with_a_failure() -> None:
    with pytest.raises(OSError, match="later"):
        await reply_of(lambda _: Scripted(error=OSError("later")))


async def test_an_item_that_means_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="the script holds 3; expected a Message"):
        await reply_of(cast("str", 3))


def test_a_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a sequence of items: \['done'\]"):
        ScriptedModel("done")


async def test_items_are_played_in_order_and_may_be_endless() -> None:
    model = ScriptedModel(str(number) for number in itertools.count())
    assert [(await model.reply(request(), unheard)).text for _ in range(3)] == ["0", "1", "2"]
    assert model.calls == 3


async def test_the_end_of_the_script_is_told_with_the_number_of_requests() -> None:
    model = ScriptedModel(["one"])
    await model.reply(request(), unheard)
    with pytest.raises(ScriptExhausted, match="has 1 replies, but request 2 came"):
        await model.reply(request(), unheard)
    assert model.calls == 2


# --- ids ------------------------------------------------------------------------


async def test_calls_without_an_id_get_one_that_is_unique_in_the_script() -> None:
    model = ScriptedModel([[call("add", x=1), call("add", id="mine"), call("sub")], call("add")])
    first = await model.reply(request(), unheard)
    second = await model.reply(request(), unheard)
    assert [c.id for c in first.tool_calls] == ["call-0-0", "mine", "call-0-2"]
    assert [c.id for c in second.tool_calls] == ["call-1-0"]
    assert first.tool_calls[0] == v.ToolCall("call-0-0", "add", {"x": 1})


async def test_a_message_keeps_everything_else_when_its_calls_get_ids() -> None:
    message = v.Message.assistant("thinking", tool_calls=[call("add")], meta={"n": 1})
    got = await reply_of(message)
    assert got == attrs.evolve(message, tool_calls=[v.ToolCall("call-0-0", "add")])


# --- time, deltas, checkpoints --------------------------------------------------


async def test_a_reply_is_a_checkpoint_even_without_a_delay() -> None:
    model = ScriptedModel(["one"])
    with trio.testing.assert_checkpoints():
        await model.reply(request(), unheard)


async def test_the_delay_is_waited_once_and_an_item_may_have_its_own(
    autojump_clock: object,
) -> None:
    model = ScriptedModel(
        ["one", Scripted("two", delay=5.0), lambda _: "three", Scripted(Scripted("four"), delay=0)],
        delay=2.0,
    )
    times: list[float] = []
    for _ in range(4):
        before = trio.current_time()
        await model.reply(request(), unheard)
        times.append(trio.current_time() - before)
    assert times == [2.0, 5.0, 2.0, 0.0]


async def test_deltas_come_one_by_one_with_a_checkpoint_after_each() -> None:
    heard: list[str] = []
    model = ScriptedModel([Scripted(deltas=["Hel", "lo"])])
    with trio.CancelScope() as scope:

        def listen(text: str) -> None:
            heard.append(text)
            scope.cancel()

        await model.reply(request(), listen)
    assert scope.cancelled_caught
    assert heard == ["Hel"]


async def test_deltas_without_a_reply_make_the_answer() -> None:
    heard = Heard()
    model = ScriptedModel([Scripted(deltas=["Hel", "lo"]), Scripted("other", deltas=["x"])])
    assert (await model.reply(request(), heard)).text == "Hello"
    assert (await model.reply(request(), heard)).text == "other"
    assert heard.texts == ["Hel", "lo", "x"]


async def test_a_stream_may_break_after_its_deltas() -> None:
    heard = Heard()
    model = ScriptedModel([Scripted(deltas=["Hel"], error=OSError("cut"))])
    with pytest.raises(OSError, match="cut"):
        await model.reply(request(), heard)
    assert heard.texts == ["Hel"]


async def test_a_cancelled_request_has_used_its_item_up() -> None:
    model = ScriptedModel(["one", "two"])
    with trio.CancelScope() as scope:
        scope.cancel()
        await model.reply(request(), unheard)
    assert (await model.reply(request(), unheard)).text == "two"


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf")])
def test_a_delay_that_is_no_time_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="delay is"):
        ScriptedModel([], delay=delay)
    with pytest.raises(ValueError, match="delay is"):
        Scripted("x", delay=delay)


# --- checking requests ----------------------------------------------------------

ASKED = v.Message.assistant(tool_calls=[v.ToolCall("a", "add")])
ANSWERED = v.Message.user(tool_results=[v.ToolResult("a", "add", "3")])


async def test_a_valid_request_is_kept_with_tuples() -> None:
    history = [USER, ASKED, ANSWERED]
    asked = attrs.evolve(request(), history=history, delta=history[2:])
    model = ScriptedModel(["one"])
    await model.reply(asked, unheard)
    history.append(USER)
    assert model.requests == [
        attrs.evolve(asked, history=(USER, ASKED, ANSWERED), delta=(ANSWERED,), tools=())
    ]
    assert model.violations == []


async def test_an_empty_delta_is_a_tail() -> None:
    model = ScriptedModel(["one"])
    await model.reply(request(delta=[]), unheard)
    assert model.violations == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (request(USER, ASKED), "call"),
        (request(USER, ASKED, USER, ANSWERED), "result"),
        (request(USER, ASKED, ANSWERED, delta=[USER]), "delta of 1 messages is not the tail"),
        (request(USER, delta=[USER, USER]), "delta of 2 messages is not the tail"),
    ],
)
async def test_a_violation_is_raised_and_kept(bad: abc.ModelRequest, problem: str) -> None:
    model = ScriptedModel(["one", "two"])
    with pytest.raises(RequestViolation, match=problem) as caught:
        await model.reply(bad, unheard)
    assert model.violations == [caught.value]
    assert caught.value.request_number == 0
    assert model.calls == 1
    assert (await model.reply(request(), unheard)).text == "two"


async def test_without_check_nothing_is_looked_at_or_copied() -> None:
    bad = request(USER, ASKED)
    model = ScriptedModel(["one"], check=False)
    await model.reply(bad, unheard)
    assert model.requests[0] is bad
    assert model.violations == []
