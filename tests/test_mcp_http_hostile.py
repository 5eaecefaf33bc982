"""`McpToolset.http` against servers written by hand on real sockets, which misbehave as told.

The server runs in the test's own trio run, so a test can tell it what to do and
look at what it was asked. All tests of it stand in this one file, since tests import
nothing of each other.
"""

import json
import logging
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import pytest
import trio

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._http as http
from trio_runner.testing import ScriptedModel
from trio_runner_adapters.mcp import Callbacks, LogLevel, McpServerError, McpToolset

#: Seconds after which a test takes something for hanging.
LONG = 30.0
TOOL = {"name": "do", "inputSchema": {"type": "object"}}


@attrs.define(eq=False)
class Exchange:
    """One HTTP request and the socket to answer it on."""

    stream: trio.SocketStream
    verb: str
    headers: dict[str, str]
    body: bytes

    @property
    def rpc(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body else {}

    @property
    def what(self) -> str:
        """``tools/call`` for a POST of one, ``GET`` for a GET."""
        return self.rpc.get("method", "answer") if self.verb == "POST" else self.verb

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Told", *[f"{k}: {v}" for k, v in headers.items()], "", ""]
        await self.stream.send_all("\r\n".join(lines).encode())

    async def reply(
        self,
        body: bytes = b"",
        status: int = 200,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        usual = {"content-type": kind, "content-length": str(len(body))}
        await self.head(status, {**usual, **(headers or {})})
        await self.stream.send_all(body)

    async def answer(self, result: Any, headers: Mapping[str, str] | None = None) -> None:
        message = {"jsonrpc": "2.0", "id": self.rpc["id"], "result": result}
        await self.reply(json.dumps(message).encode(), headers=headers)

    async def refuse(self, status: int, text: str, code: int = -32600) -> None:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}
        await self.reply(json.dumps(error).encode(), status)

    async def text(self, text: str) -> None:
        await self.answer({"content": [{"type": "text", "text": text}]})

    async def begin_events(self) -> None:
        await self.head(200, {"content-type": "text/event-stream", "connection": "close"})

    async def event(self, data: Any, *fields: str) -> None:
        raw = data if isinstance(data, str) else json.dumps({"jsonrpc": "2.0", **data})
        lines = [*fields, f"data: {raw}", "", ""]
        await self.stream.send_all("\n".join(lines).encode())

    async def drop(self) -> None:
        await self.stream.aclose()


Handler = Callable[[Exchange], Awaitable[None]]


@attrs.define(eq=False)
class Web:
    """A server of the older protocol over HTTP, with what it was asked."""

    call: Handler
    #: In place of the usual answer, by what is asked.
    instead: dict[str, Handler] = attrs.Factory(dict[str, Handler])
    asked: list[str] = attrs.Factory(list[str])
    cancelled: trio.Event = attrs.Factory(trio.Event)
    sessions: set[str] = attrs.Factory(set[str])
    made: int = 0
    port: int = 0
    #: Cancelled, it closes the listener and every connection.
    running: trio.CancelScope = attrs.Factory(trio.CancelScope)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self, nursery: trio.Nursery) -> None:
        """Listen, at the same port as before if there was one."""
        (listener,) = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        self.running = trio.CancelScope()

        async def run() -> None:
            with self.running:
                await trio.serve_listeners(self.serve, [listener])

        nursery.start_soon(run)

    async def stop(self) -> None:
        """Refuse connections, and close those there are."""
        self.running.cancel()
        with trio.fail_after(LONG):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", self.port)).aclose()
                except OSError:
                    return
                await trio.sleep(0.005)

    async def serve(self, stream: trio.SocketStream) -> None:
        buffer = b""
        try:
            while True:
                while b"\r\n\r\n" not in buffer:
                    if not (more := await stream.receive_some()):
                        return
                    buffer += more
                raw, _, buffer = buffer.partition(b"\r\n\r\n")
                first, *lines = raw.decode().split("\r\n")
                headers = {k.lower(): v for k, _, v in (one.partition(": ") for one in lines)}
                length = int(headers.get("content-length", 0))
                while len(buffer) < length:
                    buffer += await stream.receive_some()
                body, buffer = buffer[:length], buffer[length:]
                exchange = Exchange(stream, first.partition(" ")[0], headers, body)
                self.asked.append(exchange.what)
                await self.instead.get(exchange.what, self.usual)(exchange)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def usual(self, exchange: Exchange) -> None:
        session = exchange.headers.get("mcp-session-id")
        if session is not None and session not in self.sessions:
            await exchange.refuse(404, "Session not found", -32001)
            return
        match exchange.what:
            case "initialize":
                self.made += 1
                session = f"session-{self.made}"
                self.sessions.add(session)
                result: dict[str, Any] = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "web", "version": "1"},
                }
                await exchange.answer(result, {"mcp-session-id": session})
            case "tools/list":
                await exchange.answer({"tools": [TOOL]})
            case "tools/call":
                await self.call(exchange)
            case "notifications/cancelled":
                self.cancelled.set()
                await exchange.reply(status=202)
            case "GET":
                await exchange.reply(status=405)
            case "DELETE":
                await exchange.reply()
            case what if what.startswith("notifications/"):
                await exchange.reply(status=202)
            case _:
                await exchange.refuse(400, "what is this?")

    def count(self, what: str) -> int:
        return self.asked.count(what)

    async def wait_asked(self, what: str, times: int = 1) -> None:
        with trio.fail_after(LONG):
            while self.count(what) < times:
                await trio.sleep(0.005)


