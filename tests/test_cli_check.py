"""`trio-runner check`: verdicts, exit statuses, what is wrong with a target, Ctrl-C.

Most tests run the command in this process; those marked slow start real ones.
"""

import importlib.machinery
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import click.testing
import pytest
import rich.console
import trio

import trio_runner as tr
import trio_runner._cli.check as check
import trio_runner._cli.check_target as check_target
import trio_runner._cli.check_view as check_view
import trio_runner._cli.group as group
import trio_runner._cli.terminal as terminal
from trio_runner.testing import Case, ContractReport, ScriptedModel, sweep
from trio_runner.testing._contract_report import PartReport

#: Seconds after which a test takes something for hanging.
LONG = 120.0
COMMAND = [sys.executable, "-P", "-c", "from trio_runner._cli import main; main()", "check"]
NO_SESSION = "failing takes no journal and session, so no session is swept"
ONE_SWEEP = ["--drive", "until_done", "--seeds", "1", "--fault", "cancel"]

AGENTS = """
    import logging

    import trio

    import trio_runner as tr
    from trio_runner.testing import ScriptedModel

    print("imported")


    async def get_weather(city: str) -> str:
        print("asked for", city)
        logging.getLogger("mine").warning("asked for %s", city)
        await trio.sleep(0.1)
        return f"sunny in {city}"


    async def leaves_a_task(city: str) -> str:
        try:
            await trio.sleep(1)
        finally:
            trio.lowlevel.spawn_system_task(trio.sleep, 5)
        return city


    async def leaks(city: str) -> str:
        trio.lowlevel.spawn_system_task(trio.sleep, 1e6)
        await trio.sleep(1)
        return city


    def leaking(model):
        return tr.ToolAgent("leaking", model=model, tools=[leaks])


    async def fails(city: str) -> str:
        raise ValueError("no such city")


    async def wants_a_date(day: int) -> str:
        return "rain"


    async def exit_now(city: str) -> str:
        raise SystemExit(3)


    def exits(model):
        return tr.ToolAgent("exits", model=model, tools=[exit_now])


    def good(model, journal, session):
        tools = [get_weather]
        return tr.ToolAgent("good", model=model, tools=tools, journal=journal, session=session)


    def bad(model):
        return tr.ToolAgent("bad", model=model, tools=[leaves_a_task])


    class Makers:
        bad = staticmethod(bad)


    def failing(model):
        return tr.ToolAgent("failing", model=model, tools=[fails])


    def without_tools(model):
        return tr.ToolAgent("idle", model=model)


    def two_tools(model):
        return tr.ToolAgent("two", model=model, tools=[get_weather, wants_a_date])


    count = [0]


    async def one_step_more_each_time(city: str) -> str:
        count[0] += 1
        for _ in range(count[0]):
            await trio.lowlevel.checkpoint()
        return city


    def not_deterministic(model):
        return tr.ToolAgent("odd", model=model, tools=[one_step_more_each_time])


    agent = tr.ToolAgent("made already", model=ScriptedModel([]))
    number = 7


    async def coroutine(model): ...


    def needs_more(model, name): ...


    def returns_text():
        return "an agent"


    def raises():
        return {}["missing"]
"""


class Finished:
    """What one use of the command left."""

    def __init__(self, result: click.testing.Result) -> None:
        self.status = result.exit_code
        self.out, self.err = result.stdout, result.stderr
        print(self.out, self.err)  # for a test that fails
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception


