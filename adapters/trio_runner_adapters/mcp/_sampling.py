"""Sampling: a server asks *our* model, within limits.

What may live here: what is asked, how much may be asked, and the `SamplingDesk`
that answers a connection's requests. What is asked never touches an agent's history.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import attrs
import mcp_types as m
import trio
from mcp.client import ClientRequestContext

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._names as names
import trio_runner_adapters.mcp._sampling_messages as messages
import trio_runner_adapters.mcp._schemas as schemas

_log = logging.getLogger("trio_runner_adapters.mcp")

#: The code that the protocol gives to what a person turned down.
REJECTED: Final = -1
#: Seconds before a request that is over a limit is refused: a server that asks in a loop
#: waits in it too, and so cannot keep us busy.
_REFUSAL_DELAY: Final = 1.0
#: Tool calls whose sampling requests are counted; the oldest are forgotten.
_COUNTED_CALLS: Final = 256
#: The first protocol version whose answers may have several content blocks.
_SEVERAL_BLOCKS: Final = "2025-11-25"


class RefusedError(Exception):
    """A request of a server that is answered with an error; the text is for the server.

    Attributes:
      code: the JSON-RPC error code.
    """

    def __init__(self, message: str, code: int = m.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


@attrs.frozen(kw_only=True)
class SamplingRequest:
    """What a server asks of our model.

    Attributes:
      server: the name of the server's toolset.
      request: the messages, tools and system prompt. What the server said about the
        answer is in ``request.params.model_settings``, as far as it said it:
        ``max_tokens``, ``temperature`` and ``stop_sequences`` (a list), and in
        ``request.params.tool_choice``. The tools are the server's: a reply may ask for
        them, they cannot be called here.
      model_preferences: ``hints`` and priorities, as MCP spells them; advice only.
      include_context: "none", "thisServer" or "allServers"; a wish that may be ignored.
      metadata: for the provider; whatever the server put there.
      meta: the request's ``_meta``.
      call_id: the tool call in which it was asked, where that is known: in the protocol
        of 2026 and later, for a call that an agent makes.
    """

    server: str
    request: tr.ModelRequest
    model_preferences: Mapping[str, Any] | None = None
    include_context: str | None = None
    metadata: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    call_id: str | None = None


#: Answers a server's request in place of a model.
SamplingCallback: TypeAlias = Callable[[SamplingRequest], Awaitable[tr.Message]]

#: Asked about each request before the model is: False refuses it, a `ModelRequest` is asked
#: in place of the server's.
SamplingApproval: TypeAlias = Callable[[SamplingRequest], Awaitable[bool | tr.ModelRequest]]


def _check_count(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if type(value) is not int:
        raise TypeError(f"{attribute.name} is {value!r}; expected a whole number")
    if value < 1:
        raise ValueError(f"{attribute.name} is {value!r}; expected at least 1")


def _check_period(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if type(value) not in (int, float):
        raise TypeError(f"{attribute.name} is {value!r}; expected a number of seconds")
    if not 0 < cast("float", value) < float("inf"):
        raise ValueError(f"{attribute.name} is {value!r}; expected seconds above 0")


@attrs.frozen(kw_only=True)
class SamplingLimits:
    """How much one connection may ask of our model.

    Attributes:
      max_in_flight: asked of the model at a time; more wait.
      max_per_call: asked within one tool call, where the call is known; more are refused.
      max_per_period: asked within ``period`` seconds; more are refused.
      period: see ``max_per_period``.
      max_tokens: what a server asks for beyond it is cut to it.
    """

    max_in_flight: int = attrs.field(default=4, validator=_check_count)
    max_per_call: int = attrs.field(default=20, validator=_check_count)
    max_per_period: int = attrs.field(default=60, validator=_check_count)
    period: float = attrs.field(default=60.0, validator=_check_period)
    max_tokens: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(_check_count)
    )


class SamplingDesk:
    """Answers the sampling requests of one connection."""

    def __init__(
        self,
        server: str,
        sampling: tr.Model | SamplingCallback,
        *,
        approve: SamplingApproval | None,
        limits: SamplingLimits,
    ) -> None:
        self._server = server
        self._sampling = sampling
        self._approve = approve
        self._limits = limits
        self._in_flight = trio.CapacityLimiter(limits.max_in_flight)
        #: When the requests of the present period were let in, oldest first.
        self._let_in: deque[float] = deque()
        #: How many were let in for each tool call that is known, the oldest call first.
        self._by_call: OrderedDict[str, int] = OrderedDict()
        #: When it was last said in the log that requests are refused.
        self._said_at = -float("inf")

    async def answer(
        self, context: ClientRequestContext, params: m.CreateMessageRequestParams
    ) -> m.CreateMessageResult | m.CreateMessageResultWithTools:
        """Ask the model what the server asks. A checkpoint; a cancel reaches the model.

        Raises:
          RefusedError: it is over a limit, is malformed, or was turned down.
          Exception: what the model or the approval raised.
        """
        call = _current_call()
        await self._let(call)
        exposed = _exposed(params.tools or ())
        request = _from_params(self._server, params, exposed, call, self._limits.max_tokens)
        async with self._in_flight:
            if self._approve is not None:
                verdict = await self._approve(request)
                if verdict is False:
                    raise RefusedError("the sampling request was turned down", REJECTED)
                if verdict is not True:
                    request = attrs.evolve(request, request=verdict)
            reply = await self._reply(request)
        return messages.to_sampling_result(
            reply,
            originals={name: original for original, name in exposed.items()},
            with_tools=bool(params.tools),
            model=_model_name(reply, self._sampling),
            several=(context.session.protocol_version or "") >= _SEVERAL_BLOCKS,
        )

    async def _reply(self, request: SamplingRequest) -> tr.Message:
        model = getattr(self._sampling, "reply", None)
        if model is not None:
            reply: object = await model(request.request, _no_delta)
        else:
            reply = await cast("SamplingCallback", self._sampling)(request)
        if type(reply) is not tr.Message or reply.role != "assistant":
            raise TypeError(f"sampling returned a {type(reply).__name__}; expected an assistant's")
        return reply

    # --- limits ---

    async def _let(self, call: abc.ToolContext | None) -> None:
        """Count the request, or refuse it after a while."""
        now = trio.current_time()
        while self._let_in and self._let_in[0] <= now - self._limits.period:
            self._let_in.popleft()
        key = None if call is None else f"{call.idempotency_key}#{call.attempt}"
        if (problem := self._problem(key, now)) is not None:
            self._say(problem, now)
            await trio.sleep(_REFUSAL_DELAY)
            raise RefusedError(f"sampling is refused: {problem}")
        self._let_in.append(now)
        if key is not None:
            self._by_call[key] = self._by_call.get(key, 0) + 1
            self._by_call.move_to_end(key)
            if len(self._by_call) > _COUNTED_CALLS:
                self._by_call.popitem(last=False)

    def _problem(self, key: str | None, now: float) -> str | None:
        limits = self._limits
        if len(self._let_in) >= limits.max_per_period:
            wait = self._let_in[0] + limits.period - now
            return (
                f"{limits.max_per_period} requests were made within {limits.period:g} seconds; "
                f"the next may come in {wait:.0f}"
            )
        if key is not None and self._by_call.get(key, 0) >= limits.max_per_call:
            return f"{limits.max_per_call} requests were made within one tool call"
        return None

    def _say(self, problem: str, now: float) -> None:
        if now - self._said_at >= self._limits.period:
            self._said_at = now
            _log.warning("MCP server %r: sampling is refused: %s", self._server, problem)


def _no_delta(_: str) -> None:
    """Nobody watches the reply while it streams."""


def current_call_id() -> str | None:
    """The id of the tool call that runs here, or None."""
    call = _current_call()
    return None if call is None else call.call_id


def _current_call() -> abc.ToolContext | None:
    try:
        return tr.current_tool_context()
    except tr.UsageError:
        return None


def _model_name(reply: tr.Message, sampling: object) -> str:
    for name in (reply.meta.get("model"), getattr(sampling, "name", None)):
        if type(name) is str and name:
            return convert.valid_text(name)
    return type(sampling).__name__


# --- the request ----------------------------------------------------------------


def _exposed(tools: Iterable[m.Tool]) -> dict[str, str]:
    """The name that providers take for each tool's own; refuses what cannot be offered."""
    originals = [tool.name for tool in tools]
    if len(set(originals)) < len(originals):
        raise RefusedError("two of the tools have the same name", m.INVALID_PARAMS)
    return names.exposed_names(originals)


