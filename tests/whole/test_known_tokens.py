"""A worker that remembers a token and its account serves each request by what they are now."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway import AccountLimits
from gateway.chain.services import Store
from gateway.fake_upstream import FakeUpstream
from gateway.store.accounts import AccountStatus
from gateway.store.client.client import Client
from gateway.store.tokens import TokenStatus
from gateway.testing import Running, configuration, running

GROUPS = {"default": {}, "vip": {"ratio": 3}, "closed": {"enabled": False}, "few": {"models": []}}

Change = Callable[[Store, str], Awaitable[object]]


async def _delete(store: Store, token_id: str) -> object:
    return await store.tokens.delete(token_id)


CHANGES: dict[str, tuple[Change, int, str, bool]] = {
    "deleted": (_delete, 401, "token_invalid", False),
    "disabled": (
        lambda store, token: store.tokens.set_status(token, TokenStatus.DISABLED),
        401,
        "token_disabled",
        True,
    ),
    "suspended": (
        lambda store, _: store.accounts.set_status("tester", AccountStatus.SUSPENDED),
        403,
        "account_inactive",
        True,
    ),
    "in a closed group": (
        lambda store, _: store.accounts.change("tester", group="closed"),
        403,
        "group_forbidden",
        True,
    ),
    "restricted": (lambda store, _: store.accounts.change("tester", models=["other"]), 404, "model_not_found", True),
    "limited": (
        lambda store, _: store.accounts.change("tester", limits=AccountLimits(tokens_per_minute=1)),
        429,
        "rate_limited",
        True,
    ),
}
"""What changes, and with which status and code the next request is refused; whether its record names the account."""


@pytest.fixture
async def gateway(store_url: str, client: Client, tmp_path: Path) -> AsyncIterator[Running]:
    async with FakeUpstream(pace_s=0) as upstream:
        document = json.loads(configuration(upstream.base_url)) | {"groups": GROUPS}
        async with running(json.dumps(document), tmp_path, store_url) as gateway:
            yield gateway


async def charge_of(gateway: Running, request_id: str) -> int:
    record = await gateway.store.usage.find(request_id)
    assert record is not None
    return record.charge_micros


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_counts_from_the_next_request_on(gateway: Running, client: Client, change: str) -> None:
    make, status, code, named = CHANGES[change]
    token = await gateway.token()
    for _ in range(2):
        assert (await gateway.ask(token)).status == 200
    before = await gateway.store.accounts.get("tester")
    assert before is not None
    (listed,) = await gateway.store.tokens.all_of("tester")
    await make(gateway.store, listed.id)
    refused = await gateway.ask(token)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (status, code)
    after = await gateway.store.accounts.get("tester")
    assert after is not None
    assert (after.balance_micros, after.held_micros, after.holds) == (before.balance_micros, 0, 0)
    assert await client.call("ZCARD", "gw:{tester}:limits:rate-limit:slots") == 0
    record = await gateway.store.usage.find(refused.headers["x-request-id"])
    assert record is not None
    assert (record.error_code, record.account) == (code, "tester" if named else "")
    assert await gateway.store.wallet.verify("tester") == []


async def test_a_request_is_priced_by_the_group_of_now(gateway: Running) -> None:
    token = await gateway.token()
    charges = [await charge_of(gateway, (await gateway.ask(token)).headers["x-request-id"]) for _ in range(2)]
    await gateway.store.accounts.change("tester", group="vip")
    charges.append(await charge_of(gateway, (await gateway.ask(token)).headers["x-request-id"]))
    assert charges == [charges[0], charges[0], 3 * charges[0]]
    assert await gateway.store.wallet.verify("tester") == []


async def test_an_account_that_is_open_again_is_served_again(gateway: Running) -> None:
    token = await gateway.token()
    for status, expected in ((AccountStatus.SUSPENDED, 403), (AccountStatus.ACTIVE, 200)) * 2:
        await gateway.store.accounts.set_status("tester", status)
        assert (await gateway.ask(token)).status == expected


async def test_a_store_that_forgot_everything_refuses_a_known_token(gateway: Running, client: Client) -> None:
    token = await gateway.token()
    assert (await gateway.ask(token)).status == 200
    await client.call("FLUSHALL")
    assert (await gateway.ask(token)).status == 401
