"""What is kept of a stream while only its events are passed on: no more objects than these, counted by the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import StreamReader, web
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpRequestParser, RawRequestMessage

from gateway.proxy.relay import Relay
from gateway.proxy.upstream import UpstreamConnection
from gateway.server.body import BodyReader, BodyShare
from gateway.server.gateway import IncomingBody
from gateway.server.head import ParsedRequest
from gateway.server.protocol import ServerProtocol
from gateway.testing import Running
from tests.patience import PATIENCE_S
from tests.whole.conftest import Serve
from tests.whole.raw import chat, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Forever, Scripted, chunk

STREAMS = 8
EVENT = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = (
    CHUNKED[:-2]
    + b"".join(b"x-of-the-provider-%d: %d\r\n" % (number, number) for number in range(20))
    + b"x-request-id: 4711\r\n\r\n"
)
LARGE = {"user": "x" * 100_000}


class Streams:
    """Open streams, each with its connection, and how many objects of each type they added."""

    def __init__(
        self, before: Counter[type], connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    ) -> None:
        self._before = before
        self.connections = connections

    def added(self, *types: type) -> dict[str, int]:
        """Return how many objects of these types there are more than before the streams, by name."""
        now = census()
        return {each.__name__: now[each] - self._before[each] for each in types}


def census() -> Counter[type]:
    gc.collect()
    return Counter(type(each) for each in gc.get_objects())


@pytest.fixture
async def ended() -> asyncio.Event:
    """Return what ends the upstream's answers when it is set."""
    return asyncio.Event()


@asynccontextmanager
async def streams(gateway: Running, *requests: bytes, count: int = STREAMS) -> AsyncIterator[Streams]:
    """Send requests on as many connections, and yield when each has had the first event of its stream."""
    before = census()
    connections = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            connections.append((reader, writer))
            writer.write(requests[0])
            await reader.readuntil(EVENT)
        yield Streams(before, connections)
    finally:
        for _, writer in connections:
            writer.close()


@pytest.fixture
async def upstream(ended: asyncio.Event) -> AsyncIterator[Scripted]:
    """Yield an upstream whose answers begin with an event and then pause until `ended` is set."""
    pausing = Forever(chunk(b": pause\n\n"), 0.05, ended.is_set)
    async with Scripted([ANSWER, chunk(EVENT), pausing, chunk(EVENT + DONE) + LAST]) as scripted:
        yield scripted


@pytest.fixture
async def gateway(upstream: Scripted, serve: Serve) -> AsyncIterator[Running]:
    async with serve(upstream.base_url) as whole:
        yield whole


@pytest.mark.parametrize("body", [{}, LARGE])
async def test_a_stream_keeps_nothing_of_what_received_its_request(body: dict[str, str], gateway: Running) -> None:
    async with streams(gateway, chat(await gateway.token(), body)) as opened:
        kept = opened.added(HttpRequestParser, RawRequestMessage, StreamReader, web.BaseRequest, BodyReader, BodyShare)
        one = opened.added(ParsedRequest, IncomingBody)
    assert kept == dict.fromkeys(kept, 0)
    assert one == dict.fromkeys(one, STREAMS)


async def test_a_stream_keeps_of_the_upstreams_headers_only_the_id(gateway: Running) -> None:
    async with streams(gateway, chat(await gateway.token())):
        kept = [each.headers for each in gc.get_objects() if isinstance(each, UpstreamConnection)]
        assert [list(each.items()) for each in kept] == [[("x-request-id", "4711")]] * STREAMS


async def test_connections_share_what_they_do_not_use(gateway: Running) -> None:
    async with streams(gateway, chat(await gateway.token())):
        protocols = [each for each in gc.get_objects() if isinstance(each, ResponseHandler)]
        waiting = [each for each in gc.get_objects() if isinstance(each, ServerProtocol)]
        assert len(protocols) == len(waiting) == STREAMS
        assert len({id(each._buffer) for each in protocols}) == 1
        assert not any(isinstance(held, deque) for each in waiting for held in gc.get_referents(each))
        relays = [each.events for each in gc.get_objects() if isinstance(each, Relay)]
        assert len({id(held) for each in relays for held in gc.get_referents(each) if held == frozenset()}) == 1


async def test_after_a_stream_its_connection_serves_what_was_sent_meanwhile_and_later(
    gateway: Running, ended: asyncio.Event
) -> None:
    token = await gateway.token()
    async with streams(gateway, chat(token), count=1) as opened:
        ((reader, writer),) = opened.connections
        head, rest = get("/v1/models", token)[:30], get("/v1/models", token)[30:]
        writer.write(get("/v1/models", token) + head)
        await asyncio.sleep(0.1)
        ended.set()
        assert (await reader.readuntil(LAST)).endswith(DONE + b"\r\n" + LAST)
        writer.write(rest)
        answers = [await read_answer(reader) for _ in range(2)]
        writer.write(chat(token))
        answers.append(await read_answer(reader))
    assert [(answer.status, answer.whole) for answer in answers] == [(200, True)] * 3


async def test_what_follows_a_request_that_closes_its_connection_is_dropped(
    gateway: Running, ended: asyncio.Event
) -> None:
    token = await gateway.token()
    async with streams(gateway, chat(token, headers={"Connection": "close"}), count=1) as opened:
        ((reader, writer),) = opened.connections
        writer.write(get("/v1/models", token))
        await asyncio.sleep(0.1)
        ended.set()
        assert (await reader.read()).endswith(DONE + b"\r\n" + LAST)


async def test_an_idle_connection_is_closed_after_a_stream(
    upstream: Scripted, serve: Serve, ended: asyncio.Event
) -> None:
    async with (
        serve(upstream.base_url, more="port: {idle_timeout: 0.5}") as whole,
        streams(whole, chat(await whole.token()), count=1) as opened,
    ):
        ((reader, _),) = opened.connections
        await asyncio.sleep(1)
        ended.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.read()).endswith(DONE + b"\r\n" + LAST)