def _from_params(
    server: str,
    params: m.CreateMessageRequestParams,
    exposed: Mapping[str, str],
    call: abc.ToolContext | None,
    most_tokens: int | None,
) -> SamplingRequest:
    history = _history(params.messages, exposed)
    settings: dict[str, Any] = {"max_tokens": min(params.max_tokens, most_tokens or 2**62)}
    if params.temperature is not None:
        settings["temperature"] = params.temperature
    if params.stop_sequences is not None:
        settings["stop_sequences"] = [convert.valid_text(each) for each in params.stop_sequences]
    choice = params.tool_choice
    preferences = params.model_preferences
    system = params.system_prompt
    return SamplingRequest(
        server=server,
        request=tr.ModelRequest(
            delta=history,
            history=history,
            tools=tuple([_tool(each, exposed[each.name]) for each in params.tools or ()]),
            params=_resolved(settings, choice.mode or "auto" if choice is not None else "auto"),
            instruction=None if system is None else convert.valid_text(system),
        ),
        model_preferences=(
            None
            if preferences is None
            else convert.valid_json(preferences.model_dump(by_alias=True, exclude_unset=True))
        ),
        include_context=params.include_context,
        metadata=convert.valid_json(params.metadata),
        meta=None if params.meta is None else convert.valid_json(dict(params.meta)),
        call_id=None if call is None else call.call_id,
    )


