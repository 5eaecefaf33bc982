"""What a server may ask of us, and tell us: sampling, elicitation, roots, log messages.

What may live here: `Callbacks`, the values that its functions get and give, and
the border around those functions. The values are our own: MCP's models lack the
server's name, need the SDK to be made, may hold text that does not encode, and
say with two classes and an error value what one small value can say.

The SDK runs these functions in tasks of the connection, or (protocol of 2026 and
later) of the call in which the server asks. Whatever leaves them there would end
the connection, so nothing does: it becomes an error that the server is told.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

import attrs
import mcp_types as m
import pydantic
import trio
from mcp.client import ClientRequestContext

import trio_runner as tr
import trio_runner_adapters._main_task as main_task
import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._output_check as output_check
import trio_runner_adapters.mcp._sampling as sampling_
import trio_runner_adapters.mcp._schemas as schemas
from trio_runner_adapters._unprotected import call_sync_unprotected, call_unprotected

T = TypeVar("T")

#: The levels of a server's log messages, from the least to the most severe.
LogLevel: TypeAlias = Literal[
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"
]

_LOGGER: Final = "trio_runner_adapters.mcp"
_log = logging.getLogger(_LOGGER)

#: Log messages of one connection that are passed on within so many seconds; more are counted.
_MAX_LOGS: Final = 200
_LOG_PERIOD: Final = 10.0
#: Characters of a log message that go to our own logger.
_LOGGED: Final = 2000
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


# --- the values -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Question:
    """What a server wants to know from the user.

    Attributes:
      server: the name of the server's toolset; show it to the user.
      message: why it asks.
      schema: a form: JSON Schema of an object with plain values (text, numbers, true or
        false, choices). None when there is a ``url`` in its place.
      url: a page for the user to open, once they agreed; what happens there is between
        them and the server.
      elicitation_id: the server's own name for a ``url``.
      call_id: the tool call in which it is asked, where that is known: in the protocol of
        2026 and later, for a call that an agent makes.
    """

    server: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None
    elicitation_id: str | None = None
    call_id: str | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """The form's default values, by name: to show, or to answer with."""
        fields: object = (self.schema or {}).get("properties")
        if type(fields) is not dict:
            return {}
        return {
            name: field["default"]
            for name, field in cast("dict[str, Any]", fields).items()
            if type(field) is dict and "default" in field
        }


@attrs.frozen
class Answer:
    """The user's answer: `accept`, `decline` or `cancel`."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Any] | None = None

    @classmethod
    def accept(cls, content: Mapping[str, Any] | None = None) -> Answer:
        """The filled form; without ``content`` the consent to open the URL, or an empty form."""
        return cls("accept", None if content is None else dict(content))

    @classmethod
    def decline(cls) -> Answer:
        """The user said no."""
        return cls("decline")

    @classmethod
    def cancel(cls) -> Answer:
        """The user went away without a choice."""
        return cls("cancel")


@attrs.frozen
class Root:
    """A directory or file that a server may work on; ``uri`` is a ``file://`` one."""

    uri: str
    name: str | None = None


@attrs.frozen(kw_only=True)
class ServerLog:
    """One log message of a server.

    Attributes:
      server: the name of the server's toolset.
      logger: the server's own name for the part that speaks, or None.
      data: text, or any JSON value; up to the size of a message.
      meta: the message's ``_meta``, or None.
    """

    server: str
    level: LogLevel
    logger: str | None
    data: tr.JSONValue
    meta: Mapping[str, Any] | None = None


#: Asks the user; None is the same as `Answer.cancel`.
ElicitationCallback: TypeAlias = Callable[[Question], Awaitable[Answer | None]]
#: A path, a ``file://`` URI with a name, or a `Root`.
RootLike: TypeAlias = str | os.PathLike[str] | tuple[str, str] | Root
#: Says what the roots are now; may be async.
RootsCallback: TypeAlias = Callable[[], Iterable[RootLike] | Awaitable[Iterable[RootLike]]]
#: Is told a log message. Like an observer it must not block, and may only look.
LogCallback: TypeAlias = Callable[[ServerLog], object]


