"""The cancellation suite on turns in which calls wait for somebody's word.

Inline: approvers are waiting, several at once, while other calls run. Suspended: the turn
ends with its calls open, and a later process goes on with the decisions.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

import trio_runner as tr
from trio_runner.testing import call, check_agent
from trio_runner.testing._turn_cases import DRIVES, Drive

FIRST = [call("pay", id="c1", n=1), call("look", id="c2", n=2), call("pay", id="c3", n=3)]
SECOND = [call("pay", id="c4", n=4), call("look", id="c5", n=5)]
SCRIPT = [FIRST, SECOND, "the answer", "never asked for"]


async def pay(n: int) -> str:
    await trio.lowlevel.checkpoint()
    return f"paid {n}"


async def look(n: int) -> str:
    for _ in range(2):
        await trio.lowlevel.checkpoint()
    return f"looked {n}"


async def approver(request: tr.ApprovalRequest) -> tr.Decision:
    """Takes a while; edits, allows and denies."""
    await trio.sleep(1)
    await trio.lowlevel.checkpoint()
    match request.arguments["n"]:
        case 1:
            return tr.Approve({"n": 10})
        case 3:
            return tr.Deny("not this one.")
        case _:
            return tr.Approve()


def make_agent(**settings: Any) -> tr.ToolAgent:
    return tr.ToolAgent(
        "approved",
        tools=[tr.tool(pay, needs_approval=True), tr.tool(look)],
        approver=approver,
        **settings,
    )


def agent_that_asks(model: tr.Model, journal: tr.Journal, session: str) -> tr.ToolAgent:
    return make_agent(model=model, journal=journal, session=session)


@pytest.mark.slow
@pytest.mark.parametrize("drive", DRIVES)
def test_every_fault_while_approvers_wait_keeps_the_contract(
    drive: Drive, full_sweeps: bool
) -> None:
    report = check_agent(
        agent_that_asks,
        SCRIPT,
        drives=[drive],
        delays=(0.0, 0.5) if full_sweeps else (0.0,),
        seeds=range(4 if full_sweeps else 1),
        sample=1.0 if full_sweeps else 0.25,
    )
    print(drive, report.positions, "positions")
    report.raise_if_failed()
    assert report.positions > 100
