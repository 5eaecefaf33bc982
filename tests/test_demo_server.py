"""The demo's file tools: what they find, and that they stay inside, bounded and stoppable."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp
import pytest
import trio
import trio.testing

import trio_runner_adapters._tree as trees
import trio_runner_adapters.demo_server as demo_server
from trio_runner_adapters.mcp import McpToolset

#: Seconds after which a test takes something for hanging.
LONG = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    inside.mkdir()
    return inside


@pytest.fixture
def tree(root: Path) -> Iterator[trees.Tree]:
    made = trees.Tree(root)
    yield made
    made.close()


@pytest.fixture
def tools(tree: trees.Tree) -> demo_server.FileTools:
    return demo_server.FileTools(tree, delay=0.0, time_limit=30.0)


def budget(**limits: Any) -> trees.Budget:
    settings: dict[str, Any] = {"time_limit": 30.0, "max_entries": 1000, **limits}
    return trees.Budget(**settings)


def walked(tree: trees.Tree, *start: str, limits: trees.Budget | None = None) -> list[str]:
    found = tree.walk(start, limits or budget(), trees.Trouble(), depth=50)
    return [trees.shown(entry.parts) for entry in found]


# --- the tree -------------------------------------------------------------------


def test_near_entries_come_first_and_each_directory_is_sorted(root: Path, tree: trees.Tree) -> None:
    for name in ("b/z", "b/a", "a/deep/er"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / "c").write_text("x")
    assert walked(tree) == ["a", "b", "c", "a/deep", "b/a", "b/z", "a/deep/er"]
    assert walked(tree, "a") == ["a/deep", "a/deep/er"]


@pytest.mark.parametrize("path", ["..", "a/../..", "/etc/passwd", "/", "a\0b", "./../root"])
def test_a_path_that_leads_out_is_refused(tree: trees.Tree, path: str) -> None:
    with pytest.raises(trees.RefusedError, match="leads out"):
        tree.parts_of(path)


@pytest.mark.parametrize("path", ["", ".", "./", "././/"])
def test_the_root_has_many_names(tree: trees.Tree, path: str) -> None:
    assert tree.parts_of(path) == ()


def test_links_are_seen_but_never_followed(root: Path, tree: trees.Tree) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "away").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "loop").symlink_to(root)
    kinds = {
        entry.parts: entry.kind for entry in tree.walk((), budget(), trees.Trouble(), depth=50)
    }
    assert kinds == {("away",): "link", ("file",): "link", ("loop",): "link"}
    for parts in (("file",), ("away", "secret"), ("loop", "file")):
        with pytest.raises(trees.RefusedError):
            list(tree.chunks(parts, budget(), 100))


def test_a_link_put_in_the_place_of_a_directory_does_not_lead_out(
    root: Path, tree: trees.Tree
) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "sub").mkdir()
    (root / "sub" / "secret").write_text("mine")
    walk = tree.walk((), budget(), trees.Trouble(), depth=50)
    assert next(walk).parts == ("sub",)
    (root / "sub").rename(root.parent / "moved")
    (root / "sub").symlink_to(outside)
    assert list(walk) == []
    with pytest.raises(trees.RefusedError):
        list(tree.chunks(("sub", "secret"), budget(), 100))


def test_pipes_sockets_and_devices_are_never_opened(root: Path, tree: trees.Tree) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        # A short path: a socket's may not be long.
        before = Path.cwd()
        os.chdir(root)
        try:
            listener.bind("socket")
        finally:
            os.chdir(before)
        found = {
            entry.parts: entry.kind for entry in tree.walk((), budget(), trees.Trouble(), depth=5)
        }
        assert found == {("pipe",): "other", ("socket",): "other"}
        for name in ("pipe", "socket"):
            with pytest.raises(trees.RefusedError, match="only regular files"):
                list(tree.chunks((name,), budget(), 100))


def test_a_directory_is_not_read_as_a_file(root: Path, tree: trees.Tree) -> None:
    (root / "sub").mkdir()
    for parts in ((), ("sub",)):
        with pytest.raises(trees.RefusedError, match="directory"):
            list(tree.chunks(parts, budget(), 100))


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs /proc")
def test_nothing_on_a_pseudo_file_system_is_read_or_entered() -> None:
    tree = trees.Tree(Path("/proc"))
    entries = list(tree.walk((), budget(max_entries=300), trees.Trouble(), depth=50))
    assert entries
    assert not any(entry.readable for entry in entries)
    assert all(len(entry.parts) == 1 for entry in entries)
    with pytest.raises(trees.RefusedError, match="pseudo"):
        list(tree.chunks(("version",), budget(), 100))
    tree.close()


def test_names_that_are_no_text_are_shown_as_valid_text(root: Path, tree: trees.Tree) -> None:
    (root / os.fsdecode(b"a\xffb")).write_text("x")
    assert walked(tree) == ["a\\xffb"]


def test_skipped_directories_are_listed_and_counted_but_not_entered(
    root: Path, tree: trees.Tree
) -> None:
    (root / ".git" / "objects").mkdir(parents=True)
    trouble = trees.Trouble()
    found = [entry.parts for entry in tree.walk((), budget(), trouble, depth=50)]
    assert (found, trouble.not_entered) == ([(".git",)], 1)


def test_the_entry_limit_ends_a_walk(root: Path, tree: trees.Tree) -> None:
    for number in range(10):
        (root / str(number)).write_text("x")
    limits = budget(max_entries=4)
    assert len(walked(tree, limits=limits)) == 4
    assert limits.cut == "entry limit"


def test_the_time_limit_ends_a_walk(root: Path, tree: trees.Tree) -> None:
    (root / "a").write_text("x")
    limits = budget(time_limit=-1.0)
    assert walked(tree, limits=limits) == []
    assert limits.cut == "time limit"


def test_a_directory_of_a_great_many_entries_is_bounded(
    root: Path, tree: trees.Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_DIRECTORY_ENTRIES", 5)
    for number in range(10):
        (root / str(number)).write_text("x")
    (root / "0").unlink()
    (root / "0").mkdir()
    limits, trouble = budget(), trees.Trouble()
    found = [trees.shown(entry.parts) for entry in tree.walk((), limits, trouble, depth=5)]
    assert len(found) == 5  # what was looked at counts, though there is more
    assert (limits.cut, trouble.cut) == (None, "more than 5 in one directory")


def test_a_stopped_budget_stops_the_thread_at_its_next_step(root: Path, tree: trees.Tree) -> None:
    for number in range(10):
        (root / str(number)).write_text("x" * 100)
    limits = budget()
    walk = tree.walk((), limits, trees.Trouble(), depth=5)
    next(walk)
    limits.stop()
    with pytest.raises(trees.StoppedError):
        next(walk)
    with pytest.raises(trees.StoppedError):
        list(tree.chunks(("0",), limits, 100))


def test_a_deep_tree_is_walked_beyond_the_longest_path(root: Path, tree: trees.Tree) -> None:
    here = os.open(root, os.O_RDONLY)
    for _ in range(40):  # 40 × 200 characters: no path of the system is that long
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert len(walked(tree)) == 40


def test_two_scans_of_one_directory_do_not_disturb_each_other(root: Path, tree: trees.Tree) -> None:
    for number in range(500):  # more than the system hands out at once
        (root / f"{number:03}").write_text("x")
    inner: list[list[trees.Entry]] = []

    class Nosy(trees.Budget):
        def goes_on(self) -> bool:
            if len(inner) < 3:  # in the middle of the outer scan
                inner.append(tree._scan((), budget(), trees.Trouble()))
            return super().goes_on()

    outer = tree._scan((), Nosy(time_limit=30.0, max_entries=1000), trees.Trouble())
    assert [len(entries) for entries in (outer, *inner)] == [500] * 4


def test_no_descriptor_is_left_open(root: Path, tree: trees.Tree) -> None:
    (root / "a").mkdir()
    (root / "a" / "f").write_text("x")
    os.mkfifo(root / "pipe")
    before = sorted(entry.name for entry in Path("/proc/self/fd").iterdir())
    walked(tree)
    list(tree.chunks(("a", "f"), budget(), 100))
    for parts in (("pipe",), ("a",), ("a", "no"), ("no", "f")):
        with pytest.raises(trees.RefusedError):
            list(tree.chunks(parts, budget(), 100))
    assert sorted(entry.name for entry in Path("/proc/self/fd").iterdir()) == before


# --- the tools ------------------------------------------------------------------


async def test_lines_are_counted_by_suffix_and_binary_files_have_none(
    root: Path, tools: demo_server.FileTools
) -> None:
    (root / "a.py").write_text("1\n2\n3")  # the last line needs no break
    (root / "b.PY").write_text("1\n")
    (root / "empty.py").write_text("")
    (root / "c.bin").write_bytes(b"\0\n\n\n")
    (root / "none").write_text("\n\n")
    counts = await tools.count_lines()
    rows = {one.suffix: (one.files, one.lines, one.bytes) for one in counts.by_suffix}
    assert rows == {".py": (3, 4, 7), ".bin": (1, 0, 4), "(none)": (1, 2, 2)}
    assert (counts.files, counts.lines, counts.bytes, counts.cut) == (5, 6, 13, None)


async def test_text_is_found_with_its_line(root: Path, tools: demo_server.FileTools) -> None:
    (root / "a.txt").write_text("no\nhere it IS\n")
    (root / "b.bin").write_bytes(b"\0 it is")
    found = await tools.search_text("It is")
    assert [(one.path, one.line, one.text) for one in found.matches] == [("a.txt", 2, "here it IS")]
    assert found.files_searched == 1
    assert (await tools.search_text("It is", ignore_case=False)).matches == []


async def test_matches_and_their_lines_are_bounded(
    root: Path, tools: demo_server.FileTools
) -> None:
    (root / "a").write_text(("y" * 10_000 + "needle" + "y" * 10_000 + "\n") * 100)
    found = await tools.search_text("needle")
    assert len(found.matches) == 50
    assert found.cut == "only the first 50 matches are shown"
    assert all("needle" in one.text and len(one.text) <= 200 for one in found.matches)


async def test_a_part_of_a_file_is_read(root: Path, tools: demo_server.FileTools) -> None:
    (root / "f").write_text("1\n2\n3\n4\n")
    part = await tools.read_file("f", start_line=2, max_lines=2)
    assert (part.text, part.first_line, part.lines) == ("2\n3", 2, 2)
    assert part.cut == "there is more in the file"
    assert (await tools.read_file("f", start_line=3)).cut is None


async def test_what_is_read_is_bounded_in_bytes(root: Path, tools: demo_server.FileTools) -> None:
    (root / "lines").write_text("x" * 99 + "\n")
    (root / "lines").write_text(("x" * 99 + "\n") * 10_000)
    (root / "line").write_text("x" * 1_000_000)
    for name in ("lines", "line"):
        part = await tools.read_file(name, max_lines=10_000)
        assert 0 < len(part.text) <= 64 * 1024
        assert part.file_bytes == 1_000_000
    assert part.lines == 1


async def test_a_binary_file_is_told_and_not_shown(
    root: Path, tools: demo_server.FileTools
) -> None:
    (root / "f").write_bytes(b"a\0b")
    part = await tools.read_file("f")
    assert (part.binary, part.text, part.file_bytes) == (True, "", 3)


async def test_a_listing_is_bounded_and_says_so(root: Path, tools: demo_server.FileTools) -> None:
    for number in range(250):
        (root / f"{number:03}").write_text("x")
    listing = await tools.list_files()
    assert (len(listing.entries), listing.files) == (200, 250)
    assert listing.cut == "only the first 200 are shown"


async def test_an_empty_directory_is_no_error(tools: demo_server.FileTools) -> None:
    assert (await tools.list_files()).entries == []
    assert (await tools.count_lines()).files == 0
    assert (await tools.search_text("x")).matches == []


async def test_unreadable_entries_are_counted_and_the_rest_is_found(
    root: Path, tools: demo_server.FileTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "good").write_text("x\n")
    (root / "bad").write_text("x\n")
    (root / "shut").mkdir()
    real = os.open

    def refusing(path: Any, *args: Any, **kwargs: Any) -> int:
        # Permission bits do not stop a test that runs as root.
        if path in ("bad", "shut"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(trees.os, "open", refusing)
    counts = await tools.count_lines()
    assert (counts.lines, counts.unreadable) == (1, 2)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("search_text", {"text": ""}),
        ("read_file", {"path": "f", "start_line": 0}),
        ("read_file", {"path": "f", "max_lines": 0}),
        ("read_file", {"path": "no such file"}),
        ("list_files", {"path": "../x"}),
        ("list_files", {"path": "no such directory"}),
    ],
)
async def test_what_cannot_be_done_is_said_as_a_tool_error(
    tools: demo_server.FileTools, tool: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(demo_server.ToolError):
        await getattr(tools, tool)(**arguments)


async def test_a_cancelled_tool_lets_go_at_once_and_its_thread_stops(
    root: Path, tree: trees.Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (root / str(number)).write_text("x")
    entered, release = threading.Event(), threading.Event()
    stopped = trio.Event()
    token = trio.lowlevel.current_trio_token()
    real = trees.Tree._scan

    def slow_scan(self: trees.Tree, *args: Any) -> Any:
        entered.set()
        release.wait(LONG)  # a file system that does not answer
        try:
            return real(self, *args)
        except trees.StoppedError:
            token.run_sync_soon(stopped.set)
            raise

    monkeypatch.setattr(trees.Tree, "_scan", slow_scan)
    tools = demo_server.FileTools(tree, delay=0.0, time_limit=30.0)
    with trio.fail_after(LONG):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tools.list_files)
                await trio.to_thread.run_sync(entered.wait)
                scope.cancel()
        assert scope.cancelled_caught
        release.set()
        await stopped.wait()


async def test_the_delay_comes_first_and_can_be_cancelled(
    tree: trees.Tree, autojump_clock: trio.testing.MockClock
) -> None:
    tools = demo_server.FileTools(tree, delay=10.0, time_limit=30.0)
    with trio.move_on_after(4.0) as scope:
        await tools.list_files()
    assert scope.cancelled_caught


async def test_the_loop_is_not_blocked_by_file_work(
    root: Path, tree: trees.Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = threading.Event()

    def waiting_scan(*_: object) -> list[trees.Entry]:
        assert turned.wait(LONG)
        return []

    monkeypatch.setattr(trees.Tree, "_scan", waiting_scan)
    tools = demo_server.FileTools(tree, delay=0.0, time_limit=30.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tools.list_files)
        await trio.sleep(0.01)
        turned.set()  # reached only when the loop goes on beside the thread


# --- the server -----------------------------------------------------------------


def real_server(directory: Path, *options: str) -> McpToolset:
    return McpToolset.stdio(
        sys.executable,
        ["-P", "-m", "trio_runner_adapters.demo_server", str(directory), *options],
        name="files",
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_timeout=LONG,
    )


class Context:
    def report_progress(self, *args: object) -> None:
        pass


async def test_the_server_answers_over_real_pipes_with_its_declared_shapes(root: Path) -> None:
    (root / "a.txt").write_text("hello\n")
    async with real_server(root) as toolset:
        tools = {tool.name: tool for tool in await toolset.list_tools()}
        context: Any = Context()
        counted: Any = await tools["count_lines"].call({}, context)
        refused: Any = await tools["read_file"].call({"path": "../b"}, context)
        wrong: Any = await tools["read_file"].call({"path": 3}, context)
    assert set(tools) == {"list_files", "count_lines", "search_text", "read_file"}
    assert all(tool.description and tool.output_schema for tool in tools.values())
    assert (counted.status, counted.structured_content["lines"]) == ("ok", 1)
    assert json.loads(counted.text) == counted.structured_content
    assert (refused.status, "leads out" in refused.text) == ("error", True)
    assert wrong.status == "error"


async def test_a_cancel_stops_the_tool_in_the_server(root: Path) -> None:
    async with real_server(root, "--delay", "100") as toolset:
        tools = {tool.name: tool for tool in await toolset.list_tools()}
        start = time.monotonic()
        with trio.move_on_after(0.3) as scope:
            await tools["list_files"].call({}, Context())  # type: ignore[arg-type]
        assert scope.cancelled_caught
        assert time.monotonic() - start < LONG / 2


async def test_a_call_that_the_client_cancels_is_not_run_on(root: Path, tree: trees.Tree) -> None:
    began, ended = trio.Event(), trio.Event()

    async def list_files(path: str = ".") -> str:
        """Wait until cancelled."""
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        return path

    server = demo_server.build_server(demo_server.FileTools(tree, 0.0, 1.0))
    server.remove_tool("list_files")
    server.add_tool(list_files)
    with trio.fail_after(LONG):
        async with mcp.Client(server) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "list_files")
                await began.wait()
                nursery.cancel_scope.cancel()
            await ended.wait()


@pytest.mark.parametrize("arguments", [["/no/such/directory"], [__file__]])
def test_a_wrong_directory_is_exit_status_2_with_a_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo_server.main(arguments) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("delay", ["-1", "nan", "inf", "soon"])
def test_a_wrong_delay_is_refused(
    root: Path, delay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        demo_server.main([str(root), f"--delay={delay}"])
    assert caught.value.code == 2
