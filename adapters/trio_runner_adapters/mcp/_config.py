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

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import attrs
import pydantic

import trio_runner as tr

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
_ALIASES: Final = {
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


class _File(pydantic.BaseModel):
    """The whole file."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True)

    servers: dict[str, _Entry]


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
    """What a config says: its servers in its order, and the names of those it disables."""

    servers: tuple[ServerConfig, ...]
    disabled: tuple[str, ...]


# --- reading --------------------------------------------------------------------


def read_config(
    source: str | os.PathLike[str] | Mapping[str, Any], env: Mapping[str, str]
) -> Config:
    """Read a file, or take what a file would hold.

    Raises:
      McpConfigError: anything is not as it should be.
    """
    if isinstance(source, Mapping):
        where, data = "the config", source
    else:
        where = f"config {os.fspath(source)!r}"
        data = _load(Path(source), where)
    key = "servers" if "mcpServers" not in data and "servers" in data else "mcpServers"
    if key not in data:
        raise McpConfigError(
            where, [f"it has no 'mcpServers'; expected {{{key!r}: {{name: {{...}}}}}}"]
        )
    try:
        file = _File.model_validate({"servers": _plain(data[key])})
    except pydantic.ValidationError as error:
        raise McpConfigError(where, _said(error, key)) from None
    reading = _Reading(key, env)
    servers = [
        server for name, entry in file.servers.items() if (server := reading.server(name, entry))
    ]
    if reading.problems:
        raise McpConfigError(where, reading.problems)
    _warn_unknown(where, key, file)
    disabled = [name for name, entry in file.servers.items() if entry.disabled]
    return Config(tuple(servers), tuple(disabled))


def _plain(value: object) -> object:
    """Mappings as dicts, two levels down: strict validation takes nothing else."""
    if not isinstance(value, Mapping):
        return value
    mapping = cast("Mapping[Any, Any]", value)
    return {
        key: dict(cast("Mapping[Any, Any]", entry)) if isinstance(entry, Mapping) else entry
        for key, entry in mapping.items()
    }


def _load(path: Path, where: str) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise McpConfigError(where, [f"cannot be read: {error.strerror or error}"]) from error
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
    """From entries to values; collects what is wrong."""

    def __init__(self, key: str, env: Mapping[str, str]) -> None:
        self._key = key
        self._env = env
        self.problems: list[str] = []

    def server(self, name: str, entry: _Entry) -> ServerConfig | None:
        """The server, or None when it is disabled or there are problems."""
        at: Place = (self._key, name)
        if not name.strip():
            self._add(at, "a server needs a name; found an empty one")
        kind = self._kind(at, entry)
        if entry.disabled or kind is None:
            return None
        timeouts = self._timeouts(at, entry)
        shared: dict[str, Any] = {
            "name": name, "kind": kind, "required": entry.required, "timeouts": timeouts,
            "mode": entry.mode,
        }  # fmt: skip
        if kind == "stdio":
            return ServerConfig(
                command=self._text((*at, "command"), entry.command or ""),
                args=tuple([self._text((*at, "args", i), a) for i, a in enumerate(entry.args)]),
                env=self._texts((*at, "env"), entry.env),
                cwd=None if entry.cwd is None else self._text((*at, "cwd"), entry.cwd),
                **shared,
            )
        return ServerConfig(
            url=self._text((*at, "url"), entry.url or ""),
            headers=self._texts((*at, "headers"), entry.headers),
            **shared,
        )

    def _kind(self, at: Place, entry: _Entry) -> str | None:
        said = {entry.type, entry.transport} - {None}
        kinds = {_ALIASES.get(cast("str", one)) for one in said}
        if None in kinds or len(kinds) > 1:
            found = " and ".join(sorted(repr(one) for one in said))
            self._add((*at, "type"), f"found {found}; expected one of 'stdio', 'http', 'sse'")
            return None
        implied = "stdio" if entry.command is not None else "http"
        kind = cast("str", kinds.pop()) if kinds else implied
        needed, other = ("command", "url") if kind == "stdio" else ("url", "command")
        if getattr(entry, needed) is None:
            self._add(at, f"has no {needed!r}, which a {kind} server needs")
        if getattr(entry, other) is not None:
            self._add((*at, other), f"a {kind} server has none; expected {needed!r} alone")
        return kind

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

    def _texts(self, at: Place, texts: Mapping[str, str]) -> dict[str, str]:
        return {key: self._text((*at, key), text) for key, text in texts.items()}

    def _text(self, at: Place, text: str) -> str:
        """``text`` with its variables expanded, once: a value is not expanded again."""
        return _VARIABLE.sub(lambda found: self._value(at, found[0], found[1]), text)

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


def _said(error: pydantic.ValidationError, key: str) -> list[str]:
    """A sentence for each fault. No value is shown, since it may be a secret."""
    problems: list[str] = []
    for each in error.errors(include_url=False):
        place = [part for part in each["loc"] if part != "[key]"]
        kind: type = type(cast("object", each["input"]))
        found = _FOUND.get(kind, kind.__name__)
        expected = _EXPECTED.get(each["type"])
        problem = each["msg"] if expected is None else f"expected {expected}, found {found}"
        problems.append(f"{shown_place([key, *place[1:]])}: {problem}")
    return problems


def _warn_unknown(where: str, key: str, file: _File) -> None:
    unknown = [
        shown_place((key, name, extra))
        for name, entry in file.servers.items()
        for extra in entry.model_extra or {}
    ]
    if unknown:
        more = len(unknown) - _SHOWN
        _log.warning(
            "%s: not known here and ignored: %s%s",
            where,
            ", ".join(unknown[:_SHOWN]),
            f", and {more} more" if more > 0 else "",
        )
