"""Turns that must end in a structured answer: asking for it, and judging it.

What may live here: what the steps of such a turn need beyond those of others. When
the schema is shown is ``_core/structured.py``; what a type's schema is and what
fits it is ``output_types.py`` and ``output_schema.py``; the methods of the agent
are ``agent_answers.py``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import attrs

import trio_runner._core.structured as structured
import trio_runner._core.values as v
from trio_runner._core.errors import StructuredOutputError, UsageError
from trio_runner._core.params import RequestParams
from trio_runner._core.structured import AnswerPlan, MisfitError, NoJSONError, OutputFormat
from trio_runner._shell.ki import call_sync_unprotected
from trio_runner._shell.output_schema import schema_reader_of
from trio_runner.abc import ModelRequest

#: Makes the value of an answer, or raises `MisfitError`.
Reader = Callable[[v.JSONValue], object]


class _OutputTypes(Protocol):
    def reader_of(self, output: object) -> tuple[OutputFormat, Reader]: ...


@attrs.frozen(eq=False)
class Wanted:
    """What a turn is to end in.

    Attributes:
      retries: how many answers that do not fit may go back to the model.
    """

    format: OutputFormat
    reader: Reader
    retries: int

    def read(self, reply: v.Message) -> object:
        """The value of an answer.

        Raises:
          MisfitError: it does not fit.
          Exception: what a validator of the type raised.
        """
        try:
            answer = structured.find_json(reply.text)
        except NoJSONError as error:
            raise MisfitError([str(error)]) from None
        fn = self.reader  # validators are the user's
        return call_sync_unprotected(fn, answer)


def wanted(output: object, retries: object) -> Wanted:
    """What ``output``, a type or a JSON Schema, asks for.

    Raises:
      ImportError: a library that it needs is missing.
      TypeError, ValueError: it is neither, or ``retries`` is no count.
    """
    if type(retries) is not int:
        raise TypeError(f"the retries are {retries!r}; expected a whole number")
    if retries < 0:
        raise ValueError(f"the retries are {retries!r}; expected 0 or more")
    match output:
        case Mapping():
            return Wanted(*schema_reader_of(cast("Mapping[str, Any]", output)), retries)
        case _:
            return Wanted(*_output_types().reader_of(output), retries)


def _output_types() -> _OutputTypes:
    try:
        module = importlib.import_module("trio_runner._shell.output_types")
    except ImportError as error:
        raise ImportError(
            "a type as an output needs pydantic, which comes with trio-runner but cannot be "
            f"imported here ({error}); install it with 'python -m pip install trio-runner'"
        ) from error
    return cast("_OutputTypes", module)


def asking_of(
    wanted: Wanted | None, agent: object, params: RequestParams
) -> Callable[[Sequence[v.Message]], Answering] | None:
    """How a turn comes to its answer, made of its messages so far; None when none is wanted.

    What the model says of itself is read here, before the turn begins: it may raise.

    Args:
      agent: has a ``model``, or speaks for one itself.
    """
    if wanted is None:
        return None
    model = getattr(agent, "model", agent)
    native = bool(getattr(model, "supports_structured_output", False))
    policy = _resolved(params.structured_policy, model)
    return functools.partial(Answering, wanted, native, policy)


def value_in(answering: Answering | None) -> Any:
    """The value that a turn has come to, as `ToolRunner.output` says."""
    if answering is None:
        raise UsageError(
            "there is no answer: none was asked for (agent.turn(..., output=...) asks for one), or "
            "the turn has not begun"
        )
    if answering.value:
        return answering.value[0]
    if answering.error is not None:
        raise answering.error
    raise UsageError("there is no answer (yet): the turn goes on, or was interrupted")


class Answering:
    """How one turn comes to its structured answer.

    Args:
      native: the model takes a schema as such.
      policy: when the schema is shown.
      messages: the turn's so far.
    """

    def __init__(
        self,
        wanted: Wanted,
        native: bool,
        policy: structured.PlannedPolicy,
        messages: Sequence[v.Message],
    ) -> None:
        self._wanted: Final = wanted
        self._native: Final = native
        self._plan: Final = AnswerPlan(wanted.format, policy, messages, wanted.retries)
        #: The newest answer's faults.
        self._problems: tuple[str, ...] = ()
        #: Answers that were judged and did not fit, in this process and before.
        self._attempts = self._plan.attempts
        #: The value, as a tuple of it; () before there is one.
        self.value: tuple[object, ...] = ()
        #: Why there will be none; None as long as there may be.
        self.error: StructuredOutputError | None = None

    @property
    def withholds_tools(self) -> bool:
        """Whether the next call is made without tools."""
        return self._plan.withholds_tools

    def settings(self, params: RequestParams) -> RequestParams:
        """The params of a call: the answer is the model's, so no results are passed through."""
        if params.tool_result_mode == "postprocess":
            return params
        return attrs.evolve(params, tool_result_mode="postprocess")

    def shaped(self, request: ModelRequest) -> ModelRequest:
        """The request with the schema in it, when it is to be shown now."""
        if not self._plan.shows_schema(request.delta, has_tools=bool(request.tools)):
            return request
        if self._native:
            return attrs.evolve(request, output=self._wanted.format)
        text = structured.instruction(request.instruction, self._wanted.format)
        return attrs.evolve(request, instruction=text)

    def goes_on(self, *, has_tools: bool) -> None:
        """A crash came after an answer, whose request had these tools and no results to send."""
        self._plan.shows_schema((), has_tools=has_tools)

    def judge(self, reply: v.Message) -> v.Message | None:
        """Read an answer: the message that sends it back; None when it fits or none will be sent.

        Raises:
          Exception: what a validator of the type raised.
        """
        if not self._plan.has_shown:
            return self._plan.ask()
        try:
            self.value = (self._wanted.read(reply),)
        except MisfitError as error:
            self._attempts += 1
            self._problems = error.problems
            return self._plan.refuse(error.problems)
        return None

    def failure(
        self, reply: v.Message, reason: v.EndReason, *, has_ended: bool
    ) -> StructuredOutputError | None:
        """The error of a turn whose end has this reason; None when it has its value.

        Args:
          has_ended: False: the end is decided, and an answer that is none makes it FAILED.
        """
        if self.value and reason is v.EndReason.ANSWERED:
            return None
        will_fail = reason is v.EndReason.ANSWERED and not has_ended
        failed = v.EndReason.FAILED if will_fail else reason
        self.error = no_answer(self._wanted, reply, failed, self._problems, attempts=self._attempts)
        return self.error


