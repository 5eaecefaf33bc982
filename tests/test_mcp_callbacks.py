"""What a server may ask of us and tell us, through the SDK's client, on both protocols."""

import asyncio
import contextlib
import json
import logging
import math
import socket
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

import mcp
import mcp_types as m
import pydantic
import pytest
import trio
import trio.testing
import uvicorn
from mcp.server import MCPServer, Server, ServerRequestContext
from mcp.server.mcpserver import Context as ServerContext

import trio_runner as tr
from trio_runner.testing import ScriptedModel
from trio_runner_adapters.mcp import (
    Answer,
    Callbacks,
    McpToolset,
    Question,
    Root,
    SamplingLimits,
    ServerLog,
)

Ctx = ServerRequestContext[Any]
Handler = Callable[[Ctx], Awaitable[str]]

ASKING = Path(__file__).parent / "servers" / "asking_server.py"
#: Seconds after which a test takes something for hanging.
LONG = 30.0

NAME = {"type": "object", "properties": {"name": {"type": "string", "default": "Ada"}}}
FORM = m.ElicitRequestFormParams(message="Who are you?", requested_schema=NAME)
PAGE = m.ElicitRequestURLParams(message="Log in", url="https://x.example/in", elicitation_id="e1")


async def list_tools(ctx: Ctx, params: Any) -> m.ListToolsResult:
    return m.ListToolsResult(tools=[m.Tool(name="do", input_schema={"type": "object"})])


def server_of(handler: Handler) -> Server[Any]:
    """A server with the tool "do", which says what ``handler`` returns, or what it raised."""

    async def call_tool(ctx: Ctx, params: m.CallToolRequestParams) -> m.CallToolResult:
        try:
            text = await handler(ctx)
        except mcp.MCPError as error:
            text = f"{error.error.code}: {error.error.message}"
        return m.CallToolResult(content=[m.TextContent(text=text)])

    return Server("s", on_call_tool=call_tool, on_list_tools=list_tools)


def asking_server(request: Any) -> Server[Any]:
    """A server of the new protocol whose tool asks before it answers."""

    async def call_tool(ctx: Ctx, params: m.CallToolRequestParams) -> Any:
        if params.input_responses is None:
            return m.InputRequiredResult(input_requests={"k": request}, request_state="1")
        found = params.input_responses["k"].model_dump_json(exclude_none=True)
        return m.CallToolResult(content=[m.TextContent(text=found)])

    return Server("s", on_call_tool=call_tool, on_list_tools=list_tools)


async def ask(ctx: Ctx, params: Any) -> m.ElicitResult:
    return await ctx.session.send_request(m.ElicitRequest(params=params), m.ElicitResult)


async def said_form(ctx: Ctx) -> str:
    found = await ask(ctx, FORM)
    return f"{found.action} {found.content}"


async def roots_of(ctx: Ctx) -> str:
    found = await ctx.session.send_request(m.ListRootsRequest(), m.ListRootsResult)
    return " ".join(f"{each.uri}={each.name}" for each in found.roots)


def log(ctx: Ctx, data: Any, level: Any = "info", logger: str | None = None) -> Awaitable[None]:
    params = m.LoggingMessageNotificationParams(level=level, data=data, logger=logger)
    return ctx.session.send_notification(m.LoggingMessageNotification(params=params))


def client_of(server: Server[Any], callbacks: Callbacks, mode: str = "legacy") -> mcp.Client:
    return mcp.Client(server, mode=mode, cache=None, **callbacks.client_options("srv"))


async def call(client: mcp.Client) -> str:
    result = await client.call_tool("do")
    return cast("m.TextContent", result.content[0]).text


async def said(handler: Handler, callbacks: Callbacks) -> str:
    async with client_of(server_of(handler), callbacks) as client:
        return await call(client)


def answers(answer: Any, seen: list[Question] | None = None) -> Any:
    async def elicitation(question: Question) -> Any:
        if seen is not None:
            seen.append(question)
        return answer

    return elicitation


# --- elicitation ----------------------------------------------------------------


