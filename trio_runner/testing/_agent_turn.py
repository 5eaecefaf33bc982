"""`AgentTurn` and `check_agent`: the cancellation suite on an agent of the user's.

What may live here: how an agent that others made is watched from the outside,
and the sweeps that `check_agent` makes of it. The report is ``_contract_report.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

import attrs
import trio
import trio.testing

import trio_runner._core.errors as errors
import trio_runner._core.values as v
import trio_runner.abc as abc
from trio_runner._journal.memory import Fate
from trio_runner._shell.agent import ToolAgent
from trio_runner._shell.loop_agent import Planned
from trio_runner.testing._contract_report import ContractReport, PartReport
from trio_runner.testing._examples import example_arguments
from trio_runner.testing._faults import FAULTS, Fault, as_fault
from trio_runner.testing._scripted import ScriptedModel, ScriptItem, call
from trio_runner.testing._sweep import sweep
from trio_runner.testing._turn_cases import DRIVES, SESSION, Drive, TurnCases

_BATCHES: Final = (3, 2)


class AgentTurn(TurnCases):
    """Makes cases of one turn of an agent of yours, with the contract as their check.

    The model is a script; the tools, the hooks and all the rest are the
    agent's own. Each position has an agent of its own, so ``make_agent`` must
    make everything anew that the tools change.

    Args:
      make_agent: makes the agent. It may take ``journal`` and ``session`` (both
        go to `ToolAgent`), so that the session is swept too, and ``model``.
      replies: the script, see `ScriptedModel`; None: `script_for` its tools.
      drive: how the turn is driven.
      settings: as for `TurnCases`.
    """

    def __init__(
        self,
        make_agent: Callable[..., ToolAgent],
        replies: Sequence[ScriptItem] | None = None,
        drive: Drive = "until_done",
        **settings: Any,
    ) -> None:
        settings.setdefault("own_errors", (errors.FatalToolError,))
        super().__init__(drive, **settings)
        self._make_agent = make_agent
        self._takes = _names_of(make_agent)
        #: Whether the session is swept.
        self.has_journal: bool = self._takes >= {"journal", "session"}
        self.replies: tuple[ScriptItem, ...] = tuple(
            script_for(self._bare_agent) if replies is None else replies
        )

    def make(self) -> None:
        """Make the agent of one case, and watch it."""
        witness = self.witness
        self.journal = self.make_journal() if self.has_journal else None
        model = witness.model(ScriptedModel(self.replies))
        settings: dict[str, Any] = {"model": model}
        if self.journal is not None:
            settings |= {"journal": witness.journal(self.journal), "session": SESSION}
        self.agent = agent = self._agent(settings)
        agent.model = model
        self._grace = agent.config.grace
        inner = cast(
            "Callable[[Planned, abc.ToolContext], Awaitable[v.ToolResult]]", agent.call_tool
        )
        watched: dict[int, abc.Tool] = {}

        async def call_tool(planned: Planned, context: abc.ToolContext) -> v.ToolResult:
            tool = planned.tool
            assert tool is not None
            if id(tool) not in watched:
                watched[id(tool)] = witness.tool(tool)
            return await inner(attrs.evolve(planned, tool=watched[id(tool)]), context)

        # On the object, so that whatever class the agent has keeps its own method.
        setattr(agent, "call_tool", call_tool)  # noqa: B010

    def _bare_agent(self) -> ToolAgent:
        settings: dict[str, Any] = {"model": ScriptedModel(["an answer"])}
        if self.has_journal:
            settings |= {"journal": self.make_journal(), "session": SESSION}
        return self._agent(settings)

    def _agent(self, settings: dict[str, Any]) -> ToolAgent:
        agent = self._make_agent(**{k: each for k, each in settings.items() if k in self._takes})
        if not hasattr(agent, "conversation"):
            raise TypeError(f"make_agent returned {agent!r}; expected a ToolAgent")
        return agent


def script_for(make_agent: Callable[[], ToolAgent]) -> list[ScriptItem]:
    """A script that calls every tool of an agent: three at once, then two, and so on; then answers.

    With one or two tools they are called more than once, so that there are
    parallel calls in any case. The arguments are `example_arguments`. Call it
    outside trio: it enters the agent to list its tools.
    """
    listed: list[abc.Tool] = []

    async def list_tools() -> None:
        async with make_agent() as agent:
            listed.extend(await agent.list_tools())

    trio.run(list_tools, clock=trio.testing.MockClock(autojump_threshold=0))
    script: list[ScriptItem] = []
    calls = [call(each.name, **example_arguments(each.input_schema)) for each in listed]
    wanted = max(len(calls), sum(_BATCHES)) if calls else 0
    todo = [calls[number % len(calls)] for number in range(wanted)]
    while todo:
        size = _BATCHES[len(script) % 2]
        script.append(todo[:size])
        todo = todo[size:]
    return [*script, "the answer", "never asked for"]


def check_agent(
    make_agent: Callable[..., ToolAgent],
    replies: Sequence[ScriptItem] | None = None,
    *,
    drives: Iterable[Drive] = DRIVES,
    delays: Iterable[Fate] = (0.0, 0.5),
    faults: Iterable[str | Fault] | None = None,
    pairs: Iterable[tuple[str | Fault, str | Fault]] = (),
    seeds: Iterable[int] = range(2),
    sample: float = 1.0,
    max_positions: int | None = None,
    max_failures: int | None = 20,
    **settings: Any,
) -> ContractReport:
    """Run the cancellation suite on an agent of yours, and say which promises hold.

    Every fault before every step of a scripted turn, for each way to drive it.

    Args:
      make_agent, replies, settings: see `AgentTurn`.
      drives: the ways to drive the turn.
      delays: of the commits, in seconds; only for an agent that takes a journal.
      faults: None: all that the agent has a place for.
      pairs, seeds, sample, max_positions, max_failures: see `sweep`; for each
        drive and delay.

    Raises:
      SweepError: the agent is not deterministic, for instance.
    """
    wanted = [as_fault(each) for each in (FAULTS.values() if faults is None else faults)]
    parts: list[PartReport] = []
    left_out: dict[str, str] = {}
    for drive in drives:
        for delay in delays:
            cases = AgentTurn(make_agent, replies, drive, delay=delay, **settings)
            if not cases.has_journal and parts and parts[-1].drive == drive:
                continue  # without a journal a delay changes nothing
            replies = cases.replies
            for watched in (False, True):
                cases = AgentTurn(
                    make_agent, replies, drive, delay=delay, watched=watched, **settings
                )
                seams = cases().seams.keys()
                # What is watched differs only where somebody watches.
                ours = [
                    fault
                    for fault in wanted
                    if (fault.seam in ("hook", "observer")) == watched
                    and (fault.seam is None or fault.seam in seams)
                ]
                left_out |= {
                    fault.name: f"the agent has no {fault.seam!r} to fail"
                    for fault in wanted
                    if fault.seam in ("journal", "commit") and fault.seam not in seams
                }
                if not ours:
                    continue
                report = sweep(
                    cases,
                    faults=ours,
                    pairs=() if watched else pairs,
                    seeds=seeds,
                    sample=sample,
                    max_positions=max_positions,
                    max_failures=max_failures,
                )
                parts.append(PartReport(drive, delay, watched, report))
    return ContractReport(parts=tuple(parts), left_out=left_out)


def _names_of(make_agent: Callable[..., object]) -> set[str]:
    """Which of the settings a factory takes."""
    parameters = inspect.signature(make_agent).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return {"model", "journal", "session"}
    return {each.name for each in parameters} & {"model", "journal", "session"}
