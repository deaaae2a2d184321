"""Connections beyond the limits: idle ones and incomplete heads give way, exchanges go on, and callers that behave are served."""

from __future__ import annotations

import asyncio

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from tests.patience import wait_until
from tests.whole.raw import ask, chat, get
from tests.whole.test_errors import assert_error
from tests.whole.test_limits_of_the_port import Caller, Connect, Serving, connect, serving

__all__ = ["connect", "serving"]  # fixtures


async def is_closed(caller: Caller) -> bool:
    """Return whether the gateway has closed a connection on which nothing was asked."""
    try:
        async with asyncio.timeout(0.2):
            return await caller.reader.read(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def test_idle_connections_give_way_to_new_ones(serving: Serving, connect: Connect) -> None:
    async with serving("max_connections: 3, max_connections_per_address: 3") as gateway:
        token = await gateway.token()
        known, first, second = [await connect(gateway) for _ in range(3)]
        known.send(get("/v1/account", token))
        assert (await known.answer()).status == 200
        for _ in range(2):
            newest = await connect(gateway)
            newest.send(get("/healthz"))
            assert (await newest.answer()).status == 200
        assert [await is_closed(caller) for caller in (first, second, known)] == [True, True, False]
        known.send(get("/v1/account", token))
        assert (await known.answer()).status == 200


async def test_streams_go_on_when_there_are_too_many_connections(
    serving: Serving, upstream: FakeUpstream, connect: Connect
) -> None:
    upstream.pace_s = 0.1
    async with serving("max_connections: 2, max_connections_per_address: 2") as gateway:
        token = await gateway.token()
        streams = [await connect(gateway) for _ in range(2)]
        for stream in streams:
            stream.send(chat(token))
        await wait_until(lambda: len(upstream.requests) == 2)
        refused = await ask(gateway.port, chat(token))
        assert_error(refused, 503, "service_error", "service_unavailable")
        assert refused.headers["connection"] == "close"
        for stream in streams:
            answer = await stream.answer()
            assert (answer.status, answer.whole) == (200, True)


async def test_one_address_cannot_hold_all_connections(serving: Serving, connect: Connect) -> None:
    async with serving("max_connections: 100, max_connections_per_address: 3") as gateway:
        token = await gateway.token()
        waiting = [await connect(gateway) for _ in range(3)]
        assert await is_closed(await connect(gateway))
        waiting[0].send(get("/v1/account", token))
        assert (await waiting[0].answer()).status == 200
        assert (await ask(gateway.port, get("/healthz"))).status == 200


async def test_half_heads_are_held_within_their_budget(serving: Serving, connect: Connect) -> None:
    budget, size = 500_000, 60_000
    async with serving(f"head_budget: {budget}") as gateway:
        honest = await connect(gateway)
        honest.send(get("/healthz")[:20])
        behind = await connect(gateway)
        behind.send(get("/healthz") + b"GET /healthz HTTP/1.1\r\nX: " + b"x" * size)  # in one read with a whole head
        assert (await behind.answer()).status == 200
        for _ in range(40):
            half = await connect(gateway)
            half.send(b"GET /v1/models HTTP/1.1\r\nX: " + b"x" * size)
        await wait_until(lambda: gateway.gateway.connections.open <= 10)
        assert budget - size <= gateway.gateway.connections.head_bytes <= budget
        assert await is_closed(behind)
        honest.send(get("/healthz")[20:])
        assert (await honest.answer()).status == 200
    assert (gateway.gateway.connections.head_bytes, gateway.gateway.connections.open) == (0, 0)


async def test_a_chunked_body_does_not_hide_half_a_head(serving: Serving, connect: Connect) -> None:
    async with serving("head_timeout: 10") as gateway:
        caller = await connect(gateway)
        chunked = chat(None, b"", headers={"Transfer-Encoding": "chunked", "Content-Length": ""})
        caller.send(chunked + b"2\r\n{}\r\n0\r\n\r\n" + b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 9000)
        assert (await caller.answer()).status == 401
        await wait_until(lambda: gateway.gateway.connections.head_bytes > 8000)


async def test_during_a_drain_no_connection_is_accepted_and_open_ones_carry_one_request_more(
    serving: Serving, upstream: FakeUpstream, connect: Connect
) -> None:
    upstream.pace_s = 0.1
    async with serving("drain: 20") as gateway:
        token = await gateway.token()
        stream = await connect(gateway)
        stream.send(chat(token))
        await wait_until(lambda: bool(upstream.requests))
        kept, health = await connect(gateway), await connect(gateway)
        for connection in (kept, health):  # each is open in the gateway, too
            connection.send(get("/healthz"))
            assert (await connection.answer()).status == 200
        draining = asyncio.create_task(gateway.gateway.drain())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await connect(gateway)
        kept.send(chat(token))
        last = await kept.answer()
        assert (last.status, last.whole, last.headers["connection"]) == (200, True, "close")
        health.send(get("/readyz"))
        assert (await health.answer()).status == 503
        answer = await stream.answer()
        assert (answer.status, answer.whole) == (200, True)
        await draining
        with pytest.raises(ConnectionRefusedError):
            await connect(gateway)


@pytest.mark.parametrize(
    ("request_line", "status", "said"),
    [
        (b"GET http://gateway/v1/models HTTP/1.1", 404, "The request line must have the path alone"),
        (b"GET /v1/" + b"x" * 9000 + b" HTTP/1.1", 431, "longer than 8190 bytes"),
        (b"GET /v1/models HTTP/1.1\r\nX: " + b"x" * 70_000, 431, "or a header than 65536"),
        (b"GET /v1/models HTTP/1.1" + b"\r\nX: y" * 200, 431, "more than 128 headers"),
    ],
)
async def test_the_message_says_what_is_wrong_with_a_head(
    gateway: Running, request_line: bytes, status: int, said: str
) -> None:
    answer = await ask(gateway.port, request_line + b"\r\nHost: gateway\r\n\r\n")
    assert answer.status == status
    assert said in answer.error["message"]
