"""A tool's result as it passes by: each content block and field judged by itself. Pure.

The SDK validates a result as a whole, so one block of a kind that it does not
know would cost all the others. A part that cannot be used is replaced by a text
that says so and shows its beginning.
"""

from __future__ import annotations

import binascii
import json
import operator
from typing import Any, Final, cast

import mcp_types as m
import mcp_types.methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors

CALL_METHOD: Final = "tools/call"

_SHOWN: Final = 500  # characters of a part that cannot be used


def judged(result: dict[str, Any], version: str) -> dict[str, Any]:
    """Return ``result`` with every part that the SDK or a provider would refuse as a text.

    The same object, when there is none.
    """
    if result.get("resultType", "complete") != "complete":
        return result  # it asks for something, and has no content
    fields = dict(result)
    if version in MODERN_PROTOCOL_VERSIONS:
        fields.setdefault("resultType", "complete")  # required there; what else could it be
    notes: list[dict[str, Any]] = []
    for name, good in _FIELDS.items():
        if name in fields and fields[name] is None:
            del fields[name]  # as good as absent
        elif name in fields and type(fields[name]) is not good:
            problem = _problem({"content": [], name: fields[name]}, version)
            if problem is not None:
                notes.append(_note(f"the {name}", fields.pop(name), problem))
    content = fields.get("content", [] if "structuredContent" in fields else None)
    if type(content) is list:
        blocks = cast("list[object]", content)
        good = [_block(block, version) for block in blocks]
        if "content" in fields and fields.keys() == result.keys() and _same(good, blocks):
            return result  # as most are
        fields["content"] = good + notes
    return fields


def _same(these: list[object], those: list[object]) -> bool:
    return all(map(operator.is_, these, those))


#: Fields that may be absent, and the type that is certainly fine.
_FIELDS: Final = {"structuredContent": dict, "_meta": dict, "isError": bool}


def _block(block: Any, version: str) -> Any:
    match block:
        case {"type": "text", "text": str()} if len(cast("dict[str, Any]", block)) == 2:
            return block  # most are, and need no second look
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(mime_type)}:
            clean = "".join(data.split())  # some wrap it into lines
            if not mime_type or not clean or not _is_base64(clean):
                return _note("a content block", block, "its data or its type cannot be used")
            if clean != data:
                block = {**cast("dict[str, Any]", block), "data": clean}
        case _:
            pass
    problem = _problem({"content": [block]}, version)
    if problem is None:
        return block
    if type(block) is dict and "annotations" in block:
        # Hints only; not worth losing the block for.
        bare = dict(cast("dict[str, Any]", block))
        del bare["annotations"]
        if _problem({"content": [bare]}, version) is None:
            return bare
    return _note("a content block", cast("object", block), problem)


def _problem(part: dict[str, Any], version: str) -> str | None:
    """Why a result with this part alone would be refused, or None."""
    result = {"resultType": "complete", **part}
    try:
        mcp_types.methods.validate_server_result(CALL_METHOD, version, result)
        m.CallToolResult.model_validate(result, by_name=False)
    except Exception as error:  # noqa: BLE001 - border: whatever the SDK's models raise
        return errors.said(error)
    return None


def _is_base64(data: str) -> bool:
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return False
    return True


def _note(what: str, part: object, problem: str) -> dict[str, Any]:
    try:
        shown = json.dumps(part, ensure_ascii=False)
    except (ValueError, RecursionError):
        shown = ""
    shown = convert.valid_text(errors.shortened(shown, _SHOWN))
    return {"type": "text", "text": f"[{what} of this result cannot be used: {problem}: {shown}]"}
