"""Compaction by an agent: when it happens, who writes, and that no failure changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.events as ev
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, call

WINDOW = tr.Compaction(context_window=1_000)
SYSTEM = tr.Message.user("rules", template=True)


def asks(tokens: int, **options: Any) -> tr.Message:
    """A reply that calls ``work`` and says how long its context was."""
    return tr.Message.assistant(tool_calls=[call("work")], usage=tr.Usage(tokens, 0), **options)


def says(text: str, tokens: int) -> tr.Message:
    return tr.Message.assistant(text, usage=tr.Usage(tokens, 0))


async def work() -> str:
    """Work."""
    return "done"


class Notes:
    """A summariser that does as it is told, and keeps what it was asked."""

    def __init__(self, act: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.asked: list[tr.SummaryRequest] = []
        self.act = act

    async def summarise(self, request: tr.SummaryRequest) -> Any:
        self.asked.append(request)
        if self.act is not None:
            return await self.act()
        await trio.lowlevel.checkpoint()
        return f"S{len(self.asked)}"


class Watcher:
    def __init__(self) -> None:
        self.events: list[ev.Event] = []

    def on_event(self, event: ev.Event) -> None:
        self.events.append(event)

    def of(self, *types: type) -> list[Any]:
        return [event for event in self.events if type(event) in types]


class Setting:
    """An agent with all that is looked at."""

    def __init__(self, script: Sequence[Any], notes: Notes | None = None, **options: Any) -> None:
        self.notes = notes if notes is not None else Notes()
        self.watcher = Watcher()
        self.model = ScriptedModel(script)
        self.journal = options.pop("journal", None) or tr.MemoryJournal()
        given: dict[str, Any] = {"compaction": WINDOW, "summarizer": self.notes, "tools": [work]}
        self.agent = tr.ToolAgent(
            "a",
            model=self.model,
            observers=[self.watcher],
            journal=self.journal,
            session="s",
            **{**given, **options},
        )

    @property
    def words(self) -> str:
        return words(self.agent.history)

    def check_stored(self) -> None:
        """The session opens as what the agent has, and nothing was lost."""
        stored = self.journal.stored("s")
        assert tr.fold(stored).messages == self.agent.history
        tr.check_history(tr.full_history(stored))


def words(messages: Sequence[tr.Message]) -> str:
    return " ".join(
        "call" if message.tool_calls else message.text.replace(" ", "_")
        for message in messages
        if not message.tool_results
    )


# --- after a turn -----------------------------------------------------------------


async def test_at_the_share_of_the_window_the_oldest_turns_are_summarised() -> None:
    at = Setting([says("a", 300), says("b", 600), says("c", 849), says("d", 850)])
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)
        assert not at.notes.asked
        assert (await at.agent.generate("four")).text == "d"

        assert at.words == "S1 three c four d"
        at.check_stored()
    [asked] = at.notes.asked
    assert words(asked.messages) == "one a two b"
    assert asked.reason == "after_turn"
    assert asked.target_tokens == 100
    assert at.agent.history[0].meta == {"is_summary": True}
    assert words(tr.full_history(at.journal.stored("s"))) == "one a two b three c four d"


async def test_the_model_says_how_large_its_window_is() -> None:
    at = Setting([says("a", 90)] * 3, compaction=tr.Compaction())
    at.model.context_window = 100  # type: ignore[attr-defined]
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)

    assert at.words == "S1 two a three a"


@pytest.mark.parametrize("window", [None, 0, True, "100"], ids=repr)
async def test_without_a_known_window_nothing_is_compacted(window: object) -> None:
    at = Setting([says("a", 10**6)] * 4, compaction=tr.Compaction())
    at.model.context_window = window  # type: ignore[attr-defined]
    async with at.agent:
        for text in ("one", "two", "three", "four"):
            await at.agent.generate(text)

    assert not at.notes.asked


def test_a_share_of_an_unknown_window_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"share of 0\.9, .*context_window=\.\.\."):
        tr.ToolAgent("a", model=ScriptedModel([]), compaction=tr.Compaction(share=0.9))


def test_what_cannot_summarise_or_say_when_is_refused_at_once() -> None:
    model: Any = ScriptedModel([])
    with pytest.raises(TypeError, match=r"summarizer is .*async def summarise"):
        tr.ToolAgent("a", model=model, summarizer=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="compaction"):
        tr.ToolAgent("a", model=model, compaction=0.85)  # type: ignore[arg-type]


async def test_none_switches_it_off() -> None:
    at = Setting([says("a", 10**6)] * 4, compaction=None)
    async with at.agent:
        for text in ("one", "two", "three", "four"):
            await at.agent.generate(text)

    assert not at.notes.asked


async def test_without_any_usage_the_size_is_estimated() -> None:
    at = Setting(["a" * 780] * 5)  # 199 tokens each, 5 for the question, some for the tool
    counts: list[int] = []
    async with at.agent:
        for text in ("1", "2", "3", "4", "5"):
            await at.agent.generate(text)
            counts.append(len(at.notes.asked))

    assert counts == [0, 0, 0, 0, 1]


async def test_instruction_and_tools_count_where_nothing_was_measured() -> None:
    at = Setting(["a", "b", "c"], instruction="x" * 3_400)
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)

    assert words(at.notes.asked[0].messages) == "one a"


async def test_it_comes_behind_the_hook_and_before_the_answer_is_handed_out() -> None:
    seen: list[str] = []

    async def hook(runner: tr.ToolRunner, message: tr.Message) -> None:
        seen.append(f"hook {words(runner.history)}")

    at = Setting([says("a", 900)] * 3, hooks=tr.ToolRunnerHooks(after_turn_complete=hook))
    async with at.agent:
        for text in ("one", "two"):
            await at.agent.generate(text)
        async with at.agent.turn("three") as runner:
            await anext(runner)
            assert at.words == "S1 two a three a"
            assert runner.end_reason is tr.EndReason.ANSWERED
            assert words(runner.turn_messages) == "three a"
    assert seen[-1] == "hook one a two a three a"


async def test_the_next_turn_goes_on_from_the_summary() -> None:
    at = Setting([says("a", 900), says("b", 900), says("c", 900), says("d", 100)])
    async with at.agent:
        for text in ("one", "two", "three", "four"):
            await at.agent.generate(text)

    assert words(at.model.requests[-1].history) == "S1 two b three c four"
    assert words(at.model.requests[-1].delta) == "four"


async def test_it_does_not_happen_again_until_the_context_has_grown_again() -> None:
    sizes = [300, 600, 900, 100, 300, 900, 200]
    at = Setting([says("a", size) for size in sizes])
    counts: list[int] = []
    async with at.agent:
        for _ in sizes:
            await at.agent.generate("go")
            counts.append(len(at.notes.asked))
        at.check_stored()

    assert counts == [0, 0, 1, 1, 1, 2, 2]
    # The second tells the first again.
    assert words(at.notes.asked[1].messages).startswith("S1 ")
    assert at.agent.history[0].text == "S2"


async def test_templates_stay_in_front() -> None:
    at = Setting([says("a", 900)] * 3, history=[SYSTEM])
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)

    assert at.words == "rules S1 two a three a"


async def test_a_turn_without_history_is_not_compacted() -> None:
    at = Setting([says("a", 900)] * 4)
    async with at.agent:
        for _ in range(2):
            await at.agent.generate("kept")
        await at.agent.generate("aside", params=tr.RequestParams(use_history=False))
        assert not at.notes.asked


async def test_an_oversized_turn_is_cut_between_its_steps_at_its_end() -> None:
    script = [asks(100), asks(200), asks(300), asks(400), asks(500), says("end", 900)]
    at = Setting(script)
    async with at.agent:
        await at.agent.generate("go")
        assert at.words == "S1 go call call call end"
        at.check_stored()


async def test_what_ended_at_the_cap_can_be_resumed_from_its_summary() -> None:
    params = tr.RequestParams(max_iterations=5)
    script = [asks(100), asks(200), asks(300), asks(400), asks(500), asks(900), says("end", 100)]
    at = Setting(script, params=params)
    async with at.agent:
        await at.agent.generate("go")
        last = at.agent.last_turn
        assert last is not None
        assert last.end_reason is tr.EndReason.MAX_ITERATIONS
        assert at.words == "S1 go call call call"
        assert (await at.agent.resume()).text == "end"
        at.check_stored()


# --- mid-turn ---------------------------------------------------------------------


async def test_before_a_follow_up_older_steps_are_summarised_and_the_input_stays() -> None:
    script = [asks(100), asks(200), asks(300), asks(400), asks(900), asks(300), says("end", 400)]
    at = Setting(script)
    async with at.agent:
        assert (await at.agent.generate("go")).text == "end"

        assert at.words == "S1 go call call call call end"
        at.check_stored()
    [asked] = at.notes.asked
    assert asked.reason == "mid_turn"
    assert words(asked.messages) == "call call"
    # What the model is told next is the results, as ever.
    assert words(at.model.requests[5].history) == "S1 go call call call"
    assert len(at.model.requests[5].delta) == 1
    last = at.agent.last_turn
    assert last is not None
    assert words(last.messages) == "go call call call call call call end"


async def test_it_comes_before_the_tools_are_listed_and_the_hook_is_asked() -> None:
    order: list[str] = []

    class Listed(tr.ToolAgent):
        async def list_tools(self) -> Sequence[tr.Tool]:
            order.append("tools")
            return await super().list_tools()

    async def note() -> str:
        order.append("summary")
        return "S"

    async def hook(runner: tr.ToolRunner, messages: object) -> None:
        order.append(f"hook {runner.iteration}")

    agent = Listed(
        "a",
        model=ScriptedModel([asks(100), asks(900), says("end", 1)]),
        tools=[work],
        hooks=tr.ToolRunnerHooks(before_llm_call=hook),
        compaction=tr.Compaction(context_window=1_000, keep_steps=1),
        summarizer=Notes(note),
    )
    await agent.generate("go")

    assert order == ["tools", "hook 0", "tools", "hook 1", "summary", "tools", "hook 2"]


async def test_within_a_turn_a_failure_is_not_repeated_at_each_step() -> None:
    script = [asks(100), asks(860), asks(870), asks(880), asks(920), asks(930), says("end", 940)]
    at = Setting(script, Notes(fails), compaction=tr.Compaction(context_window=1_000, keep_steps=1))
    async with at.agent:
        await at.agent.generate("go")

    # At 860; when it had grown by a twentieth of the window; and at the end.
    assert [each.reason for each in at.notes.asked] == ["mid_turn", "mid_turn", "after_turn"]
    assert at.words == "go call call call call call call end"


async def test_messages_that_come_while_the_summary_is_written_stand_behind_it() -> None:
    script = [asks(100), asks(900), says("end", 100)]
    settings = tr.Compaction(context_window=1_000, keep_steps=1)
    runners: list[tr.ToolRunner] = []

    async def note() -> str:
        runners[0].append_messages("hurry")
        return "S"

    at = Setting(script, Notes(note), compaction=settings)
    async with at.agent, at.agent.turn("go") as runner:
        runners.append(runner)
        async for _ in runner:
            pass
        assert at.words == "S go call hurry end"
        at.check_stored()
    assert words(at.model.requests[2].delta).endswith("hurry")


async def test_a_history_that_is_replaced_while_the_summary_is_written_stays_what_it_became() -> (
    None
):
    settings = tr.Compaction(context_window=1_000, keep_steps=1)
    runners: list[tr.ToolRunner] = []

    async def note() -> str:
        runners[0].replace_history(runners[0].history)
        return "S"

    at = Setting([asks(100), asks(900), says("end", 100)], Notes(note), compaction=settings)
    async with at.agent, at.agent.turn("go") as runner:
        runners.append(runner)
        async for _ in runner:
            pass
        assert at.words == "go call call end"
        at.check_stored()
    [failed] = at.watcher.of(ev.CompactionFailed)
    assert "was replaced" in str(failed.error)


# --- failures ---------------------------------------------------------------------


async def fails() -> str:
    await trio.lowlevel.checkpoint()
    raise ValueError("no words")


async def fails_in_a_group() -> str:
    raise ExceptionGroup("several", [ValueError("no words"), KeyError("b")])


async def stray_cancelled() -> str:
    raise asyncio.CancelledError("no words")


async def stray_trio_cancelled() -> str:
    kept: BaseException = ValueError("no cancel came")
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept = error
    raise kept


async def stops_iteration() -> str:
    raise StopAsyncIteration("no words")


async def too_slow() -> str:
    await trio.sleep(61)
    return "late"


async def nothing() -> None:
    return None


def gives(value: object) -> Callable[[], Awaitable[Any]]:
    async def give() -> Any:
        return value

    return give


MISBEHAVING = {
    "raises": (fails, "no words"),
    "raises a group": (fails_in_a_group, "no words"),
    "asyncio's cancel": (stray_cancelled, "Cancelled"),
    "trio's cancel": (stray_trio_cancelled, "Cancelled"),
    "StopAsyncIteration": (stops_iteration, "StopAsyncIteration"),
    "too slow": (too_slow, "timeout of 60 seconds"),
    "None": (nothing, "NoneType"),
    "empty": (gives(""), "message 0"),
    "blank": (gives(" \n"), "message 0"),
    "bytes": (gives(b"x"), "bytes"),
    "not UTF-8": (gives("\ud800"), "message 0"),
    "a call": (gives(asks(1)), "calls"),
    "a template": (gives(SYSTEM), "template"),
    "bad meta": (gives(tr.Message("user", "x", meta=3)), "int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", MISBEHAVING)
@pytest.mark.parametrize("reason", ["after_turn", "mid_turn", "on_demand"])
async def test_a_summariser_that_misbehaves_is_reported_and_changes_nothing(
    name: str,
    reason: str,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    act, what = MISBEHAVING[name]
    settings = tr.Compaction(context_window=1_000, keep_turns=1, keep_steps=1)
    at = Setting([], Notes(act), compaction=settings)
    async with at.agent:
        match reason:
            case "after_turn":
                script = [says("a", 100), says("b", 900)]
            case "mid_turn":
                script = [says("a", 100), asks(100), asks(900), says("b", 100)]
            case _:
                script = [says("a", 100), says("b", 100)]
        at.agent.model = ScriptedModel(script)
        await at.agent.generate("one")
        assert (await at.agent.generate("two")).text == "b"
        if reason == "on_demand":
            before = at.agent.history
            with pytest.raises(tr.CompactionError, match=what):
                await at.agent.compact()
            assert all(x is y for x, y in zip(before, at.agent.history, strict=True))

        assert "S" not in at.words
        assert at.words.replace("call ", "") == "one a two b"
        at.check_stored()
    assert not any(type(each) is r.Compacted for each in at.journal.stored("s"))
    [failed] = at.watcher.of(ev.CompactionFailed)
    assert failed.reason == reason
    assert what in str(failed.error)
    assert "not compacted" in caplog.text


def divides(request: tr.CutRequest) -> Any:
    return request.tokens / 0


def counts(request: tr.CutRequest) -> Any:
    return request.tokens


def takes_nothing(request: tr.CutRequest) -> Any:
    return request.cut(1)


def cuts_a_copy(request: tr.CutRequest) -> Any:
    history: Any = request.history[:]
    return tr.HistoryCut(1, 2, history)


def goes_too_far(request: tr.CutRequest) -> Any:
    return tr.HistoryCut(1, 99, request.history)


def mixes_up(request: tr.CutRequest) -> Any:
    return tr.HistoryCut(1, 4, request.history, ((2, 3), (1, 2)))


@pytest.mark.parametrize(
    "policy", [divides, counts, takes_nothing, cuts_a_copy, goes_too_far, mixes_up]
)
async def test_a_policy_that_misbehaves_is_reported_and_changes_nothing(policy: Any) -> None:
    settings = tr.Compaction(context_window=1_000, cut=policy)
    at = Setting([says("a", 900), says("b", 900)], compaction=settings, history=[SYSTEM])
    async with at.agent:
        await at.agent.generate("one")
        await at.agent.generate("two")
        assert at.words == "rules one a two b"
        at.check_stored()
    assert not at.notes.asked
    assert len(at.watcher.of(ev.CompactionFailed)) == 2


async def test_a_policy_of_ones_own_chooses() -> None:
    def all_but_the_first_input(request: tr.CutRequest) -> tr.HistoryCut | None:
        return request.cut(len(request.history), keep=[(0, 1)])

    settings = tr.Compaction(context_window=1_000, cut=all_but_the_first_input)
    at = Setting([says("a", 100), says("b", 900)], compaction=settings)
    async with at.agent:
        await at.agent.generate("one")
        await at.agent.generate("two")
        assert at.words == "S1 one"
        at.check_stored()


async def test_what_ends_the_program_is_no_failure_of_the_summariser() -> None:
    async def exits() -> str:
        raise SystemExit(3)

    at = Setting([says("a", 900)] * 3, Notes(exits))
    async with at.agent:
        await at.agent.generate("one")
        await at.agent.generate("two")
        with pytest.raises(SystemExit):
            await at.agent.generate("three")
        assert at.words == "one a two a three a"


async def test_the_summarisers_copies_are_its_own() -> None:
    message = tr.Message.user("one", meta={"mine": {"deep": [1]}})

    class Vandal(Notes):
        async def summarise(self, request: tr.SummaryRequest) -> str:
            request.messages[0].meta["mine"]["deep"].append(2)
            raise ValueError("enough")

    at = Setting([says("a", 900)] * 3, Vandal())
    async with at.agent:
        await at.agent.generate([message])
        await at.agent.generate("two")
        await at.agent.generate("three")
        assert at.agent.history[0].meta == {"mine": {"deep": [1]}}


# --- cancels and deadlines ----------------------------------------------------------


@pytest.mark.parametrize("foreign", [False, True])
async def test_a_cancel_during_it_is_a_cancel(*, foreign: bool) -> None:
    scope = trio.CancelScope()

    async def wait() -> str:
        scope.cancel()
        if foreign:
            raise asyncio.CancelledError
        await trio.sleep_forever()

    at = Setting([says("a", 900)] * 3, Notes(wait))
    with scope:
        async with at.agent:
            await at.agent.generate("one")
            await at.agent.generate("two")
            await at.agent.generate("three")
            pytest.fail("the cancel was lost")
    assert scope.cancelled_caught
    assert at.words == "one a two a three a"
    last = at.agent.last_turn
    assert last is not None
    assert last.end_reason is tr.EndReason.ANSWERED
    at.check_stored()


async def test_the_turns_own_time_does_not_take_its_answer_away(
    autojump_clock: trio.testing.MockClock,
) -> None:
    at = Setting([says("a", 900)] * 3, Notes(too_slow))
    params = tr.RequestParams(turn_timeout=10)
    async with at.agent:
        for text in ("one", "two"):
            await at.agent.generate(text)
        began = trio.current_time()
        assert (await at.agent.generate("three", params=params)).text == "a"
        assert trio.current_time() - began == pytest.approx(10)
        at.check_stored()
    [failed] = at.watcher.of(ev.CompactionFailed)
    assert "time of the turn was up" in str(failed.error)


async def test_mid_turn_the_turns_own_time_ends_the_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settings = tr.Compaction(context_window=1_000, keep_steps=1)
    at = Setting([asks(100), asks(900), says("end", 1)], Notes(too_slow), compaction=settings)
    async with at.agent:
        with pytest.raises(tr.TurnTimeoutError):
            await at.agent.generate("go", params=tr.RequestParams(turn_timeout=10))
        at.notes.act = None
        assert (await at.agent.resume()).text == "end"
        at.check_stored()


@pytest.mark.parametrize("durability", ["best_effort", "strict"])
async def test_a_commit_that_fails_is_as_any(durability: tr.Durability) -> None:
    journal = tr.MemoryJournal()

    class Breaks(Notes):
        async def summarise(self, request: tr.SummaryRequest) -> str:
            journal.delay = OSError("disk full")
            return "S"

    at = Setting([says("a", 900)] * 3, Breaks(), journal=journal, durability=durability)
    async with at.agent:
        await at.agent.generate("one")
        await at.agent.generate("two")
        if durability == "strict":
            with pytest.raises(tr.CommitFailedError):
                await at.agent.generate("three")
        else:
            await at.agent.generate("three")
        assert at.words == "S two a three a"
        journal.delay = 0.0
    assert at.watcher.of(ev.CommitFailed)
    at.check_stored()


# --- on demand --------------------------------------------------------------------


async def test_on_demand_the_older_turns_are_replaced_at_any_size() -> None:
    at = Setting(["a", "b", "c"], compaction=None)
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)
        report = await at.agent.compact()

        assert report is not None
        assert (report.reason, report.replaced) == ("on_demand", 2)
        assert (report.messages_before, report.messages_after) == (6, 5)
        assert report.summary is at.agent.history[0]
        assert at.words == "S1 two b three c"
        assert at.journal.stored("s")[-1] == r.Compacted(6, 2, report.summary)
        assert await at.agent.compact() is None
        other = Notes()
        report = await at.agent.compact(keep_turns=0, summarizer=other)
        assert words(other.asked[0].messages) == "S1 two b three c"
        assert at.words == "S1"
        assert await at.agent.compact(keep_turns=0) is None
        at.check_stored()


async def test_on_demand_an_oversized_turn_is_cut_where_the_window_is_known() -> None:
    script = [asks(100), asks(200), asks(300), asks(400), says("end", 900)]
    at = Setting(script, Notes(fails))
    async with at.agent:
        await at.agent.generate("go")
        at.notes.act = None
        report = await at.agent.compact()
        assert report is not None
        assert at.words == "S2 go call call call end"


async def test_while_it_runs_the_agent_takes_no_turn_and_no_other_compaction() -> None:
    at = Setting(["a", "b", "c", "d"], compaction=None)
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)

        async def meanwhile() -> str:
            for refused in (at.agent.generate("no"), at.agent.compact()):
                with pytest.raises(tr.BusyError):
                    await refused
            for change in (at.agent.clear, at.agent.trim):
                with pytest.raises(tr.BusyError):
                    change()
            return "S"

        at.notes.act = meanwhile
        assert await at.agent.compact() is not None
        assert (await at.agent.generate("four")).text == "d"


async def test_during_a_turn_it_is_refused_on_demand() -> None:
    at = Setting([asks(1), "end"])
    async with at.agent, at.agent.turn("go") as runner:
        await anext(runner)
        with pytest.raises(tr.BusyError):
            await at.agent.compact()


async def test_on_demand_a_session_must_be_open_and_the_number_sound() -> None:
    at = Setting([])
    with pytest.raises(tr.NotEnteredError):
        await at.agent.compact()
    async with at.agent:
        with pytest.raises(ValueError, match="keep_turns is -1"):
            await at.agent.compact(keep_turns=-1)
        with pytest.raises(TypeError, match="keep_turns"):
            await at.agent.compact(keep_turns=True)
        assert await at.agent.compact() is None


async def test_a_step_that_a_crash_left_open_stays_open_through_a_compaction() -> None:
    journal = tr.MemoryJournal()
    at = Setting(["a", "b", "c", [call("work", id="c1")]], journal=journal, compaction=None)
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)
        async with at.agent.turn("four") as runner:
            await anext(runner)
            kept = journal.stored("s")
            journal.crash()
    fresh = tr.MemoryJournal()
    session = await fresh.open("s")
    session.append(kept)
    await session.aclose()

    at = Setting(["d"], journal=fresh, compaction=None)
    async with at.agent:
        await at.agent.compact()
        # The turn that waits is one of the two that stay.
        assert at.words == "S1 three c four"
        await at.agent.compact(keep_turns=0)
        assert at.words == "S2 four"
        assert (await at.agent.resume()).text == "d"
        assert at.words == "S2 four call d"
        at.check_stored()


async def test_a_cancel_while_its_commit_is_open_waits_for_it_within_grace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    at = Setting(["a", "b", "c"], compaction=None)
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)
        at.journal.delay = 2.0
        with trio.move_on_after(1) as scope:
            await at.agent.compact()
        assert scope.cancelled_caught
        assert trio.current_time() % 100 >= 0  # the clock moved on by itself
        assert at.words == "S1 two b three c"
        at.check_stored()


# --- what is told -----------------------------------------------------------------


async def test_observers_are_told_of_the_sizes_before_and_after() -> None:
    at = Setting([says("a" * 400, 300), says("b" * 400, 600), says("c" * 400, 900)])
    async with at.agent:
        for text in ("one", "two", "three"):
            await at.agent.generate(text)

    started, compacted = at.watcher.of(ev.CompactionStarted, ev.Compacted)
    assert (started.turn, started.reason, started.messages) == (3, "after_turn", 2)
    assert started.tokens == 900
    assert (compacted.turn, compacted.replaced) == (3, 2)
    assert (compacted.messages_before, compacted.messages_after) == (6, 5)
    # A third of it went, and the summary is 5 tokens.
    assert compacted.tokens_before == 900
    assert 600 <= compacted.tokens_after <= 610
    assert compacted.summary.text == "S1"
    kinds = [type(event) for event in at.watcher.events]
    assert kinds.index(ev.Compacted) < len(kinds) - 1
    assert kinds[-1] is ev.TurnEnded
    assert kinds[-2] is ev.Committed


async def test_nothing_is_told_where_there_is_nothing_to_do() -> None:
    at = Setting([says("a", 900)] * 2)
    async with at.agent:
        await at.agent.generate("one")
        await at.agent.generate("two")

    assert not at.watcher.of(ev.CompactionStarted, ev.Compacted, ev.CompactionFailed)
