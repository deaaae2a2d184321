"""A token revoked before its answer began ends the request; a worker that remembers a token serves it as it is now."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import AccountLimits, Exchange, Outcome, Plugin
from gateway.chain.services import Store
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.client.client import Client
from gateway.store.tokens import Created, TokenStatus
from gateway.testing import Running, configuration, running
from gateway.usage.record import Record
from tests.patience import PATIENCE_S, wait_until
from tests.whole.aftermath import CREDIT, assert_released, last_end_record, tasks
from tests.whole.conftest import CHAIN, Serve
from tests.whole.raw import CHAT, Answer, chat, get, read_answer
from tests.whole.scripted import CHUNKED, HEAD, Forever, Hold, Scripted, Step, chunk

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"one two three"}}]}\n\n'


class Waiting(Plugin):
    """Lets requests through when the test says so."""

    async def on_request(self, exchange: Exchange) -> None:
        STEPS.append("waits")
        await GATES[-1].wait()


STEPS: list[str] = []
GATES: list[asyncio.Event] = []
WITH_WAITING = CHAIN.replace("  - use: rate-limit", f"  - use: {__name__}:Waiting\n  - use: rate-limit")


@asynccontextmanager
async def gateway_for(
    base_url: str, serve: Serve, *, chain: str = CHAIN, channel: str = "", more: str = ""
) -> AsyncIterator[Running]:
    async with serve(base_url, chain=chain, channel=channel, more=more) as gateway:
        yield gateway


async def token_of(gateway: Running) -> Created:
    await gateway.store.accounts.create("tester")
    await gateway.store.wallet.credit("tester", "opening", CREDIT)
    return await gateway.store.tokens.create("tester")


@asynccontextmanager
async def sent(gateway: Running, request: bytes) -> AsyncIterator[asyncio.Task[Answer]]:
    """Send a request, and yield the task that reads its response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request)
    task = asyncio.create_task(read_answer(reader))
    try:
        yield task
    finally:
        writer.close()


async def refused(
    gateway: Running, token: Created, answer: asyncio.Task[Answer], upstream: Scripted | None = None
) -> Record:
    """Delete the token, assert that the request gets the error, and return the record of its end."""
    await gateway.store.tokens.delete(token.id)
    got = await asyncio.wait_for(answer, PATIENCE_S)
    assert (got.status, got.whole, got.error["code"]) == (401, True, "token_invalid")
    assert got.error["type"] == "authentication_error"
    assert not {"retry-after", "retry-after-ms"} & got.headers.keys()
    record = await last_end_record(gateway)
    assert (record.status, record.error_code, record.id) == (401, "token_invalid", got.headers["x-request-id"])
    account = await gateway.store.accounts.get("tester")
    assert account is not None
    assert (account.held_micros, account.holds) == (0, 0)
    assert account.balance_micros == CREDIT - record.charge_micros
    if upstream is not None:
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE_S)
    return record


@pytest.mark.parametrize("script", [[Hold], [CHUNKED, Hold]], ids=["no head", "no event"])
async def test_a_request_that_waits_for_the_first_event(serve: Serve, script: list[Step]) -> None:
    async with Scripted(script) as upstream, gateway_for(upstream.base_url, serve) as gateway:
        token = await token_of(gateway)
        before = tasks()
        async with sent(gateway, chat(token.token)) as answer:
            await upstream.arrived.wait()
            await asyncio.sleep(0.1)
            record = await refused(gateway, token, answer, upstream)
        assert (record.outcome, record.charge_micros) == (Outcome.STOPPED, record.prompt_tokens)
        assert record.prompt_tokens > 0
        assert len(record.attempts) == 1
        await assert_released(gateway, upstream, before, pooled=0)


