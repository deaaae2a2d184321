"""The client of the store: connections, commands, replies and repeated writes."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.exceptions
from hiredis import pack_command
from hypothesis import example, given
from hypothesis import strategies as st
from redis._parsers.base import BaseParser

from gateway.base.errors import Misconfigured, StoreAway, StoreError
from gateway.store.client.client import Client, Script
from gateway.store.client.connection import Connection, translated
from gateway.store.client.durability import RETENTION_S, SEGMENT_BYTES, SEGMENT_S, ReplayBuffer, check_store
from gateway.store.client.protocol import MOMENTARY, error_of, pack
from gateway.store.embedded import EmbeddedStore
from tests.patience import PATIENCE_S, timed
from tests.store.conftest import StartStore as DurabilityStartStore


async def test_the_commands_of_one_tick_share_one_batch_in_order(client: Client) -> None:
    replies = await asyncio.gather(*(client.call("RPUSH", "list", index) for index in range(50)))
    assert replies == list(range(1, 51))
    assert len(await client.call("LRANGE", "list", 0, -1)) == 50


async def test_an_error_of_one_command_does_not_affect_others(client: Client) -> None:
    commands = (("SET", "a", "1"), ("INCRBY", "a", "x"), ("GET", "a"))
    replies = await asyncio.gather(*(client.call(*command) for command in commands), return_exceptions=True)
    good, bad, after = replies
    assert (good, after) == (True, b"1")
    assert isinstance(bad, StoreError)


async def test_each_call_gets_its_own_reply_although_others_are_cancelled(client: Client) -> None:
    async def ask(index: int) -> None:
        assert await client.call("ECHO", str(index)) == str(index).encode()

    tasks = []
    for index in range(2000):
        tasks.append(asyncio.create_task(ask(index)))
        if index % 5 == 0:
            await asyncio.sleep(0)
            tasks[index // 2].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}


async def test_a_command_cancelled_within_its_tick_is_not_sent(client: Client) -> None:
    client.submit("SET", "a", "1").cancel()
    await asyncio.sleep(0)
    assert await client.call("EXISTS", "a") == 0


async def test_late_replies_of_a_slow_store_are_discarded(store_url: str, client: Client) -> None:
    hasty = Client.connect(store_url, timeout_s=0.05, connections=1)
    await client.call("CLIENT", "PAUSE", 500, "ALL")
    with pytest.raises(StoreAway):
        await hasty.call("ECHO", "late")
    while True:
        try:
            assert await hasty.call("ECHO", "fresh") == b"fresh"
            break
        except StoreAway:
            continue
    await hasty.close()


async def test_a_script_is_sent_whole_only_when_the_store_lacks_it(client: Client) -> None:
    script = Script("twice", "return ARGV[1] * 2")
    await client.call("SCRIPT", "FLUSH")
    assert [await client.run(script, (), (4,)) for _ in range(3)] == [8, 8, 8]
    calls = await client.call("INFO", "commandstats")
    assert calls["cmdstat_evalsha"]["failed_calls"] >= 1
    assert await client.call("SCRIPT", "EXISTS", script.digest) == [True]


async def test_keys_are_scanned_in_pages_over_the_existing_connection(client: Client) -> None:
    names = [f"key{number}" for number in range(1203)]
    await asyncio.gather(*(client.call("SET", name, "1") for name in [*names, "other"]))

    async def connections() -> set[str]:
        return set(re.findall(r"\bid=(\d+)", (await client.call("CLIENT", "LIST")).decode()))

    before = await connections()
    assert {key async for key in client.keys("key*")} == set(names)
    assert await connections() <= before


StartStore = Callable[[], EmbeddedStore]
ConnectionScript = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncIterator[Client]:
    client = Client.connect(url, **settings)
    yield client
    await client.close()


@asynccontextmanager
async def peer(script: ConnectionScript) -> AsyncIterator[Client]:
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
    ping = pack(("PING",))
    odd, good = connection.send(ping, convert=lambda reply: reply["field"]), connection.send(ping)
    assert await outcomes(odd, good) == [StoreError, bytes]
    await connection.close()


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


@pytest.fixture
async def own_client(own_store: DurabilityStartStore) -> AsyncIterator[Client]:
    client = Client.connect(own_store().url, timeout_s=PATIENCE_S)
    yield client
    await client.close()


async def test_the_embedded_store_is_safe(client: Client) -> None:
    assert await check_store(client, accept_loss=False) == []


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("appendonly", "no", "append-only file is off"), ("maxmemory-policy", "allkeys-lru", "evicts keys")],
)
async def test_an_unsafe_store_is_refused_unless_loss_is_accepted(
    own_client: Client, setting: str, value: str, words: str
) -> None:
    await own_client.call("CONFIG", "SET", setting, value)
    with pytest.raises(Misconfigured, match=words):
        await check_store(own_client, accept_loss=False)
    (weakness,) = await check_store(own_client, accept_loss=True)
    assert words in weakness


# Commands are packed as hiredis packs them.
PARTS = st.one_of(
    st.text(max_size=300),
    st.binary(max_size=300),
    st.integers(),
    st.sampled_from([0, -1, 9, 10, 2**63 - 1, -(2**63), 2**63, 2**64, "\0", "\r\n", "é", "☃", b"\xff" * 100_000]),
)


@given(st.lists(PARTS, max_size=60))
@example([])
@example(["EVALSHA", "a" * 40, 1, "key", 123_456_789_012, b"", ""])
def test_a_command_is_packed_as_by_hiredis(parts: list[Any]) -> None:
    assert pack(tuple(parts)) == pack_command(tuple(parts))


@pytest.mark.parametrize("wrong", [None, 1.5, True, ["a"], "\ud800"], ids=repr)
def test_what_is_no_argument_is_left_to_hiredis(wrong: Any) -> None:
    def result(packing: Any) -> object:
        try:
            return packing(("SET", "a", wrong))
        except Exception as error:
            return type(error)

    assert result(pack) == result(pack_command)


def test_a_command_may_have_any_length() -> None:
    for size in range(64 * 1024 - 200, 64 * 1024 + 10):
        command: Any = ("SET", "key", b"x" * size, -(2**63), "y")
        assert pack(command) == pack_command(command)


# The buffer of acknowledged writes keeps recent lines within its limits.
class Clock:
    """A clock that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_lines_are_in_order_across_segments() -> None:
    recent = ReplayBuffer()
    lines = [b"%d %s" % (number, b"x" * 500) for number in range(4 * SEGMENT_BYTES // 500)]
    for line in lines:
        recent.add(line)
    assert list(recent) == lines


@pytest.mark.parametrize("apart_s", [0.01, 0.9, 7, SEGMENT_S, 3 * SEGMENT_S])
def test_a_line_is_kept_long_enough_and_not_much_longer(clock: Clock, apart_s: float) -> None:
    recent = ReplayBuffer()
    added: list[float] = []
    for number in range(int(4 * RETENTION_S / apart_s)):
        clock.now = 1000 + number * apart_s
        added.append(clock.now)
        recent.add(b"%.2f %s" % (clock.now, b"x" * 100))
        if number % 50 == 0:
            oldest = float(next(iter(recent)).split()[0])
            assert (
                oldest == added[0]
                or clock.now - RETENTION_S - SEGMENT_S - 1 <= oldest <= clock.now - RETENTION_S + apart_s + 1
            )


def test_after_a_long_idle_time_the_buffer_is_empty(clock: Clock) -> None:
    recent = ReplayBuffer()
    recent.add(b"a")
    clock.now += SEGMENT_S
    recent.add(b"b")
    clock.now += RETENTION_S
    assert list(recent) == [b"a", b"b"]
    clock.now += SEGMENT_S
    assert list(recent) == [b"b"]
    clock.now += 1
    assert list(recent) == []
    recent.add(b"c")
    assert list(recent) == [b"c"]


def test_a_full_buffer_drops_whole_segments() -> None:
    max_bytes = 3 * SEGMENT_BYTES
    recent = ReplayBuffer(max_bytes)
    drawn = random.Random(7)
    lines = [drawn.randbytes(500).replace(b"\n", b" ") for _ in range(10 * SEGMENT_BYTES // 500)]
    for line in lines:
        recent.add(line)
    kept = list(recent)
    assert kept == lines[-len(kept) :]
    assert max_bytes - 2 * SEGMENT_BYTES < len(kept) * 500 < max_bytes + SEGMENT_BYTES
