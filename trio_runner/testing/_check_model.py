"""`check_model`: does a model keep what its protocol promises?

What may live here: the entry and the table of rules. The rules themselves
stand in ``_rules/model_rules.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Final, TypeAlias

import trio_runner._core.params as params_
import trio_runner._core.values as v
import trio_runner.testing._rules.model_rules as rules_
from trio_runner._core.history import History
from trio_runner.abc import Model, ModelRequest
from trio_runner.testing._conformance import (
    ConformanceReport,
    ConformanceRule,
    chosen_rules,
    required,
    run_rules,
)
from trio_runner.testing._rules.model_rules import ModelKit
from trio_runner.testing._stages import make_stage

#: What makes a model: a function of nothing that returns one, or an awaitable of
#: one, or an async context manager that gives one.
MakeModel: TypeAlias = (
    Callable[[], Model]
    | Callable[[], Awaitable[Model]]
    | Callable[[], AbstractAsyncContextManager[Model]]
)

_REPLY, _EMIT, _MESSAGE = "Model.reply", "DeltaSink", "Message"

#: The rules of `check_model`, by name.
MODEL_RULES: Final[Mapping[str, ConformanceRule[ModelKit]]] = MappingProxyType(
    {
        rule.name: rule
        for rule in [
            ConformanceRule(name, promised_by, promise, check)
            for name, promised_by, promise, check in (
                (
                    "reply_is_an_assistant_message",
                    f"{_REPLY}; C2",
                    "the reply is an assistant Message of the right parts, without results",
                    rules_.reply_is_an_assistant_message,
                ),
                (
                    "reply_needs_no_mending",
                    f"{_MESSAGE}; C2",
                    "content is not empty and encodes, meta is plain JSON",
                    rules_.reply_needs_no_mending,
                ),
                (
                    "stop_reason_says_why",
                    f"{_MESSAGE}.stop_reason; C9",
                    "the reply says why the model stopped",
                    rules_.stop_reason_says_why,
                ),
                (
                    "usage_counts_tokens",
                    f"{_MESSAGE}.usage",
                    "usage is None, or counts tokens in whole numbers",
                    rules_.usage_counts_tokens,
                ),
                (
                    "calls_can_be_told_apart",
                    f"{_REPLY}; C2",
                    "each tool call has an id of its own",
                    rules_.calls_can_be_told_apart,
                ),
                (
                    "request_is_not_changed",
                    "ModelRequest; C9",
                    "the request is not edited, nor anything inside it",
                    rules_.request_is_not_changed,
                ),
                (
                    "emit_gets_text",
                    _EMIT,
                    "emit is called with text",
                    rules_.emit_gets_text,
                ),
                (
                    "emit_ends_with_the_reply",
                    f"{_EMIT}; C5",
                    "nothing is emitted once the reply was returned",
                    rules_.emit_ends_with_the_reply,
                ),
                (
                    "deltas_make_up_the_text",
                    _EMIT,
                    "the pieces that were emitted make up the text of the reply",
                    rules_.deltas_make_up_the_text,
                ),
                (
                    "cancel_is_let_through",
                    f"{_REPLY}; C1, C6",
                    "a cancel at any step leaves the reply, and soon",
                    rules_.cancel_is_let_through,
                ),
                (
                    "a_reply_follows_a_cancelled_one",
                    f"{_REPLY}; C1",
                    "after a cancelled reply the same model answers again",
                    rules_.a_reply_follows_a_cancelled_one,
                ),
                (
                    "nothing_is_left_running",
                    f"{_REPLY}; C5",
                    "no task outlives a reply, and the provider's stream is closed",
                    rules_.nothing_is_left_running,
                ),
                (
                    "a_turn_keeps_the_contract",
                    "Model; C1-C9",
                    "an agent's turn with it, cancelled at any step, keeps the contract",
                    rules_.a_turn_keeps_the_contract,
                ),
                (
                    "replies_do_not_mix",
                    "Model",
                    "several requests at once are answered as each alone",
                    rules_.replies_do_not_mix,
                ),
                (
                    "errors_leave_bare",
                    f"{_REPLY}; C7",
                    "what goes wrong leaves as one plain Exception",
                    rules_.errors_leave_bare,
                ),
            )
        ]
    }
)


def check_model(
    make_model: MakeModel,
    *,
    requests: Iterable[ModelRequest] | None = None,
    make_failing: MakeModel | None = None,
    concurrent: bool = False,
    rules: Iterable[str] | None = None,
    real_time: bool = False,
    seeds: Iterable[int] = range(2),
    max_positions: int | None = None,
    hang_after: float = 120.0,
    leaves_within: float = 5.0,
) -> ConformanceReport:
    """Check a model against `trio_runner.abc.Model`. Call it outside trio.

    Each rule asks the model in trio runs of its own: undisturbed, and with a
    cancel before each step. A paid model is asked often; choose ``rules`` and
    ``max_positions``, or let it speak to a stand-in for the provider.

    Args:
      make_model: makes a model; may be async, or an async context manager.
      requests: what to ask; None: two short questions without tools. A request with
        tools shows how the model asks for calls.
      make_failing: makes a model whose reply to the first request fails. None: the
        rule on errors is not checked.
      concurrent: whether several turns may use one model at once. Its replies must
        then be the same each time.
      rules: names from `MODEL_RULES`; None: all.
      real_time: for a model with real threads or sockets: no mock clock.
      seeds: of trio's scheduler (on the mock clock).
      max_positions: at most this many positions per seed; None: all, and 12 in real time.
      hang_after: seconds after which a run counts as hung (in real time).
      leaves_within: seconds that a cancelled reply may take to leave.

    Raises:
      ValueError, TypeError: there is no such rule, no request, or nothing that makes a model.
      SweepError: the model cannot be run on the mock clock: use ``real_time``.
    """
    chosen = chosen_rules(MODEL_RULES, rules)
    asked = (_question("Say hello."), _question("Count to 3.")) if requests is None else requests
    asked = tuple(asked)
    if not asked:
        raise ValueError("requests is empty; expected at least one ModelRequest, or None")
    stage = make_stage(
        real_time=real_time, seeds=seeds, max_positions=max_positions, hang_after=hang_after
    )
    make = required(make_model, "model", ["reply"])
    failing = make_failing and required(make_failing, "model", ["reply"])
    kit = ModelKit(stage, make, asked, failing, concurrent, leaves_within)
    name = getattr(make_model, "__qualname__", repr(make_model))
    return ConformanceReport("check_model", name, run_rules(chosen, kit), stage.runs)


def _question(text: str) -> ModelRequest:
    """A request as the runner makes it."""
    view = History([v.Message.user(text)]).view()
    return ModelRequest(delta=view, history=view, tools=(), params=params_.DEFAULT_PARAMS)
