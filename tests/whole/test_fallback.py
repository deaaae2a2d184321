"""Where no channel of a model is left, another model serves, at its own price, unless the upstream judged the request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import Outcome
from gateway.admin.actions.requests import in_words
from gateway.testing import Running, running
from gateway.tools.explain import explain
from tests.metrics.scrape import scrape, value
from tests.patience import wait_until
from tests.place import Place
from tests.whole.aftermath import charged, end_records, last_end_record
from tests.whole.raw import ask, chat
from tests.whole.scripted import CHUNKED, LAST, Fin, Forever, Hold, Reset, Scripted, Step, chunk
from tests.whole.test_channels import GOOD, status_of
from tests.whole.test_stream import PASSED, STREAM, WORDS
from tests.whole.test_upstream_faults import full_response

PRICES = {"dear": "input: 10, output: 20", "cheap": "input: 1, output: 2", "free": "free: true"}
FILE = """
channels:
  east: {{base_url: "{east}", timers: {{first_byte: 0.5}}}}
  west: {{base_url: "{west}"}}
models:
  asked: {{{asked}, max_output_tokens: 100, context_length: 1000, channels: [east], fallback: [other]}}
  other: {{{other}, max_output_tokens: 100, channels: [{{use: west, model: theirs}}]{more}}}
  alone: {{{asked}, max_output_tokens: 100, channels: [east]}}
