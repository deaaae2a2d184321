"""Connections to upstreams: pooled, dropped when their channel changes, and the heads that are sent."""

from __future__ import annotations

import asyncio
import gc
import shutil
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler

from gateway.chain import loading
from gateway.chain.chain import Chain
from gateway.config.channel import Channel
from gateway.config.document import shipped
from gateway.config.schema import load
from gateway.operations.operation import SERVED, Operation
from gateway.proxy.pool import AIOHTTP_ATTRIBUTES, AIOHTTP_CONNECTOR, Endpoint, UpstreamPool
from gateway.proxy.scheduler import Turns
from gateway.proxy.upstream import IdleConnection, UpstreamConnection, take
from gateway.store.channels import CredentialStates
from gateway.store.circuit_breaker import ChannelBreaker
from gateway.store.client.client import Client
from gateway.testing import running
from plugins.anthropic import Messages
from tests.patience import PATIENCE_S, wait_until
from tests.runtime.test_reload import FileReloader
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk
from tests.whole.test_channel_requests import certificates, context
from tests.whole.test_stream import STREAM

__all__ = ["certificates"]  # fixtures

# Connections, credentials and certificates of a channel that a reload changed are not used again, and are freed.
GOOD = [CHUNKED + chunk(STREAM) + LAST]
RELOADS = 200
WARM = 50
"""Reloads after which caches are full."""
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def reload(reloader: FileReloader) -> None:
    """Reload, and wait until the old chain is stopped and what it used is freed."""
    assert await reloader.run_once()
    await wait_until(lambda: not reloader._retiring)


