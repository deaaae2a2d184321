"""The limits, timeouts, budgets and connections of the public port: each refuses one caller, while others are served."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.config.channel import Timers
from gateway.config.schema import Port
from gateway.fake_upstream import FakeUpstream
from gateway.server.connections import RESERVED_DESCRIPTORS
from gateway.testing import Running
from tests.patience import soon, wait_until
from tests.whole.conftest import Serve
from tests.whole.hostile_requests import SMUGGLED
from tests.whole.raw import Answer, ask, chat, get, head, read_answer
from tests.whole.test_errors import assert_error

# The limits, timeouts and budgets of the public port: each refuses one caller, while others are served.
Serving = Callable[[str], AbstractAsyncContextManager[Running]]


@pytest.fixture
def serving(upstream: FakeUpstream, serve: Serve) -> Serving:
    """Return a function that starts a gateway with the given settings of its port."""
    return lambda port: serve(upstream.base_url, more=f"port: {{{port}}}")


class Caller:
    """A caller's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def drip(self, data: bytes, pause_s: float) -> None:
        """Send one byte at a time until the connection closes."""
        for byte in data:
            if self.writer.is_closing():
                return
            self.writer.write(bytes([byte]))
            await asyncio.sleep(pause_s)

    async def answer(self) -> Answer:
        async with asyncio.timeout(5):
            return await read_answer(self.reader)

    async def read_to_close(self) -> bytes:
        """Return the bytes that come before the connection is closed."""
        async with asyncio.timeout(5):
            return await self.reader.read()


