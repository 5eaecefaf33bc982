"""Kill a process that runs your agent, again and again, and see what is left of its session."""

import sys

import trio

import trio_runner as tr
from trio_runner.testing import KillSite, call, kill_sweep


async def workload(site: KillSite) -> None:
    """Two payments and the answer; the same function goes on after a kill."""

    async def pay(amount: int) -> str:
        """Pay an amount."""
        await trio.sleep(0.001)
        site.effect("paid")  # seen outside: a call may pay once, over all lives
        return f"paid {amount}"

    agent = tr.ToolAgent(
        "bank",
        model=site.model([[[call("pay", amount=3), call("pay", amount=4)], "Paid 3 and 4."]]),
        tools=site.tools(pay),
        journal=site.journal,
        session=site.session,
    )
    async with agent:
        await site.drive(agent, "Pay 3, then 4.")


if __name__ == "__main__" and sys.platform != "win32":
    # Your own journal goes in the place of SqliteJournal: a class or function of one path.
    report = kill_sweep(tr.SqliteJournal, workload, at_most=5, samples=5)
    report.raise_if_failed()
    print(report.render())
