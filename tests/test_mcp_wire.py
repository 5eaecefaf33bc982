"""What stands between the wire and the SDK, with a server that is a function of its requests."""

import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import mcp_types as m
import pytest
import trio
import trio.testing
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

import trio_runner as tr
from trio_runner.testing import Case, sweep
from trio_runner_adapters.mcp import McpToolset
from trio_runner_adapters.mcp._connection import OnEnd
from trio_runner_adapters.mcp._listing import ListingFilter
from trio_runner_adapters.mcp._wire import LostAnswerError, Wire

OBJECT = {"type": "object"}
Answer = dict[str, Any] | Exception
#: What the server writes when it gets a request: messages without their version.
Server = Callable[[m.JSONRPCRequest], Sequence[Answer]]


class Link:
    """Both streams of the transport, and the server behind them."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sent: list[Any] = []
        self.sending, self.receiving = trio.open_memory_channel[SessionMessage | Exception](
            math.inf
        )

    async def __aenter__(self) -> tuple["Link", "Link"]:
        return self, self

    async def __aexit__(self, *error: object) -> None:
        await self.leaving()

    async def leaving(self) -> None:
        pass

    def write(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                self.sending.send_nowait(answer)
            else:
                message = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **answer})
                self.sending.send_nowait(SessionMessage(message))

    async def send(self, item: SessionMessage, /) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(item.message)
        match item.message:
            case m.JSONRPCRequest(id=request_id, method="initialize"):
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "0"},
                }
                self.write([{"id": request_id, "result": result}])
            case m.JSONRPCRequest() as request:
                self.write(self.server(request))
            case _:
                pass

    async def receive(self) -> SessionMessage | Exception:
        return await self.__anext__()

    def __aiter__(self) -> "Link":
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return self.receiving.receive_nowait()  # no checkpoint, like what came in one piece
        except trio.WouldBlock:
            return await self.receiving.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        pass

    async def how_it_ended(self) -> str:
        return "ended"

    def last_words(self) -> str:
        return ""


@attrs.define
class Connector:
    server: Server
    close_timeout: float = 5.0
    links: list[Link] = attrs.Factory(list[Link])
    open: int = 0

    @asynccontextmanager
    async def connect(self, name: str, on_end: OnEnd) -> AsyncGenerator[Link]:
        self.links.append(Link(self.server))
        self.open += 1
        try:
            await trio.lowlevel.checkpoint()
            yield self.links[-1]
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5.0):
                await trio.lowlevel.checkpoint()
            self.open -= 1


def toolset(server: Server) -> McpToolset:
    connector: Any = Connector(server)
    return McpToolset(
        connector,
        name="s",
        start_timeout=5.0,
        call_timeout=None,
        mode="legacy",
        prefix=None,
    )


def link_of(made: McpToolset) -> Link:
    connector: Any = made._upkeep._connector
    return connector.links[-1]


def text(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": one} for one in texts], **fields}


def tool(name: str, schema: Any = OBJECT, **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, **fields}


def serving(call: Server, *tools: dict[str, Any], string_ids: bool = False) -> Server:
    """A server that lists tools, and answers calls as told."""

    def serve(request: m.JSONRPCRequest) -> Sequence[Answer]:
        if request.method == "tools/call":
            return call(request)
        listed = list(tools or [tool("echo")])
        request_id = str(request.id) if string_ids else request.id
        return [{"id": request_id, "result": {"tools": listed}}]

    return serve


def echo(request: m.JSONRPCRequest) -> Sequence[Answer]:
    return [{"id": request.id, "result": text("kept", structuredContent={"a": 1})}]


class Context:
    def __init__(self) -> None:
        self.progress: list[float] = []

    def report_progress(self, progress: float, *_: object) -> None:
        self.progress.append(progress)


async def call(made: McpToolset, name: str = "echo", context: Any = None) -> tr.ToolResult:
    tools = {one.name: one for one in await made.list_tools()}
    context = context or Context()
    result: Any = await tools[name].call({}, context)
    return result


# --- lists ----------------------------------------------------------------------


async def test_of_two_tools_with_one_name_the_first_is_used_whole_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict = {"type": "object", "required": ["zz"]}
    made = toolset(serving(echo, tool("echo", title="1"), tool("echo", outputSchema=strict)))
    async with made:
        (only,) = await made.list_tools()
        assert (only.title, only.output_schema) == ("1", None)
        assert (await call(made)).status == "ok"
    assert "'echo' left out: another tool of that name comes before it" in caplog.text


async def test_a_server_that_answers_with_its_ids_as_text_is_filtered_like_any_other() -> None:
    strict = {"type": "object", "required": ["zz"]}
    tools = tool("echo", outputSchema=strict), tool("bad", {"type": "string"})
    made = toolset(serving(echo, *tools, string_ids=True))
    async with made:
        assert [one.name for one in await made.list_tools()] == ["echo"]
        result = await call(made)
    assert (result.status, result.content[1:]) == ("error", (tr.TextContent("kept"),))


@pytest.mark.parametrize("odd", [5, ["x"], {}, "http://[bad"])
@pytest.mark.parametrize("where", ["inputSchema", "outputSchema"])
async def test_kD11_a_tool_with_an_odd_schema_loses_no_other(odd: Any, where: str) -> None:
    bad = {**tool("bad"), where: {"type": "object", "$schema": odd}}
    made = toolset(serving(echo, bad, tool("echo")))
    async with made:
        assert "echo" in {one.name for one in await made.list_tools()}
        assert (await call(made)).status == "ok"


async def test_whatever_a_tool_makes_the_look_at_it_raise_it_is_left_out_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = ListingFilter._entry

    def broken(self: ListingFilter, entry: Any, *rest: Any) -> Any:
        if entry["name"] == "bad":
            raise ZeroDivisionError("odd data")
        return real(self, entry, *rest)

    monkeypatch.setattr(ListingFilter, "_entry", broken)
    listing = ListingFilter()
    page = await listing.judged({"tools": [tool("bad"), tool("echo")]}, "2025-11-25")
    assert [one["name"] for one in page["tools"]] == ["echo"]
    (left_out,) = listing.take_left_out()
    assert left_out.reason == "ZeroDivisionError: odd data"


async def test_looking_at_many_tools_lets_others_run_and_can_be_cancelled() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    tools = [tool(f"t{n}") for n in range(300)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        page = await ListingFilter().judged({"tools": tools}, "2025-11-25")
        nursery.cancel_scope.cancel()
    assert len(page["tools"]) == 300
    assert turns >= 200
    with trio.move_on_after(0) as scope:
        await ListingFilter().judged({"tools": tools}, "2025-11-25")
    assert scope.cancelled_caught


async def test_a_page_of_too_many_tools_is_cut_and_what_is_said_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trio_runner_adapters.mcp._listing.MAX_TOOLS", 3)
    bad = [tool(f"bad{n}", {"type": "string"}) for n in range(200)]
    made = toolset(serving(echo, *bad, *[tool(f"t{n}") for n in range(9)]))
    async with made:
        assert [one.name for one in await made.list_tools()] == ["t0", "t1", "t2"]
    assert len(caplog.records) == 51
    assert "151 more tools left out" in caplog.text


async def test_two_walks_through_the_list_do_not_disturb_each_other() -> None:
    filtering = ListingFilter()
    pages = [{"tools": [tool("a")], "nextCursor": "p"}, {"tools": [tool("b"), tool("a")]}]

    async def judged(page: dict[str, Any], cursor: str | None) -> list[str]:
        found = await filtering.judged(page, "2025-11-25", cursor)
        return [each["name"] for each in found["tools"]]

    assert await judged(pages[0], None) == ["a"]
    assert await judged({"tools": [tool("b")]}, None) == ["b"]  # another walk, in between
    assert await judged(pages[1], "p") == ["b"]  # this walk has had its "a"
    assert [one.tool for one in filtering.take_left_out()] == ["a"]


async def test_a_tool_that_loses_its_output_schema_has_none() -> None:
    filtering = ListingFilter()
    await filtering.judged({"tools": [tool("a", outputSchema=OBJECT)]}, "2025-11-25")
    assert filtering.output_schemas == {"a": OBJECT}
    await filtering.judged({"tools": [tool("a")]}, "2025-11-25")
    assert filtering.output_schemas == {}


CHANGED = {"method": "notifications/tools/list_changed"}


def changing(outcomes: Sequence[Any]) -> tuple[McpToolset, list[str]]:
    """A toolset whose server answers each look at its list with the next of ``outcomes``."""
    asked: list[str] = []

    def server(request: m.JSONRPCRequest) -> Sequence[Answer]:
        if request.method != "tools/list":
            return echo(request)
        asked.append(request.method)
        outcome = outcomes[min(len(asked), len(outcomes)) - 1]
        return [] if outcome is None else [{"id": request.id, **outcome}]

    return toolset(server), asked


def listing_of(*names: str) -> dict[str, Any]:
    return {"result": {"tools": [tool(name) for name in names]}}


async def listed(made: McpToolset) -> list[str]:
    return [each.name for each in await made.list_tools()]


async def change(made: McpToolset) -> None:
    link_of(made).write([CHANGED])
    await trio.testing.wait_all_tasks_blocked()


async def test_a_changed_list_is_read_once_however_many_look() -> None:
    made, asked = changing([listing_of("a"), listing_of("a", "b"), listing_of("c")])
    seen: list[list[str]] = []
    async with made:
        before = await made.list_tools()
        await change(made)
        await change(made)
        assert len(asked) == 1  # nobody has looked

        async def look() -> None:
            seen.append(await listed(made))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(look)
        assert (seen, len(asked)) == ([["a", "b"]] * 5, 2)
        assert await made.list_tools() is not before
        assert await made.list_tools() is await made.list_tools()


async def test_a_list_that_was_said_to_change_and_did_not_is_the_same_tuple() -> None:
    made, asked = changing([listing_of("a"), listing_of("a")])
    async with made:
        before = await made.list_tools()
        await change(made)
        assert await made.list_tools() is before
    assert len(asked) == 2


async def test_a_refresh_that_fails_keeps_the_old_list_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = {"error": {"code": -32603, "message": "not now"}}
    made, _ = changing([listing_of("a"), broken, {"result": {"tools": 7}}, listing_of("b")])
    async with made:
        before = await made.list_tools()
        await change(made)
        assert await made.list_tools() is before
        assert await made.list_tools() is before  # it is tried again, and is malformed
        assert await listed(made) == ["b"]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all("'s'" in each and "the old one stays" in each for each in said)
    assert "not now" in said[0]


async def test_a_refresh_that_hangs_is_bounded_and_a_cancelled_look_harms_nobody(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    made, asked = changing([listing_of("a"), None, listing_of("b")])
    async with made:
        before = await made.list_tools()
        await change(made)
        with trio.move_on_after(1.0) as scope:
            await made.list_tools()
        assert scope.cancelled_caught
        start = trio.current_time()
        assert await made.list_tools() is before
        assert trio.current_time() - start <= 10.0
        assert "more than 10 seconds" in caplog.text
        assert await made.list_tools() is before  # a server that hangs is not asked each time
        await change(made)
        assert await listed(made) == ["b"]
    assert len(asked) == 3


async def test_the_tools_of_a_former_list_call_as_before() -> None:
    made, _ = changing([listing_of("a"), listing_of("b")])
    async with made:
        (former,) = await made.list_tools()
        await change(made)
        assert await listed(made) == ["b"]
        context: Any = None
        result = await former.call({}, context)
        assert isinstance(result, tr.ToolResult)
        assert result.text == "kept"


# --- answers --------------------------------------------------------------------


async def test_a_lost_answer_ends_every_call_in_flight_with_an_error() -> None:
    waiting: list[m.JSONRPCRequest] = []

    def losing(request: m.JSONRPCRequest) -> Sequence[Answer]:
        waiting.append(request)
        return [LostAnswerError("not JSON")] if len(waiting) == 2 else []

    made = toolset(serving(losing))
    said: list[str] = []

    async def failing() -> None:
        with pytest.raises(tr.ToolError) as caught:
            await call(made)
        said.append(str(caught.value))

    with trio.fail_after(10):
        async with made, trio.open_nursery() as nursery:
            nursery.start_soon(failing)
            nursery.start_soon(failing)
    assert len(said) == 2
    assert all("not JSON; it does not say to which call" in each for each in said)


async def test_a_lost_answer_is_not_blamed_on_calls_that_are_over() -> None:
    made = toolset(serving(echo))
    async with made:
        await call(made)
        link_of(made).write([LostAnswerError("not JSON")])
        await trio.testing.wait_all_tasks_blocked()
        assert (await call(made)).status == "ok"


async def test_a_block_that_the_sdk_does_not_know_costs_no_other() -> None:
    def odd(request: m.JSONRPCRequest) -> Sequence[Answer]:
        result = text("good")
        result["content"].append({"type": "video", "data": "x"})
        return [{"id": request.id, "result": result}]

    made = toolset(serving(odd))
    async with made:
        result = await call(made)
    first, second = result.content
    assert first == tr.TextContent("good")
    assert "video" in result.text
    assert type(second) is tr.TextContent


async def test_a_schema_that_cannot_be_evaluated_passes_the_result_on_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    endless = {"type": "object", "allOf": [{"$ref": "#"}]}
    made = toolset(serving(echo, tool("echo", outputSchema=endless)))
    async with made:
        for _ in range(3):
            result = await call(made)
            assert (result.status, result.text) == ("ok", "kept")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "'s', tool 'echo'" in said
    assert "without a check" in said


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        (-32000, "licence expired", "licence expired (code -32000)"),
        (1, "  ", "no message (code 1)"),
    ],
)
async def test_a_servers_own_error_is_told_in_its_words(code: int, message: str, said: str) -> None:
    def refusing(request: m.JSONRPCRequest) -> Sequence[Answer]:
        return [{"id": request.id, "error": {"code": code, "message": message}}]

    made = toolset(serving(refusing))
    async with made:
        with pytest.raises(tr.ToolError) as caught:
            await call(made)
    assert said in str(caught.value)


async def test_the_sdks_word_for_a_lost_connection_counts_as_one() -> None:
    def refusing(request: m.JSONRPCRequest) -> Sequence[Answer]:
        error = {"code": -32000, "message": "Connection closed"}
        return [{"id": request.id, "error": error}]

    made = toolset(serving(refusing))
    async with made:
        result = await call(made)
    assert result.status == "interrupted"
    assert "not known whether the tool finished" in result.text


async def test_progress_that_comes_with_its_answer_is_complete_and_in_order() -> None:
    def progressing(request: m.JSONRPCRequest) -> Sequence[Answer]:
        token = (request.params or {})["_meta"]["progressToken"]
        told = [{"progressToken": token, "progress": n} for n in range(20)]
        notices = [{"method": "notifications/progress", "params": each} for each in told]
        return [*notices, *echo(request)]

    made = toolset(serving(progressing))
    async with made:
        for _ in range(10):
            context = Context()
            await call(made, context=context)
            assert context.progress == list(range(20))


# --- the server's own requests ---------------------------------------------------


async def test_a_flood_of_requests_is_answered_and_piles_up_no_tasks() -> None:
    made = toolset(serving(echo))
    async with made:
        before = trio.lowlevel.current_statistics().tasks_living
        link = link_of(made)
        link.write([{"id": n, "method": "ping"} for n in range(1000)])
        most = 0
        while sum(type(one) is m.JSONRPCResponse for one in link.sent) < 1000:
            await trio.lowlevel.checkpoint()
            most = max(most, trio.lowlevel.current_statistics().tasks_living - before)
        assert most < 20


async def test_requests_of_a_server_that_takes_no_answers_are_dropped_beyond_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = toolset(serving(echo))
    async with made:
        before = trio.lowlevel.current_statistics().tasks_living
        link = link_of(made)
        real, reads = link.send, trio.Event()

        async def stuck(item: SessionMessage, /) -> None:
            if type(item.message) is m.JSONRPCResponse:
                await reads.wait()
            await real(item)

        link.send = stuck
        link.write([{"id": n, "method": "ping"} for n in range(500)])
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living - before <= 101
        assert (await call(made)).status == "ok"
        reads.set()
        await trio.testing.wait_all_tasks_blocked()
        assert sum(type(one) is m.JSONRPCResponse for one in link.sent) == 100
        link.write([{"id": 1, "method": "ping"}])  # there is room again
        await trio.testing.wait_all_tasks_blocked()
        assert sum(type(one) is m.JSONRPCResponse for one in link.sent) == 101
    assert len([one for one in caplog.records if "some are dropped" in one.getMessage()]) == 1


async def test_requests_that_the_server_takes_back_do_not_count() -> None:
    wire = Wire("s")
    pings = [m.JSONRPCRequest(jsonrpc="2.0", id=number, method="ping") for number in range(101)]
    for ping in pings[:100]:
        assert await wire.received(ping) is ping
    assert await wire.received(pings[100]) is None
    cancel = m.JSONRPCNotification(
        jsonrpc="2.0", method="notifications/cancelled", params={"requestId": "7"}
    )
    assert await wire.received(cancel) is cancel
    assert await wire.received(pings[100]) is pings[100]


async def test_leaving_the_sdk_is_bounded_before_the_process_is_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made = toolset(serving(echo))
    await made.__aenter__()
    link_of(made).leaving = trio.sleep_forever
    start = trio.current_time()
    await made.__aexit__(None, None, None)
    assert trio.current_time() - start == pytest.approx(1.0)
    assert made._upkeep.current is None


# --- lives ----------------------------------------------------------------------


def test_a_toolset_that_a_run_ended_without_leaving_can_be_used_by_the_next() -> None:
    made = toolset(serving(echo))

    async def unleft() -> None:
        await made.__aenter__()

    async def used() -> str:
        async with made:
            return (await call(made)).text

    trio.run(unleft)
    assert trio.run(used) == "kept"
    assert made._upkeep.current is None


def test_a_ctrl_c_while_it_closes_waits_for_the_close(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    def two_users() -> Case:
        made = toolset(serving(echo))
        connector: Any = made._upkeep._connector

        async def use() -> None:
            async with made:
                await made.list_tools()

        async def run() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(use)
                await use()
                await use()

        def check(_: object) -> Iterator[str]:
            if connector.open or made._upkeep.current is not None:
                yield "the connection was left open"

        return Case(run=run, check=check, leaves_within=12.0, raises_cancel=False)

    report = sweep(two_users, seeds=range(1), strict_groups=False)
    assert report.failures == ()
    assert report.positions > 0
