"""What is sent in tiny pieces is refused or parsed in turns, and nothing of it is lost."""

from __future__ import annotations

import asyncio

import pytest

from gateway.fake_upstream import FakeUpstream
from gateway.testing import Running
from tests.patience import PATIENCE_S
from tests.whole.conftest import Serve
from tests.whole.raw import Answer, chat, get, head, read_answer
from tests.whole.test_errors import assert_error


def chunked(token: str, chunk: int) -> bytes:
    """Return a request with a body of 400 KB in chunks of this size."""
    body = chat(token, {"user": "x" * 400_000}).partition(b"\r\n\r\n")[2]
    pieces = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    lines = {"Host": "gateway", "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    start = head("POST", "/v1/chat/completions", lines | {"Authorization": f"Bearer {token}"})
    return start + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def answers(gateway: Running, sent: bytes, count: int) -> list[Answer]:
    """Send something on a connection, and return as many answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(sent)
            return [await read_answer(reader) for _ in range(count)]
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(("chunk", "status"), [(1, 400), (8, 400), (128, 200), (1000, 200)])
async def test_a_body_in_many_tiny_chunks_is_refused_and_one_in_small_chunks_is_read(
    serve: Serve, upstream: FakeUpstream, chunk: int, status: int
) -> None:
    async with serve(upstream.base_url) as gateway:
        (answer,) = await answers(gateway, chunked(await gateway.token(), chunk), 1)
    assert answer.status == status
    if status == 400:
        assert_error(answer, 400, "invalid_request_error", "invalid_request")


async def test_where_each_piece_waits_for_its_turn_all_requests_are_served(
    serve: Serve, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.proxy.scheduler.ADDRESS_BURST_S", 0.0)
    async with serve(upstream.base_url) as gateway:
        token = await gateway.token()
        sent = (
            get("/v1/models", token) * 40 + chunked(token, 1000) + chat(token, {"user": "x" * 400_000}) + get("/v1/x")
        )
        several = await asyncio.gather(*(answers(gateway, sent, 43) for _ in range(4)))
    assert [[answer.status for answer in each] for each in several] == [[200] * 42 + [404]] * 4
