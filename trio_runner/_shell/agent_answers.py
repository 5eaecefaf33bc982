"""`AgentAnswers`: asking an agent for a value instead of a message.

What may live here: the part of `ToolAgent` that its users call for structured
answers. How a turn comes to one is in ``structured.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, overload

import attrs
import trio

import trio_runner._core.values as v
from trio_runner._core.params import RequestParams
from trio_runner._core.structured import MisfitError, StructuredPolicy
from trio_runner._shell.consent import require_pending
from trio_runner._shell.conversation import Conversation
from trio_runner._shell.given import Input
from trio_runner._shell.hooks import ToolRunnerHooks
from trio_runner._shell.runner import ToolRunner
from trio_runner._shell.structured import Wanted, no_answer, wanted
from trio_runner.abc import Observer, Tool, UnknownPolicy

if TYPE_CHECKING:
    from trio_runner._shell.agent import ToolAgent

T = TypeVar("T")


@attrs.frozen
class Structured(Generic[T]):
    """A structured answer.

    Attributes:
      value: of the type that was asked for; for a raw JSON Schema the plain JSON.
      message: the model's, as the history holds it.
    """

    value: T
    message: v.Message


class _TurnOptions(TypedDict, total=False):
    """What both overloads take of a turn's settings; see `AgentAnswers.structured`."""

    params: RequestParams | None
    tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None
    hooks: ToolRunnerHooks | None
    observers: Iterable[Observer]


class _ResumeOptions(_TurnOptions, total=False):
    """The same of a turn that goes on; see `AgentAnswers.resume_structured`."""

    unknown: UnknownPolicy | None
    decisions: Mapping[str, object] | None


class AgentAnswers:
    """The structured answers of an agent, for its users.

    Args:
      make_runner: as `ToolAgent.turn`, with ``resume`` and ``unknown``.
    """

    def __init__(self, conversation: Conversation, make_runner: Callable[..., ToolRunner]) -> None:
        self.__conversation = conversation
        self.__make_runner = make_runner

    @overload
    async def structured(
        self,
        output: type[T],
        messages: Input,
        *,
        policy: StructuredPolicy | None = None,
        retries: int = 2,
        **options: Unpack[_TurnOptions],
    ) -> Structured[T]: ...
    @overload
    async def structured(
        self,
        output: object,
        messages: Input,
        *,
        policy: StructuredPolicy | None = None,
        retries: int = 2,
        **options: Unpack[_TurnOptions],
    ) -> Structured[Any]: ...
    @trio.lowlevel.enable_ki_protection
    async def structured(
        self,
        output: object,
        messages: Input,
        *,
        policy: StructuredPolicy | None = None,
        retries: int = 2,
        params: RequestParams | None = None,
        tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None = None,
        hooks: ToolRunnerHooks | None = None,
        observers: Iterable[Observer] = (),
    ) -> Structured[Any]:
        """Run one turn that ends in a value.

        The answer must be JSON, the whole reply or its one fenced block. One that does
        not fit goes back to the model with what is wrong, as an iteration of the turn.
        Checkpoint: always. If cancelled, the turn is interrupted as in ``generate``;
        `resume_structured` goes on.

        Args:
          output: a pydantic model, an attrs class, a dataclass, a TypedDict, another
            type that pydantic knows, or a JSON Schema as a dict. An answer that would not
            be a JSON object is asked for as the ``value`` of one.
          policy: when the schema is shown; over ``params.structured_policy``.
          retries: how many answers that do not fit may go back.

        Raises:
          StructuredOutputError: the turn ended without such an answer, or is suspended.
          ImportError: a JSON Schema was given, and jsonschema is not installed.
          TypeError, ValueError: ``output`` is neither a type nor a JSON Schema.
          BaseException: as `ToolRunner.until_done`.
        """
        asked_for = wanted(output, retries)
        runner = self.__make_runner(
            messages,
            params=_with_policy(params, policy),
            tools=tools,
            hooks=hooks,
            observers=observers,
            output=asked_for,
        )
        return await _value_of(runner, asked_for)

    @overload
    async def resume_structured(
        self,
        output: type[T],
        *,
        policy: StructuredPolicy | None = None,
        retries: int = 2,
        **options: Unpack[_ResumeOptions],
    ) -> Structured[T]: ...
    @overload
    async def resume_structured(
        self,
        output: object,
        *,
        policy: StructuredPolicy | None = None,
        retries: int = 2,
        **options: Unpack[_ResumeOptions],
    ) -> Structured[Any]: ...
    @trio.lowlevel.enable_ki_protection
    async def resume_structured(
        self,
        output: object,
        *,
        policy: StructuredPolicy | None = None,
        retries: int = 2,
        params: RequestParams | None = None,
        tools: Iterable[Tool | ToolAgent | Callable[..., Any]] | None = None,
        hooks: ToolRunnerHooks | None = None,
        observers: Iterable[Observer] = (),
        unknown: UnknownPolicy | None = None,
        decisions: Mapping[str, object] | None = None,
    ) -> Structured[Any]:
        """Go on with the newest turn, which came to no value; no tool runs twice unasked.

        As ``resume``, with the arguments that `structured` had. Answers that went back
        before count. When the newest turn has its answer already, its value is returned
        and the model is not asked. Checkpoint: always.

        Raises:
          NothingToResumeError: there is no such turn; see `can_resume`.
          DecisionError, TurnSuspendedError: as ``resume``.
          StructuredOutputError: as `structured`.
        """
        asked_for = wanted(output, retries)
        runner = self.__make_runner(
            (),
            params=_with_policy(params, policy),
            tools=tools,
            hooks=hooks,
            observers=observers,
            resume=True,
            unknown=unknown,
            decisions=decisions,
            output=asked_for,
        )
        answer = self.__answer()
        if answer is None:
            return await _value_of(runner, asked_for)
        await trio.lowlevel.checkpoint()
        if decisions:
            require_pending((), decisions)
        return _value_in(answer, asked_for)

    def __answer(self) -> v.Message | None:
        """The answer of the newest turn; None when it has none, or one is running."""
        conversation = self.__conversation
        turn = conversation.newest
        if turn is None or conversation.is_busy or conversation.can_resume:
            return None
        if turn.end_reason is not v.EndReason.ANSWERED:
            return None
        return turn.messages[-1]


def _with_policy(
    params: RequestParams | None, policy: StructuredPolicy | None
) -> RequestParams | None:
    if policy is None:
        return params
    return attrs.evolve(params or RequestParams(), structured_policy=policy)


async def _value_of(runner: ToolRunner, asked_for: Wanted) -> Structured[Any]:
    runner.is_held = False
    message = await runner.until_done()
    if runner.end_reason is v.EndReason.SUSPENDED:
        raise no_answer(asked_for, message, v.EndReason.SUSPENDED, (), attempts=0)
    return Structured(runner.output, message)


def _value_in(answer: v.Message, asked_for: Wanted) -> Structured[Any]:
    try:
        return Structured(asked_for.read(answer), answer)
    except MisfitError as error:
        raise no_answer(
            asked_for, answer, v.EndReason.ANSWERED, error.problems, attempts=1
        ) from error