async def test_a_form_is_asked_and_its_answer_arrives() -> None:
    seen: list[Question] = []
    callbacks = Callbacks(elicitation=answers(Answer.accept({"name": "Grace"}), seen))
    assert await said(said_form, callbacks) == "accept {'name': 'Grace'}"
    assert seen == [Question(server="srv", message="Who are you?", schema=NAME)]


async def test_a_form_is_asked_within_a_call_of_the_new_protocol() -> None:
    seen: list[Question] = []
    callbacks = Callbacks(elicitation=answers(Answer.accept({"name": "Grace"}), seen))
    server = asking_server(m.ElicitRequest(params=FORM))
    async with client_of(server, callbacks, mode="2026-07-28") as client:
        assert await call(client) == '{"action":"accept","content":{"name":"Grace"}}'
    assert seen == [Question(server="srv", message="Who are you?", schema=NAME)]


async def test_a_page_is_shown_and_content_is_not_sent_for_it() -> None:
    seen: list[Question] = []
    callbacks = Callbacks(elicitation=answers(Answer.accept({"secret": "x"}), seen))

    async def handler(ctx: Ctx) -> str:
        return (await ask(ctx, PAGE)).model_dump_json(exclude_none=True)

    assert await said(handler, callbacks) == '{"action":"accept"}'
    assert seen == [
        Question(server="srv", message="Log in", url="https://x.example/in", elicitation_id="e1")
    ]


@pytest.mark.parametrize(
    ("answer", "action"),
    [(None, "cancel"), (Answer.cancel(), "cancel"), (Answer.decline(), "decline")],
)
async def test_an_answer_without_content_says_why(answer: Answer | None, action: str) -> None:
    assert await said(said_form, Callbacks(elicitation=answers(answer))) == f"{action} None"


@pytest.mark.parametrize("answer", [Answer.accept({"name": 3}), "yes", {"name": "Ada"}])
async def test_an_answer_that_does_not_fit_is_an_error(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = await said(said_form, Callbacks(elicitation=answers(answer)))
    assert found.startswith(f"{m.INTERNAL_ERROR}: elicitation failed at the client")
    assert "MCP server 'srv': its elicitation failed" in caplog.text


async def test_text_that_does_not_encode_is_made_valid_both_ways() -> None:
    seen: list[Question] = []
    callbacks = Callbacks(elicitation=answers(Answer.accept({"name": "\ud800"}), seen))
    # Put together by hand: the SDK can send no such text, other servers can.
    desk = callbacks.client_options("srv")["elicitation_callback"]
    params = m.ElicitRequestFormParams(message="\udfff?", requested_schema=NAME)
    result = await desk(cast("Any", None), params)
    assert result.content == {"name": "\ufffd"}
    assert seen[0].message == "\ufffd?"


def test_a_question_knows_its_defaults() -> None:
    assert Question(server="s", message="m", schema=NAME).defaults == {"name": "Ada"}
    assert Question(server="s", message="m", url="https://x").defaults == {}
    assert Question(server="s", message="m", schema={"properties": [1]}).defaults == {}


# --- the border -----------------------------------------------------------------


async def raises_value_error(question: Question) -> Answer:
    raise ValueError("a secret")


async def raises_cancelled_of_asyncio(question: Question) -> Answer:
    raise asyncio.CancelledError


async def raises_a_stray_cancelled(question: Question) -> Answer:
    kept: BaseException | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept = error
    assert kept is not None
    raise kept


async def raises_a_group(question: Question) -> Answer:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raises_value_error, question)
    raise AssertionError


async def fails_as_pytest_does(question: Question) -> Answer:
    pytest.fail("a secret")


async def raises_generator_exit(question: Question) -> Answer:
    raise GeneratorExit


