"""normalise: whatever a model returns becomes a reply the history may hold."""

from __future__ import annotations

import datetime
import types
from typing import Any

import pytest
from hypothesis import given

import trio_runner._core.errors as errors
import trio_runner._core.json_data as json_data
import trio_runner._core.normalise as normalise
import trio_runner._core.validity as validity
import trio_runner._core.values as v
import trio_runner.testing.strategies as strategies

NORMAL = ("endTurn", "stopSequence", "toolUse", "pause", "continue")
STOPPED = ("maxTokens", "safety", "error", "cancelled", "timeout")


def raw_call(call_id: object = "c1", name: object = "read", arguments: object = None) -> v.ToolCall:
    values: Any = (call_id, name, arguments)
    return v.ToolCall(*values)


def reply_with(*calls: v.ToolCall, stop_reason: Any = v.StopReason.TOOL_USE) -> v.Message:
    return v.Message("assistant", "text", tool_calls=calls, stop_reason=stop_reason)


def normal_ids(ids: list[Any], used: set[str] | None = None) -> list[str]:
    reply = reply_with(*[raw_call(one) for one in ids])
    return [call.id for call in normalise.normalise_reply(reply, used or set()).tool_calls]


def normal_call(arguments: object) -> v.ToolCall:
    [call] = normalise.normalise_reply(reply_with(raw_call(arguments=arguments)), set()).tool_calls
    return call