Run = Callable[..., Finished]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs the command in a directory with the module ``agents_to_check``."""
    (tmp_path / "agents_to_check.py").write_text(textwrap.dedent(AGENTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def run(*arguments: str) -> Finished:
        return Finished(click.testing.CliRunner().invoke(check.check, arguments))

    yield run
    for name in sys.modules.keys() - before:
        if not getattr(sys.modules[name], "__file__", None) or str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


# --- verdicts -------------------------------------------------------------------


def test_a_good_agent_keeps_every_promise(run: Run) -> None:
    done = run("agents_to_check:good", "--quick", "--drive", "generate")
    assert done.status == 0
    assert done.err == "imported\n"
    lines = done.out.splitlines()
    assert re.fullmatch(
        r"The turn: (get_weather\(city='x\d*'\)(, |; then )){5}the answer\.", lines[0]
    )
    assert re.match(r"\d\d+ positions in \d+ sweeps, \d+ more left out, ", lines[1])
    verdicts = [line.split()[:2] for line in lines if line.startswith(" C")]
    assert verdicts == [[f"C{number}", "holds"] for number in range(1, 10)]
    assert lines[-1] == "Every promise holds."


def test_a_broken_promise_is_named_and_its_lines_replay_it(run: Run, tmp_path: Path) -> None:
    done = run("agents_to_check:bad", *ONE_SWEEP, "--fault", "sigint")
    assert done.status == 1
    lines = done.out.splitlines()
    (row,) = [line for line in lines if "BROKEN" in line and line.startswith(" C")]
    assert row.split()[:2] == ["C5", "BROKEN"]
    assert int(row.split()[2]) > 0
    assert lines[-1] == "BROKEN: C5"
    assert "  - task 'trio.sleep' was left running" in lines
    assert "\"C5: task 'trio.sleep' was left running\"" in replayed(lines, tmp_path)


def replayed(lines: list[str], directory: Path) -> str:
    """What the program prints that the report says to write."""
    start = lines.index("To replay one of these, put these lines before its own:") + 1
    imports = [line.strip() for line in lines[start:-2]]
    own = [line.strip() for line in lines if line.startswith(("    make_case", "    print("))]
    program = "\n".join([*imports, *own])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_lines_to_replay_know_the_given_calls_and_a_factory_inside_a_class(
    run: Run, tmp_path: Path
) -> None:
    call = 'leaves_a_task {"city": "Oslo"}'
    done = run("agents_to_check.py:Makers.bad", *ONE_SWEEP, "--call", call, "--then", call)
    assert done.status == 1
    assert "leaves_a_task(city='Oslo'); then leaves_a_task(city='Oslo')" in done.out
    assert "C5" in replayed(done.out.splitlines(), tmp_path)


def test_of_an_agent_that_goes_wrong_without_a_fault_nothing_is_said_to_hold(run: Run) -> None:
    done = run("agents_to_check:leaking", *ONE_SWEEP)
    assert done.status == 1
    rows = [line.split() for line in done.out.splitlines() if re.match(r" C\d ", line)]
    assert [row[1:3] for row in rows if row[0] != "C5"] == [["not", "shown"]] * 8
    assert "nothing was swept: the run without a fault breaks C5" in done.out
    assert "hold" not in done.out.replace("promise ", "")


def test_a_report_that_shows_nothing_is_not_called_good() -> None:
    swept = sweep(lambda: Case(trio.sleep_forever, judge=False), faults=["cancel"], seeds=[0])
    report = ContractReport((PartReport("generate", 0.0, False, swept),), {})
    text = io.StringIO()
    out = terminal.Output(rich.console.Console(file=text, width=200))
    check_view.show(out, report, [])
    assert "nothing was swept: the run without a fault did not end" in text.getvalue()
    assert text.getvalue().splitlines()[-1] == "NOT SHOWN"


def test_json_is_the_report_alone_and_says_the_same(run: Run) -> None:
    done = run("agents_to_check:bad", *ONE_SWEEP, "--json")
    assert done.status == 1
    report = json.loads(done.out)
    assert report["ok"] is False
    broken = [each["promise"] for each in report["promises"] if each["broken_at"]]
    assert broken == ["C5"]
    assert report["left_out"] == {}
    assert done.err == "imported\n"


def test_json_of_a_good_agent_is_ok_and_names_what_was_left_out(run: Run) -> None:
    done = run("agents_to_check:failing", *ONE_SWEEP, "--fault", "journal_error", "--json")
    assert done.status == 0
    report = json.loads(done.out)
    assert report["ok"] is True
    assert report["positions"] > 10
    assert report["left_out"] == {"journal_error": NO_SESSION}


def test_what_was_left_out_stands_under_the_table(run: Run) -> None:
    faults = ["--fault", "journal_error", "--fault", "journal_hang"]
    done = run("agents_to_check:failing", *ONE_SWEEP, *faults)
    assert f"not swept: journal_error, journal_hang: {NO_SESSION}" in done.out


def test_a_factory_that_makes_other_steps_each_time_is_told_which(run: Run) -> None:
    done = run("agents_to_check:not_deterministic", *ONE_SWEEP)
    assert done.status == 2
    assert "make_case" not in done.err
    assert re.search(r"step \d+ was one of task '.*', and now is one of ", done.err)
    assert "the factory must make everything anew" in done.err
    exits = run("agents_to_check:exits", *ONE_SWEEP)
    assert exits.status == 2
    assert "SystemExit" in exits.err
    assert "Case(" not in exits.err


# --- options --------------------------------------------------------------------


@pytest.fixture
def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `check_agent` was asked for; it is not run."""
    seen: dict[str, Any] = {}

    def check_agent(_: object, replies: object, **options: Any) -> ContractReport:
        seen.update(options, replies=replies)
        return ContractReport(parts=(), left_out={})

    monkeypatch.setattr(check, "check_agent", check_agent)
    return seen


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {"faults": None, "seeds": range(2), "max_positions": None, "sample": 1.0}),
        ([], {"drives": ("until_done", "async_for", "break", "generate"), "replies": None}),
        (["--quick"], {"seeds": range(1), "max_positions": 8}),
        (["--quick", "--seeds", "3"], {"seeds": range(3), "max_positions": 8}),
        (["--quick", "--max-positions", "5"], {"seeds": range(1), "max_positions": 5}),
        (["--drive", "break"], {"drives": ("break",)}),
        (["--fault", "crash", "--fault", "cancel"], {"faults": ("crash", "cancel"), "pairs": None}),
        (["--pair", "cancel+sigint"], {"faults": (), "pairs": (("cancel", "sigint"),)}),
        (["--pair", "cancel+cancel", "--fault", "crash"], {"faults": ("crash",)}),
        (["--pair", "cancel+sigint", "--sample", "0.1"], {"sample": 0.1}),
        (
            ["--call", 'get_weather {"city": "Rome"}', "--then", 'get_weather {"city": "y"}'],
            {
                "replies": (
                    (tr.ToolCall("", "get_weather", {"city": "Rome"}),),
                    (tr.ToolCall("", "get_weather", {"city": "y"}),),
                    "the answer",
                    "never asked for",
                )
            },
        ),
    ],
)
def test_the_options_say_what_is_swept(
    run: Run, asked: dict[str, Any], arguments: list[str], expected: dict[str, Any]
) -> None:
    run("agents_to_check:good", *arguments)
    assert {name: asked[name] for name in expected} == expected