async def done(exchange: Exchange) -> None:
    await exchange.text("done")


async def never(exchange: Exchange) -> None:
    await trio.sleep_forever()


async def dropped(exchange: Exchange) -> None:
    await exchange.drop()


@asynccontextmanager
async def serving(call: Handler = done, **instead: Handler) -> AsyncGenerator[Web]:
    web = Web(call, {name.replace("_", "/"): each for name, each in instead.items()})
    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery:
            await web.start(nursery)
            yield web
            nursery.cancel_scope.cancel()


def toolset(web: Web, **options: Any) -> McpToolset:
    options = {"name": "bad", "mode": "legacy", **options}
    return McpToolset.http(web.url, **options)


class Context:
    """The part of a `ToolContext` that the toolset uses."""

    def __init__(self) -> None:
        self.progress: list[float] = []

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        self.progress.append(progress)


async def call(made: McpToolset, context: Any = None) -> tr.ToolResult:
    (tool,) = await made.list_tools()
    told: Any = context or Context()
    result = await tool.call({}, told)
    assert type(result) is tr.ToolResult
    return result


async def failing_call(made: McpToolset) -> str:
    with pytest.raises(tr.ToolError) as caught:
        await call(made)
    assert "'bad'" in str(caught.value)
    return str(caught.value)


# --- answers --------------------------------------------------------------------


async def garbage(exchange: Exchange) -> None:
    await exchange.reply(b"<html>hello</html>")


async def html(exchange: Exchange) -> None:
    await exchange.reply(b"<html>hello</html>", kind="text/html")


async def other_id(exchange: Exchange) -> None:
    result = {"content": [{"type": "text", "text": "mine"}]}
    message = {"jsonrpc": "2.0", "id": 99999, "result": result}
    await exchange.reply(json.dumps(message).encode())


async def accepted(exchange: Exchange) -> None:
    await exchange.reply(status=202)


async def compressed(exchange: Exchange) -> None:
    await exchange.reply(b"\x00", headers={"content-encoding": "br"})


async def no_gzip(exchange: Exchange) -> None:
    await exchange.reply(b"notgzip" * 1000, headers={"content-encoding": "gzip"})


async def no_gzip_in_a_stream(exchange: Exchange) -> None:
    kind = "text/event-stream"
    await exchange.reply(b"notgzip" * 1000, kind=kind, headers={"content-encoding": "gzip"})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (garbage, "malformed: not JSON"),
        (html, "'text/html'; expected JSON or events"),
        (compressed, "encoding 'br'"),
        (no_gzip, "malformed: it is no gzip"),
        (no_gzip_in_a_stream, "malformed: it is no gzip"),
    ],
)
async def test_an_answer_that_is_none_is_that_calls_error_and_the_next_call_works(
    how: Handler, said: str
) -> None:
    async with serving(how) as web, toolset(web) as made:
        assert said in await failing_call(made)
        web.call = done
        assert (await call(made)).text == "done"
    assert web.made == 1


