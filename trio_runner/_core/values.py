"""The frozen values of a conversation: messages, tool calls, tool results.

What may live here: data with its own validity and no behaviour beyond reading
itself. Content blocks and tool results have the fields of MCP's
``CallToolResult`` and content types (specification 2025-06-18 and later), so
that the adapters convert both ways without loss; the core does not import mcp.

A value that was handed out is never edited: what changes is a new value.
Mappings inside (arguments, ``meta``) are plain dicts for speed; treat them as
read-only.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import attrs

from trio_runner._core.quick import ByFields, quick

JSONValue: TypeAlias = "str | int | float | bool | list[JSONValue] | dict[str, JSONValue] | None"
JSONObject: TypeAlias = dict[str, JSONValue]


#: A new dict: `dict` with the type that a default needs.
empty_object: Final = cast("Callable[[], dict[str, Any]]", dict)


class StopReason(str, enum.Enum):
    """Why the *model* stopped a reply; the values are spelled as MCP spells them."""

    END_TURN = "endTurn"
    STOP_SEQUENCE = "stopSequence"
    MAX_TOKENS = "maxTokens"
    TOOL_USE = "toolUse"
    PAUSE = "pause"
    CONTINUE_ = "continue"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    SAFETY = "safety"


class EndReason(str, enum.Enum):
    """Why the *turn* ended. ``docs/explanation/contract.md`` has the table."""

    ANSWERED = "answered"
    PASSED_THROUGH = "passed_through"
    MAX_ITERATIONS = "max_iterations"
    MAX_TOKENS = "max_tokens"
    SAFETY = "safety"
    LIMIT = "limit"
    SUSPENDED = "suspended"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"
    FAILED = "failed"


class CallStatus(str, enum.Enum):
    """What became of one tool call: a closed set; a result's text never contradicts it."""

    OK = "ok"
    ERROR = "error"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNAVAILABLE = "unavailable"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    NOT_STARTED = "not_started"
    LIMIT_REACHED = "limit_reached"
    OUTPUT_CUT = "output_cut"
    UNKNOWN_AFTER_CRASH = "unknown_after_crash"


# --- content blocks, field by field as MCP has them -----------------------------


@attrs.frozen
class TextContent:
    """A piece of text."""

    text: str
    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None


make_text: Final = quick(TextContent)


@attrs.frozen(eq=False, repr=False)
class ImageContent(ByFields):
    """An image; ``data`` is base64 text, as on the wire."""

    data: str
    mime_type: str
    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None


@attrs.frozen(eq=False, repr=False)
class AudioContent(ByFields):
    """A sound; ``data`` is base64 text, as on the wire."""

    data: str
    mime_type: str
    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None


@attrs.frozen(eq=False, repr=False)
class ResourceLink(ByFields):
    """A reference to a resource that the reader may fetch; ``size`` is in bytes."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: tuple[Mapping[str, Any], ...] | None = None
    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None


@attrs.frozen(eq=False, repr=False)
class EmbeddedResource(ByFields):
    """The content of a resource: either ``text`` or ``blob`` (base64 text) is set."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None
    resource_meta: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None


ContentBlock: TypeAlias = (
    TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
)
CONTENT_BLOCK_TYPES = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)


def as_blocks(
    content: str | ContentBlock | Iterable[ContentBlock] | None,
) -> tuple[ContentBlock, ...]:
    """Turn what people write as content into a tuple of blocks.

    Raises:
      TypeError: for anything that is neither text nor content blocks.
    """
    if type(content) is str:  # nearly every result and reply
        return (make_text(content),)
    kind = type(content)
    if kind is tuple and not content:
        return ()
    match content:
        case None:
            return ()
        case str():
            return (make_text(content),)
        case TextContent() | ImageContent() | AudioContent() | ResourceLink() | EmbeddedResource():
            return (content,)
        case _:
            blocks = tuple(content)
            for block in blocks:
                if type(block) not in CONTENT_BLOCK_TYPES:
                    raise TypeError(
                        f"content holds a {type(block).__name__}; expected text or content blocks "
                        "(TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)"
                    )
            return blocks


# --- calls, results, messages ---------------------------------------------------


