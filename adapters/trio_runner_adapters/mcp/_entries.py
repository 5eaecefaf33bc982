"""Resources, templates and prompts as their lists pass by: each entry judged by itself.

The SDK validates a page as a whole, so one bad entry would cost all the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import attrs
import mcp_types as m
import mcp_types.methods
import pydantic
import trio

import trio_runner_adapters.mcp._errors as errors


@attrs.frozen
class Kind:
    """One kind of list.

    Attributes:
      field: of the page, where its entries are.
      word: what one of them is called.
    """

    field: str
    word: str
    model: type[pydantic.BaseModel]


#: By the method that asks for them.
KINDS: Final[Mapping[str, Kind]] = {
    "resources/list": Kind("resources", "resource", m.ListResourcesResult),
    "resources/templates/list": Kind(
        "resourceTemplates", "resource template", m.ListResourceTemplatesResult
    ),
    "prompts/list": Kind("prompts", "prompt", m.ListPromptsResult),
}


async def judged(
    page: dict[str, Any], version: str, method: str
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return ``page`` with its good entries, and each of the others with the reason.

    The same object, when all are good, or when it is no page at all. A checkpoint for each
    entry, since there may be many.
    """
    kind = KINDS[method]
    entries = page.get(kind.field)
    if type(entries) is not list or _problem(page, version, method) is None:
        return page, []
    if _problem({**page, kind.field: []}, version, method) is not None:
        return page, []  # the SDK will say what is wrong with it
    good: list[object] = []
    left_out: list[tuple[str, str]] = []
    for entry in cast("list[object]", entries):
        await trio.lowlevel.checkpoint()
        problem = _problem({**page, kind.field: [entry]}, version, method)
        if problem is None:
            good.append(entry)
        else:
            left_out.append((_name(entry), problem))
    return {**page, kind.field: good}, left_out


def _problem(page: dict[str, Any], version: str, method: str) -> str | None:
    try:
        mcp_types.methods.validate_server_result(method, version, page)
        KINDS[method].model.model_validate(page, by_name=False)
    except Exception as error:  # noqa: BLE001 - border: whatever odd data makes a library raise
        return errors.said(error)
    return None


def _name(entry: object) -> str:
    match entry:
        case {"name": str(name)} | {"uri": str(name)} | {"uriTemplate": str(name)}:
            return errors.shortened(name, 100)
        case _:
            return "?"
