"""For every outcome and every error that a caller can meet: one arrival and one end under the id that the caller holds.

The set-ups are a table; what the record says is compared with what the caller saw, what the account lost, and the clock.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gateway import Outcome
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.client.embedded import EmbeddedStore
from gateway.store.tokens import TokenStatus
from gateway.testing import Running, running
from gateway.usage import queries
from gateway.usage.database import UsageDatabase
from gateway.usage.log import FIELD
from gateway.usage.record import Record, decode
from tests.cli.processes import demo_in, kill, serving, worker_of
from tests.patience import PATIENCE_S
from tests.whole.conftest import CHAIN, configuration
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import Scripted
from tests.whole.test_errors import GARBLED_TOKEN

OPENING = 5_000_000
BOUNDED = ", max_response_bytes: 200000"
HASTY = ", timers: {connect: 1, first_byte: 0.2, idle: 0.2, total: 1, write_stall: 0.2}"
"""For what only time ends; nothing else is to be taken for late on a busy machine."""
README = Path(__file__).parent.parent.parent / "README.md"


class ScenarioRunner:
    """A whole gateway, its upstream and its store, for one request."""

    def __init__(self, gateway: Running, upstream: FakeUpstream, store: EmbeddedStore, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.store = store
        self.stack = stack

    async def ask(self, request: bytes) -> Answer:
        return await ask(self.gateway.port, request)

    async def leaves_open(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which a request was sent; it is closed at the end at the latest."""
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read stays with the gateway
        caller.setblocking(False)
        await asyncio.get_running_loop().sock_connect(caller, ("127.0.0.1", self.gateway.port))
        reader, writer = await asyncio.open_connection(sock=caller)
        self.stack.callback(writer.close)
        writer.write(request)
        return reader, writer


Request = Callable[[ScenarioRunner], Awaitable[bytes]]


class Case(msgspec.Struct, kw_only=True):
    """A set-up and what the record must say. `by`: the plugin that refused. `used`: whose word the charge was made by."""

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
    async def request(stage: ScenarioRunner) -> bytes:
        return chat(await stage.gateway.token(**changes), body)  # type: ignore[arg-type]

    return request


def fixed(request: bytes) -> Request:
    async def same(_: ScenarioRunner) -> bytes:
        return request

    return same


def changed(change: Callable[[ScenarioRunner], Awaitable[str]], **more: object) -> Request:
    """A request with the token that `change` leaves."""

    async def request(stage: ScenarioRunner) -> bytes:
        return chat(await change(stage), **more)  # type: ignore[arg-type]

    return request


async def deleted(stage: ScenarioRunner) -> str:
    token = await stage.gateway.token()
    (known,) = await stage.gateway.store.tokens.all_of("tester")
    await stage.gateway.store.tokens.delete(known.id)
    return token


async def expired(stage: ScenarioRunner) -> str:
    await stage.gateway.token()
    return (await stage.gateway.store.tokens.create("tester", expires_at=1)).token


async def disabled(stage: ScenarioRunner) -> str:
    token = await stage.gateway.token()
    (known,) = await stage.gateway.store.tokens.all_of("tester")
    await stage.gateway.store.tokens.set_status(known.id, TokenStatus.DISABLED)
    return token


async def suspended(stage: ScenarioRunner) -> str:
    token = await stage.gateway.token()
    await stage.gateway.store.accounts.set_status("tester", AccountStatus.SUSPENDED)
    return token


async def restricted(stage: ScenarioRunner) -> str:
    await stage.gateway.token()
    return (await stage.gateway.store.tokens.create("tester", addresses=("10.0.0.0/8",))).token


async def for_other_models(stage: ScenarioRunner) -> str:
    await stage.gateway.token()
    return (await stage.gateway.store.tokens.create("tester", models=("other",))).token


async def once_before(stage: ScenarioRunner) -> str:
    token = await stage.gateway.token()
    assert (await stage.ask(chat(token))).status == 200
    return token


async def beside_another(stage: ScenarioRunner) -> str:
    token = await stage.gateway.token()
    await stage.leaves_open(chat(token))
    while not stage.upstream.requests:
        await asyncio.sleep(0.01)
    return token


async def store_stopped(stage: ScenarioRunner) -> str:
    token = await stage.gateway.token()
    await asyncio.to_thread(stage.store.stop)
    return token


async def draining(stage: ScenarioRunner) -> str:
    stage.gateway.gateway.draining = True
    return await stage.gateway.token()


async def cut_short(stage: ScenarioRunner) -> bytes:
    return chat(await stage.gateway.token())[:-1]


def getting(path: str) -> Request:
    async def request(stage: ScenarioRunner) -> bytes:
        return get(path, await stage.gateway.token())

    return request


REFUSED_BY_UPSTREAM = b'{"error": {"message": "This model cannot see."}}'
REFUSAL = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(REFUSED_BY_UPSTREAM),
    REFUSED_BY_UPSTREAM,
)

good = with_token()
FAILED, SERVED = Outcome.UPSTREAM_FAILED, Outcome.COMPLETED

