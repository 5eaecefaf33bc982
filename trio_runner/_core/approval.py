"""Calls that wait for somebody's word: what waits, what may be said of it, and the rules.

What may live here: frozen values and pure functions. Who is asked, and when, is
the shell's business.

A call waits for ``approval`` (its tool needs consent) or is ``external`` (the
application answers it itself). What was asked and what was allowed are records
with the hash of the arguments, so a saved call cannot be swapped between asking
and running: the machine refuses a word on other arguments than those it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

import trio_runner._core.json_data as json_data
import trio_runner._core.records as r
import trio_runner._core.values as v
from trio_runner._core.describe import shorten, type_name
from trio_runner._core.open_step import EDITED_SHOWN, OpenStep
from trio_runner._core.planning import PlannedToolCall, ToolT
from trio_runner._core.quick import ByFields
from trio_runner._core.turn import Turn

# --- what may be said -----------------------------------------------------------


def _own_arguments(given: Mapping[str, Any] | None) -> v.JSONObject | None:
    if given is None:
        return None
    try:
        plain = json_data.plain_json(given)
    except json_data.NotJSONError as error:
        raise TypeError(f"arguments is not plain JSON: {error}") from error
    if type(plain) is not dict:
        raise TypeError(
            f"arguments is a {type_name(given)}; expected an object of arguments, or None to run "
            "the call as it stands"
        )
    return plain


def _check_hash(_: object, __: object, value: object) -> None:
    if value is not None and type(value) is not str:
        raise TypeError(f"arguments_hash is {value!r}; expected that of a PendingCall, or None")


@attrs.frozen
class Approve:
    """The call may run.

    Attributes:
      arguments: run it with these instead, a copy of what was given; None: as it stands.
      arguments_hash: of the call that was shown to whoever decided; None: not checked.
        `PendingCall.approve` fills it in.
    """

    arguments: v.JSONObject | None = attrs.field(default=None, converter=_own_arguments)
    arguments_hash: str | None = attrs.field(default=None, kw_only=True, validator=_check_hash)


def _own_reason(given: str) -> str:
    found: object = given
    if type(found) is not str:
        raise TypeError(f"the reason is {given!r}; expected text, which the model reads")
    return json_data.safe_text(given).strip() or "it was not approved."


@attrs.frozen
class Deny:
    """The call must not run; it is answered ``denied``.

    Attributes:
      reason: for the model to read.
      arguments_hash: as for `Approve`.
    """

    reason: str = attrs.field(default="it was not approved.", converter=_own_reason)
    arguments_hash: str | None = attrs.field(default=None, kw_only=True, validator=_check_hash)


@attrs.frozen
class Defer:
    """Nobody can say now: the turn is suspended with the call open, and goes on later."""


#: What an approver says of a call.
Decision: TypeAlias = Approve | Deny | Defer


# --- what waits -----------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class PendingCall(ByFields):
    """A call that waits for somebody's word.

    Attributes:
      call_id: its id, which decisions go by.
      name: of the tool, as the model called it.
      arguments: what it would run with: a copy.
      arguments_hash: SHA-256 of their canonical JSON, in hex.
      waits_for: ``"approval"``, or ``"external"`` for a call that you answer yourself.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    arguments_hash: str
    waits_for: r.WaitsFor

    def as_json(self) -> dict[str, Any]:
        """Every field as plain JSON, for whoever decides elsewhere."""
        return {
            "call_id": self.call_id,
            "name": self.name,
            "arguments": json_data.copy_json(self.arguments),
            "arguments_hash": self.arguments_hash,
            "waits_for": self.waits_for,
        }

    def approve(self, arguments: Mapping[str, Any] | None = None) -> Approve:
        """Let this very call run; with other ``arguments`` where they are given."""
        return Approve(_own_arguments(arguments), arguments_hash=self.arguments_hash)

    def deny(self, reason: str = "") -> Deny:
        """Refuse this very call, for a ``reason`` that the model reads."""
        return Deny(reason, arguments_hash=self.arguments_hash)


