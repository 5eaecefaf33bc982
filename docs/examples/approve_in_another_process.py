"""A turn asks for approval, its process is killed, and another process decides and goes on."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call

CALLS = [
    call("look_up", id="c1", city="Oslo"),
    call("transfer", id="c2", to="Ada", amount=500),
    call("transfer", id="c3", to="Mallory", amount=9000),
    call("ask_the_user", id="c4", question="Window or aisle?"),
]


def reply(request: tr.ModelRequest) -> Any:
    """Plays the model, in whichever process it is asked."""
    return "All done." if any(message.tool_calls for message in request.history) else CALLS


async def look_up(city: str) -> str:
    """Find a hotel."""
    print(f"  look_up({city!r}) runs")
    return "Hotel Bristol"


@tr.tool(needs_approval=True)
async def transfer(to: str, amount: int) -> str:
    """Send money."""
    print(f"  transfer(to={to!r}, amount={amount}) runs")
    return f"{to} got {amount}"


ask_the_user = tr.external_tool(
    "ask_the_user",
    "Ask the user a question.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
)


def make_agent(path: Path) -> tr.ToolAgent:
    return tr.ToolAgent(
        "travel",
        model=ScriptedModel([reply, reply]),
        tools=[look_up, transfer, ask_the_user],
        journal=tr.SqliteJournal(path),
        session="trip-1",
    )


async def ask(path: Path) -> None:
    """The first process: it has nobody who could decide, so the turn is suspended."""
    async with make_agent(path) as agent:
        await agent.generate("Book a hotel in Oslo and pay for it.")
        print("  suspended; these calls wait:")
        for pending in agent.pending:
            print(
                f"    {pending.call_id} ({pending.waits_for}): {pending.name} {pending.arguments}"
            )
        sys.stdout.flush()
        if hasattr(signal, "SIGKILL"):
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(9)


async def decide(path: Path) -> None:
    """The second one, days later: the words go by the ids of the calls."""
    async with make_agent(path) as agent:
        waiting = {pending.call_id: pending for pending in agent.pending}
        message = await agent.resume(
            decisions={
                "c2": waiting["c2"].approve({"to": "Ada", "amount": 50}),
                "c3": waiting["c3"].deny("nobody here knows Mallory."),
                "c4": "Aisle.",
            }
        )
        for result in agent.history[2].tool_results:
            print(f"  {result.call_id} {result.status.value}: {result.text}")
        print(f"  {message.text}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trips.db"
        for step in ("ask", "decide"):
            print(f"{step}:", flush=True)
            this = [sys.executable, *sys.orig_argv[1:]]
            # This very program again: nothing in it comes from outside.
            done = subprocess.run([*this, step, str(path)], check=False)  # noqa: S603
            if done.returncode:
                print("  the process was killed", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", path]:
            tr.run(ask, Path(path))
        case ["decide", path]:
            tr.run(decide, Path(path))
        case _:
            main()
