"""Exchanges, connections, streams and reloads leave nothing behind when they end, and keep little while they last."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import StreamReader, web
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpRequestParser, RawRequestMessage

from gateway.domain.exchange import Exchange
from gateway.fake_upstream import FakeUpstream
from gateway.proxy.relay import Relay
from gateway.proxy.upstream import UpstreamConnection
from gateway.server.body import BodyShare, IncomingBody
from gateway.server.head import ParsedRequest
from gateway.server.listener import SEND_BUFFER
from gateway.server.protocol import ServerProtocol
from gateway.testing import Running, running
from tests.patience import PATIENCE_S, wait_until
from tests.runtime.test_reload import FileReloader
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Scripted, chunk
from tests.whole.test_channel_requests import GOOD, certificates, context


class Garbage:
    """What is left of requests: objects in reference cycles, and exchanges that something still holds."""

    async def assert_none(self) -> None:
        await wait_until(lambda: not _exchanges())
        gc.collect()
        counts = Counter(type(each).__module__.partition(".")[0] for each in gc.garbage)
        assert [name for name in ("gateway", "plugins", "httptools", "aiohttp") if counts[name]] == []


def _exchanges() -> list[Exchange]:
    return [each for each in gc.get_objects() if type(each) is Exchange]


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    """Disable the collector: `gc.collect()` puts what it finds into a list instead of freeing it."""
    gc.collect()
    gc.freeze()  # what earlier tests have left is not looked at
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield Garbage()
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@asynccontextmanager
async def answering(serve: Serve, *, pace_s: float) -> AsyncIterator[Running]:
    """Run a gateway whose upstream sends a word every `pace_s`."""
    async with FakeUpstream(pace_s=pace_s) as upstream, serve(upstream.base_url) as gateway:
        yield gateway


async def test_streams_are_freed_as_they_end_and_connections_as_they_close(serve: Serve, garbage: Garbage) -> None:
    async with answering(serve, pace_s=0) as gateway:
        token = await gateway.token()
        for requests in (20, 2, 2, 2, 2):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(requests):
                writer.write(chat(token))
                assert (await read_answer(reader)).status == 200
            if requests == 20:
                await garbage.assert_none()
            writer.close()
        await connections_closed()
        await garbage.assert_none()


LARGE = {"metadata": {"a": "x" * 200_000}}
REFUSED = {
    "not JSON": (b'{"model":', 400),
    "too deep": (b'{"messages":' + b"[" * 100_000, 400),
    "a wrong field": ({"messages": []}, 400),
    "beyond a limit": ({"max_tokens": 1_000_000}, 429),
    "an unknown model": ({"model": "none"}, 404),
    "too expensive": ({}, 402),
    "large, not JSON": (b'{"model":"%b' % (b"x" * 200_000), 400),
    "large, not UTF-8": (b'{"model":"%b"}' % (b"\xff" * 200_000), 400),
    "large, a wrong field": (LARGE | {"messages": []}, 400),
    "large, an unknown model": (LARGE | {"model": "none"}, 404),
    "large, too expensive": (LARGE, 402),
}
CHUNKED_BODY = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
)


async def test_refused_requests_are_freed_as_they_end(serve: Serve, garbage: Garbage) -> None:
    async with serve("http://127.0.0.1:9/v1") as gateway:
        token = await gateway.token("refused", credit=1)
        for refused, (body, status) in REFUSED.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(3):
                writer.write(chat(token, body))
                assert (await read_answer(reader)).status == status, refused
            writer.close()
        await garbage.assert_none()


async def test_requests_without_a_token_are_freed(gateway: Running, garbage: Garbage) -> None:
    for request in (chat("sk-wrong"), chat(None), get("/v1/unknown"), get("/v1/models", "sk-tester-0")):
        await ask(gateway.port, request)
    await garbage.assert_none()


@pytest.mark.parametrize("mode", ["500", "404", "first-error", "cut", "html"])
async def test_requests_whose_upstream_fails_are_freed(
    gateway: Running, upstream: FakeUpstream, garbage: Garbage, mode: str
) -> None:
    upstream.mode = mode
    await ask(gateway.port, chat(await gateway.token()))
    await garbage.assert_none()


async def test_a_body_with_broken_framing_is_freed(serve: Serve, garbage: Garbage) -> None:
    async with serve("http://127.0.0.1:9/v1") as gateway:
        token = await gateway.token("broken")
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(CHUNKED_BODY + b"Authorization: Bearer %b\r\n\r\n5\r\n" % token.encode())
        await asyncio.sleep(0.05)
        writer.write(b"{----\r\nx\r\n")
        assert (await read_answer(reader)).status == 400
        writer.close()
        await connections_closed()
        await garbage.assert_none()


async def test_requests_of_callers_that_leave_are_freed(serve: Serve, garbage: Garbage) -> None:
    async with answering(serve, pace_s=10) as gateway:
        token = await gateway.token("leaving")
        for sent in (10_000, -1, None) * 3:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(chat(token, LARGE)[:sent])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
        await connections_closed()
        await garbage.assert_none()


async def test_a_request_is_freed_whose_upstream_closes_the_connection(serve: Serve, garbage: Garbage) -> None:
    async with Scripted([Fin]) as upstream, serve(upstream.base_url) as gateway:
        assert (await ask(gateway.port, chat(await gateway.token()))).status == 502
        await wait_until(lambda: not gateway.gateway.connections.open)
        await garbage.assert_none()


async def connections_closed() -> None:
    """Wait until no connection is left."""
    async with asyncio.timeout(30):
        while any(isinstance(each, ServerProtocol) for each in gc.get_objects()):
            await asyncio.sleep(0.05)


async def test_the_kernel_keeps_little_for_a_caller_that_does_not_read(gateway: Running) -> None:
    """By default it keeps some MiB, of a memory that all connections of the machine share."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(get("/healthz"))
    await wait_until(lambda: bool(connections()))
    (transport,) = connections()
    assert transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER
    writer.close()