async def test_an_answer_with_another_id_is_not_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(other_id) as web, toolset(web) as made:
        assert "it is no answer to the request" in await failing_call(made)
        web.call = done
        assert (await call(made)).text == "done"
    assert [each for each in caplog.messages if "(id 99999)" in each]


async def test_the_right_answer_is_waited_for_behind_wrong_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def late(exchange: Exchange) -> None:
        await exchange.begin_events()
        for number in range(50):
            result = {"content": [{"type": "text", "text": "not yours"}]}
            await exchange.event({"id": 90000 + number, "result": result})
            await exchange.event({"id": "none", "error": {"code": 1, "message": "not yours"}})
        result = {"content": [{"type": "text", "text": "yours"}]}
        await exchange.event({"id": str(exchange.rpc["id"]), "result": result})
        await exchange.drop()

    async with serving(late) as web, toolset(web) as made:
        assert (await call(made)).text == "yours"
    assert len([each for each in caplog.messages if "answered another request" in each]) == 1


@pytest.mark.parametrize("as_events", [False, True])
async def test_no_call_gets_the_answer_of_another(*, as_events: bool) -> None:
    waiting: list[Exchange] = []
    both = trio.Event()

    async def mixed_up(exchange: Exchange) -> None:
        waiting.append(exchange)
        if len(waiting) == 2:
            both.set()
        await both.wait()
        (other,) = [each for each in waiting if each is not exchange]
        result = {"content": [{"type": "text", "text": "not yours"}]}
        message = {"id": other.rpc["id"], "result": result}
        if as_events:
            await exchange.begin_events()
            await exchange.event(message)
            await exchange.drop()
        else:
            await exchange.reply(json.dumps({"jsonrpc": "2.0", **message}).encode())

    said: list[str] = []
    async with serving(mixed_up) as web, toolset(web) as made:

        async def one() -> None:
            try:
                result = await call(made)
            except tr.ToolError as error:
                said.append(f"error: {error}")
            else:
                said.append(f"{result.status.value}: {result.text}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
    expected = "interrupted: " if as_events else "error: "
    assert [each[: len(expected)] for each in said] == [expected] * 2
    assert "not yours" not in "".join(said)


async def test_a_request_that_is_only_accepted_is_interrupted() -> None:
    async with serving(accepted) as web, toolset(web) as made:
        assert (await call(made)).status == "interrupted"


async def test_text_that_cannot_be_encoded_is_made_safe() -> None:
    async def odd(exchange: Exchange) -> None:
        text = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"%s"}]}}'
        await exchange.reply(text % (exchange.rpc["id"], b"a\\ud800b\xff"))

    async with serving(odd) as web, toolset(web) as made:
        assert (await call(made)).text == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("status", "said"), [(500, "status 500"), (401, "401 Unauthorized"), (429, "429 Too Many")]
)
async def test_a_bad_status_is_that_calls_error_and_says_which(status: int, said: str) -> None:
    async def failing(exchange: Exchange) -> None:
        await exchange.reply(b"sorry", status, "text/plain")

    async with serving(failing) as web, toolset(web) as made:
        assert said in await failing_call(made)


async def test_a_gateway_that_lost_the_server_leaves_the_outcome_unknown() -> None:
    async def lost(exchange: Exchange) -> None:
        await exchange.reply(b"", 502, "text/plain")

    async with serving(lost) as web, toolset(web) as made:
        result = await call(made)
    assert (result.status, web.count("tools/call")) == ("interrupted", 1)
    assert "HTTP status 502" in result.text


@pytest.mark.parametrize("as_events", [False, True])
async def test_kD10_a_huge_answer_is_that_calls_error_and_is_not_held(*, as_events: bool) -> None:
    chunk = b"x" * 1_000_000
    sent = 0

    async def huge(exchange: Exchange) -> None:
        nonlocal sent
        start = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"'
        start %= exchange.rpc["id"]
        if as_events:
            await exchange.begin_events()
            start = b"data: " + start
        else:
            await exchange.head(200, {"content-type": "application/json"})
        await exchange.stream.send_all(start)
        for _ in range(50):
            await exchange.stream.send_all(chunk)
            sent += 1
        await exchange.stream.send_all(b'"}]}}\n\n')
        await exchange.drop()

    async with serving(huge) as web, toolset(web, max_message_bytes=2_000_000) as made:
        await made.list_tools()
        tracemalloc.start()
        try:
            said = await failing_call(made)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert "more than 2000000 bytes" in said
        assert peak < 12_000_000
        web.call = done
        assert (await call(made)).text == "done"
    assert web.count("tools/call") == 2


