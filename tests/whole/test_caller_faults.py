"""What a caller may do wrong: the upstream's connection, the charge, the record, and that all is given back."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import PATIENCE_S, soon
from tests.whole.aftermath import assert_ended, charged, ended, given_back, last_end, tasks
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Forever, Hold, Scripted, Step, chunk
from tests.whole.test_stream import CHARGE, PASSED, STREAM, USAGE, WORDS

GONE = Outcome.CALLER_GONE
HELD_MOST = 128 * 1024
ENDLESS = Forever(chunk(WORDS[1] * 4000))


class Caller:
    """A caller on a socket of its own, with a small buffer: what it does not read stays with the gateway."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        self.port = port

    async def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, ("127.0.0.1", self.port))
        await loop.sock_sendall(self.socket, data)

    async def read(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, 65536)

    def leave(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def shut(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)


LEAVING: list[Callable[[Caller], None]] = [Caller.leave, Caller.reset, Caller.shut]


@asynccontextmanager
async def between(
    script: list[Step], url: str, folder: Path, *, channel: str = "", more: str = ""
) -> AsyncIterator[tuple[Running, Scripted, Caller]]:
    """A gateway between a caller and an upstream."""
    async with (
        Scripted(script) as upstream,
        running(configuration(upstream.base_url, channel=channel, more=more), folder, url) as gateway,
    ):
        caller = Caller(gateway.port)
        try:
            yield gateway, upstream, caller
        finally:
            caller.leave()


@pytest.mark.parametrize("leave", LEAVING)
async def test_leaves_during_the_body(
    store_url: str, client: Client, tmp_path: Path, leave: Callable[[Caller], None]
) -> None:
    async with between([Hold], store_url, tmp_path) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token)[:-3])
        async with asyncio.timeout(PATIENCE_S):
            while not gateway.gateway.runner.open:
                await asyncio.sleep(0.01)
        leave(caller)
        await assert_ended(gateway, GONE, "nothing")
        await given_back(gateway, upstream, before, 0)
        assert upstream.connections == 0
        ledger = await gateway.store.client.call("XRANGE", "gw:{tester}:ledger", "-", "+")
        assert len(ledger) == 1, "the credit, and no hold that came to anything"


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("script", [[Hold], [CHUNKED, Hold], [CHUNKED, Forever(chunk(b": x\n\n"), 0.01)]])
async def test_leaves_before_the_first_event(
    store_url: str, client: Client, tmp_path: Path, leave: Callable[[Caller], None], script: list[Step]
) -> None:
    async with between(script, store_url, tmp_path) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        await upstream.arrived.wait()
        leave(caller)
        await soon(upstream.gone.wait())
        await assert_ended(gateway, GONE, "input")
        await given_back(gateway, upstream, before, 0)


