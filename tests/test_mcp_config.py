"""Config files of MCP servers, and `McpServers`: all of them as one toolset."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import attrs
import mcp_types as m
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from mcp.server import Server

import trio_runner as tr
import trio_runner.abc as abc
import trio_runner_adapters.mcp._config as config
import trio_runner_adapters.mcp._names as names
import trio_runner_adapters.mcp._servers as servers_
from trio_runner.testing import TOOLSET_RULES, ScriptedModel, call, check_toolset
from trio_runner_adapters.mcp import (
    Answer,
    Callbacks,
    McpConfigError,
    McpServerError,
    McpServers,
    McpToolset,
    Question,
    load_servers,
)

SERVER = Path(__file__).parent / "servers" / "hostile_server.py"
#: Seconds after which a test takes something for hanging.
LONG = 30.0


def read(
    servers: Mapping[str, Any], env: Mapping[str, str] | None = None, **more: Any
) -> config.Config:
    return config.read_config({"mcpServers": servers, **more}, env or {})


def problems_of(servers: Any, env: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(McpConfigError) as caught:
        read(servers, env)
    return list(caught.value.problems)


# --- the shape ------------------------------------------------------------------


def test_a_process_has_a_command_and_more() -> None:
    entry = {
        "command": "python",
        "args": ["-m", "x"],
        "env": {"A": "b"},
        "cwd": "/tmp",
        "required": True,
        "mode": "legacy",
    }
    assert read({"git": entry}).servers == (
        config.ServerConfig(
            name="git",
            kind="stdio",
            command="python",
            args=("-m", "x"),
            env={"A": "b"},
            cwd="/tmp",
            required=True,
            mode="legacy",
        ),
    )


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "http"),
        ({"type": "http"}, "http"),
        ({"type": "streamable-http"}, "http"),
        ({"type": "streamableHttp"}, "http"),
        ({"transport": "streamable_http"}, "http"),
        ({"type": "http", "transport": "streamable-http"}, "http"),
        ({"type": "sse"}, "sse"),
        ({"transport": "sse"}, "sse"),
    ],
)
def test_a_url_has_a_transport_and_headers(fields: dict[str, str], kind: str) -> None:
    entry = {"url": "https://x.example/mcp", "headers": {"A": "b"}, **fields}
    [server] = read({"web": entry}).servers
    assert (server.kind, server.url, server.headers) == (
        kind,
        "https://x.example/mcp",
        {"A": "b"},
    )


def test_servers_are_in_their_order_and_those_disabled_are_named() -> None:
    found = read(
        {
            "b": {"command": "b"},
            "off": {"command": "${NO_SUCH}", "disabled": True},
            "a": {"command": "a", "disabled": False},
        }
    )
    assert [each.name for each in found.servers] == ["b", "a"]
    assert found.disabled == ("off",)


def test_vs_codes_own_key_will_do() -> None:
    found = config.read_config({"servers": {"a": {"type": "stdio", "command": "a"}}}, {})
    assert [each.name for each in found.servers] == ["a"]


def test_timeouts_are_seconds_but_the_ecosystems_is_milliseconds() -> None:
    [server] = read({"a": {"command": "a", "timeout": 2500, "start_timeout": 7}}).servers
    assert server.timeouts == {"call_timeout": 2.5, "start_timeout": 7}
    [server] = read({"a": {"command": "a", "call_timeout": 0.5, "close_timeout": 3}}).servers
    assert server.timeouts == {"call_timeout": 0.5, "close_timeout": 3}


def test_keys_that_are_not_known_are_named(caplog: pytest.LogCaptureFixture) -> None:
    read({"a": {"command": "a", "autoApprove": [], "x y": 1}, "b": {"command": "b"}})
    assert caplog.messages == [
        'the config: not known here and ignored: mcpServers.a.autoApprove, mcpServers.a["x y"]'
    ]


def test_very_many_keys_that_are_not_known_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read({"a": {"command": "a", **{f"k{number}": 1 for number in range(50)}}})
    assert "mcpServers.a.k19, and 30 more" in caplog.text
    assert "k20" not in caplog.text


def test_secrets_do_not_show() -> None:
    found = read(
        {
            "a": {"command": "a", "env": {"K": "s3cret"}},
            "b": {"url": "https://s3cret@x.example", "headers": {"K": "s3cret"}},
        }
    )
    assert "s3cret" not in repr(found)
    assert "s3cret" not in str(problems_of({"a": {"command": "a", "env": ["s3cret"]}}))


# --- what is refused ------------------------------------------------------------

NAME = "mcpServers.git"
URL = "http://u"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (3, f"{NAME}: expected an object, found a number"),
        ({"command": "x", "args": "-m"}, f"{NAME}.args: expected a list, found text"),
        ({"command": "x", "args": ["a", 1]}, f"{NAME}.args[1]: expected text, found a number"),
        ({"command": "x", "env": {"A": 1}}, f"{NAME}.env.A: expected text, found a number"),
        ({"command": "x", "env": {"A B": None}}, f'{NAME}.env["A B"]: expected text, found null'),
        ({"command": ["x"]}, f"{NAME}.command: expected text, found a list"),
        (
            {"command": "x", "disabled": "no"},
            f"{NAME}.disabled: expected true or false, found text",
        ),
        (
            {"command": "x", "timeout": 1.5},
            f"{NAME}.timeout: expected a whole number, found a number",
        ),
        ({"command": "x", "start_timeout": "5"}, f"{NAME}.start_timeout: expected a number"),
        ({"command": "x", "start_timeout": 0}, f"{NAME}.start_timeout: Input should be greater"),
        (
            {"url": "http://u", "headers": {"A": True}},
            f"{NAME}.headers.A: expected text, found true",
        ),
        ({}, f"{NAME}: has no 'url', which a http server needs"),
        ({"type": "stdio"}, f"{NAME}: has no 'command', which a stdio server needs"),
        ({"command": "x", "url": "u"}, f"{NAME}.url: a stdio server has none"),
        (
            {"type": "sse", "command": "x", "url": "http://u"},
            f"{NAME}.command: a sse server has none",
        ),
        ({"type": "ws", "url": "u"}, f"{NAME}.type: found 'ws'; expected one of 'stdio'"),
        (
            {"type": "http", "transport": "sse", "url": "u"},
            f"{NAME}.type: found 'http' and 'sse'; expected one of",
        ),
        ({"command": "x", "timeout": 30}, f"{NAME}.timeout: 30 is less than a second"),
        (
            {"command": "x", "timeout": 3000, "call_timeout": 3},
            f"{NAME}.timeout: expected either 'timeout' or 'call_timeout'",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(entry: Any, problem: str) -> None:
    [found] = problems_of({"git": entry})
    assert found.startswith(problem)


def places_of(servers: Any, env: Mapping[str, str] | None = None) -> list[str]:
    return [each.partition(": ")[0] for each in problems_of(servers, env)]


def test_all_that_is_wrong_is_said_at_once() -> None:
    found = places_of(
        {
            "a": {"command": "${NO_SUCH}", "args": ["${NOR_THIS}"]},
            " ": {"command": "x"},
            "b.c": {"url": "u", "command": "x"},
            "d": {"url": "ftp://x", "headers": {"A B": "x", "C": "${NO_SUCH}"}, "mode": "odd"},
            "e": {"type": "odd", "args": ["${NO_SUCH}"]},
            "f": 3,
        }
    )
    assert found == [
        "mcpServers.a.command",
        "mcpServers.a.args[0]",
        'mcpServers[" "]',
        'mcpServers["b.c"].url',
        "mcpServers.d.mode",
        "mcpServers.d.url",
        'mcpServers.d.headers["A B"]',
        "mcpServers.d.headers.C",
        "mcpServers.e.type",
        "mcpServers.e.args[0]",
        "mcpServers.f",
    ]


def test_a_wrong_type_hides_nothing_else_of_its_server_and_causes_nothing_else() -> None:
    entry: dict[str, Any] = {
        "command": 1,
        "args": ["a\0", 2, "${NO_SUCH}"],
        "env": {"A": 3, "B": "${NO_SUCH}", 4: "x"},
        "cwd": [],
        "timeout": 30,
    }
    assert places_of({"a": entry}) == [
        "mcpServers.a.command",
        "mcpServers.a.args[1]",
        "mcpServers.a.env.A",
        "mcpServers.a.env[4]",
        "mcpServers.a.cwd",
        "mcpServers.a.timeout",
        "mcpServers.a.args[0]",
        "mcpServers.a.args[2]",
        "mcpServers.a.env.B",
    ]
    assert places_of({"a": {"type": 1, "headers": {"A": "\n"}}}) == ["mcpServers.a.type"]
    assert places_of({"a": {"url": 1}, "b": {"url": [], "command": "x"}}) == [
        "mcpServers.a.url",
        "mcpServers.b.url",
    ]


def test_a_config_that_is_refused_is_not_changed() -> None:
    source = {"a": {"command": 1, "args": ["x", 2], "env": {"A": 3}}}
    problems_of(source)
    assert source == {"a": {"command": 1, "args": ["x", 2], "env": {"A": 3}}}


@pytest.mark.parametrize("source", [b"mcp.json", 3, None, ["mcp.json"]])
def test_what_is_no_source_is_a_type_error_that_says_what_is_one(source: Any) -> None:
    with pytest.raises(TypeError, match=r"source is a .*; expected the path of a JSON file"):
        load_servers(source)


def test_a_path_that_is_none_is_refused_as_a_config() -> None:
    with pytest.raises(McpConfigError, match="cannot be read: no path: "):
        load_servers("\0")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({}, "it has no 'mcpServers'"),
        ({"mcpServers": []}, "mcpServers: expected an object, found a list"),
        ({"mcpServers": {1: {}}}, "mcpServers"),
    ],
)
def test_a_config_that_is_none_is_refused(source: Any, problem: str) -> None:
    with pytest.raises(McpConfigError, match=problem):
        config.read_config(source, {})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"mcpServers": {', r"is not JSON: .* \(line 1, column 17\)"),
        (b"[]", "holds a list; expected an object"),
        (b"\xff\xfe", r"is not UTF-8 \(byte 0\)"),
        (b'{"mcpServers": {"a": {"command": "x"}, "a": {}}}', "the key 'a' is there twice"),
        (b"[" * 100_000, "is nested too deep"),
        (b" " * 5_000_000, "is longer than"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(text)
    with pytest.raises(McpConfigError, match=problem) as caught:
        load_servers(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(McpConfigError, match="cannot be read: No such file"):
        load_servers(tmp_path / "mcp.json")


def test_what_the_toolset_refuses_is_refused_with_its_place() -> None:
    source = {"mcpServers": {"a": {"command": "x", "mode": "odd"}, "b": {"url": "nonsense"}}}
    with pytest.raises(McpConfigError) as caught:
        load_servers(source)
    first, second = caught.value.problems
    assert first.startswith("mcpServers.a.mode: mode is 'odd'; expected one of auto, legacy")
    assert second == ("mcpServers.b.url: is no usable URL; expected http://... or https://...")


@pytest.mark.parametrize(
    "server",
    [
        {"url": "${T}"},
        {"url": "http://[::1${T}"},
        {"url": "http://x:${T}/"},
        {"url": "ftp://${T}@x/${T}?${T}#${T}", "type": "sse"},
        {"url": "http://x/", "headers": {"X": "${T}\r\n"}},
        {"url": "http://x/", "headers": {"X Y": "${T}"}},
        {"url": "http://x/${T}\0"},
        {"url": "http://x:0/${T}"},
        {"url": "http://x/", "headers": {"X": " ${T}"}},
        {"url": "http://x/", "headers": {"X": "${T}\xe9"}},
        {"command": "${T}\0"},
        {"command": "x", "cwd": "${T}\0"},
        {"command": "x", "args": ["${T}\0"]},
        {"command": "x", "env": {"A": "${T}\0"}},
        {"command": "x", "env": {"A=B": "${T}"}},
        {"command": "x", "env": {"": "${T}"}},
        {"command": "x", "args": ["${T}\ud800"]},
    ],
)
def test_a_refusal_shows_no_value_of_a_variable(server: dict[str, Any]) -> None:
    with pytest.raises(McpConfigError) as caught:
        load_servers({"mcpServers": {"a": server}}, env={"T": "SECRET123"})
    (problem,) = caught.value.problems
    assert problem.startswith("mcpServers.a")
    assert "secret" not in str(caught.value).lower()


# --- variables ------------------------------------------------------------------

ENV = {"A": "1", "EMPTY": "", "NESTED": "${A}"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${env:A}", "1"),
        ("${A:-2}", "1"),
        ("${B:-2}", "2"),
        ("${B:-}", ""),
        ("${B:-a:-b}", "a:-b"),
        ("${env:B:-2}", "2"),
        ("${EMPTY:-2}", ""),  # it is set
        ("${NESTED}", "${A}"),  # what a variable holds is not read again
        ("$A", "$A"),
        ("${}", "${}"),
        ("${x%y}", "${x%y}"),
        ("${A", "${A"),
    ],
)
def test_variables_are_expanded_once(text: str, expanded: str) -> None:
    entry = {"command": f"/{text}", "args": [text], "env": {"K": text}, "cwd": f"/{text}"}
    web = {"url": f"https://x/{text}", "headers": {"K": text}}
    process, page = read({"a": entry, "b": web}, ENV).servers
    assert process.command == process.cwd == f"/{expanded}"
    assert process.args == (expanded,)
    assert process.env == page.headers == {"K": expanded}
    assert page.url == f"https://x/{expanded}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NO_SUCH}", "the variable NO_SUCH is not set; set it, or write ${NO_SUCH:-default}"),
        ("${env:NO_SUCH}", "the variable NO_SUCH is not set"),
        ("${input:token}", "${input:token} asks the user of an editor"),
        ("${A:-${B}}", "a default cannot hold a variable"),
    ],
)
def test_a_variable_that_cannot_be_expanded_is_refused(text: str, problem: str) -> None:
    [found] = problems_of({"a": {"command": "x", "args": ["", text]}}, ENV)
    assert found.startswith("mcpServers.a.args[1]: ")
    assert problem in found


def test_variables_are_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIO_RUNNER_TEST_COMMAND", "x")
    source = {"mcpServers": {"a": {"command": "${TRIO_RUNNER_TEST_COMMAND}"}}}
    assert list(load_servers(source)) == ["a"]
    with pytest.raises(McpConfigError, match="is not set"):
        load_servers(source, env={})


# --- prefixes -------------------------------------------------------------------


def test_a_servers_name_is_its_prefix_as_far_as_it_can_be() -> None:
    found = servers_.server_prefixes(["git", "My Server", "a__b", "x_", "git_hub"])
    assert found["git"] == "git"
    assert found["git_hub"] == "git_hub"
    assert found["My Server"] == "My_Server"
    assert found["a__b"] == "a_b"
    assert found["x_"] == "x"


def test_names_that_become_equal_keep_apart() -> None:
    long = "n" * 60
    found = servers_.server_prefixes(["a.b", "a b", "a_b", "", "__", long, long + "x"])
    assert found["a_b"] == "a_b"
    assert len(set(found.values())) == 7
    assert all(len(each) <= 32 and each.strip("_") == each for each in found.values())
    assert found["__"].startswith("server_")


ODD_NAMES = st.text(st.sampled_from("ab_.- é"), max_size=40) | st.text(
    st.sampled_from("a_"), min_size=60, max_size=70
)


def check_exposed(tools: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Check that no exposed name is there twice, and return the prefixes."""
    prefixes = servers_.server_prefixes(tools)
    exposed = [
        name
        for server, listed in tools.items()
        for name in names.exposed_names(listed, prefixes[server]).values()
    ]
    assert len(set(exposed)) == len(exposed)
    assert all(abc.TOOL_NAME.fullmatch(name) for name in exposed)
    return prefixes


