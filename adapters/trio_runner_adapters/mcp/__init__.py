"""MCP servers as toolsets, through the mcp SDK, on trio without a bridge.

Needs the extra ``mcp``. Start with `McpToolset.stdio`.
"""

try:
    import mcp as _mcp
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "trio_runner_adapters.mcp needs the mcp SDK: python -m pip install 'trio-runner[mcp]'",
        name=_error.name,
    ) from _error

from trio_runner_adapters.mcp._convert import from_mcp_result as from_mcp_result
from trio_runner_adapters.mcp._convert import to_mcp_result as to_mcp_result
from trio_runner_adapters.mcp._errors import McpServerError as McpServerError
from trio_runner_adapters.mcp._toolset import McpToolset as McpToolset

del _mcp
