"""fast-agent: an agent's message history, its session files, and a further turn.

What may live here: the reference turn as a user of fast-agent writes it: a
`ToolAgent` with plain functions, a scripted model in the manner of the library's
own passthrough model, and the session store that its applications use.
"""

# The peer is not installed where the types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _growth
import _kill
import _peer
import httpx
from _histories import Ledger, Said, Seen
from _reference import (
    ANSWER,
    BATCHES,
    NEXT_ANSWER,
    NEXT_PROMPT,
    PROMPT,
    Call,
    pause,
    perform,
    temporary_folder,
)
from fast_agent.agents.agent_types import AgentConfig
from fast_agent.agents.tool_agent import ToolAgent
from fast_agent.agents.tool_runner import ToolRunnerHooks
from fast_agent.config import LoggerSettings, OpenAISettings, Settings
from fast_agent.context import cleanup_context, initialize_context
from fast_agent.history.history_exporter import HistoryExporter
from fast_agent.hooks import save_session_history
from fast_agent.hooks.hook_context import HookContext
from fast_agent.llm.internal.passthrough import PassthroughLLM
from fast_agent.llm.provider.openai.llm_openai import OpenAILLM
from fast_agent.mcp.prompt import Prompt
from fast_agent.mcp.prompt_serialization import load_messages
from fast_agent.types import LlmStopReason, PromptMessageExtended, RequestParams
from mcp_types import CallToolRequest, CallToolRequestParams
from openai import AsyncOpenAI

_EXPORT: Any = HistoryExporter.save


class _Script:
    """What the model answers, and what it was asked; shared by both kinds of model."""

    def __init__(self, batches: Sequence[Sequence[Call]] = BATCHES) -> None:
        self.batches = batches
        self.requests: list[list[Said]] = []
        self.next = False

    def asked(self, messages: list[Said]) -> Sequence[Call] | str:
        """The next reply: calls, or a text."""
        self.requests.append(messages)
        replies = sum(message.role == "assistant" for message in messages)
        if self.next:
            return NEXT_ANSWER
        return ANSWER if replies >= len(self.batches) else self.batches[replies]


class _ScriptedLLM(PassthroughLLM):
    """Plays the script."""

    script: _Script

    async def _apply_prompt_provider_specific(
        self,
        multipart_messages: list[PromptMessageExtended],
        request_params: Any = None,
        tools: Any = None,
        is_template: bool = False,
    ) -> PromptMessageExtended:
        reply = self.script.asked(list(said(multipart_messages)))
        await pause(2)
        if isinstance(reply, str):
            return Prompt.assistant(reply, stop_reason=LlmStopReason.END_TURN)
        calls = {
            call.id: CallToolRequest(
                method="tools/call",
                params=CallToolRequestParams(name=call.tool, arguments=call.arguments),
            )
            for call in reply
        }
        return Prompt.assistant("", tool_calls=calls, stop_reason=LlmStopReason.TOOL_USE)


class _SlowLLM(_ScriptedLLM):
    """Says when the turn begins, and takes its time."""

    folder: Path

    async def _apply_prompt_provider_specific(
        self, *args: Any, **kwargs: Any
    ) -> PromptMessageExtended:
        _kill.begin(self.folder)
        await asyncio.sleep(_kill.MODEL_SECONDS)
        return await super()._apply_prompt_provider_specific(*args, **kwargs)


class _OpenAIByScript(OpenAILLM):
    """The library's own OpenAI provider; only the network is replaced."""

    script: _Script

    def _openai_client(self) -> AsyncOpenAI:
        transport = httpx.MockTransport(self._answer)
        client = httpx.AsyncClient(transport=transport)
        return AsyncOpenAI(api_key="none", base_url="http://provider.invalid", http_client=client)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        messages = list(said_to_openai(json.loads(request.content)["messages"]))
        reply = self.script.asked(messages)
        await pause(2)
        if isinstance(reply, str):
            delta: dict[str, Any] = {"role": "assistant", "content": reply}
            finish = "stop"
        else:
            finish = "tool_calls"
            delta = {
                "role": "assistant",
                "tool_calls": [
                    {
                        "index": index,
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.tool, "arguments": json.dumps(call.arguments)},
                    }
                    for index, call in enumerate(reply)
                ],
            }
        return httpx.Response(
            200,
            headers={"content-type": "text/event-stream"},
            stream=_Events([_chunk(delta, None), _chunk({}, finish)]),
        )


