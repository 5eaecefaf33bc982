"""trio_runner: the reference turn under the library's own sweep, judged as its peers are.

What may live here: our column of the table. The history, the store and the next
request go through the same rules as everybody's; whatever else the library's
contract checks find is counted too.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import _growth
import _kill
import _peer
import attrs
import trio
from _histories import Said, Seen, judge
from _reference import NEXT_ANSWER, NEXT_PROMPT, PROMPT

import trio_runner as tr
from trio_runner.testing import Case, Outcome, ScriptedModel, SweepReport, sweep
from trio_runner.testing.reference import SESSION, ReferenceTurn

FAULTS: Final = ("cancel", "deadline", "crash", "sigint")
SEEDS: Final = range(8)
#: The share of the pairs of cancels that is run; the count is printed.
PAIRS_SHARE: Final = 0.5

#: What the contract's sentences say, by the table's words.
_WORDS: Final = {
    "swallowed": "cancel swallowed",
    "left running": "tool left running",
    "still running": "tool left running",
    "did not end by itself": "never returned",
    "to leave, more than": "never returned",
}


def said_of(messages: Iterable[tr.Message]) -> Iterator[Said]:
    """The messages in the common form."""
    for message in messages:
        if message.tool_results:
            pairs = [(result.call_id, result.text) for result in message.tool_results]
            yield Said("tool", results=tuple(pairs))
        if message.role == "assistant":
            yield Said("assistant", message.text, tuple(call.id for call in message.tool_calls))
        elif not message.tool_results:
            yield Said("user", message.text)


class Judged:
    """Makes cases of the reference turn that are judged as the peers are.

    Args:
      turn: makes the cases.
      go_on: whether a further turn is tried on each history.
      compare: whether the store is compared with memory.
    """

    def __init__(self, turn: ReferenceTurn, *, go_on: bool = True, compare: bool = True) -> None:
        self._turn = turn
        self._go_on = go_on
        self._compare = compare

    def __call__(self) -> Case:
        """A new case."""
        case = self._turn()

        def check(outcome: Outcome) -> Iterator[str]:
            # First, since a further turn changes what is there.
            for text in case.check(outcome) or ():
                yield f"{_word(text)}: {text}"
            yield from self._judge()

        return attrs.evolve(case, check=check)

    def _judge(self) -> Iterator[str]:
        ledger = self._turn.ledger
        returned = {call_id: str(value) for call_id, value in ledger.returned.items()}
        seen = Seen(list(said_of(self._turn.agent.history)))
        stored: Any = self._turn.journal
        if self._compare and stored is not None:
            seen.disk = list(said_of(tr.fold(stored.stored(SESSION)).history.snapshot()))
        if self._go_on:
            self._next_turn(seen)
        running = set(ledger.entered) - ledger.left
        for kind, text in judge(returned, seen, running=running):
            yield f"{kind}: {text}"

    def _next_turn(self, seen: Seen) -> None:
        """A further turn of a new agent that opens the session, as the next process would."""
        model = ScriptedModel([NEXT_ANSWER], check=False)
        journal: Any = self._turn.journal
        agent = tr.ToolAgent("next", model=model, journal=journal, session=SESSION)
        try:
            trio.run(_generate, agent, NEXT_PROMPT)
        except tr.TrioRunnerError as exc:
            seen.refusal = f"{type(exc).__name__}: {exc}"
        else:
            seen.next_request = list(said_of(model.requests[0].history))


async def _generate(agent: tr.ToolAgent, prompt: str) -> None:
    async with agent:
        await agent.generate(prompt)


def _word(text: str) -> str:
    """The table's word for a sentence of the contract's checks."""
    return next((word for part, word in _WORDS.items() if part in text), "contract broken")


def count(report: SweepReport) -> dict[str, int]:
    """At how many positions each kind was found."""
    counts: collections.Counter[str] = collections.Counter()
    for failure in report.failures:
        counts.update({text.partition(": ")[0] for text in failure.violations})
    return dict(counts)


def _numbers(report: SweepReport) -> dict[str, Any]:
    return {
        "positions": report.positions,
        "skipped": report.skipped,
        "seeds": len(report.seeds),
        "by_fault": dict(report.counts),
        "end_states": len(report.end_states),
        "counts": count(report),
        "examples": [failure.render() for failure in report.failures[:3]],
    }


def _swept(report: _peer.Report, seeds: Sequence[int]) -> None:
    done = sweep(Judged(ReferenceTurn()), faults=FAULTS, seeds=seeds)
    report.data["sweeps"]["cancel"] = _numbers(done)
    counts = count(done)
    report.rows["positions swept"] = f"{done.positions:,}"
    for kind in _peer.KINDS:
        report.rows[kind] = str(counts.get(kind, 0))
    report.rows["another promise of the contract broken"] = str(counts.get("contract broken", 0))
    report.note(
        "positions swept",
        f"every step × {len(FAULTS)} kinds of fault ({', '.join(FAULTS)}) × {len(seeds)} seeds",
    )


def _paired(report: _peer.Report) -> None:
    turn = ReferenceTurn(delay=0.5)
    done = sweep(
        Judged(turn, go_on=False),
        faults=(),
        pairs=[("cancel", "cancel")],
        seeds=[0],
        sample=PAIRS_SHARE,
    )
    report.data["sweeps"]["pairs"] = _numbers(done)
    counts = count(done)
    total = f"of {done.positions:,}"
    for kind, row in _peer.PAIR_ROWS.items():
        report.rows[row] = f"{counts.get(kind, 0)} {total}"
    report.note(
        "disk behind memory after a second cancel",
        f"{done.positions:,} of {done.positions + done.skipped:,} pairs; a `MemoryJournal` whose "
        "commits take their time",
    )


def _hung(report: _peer.Report) -> None:
    turn = ReferenceTurn(delay="hang")
    done = sweep(Judged(turn, go_on=False, compare=False), faults=["cancel"], seeds=[0])
    report.data["sweeps"]["hanging"] = _numbers(done)
    missed = count(done).get("never returned", 0)
    report.rows["hanging store: the turn never returns"] = f"{missed} of {done.positions}"
    report.note(
        "hanging store: the turn never returns",
        "a `MemoryJournal` that hangs from the start; each turn was left within `grace`",
    )


# --- in real time, with a real file -----------------------------------------------


class _SlowModel(ScriptedModel):
    """Says when the turn begins, and takes its time."""

    def __init__(self, folder: Path) -> None:
        calls = [
            [tr.ToolCall(f"c{number}", name, {}) for number, name in batch]
            for batch in (((1, "tidy"), (2, "quick"), (3, "plain")), ((4, "tidy"), (5, "plain")))
        ]
        super().__init__([*calls, "the answer"], delay=_kill.MODEL_SECONDS)
        self._folder = folder

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        """Play the next item."""
        _kill.begin(self._folder)
        return await super().reply(request, emit)


def _tools(folder: Path) -> Iterable[Callable[..., Any]]:
    async def work() -> str:
        """Take some time."""
        call_id = tr.current_tool_context().call_id
        await trio.sleep(_kill.TOOL_SECONDS[call_id])
        return _kill.note(folder, call_id)

    async def tidy() -> str:
        """Take some time."""
        return await work()

    async def quick() -> str:
        """Take some time."""
        return await work()

    async def plain() -> str:
        """Take some time."""
        return await work()

    return [tidy, quick, plain]


def _killed_child(folder: Path) -> None:
    """A turn in real time that somebody will kill."""
    agent = tr.ToolAgent(
        "reference",
        model=_SlowModel(folder),
        tools=_tools(folder),
        journal=tr.SqliteJournal(folder / "journal.db"),
        session=SESSION,
    )
    trio.run(_generate, agent, PROMPT)


def _stored(folder: Path) -> dict[str, str]:
    """The results in the history, once the next process has opened the session and gone on."""
    agent = tr.ToolAgent(
        "next",
        model=ScriptedModel([NEXT_ANSWER]),
        journal=tr.SqliteJournal(folder / "journal.db"),
        session=SESSION,
    )
    trio.run(_generate, agent, NEXT_PROMPT)
    return dict(pair for message in said_of(agent.history) for pair in message.results)


def _long_turn(steps: int) -> int:
    """The bytes that a turn of ``steps`` steps writes with a `SqliteJournal`."""

    async def quick() -> str:
        """Return a text of some size."""
        return "x" * _growth.RESULT_SIZE

    script = [tr.ToolCall(call.id, call.tool, {}) for (call,) in _growth.script(steps)]
    with tempfile.TemporaryDirectory() as folder:
        agent = tr.ToolAgent(
            "reference",
            model=ScriptedModel([*script, "the answer"], check=False),
            tools=[quick],
            journal=tr.SqliteJournal(Path(folder, "journal.db")),
            session=SESSION,
            params=tr.RequestParams(max_iterations=1000),
        )
        with _growth.counted() as written:
            trio.run(_generate, agent, PROMPT)
    return written[0]


def main() -> None:
    """Print what was measured, as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds are swept")
    arguments = parser.parse_args()
    report = _peer.Report("trio_runner", "trio-runner", version=tr.__version__)
    report.killed(_kill.sweep(_killed_child, _stored))
    report.growth({steps: _long_turn(steps) for steps in _growth.LENGTHS})
    _swept(report, range(arguments.seeds))
    _paired(report)
    _hung(report)
    report.note("history", "`agent.history`; the next turn is of a new agent on the same session")
    report.note("bytes written over a turn of n steps", "`SqliteJournal`")
    report.note("kill -9: a returned result lost on disk", "`SqliteJournal`")
    report.print()


if __name__ == "__main__":
    main()
