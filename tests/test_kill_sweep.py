"""The kill sweep: real processes and real kills, on journals that are right and wrong.

The journals and workloads are in ``kill_workload.py``, which the helper process
imports. What a violation is, is tested on lives made by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import trio_runner as tr
from trio_runner import records
from trio_runner.testing import (
    KillPoint,
    KillReport,
    KillSweepError,
    KillSweepFailed,
    kill_sweep,
    replay_kill,
)
from trio_runner.testing._kill_helper import as_name
from trio_runner.testing._kill_judge import PROMISES, Life, Stored, judge
from trio_runner.testing._kill_report import KillFailure, KillViolation
from trio_runner.testing._kill_site import KillSite, Ledger, StagedModel, fingerprint

HERE = Path(__file__).parent
PACKAGE = Path(tr.__file__).parent
REFERENCE = "trio_runner.testing._kill_workload:reference_workload"


def ours(name: str) -> str:
    return f"{HERE / 'kill_workload.py'}:{name}"


@pytest.fixture
def quick_disk(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions in memory where there is such a place: SIGKILL takes nothing from the page cache."""
    if Path("/dev/shm").is_dir():
        monkeypatch.setattr("tempfile.tempdir", "/dev/shm")


pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]


# --- a moment of death ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("append 7 before", "call"),
        ("aclose 0 after", "call"),
        ("written 3", "call"),
        ("line 12", "line"),
        ("byte 4096", "byte"),
        ("moment 0.0132", "moment"),
    ],
)
def test_a_moment_of_death_is_a_text_that_can_be_read_back(text: str, mode: str) -> None:
    point = KillPoint.parse(text)

    assert str(point) == text
    assert point.mode == mode


def test_a_large_byte_is_written_in_full() -> None:
    assert str(KillPoint("byte", 12345678)) == "byte 12345678"


@pytest.mark.parametrize("text", ["", "append", "append x", "append 1 during", "a 1 before b"])
def test_a_text_that_is_no_moment_of_death_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"moment of death|could not convert"):
        KillPoint.parse(text)


# --- what is a violation --------------------------------------------------------

ENDED = ("answered",)


def opened(*records: str) -> dict[str, Any]:
    return {"what": "opened", "records": list(records)}


def appends(number: int, *records: str, **facts: Any) -> dict[str, Any]:
    none: dict[str, Any] = {"started": [], "results": [], "replies": []}
    return {"what": "appends", "append": number, "records": list(records), **none, **facts}


def acknowledged(number: int) -> dict[str, Any]:
    return {"what": "acknowledged", "append": number}


def failed(number: int) -> dict[str, Any]:
    return {"what": "failed", "append": number, "error": "OSError()"}


def entered(
    call: str, *, key: str = "k", attempt: int = 1, idempotent: bool = False
) -> dict[str, Any]:
    return {
        "what": "entered",
        "call": call,
        "key": key,
        "attempt": attempt,
        "idempotent": idempotent,
    }


def returned(call: str, text: str | None) -> dict[str, Any]:
    return {"what": "returned", "call": call, "text": text}


def raised(call: str) -> dict[str, Any]:
    return {"what": "raised", "call": call, "error": "ValueError()"}


def asked(*calls: str, status: str = "ok") -> dict[str, Any]:
    return {"what": "asked", "results": [[call, status] for call in calls]}


def effect(call: str, *, key: str = "k") -> dict[str, Any]:
    return {"what": "effect", "call": call, "effect": "paid", "key": key}


KILL = KillPoint("line", 1)


def killed(*lines: dict[str, Any], **stored: Any) -> Life:
    return Life(KILL, lines, Stored(**stored), "killed")


def finished(*lines: dict[str, Any], **stored: Any) -> Life:
    return Life(None, lines, Stored(**stored), "finished")


def promises(*lives: Life) -> set[str]:
    return {violation.promise for violation in judge(lives)}


START = ["c1", "k", 1]


