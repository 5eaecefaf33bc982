"""`History`: the append-only list of messages, and the views handed out of it.

Only storage lives here; the rule of what is valid is ``validity.py``. Whoever
appends has checked or built what is appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Final, cast, overload

import trio_runner._core.values as v


class HistoryView(Sequence[v.Message]):
    """A read-only window on a history that costs nothing to make and never changes.

    The list behind it only grows, and is left alone when the history is
    replaced, so what the window shows stays as it was.
    """

    __slots__ = ("_messages", "_start", "_stop")

    def __init__(self, messages: list[v.Message], start: int, stop: int) -> None:
        self._messages: Final = messages
        self._start: Final = start
        self._stop: Final = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> v.Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[v.Message, ...]: ...
    def __getitem__(self, index: int | slice) -> v.Message | tuple[v.Message, ...]:
        positions = range(self._start, self._stop)[index]
        if isinstance(positions, int):
            return self._messages[positions]
        return tuple([self._messages[i] for i in positions])

    def __iter__(self) -> Iterator[v.Message]:
        for i in range(self._start, self._stop):
            yield self._messages[i]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(
            mine == theirs for mine, theirs in zip(self, others, strict=True)
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def is_all_of(self, messages: list[v.Message]) -> bool:
        """Whether the window shows this very list, as long as it is now; in constant time."""
        return self.is_of(messages) and self._stop == len(messages)

    def is_of(self, messages: list[v.Message]) -> bool:
        """Whether the window shows a part of this very list; in constant time."""
        return self._messages is messages

    def __repr__(self) -> str:
        return f"<HistoryView of {len(self)} messages>"


class History:
    """The messages of a conversation, with what is needed to grow in constant time.

    Invariant: the list object is never changed below its length; replacing the
    history makes a new one (``test_history.py`` holds it).
    """

    __slots__ = ("_appended_from", "_delta_start", "_ids", "_messages", "_snapshot")

    def __init__(self, messages: Iterable[v.Message] = ()) -> None:
        #: All messages, oldest first.
        self._messages: list[v.Message] = []
        #: The ids of all calls in the messages, and what was reserved.
        self._ids: set[str] = set()
        #: Index of the first message that the model side does not have.
        self._delta_start = 0
        #: Index of the first message that came after the newest replacement.
        self._appended_from = 0
        #: The messages as a tuple, made on demand; stale when shorter than the list.
        self._snapshot: tuple[v.Message, ...] = ()
        for message in messages:
            self.append(message)
            if message.role == "assistant":
                # Of a history from elsewhere, the model had what it answered to.
                self.model_has_all()

    def append(self, message: v.Message) -> None:
        """Add one message at the end."""
        self._messages.append(message)
        if message.tool_calls:
            self._ids.update([call.id for call in message.tool_calls])

    def model_has_all(self) -> None:
        """The newest message is the model's own: it has everything up to here."""
        self._delta_start = len(self._messages)

    def replace(self, messages: Iterable[v.Message]) -> None:
        """Start over with ``messages``; views handed out keep what they show."""
        fresh = History(messages)
        self._messages = fresh._messages
        self._ids = fresh._ids
        self._delta_start = fresh._delta_start
        self._appended_from = len(fresh)
        self._snapshot = ()

    def shorten(self, messages: Iterable[v.Message]) -> None:
        """Start over with ``messages``, which are what is left of these, with what was reserved.

        The model side lacks what it lacked before.
        """
        ids, lacking = self._ids, len(self) - self._delta_start
        self.replace(messages)
        self._ids |= ids
        self._delta_start = max(0, min(self._delta_start, len(self) - lacking))

    def reserve(self, ids: Iterable[str]) -> None:
        """Count ``ids`` as used, until the next replacement."""
        self._ids.update(ids)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def ids(self) -> AbstractSet[str]:
        """The ids of all calls, and those reserved; read-only."""
        return self._ids

    @property
    def last(self) -> v.Message | None:
        """The newest message."""
        return self._messages[-1] if self._messages else None

    @property
    def delta_start(self) -> int:
        """Index of the first message that the model side does not have."""
        return self._delta_start

    @property
    def appended_from(self) -> int:
        """Index of the first message that came after the newest replacement or shortening.

        What a model counted as its input when it made an older message is no measure of
        what the history is now.
        """
        return self._appended_from

    def view(self, start: int = 0) -> HistoryView:
        """The messages from ``start`` to the present end, in constant time."""
        return HistoryView(self._messages, start, len(self._messages))

    def is_still(self, view: HistoryView) -> bool:
        """Whether nothing has come or gone since ``view`` was made; in constant time."""
        return view.is_all_of(self._messages)

    def grew_from(self, view: HistoryView) -> bool:
        """Whether what ``view`` shows is here still, at its place; in constant time."""
        return view.is_of(self._messages)

    def snapshot(self) -> tuple[v.Message, ...]:
        """All messages as a tuple; made once per change, and only when asked for."""
        if len(self._snapshot) != len(self._messages):
            self._snapshot = tuple(self._messages)
        return self._snapshot

    def templates(self) -> tuple[v.Message, ...]:
        """The template messages, which stand in front."""
        count = 0
        while count < len(self._messages) and self._messages[count].template:
            count += 1
        return tuple(self._messages[:count])