def test_pairs_are_swept_with_whoever_watches_too(run: Run) -> None:
    done = run(
        *("agents_to_check:good", "--drive", "generate", "--quick", "--json"),
        *("--pair", "cancel+sigint", "--pair", "hook_error+cancel"),
    )
    assert done.status == 0
    counts: dict[str, int] = {}
    for part in json.loads(done.out)["parts"]:
        for name, count in part["report"]["counts"].items():
            counts[name] = counts.get(name, 0) + count
    assert counts.keys() == {"cancel+sigint", "hook_error+cancel"}
    assert all(counts.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--then", "get_weather"], "the first is given with --call"),
        (["--call", "get_weather {city: 1}"], "the arguments of 'get_weather' are no JSON"),
        (["--call", "get_weather [1]"], "expected a tool's name and a JSON object"),
        (["--call", " "], "expected a tool's name"),
        (["--pair", "cancel"], "found 'cancel'; expected two of cancel, deadline"),
        (["--pair", "cancel+flood"], "found 'cancel+flood'"),
        (["--fault", "flood"], "'flood' is not one of"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--sample", "0"], "0.0 is not in the range"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_options_are_exit_status_2(run: Run, arguments: list[str], message: str) -> None:
    done = run("agents_to_check:good", *arguments)
    assert done.status == 2
    assert "Usage: " in done.err
    assert message in done.err
    assert done.out == ""


# --- targets --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("agents_to_check", "found 'agents_to_check'; expected MODULE:factory or PATH.py:factory"),
        (":good", "found ':good'; expected"),
        ("agents_to_check:", "found 'agents_to_check:'; expected"),
        ("to check:good", "'to check' is no name of a module"),
        ("no_such_module:good", "there is no module 'no_such_module'"),
        ("agents_to_check.sub:good", "there is no module 'agents_to_check.sub'"),
        ("no_such.py:good", "there is no file 'no_such.py'"),
        ("agents_to_check:goood", "has no 'goood'; there is 'good'"),
        ("agents_to_check:zzz", "has no 'zzz'; it has Makers, bad, coroutine"),
        ("agents_to_check:Makers.good", "has no 'good'"),
        ("agents_to_check:number", "agents_to_check:number is 7, which cannot be called; expected"),
        ("agents_to_check:agent", "makes a trio_runner.ToolAgent, anew for each run"),
        ("agents_to_check:coroutine", "agents_to_check:coroutine is async; expected"),
        ("agents_to_check:needs_more", "agents_to_check:needs_more needs 'name'; expected"),
        ("agents_to_check:returns_text", "agents_to_check:returns_text returned 'an agent'"),
        ("agents_to_check:raises", "KeyError: 'missing'"),
        ("agents_to_check:not_deterministic", "the case is not deterministic"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_cannot_be_checked_is_said_in_words(
    run: Run, target: str, message: str, options: list[str]
) -> None:
    done = run(target, *ONE_SWEEP, *options)
    assert done.status == 2
    assert "trio-runner check: " in done.err
    assert message in done.err
    assert "Every promise" not in done.out
    if options:
        assert done.out == ""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import trio\n\nraise RuntimeError('not today')\n", "RuntimeError: not today"),
        ("import no_such_thing\n", "No module named 'no_such_thing'"),
        ("import sys\n\nsys.exit(3)\n", "SystemExit: 3"),
        ("def f(:\n", "SyntaxError"),
    ],
)
@pytest.mark.parametrize("by_path", [True, False])
def test_an_error_of_the_users_module_is_shown_with_their_traceback_alone(
    run: Run, tmp_path: Path, code: str, message: str, by_path: bool
) -> None:
    (tmp_path / "broken_module.py").write_text(code)
    done = run("broken_module.py:make" if by_path else "broken_module:make")
    assert done.status == 2
    assert message in done.err
    assert "broken_module.py" in done.err
    assert "check_target.py" not in done.err
    assert "importlib" not in done.err


class LoadsThroughHere(importlib.machinery.SourceFileLoader):
    """What packages such as beartype put into the import system, for every module."""

    def source_to_code(self, *args: Any, **kwargs: Any) -> Any:
        return super().source_to_code(*args, **kwargs)

    def exec_module(self, module: Any) -> None:
        super().exec_module(module)


@pytest.mark.parametrize("code", ["def f(:\n", "raise RuntimeError\n", "import no_such_thing\n"])
def test_a_packages_import_hook_is_not_shown(
    run: Run, tmp_path: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = importlib.machinery.FileFinder.path_hook((LoadsThroughHere, [".py"]))
    monkeypatch.setattr(sys, "path_hooks", [hook, *sys.path_hooks])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    (tmp_path / "broken_module.py").write_text(code)
    done = run("broken_module:make")
    assert done.status == 2
    assert "broken_module.py" in done.err
    assert Path(__file__).name not in done.err


def test_an_error_of_a_package_above_the_module_is_shown_too(run: Run, tmp_path: Path) -> None:
    for name, code in (("fails", "1 / 0\n"), ("wants", "import no_such_thing\n")):
        (tmp_path / f"package_{name}").mkdir()
        (tmp_path / f"package_{name}" / "__init__.py").write_text(code)
    assert "ZeroDivisionError" in run("package_fails.agents:make").err
    assert "No module named 'no_such_thing'" in run("package_wants.agents:make").err


def test_an_error_of_a_factory_is_shown_from_the_users_code_on(run: Run) -> None:
    done = run("agents_to_check:raises")
    assert "cannot be swept; what it makes raised:\nTraceback" in done.err
    assert 'return {}["missing"]' in done.err
    assert "_agent_turn.py" not in done.err


def test_a_file_is_found_by_its_path_with_what_lies_beside_it(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "some where"
    folder.mkdir()
    (folder / "helper_beside.py").write_text("NAME = 'helped'\n")
    (folder / "json.py").write_text(  # a name that is taken
        "import helper_beside\nimport trio_runner as tr\n\n\n"
        "def make(model):\n    return tr.ToolAgent(helper_beside.NAME, model=model)\n\n\n"
        "if __name__ == '__main__':\n    raise SystemExit('run as a program')\n"
    )
    target = check_target.find("some where/json.py:make")
    assert target.factory(model=ScriptedModel([])).name == "helped"
    assert sys.modules["json"] is json


def test_a_current_directory_that_is_gone_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    done = run("agents_to_check:good")
    assert done.status == 2
    assert "the current directory cannot be found: No such file" in done.err


# --- a check that would show nothing --------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("get_wether {}", "there is no tool named 'get_wether'"),
        ("get_weather {}", "The arguments do not fit the schema of tool 'get_weather'"),
    ],
)
def test_a_given_call_that_reaches_no_tool_is_refused(run: Run, call: str, message: str) -> None:
    done = run("agents_to_check:good", *ONE_SWEEP, "--call", call)
    assert done.status == 2
    assert f"--call: {message}" in done.err or f"--call: Unavailable: {message}" in done.err


def test_a_made_up_call_whose_tool_raises_is_noted_once(run: Run) -> None:
    done = run("agents_to_check:failing", *ONE_SWEEP)
    assert done.status == 0
    assert "note: the call of fails ends error: " in done.err
    assert done.err.count("note: ") == 1


def test_made_up_arguments_that_a_tool_does_not_take_are_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object) -> dict[str, Any]:
        return {"day": "not a number", "city": "x"}

    monkeypatch.setattr("trio_runner.testing._agent_turn.example_arguments", wrong)
    done = run("agents_to_check:two_tools", *ONE_SWEEP)
    assert done.status == 2
    assert "does not take its arguments" in done.err
    assert "--call" in done.err


