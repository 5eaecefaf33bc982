"""Cancel your own tool at every step it takes, and see what it leaves behind."""

import trio

import trio_runner as tr
from trio_runner.testing import Case, Outcome, ScriptedModel, call, sweep


class Account:
    """Moves money from one side to the other; a cancel must not lose any."""

    def __init__(self) -> None:
        self.left, self.right = 10, 0

    async def transfer(self, amount: int) -> str:
        """Move an amount from left to right."""
        await trio.lowlevel.checkpoint()  # ask whether we may: a cancel here is harmless
        self.left -= amount
        self.right += amount  # no checkpoint between the two
        await trio.lowlevel.checkpoint()
        return f"moved {amount}"


def make_case() -> Case:
    account = Account()
    model = ScriptedModel([[call("transfer", amount=3), call("transfer", amount=4)], "Done."])
    agent = tr.ToolAgent("bank", model=model, tools=[account.transfer])

    async def run() -> None:
        await agent.generate("Move 3, then 4.")

    def check(_: Outcome) -> list[str]:
        tr.check_history(agent.history)
        total = account.left + account.right
        return [] if total == 10 else [f"{10 - total} went missing"]

    return Case(run=run, check=check)


if __name__ == "__main__":
    report = sweep(make_case, seeds=range(2))
    report.raise_if_failed()
    print(f"{report.positions} positions, no violation")
