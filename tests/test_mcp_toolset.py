"""`McpToolset` against real processes over real pipes.

These tests use real time; their bounds are generous, since they only guard
against waiting for ever.
"""

import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import trio_runner as tr
import trio_runner.abc as abc
from trio_runner_adapters.mcp import McpServerError, McpToolset

SERVER = Path(__file__).parent / "servers" / "hostile_server.py"
#: Seconds after which a test takes something for hanging.
LONG = 30.0


@attrs.define
class Context:
    """The part of a `ToolContext` that the toolset uses."""

    progress: list[tuple[float, float | None, str | None]] = attrs.Factory(
        list[tuple[float, float | None, str | None]]
    )

    def report_progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        self.progress.append((progress, total, message))


@attrs.define
class Hostile:
    """A hostile server to be, and what it noted."""

    notes: Path
    toolset: McpToolset

    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    def process_group(self) -> list[int]:
        """The living members of the server's group; read afresh from /proc."""
        return living_members(int(self.noted()[0]))

    async def wait_noted(self, text: str) -> None:
        with trio.fail_after(LONG):
            while text not in self.noted():
                await trio.sleep(0.01)

    async def call(self, name: str, context: Any = None, **arguments: Any) -> tr.ToolResult:
        tools = {tool.name: tool for tool in await self.toolset.list_tools()}
        context = context or Context()
        result = await tools[name].call(arguments, context)
        assert type(result) is tr.ToolResult
        return result

    async def failing_call(self, name: str) -> str:
        with pytest.raises(tr.ToolError) as caught:
            await self.call(name)
        assert "'bad'" in str(caught.value)  # every failure names the server
        return str(caught.value)

    async def interrupted_call(self, name: str) -> str:
        result = await self.call(name)
        assert result.status == "interrupted"
        assert "'bad'" in result.text
        assert "outcome is unknown" in result.text
        return result.text


def living_members(pgid: int) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, _, group = stat.rpartition(")")[2].split()[:3]
            if int(group) == pgid and state not in "ZX":
                found.append(int(entry.name))
    return found


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def hostile(notes: Path, mode: str, **options: Any) -> Hostile:
    options = {"name": "bad", "start_timeout": LONG, "close_timeout": 4.0, **options}
    args = ["-S", str(SERVER), mode, str(notes)]
    return Hostile(notes, McpToolset.stdio(sys.executable, args, **options))


# --- the tools ------------------------------------------------------------------


async def test_it_is_a_toolset(notes: Path) -> None:
    toolset: abc.Toolset = hostile(notes, "plain").toolset
    assert toolset.name == "bad"


async def test_a_tool_is_listed_and_called(notes: Path) -> None:
    server = hostile(notes, "plain")
    async with server.toolset:
        result = await server.call("echo", text="hello")
    assert (result.text, result.status) == ("hello", "ok")


async def test_the_same_tuple_is_listed_while_nothing_changed(notes: Path) -> None:
    server = hostile(notes, "plain")
    async with server.toolset as toolset:
        assert await toolset.list_tools() is await toolset.list_tools()


async def test_all_pages_are_listed(notes: Path) -> None:
    server = hostile(notes, "pages")
    async with server.toolset as toolset:
        assert [tool.name for tool in await toolset.list_tools()] == ["t0", "t1", "t2"]