def test_an_agent_without_tools_is_noted(run: Run) -> None:
    done = run("agents_to_check:without_tools", *ONE_SWEEP)
    assert done.status == 0
    assert "note: no tool is called, so little can go wrong" in done.err
    assert done.out.startswith("The turn: the answer.\n")


def test_no_position_at_all_is_no_success(run: Run) -> None:
    done = run("agents_to_check:bad", "--fault", "journal_error")
    assert done.status == 2
    no_session = NO_SESSION.replace("failing", "bad")
    assert f"nothing was swept: journal_error: {no_session}" in done.err
    done = run("agents_to_check:without_tools", "--fault", "foreign_cancel")
    assert done.status == 2
    assert "nothing was swept: the turn has no such position" in done.err


# --- output ---------------------------------------------------------------------


def test_what_the_agent_prints_and_logs_is_shown_only_when_asked_for(run: Run) -> None:
    root = logging.getLogger()
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root.addHandler(handler)
    try:
        quiet = run("agents_to_check:good", *ONE_SWEEP, "--json")
        assert quiet.err == "imported\n"
        assert log.getvalue() == ""
        assert handler in root.handlers
        loud = run("agents_to_check:good", *ONE_SWEEP, "--json", "-s")
    finally:
        root.removeHandler(handler)
    assert json.loads(loud.out)["ok"] is True
    assert loud.err.count("asked for x") > 50
    assert log.getvalue().count("asked for x") > 50


