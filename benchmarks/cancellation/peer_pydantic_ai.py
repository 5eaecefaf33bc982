"""pydantic-ai: the messages that `capture_run_messages` collects, and a further run on them.

What may live here: the reference turn as a user of pydantic-ai writes it, with
the library's own `FunctionModel`.
"""

# The peer is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import _peer
from _histories import Ledger, Said, Seen
from _reference import ANSWER, BATCHES, NEXT_ANSWER, NEXT_PROMPT, PROMPT, pause, perform
from pydantic_ai import (
    Agent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    capture_run_messages,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelRequest,
    RetryPromptPart,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel


class PydanticTurn:
    """One turn of an agent, and the messages that it left.

    Args:
      recover: how the captured messages are prepared for the next run.
    """

    def __init__(self, recover: Callable[[list[ModelMessage]], list[ModelMessage]] = list) -> None:
        self.ledger = Ledger()
        self._recover = recover
        self._messages: list[ModelMessage] = []
        self._requests: list[list[Said]] = []
        self._next = False
        self._agent: Agent[None, str]

    async def prepare(self) -> None:
        """Make the agent."""

        async def tidy(call: str, steps: int) -> str:
            """Take some steps."""
            return await perform(self.ledger, call, steps)

        async def quick(call: str, steps: int) -> str:
            """Take some steps."""
            return await perform(self.ledger, call, steps)

        async def plain(call: str, steps: int) -> str:
            """Take some steps."""
            return await perform(self.ledger, call, steps)

        self._agent = Agent(FunctionModel(self._reply), tools=[tidy, quick, plain])

    async def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._requests.append(list(said(messages)))
        replies = sum(isinstance(message, ModelResponse) for message in messages)
        await pause(2)
        if self._next:
            return ModelResponse(parts=[TextPart(NEXT_ANSWER)])
        if replies == len(BATCHES):
            return ModelResponse(parts=[TextPart(ANSWER)])
        return ModelResponse(
            parts=[
                ToolCallPart(call.tool, call.arguments, tool_call_id=call.id)
                for call in BATCHES[replies]
            ]
        )

    async def turn(self) -> object:
        """Run the agent."""
        with capture_run_messages() as self._messages:
            result = await self._agent.run(PROMPT)
        return result.output

    async def look(self) -> Seen:
        """Read the captured messages, and run the agent on them once more."""
        seen = Seen(list(said(self._messages)))
        self._next = True
        self._requests.clear()
        try:
            await self._agent.run(NEXT_PROMPT, message_history=self._recover(self._messages))
        except UserError as exc:
            seen.refusal = f"UserError: {exc}"
        else:
            seen.next_request = self._requests[0]
        return seen

    async def close(self) -> None:
        """Nothing is open."""


def said(messages: Iterable[ModelMessage]) -> Iterator[Said]:
    """The messages in the common form; the parts of a request are messages of their own."""
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = tuple(part.tool_call_id for part in message.parts if _is_call(part))
            texts = [part.content for part in message.parts if isinstance(part, TextPart)]
            yield Said("assistant", "".join(texts), calls)
        elif isinstance(message, ModelRequest):
            for part in message.parts:
                yield _said_part(part)


def _is_call(part: Any) -> bool:
    return isinstance(part, ToolCallPart)


def _said_part(part: Any) -> Said:
    if isinstance(part, ToolReturnPart):
        return Said("tool", results=((part.tool_call_id, str(part.content)),))
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        return Said("tool", results=((part.tool_call_id, str(part.content)),))
    if isinstance(part, UserPromptPart):
        return Said("user", str(part.content))
    if isinstance(part, SystemPromptPart):
        return Said("system", part.content)
    raise TypeError(f"a request holds a {type(part).__name__}; say in said() what it is")


def main() -> None:
    """Print what was measured, as JSON."""
    report = _peer.Report("pydantic-ai", "pydantic-ai-slim")
    report.sweep(PydanticTurn)
    report.recovery(
        lambda: PydanticTurn(repair_messages), "the history passed through `repair_messages()`"
    )
    report.pairs(PydanticTurn, stored=False)
    report.note("history", "the list of `capture_run_messages()`")
    report.note(
        "history malformed",
        "open calls stay in the captured messages by design, marked as interrupted; the next run "
        "closes those that it finds marked",
    )
    report.print()


if __name__ == "__main__":
    main()
