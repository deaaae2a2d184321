from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.exceptions
from redis._parsers.base import BaseParser

from gateway.base.errors import StoreAway, StoreError
from gateway.store.client.client import Client
from gateway.store.client.connection import Connection, translated
from gateway.store.client.protocol import MOMENTARY, error_of
from gateway.store.embedded import EmbeddedStore
from tests.patience import timed

StartStore = Callable[[], EmbeddedStore]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncIterator[Client]:
    client = Client.connect(url, **settings)
    yield client
    await client.close()


@asynccontextmanager
async def peer(script: Script) -> AsyncIterator[Client]:
    """Yield a client of a server that is not a store and runs `script`."""
    server = await asyncio.start_server(script, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with connected(f"redis://{host}:{port}", timeout_s=0.5) as client:
        yield client
    server.close()


async def outcomes(*futures: asyncio.Future[Any]) -> list[type]:
    return [type(result) for result in await asyncio.gather(*futures, return_exceptions=True)]


async def test_the_commands_of_one_tick_leave_in_one_write() -> None:
    reads: list[bytes] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            reads.append(data)
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()

    async with peer(count) as client:
        await client.call("PING")
        del reads[:]
        await asyncio.gather(*(client.call("PING") for _ in range(100)))
    assert len(reads) == 1


async def test_calls_to_a_frozen_server_fail_in_time_and_it_is_reached_again(own_store: StartStore) -> None:
    store = own_store()
    async with connected(store.url, timeout_s=0.5) as client:
        await client.call("PING")
        os.kill(store.pid, signal.SIGSTOP)
        try:
            early = [client.submit("INCR", "n") for _ in range(3)]
            await asyncio.sleep(0.05)
            errors, seconds = await timed(outcomes(*early, client.submit("INCR", "n")))
            assert (errors, seconds < 1) == ([StoreAway] * 4, True)
            errors, seconds = await timed(outcomes(client.submit("INCR", "m")))
            assert (errors, seconds < 1) == ([StoreAway], True), "nor does a new connection help"
        finally:
            os.kill(store.pid, signal.SIGCONT)
        while await outcomes(client.submit("PING")) == [StoreAway]:
            pass
        assert int(await client.call("GET", "n")) <= 4  # nothing is sent twice
        assert await client.call("GET", "m") is None  # what was not sent yet is not sent at all


async def test_a_loop_that_was_busy_past_the_deadline_reads_the_reply(store_url: str) -> None:
    async with connected(store_url, timeout_s=0.3) as client:
        await client.call("PING")
        asked = client.submit("ECHO", "here")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - keeps the loop busy
        assert await asked == b"here"


async def test_calls_on_a_closed_connection_fail_and_the_next_one_succeeds(client: Client) -> None:
    await client.call("PING")
    cut = client.submit("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
    after = client.submit("ECHO", "lost")
    assert (await outcomes(cut, after))[1] is StoreAway
    assert await client.call("ECHO", "again") == b"again"


async def test_a_push_message_is_not_taken_for_a_reply(client: Client, store_url: str) -> None:
    await client.call("CLIENT", "TRACKING", "ON", "BCAST")
    async with connected(store_url) as other:
        for index in range(10):
            pending = client.submit("ECHO", str(index))
            await other.call("SET", f"key{index}", index)
            assert await pending == str(index).encode()
    assert await client.call("ECHO", "after") == b"after"


async def test_a_server_that_became_a_replica_is_left(own_store: StartStore) -> None:
    store = own_store()
    async with connected(store.url) as client, connected(store.url) as operator:
        first = await client.call("CLIENT", "ID")
        await operator.call("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(StoreAway, match="READONLY"):
            await client.call("SET", "a", "1")
        await operator.call("REPLICAOF", "NO", "ONE")
        assert await client.call("SET", "a", "1")
        assert await client.call("CLIENT", "ID") != first


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+OK\r\n" * 3, b"+OK\r\n" * 9, b"*0\r\n", b""])
async def test_a_server_that_does_not_speak_resp_is_store_away(said: bytes) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    async with peer(speak) as client:
        assert await outcomes(client.submit("PING"), client.submit("PING")) == [StoreAway] * 2


async def test_a_reply_that_cannot_be_converted_is_an_error_of_its_call_alone(client: Client) -> None:
    await client.call("PING")

    link = client.redis.connection_pool.make_connection()  # type: ignore[union-attr]
    connection = Connection(link, timeout_s=0.5, pause_s=0)
    odd, good = connection.submit(("PING",), convert=lambda reply: reply["field"]), connection.submit(("PING",))
    assert await outcomes(odd, good) == [StoreError, bytes]
    await connection.close()


async def test_data_beyond_the_greeting_ends_the_connection() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"+OK\r\n" * 9)
        await reader.read()
        writer.close()

    async with peer(speak) as client:
        with pytest.raises(StoreAway, match="InvalidResponse"):
            await client.call("PING")


@pytest.mark.parametrize("word", [*MOMENTARY, "NOSCRIPT", "WRONGTYPE", "ERR"])
def test_an_error_is_the_same_with_and_without_a_class_of_redis_py(word: str) -> None:
    text = f"{word} 1 127.0.0.1:1"
    ours, theirs = error_of(text), translated(BaseParser.parse_error(text))  # type: ignore[no-untyped-call, unused-ignore]
    assert (type(theirs), str(theirs)) == (type(ours), str(ours))


async def test_closing_waits_for_the_pending_replies(store_url: str) -> None:
    client = Client.connect(store_url)
    asked = [client.submit("ECHO", str(index)) for index in range(10)]
    await client.close()
    assert [future.result() for future in asked] == [str(index).encode() for index in range(10)]


def test_an_error_is_not_mistaken_for_the_one_that_was_handled_before_it() -> None:
    """A cluster's client calls a script again, whole, while it handles that the script is unknown."""
    error = redis.exceptions.ConnectionError("lost")
    error.__context__ = redis.exceptions.NoScriptError("No matching script")
    assert type(translated(error)) is StoreAway
