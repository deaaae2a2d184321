"""For every outcome and every error code, the usage log has one arrival and one end under the id that the caller received.

The set-ups are a table. The record is compared with the caller's response, the account's charge, and the clock.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway import Budgets, Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.embedded import EmbeddedStore
from gateway.store.tokens import TokenStatus
from gateway.testing import Running, running
from gateway.usage import queries
from gateway.usage.database import UsageFiles
from gateway.usage.record import Record, decode, shown_message, shown_name
from tests.cli.processes import demo_in, kill, serving, worker_of
from tests.patience import PATIENCE_S, wait_until
from tests.records import close_open, usage_database
from tests.whole.aftermath import records_in_stream
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import Scripted
from tests.whole.test_errors import assert_error

INVALID_TOKEN = "sk-tester-abcdefgh-0000000000000000000000000000"
KINDS = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
    500: "service_error",
    502: "upstream_error",
    503: "service_error",
    504: "upstream_error",
}
"""The types of errors by their status. Any other is a mistake of the request."""
FIGURES = {"needed_micros", "available_micros", "max_tokens_that_fit"}
"""Further fields of errors about money."""
OPENING = 5_000_000
BOUNDED = ", max_response_bytes: 200000"
SHORT_TIMERS = ", timers: {connect: 1, first_byte: 0.2, idle: 0.2, total: 1, write_stall: 0.2}"
"""Short timers, only for requests that a timeout must end: on a busy machine they would end other requests too."""
README = Path(__file__).parent.parent.parent / "gateway/docs/callers.md"


class Scenario:
    """A whole gateway, its upstream and its store. `stack` closes what the request opened."""

    def __init__(self, gateway: Running, upstream: FakeUpstream, store: EmbeddedStore, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.store = store
        self.stack = stack

    async def ask(self, request: bytes) -> Answer:
        return await ask(self.gateway.port, request)

    async def send_without_reading(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request on a new connection and return the connection. It is closed at the end of the scenario."""
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # unread data stays in the gateway
        caller.setblocking(False)
        await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", self.gateway.port))
        reader, writer = await asyncio.open_connection(sock=caller)
        self.stack.callback(writer.close)
        writer.write(request)
        return reader, writer


Request = Callable[[Scenario], Awaitable[bytes]]


class Case(msgspec.Struct, kw_only=True):
    """A set-up and the expected record. `by`: the plugin that refused. `used`: the source of the charged usage."""

    request: Request
    outcome: Outcome = Outcome.REFUSED
    code: str = ""
    by: str = ""
    mode: str = "words"
    chain: str = CHAIN
    channel: str = BOUNDED
    more: str = ""
    store_timeout: float = PATIENCE_S
    base_url: str = ""
    attempts: int = 0
    used: str = "none"
    at_least_ms: int = 0


def with_token(body: object = None, **changes: object) -> Request:
    async def request(scenario: Scenario) -> bytes:
        return chat(await scenario.gateway.token(**changes), body)  # type: ignore[arg-type]

    return request


def fixed(request: bytes) -> Request:
    async def same(_: Scenario) -> bytes:
        return request

    return same


def changed(change: Callable[[Scenario], Awaitable[str]], **more: object) -> Request:
    """Return a function that makes a change and then a request with the token that `change` returns."""

    async def request(scenario: Scenario) -> bytes:
        return chat(await change(scenario), **more)  # type: ignore[arg-type]

    return request


def account_with(**changes: Any) -> Request:
    async def change(scenario: Scenario) -> str:
        token = await scenario.gateway.token()
        await scenario.gateway.store.accounts.change("tester", **changes)
        return token

    return changed(change)


def token_with(**settings: Any) -> Request:
    async def create(scenario: Scenario) -> str:
        await scenario.gateway.token()
        return (await scenario.gateway.store.tokens.create("tester", **settings)).token

    return changed(create)


async def deleted(scenario: Scenario) -> str:
    token = await scenario.gateway.token()
    (known,) = await scenario.gateway.store.tokens.all_of("tester")
    await scenario.gateway.store.tokens.delete(known.id)
    return token


async def disabled(scenario: Scenario) -> str:
    token = await scenario.gateway.token()
    (known,) = await scenario.gateway.store.tokens.all_of("tester")
    await scenario.gateway.store.tokens.set_status(known.id, TokenStatus.DISABLED)
    return token


