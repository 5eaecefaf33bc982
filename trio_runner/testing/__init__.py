"""Tools for testing programs that use `trio_runner`, and trio programs in general.

* `ScriptedModel` plays a model and checks what it is asked.
* `check_history` is the strict validator of conversations.
* `sweep` runs any trio operation with a fault before every task step: a
  cancel, a deadline, a crashing sibling, Ctrl-C, or two of them.
* `sweep_lines` runs it with Ctrl-C before every line of chosen code.

Example::

    def make_case() -> Case:
        box = Box()
        return Case(run=box.fill, check=lambda outcome: box.problems())

    sweep(make_case).raise_if_failed()
"""

from trio_runner._core.validity import check_history as check_history
from trio_runner.testing._faults import Fault as Fault
from trio_runner.testing._faults import Injection as Injection
from trio_runner.testing._faults import Landing as Landing
from trio_runner.testing._faults import SiblingCrash as SiblingCrash
from trio_runner.testing._faults import SweepError as SweepError
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
from trio_runner.testing._sweep import replay as replay
from trio_runner.testing._sweep import sweep as sweep
