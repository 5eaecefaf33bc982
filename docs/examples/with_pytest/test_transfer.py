"""Cancel an operation at every step it takes, in a test. Run it with pytest."""

import pytest
import trio

from trio_runner.testing import Outcome
from trio_runner.testing.pytest_plugin import Position


class Account:
    """Moves money from one side to the other; a cancel must not lose any."""

    def __init__(self) -> None:
        self.left, self.right = 10, 0

    async def transfer(self, amount: int) -> None:
        await trio.lowlevel.checkpoint()  # a cancel here is harmless
        self.left -= amount
        self.right += amount
        await trio.lowlevel.checkpoint()


@pytest.mark.cancel_sweep
async def test_a_transfer_loses_nothing(position: Position) -> None:
    account = Account()

    @position.check
    def nothing_is_lost(_: Outcome) -> None:
        assert account.left + account.right == 10

    await account.transfer(3)
    assert account.right == 3