@pytest.mark.parametrize("status", [b"200 OK", b"500 Failed"])
async def test_a_response_that_is_read_whole(serve: Serve, status: bytes) -> None:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{" % status
    async with (
        Scripted([head, Hold]) as upstream,
        gateway_for(upstream.base_url, serve, more="port: {allow_non_streaming: true}") as gateway,
    ):
        token = await token_of(gateway)
        async with sent(gateway, chat(token.token, {"stream": False})) as answer:
            await upstream.arrived.wait()
            await asyncio.sleep(0.1)
            assert (await refused(gateway, token, answer, upstream)).outcome is Outcome.STOPPED
        assert len(upstream.requests) == 1


async def test_a_request_whose_upstream_does_not_finish_the_handshake(serve: Serve) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()
        await reader.read()
        writer.close()

    arrived = asyncio.Event()
    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        timers = ", timers: {connect: 200, first_byte: 200}"
        async with gateway_for(url, serve, channel=timers) as gateway:
            token = await token_of(gateway)
            async with sent(gateway, chat(token.token)) as answer:
                await arrived.wait()
                record = await refused(gateway, token, answer)
        assert (record.outcome, record.charge_micros) == (Outcome.STOPPED, 0)


async def test_a_request_whose_body_still_arrives(serve: Serve) -> None:
    async with Scripted([Hold]) as upstream, gateway_for(upstream.base_url, serve) as gateway:
        token = await token_of(gateway)
        request = chat(token.token, {"messages": [{"role": "user", "content": "word " * 40_000}]})
        async with sent(gateway, request[:100_000]) as answer:
            await wait_until(lambda: any(each.on_stop for each in gateway.gateway.runner.exchanges))
            record = await refused(gateway, token, answer)
        assert (record.outcome, record.charge_micros, record.refused_by) == (Outcome.REFUSED, 0, "")
        assert not upstream.requests


@pytest.mark.parametrize("path", [CHAT, "/v1/models"])
async def test_a_request_that_a_plugin_holds_up_is_not_served(serve: Serve, path: str) -> None:
    GATES.append(asyncio.Event())
    async with Scripted([Hold]) as upstream, gateway_for(upstream.base_url, serve, chain=WITH_WAITING) as gateway:
        token = await token_of(gateway)
        STEPS.clear()
        request = chat(token.token) if path == CHAT else get(path, token.token)
        async with sent(gateway, request) as answer:
            await wait_until(lambda: STEPS == ["waits"])
            await gateway.store.tokens.delete(token.id)
            await wait_until(lambda: all(each.stopped for each in gateway.gateway.runner.exchanges))
            assert not answer.done()
            GATES[-1].set()
            got = await asyncio.wait_for(answer, PATIENCE_S)
        assert (got.status, got.error["code"]) == (401, "token_invalid")
        record = await last_end_record(gateway)
        assert (record.outcome, record.charge_micros) == (Outcome.REFUSED, 0)
        assert not upstream.requests


async def test_a_stream_whose_caller_does_not_read(serve: Serve) -> None:
    async with (
        Scripted([CHUNKED, Forever(chunk(EVENT * 100))]) as upstream,
        gateway_for(upstream.base_url, serve) as gateway,
    ):
        token = await token_of(gateway)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        writer.write(chat(token.token))
        await wait_until(lambda: any(relay.unsent for relay in gateway.gateway.runner.failover.relays))
        await gateway.store.tokens.delete(token.id)
        await asyncio.wait_for(upstream.gone.wait(), PATIENCE_S)
        record = await last_end_record(gateway)
        assert (record.outcome, record.error_code) == (Outcome.STOPPED, "token_invalid")
        writer.close()


async def test_an_answer_that_is_complete_stays_so(serve: Serve) -> None:
    """The finish and the usage are there, and only `[DONE]` is waited for."""
    finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}\n\n'
    async with (
        Scripted([HEAD + b"\r\n" + EVENT + finish + usage, Hold]) as upstream,
        gateway_for(upstream.base_url, serve) as gateway,
    ):
        token = await token_of(gateway)
        async with sent(gateway, chat(token.token)) as answer:
            await wait_until(lambda: any(each.first_byte for each in gateway.gateway.runner.exchanges))
            await gateway.store.tokens.delete(token.id)
            got = await asyncio.wait_for(answer, PATIENCE_S)
        record = await last_end_record(gateway)
        assert (record.outcome, record.error_code, record.charge_micros) == (Outcome.COMPLETED, "", 3 + 2 * 4)
        assert b"error" not in got.body