async def test_progress_comes_complete_and_in_order_before_the_answer() -> None:
    async def progressing(exchange: Exchange) -> None:
        token = exchange.rpc["params"]["_meta"]["progressToken"]
        await exchange.begin_events()
        await exchange.event("garbage")
        for number in range(50):
            params = {"progressToken": token, "progress": number}
            await exchange.event({"method": "notifications/progress", "params": params})
        result = {"content": [{"type": "text", "text": "done"}]}
        await exchange.event({"id": exchange.rpc["id"], "result": result})
        await exchange.drop()

    context = Context()
    async with serving(progressing) as web, toolset(web) as made:
        assert (await call(made, context)).text == "done"
        assert context.progress == [float(number) for number in range(50)]


async def test_a_stream_that_does_not_end_after_the_answer_holds_nobody_up() -> None:
    hung_up: list[bytes] = []

    async def lingering(exchange: Exchange) -> None:
        await exchange.begin_events()
        result = {"content": [{"type": "text", "text": "done"}]}
        await exchange.event({"id": exchange.rpc["id"], "result": result})
        hung_up.append(await exchange.stream.receive_some())

    async with serving(lingering) as web, toolset(web) as made:
        for _ in range(3):
            assert (await call(made)).text == "done"
        while len(hung_up) < 3:  # and it keeps no socket
            await trio.sleep(0.005)
    assert hung_up == [b""] * 3


async def test_a_stream_that_broke_goes_on_where_the_server_can_do_that() -> None:
    asked: list[object] = []

    async def broken(exchange: Exchange) -> None:
        asked.append(exchange.rpc["id"])
        await exchange.begin_events()
        await exchange.event("", "id: 7", "retry: 10")
        await exchange.drop()

    async def rest(exchange: Exchange) -> None:
        if exchange.headers.get("last-event-id") != "7":
            await exchange.reply(status=405)
            return
        await exchange.begin_events()
        result = {"content": [{"type": "text", "text": "the rest"}]}
        await exchange.event({"id": asked[0], "result": result})
        await exchange.drop()

    async with serving(broken, GET=rest) as web, toolset(web) as made:
        assert (await call(made)).text == "the rest"
    assert web.count("tools/call") == 1


async def test_a_stream_that_never_goes_on_is_given_up() -> None:
    async def broken(exchange: Exchange) -> None:
        await exchange.begin_events()
        await exchange.event("", "id: 7", "retry: 0")
        await exchange.drop()

    async with serving(broken, GET=dropped) as web, toolset(web) as made:
        assert (await call(made)).status == "interrupted"
    assert web.count("GET") < 20


async def test_the_stream_of_an_older_server_is_asked_for_again_however_often_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_RETRY", 0.01)
    monkeypatch.setattr(http, "_LONGEST_RETRY", 0.02)
    heard = trio.Event()
    tools = [TOOL]

    async def listed(exchange: Exchange) -> None:
        await exchange.answer({"tools": tools})

    async def stream(exchange: Exchange) -> None:
        if web.count("GET") <= 8:
            await exchange.reply(status=503)
            return
        tools.append({**TOOL, "name": "new"})  # it changed while nobody could hear of it
        await exchange.begin_events()
        heard.set()
        await trio.sleep_forever()

    async with serving(done, GET=stream, tools_list=listed) as web, toolset(web) as made:
        assert len(await made.list_tools()) == 1
        with trio.fail_after(LONG):
            await heard.wait()
            while len(await made.list_tools()) == 1:
                await trio.sleep(0.01)


async def test_a_server_without_a_stream_of_its_own_is_asked_for_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_RETRY", 0.001)
    async with serving() as web, toolset(web) as made:
        await web.wait_asked("GET")
        for _ in range(20):
            await call(made)
        assert web.count("GET") == 1