# --- what is refused ------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, "a NoneType"),
        ("hello", "a str"),
        ({"role": "assistant"}, "a dict"),
        (v.Message.user("hi"), "role 'user'"),
        (v.Message(None, "hi"), "role type NoneType"),  # type: ignore[arg-type]
        (
            v.Message("assistant", "hi", tool_results=[v.ToolResult("a", "b", "c")]),
            "1 tool results",
        ),
        (v.Message("assistant", "hi", tool_calls=[{"id": "a"}]), "a dict"),  # type: ignore[list-item]
        (v.Message("assistant", "hi", stop_reason=3), "a int"),  # type: ignore[arg-type]
        (v.Message("assistant", v.TextContent(None)), "text is a NoneType"),  # type: ignore[arg-type]
        (v.Message("assistant", v.ImageContent(b"x", "y")), "data is a bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_reply_is_refused_by_what_it_is(value: Any, found: str) -> None:
    with pytest.raises(errors.ModelReplyError, match=found):
        normalise.normalise_reply(value, set())


# --- stop reasons ---------------------------------------------------------------


@pytest.mark.parametrize("reason", [*NORMAL, None, "weird", ""])
def test_kF4_calls_with_a_normal_reason_are_tool_use(reason: str | None) -> None:
    reply = normalise.normalise_reply(reply_with(raw_call(), stop_reason=reason), set())

    assert reply.stop_reason is v.StopReason.TOOL_USE
    assert len(reply.tool_calls) == 1


@pytest.mark.parametrize("reason", STOPPED)
def test_kF2_a_reply_that_was_stopped_keeps_its_reason_and_its_calls(reason: str) -> None:
    for given_reason in (reason, v.StopReason(reason)):
        message = reply_with(raw_call(arguments='{"cut": '), stop_reason=given_reason)
        reply = normalise.normalise_reply(message, set())

        assert reply.stop_reason is v.StopReason(reason)
        [call] = reply.tool_calls
        assert call.arguments == {"invalid_arguments": '{"cut": '}


@pytest.mark.parametrize("text", ["text", "", "  "])
def test_kF4_tool_use_without_calls_ends_the_turn(text: str) -> None:
    message = v.Message("assistant", text, stop_reason=v.StopReason.TOOL_USE)

    reply = normalise.normalise_reply(message, set())

    assert reply.stop_reason is v.StopReason.END_TURN
    assert not validity.message_problems(reply)


@pytest.mark.parametrize(
    ("given_reason", "expected", "kept"),
    [
        (None, v.StopReason.END_TURN, None),
        ("pause", v.StopReason.PAUSE, None),
        ("max_tokens", v.StopReason.MAX_TOKENS, None),  # by name too: else cut calls would run
        ("END_TURN", v.StopReason.END_TURN, None),
        ("weird", v.StopReason.END_TURN, "weird"),
        ("", v.StopReason.END_TURN, ""),
        ("\ud800", v.StopReason.END_TURN, "\ufffd"),
        ("x" * 10_000, v.StopReason.END_TURN, "x" * 130 + " ... " + "x" * 60),
    ],
)
def test_an_unknown_reason_counts_as_the_end_and_is_kept_in_meta(
    given_reason: Any, expected: v.StopReason, kept: str | None
) -> None:
    message = v.Message("assistant", "text", stop_reason=given_reason, meta={"a": 1})

    reply = normalise.normalise_reply(message, set())

    assert reply.stop_reason is expected
    assert reply.meta == ({"a": 1} if kept is None else {"a": 1, "stop_reason": kept})


# --- content --------------------------------------------------------------------


@pytest.mark.parametrize("content", [(), "", " \n\t", [v.TextContent(""), v.TextContent(" ")]])
def test_an_empty_reply_gets_a_placeholder_and_a_mark(content: Any) -> None:
    usage = v.Usage(1, 2)
    message = v.Message.assistant(content, usage=usage, meta={"a": 1})

    reply = normalise.normalise_reply(message, set())

    assert reply.content == (v.TextContent("(empty reply)"),)
    assert reply.meta == {"a": 1, "empty_reply": True}
    assert reply.usage is usage
    assert message.meta == {"a": 1}


@pytest.mark.parametrize(
    "message",
    [
        v.Message.assistant("fine"),
        v.Message.assistant(v.ImageContent("aGk=", "image/png")),
        v.Message.assistant("cut", stop_reason=v.StopReason.MAX_TOKENS, meta={"a": [1]}),
    ],
)
def test_a_normal_reply_without_calls_is_returned_itself(message: v.Message) -> None:
    assert normalise.normalise_reply(message, {"c1"}) is message


def test_calls_without_text_get_no_placeholder() -> None:
    reply = normalise.normalise_reply(v.Message.assistant(tool_calls=[raw_call()]), set())

    assert reply.content == ()
    assert "empty_reply" not in reply.meta


def test_text_of_every_block_is_made_safe() -> None:
    blocks = (
        v.TextContent("a\ud800", meta={"k": "\ud800"}),
        v.TextContent("good"),
        v.ResourceLink("u", "n\ud800", title="\ud800", icons=({"src": "\ud800"},)),
        v.EmbeddedResource("u", text="\udfff", annotations={"bad": object()}),
    )

    reply = normalise.normalise_reply(v.Message.assistant(blocks), set())

    assert reply.content == (
        v.TextContent("a\ufffd", meta={"k": "\ufffd"}),
        v.TextContent("good"),
        v.ResourceLink("u", "n\ufffd", title="\ufffd", icons=({"src": "\ufffd"},)),
        v.EmbeddedResource("u", text="\ufffd", annotations=None),
    )
    assert reply.content[1] is blocks[1]


def test_side_fields_of_a_block_that_are_no_json_are_left_out() -> None:
    bad: Any = {"icons": (object(),), "annotations": ["x"]}
    block = v.ResourceLink("u", "n", meta={"a": 1}, **bad)
    worse: Any = {"icons": "x\ud800"}

    assert normalise.safe_block(block) == v.ResourceLink("u", "n", meta={"a": 1})
    assert normalise.safe_block(v.ResourceLink("u", "n", **worse)) == v.ResourceLink("u", "n")


def test_what_is_no_block_cannot_be_made_safe() -> None:
    block: Any = "text"

    assert normalise.safe_block(block) is None


def test_meta_that_cannot_be_stored_names_what_it_lost() -> None:
    meta = {"id": "r1", "raw": object(), "when\ud800": "\ud800", 3: (1,)}
    message = v.Message("assistant", "text", meta=meta)  # type: ignore[arg-type]

    reply = normalise.normalise_reply(message, set())

    assert reply.meta["id"] == "r1"
    assert reply.meta["raw"].startswith("(not stored: found a value of type object")
    assert reply.meta["when\ufffd"] == "\ufffd"
    assert reply.meta["3"] == [1]
    assert json_data.is_plain_json(reply.meta)


def test_a_reply_is_never_a_template() -> None:
    message = v.Message.assistant("text", template=True)

    assert normalise.normalise_reply(message, set()) == v.Message.assistant("text")


# --- ids ------------------------------------------------------------------------


@pytest.mark.parametrize("call_id", ["a", "toolu_01-XyZ", "x" * 64, "0"])
def test_a_legal_unused_id_is_kept(call_id: str) -> None:
    assert normal_ids([call_id]) == [call_id]


@pytest.mark.parametrize(
    "call_id", ["", " ", None, 7, " a", "a\n", "x" * 65, "f.g:0", "é", "\ud800", ["a"], b"a"]
)
def test_kC2_an_id_that_some_provider_refuses_is_replaced(call_id: object) -> None:
    assert normal_ids([call_id]) == ["call_1"]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["a", "a"], ["a", "call_2"]),
        (["a", "a", "a"], ["a", "call_2", "call_3"]),
        (["", ""], ["call_1", "call_2"]),
        ([None, "b", None], ["call_1", "b", "call_3"]),
        # What would be invented for the first is what the second was given.
        (["", "call_1"], ["call_2", "call_1"]),
        (["", "call_1", "call_2"], ["call_4", "call_1", "call_2"]),
    ],
)
def test_kC2_ids_of_one_reply_become_unique(ids: list[Any], expected: list[str]) -> None:
    assert normal_ids(ids) == expected
    assert normal_ids(ids) == expected


