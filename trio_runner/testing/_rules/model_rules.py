"""The rules of `check_model`, and the kit that they work with.

Models and what they answer are ``Any`` here: what they promise is just what is in doubt.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, cast

import attrs
import trio
import trio.testing

import trio_runner._core.errors as errors
import trio_runner._core.values as v
import trio_runner.abc as abc
from trio_runner._core.normalise import normalise_reply
from trio_runner._journal.memory import MemoryJournal
from trio_runner.testing._conformance import Findings
from trio_runner.testing._rules.odd_records import difference
from trio_runner.testing._rules.turn import WitnessedTurn
from trio_runner.testing._stages import Stage
from trio_runner.testing._trials import (
    Ending,
    Span,
    Trial,
    Usual,
    check_run,
    is_only,
    shown,
    then_look,
    with_made,
)

#: Ids that are taken: a reply is looked at as the first of its history.
_NO_IDS: Final = frozenset[str]()


@attrs.frozen
class ModelKit:
    """What the rules of `check_model` work with; its arguments say what the fields are."""

    stage: Stage
    make: Callable[[], Any]
    requests: tuple[abc.ModelRequest, ...]
    make_failing: Callable[[], Any] | None
    concurrent: bool
    leaves_within: float

    def use(
        self,
        found: Findings,
        doing: str,
        body: Callable[[Any], Awaitable[object]],
        make: Callable[[], Any] | None = None,
    ) -> None:
        """Run ``body`` with a new model, undisturbed."""

        def make_trial() -> Trial:
            return Trial(
                lambda: with_made(make or self.make, body),
                lambda ending: check_run(ending, found, doing),
            )

        self.stage.once(make_trial)

    def each_reply(self, found: Findings, look: Callable[[Any, Sink], None]) -> None:
        """Ask each request of a model of its own, and look at the reply and what it emitted."""
        for number, request in enumerate(self.requests):

            async def body(model: Any, request: abc.ModelRequest = request) -> None:
                sink = Sink()
                look(await model.reply(request, sink), sink)

            self.use(found, f"answering request {number}", body)


class Sink:
    """A `DeltaSink` that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[object] = []

    def __call__(self, text: str) -> None:
        """Keep a piece."""
        self.given.append(text)


# --- the reply ------------------------------------------------------------------


def _problem_of(reply: Any) -> str | None:
    """Why the runner would refuse the reply, or None."""
    try:
        normalise_reply(reply, _NO_IDS)
    except errors.ModelReplyError as error:
        return str(error)
    return None


def reply_is_an_assistant_message(kit: ModelKit, found: Findings) -> None:
    """The runner takes the reply."""

    def look(reply: Any, _: Sink) -> None:
        problem = _problem_of(reply)
        if problem is not None:
            found.violated(
                problem,
                expected="an assistant Message",
                remedy="build the reply with Message.assistant(...)",
            )

    kit.each_reply(found, look)


def reply_needs_no_mending(kit: ModelKit, found: Findings) -> None:
    """Advice: what the runner would have to change in content and meta."""

    def look(reply: Any, _: Sink) -> None:
        if _problem_of(reply) is not None:
            return
        normal = normalise_reply(reply, _NO_IDS)
        for name in ("content", "meta"):
            problem = difference(getattr(normal, name), getattr(reply, name), name)
            if problem is not None:
                found.advise(
                    f"the reply needs mending: {problem}",
                    expected="content that is not empty, text that encodes, meta of plain JSON",
                    remedy="convert the provider's values in the adapter",
                )

    kit.each_reply(found, look)


def stop_reason_says_why(kit: ModelKit, found: Findings) -> None:
    """The stop reason is one of ours, and fits the calls."""

    def look(reply: Any, _: Sink) -> None:
        reason, calls = reply.stop_reason, reply.tool_calls
        if type(reason) is not v.StopReason:
            found.violated(
                f"stop_reason is {reason!r}",
                expected="a StopReason: calls that were cut off by max_tokens must not run",
                remedy="translate each of the provider's reasons; Message.assistant sets a default",
            )
        elif reason is v.StopReason.TOOL_USE and not calls:
            found.violated(
                "stop_reason is tool_use, and the reply asks for no call",
                expected="tool_use only beside tool calls",
                remedy="make sure that no call was lost in the conversion",
            )

    kit.each_reply(found, look)


def usage_counts_tokens(kit: ModelKit, found: Findings) -> None:
    """Usage is None or whole numbers."""

    def look(reply: Any, _: Sink) -> None:
        usage = reply.usage
        if usage is None:
            return
        counts = [getattr(usage, field.name, None) for field in attrs.fields(cast("Any", v.Usage))]
        if type(usage) is not v.Usage or any(type(n) is not int or n < 0 for n in counts):
            found.violated(
                f"usage is {shown(usage)}",
                expected="None, or a Usage of whole numbers, 0 or more",
                remedy="put 0 for what the provider does not count",
            )

    kit.each_reply(found, look)


