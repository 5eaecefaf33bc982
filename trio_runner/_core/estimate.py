"""How many tokens a conversation takes, as far as can be known without a tokeniser.

What may live here: pure arithmetic. A model counts what it was sent, and its newest
reply says so (``usage``); only what came since is estimated, by the rule of thumb
that four characters are a token. Where no reply says anything, all of it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, assert_never

import trio_runner._core.values as v
from trio_runner._core.history import History, HistoryView

#: Characters of English, or of JSON, that one token stands for.
CHARACTERS_PER_TOKEN: Final = 4
#: What a message, a call or a result takes beside its text.
_FRAME: Final = 4
#: What an image, a sound or a file takes, whatever its size.
_MEDIA: Final = 1_000


def text_tokens(text: str) -> int:
    """About how many tokens ``text`` is."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def message_tokens(message: v.Message) -> int:
    """About how many tokens ``message`` is, with its calls and results."""
    tokens = _FRAME + _content_tokens(message.content)
    for call in message.tool_calls:
        tokens += _FRAME + text_tokens(call.name) + json_tokens(call.arguments)
    for result in message.tool_results:
        tokens += _FRAME + _content_tokens(result.content)
    return tokens


def json_tokens(value: object) -> int:
    """About how many tokens plain JSON is."""
    return text_tokens(json.dumps(value, default=str)) if value else 1


def _content_tokens(content: Iterable[v.ContentBlock]) -> int:
    return sum(map(_block_tokens, content))


def _block_tokens(block: v.ContentBlock) -> int:
    match block:
        case v.TextContent(text=text):
            return text_tokens(text)
        case v.ImageContent() | v.AudioContent():
            return _MEDIA
        case v.ResourceLink(uri=uri, name=name, description=description):
            return text_tokens(uri) + text_tokens(name) + text_tokens(description or "")
        case v.EmbeddedResource(uri=uri, text=text):
            return text_tokens(uri) + (_MEDIA if text is None else text_tokens(text))
        case _:
            assert_never(block)


class Meter:
    """Estimates a history again and again, and looks at each message once.

    Invariant: what it says is the sum over the messages that are there
    (``test_estimate.py``).
    """

    def __init__(self) -> None:
        #: What was added up so far; None before the first time.
        self._seen: HistoryView | None = None
        self._tokens = 0

    def tokens(self, history: History) -> int:
        """The estimate of all messages; costs what came since the last time."""
        seen = self._seen
        if seen is None or not history.grew_from(seen):
            start = self._tokens = 0
        else:
            start = len(seen)
        self._tokens += sum(map(message_tokens, history.view(start)))
        self._seen = history.view()
        return self._tokens


def context_tokens(history: History, meter: Meter, fixed: int) -> int:
    """How many tokens the next model call would send.

    The newest reply says how many its own call took, unless the history was shortened
    since; what came behind it is estimated. Without, all is.

    Args:
      fixed: the estimate of what is sent beside the history: instruction and tools.
    """
    messages = history.view()
    for index in range(len(messages) - 1, history.appended_from - 1, -1):
        message = messages[index]
        if message.role == "assistant":
            usage = message.usage
            if usage is not None and usage.total_tokens > 0:
                rest = history.view(index + 1)
                return usage.total_tokens + sum(map(message_tokens, rest))
            break
    return fixed + meter.tokens(history)