Connect = Callable[[Running], Awaitable[Caller]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Yield a function that opens connections, and close them at the end."""
    opened: list[Caller] = []

    async def connect(gateway: Running) -> Caller:
        opened.append(Caller(*await asyncio.open_connection("127.0.0.1", gateway.port)))
        return opened[-1]

    yield connect
    for caller in opened:
        caller.writer.close()
        with suppress(ConnectionError):
            await caller.writer.wait_closed()


async def assert_served(gateway: Running, token: str) -> None:
    answer = await ask(gateway.port, chat(token))
    assert (answer.status, answer.whole) == (200, True)


# The head.


async def test_a_slow_head_times_out(serving: Serving, connect: Connect) -> None:
    async with serving("head_timeout: 0.2") as gateway:
        token = await gateway.token()
        slow = await connect(gateway)
        dripping = asyncio.create_task(slow.drip(get("/v1/account", token), 0.02))
        await assert_served(gateway, token)
        assert_error(await slow.answer(), 408, "invalid_request_error", "invalid_request")
        assert await slow.read_to_close() == b""
        dripping.cancel()


async def test_a_slow_second_head_times_out(serving: Serving, connect: Connect) -> None:
    async with serving("head_timeout: 0.2") as gateway:
        slow = await connect(gateway)
        slow.send(get("/v1/models"))
        assert (await slow.answer()).status == 401
        slow.send(b"GET /v1/mod")
        assert_error(await slow.answer(), 408, "invalid_request_error", "invalid_request")


async def test_an_idle_connection_is_closed(serving: Serving, connect: Connect) -> None:
    async with serving("idle_timeout: 0.2") as gateway:
        fresh, used = await connect(gateway), await connect(gateway)
        used.send(get("/healthz"))
        await used.answer()
        assert (await fresh.read_to_close(), await used.read_to_close()) == (b"", b"")


async def test_an_endless_head_is_refused_at_its_limit(gateway: Running, connect: Connect) -> None:
    endless = await connect(gateway)
    endless.send(b"GET /v1/models HTTP/1.1\r\n")
    sent = 0
    for number in range(100):
        endless.send(b"X-%d: " % number + b"x" * 1000 + b"\r\n")
        sent += 1000
        await asyncio.sleep(0.001)
        if endless.reader.at_eof() or endless.writer.is_closing():
            break
    assert_error(await endless.answer(), 431, "invalid_request_error", "invalid_request")
    assert sent < 2 * Port().max_head
    assert await endless.read_to_close() == b""


@pytest.mark.parametrize("after", [b"GET /v1/mod", b"X: " + b"x" * 200_000], ids=["a slow head", "a long head"])
async def test_data_after_a_request_does_not_disturb_its_stream(
    serving: Serving, upstream: FakeUpstream, after: bytes, connect: Connect
) -> None:
    upstream.pace_s = 0.03
    async with serving("head_timeout: 0.1") as gateway:
        caller = await connect(gateway)
        caller.send(chat(await gateway.token()))
        await wait_until(lambda: bool(upstream.requests))
        for start in range(0, len(after), 4096):
            caller.send(after[start : start + 4096])
            await asyncio.sleep(0)
        answer = await caller.answer()
        assert (answer.status, answer.whole) == (200, True)
        assert b"[DONE]" in answer.body
        await caller.read_to_close()


# The body.


@pytest.mark.parametrize("tail", [b"zz\r\n", b"-1\r\n", b"3\r\nabcd\r\n"])
async def test_broken_framing_after_the_head_is_refused_at_once(
    gateway: Running, tail: bytes, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    lines = {"Host": "gateway", "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    caller = await connect(gateway)
    caller.send(head("POST", "/v1/chat/completions", lines | {"Authorization": f"Bearer {await gateway.token()}"}))
    caller.send(b"2\r\n{}\r\n")
    await asyncio.sleep(0.05)
    caller.send(tail + SMUGGLED)
    assert_error(await soon(caller.answer()), 400, "invalid_request_error", "invalid_request")
    assert await soon(caller.read_to_close()) == b""
    assert caplog.records == [], "broken framing was logged: callers could fill the log"


async def test_broken_framing_after_the_response_closes_the_connection(gateway: Running, connect: Connect) -> None:
    caller = await connect(gateway)
    caller.send(head("POST", "/v1/chat/completions", {"Host": "gateway", "Transfer-Encoding": "chunked"}))
    assert (await caller.answer()).status == 401
    caller.send(b"zz\r\n" + SMUGGLED)
    assert await caller.read_to_close() == b""


async def test_an_expected_body_is_not_read_as_a_request_after_a_refusal(gateway: Running, connect: Connect) -> None:
    caller = await connect(gateway)
    caller.send(chat("no-token", b"", headers={"Expect": "100-continue", "Content-Length": "77"}))
    answer = await caller.answer()
    assert_error(answer, 401, "authentication_error", "token_invalid")
    assert answer.headers["connection"] == "close"
    caller.send(SMUGGLED)
    assert await caller.read_to_close() == b""


async def test_a_large_body_is_refused_before_it_is_sent(gateway: Running, connect: Connect) -> None:
    caller = await connect(gateway)
    caller.send(chat(await gateway.token(), b"", headers={"Expect": "100-continue", "Content-Length": str(2**40)}))
    assert_error(await caller.answer(), 413, "invalid_request_error", "body_too_large")
    assert await caller.read_to_close() == b""


async def test_expect_100_continue_is_answered_before_the_body(gateway: Running, connect: Connect) -> None:
    request = chat(await gateway.token(), headers={"Expect": "100-continue"})
    start, _, body = request.partition(b"\r\n\r\n")
    caller = await connect(gateway)
    caller.send(start + b"\r\n\r\n")
    assert await caller.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    caller.send(body)
    assert (await caller.answer()).status == 200


async def test_a_body_below_the_minimum_rate_times_out_and_one_above_it_is_read(
    serving: Serving, connect: Connect
) -> None:
    async with serving("body_grace: 1, min_body_rate: 2000") as gateway:
        token = await gateway.token()
        slow, steady = await connect(gateway), await connect(gateway)
        start_lines, body = chat(token, {"user": "x" * 4000}).split(b"\r\n\r\n", 1)
        for caller in (slow, steady):
            caller.send(start_lines + b"\r\n\r\n")
        dripping = asyncio.create_task(slow.drip(body, 0.005))
        cut_off = asyncio.create_task(slow.answer())
        for start in range(0, len(body), 300):
            steady.send(body[start : start + 300])
            await asyncio.sleep(0.1)
        assert (await steady.answer()).status == 200
        assert_error(await cut_off, 408, "invalid_request_error", "body_timeout")
        dripping.cancel()


@pytest.mark.parametrize("chunks", [b"1\r\nx\r\n", b"1;" + b"e" * 200 + b"\r\nx\r\n"])
async def test_chunk_framing_does_not_count_towards_the_body_rate(
    serving: Serving, connect: Connect, chunks: bytes
) -> None:
    async with serving("body_grace: 0.2, min_body_rate: 1000") as gateway:
        caller = await connect(gateway)
        lines = {"Host": "gateway", "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        caller.send(head("POST", "/v1/chat/completions", lines | {"Authorization": f"Bearer {await gateway.token()}"}))
        cut_off = asyncio.create_task(caller.answer())
        while not cut_off.done():
            caller.send(chunks)
            await asyncio.sleep(0.01)
        assert_error(await cut_off, 408, "invalid_request_error", "body_timeout")


async def test_bodies_beyond_the_budget_are_refused_until_there_is_room(serving: Serving, connect: Connect) -> None:
    async with serving("body_budget: 70000") as gateway:
        token = await gateway.token()
        first = await connect(gateway)
        padded = chat(token, {"user": "x" * 60_000})
        first.send(padded[: len(padded) // 2])
        await wait_until(lambda: gateway.gateway.budget.reserved >= 29_000)
        refused = await ask(gateway.port, padded)
        assert_error(refused, 503, "service_error", "service_unavailable")
        assert (refused.headers["connection"], bool(refused.headers["retry-after"])) == ("close", True)
        assert (await ask(gateway.port, chat(token, {"user": "x" * 12_000}))).status == 200
        first.send(padded[len(padded) // 2 :])
        assert (await first.answer()).status == 200
        await gateway.gateway.runner.wait_ended()
        assert gateway.gateway.budget.reserved == 0
        assert (await ask(gateway.port, padded)).status == 200


# Capacity.


async def test_exchanges_beyond_max_open_are_refused(
    serving: Serving, upstream: FakeUpstream, connect: Connect
) -> None:
    upstream.mode = "silent"
    async with serving("max_open: 1, drain: 0") as gateway:
        token = await gateway.token()
        first = await connect(gateway)
        first.send(chat(token))
        await wait_until(lambda: bool(upstream.requests))
        refused = await ask(gateway.port, chat(token))
        assert_error(refused, 503, "service_error", "service_unavailable")
        assert refused.headers["connection"] == "close"
        assert (await ask(gateway.port, get("/healthz"))).status == 200
        first.writer.close()
        upstream.mode = "words"
        await wait_until(lambda: not gateway.gateway.runner.open)
        await assert_served(gateway, token)


def highest_descriptor() -> int:
    return max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())


async def test_when_descriptors_run_low_open_streams_continue_and_requests_are_refused(
    serving: Serving, upstream: FakeUpstream, connect: Connect
) -> None:
    upstream.pace_s = 0.03
    highest = highest_descriptor()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + RESERVED_DESCRIPTORS + 40, hard))
    try:
        async with serving("max_open: 10") as gateway:
            token = await gateway.token()
            stream = await connect(gateway)
            stream.send(chat(token))
            await wait_until(lambda: bool(upstream.requests))
            while not descriptors or descriptors[-1] < highest + 40:
                descriptors.append(os.dup(0))
            silent = await connect(gateway)
            refused = await ask(gateway.port, chat(token))
            assert_error(refused, 503, "service_error", "service_unavailable")
            assert refused.headers["connection"] == "close"
            answer = await stream.answer()
            assert (answer.status, answer.whole) == (200, True)
            assert b"408 " in await silent.read_to_close()
            while descriptors:
                os.close(descriptors.pop())
            await assert_served(gateway, token)
    finally:
        for number in descriptors:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The defaults.

LIMITS: dict[type[Port] | type[Timers], dict[str, Any]] = {
    Port: {
        "max_head": 64 * 1024,
        "max_body": 8 * 1024 * 1024,
        "body_budget": 256 * 1024 * 1024,
        "max_open": 10_000,
        "max_connections": None,
        "max_connections_per_address": None,
        "head_budget": 32 * 1024 * 1024,
        "handshake_timeout": 10,
        "head_timeout": 15,
        "body_timeout": 60,
        "body_grace": 5,
        "min_body_rate": 1024,
        "idle_timeout": 75,
        "allow_non_streaming": False,
        "allow_fields": (),
        "trusted_proxies": (),
        "cors_origins": (),
        "drain": 30,
        "open_streams": "end",
    },
    Timers: {"connect": 5, "first_byte": 60, "idle": 60, "total": 600, "write_stall": 60},
}


@pytest.mark.parametrize("section", LIMITS)
def test_no_default_is_looser_than_the_limits(section: type[Port] | type[Timers]) -> None:
    defaults = {name: getattr(section(), name) for name in section.__struct_fields__}
    assert defaults.keys() == LIMITS[section].keys()
    looser = {name for name, value in defaults.items() if value is not None and value > LIMITS[section][name]} - {
        "min_body_rate"
    }
    assert looser == set()
    assert defaults.get("min_body_rate", 1024) >= 1024


# Connections beyond the limits: idle ones and incomplete heads give way, exchanges go on, and callers that behave are served.
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
