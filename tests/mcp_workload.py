"""A turn of an agent with an MCP server, as a case to sweep; loaded by ``test_mcp_sweep.py``.

`MemoryTurn`: the SDK's own server runs beside its client in the same trio run, on the mock
clock, so each position repeats. `StdioTurn` starts a process, and `WebTurn` asks a server
that runs in a thread. What a server sees is noted: whatever is cancelled on our side, no
call of a tool may run twice, or be left running.
"""

from __future__ import annotations

import signal
import sys
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import trio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

import trio_runner as tr
from trio_runner.testing import Case, Outcome, call
from trio_runner.testing._agent_turn import AgentTurn
from trio_runner_adapters.mcp import McpToolset

#: Three calls at once, then two; each has arguments of its own.
SCRIPT = [
    [call("tidy", steps=3), call("broken", number=1), call("progress", count=2)],
    [call("tidy", steps=1), call("progress", count=1)],
    "the answer",
    "never asked for",
]
TURN_SERVER = Path(__file__).parent / "servers" / "turn_server.py"
#: Seconds that a server in another thread may take to hear of a cancel.
HEARS_WITHIN = 20.0


@attrs.define(eq=False)
class Notes:
    """What happened in a server."""

    ran: Counter[str] = attrs.Factory(Counter[str])
    running: Counter[str] = attrs.Factory(Counter[str])

    def begin(self, what: str) -> None:
        self.ran[what] += 1
        self.running[what] += 1

    def end(self, what: str) -> None:
        self.running[what] -= 1

    def problems(self) -> Iterator[str]:
        if left := sorted(+self.running):
            yield f"left running in the server: {left}"
        if twice := sorted(what for what, times in self.ran.items() if times > 1):
            yield f"ran more than once in the server: {twice}"


class Shelf:
    """Where a server finds the notes of the present case."""

    def __init__(self) -> None:
        self.notes = Notes()


def make_server(shelf: Shelf) -> MCPServer:
    """A server whose tools take some steps, clean up, fail, and tell of their progress."""
    server = MCPServer("swept", log_level="ERROR")

    @server.tool()
    async def tidy(steps: int) -> str:
        """Take some steps, and clean up in two more."""
        notes, what = shelf.notes, f"tidy {steps}"
        notes.begin(what)
        try:
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            return what
        finally:
            with anyio.move_on_after(1, shield=True):
                await anyio.lowlevel.checkpoint()
            notes.end(what)

    @server.tool()
    async def broken(number: int) -> str:
        """Take a step, then raise."""
        notes, what = shelf.notes, f"broken {number}"
        notes.begin(what)
        try:
            await anyio.lowlevel.checkpoint()
            raise ToolError("broken on purpose")
        finally:
            notes.end(what)

    @server.tool()
    async def progress(count: int, ctx: Context) -> str:
        """Tell of each step."""
        notes, what = shelf.notes, f"progress {count}"
        notes.begin(what)
        try:
            for number in range(count):
                await ctx.report_progress(number, count, f"step {number}")
            return what
        finally:
            notes.end(what)

    return server


