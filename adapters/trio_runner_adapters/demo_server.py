"""A small MCP server with read-only file tools: ``python -m trio_runner_adapters.demo_server DIR``.

It is what ``trio-runner demo`` talks to, over stdio, and an example of a server
on trio. Its tools see DIR and nothing else (`_tree`), their answers are bounded
in size, entries and time, and a cancelled call stops working.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import attrs
import pydantic
import trio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import trio_runner_adapters._tree as trees

_MAX_LISTED: Final = 200
_MAX_MATCHES: Final = 50
_MAX_SUFFIXES: Final = 50
_MAX_LINE: Final = 200  # characters
_MAX_READ_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 16 * 1024  # of one line that is read
_MAX_SEARCHED_BYTES: Final = 2 * 1024 * 1024
_MAX_COUNTED_BYTES: Final = 16 * 1024 * 1024
_MAX_ENTRIES: Final = 100_000
_MAX_DEPTH: Final = 64
#: Seconds after its time limit that a thread may take to notice it.
_THREAD_SLACK: Final = 5.0
#: The parts of ``--delay`` that the tools wait, so that they end at different times.
_DELAYS: Final = {"list_files": 0.5, "count_lines": 1.0, "search_text": 1.5, "read_file": 1.0}

_T = TypeVar("_T")


class _Answer(pydantic.BaseModel):
    """What every answer about a tree says besides."""

    path: str
    cut: str | None = pydantic.Field(
        default=None, description="Which bound cut the answer short, or null."
    )
    unreadable: int = pydantic.Field(default=0, description="Entries that could not be read.")
    not_entered: int = pydantic.Field(default=0, description="Directories that were not entered.")


class FileEntry(pydantic.BaseModel):
    """One entry of a listing."""

    path: str
    kind: str
    bytes: int


class Listing(_Answer):
    """The answer of ``list_files``: the first entries, and how many there are."""

    entries: list[FileEntry]
    files: int
    directories: int


class Match(pydantic.BaseModel):
    """One line that holds the text."""

    path: str
    line: int
    text: str


class Matches(_Answer):
    """The answer of ``search_text``."""

    matches: list[Match]
    files_searched: int


class SuffixCount(pydantic.BaseModel):
    """What the files of one suffix hold; lines of text files only."""

    suffix: str
    files: int = 0
    lines: int = 0
    bytes: int = 0


class Counts(_Answer):
    """The answer of ``count_lines``: the biggest suffixes first, and the sums over all."""

    by_suffix: list[SuffixCount]
    files: int
    lines: int
    bytes: int


class FilePart(pydantic.BaseModel):
    """The answer of ``read_file``; lines are counted from 1."""

    path: str
    text: str
    first_line: int
    lines: int
    file_bytes: int
    binary: bool = False
    cut: str | None = None


@attrs.frozen
class FileTools:
    """The tools, bound to one tree."""

    tree: trees.Tree
    delay: float
    time_limit: float

    async def list_files(self, path: str = ".", depth: int = 2) -> Listing:
        """List files and directories below a path, with their sizes, near ones first."""
        return await self._run("list_files", lambda budget: self._list(budget, path, depth))

    async def count_lines(self, path: str = ".") -> Counts:
        """Count files, lines and bytes below a path, by file suffix."""
        return await self._run("count_lines", lambda budget: self._count(budget, path))

    async def search_text(self, text: str, path: str = ".", ignore_case: bool = True) -> Matches:
        """Find the lines that hold a text in the text files below a path."""
        if not text:
            raise ToolError("the text to search for is empty")
        needle = text.casefold() if ignore_case else text
        return await self._run(
            "search_text", lambda budget: self._search(budget, path, needle, ignore_case)
        )

    async def read_file(self, path: str, start_line: int = 1, max_lines: int = 200) -> FilePart:
        """Read lines of one text file."""
        if start_line < 1 or max_lines < 1:
            raise ToolError("start_line and max_lines count from 1")
        return await self._run(
            "read_file", lambda budget: self._read(budget, path, start_line, max_lines)
        )

    async def _run(self, tool: str, work: Callable[[trees.Budget], _T]) -> _T:
        """Do file work in a thread; cancelled, let go at once and make the thread stop."""
        await trio.sleep(self.delay * _DELAYS[tool])
        budget = trees.Budget(time_limit=self.time_limit, max_entries=_MAX_ENTRIES)
        try:
            # A thread that hangs in the system (a dead network mount) is left behind.
            with trio.move_on_after(self.time_limit + _THREAD_SLACK):
                return await trio.to_thread.run_sync(work, budget, abandon_on_cancel=True)
        except trees.RefusedError as error:
            raise ToolError(str(error)) from error
        finally:
            budget.stop()
        raise ToolError(f"the file system did not answer within {self.time_limit:g} seconds")

    # --- in a thread ---

    def _list(self, budget: trees.Budget, path: str, depth: int) -> Listing:
        trouble = trees.Trouble()
        entries: list[FileEntry] = []
        files = directories = 0
        start = self.tree.parts_of(path)
        for entry in self.tree.walk(start, budget, trouble, max(1, min(depth, _MAX_DEPTH))):
            files += entry.kind == "file"
            directories += entry.kind == "directory"
            if len(entries) < _MAX_LISTED:
                name = trees.shown(entry.parts)
                entries.append(FileEntry(path=name, kind=entry.kind, bytes=entry.size_bytes))
        left = files + directories > len(entries)
        return Listing(
            path=trees.shown(start),
            cut=budget.cut
            or trouble.cut
            or (f"only the first {_MAX_LISTED} are shown" if left else None),
            unreadable=trouble.unreadable,
            not_entered=trouble.not_entered,
            entries=entries,
            files=files,
            directories=directories,
        )

    def _count(self, budget: trees.Budget, path: str) -> Counts:
        trouble = trees.Trouble()
        start = self.tree.parts_of(path)
        counts: dict[str, SuffixCount] = {}
        for entry in self._files(start, budget, trouble):
            suffix = Path(trees.shown(entry.parts)).suffix.lower()[:20] or "(none)"
            if suffix not in counts and len(counts) >= _MAX_SUFFIXES:
                suffix = "(other)"
            count = counts.setdefault(suffix, SuffixCount(suffix=suffix))
            count.files += 1
            count.bytes += entry.size_bytes
            try:
                count.lines += self._lines_in(entry.parts, budget)
            except trees.RefusedError:
                trouble.unreadable += 1
        ordered = sorted(counts.values(), key=lambda one: (-one.lines, -one.bytes, one.suffix))
        return Counts(
            path=trees.shown(start),
            cut=budget.cut or trouble.cut,
            unreadable=trouble.unreadable,
            not_entered=trouble.not_entered,
            by_suffix=ordered,
            files=sum(one.files for one in ordered),
            lines=sum(one.lines for one in ordered),
            bytes=sum(one.bytes for one in ordered),
        )

    def _lines_in(self, parts: trees.Parts, budget: trees.Budget) -> int:
        lines = 0
        last = b"\n"
        for number, chunk in enumerate(self.tree.chunks(parts, budget, _MAX_COUNTED_BYTES)):
            if number == 0 and _is_binary(chunk):
                return 0
            lines += chunk.count(b"\n")
            last = chunk[-1:]
        return lines + (last != b"\n")  # a last line needs no line break

    def _search(self, budget: trees.Budget, path: str, needle: str, ignore_case: bool) -> Matches:
        trouble = trees.Trouble()
        start = self.tree.parts_of(path)
        matches: list[Match] = []
        searched = 0
        for entry in self._files(start, budget, trouble):
            try:
                data = b"".join(self.tree.chunks(entry.parts, budget, _MAX_SEARCHED_BYTES))
            except trees.RefusedError:
                trouble.unreadable += 1
                continue
            if _is_binary(data):
                continue
            searched += 1
            matches += _matches(entry.parts, data, needle, ignore_case, budget)
            if len(matches) > _MAX_MATCHES:
                budget.cut = budget.cut or f"only the first {_MAX_MATCHES} matches are shown"
                break
        return Matches(
            path=trees.shown(start),
            cut=budget.cut or trouble.cut,
            unreadable=trouble.unreadable,
            not_entered=trouble.not_entered,
            matches=matches[:_MAX_MATCHES],
            files_searched=searched,
        )

    def _read(self, budget: trees.Budget, path: str, start_line: int, max_lines: int) -> FilePart:
        parts = self.tree.parts_of(path)
        size = self.tree.size(parts)
        name = trees.shown(parts)
        chunks = self.tree.chunks(parts, budget, _MAX_COUNTED_BYTES)
        first = next(chunks, b"")
        if _is_binary(first):
            return FilePart(path=name, text="", first_line=1, lines=0, file_bytes=size, binary=True)
        excerpt = _Excerpt(start_line, max_lines)
        excerpt.read(itertools.chain([first], chunks))
        more = excerpt.more or size > _MAX_COUNTED_BYTES
        return FilePart(
            path=name,
            text="\n".join(excerpt.lines),
            first_line=start_line,
            lines=len(excerpt.lines),
            file_bytes=size,
            cut=budget.cut or ("there is more in the file" if more else None),
        )

    def _files(
        self, start: trees.Parts, budget: trees.Budget, trouble: trees.Trouble
    ) -> Iterator[trees.Entry]:
        for entry in self.tree.walk(start, budget, trouble, _MAX_DEPTH):
            if entry.kind == "file":
                if entry.readable:
                    yield entry
                else:
                    trouble.unreadable += 1


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:8192]


class _Excerpt:
    """Some lines of a file, taken from its chunks as they come; only a line break ends a line."""

    def __init__(self, start_line: int, max_lines: int) -> None:
        self._start_line = start_line
        self._max_lines = max_lines
        self._left_bytes = _MAX_READ_BYTES
        self.lines: list[str] = []
        #: Whether something of the file comes behind, or was left out of a line.
        self.more = False

    def read(self, chunks: Iterable[bytes]) -> None:
        """Take the wanted lines and stop; nothing before them is decoded or kept."""
        number, begun = 1, b""
        for chunk in chunks:
            ends = chunk.count(b"\n")
            if number + ends < self._start_line:
                number += ends
                continue
            *whole, rest = chunk.split(b"\n")
            for piece in whole:
                if number >= self._start_line and not self._take(begun + piece):
                    return
                number, begun = number + 1, b""
            if number >= self._start_line:
                # One byte more than is shown tells that there is more.
                begun = (begun + rest)[: _MAX_LINE_BYTES + 1]
        if begun:
            self._take(begun)

    def _take(self, raw: bytes) -> bool:
        """Keep a line, and return whether to go on."""
        line = raw[:_MAX_LINE_BYTES].removesuffix(b"\r").decode("utf-8", "replace")
        self._left_bytes -= len(line.encode()) + 1
        if len(self.lines) == self._max_lines or (self._left_bytes < 0 and self.lines):
            self.more = True
            return False
        self.lines.append(line)
        self.more = self.more or len(raw) > _MAX_LINE_BYTES
        return True


def _matches(
    parts: trees.Parts, data: bytes, needle: str, ignore_case: bool, budget: trees.Budget
) -> list[Match]:
    found: list[Match] = []
    text = data.decode("utf-8", "replace")
    if needle not in (text.casefold() if ignore_case else text):
        return found  # as in most files; looking line by line takes longer
    # Only a line break ends a line, as in editors; str.splitlines knows eight others.
    for number, line in enumerate(io.StringIO(text, newline="\n"), 1):
        if number % 1000 == 0 and not budget.goes_on():
            break
        place = (line.casefold() if ignore_case else line).find(needle)
        if place >= 0:
            begin = max(0, place - _MAX_LINE // 2)
            near = line[begin : begin + _MAX_LINE].strip()
            found.append(Match(path=trees.shown(parts), line=number, text=near))
            if len(found) > _MAX_MATCHES:
                break
    return found


def build_server(tools: FileTools) -> MCPServer:
    """Return a server that offers ``tools``."""
    server = MCPServer("trio-runner-demo", version="1", log_level="ERROR")
    offered: tuple[Callable[..., Awaitable[object]], ...] = (
        tools.list_files,
        tools.count_lines,
        tools.search_text,
        tools.read_file,
    )
    for tool in offered:
        server.add_tool(tool)
    return server


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Serve until the client closes our input; return the exit status."""
    parser = argparse.ArgumentParser(prog="demo_server", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--delay", type=_seconds, default=0.0, help="seconds a tool waits first")
    parser.add_argument("--time-limit", type=_seconds, default=5.0, help="seconds for one call")
    options = parser.parse_args(arguments)
    if os.open not in os.supports_dir_fd:
        sys.stderr.write("this server needs a POSIX system\n")
        return 2
    try:
        tree = trees.Tree(options.directory)
    except OSError as error:
        sys.stderr.write(f"cannot read {str(options.directory)!r}: {error.strerror}\n")
        return 2
    server = build_server(FileTools(tree, options.delay, options.time_limit))
    trio.run(server.run_stdio_async)
    return 0


if __name__ == "__main__":
    sys.exit(main())
