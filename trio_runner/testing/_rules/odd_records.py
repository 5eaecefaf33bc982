"""Records with every field and every odd value that a journal must keep.

What may live here: the fixed list that `check_journal` stores, and the strict
comparison it makes afterwards (``1`` is not ``True``, a list is no tuple).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import attrs

import trio_runner._core.records as r
import trio_runner._core.values as v

#: Texts that get lost, cut or changed where they are taken for something else.
ODD_TEXTS: Final = (
    "",
    " ",
    "two\nlines\r\nand a tab\t",
    "a nul \x00 and an escape \x1b[0m",
    "é ü ß — € 😀 \u202e \u2028 \ufeff",
    "e\u0301",  # not normalised: it must not become é
    '"quoted" \\ {"json": true} %s {} <b>',
    "'; DROP TABLE records; --",
    "long " * 20_000,
)

#: Numbers that lose digits or their type where they pass a double or 64 bits.
ODD_NUMBERS: Final = (
    0,
    -1,
    2**53 + 1,
    -(2**63),
    2**64,
    10**30,
    0.1,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    1.0,
)


def odd_object() -> v.JSONObject:
    """A JSON object of odd values."""
    return {
        "": "an empty key",
        "texts": list(ODD_TEXTS[:-1]),
        "numbers": list(ODD_NUMBERS),
        "one and true": [1, True, 0, False, None],
        "empty": [[], {}, ""],
        "deep": {"a": {"b": {"c": [{"d": [1, [2, [3]]]}]}}},
        "é\n\x00": "an odd key",
    }


def every_block() -> tuple[v.ContentBlock, ...]:
    """A content block of each kind, with every field set, and some with few."""
    notes = {"audience": ["user"], "priority": 0.5}
    return (
        *[v.TextContent(text) for text in ODD_TEXTS],
        v.TextContent("noted", annotations=notes, meta={"a": [1, None]}),
        v.ImageContent("aGk=", "image/png", annotations=notes, meta={}),
        v.AudioContent("aGk=", "audio/wav", annotations=None, meta={"b": True}),
        v.ResourceLink(
            "file:///a b/ü",
            "name",
            title="title",
            description="",
            mime_type="text/plain",
            size=0,
            icons=({"src": "x"}, {}),
            annotations=notes,
            meta={"c": 1.0},
        ),
        v.ResourceLink("file:///bare", "bare"),
        v.EmbeddedResource("file:///t", text="", mime_type="text/plain", resource_meta={"d": 1}),
        v.EmbeddedResource("file:///b", blob="aGk=", annotations=notes, meta={"e": []}),
    )


def every_record() -> tuple[r.Record, ...]:
    """Records of every kind, with every status, stop reason and end reason."""
    blocks, odd = every_block(), odd_object()
    calls = [
        v.ToolCall("c1", "read", odd),
        v.ToolCall("c2", "read", {"invalid_arguments": "{"}, "expected a JSON object"),
        v.ToolCall("c-3_X", "n" * 64, {}),
    ]
    usage = v.Usage(2**40, 1, 0)
    results = [
        v.ToolResult(f"s{number}", "read", blocks[number % 9 :], odd, status, 0.1 * number, odd)
        for number, status in enumerate(v.CallStatus)
    ]
    bare = v.ToolResult("c2", "read", "text", None, v.CallStatus.NOT_STARTED, None)
    said = v.Message.user(blocks, meta=odd, template=True)
    answered = v.Message.user("late", tool_results=[*results, bare])
    replies = [
        v.Message.assistant("…", stop_reason=reason, usage=v.Usage(), meta={"raw": reason.value})
        for reason in v.StopReason
    ]
    asked = v.Message.assistant(blocks, tool_calls=calls, usage=usage, meta=odd)
    return (
        r.SessionOpened("agent é\n"),
        r.SessionOpened(""),
        r.TurnStarted(1, (said,)),
        r.TurnStarted(2**31, (), resumed=True),
        r.ModelFinished(1, 0, asked),
        *[r.ModelFinished(1, step, reply, cap=step or None) for step, reply in enumerate(replies)],
        r.ToolStarted(1, 0, "c1", "read", r.arguments_hash({"a": 1}), "1:0:c1"),
        r.ToolStarted(1, 0, "c2", "read", "0" * 64, "s:1:0:c2", idempotent=True, attempt=3),
        *[r.ToolFinished(1, 0, result) for result in results],
        r.ToolFinished(1, 0, bare, attached=(said, v.Message.user("picture"))),
        r.InputAdded(1, (said, answered)),
        r.CallHeld(1, 0, "c1", "approval", r.arguments_hash({})),
        r.CallHeld(1, 0, "c-3_X", "external", r.arguments_hash(odd)),
        r.CallApproved(1, 0, "c1", r.arguments_hash({})),
        r.CallEdited(1, 0, "c1", {}),
        r.CallEdited(1, 0, "c-3_X", odd),
        r.AnswerRefused(1, (said, v.Message.user("once more"))),
        r.PassedThrough(1, replies[0]),
        r.HistoryReplaced(()),
        r.HistoryReplaced((said, asked, answered)),
        r.Compacted(9, 7, said),
        r.Compacted(9, 7, said, ((1, 2), (4, 2**31))),
        r.Trimmed(2**31, ((1, 3), (4, 2**31))),
        *[r.TurnEnded(turn, reason) for turn, reason in enumerate(v.EndReason, start=1)],
    )


def simple_records(count: int, start: int = 0) -> list[r.Record]:
    """``count`` short records, each different."""
    return [r.SessionOpened(f"record {number}") for number in range(start, start + count)]


def difference(expected: object, found: object, path: str = "") -> str | None:
    """Where two values differ, and how; None when they are the same in value and type.

    Any mapping may stand for a dict; the order of its keys does not count.
    """
    here = path or "it"
    if _is_mapping(expected) and _is_mapping(found):
        mine, theirs = cast("Mapping[Any, Any]", expected), cast("Mapping[Any, Any]", found)
        if set(mine) != set(theirs):
            return f"{here} has the keys {_short(sorted(theirs))}, not {_short(sorted(mine))}"
        return _first(
            [(mine[key], theirs[key], f"{path}[{_short(key)}]") for key in mine],
        )
    if type(expected) is not type(found):
        return f"{here} is {_short(found)} ({type(found).__name__}), not {_short(expected)}"
    if attrs.has(type(expected)):
        names = [field.name for field in attrs.fields(cast("Any", type(expected)))]
        return _first(
            [(getattr(expected, n), getattr(found, n), f"{path}.{n}".lstrip(".")) for n in names]
        )
    if type(expected) in (list, tuple):
        one, other = cast("list[object]", expected), cast("list[object]", found)
        if len(one) != len(other):
            return f"{here} has {len(other)} items, not {len(one)}"
        return _first([(one[i], other[i], f"{path}[{i}]") for i in range(len(one))])
    # By repr, which tells 0.0 from -0.0.
    if repr(expected) != repr(found):
        return f"{here} is {_short(found)}, not {_short(expected)}"
    return None


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _first(parts: list[tuple[object, object, str]]) -> str | None:
    for expected, found, path in parts:
        problem = difference(expected, found, path)
        if problem is not None:
            return problem
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}…{text[-15:]}"