async def once_before(scenario: Scenario) -> str:
    token = await scenario.gateway.token()
    assert (await scenario.ask(chat(token))).status == 200
    return token


async def beside_another(scenario: Scenario) -> str:
    token = await scenario.gateway.token()
    await scenario.send_without_reading(chat(token))
    await wait_until(lambda: bool(scenario.upstream.requests))
    return token


async def store_stopped(scenario: Scenario) -> str:
    token = await scenario.gateway.token()
    await asyncio.to_thread(scenario.store.stop)
    return token


async def draining(scenario: Scenario) -> str:
    scenario.gateway.gateway.closing = True
    return await scenario.gateway.token()


async def cut_short(scenario: Scenario) -> bytes:
    return chat(await scenario.gateway.token())[:-1]


def getting(path: str) -> Request:
    async def request(scenario: Scenario) -> bytes:
        return get(path, await scenario.gateway.token())

    return request


REFUSED_BY_UPSTREAM = b'{"error": {"message": "This model cannot see."}}'
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(REFUSED_BY_UPSTREAM),
    REFUSED_BY_UPSTREAM,
)

good = with_token()
SERVED = Outcome.COMPLETED


def failed(outcome: Outcome, code: str, used: str = "none", **more: Any) -> Case:
    """An upstream that was called once, and fails."""
    return Case(request=good, outcome=outcome, code=code, used=used, attempts=1, **more)


FAILED, AT_LEAST = Outcome.UPSTREAM_FAILED, {"channel": SHORT_TIMERS, "at_least_ms": 190}

CASES: dict[str, Case] = {
    "served": Case(request=good, outcome=SERVED, attempts=1, used="upstream"),
    "served without usage": Case(request=good, outcome=SERVED, mode="no-usage", attempts=1, used="estimated"),
    "a list of models": Case(request=getting("/v1/models"), outcome=SERVED),
    "an account": Case(request=getting("/v1/account"), outcome=SERVED),
    "a list": Case(request=getting("/v1/requests"), outcome=SERVED),
    "a reference that cannot be kept": Case(
        request=fixed(chat(None, headers={"X-Client-Request-Id": "x" * 513})), code="invalid_request", by="usage-logger"
    ),
    "no token": Case(request=fixed(chat(None)), code="token_missing", by="auth"),
    "a made-up token": Case(request=fixed(chat(INVALID_TOKEN)), code="token_invalid", by="auth"),
    "a deleted token": Case(request=changed(deleted), code="token_invalid", by="auth"),
    "an expired token": Case(request=token_with(expires_at=1), code="token_expired", by="auth"),
    "a disabled token": Case(request=changed(disabled), code="token_disabled", by="auth"),
    "a suspended account": Case(
        request=account_with(status=AccountStatus.SUSPENDED), code="account_inactive", by="auth"
    ),
    "a closed group": Case(request=with_token(group="closed"), code="group_forbidden", by="auth"),
    "another address": Case(request=token_with(addresses=("10.0.0.0/8",)), code="token_restricted", by="auth"),
    "another model": Case(request=token_with(models=("other",)), code="token_restricted", by="model-routing"),
    "no such model": Case(request=with_token({"model": "nope"}), code="model_not_found", by="model-routing"),
    "too poor": Case(request=with_token(credit=1), code="insufficient_balance", by="quota"),
    "beyond a budget": Case(request=account_with(budgets=Budgets(day=1)), code="budget_exceeded", by="quota"),
    "too fast": Case(
        request=changed(once_before),
        code="rate_limited",
        by="rate-limit",
        chain=CHAIN.replace("requests_per_minute: 1000", "requests_per_minute: 1"),
    ),
    "too many at once": Case(
        request=changed(beside_another),
        code="too_many_concurrent",
        by="rate-limit",
        mode="silent",
        channel="",
        chain=CHAIN.replace("concurrent: 50", "concurrent: 1"),
    ),
    "no JSON": Case(request=with_token(b"{"), code="invalid_json"),
    "a bad field": Case(request=with_token({"n": 0}), code="invalid_request"),
    "no stream": Case(request=with_token({"stream": False}), code="stream_required"),
    "a dearer tier": Case(request=with_token({"service_tier": "priority"}), code="unpriced_option"),
    "a large body": Case(request=with_token(b" " * 101), code="body_too_large", more="port: {max_body: 100}"),
    "a slow body": Case(request=cut_short, code="body_timeout", more="port: {body_timeout: 0.2}", at_least_ms=190),
    "another media type": Case(
        request=changed(lambda scenario: scenario.gateway.token(), headers={"Content-Type": "text/plain"}),
        code="unsupported_media_type",
    ),
    "another path": Case(request=getting("/v1/v1/models"), code="unknown_path"),
    "a kept answer as a stream": Case(request=getting("/v1/responses/resp_1?stream=true"), code="not_served"),
    "a kept answer": Case(request=getting("/v1/responses/resp_1"), code="response_not_found"),
    "a websocket": Case(request=getting("/v1/responses"), code="upgrade_required"),
    "another method": Case(request=getting("/v1/chat/completions"), code="method_not_allowed"),
    "no such request": Case(request=getting("/v1/requests/x"), code="request_not_found"),
    "no channel": Case(request=good, code="model_unavailable", chain=CHAIN + "  - use: tests.whole.closed:Closed\n"),
    "the store away": Case(request=changed(store_stopped), code="service_unavailable", by="auth", store_timeout=0.4),
    "stopping": Case(request=changed(draining), code="service_unavailable"),
    "a bug": Case(
        request=good,
        outcome=Outcome.INTERNAL_ERROR,
        code="internal_error",
        by="tests.whole.broken:Broken",
        chain=CHAIN + "  - use: tests.whole.broken:Broken\n",
    ),
    "the upstream is unreachable": failed(FAILED, "upstream_unreachable", base_url="http://127.0.0.1:1/v1"),
    "the upstream fails": failed(FAILED, "upstream_error", mode="500"),
    "the credential is wrong": failed(FAILED, "upstream_auth_failed", mode="401"),
    "the upstream limits": failed(FAILED, "upstream_rate_limited", mode="429"),
    "the upstream refuses": failed(FAILED, "upstream_refused", base_url="refusing"),
    "the upstream is silent": failed(FAILED, "upstream_timeout", "estimated", mode="silent", **AT_LEAST),
    "broken off": failed(Outcome.UPSTREAM_TRUNCATED, "upstream_truncated", "estimated", mode="truncate"),
    "stalled": failed(Outcome.UPSTREAM_STALLED, "upstream_timeout", "estimated", mode="stall", **AT_LEAST),
    "an error in the stream": failed(Outcome.UPSTREAM_ERROR_IN_STREAM, "", "estimated", mode="error-event"),
    "a forbidden word": failed(
        Outcome.STOPPED,
        "content_stopped",
        "estimated",
        by="stop-words",
        chain=CHAIN.replace(
            "  - use: quota\n", "  - {use: stop-words, with: {words: [a, e, i, o, u]}}\n  - use: quota\n"
        ),
    ),
    "too large an answer": failed(Outcome.STOPPED, "upstream_error", "estimated", mode="endless"),
}