@pytest.mark.parametrize(
    ("lives", "promise"),
    [
        # It opens, and is valid.
        ([killed(error="damaged")], "readable"),
        ([killed(misfit="record 3 does not fit")], "readable"),
        ([killed(problems=["message 1 has no results"])], "C2 valid"),
        # What was acknowledged is stored.
        ([killed(opened(), appends(0, "a"), acknowledged(0))], "C3 kept"),
        ([killed(opened(), appends(0, "a"), acknowledged(0), records=["b"])], "C3 kept"),
        (
            [killed(opened(), appends(0, "a", "b"), acknowledged(0), records=["a"])],
            "C3 kept",
        ),
        ([killed(records=["a"]), finished(opened("a"), records=[])], "C3 kept"),
        ([killed(opened(), appends(0, "a"), records=["a"]), finished(opened())], "C3 kept"),
        ([finished(opened(), appends(0, "a"), acknowledged(0), opened(), appends(0))], "C3 kept"),
        # Whole, in order, and nothing else.
        ([killed(opened(), appends(0, "a", "b"), records=["a"])], "C3 in order"),
        ([killed(opened(), appends(0, "a"), appends(1, "b"), records=["b"])], "C3 in order"),
        ([killed(opened(), appends(0, "a"), records=["a", "a"])], "C3 in order"),
        ([killed(opened(), appends(0, "a"), failed(0), records=["a"])], "C3 in order"),
        ([killed(records=["a"])], "C3 in order"),
        # Nothing happens before what it depends on.
        ([killed(entered("c1"))], "C3 durable first"),
        ([killed(entered("c1", key="other"), started=[START])], "C3 durable first"),
        ([killed(asked("c1"))], "C3 durable first"),
        ([killed({"what": "handed_out", "message": "m"}, replies=["n"])], "C3 durable first"),
        ([killed(appends(0, started=[START]), entered("c1"), started=[START])], "C3 durable first"),
        (
            [
                killed(
                    appends(0, results=[["c1", "ok", "x"]]),
                    asked("c1"),
                    results=[["c1", "ok", "x"]],
                )
            ],
            "C3 durable first",
        ),
        (
            [
                killed(
                    appends(0, replies=["m"]),
                    {"what": "handed_out", "message": "m"},
                    acknowledged(0),
                    replies=["m"],
                )
            ],
            "C3 durable first",
        ),
        # The record is true.
        ([killed(started=[START], results=[["c1", "ok", "x"]])], "C4 true"),
        ([killed(returned("c1", "x"), results=[["c1", "ok", "y"]])], "C4 true"),
        ([killed(results=[["c1", "error", "x"]])], "C4 true"),
        ([killed(results=[["c1", "unknown_after_crash", "x"]])], "C4 true"),
        ([killed(entered("c1"), results=[["c1", "not_started", "x"]])], "C4 true"),
        ([killed(results=[["c1", "interrupted", "x"]])], "C4 true"),
        # No side effect twice.
        ([killed(entered("c1")), finished(entered("c1"))], "once"),
        ([killed(effect("c1"), effect("c1"))], "once"),
        (
            [
                killed(entered("c1", idempotent=True), effect("c1")),
                finished(entered("c1", idempotent=True, attempt=2), effect("c1", key="other")),
            ],
            "once",
        ),
        (
            [killed(entered("c1", idempotent=True)), finished(entered("c1", idempotent=True))],
            "once",
        ),
        (
            [
                killed(entered("c1", idempotent=True)),
                finished(entered("c1", idempotent=True, attempt=2, key="other")),
            ],
            "once",
        ),
        (
            [
                killed(entered("c1", idempotent=True), results=[["c1", "ok", "x"]]),
                finished(entered("c1", idempotent=True, attempt=2)),
            ],
            "once",
        ),
        # It goes on.
        ([Life(None, (), Stored(), "hung")], "goes on"),
        ([finished()], "goes on"),  # it drove no turn
        ([Life(KILL, (), Stored(), "the workload raised ValueError: x")], "goes on"),
        ([finished({"what": "planned", "turns": 2}, turns=1, ends=ENDED)], "goes on"),
        ([finished({"what": "planned", "turns": 1}, turns=1, ends=ENDED, open=True)], "goes on"),
        ([finished({"what": "planned", "turns": 1}, turns=1, ends=["failed"])], "goes on"),
        ([killed(opened(), appends(0, "a"), failed(0))], "goes on"),
    ],
)
def test_what_does_not_hold_is_named(lives: Sequence[Life], promise: str) -> None:
    assert promise in promises(*lives)
    assert promise in PROMISES


