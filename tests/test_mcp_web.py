"""Bodies of HTTP as `McpToolset` reads them: compressed, or not what they say they are."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import trio_runner_adapters.mcp._web as web

#: The most that one chunk of a compressed body may have.
CHUNK = 65536


class Body(httpx2.AsyncByteStream):
    """A body that comes in pieces, and notes whether it was left at its end."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self.ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for piece in self.pieces:
                await trio.lowlevel.checkpoint()
                yield piece
        finally:
            self.ended = True


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def response(body: Body, encoding: str | None) -> httpx2.Response:
    headers = {} if encoding is None else {"content-encoding": encoding}
    return httpx2.Response(200, headers=headers, stream=body)


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


async def chunks(body: Body, encoding: str | None) -> list[bytes]:
    async with web.chunks_of(response(body, encoding)) as found:
        return [chunk async for chunk in found]


COMPRESS = {
    "": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "raw": raw_deflate,
}


@given(
    data=st.binary(max_size=300).map(lambda some: some * 7),
    size=st.integers(1, 400),
    way=st.sampled_from(sorted(COMPRESS)),
)
async def test_a_body_is_what_was_sent_however_it_is_compressed_and_cut(
    data: bytes, size: int, way: str
) -> None:
    body = Body(cut(COMPRESS[way](data), size))
    encoding = "deflate" if way == "raw" else way
    assert b"".join(await chunks(body, encoding)) == data


async def test_little_that_makes_very_much_comes_in_small_chunks() -> None:
    data = b"\0" * (5 * CHUNK + 1)
    found = await chunks(Body([gzip.compress(data)]), "gzip")
    assert b"".join(found) == data
    assert max(map(len, found)) == CHUNK


async def test_what_is_longer_than_the_limit_is_not_inflated_to_its_end() -> None:
    body = Body([gzip.compress(b"\0" * 50_000_000)])
    with pytest.raises(web.WebError, match="more than 100000 bytes"):
        await web.body_of(response(body, "gzip"), 100_000)
    assert body.ended


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("rest", [b"notgzip", b"\x00" * 100], ids=["text", "zeros"])
async def test_a_body_that_is_not_what_it_says_is_a_typed_error_and_is_left_at_its_end(
    encoding: str, rest: bytes
) -> None:
    good = zlib.compressobj(wbits=web._WINDOW_BITS[encoding])
    begun = good.compress(b"fine") + good.flush(zlib.Z_SYNC_FLUSH)
    for pieces in ([b"\xff" + rest, b"more"], [begun, b"\xff" * 9 + rest, b"more"]):
        body = Body(pieces)
        with pytest.raises(web.WebError, match=f"malformed: it is no {encoding}: "):
            await chunks(body, encoding)
        assert body.ended


async def test_what_follows_a_compressed_body_is_not_kept() -> None:
    body = Body([gzip.compress(b"all"), *[b"more"] * 1000])
    assert await chunks(body, "gzip") == [b"all"]
    assert body.ended


async def test_an_encoding_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(web.WebError, match="the encoding 'br', which was not asked for"):
        await chunks(Body([b"x"]), "br")
