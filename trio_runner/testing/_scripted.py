"""`ScriptedModel`: a model that plays a script and checks every request.

What may live here: the scripted model, its script items and its errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import attrs
import trio

import trio_runner._core.errors as errors
import trio_runner._core.params as params_
import trio_runner._core.values as v
import trio_runner.abc as abc
from trio_runner._core.structured import StructuredPolicy
from trio_runner._core.validity import check_history


class RequestViolation(AssertionError):
    """A request that no provider should get. It is also kept in `ScriptedModel.violations`.

    Attributes:
      request_number: which request it was, from 0.
      problems: one sentence for each fault.
    """

    def __init__(self, request_number: int, problems: Iterable[str]) -> None:
        self.request_number = request_number
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__(
            f"request {request_number} (counted from 0) is not valid: {'; '.join(self.problems)}"
        )


class ScriptExhausted(AssertionError):
    """More requests came than the script has replies."""


def _check_delay(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    params_.check_seconds(attribute.name, value, optional=True)


@attrs.frozen
class Scripted:
    """One reply with everything that can be said about it.

    Attributes:
      reply: any other script item; None: an answer made of the deltas.
      delay: seconds before the first delta; None: the model's.
      deltas: pieces of text to emit first, with a checkpoint after each.
      error: raised instead of the reply, after the deltas: a stream that breaks.
    """

    reply: Any = None
    delay: float | None = attrs.field(default=None, validator=_check_delay)
    deltas: Sequence[str] = attrs.field(default=(), converter=tuple[str, ...])
    error: BaseException | type[BaseException] | None = None


#: One entry of a script; `ScriptedModel` says what each does.
ScriptItem: TypeAlias = (
    v.Message
    | str
    | v.ToolCall
    | Sequence[v.ToolCall]
    | Scripted
    | BaseException
    | type[BaseException]
    | Callable[[abc.ModelRequest], Any]
)


def call(name: str, /, *, id: str = "", **arguments: Any) -> v.ToolCall:
    """A tool call for a script: ``call("get_weather", city="Oslo")``.

    Without an id `ScriptedModel` gives it one: ``call-R-P``, for the request's
    number and the position in the reply, both from 0. For an argument that is
    itself named ``id`` build the `ToolCall` directly.
    """
    return v.ToolCall(id, name, arguments)


class ScriptedModel:
    """Plays ``replies`` one by one, whatever it is asked; a `trio_runner.abc.Model`.

    An item of the script is:

    * a `Message`: returned as it is (calls without an id get one);
    * text: a final answer;
    * a `ToolCall`, or a sequence of them: a reply that asks for them;
    * an exception or its class: raised;
    * a function: called with the request, sync or async; it returns one of the others;
    * `Scripted`: one of these with a delay, deltas, an error.

    Args:
      replies: the script. Read item by item, so it may be endless.
      delay: seconds before each reply; there is a checkpoint in any case.
      check: validate every request (the whole history by `check_history`, and
        that the delta is its tail) and raise `RequestViolation`. With False
        nothing is checked or copied, which keeps a long turn linear.
      supports_structured_output: stand for a model that can be held to a schema: it takes
        ``ModelRequest.output``. It does not look whether its script fits.
      structured_policy: what ``structured_policy="auto"`` means for it.

    Attributes:
      requests: every request so far; checked ones hold tuples, made when they came.
      violations: what was wrong with them, since a loop may swallow the error.
    """

    def __init__(
        self,
        replies: Iterable[ScriptItem],
        *,
        delay: float = 0.0,
        check: bool = True,
        supports_structured_output: bool = False,
        structured_policy: StructuredPolicy = "auto",
    ) -> None:
        if type(replies) is str:
            raise TypeError(
                f"replies is the text {replies!r}; expected a sequence of items: [{replies!r}]"
            )
        params_.check_seconds("delay", delay)
        self.requests: list[abc.ModelRequest] = []
        self.violations: list[RequestViolation] = []
        self._script = iter(replies)
        self._delay = delay
        self._check = check
        self.supports_structured_output: bool = supports_structured_output
        self.structured_policy: StructuredPolicy = structured_policy

    @property
    def calls(self) -> int:
        """How many requests came, those that failed or were cancelled included."""
        return len(self.requests)

    async def reply(self, request: abc.ModelRequest, emit: abc.DeltaSink) -> v.Message:
        """Play the next item of the script.

        A checkpoint before anything is played. A cancelled request has used its item up.

        Raises:
          RequestViolation: the request is not valid; its item is used up too.
          ScriptExhausted: the script has no further item.
        """
        number = len(self.requests)
        self._take(number, request)
        item = self._next_item(number)
        await trio.lowlevel.checkpoint()
        return await self._play(number, request, emit, item)

    def _take(self, number: int, request: abc.ModelRequest) -> None:
        if not self._check:
            self.requests.append(request)
            return
        frozen = attrs.evolve(
            request,
            delta=tuple(request.delta),
            history=tuple(request.history),
            tools=tuple(request.tools),
        )
        self.requests.append(frozen)
        problems = [
            *request_problems(frozen.history, frozen.delta),
            *_offer_problems(frozen, native=self.supports_structured_output),
        ]
        if problems:
            self._next_item(number)
            violation = RequestViolation(number, problems)
            self.violations.append(violation)
            raise violation

    def _next_item(self, number: int) -> ScriptItem:
        for item in self._script:
            return item
        raise ScriptExhausted(
            f"the script has {number} replies, but request {number + 1} came; "
            "add a reply, or find out why the loop asked again"
        )

    async def _play(
        self, number: int, request: abc.ModelRequest, emit: abc.DeltaSink, item: Any
    ) -> v.Message:
        scripted: Scripted = item if type(item) is Scripted else Scripted(item)
        delay = self._delay if scripted.delay is None else scripted.delay
        if delay:
            await trio.sleep(delay)
        for delta in scripted.deltas:
            emit(delta)
            await trio.lowlevel.checkpoint()
        if scripted.error is not None:
            raise scripted.error
        if scripted.reply is None:
            return v.Message.assistant("".join(scripted.deltas))
        reply: Any = scripted.reply
        match reply:
            case v.Message() | v.ToolCall() | str() | list() | tuple():
                return _as_message(number, scripted.reply)
            case BaseException():
                raise reply
            case type() if issubclass(scripted.reply, BaseException):
                raise scripted.reply
            case Scripted():
                return await self._play(number, request, emit, _without_delay(reply))
            case _ if callable(reply):
                made = cast("Callable[[abc.ModelRequest], Any]", reply)(request)
                if inspect.isawaitable(made):
                    made = await made
                return await self._play(number, request, emit, _without_delay(made))
            case _:
                raise TypeError(
                    f"the script holds {reply!r}; expected a Message, text, ToolCalls, "
                    "an exception, a function or Scripted"
                )


def _without_delay(item: Any) -> Scripted:
    """An item within an item: the delay is over, so it waits only if it says so itself."""
    if type(item) is not Scripted:
        return Scripted(item, delay=0.0)
    return item if item.delay is not None else attrs.evolve(item, delay=0.0)


def _as_message(number: int, reply: Any) -> v.Message:
    match reply:
        case str():
            return v.Message.assistant(reply)
        case v.ToolCall():
            return _with_ids(number, v.Message.assistant(tool_calls=(reply,)))
        case v.Message():
            return _with_ids(number, reply)
        case _:
            return _with_ids(number, v.Message.assistant(tool_calls=reply))


def _with_ids(number: int, message: v.Message) -> v.Message:
    if all(tool_call.id for tool_call in message.tool_calls):
        return message
    return attrs.evolve(
        message,
        tool_calls=[
            tool_call if tool_call.id else attrs.evolve(tool_call, id=f"call-{number}-{position}")
            for position, tool_call in enumerate(message.tool_calls)
        ],
    )


def _offer_problems(request: abc.ModelRequest, *, native: bool) -> Iterator[str]:
    """What a provider would refuse of the tools and of the answer that is wanted."""
    if request.output is not None and not native:
        yield (
            f"it wants the output {request.output.name!r}, and the model does not say "
            "supports_structured_output"
        )
    choice, names = request.params.tool_choice, [tool.name for tool in request.tools]
    if choice == "required" and not names:
        yield "a tool is required, and none is offered"
    if choice not in (*names, "auto", "none", "required", params_.UNSET):
        yield f"the tool {choice!r} must be called, and is not among those offered: {names}"


def request_problems(history: Sequence[v.Message], delta: Sequence[v.Message]) -> tuple[str, ...]:
    problems: list[str] = []
    try:
        check_history(history)
    except errors.HistoryError as error:
        problems.extend(error.problems)
    if len(delta) > len(history) or tuple(history[len(history) - len(delta) :]) != tuple(delta):
        problems.append(
            f"the delta of {len(delta)} messages is not the tail of the history "
            f"of {len(history)} messages"
        )
    return tuple(problems)