GROUPS = {"default": {}, "vip": {"ratio": 3}, "closed": {"enabled": False}, "few": {"models": []}}

Change = Callable[[Store, str], Awaitable[object]]


def account(**changes: Any) -> Change:
    return lambda store, _: store.accounts.change("tester", **changes)


CHANGES: dict[str, tuple[Change, int, str, bool]] = {
    "deleted": (lambda store, token: store.tokens.delete(token), 401, "token_invalid", False),
    "disabled": (
        lambda store, token: store.tokens.set_status(token, TokenStatus.DISABLED),
        *(401, "token_disabled", True),
    ),
    "suspended": (account(status=AccountStatus.SUSPENDED), 403, "account_inactive", True),
    "in a closed group": (account(group="closed"), 403, "group_forbidden", True),
    "restricted": (account(models=["other"]), 404, "model_not_found", True),
    "limited": (account(limits=AccountLimits(tokens_per_minute=1)), 429, "rate_limited", True),
}
"""What changes, and with which status and code the next request is refused; whether its record names the account."""


@pytest.fixture
async def gateway_with_groups(store_url: str, tmp_path: Path) -> AsyncIterator[Running]:
    async with FakeUpstream(pace_s=0) as upstream:
        document = json.loads(configuration(upstream.base_url)) | {"groups": GROUPS}
        async with running(json.dumps(document), tmp_path, store_url) as gateway_with_groups:
            yield gateway_with_groups


async def charge_of(gateway_with_groups: Running, request_id: str) -> int:
    record = (await gateway_with_groups.store.usage.ask(request_id)).record
    assert record is not None
    return record.charge_micros


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_counts_from_the_next_request_on(
    gateway_with_groups: Running, client: Client, change: str
) -> None:
    make, status, code, named = CHANGES[change]
    token = await gateway_with_groups.token()
    for _ in range(2):
        assert (await gateway_with_groups.ask(token)).status == 200
    before = await gateway_with_groups.store.accounts.get("tester")
    assert before is not None
    (listed,) = await gateway_with_groups.store.tokens.all_of("tester")
    await make(gateway_with_groups.store, listed.id)
    refused = await gateway_with_groups.ask(token)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (status, code)
    after = await gateway_with_groups.store.accounts.get("tester")
    assert after is not None
    assert (after.balance_micros, after.held_micros, after.holds) == (before.balance_micros, 0, 0)
    assert await client.call("ZCARD", "gw:{tester}:limits:rate-limit:slots") == 0
    record = (await gateway_with_groups.store.usage.ask(refused.headers["x-request-id"])).record
    assert record is not None
    assert (record.error_code, record.account) == (code, "tester" if named else "")
    assert await gateway_with_groups.store.wallet.verify("tester") == []


async def test_a_request_is_priced_by_the_group_of_now(gateway_with_groups: Running) -> None:
    token = await gateway_with_groups.token()
    charges = [
        await charge_of(gateway_with_groups, (await gateway_with_groups.ask(token)).headers["x-request-id"])
        for _ in range(2)
    ]
    await gateway_with_groups.store.accounts.change("tester", group="vip")
    charges.append(await charge_of(gateway_with_groups, (await gateway_with_groups.ask(token)).headers["x-request-id"]))
    assert charges == [charges[0], charges[0], 3 * charges[0]]
    assert await gateway_with_groups.store.wallet.verify("tester") == []


async def test_an_account_that_is_open_again_is_served_again(gateway_with_groups: Running) -> None:
    token = await gateway_with_groups.token()
    for status, expected in ((AccountStatus.SUSPENDED, 403), (AccountStatus.ACTIVE, 200)) * 2:
        await gateway_with_groups.store.accounts.change("tester", status=status)
        assert (await gateway_with_groups.ask(token)).status == expected


async def test_a_store_that_forgot_everything_refuses_a_known_token(
    gateway_with_groups: Running, client: Client
) -> None:
    token = await gateway_with_groups.token()
    assert (await gateway_with_groups.ask(token)).status == 200
    await client.call("FLUSHALL")
    assert (await gateway_with_groups.ask(token)).status == 401
