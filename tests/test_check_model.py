"""`check_model` accepts good models, and each of its rules rejects a wrong one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel

import trio_runner as tr
import trio_runner.abc as abc
from trio_runner.testing import MODEL_RULES, Scripted, ScriptedModel, call, check_model

# --- good models ----------------------------------------------------------------


def echoing(request: tr.ModelRequest) -> Scripted:
    """The reply depends on the request alone."""
    text = f"You said {request.history[-1].text}"
    return Scripted(deltas=(text[:5], text[5:]))


def endless(item: Any, delay: float = 0.0) -> Callable[[], ScriptedModel]:
    return lambda: ScriptedModel((item for _ in range(1000)), delay=delay)


def failing() -> ScriptedModel:
    return ScriptedModel([ConnectionError("the provider is away")])


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 2.0])
def test_a_scripted_model_keeps_every_promise(delay: float) -> None:
    report = check_model(endless(echoing, delay), make_failing=failing, concurrent=True)
    report.raise_if_failed()
    assert {rule.status for rule in report.rules} == {"ok"}, report.render()
    assert [rule.name for rule in report.rules] == list(MODEL_RULES)


@pytest.mark.slow
def test_a_model_that_asks_for_calls_keeps_every_promise() -> None:
    report = check_model(endless([call("a", id="1"), call("a", id="2")]))
    assert {rule.status for rule in report.rules} == {"ok", "not_applicable"}, report.render()


def test_rules_that_need_more_than_a_model_say_what() -> None:
    report = check_model(endless("hello"), seeds=[0])
    notes = {rule.name: rule.note for rule in report.rules if rule.note}
    assert set(notes) == {"replies_do_not_mix", "errors_leave_bare"}
    assert "concurrent=True" in notes["replies_do_not_mix"]
    assert "make_failing" in notes["errors_leave_bare"]


def test_a_model_may_be_made_by_a_context_manager_and_in_real_time() -> None:
    @asynccontextmanager
    async def managed() -> AsyncGenerator[ScriptedModel]:
        await trio.lowlevel.checkpoint()
        yield endless(echoing)()

    report = check_model(managed, real_time=True, max_positions=3)
    assert report.ok, report.render()


def test_without_a_request_there_is_nothing_to_check() -> None:
    with pytest.raises(ValueError, match="requests is empty"):
        check_model(endless("hello"), requests=[])


# --- wrong ones -----------------------------------------------------------------


class Good:
    """Takes a while, then answers; the mutants override a part."""

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> Any:
        await self.work(emit)
        return self.answer(request)

    async def work(self, emit: tr.DeltaSink) -> None:
        for piece in ("hel", "lo"):
            emit(piece)
            await trio.sleep(1)

    def answer(self, request: tr.ModelRequest) -> Any:
        return tr.Message.assistant("hello")


def answering(make: Callable[[], Any]) -> Callable[[], Any]:
    class Wrong(Good):
        def answer(self, request: tr.ModelRequest) -> Any:
            return make()

    return Wrong


def hello(**changes: Any) -> Callable[[], Any]:
    return answering(lambda: attrs.evolve(tr.Message.assistant("hello"), **changes))


class Edits(Good):
    def answer(self, request: tr.ModelRequest) -> Any:
        request.history[0].meta["seen"] = True  # type: ignore[index]
        return super().answer(request)


class EmitsBytes(Good):
    async def work(self, emit: Any) -> None:
        emit(b"hello")
        await trio.lowlevel.checkpoint()


class EmitsLate(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        async def late() -> None:
            await trio.sleep(0.01)
            emit("lo")

        trio.lowlevel.spawn_system_task(late)
        await trio.lowlevel.checkpoint()


class EmitsTwice(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        emit("hello")
        await super().work(emit)


class Swallows(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        try:
            await super().work(emit)
        except trio.Cancelled:
            pass


class SwallowsAndSaysSo(Good):
    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> Any:
        try:
            return await super().reply(request, emit)
        except BaseException as error:  # noqa: BLE001  that is what is wrong with it
            return tr.Message.assistant(f"failed: {error}")


class Replaces(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        try:
            await super().work(emit)
        except trio.Cancelled:
            raise RuntimeError("cancelled") from None


class Shields(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)


class HasItsOwnTimeout(Good):
    """Right: a cancel of its own is no cancel of the caller's."""

    async def work(self, emit: tr.DeltaSink) -> None:
        for _ in range(3):
            with trio.move_on_after(1):
                await trio.sleep_forever()


class StaysBusy(Good):
    busy = False

    async def work(self, emit: tr.DeltaSink) -> None:
        if self.busy:
            raise RuntimeError("another reply is still running")
        self.busy = True
        await super().work(emit)
        self.busy = False