class McpTurn(AgentTurn):
    """One turn with an `McpToolset`; see `AgentTurn` for the settings.

    Args:
      journal: makes another journal than a `tr.MemoryJournal`, for each case anew.
    """

    def __init__(
        self,
        drive: Any = "until_done",
        *,
        journal: Callable[[], Any] | None = None,
        **settings: Any,
    ) -> None:
        self.toolset: McpToolset
        self.other_journal = journal
        super().__init__(self.new_agent, SCRIPT, drive, **settings)

    @abstractmethod
    def new_toolset(self) -> McpToolset:
        """A toolset, and notes, for one case."""

    @abstractmethod
    def new_notes(self) -> Notes:
        """What the server has noted in this case."""

    def make_journal(self) -> Any:
        return (self.other_journal or super().make_journal)()

    def new_agent(
        self, journal: Any = None, session: Any = None, model: Any = None
    ) -> tr.ToolAgent:
        """An agent with a toolset of its own."""
        self.toolset = self.new_toolset()
        given: dict[str, Any] = {"model": model, "journal": journal, "session": session}
        return tr.ToolAgent("swept", tools=[self.toolset], grace=self.grace, **given)

    #: Seconds that leaving may take.
    grace = 5.0

    def __call__(self) -> Case:
        return attrs.evolve(super().__call__(), afterwards=self.use_again)

    async def use_again(self) -> None:
        """The toolset can be entered again, and works."""
        assert self.toolset._upkeep.users == 0, "somebody is inside still"
        async with self.toolset as toolset:
            assert len(await toolset.list_tools()) == 3
        assert self.toolset._upkeep.current is None, "left with a connection"

    def check(self, outcome: Outcome) -> Iterator[str]:
        yield from super().check(outcome)
        notes = self.new_notes()
        yield from notes.problems()
        # The contract lets a tool say so of a lost connection; no server here goes by itself.
        last = self.agent.last_turn
        if last is not None and last.end_reason is tr.EndReason.ANSWERED:
            for result in (each for message in last.messages for each in message.tool_results):
                if result.status is tr.CallStatus.INTERRUPTED:
                    yield f"call {result.call_id} has status interrupted, and the turn was answered"
        if not outcome.landings and sum(notes.ran.values()) < 3:
            yield f"undisturbed, the server ran only {sorted(notes.ran)}"


class MemoryTurn(McpTurn):
    """The server is in memory."""

    def __init__(self, drive: Any = "until_done", mode: str = "auto", **settings: Any) -> None:
        self.mode = mode
        self.shelf = Shelf()
        super().__init__(drive, **settings)

    def new_toolset(self) -> McpToolset:
        self.shelf = Shelf()
        return McpToolset.in_memory(make_server(self.shelf), name="srv", mode=self.mode)

    def new_notes(self) -> Notes:
        return self.shelf.notes


class StdioTurn(McpTurn):
    """The server is a process; it notes in a file."""

    grace = 30.0

    def __init__(self, folder: Path, drive: Any = "until_done", **settings: Any) -> None:
        self.folder = folder
        self.number = 0
        super().__init__(drive, **settings)

    @property
    def path(self) -> Path:
        return self.folder / f"notes-{self.number}"

    def new_toolset(self) -> McpToolset:
        self.number += 1
        self.path.touch()
        command = ["-S", str(TURN_SERVER), str(self.path)]
        return McpToolset.stdio(sys.executable, command, name="srv", mode="legacy")

    def new_notes(self) -> Notes:
        notes = Notes()
        for line in self.path.read_text().splitlines():
            word, _, what = line.partition(" ")
            (notes.begin if word == "begin" else notes.end)(what)
        notes.running.clear()  # with its process, which the sweep looks for
        self.path.unlink()
        return notes


class WebTurn(McpTurn):
    """The server is behind a URL, in a thread of this process."""

    grace = 30.0

    def __init__(
        self,
        make: Callable[..., McpToolset],
        url: str,
        shelf: Shelf,
        drive: Any = "until_done",
        mode: str = "auto",
        **settings: Any,
    ) -> None:
        self.make_toolset, self.url, self.shelf, self.mode = make, url, shelf, mode
        super().__init__(drive, **settings)

    def new_toolset(self) -> McpToolset:
        self.shelf.notes = Notes()
        return self.make_toolset(self.url, name="srv", mode=self.mode)

    def new_notes(self) -> Notes:
        end = time.monotonic() + HEARS_WITHIN
        notes = self.shelf.notes
        while +notes.running and time.monotonic() < end:
            time.sleep(0.002)
        return notes


@trio.lowlevel.enable_ki_protection
def hand_on_unseen() -> None:
    """In place of what hands a Ctrl-C on to the main task, which is a SIGINT of its own.

    A sweep takes each SIGINT that it has not sent for one of whoever waits for it, and stops;
    so this one goes past its counter.
    """
    counter: Any = signal.getsignal(signal.SIGINT)
    counter.__self__._handler(signal.SIGINT, sys._getframe())


class RealClock(trio.abc.Clock):
    """Stands in for the mock clock of a sweep, where a server takes real time."""

    def __init__(self, autojump_threshold: float = 0.0) -> None:
        self._began = time.perf_counter()

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return time.perf_counter() - self._began

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - self.current_time()
