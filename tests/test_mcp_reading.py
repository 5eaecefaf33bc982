"""Resources, prompts and completions of a server, read through the SDK's client."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import mcp
import mcp_types as m
import pytest
import trio
import trio.testing
from mcp.server import Server

import trio_runner as tr
import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._reading as reading
from trio_runner_adapters.mcp import (
    Completion,
    McpRequestError,
    McpServerError,
    McpToolset,
    Prompt,
    PromptArgument,
    ResourceTemplate,
)
from trio_runner_adapters.mcp._errors import Loss

ICON = m.Icon(src="data:,", mime_type="image/png", sizes=["48x48"], theme="dark")
NOTES = m.Annotations(audience=["user"], priority=0.5, last_modified="2026-01-01")

RESOURCE = m.Resource(
    uri="file:///a",
    name="a",
    title="A",
    description="The letter.",
    mime_type="text/plain",
    size=3,
    icons=[ICON],
    annotations=NOTES,
    _meta={"r": 1},
)
TEMPLATE = m.ResourceTemplate(
    uri_template="file:///{name}",
    name="any",
    title="Any",
    description="Any letter.",
    mime_type="text/plain",
    icons=[ICON],
    annotations=NOTES,
    _meta={"t": 1},
)
PROMPT = m.Prompt(
    name="greet",
    title="Greet",
    description="Greets.",
    arguments=[
        m.PromptArgument(name="who", title="Who", description="Whom to greet.", required=True),
        m.PromptArgument(name="how"),
    ],
    icons=[ICON],
    _meta={"p": 1},
)


def gives(result: Any) -> Any:
    async def handler(ctx: Any, params: Any) -> Any:
        return result

    return handler


def toolset_of(call_timeout: float | None = None, **handlers: Any) -> McpToolset:
    async def list_tools(ctx: Any, params: Any) -> m.ListToolsResult:
        return m.ListToolsResult(tools=[])

    server: Server[Any] = Server("s", on_list_tools=list_tools, **handlers)
    return McpToolset.in_memory(server, name="srv", mode="legacy", call_timeout=call_timeout)


async def with_server(
    act: Callable[[McpToolset], Awaitable[Any]], call_timeout: float | None = None, **handlers: Any
) -> Any:
    async with toolset_of(call_timeout, **handlers) as toolset:
        return await act(toolset)


# --- resources ------------------------------------------------------------------


async def test_resources_are_links_with_everything_the_server_says() -> None:
    listed = gives(m.ListResourcesResult(resources=[RESOURCE]))
    [found] = await with_server(lambda t: t.list_resources(), on_list_resources=listed)
    assert found == tr.ResourceLink(
        uri="file:///a",
        name="a",
        title="A",
        description="The letter.",
        mime_type="text/plain",
        size=3,
        icons=({"src": "data:,", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"},),
        annotations={"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01"},
        meta={"r": 1},
    )


async def test_templates_have_everything_the_server_says() -> None:
    listed = gives(m.ListResourceTemplatesResult(resource_templates=[TEMPLATE]))
    [found] = await with_server(
        lambda t: t.list_resource_templates(), on_list_resource_templates=listed
    )
    assert type(found) is ResourceTemplate
    assert (found.uri_template, found.name, found.meta) == ("file:///{name}", "any", {"t": 1})


async def test_a_resource_is_read_with_all_its_contents() -> None:
    asked: list[str] = []

    async def read(ctx: Any, params: m.ReadResourceRequestParams) -> m.ReadResourceResult:
        asked.append(params.uri)
        return m.ReadResourceResult(
            contents=[
                m.TextResourceContents(uri="file:///a", text="abc", mime_type="text/plain"),
                m.BlobResourceContents(uri="file:///b", blob="aQ==", _meta={"b": 1}),
            ]
        )

    found = await with_server(lambda t: t.read_resource("file:///a"), on_read_resource=read)
    assert asked == ["file:///a"]
    assert found == (
        tr.EmbeddedResource("file:///a", text="abc", mime_type="text/plain"),
        tr.EmbeddedResource("file:///b", blob="aQ==", resource_meta={"b": 1}),
    )


@pytest.mark.parametrize(
    ("back", "there", "value"),
    [
        (convert.to_mcp_resource, convert.from_mcp_resource, RESOURCE),
        (convert.to_mcp_resource, convert.from_mcp_resource, m.Resource(uri="x:y", name="n")),
        (convert.to_mcp_template, convert.from_mcp_template, TEMPLATE),
        (
            convert.to_mcp_template,
            convert.from_mcp_template,
            m.ResourceTemplate(uri_template="x:{y}", name="n"),
        ),
        (convert.to_mcp_prompt, convert.from_mcp_prompt, PROMPT),
        (convert.to_mcp_prompt, convert.from_mcp_prompt, m.Prompt(name="n")),
        (convert.to_mcp_prompt, convert.from_mcp_prompt, m.Prompt(name="n", arguments=[])),
        (
            convert.to_mcp_contents,
            convert.from_mcp_contents,
            m.TextResourceContents(uri="x:y", text="", mime_type="a/b", _meta={"c": 1}),
        ),
        (
            convert.to_mcp_contents,
            convert.from_mcp_contents,
            m.BlobResourceContents(uri="x:y", blob=""),
        ),
    ],
)
def test_nothing_is_lost_both_ways(back: Any, there: Any, value: Any) -> None:
    assert back(there(value)) == value


def test_text_that_does_not_encode_is_made_valid() -> None:
    bad = "\ud800"
    resource = m.Resource(uri=bad, name=bad, title=bad, description=bad, _meta={bad: bad})
    assert convert.from_mcp_resource(resource) == tr.ResourceLink(
        uri="\ufffd",
        name="\ufffd",
        title="\ufffd",
        description="\ufffd",
        meta={"\ufffd": "\ufffd"},
    )
    template = m.ResourceTemplate(uri_template=bad, name=bad, mime_type=bad)
    assert convert.from_mcp_template(template) == ResourceTemplate(
        "\ufffd", "\ufffd", mime_type="\ufffd"
    )
    prompt = m.Prompt(name=bad, arguments=[m.PromptArgument(name=bad, description=bad)])
    assert convert.from_mcp_prompt(prompt) == Prompt(
        "\ufffd", arguments=(PromptArgument("\ufffd", description="\ufffd"),)
    )


# --- prompts --------------------------------------------------------------------


async def test_prompts_are_listed() -> None:
    listed = gives(m.ListPromptsResult(prompts=[PROMPT]))
    [found] = await with_server(lambda t: t.list_prompts(), on_list_prompts=listed)
    assert (found.name, found.title, found.meta) == ("greet", "Greet", {"p": 1})
    assert found.arguments == (
        PromptArgument("who", "Who", "Whom to greet.", required=True),
        PromptArgument("how"),
    )


async def test_a_prompt_is_messages_that_a_turn_can_begin_with() -> None:
    asked: list[Any] = []

    async def get(ctx: Any, params: m.GetPromptRequestParams) -> m.GetPromptResult:
        asked.append((params.name, params.arguments))
        contents: list[tuple[Any, Any]] = [
            ("user", m.TextContent(text="Greet Ada.")),
            (
                "user",
                m.EmbeddedResource(resource=m.TextResourceContents(uri="x:y", text="how")),
            ),
            ("assistant", m.TextContent(text="Gladly.", annotations=NOTES)),
        ]
        return m.GetPromptResult(
            messages=[m.PromptMessage(role=role, content=content) for role, content in contents]
        )

    found = await with_server(lambda t: t.get_prompt("greet", {"who": "Ada"}), on_get_prompt=get)
    assert asked == [("greet", {"who": "Ada"})]
    tr.check_history(found)
    assert found == (
        tr.Message.user("Greet Ada."),
        tr.Message.user(tr.EmbeddedResource("x:y", text="how")),
        tr.Message.assistant(
            tr.TextContent(
                "Gladly.",
                {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01"},
            )
        ),
    )


def test_the_messages_of_a_prompt_go_both_ways() -> None:
    for role in ("user", "assistant"):
        message = m.PromptMessage(role=role, content=m.TextContent(text="t", annotations=NOTES))
        assert convert.to_prompt_messages(convert.from_prompt_message(message)) == [message]


# --- completions ----------------------------------------------------------------


async def test_an_argument_is_completed() -> None:
    asked: list[m.CompleteRequestParams] = []

    async def complete(ctx: Any, params: m.CompleteRequestParams) -> m.CompleteResult:
        asked.append(params)
        return m.CompleteResult(completion=m.Completion(values=["Ada"], total=7, has_more=True))

    async def act(toolset: McpToolset) -> None:
        found = await toolset.complete("who", "A", prompt="greet", given={"how": "well"})
        assert found == Completion(("Ada",), total=7, has_more=True)
        await toolset.complete("name", "", template="file:///{name}")
        with pytest.raises(TypeError, match="exactly one"):
            await toolset.complete("name", "", prompt="a", template="b")
        with pytest.raises(TypeError, match="exactly one"):
            await toolset.complete("name", "")

    await with_server(act, on_completion=complete)
    first, second = asked
    assert first.ref == m.PromptReference(name="greet")
    assert (first.argument.name, first.argument.value) == ("who", "A")
    assert first.context is not None
    assert first.context.arguments == {"how": "well"}
    assert second.ref == m.ResourceTemplateReference(uri="file:///{name}")
    assert second.context is None


# --- pages ----------------------------------------------------------------------

#: The method, the server's handler, its result, the field for the entries, and an entry.
LISTS: list[tuple[str, str, Any, str, Any]] = [
    ("list_resources", "on_list_resources", m.ListResourcesResult, "resources", RESOURCE),
    (
        "list_resource_templates",
        "on_list_resource_templates",
        m.ListResourceTemplatesResult,
        "resource_templates",
        TEMPLATE,
    ),
    ("list_prompts", "on_list_prompts", m.ListPromptsResult, "prompts", PROMPT),
]


@pytest.mark.parametrize(("method", "handler", "page", "field", "entry"), LISTS)
async def test_all_pages_are_read(
    method: str, handler: str, page: Any, field: str, entry: Any
) -> None:
    async def listed(ctx: Any, params: m.PaginatedRequestParams | None) -> Any:
        number = int((params and params.cursor) or 0)
        named = entry.model_copy(update={"name": str(number)})
        return page(**{field: [named]}, next_cursor=None if number == 2 else str(number + 1))

    handlers: Any = {handler: listed}
    found = await with_server(lambda t: getattr(t, method)(), **handlers)
    assert [each.name for each in found] == ["0", "1", "2"]


@pytest.mark.parametrize(("method", "handler", "page", "field", "entry"), LISTS)
@pytest.mark.parametrize(
    ("same", "problem"),
    [
        (True, "comes back to the cursor 'again'"),
        (False, "goes on in .* after 100 entries"),
    ],
)
async def test_a_list_without_end_is_an_error(
    method: str,
    handler: str,
    page: Any,
    field: str,
    entry: Any,
    same: bool,
    problem: str,
) -> None:
    asked = 0

    async def listed(ctx: Any, params: m.PaginatedRequestParams | None) -> Any:
        nonlocal asked
        asked += 1
        return page(**{field: [entry]}, next_cursor="again" if same else str(asked))

    async def act(toolset: McpToolset) -> None:
        with pytest.raises(McpServerError, match=problem) as caught:
            await getattr(toolset, method)()
        assert caught.value.server == "srv"
        assert "MCP server 'srv'" in str(caught.value)

    handlers: Any = {handler: listed}
    await with_server(act, **handlers)


async def test_a_list_of_very_many_is_an_error() -> None:
    many = [m.Resource(uri="x:y", name="n")] * 6000

    async def act(toolset: McpToolset) -> None:
        with pytest.raises(McpServerError, match="goes on in resources/list after 12000 entries"):
            await toolset.list_resources()

    async def pages(ctx: Any, params: m.PaginatedRequestParams | None) -> m.ListResourcesResult:
        cursor = ((params and params.cursor) or "") + "a"
        return m.ListResourcesResult(resources=many, next_cursor=cursor)

    await with_server(act, on_list_resources=pages)


# --- errors ---------------------------------------------------------------------


async def test_what_the_server_refuses_is_a_typed_error() -> None:
    async def read(ctx: Any, params: Any) -> m.ReadResourceResult:
        raise mcp.MCPError(code=-32002, message="no such thing", data={"uri": "x:y"})

    async def act(toolset: McpToolset) -> None:
        with pytest.raises(McpRequestError) as caught:
            await toolset.read_resource("x:y")
        assert caught.value.code == -32002
        assert caught.value.data == {"uri": "x:y"}
        assert str(caught.value) == (
            "MCP server 'srv' refused resources/read of 'x:y': no such thing (code -32002)"
        )

    await with_server(act, on_read_resource=read)


@pytest.mark.parametrize(
    ("method", "args", "options"),
    [
        ("list_resources", (), {}),
        ("list_resource_templates", (), {}),
        ("read_resource", ("x:y",), {}),
        ("list_prompts", (), {}),
        ("get_prompt", ("p",), {}),
        ("complete", ("a", ""), {"prompt": "p"}),
    ],
)
async def test_a_feature_that_the_server_does_not_have_is_refused(
    method: str, args: tuple[str, ...], options: dict[str, str]
) -> None:
    async def act(toolset: McpToolset) -> None:
        with pytest.raises(McpRequestError) as caught:
            await getattr(toolset, method)(*args, **options)
        assert caught.value.code == m.METHOD_NOT_FOUND

    await with_server(act)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            lambda: m.GetPromptResult.model_validate({"messages": [{"role": "system"}]}),
            "sent a malformed answer to prompts/get: .* at messages.0.role",
        ),
        (lambda: int("x"), "failed at prompts/get: ValueError: invalid literal"),
    ],
)
async def test_whatever_else_the_sdk_raises_is_a_typed_error(raised: Any, said: str) -> None:
    async def asked(client: object) -> None:
        raised()

    async with toolset_of() as toolset:
        with pytest.raises(McpServerError, match=said) as caught:
            await toolset._reader.ask("prompts/get", asked)
    assert type(caught.value) is McpServerError


@attrs.define
class Upkeep:
    """A server's connections, each with an answer to give or an error to raise."""

    outcomes: list[Any]
    reconnects: bool = True
    users: int = 1
    used: list[Any] = attrs.Factory(list[Any])

    async def usable(self) -> Any:
        connection: Any = mock_connection(self.outcomes[len(self.used)])
        self.used.append(connection)
        return connection