CASES: dict[str, Case] = {
    "served": Case(request=good, outcome=SERVED, attempts=1, used="upstream"),
    "served without usage": Case(request=good, outcome=SERVED, mode="no-usage", attempts=1, used="estimated"),
    "a list of models": Case(request=getting("/v1/models"), outcome=SERVED),
    "an account": Case(request=getting("/v1/account"), outcome=SERVED),
    "no token": Case(request=fixed(chat(None)), code="token_missing", by="auth"),
    "a made-up token": Case(request=fixed(chat(GARBLED_TOKEN)), code="token_invalid", by="auth"),
    "a deleted token": Case(request=changed(deleted), code="token_invalid", by="auth"),
    "an expired token": Case(request=changed(expired), code="token_expired", by="auth"),
    "a disabled token": Case(request=changed(disabled), code="token_disabled", by="auth"),
    "a suspended account": Case(request=changed(suspended), code="account_inactive", by="auth"),
    "a closed group": Case(request=with_token(group="closed"), code="group_forbidden", by="auth"),
    "another address": Case(request=changed(restricted), code="token_restricted", by="auth"),
    "another model": Case(request=changed(for_other_models), code="token_restricted", by="model-routing"),
    "no such model": Case(request=with_token({"model": "nope"}), code="model_not_found", by="model-routing"),
    "too poor": Case(request=with_token(credit=1), code="insufficient_balance", by="quota"),
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
    "no JSON": Case(request=with_token(b"{"), code="invalid_json", by="rate-limit"),
    "a bad field": Case(request=with_token({"n": 0}), code="invalid_request", by="rate-limit"),
    "no stream": Case(request=with_token({"stream": False}), code="stream_required", by="rate-limit"),
    "a large body": Case(
        request=with_token(b" " * 101), code="body_too_large", by="rate-limit", more="port: {max_body: 100}"
    ),
    "a slow body": Case(
        request=cut_short, code="body_timeout", by="rate-limit", more="port: {body_timeout: 0.2}", at_least_ms=190
    ),
    "another media type": Case(
        request=changed(lambda stage: stage.gateway.token(), headers={"Content-Type": "text/plain"}),
        code="unsupported_media_type",
        by="rate-limit",
    ),
    "another path": Case(request=getting("/v1/v1/models"), code="unknown_path"),
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
    "nobody listens": Case(
        request=good, outcome=FAILED, code="upstream_unreachable", base_url="http://127.0.0.1:1/v1", attempts=1
    ),
    "the upstream fails": Case(request=good, outcome=FAILED, mode="500", code="upstream_error", attempts=1),
    "our credential is wrong": Case(request=good, outcome=FAILED, mode="401", code="upstream_auth_failed", attempts=1),
    "the upstream limits": Case(request=good, outcome=FAILED, mode="429", code="upstream_rate_limited", attempts=1),
    "the upstream refuses": Case(
        request=good, outcome=FAILED, base_url="refusing", code="upstream_refused", attempts=1
    ),
    "the upstream is silent": Case(
        request=good,
        outcome=FAILED,
        mode="silent",
        channel=HASTY,
        code="upstream_timeout",
        attempts=1,
        used="estimated",
        at_least_ms=190,
    ),
    "broken off": Case(
        request=good,
        outcome=Outcome.UPSTREAM_TRUNCATED,
        mode="truncate",
        code="upstream_truncated",
        attempts=1,
        used="estimated",
    ),
    "stalled": Case(
        request=good,
        outcome=Outcome.UPSTREAM_STALLED,
        mode="stall",
        channel=HASTY,
        code="upstream_timeout",
        attempts=1,
        used="estimated",
        at_least_ms=190,
    ),
    "an error in the stream": Case(
        request=good,
        outcome=Outcome.UPSTREAM_ERROR_IN_STREAM,
        mode="error-event",
        attempts=1,
        used="estimated",
    ),
    "too large an answer": Case(
        request=good, outcome=Outcome.STOPPED, mode="endless", code="upstream_error", attempts=1, used="estimated"
    ),
}


@asynccontextmanager
async def staged(case: Case, folder: Path) -> AsyncIterator[ScenarioRunner]:
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
            yield ScenarioRunner(gateway, upstream, store, inner)


async def entries(stage: ScenarioRunner) -> list[Record]:
    """All that was written, wherever it is."""
    usage = stage.gateway.store.usage
    written = [decode(line) for file in usage.spool.files() for line in file.read_bytes().splitlines()]
    if not stage.store.ended:
        page = await stage.gateway.store.client.call("XRANGE", usage.stream, "-", "+")
        written += [decode(fields[FIELD]) for _, fields in page]
    return written


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_one_arrival_and_one_end_tell_what_the_caller_met(case: Case, tmp_path: Path) -> None:
    async with staged(case, tmp_path) as stage:
        request = await case.request(stage)
        before, began = await balance(stage), time.monotonic()
        answer = await stage.ask(request)
        took_ms = (time.monotonic() - began) * 1000
        await stage.gateway.gateway.runner.wait_ended()
        of_it = [record for record in await entries(stage) if record.id == answer.headers["x-request-id"]]
        opened, ended = sorted(of_it, key=lambda record: record.outcome is not None)
        charged = before - await balance(stage)
    assert (opened.outcome, opened.arrived_at) == (None, ended.arrived_at)
    assert (ended.outcome, ended.status) == (case.outcome, answer.status)
    assert (ended.error_code, ended.refused_by) == (case.code, case.by)
    if answer.status >= 400:
        assert answer.error["code"] == case.code
    assert len(ended.attempts) == case.attempts
    assert ended.usage_source == case.used
    assert ended.charge_micros == charged
    assert (charged > 0) == (case.used != "none")
    streamed = answer.status == 200 and case.attempts > 0
    assert (ended.first_byte_ms is not None, ended.events > 0) == (streamed, streamed)
    assert max(case.at_least_ms, ended.first_byte_ms or 0, ended.longest_gap_ms) <= ended.duration_ms <= took_ms + 1