@pytest.mark.parametrize(
    ("has_it", "level", "expected"),
    [(True, "warning", ["warning"]), (False, "warning", []), (True, None, [])],
)
async def test_an_older_server_is_asked_for_log_messages_if_it_has_them(
    *, has_it: bool, level: LogLevel | None, expected: list[str]
) -> None:
    asked: list[Any] = []

    async def initialize(exchange: Exchange) -> None:
        result: dict[str, Any] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, **({"logging": {}} if has_it else {})},
            "serverInfo": {"name": "web", "version": "1"},
        }
        await exchange.answer(result)

    async def set_level(exchange: Exchange) -> None:
        asked.append(exchange.rpc["params"]["level"])
        await exchange.refuse(400, "no such level")  # and goes on

    handlers = {"initialize": initialize, "logging_setLevel": set_level}
    callbacks = Callbacks(log_level=level)
    async with serving(**handlers) as web, toolset(web, callbacks=callbacks) as made:
        if expected:
            await web.wait_asked("logging/setLevel")
        assert (await call(made)).text == "done"
    assert asked == expected


# --- losses ---------------------------------------------------------------------


async def half(exchange: Exchange) -> None:
    await exchange.head(200, {"content-type": "application/json", "content-length": "500"})
    await exchange.stream.send_all(b'{"jsonrpc":')
    await exchange.drop()


async def half_an_event(exchange: Exchange) -> None:
    await exchange.begin_events()
    await exchange.stream.send_all(b"data: {")
    await exchange.drop()


@pytest.mark.parametrize("how", [dropped, half, half_an_event])
async def test_kD4_a_lost_connection_is_interrupted_and_never_made_again(how: Handler) -> None:
    async with serving(how) as web, toolset(web) as made:
        result = await call(made)
        assert result.status == "interrupted"
        assert "outcome is unknown" in result.text
        assert "'bad'" in result.text
        assert web.count("tools/call") == 1
        web.call = done
        assert (await call(made)).text == "done"
    assert (web.made, web.count("tools/call")) == (2, 2)  # it connected anew first