def mock_connection(outcome: object) -> Any:
    @attrs.define
    class Connection:
        client: Any = outcome
        is_doubtful: bool = False
        calls: int = 0

        def begin_call(self) -> None:
            self.calls += 1

        def end_call(self) -> None:
            self.calls -= 1

    return Connection()


@pytest.mark.parametrize(
    ("loss", "reconnects", "asked"),
    [
        (Loss.FORGOTTEN, True, 2),
        (Loss.NOT_SENT, True, 2),
        (Loss.UNKNOWN, True, 1),
        (Loss.FORGOTTEN, False, 1),
    ],
)
@pytest.mark.parametrize("works", [True, False])
async def test_a_question_that_never_arrived_is_asked_once_more(
    loss: Loss, reconnects: bool, asked: int, works: bool
) -> None:
    lost = mcp.MCPError(code=0, message="404", data=loss)
    upkeep: Any = Upkeep([lost, "answer" if works else lost, lost], reconnects)

    async def ask(client: Any) -> str:
        await trio.lowlevel.checkpoint()
        if isinstance(client, mcp.MCPError):
            raise client
        return str(client)

    reader = reading.Reader("srv", upkeep)
    if asked == 2 and works:
        assert await reader.ask("prompts/get", ask) == "answer"
    else:
        with pytest.raises(McpServerError, match="'srv' was lost during prompts/get: 404"):
            await reader.ask("prompts/get", ask)
    assert len(upkeep.used) == asked
    assert upkeep.used[0].is_doubtful
    assert [each.calls for each in upkeep.used] == [0] * asked


