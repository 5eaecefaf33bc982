"""langgraph: the messages in an agent's checkpointed state, and a further turn on that thread.

What may live here: the reference turn as a user of langgraph writes it, with
the prebuilt agent, a fake chat model and the library's checkpointers.
"""

# The peer is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _growth
import _peer
from _histories import Ledger, Said, Seen
from _reference import ANSWER, BATCHES, NEXT_ANSWER, NEXT_PROMPT, PROMPT, Call, pause, perform
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

CONFIG: Any = {"configurable": {"thread_id": "reference"}, "recursion_limit": 1000}


class _Model(BaseChatModel):
    """Plays the script, and notes what it is asked."""

    requests: list[Any] = []  # noqa: RUF012  # a pydantic field: copied for each model
    next: bool = False
    script: Any = BATCHES

    @property
    def _llm_type(self) -> str:
        return "reference"

    def bind_tools(self, tools: Any, **kwargs: Any) -> BaseChatModel:
        """The script knows the tools."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.requests.append(list(said(messages)))
        replies = sum(isinstance(message, AIMessage) for message in messages)
        await pause(2)
        if self.next:
            message = AIMessage(NEXT_ANSWER)
        elif replies == len(self.script):
            message = AIMessage(ANSWER)
        else:
            message = _asking(self.script[replies])
        return ChatResult(generations=[ChatGeneration(message=message)])


def _asking(calls: Sequence[Call]) -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[
            {"id": call.id, "name": call.tool, "args": call.arguments, "type": "tool_call"}
            for call in calls
        ],
    )


class _ThreadedSaver(InMemorySaver):
    """Takes the time of a thread for each write, as a saver with a database does."""

    async def aput(self, *args: Any) -> Any:
        """Write a checkpoint."""
        return await asyncio.to_thread(self.put, *args)

    async def aput_writes(self, *args: Any) -> None:
        """Write what one task of a step produced."""
        await asyncio.to_thread(self.put_writes, *args)


class LangGraphTurn:
    """One turn of the prebuilt agent with a checkpointer.

    Args:
      resume: whether the thread is first resumed, with None as its input.
    """

    def __init__(self, *, resume: bool = False) -> None:
        self.ledger = Ledger()
        self._model = _Model(requests=[])
        self._saver = self._make_saver()
        self._resume = resume
        self._agent: Any

    def _make_saver(self) -> InMemorySaver:
        return InMemorySaver()

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

        self._agent = create_agent(
            self._model, tools=[tidy, quick, plain], checkpointer=self._saver
        )

    async def turn(self) -> object:
        """Run the agent."""
        state = await self._agent.ainvoke({"messages": [HumanMessage(PROMPT)]}, CONFIG)
        return state["messages"][-1].text

    async def _stored(self) -> list[Said]:
        state = await self._agent.aget_state(CONFIG)
        return list(said(state.values.get("messages", [])))

    async def look(self) -> Seen:
        """Read the thread's state, and go on with the thread."""
        seen = Seen(await self._stored())
        if self._resume and seen.history:
            await self._agent.ainvoke(None, CONFIG)
        self._model.next = True
        self._model.requests.clear()
        try:
            await self._agent.ainvoke({"messages": [HumanMessage(NEXT_PROMPT)]}, CONFIG)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is the finding
            seen.refusal = f"{type(exc).__name__}: {exc}"
        else:
            seen.next_request = self._model.requests[0]
        return seen

    async def close(self) -> None:
        """Nothing is open."""


class StreamedTurn(LangGraphTurn):
    """The turn as a user sees it who streams the state; the store takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self._streamed: list[Any] = []

    def _make_saver(self) -> InMemorySaver:
        return _ThreadedSaver()

    async def turn(self) -> object:
        """Run the agent, keeping the last state that was streamed."""
        inputs = {"messages": [HumanMessage(PROMPT)]}
        async for state in self._agent.astream(inputs, CONFIG, stream_mode="values"):
            self._streamed = state["messages"]
        return self._streamed[-1].text

    async def look(self) -> Seen:
        """What was streamed, beside what is stored."""
        return Seen(list(said(self._streamed)), disk=await self._stored())


def said(messages: Iterable[BaseMessage]) -> Iterator[Said]:
    """The messages in the common form."""
    for message in messages:
        if isinstance(message, AIMessage):
            calls = tuple(str(call["id"]) for call in message.tool_calls)
            yield Said("assistant", message.text, calls)
        elif isinstance(message, ToolMessage):
            yield Said("tool", results=((message.tool_call_id, message.text),))
        elif isinstance(message, HumanMessage):
            yield Said("user", message.text)
        elif isinstance(message, SystemMessage):
            yield Said("system", message.text)
        else:
            raise TypeError(f"the state holds a {type(message).__name__}; say in said() what it is")


async def _long_turn(steps: int) -> int:
    """The bytes that a turn of ``steps`` steps writes with the SQLite saver."""

    async def quick(call: str, steps: int) -> str:
        """Return a text of some size."""
        return "x" * steps

    model = _Model(requests=[], script=_growth.script(steps))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "checkpoints.db"))
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            agent = create_agent(model, tools=[quick], checkpointer=saver)
            config = {**CONFIG, "recursion_limit": 2 * steps + 10}
            with _growth.counted() as written:
                await agent.ainvoke({"messages": [HumanMessage(PROMPT)]}, config)
    return written[0]


def main() -> None:
    """Print what was measured, as JSON."""
    report = _peer.Report("langgraph", "langgraph")
    report.sweep(LangGraphTurn)
    report.recovery(
        lambda: LangGraphTurn(resume=True),
        "`ainvoke(None, …)` on the thread, before the next prompt",
    )
    report.pairs(StreamedTurn)
    report.growth({steps: asyncio.run(_long_turn(steps)) for steps in _growth.LENGTHS})
    report.note("history", "`aget_state().values` of the prebuilt agent with `InMemorySaver`")
    report.note(
        "disk behind memory after a second cancel",
        "memory is the last state that `astream` gave away, the store an `InMemorySaver` whose "
        "writes take the steps of a thread, durability as it is by default",
    )
    report.note("bytes written over a turn of n steps", "`AsyncSqliteSaver`")
    report.print()


if __name__ == "__main__":
    main()