def calls_can_be_told_apart(kit: ModelKit, found: Findings) -> None:
    """Advice: ids are there and differ, so that the provider's own ids are kept."""

    def look(reply: Any, _: Sink) -> None:
        ids = [call.id for call in reply.tool_calls]
        if len(set(map(repr, ids))) < len(ids) or not all(
            type(each) is str and each for each in ids
        ):
            found.advise(
                f"the ids of the calls are {ids!r}",
                expected="a different text for each: the runner gives new ids to the others",
                remedy="pass the provider's ids on, if it has some",
            )

    kit.each_reply(found, look)


def request_is_not_changed(kit: ModelKit, found: Findings) -> None:
    """The request looks the same afterwards."""
    for number, request in enumerate(kit.requests):

        async def body(model: Any, request: abc.ModelRequest = request) -> None:
            # The caller's request stays whole whatever the model does to this one.
            mine = attrs.evolve(
                request,
                delta=copy.deepcopy(tuple(request.delta)),
                history=copy.deepcopy(tuple(request.history)),
                params=copy.deepcopy(request.params),
            )
            await model.reply(mine, Sink())
            for name in ("history", "delta", "params", "instruction"):
                before = getattr(request, name)
                before = tuple(before) if name in ("history", "delta") else before
                problem = difference(before, getattr(mine, name), name)
                if problem is not None:
                    found.violated(
                        f"after the reply {problem}",
                        expected="the request as it was: the history is built of its values",
                        remedy="copy what you change, arguments, meta and settings too",
                    )

        kit.use(found, f"answering request {number}", body)


# --- deltas ---------------------------------------------------------------------


def emit_gets_text(kit: ModelKit, found: Findings) -> None:
    """Only text is emitted."""

    def look(_: Any, sink: Sink) -> None:
        for piece in sink.given:
            if type(piece) is not str:
                found.violated(
                    f"emit was called with {shown(piece)}",
                    expected="text",
                    remedy="emit the text of the provider's event",
                )

    kit.each_reply(found, look)


def emit_ends_with_the_reply(kit: ModelKit, found: Findings) -> None:
    """Nothing is emitted once the reply was returned."""
    for number, request in enumerate(kit.requests):

        async def body(model: Any, request: abc.ModelRequest = request) -> None:
            sink = Sink()
            await model.reply(request, sink)
            before = len(sink.given)
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.05)
            if len(sink.given) > before:
                found.violated(
                    f"emit was called {len(sink.given) - before} times after the reply",
                    expected="every piece before the reply is returned",
                    remedy="read the stream in the task that replies, or in a nursery inside reply",
                )

        kit.use(found, f"waiting after the reply to request {number}", body)


def deltas_make_up_the_text(kit: ModelKit, found: Findings) -> None:
    """Advice: the pieces, if any, make up the text of the reply."""

    def look(reply: Any, sink: Sink) -> None:
        emitted = "".join([piece for piece in sink.given if type(piece) is str])
        text = "".join([block.text for block in _texts(reply)])
        if sink.given and emitted != text:
            found.advise(
                f"the pieces make up {shown(emitted)}, the reply says {shown(text)}",
                expected="the same text, so that a display of the pieces shows the reply",
                remedy="emit each piece once; do not emit reasoning or arguments as text",
            )

    kit.each_reply(found, look)


def _texts(reply: Any) -> Iterator[v.TextContent]:
    for block in reply.content:
        if type(block) is v.TextContent:
            yield block


# --- cancelling -----------------------------------------------------------------


def _reply_trial(
    kit: ModelKit,
    found: Findings,
    request: abc.ModelRequest,
    check: Callable[[Ending, Span], None],
    *,
    again: bool,
) -> Trial:
    """One reply and, with ``again``, another one of the same model."""
    span = Span()

    async def body(model: Any) -> None:
        async def look() -> None:
            if not again:
                return
            problem = _problem_of(await model.reply(request, Sink()))
            if problem is not None:
                found.violated(
                    f"after a cancelled reply, the next: {problem}",
                    expected="a reply as if nothing had been",
                    remedy="start each reply from what the request says",
                )

        await then_look(lambda: span.over(lambda: model.reply(request, Sink())), look, found)

    return Trial(lambda: with_made(kit.make, body), lambda ending: check(ending, span))


def cancel_is_let_through(kit: ModelKit, found: Findings) -> None:
    """A cancel at every step of a reply leaves it, and soon."""
    for request in kit.requests:
        usual = Usual()

        def check(ending: Ending, span: Span, usual: Usual = usual) -> None:
            if span.check_left(ending, found, "reply", kit.leaves_within):
                span.check_errors(ending, found, "reply")
                span.check_let_through(ending, found, "reply", usual)

        kit.stage.sweep(_trials(kit, found, request, check, again=False))