class _Events(httpx.AsyncByteStream):
    """Server-sent events, with a step of the loop before each."""

    def __init__(self, chunks: list[dict[str, Any]]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> Any:
        for chunk in self._chunks:
            await pause(1)
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        yield b"data: [DONE]\n\n"


def _chunk(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {
        "id": "chunk",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "gpt-4o",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


class FastAgentTurn:
    """One turn of a tool agent with a session store.

    Args:
      llm: the kind of model.
      script: what it plays.
      compare: whether to compare the store with memory, instead of a further turn.
      hang: whether the store never comes back from the first cancel on.
      folder: for the store; None: a new one.
    """

    def __init__(
        self,
        llm: type[Any] = _ScriptedLLM,
        script: _Script | None = None,
        *,
        compare: bool = False,
        hang: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.script = script or _Script()
        self.folder = folder or temporary_folder()
        self._llm_type = llm
        self._compare = compare
        self._hang = hang
        self._agent: ToolAgent

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

        await self.prepare_with([tidy, quick, plain])

    async def prepare_with(self, tools: list[Any]) -> None:
        """Make the agent, with these tools."""
        HistoryExporter.save = self._export if self._hang else _EXPORT
        logger = LoggerSettings(
            type="none", progress_display=False, show_chat=False, show_tools=False
        )
        settings = Settings(logger=logger, home=str(self.folder), openai=OpenAISettings())
        context = await initialize_context(settings, store_globally=True)
        self._agent = ToolAgent(
            AgentConfig("reference", model="gpt-4o"), tools=tools, context=context
        )
        self._agent.tool_runner_hooks = ToolRunnerHooks(after_turn_complete=self._save)
        await self._agent.attach_llm(self._make_llm)
        await self._agent.initialize()

    async def _save(self, runner: Any, message: Any) -> None:
        """What the library's application factory adds to each agent."""
        await save_session_history(
            HookContext(
                runner=runner,
                agent=self._agent,
                message=message,
                hook_type="after_turn_complete",
            )
        )

    async def _export(self, *args: Any, **kwargs: Any) -> str:
        """A disk that hangs from the first cancel on."""
        if self.ledger.cancelled:
            await asyncio.get_running_loop().create_future()
        return await _EXPORT(*args, **kwargs)

    def _make_llm(self, **kwargs: Any) -> Any:
        llm = self._llm_type(**kwargs)
        llm.script = self.script
        return llm

    async def turn(self) -> object:
        """Run the agent."""
        params = RequestParams(max_iterations=1000)
        return (await self._agent.generate(PROMPT, params)).last_text()

    async def look(self) -> Seen:
        """Read the history, and run the agent on it once more."""
        seen = Seen(list(said(self._agent.message_history)))
        if self._compare:
            seen.disk = stored(self.folder)
            return seen
        self.script.next = True
        self.script.requests.clear()
        try:
            await self._agent.generate(NEXT_PROMPT)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is the finding
            seen.refusal = f"{type(exc).__name__}: {exc}"
        else:
            seen.next_request = self.script.requests[0]
        return seen

    async def close(self) -> None:
        """Close the application's context."""
        await cleanup_context()
        shutil.rmtree(self.folder, ignore_errors=True)


def stored(folder: Path) -> list[Said]:
    """The history as the session's files have it."""
    files = sorted(folder.glob("sessions/*/history_reference.json"))
    return list(said(load_messages(str(files[0])))) if files else []


def said(messages: Iterable[PromptMessageExtended]) -> Iterator[Said]:
    """The messages in the common form."""
    for message in messages:
        results = tuple(
            (call_id, "".join(getattr(block, "text", "") for block in result.content))
            for call_id, result in (message.tool_results or {}).items()
        )
        if results:
            yield Said("tool", results=results)
        if message.role == "assistant":
            yield Said("assistant", message.all_text(), tuple(message.tool_calls or ()))
        elif not results:
            yield Said("user", message.all_text())


def said_to_openai(messages: Iterable[Any]) -> Iterator[Said]:
    """The messages of a chat completion's request in the common form."""
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else json.dumps(content)
        if message["role"] == "tool":
            yield Said("tool", results=((message["tool_call_id"], text),))
        else:
            calls = tuple(call["id"] for call in message.get("tool_calls") or ())
            yield Said(message["role"], text, calls)


async def _long_turn(steps: int) -> int:
    """The bytes that a turn of ``steps`` steps writes with a session."""

    async def quick(call: str, steps: int) -> str:
        """Return a text of some size."""
        return "x" * steps

    program = FastAgentTurn(script=_Script(_growth.script(steps)))
    await program.prepare_with([quick])
    with _growth.counted() as written:
        await program.turn()
    await program.close()
    return written[0]


def _killed_child(folder: Path) -> None:
    """A turn in real time that somebody will kill."""

    async def run() -> None:
        _SlowLLM.folder = folder
        program = FastAgentTurn(_SlowLLM, folder=folder)
        await program.prepare_with(_kill.tools(folder))
        await program.turn()

    asyncio.run(run())


def _killed() -> _kill.Killed:
    """What the session's files have when the process was killed."""
    return _kill.sweep(
        _killed_child,
        lambda folder: dict(pair for message in stored(folder) for pair in message.results),
    )


def main() -> None:
    """Print what was measured, as JSON."""
    os.environ["FAST_AGENT_DISABLE_UV_LOOP"] = "1"
    report = _peer.Report("fast-agent", "fast-agent-mcp")
    report.killed(_killed())  # first: a fork wants a process without threads
    report.sweep(FastAgentTurn)
    report.provider(
        lambda: FastAgentTurn(_OpenAIByScript),
        "the library's OpenAI provider, over a replaced network",
    )
    report.pairs(lambda: FastAgentTurn(compare=True))
    report.growth({steps: asyncio.run(_long_turn(steps)) for steps in _growth.LENGTHS})
    report.hanging(lambda: FastAgentTurn(hang=True))
    report.note("history", "`agent.message_history` of a `ToolAgent` driven by `generate()`")
    report.note("disk behind memory after a second cancel", "the session's files")
    report.print()


if __name__ == "__main__":
    main()