@pytest.mark.parametrize(
    ("elicitation", "kind"),
    [
        (raises_value_error, "ValueError"),
        (raises_generator_exit, "GeneratorExit"),
        (raises_cancelled_of_asyncio, "CancelledError"),
        (raises_a_stray_cancelled, "Cancelled"),
        (raises_a_group, "ValueError"),
        (fails_as_pytest_does, "Failed"),
    ],
)
@pytest.mark.parametrize("new", [False, True])
async def test_what_a_callback_raises_is_an_error_and_the_connection_lives(
    elicitation: Any, kind: str, new: bool, caplog: pytest.LogCaptureFixture
) -> None:
    expected = f"elicitation failed at the client: {kind}"
    callbacks = Callbacks(elicitation=elicitation)
    if new:
        server = asking_server(m.ElicitRequest(params=FORM))
        async with client_of(server, callbacks, mode="2026-07-28") as client:
            for _ in range(2):
                with pytest.raises(mcp.MCPError) as caught:
                    await call(client)
                assert caught.value.error.message == expected
    else:
        async with client_of(server_of(said_form), callbacks) as client:
            for _ in range(2):
                assert await call(client) == f"{m.INTERNAL_ERROR}: {expected}"
    assert caplog.records[0].exc_info is not None  # the log has all of it


async def test_a_slow_callback_is_an_error_and_others_go_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def elicitation(question: Question) -> Answer:
        await trio.sleep_forever()
        raise AssertionError

    found: list[str] = []

    async def handler(ctx: Ctx) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, said_form, ctx)
            await trio.sleep(5)
            found.append(await roots_of(ctx))
        return "done"

    async def collect(handler: Handler, ctx: Ctx) -> None:
        try:
            found.append(await handler(ctx))
        except mcp.MCPError as error:
            found.append(f"{error.error.code}: {error.error.message}")

    callbacks = Callbacks(elicitation=elicitation, roots=[("file:///a", "a")], timeout=20)
    began = trio.current_time()
    assert await said(handler, callbacks) == "done"
    assert trio.current_time() - began == 20
    assert found == [
        "file:///a=a",
        f"{m.REQUEST_TIMEOUT}: elicitation took longer than 20 seconds at the client",
    ]
    assert "its elicitation took longer than 20 seconds (timeout)" in caplog.text


async def test_a_callback_is_cancelled_with_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = trio.Event()
    ended: list[str] = []

    async def elicitation(question: Question) -> Answer:
        try:
            running.set()
            await trio.sleep_forever()
        except trio.Cancelled:
            ended.append("callback cancelled")
            raise
        raise AssertionError

    async def calls(client: mcp.Client) -> None:
        with pytest.raises(mcp.MCPError):
            await call(client)
        ended.append("call ended")

    async with trio.open_nursery() as nursery:
        async with client_of(server_of(said_form), Callbacks(elicitation=elicitation)) as client:
            nursery.start_soon(calls, client)
            await running.wait()
        assert "callback cancelled" in ended
    assert sorted(ended) == ["call ended", "callback cancelled"]
    assert caplog.messages == []  # a cancel is no failure


async def test_a_callback_is_cancelled_when_the_server_takes_its_question_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running = trio.Event()
    cancelled = trio.Event()

    async def elicitation(question: Question) -> Answer:
        try:
            running.set()
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    async def handler(ctx: Ctx) -> str:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(said_form, ctx)
                await running.wait()
                scope.cancel()
        with trio.fail_after(30):
            await cancelled.wait()
        return "taken back"

    callbacks = Callbacks(elicitation=elicitation)
    async with client_of(server_of(handler), callbacks) as client:
        assert await call(client) == "taken back"
        assert await client.list_tools()
    assert caplog.messages == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_ctrl_c_in_a_callback_reaches_the_main_task(
    error: type[BaseException], grouped: bool
) -> None:
    async def elicitation(question: Question) -> Answer:
        if grouped:
            raise BaseExceptionGroup("two", [error(), ValueError()])
        raise error

    seen: list[str] = []

    async def main() -> None:
        answered = trio.Event()
        with trio.fail_after(LONG):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold, answered)
                try:
                    await trio.sleep_forever()
                except KeyboardInterrupt:
                    seen.append("main")
                    await answered.wait()
                    raise

    async def hold(answered: trio.Event) -> None:
        # In a child, so that a KeyboardInterrupt in this task would not count.
        callbacks = Callbacks(elicitation=elicitation)
        async with client_of(server_of(said_form), callbacks) as client:
            seen.append(await call(client))
            answered.set()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(KeyboardInterrupt)
    assert sorted(seen) == [f"{m.INTERNAL_ERROR}: the client is ending", "main"]


