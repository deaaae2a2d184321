"""Requests that are sent one behind another on a connection: whatever the bytes and the cuts, no error of the gateway."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from contextlib import suppress

import pytest

from gateway import Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.server.protocol import MAX_AHEAD, PIECE, ServerProtocol
from gateway.testing import Running
from tests.patience import PATIENCE_S, soon, wait_until
from tests.whole.aftermath import end_records, records_in_stream, tasks
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import ask, chat, get, head, read_answer
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Scripted, chunk
from tests.whole.test_stream import STREAM, WORDS

SEQUENCES = 2500
AT_ONCE = 32
UPGRADE = {"Host": "gateway", "Connection": "Upgrade", "Upgrade": "websocket"}
HALF = b"GET /v1/models HTTP/1.1\r\nHost: gate"


def pieces(token: str) -> list[bytes]:
    """Return what a sequence is made of: whole requests, requests to upgrade, parts of requests, and no requests."""
    body = {"Host": "gateway", "Content-Type": "application/json"}
    return [
        get("/healthz"),
        get("/v1/models"),
        get("/v1/account", token),
        get("/v1/models", token, "HEAD"),
        get("/nothing"),
        head("GET", "/v1/models", UPGRADE),
        head("POST", "/v1/chat/completions", UPGRADE | {"Content-Length": "3"}) + b"abc",
        head("CONNECT", "gateway:443", {"Host": "gateway"}),
        head("CONNECT", "/v1/models", {"Host": "gateway", "Content-Length": "2"}) + b"ab",
        head("POST", "/v1/chat/completions", body | {"Content-Length": "2"}) + b"{}",
        chat(token, b'{"model": 1}'),
        chat(token, b'{"model": "\r\n\r\n"}'),
        chat(token, b"", headers={"Transfer-Encoding": "chunked", "Content-Length": ""}) + b"2\r\n{}\r\n0\r\n\r\n",
        chat(token, b"", headers={"Transfer-Encoding": "chunked", "Content-Length": ""})
        + b"4\r\n\r\n\r\n\r\n0\r\nA: b\r\n\r\n",
        chat(token, b"", headers={"Transfer-Encoding": "chunked", "Content-Length": ""}) + b"zz\r\n",
        chat(None, b"", headers={"Expect": "100-continue", "Content-Length": "7"}),
        chat(token, b"x" * 2000),
        HALF,
        HALF[:7],
        b"\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        head("GET", "/v1/models", {"Host": "gateway", "X-Long": "x" * 3000}),
    ]


async def play(port: int, choice: random.Random, parts: list[bytes]) -> None:
    """Send a random sequence, cut at random places, and close the connection in one of four ways."""
    sent = b"".join(choice.choices(parts, k=choice.randint(1, 6)))
    if choice.random() < 0.4:
        sent = sent[: choice.randint(1, len(sent))]
    cuts = sorted(choice.sample(range(len(sent)), k=min(len(sent), choice.randint(0, 5))))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ending = choice.random()
    try:
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            writer.write(sent[start:end])
            if choice.random() < 0.5:
                await asyncio.sleep(0)
        if ending < 0.4:  # read what comes, for a moment
            with suppress(TimeoutError):
                async with asyncio.timeout(choice.random() * 0.01):
                    await reader.read()
        elif ending < 0.6:
            writer.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await reader.read()
        elif ending > 0.8:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:  # the gateway has closed, also where there is no connection left to end
        pass
    writer.close()


async def test_no_sequence_of_requests_and_cuts_is_an_error_of_the_gateway(
    upstream: FakeUpstream, serve: Serve, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    choice = random.Random(20261122)
    unlimited = CHAIN.replace("{requests_per_minute: 1000, tokens_per_minute: 1000000, concurrent: 50}", "{}").replace(
        "use: usage-logger", "use: usage-logger\n    with: {unknown_per_minute: 1000000, refused_per_minute: 1000000}"
    )
    async with serve(upstream.base_url, chain=unlimited) as gateway:
        parts = pieces(await gateway.token())
        before = tasks()
        for _ in range(SEQUENCES // AT_ONCE):
            await asyncio.gather(*(play(gateway.port, choice, parts) for _ in range(AT_ONCE)))
        await wait_until(lambda: not gateway.gateway.runner.open and not gateway.gateway.connections.open)
        await wait_until(lambda: not (tasks() - before - {asyncio.current_task()}))
        connections = gateway.gateway.connections
        assert (connections.head_bytes, gateway.gateway.budget.reserved) == (0, 0)
        seen = Counter((record.id, record.outcome is None) for record in await records_in_stream(gateway))
        assert set(seen.values()) == {1}, "a record was written twice"
        opened = {request_id for request_id, is_open in seen if is_open}
        assert opened == {request_id for request_id, is_open in seen if not is_open}
        assert len(seen) > SEQUENCES
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_a_request_behind_an_upgrade_and_half_a_head_is_answered(
    gateway: Running, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head("GET", "/healthz", UPGRADE) + get("/v1/models"))
    assert (await read_answer(reader)).status == 200
    assert (await read_answer(reader)).status == 401
    writer.write(HALF)
    await asyncio.sleep(0.05)
    writer.write(b"way\r\n\r\n")
    assert (await read_answer(reader)).status == 401
    writer.close()
    assert caplog.records == []


async def test_what_is_no_request_behind_an_answer_is_refused_as_such(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(get("/healthz"))
    assert (await read_answer(reader)).status == 200
    writer.write(b"nonsense\r\n\r\n")
    refused = await read_answer(reader)
    assert (refused.status, refused.headers["connection"]) == (400, "close")
    assert b"invalid_request" in refused.body
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("size", [10_000, 100_000])
async def test_a_body_that_arrives_in_pieces_starts_no_timer_of_a_head(
    upstream: FakeUpstream, serve: Serve, size: int
) -> None:
    async with serve(upstream.base_url, more="port: {head_timeout: 0.2}") as gateway:
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        request = chat(token, {"user": "x" * size})
        writer.write(request[:-size])
        await asyncio.sleep(0.05)
        writer.write(request[-size:])
        assert (await read_answer(reader)).status == 200
        await asyncio.sleep(0.5)
        writer.write(get("/healthz"))
        assert (await read_answer(reader)).status == 200
        writer.close()


async def outcomes(gateway: Running, count: int) -> list[tuple[Outcome | None, str]]:
    """Wait until `count` requests have ended, and return how."""
    async with asyncio.timeout(PATIENCE_S):
        while len(records := await end_records(gateway)) < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    records = await end_records(gateway)
    opened = {record.id for record in await records_in_stream(gateway) if record.outcome is None}
    assert opened == {record.id for record in records}
    return [(record.outcome, record.error_code) for record in records]


async def test_requests_behind_a_stream_that_is_cut_are_recorded_as_refused(serve: Serve) -> None:
    async with Scripted([CHUNKED + chunk(WORDS[0]), 0.2, Fin]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token) + get("/v1/models", token) + chat(token) + get("/healthz") + HALF)
        assert not (await read_answer(reader)).whole
        ended = await outcomes(gateway, 3)
        writer.close()
        assert sorted(ended) == [
            (Outcome.REFUSED, "service_unavailable"),
            (Outcome.REFUSED, "service_unavailable"),
            (Outcome.UPSTREAM_TRUNCATED, "upstream_truncated"),
        ]
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("ahead", [2, 100])
async def test_requests_behind_a_stream_whose_caller_left_are_recorded_as_such(serve: Serve, ahead: int) -> None:
    async with Scripted([CHUNKED, Forever(chunk(WORDS[1]), 0.01)]) as upstream, serve(upstream.base_url) as gateway:
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token) + get("/v1/models", token) * ahead)
        await reader.readuntil(b"word0")
        writer.transport.abort()
        recorded = min(ahead, MAX_AHEAD)
        ended = await outcomes(gateway, 1 + recorded)
        assert ended == [(Outcome.CALLER_GONE, "")] * (1 + recorded)


async def test_requests_behind_a_stream_are_recorded_when_the_gateway_stops(serve: Serve) -> None:
    async with (
        Scripted([CHUNKED + chunk(WORDS[0]), Hold], [CHUNKED + chunk(STREAM) + LAST]) as upstream,
        serve(upstream.base_url, more="port: {drain: 0.1}") as gateway,
    ):
        token = await gateway.token()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(token) + get("/v1/models", token))
        await reader.readuntil(b"\n\n")
        await gateway.gateway.drain()
        ended = await outcomes(gateway, 2)
        writer.close()
        assert sorted(ended) == [(Outcome.REFUSED, "service_unavailable"), (Outcome.STOPPED, "service_unavailable")]


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/v1/models", "/v1/models/words", "/v1/account", "/v1/requests"]
)
async def test_the_answer_to_head_has_no_body(gateway: Running, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(get(path, await gateway.token(), "HEAD") + get("/healthz"))
    lines = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert lines.startswith("HTTP/1.1 200 ")
    assert "\r\nContent-Length: 0\r\n" not in lines
    assert (await read_answer(reader)).body == b"ok\n"
    writer.close()


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/nothing"])
async def test_http_1_0_gets_its_answer_and_the_end(gateway: Running, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(get(path, await gateway.token()).replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: Keep-Alive", 1))
    answer = await soon(reader.read())
    assert b"\r\nConnection: close\r\n" in answer
    writer.close()


async def test_many_requests_on_one_connection_leave_the_others_their_turn(gateway: Running) -> None:
    """Another caller's requests are answered while thousands wait on one connection, not after them."""
    many = 3000
    crowd_reader, crowd = await asyncio.open_connection("127.0.0.1", gateway.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    crowd.write(get("/healthz") * many)
    answered = 0

    async def count() -> None:
        nonlocal answered
        for _ in range(many):
            await read_answer(crowd_reader)
            answered += 1
            await asyncio.sleep(0)  # what is there already is read without a pause

    counting = asyncio.create_task(count())
    await wait_until(lambda: answered > 0)
    for _ in range(5):
        began = answered
        writer.write(get("/healthz"))
        assert (await read_answer(reader)).status == 200
        assert answered - began < many / 4
    await asyncio.wait_for(counting, PATIENCE_S)
    for each in (crowd, writer):
        each.close()


async def test_a_body_of_an_address_that_is_alone_is_parsed_in_turns(
    gateway: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of one byte take a third of a millisecond for each piece: other connections do not wait for a whole read."""
    pieces: list[int] = []
    parse, receive = ServerProtocol._parse, ServerProtocol.data_received

    def counted_parse(self: ServerProtocol, piece: bytes) -> None:
        pieces[-1] += 1
        parse(self, piece)

    def counted_receive(self: ServerProtocol, data: bytes) -> None:
        pieces.append(0)
        receive(self, data)

    monkeypatch.setattr(ServerProtocol, "_parse", counted_parse)
    monkeypatch.setattr(ServerProtocol, "data_received", counted_receive)
    many = 64
    body = b"1\r\n \r\n" * (many * PIECE // 6) + b"0\r\n\r\n"
    headers = {"Transfer-Encoding": "chunked", "Content-Length": ""}
    answer = await ask(gateway.port, chat(await gateway.token(), b"", headers=headers) + body)
    assert answer.status == 400
    assert sum(pieces) >= many / 2
    assert max(pieces) < many / 4
