"""The page on other people's code tells what its programs find, in the versions it names."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from trio_runner.testing import SweepReport

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/explanation/other-peoples-code.md"
FOLDER = ROOT / "docs/examples/other_people"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "by_hand.py")
FAULTS = ("cancel", "deadline", "crash", "sigint")

# Violation, then how many positions of each of FAULTS had it.
Kinds = Mapping[str, tuple[int, ...]]


# --- the page -------------------------------------------------------------------


def rows(columns: int) -> list[list[str]]:
    """The rows of the page's table with that many columns."""
    lines = re.findall(r"^\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    split = [[re.sub(r"\]\(.*?\)|[`\[]", "", cell) for cell in line.split(" | ")] for line in lines]
    return [row for row in split if len(row) == columns and row[0] in PROGRAMS]


def figures() -> dict[tuple[str, str], tuple[str, int, int]]:
    """Version, positions and failing positions of each program and library."""
    return {
        (program, library): (named, int(positions), int(failing))
        for program, library, named, positions, failing in rows(5)
    }


def kinds_on_the_page(program: str, library: str) -> Kinds:
    return {
        violation: tuple(map(int, counts))
        for name, swept, violation, *counts in rows(7)
        if (name, swept) == (program, library)
    }


def trio_on_the_page() -> str:
    found = re.search(r"^With trio ([\d.]+)\. ", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


# --- the programs ---------------------------------------------------------------


@functools.cache
def run(program: str) -> tuple[str, Mapping[str, SweepReport]]:
    """What the program prints, and the reports that it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        names = runpy.run_path(str(FOLDER / program), run_name="__main__")
    return printed.getvalue(), names["reports"]


def kind_of(violation: str) -> str:
    """The violation without an object's repr, which comes after a colon."""
    found = re.match(r"(afterwards: )?[^:]*", violation)
    assert found is not None
    return found[0]


def kinds_of(report: SweepReport) -> Kinds:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for failure in report.failures:
        fault = "+".join(landing.fault for landing in failure.landings) or "no fault"
        for violation in {kind_of(text) for text in failure.violations}:
            counts[violation][fault] += 1
    for counter in counts.values():
        assert set(counter) <= set(FAULTS), f"violations without a fault, or of another: {counter}"
    return {kind: tuple(counter[fault] for fault in FAULTS) for kind, counter in counts.items()}


# --- the one tells of the other --------------------------------------------------


def test_every_program_is_on_the_page_and_in_the_figures() -> None:
    assert len(PROGRAMS) >= 4
    assert {program for program, _ in figures()} == set(PROGRAMS)
    assert {(program, library) for program, library, *_ in rows(7)} == {
        key for key, (_, _, failing) in figures().items() if failing
    }


def test_the_page_names_the_versions_that_the_test_extra_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["optional-dependencies"]["test"]
    pins = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==([\w.]+)$", "\n".join(wanted), re.MULTILINE))
    swept = {library: named for (_, library), (named, _, _) in figures().items()}
    # trio and anyio belong to the library's own dependencies, which are not pinned.
    assert swept == {name: pins.get(name, swept[name]) for name in swept}
    assert set(swept) - set(pins) == {"trio", "anyio"}
    for name in set(swept) & set(pins):
        assert version(name) == swept[name], (
            f"{name} {version(name)} is installed, the page tells of {swept[name]}: "
            "install the extra 'test', or run the programs again and update the page"
        )


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_sweeps_find_what_the_page_says(program: str) -> None:
    _, reports = run(program)

    assert set(reports) == {library for name, library in figures() if name == program}
    for library, report in reports.items():
        assert report.positions > 0
        assert report.skipped == 0
        found, told = set(kinds_of(report)), set(kinds_on_the_page(program, library))
        assert found == told, f"{library} behaves otherwise than the page says: update the page"


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_figures_are_those_of_the_page(program: str) -> None:
    _, reports = run(program)
    here = {name: version(name) for name in ["trio", *reports]}
    named = {library: figures()[program, library][0] for library in reports}
    if here != {"trio": trio_on_the_page(), **named}:
        pytest.skip(f"the page has figures of other versions than {here}: they may differ")

    for library, report in reports.items():
        _, positions, failing = figures()[program, library]
        assert (report.positions, len(report.failures)) == (positions, failing)
        assert kinds_of(report) == kinds_on_the_page(program, library)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_its_libraries_versions_and_reports(program: str) -> None:
    printed, reports = run(program)

    for library, report in reports.items():
        assert f"{library}\n{version(library)}\n{report.positions} positions" in printed


@pytest.mark.slow
def test_plain_trio_and_real_sockets_show_the_same() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "by_hand.py"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "httpcore: left in a pool without requests: ['<AsyncHTTPConnection [CONNECTING]>']",
        "httpcore: the next HTTP/2 request: ValueError('semaphore released too many times')",
        "httpcore2: left in a pool without requests: []",
        "httpcore2: the next HTTP/2 request: ValueError('semaphore released too many times')",
        "websockets: after a cancel the state is CLOSING, wait_closed() hangs",
        "websockets: a Ctrl-C during aclose() is lost",
        "trio-websocket: ConnectionTimeout never comes",
        (
            "tricycle: readers in the order in which they got the lock: "
            "['the one who came last', 'the one who came first']"
        ),
    ]
