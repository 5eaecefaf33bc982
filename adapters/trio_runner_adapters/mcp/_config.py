"""A config file of MCP servers, in the shape that the ecosystem uses, read and checked.

What may live here: from the text of a file to `ServerConfig` values. No server
is made or started here. All faults are reported together, each with its place.

Shape: ``{"mcpServers": {NAME: {"command": ...} | {"url": ...}}}``; VS Code's own
file says ``servers``. Variables are expanded in the texts of ``command``, ``args``,
``env``, ``cwd``, ``url`` and ``headers``: ``${NAME}``, ``${NAME:-default}`` (also
when it is empty it counts as set), and ``${env:NAME}`` as VS Code spells it. A
variable that is not set is a fault, and not the text ``${NAME}`` for a server to
puzzle over.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import attrs
import pydantic
from pydantic_core import ErrorDetails

import trio_runner as tr
import trio_runner_adapters.mcp._options as options

_log = logging.getLogger("trio_runner_adapters.mcp")

#: The largest config file that is read.
_MAX_BYTES: Final = 4 * 1024 * 1024
#: A ``timeout`` below it was meant in seconds, or was a slip: no server answers so fast.
_LEAST_MILLISECONDS: Final = 1000
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_NAME: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_SHOWN: Final = 20
_EXPECTED: Final = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
}
_FOUND: Final[Mapping[type, str]] = {
    str: "text", list: "a list", dict: "an object", bool: "true or false", int: "a number",
    float: "a number", type(None): "null",
}  # fmt: skip
_ALIASES: Final[Mapping[str, Literal["stdio", "http", "sse"]]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}

Place: TypeAlias = tuple[str | int, ...]


class McpConfigError(tr.UsageError):
    """A config of MCP servers was refused; no server was made.

    Attributes:
      problems: one sentence for each fault, with its place.
    """

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        shown = "; ".join(self.problems[:_SHOWN])
        more = len(self.problems) - _SHOWN
        super().__init__(f"{source}: {shown}{f'; and {more} more' if more > 0 else ''}")


# --- the schema -----------------------------------------------------------------

_Seconds = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]


class _Entry(pydantic.BaseModel):
    """One server, as it is written; every text may still hold variables."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True)

    type: str | None = None
    transport: str | None = None
    command: Annotated[str, pydantic.Field(min_length=1)] | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: Annotated[str, pydantic.Field(min_length=1)] | None = None
    headers: dict[str, str] = {}
    disabled: bool = False
    required: bool = False
    timeout: int | None = None
    start_timeout: _Seconds | None = None
    call_timeout: _Seconds | None = None
    close_timeout: _Seconds | None = None
    mode: str | None = None


@attrs.frozen(kw_only=True)
class ServerConfig:
    """One server of a config, checked and expanded.

    Attributes:
      name: its key.
      kind: how it is reached.
      timeouts: those that were given, in seconds, by the name of the toolset's argument.
    """

    name: str
    kind: Literal["stdio", "http", "sse"]
    command: str = ""
    args: tuple[str, ...] = ()
    # The values may be secrets, so that they stay out of tracebacks and logs.
    env: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    cwd: str | None = None
    url: str = attrs.field(default="", repr=False)
    headers: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    required: bool = False
    timeouts: Mapping[str, float] = attrs.field(factory=dict[str, float])
    mode: str | None = None


@attrs.frozen
class Config:
    """What a config says: its servers in its order, and the names of those it disables.

    Attributes:
      source: where it was read, in words.
      key: under which the servers stand.
    """

    servers: tuple[ServerConfig, ...]
    disabled: tuple[str, ...]
    source: str = "the config"
    key: str = "mcpServers"


# --- reading --------------------------------------------------------------------


def read_config(
    source: str | os.PathLike[str] | Mapping[str, Any], env: Mapping[str, str]
) -> Config:
    """Read a file, or take what a file would hold.

    Raises:
      McpConfigError: anything is not as it should be.
      TypeError: ``source`` is neither a path nor a mapping.
    """
    if isinstance(source, Mapping):
        where, data = "the config", source
    else:
        path = os.fspath(source) if isinstance(source, os.PathLike) else source
        if type(path) is not str:
            raise TypeError(
                f"source is a {type(source).__name__}; expected the path of a JSON file, as text, "
                "or what it would hold, as a mapping"
            )
        where = f"config {path!r}"
        data = _load(Path(path), where)
    key = "servers" if "mcpServers" not in data and "servers" in data else "mcpServers"
    if key not in data:
        raise McpConfigError(
            where, [f"it has no 'mcpServers'; expected {{{key!r}: {{name: {{...}}}}}}"]
        )
    if not isinstance(data[key], Mapping):
        raise McpConfigError(where, [f"{key}: expected an object, found {_found(data[key])}"])
    reading = _Reading(key, env)
    given = cast("Mapping[object, object]", data[key])
    servers = [server for each in given.items() if (server := reading.server(*each))]
    if reading.problems:
        raise McpConfigError(where, reading.problems)
    _warn_unknown(where, reading.unknown)
    return Config(tuple(servers), tuple(reading.disabled), where, key)


