"""The reference workload of `kill_sweep`: two turns that use everything.

Three parallel tools (one with an effect that may be repeated under its key, one
with an effect that may not, one in a thread), then two, then the answer; then a
turn with one more. Waits of a millisecond or so let kills land inside.
"""

from __future__ import annotations

import trio

import trio_runner as tr
from trio_runner.testing._kill_site import KillSite
from trio_runner.testing._scripted import call

#: What the model answers, turn by turn and step by step.
TURNS = (
    (
        (
            call("book", id="c1", city="Oslo"),
            call("pay", id="c2", amount=3),
            call("count", id="c3", number=7),
        ),
        (call("pay", id="c4", amount=4), call("book", id="c5", city="Rome")),
        "Paid 3 and 4.",
    ),
    ((call("pay", id="c6", amount=5), call("book", id="c7", city="Cairo")), "Paid 5."),
)
_WAIT = 0.001  # seconds


async def reference_workload(site: KillSite) -> None:
    """Drive the two turns, or what is left of them."""

    async def book(city: str) -> str:
        """Book a room; who is asked twice under one key keeps one booking."""
        await trio.sleep(_WAIT)
        site.effect("booked")
        await trio.sleep(_WAIT)
        return f"{city}: booked"

    async def pay(amount: int) -> str:
        """Pay, which must not be done again."""
        await trio.sleep(_WAIT)
        site.effect("paid")
        await trio.sleep(_WAIT)
        return f"paid {amount}"

    def count(number: int) -> str:
        """Count in a thread."""
        return f"counted to {number}"

    agent = tr.ToolAgent(
        "reference",
        model=site.model(TURNS, delay=_WAIT),
        tools=site.tools(tr.tool(book, idempotent=True), pay, count),
        journal=site.journal,
        session=site.session,
    )
    async with agent:
        await site.drive(agent, "Pay 3 and 4.", "Pay 5.")