def test_a_good_life_has_no_violation() -> None:
    first = killed(
        {"what": "planned", "turns": 1},
        opened(),
        appends(0, "turn"),
        appends(1, "reply", replies=["m"]),
        acknowledged(0),
        acknowledged(1),
        {"what": "handed_out", "message": "m"},
        appends(2, "start", "start", started=[START, ["c2", "k2", 1]]),
        acknowledged(2),
        entered("c1"),
        entered("c2", key="k2", idempotent=True),
        effect("c1"),
        returned("c1", "paid"),
        appends(3, "result"),
        appends(4, "lost with the process"),
        records=["turn", "reply", "start", "start", "result"],
        started=[START, ["c2", "k2", 1]],
        results=[["c1", "ok", "paid"]],
        replies=["m"],
        turns=1,
        open=True,
    )
    then = finished(
        {"what": "planned", "turns": 1},
        opened(*first.stored.records),
        appends(0, "resumed"),
        acknowledged(0),
        appends(1, "start again", started=[["c2", "k2", 2]]),
        acknowledged(1),
        entered("c2", key="k2", attempt=2, idempotent=True),
        returned("c2", None),
        appends(2, "result", results=[["c2", "ok", "anything"]]),
        acknowledged(2),
        asked("c1", "c2"),
        appends(3, "answer", "end"),
        acknowledged(3),
        records=[*first.stored.records, "resumed", "start again", "result", "answer", "end"],
        started=[*first.stored.started, ["c2", "k2", 2]],
        results=[["c1", "ok", "paid"], ["c2", "ok", "anything"]],
        replies=["m", "n"],
        turns=1,
        ends=ENDED,
    )

    assert judge([first, then]) == []


def test_after_a_commit_that_failed_nothing_waits_for_the_store() -> None:
    life = Life(
        KillPoint("byte", 9), [appends(0, "a"), failed(0), entered("c1")], Stored(), "killed"
    )

    assert judge([life]) == []


def test_a_write_that_was_cut_short_may_come_back_as_an_error() -> None:
    end = "the workload raised OSError: file too large"

    assert judge([Life(KillPoint("byte", 9), (), Stored(), end)]) == []
    assert promises(Life(KillPoint("byte", 9), (), Stored(), "hung")) == {"goes on"}


def test_fingerprints_tell_records_apart_by_every_field() -> None:
    result = tr.ToolResult("c1", "pay", "paid", meta={"a": 1, "b": 2})
    record = records.ToolFinished(1, 0, result)
    other = attrs.evolve(record, result=attrs.evolve(result, status=tr.CallStatus.ERROR))
    sorted_otherwise = attrs.evolve(result, meta={"b": 2, "a": 1})

    assert fingerprint(record).startswith("ToolFinished:")
    assert fingerprint(record) != fingerprint(other)
    assert fingerprint(record) == fingerprint(attrs.evolve(record, result=sorted_otherwise))


# --- what a workload is given ---------------------------------------------------


