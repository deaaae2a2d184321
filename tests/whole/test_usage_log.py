"""For each way a request can end, the usage log has one arrival and one end under the id that the caller received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.store.client.client import Client
from gateway.testing import Running, running
from gateway.usage.record import Record
from tests.patience import PATIENCE_S
from tests.records import usage_sink
from tests.whole.aftermath import charged, records_in_stream
from tests.whole.conftest import configuration
from tests.whole.raw import Answer, ask, chat, get

TIMERS = ", timers: {connect: 1, first_byte: 0.2, idle: 0.2, total: 1}"


@pytest.fixture
async def bounded(
    mode: str, upstream: FakeUpstream, store_url: str, client: Client, tmp_path: Path
) -> AsyncIterator[Running]:
    """Yield a gateway with a small response limit, and short timers for modes that a timeout must end."""
    channel = ", max_response_bytes: 200000" + (TIMERS if mode in ("silent", "stall") else "")
    async with running(configuration(upstream.base_url, channel=channel), tmp_path, store_url) as whole:
        yield whole


async def entries(gateway: Running) -> list[Record]:
    """Wait until all exchanges have ended, and return all records."""
    await gateway.gateway.runner.wait_ended()
    return await records_in_stream(gateway)


async def end_of(gateway: Running, id: str) -> Record:  # noqa: A002
    """Assert that a request has one arrival and one end, and return the end."""
    opened, ended = [record for record in await entries(gateway) if record.id == id]
    assert (opened.outcome, opened.arrived_at) == (None, ended.arrived_at)
    return ended


@pytest.mark.parametrize(
    ("mode", "outcome", "code"),
    [
        ("words", Outcome.COMPLETED, ""),
        ("no-done", Outcome.COMPLETED, ""),
        ("401", Outcome.UPSTREAM_FAILED, "upstream_auth_failed"),
        ("429", Outcome.UPSTREAM_FAILED, "upstream_rate_limited"),
        ("500", Outcome.UPSTREAM_FAILED, "upstream_error"),
        ("html", Outcome.UPSTREAM_FAILED, "upstream_error"),
        ("empty", Outcome.UPSTREAM_FAILED, "upstream_error"),
        ("first-error", Outcome.UPSTREAM_FAILED, "upstream_error"),
        ("silent", Outcome.UPSTREAM_FAILED, "upstream_timeout"),
        ("truncate", Outcome.UPSTREAM_TRUNCATED, "upstream_truncated"),
        ("cut", Outcome.UPSTREAM_TRUNCATED, "upstream_truncated"),
        ("stall", Outcome.UPSTREAM_STALLED, "upstream_timeout"),
        ("error-event", Outcome.UPSTREAM_ERROR_IN_STREAM, None),
        ("endless", Outcome.STOPPED, None),
    ],
)
async def test_the_record_has_the_outcome_of_the_upstreams_behaviour(
    bounded: Running, upstream: FakeUpstream, mode: str, outcome: Outcome, code: str | None
) -> None:
    token = await bounded.token()
    upstream.mode = mode
    answer = await ask(bounded.port, chat(token))
    record = await end_of(bounded, answer.headers["x-request-id"])
    assert record.outcome is outcome
    if code is not None:
        assert record.error_code == code
    assert (record.account, record.group, record.model) == ("tester", "default", "words")
    assert [tried.channel for tried in record.attempts] == ["fake"]
    assert record.status == answer.status
    assert record.charge_micros == await charged(bounded)
    if record.usage_source != "none":
        price = record.price
        assert isinstance(price["input"], int)
        assert isinstance(price["output"], int)
        tokens = record.prompt_tokens * price["input"] + record.completion_tokens * price["output"]
        # A stream that exceeded its limit is charged no more than was held for it.
        assert record.charge_micros == -(-tokens // 1_000_000) or (
            mode == "endless" and record.charge_micros * 1_000_000 < tokens
        )
    assert (record.first_byte_ms is not None) == (answer.status == 200)
    assert record.duration_ms >= (record.first_byte_ms or 0)
    assert (record.events > 0) == (answer.status == 200)


async def test_the_record_counts_the_bytes_that_the_caller_received(gateway: Running) -> None:
    answer = await ask(gateway.port, chat(await gateway.token()))
    record = await end_of(gateway, answer.headers["x-request-id"])
    assert record.usage_source == "upstream"
    assert record.bytes == len(answer.body)
    assert record.channel == "fake"


async def refused_by(gateway: Running, request: bytes) -> tuple[Record, Answer]:
    answer = await ask(gateway.port, request)
    return await end_of(gateway, answer.headers["x-request-id"]), answer


async def test_each_refusal_is_in_the_log_with_the_name_of_its_plugin(gateway: Running) -> None:
    token = await gateway.token()
    poor = await gateway.token("poor", credit=1)
    cases: list[tuple[bytes, str, str]] = [
        (chat(None), "auth", "token_missing"),
        (chat("sk-tester-abcdefgh-0000000000000000000000000000"), "auth", "token_invalid"),
        (chat(poor), "quota", "insufficient_balance"),
        (chat(token, b"{"), "rate-limit", "invalid_json"),
        (get("/v1/v1/models", token), "", "unknown_path"),
        (get("/v1/chat/completions", token), "", "method_not_allowed"),
        (get("/v1/models/nope", token), "", "model_not_found"),
    ]
    for request, plugin, code in cases:
        record, answer = await refused_by(gateway, request)
        assert (record.outcome, record.status, record.charge_micros) == (Outcome.REFUSED, answer.status, 0)
        assert (record.error_code, answer.error["code"]) == (code, code)
        assert record.refused_by == plugin, code
        assert record.attempts == []


async def test_a_request_outside_v1_leaves_no_record(gateway: Running) -> None:
    for path in ("/chat/completions", "/", "/healthz"):
        await ask(gateway.port, get(path, None, "POST"))
    assert await entries(gateway) == []


async def test_requests_answered_without_an_upstream_are_in_the_log(gateway: Running) -> None:
    token = await gateway.token()
    for path, operation in (("/v1/models", "models"), ("/v1/account", "account")):
        answer = await ask(gateway.port, get(path, token))
        record = await end_of(gateway, answer.headers["x-request-id"])
        assert (record.operation, record.outcome, record.account) == (operation, Outcome.COMPLETED, "tester")


@pytest.mark.parametrize("mode", ["endless", "silent"])
async def test_a_caller_that_leaves_is_in_the_log(gateway: Running, upstream: FakeUpstream, mode: str) -> None:
    upstream.mode = mode
    upstream.pace_s = 0.01
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(chat(await gateway.token()))
    async with asyncio.timeout(PATIENCE_S):
        while not upstream.requests:
            await asyncio.sleep(0.01)
        while mode == "endless" and not any(stream.events.started for stream in gateway.gateway.runner.failover.relays):
            await asyncio.sleep(0.01)
        writer.close()
        while len(await entries(gateway)) < 2:
            await asyncio.sleep(0.01)
    opened, ended = await entries(gateway)
    assert (opened.id, ended.outcome) == (ended.id, Outcome.CALLER_GONE)
    assert (ended.first_byte_ms is not None, ended.events > 0) == (mode == "endless", mode == "endless")
    assert ended.usage_source == "estimated"
    assert ended.charge_micros == await charged(gateway) > 0


async def lookup(gateway: Running, token: str, id: str) -> Any:  # noqa: A002
    answer = await ask(gateway.port, get(f"/v1/requests/{id}", token))
    return json.loads(answer.body) if answer.status == 200 else answer.error["code"]


async def test_a_caller_can_read_the_records_of_its_own_account_only(gateway: Running) -> None:
    token, other = await gateway.token(), await gateway.token("other")
    answer = await ask(gateway.port, chat(token))
    request_id = answer.headers["x-request-id"]
    await gateway.gateway.runner.wait_ended()
    record = await lookup(gateway, token, request_id)
    assert (record["id"], record["outcome"], record["events"] > 0) == (request_id, "completed", True)
    assert await lookup(gateway, other, request_id) == "request_not_found"
    assert not {"channel", "attempts", "upstream_request_id"} & record.keys(), (
        "callers must not see which upstreams there are"
    )
    assert await lookup(gateway, token, "01a1fccb-1807-7197-9f1b-61a58aba6c92") == "request_not_found"


async def test_a_record_without_an_account_is_shown_to_no_account(gateway: Running) -> None:
    token = await gateway.token()
    answer = await ask(gateway.port, chat(None))
    request_id = answer.headers["x-request-id"]
    assert (await end_of(gateway, request_id)).account == ""
    assert await lookup(gateway, token, request_id) == "request_not_found"


def every_use(canary: str) -> list[bytes]:
    """Return requests with a token in every place where a caller may put it."""
    return [
        chat(canary),
        chat(canary[:-1]),
        chat(f"{canary} "),
        chat(canary, {"model": canary}),
        chat(canary, {"messages": [{"role": canary, "content": canary}], "user": canary, canary: canary}),
        chat(canary, canary.encode()),
        chat(canary, headers={"traceparent": canary, "x-request-id": canary, "User-Agent": canary}),
        chat(None, headers={"x-api-key": canary, "Cookie": canary}),
        chat(canary, path=f"/v1/chat/completions?key={canary}"),
        get(f"/v1/{canary}", canary),
        get(f"/{canary}", canary),
        get(f"/v1/models/{canary}", canary),
        get(f"/v1/requests/{canary}", canary),
        get("/v1/models", canary, canary.replace("-", "")),
    ]


def contents(folder: Path) -> bytes:
    """Return the contents of all files below a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "makes_secret", [lambda token: token, lambda token: f"{token[:-4]}AAAA"], ids=["right", "wrong"]
)
async def test_no_eight_characters_of_a_token_are_in_the_store_or_in_a_file(
    gateway: Running, tmp_path: Path, makes_secret: Callable[[str], str]
) -> None:
    canary = makes_secret(await gateway.token())
    for request in every_use(canary):
        assert (await ask(gateway.port, request)).status != 500
    stored = repr(await entries(gateway)).encode()
    sink = usage_sink(gateway.store.usage, retention_months=1, crashed_after_s=60)
    while await sink.move_batch():
        pass
    stored += await asyncio.to_thread(contents, tmp_path)
    assert b"unknown_path" in stored
    secret = canary.rpartition("-")[2].encode()
    assert len(secret) > 20
    assert [secret[at : at + 8] for at in range(len(secret) - 7) if secret[at : at + 8] in stored] == []
