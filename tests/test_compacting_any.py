"""Any history, any cut policy, a batch in flight: valid or unchanged, and no open call is lost.

Two places where a batch is in flight: a step that was left open and is kept aside while the
history in front of it is compacted on demand; and a turn that runs, compacted before each
follow-up and at its end, while somebody adds messages or replaces the history.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.testing.strategies as strategies
from trio_runner._core.compaction import is_summary, template_count
from trio_runner.testing import ScriptedModel, call


@attrs.frozen
class AnyPolicy:
    """Cuts anywhere: by the request, which refuses what parts a step, or past it.

    Attributes:
      stops: where, one after the other, relative to the history's length.
      kept: ranges in front of that.
      how: "default", "asks" the request, "forges" a cut, "raises" or takes "nothing".
    """

    how: str
    stops: tuple[int, ...]
    kept: tuple[tuple[int, int], ...]
    start: int

    def __call__(self, request: tr.CutRequest) -> tr.HistoryCut | None:
        size = len(request.history) + 1
        stop = self.stops[size % len(self.stops)] % (size + 1)
        match self.how:
            case "default":
                return tr.keep_recent(request)
            case "asks":
                return request.cut(stop, self.kept)
            case "asks for less":
                for index in range(stop, 0, -1):
                    with contextlib.suppress(tr.HistoryCutError):
                        return request.cut(index)
                return None
            case "forges":
                start = self.start % size
                return tr.HistoryCut(start, stop, request.history, self.kept)
            case "raises":
                raise ValueError("no cut")
            case _:
                return None


def policies() -> st.SearchStrategy[AnyPolicy]:
    hows = ("default", "asks", "asks for less", "forges", "raises", "nothing")
    small = st.integers(0, 14)
    return st.builds(
        AnyPolicy,
        st.sampled_from(hows[:4] * 3 + hows),
        st.lists(small, min_size=1, max_size=3).map(tuple),
        st.lists(st.tuples(small, small), max_size=2).map(tuple),
        st.integers(0, 3),
    )


class AnySummarizer:
    """Writes something, something wrong, or nothing, and may disturb the turn meanwhile."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.runner: tr.ToolRunner | None = None
        self.seen: list[tuple[tr.Message, ...]] = []

    async def summarise(self, request: tr.SummaryRequest) -> str:
        self.seen.append(tuple(request.messages))
        word = self.words.pop(0) if self.words else "so far"
        await trio.lowlevel.checkpoint()
        runner = self.runner
        match word:
            case "adds" if runner is not None and not runner.is_done:
                runner.append_messages("hurry")
            case "replaces" if runner is not None:
                runner.replace_history(runner.history)
            case "raises":
                raise ValueError("no words")
            case _:
                pass
        return word


WORDS = st.lists(st.sampled_from(("so far", "adds", "replaces", "raises", "")), max_size=5)


class Watch:
    """Looks at each change, at the very event that tells of it."""

    def __init__(self) -> None:
        self.agent: tr.ToolAgent
        self.before: tuple[tr.Message, ...] = ()
        self.compacted = self.failed = 0

    def on_event(self, event: ev.Event) -> None:
        after = self.agent.history
        tr.check_history(after)
        match event:
            case ev.Compacted():
                self.compacted += 1
                check_compacted(self.before, after)
            case ev.CompactionFailed():
                self.failed += 1
            case _:
                pass
        self.before = after


def check_compacted(before: Sequence[tr.Message], after: Sequence[tr.Message]) -> None:
    front = template_count(before)
    assert tuple(after[:front]) == tuple(before[:front])
    assert is_summary(after[front])
    assert not any(message.template for message in after[front:])


def check_session(journal: tr.MemoryJournal, agent: tr.ToolAgent) -> tuple[tr.Message, ...]:
    stored = journal.stored("s")
    assert tr.fold(stored).messages == agent.history
    said = tr.full_history(stored)
    tr.check_history(said)
    rest = iter(said)
    assert all(message in rest for message in agent.history if not is_summary(message))
    return said


# --- a step that is kept aside ----------------------------------------------------


