"""MCP servers as toolsets, through the mcp SDK, on trio without a bridge.

Needs the extra ``mcp``. Start with `McpToolset.stdio`, or with `load_servers` for a config file.
"""

try:
    import mcp as _mcp
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "trio_runner_adapters.mcp needs the mcp SDK: python -m pip install 'trio-runner[mcp]'",
        name=_error.name,
    ) from _error

from trio_runner_adapters.mcp._callbacks import Answer as Answer
from trio_runner_adapters.mcp._callbacks import Callbacks as Callbacks
from trio_runner_adapters.mcp._callbacks import ElicitationCallback as ElicitationCallback
from trio_runner_adapters.mcp._callbacks import LogCallback as LogCallback
from trio_runner_adapters.mcp._callbacks import LogLevel as LogLevel
from trio_runner_adapters.mcp._callbacks import Question as Question
from trio_runner_adapters.mcp._callbacks import Root as Root
from trio_runner_adapters.mcp._callbacks import RootLike as RootLike
from trio_runner_adapters.mcp._callbacks import RootsCallback as RootsCallback
from trio_runner_adapters.mcp._callbacks import ServerLog as ServerLog
from trio_runner_adapters.mcp._config import McpConfigError as McpConfigError
from trio_runner_adapters.mcp._convert import Prompt as Prompt
from trio_runner_adapters.mcp._convert import PromptArgument as PromptArgument
from trio_runner_adapters.mcp._convert import ResourceTemplate as ResourceTemplate
from trio_runner_adapters.mcp._convert import from_mcp_result as from_mcp_result
from trio_runner_adapters.mcp._convert import to_mcp_result as to_mcp_result
from trio_runner_adapters.mcp._errors import McpServerError as McpServerError
from trio_runner_adapters.mcp._reading import Completion as Completion
from trio_runner_adapters.mcp._reading import McpRequestError as McpRequestError
from trio_runner_adapters.mcp._sampling import SamplingApproval as SamplingApproval
from trio_runner_adapters.mcp._sampling import SamplingCallback as SamplingCallback
from trio_runner_adapters.mcp._sampling import SamplingLimits as SamplingLimits
from trio_runner_adapters.mcp._sampling import SamplingRequest as SamplingRequest
from trio_runner_adapters.mcp._servers import McpServers as McpServers
from trio_runner_adapters.mcp._servers import ServerReport as ServerReport
from trio_runner_adapters.mcp._servers import load_servers as load_servers
from trio_runner_adapters.mcp._toolset import McpToolset as McpToolset

del _mcp
