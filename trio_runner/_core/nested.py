"""Turns inside turns: how an agent's call is named, marked, summed up and passed through.

What may live here: pure functions over names, results and messages. Running an
agent as a tool is ``_shell/agent_tools.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import attrs

import trio_runner._core.values as v

#: In the ``meta`` of a result: which turn of which agent made it.
AGENT_TURN: Final = "agent_turn"
#: In the ``meta`` of a nested turn's input: which call asks.
ASKED_BY: Final = "asked_by"
#: The argument by which a model chooses what becomes of an agent's answer.
RESPONSE_MODE: Final = "response_mode"
POSTPROCESS: Final = "postprocess"
PASSTHROUGH: Final = "passthrough"
#: In the ``meta`` of a message that was made of results.
PASSED_THROUGH: Final = "passed_through"

_MAX_TOOL_NAME: Final = 64
_MAX_SESSION_ID: Final = 128
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_SESSION_IDS: Final = re.compile(r"[^A-Za-z0-9_.:@+=-]")


# --- names ----------------------------------------------------------------------


def agent_tool_name(agent: str) -> str:
    """The name of the tool that asks ``agent``: ``agent__NAME``, as every provider takes it.

    A name that is too long, or has nothing left, ends in a hash of the whole.
    """
    name = "agent__" + _NOT_IN_NAMES.sub("_", agent)
    if len(name) <= _MAX_TOOL_NAME and re.search(r"[A-Za-z0-9]", name[7:]):
        return name
    return f"{name[: _MAX_TOOL_NAME - 9]}_{_digest(agent)[:8]}"


def nested_session_id(key: str) -> str:
    """The id of the session of a nested turn, from the idempotency key of its call.

    ``SESSION/TURN:STEP:CALL`` becomes ``SESSION+TURN:STEP:CALL``. Where that is no id
    that every journal takes, it is cut and ends in a hash of the whole key.
    """
    plain = key.replace("/", "+")
    safe = _NOT_IN_SESSION_IDS.sub("_", plain)
    if safe == plain and len(safe) <= _MAX_SESSION_ID:
        return safe
    return f"{safe[: _MAX_SESSION_ID - 33]}+{_digest(key)[:32]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# --- what the schema offers -----------------------------------------------------


def offering_response_mode(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an agent's tool, with the argument that chooses what becomes of its answer.

    A schema that has an argument of that name keeps its own.
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    if RESPONSE_MODE in properties:
        return schema
    offered = {
        "type": "string",
        "enum": [POSTPROCESS, PASSTHROUGH],
        "description": (
            f"{POSTPROCESS} (the default): you read the answer and reply yourself. "
            f"{PASSTHROUGH}: the answer goes to the user as it is, and you are not asked again; "
            "only when every call of your message chooses it."
        ),
    }
    return {**schema, "properties": {**properties, RESPONSE_MODE: offered}}


# --- what a result says of its turn ---------------------------------------------


@attrs.frozen(kw_only=True)
class AgentTurn:
    """The turn of an agent behind one call, as the ``meta`` of its result tells it.

    Attributes:
      agent: its name.
      session: where the turn is kept; None: nowhere.
      end_reason: how it ended; None when it never began.
      usage: of its model calls, and of the turns nested in it.
      response_mode: what the calling model chose; None when it did not.
    """

    agent: str
    session: str | None
    end_reason: v.EndReason | None
    usage: v.Usage
    response_mode: str | None = None

    def as_meta(self) -> dict[str, Any]:
        """As plain JSON, for ``meta``."""
        told: dict[str, Any] = {
            "agent": self.agent,
            "session": self.session,
            "end_reason": None if self.end_reason is None else self.end_reason.value,
            "usage": {
                "input_tokens": self.usage.input_tokens,
                "output_tokens": self.usage.output_tokens,
                "cached_input_tokens": self.usage.cached_input_tokens,
            },
        }
        if self.response_mode is not None:
            told[RESPONSE_MODE] = self.response_mode
        return {AGENT_TURN: told}


def nested_usage(messages: Iterable[v.Message]) -> v.Usage:
    """The sum over the nested turns whose results are in ``messages``, to any depth."""
    total = v.Usage()
    for message in messages:
        for result in message.tool_results:
            if result.meta:
                total += _usage_of(result)
    return total


def _usage_of(result: v.ToolResult) -> v.Usage:
    usage = _told(result).get("usage")
    if not isinstance(usage, Mapping):
        return v.Usage()
    counts = cast("Mapping[str, object]", usage)
    found = [counts.get(field.name) for field in attrs.fields(v.Usage)]
    # Any tool may write what it likes into its meta.
    return v.Usage(*[count if type(count) is int and count > 0 else 0 for count in found])


def _told(result: v.ToolResult) -> Mapping[str, object]:
    told = result.meta.get(AGENT_TURN)
    return cast("Mapping[str, object]", told) if isinstance(told, Mapping) else {}


# --- passing results through ----------------------------------------------------


def passed_through(history: Sequence[v.Message], *, chosen: bool) -> v.Message | None:
    """The message that the newest results become without another model call.

    Args:
      history: ends with the results of a batch, and the media that its tools attached.
      chosen: only when each result comes from an agent, asked with that mode.

    Returns:
      None when the model is to be asked: a call failed, was refused or did not choose it,
      or somebody has added a message for the model.
    """
    attached: list[v.ContentBlock] = []
    results: tuple[v.ToolResult, ...] = ()
    for message in reversed(history):
        if message.tool_results and not message.content:
            results = message.tool_results
            break
        if message.role != "user" or "attached_by" not in message.meta:
            return None
        attached[:0] = message.content
    if not results or not all(_passes(result, chosen=chosen) for result in results):
        return None
    blocks = [block for result in results for block in result.content]
    return v.Message.assistant([*blocks, *attached], meta={PASSED_THROUGH: True})


def _passes(result: v.ToolResult, *, chosen: bool) -> bool:
    if result.status is not v.CallStatus.OK:
        return False
    return not chosen or _told(result).get(RESPONSE_MODE) == PASSTHROUGH
