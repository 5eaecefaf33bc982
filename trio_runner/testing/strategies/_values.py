"""Strategies for JSON, contents, calls, results and valid histories.

What may live here: what a good conversation is made of. A field that is added
to a value is added here too.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import hypothesis.strategies as st

import trio_runner._core.values as v

# Few and short on purpose: repeated names and ids are where faults are.
NAMES: Final = ("read", "search", "files__read", "weather")
#: Text that no message may consist of, or that does not encode.
BAD_TEXTS: Final = ("", "   ", "\n\t", "bad \ud800 text", "\udfff")

# --- JSON -----------------------------------------------------------------------


def safe_texts(*, max_size: int = 6) -> st.SearchStrategy[str]:
    """Text that encodes as UTF-8; may be empty or blank."""
    # A small alphabet, with one, two, three and four byte characters: much quicker to draw
    # than all of Unicode, and it finds the same faults.
    return st.text("ab \n\0é€😀", max_size=max_size)


def visible_texts() -> st.SearchStrategy[str]:
    """Text that encodes as UTF-8 and is not blank."""
    return safe_texts().map(_with_a_letter)


def _with_a_letter(text: str) -> str:
    return text if text.strip() else f"{text}x"


def json_values() -> st.SearchStrategy[v.JSONValue]:
    """Any small plain JSON value."""
    atoms: st.SearchStrategy[Any] = (
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | safe_texts()
    )

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=3) | st.dictionaries(safe_texts(), inner, max_size=3)

    return st.recursive(atoms, nested, max_leaves=3)


def json_objects() -> st.SearchStrategy[v.JSONObject]:
    """A small plain JSON object, such as the arguments of a call."""
    return st.dictionaries(safe_texts(), json_values(), max_size=3)


# --- the values of a valid history ----------------------------------------------


def contents() -> st.SearchStrategy[tuple[v.ContentBlock, ...]]:
    """Content that is not empty: text that is not blank, or another block."""
    media: st.SearchStrategy[v.ContentBlock] = (
        st.builds(v.ImageContent, st.just("aGk="), st.just("image/png"))
        | st.builds(v.AudioContent, st.just("aGk="), st.just("audio/wav"))
        | st.builds(
            v.ResourceLink,
            st.just("file:///a"),
            visible_texts(),
            description=st.none() | safe_texts(),
        )
        | st.builds(v.EmbeddedResource, st.just("file:///a"), text=st.none() | safe_texts())
    )
    counted = media | st.builds(v.TextContent, visible_texts())
    others = st.lists(counted | st.builds(v.TextContent, safe_texts()), max_size=2)
    return st.builds(_joined, counted, others)


def _joined(first: v.ContentBlock, rest: list[v.ContentBlock]) -> tuple[v.ContentBlock, ...]:
    return (first, *rest)


def tool_calls() -> st.SearchStrategy[v.ToolCall]:
    """A call as a history holds it; two of them may have one id."""
    return st.builds(
        v.ToolCall,
        st.sampled_from(("c1", "c2", "toolu_01-A", "call_3")),
        st.sampled_from(NAMES),
        json_objects(),
        st.sampled_from((None, None, "expected a JSON object, found null")),
    )


def tool_results() -> st.SearchStrategy[v.ToolResult]:
    """A result with any status, not empty; its ``call_id`` and ``name`` are still to be set."""
    return st.builds(
        v.ToolResult,
        st.just("c1"),
        st.just("read"),
        contents(),
        st.none() | json_objects(),
        st.sampled_from(v.CallStatus),
        st.none() | st.floats(0, 1000),
    )


# Strategies are made once: making one costs more than drawing from it.
_CONTENTS: Final = contents()
_MAYBE_CONTENTS: Final[st.SearchStrategy[tuple[v.ContentBlock, ...]]] = st.just(()) | _CONTENTS
_CALLS: Final = st.lists(tool_calls(), min_size=1, max_size=3)
_RESULTS: Final = tool_results()
_COIN: Final = st.booleans()
_PARTS: Final = st.sampled_from(("user", "assistant", "step", "step"))


@st.composite
def valid_histories(
    draw: st.DrawFn, *, min_parts: int = 0, max_parts: int = 5
) -> tuple[v.Message, ...]:
    """A valid history of ``min_parts`` to ``max_parts`` steps and single messages."""
    messages: list[v.Message] = []
    used = 0
    for part in draw(st.lists(_PARTS, min_size=min_parts, max_size=max_parts)):
        if part == "user":
            messages.append(v.Message.user(draw(_CONTENTS)))
        elif part == "assistant":
            messages.append(v.Message.assistant(draw(_CONTENTS)))
        else:
            calls = [
                attrs.evolve(call, id=f"c{used + number}")
                for number, call in enumerate(draw(_CALLS))
            ]
            used += len(calls)
            results = [
                attrs.evolve(draw(_RESULTS), call_id=call.id, name=call.name) for call in calls
            ]
            messages.append(v.Message.assistant(draw(_MAYBE_CONTENTS), tool_calls=calls))
            messages.append(v.Message.user(draw(_MAYBE_CONTENTS), tool_results=results))
    return tuple(messages)
