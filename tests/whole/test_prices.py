"""A stream is charged at the price of each part; its record has the upstream's usage, the split, the prices, cost and margin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gateway.domain.exchange import Outcome
from gateway.store.client.client import Client
from gateway.testing import running
from gateway.tools import verify
from gateway.usage.database import UsageFiles
from gateway.usage.record import AttemptRecord
from tests.metrics.scrape import scrape, value
from tests.records import usage_database
from tests.whole.aftermath import charged, last_end_record
from tests.whole.conftest import configuration
from tests.whole.raw import ask, chat, get
from tests.whole.scripted import CHUNKED, LAST, Reset, Scripted, Step, chunk

PLAIN: Final = "{input: 1, output: 2, max_output_tokens: 100, channels: [fake]}"
PARTS: Final = (
    "input: 10, cached_input: 1, cache_write: 12.5, output: 20, request: 0.0005, "
    "tiers: [{above: 200000, input: 20, cached_input: 2, output: 30}], max_output_tokens: 100"
)
COST: Final = "{input: 4, cached_input: 0.4, output: 8}"
USAGE: Final = (
    '{"prompt_tokens":100, "completion_tokens":5,"total_tokens":125,"prompt_tokens_details":{"cached_tokens":60,'
    '"cache_write_tokens":20},"cost":0.000444, "note":"channel-credential-4711"}'
)


def answer(usage: str) -> list[Step]:
    """Return a script with a text, a finish, and a usage object of this text."""
    text = '{"choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}'
    finish = '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    events = "".join(f"data: {body}\n\n" for body in (text, finish, f'{{"choices":[],"usage":{usage}}}', "[DONE]"))
    return [CHUNKED + chunk(events.encode()) + LAST]


def priced(base_url: str, channels: str, more: str = "") -> str:
    return configuration(base_url, more=more).replace(f"words: {PLAIN}", f"words: {{{PARTS}, channels: [{channels}]}}")


async def test_a_stream_is_charged_part_by_part_and_its_record_says_from_what(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with (
        Scripted(answer(USAGE)) as upstream,
        running(priced(upstream.base_url, f"{{use: fake, cost: {COST}}}"), tmp_path, store_url) as gateway,
    ):
        token = await gateway.token()
        response = await ask(gateway.port, chat(token))
        record = await last_end_record(gateway)
        due = 20 * 10 + 60 * 1 + 250 + 25 * 20 + 500
        assert record.charge_micros == due == await charged(gateway)
        assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (100, 25, "upstream")
        assert (record.cached_tokens, record.cache_write_tokens) == (60, 20)
        assert record.price == {
            "input": 10_000_000,
            "output": 20_000_000,
            "ratio": "1",
            "cached_input": 1_000_000,
            "cache_write": 12_500_000,
            "request": 500,
        }
        cost = 444  # as the upstream states it; by the prices of the channel it is 384
        assert (record.cost_micros, record.margin_micros) == (cost, due - cost)
        assert record.cost_price == {"input": 4_000_000, "output": 8_000_000, "ratio": "1", "cached_input": 400_000}
        assert record.attempts == [AttemptRecord("fake", 200, "", cost)]
        assert record.upstream_cost_micros == cost
        assert record.upstream_usage.startswith('{"prompt_tokens":100, "completion_tokens":5')
        assert "channel-credential-4711" not in record.upstream_usage
        assert len(record.upstream_usage) < len(USAGE)
        shown = json.loads((await ask(gateway.port, get(f"/v1/requests/{record.id}", token))).body)
        assert (shown["cached_tokens"], shown["cache_write_tokens"], shown["price"]) == (60, 20, record.price)
        assert not {name for name in shown if "cost" in name or "margin" in name or "upstream" in name}
        assert b"usage" not in response.body, "the caller did not ask for it"
        samples = scrape(gateway.gateway.runner.metrics.shared)
        place = {"model": "words", "channel": "fake"}
        assert value(samples, "cost_micros_total", **place) == cost
        assert value(samples, "margin_micros", **place) == due - cost
    assert_can_be_computed_again(tmp_path / "again", record)


def assert_can_be_computed_again(folder: Path, record: Any) -> None:
    database = usage_database(folder)
    database.write([record])
    database.close()
    assert verify.logged(UsageFiles(folder), record.account).wrong == {}
    (folder / f"usage-{record.arrived_at[:7]}.sqlite").unlink()
    database.write([msgspec.structs.replace(record, charge_micros=record.charge_micros - 1)])
    database.close()
    assert verify.logged(UsageFiles(folder), record.account).wrong.keys() == {record.id}


async def test_a_long_prompt_is_charged_at_the_price_of_its_tier(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    """The body allows no such prompt, as one with pictures by address would, so the charge is capped by the hold."""
    usage = '{"prompt_tokens":200001,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":200001}}'
    async with (
        Scripted(answer(usage)) as upstream,
        running(priced(upstream.base_url, f"{{use: fake, cost: {COST}}}"), tmp_path, store_url) as gateway,
    ):
        await ask(gateway.port, chat(await gateway.token()))
        record = await last_end_record(gateway)
        assert (record.price["input"], record.price["cached_input"], record.price["above"]) == (
            20_000_000,
            2_000_000,
            200_000,
        )
        assert record.price["capped_micros"] == record.charge_micros < 200_001 * 2
        assert record.cost_micros == -(-200_001 * 4 // 10) + 8
    assert_can_be_computed_again(tmp_path / "again", record)


@pytest.mark.parametrize("known", [True, False])
async def test_each_attempt_costs_what_its_own_channel_bills(
    known: bool, store_url: str, client: Client, tmp_path: Path
) -> None:
    async with Scripted([0.05, Reset]) as first, Scripted(answer(USAGE)) as second:
        of_first = "cost: {input: 1000, output: 1}" if known else "weight: 1"
        channels = f"{{use: fake, {of_first}}}, {{use: spare, priority: 1, cost: {COST}}}"
        text = priced(first.base_url, channels).replace(
            "\nmodels:", f'\n  spare: {{base_url: "{second.base_url}"}}\nmodels:', 1
        )
        async with running(text, tmp_path, store_url) as gateway:
            await ask(gateway.port, chat(await gateway.token()))
            record = await last_end_record(gateway)
    estimate, spare = record.prompt_tokens - 100, 444
    assert [attempt.channel for attempt in record.attempts] == ["fake", "spare"]
    assert record.attempts[1].cost_micros == spare
    assert record.attempts[0].cost_micros == (estimate * 1000 if known else None)
    assert record.cost_micros == (estimate * 1000 + spare if known else None)
    assert record.margin_micros == (record.charge_micros - estimate * 1000 - spare if known else None)
    assert record.usage_source == "estimated"
    assert record.charge_micros == estimate * 10 + 1510
    assert_can_be_computed_again(tmp_path / "again", record)


async def test_a_free_model_has_its_cost(store_url: str, client: Client, tmp_path: Path) -> None:
    async with Scripted(answer(USAGE)) as upstream:
        text = configuration(upstream.base_url).replace(
            PLAIN, f"{{free: true, channels: [{{use: fake, cost: {COST}}}]}}", 1
        )
        async with running(text, tmp_path, store_url) as gateway:
            await ask(gateway.port, chat(await gateway.token()))
            record = await last_end_record(gateway)
            assert (record.outcome, record.charge_micros) == (Outcome.COMPLETED, 0)
            assert (record.cost_micros, record.margin_micros) == (444, -444)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("asked", "told", "factor"),
    [
        *((None, "priority", 2), (None, "flex", 0.5), (None, "premium", 1), (None, None, 1), ("default", "default", 1)),
        *(("auto", "default", 1), ("auto", "priority", 2), ("auto", None, 1), ("flex", "flex", 0.5), ("flex", None, 1)),
        *(("priority", "priority", 2), ("priority", "default", 1), ("priority", "premium", 2), ("scale", None, 0)),
    ],
)
async def test_a_request_is_charged_by_the_service_tier_that_served_it(
    asked: str | None, told: str | None, factor: float, stream: bool, store_url: str, client: Client, tmp_path: Path
) -> None:
    tier = f',"service_tier":{json.dumps(told)}'
    usage = '{"prompt_tokens":10,"completion_tokens":5}'
    script = answer(usage + tier)
    if not stream:
        message = '{"index":0,"message":{"content":"hi","service_tier":"flex"},"finish_reason":"stop"}'
        whole = f'{{"choices":[{message}],"metadata":{{"service_tier":"flex"}},"usage":{usage}{tier}}}'.encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        script = [head % len(whole) + whole]
    async with Scripted(script) as upstream:
        own = "input: 10, output: 20, service_tiers: {flex: 0.5, priority: 2}, max_output_tokens: 100"
        text = configuration(upstream.base_url, more="port: {allow_non_streaming: true}").replace(
            f"words: {PLAIN}", f"words: {{{own}, channels: [{{use: fake, cost: {{input: 1, output: 2}}}}]}}"
        )
        async with running(text, tmp_path, store_url) as gateway:
            body = {"stream": stream, **({} if asked is None else {"service_tier": asked})}
            response = await ask(gateway.port, chat(await gateway.token(), body))
            record = await last_end_record(gateway)
            if not factor:
                error = json.loads(response.body)["error"]
                assert (response.status, error["code"], error["param"]) == (400, "unpriced_option", "service_tier")
                assert not upstream.requests
                return
            assert record.charge_micros == 200 * factor == await charged(gateway)
            billed = {"flex": 0.5, "priority": 2}.get(told or "", 1)
            assert record.cost_micros == 20 * billed
    assert_can_be_computed_again(tmp_path / "again", record)


async def test_a_stream_that_breaks_off_is_charged_by_the_tier_that_it_began_with(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    text = '{"choices":[{"index":0,"delta":{"content":"hello hello"},"finish_reason":null}],"service_tier":"flex"}'
    async with Scripted([CHUNKED + chunk(f"data: {text}\n\n".encode()), 0.05, Reset]) as upstream:
        own = "input: 10, output: 20, service_tiers: {flex: 0.5}, max_output_tokens: 100, channels: [fake]"
        configured = configuration(upstream.base_url).replace(f"words: {PLAIN}", f"words: {{{own}}}")
        async with running(configured, tmp_path, store_url) as gateway:
            await ask(gateway.port, chat(await gateway.token(), {"service_tier": "flex"}))
            record = await last_end_record(gateway)
    assert record.price["ratio"] == "1/2"
    assert record.charge_micros == record.prompt_tokens * 5 + record.completion_tokens * 10


async def test_a_refused_request_costs_nothing(store_url: str, client: Client, tmp_path: Path) -> None:
    async with (
        Scripted(answer(USAGE)) as upstream,
        running(priced(upstream.base_url, "fake"), tmp_path, store_url) as gateway,
    ):
        await ask(gateway.port, chat(await gateway.token(), {"model": "unheard-of"}))
        record = await last_end_record(gateway)
        assert (record.outcome, record.cost_micros, record.margin_micros) == (Outcome.REFUSED, 0, 0)


async def test_a_tier_that_the_channel_does_not_send_costs_the_default(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with Scripted(answer('{"prompt_tokens":10,"completion_tokens":5}')) as upstream:
        own = "input: 10, output: 20, service_tiers: {priority: 2}, max_output_tokens: 100, channels: [fake]"
        configured = configuration(upstream.base_url, channel="key, drop: [service_tier]")
        async with running(configured.replace(f"words: {PLAIN}", f"words: {{{own}}}"), tmp_path, store_url) as gateway:
            await ask(gateway.port, chat(await gateway.token(), {"service_tier": "priority"}))
            assert (await last_end_record(gateway)).charge_micros == 200
    assert b"service_tier" not in upstream.requests[0]