async def balance(stage: ScenarioRunner) -> int:
    """What the tester's account has; a store that is away keeps it as it was."""
    if stage.store.ended:
        return OPENING
    account = await stage.gateway.store.accounts.get("tester")
    return account.balance_micros if account else OPENING


async def head_of(reader: asyncio.StreamReader) -> str:
    """The id in the head of an answer."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    found = re.search(rb"x-request-id: (\S+)", head)
    assert found
    return found[1].decode()


async def ended_with(stage: ScenarioRunner, id: str) -> Record:  # noqa: A002
    """The one end of a request, which has one arrival, as soon as it is written."""
    async with asyncio.timeout(PATIENCE_S):
        while len(found := [record for record in await entries(stage) if record.id == id]) < 2:
            await asyncio.sleep(0.01)
    opened, ended = found
    assert (opened.outcome, opened.arrived_at) == (None, ended.arrived_at)
    return ended


async def test_a_caller_that_leaves_in_the_stream(tmp_path: Path) -> None:
    async with staged(Case(request=good, mode="endless", channel=""), tmp_path) as stage:
        reader, writer = await stage.leaves_open(await good(stage))
        id = await head_of(reader)  # noqa: A001
        writer.close()
        record = await ended_with(stage, id)
        assert (record.outcome, record.status, record.error_code) == (Outcome.CALLER_GONE, 200, "")
        assert record.usage_source == "estimated"
        assert record.charge_micros == OPENING - await balance(stage) > 0
        assert record.events > 0


async def test_a_caller_that_does_not_read(tmp_path: Path) -> None:
    channel = ", timers: {write_stall: 0.3}"
    async with staged(Case(request=good, mode="huge", channel=channel), tmp_path) as stage:
        stage.upstream.mode = "endless"
        reader, _ = await stage.leaves_open(await good(stage))
        id = await head_of(reader)  # noqa: A001
        record = await ended_with(stage, id)
        assert (record.outcome, record.status) == (Outcome.STOPPED, 200)
        assert record.charge_micros == OPENING - await balance(stage) > 0
        assert record.duration_ms >= 290


async def test_a_gateway_that_stops_in_the_stream(tmp_path: Path) -> None:
    async with staged(Case(request=good, mode="endless", channel="", more="port: {drain: 0.1}"), tmp_path) as stage:
        stage.upstream.pace_s = 0.01
        reader, _ = await stage.leaves_open(await good(stage))
        id = await head_of(reader)  # noqa: A001
        await stage.gateway.gateway.drain()
        record = await ended_with(stage, id)
        assert (record.outcome, record.error_code) == (Outcome.STOPPED, "service_unavailable")
        assert record.charge_micros == OPENING - await balance(stage) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="children are looked up in /proc")
async def test_a_gateway_that_is_killed_in_the_stream(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "usage"
    async with serving(demo_in(tmp_path)) as served:
        body = {"model": "demo-words", "stream": True, "messages": [{"role": "user", "content": "Tell me a story"}]}
        url = f"{served.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers=served.headers) as client, client.post(url, json=body) as answer:
            await answer.content.readline()
            kill(worker_of(served.pid))
            with suppress(aiohttp.ClientError):
                await answer.read()
        assert await served.stop() == 0
    rows = UsageDatabase(folder)
    opened = queries.find(folder, answer.headers["x-request-id"])
    assert opened is not None
    assert (opened.outcome, opened.charge_micros) == (None, 0)
    rows.close_crashed(round(time.time() * 1000))
    rows.close()
    (record,) = queries.select(folder)
    assert record == msgspec.structs.replace(opened, outcome=Outcome.GATEWAY_CRASHED)


def documented() -> Iterator[str]:
    """The codes of the README's error table."""
    for line in README.read_text().splitlines():
        if re.match(r"\| [45]\d\d", line):
            yield from re.findall(r"`(\w+)`", line.split("|")[2])


def test_every_documented_error_and_every_outcome_is_tried_here() -> None:
    assert set(documented()) == {case.code for case in CASES.values() if case.code}
    tried = {case.outcome for case in CASES.values()} | {Outcome.CALLER_GONE, Outcome.GATEWAY_CRASHED}
    assert tried == set(Outcome)