def _resolved(settings: dict[str, Any], tool_choice: str) -> tr.RequestParams:
    """Settings for one question; a model is promised that none is unset."""
    return tr.RequestParams(
        max_iterations=0,
        use_history=True,
        parallel_tool_calls=True,
        max_parallel_tools=None,
        tool_timeout=None,
        turn_timeout=None,
        tool_result_mode="postprocess",
        structured_policy="auto",
        tool_choice=tool_choice,
        tools_filter=None,
        max_result_bytes=256 * 1024,
        model_settings=settings,
    )


def _tool(tool: m.Tool, name: str) -> tr.Tool:
    if (problem := schemas.input_schema_problem(tool.input_schema)) is not None:
        raise RefusedError(
            f"the input schema of tool {tool.name!r} cannot be used: {problem}", m.INVALID_PARAMS
        )
    return tr.Tool(
        name=name,
        description=convert.valid_text(tool.description or ""),
        input_schema=convert.valid_json(schemas.completed(tool.input_schema)),
        call=_not_ours,
        title=None if tool.title is None else convert.valid_text(tool.title),
        output_schema=convert.valid_json(tool.output_schema),
        annotations=(
            None
            if tool.annotations is None
            else tool.annotations.model_dump(by_alias=True, exclude_unset=True)
        ),
        meta={} if tool.meta is None else convert.valid_json(dict(tool.meta)),
    )


async def _not_ours(_: tr.JSONObject, __: abc.ToolContext) -> object:
    raise tr.ToolError("this tool is the MCP server's own, which runs it itself")


def _history(
    asked: Iterable[m.SamplingMessage], exposed: Mapping[str, str]
) -> tuple[tr.Message, ...]:
    history: list[tr.Message] = []
    for each in asked:
        message = messages.from_sampling_message(each)
        if message.tool_calls:
            calls = [
                attrs.evolve(call, name=exposed.get(call.name, call.name))
                for call in message.tool_calls
            ]
            message = attrs.evolve(message, tool_calls=calls)
        if message.tool_results and history:
            message = _in_order(message, history[-1].tool_calls)
        history.append(message)
    try:
        tr.check_history(history)
    except tr.HistoryError as error:
        problems = "; ".join(error.problems[:3])
        raise RefusedError(
            errors.shortened(f"the messages are no valid conversation: {problems}"),
            m.INVALID_PARAMS,
        ) from error
    return tuple(history)


def _in_order(message: tr.Message, calls: Sequence[tr.ToolCall]) -> tr.Message:
    """The results in the order of their calls, each with its call's name."""
    place = {call.id: position for position, call in enumerate(calls)}
    by_id = {call.id: call.name for call in calls}
    results = sorted(message.tool_results, key=lambda each: place.get(each.call_id, len(calls)))
    named = [attrs.evolve(each, name=by_id.get(each.call_id, each.name)) for each in results]
    return attrs.evolve(message, tool_results=named)