def _as_roots(
    roots: Sequence[RootLike] | RootsCallback | None,
) -> tuple[Root, ...] | RootsCallback | None:
    if roots is None or callable(roots):
        return roots
    return _made_roots(roots)


def _made_roots(roots: Iterable[RootLike]) -> tuple[Root, ...]:
    if isinstance(roots, str | bytes | os.PathLike):
        raise TypeError(f"roots is {roots!r}; expected a sequence of roots: [{roots!r}]")
    return tuple([_made_root(each) for each in roots])


def _made_root(root: RootLike) -> Root:
    match root:
        case Root():
            made = root
        case (str(uri), str(name)):
            made = Root(uri, name)
        case str() if root.startswith("file://"):
            made = Root(root)
        case str() | os.PathLike():
            made = Root(Path(root).absolute().as_uri())
        case _:
            raise TypeError(f"roots holds {root!r}; expected a path, a (uri, name) pair or a Root")
    if not made.uri.startswith("file://"):
        raise ValueError(f"the root {made.uri!r} is none that MCP knows; expected a file:// URI")
    return made


def _check_callable(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    usable = callable(value) or (attribute.name == "sampling" and hasattr(value, "reply"))
    if value is not None and not usable:
        raise TypeError(f"{attribute.name} is {value!r}; expected a function")


def _check_timeout(_: object, __: object, value: object) -> None:
    if type(value) not in (int, float):
        raise TypeError(f"timeout is {value!r}; expected a number of seconds")
    if not 0 < cast("float", value) < math.inf:
        raise ValueError(f"timeout is {value!r}; expected a finite number of seconds above 0")


def _check_level(_: object, __: object, value: object) -> None:
    if value is not None and value not in get_args(LogLevel):
        known = ", ".join(get_args(LogLevel))
        raise ValueError(f"log_level is {value!r}; expected None or one of {known}")


@attrs.frozen(kw_only=True)
class Callbacks:
    """What a server may ask of us. What is None is not offered to it.

    One value may serve any number of servers; the limits hold for each connection.
    A function that raises or takes longer than ``timeout`` is answered to the server
    as an error, without the error's text, which goes to the log. It is cancelled with
    the connection, or when the server takes its question back. Ctrl-C may strike in it;
    raised there, it goes to the main task, as does SystemExit (as a Ctrl-C).

    Attributes:
      sampling: a `trio_runner.Model`, or ``async (SamplingRequest) -> Message``, that
        answers the server's questions to a model; several at once.
      approve: ``async (SamplingRequest) -> True | False | ModelRequest``: a person in the
        loop, asked before the model is; see `SamplingApproval`.
      limits: how much a server may ask of the model.
      elicitation: ``async (Question) -> Answer | None``: asks the user.
      roots: paths, ``(uri, name)`` pairs or `Root` values; or a function, sync or async,
        that returns them, asked each time.
      on_log: is told each log message in place of the logger
        ``trio_runner_adapters.mcp.SERVER``. Beyond 200 within ten seconds they are
        dropped and counted.
      log_level: asks the server for messages of this level and above. With None a server of
        the protocol of 2026 and later sends none, and an older one decides by itself.
      timeout: seconds for one answer, those in which it waits for a slot included.
    """

    sampling: tr.Model | sampling_.SamplingCallback | None = attrs.field(
        default=None, validator=_check_callable
    )
    approve: sampling_.SamplingApproval | None = attrs.field(
        default=None, validator=_check_callable
    )
    limits: sampling_.SamplingLimits = attrs.field(factory=sampling_.SamplingLimits)
    elicitation: ElicitationCallback | None = attrs.field(default=None, validator=_check_callable)
    roots: Sequence[RootLike] | RootsCallback | None = attrs.field(
        default=None, converter=_as_roots
    )
    on_log: LogCallback | None = attrs.field(default=None, validator=_check_callable)
    log_level: LogLevel | None = attrs.field(default="info", validator=_check_level)
    timeout: float = attrs.field(default=300.0, validator=_check_timeout)

    def client_options(self, server: str = "server") -> dict[str, Any]:
        """Return keyword arguments for `mcp.Client`: one connection's own functions.

        ``server`` is the toolset's name. Call it anew for each connection.
        """
        desk = _Desk(self, server)
        options: dict[str, Any] = {"logging_callback": desk.log}
        if self.log_level is not None:
            options["log_level"] = self.log_level
        if self.sampling is not None:
            options["sampling_callback"] = desk.sample
            options["sampling_capabilities"] = m.SamplingCapability(
                tools=m.SamplingToolsCapability()
            )
        if self.elicitation is not None:
            options["elicitation_callback"] = desk.elicit
        if self.roots is not None:
            options["list_roots_callback"] = desk.list_roots
        return options


# --- the border -----------------------------------------------------------------


class _Desk:
    """One connection's answers: the functions that the SDK calls."""

    def __init__(self, callbacks: Callbacks, server: str) -> None:
        self._callbacks = callbacks
        self._server = server
        self._logger = logging.getLogger(f"{_LOGGER}.{server}")
        self._sampling = (
            None
            if callbacks.sampling is None
            else sampling_.SamplingDesk(
                server, callbacks.sampling, approve=callbacks.approve, limits=callbacks.limits
            )
        )
        #: When the present period of log messages began, and how many came in it.
        self._logs_since = -math.inf
        self._logs = 0

    @trio.lowlevel.enable_ki_protection
    async def sample(
        self, context: ClientRequestContext, params: m.CreateMessageRequestParams
    ) -> m.CreateMessageResult | m.CreateMessageResultWithTools | m.ErrorData:
        assert self._sampling is not None  # else the SDK is not given this function
        return await self._answer("sampling", self._sampling.answer, context, params)

    @trio.lowlevel.enable_ki_protection
    async def elicit(
        self, context: ClientRequestContext, params: m.ElicitRequestParams
    ) -> m.ElicitResult | m.ErrorData:
        return await self._answer("elicitation", self._elicit, params)

    @trio.lowlevel.enable_ki_protection
    async def list_roots(self, context: ClientRequestContext) -> m.ListRootsResult | m.ErrorData:
        return await self._answer("roots", self._list_roots)

    async def _elicit(self, params: m.ElicitRequestParams) -> m.ElicitResult:
        assert self._callbacks.elicitation is not None
        question = _question(self._server, params)
        answer: object = await self._callbacks.elicitation(question)
        return _elicited(question, Answer.cancel() if answer is None else answer)

    async def _list_roots(self) -> m.ListRootsResult:
        roots: Any = self._callbacks.roots
        if callable(roots):
            roots = roots()
            if inspect.isawaitable(roots):
                roots = await roots
            roots = _made_roots(cast("Iterable[RootLike]", roots))
        return m.ListRootsResult(
            roots=[
                m.Root(uri=pydantic.FileUrl(each.uri), name=each.name)
                for each in cast("tuple[Root, ...]", roots)
            ]
        )

    async def _answer(
        self, what: str, fn: Callable[..., Awaitable[T]], *args: Any
    ) -> T | m.ErrorData:
        """Return what ``fn`` returns, or an error for the server. Raises a cancel only.

        Ctrl-C may strike in ``fn``, which is as good as the user's function.
        """
        try:
            with trio.move_on_after(self._callbacks.timeout):
                return await call_unprotected(fn, *args)
        except sampling_.RefusedError as refused:
            return m.ErrorData(code=refused.code, message=str(refused))
        except BaseException as error:
            if _passed_on(error):
                return m.ErrorData(code=m.INTERNAL_ERROR, message="the client is ending")
            # A cancel that nobody around asked for is the function's own failure, and so is
            # a GeneratorExit while its task runs.
            if _is_being_closed(error) or trio.current_effective_deadline() == -math.inf:
                raise
            _log.error("MCP server %r: its %s failed", self._server, what, exc_info=error)
            kinds = ", ".join(sorted({type(leaf).__name__ for leaf in errors.leaves(error)})[:3])
            return m.ErrorData(
                code=m.INTERNAL_ERROR, message=f"{what} failed at the client: {kinds}"
            )
        _log.warning(
            "MCP server %r: its %s took longer than %g seconds (timeout)",
            self._server,
            what,
            self._callbacks.timeout,
        )
        return m.ErrorData(
            code=m.REQUEST_TIMEOUT,
            message=f"{what} took longer than {self._callbacks.timeout:g} seconds at the client",
        )

    # --- log messages ---

    @trio.lowlevel.enable_ki_protection
    async def log(self, params: m.LoggingMessageNotificationParams) -> None:
        """Pass a log message on, unless there were too many. Does not wait for anything."""
        now = trio.current_time()
        if now - self._logs_since >= _LOG_PERIOD:
            self._say_dropped()
            self._logs_since, self._logs = now, 0
        self._logs += 1
        if self._logs > _MAX_LOGS:
            return
        entry = ServerLog(
            server=self._server,
            level=params.level,
            logger=None if params.logger is None else convert.valid_text(params.logger),
            data=convert.valid_json(params.data),
            meta=None if params.meta is None else convert.valid_json(dict(params.meta)),
        )
        fn = self._callbacks.on_log
        if fn is None:
            self._logger.log(_LEVELS.get(entry.level, logging.CRITICAL), "%s", _as_line(entry))
            return
        try:
            call_sync_unprotected(fn, entry)
        except BaseException as error:
            if _is_being_closed(error):
                raise
            if not _passed_on(error):
                _log.exception("MCP server %r: on_log failed", self._server)

    def _say_dropped(self) -> None:
        if (dropped := self._logs - _MAX_LOGS) > 0:
            _log.warning(
                "MCP server %r: %d log messages were dropped; it sent more than %d in %g seconds",
                self._server,
                dropped,
                _MAX_LOGS,
                _LOG_PERIOD,
            )


def _is_being_closed(error: BaseException) -> bool:
    """Whether a coroutine that nobody runs any more is thrown away."""
    return isinstance(error, GeneratorExit) and not trio.lowlevel.in_trio_task()


def _passed_on(error: BaseException) -> bool:
    """Whether ``error`` would end the program; then the main task has been told to.

    A connection belongs to no caller, so that nobody would see it there.
    """
    if not main_task.passed_on(error):
        return False
    _log.error("a callback of an MCP server raised %s", type(error).__name__, exc_info=error)
    return True


# --- to and from the SDK --------------------------------------------------------


def _question(server: str, params: m.ElicitRequestParams) -> Question:
    call_id = sampling_.current_call_id()
    message = convert.valid_text(params.message)
    match params:
        case m.ElicitRequestURLParams():
            return Question(
                server=server,
                message=message,
                url=convert.valid_text(params.url),
                elicitation_id=params.elicitation_id,
                call_id=call_id,
            )
        case m.ElicitRequestFormParams():
            return Question(
                server=server,
                message=message,
                schema=convert.valid_json(params.requested_schema),
                call_id=call_id,
            )


def _elicited(question: Question, answer: object) -> m.ElicitResult:
    """The answer as the SDK wants it.

    Raises:
      TypeError: it is no `Answer`.
      ValueError: it does not fit the question's schema.
    """
    if type(answer) is not Answer:
        raise TypeError(f"elicitation returned {answer!r}; expected an Answer or None")
    if answer.action != "accept" or question.schema is None:
        return m.ElicitResult(action=answer.action)
    content: dict[str, Any] = convert.valid_json(dict(answer.content or {}))
    if schemas.schema_problem(question.schema) is None:
        try:
            problem = output_check.OutputCheck(question.schema).mismatch(content)
        except output_check.UncheckableError:
            problem = None  # the server will say
        if problem is not None:
            raise ValueError(f"the answer does not fit what {question.server!r} asks: {problem}")
    return m.ElicitResult(action="accept", content=content)


def _as_line(entry: ServerLog) -> str:
    """The message as one bounded line in which no character acts on a terminal."""
    data = entry.data
    text = data if type(data) is str else json.dumps(data, ensure_ascii=False)
    if entry.logger is not None:
        text = f"[{errors.shortened(entry.logger, 100)}] {text}"
    text = errors.shortened(text, _LOGGED)
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
