"""Requests that one read brought as a whole: what our parser takes, aiohttp's reads alike, and it is served alike."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser

from gateway.server import protocol
from gateway.server.head import MAX_HEADERS, MAX_LINE, whole_request
from tests.patience import wait_until
from tests.server.test_connections import Site

NAMES = b"Host host Content-Length content-length Authorization X-A Connection Transfer-Encoding Expect Content-Type X_b Upgrade TE"
MORE_NAMES = (
    b"Trailer Keep-Alive Proxy-Connection Sec-WebSocket-Key1 Content-Encoding Origin traceparent X-Client-Request-Id"
)
VALUES = (
    *(b"", b"1", b"keep-alive", b"close", b"chunked", b"a b", b"\xe9", b"a\tb", b"gzip", b"100-continue", b"0x5"),
    *(b"+5", b" 5 "),
)
PATHS = (
    *(b"/v1/chat/completions", b"/a?b=c", b"//x", b"/%zz", b"/a#b", b"/\xe9", b"/a b", b"/", b"*"),
    b"/" + b"x" * MAX_LINE,
)
BYTES = (b"", b"\r", b"\n", b" ", b":", b"\0", b"\r\n", b"\t", b"\xff")


def request(draw: random.Random) -> bytes:
    body = b"x" * draw.choice([0, 1, 5, 20])
    headers = [(b"Host", b"h"), (b"Content-Length", b"%d" % len(body)), (b"Authorization", b"Bearer abc")]
    for _ in range(draw.choice([0, 0, 1, 2, 3])):
        headers.append((draw.choice([*NAMES.split(), *MORE_NAMES.split(), b"A b"]), draw.choice(VALUES)))
    draw.shuffle(headers)
    lines = [name + b":" + draw.choice([b" ", b" ", b"", b"  "]) + value for name, value in headers]
    method = draw.choice([b"POST", b"POST", b"POST", b"GET", b"post", b"POST "])
    version = draw.choice([b"1.1", b"1.1", b"1.1", b"1.0", b"1.2"])
    path = draw.choice([*PATHS[:1] * 5, *PATHS])
    data = (
        method
        + b" "
        + path
        + b" HTTP/"
        + version
        + b"\r\n"
        + b"".join(line + b"\r\n" for line in lines)
        + b"\r\n"
        + body
    )
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        at = draw.randrange(len(data))
        data = data[:at] + draw.choice(BYTES) + data[at + draw.choice([0, 1]) :]
    return data


async def test_what_it_takes_aiohttp_reads_alike() -> None:
    loop, draw, taken = asyncio.get_running_loop(), random.Random(33), 0
    for _ in range(60_000):
        data = request(draw)
        if (found := whole_request(data)) is None:
            continue
        taken += 1
        path, headers, head_bytes, body = found
        limits: Any = {"max_line_size": MAX_LINE, "max_headers": MAX_HEADERS, "max_field_size": 1 << 16}
        parser = HttpRequestParser(BaseProtocol(loop), loop, 1 << 16, auto_decompress=False, **limits)
        [(message, content)], upgraded, rest = parser.feed_data(data)
        assert (message.method, message.path, tuple(message.version)) == ("POST", path, (1, 1)), data
        assert list(message.headers.items()) == headers, data
        assert not (
            message.should_close or message.chunked or message.upgrade or message.compression or upgraded or rest
        )
        assert content.is_eof(), data
        assert (await content.read()) == body, data
        assert sum(len(name) + len(value) for name, value in message.raw_headers) == head_bytes, data
    assert taken > 2000


SENT = (
    b"POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nab",
    b"POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    b"POST /3 HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 1\r\n\r\na",
    b"POST /4 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET /5 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"POST /6 HTTP/1.1\nHost: h\nContent-Length: 1\n\na",
    b"POST /7 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
    b"POST /8 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /9 HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\nContent-Length: 1\r\n\r\na",
    b"\r\n\r\n",  # before a request, it is no part of it
)


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def served(pieces: list[bytes]) -> tuple[list[tuple[str, int]], bytes, bool]:
    site, transport = Site(), Transport()
    handler = site.protocol()
    handler.transport = transport  # type: ignore[assignment]
    for piece in pieces:
        handler.data_received(piece)
        for _ in range(len(piece) % 5):
            await asyncio.sleep(0)
    await wait_until(lambda: handler.task is None)
    error = transport.written.partition(b"\r\n\r\n")[2].partition(b'"request_id"')[0]
    return site.served, error, transport.closed


async def test_it_is_served_as_by_aiohttps_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, whole = random.Random(33), 0
    for _ in range(300):
        data = b"".join(sent := draw.choices((*SENT[:2] * 3, *SENT), k=draw.randint(1, 4)))
        cuts = {draw.randrange(len(data)) for _ in range(draw.choice([0, 0, 1, 2]))}
        borders = {sum(map(len, sent[:number])) for number in range(len(sent) + 1) if draw.random() < 0.7}
        at = sorted({0, *cuts, *borders, len(data)})
        pieces = [data[begin:end] for begin, end in pairwise(at)]
        whole += sum(whole_request(piece) is not None for piece in pieces)
        monkeypatch.setattr(protocol, "whole_request", whole_request)
        found = await served(pieces)
        monkeypatch.setattr(protocol, "whole_request", lambda data: None)
        assert found == await served(pieces), pieces
    assert whole > 100