@given(
    st.dictionaries(ODD_NAMES, st.lists(ODD_NAMES, max_size=4, unique=True), max_size=5),
    st.randoms(),
)
def test_kD6_no_two_servers_ever_expose_the_same_name(
    tools: dict[str, list[str]], random: Any
) -> None:
    prefixes = check_exposed(tools)
    shuffled = list(tools)
    random.shuffle(shuffled)
    assert servers_.server_prefixes(shuffled) == prefixes  # whatever the order


@pytest.mark.parametrize(
    "tools",
    [
        {"a": ["b__c"], "a__b": ["c"]},
        {"a": ["_x"], "a_": ["x"]},
        {"a": ["__x"], "a__": ["x"]},
        {"n" * 30: ["t" * 60], "n" * 31: ["t" * 60], "n" * 32: ["t" * 60]},
    ],
)
def test_kD6_a_prefix_is_never_taken_for_another(tools: dict[str, list[str]]) -> None:
    check_exposed(tools)


# --- servers together, in memory ------------------------------------------------


def server_of(name: str, *tools: str, ready: Any = None) -> Server[Any]:
    async def call_tool(ctx: Any, params: m.CallToolRequestParams) -> m.CallToolResult:
        return m.CallToolResult(content=[m.TextContent(text=f"{params.name} of {name}")])

    async def list_tools(ctx: Any, params: Any) -> m.ListToolsResult:
        if ready is not None:
            await ready()
        listed = [m.Tool(name=each, input_schema={"type": "object"}) for each in tools]
        return m.ListToolsResult(tools=listed)

    return Server(name, on_call_tool=call_tool, on_list_tools=list_tools)