def test_kC2_an_id_of_an_earlier_step_is_replaced_by_one_that_is_new() -> None:
    assert normal_ids(["a", "b"], {"a"}) == ["call_2", "b"]
    assert normal_ids(["a"], {"a", "call_3"}) == ["call_4"]


class CountingIds(set[str]):
    lookups = 0

    def __contains__(self, item: object) -> bool:
        self.lookups += 1
        return super().__contains__(item)


def test_kC2_a_new_id_costs_few_lookups_whatever_the_earlier_ids_are() -> None:
    # The worst case: the numbers that come first are all taken.
    used = CountingIds(f"call_{number}" for number in range(5000, 15_000))
    assert len(used) == 10_000

    [invented] = normal_ids(["call_5000"], used)

    assert invented not in set(used)
    assert used.lookups < 40


def test_kC2_a_model_that_always_gives_one_id_costs_no_more_in_the_end() -> None:
    used = CountingIds()
    for _ in range(2000):
        used.update(normal_ids(["call_0"], used))

    assert len(used) == 2000
    assert used.lookups < 3 * 2000


# --- names ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read", "read"),
        ("READ", "READ"),
        (" read ", "read"),
        ("files.read", "files_read"),
        ("a b", "a_b"),
        ("é", "_"),
        ("\ud800", "_"),
        ("x" * 65, "x" * 64),
        ("", "unnamed_tool"),
        ("  ", "unnamed_tool"),
        (None, "unnamed_tool"),
        (3, "unnamed_tool"),
    ],
)
def test_kF7_the_stored_name_is_one_that_providers_take(name: object, expected: str) -> None:
    [call] = normalise.normalise_reply(reply_with(raw_call(name=name)), set()).tool_calls

    assert call.name == expected


# --- arguments ------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [None, "", "  ", "\n\t", "{}", " {} ", {}])
def test_kF1_no_arguments_in_any_spelling_are_an_empty_object(arguments: object) -> None:
    call = normal_call(arguments)

    assert call.arguments == {}
    assert call.arguments_error is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        (types.MappingProxyType({"a": (1, 2)}), {"a": [1, 2]}),
        # The whole object encoded twice is decoded once more,
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('"{}"', {}),
        ('" {\\"a\\": 1}"', {"a": 1}),
        # but a text inside that looks like JSON stays a text.
        ('{"a": "{\\"b\\": 1}"}', {"a": '{"b": 1}'}),
        ({"a": "[1, 2]"}, {"a": "[1, 2]"}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
        ({"a": "\ud800"}, {"a": "\ufffd"}),
        ('{"a": 1.5e3, "b": [null, true]}', {"a": 1500.0, "b": [None, True]}),
        ('{"a": ' + "[" * 99 + "]" * 99 + "}", None),
    ],
)
def test_kF1_an_object_is_kept(arguments: object, expected: dict[str, Any] | None) -> None:
    call = normal_call(arguments)

    assert call.arguments_error is None
    if expected is not None:
        assert call.arguments == expected


def object_nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


