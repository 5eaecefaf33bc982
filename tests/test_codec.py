"""Records as JSON text: nothing is lost on the way, and nothing that is not understood is taken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

import trio_runner as tr
import trio_runner._journal.codec as codec
import trio_runner.records as r
import trio_runner.testing.strategies as strategies
from trio_runner._journal.codec import decode_record, encode_record

VERSION_1 = Path(__file__).parent / "data" / "records-v1.jsonl"
VERSION_2 = Path(__file__).parent / "data" / "records-v2.jsonl"
VERSION_3 = Path(__file__).parent / "data" / "records-v3.jsonl"

numbers = st.integers(0, 5)
words = strategies.safe_texts()
messages = strategies.histories(max_parts=2)
usages = st.builds(tr.Usage, numbers, numbers, numbers)
replies = st.builds(
    tr.Message,
    st.just("assistant"),
    strategies.contents(),
    st.lists(strategies.tool_calls(), max_size=2),
    stop_reason=st.sampled_from(tr.StopReason),
    usage=st.none() | usages,
    meta=strategies.json_objects(),
    template=st.booleans(),
)
ranges = st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple)
records: st.SearchStrategy[r.Record] = st.one_of(
    st.builds(r.SessionOpened, words),
    st.builds(r.TurnStarted, numbers, messages, st.booleans()),
    st.builds(r.ModelFinished, numbers, numbers, replies, st.none() | numbers),
    st.builds(r.ToolStarted, numbers, numbers, words, words, words, words, st.booleans(), numbers),
    st.builds(r.ToolFinished, numbers, numbers, strategies.tool_results(), messages),
    st.builds(r.InputAdded, numbers, messages),
    st.builds(r.HistoryReplaced, messages),
    st.builds(r.TurnEnded, numbers, st.sampled_from(tr.EndReason)),
    st.builds(r.Compacted, numbers, numbers, replies, ranges),
    st.builds(r.Trimmed, numbers, ranges),
)
IN_VERSION_1 = (
    r.SessionOpened, r.TurnStarted, r.ModelFinished, r.ToolStarted,
    r.ToolFinished, r.InputAdded, r.HistoryReplaced, r.TurnEnded,
)  # fmt: skip
SINCE_VERSION_2 = (r.Compacted, r.Trimmed)
SINCE_VERSION_3 = (r.CallHeld, r.CallApproved, r.CallEdited, r.AnswerRefused, r.PassedThrough)
KINDS = (*IN_VERSION_1, *SINCE_VERSION_2, *SINCE_VERSION_3)


@given(records)
def test_what_was_encoded_is_decoded(record: r.Record) -> None:
    assert decode_record(encode_record(record)) == record


@given(records)
def test_a_record_is_one_line_of_json(record: r.Record) -> None:
    body = encode_record(record)

    assert b"\n" not in body
    # An older reader reads on until it comes to a kind that it does not know.
    since = 3 if type(record) in SINCE_VERSION_3 else 2 if type(record) in SINCE_VERSION_2 else 1
    if type(record) is r.Compacted and record.kept:
        since = 3  # a field that came later, where it says something
    assert json.loads(body)["v"] == since


def result_with(value: Any) -> r.ToolFinished:
    return r.ToolFinished(1, 0, tr.ToolResult("c", "n", "text", value))


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        10**3900,
        -(2**64),
        2**53 + 1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        0.1,
        1.0,
        True,
        '\0 \u2028 \x7f \\ " / é 😀 \ufffd',
        {"": {"v": 1, "kind": "x", "type": "y"}},
        [],
        {},
    ],
    ids=repr,
)
def test_every_plain_value_comes_back_with_its_type(value: Any) -> None:
    found = decode_record(encode_record(result_with(value)))

    assert isinstance(found, r.ToolFinished)
    assert repr(found.result.structured_content) == repr(value)


def test_the_deepest_value_that_is_allowed_comes_back() -> None:
    record = result_with(nested(100))

    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "record",
    [
        r.SessionOpened("lone \ud800"),
        result_with({"lone": "\udfff"}),
        result_with(object()),
        result_with({1: 2, "x": {3, 4}}),
        result_with(b"bytes"),
        result_with(math.nan),
        result_with(nested(5000)),
    ],
    ids=["agent", "surrogate", "object", "keys", "bytes", "nan", "deep"],
)
def test_what_no_record_should_hold_is_written_all_the_same(record: r.Record) -> None:
    found = decode_record(encode_record(record))

    assert type(found) is type(record)
    assert decode_record(encode_record(found)) == found


# --- what a file holds ----------------------------------------------------------


def test_each_member_has_the_name_of_its_attribute() -> None:
    call = tr.ToolCall("c", "n", {"a": 1}, "bad")
    usage = tr.Usage(1, 2, 3)
    text = tr.TextContent("t", {"a": 1}, {"m": 1})
    message = tr.Message("assistant", [text], [call], stop_reason=tr.StopReason.TOOL_USE,
                         usage=usage, meta={"m": 1}, template=True)  # fmt: skip
    tree = json.loads(encode_record(r.ModelFinished(1, 2, message, 3)))

    assert list(tree) == ["v", "kind", *names(r.ModelFinished)]
    assert set(tree["message"]) == {*names(tr.Message)} - {"tool_results"}  # its default
    assert list(tree["message"]["tool_calls"][0]) == names(tr.ToolCall)
    assert list(tree["message"]["usage"]) == names(tr.Usage)
    assert list(tree["message"]["content"][0]) == ["type", *names(tr.TextContent)]


def names(cls: type[Any]) -> list[str]:
    return [field.name for field in attrs.fields(cls)]


def test_every_kind_of_record_and_block_has_its_word() -> None:
    assert set(codec._KINDS.values()) == set(KINDS)
    assert len(codec._BLOCK_TYPES) == 5
    assert set(codec._BLOCK_TYPES.values()) == set(tr.ContentBlock.__args__)


def test_no_field_is_called_like_a_member_of_the_format() -> None:
    assert [name for kind in KINDS for name in names(kind) if name in {"v", "kind"}] == []
    assert [name for kind in codec._BLOCK_TYPES.values() for name in names(kind)
            if name == "type"] == []  # fmt: skip


WEATHER = tr.ToolCall("c1", "get_weather", {"city": "Oslo", "days": [1, 2.5, True, None]})
BAD = tr.ToolCall("c2", "get_weather", {"invalid_arguments": "{"}, "expected a JSON object")
#: What the lines of records-v1.jsonl say, with every field written out.
SAID_IN_VERSION_1: list[r.Record] = [
    r.SessionOpened("weather"),
    r.TurnStarted(1, (tr.Message("user", (tr.TextContent("Oslo? é😀", None, None),), (), (), None,
                                 None, {}, template=False),), resumed=False),
    r.TurnStarted(2, (tr.Message("user", (tr.TextContent("system", {"audience": ["user"]},
                                                         {"k": None}),), (), (), None, None,
                                 {"source": "form"}, template=True),), resumed=True),
    r.ModelFinished(1, 0, tr.Message("assistant", "let me see", (WEATHER, BAD), (),
                                     tr.StopReason.TOOL_USE, tr.Usage(11, 7, 3),
                                     {"provider": "x"}), cap=None),
    r.ModelFinished(1, 1, tr.Message("assistant", "rain", (), (), tr.StopReason.END_TURN, None),
                    cap=2),
    r.ToolStarted(1, 0, "c1", "get_weather", "00ff", "1:0:c1", idempotent=False, attempt=1),
    r.ToolStarted(1, 0, "c2", "get_weather", "00ff", "1:0:c2", idempotent=True, attempt=2),
    r.ToolFinished(1, 0, tr.ToolResult("c1", "get_weather", (
        tr.TextContent("rain"),
        tr.ImageContent("aGk=", "image/png"),
        tr.AudioContent("aGk=", "audio/wav", None, {"n": 1}),
        tr.ResourceLink("file:///a", "a", "A", "d", "text/plain", 3, ({"src": "x"},)),
        tr.EmbeddedResource("file:///b", "t", None, "text/plain", {"m": 1}),
    ), {"degrees": -3}, tr.CallStatus.OK, 0.25, {"trace": "t"}),
        (tr.Message("user", (tr.EmbeddedResource("file:///c", None, "aGk="),)),)),
    r.ToolFinished(1, 0, tr.ToolResult("c2", "get_weather", "unknown", None,
                                       tr.CallStatus.UNKNOWN_AFTER_CRASH, None, {}), ()),
    r.InputAdded(1, (tr.Message.user("and Rome"),)),
    r.HistoryReplaced((tr.Message("user", (), (), (tr.ToolResult(
        "c1", "n", "x", None, tr.CallStatus.TIMED_OUT),)),)),
    r.TurnEnded(1, tr.EndReason.MAX_ITERATIONS),
]  # fmt: skip


def test_records_of_version_1_mean_what_they_meant() -> None:
    lines = VERSION_1.read_bytes().splitlines()

    assert [decode_record(line) for line in lines] == SAID_IN_VERSION_1
    assert {type(record) for record in SAID_IN_VERSION_1} == set(IN_VERSION_1)


#: What the lines of records-v2.jsonl say: the kinds that came with it.
SAID_IN_VERSION_2: list[r.Record] = [
    r.Compacted(12, 9, tr.Message("user", (tr.TextContent("So far: é😀"),), (), (), None, None,
                                  {"is_summary": True}, template=False)),
    r.Compacted(3, 3, tr.Message("assistant", "So far", (), (), tr.StopReason.END_TURN,
                                 tr.Usage(900, 20, 0), {"is_summary": True})),
    r.Trimmed(14, ((1, 3), (5, 9))),
]  # fmt: skip


def test_records_of_version_2_mean_what_they_meant() -> None:
    lines = VERSION_2.read_bytes().splitlines()

    assert [decode_record(line) for line in lines] == SAID_IN_VERSION_2
    assert {type(record) for record in SAID_IN_VERSION_2} == set(SINCE_VERSION_2)


#: What the lines of records-v3.jsonl say: the kinds and the field that came with it.
SAID_IN_VERSION_3: list[r.Record] = [
    r.CallEdited(2, 1, "c1", {"city": "Rome é", "days": [2, 1.5, None]}),
    r.AnswerRefused(2, (tr.Message("user", (tr.TextContent("Not JSON: é😀"),)),)),
    r.PassedThrough(3, tr.Message("assistant", "rain", (), (), tr.StopReason.END_TURN, None,
                                  {"passed_through": True})),
    r.Compacted(14, 9, tr.Message("user", (tr.TextContent("So far: é😀"),), (), (), None, None,
                                  {"is_summary": True}), ((5, 6), (7, 8))),
    r.CallHeld(2, 1, "c1", "approval", r.arguments_hash({"city": "Rome"})),
    r.CallHeld(2, 1, "c2", "external", r.arguments_hash({"city": "Rome"})),
    r.CallApproved(2, 1, "c1", r.arguments_hash({"city": "Rome"})),
]  # fmt: skip


def test_records_of_version_3_mean_what_they_meant() -> None:
    lines = VERSION_3.read_bytes().splitlines()

    assert [decode_record(line) for line in lines] == SAID_IN_VERSION_3
    kinds = {*SINCE_VERSION_3, r.Compacted}
    assert {type(record) for record in SAID_IN_VERSION_3} == kinds


# --- what is refused ------------------------------------------------------------


def test_a_record_of_a_newer_version_is_refused_with_both_versions() -> None:
    with pytest.raises(tr.JournalFormatError, match=r"version 4;.* reads up to 3"):
        decode_record(b'{"v":4,"kind":"a_new_one","x":1}')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no JSON"),
        (b'{"v":1,"kind":"turn_ended"', "no JSON"),
        (b"[" * 5000, "no JSON"),
        (b"[1]", "expected an object"),
        (b'{"kind":"turn_ended","turn":1,"end_reason":"answered"}', "schema version None"),
        (b'{"v":0,"kind":"turn_ended"}', "schema version 0"),
        (b'{"v":true,"kind":"turn_ended"}', "schema version True"),
        (b'{"v":1,"kind":"turn_finished"}', "kind 'turn_finished'"),
        (b'{"v":1}', "kind None"),
        (b'{"v":1,"kind":["turn_ended"]}', "kind "),
        (b'{"v":1,"kind":"turn_ended","turn":1}', "not whole"),
        (b'{"v":1,"kind":"turn_ended","turn":1,"end_reason":"bored"}', "not whole"),
        (b'{"v":1,"kind":"turn_ended","turn":1,"end_reason":"answered","x":1}', "not whole"),
        (b'{"v":2,"kind":"trimmed","before":3,"dropped":[[1]]}', "not whole"),
        (b'{"v":2,"kind":"compacted","before":3,"upto":2}', "not whole"),
        (b'{"v":1,"kind":"history_replaced","messages":[{"role":"user","x":1}]}', "not whole"),
        (b'{"v":1,"kind":"history_replaced","messages":[{"role":"tool"}]}', "not whole"),
        (
            b'{"v":1,"kind":"history_replaced","messages":[{"role":"user","content":[{"type":"t"}]}]}',
            "not whole",
        ),
    ],
)
def test_what_is_not_understood_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        decode_record(body)


def test_an_older_record_is_brought_up_to_date_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renamed(tree: dict[str, Any]) -> dict[str, Any]:
        return {**tree, "kind": tree["kind"].removeprefix("old_")}

    def numbered(tree: dict[str, Any]) -> dict[str, Any]:
        assert tree["kind"] == "turn_ended"  # the first step came first
        return {**tree, "turn": tree["turn"] + 1}

    monkeypatch.setattr(codec, "SCHEMA_VERSION", 3)
    monkeypatch.setattr(codec, "_UPGRADES", {1: renamed, 2: numbered})

    found = decode_record(b'{"v":1,"kind":"old_turn_ended","turn":1,"end_reason":"answered"}')

    assert found == r.TurnEnded(2, tr.EndReason.ANSWERED)