async def test_a_staged_model_gives_the_same_reply_for_the_same_step() -> None:
    calls = [tr.ToolCall("", "pay"), tr.ToolCall("own", "pay")]
    model = StagedModel([[calls, "Paid."], [tr.ToolCall("", "pay")]])
    history = [tr.Message.user("Pay.")]

    async def ask() -> tr.Message:
        params = tr.RequestParams()
        return await model.reply(tr.ModelRequest((), history, (), params), lambda text: None)

    first, again = await ask(), await ask()

    assert first == again
    assert [call.id for call in first.tool_calls] == ["call-0-0-0", "own"]
    results = [tr.ToolResult(call.id, "pay", "x") for call in first.tool_calls]
    history += [first, tr.Message.user(tool_results=results)]
    assert (await ask()).text == "Paid."
    history += [await ask(), tr.Message.user("And again.")]
    assert [call.id for call in (await ask()).tool_calls] == ["call-1-0-0"]
    history += [tr.Message.assistant("Paid."), tr.Message.user("Once more.")]
    with pytest.raises(AssertionError, match="no reply for turn 2, step 0"):
        await ask()


@pytest.mark.parametrize("name", ["append", "line", "byte", "two words", ""])
def test_a_point_needs_a_word_of_its_own(name: str, tmp_path: Path) -> None:
    site = KillSite(tmp_path, 0, lambda path: tr.MemoryJournal(), Ledger(lambda line: None))

    with pytest.raises(ValueError, match="expected one word"):
        site.point(name)


# --- the report -----------------------------------------------------------------


def report(*failures: KillFailure) -> KillReport:
    return KillReport(
        kills=4,
        counts={"call": 3, "pair": 1},
        missed=1,
        skipped=2,
        seed=5,
        acknowledged=20,
        results=8,
        lost=len(failures),
        unreadable=0,
        effects=6,
        effects_twice=0,
        resumed=3,
        failures=failures,
        seconds=0.4,
    )


def failure(violations: int = 1) -> KillFailure:
    found = tuple(KillViolation("C3 kept", f"append {n} is lost") for n in range(violations))
    points = (KillPoint("append", 7, "after"), KillPoint("line", 3))
    return KillFailure(points, 5, found, "a traceback\n", "replay_kill('m:f', ...)")


def test_a_report_without_failures_is_ok() -> None:
    good = report()
    good.raise_if_failed()

    assert good.ok
    assert good.render().splitlines()[0] == (
        "4 kills (call 3, pair 1), 1 missed, seed 5, 0.4 s (100 ms each)"
    )
    assert good.render().endswith("2 positions left out\nno violation")


def test_a_failure_prints_where_what_and_how_to_replay() -> None:
    with pytest.raises(KillSweepFailed) as caught:
        report(failure(9)).raise_if_failed()

    lines = str(caught.value).splitlines()
    assert "killed at append 7 after, then killed at line 3 (seed 5)" in lines
    assert "    - C3 kept: append 0 is lost" in lines
    assert "    - … and 3 more" in lines
    assert "    printed: a traceback" in lines
    assert lines[-1] == "    replay: replay_kill('m:f', ...)"
    assert caught.value.report.violations[8].text == "append 8 is lost"


def test_many_failures_are_not_all_printed() -> None:
    assert report(*[failure()] * 8).render().endswith("… and 3 more")


def test_a_report_is_json() -> None:
    data = json.loads(report(failure()).to_json())

    assert data["ok"] is False
    assert data["counts"] == {"call": 3, "pair": 1}
    assert data["failures"] == [
        {
            "points": ["append 7 after", "line 3"],
            "seed": 5,
            "violations": [{"promise": "C3 kept", "text": "append 0 is lost"}],
            "output": "a traceback\n",
            "replay": "replay_kill('m:f', ...)",
        }
    ]


# --- real processes, real kills -------------------------------------------------


