"""`KillSite`: what a workload that is to be killed is given, and how it tells what happened.

What may live here: what runs inside the process that is killed. Everything
that happens is told to the outside *before* the process acts on it, by one
unbuffered write to a pipe, so that nothing it has seen dies with it.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import attrs
import trio

import trio_runner as tr
import trio_runner.records as records_
from trio_runner.testing._kill_report import OTHER_MODES, KillPoint
from trio_runner.testing._scripted import ScriptedModel

#: Makes the journal under test at a path that nothing is at before the first opening.
MakeJournal: TypeAlias = Callable[[Path], tr.Journal]
#: Something that happened, as it is told: ``what``, and what belongs to it.
Line: TypeAlias = dict[str, Any]
#: A reply of `KillSite.model`: an answer, or calls.
StagedItem: TypeAlias = "str | tr.ToolCall | Sequence[tr.ToolCall]"

#: The session that a workload uses.
SESSION: Final = "killed"


def die() -> NoReturn:
    """End this process now, as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the process outlived SIGKILL")  # pragma: no cover


def fingerprint(value: Any) -> str:
    """A short text that is equal for equal records or messages: the type, and a digest."""
    data = attrs.asdict(value, value_serializer=_plain)
    text = json.dumps(data, sort_keys=True, default=repr)
    return f"{type(value).__name__}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _plain(_: object, __: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


class Ledger:
    """Tells the outside what happens, and dies where it was told to.

    Args:
      write: takes one line; it must be out when this returns.
      kill: where to die; None: nowhere, or from outside.
    """

    def __init__(self, write: Callable[[bytes], object], kill: KillPoint | None = None) -> None:
        self._write = write
        self._kill = kill
        #: Lines come from the journal's threads too, and are counted.
        self._lock = threading.Lock()
        self._lines = 0
        #: How many times each point was passed, by name and when.
        self.passed: collections.Counter[tuple[str, str]] = collections.Counter()

    def tell(self, what: str, **more: Any) -> None:
        """Tell one thing that happened."""
        line = json.dumps({"what": what, **more}).encode() + b"\n"
        with self._lock:
            self._write(line)
            number = self._lines
            self._lines += 1
            self._die_at("line", number, "")
            if what == "failed" and self._kill is not None and self._kill.mode == "byte":
                die()  # where the thread that writes has blocked the signal of the limit

    def point(self, name: str, when: str = "") -> None:
        """Pass a point at which the process may be killed."""
        with self._lock:
            number = self.passed[name, when]
            self.passed[name, when] += 1
            self._die_at(name, number, when)

    def _die_at(self, name: str, number: int, when: str) -> None:
        kill = self._kill
        if kill is not None and (kill.name, kill.number, kill.when) == (name, number, when):
            die()


def facts_of(records: Sequence[records_.Record]) -> dict[str, list[Any]]:
    """What records say, in plain data: the fields of the same names of `Stored`."""
    facts: dict[str, list[Any]] = {
        "records": [fingerprint(each) for each in records],
        "started": [],
        "results": [],
        "replies": [],
        "ends": [],
    }
    for record in records:
        match record:
            case records_.ToolStarted():
                facts["started"].append([record.call_id, record.key, record.attempt])
            case records_.ToolFinished(result=result):
                facts["results"].append([result.call_id, result.status.value, result.text])
            case records_.ModelFinished(message=message):
                facts["replies"].append(fingerprint(message))
            case records_.TurnEnded(end_reason=reason):
                facts["ends"].append(reason.value)
            case _:
                pass
    return facts


class _Ticket:
    """A commit ticket that tells when the commit was first seen to be done."""

    def __init__(self, ticket: tr.CommitTicket, number: int, ledger: Ledger) -> None:
        self._ticket = ticket
        self._number = number
        self._ledger = ledger
        self._told = False

    @property
    def done(self) -> bool:
        done = self._ticket.done
        if done and not self._told:
            self._told = True
            error = self._ticket.error
            if error is None:
                self._ledger.tell("acknowledged", append=self._number)
            else:
                self._ledger.tell("failed", append=self._number, error=repr(error))
        return done

    @property
    def error(self) -> Exception | None:
        return self._ticket.error

    async def wait(self) -> None:
        self._ledger.point("wait", "before")
        await self._ticket.wait()
        self._ledger.point("wait", "after")