@attrs.frozen
class ToolCall:
    """One call the model asks for.

    A model adapter may hand over ``arguments`` as the provider's text or as
    ``None``, and ``id`` may be missing or repeated (`from_model`); the boundary
    (``_core/normalise.py``) stores a JSON object and a unique id in every case.

    Attributes:
      arguments_error: what was wrong with the arguments, or None. A call with
        one is answered ``invalid_arguments`` and never reaches its tool.
    """

    id: str
    name: str
    arguments: JSONObject = attrs.field(factory=empty_object)
    arguments_error: str | None = None

    @classmethod
    def from_model(cls, *, id: object, name: object, arguments: object) -> ToolCall:
        """A call as the provider sent it: what a model adapter puts in its reply.

        ``arguments`` may be text, an object or None, and ``id`` may be missing;
        nothing is checked here, the boundary normalises all of it.
        """
        return cls(cast("str", id), cast("str", name), cast("JSONObject", arguments))


make_call: Final = quick(ToolCall)


@attrs.frozen
class ToolResult:
    """The answer to one tool call.

    A tool may return one itself; ``call_id`` and ``name`` are then filled in.

    Attributes:
      status: what became of the call; ``is_error`` follows from it.
      duration: seconds the call ran; None when it never started, or when the
        turn ended before it did.
    """

    call_id: str = ""
    name: str = ""
    content: tuple[ContentBlock, ...] = attrs.field(default=(), converter=as_blocks)
    structured_content: JSONValue = None
    status: CallStatus = CallStatus.OK
    duration: float | None = None
    meta: Mapping[str, Any] = attrs.field(factory=empty_object)

    @property
    def is_error(self) -> bool:
        """Whether the model should read this as a failure: every status but ``ok``."""
        return self.status is not CallStatus.OK

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return _text_of(self.content)


make_result: Final = quick(ToolResult)


# Functions rather than ``tuple[ToolCall, ...]``, which takes ten times as long to call.


def _as_calls(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(calls)


def _as_results(results: Iterable[ToolResult]) -> tuple[ToolResult, ...]:
    return tuple(results)


@attrs.frozen
class Usage:
    """Tokens one or more model calls took, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        """Sum field by field."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


@attrs.frozen
class Message:
    """One message of the history.

    An assistant message may hold ``tool_calls``; the user message right after
    it then holds one result for each, in the same order.

    Attributes:
      stop_reason: why the model stopped (assistant messages only).
      template: sent first with every request; kept by clear, trim and compaction.
    """

    role: Literal["user", "assistant"]
    content: tuple[ContentBlock, ...] = attrs.field(default=(), converter=as_blocks)
    tool_calls: tuple[ToolCall, ...] = attrs.field(default=(), converter=_as_calls)
    tool_results: tuple[ToolResult, ...] = attrs.field(default=(), converter=_as_results)
    stop_reason: StopReason | None = None
    usage: Usage | None = None
    meta: Mapping[str, Any] = attrs.field(factory=empty_object)
    template: bool = False

    @classmethod
    def user(
        cls,
        content: str | ContentBlock | Iterable[ContentBlock] = (),
        *,
        tool_results: Iterable[ToolResult] = (),
        meta: Mapping[str, Any] | None = None,
        template: bool = False,
    ) -> Message:
        """A message of the user, or one that carries tool results."""
        return cls(
            "user", content, tool_results=tool_results, meta=dict(meta or {}), template=template
        )

    @classmethod
    def assistant(
        cls,
        content: str | ContentBlock | Iterable[ContentBlock] = (),
        *,
        tool_calls: Iterable[ToolCall] = (),
        stop_reason: StopReason | None = None,
        usage: Usage | None = None,
        meta: Mapping[str, Any] | None = None,
        template: bool = False,
    ) -> Message:
        """A message of the model; with calls the stop reason defaults to ``tool_use``."""
        calls = tuple(tool_calls)
        if stop_reason is None:
            stop_reason = StopReason.TOOL_USE if calls else StopReason.END_TURN
        return cls(
            "assistant",
            content,
            tool_calls=calls,
            stop_reason=stop_reason,
            usage=usage,
            meta=dict(meta or {}),
            template=template,
        )

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return _text_of(self.content)


make_message: Final = quick(Message)


def _text_of(content: tuple[ContentBlock, ...]) -> str:
    return "\n".join([block.text for block in content if type(block) is TextContent])