@pytest.mark.slow
def test_a_journal_that_is_right_survives_every_kind_of_kill() -> None:
    report = kill_sweep(ours("FileJournal"), at_most=8, samples=8, pairs=6)

    report.raise_if_failed()
    # A pair is counted by the mode of its first kill, and as a pair once the second one hit.
    assert report.counts["call"] >= 8
    assert report.counts["line"] >= 8
    assert report.counts["byte"] >= 6
    assert report.counts["moment"] >= 4
    assert report.counts["pair"] >= 1
    assert report.kills == sum(report.counts.values()) > 30
    assert report.acknowledged > 100
    assert report.results > 30
    assert report.resumed == 8 * 4 + 6
    assert report.reruns >= 1
    assert (report.lost, report.unreadable, report.effects_twice) == (0, 0, 0)
    assert report.skipped > 0
    print(report.render())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("journal", "promise", "options"),
    [
        ("AcknowledgesBeforeWriting", "C3 kept", {"modes": ["call"]}),
        ("DropsTheTail", "C3 kept", {"modes": ["call"]}),
        ("WritesOutOfOrder", "C3", {"modes": ["call"]}),
        ("CannotReadATornTail", "readable", {"modes": ["byte"]}),
        ("AppendsBehindATornTail", "C3 kept", {"modes": ["byte"]}),
        ("WritesACommitInParts", "C3 in order", {"modes": ["byte"], "samples": 40}),
        ("LeaseOutlivesItsHolder", "readable", {"modes": ["moment"]}),
        ("ForgetsStarts", "C3 durable first", {}),
        ("ChangesValues", "C4 true", {}),
        ("OpensForEver", "readable", {"timeout": 10.0}),
    ],
)
def test_a_wrong_journal_is_caught_by_the_name_of_the_promise(
    journal: str, promise: str, options: dict[str, Any]
) -> None:
    options = {"at_most": 12, "samples": 12, "max_failures": 1, **options}
    report = kill_sweep(ours(journal), **options)

    assert not report.ok
    found = {violation.promise for violation in report.violations}
    assert any(each.startswith(promise) for each in found), report.render()
    with pytest.raises(KillSweepFailed, match=promise):
        report.raise_if_failed()


@pytest.mark.slow
def test_a_failure_can_be_replayed_by_its_line() -> None:
    journal = ours("LeaseOutlivesItsHolder")
    report = kill_sweep(journal, ours("one_turn"), modes=["line"], at_most=5, max_failures=1)
    first = report.failures[0]

    assert first.replay == (
        f"replay_kill({journal!r}, {ours('one_turn')!r}, {str(first.points[0])!r}, seed=0)"
    )
    again = eval(first.replay, {"replay_kill": replay_kill})
    assert [failure.points for failure in again.failures] == [first.points]
    assert again.failures[0].violations == first.violations


@pytest.mark.slow
def test_a_sweep_stops_after_so_many_failures() -> None:
    options: dict[str, Any] = {"modes": ["line"], "at_most": 9}
    report = kill_sweep(ours("LeaseOutlivesItsHolder"), ours("one_turn"), max_failures=2, **options)

    assert len(report.failures) == 2
    assert report.unreadable == 2
    assert report.skipped > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "promise", "text"),
    [
        ("raises", "goes on", "the workload raised ValueError: no such workload"),
        ("never_ends", "goes on", "hung"),
        ("dies_by_itself", "goes on", "it died of SIGABRT"),
        ("stops_too_early", "goes on", "1 turns were to be answered; stored are 0"),
        ("pays_twice", "once", "the side effect 'paid' of call c1 came 2 times"),
    ],
)
def test_a_workload_that_goes_wrong_by_itself_is_told(
    workload: str, promise: str, text: str
) -> None:
    report = replay_kill(ours("FileJournal"), ours(workload), timeout=10)

    assert promise in {violation.promise for violation in report.violations}
    assert text in report.render()


def test_what_the_processes_print_is_shown_with_the_failure() -> None:
    report = replay_kill(ours("FileJournal"), ours("raises"))

    assert "about to fail" in report.failures[0].output
    assert "ValueError: no such workload" in report.failures[0].output


def test_no_kill_is_tried_when_the_run_without_one_fails() -> None:
    report = kill_sweep(ours("FileJournal"), ours("raises"), modes=["line"])

    assert report.kills == 0
    assert [failure.points for failure in report.failures] == [()]