async def test_a_server_that_does_not_answer_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    cancelled = trio.Event()

    async def get(ctx: Any, params: Any) -> m.GetPromptResult:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    async def act(toolset: McpToolset) -> None:
        began = trio.current_time()
        with pytest.raises(McpServerError, match="did not answer prompts/get of 'p' within 5 sec"):
            await toolset.get_prompt("p")
        assert trio.current_time() - began == 5
        with trio.fail_after(30):
            await cancelled.wait()  # the server was told

    await with_server(act, 5, on_get_prompt=get)


async def test_a_connection_that_ends_is_a_typed_error() -> None:
    waiting = trio.Event()
    said: list[str] = []

    async def get(ctx: Any, params: Any) -> m.GetPromptResult:
        waiting.set()
        await trio.sleep_forever()
        raise AssertionError

    async def asks(toolset: McpToolset) -> None:
        with pytest.raises(McpServerError) as caught:
            await toolset.get_prompt("p")
        assert not hasattr(caught.value, "code")  # it did not say no
        said.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        toolset = toolset_of(on_get_prompt=get)
        async with toolset:
            nursery.start_soon(asks, toolset)
            await waiting.wait()
    assert said == [
        "MCP server 'srv' was lost during prompts/get of 'p': Connection closed",
    ]
    with pytest.raises(tr.NotEnteredError, match="MCP server 'srv' is not running"):
        await toolset.get_prompt("p")


async def test_a_cancel_leaves_and_the_server_is_told() -> None:
    waiting, cancelled = trio.Event(), trio.Event()

    async def get(ctx: Any, params: Any) -> m.GetPromptResult:
        try:
            waiting.set()
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError

    async def act(toolset: McpToolset) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(toolset.get_prompt, "p")
                await waiting.wait()
                scope.cancel()
        assert scope.cancelled_caught
        with trio.fail_after(30):
            await cancelled.wait()

    await with_server(act, on_get_prompt=get)
