"""Hosts an asyncio-only client beside trio: a thread with a loop of its own.

Needs no extra; uvloop is used where it is installed and wanted. The modules
below are cut by thread: ``_bridge``, ``_proxy``, ``_call`` and ``_callbacks`` are used in
trio's thread, ``_held`` and ``_host`` in the loop's, and ``_life`` says of each method
which of the two it is for.
"""

from trio_runner_adapters.asyncio_bridge._bridge import AsyncioBridge as AsyncioBridge
from trio_runner_adapters.asyncio_bridge._errors import BridgeClosedError as BridgeClosedError
from trio_runner_adapters.asyncio_bridge._errors import BridgeError as BridgeError
from trio_runner_adapters.asyncio_bridge._errors import CallbackRefusedError as CallbackRefusedError
from trio_runner_adapters.asyncio_bridge._errors import (
    ForeignCancelledError as ForeignCancelledError,
)
from trio_runner_adapters.asyncio_bridge._proxy import BridgedCall as BridgedCall
from trio_runner_adapters.asyncio_bridge._proxy import BridgedObject as BridgedObject
from trio_runner_adapters.asyncio_bridge._proxy import on_loop as on_loop