def in_memory(name: str, *tools: str, prefix: bool = True, **options: Any) -> McpToolset:
    server = server_of(name, *tools, ready=options.pop("ready", None))
    options = {"prefix": name if prefix else None, **options}
    return McpToolset.in_memory(server, name=name, **options)


async def test_several_servers_are_one_toolset_and_a_mapping() -> None:
    servers = McpServers({"a": in_memory("a", "x", "y"), "b": in_memory("b", "x")})
    toolset: abc.Toolset = servers
    assert (list(servers), len(servers), servers["a"].name) == (["a", "b"], 2, "a")
    async with toolset:
        listed = await servers.list_tools()
        assert [each.name for each in listed] == ["a__x", "a__y", "b__x"]
        assert await servers.list_tools() is listed
        assert list(await servers["b"].list_tools()) == [listed[2]]


async def test_kD6_an_agent_reaches_the_right_server_of_two_with_the_same_tool() -> None:
    servers = McpServers({"a": in_memory("a", "search"), "b": in_memory("b", "search")})

    async def search() -> str:
        return "search of ours"

    script = [[call("b__search"), call("search"), call("a__search")], "done"]
    agent = tr.ToolAgent("a", model=ScriptedModel(script), tools=[servers, search])
    async with agent:
        await agent.generate("go")
    assert [each.text for each in agent.history[2].tool_results] == [
        "search of b",
        "search of ours",
        "search of a",
    ]