@pytest.mark.slow
def test_a_program_that_the_process_started_does_not_hold_the_sweep_up() -> None:
    report = replay_kill(
        ours("FileJournal"), ours("leaves_a_grandchild"), "append 1 after", timeout=10
    )

    # Had it waited for the program, the process would count as hung.
    report.raise_if_failed()
    assert report.kills == 1


@pytest.mark.slow
def test_points_of_the_workloads_own_are_killed_at_too() -> None:
    every = kill_sweep(ours("FileJournal"), ours("with_points"), modes=["call"], at_most=1)
    report = replay_kill(ours("FileJournal"), ours("with_points"), "threaded 0", "begun 0")

    report.raise_if_failed()
    assert report.counts == {"call": 1, "pair": 1}
    # 10 calls of the journal at the least, each before and after, and the two points.
    assert every.skipped >= 22 - 1


@pytest.mark.slow
def test_the_same_seed_chooses_the_same_bytes() -> None:
    options: dict[str, Any] = {"modes": ["byte"], "samples": 3, "max_failures": None}
    broken, workload = ours("CannotReadATornTail"), ours("one_turn")
    reports = [kill_sweep(broken, workload, seed=seed, **options) for seed in (1, 1, 2)]
    points = [[failure.points for failure in report.failures] for report in reports]

    assert points[0]
    assert points[0] == points[1] != points[2]


# --- what is to be killed is found, or the error says what to do ----------------


def test_functions_that_a_fresh_process_can_import_are_known_by_name() -> None:
    def no_name() -> None: ...

    assert as_name("m:f") == "m:f"
    assert as_name(tr.MemoryJournal) == "trio_runner:MemoryJournal"
    assert as_name(kill_sweep) == "trio_runner.testing._kill:kill_sweep"
    assert as_name(no_name) is None


@pytest.mark.parametrize(
    ("journal", "text"),
    [
        ("no_such_module:journal", "ModuleNotFoundError"),
        (f"{HERE / 'kill_workload.py'}:no_such_name", "AttributeError"),
        (f"{HERE / 'no_such_file.py'}:name", "FileNotFoundError"),
    ],
)
def test_a_journal_that_cannot_be_loaded_is_an_error(journal: str, text: str) -> None:
    with pytest.raises(KillSweepError, match=text):
        replay_kill(journal)


def test_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(KillSweepError, match="win32 does not have"):
        kill_sweep(ours("FileJournal"))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"modes": ["bite"]}, ValueError, r"\['bite'\]; expected some of \['call', 'line', 'byte'"),
        ({"modes": ["call", "bite"]}, ValueError, "expected some of"),
        ({"modes": []}, ValueError, "expected some of"),
        ({"modes": "byte"}, TypeError, r"modes is 'byte'; expected several: \['byte'\]"),
        ({"at_most": 0, "samples": 0}, ValueError, "nothing would be killed"),
        ({"modes": ["line"], "at_most": 0}, ValueError, "nothing would be killed"),
        ({"modes": ["byte"], "samples": 0, "at_most": 5}, ValueError, "samples for byte"),
        ({"at_most": -1}, ValueError, "at_most is -1; expected 0 or more"),
    ],
)
def test_arguments_that_kill_nothing_are_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kill_sweep(ours("FileJournal"), ours("one_turn"), **options)


def _nothing_written(_: object) -> tuple[int, float]:
    return 1, 0.0


def test_a_mode_that_finds_no_moment_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if nothing were written before the session is closed: there is no write to cut.
    monkeypatch.setattr("trio_runner.testing._kill._Sweep.measure", _nothing_written)
    with pytest.raises(KillSweepError, match=r"nothing was killed: the modes \['byte'\]"):
        kill_sweep(ours("FileJournal"), ours("one_turn"), modes=["byte"])


@pytest.mark.parametrize("point", ["bite 305", "append 7", "append 700 before", "byte 99999999"])
def test_a_replay_whose_point_never_comes_is_refused(point: str) -> None:
    with pytest.raises(KillSweepError, match=f"1 of the points '{point}' never came") as caught:
        replay_kill(ours("FileJournal"), ours("one_turn"), point)
    assert "It passed open … before, " in str(caught.value)
    assert "append … after" in str(caught.value)