class _Session:
    """A session that tells what is appended to it."""

    def __init__(self, session: tr.JournalSession, ledger: Ledger) -> None:
        self._session = session
        self._ledger = ledger
        self._appends = 0

    @property
    def records(self) -> Sequence[records_.Record]:
        return self._session.records

    def append(self, records: Sequence[records_.Record]) -> tr.CommitTicket:
        number = self._appends
        self._appends += 1
        self._ledger.tell("appends", append=number, **facts_of(records))
        self._ledger.point("append", "before")
        try:
            ticket = self._session.append(records)
        except Exception as error:
            self._ledger.tell("failed", append=number, error=repr(error))
            raise
        self._ledger.point("append", "after")
        return _Ticket(ticket, number, self._ledger)

    async def aclose(self) -> None:
        self._ledger.point("aclose", "before")
        await self._session.aclose()
        self._ledger.point("aclose", "after")


class _Journal:
    """The journal under test, watched."""

    def __init__(self, journal: tr.Journal, ledger: Ledger) -> None:
        self._journal = journal
        self._ledger = ledger

    async def open(self, session_id: str) -> tr.JournalSession:
        self._ledger.point("open", "before")
        session = await self._journal.open(session_id)
        self._ledger.tell("opened", records=[fingerprint(each) for each in session.records])
        self._ledger.point("open", "after")
        return _Session(session, self._ledger)


class StagedModel:
    """A model that answers by its place in the conversation; a `trio_runner.abc.Model`.

    Unlike a script it gives the same reply whenever the same step is asked
    again, in whichever process that is.

    Args:
      turns: for each turn its replies, step by step; calls without an id get one.
      delay: seconds before each reply.
    """

    def __init__(self, turns: Sequence[Sequence[StagedItem]], delay: float = 0.0) -> None:
        self._turns = turns
        self._delay = delay

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        """Give the reply of this step.

        Checkpoint: always. A cancel changes nothing.

        Raises:
          AssertionError: the request is not valid, or there is no reply for this step.
        """
        inputs = [
            index
            for index, message in enumerate(request.history)
            if message.role == "user" and not message.tool_results and not message.template
        ]
        turn, step = len(inputs) - 1, len(request.history) - 1
        if inputs:
            behind = request.history[inputs[-1] :]
            step = sum(message.role == "assistant" for message in behind)
        try:
            item = self._turns[turn][step]
        except IndexError:
            raise AssertionError(f"the model has no reply for turn {turn}, step {step}") from None
        model = ScriptedModel([_with_ids(item, turn, step)], delay=self._delay)
        return await model.reply(request, emit)


def _with_ids(item: StagedItem, turn: int, step: int) -> str | list[tr.ToolCall]:
    match item:
        case str():
            return item
        case tr.ToolCall():
            calls: Sequence[tr.ToolCall] = [item]
        case _:
            calls = item
    return [
        call if call.id else attrs.evolve(call, id=f"call-{turn}-{step}-{position}")
        for position, call in enumerate(calls)
    ]


class _Watched:
    """A model that tells what it was asked."""

    def __init__(self, model: tr.Model, ledger: Ledger) -> None:
        self._model = model
        self._ledger = ledger

    async def reply(self, request: tr.ModelRequest, emit: tr.DeltaSink) -> tr.Message:
        had = [result for message in request.history for result in message.tool_results]
        self._ledger.tell("asked", results=[[each.call_id, each.status.value] for each in had])
        reply = await self._model.reply(request, emit)
        self._ledger.tell("replied")
        return reply


