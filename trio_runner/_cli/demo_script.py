"""What the model of the demo says: a script, but made from the real results. Pure.

The planner asks for an overview with several tools at once, then for the
beginnings of a few files that the overview named, then answers from what it got.
A tool that failed is said to have failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final, cast

import trio_runner as tr
import trio_runner.abc as abc
from trio_runner.testing import ScriptItem, call

QUESTION: Final = "What is in this directory?"
SEARCHED: Final = "TODO"
_READ_FILES: Final = 3
_READ_LINES: Final = 40
_MAX_SIZE: Final = 1_000_000  # bytes; bigger files are not chosen for reading


def script() -> tuple[ScriptItem, ...]:
    """Return the three replies of the demo's model."""
    return (_overview, _closer_look, _answer)


def _overview(_: abc.ModelRequest) -> tuple[tr.ToolCall, ...]:
    return (
        call("list_files", path=".", depth=3),
        call("count_lines", path="."),
        call("search_text", text=SEARCHED, ignore_case=False),
        call("search_text", text="license"),
    )


def _closer_look(request: abc.ModelRequest) -> tr.ToolCall | tuple[tr.ToolCall, ...] | str:
    chosen = _worth_reading(request)
    if not chosen:
        return _answer(request)  # nothing to read: the turn is one step shorter
    return tuple([call("read_file", path=path, max_lines=_READ_LINES) for path in chosen])


def _worth_reading(request: abc.ModelRequest) -> list[str]:
    """A few files that were found: a README first, then those with matches, then by size."""
    listed = _data(request, "list_files")
    # Files of a kind that has no lines at all are no text.
    textless = {
        kind["suffix"]
        for each in _data(request, "count_lines")
        for kind in cast("list[Mapping[str, Any]]", each["by_suffix"])
        if kind["lines"] == 0
    }
    entries = [
        entry
        for each in listed
        for entry in cast("list[Mapping[str, Any]]", each["entries"])
        # A backslash stands for bytes of a name that are no text: it cannot be asked for.
        if entry["kind"] == "file" and 0 < entry["bytes"] < _MAX_SIZE and "\\" not in entry["path"]
        if (PurePosixPath(entry["path"]).suffix.lower()[:20] or "(none)") not in textless
    ]
    matching = {
        match["path"]
        for each in _data(request, "search_text")
        for match in cast("list[Mapping[str, Any]]", each["matches"])
    }

    def rank(entry: Mapping[str, Any]) -> tuple[bool, int, bool, int, str]:
        path = PurePosixPath(entry["path"])
        readme = path.stem.lower() == "readme"
        return (
            not readme,
            len(path.parts) if readme else 0,
            entry["path"] not in matching,
            -entry["bytes"],
            entry["path"],
        )

    return [entry["path"] for entry in sorted(entries, key=rank)[:_READ_FILES]]


def _answer(request: abc.ModelRequest) -> str:
    lines = [*_counted(request), *_searched(request), *_read(request), *_failed(request)]
    return "\n".join(lines) or "No tool has answered, so there is nothing to say."


def _counted(request: abc.ModelRequest) -> Iterator[str]:
    for data in _data(request, "count_lines"):
        if data["files"] == 0:
            unread = f"{_number(data['unreadable'], 'place')} could not be read"
            blind = data["cut"] or (unread if data["unreadable"] else None)
            yield "There are no files here." if blind is None else f"No file was seen: {blind}."
            continue
        yield (
            f"{_number(data['files'], 'file')} with {_number(data['lines'], 'line')} of text, "
            f"{data['bytes']:,} bytes in all{_cut(data)}."
        )
        kinds = [
            f"{one['suffix']} ({_number(one['lines'], 'line')} in {_number(one['files'], 'file')})"
            for one in cast("list[Mapping[str, Any]]", data["by_suffix"])[:4]
        ]
        yield f"Most of it: {', '.join(kinds)}."
        if data["not_entered"]:
            one = data["not_entered"] == 1
            many = f"{data['not_entered']:,} directories, such as .git, were"
            yield f"{'1 directory, such as .git, was' if one else many} not looked into."


def _searched(request: abc.ModelRequest) -> Iterator[str]:
    for result, arguments in _results(request, "search_text"):
        data = cast("Mapping[str, Any]", result.structured_content)
        matches = cast("list[Mapping[str, Any]]", data["matches"])
        searched = f"{_number(data['files_searched'], 'text file')}{_cut(data)}"
        if data["files_searched"] == 0:
            yield f"There was no text file to search for {arguments['text']!r}{_cut(data)}."
            continue
        if not matches:
            yield f"{arguments['text']!r} stands nowhere in {searched}."
            continue
        first = matches[0]
        yield (
            f"{arguments['text']!r} stands in {_number(len(matches), 'line')} of {searched}, "
            f"first in {_shown(first['path'])}, line {first['line']}."
        )


def _read(request: abc.ModelRequest) -> Iterator[str]:
    for data in _data(request, "read_file"):
        begins = next((line for line in data["text"].splitlines() if line.strip()), "")
        path = _shown(data["path"])
        if data["binary"]:
            yield f"{path} is not text."
        elif begins:
            yield f"{path} begins: {begins.strip()[:100]}"
        else:
            yield f"{path} is blank."


def _failed(request: abc.ModelRequest) -> Iterator[str]:
    for message in request.history:
        for result in message.tool_results:
            if result.is_error:
                text = " ".join(result.text.split())[:200]
                yield f"{result.name} gave no answer ({result.status.value}): {text}"


def _data(request: abc.ModelRequest, tool: str) -> list[Mapping[str, Any]]:
    return [
        cast("Mapping[str, Any]", result.structured_content)
        for result, _ in _results(request, tool)
    ]


def _results(request: abc.ModelRequest, tool: str) -> list[tuple[tr.ToolResult, Mapping[str, Any]]]:
    """The good results of one tool so far, each with the arguments of its call."""
    calls = {each.id: each for message in request.history for each in message.tool_calls}
    return [
        (result, calls[result.call_id].arguments)
        for message in request.history
        for result in message.tool_results
        if result.name == tool and not result.is_error
    ]


def _shown(path: str) -> str:
    """A path on one line: a file's name may hold line breaks."""
    return "\\n".join(path.splitlines())


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _cut(data: Mapping[str, Any]) -> str:
    """What an answer about a tree does not cover."""
    said = [str(data["cut"])] if data["cut"] else []
    if data["unreadable"]:
        said.append(f"{data['unreadable']:,} could not be read")
    return f" ({'; '.join(said)})" if said else ""
