"""That a session was compacted shows where sessions are listed and shown."""

from __future__ import annotations

import pytest

import trio_runner as tr
import trio_runner._cli.sessions_view as sessions_view
import trio_runner.records as r
from trio_runner._journal.sessions import summarise

USER, ANSWER = tr.Message.user("go"), tr.Message.assistant("done")
SUMMARY = tr.Message.user("so far", meta={"is_summary": True})
TURN = [
    record
    for number in (1, 2, 3)
    for record in (
        r.TurnStarted(number, (USER,)),
        r.ModelFinished(number, 0, ANSWER),
        r.TurnEnded(number, tr.EndReason.ANSWERED),
    )
]
PLAIN = (
    r.SessionOpened("a"),
    r.HistoryReplaced((tr.Message.user("rules", template=True),)),
    *TURN,
)
#: Of seven messages four behind the template go; then the summary and an answer, not the question.
COMPACTED = (*PLAIN, r.Compacted(7, 5, SUMMARY), r.Compacted(4, 4, SUMMARY, ((2, 3),)))


def test_a_summary_counts_compactions_and_what_they_replaced() -> None:
    assert (summarise("s", PLAIN).compactions, summarise("s", PLAIN).replaced_messages) == (0, 0)

    summary = summarise("s", COMPACTED)
    assert (summary.compactions, summary.replaced_messages, summary.messages) == (2, 6, 3)
    assert summary.as_json()["compactions"] == 2
    assert summary.as_json()["replaced_messages"] == 6


def test_it_is_shown_with_the_session_and_in_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    sessions_view.show_session(summarise("s", COMPACTED), "page")
    shown = capsys.readouterr().out
    assert "compacted 2 times: summaries took the place of 6 messages" in " ".join(shown.split())

    sessions_view.show_session(summarise("s", PLAIN), "page")
    assert "compacted" not in capsys.readouterr().out

    sessions_view.show_list([summarise("s", COMPACTED)], none="", as_json=False)
    assert capsys.readouterr().out.rstrip("\n").split("\t")[-1] == "2"