class KillSite:
    """Where a workload runs: its folder, its journal, and the outside that it tells.

    A workload is ``async def workload(site: KillSite) -> None``. It builds an
    agent from `journal`, `session`, `model` and `tools`, and lets `drive` run
    the turns. The same function goes on after a kill, in a process of its own.

    Attributes:
      folder: where the workload may keep files; the journal's path is in it.
      life: how many processes were killed before this one; 0 in the first.
      journal: the journal under test, watched.
      session: the id of the session.
    """

    def __init__(self, folder: Path, life: int, make_journal: MakeJournal, ledger: Ledger) -> None:
        self.folder: Path = folder
        self.life: int = life
        self.session: str = SESSION
        self._ledger: Final = ledger
        self.journal: tr.Journal = _Journal(make_journal(folder / "journal"), ledger)

    def model(self, turns: Sequence[Sequence[StagedItem]], *, delay: float = 0.0) -> tr.Model:
        """A model that gives these replies, by turn and step, in every life; it is watched.

        ``site.model([[[call("pay", amount=3)], "Paid."], ["You are welcome."]])`` plays two
        turns. ``delay``: seconds before each reply, which kills may land in.
        """
        return self.watch(StagedModel(turns, delay))

    def watch(self, model: tr.Model) -> tr.Model:
        """``model``, watched: it must give the same reply when a step is asked again."""
        return _Watched(model, self._ledger)

    def tools(self, *tools: tr.Tool | Callable[..., object]) -> list[tr.Tool]:
        """``tools``, watched: when they are entered, and what they return or raise."""
        made = [_as_tool(each) for each in tools]
        return [attrs.evolve(each, call=functools.partial(self._call, each)) for each in made]

    async def _call(self, tool: tr.Tool, arguments: tr.JSONObject, context: tr.ToolContext) -> Any:
        tell, call = self._ledger.tell, context.call_id
        tell(
            "entered",
            call=call,
            key=context.idempotency_key,
            attempt=context.attempt,
            idempotent=tool.idempotent,
        )
        try:
            value = await tool.call(arguments, context)
        except Exception as error:
            tell("raised", call=call, error=repr(error))
            raise
        tell("returned", call=call, text=value if isinstance(value, str) else None)
        return value

    def effect(self, what: str = "") -> None:
        """Tell a side effect of the tool call that is running here.

        It is seen outside as soon as this returns, and counted by the call's key, as
        an outside does that knows a call by it: over all lives each effect may come
        under one key only, and of a call that is not idempotent it may come once.
        """
        context = tr.current_tool_context()
        key = context.idempotency_key
        self._ledger.tell("effect", call=context.call_id, effect=what, key=key)

    def point(self, name: str) -> None:
        """A point of your own at which the process may be killed, such as the middle of a write.

        May be called from any thread. Raises ValueError for a name that is taken or has spaces.
        """
        taken = (*OTHER_MODES, "open", "append", "wait", "aclose")
        if name in taken or len(name.split()) != 1:
            raise ValueError(f"the point is named {name!r}; expected one word, none of {taken}")
        self._ledger.point(name)

    async def drive(self, agent: tr.ToolAgent, *inputs: str) -> None:
        """Run one turn for each of ``inputs``, inside ``async with agent``.

        In a later life the turn that was cut is resumed, and the rest follow.
        Checkpoint: yes. Errors are those of the turns.
        """
        self._ledger.tell("planned", turns=len(inputs))
        last = agent.conversation.turn
        done = agent.conversation.turns
        if last is not None and last.end_reason is not tr.EndReason.ANSWERED:
            await self._turn(tr.ToolRunner(agent, (), resume=True))
        for text in inputs[done:]:
            await self._turn(tr.ToolRunner(agent, text))

    async def _turn(self, runner: tr.ToolRunner) -> None:
        async with runner:
            async for message in runner:
                self._ledger.tell("handed_out", message=fingerprint(message))


def _as_tool(each: tr.Tool | Callable[..., object]) -> tr.Tool:
    match each:
        case tr.Tool():
            return each
        case _:
            return tr.tool(each)


async def look(make_journal: MakeJournal, path: Path, timeout: float) -> Mapping[str, Any]:  # noqa: ASYNC109  the bound is the sweep's
    """Open the session as a stranger would, and say what is in it; the fields of `Stored`."""
    with trio.fail_after(timeout):
        session = await make_journal(path).open(SESSION)
        try:
            records = list(session.records)
        finally:
            await session.aclose()
    facts: dict[str, Any] = facts_of(records)
    try:
        state = tr.fold(records)
    except tr.RecordError as error:
        return {**facts, "misfit": str(error)}
    facts["turns"] = state.turns
    facts["problems"] = []
    facts["open"] = state.turn is not None and state.turn.end_reason is None
    try:
        tr.check_history(state.messages)
    except tr.HistoryError as error:
        facts["problems"] = error.problems
    return facts
