"""Any batch, any words, in any order and process: nothing runs unasked, and nothing twice."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import trio_runner as tr
from trio_runner import records as r
from trio_runner.testing import ScriptedModel, call

KINDS = ("free", "asks", "alone", "asks_alone", "external")


@attrs.frozen
class Plan:
    """A batch by the kinds of its calls, and in which rounds what is said of each."""

    kinds: tuple[str, ...]
    words: tuple[str, ...]
    rounds: tuple[int, ...]
    limit: int | None
    parallel: bool
    asks: bool


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to six calls."""
    size = draw(st.integers(1, 6))
    several = functools.partial(st.lists, min_size=size, max_size=size)
    return Plan(
        tuple(draw(several(st.sampled_from(KINDS)))),
        tuple(draw(several(st.sampled_from(["approve", "edit", "deny"])))),
        tuple(draw(several(st.integers(0, 2)))),
        draw(st.none() | st.integers(1, 3)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


class Play:
    """Plays a plan: each round is a new agent on the session."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.journal = tr.MemoryJournal()
        self.ran: list[tuple[int, int]] = []

    async def tool(self, n: int, edited: int = 0) -> str:
        self.ran.append((n, edited))
        await trio.lowlevel.checkpoint()
        return f"ran {n}"

    def word(self, n: int) -> tr.Approve | tr.Deny:
        match self.plan.words[n]:
            case "approve":
                return tr.Approve()
            case "edit":
                return tr.Approve({"n": n, "edited": 1})
            case _:
                return tr.Deny()

    async def approver(self, request: tr.ApprovalRequest) -> tr.Decision:
        await trio.lowlevel.checkpoint()
        n = request.arguments["n"]
        return self.word(n) if self.plan.rounds[n] == 0 else tr.Defer()

    def agent(self, *, asks: bool) -> tr.ToolAgent:
        make = functools.partial(tr.tool, self.tool)
        asked = [call(kind, id=f"c{n}", n=n) for n, kind in enumerate(self.plan.kinds)]

        def reply(request: tr.ModelRequest) -> Any:
            return "done" if any(each.tool_calls for each in request.history) else asked

        return tr.ToolAgent(
            "played",
            model=ScriptedModel([reply, reply]),
            tools=[
                make(name="free"),
                make(name="asks", needs_approval=True),
                make(name="alone", sequential=True),
                make(name="asks_alone", needs_approval=True, sequential=True),
                tr.external_tool("external", "Is done elsewhere.", {"type": "object"}),
            ],
            params=tr.RequestParams(
                max_parallel_tools=self.plan.limit, parallel_tool_calls=self.plan.parallel
            ),
            approver=self.approver if asks else None,
            journal=self.journal,
            session="s",
        )

    async def play(self) -> None:
        async with self.agent(asks=self.plan.asks) as agent:
            await agent.generate("go")
        for number in range(12):
            async with self.agent(asks=False) as agent:
                if not agent.pending:
                    break
                # In the last rounds all that is left is decided.
                words = {
                    each.call_id: self.said(int(each.call_id[1:]), each.waits_for)
                    for each in agent.pending
                    if number >= 2 or self.plan.rounds[int(each.call_id[1:])] <= number
                }
                if words:
                    await agent.resume(decisions=words)
                tr.check_history(agent.history)
        self.check()

    def said(self, n: int, waits_for: str) -> Any:
        word = self.word(n)
        return f"answer {n}" if waits_for == "external" and type(word) is tr.Approve else word

    def check(self) -> None:
        state = tr.fold(self.journal.stored("s"))
        assert state.turn is not None
        assert state.turn.end_reason is tr.EndReason.ANSWERED
        tr.check_history(state.messages)
        results = state.messages[2].tool_results
        wanted = [self.wanted(n) for n in range(len(self.plan.kinds))]
        assert [each.status.value for each in results] == [status for status, _ in wanted]
        ran = sorted((n, edited) for n, (_, edited) in enumerate(wanted) if edited is not None)
        assert sorted(self.ran) == ran
        started = [e.call_id for e in self.journal.stored("s") if type(e) is r.ToolStarted]
        assert sorted(started) == [f"c{n}" for n, _ in ran]
        if not self.plan.parallel:
            assert self.ran == ran

    def wanted(self, n: int) -> tuple[str, int | None]:
        """The status of call ``n``, and how it ran: None, or whether with edited arguments."""
        kind, word = self.plan.kinds[n], self.plan.words[n]
        if kind in ("free", "alone"):
            return "ok", 0
        if word == "deny":
            return "denied", None
        if kind == "external":
            return "ok", None
        return "ok", int(word == "edit")


@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_whatever_is_asked_and_said_the_words_are_what_happens(plan: Plan) -> None:
    trio.run(Play(plan).play)
