"""A crash at each call of the journal during a compaction leaves the history before or after it."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

import trio_runner as tr
import trio_runner.records as r
from trio_runner._core.compaction import is_summary
from trio_runner.testing import ScriptedModel, call

ROOT = Path(__file__).parent.parent
SETTINGS = tr.Compaction(context_window=1_000, keep_turns=1, keep_steps=1)


def asks(name: str, tokens: int) -> tr.Message:
    return tr.Message.assistant(
        tool_calls=[call("work", id=f"{name}1"), call("work", id=f"{name}2")],
        usage=tr.Usage(tokens, 0),
    )


def says(text: str, tokens: int) -> tr.Message:
    return tr.Message.assistant(text, usage=tr.Usage(tokens, 0))


async def work() -> str:
    """Work."""
    return "done"


class Notes:
    def __init__(self) -> None:
        self.count = 0

    async def summarise(self, request: tr.SummaryRequest) -> str:
        self.count += 1
        await trio.lowlevel.checkpoint()
        return f"summary {self.count} of {len(request.messages)}"


class DyingJournal:
    """Calls ``die`` before or after its n-th call: open, append, wait, aclose."""

    def __init__(
        self, inner: tr.Journal, dies_at: int, die: Callable[[], None], *, after: bool
    ) -> None:
        self.inner, self.left, self.die, self.after = inner, dies_at, die, after

    def passes(self, *, after: bool) -> None:
        if not after:
            self.left -= 1
        if self.left == 0 and self.after == after:
            self.die()

    async def open(self, session_id: str) -> tr.JournalSession:
        self.passes(after=False)
        session = await self.inner.open(session_id)
        self.passes(after=True)
        return DyingSession(self, session)


class DyingSession:
    def __init__(self, journal: DyingJournal, session: tr.JournalSession) -> None:
        self.journal, self.session = journal, session

    @property
    def records(self) -> Sequence[r.Record]:
        return self.session.records

    def append(self, records: Sequence[r.Record]) -> tr.CommitTicket:
        self.journal.passes(after=False)
        ticket = DyingTicket(self.journal, self.session.append(records))
        self.journal.passes(after=True)
        return ticket

    async def aclose(self) -> None:
        self.journal.passes(after=False)
        await self.session.aclose()
        self.journal.passes(after=True)


class DyingTicket:
    def __init__(self, journal: DyingJournal, ticket: tr.CommitTicket) -> None:
        self.journal, self.ticket = journal, ticket

    @property
    def done(self) -> bool:
        return self.ticket.done

    @property
    def error(self) -> Exception | None:
        return self.ticket.error

    async def wait(self) -> None:
        self.journal.passes(after=False)
        await self.ticket.wait()
        self.journal.passes(after=True)


async def compacting_session(journal: tr.Journal, seen: list[tuple[tr.Message, ...]]) -> None:
    """A compaction within a turn, at its end, of the next turn, and on demand.

    ``seen`` gets the history before and after each.
    """
    script = [asks("a", 100), asks("b", 200), asks("c", 900), asks("d", 300), says("first", 900),
              says("second", 900), says("third", 100)]  # fmt: skip

    def look(event: object) -> None:
        name = type(event).__name__
        if name in {"CompactionStarted", "Compacted"}:
            seen.append(agent.history)

    class Watcher:
        def on_event(self, event: object) -> None:
            look(event)

    agent = tr.ToolAgent(
        "a",
        model=ScriptedModel(script),
        tools=[work],
        compaction=SETTINGS,
        summarizer=Notes(),
        observers=[Watcher()],
        journal=journal,
        session="s",
        history=[tr.Message.user("rules", template=True)],
    )
    async with agent:
        for text in ("one", "two", "three"):
            await agent.generate(text)
        await agent.compact()
        seen.append(agent.history)


def outline(messages: Sequence[tr.Message]) -> tuple[str, ...]:
    """The texts, with those of the results: no two runs take the same time."""
    return tuple(
        each.text
        + "".join(f"<{result.call_id}>" for result in each.tool_results)
        + "".join(asked.id for asked in each.tool_calls)
        for each in messages
    )


async def all_that_was_seen() -> list[tuple[tr.Message, ...]]:
    seen: list[tuple[tr.Message, ...]] = []
    memory = tr.MemoryJournal()
    await compacting_session(memory, seen)
    # Mid-turn, after each of the first two turns, on demand: before and after; and the end.
    assert len(seen) == 9
    summaries = [sum(map(is_summary, each)) for each in seen]
    assert summaries == [0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert tr.fold(memory.stored("s")).messages == seen[-1]
    said = tr.full_history(memory.stored("s"))
    for text in ("one", "two", "three", "first", "second", "third"):
        assert text in [each.text for each in said]
    assert sum(len(each.tool_calls) for each in said) == 8
    return seen


async def check_goes_on(records: Sequence[r.Record]) -> tuple[tr.Message, ...]:
    """A session that a crash left is valid at each of its records, and goes on, compacted again."""
    for count in range(len(records) + 1):
        state = tr.fold(records[:count])
        tr.check_history(state.messages)
        tr.check_history(tr.full_history(records[:count]))
    before = tr.fold(records)
    pending = before.turn.open_step if before.turn is not None else None
    fresh = tr.MemoryJournal()
    session = await fresh.open("s")
    session.append(records)
    await session.aclose()
    agent = tr.ToolAgent(
        "a", model=ScriptedModel([says("on", 100)] * 2), tools=[work],
        compaction=SETTINGS, summarizer=Notes(), journal=fresh, session="s",
    )  # fmt: skip
    async with agent:
        opened = agent.history
        await agent.compact()
        if agent.can_resume:
            await agent.resume()
        await agent.generate("go on")
        await agent.compact(keep_turns=0)
        tr.check_history(agent.history)
    stored = fresh.stored("s")
    assert tr.fold(stored).messages == agent.history
    said = tr.full_history(stored)
    tr.check_history(said)
    answered = {result.call_id for each in said for result in each.tool_results}
    if pending is not None:
        assert {each.id for each in pending.reply.tool_calls} <= answered
    for record in records:
        match record:
            case r.ToolFinished(result=result):
                assert result.call_id in answered
            case _:
                pass
    return opened


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_call_of_the_journal_leaves_the_old_history_or_the_new(
    *, after: bool
) -> None:
    seen = await all_that_was_seen()
    opened: list[tuple[tr.Message, ...]] = []
    number, died = 0, True
    while died:
        number += 1
        memory = tr.MemoryJournal()

        def die(memory: tr.MemoryJournal = memory) -> None:
            memory.crash()
            raise KeyboardInterrupt  # leaves at once, since nothing of ours takes it

        try:
            await compacting_session(DyingJournal(memory, number, die, after=after), [])
            died = False
        except KeyboardInterrupt:
            pass
        opened.append(await check_goes_on(memory.stored("s")))
    assert number > 30
    # Each history that a compaction found or made was left by some crash.
    assert {outline(each) for each in seen} <= {outline(each) for each in opened}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
async def test_a_kill_at_any_append_of_a_file_leaves_the_old_history_or_the_new(
    tmp_path: Path,
) -> None:
    seen = await all_that_was_seen()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    await trio.run_process([sys.executable, __file__, str(tmp_path)], env=env)

    opened = [
        await check_goes_on(tr.SqliteJournal(each).stored("s")) for each in tmp_path.glob("*.db")
    ]

    assert len(opened) > 30
    # What was not waited for may be lost, but there is no third thing: a front that begins as
    # some history did before or after a compaction.
    fronts = {outline(each)[:2] for each in (*seen, (), seen[0][:1])}
    assert {outline(each)[:2] for each in opened} <= fronts
    assert {any(map(is_summary, each)) for each in opened} == {False, True}


def die_at_every_call(folder: Path) -> None:
    """Run the session in forks that are killed, each on a file of its own in ``folder``."""
    tr.SqliteJournal(folder / "loads what it needs once")
    for number in itertools.count(1):
        child = os.fork()
        if not child:
            run_and_die(folder / f"{number}.db", number)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return


def run_and_die(path: Path, number: int) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        journal: Any = DyingJournal(tr.SqliteJournal(path), number, die, after=bool(number % 2))
        await compacting_session(journal, [])

    try:
        trio.run(main)
    finally:
        os._exit(0)


if __name__ == "__main__":
    die_at_every_call(Path(sys.argv[1]))
