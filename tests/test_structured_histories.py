"""Whatever a model replies, a structured turn ends as it must, and goes on after any crash."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import given, settings

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import ScriptedModel, ScriptItem, call

FITS = '{"city": "Oslo"}'


@attrs.frozen
class Place:
    city: str


@attrs.frozen
class Told:
    """How a turn ended.

    Attributes:
      value: None when it ended by an error.
      attempts: of the error.
    """

    value: Place | None
    end_reason: tr.EndReason
    history: tuple[tr.Message, ...]
    attempts: int = 0


@attrs.frozen
class Plan:
    """A script and settings."""

    replies: list[str]
    policy: tr.StructuredPolicy
    retries: int
    cap: int
    native: bool

    def reply(self, request: tr.ModelRequest) -> ScriptItem:
        """By the place in the conversation, so that a model that is asked again says the same."""
        number = sum(message.role == "assistant" for message in request.history)
        match self.replies[number] if number < len(self.replies) else "fits":
            case "calls":
                return [call("look", id=f"{number}-{i}", city="Oslo") for i in range(2)]
            case "prose":
                return "It is Oslo."
            case "misfit":
                return '{"town": "Oslo"}'
            case "fenced":
                return f"Here:\n```json\n{FITS}\n```"
            case "pause":
                return tr.Message.assistant("hm", stop_reason=tr.StopReason.PAUSE)
            case "cut":
                return tr.Message.assistant(FITS[:7], stop_reason=tr.StopReason.MAX_TOKENS)
            case _:
                return FITS


kinds = st.sampled_from(["calls", "prose", "misfit", "fenced", "fits", "pause", "cut"])
policies: st.SearchStrategy[tr.StructuredPolicy] = st.sampled_from(
    ["auto", "always", "defer", "no_tools"]
)
plans = st.builds(
    Plan,
    replies=st.lists(kinds, max_size=5),
    policy=policies,
    retries=st.integers(0, 3),
    cap=st.integers(0, 5),
    native=st.booleans(),
)


class World:
    """One session, and what ran in it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.journal = tr.MemoryJournal()
        self.ran: list[str] = []
        self.model = ScriptedModel([])

    async def look(self, city: str) -> str:
        self.ran.append(tr.current_tool_context().call_id)
        return f"sun in {city}"

    async def run(self, *, resume: bool = False) -> Told:
        plan = self.plan
        self.model = ScriptedModel([plan.reply] * 20, supports_structured_output=plan.native)
        agent = tr.ToolAgent(
            "agent",
            model=self.model,
            tools=[tr.tool(self.look, idempotent=True)],
            params=tr.RequestParams(max_iterations=plan.cap),
            journal=self.journal,
            session="s",
        )
        async with agent:
            try:
                if resume:
                    answer = await agent.resume_structured(
                        Place, policy=plan.policy, retries=plan.retries
                    )
                else:
                    answer = await agent.structured(
                        Place, "Where?", policy=plan.policy, retries=plan.retries
                    )
            except tr.StructuredOutputError as error:
                value, attempts, reason = None, error.attempts, error.end_reason
                message = error.message
            else:
                value, attempts, reason = answer.value, 0, tr.EndReason.ANSWERED
                message = answer.message
            assert message == [m for m in agent.history if m.role == "assistant"][-1]
            last = agent.last_turn
            # A turn that had its answer already is only read.
            assert (last is None and resume) or (last is not None and last.end_reason is reason)
            tr.check_history(agent.history)
            # One turn, however often an answer went back.
            assert agent.fork(turns=-1).history == ()
            stored = tr.fold(self.journal.stored("s"))
            assert stored.messages == agent.history
            assert stored.turn is not None
            assert stored.turn.end_reason is reason
            return Told(value, reason, agent.history, attempts)


def live(world: World, *, resume: bool = False) -> Told:
    async def run() -> Told:
        return await world.run(resume=resume)

    return trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def commits(records: Sequence[r.Record]) -> list[int]:
    """Where a crash can cut them; answers to calls that did not run come with their reply."""
    begun = {each.call_id for each in records if type(each) is r.ToolStarted}
    return [
        count
        for count in range(2, len(records) + 1)
        if not (
            count < len(records)
            and type(each := records[count]) is r.ToolFinished
            and each.result.call_id not in begun
        )
    ]


def marks(history: tuple[tr.Message, ...], kind: str) -> int:
    return sum(message.meta.get("structured_output") == kind for message in history)


@given(plans)
@settings(deadline=None)
def test_any_replies_come_to_a_value_or_to_a_true_error(plan: Plan) -> None:
    world = World(plan)
    told = live(world)
    assert world.model.calls <= plan.cap + 1
    refused, asked = marks(told.history, "refused"), marks(told.history, "asked")
    assert refused <= plan.retries
    assert asked <= (plan.policy == "defer")
    match told.end_reason:
        case tr.EndReason.ANSWERED:
            assert told.value == Place("Oslo")
        case tr.EndReason.FAILED:
            assert (told.attempts, refused) == (plan.retries + 1, plan.retries)
        case tr.EndReason.MAX_ITERATIONS:
            assert world.model.calls == plan.cap + 1
        case tr.EndReason.MAX_TOKENS:
            assert "cut" in plan.replies
        case reason:
            pytest.fail(f"it ended {reason}")
    if plan.policy == "no_tools":
        assert world.ran == []
    schemas = [
        request.output is not None or "JSON Schema" in (request.instruction or "")
        for request in world.model.requests
    ]
    assert schemas == sorted(schemas)  # once it is shown it stays
    if plan.policy != "defer":
        assert all(schemas)


@given(plans, st.data())
@settings(deadline=None)
def test_a_turn_that_a_crash_cut_anywhere_ends_as_it_would_have(
    plan: Plan, data: st.DataObject
) -> None:
    lived = World(plan)
    told = live(lived)
    records = lived.journal.stored("s")
    count = data.draw(st.sampled_from(commits(records)), label="records that are left")
    world = World(plan)

    async def lay() -> None:
        session = await world.journal.open("s")
        session.append(records[:count])
        await session.aclose()

    trio.run(lay)
    ended = type(records[count - 1]) is r.TurnEnded
    if ended and told.value is None:
        return  # it ended by an error, which nothing brings back
    again = live(world, resume=True)
    assert again == told
    stored = {each.result.call_id for each in records[:count] if type(each) is r.ToolFinished}
    assert not stored & set(world.ran)
