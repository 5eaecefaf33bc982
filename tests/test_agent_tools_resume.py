"""Where nested turns are kept, and what becomes of them after a crash of the turn around."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

import trio_runner as tr
import trio_runner.records as r
from trio_runner._core.nested import nested_session_id
from trio_runner.testing import ScriptedModel, ScriptItem, call

NESTED = "s+1:0:c1"


class Firm:
    """Alice, who asks Bob, who works with two tools of which one may run again."""

    def __init__(self, journal: Any, *, bob: Sequence[ScriptItem] = (), own: Any = None) -> None:
        self.journal = journal
        self.ran: list[tuple[str, int]] = []
        self.bob_model = ScriptedModel(bob or [self.bob_says] * 4)
        self.alice_model = ScriptedModel([self.alice_says] * 4)
        tools = [self.pay, tr.tool(self.look, idempotent=True)]
        session = None if own is None else "bobs own"
        self.bob = tr.ToolAgent(
            "bob", model=self.bob_model, tools=tools, journal=own, session=session
        )
        self.alice = tr.ToolAgent(
            "alice", model=self.alice_model, tools=[self.bob], journal=journal, session="s"
        )

    def alice_says(self, request: tr.ModelRequest) -> ScriptItem:
        last = request.history[-1]
        if last.tool_results:
            return f"Bob says: {last.tool_results[0].text}"
        return call("agent__bob", id="c1", message="do it")

    def bob_says(self, request: tr.ModelRequest) -> ScriptItem:
        last = request.history[-1]
        if last.tool_results:
            return tr.Message.assistant(
                " and ".join(result.status.value for result in last.tool_results),
                usage=tr.Usage(1, 1),
            )
        calls = [call("pay", id="p"), call("look", id="l")]
        return tr.Message.assistant(tool_calls=calls, usage=tr.Usage(10, 10))

    async def pay(self) -> str:
        return self.note()

    async def look(self) -> str:
        return self.note()

    def note(self) -> str:
        context = tr.current_tool_context()
        self.ran.append((context.name, context.attempt))
        return context.name

    async def fill(self, records: dict[str, Sequence[r.Record]]) -> None:
        for session_id, each in records.items():
            session = await self.journal.open(session_id)
            if each:
                await session.append(each).wait()
            await session.aclose()


async def lived() -> dict[str, tuple[r.Record, ...]]:
    """All records of both turns, when nothing is cut."""
    firm = Firm(tr.MemoryJournal())
    async with firm.alice:
        await firm.alice.generate("go")
    return {name: firm.journal.stored(name) for name in ("s", NESTED)}


def upto(records: Sequence[r.Record], kind: type[r.Record]) -> Sequence[r.Record]:
    """The records up to and with the last one of a kind."""
    last = max(i for i, record in enumerate(records) if type(record) is kind)
    return records[: last + 1]


async def test_the_session_is_in_the_journal_of_the_parent_and_follows_from_the_call() -> None:
    firm = Firm(tr.MemoryJournal(), own=tr.MemoryJournal())
    async with firm.alice:
        await firm.alice.generate("go")
    state = tr.fold(firm.journal.stored(NESTED))
    assert [message.text for message in state.messages if message.text] == ["do it", "ok and ok"]
    asked = state.messages[0].meta["asked_by"]
    (start,) = [each for each in firm.journal.stored("s") if type(each) is r.ToolStarted]
    assert asked == {"key": "s/1:0:c1", "arguments_hash": start.arguments_hash}
    assert start.key == "s/1:0:c1"


async def test_without_one_it_is_in_the_childs_own() -> None:
    own = tr.MemoryJournal()
    bob = tr.ToolAgent("bob", model=ScriptedModel(["hi"]), journal=own, session="mine")
    script = [call("agent__bob", id="c1", message="?"), "done"]
    alice = tr.ToolAgent("alice", model=ScriptedModel(script), tools=[bob])
    await alice.generate("go")
    (result,) = alice.history[2].tool_results
    session = result.meta["agent_turn"]["session"]
    assert session.endswith("+1:0:c1")
    assert tr.fold(own.stored(session)).messages[-1].text == "hi"
    assert own.stored("mine") == ()


async def test_a_turn_that_is_kept_nowhere_nests_turns_that_are_kept_nowhere() -> None:
    firm = Firm(tr.MemoryJournal())
    async with firm.alice:
        await firm.alice.generate("go", params=tr.RequestParams(use_history=False))
    assert set(firm.journal._stored) == {"s"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("s/1:0:c1", "s+1:0:c1"),
        ("s+1:0:c1/2:3:call_9", "s+1:0:c1+2:3:call_9"),
    ],
)
def test_the_id_says_which_call_it_was(key: str, expected: str) -> None:
    assert nested_session_id(key) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s/1:0:" + "x" * 200, "s/1:0:" + "x" * 201),
        ("s/1:0:a b", "s/1:0:a_b"),
        ("ü/1:0:c", "ä/1:0:c"),
    ],
)
async def test_an_id_that_a_journal_does_not_take_is_made_one(
    one: str, other: str, tmp_path: Path
) -> None:
    ids = [nested_session_id(key) for key in (one, other)]
    assert len(set(ids)) == 2
    journal = tr.SqliteJournal(tmp_path / "j.db")
    for session_id in ids:
        await (await journal.open(session_id)).aclose()


# --- after a crash --------------------------------------------------------------


async def test_a_turn_that_had_answered_is_not_asked_again() -> None:
    whole = await lived()
    firm = Firm(tr.MemoryJournal())
    await firm.fill({"s": upto(whole["s"], r.ToolStarted), NESTED: whole[NESTED]})
    async with firm.alice as alice:
        assert (await alice.resume()).text == "Bob says: ok and ok"
        last = alice.last_turn
    assert (firm.bob_model.calls, firm.ran) == (0, [])
    assert last is not None
    assert last.nested_usage == tr.Usage(11, 11)


@pytest.mark.parametrize("kept", [r.ToolStarted, r.ToolFinished, r.ModelFinished])
async def test_a_turn_that_was_cut_goes_on_by_its_own_rules(kept: type[r.Record]) -> None:
    whole = await lived()
    firm = Firm(tr.MemoryJournal())
    left = upto(whole[NESTED], kept)
    await firm.fill({"s": upto(whole["s"], r.ToolStarted), NESTED: left})
    async with firm.alice as alice:
        reply = await alice.resume()
        last = alice.last_turn
        (result,) = alice.history[2].tool_results
    cut = kept is r.ToolStarted
    # Bob's payment had started and is not made again; what may run again does.
    expected = "unknown_after_crash and ok" if cut else "ok and ok"
    assert reply.text == f"Bob says: {expected}"
    assert firm.ran == ([("look", 2)] if cut else [])
    assert last is not None
    assert last.nested_usage == tr.Usage(11, 11)
    assert result.meta["agent_turn"]["session"] == NESTED
    assert firm.bob_model.calls == (0 if kept is r.ModelFinished else 1)
    tr.check_history(tr.fold(firm.journal.stored(NESTED)).messages)


@pytest.mark.parametrize("count", [0, 1])
async def test_a_call_whose_turn_had_not_begun_begins_it(count: int) -> None:
    whole = await lived()
    firm = Firm(tr.MemoryJournal())
    await firm.fill({"s": upto(whole["s"], r.ToolStarted), NESTED: whole[NESTED][:count]})
    async with firm.alice as alice:
        assert (await alice.resume()).text == "Bob says: ok and ok"
    assert sorted(firm.ran) == [("look", 1), ("pay", 1)]
    starts = [each.attempt for each in firm.journal.stored("s") if type(each) is r.ToolStarted]
    assert starts == [1, 2]


async def test_a_session_of_that_id_that_another_call_left_is_not_gone_on_with() -> None:
    whole = await lived()
    other = r.TurnStarted(1, (tr.Message.user("something else"),))
    left = [other if type(record) is r.TurnStarted else record for record in whole[NESTED]]
    firm = Firm(tr.MemoryJournal())
    await firm.fill({NESTED: left})
    async with firm.alice as alice:
        await alice.generate("go")
    assert sorted(firm.ran) == [("look", 1), ("pay", 1)]
    assert firm.bob_model.requests[0].history[0].text == "do it"
    assert len(firm.bob_model.requests[0].history) == 1


async def test_a_turn_that_ended_in_an_error_is_tried_again() -> None:
    whole = await lived()
    firm = Firm(tr.MemoryJournal())
    left = [*upto(whole[NESTED], r.ToolFinished), r.TurnEnded(1, tr.EndReason.FAILED)]
    await firm.fill({"s": upto(whole["s"], r.ToolStarted), NESTED: left})
    async with firm.alice as alice:
        assert (await alice.resume()).text == "Bob says: ok and ok"
    assert firm.ran == []


async def test_two_processes_with_one_file(tmp_path: Path) -> None:
    """The same with a file: what the first one left, the second one finds."""
    whole = await lived()
    firm = Firm(tr.SqliteJournal(tmp_path / "j.db"))
    left = {"s": upto(whole["s"], r.ToolStarted), NESTED: upto(whole[NESTED], r.ToolStarted)}
    await firm.fill(left)
    async with firm.alice as alice:
        assert (await alice.resume()).text == "Bob says: unknown_after_crash and ok"


async def test_a_call_that_was_cut_by_a_cancel_is_not_run_again() -> None:
    firm = Firm(tr.MemoryJournal(), bob=[call("stop", id="x")])
    with trio.CancelScope() as scope:

        async def stop() -> str:
            scope.cancel()
            await trio.lowlevel.checkpoint()
            return "stopped"

        firm.bob.add_tool(stop)
        async with firm.alice as alice:
            await alice.generate("go")
    async with firm.alice as alice:
        reply = await alice.resume()
    assert reply.text.startswith("Bob says: Interrupted: ")
    assert firm.bob_model.calls == 1
    for name in ("s", NESTED):
        kept = [each for each in firm.journal.stored(name) if type(each) is r.ToolFinished]
        assert [each.result.status for each in kept] == [tr.CallStatus.INTERRUPTED]


async def test_a_call_that_cannot_be_asked_again_does_not_say_that_it_never_was() -> None:
    whole = await lived()
    firm = Firm(tr.MemoryJournal())
    left = {each: upto(whole[each], r.ToolStarted) for each in ("s", NESTED)}
    await firm.fill(left)
    held = await firm.journal.open(NESTED)
    async with firm.alice as alice:
        await alice.resume()
        (result,) = alice.history[2].tool_results
    await held.aclose()
    assert result.status is tr.CallStatus.ERROR
    assert result.text.startswith(
        "Agent 'bob' could not be asked again, and it is not known what came of it before the "
        "process ended. SessionInUseError: "
    )


# --- what another call left under the same id -----------------------------------


def needs_a_word() -> Sequence[ScriptItem]:
    return [call("wire", id="w"), "never"]


@tr.tool(needs_approval=True)
async def wire() -> str:
    return "wired"


async def test_a_suspended_session_of_that_id_is_begun_anew() -> None:
    firm = Firm(tr.MemoryJournal(), bob=needs_a_word())
    firm.bob.add_tool(wire)
    async with firm.alice as alice:
        await alice.generate("go")
    left = firm.journal.stored(NESTED)
    assert type(left[-1]) is r.TurnEnded
    assert left[-1].end_reason is tr.EndReason.SUSPENDED

    again = Firm(tr.MemoryJournal())
    await again.fill({NESTED: left})
    async with again.alice as alice:
        assert (await alice.generate("go")).text == "Bob says: ok and ok"
    assert [each.text for each in again.bob_model.requests[0].history] == ["do it"]


async def test_a_turn_that_waits_for_a_word_waits_as_it_did_after_a_crash() -> None:
    firm = Firm(tr.MemoryJournal(), bob=needs_a_word())
    firm.bob.add_tool(wire)
    async with firm.alice as alice:
        whole = await alice.generate("go")
    records = {each: firm.journal.stored(each) for each in ("s", NESTED)}

    again = Firm(tr.MemoryJournal())
    again.bob.add_tool(wire)
    await again.fill({"s": upto(records["s"], r.ToolStarted), NESTED: records[NESTED]})
    async with again.alice as alice:
        assert await alice.resume() == whole
    assert whole.text == "Bob says: Agent 'bob' gave no answer: its turn ended suspended"


@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_a_turn_that_another_call_left_is_not_told_as_this_calls(how: str) -> None:
    whole = await lived()
    firm = Firm(tr.MemoryJournal())
    await firm.fill({NESTED: whole[NESTED]})
    scope = trio.CancelScope()

    class Bob(tr.ToolAgent):
        def clear(self) -> None:
            if how == "error":
                raise OSError("no")
            super().clear()
            scope.cancel()

    tools = [Bob("bob", model=firm.bob_model)]
    alice = tr.ToolAgent(
        "alice", model=firm.alice_model, tools=tools, journal=firm.journal, session="s"
    )
    async with alice:
        with scope:
            await alice.generate("go")
        last = alice.last_turn
        (result,) = alice.history[2].tool_results
    assert last is not None
    assert "ok and ok" not in result.text
    assert result.status == ("error" if how == "error" else "interrupted")
    assert last.nested_usage == tr.Usage()
