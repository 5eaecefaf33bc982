"""`AgentTurn` and `check_agent`: the cancellation suite on an agent of the user's.

What may live here: how an agent that others made is watched from the outside,
and the sweeps that `check_agent` makes of it. The report is ``_contract_report.py``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import trio
import trio.testing

import trio_runner._core.errors as errors
import trio_runner._core.values as v
import trio_runner.abc as abc
from trio_runner._journal.memory import Fate
from trio_runner._shell.agent import ToolAgent
from trio_runner.testing._contract_report import ContractReport, PartReport
from trio_runner.testing._examples import example_arguments
from trio_runner.testing._faults import FAULTS, Fault, SweepError, as_fault
from trio_runner.testing._options import listed
from trio_runner.testing._outcome import Outcome
from trio_runner.testing._scripted import ScriptedModel, ScriptExhausted, ScriptItem
from trio_runner.testing._sweep import sweep
from trio_runner.testing._turn_cases import (
    DRIVES,
    SESSION,
    Drive,
    ReadableJournal,
    TurnCases,
)
from trio_runner.testing.contract import CONTRACT

_BATCHES: Final = (3, 2)
_NO_SESSION: Final = "{} takes no journal and session, so no session is swept"
_REASONS: Final = MappingProxyType({"journal": _NO_SESSION, "commit": _NO_SESSION})
#: Errors that something overtakes: no single fault shows whether they are told (C7).
_PAIRS: Final = (
    ("model_error", "cancel"),
    ("hook_error", "sigint"),
    ("journal_error", "commit_error"),
)
_PAIR_POSITIONS: Final = 8
_NO_CALLS: Final = "none is called, so little can go wrong; give a script that calls them"


class AgentTurn(TurnCases):
    """Makes cases of one turn of an agent of yours, with the contract as their check.

    The model is a script; the tools, the hooks and all the rest are the
    agent's own. Each position has an agent of its own, so ``make_agent`` must
    make everything anew that the tools change.

    Args:
      make_agent: makes the agent. It may take ``journal`` and ``session`` (both
        go to `ToolAgent`), so that the session is swept too, and ``model``.
      replies: the script, see `ScriptedModel`; None: `script_for` its tools.
      drive: how the turn is driven; ``break`` leaves a script of a single batch
        after the first message.
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
        if type(replies) is str:
            raise TypeError(f"replies is {replies!r}; expected a script, such as [{replies!r}]")
        self._make_agent = make_agent
        self._takes = _names_of(make_agent)
        #: Whether the session is swept.
        self.has_journal: bool = self._takes >= {"journal", "session"}
        self.replies: tuple[ScriptItem, ...] = tuple(
            script_for(self._bare_agent) if replies is None else replies
        )
        self._made_script = replies is None
        #: The agent of the case before.
        self._former: ToolAgent | None = None
        #: Whether a tool was called in any case so far.
        self.has_called: bool = False
        asking = sum(type(each) in (list, tuple, v.ToolCall) for each in self.replies)
        self._leave_after = 2 if asking > 1 else 1

    def make(self) -> None:
        """Make the agent of one case, and watch it."""
        witness = self.witness
        self.journal: ReadableJournal | None = self.make_journal() if self.has_journal else None
        model = witness.model(ScriptedModel(self.replies))
        settings: dict[str, Any] = {"model": model}
        if self.journal is not None:
            settings |= {"journal": witness.journal(self.journal), "session": SESSION}
        agent = self._agent(settings)
        self.agent: ToolAgent = agent
        if agent is self._former:
            raise SweepError(
                f"make_agent returned {agent!r} again; each position needs an agent of its own"
            )
        self._former = agent
        agent.model = model
        self._grace = agent.config.grace
        # On the object, so that whatever class the agent has keeps its own method.
        watched = functools.partial(witness.call_tool, agent.call_tool)
        setattr(agent, "call_tool", watched)  # noqa: B010

    def check(self, outcome: Outcome) -> Iterator[str]:
        """Yield a sentence for each promise of C1-C9 that does not hold.

        Raises:
          SweepError: the script does not fit the agent.
        """
        if outcome.raised_a(ScriptExhausted):
            raise SweepError(
                f"the script of {len(self.replies)} replies is too short: {outcome.raised}"
            )
        if self._made_script and not outcome.landings:
            self._check_arguments()
        self.has_called = self.has_called or bool(self.ledger.entered)
        return super().check(outcome)

    def _check_arguments(self) -> None:
        """Refuse a made script with calls that a tool does not take: it would sweep nothing."""
        refused = v.CallStatus.INVALID_ARGUMENTS
        for message in self.agent.history:
            for result in message.tool_results:
                if result.status is refused:
                    raise SweepError(
                        f"the script was made from the tools' schemas, and {result.name!r} does "
                        f"not take its arguments: {result.text}. Give a script of your own: "
                        "replies=[[call(...), ...], 'the answer'], or --call on the command line"
                    )

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
    wanted = max(len(listed), sum(_BATCHES)) if listed else 0
    todo: list[v.ToolCall] = []
    for number in range(wanted):
        tool = listed[number % len(listed)]
        # Each call has other arguments, so that results which are swapped show.
        todo.append(v.ToolCall("", tool.name, example_arguments(tool.input_schema, number)))
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
    pairs: Iterable[tuple[str | Fault, str | Fault]] | None = None,
    seeds: Iterable[int] = range(2),
    sample: float = 1.0,
    max_positions: int | None = None,
    max_failures: int | None = 20,
    on_part: Callable[[str], None] | None = None,
    **settings: Any,
) -> ContractReport:
    """Run the cancellation suite on an agent of yours, and say which promises hold.

    Every fault before every step of a scripted turn, for each way to drive it.

    Args:
      make_agent, replies, settings: see `AgentTurn`.
      drives: the ways to drive the turn.
      delays: of the commits, in seconds; only for an agent that takes a journal.
      faults: None: all that the agent has a place for.
      pairs: None: a few that show whether an error that is overtaken is told, at a
        few positions each; with ``faults`` of your own: none.
      seeds, sample, max_positions, max_failures: see `sweep`; for each drive and delay.
      on_part: called before each sweep with a few words on it.

    Raises:
      SweepError: the agent is not deterministic, for instance.
    """
    seed_list = listed("seeds", seeds)
    singles = [(as_fault(each),) for each in (FAULTS.values() if faults is None else faults)]
    own_pairs = pairs is not None or faults is not None
    doubles = [
        (as_fault(first), as_fault(second))
        for first, second in (_PAIRS if pairs is None and faults is None else pairs or ())
    ]
    delay_list, drive_list = tuple(delays), tuple(drives)
    for name, given_list in (("drives", drive_list), ("delays", delay_list)):
        if not given_list:
            raise ValueError(f"{name} is empty; expected at least one, or nothing is swept")
    given = "" if replies is None else ", replies"
    parts: list[PartReport] = []
    left_out: dict[str, str] = {}
    has_called = False
    for drive, delay, watched in itertools.product(drive_list, delay_list, (False, True)):
        cases = AgentTurn(make_agent, replies, drive, delay=delay, watched=watched, **settings)
        if not cases.has_journal and delay != delay_list[0]:
            continue  # without a journal a delay changes nothing
        seams = cases().seams.keys()
        ours = [fault for (fault,) in singles if _belongs((fault,), seams, watched=watched)]
        our_pairs = [pair for pair in doubles if _belongs(pair, seams, watched=watched)]
        if watched:  # all seams that there are, are there now
            factory = getattr(make_agent, "__name__", "make_agent")
            left_out |= _homeless([*singles, *(doubles if own_pairs else ())], seams, factory)
        name = _part_name(cases, drive, delay, watched=watched)
        for few, part_faults, part_pairs in (
            (False, ours, our_pairs if own_pairs else []),
            (True, [], [] if own_pairs else our_pairs),
        ):
            if not part_faults and not part_pairs:
                continue
            if on_part is not None:
                on_part(f"{name}, two faults" if few else name)
            report = sweep(
                cases,
                faults=part_faults,
                pairs=part_pairs,
                seeds=seed_list[:1] if few else seed_list,
                sample=sample,
                max_positions=_PAIR_POSITIONS if few else max_positions,
                max_failures=max_failures,
            )
            has_called = has_called or cases.has_called
            parts.append(PartReport(drive, delay, watched, report, given, _written(settings)))
    if not has_called and any(part.report.positions for part in parts):
        left_out["tools"] = _NO_CALLS
    checked = tuple(settings.get("checks", CONTRACT))
    return ContractReport(parts=tuple(parts), left_out=left_out, checked=checked)