@needs_openssl
async def test_a_rotated_ca_file_is_taken_up_by_a_reload(
    store_url: str, client: Client, tmp_path: Path, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    shutil.copy(certificates / "other.pem", other / "ca.pem")  # not the authority of the upstream
    trusted = tmp_path / "trusted.pem"
    shutil.copy(other / "ca.pem", trusted)
    async with Scripted(GOOD, tls=context(certificates)) as upstream:
        yaml = configuration(upstream.base_url, channel=f", ca_file: {trusted}")
        async with (
            running(yaml, tmp_path, store_url) as gateway,
            FileReloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader,
        ):
            token = await gateway.token()
            assert (await ask(gateway.port, chat(token))).status == 502
            await client.call("DEL", "gw:{channels}:fake:state")
            shutil.copy(certificates / "ca.pem", trusted)
            await reload(reloader)
            assert (await ask(gateway.port, chat(token))).status == 200
            assert len(upstream.open) == 1
            await reload(reloader)
            assert (await ask(gateway.port, chat(token))).status == 200
            assert upstream.connections == 1, "a reload that leaves the channel as it was keeps its connections"
            shutil.copy(other / "ca.pem", trusted)
            await reload(reloader)
            assert (await ask(gateway.port, chat(token))).status == 502, "the connection of the old trust is not used"


async def test_a_target_is_closed_with_the_last_generation_that_used_it() -> None:
    pool = UpstreamPool()
    first, second = Channel(base_url="http://a/v1"), Channel(base_url="http://b/v1")
    used = pool.endpoint(first, 1)
    assert pool.endpoint(Channel(base_url="http://a/v1"), 2) is used
    pool.endpoint(second, 1)
    await pool.retire(1, [first])
    assert pool.endpoint(first, 2) is used
    await pool.retire(2, [second])
    assert pool.endpoint(first, 3) is not used
    await pool.close()


@pytest.mark.parametrize("closes", [False, True])
async def test_a_connection_is_at_hand_until_something_arrives_on_it(*, closes: bool) -> None:
    peers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer)
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async def ask(connection: UpstreamConnection) -> UpstreamConnection:
        ended = asyncio.get_running_loop().create_future()
        connection.on_head = lambda head: head.flow_to(lambda data: None, ended.set_result)
        connection.send([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
        assert await ended
        connection.release()
        return connection

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        pool = UpstreamPool()
        endpoint = pool.endpoint(Channel(base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"))
        await ask((await endpoint.open(fresh=False))[0])
        again = endpoint.at_hand()
        assert again is not None
        await ask(again)
        assert len(peers) == 1
        if closes:
            peers[0].close()
        else:
            peers[0].write(b"HTTP/1.1 200 OK\r\n\r\n")
        await wait_until(lambda: not again._reusable)
        assert endpoint.at_hand() is None
        await pool.close()
        await asyncio.gather(*(peer.wait_closed() for peer in peers), return_exceptions=True)


@needs_openssl
@pytest.mark.skipif(sys.platform != "linux", reason="counts the descriptors in /proc")
async def test_reloads_leave_no_object_no_descriptor_and_no_key(
    store_url: str, client: Client, tmp_path: Path, certificates: Path
) -> None:
    trusted, file = tmp_path / "trusted.pem", tmp_path / "gateway.yaml"
    authority = (certificates / "ca.pem").read_text()

    async with Scripted(GOOD, tls=context(certificates)) as upstream:

        def write(number: int) -> str:
            trusted.write_text(f"{authority}# {number}\n")
            text = configuration(upstream.base_url, channel=f"{number:05}, ca_file: {trusted}")
            file.write_text(text)
            return text

        async with running(write(0), tmp_path, store_url) as gateway, FileReloader(gateway.gateway, file) as reloader:
            token = await gateway.token()

            async def measure() -> tuple[Counter[str], int, int, int, int]:
                upstream.requests.clear()
                await wait_until(lambda: len(upstream.open) <= 1)
                await asyncio.sleep(0.05)
                gc.collect()
                objects = gc.get_objects()
                kinds = Counter(type(each).__name__ for each in objects)
                return kinds, len(objects), descriptors(), len(asyncio.all_tasks()), await keys()

            async def keys() -> int:
                fields = await client.call("HKEYS", "gw:{channels}:fake:state")
                return sum(not field.startswith(b"min:") for field in fields)  # those are of the last six minutes

            for number in range(1, RELOADS + 1):
                write(number)
                await reload(reloader)
                answer = await asyncio.wait_for(ask(gateway.port, chat(token)), PATIENCE_S)
                assert answer.status == 200
                if number == WARM:
                    await measure()
                    before = await measure()
            # What is under way at the moment of a measurement, such as a connection that closes, has ended in another one.
            for _ in range(20):
                after = await measure()
                if after[2] <= before[2] + 1 and after[3] <= before[3]:
                    break
    for kind in (Endpoint, Channel, Chain, ChannelBreaker, ssl.SSLContext):
        assert after[0][kind.__name__] <= before[0][kind.__name__] + 1, kind
    grown = {kind: count - before[0][kind] for kind, count in after[0].items() if count > before[0][kind] + 5}
    assert after[1] - before[1] < 2 * (RELOADS - WARM), grown  # a chain that stays is many more
    assert after[2] <= before[2] + 1
    assert after[3] <= before[3]
    assert after[4] <= before[4], "fields of the channel's state in the store"


async def test_aiohttp_has_the_attributes_that_are_not_public() -> None:
    protocol = ResponseHandler(asyncio.get_running_loop())
    missing = [name for name in AIOHTTP_ATTRIBUTES if not hasattr(protocol, name)]
    missing += [name for name in AIOHTTP_CONNECTOR if not hasattr(TCPConnector, name)]
    assert not missing, "this version of aiohttp differs: read its client_proto.py before you raise the version"


# A connection goes to the pool and back without a pause of its reading, and aiohttp learns what happens to it there.
class Pooled(asyncio.Protocol):
    """What stands for aiohttp's protocol: it keeps what it was called with."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = False
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Reading(asyncio.BufferedProtocol):
    """What stands for a call of an upstream."""

    def __init__(self) -> None:
        self.buffer = bytearray(64)
        self.received = b""

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]


class Counted:
    """A transport whose pauses are counted."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.pauses = 0

    def pause_reading(self) -> None:
        self.pauses += 1
        self.transport.pause_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


Loop = Callable[[], asyncio.AbstractEventLoop]
every_loop = pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Connected:
    """Both ends of a connection."""

    def __init__(self, transport: Any, pooled: Pooled, upstream: asyncio.StreamWriter) -> None:
        self.transport, self.pooled, self.upstream = transport, pooled, upstream


@asynccontextmanager
async def connect() -> AsyncIterator[Connected]:
    accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, pooled = await asyncio.get_running_loop().create_connection(Pooled, "127.0.0.1", port)
    yield Connected(Counted(transport), pooled, await accepted)
    transport.abort()
    (await accepted).close()
    server.close()


async def eventually(protocol: Pooled | Reading, expected: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while protocol.received != expected:
            await asyncio.sleep(0.001)


@every_loop
def test_reading_is_paused_only_when_a_new_connection_is_taken(new_loop: Loop) -> None:
    async def check() -> None:
        async with connect() as connected:
            for number in range(3):
                reading = Reading()
                take(connected.transport, reading)
                connected.upstream.write(b"answer %d" % number)
                await eventually(reading, b"answer %d" % number)
                connected.transport.set_protocol(IdleConnection(connected.pooled))
                assert connected.transport.pauses == 1
            assert connected.pooled.received == b""

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


@every_loop
def test_what_happens_in_the_pool_is_passed_on(new_loop: Loop) -> None:
    async def check() -> None:
        async with connect() as connected:
            take(connected.transport, Reading())
            connected.transport.set_protocol(IdleConnection(connected.pooled))
            connected.upstream.write(b"x" * 3000)
            await eventually(connected.pooled, b"x" * 3000)
            connected.upstream.close()
            assert await asyncio.wait_for(connected.pooled.lost, PATIENCE_S) is None
            assert connected.pooled.ended

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(check())


# The head of the requests to a channel, and the shipped examples of providers that need more than an address and a key.
KEYS = ("AZURE_OPENAI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "DATABRICKS_TOKEN", "ANTHROPIC_API_KEY")
ENVIRONMENT = dict.fromkeys(KEYS, "key-of-the-provider") | {"CLOUDFLARE_AI_TOKEN": "token-of-cloudflare"}
COMMON = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "sluicegate"}
EXAMPLES: dict[str, tuple[str, dict[str, str]]] = {
    "azure": (
        "/openai/deployments/gpt-4o-mini/chat/completions?api-version=2024-10-21",
        {"host": "my-resource.openai.azure.com", "api-key": "key-of-the-provider"},
    ),
    "openrouter": (
        "/api/v1/chat/completions",
        {
            **{"host": "openrouter.ai", "authorization": "Bearer key-of-the-provider"},
            **{"http-referer": "https://chat.example.com", "x-openrouter-title": "Example Chat"},
        },
    ),
    "cloudflare": (
        "/v1/0123456789abcdef0123456789abcdef/my-gateway/compat/chat/completions",
        {
            **{"host": "gateway.ai.cloudflare.com", "authorization": "Bearer key-of-the-provider"},
            **{"cf-aig-authorization": "Bearer token-of-cloudflare", "cf-aig-collect-log-payload": "false"},
            **{"cf-aig-skip-cache": "true", "cf-aig-metadata": '{"service": "sluicegate"}'},
        },
    ),
    "databricks": (
        "/serving-endpoints/chat/completions",
        {
            **{"host": "my-workspace.cloud.databricks.com", "authorization": "Bearer key-of-the-provider"},
            "user-agent": "example_sluicegate/1.0",
        },
    ),
    "anthropic": (
        "/v1/messages",
        {"host": "api.anthropic.com", "x-api-key": "key-of-the-provider", "anthropic-version": "2023-06-01"},
    ),
}


async def head(
    channel: Channel, dialect: Messages | None = None, credential: str = "", operation: Operation = Operation.CHAT
) -> tuple[str, dict[str, str]]:
    """Return the path and the headers of a request."""
    endpoint = Endpoint(channel, Turns(), CredentialStates(), dialect)
    try:
        (message,) = endpoint.message(SERVED[operation], [b"{}"], credential, "text/event-stream", "")
    finally:
        await endpoint.close()
    start, *lines = bytes(message).decode("latin-1").partition("\r\n\r\n")[0].split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), "a header is there twice"
    assert (headers.pop("accept"), headers.pop("content-length")) == ("text/event-stream", "2")
    method, path, version = start.split(" ")
    assert (method, version) == ("POST", "HTTP/1.1")
    return path, headers


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_shipped_examples_send_what_the_provider_asks_for(name: str) -> None:
    loaded = load(shipped(f"examples/{name}.yaml"), ENVIRONMENT)
    chain = loading.build(loaded)
    (channel,) = loaded.config.channels.values()
    dialect = chain.dialects.get(channel.dialect or "")
    assert dialect is None or isinstance(dialect, Messages)
    path, headers = EXAMPLES[name]
    assert await head(channel, dialect, "key-of-the-provider") == (path, {**COMMON, **headers})
    assert channel.request_in_words
    assert "key-of-the-provider" in channel.scrubbed


def test_every_example_is_tried() -> None:
    assert {path.stem for path in Path(shipped("examples")).glob("*.yaml")} == {*EXAMPLES, "agents"}


async def test_the_example_for_agents_sends_each_operation_to_its_path_with_the_credential_in_its_place() -> None:
    channels = load(shipped("examples/agents.yaml"), ENVIRONMENT).config.channels
    for name, operation, path, place in (
        ("anthropic", Operation.MESSAGES, "/v1/messages", ("x-api-key", "key-of-the-provider")),
        ("anthropic", Operation.MESSAGE_TOKENS, "/v1/messages/count_tokens", ("x-api-key", "key-of-the-provider")),
        ("openai", Operation.RESPONSES, "/v1/responses", ("authorization", "Bearer key-of-the-provider")),
        ("openai", Operation.EMBEDDINGS, "/v1/embeddings", ("authorization", "Bearer key-of-the-provider")),
    ):
        assert operation.value in channels[name].operations
        sent, headers = await head(channels[name], None, "key-of-the-provider", operation)
        assert (sent, headers[place[0]]) == (path, place[1])


async def test_a_credential_in_the_query_is_encoded() -> None:
    channel = Channel(
        "http://h:8080/v1", api_keys=("a/b+c=d&e", "other"), auth="query key", query={"v": "\u00e4 1", "w": ""}
    )
    path, headers = await head(channel, credential="a/b+c=d&e")
    assert path == "/v1/chat/completions?v=%C3%A4%201&w=&key=a%2Fb%2Bc%3Dd%26e"
    assert headers == {**COMMON, "host": "h:8080"}
    assert (await head(channel, credential="other"))[0].endswith("&key=other")


async def test_a_channel_without_a_credential_sends_none() -> None:
    for auth in (None, "bearer", "header x-key", "query key"):
        assert await head(Channel("http://h/v1", auth=auth)) == ("/v1/chat/completions", {**COMMON, "host": "h"})


async def test_the_headers_of_a_channel_replace_those_of_its_dialect() -> None:
    channel = Channel("http://h/v1", api_key="k", dialect="anthropic", headers={"Anthropic-Version": "2099-01-01"})
    _, headers = await head(channel, Messages(), "k")
    assert headers == {**COMMON, "host": "h", "x-api-key": "k", "anthropic-version": "2099-01-01"}


async def test_a_proxy_gets_the_whole_address() -> None:
    channel = Channel("http://h/v1", query={"a": "b"}, proxy="http://u:p@proxy:1")
    path, headers = await head(channel)
    assert path == "http://h/v1/chat/completions?a=b"
    assert headers["proxy-authorization"].startswith("Basic ")
