"""A server asks our model: what the model gets, what the server gets, and the limits."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import attrs
import mcp
import mcp_types as m
import pytest
import trio
import trio.testing
from mcp.server import Server, ServerRequestContext

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._sampling_messages as messages
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.mcp import Callbacks, SamplingLimits, SamplingRequest

Ctx = ServerRequestContext[Any]
Handler = Callable[[Ctx], Awaitable[str]]
OBJECT: dict[str, Any] = {"type": "object"}
HELLO = m.SamplingMessage(role="user", content=m.TextContent(text="Hello?"))


def params(*asked: m.SamplingMessage, **fields: Any) -> m.CreateMessageRequestParams:
    fields = {"max_tokens": 100, **fields}
    return m.CreateMessageRequestParams(messages=list(asked or [HELLO]), **fields)


def server_of(handler: Handler) -> Server[Any]:
    """A server with the tool "do", which says what ``handler`` returns."""

    async def call_tool(ctx: Ctx, _: m.CallToolRequestParams) -> m.CallToolResult:
        return m.CallToolResult(content=[m.TextContent(text=await handler(ctx))])

    async def list_tools(ctx: Ctx, _: Any) -> m.ListToolsResult:
        return m.ListToolsResult(tools=[m.Tool(name="do", input_schema=OBJECT)])

    return Server("s", on_call_tool=call_tool, on_list_tools=list_tools)


async def sample(
    ctx: Ctx, asked: m.CreateMessageRequestParams
) -> m.CreateMessageResult | m.CreateMessageResultWithTools | str:
    """What the client answers; the text of its error when it refuses."""
    kind: Any = m.CreateMessageResultWithTools if asked.tools else m.CreateMessageResult
    try:
        return await ctx.session.send_request(m.CreateMessageRequest(params=asked), kind)
    except mcp.MCPError as error:
        return f"{error.error.code}: {error.error.message}"


async def answers_of(
    callbacks: Callbacks, *asked: m.CreateMessageRequestParams, mode: str = "legacy"
) -> list[Any]:
    """The answers to each of ``asked``, one after the other, within one call."""
    found: list[Any] = []

    async def handler(ctx: Ctx) -> str:
        for each in asked:
            found.append(await sample(ctx, each))  # noqa: PERF401 - it is async
        return "done"

    server = server_of(handler)
    async with mcp.Client(
        server, mode=mode, cache=None, **callbacks.client_options("srv")
    ) as client:
        await client.call_tool("do")
    return found


async def answer_of(model: Any, asked: m.CreateMessageRequestParams, **options: Any) -> Any:
    [found] = await answers_of(Callbacks(sampling=model, **options), asked)
    return found


# --- what the model gets --------------------------------------------------------


async def test_the_model_gets_everything_that_the_server_says() -> None:
    model = ScriptedModel(["Hi."])
    tool = m.Tool(
        name="look.up",
        title="Look",
        description="Looks.",
        input_schema={"type": "object", "properties": {"q": {"type": "string"}}},
        _meta={"t": 1},
    )
    asked = params(
        system_prompt="Be brief.",
        temperature=0.5,
        max_tokens=77,
        stop_sequences=["END"],
        tools=[tool],
        tool_choice=m.ToolChoice(mode="required"),
    )
    await answer_of(model, asked)
    [request] = model.requests
    assert request.instruction == "Be brief."
    assert request.params.model_settings == {
        "max_tokens": 77,
        "temperature": 0.5,
        "stop_sequences": ["END"],
    }
    assert request.params.tool_choice == "required"
    assert list(request.history) == list(request.delta) == [tr.Message.user("Hello?")]
    [offered] = request.tools
    assert (offered.name, offered.title, offered.description) == ("look_up", "Look", "Looks.")
    assert offered.input_schema == {
        "type": "object",
        "properties": {"q": {"type": "string"}},
    }
    assert offered.meta == {"t": 1}
    with pytest.raises(tr.ToolError, match="the MCP server's own"):
        await offered.call({}, cast("Any", None))


async def test_what_was_not_said_is_not_made_up() -> None:
    model = ScriptedModel(["Hi."])
    await answer_of(model, params())
    [request] = model.requests
    assert request.params.model_settings == {"max_tokens": 100}
    assert request.instruction is None
    assert list(request.tools) == []
    unset = [
        field.name
        for field in attrs.fields(tr.RequestParams)
        if getattr(request.params, field.name) is tr.UNSET
    ]
    assert unset == []


async def test_a_callback_gets_what_a_model_cannot_use() -> None:
    seen: list[SamplingRequest] = []

    async def sampling(request: SamplingRequest) -> tr.Message:
        seen.append(request)
        return tr.Message.assistant("Hi.")

    preferences = m.ModelPreferences(hints=[m.ModelHint(name="small")], cost_priority=0.9)
    asked = params(
        model_preferences=preferences, include_context="thisServer", metadata={"user": "u"}
    )
    await answer_of(sampling, asked)
    assert seen[0].server == "srv"
    assert seen[0].model_preferences == {"hints": [{"name": "small"}], "costPriority": 0.9}
    assert seen[0].include_context == "thisServer"
    assert seen[0].metadata == {"user": "u"}
    assert seen[0].call_id is None


LOOKED = [
    m.SamplingMessage(role="user", content=m.TextContent(text="Weather?")),
    m.SamplingMessage(
        role="assistant",
        content=[
            m.TextContent(text="I look."),
            m.ToolUseContent(id="c1", name="look.up", input={"q": "Oslo"}, _meta={"k": 1}),
            m.ToolUseContent(id="c2", name="look.up", input={"q": "Rome"}),
        ],
    ),
    m.SamplingMessage(
        role="user",
        content=[
            m.ToolResultContent(
                tool_use_id="c2", content=[m.TextContent(text="sun")], is_error=True
            ),
            m.ToolResultContent(
                tool_use_id="c1",
                content=[m.ImageContent(data="aQ==", mime_type="image/png")],
                structured_content={"t": -3},
                _meta={"r": 1},
            ),
        ],
    ),
]


async def test_calls_and_results_become_a_valid_history() -> None:
    model = ScriptedModel(["Cold in Oslo."])  # it checks the history itself
    tools = [m.Tool(name="look.up", input_schema=OBJECT)]
    await answer_of(model, params(*LOOKED, tools=tools))
    _, asked, results = model.requests[0].history
    assert [(each.id, each.name, each.arguments) for each in asked.tool_calls] == [
        ("c1", "look_up", {"q": "Oslo"}),
        ("c2", "look_up", {"q": "Rome"}),
    ]
    assert asked.stop_reason is tr.StopReason.TOOL_USE
    assert results.tool_results == (
        tr.ToolResult(
            "c1",
            "look_up",
            [tr.ImageContent("aQ==", "image/png")],
            {"t": -3},
            meta={"r": 1},
        ),
        tr.ToolResult("c2", "look_up", "sun", status=tr.CallStatus.ERROR),
    )


@pytest.mark.parametrize("message", LOOKED)
def test_a_message_survives_both_ways(message: m.SamplingMessage) -> None:
    back = messages.to_sampling_message(messages.from_sampling_message(message))
    assert back.role == message.role
    assert back.content_as_list == message.content_as_list
    assert back.meta == message.meta


def test_a_message_keeps_its_meta_and_media() -> None:
    content: Any = [
        m.TextContent(text="t", annotations=m.Annotations(priority=0.5), _meta={"a": 1}),
        m.AudioContent(data="YQ==", mime_type="audio/wav"),
    ]
    message = m.SamplingMessage(role="assistant", content=content, _meta={"trace": "7"})
    back = messages.to_sampling_message(messages.from_sampling_message(message))
    assert back == message


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (params(LOOKED[0], LOOKED[1]), "are open"),
        (params(m.SamplingMessage(role="user", content=[])), "the message is empty"),
        (
            params(tools=[m.Tool(name="a", input_schema={**OBJECT, "required": None})]),
            "the input schema of tool 'a' cannot be used",
        ),
        (params(tools=[m.Tool(name="a", input_schema=OBJECT)] * 2), "two of the tools"),
    ],
)
async def test_a_malformed_request_is_refused_and_the_model_not_asked(
    asked: m.CreateMessageRequestParams, problem: str
) -> None:
    model = ScriptedModel([])
    found = await answer_of(model, asked)
    assert found.startswith(f"{m.INVALID_PARAMS}: ")
    assert problem in found
    assert model.calls == 0


async def test_text_that_does_not_encode_is_made_valid() -> None:
    model = ScriptedModel(["\ud800"])
    options = Callbacks(sampling=model).client_options("srv")
    content = m.TextContent(text="\udfff")
    context: Any = trio  # only asked for its session
    context = type("Context", (), {"session": type("S", (), {"protocol_version": "2025-11-25"})})
    found = await options["sampling_callback"](
        context, params(m.SamplingMessage(role="user", content=content), system_prompt="\ud800")
    )
    assert model.requests[0].history[0].text == "\ufffd"
    assert model.requests[0].instruction == "\ufffd"
    assert found.content.text == "\ufffd"


# --- what the server gets -------------------------------------------------------


async def test_the_servers_answer_has_text_reason_and_model() -> None:
    reply = tr.Message.assistant(
        "Hi.", stop_reason=tr.StopReason.MAX_TOKENS, meta={"model": "small-1", "secret": "x"}
    )
    found = await answer_of(ScriptedModel([reply]), params())
    assert found == m.CreateMessageResult(
        role="assistant",
        content=m.TextContent(text="Hi."),
        model="small-1",
        stop_reason="maxTokens",
    )


async def test_a_model_without_a_name_is_named_by_its_class() -> None:
    assert (await answer_of(ScriptedModel(["Hi."]), params())).model == "ScriptedModel"


async def test_several_texts_are_one_for_a_server_that_takes_one_block() -> None:
    reply = tr.Message.assistant([tr.TextContent("a"), tr.TextContent("b")])
    found = await answer_of(ScriptedModel([reply]), params())
    assert found.content == m.TextContent(text="a\nb")


async def test_a_reply_without_anything_is_an_empty_text() -> None:
    found = await answer_of(ScriptedModel([tr.Message("assistant")]), params())
    assert found.content == m.TextContent(text="")


async def test_resources_in_a_reply_become_text() -> None:
    reply = tr.Message.assistant(
        [tr.EmbeddedResource("file:///a", text="inside"), tr.ResourceLink("file:///b", "b")]
    )
    found = await answer_of(ScriptedModel([reply]), params())
    assert found.content == m.TextContent(text="inside\nfile:///b")


async def test_calls_go_to_the_server_under_its_own_names() -> None:
    asks = call("look_up", id="x", q="Oslo")
    reply = tr.Message.assistant(
        [tr.TextContent("I look."), tr.TextContent("Now.")], tool_calls=[asks]
    )
    tools = [m.Tool(name="look.up", input_schema=OBJECT)]
    found = await answer_of(ScriptedModel([reply]), params(tools=tools))
    assert found.stop_reason == "toolUse"
    assert found.content_as_list == [
        m.TextContent(text="I look."),
        m.TextContent(text="Now."),
        m.ToolUseContent(id="x", name="look.up", input={"q": "Oslo"}),
    ]


async def test_calls_as_providers_send_them_are_made_whole() -> None:
    async def sampling(request: SamplingRequest) -> tr.Message:
        raw = [(None, '{"q": 1}'), ("call-0", None), ("", " ")]
        return tr.Message.assistant(
            tool_calls=[tr.ToolCall.from_model(id=i, name="a", arguments=x) for i, x in raw]
        )

    tools = [m.Tool(name="a", input_schema=OBJECT)]
    found = await answer_of(sampling, params(tools=tools))
    assert [(each.id, each.input) for each in found.content_as_list] == [
        ("call-1", {"q": 1}),
        ("call-0", {}),
        ("call-2", {}),
    ]


@pytest.mark.parametrize("arguments", ["[1]", "{", "3"])
async def test_calls_whose_arguments_are_no_object_are_an_error(arguments: str) -> None:
    async def sampling(request: SamplingRequest) -> tr.Message:
        asks = tr.ToolCall.from_model(id="x", name="a", arguments=arguments)
        return tr.Message.assistant(tool_calls=[asks])

    tools = [m.Tool(name="a", input_schema=OBJECT)]
    found = await answer_of(sampling, params(tools=tools))
    assert found == f"{m.INTERNAL_ERROR}: sampling failed at the client: ValueError"


@pytest.mark.parametrize(
    "reply", [None, "text", tr.Message.user("x"), tr.Message.assistant(tool_calls=[call("a")])]
)
async def test_a_reply_that_is_none_is_an_error(reply: Any) -> None:
    async def sampling(request: SamplingRequest) -> Any:
        return reply

    found = await answer_of(sampling, params())
    assert found.startswith(f"{m.INTERNAL_ERROR}: sampling failed at the client")


async def test_an_older_server_is_never_sent_several_blocks() -> None:
    async def sampling(request: SamplingRequest) -> tr.Message:
        return tr.Message.assistant([tr.TextContent("a"), tr.ImageContent("aQ==", "image/png")])

    options = Callbacks(sampling=sampling).client_options("srv")
    for version, kind in (
        ("2025-06-18", m.ErrorData),
        ("2025-11-25", m.CreateMessageResultWithTools),
    ):
        context: Any = type("C", (), {"session": type("S", (), {"protocol_version": version})})
        assert type(await options["sampling_callback"](context, params())) is kind


async def test_a_model_that_fails_is_an_error_and_can_be_asked_again() -> None:
    model = ScriptedModel([ValueError("a secret"), "Hi."])
    first, second = await answers_of(Callbacks(sampling=model), params(), params())
    assert first == f"{m.INTERNAL_ERROR}: sampling failed at the client: ValueError"
    assert second.content.text == "Hi."


# --- approval -------------------------------------------------------------------


async def test_a_request_that_is_turned_down_never_reaches_the_model() -> None:
    model = ScriptedModel(["Hi."])
    seen: list[str] = []

    async def approve(request: SamplingRequest) -> bool:
        seen.append(request.request.history[0].text)
        return len(seen) > 1

    callbacks = Callbacks(sampling=model, approve=approve)
    first, second = await answers_of(callbacks, params(), params())
    assert first == "-1: the sampling request was turned down"
    assert second.content.text == "Hi."
    assert model.calls == 1


async def test_an_approval_may_change_what_is_asked() -> None:
    model = ScriptedModel(["Hi."])

    async def approve(request: SamplingRequest) -> tr.ModelRequest:
        return attrs.evolve(request.request, instruction="Say no secrets.")

    await answer_of(model, params(), approve=approve)
    assert model.requests[0].instruction == "Say no secrets."


# --- limits ---------------------------------------------------------------------


async def test_a_server_that_asks_in_a_loop_is_refused_and_slowed_down(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedModel("yes" for _ in range(1000))
    limits = SamplingLimits(max_per_period=5, period=60.0)
    began = trio.current_time()
    found = await answers_of(Callbacks(sampling=model, limits=limits), *[params()] * 105)
    refused = [each for each in found if type(each) is str]
    # Each refusal takes a second, so that in 60 of them the period is over.
    assert trio.current_time() - began == len(refused) == 95
    assert model.calls == 10
    assert refused[0] == (
        f"{m.INVALID_REQUEST}: sampling is refused: 5 requests were made within 60 seconds; "
        "the next may come in 60"
    )
    assert caplog.text.count("MCP server 'srv': sampling is refused") == 2  # once a period


async def test_more_than_in_flight_wait(autojump_clock: trio.testing.MockClock) -> None:
    running = 0
    most = 0

    async def sampling(request: SamplingRequest) -> tr.Message:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return tr.Message.assistant("yes")

    async def handler(ctx: Ctx) -> str:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(sample, ctx, params())
        return "done"

    limits = SamplingLimits(max_in_flight=3)
    options = Callbacks(sampling=sampling, limits=limits).client_options("srv")
    began = trio.current_time()
    async with mcp.Client(server_of(handler), mode="legacy", cache=None, **options) as client:
        await client.call_tool("do")
    assert most == 3
    assert trio.current_time() - began == 4


async def test_a_limit_on_tokens_cuts_what_the_server_wants() -> None:
    model = ScriptedModel(["Hi.", "Hi."])
    callbacks = Callbacks(sampling=model, limits=SamplingLimits(max_tokens=50))
    await answers_of(callbacks, params(max_tokens=10**9), params(max_tokens=7))
    assert [each.params.model_settings["max_tokens"] for each in model.requests] == [50, 7]


async def test_within_a_known_tool_call_only_so_many_are_answered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """In the new protocol a server asks inside the call, which the agent's tool makes."""
    asked = m.CreateMessageRequest(params=params())
    model = ScriptedModel("yes" for _ in range(1000))
    calls: list[str | None] = []

    async def approve(request: SamplingRequest) -> bool:
        calls.append(request.call_id)
        return True

    async def call_tool(ctx: Ctx, given: m.CallToolRequestParams) -> Any:
        if given.input_responses is None or given.request_state != "2":
            state = "1" if given.input_responses is None else "2"
            return m.InputRequiredResult(input_requests={"k": asked}, request_state=state)
        return m.CallToolResult(content=[m.TextContent(text="done")])

    async def list_tools(ctx: Ctx, _: Any) -> m.ListToolsResult:
        return m.ListToolsResult(tools=[m.Tool(name="do", input_schema=OBJECT)])

    server: Server[Any] = Server("s", on_call_tool=call_tool, on_list_tools=list_tools)

    async def results(limit: int) -> list[str]:
        limits = SamplingLimits(max_per_call=limit)
        options = Callbacks(sampling=model, approve=approve, limits=limits).client_options("srv")
        async with mcp.Client(server, mode="2026-07-28", cache=None, **options) as client:

            async def do() -> str:
                found = await client.call_tool("do")
                return cast("m.TextContent", found.content[0]).text

            script: Sequence[Any] = [[call("do", id="a"), call("do", id="b")], "end"]
            agent = tr.ToolAgent("a", model=ScriptedModel(script), tools=[do])
            await agent.generate("go")
            return [each.text for each in agent.history[2].tool_results]

    assert await results(2) == ["done", "done"]
    assert sorted(cast("list[str]", calls)) == ["a", "a", "b", "b"]
    first, second = await results(1)
    assert "1 requests were made within one tool call" in first
    assert "1 requests were made within one tool call" in second


def test_the_model_is_any_model() -> None:
    model: abc.Model = ScriptedModel([])
    assert "sampling_callback" in Callbacks(sampling=model).client_options()


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"max_per_call": -1},
        {"max_per_period": 1.5},
        {"period": 0},
        {"period": "60"},
        {"max_tokens": 0},
    ],
)
def test_limits_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        SamplingLimits(**options)