def _belongs(faults: Sequence[Fault], seams: Collection[str], *, watched: bool) -> bool:
    """Whether a part is the one to sweep a fault, or a pair, in.

    What is watched differs only where somebody watches.
    """
    needed = {fault.seam for fault in faults if fault.seam is not None}
    return needed <= set(seams) and bool(needed & {"hook", "observer"}) == watched


def _homeless(
    each: Iterable[Sequence[Fault]], seams: Collection[str], factory: str
) -> dict[str, str]:
    """The faults and pairs that need a seam which the agent does not have."""
    return {
        "+".join(fault.name for fault in faults): _REASONS.get(
            str(missing), f"the agent has no {missing!r} to fail"
        ).replace("{}", factory)
        for faults in each
        for missing in [fault.seam for fault in faults if fault.seam not in (None, *seams)][:1]
    }


def _written(settings: Mapping[str, object]) -> str:
    """Settings as they stand in a call; what is no plain value goes by its name."""
    plain = (str, int, float, bool)
    words = {name: repr(each) if type(each) in plain else name for name, each in settings.items()}
    return "".join(f", {name}={word}" for name, word in words.items())


def _part_name(cases: AgentTurn, drive: Drive, delay: Fate, *, watched: bool) -> str:
    words: list[str] = [drive]
    if cases.has_journal:
        words.append("commits at once" if delay == 0 else f"commits: {delay!r}")
    if watched:
        words.append("with hooks and an observer")
    return ", ".join(words)


def _names_of(make_agent: Callable[..., object]) -> set[str]:
    """Which of the settings a factory takes."""
    parameters = inspect.signature(make_agent).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return {"model", "journal", "session"}
    return {each.name for each in parameters} & {"model", "journal", "session"}
