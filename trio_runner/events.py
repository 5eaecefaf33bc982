"""The events that observers are told, as public names."""

from trio_runner._core.events import AnswerRefused as AnswerRefused
from trio_runner._core.events import ApprovalDecided as ApprovalDecided
from trio_runner._core.events import ApprovalFailed as ApprovalFailed
from trio_runner._core.events import ApprovalRequested as ApprovalRequested
from trio_runner._core.events import BatchPlanned as BatchPlanned
from trio_runner._core.events import CallEmitted as CallEmitted
from trio_runner._core.events import CallFinished as CallFinished
from trio_runner._core.events import CallProgress as CallProgress
from trio_runner._core.events import CallStarted as CallStarted
from trio_runner._core.events import CommitFailed as CommitFailed
from trio_runner._core.events import Committed as Committed
from trio_runner._core.events import Compacted as Compacted
from trio_runner._core.events import CompactionFailed as CompactionFailed
from trio_runner._core.events import CompactionStarted as CompactionStarted
from trio_runner._core.events import ErrorSuppressed as ErrorSuppressed
from trio_runner._core.events import Event as Event
from trio_runner._core.events import LimitHit as LimitHit
from trio_runner._core.events import ModelCallFinished as ModelCallFinished
from trio_runner._core.events import ModelCallStarted as ModelCallStarted
from trio_runner._core.events import NestedEvent as NestedEvent
from trio_runner._core.events import PassedThrough as PassedThrough
from trio_runner._core.events import TextDelta as TextDelta
from trio_runner._core.events import TurnEnded as TurnEnded
from trio_runner._core.events import TurnInterrupted as TurnInterrupted
from trio_runner._core.events import TurnStarted as TurnStarted
from trio_runner._core.events import TurnSuspended as TurnSuspended
from trio_runner._core.public import show_as_public

show_as_public(__name__, globals())
del show_as_public