groups: {{default: {{models: {models}}}}}
plugins: [{{use: usage-logger}}, {{use: auth}}, {{use: quota}}, {{use: model-routing}}]
"""
OUT: list[Step] = [full_response("500 No", b"{}")]
LONG = b'{"error": {"message": "prompt is too long: 9 tokens > 8 maximum", "type": "invalid_request_error"}}'


@asynccontextmanager
async def two_models(
    folder: Path,
    url: str,
    east: list[Step],
    west: list[Step] = GOOD,
    *,
    asked: str = "dear",
    other: str = "cheap",
    more: str = "",
    models: str = '["*"]',
) -> AsyncIterator[tuple[Running, Scripted, Scripted]]:
    """Yield a gateway with a model that falls back to another one, and their upstreams."""
    async with Scripted(east) as first, Scripted(west) as second:
        places = {"east": first.base_url, "west": second.base_url}
        text = FILE.format(**places, asked=PRICES[asked], other=PRICES[other], more=more, models=models)
        async with running(text, folder, url) as gateway:
            yield gateway, first, second


FALLS_BACK: dict[str, list[Step]] = {
    "429": [full_response("429 Slow", b"{}", "Retry-After: 7")],
    "500": OUT,
    "529": [full_response("529 Overloaded", b"{}")],
    "401": [full_response("401 No", b"{}")],
    "closed": [Fin],
    "silent": [Hold],
    "first error": [CHUNKED + chunk(b'data: {"error": {"message": "overloaded"}}\n\n') + LAST],
    "too long": [full_response("400 No", LONG)],
}


@pytest.mark.parametrize("reason", [*FALLS_BACK, "disabled"])
async def test_the_other_model_serves_where_no_channel_is_left(place: Place, reason: str) -> None:
    async with two_models(*place, FALLS_BACK.get(reason, GOOD)) as (gateway, first, second):
        token = await gateway.token()
        if reason == "disabled":
            await gateway.store.channels.set_enabled("east", False)
            await wait_until(lambda: status_of(gateway, "east").condition == "disabled")
        answer = await ask(gateway.port, chat(token, {"model": "asked"}))
        record = await last_end_record(gateway)
        samples = scrape(gateway.gateway.runner.metrics.shared)
        assert (answer.status, answer.body, answer.whole) == (200, PASSED, True)
        assert answer.headers["x-served-model"] == "other"
        assert b'"model":"theirs"' in second.requests[0]
        assert len(first.requests) == (reason != "disabled")
        assert (record.outcome, record.model, record.requested_model) == (Outcome.COMPLETED, "other", "asked")
        assert (record.changed_by, record.channel) == (["fallback"], "west")
        assert record.price["input"] == 1_000_000
        assert record.charge_micros == await charged(gateway) > 0
        assert "changed by fallback" in in_words(record)
        assert value(samples, "requests_total", outcome="completed", model="other", channel="west") == 1
        assert (await gateway.store.accounts.get("tester")).held_micros == 0  # type: ignore[union-attr]


JUDGED: dict[str, list[Step]] = {
    "400": [full_response("400 No", b'{"error": {"message": "messages.0 is wrong"}}')],
    "403": [full_response("403 No", b'{"error": {"message": "flagged"}}')],
    "422": [full_response("422 No", b'{"error": {"message": "temperature"}}')],
    "after the first byte": [CHUNKED + chunk(WORDS[1]), Reset],
}


@pytest.mark.parametrize("reason", JUDGED)
async def test_no_other_model_serves_what_was_judged_or_has_begun(place: Place, reason: str) -> None:
    async with two_models(*place, JUDGED[reason]) as (gateway, _, second):
        answer = await ask(gateway.port, chat(await gateway.token(), {"model": "asked"}))
        record = await last_end_record(gateway)
        assert second.requests == []
        assert (record.model, record.requested_model, record.changed_by) == ("asked", "", [])
        assert "x-served-model" not in answer.headers


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({"models": "[asked]"}, {}),
        ({"more": ", context_length: 5"}, {}),
        ({"more": ", cannot: [tools]"}, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (
            {"more": ", cannot: [pictures]"},
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}
                ]
            },
        ),
    ],
)
async def test_only_a_model_that_the_caller_may_use_and_that_can_do_it_serves(
    place: Place, settings: dict[str, str], body: dict[str, object], *, limited: bool
) -> None:
    given = settings if limited else {}
    async with two_models(*place, OUT, **given) as (gateway, first, second):  # type: ignore[arg-type]
        answer = await ask(gateway.port, chat(await gateway.token(), {"model": "asked", **body}))
        assert (answer.status, len(first.requests), len(second.requests)) == (502 if limited else 200, 1, not limited)


@pytest.mark.parametrize("reason", ["400", "500"])
async def test_where_the_other_fails_too_the_request_is_one_of_the_model_that_was_asked_for(
    place: Place, reason: str
) -> None:
    bad: list[Step] = [full_response("400 No", b'{"error": {"message": "wrong"}}')] if reason == "400" else OUT
    async with two_models(*place, OUT, bad) as (gateway, _, second):
        answer = await ask(gateway.port, chat(await gateway.token(), {"model": "asked"}))
        record = await last_end_record(gateway)
        assert (answer.status, len(second.requests)) == (400 if reason == "400" else 502, 1)
        assert (record.model, record.requested_model, record.outcome) == ("asked", "", Outcome.UPSTREAM_FAILED)
        assert [each.channel for each in record.attempts] == ["east", "west"]
        assert "x-served-model" not in answer.headers
        assert await charged(gateway) == 0


@pytest.mark.parametrize(
    ("asked", "other", "credit", "served"),
    [
        *(("dear", "cheap", 1_000_000, True), ("cheap", "dear", 1_000_000, True), ("cheap", "dear", 600, False)),
        *(("free", "dear", 1_000_000, True), ("free", "dear", 10, False), ("dear", "free", 1_000_000, True)),
    ],
)
async def test_it_is_called_only_where_the_balance_covers_its_price(
    place: Place, asked: str, other: str, credit: int, served: bool
) -> None:
    async with two_models(*place, OUT, asked=asked, other=other) as (gateway, first, second):
        token = await gateway.token(credit=credit)
        answer = await ask(gateway.port, chat(token, {"model": "asked"}))
        record = await last_end_record(gateway)
        assert (answer.status, len(first.requests), len(second.requests)) == (200 if served else 502, 1, int(served))
        assert record.model == ("other" if served else "asked")
        rate = {"dear": 10, "cheap": 1, "free": 0}[other]
        used = record.prompt_tokens + 2 * record.completion_tokens
        assert record.charge_micros == (rate * used if served else 0)
        account = await gateway.store.accounts.get("tester")
        assert account is not None
        assert (account.held_micros, account.balance_micros) == (0, credit - record.charge_micros)


async def test_of_fifty_at_once_with_a_balance_for_five_five_are_served(place: Place) -> None:
    gate = asyncio.Event()
    slow: list[Step] = [CHUNKED + chunk(WORDS[1]), Forever(b"", 0.01, until=gate.is_set), chunk(STREAM) + LAST]
    async with two_models(*place, OUT, slow, asked="free", other="dear") as (gateway, _, second):
        probe = await gateway.token("probe")
        gate.set()
        await ask(gateway.port, chat(probe, {"model": "asked"}))
        most = (await end_records(gateway))[-1].price["hold_micros"]
        assert isinstance(most, int)
        gate.clear()
        second.requests.clear()
        token = await gateway.token(credit=5 * most + most // 2)
        calls = [asyncio.create_task(ask(gateway.port, chat(token, {"model": "asked"}))) for _ in range(50)]
        await wait_until(lambda: sum(call.done() for call in calls) >= 45)
        assert len(second.requests) == 5
        gate.set()
        statuses = [(await call).status for call in calls]
        assert (statuses.count(200), len(second.requests)) == (5, 5)
        await last_end_record(gateway)
        assert sum(record.charge_micros for record in await end_records(gateway) if record.account == "tester") > 0


async def test_an_explanation_shows_the_ladder(place: Place) -> None:
    async with two_models(*place, GOOD) as (gateway, _, _second):
        token = await gateway.token()
        body = json.dumps({"model": "asked", "stream": True, "messages": [{"role": "user", "content": "hi"}]})
        chain, rules = gateway.gateway.chain, gateway.gateway._rules
        given = [("Authorization", f"Bearer {token}")]
        explained = await explain(chain, given, body.encode(), rules, "127.0.0.1")
        assert [(each.channel, each.verdict) for each in explained.channels] == [
            ("east", "first"),
            ("west", "fallback"),
        ]
        assert explained.channels[1].text == "as other, at its price, where no channel above is left"
        await gateway.store.channels.set_enabled("east", False)
        await wait_until(lambda: status_of(gateway, "east").condition == "disabled")
        explained = await explain(chain, given, body.encode(), rules, "127.0.0.1")
        assert explained.served is True
