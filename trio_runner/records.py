"""The records of a session, as public names: what a journal keeps."""

from trio_runner._core.public import show_as_public
from trio_runner._core.records import AnswerRefused as AnswerRefused
from trio_runner._core.records import CallApproved as CallApproved
from trio_runner._core.records import CallEdited as CallEdited
from trio_runner._core.records import CallHeld as CallHeld
from trio_runner._core.records import Compacted as Compacted
from trio_runner._core.records import HistoryReplaced as HistoryReplaced
from trio_runner._core.records import InputAdded as InputAdded
from trio_runner._core.records import ModelFinished as ModelFinished
from trio_runner._core.records import PassedThrough as PassedThrough
from trio_runner._core.records import Record as Record
from trio_runner._core.records import SessionOpened as SessionOpened
from trio_runner._core.records import ToolFinished as ToolFinished
from trio_runner._core.records import ToolStarted as ToolStarted
from trio_runner._core.records import Trimmed as Trimmed
from trio_runner._core.records import TurnEnded as TurnEnded
from trio_runner._core.records import TurnStarted as TurnStarted
from trio_runner._core.records import arguments_hash as arguments_hash

show_as_public(__name__, globals())
del show_as_public