async def test_ctrl_c_may_strike_in_every_callback() -> None:
    protected: dict[str, bool] = {}

    def look(name: str) -> None:
        protected[name] = trio.lowlevel.currently_ki_protected()

    async def elicitation(question: Question) -> None:
        look("elicitation")

    async def sampling(request: object) -> tr.Message:
        look("sampling")
        return tr.Message.assistant("yes")

    async def approve(request: object) -> bool:
        look("approve")
        return True

    def roots() -> Sequence[str]:
        look("roots")
        return []

    def on_log(entry: ServerLog) -> None:
        look("on_log")

    async def handler(ctx: Ctx) -> str:
        await said_form(ctx)
        await roots_of(ctx)
        await log(ctx, "x")
        message = m.SamplingMessage(role="user", content=m.TextContent(text="?"))
        params = m.CreateMessageRequestParams(messages=[message], max_tokens=1)
        await ctx.session.send_request(m.CreateMessageRequest(params=params), m.CreateMessageResult)
        return "done"

    callbacks = Callbacks(
        elicitation=elicitation, sampling=sampling, approve=approve, roots=roots, on_log=on_log
    )
    assert await said(handler, callbacks) == "done"
    names = ("elicitation", "sampling", "approve", "roots", "on_log")
    assert protected == dict.fromkeys(names, False)


async def test_only_what_is_there_is_offered() -> None:
    async def handler(ctx: Ctx) -> str:
        there = ctx.session.client_capabilities
        assert there is not None
        return " ".join(
            name for name in ("sampling", "elicitation", "roots") if getattr(there, name)
        )

    assert await said(handler, Callbacks()) == ""
    assert await said(handler, Callbacks(roots=[])) == "roots"
    assert await said(handler, Callbacks(elicitation=answers(None))) == "elicitation"

    async def sampling(request: object) -> tr.Message:
        return tr.Message.assistant("yes")

    assert await said(handler, Callbacks(sampling=sampling)) == "sampling"


# --- roots ----------------------------------------------------------------------


async def test_roots_are_paths_pairs_and_values(tmp_path: Path) -> None:
    roots: Any = [
        tmp_path / "a b",
        str(tmp_path),
        "file:///z",
        ("file:///y", "why"),
        Root("file:///x"),
    ]
    assert await said(roots_of, Callbacks(roots=roots)) == " ".join(
        [
            f"{(tmp_path / 'a b').as_uri()}=None",
            f"{tmp_path.as_uri()}=None",
            "file:///z=None",
            "file:///y=why",
            "file:///x=None",
        ]
    )


async def test_roots_may_be_a_function_that_is_asked_each_time(tmp_path: Path) -> None:
    now: list[Any] = [("file:///a", "a")]

    async def later() -> list[Any]:
        await trio.lowlevel.checkpoint()
        return now

    for roots in (lambda: now, later):
        async with client_of(server_of(roots_of), Callbacks(roots=roots)) as client:
            now[:] = [("file:///a", "a")]
            assert await call(client) == "file:///a=a"
            now[:] = [("file:///b", "b")]
            assert await call(client) == "file:///b=b"


@pytest.mark.parametrize(
    ("roots", "error"),
    [
        ("/one/path", TypeError),
        (Path("/one/path"), TypeError),
        ([3], TypeError),
        ([("a", "b", "c")], TypeError),
        ([("https://x.example", "x")], ValueError),
        ([Root("x")], ValueError),
    ],
)
def test_roots_that_are_none_are_refused_at_set_up(roots: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="root"):
        Callbacks(roots=roots)


