"""Real servers in every topology, each on its own port."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from gateway.base.errors import Misconfigured, StoreAway, StoreError
from gateway.store.client.client import Client, Script
from gateway.store.client.durability import info_of_masters
from gateway.store.embedded import EmbeddedStore, find_server
from tests.cli.processes import free_port
from tests.patience import PATIENCE_S, wait_until
from tests.store.sentinel import watched

StartServer = Callable[..., int]

AUTHORITY = trustme.CA()


@asynccontextmanager
async def behind_tls(port: int) -> AsyncIterator[int]:
    """Yield the port of a TLS proxy in front of a server without TLS, like that of a hosted store."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [(reader, writer), await asyncio.open_connection("127.0.0.1", port)]
        pumps = [asyncio.create_task(pump(ends[at][0], ends[1 - at][1])) for at in (0, 1)]
        await asyncio.wait(pumps)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServer]:
    """Return a function that starts a server with these settings and returns its port."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*settings: str, file: str | None = None) -> int:
        port = free_port()
        folder = tmp_path / str(port)
        folder.mkdir()
        conf = folder / "conf"
        conf.write_text(f'bind 127.0.0.1\nport {port}\ndir "{folder}"\nlogfile "{folder}/log"\nsave ""\n{file or ""}')
        started.append(subprocess.Popen([find_server(), str(conf), *settings]))
        return port

    yield start
    for process in started:
        process.kill()
        process.wait()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    client = Client.connect(url, timeout_s=2)
    yield client
    await client.close()


async def until_answered(client: Client, *command: str, answer: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.gather(client.call(*command), return_exceptions=True))[0] != answer:
            await asyncio.sleep(0.02)


async def test_password_and_database_of_the_url_are_used(start: StartServer) -> None:
    port = start("--requirepass", "p:ss/word")
    async with connected(f"redis://:p%3Ass%2Fword@127.0.0.1:{port}/3") as client:
        await until_answered(client, "PING", answer=True)
        await client.call("SET", "a", "1")
        assert "db3" in await client.call("INFO", "keyspace")


async def test_a_wrong_password_is_store_away_and_never_shown(start: StartServer) -> None:
    port = start("--requirepass", "right")
    async with connected(f"redis://:right@127.0.0.1:{port}") as client:
        await until_answered(client, "PING", answer=True)
    for wrong, word in ((":hunter2@", "WRONGPASS"), ("", "NOAUTH")):
        async with connected(f"redis://{wrong}127.0.0.1:{port}") as client:
            with pytest.raises(StoreAway, match=word) as caught:
                await client.call("PING")
            assert "hunter2" not in repr(caught.value)


async def test_a_database_that_is_not_there_is_store_away(start: StartServer) -> None:
    port = start()
    async with connected(f"redis://127.0.0.1:{port}") as client:
        await until_answered(client, "PING", answer=True)
    async with connected(f"redis://127.0.0.1:{port}/99") as client:
        with pytest.raises(StoreAway, match="DB index is out of range"):
            await client.call("PING")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Return the certificate file of the authority that signed the servers' certificates."""
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


async def test_tls_needs_a_trusted_authority(start: StartServer, authority: Path) -> None:
    async with behind_tls(start("--requirepass", "right")) as port:
        async with connected(f"rediss://:right@127.0.0.1:{port}?ssl_ca_certs={authority}") as client:
            await until_answered(client, "PING", answer=True)
            await client.call("SET", "a", "x" * 200_000)
            assert await client.call("GET", "a") == b"x" * 200_000
            assert await client.redis.get("a") == b"x" * 200_000
        for stranger in (
            f"rediss://:right@127.0.0.1:{port}",
            f"rediss://:right@localhost:{port}?ssl_ca_certs={authority}",
        ):
            async with connected(stranger) as client:
                with pytest.raises(StoreAway):
                    await client.call("PING")


async def test_sentinel_and_its_primary_are_reached_through_tls(start: StartServer, authority: Path) -> None:
    async with behind_tls(start()) as port:
        named = f"sentinel monitor mymaster 127.0.0.1 {port} 1\nsentinel down-after-milliseconds mymaster 60000\n"
        async with behind_tls(start("--sentinel", file=named)) as sentinel:
            url = f"sentinel://127.0.0.1:{sentinel}/mymaster?ssl=true&ssl_ca_certs={authority}"
            async with connected(url) as client:
                await until_answered(client, "PING", answer=True)
            async with connected(url.partition("&")[0]) as client:
                with pytest.raises(StoreAway):
                    await client.call("PING")


async def test_a_replaced_primary_is_left_although_it_still_responds(tmp_path: Path) -> None:
    with watched(tmp_path) as servers:
        async with connected(servers.url) as client:
            await until_answered(client, "PING", answer=True)
            await client.follow()
            before = servers.primary()
            assert (await client.call("INFO", "server"))["tcp_port"] == before.port
            await asyncio.to_thread(servers.fail_over, "ordered")
            assert (await client.call("INFO", "server"))["tcp_port"] == before.port, "it has not noticed"
            await client.follow()
            assert (await client.call("INFO", "server"))["tcp_port"] == servers.primary().port != before.port