async def test_servers_start_side_by_side() -> None:
    started = 0
    all_started = trio.Event()

    async def ready() -> None:
        nonlocal started
        started += 1
        if started == 3:
            all_started.set()
        await all_started.wait()  # one after the other would wait for ever

    servers = McpServers({name: in_memory(name, "x", ready=ready) for name in "abc"})
    with trio.fail_after(LONG):
        async with servers:
            assert [each.status for each in servers.report()] == ["started"] * 3


async def test_the_report_says_who_started_and_who_did_not(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    servers = McpServers(
        {
            "good": in_memory("good", "x", "y"),
            "one": in_memory("one", "x"),
            "late": in_memory("late", ready=trio.sleep_forever, required=False, start_timeout=5),
        },
        disabled=["off"],
    )
    assert [str(each) for each in servers.report()] == [
        "good: not started",
        "one: not started",
        "late: not started",
        "off: disabled",
    ]
    began = trio.current_time()
    async with servers:
        assert trio.current_time() - began == 5  # the start limit of the slowest
        assert len(await servers.list_tools()) == 3
        good, one, late, off = [str(each) for each in servers.report()]
    assert (good, one, off) == ("good: started, 2 tools", "one: started, 1 tool", "off: disabled")
    assert late.startswith("late: failed: MCP server 'late' did not start within 5 seconds")
    assert "it is not required" in caplog.text
    assert [each.status for each in servers.report()][:2] == ["not_started", "not_started"]


async def test_a_required_server_that_fails_closes_the_others_and_is_named(
    autojump_clock: trio.testing.MockClock,
) -> None:
    good = in_memory("good", "x")
    slow = in_memory("slow", ready=trio.sleep_forever, start_timeout=60)
    bad = in_memory("bad", ready=trio.sleep_forever, start_timeout=5)
    began = trio.current_time()
    with pytest.raises(McpServerError) as caught:
        async with McpServers({"good": good, "slow": slow, "bad": bad}):
            raise AssertionError
    assert caught.value.server == "bad"
    assert trio.current_time() - began == 5  # nobody waits for the slow one
    for toolset in (good, slow, bad):
        with pytest.raises(tr.NotEnteredError):
            await toolset.list_tools()


async def test_a_cancel_while_they_start_leaves_nothing_running(
    autojump_clock: trio.testing.MockClock,
) -> None:
    good = in_memory("good", "x")
    slow = in_memory("slow", ready=trio.sleep_forever, start_timeout=60)
    servers = McpServers({"good": good, "slow": slow})
    with trio.move_on_after(5) as scope:
        async with servers:
            raise AssertionError
    assert scope.cancelled_caught
    with pytest.raises(tr.NotEnteredError):
        await good.list_tools()
    with pytest.raises(tr.NotEnteredError):
        await servers.list_tools()


async def test_they_may_be_used_by_several_tasks_and_left_in_any_order() -> None:
    servers = McpServers({"a": in_memory("a", "x"), "b": in_memory("b", "x")})
    await servers.__aenter__()
    async with servers:
        async with trio.open_nursery() as nursery:  # left by another task than entered
            nursery.start_soon(servers.__aexit__, None, None, None)
        assert len(await servers.list_tools()) == 2
    with pytest.raises(tr.NotEnteredError):
        await servers.list_tools()
    with pytest.raises(tr.NotEnteredError, match="left more often"):
        await servers.__aexit__(None, None, None)
    async with servers:  # and again
        assert len(await servers.list_tools()) == 2


def test_a_toolset_is_there_once() -> None:
    one = in_memory("a", "x")
    with pytest.raises(ValueError, match="twice"):
        McpServers({"a": one, "b": one})


@pytest.mark.slow
def test_all_servers_together_keep_every_promise_of_a_toolset() -> None:
    report = check_toolset(
        lambda: McpServers({"a": in_memory("a", "x"), "b": in_memory("b", "x")}),
        calls=[("a__x", {}), ("b__x", {})],
        max_positions=10,
    )
    report.raise_if_failed()
    assert [rule.status for rule in report.rules] == ["ok"] * len(TOOLSET_RULES), report.render()


# --- how they are entered and left, with toolsets that do as told ---------------


@attrs.define
class Fake:
    """A toolset that enters and leaves as it is told."""

    name: str
    told: list[str]
    on_enter: Any = None
    on_leave: Any = None
    failure: None = None

    async def list_tools(self) -> Sequence[abc.Tool]:
        return ()

    async def __aenter__(self) -> Self:
        if self.on_enter is not None:
            await self.on_enter()
        self.told.append(f"+{self.name}")
        return self

    async def __aexit__(self, *args: object) -> None:
        try:
            if self.on_leave is not None:
                await self.on_leave()
        finally:
            self.told.append(f"-{self.name}")


def fakes(told: list[str], **how: Mapping[str, Any]) -> McpServers:
    made: Any = {name: Fake(name, told, **each) for name, each in how.items()}
    return McpServers(made)


async def test_servers_are_closed_side_by_side() -> None:
    leaving = 0
    all_leave = trio.Event()

    async def leave() -> None:
        nonlocal leaving
        leaving += 1
        if leaving == 3:
            all_leave.set()
        await all_leave.wait()

    told: list[str] = []
    with trio.fail_after(LONG):
        async with fakes(told, **{name: {"on_leave": leave} for name in "abc"}):
            pass
    assert sorted(told) == ["+a", "+b", "+c", "-a", "-b", "-c"]


async def test_one_that_cannot_be_closed_does_not_keep_the_others() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("no")

    told: list[str] = []
    with pytest.raises(OSError, match="no"):
        async with fakes(told, a={"on_leave": fail}, b={}):
            pass
    assert sorted(told) == ["+a", "+b", "-a", "-b"]


async def test_what_the_body_raises_goes_before_a_cancel_and_what_closing_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    async def fail() -> None:
        raise OSError("cannot close")

    async def cancelled_and_raises() -> None:
        with trio.CancelScope() as scope:
            async with fakes(told, a={"on_leave": fail}, b={}):
                scope.cancel()
                raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await cancelled_and_raises()
    assert sorted(told) == ["+a", "+b", "-a", "-b"]
    assert "an MCP server could not be closed: OSError: cannot close" in caplog.text


async def test_a_cancel_goes_before_what_closing_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    async def fail() -> None:
        raise OSError("cannot close")

    with trio.CancelScope() as scope:
        async with fakes(told, a={"on_leave": fail}, b={}):
            scope.cancel()
        raise AssertionError
    assert scope.cancelled_caught
    assert sorted(told) == ["+a", "+b", "-a", "-b"]
    assert "an MCP server could not be closed: OSError: cannot close" in caplog.text


async def test_of_two_that_fail_one_is_raised_and_the_other_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    together = trio.Event()

    async def fail_first() -> None:
        together.set()
        raise McpServerError("a", "is gone")

    async def fail_with_it() -> None:
        await together.wait()
        raise McpServerError("b", "is gone")

    async def fails_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise McpServerError("c", "is gone")

    told: list[str] = []
    how = {"a": fail_first, "b": fail_with_it, "c": fails_when_cancelled}
    with pytest.raises(McpServerError) as caught:
        async with fakes(told, **{name: {"on_enter": each} for name, each in how.items()}):
            raise AssertionError
    others = {"a", "b", "c"} - {caught.value.server}
    logged = [each for each in caplog.messages if "another MCP server failed too" in each]
    assert {name for name in others if any(f"'{name}'" in each for each in logged)} >= {"c"}
    assert told == []


async def test_ctrl_c_goes_before_errors() -> None:
    async def interrupted() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyboardInterrupt

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise McpServerError("a", "is gone")

    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        async with fakes(told, a={"on_enter": fail}, b={"on_enter": interrupted}):
            raise AssertionError


# --- real processes -------------------------------------------------------------


def entry(notes: Path, mode: str, **fields: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-S", str(SERVER), mode, str(notes)], **fields}


def living(notes: Path) -> bool:
    """Whether the server that wrote its process id into ``notes`` is alive."""
    if not notes.exists():
        return False
    stat = Path("/proc") / notes.read_text().split()[0] / "stat"
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_a_file_is_loaded_and_its_servers_answer(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    servers = {
        "one": entry(tmp_path / "one", "plain", env={"PYTHONUTF8": "${UTF:-1}"}),
        "two": entry(tmp_path / "two", "plain", start_timeout=LONG),
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    loaded = load_servers(path)
    script = [[call("one__echo", text="1"), call("two__echo", text="2")], "done"]
    agent = tr.ToolAgent("a", model=ScriptedModel(script), tools=[loaded])
    async with agent:
        assert [str(each) for each in loaded.report()] == [
            "one: started, 1 tool",
            "two: started, 1 tool",
        ]
        await agent.generate("go")
    assert [each.text for each in agent.history[2].tool_results] == ["1", "2"]
    assert not living(tmp_path / "one")
    assert not living(tmp_path / "two")


@pytest.mark.slow
async def test_kD11_of_three_servers_the_optional_ones_are_reported(tmp_path: Path) -> None:
    source = {
        "ok": entry(tmp_path / "ok", "plain"),
        "refuses": entry(tmp_path / "refuses", "exits"),
        "mute": entry(tmp_path / "mute", "mute", start_timeout=2),
        "absent": {"command": "/no/such/program"},
    }
    servers = load_servers({"mcpServers": source})
    with trio.fail_after(LONG):
        async with servers:
            assert [each.name for each in await servers.list_tools()] == ["ok__echo"]
            report = {each.name: each for each in servers.report()}
    assert [each.status for each in report.values()] == ["started", "failed", "failed", "failed"]
    assert "no licence found" in report["refuses"].why
    assert "did not start within 2 seconds" in report["mute"].why
    assert "/no/such/program" in report["absent"].why
    assert not any(living(tmp_path / name) for name in source)


@pytest.mark.slow
async def test_kD11_a_required_server_that_fails_closes_the_others(tmp_path: Path) -> None:
    source = {
        "ok": entry(tmp_path / "ok", "plain"),
        "mute": entry(tmp_path / "mute", "mute", required=True, start_timeout=2),
    }
    with trio.fail_after(LONG), pytest.raises(McpServerError) as caught:
        async with load_servers({"mcpServers": source}):
            raise AssertionError
    assert caught.value.server == "mute"
    assert (tmp_path / "ok").exists()  # it had started
    assert not any(living(tmp_path / name) for name in source)


# --- what servers are given -----------------------------------------------------


def test_callbacks_and_authentication_go_to_their_servers() -> None:
    seen: list[Question] = []

    async def elicitation(question: Question) -> Answer | None:
        seen.append(question)
        return None

    source = {"mcpServers": {"a": {"command": "x"}, "b": {"url": "https://x.example/mcp"}}}
    shared = Callbacks(elicitation=elicitation)
    for callbacks in (shared, {"a": shared}, None):
        servers = load_servers(source, callbacks=callbacks, auth={"b": ("user", "password")})
        offered = {
            name: "elicitation_callback" in each._upkeep._plan.client_options()
            for name, each in servers.items()
        }
        everywhere = callbacks is shared
        assert offered == {"a": callbacks is not None, "b": everywhere}


def test_authentication_for_a_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="'c'"):
        load_servers({"mcpServers": {"a": {"command": "x"}}}, auth={"c": ("u", "p")})
    with pytest.raises(ValueError, match="'c'"):
        load_servers({"mcpServers": {"a": {"command": "x"}}}, callbacks={"c": Callbacks()})


def test_authentication_of_a_wrong_type_is_refused_with_its_server() -> None:
    source = {"servers": {"a": {"url": URL}}}
    with pytest.raises(McpConfigError, match=r"config: servers\.a: TypeError: auth is a int;"):
        load_servers(source, auth={"a": 3})
