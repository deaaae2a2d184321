"""Faults of callers: the upstream's connection, the charge, the record, and the release of all resources."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gateway import Outcome
from gateway.testing import Running
from tests.patience import PATIENCE_S, soon, wait_until
from tests.whole.aftermath import assert_ended, assert_released, charged, end_records, last_end_record, tasks
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat, get, read_answer
from tests.whole.scripted import CHUNKED, LAST, Forever, Hold, Scripted, Step, chunk
from tests.whole.test_stream import CHARGE, PASSED, STREAM, USAGE, WORDS

GONE = Outcome.CALLER_GONE
MAX_UNSENT = 128 * 1024
ENDLESS = Forever(chunk(WORDS[1] * 4000))


class Caller:
    """A caller on a socket with a small receive buffer, so that unread data stays in the gateway."""

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
    script: list[Step], serve: Serve, *, channel: str = "", more: str = ""
) -> AsyncIterator[tuple[Running, Scripted, Caller]]:
    """Yield a gateway, its scripted upstream and a caller."""
    async with Scripted(script) as upstream, serve(upstream.base_url, channel=channel, more=more) as gateway:
        caller = Caller(gateway.port)
        try:
            yield gateway, upstream, caller
        finally:
            caller.leave()


@pytest.mark.parametrize("leave", LEAVING)
async def test_a_caller_that_leaves_during_the_body_is_not_charged(
    serve: Serve, leave: Callable[[Caller], None]
) -> None:
    async with between([Hold], serve) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token)[:-3])
        async with asyncio.timeout(PATIENCE_S):
            while not gateway.gateway.runner.open:
                await asyncio.sleep(0.01)
        leave(caller)
        await assert_ended(gateway, GONE, "nothing")
        await assert_released(gateway, upstream, before, 0)
        assert upstream.connections == 0
        ledger = await gateway.store.client.call("XRANGE", "gw:{tester}:ledger", "-", "+")
        assert len(ledger) == 1, "only the credit: no charge was written"


@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("script", [[Hold], [CHUNKED, Hold], [CHUNKED, Forever(chunk(b": x\n\n"), 0.01)]])
async def test_a_caller_that_leaves_before_the_first_event_pays_the_input(
    serve: Serve, leave: Callable[[Caller], None], script: list[Step]
) -> None:
    async with between(script, serve) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        await upstream.arrived.wait()
        leave(caller)
        await soon(upstream.gone.wait())
        await assert_ended(gateway, GONE, "input")
        await assert_released(gateway, upstream, before, 0)


async def test_a_caller_that_leaves_while_the_upstream_connects_is_not_charged(serve: Serve) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        with socket.create_connection(address), socket.socket() as second:  # the queue is full: the next connect waits
            second.setblocking(False)
            second.connect_ex(address)
            async with serve(f"http://127.0.0.1:{address[1]}/v1") as gateway:
                token = await gateway.token()
                before = tasks()
                caller = Caller(gateway.port)
                await caller.send(chat(token))
                async with asyncio.timeout(PATIENCE_S):
                    while not await gateway.store.client.call("ZCARD", "gw:{tester}:leases"):
                        await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert gateway.gateway.runner.open == 1
                caller.leave()
                await assert_ended(gateway, GONE, "nothing")
                await assert_released(gateway, None, before, 0)


@pytest.mark.parametrize("leave", LEAVING)
async def test_a_caller_that_leaves_mid_stream_pays_the_estimate(serve: Serve, leave: Callable[[Caller], None]) -> None:
    script: list[Step] = [CHUNKED, Forever(chunk(WORDS[1]), 0.01)]
    async with between(script, serve) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        assert (await caller.read()).startswith(b"HTTP/1.1 200")
        leave(caller)
        await soon(upstream.gone.wait())
        record = await assert_ended(gateway, GONE, "estimate")
        assert record.status == 200
        await assert_released(gateway, upstream, before, 0)


async def test_a_caller_that_leaves_a_draining_channel_pays_the_exact_usage(serve: Serve) -> None:
    script: list[Step] = [CHUNKED + chunk(WORDS[0]), 1.0, chunk(STREAM) + LAST]
    async with between(script, serve, channel=", on_caller_gone: drain") as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        await caller.read()
        caller.leave()
        await assert_ended(gateway, GONE, "exact")
        assert await charged(gateway) == CHARGE
        await assert_released(gateway, upstream, before, 1)


async def test_a_drain_ends_at_its_limit_even_if_the_caller_did_not_read(serve: Serve) -> None:
    channel = ", on_caller_gone: drain, drain_limit: 2, timers: {write_stall: 0.3}"
    paced = Forever(ENDLESS.data, 0.05)  # so that the most bytes of an answer are not reached before
    async with between([CHUNKED, paced], serve, channel=channel) as (gateway, upstream, caller):
        token = await gateway.token()
        asked_at = asyncio.get_running_loop().time()  # a caller that does not read may count as gone before it resets
        await caller.send(chat(token))
        async with asyncio.timeout(PATIENCE_S):
            while not any(relay.unsent > MAX_UNSENT // 2 for relay in gateway.gateway.runner.failover.relays):
                await asyncio.sleep(0.002)
        sent = upstream.sent
        caller.reset()
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE_S)
        assert asyncio.get_running_loop().time() - asked_at > 1.9
        assert upstream.sent > sent
        assert (await last_end_record(gateway)).outcome is GONE


@pytest.mark.parametrize(
    ("script", "seen", "leave", "pooled"),
    [
        ([CHUNKED + chunk(STREAM) + LAST], LAST, Caller.reset, 1),
        ([CHUNKED + chunk(STREAM), Hold], b"data: [DONE]\n\n\r\n", Caller.leave, 0),
    ],
    ids=["reset after the last chunk", "close after the last event"],
)
async def test_a_caller_that_leaves_after_the_end_leaves_the_request_completed(
    serve: Serve, script: list[Step], seen: bytes, leave: Callable[[Caller], None], pooled: int
) -> None:
    async with between(script, serve) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        received = b""
        while seen not in received[-100:]:
            received += await caller.read()
        leave(caller)
        await assert_ended(gateway, Outcome.COMPLETED, "exact")
        await assert_released(gateway, upstream, before, pooled)


async def test_a_caller_that_does_not_read_is_stopped_with_a_bounded_buffer(serve: Serve) -> None:
    channel = ", timers: {write_stall: 2, idle: 1}"
    async with between([CHUNKED, ENDLESS], serve, channel=channel) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token, {"max_tokens": 500_000}))
        most, sent = 0, -1
        async with asyncio.timeout(PATIENCE_S):
            while not upstream.gone.is_set():
                most = max([most, *(relay.unsent for relay in gateway.gateway.runner.failover.relays)])
                sent = upstream.sent
                await asyncio.sleep(0.002)
        assert 32 * 1024 < most <= MAX_UNSENT
        assert sent < 20_000_000, "the gateway did not pause reading from the upstream"
        await assert_ended(gateway, Outcome.STOPPED, "estimate")
        await assert_released(gateway, upstream, before, 0)


async def test_a_caller_that_reads_slowly_is_served_with_a_bounded_buffer(serve: Serve) -> None:
    stall_s, events = 1, 2_000
    channel = f", timers: {{write_stall: {stall_s}, idle: {stall_s}}}"
    script: list[Step] = [CHUNKED, *[chunk(WORDS[1] * 10)] * (events // 10), chunk(USAGE + WORDS[-1]) + LAST]
    async with between(script, serve, channel=channel) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        received, most, began = b"", 0, asyncio.get_running_loop().time()
        while not received.endswith(LAST):
            received += await caller.read()
            most = max([most, *(relay.unsent for relay in gateway.gateway.runner.failover.relays)])
            await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began > stall_s
        assert received.count(b"word0") == events
        assert most <= MAX_UNSENT
        caller.leave()
        await assert_ended(gateway, Outcome.COMPLETED, "exact")
        await assert_released(gateway, upstream, before, 1)


async def test_a_caller_that_does_not_read_the_end_of_a_response_is_disconnected(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.caller.UNREAD_S", 0.2)
    gateways: list[Running] = []

    def is_full() -> bool:
        return any(relay.unsent for relay in gateways[0].gateway.runner.failover.relays)

    script: list[Step] = [CHUNKED, Forever(chunk(WORDS[1] * 10), 0.002, is_full), chunk(STREAM) + LAST]
    async with between(script, serve) as (gateway, _, caller):
        gateways.append(gateway)
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token))
        assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED
        async with asyncio.timeout(PATIENCE_S):
            while tasks() - before:
                await asyncio.sleep(0.01)


async def test_no_more_answers_are_made_than_a_caller_reads(gateway: Running) -> None:
    many = 8000
    caller = Caller(gateway.port)
    sending = asyncio.create_task(caller.send(get("/nothing") * many))
    connections = gateway.gateway._shared.open  # type: ignore[union-attr]
    await wait_until(lambda: any(connection.writing_paused for connection in connections))
    await asyncio.sleep(0.3)
    (transport,) = [connection.transport for connection in connections]
    assert transport is not None and 0 < transport.get_write_buffer_size() < MAX_UNSENT
    reader, writer = await asyncio.open_connection(sock=caller.socket)
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(many):
            assert (await read_answer(reader)).status == 404
        await sending
    writer.close()


async def test_a_request_behind_an_answer_that_is_not_read_is_not_begun(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.caller.UNREAD_S", 1.0)
    script: list[Step] = [CHUNKED + chunk(WORDS[1].replace(b"word0", b"x" * 900_000)) + chunk(STREAM) + LAST]
    async with between(script, serve) as (gateway, upstream, caller):
        token = await gateway.token()
        before = tasks()
        await caller.send(chat(token) + chat(token) + get("/v1/models", token))
        async with asyncio.timeout(PATIENCE_S):
            while len(records := await end_records(gateway)) < 3:
                await asyncio.sleep(0.01)
        assert [record.outcome for record in records] == [Outcome.COMPLETED, GONE, GONE]
        assert len(upstream.requests) == 1
        await assert_released(gateway, upstream, before, 1)


@pytest.mark.parametrize("end", ["a stop", "a head that takes too long"])
async def test_a_request_behind_an_answer_that_is_not_read_has_its_record_and_no_other_answer(
    serve: Serve, end: str
) -> None:
    script: list[Step] = [CHUNKED + chunk(WORDS[1].replace(b"word0", b"x" * 900_000)) + chunk(STREAM) + LAST]
    more = "port: {drain: 0.1, head_timeout: 0.3}"
    async with between(script, serve, more=more) as (gateway, _, caller):
        token = await gateway.token()
        await caller.send(chat(token) + get("/v1/models", token) + get("/v1/models", token)[:30])
        assert (await last_end_record(gateway)).outcome is Outcome.COMPLETED
        if end == "a stop":
            await gateway.gateway.drain()
        else:
            await asyncio.sleep(1)
            reader, writer = await asyncio.open_connection(sock=caller.socket)
            assert (await reader.read()).count(b"HTTP/1.1 ") == 1
            writer.close()
        assert len(records := await end_records(gateway)) == 2
        assert (records[1].outcome, records[1].error_code) == (Outcome.REFUSED, "service_unavailable")


async def test_requests_sent_while_a_stream_runs_are_answered_in_order(serve: Serve) -> None:
    script: list[Step] = [CHUNKED + chunk(STREAM[:300]), 0.1, chunk(STREAM[300:]) + LAST]
    async with between(script, serve) as (gateway, upstream, _):
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
        await assert_released(gateway, upstream, before, 1)
        assert [record.outcome for record in await end_records(gateway)] == [Outcome.COMPLETED] * 3
        assert await charged(gateway) == 2 * CHARGE


async def test_a_thousand_connections_that_close_early_leave_nothing_behind(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    async with between([Hold], serve) as (gateway, upstream, _):
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
        await assert_released(gateway, upstream, before, 0)
        printed = capfd.readouterr()
        assert len((printed.out + printed.err).splitlines()) < 10
        assert len(await end_records(gateway)) == 1