def connections() -> list[asyncio.BaseTransport]:
    """Return the transports of the gateway's connections to callers."""
    protocols = [each for each in gc.get_objects() if type(each) is ServerProtocol]
    return [each.transport for each in protocols if each.transport is not None]


STREAMS = 8
EVENT = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = (
    CHUNKED[:-2]
    + b"".join(b"x-of-the-provider-%d: %d\r\n" % (number, number) for number in range(20))
    + b"x-request-id: 4711\r\n\r\n"
)
EVENTS_LARGE = {"user": "x" * 100_000}


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
async def streams(gateway_of_pushed: Running, *requests: bytes, count: int = STREAMS) -> AsyncIterator[Streams]:
    """Send requests on as many connections, and yield when each has had the first event of its stream."""
    before = census()
    connections = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway_of_pushed.port)
            connections.append((reader, writer))
            writer.write(requests[0])
            await reader.readuntil(EVENT)
        yield Streams(before, connections)
    finally:
        for _, writer in connections:
            writer.close()


@pytest.fixture
async def pushed(ended: asyncio.Event) -> AsyncIterator[Scripted]:
    """Yield an upstream whose answers begin with an event and then pause until `ended` is set."""
    pausing = Forever(chunk(b": pause\n\n"), 0.05, ended.is_set)
    async with Scripted([ANSWER, chunk(EVENT), pausing, chunk(EVENT + DONE) + LAST]) as scripted:
        yield scripted


@pytest.fixture
async def gateway_of_pushed(pushed: Scripted, serve: Serve) -> AsyncIterator[Running]:
    async with serve(pushed.base_url) as whole:
        yield whole


@pytest.mark.parametrize("body", [{}, EVENTS_LARGE])
async def test_a_stream_keeps_nothing_of_what_received_its_request(
    body: dict[str, str], gateway_of_pushed: Running
) -> None:
    async with streams(gateway_of_pushed, chat(await gateway_of_pushed.token(), body)) as opened:
        kept = opened.added(HttpRequestParser, RawRequestMessage, StreamReader, web.BaseRequest, BodyShare)
        one = opened.added(ParsedRequest, IncomingBody)
    assert kept == dict.fromkeys(kept, 0)
    assert one == dict.fromkeys(one, STREAMS)


async def test_a_stream_keeps_of_the_upstreams_headers_only_the_id(gateway_of_pushed: Running) -> None:
    async with streams(gateway_of_pushed, chat(await gateway_of_pushed.token())):
        kept = [each.headers for each in gc.get_objects() if isinstance(each, UpstreamConnection)]
        assert [list(each.items()) for each in kept] == [[("x-request-id", "4711")]] * STREAMS


async def test_connections_share_what_they_do_not_use(gateway_of_pushed: Running) -> None:
    async with streams(gateway_of_pushed, chat(await gateway_of_pushed.token())):
        protocols = [each for each in gc.get_objects() if isinstance(each, ResponseHandler)]
        waiting = [each for each in gc.get_objects() if isinstance(each, ServerProtocol)]
        assert len(protocols) == len(waiting) == STREAMS
        assert len({id(each._buffer) for each in protocols}) == 1
        assert not any(isinstance(held, deque) for each in waiting for held in gc.get_referents(each))
        relays = [each.events for each in gc.get_objects() if isinstance(each, Relay)]
        assert len({id(held) for each in relays for held in gc.get_referents(each) if held == frozenset()}) == 1


