"""Lists of resources, templates and prompts in which an entry is bad."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import trio

from trio_runner_adapters.mcp._entries import KINDS, judged
from trio_runner_adapters.mcp._listing import ListingFilter
from trio_runner_adapters.mcp._wire import Wire

GOOD: dict[str, Any] = {
    "resources/list": {"uri": "file:///a", "name": "a"},
    "resources/templates/list": {"uriTemplate": "file:///{a}", "name": "a"},
    "prompts/list": {"name": "a", "arguments": [{"name": "x"}]},
}
VERSIONS = ("2025-11-25", "2026-07-28")
METHODS = pytest.mark.parametrize("method", sorted(GOOD))
ALL_VERSIONS = pytest.mark.parametrize("version", VERSIONS)


def page_of(method: str, *entries: Any) -> dict[str, Any]:
    cached = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
    return {**cached, KINDS[method].field: list(entries), "nextCursor": "2"}


@METHODS
@ALL_VERSIONS
async def test_a_good_page_is_left_as_it_is(method: str, version: str) -> None:
    page = page_of(method, GOOD[method], GOOD[method])
    assert await judged(page, version, method) == (page, [])
    assert (await judged(page, version, method))[0] is page


@METHODS
@ALL_VERSIONS
@pytest.mark.parametrize("bad", [3, None, [], {}, {"name": 7}, {"name": "bad", "title": []}])
async def test_a_bad_entry_costs_no_other(method: str, version: str, bad: Any) -> None:
    page = page_of(method, GOOD[method], bad, GOOD[method])
    before = copy.deepcopy(page)
    found, left_out = await judged(page, version, method)
    assert found == page_of(method, GOOD[method], GOOD[method])
    [(name, reason)] = left_out
    assert name == ("bad" if bad == {"name": "bad", "title": []} else "?")
    assert reason
    assert page == before


@METHODS
@pytest.mark.parametrize("page", [{}, {"nextCursor": 3}, None])
async def test_what_is_no_page_is_for_the_sdk_to_refuse(method: str, page: Any) -> None:
    whole = {**page_of(method, 3), **page} if page else {KINDS[method].field: 3}
    assert await judged(whole, VERSIONS[0], method) == (whole, [])


async def test_very_many_bad_entries_hold_up_nobody() -> None:
    steps = 0

    async def beside() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beside)
        await judged(page_of("prompts/list", *[3] * 50), VERSIONS[0], "prompts/list")
        nursery.cancel_scope.cancel()
    assert steps >= 40


def test_what_is_left_out_is_said_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Wire("srv")._say_left_out("prompt", [(str(number), "odd") for number in range(52)])
    assert caplog.messages[0] == "MCP server 'srv', prompt '0' left out: odd"
    assert caplog.messages[-1] == "MCP server 'srv': 2 more of it left out"
    assert len(caplog.messages) == 51


HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "x-mcp-header": "not a token"}},
}


async def test_a_tool_with_bad_header_annotations_is_left_out_with_the_reason() -> None:
    good = {"name": "good", "inputSchema": {"type": "object"}}
    page = {
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "public",
        "tools": [{"name": "bad", "inputSchema": HEADERS}, good],
    }
    listing = ListingFilter()
    found = await listing.judged(page, "2026-07-28")
    assert [each["name"] for each in found["tools"]] == ["good"]
    [left_out] = listing.take_left_out()
    assert left_out.tool == "bad"
    assert left_out.reason.startswith("its header annotations cannot be used: property 'a'")
    # The older protocol knows no such thing.
    older = await ListingFilter().judged(page, "2025-11-25")
    assert [each["name"] for each in older["tools"]] == ["bad", "good"]