async def test_a_lost_connection_costs_no_other_call_its_answer() -> None:
    both, go_on = trio.Event(), trio.Event()

    async def first_lost(exchange: Exchange) -> None:
        if web.count("tools/call") == 1:
            await both.wait()
            await exchange.drop()
        else:
            both.set()
            await go_on.wait()
            await exchange.text("kept")

    results: list[str] = []
    async with serving(first_lost) as web, toolset(web) as made:
        lost = trio.Event()

        async def first() -> None:
            assert (await call(made)).status == "interrupted"
            lost.set()

        async def other() -> None:
            results.append((await call(made)).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await web.wait_asked("tools/call")
            nursery.start_soon(other)
            await lost.wait()
            web.call = done
            assert (await call(made)).text == "done"
            assert (web.made, results) == (2, [])  # the old connection still waits
            go_on.set()
        await web.wait_asked("DELETE")  # and is closed after its last call
    assert results == ["kept"]


async def test_kD4_a_forgotten_session_is_renewed_once_and_the_call_made_once_more() -> None:
    async with serving() as web, toolset(web) as made:
        assert (await call(made)).text == "done"
        web.sessions.clear()
        assert (await call(made)).text == "done"
    assert (web.made, web.count("tools/call")) == (2, 3)


async def test_kD4_concurrent_callers_share_one_reconnect() -> None:
    results: list[str] = []
    async with serving() as web, toolset(web) as made:

        async def one() -> None:
            results.append((await call(made)).text)

        await one()
        web.sessions.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
    assert results == ["done"] * 21
    assert (web.made, web.count("tools/call")) == (2, 41)


async def test_kD4_a_session_that_is_forgotten_at_once_again_is_an_error() -> None:
    async def forgetting(exchange: Exchange) -> None:
        await exchange.refuse(404, "Session not found")

    async with serving(forgetting) as web, toolset(web) as made:
        assert "no longer knows the session" in await failing_call(made)
        assert (web.made, web.count("tools/call")) == (2, 2)
        assert "no longer knows the session" in await failing_call(made)
        assert web.count("tools/call") == 4  # each call is made twice at most


async def test_a_session_refused_in_other_words_is_renewed_too() -> None:
    async def refusing(exchange: Exchange) -> None:
        web.call = done
        await exchange.refuse(400, "Bad Request: No valid session ID provided", -32000)

    async with serving(refusing) as web, toolset(web) as made:
        assert (await call(made)).text == "done"
    assert web.made == 2


@pytest.mark.parametrize("status", [400, 404])
async def test_kD4_an_error_with_the_requests_id_is_its_answer_and_never_a_lost_session(
    status: int,
) -> None:
    async def ran(exchange: Exchange) -> None:
        error = {"code": -32603, "message": "it is done, but: session expired"}
        message = {"jsonrpc": "2.0", "id": exchange.rpc["id"], "error": error}
        await exchange.reply(json.dumps(message).encode(), status)

    async with serving(ran) as web, toolset(web) as made:
        assert "it is done, but: session expired" in await failing_call(made)
    assert (web.made, web.count("tools/call")) == (1, 1)


async def test_kD4_not_every_word_of_a_session_is_about_that_of_mcp() -> None:
    async def ran(exchange: Exchange) -> None:
        await exchange.refuse(400, "it is done, but its database session broke", -32603)

    async with serving(ran) as web, toolset(web) as made:
        assert "its database session broke" in await failing_call(made)
    assert (web.made, web.count("tools/call")) == (1, 1)


async def test_a_reconnect_that_hangs_is_bounded_and_the_next_call_tries_again() -> None:
    async with serving() as web, toolset(web, start_timeout=0.5) as made:
        web.sessions.clear()
        web.instead["initialize"] = never
        said = await failing_call(made)
        assert "did not start within 0.5 seconds" in said
        assert "nothing was sent" in said
        del web.instead["initialize"]
        assert (await call(made)).text == "done"


async def test_a_server_that_cannot_be_reached_is_named_and_is_found_when_it_is_back() -> None:
    async with serving() as web, trio.open_nursery() as nursery, toolset(web) as made:
        tools = await made.list_tools()
        assert (await call(made)).text == "done"
        await web.stop()
        for _ in range(2):
            said = await failing_call(made)
            assert "cannot be reached" in said
            assert "nothing was sent" in said
        assert await made.list_tools() is tools
        await web.start(nursery)
        assert (await call(made)).text == "done"
        assert await made.list_tools() is tools
        nursery.cancel_scope.cancel()
    assert (web.made, web.count("tools/call")) == (2, 2)


class Gate(httpx2.Auth):
    """Sits where requests leave us, and raises what it was told to, once for each."""

    def __init__(self, *errors: Exception) -> None:
        self.errors: Sequence[Exception] = errors

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        if self.errors and b"tools/call" in request.content:
            first, *self.errors = self.errors
            raise first
        yield request


async def test_a_request_that_was_not_sent_is_made_once_more_over_a_new_connection() -> None:
    gate = Gate(httpx2.ConnectError("refused"))
    async with serving() as web, toolset(web, auth=gate) as made:
        assert (await call(made)).text == "done"
        assert (web.made, web.count("tools/call")) == (2, 1)
        gate.errors = [httpx2.ConnectError("refused"), httpx2.ConnectError("refused again")]
        said = await failing_call(made)
    assert "refused again" in said
    assert "nothing was sent" in said
    assert (web.made, web.count("tools/call")) == (3, 1)


async def test_an_auth_that_fails_costs_its_own_call_only() -> None:
    go_on = trio.Event()
    results: list[str] = []

    async def slow(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.text("slow")

    gate = Gate()
    async with serving(slow) as web, toolset(web, auth=gate) as made:

        async def first() -> None:
            results.append((await call(made)).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await web.wait_asked("tools/call")
            gate.errors = [RuntimeError("the token is gone")]
            assert "the token is gone" in await failing_call(made)
            go_on.set()
    assert (results, web.made) == (["slow"], 1)


async def test_headers_and_credentials_go_with_every_request() -> None:
    seen: list[tuple[str | None, str | None]] = []

    async with serving() as web:
        usual = web.usual

        async def looking(exchange: Exchange) -> None:
            found = exchange.headers
            seen.append((found.get("x-team"), found.get("authorization")))
            await usual(exchange)

        for what in ("initialize", "tools/list", "tools/call", "GET", "DELETE"):
            web.instead[what] = looking
        async with toolset(web, headers={"X-Team": "a"}, auth=("me", "pass")) as made:
            await call(made)
            await web.wait_asked("GET")
    assert seen == [("a", "Basic bWU6cGFzcw==")] * 5


async def test_callers_of_a_server_that_is_gone_fail_together() -> None:
    said: list[str] = []
    async with serving() as web, toolset(web) as made:

        async def one() -> None:
            said.append(await failing_call(made))

        await web.stop()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one)
    assert len(said) == 10


# --- cancels and the close ------------------------------------------------------


async def test_kD1_a_cancel_ends_the_call_at_once_and_is_told_to_the_server() -> None:
    async with serving(never) as web, toolset(web) as made:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, made)
                await web.wait_asked("tools/call")
                scope.cancel()
        assert scope.cancelled_caught
        await web.cancelled.wait()
        web.call = done
        assert (await call(made)).text == "done"
    assert web.made == 1  # a cancel casts no doubt on the connection


async def test_a_cancel_that_the_server_does_not_take_holds_nobody_up() -> None:
    async with serving(never, notifications_cancelled=never) as web, toolset(web) as made:
        start = trio.current_time()
        with trio.move_on_after(0.2) as scope:
            await call(made)
        assert scope.cancelled_caught
        assert trio.current_time() - start < 4.0  # the SDK would wait for five seconds
        web.call = done
        assert (await call(made)).text == "done"


async def test_kD1_a_call_that_is_never_answered_ends_by_its_timeout() -> None:
    model = ScriptedModel([[tr.ToolCall("c1", "do", {})], "given up"])
    async with serving(never) as web:
        made = toolset(web, call_timeout=0.3)
        async with tr.ToolAgent("a", model=model, tools=[made]) as agent:
            await agent.generate("go")
        await web.cancelled.wait()
    (result,) = agent.history[2].tool_results
    assert result.status == "timed_out"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_kD2_leaving_is_bounded_when_the_server_does_not_take_the_end(
    *, cancelled: bool
) -> None:
    async with serving(DELETE=never) as web:
        start = trio.current_time()
        with trio.CancelScope() as scope:
            async with toolset(web, close_timeout=0.5):
                if cancelled:
                    scope.cancel()
        assert trio.current_time() - start < 0.5 + 2.0
        assert web.count("DELETE") == 1


async def test_kD2_leaving_ends_the_calls_in_flight() -> None:
    results: list[tr.ToolResult] = []
    async with serving(never) as web, trio.open_nursery() as nursery, toolset(web) as made:

        async def one() -> None:
            results.append(await call(made))

        nursery.start_soon(one)
        nursery.start_soon(one)
        await web.wait_asked("tools/call", 2)
    assert [each.status for each in results] == ["interrupted", "interrupted"]


@pytest.mark.parametrize("after", [0.0, 0.02, 0.1])
async def test_a_cancel_while_it_connects_leaves_nothing(after: float) -> None:
    async with serving(initialize=never) as web:
        with trio.move_on_after(after) as scope:
            await toolset(web, start_timeout=LONG).__aenter__()
        assert scope.cancelled_caught


# --- the start ------------------------------------------------------------------


async def test_a_start_that_fails_says_why() -> None:
    async def wrong(exchange: Exchange) -> None:
        await exchange.reply(b"", 403, "text/plain")

    async with serving(initialize=wrong) as web:
        with pytest.raises(McpServerError, match=r"'bad' could not be started: .*403 Forbidden"):
            await toolset(web).__aenter__()
        web.instead["initialize"] = dropped
        with pytest.raises(McpServerError, match="the connection broke"):
            await toolset(web).__aenter__()


async def test_one_that_is_not_required_is_left_out_with_a_warning_until_it_is_entered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(initialize=dropped) as web:
        made = toolset(web, required=False)
        async with made:
            assert await made.list_tools() == ()
            assert "the connection broke" in str(made.failure)
            assert made.failure is not None
            assert made.failure.server == "bad"
        assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == 1
        del web.instead["initialize"]
        async with made:
            assert made.failure is None
            assert (await call(made)).text == "done"


async def test_a_redirect_is_followed_within_the_origin_only() -> None:
    async def moved(exchange: Exchange) -> None:
        if exchange.headers.get("x-seen"):
            await exchange.reply()
        await exchange.reply(status=307, headers={"location": "http://127.0.0.2:9/mcp?secret=1"})

    async with serving(tools_call=moved) as web, toolset(web) as made:
        said = await failing_call(made)
    assert "redirects to http://127.0.0.2:9/mcp, which is not followed" in said
    assert "secret" not in said


def test_it_is_a_toolset() -> None:
    made: abc.Toolset = McpToolset.http("http://host:1/mcp")
    assert made.name == "host:1"
