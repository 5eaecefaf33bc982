"""`McpServers`: the servers of a config as one toolset, started and closed side by side.

What may live here: making the toolsets of a `Config`, with prefixes that cannot
collide, and entering, listing and leaving all of them together.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self

import attrs
import trio

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._config as configs
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._names as names
from trio_runner_adapters.mcp._callbacks import Callbacks
from trio_runner_adapters.mcp._toolset import McpToolset

_log = logging.getLogger("trio_runner_adapters.mcp")

#: The longest prefix; with the two underscores behind it half of a name is left.
_PREFIX_LIMIT: Final = 30
_DIGITS: Final = 8


@attrs.frozen
class ServerReport:
    """How one server is doing.

    Attributes:
      status: ``not_started`` before anybody entered and after the last one left.
      tools: how many tools it offered when they were listed last.
      why: why it failed, or an empty text.
    """

    name: str
    status: Literal["started", "failed", "not_started", "disabled"]
    tools: int = 0
    why: str = ""

    def __str__(self) -> str:
        """One line for people."""
        match self.status:
            case "started":
                return f"{self.name}: started, {self.tools} tool{'s' * (self.tools != 1)}"
            case "failed":
                return f"{self.name}: failed: {self.why}"
            case "not_started":
                return f"{self.name}: not started"
            case "disabled":
                return f"{self.name}: disabled"


class McpServers(Mapping[str, McpToolset]):
    """Several MCP servers: a mapping of their toolsets by name, and one toolset of all.

    Give it to an agent as one of its tools, or use it in ``async with``. All servers are
    started side by side and closed side by side, in any order and from any task; each
    start is bounded by that server's own ``start_timeout``. When a server that is
    ``required`` cannot be started the others are closed and its `McpServerError` is
    raised. One that is not required stays without tools, and `report` says why. A tool
    is exposed as ``prefix__tool``, with a prefix made from the server's name; no two
    servers can have the same tool then.
    """

    def __init__(self, toolsets: Mapping[str, McpToolset], *, disabled: Iterable[str] = ()) -> None:
        """Hold ``toolsets``, which nobody has entered; their prefixes are up to you.

        Args:
          toolsets: by name; each toolset once.
          disabled: names of servers that are only reported.
        """
        self._toolsets = dict(toolsets)
        if len({id(each) for each in self._toolsets.values()}) < len(self._toolsets):
            raise ValueError("a toolset is there twice under different names")
        self._disabled = tuple(disabled)
        #: The tools that each server listed last, and all of them merged.
        self._listed: dict[str, Sequence[abc.Tool]] = {}
        self._tools: tuple[abc.Tool, ...] = ()
        #: Who is inside; what they share is one life of each server.
        self._users = 0

    # --- a mapping ---

    def __getitem__(self, name: str) -> McpToolset:
        """The toolset of one server."""
        return self._toolsets[name]

    def __iter__(self) -> Iterator[str]:
        """The servers' names, in the order of the config, without those disabled."""
        return iter(self._toolsets)

    def __len__(self) -> int:
        """How many servers there are, without those disabled."""
        return len(self._toolsets)

    def report(self) -> tuple[ServerReport, ...]:
        """Say of each server whether it started, with how many tools, or why not."""
        return (
            *[self._report(name, toolset) for name, toolset in self._toolsets.items()],
            *[ServerReport(name, "disabled") for name in self._disabled],
        )

    def _report(self, name: str, toolset: McpToolset) -> ServerReport:
        if toolset.failure is not None:
            return ServerReport(name, "failed", 0, str(toolset.failure))
        if not self._users:
            return ServerReport(name, "not_started")
        return ServerReport(name, "started", len(self._listed.get(name, ())))

    # --- a toolset ---

    @property
    def name(self) -> str:
        """Names them in messages."""
        return "mcp servers"

    async def list_tools(self) -> tuple[abc.Tool, ...]:
        """Return the tools of all servers: the same tuple while nothing has changed.

        A checkpoint.

        Raises:
          NotEnteredError: outside ``async with``.
        """
        await trio.lowlevel.checkpoint()
        if not self._users:
            raise tr.NotEnteredError(
                "the MCP servers are not running: use them inside `async with servers:` or give "
                "them to an agent and enter that"
            )
        # Side by side, as one that reads its list anew may take a while.
        listed: dict[str, Sequence[abc.Tool]] = dict.fromkeys(self._toolsets, ())
        await _side_by_side(_Listing(*each, listed) for each in self._toolsets.items())
        if any(tools is not self._listed.get(name) for name, tools in listed.items()):
            self._listed = listed
            self._tools = tuple([tool for tools in listed.values() for tool in tools])
        return self._tools

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        """Start the servers side by side, or share those that run.

        Cancelled, or when one that is required fails, it closes what it has started, bounded.

        Raises:
          McpServerError: a required server cannot be started; the message names it.
        """
        entered: list[McpToolset] = []
        try:
            await _side_by_side(_Entering(each, entered) for each in self._toolsets.values())
            await trio.lowlevel.checkpoint_if_cancelled()
            self._users += 1
            try:
                await self.list_tools()  # for the report
            except BaseException:
                self._users -= 1
                raise
        except BaseException as error:
            await _leave(entered, error)
            raise
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; servers that nobody else is in are closed side by side, bounded."""
        if not self._users:
            raise tr.NotEnteredError("the MCP servers were left more often than they were entered")
        self._users -= 1
        await _leave(list(self._toolsets.values()), exc)
        if exc is None:
            await trio.lowlevel.checkpoint_if_cancelled()


@attrs.frozen
class _Entering:
    """Enters one toolset, and notes that it did."""

    toolset: McpToolset
    entered: list[McpToolset]

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        await self.toolset.__aenter__()
        self.entered.append(self.toolset)


@attrs.frozen
class _Listing:
    """Lists the tools of one toolset, in its place."""

    name: str
    toolset: McpToolset
    listed: dict[str, Sequence[abc.Tool]]

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        self.listed[self.name] = await self.toolset.list_tools()


@attrs.frozen
class _Leaving:
    """Leaves one toolset; whatever is cancelled meanwhile, that has its own bound."""

    toolset: McpToolset
    exc: BaseException | None

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        exc = self.exc
        await self.toolset.__aexit__(
            None if exc is None else type(exc), exc, None if exc is None else exc.__traceback__
        )


async def _leave(toolsets: Sequence[McpToolset], exc: BaseException | None) -> None:
    """Leave all; what goes wrong is raised, or logged when ``exc`` or a cancel goes before it."""
    # Each is left with an exception, so that none raises a cancel in place of what counts.
    reason = trio.ClosedResourceError() if exc is None else exc
    try:
        await _side_by_side(_Leaving(each, reason) for each in toolsets)
    except Exception as error:
        if exc is None and not _cancelled_from_outside():
            raise
        _log.exception("an MCP server could not be closed: %s", errors.said(error))


async def _side_by_side(steps: Iterable[_Entering | _Listing | _Leaving]) -> None:
    """Run all; the first error cancels the rest, and leaves bare."""
    try:
        async with trio.open_nursery(strict_exception_groups=True) as nursery:
            for each in steps:
                nursery.start_soon(each.run)
    except BaseExceptionGroup as group:
        raise _foremost(group) from None


def _foremost(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What leaves: Ctrl-C, then the caller's cancel, then the first error; the rest is logged."""
    found = errors.leaves(group)
    ends = [each for each in found if isinstance(each, KeyboardInterrupt | SystemExit)]
    failures = [each for each in found if not isinstance(each, trio.Cancelled)]
    cancelled = [each for each in found if isinstance(each, trio.Cancelled)]
    first = (ends or (cancelled if _cancelled_from_outside() else []) or failures or cancelled)[0]
    for each in failures:
        if each is not first:
            _log.error("another MCP server failed too: %s", errors.said(each))
    return first


