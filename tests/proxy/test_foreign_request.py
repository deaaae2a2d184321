"""A large request to an upstream of another dialect is written in a thread, so that no other caller waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.chat.request import SMALL_BYTES
from gateway.testing import Running, running
from tests.patience import PATIENCE_S, wait_until
from tests.plugins.anthropic_streams import TEXT, wire
from tests.whole import waiting_dialect
from tests.whole.aftermath import last_end_record
from tests.whole.conftest import CHAIN
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk
from tests.whole.test_stream import STREAM

LARGE = [{"role": "user", "content": f"message {number} of many"} for number in range(SMALL_BYTES // 40)]


@pytest.fixture
async def gateway(store_url: str, tmp_path: Path) -> AsyncIterator[tuple[Running, str, Scripted]]:
    """Yield a gateway, a token, and the upstream of the dialect."""
    for event in (waiting_dialect.let, waiting_dialect.begun):
        event.clear()
    waiting_dialect.threads.clear()
    async with started(store_url, tmp_path) as whole:
        try:
            yield whole
        finally:
            waiting_dialect.let.set()


@asynccontextmanager
async def started(url: str, folder: Path) -> AsyncIterator[tuple[Running, str, Scripted]]:
    async with (
        Scripted([CHUNKED + chunk(wire(TEXT)) + LAST]) as foreign,
        Scripted([CHUNKED + chunk(STREAM) + LAST]) as plain,
    ):
        text = f"""
channels:
  foreign: {{base_url: "{foreign.base_url}", dialect: waiting}}
  plain: {{base_url: "{plain.base_url}"}}
models:
  words: {{input: 1, output: 2, channels: [foreign]}}
  other: {{input: 1, output: 2, channels: [plain]}}
groups: {{default: {{}}}}
store: {{timeout: {PATIENCE_S}}}
{CHAIN}
  - use: tests.whole.waiting_dialect:Provides
"""
        async with running(text, folder, url) as running_gateway:
            yield running_gateway, await running_gateway.token(), foreign


async def test_others_are_served_while_a_large_request_is_written(gateway: tuple[Running, str, Scripted]) -> None:
    whole, token, foreign = gateway
    large = asyncio.create_task(ask(whole.port, chat(token, {"messages": LARGE})))
    await wait_until(waiting_dialect.begun.is_set)
    other = await ask(whole.port, chat(token, {"model": "other"}))
    assert (other.status, other.whole, large.done(), foreign.requests) == (200, True, False, [])
    waiting_dialect.let.set()
    answer = await large
    assert (answer.status, answer.whole) == (200, True)
    assert foreign.requests[0].count(b"of many") == len(LARGE)
    assert (await last_end_record(whole)).outcome is Outcome.COMPLETED


async def test_a_small_request_is_written_at_once(gateway: tuple[Running, str, Scripted]) -> None:
    whole, token, _ = gateway
    waiting_dialect.let.set()
    assert (await ask(whole.port, chat(token))).status == 200
    assert (await ask(whole.port, chat(token, {"messages": LARGE}))).status == 200
    assert [each == threading.get_ident() for each in waiting_dialect.threads] == [True, False]


async def test_a_caller_who_leaves_meanwhile_is_charged_nothing(gateway: tuple[Running, str, Scripted]) -> None:
    whole, token, foreign = gateway
    _, writer = await asyncio.open_connection("127.0.0.1", whole.port)
    writer.write(chat(token, {"messages": LARGE}))
    await wait_until(waiting_dialect.begun.is_set)
    writer.close()
    await writer.wait_closed()
    assert (
        await ask(whole.port, chat(token, {"model": "other"}))
    ).status == 200  # by then the gateway knows that it left
    waiting_dialect.let.set()
    record = await last_end_record(whole)
    assert (record.outcome, record.charge_micros, foreign.requests) == (Outcome.CALLER_GONE, 0, [])
    account = await whole.store.accounts.get("tester")
    assert account is not None
    assert account.held_micros == 0


async def test_a_large_request_that_cannot_be_said_is_refused_with_its_field(
    gateway: tuple[Running, str, Scripted],
) -> None:
    whole, token, foreign = gateway
    waiting_dialect.let.set()
    answer = await ask(whole.port, chat(token, {"messages": LARGE, "logit_bias": {"1": 1}}))
    assert (answer.status, answer.error["param"], foreign.requests) == (400, "logit_bias", [])
    answer = await ask(whole.port, chat(token, {"messages": [*LARGE, {"role": "user", "content": 7}]}))
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert f"of message {len(LARGE)}" in answer.error["message"]