async def test_a_cluster_takes_the_same_calls(start: StartServer) -> None:
    port = start("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    async with connected(f"redis://127.0.0.1:{port}") as node:
        await until_answered(node, "PING", answer=True)
        with pytest.raises(StoreAway, match="CLUSTERDOWN"):
            await node.call("SET", "a", "1")
        await node.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await until_answered(node, "SET", "a", "1", answer=True)
    async with connected(f"cluster://127.0.0.1:{port}") as client:
        await until_answered(client, "GET", "a", answer=b"1")
        with pytest.raises(StoreError, match="not an integer"):
            await client.call("INCRBY", "a", "x")
        script = Script("both", "return { KEYS[1], ARGV[1] }")
        assert [await client.run(script, ["{a}b"], [3]) for _ in range(2)] == [[b"{a}b", b"3"]] * 2
        given_up = client.submit("SET", "a", "2")
        given_up.cancel()
        assert await client.call("GET", "a") == b"1"


async def test_an_unreachable_store_is_store_away_in_every_topology(tmp_path: Path) -> None:
    for url in (
        "redis://:hunter2@127.0.0.1:1",
        f"unix://{tmp_path}/none",
        "sentinel://127.0.0.1:1/m",
        "cluster://127.0.0.1:1",
    ):
        async with connected(url) as client:
            with pytest.raises(StoreAway) as caught:
                await client.call("PING")
            assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("shape", ["redis", "cluster"])
async def test_a_failure_that_is_never_retrieved_is_not_logged(shape: str) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with connected(f"{shape}://127.0.0.1:1") as client:
        forgotten = client.submit("PING")
        await asyncio.wait((forgotten,))
        del forgotten
    gc.collect()
    assert complaints == []


async def test_a_restarted_server_is_reached_soon(tmp_path: Path) -> None:
    store = EmbeddedStore.start(tmp_path)
    async with connected(store.url) as client:
        await client.call("SET", "a", "1")
        store.stop()
        for _ in range(3):
            with pytest.raises(StoreAway):
                await client.call("GET", "a")
        again = EmbeddedStore.start(tmp_path)
        try:
            assert await client.call("GET", "a") == b"1"
        finally:
            again.stop()


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:SECRETA/SECRETB@127.0.0.1:1/0", "redis://:SECRETA#B@127.0.0.1:1", "redis://:SECRETA?B@127.0.0.1:1"),
        *(
            "redis://:SECRETA[@127.0.0.1:1",
            "redis://127.0.0.1:abc",
            "redis://127.0.0.1:99999",
            "redis://127.0.0.1:1/abc",
        ),
        *(
            "redis://127.0.0.1:1?nosuch=1",
            "redis://127.0.0.1:1?ssl_ca_certs=/x",
            "redis://127.0.0.1:1?socket_timeout=abc",
        ),
    ],
)
async def test_a_url_that_cannot_be_used_is_one_line_without_any_of_it(url: str) -> None:
    with pytest.raises(Misconfigured, match="this URL cannot be used") as caught:
        Client.connect(url)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sentinel://:hunter2@host/name", "every host needs its port"),
        ("amqp://u:hunter2@h", "must be `embedded` or begin"),
    ],
)
async def test_an_unknown_kind_of_url_or_a_host_without_a_port_is_refused(url: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words) as caught:
        Client.connect(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "/", "/0", "/0/", "/15"])
async def test_a_url_with_or_without_a_database_is_accepted(path: str) -> None:
    client = Client.connect(f"redis://127.0.0.1:1{path}")
    await client.close()


def listens(path: Path) -> bool:
    """Return whether a server accepts connections at this socket, whose file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def test_a_unix_socket_says_why_it_is_not_reached(tmp_path: Path, start: StartServer) -> None:
    missing = Client.connect(f"unix://{tmp_path}/nowhere", timeout_s=PATIENCE_S)
    with pytest.raises(StoreAway, match="FileNotFoundError"):
        await missing.call("PING")
    await missing.close()
    start("--unixsocket", f"{tmp_path}/s", "--requirepass", "right")
    await wait_until(lambda: listens(tmp_path / "s"))
    for url, word in ((f"unix://{tmp_path}/s", "NOAUTH"), (f"unix://{tmp_path}/s?password=wrong", "WRONGPASS")):
        client = Client.connect(url, timeout_s=PATIENCE_S)
        with pytest.raises(StoreAway, match=word):
            await client.call("PING")
        await client.close()


async def test_a_server_that_is_no_cluster_is_a_store_that_cannot_serve(start: StartServer) -> None:
    client = Client.connect(f"cluster://127.0.0.1:{start()}", timeout_s=PATIENCE_S)
    with pytest.raises(StoreAway):
        await info_of_masters(client, "server")
    await client.close()