def _cancelled_from_outside() -> bool:
    return trio.current_effective_deadline() == -math.inf


# --- making them ----------------------------------------------------------------


def load_servers(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    callbacks: Callbacks | Mapping[str, Callbacks] | None = None,
    auth: Mapping[str, Any] | None = None,
) -> McpServers:
    """Return the servers of a config file in the shape of ``{"mcpServers": {...}}``.

    Nothing is started before they are entered. Keys that are not known are named in a
    warning in the log. See ``docs/how-to/use-mcp-servers.md`` for the keys.

    Args:
      source: the path of a JSON file, or what it would hold.
      env: where ``${NAME}`` is looked up; by default the process's environment.
      callbacks: what the servers may ask of us: for all, or by the server's name.
      auth: how to authenticate to servers with a URL, by the server's name; as in
        `McpToolset.http`.

    Raises:
      McpConfigError: anything in it is not as it should be; every fault with its place.
      TypeError: ``source`` is neither a path nor a mapping.
      ValueError: ``callbacks`` or ``auth`` name a server that it does not have.
    """
    config = configs.read_config(source, os.environ if env is None else env)
    known = [each.name for each in config.servers] + [*config.disabled]
    _check_names("auth", auth or {}, known)
    _check_names("callbacks", callbacks if isinstance(callbacks, Mapping) else {}, known)
    prefixes = server_prefixes([each.name for each in config.servers])
    toolsets: dict[str, McpToolset] = {}
    problems: list[str] = []
    for server in config.servers:
        own = callbacks.get(server.name) if isinstance(callbacks, Mapping) else callbacks
        options: dict[str, Any] = {
            "name": server.name,
            "prefix": prefixes[server.name],
            "required": server.required,
            "callbacks": own,
            **server.timeouts,
        }
        if server.mode is not None:
            options["mode"] = server.mode
        if server.kind != "stdio" and auth is not None and server.name in auth:
            options["auth"] = auth[server.name]
        try:
            toolsets[server.name] = _made(server, options)
        except (TypeError, ValueError) as error:
            place = configs.shown_place((config.key, server.name))
            problems.append(f"{place}: {errors.said(error)}")
    if problems:
        raise configs.McpConfigError(config.source, problems)
    return McpServers(toolsets, disabled=config.disabled)


