"""A structured turn with a fault at every step and call: contract C1-C9, and then its value.

The turn is the reference turn with an output: two batches, an answer that is not JSON, one that
does not fit, one that fits. In one kind the tools are narrowed, so that some of the calls are
answered when they come. After each fault the session is opened anew and the turn is resumed:
it comes to its value, and no tool runs again whose result is stored.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pydantic
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.records as r
from trio_runner.testing import Outcome, ScriptedModel, sweep
from trio_runner.testing._faults import FAULTS
from trio_runner.testing._inline_sqlite import IN_MEMORY, InlineEngine
from trio_runner.testing.reference import DRIVES, SESSION, Drive, ReferenceTurn

STEP_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is None)
CALL_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.seam is not None)
KINDS: Mapping[str, dict[str, Any]] = {
    "always": {"structured_policy": "always"},
    "defer": {"structured_policy": "defer"},
    "asked": {"structured_policy": "defer"},
    "filtered": {"tools_filter": ["tidy", "broken"], "tool_choice": "required"},
}
Kind = Literal["always", "defer", "asked", "filtered"]

SUNNY = '{"city": "Oslo", "degrees": 3}'
#: By the number of replies that there were.
SCRIPT = [
    [
        tr.ToolCall("c1", "tidy", {"steps": 2}),
        tr.ToolCall("c2", "broken", {"steps": 1}),
        tr.ToolCall("c3", "plain", {"number": 7}),
    ],
    "It is sunny.",
    [tr.ToolCall("c4", "tidy", {"steps": 1}), tr.ToolCall("c5", "plain", {"number": 9})],
    '{"city": "Oslo"}',
    SUNNY,
]


class Weather(pydantic.BaseModel):
    city: str
    degrees: float


#: The model answers without having called a tool, so it is asked once more, without tools.
ASKED = ["It is sunny.", '{"city": "Oslo"}', SUNNY]


def script(kind: Kind, request: tr.ModelRequest, *, stubborn: bool = False) -> Any:
    """As a model would answer that is asked again after a crash; a stubborn one never fits."""
    replies = sum(message.role == "assistant" for message in request.history)
    found = (ASKED if kind == "asked" else SCRIPT)[replies:]
    if stubborn and (not found or type(found[0]) is str):
        return '{"town": "Oslo"}'
    return found[0]


class StructuredTurn(ReferenceTurn):
    """Makes cases of a structured turn."""

    def __init__(
        self,
        drive: Drive = "until_done",
        kind: Kind = "always",
        *,
        sqlite: bool = False,
        **settings: Any,
    ) -> None:
        self.kind: Kind = kind
        self.params = tr.RequestParams(**KINDS[kind])
        self.sqlite = sqlite
        self.engine = InlineEngine()
        super().__init__(drive, **settings)

    def make(self) -> None:
        super().make()
        reply = functools.partial(script, self.kind)
        self.model = ScriptedModel([reply] * 5, supports_structured_output=True)
        if self.sqlite:
            # Closed now, and not in the middle of another run.
            self.engine.close()
            delay: Any = self._delay
            self.engine = InlineEngine(delay)
            self.journal = tr.SqliteJournal(IN_MEMORY, _engine=self.engine)
        assert self.journal is not None
        self.agent = tr.ToolAgent(
            "structured",
            model=self.witness.model(self.model),
            tools=self._tools,
            journal=self.witness.journal(self.journal),
            session=SESSION,
            grace=self._grace,
            params=self.params,
        )

    async def _drive(self) -> object:
        hooks: Any = self.witness.hooks() if self._watched else None
        observers = (self.witness.observer(),) if self._watched else ()
        agent = self.agent
        if self._drive_name == "generate":
            answer = await agent.structured(Weather, "go", hooks=hooks, observers=observers)
            self.witness.hand_out(answer.message)
            return answer.value
        async with agent.turn("go", hooks=hooks, observers=observers, output=Weather) as runner:
            if self._drive_name == "until_done":
                self.witness.hand_out(await runner.until_done())
                return runner.output
            count = 0
            async for message in runner:
                self.witness.hand_out(message)
                count += 1
                if self._drive_name == "break" and count == 3:
                    self._left_early = runner.end_reason is None
                    self.ledger.stops()
                    break
            return count

    # --- what must hold -----------------------------------------------------------

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        if self._journal_failed or self.journal is None:
            return  # what the session holds is not what happened
        stored = tuple(self.journal.stored(SESSION))
        if not any(type(record) is r.TurnStarted for record in stored):
            return
        try:
            tr.fold(stored)
        except tr.RecordError as error:
            yield f"C2: the session does not open any more: {error}"
            return
        finished = {each.result.call_id for each in stored if type(each) is r.ToolFinished}
        for call_id in self.ledger.entered:
            if self.kind == "filtered" and call_id in ("c3", "c5"):
                yield f"{call_id} ran, and was not offered"
        self.set_delay(0.0)
        again = list[str]()
        yield from trio.run(self.go_on, again, clock=trio.testing.MockClock(autojump_threshold=0))
        for call_id in again:
            if call_id in finished:
                yield f"C3: {call_id} ran again after its result"

    def set_delay(self, delay: float) -> None:
        journal: Any = self.engine if self.sqlite else self.journal
        journal.delay = delay

    async def go_on(self, again: list[str]) -> list[str]:
        """The next process comes to the value, whatever the fault left; or to a true error."""

        async def tool(steps: int = 0, number: int = 0) -> str:
            again.append(tr.current_tool_context().call_id)
            return "done"

        assert self.journal is not None
        # One model that comes to its senses, and one that never does, in turn.
        stubborn = bool(len(self.journal.stored(SESSION)) % 2)
        reply = functools.partial(script, self.kind, stubborn=stubborn)
        agent = tr.ToolAgent(
            "again",
            model=ScriptedModel([reply] * 8),
            tools=[tr.tool(tool, name=name) for name in ("tidy", "broken", "plain")],
            journal=self.journal,
            session=SESSION,
            params=self.params,
        )
        async with agent:
            last = agent.history[-1] if agent.history else None
            has_answer = last is not None and last.text == SUNNY
            turn = agent.conversation.newest
            failed = turn is not None and turn.end_reason is tr.EndReason.FAILED
            if failed and has_answer and not agent.can_resume:
                return []  # an error came behind the answer, and the turn failed by it
            value: object = None
            try:
                value = (await agent.resume_structured(Weather)).value
            except tr.StructuredOutputError as error:
                if not stubborn or has_answer or error.attempts != 3:
                    return [f"the turn went on to no value: {error!r} after {error.attempts}"]
            except tr.TrioRunnerError as error:
                return [f"the turn cannot be gone on with: {error!r}"]
            tr.check_history(agent.history)
        marks = [message.meta.get("structured_output") for message in agent.history]
        if marks.count("refused") > 2 or marks.count("asked") > (self.kind == "asked"):
            return [f"answers went back more often than they may: {marks}"]
        expected = Weather(city="Oslo", degrees=3)
        if (not stubborn or has_answer) and value != expected:
            return [f"the value became {value!r}"]
        return []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drive", DRIVES)
def test_every_fault_at_every_step_keeps_the_contract_and_the_value(
    drive: Drive, kind: Kind, full_sweeps: bool
) -> None:
    turn = StructuredTurn(drive, kind)
    report = sweep(
        turn,
        faults=STEP_FAULTS,
        seeds=range(3 if full_sweeps else 1),
        max_positions=None if full_sweeps else 8,
    )
    report.raise_if_failed()
    print("structured", drive, kind, report.positions, "positions")
    assert report.positions > 20


@pytest.mark.parametrize("drive", DRIVES)
def test_every_call_that_fails_keeps_the_contract_and_the_value(
    drive: Drive, full_sweeps: bool
) -> None:
    turn = StructuredTurn(drive, "defer", delay=0.5, watched=True)
    report = sweep(turn, faults=CALL_FAULTS, seeds=[0], max_positions=None if full_sweeps else 4)
    report.raise_if_failed()
    print("structured", drive, report.positions, "calls")
    assert report.positions > 15


@pytest.mark.parametrize("drive", DRIVES)
def test_slow_commits_change_nothing(drive: Drive, full_sweeps: bool) -> None:
    turn = StructuredTurn(drive, "always", delay=0.5)
    report = sweep(
        turn,
        faults=("cancel", "sigint"),
        pairs=[("cancel", "cancel")],
        seeds=[0],
        sample=0.3 if full_sweeps else 1.0,
        max_positions=None if full_sweeps else 3,
    )
    report.raise_if_failed()
    print("structured", drive, report.positions, "positions with slow commits")


@pytest.mark.parametrize("drive", DRIVES)
def test_the_same_on_sqlite(drive: Drive, full_sweeps: bool) -> None:
    for kind in ("always", "filtered"):
        turn = StructuredTurn(drive, kind, sqlite=True, delay=0.5)
        report = sweep(
            turn,
            faults=("cancel", "crash", "sigint"),
            seeds=[0],
            max_positions=40 if full_sweeps else 4,
        )
        report.raise_if_failed()
        print("structured", drive, kind, report.positions, "positions on SQLite")


def test_the_turn_without_a_fault_ends_in_its_value() -> None:
    turn = StructuredTurn("generate", "filtered")
    case = turn()
    trio.run(case.run, clock=trio.testing.MockClock(autojump_threshold=0))
    history = turn.agent.history
    replies = [message.text for message in history if message.role == "assistant"]
    assert replies == ["", "It is sunny.", "", '{"city": "Oslo"}', SUNNY]
    statuses = [
        each.status.value for message in turn.agent.history for each in message.tool_results
    ]
    assert statuses == ["ok", "error", "unavailable", "ok", "unavailable"]