def pending_calls(turn: Turn | None) -> tuple[PendingCall, ...]:
    """The open calls of ``turn`` that wait for a word, in the order of the request."""
    step = None if turn is None else turn.open_step
    if step is None:
        return ()
    return tuple([
        pending_call(step, position, step.held[position])
        for position in sorted(step.held)
        if step.waits(position)
    ])  # fmt: skip


def pending_call(step: OpenStep, position: int, waits_for: r.WaitsFor) -> PendingCall:
    """The open call at ``position``, as somebody is asked about it."""
    call, arguments = step.reply.tool_calls[position], step.arguments(position)
    return PendingCall(
        call.id,
        call.name,
        json_data.copy_json(arguments),
        r.arguments_hash(arguments),
        waits_for,
    )


# --- decisions that come later --------------------------------------------------


def decision_problems(pending: Sequence[PendingCall], decisions: Mapping[str, object]) -> list[str]:
    """What is wrong with ``decisions``, a sentence each; [] when they may be carried out."""
    waiting = {each.call_id: each for each in pending}
    problems: list[str] = []
    for call_id, decision in decisions.items():
        call = waiting.get(call_id)
        if call is None:
            listed = ", ".join(map(repr, waiting)) or "none"
            problems.append(f"no call {call_id!r} waits for a decision; those that do: {listed}")
        elif (problem := _misfit(call, decision)) is not None:
            problems.append(f"call {call_id!r} {problem}")
    return problems


def _misfit(call: PendingCall, decision: object) -> str | None:
    match decision:
        case Approve() if call.waits_for == "external":
            return (
                "is external and cannot be approved, since nothing here runs it; expected its "
                "result, or Deny"
            )
        case Approve(arguments_hash=given) | Deny(arguments_hash=given):
            if given is None or given == call.arguments_hash:
                return None
            return (
                f"is not the one that was decided on: its arguments have the hash "
                f"{call.arguments_hash!r}, and the decision is on {given!r}"
            )
        case Defer():
            return None
        case _ if call.waits_for == "approval":
            return f"waits for approval and got a {type_name(decision)}; expected Approve or Deny"
        case _:
            return None  # any value is the result of an external call


def edit_problem(step: OpenStep, position: int, decision: object) -> str | None:
    """Why ``decision`` cannot give the call other arguments; None when it can, or gives none.

    A call that began before a crash begins again under its key, which stands for what it
    was asked to do.
    """
    match decision:
        case Approve(arguments=edited) if edited is not None and step.is_cut(position):
            if r.arguments_hash(edited) == r.arguments_hash(step.arguments(position)):
                return None
            return (
                f"call {step.reply.tool_calls[position].id!r} had started before a crash, and can "
                "run again only with the arguments it started with; expected Approve() or Deny"
            )
        case _:
            return None


# --- edited arguments -----------------------------------------------------------


def as_it_runs(planned: PlannedToolCall[ToolT], step: OpenStep | None) -> PlannedToolCall[ToolT]:
    """``planned`` with the arguments that its call runs with, where somebody edited them."""
    edited = None if step is None else step.edits.get(planned.position)
    if edited is None:
        return planned
    return attrs.evolve(planned, call=attrs.evolve(planned.call, arguments=edited))


def as_edited(result: v.ToolResult) -> v.ToolResult:
    """``result``, marked as that of a call whose arguments somebody edited."""
    return attrs.evolve(result, meta={**result.meta, "edited_arguments": True})


def edit_note(call: v.ToolCall) -> v.Message:
    """Tells the model, behind the results, what ``call`` ran with; the reply says otherwise."""
    shown = shorten(r.canonical_json(call.arguments), EDITED_SHOWN)
    text = f"Note: whoever approved call {call.id} changed its arguments. It was run with {shown}"
    meta = {"attached_by": call.id, "edited_arguments": True}
    return v.Message.user(text, meta=meta)