def _plain(value: object) -> object:
    """An entry as strict validation takes it, with lists and objects of its own."""
    if not isinstance(value, Mapping):
        return value
    entry = dict(cast("Mapping[object, object]", value))
    for key, each in entry.items():
        match each:
            case Mapping():
                entry[key] = dict(cast("Mapping[object, object]", each))
            case list():
                entry[key] = list(cast("list[object]", each))
            case _:
                pass
    return entry


def _load(path: Path, where: str) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise McpConfigError(where, [f"cannot be read: {error.strerror or error}"]) from error
    except ValueError as error:
        raise McpConfigError(where, [f"cannot be read: no path: {error}"]) from error
    if len(raw) > _MAX_BYTES:
        raise McpConfigError(where, [f"is longer than {_MAX_BYTES} bytes"])
    try:
        data: object = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_without_doubles)
    except _DoubleKeyError as error:
        raise McpConfigError(where, [str(error)]) from None
    except UnicodeDecodeError as error:
        raise McpConfigError(where, [f"is not UTF-8 (byte {error.start})"]) from None
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise McpConfigError(where, [problem]) from None
    except RecursionError:
        raise McpConfigError(where, ["is nested too deep"]) from None
    if type(data) is not dict:
        raise McpConfigError(where, [f"holds a {type(data).__name__}; expected an object"])
    return cast("dict[str, Any]", data)


