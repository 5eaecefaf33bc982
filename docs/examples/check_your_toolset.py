"""Check your own toolset: a cancel in the middle of a call leaves this one broken."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import trio

import trio_runner as tr
from trio_runner.testing import check_toolset

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


class Calculator:
    """Speaks to a slow calculator, one call at a time."""

    name = "calculator"

    def __init__(self) -> None:
        self.free = trio.Semaphore(1)
        self.tools = (tr.Tool("add", "Add two numbers.", NUMBERS, self.add),)

    async def add(self, arguments: dict[str, Any], context: tr.ToolContext) -> object:
        await self.free.acquire()
        await trio.sleep(1)
        self.free.release()  # wrong: not in a finally, so a cancelled call blocks all others
        return arguments["a"] + arguments["b"]

    async def list_tools(self) -> Sequence[tr.Tool]:
        return self.tools

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.tools = ()


if __name__ == "__main__":
    report = check_toolset(Calculator, calls=[("add", {"a": 1, "b": 2})], seeds=[0])
    print(report.render())
