"""A session as Markdown, for people to read.

What may live here: turning records into text that nothing in it can break out of.

A conversation is written by models, tools and users, and a Markdown viewer obeys
what it reads. So every text of theirs stands either in a fence that is longer than
any run of backticks in it, or, where Markdown is what they write (messages), in a
block quote. A quote ends where we end it, whatever is in it. Inside one, what would
act beyond it is taken the edge off: tags, images (a viewer would fetch them) and
link definitions (they hold for the whole page). Control characters, which a
terminal would obey, are written as escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, assert_never

import trio_runner._core.records as r
import trio_runner._core.values as v

#: Controls but tab and line feed, and the marks that turn the direction of writing.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TICKS: Final = re.compile(r"`+")
#: A fence that begins at the margin. One that is indented may be part of a list, where it ends
#: with the list: it is not trusted.
_FENCE: Final = re.compile(r"(`{3,})[^`]*|(~{3,}).*")
_TAG: Final = re.compile(r"<(?=[A-Za-z/!?])")


def to_markdown(
    records: Iterable[r.Record], *, title: str = "Session", longest_text: int | None = None
) -> str:
    """The conversation as Markdown: each turn with its messages, calls, results and end.

    It shows what happened, also what a later edit or summary took out of the history.
    Media are named and not shown.

    Args:
      longest_text: characters of one text to show at most; None: all.
    """
    parts = [f"# {_inline(title)}"]
    page = _Page(longest_text)
    for record in records:
        parts += page.blocks_of(record)
    return "\n\n".join(parts) + "\n"


class _Page:
    """Writes one record after the other."""

    def __init__(self, longest_text: int | None) -> None:
        self._longest_text = longest_text

    def blocks_of(self, record: r.Record) -> Iterator[str]:
        match record:
            case r.SessionOpened(agent=agent):
                yield f"Agent: {_inline(agent)}"
            case r.TurnStarted(turn=turn, input=messages, resumed=resumed):
                yield f"## Turn {turn}" + (", resumed" if resumed else "")
                yield from self._messages(messages)
            case r.ModelFinished(message=message):
                yield from self._messages([message])
            case r.ToolFinished(result=result, attached=attached):
                yield from self._result(result)
                yield from self._messages(attached)
            case r.PassedThrough(message=message):
                yield "*The results are the answer:*"
                yield from self._messages([message])
            case r.CallHeld() | r.CallApproved() | r.CallEdited():
                yield from self._word(record)
            case r.AnswerRefused(messages=messages):
                yield "*The answer was refused:*"
                yield from self._messages(messages)
            case r.InputAdded(messages=messages):
                yield from self._messages(messages)
            case r.HistoryReplaced(messages=messages):
                yield f"*From here on the history is these {len(messages)} messages:*"
                yield from self._messages(messages)
            case r.TurnEnded(end_reason=end_reason):
                yield f"*The turn ended: {end_reason.value}.*"
            case r.ToolStarted():
                pass
            case r.Compacted(before=before, upto=upto, summary=summary, kept=kept):
                stay = sum(stop - start for start, stop in kept)
                but = f" but for {stay}, which stay behind it" if stay else ""
                yield f"*A summary takes the place of messages 1 to {upto} of {before}{but}:*"
                yield from self._messages([summary])
            case r.Trimmed(dropped=dropped):
                count = sum(stop - start for start, stop in dropped)
                yield f"*{count} messages of tool steps are left out from here on.*"
            case _:
                assert_never(record)

    def _messages(self, messages: Iterable[v.Message]) -> Iterator[str]:
        for message in messages:
            who = "User" if message.role == "user" else "Assistant"
            said = list(self._content(message.content, quoted=True))
            if said:
                yield f"**{who}**" + (" (template)" if message.template else "")
                yield from said
            for call in message.tool_calls:
                yield from self._call(call)
            for result in message.tool_results:
                yield from self._result(result)

    def _call(self, call: v.ToolCall) -> Iterator[str]:
        yield f"**Call** {_inline(call.name)} ({_inline(call.id)})"
        yield self._fenced(_json(call.arguments), "json")
        if call.arguments_error is not None:
            yield "The arguments were wrong:"
            yield self._fenced(call.arguments_error)

    def _word(self, record: r.CallHeld | r.CallApproved | r.CallEdited) -> Iterator[str]:
        """Somebody's word on a call, or that it waits for one."""
        match record:
            case r.CallHeld(call_id=call_id, waits_for=waits_for):
                what = "approval" if waits_for == "approval" else "the application"
                yield f"*Call {_inline(call_id)} waits for {what}.*"
            case r.CallApproved(call_id=call_id):
                yield f"*Call {_inline(call_id)} was approved.*"
            case r.CallEdited(call_id=call_id, arguments=arguments):
                yield f"*Somebody edited the arguments of call {_inline(call_id)}:*"
                yield self._fenced(_json(arguments), "json")
            case _:
                assert_never(record)

    def _result(self, result: v.ToolResult) -> Iterator[str]:
        took = "" if result.duration is None else f", {result.duration:.3g} s"
        status = result.status.value
        yield (
            f"**Result** of {_inline(result.name)} ({_inline(result.call_id)}): "
            + (f"**{status}**" if result.is_error else status)
            + took
        )
        yield from self._content(result.content, quoted=False)
        if result.structured_content is not None:
            yield self._fenced(_json(result.structured_content), "json")

    # --- content ---

    def _content(self, blocks: Iterable[v.ContentBlock], *, quoted: bool) -> Iterator[str]:
        for block in blocks:
            match block:
                case v.TextContent(text=text):
                    if text.strip():
                        yield self._quoted(text) if quoted else self._fenced(text)
                case v.ImageContent(data=data, mime_type=kind):
                    yield f"*Image:* {_media(kind, data)}"
                case v.AudioContent(data=data, mime_type=kind):
                    yield f"*Sound:* {_media(kind, data)}"
                case v.ResourceLink(uri=uri, name=name):
                    yield f"*Resource:* {_inline(name)}, {_inline(uri)}"
                case v.EmbeddedResource(uri=uri, text=text, blob=blob, mime_type=kind):
                    yield f"*Resource:* {_inline(uri)}, {_media(kind or 'unknown', blob or '')}"
                    if text is not None:
                        yield self._fenced(text)
                case _:
                    assert_never(block)

    def _clipped(self, text: str) -> str:
        limit = self._longest_text
        if limit is None or len(text) <= limit:
            return text
        return f"{text[:limit]}\n… {len(text) - limit} more characters"

    def _fenced(self, text: str, language: str = "") -> str:
        fence = "`" * max(3, 1 + _longest_run(text))
        return f"{fence}{language}\n{_plain(self._clipped(text))}\n{fence}"

    def _quoted(self, text: str) -> str:
        """The text as a block quote; tags and the like are harmless outside its fences."""
        lines: list[str] = []
        fence = ""
        for line in _plain(self._clipped(text)).split("\n"):
            if fence:
                lines.append(line)
                if re.fullmatch(rf" {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*", line):
                    fence = ""
                continue
            begins = _FENCE.fullmatch(line)
            fence = (begins[1] or begins[2]) if begins else ""
            lines.append(line if begins else _harmless(line))
        return "\n".join([f"> {line}".rstrip() for line in lines])


# --- text -------------------------------------------------------------------------


def _plain(text: str) -> str:
    """The text with the line ends that Markdown knows as line feeds, and no control characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _harmless(line: str) -> str:
    return _TAG.sub("&lt;", line).replace("![", "!\\[").replace("]:", "]\\:")


def _longest_run(text: str) -> int:
    return max([len(run) for run in _TICKS.findall(text)], default=0)


def _inline(text: str) -> str:
    """The text as code within a line."""
    line = _plain(" ".join(text.split())) or " "
    ticks = "`" * (1 + _longest_run(line))
    # The blanks are not shown: they keep a backtick at its end from the others.
    return f"{ticks} {line} {ticks}" if "`" in line else f"{ticks}{line}{ticks}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _media(kind: str, base64_text: str) -> str:
    return f"{_inline(kind)}, {len(base64_text) * 3 // 4} bytes"
