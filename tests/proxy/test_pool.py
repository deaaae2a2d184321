"""Connections, credentials and certificates of a channel that a reload changed are not used again, and are freed."""

from __future__ import annotations

import asyncio
import gc
import shutil
import ssl
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler

from gateway.chain.chain import Chain
from gateway.config.channel import Channel
from gateway.proxy.pool import AIOHTTP_ATTRIBUTES, AIOHTTP_CONNECTOR, Endpoint, UpstreamPool
from gateway.proxy.upstream import UpstreamConnection
from gateway.runtime.reload import Reloader
from gateway.store.circuit_breaker import ChannelBreaker
from gateway.store.client.client import Client
from gateway.testing import running
from tests.patience import PATIENCE_S, wait_until
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk
from tests.whole.test_stream import STREAM
from tests.whole.test_upstream_tls import certificates, context

__all__ = ["certificates"]

GOOD = [CHUNKED + chunk(STREAM) + LAST]
RELOADS = 200
WARM = 50
"""Reloads after which caches are full."""

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def reload(reloader: Reloader) -> None:
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
            Reloader(gateway.gateway, tmp_path / "gateway.yaml") as reloader,
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
        again = await endpoint.idle()
        assert again is not None
        await ask(again)
        assert len(peers) == 1
        if closes:
            peers[0].close()
        else:
            peers[0].write(b"HTTP/1.1 200 OK\r\n\r\n")
        await wait_until(lambda: not again._reusable)
        assert await endpoint.idle() is None
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

        async with (
            running(write(0), tmp_path, store_url) as gateway,
            Reloader(gateway.gateway, file) as reloader,
        ):
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
                fields = await client.call("HLEN", "gw:{channels}:fake:state")
                return int(fields)

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
