"""Your own tool in a turn, with every fault at every step, and a promise of your own."""

from collections.abc import Iterator

import trio

import trio_runner as tr
from trio_runner.testing import call, check_agent
from trio_runner.testing.contract import CONTRACT, Evidence


class Account:
    """Moves money from one side to the other; a cancel must not lose any."""

    def __init__(self) -> None:
        self.left, self.right = 10, 0

    async def transfer(self, amount: int) -> str:
        """Move an amount from left to right."""
        await trio.lowlevel.checkpoint()  # a cancel here is harmless
        self.left -= amount
        self.right += amount  # no checkpoint between the two
        await trio.lowlevel.checkpoint()
        return f"moved {amount}"


accounts = [Account()]


def make_agent(model: tr.Model) -> tr.ToolAgent:
    accounts[0] = Account()  # everything anew: each position has an agent of its own
    return tr.ToolAgent("bank", model=model, tools=[accounts[0].transfer])


def money_is_kept(_: Evidence) -> Iterator[str]:
    if accounts[0].left + accounts[0].right != 10:
        yield f"{10 - accounts[0].left - accounts[0].right} went missing"


if __name__ == "__main__":
    script = [[call("transfer", amount=3), call("transfer", amount=4)], "Done."]
    checks = {**CONTRACT, "money": money_is_kept}
    report = check_agent(make_agent, script, checks=checks, seeds=[0])
    report.raise_if_failed()
    print(report.render())
