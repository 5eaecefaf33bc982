"""The agent tool loop for trio that can be cancelled anywhere.

Cancel it at any instant, kill it at any byte: the conversation is valid, work
that finished is kept, nothing is left running.
"""

# General layout:
#
# _core/     pure: values, history rules, the turn machine, records and their fold
# abc.py     what you implement: models, tools, toolsets, journals, observers
# _shell/    trio: runner, batch, finishing, hooks, agent, function tools
# _journal/  where sessions are kept
# testing/   public: scripted models, fault sweeps, the validity check
# _cli/      the trio-runner command
#
# Imports point one way: _core <- abc <- _shell, _journal <- testing, _cli. This
# file names what is public and holds nothing else. Adapters to MCP and to other
# libraries are a package of their own, trio_runner_adapters.

from trio_runner._core.approval import Approve as Approve
from trio_runner._core.approval import Decision as Decision
from trio_runner._core.approval import Defer as Defer
from trio_runner._core.approval import Deny as Deny
from trio_runner._core.approval import PendingCall as PendingCall
from trio_runner._core.compaction import HistoryCut as HistoryCut
from trio_runner._core.compaction import HistoryCutError as HistoryCutError
from trio_runner._core.compaction_plan import Compaction as Compaction
from trio_runner._core.compaction_plan import CompactionReason as CompactionReason
from trio_runner._core.compaction_plan import CutPolicy as CutPolicy
from trio_runner._core.compaction_plan import CutRequest as CutRequest
from trio_runner._core.compaction_plan import keep_recent as keep_recent
from trio_runner._core.errors import BusyError as BusyError
from trio_runner._core.errors import CommitFailedError as CommitFailedError
from trio_runner._core.errors import CommitUnknownError as CommitUnknownError
from trio_runner._core.errors import CompactionError as CompactionError
from trio_runner._core.errors import DecisionError as DecisionError
from trio_runner._core.errors import FatalToolError as FatalToolError
from trio_runner._core.errors import HistoryError as HistoryError
from trio_runner._core.errors import InternalError as InternalError
from trio_runner._core.errors import InvalidArgumentsError as InvalidArgumentsError
from trio_runner._core.errors import JournalError as JournalError
from trio_runner._core.errors import LimitReachedError as LimitReachedError
from trio_runner._core.errors import ModelError as ModelError
from trio_runner._core.errors import ModelReplyError as ModelReplyError
from trio_runner._core.errors import NotEnteredError as NotEnteredError
from trio_runner._core.errors import NothingToResumeError as NothingToResumeError
from trio_runner._core.errors import SessionLostError as SessionLostError
from trio_runner._core.errors import StrayCancellationError as StrayCancellationError
from trio_runner._core.errors import StructuredOutputError as StructuredOutputError
from trio_runner._core.errors import ToolError as ToolError
from trio_runner._core.errors import TrioRunnerError as TrioRunnerError
from trio_runner._core.errors import TurnEndedError as TurnEndedError
from trio_runner._core.errors import TurnInterruptedError as TurnInterruptedError
from trio_runner._core.errors import TurnSuspendedError as TurnSuspendedError
from trio_runner._core.errors import UnknownPriceError as UnknownPriceError
from trio_runner._core.errors import UsageError as UsageError
from trio_runner._core.fold import RecordError as RecordError
from trio_runner._core.fold import SessionState as SessionState
from trio_runner._core.fold import fold as fold
from trio_runner._core.fold import full_history as full_history
from trio_runner._core.limits import LimitKind as LimitKind
from trio_runner._core.limits import LimitReached as LimitReached
from trio_runner._core.limits import Limits as Limits
from trio_runner._core.limits import Price as Price
from trio_runner._core.limits import Prices as Prices
from trio_runner._core.limits import Remaining as Remaining
from trio_runner._core.limits import Spent as Spent
from trio_runner._core.params import UNSET as UNSET
from trio_runner._core.params import RequestParams as RequestParams
from trio_runner._core.params import ToolsFilter as ToolsFilter
from trio_runner._core.planning import PlannedToolCall as PlannedToolCall
from trio_runner._core.planning import plan_tool_calls as plan_tool_calls
from trio_runner._core.public import show_as_public
from trio_runner._core.reconcile import HistoryRollbackState as HistoryRollbackState
from trio_runner._core.reconcile import HistoryRollbackStatus as HistoryRollbackStatus
from trio_runner._core.reconcile import (
    reconcile_interrupted_history as reconcile_interrupted_history,
)
from trio_runner._core.session_usage import SessionUsage as SessionUsage
from trio_runner._core.structured import OutputFormat as OutputFormat
from trio_runner._core.structured import StructuredPolicy as StructuredPolicy
from trio_runner._core.validity import check_history as check_history
from trio_runner._core.values import AudioContent as AudioContent
from trio_runner._core.values import CallStatus as CallStatus
from trio_runner._core.values import ContentBlock as ContentBlock
from trio_runner._core.values import EmbeddedResource as EmbeddedResource
from trio_runner._core.values import EndReason as EndReason
from trio_runner._core.values import ImageContent as ImageContent
from trio_runner._core.values import JSONObject as JSONObject
from trio_runner._core.values import JSONValue as JSONValue
from trio_runner._core.values import Message as Message
from trio_runner._core.values import ResourceLink as ResourceLink
from trio_runner._core.values import StopReason as StopReason
from trio_runner._core.values import TextContent as TextContent
from trio_runner._core.values import ToolCall as ToolCall
from trio_runner._core.values import ToolResult as ToolResult
from trio_runner._core.values import Usage as Usage
from trio_runner._journal.faults import Holder as Holder
from trio_runner._journal.faults import JournalDamagedError as JournalDamagedError
from trio_runner._journal.faults import JournalFormatError as JournalFormatError
from trio_runner._journal.faults import JournalStorageError as JournalStorageError
from trio_runner._journal.faults import NoSuchSessionError as NoSuchSessionError
from trio_runner._journal.faults import SessionExistsError as SessionExistsError
from trio_runner._journal.faults import SessionIdError as SessionIdError
from trio_runner._journal.faults import SessionInUseError as SessionInUseError
from trio_runner._journal.memory import MemoryJournal as MemoryJournal
from trio_runner._journal.sqlite import SqliteJournal as SqliteJournal
from trio_runner._shell.agent import ToolAgent as ToolAgent
from trio_runner._shell.agent_answers import Structured as Structured
from trio_runner._shell.agent_tools import AgentTool as AgentTool
from trio_runner._shell.agent_tools import AgentToolOptions as AgentToolOptions
from trio_runner._shell.agent_tools import PromptMaker as PromptMaker
from trio_runner._shell.agent_tools import agent_tool as agent_tool
from trio_runner._shell.compacting import CompactionReport as CompactionReport
from trio_runner._shell.context import current_tool_context as current_tool_context
from trio_runner._shell.conversation import Conversation as Conversation
from trio_runner._shell.conversation import LastTurn as LastTurn
from trio_runner._shell.hooks import HookSet as HookSet
from trio_runner._shell.hooks import ToolRunnerHookCapable as ToolRunnerHookCapable
from trio_runner._shell.hooks import ToolRunnerHooks as ToolRunnerHooks
from trio_runner._shell.hooks import merge_hooks as merge_hooks
from trio_runner._shell.ki import run as run
from trio_runner._shell.leaving import TurnTimeoutError as TurnTimeoutError
from trio_runner._shell.limits import LimitScope as LimitScope
from trio_runner._shell.limits import charge_usage as charge_usage
from trio_runner._shell.limits import limits as limits
from trio_runner._shell.loop_agent import Durability as Durability
from trio_runner._shell.loop_agent import LoopConfig as LoopConfig
from trio_runner._shell.loop_agent import Planned as Planned
from trio_runner._shell.loop_agent import ToolLoopAgent as ToolLoopAgent
from trio_runner._shell.runner import ToolRunner as ToolRunner
from trio_runner._shell.summarizer import ModelSummarizer as ModelSummarizer
from trio_runner._shell.tools import ToolOptions as ToolOptions
from trio_runner._shell.tools import tool as tool
from trio_runner._shell.waiting_tools import ApprovalToolset as ApprovalToolset
from trio_runner._shell.waiting_tools import external_tool as external_tool
from trio_runner.abc import ApprovalRequest as ApprovalRequest
from trio_runner.abc import Approver as Approver
from trio_runner.abc import CommitTicket as CommitTicket
from trio_runner.abc import DeltaSink as DeltaSink
from trio_runner.abc import Journal as Journal
from trio_runner.abc import JournalSession as JournalSession
from trio_runner.abc import Model as Model
from trio_runner.abc import ModelRequest as ModelRequest
from trio_runner.abc import NeedsApproval as NeedsApproval
from trio_runner.abc import Observer as Observer
from trio_runner.abc import Summarizer as Summarizer
from trio_runner.abc import SummaryRequest as SummaryRequest
from trio_runner.abc import Tool as Tool
from trio_runner.abc import ToolContext as ToolContext
from trio_runner.abc import Toolset as Toolset
from trio_runner.abc import UnknownCall as UnknownCall
from trio_runner.abc import UnknownPolicy as UnknownPolicy
from trio_runner.abc import UnknownVerdict as UnknownVerdict

__version__ = "0.1.0"

show_as_public(__name__, globals())
del show_as_public
