"""`check_toolset`: does a toolset keep what its protocol promises?

What may live here: the entry and the table of rules. The rules themselves
stand in ``_rules/toolset_listing.py`` and ``_rules/toolset_calls.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import trio_runner.testing._rules.toolset_calls as calls_
import trio_runner.testing._rules.toolset_listing as listing
from trio_runner.abc import Toolset
from trio_runner.testing._conformance import (
    ConformanceReport,
    ConformanceRule,
    chosen_rules,
    required,
    run_rules,
)
from trio_runner.testing._rules.toolset_kit import ToolsetKit, as_calls
from trio_runner.testing._stages import make_stage

#: What makes a toolset that was not entered: a function of nothing, or an async one.
MakeToolset: TypeAlias = Callable[[], Toolset] | Callable[[], Awaitable[Toolset]]

_LIST, _ENTER, _EXIT = "Toolset.list_tools", "Toolset.__aenter__", "Toolset.__aexit__"

#: The rules of `check_toolset`, by name.
TOOLSET_RULES: Final[Mapping[str, ConformanceRule[ToolsetKit]]] = MappingProxyType(
    {
        rule.name: rule
        for rule in [
            ConformanceRule(name, promised_by, promise, check)
            for name, promised_by, promise, check in (
                (
                    "name_is_text",
                    "Toolset.name",
                    "the toolset has a name, for messages",
                    listing.name_is_text,
                ),
                (
                    "tools_are_well_made",
                    f"{_LIST}; C2",
                    "list_tools gives a sequence of Tool objects, each name once",
                    listing.tools_are_well_made,
                ),
                (
                    "schemas_are_objects",
                    "Tool.input_schema",
                    "each schema is a JSON Schema, that of the arguments of an object",
                    listing.schemas_are_objects,
                ),
                (
                    "list_is_stable",
                    _LIST,
                    "the same tools are listed while nothing has changed",
                    listing.list_is_stable,
                ),
                (
                    "a_cancelled_enter_leaves_nothing",
                    f"{_ENTER}; C1, C5",
                    "entering lets a cancel through, and leaves nothing behind then",
                    listing.a_cancelled_enter_leaves_nothing,
                ),
                (
                    "leaving_is_bounded",
                    f"{_EXIT}; C6",
                    "leaving takes a bounded time, cancelled or not",
                    listing.leaving_is_bounded,
                ),
                (
                    "leaving_lets_errors_through",
                    f"{_EXIT}; C1, C7",
                    "an error or a cancel in the block leaves it",
                    listing.leaving_lets_errors_through,
                ),
                (
                    "nothing_is_left_running",
                    f"{_EXIT}; C5",
                    "no task outlives the toolset, in whatever way it is left",
                    listing.nothing_is_left_running,
                ),
                (
                    "any_task_may_use_it",
                    "Toolset",
                    "other tasks than the one that entered list and call",
                    listing.any_task_may_use_it,
                ),
                (
                    "calls_return",
                    "Tool.call",
                    "a call returns what can be made a result",
                    calls_.calls_return,
                ),
                (
                    "a_cancelled_call_leaves",
                    "Tool.call; C1, C6",
                    "a cancel at any step of a call leaves it, and soon",
                    calls_.a_cancelled_call_leaves,
                ),
                (
                    "it_works_after_a_cancelled_call",
                    "Tool.call; C1",
                    "after a cancelled call the toolset works as before",
                    calls_.it_works_after_a_cancelled_call,
                ),
                (
                    "calls_do_not_mix",
                    "Tool.call; C4",
                    "calls side by side give what each gives alone",
                    calls_.calls_do_not_mix,
                ),
                (
                    "listing_goes_on_during_a_call",
                    _LIST,
                    "the tools are listed at once, also while a call is in flight",
                    calls_.listing_goes_on_during_a_call,
                ),
                (
                    "leaving_ends_calls_in_flight",
                    f"{_EXIT}; C5, C6",
                    "leaving ends the calls in flight, within a bound",
                    calls_.leaving_ends_calls_in_flight,
                ),
                (
                    "a_turn_keeps_the_contract",
                    "Toolset; C1-C9",
                    "an agent's turn with these calls, cancelled at any step, keeps the contract",
                    calls_.a_turn_keeps_the_contract,
                ),
            )
        ]
    }
)


def check_toolset(
    make_toolset: MakeToolset,
    *,
    calls: Iterable[tuple[str, Mapping[str, Any]]] = (),
    rules: Iterable[str] | None = None,
    real_time: bool = False,
    seeds: Iterable[int] = range(2),
    max_positions: int | None = None,
    hang_after: float = 60.0,
    leaves_within: float = 5.0,
) -> ConformanceReport:
    """Check a toolset against `trio_runner.abc.Toolset`. Call it outside trio.

    Each rule runs a new toolset in a trio run of its own: undisturbed, and
    with a fault before each step.

    Args:
      make_toolset: makes a toolset that was not entered; may be async.
      calls: calls that work: the tool's name and its arguments. One that takes long
        shows most, and so do two with results that differ: an answer that comes to the
        wrong call shows. Without any the rules on calls are not checked.
      rules: names from `TOOLSET_RULES`; None: all.
      real_time: for a toolset with real threads, sockets or processes: no mock
        clock, and the only fault is a cancel.
      seeds: of trio's scheduler (on the mock clock).
      max_positions: at most this many positions per fault and seed; None: all,
        and 12 in real time.
      hang_after: seconds after which a run counts as hung (in real time).
      leaves_within: seconds that leaving, or a cancelled operation, may take.

    Raises:
      ValueError, TypeError: there is no such rule, nothing that makes a toolset, or a call
        names no tool of it or has arguments that the tool does not take.
      SweepError: the toolset cannot be run on the mock clock: use ``real_time``.
    """
    chosen = chosen_rules(TOOLSET_RULES, rules)
    stage = make_stage(
        real_time=real_time, seeds=seeds, max_positions=max_positions, hang_after=hang_after
    )
    made = required(make_toolset, "toolset", ["list_tools", "__aenter__", "__aexit__"])
    kit = ToolsetKit(stage, made, as_calls(calls), leaves_within)
    name = getattr(make_toolset, "__qualname__", repr(make_toolset))
    return ConformanceReport("check_toolset", name, run_rules(chosen, kit), stage.runs)
