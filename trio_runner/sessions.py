"""Whole sessions, as public names: what a list and a check show, and a session as Markdown."""

from trio_runner._core.public import show_as_public
from trio_runner._journal.markdown import to_markdown as to_markdown
from trio_runner._journal.sessions import JournalReport as JournalReport
from trio_runner._journal.sessions import SessionCheck as SessionCheck
from trio_runner._journal.sessions import SessionSummary as SessionSummary
from trio_runner._journal.sessions import summarise as summarise

show_as_public(__name__, globals())
del show_as_public
