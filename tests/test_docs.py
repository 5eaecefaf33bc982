"""The docs tell the truth: their programs run, the tests and pages that they name are there."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

import trio_runner as tr
from trio_runner._core.history import History
from trio_runner._core.records import arguments_hash
from trio_runner._core.turn import Turn
from trio_runner.testing.contract import CONTRACT as PROMISES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("docs/examples/*.py"))
CONTRACT = ROOT / "docs/explanation/contract.md"
HOOK_ERRORS = ROOT / "docs/explanation/hook-errors.md"
TURN_MACHINE = ROOT / "docs/explanation/turn-machine.md"


# --- programs -------------------------------------------------------------------


def blocks(page: Path) -> list[str]:
    """The fenced Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run_program(code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a process of its own, with warnings as errors."""
    paths = [str(ROOT), str(ROOT / "adapters"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs_and_prints_something(path: Path) -> None:
    done = run_program(path.read_text("utf-8"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


BLOCKS = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_of_a_page_runs(code: str) -> None:
    if "trio_runner_adapters.mcp" in code:
        pytest.importorskip("mcp", reason="the block uses the extra mcp")
    if "import fastmcp" in code:
        pytest.importorskip("fastmcp", reason="the block uses the extra fastmcp")
    done = run_program(code)
    assert done.returncode == 0, done.stderr


def test_a_program_that_warns_or_fails_is_noticed() -> None:
    assert run_program("import warnings; warnings.warn('careful')").returncode != 0
    assert run_program("1 / 0").returncode != 0
    assert run_program("print('fine')").stdout == "fine\n"


def test_the_canonical_agent_does_what_the_page_says() -> None:
    done = run_program((ROOT / "docs/examples/canonical_agent.py").read_text("utf-8"))
    assert done.stdout.splitlines() == [
        "tools: get_weather, get_weather",
        "Snow in Oslo, sun in Rome.",
        "message: ['get_weather']",
        "tools: get_weather",
        "message: Rain in Cairo, of all places.",
        "ended: answered",
        # Each turn: the input, the style hint, one step with calls and results, the answer.
        "history: 10 messages",
    ]


# --- names and links ------------------------------------------------------------


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_bytes())
    return frozenset(
        [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    )


def named_tests(text: str) -> list[tuple[str, str | None]]:
    """Every ``tests/test_x.py`` in ``text``, with its ``::test_name`` when it has one."""
    found = re.findall(r"(tests/test_[a-z]\w*\.py)(?:::(\w+))?", text)
    return [(path, name or None) for path, name in found]


def missing_tests(text: str) -> list[str]:
    missing: list[str] = []
    for path, name in named_tests(text):
        if not (ROOT / path).is_file():
            missing.append(path)
        elif name is not None and name not in functions_of(ROOT / path):
            missing.append(f"{path}::{name}")
    return missing


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Title and text of each section of the second level."""
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        yield title, body


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_is_there(page: Path) -> None:
    assert missing_tests(page.read_text("utf-8")) == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    here = "tests/test_docs.py"
    text = f"`{here}::test_of_nothing`, `tests/test_of_nothing.py`, `{here}::missing_tests`"
    assert missing_tests(text) == [f"{here}::test_of_nothing", "tests/test_of_nothing.py"]


def test_each_promise_of_the_contract_names_a_test() -> None:
    titles: list[str] = []
    for title, body in sections(CONTRACT.read_text("utf-8")):
        if re.match(r"C\d ", title):
            titles.append(title[:2])
            assert [name for _, name in named_tests(body) if name], f"{title}: no test"
    assert titles == [f"C{number}" for number in range(1, 10)]


def test_each_promise_of_the_contract_names_its_check() -> None:
    named = {
        title[:2]: re.findall(r"^Checked by `contract\.(\w+)`\.$", body, re.MULTILINE)
        for title, body in sections(CONTRACT.read_text("utf-8"))
        if re.match(r"C\d ", title)
    }
    assert named == {name: [getattr(check, "__name__", "")] for name, check in PROMISES.items()}


def test_each_line_of_the_hook_error_policy_names_a_test() -> None:
    text = HOOK_ERRORS.read_text("utf-8")
    lines = re.findall(r"^\* .*?(?=^\* |^\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(lines) > 8
    for line in lines:
        assert [name for _, name in named_tests(line) if name], line


def test_the_tables_have_every_status_end_reason_and_hook() -> None:
    rows = dict(sections(CONTRACT.read_text("utf-8")))
    statuses = re.findall(r"^\| `(\w+)` \|", rows["C4 The record is true"], re.MULTILINE)
    assert statuses == ["CallStatus", *[status.value for status in tr.CallStatus]]
    reasons = re.findall(r"^\| .* \| `(\w+)` \| .* \|$", rows["How a turn ends"], re.MULTILINE)
    assert set(reasons) == {"EndReason", *[reason.value for reason in tr.EndReason]}
    hooks = re.findall(r"^\| `(\w+)` \|", HOOK_ERRORS.read_text("utf-8"), re.MULTILINE)
    assert hooks == [field.name for field in attrs.fields(tr.ToolRunnerHooks)]


def broken_links(page: Path, text: str) -> list[str]:
    """Links of a page to files of the project that are not there."""
    targets = re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    local = [target for target in targets if not re.match(r"[a-z]+:|#", target)]
    return [each for each in local if not (page.parent / each.partition("#")[0]).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text("utf-8")) == []


def test_a_broken_link_is_noticed() -> None:
    text = "[a](contract.md) [b](nowhere.md#x) [c](https://example.org/) [d](#here)"
    assert broken_links(CONTRACT, text) == ["nowhere.md#x"]


# --- the diagram of the turn machine --------------------------------------------

Arrow = tuple[str, str, str]


def drawn_arrows(text: str) -> set[Arrow]:
    """The labelled arrows of the diagram: from, to, event."""
    arrows: set[Arrow] = set()
    for begin, end, label in re.findall(r"^ +(\w+) --> (\w+): (.*)$", text, re.MULTILINE):
        events = re.findall(r"model_replied|tool_started|tool_finished|step_done|finish\b", label)
        events += re.findall(r"call_held|call_approved|arguments_edited|suspend\b", label)
        events += re.findall(r"passed_through|answer_refused", label)
        events += re.findall(r"interrupt|resumed", label)
        assert events, f"no event in {label!r}"
        arrows |= {(begin, end, event) for event in events}
    return arrows


class Walker:
    """Feeds one turn and notes which arrow each event took."""

    def __init__(self) -> None:
        self.turn = Turn(History(), 1)
        self.turn.input_added([tr.Message.user("go")])
        self.taken: set[Arrow] = set()

    def _state(self) -> str:
        decided = self.turn._decided is not None
        return "decided" if decided else self.turn.phase.value

    def take(self, event: Callable[..., object], *args: object) -> Walker:
        before = self._state()
        event(*args)
        self.taken.add((before, self._state(), event.__name__))
        return self


def walked_arrows() -> set[Arrow]:
    calls = [tr.ToolCall("1", "a"), tr.ToolCall("2", "b")]
    asks = tr.Message.assistant(tool_calls=calls)
    answer = tr.Message.assistant("done")
    paused = tr.Message.assistant("…", stop_reason=tr.StopReason.PAUSE)
    results = [tr.ToolResult(call.id, call.name, "x") for call in calls]
    stop = tr.EndReason.INTERRUPTED

    whole = Walker()
    turn = whole.turn
    whole.take(turn.model_replied, paused).take(turn.step_done)
    whole.take(turn.model_replied, asks).take(turn.tool_started, 0)
    whole.take(turn.tool_finished, 0, results[0]).take(turn.tool_finished, 1, results[1])
    whole.take(turn.step_done).take(turn.model_replied, answer).take(turn.finish)
    early, amid, late = Walker(), Walker(), Walker()
    early.take(early.turn.interrupt, stop).take(early.turn.resumed)
    amid.take(amid.turn.model_replied, asks).take(amid.turn.resumed)
    amid.take(amid.turn.interrupt, stop)
    late.take(late.turn.model_replied, answer).take(late.turn.interrupt, tr.EndReason.FAILED)
    suspended, refused, passed = Walker(), Walker(), Walker()
    suspended.take(suspended.turn.model_replied, asks)
    digest = arguments_hash({})
    suspended.take(suspended.turn.call_held, 0, "approval", digest)
    suspended.take(suspended.turn.arguments_edited, 0, {})
    suspended.take(suspended.turn.call_approved, 0, digest).take(suspended.turn.suspend)
    suspended.take(suspended.turn.resumed)
    refused.take(refused.turn.model_replied, answer)
    refused.take(refused.turn.answer_refused, [tr.Message.user("once more")])
    turn = passed.turn
    passed.take(turn.model_replied, asks).take(turn.tool_finished, 0, results[0])
    passed.take(turn.tool_finished, 1, results[1]).take(turn.step_done)
    passed.take(turn.passed_through, answer)
    walkers = (whole, early, amid, late, suspended, refused, passed)
    return {arrow for walker in walkers for arrow in walker.taken}


def test_the_diagram_shows_the_arrows_that_the_turn_machine_takes() -> None:
    assert drawn_arrows(TURN_MACHINE.read_text("utf-8")) == walked_arrows()
