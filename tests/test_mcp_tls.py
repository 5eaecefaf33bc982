"""`McpToolset` over HTTP and SSE behind TLS, with a real uvicorn and an authority of our own."""

import contextlib
import gc
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import attrs
import httpx2
import pytest
import trio
import trustme

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.mcp import McpServerError, McpToolset

SERVER = Path(__file__).parent / "servers" / "tls_server.py"
#: What makes a toolset, and the end of its URL.
KINDS: dict[str, tuple[Callable[..., McpToolset], str]] = {
    "http": (McpToolset.http, "mcp"),
    "sse": (McpToolset.sse, "sse"),
}
over_both = pytest.mark.parametrize("kind", KINDS)


@attrs.frozen
class Authority:
    """An authority that nobody knows, and the file of a server's certificate and key."""

    made: trustme.CA
    certificate: Path

    def trusted(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=self.made.cert_pem.bytes().decode())
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("tls")
    made = trustme.CA()
    issued = made.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    made.cert_pem.write_to_path(str(folder / "ca.pem"))
    return Authority(made, folder / "server.pem")


@contextlib.contextmanager
def serving(kind: str, authority: Authority, port: int = 0) -> Generator[int]:
    """A server of the SDK's behind TLS, in a process; gives its port."""
    command = [sys.executable, str(SERVER), kind, str(authority.certificate), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@pytest.fixture(scope="module")
def ports(authority: Authority) -> Generator[dict[str, int]]:
    """One server of each kind."""
    with serving("http", authority) as http, serving("sse", authority) as sse:
        yield {"http": http, "sse": sse}


def toolset_of(kind: str, port: int, **options: Any) -> McpToolset:
    make, path = KINDS[kind]
    return make(f"https://127.0.0.1:{port}/{path}", name="s", **options)


@pytest.fixture
def made_contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """The default contexts that are made from here on."""
    made: list[ssl.SSLContext] = []
    create = httpx2.create_ssl_context

    def counted(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        made.append(create(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(httpx2, "create_ssl_context", counted)
    return made


@over_both
async def test_a_turn_calls_a_tool_behind_a_certificate_of_an_own_authority(
    kind: str, authority: Authority, ports: dict[str, int]
) -> None:
    toolset = toolset_of(kind, ports[kind], verify=authority.trusted())
    model = ScriptedModel([[call("add", a=2, b=3)], "five"])
    agent = tr.ToolAgent("a", model=model, tools=[toolset])
    async with agent:
        await agent.generate("add")
    [result] = agent.history[2].tool_results
    assert (result.status, result.text) == (tr.CallStatus.OK, "5")


@over_both
async def test_a_certificate_that_nobody_vouches_for_is_refused_and_named(
    kind: str, ports: dict[str, int]
) -> None:
    with pytest.raises(McpServerError, match="certificate verify failed"):
        async with toolset_of(kind, ports[kind]):
            raise AssertionError("entered")


async def test_an_own_context_is_used_for_every_session_and_no_other_is_made(
    authority: Authority, made_contexts: list[ssl.SSLContext]
) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        port = first.enter_context(serving("http", authority))
        toolset = toolset_of("http", port, verify=authority.trusted())
        async with toolset:
            (tool,) = await toolset.list_tools()
            assert cast("Any", await tool.call({"a": 1, "b": 1}, CONTEXT)).text == "2"
            first.close()
            # Another server, which knows no session: the toolset connects anew.
            stack.enter_context(serving("http", authority, port))
            results = [cast("Any", await tool.call({"a": 2, "b": 2}, CONTEXT)) for _ in range(2)]
            assert results[-1].text == "4"
    assert made_contexts == []


async def test_the_default_context_is_made_once_for_a_toolset_and_not_before_it_is_entered(
    authority: Authority,
    ports: dict[str, int],
    made_contexts: list[ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate.parent / "ca.pem"))
    toolset = toolset_of("http", ports["http"])
    assert made_contexts == []
    for _ in range(2):
        async with toolset:
            assert len(await toolset.list_tools()) == 1
    assert len(made_contexts) == 1


@over_both
async def test_a_handshake_that_is_cancelled_leaves_no_socket_behind(
    kind: str, authority: Authority
) -> None:
    """httpcore forgets it: what the garbage collector would close, the test must not find."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        toolset = toolset_of(kind, mute.getsockname()[1], verify=authority.trusted())
        with trio.move_on_after(0.3) as scope:
            async with toolset:
                raise AssertionError("entered")
        assert scope.cancelled_caught
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            gc.collect()
        assert [str(each.message) for each in found] == []


@over_both
@pytest.mark.parametrize("verify", [True, False, "ca.pem", 1])
def test_what_is_no_context_is_refused_at_set_up(kind: str, verify: Any) -> None:
    with pytest.raises(TypeError, match=r"verify is a \w+; expected an ssl.SSLContext"):
        toolset_of(kind, 1, verify=verify)


class Context:
    """The part of a `ToolContext` that the toolset uses."""

    def report_progress(self, *args: object) -> None:
        """Take it."""


CONTEXT: Any = Context()
