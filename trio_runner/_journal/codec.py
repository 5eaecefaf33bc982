"""Records as JSON text, and back.

What may live here: how each record looks on disk. A record is one JSON object:
``v`` is the schema version, ``kind`` the record's kind, and every other member
has the name of the attribute it holds. A member that has its default value is
left out. Content blocks carry MCP's name for them as ``type``.

Loaded by `trio_runner._journal._file` alone, since cattrs and msgspec cost a
third of what trio costs to import. msgspec and not orjson: whole numbers here
may have thousands of digits.

A version is refused when it is newer than this code, and so are members that it
does not know: whatever the file holds is either understood or reported. Who
adds a field or a kind raises `SCHEMA_VERSION`, adds to `_UPGRADES`, and says in
`_SINCE` which kinds look as they do since then. A record is written with the
version since which its kind looks so: an older reader reads on as long as a
session holds what it knows, and refuses the first record that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

import attrs
import cattrs
import cattrs.gen
import msgspec

import trio_runner._core.plain_data as plain_data
import trio_runner._core.records as r
import trio_runner._core.values as v
import trio_runner._journal.faults as faults

#: The newest that `encode_record` writes; `decode_record` reads this and everything older.
SCHEMA_VERSION: Final = 3

Tree: TypeAlias = dict[str, Any]

#: From version n to n + 1: what an old record lacks or spells differently.
_UPGRADES: Final[Mapping[int, Callable[[Tree], Tree]]] = {
    1: lambda tree: tree,  # 2 added kinds, and changed none
    2: lambda tree: tree,  # so did 3, and added a field that may be absent: Compacted.kept
}

#: Never renamed: files hold these words.
_KINDS: Final[Mapping[str, type[Any]]] = {
    "session_opened": r.SessionOpened,
    "turn_started": r.TurnStarted,
    "model_finished": r.ModelFinished,
    "tool_started": r.ToolStarted,
    "tool_finished": r.ToolFinished,
    "input_added": r.InputAdded,
    "call_held": r.CallHeld,
    "call_edited": r.CallEdited,
    "call_approved": r.CallApproved,
    "answer_refused": r.AnswerRefused,
    "passed_through": r.PassedThrough,
    "history_replaced": r.HistoryReplaced,
    "compacted": r.Compacted,
    "trimmed": r.Trimmed,
    "turn_ended": r.TurnEnded,
}
#: The version since which a kind looks as it does; 1 for those that are not here.
_SINCE: Final[Mapping[str, int]] = {
    "compacted": 2,
    "trimmed": 2,
    "call_held": 3,
    "call_edited": 3,
    "call_approved": 3,
    "answer_refused": 3,
    "passed_through": 3,
}
_BLOCK_TYPES: Final[Mapping[str, type[Any]]] = {
    "text": v.TextContent,
    "image": v.ImageContent,
    "audio": v.AudioContent,
    "resource_link": v.ResourceLink,
    "resource": v.EmbeddedResource,
}
#: Characters of a wrong value that a message shows.
_SHOWN: Final = 100
_KIND_OF: Final[Mapping[type[Any], str]] = {kind: name for name, kind in _KINDS.items()}
_TYPE_OF: Final[Mapping[type[Any], str]] = {kind: name for name, kind in _BLOCK_TYPES.items()}

#: Fields that hold plain JSON: taken as it stands, both ways.
_JSON_FIELDS: Final = frozenset(
    {"annotations", "meta", "resource_meta", "icons", "structured_content", "arguments"}
)

#: Those of them that hold an object, or nothing.
_OBJECT_FIELDS: Final = _JSON_FIELDS - {"icons", "structured_content"}


def encode_record(record: r.Record) -> bytes:
    """The record as one line of JSON (UTF-8, no line break inside).

    Total: a value that is no plain JSON, which the boundary of the library
    keeps out, is written as near as can be (a marker, or null for NaN) rather than
    refused, since one record that cannot be written would block all that follow it.
    """
    kind = _KIND_OF[type(record)]
    since = _SINCE.get(kind, 1)
    match record:
        case r.Compacted(kept=kept) if kept:
            since = 3  # without it the record means what it meant in version 2
        case _:
            pass
    tree: Tree = {"v": since, "kind": kind, **_CONVERTER.unstructure(record)}
    try:
        return msgspec.json.encode(tree)
    except (TypeError, ValueError, RecursionError):  # a lone surrogate is a ValueError
        return msgspec.json.encode(plain_data.Conversion().part(tree))


def decode_record(body: bytes) -> r.Record:
    """The record that `encode_record` wrote as ``body``.

    Raises:
      JournalFormatError: its schema version is newer than `SCHEMA_VERSION`.
      ValueError: ``body`` is not what any version wrote.
    """
    tree = _tree_of(body)
    version = tree.pop("v", None)
    if type(version) is not int or version < 1:
        raise ValueError(f"found the schema version {version!r}; expected a whole number from 1")
    if version > SCHEMA_VERSION:
        raise faults.JournalFormatError(
            f"found a record of schema version {version}; this version of trio_runner reads up to "
            f"{SCHEMA_VERSION}. Use the version that wrote it, or a newer one"
        )
    for older in range(version, SCHEMA_VERSION):
        tree = _UPGRADES[older](tree)
    kind = tree.pop("kind", None)
    if type(kind) is not str or kind not in _KINDS:
        raise ValueError(f"found the kind {kind!r}; expected one of {', '.join(_KINDS)}")
    try:
        return _CONVERTER.structure(tree, _KINDS[kind])
    except Exception as error:
        # cattrs raises groups of what it found, and the classes raise what they like.
        raise ValueError(f"found a {kind} record that is not whole: {error!r}") from error


def decode_exactly(body: bytes) -> r.Record:
    """The record of ``body``, which may be anybody's: no value is taken for another one.

    `decode_record` is for what `encode_record` wrote, and takes ``"7"`` for 7.

    Raises:
      JournalFormatError, ValueError: as `decode_record`; or a value is of another type.
    """
    record = decode_record(body)
    given, made = _tree_of(body), _WHOLE.unstructure(record)
    for name in given.keys() - {"v", "kind"}:
        if not _is_same(given[name], made[name]):
            raise ValueError(
                f"found {name} = {str(given[name])[:_SHOWN]!r}, which is of the wrong type"
            )
    return record


def _is_same(given: Any, made: Any) -> bool:
    """Whether every member of ``given`` is in ``made``, with its type; 1.0 is 1."""
    match given, made:
        case dict(), dict():
            return all(
                name in made and _is_same_member(name, value, made[name])
                for name, value in cast("Tree", given).items()
            )
        case list(), list() | tuple():
            items, others = cast("list[Any]", given), cast("list[Any]", made)
            return len(items) == len(others) and all(map(_is_same, items, others))
        case (bool(), _) | (_, bool()):
            return given is made
        case _:
            return given == made


def _is_same_member(name: str, given: Any, made: Any) -> bool:
    # Plain JSON is taken as it stands, so only its own type is to be looked at.
    if name in _OBJECT_FIELDS:
        return given is None or type(given) is dict
    return name in _JSON_FIELDS or _is_same(given, made)


def _tree_of(body: bytes) -> Tree:
    try:
        tree: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"found what is no JSON: {error}") from error
    if type(tree) is not dict:
        raise ValueError(f"found a JSON {type(tree).__name__}; expected an object")
    return cast("Tree", tree)


# --- how cattrs does it ---------------------------------------------------------


def _as_it_is(value: Any, _: object = None) -> Any:
    return value


def _tuple_of_objects(value: Any, _: object = None) -> Any:
    return None if value is None else tuple(value)


def _overrides(cls: type[Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.name in _JSON_FIELDS:
            structure = _tuple_of_objects if field.name == "icons" else _as_it_is
            chosen[field.name] = cattrs.gen.override(unstruct_hook=_as_it_is, struct_hook=structure)
    return chosen


def _make_converter(*, leave_out_defaults: bool = True) -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    # The public classes name `trio_runner` as their module, where their annotations mean nothing.
    names = {**vars(v), "v": v, "JSONValue": Any, "JSONObject": Tree}
    for cls in (*_BLOCK_TYPES.values(), v.Usage, v.ToolCall, v.ToolResult, v.Message):
        attrs.resolve_types(cls, globalns=names)
    for cls in _KINDS.values():
        attrs.resolve_types(cls, globalns={**vars(r), **names})
    for cls in (v.Usage, v.ToolCall, *_BLOCK_TYPES.values()):
        _register(converter, cls, leave_out_defaults)
    converter.register_unstructure_hook(v.ContentBlock, _block_unstructurer(converter))
    converter.register_structure_hook(v.ContentBlock, _block_structurer(converter))
    for cls in (v.ToolResult, v.Message, *_KINDS.values()):
        _register(converter, cls, leave_out_defaults)
    return converter


def _register(converter: cattrs.Converter, cls: type[Any], leave_out_defaults: bool) -> None:
    overrides = _overrides(cls)
    converter.register_unstructure_hook(
        cls,
        cattrs.gen.make_dict_unstructure_fn(
            cls, converter, _cattrs_omit_if_default=leave_out_defaults, **overrides
        ),
    )
    converter.register_structure_hook(
        cls,
        cattrs.gen.make_dict_structure_fn(
            cls,
            converter,
            _cattrs_forbid_extra_keys=True,
            _cattrs_detailed_validation=False,
            **overrides,
        ),
    )


def _block_unstructurer(converter: cattrs.Converter) -> Callable[[Any], Tree]:
    def unstructure(block: Any) -> Tree:
        return {"type": _TYPE_OF[type(block)], **converter.unstructure(block)}

    return unstructure


def _block_structurer(converter: cattrs.Converter) -> Callable[[Any, object], Any]:
    def structure(tree: Any, _: object) -> Any:
        fields = dict(tree)
        return converter.structure(fields, _BLOCK_TYPES[fields.pop("type")])

    return structure


_CONVERTER: Final = _make_converter()
#: Writes every member, to compare with what somebody gave.
_WHOLE: Final = _make_converter(leave_out_defaults=False)
