"""Every exchange leaves one open and one closed record, without names that a caller made up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway import Attempt, Caller, Candidate, Exchange, Outcome, Price, Refused, Route, Services, Usage
from gateway.base.errors import StoreAway
from gateway.base.ids import arrival_ms, utc
from gateway.config.channel import Channel
from gateway.config.model import Model
from gateway.config.schema import Config
from gateway.store.embedded import EmbeddedStore
from gateway.testing import PATIENT, exchange, run_end, run_request, services, started
from gateway.usage.log import FIELD
from gateway.usage.record import AttemptRecord, Record, caller_of, decode
from plugins.usage_logger import UsageLogger

SETTINGS = Config(
    channels={"c": Channel("http://127.0.0.1:1/v1"), "d": Channel("http://127.0.0.1:2/v1")},
    models={"m": Model(channels=["c"], free=True), "both": Model(channels=["c", "d"], free=True)},
    store=PATIENT,
)


@pytest.fixture
async def given(
    tmp_path: Path,
    store_url: str,
) -> AsyncIterator[Services]:
    async with services(tmp_path, store_url, SETTINGS) as given:
        yield given


async def log_of(given: Services) -> list[Record]:
    entries = await given.redis.call("XRANGE", given.store.usage.streams[0], "-", "+")
    return [decode(fields[FIELD]) for _, fields in entries]


async def run(given: Services, of: Exchange) -> Record:
    """Return the closed record of an exchange whose only plugin is the logger."""
    logger = await started(UsageLogger(), given)
    await run_request(logger, of, given)
    await of.settle_pending()
    await run_end(logger, of, given)
    opened, closed = await log_of(given)
    assert (opened.id, closed.id) == (of.id, of.id)
    return closed


async def test_the_arrival_is_recorded_before_an_upstream_may_be_called(given: Services) -> None:
    logger, of = await started(UsageLogger(), given), exchange(method="GET", path="/v1/models")
    await run_request(logger, of, given)
    await of.settle_pending()
    (opened,) = await log_of(given)
    expected = Record(
        id=of.id, arrived_at=utc(arrival_ms(of.id)), operation="models", gateway=given.store.usage.gateway
    )
    assert opened == expected
    assert abs(arrival_ms(of.id) - time.time() * 1000) < 60_000


async def test_the_record_names_the_caller_that_any_plugin_provided(given: Services) -> None:
    of = exchange()
    of[Caller] = Caller("partner", "partner-abcdefgh", "trial")
    of.outcome = Outcome.COMPLETED
    closed = await run(given, of)
    assert (closed.account, closed.token_id, closed.group) == ("partner", "partner-abcdefgh", "trial")


async def test_the_closed_record_has_all_that_is_known(given: Services) -> None:
    of = exchange()
    await of.body()
    of.account, of.token_id, of.group, of.channel = "tester", "tester-abcdefgh", "default", "c"
    of.attempts[:] = [
        Attempt("b", "x", 429, "upstream_rate_limited"),
        Attempt(
            *("c", "m", 200, "", "req-1", Usage(11, 41, "estimated", 4, 2, answers=1)),
            Price(3_000_000, 1_000_000, cached_input=1_000_000, request=7),
            '{"prompt_tokens": 11}',
            99,
            "cmpl-1",
        ),
    ]
    of.status, of.outcome = 200, Outcome.CALLER_GONE
    of.charge("quota", 123, {"input": 1, "output": 2, "ratio": "1"})
    of.first_byte, of.ended, of.longest_gap_s = of.started + 0.3121, of.started + 2.3, 0.0904
    of.events, of.bytes, of.generation = 41, 9000, 7
    assert await run(given, of) == Record(
        id=of.id,
        arrived_at=utc(arrival_ms(of.id)),
        operation="chat.completions",
        account="tester",
        token_id="tester-abcdefgh",
        group="default",
        model="m",
        channel="c",
        upstream_request_id="req-1",
        attempts=[
            AttemptRecord("b", 429, "upstream_rate_limited", 0),
            AttemptRecord("c", 200, "", 99, "req-1", "cmpl-1"),
        ],
        status=200,
        outcome=Outcome.CALLER_GONE,
        prompt_tokens=11,
        completion_tokens=41,
        usage_source="estimated",
        charge_micros=123,
        price={"input": 1, "output": 2, "ratio": "1"},
        first_byte_ms=312,
        duration_ms=2300,
        longest_gap_ms=90,
        events=41,
        bytes=9000,
        config=7,
        cached_tokens=4,
        cache_write_tokens=2,
        cost_micros=99,
        margin_micros=24,
        cost_price={"input": 3_000_000, "output": 1_000_000, "ratio": "1", "cached_input": 1_000_000, "request": 7},
        upstream_cost_micros=99,
        upstream_usage='{"prompt_tokens": 11}',
        gateway=given.store.usage.gateway,
        completion_id="cmpl-1",
        address="127.0.0.0/24",
    )


async def test_a_refusal_is_recorded_with_its_code_and_the_plugin_that_refused(given: Services) -> None:
    of = exchange()
    of.error, of.refused_by, of.status = Refused(401, "token_expired", "..."), "auth", 401
    of.outcome = Outcome.REFUSED
    closed = await run(given, of)
    assert (closed.outcome, closed.refused_by, closed.error_code, closed.status) == (
        Outcome.REFUSED, "auth", "token_expired", 401,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "requested"),
    [
        ("m", ""),
        ("gpt-4oo", "gpt-4oo"),
        ("sk-alice-1a2b3c4d-0123456789abcdefghij", "(hidden: 38 characters that may be a secret)"),
        ("x." * 100, "x." * 64),
    ],
)
async def test_a_model_that_does_not_exist_is_recorded_as_it_was_asked_for_but_for_secrets(
    given: Services, model: str, requested: str
) -> None:
    of = exchange({"model": model})
    await of.body()
    of.outcome = Outcome.REFUSED
    closed = await run(given, of)
    assert (closed.model, closed.requested_model) == ("" if requested else "m", requested)


@pytest.mark.parametrize(
    ("asked", "shown"), [("both", "both"), ("sk-alice-1a2b3c4d-0123456789abcdefghij", "(hidden: 38 "), ("", "")]
)
async def test_what_plugins_did_to_a_request_is_recorded(given: Services, asked: str, shown: str) -> None:
    of = exchange()
    await of.body()
    of.requested_model, of.changed_by, of.answered_by = asked, ("redact", "rules"), "cache"
    of.outcome = Outcome.COMPLETED
    closed = await run(given, of)
    assert closed.model == "m"
    assert closed.requested_model[:12] == shown
    assert (closed.changed_by, closed.answered_by) == (["redact", "rules"], "cache")


async def test_a_refusal_for_want_of_a_channel_is_recorded_channel_by_channel(given: Services) -> None:
    of = exchange({"model": "both"})
    await of.body()
    of[Route] = Route((Candidate("c", Channel("http://127.0.0.1:1/v1"), "m"),))
    of.error, of.outcome = Refused(503, "model_unavailable", "..."), Outcome.REFUSED
    of.error.unavailable = {"c": "is full"}
    assert (await run(given, of)).unavailable == {"c": "is full", "d": "not open to the group"}


async def test_nothing_that_the_caller_made_up_is_recorded(given: Services) -> None:
    canary = "sk-canary-0123456789"
    of = exchange({"model": canary}, path=f"/v1/{canary}", method=canary, headers={"x-key": canary}, peer=canary)
    await of.body()
    await run(given, of)
    entries = await given.redis.call("XRANGE", given.store.usage.streams[0], "-", "+")
    assert b"canary" not in repr(entries).encode()


async def test_names_from_an_upstream_are_recorded_up_to_a_maximum_length(given: Services) -> None:
    of = exchange()
    of.attempts[:] = [Attempt("c", "m", 200, upstream_request_id="x" * 10_000)]
    of.error = Refused(400, "y" * 10_000, "...")
    closed = await run(given, of)
    assert (len(closed.upstream_request_id), len(closed.error_code)) == (128, 128)


async def test_without_the_store_the_request_is_refused_and_the_spool_has_both_records(tmp_path: Path) -> None:
    store = EmbeddedStore.start(tmp_path / "store")
    store.stop()
    async with services(tmp_path, store.url, SETTINGS) as given:
        logger, of = await started(UsageLogger(), given), exchange()
        await run_request(logger, of, given)
        with pytest.raises(StoreAway):
            await of.settle_pending()
        of.status, of.outcome = 503, Outcome.REFUSED
        await run_end(logger, of, given)
        spooled = [decode(line) for file in given.store.usage.spool.files() for line in file.read_bytes().splitlines()]
        assert [(record.id, record.outcome) for record in spooled] == [(of.id, None), (of.id, Outcome.REFUSED)]


async def test_an_arrival_that_was_not_awaited_is_not_left_behind(given: Services) -> None:
    logger, of = await started(UsageLogger(), given), exchange()
    await run_request(logger, of, given)
    of.outcome = Outcome.REFUSED
    await run_end(logger, of, given)
    assert [record.outcome for record in await log_of(given)] == [None, Outcome.REFUSED]


WRONG: dict[str, dict[str, Any]] = {
    "price of no JSON": {"price": {"a": object()}},
    "status": {"status": "200"},
    "attempt": {"attempts": None},
    "error": {"error": "refused"},
    "model": {"model": ["m"]},
    "account": {"account": None},
    "group": {"group": "\ud800"},
    "outcome": {"outcome": "finished"},
    "outcome and status": {"outcome": 7, "status": None},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.REFUSED])
async def test_a_wrong_value_on_the_exchange_leaves_no_record_open(
    given: Services, wrong: str, outcome: Outcome
) -> None:
    of = exchange()
    of.account, of.token_id, of.group, of.status, of.outcome = "tester", "tester-abcdefgh", "default", 200, outcome
    given_values = dict(WRONG[wrong])
    of.charge("quota", 123, given_values.pop("price", {}))
    for name, value in given_values.items():
        of.attempts.append(value) if name == "attempts" else setattr(of, name, value)
    with capture_logs() as lines:
        closed = await run(given, of)
    expected = {"account": "tester", "token_id": "tester-abcdefgh", "group": "default", "status": 200}
    expected |= {"outcome": outcome, "charge_micros": 123}
    defaults = {name: getattr(Record(id="", arrived_at=""), name) for name in WRONG[wrong] if name in expected}
    if "outcome" in defaults:
        defaults["outcome"] = Outcome.INTERNAL_ERROR
    expected |= defaults
    assert {name: getattr(closed, name) for name in expected} == expected
    assert [(line["event"], line["request_id"]) for line in lines] == [("record_incomplete", of.id)]


AGENT = "OpenAI/Python 2.54.0"


@pytest.mark.parametrize(
    ("kept", "peer", "agent", "expected"),
    [
        ("full", "192.0.2.77", AGENT, ("192.0.2.77", AGENT)),
        (
            *("full", "192.0.2.77", "tool/1 sk-demo-ee0h3kgy-ipVNfVzKQ9YYKvBJHwDb09UNJmIV"),
            ("192.0.2.77", "tool/1 [hidden]"),
        ),
        ("prefix", "192.0.2.77", AGENT, ("192.0.2.0/24", AGENT)),
        ("prefix", "2001:db8:1:2::7", AGENT, ("2001:db8:1::/48", AGENT)),
        ("none", "192.0.2.77", AGENT, ("", "")),
    ],
)
def test_a_record_has_of_its_caller_what_the_file_says_and_no_token(
    kept: str, peer: str, agent: str, expected: tuple[str, str]
) -> None:
    assert caller_of(kept, peer, agent) == expected


async def test_a_plugin_notes_tags_in_the_record(given: Services) -> None:
    of = exchange()
    of[Caller] = Caller("partner", "partner-abcdefgh", "trial")
    of.outcome = Outcome.COMPLETED
    of.note("tenant", "acme")
    of.note("tenant", "Acme\n" + 99 * "x")
    for number in range(7):
        of.note(f"n{number}", "sk-demo-ee0h3kgy-ipVNfVzKQ9YYKvBJHwDb09UNJmIV")
    with pytest.raises(ValueError, match="at most 8 tags"):
        of.note("ninth", "")
    with pytest.raises(ValueError, match="not 'Tenant'"):
        of.note("Tenant", "acme")
    tags = (await run(given, of)).tags
    assert tags == {"tenant": "Acme\\n" + 58 * "x"} | {f"n{number}": "sk-[hidden]" for number in range(7)}