def test_text_of_the_agent_does_not_command_the_terminal(run: Run, tmp_path: Path) -> None:
    (tmp_path / "odd_agents.py").write_text(
        textwrap.dedent(AGENTS).replace('"no such city"', '"\\x1b[2J"')
    )
    done = run("odd_agents:failing", *ONE_SWEEP)
    assert "\\x1b[2J" in done.err
    assert "\x1b" not in done.err


def test_progress_is_shown_on_a_terminal_and_leaves_nothing_behind() -> None:
    seen = io.StringIO()
    console = rich.console.Console(file=seen, force_terminal=True, width=60)
    with check_view.progress(console) as tell:
        tell("until_done")
        assert "sweep 1: until_done" in seen.getvalue()
        tell("break")
    assert "sweep 2: break" in seen.getvalue()
    assert seen.getvalue().endswith("\x1b[2K")


def test_without_a_terminal_there_is_no_progress() -> None:
    seen = io.StringIO()
    for console in (rich.console.Console(file=seen), None):
        with check_view.progress(console) as tell:
            tell("until_done")
    assert seen.getvalue() == ""


def test_an_interrupt_ends_it_with_130_and_no_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> ContractReport:
        raise KeyboardInterrupt

    monkeypatch.setattr(check, "check_agent", interrupted)
    done = run("agents_to_check:good", "--json")
    assert (done.status, done.out) == (130, "")
    assert done.err.splitlines()[-1] == (
        "trio-runner check: interrupted; what was swept so far is not reported"
    )