def _resolved(policy: structured.StructuredPolicy, model: object) -> structured.PlannedPolicy:
    own: object = getattr(model, "structured_policy", "always")
    chosen: object = policy if policy != "auto" else own
    match chosen:
        case "always" | "auto":
            return "always"
        case "defer":
            return "defer"
        case "no_tools":
            return "no_tools"
        case _:
            raise ValueError(
                f"the model's structured_policy is {own!r}; expected 'always', 'defer' or "
                "'no_tools'"
            )


def no_answer(
    wanted: Wanted,
    reply: v.Message | None,
    reason: v.EndReason,
    problems: Sequence[str],
    *,
    attempts: int,
) -> StructuredOutputError:
    """The error of a turn that ended with ``reason`` and without its value."""
    name = wanted.format.name
    stop = reply.stop_reason if reply is not None else None
    match reason:
        case v.EndReason.FAILED if problems:
            why = f"{attempts} answers did not fit; the last:"
        case v.EndReason.MAX_ITERATIONS:
            why = "the turn came to its cap (max_iterations)"
        case v.EndReason.SUSPENDED:
            why = "the turn waits for decisions; resume_structured(..., decisions=...) goes on"
        case v.EndReason.MAX_TOKENS | v.EndReason.SAFETY | v.EndReason.FAILED if stop is not None:
            why = f"the model stopped with {stop.value!r}, so its reply is no answer"
        case _:
            why = f"the turn ended {reason.value}"
    faults = f"\n{structured.listed(problems)}" if problems else ""
    return StructuredOutputError(
        f"no answer that fits the schema {name!r}: {why}{faults}\nThe history is valid, and "
        "the error's message is the model's last",
        message=reply,
        problems=problems,
        attempts=attempts,
        end_reason=reason,
    )