class LeavesATask(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        trio.lowlevel.spawn_system_task(trio.sleep_forever, name="reader")
        await super().work(emit)


class Forgets(Good):
    async def work(self, emit: tr.DeltaSink) -> None:
        trio.sleep(1)  # type: ignore[reportUnusedCoroutine]  # noqa: ASYNC105  that is what is wrong
        await trio.lowlevel.checkpoint()


class KeepsTheRequest(Good):
    request: Any = None

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> Any:
        self.request = request
        await trio.sleep(1)
        return tr.Message.assistant(f"You said {self.request.history[-1].text}")


def raising(error: BaseException) -> Callable[[], Any]:
    class Failing(Good):
        def answer(self, request: tr.ModelRequest) -> Any:
            raise error

    return Failing


def bad_usage() -> Any:
    return tr.Message.assistant("hello", usage=tr.Usage(input_tokens=-1))


#: For each rule the wrong models that break it: options of `check_model`.
WRONG: dict[str, list[dict[str, Any]]] = {
    "reply_is_an_assistant_message": [
        {"make_model": answering(lambda: "hello")},
        {"make_model": answering(lambda: tr.Message.user("hello"))},
        {"make_model": hello(tool_results=[tr.ToolResult("c1", "a")])},
    ],
    "stop_reason_says_why": [
        {"make_model": hello(stop_reason=None)},
        {"make_model": hello(stop_reason="length")},
        {"make_model": hello(stop_reason=tr.StopReason.TOOL_USE)},
    ],
    "usage_counts_tokens": [
        {"make_model": answering(bad_usage)},
        {"make_model": hello(usage={"input_tokens": 3})},
    ],
    "request_is_not_changed": [{"make_model": Edits}],
    "emit_gets_text": [{"make_model": EmitsBytes}],
    "emit_ends_with_the_reply": [{"make_model": EmitsLate}],
    "cancel_is_let_through": [
        {"make_model": Swallows},
        {"make_model": SwallowsAndSaysSo},
        {"make_model": Replaces},
        {"make_model": Shields},
    ],
    "a_reply_follows_a_cancelled_one": [{"make_model": StaysBusy}],
    "nothing_is_left_running": [{"make_model": LeavesATask}, {"make_model": Forgets}],
    "a_turn_keeps_the_contract": [{"make_model": answering(lambda: "hello")}],
    "replies_do_not_mix": [{"make_model": KeepsTheRequest, "concurrent": True}],
    "errors_leave_bare": [
        {"make_model": Good, "make_failing": Good},
        {"make_model": Good, "make_failing": raising(ExceptionGroup("", [OSError()]))},
        {"make_model": Good, "make_failing": raising(asyncio.CancelledError())},
    ],
}
#: Rules that give advice, with what they advise against.
ADVISED: dict[str, list[dict[str, Any]]] = {
    "reply_needs_no_mending": [
        {"make_model": hello(content="")},
        {"make_model": hello(content="bad \ud800 text")},
        {"make_model": hello(meta={"raw": object()})},
    ],
    "calls_can_be_told_apart": [
        {"make_model": answering(lambda: tr.Message.assistant(tool_calls=[call("a", id="1")] * 2))},
        {"make_model": answering(lambda: tr.Message.assistant(tool_calls=[call("a")]))},
    ],
    "deltas_make_up_the_text": [{"make_model": EmitsTwice}],
}


def cases(table: dict[str, list[dict[str, Any]]]) -> list[Any]:
    return [
        pytest.param(rule, options, id=f"{rule}-{number}")
        for rule, wrong in table.items()
        for number, options in enumerate(wrong)
    ]


@pytest.mark.parametrize("model", [Good, HasItsOwnTimeout])
def test_the_model_that_the_wrong_ones_are_made_of_is_right(model: Callable[[], Any]) -> None:
    report = check_model(model, seeds=[0])
    assert {rule.status for rule in report.rules} <= {"ok", "not_applicable"}, report.render()


def test_each_rule_has_a_model_that_breaks_it() -> None:
    assert set(WRONG) | set(ADVISED) == set(MODEL_RULES)
    assert not set(WRONG) & set(ADVISED)


@pytest.mark.parametrize(("rule", "options"), cases(WRONG))
def test_a_wrong_model_is_told_which_promise_it_breaks(rule: str, options: dict[str, Any]) -> None:
    report = check_model(**options, rules=[rule], seeds=[0])
    assert report.status_of(rule) == "violated", report.render()
    promise = f"{rule} ({MODEL_RULES[rule].promised_by}): found "
    assert all(text.startswith(promise) for text in report.violations)


@pytest.mark.parametrize(("rule", "options"), cases(ADVISED))
def test_what_is_allowed_but_not_good_is_advice(rule: str, options: dict[str, Any]) -> None:
    report = check_model(**options, rules=[rule], seeds=[0])
    assert report.status_of(rule) == "advice", report.render()
    assert report.ok


@pytest.mark.parametrize("model", [SwallowsAndSaysSo, LeavesATask])
def test_wrong_models_are_found_in_real_time_too(model: Callable[[], Any]) -> None:
    class Quick(model):  # type: ignore[misc, valid-type]
        async def work(self, emit: tr.DeltaSink) -> None:
            if model is LeavesATask:
                trio.lowlevel.spawn_system_task(trio.sleep_forever)
            await trio.sleep(0.01)

    rules = ["cancel_is_let_through", "nothing_is_left_running"]
    report = check_model(Quick, rules=rules, real_time=True)
    assert [rule.status for rule in report.rules].count("violated") == 1


def test_a_request_reaches_the_model_as_it_was_given() -> None:
    seen: list[abc.ModelRequest] = []

    class Notes(Good):
        def answer(self, request: tr.ModelRequest) -> Any:
            seen.append(request)
            return super().answer(request)

    async def look(_: object, __: object) -> None:
        raise AssertionError("a model does not call tools")

    message = tr.Message.user("Which tools?")
    tool = tr.Tool("look", "Looks.", {"type": "object"}, look)
    request = abc.ModelRequest([message], [message], [tool], tr.RequestParams(), "Be short.")
    check_model(Notes, requests=[request], rules=["reply_is_an_assistant_message"], seeds=[0])
    assert seen == [request]
