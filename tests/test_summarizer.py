"""`ModelSummarizer`: what the model is shown, which answers are summaries, and what they count."""

from __future__ import annotations

from typing import Any

import pytest

import trio_runner as tr
from trio_runner._core.transcript import transcript
from trio_runner.testing import ScriptedModel, call

CALL = tr.ToolCall("c1", "read", {"path": "/é"})
MESSAGES = (
    tr.Message.user("earlier " * 100, meta={"is_summary": True}),
    tr.Message.user([tr.TextContent("look"), tr.ImageContent("aGk=", "image/png")]),
    tr.Message.assistant("I read it.", tool_calls=[CALL]),
    tr.Message.user(
        tool_results=[tr.ToolResult("c1", "read", "x" * 500, status=tr.CallStatus.ERROR)]
    ),
    tr.Message.user(
        [
            tr.ResourceLink("file:///a", "a"),
            tr.EmbeddedResource("file:///b", text="inside"),
            tr.EmbeddedResource("file:///c", blob="aGk="),
            tr.AudioContent("aGk=", "audio/wav"),
        ]
    ),
)


def request(*messages: tr.Message, target: int = 1_000) -> tr.SummaryRequest:
    return tr.SummaryRequest(messages or MESSAGES, "on_demand", target)


def test_a_transcript_says_who_said_and_did_what_and_bounds_each_part() -> None:
    lines = transcript(MESSAGES, 100).split("\n\n")

    assert lines == [
        # A summary is never cut: what it leaves out is gone.
        "Summary of what was before: " + "earlier " * 100,
        "User: look\n[image/png]",
        "Assistant: I read it.",
        'Assistant calls read({"path": "/é"})',
        "Result of read (error): " + "x" * 50 + " … [500 characters] … " + "x" * 50,
        "User: [file:///a]\n[file:///b]\ninside\n[file:///c]\n[audio/wav]",
    ]


async def test_a_model_is_asked_once_without_tools() -> None:
    model = ScriptedModel([tr.Message.assistant("All read.", usage=tr.Usage(70, 9))])
    params = tr.RequestParams(model_settings={"temperature": 0})
    summarizer = tr.ModelSummarizer(model, params=params)
    summary = await summarizer.summarise(request())

    [asked] = model.requests
    assert asked.tools == ()
    assert asked.history == asked.delta
    assert len(asked.history) == 1
    assert asked.history[0].text.startswith("Summarise this conversation in at most 750 words.")
    assert "Assistant calls read" in asked.history[0].text
    assert asked.instruction is not None
    assert "Invent nothing" in asked.instruction
    assert asked.params.model_settings == {"temperature": 0}
    assert asked.params.tool_timeout is None  # every setting is resolved
    assert summary.role == "user"
    assert summary.text == "Summary of the conversation so far:\nAll read."
    assert summary.usage == tr.Usage(70, 9)


async def test_its_words_may_be_ones_own() -> None:
    model = ScriptedModel(["Tout lu."])
    summarizer = tr.ModelSummarizer(model, instruction="Résume.", heading="")

    assert (await summarizer.summarise(request())).text == "Tout lu."
    assert model.requests[0].instruction == "Résume."


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (tr.Message.assistant(), "no text"),
        (tr.Message.assistant("  \n"), "no text"),
        (tr.Message.assistant([tr.ImageContent("aGk=", "image/png")]), "no text"),
        (tr.Message.assistant("half", stop_reason=tr.StopReason.MAX_TOKENS), "MAX_TOKENS"),
        (tr.Message.assistant("no", stop_reason=tr.StopReason.SAFETY), "SAFETY"),
        (tr.Message.assistant("wait", stop_reason=tr.StopReason.PAUSE), "PAUSE"),
        (tr.Message.assistant("so", tool_calls=[call("read")]), "TOOL_USE"),
    ],
    ids=["empty", "blank", "an image", "cut", "refused", "paused", "a call"],
)
async def test_what_is_no_whole_summary_is_refused(reply: tr.Message, says: str) -> None:
    summarizer = tr.ModelSummarizer(ScriptedModel([reply]))

    with pytest.raises(tr.ModelReplyError, match=says):
        await summarizer.summarise(request())


def test_settings_that_cannot_work_are_refused_at_once() -> None:
    anything: Any = object()
    with pytest.raises(TypeError, match="async def reply"):
        tr.ModelSummarizer(anything)
    with pytest.raises(ValueError, match="max_part_characters"):
        tr.ModelSummarizer(ScriptedModel([]), max_part_characters=0)


# --- what it counts -----------------------------------------------------------------


def says(text: str, tokens: int) -> tr.Message:
    return tr.Message.assistant(text, usage=tr.Usage(tokens, 1))


class Named(ScriptedModel):
    name = "large"


async def test_the_agents_own_model_writes_by_default_and_its_tokens_count_in_scopes() -> None:
    model = Named([says("a", 100), says("b", 100), says("c", 900), says("short", 700)])
    agent = tr.ToolAgent("a", model=model, compaction=tr.Compaction(context_window=1_000))
    prices = {"large": tr.Price(input=1.0, output=0.0)}
    with tr.limits(prices=prices) as scope:
        for text in ("one", "two", "three"):
            await agent.generate(text)

    assert agent.history[0].text == "Summary of the conversation so far:\nshort"
    assert scope.spent.model_calls == 4
    assert scope.spent.usage == tr.Usage(1_800, 4)
    assert scope.spent.cost == pytest.approx(1_800 * 1.0 / 1_000_000)
    # The turn itself took what it took.
    last = agent.last_turn
    assert last is not None
    assert last.usage == tr.Usage(900, 1)


async def test_a_model_of_its_own_has_its_own_price() -> None:
    class Small(ScriptedModel):
        name = "small"

    prices = {"small": tr.Price(input=2.0, output=0.0)}
    summarizer = tr.ModelSummarizer(Small([says("short", 500)]))
    with tr.limits(prices=prices) as scope:
        await summarizer.summarise(request())
    assert scope.spent.cost == pytest.approx(500 * 2.0 / 1_000_000)

    with tr.limits(prices={}), pytest.raises(tr.UnknownPriceError):
        await summarizer.summarise(request())


async def test_a_limit_that_is_reached_keeps_it_from_being_asked_and_the_answer_stays() -> None:
    model = ScriptedModel([says("a", 100), says("b", 100), says("c", 900)])
    agent = tr.ToolAgent("a", model=model, compaction=tr.Compaction(context_window=1_000))
    with tr.limits(model_calls=3) as scope:
        for text in ("one", "two"):
            await agent.generate(text)
        assert (await agent.generate("three")).text == "c"
        with pytest.raises(tr.CompactionError, match="limit of 3 model calls"):
            await agent.compact(keep_turns=0)

    assert len(model.requests) == 3
    assert scope.spent.model_calls == 3
    assert len(agent.history) == 6
