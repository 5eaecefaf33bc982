"""Hypothesis strategies for conversations and for all that takes part in them.

* Histories: `histories`, `damaged_histories`, and what they are made of.
* What a model returns: `replies`, `raw_tool_calls`, `argument_texts`, `batches`.
* What happens in a session: `turn_plans`, `session_steps`.
* Behaviours, as values that print readably, each kind with a function that makes
  the real thing: `tool_behaviours` and `make_tool`, `hook_plans` and
  `make_hooks`, `journal_behaviours` and `make_journal`.

For your own property tests and ours. Only this package and
``trio_runner.testing.session_machine`` import Hypothesis, so
``trio_runner.testing`` works without it. What may live in this file: names.
"""

from trio_runner.testing.strategies._damage import DAMAGE_KINDS as DAMAGE_KINDS
from trio_runner.testing.strategies._damage import damaged_histories as damaged_histories
from trio_runner.testing.strategies._damage import histories as histories
from trio_runner.testing.strategies._hooks import HOOK_POINTS as HOOK_POINTS
from trio_runner.testing.strategies._hooks import AppendsNote as AppendsNote
from trio_runner.testing.strategies._hooks import ChangesParams as ChangesParams
from trio_runner.testing.strategies._hooks import CutsHistory as CutsHistory
from trio_runner.testing.strategies._hooks import DeniesCall as DeniesCall
from trio_runner.testing.strategies._hooks import HookBehaviour as HookBehaviour
from trio_runner.testing.strategies._hooks import HookPoint as HookPoint
from trio_runner.testing.strategies._hooks import LooksOn as LooksOn
from trio_runner.testing.strategies._hooks import RaisesInHook as RaisesInHook
from trio_runner.testing.strategies._hooks import ReplacesHistory as ReplacesHistory
from trio_runner.testing.strategies._hooks import hook_behaviours as hook_behaviours
from trio_runner.testing.strategies._hooks import hook_plans as hook_plans
from trio_runner.testing.strategies._hooks import make_hooks as make_hooks
from trio_runner.testing.strategies._journals import JournalBehaviour as JournalBehaviour
from trio_runner.testing.strategies._journals import journal_behaviours as journal_behaviours
from trio_runner.testing.strategies._journals import make_journal as make_journal
from trio_runner.testing.strategies._replies import argument_texts as argument_texts
from trio_runner.testing.strategies._replies import batches as batches
from trio_runner.testing.strategies._replies import raw_tool_calls as raw_tool_calls
from trio_runner.testing.strategies._replies import replies as replies
from trio_runner.testing.strategies._tools import ODD_VALUES as ODD_VALUES
from trio_runner.testing.strategies._tools import Blocks as Blocks
from trio_runner.testing.strategies._tools import CancelsItself as CancelsItself
from trio_runner.testing.strategies._tools import CatchesAll as CatchesAll
from trio_runner.testing.strategies._tools import CleansUp as CleansUp
from trio_runner.testing.strategies._tools import OddValue as OddValue
from trio_runner.testing.strategies._tools import Raises as Raises
from trio_runner.testing.strategies._tools import RaisesCancelled as RaisesCancelled
from trio_runner.testing.strategies._tools import RaisesGroup as RaisesGroup
from trio_runner.testing.strategies._tools import Returns as Returns
from trio_runner.testing.strategies._tools import ReturnsOdd as ReturnsOdd
from trio_runner.testing.strategies._tools import Spawns as Spawns
from trio_runner.testing.strategies._tools import ToolBehaviour as ToolBehaviour
from trio_runner.testing.strategies._tools import UnprintableError as UnprintableError
from trio_runner.testing.strategies._tools import make_function as make_function
from trio_runner.testing.strategies._tools import make_odd_value as make_odd_value
from trio_runner.testing.strategies._tools import make_tool as make_tool
from trio_runner.testing.strategies._tools import tool_behaviours as tool_behaviours
from trio_runner.testing.strategies._turns import TOOL_NAMES as TOOL_NAMES
from trio_runner.testing.strategies._turns import Asks as Asks
from trio_runner.testing.strategies._turns import CallPlan as CallPlan
from trio_runner.testing.strategies._turns import ClearPlan as ClearPlan
from trio_runner.testing.strategies._turns import CompactPlan as CompactPlan
from trio_runner.testing.strategies._turns import CutPlan as CutPlan
from trio_runner.testing.strategies._turns import DriveWay as DriveWay
from trio_runner.testing.strategies._turns import FailsToReply as FailsToReply
from trio_runner.testing.strategies._turns import LoadPlan as LoadPlan
from trio_runner.testing.strategies._turns import ReplyPlan as ReplyPlan
from trio_runner.testing.strategies._turns import ResumePlan as ResumePlan
from trio_runner.testing.strategies._turns import Says as Says
from trio_runner.testing.strategies._turns import SaysAnything as SaysAnything
from trio_runner.testing.strategies._turns import SessionStep as SessionStep
from trio_runner.testing.strategies._turns import ToolName as ToolName
from trio_runner.testing.strategies._turns import TrimPlan as TrimPlan
from trio_runner.testing.strategies._turns import TurnPlan as TurnPlan
from trio_runner.testing.strategies._turns import session_steps as session_steps
from trio_runner.testing.strategies._turns import turn_plans as turn_plans
from trio_runner.testing.strategies._values import contents as contents
from trio_runner.testing.strategies._values import json_objects as json_objects
from trio_runner.testing.strategies._values import json_values as json_values
from trio_runner.testing.strategies._values import safe_texts as safe_texts
from trio_runner.testing.strategies._values import tool_calls as tool_calls
from trio_runner.testing.strategies._values import tool_results as tool_results
from trio_runner.testing.strategies._values import visible_texts as visible_texts