# --- real processes -------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def start(*arguments: str, cwd: Path, command: list[str] = COMMAND) -> subprocess.Popen[str]:
    (cwd / "agents_to_check.py").write_text(textwrap.dedent(AGENTS))
    return subprocess.Popen(
        [*command, *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A parent that ignores SIGINT (a shell's background job) would pass that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "status"), [("good", 0), ("bad", 1)])
def test_as_a_command_without_mcp(tmp_path: Path, factory: str, status: int) -> None:
    program = "import sys; sys.modules['mcp'] = None; from trio_runner._cli import main; main()"
    command = [sys.executable, "-P", "-c", program, "check"]
    process = start(
        f"agents_to_check:{factory}", *ONE_SWEEP, "--json", cwd=tmp_path, command=command
    )
    out, err = process.communicate(timeout=LONG)
    assert (process.returncode, err) == (status, "imported\n")
    assert json.loads(out)["ok"] is (status == 0)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_is_said_with_the_remedy(tmp_path: Path, missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from trio_runner._cli import main; main()"
    )
    command = [sys.executable, "-P", "-c", program, "check"]
    out, err = start("x:y", cwd=tmp_path, command=command).communicate(timeout=LONG)
    assert out == ""
    assert f"{missing!r} is not installed" in err
    assert "pip install 'trio-runner[cli]'" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["sigint", "cancel"])
def test_a_real_ctrl_c_ends_it_at_once(tmp_path: Path, fault: str) -> None:
    # So many seeds that it would take an hour; planned interrupts are no mix-up.
    process = start("agents_to_check:good", "--seeds", "100000", "--fault", fault, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("The turn: ")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.endswith("trio-runner check: interrupted; what was swept so far is not reported\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "agents_to_check.py").write_text(textwrap.dedent(AGENTS))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "agents_to_check:good", *ONE_SWEEP],
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LONG,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.endswith("cannot write the output: No space left on device\n")


# --- the list of commands -------------------------------------------------------


def test_the_list_of_commands_needs_none_of_them_and_says_what_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, _: str) -> None:
        raise AssertionError(f"{name} was loaded")

    with monkeypatch.context() as patch:
        patch.setattr("trio_runner._cli.load", refuse)
        listed = click.testing.CliRunner().invoke(group.cli, ["--help"])
    assert listed.exit_code == 0
    for name, entry in group.COMMANDS.items():
        assert f"{name} {entry.line}" in " ".join(listed.output.split())
        command = group.cli.get_command(click.Context(group.cli), name)
        assert command is not None
        assert command.name == name
        assert command.help is not None
        assert command.help.partition("\n")[0] == entry.line


def test_a_command_that_there_is_not_is_refused() -> None:
    done = click.testing.CliRunner().invoke(group.cli, ["chekc"])
    assert done.exit_code == 2
    assert "No such command 'chekc'" in done.output