async def compact_beside_an_open_step(
    messages: tuple[tr.Message, ...], policy: AnyPolicy, words: Sequence[str], calls: int
) -> int:
    ran: list[str] = []

    async def work() -> str:
        ran.append(tr.current_tool_context().call_id)
        return "done"

    open_calls = [call("work", id=f"open {n}") for n in range(calls)]
    reply = tr.Message.assistant(tool_calls=open_calls)
    watch, journal = Watch(), tr.MemoryJournal()
    agent = tr.ToolAgent(
        "a", model=ScriptedModel(["the answer"]), tools=[work],
        summarizer=AnySummarizer(words), compaction=tr.Compaction(cut=policy),
        observers=[watch], journal=journal, session="s",
    )  # fmt: skip
    watch.agent = agent
    async with agent:
        agent.load_history([*messages, tr.Message.user("go"), reply])
        watch.before = agent.history
        for _ in range(3):
            before = agent.history
            turn = agent.conversation.turn
            assert turn is not None
            try:
                report = await agent.compact()
            except tr.CompactionError:
                report = None
            if report is None:
                assert all(x is y for x, y in zip(before, agent.history, strict=True))
            check_session(journal, agent)
            assert turn.reply is not None
            assert [each.id for each in turn.reply.tool_calls] == [each.id for each in open_calls]
        await agent.resume()
        said = check_session(journal, agent)
        assert [each.call_id for each in agent.history[-2].tool_results] == [
            each.id for each in open_calls
        ]
    answered = [each.call_id for message in said for each in message.tool_results]
    assert all(answered.count(each.id) == 1 for each in open_calls)
    return watch.compacted


# --- a turn that runs -------------------------------------------------------------


async def compact_a_turn_that_runs(
    messages: tuple[tr.Message, ...], policy: AnyPolicy, words: Sequence[str], sizes: Sequence[int]
) -> int:
    returned: list[str] = []

    async def work() -> str:
        await trio.lowlevel.checkpoint()
        returned.append(tr.current_tool_context().call_id)
        return "done"

    script = [
        tr.Message.assistant(
            tool_calls=[call("work") for _ in range(1 + size % 3)], usage=tr.Usage(size, 0)
        )
        for size in sizes
    ]
    watch, journal, summarizer = Watch(), tr.MemoryJournal(), AnySummarizer(words)
    agent = tr.ToolAgent(
        "a",
        model=ScriptedModel([*script, tr.Message.assistant("the answer", usage=tr.Usage(900, 0))]),
        tools=[work],
        summarizer=summarizer,
        compaction=tr.Compaction(context_window=1_000, keep_turns=1, keep_steps=1, cut=policy),
        observers=[watch],
        journal=journal,
        session="s",
    )
    watch.agent = agent
    async with agent:
        agent.load_history(messages)
        watch.before = agent.history
        async with agent.turn("go") as runner:
            summarizer.runner = runner
            async for message in runner:
                assert runner.last_message is message
        assert runner.end_reason is tr.EndReason.ANSWERED
        said = check_session(journal, agent)
    # ScriptedModel refused any request that was not valid or left a call open. No result is lost:
    # in the turn, and in the session unless the history was replaced.
    in_turn = [each.call_id for each in runner.turn_messages for each in each.tool_results]
    assert sorted(in_turn) == sorted(returned)
    if "replaces" not in words:
        answered = {each.call_id for message in said for each in message.tool_results}
        assert set(returned) <= answered
    for shown in summarizer.seen:
        tr.check_history(shown)
    return watch.compacted


def play(fn: Callable[..., Awaitable[int]], *args: object) -> int:
    return trio.run(fn, *args, clock=trio.testing.MockClock(autojump_threshold=0))


HISTORIES = strategies.histories(max_parts=8)


@given(HISTORIES, policies(), WORDS, st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_beside_an_open_step_any_cut_of_any_history_is_valid_or_unchanged(
    messages: tuple[tr.Message, ...], policy: AnyPolicy, words: list[str], calls: int
) -> None:
    play(compact_beside_an_open_step, messages, policy, words, calls)


@given(HISTORIES, policies(), WORDS, st.lists(st.integers(840, 1_200), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_in_a_turn_that_runs_any_cut_of_any_history_is_valid_or_unchanged(
    messages: tuple[tr.Message, ...], policy: AnyPolicy, words: list[str], sizes: list[int]
) -> None:
    play(compact_a_turn_that_runs, messages, policy, words, sizes)


def test_both_plays_do_compact() -> None:
    messages = (
        tr.Message.user("one"), tr.Message.assistant("first"),
        tr.Message.user("two"), tr.Message.assistant("second"),
    )  # fmt: skip
    default = AnyPolicy("default", (0,), (), 0)
    unseen = AnyPolicy("asks", (5,), (), 0)
    older = AnyPolicy("asks", (4,), (), 0)

    assert play(compact_beside_an_open_step, messages, default, [], 2) == 1
    assert play(compact_beside_an_open_step, messages, unseen, [], 2) == 0
    assert play(compact_beside_an_open_step, messages, older, [], 2) == 1
    # What is older, the first step, the second; the third is the last.
    assert play(compact_a_turn_that_runs, messages, default, [], [900, 900, 900]) == 3
