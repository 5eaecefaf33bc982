"""`McpToolset.http` with the SDK's OAuth provider, against an authorisation server on loopback.

The SDK's own authorisation server stands before its own MCP server, behind a real uvicorn; no
person is needed, since the page to agree on is a redirect.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Generator
from typing import Any

import attrs
import httpx2
import pytest
import uvicorn
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken, AuthorizationCode, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyHttpUrl, AnyUrl

import trio_runner as tr
from trio_runner.testing import ScriptedModel, call
from trio_runner_adapters.mcp import McpServerError, McpToolset

BACK = "http://127.0.0.1:1/back"


class Issuer:
    """Agrees to everything, and notes what it was asked. Lives in the server's thread."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.tokens: dict[str, AccessToken] = {}
        self.asked: list[str] = []

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.asked.append("register")
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: Any) -> str:
        self.asked.append("authorize")
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 300,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        self.asked.append("token")
        token = secrets.token_hex(16)
        self.tokens[token] = AccessToken(
            token=token,
            client_id=str(client.client_id),
            scopes=authorization_code.scopes,
            expires_at=int(time.time()) + 3600,
            resource=authorization_code.resource,
        )
        return OAuthToken(access_token=token, token_type="Bearer", expires_in=3600)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> None:
        return None

    async def exchange_refresh_token(self, client: Any, token: Any, scopes: Any) -> OAuthToken:
        raise AssertionError("there is none")

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens.get(token)

    async def revoke_token(self, token: Any) -> None:
        raise AssertionError("nobody does")


@attrs.define(eq=False)
class Store:
    """Where a program keeps its tokens."""

    tokens: OAuthToken | None = None
    info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.info = client_info


@pytest.fixture
def locked() -> Generator[tuple[str, Issuer]]:
    """The two servers behind one port, made outside trio; gives the URL and the issuer."""
    issuer: Any = Issuer()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = MCPServer(
            "locked",
            log_level="ERROR",
            auth_server_provider=issuer,
            auth=AuthSettings(
                issuer_url=AnyHttpUrl(origin),
                resource_server_url=AnyHttpUrl(f"{origin}/mcp"),
                client_registration_options=ClientRegistrationOptions(enabled=True),
                validate_token_resource=True,
            ),
        )

        @server.tool()
        async def secret() -> str:
            """Tell it."""
            return "told"

        config = uvicorn.Config(
            server.streamable_http_app(), log_level="critical", timeout_graceful_shutdown=1
        )
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
        thread.start()
        while not running.started and thread.is_alive():
            time.sleep(0.005)
        try:
            yield f"{origin}/mcp", issuer
        finally:
            running.should_exit = True
            thread.join(30)


def provider(url: str, store: Store) -> OAuthClientProvider:
    """The SDK's provider; it takes the redirect for the person who agrees."""
    agreed: list[str] = []

    async def redirect(place: str) -> None:
        async with httpx2.AsyncClient() as client:
            response = await client.get(place)
        agreed.append(response.headers["location"])

    async def callback() -> AuthorizationCodeResult:
        query = httpx2.URL(agreed.pop()).params
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"))

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(BACK)], client_name="test")
    return OAuthClientProvider(url, metadata, store, redirect, callback)


@pytest.mark.slow
async def test_a_turn_calls_a_tool_behind_oauth_and_signs_in_once(
    locked: tuple[str, Issuer],
) -> None:
    url, issuer = locked
    store = Store()
    for expected in (["register", "authorize", "token"], []):
        toolset = McpToolset.http(url, name="locked", auth=provider(url, store))
        model = ScriptedModel([[call("secret"), call("secret")], "Done."])
        async with tr.ToolAgent("a", model=model, tools=[toolset]) as agent:
            await agent.generate("What is it?")
            results = agent.history[2].tool_results
        assert [each.text for each in results] == ["told", "told"]
        assert issuer.asked == expected  # the second time the token is there
        issuer.asked.clear()


@pytest.mark.slow
async def test_without_a_token_the_start_fails_with_what_the_server_said(
    locked: tuple[str, Issuer],
) -> None:
    with pytest.raises(McpServerError, match="HTTP status 401 Unauthorized"):
        async with McpToolset.http(locked[0], name="locked"):
            pass
