"""Tools for testing programs that use `trio_runner`, and trio programs in general.

* `ScriptedModel` plays a model and checks what it is asked.
* `check_history` is the strict validator of conversations.
* `sweep` runs any trio operation with a fault before every task step: a
  cancel, a deadline, a crashing sibling, Ctrl-C, or two of them.
* `sweep_lines` runs it with Ctrl-C before every line of chosen code.
* `kill_sweep` kills a real process that runs turns on your journal, at every
  call of it and at any moment.

Example::

    def make_case() -> Case:
        box = Box()
        return Case(run=box.fill, check=lambda outcome: box.problems())

    sweep(make_case).raise_if_failed()
"""

from trio_runner._core.validity import check_history as check_history
from trio_runner.testing._agent_turn import AgentTurn as AgentTurn
from trio_runner.testing._agent_turn import check_agent as check_agent
from trio_runner.testing._agent_turn import script_for as script_for
from trio_runner.testing._check_journal import JOURNAL_RULES as JOURNAL_RULES
from trio_runner.testing._check_journal import check_journal as check_journal
from trio_runner.testing._check_model import MODEL_RULES as MODEL_RULES
from trio_runner.testing._check_model import check_model as check_model
from trio_runner.testing._check_toolset import TOOLSET_RULES as TOOLSET_RULES
from trio_runner.testing._check_toolset import check_toolset as check_toolset
from trio_runner.testing._conformance import ConformanceFailed as ConformanceFailed
from trio_runner.testing._conformance import ConformanceReport as ConformanceReport
from trio_runner.testing._conformance import ConformanceRule as ConformanceRule
from trio_runner.testing._conformance import Finding as Finding
from trio_runner.testing._conformance import RuleReport as RuleReport
from trio_runner.testing._contract_report import ContractBroken as ContractBroken
from trio_runner.testing._contract_report import ContractReport as ContractReport
from trio_runner.testing._contract_report import PartReport as PartReport
from trio_runner.testing._contract_report import PromiseReport as PromiseReport
from trio_runner.testing._faults import Fault as Fault
from trio_runner.testing._faults import Injection as Injection
from trio_runner.testing._faults import Landing as Landing
from trio_runner.testing._faults import PlannedError as PlannedError
from trio_runner.testing._faults import SiblingCrash as SiblingCrash
from trio_runner.testing._faults import SweepError as SweepError
from trio_runner.testing._kill import kill_sweep as kill_sweep
from trio_runner.testing._kill import replay_kill as replay_kill
from trio_runner.testing._kill_helper import KillSweepError as KillSweepError
from trio_runner.testing._kill_report import KillFailure as KillFailure
from trio_runner.testing._kill_report import KillPoint as KillPoint
from trio_runner.testing._kill_report import KillReport as KillReport
from trio_runner.testing._kill_report import KillSweepFailed as KillSweepFailed
from trio_runner.testing._kill_report import KillViolation as KillViolation
from trio_runner.testing._kill_site import KillSite as KillSite
from trio_runner.testing._lines import replay_line as replay_line
from trio_runner.testing._lines import sweep_lines as sweep_lines
from trio_runner.testing._outcome import Case as Case
from trio_runner.testing._outcome import Outcome as Outcome
from trio_runner.testing._report import Failure as Failure
from trio_runner.testing._report import SweepFailed as SweepFailed
from trio_runner.testing._report import SweepReport as SweepReport
from trio_runner.testing._scripted import RequestViolation as RequestViolation
from trio_runner.testing._scripted import Scripted as Scripted
from trio_runner.testing._scripted import ScriptedModel as ScriptedModel
from trio_runner.testing._scripted import ScriptExhausted as ScriptExhausted
from trio_runner.testing._scripted import ScriptItem as ScriptItem
from trio_runner.testing._scripted import call as call
from trio_runner.testing._seams import Seam as Seam
from trio_runner.testing._sweep import replay as replay
from trio_runner.testing._sweep import sweep as sweep
from trio_runner.testing._turn_cases import Drive as Drive
from trio_runner.testing._turn_cases import ReadableJournal as ReadableJournal
from trio_runner.testing._turn_cases import TurnCases as TurnCases
from trio_runner.testing._witness import Witness as Witness
