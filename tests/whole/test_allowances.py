"""Budgets and limits of groups, accounts and tokens, as they are set, are those of every gateway from the next request on."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from gateway import AccountLimits, Budgets
from gateway.store.client.client import Client
from gateway.testing import Running, running
from tests.patience import PATIENCE_S
from tests.runtime.test_reload import FileReloader
from tests.whole.raw import Answer, ask, chat, get
from tests.whole.scripted import CHUNKED, LAST, Forever, Scripted, chunk

SLOTS, CALLERS = 3, 50
ANSWER = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":50}}\n\n'
    b"data: [DONE]\n\n"
)
CHARGE = 100 * 1 + 50 * 2
"""Micros that a request costs with this usage."""


class GatedUpstream(Scripted):
    """An upstream that answers when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        super().__init__([CHUNKED, Forever(b"", 0.01, until=self.gate.is_set), chunk(ANSWER) + LAST])


def yaml(base_url: str, groups: dict[str, Any] | None = None, **settings: object) -> str:
    document = {
        "channels": {"fake": {"base_url": base_url}},
        "models": {"words": {"input": 1, "output": 2, "max_output_tokens": 100, "channels": ["fake"]}},
        "groups": {"default": {}} | (groups or {}),
        "store": {"timeout": PATIENCE_S},
        "plugins": [{"use": name} for name in ("usage-logger", "auth", "rate-limit", "quota", "model-routing")],
        **settings,
    }
    document["plugins"][2]["with"] = {"requests_per_minute": 1000, "concurrent": 40}  # type: ignore[index]
    return json.dumps(document)


@asynccontextmanager
async def gateways(text: str, folder: Path, store_url: str, count: int = 2) -> AsyncIterator[list[Running]]:
    """Run gateways on one store, with one pepper."""
    async with AsyncExitStack() as stack:
        found = []
        for number in range(count):
            own = folder / str(number)
            own.mkdir()
            (own / "data").symlink_to(folder, target_is_directory=True)
            found.append(await stack.enter_async_context(running(text, own, store_url)))
        yield found


async def account_of(gateway: Running, token: str) -> dict[str, Any]:
    answer = await ask(gateway.port, get("/v1/account", token))
    assert answer.status == 200, answer
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def send(gateway: Running, token: str) -> Answer:
    return await ask(gateway.port, chat(token, {"max_tokens": 10}))


async def test_of_fifty_at_once_through_two_gateways_as_many_as_the_tokens_limit_are_served(
    store_url: str, client: Client, tmp_path: Path
) -> None:
    async with GatedUpstream() as upstream, gateways(yaml(upstream.base_url), tmp_path, store_url) as both:
        await both[0].token()
        store = both[0].store
        limited = await store.tokens.create("tester", limits=AccountLimits(concurrent=SLOTS))
        ports = cycle(gateway.port for gateway in both)
        callers = [asyncio.create_task(ask(next(ports), chat(limited.token))) for _ in range(CALLERS)]
        async with asyncio.timeout(PATIENCE_S):
            while sum(not caller.done() for caller in callers) > SLOTS or len(upstream.requests) < SLOTS:
                await asyncio.sleep(0.01)
        upstream.gate.set()
        answers = await asyncio.gather(*callers)
        assert Counter(answer.status for answer in answers) == {200: SLOTS, 429: CALLERS - SLOTS}
        refused = [answer.error for answer in answers if answer.status == 429]
        assert {error["code"] for error in refused} == {"too_many_concurrent"}
        assert all(f"Over the token's limit of {SLOTS} requests at once" in error["message"] for error in refused)
        assert len(upstream.requests) == SLOTS
        for gateway in both:
            await gateway.gateway.runner.wait_ended()
        for key in ("slots", f"{limited.id}:slots"):
            assert await client.call("EXISTS", f"gw:{{tester}}:limits:rate-limit:{key}") == 0
        assert await store.wallet.verify("tester") == []


@pytest.fixture
async def upstream() -> AsyncIterator[Scripted]:
    """Yield an upstream that answers at once."""
    async with Scripted([CHUNKED, chunk(ANSWER) + LAST]) as upstream:
        yield upstream


async def test_a_change_of_a_token_counts_in_every_gateway_from_the_next_request_on(
    upstream: Scripted, store_url: str, client: Client, tmp_path: Path
) -> None:
    async with gateways(yaml(upstream.base_url), tmp_path, store_url) as both:
        one, other = both
        await one.token()
        created = await one.store.tokens.create("tester")
        for gateway in both * 2:
            assert (await send(gateway, created.token)).status == 200
        tokens = other.store.tokens
        await tokens.change(created.id, limits={"requests_per_minute": 1})
        for gateway, status in ((one, 200), (one, 429), (other, 429)):
            assert (await send(gateway, created.token)).status == status
        await tokens.change(created.id, budgets={"day": 1}, limits={"requests_per_minute": None})
        for gateway in both:
            refused = await send(gateway, created.token)
            assert (refused.status, refused.error["code"]) == (402, "budget_exceeded")
            assert "The token's budget of the day" in refused.error["message"]
        await tokens.change(created.id, budgets={"day": None})
        for gateway in both:
            assert (await send(gateway, created.token)).status == 200
        await one.store.accounts.change("tester", budgets=Budgets(total=CHARGE))
        for gateway in both:
            refused = await send(gateway, created.token)
            assert "The account's total budget" in refused.error["message"]
        assert await one.store.wallet.verify("tester") == []


