"""The client that the MCP conformance suite starts: one scenario, driven by `McpToolset`.

The suite says by the environment what to do, and gives its server's URL as the last
argument. Tools are called by a turn of an agent whose model is a script. The exit
code is 0 when everything that was asked of the server was answered.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

import trio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.mcp import Answer, Callbacks, McpToolset, Question

#: Seconds for the whole scenario.
TIMEOUT: Final = 60.0

Drive: TypeAlias = Callable[[McpToolset], Awaitable[None]]


def context() -> dict[str, Any]:
    """What the suite gives a scenario to work with."""
    return json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


async def call_tools(toolset: McpToolset, calls: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Make the calls in a turn, one after the other; each must end ok."""
    replies = [[call(name, **arguments)] for name, arguments in calls]
    agent = tr.ToolAgent("conformance", model=ScriptedModel([*replies, "done"]), tools=[toolset])
    async with agent:
        await agent.generate("Go through the scenario.")
    results = [result for message in agent.history for result in message.tool_results]
    for result in results:
        print(f"{result.name}: {result.status}: {result.text[:200]}")
    assert [result.status for result in results] == ["ok"] * len(calls), results


def calling(*names: str, **arguments: Any) -> Drive:
    """Return what calls these tools, each with these arguments."""

    async def drive(toolset: McpToolset) -> None:
        await call_tools(toolset, [(name, arguments) for name in names])

    return drive


async def only_list(toolset: McpToolset) -> None:
    """The list was read when the toolset was entered."""
    for tool in await toolset.list_tools():
        print(tool.name)


async def standard_headers(toolset: McpToolset) -> None:
    """Send a request of each kind that names something."""
    await call_tools(toolset, [(tool.name, {}) for tool in await toolset.list_tools()])
    for resource in await toolset.list_resources():
        await toolset.read_resource(resource.uri)
    for prompt in await toolset.list_prompts():
        await toolset.get_prompt(prompt.name)


async def custom_headers(toolset: McpToolset) -> None:
    """Call with the values that the suite wants to see in headers."""
    calls = [(each["name"], each["arguments"]) for each in context()["toolCalls"]]
    await call_tools(toolset, calls)


async def every_tool(toolset: McpToolset) -> None:
    """Call whatever is offered; what must not be called is not to be offered."""
    by_type = {"string": "x", "integer": 1, "number": 1, "boolean": True}
    calls: list[tuple[str, dict[str, Any]]] = []
    for tool in await toolset.list_tools():
        schema: Any = tool.input_schema
        fields = schema.get("properties", {})
        arguments = {name: by_type.get(field.get("type"), "x") for name, field in fields.items()}
        calls.append((tool.name, arguments))
    await call_tools(toolset, calls)


async def echo_schema(toolset: McpToolset) -> None:
    """Send a tool's schema back as it is offered to a model."""
    tools = {tool.name: tool for tool in await toolset.list_tools()}
    schema = tools["json_schema_2020_12_tool"].input_schema
    await call_tools(toolset, [("json_schema_echo", {"schema": schema})])


DRIVES: Final[dict[str, Drive]] = {
    "initialize": only_list,
    "tools_call": calling("add_numbers", a=5, b=3),
    "elicitation-sep1034-client-defaults": calling("test_client_elicitation_defaults"),
    "sse-retry": calling("test_reconnection"),
    "request-metadata": only_list,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": every_tool,
    "json-schema-ref-no-deref": only_list,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2322-client-request-state": calling(
        "test_mrtr_echo_state",
        "test_mrtr_unrelated",
        "test_mrtr_no_state",
        "test_mrtr_no_result_type",
    ),
}


async def agree(question: Question) -> Answer:
    """Answer a form by its defaults, and any other question by yes."""
    fields = (question.schema or {}).get("properties", {})
    return Answer.accept(question.defaults or dict.fromkeys(fields, True))


async def main() -> None:
    """Drive the scenario that the environment names."""
    version = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    toolset = McpToolset.http(
        sys.argv[-1],
        name="conformance",
        mode="auto" if version in MODERN_PROTOCOL_VERSIONS else "legacy",
        callbacks=Callbacks(elicitation=agree, sampling=ScriptedModel([]), roots=[]),
    )
    with trio.fail_after(TIMEOUT):
        async with toolset:
            await DRIVES[os.environ["MCP_CONFORMANCE_SCENARIO"]](toolset)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    tr.run(main)