@pytest.mark.parametrize(
    "options",
    [
        {"elicitation": 3},
        {"sampling": "model"},
        {"approve": True},
        {"on_log": []},
        {"timeout": "5"},
        {"timeout": 0},
        {"timeout": math.inf},
        {"log_level": "loud"},
    ],
)
def test_callbacks_that_are_none_are_refused_at_set_up(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        Callbacks(**options)


# --- log messages ---------------------------------------------------------------


async def test_log_messages_go_to_on_log() -> None:
    seen: list[ServerLog] = []

    async def handler(ctx: Ctx) -> str:
        await log(ctx, {"a": [1, "\u20ac"]}, "alert", "part")
        return "done"

    await said(handler, Callbacks(on_log=seen.append))
    assert seen == [
        ServerLog(server="srv", level="alert", logger="part", data={"a": [1, "\u20ac"]})
    ]


async def test_a_server_of_the_new_protocol_is_asked_for_its_log_messages() -> None:
    async def handler(ctx: Ctx) -> str:
        session: Any = ctx.session
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the SDK: that the feature is going away
            await session.send_log_message("info", "hello")
            await session.send_log_message("debug", "not so loud")
        return "done"

    for level, expected in (("info", ["hello"]), (None, [])):
        seen: list[ServerLog] = []
        callbacks = Callbacks(on_log=seen.append, log_level=cast("Any", level))
        async with client_of(server_of(handler), callbacks, mode="2026-07-28") as client:
            await call(client)
        assert [each.data for each in seen] == expected


async def test_log_messages_go_to_a_logger_of_the_server_in_one_bounded_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(ctx: Ctx) -> str:
        await log(ctx, "two\nlines \x1b[2J", "notice")
        await log(ctx, {"k": "v"}, "emergency", "part")
        await log(ctx, "x" * 100_000, "error")
        await log(ctx, "quiet", "debug")
        return "done"

    with caplog.at_level(logging.DEBUG, "trio_runner_adapters.mcp.srv"):
        await said(handler, Callbacks())
    records = [each for each in caplog.records if each.name == "trio_runner_adapters.mcp.srv"]
    assert [each.levelno for each in records] == [
        logging.INFO,
        logging.CRITICAL,
        logging.ERROR,
        logging.DEBUG,
    ]
    assert records[0].getMessage() == "two\\nlines \\x1b[2J"
    assert records[1].getMessage() == '[part] {"k": "v"}'
    assert 2000 < len(records[2].getMessage()) < 2100


async def test_a_flood_of_log_messages_is_cut_and_counted(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[ServerLog] = []

    async def handler(ctx: Ctx) -> str:
        for number in range(1000):
            await log(ctx, number)
        await trio.sleep(10)
        await log(ctx, "later")
        return "done"

    await said(handler, Callbacks(on_log=seen.append))
    assert [each.data for each in seen] == [*range(200), "later"]
    assert "'srv': 800 log messages were dropped" in caplog.text


@pytest.mark.parametrize(
    "error", [ValueError("no disk"), GeneratorExit(), pytest.fail.Exception("odd")], ids=repr
)
async def test_on_log_that_raises_is_contained(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def on_log(entry: ServerLog) -> None:
        seen.append(entry.data)
        raise error

    async def handler(ctx: Ctx) -> str:
        await log(ctx, 1)
        await log(ctx, 2)
        return "done"

    assert await said(handler, Callbacks(on_log=on_log)) == "done"
    assert seen == [1, 2]
    assert "MCP server 'srv': on_log failed" in caplog.text


# --- through a toolset, with a real process -------------------------------------


class Context:
    """Stands for a `ToolContext`, of which nothing is used here."""

    def report_progress(self, *args: object) -> None:
        raise AssertionError


def asking(callbacks: Callbacks | None) -> McpToolset:
    return McpToolset.stdio(
        sys.executable, ["-S", str(ASKING)], name="asks", mode="legacy", callbacks=callbacks
    )


async def result_of(toolset: McpToolset, name: str) -> str:
    tools = {tool.name: tool for tool in await toolset.list_tools()}
    context: Any = Context()
    result: Any = await tools[name].call({}, context)
    return result.text


async def test_a_process_asks_through_its_toolset(caplog: pytest.LogCaptureFixture) -> None:
    protected: list[bool] = []

    async def elicitation(question: Question) -> Answer:
        protected.append(trio.lowlevel.currently_ki_protected())
        assert question.server == "asks"
        return Answer.decline()

    model = ScriptedModel(["No."])
    callbacks = Callbacks(elicitation=elicitation, sampling=model, roots=[("file:///a", "a")])
    with trio.fail_after(LONG):
        async with asking(callbacks) as toolset:
            assert json.loads(await result_of(toolset, "elicit"))["action"] == "decline"
            assert json.loads(await result_of(toolset, "roots")) == {
                "roots": [{"uri": "file:///a", "name": "a"}]
            }
            sampled = json.loads(await result_of(toolset, "sample"))
            assert sampled["content"] == {"type": "text", "text": "No."}
            assert await result_of(toolset, "log") == "logged"
    assert protected == [False]  # Ctrl-C may strike in it
    [record] = [each for each in caplog.records if each.name == "trio_runner_adapters.mcp.asks"]
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "[part] look out")


async def test_without_callbacks_a_process_is_refused() -> None:
    with trio.fail_after(LONG):
        async with asking(None) as toolset:
            for name in ("elicit", "roots", "sample"):
                assert (await result_of(toolset, name)).startswith("error -32600")


@pytest.mark.slow
async def test_a_process_that_samples_in_a_loop_is_refused() -> None:
    model = ScriptedModel("Yes." for _ in range(1000))
    callbacks = Callbacks(sampling=model, limits=SamplingLimits(max_per_period=5, period=600))
    with trio.fail_after(LONG):
        async with asking(callbacks) as toolset:
            answers = (await result_of(toolset, "sample_loop")).splitlines()
    assert [each.startswith("error -32600: sampling is refused") for each in answers] == [
        *[False] * 5,
        *[True] * 2,
    ]
    assert model.calls == 5


@pytest.mark.slow
async def test_a_process_that_floods_with_questions_is_held_off_and_still_serves() -> None:
    model = ScriptedModel("Yes." for _ in range(1000))
    callbacks = Callbacks(sampling=model, limits=SamplingLimits(max_per_period=5, period=600))
    with trio.fail_after(LONG):
        async with asking(callbacks) as toolset:
            assert await result_of(toolset, "sample_flood") == "flooded"
            assert await result_of(toolset, "echo") == "ok"
    assert model.calls == 5


# --- over HTTP ------------------------------------------------------------------


class Person(pydantic.BaseModel):
    name: str


@contextlib.contextmanager
def serving(make_app: Any) -> Generator[str, None, None]:
    """Serve an app in a thread, where it is also made; gives its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        options: Any = {"log_level": "critical", "timeout_graceful_shutdown": 1}
        server = uvicorn.Server(uvicorn.Config(make_app, factory=True, **options))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join(LONG)
            assert not thread.is_alive()


@pytest.mark.slow
async def test_a_server_asks_over_http_in_the_older_protocol(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for noisy in ("mcp", "client", "httpx2", "sse_starlette"):
        caplog.set_level(logging.CRITICAL, noisy)
    server = MCPServer("web", log_level="CRITICAL")

    @server.tool()
    async def greet(ctx: ServerContext) -> str:
        """Ask for a name."""
        found = await ctx.elicit("Who are you?", Person)
        return found.model_dump_json()

    seen: list[Question] = []
    callbacks = Callbacks(elicitation=answers(Answer.accept({"name": "Grace"}), seen))
    with serving(server.streamable_http_app) as url, trio.fail_after(LONG):
        toolset = McpToolset.http(url, name="web", mode="legacy", callbacks=callbacks)
        async with toolset:
            found = json.loads(await result_of(toolset, "greet"))
            assert found == {"action": "accept", "data": {"name": "Grace"}}
    assert [(each.server, each.message) for each in seen] == [("web", "Who are you?")]


@pytest.mark.slow
async def test_a_server_asks_over_http_in_the_new_protocol(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for noisy in ("mcp", "client", "httpx2", "sse_starlette"):
        caplog.set_level(logging.CRITICAL, noisy)
    server = asking_server(m.ElicitRequest(params=FORM))
    callbacks = Callbacks(elicitation=answers(Answer.accept({"name": "Grace"})))
    with serving(server.streamable_http_app) as url, trio.fail_after(LONG):
        async with McpToolset.http(url, name="web", callbacks=callbacks) as toolset:
            found = json.loads(await result_of(toolset, "do"))
    assert found == {"action": "accept", "content": {"name": "Grace"}}
