"""`finalise`: what happens after a turn's end was committed, in its fixed order.

What may live here: what comes before the compaction (``compacting.py``): the user's
``after_turn_complete``, then trim. The caller commits what they changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from trio_runner._shell.conversation import Conversation
from trio_runner._shell.loop_agent import LoopConfig


async def finalise(
    conversation: Conversation,
    config: LoopConfig,
    tell: Callable[[], Awaitable[None]] | None,
    *,
    kept: bool,
) -> None:
    """Run the user's hook, then the built-ins. Only the hook may raise; then nothing follows.

    Args:
      tell: calls ``after_turn_complete``; None: there is none.
      kept: whether the turn is in the history; one without changes nothing there.
    """
    if tell is not None:
        await tell()
    if config.trim_tool_history and kept:
        conversation.trim(keep=0)
