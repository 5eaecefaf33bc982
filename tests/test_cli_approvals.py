"""``trio-runner sessions`` on a turn that waits: what it shows, and how to decide there."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

import trio_runner as tr
import trio_runner._cli.group as group

AGENTS = """
    import trio_runner as tr
    from trio_runner.testing import ScriptedModel, call

    ASKS = [
        call("pay", id="c1", amount=5),
        call("pay", id="c2", amount=7),
        call("human", id="c3"),
    ]


    def reply(request):
        return "done" if any(each.tool_calls for each in request.history) else ASKS


    @tr.tool(needs_approval=True)
    async def pay(amount: int) -> str:
        print("paid", amount)
        return f"paid {amount}"


    human = tr.external_tool("human", "Asks.", {"type": "object"})


    def make(journal, session):
        model = ScriptedModel([reply, reply])
        tools = [pay, human]
        return tr.ToolAgent("bank", model=model, tools=tools, journal=journal, session=session)
"""

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs a command on a journal with a session that is suspended."""
    (tmp_path / "agents_that_ask.py").write_text(textwrap.dedent(AGENTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("TRIO_RUNNER_JOURNAL", str(tmp_path / "journal.db"))
    agents: Any = __import__("agents_that_ask")

    async def ask() -> None:
        async with agents.make(tr.SqliteJournal("journal.db"), "s") as agent:
            await agent.generate("go")

    tr.run(ask)

    def run(*arguments: str) -> Any:
        done = click.testing.CliRunner().invoke(group.cli, ["sessions", *arguments])
        print(done.stdout, done.stderr)  # for a test that fails
        return done

    yield run
    sys.modules.pop("agents_that_ask", None)


def resume(run: Run, *arguments: str) -> Any:
    return run("resume", "s", "--agent", "agents_that_ask:make", *arguments)


def test_a_list_says_that_a_session_is_suspended(run: Run) -> None:
    assert "\tsuspended\t" in run("list").stdout
    [summary] = json.loads(run("list", "--json").stdout)
    assert summary["state"] == "suspended"
    assert [(each["call_id"], each["waits_for"]) for each in summary["pending"]] == [
        ("c1", "approval"),
        ("c2", "approval"),
        ("c3", "external"),
    ]


def test_show_says_what_it_waits_for(run: Run) -> None:
    shown = run("show", "s").stdout
    assert 'c1: pay {"amount": 5} waits for approval' in shown
    assert "c3: human {} waits for its result, from the application" in shown


def test_resume_without_decisions_shows_what_waits_and_runs_nothing(run: Run) -> None:
    done = resume(run)
    assert done.exit_code == 3
    assert 'c2: pay {"amount": 7} waits for approval' in done.stderr
    assert "--approve ID" in done.stderr
    assert "paid" not in done.stderr + done.stdout
    assert resume(run, "--json").exit_code == 3


def test_calls_are_decided_on_at_the_terminal(run: Run) -> None:
    done = resume(run, "--approve", "c1", "--deny", "c2=too much = too much")
    assert done.exit_code == 3
    assert "paid 5" in done.stderr
    assert "paid 7" not in done.stderr
    assert "c3: human" in done.stderr
    assert "c1" not in done.stderr.replace("--approve", "")
    done = resume(run, "--deny", "c3=nobody is there", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "session_id": "s",
        "end_reason": "answered",
        "answer": "done",
        "pending": [],
    }
    history = tr.fold(tr.SqliteJournal("journal.db").stored("s")).messages
    texts = [each.text for each in history[2].tool_results]
    assert texts[1:] == [
        "Denied: too much = too much. It was not run and had no effect.",
        "Denied: nobody is there. It was not run and had no effect.",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--approve", "c9"], "no call 'c9' waits"),
        (["--approve", "c3"], "is external"),
        (["--approve", "c1", "--deny", "c1=x"], "approved and denied"),
        (["--deny", "c1=x", "--deny", "c1=y"], "denied twice"),
    ],
)
def test_a_wrong_decision_is_used_wrongly(run: Run, arguments: list[str], says: str) -> None:
    done = resume(run, *arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "paid" not in done.stderr
