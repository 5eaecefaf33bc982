"""`History` only grows, and what was handed out of it never changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import trio_runner._core.values as v
from trio_runner._core.history import History

MESSAGES = tuple([v.Message.user(f"message {number}") for number in range(5)])
ANSWER = v.Message.assistant("answer")
TEMPLATES = tuple([v.Message.user(f"style {number}", template=True) for number in range(2)])


def asks(*ids: str) -> v.Message:
    return v.Message.assistant(tool_calls=[v.ToolCall(call_id, "tool") for call_id in ids])


def test_a_view_keeps_what_it_showed_while_the_history_grows() -> None:
    history = History(MESSAGES[:2])
    view = history.view()
    history.append(MESSAGES[2])
    assert (len(view), tuple(view), view[-1]) == (2, MESSAGES[:2], MESSAGES[1])
    assert tuple(history.view()) == MESSAGES[:3]


@pytest.mark.parametrize("new", [(), MESSAGES[3:], MESSAGES])
def test_a_view_keeps_what_it_showed_when_the_history_is_replaced(new: Sequence[v.Message]) -> None:
    history = History(MESSAGES[:2])
    view, snapshot = history.view(), history.snapshot()
    history.replace(new)
    history.append(ANSWER)
    assert tuple(view) == snapshot == MESSAGES[:2]
    assert history.snapshot() == (*new, ANSWER)


def test_a_history_can_be_replaced_by_its_own_view() -> None:
    history = History(MESSAGES)
    history.replace(history.view(3))
    assert history.snapshot() == MESSAGES[3:]


def test_a_view_shares_the_messages_instead_of_copying_them() -> None:
    history = History(MESSAGES)
    assert history.view()._messages is history.view(3)._messages is history._messages


def test_a_view_reads_as_the_tuple_that_it_shows() -> None:
    shown = MESSAGES[1:4]
    history = History(MESSAGES[:4])
    view = history.view(1)
    history.append(MESSAGES[4])
    assert len(view) == len(shown)
    assert list(view) == list(shown)
    for index in range(-3, 3):
        assert view[index] is shown[index]
    for part in (slice(None), slice(1), slice(-2, None), slice(None, None, -1), slice(1, 99, 2)):
        assert view[part] == shown[part]
    for index in (3, -4):
        with pytest.raises(IndexError):
            view[index]
    assert list(reversed(view)) == list(reversed(shown))
    assert MESSAGES[2] in view
    assert MESSAGES[4] not in view
    assert view.index(MESSAGES[2]) == 1


def test_views_are_equal_to_any_sequence_of_the_same_messages_and_to_nothing_else() -> None:
    view = History(MESSAGES).view(3)
    assert view == MESSAGES[3:]
    assert MESSAGES[3:] == view
    assert view == list(MESSAGES[3:])
    assert view == History(MESSAGES[3:]).view()
    assert view != MESSAGES[2:]
    assert view != MESSAGES[3:4]
    assert view != (MESSAGES[4], MESSAGES[3])
    assert view != 3


def test_a_view_has_no_hash_and_shows_its_length() -> None:
    view = History(MESSAGES).view(2)
    with pytest.raises(TypeError):
        hash(view)
    assert repr(view) == "<HistoryView of 3 messages>"


def test_a_snapshot_is_made_once_per_change() -> None:
    history = History(MESSAGES[:1])
    first = history.snapshot()
    assert history.snapshot() is first
    history.append(MESSAGES[1])
    assert history.snapshot() == MESSAGES[:2]
    assert first == MESSAGES[:1]


def test_a_snapshot_is_new_after_a_replacement_of_the_same_length() -> None:
    history = History(MESSAGES[:2])
    history.snapshot()
    history.replace(MESSAGES[2:4])
    assert history.snapshot() == MESSAGES[2:4]
    history.replace([])
    assert history.snapshot() == ()


def test_the_delta_starts_behind_the_last_reply() -> None:
    history = History()
    assert history.delta_start == 0
    history.append(MESSAGES[0])
    history.append(ANSWER)  # an example that the caller gives
    assert history.delta_start == 0
    history.append(ANSWER)
    history.model_has_all()
    history.append(MESSAGES[1])
    assert history.delta_start == 3
    history.replace(MESSAGES)
    assert history.delta_start == 0
    history.replace([*MESSAGES, ANSWER])
    assert history.delta_start == 6


def test_ids_are_those_of_all_calls() -> None:
    history = History([asks("a", "b")])
    history.append(asks("c"))
    assert set(history.ids) == {"a", "b", "c"}


def test_reserved_ids_count_until_the_next_replacement() -> None:
    history = History([asks("a")])
    history.replace([asks("b")])
    history.reserve(["a"])
    assert set(history.ids) == {"a", "b"}
    assert history.snapshot() == (asks("b"),)
    history.replace([])
    assert set(history.ids) == set()


def test_last_is_the_newest_message_or_none() -> None:
    history = History()
    assert (history.last, len(history)) == (None, 0)
    history.append(ANSWER)
    assert (history.last, len(history)) == (ANSWER, 1)


def test_templates_are_those_in_front() -> None:
    assert History().templates() == ()
    assert History(TEMPLATES).templates() == TEMPLATES
    assert History([*TEMPLATES, MESSAGES[0], TEMPLATES[0]]).templates() == TEMPLATES
    assert History([MESSAGES[0], *TEMPLATES]).templates() == ()