BAD_ARGUMENTS: list[Any] = [
    pytest.param('{"a": ', "text that is not JSON", id="cut"),
    pytest.param('{"a": 1,}', "text that is not JSON", id="trailing-comma"),
    pytest.param('{"a": 1} x', "text that is not JSON", id="text-after"),
    pytest.param("null", "found null", id="null"),
    pytest.param("[]", "found a list", id="list"),
    pytest.param('"x"', "found a text", id="text"),
    pytest.param('""', "found a text", id="empty-text"),
    pytest.param("3", "found a number", id="int"),
    pytest.param("3.5", "found a number", id="float"),
    pytest.param("true", "found true or false", id="bool"),
    pytest.param("NaN", "with NaN", id="nan"),
    pytest.param('{"a": Infinity}', "with Infinity", id="infinity"),
    pytest.param('{"a": 1e999}', "$.a: found inf", id="too-large"),
    pytest.param('{"a": 1, "b": 2, "a": 3}', "the key 'a' twice", id="repeated-key"),
    pytest.param('"{\\"a\\": "', "text that is not JSON", id="twice-and-cut"),
    pytest.param('"{\\"a\\": \\"x}"', "text that is not JSON", id="inner-cut"),
    pytest.param('"\\"{}\\""', "found a text", id="encoded-three-times"),
    pytest.param("junk" * 250_000, "text that is not JSON", id="megabyte-of-junk"),
    pytest.param("\ud800", "text that is not JSON", id="surrogate"),
    pytest.param(object_nested(101), "nested too deeply", id="deep"),
    pytest.param(object_nested(100_000), "nested too deeply", id="very-deep"),
    pytest.param("[" * 1_000_000, "nested too deeply", id="megabyte-of-brackets"),
    pytest.param('{"a": ' + "1" * 5000 + "}", "thousands of digits", id="huge-number"),
    pytest.param('{"a": ' + "1" * 4200 + "}", "thousands of digits", id="large-number"),
    pytest.param([], "type list", id="a-list"),
    pytest.param(b"{}", "type bytes", id="bytes"),
    pytest.param(0, "type int", id="zero"),
    pytest.param(False, "type bool", id="false"),
    pytest.param(10**5000, "type int", id="a-huge-int"),
    pytest.param({"a": float("nan")}, "$.a: found nan", id="mapping-nan"),
    pytest.param({1: 2}, "key of type int", id="mapping-key"),
    pytest.param({"when": datetime.date(2026, 1, 1)}, "$.when", id="mapping-date"),
    pytest.param({"a": {"b": object(), "c": [None, True, 1.5, 10**5000]}}, "$.a.b", id="object"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_ARGUMENTS)
def test_kF1_bad_arguments_are_an_error_with_a_bounded_extract(
    arguments: object, words: str
) -> None:
    call = normal_call(arguments)

    assert call.arguments_error is not None
    assert "expected a JSON object" in call.arguments_error
    assert words in call.arguments_error
    assert len(call.arguments_error) < 700
    # Never {} in place of garbage, and what is stored can be sent again.
    [(key, extract)] = call.arguments.items()
    assert key == "invalid_arguments"
    assert isinstance(extract, str)
    assert 0 < len(extract) <= 200
    assert extract in call.arguments_error
    assert not validity.call_problems(call)


def test_kF1_the_extract_shows_the_beginning_and_the_end() -> None:
    text = '{"city": "Oslo", "rows": [' + "1," * 1000 + '"the end'

    extract = normal_call(text).arguments["invalid_arguments"]

    assert isinstance(extract, str)
    assert extract.startswith('{"city": "Oslo"')
    assert extract.endswith('"the end')


def test_the_extract_of_a_value_runs_none_of_its_code() -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert normalise.bounded_extract({"a": Nasty()}) == "{'a': <Nasty>}"
    assert normalise.bounded_extract([None, True, 1.5, 2]) == "[None, True, 1.5, 2]"
    assert normalise.bounded_extract(10**5000) == "<a huge int>"


def test_kF1_one_bad_call_leaves_the_others_alone() -> None:
    reply = reply_with(raw_call("a", arguments="null"), raw_call("b", arguments='{"x": 1}'))

    bad, good = normalise.normalise_reply(reply, set()).tool_calls

    assert bad.arguments_error is not None
    assert good == v.ToolCall("b", "read", {"x": 1})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("the provider cut it", "the provider cut it"),
        ("\ud800", "\ufffd"),
        (ValueError("x"), "the model adapter refused them (<ValueError>)"),
    ],
)
def test_an_error_the_adapter_gave_is_kept(error: Any, expected: str) -> None:
    for arguments in ({"a": 1}, None, "null"):
        values: Any = ("c1", "read", arguments, error)
        reply = normalise.normalise_reply(reply_with(v.ToolCall(*values)), set())

        assert reply.tool_calls[0].arguments_error == expected
        assert not validity.call_problems(reply.tool_calls[0])


def test_the_arguments_are_not_shared_with_the_model() -> None:
    arguments: dict[str, Any] = {"rows": [1], "inner": {"a": 1}}
    call = normal_call(arguments)

    arguments["rows"].append(2)
    arguments["inner"]["a"] = 2
    arguments["more"] = 3

    assert call.arguments == {"rows": [1], "inner": {"a": 1}}


# --- all of it ------------------------------------------------------------------


@given(strategies.replies())
def test_every_reply_becomes_valid_and_stays_as_it_is(message: v.Message) -> None:
    used = {"a", "call_1"}

    reply = normalise.normalise_reply(message, used)

    assert not validity.message_problems(reply)
    ids = [call.id for call in reply.tool_calls]
    assert len(set(ids)) == len(ids) == len(message.tool_calls)
    assert not used & set(ids)
    assert normalise.normalise_reply(message, used) == reply
    assert normalise.normalise_reply(reply, used) == reply
    if reply.stop_reason is v.StopReason.TOOL_USE:
        assert reply.tool_calls
    elif reply.tool_calls:
        assert reply.stop_reason is not None
        assert reply.stop_reason.value in STOPPED
