"""openai-agents: the items of a session, and a further run on that session.

What may live here: the reference turn as a user of openai-agents writes it, with
a model of its own (the library's documented extension point) and `SQLiteSession`.
"""

# The peer is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import _peer
from _histories import Ledger, Said, Seen
from _reference import ANSWER, BATCHES, NEXT_ANSWER, NEXT_PROMPT, PROMPT, pause, perform
from agents import (
    Agent,
    Model,
    ModelResponse,
    Runner,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class _Model(Model):
    """Plays the script, and notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[list[Said]] = []
        self.next = False

    async def get_response(
        self, system_instructions: str | None, input: str | list[Any], *args: Any, **kwargs: Any
    ) -> ModelResponse:
        """Answer by what was answered before."""
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        messages = list(said(items))
        self.requests.append(messages)
        replies = sum(message.role == "assistant" for message in messages)
        await pause(2)
        if self.next:
            return _answer(NEXT_ANSWER)
        if replies == len(BATCHES):
            return _answer(ANSWER)
        return ModelResponse(
            output=[
                ResponseFunctionToolCall(
                    type="function_call",
                    id=f"item-{call.id}",
                    call_id=call.id,
                    name=call.tool,
                    arguments=json.dumps(call.arguments),
                )
                for call in BATCHES[replies]
            ],
            usage=Usage(),
            response_id=None,
        )

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Not used."""
        raise NotImplementedError


def _answer(text: str) -> ModelResponse:
    part = ResponseOutputText(type="output_text", text=text, annotations=[])
    message = ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[part]
    )
    return ModelResponse(output=[message], usage=Usage(), response_id=None)


class OpenAITurn:
    """One run of an agent with a session."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._model = _Model()
        self._session = SQLiteSession("reference")
        self._agent: Agent[Any]

    async def prepare(self) -> None:
        """Make the agent."""

        @function_tool
        async def tidy(call: str, steps: int) -> str:
            """Take some steps."""
            return await perform(self.ledger, call, steps)

        @function_tool
        async def quick(call: str, steps: int) -> str:
            """Take some steps."""
            return await perform(self.ledger, call, steps)

        @function_tool
        async def plain(call: str, steps: int) -> str:
            """Take some steps."""
            return await perform(self.ledger, call, steps)

        self._agent = Agent(name="reference", model=self._model, tools=[tidy, quick, plain])

    async def turn(self) -> object:
        """Run the agent."""
        result = await Runner.run(self._agent, PROMPT, session=self._session)
        return result.final_output

    async def look(self) -> Seen:
        """Read the session, and run the agent on it once more."""
        seen = Seen(list(said(await self._session.get_items())))
        self._model.next = True
        self._model.requests.clear()
        try:
            await Runner.run(self._agent, NEXT_PROMPT, session=self._session)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is the finding
            seen.refusal = f"{type(exc).__name__}: {exc}"
        else:
            seen.next_request = self._model.requests[0]
        return seen

    async def close(self) -> None:
        """Close the session's database."""
        self._session.close()


def said(items: Iterable[Any]) -> Iterator[Said]:
    """The items in the common form; calls that follow each other are one message."""
    calls: list[str] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            calls.append(item["call_id"])
            continue
        if calls:
            yield Said("assistant", calls=tuple(calls))
            calls = []
        if kind == "function_call_output":
            yield Said("tool", results=((item["call_id"], str(item["output"])),))
        elif kind == "message":
            yield Said(item["role"], _text(item["content"]))
        else:
            raise TypeError(f"the session holds a {kind!r}; say in said() what it is")
    if calls:
        yield Said("assistant", calls=tuple(calls))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def main() -> None:
    """Print what was measured, as JSON."""
    set_tracing_disabled(disabled=True)
    report = _peer.Report("openai-agents", "openai-agents")
    report.sweep(OpenAITurn)
    report.pairs(OpenAITurn, stored=False)
    report.note("history", "the items of a `SQLiteSession`")
    report.print()


if __name__ == "__main__":
    main()