async def test_after_a_stream_its_connection_serves_what_was_sent_meanwhile_and_later(
    gateway_of_pushed: Running, ended: asyncio.Event
) -> None:
    token = await gateway_of_pushed.token()
    async with streams(gateway_of_pushed, chat(token), count=1) as opened:
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
    gateway_of_pushed: Running, ended: asyncio.Event
) -> None:
    token = await gateway_of_pushed.token()
    async with streams(gateway_of_pushed, chat(token, headers={"Connection": "close"}), count=1) as opened:
        ((reader, writer),) = opened.connections
        writer.write(get("/v1/models", token))
        await asyncio.sleep(0.1)
        ended.set()
        assert (await reader.read()).endswith(DONE + b"\r\n" + LAST)


async def test_an_idle_connection_is_closed_after_a_stream(
    pushed: Scripted, serve: Serve, ended: asyncio.Event
) -> None:
    async with (
        serve(pushed.base_url, more="port: {idle_timeout: 0.5}") as whole,
        streams(whole, chat(await whole.token()), count=1) as opened,
    ):
        ((reader, _),) = opened.connections
        await asyncio.sleep(1)
        ended.set()
        async with asyncio.timeout(PATIENCE_S):
            assert (await reader.read()).endswith(DONE + b"\r\n" + LAST)


NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
__all__ = ["certificates"]

ROUNDS = 12
OURS = (
    *("gateway", "plugins", "aiohttp.client", "aiohttp.connector", "aiohttp.resolver", "ssl", "asyncio.sslproto"),
    "importlib",
)
OF_CALLERS = ("gateway.server",)
"""The connections of callers, which are not of a reload."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off."""
    yield
    gc.enable()


def counted() -> Counter[str]:
    """Return how many objects of the gateway, and of what it calls upstreams with, are in memory, by type."""
    names = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Counter(
        {name: count for name, count in names.items() if name.startswith(OURS) and not name.startswith(OF_CALLERS)}
    )


def numbered(number: int, base_url: str, ca_file: Path) -> str:
    """Return a configuration whose channel, model and credential have this number."""
    return f"""
channels:
  secret{number}: {{base_url: "{base_url}", api_key: credential-{number}, ca_file: {ca_file}}}
models:
  words{number}: {{input: 1, output: 2, max_output_tokens: 100, channels: [secret{number}]}}
groups:
  default: {{models: ["*"]}}
plugins:
  - use: usage-logger
  - use: auth
  - use: rate-limit
    with: {{requests_per_minute: {1000 + number}}}
  - use: quota
  - use: model-routing
"""


@NEEDS_OPENSSL
@pytest.mark.usefixtures("uncollected")
async def test_reloads_with_other_channels_credentials_and_authorities_leave_no_objects(
    store_url: str, tmp_path: Path, certificates: Path
) -> None:
    authorities = tmp_path / "authorities.pem"
    authority = (certificates / "ca.pem").read_bytes()
    authorities.write_bytes(authority)
    async with (
        Scripted(GOOD, tls=context(certificates)) as upstream,
        running(numbered(0, upstream.base_url, authorities), tmp_path, store_url) as gateway,
        FileReloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader,
    ):
        token = await gateway.token()

        async def reload(numbers: range) -> None:
            for number in numbers:
                authorities.write_bytes(authority + b"# %d\n" % number)
                (tmp_path / "gateway.yaml").write_text(numbered(number, upstream.base_url, authorities))
                assert await reloader.run_once()
                assert (await ask(gateway.port, chat(token, {"model": f"words{number}"}))).status == 200
                await settled(gateway, reloader)

        await reload(range(1, 4))
        gc.collect()
        gc.disable()
        before = counted()
        await reload(range(4, 4 + ROUNDS))
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while grown(before):
                    await asyncio.sleep(0.05)
        assert grown(before) == {}


def grown(before: Counter[str]) -> dict[str, int]:
    """Return of which types there are more now: one for about each reload."""
    return {name: more for name, more in (counted() - before).items() if more >= ROUNDS / 2}


async def settled(gateway: Running, reloader: FileReloader) -> None:
    """Wait until the chains before are stopped."""
    await wait_until(lambda: not reloader._retiring and gateway.gateway.runner.open == 0)
    await asyncio.sleep(0)