class _DoubleKeyError(ValueError):
    """A key is there twice, so that one of the two would be lost."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise _DoubleKeyError(f"the key {twice[0]!r} is there twice in one object")
    return found


# --- one server -----------------------------------------------------------------


class _Reading:
    """From entries to values; collects what is wrong with them, all of it."""

    def __init__(self, key: str, env: Mapping[str, str]) -> None:
        self._key = key
        self._env = env
        self.problems: list[str] = []
        #: Names of the servers that are switched off.
        self.disabled: list[str] = []
        #: Places of the keys that nobody knows here.
        self.unknown: list[str] = []
        #: Fields of the entry being read that are no use, as was said already.
        self._broken: frozenset[str] = frozenset()

    def server(self, name: object, given: object) -> ServerConfig | None:
        """The server, or None when it is disabled or there are problems."""
        if type(name) is not str:
            self._add((self._key,), f"expected text as a server's name, found {_found(name)}")
            return None
        at: Place = (self._key, name)
        if not name.strip():
            self._add(at, "a server needs a name; found an empty one")
        entry = self._entry(at, given)
        if entry is None:
            return None
        self.unknown += [shown_place((*at, extra)) for extra in entry.model_extra or {}]
        kind = self._kind(at, entry)
        if entry.disabled:
            self.disabled.append(name)
            return None
        shared: dict[str, Any] = {
            "name": name, "required": entry.required, "timeouts": self._timeouts(at, entry),
            "mode": self._mode(at, entry.mode),
        }  # fmt: skip
        process, page = self._process(at, entry, kind), self._page(at, entry, kind)
        if kind is None:
            return None
        return ServerConfig(kind=kind, **(process if kind == "stdio" else page), **shared)

    def _entry(self, at: Place, given: object) -> _Entry | None:
        """The entry without what is of a wrong type, so that the rest is looked at all the same."""
        self._broken = frozenset()
        plain = _plain(given)
        try:
            return _Entry.model_validate(plain)
        except pydantic.ValidationError as error:
            faults = error.errors(include_url=False)
        self.problems += [_said(each, at) for each in faults]
        if type(plain) is not dict:
            return None
        entry = cast("dict[str, Any]", plain)
        places = [each["loc"] for each in faults]
        self._broken = frozenset(str(place[0]) for place in places if len(place) == 1)
        for place in places:
            _take_out(entry, place)
        return _Entry.model_validate(entry)

    def _process(self, at: Place, entry: _Entry, kind: str | None) -> dict[str, Any]:
        argument, path, variable = (
            (options.argument_problem, options.path_problem, options.variable_problem)
            if kind == "stdio"
            else (None, None, None)
        )
        command = path if entry.command is not None else None
        return {
            "command": self._text((*at, "command"), entry.command or "", command),
            "args": tuple(
                [self._text((*at, "args", i), a, argument) for i, a in enumerate(entry.args)]
            ),
            "env": self._texts((*at, "env"), entry.env, variable),
            "cwd": None if entry.cwd is None else self._text((*at, "cwd"), entry.cwd, path),
        }

    def _page(self, at: Place, entry: _Entry, kind: str | None) -> dict[str, Any]:
        url, header = (
            (options.url_problem, options.header_problem)
            if kind in ("http", "sse")
            else (None, None)
        )
        url = url if entry.url is not None else None
        return {
            "url": self._text((*at, "url"), entry.url or "", url),
            "headers": self._texts((*at, "headers"), entry.headers, header),
        }

    def _kind(self, at: Place, entry: _Entry) -> Literal["stdio", "http", "sse"] | None:
        if self._broken & {"type", "transport"}:
            return None
        said = {entry.type, entry.transport} - {None}
        kinds = {_ALIASES.get(cast("str", one)) for one in said}
        if None in kinds or len(kinds) > 1:
            found = " and ".join(sorted(repr(one) for one in said))
            self._add((*at, "type"), f"found {found}; expected one of 'stdio', 'http', 'sse'")
            return None
        has = {name for name in ("command", "url") if getattr(entry, name) is not None}
        kind = "stdio" if "command" in has | self._broken else "http"
        if kinds:
            kind = _ALIASES[said.pop() or ""]
        needed, other = ("command", "url") if kind == "stdio" else ("url", "command")
        if needed not in has | self._broken:
            self._add(at, f"has no {needed!r}, which a {kind} server needs")
        if other in has:
            self._add((*at, other), f"a {kind} server has none; expected {needed!r} alone")
        return kind

    def _mode(self, at: Place, mode: str | None) -> str | None:
        try:
            return None if mode is None else options.checked_mode(mode)
        except ValueError as error:
            self._add((*at, "mode"), str(error))
            return None

    def _timeouts(self, at: Place, entry: _Entry) -> dict[str, float]:
        names = ("start_timeout", "call_timeout", "close_timeout")
        found = {name: each for name in names if (each := getattr(entry, name)) is not None}
        if entry.timeout is not None:
            if entry.timeout < _LEAST_MILLISECONDS:
                self._add(
                    (*at, "timeout"),
                    f"{entry.timeout} is less than a second: 'timeout' is in milliseconds, for "
                    "each call; expected 1000 or more, or 'call_timeout' in seconds",
                )
            if "call_timeout" in found:
                self._add((*at, "timeout"), "expected either 'timeout' or 'call_timeout'")
            found["call_timeout"] = entry.timeout / 1000
        return found

    def _texts(
        self, at: Place, texts: Mapping[str, str], check: Callable[[str, str], str | None] | None
    ) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, text in texts.items():
            each = None if check is None else functools.partial(check, key)
            found[key] = self._text((*at, key), text, each)
        return found

    def _text(self, at: Place, text: str, check: Callable[[str], str | None] | None) -> str:
        """``text`` with its variables expanded, once: a value is not expanded again."""
        before = len(self.problems)
        found = _VARIABLE.sub(lambda found: self._value(at, found[0], found[1]), text)
        # What could not be expanded is no fault of its own.
        known = len(self.problems) == before
        if known and check is not None and (problem := check(found)) is not None:
            self._add(at, problem)
        return found

    def _value(self, at: Place, whole: str, inside: str) -> str:
        if inside.startswith("input:"):
            self._add(at, f"{whole} asks the user of an editor; set a variable: ${{NAME}}")
            return whole
        if "${" in inside:
            self._add(at, f"{whole}: a default cannot hold a variable")
            return whole
        named = _NAME.fullmatch(inside)
        if named is None:
            return whole  # a shell's own, such as ${x%y}
        name = named[1]
        default: str | None = named[2]
        value = self._env.get(name, default)
        if value is None:
            self._add(at, f"the variable {name} is not set; set it, or write ${{{name}:-default}}")
            return whole
        return value

    def _add(self, at: Place, problem: str) -> None:
        self.problems.append(f"{shown_place(at)}: {problem}")


# --- saying where ---------------------------------------------------------------


def shown_place(place: Iterable[str | int]) -> str:
    """Return a place as ``mcpServers.git.args[1]``, odd keys in brackets and quotes."""
    shown = ""
    for part in place:
        match part:
            case int():
                shown += f"[{part}]"
            case _ if re.fullmatch(r"[A-Za-z0-9_-]+", part):
                shown += f".{part}" if shown else part
            case _:
                shown += f"[{json.dumps(part[:100])}]"
    return shown


def _said(fault: ErrorDetails, at: Place) -> str:
    """A sentence for a fault. No value is shown, since it may be a secret."""
    place = [part for part in fault["loc"] if part != "[key]"]
    expected = _EXPECTED.get(fault["type"])
    problem = (
        fault["msg"]
        if expected is None
        else f"expected {expected}, found {_found(cast('object', fault['input']))}"
    )
    return f"{shown_place((*at, *place))}: {problem}"


def _found(value: object) -> str:
    return _FOUND.get(type(value), type(value).__name__)


def _take_out(entry: dict[str, Any], place: tuple[int | str, ...]) -> None:
    """Take out what stands at ``place``; in a list the others keep their numbers."""
    field = cast("str", place[0])
    inside: object = entry[field]
    match inside, place[1:]:
        case list(), (int(number), *_):
            inside[number] = ""
        case dict(), (part, *_):
            texts = cast("dict[object, object]", inside)
            entry[field] = {key: each for key, each in texts.items() if str(key) != str(part)}
        case _:
            del entry[field]


def _warn_unknown(where: str, unknown: Sequence[str]) -> None:
    if unknown:
        more = len(unknown) - _SHOWN
        _log.warning(
            "%s: not known here and ignored: %s%s",
            where,
            ", ".join(unknown[:_SHOWN]),
            f", and {more} more" if more > 0 else "",
        )