def test_a_report_without_a_kill_that_was_planned_is_not_ok() -> None:
    missed = attrs.evolve(report(), kills=0, counts={}, missed=3)

    assert not missed.ok
    assert "nothing was killed: each run ended before its moment came" in missed.render()
    # The run without a kill, and a sweep that missed a few.
    assert attrs.evolve(missed, missed=0).ok
    assert attrs.evolve(missed, kills=1).ok


def test_a_process_with_threads_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 3)
    with pytest.raises(KillSweepError, match=r"3 threads .* give both by name"):
        replay_kill(lambda path: tr.MemoryJournal(), ours("one_turn"))


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import kill_workload
from trio_runner.testing import kill_sweep, replay_kill

async def workload(site):
    await kill_workload.one_turn(site, idempotent=True)

report = kill_sweep(lambda path: kill_workload.FileJournal(path), workload,
                    modes=["line"], at_most=3)
report.raise_if_failed()
print(report.kills)

def journal(path):
    return kill_workload.LeaseOutlivesItsHolder(path)

report = kill_sweep(journal, workload, modes=["line"], at_most=5, max_failures=1)
print(report.failures[0].replay)
again = eval(report.failures[0].replay)
print([each.points for each in again.failures] == [each.points for each in report.failures])
"""


@pytest.mark.slow
def test_functions_of_a_script_are_killed_in_a_fork_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT.format(tests=str(HERE))],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kills, line, same = done.stdout.splitlines()
    assert kills == "3"
    # The line can be pasted into the script, where these are names.
    assert line.startswith("replay_kill(journal, workload, 'line ")
    assert same == "True"


# --- the library with one guarantee taken out -----------------------------------

MUTANTS = [
    pytest.param(
        "_shell/batch.py",
        "            await self._services.commits.settle(self._services.commit_timeout, commit)\n",
        "            await trio.lowlevel.checkpoint()\n",
        "C3 durable first",
        id="tools_start_before_their_start_is_durable",
    ),
    pytest.param(
        "_shell/steps.py",
        "                await self._settle()\n        except",
        "                pass\n        except",
        "C3 durable first",
        id="the_model_is_asked_before_the_results_are_durable",
    ),
    pytest.param(
        "_core/recovery.py",
        '    if why is None and wanted == "rerun":\n',
        "    if why is None:\n",
        "once",
        id="calls_that_may_have_run_are_run_again",
    ),
]

RUN = """
import sys
from trio_runner.testing import kill_sweep
report = kill_sweep(sys.argv[1], modes=["call"], at_most=40, max_failures=1)
print(report.to_json())
"""


@pytest.mark.slow
@pytest.mark.mutant
@pytest.mark.parametrize(("file", "old", "new", "promise"), MUTANTS)
def test_a_planted_fault_of_the_library_is_caught(
    file: str, old: str, new: str, promise: str, plant: Callable[..., Path]
) -> None:
    root = plant(PACKAGE, (file, old, new))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, ours("FileJournal")],
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    found = {each["promise"] for failure in data["failures"] for each in failure["violations"]}
    assert promise in found, done.stdout


# --- the journal of the library -------------------------------------------------


@pytest.mark.slow
def test_the_sqlite_journal_survives_kill_9(full_sweeps: bool) -> None:
    """At every call, after everything that happens, in any write, at any moment, and twice."""
    options: dict[str, Any] = {"at_most": 14, "samples": 14, "pairs": 14}
    if full_sweeps:
        options = {"at_most": None, "samples": 200, "pairs": 100}
    report = kill_sweep("trio_runner:SqliteJournal", **options)

    print(report.render())
    report.raise_if_failed()
    assert report.kills >= (500 if full_sweeps else 60)
    assert report.acknowledged > 300