@asynccontextmanager
async def running_scenario(case: Case, folder: Path) -> AsyncIterator[Scenario]:
    async with AsyncExitStack() as stack:
        store = await asyncio.to_thread(EmbeddedStore.start, folder / "store")
        stack.callback(store.stop)
        upstream = await stack.enter_async_context(FakeUpstream(pace_s=0, key="channel-credential-4711"))
        upstream.mode = case.mode
        base_url = case.base_url or upstream.base_url
        if base_url == "refusing":
            base_url = (await stack.enter_async_context(Scripted([REFUSAL]))).base_url
        yaml = configuration(
            base_url, chain=case.chain, channel=case.channel, more=case.more, store_timeout=case.store_timeout
        )
        gateway = await stack.enter_async_context(running(yaml, folder, store.url))
        async with AsyncExitStack() as inner:
            yield Scenario(gateway, upstream, store, inner)


async def entries(scenario: Scenario) -> list[Record]:
    """Return all records in the spool and, unless the store has ended, in the stream."""
    usage = scenario.gateway.store.usage
    written = [decode(line) for file in usage.spool.files() for line in file.read_bytes().splitlines()]
    if not scenario.store.ended:
        written += await records_in_stream(scenario.gateway)
    return written


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_one_arrival_and_one_end_match_what_the_caller_saw(case: Case, tmp_path: Path) -> None:
    async with running_scenario(case, tmp_path) as scenario:
        request = await case.request(scenario)
        before, began = await balance(scenario), time.monotonic()
        answer = await scenario.ask(request)
        took_ms = (time.monotonic() - began) * 1000
        await scenario.gateway.gateway.runner.wait_ended()
        records = [record for record in await entries(scenario) if record.id == answer.headers["x-request-id"]]
        opened, ended = sorted(records, key=lambda record: record.outcome is not None)
        charged = before - await balance(scenario)
    assert (opened.outcome, opened.arrived_at) == (None, ended.arrived_at)
    assert (ended.outcome, ended.status) == (case.outcome, answer.status)
    assert (ended.error_code, ended.refused_by) == (case.code, case.by)
    if answer.status >= 400:
        assert answer.status in statuses()[case.code]
        assert ended.error_param == shown_name(answer.error["param"] or "")
        told = shown_message(answer.error["message"])
        assert case.code == "internal_error" or (ended.error_message and told.startswith(ended.error_message))
        kind = KINDS.get(answer.status, "invalid_request_error")
        param = answer.error["param"]
        assert_error(
            answer, answer.status, kind, case.code, param=param, details=FIGURES if answer.status == 402 else None
        )
        passes = answer.status == 429 or case.code == "service_unavailable"
        assert ("retry-after" in answer.headers) == passes
    assert len(ended.attempts) == case.attempts
    assert ended.usage_source == case.used
    assert ended.charge_micros == charged
    assert (charged > 0) == (case.used != "none")
    if case.used != "none":
        assert (ended.account, ended.group, ended.model) == ("tester", "default", "words")
        assert [tried.channel for tried in ended.attempts] == ["fake"]
        price_in, price_out = ended.price["input"], ended.price["output"]
        assert isinstance(price_in, int) and isinstance(price_out, int)
        tokens = ended.prompt_tokens * price_in + ended.completion_tokens * price_out
        # A stream that exceeded its limit is charged no more than was held for it.
        assert charged == -(-tokens // 1_000_000) or (case.mode == "endless" and charged * 1_000_000 < tokens)
    streamed = answer.status == 200 and case.attempts > 0
    assert (ended.first_byte_ms is not None, ended.events > 0) == (streamed, streamed)
    assert max(case.at_least_ms, ended.first_byte_ms or 0, ended.longest_gap_ms) <= ended.duration_ms <= took_ms + 1


async def balance(scenario: Scenario) -> int:
    """Return the balance of the account `tester`, or the opening balance if the store has ended."""
    if scenario.store.ended:
        return OPENING
    account = await scenario.gateway.store.accounts.get("tester")
    return account.balance_micros if account else OPENING


@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
async def test_a_request_of_a_killed_gateway_is_closed_as_crashed(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "usage"
    async with serving(demo_in(tmp_path)) as served:
        story = "Tell me a story " * 10  # is quoted, so that the answer lasts until the worker is killed
        body = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": story}]}
        url, worker = f"{served.base_url}/chat/completions", worker_of(served.pid)
        async with aiohttp.ClientSession(headers=served.headers) as client, client.post(url, json=body) as answer:
            await answer.content.readline()
            kill(worker)
            with suppress(aiohttp.ClientError):
                await answer.read()
        assert await served.stop() == 0
    rows = usage_database(folder)
    opened = queries.find(UsageFiles(folder), answer.headers["x-request-id"])
    assert opened is not None
    assert (opened.outcome, opened.charge_micros) == (None, 0)
    close_open(rows, round(time.time() * 1000))
    rows.close()
    (record,) = queries.select(UsageFiles(folder))
    assert record == msgspec.structs.replace(opened, outcome=Outcome.GATEWAY_CRASHED)


@cache
def statuses() -> dict[str, set[int]]:
    """Return the codes of the error table of callers.md, each with the statuses that it may have."""
    found: dict[str, set[int]] = {}
    for line in README.read_text().splitlines():
        if re.match(r"\| [45]\d\d", line):
            _, status, codes, *_ = line.split("|")
            for code in re.findall(r"`(\w+)`", codes):
                found.setdefault(code, set()).update(map(int, re.findall(r"\d{3}", status)))
    return found


def test_every_documented_error_and_every_outcome_is_covered() -> None:
    assert set(statuses()) == {case.code for case in CASES.values() if case.code}
    elsewhere = {Outcome.CALLER_GONE, Outcome.GATEWAY_CRASHED}  # in test_caller_faults.py, and above
    covered = {case.outcome for case in CASES.values()} | elsewhere
    assert covered == set(Outcome)
