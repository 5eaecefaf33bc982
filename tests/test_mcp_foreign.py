"""`McpToolset` against an MCP server that others wrote: `mcp-server-time`."""

import importlib.util
import sys
from typing import Any

import pytest

from trio_runner_adapters.mcp import McpToolset

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mcp_server_time") is None,
        reason="mcp-server-time is not installed (python -m pip install mcp-server-time)",
    ),
]


class Context:
    def report_progress(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_foreign_server_is_listed_called_and_closed(mode: str) -> None:
    toolset = McpToolset.stdio(
        sys.executable,
        ["-m", "mcp_server_time", "--local-timezone", "UTC"],
        name="time",
        start_timeout=60.0,
        prefix="clock",
        mode=mode,
    )
    context: Any = Context()
    async with toolset:
        tools = {tool.bare_name: tool for tool in await toolset.list_tools()}
        arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        result: Any = await tools["convert_time"].call(dict(arguments), context)
        failed: Any = await tools["convert_time"].call({**arguments, "time": "noon"}, context)
    assert [tools[name].name for name in ("get_current_time", "convert_time")] == [
        "clock__get_current_time",
        "clock__convert_time",
    ]
    assert result.status == "ok"
    assert "T21:00:00+09:00" in result.text
    assert failed.status == "error"
    assert "time" in failed.text