async def test_a_group_gives_each_of_its_accounts_its_budgets_and_limits(
    upstream: Scripted, store_url: str, client: Client, tmp_path: Path
) -> None:
    trial = {"budgets": {"requests": 2}, "limits": {"requests_per_minute": 5}}
    async with running(yaml(upstream.base_url, {"trial": trial}), tmp_path, store_url) as gateway:
        alice, bob = [await gateway.token(name, group="trial") for name in ("alice", "bob")]
        for token in (alice, bob):
            answers = [await send(gateway, token) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 402]
            assert "The account's budget of requests a day" in answers[2].error["message"]
            assert answers[2].headers["x-should-retry"] == "false"
            assert answers[0].headers["x-ratelimit-limit-requests"] == "5"
        await gateway.store.accounts.change("bob", budgets=Budgets(requests=3))
        assert [(await send(gateway, bob)).status for _ in range(2)] == [200, 402]
        assert (await send(gateway, alice)).status == 402
        file = tmp_path / "gateway.yaml"
        trial["budgets"] = {"requests": 4}
        file.write_text(yaml(upstream.base_url, {"trial": trial}))
        async with FileReloader(gateway.gateway, file) as reloader:
            assert await reloader.run_once()
            assert (await send(gateway, alice)).status == 200, "a reload takes up the group's budget"
            assert (await send(gateway, bob)).status == 429, "and the account's own is as it was, as is its rate"


def money(limit: int, used: int) -> dict[str, int]:
    return {"limit_micros": limit, "used_micros": used, "left_micros": limit - used}


async def test_an_account_is_told_what_is_left_of_its_tokens_a_minute_and_takes_none(
    upstream: Scripted, store_url: str, client: Client, tmp_path: Path
) -> None:
    groups = {"trial": {"limits": {"tokens_per_minute": 1000}}}
    async with running(yaml(upstream.base_url, groups), tmp_path, store_url) as gateway:
        token = await gateway.token(group="trial")
        assert (await send(gateway, token)).status == 200
        for _ in range(2):
            limits = (await account_of(gateway, token))["limits"]
            assert limits["limit_tokens"] == 1000
            assert 1000 - 150 <= limits["remaining_tokens"] < 1000 - 150 + 100, "some of it is given back meanwhile"
            assert limits["account"] == {"tokens_per_minute": 1000}


async def test_an_account_is_told_what_is_left_of_its_own_its_own_budgets_and_of_those_of_the_token_it_sends(
    upstream: Scripted, store_url: str, client: Client, tmp_path: Path
) -> None:
    groups = {"trial": {"budgets": {"day": 1, "requests": 100}, "limits": {"requests_per_minute": 30}}}
    text = yaml(upstream.base_url, groups, time_zone="Europe/Berlin")
    async with running(text, tmp_path, store_url) as gateway:
        alice, bob = [await gateway.token(name, group="trial") for name in ("alice", "bob")]
        store = gateway.store
        await store.accounts.change("alice", budgets=Budgets(month=7_000_000))
        capped = await store.tokens.create("alice", budgets=Budgets(total=500_000), limits=AccountLimits(concurrent=2))
        other = await store.tokens.create("alice", budgets=Budgets(total=333_333))
        for token, times in ((alice, 1), (capped.token, 2), (other.token, 1), (bob, 1)):
            for _ in range(times):
                assert (await send(gateway, token)).status == 200
        told = await account_of(gateway, capped.token)
        ends = {(each["of"], each["window"]): each.pop("ends_at") for each in told["budgets"]}
        assert told["budgets"] == [
            {"of": "account", "window": "day"} | money(1_000_000, 4 * CHARGE),
            {"of": "account", "window": "month"} | money(7_000_000, 4 * CHARGE),
            {"of": "account", "window": "day", "limit_requests": 100, "used_requests": 4, "left_requests": 96},
            {"of": "token", "window": "total"} | money(500_000, 2 * CHARGE),
        ]
        assert told["available_micros"] == 5_000_000 - 4 * CHARGE == told["balance_micros"]
        assert ends["token", "total"] is None
        month_ends = datetime.fromisoformat(ends["account", "month"])
        assert (month_ends.day, month_ends.hour) == (1, 0)
        assert month_ends.utcoffset() is not None
        assert datetime.now(UTC) < datetime.fromisoformat(ends["account", "day"]) <= month_ends
        assert told["limits"]["account"] == {"requests_per_minute": 30}
        assert told["limits"]["token"] == {"concurrent": 2}
        assert told["limits"]["limit_requests"] == 30
        assert "333333" not in json.dumps(told), "the budget of another token"
        shown = await account_of(gateway, bob)
        assert (shown["id"], shown["limits"]["token"]) == ("bob", {})
        assert [each.get("used_micros", each.get("used_requests")) for each in shown["budgets"]] == [CHARGE, 1]
        for private in ("alice", "7000000", "500000", capped.id):
            assert private not in json.dumps(shown)
        for path in ("/v1/account/alice", "/v1/account?id=alice", "/v1/account?account=alice"):
            answer = await ask(gateway.port, get(path, bob))
            assert b"alice" not in answer.body.replace(path.encode(), b"")


async def test_a_budget_on_a_credit_line_is_an_allowance_without_a_balance(
    upstream: Scripted, store_url: str, client: Client, tmp_path: Path
) -> None:
    async with running(yaml(upstream.base_url), tmp_path, store_url) as gateway:
        token = await gateway.token(credit=0)
        assert (await send(gateway, token)).error["code"] == "insufficient_balance"
        await gateway.store.accounts.change("tester", credit_line=1_000_000_000)
        await gateway.store.accounts.change("tester", budgets=Budgets(month=20 * CHARGE))
        statuses = Counter([(await send(gateway, token)).status for _ in range(25)])
        assert set(statuses) == {200, 402}
        account = await gateway.store.accounts.get("tester")
        assert account is not None
        assert -20 * CHARGE <= account.balance_micros == -statuses[200] * CHARGE
