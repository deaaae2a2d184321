"""A stop under load: each open stream is completed or ends with an error, all are charged and recorded, the exit code is 0.

`DRAIN_ROUNDS=20 pytest tests/whole/test_drain.py` runs the longer form.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.fake_upstream import FakeUpstream
from tests.patience import wait_until
from tests.whole.books import OPENING, Books
from tests.whole.load import EXACT, serving
from tests.whole.raw import Answer, ask, chat

ROUNDS = int(os.environ.get("DRAIN_ROUNDS", "1"))
STOPPED = b'"code":"service_unavailable"'


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as fake:
        yield fake


@pytest.fixture
async def books(tmp_path: Path, upstream: FakeUpstream) -> AsyncIterator[Books]:
    books = Books(tmp_path, upstream.base_url)
    file = books.file.read_text().replace("port: {", "port: {drain: 0.4, ")
    books.file.write_text(file.replace("idle: 3, total: 3", "idle: 60, total: 60"))
    try:
        await books.open()
        yield books
    finally:
        books.embedded.stop()


async def answers(books: Books) -> list[Answer]:
    """Send one request after the other until one is refused with 503, or nobody listens any more, and return the responses."""
    received: list[Answer] = []
    with suppress(ConnectionRefusedError, ConnectionResetError):  # of a queue at the stop; what was read has a record
        while not received or received[-1].status != 503:
            received.append(await ask(books.port, chat(books.token)))
    return received


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("round_", range(ROUNDS))
async def test_a_stop_under_load_loses_nothing(books: Books, upstream: FakeUpstream, workers: int, round_: int) -> None:
    async with serving(books.file, workers, books.log_file):
        upstream.mode, upstream.pace_s = "endless", 0.1  # these streams outlast the drain
        slow = [asyncio.create_task(ask(books.port, chat(books.token))) for _ in range(6)]
        await wait_until(lambda: len(upstream.requests) >= 6)
        upstream.mode, upstream.pace_s = "words", 0.01
        callers = [asyncio.create_task(answers(books)) for _ in range(12)]
        await wait_until(lambda: len(upstream.requests) >= 40)
    cut = await asyncio.gather(*slow)
    others = [answer for received in await asyncio.gather(*callers) for answer in received]
    assert {(answer.status, answer.whole) for answer in cut} == {(200, False)}
    whole = [answer for answer in others if (answer.status, answer.whole) == (200, True)]
    cut += [answer for answer in others if (answer.status, answer.whole) == (200, False)]  # on a busy machine
    assert all(STOPPED in answer.body.splitlines()[-2] for answer in cut)
    assert len(whole) > 10
    assert {answer.status for answer in others} <= {200, 503}

    records = await books.records()
    await books.verify()
    charges = {request_id: sum(lines) for request_id, lines in (await books.charges()).items()}
    assert {charges[answer.headers["x-request-id"]] for answer in whole} == {EXACT}
    assert {records[answer.headers["x-request-id"]].outcome for answer in cut} == {Outcome.STOPPED}
    assert Outcome.GATEWAY_CRASHED not in {record.outcome for record in records.values()}
    assert {answer.headers["x-request-id"] for answer in cut + others} == records.keys()
    assert (await books.account()).balance_micros == OPENING - sum(charges.values())
    assert sum(record.charge_micros for record in records.values()) == sum(charges.values())