def _check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{what} names {unknown[0]!r}; the config has {sorted(known)}")


def _made(server: configs.ServerConfig, options: Mapping[str, Any]) -> McpToolset:
    match server.kind:
        case "stdio":
            return McpToolset.stdio(
                server.command, server.args, env=server.env, cwd=server.cwd, **options
            )
        case "http":
            return McpToolset.http(server.url, headers=server.headers, **options)
        case "sse":
            return McpToolset.sse(server.url, headers=server.headers, **options)


def server_prefixes(server_names: Iterable[str]) -> dict[str, str]:
    """Map each server's name to its prefix, so that ``prefix__tool`` cannot collide.

    A prefix has no two underscores in a row and does not end in one, so the first ``__``
    of an exposed name ends its prefix, whatever the tool is called. It depends on the
    names alone, not on their order.
    """
    distinct = sorted(set(server_names))
    plain = {name: re.sub("_+", "_", names.clean(name)).strip("_") for name in distinct}
    count = Counter(plain.values())
    # A name that nobody changed keeps its form; see `_names.exposed_names`.
    kept = {
        name
        for name, prefix in plain.items()
        if 0 < len(prefix) <= _PREFIX_LIMIT and (count[prefix] == 1 or prefix == name)
    }
    taken = {plain[name] for name in kept}
    found: dict[str, str] = {}
    for name in distinct:
        if name in kept:
            found[name] = plain[name]
            continue
        found[name] = _hashed(plain[name], name, taken)
        taken.add(found[name])
    return found


def _hashed(plain: str, name: str, taken: set[str]) -> str:
    head = plain[: _PREFIX_LIMIT - _DIGITS - 1].strip("_") or "server"
    for attempt in range(len(taken) + 1):
        seed = f"{name}\0{attempt}".encode("utf-8", "surrogatepass")
        prefix = f"{head}_{hashlib.sha256(seed).hexdigest()[:_DIGITS]}"
        if prefix not in taken:
            return prefix
    raise AssertionError("more attempts than names cannot all be taken")  # pragma: no cover
