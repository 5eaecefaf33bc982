"""What a server offers besides tools: resources, prompts, completions.

What may live here: asking for them page by page, and `ServerReading`, the
methods that a toolset has for it. The conversions are in `_convert`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar, cast

import attrs
import mcp
import mcp_types as m
import pydantic
import trio

import trio_runner as tr
import trio_runner_adapters.mcp._convert as convert
import trio_runner_adapters.mcp._errors as errors
import trio_runner_adapters.mcp._upkeep as upkeep_

T = TypeVar("T")

#: At most so many pages and entries are read of one list.
MAX_PAGES: Final = 100
MAX_ENTRIES: Final = 10_000


class McpRequestError(errors.McpServerError):
    """A server answered a request with an error: it said no.

    Attributes:
      code: the JSON-RPC error code; -32601 from a server that does not have the feature.
      data: what else the server said, or None.
    """

    def __init__(self, server: str, what: str, error: mcp.MCPError) -> None:
        super().__init__(server, f"refused {what}: {errors.said(error)}")
        self.code: int = error.error.code
        self.data: object = convert.valid_json(error.error.data)


@attrs.frozen
class Completion:
    """What a server suggests for an argument.

    Attributes:
      total: how many suggestions there are, where the server says it.
      has_more: whether there are more than ``values``, where the server says it.
    """

    values: tuple[str, ...]
    total: int | None = None
    has_more: bool | None = None


class _Page(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


@attrs.frozen
class Reader:
    """Asks one server.

    Attributes:
      timeout: seconds for each answer, a reconnect included; or None.
    """

    server: str
    upkeep: upkeep_.Upkeep
    timeout: float | None = None

    @trio.lowlevel.enable_ki_protection
    async def ask(self, what: str, asked: Callable[[mcp.Client], Awaitable[T]]) -> T:
        """Return the server's answer. A checkpoint; cancelled, the server is told.

        A question that certainly did not reach the server, or that it refused because
        it no longer knows the session, is asked once more over a new connection.

        Raises:
          NotEnteredError: nobody is inside the toolset.
          McpRequestError: the server said no.
          McpServerError: it is gone, did not answer in time, or its answer is malformed.
        """
        await trio.lowlevel.checkpoint()
        if self.upkeep.users == 0:
            raise tr.NotEnteredError(
                f"MCP server {self.server!r} is not running: use its toolset inside "
                "`async with toolset:` or give it to an agent and enter that"
            )
        with trio.move_on_after(math.inf if self.timeout is None else self.timeout):
            try:
                return await self._ask_once(what, asked)
            except _LostError as lost:
                if not self.upkeep.reconnects or lost.loss is errors.Loss.UNKNOWN:
                    raise
            return await self._ask_once(what, asked)
        raise self._problem(f"did not answer {what} within {self.timeout:g} seconds")

    async def _ask_once(self, what: str, asked: Callable[[mcp.Client], Awaitable[T]]) -> T:
        connection = await self.upkeep.usable()
        assert connection.client is not None, "a usable connection is ready"
        connection.begin_call()
        try:
            return await asked(connection.client)
        except mcp.MCPError as error:
            if errors.is_end(error):
                await connection.wait_unwound()
            if (loss := _loss(error)) is None:
                raise McpRequestError(self.server, what, error) from error
            connection.is_doubtful = True
            raise _LostError(self.server, what, error, loss) from error
        except pydantic.ValidationError as error:
            raise self._problem(
                f"sent a malformed answer to {what}: {errors.said(error)}"
            ) from error
        except Exception as error:  # border: whatever else the SDK raises
            raise self._problem(f"failed at {what}: {errors.said(error)}") from error
        finally:
            connection.end_call()

    async def pages(
        self,
        what: str,
        page_at: Callable[[mcp.Client, str | None], Awaitable[P]],
        entries_of: Callable[[P], list[T]],
    ) -> list[T]:
        """Return the entries of every page.

        Raises:
          McpRequestError: the server said no.
          McpServerError: as `ask`; or the list comes back to a page, or has no end.
        """
        entries: list[T] = []
        seen: set[str] = set()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            here = cursor

            async def ask_page(client: mcp.Client) -> P:
                return await page_at(client, here)  # noqa: B023 - awaited before the next round

            page = await self.ask(what, ask_page)
            entries += entries_of(page)
            cursor = page.next_cursor
            if cursor is None:
                return entries
            if cursor in seen:
                raise self._problem(f"comes back to the cursor {cursor[:100]!r} in {what}")
            if len(entries) >= MAX_ENTRIES:
                break
            seen.add(cursor)
        raise self._problem(
            f"goes on in {what} after {len(entries)} entries; expected at most {MAX_PAGES} pages "
            f"and {MAX_ENTRIES} entries"
        )

    def _problem(self, message: str) -> errors.McpServerError:
        return errors.McpServerError(self.server, message)


class _LostError(errors.McpServerError):
    """A request got no answer; what is known of it."""

    def __init__(self, server: str, what: str, error: mcp.MCPError, loss: errors.Loss) -> None:
        super().__init__(server, f"was lost during {what}: {error.error.message}")
        self.loss = loss


def _loss(error: mcp.MCPError) -> errors.Loss | None:
    """What is known of a request that got no answer; None for one that the server refused."""
    match error.error.data:
        case errors.Loss() as loss:
            return loss
        case _:
            return errors.Loss.UNKNOWN if errors.is_end(error) else None


class ServerReading:
    """The methods of a toolset that read what else its server offers.

    Each is a checkpoint, may be cancelled, and raises

    * `McpRequestError` when the server says no (to a feature that it does not have, too),
    * `McpServerError` when it is gone, does not answer within ``call_timeout``, or
      answers with what is no answer,
    * `trio_runner.NotEnteredError` outside ``async with``.
    """

    #: Asks the server.
    _reader: Reader

    async def list_resources(self) -> tuple[tr.ResourceLink, ...]:
        """Return the server's resources, of all pages."""
        found = await self._reader.pages(
            "resources/list",
            lambda client, cursor: client.list_resources(cursor=cursor),
            lambda page: page.resources,
        )
        return tuple([convert.from_mcp_resource(each) for each in found])

    async def list_resource_templates(self) -> tuple[convert.ResourceTemplate, ...]:
        """Return the server's resource templates, of all pages."""
        found = await self._reader.pages(
            "resources/templates/list",
            lambda client, cursor: client.list_resource_templates(cursor=cursor),
            lambda page: page.resource_templates,
        )
        return tuple([convert.from_mcp_template(each) for each in found])

    async def read_resource(self, uri: str) -> tuple[tr.EmbeddedResource, ...]:
        """Return the contents behind ``uri``: one, or several where it stands for several."""
        found = await self._reader.ask(
            f"resources/read of {errors.shortened(uri, 200)!r}",
            lambda client: client.read_resource(uri),
        )
        return tuple([convert.from_mcp_contents(each) for each in found.contents])

    async def list_prompts(self) -> tuple[convert.Prompt, ...]:
        """Return the server's prompts, of all pages."""
        found = await self._reader.pages(
            "prompts/list",
            lambda client, cursor: client.list_prompts(cursor=cursor),
            lambda page: page.prompts,
        )
        return tuple([convert.from_mcp_prompt(each) for each in found])

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> tuple[tr.Message, ...]:
        """Return the messages of a prompt, to put into a turn: one for each of the server's."""
        given = None if arguments is None else dict(arguments)
        found = await self._reader.ask(
            f"prompts/get of {errors.shortened(name, 200)!r}",
            lambda client: client.get_prompt(name, given),
        )
        return tuple([convert.from_prompt_message(each) for each in found.messages])

    async def complete(
        self,
        argument: str,
        value: str,
        *,
        prompt: str | None = None,
        template: str | None = None,
        given: Mapping[str, str] | None = None,
    ) -> Completion:
        """Return what the server suggests for an argument that begins with ``value``.

        Args:
          argument: the name of the argument of a prompt, or of the variable of a template.
          value: what is there so far.
          prompt: the name of a prompt; or
          template: the URI template of a resource. Exactly one of the two.
          given: other arguments that have their value already.

        Raises:
          TypeError: both or none of ``prompt`` and ``template`` are given.
        """
        if (prompt is None) == (template is None):
            raise TypeError("complete() takes either prompt= or template=; exactly one of them")
        ref: m.PromptReference | m.ResourceTemplateReference = (
            m.ResourceTemplateReference(uri=cast("str", template))
            if prompt is None
            else m.PromptReference(name=prompt)
        )
        context: dict[str, Any] | None = None if given is None else dict(given)
        found = await self._reader.ask(
            "completion/complete",
            lambda client: client.complete(ref, {"name": argument, "value": value}, context),
        )
        return Completion(
            tuple([convert.valid_text(each) for each in found.completion.values]),
            found.completion.total,
            found.completion.has_more,
        )
