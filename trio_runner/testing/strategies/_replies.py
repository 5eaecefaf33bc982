"""Strategies for what a model may return: argument texts, raw calls, replies, batches.

What may live here: a reply as it comes from a provider, before the boundary
makes it good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import hypothesis.strategies as st

import trio_runner._core.values as v
from trio_runner.testing.strategies._values import (
    BAD_TEXTS,
    NAMES,
    contents,
    json_objects,
    safe_texts,
)

# --- replies ----------------------------------------------------------------------


def argument_texts() -> st.SearchStrategy[str]:
    """Arguments as a provider's text: good, empty, and bad in the known ways."""
    return st.sampled_from(
        (
            "",
            "  ",
            "{}",
            '{"a": 1}',
            '"{\\"a\\": 1}"',
            '{"a": ',
            '{"a": 1,}',
            "null",
            "[]",
            '"x"',
            "3",
            "NaN",
            '{"a": NaN}',
            '{"a": 1e999}',
            '{"a": 1, "a": 2}',
            '{"a": "\\ud800"}',
            "[" * 5000,
            "junk " * 100,
        )
    )


def raw_tool_calls() -> st.SearchStrategy[v.ToolCall]:
    """A call as a model may return it: ids, names and arguments of any sort."""
    ids: st.SearchStrategy[Any] = st.sampled_from(
        ("", " ", None, 7, "a", "a", "b", " a", "call_1", "call_2", "call_3", "x" * 65, "f.g:0")
    )
    names: st.SearchStrategy[Any] = st.sampled_from((*NAMES, " read ", "a.b", "", None, "é" * 70))
    arguments: st.SearchStrategy[Any] = (
        argument_texts() | json_objects() | st.sampled_from((None, [], 3, {"x": float("nan")}))
    )
    return st.builds(v.ToolCall, ids, names, arguments, st.none() | st.just("refused"))


def replies() -> st.SearchStrategy[v.Message]:
    """A reply as a model may return it, before it is normalised."""
    reasons: st.SearchStrategy[Any] = (
        st.none() | st.sampled_from(v.StopReason) | st.sampled_from(("toolUse", "weird", ""))
    )
    texts = safe_texts() | st.sampled_from(BAD_TEXTS)
    metas: st.SearchStrategy[Any] = st.sampled_from(({}, {"provider": "x"}, {"raw": object()}))
    return st.builds(
        v.Message,
        st.just("assistant"),
        st.just(()) | st.builds(v.TextContent, texts) | contents(),
        st.just([]) | st.lists(raw_tool_calls(), max_size=4),
        stop_reason=reasons,
        meta=metas,
    )


# --- batches of tools that a test has ---------------------------------------------

#: Ids as models have been seen to send them; `None` stands for one of its own.
_IDS: Final[st.SearchStrategy[Any]] = st.sampled_from(
    ("c1", "c1", "c2", "call_1", "", None, " ", 7, "x" * 65)
)


def _misspelt(name: str) -> tuple[str, ...]:
    return (name.upper(), f" {name} ", f"{name}_")


@st.composite
def batches(
    draw: st.DrawFn,
    tools: Iterable[str] | Mapping[str, st.SearchStrategy[v.JSONObject]],
    *,
    min_size: int = 1,
    max_size: int = 4,
    odd: bool = True,
) -> list[v.ToolCall]:
    """The calls of one reply, as a model asks for them: a script item of `ScriptedModel`.

    Args:
      tools: the names of your tools; or each with a strategy for its arguments.
      odd: some calls have no id or the id of another, a misspelt name, or arguments
        that are no object. With False each call is right, with an id of its own in the batch.
    """
    arguments: dict[str, st.SearchStrategy[v.JSONObject]] = {}
    for name in tools:
        arguments[name] = tools[name] if isinstance(tools, Mapping) else st.builds(v.empty_object)
    if not arguments:
        raise ValueError("batches() got no tools; expected the name of at least one")
    calls: list[v.ToolCall] = []
    for number in range(draw(st.integers(min_size, max_size))):
        name = draw(st.sampled_from(tuple(arguments)))
        call = v.ToolCall(f"call_{number}", name, draw(arguments[name]))
        # One call in four is odd: most of a batch should run.
        if odd and draw(st.integers(0, 3)) == 3:
            call = draw(_odd_calls(call))
        calls.append(call)
    return calls


def _odd_calls(call: v.ToolCall) -> st.SearchStrategy[v.ToolCall]:
    def with_id(id_: Any) -> v.ToolCall:
        return attrs.evolve(call, id=id_)

    def with_name(name: str) -> v.ToolCall:
        return attrs.evolve(call, name=name)

    def with_arguments(given: Any) -> v.ToolCall:
        return attrs.evolve(call, arguments=given)

    return (
        _IDS.map(with_id)
        | st.sampled_from((*_misspelt(call.name), "nosuch")).map(with_name)
        | argument_texts().map(with_arguments)
    )