def a_reply_follows_a_cancelled_one(kit: ModelKit, found: Findings) -> None:
    """The same model answers again after a cancel at any step."""
    for request in kit.requests:

        def check(ending: Ending, _: Span) -> None:
            check_run(ending, found, "replying, and replying again")

        kit.stage.sweep(_trials(kit, found, request, check, again=True))


def nothing_is_left_running(kit: ModelKit, found: Findings) -> None:
    """No task and nothing unclosed outlives a reply, whole or cancelled."""

    def check(ending: Ending, _: Span) -> None:
        for name in ending.left_alive:
            found.violated(
                f"task {name!r} was left running",
                expected="no task to outlive the reply",
                remedy="open a nursery inside reply; close the provider's stream there",
            )
        for trouble in ending.trouble:
            found.violated(
                trouble,
                expected="nothing to be left unclosed or never awaited",
                remedy="close the provider's stream in a finally, or in async with",
            )

    for request in kit.requests:
        kit.stage.sweep(_trials(kit, found, request, check, again=False))


def _trials(
    kit: ModelKit,
    found: Findings,
    request: abc.ModelRequest,
    check: Callable[[Ending, Span], None],
    *,
    again: bool,
) -> Callable[[], Trial]:
    return lambda: _reply_trial(kit, found, request, check, again=again)


def a_turn_keeps_the_contract(kit: ModelKit, found: Findings) -> None:
    """A turn of an agent with this model, cancelled at every step."""

    def make_trial() -> Trial:
        span = Span()

        async def body(model: Any) -> None:
            turn = WitnessedTurn(model=model, journal=MemoryJournal(), grace=kit.leaves_within)

            async def look() -> None:
                turn.check(found)

            await then_look(lambda: span.over(lambda: turn.take("Say hello.")), look, found)

        def check(ending: Ending) -> None:
            if span.check_left(ending, found, "an agent's turn", 2 * kit.leaves_within):
                span.check_errors(ending, found, "an agent's turn")

        return Trial(lambda: with_made(kit.make, body), check)

    kit.stage.sweep(make_trial)


# --- several, and errors ----------------------------------------------------------


def replies_do_not_mix(kit: ModelKit, found: Findings) -> None:
    """All requests at once are answered as each alone."""
    if not kit.concurrent:
        found.not_applicable("say concurrent=True for a model that several turns may share")
        return
    alone: dict[int, tuple[Any, list[object]]] = {}

    async def ask(model: Any, number: int, into: dict[int, tuple[Any, list[object]]]) -> None:
        sink = Sink()
        reply = await model.reply(kit.requests[number], sink)
        into[number] = (reply, sink.given)

    for number in range(len(kit.requests)):
        kit.use(
            found,
            f"answering request {number}",
            lambda model, number=number: ask(model, number, alone),
        )

    async def body(model: Any) -> None:
        together: dict[int, tuple[Any, list[object]]] = {}
        async with trio.open_nursery() as nursery:
            for number in range(len(kit.requests)):
                nursery.start_soon(ask, model, number, together)
        for number, expected in alone.items():
            problem = difference(expected, together[number], f"request {number}: (reply, pieces)")
            if problem is not None:
                found.violated(
                    f"asked at once with others, {problem}",
                    expected="the reply and the pieces of the request alone",
                    remedy="keep nothing of a reply in the model object while it runs",
                )

    kit.use(found, "answering all requests at once", body)


def errors_leave_bare(kit: ModelKit, found: Findings) -> None:
    """A failing reply raises one plain Exception."""
    if kit.make_failing is None:
        found.not_applicable("give make_failing, a model whose reply fails")
        return

    def make_trial() -> Trial:
        span = Span()

        async def body(model: Any) -> None:
            await span.over(lambda: model.reply(kit.requests[0], Sink()))

        def check(ending: Ending) -> None:
            if ending.hung:
                check_run(ending, found, "failing")
            else:
                _check_error(found, span)

        return Trial(lambda: with_made(kit.make_failing or kit.make, body), check)

    kit.stage.once(make_trial)


def _check_error(found: Findings, span: Span) -> None:
    match span.raised:
        case None:
            what = f"the failing model returned {shown(span.value)}"
        case BaseExceptionGroup() as group:
            what = f"the failing model raised a group: {group!r}"
        case error if not isinstance(error, Exception) or is_only(error, (trio.Cancelled,)):
            what = f"the failing model raised {type(error).__name__}, which is no Exception"
        case _:
            return
    found.violated(
        what,
        expected="one plain Exception, which leaves the turn bare",
        remedy="unwrap the group of your nursery; turn a foreign cancel into an Exception",
    )
