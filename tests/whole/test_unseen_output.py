"""Output that no event shows: each way to leave an answer, by each kind of model, is charged for what was generated until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway import Outcome
from gateway.chat.usage import SLOW_PER_S
from gateway.fake_upstream.modes import THOUGHTS
from gateway.fake_upstream.server import FakeUpstream
from gateway.testing import Running
from gateway.usage.record import Record
from tests.patience import PATIENCE_S
from tests.whole.aftermath import charged, end_records
from tests.whole.conftest import Serve
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Scripted, chunk

PACE_S = 0.02
WORDS = 20
TEXT = "word " * WORDS
CANCEL = ", on_caller_gone: cancel"
MORE = "port: {allow_non_streaming: true}"


@asynccontextmanager
async def in_front_of(mode: str, serve: Serve, channel: str) -> AsyncIterator[tuple[Running, FakeUpstream]]:
    async with (
        FakeUpstream(pace_s=PACE_S, mode=mode, words=TEXT, key="channel-credential-4711") as upstream,
        serve(upstream.base_url, channel=channel, more=MORE) as gateway,
    ):
        yield gateway, upstream


async def left(gateway: Running, token: str, *, until: bytes = b"", after_s: float = 0.0, **body: object) -> Record:
    """Send a request, leave once `until` has come and `after_s` have passed, and return its record."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    before = len(await end_records(gateway))
    writer.write(chat(token, body))
    if until:
        await reader.readuntil(until)
    await asyncio.sleep(after_s)
    writer.close()
    async with asyncio.timeout(PATIENCE_S):
        while len(records := await end_records(gateway)) == before:
            await asyncio.sleep(0.01)
    return records[-1]


def assert_by_time(record: Record, whole: Record) -> None:
    """Assert that a record has the tokens of its time, at the pace of a whole answer of the same upstream."""
    expected = whole.completion_tokens * record.duration_ms / whole.duration_ms
    assert record.completion_tokens == pytest.approx(expected, rel=0.1, abs=2)
    assert (record.outcome, record.usage_source) == (Outcome.CALLER_GONE, "estimated")
    assert record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "gathered"])
@pytest.mark.parametrize(
    ("until", "after_s"),
    [(b"", THOUGHTS * PACE_S / 2), (b"word word word", 0.0), (b"word word word word word", 0.1)],
    ids=["while it thinks", "in the text", "later in the text"],
)
async def test_a_caller_that_leaves_pays_for_the_time_that_the_model_worked(
    serve: Serve, until: bytes, after_s: float, stream: bool
) -> None:
    channel = CANCEL if stream else CANCEL + ", upstream_stream: true"
    async with in_front_of("thinks", serve, channel) as (gateway, _):
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token, {"stream": stream}))).whole
        (whole,) = await end_records(gateway)
        assert whole.completion_tokens == THOUGHTS + WORDS
        if stream or not until:
            until = b'word"' if until else b""
            assert_by_time(await left(gateway, token, until=until, after_s=after_s, stream=stream), whole)
        else:
            waited = (THOUGHTS + WORDS / 2) * PACE_S
            assert_by_time(await left(gateway, token, after_s=waited, stream=False), whole)


@pytest.mark.parametrize("mode", ["words", "thinks-in-the-open"])
async def test_the_time_does_not_count_where_the_text_shows_all(serve: Serve, mode: str) -> None:
    async with in_front_of(mode, serve, CANCEL) as (gateway, upstream):
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token))).whole
        upstream.mode = "silent"
        assert (await left(gateway, token, after_s=1.0)).completion_tokens == 0


@pytest.mark.parametrize("mode", ["words", "thinks", "thinks-in-the-open"])
@pytest.mark.parametrize("until", [b"", b'word"'], ids=["before the first event", "in the text"])
async def test_an_answer_that_is_left_is_read_on_for_its_usage(serve: Serve, mode: str, until: bytes) -> None:
    async with in_front_of(mode, serve, ", on_caller_gone: drain") as (gateway, _):
        record = await left(gateway, await gateway.token(), until=until, after_s=0 if until else 5 * PACE_S)
        assert (record.outcome, record.usage_source) == (Outcome.CALLER_GONE, "upstream")
        assert record.completion_tokens == WORDS + (THOUGHTS if mode != "words" else 0)
        assert await charged(gateway) == record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens


async def test_a_json_answer_that_is_left_is_read_on_for_its_usage(serve: Serve) -> None:
    async with in_front_of("slow-first", serve, ", on_caller_gone: drain") as (gateway, _):
        record = await left(gateway, await gateway.token(), after_s=0.2, stream=False)
        assert (record.outcome, record.usage_source) == (Outcome.CALLER_GONE, "upstream")
        assert record.completion_tokens == WORDS


@pytest.mark.parametrize("mode", ["words", "slow-first", "silent"])
async def test_a_json_answer_that_is_left_for_good_costs_its_time(serve: Serve, mode: str) -> None:
    """Of a model of which no whole answer is known, at a slow pace; else at the pace of its answers."""
    async with in_front_of("silent", serve, CANCEL) as (gateway, upstream):
        token = await gateway.token()
        record = await left(gateway, token, after_s=1.0, stream=False)
        assert record.completion_tokens == pytest.approx(SLOW_PER_S * record.duration_ms / 1000, abs=1)
        assert await charged(gateway) == record.charge_micros == record.prompt_tokens + 2 * record.completion_tokens
        if mode == "silent":
            return
        upstream.mode = mode  # in JSON, both modes answer at once or after a second, with WORDS
        assert (await ask(gateway.port, chat(token))).whole
        whole = (await end_records(gateway))[-1]
        upstream.mode = "silent"
        record = await left(gateway, token, after_s=0.5, stream=False)
        expected = whole.completion_tokens * record.duration_ms / whole.duration_ms
        assert record.completion_tokens == pytest.approx(expected, rel=0.1, abs=2)


async def test_the_time_that_is_read_on_counts_where_no_usage_comes_in_time(serve: Serve) -> None:
    channel = ", on_caller_gone: drain, drain_limit: 0.4"
    async with in_front_of("thinks", serve, channel) as (gateway, _):
        token = await gateway.token()
        assert (await ask(gateway.port, chat(token))).whole
        (whole,) = await end_records(gateway)
        record = await left(gateway, token, after_s=0.1)
        assert record.duration_ms >= 450
        assert_by_time(record, whole)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}",
        CHUNKED + chunk(b'data: {"error":{"message":"no"}}\n\n') + LAST,
    ],
    ids=["500", "400", "an error as the first event"],
)
async def test_a_refusal_of_the_upstream_after_the_caller_left_costs_nothing(serve: Serve, answer: bytes) -> None:
    async with (
        Scripted([1.0, answer]) as upstream,
        serve(upstream.base_url, channel=", on_caller_gone: drain") as gateway,
    ):
        record = await left(gateway, await gateway.token(), after_s=0.1)
        assert (record.outcome, record.charge_micros) == (Outcome.CALLER_GONE, 0)
        assert await charged(gateway) == 0