async def test_leaves_while_the_connection_to_the_upstream_is_made(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as second:  # the queue is full: who connects now waits
            second.setblocking(False)
            second.connect_ex(address)
            yaml = configuration(f"http://127.0.0.1:{address[1]}/v1")
            async with running(yaml, tmp_path, store_url) as gateway:
                token = await gateway.token()
                before = tasks()
                caller = Caller(gateway.port)
                await caller.send(chat(token))
                async with asyncio.timeout(PATIENCE_S):
                    while not await gateway.store.client.call("HLEN", "gw:{tester}:holds"):
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert gateway.gateway.runner.open == 1
                caller.leave()
                await assert_ended(gateway, GONE, "nothing")
                await given_back(gateway, None, before, 0)


@pytest.mark.parametrize("leave", LEAVING)
async def test_leaves_mid_stream(
    store_url: str, client: Client, tmp_path: Path, leave: Callable[[Caller], None]
) -> None:
    script: list[Step] = [CHUNKED, Forever(chunk(WORDS[1]), 0.01)]
    async with between(script, store_url, tmp_path) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        assert (await caller.read()).startswith(b"HTTP/1.1 200")
        leave(caller)
        await soon(upstream.gone.wait())
        record = await assert_ended(gateway, GONE, "estimate")
        assert record.status == 200
        await given_back(gateway, upstream, before, 0)


async def test_leaves_mid_stream_of_a_channel_that_drains(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = [CHUNKED + chunk(WORDS[0]), 1.0, chunk(STREAM) + LAST]
    async with between(script, store_url, tmp_path, channel=", on_caller_gone: drain") as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        await caller.read()
        caller.leave()
        await assert_ended(gateway, GONE, "exact")
        assert await charged(gateway) == CHARGE
        await given_back(gateway, upstream, before, 1)


async def test_a_drain_ends_at_its_limit_also_where_the_caller_did_not_read(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    channel = ", on_caller_gone: drain, drain_limit: 0.5, timers: {write_stall: 0.3}"
    async with between([CHUNKED, ENDLESS], store_url, tmp_path, channel=channel) as (gateway, upstream, caller):
        token = await gateway.token()
        await caller.send(chat(token))
        async with asyncio.timeout(PATIENCE_S):
            while not any(relay.unsent > HELD_MOST // 2 for relay in gateway.gateway.runner.failover.relays):
                await asyncio.sleep(0.002)
        sent, loop = upstream.sent, asyncio.get_running_loop()
        caller.reset()
        left_at = loop.time()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE_S)
        assert loop.time() - left_at > 0.45
        assert upstream.sent > sent
        assert (await last_end(gateway)).outcome is GONE


async def test_closes_right_after_the_last_chunk(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = [CHUNKED + chunk(STREAM) + LAST]
    async with between(script, store_url, tmp_path) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        while not (await caller.read()).endswith(LAST):
            pass
        caller.reset()
        await assert_ended(gateway, Outcome.COMPLETED, "exact")
        await given_back(gateway, upstream, before, 1)


async def test_closes_as_soon_as_it_sees_done(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = [CHUNKED + chunk(STREAM), Hold]
    async with between(script, store_url, tmp_path) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        while b"[DONE]" not in await caller.read():
            pass
        caller.leave()
        await assert_ended(gateway, Outcome.COMPLETED, "exact")
        await given_back(gateway, upstream, before, 0)


async def test_does_not_read(store_url: str, client: Client, tmp_path: Path) -> None:
    channel = ", timers: {write_stall: 2, idle: 1}"
    async with between([CHUNKED, ENDLESS], store_url, tmp_path, channel=channel) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token, {"max_tokens": 500_000}))
        most, sent = 0, -1
        async with asyncio.timeout(PATIENCE_S):
            while not upstream.gone.is_set():
                most = max([most, *(relay.unsent for relay in gateway.gateway.runner.failover.relays)])
                sent = upstream.sent
                await asyncio.sleep(0.002)
        assert 32 * 1024 < most <= HELD_MOST
        assert sent < 20_000_000, "reading from the upstream paused"
        await assert_ended(gateway, Outcome.STOPPED, "estimate")
        await given_back(gateway, upstream, before, 0)


async def test_reads_slowly(store_url: str, client: Client, tmp_path: Path) -> None:
    stall_s, events = 1, 2_000
    channel = f", timers: {{write_stall: {stall_s}, idle: {stall_s}}}"
    script: list[Step] = [CHUNKED, *[chunk(WORDS[1] * 10)] * (events // 10), chunk(USAGE + WORDS[-1]) + LAST]
    async with between(script, store_url, tmp_path, channel=channel) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        got, most, began = b"", 0, asyncio.get_running_loop().time()
        while not got.endswith(LAST):
            got += await caller.read()
            most = max([most, *(relay.unsent for relay in gateway.gateway.runner.failover.relays)])
            await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began > stall_s
        assert got.count(b"word0") == events
        assert most <= HELD_MOST
        caller.leave()
        await assert_ended(gateway, Outcome.COMPLETED, "exact")
        await given_back(gateway, upstream, before, 1)


async def test_who_does_not_read_the_end_of_an_answer_is_dropped(
    store_url: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.caller.UNREAD_S", 0.2)
    unread: list[Running] = []

    def is_full() -> bool:
        return any(relay.unsent for relay in unread[0].gateway.runner.failover.relays)

    script: list[Step] = [CHUNKED, Forever(chunk(WORDS[1] * 100), 0.001, is_full), chunk(STREAM) + LAST]
    async with between(script, store_url, tmp_path) as (gateway, _, caller):
        unread.append(gateway)
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        assert (await last_end(gateway)).outcome is Outcome.COMPLETED
        async with asyncio.timeout(PATIENCE_S):
            while tasks() - before:
                await asyncio.sleep(0.01)


async def test_sends_a_second_request_while_a_stream_runs(store_url: str, client: Client, tmp_path: Path) -> None:
    script: list[Step] = [CHUNKED + chunk(STREAM[:300]), 0.1, chunk(STREAM[300:]) + LAST]
    async with between(script, store_url, tmp_path) as (gateway, upstream, _):
        token = await gateway.token()
        before = tasks()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token))
        await upstream.arrived.wait()
        writer.write(chat(token) + get("/v1/models", token))
        first, second, third = [await read_answer(reader) for _ in range(3)]
        writer.close()
        assert (first.body, second.body) == (PASSED, PASSED)
        assert third.status == 200
        await given_back(gateway, upstream, before, 1)
        assert [record.outcome for record in await ended(gateway)] == [Outcome.COMPLETED] * 3
        assert await charged(gateway) == 2 * CHARGE


async def test_connects_and_closes_a_thousand_times(
    store_url: str, client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with between([Hold], store_url, tmp_path) as (gateway, upstream, _):
        token = await gateway.token()
        before = tasks()
        capfd.readouterr()
        for number in range(1000):
            caller = Caller(gateway.port)
            await asyncio.get_running_loop().sock_connect(caller.socket, ("127.0.0.1", gateway.port))
            if number % 3 == 0:
                await asyncio.get_running_loop().sock_sendall(caller.socket, chat(token)[: number % 60])
            (caller.reset if number % 2 else caller.leave)()
        answer = await ask(gateway.port, get("/v1/models", token))
        assert answer.status == 200
        await given_back(gateway, upstream, before, 0)
        printed = capfd.readouterr()
        assert len((printed.out + printed.err).splitlines()) < 10
        assert len(await ended(gateway)) == 1
