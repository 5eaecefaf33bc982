"""Real processes: one asks and is killed, another decides and finishes.

Every tool writes a line into a file before it does anything, so what ran is known whatever
was killed. A process kills itself with SIGKILL at a place it is told: no handler runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import trio_runner as tr
from trio_runner import records as r

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

PROGRAM = """
import json, os, signal, sys, time

import trio
import trio_runner as tr
from trio_runner.testing import ScriptedModel, call

path, effects, mode, die_at = sys.argv[1:5]
die_after = int(die_at)
ASKS = [
    call("look", id="c1", n=1),
    call("pay", id="c2", n=2),
    call("pay", id="c3", n=3),
    call("human", id="c4"),
]
WORDS = {"c2": tr.Approve({"n": 20}), "c3": tr.Deny("no."), "c4": "by hand"}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def note(line):
    with open(effects, "a") as stream:
        stream.write(line + "\\n")
        stream.flush()
        os.fsync(stream.fileno())


class Dies(tr.SqliteJournal):
    '''Kills its process at the k-th append: before it, or as soon as it is durable.'''

    async def open(self, session_id):
        session = await super().open(session_id)
        append, count = session.append, [0]

        def counted(records):
            count[0] += 1
            if count[0] == die_after and mode.endswith("before"):
                die()
            ticket = append(records)
            if count[0] == die_after:
                while not ticket.done:
                    time.sleep(0.001)  # the writer is a thread; its outcome reaches no ticket here
                    if durable(session_id, records):
                        break
                die()
            return ticket

        session.append = counted
        return session


def durable(session_id, records):
    stored = tr.SqliteJournal(path).stored(session_id)
    return tuple(stored[-len(records):]) == tuple(records)


async def look(n: int) -> str:
    note(f"look {n}")
    return f"looked {n}"


@tr.tool(needs_approval=True)
async def pay(n: int) -> str:
    note(f"pay {n}")
    return f"paid {n}"


async def approver(request):
    note(f"asked {request.call.id}")
    if mode == "inline":
        die()
    return WORDS[request.call.id]


def reply(request):
    return "done" if any(each.tool_calls for each in request.history) else ASKS


async def main():
    agent = tr.ToolAgent(
        "killed",
        model=ScriptedModel([reply] * 3),
        tools=[look, pay, tr.external_tool("human", "Asks.", {"type": "object"})],
        approver=approver if mode == "inline" else None,
        journal=Dies(path),
        session="s",
    )
    async with agent:
        if agent.can_resume:
            decisions = {each.call_id: WORDS[each.call_id] for each in agent.pending}
            await agent.resume(decisions=decisions or None)
        elif agent.last_turn is None:
            await agent.generate("go")
        print(json.dumps([
            agent.last_turn.end_reason.value,
            [each.call_id for each in agent.pending],
            {e.call_id: [e.status.value, e.text] for m in agent.history for e in m.tool_results},
        ]))


trio.run(main)
"""


class Machine:
    """One session and one file of effects; runs a process after the other on them."""

    def __init__(self, folder: Path) -> None:
        self.path, self.effects = folder / "j.db", folder / "effects"

    def run(self, mode: str = "whole", die_at: int = 0) -> Any:
        """What the process said; None when it was killed."""
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(self.path), str(self.effects), mode, str(die_at)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if done.returncode == -9:
            return None
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def finish(self) -> dict[str, list[str]]:
        """Processes until the turn is answered; the results by call."""
        for _ in range(4):
            end, pending, results = self.run()
            if end == "answered":
                assert pending == []
                return results
        raise AssertionError("four processes did not bring the turn to its answer")

    @property
    def happened(self) -> Counter[str]:
        return Counter(self.effects.read_text().split("\n")[:-1] if self.effects.exists() else [])

    @property
    def records(self) -> tuple[r.Record, ...]:
        return tuple(tr.SqliteJournal(self.path).stored("s"))


@pytest.mark.slow
def test_ask_be_killed_restart_decide_and_finish(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    # The commits of the first process: opened, started, replied, begun, looked, three held, ended.
    assert machine.run("after", die_at=len(FIRST_COMMITS)) is None
    assert machine.records[-1] == r.TurnEnded(1, tr.EndReason.SUSPENDED)
    end, pending, results = machine.run()
    assert (end, pending) == ("answered", [])
    assert results["c1"] == ["ok", "looked 1"]
    assert results["c2"] == ["ok", "paid 20"]
    assert results["c3"] == ["denied", "Denied: no. It was not run and had no effect."]
    assert results["c4"] == ["ok", "by hand"]
    # The denied tool never ran; the edited arguments are what ran and what is recorded.
    assert machine.happened == Counter({"look 1": 1, "pay 20": 1})
    edited = [each for each in machine.records if type(each) is r.CallEdited]
    assert edited == [r.CallEdited(1, 0, "c2", {"n": 20})]
    [started] = [e for e in machine.records if type(e) is r.ToolStarted and e.call_id == "c2"]
    assert started.arguments_hash == r.arguments_hash({"n": 20})


FIRST_COMMITS = ("opened", "started", "replied", "begun", "looked", "held", "held", "held", "ended")
#: Started with the decisions, begun, paid, replied, ended.
SECOND_COMMITS = 5


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_each_record_it_comes_to_the_same_end(
    when: str, tmp_path: Path, full_sweeps: bool
) -> None:
    """Asking and deciding, each cut at each of its commits."""
    first = range(1, len(FIRST_COMMITS) + 1) if full_sweeps else (4, 7, 9)
    second = range(1, SECOND_COMMITS + 1) if full_sweeps else (1, 2, 3)
    places = [(place, 0) for place in first] + [(0, place) for place in second]
    for asking, deciding in places:
        folder = tmp_path / f"{asking}-{deciding}"
        folder.mkdir()
        machine = Machine(folder)
        where = f"killed {when} commit {asking or deciding} of {'asking' if asking else 'deciding'}"
        killed = machine.run(when, die_at=asking) if asking else machine.run()
        assert (killed is None) == bool(asking), where
        if deciding:
            assert machine.run(when, die_at=deciding) is None, where
        begun = {e.call_id for e in machine.records if type(e) is r.ToolStarted}
        finished = {e.result.call_id for e in machine.records if type(e) is r.ToolFinished}
        results = machine.finish()
        # Never the denied one, nothing twice, nothing with other arguments.
        assert machine.happened <= Counter({"look 1": 1, "pay 20": 1}), where
        assert results["c3"][0] == "denied", where
        assert results["c4"] == ["ok", "by hand"], where
        for call_id, line in (("c1", "look 1"), ("c2", "pay 20")):
            cut = call_id in begun - finished
            assert results[call_id][0] == ("unknown_after_crash" if cut else "ok"), where
            assert cut or machine.happened[line] == 1, where


@pytest.mark.slow
def test_killed_while_the_approver_is_asked_the_calls_wait(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.run("inline") is None
    [asked] = [line for line in machine.happened if line.startswith("asked")]
    stored = machine.records
    held = {each.call_id for each in stored if type(each) is r.CallHeld}
    # What was recorded may or may not have reached the disk; nothing ran unasked in any case.
    assert held in ({"c2", "c3"}, set())
    results = machine.finish()
    assert results["c2"] == ["ok", "paid 20"]
    assert results["c3"][0] == "denied"
    assert {line for line in machine.happened if not line.startswith("look")} == {asked, "pay 20"}
