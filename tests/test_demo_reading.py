"""The demo's file tools on big files and directories: exact lines, bounded memory and time."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import trio_runner_adapters._tree as trees
import trio_runner_adapters.demo_server as demo_server


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[demo_server.FileTools]:
    tree = trees.Tree(tmp_path)
    yield demo_server.FileTools(tree, delay=0.0, time_limit=30.0)
    tree.close()


async def test_what_was_found_in_a_huge_directory_is_told_with_the_cut(
    tmp_path: Path, tools: demo_server.FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_DIRECTORY_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text("needle\n")
    cut = "more than 20 in one directory"
    listing = await tools.list_files()
    assert (listing.files, len(listing.entries), listing.cut) == (20, 20, cut)
    counts = await tools.count_lines()
    assert (counts.files, counts.lines, counts.cut) == (20, 20, cut)
    matches = await tools.search_text("needle")
    assert (len(matches.matches), matches.files_searched, matches.cut) == (20, 20, cut)


CASES: list[tuple[bytes, int, int, list[str], bool]] = [
    (b"1\n2\n3\n4\n", 1, 200, ["1", "2", "3", "4"], False),
    (b"1\n2\n3\n4\n", 2, 2, ["2", "3"], True),
    (b"1\n2\n3\n4\n", 3, 2, ["3", "4"], False),
    (b"1\n2\n3\n4", 4, 1, ["4"], False),
    (b"1\n2\n3\n4", 5, 1, [], False),
    (b"\n\n", 1, 9, ["", ""], False),
    (b"", 1, 9, [], False),
    (b"1\r\n2\r\n", 2, 9, ["2"], False),
    # Only a line break ends a line, as in every editor and in count_lines.
    ("a\fb\vc\x85d\u2028e\x1cf\r g\nx\n".encode(), 2, 1, ["x"], False),
]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("data", "start", "count", "lines", "more"), CASES)
def test_lines_do_not_depend_on_the_chunks(
    data: bytes, start: int, count: int, lines: list[str], more: bool, size: int
) -> None:
    excerpt = demo_server._Excerpt(start, count)
    excerpt.read(data[at : at + size] for at in range(0, len(data), size))
    assert (excerpt.lines, excerpt.more) == (lines, more)


async def test_search_counts_lines_as_editors_do(
    tmp_path: Path, tools: demo_server.FileTools
) -> None:
    (tmp_path / "a").write_text("one\fstill one\x85\u2028\nneedle\n", newline="")
    found = await tools.search_text("needle")
    assert [match.line for match in found.matches] == [2]


async def test_reading_a_big_file_takes_little_memory(
    tmp_path: Path, tools: demo_server.FileTools
) -> None:
    (tmp_path / "nl").write_bytes(b"\n" * 16_000_000)
    tracemalloc.start()
    try:
        part = await tools.read_file("nl", start_line=8_000_000, max_lines=3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (part.lines, part.cut) == (3, "there is more in the file")
    assert peak < 20_000_000


async def test_the_time_limit_ends_the_reading_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "nl").write_bytes(b"\n" * 1_000_000)
    tree = trees.Tree(tmp_path)
    try:
        tools = demo_server.FileTools(tree, delay=0.0, time_limit=0.0)
        part = await tools.read_file("nl", start_line=900_000)
    finally:
        tree.close()
    assert (part.lines, part.cut) == (0, "time limit")