async def test_a_cursor_that_comes_back_ends_the_list_with_a_warning(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = hostile(notes, "loop")
    async with server.toolset as toolset:
        assert [tool.name for tool in await toolset.list_tools()] == ["tNone", "tagain"]
    assert "came back to the cursor" in caplog.text
    assert "'bad'" in caplog.text


async def test_a_list_without_end_is_bounded(notes: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = hostile(notes, "endless")
    async with server.toolset as toolset:
        assert len(await toolset.list_tools()) == 100
    assert "goes on after 100 pages" in caplog.text


async def test_a_bad_tool_is_left_out_with_a_warning_and_the_rest_works(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = hostile(notes, "schemas")
    async with server.toolset as toolset:
        tools = {tool.name: tool for tool in await toolset.list_tools()}
        assert (await server.call("good7", text="x")).text == "x"
        assert (await server.call("odd_output", text="y")).status == "ok"
    assert sorted(tools) == sorted(
        ["empty", "no_properties", "odd_output", *[f"good{n}" for n in range(20)]]
    )
    assert tools["empty"].input_schema == {"type": "object"}
    assert tools["odd_output"].output_schema is None
    warnings = [record.getMessage() for record in caplog.records]
    for name in ("missing", "null", "string", "required_null", "loop", "remote"):
        assert [text for text in warnings if repr(name) in text and "'bad'" in text], name
    assert len(warnings) == 9  # those six, two without a name, and the odd output schema


async def test_exposed_names_have_the_prefix_and_the_wire_gets_the_original(notes: Path) -> None:
    server = hostile(notes, "names", prefix="srv")
    async with server.toolset as toolset:
        tools = await toolset.list_tools()
        called = await server.call("srv__a_b", text="a_b")
        assert called.text == "a_b"
    assert "srv__a_b" in {tool.name for tool in tools}
    assert "a_b" in {tool.bare_name for tool in tools}
    assert len({tool.name for tool in tools}) == 4


async def test_the_call_timeout_becomes_each_tools_timeout(notes: Path) -> None:
    server = hostile(notes, "plain", call_timeout=7.0)
    async with server.toolset as toolset:
        assert [tool.timeout for tool in await toolset.list_tools()] == [7.0]


async def test_listing_outside_the_block_says_what_to_do(notes: Path) -> None:
    server = hostile(notes, "plain")
    with pytest.raises(tr.NotEnteredError, match="async with"):
        await server.toolset.list_tools()
    async with server.toolset:
        pass
    with pytest.raises(tr.NotEnteredError, match="async with"):
        await server.toolset.list_tools()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start_timeout": True}, TypeError),
        ({"start_timeout": 0}, ValueError),
        ({"call_timeout": float("inf")}, ValueError),
        ({"close_timeout": -1.0}, ValueError),
        ({"close_timeout": "5"}, TypeError),
        ({"mode": "modern"}, ValueError),
        ({"prefix": "a b"}, ValueError),
        ({"prefix": ""}, ValueError),
        ({"stderr": "loud"}, ValueError),
        ({"max_message_bytes": 0}, ValueError),
        ({"max_message_bytes": 1.5}, TypeError),
        ({"args": "one two"}, TypeError),
    ],
)
def test_a_wrong_option_is_refused_at_set_up(
    options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        McpToolset.stdio("server", **options)


@pytest.mark.parametrize(
    ("options", "error", "place"),
    [
        ({"args": ["a", "secret\0"]}, ValueError, "args[1] holds a NUL character"),
        ({"args": [b"secret"]}, TypeError, "args[0] is a bytes; expected text"),
        ({"args": ["secret\ud800"]}, ValueError, "args[0] holds a character that cannot be"),
        ({"env": {"A": "secret\0"}}, ValueError, "env['A'] holds a NUL character"),
        ({"env": {"A": 1}}, TypeError, "env['A'] is a int; expected text"),
        ({"env": {"A=B": "secret"}}, ValueError, "env['A=B'] has a name that no variable can"),
        ({"cwd": "secret\0"}, ValueError, "cwd holds a NUL character"),
        ({"cwd": b"secret"}, TypeError, "cwd is a bytes; expected text"),
        ({"cwd": ""}, ValueError, "cwd is empty; expected a path"),
        ({"command": "secret\0"}, ValueError, "command holds a NUL character"),
        ({"command": b"secret"}, TypeError, "command is a bytes; expected text"),
        ({"command": ""}, ValueError, "command is empty; expected a path"),
    ],
)
def test_what_no_program_can_be_given_is_refused_with_its_place_and_not_shown(
    options: dict[str, Any], error: type[Exception], place: str
) -> None:
    given: dict[str, Any] = {"command": "server", **options}
    with pytest.raises(error) as caught:
        McpToolset.stdio(**given)
    assert str(caught.value).startswith(place)
    assert "secret" not in str(caught.value)


def test_paths_are_taken_as_text(tmp_path: Path) -> None:
    made = McpToolset.stdio(tmp_path / "server", [tmp_path], cwd=tmp_path)
    assert made.name == "server"


def test_the_name_is_the_programs_by_default() -> None:
    assert McpToolset.stdio("/usr/bin/some-server").name == "some-server"


# --- results --------------------------------------------------------------------


async def test_every_kind_of_content_arrives(notes: Path) -> None:
    server = hostile(notes, "results")
    async with server.toolset:
        result = await server.call("blocks")
    kinds = [type(block) for block in result.content]
    assert kinds == [
        tr.TextContent,
        tr.ImageContent,
        tr.AudioContent,
        tr.ResourceLink,
        tr.EmbeddedResource,
        tr.EmbeddedResource,
    ]
    assert (result.structured_content, result.meta) == ({"a": [1]}, {"trace": "7"})


async def test_kD5_is_error_passes_through_whatever_its_structured_content(notes: Path) -> None:
    server = hostile(notes, "results")
    async with server.toolset:
        failed = await server.call("fails")
        silent = await server.call("fails_silently")
    assert (failed.status, failed.text) == ("error", "it broke")
    assert failed.structured_content == {"n": "odd"}
    assert silent.status == "error"
    assert "'fails_silently' failed" in silent.text


@pytest.mark.parametrize("value", [None, {"n": "three"}, {}])
async def test_kD5_a_mismatch_is_an_error_result_that_keeps_the_content(
    notes: Path, value: Any
) -> None:
    server = hostile(notes, "results")
    async with server.toolset:
        good = await server.call("number", value={"n": 3})
        result = await server.call("number", value=value)
    assert (good.status, good.structured_content) == ("ok", {"n": 3})
    assert result.status == "error"
    assert "'number' ran" in result.text
    assert result.text.endswith("kept")
    assert result.structured_content == value


async def test_a_malformed_answer_is_that_calls_error_and_the_others_work(notes: Path) -> None:
    server = hostile(notes, "broken", max_message_bytes=100_000)
    with trio.fail_after(LONG):
        async with server.toolset:
            for name in ("null", "cut", "huge", "no_content"):
                assert "malformed" in await server.failing_call(name)
                assert (await server.call("echo", text=name)).text == name
            assert "no (code -32077)" in await server.failing_call("refuse")
            assert (await server.call("surrogate")).text == "a\ufffdb"


async def test_progress_reaches_the_context(notes: Path) -> None:
    server = hostile(notes, "progress")
    context = Context()
    async with server.toolset:
        await server.call("echo", context)
    assert context.progress == [(1.0, 2.0, "half")]


async def test_arguments_that_cannot_be_sent_are_that_calls_error(notes: Path) -> None:
    server = hostile(notes, "plain")
    async with server.toolset as toolset:
        (tool,) = await toolset.list_tools()
        with pytest.raises(tr.ToolError, match="'bad'"):
            await tool.call({"text": "\ud800"}, Context())  # type: ignore[arg-type]
        assert (await server.call("echo", text="still there")).text == "still there"


async def test_kD3_garbage_on_stdout_is_skipped_and_logged_with_a_bound(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = hostile(notes, "garbage")
    with trio.fail_after(LONG):
        async with server.toolset:
            for _ in range(3):
                assert (await server.call("echo", text="through")).text == "through"
    skipped = [record for record in caplog.records if "is no message" in record.getMessage()]
    assert len(skipped) == 10  # of 28 bad lines
    assert all("'bad'" in record.getMessage() for record in skipped)
    assert max(len(record.getMessage()) for record in skipped) < 1000
    assert "only counted" in caplog.text


# --- calls that end otherwise ---------------------------------------------------


@pytest.mark.parametrize("how", ["die", "half", "leave_child"])
async def test_kD1_a_server_that_ends_during_a_call_is_that_calls_error(
    notes: Path, how: str
) -> None:
    server, other = hostile(notes, "dies"), hostile(notes.with_name("other"), "plain")
    with trio.fail_after(LONG):
        async with server.toolset, other.toolset:
            assert "not known whether the tool finished" in await server.interrupted_call(how)
            assert "nothing was sent" in await server.failing_call("echo")
            assert (await other.call("echo", text="unharmed")).text == "unharmed"
    assert server.process_group() == []


async def test_kD1_a_dead_server_is_reaped_at_once_and_its_calls_say_how_it_ended(
    notes: Path,
) -> None:
    server = hostile(notes, "dies")
    with trio.fail_after(LONG):
        async with server.toolset as toolset:
            before = await toolset.list_tools()
            await server.interrupted_call("leave_child")
            while server.process_group():
                await trio.sleep(0.01)
            assert await toolset.list_tools() is before
            while "exited with status 0" not in await server.failing_call("echo"):
                await trio.sleep(0.01)
            with pytest.raises(McpServerError, match="exited with status 0"):
                await toolset.__aenter__()


async def test_a_server_that_died_starts_anew_when_all_have_left(notes: Path) -> None:
    server = hostile(notes, "dies")
    for _ in range(2):
        async with server.toolset:
            assert (await server.call("echo", text="up")).text == "up"
            await server.interrupted_call("die")


async def test_kD1_a_cancel_ends_the_call_at_once_and_reaches_the_server(notes: Path) -> None:
    server = hostile(notes, "silent")
    async with server.toolset:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.call, "wait")
                await server.wait_noted("called")
                scope.cancel()
        assert scope.cancelled_caught
        await server.wait_noted("cancelled")
        assert (await server.call("echo", text="still there")).text == "still there"


async def test_kD2_closing_ends_the_calls_in_flight_with_one_error_each(notes: Path) -> None:
    server = hostile(notes, "silent")
    errors: list[str] = []

    async def call() -> None:
        errors.append(await server.interrupted_call("wait"))

    with trio.fail_after(LONG):
        async with trio.open_nursery() as nursery, server.toolset:
            nursery.start_soon(call)
            nursery.start_soon(call)
            while server.noted().count("called") < 2:
                await trio.sleep(0.01)
    assert len(errors) == 2
    assert all("not known whether" in text for text in errors)


async def test_a_call_after_the_close_fails_at_once(notes: Path) -> None:
    server = hostile(notes, "plain")
    async with server.toolset as toolset:
        (tool,) = await toolset.list_tools()
    with pytest.raises(tr.ToolError, match="'bad' is not running"):
        await tool.call({}, Context())  # type: ignore[arg-type]


# --- opening and closing --------------------------------------------------------


async def test_a_polite_server_sees_the_end_of_its_input_and_is_reaped(notes: Path) -> None:
    server = hostile(notes, "plain")
    async with server.toolset:
        assert len(server.process_group()) == 1
    assert server.process_group() == []
    assert "end of input" in server.noted()


@pytest.mark.parametrize("mode", ["stubborn", "child"])
async def test_kD2_the_whole_process_group_is_gone_after_the_close(notes: Path, mode: str) -> None:
    server = hostile(notes, mode, close_timeout=2.0)
    async with server.toolset:
        assert len(server.process_group()) == (2 if mode == "child" else 1)
        start = trio.current_time()
    assert trio.current_time() - start < 2.0 + LONG / 2
    assert server.process_group() == []


@pytest.mark.parametrize("mode", ["plain", "stubborn", "child"])
async def test_kD2_a_cancelled_user_closes_all_the_same(notes: Path, mode: str) -> None:
    server = hostile(notes, mode, close_timeout=2.0)
    with trio.CancelScope() as scope:
        async with server.toolset:
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert server.process_group() == []


@pytest.mark.parametrize("after", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
async def test_a_cancel_while_it_starts_leaves_no_process(notes: Path, after: float) -> None:
    server = hostile(notes, "mute", close_timeout=2.0)
    with trio.move_on_after(after) as scope:
        async with server.toolset:
            raise AssertionError("a mute server cannot start")
    assert scope.cancelled_caught
    if server.noted():
        assert server.process_group() == []


async def test_leaving_by_an_error_closes_and_lets_the_error_through(notes: Path) -> None:
    server = hostile(notes, "plain")
    with pytest.raises(ZeroDivisionError):
        async with server.toolset:
            raise ZeroDivisionError
    assert server.process_group() == []


async def test_kB3_users_are_counted_and_any_may_leave_first(notes: Path) -> None:
    server = hostile(notes, "plain")
    first_in, first_out = trio.Event(), trio.Event()

    async def first() -> None:
        async with server.toolset:
            first_in.set()
            assert (await server.call("echo", text="1")).text == "1"
        first_out.set()

    async def second() -> None:
        await first_in.wait()
        async with server.toolset:
            await first_out.wait()
            assert len(server.process_group()) == 1
            assert (await server.call("echo", text="2")).text == "2"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        nursery.start_soon(second)
    assert len([line for line in server.noted() if line.isdecimal()]) == 1  # started once
    assert server.process_group() == []


async def test_kB3_the_first_user_may_be_cancelled_while_another_calls(notes: Path) -> None:
    server = hostile(notes, "silent")
    first = trio.CancelScope()

    async def opener(task_status: trio.TaskStatus[None]) -> None:
        with first:
            async with server.toolset:
                task_status.started()
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(opener)
        async with server.toolset:
            first.cancel()
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert (await server.call("echo", text="alive")).text == "alive"
    assert server.process_group() == []


async def test_servers_close_in_any_order_from_any_task(tmp_path: Path) -> None:
    servers = [hostile(tmp_path / f"notes{n}", "plain") for n in range(3)]
    for server in servers:
        await server.toolset.__aenter__()

    async def close(server: Hostile) -> None:
        await server.toolset.__aexit__(None, None, None)

    await close(servers[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(close, servers[2])
    await close(servers[1])
    assert [server.process_group() for server in servers] == [[], [], []]


async def test_leaving_more_often_than_entering_is_refused(notes: Path) -> None:
    server = hostile(notes, "plain")
    with pytest.raises(tr.NotEnteredError, match="more often"):
        await server.toolset.__aexit__(None, None, None)


async def test_it_can_be_entered_again_and_lives_never_overlap(notes: Path) -> None:
    server = hostile(notes, "child", close_timeout=2.0)

    async def use() -> None:
        async with server.toolset:
            assert (await server.call("echo", text="x")).text == "x"

    async with trio.open_nursery() as nursery, server.toolset:
        nursery.start_soon(use)  # may share this life or begin the next one
    async with server.toolset:
        await use()
    started = server.noted()
    assert started.count("end of input") in (2, 3)
    for pid in [int(line) for line in started if line.isdecimal()]:
        assert living_members(pid) == []


async def test_a_next_life_waits_until_the_whole_group_of_the_last_one_is_gone(
    notes: Path,
) -> None:
    server = hostile(notes, "stubborn", close_timeout=2.0)
    await server.toolset.__aenter__()
    (first,) = server.process_group()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.toolset.__aexit__, None, None, None)
        await server.wait_noted("end of input")  # it is being closed, and refuses
        async with server.toolset:
            assert living_members(first) == []


async def test_a_missing_program_is_a_clear_error() -> None:
    toolset = McpToolset.stdio("no-such-program-at-all", name="bad")
    with pytest.raises(McpServerError, match=r"'bad' could not be started: .*no-such-program"):
        await toolset.__aenter__()


async def test_a_server_that_exits_at_once_is_told_with_its_last_words(notes: Path) -> None:
    server = hostile(notes, "exits")
    with pytest.raises(McpServerError, match=r"status 4: .*It wrote: no licence found"):
        await server.toolset.__aenter__()
    assert server.process_group() == []


async def test_a_server_that_never_answers_ends_at_the_start_timeout(notes: Path) -> None:
    server = hostile(notes, "mute", start_timeout=1.0)
    with trio.fail_after(LONG):
        with pytest.raises(McpServerError, match=r"did not start within 1 seconds"):
            await server.toolset.__aenter__()
    assert server.process_group() == []


async def test_a_start_that_fails_tells_every_waiter(notes: Path) -> None:
    server = hostile(notes, "mute", start_timeout=1.0)
    told: list[str] = []

    async def enter() -> None:
        with pytest.raises(McpServerError) as caught:
            await server.toolset.__aenter__()
        told.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(enter)
    assert len(told) == 3
    assert len(set(told)) == 1


def test_the_end_of_the_run_ends_a_server_that_nobody_left(notes: Path) -> None:
    server = hostile(notes, "child", close_timeout=2.0)

    async def main() -> None:
        await server.toolset.__aenter__()

    trio.run(main)
    assert server.process_group() == []


@pytest.mark.parametrize("mode", ["plain", "stubborn"])
def test_ctrl_c_leaves_no_process(notes: Path, mode: str) -> None:
    server = hostile(notes, mode, close_timeout=2.0)

    async def main() -> None:
        async with server.toolset:
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trio.run(main)
    finally:
        signal.signal(signal.SIGINT, before)
    assert server.process_group() == []


async def test_no_file_descriptor_is_left_open(notes: Path) -> None:
    server = hostile(notes, "plain")

    async def cycle() -> None:
        async with server.toolset:
            await server.call("echo", text="x")

    await cycle()  # what is opened once for all
    before = open_files()
    for _ in range(3):
        await cycle()
    assert open_files() == before


def open_files() -> Sequence[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


async def test_the_environment_is_small_and_what_is_given_is_added(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "1")
    server = hostile(notes, "plain", env={"GIVEN": "2"})
    async with server.toolset:
        environ = Path(f"/proc/{server.noted()[0]}/environ").read_bytes()
    assert b"GIVEN=2" in environ
    assert b"SOME_SECRET" not in environ


async def test_the_servers_stderr_is_not_mixed_into_ours_unless_asked(
    notes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for stderr, expected in (("tail", ""), ("discard", ""), ("inherit", "no licence found\n")):
        server = hostile(notes, "exits", stderr=stderr)
        with pytest.raises(McpServerError):
            await server.toolset.__aenter__()
        assert capfd.readouterr().err == expected


def test_the_log_is_quiet_when_nothing_is_wrong(
    notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = hostile(notes, "plain")

    async def main() -> None:
        async with server.toolset:
            await server.call("echo", text="x")

    with caplog.at_level(logging.INFO):
        start = time.monotonic()
        trio.run(main)
        assert time.monotonic() - start < LONG
    assert [record for record in caplog.records if record.name.startswith("trio_runner")] == []
