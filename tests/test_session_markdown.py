"""A session as Markdown: everything is shown, and nothing breaks out of its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trio_runner as tr
import trio_runner.records as r
from trio_runner.sessions import to_markdown


def said(text: str) -> str:
    """The part of the page that shows what the assistant said."""
    page = to_markdown([r.ModelFinished(1, 0, tr.Message.assistant(text), None)])
    return page.removeprefix("# `Session`\n\n**Assistant**\n\n").removesuffix("\n")


def answered(text: str) -> str:
    """The part of the page that shows what a tool answered."""
    page = to_markdown([r.ToolFinished(1, 0, tr.ToolResult("c", "t", text))])
    return page.partition("(`c`): ok\n\n")[2].removesuffix("\n")


def test_a_turn_with_calls_errors_and_media_reads_like_this() -> None:
    calls = [tr.ToolCall("c1", "search", {"for": "é"}), tr.ToolCall("c2", "pay", {}, "no JSON")]
    image = tr.ImageContent("aGVsbG8h", "image/png")
    link = tr.ResourceLink("file:///a`b", "a name")
    records: list[r.Record] = [
        r.SessionOpened("planner"),
        r.TurnStarted(1, (tr.Message.user("find it"),)),
        r.ModelFinished(1, 0, tr.Message.assistant("*looking*", tool_calls=calls), None),
        r.ToolStarted(1, 0, "c1", "search", "00ff", "s/1:0:c1"),
        r.ToolFinished(
            1, 0, tr.ToolResult("c1", "search", [tr.TextContent("found"), image], duration=1.25)
        ),
        r.ToolFinished(
            1,
            0,
            tr.ToolResult(
                "c2", "pay", "broke", status=tr.CallStatus.ERROR, structured_content={"code": 7}
            ),
            (tr.Message.user([link]),),
        ),
        r.InputAdded(1, (tr.Message.user("hurry"),)),
        r.TurnEnded(1, tr.EndReason.INTERRUPTED),
        r.HistoryReplaced((tr.Message.user("be brief", template=True),)),
        r.TurnStarted(1, (), resumed=True),
    ]
    expected = """\
# `s-1`

Agent: `planner`

## Turn 1

**User**

> find it

**Assistant**

> *looking*

**Call** `search` (`c1`)

```json
{
  "for": "é"
}
```

**Call** `pay` (`c2`)

```json
{}
```

The arguments were wrong:

```
no JSON
```

**Result** of `search` (`c1`): ok, 1.25 s

```
found
```

*Image:* `image/png`, 6 bytes

**Result** of `pay` (`c2`): **error**

```
broke
```

```json
{
  "code": 7
}
```

**User**

*Resource:* `a name`, `` file:///a`b ``

**User**

> hurry

*The turn ended: interrupted.*

*From here on the history is these 1 messages:*

**User** (template)

> be brief

## Turn 1, resumed
"""
    assert to_markdown(records, title="s-1") == expected


def test_other_content_is_named() -> None:
    sound = tr.AudioContent("AAAA", "audio/wav")
    text = tr.EmbeddedResource("a://b", text="inside\n```", mime_type="text/plain")
    blob = tr.EmbeddedResource("a://c", blob="AAAA")
    page = to_markdown([r.TurnStarted(1, (tr.Message.user([sound, text, blob]),))])

    assert "*Sound:* `audio/wav`, 3 bytes" in page
    assert "*Resource:* `a://b`, `text/plain`" in page
    assert "````\ninside\n```\n````" in page
    assert "*Resource:* `a://c`, `unknown`, 3 bytes" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("## User\n\nme too", "> ## User\n>\n> me too"),
        ("a\r\n\r\nb\rc", "> a\n>\n> b\n> c"),
        ("<script>alert()</script> 1 < 2", "> &lt;script>alert()&lt;/script> 1 < 2"),
        ("<!-- the rest is hidden", "> &lt;!-- the rest is hidden"),
        ("![x](https://example.org/spy)", "> !\\[x](https://example.org/spy)"),
        ("[1]: https://example.org", "> [1]\\: https://example.org"),
        ("```html\n<b>\n```\n<b>", "> ```html\n> <b>\n> ```\n> &lt;b>"),
        ("~~~\n<b>\n```\n~~~~ \n<b>", "> ~~~\n> <b>\n> ```\n> ~~~~\n> &lt;b>"),
        # A fence that is not closed ends with the quote.
        ("```\n<b>", "> ```\n> <b>"),
        # This one ends with its list, which a line by line reading does not see.
        ("- a\n  ```\n<b>", "> - a\n>   ```\n> &lt;b>"),
        # Inline code, no fence.
        ("```a``` <b>", "> ```a``` &lt;b>"),
        ("\x1b[2J\u202egnp", "> \\x1b[2J\\u202egnp"),
    ],
)
def test_a_message_stays_in_its_quote(text: str, shown: str) -> None:
    assert said(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("```\n## User\n```", "````\n```\n## User\n```\n````"),
        ("a ````` b", "``````\na ````` b\n``````"),
        ("\x1b]0;title\x07\ttab", "```\n\\x1b]0;title\\x07\ttab\n```"),
    ],
)
def test_a_result_stays_in_its_fence(text: str, shown: str) -> None:
    assert answered(text) == shown


def test_a_name_stays_in_its_code() -> None:
    result = tr.ToolResult("`\n## x", "a`` b\n\n# c", "x")

    assert "**Result** of ``` a`` b # c ``` (`` ` ## x ``): ok" in to_markdown(
        [r.ToolFinished(1, 0, result)], title="`"
    )


def test_a_long_text_is_cut_and_says_so() -> None:
    records = [r.TurnStarted(1, (tr.Message.user("x" * 50),))]

    assert f"> {'x' * 20}\n> … 30 more characters\n" in to_markdown(records, longest_text=20)
    assert "x" * 50 in to_markdown(records, longest_text=50)


PIECES = st.lists(
    st.sampled_from(
        ["```", "~~~~", "`", "<b", "\n", "\r", " ", "    ", "- ", "> ", "![", "]:", "x"]
    )
).map("".join)


@given(PIECES)
def test_no_message_leaves_its_quote_or_hides_a_tag(text: str) -> None:
    lines = said(text).split("\n") if text.strip() else []

    assert all(line.startswith(">") for line in lines)
    # A second reading of the fences: only between two of them may a tag stand.
    fence = ""
    for line in (each.removeprefix(">").removeprefix(" ") for each in lines):
        if not fence and re.match(r"```+[^`]*$|~~~+", line):
            fence = re.match(r"`+|~+", line)[0]  # type: ignore[index]
        elif fence and re.match(rf" {{0,3}}{fence}{fence[0]}*\s*$", line):
            fence = ""
        else:
            assert fence or ("<b" not in line and "![" not in line and "]:" not in line)


@given(PIECES)
def test_no_result_leaves_its_fence(text: str) -> None:
    lines = answered(text).split("\n") if text.strip() else []
    if lines:
        first, last = lines[0], lines[-1]
        assert first == last
        assert set(first) == {"`"}
        assert not any(first in line for line in lines[1:-1])
